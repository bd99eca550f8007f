// sm90_pingpong: sm90_cooperative with a tile per consumer warpgroup: one's epilogue hides under the other's wgmma.
//   A (M,K), B (N,K), D (M,N); 16-bit operands in any order, others along k; batch: outermost tile index
//   8-bit floats       summed in the tensor core (f32_fast): a second set of sums leaves no registers
//   packing            configs of an element's alignment copy operands that TMA cannot read first; see gemm/pack.h
//   cluster            CTAs that share rows of A or of B load a part of them each and multicast it
//   warpgroup 0        producer: one thread starts the loads of all tiles, one after the other; see sm90_persistent.h
//   warpgroups 1, 2    consumers: the CTA's first tile goes to consumer 0, the next to consumer 1, and so on in turn;
//                      each multiplies the stages of its tiles and skips those of the other's
//   full[s]            1 arrival, the producer's, and the stage's bytes: the consumer whose tile it is waits for them
//   empty[s]           1 arrival of every warp of that consumer, in every CTA of the cluster: producers wait for them
//   turn[c]            1 arrival of every warp of the other consumer: it has multiplied its tile, consumer c may begin
//   epilogue[c]        staging of consumer c, a part for each warp: no barrier; see gemm/epilogue_sm90.h
//   landed[c]          of what consumer c's epilogue reads ahead, a barrier for each warp; see gemm/epilogue_ahead.h
//   cluster barrier    first: every CTA's mbarriers are there; last: no multicast or arrival meets a CTA that has gone
#pragma once

#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue_sm90.h"
#include "gemm/order.h"
#include "gemm/pack.h"
#include "gemm/sm90_persistent.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_traits_sm90.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

template <class Gemm, Order kOrder, Stores kStores = Stores::others>
MOYE_KERNEL(Gemm::kThreads)
sm90_pingpong_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT PersistentParams const params) {
  Gemm::template run<kOrder, kStores>(args, params);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_pingpong)
struct Gemm<kConfig> : PacksOperands<kConfig> {
  using Element = ElementOfA<kConfig.dtype>;  // b's has as many bytes
  using Sum = typename Accumulator<kConfig.accumulator>::Sum;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kClusterM = kConfig.cluster.m, kClusterN = kConfig.cluster.n, kCluster = kClusterM * kClusterN;
  static constexpr bool kPacks = kPacksOperands<kConfig>;
  static_assert(kConfig.alignment == 16 || kPacks, "TMA needs addresses and strides of 16 bytes");
  static_assert(!is_float8(kConfig.dtype) || kConfig.accumulator == Dtype::f32_fast, "no registers for promoted sums");

  static constexpr int kConsumers = 2;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static_assert(kBlkM % 64 == 0 && kBlkN <= 256, "whole wgmmas");
  // 64 K registers: 168 per thread with 384 threads.
  static constexpr int kSums = kBlkM * kBlkN / 128;  // of a thread
  static constexpr bool kManySums = kSums >= 128;
  static constexpr int kProducerRegisters = kManySums ? 24 : 40;
  static constexpr int kConsumerRegisters = kManySums ? 240 : 232;

  // Beside the sums, and what names the CTAs of a cluster, there are no registers for it.
  static constexpr bool kDerives = kCluster == 1 && !is_same<Sum, int32_t>;
  static constexpr bool kHasScales = kCluster == 1 && kBlkN != 256;
  // The cotangents of a layer with a gate: as TMA writes them, where registers are left.
  static constexpr bool kTakesGate = kDerives && has_room_for_gate(kConsumerRegisters, kSums, kBlkN);

  template <Order kOrder>
  struct Operands : TmaOperands<kConfig, kOrder, ClusterMN{1, 1}, kConfig.cluster> {};
  static constexpr int kBoxes = staging_boxes<kConfig>(kConsumers, {kBlkM, kBlkN});
  static constexpr bool kLoadsAhead = can_load_ahead(kConfig.accumulator, kConsumerRegisters, kSums, kBlkN, kBoxes);
  using Epilogue =
      WarpgroupEpilogue<kBlkN, kConfig.accumulator, kBoxes, kConsumerRegisters, kTakesPair<kConfig>, kDerives,
                        kHasScales, kTakesGate, /*kLooksAhead=*/true, /*kScatters=*/false, kLoadsAhead>;

  struct SharedStorage {
    OperandStages<kConfig> operands;
    typename Epilogue::SharedStorage epilogue[kConsumers];
    TmaPipeline<kStages, kCluster> pipeline;
    alignas(8) uint64_t turn[kConsumers];
    uint64_t landed[kConsumers][4];
  };

  template <Order kOrder, Stores kStores>
  static MOYE_DEVICE void run(GemmArgs const& args, PersistentParams const& params) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x);
    if (thread == 0) {
      prefetch_maps(params);
      smem.pipeline.init(/*warps=*/4);
      for (int consumer = 0; consumer < kConsumers; ++consumer) {
        mbarrier_init(&smem.turn[consumer], 4);
        init_landed(smem.landed[consumer]);
      }
      fence_mbarrier_init();
    }
    sync_cluster_behind_init<kCluster>();
    // The kernel ahead may still run up to here. A producer that loads early waits itself.
    if (!kLoadsEarly<kConfig> || thread >= 128) griddepcontrol_wait();
    if (thread < 128) {
      warpgroup_reg_dealloc<kProducerRegisters>();
      if (thread < 32) {
        if (elect_one_sync())
          produce<Operands<kOrder>, kMayBePair<kStores>>(args, params, smem.operands, smem.pipeline);
        sync_warp();
      }
    } else {
      warpgroup_reg_alloc<kConsumerRegisters>();
      consume<kOrder, kStores>(args, params, smem, warpgroup_id() - 1, thread % 128);
    }
    if constexpr (kCluster > 1) cluster_sync();
  }

  /// One warpgroup; thread: in it.
  template <Order kOrder, Stores kStores>
  static MOYE_DEVICE void consume(GemmArgs const& args, PersistentParams const& params, SharedStorage& smem,
                                  int consumer, int thread) {
    int const lane = thread % 32, k_tiles = params.grid.k;
    Tensor sA = make_tensor(make_smem_ptr(smem.operands.a), Operands<kOrder>::A::smem_layout());  // (BLK_M,BLK_K,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), Operands<kOrder>::B::smem_layout());  // (ROWS_N,BLK_K,PIPE)
    typename Operands<kOrder>::TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    auto const thr_mma_b = typename Operands<kOrder>::TiledMmaOfB{}.get_slice(thread);
    Tensor tCrA = thr_mma.partition_fragment_A(sA);                                  // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCrB = thr_mma_b.partition_fragment_B(sB);                                // (MMA,MMA_N,MMA_K,PIPE)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)

    PipelineState<kStages> read;
    read += consumer * k_tiles;              // the other consumer's first tile comes before consumer 1's
    uint32_t turn = uint32_t(1 - consumer);  // the phase bit: consumer 0 begins, without a wait
    auto const row = [&](int atom) { return atom * 64; };
    for (TileCoord tile : TileScheduler<kClusterM, kClusterN>(params.grid, consumer, kConsumers)) {
      if (k_tiles == 0) clear(tCrC);
      warpgroup_fence_operand(tCrC);
      tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
      // What the epilogue reads is under way while the other consumer still multiplies.
      Epilogue::template load_ahead<kBlkM, kBlkN, kSums, kStores>(args, params.store, tile, row, 0, thread,
                                                                  smem.landed[consumer], smem.epilogue[consumer]);
      // The other consumer has multiplied its tile: the tensor cores are this one's.
      mbarrier_wait(&smem.turn[consumer], turn);
      turn ^= 1;
      PipelineState<kStages> last;  // the stage whose wgmma may be in flight
      MOYE_NO_UNROLL
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++read) {
        // The stage has landed: multiply it.
        smem.pipeline.consumer_wait(read);
        warpgroup_arrive();
        gemm(tiled_mma, tCrA(_, _, _, read.index()), tCrB(_, _, _, read.index()), tCrC);
        warpgroup_commit_group();
        // The wgmma before is done: its stage may be filled again.
        warpgroup_wait_group<1>();
        if (k_tile > 0) smem.pipeline.consumer_release(last, lane);
        last = read;
        tiled_mma.accumulate_ = GMMA::ScaleOut::One;
      }
      // All wgmmas of the tile are started: the other consumer may begin.
      sync_warp();  // without a wgmma, lanes may still wait for this turn, whose phase the next but one looks like
      if (lane == 0) mbarrier_arrive(&smem.turn[1 - consumer]);
      warpgroup_wait_group<0>();
      warpgroup_fence_operand(tCrC);
      if (k_tiles > 0) smem.pipeline.consumer_release(last, lane);
      read += k_tiles;  // the other consumer's tile

      // Store the tile, while the other consumer multiplies.
      Epilogue::template store<kBlkM, kBlkN, kStores>(args, params.store, tile, tCrC, smem.epilogue[consumer], row, 0,
                                                      thread, smem.landed[consumer]);
    }
    Epilogue::finish(thread);
  }

  template <Order kOrder, Stores kStores = Stores::others>
  static constexpr auto* kernel() {
    return sm90_pingpong_kernel<Gemm, kOrder, kStores>;
  }
  static Status prepare_short() { return prepare_short_kernels<Gemm>(); }

  static constexpr unsigned kCompiledOrders = Packing<Element>::kAnyMajor ? kAllOrders : order_bits(Order::NT);

  static Status launch(GemmArgs const& args, StreamHandle stream) {
    GemmArgs packed = args;
    if constexpr (kPacks) {
      if (Status status = Packing<Element>(args).launch(&packed, stream); !status.ok()) return status;
    }
    return launch_clusters<kConfig>(packed, stream);
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .consumers = kConsumers,
                                         .consumer_tile = {kBlkM, kBlkN},  // each has a tile of its own
                                         .min_arch = 90,
                                         .max_arch = 90,  // sm_90a's code
                                         .orders = kPacks ? kAllOrders : kCompiledOrders,
                                         .any_stride = kPacks,
                                         .derives = kDerives,
                                         .takes_gate = kTakesGate,
                                         .takes_pair = kTakesPair<kConfig>,
                                         .scales = Epilogue::template kScales<kSums>};
};

}  // namespace moye
