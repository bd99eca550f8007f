// The SIMT kernels' way from accumulators to d: a thread's neighbours along n go from its registers straight to global
// memory. Their warps are 8 threads wide along n, which makes rows of 64 bytes (16-bit d) or 128: whole sectors without
// the detour through shared memory that StagedEpilogue makes for tensor cores.
#pragma once

#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "gemm/tile_scheduler.h"
#include "moye/tensor.h"

namespace moye {

/// tCrC (1,MMA_M,MMA_N): the sums of the tile's elements tCcC (1,MMA_M,MMA_N); groups of kVector along MMA_N are
/// neighbours along n. tile_m, tile_n: the tile's extents.
template <class Accumulators, class Coords>
MOYE_DEVICE void store_from_registers(GemmArgs const& args, TileCoord const& tile, int tile_m, int tile_n,
                                      Accumulators const& tCrC, Coords const& tCcC MOYE_LOC) {
  MOYE_SITE;
  using Sum = typename Accumulators::Value;
  constexpr int kVector = TileEpilogue<Sum>::kVector;
  constexpr int kGroups = decltype(size<2>(tCrC))::value / kVector;  // of one row
  constexpr int kSteps = decltype(size<1>(tCrC))::value * kGroups;
  static_assert(decltype(size<0>(tCrC))::value == 1 && decltype(size<2>(tCrC))::value % kVector == 0,
                "store_from_registers: one element per atom, whole vectors along n");
  with_tile_epilogue<Sum, kVector, /*kDerives=*/false, /*kScales=*/true>(
      args, tile, tile_m, tile_n, [&](auto const& epilogue) {
        MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
            for (int step = 0; step < kSteps; ++step) {
          Sum sums[kVector];
          MOYE_UNROLL
          for (int i = 0; i < kSteps; ++i) {  // accumulators are registers: their indices are constants
            if (i == step) {
              MOYE_UNROLL
              for (int j = 0; j < kVector; ++j) sums[j] = tCrC(_0{}, i / kGroups, i % kGroups * kVector + j);
            }
          }
          auto const coord = tCcC(_0{}, step / kGroups, step % kGroups * kVector);
          epilogue.store(sums, get<0>(coord), get<1>(coord));
        }
      });
}

}  // namespace moye
