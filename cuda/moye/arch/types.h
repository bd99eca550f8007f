// Storage types of kernels: fixed-width integers, uint128_t, bfloat16_t, half_t.
//   half and bfloat16 hold bits; arithmetic is done in float. Conversions from float round to nearest even, overflow to
//   infinity, and turn every NaN into 0x7fff, as `cvt.rn` does (PTX ISA, "Data Movement and Conversion: cvt").
#pragma once

#include "moye/arch/config.h"

#if defined(__CUDACC_RTC__)  // NVRTC has no <stdint.h>
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned;
using int64_t = long long;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;
using size_t = decltype(sizeof(0));
#else
#include <stddef.h>
#include <stdint.h>
#endif

// On the wrappers of register-only and warp-collective instructions: the emulator does their bookkeeping itself, so
// their local arrays need no instrumented loads and stores. (No effect on the device.)
#if defined(__CUDACC__)
#define MOYE_UNINSTRUMENTED
#else
#define MOYE_UNINSTRUMENTED __attribute__((no_sanitize("thread")))
#endif

namespace moye {

/// 16 bytes: one ldmatrix row, one widest global load.
struct alignas(16) uint128_t {
  uint32_t x, y, z, w;
};

namespace detail {

/// The same bits as another type of the same size.
template <class To, class From>
MOYE_HOST_DEVICE To bit_cast(From const& from) {
  return __builtin_bit_cast(To, from);
}

MOYE_HOST_DEVICE uint16_t bfloat16_bits(float value) {
#if defined(__CUDA_ARCH__)
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  uint32_t const u = bit_cast<uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#endif
}

MOYE_HOST_DEVICE float bfloat16_value(uint16_t bits) { return bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

MOYE_HOST_DEVICE uint16_t half_bits(float value) {
#if defined(__CUDA_ARCH__)
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  uint32_t const u = bit_cast<uint32_t>(value);
  uint32_t const sign = (u >> 16) & 0x8000u;
  uint32_t const magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fff;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {                                               // below 2^-14: subnormal, units of 2^-24
    if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);           // below half a unit
    uint32_t const shift = 126u - (magnitude >> 23);                           // 14..24
    uint32_t const mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t const rest = mantissa & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    uint32_t result = mantissa >> shift;
    if (rest > half || (rest == half && (result & 1u))) ++result;
    return static_cast<uint16_t>(sign | result);
  }
  uint32_t const rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> 13));
#endif
}

MOYE_HOST_DEVICE float half_value(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  uint32_t const sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  uint32_t const exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (exponent == 0x1f && mantissa != 0)
    return bit_cast<float>(0x7fffffffu);  // seen on sm_90: payload and sign are lost
  if (exponent == 0x1f) return bit_cast<float>(sign | 0x7f800000u);
  if (exponent != 0) return bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  float const magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // zero and subnormals: exact
  return bit_cast<float>(sign | bit_cast<uint32_t>(magnitude));
#endif
}

}  // namespace detail

struct bfloat16_t {
  uint16_t storage;

  bfloat16_t() = default;
  MOYE_HOST_DEVICE explicit bfloat16_t(float value) : storage(detail::bfloat16_bits(value)) {}
  MOYE_HOST_DEVICE explicit operator float() const { return detail::bfloat16_value(storage); }
  MOYE_HOST_DEVICE static bfloat16_t bitcast(uint16_t bits) {
    bfloat16_t result;
    result.storage = bits;
    return result;
  }
};

struct half_t {
  uint16_t storage;

  half_t() = default;
  MOYE_HOST_DEVICE explicit half_t(float value) : storage(detail::half_bits(value)) {}
  MOYE_HOST_DEVICE explicit operator float() const { return detail::half_value(storage); }
  MOYE_HOST_DEVICE static half_t bitcast(uint16_t bits) {
    half_t result;
    result.storage = bits;
    return result;
  }
};

/// float storage whose low 13 bits the tensor core ignores. MMA traits use it to tell tf32 operands from f32 ones.
struct tfloat32_t {
  uint32_t storage;

  tfloat32_t() = default;
  MOYE_HOST_DEVICE explicit tfloat32_t(float value) : storage(detail::bit_cast<uint32_t>(value)) {}
  MOYE_HOST_DEVICE explicit operator float() const { return detail::bit_cast<float>(storage & 0xffffe000u); }
};

}  // namespace moye
