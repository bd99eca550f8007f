// Sums of a tile of d whose k the CTAs of a cluster share: which part of k a CTA has, and how the parts' sums become d.
#pragma once

#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "moye/arch/builtin.h"
#include "moye/arch/cluster.h"
#include "moye/layout.h"

namespace moye {

/// How d is made of the sums. plain: they are d; words: without scales and derivatives; both in words alone. The host
/// says so: the instructions of an epilogue for all cases are many, and a program that runs them once waits for them.
enum class Finishing : uint8_t { plain, words, any };

/// kSplit CTAs share the tile, and each has the sums of its part of k in its shared memory, as SumsLayout says:
/// vectors of 16 bytes along n lie together. kThreads of each CTA add them up.
template <class Sum, int kBlkM, int kBlkN, class SumsLayout, int kSplit, int kThreads>
struct ClusterSums {
  static constexpr int kVector = 16 / int(sizeof(Sum));
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
  };

  /// All ranks, with the sums of their parts: what there is to read beside them is on its way before the cluster meets,
  /// then the thread's vectors are added up and stored. own: this rank's sums. kPair: half of the columns are those of
  /// a second b.
  template <bool kPair>
  static MOYE_DEVICE void add_and_store(GemmArgs const& args, Finishing finishing, TileCoord const& tile, int rank,
                                        Sum* own, int thread) {
    constexpr int kColumns = kPair ? kBlkN / 2 : kBlkN;
    Share<kColumns> const share(args, tile, rank, thread);
    auto const sum_at = [&](int vector, int column = 0) {
      return add(own, SumsLayout{}(share.row(vector), column + share.column(vector)));
    };
    bool const is_any = kPair || finishing == Finishing::any, is_of_words = !kPair && finishing == Finishing::words;
    Words const words =
        is_of_words ? Words(args, tile, kBlkM, kColumns) : Words::of_product(args, tile, kBlkM, kColumns);
    typename Words::template Copied<1, 16> copied;
    auto const copy_words = [&](int vector) {
      if (vector < share.end)
        words.copy_rows(
            copied, [](auto const& from, auto& to) { to = from; }, share.row(vector), 0, share.column(vector));
    };
    if (is_of_words) copy_words(share.begin);
    cluster_sync();  // all ranks' sums are there
    if (is_any) {
      with_tile_epilogue<Sum, kVector, /*kDerives=*/true, /*kScales=*/!kPair>(
          args, tile, kBlkM, kColumns, [&](auto const& epilogue) {
            MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
                for (int vector = share.begin; vector < share.end; vector += kThreads) {
              auto const first = sum_at(vector);
              int const row = share.row(vector), column = share.column(vector);
              if constexpr (kPair) {
                epilogue.store_pair(first.elements, sum_at(vector, kColumns).elements, row, column);
              } else {
                epilogue.store(first.elements, row, column);
              }
            }
          });
    } else {
      MOYE_NO_UNROLL
      for (int vector = share.begin; vector < share.end; vector += kThreads) {
        auto const sum = sum_at(vector);
        auto const sum_of = [&](int) { return sum; };
        int const row = share.row(vector), column = share.column(vector);
        if (is_of_words) {
          words.store_copied(sum_of, copied, row, 0, column);
          copy_words(vector + kThreads);
        } else {
          words.template store_plain<1>(sum_of, row, 0, column);
        }
      }
    }
  }

 private:
  /// One vector of all ranks, rank 0's first.
  static MOYE_DEVICE Row<Sum, kVector> add(Sum* own, int at) {
    Row<Sum, kVector> parts[kSplit];
    MOYE_UNROLL
    for (int r = 0; r < kSplit; ++r) {  // all are on their way before the first is needed
      parts[r] = detail::bit_cast<Row<Sum, kVector>>(
          *reinterpret_cast<uint128_t const*>(static_cast<Sum const*>(mapa(own, uint32_t(r))) + at));
    }
    MOYE_UNROLL
    for (int r = 1; r < kSplit; ++r) {
      MOYE_UNROLL
      for (int i = 0; i < kVector; ++i) parts[0].elements[i] += parts[r].elements[i];
    }
    return parts[0];
  }
};

}  // namespace moye
