// Multiply-add without a tensor core.
#pragma once

#include "moye/arch/types.h"

namespace moye {

/// d = a * b + c, rounded once. float and double; other types as a * b + c in D.
template <class D, class A = D, class B = A, class C = D>
struct UniversalFMA {
  using DRegisters = D[1];
  using ARegisters = A[1];
  using BRegisters = B[1];
  using CRegisters = C[1];

  MOYE_DEVICE static void fma(D& d, A const& a, B const& b, C const& c) {
    d = fused(static_cast<D>(a), static_cast<D>(b), static_cast<D>(c));
  }

 private:
#if defined(__CUDACC__)
  MOYE_DEVICE static float fused(float a, float b, float c) { return ::fmaf(a, b, c); }
  MOYE_DEVICE static double fused(double a, double b, double c) { return ::fma(a, b, c); }
#else
  MOYE_DEVICE static float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
  MOYE_DEVICE static double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
#endif
  template <class T>
  MOYE_DEVICE static T fused(T a, T b, T c) {
    return a * b + c;
  }
};

}  // namespace moye
