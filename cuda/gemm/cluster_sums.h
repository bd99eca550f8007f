// Sums of a tile of d whose k the CTAs of a cluster share: which part of k a CTA has, and how the parts' sums become d.
#pragma once

#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "moye/arch/builtin.h"
#include "moye/arch/cluster.h"
#include "moye/layout.h"
#include "moye/pipeline.h"

namespace moye {

/// How d is made of the sums. plain: they are d; words: without scales and derivatives; both in words alone. The host
/// says so: the instructions of an epilogue for all cases are many, and a program that runs them once waits for them.
enum class Finishing : uint8_t { plain, words, any };

/// kSplit CTAs share the tile, and each has the sums of its part of k in its shared memory, as SumsLayout says:
/// vectors of 16 bytes along n lie together. kThreads of each CTA add them up.
template <class Sum, int kBlkM, int kBlkN, class SumsLayout, int kSplit, int kThreads>
struct ClusterSums {
  static constexpr int kVector = 16 / int(sizeof(Sum));
  // Vectors of a thread whose loads are under way together: of many threads each has few, but for large tiles of a CTA.
  static constexpr int kTogether =
      kSplit == 1 && kThreads > 128 ? 8 : ceil_div(kThreads > 128 ? 8 : 16, kSplit < 4 ? 4 : kSplit);
  using Words = TileEpilogue<Sum, kVector>;

  /// The first k-tile of rank `rank`: parts of k differ by one k-tile at most.
  static MOYE_DEVICE int first_k_tile(int rank, int k_tiles) { return int(int64_t(k_tiles) * rank / kSplit); }

  /// Host: of a call.
  static Finishing finishing(GemmArgs const& args) {
    EpilogueArgs const& epilogue = args.epilogue;
    if (!Words::is_of_words(args) || epilogue.second_b != nullptr) return Finishing::any;
    if (is_plain(epilogue)) return Finishing::plain;
    return has_scales(epilogue) || epilogue.activation >= kFirstDerivative || epilogue.activation == Activation::own
               ? Finishing::any
               : Finishing::words;
  }

  /// The tile's rows in vectors, dealt out to the ranks in one piece each; those beyond m are not counted, so that the
  /// ranks have the same to do, the last one perhaps less, where the tile has few rows. kColumns: of a row.
  template <int kColumns>
  struct Share {
    static constexpr int kVectors = kColumns / kVector;  // of a row
    int begin, end;

    MOYE_DEVICE Share(GemmArgs const& args, TileCoord const& tile, int rank, int thread) {
      int64_t const m_left = args.m - int64_t(tile.m) * kBlkM;
      int const all = (m_left < kBlkM ? int(m_left) : kBlkM) * kVectors, share = (all + kSplit - 1) / kSplit;
      begin = rank * share + thread;
      end = (rank + 1) * share < all ? (rank + 1) * share : all;
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

  /// All ranks, with the sums of their parts: what there is to read beside them is on its way before the cluster meets,
  /// then the thread's vectors are added up and stored. own: this rank's sums. kPair: half of the columns are those of
  /// a second b.
  template <bool kPair>
  static MOYE_DEVICE void add_and_store(GemmArgs const& args, Finishing finishing, TileCoord const& tile, int rank,
                                        Sum* own, int thread) {
    constexpr int kColumns = kPair ? kBlkN / 2 : kBlkN;
    Share<kColumns> const share(args, tile, rank, thread);
    if (!kPair && finishing == Finishing::plain) {
      auto const words = Words::of_product(args, tile, kBlkM, kColumns);
      meet();
      MOYE_NO_UNROLL
      for (int first = share.begin; first < share.end; first += kTogether * kThreads) {
        Row<Sum, kVector> sums[kTogether];
        add(own, share, first, sums);
        share.each(first, sums, [&](int i, int row, int column) {
          words.template store_plain<1>([&](int) { return sums[i]; }, row, 0, column);
        });
      }
    } else if (!kPair && finishing == Finishing::words) {
      constexpr int kCount = ceil_div(kTogether, 2);  // c and the others take registers, too
      Words const words(args, tile, kBlkM, kColumns);
      typename Words::template Copied<1, 16> copied[kCount];
      auto const copy_words = [&](int first) {
        share.each(first, copied, [&](int i, int row, int column) {
          words.copy_rows(copied[i], [](auto const& from, auto& to) { to = from; }, row, 0, column);
        });
      };
      copy_words(share.begin);
      meet();
      MOYE_NO_UNROLL
      for (int first = share.begin; first < share.end; first += kCount * kThreads) {
        Row<Sum, kVector> sums[kCount];
        add(own, share, first, sums);
        share.each(first, sums, [&](int i, int row, int column) {
          words.store_copied([&](int) { return sums[i]; }, copied[i], row, 0, column);
        });
        copy_words(first + kCount * kThreads);
      }
    } else {
      meet();
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
  }

 private:
  static MOYE_DEVICE void meet() {
    sync_cluster<kSplit>();  // all ranks' sums are there
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
