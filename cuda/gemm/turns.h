// Consumers that multiply in turn: one has the tensor cores, while the other stores its tile. sm90_grouped;
// sm90_pingpong has the same loop in its own file.
//   turn[c]  an mbarrier with 1 arrival of every warp of the other consumer: it has multiplied its tile, c may begin
#pragma once

#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_traits_sm90.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

/// tCrC = the products of `k_tiles` stages from `read` on, when it is this consumer's turn. One wgmma is in flight
/// while the next is started. phase: of turn[consumer], for the consumer to keep from tile to tile.
template <int kStages, class TiledMma, class A, class B, class C>
MOYE_DEVICE void multiply_in_turn(TiledMma& tiled_mma, A const& tCrA, B const& tCrB, C& tCrC, int k_tiles,
                                  TmaPipeline<kStages>& pipeline, PipelineState<kStages>& read, uint64_t (&turn)[2],
                                  uint32_t& phase, int consumer, int lane) {
  if (k_tiles == 0) clear(tCrC);
  warpgroup_fence_operand(tCrC);
  tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
  // The other consumer has multiplied its tile: the tensor cores are this one's.
  mbarrier_wait(&turn[consumer], phase);
  phase ^= 1;
  PipelineState<kStages> last;  // the stage whose wgmma may be in flight
  MOYE_NO_UNROLL
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++read) {
    // The stage has landed: multiply it.
    pipeline.consumer_wait(read);
    warpgroup_arrive();
    gemm(tiled_mma, tCrA(_, _, _, read.index()), tCrB(_, _, _, read.index()), tCrC);
    warpgroup_commit_group();
    // The wgmma before is done: its stage may be filled again.
    warpgroup_wait_group<1>();
    if (k_tile > 0) pipeline.consumer_release(last, lane);
    last = read;
    tiled_mma.accumulate_ = GMMA::ScaleOut::One;
  }
  // All wgmmas of the tile are started: the other consumer may begin.
  sync_warp();  // without a wgmma, lanes may still wait for this turn, whose phase the next but one looks like
  if (lane == 0) mbarrier_arrive(&turn[1 - consumer]);
  warpgroup_wait_group<0>();
  warpgroup_fence_operand(tCrC);
  if (k_tiles > 0) pipeline.consumer_release(last, lane);
}

}  // namespace moye
