// The consumers' loop of a Hopper GEMM, for test_wgmma.py: two warpgroups multiply 128x256x64 tiles of a ring of four
// stages, one group in flight. kPeeled: the first k-tile stands before the loop.
#include "moye/algorithm/gemm.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_traits_sm90.h"

using namespace moye;
using GMMA::Major;

template <bool kPeeled, Major kMajorA, Major kMajorB>
MOYE_KERNEL(256)
mainloop_kernel(bfloat16_t* d, int k_tiles) {
  using Shape_ = Shape<_128, _256, _64>;
  constexpr int kStages = 4;
  auto const sA = make_tensor(
      make_smem_ptr<1024>(reinterpret_cast<bfloat16_t*>(smem_base())),
      tile_to_shape(gmma_smem_atom<kMajorA, bfloat16_t>(), Shape<_128, _64, Int<kStages>>{}));  // (BLK_M,BLK_K,PIPE)
  auto const sB = make_tensor(
      make_smem_ptr<1024>(reinterpret_cast<bfloat16_t*>(smem_base() + kStages * 128 * 128)),
      tile_to_shape(gmma_smem_atom<kMajorB, bfloat16_t>(), Shape<_256, _64, Int<kStages>>{}));  // (BLK_N,BLK_K,PIPE)
  auto* const full = reinterpret_cast<uint64_t*>(smem_base() + kStages * (128 + 256) * 128);
  uint64_t* const empty = full + kStages;

  auto tiled_mma = make_tiled_mma(SM90_64x256x16_F32BF16BF16_SS<kMajorA, kMajorB>{}, Layout<Shape<_2, _1, _1>>{});
  // The descriptors of a warpgroup: from a warp's number, which is the same in all lanes, so that they stay in uniform
  // registers.
  auto const thr_mma = tiled_mma.get_slice(static_cast<int>(warp_id()) / 4 * 128);
  auto const tCrA = thr_mma.partition_fragment_A(sA);                // (1,MMA_M,MMA_K,PIPE) descriptors
  auto const tCrB = thr_mma.partition_fragment_B(sB);                // (1,MMA_N,MMA_K,PIPE) descriptors
  auto tCrC = partition_fragment_C(tiled_mma, Shape<_128, _256>{});  // (MMA,MMA_M,MMA_N)
  tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;

  int stage = 0, previous = 0;
  uint32_t parity = 0;
  auto const multiply = [&] {
    mbarrier_wait(full + stage, parity);
    warpgroup_fence_operand(tCrC);
    warpgroup_arrive();
    gemm(tiled_mma, tCrA(_, _, _, stage), tCrB(_, _, _, stage), tCrC);
    tiled_mma.accumulate_ = GMMA::ScaleOut::One;
    warpgroup_commit_group();
  };
  auto const advance = [&] {
    previous = stage;
    if (++stage == kStages) stage = 0, parity ^= 1;
  };
  if constexpr (kPeeled) {
    multiply();
    warpgroup_fence_operand(tCrC);
    advance();
  }
  for (int i = kPeeled; i < k_tiles; ++i) {
    multiply();
    warpgroup_wait_group<1>();
    warpgroup_fence_operand(tCrC);
    if (i > 0 && thread_idx().x % 128 == 0) mbarrier_arrive(empty + previous);
    advance();
  }
  warpgroup_wait_group<0>();
  warpgroup_fence_operand(tCrC);
  auto const mD = make_tensor(make_gmem_ptr(d), make_layout(Shape<_128, _256>{}, Stride<_256, _1>{}));
  auto const tCgD = tiled_mma.get_slice(static_cast<int>(thread_idx().x)).partition_C(mD);
  MOYE_UNROLL
  for (int i = 0; i < size(tCrC); ++i) tCgD(i) = bfloat16_t(tCrC(i));
}

#ifndef MOYE_SERIALIZED
template __global__ void mainloop_kernel<true, Major::K, Major::K>(bfloat16_t*, int);
template __global__ void mainloop_kernel<true, Major::K, Major::MN>(bfloat16_t*, int);
#else
template __global__ void mainloop_kernel<false, Major::K, Major::K>(bfloat16_t*, int);
#endif
