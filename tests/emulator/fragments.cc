// fragments TABLES: every mma.sync against the tables of a text file, which say what each register holds.
//   the file: per operation "NAME m n k matrices", then for A, B and C in turn, for each of 32 lanes, for each value,
//   "row column" (A: m k, B: n k, C: m n). Random small integers are laid out by the tables, multiplied by the
//   operation, read back by the table of C, and compared with the sum of products. Prints "NAME ok" or "NAME N wrong"
//   per operation. Of several matrices, those of quad pairs, the rows of all follow each other.
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include "moye/arch/launch.h"
#include "moye/arch/mma_sm70.h"
#include "moye/arch/mma_sm75.h"
#include "moye/arch/mma_sm80.h"
#include "moye/arch/mma_sm89.h"
#include "moye/arch/mma_sm90_f64.h"
#include "program.h"

namespace {

using namespace moye;

struct Position {
  int row, column;
};

struct Table {
  int m, n, k, matrices;
  std::vector<Position> a, b, c;  // [lane * values + value]
};

template <class T>
std::vector<Position> read_positions(std::ifstream& file) {
  std::vector<Position> positions(32 * T::value);
  for (Position& p : positions) file >> p.row >> p.column;
  return positions;
}

template <class Op, size_t... D, size_t... A, size_t... B, size_t... C>
void call(typename Op::DRegisters& d, typename Op::ARegisters const& a, typename Op::BRegisters const& b,
          typename Op::CRegisters const& c, std::index_sequence<D...>, std::index_sequence<A...>,
          std::index_sequence<B...>, std::index_sequence<C...>) {
  Op::fma(d[D]..., a[A]..., b[B]..., c[C]...);
}

template <class Registers>
using Indices = std::make_index_sequence<std::extent_v<Registers>>;

// One warp: each lane takes its registers of A, B and C from global memory and puts those of D there.
template <class Op>
MOYE_KERNEL(32)
mma_kernel(typename Op::ARegisters const* a, typename Op::BRegisters const* b, typename Op::CRegisters const* c,
           typename Op::DRegisters* d) {
  uint32_t const lane = thread_idx().x;
  typename Op::DRegisters mine;
  call<Op>(mine, a[lane], b[lane], c[lane], Indices<typename Op::DRegisters>{}, Indices<typename Op::ARegisters>{},
           Indices<typename Op::BRegisters>{}, Indices<typename Op::CRegisters>{});
  for (size_t i = 0; i < std::extent_v<typename Op::DRegisters>; ++i) d[lane][i] = mine[i];
}

template <class T>
constexpr int kBits = 8 * sizeof(T);
template <>
constexpr int kBits<int4b_t> = 4;
template <>
constexpr int kBits<uint4b_t> = 4;
template <>
constexpr int kBits<uint1b_t> = 1;

template <class T>
constexpr bool kUnsigned = std::is_same_v<T, uint8_t> || std::is_same_v<T, uint4b_t>;

template <class T>
uint64_t bits_of(int value) {
  if constexpr (kBits<T> < 8) {
    return static_cast<uint64_t>(value) & ((1u << kBits<T>)-1u);
  } else {
    T converted;
    if constexpr (std::is_arithmetic_v<T>) {
      converted = static_cast<T>(value);
    } else {
      converted = T(static_cast<float>(value));
    }
    uint64_t bits = 0;
    std::memcpy(&bits, &converted, sizeof(T));
    return bits;
  }
}

template <class T>
int to_int(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<int>(value);
  } else {
    return static_cast<int>(static_cast<float>(value));
  }
}

// Lays out matrix[row][column] in registers, value after value; those smaller than a byte in registers full of zeros.
template <class T>
void pack(std::vector<int> const& matrix, int columns, std::vector<Position> const& positions, void* registers) {
  auto* const bytes = static_cast<unsigned char*>(registers);
  for (size_t i = 0; i < positions.size(); ++i) {
    uint64_t const bits = bits_of<T>(matrix[positions[i].row * columns + positions[i].column]);
    if constexpr (kBits<T> < 8) {
      bytes[i * kBits<T> / 8] |= static_cast<unsigned char>(bits << (i * kBits<T> % 8));
    } else {
      std::memcpy(bytes + i * sizeof(T), &bits, sizeof(T));
    }
  }
}

template <class Op, class TA, class TB, class TC>
void test(char const* name, std::ifstream& file) {
  std::string title;
  Table table;
  file >> title >> table.m >> table.n >> table.k >> table.matrices;
  if (title != name) {
    std::printf("%s found where %s was expected\n", title.c_str(), name);
    std::exit(1);
  }
  constexpr int kValuesA = sizeof(typename Op::ARegisters) * 8 / kBits<TA>;
  constexpr int kValuesB = sizeof(typename Op::BRegisters) * 8 / kBits<TB>;
  constexpr int kValuesC = sizeof(typename Op::CRegisters) * 8 / kBits<TC>;
  table.a = read_positions<std::integral_constant<int, kValuesA>>(file);
  table.b = read_positions<std::integral_constant<int, kValuesB>>(file);
  table.c = read_positions<std::integral_constant<int, kValuesC>>(file);
  int const m = table.m, n = table.n, k = table.k;

  unsigned seed = 7;
  auto random_matrix = [&seed, &table](int size, int different, int least) {
    std::vector<int> matrix(size * table.matrices);
    for (int& x : matrix) {
      seed = seed * 1664525u + 1013904223u;
      x = static_cast<int>(seed >> 24) % different + least;
    }
    return matrix;
  };
  bool const is_xor = std::string_view(name).ends_with("XORPOPC");
  std::vector<int> const a = random_matrix(m * k, kBits<TA> == 1 ? 2 : 9, kUnsigned<TA> || kBits<TA> == 1 ? 0 : -4);
  std::vector<int> const b = random_matrix(n * k, kBits<TB> == 1 ? 2 : 9, kUnsigned<TB> || kBits<TB> == 1 ? 0 : -4);
  std::vector<int> const c = random_matrix(m * n, 9, -4);

  emu::GuardedBuffer ra(32 * sizeof(typename Op::ARegisters)), rb(32 * sizeof(typename Op::BRegisters));
  emu::GuardedBuffer rc(32 * sizeof(typename Op::CRegisters)), rd(32 * sizeof(typename Op::DRegisters));
  std::memset(ra.data(), 0, ra.size());
  std::memset(rb.data(), 0, rb.size());
  pack<TA>(a, k, table.a, ra.data());
  pack<TB>(b, k, table.b, rb.data());
  pack<TC>(c, n, table.c, rc.data());
  emu::Stream stream;
  stream.memory = {{ra.data(), ra.size(), "A", false},
                   {rb.data(), rb.size(), "B", false},
                   {rc.data(), rc.size(), "C", false},
                   {rd.data(), rd.size(), "D", true}};
  Status const status = launch_kernel(mma_kernel<Op>, {.grid = {1, 1, 1}, .block = {32, 1, 1}, .smem_bytes = 0},
                                      &stream, reinterpret_cast<typename Op::ARegisters const*>(ra.data()),
                                      reinterpret_cast<typename Op::BRegisters const*>(rb.data()),
                                      reinterpret_cast<typename Op::CRegisters const*>(rc.data()),
                                      reinterpret_cast<typename Op::DRegisters*>(rd.data()));
  if (!status.ok()) {
    std::printf("%s %s\n", name, status.message.c_str());
    return;
  }
  int wrong = 0;
  for (size_t i = 0; i < table.c.size(); ++i) {
    auto const [row, column] = table.c[i];
    int sum = c[row * n + column];
    int const row_b = row / m * n + column;  // of the same matrix
    for (int x = 0; x < k; ++x) sum += is_xor ? a[row * k + x] ^ b[row_b * k + x] : a[row * k + x] * b[row_b * k + x];
    TC value;
    std::memcpy(&value, rd.data() + i * sizeof(TC), sizeof(TC));
    wrong += to_int(value) != sum;
  }
  if (wrong == 0) {
    std::printf("%s ok\n", name);
  } else {
    std::printf("%s %d wrong\n", name, wrong);
  }
}

// tf32 operands carry 13 bits the hardware does not read; an s32 sum wraps around, or stops at either end; an f16 sum
// is rounded once, after fp8 products too.
MOYE_KERNEL(32)
edge_kernel(float* tf32, uint32_t* s32, uint32_t* f16, uint32_t* saturated) {
  uint32_t const lane = thread_idx().x;
  float d[4], zero = 0;
  uint32_t const a = 0x3f801fffu, b = 0x40001fffu;  // 1 and 2, with the low bits set
  SM80_16x8x4_F32TF32TF32F32_TN::fma(d[0], d[1], d[2], d[3], a, a, b, zero, zero, zero, zero);
  if (lane == 0) *tf32 = d[0];
  uint32_t i0, i1;
  uint32_t const most = 0x7fffffffu, ones = 0x01010101u;
  SM80_8x8x16_S32S8S8S32_TN::fma(i0, i1, ones, ones, most, most);
  if (lane == 0) *s32 = i0;
  uint32_t h0, h1;
  uint32_t const one = 0x3c003c00u, big = 0x68006800u;  // 1 and 2048, whose neighbours are 1 and 2 away
  SM80_16x8x8_F16F16F16F16_TN::fma(h0, h1, one, one, one, big, big);
  if (lane == 0) *f16 = h0;
  uint32_t const least = 0x80000000u, minus_ones = 0xffffffffu;
  uint32_t up, up_too, down, down_too;
  SM80_8x8x16_S32S8S8S32_TN_SATURATE::fma(up, up_too, ones, ones, most - 15, most);              // by 1, by 16 too much
  SM80_8x8x16_S32S8S8S32_TN_SATURATE::fma(down, down_too, ones, minus_ones, least + 16, least);  // exact; 16 too much
  uint32_t e0, e1;
  uint32_t const e4m3_ones = 0x38383838u, e5m2_halves = 0x38383838u;  // 1 and 0.5
  SM89_16x8x32_F16E4M3E5M2F16_TN::fma(e0, e1, e4m3_ones, e4m3_ones, e4m3_ones, e4m3_ones, e5m2_halves, e5m2_halves, big,
                                      big);
  if (lane == 0) saturated[0] = up, saturated[1] = up_too, saturated[2] = down, saturated[3] = down_too;
  if (lane == 0) saturated[4] = e0;
}

int edges() {
  emu::GuardedBuffer tf32(4), s32(4), f16(4), saturated(20);
  emu::Stream stream;
  stream.memory = {{tf32.data(), 4, "tf32", true},
                   {s32.data(), 4, "s32", true},
                   {f16.data(), 4, "f16", true},
                   {saturated.data(), 20, "saturated", true}};
  Status const status =
      launch_kernel(edge_kernel, {.grid = {1, 1, 1}, .block = {32, 1, 1}, .smem_bytes = 0}, &stream,
                    reinterpret_cast<float*>(tf32.data()), reinterpret_cast<uint32_t*>(s32.data()),
                    reinterpret_cast<uint32_t*>(f16.data()), reinterpret_cast<uint32_t*>(saturated.data()));
  if (!status.ok()) {
    std::printf("edges %s\n", status.message.c_str());
    return 0;
  }
  float x;
  uint32_t y, z, ends[5];
  std::memcpy(&x, tf32.data(), 4);
  std::memcpy(&y, s32.data(), 4);
  std::memcpy(&z, f16.data(), 4);
  std::memcpy(ends, saturated.data(), 20);
  // 4 * (1 * 2); 2^31 - 1 + 16; 2048 + 8 in f16; 2048 + 32 * 0.5 in f16
  bool const ok = x == 8.0f && y == 0x8000000fu && z == 0x68046804u && ends[0] == 0x7fffffffu &&
                  ends[1] == 0x7fffffffu && ends[2] == 0x80000000u && ends[3] == 0x80000000u && ends[4] == 0x68086808u;
  if (ok) {
    std::printf("edges ok\n");
  } else {
    std::printf("edges tf32 %g s32 %#x f16 %#x saturated %#x %#x %#x %#x fp8 %#x\n", x, y, z, ends[0], ends[1], ends[2],
                ends[3], ends[4]);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream file(argv[1]);
#define MOYE_MMA_OP(op, a, b, c, arch) test<op, a, b, c>(#op, file);
#include "mma_ops.inc"
#undef MOYE_MMA_OP
  return edges();
}
