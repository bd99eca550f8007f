// mma.sync of sm_70 (PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type"): D = A * B + C, 8x8x4,
// by a quad pair, lanes 4p to 4p+3 and 16+4p to 19+4p. All 32 lanes execute it, and the four quad pairs multiply four
// pairs of matrices. The name ends with the majors of A and B, "T" for row-major A and B, "N" for column-major ones: TN
// is K-major both, NT is M-major A and N-major B. Later architectures have it, too, at a fraction of the speed of their
// own instructions.
#pragma once

#include "moye/arch/mma_macros.h"

#define MOYE_MMA_ARCH 70

namespace moye {

// ---- f16 accumulators, two to a register: D and C 4, A 2, B 2 registers
// clang-format off
MOYE_MMA_422(SM70_8x8x4_F16F16F16F16_TN, "m8n8k4.row.col.f16.f16.f16.f16", b32, b32, 8, 8, 4, f16, f16, f16, tn)
MOYE_MMA_422(SM70_8x8x4_F16F16F16F16_NT, "m8n8k4.col.row.f16.f16.f16.f16", b32, b32, 8, 8, 4, f16, f16, f16, nt)
MOYE_MMA_422(SM70_8x8x4_F16F16F16F16_NN, "m8n8k4.col.col.f16.f16.f16.f16", b32, b32, 8, 8, 4, f16, f16, f16, nn)
MOYE_MMA_422(SM70_8x8x4_F16F16F16F16_TT, "m8n8k4.row.row.f16.f16.f16.f16", b32, b32, 8, 8, 4, f16, f16, f16, tt)
// clang-format on

// ---- f32 accumulators: D and C 8, A 2, B 2 registers
// clang-format off
MOYE_MMA_822(SM70_8x8x4_F32F16F16F32_TN, "m8n8k4.row.col.f32.f16.f16.f32", f32, b32, 8, 8, 4, f16, f16, f32, tn)
MOYE_MMA_822(SM70_8x8x4_F32F16F16F32_NT, "m8n8k4.col.row.f32.f16.f16.f32", f32, b32, 8, 8, 4, f16, f16, f32, nt)
MOYE_MMA_822(SM70_8x8x4_F32F16F16F32_NN, "m8n8k4.col.col.f32.f16.f16.f32", f32, b32, 8, 8, 4, f16, f16, f32, nn)
MOYE_MMA_822(SM70_8x8x4_F32F16F16F32_TT, "m8n8k4.row.row.f32.f16.f16.f32", f32, b32, 8, 8, 4, f16, f16, f32, tt)
// clang-format on

}  // namespace moye

#undef MOYE_MMA_ARCH
