// What every kernel does with a and b in global memory: strides, coalesced copies, and the edge.
#pragma once

#include "gemm/order.h"
#include "moye/algorithm/copy.h"
#include "moye/atom/copy_atom.h"
#include "moye/layout.h"

namespace moye {

/// Strides of (row, k) of an operand that is loaded kVector elements at a time along kMajor.
/// Element by element, neither stride need be one.
template <Major kMajor, int kVector>
MOYE_DEVICE auto operand_stride(int64_t row_stride, int64_t k_stride) {
  if constexpr (kVector == 1) {
    return make_stride(row_stride, k_stride);
  } else if constexpr (kMajor == Major::k) {
    return make_stride(row_stride, _1{});
  } else {
    return make_stride(_1{}, k_stride);
  }
}

/// kThreads threads copy (kRows, kBlkK) elements, kVector at a time, side by side along kMajor so that a warp
/// coalesces.
template <class Atom, Major kMajor, int kThreads, int kRows, int kBlkK, int kVector>
MOYE_HOST_DEVICE constexpr auto coalesced_copy() {
  static_assert(
      kRows * kBlkK % (kThreads * kVector) == 0,
      "a k-tile of a or b is not a whole number of loads by all threads: a larger tile, or a smaller alignment");
  if constexpr (kMajor == Major::k) {
    constexpr int kThreadsK = kBlkK / kVector;
    return make_tiled_copy(Atom{},
                           Layout<Shape<Int<kThreads / kThreadsK>, Int<kThreadsK>>, Stride<Int<kThreadsK>, _1>>{},
                           Layout<Shape<_1, Int<kVector>>>{});
  } else {
    constexpr int kThreadsRow = kRows / kVector;
    return make_tiled_copy(Atom{}, Layout<Shape<Int<kThreadsRow>, Int<kThreads / kThreadsRow>>>{},
                           Layout<Shape<Int<kVector>, _1>>{});
  }
}

/// Leading elements, of kVector from (row, k) on along kMajor, that exist where `rows` and `ks` are left of the
/// operand.
template <Major kMajor, int kVector, class Coord>
MOYE_DEVICE int valid_elements(Coord const& coord, int rows, int ks) {
  int const row = get<0>(coord), k = get<1>(coord);
  int const across = kMajor == Major::k ? rows - row : ks - k;
  int const along = kMajor == Major::k ? ks - k : rows - row;
  if (across <= 0 || along <= 0) return 0;
  return along < kVector ? along : kVector;
}

/// One k-tile of an operand, (kRows,kBlkK), from global to shared memory: zeros where fewer than `rows` and `ks` are
/// left of the operand. src, dst and coord are a thread's parts of both and of the tile's coordinates:
/// (CPY,CPY_ROWS,CPY_K).
template <Major kMajor, int kRows, int kBlkK, class Copy, class Src, class Dst, class Coord>
MOYE_DEVICE void copy_operand(Copy const& tiled_copy, Src const& src, Dst&& dst, Coord const& coord, int rows,
                              int ks MOYE_LOC) {
  MOYE_SITE;
  constexpr int kVector = Copy::kNumValSrc;
  auto const valid = [&](int i, int j) { return valid_elements<kMajor, kVector>(coord(_0{}, i, j), rows, ks); };
  if constexpr (!has_zfill_op<typename Copy::Op>) {
    copy_zfill(tiled_copy, valid, src, dst);
  } else if (rows >= kRows && ks >= kBlkK) {
    copy(tiled_copy, src, dst);  // most tiles: nothing to compare
  } else {
    // A loop, vector by vector: unrolled, ptxas would predicate it into the path above, which then pays for both.
    constexpr int kRest0 = decltype(size<1>(src))::value, kVectors = kRest0 * decltype(size<2>(src))::value;
    MOYE_NO_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      int const i = v % kRest0, j = v / kRest0;
      copy_vector_zfill<Copy>(valid(i, j), src(_, i, j), dst(_, i, j));
    }
  }
}

/// Moves a view of memory by `offset` elements.
template <class View>
MOYE_DEVICE void move_view(View& view, int64_t offset) {
  view.engine.begin.ptr += offset;
}

}  // namespace moye
