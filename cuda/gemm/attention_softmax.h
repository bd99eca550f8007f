// sm90_attention's softmax: a thread's scores of a tile become weights, relative to the largest score so far.
//   SoftmaxRows       what a thread knows of its two rows
//   mask_scores       scores that are masked become low
//   soften            scores become weights
//   store_lse         what gradients need of the sums
#pragma once

#include "gemm/attention.h"
#include "gemm/attention_bias.h"
#include "gemm/attention_cap.h"
#include "gemm/config.h"
#include "moye/arch/math.h"
#include "moye/arch/warp.h"
#include "moye/core.h"

namespace moye {

/// What a thread knows of its two rows, 8 apart.
struct SoftmaxRows {
  int columns[2];                           // that count
  float largest[2] = {kNoScore, kNoScore};  // of the scores, before they are scaled
  float sum[2] = {0, 0};                    // of this thread's weights
  float factor[2];                          // of what was summed before the newest tile
};

inline constexpr float kLeastScale = 1e-37f;  // of rows whose scores so far are all masked

/// Scores become masked where they are not kept. scale: of base 2.
template <int kSums>
MOYE_DEVICE void mask_scores(float (&scores)[kSums], uint32_t const (&kept)[kSums / 32], AttentionMask const& mask,
                             float scale) {
  if (mask.data == nullptr) return;
  float const masked = mask.is_infinite ? kNoScore : kMasked / scale;
  MOYE_UNROLL
  for (int i = 0; i < kSums; ++i) {
    if ((kept[i / 32] >> i % 32 & 1) == 0) scores[i] = masked;
  }
}

/// Scores become weights, in place: those of columns `column` on. scale: of base 2. Scores with a bias may be as low as
/// masked ones: of them the largest is subtracted before they are scaled, so that of the same nothing is left. Those of
/// TF32 are rounded before they are added up: a result is a mean then, however they were rounded, which gradients need.
template <class T, bool kHasBias, int kSums>
MOYE_DEVICE void soften(float (&scores)[kSums], SoftmaxRows& rows, int column, float scale, int lane MOYE_LOC) {
  MOYE_SITE;
  int const fewest = rows.columns[0] < rows.columns[1] ? rows.columns[0] : rows.columns[1];
  if (column + 2 * kSums > fewest) {
    MOYE_UNROLL
    for (int i = 0; i < kSums; ++i) {
      if (column + i / 4 * 8 + lane % 4 * 2 + i % 2 >= rows.columns[i / 2 % 2]) scores[i] = kNoScore;
    }
  }
  MOYE_UNROLL
  for (int r = 0; r < 2; ++r) {
    float largest = rows.largest[r];
    MOYE_UNROLL
    for (int i = 0; i < kSums; ++i) {
      if (i / 2 % 2 == r) largest = larger(largest, scores[i]);
    }
    MOYE_UNROLL
    for (int other = 1; other < 4; other *= 2) {  // the four lanes of a row
      float const theirs = shfl_xor_sync(kFullWarp, largest, other);
      largest = larger(largest, theirs);
    }
    float sum = 0;
    if constexpr (kHasBias) {
      float const base = largest == kNoScore ? 0 : largest;
      rows.factor[r] = fast_exp2((rows.largest[r] - base) * scale);
      MOYE_UNROLL
      for (int i = 0; i < kSums; ++i) {
        if (i / 2 % 2 != r) continue;
        scores[i] = rounded_operand<T>(fast_exp2((scores[i] - base) * scale));
        sum += scores[i];
      }
    } else {
      // Where all scores so far are masked, nearly nothing: their product with the scale is rounded, and the
      // multiply-add would leave of their difference, which is 0, what the rounding took.
      float const of_row = largest * scale > kMasked / 2 ? scale : kLeastScale;
      float const base = largest == kNoScore ? 0 : largest * of_row;
      rows.factor[r] = fast_exp2(multiply_add(rows.largest[r], of_row, -base));
      MOYE_UNROLL
      for (int i = 0; i < kSums; ++i) {
        if (i / 2 % 2 != r) continue;
        scores[i] = rounded_operand<T>(fast_exp2(multiply_add(scores[i], of_row, -base)));
        sum += scores[i];
      }
    }
    rows.largest[r] = largest;
    rows.sum[r] = rows.sum[r] * rows.factor[r] + sum;
  }
}

/// Row `row`, the thread's r-th, of `matrix`, of all heads.
template <ScoresKind kKind>
MOYE_DEVICE void store_lse(AttentionArgs const& args, SoftmaxRows const& rows, int r, int64_t matrix, int row) {
  float const sum = rows.sum[r];
  if constexpr (kIsBiased<kKind>) {
    RowBase::store(args, matrix, row, rows.largest[r], sum, rows.columns[r]);
  } else {
    args.lse[matrix * args.q_rows + row] =
        sum == 0 ? kNoScore : rows.largest[r] * factor_of_scores<kKind>(args) + log(sum);
  }
}

}  // namespace moye
