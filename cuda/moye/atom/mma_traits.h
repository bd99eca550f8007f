// Which element of A, B and C each thread's registers hold, per instruction: facts, as layouts.
//   ALayout  (thread, value) -> m + M * k
//   BLayout  (thread, value) -> n + N * k
//   CLayout  (thread, value) -> m + M * n
#pragma once

#include "moye/arch/mma.h"
#include "moye/arch/mma_sm80.h"
#include "moye/layout.h"

namespace moye {

template <class Op>
struct MmaTraits;

template <class D, class A, class B, class C>
struct MmaTraits<UniversalFMA<D, A, B, C>> {
  using ValTypeD = D;
  using ValTypeA = A;
  using ValTypeB = B;
  using ValTypeC = C;
  using ShapeMNK = Shape<_1, _1, _1>;
  using ThrId = Layout<_1, _0>;
  using ALayout = Layout<Shape<_1, _1>, Stride<_0, _0>>;
  using BLayout = ALayout;
  using CLayout = ALayout;
};

// The fragments of mma.sync, in the order in which the table below names them. Lane l is (l % 4, l / 4) = (4,8).
namespace mma_layout {
using M16N8 = Layout<Shape<Shape<_4, _8>, Shape<_2, _2>>, Stride<Stride<_32, _1>, Stride<_16, _8>>>;
using M8N8 = Layout<Shape<Shape<_4, _8>, _2>, Stride<Stride<_16, _1>, _8>>;
// 16-bit operands
using M16K8 = Layout<Shape<Shape<_4, _8>, Shape<_2, _2>>, Stride<Stride<_32, _1>, Stride<_16, _8>>>;
using M16K16 = Layout<Shape<Shape<_4, _8>, Shape<_2, _2, _2>>, Stride<Stride<_32, _1>, Stride<_16, _8, _128>>>;
using N8K8 = Layout<Shape<Shape<_4, _8>, _2>, Stride<Stride<_16, _1>, _8>>;
using N8K16 = Layout<Shape<Shape<_4, _8>, Shape<_2, _2>>, Stride<Stride<_16, _1>, Stride<_8, _64>>>;
// 32-bit operands
using M16K4Word = Layout<Shape<Shape<_4, _8>, _2>, Stride<Stride<_16, _1>, _8>>;
using M16K8Word = Layout<Shape<Shape<_4, _8>, Shape<_2, _2>>, Stride<Stride<_16, _1>, Stride<_8, _64>>>;
using N8K4Word = Layout<Shape<Shape<_4, _8>, _1>, Stride<Stride<_8, _1>, _0>>;  // 64-bit operands of m8n8k4, too
using N8K8Word = Layout<Shape<Shape<_4, _8>, _2>, Stride<Stride<_8, _1>, _32>>;
// 8-bit operands
using M8K16Byte = Layout<Shape<Shape<_4, _8>, _4>, Stride<Stride<_32, _1>, _8>>;
using M16K16Byte = Layout<Shape<Shape<_4, _8>, Shape<_4, _2>>, Stride<Stride<_64, _1>, Stride<_16, _8>>>;
using M16K32Byte = Layout<Shape<Shape<_4, _8>, Shape<_4, _2, _2>>, Stride<Stride<_64, _1>, Stride<_16, _8, _256>>>;
using N8K32Byte = Layout<Shape<Shape<_4, _8>, Shape<_4, _2>>, Stride<Stride<_32, _1>, Stride<_8, _128>>>;
}  // namespace mma_layout

template <class D, class A, class B, class C, class Shape_, class ALayout_, class BLayout_, class CLayout_>
struct WarpMmaTraits {
  using ValTypeD = D;
  using ValTypeA = A;
  using ValTypeB = B;
  using ValTypeC = C;
  using ShapeMNK = Shape_;
  using ThrId = Layout<_32, _1>;
  using ALayout = ALayout_;
  using BLayout = BLayout_;
  using CLayout = CLayout_;
};

#define MOYE_MMA_TRAITS(op, d, a, b, c, m, n, k, a_layout, b_layout, c_layout)                          \
  template <>                                                                                           \
  struct MmaTraits<op> : WarpMmaTraits<d, a, b, c, Shape<Int<m>, Int<n>, Int<k>>, mma_layout::a_layout, \
                                       mma_layout::b_layout, mma_layout::c_layout> {};
// clang-format off
MOYE_MMA_TRAITS(SM80_16x8x8_F32BF16BF16F32_TN,  float,   bfloat16_t, bfloat16_t, float,   16, 8,  8, M16K8,      N8K8,      M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_F32BF16BF16F32_TN, float,   bfloat16_t, bfloat16_t, float,   16, 8, 16, M16K16,     N8K16,     M16N8)
MOYE_MMA_TRAITS(SM80_16x8x8_F32F16F16F32_TN,    float,   half_t,     half_t,     float,   16, 8,  8, M16K8,      N8K8,      M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_F32F16F16F32_TN,   float,   half_t,     half_t,     float,   16, 8, 16, M16K16,     N8K16,     M16N8)
MOYE_MMA_TRAITS(SM80_16x8x8_F16F16F16F16_TN,    half_t,  half_t,     half_t,     half_t,  16, 8,  8, M16K8,      N8K8,      M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_F16F16F16F16_TN,   half_t,  half_t,     half_t,     half_t,  16, 8, 16, M16K16,     N8K16,     M16N8)
MOYE_MMA_TRAITS(SM80_16x8x4_F32TF32TF32F32_TN,  float,   tfloat32_t, tfloat32_t, float,   16, 8,  4, M16K4Word,  N8K4Word,  M16N8)
MOYE_MMA_TRAITS(SM80_16x8x8_F32TF32TF32F32_TN,  float,   tfloat32_t, tfloat32_t, float,   16, 8,  8, M16K8Word,  N8K8Word,  M16N8)
MOYE_MMA_TRAITS(SM80_8x8x4_F64F64F64F64_TN,     double,  double,     double,     double,   8, 8,  4, N8K4Word,   N8K4Word,  M8N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32S8S8S32_TN,      int32_t, int8_t,     int8_t,     int32_t,  8, 8, 16, M8K16Byte,  M8K16Byte, M8N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32S8U8S32_TN,      int32_t, int8_t,     uint8_t,    int32_t,  8, 8, 16, M8K16Byte,  M8K16Byte, M8N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32U8S8S32_TN,      int32_t, uint8_t,    int8_t,     int32_t,  8, 8, 16, M8K16Byte,  M8K16Byte, M8N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32U8U8S32_TN,      int32_t, uint8_t,    uint8_t,    int32_t,  8, 8, 16, M8K16Byte,  M8K16Byte, M8N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32S8S8S32_TN,     int32_t, int8_t,     int8_t,     int32_t, 16, 8, 16, M16K16Byte, M8K16Byte, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32S8U8S32_TN,     int32_t, int8_t,     uint8_t,    int32_t, 16, 8, 16, M16K16Byte, M8K16Byte, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32U8S8S32_TN,     int32_t, uint8_t,    int8_t,     int32_t, 16, 8, 16, M16K16Byte, M8K16Byte, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32U8U8S32_TN,     int32_t, uint8_t,    uint8_t,    int32_t, 16, 8, 16, M16K16Byte, M8K16Byte, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32S8S8S32_TN,     int32_t, int8_t,     int8_t,     int32_t, 16, 8, 32, M16K32Byte, N8K32Byte, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32S8U8S32_TN,     int32_t, int8_t,     uint8_t,    int32_t, 16, 8, 32, M16K32Byte, N8K32Byte, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32U8S8S32_TN,     int32_t, uint8_t,    int8_t,     int32_t, 16, 8, 32, M16K32Byte, N8K32Byte, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32U8U8S32_TN,     int32_t, uint8_t,    uint8_t,    int32_t, 16, 8, 32, M16K32Byte, N8K32Byte, M16N8)
// clang-format on
#undef MOYE_MMA_TRAITS

}  // namespace moye
