// Which element of A, B and C each thread's registers hold, per instruction: facts, as layouts.
//   ALayout  (thread, value) -> m + M * k
//   BLayout  (thread, value) -> n + N * k
//   CLayout  (thread, value) -> m + M * n
#pragma once

#include "moye/arch/mma.h"
#include "moye/arch/mma_sm61.h"
#include "moye/arch/mma_sm70.h"
#include "moye/arch/mma_sm75.h"
#include "moye/arch/mma_sm80.h"
#include "moye/arch/mma_sm89.h"
#include "moye/arch/mma_sm90_f64.h"
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

template <>
struct MmaTraits<SM61_DP4A> {
  using ValTypeD = int32_t;
  using ValTypeA = int8_t;
  using ValTypeB = int8_t;
  using ValTypeC = int32_t;
  using ShapeMNK = Shape<_1, _1, _4>;
  using ThrId = Layout<_1, _0>;
  using ALayout = Layout<Shape<_1, _4>, Stride<_0, _1>>;
  using BLayout = ALayout;
  using CLayout = Layout<Shape<_1, _1>, Stride<_0, _0>>;
};

namespace mma_layout {
// The fragments of mma.sync. Lane l is (l % 4, l / 4) = (4,8). R<rows>K<k> are A with 16 rows, A or B with 8.
using M16N8 = Layout<Shape<Shape<_4, _8>, Shape<_2, _2>>, Stride<Stride<_32, _1>, Stride<_16, _8>>>;
using M8N8 = Layout<Shape<Shape<_4, _8>, _2>, Stride<Stride<_16, _1>, _8>>;
// 16-bit operands
using R16K8 = Layout<Shape<Shape<_4, _8>, Shape<_2, _2>>, Stride<Stride<_32, _1>, Stride<_16, _8>>>;
using R16K16 = Layout<Shape<Shape<_4, _8>, Shape<_2, _2, _2>>, Stride<Stride<_32, _1>, Stride<_16, _8, _128>>>;
using R8K8 = Layout<Shape<Shape<_4, _8>, _2>, Stride<Stride<_16, _1>, _8>>;
using R8K16 = Layout<Shape<Shape<_4, _8>, Shape<_2, _2>>, Stride<Stride<_16, _1>, Stride<_8, _64>>>;
// 32-bit operands, and 64-bit ones, of which a register holds one, too
using R16K4Word = Layout<Shape<Shape<_4, _8>, _2>, Stride<Stride<_16, _1>, _8>>;
using R16K8Word = Layout<Shape<Shape<_4, _8>, Shape<_2, _2>>, Stride<Stride<_16, _1>, Stride<_8, _64>>>;
using R16K16Word = Layout<Shape<Shape<_4, _8>, Shape<_2, _4>>, Stride<Stride<_16, _1>, Stride<_8, _64>>>;
using R8K4Word = Layout<Shape<Shape<_4, _8>, _1>, Stride<Stride<_8, _1>, _0>>;
using R8K8Word = Layout<Shape<Shape<_4, _8>, _2>, Stride<Stride<_8, _1>, _32>>;
using R8K16Word = Layout<Shape<Shape<_4, _8>, _4>, Stride<Stride<_8, _1>, _32>>;
// 8-bit operands
using R16K16Byte = Layout<Shape<Shape<_4, _8>, Shape<_4, _2>>, Stride<Stride<_64, _1>, Stride<_16, _8>>>;
using R16K32Byte = Layout<Shape<Shape<_4, _8>, Shape<_4, _2, _2>>, Stride<Stride<_64, _1>, Stride<_16, _8, _256>>>;
using R8K16Byte = Layout<Shape<Shape<_4, _8>, _4>, Stride<Stride<_32, _1>, _8>>;
using R8K32Byte = Layout<Shape<Shape<_4, _8>, Shape<_4, _2>>, Stride<Stride<_32, _1>, Stride<_8, _128>>>;
// 4-bit operands
using R16K32Nibble = Layout<Shape<Shape<_4, _8>, Shape<_8, _2>>, Stride<Stride<_128, _1>, Stride<_16, _8>>>;
using R16K64Nibble = Layout<Shape<Shape<_4, _8>, Shape<_8, _2, _2>>, Stride<Stride<_128, _1>, Stride<_16, _8, _512>>>;
using R8K32Nibble = Layout<Shape<Shape<_4, _8>, _8>, Stride<Stride<_64, _1>, _8>>;
using R8K64Nibble = Layout<Shape<Shape<_4, _8>, Shape<_8, _2>>, Stride<Stride<_64, _1>, Stride<_8, _256>>>;
// bits
using R16K128Bit = Layout<Shape<Shape<_4, _8>, Shape<_32, _2>>, Stride<Stride<_512, _1>, Stride<_16, _8>>>;
using R16K256Bit =
    Layout<Shape<Shape<_4, _8>, Shape<_32, _2, _2>>, Stride<Stride<_512, _1>, Stride<_16, _8, Int<2048>>>>;
using R8K128Bit = Layout<Shape<Shape<_4, _8>, _32>, Stride<Stride<_256, _1>, _8>>;
using R8K256Bit = Layout<Shape<Shape<_4, _8>, Shape<_32, _2>>, Stride<Stride<_256, _1>, Stride<_8, Int<1024>>>>;

// Those of sm_70: eight threads, lanes 0 to 3 and 16 to 19 (and so on), K-major and M- or N-major operands.
using QuadPair = Layout<Shape<_4, _2>, Stride<_1, _16>>;
using QuadPairK = Layout<Shape<_8, _4>, Stride<_1, _8>>;
using QuadPairMn = Layout<Shape<Shape<_4, _2>, _4>, Stride<Stride<_8, _4>, _1>>;
using QuadPairF16 = Layout<Shape<_8, _8>, Stride<_1, _8>>;
using QuadPairF32 =
    Layout<Shape<Shape<_2, _2, _2>, Shape<_2, _2, _2>>, Stride<Stride<_1, _16, _4>, Stride<_8, _2, _32>>>;
}  // namespace mma_layout

/// ThrId: logical thread -> lane; the eight of a quad pair, or a warp.
template <class D, class A, class B, class C, class Shape_, class ALayout_, class BLayout_, class CLayout_>
struct SyncMmaTraits {
  using ValTypeD = D;
  using ValTypeA = A;
  using ValTypeB = B;
  using ValTypeC = C;
  using ShapeMNK = Shape_;
  using ThrId = Conditional<decltype(size<0>(CLayout_{}))::value == 8, mma_layout::QuadPair, Layout<_32, _1>>;
  using ALayout = ALayout_;
  using BLayout = BLayout_;
  using CLayout = CLayout_;
};

#define MOYE_MMA_TRAITS(op, d, a, b, m, n, k, a_layout, b_layout, c_layout)                             \
  template <>                                                                                           \
  struct MmaTraits<op> : SyncMmaTraits<d, a, b, d, Shape<Int<m>, Int<n>, Int<k>>, mma_layout::a_layout, \
                                       mma_layout::b_layout, mma_layout::c_layout> {};
// clang-format off
MOYE_MMA_TRAITS(SM70_8x8x4_F16F16F16F16_TN,          half_t,  half_t,       half_t,        8, 8,   4, QuadPairK,    QuadPairK,   QuadPairF16)
MOYE_MMA_TRAITS(SM70_8x8x4_F16F16F16F16_NT,          half_t,  half_t,       half_t,        8, 8,   4, QuadPairMn,   QuadPairMn,  QuadPairF16)
MOYE_MMA_TRAITS(SM70_8x8x4_F16F16F16F16_NN,          half_t,  half_t,       half_t,        8, 8,   4, QuadPairMn,   QuadPairK,   QuadPairF16)
MOYE_MMA_TRAITS(SM70_8x8x4_F16F16F16F16_TT,          half_t,  half_t,       half_t,        8, 8,   4, QuadPairK,    QuadPairMn,  QuadPairF16)
MOYE_MMA_TRAITS(SM70_8x8x4_F32F16F16F32_TN,          float,   half_t,       half_t,        8, 8,   4, QuadPairK,    QuadPairK,   QuadPairF32)
MOYE_MMA_TRAITS(SM70_8x8x4_F32F16F16F32_NT,          float,   half_t,       half_t,        8, 8,   4, QuadPairMn,   QuadPairMn,  QuadPairF32)
MOYE_MMA_TRAITS(SM70_8x8x4_F32F16F16F32_NN,          float,   half_t,       half_t,        8, 8,   4, QuadPairMn,   QuadPairK,   QuadPairF32)
MOYE_MMA_TRAITS(SM70_8x8x4_F32F16F16F32_TT,          float,   half_t,       half_t,        8, 8,   4, QuadPairK,    QuadPairMn,  QuadPairF32)
MOYE_MMA_TRAITS(SM75_16x8x8_F32F16F16F32_TN,         float,   half_t,       half_t,       16, 8,   8, R16K8,        R8K8,        M16N8)
MOYE_MMA_TRAITS(SM75_16x8x8_F16F16F16F16_TN,         half_t,  half_t,       half_t,       16, 8,   8, R16K8,        R8K8,        M16N8)
MOYE_MMA_TRAITS(SM75_8x8x16_S32S8S8S32_TN,           int32_t, int8_t,       int8_t,        8, 8,  16, R8K16Byte,    R8K16Byte,   M8N8)
MOYE_MMA_TRAITS(SM80_16x8x8_F32BF16BF16F32_TN,       float,   bfloat16_t,   bfloat16_t,   16, 8,   8, R16K8,        R8K8,        M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_F32BF16BF16F32_TN,      float,   bfloat16_t,   bfloat16_t,   16, 8,  16, R16K16,       R8K16,       M16N8)
MOYE_MMA_TRAITS(SM80_16x8x8_F32F16F16F32_TN,         float,   half_t,       half_t,       16, 8,   8, R16K8,        R8K8,        M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_F32F16F16F32_TN,        float,   half_t,       half_t,       16, 8,  16, R16K16,       R8K16,       M16N8)
MOYE_MMA_TRAITS(SM80_16x8x4_F32TF32TF32F32_TN,       float,   tfloat32_t,   tfloat32_t,   16, 8,   4, R16K4Word,    R8K4Word,    M16N8)
MOYE_MMA_TRAITS(SM80_16x8x8_F32TF32TF32F32_TN,       float,   tfloat32_t,   tfloat32_t,   16, 8,   8, R16K8Word,    R8K8Word,    M16N8)
MOYE_MMA_TRAITS(SM80_16x8x8_F16F16F16F16_TN,         half_t,  half_t,       half_t,       16, 8,   8, R16K8,        R8K8,        M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_F16F16F16F16_TN,        half_t,  half_t,       half_t,       16, 8,  16, R16K16,       R8K16,       M16N8)
MOYE_MMA_TRAITS(SM80_8x8x4_F64F64F64F64_TN,          double,  double,       double,        8, 8,   4, R8K4Word,     R8K4Word,    M8N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32S8S8S32_TN,           int32_t, int8_t,       int8_t,        8, 8,  16, R8K16Byte,    R8K16Byte,   M8N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32S8U8S32_TN,           int32_t, int8_t,       uint8_t,       8, 8,  16, R8K16Byte,    R8K16Byte,   M8N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32U8S8S32_TN,           int32_t, uint8_t,      int8_t,        8, 8,  16, R8K16Byte,    R8K16Byte,   M8N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32U8U8S32_TN,           int32_t, uint8_t,      uint8_t,       8, 8,  16, R8K16Byte,    R8K16Byte,   M8N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32S8S8S32_TN,          int32_t, int8_t,       int8_t,       16, 8,  16, R16K16Byte,   R8K16Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32S8U8S32_TN,          int32_t, int8_t,       uint8_t,      16, 8,  16, R16K16Byte,   R8K16Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32U8S8S32_TN,          int32_t, uint8_t,      int8_t,       16, 8,  16, R16K16Byte,   R8K16Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32U8U8S32_TN,          int32_t, uint8_t,      uint8_t,      16, 8,  16, R16K16Byte,   R8K16Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32S8S8S32_TN,          int32_t, int8_t,       int8_t,       16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32S8U8S32_TN,          int32_t, int8_t,       uint8_t,      16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32U8S8S32_TN,          int32_t, uint8_t,      int8_t,       16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32U8U8S32_TN,          int32_t, uint8_t,      uint8_t,      16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32S8S8S32_TN_SATURATE,  int32_t, int8_t,       int8_t,        8, 8,  16, R8K16Byte,    R8K16Byte,   M8N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32S8U8S32_TN_SATURATE,  int32_t, int8_t,       uint8_t,       8, 8,  16, R8K16Byte,    R8K16Byte,   M8N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32U8S8S32_TN_SATURATE,  int32_t, uint8_t,      int8_t,        8, 8,  16, R8K16Byte,    R8K16Byte,   M8N8)
MOYE_MMA_TRAITS(SM80_8x8x16_S32U8U8S32_TN_SATURATE,  int32_t, uint8_t,      uint8_t,       8, 8,  16, R8K16Byte,    R8K16Byte,   M8N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32S8S8S32_TN_SATURATE, int32_t, int8_t,       int8_t,       16, 8,  16, R16K16Byte,   R8K16Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32S8U8S32_TN_SATURATE, int32_t, int8_t,       uint8_t,      16, 8,  16, R16K16Byte,   R8K16Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32U8S8S32_TN_SATURATE, int32_t, uint8_t,      int8_t,       16, 8,  16, R16K16Byte,   R8K16Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x16_S32U8U8S32_TN_SATURATE, int32_t, uint8_t,      uint8_t,      16, 8,  16, R16K16Byte,   R8K16Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32S8S8S32_TN_SATURATE, int32_t, int8_t,       int8_t,       16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32S8U8S32_TN_SATURATE, int32_t, int8_t,       uint8_t,      16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32U8S8S32_TN_SATURATE, int32_t, uint8_t,      int8_t,       16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32U8U8S32_TN_SATURATE, int32_t, uint8_t,      uint8_t,      16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM80_8x8x32_S32S4S4S32_TN,           int32_t, int4b_t,      int4b_t,       8, 8,  32, R8K32Nibble,  R8K32Nibble, M8N8)
MOYE_MMA_TRAITS(SM80_8x8x32_S32S4U4S32_TN,           int32_t, int4b_t,      uint4b_t,      8, 8,  32, R8K32Nibble,  R8K32Nibble, M8N8)
MOYE_MMA_TRAITS(SM80_8x8x32_S32U4S4S32_TN,           int32_t, uint4b_t,     int4b_t,       8, 8,  32, R8K32Nibble,  R8K32Nibble, M8N8)
MOYE_MMA_TRAITS(SM80_8x8x32_S32U4U4S32_TN,           int32_t, uint4b_t,     uint4b_t,      8, 8,  32, R8K32Nibble,  R8K32Nibble, M8N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32S4S4S32_TN,          int32_t, int4b_t,      int4b_t,      16, 8,  32, R16K32Nibble, R8K32Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32S4U4S32_TN,          int32_t, int4b_t,      uint4b_t,     16, 8,  32, R16K32Nibble, R8K32Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32U4S4S32_TN,          int32_t, uint4b_t,     int4b_t,      16, 8,  32, R16K32Nibble, R8K32Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32U4U4S32_TN,          int32_t, uint4b_t,     uint4b_t,     16, 8,  32, R16K32Nibble, R8K32Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x64_S32S4S4S32_TN,          int32_t, int4b_t,      int4b_t,      16, 8,  64, R16K64Nibble, R8K64Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x64_S32S4U4S32_TN,          int32_t, int4b_t,      uint4b_t,     16, 8,  64, R16K64Nibble, R8K64Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x64_S32U4S4S32_TN,          int32_t, uint4b_t,     int4b_t,      16, 8,  64, R16K64Nibble, R8K64Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x64_S32U4U4S32_TN,          int32_t, uint4b_t,     uint4b_t,     16, 8,  64, R16K64Nibble, R8K64Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_8x8x32_S32S4S4S32_TN_SATURATE,  int32_t, int4b_t,      int4b_t,       8, 8,  32, R8K32Nibble,  R8K32Nibble, M8N8)
MOYE_MMA_TRAITS(SM80_8x8x32_S32S4U4S32_TN_SATURATE,  int32_t, int4b_t,      uint4b_t,      8, 8,  32, R8K32Nibble,  R8K32Nibble, M8N8)
MOYE_MMA_TRAITS(SM80_8x8x32_S32U4S4S32_TN_SATURATE,  int32_t, uint4b_t,     int4b_t,       8, 8,  32, R8K32Nibble,  R8K32Nibble, M8N8)
MOYE_MMA_TRAITS(SM80_8x8x32_S32U4U4S32_TN_SATURATE,  int32_t, uint4b_t,     uint4b_t,      8, 8,  32, R8K32Nibble,  R8K32Nibble, M8N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32S4S4S32_TN_SATURATE, int32_t, int4b_t,      int4b_t,      16, 8,  32, R16K32Nibble, R8K32Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32S4U4S32_TN_SATURATE, int32_t, int4b_t,      uint4b_t,     16, 8,  32, R16K32Nibble, R8K32Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32U4S4S32_TN_SATURATE, int32_t, uint4b_t,     int4b_t,      16, 8,  32, R16K32Nibble, R8K32Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x32_S32U4U4S32_TN_SATURATE, int32_t, uint4b_t,     uint4b_t,     16, 8,  32, R16K32Nibble, R8K32Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x64_S32S4S4S32_TN_SATURATE, int32_t, int4b_t,      int4b_t,      16, 8,  64, R16K64Nibble, R8K64Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x64_S32S4U4S32_TN_SATURATE, int32_t, int4b_t,      uint4b_t,     16, 8,  64, R16K64Nibble, R8K64Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x64_S32U4S4S32_TN_SATURATE, int32_t, uint4b_t,     int4b_t,      16, 8,  64, R16K64Nibble, R8K64Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_16x8x64_S32U4U4S32_TN_SATURATE, int32_t, uint4b_t,     uint4b_t,     16, 8,  64, R16K64Nibble, R8K64Nibble, M16N8)
MOYE_MMA_TRAITS(SM80_8x8x128_S32U1U1S32_TN_XORPOPC,  int32_t, uint1b_t,     uint1b_t,      8, 8, 128, R8K128Bit,    R8K128Bit,   M8N8)
MOYE_MMA_TRAITS(SM80_8x8x128_S32U1U1S32_TN_ANDPOPC,  int32_t, uint1b_t,     uint1b_t,      8, 8, 128, R8K128Bit,    R8K128Bit,   M8N8)
MOYE_MMA_TRAITS(SM80_16x8x128_S32U1U1S32_TN_XORPOPC, int32_t, uint1b_t,     uint1b_t,     16, 8, 128, R16K128Bit,   R8K128Bit,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x128_S32U1U1S32_TN_ANDPOPC, int32_t, uint1b_t,     uint1b_t,     16, 8, 128, R16K128Bit,   R8K128Bit,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x256_S32U1U1S32_TN_XORPOPC, int32_t, uint1b_t,     uint1b_t,     16, 8, 256, R16K256Bit,   R8K256Bit,   M16N8)
MOYE_MMA_TRAITS(SM80_16x8x256_S32U1U1S32_TN_ANDPOPC, int32_t, uint1b_t,     uint1b_t,     16, 8, 256, R16K256Bit,   R8K256Bit,   M16N8)
MOYE_MMA_TRAITS(SM89_16x8x32_F32E4M3E4M3F32_TN,      float,   float_e4m3_t, float_e4m3_t, 16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM89_16x8x32_F32E4M3E5M2F32_TN,      float,   float_e4m3_t, float_e5m2_t, 16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM89_16x8x32_F32E5M2E4M3F32_TN,      float,   float_e5m2_t, float_e4m3_t, 16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM89_16x8x32_F32E5M2E5M2F32_TN,      float,   float_e5m2_t, float_e5m2_t, 16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM89_16x8x32_F16E4M3E4M3F16_TN,      half_t,  float_e4m3_t, float_e4m3_t, 16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM89_16x8x32_F16E4M3E5M2F16_TN,      half_t,  float_e4m3_t, float_e5m2_t, 16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM89_16x8x32_F16E5M2E4M3F16_TN,      half_t,  float_e5m2_t, float_e4m3_t, 16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM89_16x8x32_F16E5M2E5M2F16_TN,      half_t,  float_e5m2_t, float_e5m2_t, 16, 8,  32, R16K32Byte,   R8K32Byte,   M16N8)
MOYE_MMA_TRAITS(SM90_16x8x4_F64F64F64F64_TN,         double,  double,       double,       16, 8,   4, R16K4Word,    R8K4Word,    M16N8)
MOYE_MMA_TRAITS(SM90_16x8x8_F64F64F64F64_TN,         double,  double,       double,       16, 8,   8, R16K8Word,    R8K8Word,    M16N8)
MOYE_MMA_TRAITS(SM90_16x8x16_F64F64F64F64_TN,        double,  double,       double,       16, 8,  16, R16K16Word,   R8K16Word,   M16N8)
// clang-format on
#undef MOYE_MMA_TRAITS

/// An instruction whose values are smaller than a byte, with a register's worth of them, neighbours along K, as one
/// element: what tensors of memory and fragments hold. A K of 64 4-bit values is one of 8 elements.
///   make_tiled_mma(MmaInWords<SM80_16x8x64_S32S4S4S32_TN>{}, ...)
template <class Op>
struct MmaInWords : Op {};

template <class T>
struct WordOfValues;
template <>
struct WordOfValues<int4b_t> {
  using Type = int4x8_t;
  static constexpr int kValues = 8;
};
template <>
struct WordOfValues<uint4b_t> {
  using Type = uint4x8_t;
  static constexpr int kValues = 8;
};
template <>
struct WordOfValues<uint1b_t> {
  using Type = uint1x32_t;
  static constexpr int kValues = 32;
};

template <class Op>
struct MmaTraits<MmaInWords<Op>> {
 private:
  using Values = MmaTraits<Op>;
  static constexpr int kM = decltype(get<0>(typename Values::ShapeMNK{}))::value;
  static constexpr int kK =
      decltype(get<2>(typename Values::ShapeMNK{}))::value / WordOfValues<typename Values::ValTypeA>::kValues;
  static_assert(kK == 4 || kK == 8, "MmaInWords: no instruction has this K");

 public:
  using ValTypeD = typename Values::ValTypeD;
  using ValTypeA = typename WordOfValues<typename Values::ValTypeA>::Type;
  using ValTypeB = typename WordOfValues<typename Values::ValTypeB>::Type;
  using ValTypeC = typename Values::ValTypeC;
  using ShapeMNK = Shape<Int<kM>, _8, Int<kK>>;
  using ThrId = typename Values::ThrId;
  using ALayout =
      Conditional<kM == 8, mma_layout::R8K4Word, Conditional<kK == 4, mma_layout::R16K4Word, mma_layout::R16K8Word>>;
  using BLayout = Conditional<kK == 4, mma_layout::R8K4Word, mma_layout::R8K8Word>;
  using CLayout = typename Values::CLayout;
};

/// The first architecture that has the instruction, 80 for sm_80; 0 for what is not one.
template <class Op>
inline constexpr int min_arch = [] {
  if constexpr (requires { Op::kMinArch; }) {
    return Op::kMinArch;
  } else {
    return 0;
  }
}();

/// Whether fragments can hold the operands' values.
template <class T>
inline constexpr bool is_whole_bytes = !is_same<T, int4b_t> && !is_same<T, uint4b_t> && !is_same<T, uint1b_t>;

}  // namespace moye
