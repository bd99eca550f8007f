// mma.sync of sm_75 (PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions: mma"): D = A * B + C by a warp, A
// (M,K) row-major, B (N,K), so "TN". The instructions are three of those in mma_sm80.h, under CuTe's names for sm_75.
#pragma once

#include "moye/arch/mma_macros.h"

#define MOYE_MMA_ARCH 75

namespace moye {

// clang-format off
MOYE_MMA_421(SM75_16x8x8_F32F16F16F32_TN, "m16n8k8.row.col.f32.f16.f16.f32", f32, b32, 16, 8, 8, f16, f16, f32)
MOYE_MMA_221(SM75_16x8x8_F16F16F16F16_TN, "m16n8k8.row.col.f16.f16.f16.f16", b32, b32, 16, 8, 8, f16, f16, f16)
MOYE_MMA_211(SM75_8x8x16_S32S8S8S32_TN,   "m8n8k16.row.col.s32.s8.s8.s32",   b32, b32, 8, 8, 16, s8, s8, s32)
// clang-format on

}  // namespace moye

#undef MOYE_MMA_ARCH
