// mbarrier (PTX ISA, "Parallel Synchronization and Communication: mbarrier") and the fences that go with it.
//
// An mbarrier is 8 bytes of shared memory that count arrivals and bytes of TMA. A phase is complete when `count`
// threads have arrived and as many bytes have come as were expected; the next one begins at once. A wait names the
// parity of the phase it waits for: 0, 1, 0, ... A producer that waits for parity 1 first finds the phase "before the
// first" complete.
#pragma once

#include "moye/arch/builtin.h"
#if !defined(__CUDACC__)
#include "moye/emu/sm90.h"
#endif

namespace moye {

namespace detail {

/// How long try_wait may suspend a warp before it looks again, in nanoseconds: as long as anything here can take.
inline constexpr uint32_t kSuspendNanoseconds = 10'000'000;

}  // namespace detail

/// Makes an mbarrier of `bar`, by one thread, before fence_mbarrier_init and a barrier of all who use it.
/// count: arrivals that complete a phase.
MOYE_DEVICE void mbarrier_init(uint64_t* bar, uint32_t count MOYE_LOC) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_ptr_to_u32(bar)), "r"(count) : "memory");
#else
  emu::mbarrier_init(bar, count, loc);
#endif
}

/// Makes plain memory of an mbarrier that nobody waits for.
MOYE_DEVICE void mbarrier_inval(uint64_t* bar MOYE_LOC) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(smem_ptr_to_u32(bar)) : "memory");
#else
  emu::mbarrier_inval(bar, loc);
#endif
}

/// One arrival. What the thread did before is ordered before whoever waits for the phase.
MOYE_DEVICE void mbarrier_arrive(uint64_t* bar MOYE_LOC) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_ptr_to_u32(bar)) : "memory");
#else
  emu::mbarrier_arrive(bar, loc);
#endif
}

/// One arrival, and `bytes` more for the phase to wait for: all that TMA brings to this CTA under this mbarrier,
/// counted in whole boxes, also where they lie outside the tensor, and also what other CTAs multicast.
MOYE_DEVICE void mbarrier_arrive_expect_tx(uint64_t* bar, uint32_t bytes MOYE_LOC) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_ptr_to_u32(bar)), "r"(bytes)
               : "memory");
#else
  emu::mbarrier_expect_tx(bar, bytes, true, loc);
#endif
}

/// `bytes` more for the phase to wait for, without an arrival.
MOYE_DEVICE void mbarrier_expect_tx(uint64_t* bar, uint32_t bytes MOYE_LOC) {
#if defined(__CUDACC__)
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(smem_ptr_to_u32(bar)), "r"(bytes)
               : "memory");
#else
  emu::mbarrier_expect_tx(bar, bytes, false, loc);
#endif
}

/// One arrival at the mbarrier in the same place of CTA `cta` of the cluster, if `pred`. That CTA must not have exited.
MOYE_DEVICE void mbarrier_arrive_cluster(uint64_t* bar, uint32_t cta, bool pred = true MOYE_LOC) {
#if defined(__CUDACC__)
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      ".reg .b32 remote;\n"
      "setp.ne.u32 p, %2, 0;\n"
      "selp.u32 remote, %1, 0, p;\n"  // predicated itself, mapa would keep a register through the caller's loop
      "mapa.shared::cluster.u32 remote, %0, remote;\n"
      "@p mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(smem_ptr_to_u32(bar)),
      "r"(cta), "r"(static_cast<uint32_t>(pred))
      : "memory");
#else
  if (pred) emu::mbarrier_arrive_cluster(bar, cta, loc);
#endif
}

/// Whether the phase of this parity is complete. Suspends the thread for a while before it says no.
MOYE_DEVICE bool mbarrier_try_wait(uint64_t* bar, uint32_t parity MOYE_LOC) {
#if defined(__CUDACC__)
  uint32_t complete;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(complete)
      : "r"(smem_ptr_to_u32(bar)), "r"(parity)
      : "memory");
  return complete != 0;
#else
  return emu::mbarrier_try_wait(bar, parity, loc);
#endif
}

/// Waits until the phase of this parity is complete. What was done before its arrivals, and what TMA brought, is
/// visible to the thread afterwards. With MOYE_MBARRIER_WATCHDOG defined, to a number of polls, a wait that never ends
/// becomes a trap.
MOYE_DEVICE void mbarrier_wait(uint64_t* bar, uint32_t parity MOYE_LOC) {
#if defined(__CUDACC__) && defined(MOYE_MBARRIER_WATCHDOG)
  for (long long polls = 0; !mbarrier_try_wait(bar, parity); ++polls) {
    if (polls == (MOYE_MBARRIER_WATCHDOG)) asm volatile("trap;");
  }
#elif defined(__CUDACC__)
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1, %2;\n"
      "@p bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}" ::"r"(smem_ptr_to_u32(bar)),
      "r"(parity), "n"(detail::kSuspendNanoseconds)
      : "memory");
#else
  emu::mbarrier_wait(bar, parity, loc);
#endif
}

/// After this thread's mbarrier_init and before the barrier that lets others use them: makes them known to the async
/// proxy and, with cluster_arrive_relaxed, to the cluster (PTX ISA, "membar/fence").
MOYE_DEVICE void fence_mbarrier_init(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  emu::fence_mbarrier_init(loc);
#endif
}

/// Between plain stores to shared memory (st.shared, stmatrix, cp.async after its wait) and their being read by TMA or
/// wgmma: each writing thread executes it, then all meet in a barrier (PTX ISA, "membar/fence": fence.proxy.async).
MOYE_DEVICE void fence_proxy_async_shared_cta(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  emu::fence_proxy_async(loc);
#endif
}

/// The same for all memory, global memory among it.
MOYE_DEVICE void fence_proxy_async(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  asm volatile("fence.proxy.async;" ::: "memory");
#else
  emu::fence_proxy_async(loc);
#endif
}

}  // namespace moye
