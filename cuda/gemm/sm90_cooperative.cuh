// sm90_cooperative: D = A * B^T on wgmma, fed by TMA through a ring of mbarriers, persistent and warp-specialized.
//   A (M,K), B (N,K), D (M,N); 16-bit operands in any order, the others contiguous along k; batch: outermost tile index
//   alignment 16 bytes; or that of one element, and operands that TMA cannot read are copied first, see gemm/pack.h
//   cluster            CTAs that share rows of A or of B load a part of them each and multicast it
//   warpgroup 0        producer: one thread starts the loads and runs ahead into the next tile; see sm90_persistent.h
//   warpgroups 1, 2..  consumers: all of them multiply every stage, each its own rows (or columns) of the tile
//   full[s]            1 arrival, the producer's, and the stage's bytes: consumers wait for them
//   empty[s]           1 arrival of every consumer warp of every CTA of the cluster: producers wait for them
//   f32_blocks         blocks of 128 along k have scales, by which consumers multiply each stage's sums: block_scales.h
//   epilogue[c]        staging of consumer c, a part for each warp: no barrier; see gemm/epilogue_sm90.h
//   landed[c]          of what consumer c's epilogue reads ahead, a barrier for each warp; see gemm/epilogue_ahead.h
//   cluster barrier    first: every CTA's mbarriers are there; last: no multicast or arrival meets a CTA that has gone
#pragma once

#include "gemm/block_scales.h"
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

/// Where k's blocks have scales, these are beside all else.
struct BlockScaledParams : PersistentParams {
  BlockScales scales;
};

template <class Gemm, Order kOrder, Stores kStores = Stores::others>
MOYE_KERNEL(Gemm::kThreads)
sm90_cooperative_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT typename Gemm::Params const params) {
  Gemm::template run<kOrder, kStores>(args, params);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_cooperative)
struct Gemm<kConfig> : PacksOperands<kConfig> {
  using Element = ElementOfA<kConfig.dtype>;  // b's has as many bytes
  using Sum = typename Accumulator<kConfig.accumulator>::Sum;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kClusterM = kConfig.cluster.m, kClusterN = kConfig.cluster.n, kCluster = kClusterM * kClusterN;
  static constexpr bool kPacks = kPacksOperands<kConfig>;
  static_assert(kConfig.alignment == 16 || kPacks, "TMA needs addresses and strides of 16 bytes");
  // The tensor core keeps some 14 bits of the sums of 8-bit floats: those of 128 products are added in f32, unless the
  // config sums in f32_fast.
  static constexpr bool kFloat8 = is_float8(kConfig.dtype);
  static constexpr bool kPromoted = kFloat8 && kConfig.accumulator != Dtype::f32_fast;
  static constexpr bool kBlockScales = kConfig.accumulator == Dtype::f32_blocks;
  using Params = Conditional<kBlockScales, BlockScaledParams, PersistentParams>;
  static_assert(kFloat8 || (kConfig.accumulator != Dtype::f32_fast && !kBlockScales), "sums of 8-bit floats");
  // A CTA of a cluster along n might have columns of no block.
  static_assert(!kBlockScales || (kBlkN == kScaledBlock && kBlkK == kScaledBlock && kClusterN == 1 && !kPacks),
                "a tile is of one block");

  // Consumers side by side along m, 64 rows each; a tile of 64 rows is shared along n.
  static constexpr int kConsumersM = kBlkM % 192 == 0 ? 3 : kBlkM == 64 ? 1 : 2;
  static constexpr int kConsumersN = kBlkM == 64 ? 2 : 1;
  static constexpr int kConsumers = kConsumersM * kConsumersN;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static constexpr int kAtomN = kBlkN / kConsumersN;  // columns of one wgmma
  static_assert(kBlkM % (64 * kConsumersM) == 0 && kAtomN <= 256, "whole wgmmas");
  static_assert(kConsumersN == 1 || kAtomN % 64 == 0, "columns side by side: each consumer's are whole boxes of B");
  // 64 K registers: 168 per thread with 384 threads, 128 with 512.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;

  static constexpr int kSums = kBlkM / kConsumersM * kAtomN / 128;  // of a thread

  static constexpr bool kDerives = !is_same<Sum, int32_t>;  // of 16-bit operands and floats
  // The cotangents of a layer with a gate: as TMA writes them, where registers are left.
  static constexpr bool kTakesGate =
      sizeof(Element) == 2 && !kPacks && has_room_for_gate(kConsumerRegisters, kSums, kAtomN);

  // What names the CTAs of a cluster, beside integers that are converted one by one, or beside one way more.
  static constexpr bool kIsTight = kTakesGate && kSums >= 128 && kClusterM > 1;
  static constexpr int kClusterRegisters = is_same<Sum, int32_t> && kCluster > 1 ? 8 : kIsTight ? 2 : 0;

  template <Order kOrder>
  struct Operands : TmaOperands<kConfig, kOrder, ClusterMN{kConsumersM, kConsumersN}, kConfig.cluster> {};
  static constexpr int kFinishingRegisters = kConsumerRegisters - (kPromoted ? kSums : 0) - kClusterRegisters;
  static constexpr int kBoxes = staging_boxes<kConfig>(kConsumers, {kBlkM / kConsumersM, kAtomN});
  static constexpr bool kLoadsAhead = can_load_ahead(kConfig.accumulator, kFinishingRegisters, kSums, kAtomN, kBoxes);
  using Epilogue = WarpgroupEpilogue<kAtomN, kConfig.accumulator, kBoxes, kFinishingRegisters, kTakesPair<kConfig>,
                                     kDerives, /*kHasScales=*/true, kTakesGate, /*kLooksAhead=*/true,
                                     /*kScatters=*/false, kLoadsAhead>;
  using Pipeline = TmaPipeline<kStages, kCluster>;

  struct SharedStorage {
    OperandStages<kConfig> operands;
    typename Epilogue::SharedStorage epilogue[kConsumers];
    Pipeline pipeline;
    alignas(8) uint64_t landed[kConsumers][4];
  };

  template <Order kOrder, Stores kStores>
  static MOYE_DEVICE void run(GemmArgs const& args, Params const& params) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x);
    if (thread == 0) {
      prefetch_maps(params);
      smem.pipeline.init(/*warps=*/4 * kConsumers);
      for (auto& landed : smem.landed) init_landed(landed);
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
      consume<kOrder, kStores>(args, params, smem, thread - 128);
    }
    if constexpr (kCluster > 1) cluster_sync();
  }

  /// Three or two warpgroups; thread: among them.
  template <Order kOrder, Stores kStores>
  static MOYE_DEVICE void consume(GemmArgs const& args, Params const& params, SharedStorage& smem, int thread) {
    int const consumer = warpgroup_id() - 1, consumer_m = consumer % kConsumersM, consumer_n = consumer / kConsumersM;
    int const lane = thread % 32;
    Tensor sA = make_tensor(make_smem_ptr(smem.operands.a), Operands<kOrder>::A::smem_layout());  // (BLK_M,BLK_K,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), Operands<kOrder>::B::smem_layout());  // (ROWS_N,BLK_K,PIPE)
    typename Operands<kOrder>::TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(consumer * 128);
    auto const thr_mma_b = typename Operands<kOrder>::TiledMmaOfB{}.get_slice(consumer * 128);
    Tensor tCrA = thr_mma.partition_fragment_A(sA);                                  // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCrB = thr_mma_b.partition_fragment_B(sB);                                // (MMA,MMA_N,MMA_K,PIPE)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)

    PipelineState<kStages> read;
    for (TileCoord tile : TileScheduler<kClusterM, kClusterN>(params.grid)) {
      // All consumers multiply this tile.
      auto const row = [&](int atom) { return (atom * kConsumersM + consumer_m) * 64; };
      auto const load_ahead = [&] {
        Epilogue::template load_ahead<kBlkM, kBlkN, kSums, kStores>(args, params.store, tile, row, consumer_n * kAtomN,
                                                                    thread % 128, smem.landed[consumer],
                                                                    smem.epilogue[consumer]);
      };
      if constexpr (kBlockScales) {
        auto const multiply_by = [&](auto of_columns) {
          constexpr bool kOfColumns = decltype(of_columns)::value;
          ThreadScales<kBlkM / kConsumersM / 64, kAtomN, kOfColumns> scales(
              params.scales, args, tile.batch,
              [&](int atom) { return tile.m * kBlkM + row(atom) + thread % 128 / 32 * 16; },
              tile.n * kBlkN + consumer_n * kAtomN, lane);
          multiply_promoted(tiled_mma, tCrA, tCrB, tCrC, scales, params.grid.k, smem.pipeline, read, lane, load_ahead);
        };
        params.scales.of_columns ? multiply_by(C<true>{}) : multiply_by(C<false>{});
      } else if constexpr (kPromoted) {
        NoScales none;
        multiply_promoted(tiled_mma, tCrA, tCrB, tCrC, none, params.grid.k, smem.pipeline, read, lane, load_ahead);
      } else {
        multiply(tiled_mma, tCrA, tCrB, tCrC, params.grid.k, smem.pipeline, read, lane, load_ahead);
      }

      // Each stores its part, while the producer loads for the next tile.
      Epilogue::template store<kBlkM, kBlkN, kStores>(args, params.store, tile, tCrC, smem.epilogue[consumer], row,
                                                      consumer_n * kAtomN, thread % 128, smem.landed[consumer]);
    }
    Epilogue::finish(thread);
  }

  /// tCrC = the products of `k_tiles` stages from `read` on. One wgmma is in flight while the next is started.
  /// load_ahead(): what the epilogue reads, under way while the tile is multiplied.
  template <class TiledMma, class A, class B, class C, class LoadAhead>
  static MOYE_DEVICE void multiply(TiledMma& tiled_mma, A const& tCrA, B const& tCrB, C& tCrC, int k_tiles,
                                   Pipeline& pipeline, PipelineState<kStages>& read, int lane,
                                   LoadAhead const& load_ahead) {
    if (k_tiles == 0) clear(tCrC);
    // Between tiles, or LLVM carries the sums as integers and ptxas waits for every wgmma (C7517).
    warpgroup_fence_operand(tCrC);
    tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
    PipelineState<kStages> last;  // the stage whose wgmma may be in flight
    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++read) {
      // The stage has landed: multiply it.
      pipeline.consumer_wait(read);
      warpgroup_arrive();
      gemm(tiled_mma, tCrA(_, _, _, read.index()), tCrB(_, _, _, read.index()), tCrC);
      warpgroup_commit_group();
      if (k_tile == 0) load_ahead();
      // The wgmma before is done: its stage may be filled again.
      warpgroup_wait_group<1>();
      if (k_tile > 0) pipeline.consumer_release(last, lane);
      last = read;
      tiled_mma.accumulate_ = GMMA::ScaleOut::One;
    }
    warpgroup_wait_group<0>();
    warpgroup_fence_operand(tCrC);
    if (k_tiles > 0) pipeline.consumer_release(last, lane);
  }

  /// The same with a second set of registers: every stage's sums begin at zero and are added to tCrC by FADDs, or with
  /// scales by FFMAs. The tensor core has the other warpgroup's wgmma meanwhile.
  template <class TiledMma, class A, class B, class C, class Scales, class LoadAhead>
  static MOYE_DEVICE void multiply_promoted(TiledMma& tiled_mma, A const& tCrA, B const& tCrB, C& tCrC, Scales& scales,
                                            int k_tiles, Pipeline& pipeline, PipelineState<kStages>& read, int lane,
                                            LoadAhead const& load_ahead) {
    static_assert(kBlkK == 128, "promotion is by stage");
    Tensor tCrStage = make_fragment_like(tCrC);  // (MMA,MMA_M,MMA_N)
    clear(tCrC);
    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++read) {
      // Scales are on their way while the stage lands and is multiplied.
      scales.begin(k_tile, k_tiles);
      // The stage has landed: multiply it by itself.
      pipeline.consumer_wait(read);
      warpgroup_fence_operand(tCrStage);
      warpgroup_arrive();
      tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
      gemm(tiled_mma, tCrA(_, _, _, read.index()), tCrB(_, _, _, read.index()), tCrStage);
      warpgroup_commit_group();
      if (k_tile == 0) load_ahead();
      warpgroup_wait_group<0>();
      warpgroup_fence_operand(tCrStage);
      // It may be filled again, while its sums are added.
      pipeline.consumer_release(read, lane);
      scales.add(tCrC, tCrStage);
    }
  }

  template <Order kOrder, Stores kStores = Stores::others>
  static constexpr auto* kernel() {
    return sm90_cooperative_kernel<Gemm, kOrder, kStores>;
  }
  static Status prepare_short() { return prepare_short_kernels<Gemm>(); }

  static constexpr unsigned kCompiledOrders = Packing<Element>::kAnyMajor ? kAllOrders : order_bits(Order::NT);

  static Status launch(BlockScaledArgs const& args, StreamHandle stream)
    requires(kBlockScales)
  {
    BlockScaledParams params{};
    params.scales = BlockScales::of(args);
    return launch_clusters<kConfig>(args.gemm, args.gemm, /*parts=*/1, stream, params);
  }

  static Status launch(GemmArgs const& args, StreamHandle stream)
    requires(!kBlockScales)
  {
    GemmArgs packed = args;
    if constexpr (kPacks) {
      if (Status status = Packing<Element>(args).launch(&packed, stream); !status.ok()) return status;
    }
    return launch_clusters<kConfig>(packed, stream);
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .consumers = kConsumers,
                                         .consumer_tile = {kBlkM / kConsumersM, kAtomN},
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
