// Two conversions in one instruction (PTX ISA, "Data Movement and Conversion: cvt", .rn.bf16x2.f32 and .rn.f16x2.f32).
#pragma once

#include "moye/arch/types.h"

namespace moye {

/// Two floats as two neighbours of type T in one word, the first in the low half; rounded as T(float) rounds.
template <class T>
MOYE_DEVICE uint32_t pack_pair(float first, float second);

template <>
MOYE_DEVICE uint32_t pack_pair<bfloat16_t>(float first, float second) {
#if defined(__CUDACC__)
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
#else
  return uint32_t(bfloat16_t(first).storage) | uint32_t(bfloat16_t(second).storage) << 16;
#endif
}

template <>
MOYE_DEVICE uint32_t pack_pair<half_t>(float first, float second) {
#if defined(__CUDACC__)
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
#else
  return uint32_t(half_t(first).storage) | uint32_t(half_t(second).storage) << 16;
#endif
}

}  // namespace moye
