// sm90_split_k: D = A * B^T on wgmma, where tiles of D are fewer than multiprocessors and k is long: the CTAs of a
// cluster share one tile of D, multiply a part of k each, and add up their sums through distributed shared memory.
//   A (M,K), B (N,K), D (M,N), 16-bit operands in any order; batch: outermost tile index; alignment 16 bytes
//   cluster   {1, S} in the table: rank r of the S CTAs has the k-tiles from k * r / S to k * (r + 1) / S, maybe none
//   CTA       one part of one tile; with few stages two share a multiprocessor, and more loads are in flight
//   warpgroups 0, 1..  consumers: each multiplies 64 rows of the tile
//   last warp          producer: one thread starts the loads, those of the first stages before the others are ready
//   full[s]   1 arrival (the producer) and the stage's bytes: consumers wait
//   empty[s]  one arrival of every consumer warp: the producer waits before it fills the stage again
//   wgmma     one group in flight: when the next is started the one before is done, and its stage is released
//   sums      named barrier 1, of all consumers: no wgmma reads the stages any more; the sums go there
//   cluster   barrier: all CTAs' sums are there; rank r adds up its share of the tile, rank 0's sums first, stores it
//   exit      together: a CTA's sums outlive the others' reads
// The order of the sums depends on k and S alone: the result is the same from run to run, whatever m and n.
#pragma once

#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue.h"
#include "gemm/order.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/copy.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/device.h"
#include "moye/arch/launch.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_traits_sm90.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

template <class Gemm, Order kOrder>
MOYE_KERNEL(Gemm::kThreads)
sm90_split_k_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid,
                    MOYE_GRID_CONSTANT TensorMap const map_a, MOYE_GRID_CONSTANT TensorMap const map_b) {
  Gemm::template run<kOrder>(args, grid, map_a, map_b);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_split_k)
struct Gemm<kConfig> {
  using Element = typename ElementOf<kConfig.dtype>::Type;
  using Sum = typename Accumulator<kConfig.accumulator>::Sum;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kSplit = kConfig.cluster.n;  // CTAs that share a tile
  static_assert(kConfig.cluster.m == 1 && kSplit >= 2 && kSplit <= 8, "clusters of 2 to 8 CTAs along k");
  static_assert(sizeof(Element) == 2 && kBlkK == 64, "a k-tile is one swizzled row of 128 bytes");
  static_assert(kConfig.alignment == 16, "TMA needs addresses and strides of 16 bytes");

  static constexpr int kConsumers = kBlkM / 64;  // side by side along m
  static constexpr int kConsumerThreads = 128 * kConsumers, kThreads = kConsumerThreads + 32;
  static_assert(kBlkM % 64 == 0 && kBlkN % 64 == 0 && kBlkN <= 256, "whole wgmmas, whole boxes");
  static constexpr int kSumsBarrier = 1;

  template <Order kOrder>
  struct Operands {
    using A = TmaOperand<Element, kMajorOfA<kOrder>, kBlkM, kStages, 1>;
    using B = TmaOperand<Element, kMajorOfB<kOrder>, kBlkN, kStages, 1>;
    using MmaOp = SM90_WGMMA_SS<kBlkN, Sum, Element, Element, kGmmaMajor<kMajorOfA<kOrder>>,
                                kGmmaMajor<kMajorOfB<kOrder>>, GMMA::ScaleIn::One, GMMA::ScaleIn::One>;
    using TiledMma = decltype(make_tiled_mma(MmaOp{}, Layout<Shape<Int<kConsumers>, _1, _1>>{}));
  };

  // Rows of sums lie 32 bytes apart in the banks: the pairs of eight rows that a warp writes meet no conflict, nor do
  // the reads along a row.
  using SumsLayout = Layout<Shape<Int<kBlkM>, Int<kBlkN>>, Stride<Int<kBlkN + 8>, _1>>;
  static constexpr int kVector = 16 / int(sizeof(Sum)), kVectors = kBlkN / kVector;  // of one row
  static_assert(kVectors % kSplit == 0, "all ranks have the same to add up");

  struct Stages {
    alignas(1024) Element a[kBlkM * kBlkK * kStages];
    alignas(1024) Element b[kBlkN * kBlkK * kStages];
  };
  struct SharedStorage {
    union {
      Stages stages;                   // until the last wgmma
      Sum sums[cosize_v<SumsLayout>];  // from then on
    };
    alignas(8) uint64_t full[kStages];
    alignas(8) uint64_t empty[kStages];
  };
  static constexpr int kSmemBytes = int(sizeof(SharedStorage));
  static_assert(kSmemBytes <= 227 * 1024, "more shared memory than sm_90 gives one CTA");

  template <Order kOrder>
  static MOYE_DEVICE void run(GemmArgs const& args, TileGrid const& grid, TensorMap const& map_a,
                              TensorMap const& map_b) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x), rank = int(block_idx().x % kSplit);
    TileCoord const tile = tile_coord(block_idx().x / kSplit, grid);
    int const begin = first_k_tile(rank, grid), k_tiles = first_k_tile(rank + 1, grid) - begin;

    if (thread >= kConsumerThreads) {
      bool const elected = elect_one_sync();
      int const at_once = k_tiles < kStages ? k_tiles : kStages;
      auto write = producer_start<kStages>();
      if (elected) {
        for (int stage = 0; stage < kStages; ++stage) {
          mbarrier_init(&smem.full[stage], 1);
          mbarrier_init(&smem.empty[stage], 4 * kConsumers);
        }
        fence_mbarrier_init();
        load<kOrder>(args, tile, begin, at_once, map_a, map_b, smem, write);
      }
      sync_warp();
      sync_threads();
      if (elected) load<kOrder>(args, tile, begin + at_once, k_tiles - at_once, map_a, map_b, smem, write);
      sync_warp();
      cluster_sync();
    } else {
      sync_threads();
      multiply<kOrder>(k_tiles, smem, thread);
      cluster_sync();  // all ranks' sums are there
      add_and_store(args, tile, rank, smem, thread);
    }
    cluster_sync();  // and have been read
  }

  /// The first k-tile of rank `rank`: parts of k differ by one k-tile at most.
  static MOYE_DEVICE int first_k_tile(int rank, TileGrid const& grid) { return int(int64_t(grid.k) * rank / kSplit); }

  /// One thread: the loads of `k_tiles` k-tiles from `begin` on.
  template <Order kOrder>
  static MOYE_DEVICE void load(GemmArgs const& args, TileCoord const& tile, int begin, int k_tiles,
                               TensorMap const& map_a, TensorMap const& map_b, SharedStorage& smem,
                               PipelineState<kStages>& write) {
    using OperandA = typename Operands<kOrder>::A;
    using OperandB = typename Operands<kOrder>::B;
    uint32_t const bytes =
        OperandA::stage_bytes(OperandA::box_of_few(args.m)) + OperandB::stage_bytes(OperandB::box_of_few(args.n));
    int const batch_a = args.a_batch_stride == 0 ? 0 : tile.batch;  // a broadcast operand's map has one matrix
    int const batch_b = args.b_batch_stride == 0 ? 0 : tile.batch;
    MOYE_NO_UNROLL
    for (int k_tile = begin; k_tile < begin + k_tiles; ++k_tile, ++write) {
      int const stage = write.index();
      mbarrier_wait(&smem.empty[stage], write.phase());
      mbarrier_arrive_expect_tx(&smem.full[stage], bytes);
      OperandA::load(&map_a, &smem.full[stage],
                     reinterpret_cast<unsigned char*>(smem.stages.a) + stage * OperandA::kStageBytes, tile.m * kBlkM,
                     k_tile * kBlkK, batch_a, 0, 1);
      OperandB::load(&map_b, &smem.full[stage],
                     reinterpret_cast<unsigned char*>(smem.stages.b) + stage * OperandB::kStageBytes, tile.n * kBlkN,
                     k_tile * kBlkK, batch_b, 0, 1);
    }
  }

  /// Consumers: smem.sums = the products of this CTA's `k_tiles` stages.
  template <Order kOrder>
  static MOYE_DEVICE void multiply(int k_tiles, SharedStorage& smem, int thread) {
    using OperandA = typename Operands<kOrder>::A;
    using OperandB = typename Operands<kOrder>::B;
    Tensor sA = make_tensor(make_smem_ptr(smem.stages.a), OperandA::smem_layout());  // (BLK_M,BLK_K,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.stages.b), OperandB::smem_layout());  // (BLK_N,BLK_K,PIPE)
    Tensor sC = make_tensor(make_smem_ptr(smem.sums), SumsLayout{});                 // (BLK_M,BLK_N)
    typename Operands<kOrder>::TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor tCrA = thr_mma.partition_fragment_A(sA);                                  // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCrB = thr_mma.partition_fragment_B(sB);                                  // (MMA,MMA_N,MMA_K,PIPE)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)
    Tensor tCsC = thr_mma.partition_C(sC);                                           // (MMA,MMA_M,MMA_N)
    auto const release = [&](int stage) {
      if (thread % 32 == 0) mbarrier_arrive(&smem.empty[stage]);
    };

    if (k_tiles == 0) clear(tCrC);
    warpgroup_fence_operand(tCrC);
    tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
    PipelineState<kStages> read;
    int last = 0;  // the stage whose wgmma may be in flight
    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++read) {
      int const stage = read.index();
      mbarrier_wait(&smem.full[stage], read.phase());
      warpgroup_arrive();
      gemm(tiled_mma, tCrA(_, _, _, stage), tCrB(_, _, _, stage), tCrC);
      warpgroup_commit_group();
      warpgroup_wait_group<1>();
      if (k_tile > 0) release(last);
      last = stage;
      tiled_mma.accumulate_ = GMMA::ScaleOut::One;
    }
    warpgroup_wait_group<0>();
    warpgroup_fence_operand(tCrC);
    // Every load has been waited for. The wgmmas of other warps may still read their stages.
    named_barrier_sync(kSumsBarrier, kConsumerThreads);
    copy(tCrC, tCsC);
  }

  /// Consumers: the tile's rows in vectors of 16 bytes, dealt out to the ranks in one piece each; those beyond m are
  /// not counted, so that all ranks have the same to do where the tile has few rows.
  static MOYE_DEVICE void add_and_store(GemmArgs const& args, TileCoord const& tile, int rank, SharedStorage& smem,
                                        int thread) {
    TileEpilogue<Sum> const epilogue(args, tile, kBlkM, kBlkN);
    Sum const* sums[kSplit];  // of each rank
    MOYE_UNROLL
    for (int r = 0; r < kSplit; ++r) sums[r] = mapa(smem.sums, uint32_t(r));

    int64_t const m_left = args.m - int64_t(tile.m) * kBlkM;
    int const share = (m_left < kBlkM ? int(m_left) : kBlkM) * kVectors / kSplit, end = (rank + 1) * share;
    MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
        for (int vector = rank * share + thread; vector < end; vector += kConsumerThreads) {
      int const row = vector / kVectors, column = vector % kVectors * kVector;
      int const at = SumsLayout{}(row, column);
      Row<Sum, kVector> parts[kSplit];
      MOYE_UNROLL
      for (int r = 0; r < kSplit; ++r) {  // all are on their way before the first is needed
        parts[r] = detail::bit_cast<Row<Sum, kVector>>(*reinterpret_cast<uint128_t const*>(sums[r] + at));
      }
      MOYE_UNROLL
      for (int r = 1; r < kSplit; ++r) {
        MOYE_UNROLL
        for (int i = 0; i < kVector; ++i) parts[0].elements[i] += parts[r].elements[i];
      }
      epilogue.store(parts[0].elements, row, column);
    }
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) {
    if (args.batch == 0 || args.m == 0 || args.n == 0) return {};
    return dispatch(order_of(args), [&](auto order) { return launch_order<decltype(order)::value>(args, stream); });
  }

  template <Order kOrder>
  static Status launch_order(GemmArgs const& args, StreamHandle stream) {
    using OperandA = typename Operands<kOrder>::A;
    using OperandB = typename Operands<kOrder>::B;
    TileGrid grid;
    if (Status status = make_tile_grid(kConfig.tile, args, &grid); !status.ok()) return status;
    if (grid.tiles > 0x7fffffff / kSplit) return {"d has more than 2^31 - 1 tiles, each counted once for a part of k"};
    TensorMap map_a = {}, map_b = {};
    if (args.k > 0) {
      Status status = OperandA::make_map(&map_a, args.a, {args.m, args.a_m_stride}, {args.k, args.a_k_stride},
                                         {args.batch, args.a_batch_stride}, OperandA::box_of_few(args.m));
      if (!status.ok()) return status;
      status = OperandB::make_map(&map_b, args.b, {args.n, args.b_n_stride}, {args.k, args.b_k_stride},
                                  {args.batch, args.b_batch_stride}, OperandB::box_of_few(args.n));
      if (!status.ok()) return status;
    }
    LaunchConfig const config{.grid = {unsigned(grid.tiles) * kSplit},
                              .block = {kThreads},
                              .cluster = {kSplit, 1, 1},
                              .smem_bytes = kSmemBytes};
    return launch_kernel(sm90_split_k_kernel<Gemm, kOrder>, config, stream, args, grid, map_a, map_b);
  }

  static Status prepare() {
    return for_each_order(
        [](auto order) { return prepare_kernel(sm90_split_k_kernel<Gemm, decltype(order)::value>, kSmemBytes); });
  }

  static GemmEntry entry() {
    return {.launch = &launch,
            .prepare = &prepare,
            .workspace_bytes = [](GemmArgs const&) -> int64_t { return 0; },
            .threads = kThreads,
            .smem_bytes = kSmemBytes,
            .min_arch = 90,
            .max_arch = 90,  // sm_90a's code
            .out_dtypes = Accumulator<kConfig.accumulator>::kOutDtypes,
            .orders = kAllOrders,
            .any_stride = false};
  }
};

}  // namespace moye
