// From accumulators to d: z = alpha * (a b) + beta * c + bias, d = activation(z) + residual, and z itself on request;
// z's product may be multiplied by a scale of its row and one of its column;
// or d = activation(z) * (a second_b), and both products on request; or d = alpha * (a b) * activation'(c). What calls
// with a multiplier make of that gemm/epilogue_sm90.h alone says.
//   TileEpilogue   what is done to neighbours along n of one tile: load c, bias, residual, compute, convert, store
//   StagedEpilogue the tensor-core kernels' way there: accumulators -> shared memory -> whole rows, coalesced
// Over 600 lines: its ways share how a vector is read, finished and written.
#pragma once

#include "gemm/activation.h"
#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/tile_scheduler.h"
#include "moye/algorithm/copy.h"
#include "moye/arch/barrier.h"
#include "moye/arch/convert.h"
#include "moye/arch/store.h"
#include "moye/atom/mma_atom.h"
#include "moye/tensor.h"

namespace moye {

/// kCount neighbours, moved as one word of at most 16 bytes.
template <class T, int kCount>
struct Row {
  using Word = typename WordOf<int(sizeof(T)) * kCount>::Type;
  T elements[kCount];
};

template <class T, int kCount>
MOYE_DEVICE void write_word(Row<T, kCount> const& row, T* p) {
  using Word = typename Row<T, kCount>::Word;
  auto const word = detail::bit_cast<Word>(row);
  if constexpr (sizeof(Word) == 16) {
    store_global(word, *reinterpret_cast<Word*>(p));  // assigned, it would be four stores
  } else {
    *reinterpret_cast<Word*>(p) = word;
  }
}
/// The two floats of a word of 16-bit type T.
template <class T>
MOYE_DEVICE Row<float, 2> unpack_pair(uint32_t word) {
  if constexpr (is_same<T, bfloat16_t>) {  // the upper halves of floats
    return {detail::bit_cast<float>(word << 16), detail::bit_cast<float>(word & 0xffff0000u)};
  } else {
    auto const pair = detail::bit_cast<Row<T, 2>>(word);
    return {convert<float>(pair.elements[0]), convert<float>(pair.elements[1])};
  }
}

/// The C++ type of an accumulator, and what it can be written as: doubles as they are, the others rounded once.
template <Dtype kAccumulator>
struct Accumulator {
  using Sum = float;  // of f16 sums too
  static constexpr unsigned kOutDtypes = dtype_bits(Dtype::bf16, Dtype::f16, Dtype::f32);
};
template <>
struct Accumulator<Dtype::f64> {
  using Sum = double;
  static constexpr unsigned kOutDtypes = dtype_bits(Dtype::f64);
};
template <>
struct Accumulator<Dtype::s32> {
  using Sum = int32_t;
  static constexpr unsigned kOutDtypes = dtype_bits(Dtype::s32, Dtype::bf16, Dtype::f16, Dtype::f32);
};

/// Of a call where is_sum: c or the residual.
MOYE_HOST_DEVICE constexpr EpilogueOperand const& addend(EpilogueArgs const& epilogue) {
  return epilogue.c.data != nullptr ? epilogue.c : epilogue.residual;
}

/// What one call does to one tile of d. d's dtype is looked at where elements are loaded and stored, a uniform branch:
/// a copy of all of it per dtype would multiply the code.
/// kDerives: whether calls may multiply by a derivative. kScaled: whether the call has scales.
template <class Sum, int kVector_ = 16 / int(sizeof(Sum)), bool kDerives = false, bool kScaled = false>
class TileEpilogue {
 public:
  static constexpr int kVector = kVector_;  // neighbours along n that a thread finishes together

  /// tile_m, tile_n: the tile's extents.
  MOYE_DEVICE TileEpilogue(GemmArgs const& args, TileCoord const& tile, int tile_m, int tile_n)
      : args_(args),
        m_left_(int(args.m) - tile.m * tile_m),
        n_left_(int(args.n) - tile.n * tile_n),
        matrix_(tile.batch) {
    int64_t const m = int64_t(tile.m) * tile_m, n = int64_t(tile.n) * tile_n;
    BatchCoord const matrix = batch_coord(args.batch_sizes, tile.batch);
    auto const first = [&](EpilogueOperand const& operand) {
      return batch_offset(matrix, operand.batch_strides) + m * operand.m_stride + n * operand.n_stride;
    };
    d_ = batch_offset(matrix, args.d_batch_strides) + m * args.d_m_stride + n * args.d_n_stride;
    c_ = first(args.epilogue.c);
    bias_ = first(args.epilogue.bias);
    residual_ = first(args.epilogue.residual);
    whole_words_ = is_of_words(args);
  }

  /// Of a tile of which all but d has been copied: d begins d elements behind args.d.
  MOYE_DEVICE TileEpilogue(GemmArgs const& args, int64_t d, int m_left, int n_left)
      : args_(args), m_left_(m_left), n_left_(n_left), d_(d) {}

  /// Of a tile of a call where is_plain: d alone.
  static MOYE_DEVICE TileEpilogue of_product(GemmArgs const& args, TileCoord const& tile, int tile_m, int tile_n) {
    int64_t d = int64_t(tile.m) * tile_m * args.d_m_stride + int64_t(tile.n) * tile_n * args.d_n_stride;
    if (args.batch > 1) d += matrix_offset(args, tile.batch, args.d_batch_strides);
    return TileEpilogue(args, d, int(args.m) - tile.m * tile_m, int(args.n) - tile.n * tile_n);
  }

  /// The same of a call where is_sum: d and what is added.
  static MOYE_DEVICE TileEpilogue of_sum(GemmArgs const& args, TileCoord const& tile, int tile_m, int tile_n) {
    TileEpilogue epilogue = of_product(args, tile, tile_m, tile_n);
    EpilogueOperand const& added = addend(args.epilogue);
    epilogue.residual_ = int64_t(tile.m) * tile_m * added.m_stride + int64_t(tile.n) * tile_n * added.n_stride;
    if (args.batch > 1) epilogue.residual_ += matrix_offset(args, tile.batch, added.batch_strides);
    return epilogue;
  }

  /// Rows of the tile from `row` on are another thread's: they are neither read nor written.
  MOYE_DEVICE void end_at(int row) { m_left_ = row < m_left_ ? row : m_left_; }

  /// Whether every vector of d and of the operands is a word.
  static MOYE_HOST_DEVICE constexpr bool is_of_words(GemmArgs const& args) {
    EpilogueArgs const& epilogue = args.epilogue;
    auto const is_whole = [&](void const* data, BatchStrides const& batch, int64_t m_stride, int64_t n_stride) {
      // kVector is a power of two.
      int64_t const strides = m_stride | batch.modes[0] | batch.modes[1] | batch.modes[2];
      return n_stride == 1 && strides % kVector == 0 &&
             reinterpret_cast<uintptr_t>(data) % uintptr_t(word_bytes(args.d_dtype)) == 0;
    };
    auto const is_whole_operand = [&](EpilogueOperand const& operand) {
      return operand.data == nullptr ||
             is_whole(operand.data, operand.batch_strides, operand.m_stride, operand.n_stride);
    };
    return args.n % kVector == 0 && is_whole(args.d, args.d_batch_strides, args.d_m_stride, args.d_n_stride) &&
           reinterpret_cast<uintptr_t>(epilogue.preactivation) % uintptr_t(word_bytes(args.d_dtype)) == 0 &&
           is_whole_operand(epilogue.c) && is_whole_operand(epilogue.bias) && is_whole_operand(epilogue.residual);
  }

  /// Finishes and stores kCount vectors below each other: sums_of(i), a Row, are the sums of the tile's elements
  /// (m + i * row_step, n ...), n a multiple of kVector. Where every operand can be read in words, all that is done to
  /// the vectors is interleaved, and latencies overlap; else, and if it is one, they are finished one by one.
  template <int kCount, class SumsOf>
  MOYE_DEVICE void store_rows(SumsOf const& sums_of, int m, int row_step, int n MOYE_LOC) const {
    MOYE_SITE;
    if (n >= n_left_ || m >= m_left_) return;
    if (kCount == 1 || !whole_words_ || (kDerives && args_.epilogue.activation >= kFirstDerivative)) {
      MOYE_NO_UNROLL
      for (int i = 0; i < kCount; ++i) store(sums_of(i).elements, m + i * row_step, n);
    } else if constexpr (is_same<Sum, int32_t>) {
      if (args_.d_dtype == Dtype::s32) return finish_rows<int32_t, kCount>(sums_of, in_memory(), m, row_step, n);
      finish_rows<float, kCount>(sums_of, in_memory(), m, row_step, n);
    } else {
      finish_rows<Sum, kCount>(sums_of, in_memory(), m, row_step, n);
    }
  }

  /// Where c, bias and residual are: in memory, from the tile's first element on.
  struct InMemory {
    int64_t c, bias, residual;
  };
  /// Or copied to where they are at hand: those of a thread's kCount vectors below each other, kBytes for each.
  template <int kCount, int kBytes>
  struct Copied {
    struct alignas(kBytes) Word {
      unsigned char bytes[kBytes];
    };
    Word c[kCount], bias[kCount], residual[kCount];
  };

  /// Brings what store_copied() adds to these vectors of a call where is_of_words, word by word, with copy(from, to).
  template <int kCount, int kBytes, class Copy>
  MOYE_DEVICE void copy_rows(Copied<kCount, kBytes>& to, Copy const& copy, int m, int row_step, int n MOYE_LOC) const {
    MOYE_SITE;
    if (n >= n_left_ || m >= m_left_) return;
    auto const copy_operand = [&](EpilogueOperand const& operand, int64_t first, auto& words) {
      if (operand.data == nullptr) return;
      with_element<Sum>([&](auto element) {
        using T = decltype(element);
        using Word = typename Row<T, kVector>::Word;
        if constexpr (sizeof(Word) <= kBytes) {  // no others are copied
          MOYE_UNROLL
          for (int i = 0; i < kCount; ++i)
            copy(*word_of<T>(operand, first, m, i * row_step, n), reinterpret_cast<Word&>(words[i]));
        }
      });
    };
    copy_operand(args_.epilogue.c, c_, to.c);
    copy_operand(args_.epilogue.bias, bias_, to.bias);
    copy_operand(args_.epilogue.residual, residual_, to.residual);
  }

  /// store_rows() of a call where is_of_words, with what copy_rows() of these vectors has brought.
  template <int kCount, int kBytes, class SumsOf>
  MOYE_DEVICE void store_copied(SumsOf const& sums_of, Copied<kCount, kBytes> const& copied, int m, int row_step,
                                int n MOYE_LOC) const {
    MOYE_SITE;
    if (n >= n_left_ || m >= m_left_) return;
    finish_rows<Sum, kCount>(sums_of, copied, m, row_step, n);
  }

  /// store_rows() of a call where is_of_words and is_plain.
  template <int kCount, class SumsOf>
  MOYE_DEVICE void store_plain(SumsOf const& sums_of, int m, int row_step, int n MOYE_LOC) const {
    MOYE_SITE;
    if (n >= n_left_ || m >= m_left_) return;
    Sum z[kCount * kVector];
    MOYE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      auto const sums = sums_of(i);
      MOYE_UNROLL
      for (int j = 0; j < kVector; ++j) z[i * kVector + j] = sums.elements[j];
    }
    write_rows<kCount>(args_.d, m, row_step, n, z);
  }

  /// Of a call where is_sum and is_of_words: what is added to vectors below each other.
  template <int kCount>
  MOYE_DEVICE void added_words(uint128_t (&words)[kCount], int m, int row_step, int n MOYE_LOC) const {
    MOYE_SITE;
    if (n >= n_left_ || m >= m_left_) return;
    EpilogueOperand const& operand = addend(args_.epilogue);
    int64_t const first = residual_ + m * operand.m_stride + n, step = row_step * operand.m_stride;
    auto const load = [&](auto element) {
      using T = decltype(element);
      T const* p = static_cast<T const*>(operand.data) + first;
      MOYE_UNROLL
      for (int i = 0; i < kCount; ++i, p += step) {
        using Word = typename Row<T, kVector>::Word;
        if (m + i * row_step < m_left_) reinterpret_cast<Word&>(words[i]) = *reinterpret_cast<Word const*>(p);
      }
    };
    if (word_bytes(args_.d_dtype) == kVector * 2) {
      load(uint16_t{});
    } else {
      load(Sum{});
    }
  }
  /// Stores the vectors, with it.
  template <int kCount, class SumsOf>
  MOYE_DEVICE void store_sums(SumsOf const& sums_of, uint128_t const (&words)[kCount], int m, int row_step,
                              int n MOYE_LOC) const {
    MOYE_SITE;
    if (n >= n_left_ || m >= m_left_) return;
    EpilogueArgs const& epilogue = args_.epilogue;
    auto const scale = epilogue.c.data != nullptr ? static_cast<Sum>(epilogue.beta) : Sum(1);
    Sum z[kCount * kVector];
    MOYE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      auto const sums = sums_of(i);
      MOYE_UNROLL
      for (int j = 0; j < kVector; ++j) z[i * kVector + j] = static_cast<Sum>(epilogue.alpha) * sums.elements[j];
    }
    with_element<Sum>([&](auto element) {
      using T = decltype(element);
      auto const word_at = [&](int i) { return reinterpret_cast<typename Row<T, kVector>::Word const&>(words[i]); };
      add_words<T, kCount>(word_at, scale, z);
      write_rows_of<T, kCount>(args_.d, m, row_step, n, z);
    });
  }

  /// Stores a vector of two products where is_of_words and nothing but d is written.
  MOYE_DEVICE void store_pair_word(Row<Sum, kVector> const& sums, Row<Sum, kVector> const& second, int m,
                                   int n MOYE_LOC) const {
    MOYE_SITE;
    if (n >= n_left_ || m >= m_left_) return;
    Sum z[kVector];
    MOYE_UNROLL
    for (int i = 0; i < kVector; ++i) z[i] = static_cast<Sum>(args_.epilogue.alpha) * sums.elements[i];
    activate_all</*kRounded=*/false, /*kInTurn=*/false>(args_.epilogue.activation, z);
    MOYE_UNROLL
    for (int i = 0; i < kVector; ++i) z[i] *= second.elements[i];
    write_rows<1>(args_.d, m, /*row_step=*/0, n, z);
  }

  /// Finishes and stores sums[i], the sum of the tile's element (m, n + i). What lies outside d is neither read nor
  /// written.
  MOYE_DEVICE void store(Sum const (&sums)[kVector], int m, int n MOYE_LOC) const {
    MOYE_SITE;
    if (m >= m_left_ || n >= n_left_) return;
    if constexpr (is_same<Sum, int32_t>) {
      if (args_.d_dtype == Dtype::s32) return finish<int32_t>(sums, m, n);
      finish<float>(sums, m, n);
    } else {
      finish<Sum>(sums, m, n);
    }
  }

  /// The same of two products: `second` are the sums of a and the second b.
  MOYE_DEVICE void store_pair(Sum const (&sums)[kVector], Sum const (&second)[kVector], int m, int n MOYE_LOC) const {
    MOYE_SITE;
    if (m >= m_left_ || n >= n_left_) return;
    EpilogueArgs const& epilogue = args_.epilogue;
    Sum z[kVector];
    MOYE_UNROLL
    for (int i = 0; i < kVector; ++i) z[i] = static_cast<Sum>(epilogue.alpha) * sums[i];
    if (epilogue.preactivation != nullptr) write(epilogue.preactivation, m, n, z);
    if (epilogue.second_product != nullptr) write(epilogue.second_product, m, n, second);
    MOYE_UNROLL
    for (int i = 0; i < kVector; ++i) z[i] = activate(epilogue.activation, z[i]) * second[i];
    write(args_.d, m, n, z);
  }

 private:
  template <class Compute>
  MOYE_DEVICE void finish(Sum const (&sums)[kVector], int m, int n) const {
    EpilogueArgs const& epilogue = args_.epilogue;
    Compute z[kVector];
    MOYE_UNROLL
    for (int i = 0; i < kVector; ++i) z[i] = static_cast<Compute>(epilogue.alpha) * static_cast<Compute>(sums[i]);
    scale_rows<1>(m, /*row_step=*/0, n, z);
    if constexpr (is_same<Compute, float> && kDerives) {
      if (epilogue.activation >= kFirstDerivative) {
        float c[kVector] = {};
        add(epilogue.c, c_, 1.0f, m, n, c);
        MOYE_UNROLL
        for (int i = 0; i < kVector; ++i) z[i] = times_derivative(epilogue.activation, z[i], c[i]);
        return write(args_.d, m, n, z);
      }
    }
    if (epilogue.c.data != nullptr) add(epilogue.c, c_, static_cast<Compute>(epilogue.beta), m, n, z);
    if (epilogue.bias.data != nullptr) add(epilogue.bias, bias_, Compute(1), m, n, z);
    if (epilogue.preactivation != nullptr) write(epilogue.preactivation, m, n, z);
    if (epilogue.activation != Activation::none) {
      MOYE_UNROLL
      for (int i = 0; i < kVector; ++i) z[i] = activate(epilogue.activation, z[i]);
    }
    if (epilogue.residual.data != nullptr) add(epilogue.residual, residual_, Compute(1), m, n, z);
    write(args_.d, m, n, z);
  }

  MOYE_DEVICE InMemory in_memory() const { return {.c = c_, .bias = bias_, .residual = residual_}; }

  /// The same of rows of whole words, and of operands InMemory or Copied; z: (kCount,kVector).
  template <class Compute, int kCount, class SumsOf, class Operands>
  MOYE_DEVICE void finish_rows(SumsOf const& sums_of, Operands const& operands, int m, int row_step, int n) const {
    EpilogueArgs const& epilogue = args_.epilogue;
    Compute z[kCount * kVector];
    MOYE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      auto const sums = sums_of(i);
      MOYE_UNROLL
      for (int j = 0; j < kVector; ++j) {
        z[i * kVector + j] = static_cast<Compute>(epilogue.alpha) * static_cast<Compute>(sums.elements[j]);
      }
    }
    scale_rows<kCount>(m, row_step, n, z);
    auto const add = [&](EpilogueOperand const& operand, auto const& place, Compute scale) {
      if (operand.data != nullptr) add_rows<kCount>(operand, place, scale, m, row_step, n, z);
    };
    add(epilogue.c, operands.c, static_cast<Compute>(epilogue.beta));
    add(epilogue.bias, operands.bias, Compute(1));
    if (epilogue.preactivation != nullptr) write_rows<kCount>(epilogue.preactivation, m, row_step, n, z);
    // With copies little is left to do: a call without one does not wait for a jump.
    if (is_same<Operands, InMemory> || epilogue.activation != Activation::none)
      activate_all</*kRounded=*/false, /*kInTurn=*/is_same<Sum, int32_t>>(epilogue.activation, z);
    add(epilogue.residual, operands.residual, Compute(1));
    write_rows<kCount>(args_.d, m, row_step, n, z);
  }

  /// z (kCount,kVector) times the scales of its rows, then times those of its columns. Where they lie is computed here:
  /// registers would hold it through the main loop. Rows below d have the scale of the first one, columns beside it
  /// none.
  template <int kCount, class Compute>
  MOYE_DEVICE void scale_rows(int m, int row_step, int n, Compute (&z)[kCount * kVector]) const {
    if constexpr (kScaled && !is_same<Compute, int32_t>) {  // results of integers have no scales
      int matrix = matrix_;
      MOYE_COMPUTED_HERE("+r", matrix);
      EpilogueScales const& of_rows = args_.epilogue.row_scale;
      if (of_rows.data != nullptr) {
        float const* const p = of_rows.data + matrix_offset(args_, matrix, of_rows.batch_strides);
        int64_t const first = args_.m - m_left_ + m;
        MOYE_UNROLL
        for (int i = 0; i < kCount; ++i) {
          int const row = m + i * row_step < m_left_ ? i * row_step : 0;
          auto const scale = static_cast<Compute>(p[(first + row) * of_rows.stride]);
          MOYE_UNROLL
          for (int j = 0; j < kVector; ++j) z[i * kVector + j] *= scale;
        }
      }
      EpilogueScales const& of_columns = args_.epilogue.column_scale;
      if (of_columns.data != nullptr) {
        float const* const p = of_columns.data + matrix_offset(args_, matrix, of_columns.batch_strides);
        int64_t const first = args_.n - n_left_ + n;
        MOYE_UNROLL
        for (int j = 0; j < kVector; ++j) {
          if (n + j >= n_left_) break;
          auto const scale = static_cast<Compute>(p[(first + j) * of_columns.stride]);
          MOYE_UNROLL
          for (int i = 0; i < kCount; ++i) z[i * kVector + j] *= scale;
        }
      }
    }
  }

  /// Calls f(T{}) with the type of d's elements.
  template <class Compute, class F>
  MOYE_DEVICE void with_element(F const& f) const {
    if constexpr (!is_same<Compute, float>) {
      f(Compute{});
    } else if (args_.d_dtype == Dtype::bf16) {
      f(bfloat16_t{});
    } else if (args_.d_dtype == Dtype::f16) {
      f(half_t{});
    } else {
      f(float{});
    }
  }

  /// Of kVector elements of d. item_bytes is a function of the host alone.
  static MOYE_HOST_DEVICE constexpr int word_bytes(Dtype dtype) {
    bool const half = dtype == Dtype::bf16 || dtype == Dtype::f16;
    return kVector * (half ? 2 : dtype == Dtype::f64 ? 8 : 4);
  }

  /// Of an operand, the word at (m + row, n) of the tile. Rows below d are read as row m.
  template <class T>
  MOYE_DEVICE auto const* word_of(EpilogueOperand const& operand, int64_t first, int m, int row, int n) const {
    auto const* const p = static_cast<T const*>(operand.data) + first + m * operand.m_stride + n;
    return reinterpret_cast<typename Row<T, kVector>::Word const*>(p +
                                                                   (m + row < m_left_ ? row : 0) * operand.m_stride);
  }

  /// z += scale * operand, in rows of whole words.
  template <int kCount, class Compute>
  MOYE_DEVICE void add_rows(EpilogueOperand const& operand, int64_t first, Compute scale, int m, int row_step, int n,
                            Compute (&z)[kCount * kVector]) const {
    with_element<Compute>([&](auto element) {
      using T = decltype(element);
      typename Row<T, kVector>::Word words[kCount];
      MOYE_UNROLL
      for (int i = 0; i < kCount; ++i)  // before the first use: they are under way together
        words[i] = *word_of<T>(operand, first, m, i * row_step, n);
      add_words<T, kCount>([&](int i) { return words[i]; }, scale, z);
    });
  }

  /// The same of words that have been copied.
  template <int kCount, class Word, class Compute>
  MOYE_DEVICE void add_rows(EpilogueOperand const&, Word const (&words)[kCount], Compute scale, int, int, int,
                            Compute (&z)[kCount * kVector]) const {
    with_element<Compute>([&](auto element) {
      using T = decltype(element);
      using WordOfT = typename Row<T, kVector>::Word;
      if constexpr (sizeof(WordOfT) <= sizeof(Word))
        add_words<T, kCount>([&](int i) { return reinterpret_cast<WordOfT const&>(words[i]); }, scale, z);
    });
  }

  template <class T, int kCount, class WordAt, class Compute>
  MOYE_DEVICE static void add_words(WordAt const& word_at, Compute scale, Compute (&z)[kCount * kVector]) {
    MOYE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if constexpr (is_same<Compute, float> && sizeof(T) == 2 && kVector > 2) {
        auto const pairs = detail::bit_cast<Row<uint32_t, kVector / 2>>(word_at(i));
        MOYE_UNROLL
        for (int j = 0; j < kVector / 2; ++j) {
          auto const [even, odd] = unpack_pair<T>(pairs.elements[j]).elements;
          z[i * kVector + 2 * j] += scale * even, z[i * kVector + 2 * j + 1] += scale * odd;
        }
      } else {
        auto const row = detail::bit_cast<Row<T, kVector>>(word_at(i));
        MOYE_UNROLL
        for (int j = 0; j < kVector; ++j) z[i * kVector + j] += scale * convert<Compute>(row.elements[j]);
      }
    }
  }

  template <int kCount, class Compute>
  MOYE_DEVICE void write_rows(void* data, int m, int row_step, int n, Compute const (&z)[kCount * kVector]) const {
    with_element<Compute>([&](auto element) { write_rows_of<decltype(element), kCount>(data, m, row_step, n, z); });
  }

  template <class T, int kCount, class Compute>
  MOYE_DEVICE void write_rows_of(void* data, int m, int row_step, int n, Compute const (&z)[kCount * kVector]) const {
    T* const p = static_cast<T*>(data) + d_ + m * args_.d_m_stride + n;
    MOYE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (m + i * row_step >= m_left_) break;
      T* const at = p + i * row_step * args_.d_m_stride;
      if constexpr (is_same<Compute, float> && sizeof(T) == 2 && kVector > 2) {
        Row<uint32_t, kVector / 2> pairs;  // elements would be shifted into their place
        MOYE_UNROLL
        for (int j = 0; j < kVector / 2; ++j)
          pairs.elements[j] = pack_pair<T>(z[i * kVector + 2 * j], z[i * kVector + 2 * j + 1]);
        write_word(pairs, reinterpret_cast<uint32_t*>(at));
      } else {
        Row<T, kVector> row;
        MOYE_UNROLL
        for (int j = 0; j < kVector; ++j) row.elements[j] = convert<T>(z[i * kVector + j]);
        write_word(row, at);
      }
    }
  }

  template <class T>
  MOYE_DEVICE bool is_one_word(T const* p, int64_t n_stride, int count) const {
    return n_stride == 1 && count >= kVector && reinterpret_cast<uintptr_t>(p) % (kVector * sizeof(T)) == 0;
  }

  /// z += scale * operand
  template <class Compute>
  MOYE_DEVICE void add(EpilogueOperand const& operand, int64_t first, Compute scale, int m, int n,
                       Compute (&z)[kVector]) const {
    with_element<Compute>([&](auto element) {
      using T = decltype(element);
      auto const* p = static_cast<T const*>(operand.data) + first + m * operand.m_stride + n * operand.n_stride;
      if (is_one_word(p, operand.n_stride, n_left_ - n)) {
        auto const word = *reinterpret_cast<typename Row<T, kVector>::Word const*>(p);
        auto const row = detail::bit_cast<Row<T, kVector>>(word);
        MOYE_UNROLL
        for (int i = 0; i < kVector; ++i) z[i] += scale * convert<Compute>(row.elements[i]);
      } else {
        MOYE_UNROLL
        for (int i = 0; i < kVector; ++i) {
          if (n + i < n_left_) z[i] += scale * convert<Compute>(p[i * operand.n_stride]);
        }
      }
    });
  }

  template <class Compute>
  MOYE_DEVICE void write(void* data, int m, int n, Compute const (&z)[kVector]) const {
    with_element<Compute>([&](auto element) {
      using T = decltype(element);
      T* const p = static_cast<T*>(data) + d_ + m * args_.d_m_stride + n * args_.d_n_stride;
      Row<T, kVector> row;
      MOYE_UNROLL
      for (int i = 0; i < kVector; ++i) row.elements[i] = convert<T>(z[i]);
      if (is_one_word(p, args_.d_n_stride, n_left_ - n)) {
        write_word(row, p);
      } else {
        MOYE_UNROLL
        for (int i = 0; i < kVector; ++i) {
          if (n + i < n_left_) p[i * args_.d_n_stride] = row.elements[i];
        }
      }
    });
  }

  GemmArgs const& args_;
  int m_left_, n_left_;              // rows and columns of d from the tile's first on
  int matrix_;                       // of the batch
  int64_t d_, c_, bias_, residual_;  // offsets of the tile's first element; residual_ of c where is_sum
  bool whole_words_;                 // all vectors of d and of the operands are words
};

MOYE_HOST_DEVICE constexpr bool has_scales(EpilogueArgs const& epilogue) {
  return epilogue.row_scale.data != nullptr || epilogue.column_scale.data != nullptr;
}

/// Whether d is the product and nothing else, or that of two products.
constexpr bool is_plain(EpilogueArgs const& epilogue) {
  return epilogue.alpha == 1 && epilogue.c.data == nullptr && epilogue.bias.data == nullptr &&
         epilogue.residual.data == nullptr && epilogue.activation == Activation::none &&
         epilogue.preactivation == nullptr && !has_scales(epilogue);
}

/// Whether d is a multiple of the product and of c, or such a one and a residual.
constexpr bool is_sum(EpilogueArgs const& epilogue) {
  EpilogueArgs product = epilogue;
  product.alpha = 1;
  product.c.data = product.residual.data = nullptr;
  return is_plain(product) && (epilogue.c.data == nullptr) != (epilogue.residual.data == nullptr);
}

/// Calls f(epilogue) with the call's TileEpilogue of the tile. Calls with scales have code of their own, where kScales:
/// the others need its registers. No such call multiplies by a derivative.
template <class Sum, int kVector, bool kDerives, bool kScales, class F>
MOYE_DEVICE void with_tile_epilogue(GemmArgs const& args, TileCoord const& tile, int tile_m, int tile_n, F const& f) {
  if constexpr (kScales) {
    if (has_scales(args.epilogue)) {
      f(TileEpilogue<Sum, kVector, /*kDerives=*/false, /*kScaled=*/true>(args, tile, tile_m, tile_n));
      return;
    }
  }
  f(TileEpilogue<Sum, kVector, kDerives>(args, tile, tile_m, tile_n));
}

/// Where StagedEpilogue keeps sums, (ROWS,BLK_N). Rows of floats lie 32 bytes apart in the banks, those of doubles 64:
/// the pairs that the lanes of mma.sync write, four pairs of each of eight rows, meet no conflict, nor do the reads
/// along a row.
template <class Mma, int kTileN>
using StagedRows = Layout<Shape<Int<decltype(tile_size<0>(Mma{}))::value>, Int<kTileN>>, Stride<Int<kTileN + 8>, _1>>;

/// The epilogue of a CTA whose threads hold a tile of (kTileM, kTileN) as accumulators of Mma, a TiledMma. In steps of
/// one atom of every warp along m: sums to shared memory as the atoms hold them, back as rows, 16 bytes per thread, and
/// to global memory so that a warp's accesses are contiguous.
///   barriers of a step: before the writes: every thread has read the step before; after them: this one is there
/// kTogether: vectors that a thread finishes together at most, 1 or 4; 4 take registers beside the accumulators.
template <class Mma, int kTileM, int kTileN, Dtype kAccumulator, class SmemLayout = StagedRows<Mma, kTileN>,
          int kTogether = 4>
struct StagedEpilogue {
  using Sum = typename Accumulator<kAccumulator>::Sum;
  static constexpr int kThreads = decltype(size(Mma{}))::value;
  static constexpr int kRows = decltype(size<0>(SmemLayout{}))::value;
  static constexpr int kSteps = kTileM / kRows;
  // Tiles whose sums leave registers for it.
  static constexpr bool kScales = kTileM * kTileN / kThreads * int(sizeof(Sum)) <= 64 * int(sizeof(float));

  struct SharedStorage {
    alignas(128) Sum sums[cosize_v<SmemLayout>];
  };

  /// tCrC (MMA,MMA_M,MMA_N). Whatever else lives in `smem`: a barrier of the caller lies between its last use and this.
  /// The last reads of `smem` are not followed by a barrier.
  template <class Accumulators>
  static MOYE_DEVICE void store(GemmArgs const& args, TileCoord const& tile, Accumulators const& tCrC,
                                SharedStorage& smem, int thread MOYE_LOC) {
    MOYE_SITE;
    constexpr int kVector = 16 / int(sizeof(Sum));
    with_tile_epilogue<Sum, kVector, /*kDerives=*/false, kScales>(
        args, tile, kTileM, kTileN, [&](auto const& epilogue) { store_by(epilogue, tCrC, smem, thread); });
  }

 private:
  template <class Epilogue, class Accumulators>
  static MOYE_DEVICE void store_by(Epilogue const& epilogue, Accumulators const& tCrC, SharedStorage& smem,
                                   int thread) {
    Tensor sC = make_tensor(make_smem_ptr(smem.sums), SmemLayout{});  // (ROWS,BLK_N)
    Tensor tCsC = Mma{}.get_slice(thread).partition_C(sC);            // (MMA,1,MMA_N)
    static_assert(decltype(size<1>(tCrC))::value == kSteps, "a step is one atom of every warp along m");
    MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
        for (int step = 0; step < kSteps; ++step) {
      if (step > 0) sync_threads();
      MOYE_UNROLL
      for (int i = 0; i < kSteps; ++i) {  // accumulators are registers: their indices are constants
        if (i == step) write(tCrC(_, i, _), tCsC(_, _0{}, _));
      }
      sync_threads();
      constexpr int kVector = Epilogue::kVector;
      constexpr int kVectors = kTileN / kVector;  // of one row
      static_assert(kTileN % kVector == 0, "rows are whole vectors");
      // A thread stays in its columns where they divide the threads.
      constexpr int kRowStep = kThreads % kVectors == 0 ? kThreads / kVectors : 0;
      constexpr int kCount = kRowStep == 0 || kTogether == 1 ? 1
                             : kRows / kRowStep % 4 == 0     ? 4
                             : kRows % (2 * kRowStep) == 0   ? 2
                                                             : 1;
      MOYE_NO_UNROLL
      for (int vector = thread; vector < kRows * kVectors; vector += kThreads * kCount) {
        int const row = vector / kVectors, column = vector % kVectors * kVector;
        auto const sums_of = [&](int i) {
          auto const word = *reinterpret_cast<uint128_t const*>(&sC(row + i * kRowStep, column));
          return detail::bit_cast<Row<Sum, kVector>>(word);
        };
        epilogue.template store_rows<kCount>(sums_of, step * kRows + row, kRowStep, column);
      }
    }
  }

  /// from, to: (MMA,MMA_N). As many neighbours along n at a time as the atom has: two, of sm_70's f16 sums four.
  template <class From, class To>
  static MOYE_DEVICE void write(From const& from, To&& to) {
    Tensor sums = make_fragment_like<Sum>(from);  // (MMA,MMA_N)
    copy(from, sums);
    static_assert(vector_length<decltype(sums), To> >= 2,
                  "rows of shared memory hold an atom's neighbours side by side");
    copy(sums, to);
  }
};

}  // namespace moye
