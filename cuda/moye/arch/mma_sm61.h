// dp4a of sm_61 (PTX ISA, "Integer Arithmetic Instructions: dp4a"): one thread multiplies four 8-bit integers of A with
// four of B and adds the products and C, which wraps around. Without a tensor core four times the work of an imad.
//   CuTe's SM61_DP2A is not here: it names two 16-bit integers of B, and dp2a multiplies with 8-bit ones.
#pragma once

#include "moye/arch/types.h"

namespace moye {

struct SM61_DP4A {
  using DRegisters = int32_t[1];
  using ARegisters = uint32_t[1];
  using BRegisters = uint32_t[1];
  using CRegisters = int32_t[1];
  static constexpr int kMinArch = 61;

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(int32_t& d, uint32_t const& a, uint32_t const& b, int32_t const& c) {
#if defined(__CUDACC__)
    asm volatile("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#else
    uint32_t sum = static_cast<uint32_t>(c);
    for (int i = 0; i < 32; i += 8) {
      sum += static_cast<uint32_t>(static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i));
    }
    d = static_cast<int32_t>(sum);
#endif
  }
};

}  // namespace moye
