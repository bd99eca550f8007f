// mma.sync: gathers the fragments of 32 lanes, multiplies, and scatters the result.
//
// With g = lane / 4 and q = lane % 4, register j of A holds row g + 8 * (j % (m / 8)) and the q-th of four chunks of k,
// counted from 4 * (j / (m / 8)); register j of B column g and chunk q + 4 * j; a chunk is the 4 bytes (f64: 8) of one
// register. Value v of C and D is at row g + 8 * (v / 2), column 2 * q + v % 2. One rule for all shapes and types here
// (PTX ISA, "Matrix Fragments for mma.m16n8k16" and its neighbours; tests/emulator holds it against tables).
//
// Numerics: products are exact and added to the accumulator in order of k, in the accumulator's type; an f16
// accumulator is kept in f32 within an instruction and rounded at its end. The hardware's rounding of f32 sums differs.
#include <type_traits>

#include "moye/arch/types.h"
#include "moye/emu/meeting.h"

namespace moye::emu {
namespace {

struct MmaArguments {
  void* cd;
  void const* a;
  void const* b;
};

float to_float(bfloat16_t value) { return static_cast<float>(value); }
float to_float(half_t value) { return static_cast<float>(value); }
float to_float(tfloat32_t value) { return static_cast<float>(value); }  // drops the 13 low bits, as the hardware does

// Input: the operands' storage type. Sum: what is added up. Output: the type of C and D.
template <int kM, int kK, class InputA, class InputB, class Sum, class Output>
void execute(void* const* arguments) {
  constexpr int kN = 8;
  constexpr int kRegisterBytes = sizeof(InputA) == 8 ? 8 : 4;
  constexpr int kPerRegister = kRegisterBytes / sizeof(InputA);
  constexpr int kRowGroups = kM / 8;
  constexpr int kRegistersB = kK / (4 * kPerRegister);
  constexpr int kRegistersA = kRegistersB * kRowGroups;
  // Four columns in a vector, two vectors in a row: 16 bytes of floats or integers, what every processor has.
  typedef Sum Quad __attribute__((vector_size(4 * sizeof(Sum))));
  Sum a[kM][kK];
  union {
    Sum element[kK][kN];
    Quad row[kK][2];
  } b;
  union {
    Sum element[kM][kN];
    Quad row[kM][2];
  } c;

  auto convert = [](auto value) -> Sum {
    if constexpr (std::is_arithmetic_v<decltype(value)>) {
      return static_cast<Sum>(value);
    } else {
      return to_float(value);
    }
  };
  for (int lane = 0; lane < 32; ++lane) {
    auto const& mine = *static_cast<MmaArguments const*>(arguments[lane]);
    int const g = lane / 4, q = lane % 4;
    InputA values_a[kRegistersA * kPerRegister];
    InputB values_b[kRegistersB * kPerRegister];
    Output values_c[2 * kRowGroups];
    std::memcpy(values_a, mine.a, sizeof(values_a));
    std::memcpy(values_b, mine.b, sizeof(values_b));
    std::memcpy(values_c, mine.cd, sizeof(values_c));
    for (int j = 0; j < kRegistersA; ++j) {
      for (int e = 0; e < kPerRegister; ++e) {
        a[g + 8 * (j % kRowGroups)][(q + 4 * (j / kRowGroups)) * kPerRegister + e] =
            convert(values_a[j * kPerRegister + e]);
      }
    }
    for (int j = 0; j < kRegistersB; ++j) {
      for (int e = 0; e < kPerRegister; ++e) {
        b.element[(q + 4 * j) * kPerRegister + e][g] = convert(values_b[j * kPerRegister + e]);
      }
    }
    for (int v = 0; v < 2 * kRowGroups; ++v) c.element[g + 8 * (v / 2)][2 * q + v % 2] = convert(values_c[v]);
  }

  for (int i = 0; i < kM; ++i) {
    if constexpr (std::is_same_v<Sum, double>) {  // products of doubles are not exact: fused
      for (int k = 0; k < kK; ++k) {
        for (int j = 0; j < kN; ++j) c.element[i][j] = __builtin_fma(a[i][k], b.element[k][j], c.element[i][j]);
      }
    } else {
      Quad left = c.row[i][0], right = c.row[i][1];
      for (int k = 0; k < kK; ++k) {
        left += b.row[k][0] * a[i][k];
        right += b.row[k][1] * a[i][k];
      }
      c.row[i][0] = left;
      c.row[i][1] = right;
    }
  }

  for (int lane = 0; lane < 32; ++lane) {
    Output values_d[2 * kRowGroups];
    int const g = lane / 4, q = lane % 4;
    for (int v = 0; v < 2 * kRowGroups; ++v) values_d[v] = Output(c.element[g + 8 * (v / 2)][2 * q + v % 2]);
    std::memcpy(static_cast<MmaArguments const*>(arguments[lane])->cd, values_d, sizeof(values_d));
  }
}

template <class InputA, class InputB>
void execute_integer(MmaKind const& kind, void* const* arguments) {
  // Sums in unsigned arithmetic: they wrap around, and a signed product is the same modulo 2^32.
  if (kind.m == 8) return execute<8, 16, InputA, InputB, uint32_t, uint32_t>(arguments);
  if (kind.k == 16) return execute<16, 16, InputA, InputB, uint32_t, uint32_t>(arguments);
  return execute<16, 32, InputA, InputB, uint32_t, uint32_t>(arguments);
}

void execute_kind(MmaKind const& kind, void* const* arguments) {
  switch (kind.a) {
    case MmaType::bf16:
      if (kind.k == 8) return execute<16, 8, bfloat16_t, bfloat16_t, float, float>(arguments);
      return execute<16, 16, bfloat16_t, bfloat16_t, float, float>(arguments);
    case MmaType::f16:
      if (kind.cd == MmaType::f16) {
        if (kind.k == 8) return execute<16, 8, half_t, half_t, float, half_t>(arguments);
        return execute<16, 16, half_t, half_t, float, half_t>(arguments);
      }
      if (kind.k == 8) return execute<16, 8, half_t, half_t, float, float>(arguments);
      return execute<16, 16, half_t, half_t, float, float>(arguments);
    case MmaType::tf32:
      if (kind.k == 4) return execute<16, 4, tfloat32_t, tfloat32_t, float, float>(arguments);
      return execute<16, 8, tfloat32_t, tfloat32_t, float, float>(arguments);
    case MmaType::f64:
      return execute<8, 4, double, double, double, double>(arguments);
    case MmaType::s8:
      if (kind.b == MmaType::s8) return execute_integer<int8_t, int8_t>(kind, arguments);
      return execute_integer<int8_t, uint8_t>(kind, arguments);
    case MmaType::u8:
      if (kind.b == MmaType::s8) return execute_integer<uint8_t, int8_t>(kind, arguments);
      return execute_integer<uint8_t, uint8_t>(kind, arguments);
    case MmaType::f32:
    case MmaType::s32:
      break;  // not types of A
  }
}

}  // namespace

void mma(MmaKind const& kind, void* cd, void const* a, void const* b, Loc loc) {
  Thread& thread = *current_thread;
  loc = thread.reported(loc);
  require_full_warp(thread, "mma.sync", loc);
  MmaArguments mine{cd, a, b};
  meet_and_execute(thread, "mma.sync", 0xffffffffu, &mine, loc, [&](void* const* arguments) {
    ++thread.domain->counters.mma;
    execute_kind(kind, arguments);
  });
}

}  // namespace moye::emu
