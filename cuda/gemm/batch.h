// Where the matrices of a batch lie. A batch has up to kBatchModes modes; its matrices are numbered in row-major order.
//   batch_coord     number -> coordinate along each mode
//   batch_offset    coordinate -> elements from an operand's first matrix on
//   matrix_offset   number -> elements, for one operand
#pragma once

#include "gemm/config.h"
#include "moye/arch/config.h"

namespace moye {

/// A matrix's coordinate along each batch mode, outermost first.
struct BatchCoord {
  int modes[kBatchModes];
};

/// Divides only where there are modes to tell apart; the branch is the same for all threads.
MOYE_HOST_DEVICE constexpr BatchCoord batch_coord(int const (&sizes)[kBatchModes], int matrix) {
  static_assert(kBatchModes == 3);
  if (sizes[0] == 1 && sizes[1] == 1) return {{0, 0, matrix}};
  unsigned const number = unsigned(matrix), inner = unsigned(sizes[2]), middle = unsigned(sizes[1]);
  unsigned const outer = number / inner;
  return {{int(outer / middle), int(outer % middle), int(number % inner)}};
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
