// The C++ types of the table's dtypes: an operand's elements, sums and results.
#pragma once

#include "gemm/config.h"
#include "moye/arch/types.h"

namespace moye {

template <Dtype kDtype>
struct ElementOf;
template <>
struct ElementOf<Dtype::bf16> {
  using Type = bfloat16_t;
};
template <>
struct ElementOf<Dtype::f16> {
  using Type = half_t;
};
template <>
struct ElementOf<Dtype::f32> {
  using Type = float;
};
template <>
struct ElementOf<Dtype::f64> {
  using Type = double;
};
template <>
struct ElementOf<Dtype::tf32> {
  using Type = tfloat32_t;
};
template <>
struct ElementOf<Dtype::s8> {
  using Type = int8_t;
};
template <>
struct ElementOf<Dtype::s32> {
  using Type = int32_t;
};
template <>
struct ElementOf<Dtype::e4m3> {
  using Type = float_e4m3_t;
};
template <>
struct ElementOf<Dtype::e5m2> {
  using Type = float_e5m2_t;
};

/// Of the operands of a config of `kDtype`.
template <Dtype kDtype>
using ElementOfA = typename ElementOf<kDtype == Dtype::tf32 ? kDtype : storage_dtype(kDtype)>::Type;
template <Dtype kDtype>
using ElementOfB = typename ElementOf<kDtype == Dtype::tf32 ? kDtype : storage_dtype_of_b(kDtype)>::Type;

/// Columns of a box of TMA's: the 128 bytes of a swizzled row.
template <class T>
inline constexpr int kBoxColumns = 128 / int(sizeof(T));

}  // namespace moye
