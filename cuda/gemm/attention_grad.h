// sm90_attention_grad's kernels, and what both do with the tiles of a Gemm<kConfig>: loads, scores, masks, sums, and
// stores.
#pragma once

#include "gemm/attention.h"
#include "gemm/attention_bias.h"
#include "gemm/attention_cap.h"
#include "gemm/attention_dropout.h"
#include "gemm/attention_mask.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"
#include "moye/arch/mbarrier.h"
#include "moye/atom/mma_traits_sm90.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

struct AttentionGradParams {
  TensorMap q, k, v, d_o, dq, dk, dv;
  int q_tiles, kv_tiles;  // of a head's rows: those that CTAs own
};

template <class Gemm, ScoresKind kKind>
MOYE_KERNEL(Gemm::kThreads)
sm90_attention_grad_rows_kernel(MOYE_GRID_CONSTANT AttentionArgs const args,
                                MOYE_GRID_CONSTANT AttentionGradParams const params) {
  Gemm::template run_rows<kKind>(args, params);
}

template <class Gemm, ScoresKind kKind>
MOYE_KERNEL(Gemm::kThreads)
sm90_attention_grad_columns_kernel(MOYE_GRID_CONSTANT AttentionArgs const args,
                                   MOYE_GRID_CONSTANT AttentionGradParams const params) {
  Gemm::template run_columns<kKind>(args, params);
}

/// Host: of CTAs that own kOwned rows.
template <class Element, int kOwned>
Status make_grad_params(AttentionGradParams* params, AttentionArgs const& args) {
  params->q_tiles = int((args.q_rows + kOwned - 1) / kOwned);
  params->kv_tiles = int((args.kv_rows + kOwned - 1) / kOwned);
  int64_t const heads = args.kv_heads * args.group;
  auto const make = [&](TensorMap* map, AttentionArray const& array, int64_t of_heads, int64_t rows, int box_rows) {
    return rows == 0 ? Status{} : make_row_map<Element>(map, array, args, of_heads, rows, box_rows);
  };
  Status status = make(&params->q, args.q, heads, args.q_rows, kRowBlock);
  if (status.ok()) status = make(&params->d_o, args.d_o, heads, args.q_rows, kRowBlock);
  if (status.ok()) status = make(&params->k, args.k, args.kv_heads, args.kv_rows, kRowBlock);
  if (status.ok()) status = make(&params->v, args.v, args.kv_heads, args.kv_rows, kRowBlock);
  if (sizeof(Element) == 4) return status;  // threads store f32
  if (status.ok()) status = make(&params->dq, args.dq, heads, args.q_rows, 16);
  if (status.ok()) status = make(&params->dk, args.dk, args.kv_heads, args.kv_rows, 16);
  if (status.ok()) status = make(&params->dv, args.dv, args.kv_heads, args.kv_rows, 16);
  return status;
}

/// The first row that reads a column, from -8 on, where more does not matter.
MOYE_DEVICE int first_row_of(AttentionArgs const& args, int column) {
  int64_t const row = args.is_causal ? column - args.diagonal : -8;
  return int(row < -8 ? -8 : row < args.q_rows ? row : args.q_rows);
}

/// lse in base 2, for weights that are 0 where a row has no column, or lies behind the last.
MOYE_DEVICE float load_lse(AttentionArgs const& args, int64_t matrix, int row) {
  float const lse = row < args.q_rows ? args.lse[matrix * args.q_rows + row] : kNoScore;
  return lse == kNoScore ? -kNoScore : lse * float(kLog2E);
}
MOYE_DEVICE float load_delta(AttentionArgs const& args, int64_t matrix, int row) {
  return row < args.q_rows ? args.delta[matrix * args.q_rows + row] : 0;
}

/// What a masked score of a row weighs: nothing beside others. Where all are masked, each the same, or NaN if -inf.
/// lse: load_lse's.
MOYE_DEVICE float weight_of_masked(AttentionArgs const& args, int row, float lse) {
  int const columns = row < args.q_rows ? columns_of(args, row) : 0;
  if (columns == 0) return 0;
  if (args.mask.is_infinite) return lse < -kNoScore ? 0 : __builtin_nanf("");
  return lse < kMasked / 2 ? 1 / float(columns) : 0;
}

namespace attention_grad {

struct Kernels {
  void (*rows)(AttentionArgs, AttentionGradParams);
  void (*columns)(AttentionArgs, AttentionGradParams);
};

/// Host: those of calls with such scores.
template <class Gemm>
Kernels kernels_of(ScoresKind kind) {
  using enum ScoresKind;
  Kernels const of_kinds[] = {
      {sm90_attention_grad_rows_kernel<Gemm, plain>, sm90_attention_grad_columns_kernel<Gemm, plain>},
      {sm90_attention_grad_rows_kernel<Gemm, biased>, sm90_attention_grad_columns_kernel<Gemm, biased>},
      {sm90_attention_grad_rows_kernel<Gemm, capped>, sm90_attention_grad_columns_kernel<Gemm, capped>},
      {sm90_attention_grad_rows_kernel<Gemm, dropped>, sm90_attention_grad_columns_kernel<Gemm, dropped>},
      {sm90_attention_grad_rows_kernel<Gemm, biased_dropped>,
       sm90_attention_grad_columns_kernel<Gemm, biased_dropped>}};
  return of_kinds[int(kind)];
}

template <class Gemm>
Status prepare() {
  Status status = {};
  using enum ScoresKind;
  for (ScoresKind const kind : {plain, biased, capped, dropped, biased_dropped}) {
    auto const [rows, columns] = kernels_of<Gemm>(kind);
    for (auto* const kernel : {rows, columns})
      if (status.ok()) status = prepare_kernel(kernel, Gemm::kFacts.smem_bytes);
  }
  return status;
}

/// Host: both kernels of a call.
template <class Gemm>
Status launch(AttentionArgs const& args, StreamHandle stream) {
  auto const [rows_kernel, columns_kernel] = kernels_of<Gemm>(scores_kind(args));
  AttentionGradParams params = {};  // maps that a call has no use for are empty
  Status status = make_grad_params<typename Gemm::Element, Gemm::kOwned>(&params, args);
  LaunchConfig config{
      .grid = {}, .block = {unsigned(Gemm::kThreads)}, .smem_bytes = Gemm::kFacts.smem_bytes, .programmatic = true};
  if (status.ok() && args.kv_rows > 0) {
    config.grid = {unsigned(args.batch * args.kv_heads) * unsigned(params.kv_tiles)};
    status = launch_kernel(columns_kernel, config, stream, args, params);
  }
  if (status.ok() && args.q_rows > 0) {
    config.grid = {unsigned(args.batch * args.kv_heads * args.group) * unsigned(params.q_tiles)};
    status = launch_kernel(rows_kernel, config, stream, args, params);
  }
  return status;
}

/// Sums of two columns with a cap become weights times the slopes of their scores, and shares the weights. Pair by
/// pair: beside all weights there are no registers for the slopes. of_step: of a step's rows, as in SharedStorage.
template <class T, bool kIsMasked, int kSums, int kWords, int kStep>
MOYE_DEVICE void weigh(float (&sums)[kSums], uint32_t (&shares)[kWords], SoftCap const& cap, float scale,
                       float const (&of_step)[3][kStep], int first_row, uint32_t kept, int lane) {
  MOYE_UNROLL
  for (int i = 0; i < kSums; i += 2) {
    float pair[2];
    MOYE_UNROLL
    for (int j = 0; j < 2; ++j) {
      int const row = i / 4 * 8 + lane % 4 * 2 + j;
      auto const [score, slope] = cap.of(sums[i + j]);
      float const weight = fast_exp2(multiply_add(score, scale, -of_step[0][row]));
      bool const is_seen = row >= first_row + i / 2 % 2 * 8, is_masked = (kept >> (i + j) & 1) == 0;
      float const of_masked = kIsMasked ? of_step[2][row] : 0;
      pair[j] = !is_seen ? 0 : kIsMasked && is_masked ? of_masked : weight;
      sums[i + j] = is_seen ? weight * slope : 0;
    }
    set_pair<T>(shares, i / 2, rounded_operand<T>(pair[0]), rounded_operand<T>(pair[1]));
  }
}

/// What belongs to scores that are not kept becomes 0.
template <int kSums>
MOYE_DEVICE void clear_masked(float (&sums)[kSums], uint32_t kept) {
  MOYE_UNROLL
  for (int i = 0; i < kSums; ++i) {
    if ((kept >> i & 1) == 0) sums[i] = 0;
  }
}

/// Of two rows, from column `column` on, what is behind their columns becomes 0.
template <int kSums>
MOYE_DEVICE void clear_behind(float (&sums)[kSums], int const (&columns)[2], int column, int lane) {
  MOYE_UNROLL
  for (int i = 0; i < kSums; ++i) {
    if (column + i / 4 * 8 + lane % 4 * 2 + i % 2 >= columns[i / 2 % 2]) sums[i] = 0;
  }
}

/// Of two columns, what is in front of the first row that reads them: first_row, and 8 more.
template <int kSums>
MOYE_DEVICE void clear_in_front(float (&sums)[kSums], int first_row, int lane) {
  MOYE_UNROLL
  for (int i = 0; i < kSums; ++i) {
    if (i / 4 * 8 + lane % 4 * 2 + i % 2 < first_row + i / 2 % 2 * 8) sums[i] = 0;
  }
}

/// The first step of a head's rows that reads a CTA's columns, and behind the last.
struct Steps {
  int begin, end;
};
template <int kStep>
MOYE_DEVICE Steps steps_of(AttentionArgs const& args, int first_column) {
  int const end = int((args.q_rows + kStep - 1) / kStep);
  if (!args.is_causal) return {0, end};
  int64_t const row = first_column - args.diagonal;
  return {int(row <= 0 ? 0 : row < args.q_rows ? row / kStep : end), end};
}

/// Of the columns kernel. Neighbouring CTAs have the same head, its first columns first: the most rows read them, if
/// causal. kIsAgain: it is computed where it is used, not where it was before.
template <class Gemm, bool kIsAgain>
MOYE_DEVICE AttentionPlace columns_place(AttentionArgs const& args, AttentionGradParams const& params) {
  int id = int(block_idx().x);
  if constexpr (kIsAgain) {
    MOYE_COMPUTED_HERE("+r", id);
  }
  int const matrix = id / params.kv_tiles;
  return {id % params.kv_tiles * Gemm::kOwned, matrix % int(args.kv_heads), matrix / int(args.kv_heads)};
}

/// Kinds of which calls without a mask have no loop of their own.
template <ScoresKind kKind>
inline constexpr bool kHasOneLoop = kIsBiased<kKind> || kIsDropped<kKind>;

/// weight_of_masked() of the rows `row` and `row` + 8.
template <bool kHasBias>
MOYE_DEVICE void weigh_masked(AttentionArgs const& args, RowBase const (&base)[2], float const (&lse)[2], int row,
                              float (&weights)[2]) {
  MOYE_UNROLL
  for (int r = 0; r < 2; ++r)
    weights[r] = kHasBias ? RowBase::weight_of_masked(base[r].log_sum) : weight_of_masked(args, row + 8 * r, lse[r]);
}

/// Of rows from `row` on of a column: what counts, what is not dropped, and the bias. No address stays in registers.
template <class Gemm, class Bias>
MOYE_DEVICE void load_dropped(AttentionArgs const& args, AttentionGradParams const& params, AttentionPlace const& at,
                              int column, int head, int first, int row, int lane, uint32_t& kept, uint32_t& undropped,
                              Bias& bias) {
  constexpr int kStep = Gemm::kStep;
  AttentionPlace own = Gemm::kShares > 1 ? columns_place<Gemm, true>(args, params) : at;
  own.row = column;
  MOYE_COMPUTED_HERE("+r", own.row);
  MOYE_COMPUTED_HERE("+r", own.head);
  MOYE_COMPUTED_HERE("+r", own.batch);
  int const of_head = own.head * int(args.group) + head;
  if (args.mask.data != nullptr)
    kept = kept_of_columns<kStep>(args, args.mask, own.batch, of_head, own.row, first, row, lane);
  undropped = kept_of_columns<kStep>(args, args.dropout, own.batch, of_head, own.row, first, row, lane);
  bias.start(own.batch, of_head, own.row, row);
}

template <bool kDrops, class T, int kN>
MOYE_DEVICE void to_fragments_of(float const (&weights)[kN / 2], uint32_t (&fragments)[kFragmentWords<T, kN>],
                                 uint32_t undropped) {
  if constexpr (kDrops) {
    to_kept_fragments<T, kN>(weights, fragments, undropped);
  } else {
    to_fragments<T, kN>(weights, fragments);
  }
}

/// The pipeline's mbarriers; behind it every thread of the CTA knows of them.
template <class Gemm>
MOYE_DEVICE typename Gemm::SharedStorage& begin(AttentionGradParams const& params) {
  auto& smem = *reinterpret_cast<typename Gemm::SharedStorage*>(smem_base());
  if (thread_idx().x == 0) {
    prefetch_tensor_map(&params.q);
    prefetch_tensor_map(&params.k);
    prefetch_tensor_map(&params.v);
    prefetch_tensor_map(&params.d_o);
    smem.pipeline.init(/*warps=*/4 * Gemm::kConsumers);
    mbarrier_init(&smem.full_owned, 1);
    fence_mbarrier_init();
  }
  sync_threads();
  griddepcontrol_wait();  // the kernel ahead may still run up to here
  return smem;
}

template <class Gemm>
MOYE_DEVICE void load_owned(TensorMap const* first, TensorMap const* second, AttentionPlace const& at,
                            typename Gemm::SharedStorage& smem) {
  mbarrier_arrive_expect_tx(&smem.full_owned, sizeof(smem.owned));
  MOYE_UNROLL
  for (int part = 0; part < Gemm::kParts; ++part) {
    int const column = part * kBoxColumns<typename Gemm::Element>;
    Gemm::Owned::template load<4>(first, &smem.full_owned, Gemm::Owned::stage(smem.owned[0], part), at.row, column,
                                  {at.head, at.batch, 0}, {});
    Gemm::Owned::template load<4>(second, &smem.full_owned, Gemm::Owned::stage(smem.owned[1], part), at.row, column,
                                  {at.head, at.batch, 0}, {});
  }
}

template <class Gemm>
MOYE_DEVICE void load_step(TensorMap const* first, TensorMap const* second, int row, int head, int batch,
                           typename Gemm::SharedStorage& smem, PipelineState<Gemm::kStages>& write) {
  // The consumers have released the stage: fill it.
  uint64_t* const full =
      smem.pipeline.producer_acquire(write, 2 * Gemm::kStep * Gemm::kHead * int(sizeof(typename Gemm::Element)));
  MOYE_UNROLL
  for (int part = 0; part < Gemm::kParts; ++part) {
    int const stage = write.index() * Gemm::kParts + part, column = part * kBoxColumns<typename Gemm::Element>;
    Gemm::Streamed::template load<4>(first, full, Gemm::Streamed::stage(smem.streamed[0], stage), row, column,
                                     {head, batch, 0}, {});
    Gemm::Streamed::template load<4>(second, full, Gemm::Streamed::stage(smem.streamed[1], stage), row, column,
                                     {head, batch, 0}, {});
  }
  ++write;
}

/// One thread: all loads of a CTA of the rows kernel, stage after stage.
template <class Gemm>
MOYE_DEVICE void load_for_rows(AttentionArgs const& args, AttentionGradParams const& params, AttentionPlace const& at,
                               int steps, typename Gemm::SharedStorage& smem) {
  load_owned<Gemm>(&params.q, &params.d_o, at, smem);
  auto write = TmaPipeline<Gemm::kStages>::producer_start();
  MOYE_NO_UNROLL
  for (int step = 0; step < steps; ++step)
    load_step<Gemm>(&params.k, &params.v, step * Gemm::kStep, at.head / int(args.group), at.batch, smem, write);
}

/// The same of the columns kernel: of all heads that read its columns.
template <class Gemm>
MOYE_DEVICE void load_for_columns(AttentionArgs const& args, AttentionGradParams const& params,
                                  AttentionPlace const& at, Steps const& steps, typename Gemm::SharedStorage& smem) {
  load_owned<Gemm>(&params.k, &params.v, at, smem);
  auto write = TmaPipeline<Gemm::kStages>::producer_start();
  MOYE_NO_UNROLL
  for (int head = at.head * int(args.group); head < (at.head + 1) * int(args.group); ++head) {
    MOYE_NO_UNROLL
    for (int step = steps.begin; step < steps.end; ++step)
      load_step<Gemm>(&params.q, &params.d_o, step * Gemm::kStep, head, at.batch, smem, write);
  }
}

/// Of a consumer's thread, or of its warp's first: its place among those that have different rows.
template <class Gemm>
MOYE_DEVICE int of_rows(int thread) {
  return Gemm::kShares == 1 ? thread : thread % 128;
}

/// Which part of head_dim the sums of a consumer are of.
template <class Gemm>
MOYE_DEVICE int share_of() {
  return Gemm::kShares == 1 ? 0 : warpgroup_id() - 1;
}

/// Of a warp's threads the first: descriptors are the same for all.
template <class Gemm>
MOYE_DEVICE int first_of_warp() {
  return of_rows<Gemm>(int(warp_id()) * 32 - 128);
}

/// What a thread's consumer sums over of a step's rows: its part of head_dim, (HEAD,STEP,SHARES*PIPE), partitioned.
template <class Gemm>
MOYE_DEVICE auto summed(typename Gemm::Element* streamed, int thread MOYE_LOC) {
  MOYE_SITE;
  using Summed = typename Gemm::Weighted;
  auto* const own = streamed + share_of<Gemm>() * Gemm::kStep * Gemm::kHeadOfSums;
  int const of_mma = Summed::kIsStarted ? first_of_warp<Gemm>() : of_rows<Gemm>(thread);
  return Summed::partition(make_tensor(make_smem_ptr(own), Summed::smem_layout()), of_mma);
}

/// Waits for the consumers that read the same owned rows.
template <class Gemm>
MOYE_DEVICE void sync_readers(int thread MOYE_LOC) {
  MOYE_SITE;
  if constexpr (Gemm::kShares == 1) {
    named_barrier_sync(1 + thread / 128, 128);
  } else {
    named_barrier_sync(1 + Gemm::kConsumers, 128 * Gemm::kConsumers);
  }
}

/// Starts sums = (an owned tile) (rows of a step)^T.
template <class Gemm, class A, class B, class C>
MOYE_DEVICE void start_scores(A const& tSrA, B const& tSrB, int stage, C& tSrC) {
  typename Gemm::ScoresMma scores_mma;
  warpgroup_fence_operand(tSrC);
  warpgroup_arrive();
  scores_mma.accumulate_ = GMMA::ScaleOut::Zero;
  MOYE_UNROLL
  for (int part = 0; part < Gemm::kParts; ++part) {
    gemm(scores_mma, tSrA(_, _, _, part), tSrB(_, _, _, stage * Gemm::kParts + part), tSrC);
    scores_mma.accumulate_ = GMMA::ScaleOut::One;
  }
  warpgroup_commit_group();
}

/// One warp's 16 rows of a result, of its consumer's part of head_dim; 16 bits where the warp's rows of an owned tile
/// were. rows: of a head of `array`, which `map` is of.
template <class Gemm, class Sums>
MOYE_DEVICE void store(TensorMap const* map, AttentionArray const& array, int64_t rows, typename Gemm::Element* owned,
                       Sums const& tOrO, float factor, AttentionPlace const& at, int head_dim, int thread) {
  using Element = typename Gemm::Element;
  constexpr int kParts = Gemm::kHeadOfSums / kBoxColumns<Element>;
  int const first = (Gemm::kShares == 1 ? 0 : thread / 128) * kParts, row = of_rows<Gemm>(thread) / 32 * 16;
  int const column = first * kBoxColumns<Element>;
  float const factors[2] = {factor, factor};
  if constexpr (sizeof(Element) == 4) {
    store_f32_rows<Gemm::kHeadOfSums>(array, &tOrO(_0{}), factors, at.row + row, rows, at.head, at.batch, head_dim,
                                      thread % 32, column);
  } else {
    unsigned char* boxes[kParts];
    MOYE_UNROLL
    for (int part = 0; part < kParts; ++part) {
      boxes[part] = reinterpret_cast<unsigned char*>(Gemm::Owned::stage(owned, first + part)) + row * 128;
    }
    store_rows<Element, Gemm::kHeadOfSums>(map, boxes, &tOrO(_0{}), factors, at.row + row, at.head, at.batch, head_dim,
                                           thread % 32, column);
  }
}

}  // namespace attention_grad
}  // namespace moye
