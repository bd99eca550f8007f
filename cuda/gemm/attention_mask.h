// Which scores of attention are masked, or which of their weights are dropped, as a bit for each of a thread's: by
// bytes, any strides, or by words, where 16 neighbouring columns lie together as they do in most masks.
//   kept_of_rows      of two rows, whose columns are gone through: sm90_attention_grad's first kernel
//   kept_of_columns   of two columns, whose rows are: its second one
//   TileMask          of two rows, tile by tile: sm90_attention
#pragma once

#include "gemm/attention.h"
#include "gemm/config.h"
#include "moye/arch/warp.h"
#include "moye/core.h"

namespace moye {

inline constexpr uint32_t kAllKept = 0xffffffff;  // the scores of a thread, of a step

/// A bit of each score of a thread's, set where it counts and is not masked. A thread has two rows of kStep scores.
/// rows: bytes of the mask, of the rows' first scores. stride: between neighbours; 0 where a row has one byte. begin,
/// end: of those that count.
template <int kStep>
MOYE_DEVICE uint32_t kept_scores(unsigned char const* const (&rows)[2], int64_t stride, int const (&begin)[2],
                                 int const (&end)[2], int lane) {
  static_assert(kStep == 64, "a thread has 32 scores");
  uint32_t kept = 0;
  unsigned char only[2] = {};
  MOYE_UNROLL
  for (int r = 0; r < 2; ++r) {
    if (stride == 0 && end[r] > 0) only[r] = *rows[r];
  }
  // Eight loads are under way at a time: for all there are too few registers.
  MOYE_NO_UNROLL
  for (int i = 0; i < kStep / 2; i += 8) {
    int const first = i * 2 + lane % 4 * 2;
    unsigned char const* const of_first[2] = {rows[0] + first * stride, rows[1] + first * stride};
    uint32_t bits = 0;
    MOYE_UNROLL
    for (int j = 0; j < 8; ++j) {
      int const behind = j / 4 * 8 + j % 2, r = j / 2 % 2;
      unsigned char const* const at = of_first[r] + behind * stride;
      bool const counts = (begin[r] <= first + behind) & (first + behind < end[r]);  // no &&, which branches
      unsigned char byte = counts ? only[r] : 0;
      if (counts & (stride != 0)) byte = *at;
      bits |= uint32_t(byte != 0) << j;
    }
    kept |= bits << i;
  }
  return kept;
}

/// Whether 16 neighbouring columns of the mask are a word, and the last word of a row is whole.
MOYE_HOST_DEVICE bool has_mask_words(AttentionArgs const& args, AttentionBytes const& mask) {
  int64_t const starts = mask.batch_stride | mask.head_stride | mask.row_stride | args.kv_rows;
  return mask.column_stride == 1 && starts % 16 == 0 && reinterpret_cast<uintptr_t>(mask.data) % 16 == 0;
}

/// A lane's words of two rows of 64 scores, 16 bytes each: four lanes have the rows.
struct MaskWords {
  uint128_t of_row[2];
};

/// Those of rows `row` and `row` + 8 from column `column` on, a multiple of 64. What lies outside the mask is masked.
MOYE_DEVICE MaskWords load_mask_words(AttentionArgs const& args, AttentionBytes const& mask, AttentionPlace const& at,
                                      int row, int column, int lane) {
  int const own = column + lane % 4 * 16;
  unsigned char const* const first =
      mask.data + at.batch * mask.batch_stride + at.head * mask.head_stride + row * mask.row_stride + own;
  MaskWords words{};
  if (row < args.q_rows && own < args.kv_rows) words.of_row[0] = *reinterpret_cast<uint128_t const*>(first);
  if (row + 8 < args.q_rows && own < args.kv_rows) {
    words.of_row[1] = *reinterpret_cast<uint128_t const*>(first + 8 * mask.row_stride);
  }
  return words;
}

/// What kept_scores() makes of bytes, but that what does not count may be kept. All lanes of the warp call it.
MOYE_DEVICE uint32_t kept_of_words(MaskWords const& words, int lane MOYE_LOC) {
  MOYE_SITE;
  // Bit i of the result: is byte i of a word not 0?
  auto const of_word = [](uint32_t word) {
    uint32_t const high = (word | ((word & 0x7f7f7f7f) + 0x7f7f7f7f)) & 0x80808080;
    return (high >> 7) * 0x01020408 >> 24;  // no two bits meet
  };
  auto const of_words = [&](uint128_t const& of) {
    return of_word(of.x) | of_word(of.y) << 4 | of_word(of.z) << 8 | of_word(of.w) << 12;
  };
  bool const is_odd = lane % 2 != 0, is_second = lane % 4 >= 2;
  uint32_t kept = 0;
  MOYE_UNROLL
  for (int r = 0; r < 2; ++r) {
    uint32_t const own = of_words(words.of_row[r]) << (is_odd ? 16 : 0);
    uint32_t const half = own | shfl_xor_sync(kFullWarp, own, 1), other = shfl_xor_sync(kFullWarp, half, 2);
    uint32_t const halves[2] = {is_second ? other : half, is_second ? half : other};  // columns 0 to 31, and 32 to 63
    MOYE_UNROLL
    for (int i = 0; i < 2; ++i) {
      // Of every 8 columns the thread has two: bits 0, 8, 16, 24 and their neighbours become 0, 4, 8, 12 and theirs.
      uint32_t const pairs = halves[i] >> lane % 4 * 2 & 0x03030303, closer = pairs | pairs >> 4;
      kept |= ((closer & 0xff) | (closer >> 8 & 0xff00)) << (16 * i + 2 * r);
    }
  }
  return kept;
}

/// The same of rows `row` and `row` + 8, each with as many columns, from column `column` on.
template <int kStep>
MOYE_DEVICE uint32_t kept_of_bytes(AttentionArgs const& args, AttentionBytes const& mask, AttentionPlace const& at,
                                   int row, int const (&columns)[2], int column, int lane) {
  unsigned char const* const first = mask.data + at.batch * mask.batch_stride + at.head * mask.head_stride +
                                     row * mask.row_stride + column * mask.column_stride;
  unsigned char const* const rows[2] = {first, first + 8 * mask.row_stride};
  int const begin[2] = {0, 0};
  int const end[2] = {row < args.q_rows ? columns[0] - column : 0, row + 8 < args.q_rows ? columns[1] - column : 0};
  return kept_scores<kStep>(rows, mask.column_stride, begin, end, lane);
}

/// By words where that is possible: of rows whose own sums alone are made of them. All lanes of the warp call it.
template <int kStep>
MOYE_DEVICE uint32_t kept_of_rows(AttentionArgs const& args, AttentionBytes const& mask, AttentionPlace const& at,
                                  int row, int const (&columns)[2], int column, int lane) {
  if (has_mask_words(args, mask)) return kept_of_words(load_mask_words(args, mask, at, row, column, lane), lane);
  return kept_of_bytes<kStep>(args, mask, at, row, columns, column, lane);
}

/// The same of columns `column` and `column` + 8, the first of which row first_row reads first, from row `row` on.
template <int kStep>
MOYE_DEVICE uint32_t kept_of_columns(AttentionArgs const& args, AttentionBytes const& mask, int batch, int head,
                                     int column, int first_row, int row, int lane) {
  unsigned char const* const first = mask.data + batch * mask.batch_stride + head * mask.head_stride +
                                     row * mask.row_stride + column * mask.column_stride;
  unsigned char const* const columns[2] = {first, first + 8 * mask.column_stride};
  int const begin[2] = {first_row - row, first_row - row + 8}, rows = int(args.q_rows) - row;
  int const end[2] = {column < args.kv_rows ? rows : 0, column + 8 < args.kv_rows ? rows : 0};
  return kept_scores<kStep>(columns, mask.row_stride, begin, end, lane);
}

/// The mask of a thread's rows, `row` and `row` + 8, or another array of bytes, in tiles of kSteps x 64 columns.
/// kIsAhead: a tile's words are loaded while the tile before is computed, for memory takes longer than a tile's
/// products. Without the registers for that they are loaded where they are used, from addresses that are computed
/// there.
template <int kSteps, bool kIsAhead, auto kBytes = &AttentionArgs::mask>
struct TileMask {
  AttentionArgs const& args;
  AttentionPlace const& at;
  int row, lane;
  bool is_of_words;
  MaskWords words[kSteps] = {};
  uint32_t kept[kSteps] = {};  // a bit for each of the tile's scores

  MOYE_DEVICE TileMask(AttentionArgs const& args, AttentionPlace const& at, int row, int lane)
      : args(args),
        at(at),
        row(row),
        lane(lane),
        is_of_words((args.*kBytes).data != nullptr && has_mask_words(args, args.*kBytes)) {}

  /// Starts to load the words of columns `column` on, of the tile behind.
  MOYE_DEVICE void start(int column) {
    if constexpr (kIsAhead) load_words(column);
  }

  /// `kept` of columns `column` on, which were started; starts those behind. columns: of both rows, that count.
  MOYE_DEVICE void load(int const (&columns)[2], int column) {
    if ((args.*kBytes).data == nullptr) return;
    if constexpr (!kIsAhead) {
      MOYE_COMPUTED_HERE("+r", row);
      load_words(column);
    }
    MOYE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      kept[step] = is_of_words ? kept_of_words(words[step], lane)
                               : kept_of_bytes<64>(args, args.*kBytes, at, row, columns, column + step * 64, lane);
    }
    start(column + kSteps * 64);
  }

 private:
  MOYE_DEVICE void load_words(int column) {
    if (!is_of_words) return;
    MOYE_UNROLL
    for (int step = 0; step < kSteps; ++step)
      words[step] = load_mask_words(args, args.*kBytes, at, row, column + step * 64, lane);
  }
};

}  // namespace moye
