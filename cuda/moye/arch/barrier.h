// Barriers of a CTA and of a warp (PTX ISA, "Parallel Synchronization and Communication: bar, barrier; bar.warp.sync").
// Each also orders the memory accesses of the threads that take part.
#pragma once

#include "moye/arch/types.h"

namespace moye {

/// Waits for every thread of the CTA (barrier 0).
MOYE_DEVICE void sync_threads(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  __syncthreads();
#else
  emu::bar_sync(0, emu::kWholeCta, loc);
#endif
}

/// Waits until `threads` threads have reached barrier `id` by sync or arrive. threads: a multiple of 32; id: 0 to 15.
MOYE_DEVICE void named_barrier_sync(int id, int threads MOYE_LOC) {
#if defined(__CUDACC__)
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
  emu::bar_sync(id, threads, loc);
#endif
}

/// Counts the calling warp's threads at barrier `id` and does not wait.
MOYE_DEVICE void named_barrier_arrive(int id, int threads MOYE_LOC) {
#if defined(__CUDACC__)
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#else
  emu::bar_arrive(id, threads, loc);
#endif
}

/// Waits for the lanes of the warp named in `mask`; all of them call it with the same mask.
MOYE_DEVICE void sync_warp(uint32_t mask MOYE_LOC) {
#if defined(__CUDACC__)
  __syncwarp(mask);
#else
  emu::sync_warp(mask, loc);
#endif
}

/// Waits for the whole warp.
MOYE_DEVICE void sync_warp(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  __syncwarp();
#else
  emu::sync_warp(0xffffffffu, loc);
#endif
}

}  // namespace moye
