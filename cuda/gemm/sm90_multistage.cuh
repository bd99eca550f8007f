// sm90_multistage: D = A * B^T in doubles, on the mma.sync that sm_90 brought: an n-stage cp.async pipeline.
//   A (M,K), B (N,K), D (M,N), each in any order; batch: outer dimension of the grid
//   CTA       one tile of D; all warps load and multiply, each a part of 64 x 32, or 32 x 32 of a small tile
//   gmem -> smem   cp.async of `alignment` bytes, zero-filled beyond M, N and K, a few at a time between products
//   smem -> rmem   8 bytes at a time; shared memory is swizzled. A's atoms one step ahead of their products, B's of the
//                  next k-block under the last products of this one: what lives in registers is two of A, two k-blocks
//                  of B, and the sums
//   stage s holds k-tile s, s + kStages, ...; kStages - 1 of them are in flight while one is multiplied; behind the
//   last k-tile stages are filled with zeros, so that the loop has no branch
//   consumer_wait  (1) the next stage has landed, for every thread's copies;
//                  (2) every warp is done with the stage that is refilled next
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
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

template <class Gemm, Order kOrder>
MOYE_KERNEL(Gemm::kThreads)
sm90_multistage_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid) {
  Gemm::template run<kOrder>(args, grid);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_multistage)
struct Gemm<kConfig> {
  static_assert(kConfig.dtype == Dtype::f64 && kConfig.accumulator == Dtype::f64, "other dtypes have wgmma");
  using Element = double;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  using MmaOp = typename Sm90DoubleMma<kBlkK / 2>::Op;  // two k-blocks of one mma per k-tile
  static constexpr int kWarpsM = kBlkM / (kBlkM * kBlkN < 128 * 64 ? 32 : 64), kWarpsN = kBlkN / 32;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kVector = kConfig.alignment / int(sizeof(Element));  // elements of one global load
  static_assert(kVector >= 1, "a load of `alignment` bytes holds whole elements");

  using TiledMma = decltype(make_tiled_mma(MmaOp{}, Layout<Shape<Int<kWarpsM>, Int<kWarpsN>, _1>>{}));
  static_assert(decltype(size(TiledMma{}))::value == kThreads);
  static_assert(kBlkM % decltype(tile_size<0>(TiledMma{}))::value == 0, "warps cover whole rows of atoms");
  static_assert(kBlkN % decltype(tile_size<1>(TiledMma{}))::value == 0, "warps cover whole columns of atoms");

  using GlobalCopy = CopyAtom<typename GlobalCopyOp<kConfig.alignment>::Type, Element>;
  using SmemCopyAtom = CopyAtom<UniversalCopy<Element>, Element>;

  /// Rows, or ks, lie 32 bytes apart in the banks: the 4 x 4 words that half a warp reads of an atom fill them. A
  /// swizzle would do as well, but a thread's addresses would not differ by constants, and they have no registers.
  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto smem_layout() {
    if constexpr (kMajor == Major::k) {
      return Layout<Shape<Int<kRows>, Int<kBlkK>, Int<kStages>>,
                    Stride<Int<kBlkK + 4>, _1, Int<kRows*(kBlkK + 4)>>>{};  // (BLK,BLK_K,PIPE)
    } else {
      return Layout<Shape<Int<kRows>, Int<kBlkK>, Int<kStages>>,
                    Stride<_1, Int<kRows + 4>, Int<kBlkK*(kRows + 4)>>>{};  // (BLK,BLK_K,PIPE)
    }
  }
  /// Of all stages, in either layout.
  template <int kRows>
  static constexpr int kElements = kStages * (kRows * kBlkK + 4 * (kRows > kBlkK ? kRows : kBlkK));

  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto global_copy() {
    return coalesced_copy<GlobalCopy, kMajor, kThreads, kRows, kBlkK, kVector>();
  }

  using Epilogue = StagedEpilogue<TiledMma, kBlkM, kBlkN, kConfig.accumulator>;

  struct Operands {
    alignas(128) Element a[kElements<kBlkM>];
    alignas(128) Element b[kElements<kBlkN>];
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
    TileCoord const tile = tile_coord(block_idx().x, grid);
    int const m_left = int(args.m) - tile.m * kBlkM;  // rows of A from this tile on
    int const n_left = int(args.n) - tile.n * kBlkN;  // columns of D, rows of B

    // Whole tiles: what lies beyond m, n and k is predicated, never read. Of k the first tile: a pointer moves on.
    auto const* a = static_cast<Element const*>(args.a) + matrix_offset(args, tile.batch, args.a_batch_strides);
    auto const* b = static_cast<Element const*>(args.b) + matrix_offset(args, tile.batch, args.b_batch_strides);
    Tensor mA = make_tensor(make_gmem_ptr(a), make_shape(grid.m * kBlkM, Int<kBlkK>{}),
                            operand_stride<kMajorA, kVector>(args.a_m_stride, args.a_k_stride));  // (m,BLK_K)
    Tensor mB = make_tensor(make_gmem_ptr(b), make_shape(grid.n * kBlkN, Int<kBlkK>{}),
                            operand_stride<kMajorB, kVector>(args.b_n_stride, args.b_k_stride));  // (n,BLK_K)
    Tensor gA = local_tile(mA, Shape<Int<kBlkM>, Int<kBlkK>>{}, make_coord(tile.m, _0{}));        // (BLK_M,BLK_K)
    Tensor gB = local_tile(mB, Shape<Int<kBlkN>, Int<kBlkK>>{}, make_coord(tile.n, _0{}));        // (BLK_N,BLK_K)
    Tensor sA = make_tensor(make_smem_ptr(smem.operands.a), smem_layout<kMajorA, kBlkM>());       // (BLK_M,BLK_K,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), smem_layout<kMajorB, kBlkN>());       // (BLK_N,BLK_K,PIPE)

    auto const copy_a = global_copy<kMajorA, kBlkM>();
    auto const copy_b = global_copy<kMajorB, kBlkN>();
    auto const thr_copy_a = copy_a.get_slice(thread);
    auto const thr_copy_b = copy_b.get_slice(thread);
    Tensor tAgA = thr_copy_a.partition_S(gA);  // (CPY,CPY_M,CPY_K), of the k-tile that is filled next
    Tensor tAsA = thr_copy_a.partition_D(sA);  // (CPY,CPY_M,CPY_K,PIPE)
    Tensor tBgB = thr_copy_b.partition_S(gB);  // (CPY,CPY_N,CPY_K)
    Tensor tBsB = thr_copy_b.partition_D(sB);  // (CPY,CPY_N,CPY_K,PIPE)
    Tensor tAcA = thr_copy_a.partition_S(make_identity_tensor(Shape<Int<kBlkM>, Int<kBlkK>>{}));  // (CPY,CPY_M,CPY_K)
    Tensor tBcB = thr_copy_b.partition_S(make_identity_tensor(Shape<Int<kBlkN>, Int<kBlkK>>{}));  // (CPY,CPY_N,CPY_K)

    TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor tCrA = thr_mma.partition_fragment_A(sA(_, _, _0{}));                      // (MMA,MMA_M,MMA_K)
    Tensor tCrB = thr_mma.partition_fragment_B(sB(_, _, _0{}));                      // (MMA,MMA_N,MMA_K)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)
    clear(tCrC);

    auto const smem_copy_a = make_tiled_copy_A(SmemCopyAtom{}, tiled_mma);
    auto const smem_copy_b = make_tiled_copy_B(SmemCopyAtom{}, tiled_mma);
    auto const smem_thr_copy_a = smem_copy_a.get_slice(thread);
    auto const smem_thr_copy_b = smem_copy_b.get_slice(thread);
    Tensor tXsA = smem_thr_copy_a.partition_S(sA);  // (CPY,MMA_M,MMA_K,PIPE)
    Tensor tXrA = smem_thr_copy_a.retile_D(tCrA);   // (CPY,MMA_M,MMA_K)
    Tensor tXsB = smem_thr_copy_b.partition_S(sB);  // (CPY,MMA_N,MMA_K,PIPE)
    Tensor tXrB = smem_thr_copy_b.retile_D(tCrB);   // (CPY,MMA_N,MMA_K)

    constexpr int kM = decltype(size<1>(tCrA))::value, kN = decltype(size<1>(tCrB))::value;
    constexpr int kBlocks = decltype(size<2>(tCrA))::value;  // k-blocks of one mma per k-tile
    constexpr int kSteps = kBlocks * kM;                     // one atom of A and all of B each
    static_assert(kBlocks >= 2 && kM >= 2, "fragments that are read are not those that are multiplied");

    CpAsyncPipeline<kStages> pipeline;
    int k_left = int(args.k);  // elements of k from the k-tile on that is filled next
    bool const whole_rows = m_left >= kBlkM && n_left >= kBlkN;
    constexpr int kVectorsA = decltype(size<1>(tAgA))::value * decltype(size<2>(tAgA))::value;
    constexpr int kVectorsB = decltype(size<1>(tBgB))::value * decltype(size<2>(tBgB))::value;
    constexpr int kVectors = kVectorsA + kVectorsB;  // that a thread copies of a k-tile
    auto const load = [&](int v) {                   // one of them, of a whole k-tile
      if (v < kVectorsA) {
        constexpr int kRest = decltype(size<1>(tAgA))::value;
        int const i = v % kRest, j = v / kRest;
        copy(copy_a, tAgA(_, i, j), tAsA(_, i, j, pipeline.write()));
      } else {
        constexpr int kRest = decltype(size<1>(tBgB))::value;
        int const i = (v - kVectorsA) % kRest, j = (v - kVectorsA) / kRest;
        copy(copy_b, tBgB(_, i, j), tBsB(_, i, j, pipeline.write()));
      }
    };
    auto const load_edge = [&] {  // all of them, of one that is not
      copy_operand<kMajorA, kBlkM, kBlkK>(copy_a, tAgA, tAsA(_, _, _, pipeline.write()), tAcA, m_left, k_left);
      copy_operand<kMajorB, kBlkN, kBlkK>(copy_b, tBgB, tBsB(_, _, _, pipeline.write()), tBcB, n_left, k_left);
    };
    auto const commit = [&] {
      move_view(tAgA, kBlkK * get<1>(mA.stride()));
      move_view(tBgB, kBlkK * get<1>(mB.stride()));
      k_left -= kBlkK;
      pipeline.producer_commit();
    };
    auto const read_a = [&](int i, int block) {
      copy(smem_copy_a, tXsA(_, i, block, pipeline.read()), tXrA(_, i, block));
    };
    auto const read_b = [&](int j, int block) {
      copy(smem_copy_b, tXsB(_, j, block, pipeline.read()), tXrB(_, j, block));
    };

    MOYE_NO_UNROLL
    for (int stage = 0; stage < pipeline.kAhead; ++stage) {
      if (k_left > 0) load_edge();
      commit();
    }
    if (grid.k > 0) {
      pipeline.consumer_wait();
      read_a(0, 0);
      MOYE_UNROLL
      for (int j = 0; j < kN; ++j) read_b(j, 0);
    }

    auto const multiply = [&](auto is_last) {  // the k-tile of stage read(), and what there is to do under its products
      constexpr bool kLast = decltype(is_last)::value;
      bool const whole = !kLast && whole_rows && k_left >= kBlkK;
      MOYE_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        int const i = step % kM, block = step / kM;
        int const next_i = (step + 1) % kM, next_block = (step + 1) % kSteps / kM;
        bool const is_last_step = step + 1 == kSteps;
        if (!kLast && is_last_step) {
          if (!whole && k_left > 0) load_edge();
          commit();
          pipeline.consumer_release();
          pipeline.consumer_wait();
        }
        MOYE_UNROLL
        for (int j = 0; j < kN; ++j) {
          gemm_atom(tiled_mma, tCrA(_, i, block), tCrB(_, j, block), tCrC(_, i, j));
          if (!(kLast && is_last_step)) {  // fragments of the next step
            if (j == 0) read_a(next_i, next_block);
            if (next_i == 0) read_b(j, next_block);
          }
          if (!kLast && !is_last_step) {  // a share of the copies
            constexpr int kSlots = (kSteps - 1) * kN;
            int const slot = step * kN + j;
            MOYE_UNROLL
            for (int v = slot * kVectors / kSlots; v < (slot + 1) * kVectors / kSlots; ++v) {
              if (whole) load(v);
            }
          }
        }
      }
    };
    if (grid.k > 0) {
      MOYE_NO_UNROLL
      for (int k_tile = 1; k_tile < grid.k; ++k_tile) multiply(C<false>{});
      multiply(C<true>{});
    }

    sync_threads();  // every warp is done with the stages, which the epilogue's rows replace
    Epilogue::store(args, tile, tCrC, smem.epilogue, thread);
  }

  template <Order kOrder>
  static constexpr auto* kernel() {
    return sm90_multistage_kernel<Gemm, kOrder>;
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) { return launch_tiles<kConfig>(args, stream); }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .min_arch = min_arch<MmaOp>,
                                         .max_arch = 90,
                                         .any_stride = kVector == 1,
                                         .scales = Epilogue::kScales};
};

}  // namespace moye
