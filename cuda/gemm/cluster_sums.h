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
  /// ranks have the same to do, the last one perhaps less, where the tile has few rows. kColumns: of a row.
  template <int kColumns>
  struct Share {
    static constexpr int kVectors = kColumns / kVector;  // of a row
    int begin, end;
    int count;  // of all threads

    MOYE_DEVICE Share(GemmArgs const& args, TileCoord const& tile, int rank, int thread) {
      int64_t const m_left = args.m - int64_t(tile.m) * kBlkM;
      int const all = (m_left < kBlkM ? int(m_left) : kBlkM) * kVectors, share = (all + kSplit - 1) / kSplit;
      begin = rank * share + thread;
      end = (rank + 1) * share < all ? (rank + 1) * share : all;
      count = end - rank * share;
    }

    /// f(first, is_last) for each kCount vectors of all threads, in all threads alike, and once at least. `first`: of
    /// the thread's.
    template <int kCount, class F>
    MOYE_DEVICE void rounds(F const& f) const {
      MOYE_NO_UNROLL
      for (int first = 0;; first += kCount * kThreads) {
        bool const is_last = first + kCount * kThreads >= count;
        f(begin + first, is_last);
        if (is_last) return;
      }
    }
    static MOYE_DEVICE int row(int vector) { return vector / kVectors; }
    static MOYE_DEVICE int column(int vector) { return vector % kVectors * kVector; }

    /// f(i, row, column) of the thread's next kCount vectors, of which `first` is the first: of those of this share.
    template <class T, int kCount, class F>
    MOYE_DEVICE void each(int first, T const (&)[kCount], F const& f) const {
      MOYE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        int const vector = first + i * kThreads;
        if (vector < end) f(i, row(vector), column(vector));
      }
    }
  };

  /// What a thread stores, and what it needs for that beside sums. In a program the call's arguments come from memory,
  /// as may what is added to the sums: both are asked for while the first stages are loaded.
  template <Finishing kFinishing>
  struct Begun {
    static constexpr int kColumns = kFinishing == Finishing::pair ? kBlkN / 2 : kBlkN;
    Share<kColumns> share;
    Words words;
    uint128_t added[kFinishing == Finishing::sum ? kTogether : 1];

    MOYE_DEVICE Begun(GemmArgs const& args, TileCoord const& tile, int rank, int thread)
        : share(args, tile, rank, thread), words(words_of(args, tile)) {}

    /// c or the residual of the thread's next vectors, where there is nothing else.
    MOYE_DEVICE void load(int first) {
      if constexpr (kFinishing == Finishing::sum)
        share.each(first, added, [&](int i, int row, int column) { added[i] = words.added_word(row, column); });
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
    auto const& share = begun.share;
    auto const& words = begun.words;
    if constexpr (kFinishing == Finishing::plain || kFinishing == Finishing::sum) {
      meet();
      share.template rounds<kTogether>([&](int first, bool is_last) {
        Row<Sum, kVector> sums[kTogether];
        add(own, share, first, sums);
        if (is_last) arrive_behind_reads();
        share.each(first, sums, [&](int i, int row, int column) {
          if constexpr (kFinishing == Finishing::sum) {
            words.store_sum(sums[i], begun.added[i], row, column);
          } else {
            words.template store_plain<1>([&](int) { return sums[i]; }, row, 0, column);
          }
        });
        if (!is_last) begun.load(first + kTogether * kThreads);
      });
    } else if constexpr (kFinishing == Finishing::words) {
      constexpr int kCount = ceil_div(kTogether, 2);  // c and the others take registers, too
      typename Words::template Copied<1, 16> copied[kCount];
      auto const copy_words = [&](int first) {
        share.each(first, copied, [&](int i, int row, int column) {
          words.copy_rows(copied[i], [](auto const& from, auto& to) { to = from; }, row, 0, column);
        });
      };
      copy_words(share.begin);
      meet();
      share.template rounds<kCount>([&](int first, bool is_last) {
        Row<Sum, kVector> sums[kCount];
        add(own, share, first, sums);
        if (is_last) arrive_behind_reads();
        share.each(first, sums, [&](int i, int row, int column) {
          words.store_copied([&](int) { return sums[i]; }, copied[i], row, 0, column);
        });
        if (!is_last) copy_words(first + kCount * kThreads);
      });
    } else if constexpr (kFinishing == Finishing::pair) {
      meet();
      share.template rounds<1>([&](int vector, bool is_last) {
        Row<Sum, kVector> sums[1], second[1];
        add(own, share, vector, sums);
        add(own, share, vector, second, /*column=*/begun.kColumns);
        if (is_last) arrive_behind_reads();
        share.each(vector, sums,
                   [&](int, int row, int column) { words.store_pair_word(sums[0], second[0], row, column); });
      });
    } else {
      meet();
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
  static MOYE_DEVICE void meet() {
    sync_cluster<kSplit>();  // all ranks' sums are there
  }

  template <bool kPair>
  static MOYE_DEVICE void store_any(GemmArgs const& args, TileCoord const& tile, int rank, Sum* own, int thread) {
    constexpr int kColumns = kPair ? kBlkN / 2 : kBlkN;
    Share<kColumns> const share(args, tile, rank, thread);
    with_tile_epilogue<Sum, kVector, /*kDerives=*/true, /*kScales=*/!kPair>(
        args, tile, kBlkM, kColumns, [&](auto const& epilogue) {
          MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
              for (int vector = share.begin; vector < share.end; vector += kThreads) {
            Row<Sum, kVector> sums[1];
            add(own, share, vector, sums);
            int const row = share.row(vector), column = share.column(vector);
            if constexpr (kPair) {
              Row<Sum, kVector> second[1];
              add(own, share, vector, second, /*column=*/kColumns);
              epilogue.store_pair(sums[0].elements, second[0].elements, row, column);
            } else {
              epilogue.store(sums[0].elements, row, column);
            }
          }
        });
  }

  /// sums[i] = the thread's i-th vector from `first` on, of all ranks, rank 0's first; `column` columns further on.
  /// Those that are the next rank's stay as they were.
  template <class ShareOfRank, int kCount>
  static MOYE_DEVICE void add(Sum* own, ShareOfRank const& share, int first, Row<Sum, kVector> (&sums)[kCount],
                              int column = 0) {
    Row<Sum, kVector> parts[kCount][kSplit];
    share.each(first, sums, [&](int i, int row, int column_of_row) {  // all are under way before the first is needed
      int const at = SumsLayout{}(row, column + column_of_row);
      MOYE_UNROLL
      for (int r = 0; r < kSplit; ++r) {
        parts[i][r] = detail::bit_cast<Row<Sum, kVector>>(
            *reinterpret_cast<uint128_t const*>(static_cast<Sum const*>(mapa(own, uint32_t(r))) + at));
      }
    });
    share.each(first, sums, [&](int i, int, int) {
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
