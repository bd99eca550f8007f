// sm80_double_buffer: D = A * B^T on mma.sync, two shared-memory buffers: a k-tile loads while one is multiplied.
//   A (M,K), B (N,K), D (M,N), each in any order; batch as an outer dimension of the grid
//   CTA       one tile of D; all warps load and multiply, two along m and two along n
//   gmem -> smem   cp.async of `alignment` bytes, zero-filled beyond M, N and K; rows of 2 bytes load through registers
//   smem -> rmem   ldmatrix, transposed for operands that are contiguous along m or n; it transposes 16-bit elements
//                  alone, so TF32 that is contiguous along m or n is read by plain loads; a k-block ahead of the math
//   smem      k-tile t lies in buffer t % 2, swizzled
//   cp_async_wait_all + sync_threads: (1) the next k-tile has landed, for every thread's copies;
//                                     (2) every warp is done with the buffer that is refilled next
#pragma once

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue.h"
#include "gemm/launch.h"
#include "gemm/operand.h"
#include "gemm/order.h"
#include "gemm/sync_mma.h"
#include "gemm/tensorop.h"
#include "gemm/tile_scheduler.h"
#include "moye/algorithm/copy.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/atom/copy_atom.h"
#include "moye/atom/mma_atom.h"
#include "moye/tensor.h"

namespace moye {

template <class Gemm, Order kOrder>
MOYE_KERNEL(Gemm::kThreads)
sm80_double_buffer_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid) {
  Gemm::template run<kOrder>(args, grid);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm80_double_buffer)
struct Gemm<kConfig> {
  using MmaOp = typename Sm80Mma<kConfig.dtype, kConfig.accumulator>::Op;
  using TiledMma = WarpTiledMma<MmaOp, 2, 2>;
  using Element = typename ElementOf<kConfig.dtype>::Type;
  static constexpr int kThreads = 128;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kVector = kConfig.alignment / int(sizeof(Element));  // elements of one global load
  static_assert(kBlkM % 32 == 0 && kBlkN % 32 == 0, "two warps of 16x8 atoms, with x4 ldmatrix, cover 32 rows");
  static_assert(kConfig.stages == 2, "two shared-memory buffers");
  static_assert(decltype(size(TiledMma{}))::value == kThreads);

  using GlobalCopy = typename GlobalCopyOp<kConfig.alignment>::Type;

  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto smem_layout() {
    return swizzled_smem<Element, kMajor>(Shape<Int<kRows>, Int<kBlkK>, _2>{});  // (BLK,BLK_K,2)
  }

  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto global_copy() {
    return coalesced_copy<CopyAtom<GlobalCopy, Element>, kMajor, kThreads, kRows, kBlkK, kVector>();
  }

  template <Major kMajor>
  using SmemCopyAtom = FragmentCopyAtom<Element, kMajor>;

  using Epilogue = StagedEpilogue<TiledMma, kBlkM, kBlkN, kConfig.accumulator>;

  union SharedStorage {
    SwizzledOperands<kConfig> operands;
    typename Epilogue::SharedStorage epilogue;
  };

  template <Order kOrder>
  static MOYE_DEVICE void run(GemmArgs const& args, TileGrid const& grid) {
    constexpr Major kMajorA = kMajorOfA<kOrder>, kMajorB = kMajorOfB<kOrder>;
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = thread_idx().x;
    TileCoord const tile = tile_coord(block_idx().x, grid.m, grid.n);
    int const k_tiles = grid.k;
    int const m_left = int(args.m) - tile.m * kBlkM;  // rows of A from this tile on
    int const n_left = int(args.n) - tile.n * kBlkN;  // columns of D, rows of B
    int const k = int(args.k);

    // Whole tiles: what lies beyond m, n and k is predicated, never read.
    auto const* a = static_cast<Element const*>(args.a) + matrix_offset(args, tile.batch, args.a_batch_strides);
    auto const* b = static_cast<Element const*>(args.b) + matrix_offset(args, tile.batch, args.b_batch_strides);
    Tensor mA = make_tensor(make_gmem_ptr(a), make_shape(grid.m * kBlkM, k_tiles * kBlkK),
                            operand_stride<kMajorA, kVector>(args.a_m_stride, args.a_k_stride));  // (m,k)
    Tensor mB = make_tensor(make_gmem_ptr(b), make_shape(grid.n * kBlkN, k_tiles * kBlkK),
                            operand_stride<kMajorB, kVector>(args.b_n_stride, args.b_k_stride));  // (n,k)
    Tensor gA = local_tile(mA, Shape<Int<kBlkM>, Int<kBlkK>>{}, make_coord(tile.m, _));           // (BLK_M,BLK_K,k)
    Tensor gB = local_tile(mB, Shape<Int<kBlkN>, Int<kBlkK>>{}, make_coord(tile.n, _));           // (BLK_N,BLK_K,k)
    Tensor sA = make_tensor(make_smem_ptr(smem.operands.a), smem_layout<kMajorA, kBlkM>());       // (BLK_M,BLK_K,2)
    Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), smem_layout<kMajorB, kBlkN>());       // (BLK_N,BLK_K,2)

    auto const copy_a = global_copy<kMajorA, kBlkM>();
    auto const copy_b = global_copy<kMajorB, kBlkN>();
    auto const thr_copy_a = copy_a.get_slice(thread);
    auto const thr_copy_b = copy_b.get_slice(thread);
    Tensor tAgA = thr_copy_a.partition_S(gA);                                                     // (CPY,CPY_M,CPY_K,k)
    Tensor tAsA = thr_copy_a.partition_D(sA);                                                     // (CPY,CPY_M,CPY_K,2)
    Tensor tBgB = thr_copy_b.partition_S(gB);                                                     // (CPY,CPY_N,CPY_K,k)
    Tensor tBsB = thr_copy_b.partition_D(sB);                                                     // (CPY,CPY_N,CPY_K,2)
    Tensor tAcA = thr_copy_a.partition_S(make_identity_tensor(Shape<Int<kBlkM>, Int<kBlkK>>{}));  // (CPY,CPY_M,CPY_K)
    Tensor tBcB = thr_copy_b.partition_S(make_identity_tensor(Shape<Int<kBlkN>, Int<kBlkK>>{}));  // (CPY,CPY_N,CPY_K)

    auto const load = [&](int k_tile, int buffer) {
      int const k_left = k - k_tile * kBlkK;
      auto const valid_a = [&](int i, int j) {
        return valid_elements<kMajorA, kVector>(tAcA(_0{}, i, j), m_left, k_left);
      };
      auto const valid_b = [&](int i, int j) {
        return valid_elements<kMajorB, kVector>(tBcB(_0{}, i, j), n_left, k_left);
      };
      copy_zfill(copy_a, valid_a, tAgA(_, _, _, k_tile), tAsA(_, _, _, buffer));
      copy_zfill(copy_b, valid_b, tBgB(_, _, _, k_tile), tBsB(_, _, _, buffer));
    };

    TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor tCrA = thr_mma.partition_fragment_A(sA(_, _, _0{}));                      // (MMA,MMA_M,MMA_K)
    Tensor tCrB = thr_mma.partition_fragment_B(sB(_, _, _0{}));                      // (MMA,MMA_N,MMA_K)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)
    clear(tCrC);

    auto const smem_copy_a = make_tiled_copy_A(SmemCopyAtom<kMajorA>{}, tiled_mma);
    auto const smem_copy_b = make_tiled_copy_B(SmemCopyAtom<kMajorB>{}, tiled_mma);
    auto const smem_thr_copy_a = smem_copy_a.get_slice(thread);
    auto const smem_thr_copy_b = smem_copy_b.get_slice(thread);
    Tensor tXsA = smem_thr_copy_a.partition_S(sA);           // (CPY,MMA_M,MMA_K,2)
    Tensor tXrA = smem_thr_copy_a.retile_D(tCrA);            // (CPY,MMA_M,MMA_K)
    Tensor tXsB = smem_thr_copy_b.partition_S(sB);           // (CPY,MMA_N,MMA_K,2)
    Tensor tXrB = smem_thr_copy_b.retile_D(tCrB);            // (CPY,MMA_N,MMA_K)
    constexpr int kBlocks = decltype(size<2>(tCrA))::value;  // k-blocks of one mma per k-tile

    static_assert(kBlocks >= 2, "one k-block is read while the other is multiplied");

    if (k_tiles > 0) {
      load(0, 0);
      cp_async_wait_all();
      sync_threads();
      copy(smem_copy_a, tXsA(_, _, _0{}, _0{}), tXrA(_, _, _0{}));
      copy(smem_copy_b, tXsB(_, _, _0{}, _0{}), tXrB(_, _, _0{}));
    }
    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      int const read = k_tile % 2, next = 1 - read;
      MOYE_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        // The buffer that k_tile - 1 used: the barrier below, one k-tile ago, says that all warps have left it.
        if (block == 0 && k_tile + 1 < k_tiles) load(k_tile + 1, next);
        if (block + 1 < kBlocks) {
          copy(smem_copy_a, tXsA(_, _, block + 1, read), tXrA(_, _, block + 1));
          copy(smem_copy_b, tXsB(_, _, block + 1, read), tXrB(_, _, block + 1));
        } else if (k_tile + 1 < k_tiles) {
          cp_async_wait_all();
          sync_threads();
          copy(smem_copy_a, tXsA(_, _, _0{}, next), tXrA(_, _, _0{}));
          copy(smem_copy_b, tXsB(_, _, _0{}, next), tXrB(_, _, _0{}));
        }
        round_operands(tCrA(_, _, block), tCrB(_, _, block));
        gemm(tiled_mma, tCrA(_, _, block), tCrB(_, _, block), tCrC);
      }
    }

    sync_threads();  // every warp is done with the buffers, which the epilogue's rows replace
    Epilogue::store(args, tile, tCrC, smem.epilogue, thread);
  }

  template <Order kOrder>
  static constexpr auto* kernel() {
    return sm80_double_buffer_kernel<Gemm, kOrder>;
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) { return launch_tiles<kConfig>(args, stream); }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .min_arch = 80,
                                         .any_stride = kVector == 1,
                                         .scales = Epilogue::kScales};
};

}  // namespace moye
