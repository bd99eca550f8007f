// What a launch is besides its kernel and its arguments. Plain C++, no CUDA header, as arch/status.h.
#pragma once

#include "moye/arch/dim3.h"

namespace moye {

/// Dynamic shared memory every kernel may use without asking for it.
inline constexpr int kDefaultSmemBytes = 48 * 1024;

struct LaunchConfig {
  Dim3 grid, block;
  Dim3 cluster{1, 1, 1};
  int smem_bytes;  // dynamic shared memory per CTA
  /// May start while the kernel ahead in the stream still runs, until its griddepcontrol_wait (arch/grid_dependency.h).
  /// In a graph that is a `launch_recorder`'s to say; a graph that captures the stream has whole edges. Nowhere, where
  /// the environment has JAX_MOYE_PROGRAMMATIC_LAUNCH=0.
  bool programmatic = false;
  int resident = 1;  // CTAs of a multiprocessor for which the kernel is compiled: the second of its __launch_bounds__
  /// Its loads count on L1, of which a `launch_recorder`'s runtime leaves little: it prefers shared memory.
  bool reads_through_l1 = false;
  bool compiled_in = false;  // never a kernel_library's (arch/kernel_library.h): it is launched beside such a one
};

}  // namespace moye
