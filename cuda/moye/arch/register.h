// Moving registers between warpgroups (PTX ISA, "Miscellaneous Instructions: setmaxnreg"). All four warps of a
// warpgroup execute the same one; the kernel has __launch_bounds__, so that it starts with a known number.
#pragma once

#include "moye/arch/types.h"
#if !defined(__CUDACC__)
#include "moye/emu/sm90.h"
#endif

namespace moye {

/// Raises the warpgroup's registers to N per thread; waits until others have given up enough.
template <int N>
MOYE_DEVICE void warpgroup_reg_alloc(MOYE_LOC_ONLY) {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0, "setmaxnreg takes a multiple of 8 from 24 to 256");
#if defined(__CUDACC__)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#else
  emu::setmaxnreg(N, true, loc);
#endif
}

/// Lowers the warpgroup's registers to N per thread.
template <int N>
MOYE_DEVICE void warpgroup_reg_dealloc(MOYE_LOC_ONLY) {
  static_assert(N >= 24 && N <= 256 && N % 8 == 0, "setmaxnreg takes a multiple of 8 from 24 to 256");
#if defined(__CUDACC__)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#else
  emu::setmaxnreg(N, false, loc);
#endif
}

}  // namespace moye
