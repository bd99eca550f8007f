// stmatrix of sm_90 (PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions: stmatrix"): 8x8 matrices of 16-bit
// elements from the registers of an accumulator to shared memory, ldmatrix backwards. Lane i passes the address of row
// i % 8 of matrix i / 8 (16 bytes, aligned) and gives of matrix j, in register j, row i / 4, elements 2 * (i % 4) and
// the next (columns of it with _T).
#pragma once

#include "moye/arch/builtin.h"

namespace moye {

struct SM90_U32x1_STSM_N {
  using SRegisters = uint32_t[1];
  using DRegisters = uint128_t[1];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint32_t const& src, uint128_t& smem_dst MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("stmatrix.sync.aligned.x1.m8n8.shared.b16 [%0], {%1};" ::"r"(smem_ptr_to_u32(&smem_dst)), "r"(src)
                 : "memory");
#else
    emu::stmatrix(&smem_dst, 1, false, &src, loc);
#endif
  }
};

struct SM90_U32x2_STSM_N {
  using SRegisters = uint32_t[2];
  using DRegisters = uint128_t[1];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint32_t const& src0, uint32_t const& src1,
                                                   uint128_t& smem_dst MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("stmatrix.sync.aligned.x2.m8n8.shared.b16 [%0], {%1, %2};" ::"r"(smem_ptr_to_u32(&smem_dst)),
                 "r"(src0), "r"(src1)
                 : "memory");
#else
    uint32_t const src[2] = {src0, src1};
    emu::stmatrix(&smem_dst, 2, false, src, loc);
#endif
  }
};

struct SM90_U32x4_STSM_N {
  using SRegisters = uint32_t[4];
  using DRegisters = uint128_t[1];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint32_t const& src0, uint32_t const& src1, uint32_t const& src2,
                                                   uint32_t const& src3, uint128_t& smem_dst MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_ptr_to_u32(&smem_dst)),
                 "r"(src0), "r"(src1), "r"(src2), "r"(src3)
                 : "memory");
#else
    uint32_t const src[4] = {src0, src1, src2, src3};
    emu::stmatrix(&smem_dst, 4, false, src, loc);
#endif
  }
};

struct SM90_U16x2_STSM_T {
  using SRegisters = uint32_t[1];
  using DRegisters = uint128_t[1];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint32_t const& src, uint128_t& smem_dst MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("stmatrix.sync.aligned.x1.trans.m8n8.shared.b16 [%0], {%1};" ::"r"(smem_ptr_to_u32(&smem_dst)),
                 "r"(src)
                 : "memory");
#else
    emu::stmatrix(&smem_dst, 1, true, &src, loc);
#endif
  }
};

struct SM90_U16x4_STSM_T {
  using SRegisters = uint32_t[2];
  using DRegisters = uint128_t[1];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint32_t const& src0, uint32_t const& src1,
                                                   uint128_t& smem_dst MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile("stmatrix.sync.aligned.x2.trans.m8n8.shared.b16 [%0], {%1, %2};" ::"r"(smem_ptr_to_u32(&smem_dst)),
                 "r"(src0), "r"(src1)
                 : "memory");
#else
    uint32_t const src[2] = {src0, src1};
    emu::stmatrix(&smem_dst, 2, true, src, loc);
#endif
  }
};

struct SM90_U16x8_STSM_T {
  using SRegisters = uint32_t[4];
  using DRegisters = uint128_t[1];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void copy(uint32_t const& src0, uint32_t const& src1, uint32_t const& src2,
                                                   uint32_t const& src3, uint128_t& smem_dst MOYE_LOC) {
#if defined(__CUDACC__)
    asm volatile(
        "stmatrix.sync.aligned.x4.trans.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_ptr_to_u32(&smem_dst)),
        "r"(src0), "r"(src1), "r"(src2), "r"(src3)
        : "memory");
#else
    uint32_t const src[4] = {src0, src1, src2, src3};
    emu::stmatrix(&smem_dst, 4, true, src, loc);
#endif
  }
};

}  // namespace moye
