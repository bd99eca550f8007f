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
#include "moye/arch/launch.h"
#include "moye/arch/launch_recorder.h"
#include "moye/arch/types.h"
#include "moye/pipeline.h"

namespace moye {

namespace detail {

template <class Operands, int kRank, GemmConfig kConfig, int kStages>
MOYE_DEVICE void load_k_tiles(GemmArgs const& args, TileGrid const& grid, TileCoord const& tile, int begin, int k_tiles,
                              OperandMaps const& maps, OperandStages<kConfig>& stages, TmaPipeline<kStages>& pipeline,
                              PipelineState<kStages>& write, uint32_t bytes, Which which, bool acquired MOYE_LOC) {
  MOYE_SITE;
  OperandCoords const coords = operand_coords<kRank>(args, tile);
  Multicast const a{.hint = hint_of(grid.n)}, b{.hint = hint_of(grid.m)};
  MOYE_NO_UNROLL
  for (int k_tile = begin; k_tile < begin + k_tiles; ++k_tile, ++write) {
    // The consumers have released the stage: fill it.
    uint64_t* const full = acquired ? &pipeline.full[write.index()] : pipeline.producer_acquire(write, bytes);
    load_stage<Operands, kRank>(args, maps, tile, coords, k_tile, stages, write.index(), full, a, b, which);
  }
}

}  // namespace detail

/// One thread: the loads of `k_tiles` k-tiles from `begin` on, of those operands, so many bytes a stage. acquired: the
/// stages are the producer's already.
template <class Operands, GemmConfig kConfig, int kStages>
MOYE_DEVICE void load_k_tiles(GemmArgs const& args, TileGrid const& grid, TileCoord const& tile, int begin, int k_tiles,
                              OperandMaps const& maps, OperandStages<kConfig>& stages, TmaPipeline<kStages>& pipeline,
                              PipelineState<kStages>& write, uint32_t bytes, Which which = {},
                              bool acquired = false MOYE_LOC) {
  MOYE_SITE;
  if (maps.rank == 3) {
    detail::load_k_tiles<Operands, 3>(args, grid, tile, begin, k_tiles, maps, stages, pipeline, write, bytes, which,
                                      acquired);
  } else {
    detail::load_k_tiles<Operands, 5>(args, grid, tile, begin, k_tiles, maps, stages, pipeline, write, bytes, which,
                                      acquired);
  }
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
