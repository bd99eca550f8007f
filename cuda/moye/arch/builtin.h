// Where a thread is (PTX ISA, "Special Registers") and the CTA's dynamic shared memory.
#pragma once

#include "moye/arch/dim3.h"
#include "moye/arch/types.h"

namespace moye {

/// Index of the thread in its CTA.
MOYE_DEVICE Dim3 thread_idx() {
#if defined(__CUDACC__)
  return {threadIdx.x, threadIdx.y, threadIdx.z};
#else
  return emu::thread_idx();
#endif
}

/// Index of the CTA in the grid.
MOYE_DEVICE Dim3 block_idx() {
#if defined(__CUDACC__)
  return {blockIdx.x, blockIdx.y, blockIdx.z};
#else
  return emu::block_idx();
#endif
}

/// Threads of a CTA.
MOYE_DEVICE Dim3 block_dim() {
#if defined(__CUDACC__)
  return {blockDim.x, blockDim.y, blockDim.z};
#else
  return emu::block_dim();
#endif
}

/// CTAs of the grid.
MOYE_DEVICE Dim3 grid_dim() {
#if defined(__CUDACC__)
  return {gridDim.x, gridDim.y, gridDim.z};
#else
  return emu::grid_dim();
#endif
}

/// Start of the CTA's dynamic shared memory, aligned to 1024 bytes (a 128-byte swizzle repeats every 1024).
MOYE_DEVICE unsigned char* smem_base() {
#if defined(__CUDACC__)
  extern __shared__ __align__(1024) unsigned char moye_smem[];
  return moye_smem;
#else
  return emu::smem_base();
#endif
}

/// A pointer into shared memory as the 32-bit address that instructions take.
MOYE_DEVICE uint32_t smem_ptr_to_u32(void const* smem_ptr MOYE_LOC) {
#if defined(__CUDACC__)
  return static_cast<uint32_t>(__cvta_generic_to_shared(smem_ptr));
#else
  return emu::smem_ptr_to_u32(smem_ptr, loc);
#endif
}

}  // namespace moye
