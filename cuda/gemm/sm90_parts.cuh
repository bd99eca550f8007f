// sm90_parts: D = A * B^T of f32 operands on wgmma: each is split into parts of bf16, which are multiplied in
// pairs.
//   A (M,K), B (N,K), D (M,N), in any order; alignment 4 bytes; batch: outermost tile index
//   first kernel       splits both operands: x = part 0 + part 1 / 2^8 + part 2 / 2^16, see split_f32 in gemm/pack.h.
//                      The parts lie side by side along k, in the workspace
//   second kernel      sm90_cooperative's roles and barriers; its producer and consumers go through k once for each
//                      pair of parts, in the order of PartPairs
//   turn[c]            1 arrival of each warp of the consumer before c: it has started all wgmmas of its turn
//   sums               of 256 products at most stay in the tensor core, which cuts off what f32 has no bits for; from
//                      there FADDs add them to a second set of registers. Pairs of equal weight follow one another, the
//                      lightest first; before each next weight the sums are divided by 2^8
// Six pairs or nine: an error of at most (K + 8) 2^-24 in units of the sum of |a| |b|. docs/precision.md has the proof.
// Subnormal numbers count, nearly as exactly, and infinity and NaN come out as they do in f32.
#pragma once

#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue_sm90.h"
#include "gemm/order.h"
#include "gemm/pack.h"
#include "gemm/sm90_cooperative.cuh"
#include "gemm/sm90_persistent.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/cluster.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/warp.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

/// Which parts are multiplied, in this order: those of weight 2^-8(a + b), the lightest first.
template <Dtype kDtype>
struct PartPairs {
  static constexpr int kParts = kDtype == Dtype::bf16x3 ? 2 : 3;
  static constexpr int kPairs = kDtype == Dtype::bf16x3 ? 3 : kDtype == Dtype::bf16x6 ? 6 : 9;
  static constexpr int kLightest = kDtype == Dtype::bf16x3 ? 1 : kDtype == Dtype::bf16x6 ? 2 : 4;  // a + b

  struct Masks {
    uint64_t a = 0, b = 0;    // 4 bits for each pair
    unsigned is_heavier = 0;  // bit i: pair i is heavier than the one before
  };
  static constexpr Masks kMasks = [] {
    Masks masks;
    int pair = 0;
    for (int sum = kLightest; sum >= 0; --sum) {
      if (sum < kLightest) masks.is_heavier |= 1u << pair;
      for (int a = 0; a < kParts; ++a) {
        int const b = sum - a;
        if (b < 0 || b >= kParts) continue;
        masks.a |= uint64_t(a) << (4 * pair);
        masks.b |= uint64_t(b) << (4 * pair);
        ++pair;
      }
    }
    return masks;
  }();

  static MOYE_DEVICE int part_of_a(int pair) { return int(kMasks.a >> (4 * pair) & 0xf); }
  static MOYE_DEVICE int part_of_b(int pair) { return int(kMasks.b >> (4 * pair) & 0xf); }
  static MOYE_DEVICE bool is_heavier(int pair) { return (kMasks.is_heavier >> pair & 1u) != 0; }
};

template <class Gemm, Order kOrder>
MOYE_KERNEL(Gemm::kThreads)
sm90_parts_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT PersistentParams const params) {
  Gemm::run(args, params);
}

/// The config that multiplies one pair of parts.
constexpr GemmConfig pair_config(GemmConfig config) {
  config.kernel = Kernel::sm90_cooperative;
  config.dtype = Dtype::bf16;
  config.alignment = 16;
  return config;
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_parts)
struct Gemm<kConfig> {
  using OfPair = Gemm<pair_config(kConfig)>;
  using Pairs = PartPairs<kConfig.dtype>;
  using Packed = Packing<float, Pairs::kParts>;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kConsumersM = OfPair::kConsumersM, kConsumersN = OfPair::kConsumersN;
  static constexpr int kConsumers = OfPair::kConsumers, kThreads = OfPair::kThreads;
  static constexpr int kAtomN = OfPair::kAtomN, kSums = kBlkM / kConsumersM * kAtomN / 128;
  static constexpr int kCluster = kConfig.cluster.m * kConfig.cluster.n;
  static constexpr int kTogether = 256 / kBlkK;  // k-tiles whose sums stay in the tensor core
  // Side by side along m each multiplies long enough to hide what the others add. Along n turns take longer than that.
  static constexpr bool kTakesTurns = kConsumersN == 1;
  static_assert(kBlkK == Packed::kPartsBlkK, "parts of whole k-tiles");
  static_assert(!kTakesTurns || kConfig.stages >= kTogether, "the others release no stage before their turns");

  template <Order kOrder>
  using Operands = typename OfPair::template Operands<Order::NT>;
  using Epilogue = WarpgroupEpilogue<kAtomN, kConfig.accumulator,
                                     staging_boxes<pair_config(kConfig)>(kConsumers, {kBlkM / kConsumersM, kAtomN}),
                                     OfPair::kConsumerRegisters - kSums, /*kPairs=*/false>;
  using Pipeline = typename OfPair::Pipeline;
  using Read = PipelineState<kConfig.stages>;

  struct SharedStorage {
    OperandStages<pair_config(kConfig)> operands;
    typename Epilogue::SharedStorage epilogue[kConsumers];
    Pipeline pipeline;
    alignas(8) uint64_t turn[kConsumers];
  };

  static MOYE_DEVICE void run(GemmArgs const& args, PersistentParams const& params) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x);
    if (thread == 0) {
      prefetch_maps(params);
      smem.pipeline.init(/*warps=*/4 * kConsumers);
      for (int consumer = 0; consumer < kConsumers; ++consumer) mbarrier_init(&smem.turn[consumer], 4);
      fence_mbarrier_init();
    }
    sync_cluster_behind_init<kCluster>();
    griddepcontrol_wait();  // the parts are there
    if (thread < 128) {
      warpgroup_reg_dealloc<OfPair::kProducerRegisters>();
      if (thread < 32) {
        if (elect_one_sync()) produce(args, params, smem);
        sync_warp();
      }
    } else {
      warpgroup_reg_alloc<OfPair::kConsumerRegisters>();
      consume(args, params, smem, thread - 128);
    }
    if constexpr (kCluster > 1) cluster_sync();
  }

  /// One thread: the loads of all tiles, pair after pair.
  static MOYE_DEVICE void produce(GemmArgs const& args, PersistentParams const& params, SharedStorage& smem) {
    if (params.maps.rank == 3) {
      produce<3>(args, params, smem);
    } else {
      produce<5>(args, params, smem);
    }
  }

  template <int kRank>
  static MOYE_DEVICE void produce(GemmArgs const& args, PersistentParams const& params, SharedStorage& smem) {
    using A = typename Operands<Order::NT>::A;
    using B = typename Operands<Order::NT>::B;
    auto const [multicast_a, multicast_b] = multicasts<kConfig.cluster>();
    int const k_tiles = params.grid.k;
    auto write = Pipeline::producer_start();
    for (TileCoord const tile : TileScheduler<kConfig.cluster.m, kConfig.cluster.n>(params.grid)) {
      OperandCoords const coords = operand_coords<kRank>(args, params.maps, tile);
      for (int pair = 0; pair < Pairs::kPairs; ++pair) {
        int const a = Pairs::part_of_a(pair) * k_tiles, b = Pairs::part_of_b(pair) * k_tiles;
        MOYE_NO_UNROLL
        for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++write) {
          // The consumers of all CTAs have released the stage: fill it, here and in the CTAs that share it.
          uint64_t* const full = smem.pipeline.producer_acquire(write, Operands<Order::NT>::kStageBytes);
          A::template load<kRank>(&params.maps.a, full, A::stage(smem.operands.a, write.index()), tile.m * kBlkM,
                                  (a + k_tile) * kBlkK, coords.a, multicast_a);
          B::template load<kRank>(&params.maps.b, full, B::stage(smem.operands.b, write.index()), tile.n * kBlkN,
                                  (b + k_tile) * kBlkK, coords.b, multicast_b);
        }
      }
    }
  }

  /// Three or two warpgroups; thread: among them.
  static MOYE_DEVICE void consume(GemmArgs const& args, PersistentParams const& params, SharedStorage& smem,
                                  int thread) {
    using A = typename Operands<Order::NT>::A;
    using B = typename Operands<Order::NT>::B;
    int const consumer = thread / 128, consumer_m = consumer % kConsumersM, consumer_n = consumer / kConsumersM;
    int const lane = thread % 32;
    Tensor sA = make_tensor(make_smem_ptr(smem.operands.a), A::smem_layout());  // (BLK_M,BLK_K,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), B::smem_layout());  // (BLK_N,BLK_K,PIPE)
    typename Operands<Order::NT>::TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor tCrA = thr_mma.partition_fragment_A(sA);                                  // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCrB = thr_mma.partition_fragment_B(sB);                                  // (MMA,MMA_N,MMA_K,PIPE)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)
    Tensor tCrD = make_fragment_like(tCrC);                                          // (MMA,MMA_M,MMA_N), tiles' sums

    Read read;
    [[maybe_unused]] uint32_t turn = consumer == 0 ? 1 : 0;  // the phase bit: consumer 0 begins, without a wait
    for (TileCoord tile : TileScheduler<kConfig.cluster.m, kConfig.cluster.n>(params.grid)) {
      clear(tCrD);
      NonFinite non_finite;
      for (int pair = 0; pair < Pairs::kPairs; ++pair) {
        if (Pairs::is_heavier(pair)) {
          MOYE_UNROLL
          for (int i = 0; i < size(tCrD); ++i) tCrD(i) *= 1.0f / 256;
          if (pair == Pairs::kPairs - 1) non_finite.take(tCrD);
        }
        MOYE_NO_UNROLL
        for (int k_tile = 0; k_tile < params.grid.k; k_tile += kTogether) {
          int const left = params.grid.k - k_tile, k_tiles = left < kTogether ? left : kTogether;
          warpgroup_fence_operand(tCrC);
          tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
          if constexpr (kTakesTurns) {
            // The other consumers have started their wgmmas: the tensor cores are this one's next.
            mbarrier_wait(&smem.turn[consumer], turn);
            turn ^= 1;
          }
          Read last;  // the stage whose wgmma may be in flight
          MOYE_NO_UNROLL
          for (int i = 0; i < k_tiles; ++i, ++read) {
            // The stage has landed: multiply it.
            smem.pipeline.consumer_wait(read);
            warpgroup_arrive();
            gemm(tiled_mma, tCrA(_, _, _, read.index()), tCrB(_, _, _, read.index()), tCrC);
            warpgroup_commit_group();
            // The wgmma before is done: its stage may be filled again.
            warpgroup_wait_group<1>();
            if (i > 0) smem.pipeline.consumer_release(last, lane);
            last = read;
            tiled_mma.accumulate_ = GMMA::ScaleOut::One;
          }
          // All are started: the next consumer may begin, and multiplies while this one adds.
          if (kTakesTurns && lane == 0) mbarrier_arrive(&smem.turn[(consumer + 1) % kConsumers]);
          warpgroup_wait_group<0>();
          warpgroup_fence_operand(tCrC);
          smem.pipeline.consumer_release(last, lane);
          MOYE_UNROLL
          for (int i = 0; i < size(tCrD); ++i) tCrD(i) += tCrC(i);
        }
      }
      non_finite.give_back(tCrD);

      // Each stores its part, while the producer loads for the next tile.
      auto const row = [&](int atom) { return (atom * kConsumersM + consumer_m) * 64; };
      Epilogue::template store<kBlkM, kBlkN>(args, params.store, tile, tCrD, smem.epilogue[consumer], row,
                                             consumer_n * kAtomN, thread % 128);
    }
    Epilogue::finish(thread);
  }

  /// A thread's sums that were infinite or NaN before the last pair, that of both parts 0. Where an operand is infinite
  /// or NaN, its other parts are zeros, and what they make of the sums is nothing: the last pair has it right. Where
  /// none is, sums have overflowed.
  struct NonFinite {
    static constexpr uint32_t kInf = 0x7f800000;
    uint32_t bits[ceil_div(kSums, 32)] = {};

    template <class Sums>
    MOYE_DEVICE void take(Sums& sums) {
      MOYE_UNROLL
      for (int i = 0; i < size(sums); ++i) {
        if (is_finite(sums(i))) continue;
        bits[i / 32] |= 1u << i % 32;
        sums(i) = 0;
      }
    }

    template <class Sums>
    MOYE_DEVICE void give_back(Sums& sums) const {
      MOYE_UNROLL
      for (int i = 0; i < size(sums); ++i) {
        uint32_t const sign = detail::bit_cast<uint32_t>(sums(i)) & 0x80000000;
        if ((bits[i / 32] >> i % 32 & 1u) != 0 && is_finite(sums(i))) sums(i) = detail::bit_cast<float>(sign | kInf);
      }
    }

   private:
    static MOYE_DEVICE bool is_finite(float x) { return (detail::bit_cast<uint32_t>(x) & kInf) != kInf; }
  };

  template <Order kOrder>
  static constexpr auto* kernel() {
    return sm90_parts_kernel<Gemm, kOrder>;
  }

  static constexpr unsigned kCompiledOrders = order_bits(Order::NT);  // of the parts

  static Status launch(GemmArgs const& args, StreamHandle stream) {
    GemmArgs parts = args;
    if (Status status = Packed(args).launch(&parts, stream); !status.ok()) return status;
    return launch_clusters<kConfig>(parts, args, /*parts=*/1, stream);
  }

  static Status prepare() { return Packed::prepare(); }

  static int64_t workspace_bytes(GemmArgs const& args) { return Packed(args).workspace_bytes(); }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .consumers = kConsumers,
                                         .consumer_tile = {kBlkM / kConsumersM, kAtomN},
                                         .min_arch = 90,
                                         .max_arch = 90,  // sm_90a's code
                                         .orders = kAllOrders,
                                         .any_stride = true,
                                         .derives = true,
                                         .scales = Epilogue::template kScales<kSums>};
};

}  // namespace moye
