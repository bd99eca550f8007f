// Weights of 8 and 4 bits, b of a product, on their way from shared memory to the registers of mma.sync: fragments of A
// in the product's transpose, D^T = W^T X^T.
//   word       what ldmatrix.trans gives a lane: 16 bits of each of two neighbours along k; in both the same columns,
//              two of 8 bits or four of 4
//   pair       one column of a word as two neighbours of bf16 or f16, which are exact: a register of a fragment
//   offset     what is subtracted from such a pair: the column's zero, and what the bits were written on
//   scales     a lane's, of its columns in one group of k: on their way as the bits they are in memory
//   store_row  neighbours of d: rounded once, and nothing else of gemm/epilogue.h, whose instructions would take longer
//              to load than few rows take
// Integers are written into the mantissa of a power of two so large that its last bit counts one. bf16 has 7 bits for
// that: the sign of 8 is added to what is subtracted.
#pragma once

#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "moye/arch/convert.h"
#include "moye/arch/types.h"
#include "moye/core.h"

namespace moye {

/// Bits of a weight of b.
constexpr int weight_bits(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16xs4:
    case Dtype::f16xs4:
      return 4;
    default:
      return 8;
  }
}

/// The dtype of weights in memory, s4's for both of 4 bits.
enum class WeightKind { s8, s4, e4m3 };
constexpr WeightKind weight_kind(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16xs8:
    case Dtype::f16xs8:
      return WeightKind::s8;
    case Dtype::bf16xs4:
    case Dtype::f16xs4:
      return WeightKind::s4;
    default:
      return WeightKind::e4m3;
  }
}

template <class Element, WeightKind kKind>
struct WeightPairs {
  static constexpr bool kIsHalf = is_same<Element, half_t>;
  static constexpr uint32_t kPower = kIsHalf ? 0x64006400 : 0x43004300;  // a pair of 1024, of 128
  static constexpr float kPowerValue = kIsHalf ? 1024 : 128;

  /// Of a column: a pair of the same value.
  static MOYE_DEVICE uint32_t offset(int zero, bool is_signed) {
    if constexpr (kKind == WeightKind::e4m3) return 0;
    float value = float(zero);
    if constexpr (kKind == WeightKind::s4) value += kPowerValue + (is_signed ? 8 : 0);
    if constexpr (kKind == WeightKind::s8 && kIsHalf) value += kPowerValue + 128;
    return pack_pair<Element>(value, value);
  }

  /// What is written into the bits of pair(): the power of two, and what makes integers unsigned. It depends on the
  /// call, or ptxas would write it into instructions that have room for one mask, and need two.
  static MOYE_DEVICE uint32_t power(bool is_signed) {
    if constexpr (kKind == WeightKind::s4) return kPower | (is_signed ? 0x00080008 : 0);
    return is_signed ? kPower | (kIsHalf ? 0x00800080 : 0) : 0;  // of 8 bits all are signed
  }

  /// Column `column` of a word. power, offset: as above. kZeros: false where all zeros are 0.
  template <bool kZeros>
  static MOYE_DEVICE uint32_t pair(uint32_t word, int column, uint32_t offset, uint32_t power) {
    if constexpr (kKind == WeightKind::s4) {
      return sub_pair<Element>((word >> 4 * column & 0x000f000f) ^ power, offset);
    } else if constexpr (kKind == WeightKind::e4m3) {
      return unpack_e4m3_pair<Element>(word, column);
    } else if constexpr (kIsHalf) {
      return sub_pair<Element>((word >> 8 * column & 0x00ff00ff) ^ power, offset);
    } else {
      uint32_t const bits = word >> 8 * column;
      // 128 + the low 7 bits, less 128 or, where the sign is set, 256.
      uint32_t const weights = sub_pair<Element>((bits & 0x007f007f) | power, (bits & 0x00800080) | power);
      return kZeros ? sub_pair<Element>(weights, offset) : weights;
    }
  }
};

/// The scales of a lane's columns: floats, or pairs of 16 bits in the first half of `words`.
template <int kColumns>
struct WeightScales {
  uint32_t words[kColumns];

  /// Starts to load those of a group, of the columns from `column` on.
  MOYE_DEVICE void load(WeightsArgs const& args, int group, int column) {
    if (column >= args.gemm.n) return;
    int64_t const at = int64_t(group) * args.gemm.n + column;
    if (args.scale_dtype == Dtype::f32) return load(static_cast<float const*>(args.scales) + at);
    load(static_cast<uint16_t const*>(args.scales) + at);
  }
  template <class T>
  MOYE_DEVICE void load(T const* from) {
    using Words = Row<uint32_t, kColumns* int(sizeof(T)) / 4>;
    auto const row = detail::bit_cast<Words>(*reinterpret_cast<typename Words::Word const*>(from));
    MOYE_UNROLL
    for (int i = 0; i < int(sizeof(Words) / 4); ++i) words[i] = row.elements[i];
  }

  MOYE_DEVICE void to_floats(Dtype dtype, float (&scales)[kColumns]) const {
    auto const convert = [&](auto of_half) {
      MOYE_UNROLL
      for (int c = 0; c < kColumns; ++c) scales[c] = of_half(uint16_t(words[c / 2] >> c % 2 * 16));
    };
    if (dtype == Dtype::bf16) return convert([](uint16_t bits) { return float(bfloat16_t::bitcast(bits)); });
    if (dtype == Dtype::f16) return convert([](uint16_t bits) { return float(half_t::bitcast(bits)); });
    MOYE_UNROLL
    for (int c = 0; c < kColumns; ++c) scales[c] = detail::bit_cast<float>(words[c]);
  }
};

template <class T, int kCount>
MOYE_DEVICE void store_row(T* to, Row<T, kCount> const& row) {
  using Word = typename Row<T, kCount>::Word;
  if (reinterpret_cast<uintptr_t>(to) % sizeof(Word) == 0) {
    *reinterpret_cast<Word*>(to) = detail::bit_cast<Word>(row);
  } else {
    MOYE_UNROLL
    for (int i = 0; i < kCount; ++i) to[i] = row.elements[i];
  }
}
/// d at `index` and following: floats, or of type Element.
template <class Element, int kCount>
MOYE_DEVICE void store_row(GemmArgs const& args, int64_t index, Row<float, kCount> const& row) {
  if (args.d_dtype == Dtype::f32) return store_row(static_cast<float*>(args.d) + index, row);
  Row<Element, kCount> rounded;
  MOYE_UNROLL
  for (int i = 0; i < kCount; ++i) rounded.elements[i] = Element(row.elements[i]);
  store_row(static_cast<Element*>(args.d) + index, rounded);
}

}  // namespace moye
