// The scales of a thread's sums of wgmma, of one block of 128 along k: where they are, and what they make of the sums.
//   rows       of a: a thread has two in each 64 of the tile, eight rows apart
//   of blocks  of b: one scale for 128 columns, which are the tile's
//   of columns of b: two neighbours in every eight columns, which lie side by side in memory
// They are loaded while the tensor core multiplies, and need no shared memory: those of rows and columns with their own
// block, those of rows and blocks, whose product is one factor, a block ahead.
#pragma once

#include "gemm/config.h"
#include "gemm/tile_scheduler.h"
#include "moye/arch/config.h"
#include "moye/arch/math.h"
#include "moye/int_tuple.h"
#include "moye/tensor.h"

namespace moye {

/// The pointers of a call, as its kernel takes them.
struct BlockScales {
  float const *a, *b;
  bool of_columns;
  int blocks;           // along k
  int64_t b_of_matrix;  // scales of b of one matrix
  int columns;          // of a row of b's scales, where they are of columns

  static BlockScales of(BlockScaledArgs const& args) {
    int64_t const blocks = args.gemm.k / kScaledBlock, of_n = ceil_div(args.gemm.n, int64_t{kScaledBlock});
    return {.a = args.a_scales,
            .b = args.b_scales,
            .of_columns = args.of_columns,
            .blocks = int(blocks),
            .b_of_matrix = of_n * blocks * (args.of_columns ? kScaledBlock : 1),
            .columns = int(of_n * kScaledBlock)};
  }
};

/// Of sums that have none.
struct NoScales {
  MOYE_DEVICE void begin(int /*block*/, int /*blocks*/) const {}
  template <class Sums, class OfBlock>
  MOYE_DEVICE void add(Sums& sums, OfBlock const& of_block) const {
    MOYE_UNROLL
    for (int i = 0; i < size(sums); ++i) sums(i) += of_block(i);
  }
};

/// Those of one thread, in one tile. kAtomsM: 64 rows each, that a thread has sums of; kAtomN: columns of a wgmma.
template <int kAtomsM, int kAtomN, bool kOfColumns>
class ThreadScales {
 public:
  /// row(i): the first row of atom i in d's matrix. column: the first one. lane: of the warp's thread.
  template <class RowOf>
  MOYE_DEVICE ThreadScales(BlockScales const& scales, GemmArgs const& args, int matrix, RowOf const& row, int column,
                           int lane)
      : a_(scales.a + matrix * args.m * scales.blocks),
        b_(scales.b + matrix * scales.b_of_matrix),
        b_step_(kOfColumns ? scales.columns : 1) {
    MOYE_UNROLL
    for (int i = 0; i < 2 * kAtomsM; ++i) {
      int const at = row(i / 2) + i % 2 * 8 + lane / 4, last = int(args.m) - 1;
      rows_[i] = int64_t(at < last ? at : last) * scales.blocks;  // nobody stores what lies behind the last row
    }
    b_ += kOfColumns ? int64_t(column + lane % 4 * 2) : int64_t(column / kScaledBlock) * scales.blocks;
    if (!kOfColumns && scales.blocks > 0) load(0);
  }

  /// Before the tensor core multiplies a block of `blocks`: starts to load.
  MOYE_DEVICE void begin(int block, int blocks) {
    if constexpr (kOfColumns) {
      load(block);
    } else {  // the tensor core does not wait for what is loaded now, but for what was loaded a block ago
      MOYE_UNROLL
      for (int i = 0; i < 2 * kAtomsM; ++i) factors_[i] = of_rows_[i] * of_b_[0].elements[0];
      if (block + 1 < blocks) load(block + 1);
    }
  }

  /// sums (MMA,MMA_M,MMA_N) += those of the block times their scales.
  template <class Sums, class OfBlock>
  MOYE_DEVICE void add(Sums& sums, OfBlock const& of_block) const {
    static_assert(decltype(size(sums))::value == kAtomsM * kAtomN / 2);
    MOYE_UNROLL
    for (int i = 0; i < kAtomsM; ++i) {
      MOYE_UNROLL
      for (int v = 0; v < kAtomN / 2; ++v) {  // neighbours, then those eight rows below, then eight columns further
        int const row = 2 * i + v / 2 % 2;
        if constexpr (kOfColumns) {
          float const of_row = of_block(v, i, _0{}) * of_rows_[row];
          sums(v, i, _0{}) = multiply_add(of_row, of_b_[v / 4].elements[v % 2], sums(v, i, _0{}));
        } else {
          sums(v, i, _0{}) = multiply_add(of_block(v, i, _0{}), factors_[row], sums(v, i, _0{}));
        }
      }
    }
  }

 private:
  MOYE_DEVICE void load(int block) {
    MOYE_UNROLL
    for (int i = 0; i < 2 * kAtomsM; ++i) of_rows_[i] = a_[rows_[i] + block];
    float const* const b = b_ + int64_t(block) * b_step_;
    MOYE_UNROLL
    for (int j = 0; j < kPairs; ++j) of_b_[j] = *reinterpret_cast<Pair const*>(b + j * 8);
  }

  static constexpr int kPairs = kOfColumns ? kAtomN / 8 : 1;
  struct alignas(kOfColumns ? 8 : 4) Pair {
    float elements[kOfColumns ? 2 : 1];
  };
  float const *a_, *b_;
  int64_t rows_[2 * kAtomsM];
  int b_step_;
  float of_rows_[2 * kAtomsM], factors_[2 * kAtomsM];
  Pair of_b_[kPairs];
};

}  // namespace moye
