// mma.sync of sm_90 with doubles (PTX ISA, "Matrix Fragments for mma.m16n8k4 with .f64 floating point type" and its
// neighbours): D = A * B + C by a warp, A (M,K) row-major, B (N,K), so "TN". Twice to eight times the work of
// SM80_8x8x4_F64F64F64F64_TN in one instruction.
#pragma once

#include "moye/arch/mma_macros.h"

#define MOYE_MMA_ARCH 90

namespace moye {

// clang-format off
MOYE_MMA_421(SM90_16x8x4_F64F64F64F64_TN,  "m16n8k4.row.col.f64.f64.f64.f64",  f64, f64, 16, 8, 4, f64, f64, f64)
MOYE_MMA_442(SM90_16x8x8_F64F64F64F64_TN,  "m16n8k8.row.col.f64.f64.f64.f64",  f64, f64, 16, 8, 8, f64, f64, f64)
MOYE_MMA_484(SM90_16x8x16_F64F64F64F64_TN, "m16n8k16.row.col.f64.f64.f64.f64", f64, f64, 16, 8, 16, f64, f64, f64)
// clang-format on

}  // namespace moye

#undef MOYE_MMA_ARCH
