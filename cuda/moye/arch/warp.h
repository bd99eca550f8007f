// What lanes of a warp do together without memory: who they are, and values passed between them
// (PTX ISA, "Data Movement and Conversion: shfl.sync"). No memory ordering comes with a shuffle.
#pragma once

#include "moye/arch/builtin.h"
#if !defined(__CUDACC__)
#include "moye/emu/sm90.h"
#endif

namespace moye {

inline constexpr uint32_t kFullWarp = 0xffffffffu;

/// Index of the thread in its warp, 0 to 31.
MOYE_DEVICE uint32_t lane_id() {
#if defined(__CUDACC__)
  uint32_t lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
#else
  return emu::lane_id();
#endif
}

/// Index of the thread's warp in a CTA whose threads are numbered along x, with the same value known to be in every
/// lane.
MOYE_DEVICE uint32_t warp_id() {
#if defined(__CUDACC__)
  return __shfl_sync(kFullWarp, threadIdx.x / 32, 0);
#else
  return emu::warp_id();
#endif
}

/// Index of the thread's warpgroup in such a CTA. Addresses and descriptors that are made of it are computed once a
/// warp, in uniform registers; of threadIdx.x / 128 in each lane, and every wgmma has its descriptors carried over
/// (R2UR).
MOYE_DEVICE int warpgroup_id() { return int(warp_id()) / 4; }

/// The value of lane `src_lane`. T: 4 or 8 bytes; every lane of `mask` calls it.
template <class T>
MOYE_DEVICE T shfl_sync(uint32_t mask, T value, int src_lane MOYE_LOC) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shfl_sync moves 4 or 8 bytes");
#if defined(__CUDACC__)
  return __shfl_sync(mask, value, src_lane);
#else
  return emu::shfl(mask, value, emu::ShflKind::idx, src_lane, loc);
#endif
}

/// The value of the lane `delta` above, its own where there is none.
template <class T>
MOYE_DEVICE T shfl_down_sync(uint32_t mask, T value, int delta MOYE_LOC) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shfl_down_sync moves 4 or 8 bytes");
#if defined(__CUDACC__)
  return __shfl_down_sync(mask, value, delta);
#else
  return emu::shfl(mask, value, emu::ShflKind::down, delta, loc);
#endif
}

/// The value of the lane `delta` below, its own where there is none.
template <class T>
MOYE_DEVICE T shfl_up_sync(uint32_t mask, T value, int delta MOYE_LOC) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shfl_up_sync moves 4 or 8 bytes");
#if defined(__CUDACC__)
  return __shfl_up_sync(mask, value, delta);
#else
  return emu::shfl(mask, value, emu::ShflKind::up, delta, loc);
#endif
}

/// The value of lane `lane_id() ^ lane_mask`.
template <class T>
MOYE_DEVICE T shfl_xor_sync(uint32_t mask, T value, int lane_mask MOYE_LOC) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shfl_xor_sync moves 4 or 8 bytes");
#if defined(__CUDACC__)
  return __shfl_xor_sync(mask, value, lane_mask);
#else
  return emu::shfl(mask, value, emu::ShflKind::bfly, lane_mask, loc);
#endif
}

/// True in one lane of the warp, always the same one; all lanes call it (PTX ISA, "elect.sync", sm_90).
MOYE_DEVICE bool elect_one_sync(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
#else
  return emu::elect_sync(kFullWarp, loc);
#endif
}

}  // namespace moye
