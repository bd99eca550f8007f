// Programmatic dependent launch (PTX ISA, "Parallel Synchronization and Communication: griddepcontrol"): a kernel
// launched with LaunchConfig::programmatic may start before the kernel ahead of it in the stream has ended. Without
// that attribute both are without effect. In the emulator kernels run one after the other, and a thread of such a
// launch that touches global memory before it has waited is reported.
#pragma once

#include "moye/arch/types.h"
#if !defined(__CUDACC__)
#include "moye/emu/sm90.h"
#endif

namespace moye {

/// Waits until the kernels ahead have ended and their writes are visible: before the first access to anything that
/// they read or write. A kernel launched so must wait even if it reads nothing of theirs: who waits for it relies on
/// them.
MOYE_DEVICE void griddepcontrol_wait() {
#if defined(__CUDACC__)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#else
  emu::griddepcontrol_wait();
#endif
}

/// This CTA no longer needs the GPU for itself: the kernel behind may start when all CTAs have said so or ended. Our
/// GEMMs say so in XLA's graphs: those that leave room for the kernel behind at their begin, others behind their last
/// load, or the CTAs of that one take multiprocessors as they come free (docs/performance.md, sections 8 and 40).
MOYE_DEVICE void griddepcontrol_launch_dependents() {
#if defined(__CUDACC__)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace moye
