// Elementary functions of float and double: the C library's, on both machines. Errors of a few units in the last place
// at most (CUDA C++ Programming Guide, "Mathematical Functions"); no approximate instruction is used.
#pragma once

#include "moye/arch/types.h"

#if !defined(__CUDACC__)
#include <cmath>
#endif

namespace moye {

#if defined(__CUDACC__)
MOYE_DEVICE float exp(float x) { return ::expf(x); }
MOYE_DEVICE double exp(double x) { return ::exp(x); }
MOYE_DEVICE float tanh(float x) { return ::tanhf(x); }
MOYE_DEVICE double tanh(double x) { return ::tanh(x); }
MOYE_DEVICE float erf(float x) { return ::erff(x); }
MOYE_DEVICE double erf(double x) { return ::erf(x); }
#else
using std::erf;
using std::exp;
using std::tanh;
#endif

}  // namespace moye
