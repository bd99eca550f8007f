// sm90_pingpong: sm90_cooperative with a tile per consumer warpgroup, so that one's epilogue hides under the other's
// wgmma.
//   A (M,K), B (N,K), D (M,N); 16-bit operands in any order, the others contiguous along k; batch: outermost tile index
//   cluster   CTAs that share rows of A or of B load a part of them each and multicast it
//   CTA       stays for many tiles; its first goes to consumer 0, the next to consumer 1, and so on in turn
//   warpgroup 0        producer: one thread of warp 0 starts the loads of all tiles, one after the other
//   warpgroups 1, 2    consumers: each multiplies the stages of its tiles and skips those of the other's
//   full[s]   1 arrival (this CTA's producer) and the stage's bytes, from every CTA that sends some: the consumer waits
//   empty[s]  one arrival of every warp of the consumer, in every CTA of the cluster: producers wait before they fill
//   it turn[c]   one arrival of every warp of the other consumer: it has multiplied its tile, and consumer c may begin
//   wgmma     one group in flight: when the next is started the one before is done, and its stage is released
//   epilogue  per consumer, named barrier 1 + its index; see gemm/epilogue_sm90.h
//   exit      with a cluster, together: a peer's multicast or arrival must not meet a CTA that has gone
#pragma once

#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue_sm90.h"
#include "gemm/order.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/device.h"
#include "moye/arch/launch.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_traits_sm90.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

template <class Gemm, Order kOrder>
MOYE_KERNEL(Gemm::kThreads)
sm90_pingpong_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid, bool tma_store,
                     MOYE_GRID_CONSTANT TensorMap const map_a, MOYE_GRID_CONSTANT TensorMap const map_b,
                     MOYE_GRID_CONSTANT TensorMap const map_d) {
  Gemm::template run<kOrder>(args, grid, tma_store, map_a, map_b, map_d);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_pingpong)
struct Gemm<kConfig> {
  using Element = typename ElementOf<kConfig.dtype>::Type;
  using Sum = typename Accumulator<kConfig.accumulator>::Sum;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kClusterM = kConfig.cluster.m, kClusterN = kConfig.cluster.n, kCluster = kClusterM * kClusterN;
  static_assert(kBlkK * int(sizeof(Element)) == 128, "a k-tile is one swizzled row of 128 bytes");
  static_assert(kConfig.alignment == 16, "TMA needs addresses and strides of 16 bytes");

  static constexpr int kConsumers = 2;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static_assert(kBlkM % 64 == 0 && kBlkN <= 256, "whole wgmmas");
  // 64 K registers: 168 per thread with 384 threads.
  static constexpr bool kManySums = kBlkM * kBlkN / 128 > 176;  // per thread
  static constexpr int kProducerRegisters = kManySums ? 24 : 40;
  static constexpr int kConsumerRegisters = kManySums ? 240 : 232;

  template <Order kOrder>
  struct Operands {
    using A = TmaOperand<Element, kMajorOfA<kOrder>, kBlkM, kStages, kClusterN>;
    using B = TmaOperand<Element, kMajorOfB<kOrder>, kBlkN, kStages, kClusterM>;
    template <int kColumns>
    using MmaOp = SM90_WGMMA_SS<kColumns, Sum, Element, Element, kGmmaMajor<kMajorOfA<kOrder>>,
                                kGmmaMajor<kMajorOfB<kOrder>>, GMMA::ScaleIn::One, GMMA::ScaleIn::One>;
    using TiledMma = decltype(make_tiled_mma(MmaOp<kBlkN>{}, Layout<Shape<_1, _1, _1>>{}));
    // Of whole boxes: makes the descriptors of B, which are TiledMma's but may lead to more columns than it reads.
    using TiledMmaOfB = decltype(make_tiled_mma(MmaOp<B::kRows>{}, Layout<Shape<_1, _1, _1>>{}));
  };
  using Epilogue = WarpgroupEpilogue<kBlkN, kConfig.accumulator>;

  struct SharedStorage {
    alignas(1024) Element a[kBlkM * kBlkK * kStages];
    alignas(1024) Element b[rows_of_boxes(kBlkN) * kBlkK * kStages];
    typename Epilogue::SharedStorage epilogue[kConsumers];
    alignas(8) uint64_t full[kStages];
    alignas(8) uint64_t empty[kStages];
    alignas(8) uint64_t turn[kConsumers];
  };
  static constexpr int kSmemBytes = int(sizeof(SharedStorage));
  static_assert(kSmemBytes <= 227 * 1024, "more shared memory than sm_90 gives one CTA");

  /// The tile of this CTA within its cluster's tile `id`; `grid` counts clusters.
  static MOYE_DEVICE TileCoord tile_of(unsigned id, TileGrid const& grid) {
    TileCoord tile = tile_coord(id, grid);
    int const rank = int(block_idx().x % kCluster);
    tile.m = tile.m * kClusterM + rank % kClusterM;
    tile.n = tile.n * kClusterN + rank / kClusterM;
    return tile;
  }

  template <Order kOrder>
  static MOYE_DEVICE void run(GemmArgs const& args, TileGrid const& grid, bool tma_store, TensorMap const& map_a,
                              TensorMap const& map_b, TensorMap const& map_d) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x);
    if (thread == 0) {
      for (int stage = 0; stage < kStages; ++stage) {
        mbarrier_init(&smem.full[stage], 1);
        mbarrier_init(&smem.empty[stage], 4 * kCluster);
      }
      for (int consumer = 0; consumer < kConsumers; ++consumer) mbarrier_init(&smem.turn[consumer], 4);
      fence_mbarrier_init();
    }
    if constexpr (kCluster > 1) {
      cluster_sync();
    } else {
      sync_threads();
    }
    if (thread < 128) {
      warpgroup_reg_dealloc<kProducerRegisters>();
      if (thread < 32) {
        if (elect_one_sync()) produce<kOrder>(args, grid, map_a, map_b, smem);
        sync_warp();
      }
    } else {
      warpgroup_reg_alloc<kConsumerRegisters>();
      consume<kOrder>(args, grid, tma_store, map_d, smem, thread / 128 - 1, thread % 128);
    }
    if constexpr (kCluster > 1) cluster_sync();
  }

  /// One thread: the loads of all tiles, stage after stage.
  template <Order kOrder>
  static MOYE_DEVICE void produce(GemmArgs const& args, TileGrid const& grid, TensorMap const& map_a,
                                  TensorMap const& map_b, SharedStorage& smem) {
    using OperandA = typename Operands<kOrder>::A;
    using OperandB = typename Operands<kOrder>::B;
    constexpr uint32_t kStageBytes = OperandA::kStageBytes + OperandB::kStageBytes;
    // CTAs of this one's row of the cluster need the same rows of A, those of its column the same rows of B.
    int const rank = int(block_idx().x % kCluster), rank_m = rank % kClusterM, rank_n = rank / kClusterM;
    uint16_t mask_a = 0, mask_b = 0;
    for (int n = 0; n < kClusterN; ++n) mask_a |= uint16_t(1u << (rank_m + n * kClusterM));
    for (int m = 0; m < kClusterM; ++m) mask_b |= uint16_t(1u << (m + rank_n * kClusterM));

    auto write = producer_start<kStages>();
    for (unsigned id = block_idx().x / kCluster; id < unsigned(grid.tiles); id += grid_dim().x / kCluster) {
      TileCoord const tile = tile_of(id, grid);
      int const batch_a = args.a_batch_stride == 0 ? 0 : tile.batch;  // a broadcast operand's map has one matrix
      int const batch_b = args.b_batch_stride == 0 ? 0 : tile.batch;
      MOYE_NO_UNROLL
      for (int k_tile = 0; k_tile < grid.k; ++k_tile, ++write) {
        int const stage = write.index();
        mbarrier_wait(&smem.empty[stage], write.phase());
        mbarrier_arrive_expect_tx(&smem.full[stage], kStageBytes);
        OperandA::load(&map_a, &smem.full[stage],
                       reinterpret_cast<unsigned char*>(smem.a) + stage * OperandA::kStageBytes, tile.m * kBlkM,
                       k_tile * kBlkK, batch_a, rank_n, mask_a);
        OperandB::load(&map_b, &smem.full[stage],
                       reinterpret_cast<unsigned char*>(smem.b) + stage * OperandB::kStageBytes, tile.n * kBlkN,
                       k_tile * kBlkK, batch_b, rank_m, mask_b);
      }
    }
  }

  /// One warpgroup; thread: in it.
  template <Order kOrder>
  static MOYE_DEVICE void consume(GemmArgs const& args, TileGrid const& grid, bool tma_store, TensorMap const& map_d,
                                  SharedStorage& smem, int consumer, int thread) {
    using OperandA = typename Operands<kOrder>::A;
    using OperandB = typename Operands<kOrder>::B;
    int const lane = thread % 32;
    Tensor sA = make_tensor(make_smem_ptr(smem.a), OperandA::smem_layout());  // (BLK_M,BLK_K,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.b), OperandB::smem_layout());  // (ROWS_N,BLK_K,PIPE)
    typename Operands<kOrder>::TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    auto const thr_mma_b = typename Operands<kOrder>::TiledMmaOfB{}.get_slice(thread);
    Tensor tCrA = thr_mma.partition_fragment_A(sA);                                  // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCrB = thr_mma_b.partition_fragment_B(sB);                                // (MMA,MMA_N,MMA_K,PIPE)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)

    auto const release = [&](int stage) {
      if constexpr (kCluster == 1) {
        if (lane == 0) mbarrier_arrive(&smem.empty[stage]);
      } else {
        mbarrier_arrive_cluster(&smem.empty[stage], uint32_t(lane), lane < kCluster);
      }
    };

    PipelineState<kStages> read;
    read += consumer * grid.k;
    uint32_t turn = uint32_t(1 - consumer);  // consumer 0 begins, without a wait
    int box = 0;                             // of the staging, that is filled next
    unsigned const step = grid_dim().x / kCluster;
    for (unsigned id = block_idx().x / kCluster + consumer * step; id < unsigned(grid.tiles); id += kConsumers * step) {
      TileCoord const tile = tile_of(id, grid);
      if (grid.k == 0) clear(tCrC);
      warpgroup_fence_operand(tCrC);
      tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
      mbarrier_wait(&smem.turn[consumer], turn);
      turn ^= 1;
      int last = 0;  // the stage whose wgmma may be in flight
      MOYE_NO_UNROLL
      for (int k_tile = 0; k_tile < grid.k; ++k_tile, ++read) {
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
      if (lane == 0) mbarrier_arrive(&smem.turn[1 - consumer]);  // what is in flight will not wait for the other's
      warpgroup_wait_group<0>();
      warpgroup_fence_operand(tCrC);
      if (grid.k > 0) release(last);
      read += grid.k;  // the other consumer's tile

      auto& staging = smem.epilogue[consumer];
      if (tma_store) {
        auto const row_of_d = [&](int atom) { return tile.m * kBlkM + atom * 64; };
        Epilogue::store_by_tma(args.d_dtype, &map_d, tCrC, staging, row_of_d, tile.n * kBlkN, tile.batch, box, thread,
                               1 + consumer);
      } else {
        // Beside so many accumulators there are no registers for more.
        TileEpilogue<Sum, kManySums ? 1 : 4> const epilogue(args, tile, kBlkM, kBlkN);
        auto const row = [&](int atom) { return atom * 64; };
        Epilogue::store_by_threads(epilogue, tCrC, staging, row, 0, thread, 1 + consumer);
      }
    }
    if (thread == 0) tma_store_wait_group_read<0>();  // shared memory outlives the stores' reads
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) {
    if (args.batch == 0 || args.m == 0 || args.n == 0) return {};
    return dispatch(order_of(args), [&](auto order) { return launch_order<decltype(order)::value>(args, stream); });
  }

  template <Order kOrder>
  static Status launch_order(GemmArgs const& args, StreamHandle stream) {
    using OperandA = typename Operands<kOrder>::A;
    using OperandB = typename Operands<kOrder>::B;
    TileGrid grid;  // of clusters
    TileMNK const tile{kBlkM * kClusterM, kBlkN * kClusterN, kBlkK};
    if (Status status = make_tile_grid(tile, args, &grid); !status.ok()) return status;
    bool const tma_store = Epilogue::stores_by_tma(args);
    TensorMode const m{args.m, args.a_m_stride}, n{args.n, args.b_n_stride};
    TensorMap map_a = {}, map_b = {}, map_d = {};
    if (args.k > 0) {
      Status status =
          OperandA::make_map(&map_a, args.a, m, {args.k, args.a_k_stride}, {args.batch, args.a_batch_stride});
      if (!status.ok()) return status;
      status = OperandB::make_map(&map_b, args.b, n, {args.k, args.b_k_stride}, {args.batch, args.b_batch_stride});
      if (!status.ok()) return status;
    }
    if (tma_store) {
      if (Status status = Epilogue::make_map(&map_d, args); !status.ok()) return status;
    }
    LaunchConfig config{.grid = {}, .block = {kThreads}, .cluster = {kCluster, 1, 1}, .smem_bytes = kSmemBytes};
    int resident = 0;  // clusters
    auto* const kernel = sm90_pingpong_kernel<Gemm, kOrder>;
    if (Status status = max_active_clusters(kernel, config, stream, &resident); !status.ok()) return status;
    config.grid = {unsigned(resident < grid.tiles ? resident : grid.tiles) * kCluster};
    return launch_kernel(kernel, config, stream, args, grid, tma_store, map_a, map_b, map_d);
  }

  static Status prepare() {
    return for_each_order(
        [](auto order) { return prepare_kernel(sm90_pingpong_kernel<Gemm, decltype(order)::value>, kSmemBytes); });
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
