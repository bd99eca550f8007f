// A fiber: a stack and the registers that survive a call. The one place that knows how to switch.
//   x86-64, aarch64   a few instructions of our own: 2 ns
//   elsewhere, or with MOYE_EMU_UCONTEXT defined: ucontext, which makes a system call per switch: 200 ns
#pragma once

#include <cstddef>

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(MOYE_EMU_UCONTEXT)
#define MOYE_EMU_UCONTEXT
#endif

#if defined(MOYE_EMU_UCONTEXT)
#include <ucontext.h>
#endif

namespace moye::emu {

class Fiber {
 public:
  /// The first switch to this fiber calls entry(argument), which must never return, on the given stack.
  void prepare(void* stack, size_t bytes, void (*entry)(void*), void* argument);

  /// Saves the running fiber in `from` and goes on where `to` was saved.
  static void switch_to(Fiber& from, Fiber& to);

 private:
#if defined(MOYE_EMU_UCONTEXT)
  ucontext_t context_;
#else
  void* stack_pointer_ = nullptr;  // the other registers lie on the stack
#endif
};

}  // namespace moye::emu
