// Programmatic dependent launch (PTX ISA, "Parallel Synchronization and Communication: griddepcontrol"): a kernel
// launched with LaunchConfig::programmatic may start before the kernel ahead of it in the stream has ended. In the
// emulator, and without that attribute, both are without effect: kernels run one after the other.
#pragma once

#include "moye/arch/types.h"

namespace moye {

/// Waits until the kernels ahead have ended and their writes are visible: before the first access to anything that
/// they read or write.
MOYE_DEVICE void griddepcontrol_wait() {
#if defined(__CUDACC__)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// This CTA no longer needs the GPU for itself: the kernel behind may start when all CTAs have said so or ended.
MOYE_DEVICE void griddepcontrol_launch_dependents() {
#if defined(__CUDACC__)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace moye
