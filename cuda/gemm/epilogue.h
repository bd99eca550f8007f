// Accumulators to d: convert, predicate, store. Straight from registers to global memory.
#pragma once

#include "gemm/config.h"
#include "moye/tensor.h"

namespace moye {

/// `kCount` neighbouring elements of d, stored by one instruction.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) StoreVector {
  T element[kCount];
};

/// Stores one thread's accumulators into the CTA's tile of d.
/// tCrC (MMA,MMA_M,MMA_N) accumulators; tCcC the same shape, their (m, n) within the tile. d points at the tile's first
/// element; m_left and n_left are the rows and columns of d from there on, so that what lies outside is not stored.
/// kPair: this many neighbours in the fragment are neighbours in n, and their n is a multiple of kPair. They are stored
/// as one vector where n is contiguous in d and the address allows it.
template <int kPair, class Out, class Fragment, class Coordinates>
MOYE_DEVICE void store_accumulators(Fragment const& tCrC, Coordinates const& tCcC, Out* d, int64_t m_stride,
                                    int64_t n_stride, int m_left, int n_left MOYE_LOC) {
  MOYE_SITE;
  bool const vectorize =
      n_stride == 1 && m_stride % kPair == 0 && reinterpret_cast<uintptr_t>(d) % sizeof(StoreVector<Out, kPair>) == 0;
  MOYE_UNROLL
  for (int i = 0; i < size(tCrC); i += kPair) {
    auto const coord = tCcC(i);
    int const m = get<0>(coord), n = get<1>(coord);
    if (m >= m_left) continue;
    Out* const first = d + m * m_stride + n * n_stride;
    if (vectorize && n + kPair <= n_left) {
      StoreVector<Out, kPair> vector;
      MOYE_UNROLL
      for (int j = 0; j < kPair; ++j) vector.element[j] = static_cast<Out>(tCrC(i + j));
      *reinterpret_cast<StoreVector<Out, kPair>*>(first) = vector;
    } else {
      MOYE_UNROLL
      for (int j = 0; j < kPair; ++j) {
        if (n + j < n_left) first[j * n_stride] = static_cast<Out>(tCrC(i + j));
      }
    }
  }
}

}  // namespace moye
