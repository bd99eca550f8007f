// Sums of a tile of d whose k the CTAs of a cluster share: which part of k a CTA has, and how the parts' sums become d.
#pragma once

#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "gemm/finishing.h"
#include "moye/arch/builtin.h"
#include "moye/arch/cluster.h"
#include "moye/layout.h"
#include "moye/pipeline.h"

namespace moye {

/// kSplit CTAs share the tile, and each has the sums of its part of k in its shared memory, as SumsLayout says:
/// vectors of 16 bytes along n lie together. kThreads of each CTA add them up.
template <class Sum, int kBlkM, int kBlkN, class SumsLayout, int kSplit, int kThreads>
struct ClusterSums {
  static constexpr int kVector = 16 / int(sizeof(Sum));
  // Vectors of a thread whose loads are under way together: all that it has, or what there are registers for.
  static constexpr int kAllThreads = kSplit * kThreads;
  static constexpr int kVectors = ceil_div(kBlkM * kBlkN / kVector, kAllThreads);
  static constexpr int kRoom =
      kSplit == 1 && kThreads > 128 ? 8 : ceil_div(kThreads > 128 ? 8 : 16, kSplit < 4 ? 4 : kSplit);
  static constexpr int kTogether = kVectors < kRoom ? kVectors : kRoom;
  using Words = TileEpilogue<Sum, kVector>;

  /// The first k-tile of rank `rank`: parts of k differ by one k-tile at most.
  static MOYE_DEVICE int first_k_tile(int rank, int k_tiles) { return int(int64_t(k_tiles) * rank / kSplit); }

  /// Host: of a call.
  static Finishing finishing(GemmArgs const& args) {
    EpilogueArgs const& epilogue = args.epilogue;
    bool const any_activation = epilogue.activation >= kFirstDerivative || epilogue.activation == Activation::own;
    if (!Words::is_of_words(args) || any_activation || has_scales(epilogue)) return Finishing::any;
    if (epilogue.second_b != nullptr) {
      bool const is_alone = epilogue.preactivation == nullptr && epilogue.second_product == nullptr;
      return is_alone ? Finishing::pair : Finishing::any;
    }
    return is_plain(epilogue) ? Finishing::plain : is_sum(epilogue) ? Finishing::sum : Finishing::words;
  }

  /// The tile's rows in vectors, dealt out to the ranks in one piece each; those beyond m are not counted, so that the
  /// ranks have the same to do, the last one perhaps less, where the tile has few rows. A thread's vectors lie below
  /// each other, kRowStep rows apart. kColumns: of a row.
  template <int kColumns>
  struct Share {
    static constexpr int kVectors = kColumns / kVector;             // of a row
    static constexpr int kActive = kThreads / kVectors * kVectors;  // threads, in whole rows
    static constexpr int kRowStep = kActive / kVectors;
    static_assert(kRowStep > 0);
    int row, column;  // of the thread's first vector
    int end;          // behind the rows of its last one
    int count;        // vectors of all threads

    MOYE_DEVICE Share(GemmArgs const& args, TileCoord const& tile, int rank, int thread) {
      int64_t const m_left = args.m - int64_t(tile.m) * kBlkM;
      int const all = (m_left < kBlkM ? int(m_left) : kBlkM) * kVectors, share = (all + kSplit - 1) / kSplit;
      int const first = rank * share, last = first + share < all ? first + share : all;
      unsigned const vector = unsigned(first + thread);
      int const in_row = int(vector % kVectors);
      row = int(vector / kVectors);
      column = in_row * kVector;
      end = thread < kActive ? int(unsigned(last + kVectors - 1 - in_row) / kVectors) : 0;
      count = last - first;
    }

    /// f(row, is_last) for each kCount vectors of all threads, in all threads alike, and once at least. `row`: of the
    /// thread's first one.
    template <int kCount, class F>
    MOYE_DEVICE void rounds(F const& f) const {
      int at = row;
      MOYE_NO_UNROLL
      for (int done = kCount * kActive;; done += kCount * kActive, at += kCount * kRowStep) {
        bool const is_last = done >= count;
        f(at, is_last);
        if (is_last) return;
      }
    }
  };

  /// What a thread stores, and what it needs for that beside sums. In a program the call's arguments come from memory,
  /// as may what is added to the sums: both are asked for while the first stages are loaded.
  template <Finishing kFinishing>
  struct Begun {
    static constexpr int kColumns = kFinishing == Finishing::pair ? kBlkN / 2 : kBlkN;
    static constexpr bool kCopies = kFinishing == Finishing::words;
    // Vectors of a round. c, a bias and a residual take registers, too.
    static constexpr int kCount = kFinishing == Finishing::pair ? 1 : kCopies ? ceil_div(kTogether, 2) : kTogether;
    using OfRank = Share<kColumns>;
    OfRank share;
    Words words;  // of the thread's rows
    uint128_t added[kFinishing == Finishing::sum ? kCount : 1];
    typename Words::template Copied<kCopies ? kCount : 1, 16> copied;

    MOYE_DEVICE Begun(GemmArgs const& args, TileCoord const& tile, int rank, int thread)
        : share(args, tile, rank, thread), words(words_of(args, tile)) {
      words.end_at(share.end);
    }

    /// What is added to the vectors from `row` on.
    MOYE_DEVICE void load(int row) {
      if constexpr (kFinishing == Finishing::sum) words.added_words(added, row, OfRank::kRowStep, share.column);
      if constexpr (kCopies) {
        auto const load_word = [](auto const& from, auto& to) { to = from; };
        words.copy_rows(copied, load_word, row, OfRank::kRowStep, share.column);
      }
    }

    /// Stores sums of the vectors from `row` on; second: of a pair's second product.
    MOYE_DEVICE void store(Row<Sum, kVector> const (&sums)[kCount], Row<Sum, kVector> const& second, int row) const {
      auto const sums_of = [&](int i) { return sums[i]; };
      if constexpr (kFinishing == Finishing::plain) {
        words.template store_plain<kCount>(sums_of, row, OfRank::kRowStep, share.column);
      } else if constexpr (kFinishing == Finishing::sum) {
        words.template store_sums<kCount>(sums_of, added, row, OfRank::kRowStep, share.column);
      } else if constexpr (kCopies) {
        words.store_copied(sums_of, copied, row, OfRank::kRowStep, share.column);
      } else {
        words.store_pair_word(sums[0], second, row, share.column);
      }
    }

   private:
    static MOYE_DEVICE Words words_of(GemmArgs const& args, TileCoord const& tile) {
      if constexpr (kFinishing == Finishing::sum) return Words::of_sum(args, tile, kBlkM, kColumns);
      if constexpr (kFinishing == Finishing::words) return Words(args, tile, kBlkM, kColumns);
      return Words::of_product(args, tile, kBlkM, kColumns);
    }
  };

  /// All ranks, with the sums of their parts: the cluster meets, then the thread's vectors are added up and stored.
  /// wait_for_reads() has to follow.
  /// own: this rank's sums. kPairs: whether calls of any kind may have a second b; half of the columns are its.
  template <Finishing kFinishing, bool kPairs>
  static MOYE_DEVICE void add_and_store(GemmArgs const& args, Begun<kFinishing>& begun, TileCoord const& tile, int rank,
                                        Sum* own, int thread) {
    sync_cluster<kSplit>();  // all ranks' sums are there
    if constexpr (kFinishing != Finishing::any) {
      constexpr int kCount = Begun<kFinishing>::kCount;
      begun.share.template rounds<kCount>([&](int row, bool is_last) {
        Row<Sum, kVector> sums[kCount], second[1];
        add(own, begun.share, row, sums);
        if constexpr (kFinishing == Finishing::pair) add(own, begun.share, row, second, /*column=*/begun.kColumns);
        if (is_last) arrive_behind_reads();
        begun.store(sums, second[0], row);
        if (!is_last) begun.load(row + kCount * begun.share.kRowStep);
      });
    } else {
      bool const pair = kPairs && args.epilogue.second_b != nullptr;
      if constexpr (kPairs) {
        if (pair) store_any</*kPair=*/true>(args, tile, rank, own, thread);
      }
      if (!pair) store_any</*kPair=*/false>(args, tile, rank, own, thread);
      arrive_behind_reads();
    }
  }

  /// Each thread, once it has read all that it wants of other ranks' sums. In front of its last stores: it would wait
  /// for them, too.
  static MOYE_DEVICE void arrive_behind_reads() {
    if constexpr (kSplit > 1) cluster_arrive();
  }
  /// Behind it all ranks have read this one's sums.
  static MOYE_DEVICE void wait_for_reads() {
    if constexpr (kSplit > 1) cluster_wait();
  }

 private:
  template <bool kPair>
  static MOYE_DEVICE void store_any(GemmArgs const& args, TileCoord const& tile, int rank, Sum* own, int thread) {
    constexpr int kColumns = kPair ? kBlkN / 2 : kBlkN;
    Share<kColumns> const share(args, tile, rank, thread);
    with_tile_epilogue<Sum, kVector, /*kDerives=*/true, /*kScales=*/!kPair>(
        args, tile, kBlkM, kColumns, [&](auto const& epilogue) {
          MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
              for (int row = share.row; row < share.end; row += share.kRowStep) {
            Row<Sum, kVector> sums[1];
            add(own, share, row, sums);
            if constexpr (kPair) {
              Row<Sum, kVector> second[1];
              add(own, share, row, second, /*column=*/kColumns);
              epilogue.store_pair(sums[0].elements, second[0].elements, row, share.column);
            } else {
              epilogue.store(sums[0].elements, row, share.column);
            }
          }
        });
  }

  /// sums[i] = the thread's i-th vector from `row` on, of all ranks, rank 0's first; `column` columns further on.
  /// Those that are the next rank's stay as they were.
  template <class OfRank, int kCount>
  static MOYE_DEVICE void add(Sum* own, OfRank const& share, int row, Row<Sum, kVector> (&sums)[kCount],
                              int column = 0) {
    Row<Sum, kVector> parts[kCount][kSplit];
    int const first = SumsLayout{}(row, share.column + column);
    Sum const* from[kSplit];
    MOYE_UNROLL
    for (int r = 0; r < kSplit; ++r) from[r] = mapa(own, uint32_t(r)) + first;
    auto const each = [&](auto const& f) {
      MOYE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        if (row + i * OfRank::kRowStep < share.end) f(i);
      }
    };
    each([&](int i) {  // all are under way before the first is needed
      int const at = SumsLayout{}(row + i * OfRank::kRowStep, share.column + column) - first;
      MOYE_UNROLL
      for (int r = 0; r < kSplit; ++r)
        parts[i][r] = detail::bit_cast<Row<Sum, kVector>>(*reinterpret_cast<uint128_t const*>(from[r] + at));
    });
    each([&](int i) {
      sums[i] = parts[i][0];
      MOYE_UNROLL
      for (int r = 1; r < kSplit; ++r) {
        MOYE_UNROLL
        for (int j = 0; j < kVector; ++j) sums[i].elements[j] += parts[i][r].elements[j];
      }
    });
  }
};

}  // namespace moye
