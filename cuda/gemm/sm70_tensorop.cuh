// sm70_tensorop: D = A * B^T on the first tensor cores: mma.sync 8x8x4 by quad pairs, eight threads each.
//   A (M,K), B (N,K), D (M,N), each in any order; batch as an outer dimension of the grid
//   CTA       one tile of D, 4 x 4 quad pairs; a warp has 2 x 2 of them, two warps lie along m and two along n
//   gmem -> rmem -> smem   loads of `alignment` bytes, zero beyond M, N, K; the next k-tile loads meanwhile
//   smem      one buffer for A, one for B, in the order of global memory, rows padded
//   smem -> rmem   the instruction comes in all four orders: a thread takes 4 neighbours along k of one row, or, of an
//                  operand contiguous along m or n, 4 neighbouring rows of one k; 8 bytes either way.
//                  sm_80 and later have no such unit: ptxas calls a routine of shuffles and multiply-adds
//   sync_threads before the stores: every thread is done with the k-tile before; after them: this k-tile is there
#pragma once

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue.h"
#include "gemm/launch.h"
#include "gemm/operand.h"
#include "gemm/order.h"
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
sm70_tensorop_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid) {
  Gemm::template run<kOrder>(args, grid);
}

/// The instruction whose fragments lie in memory that is contiguous along kMajorA and kMajorB.
template <Dtype kAccumulator, Major kMajorA, Major kMajorB>
struct Sm70Mma;
template <>
struct Sm70Mma<Dtype::f32, Major::k, Major::k> {
  using Op = SM70_8x8x4_F32F16F16F32_TN;
};
template <>
struct Sm70Mma<Dtype::f32, Major::k, Major::mn> {
  using Op = SM70_8x8x4_F32F16F16F32_TT;
};
template <>
struct Sm70Mma<Dtype::f32, Major::mn, Major::k> {
  using Op = SM70_8x8x4_F32F16F16F32_NN;
};
template <>
struct Sm70Mma<Dtype::f32, Major::mn, Major::mn> {
  using Op = SM70_8x8x4_F32F16F16F32_NT;
};
template <>
struct Sm70Mma<Dtype::f16, Major::k, Major::k> {
  using Op = SM70_8x8x4_F16F16F16F16_TN;
};
template <>
struct Sm70Mma<Dtype::f16, Major::k, Major::mn> {
  using Op = SM70_8x8x4_F16F16F16F16_TT;
};
template <>
struct Sm70Mma<Dtype::f16, Major::mn, Major::k> {
  using Op = SM70_8x8x4_F16F16F16F16_NN;
};
template <>
struct Sm70Mma<Dtype::f16, Major::mn, Major::mn> {
  using Op = SM70_8x8x4_F16F16F16F16_NT;
};

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm70_tensorop)
struct Gemm<kConfig> {
  using Element = typename ElementOf<kConfig.dtype>::Type;
  static constexpr int kThreads = 128;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kVector = kConfig.alignment / int(sizeof(Element));  // elements of one global load
  static_assert(kConfig.dtype == Dtype::f16, "sm_70's tensor cores multiply f16");
  static_assert(kBlkM % 32 == 0 && kBlkN % 32 == 0, "4 x 4 quad pairs of 8x8 atoms cover 32 rows and columns");
  static_assert(kBlkK * sizeof(Element) == 128, "the padding below is for rows of 128 bytes along k");
  static_assert(kConfig.stages == 1, "one shared-memory buffer; the next k-tile waits in registers");

  // Quad pairs (m,n) = ((2 of a warp, 2 warps),(2 of a warp, 2 warps)), numbered through the warp first.
  using QuadPairs = Layout<Shape<Shape<_2, _2>, Shape<_2, _2>, _1>, Stride<Stride<_1, _4>, Stride<_2, _8>, _0>>;
  // The first four rows of the warp's two atoms lie side by side, then their second four: what half a warp reads at a
  // time are 8 neighbouring rows, in different banks.  (row of 4, half of the atom, atom of the warp, warp) -> row
  using Tiler = Layout<Shape<_4, _2, _2, _2>, Stride<_1, _8, _4, _16>>;
  template <Order kOrder>
  using TiledMmaOf =
      decltype(make_tiled_mma(typename Sm70Mma<kConfig.accumulator, kMajorOfA<kOrder>, kMajorOfB<kOrder>>::Op{},
                              QuadPairs{}, Tile<Tiler, Tiler, _4>{}));
  using TiledMma = TiledMmaOf<Order::NN>;  // the accumulators are the same in all orders
  static_assert(decltype(size(TiledMma{}))::value == kThreads);

  using GlobalCopy = UniversalCopy<typename WordOf<kConfig.alignment>::Type>;

  /// Shared memory of an operand of kRows rows, in the order of global memory. The padding keeps vectors of 16 bytes
  /// aligned and spreads what half a warp reads over all banks: 8 rows of 8 bytes, or 4 k of 16 bytes.
  static constexpr int kPad = 8;  // elements
  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto smem_layout() {
    if constexpr (kMajor == Major::k) {
      return Layout<Shape<Int<kRows>, Int<kBlkK>>, Stride<Int<kBlkK + kPad>, _1>>{};  // (BLK,BLK_K)
    } else {
      return Layout<Shape<Int<kRows>, Int<kBlkK>>, Stride<_1, Int<kRows + kPad>>>{};  // (BLK,BLK_K)
    }
  }
  template <int kRows>
  static constexpr int kSmemElements = max(kRows * (kBlkK + kPad), (kRows + kPad) * kBlkK);

  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto global_copy() {
    return coalesced_copy<CopyAtom<GlobalCopy, Element>, kMajor, kThreads, kRows, kBlkK, kVector>();
  }

  // What half a warp writes of f32 sums are pairs of rows 0, 1, 4 and 5, a quarter of f16 sums four neighbours of each
  // of 8 rows. Rows lie 16 bytes apart in the banks, in the order 0, 2, 1, 3, 4, 6, 5, 7: neither meets a conflict.
  static constexpr int kPitchC = kBlkN + 4;  // elements
  using SmemLayoutC = Layout<Shape<Shape<_2, _2, _8>, Int<kBlkN>>,
                             Stride<Stride<Int<2 * kPitchC>, Int<kPitchC>, Int<4 * kPitchC>>, _1>>;  // (ROWS,BLK_N)
  using Epilogue = StagedEpilogue<TiledMma, kBlkM, kBlkN, kConfig.accumulator, SmemLayoutC>;

  struct Operands {
    alignas(128) Element a[kSmemElements<kBlkM>];
    alignas(128) Element b[kSmemElements<kBlkN>];
  };
  union SharedStorage {
    Operands operands;
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
    Tensor sA = make_tensor(make_smem_ptr(smem.operands.a), smem_layout<kMajorA, kBlkM>());       // (BLK_M,BLK_K)
    Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), smem_layout<kMajorB, kBlkN>());       // (BLK_N,BLK_K)

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

    TiledMmaOf<kOrder> tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor tCsA = thr_mma.partition_A(sA);                                           // (MMA,MMA_M,MMA_K)
    Tensor tCsB = thr_mma.partition_B(sB);                                           // (MMA,MMA_N,MMA_K)
    Tensor tCrA = thr_mma.make_fragment_A(tCsA(_, _, _0{}));                         // (MMA,MMA_M)
    Tensor tCrB = thr_mma.make_fragment_B(tCsB(_, _, _0{}));                         // (MMA,MMA_N)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)
    clear(tCrC);
    constexpr int kBlocks = decltype(size<2>(tCsA))::value;  // k-blocks of one mma per k-tile

    if (k_tiles > 0) load(0);
    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      sync_threads();
      copy(tArA, tAsA);
      copy(tBrB, tBsB);
      sync_threads();
      if (k_tile + 1 < k_tiles) load(k_tile + 1);
      MOYE_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        copy(tCsA(_, _, block), tCrA);
        copy(tCsB(_, _, block), tCrB);
        gemm(tiled_mma, tCrA, tCrB, tCrC);
      }
    }

    sync_threads();  // every warp is done with the buffers, which the epilogue's rows replace
    Epilogue::store(args, tile, tCrC, smem.epilogue, thread);
  }

  template <Order kOrder>
  static constexpr auto* kernel() {
    return sm70_tensorop_kernel<Gemm, kOrder>;
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) { return launch_tiles<kConfig>(args, stream); }

  static constexpr KernelFacts kFacts = {
      .threads = kThreads,
      .smem_bytes = int(sizeof(SharedStorage)),
      .min_arch = 80,  // the instruction needs 70, the project's kernels are compiled for 80 and up
      .any_stride = kVector == 1,
      .scales = Epilogue::kScales};
};

}  // namespace moye
