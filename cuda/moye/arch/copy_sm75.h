// ldmatrix (PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions: ldmatrix"): 8x8 matrices of 16-bit elements
// from shared memory to the registers mma.sync takes. Lane i passes the address of row i % 8 of matrix i / 8 (16 bytes,
// aligned); lane i receives of matrix j, in register j, row i / 4, elements 2 * (i % 4) and the next (columns of it
// with _T).
#pragma once

#include "moye/arch/builtin.h"

namespace moye {

struct SM75_U32x1_LDSM_N {
  using SRegisters = uint128_t[1];
  using DRegisters = uint32_t[1];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint128_t const& smem_src, uint32_t& dst MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.x1.m8n8.shared.b16 {%0}, [%1];"
                 : "=r"(dst)
                 : "r"(smem_ptr_to_u32(&smem_src))
                 : "memory");
#else
    emu::ldmatrix(&smem_src, 1, false, &dst, loc);
#endif
  }
};

struct SM75_U32x2_LDSM_N {
  using SRegisters = uint128_t[1];
  using DRegisters = uint32_t[2];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint128_t const& smem_src, uint32_t& dst0, uint32_t& dst1 MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.x2.m8n8.shared.b16 {%0, %1}, [%2];"
                 : "=r"(dst0), "=r"(dst1)
                 : "r"(smem_ptr_to_u32(&smem_src))
                 : "memory");
#else
    uint32_t dst[2];
    emu::ldmatrix(&smem_src, 2, false, dst, loc);
    dst0 = dst[0], dst1 = dst[1];
#endif
  }
};

struct SM75_U32x4_LDSM_N {
  using SRegisters = uint128_t[1];
  using DRegisters = uint32_t[4];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint128_t const& smem_src, uint32_t& dst0, uint32_t& dst1,
                                                   uint32_t& dst2, uint32_t& dst3 MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(dst0), "=r"(dst1), "=r"(dst2), "=r"(dst3)
                 : "r"(smem_ptr_to_u32(&smem_src))
                 : "memory");
#else
    uint32_t dst[4];
    emu::ldmatrix(&smem_src, 4, false, dst, loc);
    dst0 = dst[0], dst1 = dst[1], dst2 = dst[2], dst3 = dst[3];
#endif
  }
};

struct SM75_U16x2_LDSM_T {
  using SRegisters = uint128_t[1];
  using DRegisters = uint32_t[1];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint128_t const& smem_src, uint32_t& dst MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.x1.trans.m8n8.shared.b16 {%0}, [%1];"
                 : "=r"(dst)
                 : "r"(smem_ptr_to_u32(&smem_src))
                 : "memory");
#else
    emu::ldmatrix(&smem_src, 1, true, &dst, loc);
#endif
  }
};

struct SM75_U16x4_LDSM_T {
  using SRegisters = uint128_t[1];
  using DRegisters = uint32_t[2];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint128_t const& smem_src, uint32_t& dst0, uint32_t& dst1 MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.x2.trans.m8n8.shared.b16 {%0, %1}, [%2];"
                 : "=r"(dst0), "=r"(dst1)
                 : "r"(smem_ptr_to_u32(&smem_src))
                 : "memory");
#else
    uint32_t dst[2];
    emu::ldmatrix(&smem_src, 2, true, dst, loc);
    dst0 = dst[0], dst1 = dst[1];
#endif
  }
};

struct SM75_U16x8_LDSM_T {
  using SRegisters = uint128_t[1];
  using DRegisters = uint32_t[4];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint128_t const& smem_src, uint32_t& dst0, uint32_t& dst1,
                                                   uint32_t& dst2, uint32_t& dst3 MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(dst0), "=r"(dst1), "=r"(dst2), "=r"(dst3)
                 : "r"(smem_ptr_to_u32(&smem_src))
                 : "memory");
#else
    uint32_t dst[4];
    emu::ldmatrix(&smem_src, 4, true, dst, loc);
    dst0 = dst[0], dst1 = dst[1], dst2 = dst[2], dst3 = dst[3];
#endif
  }
};

}  // namespace moye
