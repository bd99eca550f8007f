// sm90_attention: O = softmax(scale * Q K^T) V on wgmma, without the scores in memory: what has been summed is scaled
// whenever a larger score turns up.
//   Q, O (heads,q_rows,head_dim), K, V (kv_heads,kv_rows,head_dim), contiguous along head_dim, 16-bit or f32 as TF32
//   tile               {rows of Q, rows of K and V, head_dim}: one CTA has a tile of one head's rows, and goes through
//                      the tiles of K and V; those of which no column counts are left out
//   cluster            {1, S} in the table: rank r of S CTAs, {S, 1, 1} as launched, has the r-th part of those tiles,
//                      maybe none; rank 0 adds up what all have in registers, in the order of the ranks
//   warpgroup 0        producer: one thread starts the loads
//   warpgroups 1..     consumers: each has 64 rows of the tile, their largest scores, sums and O in registers
//   q                  1 arrival, and the tile's bytes
//   k, v               pipelines of kStages each: O of one tile is multiplied while the next scores are
//   barrier 1 + c      named, consumer c: Q has been read, and O goes there; K and V, and sums for rank 0 go there
//   cluster barrier    first: all ranks' sums are there; last: they have been read
// Scores are f32, weights exp(s - largest so far), rounded where they multiply V; sums of unrounded ones divide O.
// Of f32 rounded ones. Dropped weights are in the sums. What rounding takes from O may be a result.
#pragma once

#include "gemm/attention.h"
#include "gemm/attention_bias.h"
#include "gemm/attention_cap.h"
#include "gemm/attention_dropout.h"
#include "gemm/attention_mask.h"
#include "gemm/attention_parts.h"
#include "gemm/attention_softmax.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/order.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_traits_sm90.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

struct AttentionParams {
  TensorMap q, k, v, o, o_rest;
  int tiles;  // of a head's rows
};

template <class Gemm, ScoresKind kKind>
MOYE_KERNEL_SHARED(Gemm::kThreads, Gemm::kResident)
sm90_attention_kernel(MOYE_GRID_CONSTANT AttentionArgs const args, MOYE_GRID_CONSTANT AttentionParams const params) {
  Gemm::template run<kKind>(args, params);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_attention)
struct Gemm<kConfig> {
  using Element = typename ElementOf<kConfig.dtype>::Type;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kHead = kConfig.tile.k;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kConsumers = kBlkM / 64, kThreads = 128 * (1 + kConsumers);
  static constexpr bool kIs16Bit = sizeof(Element) == 2;
  static constexpr int kResident =
      kConsumers == 1 && kHead * sizeof(Element) <= 256 ? 2 : 1;  // CTAs of a multiprocessor
  // 64 K registers: 168 per thread with 384 threads, 128 with two CTAs of 256. One CTA of 256 has all that it can use.
  static constexpr bool kMovesRegisters = kResident * kThreads > 256;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = kConsumers == 1 ? 232 : 240;
  static_assert(!kMovesRegisters || kResident * (kProducerRegisters + kConsumers * kConsumerRegisters) <= 512,
                "more than there are");
  static constexpr int kParts = kHead / kBoxColumns<Element>, kSteps = kBlkN / kRowBlock;  // of head_dim, of columns
  static_assert((kIs16Bit || kConfig.dtype == Dtype::tf32) && kConfig.accumulator == Dtype::f32);
  static_assert(kConfig.alignment == 16);
  static_assert(kBlkM % 64 == 0 && kConsumers <= 2 && kBlkN % kRowBlock == 0 && kBlkN <= 128);
  static_assert(kHead % kRowBlock == 0 && kHead * sizeof(Element) <= 512);
  // O, with weights of 32 bits, takes half of a thread's registers.
  static constexpr bool kIsWide = kHead * sizeof(Element) > 256;
  static_assert(kStages >= 2 && (!kIsWide || kBlkN == 64));
  // Of a thread's scores, whose bias is loaded at a time, a tile ahead: as many as there are registers for.
  static constexpr int kBiasAhead = kIsWide ? 8 : kBlkN == 64 ? 32 : kHead == 64 ? 16 : 8;
  using Bias = Conditional<kIsWide, BiasAtUse<Element, kSteps, kBiasAhead>, BiasAhead<Element, kSteps, kBiasAhead>>;
  static constexpr int kSplit = kConfig.cluster.n;  // CTAs that share a tile
  static_assert(kConfig.cluster.m == 1 && kSplit <= 8 && (kSplit == 1 || kConsumers == 1));

  using OperandQ = KOperand<Element, kBlkM, kParts>;
  using OperandK = KOperand<Element, kBlkN, kStages * kParts>;
  using Warpgroups = Layout<Shape<Int<kConsumers>, _1, _1>>;
  using ScoresMma = decltype(make_tiled_mma(ScoresOp<Element, kBlkN>{}, Warpgroups{}));
  using Weighted = WeightedProduct<Element, kHead, kBlkN, kStages, kConsumers>;
  static constexpr int kTileBytes = kBlkN * kHead * int(sizeof(Element));

  struct SharedStorage {
    alignas(1024) Element q[kBlkM * kHead];  // in the end O
    alignas(1024) Element k[kStages * kBlkN * kHead];
    alignas(1024) Element v[kStages * kBlkN * kHead];
    TmaPipeline<kStages> pipeline_k, pipeline_v;
    alignas(8) uint64_t full_q;
  };

  /// A CTA's rows. Neighbouring CTAs have the same head, its last rows first: they have the most columns, if causal.
  using Place = AttentionPlace;
  static MOYE_DEVICE Place place(AttentionArgs const& args, AttentionParams const& params) {
    int const id = int(block_idx().x) / kSplit, heads = int(args.kv_heads * args.group), matrix = id / params.tiles;
    return {(params.tiles - 1 - id % params.tiles) * kBlkM, matrix % heads, matrix / heads};
  }

  /// Tiles of K and V from the first on that some row of the CTA's needs.
  static MOYE_DEVICE int kv_tiles(AttentionArgs const& args, int row) {
    int const last = row + kBlkM <= args.q_rows ? row + kBlkM - 1 : int(args.q_rows) - 1;
    return (columns_of(args, last) + kBlkN - 1) / kBlkN;
  }

  template <ScoresKind kKind>
  static MOYE_DEVICE void run(AttentionArgs const& args, AttentionParams const& params) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x);
    if (thread == 0) {
      prefetch_tensor_map(&params.q);
      prefetch_tensor_map(&params.k);
      prefetch_tensor_map(&params.v);
      smem.pipeline_k.init(/*warps=*/4 * kConsumers);
      smem.pipeline_v.init(/*warps=*/4 * kConsumers);
      mbarrier_init(&smem.full_q, 1);
      fence_mbarrier_init();
    }
    sync_threads();
    griddepcontrol_wait();  // the kernel ahead may still run up to here
    Place const at = place(args, params);
    int const tiles = kv_tiles(args, at.row), rank = kSplit == 1 ? 0 : int(block_rank_in_cluster());
    int const begin = tiles * rank / kSplit, end = tiles * (rank + 1) / kSplit;
    if (thread < 128) {
      if constexpr (kMovesRegisters) warpgroup_reg_dealloc<kProducerRegisters>();
      if (thread < 32) {
        if (elect_one_sync()) produce(args, params, at, begin, end, smem);
        sync_warp();
      }
      if constexpr (kSplit > 1) {
        cluster_sync();
        cluster_arrive();
      }
    } else {
      if constexpr (kMovesRegisters) warpgroup_reg_alloc<kConsumerRegisters>();
      consume<kKind>(args, params, at, begin, end, rank, smem, thread - 128);
    }
    if constexpr (kSplit > 1) cluster_wait();  // rank 0 has read
  }

  static MOYE_DEVICE void produce(AttentionArgs const& args, AttentionParams const& params, Place const& at, int begin,
                                  int end, SharedStorage& smem) {
    int const kv_head = at.head / int(args.group);
    MapCoord const of_q{at.head, at.batch, 0}, of_kv{kv_head, at.batch, 0};
    constexpr int kColumns = kBoxColumns<Element>;
    auto write = TmaPipeline<kStages>::producer_start();
    MOYE_NO_UNROLL
    for (int tile = begin; tile < end; ++tile, ++write) {
      // The consumers have released the stages: fill them.
      uint64_t* const full_k = smem.pipeline_k.producer_acquire(write, kTileBytes);
      MOYE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        OperandK::template load<4>(&params.k, full_k, OperandK::stage(smem.k, write.index() * kParts + part),
                                   tile * kBlkN, part * kColumns, of_kv, {});
      }
      if (tile == begin) {
        mbarrier_arrive_expect_tx(&smem.full_q, sizeof(smem.q));
        MOYE_UNROLL
        for (int part = 0; part < kParts; ++part) {
          OperandQ::template load<4>(&params.q, &smem.full_q, OperandQ::stage(smem.q, part), at.row, part * kColumns,
                                     of_q, {});
        }
      }
      uint64_t* const full_v = smem.pipeline_v.producer_acquire(write, kTileBytes);
      MOYE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        OperandK::template load<4>(&params.v, full_v, OperandK::stage(smem.v, write.index() * kParts + part),
                                   tile * kBlkN, part * kColumns, of_kv, {});
      }
    }
  }

  using Rows = SoftmaxRows;

  /// Consumers; thread: of them.
  template <ScoresKind kKind>
  static MOYE_DEVICE void consume(AttentionArgs const& args, AttentionParams const& params, Place const& at, int begin,
                                  int end, int rank, SharedStorage& smem, int thread) {
    int const lane = thread % 32, row = at.row + thread / 32 * 16 + lane / 4;
    constexpr bool kHasBias = kIsBiased<kKind>;
    // For want of registers scores become weights behind the products of the weights before, whose registers they take.
    constexpr bool kIsLate = kIsWide && kKind != ScoresKind::plain && Weighted::kIsStarted;
    // A bias is added to scores that are scaled, and a cap is the scale of those that have one.
    float const scale = (kHasBias ? 1 : factor_of_scores<kKind>(args)) * float(kLog2E);
    Tensor sQ = make_tensor(make_smem_ptr(smem.q), OperandQ::smem_layout());  // (BLK_M,BOX,PARTS)
    Tensor sK = make_tensor(make_smem_ptr(smem.k), OperandK::smem_layout());  // (BLK_N,BOX,PARTS*PIPE)
    Tensor sV = make_tensor(make_smem_ptr(smem.v), Weighted::smem_layout());  // (HEAD,BLK_N,PIPE)
    ScoresMma scores_mma;
    int const first = int(warp_id()) * 32 - 128;  // of the warp's threads: its descriptors are the same for all of them
    auto const thr_scores = scores_mma.get_slice(first);
    Tensor tSrQ = thr_scores.partition_fragment_A(sQ);                                // (MMA,MMA_M,MMA_K,PARTS)
    Tensor tSrK = thr_scores.partition_fragment_B(sK);                                // (MMA,MMA_N,MMA_K,PARTS*PIPE)
    Tensor tSrS = partition_fragment_C(scores_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)
    Tensor tOrP = make_tensor<Element>(typename Weighted::FragmentShape{});           // (MMA,MMA_M,MMA_K)
    Tensor tOrV = Weighted::partition(sV, kIs16Bit ? first : thread);                 // (MMA,MMA_N,MMA_K,PIPE)
    Tensor tOrO = partition_fragment_C(typename Weighted::Mma{}, Shape<Int<kBlkM>, Int<kHead>>{});  // (MMA,MMA_M,MMA_N)
    auto& scores = *reinterpret_cast<float (*)[kBlkN / 2]>(&tSrS(_0{}));
    auto& weights = *reinterpret_cast<uint32_t (*)[kFragmentWords<Element, kBlkN>]>(&tOrP(_0{}));
    auto& sums = *reinterpret_cast<float (*)[kHead / 2]>(&tOrO(_0{}));
    clear(tOrO);

    Rows rows{.columns = {columns_of(args, row), columns_of(args, row + 8)}, .factor = {}};
    // Beside dropout there are no registers for what is loaded ahead.
    constexpr bool kDrops = kIsDropped<kKind>, kMaskIsAhead = !(kIsWide && kHasBias);
    Conditional<kDrops, TileMaskAtUse<kSteps>, TileMask<kSteps, kMaskIsAhead>> mask(args, at, row, lane);
    DropoutIf<kKind, kSteps> dropout(args, at, row, lane);
    using BiasOfKind = Conditional<kDrops, BiasAtUse<Element, kSteps, kBiasAhead>, Bias>;
    BiasIf<kHasBias, BiasOfKind> bias(args, at, row, lane);
    CapIf<kKind> const cap(args);
    PipelineState<kStages> read_k, read_v;
    auto const start_scores = [&] {
      smem.pipeline_k.consumer_wait(read_k);
      warpgroup_fence_operand(tSrS);
      warpgroup_arrive();
      scores_mma.accumulate_ = GMMA::ScaleOut::Zero;
      MOYE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        gemm(scores_mma, tSrQ(_, _, _, part), tSrK(_, _, _, read_k.index() * kParts + part), tSrS);
        scores_mma.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_group();
    };
    auto const start_weighted = [&] {
      smem.pipeline_v.consumer_wait(read_v);
      Weighted::add(tOrP, tOrV, read_v.index(), tOrO);
    };
    auto const finish_weighted = [&] {
      if constexpr (Weighted::kIsStarted) {
        warpgroup_wait_group<0>();
        warpgroup_fence_operand(tOrO);
        warpgroup_fence_operand(tOrP);
      }
      Weighted::release(smem.pipeline_v, read_v, lane);
      ++read_v;
    };

    if (begin < end) {
      mask.start(begin * kBlkN);
      bias.start(begin * kBlkN);
      mbarrier_wait(&smem.full_q, 0);
      start_scores();
      mask.load(rows.columns, begin * kBlkN);
      dropout.load(rows.columns, begin * kBlkN);
      warpgroup_wait_group<0>();
      warpgroup_fence_operand(tSrS);
      smem.pipeline_k.consumer_release(read_k, lane);
      ++read_k;
      bias.add(scores, begin * kBlkN);
      cap.apply(scores);
      mask_scores(scores, mask.kept, args.mask, scale);
      soften<Element, kHasBias>(scores, rows, begin * kBlkN, scale, lane);
      dropout.apply(scores);
      to_fragments<Element, kBlkN>(scores, weights);
      MOYE_NO_UNROLL
      for (int tile = begin + 1; tile < end; ++tile) {
        start_scores();
        start_weighted();  // of the tile before
        if constexpr (kIsLate) finish_weighted();
        mask.load(rows.columns, tile * kBlkN);
        dropout.load(rows.columns, tile * kBlkN);
        if constexpr (!kIsLate) warpgroup_wait_group<Weighted::kIsStarted ? 1 : 0>();
        warpgroup_fence_operand(tSrS);
        smem.pipeline_k.consumer_release(read_k, lane);
        ++read_k;
        bias.add(scores, tile * kBlkN);
        cap.apply(scores);
        mask_scores(scores, mask.kept, args.mask, scale);
        soften<Element, kHasBias>(scores, rows, tile * kBlkN, scale, lane);
        dropout.apply(scores);
        // ptxas puts the next wait as early as its block of instructions begins, ahead of the exponentials. A wait for
        // an mbarrier, which is due anyhow, begins another one.
        warpgroup_fence_operand(tSrS);
        if (tile + 1 < end) smem.pipeline_k.consumer_wait(read_k);
        if constexpr (!kIsLate) finish_weighted();
        MOYE_UNROLL
        for (int i = 0; i < kHead / 2; ++i) sums[i] *= rows.factor[i / 2 % 2];
        to_fragments<Element, kBlkN>(scores, weights);
      }
      start_weighted();
      finish_weighted();
    }

    MOYE_UNROLL
    for (int r = 0; r < 2; ++r) {
      float& sum = rows.sum[r];
      MOYE_UNROLL
      for (int other = 1; other < 4; other *= 2) sum += shfl_xor_sync(kFullWarp, sum, other);
    }
    named_barrier_sync(1 + thread / 128, 128);  // no wgmma of the others reads their rows of Q, or K and V, any more
    if constexpr (kSplit > 1) {
      add_parts<Gemm>(sums, rows, scale, rank, at.row + thread / 32 * 16 < args.q_rows, smem, thread);
      if (rank > 0) return;
    }
    float inverse[2];
    MOYE_UNROLL
    for (int r = 0; r < 2; ++r) {
      // The sum of no column is nothing; of scores that are all -inf it is NaN, as the program's.
      inverse[r] = rows.columns[r] == 0 ? 0 : dropout.factor() / rows.sum[r];
      int const of = row + 8 * r;
      if (args.lse != nullptr && lane % 4 == 0 && of < args.q_rows)
        store_lse<kKind>(args, rows, r, at.batch * (args.kv_heads * args.group) + at.head, of);
    }
    int const warp_row = at.row + thread / 32 * 16, head_dim = int(args.head_dim);
    if constexpr (!kIs16Bit) {
      store_f32_rows<kHead>(args.o, sums, inverse, warp_row, args.q_rows, at.head, at.batch, head_dim, lane,
                            /*column=*/0);
    } else {
      unsigned char* boxes[kParts];
      MOYE_UNROLL
      for (int part = 0; part < kParts; ++part) {
        boxes[part] = reinterpret_cast<unsigned char*>(OperandQ::stage(smem.q, part)) + thread / 32 * 16 * 128;
      }
      auto const store = [&](TensorMap const* map, float const(&factors)[2]) {
        store_rows<Element, kHead>(map, boxes, sums, factors, warp_row, at.head, at.batch, head_dim, lane,
                                   /*column=*/0);
        if (lane == 0) tma_store_wait_group_read<0>();
      };
      store(&params.o, inverse);
      if (args.o_rest.data == nullptr) return;
      to_rest<Element, kHead>(sums, inverse);
      sync_warp();  // its rows have been read, and the rest goes there
      store(&params.o_rest, {1, 1});
    }
  }

  template <Order>
  static auto* kernel() {
    return sm90_attention_kernel<Gemm, ScoresKind::plain>;
  }
  static constexpr unsigned kCompiledOrders = order_bits(Order::NT);

  /// Host: that of calls with such scores.
  static auto kernel_of(ScoresKind kind) -> void (*)(AttentionArgs, AttentionParams) {
    using enum ScoresKind;
    decltype(kernel_of(kind)) const of_kinds[] = {
        sm90_attention_kernel<Gemm, plain>, sm90_attention_kernel<Gemm, biased>, sm90_attention_kernel<Gemm, capped>,
        sm90_attention_kernel<Gemm, dropped>, sm90_attention_kernel<Gemm, biased_dropped>};
    return of_kinds[int(kind)];
  }

  static Status prepare() {
    using enum ScoresKind;
    Status status = {};
    for (ScoresKind const kind : {biased, capped, dropped, biased_dropped})
      if (status.ok()) status = prepare_kernel(kernel_of(kind), kFacts.smem_bytes);
    return status;
  }

  static Status launch(AttentionArgs const& args, StreamHandle stream) {
    if (args.q_rows == 0) return {};
    AttentionParams params{
        .q = {}, .k = {}, .v = {}, .o = {}, .o_rest = {}, .tiles = int((args.q_rows + kBlkM - 1) / kBlkM)};
    int64_t const heads = args.kv_heads * args.group;
    Status status = make_row_map<Element>(&params.q, args.q, args, heads, args.q_rows, kBlkM);
    if (status.ok() && kIs16Bit) status = make_row_map<Element>(&params.o, args.o, args, heads, args.q_rows, 16);
    if (status.ok() && args.o_rest.data != nullptr)
      status = make_row_map<Element>(&params.o_rest, args.o_rest, args, heads, args.q_rows, 16);
    if (status.ok() && args.kv_rows > 0) {
      status = make_row_map<Element>(&params.k, args.k, args, args.kv_heads, args.kv_rows, kBlkN);
      if (status.ok()) status = make_row_map<Element>(&params.v, args.v, args, args.kv_heads, args.kv_rows, kBlkN);
    }
    if (!status.ok()) return status;
    LaunchConfig const config{.grid = {unsigned(args.batch * heads) * unsigned(params.tiles) * unsigned(kSplit)},
                              .block = {unsigned(kThreads)},
                              .cluster = {kSplit, 1, 1},
                              .smem_bytes = kFacts.smem_bytes,
                              .programmatic = true,
                              .resident = kResident};
    return launch_kernel(kernel_of(scores_kind(args)), config, stream, args, params);
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .consumers = kConsumers,
                                         .consumer_tile = {64, kBlkN},
                                         .min_arch = 90,
                                         .max_arch = 90,  // sm_90a's code
                                         .orders = kCompiledOrders,
                                         .any_stride = false};
};

}  // namespace moye
