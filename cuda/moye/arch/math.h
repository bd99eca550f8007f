// Elementary functions of float and double: the C library's, on both machines. Errors of a few units in the last place
// at most (CUDA C++ Programming Guide, "Mathematical Functions").
#pragma once

#include "moye/arch/types.h"

#if !defined(__CUDACC__)
#include <cmath>
#endif

namespace moye {

#if defined(__CUDACC__)
MOYE_DEVICE float exp(float x) { return ::expf(x); }
MOYE_DEVICE double exp(double x) { return ::exp(x); }
/// 1 / x of an x of at least 1: within one unit in the last place, 0 beyond 2^126. PTX ISA, Floating-Point
/// Instructions: rcp.approx.ftz.f32. A division would be ten instructions and a branch.
MOYE_DEVICE float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
MOYE_DEVICE double reciprocal(double x) { return 1 / x; }
/// 2^x, within two units in the last place; denormal results are 0. PTX ISA, Floating-Point Instructions:
/// ex2.approx.ftz.f32.
MOYE_DEVICE float fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
/// The larger one; of NaN and a number the number. PTX ISA, Floating-Point Instructions: max.f32. A comparison and a
/// selection are two instructions.
MOYE_DEVICE float larger(float x, float y) { return ::fmaxf(x, y); }
MOYE_DEVICE float log(float x) { return ::logf(x); }
/// x * y + z, rounded once: nvcc makes one of a sum and a product, too, but the emulator's compiler does not.
MOYE_DEVICE float multiply_add(float x, float y, float z) { return ::fmaf(x, y, z); }
MOYE_DEVICE float erf(float x) { return ::erff(x); }
MOYE_DEVICE double erf(double x) { return ::erf(x); }
#else
using std::erf;
using std::exp;
using std::log;
inline float reciprocal(float x) { return 1 / x; }
inline double reciprocal(double x) { return 1 / x; }
inline float fast_exp2(float x) { return std::exp2(x); }
inline float multiply_add(float x, float y, float z) { return std::fma(x, y, z); }
inline float larger(float x, float y) { return std::fmax(x, y); }
#endif

}  // namespace moye
