// The one switch between the two machines a kernel can be compiled for.
//   nvcc            __CUDACC__ is defined: wrappers hold PTX.
//   a host C++ compiler   wrappers call the emulator in moye/emu.
// Nothing outside moye/arch and moye/emu looks at __CUDACC__.
#pragma once

#if defined(__CUDACC__)

#define MOYE_DEVICE __device__ __forceinline__
#define MOYE_HOST_DEVICE __host__ __device__ __forceinline__
#define MOYE_KERNEL(kThreads) __global__ void __launch_bounds__(kThreads, 1)
#define MOYE_KERNEL_SHARED(kThreads, kCtas) __global__ void __launch_bounds__(kThreads, kCtas)  // of a multiprocessor
#define MOYE_GRID_CONSTANT __grid_constant__
#define MOYE_UNROLL _Pragma("unroll")
#define MOYE_NO_UNROLL _Pragma("unroll 1")
// A variable of which the compiler knows nothing from here on: what follows from it is computed behind this place, not
// before the loops around it, and what it is was computed before. constraint: "+r" of an int, "+f" of a float.
#define MOYE_COMPUTED_HERE(constraint, variable) asm volatile("" : constraint(variable))
#define MOYE_ONCE_A_CALL
// Source locations exist only in the emulator: see the other branch.
#define MOYE_LOC
#define MOYE_LOC_ONLY
#define MOYE_SITE

#else

#include "moye/emu/emu.h"

#define MOYE_DEVICE inline
#define MOYE_HOST_DEVICE inline
#define MOYE_KERNEL(kThreads) void
#define MOYE_KERNEL_SHARED(kThreads, kCtas) void
#define MOYE_GRID_CONSTANT
#define MOYE_UNROLL
#define MOYE_NO_UNROLL
#define MOYE_COMPUTED_HERE(constraint, variable)
// A function of the host that runs once a call: made small, it is compiled in half the time.
#define MOYE_ONCE_A_CALL [[gnu::cold]]
// A defaulted last parameter that holds the caller's file and line: MOYE_LOC after other parameters, MOYE_LOC_ONLY
// alone.
#define MOYE_LOC , ::moye::emu::Loc loc = ::moye::emu::Loc::here()
#define MOYE_LOC_ONLY ::moye::emu::Loc loc = ::moye::emu::Loc::here()
// First statement of an algorithm (copy, gemm, clear, ...) that took MOYE_LOC: until it returns, every access and every
// instruction of this thread is reported at the line in the kernel that called the algorithm, the outermost one.
#define MOYE_SITE ::moye::emu::Site moye_site_(loc)

#endif
