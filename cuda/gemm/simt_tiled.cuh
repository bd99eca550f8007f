// simt_tiled: D = A * B^T with one fused multiply-add at a time: exact f32 and f64, no tensor core.
//   A (M,K), B (N,K), D (M,N), each in any order; batch as an outer dimension of the grid
//   CTA       one tile of D, 16 x 16 threads; a thread owns groups of neighbours along m and n
//   gmem -> rmem -> smem   loads of `alignment` bytes, zero beyond M, N, K; the next k-tile loads meanwhile
//   smem      one buffer for A, one for B, contiguous along m and n whatever the order in global memory, rows padded
//   smem -> rmem   vectors of 16 bytes, of one k at a time
//   sync_threads   (1) before the stores: every thread is done with the k-tile before
//                  (2) after them: this k-tile is there
#pragma once

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "gemm/launch.h"
#include "gemm/operand.h"
#include "gemm/order.h"
#include "gemm/simt_epilogue.h"
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
simt_tiled_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid) {
  Gemm::template run<kOrder>(args, grid);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::simt_tiled)
struct Gemm<kConfig> {
  using Element = Conditional<kConfig.dtype == Dtype::f32, float, double>;
  static constexpr int kThreads = 256;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kVector = kConfig.alignment / int(sizeof(Element));  // elements of one global load
  static constexpr int kOwned = 16 / int(sizeof(Element));  // neighbours along m or n in one 16-byte smem load
  static constexpr int kPad = kOwned;                       // elements, keeps rows of smem 16-byte aligned
  static_assert(kConfig.stages == 1, "one shared-memory buffer; the next k-tile waits in registers");
  static_assert(kBlkM % (16 * kOwned) == 0 && kBlkN % (16 * kOwned) == 0, "16 x 16 threads own kOwned neighbours each");

  // 4 x 2 warps of 4 x 8 threads: of one k, a warp reads 4 vectors of A and 8 of B, each from different banks.
  using Threads = Layout<Shape<Shape<_4, _4>, Shape<_8, _2>, _1>, Stride<Stride<_8, _32>, Stride<_1, _128>, _0>>;
  using Tiler = Layout<Shape<_16, Int<kOwned>>, Stride<Int<kOwned>, _1>>;  // thread i owns kOwned * i + (0, kOwned)
  using TiledMma =
      decltype(make_tiled_mma(UniversalFMA<Element, Element, Element, Element>{}, Threads{}, Tile<Tiler, Tiler, _1>{}));
  static_assert(decltype(size(TiledMma{}))::value == kThreads);

  template <int kRows>
  static MOYE_HOST_DEVICE constexpr auto smem_layout() {
    return Layout<Shape<Int<kRows>, Int<kBlkK>>, Stride<_1, Int<kRows + kPad>>>{};  // (BLK,BLK_K)
  }

  using GlobalCopy = UniversalCopy<Conditional<kConfig.alignment == 16, uint128_t, Element>>;

  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto global_copy() {
    return coalesced_copy<CopyAtom<GlobalCopy, Element>, kMajor, kThreads, kRows, kBlkK, kVector>();
  }

  struct SharedStorage {
    alignas(16) Element a[(kBlkM + kPad) * kBlkK];
    alignas(16) Element b[(kBlkN + kPad) * kBlkK];
  };

  template <Order kOrder>
  static MOYE_DEVICE void run(GemmArgs const& args, TileGrid const& grid) {
    constexpr Major kMajorA = kMajorOfA<kOrder>, kMajorB = kMajorOfB<kOrder>;
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = thread_idx().x;
    TileCoord const tile = tile_coord(block_idx().x, grid.m, grid.n);
    int const k_tiles = grid.k;
    int const m_left = int(args.m) - tile.m * kBlkM;  // rows of A from this tile on
    int const n_left = int(args.n) - tile.n * kBlkN;
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
    Tensor sA = make_tensor(make_smem_ptr(smem.a), smem_layout<kBlkM>());                         // (BLK_M,BLK_K)
    Tensor sB = make_tensor(make_smem_ptr(smem.b), smem_layout<kBlkN>());                         // (BLK_N,BLK_K)

    auto const copy_a = global_copy<kMajorA, kBlkM>();
    auto const copy_b = global_copy<kMajorB, kBlkN>();
    auto const thr_copy_a = copy_a.get_slice(thread);
    auto const thr_copy_b = copy_b.get_slice(thread);
    Tensor tAgA = thr_copy_a.partition_S(gA);                                                     // (CPY,CPY_M,CPY_K,k)
    Tensor tAsA = thr_copy_a.partition_D(sA);                                                     // (CPY,CPY_M,CPY_K)
    Tensor tArA = make_fragment_like(tAsA);                                                       // (CPY,CPY_M,CPY_K)
    Tensor tBgB = thr_copy_b.partition_S(gB);                                                     // (CPY,CPY_N,CPY_K,k)
    Tensor tBsB = thr_copy_b.partition_D(sB);                                                     // (CPY,CPY_N,CPY_K)
    Tensor tBrB = make_fragment_like(tBsB);                                                       // (CPY,CPY_N,CPY_K)
    Tensor tAcA = thr_copy_a.partition_S(make_identity_tensor(Shape<Int<kBlkM>, Int<kBlkK>>{}));  // (CPY,CPY_M,CPY_K)
    Tensor tBcB = thr_copy_b.partition_S(make_identity_tensor(Shape<Int<kBlkN>, Int<kBlkK>>{}));  // (CPY,CPY_N,CPY_K)

    auto const load = [&](int k_tile) {
      int const k_left = k - k_tile * kBlkK;
      auto const valid_a = [&](int i, int j) {
        return valid_elements<kMajorA, kVector>(tAcA(_0{}, i, j), m_left, k_left);
      };
      auto const valid_b = [&](int i, int j) {
        return valid_elements<kMajorB, kVector>(tBcB(_0{}, i, j), n_left, k_left);
      };
      copy_zfill(copy_a, valid_a, tAgA(_, _, _, k_tile), tArA);
      copy_zfill(copy_b, valid_b, tBgB(_, _, _, k_tile), tBrB);
    };

    TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor tCsA = thr_mma.partition_A(sA);                                           // (MMA,MMA_M,MMA_K)
    Tensor tCsB = thr_mma.partition_B(sB);                                           // (MMA,MMA_N,MMA_K)
    Tensor tCrA = thr_mma.make_fragment_A(tCsA(_, _, _0{}));                         // (MMA,MMA_M)
    Tensor tCrB = thr_mma.make_fragment_B(tCsB(_, _, _0{}));                         // (MMA,MMA_N)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)
    clear(tCrC);

    if (k_tiles > 0) load(0);
    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      sync_threads();
      copy(tArA, tAsA);
      copy(tBrB, tBsB);
      sync_threads();
      if (k_tile + 1 < k_tiles) load(k_tile + 1);
      MOYE_UNROLL
      for (int block = 0; block < kBlkK; ++block) {
        copy(tCsA(_, _, block), tCrA);
        copy(tCsB(_, _, block), tCrB);
        gemm(tiled_mma, tCrA, tCrB, tCrC);
      }
    }

    Tensor tCcC = thr_mma.partition_C(make_identity_tensor(Shape<Int<kBlkM>, Int<kBlkN>>{}));  // (MMA,MMA_M,MMA_N)
    store_from_registers(args, tile, kBlkM, kBlkN, tCrC, tCcC);
  }

  template <Order kOrder>
  static constexpr auto* kernel() {
    return simt_tiled_kernel<Gemm, kOrder>;
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) { return launch_tiles<kConfig>(args, stream); }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .min_arch = 80,
                                         .any_stride = kVector == 1,
                                         .scales = true};
};

}  // namespace moye
