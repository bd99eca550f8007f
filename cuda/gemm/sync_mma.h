// Which mma.sync multiplies operands of a dtype, and what the operands' elements are to it.
#pragma once

#include "gemm/config.h"
#include "moye/atom/mma_traits.h"

namespace moye {

/// sm_80's widest instruction, (M,N,K) = (16,8,16) for 16-bit operands, (16,8,8) for TF32.
template <Dtype kDtype, Dtype kAccumulator>
struct Sm80Mma;  // not defined: sm_80 has no instruction for this row of gemm/configs.h
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
  using Op = SM80_16x8x8_F32TF32TF32F32_TN;  // drops the 13 low bits of the floats it is given
};

}  // namespace moye
