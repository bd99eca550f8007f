// Accumulators to d: convert, predicate, store. Straight from registers to global memory.
#pragma once

#include "gemm/config.h"
#include "moye/tensor.h"

namespace moye {

/// Two neighbouring elements of d in one word, the first in the low half. Spelled as integers: nvcc 13.0 splits the
/// store of a struct of two floats in two.
template <class T>
MOYE_DEVICE auto pair_word(T const& first, T const& second) {
  if constexpr (sizeof(T) == 2) {
    return uint32_t(first.storage) | uint32_t(second.storage) << 16;
  } else {
    return uint64_t(detail::bit_cast<uint32_t>(first)) | uint64_t(detail::bit_cast<uint32_t>(second)) << 32;
  }
}

/// Stores one thread's accumulators into the CTA's tile of d.
/// tCrC (MMA,MMA_M,MMA_N) accumulators; tCcC the same shape, their (m, n) within the tile. d points at the tile's first
/// element; m_left and n_left are the rows and columns of d from there on, so that what lies outside is not stored.
/// kPairs: elements 2i and 2i + 1 of the fragment are neighbours in n, and the n of the first is even. They are stored
/// as one word where n is contiguous in d and the address allows it.
template <bool kPairs, class Out, class Fragment, class Coordinates>
MOYE_DEVICE void store_accumulators(Fragment const& tCrC, Coordinates const& tCcC, Out* d, int64_t m_stride,
                                    int64_t n_stride, int m_left, int n_left MOYE_LOC) {
  MOYE_SITE;
  constexpr int kCount = kPairs ? 2 : 1;
  bool const whole_pairs =
      n_stride == 1 && m_stride % 2 == 0 && reinterpret_cast<uintptr_t>(d) % (2 * sizeof(Out)) == 0;
  MOYE_UNROLL
  for (int i = 0; i < size(tCrC); i += kCount) {
    auto const coord = tCcC(i);
    int const m = get<0>(coord), n = get<1>(coord);
    if (m >= m_left) continue;
    Out* const first = d + m * m_stride + n * n_stride;
    if constexpr (kPairs) {
      if (whole_pairs && n + 1 < n_left) {
        auto const word = pair_word(static_cast<Out>(tCrC(i)), static_cast<Out>(tCrC(i + 1)));
        *reinterpret_cast<RemoveCvref<decltype(word)>*>(first) = word;
        continue;
      }
    }
    MOYE_UNROLL
    for (int j = 0; j < kCount; ++j) {
      if (n + j < n_left) first[j * n_stride] = static_cast<Out>(tCrC(i + j));
    }
  }
}

}  // namespace moye
