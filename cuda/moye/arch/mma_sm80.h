// mma.sync of sm_80 (PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions: mma"): D = A * B + C by a warp.
//   A is (M,K) row-major, B is (N,K), so "TN"; each struct's name is M x N x K, then the types of D, A, B and C.
//   Which element a lane's register holds is in ../atom/mma_traits; the registers' types are here.
#pragma once

#include "moye/arch/mma_macros.h"

#define MOYE_MMA_ARCH 80

namespace moye {

// ---- f32 accumulators
// clang-format off
MOYE_MMA_421(SM80_16x8x8_F32BF16BF16F32_TN,  "m16n8k8.row.col.f32.bf16.bf16.f32",  f32, b32, 16, 8, 8, bf16, bf16, f32)
MOYE_MMA_442(SM80_16x8x16_F32BF16BF16F32_TN, "m16n8k16.row.col.f32.bf16.bf16.f32", f32, b32, 16, 8, 16, bf16, bf16, f32)
MOYE_MMA_421(SM80_16x8x8_F32F16F16F32_TN,    "m16n8k8.row.col.f32.f16.f16.f32",    f32, b32, 16, 8, 8, f16, f16, f32)
MOYE_MMA_442(SM80_16x8x16_F32F16F16F32_TN,   "m16n8k16.row.col.f32.f16.f16.f32",   f32, b32, 16, 8, 16, f16, f16, f32)
MOYE_MMA_421(SM80_16x8x4_F32TF32TF32F32_TN,  "m16n8k4.row.col.f32.tf32.tf32.f32",  f32, b32, 16, 8, 4, tf32, tf32, f32)
MOYE_MMA_442(SM80_16x8x8_F32TF32TF32F32_TN,  "m16n8k8.row.col.f32.tf32.tf32.f32",  f32, b32, 16, 8, 8, tf32, tf32, f32)
// clang-format on

// ---- f16 accumulators, two to a register
// clang-format off
MOYE_MMA_221(SM80_16x8x8_F16F16F16F16_TN,  "m16n8k8.row.col.f16.f16.f16.f16",  b32, b32, 16, 8, 8, f16, f16, f16)
MOYE_MMA_242(SM80_16x8x16_F16F16F16F16_TN, "m16n8k16.row.col.f16.f16.f16.f16", b32, b32, 16, 8, 16, f16, f16, f16)
// clang-format on

// ---- f64
// clang-format off
MOYE_MMA_211(SM80_8x8x4_F64F64F64F64_TN, "m8n8k4.row.col.f64.f64.f64.f64", f64, f64, 8, 8, 4, f64, f64, f64)
// clang-format on

// ---- 8-bit integers, s32 accumulators that wrap around
// clang-format off
MOYE_MMA_211(SM80_8x8x16_S32S8S8S32_TN,  "m8n8k16.row.col.s32.s8.s8.s32",  b32, b32, 8, 8, 16, s8, s8, s32)
MOYE_MMA_211(SM80_8x8x16_S32S8U8S32_TN,  "m8n8k16.row.col.s32.s8.u8.s32",  b32, b32, 8, 8, 16, s8, u8, s32)
MOYE_MMA_211(SM80_8x8x16_S32U8S8S32_TN,  "m8n8k16.row.col.s32.u8.s8.s32",  b32, b32, 8, 8, 16, u8, s8, s32)
MOYE_MMA_211(SM80_8x8x16_S32U8U8S32_TN,  "m8n8k16.row.col.s32.u8.u8.s32",  b32, b32, 8, 8, 16, u8, u8, s32)
MOYE_MMA_421(SM80_16x8x16_S32S8S8S32_TN, "m16n8k16.row.col.s32.s8.s8.s32", b32, b32, 16, 8, 16, s8, s8, s32)
MOYE_MMA_421(SM80_16x8x16_S32S8U8S32_TN, "m16n8k16.row.col.s32.s8.u8.s32", b32, b32, 16, 8, 16, s8, u8, s32)
MOYE_MMA_421(SM80_16x8x16_S32U8S8S32_TN, "m16n8k16.row.col.s32.u8.s8.s32", b32, b32, 16, 8, 16, u8, s8, s32)
MOYE_MMA_421(SM80_16x8x16_S32U8U8S32_TN, "m16n8k16.row.col.s32.u8.u8.s32", b32, b32, 16, 8, 16, u8, u8, s32)
MOYE_MMA_442(SM80_16x8x32_S32S8S8S32_TN, "m16n8k32.row.col.s32.s8.s8.s32", b32, b32, 16, 8, 32, s8, s8, s32)
MOYE_MMA_442(SM80_16x8x32_S32S8U8S32_TN, "m16n8k32.row.col.s32.s8.u8.s32", b32, b32, 16, 8, 32, s8, u8, s32)
MOYE_MMA_442(SM80_16x8x32_S32U8S8S32_TN, "m16n8k32.row.col.s32.u8.s8.s32", b32, b32, 16, 8, 32, u8, s8, s32)
MOYE_MMA_442(SM80_16x8x32_S32U8U8S32_TN, "m16n8k32.row.col.s32.u8.u8.s32", b32, b32, 16, 8, 32, u8, u8, s32)
// clang-format on

// ---- 8-bit integers, s32 accumulators that stop at the least and the greatest number
// clang-format off
MOYE_MMA_211(SM80_8x8x16_S32S8S8S32_TN_SATURATE,  "m8n8k16.row.col.satfinite.s32.s8.s8.s32",  b32, b32, 8, 8, 16, s8, s8, s32, saturate)
MOYE_MMA_211(SM80_8x8x16_S32S8U8S32_TN_SATURATE,  "m8n8k16.row.col.satfinite.s32.s8.u8.s32",  b32, b32, 8, 8, 16, s8, u8, s32, saturate)
MOYE_MMA_211(SM80_8x8x16_S32U8S8S32_TN_SATURATE,  "m8n8k16.row.col.satfinite.s32.u8.s8.s32",  b32, b32, 8, 8, 16, u8, s8, s32, saturate)
MOYE_MMA_211(SM80_8x8x16_S32U8U8S32_TN_SATURATE,  "m8n8k16.row.col.satfinite.s32.u8.u8.s32",  b32, b32, 8, 8, 16, u8, u8, s32, saturate)
MOYE_MMA_421(SM80_16x8x16_S32S8S8S32_TN_SATURATE, "m16n8k16.row.col.satfinite.s32.s8.s8.s32", b32, b32, 16, 8, 16, s8, s8, s32, saturate)
MOYE_MMA_421(SM80_16x8x16_S32S8U8S32_TN_SATURATE, "m16n8k16.row.col.satfinite.s32.s8.u8.s32", b32, b32, 16, 8, 16, s8, u8, s32, saturate)
MOYE_MMA_421(SM80_16x8x16_S32U8S8S32_TN_SATURATE, "m16n8k16.row.col.satfinite.s32.u8.s8.s32", b32, b32, 16, 8, 16, u8, s8, s32, saturate)
MOYE_MMA_421(SM80_16x8x16_S32U8U8S32_TN_SATURATE, "m16n8k16.row.col.satfinite.s32.u8.u8.s32", b32, b32, 16, 8, 16, u8, u8, s32, saturate)
MOYE_MMA_442(SM80_16x8x32_S32S8S8S32_TN_SATURATE, "m16n8k32.row.col.satfinite.s32.s8.s8.s32", b32, b32, 16, 8, 32, s8, s8, s32, saturate)
MOYE_MMA_442(SM80_16x8x32_S32S8U8S32_TN_SATURATE, "m16n8k32.row.col.satfinite.s32.s8.u8.s32", b32, b32, 16, 8, 32, s8, u8, s32, saturate)
MOYE_MMA_442(SM80_16x8x32_S32U8S8S32_TN_SATURATE, "m16n8k32.row.col.satfinite.s32.u8.s8.s32", b32, b32, 16, 8, 32, u8, s8, s32, saturate)
MOYE_MMA_442(SM80_16x8x32_S32U8U8S32_TN_SATURATE, "m16n8k32.row.col.satfinite.s32.u8.u8.s32", b32, b32, 16, 8, 32, u8, u8, s32, saturate)
// clang-format on

// ---- 4-bit integers, eight to a register; the same two kinds of accumulators
// clang-format off
MOYE_MMA_211(SM80_8x8x32_S32S4S4S32_TN,           "m8n8k32.row.col.s32.s4.s4.s32",            b32, b32, 8, 8, 32, s4, s4, s32)
MOYE_MMA_211(SM80_8x8x32_S32S4U4S32_TN,           "m8n8k32.row.col.s32.s4.u4.s32",            b32, b32, 8, 8, 32, s4, u4, s32)
MOYE_MMA_211(SM80_8x8x32_S32U4S4S32_TN,           "m8n8k32.row.col.s32.u4.s4.s32",            b32, b32, 8, 8, 32, u4, s4, s32)
MOYE_MMA_211(SM80_8x8x32_S32U4U4S32_TN,           "m8n8k32.row.col.s32.u4.u4.s32",            b32, b32, 8, 8, 32, u4, u4, s32)
MOYE_MMA_421(SM80_16x8x32_S32S4S4S32_TN,          "m16n8k32.row.col.s32.s4.s4.s32",           b32, b32, 16, 8, 32, s4, s4, s32)
MOYE_MMA_421(SM80_16x8x32_S32S4U4S32_TN,          "m16n8k32.row.col.s32.s4.u4.s32",           b32, b32, 16, 8, 32, s4, u4, s32)
MOYE_MMA_421(SM80_16x8x32_S32U4S4S32_TN,          "m16n8k32.row.col.s32.u4.s4.s32",           b32, b32, 16, 8, 32, u4, s4, s32)
MOYE_MMA_421(SM80_16x8x32_S32U4U4S32_TN,          "m16n8k32.row.col.s32.u4.u4.s32",           b32, b32, 16, 8, 32, u4, u4, s32)
MOYE_MMA_442(SM80_16x8x64_S32S4S4S32_TN,          "m16n8k64.row.col.s32.s4.s4.s32",           b32, b32, 16, 8, 64, s4, s4, s32)
MOYE_MMA_442(SM80_16x8x64_S32S4U4S32_TN,          "m16n8k64.row.col.s32.s4.u4.s32",           b32, b32, 16, 8, 64, s4, u4, s32)
MOYE_MMA_442(SM80_16x8x64_S32U4S4S32_TN,          "m16n8k64.row.col.s32.u4.s4.s32",           b32, b32, 16, 8, 64, u4, s4, s32)
MOYE_MMA_442(SM80_16x8x64_S32U4U4S32_TN,          "m16n8k64.row.col.s32.u4.u4.s32",           b32, b32, 16, 8, 64, u4, u4, s32)
MOYE_MMA_211(SM80_8x8x32_S32S4S4S32_TN_SATURATE,  "m8n8k32.row.col.satfinite.s32.s4.s4.s32",  b32, b32, 8, 8, 32, s4, s4, s32, saturate)
MOYE_MMA_211(SM80_8x8x32_S32S4U4S32_TN_SATURATE,  "m8n8k32.row.col.satfinite.s32.s4.u4.s32",  b32, b32, 8, 8, 32, s4, u4, s32, saturate)
MOYE_MMA_211(SM80_8x8x32_S32U4S4S32_TN_SATURATE,  "m8n8k32.row.col.satfinite.s32.u4.s4.s32",  b32, b32, 8, 8, 32, u4, s4, s32, saturate)
MOYE_MMA_211(SM80_8x8x32_S32U4U4S32_TN_SATURATE,  "m8n8k32.row.col.satfinite.s32.u4.u4.s32",  b32, b32, 8, 8, 32, u4, u4, s32, saturate)
MOYE_MMA_421(SM80_16x8x32_S32S4S4S32_TN_SATURATE, "m16n8k32.row.col.satfinite.s32.s4.s4.s32", b32, b32, 16, 8, 32, s4, s4, s32, saturate)
MOYE_MMA_421(SM80_16x8x32_S32S4U4S32_TN_SATURATE, "m16n8k32.row.col.satfinite.s32.s4.u4.s32", b32, b32, 16, 8, 32, s4, u4, s32, saturate)
MOYE_MMA_421(SM80_16x8x32_S32U4S4S32_TN_SATURATE, "m16n8k32.row.col.satfinite.s32.u4.s4.s32", b32, b32, 16, 8, 32, u4, s4, s32, saturate)
MOYE_MMA_421(SM80_16x8x32_S32U4U4S32_TN_SATURATE, "m16n8k32.row.col.satfinite.s32.u4.u4.s32", b32, b32, 16, 8, 32, u4, u4, s32, saturate)
MOYE_MMA_442(SM80_16x8x64_S32S4S4S32_TN_SATURATE, "m16n8k64.row.col.satfinite.s32.s4.s4.s32", b32, b32, 16, 8, 64, s4, s4, s32, saturate)
MOYE_MMA_442(SM80_16x8x64_S32S4U4S32_TN_SATURATE, "m16n8k64.row.col.satfinite.s32.s4.u4.s32", b32, b32, 16, 8, 64, s4, u4, s32, saturate)
MOYE_MMA_442(SM80_16x8x64_S32U4S4S32_TN_SATURATE, "m16n8k64.row.col.satfinite.s32.u4.s4.s32", b32, b32, 16, 8, 64, u4, s4, s32, saturate)
MOYE_MMA_442(SM80_16x8x64_S32U4U4S32_TN_SATURATE, "m16n8k64.row.col.satfinite.s32.u4.u4.s32", b32, b32, 16, 8, 64, u4, u4, s32, saturate)
// clang-format on

// ---- bits, 32 to a register: in place of a product, 1 where the two bits differ (xor) or are both set (and)
// clang-format off
MOYE_MMA_211(SM80_8x8x128_S32U1U1S32_TN_XORPOPC,  "m8n8k128.row.col.s32.b1.b1.s32.xor.popc",  b32, b32, 8, 8, 128, u1, u1, s32, xor_popc)
MOYE_MMA_211(SM80_8x8x128_S32U1U1S32_TN_ANDPOPC,  "m8n8k128.row.col.s32.b1.b1.s32.and.popc",  b32, b32, 8, 8, 128, u1, u1, s32, and_popc)
MOYE_MMA_421(SM80_16x8x128_S32U1U1S32_TN_XORPOPC, "m16n8k128.row.col.s32.b1.b1.s32.xor.popc", b32, b32, 16, 8, 128, u1, u1, s32, xor_popc)
MOYE_MMA_421(SM80_16x8x128_S32U1U1S32_TN_ANDPOPC, "m16n8k128.row.col.s32.b1.b1.s32.and.popc", b32, b32, 16, 8, 128, u1, u1, s32, and_popc)
MOYE_MMA_442(SM80_16x8x256_S32U1U1S32_TN_XORPOPC, "m16n8k256.row.col.s32.b1.b1.s32.xor.popc", b32, b32, 16, 8, 256, u1, u1, s32, xor_popc)
MOYE_MMA_442(SM80_16x8x256_S32U1U1S32_TN_ANDPOPC, "m16n8k256.row.col.s32.b1.b1.s32.and.popc", b32, b32, 16, 8, 256, u1, u1, s32, and_popc)
// clang-format on

}  // namespace moye

#undef MOYE_MMA_ARCH
