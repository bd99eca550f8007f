#include "moye/emu/fiber.h"

#include <cstdint>
#include <cstring>

#if defined(MOYE_EMU_UCONTEXT)

namespace moye::emu {
namespace {

// makecontext passes ints only: two halves per pointer.
void ucontext_entry(unsigned entry_high, unsigned entry_low, unsigned argument_high, unsigned argument_low) {
  auto join = [](unsigned high, unsigned low) { return (static_cast<uint64_t>(high) << 32) | low; };
  auto* const entry = reinterpret_cast<void (*)(void*)>(static_cast<uintptr_t>(join(entry_high, entry_low)));
  entry(reinterpret_cast<void*>(static_cast<uintptr_t>(join(argument_high, argument_low))));
}

}  // namespace

void Fiber::prepare(void* stack, size_t bytes, void (*entry)(void*), void* argument) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  uint64_t const e = reinterpret_cast<uintptr_t>(entry), a = reinterpret_cast<uintptr_t>(argument);
  makecontext(&context_, reinterpret_cast<void (*)()>(ucontext_entry), 4, static_cast<unsigned>(e >> 32),
              static_cast<unsigned>(e), static_cast<unsigned>(a >> 32), static_cast<unsigned>(a));
}

void Fiber::switch_to(Fiber& from, Fiber& to) { swapcontext(&from.context_, &to.context_); }

}  // namespace moye::emu

#else

// moye_emu_switch(void** save, void* load): pushes the callee-saved registers, stores the stack pointer in *save, takes
// `load` for it and pops the registers found there. moye_emu_boot: where a new fiber starts, its function and argument
// in two of the popped registers.
extern "C" {
__attribute__((visibility("hidden"))) void moye_emu_switch(void** save, void* load);
__attribute__((visibility("hidden"))) void moye_emu_boot();
}

#if defined(__x86_64__)
asm(R"(
.pushsection .text
.globl moye_emu_switch
.hidden moye_emu_switch
.type moye_emu_switch, @function
.p2align 4
moye_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size moye_emu_switch, . - moye_emu_switch
.globl moye_emu_boot
.hidden moye_emu_boot
.type moye_emu_boot, @function
moye_emu_boot:
  movq %r12, %rdi
  xorl %ebp, %ebp
  jmp *%r13
.size moye_emu_boot, . - moye_emu_boot
.popsection
)");
#else
asm(R"(
.pushsection .text
.globl moye_emu_switch
.hidden moye_emu_switch
.type moye_emu_switch, %function
.p2align 4
moye_emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size moye_emu_switch, . - moye_emu_switch
.globl moye_emu_boot
.hidden moye_emu_boot
.type moye_emu_boot, %function
moye_emu_boot:
  mov x0, x19
  mov x29, xzr
  mov x30, xzr
  br x20
.size moye_emu_boot, . - moye_emu_boot
.popsection
)");
#endif

namespace moye::emu {

void Fiber::prepare(void* stack, size_t bytes, void (*entry)(void*), void* argument) {
  auto const top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15};
  auto* frame = reinterpret_cast<void**>(top);
#if defined(__x86_64__)
  *--frame = nullptr;  // entry's return address: 8 below a multiple of 16, as after a call
  *--frame = reinterpret_cast<void*>(&moye_emu_boot);  // popped by ret
  *--frame = nullptr;                                  // rbp
  *--frame = nullptr;                                  // rbx
  *--frame = argument;                                 // r12
  *--frame = reinterpret_cast<void*>(entry);           // r13
  *--frame = nullptr;                                  // r14
  *--frame = nullptr;                                  // r15
#else
  frame -= 20;  // 160 bytes
  std::memset(frame, 0, 160);
  frame[0] = argument;                                  // x19
  frame[1] = reinterpret_cast<void*>(entry);            // x20
  frame[11] = reinterpret_cast<void*>(&moye_emu_boot);  // x30
#endif
  stack_pointer_ = frame;
}

void Fiber::switch_to(Fiber& from, Fiber& to) { moye_emu_switch(&from.stack_pointer_, to.stack_pointer_); }

}  // namespace moye::emu

#endif
