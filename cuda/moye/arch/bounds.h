// What becomes of an access outside of a tensor's shape where MOYE_BOUNDS_CHECK is 1 (moye/bounds.h): a report that
// names the line, and the end of the kernel. Release builds do not include this.
#pragma once

#include "moye/arch/config.h"

namespace moye {

/// A line of the source: the caller's, as a defaulted argument.
struct SourceLine {
  char const* file = nullptr;
  int line = 0;
  static MOYE_HOST_DEVICE constexpr SourceLine here(char const* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

#if defined(__CUDACC__)

/// Prints and traps: the launch ends with cudaErrorLaunchFailure.
__host__ __device__ __noinline__ inline void out_of_bounds(char const* coord, char const* shape, SourceLine where) {
  printf("moye: coordinate %s lies outside of shape %s, %s:%d\n", coord, shape, where.file ? where.file : "operator[]",
         where.line);
#if defined(__CUDA_ARCH__)
  __trap();
#else
  __builtin_trap();
#endif
}

#else

namespace emu {
/// Ends the cluster with the report as its Status; host code that is no kernel ends with it on stderr.
[[noreturn]] void out_of_bounds(char const* coord, char const* shape, Loc loc);
}  // namespace emu

[[noreturn]] inline void out_of_bounds(char const* coord, char const* shape, SourceLine where) {
  emu::out_of_bounds(coord, shape, {where.file, where.line});
}

#endif

}  // namespace moye
