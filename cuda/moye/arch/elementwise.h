// lax's elementwise operations on f32, of which jax_moye/_primitives/elementwise.py makes a user's function. Where C
// has one it is that, as in arch/math.h. NaN stays NaN.
#pragma once

#include "moye/arch/math.h"
#include "moye/arch/types.h"

#if !defined(__CUDACC__)
#include <cmath>
#endif

namespace moye::elementwise {

MOYE_DEVICE float max(float x, float y) { return x > y || x != x ? x : y; }
MOYE_DEVICE float min(float x, float y) { return x < y || x != x ? x : y; }
MOYE_DEVICE float clamp(float low, float x, float high) { return min(max(x, low), high); }
MOYE_DEVICE float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; }
MOYE_DEVICE float square(float x) { return x * x; }
MOYE_DEVICE float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
/// 1 / (1 + e^-x). kRounded: what is made of it will be rounded to 16 bits. Then 2^y of a rounded y will do, and
/// results below 2^-126 are 0: four instructions in place of sixteen.
template <bool kRounded>
MOYE_DEVICE float logistic(float x) {
  if constexpr (kRounded) return reciprocal(1.0f + fast_exp2(-1.44269504088896340736f * x));
  return 1.0f / (1.0f + ::expf(-x));
}
MOYE_DEVICE bool is_finite(float x) { return x - x == 0; }

/// x^kExponent by multiplications.
template <int kExponent>
MOYE_DEVICE float integer_pow(float x) {
  if constexpr (kExponent < 0) {
    return 1.0f / integer_pow<-kExponent>(x);
  } else if constexpr (kExponent == 0) {
    return 1.0f;
  } else if constexpr (kExponent == 1) {
    return x;
  } else {
    float const half = integer_pow<kExponent / 2>(x);
    return kExponent % 2 == 0 ? half * half : half * half * x;
  }
}

/// x as a T, a type of 16 bits, holds it.
template <class T>
MOYE_DEVICE float rounded(float x) {
  return float(T(x));
}

}  // namespace moye::elementwise
