// Which mma.sync multiplies operands of a dtype, what the operands' elements are to it, and how fragments of floats
// become TF32.
#pragma once

#include "gemm/config.h"
#include "moye/algorithm/fill.h"
#include "moye/arch/convert.h"
#include "moye/atom/mma_traits.h"

namespace moye {

/// The widest instruction, (M,N,K) = (16,8,16) for 16-bit operands, (16,8,8) for TF32, (16,8,32) for bytes, (8,8,4) for
/// doubles. sm_80 has it, except for 8-bit floats, which sm_89 brought.
template <Dtype kDtype, Dtype kAccumulator>
struct Sm80Mma;  // not defined: sm_80 has no instruction for this config
template <>
struct Sm80Mma<Dtype::bf16, Dtype::f32> {
  using Op = SM80_16x8x16_F32BF16BF16F32_TN;
};
template <>
struct Sm80Mma<Dtype::f16, Dtype::f32> {
  using Op = SM80_16x8x16_F32F16F16F32_TN;
};
template <>
struct Sm80Mma<Dtype::f16, Dtype::f16> {
  using Op = SM80_16x8x16_F16F16F16F16_TN;
};
template <>
struct Sm80Mma<Dtype::tf32, Dtype::f32> {
  using Op = SM80_16x8x8_F32TF32TF32F32_TN;  // drops the 13 low bits of the floats it is given: see round_operands
};

template <>
struct Sm80Mma<Dtype::s8, Dtype::s32> {
  using Op = SM80_16x8x32_S32S8S8S32_TN;
};
template <>
struct Sm80Mma<Dtype::e4m3, Dtype::f32> {
  using Op = SM89_16x8x32_F32E4M3E4M3F32_TN;
};
template <>
struct Sm80Mma<Dtype::e5m2, Dtype::f32> {
  using Op = SM89_16x8x32_F32E5M2E5M2F32_TN;
};
template <>
struct Sm80Mma<Dtype::e4m3xe5m2, Dtype::f32> {
  using Op = SM89_16x8x32_F32E4M3E5M2F32_TN;
};
template <>
struct Sm80Mma<Dtype::e5m2xe4m3, Dtype::f32> {
  using Op = SM89_16x8x32_F32E5M2E4M3F32_TN;
};
template <>
struct Sm80Mma<Dtype::f64, Dtype::f64> {
  using Op = SM80_8x8x4_F64F64F64F64_TN;
};

/// What sm_90 has for doubles, (M,N,K) = (16,8,kK).
template <int kK>
struct Sm90DoubleMma;
template <>
struct Sm90DoubleMma<4> {
  using Op = SM90_16x8x4_F64F64F64F64_TN;
};
template <>
struct Sm90DoubleMma<8> {
  using Op = SM90_16x8x8_F64F64F64F64_TN;
};
template <>
struct Sm90DoubleMma<16> {
  using Op = SM90_16x8x16_F64F64F64F64_TN;
};

/// Rounds both operands' fragments of a k-block to TF32, as TMA does for wgmma. Those of other dtypes stay.
template <TensorLike A, TensorLike B>
MOYE_DEVICE void round_operands(A&& a, B&& b MOYE_LOC) {
  MOYE_SITE;
  if constexpr (is_same<typename RemoveCvref<A>::Value, tfloat32_t>) {
    auto const round = [](tfloat32_t x) {
      return tfloat32_t(detail::bit_cast<float>(round_to_tf32(detail::bit_cast<float>(x))));
    };
    transform(a, round);
    transform(b, round);
  }
}

}  // namespace moye
