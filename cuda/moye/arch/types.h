// Storage types of kernels: fixed-width integers, uint128_t, bfloat16_t, half_t, tfloat32_t, float_e4m3_t,
// float_e5m2_t; and the architecture a kernel is compiled for.
//   They hold bits; arithmetic is done in float. Conversions from float round to nearest even (PTX ISA, "Data Movement
//   and Conversion: cvt").
//     half_t, bfloat16_t            overflow to infinity, every NaN becomes 0x7fff, as `cvt.rn` does
//     float_e4m3_t, float_e5m2_t    the constructor saturates, as `cvt.rn.satfinite` does: what is too large, infinity
//                                   too, becomes the greatest finite number, 448 or 57344. from_float_overflowing() is
//                                   what JAX's astype does: NaN (e4m3 has no infinity) or infinity. Every NaN becomes
//                                   0x7f.
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

/// The architecture a kernel is being compiled for, 89 for sm_89; 0 on the host and in the emulator, which have
/// everything. For static_assert and `if constexpr` in device code; nothing the host sees may depend on it.
#if defined(__CUDA_ARCH__)
inline constexpr int kTargetArch = __CUDA_ARCH__ / 10;
#else
inline constexpr int kTargetArch = 0;
#endif

template <int kArch>
inline constexpr bool is_target_arch = kTargetArch == 0 || kTargetArch >= kArch;

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

/// The 8 bits of a float with kMantissa bits of mantissa and 7 - kMantissa of exponent, of which `most` is the greatest
/// finite magnitude; greater ones become `overflow`.
template <int kMantissa>
MOYE_HOST_DEVICE uint8_t float8_bits(float value, uint32_t most, uint32_t overflow) {
  constexpr uint32_t kBias = (1u << (6 - kMantissa)) - 1u, kDropped = 23u - kMantissa;
  uint32_t const u = bit_cast<uint32_t>(value);
  uint32_t const sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu, exponent = magnitude >> 23;
  if (magnitude > 0x7f800000u) return 0x7f;
  uint32_t result;
  if (exponent < 128u - kBias) {  // subnormal: units of 2^(1 - kBias - kMantissa)
    uint32_t const shift = 151u - kBias - kMantissa - exponent;
    if (shift > 24u) return static_cast<uint8_t>(sign);  // below half a unit
    uint32_t const mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t const rest = mantissa & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    result = mantissa >> shift;
    if (rest > half || (rest == half && (result & 1u))) ++result;
  } else {
    uint32_t const half = (1u << (kDropped - 1u)) - 1u + ((magnitude >> kDropped) & 1u);
    result = (magnitude - ((127u - kBias) << 23) + half) >> kDropped;
  }
  return static_cast<uint8_t>(sign | (result > most ? overflow : result));
}

MOYE_HOST_DEVICE uint8_t e4m3_bits(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(0.0f), "f"(value));
  return static_cast<uint8_t>(bits);
#else
  return float8_bits<3>(value, 0x7e, 0x7e);
#endif
}

MOYE_HOST_DEVICE uint8_t e5m2_bits(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t bits;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(0.0f), "f"(value));
  return static_cast<uint8_t>(bits);
#else
  return float8_bits<2>(value, 0x7b, 0x7b);
#endif
}

MOYE_HOST_DEVICE float e4m3_value(uint8_t bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(bits)));
  return half_value(static_cast<uint16_t>(halves));
#else
  uint32_t const sign = static_cast<uint32_t>(bits & 0x80u) << 24, exponent = (bits >> 3) & 0xfu, mantissa = bits & 7u;
  if ((bits & 0x7fu) == 0x7fu) return bit_cast<float>(0x7fffffffu);  // by way of f16, as on the device
  if (exponent != 0) return bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
  float const magnitude = static_cast<float>(mantissa) * 0x1p-9f;  // zero and subnormals: exact
  return bit_cast<float>(sign | bit_cast<uint32_t>(magnitude));
#endif
}

MOYE_HOST_DEVICE float e5m2_value(uint8_t bits) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(bits)));
  return half_value(static_cast<uint16_t>(halves));
#else
  return half_value(static_cast<uint16_t>(bits << 8));  // the upper half of an f16
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

/// 4 bits of exponent, 3 of mantissa: up to 448, NaN but no infinity (float8_e4m3fn of JAX).
struct float_e4m3_t {
  uint8_t storage;

  float_e4m3_t() = default;
  MOYE_HOST_DEVICE explicit float_e4m3_t(float value) : storage(detail::e4m3_bits(value)) {}
  MOYE_HOST_DEVICE explicit operator float() const { return detail::e4m3_value(storage); }
  MOYE_HOST_DEVICE static float_e4m3_t bitcast(uint8_t bits) {
    float_e4m3_t result;
    result.storage = bits;
    return result;
  }
  /// What rounds to more than 448 becomes NaN.
  MOYE_HOST_DEVICE static float_e4m3_t from_float_overflowing(float value) {
    return bitcast(detail::float8_bits<3>(value, 0x7e, 0x7f));
  }
};

/// 5 bits of exponent, 2 of mantissa: the upper half of a half_t, up to 57344 (float8_e5m2 of JAX).
struct float_e5m2_t {
  uint8_t storage;

  float_e5m2_t() = default;
  MOYE_HOST_DEVICE explicit float_e5m2_t(float value) : storage(detail::e5m2_bits(value)) {}
  MOYE_HOST_DEVICE explicit operator float() const { return detail::e5m2_value(storage); }
  MOYE_HOST_DEVICE static float_e5m2_t bitcast(uint8_t bits) {
    float_e5m2_t result;
    result.storage = bits;
    return result;
  }
  /// What rounds to more than 57344 becomes infinity.
  MOYE_HOST_DEVICE static float_e5m2_t from_float_overflowing(float value) {
    return bitcast(detail::float8_bits<2>(value, 0x7b, 0x7c));
  }
};

// Values smaller than a byte have no storage of their own: the types are names for traits, and a register's worth of
// them is one element of memory, the first in the lowest bits.
struct int4b_t;
struct uint4b_t;
struct uint1b_t;
struct int4x8_t {
  uint32_t storage;
};
struct uint4x8_t {
  uint32_t storage;
};
struct uint1x32_t {
  uint32_t storage;
};

}  // namespace moye
