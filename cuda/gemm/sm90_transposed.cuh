// sm90_transposed: D^T = B A^T of operands that wgmma cannot read where they lie: 32 bits, B contiguous along n.
//   A (M,K) along k or m, B (N,K) along n, D (M,N); orders NN and TN; batch: outermost tile index
//   B          the tensor core's first operand, in registers: threads read it across the rows of a stage, 8 bytes each
//   A          its second one, in shared memory, which has to lie along k: where it lies along m, warps turn each stage
//   warpgroup 0, warp 0     producer: one thread starts the loads of all tiles; see sm90_persistent.h
//   warpgroup 0, warps 1-3  order TN: turn the boxes of A, each those of every third stage, in place
//   warpgroups 1, 2         consumers: each has 64 columns of D. While one loads registers, the other multiplies
//   full[s]    1 arrival, the producer's, and the stage's bytes: consumers wait for them, and who turns the stage
//   turned[s]  1 arrival, of the warp that has turned it; order TN: consumers wait for it
//   empty[s]   1 arrival of every consumer warp: the producer waits for them
//   sums       of a thread: 2 neighbours along n in rows of D. They are stored as they are
#pragma once

#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue_across.h"
#include "gemm/order.h"
#include "gemm/sm90_persistent.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/store.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_traits_sm90.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

struct TransposedParams : PersistentParams {
  GemmArgs stored;  // of d, or of the sums of k's parts, a matrix for each part of each matrix of d
};

template <class Gemm, Order kOrder, Stores kStores = Stores::others>
MOYE_KERNEL(Gemm::kThreads)
sm90_transposed_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TransposedParams const params) {
  Gemm::template run<kOrder, kStores>(args, params);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_transposed)
struct Gemm<kConfig> {
  using Element = ElementOfA<kConfig.dtype>;
  static_assert(sizeof(Element) == 4 && kConfig.alignment == 16, "others are read in any order");
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kStages = kConfig.stages;
  static_assert(kConfig.cluster.m * kConfig.cluster.n == 1 && kBlkN == 128, "consumers have 64 columns each");

  static constexpr int kConsumers = 2, kTurners = 3;  // warpgroups, warps
  static constexpr int kThreads = 128 * (1 + kConsumers);
  // 64 K registers: 168 per thread with 384 threads.
  template <Order kOrder>
  static constexpr bool kTurns = kMajorOfA<kOrder> == Major::mn;
  template <Order kOrder>
  static constexpr int kProducerRegisters = kTurns<kOrder> ? 88 : 40;
  template <Order kOrder>
  static constexpr int kConsumerRegisters = kTurns<kOrder> ? 208 : 232;

  template <Order kOrder>
  struct Operands {
    using A = TmaOperand<Element, kMajorOfA<kOrder>, kBlkM, kStages, 1>;
    using B = TmaOperand<Element, Major::mn, kBlkN, kStages, 1>;
    static constexpr uint32_t kStageBytes = A::kStageBytes + B::kStageBytes;
  };
  // Of A as consumers read it, whatever its order was.
  using TurnedA = TmaOperand<Element, Major::k, kBlkM, kStages, 1>;
  static constexpr int kBoxRows = 128 / int(sizeof(Element));  // of A in a box, as many as a box has along k
  static_assert(kBlkK == kBoxRows && kBlkM % kBoxRows == 0, "boxes are squares: a turned one takes the place of it");
  static constexpr int kBoxes = kBlkM / kBoxRows;  // of A in a stage

  // Of 128 rows of D^T, columns of D: where row i of a warpgroup's 64 lies. A lane's two rows are neighbours, and the
  // 16 lanes that read together, rows 0 to 3 at four k, find all of them in different banks.
  using Columns = Layout<Shape<_2, _2, _2, _2, _2, _2, _2>, Stride<_16, _2, _4, _1, _8, _32, _64>>;
  using TiledMma = decltype(make_tiled_mma(SM90_WGMMA_RS<kBlkM, float, Element, Element>{}, Layout<Shape<_2, _1, _1>>{},
                                           Tile<Columns, Underscore, Underscore>{}));

  struct SharedStorage {
    OperandStages<kConfig> operands;
    TmaPipeline<kStages> pipeline;
    alignas(8) uint64_t turned[kStages];
  };

  using Epilogue = AcrossEpilogue<kBlkM, kBlkN, Columns>;
  static constexpr int kSums = Epilogue::kSums;

  template <Order kOrder, Stores kStores>
  static MOYE_DEVICE void run(GemmArgs const& args, TransposedParams const& params) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x);
    if (thread == 0) {
      prefetch_maps(params.maps);
      init_barriers(smem);
    }
    sync_threads();
    griddepcontrol_wait();  // the kernel ahead may still run up to here
    if (thread < 128) {
      warpgroup_reg_dealloc<kProducerRegisters<kOrder>>();
      if (thread < 32) {
        if (elect_one_sync())
          produce<Operands<kOrder>, /*kMayBePair=*/false>(args, params, smem.operands, smem.pipeline);
        sync_warp();
      } else if constexpr (kTurns<kOrder>) {
        int64_t stages = 0;
        for ([[maybe_unused]] TileCoord const tile : TileScheduler<1, 1>(params.grid)) stages += params.grid.k;
        turn_stages<kOrder>(stages, smem, thread / 32 - 1, thread % 32);
      }
    } else {
      warpgroup_reg_alloc<kConsumerRegisters<kOrder>>();
      consume<kOrder, kStores>(args, params, smem, thread - 128);
    }
  }

  /// One thread.
  static MOYE_DEVICE void init_barriers(SharedStorage& smem) {
    smem.pipeline.init(/*warps=*/4 * kConsumers);
    for (int stage = 0; stage < kStages; ++stage) mbarrier_init(&smem.turned[stage], 1);
    fence_mbarrier_init();
  }

  /// One warp of kTurners: every third stage. A box holds as many rows as columns, so that what is read of it fits in
  /// its place, turned. A lane has a row of it.
  template <Order kOrder>
  static MOYE_DEVICE void turn_stages(int64_t stages, SharedStorage& smem, int warp, int lane) {
    using A = typename Operands<kOrder>::A;
    static_assert(kStages % kTurners == 0, "a warp sees every phase of its mbarriers");
    int const row = lane % kBoxRows;
    PipelineState<kStages> read;
    read += warp;
    MOYE_NO_UNROLL
    for (int64_t stage = warp; stage < stages; stage += kTurners, read += kTurners) {
      smem.pipeline.consumer_wait(read);
      MOYE_NO_UNROLL
      for (int box = 0; box < kBoxes; ++box) {
        Element* const boxes = A::stage(smem.operands.a, read.index()) + box * kBoxRows * kBlkK;
        Tensor from = make_tensor(make_smem_ptr(boxes), A::smem_layout())(row, _, _0{});      // (BLK_K)
        Tensor to = make_tensor(make_smem_ptr(boxes), TurnedA::smem_layout())(row, _, _0{});  // (BLK_K)
        Row<Element, 4> vectors[kBlkK / 4];                                                   // of the row
        MOYE_UNROLL
        for (int k = 0; k < kBlkK; ++k) vectors[k / 4].elements[k % 4] = from(k);
        sync_warp();  // all of the box has been read
        MOYE_UNROLL
        for (int i = 0; i < kBlkK / 4; ++i)
          store_shared(detail::bit_cast<uint128_t>(vectors[i]), *reinterpret_cast<uint128_t*>(&to(i * 4)));
      }
      fence_proxy_async_shared_cta();  // wgmma reads it
      sync_warp();
      if (lane == 0) mbarrier_arrive(&smem.turned[read.index()]);
    }
  }

  /// Two warpgroups; thread: among them.
  template <Order kOrder, Stores kStores>
  static MOYE_DEVICE void consume(GemmArgs const& args, TransposedParams const& params, SharedStorage& smem,
                                  int thread) {
    Tensor tCrC = partition_fragment_C(TiledMma{}, Shape<Int<kBlkN>, Int<kBlkM>>{});  // (MMA,MMA_N,MMA_M)
    Multiply<kOrder> multiply(smem, thread);
    PipelineState<kStages> read;
    for (TileCoord const tile : TileScheduler<1, 1>(params.grid)) {
      multiply(params.grid.k, read, tCrC);
      // While the producer loads for the next tile.
      Epilogue::template store<kStores>(args, params.stored, params.store.way, tile, tCrC, thread);
    }
  }

  /// Two warpgroups: the products of stages. What does not depend on the stage is computed once.
  template <Order kOrder>
  struct Multiply {
    using B = typename Operands<kOrder>::B;
    static constexpr int kSteps = kBlkK / 8;  // MMA_K
    SharedStorage& smem;
    int lane, first[2];                                                                // first: where the lane reads
    decltype(make_tensor<Element>(Shape<Shape<_2, _2>, _1, Int<kSteps>, _2>{})) tCrB;  // (MMA,MMA_N,MMA_K,2)
    decltype(TiledMma{}.get_slice(0).partition_fragment_B(make_tensor(
        make_smem_ptr(static_cast<Element*>(nullptr)), TurnedA::smem_layout()))) tCrA;  // (MMA,MMA_M,MMA_K,PIPE)

    MOYE_DEVICE Multiply(SharedStorage& storage, int thread)
        : smem(storage),
          lane(thread % 32),
          tCrA(TiledMma{}.get_slice(thread).partition_fragment_B(
              make_tensor(make_smem_ptr(storage.operands.a), TurnedA::smem_layout()))) {
      Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), B::smem_layout());  // (BLK_N,BLK_K,PIPE)
      Tensor tCsB = TiledMma{}.get_slice(thread).partition_A(sB);                 // (MMA,MMA_N,MMA_K,PIPE)
      static_assert(decltype(size<2>(tCsB))::value == kSteps);
      // Stages, and what a wgmma multiplies, lie whole periods of the swizzle apart.
      MOYE_UNROLL
      for (int half = 0; half < 2; ++half) {
        first[half] = int(&tCsB(make_coord(_0{}, half), _0{}, _0{}, _0{}) - smem.operands.b);
        MOYE_COMPUTED_HERE("+r", first[half]);
      }
    }

    /// tCrC = the products of `k_tiles` stages from `read` on.
    template <class Sums>
    MOYE_DEVICE void operator()(int k_tiles, PipelineState<kStages>& read, Sums& tCrC) {
      // The stage has landed, and lies along k: load what lies along n into one half of the registers.
      auto const load_b = [&](PipelineState<kStages> const& stage, int to) {
        smem.pipeline.consumer_wait(stage);
        if constexpr (kTurns<kOrder>) mbarrier_wait(&smem.turned[stage.index()], stage.phase());
        MOYE_UNROLL
        for (int step = 0; step < kSteps; ++step) {
          MOYE_UNROLL
          for (int half = 0; half < 2; ++half) {
            Element const* const from = B::stage(smem.operands.b, stage.index()) + first[half] + step * 8 * kBoxRows;
            auto const pair = detail::bit_cast<Row<Element, 2>>(*reinterpret_cast<uint64_t const*>(from));
            MOYE_UNROLL
            for (int i = 0; i < 2; ++i) tCrB(make_coord(i, half), _0{}, step, to) = pair.elements[i];
          }
        }
        sync_warp();  // all lanes have read it
      };

      TiledMma tiled_mma;
      if (k_tiles == 0) clear(tCrC);
      warpgroup_fence_operand(tCrC);
      tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
      if (k_tiles > 0) load_b(read, 0);
      PipelineState<kStages> last;  // the stage whose wgmmas may be in flight
      MOYE_NO_UNROLL
      for (int k_tile = 0; k_tile < k_tiles; k_tile += 2) {
        MOYE_UNROLL
        for (int i = 0; i < 2; ++i) {
          if (k_tile + i == k_tiles) break;
          warpgroup_fence_operand(tCrB);
          warpgroup_arrive();
          gemm(tiled_mma, tCrB(_, _, _, i), tCrA(_, _, _, read.index()), tCrC);
          warpgroup_commit_group();
          tiled_mma.accumulate_ = GMMA::ScaleOut::One;
          // The wgmmas before are done: their stage may be filled again, and their registers.
          warpgroup_wait_group<1>();
          if (k_tile + i > 0) smem.pipeline.consumer_release(last, lane);
          last = read;
          ++read;
          if (k_tile + i + 1 < k_tiles) load_b(read, 1 - i);
        }
      }
      warpgroup_wait_group<0>();
      warpgroup_fence_operand(tCrC);
      if (k_tiles > 0) smem.pipeline.consumer_release(last, lane);
    }
  };

  template <Order kOrder, Stores kStores = Stores::others>
  static constexpr auto* kernel() {
    return sm90_transposed_kernel<Gemm, kOrder, kStores>;
  }
  static Status prepare_short() { return prepare_short_kernels<Gemm>(); }

  // Beside warps that turn A, threads have no registers for 128 sums each.
  static constexpr unsigned kCompiledOrders = kBlkM <= 128 ? order_bits(Order::NN, Order::TN) : order_bits(Order::NN);

  /// Of a call that stores what `stored` says.
  static TransposedParams make_params(GemmArgs const& stored) {
    TransposedParams params = {};
    params.stored = stored;
    return params;
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) {
    return launch_clusters<kConfig>(args, args, /*parts=*/1, stream, make_params(args));
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .consumers = kConsumers,
                                         .consumer_tile = {kBlkM, kBlkN / kConsumers},
                                         .min_arch = 90,
                                         .max_arch = 90,  // sm_90a's code
                                         .orders = kCompiledOrders,
                                         .any_stride = false,
                                         .scales = true};
};

}  // namespace moye
