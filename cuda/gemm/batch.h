// Where the matrices of a batch lie. A batch has up to kBatchModes modes; its matrices are numbered in row-major order.
//   make_batch_sizes   of a call
//   batch_coord        number -> coordinate along each mode
//   batch_offset       coordinate -> elements from an operand's first matrix on
//   matrix_offset      number -> elements, for one operand
#pragma once

#include "gemm/config.h"
#include "moye/arch/config.h"

namespace moye {

/// A matrix's coordinate along each batch mode, outermost first.
struct BatchCoord {
  int modes[kBatchModes];
};

/// Host. 1 <= number < 2^31.
constexpr Divisor make_divisor(unsigned number) {
  unsigned bits = 0;
  while (bits < 31 && 1u << bits < number) ++bits;
  unsigned const shift = 31 + bits;
  // Rounded up by less than number <= 2^bits: exact for what is divided below 2^31.
  return {.multiplier = unsigned(((uint64_t{1} << shift) + number - 1) / number), .shift = shift};
}

MOYE_HOST_DEVICE constexpr unsigned divide(unsigned number, Divisor const& by) {
  return unsigned(uint64_t(number) * by.multiplier >> by.shift);
}

/// Host. outer * middle * inner < 2^31.
constexpr BatchSizes make_batch_sizes(int outer, int middle, int inner) {
  static_assert(kBatchModes == 3);
  auto const divisor = [](int size) { return make_divisor(size > 0 ? unsigned(size) : 1); };
  return {.modes = {outer, middle, inner}, .divisors = {divisor(middle), divisor(inner)}};
}

/// Divides only where there are modes to tell apart; the branch is the same for all threads.
MOYE_HOST_DEVICE constexpr BatchCoord batch_coord(BatchSizes const& sizes, int matrix) {
  if (sizes.modes[0] == 1 && sizes.modes[1] == 1) return {{0, 0, matrix}};
  unsigned const number = unsigned(matrix);
  int const outer = int(divide(number, sizes.divisors[1]));
  int const outermost = int(divide(unsigned(outer), sizes.divisors[0]));
  return {{outermost, outer - outermost * sizes.modes[1], matrix - outer * sizes.modes[2]}};
}

MOYE_HOST_DEVICE constexpr int64_t batch_offset(BatchCoord const& coord, BatchStrides const& strides) {
  int64_t offset = 0;
  for (int i = 0; i < kBatchModes; ++i) offset += coord.modes[i] * strides.modes[i];
  return offset;
}

/// Of matrix `matrix` of an operand of the call.
MOYE_DEVICE int64_t matrix_offset(GemmArgs const& args, int matrix, BatchStrides const& strides) {
  return batch_offset(batch_coord(args.batch_sizes, matrix), strides);
}

}  // namespace moye
