// mma.sync: gathers the fragments of 32 lanes, multiplies, and scatters the result.
//
// With g = lane / 4 and q = lane % 4, register j of A holds row g + 8 * (j % (m / 8)) and the q-th of four chunks of k,
// counted from 4 * (j / (m / 8)); register j of B column g and chunk q + 4 * j; a chunk is the 4 bytes (f64: 8) of one
// register. Value v of C and D is at row g + 8 * (v / 2), column 2 * q + v % 2. One rule for all shapes and types here
// but sm_70's, which has its own function (PTX ISA, "Matrix Fragments for mma.m16n8k16" and its neighbours;
// tests/emulator holds it against tables).
//
// Numerics: products are exact and added to the accumulator in order of k, in the accumulator's type; an f16
// accumulator is kept in f32 within an instruction and rounded at its end. The hardware's rounding of f32 sums differs.
// A saturating s32 sum is kept in 64 bits and stops at its end.
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
float to_float(float_e4m3_t value) { return static_cast<float>(value); }
float to_float(float_e5m2_t value) { return static_cast<float>(value); }

template <class To, class T>
To convert(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<To>(value);
  } else {
    return static_cast<To>(to_float(value));
  }
}

// How many bits an operand's value has, and value i of those packed from `registers` on.
template <class T>
struct Packed {
  static constexpr int kBits = 8 * sizeof(T);
  template <class Sum>
  static Sum get(unsigned char const* registers, int i) {
    T value;
    std::memcpy(&value, registers + i * sizeof(T), sizeof(T));
    return convert<Sum>(value);
  }
};
template <int kBits_, bool kSigned>
struct PackedBits {
  static constexpr int kBits = kBits_;
  template <class Sum>
  static Sum get(unsigned char const* registers, int i) {
    int const value = registers[i * kBits / 8] >> (i * kBits % 8) & ((1 << kBits) - 1);
    return static_cast<Sum>(kSigned && value >> (kBits - 1) ? value - (1 << kBits) : value);
  }
};
template <>
struct Packed<int4b_t> : PackedBits<4, true> {};
template <>
struct Packed<uint4b_t> : PackedBits<4, false> {};
template <>
struct Packed<uint1b_t> : PackedBits<1, false> {};

struct Multiply {
  template <class Vector, class Sum>
  static void add(Vector& sum, Sum a, Vector const& b) {
    sum += b * a;
  }
};
struct Differ {
  template <class Vector, class Sum>
  static void add(Vector& sum, Sum a, Vector const& b) {
    sum += b ^ a;
  }
};

template <class Output, class Sum>
Output finish(Sum sum) {
  if constexpr (std::is_same_v<Sum, int64_t>) {  // a saturating s32
    return sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : static_cast<Output>(sum);
  } else {
    return Output(sum);
  }
}

// InputA, InputB: the operands' types. Sum: what is added up. Output: the type of C and D.
template <int kM, int kK, class InputA, class InputB, class Sum, class Output, class Product = Multiply>
void execute(void* const* arguments) {
  using A = Packed<InputA>;
  using B = Packed<InputB>;
  static_assert(A::kBits == B::kBits);
  constexpr int kN = 8;
  constexpr int kRegisterBits = A::kBits == 64 ? 64 : 32;
  constexpr int kPerRegister = kRegisterBits / A::kBits;
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

  for (int lane = 0; lane < 32; ++lane) {
    auto const& mine = *static_cast<MmaArguments const*>(arguments[lane]);
    int const g = lane / 4, q = lane % 4;
    unsigned char registers_a[kRegistersA * kRegisterBits / 8];
    unsigned char registers_b[kRegistersB * kRegisterBits / 8];
    Output values_c[2 * kRowGroups];
    std::memcpy(registers_a, mine.a, sizeof(registers_a));
    std::memcpy(registers_b, mine.b, sizeof(registers_b));
    std::memcpy(values_c, mine.cd, sizeof(values_c));
    for (int j = 0; j < kRegistersA; ++j) {
      for (int e = 0; e < kPerRegister; ++e) {
        a[g + 8 * (j % kRowGroups)][(q + 4 * (j / kRowGroups)) * kPerRegister + e] =
            A::template get<Sum>(registers_a, j * kPerRegister + e);
      }
    }
    for (int j = 0; j < kRegistersB; ++j) {
      for (int e = 0; e < kPerRegister; ++e) {
        b.element[(q + 4 * j) * kPerRegister + e][g] = B::template get<Sum>(registers_b, j * kPerRegister + e);
      }
    }
    for (int v = 0; v < 2 * kRowGroups; ++v) c.element[g + 8 * (v / 2)][2 * q + v % 2] = convert<Sum>(values_c[v]);
  }

  for (int i = 0; i < kM; ++i) {
    if constexpr (std::is_same_v<Sum, double>) {  // products of doubles are not exact: fused
      for (int k = 0; k < kK; ++k) {
        for (int j = 0; j < kN; ++j) c.element[i][j] = __builtin_fma(a[i][k], b.element[k][j], c.element[i][j]);
      }
    } else {
      Quad left = c.row[i][0], right = c.row[i][1];
      for (int k = 0; k < kK; ++k) {
        Product::add(left, a[i][k], b.row[k][0]);
        Product::add(right, a[i][k], b.row[k][1]);
      }
      c.row[i][0] = left;
      c.row[i][1] = right;
    }
  }

  for (int lane = 0; lane < 32; ++lane) {
    Output values_d[2 * kRowGroups];
    int const g = lane / 4, q = lane % 4;
    for (int v = 0; v < 2 * kRowGroups; ++v) {
      values_d[v] = finish<Output>(c.element[g + 8 * (v / 2)][2 * q + v % 2]);
    }
    std::memcpy(static_cast<MmaArguments const*>(arguments[lane])->cd, values_d, sizeof(values_d));
  }
}

// m8n8k4 with f16: thread t = 0 to 7 of quad pair p is lane t % 4 + 4 * p + 16 * (t / 4).
//   K-major operand      row (of A; of B column) t, four values along k
//   M- or N-major one    k = t % 4, four rows from 4 * (t / 4) on
//   f16 C and D          row t, eight columns
//   f32 C and D          value v at row t % 2 + 4 * (t / 4) + (v & 2), column (t & 2) + v % 2 + (v & 4)
template <class Output>
void execute_quad_pairs(MmaOption option, void* const* arguments) {
  bool const a_k_major = option == MmaOption::tn || option == MmaOption::tt;
  bool const b_k_major = option == MmaOption::tn || option == MmaOption::nn;
  auto row_of = [](int t, int v) { return std::is_same_v<Output, half_t> ? t : t % 2 + 4 * (t / 4) + (v & 2); };
  auto column_of = [](int t, int v) { return std::is_same_v<Output, half_t> ? v : (t & 2) + v % 2 + (v & 4); };
  auto place = [](float (&matrix)[8][4], bool k_major, int t, void const* registers) {
    half_t values[4];
    std::memcpy(values, registers, sizeof(values));
    for (int v = 0; v < 4; ++v) {
      (k_major ? matrix[t][v] : matrix[v + 4 * (t / 4)][t % 4]) = static_cast<float>(values[v]);
    }
  };
  for (int p = 0; p < 4; ++p) {
    auto of_thread = [&](int t) -> MmaArguments const& {
      return *static_cast<MmaArguments const*>(arguments[t % 4 + 4 * p + 16 * (t / 4)]);
    };
    float a[8][4], b[8][4];  // (m,k), (n,k)
    for (int t = 0; t < 8; ++t) {
      place(a, a_k_major, t, of_thread(t).a);
      place(b, b_k_major, t, of_thread(t).b);
    }
    for (int t = 0; t < 8; ++t) {
      Output values[8];
      std::memcpy(values, of_thread(t).cd, sizeof(values));
      for (int v = 0; v < 8; ++v) {
        float sum = convert<float>(values[v]);
        for (int k = 0; k < 4; ++k) sum += a[row_of(t, v)][k] * b[column_of(t, v)][k];
        values[v] = Output(sum);
      }
      std::memcpy(of_thread(t).cd, values, sizeof(values));
    }
  }
}

// The three shapes of integers, k counted in bytes: 8x8x16, 16x8x16, 16x8x32.
template <class InputA, class InputB, class Sum, class Output, class Product = Multiply>
void execute_shape(MmaKind const& kind, void* const* arguments) {
  constexpr int kPerByte = 8 / Packed<InputA>::kBits;
  if (kind.m == 8) return execute<8, 16 * kPerByte, InputA, InputB, Sum, Output, Product>(arguments);
  if (kind.k == 16 * kPerByte) return execute<16, 16 * kPerByte, InputA, InputB, Sum, Output, Product>(arguments);
  return execute<16, 32 * kPerByte, InputA, InputB, Sum, Output, Product>(arguments);
}

template <class InputA, class InputB>
void execute_integer(MmaKind const& kind, void* const* arguments) {
  if (kind.option == MmaOption::saturate) {
    return execute_shape<InputA, InputB, int64_t, int32_t>(kind, arguments);
  }
  // Sums in unsigned arithmetic: they wrap around, and a signed product is the same modulo 2^32.
  return execute_shape<InputA, InputB, uint32_t, uint32_t>(kind, arguments);
}

template <class InputA, class InputB>
void execute_float8(MmaKind const& kind, void* const* arguments) {
  if (kind.cd == MmaType::f16) return execute<16, 32, InputA, InputB, float, half_t>(arguments);
  return execute<16, 32, InputA, InputB, float, float>(arguments);
}

void execute_f16(MmaKind const& kind, void* const* arguments) {
  if (kind.m == 8) {
    if (kind.cd == MmaType::f16) return execute_quad_pairs<half_t>(kind.option, arguments);
    return execute_quad_pairs<float>(kind.option, arguments);
  }
  if (kind.cd == MmaType::f16) {
    if (kind.k == 8) return execute<16, 8, half_t, half_t, float, half_t>(arguments);
    return execute<16, 16, half_t, half_t, float, half_t>(arguments);
  }
  if (kind.k == 8) return execute<16, 8, half_t, half_t, float, float>(arguments);
  return execute<16, 16, half_t, half_t, float, float>(arguments);
}

void execute_f64(MmaKind const& kind, void* const* arguments) {
  if (kind.m == 8) return execute<8, 4, double, double, double, double>(arguments);
  if (kind.k == 4) return execute<16, 4, double, double, double, double>(arguments);
  if (kind.k == 8) return execute<16, 8, double, double, double, double>(arguments);
  return execute<16, 16, double, double, double, double>(arguments);
}

void execute_kind(MmaKind const& kind, void* const* arguments) {
  switch (kind.a) {
    case MmaType::bf16:
      if (kind.k == 8) return execute<16, 8, bfloat16_t, bfloat16_t, float, float>(arguments);
      return execute<16, 16, bfloat16_t, bfloat16_t, float, float>(arguments);
    case MmaType::f16:
      return execute_f16(kind, arguments);
    case MmaType::tf32:
      if (kind.k == 4) return execute<16, 4, tfloat32_t, tfloat32_t, float, float>(arguments);
      return execute<16, 8, tfloat32_t, tfloat32_t, float, float>(arguments);
    case MmaType::f64:
      return execute_f64(kind, arguments);
    case MmaType::s8:
      if (kind.b == MmaType::s8) return execute_integer<int8_t, int8_t>(kind, arguments);
      return execute_integer<int8_t, uint8_t>(kind, arguments);
    case MmaType::u8:
      if (kind.b == MmaType::s8) return execute_integer<uint8_t, int8_t>(kind, arguments);
      return execute_integer<uint8_t, uint8_t>(kind, arguments);
    case MmaType::s4:
      if (kind.b == MmaType::s4) return execute_integer<int4b_t, int4b_t>(kind, arguments);
      return execute_integer<int4b_t, uint4b_t>(kind, arguments);
    case MmaType::u4:
      if (kind.b == MmaType::s4) return execute_integer<uint4b_t, int4b_t>(kind, arguments);
      return execute_integer<uint4b_t, uint4b_t>(kind, arguments);
    case MmaType::u1:
      // Of bits, the product is `and`.
      if (kind.option == MmaOption::and_popc) return execute_integer<uint1b_t, uint1b_t>(kind, arguments);
      return execute_shape<uint1b_t, uint1b_t, uint32_t, uint32_t, Differ>(kind, arguments);
    case MmaType::e4m3:
      if (kind.b == MmaType::e4m3) return execute_float8<float_e4m3_t, float_e4m3_t>(kind, arguments);
      return execute_float8<float_e4m3_t, float_e5m2_t>(kind, arguments);
    case MmaType::e5m2:
      if (kind.b == MmaType::e4m3) return execute_float8<float_e5m2_t, float_e4m3_t>(kind, arguments);
      return execute_float8<float_e5m2_t, float_e5m2_t>(kind, arguments);
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
