// Floats that are added to the scores of attention, which then are in units of their own: score = scale * sum + bias.
// They are loaded from global memory as they lie: f32, or 16 bits, neighbours in one load where all rows allow that.
//   BiasAhead         of two rows, whose columns are gone through, a tile ahead as far as there are registers
//   BiasAtUse         likewise, where it is used
//   BiasOfColumns     of two columns, whose rows are: sm90_attention_grad's second kernel
//   NoBias            in the place of both
//   RowBase           what the weights of a row are relative to, which the forward pass writes in the place of lse
//   store_ds          the derivative of the scores, which is the bias' gradient
#pragma once

#include "gemm/attention.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "moye/algorithm/copy.h"
#include "moye/arch/convert.h"
#include "moye/arch/math.h"
#include "moye/core.h"

namespace moye {

/// The bias of a thread's scores: of two rows or columns 8 apart, from their first scores in a tile on.
struct BiasPlace {
  unsigned char const* first[2];
  int64_t stride;  // bytes between neighbours
  int end[2];      // of those that there are
};

/// Of the bias: how an element is read.
struct BiasFormat {
  bool is_f32, has_pairs;  // has_pairs: columns 2 i and 2 i + 1 are one word in all rows, or none

  MOYE_DEVICE explicit BiasFormat(AttentionArgs const& args) : is_f32(args.bias.is_f32) {
    AttentionBias const& bias = args.bias;
    int64_t const starts = bias.batch_stride | bias.head_stride | bias.row_stride | args.kv_rows;
    has_pairs =
        bias.column_stride == 1 && starts % 2 == 0 && reinterpret_cast<uintptr_t>(bias.data) % (2 * bytes()) == 0;
  }
  MOYE_DEVICE int bytes() const { return is_f32 ? 4 : 2; }
};

/// Starts to load the bias of kCount of a thread's scores, of which the first is its kFirst-th; 0 where there is none.
/// Of 16 bits a pair is in the even word, or each element in the low half of its own.
template <int kFirst, int kCount>
MOYE_DEVICE void load_bias(uint32_t (&words)[kCount], BiasPlace const& of, BiasFormat format, int lane) {
  auto const pairs = [&]<class Pair>(Pair) {
    MOYE_UNROLL
    for (int i = 0; i < kCount; i += 2) {
      int const r = (kFirst + i) / 2 % 2, at = (kFirst + i) / 4 * 8 + lane % 4 * 2;
      Pair pair = 0;
      if (at < of.end[r]) pair = *reinterpret_cast<Pair const*>(of.first[r] + at * int(sizeof(Pair) / 2));
      words[i] = uint32_t(pair);
      if constexpr (sizeof(Pair) == 8) words[i + 1] = uint32_t(pair >> 32);
    }
  };
  auto const elements = [&]<class Word>(Word) {
    static_assert(kFirst % 4 == 0 && kCount % 4 == 0);
    // One address from the other: the products of all columns and the stride would stay in registers.
    int const own = kFirst / 4 * 8 + lane % 4 * 2;
    unsigned char const* at[2] = {of.first[0] + own * of.stride, of.first[1] + own * of.stride};
    MOYE_UNROLL
    for (int i = 0; i < kCount; i += 2) {
      int const r = i / 2 % 2, first = own + i / 4 * 8;
      Word pair[2] = {};
      if (first < of.end[r]) pair[0] = *reinterpret_cast<Word const*>(at[r]);
      if (first + 1 < of.end[r]) pair[1] = *reinterpret_cast<Word const*>(at[r] + of.stride);
      words[i] = pair[0];
      words[i + 1] = pair[1];
      at[r] += 8 * of.stride;
    }
  };
  if (format.is_f32) {
    format.has_pairs ? pairs(uint64_t{}) : elements(uint32_t{});
  } else {
    format.has_pairs ? pairs(uint32_t{}) : elements(uint16_t{});
  }
}

/// Sums become scores: times scale, plus what load_bias() loaded. There is no branch around the sums: ptxas would wait
/// for all wgmma in front of it.
template <class Element, int kFirst, int kCount, int kSums>
MOYE_DEVICE void add_bias(float (&sums)[kSums], uint32_t (&words)[kCount], BiasFormat format, float scale) {
  if constexpr (sizeof(Element) == 2) {
    if (!format.is_f32) {
      MOYE_UNROLL
      for (int i = 0; i < kCount; i += 2) {
        uint32_t const second = format.has_pairs ? words[i] >> 16 : words[i + 1];
        words[i] = detail::bit_cast<uint32_t>(value_of_low_half<Element>(words[i]));
        words[i + 1] = detail::bit_cast<uint32_t>(value_of_low_half<Element>(second));
      }
    }
  }
  MOYE_UNROLL
  for (int i = 0; i < kCount; ++i) {
    sums[kFirst + i] = multiply_add(sums[kFirst + i], scale, detail::bit_cast<float>(words[i]));
  }
}

/// In the place of a bias where there is none.
struct NoBias {
  template <class... Args>
  MOYE_DEVICE explicit NoBias(Args const&...) {}
  template <class... Args>
  MOYE_DEVICE void start(Args...) {}
  template <int kSums, class... Args>
  MOYE_DEVICE void add(float (&)[kSums], Args...) {}
};

/// The bias, or NoBias.
template <bool kHasBias, class Bias>
using BiasIf = Conditional<kHasBias, Bias, NoBias>;

/// The bias of a thread of rows `row` and `row` + 8, in tiles of kSteps x 64 columns. That of the first kAhead of a
/// thread's scores is loaded a tile ahead, for more there are no registers.
template <class Element, int kSteps, int kAhead>
struct BiasAhead {
  AttentionArgs const& args;
  BiasFormat format;
  BiasPlace rows;  // from the first column on
  int lane;
  uint32_t words[kAhead];

  MOYE_DEVICE BiasAhead(AttentionArgs const& args, AttentionPlace const& at, int row, int lane)
      : args(args), format(args), lane(lane) {
    AttentionBias const& bias = args.bias;
    auto const* const data = static_cast<unsigned char const*>(bias.data);
    int64_t const first = at.batch * bias.batch_stride + at.head * bias.head_stride + row * bias.row_stride;
    rows.first[0] = data + first * format.bytes();
    rows.first[1] = rows.first[0] + 8 * bias.row_stride * format.bytes();
    rows.stride = bias.column_stride * format.bytes();
    MOYE_UNROLL
    for (int r = 0; r < 2; ++r) rows.end[r] = row + 8 * r < args.q_rows ? int(args.kv_rows) : 0;
  }

  /// Starts to load that of columns `column` on.
  MOYE_DEVICE void start(int column) { load_bias<0>(words, from(column), format, lane); }

  /// Adds what was started of columns `column` on, and the rest of the tile; starts the tile behind.
  MOYE_DEVICE void add(float (&sums)[kSteps * 32], int column) {
    add_all(sums, column);
    start(column + kSteps * 64);
  }

  /// The same, and starts nothing.
  MOYE_DEVICE void add_all(float (&sums)[kSteps * 32], int column) {
    add_bias<Element, 0>(sums, words, format, args.scale);
    add_behind<kAhead>(sums, column);
  }

 private:
  template <int kFirst>
  MOYE_DEVICE void add_behind(float (&sums)[kSteps * 32], int column) {
    if constexpr (kFirst < kSteps * 32) {
      load_bias<kFirst>(words, from(column), format, lane);
      add_bias<Element, kFirst>(sums, words, format, args.scale);
      add_behind<kFirst + kAhead>(sums, column);
    }
  }

  MOYE_DEVICE BiasPlace from(int column) const {
    BiasPlace moved = rows;
    MOYE_UNROLL
    for (int r = 0; r < 2; ++r) moved.first[r] += column * rows.stride, moved.end[r] -= column;
    return moved;
  }
};

/// The same for want of registers: loaded where it is added, kAtATime scores at a time, from places that are computed
/// there.
template <class Element, int kSteps, int kAtATime>
struct BiasAtUse {
  AttentionArgs const& args;
  AttentionPlace const& at;
  int row, lane;

  MOYE_DEVICE BiasAtUse(AttentionArgs const& args, AttentionPlace const& at, int row, int lane)
      : args(args), at(at), row(row), lane(lane) {}

  MOYE_DEVICE void start(int) {}

  MOYE_DEVICE void add(float (&sums)[kSteps * 32], int column) {
    int own = row;
    MOYE_COMPUTED_HERE("+r", own);
    BiasAhead<Element, kSteps, kAtATime> bias(args, at, own, lane);
    bias.start(column);
    bias.add_all(sums, column);
  }
};

/// The bias of a thread of columns `column` and `column` + 8, in steps of 64 rows of which kAhead of the thread's 32
/// scores are loaded early.
template <class Element, int kAhead>
struct BiasOfColumns {
  AttentionArgs const& args;
  BiasFormat format;
  BiasPlace place = {};
  int lane;
  uint32_t words[kAhead];

  MOYE_DEVICE BiasOfColumns(AttentionArgs const& args, int lane) : args(args), format(args), lane(lane) {
    format.has_pairs = false;  // neighbours are of other rows
  }

  /// Starts to load that of rows `row` on.
  MOYE_DEVICE void start(int batch, int head, int column, int row) {
    AttentionBias const& bias = args.bias;
    auto const* const data = static_cast<unsigned char const*>(bias.data);
    place.stride = bias.row_stride * format.bytes();
    MOYE_UNROLL
    for (int r = 0; r < 2; ++r) {
      int const of = column + 8 * r;
      int64_t const first = batch * bias.batch_stride + head * bias.head_stride + of * bias.column_stride;
      place.first[r] = data + first * format.bytes() + row * place.stride;
      place.end[r] = of < args.kv_rows ? int(args.q_rows) - row : 0;
    }
    load_bias<0>(words, place, format, lane);
  }

  /// Adds it, and the rest of the step.
  MOYE_DEVICE void add(float (&sums)[32]) {
    add_bias<Element, 0>(sums, words, format, args.scale);
    add_behind<kAhead>(sums);
  }

 private:
  template <int kFirst>
  MOYE_DEVICE void add_behind(float (&sums)[32]) {
    if constexpr (kFirst < 32) {
      load_bias<kFirst>(words, place, format, lane);
      add_bias<Element, kFirst>(sums, words, format, args.scale);
      add_behind<kFirst + kAhead>(sums);
    }
  }
};

/// What the weights of a row are relative to; with the row's place in the arrays where lse is without a bias.
struct RowBase {
  float largest, log_sum;  // log_sum: of base 2, with the sign of a negative number where all scores are masked

  /// Of a row that is not there no score has a weight.
  static MOYE_DEVICE RowBase load(AttentionArgs const& args, int64_t matrix, int row) {
    if (row >= args.q_rows) return {0, -kNoScore};
    float const* const at = args.lse + matrix * args.q_rows + row;
    float const log_sum = at[of_log_sums(args)] * float(kLog2E);
    // A bias alone may make scores as low as that: where masked ones are -inf they are none of these.
    bool const is_masked = (!args.mask.is_infinite && at[0] < kMasked / 2) || log_sum != log_sum;
    uint32_t const sign = is_masked ? 0x80000000 : 0;
    return {at[0], detail::bit_cast<float>(detail::bit_cast<uint32_t>(log_sum) | sign)};
  }

  /// largest: of the scores; sum: of exp(score - largest). columns: of the row that count.
  static MOYE_DEVICE void store(AttentionArgs const& args, int64_t matrix, int row, float largest, float sum,
                                int columns) {
    float* const at = args.lse + matrix * args.q_rows + row;
    at[0] = largest == kNoScore ? 0 : largest;
    at[of_log_sums(args)] = columns == 0 ? -kNoScore : sum == 0 ? __builtin_nanf("") : log(sum);
  }

  MOYE_DEVICE float weight(float score) const {
    return fast_exp2(multiply_add(score - largest, float(kLog2E), -__builtin_fabsf(log_sum)));
  }

  /// As weight_of_masked(): where all scores are masked the exponentials are 1, or none is a number.
  static MOYE_DEVICE float weight_of_masked(float log_sum) {
    return (detail::bit_cast<uint32_t>(log_sum) & 0x80000000) != 0 ? fast_exp2(-__builtin_fabsf(log_sum)) : 0;
  }

 private:
  static MOYE_DEVICE int64_t of_log_sums(AttentionArgs const& args) {
    return args.batch * args.kv_heads * args.group * args.q_rows;
  }
};

/// Writes the derivative of a thread's scores of rows `row` and `row` + 8, from column `column` on.
template <class Element, int kSums>
MOYE_DEVICE void store_ds(AttentionArgs const& args, float const (&values)[kSums], AttentionPlace const& at, int row,
                          int column, int lane) {
  AttentionScoresGrad const& ds = args.ds;
  int64_t const matrix = at.batch * (args.kv_heads * args.group) + at.head;
  auto const store = [&]<class Pair>(Pair, auto const& bits) {
    constexpr int kBytes = sizeof(Pair) / 2;
    unsigned char* rows[2];
    int end[2];
    MOYE_UNROLL
    for (int r = 0; r < 2; ++r) {
      int const of = row + 8 * r;
      rows[r] = static_cast<unsigned char*>(ds.data) + ((matrix * args.q_rows + of) * args.kv_rows + column) * kBytes;
      end[r] = of < args.q_rows ? int(args.kv_rows) - column : 0;
    }
    bool const has_pairs = args.kv_rows % 2 == 0;
    MOYE_UNROLL
    for (int i = 0; i < kSums; i += 2) {
      int const r = i / 2 % 2, first = i / 4 * 8 + lane % 4 * 2;
      Pair const pair = bits(values[i], values[i + 1]);
      if (has_pairs) {
        if (first < end[r]) *reinterpret_cast<Pair*>(rows[r] + first * kBytes) = pair;
      } else {
        using Word = typename WordOf<kBytes>::Type;
        Word* const to = reinterpret_cast<Word*>(rows[r]) + first;
        if (first < end[r]) to[0] = Word(pair);
        if (first + 1 < end[r]) to[1] = Word(pair >> (8 * kBytes));
      }
    }
  };
  if (sizeof(Element) == 4 || ds.is_f32) {
    store(uint64_t{}, f32_pair);
  } else if constexpr (sizeof(Element) == 2) {
    store(uint32_t{}, [](float x, float y) { return pack_pair<Element>(x, y); });
  }
}

/// Writes 0 of the columns from `column` on, which no row of the CTA's sees, kStep at a time.
template <class Element, int kStep>
MOYE_DEVICE void clear_ds(AttentionArgs const& args, AttentionPlace const& at, int row, int column, int lane) {
  float const zeros[kStep / 2] = {};
  MOYE_NO_UNROLL
  for (; column < args.kv_rows; column += kStep) store_ds<Element>(args, zeros, at, row, column, lane);
}

}  // namespace moye
