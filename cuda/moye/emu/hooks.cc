// What code compiled with -fsanitize=thread calls, in place of the compiler's own runtime: every plain load and store
// of a kernel goes through here. Names and signatures are those of gcc's tsan.def and clang's ThreadSanitizer pass.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "moye/emu/machine.h"

namespace {

// alignment: what the compiler relies on.
inline void plain_access(void const* address, size_t bytes, size_t alignment, bool write, void const* pc) {
  moye::emu::Thread const* const thread = moye::emu::current_thread;
  if (thread == nullptr) return;  // host code
  if (reinterpret_cast<uintptr_t>(address) - thread->stack_begin < thread->stack_bytes) return;
  moye::emu::plain_access(address, bytes, alignment, write, pc);
}

// gcc calls the unaligned hooks only where it knows of less than this.
constexpr size_t aligned(size_t bytes) { return bytes < 8 ? bytes : 8; }

}  // namespace

// `pc`: where the hook was called from, which is the access. Kernels in libraries of their own call them, too.
#define MOYE_HOOK extern "C" __attribute__((visibility("default"), used))
#define MOYE_PC __builtin_return_address(0)

#define MOYE_ACCESS_HOOKS(size)                                                                                \
  MOYE_HOOK void __tsan_read##size(void* p) { plain_access(p, size, aligned(size), false, MOYE_PC); }          \
  MOYE_HOOK void __tsan_write##size(void* p) { plain_access(p, size, aligned(size), true, MOYE_PC); }          \
  MOYE_HOOK void __tsan_volatile_read##size(void* p) { plain_access(p, size, aligned(size), false, MOYE_PC); } \
  MOYE_HOOK void __tsan_volatile_write##size(void* p) { plain_access(p, size, aligned(size), true, MOYE_PC); } \
  MOYE_HOOK void __tsan_unaligned_read##size(void* p) { plain_access(p, size, 1, false, MOYE_PC); }            \
  MOYE_HOOK void __tsan_unaligned_write##size(void* p) { plain_access(p, size, 1, true, MOYE_PC); }            \
  MOYE_HOOK void __tsan_unaligned_volatile_read##size(void* p) { plain_access(p, size, 1, false, MOYE_PC); }   \
  MOYE_HOOK void __tsan_unaligned_volatile_write##size(void* p) { plain_access(p, size, 1, true, MOYE_PC); }   \
  MOYE_HOOK void __tsan_read_write##size(void* p) { /* clang: one hook for x += 1 */                           \
    plain_access(p, size, aligned(size), false, MOYE_PC);                                                      \
    plain_access(p, size, aligned(size), true, MOYE_PC);                                                       \
  }

MOYE_ACCESS_HOOKS(1)
MOYE_ACCESS_HOOKS(2)
MOYE_ACCESS_HOOKS(4)
MOYE_ACCESS_HOOKS(8)
MOYE_ACCESS_HOOKS(16)

// Structures, and clang's name for the memory functions.
MOYE_HOOK void __tsan_read_range(void* p, size_t bytes) { plain_access(p, bytes, 1, false, MOYE_PC); }
MOYE_HOOK void __tsan_write_range(void* p, size_t bytes) { plain_access(p, bytes, 1, true, MOYE_PC); }
MOYE_HOOK void* __tsan_memcpy(void* dst, void const* src, size_t bytes) {
  if (bytes != 0) plain_access(src, bytes, 1, false, MOYE_PC), plain_access(dst, bytes, 1, true, MOYE_PC);
  return std::memcpy(dst, src, bytes);
}
MOYE_HOOK void* __tsan_memmove(void* dst, void const* src, size_t bytes) {
  if (bytes != 0) plain_access(src, bytes, 1, false, MOYE_PC), plain_access(dst, bytes, 1, true, MOYE_PC);
  return std::memmove(dst, src, bytes);
}
MOYE_HOOK void* __tsan_memset(void* dst, int value, size_t bytes) {
  if (bytes != 0) plain_access(dst, bytes, 1, true, MOYE_PC);
  return std::memset(dst, value, bytes);
}

MOYE_HOOK void __tsan_init() {}
MOYE_HOOK void __tsan_func_entry(void*) {
  moye::emu::Thread* const thread = moye::emu::current_thread;
  if (thread == nullptr) return;
  auto const frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));  // below all of the caller's
  if (frame - thread->stack_begin >= thread->stack_bytes) thread->domain->fail_on_overflow(*thread);
}
MOYE_HOOK void __tsan_func_exit() {}
MOYE_HOOK void __tsan_vptr_read(void**) {}
MOYE_HOOK void __tsan_vptr_update(void**, void*) {}

// Atomics, which the host code around a kernel may contain (function-local statics do). Executed as the strongest
// order; not seen by the race checker, because no kernel wrapper is made of them.
#define MOYE_ATOMIC_HOOKS(bits)                                                                                      \
  MOYE_HOOK uint##bits##_t __tsan_atomic##bits##_load(uint##bits##_t const volatile* p, int) {                       \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                     \
  }                                                                                                                  \
  MOYE_HOOK void __tsan_atomic##bits##_store(uint##bits##_t volatile* p, uint##bits##_t value, int) {                \
    __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                                                                    \
  }                                                                                                                  \
  MOYE_HOOK uint##bits##_t __tsan_atomic##bits##_exchange(uint##bits##_t volatile* p, uint##bits##_t value, int) {   \
    return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);                                                          \
  }                                                                                                                  \
  MOYE_HOOK uint##bits##_t __tsan_atomic##bits##_fetch_add(uint##bits##_t volatile* p, uint##bits##_t value, int) {  \
    return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);                                                           \
  }                                                                                                                  \
  MOYE_HOOK uint##bits##_t __tsan_atomic##bits##_fetch_sub(uint##bits##_t volatile* p, uint##bits##_t value, int) {  \
    return __atomic_fetch_sub(p, value, __ATOMIC_SEQ_CST);                                                           \
  }                                                                                                                  \
  MOYE_HOOK uint##bits##_t __tsan_atomic##bits##_fetch_and(uint##bits##_t volatile* p, uint##bits##_t value, int) {  \
    return __atomic_fetch_and(p, value, __ATOMIC_SEQ_CST);                                                           \
  }                                                                                                                  \
  MOYE_HOOK uint##bits##_t __tsan_atomic##bits##_fetch_or(uint##bits##_t volatile* p, uint##bits##_t value, int) {   \
    return __atomic_fetch_or(p, value, __ATOMIC_SEQ_CST);                                                            \
  }                                                                                                                  \
  MOYE_HOOK uint##bits##_t __tsan_atomic##bits##_fetch_xor(uint##bits##_t volatile* p, uint##bits##_t value, int) {  \
    return __atomic_fetch_xor(p, value, __ATOMIC_SEQ_CST);                                                           \
  }                                                                                                                  \
  MOYE_HOOK bool __tsan_atomic##bits##_compare_exchange_strong(uint##bits##_t volatile* p, uint##bits##_t* expected, \
                                                               uint##bits##_t value, int, int) {                     \
    return __atomic_compare_exchange_n(p, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
  }                                                                                                                  \
  MOYE_HOOK bool __tsan_atomic##bits##_compare_exchange_weak(uint##bits##_t volatile* p, uint##bits##_t* expected,   \
                                                             uint##bits##_t value, int, int) {                       \
    return __atomic_compare_exchange_n(p, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
  }

MOYE_ATOMIC_HOOKS(8)
MOYE_ATOMIC_HOOKS(16)
MOYE_ATOMIC_HOOKS(32)
MOYE_ATOMIC_HOOKS(64)

MOYE_HOOK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
MOYE_HOOK void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
