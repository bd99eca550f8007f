// sm80_multistage: D = A * B^T on mma.sync, fed by an n-stage cp.async pipeline.
//   A (M,K), B (N,K), D (M,N), each in any order; 16-bit operands, f32 accumulation; batch: outer dimension of the grid
//   CTA       one tile of D; all warps load and multiply, two along m and two along n
//   gmem -> smem   cp.async of `alignment` bytes, zero-filled beyond M, N and K; rows of 2 bytes load through registers
//   smem -> rmem   ldmatrix, transposed for operands that are contiguous along m or n; shared memory is swizzled
//   stage s holds k-tile s, s + kStages, ...; kStages - 1 of them are in flight while one is multiplied
//   cp_async_wait_group<kStages - 2> + sync_threads: (1) the next stage has landed, for every thread's copies;
//                                                    (2) every warp is done with the stage that is refilled next
#pragma once

#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "gemm/operand.h"
#include "gemm/order.h"
#include "gemm/tile_scheduler.h"
#include "moye/algorithm/copy.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/launch.h"
#include "moye/atom/copy_atom.h"
#include "moye/atom/mma_atom.h"
#include "moye/tensor.h"

namespace moye {

template <class Gemm, Order kOrder>
MOYE_KERNEL(Gemm::kThreads)
sm80_multistage_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid) {
  Gemm::template run<kOrder>(args, grid);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm80_multistage)
struct Gemm<kConfig> {
  using Element = Conditional<kConfig.dtype == Dtype::bf16, bfloat16_t, half_t>;
  static constexpr int kThreads = 128;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kVector = kConfig.alignment / int(sizeof(Element));  // elements of one global load
  static_assert(kBlkM % 32 == 0 && kBlkN % 32 == 0, "two warps of 16x8x16 atoms, with x4 ldmatrix, cover 32 rows");
  static_assert(kBlkK == 32 || kBlkK == 64, "the swizzles below are for rows of 64 and 128 bytes");
  static_assert(kStages >= 2, "one stage is multiplied while the others load");

  using MmaOp = Conditional<kConfig.dtype == Dtype::bf16, SM80_16x8x16_F32BF16BF16F32_TN, SM80_16x8x16_F32F16F16F32_TN>;
  using TiledMma = decltype(make_tiled_mma(MmaOp{}, Layout<Shape<_2, _2, _1>>{}, Tile<_32, _32, _16>{}));
  static_assert(decltype(size(TiledMma{}))::value == kThreads);

  // The widest cp.async of `alignment` bytes; cp.async knows no 2 bytes.
  using GlobalCopy = Conditional<
      kConfig.alignment == 16, SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>,
      Conditional<kConfig.alignment == 8, SM80_CP_ASYNC_CACHEALWAYS<uint64_t>,
                  Conditional<kConfig.alignment == 4, SM80_CP_ASYNC_CACHEALWAYS<uint32_t>, UniversalCopy<Element>>>>;

  /// Shared memory of an operand of kRows rows: free of bank conflicts for ldmatrix and for 16-byte cp.async.
  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto smem_layout() {
    if constexpr (kMajor == Major::k) {
      using Atom = decltype(composition(Swizzle<kBlkK == 64 ? 3 : 2, 3, 3>{},
                                        Layout<Shape<_8, Int<kBlkK>>, Stride<Int<kBlkK>, _1>>{}));
      return tile_to_shape(Atom{}, make_shape(Int<kRows>{}, Int<kBlkK>{}, Int<kStages>{}));  // (BLK,BLK_K,PIPE)
    } else {
      using Atom = decltype(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_64, _8>, Stride<_1, _64>>{}));
      return tile_to_shape(Atom{}, make_shape(Int<kRows>{}, Int<kBlkK>{}, Int<kStages>{}));  // (BLK,BLK_K,PIPE)
    }
  }

  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto global_copy() {
    return coalesced_copy<CopyAtom<GlobalCopy, Element>, kMajor, kThreads, kRows, kBlkK, kVector>();
  }

  /// ldmatrix reads 8x8 matrices whose rows are contiguous along k, or, transposed, along m or n.
  template <Major kMajor>
  using SmemCopyAtom = CopyAtom<Conditional<kMajor == Major::k, SM75_U32x4_LDSM_N, SM75_U16x8_LDSM_T>, Element>;

  using Epilogue = StagedEpilogue<TiledMma, kBlkM, kBlkN, kConfig.accumulator>;

  template <Order kOrder>
  struct Operands {
    alignas(1024) Element a[cosize_v<decltype(smem_layout<kMajorOfA<kOrder>, kBlkM>())>];
    alignas(1024) Element b[cosize_v<decltype(smem_layout<kMajorOfB<kOrder>, kBlkN>())>];
  };
  template <Order kOrder>
  union SharedStorage {
    Operands<kOrder> operands;
    typename Epilogue::SharedStorage epilogue;
  };
  static constexpr int kSmemBytes = int(sizeof(SharedStorage<Order::NN>));
  static_assert(sizeof(SharedStorage<Order::NN>) == sizeof(SharedStorage<Order::TT>));
  static_assert(kSmemBytes <= 99 * 1024, "more shared memory than sm_86, sm_89 and sm_120 give one CTA");

  template <Order kOrder>
  static MOYE_DEVICE void run(GemmArgs const& args, TileGrid const& grid) {
    constexpr Major kMajorA = kMajorOfA<kOrder>, kMajorB = kMajorOfB<kOrder>;
    auto& smem = *reinterpret_cast<SharedStorage<kOrder>*>(smem_base());
    int const thread = thread_idx().x;
    TileCoord const tile = tile_coord(block_idx().x, grid.m, grid.n);
    int const k_tiles = grid.k;
    int const m_left = int(args.m) - tile.m * kBlkM;  // rows of A from this tile on
    int const n_left = int(args.n) - tile.n * kBlkN;  // columns of D, rows of B
    int const k = int(args.k);

    // Whole tiles: what lies beyond m, n and k is predicated, never read.
    auto const* a = static_cast<Element const*>(args.a) + tile.batch * args.a_batch_stride;
    auto const* b = static_cast<Element const*>(args.b) + tile.batch * args.b_batch_stride;
    Tensor mA = make_tensor(make_gmem_ptr(a), make_shape(grid.m * kBlkM, k_tiles * kBlkK),
                            operand_stride<kMajorA, kVector>(args.a_m_stride, args.a_k_stride));  // (m,k)
    Tensor mB = make_tensor(make_gmem_ptr(b), make_shape(grid.n * kBlkN, k_tiles * kBlkK),
                            operand_stride<kMajorB, kVector>(args.b_n_stride, args.b_k_stride));  // (n,k)
    Tensor gA = local_tile(mA, Shape<Int<kBlkM>, Int<kBlkK>>{}, make_coord(tile.m, _));           // (BLK_M,BLK_K,k)
    Tensor gB = local_tile(mB, Shape<Int<kBlkN>, Int<kBlkK>>{}, make_coord(tile.n, _));           // (BLK_N,BLK_K,k)
    Tensor sA = make_tensor(make_smem_ptr(smem.operands.a), smem_layout<kMajorA, kBlkM>());       // (BLK_M,BLK_K,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), smem_layout<kMajorB, kBlkN>());       // (BLK_N,BLK_K,PIPE)

    auto const copy_a = global_copy<kMajorA, kBlkM>();
    auto const copy_b = global_copy<kMajorB, kBlkN>();
    auto const thr_copy_a = copy_a.get_slice(thread);
    auto const thr_copy_b = copy_b.get_slice(thread);
    Tensor tAgA = thr_copy_a.partition_S(gA);  // (CPY,CPY_M,CPY_K,k)
    Tensor tAsA = thr_copy_a.partition_D(sA);  // (CPY,CPY_M,CPY_K,PIPE)
    Tensor tBgB = thr_copy_b.partition_S(gB);  // (CPY,CPY_N,CPY_K,k)
    Tensor tBsB = thr_copy_b.partition_D(sB);  // (CPY,CPY_N,CPY_K,PIPE)
    Tensor tAcA = thr_copy_a.partition_S(make_identity_tensor(Shape<Int<kBlkM>, Int<kBlkK>>{}));  // (CPY,CPY_M,CPY_K)
    Tensor tBcB = thr_copy_b.partition_S(make_identity_tensor(Shape<Int<kBlkN>, Int<kBlkK>>{}));  // (CPY,CPY_N,CPY_K)

    auto const load = [&](int k_tile, int stage) {
      int const k_left = k - k_tile * kBlkK;
      auto const valid_a = [&](int i, int j) {
        return valid_elements<kMajorA, kVector>(tAcA(_0{}, i, j), m_left, k_left);
      };
      auto const valid_b = [&](int i, int j) {
        return valid_elements<kMajorB, kVector>(tBcB(_0{}, i, j), n_left, k_left);
      };
      copy_zfill(copy_a, valid_a, tAgA(_, _, _, k_tile), tAsA(_, _, _, stage));
      copy_zfill(copy_b, valid_b, tBgB(_, _, _, k_tile), tBsB(_, _, _, stage));
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
    Tensor tXsA = smem_thr_copy_a.partition_S(sA);           // (CPY,MMA_M,MMA_K,PIPE)
    Tensor tXrA = smem_thr_copy_a.retile_D(tCrA);            // (CPY,MMA_M,MMA_K)
    Tensor tXsB = smem_thr_copy_b.partition_S(sB);           // (CPY,MMA_N,MMA_K,PIPE)
    Tensor tXrB = smem_thr_copy_b.retile_D(tCrB);            // (CPY,MMA_N,MMA_K)
    constexpr int kBlocks = decltype(size<2>(tCrA))::value;  // k-blocks of one mma per k-tile

    // One group per stage, empty ones too: the groups count the stages.
    MOYE_UNROLL
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (stage < k_tiles) load(stage, stage);
      cp_async_commit_group();
    }

    int read = 0, write = kStages - 1;  // stages
    if (k_tiles > 0) {
      cp_async_wait_group<kStages - 2>();
      sync_threads();
      copy(smem_copy_a, tXsA(_, _, _0{}, read), tXrA(_, _, _0{}));
      copy(smem_copy_b, tXsB(_, _, _0{}, read), tXrB(_, _, _0{}));
    }
    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      int const next = read + 1 == kStages ? 0 : read + 1;
      MOYE_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        if (block == 0) {
          // The stage that k_tile - 1 used: the barrier below, one k-tile ago, says that all warps have left it.
          if (k_tile + kStages - 1 < k_tiles) load(k_tile + kStages - 1, write);
          cp_async_commit_group();
          write = read;
        }
        if (block + 1 < kBlocks) {
          copy(smem_copy_a, tXsA(_, _, block + 1, read), tXrA(_, _, block + 1));
          copy(smem_copy_b, tXsB(_, _, block + 1, read), tXrB(_, _, block + 1));
        } else if (k_tile + 1 < k_tiles) {
          cp_async_wait_group<kStages - 2>();
          sync_threads();
          copy(smem_copy_a, tXsA(_, _, _0{}, next), tXrA(_, _, _0{}));
          copy(smem_copy_b, tXsB(_, _, _0{}, next), tXrB(_, _, _0{}));
        }
        gemm(tiled_mma, tCrA(_, _, block), tCrB(_, _, block), tCrC);
      }
      read = next;
    }

    sync_threads();  // every warp is done with the stages, which the epilogue's rows replace
    Epilogue::store(args, tile, tCrC, smem.epilogue, thread);
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) {
    return dispatch(order_of(args), [&](auto order) {
      return launch_tiles(sm80_multistage_kernel<Gemm, decltype(order)::value>, kConfig.tile, kThreads, kSmemBytes,
                          args, stream);
    });
  }

  static Status prepare() {
    return for_each_order(
        [](auto order) { return prepare_kernel(sm80_multistage_kernel<Gemm, decltype(order)::value>, kSmemBytes); });
  }

  static GemmEntry entry() {
    return {.launch = &launch,
            .prepare = &prepare,
            .workspace_bytes = [](GemmArgs const&) -> int64_t { return 0; },
            .threads = kThreads,
            .smem_bytes = kSmemBytes,
            .min_arch = 80,
            .out_dtypes = Accumulator<kConfig.accumulator>::kOutDtypes,
            .orders = kAllOrders,
            .any_stride = kVector == 1};
  }
};

}  // namespace moye
