// What Hopper's epilogues read beside the sums, c, bias, residual or a multiplier, box by box, and what they make of it
// in registers. gemm/epilogue_sm90.h has the boxes' order.
#pragma once

#include "gemm/activation.h"
#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue.h"
#include "moye/arch/convert.h"
#include "moye/arch/copy_sm75.h"
#include "moye/arch/copy_sm90.h"
#include "moye/core.h"

namespace moye {

/// The first column of box number `box` of a warpgroup's kColumns: where boxes do not divide them, the last one begins
/// early, so that it is whole.
template <int kColumns, class Out = uint16_t>
MOYE_HOST_DEVICE constexpr int first_column(int box) {
  return (box + 1) * kBoxColumns<Out> <= kColumns ? box * kBoxColumns<Out> : kColumns - kBoxColumns<Out>;
}

/// Calls f(T{}) with the type of results of `dtype`.
template <class Sum, class F>
MOYE_DEVICE void with_result(Dtype dtype, F const& f) {
  if (dtype == Dtype::bf16) {
    f(bfloat16_t{});
  } else if (dtype == Dtype::f16) {
    f(half_t{});
  } else if (is_same<Sum, float> || dtype == Dtype::f32) {
    f(float{});
  } else {
    f(Sum{});
  }
}

/// A box of 16-bit results, of which the thread has sum(0) to sum(31). Two neighbours of columns 8j to 8j + 7 are 4j
/// and 4j + 1, the next two are those eight rows below. stmatrix x4: lanes 0-7, 8-15, 16-23, 24-31 name the rows of
/// (rows 0-7, 8-15) x (columns 0-7, 8-15).
template <class Out, class SumOf>
MOYE_DEVICE void fill_box_16(unsigned char* box, SumOf const& sum, int lane) {
  int const row = lane % 16;
  MOYE_UNROLL
  for (int j = 0; j < kBoxColumns<Out> / 16; ++j) {
    auto const pair = [&](int k) {
      return pack_pair<Out>(static_cast<float>(sum(j * 8 + k)), static_cast<float>(sum(j * 8 + k + 1)));
    };
    int const piece = (j * 2 + lane / 16) ^ (row % 8);  // of 16 bytes: the 128-byte swizzle
    SM90_U32x4_STSM_N::copy(pair(0), pair(2), pair(4), pair(6),
                            *reinterpret_cast<uint128_t*>(box + row * 128 + piece * 16));
  }
}

/// Pairs. In odd rows the columns 16 to 31 come first: the swizzle alone would put rows 2i and 2i + 1 of the same
/// columns into the same banks.
template <class Out, class SumOf>
MOYE_DEVICE void fill_box_32(unsigned char* box, SumOf const& sum, int lane) {
  bool const is_odd = lane / 4 % 2 != 0;
  MOYE_UNROLL
  for (int half = 0; half < 2; ++half) {
    int const row = half * 8 + lane / 4;
    MOYE_UNROLL
    for (int j = 0; j < kBoxColumns<Out> / 8; ++j) {
      auto const element = [&](int k) {  // registers have no index: both are read
        auto const even = sum(j * 4 + half * 2 + k), odd = sum((j ^ 2) * 4 + half * 2 + k);
        return static_cast<Out>(is_odd ? odd : even);
      };
      int const piece = ((is_odd ? j ^ 2 : j) * 2 + lane % 4 / 2) ^ (row % 8);
      Row<Out, 2> const pair{element(0), element(1)};
      *reinterpret_cast<uint64_t*>(box + row * 128 + piece * 16 + lane % 2 * 8) = detail::bit_cast<uint64_t>(pair);
    }
  }
}

template <class Out, class SumOf>
MOYE_DEVICE void fill_box(unsigned char* box, SumOf const& sum, int lane) {
  if constexpr (sizeof(Out) == 2) {
    fill_box_16<Out>(box, sum, lane);
  } else {
    fill_box_32<Out>(box, sum, lane);
  }
}

/// The same of z, a box of floats or, to which it is rounded, of 16 bits. Warp: what stays the same of a warp's tile,
/// of gemm/epilogue_staging.h.
template <class Warp, int kSums>
MOYE_DEVICE void fill_box(Warp const& warp, unsigned char* box, float const (&z)[kSums]) {
  auto const sum = [&](int i) { return z[i]; };
  if constexpr (kSums == kBoxColumns<float> / 2) {
    fill_box<float>(box, sum, warp.lane);
  } else if (warp.args.d_dtype == Dtype::bf16) {
    fill_box<bfloat16_t>(box, sum, warp.lane);
  } else {
    fill_box<half_t>(box, sum, warp.lane);
  }
}

/// Whether two neighbours along n, from an even one on, are a word.
inline bool is_of_pairs(EpilogueOperand const& operand, int word_bytes) {
  int64_t const strides = operand.m_stride | operand.batch_strides.modes[0] | operand.batch_strides.modes[1] |
                          operand.batch_strides.modes[2];
  return operand.data == nullptr || (operand.n_stride == 1 && strides % 2 == 0 &&
                                     reinterpret_cast<uintptr_t>(operand.data) % uintptr_t(word_bytes) == 0);
}

/// Whether all rows of all matrices have the same of it, or there is none.
inline bool is_one_row(EpilogueOperand const& operand) {
  auto const& strides = operand.batch_strides.modes;
  return operand.data == nullptr || (operand.m_stride | strides[0] | strides[1] | strides[2]) == 0;
}

/// A box of an operand, 16 rows of 128 bytes, or a half of it, as the lanes of a warp have it: word i has what belongs
/// to z[2 i] and z[2 i + 1], which are those of row lane / 4 + i % 2 * 8 and of columns from i / 2 * 8 + lane % 4 * 2
/// on. kAnyEnd: whether d's last column may be an even one, which has no neighbour. Word: of two elements, of 16 bits
/// or floats. Warp: what stays the same of a warp's tile, of gemm/epilogue_staging.h.
template <int kColumns_ = 64, bool kAnyEnd = false, class Word_ = uint32_t>
struct OperandBox {
  using Word = Word_;
  static constexpr bool kIsFloat = sizeof(Word) == 8;
  using Element = typename WordOf<int(sizeof(Word)) / 2>::Type;
  static constexpr int kRows = 16, kColumns = kColumns_;
  static constexpr int kSums = kRows * kColumns / 32;  // of a thread
  Word words[kSums / 2];

  /// The box's first row in the tile, and column of d. What lies outside d is not read.
  template <class Warp>
  MOYE_DEVICE void load(Warp const& warp, EpilogueOperand const& operand, int tile_row, int column) {
    if (operand.data != nullptr) return load_present(warp, operand, tile_row, column);
    clear();
  }

  /// The same of one that there is.
  template <class Warp>
  MOYE_DEVICE void load_present(Warp const& warp, EpilogueOperand const& operand, int tile_row, int column) {
    if (!warp.place.has_matrix && operand.batch_strides.modes[kBatchModes - 1] != 0) return clear();
    int const row = warp.place.row + tile_row;
    int const lane_row = warp.lane / 4, lane_column = warp.lane % 4 * 2;
    auto const* const p = static_cast<Element const*>(operand.data) +
                          matrix_offset(warp.args, warp.place.matrix, operand.batch_strides) +
                          (row + lane_row) * operand.m_stride + column + lane_column;
    auto const* const below = p + 8 * operand.m_stride;
    auto const word = [](Element const* at) { return *reinterpret_cast<Word const*>(at); };
    int const rows = warp.place.end - row, columns = int(warp.args.n) - column;
    if (rows >= kRows && columns >= kColumns) {
      MOYE_UNROLL
      for (int j = 0; j < kSums / 4; ++j) words[j * 2] = word(p + j * 8), words[j * 2 + 1] = word(below + j * 8);
    } else {
      MOYE_UNROLL
      for (int j = 0; j < kSums / 4; ++j) {
        bool const is_there = lane_column + j * 8 < columns;
        auto const pair = [&](Element const* at) {
          return kAnyEnd && lane_column + j * 8 + 1 == columns ? Word(*at) : word(at);
        };
        words[j * 2] = is_there && lane_row < rows ? pair(p + j * 8) : 0;
        words[j * 2 + 1] = is_there && lane_row + 8 < rows ? pair(below + j * 8) : 0;
      }
    }
  }

  /// z += scale * words
  template <class Warp>
  MOYE_DEVICE void add(Warp const& warp, EpilogueOperand const& operand, float scale, float (&z)[kSums]) const {
    if (operand.data == nullptr) return;
    with_unpack(warp.args.d_dtype, [&](auto const& unpacked) { add_unpacked(unpacked, scale, z); });
  }

  /// The same of words of 16-bit type T.
  template <class T>
  MOYE_DEVICE void add_of(float scale, float (&z)[kSums]) const {
    add_unpacked([](uint32_t word) { return unpack_pair<T>(word); }, scale, z);
  }

  /// The half of its columns that begins with the first one, or the other.
  MOYE_DEVICE OperandBox<kColumns / 2> half(int number) const {
    OperandBox<kColumns / 2> result;
    MOYE_UNROLL
    for (int i = 0; i < kSums / 4; ++i) result.words[i] = words[number * (kSums / 4) + i];
    return result;
  }

  /// Words become z times the derivative that the activation names, at words, rounded to 16 bits.
  template <class Warp>
  MOYE_DEVICE void multiply_by_derivative(Warp const& warp, float const (&z)[kSums]) {
    with_derivative(warp.args.epilogue.activation, [&](auto known) {
      auto const all = [&](auto element) {
        using T = decltype(element);
        MOYE_UNROLL
        for (int i = 0; i < kSums / 2; ++i) {
          auto const [even, odd] = unpack_pair<T>(words[i]).elements;
          words[i] = pack_pair<T>(times_derivative(decltype(known)::value, z[2 * i], even),
                                  times_derivative(decltype(known)::value, z[2 * i + 1], odd));
        }
      };
      if (warp.args.d_dtype == Dtype::bf16) {
        all(bfloat16_t{});
      } else {
        all(half_t{});
      }
    });
  }

  /// Both cotangents of a layer with a gate, of which z is the product: words become z * activation(words), and
  /// multiplier's z * multiplier * activation'(words), rounded to 16 bits.
  template <class Warp>
  MOYE_DEVICE void differentiate_gate(Warp const& warp, float const (&z)[kSums], OperandBox& multiplier) {
    bool const is_bf16 = warp.args.d_dtype == Dtype::bf16;
    auto const unpacked = [&](uint32_t word) {
      return is_bf16 ? unpack_pair<bfloat16_t>(word) : unpack_pair<half_t>(word);
    };
    auto const packed = [&](Row<float, 2> const& pair) {
      auto const [even, odd] = pair.elements;
      return is_bf16 ? pack_pair<bfloat16_t>(even, odd) : pack_pair<half_t>(even, odd);
    };
    with_derivative(warp.args.epilogue.activation, [&](auto known) {
      constexpr Activation kActivation = decltype(known)::value;
      MOYE_UNROLL
      for (int i = 0; i < kSums / 2; ++i) {
        Row<float, 2> const at = unpacked(words[i]), factor = unpacked(multiplier.words[i]);
        Row<float, 2> of_factor, of_at;
        MOYE_UNROLL
        for (int k = 0; k < 2; ++k) {
          of_factor.elements[k] = z[2 * i + k] * activated(kActivation, at.elements[k]).value;
          of_at.elements[k] = times_derivative(kActivation, z[2 * i + k] * factor.elements[k], at.elements[k]);
        }
        words[i] = packed(of_factor);
        multiplier.words[i] = packed(of_at);
      }
    });
  }

  /// To shared memory, for TMA: stmatrix x4, as the accumulators' boxes of gemm/epilogue_sm90.h; `part` of a box.
  MOYE_DEVICE void fill(unsigned char* box, int part, int lane) const {
    int const row = lane % 16;
    MOYE_UNROLL
    for (int j = 0; j < kColumns / 16; ++j) {
      int const piece = (part * (kColumns / 8) + j * 2 + lane / 16) ^ (row % 8);  // of 16 bytes: the 128-byte swizzle
      SM90_U32x4_STSM_N::copy(words[j * 4], words[j * 4 + 1], words[j * 4 + 2], words[j * 4 + 3],
                              *reinterpret_cast<uint128_t*>(box + row * 128 + piece * 16));
    }
  }

  /// What TMA has brought to a box, or fill() has written there: ldmatrix x4 at the same places.
  MOYE_DEVICE void read(unsigned char const* box, int lane) {
    int const row = lane % 16;
    MOYE_UNROLL
    for (int j = 0; j < kColumns / 16; ++j) {
      int const piece = (j * 2 + lane / 16) ^ (row % 8);  // of 16 bytes: the 128-byte swizzle
      SM75_U32x4_LDSM_N::copy(*reinterpret_cast<uint128_t const*>(box + row * 128 + piece * 16), words[j * 4],
                              words[j * 4 + 1], words[j * 4 + 2], words[j * 4 + 3]);
    }
  }

 private:
  template <class Unpacked>
  MOYE_DEVICE void add_unpacked(Unpacked const& unpacked, float scale, float (&z)[kSums]) const {
    MOYE_UNROLL
    for (int i = 0; i < kSums / 2; ++i) {
      Row<float, 2> const pair = unpacked(words[i]);
      z[2 * i] += scale * pair.elements[0];
      z[2 * i + 1] += scale * pair.elements[1];
    }
  }

  /// f(what makes two floats of a word), which are of dtype.
  template <class F>
  static MOYE_DEVICE void with_unpack(Dtype dtype, F const& f) {
    if constexpr (kIsFloat) {
      f([](Word word) { return detail::bit_cast<Row<float, 2>>(word); });
    } else if (dtype == Dtype::bf16) {
      f([](uint32_t word) { return unpack_pair<bfloat16_t>(word); });
    } else {
      f([](uint32_t word) { return unpack_pair<half_t>(word); });
    }
  }

  /// Of what is not there, too: or ptxas keeps the words' registers from the kernel's beginning on.
  MOYE_DEVICE void clear() {
    MOYE_UNROLL
    for (int j = 0; j < kSums / 2; ++j) words[j] = 0;
  }
};

/// A row of bias beside boxes of 16-bit results: word j has columns j * 8 + lane % 4 * 2 and the next, of every row.
struct BiasRow {
  static constexpr int kWords = kBoxColumns<uint16_t> / 8;
  uint32_t words[kWords];

  /// From column `column` of d on, a box's first. What lies outside d is not read.
  template <class Warp>
  MOYE_DEVICE void load(Warp const& warp, int column) {
    int const lane_column = warp.lane % 4 * 2, columns = int(warp.args.n) - column;
    auto const* const data = static_cast<uint16_t const*>(warp.args.epilogue.bias.data);
    bool const is_there = data != nullptr;
    auto const* const p = data + column + lane_column;
    MOYE_UNROLL
    for (int j = 0; j < kWords; ++j)
      words[j] = is_there && lane_column + j * 8 < columns ? *reinterpret_cast<uint32_t const*>(p + j * 8) : 0;
  }

  /// The two floats of a word, of 16-bit type T.
  template <class T>
  MOYE_DEVICE Row<float, 2> pair(int j) const {
    return unpack_pair<T>(words[j]);
  }
};

/// z times the scales of its rows, then of its columns. The box's first row in the tile, and column of d; what lies
/// outside d is not read. Of rows of no group z is zero.
template <class Warp, int kSums>
MOYE_DEVICE void multiply_by_scales(Warp const& warp, int tile_row, int column, float (&z)[kSums]) {
  if (!warp.place.has_matrix) return;
  int matrix = warp.place.matrix;
  MOYE_COMPUTED_HERE("+r", matrix);  // as in TileEpilogue
  EpilogueScales const &of_rows = warp.args.epilogue.row_scale, &of_columns = warp.args.epilogue.column_scale;
  if (of_rows.data != nullptr) {
    float const* const p = of_rows.data + matrix_offset(warp.args, matrix, of_rows.batch_strides);
    MOYE_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const row = warp.place.row + tile_row + half * 8 + warp.lane / 4;
      float const scale = row < warp.place.end ? p[row * of_rows.stride] : 0.0f;
      MOYE_UNROLL
      for (int i = 0; i < kSums; i += 4) z[i + half * 2] *= scale, z[i + half * 2 + 1] *= scale;
    }
  }
  if (of_columns.data != nullptr) {
    float const* const p = of_columns.data + matrix_offset(warp.args, matrix, of_columns.batch_strides);
    MOYE_UNROLL
    for (int i = 0; i < kSums; i += 4) {
      MOYE_UNROLL
      for (int k = 0; k < 2; ++k) {
        int const at = column + i * 2 + warp.lane % 4 * 2 + k;
        float const scale = at < int(warp.args.n) ? p[at * of_columns.stride] : 0.0f;
        z[i + k] *= scale, z[i + 2 + k] *= scale;
      }
    }
  }
}

}  // namespace moye
