// Sums of a tile of d whose k the CTAs of a cluster share: which part of k a CTA has, and how the parts' sums become d.
#pragma once

#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "moye/arch/builtin.h"
#include "moye/arch/cluster.h"
#include "moye/layout.h"

namespace moye {

/// kSplit CTAs share the tile, and each has the sums of its part of k in its shared memory, as SumsLayout says:
/// vectors of 16 bytes along n lie together. kThreads of each CTA add them up.
template <class Sum, int kBlkM, int kBlkN, class SumsLayout, int kSplit, int kThreads>
struct ClusterSums {
  static constexpr int kVector = 16 / int(sizeof(Sum));

  /// The first k-tile of rank `rank`: parts of k differ by one k-tile at most.
  static MOYE_DEVICE int first_k_tile(int rank, int k_tiles) { return int(int64_t(k_tiles) * rank / kSplit); }

  /// All ranks, once the sums are there: the tile's rows in vectors, dealt out to the ranks in one piece each; those
  /// beyond m are not counted, so that the ranks have the same to do, the last one perhaps less, where the tile has few
  /// rows. own: this rank's sums. kPair: half of the columns are those of a second b.
  template <bool kPair>
  static MOYE_DEVICE void add_and_store(GemmArgs const& args, TileCoord const& tile, int rank, Sum* own, int thread) {
    constexpr int kColumns = kPair ? kBlkN / 2 : kBlkN, kVectors = kColumns / kVector;  // of one row
    Sum const* sums[kSplit];                                                            // of each rank
    MOYE_UNROLL
    for (int r = 0; r < kSplit; ++r) sums[r] = mapa(own, uint32_t(r));

    int64_t const m_left = args.m - int64_t(tile.m) * kBlkM;
    int const all = (m_left < kBlkM ? int(m_left) : kBlkM) * kVectors, share = (all + kSplit - 1) / kSplit;
    int const end = (rank + 1) * share < all ? (rank + 1) * share : all;
    with_tile_epilogue<Sum, kVector, /*kDerives=*/true, /*kScales=*/!kPair>(
        args, tile, kBlkM, kColumns, [&](auto const& epilogue) {
          MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
              for (int vector = rank * share + thread; vector < end; vector += kThreads) {
            int const row = vector / kVectors, column = vector % kVectors * kVector;
            auto const first = add(sums, SumsLayout{}(row, column));
            if constexpr (kPair) {
              auto const second = add(sums, SumsLayout{}(row, kColumns + column));
              epilogue.store_pair(first.elements, second.elements, row, column);
            } else {
              epilogue.store(first.elements, row, column);
            }
          }
        });
  }

 private:
  /// One vector of all ranks, rank 0's first.
  static MOYE_DEVICE Row<Sum, kVector> add(Sum const* const (&sums)[kSplit], int at) {
    Row<Sum, kVector> parts[kSplit];
    MOYE_UNROLL
    for (int r = 0; r < kSplit; ++r) {  // all are on their way before the first is needed
      parts[r] = detail::bit_cast<Row<Sum, kVector>>(*reinterpret_cast<uint128_t const*>(sums[r] + at));
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
