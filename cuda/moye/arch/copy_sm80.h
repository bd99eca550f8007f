// cp.async (PTX ISA, "Asynchronous copy: cp.async"): global to shared memory without registers, in groups.
// A copy is complete, and visible to the thread that issued it, only after that thread has waited for its group;
// other threads need a barrier after that wait.
#pragma once

#include "moye/arch/builtin.h"

namespace moye {

/// Caches at all levels. TS and TD: 4, 8 or 16 bytes; both addresses aligned to that size.
template <class TS, class TD = TS>
struct SM80_CP_ASYNC_CACHEALWAYS {
  using SRegisters = TS[1];
  using DRegisters = TD[1];
  static_assert(sizeof(TS) == sizeof(TD), "cp.async copies as many bytes as it reads");
  static_assert(sizeof(TS) == 4 || sizeof(TS) == 8 || sizeof(TS) == 16, "cp.async.ca copies 4, 8 or 16 bytes");

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(TS const& gmem_src, TD& smem_dst MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(smem_ptr_to_u32(&smem_dst)), "l"(&gmem_src),
                 "n"(sizeof(TS))
                 : "memory");
#else
    emu::cp_async(&smem_dst, &gmem_src, sizeof(TS), sizeof(TS), loc);
#endif
  }

  /// Copies the first src_bytes and writes zeros behind them; with src_bytes == 0 the source is not read.
  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy_zfill(TS const& gmem_src, TD& smem_dst, int src_bytes MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(smem_ptr_to_u32(&smem_dst)), "l"(&gmem_src),
                 "n"(sizeof(TS)), "r"(src_bytes)
                 : "memory");
#else
    emu::cp_async(&smem_dst, &gmem_src, sizeof(TS), src_bytes, loc);
#endif
  }
};

/// Caches in L2 only: 16 bytes, for data that one CTA reads once.
template <class TS, class TD = TS>
struct SM80_CP_ASYNC_CACHEGLOBAL {
  using SRegisters = TS[1];
  using DRegisters = TD[1];
  static_assert(sizeof(TS) == sizeof(TD), "cp.async copies as many bytes as it reads");
  static_assert(sizeof(TS) == 16, "cp.async.cg copies 16 bytes");

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(TS const& gmem_src, TD& smem_dst MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" ::"r"(smem_ptr_to_u32(&smem_dst)), "l"(&gmem_src),
                 "n"(sizeof(TS))
                 : "memory");
#else
    emu::cp_async(&smem_dst, &gmem_src, sizeof(TS), sizeof(TS), loc);
#endif
  }

  /// Copies the first src_bytes and writes zeros behind them; with src_bytes == 0 the source is not read.
  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy_zfill(TS const& gmem_src, TD& smem_dst, int src_bytes MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2, %3;" ::"r"(smem_ptr_to_u32(&smem_dst)), "l"(&gmem_src),
                 "n"(sizeof(TS)), "r"(src_bytes)
                 : "memory");
#else
    emu::cp_async(&smem_dst, &gmem_src, sizeof(TS), src_bytes, loc);
#endif
  }
};

/// Makes one group of this thread's copies since the last commit; the group may be empty.
MOYE_DEVICE void cp_async_commit_group(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emu::cp_async_commit_group(loc);
#endif
}

/// Waits until at most the N newest groups of this thread are in flight.
template <int N>
MOYE_DEVICE void cp_async_wait_group(MOYE_LOC_ONLY) {
  static_assert(N >= 0, "a number of groups");
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#else
  emu::cp_async_wait_group(N, loc);
#endif
}

/// Waits for all copies of this thread, committed or not.
MOYE_DEVICE void cp_async_wait_all(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_all;" ::: "memory");
#else
  emu::cp_async_wait_all(loc);
#endif
}

}  // namespace moye
