// wgmma of sm_90a (PTX ISA, "Asynchronous warpgroup level matrix multiply-accumulate operation"): four warps multiply
// D = A * B + D with A (64,K) in shared memory or registers, B (N,K) in shared memory, and D in registers. K is 32
// bytes.
//   SM90_WGMMA_SS, SM90_WGMMA_RS   the instructions: A in shared memory, A in registers
//   SM90_64x128x16_F32BF16BF16_SS  and the like: CuTe's names for them
//   warpgroup_arrive               before the first wgmma, and after registers of one were touched
//   warpgroup_commit_group, warpgroup_wait_group
// An instruction returns at once. Until the wait for its group, its registers hold nothing and its shared memory may
// not be written. The wait of a warp promises that this warp's part is done, not the other three's.
#pragma once

#include "moye/arch/builtin.h"
#include "moye/arch/mma_sm90_registers.h"
#include "moye/core.h"

namespace moye {

// CuTe's names.
namespace GMMA {
enum class Major { K, MN };
enum class ScaleIn { Neg = -1, One = 1 };
enum class ScaleOut { Zero = 0, One = 1 };  // D = A * B, D = A * B + D
}  // namespace GMMA

/// wgmma.fence: orders this warpgroup's accesses to the registers of wgmma before the instructions that follow.
MOYE_DEVICE void warpgroup_arrive(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#else
  emu::wgmma_fence(loc);
#endif
}

/// Ends a group: all wgmma of this warp since the last one.
MOYE_DEVICE void warpgroup_commit_group(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#else
  emu::wgmma_commit_group(loc);
#endif
}

/// Waits until at most kGroups of this warp's groups are in flight.
template <int kGroups>
MOYE_DEVICE void warpgroup_wait_group(MOYE_LOC_ONLY) {
  static_assert(0 <= kGroups && kGroups <= 7, "wgmma.wait_group: at most 7 groups");
#if defined(__CUDACC__)
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kGroups) : "memory");
#else
  emu::wgmma_wait_group(kGroups, loc);
#endif
}

/// Keeps the compiler from moving accesses to an accumulator past this point: wgmma writes it at a time the compiler
/// does not know. No instruction.
MOYE_DEVICE void warpgroup_fence_operand([[maybe_unused]] float& accumulator) {
#if defined(__CUDACC__)
  asm volatile("" : "+f"(accumulator)::"memory");
#endif
}
MOYE_DEVICE void warpgroup_fence_operand([[maybe_unused]] uint32_t& accumulator) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(accumulator)::"memory");
#endif
}

namespace detail {

/// Facts about an instruction, and which of them there are. kBits: of an element of A and B.
template <int kN_, class D, class A, class B, GMMA::Major kMajorA_, GMMA::Major kMajorB_>
struct WgmmaFacts {
  static constexpr bool kFloat16 = is_same<A, bfloat16_t> || is_same<A, half_t>;
  static constexpr bool kInteger = is_same<A, int8_t> || is_same<A, uint8_t>;
  static constexpr bool kFloat8 = is_same<A, float_e4m3_t> || is_same<A, float_e5m2_t>;
  static_assert(kFloat16 || kInteger || kFloat8 || is_same<A, tfloat32_t>, "wgmma: A has a type it does not multiply");
  static_assert(kInteger  ? is_same<B, int8_t> || is_same<B, uint8_t>
                : kFloat8 ? is_same<B, float_e4m3_t> || is_same<B, float_e5m2_t>
                          : is_same<A, B>,
                "wgmma: A and B have types that no instruction multiplies");
  static_assert(kInteger ? is_same<D, int32_t>
                         : is_same<D, float> || (is_same<D, half_t> && (is_same<A, half_t> || kFloat8)),
                "wgmma: no such accumulators with these operands");
  static_assert(kN_ % 8 == 0 && 8 <= kN_ && kN_ <= 256, "wgmma: N is 8, 16, ..., 256");
  static_assert(!kInteger || kN_ == 8 || kN_ == 24 || kN_ % 16 == 0,
                "wgmma: integers have N of 8, 24, 16, 32, 48, ...");
  static_assert(kFloat16 || (kMajorA_ == GMMA::Major::K && kMajorB_ == GMMA::Major::K),
                "wgmma: only 16-bit operands may be MN-major");

  static constexpr int kM = 64, kN = kN_, kK = 32 / static_cast<int>(sizeof(A));
  using ValTypeD = D;
  using ValTypeA = A;
  using ValTypeB = B;
  static constexpr GMMA::Major kMajorA = kMajorA_, kMajorB = kMajorB_;
  // D in registers: 64 * N elements in 128 threads.
  static constexpr int kRegisters = kN * static_cast<int>(sizeof(D)) / 8;
  using Register = Conditional<is_same<D, float>, float, uint32_t>;
};

#if defined(__CUDACC__)

// Pieces of the instruction's text.
template <class T>
struct WgmmaTypeText;
#define MOYE_WGMMA_TYPE(type, name)             \
  template <>                                   \
  struct WgmmaTypeText<type> {                  \
    static constexpr char const kText[] = name; \
  };
MOYE_WGMMA_TYPE(bfloat16_t, ".bf16")
MOYE_WGMMA_TYPE(half_t, ".f16")
MOYE_WGMMA_TYPE(float_e4m3_t, ".e4m3")
MOYE_WGMMA_TYPE(float_e5m2_t, ".e5m2")
MOYE_WGMMA_TYPE(tfloat32_t, ".tf32")
MOYE_WGMMA_TYPE(float, ".f32")
MOYE_WGMMA_TYPE(int8_t, ".s8")
MOYE_WGMMA_TYPE(uint8_t, ".u8")
MOYE_WGMMA_TYPE(int32_t, ".s32")
#undef MOYE_WGMMA_TYPE
/// An immediate operand; integers have no scales, and only 16-bit types have majors.
template <bool kThere, int kValue>
struct WgmmaImmediate {
  static constexpr char const kText[] = "";
};
template <>
struct WgmmaImmediate<true, 0> {
  static constexpr char const kText[] = ", 0";
};
template <>
struct WgmmaImmediate<true, 1> {
  static constexpr char const kText[] = ", 1";
};
template <>
struct WgmmaImmediate<true, -1> {
  static constexpr char const kText[] = ", -1";
};
template <class Facts, GMMA::ScaleIn kScaleA, GMMA::ScaleIn kScaleB>
struct WgmmaText : Facts {
  using NameD = WgmmaTypeText<typename Facts::ValTypeD>;
  using NameA = WgmmaTypeText<typename Facts::ValTypeA>;
  using NameB = WgmmaTypeText<typename Facts::ValTypeB>;
  using ScaleA = WgmmaImmediate<!Facts::kInteger, static_cast<int>(kScaleA)>;
  using ScaleB = WgmmaImmediate<!Facts::kInteger, static_cast<int>(kScaleB)>;
  using TransA = WgmmaImmediate<Facts::kFloat16, Facts::kMajorA == GMMA::Major::MN>;
  using TransB = WgmmaImmediate<Facts::kFloat16, Facts::kMajorB == GMMA::Major::MN>;
};

template <class Register, int kRegisters>
struct WgmmaStatement;

// o0, o1, ...: the numbers of the operands behind d.
#define MOYE_WGMMA_STATEMENT(type, constraint, count, o0, o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11, o12, o13)      \
  template <>                                                                                                          \
  struct WgmmaStatement<type, count> {                                                                                 \
    template <class Text>                                                                                              \
    static MOYE_DEVICE void ss(type (&d)[count], uint64_t a, uint64_t b, uint32_t scale_d) {                           \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " o2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" o3 "k" o4 o5 o6 o7 \
                   " {" MOYE_WGMMA_LIST_##count "}, " o0 ", " o1 ", p" o8 o9 o10 o11 ";\n}\n"                          \
                   : MOYE_WGMMA_D_##count(constraint)                                                                  \
                   : "l"(a), "l"(b), "r"(scale_d), "n"(Text::kN), "n"(Text::kK), "C"(Text::NameD::kText),              \
                     "C"(Text::NameA::kText), "C"(Text::NameB::kText), "C"(Text::ScaleA::kText),                       \
                     "C"(Text::ScaleB::kText), "C"(Text::TransA::kText), "C"(Text::TransB::kText));                    \
    }                                                                                                                  \
    template <class Text>                                                                                              \
    static MOYE_DEVICE void rs(type (&d)[count], uint32_t const (&a)[4], uint64_t b, uint32_t scale_d) {               \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " o5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" o6                 \
                   "k" o7 o8 o9 o10 " {" MOYE_WGMMA_LIST_##count "}, {" o0 ", " o1 ", " o2 ", " o3 "}, " o4            \
                                                                 ", p" o11 o12 o13 ";\n}\n"                            \
                   : MOYE_WGMMA_D_##count(constraint)                                                                  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale_d), "n"(Text::kN), "n"(Text::kK),   \
                     "C"(Text::NameD::kText), "C"(Text::NameA::kText), "C"(Text::NameB::kText),                        \
                     "C"(Text::ScaleA::kText), "C"(Text::ScaleB::kText), "C"(Text::TransB::kText));                    \
    }                                                                                                                  \
  };
MOYE_WGMMA_TABLE(MOYE_WGMMA_STATEMENT)
#undef MOYE_WGMMA_STATEMENT

#else

template <class T>
inline constexpr emu::MmaType kWgmmaType = emu::MmaType::f32;
template <>
inline constexpr emu::MmaType kWgmmaType<bfloat16_t> = emu::MmaType::bf16;
template <>
inline constexpr emu::MmaType kWgmmaType<half_t> = emu::MmaType::f16;
template <>
inline constexpr emu::MmaType kWgmmaType<tfloat32_t> = emu::MmaType::tf32;
template <>
inline constexpr emu::MmaType kWgmmaType<float_e4m3_t> = emu::MmaType::e4m3;
template <>
inline constexpr emu::MmaType kWgmmaType<float_e5m2_t> = emu::MmaType::e5m2;
template <>
inline constexpr emu::MmaType kWgmmaType<int8_t> = emu::MmaType::s8;
template <>
inline constexpr emu::MmaType kWgmmaType<uint8_t> = emu::MmaType::u8;
template <>
inline constexpr emu::MmaType kWgmmaType<int32_t> = emu::MmaType::s32;

template <class Facts, GMMA::ScaleIn kScaleA, GMMA::ScaleIn kScaleB>
inline constexpr emu::WgmmaKind kWgmmaKind{Facts::kN,
                                           kWgmmaType<typename Facts::ValTypeA>,
                                           kWgmmaType<typename Facts::ValTypeB>,
                                           kWgmmaType<typename Facts::ValTypeD>,
                                           Facts::kMajorA == GMMA::Major::MN,
                                           Facts::kMajorB == GMMA::Major::MN,
                                           kScaleA == GMMA::ScaleIn::Neg,
                                           kScaleB == GMMA::ScaleIn::Neg};

#endif

}  // namespace detail

/// A and B in shared memory, by their descriptors (moye/atom/gmma.h).
template <int kN, class D, class A, class B, GMMA::Major kMajorA = GMMA::Major::K, GMMA::Major kMajorB = GMMA::Major::K,
          GMMA::ScaleIn kScaleA = GMMA::ScaleIn::One, GMMA::ScaleIn kScaleB = GMMA::ScaleIn::One>
struct SM90_WGMMA_SS {
  using Facts = detail::WgmmaFacts<kN, D, A, B, kMajorA, kMajorB>;
  using Register = typename Facts::Register;
  using DRegisters = Register[Facts::kRegisters];
  using ARegisters = uint64_t[1];
  using BRegisters = uint64_t[1];
  using CRegisters = DRegisters;
  static constexpr int kMinArch = 90;

  /// d: the registers themselves, which receive the result later.
  MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(DRegisters& d, uint64_t const& a, uint64_t const& b,
                                                  GMMA::ScaleOut scale_d MOYE_LOC) {
#if defined(__CUDACC__)
    using Text = detail::WgmmaText<Facts, kScaleA, kScaleB>;
    detail::WgmmaStatement<Register, Facts::kRegisters>::template ss<Text>(d, a, b, static_cast<uint32_t>(scale_d));
#else
    emu::wgmma(detail::kWgmmaKind<Facts, kScaleA, kScaleB>, d, a, b, scale_d == GMMA::ScaleOut::One, loc);
#endif
  }
};

/// A in registers, K-major: four of a thread.
template <int kN, class D, class A, class B, GMMA::Major kMajorA = GMMA::Major::K, GMMA::Major kMajorB = GMMA::Major::K,
          GMMA::ScaleIn kScaleA = GMMA::ScaleIn::One, GMMA::ScaleIn kScaleB = GMMA::ScaleIn::One>
struct SM90_WGMMA_RS {
  static_assert(kMajorA == GMMA::Major::K, "wgmma: A in registers is K-major");
  using Facts = detail::WgmmaFacts<kN, D, A, B, kMajorA, kMajorB>;
  using Register = typename Facts::Register;
  using DRegisters = Register[Facts::kRegisters];
  using ARegisters = uint32_t[4];
  using BRegisters = uint64_t[1];
  using CRegisters = DRegisters;
  static constexpr int kMinArch = 90;

  /// a, too: it may not be written until the instruction is done.
  MOYE_DEVICE MOYE_UNINSTRUMENTED static void fma(DRegisters& d, ARegisters const& a, uint64_t const& b,
                                                  GMMA::ScaleOut scale_d MOYE_LOC) {
#if defined(__CUDACC__)
    using Text = detail::WgmmaText<Facts, kScaleA, kScaleB>;
    detail::WgmmaStatement<Register, Facts::kRegisters>::template rs<Text>(d, a, b, static_cast<uint32_t>(scale_d));
#else
    emu::wgmma_rs(detail::kWgmmaKind<Facts, kScaleA, kScaleB>, d, a, b, scale_d == GMMA::ScaleOut::One, loc);
#endif
  }
};

// ---- CuTe's names
// clang-format off
#define MOYE_WGMMA_16_BIT(n, types, d, ab)                                                                       \
  template <GMMA::Major kA, GMMA::Major kB, GMMA::ScaleIn kScaleA = GMMA::ScaleIn::One,                          \
            GMMA::ScaleIn kScaleB = GMMA::ScaleIn::One>                                                          \
  using SM90_64x##n##x16_##types##_SS = SM90_WGMMA_SS<n, d, ab, ab, kA, kB, kScaleA, kScaleB>;                   \
  template <GMMA::Major kA, GMMA::Major kB, GMMA::ScaleIn kScaleA = GMMA::ScaleIn::One,                          \
            GMMA::ScaleIn kScaleB = GMMA::ScaleIn::One>                                                          \
  using SM90_64x##n##x16_##types##_RS = SM90_WGMMA_RS<n, d, ab, ab, kA, kB, kScaleA, kScaleB>;
#define MOYE_WGMMA_TN(n, k, types, d, a, b)                                                                      \
  template <GMMA::ScaleIn kScaleA = GMMA::ScaleIn::One, GMMA::ScaleIn kScaleB = GMMA::ScaleIn::One>              \
  using SM90_64x##n##x##k##_##types##_SS_TN =                                                                    \
      SM90_WGMMA_SS<n, d, a, b, GMMA::Major::K, GMMA::Major::K, kScaleA, kScaleB>;                               \
  template <GMMA::ScaleIn kScaleA = GMMA::ScaleIn::One, GMMA::ScaleIn kScaleB = GMMA::ScaleIn::One>              \
  using SM90_64x##n##x##k##_##types##_RS_TN =                                                                    \
      SM90_WGMMA_RS<n, d, a, b, GMMA::Major::K, GMMA::Major::K, kScaleA, kScaleB>;
#define MOYE_WGMMA_FLOAT(n)                                                                                      \
  MOYE_WGMMA_16_BIT(n, F16F16F16, half_t, half_t)                                                                \
  MOYE_WGMMA_16_BIT(n, F32F16F16, float, half_t)                                                                 \
  MOYE_WGMMA_16_BIT(n, F32BF16BF16, float, bfloat16_t)                                                           \
  MOYE_WGMMA_TN(n, 8, F32TF32TF32, float, tfloat32_t, tfloat32_t)                                                \
  MOYE_WGMMA_TN(n, 32, F16E4M3E4M3, half_t, float_e4m3_t, float_e4m3_t)                                          \
  MOYE_WGMMA_TN(n, 32, F16E4M3E5M2, half_t, float_e4m3_t, float_e5m2_t)                                          \
  MOYE_WGMMA_TN(n, 32, F16E5M2E4M3, half_t, float_e5m2_t, float_e4m3_t)                                          \
  MOYE_WGMMA_TN(n, 32, F16E5M2E5M2, half_t, float_e5m2_t, float_e5m2_t)                                          \
  MOYE_WGMMA_TN(n, 32, F32E4M3E4M3, float, float_e4m3_t, float_e4m3_t)                                           \
  MOYE_WGMMA_TN(n, 32, F32E4M3E5M2, float, float_e4m3_t, float_e5m2_t)                                           \
  MOYE_WGMMA_TN(n, 32, F32E5M2E4M3, float, float_e5m2_t, float_e4m3_t)                                           \
  MOYE_WGMMA_TN(n, 32, F32E5M2E5M2, float, float_e5m2_t, float_e5m2_t)
#define MOYE_WGMMA_INTEGER(n)                                                                                    \
  using SM90_64x##n##x32_S32S8S8_SS_TN = SM90_WGMMA_SS<n, int32_t, int8_t, int8_t>;                              \
  using SM90_64x##n##x32_S32S8S8_RS_TN = SM90_WGMMA_RS<n, int32_t, int8_t, int8_t>;                              \
  using SM90_64x##n##x32_S32S8U8_SS_TN = SM90_WGMMA_SS<n, int32_t, int8_t, uint8_t>;                             \
  using SM90_64x##n##x32_S32S8U8_RS_TN = SM90_WGMMA_RS<n, int32_t, int8_t, uint8_t>;                             \
  using SM90_64x##n##x32_S32U8S8_SS_TN = SM90_WGMMA_SS<n, int32_t, uint8_t, int8_t>;                             \
  using SM90_64x##n##x32_S32U8S8_RS_TN = SM90_WGMMA_RS<n, int32_t, uint8_t, int8_t>;                             \
  using SM90_64x##n##x32_S32U8U8_SS_TN = SM90_WGMMA_SS<n, int32_t, uint8_t, uint8_t>;                            \
  using SM90_64x##n##x32_S32U8U8_RS_TN = SM90_WGMMA_RS<n, int32_t, uint8_t, uint8_t>;
MOYE_WGMMA_FLOAT(8) MOYE_WGMMA_FLOAT(16) MOYE_WGMMA_FLOAT(24) MOYE_WGMMA_FLOAT(32)
MOYE_WGMMA_FLOAT(40) MOYE_WGMMA_FLOAT(48) MOYE_WGMMA_FLOAT(56) MOYE_WGMMA_FLOAT(64)
MOYE_WGMMA_FLOAT(72) MOYE_WGMMA_FLOAT(80) MOYE_WGMMA_FLOAT(88) MOYE_WGMMA_FLOAT(96)
MOYE_WGMMA_FLOAT(104) MOYE_WGMMA_FLOAT(112) MOYE_WGMMA_FLOAT(120) MOYE_WGMMA_FLOAT(128)
MOYE_WGMMA_FLOAT(136) MOYE_WGMMA_FLOAT(144) MOYE_WGMMA_FLOAT(152) MOYE_WGMMA_FLOAT(160)
MOYE_WGMMA_FLOAT(168) MOYE_WGMMA_FLOAT(176) MOYE_WGMMA_FLOAT(184) MOYE_WGMMA_FLOAT(192)
MOYE_WGMMA_FLOAT(200) MOYE_WGMMA_FLOAT(208) MOYE_WGMMA_FLOAT(216) MOYE_WGMMA_FLOAT(224)
MOYE_WGMMA_FLOAT(232) MOYE_WGMMA_FLOAT(240) MOYE_WGMMA_FLOAT(248) MOYE_WGMMA_FLOAT(256)
MOYE_WGMMA_INTEGER(8) MOYE_WGMMA_INTEGER(16) MOYE_WGMMA_INTEGER(24) MOYE_WGMMA_INTEGER(32)
MOYE_WGMMA_INTEGER(48) MOYE_WGMMA_INTEGER(64) MOYE_WGMMA_INTEGER(80) MOYE_WGMMA_INTEGER(96)
MOYE_WGMMA_INTEGER(112) MOYE_WGMMA_INTEGER(128) MOYE_WGMMA_INTEGER(144) MOYE_WGMMA_INTEGER(160)
MOYE_WGMMA_INTEGER(176) MOYE_WGMMA_INTEGER(192) MOYE_WGMMA_INTEGER(208) MOYE_WGMMA_INTEGER(224)
MOYE_WGMMA_INTEGER(240) MOYE_WGMMA_INTEGER(256)
#undef MOYE_WGMMA_16_BIT
#undef MOYE_WGMMA_TN
#undef MOYE_WGMMA_FLOAT
#undef MOYE_WGMMA_INTEGER
// clang-format on

}  // namespace moye
