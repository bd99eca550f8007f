// A conversion to TF32, and two conversions or differences in one instruction (PTX ISA, "Data Movement and Conversion:
// cvt", .rn.tf32.f32, .rn.bf16x2.f32, .rn.f16x2.f32 and .rn.f16x2.e4m3x2; "Half Precision Floating Point: sub").
#pragma once

#include "moye/arch/types.h"
#include "moye/core.h"

namespace moye {

/// A float rounded to TF32, to the nearest even, as a word without 13 low bits; NaN is 0x7fffe000. sm_90 has an
/// instruction for it.
MOYE_DEVICE uint32_t round_to_tf32(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t word;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
  return word;
#else
  uint32_t const word = detail::bit_cast<uint32_t>(value);
  return value != value ? 0x7fffe000u : (word + 0xfffu + (word >> 13 & 1)) & 0xffffe000u;
#endif
}

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

/// Two floats as neighbours in one word, which is stored at once; a struct of two would be two stores.
MOYE_DEVICE uint64_t f32_pair(float first, float second) {
  return uint64_t(detail::bit_cast<uint32_t>(second)) << 32 | detail::bit_cast<uint32_t>(first);
}

/// Neighbour by neighbour, first - second: words of two of type T.
template <class T>
MOYE_DEVICE uint32_t sub_pair(uint32_t first, uint32_t second) {
#if defined(__CUDACC__)
  uint32_t word;
  if constexpr (is_same<T, bfloat16_t>) {
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(first), "r"(second));
  } else {
    static_assert(is_same<T, half_t>);
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(first), "r"(second));
  }
  return word;
#else
  auto const value = [](uint32_t bits) { return float(T::bitcast(uint16_t(bits))); };
  return pack_pair<T>(value(first & 0xffff) - value(second & 0xffff), value(first >> 16) - value(second >> 16));
#endif
}

/// Two e4m3, in bytes `first` and `first` + 2 of a word, as two of type T: exactly.
template <class T>
MOYE_DEVICE uint32_t unpack_e4m3_pair(uint32_t bytes, int first) {
#if defined(__CUDACC__)
  uint32_t halves;
  uint16_t const both = static_cast<uint16_t>(__byte_perm(bytes, 0, 0x4420 + 0x11 * first));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(both));
  if constexpr (is_same<T, half_t>) {
    return halves;
  } else {
    return pack_pair<T>(float(half_t::bitcast(uint16_t(halves))), float(half_t::bitcast(uint16_t(halves >> 16))));
  }
#else
  auto const value = [](uint32_t byte) { return float(float_e4m3_t::bitcast(uint8_t(byte))); };
  return pack_pair<T>(value(bytes >> 8 * first & 0xff), value(bytes >> (8 * first + 16) & 0xff));
#endif
}

}  // namespace moye
