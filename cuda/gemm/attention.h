// What attention and its gradients share: how rows lie in shared memory and in tensor maps, which columns count, what
// wgmma's sums are as operands, and how a warp stores its rows.
//   KOperand        rows whose head_dim is summed over: boxes of 128 bytes, stage after stage
//   WeightedProduct the same rows, which are summed over themselves: how they lie, and what multiplies them
//   make_row_map    the tensor map of an array: (head_dim, rows, heads, batch)
//   columns_of      how many columns a row has
//   rounded_operand a float as products have it; round_to_operands of sums, in place
//   to_fragments    sums of a wgmma as A's fragments of the next product, to_rounded_fragments with their rounding;
//                   to_second_fragments what their rounding took
//   store_rows      a warp's rows of a result of 16 bits, by TMA; to_rest what their rounding takes
//   store_f32_rows  the same of f32, by each thread
#pragma once

#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue.h"
#include "gemm/order.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/copy.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/convert.h"
#include "moye/arch/copy_sm90.h"
#include "moye/arch/math.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/tma.h"
#include "moye/arch/warp.h"
#include "moye/tensor.h"

namespace moye {

inline constexpr int kRowBlock = 64;  // rows of a swizzled block of 8 KB
inline constexpr float kNoScore = -__builtin_huge_valf();
inline constexpr float kMasked = -1e30f;  // a masked score that is not -inf, times a scale of base 2

/// kRows rows of head_dim, of which a stage holds kBoxColumns, in boxes of kBoxRows.
template <class T, int kRows, int kStages, int kBoxRows = kRows>
using KOperand = TmaOperand<T, Major::k, kRows, kStages, 1, kBoxRows>;

/// wgmma of sums (rows, kN): both operands in shared memory and contiguous along what is summed over.
template <class T, int kN>
using ScoresOp = SM90_WGMMA_SS<kN, float, T, T, GMMA::Major::K, GMMA::Major::K, GMMA::ScaleIn::One, GMMA::ScaleIn::One>;

/// sums (a warpgroup's 64 rows, kHead) += weights (64, kRows) times kRows rows of kHead elements. The weights are A's
/// fragments, the rows lie in shared memory as KOperand's do, part after part, kStages times.
///   of 16 bits   wgmma, started: it reads B that is contiguous along its columns
///   of TF32      mma.sync, of which that is B for each warp's 16 rows: wgmma does not read 32 bits so
template <class T, int kHead, int kRows, int kStages, int kWarpgroups>
struct WeightedProduct {
  static constexpr bool kIsStarted = sizeof(T) == 2;
  using Started =
      SM90_WGMMA_RS<kHead, float, T, T, GMMA::Major::K, GMMA::Major::MN, GMMA::ScaleIn::One, GMMA::ScaleIn::One>;
  // Sums of a thread are columns 2t and 2t+1 of every 8: what a thread has of A along k, as t and t+4.
  using InPairs = Tile<Underscore, Underscore, Layout<Shape<_4, _2>, Stride<_2, _1>>>;
  static MOYE_HOST_DEVICE constexpr auto make_mma() {
    if constexpr (kIsStarted) {
      return make_tiled_mma(Started{}, Layout<Shape<Int<kWarpgroups>, _1, _1>>{});
    } else {
      return make_tiled_mma(SM80_16x8x8_F32TF32TF32F32_TN{}, Layout<Shape<Int<4 * kWarpgroups>, _1, _1>>{}, InPairs{});
    }
  }
  using Mma = decltype(make_mma());
  // Of a thread's weights: (MMA,MMA_M,MMA_K).
  using FragmentShape = Conditional<kIsStarted, Shape<_8, _1, Int<kRows / 16>>, Shape<_4, _1, Int<kRows / 8>>>;

  static MOYE_HOST_DEVICE constexpr auto smem_layout() {
    constexpr auto kShape = make_shape(Int<kHead>{}, Int<kRows>{}, Int<kStages>{});
    return tile_to_shape(gmma_smem_atom<GMMA::Major::MN, T, 128>(), kShape, Step<_2, _1, _3>{});  // (HEAD,ROWS,PIPE)
  }

  /// The rows of smem_layout() as add() takes them, (MMA,MMA_N,MMA_K,PIPE). thread: of the warpgroups.
  template <class S>
  static MOYE_DEVICE auto partition(S const& rows, int thread MOYE_LOC) {
    MOYE_SITE;
    if constexpr (kIsStarted) {
      return Mma{}.get_slice(thread / 32 * 32).partition_fragment_B(rows);
    } else {
      return Mma{}.get_slice(thread).partition_B(rows);
    }
  }

  /// Adds the product with stage `stage`, or starts to.
  template <class A, class B, class C>
  static MOYE_DEVICE void add(A& weights, B const& rows, int stage, C& sums MOYE_LOC) {
    MOYE_SITE;
    if constexpr (kIsStarted) {
      warpgroup_fence_operand(sums);
      warpgroup_fence_operand(weights);
      warpgroup_arrive();
      gemm(Mma{}, weights, rows(_, _, _, stage), sums);
      warpgroup_commit_group();
    } else {
      Tensor of_stage = rows(_, _, _, stage);  // (MMA,MMA_N,MMA_K)
      MOYE_UNROLL
      for (int k = 0; k < kRows / 8; ++k) {
        Tensor fragment = make_fragment_like(of_stage(_, _, k));  // (MMA,MMA_N)
        copy(of_stage(_, _, k), fragment);
        gemm(Mma{}, weights(_, _, k), fragment, sums);
      }
    }
  }

  /// Releases a stage of rows that add() has read. TMA writes them anew when one lane of each warp has: by then all
  /// that is read has to be there. Without the fence ptxas puts the release ahead of the last multiplications, while
  /// the loads for them are under way.
  template <class Pipeline, class State>
  static MOYE_DEVICE void release(Pipeline& pipeline, State const& stage, int lane MOYE_LOC) {
    MOYE_SITE;
    if constexpr (!kIsStarted) {
      fence_proxy_async_shared_cta();
      sync_warp();
    }
    pipeline.consumer_release(stage, lane);
  }
};

/// The words of a thread's kN sums of two rows as A's fragments.
template <class T, int kN>
inline constexpr int kFragmentWords = kN / 2 * int(sizeof(T)) / 4;

/// Host: (head_dim, rows, heads, batch); a box is 128 bytes of box_rows rows.
template <class T>
Status make_row_map(TensorMap* map, AttentionArray const& array, AttentionArgs const& args, int64_t heads, int64_t rows,
                    int box_rows) {
  BatchOfMap const batch{.modes = {{heads, array.head_stride}, {args.batch, array.batch_stride}, {1, 0}}, .rank = 4};
  return make_matrix_map<T>(map, array.data, {args.head_dim, 1}, {rows, array.row_stride}, batch, kBoxColumns<T>,
                            box_rows);
}

/// The columns of row `row` that count, from 0 on.
MOYE_DEVICE int columns_of(AttentionArgs const& args, int row) {
  if (!args.is_causal) return int(args.kv_rows);
  int64_t const last = row + args.diagonal + 1;
  return int(last < 0 ? 0 : last < args.kv_rows ? last : args.kv_rows);
}

/// A CTA's first row, and the head, of Q or of K, that it has.
struct AttentionPlace {
  int row, head, batch;
};

/// A float as products of T have it: rounded to TF32; of 16 bits as it is, since what packs it rounds.
template <class T>
MOYE_DEVICE float rounded_operand(float value) {
  return sizeof(T) == 4 ? detail::bit_cast<float>(round_to_tf32(value)) : value;
}

/// Puts a thread's i-th pair of neighbouring sums into A's fragments. Of 16 bits a pair is a word, rounded, in the
/// order of the sums. Of TF32 four words are two pairs: the first sums of both, then the second.
template <class T, int kWords>
MOYE_DEVICE void set_pair(uint32_t (&fragments)[kWords], int i, float first, float second) {
  if constexpr (sizeof(T) == 2) {
    fragments[i] = pack_pair<T>(first, second);
  } else {
    fragments[i / 2 * 4 + i % 2] = detail::bit_cast<uint32_t>(first);
    fragments[i / 2 * 4 + 2 + i % 2] = detail::bit_cast<uint32_t>(second);
  }
}

/// Rounds sums in place, so that they and their fragments are the same registers.
template <class T, int kSums>
MOYE_DEVICE void round_to_operands(float (&sums)[kSums]) {
  MOYE_UNROLL
  for (float& sum : sums) sum = rounded_operand<T>(sum);
}

/// Accumulators of one warpgroup, (MMA) of kN columns, as A's fragments of the next product; of TF32 rounded before.
template <class T, int kN>
MOYE_DEVICE void to_fragments(float const (&sums)[kN / 2], uint32_t (&fragments)[kFragmentWords<T, kN>]) {
  MOYE_UNROLL
  for (int i = 0; i < kN / 4; ++i) set_pair<T>(fragments, i, sums[2 * i], sums[2 * i + 1]);
}

/// The same, and rounds them.
template <class T, int kN>
MOYE_DEVICE void to_rounded_fragments(float (&sums)[kN / 2], uint32_t (&fragments)[kFragmentWords<T, kN>]) {
  round_to_operands<T>(sums);
  to_fragments<T, kN>(sums, fragments);
}

template <class T>
MOYE_DEVICE float value_of_low_half(uint32_t word) {
  return float(T::bitcast(uint16_t(word)));
}

/// What the rounding to 16 bits took from them, rounded itself.
template <class T, int kN>
MOYE_DEVICE void to_second_fragments(float const (&sums)[kN / 2], uint32_t const (&fragments)[kN / 4],
                                     uint32_t (&second)[kN / 4]) {
  MOYE_UNROLL
  for (int i = 0; i < kN / 4; ++i) {
    second[i] = pack_pair<T>(sums[2 * i] - value_of_low_half<T>(fragments[i]),
                             sums[2 * i + 1] - value_of_low_half<T>(fragments[i] >> 16));
  }
}

/// Sums times factors[0], and [1] for the rows 8 to 15, become what store_rows' rounding takes from them.
template <class T, int kHead>
MOYE_DEVICE void to_rest(float (&sums)[kHead / 2], float const (&factors)[2]) {
  MOYE_UNROLL
  for (int i = 0; i < kHead / 2; i += 2) {
    float const first = sums[i] * factors[i / 2 % 2], second = sums[i + 1] * factors[i / 2 % 2];
    uint32_t const rounded = pack_pair<T>(first, second);
    sums[i] = first - value_of_low_half<T>(rounded);
    sums[i + 1] = second - value_of_low_half<T>(rounded >> 16);
  }
}

/// One warp stores its 16 rows of kHead columns through `box`, 16 rows of 128 bytes each for 64 columns: sums times
/// factors[0], and [1] for the rows 8 to 15; columns from `column` on. Rows and columns beyond the array are not
/// stored. Behind it tma_store_wait_group_read.
template <class T, int kHead>
MOYE_DEVICE void store_rows(TensorMap const* map, unsigned char* (&boxes)[kHead / kRowBlock], float const* sums,
                            float const (&factors)[2], int row, int head, int batch, int head_dim, int lane,
                            int column MOYE_LOC) {
  MOYE_SITE;
  MOYE_UNROLL
  for (int c = 0; c < kHead / kRowBlock; ++c) {
    MOYE_UNROLL
    for (int j = 0; j < 4; ++j) {
      auto const pair = [&](int k) {
        float const* const of = sums + c * 32 + j * 8 + k;
        return pack_pair<T>(of[0] * factors[k / 2 % 2], of[1] * factors[k / 2 % 2]);
      };
      int const piece = (j * 2 + lane / 16) ^ (lane % 8);  // of 16 bytes: the 128-byte swizzle
      SM90_U32x4_STSM_N::copy(pair(0), pair(2), pair(4), pair(6),
                              *reinterpret_cast<uint128_t*>(boxes[c] + lane % 16 * 128 + piece * 16));
    }
  }
  fence_proxy_async_shared_cta();
  sync_warp();
  if (lane == 0) {
    MOYE_UNROLL
    for (int c = 0; c < kHead / kRowBlock; ++c) {
      int const first = column + c * kRowBlock;
      if (first < head_dim) tma_store(map, boxes[c], first, row, head, batch);
    }
    tma_store_commit_group();
  }
}

/// The same of f32, by each thread two neighbours at a time: four lanes write a sector. row, head: the warp's first row
/// in `array`, which has `rows` rows.
template <int kHead>
MOYE_DEVICE void store_f32_rows(AttentionArray const& array, float const* sums, float const (&factors)[2], int row,
                                int64_t rows, int head, int batch, int head_dim, int lane, int column) {
  MOYE_UNROLL
  for (int r = 0; r < 2; ++r) {
    int const own = row + lane / 4 + 8 * r;
    if (own >= rows) continue;
    float* const to = static_cast<float*>(array.data) + batch * array.batch_stride + head * array.head_stride +
                      own * array.row_stride + column + lane % 4 * 2;
    MOYE_UNROLL
    for (int j = 0; j < kHead / 8; ++j) {
      float const* const of = sums + j * 4 + r * 2;
      if (column + j * 8 >= head_dim) break;
      *reinterpret_cast<uint64_t*>(to + j * 8) = f32_pair(of[0] * factors[r], of[1] * factors[r]);
    }
  }
}

}  // namespace moye
