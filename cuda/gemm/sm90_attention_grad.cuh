// sm90_attention_grad: the gradients of sm90_attention on wgmma, by two kernels, each of which computes the weights
// anew from the scores and the logarithm of their sum: sums have one order, and nothing is added in memory.
//   Q, dO, dQ (heads,q_rows,head_dim), K, V, dK, dV (kv_heads,kv_rows,head_dim), contiguous, 16-bit or f32 as TF32
//   tile               {rows that a CTA owns, rows of a step, head_dim}
//   rows kernel        owns rows of Q and dO, goes through K and V: S = Q K^T, dP = dO V^T, dQ += dS K
//   columns kernel     owns rows of K and V, goes through Q and dO of all heads that read them:
//                        S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q
//     where            P = exp(scale * S - lse), dS = P * (dP - delta), rounded to the arrays' type as A's fragments;
//                        dS and P are 0 where a score is masked, but all of a row's; dropout is dP's, and P's of dV
//   warpgroup 0        producer: one thread starts the loads, those of a step in one stage
//   warpgroups 1, 2    consumers: 64 of the CTA's rows each; or both the same 64, and half of head_dim of sums each
//   own                1 arrival, and the bytes of both owned tiles
//   pipeline           full[s], empty[s] of each stage
//   barrier 1 + c      named, consumer c: lse and delta of a step are there (columns kernel); last: owned tiles have
//                      been read, and results go there. 3: that of both consumers, where they have the same rows
#pragma once

#include "gemm/attention_bias.h"
#include "gemm/attention_cap.h"
#include "gemm/attention_dropout.h"
#include "gemm/attention_grad.h"
#include "gemm/attention_mask.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/order.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_traits_sm90.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_attention_grad)
struct Gemm<kConfig> {
  using Element = typename ElementOf<kConfig.dtype>::Type;
  static constexpr int kOwned = kConfig.tile.m, kStep = kConfig.tile.n, kHead = kConfig.tile.k;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kConsumers = 2, kThreads = 128 * (1 + kConsumers);
  // 2: the sums of 64 rows of a head_dim of 256 are more than a warpgroup has registers for: the consumers halve them.
  static constexpr int kShares = 64 * kConsumers / kOwned;
  static constexpr int kHeadOfSums = kHead / kShares;                      // of a consumer's sums
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;  // 64 K: 168 per thread
  static constexpr int kParts = kHead / kBoxColumns<Element>;              // of head_dim
  static constexpr bool kIs16Bit = sizeof(Element) == 2;
  static_assert((kIs16Bit || kConfig.dtype == Dtype::tf32) && kConfig.accumulator == Dtype::f32);
  static_assert(kConfig.alignment == 16 && (kOwned == 64 || kOwned == 128) && kStep == kRowBlock);
  static_assert(kHeadOfSums % kRowBlock == 0 && kHeadOfSums <= 128 && kConfig.cluster.m * kConfig.cluster.n == 1);

  using Owned = KOperand<Element, kOwned, kParts, kRowBlock>;
  using Streamed =
      KOperand<Element, kStep, kStages * kParts>;  // of which head_dim is summed over; by Weighted rows are
  using Weighted = WeightedProduct<Element, kHeadOfSums, kStep, kStages * kShares, kConsumers / kShares>;
  using Warpgroups = Layout<Shape<Int<kConsumers / kShares>, _1, _1>>;
  using ScoresMma = decltype(make_tiled_mma(ScoresOp<Element, kStep>{}, Warpgroups{}));
  using SumsMma = typename Weighted::Mma;
  static constexpr int kBiasAhead = kHead >= 128 ? 8 : 32;  // of a thread's scores, for which there are registers
  static constexpr int kSums = kStep / 2, kWords = kFragmentWords<Element, kStep>;  // of a thread, of a step's scores

  struct SharedStorage {
    alignas(1024) Element owned[2][kOwned * kHead];  // in the end results
    alignas(1024) Element streamed[2][kStages * kStep * kHead];
    float of_step[kConsumers][kStages][3][kStep];  // lse, delta, a masked score's weight (RowBase) of a stage's rows
    TmaPipeline<kStages> pipeline;
    alignas(8) uint64_t full_owned;
  };

  using Place = AttentionPlace;

  // ---- dQ
  template <ScoresKind kKind>
  static MOYE_DEVICE void run_rows(AttentionArgs const& args, AttentionGradParams const& params) {
    auto& smem = attention_grad::begin<Gemm>(params);
    int const thread = int(thread_idx().x), id = int(block_idx().x), matrix = id / params.q_tiles;
    int const heads = int(args.kv_heads * args.group);
    // Neighbouring CTAs have the same head, its last rows first: they have the most columns, if causal.
    Place const at{(params.q_tiles - 1 - id % params.q_tiles) * kOwned, matrix % heads, matrix / heads};
    int const last = at.row + kOwned <= args.q_rows ? at.row + kOwned - 1 : int(args.q_rows) - 1;
    int const steps = (columns_of(args, last) + kStep - 1) / kStep;
    if (thread < 128) {
      warpgroup_reg_dealloc<kProducerRegisters>();
      if (thread < 32) {
        if (steps > 0 && elect_one_sync()) attention_grad::load_for_rows<Gemm>(args, params, at, steps, smem);
        sync_warp();
      }
    } else {
      warpgroup_reg_alloc<kConsumerRegisters>();
      // Calls without a mask have a loop of their own: no branch, and no register for the mask.
      if (!attention_grad::kHasOneLoop<kKind> && args.mask.data == nullptr) {
        consume_rows<false, kKind>(args, params, at, steps, smem, thread - 128);
      } else {
        consume_rows<true, kKind>(args, params, at, steps, smem, thread - 128);
      }
    }
  }

  template <bool kIsMasked, ScoresKind kKind>
  static MOYE_DEVICE void consume_rows(AttentionArgs const& args, AttentionGradParams const& params, Place const& at,
                                       int steps, SharedStorage& smem, int thread) {
    constexpr bool kHasBias = kIsBiased<kKind>, kDrops = kIsDropped<kKind>;
    int const lane = thread % 32, row = at.row + attention_grad::of_rows<Gemm>(thread) / 32 * 16 + lane / 4;
    float const scale = factor_of_scores<kKind>(args) * float(kLog2E);
    int64_t const matrix = at.batch * (args.kv_heads * args.group) + at.head;
    int const columns[2] = {columns_of(args, row), columns_of(args, row + 8)};
    float const lse[2] = {load_lse(args, matrix, row), load_lse(args, matrix, row + 8)};
    float const delta[2] = {load_delta(args, matrix, row), load_delta(args, matrix, row + 8)};
    // Without a bias there is no second array of lse to read.
    auto const base_of = [&](int of) { return kHasBias ? RowBase::load(args, matrix, of) : RowBase{}; };
    RowBase const base[2] = {base_of(row), base_of(row + 8)};
    float of_masked[2] = {};  // what masked scores weigh, where they have gradients
    if constexpr (kDrops) attention_grad::weigh_masked<kHasBias>(args, base, lse, row, of_masked);
    BiasIf<kHasBias, BiasAhead<Element, 1, kBiasAhead>> bias(args, at, row, lane);
    CapIf<kKind> const cap(args);
    Tensor sQ = make_tensor(make_smem_ptr(smem.owned[0]), Owned::smem_layout());        // (OWNED,BOX,PARTS)
    Tensor sdO = make_tensor(make_smem_ptr(smem.owned[1]), Owned::smem_layout());       // (OWNED,BOX,PARTS)
    Tensor sK = make_tensor(make_smem_ptr(smem.streamed[0]), Streamed::smem_layout());  // (STEP,BOX,PARTS*PIPE)
    Tensor sV = make_tensor(make_smem_ptr(smem.streamed[1]), Streamed::smem_layout());  // (STEP,BOX,PARTS*PIPE)
    auto const thr_scores = ScoresMma{}.get_slice(attention_grad::first_of_warp<Gemm>());
    Tensor tSrQ = thr_scores.partition_fragment_A(sQ);                                   // (MMA,MMA_M,MMA_K,PARTS)
    Tensor tSrdO = thr_scores.partition_fragment_A(sdO);                                 // (MMA,MMA_M,MMA_K,PARTS)
    Tensor tSrK = thr_scores.partition_fragment_B(sK);                                   // (MMA,MMA_N,MMA_K,PARTS*PIPE)
    Tensor tSrV = thr_scores.partition_fragment_B(sV);                                   // (MMA,MMA_N,MMA_K,PARTS*PIPE)
    Tensor tSrS = partition_fragment_C(ScoresMma{}, Shape<Int<kOwned>, Int<kStep>>{});   // (MMA,MMA_M,MMA_N)
    Tensor tSrdP = partition_fragment_C(ScoresMma{}, Shape<Int<kOwned>, Int<kStep>>{});  // (MMA,MMA_M,MMA_N)
    Tensor tOrdS = make_tensor<Element>(typename Weighted::FragmentShape{});             // (MMA,MMA_M,MMA_K)
    Tensor tOrdS2 = make_tensor<Element>(typename Weighted::FragmentShape{});            // (MMA,MMA_M,MMA_K)
    Tensor tOrK = attention_grad::summed<Gemm>(smem.streamed[0], thread);  // (MMA,MMA_N,MMA_K,SHARES*PIPE)
    Tensor tOrdQ = partition_fragment_C(SumsMma{}, Shape<Int<kOwned>, Int<kHeadOfSums>>{});  // (MMA,MMA_M,MMA_N)
    auto& weights = *reinterpret_cast<float (*)[kSums]>(&tSrS(_0{}));
    auto& of_weights = *reinterpret_cast<float (*)[kSums]>(&tSrdP(_0{}));
    auto& fragments = *reinterpret_cast<uint32_t (*)[kWords]>(&tOrdS(_0{}));
    auto& second = *reinterpret_cast<uint32_t (*)[kWords]>(&tOrdS2(_0{}));
    clear(tOrdQ);

    auto const stores_ds = [&] { return kHasBias && args.ds.data != nullptr && attention_grad::share_of<Gemm>() == 0; };
    auto const finish_sums = [&] {
      warpgroup_wait_group<0>();
      warpgroup_fence_operand(tOrdQ);
      warpgroup_fence_operand(tOrdS);
      warpgroup_fence_operand(tOrdS2);
    };
    PipelineState<kStages> read, last;  // last: the stage whose dQ may be in flight
    bias.start(0);
    if (steps > 0) mbarrier_wait(&smem.full_owned, 0);
    MOYE_NO_UNROLL
    for (int step = 0; step < steps; ++step, ++read) {
      smem.pipeline.consumer_wait(read);
      attention_grad::start_scores<Gemm>(tSrQ, tSrK, read.index(), tSrS);
      attention_grad::start_scores<Gemm>(tSrdO, tSrV, read.index(), tSrdP);
      uint32_t kept = kAllKept;
      if (kIsMasked && (!attention_grad::kHasOneLoop<kKind> || args.mask.data != nullptr))
        kept = kept_of_rows<kStep>(args, args.mask, at, row, columns, step * kStep, lane);
      uint32_t undropped[1] = {kAllKept};
      if constexpr (kDrops)
        undropped[0] = kept_of_rows<kStep>(args, args.dropout, at, row, columns, step * kStep, lane);
      warpgroup_wait_group<1>();  // all but dP
      warpgroup_fence_operand(tSrS);
      if (step > 0) Weighted::release(smem.pipeline, last, lane);
      last = read;
      bool const is_edge = (step + 1) * kStep > (columns[0] < columns[1] ? columns[0] : columns[1]);
      bias.add(weights, step * kStep);
      MOYE_UNROLL
      for (int i = 0; i < kSums; ++i) {
        int const r = i / 2 % 2;
        auto const [score, slope] = cap.of(weights[i]);
        weights[i] = kHasBias ? base[r].weight(score) : slope * fast_exp2(multiply_add(score, scale, -lse[r]));
      }
      warpgroup_fence_operand(tSrS);
      warpgroup_wait_group<0>();
      warpgroup_fence_operand(tSrdP);
      warpgroup_fence_operand(tOrdQ);
      warpgroup_fence_operand(tOrdS);
      warpgroup_fence_operand(tOrdS2);
      if constexpr (kDrops) {
        drop(of_weights, undropped, args.dropout.factor);
        if (args.mask.has_gradients) set_masked(weights, kept, [&](int i) { return of_masked[i / 2 % 2]; });
      }
      MOYE_UNROLL
      for (int i = 0; i < kSums; ++i) weights[i] *= of_weights[i] - delta[i / 2 % 2];
      // delta may be NaN: 0 in front of it would not do
      if (is_edge) attention_grad::clear_behind(weights, columns, step * kStep, lane);
      if (kept != kAllKept && !(kDrops && args.mask.has_gradients)) attention_grad::clear_masked(weights, kept);
      if (stores_ds()) store_ds<Element>(args, weights, at, row, step * kStep, lane);
      to_rounded_fragments<Element, kStep>(weights, fragments);
      Weighted::add(tOrdS, tOrK, read.index() * kShares, tOrdQ);
      if constexpr (kIs16Bit) {
        if (args.ds_parts == 2) {
          to_second_fragments<Element, kStep>(weights, fragments, second);
          Weighted::add(tOrdS2, tOrK, read.index() * kShares, tOrdQ);
        }
      }
      if constexpr (kHasBias) finish_sums();  // else ptxas waits for each wgmma by itself
    }
    finish_sums();
    if (stores_ds()) clear_ds<Element, kStep>(args, at, row, steps * kStep, lane);
    attention_grad::sync_readers<Gemm>(thread);  // no wgmma of the others reads their rows of Q any more
    attention_grad::store<Gemm>(&params.dq, args.dq, args.q_rows, smem.owned[0], tOrdQ, args.scale, at,
                                int(args.head_dim), thread);
    if (lane == 0) tma_store_wait_group_read<0>();
  }

  // ---- dK and dV
  template <ScoresKind kKind>
  static MOYE_DEVICE void run_columns(AttentionArgs const& args, AttentionGradParams const& params) {
    auto& smem = attention_grad::begin<Gemm>(params);
    int const thread = int(thread_idx().x);
    Place const at = attention_grad::columns_place<Gemm, false>(args, params);
    auto const steps = attention_grad::steps_of<kStep>(args, at.row);
    if (thread < 128) {
      warpgroup_reg_dealloc<kProducerRegisters>();
      if (thread < 32) {
        if (elect_one_sync() && steps.begin < steps.end)
          attention_grad::load_for_columns<Gemm>(args, params, at, steps, smem);
        sync_warp();
      }
    } else {
      warpgroup_reg_alloc<kConsumerRegisters>();
      if (!attention_grad::kHasOneLoop<kKind> && args.mask.data == nullptr) {
        consume_columns<false, kKind>(args, params, at, steps, smem, thread - 128);
      } else {
        consume_columns<true, kKind>(args, params, at, steps, smem, thread - 128);
      }
    }
  }

  template <bool kIsMasked, ScoresKind kKind>
  static MOYE_DEVICE void consume_columns(AttentionArgs const& args, AttentionGradParams const& params, Place const& at,
                                          attention_grad::Steps const& steps, SharedStorage& smem, int thread) {
    constexpr bool kHasBias = kIsBiased<kKind>, kDrops = kIsDropped<kKind>;
    // dP^T, for want of registers.
    constexpr bool kIsLate =
        kHead > 128 ? kKind != ScoresKind::plain : kHead > 64 && (kDrops || (kKind == ScoresKind::capped && kIsMasked));
    int const lane = thread % 32, consumer = thread / 128;
    int const column = at.row + attention_grad::of_rows<Gemm>(thread) / 32 * 16 + lane / 4;
    float const scale = factor_of_scores<kKind>(args) * float(kLog2E);
    Tensor sK = make_tensor(make_smem_ptr(smem.owned[0]), Owned::smem_layout());         // (OWNED,BOX,PARTS)
    Tensor sV = make_tensor(make_smem_ptr(smem.owned[1]), Owned::smem_layout());         // (OWNED,BOX,PARTS)
    Tensor sQ = make_tensor(make_smem_ptr(smem.streamed[0]), Streamed::smem_layout());   // (STEP,BOX,PARTS*PIPE)
    Tensor sdO = make_tensor(make_smem_ptr(smem.streamed[1]), Streamed::smem_layout());  // (STEP,BOX,PARTS*PIPE)
    auto const thr_scores = ScoresMma{}.get_slice(attention_grad::first_of_warp<Gemm>());
    Tensor tSrK = thr_scores.partition_fragment_A(sK);                                   // (MMA,MMA_M,MMA_K,PARTS)
    Tensor tSrV = thr_scores.partition_fragment_A(sV);                                   // (MMA,MMA_M,MMA_K,PARTS)
    Tensor tSrQ = thr_scores.partition_fragment_B(sQ);                                   // (MMA,MMA_N,MMA_K,PARTS*PIPE)
    Tensor tSrdO = thr_scores.partition_fragment_B(sdO);                                 // (MMA,MMA_N,MMA_K,PARTS*PIPE)
    Tensor tSrS = partition_fragment_C(ScoresMma{}, Shape<Int<kOwned>, Int<kStep>>{});   // (MMA,MMA_M,MMA_N)
    Tensor tSrdP = partition_fragment_C(ScoresMma{}, Shape<Int<kOwned>, Int<kStep>>{});  // (MMA,MMA_M,MMA_N)
    Tensor tOrP = make_tensor<Element>(typename Weighted::FragmentShape{});              // (MMA,MMA_M,MMA_K)
    Tensor tOrdS = make_tensor<Element>(typename Weighted::FragmentShape{});             // (MMA,MMA_M,MMA_K)
    Tensor tOrQ = attention_grad::summed<Gemm>(smem.streamed[0], thread);   // (MMA,MMA_N,MMA_K,SHARES*PIPE)
    Tensor tOrdO = attention_grad::summed<Gemm>(smem.streamed[1], thread);  // (MMA,MMA_N,MMA_K,SHARES*PIPE)
    Tensor tOrdK = partition_fragment_C(SumsMma{}, Shape<Int<kOwned>, Int<kHeadOfSums>>{});  // (MMA,MMA_M,MMA_N)
    Tensor tOrdV = partition_fragment_C(SumsMma{}, Shape<Int<kOwned>, Int<kHeadOfSums>>{});  // (MMA,MMA_M,MMA_N)
    auto& weights = *reinterpret_cast<float (*)[kSums]>(&tSrS(_0{}));
    auto& of_weights = *reinterpret_cast<float (*)[kSums]>(&tSrdP(_0{}));
    auto& fragments_p = *reinterpret_cast<uint32_t (*)[kWords]>(&tOrP(_0{}));
    auto& fragments_ds = *reinterpret_cast<uint32_t (*)[kWords]>(&tOrdS(_0{}));
    clear(tOrdK);
    clear(tOrdV);

    // The first row that reads the thread's first column, the other is 8 behind; -8: all rows read both.
    int const first = first_row_of(args, column);
    // Half of the threads fetch a row's lse each, half its delta, a step ahead.
    int64_t matrix = (at.batch * args.kv_heads + at.head) * args.group;
    auto const fetch = [&](int step) {
      int const row = step * kStep + thread % kStep;
      if (thread % 128 >= kStep) return load_delta(args, matrix, row);
      return kHasBias ? RowBase::load(args, matrix, row).largest : load_lse(args, matrix, row);
    };
    auto const fetch_sum = [&](int step) {  // of the first half, with a bias
      return RowBase::load(args, matrix, step * kStep + thread % kStep).log_sum;
    };
    BiasIf<kHasBias, BiasOfColumns<Element, kBiasAhead>> bias(args, lane);
    CapIf<kKind> const cap(args);
    PipelineState<kStages> read;
    if (steps.begin < steps.end) mbarrier_wait(&smem.full_owned, 0);
    MOYE_NO_UNROLL
    for (int head = 0; head < args.group; ++head, ++matrix) {
      float fetched = steps.begin < steps.end ? fetch(steps.begin) : 0;
      float sum = kHasBias && steps.begin < steps.end ? fetch_sum(steps.begin) : 0;
      MOYE_NO_UNROLL
      for (int step = steps.begin; step < steps.end; ++step, ++read) {
        auto& of_step = smem.of_step[consumer][read.index()];
        of_step[thread % 128 / kStep][thread % kStep] = fetched;
        if (kIsMasked && thread % 128 < kStep) {
          of_step[2][thread % kStep] = kHasBias ? sum : weight_of_masked(args, step * kStep + thread % kStep, fetched);
        }
        if (step + 1 < steps.end) fetched = fetch(step + 1);
        if (kHasBias && step + 1 < steps.end) sum = fetch_sum(step + 1);
        smem.pipeline.consumer_wait(read);
        attention_grad::start_scores<Gemm>(tSrK, tSrQ, read.index(), tSrS);
        if constexpr (!kIsLate) attention_grad::start_scores<Gemm>(tSrV, tSrdO, read.index(), tSrdP);
        uint32_t kept = kAllKept, undropped[1] = {kAllKept};
        if constexpr (kDrops) {
          attention_grad::load_dropped<Gemm>(args, params, at, column, head, first, step * kStep, lane, kept,
                                             undropped[0], bias);
        } else {
          if (kIsMasked && (!kHasBias || args.mask.data != nullptr)) {
            kept = kept_of_columns<kStep>(args, args.mask, at.batch, at.head * int(args.group) + head, column, first,
                                          step * kStep, lane);
          }
          bias.start(at.batch, at.head * int(args.group) + head, column, step * kStep);
        }
        named_barrier_sync(1 + consumer, 128);
        warpgroup_wait_group<kIsLate ? 0 : 1>();  // all but dP^T
        warpgroup_fence_operand(tSrS);
        int const first_row = first - step * kStep;
        bias.add(weights);
        auto const row_of = [&](int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; };
        if constexpr (kKind == ScoresKind::capped) {
          attention_grad::weigh<Element, kIsMasked>(weights, fragments_p, cap, scale, of_step, first_row, kept, lane);
        } else {
          MOYE_UNROLL
          for (int i = 0; i < kSums; ++i) {
            float const base = of_step[0][row_of(i)];
            weights[i] = kHasBias ? RowBase{base, of_step[2][row_of(i)]}.weight(weights[i])
                                  : fast_exp2(multiply_add(weights[i], scale, -base));
          }
          if constexpr (kHasBias) warpgroup_fence_operand(tSrS);
          if (kept != kAllKept) {
            MOYE_UNROLL
            for (int i = 0; i < kSums; ++i) {
              float const third = of_step[2][row_of(i)];
              if ((kept >> i & 1) == 0) weights[i] = kHasBias ? RowBase::weight_of_masked(third) : third;
            }
          }
          if (first_row > -8) attention_grad::clear_in_front(weights, first_row, lane);
          round_to_operands<Element>(weights);  // dS is of rounded ones, too, for want of registers
          attention_grad::to_fragments_of<kDrops, Element, kStep>(weights, fragments_p, undropped[0]);
        }
        if constexpr (kIsLate) attention_grad::start_scores<Gemm>(tSrV, tSrdO, read.index(), tSrdP);
        Weighted::add(tOrP, tOrdO, read.index() * kShares, tOrdV);
        warpgroup_wait_group<Weighted::kIsStarted ? 1 : 0>();  // all but dV
        warpgroup_fence_operand(tSrdP);
        if constexpr (kDrops) drop(of_weights, undropped, args.dropout.factor);
        MOYE_UNROLL
        for (int i = 0; i < kSums; ++i) weights[i] *= of_weights[i] - of_step[1][i / 4 * 8 + lane % 4 * 2 + i % 2];
        if (kept != kAllKept && !(kDrops && args.mask.has_gradients)) attention_grad::clear_masked(weights, kept);
        to_rounded_fragments<Element, kStep>(weights, fragments_ds);
        Weighted::add(tOrdS, tOrQ, read.index() * kShares, tOrdK);
        if constexpr (kIs16Bit) {
          if (args.ds_parts == 2) {
            warpgroup_wait_group<1>();  // dV: the second part takes the registers of P
            warpgroup_fence_operand(tOrP);
            to_second_fragments<Element, kStep>(weights, fragments_ds, fragments_p);
            Weighted::add(tOrP, tOrQ, read.index() * kShares, tOrdK);
          }
        }
        warpgroup_wait_group<0>();
        warpgroup_fence_operand(tOrdK);
        warpgroup_fence_operand(tOrdV);
        warpgroup_fence_operand(tOrP);
        warpgroup_fence_operand(tOrdS);
        Weighted::release(smem.pipeline, read, lane);
      }
    }
    attention_grad::sync_readers<Gemm>(thread);  // no wgmma of the others reads their rows of K and V any more
    constexpr bool kIsForgotten = kDrops || (kShares > 1 && kKind == ScoresKind::capped);  // for want of registers
    Place const to = kIsForgotten ? attention_grad::columns_place<Gemm, true>(args, params) : at;
    float const of_kept = kDrops ? args.dropout.factor : 1;
    int const head_dim = int(args.head_dim);
    attention_grad::store<Gemm>(&params.dk, args.dk, args.kv_rows, smem.owned[0], tOrdK, args.scale, to, head_dim,
                                thread);
    attention_grad::store<Gemm>(&params.dv, args.dv, args.kv_rows, smem.owned[1], tOrdV, of_kept, to, head_dim, thread);
    if (lane == 0) tma_store_wait_group_read<0>();
  }

  // ---- host

  template <Order>
  static auto* kernel() {
    return sm90_attention_grad_rows_kernel<Gemm, ScoresKind::plain>;
  }
  static constexpr unsigned kCompiledOrders = order_bits(Order::NT);

  static Status prepare() { return attention_grad::prepare<Gemm>(); }

  static Status launch(AttentionArgs const& args, StreamHandle stream) {
    return attention_grad::launch<Gemm>(args, stream);
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .consumers = kConsumers,
                                         .consumer_tile = {64, kStep},
                                         .min_arch = 90,
                                         .max_arch = 90,  // sm_90a's code
                                         .orders = kCompiledOrders,
                                         .any_stride = false};
};

}  // namespace moye
