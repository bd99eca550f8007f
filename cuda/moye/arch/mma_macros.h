// What the tables of mma_sm*.h are written with: one macro per set of register counts writes the structs of all
// mma.sync instructions that have them, a line of a table each:
//   MOYE_MMA_<registers of D and C><of A><of B>(name, "PTX without mma.sync.aligned.", registers of D and C, of A and
//                                               B, m, n, k, A, B, D and C[, option])
//   registers are f32, f64, or b32 for all that is packed; what follows them is the emulator's MmaKind.
// MOYE_MMA_ARCH, which a table defines first, is the first architecture (89 for sm_89) that has its instructions.
//
// On too old an architecture a kernel does not compile: MmaAtom::call stops with a sentence that names kMinArch, and
// where fma() is called without it ptxas does ("Feature ... requires .target sm_89 or higher"). Headers may be
// included, and structs named, for any architecture. The emulator has the instructions of all.
#pragma once

#include "moye/arch/types.h"

#if defined(__CUDACC__)
#define MOYE_MMA_DEVICE(...) asm volatile(__VA_ARGS__)
#define MOYE_MMA_HOST(...)
#else
#define MOYE_MMA_DEVICE(...)
#define MOYE_MMA_HOST(...) __VA_ARGS__
#endif

#define MOYE_MMA_TYPE_b32 uint32_t
#define MOYE_MMA_TYPE_f32 float
#define MOYE_MMA_TYPE_f64 double
#define MOYE_MMA_CONSTRAINT_b32 "r"
#define MOYE_MMA_CONSTRAINT_f32 "f"
#define MOYE_MMA_CONSTRAINT_f64 "d"

// D and C 2, A 1, B 1 registers
#define MOYE_MMA_211(name, instruction, cd, ab, ...)                                                                 \
  struct name {                                                                                                      \
    using DRegister = MOYE_MMA_TYPE_##cd;                                                                            \
    using ARegister = MOYE_MMA_TYPE_##ab;                                                                            \
    using DRegisters = DRegister[2];                                                                                 \
    using ARegisters = ARegister[1];                                                                                 \
    using BRegisters = ARegister[1];                                                                                 \
    using CRegisters = DRegister[2];                                                                                 \
    static constexpr int kMinArch = MOYE_MMA_ARCH;                                                                   \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(DRegister& d0, DRegister& d1, ARegister const& a0,               \
                                                    ARegister const& b0, DRegister const& c0,                        \
                                                    DRegister const& c1 MOYE_LOC) {                                  \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction                                                                \
                      " {%0, %1}, {%2}, {%3}, {%4, %5};" : "=" MOYE_MMA_CONSTRAINT_##cd(d0),                         \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d1) : MOYE_MMA_CONSTRAINT_##ab(a0), MOYE_MMA_CONSTRAINT_##ab(b0), \
                      MOYE_MMA_CONSTRAINT_##cd(c0), MOYE_MMA_CONSTRAINT_##cd(c1));                                   \
      MOYE_MMA_HOST(using enum emu::MmaType; using enum emu::MmaOption;                                              \
                    static constexpr emu::MmaKind kKind{__VA_ARGS__}; ARegister const a[] = {a0};                    \
                    ARegister const b[] = {b0}; DRegister cd_[] = {c0, c1}; emu::mma(kKind, cd_, a, b, loc);         \
                    d0 = cd_[0], d1 = cd_[1];)                                                                       \
    }                                                                                                                \
  };

// D and C 2, A 2, B 1 registers
#define MOYE_MMA_221(name, instruction, cd, ab, ...)                                                                 \
  struct name {                                                                                                      \
    using DRegister = MOYE_MMA_TYPE_##cd;                                                                            \
    using ARegister = MOYE_MMA_TYPE_##ab;                                                                            \
    using DRegisters = DRegister[2];                                                                                 \
    using ARegisters = ARegister[2];                                                                                 \
    using BRegisters = ARegister[1];                                                                                 \
    using CRegisters = DRegister[2];                                                                                 \
    static constexpr int kMinArch = MOYE_MMA_ARCH;                                                                   \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(DRegister& d0, DRegister& d1, ARegister const& a0,               \
                                                    ARegister const& a1, ARegister const& b0, DRegister const& c0,   \
                                                    DRegister const& c1 MOYE_LOC) {                                  \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction                                                                \
                      " {%0, %1}, {%2, %3}, {%4}, {%5, %6};" : "=" MOYE_MMA_CONSTRAINT_##cd(d0),                     \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d1) : MOYE_MMA_CONSTRAINT_##ab(a0), MOYE_MMA_CONSTRAINT_##ab(a1), \
                      MOYE_MMA_CONSTRAINT_##ab(b0), MOYE_MMA_CONSTRAINT_##cd(c0), MOYE_MMA_CONSTRAINT_##cd(c1));     \
      MOYE_MMA_HOST(using enum emu::MmaType; using enum emu::MmaOption;                                              \
                    static constexpr emu::MmaKind kKind{__VA_ARGS__}; ARegister const a[] = {a0, a1};                \
                    ARegister const b[] = {b0}; DRegister cd_[] = {c0, c1}; emu::mma(kKind, cd_, a, b, loc);         \
                    d0 = cd_[0], d1 = cd_[1];)                                                                       \
    }                                                                                                                \
  };

// D and C 2, A 4, B 2 registers
#define MOYE_MMA_242(name, instruction, cd, ab, ...)                                                                 \
  struct name {                                                                                                      \
    using DRegister = MOYE_MMA_TYPE_##cd;                                                                            \
    using ARegister = MOYE_MMA_TYPE_##ab;                                                                            \
    using DRegisters = DRegister[2];                                                                                 \
    using ARegisters = ARegister[4];                                                                                 \
    using BRegisters = ARegister[2];                                                                                 \
    using CRegisters = DRegister[2];                                                                                 \
    static constexpr int kMinArch = MOYE_MMA_ARCH;                                                                   \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(DRegister& d0, DRegister& d1, ARegister const& a0,               \
                                                    ARegister const& a1, ARegister const& a2, ARegister const& a3,   \
                                                    ARegister const& b0, ARegister const& b1, DRegister const& c0,   \
                                                    DRegister const& c1 MOYE_LOC) {                                  \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction                                                                \
                      " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %9};" : "=" MOYE_MMA_CONSTRAINT_##cd(d0),         \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d1) : MOYE_MMA_CONSTRAINT_##ab(a0), MOYE_MMA_CONSTRAINT_##ab(a1), \
                      MOYE_MMA_CONSTRAINT_##ab(a2), MOYE_MMA_CONSTRAINT_##ab(a3), MOYE_MMA_CONSTRAINT_##ab(b0),      \
                      MOYE_MMA_CONSTRAINT_##ab(b1), MOYE_MMA_CONSTRAINT_##cd(c0), MOYE_MMA_CONSTRAINT_##cd(c1));     \
      MOYE_MMA_HOST(using enum emu::MmaType; using enum emu::MmaOption;                                              \
                    static constexpr emu::MmaKind kKind{__VA_ARGS__}; ARegister const a[] = {a0, a1, a2, a3};        \
                    ARegister const b[] = {b0, b1}; DRegister cd_[] = {c0, c1}; emu::mma(kKind, cd_, a, b, loc);     \
                    d0 = cd_[0], d1 = cd_[1];)                                                                       \
    }                                                                                                                \
  };

// D and C 4, A 2, B 1 registers
#define MOYE_MMA_421(name, instruction, cd, ab, ...)                                                                 \
  struct name {                                                                                                      \
    using DRegister = MOYE_MMA_TYPE_##cd;                                                                            \
    using ARegister = MOYE_MMA_TYPE_##ab;                                                                            \
    using DRegisters = DRegister[4];                                                                                 \
    using ARegisters = ARegister[2];                                                                                 \
    using BRegisters = ARegister[1];                                                                                 \
    using CRegisters = DRegister[4];                                                                                 \
    static constexpr int kMinArch = MOYE_MMA_ARCH;                                                                   \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(DRegister& d0, DRegister& d1, DRegister& d2, DRegister& d3,      \
                                                    ARegister const& a0, ARegister const& a1, ARegister const& b0,   \
                                                    DRegister const& c0, DRegister const& c1, DRegister const& c2,   \
                                                    DRegister const& c3 MOYE_LOC) {                                  \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction                                                                \
                      " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};" : "=" MOYE_MMA_CONSTRAINT_##cd(d0),    \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d1), "=" MOYE_MMA_CONSTRAINT_##cd(d2),                            \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d3) : MOYE_MMA_CONSTRAINT_##ab(a0), MOYE_MMA_CONSTRAINT_##ab(a1), \
                      MOYE_MMA_CONSTRAINT_##ab(b0), MOYE_MMA_CONSTRAINT_##cd(c0), MOYE_MMA_CONSTRAINT_##cd(c1),      \
                      MOYE_MMA_CONSTRAINT_##cd(c2), MOYE_MMA_CONSTRAINT_##cd(c3));                                   \
      MOYE_MMA_HOST(using enum emu::MmaType; using enum emu::MmaOption;                                              \
                    static constexpr emu::MmaKind kKind{__VA_ARGS__}; ARegister const a[] = {a0, a1};                \
                    ARegister const b[] = {b0}; DRegister cd_[] = {c0, c1, c2, c3}; emu::mma(kKind, cd_, a, b, loc); \
                    d0 = cd_[0], d1 = cd_[1], d2 = cd_[2], d3 = cd_[3];)                                             \
    }                                                                                                                \
  };

// D and C 4, A 4, B 2 registers
#define MOYE_MMA_442(name, instruction, cd, ab, ...)                                                                 \
  struct name {                                                                                                      \
    using DRegister = MOYE_MMA_TYPE_##cd;                                                                            \
    using ARegister = MOYE_MMA_TYPE_##ab;                                                                            \
    using DRegisters = DRegister[4];                                                                                 \
    using ARegisters = ARegister[4];                                                                                 \
    using BRegisters = ARegister[2];                                                                                 \
    using CRegisters = DRegister[4];                                                                                 \
    static constexpr int kMinArch = MOYE_MMA_ARCH;                                                                   \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(DRegister& d0, DRegister& d1, DRegister& d2, DRegister& d3,      \
                                                    ARegister const& a0, ARegister const& a1, ARegister const& a2,   \
                                                    ARegister const& a3, ARegister const& b0, ARegister const& b1,   \
                                                    DRegister const& c0, DRegister const& c1, DRegister const& c2,   \
                                                    DRegister const& c3 MOYE_LOC) {                                  \
      MOYE_MMA_DEVICE(                                                                                               \
          "mma.sync.aligned." instruction                                                                            \
          " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};" : "=" MOYE_MMA_CONSTRAINT_##cd(d0), \
          "=" MOYE_MMA_CONSTRAINT_##cd(d1), "=" MOYE_MMA_CONSTRAINT_##cd(d2),                                        \
          "=" MOYE_MMA_CONSTRAINT_##cd(d3) : MOYE_MMA_CONSTRAINT_##ab(a0), MOYE_MMA_CONSTRAINT_##ab(a1),             \
          MOYE_MMA_CONSTRAINT_##ab(a2), MOYE_MMA_CONSTRAINT_##ab(a3), MOYE_MMA_CONSTRAINT_##ab(b0),                  \
          MOYE_MMA_CONSTRAINT_##ab(b1), MOYE_MMA_CONSTRAINT_##cd(c0), MOYE_MMA_CONSTRAINT_##cd(c1),                  \
          MOYE_MMA_CONSTRAINT_##cd(c2), MOYE_MMA_CONSTRAINT_##cd(c3));                                               \
      MOYE_MMA_HOST(using enum emu::MmaType; using enum emu::MmaOption;                                              \
                    static constexpr emu::MmaKind kKind{__VA_ARGS__}; ARegister const a[] = {a0, a1, a2, a3};        \
                    ARegister const b[] = {b0, b1}; DRegister cd_[] = {c0, c1, c2, c3};                              \
                    emu::mma(kKind, cd_, a, b, loc); d0 = cd_[0], d1 = cd_[1], d2 = cd_[2], d3 = cd_[3];)            \
    }                                                                                                                \
  };

// D and C 4, A 8, B 4 registers
#define MOYE_MMA_484(name, instruction, cd, ab, ...)                                                                  \
  struct name {                                                                                                       \
    using DRegister = MOYE_MMA_TYPE_##cd;                                                                             \
    using ARegister = MOYE_MMA_TYPE_##ab;                                                                             \
    using DRegisters = DRegister[4];                                                                                  \
    using ARegisters = ARegister[8];                                                                                  \
    using BRegisters = ARegister[4];                                                                                  \
    using CRegisters = DRegister[4];                                                                                  \
    static constexpr int kMinArch = MOYE_MMA_ARCH;                                                                    \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(DRegister& d0, DRegister& d1, DRegister& d2, DRegister& d3,       \
                                                    ARegister const& a0, ARegister const& a1, ARegister const& a2,    \
                                                    ARegister const& a3, ARegister const& a4, ARegister const& a5,    \
                                                    ARegister const& a6, ARegister const& a7, ARegister const& b0,    \
                                                    ARegister const& b1, ARegister const& b2, ARegister const& b3,    \
                                                    DRegister const& c0, DRegister const& c1, DRegister const& c2,    \
                                                    DRegister const& c3 MOYE_LOC) {                                   \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction                                                                 \
                      " {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%16, %17, %18, " \
                      "%19};" : "=" MOYE_MMA_CONSTRAINT_##cd(d0),                                                     \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d1), "=" MOYE_MMA_CONSTRAINT_##cd(d2),                             \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d3) : MOYE_MMA_CONSTRAINT_##ab(a0), MOYE_MMA_CONSTRAINT_##ab(a1),  \
                      MOYE_MMA_CONSTRAINT_##ab(a2), MOYE_MMA_CONSTRAINT_##ab(a3), MOYE_MMA_CONSTRAINT_##ab(a4),       \
                      MOYE_MMA_CONSTRAINT_##ab(a5), MOYE_MMA_CONSTRAINT_##ab(a6), MOYE_MMA_CONSTRAINT_##ab(a7),       \
                      MOYE_MMA_CONSTRAINT_##ab(b0), MOYE_MMA_CONSTRAINT_##ab(b1), MOYE_MMA_CONSTRAINT_##ab(b2),       \
                      MOYE_MMA_CONSTRAINT_##ab(b3), MOYE_MMA_CONSTRAINT_##cd(c0), MOYE_MMA_CONSTRAINT_##cd(c1),       \
                      MOYE_MMA_CONSTRAINT_##cd(c2), MOYE_MMA_CONSTRAINT_##cd(c3));                                    \
      MOYE_MMA_HOST(using enum emu::MmaType; using enum emu::MmaOption;                                               \
                    static constexpr emu::MmaKind kKind{__VA_ARGS__};                                                 \
                    ARegister const a[] = {a0, a1, a2, a3, a4, a5, a6, a7}; ARegister const b[] = {b0, b1, b2, b3};   \
                    DRegister cd_[] = {c0, c1, c2, c3}; emu::mma(kKind, cd_, a, b, loc);                              \
                    d0 = cd_[0], d1 = cd_[1], d2 = cd_[2], d3 = cd_[3];)                                              \
    }                                                                                                                 \
  };

// D and C 4, A 2, B 2 registers
#define MOYE_MMA_422(name, instruction, cd, ab, ...)                                                                   \
  struct name {                                                                                                        \
    using DRegister = MOYE_MMA_TYPE_##cd;                                                                              \
    using ARegister = MOYE_MMA_TYPE_##ab;                                                                              \
    using DRegisters = DRegister[4];                                                                                   \
    using ARegisters = ARegister[2];                                                                                   \
    using BRegisters = ARegister[2];                                                                                   \
    using CRegisters = DRegister[4];                                                                                   \
    static constexpr int kMinArch = MOYE_MMA_ARCH;                                                                     \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(DRegister& d0, DRegister& d1, DRegister& d2, DRegister& d3,        \
                                                    ARegister const& a0, ARegister const& a1, ARegister const& b0,     \
                                                    ARegister const& b1, DRegister const& c0, DRegister const& c1,     \
                                                    DRegister const& c2, DRegister const& c3 MOYE_LOC) {               \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction                                                                  \
                      " {%0, %1, %2, %3}, {%4, %5}, {%6, %7}, {%8, %9, %10, %11};" : "=" MOYE_MMA_CONSTRAINT_##cd(d0), \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d1), "=" MOYE_MMA_CONSTRAINT_##cd(d2),                              \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d3) : MOYE_MMA_CONSTRAINT_##ab(a0), MOYE_MMA_CONSTRAINT_##ab(a1),   \
                      MOYE_MMA_CONSTRAINT_##ab(b0), MOYE_MMA_CONSTRAINT_##ab(b1), MOYE_MMA_CONSTRAINT_##cd(c0),        \
                      MOYE_MMA_CONSTRAINT_##cd(c1), MOYE_MMA_CONSTRAINT_##cd(c2), MOYE_MMA_CONSTRAINT_##cd(c3));       \
      MOYE_MMA_HOST(using enum emu::MmaType; using enum emu::MmaOption;                                                \
                    static constexpr emu::MmaKind kKind{__VA_ARGS__}; ARegister const a[] = {a0, a1};                  \
                    ARegister const b[] = {b0, b1}; DRegister cd_[] = {c0, c1, c2, c3};                                \
                    emu::mma(kKind, cd_, a, b, loc); d0 = cd_[0], d1 = cd_[1], d2 = cd_[2], d3 = cd_[3];)              \
    }                                                                                                                  \
  };

// D and C 8, A 2, B 2 registers
#define MOYE_MMA_822(name, instruction, cd, ab, ...)                                                                  \
  struct name {                                                                                                       \
    using DRegister = MOYE_MMA_TYPE_##cd;                                                                             \
    using ARegister = MOYE_MMA_TYPE_##ab;                                                                             \
    using DRegisters = DRegister[8];                                                                                  \
    using ARegisters = ARegister[2];                                                                                  \
    using BRegisters = ARegister[2];                                                                                  \
    using CRegisters = DRegister[8];                                                                                  \
    static constexpr int kMinArch = MOYE_MMA_ARCH;                                                                    \
    MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(DRegister& d0, DRegister& d1, DRegister& d2, DRegister& d3,       \
                                                    DRegister& d4, DRegister& d5, DRegister& d6, DRegister& d7,       \
                                                    ARegister const& a0, ARegister const& a1, ARegister const& b0,    \
                                                    ARegister const& b1, DRegister const& c0, DRegister const& c1,    \
                                                    DRegister const& c2, DRegister const& c3, DRegister const& c4,    \
                                                    DRegister const& c5, DRegister const& c6,                         \
                                                    DRegister const& c7 MOYE_LOC) {                                   \
      MOYE_MMA_DEVICE("mma.sync.aligned." instruction                                                                 \
                      " {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, {%12, %13, %14, %15, %16, %17, %18, " \
                      "%19};" : "=" MOYE_MMA_CONSTRAINT_##cd(d0),                                                     \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d1), "=" MOYE_MMA_CONSTRAINT_##cd(d2),                             \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d3), "=" MOYE_MMA_CONSTRAINT_##cd(d4),                             \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d5), "=" MOYE_MMA_CONSTRAINT_##cd(d6),                             \
                      "=" MOYE_MMA_CONSTRAINT_##cd(d7) : MOYE_MMA_CONSTRAINT_##ab(a0), MOYE_MMA_CONSTRAINT_##ab(a1),  \
                      MOYE_MMA_CONSTRAINT_##ab(b0), MOYE_MMA_CONSTRAINT_##ab(b1), MOYE_MMA_CONSTRAINT_##cd(c0),       \
                      MOYE_MMA_CONSTRAINT_##cd(c1), MOYE_MMA_CONSTRAINT_##cd(c2), MOYE_MMA_CONSTRAINT_##cd(c3),       \
                      MOYE_MMA_CONSTRAINT_##cd(c4), MOYE_MMA_CONSTRAINT_##cd(c5), MOYE_MMA_CONSTRAINT_##cd(c6),       \
                      MOYE_MMA_CONSTRAINT_##cd(c7));                                                                  \
      MOYE_MMA_HOST(using enum emu::MmaType; using enum emu::MmaOption;                                               \
                    static constexpr emu::MmaKind kKind{__VA_ARGS__}; ARegister const a[] = {a0, a1};                 \
                    ARegister const b[] = {b0, b1}; DRegister cd_[] = {c0, c1, c2, c3, c4, c5, c6, c7};               \
                    emu::mma(kKind, cd_, a, b, loc); d0 = cd_[0], d1 = cd_[1], d2 = cd_[2], d3 = cd_[3], d4 = cd_[4], \
                                                     d5 = cd_[5], d6 = cd_[6], d7 = cd_[7];)                          \
    }                                                                                                                 \
  };
