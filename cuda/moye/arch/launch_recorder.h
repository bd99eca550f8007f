// What takes this thread's launches in the place of their stream: whoever makes nodes of a graph of them. Plain C++, no
// CUDA header, as arch/status.h. In the emulator there is none.
#pragma once

#if defined(__CUDACC_RTC__)  // as in arch/launch.h

namespace moye {
int early_operands();
}

#else

#include <cstddef>
#include <cstdlib>
#include <span>
#include <string_view>

#include "moye/arch/launch_config.h"
#include "moye/arch/status.h"

namespace moye {

/// One argument of a kernel: a value, which is copied before record() returns.
struct KernelArgument {
  void const* value;
  size_t bytes;
};

class LaunchRecorder {
 public:
  LaunchRecorder(LaunchRecorder const&) = delete;
  LaunchRecorder& operator=(LaunchRecorder const&) = delete;

  /// Takes a launch of launch_kernel(), whose `kernel` it is: of `kernel_library` (arch/kernel_library.h) where there
  /// is one and the launch is not `compiled_in`.
  virtual Status record(void const* kernel, LaunchConfig const& config, std::span<KernelArgument const> arguments) = 0;

  /// Bits (gemm/config.h, kEarly...): operands of the call that no node of the graph writes, and kEarlyNext.
  int early_operands = 0;

 protected:
  LaunchRecorder() = default;
  ~LaunchRecorder() = default;
};

/// Null: kernels go to their stream.
inline thread_local LaunchRecorder* launch_recorder = nullptr;

/// Whether launches may be programmatic at all.
inline bool programmatic_launch_allowed() {
  static bool const allowed = [] {
    char const* const value = std::getenv("JAX_MOYE_PROGRAMMATIC_LAUNCH");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return allowed;
}

/// Of the call that this thread records; none where its kernels may not begin early, and on a stream, where the kernel
/// ahead may be another program's.
inline int early_operands() {
  return launch_recorder != nullptr && programmatic_launch_allowed() ? launch_recorder->early_operands : 0;
}

}  // namespace moye

#endif
