// sm80_persistent: D = A * B^T as sm80_multistage multiplies, by CTAs that stay and take one tile after the other.
//   A (M,K), B (N,K), D (M,N), each in any order; every dtype that mma.sync has
//   grid      as many CTAs as the device runs at one time; TileScheduler deals tiles out to them, and super_m keeps the
//             tiles of all CTAs at one time in few rows and columns of tiles
//   CTA       a row of k-tiles that does not end with a tile of D: while the last k-tiles of one are multiplied, and
//             under its epilogue, the first ones of the next load; so the epilogue's rows lie beside the stages
//   gmem -> smem, smem -> rmem   as in sm80_multistage
//   stage s holds the CTA's k-tiles s, s + kStages, ...; kStages - 1 of them are in flight while one is multiplied
//   consumer_wait  (1) the next stage has landed, for every thread's copies;
//                  (2) every warp is done with the stage that is refilled next, and with the epilogue before
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
sm80_persistent_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid) {
  Gemm::template run<kOrder>(args, grid);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm80_persistent)
struct Gemm<kConfig> {
  using MmaOp = typename Sm80Mma<kConfig.dtype, kConfig.accumulator>::Op;
  using Element = typename ElementOf<kConfig.dtype>::Type;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kManyRows = sizeof(Element) == 1 ? 128 : 256;  // fragments of bytes need many addresses
  static constexpr int kWarpsM = kBlkM >= kManyRows ? 4 : 2, kWarpsN = kBlkN >= 256 ? 4 : 2;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kVector = kConfig.alignment / int(sizeof(Element));  // elements of one global load
  static_assert(kVector >= 1, "a load of `alignment` bytes holds whole elements");

  using TiledMma = WarpTiledMma<MmaOp, kWarpsM, kWarpsN>;
  static_assert(decltype(size(TiledMma{}))::value == kThreads);
  static_assert(kBlkM % decltype(tile_size<0>(TiledMma{}))::value == 0, "warps cover whole rows of atoms");
  static_assert(kBlkN % decltype(tile_size<1>(TiledMma{}))::value == 0, "warps cover whole columns of atoms");

  using GlobalCopy = typename GlobalCopyOp<kConfig.alignment>::Type;

  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto smem_layout() {
    return swizzled_smem<Element, kMajor>(Shape<Int<kRows>, Int<kBlkK>, Int<kStages>>{});  // (BLK,BLK_K,PIPE)
  }

  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto global_copy() {
    return coalesced_copy<CopyAtom<GlobalCopy, Element>, kMajor, kThreads, kRows, kBlkK, kVector>();
  }

  template <Major kMajor>
  using SmemCopyAtom = FragmentCopyAtom<Element, kMajor>;

  // One vector at a time: the next tile's loads are under way, and their addresses take the registers.
  using Epilogue = StagedEpilogue<TiledMma, kBlkM, kBlkN, kConfig.accumulator, StagedRows<TiledMma, kBlkN>, 1>;

  struct SharedStorage {
    SwizzledOperands<kConfig> operands;
    typename Epilogue::SharedStorage epilogue;
  };

  template <Order kOrder>
  static MOYE_DEVICE void run(GemmArgs const& args, TileGrid const& grid) {
    constexpr Major kMajorA = kMajorOfA<kOrder>, kMajorB = kMajorOfB<kOrder>;
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = thread_idx().x;
    int const k_tiles = grid.k;

    Tensor sA = make_tensor(make_smem_ptr(smem.operands.a), smem_layout<kMajorA, kBlkM>());  // (BLK_M,BLK_K,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), smem_layout<kMajorB, kBlkN>());  // (BLK_N,BLK_K,PIPE)

    auto const stride_a = operand_stride<kMajorA, kVector>(args.a_m_stride, args.a_k_stride);  // (m,k)
    auto const stride_b = operand_stride<kMajorB, kVector>(args.b_n_stride, args.b_k_stride);  // (n,k)
    auto const copy_a = global_copy<kMajorA, kBlkM>();
    auto const copy_b = global_copy<kMajorB, kBlkN>();
    auto const thr_copy_a = copy_a.get_slice(thread);
    auto const thr_copy_b = copy_b.get_slice(thread);
    Tensor tAsA = thr_copy_a.partition_D(sA);  // (CPY,CPY_M,CPY_K,PIPE)
    Tensor tBsB = thr_copy_b.partition_D(sB);  // (CPY,CPY_N,CPY_K,PIPE)
    Tensor tAcA = thr_copy_a.partition_S(make_identity_tensor(Shape<Int<kBlkM>, Int<kBlkK>>{}));  // (CPY,CPY_M,CPY_K)
    Tensor tBcB = thr_copy_b.partition_S(make_identity_tensor(Shape<Int<kBlkN>, Int<kBlkK>>{}));  // (CPY,CPY_N,CPY_K)

    TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor tCrA = thr_mma.partition_fragment_A(sA(_, _, _0{}));                      // (MMA,MMA_M,MMA_K)
    Tensor tCrB = thr_mma.partition_fragment_B(sB(_, _, _0{}));                      // (MMA,MMA_N,MMA_K)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)

    auto const smem_copy_a = make_tiled_copy_A(SmemCopyAtom<kMajorA>{}, tiled_mma);
    auto const smem_copy_b = make_tiled_copy_B(SmemCopyAtom<kMajorB>{}, tiled_mma);
    auto const smem_thr_copy_a = smem_copy_a.get_slice(thread);
    auto const smem_thr_copy_b = smem_copy_b.get_slice(thread);
    Tensor tXsA = smem_thr_copy_a.partition_S(sA);           // (CPY,MMA_M,MMA_K,PIPE)
    Tensor tXrA = smem_thr_copy_a.retile_D(tCrA);            // (CPY,MMA_M,MMA_K)
    Tensor tXsB = smem_thr_copy_b.partition_S(sB);           // (CPY,MMA_N,MMA_K,PIPE)
    Tensor tXrB = smem_thr_copy_b.retile_D(tCrB);            // (CPY,MMA_N,MMA_K)
    constexpr int kBlocks = decltype(size<2>(tCrA))::value;  // k-blocks of one mma per k-tile

    CpAsyncPipeline<kStages> pipeline;
    // Whole tiles: what lies beyond m, n and k is predicated, never read. Of k the first tile: a pointer moves on.
    auto const partition_a = [&](TileCoord const& tile) {
      auto const* a = static_cast<Element const*>(args.a) + matrix_offset(args, tile.batch, args.a_batch_strides);
      Tensor mA = make_tensor(make_gmem_ptr(a), make_shape(grid.m * kBlkM, Int<kBlkK>{}), stride_a);  // (m,BLK_K)
      Tensor gA = local_tile(mA, Shape<Int<kBlkM>, Int<kBlkK>>{}, make_coord(tile.m, _0{}));          // (BLK_M,BLK_K)
      return thr_copy_a.partition_S(gA);  // (CPY,CPY_M,CPY_K)
    };
    auto const partition_b = [&](TileCoord const& tile) {
      auto const* b = static_cast<Element const*>(args.b) + matrix_offset(args, tile.batch, args.b_batch_strides);
      Tensor mB = make_tensor(make_gmem_ptr(b), make_shape(grid.n * kBlkN, Int<kBlkK>{}), stride_b);  // (n,BLK_K)
      Tensor gB = local_tile(mB, Shape<Int<kBlkN>, Int<kBlkK>>{}, make_coord(tile.n, _0{}));          // (BLK_N,BLK_K)
      return thr_copy_b.partition_S(gB);  // (CPY,CPY_N,CPY_K)
    };

    // What is filled next: a k-tile of `next`, kAhead k-tiles ahead of the one that is multiplied.
    TileScheduler<> const tiles(grid);
    auto next_tile = tiles.begin();
    TileCoord next = *next_tile;
    Tensor tAgA = partition_a(next);
    Tensor tBgB = partition_b(next);
    int k_left = int(args.k);  // elements of k from this k-tile on; 0: the CTA's k-tiles are all filled
    auto const fill = [&] {
      if (k_left > 0) {
        int const stage = pipeline.write();
        int const m_left = int(args.m) - next.m * kBlkM;  // rows of A from this tile on
        int const n_left = int(args.n) - next.n * kBlkN;  // columns of D, rows of B
        copy_operand<kMajorA, kBlkM, kBlkK>(copy_a, tAgA, tAsA(_, _, _, stage), tAcA, m_left, k_left);
        copy_operand<kMajorB, kBlkN, kBlkK>(copy_b, tBgB, tBsB(_, _, _, stage), tBcB, n_left, k_left);
        move_view(tAgA, kBlkK * get<1>(stride_a));
        move_view(tBgB, kBlkK * get<1>(stride_b));
        k_left -= kBlkK;
        if (k_left <= 0 && ++next_tile != tiles.end()) {
          next = *next_tile;
          tAgA = partition_a(next);
          tBgB = partition_b(next);
          k_left = int(args.k);
        }
      }
      pipeline.producer_commit();
    };
    auto const read = [&](int block) {
      copy(smem_copy_a, tXsA(_, _, block, pipeline.read()), tXrA(_, _, block));
      copy(smem_copy_b, tXsB(_, _, block, pipeline.read()), tXrB(_, _, block));
    };

    MOYE_NO_UNROLL
    for (int stage = 0; stage < pipeline.kAhead; ++stage) fill();
    MOYE_NO_UNROLL
    for (TileCoord tile : tiles) {
      clear(tCrC);
      if (k_tiles > 0) {
        pipeline.consumer_wait();
        read(0);
      } else {
        sync_threads();  // every warp is done with the epilogue before, as the waits say where there are any
      }
      MOYE_NO_UNROLL
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
        MOYE_UNROLL
        for (int block = 0; block < kBlocks; ++block) {
          if (block == 0) fill();
          // The next k-block's fragments load under this one's multiplications.
          if (block + 1 < kBlocks) {
            read(block + 1);
          } else {
            pipeline.consumer_release();
            if (k_tile + 1 < k_tiles) {
              pipeline.consumer_wait();
              read(0);
            }
          }
          round_operands(tCrA(_, _, block), tCrB(_, _, block));
          gemm(tiled_mma, tCrA(_, _, block), tCrB(_, _, block), tCrC);
        }
      }
      Epilogue::store(args, tile, tCrC, smem.epilogue, thread);
    }
  }

  template <Order kOrder>
  static constexpr auto* kernel() {
    return sm80_persistent_kernel<Gemm, kOrder>;
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) { return launch_persistent<kConfig>(args, stream); }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .min_arch = min_arch<MmaOp>,
                                         .any_stride = kVector == 1,
                                         .scales = Epilogue::kScales};
};

}  // namespace moye
