// mma.sync of sm_75 and sm_80 (PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions: mma"): D = A * B + C by a
// warp.
//   A is (M,K) row-major, B is (N,K), so "TN"; each struct's name is M x N x K, then the types of D, A, B and C.
//   Which element a lane's register holds is in ../atom/mma_traits; the registers' types are here.
// One macro per set of register counts writes the structs; the last lines of each section are the table.
#pragma once

#include "moye/arch/types.h"

namespace moye {

#if defined(__CUDACC__)
#define MOYE_MMA_DEVICE(...) asm volatile(__VA_ARGS__)
#define MOYE_MMA_HOST(...)
#else
#define MOYE_MMA_DEVICE(...)
#define MOYE_MMA_HOST(...) __VA_ARGS__
#endif

// ---- f32 accumulators: D and C 4, A 4, B 2 registers
#define MOYE_MMA_F32_442(name, instruction, kind)                                                                   \
  struct name {                                                                                                     \
    using DRegisters = float[4];                                                                                    \
    using ARegisters = uint32_t[4];                                                                                 \
    using BRegisters = uint32_t[2];                                                                                 \
    using CRegisters = float[4];                                                                                    \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(float& d0, float& d1, float& d2, float& d3, uint32_t const& a0, \
                                                    uint32_t const& a1, uint32_t const& a2, uint32_t const& a3,     \
                                                    uint32_t const& b0, uint32_t const& b1, float const& c0,        \
                                                    float const& c1, float const& c2, float const& c3 MOYE_LOC) {   \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction                                                               \
                      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};" : "=f"(d0),            \
                      "=f"(d1), "=f"(d2), "=f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(c0), \
                      "f"(c1), "f"(c2), "f"(c3));                                                                   \
      MOYE_MMA_HOST(uint32_t const a[4] = {a0, a1, a2, a3}; uint32_t const b[2] = {b0, b1};                         \
                    float cd[4] = {c0, c1, c2, c3}; emu::mma(emu::kind, cd, a, b, loc);                             \
                    d0 = cd[0], d1 = cd[1], d2 = cd[2], d3 = cd[3];)                                                \
    }                                                                                                               \
  };
// clang-format off
MOYE_MMA_F32_442(SM80_16x8x16_F32BF16BF16F32_TN, "m16n8k16.row.col.f32.bf16.bf16.f32", kMma16x8x16F32Bf16)
MOYE_MMA_F32_442(SM80_16x8x16_F32F16F16F32_TN,   "m16n8k16.row.col.f32.f16.f16.f32",   kMma16x8x16F32F16)
MOYE_MMA_F32_442(SM80_16x8x8_F32TF32TF32F32_TN,  "m16n8k8.row.col.f32.tf32.tf32.f32",  kMma16x8x8F32Tf32)
// clang-format on

// ---- f32 accumulators: D and C 4, A 2, B 1 registers
#define MOYE_MMA_F32_421(name, instruction, kind)                                                                    \
  struct name {                                                                                                      \
    using DRegisters = float[4];                                                                                     \
    using ARegisters = uint32_t[2];                                                                                  \
    using BRegisters = uint32_t[1];                                                                                  \
    using CRegisters = float[4];                                                                                     \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(float& d0, float& d1, float& d2, float& d3, uint32_t const& a0,  \
                                                    uint32_t const& a1, uint32_t const& b0, float const& c0,         \
                                                    float const& c1, float const& c2, float const& c3 MOYE_LOC) {    \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction                                                                \
                      " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};" : "=f"(d0),                            \
                      "=f"(d1), "=f"(d2), "=f"(d3) : "r"(a0), "r"(a1), "r"(b0), "f"(c0), "f"(c1), "f"(c2), "f"(c3)); \
      MOYE_MMA_HOST(uint32_t const a[2] = {a0, a1}; uint32_t const b[1] = {b0}; float cd[4] = {c0, c1, c2, c3};      \
                    emu::mma(emu::kind, cd, a, b, loc); d0 = cd[0], d1 = cd[1], d2 = cd[2], d3 = cd[3];)             \
    }                                                                                                                \
  };
// clang-format off
MOYE_MMA_F32_421(SM80_16x8x8_F32BF16BF16F32_TN, "m16n8k8.row.col.f32.bf16.bf16.f32", kMma16x8x8F32Bf16)
MOYE_MMA_F32_421(SM80_16x8x8_F32F16F16F32_TN,   "m16n8k8.row.col.f32.f16.f16.f32",   kMma16x8x8F32F16)
MOYE_MMA_F32_421(SM80_16x8x4_F32TF32TF32F32_TN, "m16n8k4.row.col.f32.tf32.tf32.f32", kMma16x8x4F32Tf32)
// clang-format on

// ---- f16 accumulators, two to a register: D and C 2, A 4, B 2 registers
struct SM80_16x8x16_F16F16F16F16_TN {
  using DRegisters = uint32_t[2];
  using ARegisters = uint32_t[4];
  using BRegisters = uint32_t[2];
  using CRegisters = uint32_t[2];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(uint32_t& d0, uint32_t& d1, uint32_t const& a0, uint32_t const& a1,
                                                  uint32_t const& a2, uint32_t const& a3, uint32_t const& b0,
                                                  uint32_t const& b1, uint32_t const& c0, uint32_t const& c1 MOYE_LOC) {
    MOYE_MMA_DEVICE(
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %9};" : "=r"(d0),
        "=r"(d1) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c0), "r"(c1));
    MOYE_MMA_HOST(uint32_t const a[4] = {a0, a1, a2, a3}; uint32_t const b[2] = {b0, b1}; uint32_t cd[2] = {c0, c1};
                  emu::mma(emu::kMma16x8x16F16F16, cd, a, b, loc); d0 = cd[0], d1 = cd[1];)
  }
};

struct SM80_16x8x8_F16F16F16F16_TN {
  using DRegisters = uint32_t[2];
  using ARegisters = uint32_t[2];
  using BRegisters = uint32_t[1];
  using CRegisters = uint32_t[2];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(uint32_t& d0, uint32_t& d1, uint32_t const& a0, uint32_t const& a1,
                                                  uint32_t const& b0, uint32_t const& c0, uint32_t const& c1 MOYE_LOC) {
    MOYE_MMA_DEVICE("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%5, %6};" : "=r"(d0),
                    "=r"(d1) : "r"(a0), "r"(a1), "r"(b0), "r"(c0), "r"(c1));
    MOYE_MMA_HOST(uint32_t const a[2] = {a0, a1}; uint32_t const b[1] = {b0}; uint32_t cd[2] = {c0, c1};
                  emu::mma(emu::kMma16x8x8F16F16, cd, a, b, loc); d0 = cd[0], d1 = cd[1];)
  }
};

// ---- f64: D and C 2, A 1, B 1 registers
struct SM80_8x8x4_F64F64F64F64_TN {
  using DRegisters = double[2];
  using ARegisters = double[1];
  using BRegisters = double[1];
  using CRegisters = double[2];

  MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(double& d0, double& d1, double const& a0, double const& b0,
                                                  double const& c0, double const& c1 MOYE_LOC) {
    MOYE_MMA_DEVICE("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%4, %5};" : "=d"(d0),
                    "=d"(d1) : "d"(a0), "d"(b0), "d"(c0), "d"(c1));
    MOYE_MMA_HOST(double const a[1] = {a0}; double const b[1] = {b0}; double cd[2] = {c0, c1};
                  emu::mma(emu::kMma8x8x4F64, cd, a, b, loc); d0 = cd[0], d1 = cd[1];)
  }
};

// ---- 8-bit integers, s32 accumulators that wrap around
#define MOYE_MMA_S32_211(name, instruction, kind)                                                      \
  struct name {                                                                                        \
    using DRegisters = uint32_t[2];                                                                    \
    using ARegisters = uint32_t[1];                                                                    \
    using BRegisters = uint32_t[1];                                                                    \
    using CRegisters = uint32_t[2];                                                                    \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(uint32_t& d0, uint32_t& d1, uint32_t const& a0,    \
                                                    uint32_t const& b0, uint32_t const& c0,            \
                                                    uint32_t const& c1 MOYE_LOC) {                     \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction " {%0, %1}, {%2}, {%3}, {%4, %5};" : "=r"(d0),   \
                      "=r"(d1) : "r"(a0), "r"(b0), "r"(c0), "r"(c1));                                  \
      MOYE_MMA_HOST(uint32_t const a[1] = {a0}; uint32_t const b[1] = {b0}; uint32_t cd[2] = {c0, c1}; \
                    emu::mma(emu::kind, cd, a, b, loc); d0 = cd[0], d1 = cd[1];)                       \
    }                                                                                                  \
  };
#define MOYE_MMA_S32_421(name, instruction, kind)                                                                    \
  struct name {                                                                                                      \
    using DRegisters = uint32_t[4];                                                                                  \
    using ARegisters = uint32_t[2];                                                                                  \
    using BRegisters = uint32_t[1];                                                                                  \
    using CRegisters = uint32_t[4];                                                                                  \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(uint32_t& d0, uint32_t& d1, uint32_t& d2, uint32_t& d3,          \
                                                    uint32_t const& a0, uint32_t const& a1, uint32_t const& b0,      \
                                                    uint32_t const& c0, uint32_t const& c1, uint32_t const& c2,      \
                                                    uint32_t const& c3 MOYE_LOC) {                                   \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction                                                                \
                      " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};" : "=r"(d0),                            \
                      "=r"(d1), "=r"(d2), "=r"(d3) : "r"(a0), "r"(a1), "r"(b0), "r"(c0), "r"(c1), "r"(c2), "r"(c3)); \
      MOYE_MMA_HOST(uint32_t const a[2] = {a0, a1}; uint32_t const b[1] = {b0}; uint32_t cd[4] = {c0, c1, c2, c3};   \
                    emu::mma(emu::kind, cd, a, b, loc); d0 = cd[0], d1 = cd[1], d2 = cd[2], d3 = cd[3];)             \
    }                                                                                                                \
  };
#define MOYE_MMA_S32_442(name, instruction, kind)                                                                   \
  struct name {                                                                                                     \
    using DRegisters = uint32_t[4];                                                                                 \
    using ARegisters = uint32_t[4];                                                                                 \
    using BRegisters = uint32_t[2];                                                                                 \
    using CRegisters = uint32_t[4];                                                                                 \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(uint32_t& d0, uint32_t& d1, uint32_t& d2, uint32_t& d3,         \
                                                    uint32_t const& a0, uint32_t const& a1, uint32_t const& a2,     \
                                                    uint32_t const& a3, uint32_t const& b0, uint32_t const& b1,     \
                                                    uint32_t const& c0, uint32_t const& c1, uint32_t const& c2,     \
                                                    uint32_t const& c3 MOYE_LOC) {                                  \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction                                                               \
                      " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};" : "=r"(d0),            \
                      "=r"(d1), "=r"(d2), "=r"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c0), \
                      "r"(c1), "r"(c2), "r"(c3));                                                                   \
      MOYE_MMA_HOST(uint32_t const a[4] = {a0, a1, a2, a3}; uint32_t const b[2] = {b0, b1};                         \
                    uint32_t cd[4] = {c0, c1, c2, c3}; emu::mma(emu::kind, cd, a, b, loc);                          \
                    d0 = cd[0], d1 = cd[1], d2 = cd[2], d3 = cd[3];)                                                \
    }                                                                                                               \
  };
// clang-format off
MOYE_MMA_S32_211(SM80_8x8x16_S32S8S8S32_TN,  "m8n8k16.row.col.s32.s8.s8.s32",  kMma8x8x16S32S8S8)
MOYE_MMA_S32_211(SM80_8x8x16_S32S8U8S32_TN,  "m8n8k16.row.col.s32.s8.u8.s32",  kMma8x8x16S32S8U8)
MOYE_MMA_S32_211(SM80_8x8x16_S32U8S8S32_TN,  "m8n8k16.row.col.s32.u8.s8.s32",  kMma8x8x16S32U8S8)
MOYE_MMA_S32_211(SM80_8x8x16_S32U8U8S32_TN,  "m8n8k16.row.col.s32.u8.u8.s32",  kMma8x8x16S32U8U8)
MOYE_MMA_S32_421(SM80_16x8x16_S32S8S8S32_TN, "m16n8k16.row.col.s32.s8.s8.s32", kMma16x8x16S32S8S8)
MOYE_MMA_S32_421(SM80_16x8x16_S32S8U8S32_TN, "m16n8k16.row.col.s32.s8.u8.s32", kMma16x8x16S32S8U8)
MOYE_MMA_S32_421(SM80_16x8x16_S32U8S8S32_TN, "m16n8k16.row.col.s32.u8.s8.s32", kMma16x8x16S32U8S8)
MOYE_MMA_S32_421(SM80_16x8x16_S32U8U8S32_TN, "m16n8k16.row.col.s32.u8.u8.s32", kMma16x8x16S32U8U8)
MOYE_MMA_S32_442(SM80_16x8x32_S32S8S8S32_TN, "m16n8k32.row.col.s32.s8.s8.s32", kMma16x8x32S32S8S8)
MOYE_MMA_S32_442(SM80_16x8x32_S32S8U8S32_TN, "m16n8k32.row.col.s32.s8.u8.s32", kMma16x8x32S32S8U8)
MOYE_MMA_S32_442(SM80_16x8x32_S32U8S8S32_TN, "m16n8k32.row.col.s32.u8.s8.s32", kMma16x8x32S32U8S8)
MOYE_MMA_S32_442(SM80_16x8x32_S32U8U8S32_TN, "m16n8k32.row.col.s32.u8.u8.s32", kMma16x8x32S32U8U8)
// clang-format on

#undef MOYE_MMA_F32_442
#undef MOYE_MMA_F32_421
#undef MOYE_MMA_S32_211
#undef MOYE_MMA_S32_421
#undef MOYE_MMA_S32_442
#undef MOYE_MMA_DEVICE
#undef MOYE_MMA_HOST

}  // namespace moye
