// Of reports.cc: kernels whose threads wait for each other forever, do not meet in a warp, or never end.
#pragma once

#include "moye/arch/barrier.h"
#include "moye/arch/mma_sm80.h"
#include "moye/arch/warp.h"
#include "reports.h"

namespace {

// ------------------------------------------------------------------------------------------------- barriers and warps

MOYE_KERNEL(64)
deadlock(uint32_t const*, uint32_t*) {
  if (tid() < 32) {
    sync_threads();  // @deadlock
  }
}

MOYE_KERNEL(96)
deadlock_of_two(uint32_t const*, uint32_t*) {
  if (tid() < 32) {
    named_barrier_sync(3, 64);  // @deadlock first
  } else if (tid() < 64) {
    named_barrier_sync(4, 64);  // @deadlock second
  } else if (tid() == 95) {
    sync_warp();  // @deadlock third
  }
}

MOYE_KERNEL(128)
count_mismatch(uint32_t const*, uint32_t*) {
  if (tid() < 32) {
    named_barrier_sync(1, 64);  // @count_mismatch first
  } else {
    named_barrier_sync(1, 96);  // @count_mismatch second
  }
}

MOYE_KERNEL(64)
bad_count(uint32_t const*, uint32_t*) { named_barrier_sync(1, 40); }  // @bad_count

MOYE_KERNEL(64)
bad_id(uint32_t const*, uint32_t*) { named_barrier_sync(16, 64); }  // @bad_id

MOYE_KERNEL(64)
arrives_twice(uint32_t const*, uint32_t*) {
  if (tid() < 32) {
    named_barrier_arrive(1, 64);  // @arrives_twice first
    named_barrier_arrive(1, 64);  // @arrives_twice second
  }
}

// The same, but each arrival belongs to a phase of its own, though the lanes of the first warp run one after the other.
MOYE_KERNEL(64)
arrives_twice_ok(uint32_t const*, uint32_t*) {
  if (tid() < 32) {
    named_barrier_arrive(1, 64);
    named_barrier_sync(2, 64);
    named_barrier_arrive(1, 64);
  } else {
    named_barrier_sync(1, 64);
    named_barrier_arrive(2, 64);
    named_barrier_sync(1, 64);
  }
}

MOYE_KERNEL(64)
divergent_barrier(uint32_t const*, uint32_t*) {
  if (tid() % 2 == 0) {
    sync_threads();  // @divergent_barrier even
  } else {
    sync_threads();  // @divergent_barrier odd
  }
}

MOYE_KERNEL(32)
divergent_collective(uint32_t const*, uint32_t* out) {
  uint32_t r = 0;
  if (tid() < 16) {
    SM75_U32x1_LDSM_N::copy(*reinterpret_cast<uint128_t const*>(smem_base()), r);  // @divergent_collective ldmatrix
  } else {
    r = shfl_sync(kFullWarp, tid(), 0);  // @divergent_collective shfl
  }
  out[tid()] = r;
}

MOYE_KERNEL(32)
shfl_from_outside(uint32_t const*, uint32_t* out) {
  if (tid() < 16) out[tid()] = shfl_sync(0x0000ffffu, tid(), 20);  // @shfl_from_outside
}

MOYE_KERNEL(32)
mask_without_self(uint32_t const*, uint32_t*) {
  if (tid() == 20) sync_warp(0x0000ffffu);  // @mask_without_self
}

MOYE_KERNEL(48)
half_a_warp(uint32_t const*, uint32_t* out) {
  uint32_t d0, d1;
  SM80_8x8x16_S32S8S8S32_TN::fma(d0, d1, tid(), tid(), tid(), tid());  // @half_a_warp
  out[tid()] = d0 + d1;
}

// --------------------------------------------------------------------------------------------------------------
// endless

MOYE_KERNEL(64)
spin(uint32_t const*, uint32_t* out) {
  uint32_t volatile* const flag = out;
  if (tid() == 0) {
    while (*flag != 1) {  // @spin
    }
  }
  sync_threads();
}

MOYE_KERNEL(64)
endless_barriers(uint32_t const*, uint32_t*) {
  for (;;) sync_threads();  // @endless_barriers
}

}  // namespace
