// What sm90_split_k.cuh and split_k_tf32.h share, whose CTAs multiply a part of k each: the producer's loads of such a
// part, and the launch.
#pragma once

#include "gemm/cluster_sums.h"
#include "gemm/config.h"
#include "gemm/finishing.h"
#include "gemm/order.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/arch/config.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"
#include "moye/arch/launch_recorder.h"
#include "moye/arch/types.h"
#include "moye/pipeline.h"

namespace moye {

/// The producer's warp: the loads of this CTA's part of k, `k_tiles` k-tiles from `begin` on, `bytes` of a stage each.
/// The first stages are free, so their loads start before the others know of the mbarriers: of the operands in `early`
/// even before the kernel ahead has ended. Then `others_know` lets them know, and later stages follow. All of them are
/// the same instructions, in three passes: a program waits for what is there three times. elected: the lane that loads.
/// kMayBePair: as of load_stage().
template <class Operands, bool kMayBePair, GemmConfig kConfig, int kStages, class OthersKnow>
MOYE_DEVICE void produce_part(GemmArgs const& args, TileGrid const& grid, TileCoord const& tile, int begin, int k_tiles,
                              OperandMaps const& maps, OperandStages<kConfig>& stages, TmaPipeline<kStages>& pipeline,
                              uint32_t bytes, Which early, bool elected, OthersKnow const& others_know MOYE_LOC) {
  MOYE_SITE;
  bool const begun = early.a || early.b;
  int const at_once = k_tiles < kStages ? k_tiles : kStages;
  OperandCoords const coords = operand_coords(args, maps, tile);
  Multicast const a{.hint = hint_of(grid.n)}, b{.hint = hint_of(grid.m)};
  PipelineState<kStages> write;
  MOYE_NO_UNROLL
  for (int pass = begun ? 0 : 1; pass < 3; ++pass) {
    if (pass == 2) others_know();
    if (!elected) continue;
    if (pass == 1) griddepcontrol_wait();  // the kernel ahead may still run up to here
    if (pass < 2) write = TmaPipeline<kStages>::producer_start();
    Which const which = of_pass(pass, early);
    int const end = begin + (pass < 2 ? at_once : k_tiles);
    MOYE_NO_UNROLL
    for (int k_tile = begin + (pass < 2 ? 0 : at_once); k_tile < end; ++k_tile, ++write) {
      // The consumers have released the stage: fill it. Behind the first pass it is the producer's already.
      uint64_t* const full =
          begun && pass == 1 ? &pipeline.full[write.index()] : pipeline.producer_acquire(write, bytes);
      load_stage<Operands, kMayBePair>(args, maps, tile, coords, k_tile, stages, write.index(), full, a, b, which);
    }
  }
  if (elected && (args.early & kEarlyNext) != 0) griddepcontrol_launch_dependents();  // whose early loads follow ours
}

/// The tiles of a call whose parts of k are counted, too.
template <int kSplit>
Status make_split_grid(TileMNK tile, GemmArgs const& args, TileGrid* grid) {
  if (Status status = make_tile_grid(tile, args, grid); !status.ok()) return status;
  if (grid->tiles > 0x7fffffff / kSplit) return {"d has more than 2^31 - 1 tiles, each counted once for a part of k"};
  return {};
}

/// A cluster for each tile.
template <class Gemm, Order kOrder>
Status launch_split(GemmArgs const& args, TileGrid const& grid, OperandMaps const& maps, StreamHandle stream) {
  LaunchConfig const config{.grid = {unsigned(grid.tiles) * Gemm::kSplit},
                            .block = {Gemm::kThreads},
                            .cluster = {Gemm::kSplit, 1, 1},
                            .smem_bytes = Gemm::kFacts.smem_bytes,
                            .programmatic = true};
  return Gemm::Short::dispatch(Gemm::Sums::finishing(args), [&](auto finishing) {
    auto* const kernel = Gemm::template kernel<kOrder, decltype(finishing)::value>();
    return launch_kernel(kernel, config, stream, args, grid, maps);
  });
}

}  // namespace moye
