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

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue.h"
#include "gemm/epilogue_sm90.h"
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
  static constexpr int kVector = 2;  // neighbours along n

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

  static constexpr int kSums = kBlkM / 2;  // of a thread

  /// What launch_clusters asks for. d is stored without a map, in words of two elements: the product alone, or
  /// activation(alpha * product + bias of its column); or element by element, whatever is finished.
  struct Epilogue {
    static Status make_params(StoreParams* params, GemmArgs const& stored) {
      using Words = TileEpilogue<float, kVector>;
      EpilogueArgs const& epilogue = stored.epilogue;
      bool const is_simple = Words::is_of_words(stored) && epilogue.c.data == nullptr &&
                             epilogue.residual.data == nullptr && epilogue.preactivation == nullptr &&
                             (epilogue.bias.data == nullptr || epilogue.bias.m_stride == 0) && !has_scales(epilogue);
      using Way = StoreParams::Way;
      bool const is_wide = is_plain(epilogue) && stored.d_dtype == Dtype::f32;
      params->way = !is_simple ? Way::elements : is_wide ? Way::wide : Way::activated;
      return {};
    }

    // Where a thread has more sums, a kernel that finishes all of them and nothing else has no registers for it.
    template <int kSumsOfThread>
    static MOYE_HOST_DEVICE constexpr bool has_kernel(Stores stores) {
      return !kOwnActivation && (stores == Stores::wide || (stores == Stores::activated && kSumsOfThread <= 64));
    }
  };

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
      constexpr bool kHasSimple = !Epilogue::template has_kernel<kSums>(Stores::activated);
      if constexpr (Epilogue::template has_kernel<kSums>(kStores)) {
        store_simple<kStores>(args, params, tile, tCrC, thread);
      } else if (kHasSimple && params.store.way == StoreParams::Way::activated) {
        store_simple<Stores::activated>(args, params, tile, tCrC, thread);
      } else {
        store(args, tile, tCrC, thread);
      }
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

  /// Of the tile's, the first that a consumer thread has; its rows begin with thread % 4 * 2.
  static MOYE_DEVICE int first_column(int thread) { return int(Columns{}(thread / 32 * 16 + thread % 32 / 4)); }

  /// A thread has 2 neighbours along n of pairs of rows, 8 apart. tCrC: (MMA,MMA_N,MMA_M).
  template <class Sums>
  static MOYE_DEVICE void store(GemmArgs const& args, TileCoord const& tile, Sums const& tCrC, int thread) {
    constexpr int kTogether = kBlkM > 64 ? 4 : 8, kSteps = kBlkM / 8 / kTogether * 2;
    int const m = thread % 4 * 2, n = first_column(thread);
    with_tile_epilogue<float, kVector, /*kDerives=*/false, /*kScales=*/true>(
        args, tile, kBlkM, kBlkN, [&](auto const& epilogue) {
          MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
              for (int step = 0; step < kSteps; ++step) {
            Row<float, kVector> rows[kTogether];
            MOYE_UNROLL
            for (int i = 0; i < kSteps; ++i) {  // sums are registers: their indices are constants
              if (i != step) continue;
              MOYE_UNROLL
              for (int j = 0; j < kTogether; ++j) {
                MOYE_UNROLL
                for (int c = 0; c < kVector; ++c)
                  rows[j].elements[c] = tCrC(make_coord(i % 2, c, i / 2 * kTogether + j), _0{}, _0{});
              }
            }
            int const first = step / 2 * kTogether * 8 + step % 2 + m;
            epilogue.template store_rows<kTogether>([&](int j) { return chosen(rows, j); }, first, 8, n);
          }
        });
  }

  /// The same of sums that are finished where they are.
  template <Stores kStores, class Sums>
  static MOYE_DEVICE void store_simple(GemmArgs const& args, TransposedParams const& params, TileCoord const& tile,
                                       Sums& tCrC, int thread) {
    GemmArgs const& stored = params.stored;
    if constexpr (kStores == Stores::wide) return store_words<float>(stored, tile, tCrC, thread);
    finish(args, tile, tCrC, thread);
    if (stored.d_dtype == Dtype::f32) {
      store_words<float>(stored, tile, tCrC, thread);
    } else if (stored.d_dtype == Dtype::bf16) {
      store_words<bfloat16_t>(stored, tile, tCrC, thread);
    } else {
      store_words<half_t>(stored, tile, tCrC, thread);
    }
  }

  template <class Sums>
  static MOYE_DEVICE void finish(GemmArgs const& args, TileCoord const& tile, Sums& tCrC, int thread) {
    int const n = tile.n * kBlkN + first_column(thread);
    EpilogueArgs const& epilogue = args.epilogue;
    Row<float, kVector> bias = {};
    if (epilogue.bias.data != nullptr && n < int(args.n)) {
      int64_t const at = matrix_offset(args, tile.batch, epilogue.bias.batch_strides) + n;
      if (args.d_dtype == Dtype::f32) {
        bias = loaded<float>(epilogue.bias.data, at);
      } else if (args.d_dtype == Dtype::bf16) {
        bias = loaded<bfloat16_t>(epilogue.bias.data, at);
      } else {
        bias = loaded<half_t>(epilogue.bias.data, at);
      }
    }
    static_assert(decltype(size(tCrC))::value == kSums);
    float z[kSums];
    auto const alpha = static_cast<float>(epilogue.alpha);
    MOYE_UNROLL
    for (int i = 0; i < kSums; ++i) z[i] = alpha * tCrC(i) + bias.elements[i / 2 % 2];
    activate_all(epilogue.activation, z);
    MOYE_UNROLL
    for (int i = 0; i < kSums; ++i) tCrC(i) = z[i];
  }

  template <class T>
  static MOYE_DEVICE Row<float, kVector> loaded(void const* data, int64_t at) {
    auto const word = *reinterpret_cast<typename Row<T, kVector>::Word const*>(static_cast<T const*>(data) + at);
    auto const row = detail::bit_cast<Row<T, kVector>>(word);
    return {convert<float>(row.elements[0]), convert<float>(row.elements[1])};
  }

  template <class T, class Sums>
  static MOYE_DEVICE void store_words(GemmArgs const& args, TileCoord const& tile, Sums const& tCrC, int thread) {
    int const m = thread % 4 * 2, n = first_column(thread);
    int const m_left = int(args.m) - tile.m * kBlkM - m;
    if (n >= int(args.n) - tile.n * kBlkN) return;
    int64_t const first = int64_t(tile.m) * kBlkM + m;
    T* row = static_cast<T*>(args.d) + first * args.d_m_stride + int64_t(tile.n) * kBlkN + n;
    if (args.batch > 1) row += matrix_offset(args, tile.batch, args.d_batch_strides);
    MOYE_UNROLL
    for (int i = 0; i < kBlkM / 8; ++i, row += 8 * args.d_m_stride) {
      MOYE_UNROLL
      for (int j = 0; j < 2; ++j) {
        if (i * 8 + j >= m_left) continue;
        Row<T, kVector> word;
        MOYE_UNROLL
        for (int c = 0; c < kVector; ++c) word.elements[c] = convert<T>(tCrC(make_coord(j, c, i), _0{}, _0{}));
        T* const at = row + j * args.d_m_stride;
        if constexpr (sizeof(T) == 4) {
          store_global(detail::bit_cast<uint64_t>(word), *reinterpret_cast<uint64_t*>(at));  // assigned: two stores
        } else {
          write_word(word, at);
        }
      }
    }
  }

  /// rows[j] of rows in registers.
  template <int kRows>
  static MOYE_DEVICE Row<float, kVector> chosen(Row<float, kVector> const (&rows)[kRows], int j) {
    Row<float, kVector> row = rows[0];
    MOYE_UNROLL
    for (int i = 1; i < kRows; ++i) {
      if (i == j) row = rows[i];
    }
    return row;
  }

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
