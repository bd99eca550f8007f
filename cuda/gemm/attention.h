// What attention and its gradients share: how rows lie in shared memory and in tensor maps, which columns count, what
// wgmma's sums are as operands, and how a warp stores its rows.
//   KOperand        rows whose head_dim is summed over: boxes of 64 elements, stage after stage
//   MnOperand       rows that are summed over themselves, 64 at a time; 64 rows lie as those of KOperand do
//   make_row_map    the tensor map of an array: (head_dim, rows, heads, batch)
//   columns_of      how many columns a row has
//   to_fragments    sums of a wgmma as A's fragments of the next one; to_second_fragments what their rounding took
//   store_rows      a warp's rows of a result, by TMA; to_rest what their rounding takes
#pragma once

#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue.h"
#include "gemm/order.h"
#include "gemm/tma_operand.h"
#include "moye/arch/barrier.h"
#include "moye/arch/convert.h"
#include "moye/arch/copy_sm90.h"
#include "moye/arch/math.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/tma.h"
#include "moye/arch/warp.h"
#include "moye/tensor.h"

namespace moye {

inline constexpr int kRowBlock = 64;  // rows, and elements of head_dim: a swizzled block of 8 KB
inline constexpr float kNoScore = -__builtin_huge_valf();
inline constexpr float kMasked = -1e30f;  // a masked score that is not -inf, times a scale of base 2

/// kRows rows of head_dim, of which a stage holds 64 elements, in boxes of kBoxRows.
template <class T, int kRows, int kStages, int kBoxRows = kRows>
using KOperand = TmaOperand<T, Major::k, kRows, kStages, 1, kBoxRows>;
/// 64 rows of kHead elements, summed over the rows.
template <class T, int kHead, int kStages>
using MnOperand = TmaOperand<T, Major::mn, kHead, kStages, 1>;

/// wgmma of sums (rows, kN): both operands in shared memory and contiguous along what is summed over.
template <class T, int kN>
using ScoresOp = SM90_WGMMA_SS<kN, float, T, T, GMMA::Major::K, GMMA::Major::K, GMMA::ScaleIn::One, GMMA::ScaleIn::One>;
/// Of A in registers and B contiguous along its columns.
template <class T, int kN>
using WeightedOp =
    SM90_WGMMA_RS<kN, float, T, T, GMMA::Major::K, GMMA::Major::MN, GMMA::ScaleIn::One, GMMA::ScaleIn::One>;

/// Host: (head_dim, rows, heads, batch); a box is 64 elements of box_rows rows.
template <class T>
Status make_row_map(TensorMap* map, AttentionArray const& array, AttentionArgs const& args, int64_t heads, int64_t rows,
                    int box_rows) {
  BatchOfMap const batch{.modes = {{heads, array.head_stride}, {args.batch, array.batch_stride}, {1, 0}}, .rank = 4};
  return make_matrix_map<T>(map, array.data, {args.head_dim, 1}, {rows, array.row_stride}, batch, kRowBlock, box_rows);
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

/// Accumulators of one warpgroup, (MMA) of kN columns, as A's fragments of the next wgmma: each 16 columns are 8
/// neighbours in both. Rounded to T.
template <class T, int kN>
MOYE_DEVICE void to_fragments(float const (&sums)[kN / 2], uint32_t (&fragments)[kN / 4]) {
  MOYE_UNROLL
  for (int i = 0; i < kN / 4; ++i) fragments[i] = pack_pair<T>(sums[2 * i], sums[2 * i + 1]);
}

template <class T>
MOYE_DEVICE float value_of_low_half(uint32_t word) {
  return float(T::bitcast(uint16_t(word)));
}

/// What the rounding took from them, rounded itself.
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

}  // namespace moye
