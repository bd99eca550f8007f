// What the kernels of sm90.cc share: boxes and mbarriers in shared memory.
#pragma once

#include "moye/arch/barrier.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/tensor_map.h"
#include "moye/arch/warp.h"

namespace {

using namespace moye;

// `in` and `out` are 64 by 64 words; a box is 16 rows of 16 words, 1 KiB.
constexpr int kSize = 64, kBox = 16;
constexpr uint32_t kBoxBytes = kBox * kBox * 4;

struct Maps {
  TensorMap in, out;
};
using Kernel = void (*)(Maps, uint32_t*);

uint32_t tid() { return thread_idx().x; }

// Shared memory: four boxes, then the mbarriers.
uint32_t* box(int i = 0) { return reinterpret_cast<uint32_t*>(smem_base()) + i * kBox * kBox; }
uint64_t* bar(int i = 0) { return reinterpret_cast<uint64_t*>(smem_base() + 4 * kBoxBytes) + i; }

// Makes mbarriers 0 to count - 1, for one arrival each unless told otherwise, and lets all threads see them.
void make_mbarriers(int count, uint32_t arrivals = 1) {
  if (tid() == 0) {
    for (int i = 0; i < count; ++i) mbarrier_init(bar(i), arrivals);
    fence_mbarrier_init();
  }
  sync_threads();
}

// Writes a box in shared memory to rows and columns 0 to 15 of `out`, word by word.
void write_out(uint32_t* out, uint32_t const* from) {
  for (uint32_t i = tid(); i < kBox * kBox; i += block_dim().x)
    out[i / kBox * kSize + i % kBox] = from[i];  // @write_out
}

}  // namespace
