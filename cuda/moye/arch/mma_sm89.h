// mma.sync of sm_89 with 8-bit floats, four to a register (PTX ISA, "Warp Level Matrix Multiply-Accumulate
// Instructions: mma"): D = A * B + C by a warp, A (M,K) row-major, B (N,K), so "TN".
#pragma once

#include "moye/arch/mma_macros.h"

#define MOYE_MMA_ARCH 89

namespace moye {

// ---- f32 accumulators
// clang-format off
MOYE_MMA_442(SM89_16x8x32_F32E4M3E4M3F32_TN, "m16n8k32.row.col.f32.e4m3.e4m3.f32", f32, b32, 16, 8, 32, e4m3, e4m3, f32)
MOYE_MMA_442(SM89_16x8x32_F32E4M3E5M2F32_TN, "m16n8k32.row.col.f32.e4m3.e5m2.f32", f32, b32, 16, 8, 32, e4m3, e5m2, f32)
MOYE_MMA_442(SM89_16x8x32_F32E5M2E4M3F32_TN, "m16n8k32.row.col.f32.e5m2.e4m3.f32", f32, b32, 16, 8, 32, e5m2, e4m3, f32)
MOYE_MMA_442(SM89_16x8x32_F32E5M2E5M2F32_TN, "m16n8k32.row.col.f32.e5m2.e5m2.f32", f32, b32, 16, 8, 32, e5m2, e5m2, f32)
// clang-format on

// ---- f16 accumulators, two to a register
// clang-format off
MOYE_MMA_242(SM89_16x8x32_F16E4M3E4M3F16_TN, "m16n8k32.row.col.f16.e4m3.e4m3.f16", b32, b32, 16, 8, 32, e4m3, e4m3, f16)
MOYE_MMA_242(SM89_16x8x32_F16E4M3E5M2F16_TN, "m16n8k32.row.col.f16.e4m3.e5m2.f16", b32, b32, 16, 8, 32, e4m3, e5m2, f16)
MOYE_MMA_242(SM89_16x8x32_F16E5M2E4M3F16_TN, "m16n8k32.row.col.f16.e5m2.e4m3.f16", b32, b32, 16, 8, 32, e5m2, e4m3, f16)
MOYE_MMA_242(SM89_16x8x32_F16E5M2E5M2F16_TN, "m16n8k32.row.col.f16.e5m2.e5m2.f16", b32, b32, 16, 8, 32, e5m2, e5m2, f16)
// clang-format on

}  // namespace moye

#undef MOYE_MMA_ARCH
