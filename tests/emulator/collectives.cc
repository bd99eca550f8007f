// collectives CASE [option=value ...]: one instruction family against a plain reference. Prints "ok" or what differs;
// "ldmatrix NAME" prints what each lane received, "banks ROW_BYTES SWIZZLE_BITS" the wavefronts of one ldmatrix.
#include <cmath>
#include <vector>

#include "moye/arch/barrier.h"
#include "moye/arch/copy.h"
#include "moye/arch/copy_sm75.h"
#include "moye/arch/copy_sm80.h"
#include "moye/arch/launch.h"
#include "moye/arch/mma.h"
#include "moye/arch/warp.h"
#include "program.h"

namespace {

using namespace moye;
using emu::GuardedBuffer;
using emu::Options;
using emu::Stream;

int failures = 0;

template <class T, class U>
void expect_equal(T const& found, U const& expected, char const* what, long where = 0) {
  if (found == static_cast<T>(expected)) return;
  if (failures++ < 5) {
    std::printf("%s[%ld]: %g, not %g\n", what, where, static_cast<double>(found), static_cast<double>(expected));
  }
}

void expect_ok(Status const& status) {
  if (status.ok()) return;
  ++failures;
  std::printf("%s\n", status.message.c_str());
}

// ------------------------------------------------------------------------------------------------------------ builtins

MOYE_KERNEL(64)
builtins_kernel(uint32_t* out) {
  Dim3 const t = thread_idx(), b = block_idx(), bd = block_dim(), gd = grid_dim();
  uint32_t const thread = t.x + bd.x * (t.y + bd.y * t.z), block = b.x + gd.x * (b.y + gd.y * b.z);
  uint32_t const aligned = smem_ptr_to_u32(smem_base()) % 1024 == 0;
  out[block * bd.x * bd.y * bd.z + thread] = (lane_id() + 32 * warp_id()) * 2 + aligned;
}

void builtins(Options const& options) {
  GuardedBuffer out(4 * 24 * 30);
  Stream stream{options, {{out.data(), out.size(), "out", true}}, {}};
  auto* const values = reinterpret_cast<uint32_t*>(out.data());
  expect_ok(launch_kernel(builtins_kernel, {.grid = {2, 3, 4}, .block = {5, 3, 2}, .smem_bytes = 64}, &stream, values));
  for (uint32_t i = 0; i < 24 * 30; ++i) expect_equal(values[i], i % 30 * 2 + 1, "builtins", i);
  expect_equal(stream.counters.ctas, 24, "ctas");
}

// ---------------------------------------------------------------------------------------------------------------- shfl

MOYE_KERNEL(64)
shfl_kernel(double* out) {
  int const thread = static_cast<int>(thread_idx().x), lane = thread % 32;
  int const value = 100 + thread;
  double const wide = 1000.5 + thread;
  int const idx = shfl_sync(kFullWarp, value, (lane * 7 + 3) % 32);
  int const down = shfl_down_sync(kFullWarp, value, 5);
  int const up = shfl_up_sync(kFullWarp, value, 9);
  int const bfly = shfl_xor_sync(kFullWarp, value, 21);
  double const wide_bfly = shfl_xor_sync(kFullWarp, wide, 1);
  double* const mine = out + 6 * thread;
  mine[0] = idx, mine[1] = down, mine[2] = up, mine[3] = bfly, mine[4] = wide_bfly;
  // Two halves of the warp, each on its own.
  mine[5] = lane < 16 ? shfl_sync(0x0000ffffu, value, 3) : shfl_sync(0xffff0000u, value, 20);
}

void shfl(Options const& options) {
  GuardedBuffer out(64 * 6 * 8);
  Stream stream{options, {{out.data(), out.size(), "out", true}}, {}};
  auto* const values = reinterpret_cast<double*>(out.data());
  expect_ok(launch_kernel(shfl_kernel, {.grid = {1, 1, 1}, .block = {64, 1, 1}, .smem_bytes = 0}, &stream, values));
  for (int thread = 0; thread < 64; ++thread) {
    int const lane = thread % 32, warp = thread - lane + 100;
    double const* const mine = values + 6 * thread;
    expect_equal(mine[0], warp + (lane * 7 + 3) % 32, "idx", thread);
    expect_equal(mine[1], warp + (lane + 5 < 32 ? lane + 5 : lane), "down", thread);
    expect_equal(mine[2], warp + (lane >= 9 ? lane - 9 : lane), "up", thread);
    expect_equal(mine[3], warp + (lane ^ 21), "xor", thread);
    expect_equal(mine[4], 900.5 + warp + (lane ^ 1), "xor of doubles", thread);
    expect_equal(mine[5], warp + (lane < 16 ? 3 : 20), "half a warp", thread);
  }
  expect_equal(stream.counters.shuffles, 2 * 7, "shuffles");
}

// ------------------------------------------------------------------------------------------------------------ barriers

// Warps 0 and 1 produce, 2 and 3 consume, four rounds, through two named barriers; then everybody meets.
MOYE_KERNEL(128)
barrier_kernel(uint32_t* out) {
  auto* const smem = reinterpret_cast<uint32_t*>(smem_base());
  uint32_t const thread = thread_idx().x;
  uint32_t sum = 0;
  for (uint32_t round = 0; round < 4; ++round) {
    if (thread < 64) {
      if (round > 0) named_barrier_sync(2, 128);  // empty
      smem[thread] = 1000 * round + thread;
      named_barrier_arrive(1, 128);  // full
    } else {
      named_barrier_sync(1, 128);
      sum += smem[127 - thread];
      if (round < 3) named_barrier_arrive(2, 128);
    }
  }
  sync_threads();
  smem[thread] = sum;
  sync_threads();
  out[thread] = smem[thread ^ 64];
}

void barriers(Options const& options) {
  GuardedBuffer out(128 * 4);
  Stream stream{options, {{out.data(), out.size(), "out", true}}, {}};
  auto* const values = reinterpret_cast<uint32_t*>(out.data());
  expect_ok(
      launch_kernel(barrier_kernel, {.grid = {1, 1, 1}, .block = {128, 1, 1}, .smem_bytes = 512}, &stream, values));
  for (uint32_t thread = 0; thread < 128; ++thread) {
    expect_equal(values[thread], thread < 64 ? 6000 + 4 * (63 - thread) : 0, "barriers", thread);
  }
  expect_equal(stream.counters.barriers, 4 + 3 + 2, "barriers");
}

MOYE_KERNEL(64)
sync_warp_kernel(uint32_t* out) {
  auto* const smem = reinterpret_cast<uint32_t*>(smem_base());
  uint32_t const thread = thread_idx().x;
  smem[thread] = 3 * thread;
  sync_warp();
  uint32_t const neighbour = smem[thread ^ 31];
  sync_warp();
  smem[thread] = neighbour;
  uint32_t const half = thread % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
  sync_warp(half);
  out[thread] = smem[thread ^ 1];
}

void sync_warps(Options const& options) {
  GuardedBuffer out(64 * 4);
  Stream stream{options, {{out.data(), out.size(), "out", true}}, {}};
  auto* const values = reinterpret_cast<uint32_t*>(out.data());
  expect_ok(
      launch_kernel(sync_warp_kernel, {.grid = {1, 1, 1}, .block = {64, 1, 1}, .smem_bytes = 256}, &stream, values));
  for (uint32_t thread = 0; thread < 64; ++thread) expect_equal(values[thread], 3 * (thread ^ 30), "sync_warp", thread);
  expect_equal(stream.counters.warp_syncs, 2 * 4, "warp_syncs");
}

// ------------------------------------------------------------------------------------------------------------ cp.async

template <class T, template <class, class> class Op>
MOYE_KERNEL(32)
cp_async_kernel(unsigned char const* in, unsigned char* out) {
  uint32_t const thread = thread_idx().x;
  if (thread <= sizeof(T)) {
    auto const& src = *reinterpret_cast<T const*>(in + thread * sizeof(T));
    auto& dst = *reinterpret_cast<T*>(smem_base() + thread * sizeof(T));
    if (thread == sizeof(T)) {
      Op<T, T>::copy(src, dst);
    } else {
      Op<T, T>::copy_zfill(src, dst, static_cast<int>(thread));
    }
  }
  cp_async_commit_group();
  cp_async_wait_group<0>();
  if (thread > sizeof(T)) return;
  for (uint32_t i = thread * sizeof(T); i < (thread + 1) * sizeof(T); ++i) out[i] = smem_base()[i];
}

template <class T, template <class, class> class Op>
void cp_async_of_size(Options const& options) {
  size_t const bytes = (sizeof(T) + 1) * sizeof(T);
  // The source of thread 0, which is not read at all, lies before the declared array.
  GuardedBuffer in(bytes), out(bytes);
  for (size_t i = 0; i < bytes; ++i) in.data()[i] = static_cast<unsigned char>(i + 1);
  Stream stream{
      options, {{in.data() + sizeof(T), bytes - sizeof(T), "in", false}, {out.data(), bytes, "out", true}}, {}};
  expect_ok(launch_kernel(cp_async_kernel<T, Op>, {.grid = {1, 1, 1}, .block = {32, 1, 1}, .smem_bytes = (int)bytes},
                          &stream, static_cast<unsigned char const*>(in.data()), out.data()));
  for (size_t i = 0; i < bytes; ++i) {
    expect_equal(out.data()[i], i % sizeof(T) < i / sizeof(T) ? i + 1 : 0, "cp.async", static_cast<long>(i));
  }
  expect_equal(stream.counters.cp_async, sizeof(T) + 1, "cp_async");
  expect_equal(stream.counters.cp_async_bytes, sizeof(T) * (sizeof(T) + 1) / 2, "cp_async_bytes");
}

// Four groups in flight; each wait makes one more visible. wait_all also takes what was not committed.
MOYE_KERNEL(32)
groups_kernel(uint32_t const* in, uint32_t* out) {
  using Copy = SM80_CP_ASYNC_CACHEALWAYS<uint32_t>;
  auto* const smem = reinterpret_cast<uint32_t*>(smem_base());
  uint32_t const thread = thread_idx().x;
  for (uint32_t group = 0; group < 4; ++group) {
    Copy::copy(in[32 * group + thread], smem[32 * group + thread]);
    cp_async_commit_group();
  }
  cp_async_wait_group<3>();
  out[thread] = smem[thread];
  cp_async_wait_group<1>();
  out[32 + thread] = smem[32 + thread];
  out[64 + thread] = smem[64 + thread];
  Copy::copy(in[128 + thread], smem[128 + thread]);
  cp_async_wait_all();
  out[96 + thread] = smem[96 + thread];
  out[128 + thread] = smem[128 + thread];
}

void groups(Options const& options) {
  GuardedBuffer in(160 * 4), out(160 * 4);
  auto* const from = reinterpret_cast<uint32_t*>(in.data());
  auto* const to = reinterpret_cast<uint32_t*>(out.data());
  for (uint32_t i = 0; i < 160; ++i) from[i] = 7 * i;
  Stream stream{options, {{from, 640, "in", false}, {to, 640, "out", true}}, {}};
  expect_ok(
      launch_kernel(groups_kernel, {.grid = {1, 1, 1}, .block = {32, 1, 1}, .smem_bytes = 640}, &stream, from, to));
  for (uint32_t i = 0; i < 160; ++i) expect_equal(to[i], 7 * i, "groups", i);
}

// ------------------------------------------------------------------------------------------------------------ ldmatrix

template <class Op, int kRegisters>
MOYE_KERNEL(32)
ldmatrix_kernel(uint16_t* out) {
  // Row r of matrix m is at a place of its own, so that a wrong row shows. Its elements are 64 * m + 8 * r + column.
  auto* const smem = reinterpret_cast<uint16_t*>(smem_base());
  auto place = [](uint32_t row) { return (row * 5 + 3) % 32 * 8; };
  uint32_t const lane = lane_id();
  for (uint32_t i = 0; i < 8; ++i) smem[place(lane) + i] = static_cast<uint16_t>(8 * lane + i);
  sync_warp();
  auto const& row = *reinterpret_cast<uint128_t const*>(smem + place(lane % (8 * kRegisters)));
  uint32_t r[4];
  if constexpr (kRegisters == 1) Op::copy(row, r[0]);
  if constexpr (kRegisters == 2) Op::copy(row, r[0], r[1]);
  if constexpr (kRegisters == 4) Op::copy(row, r[0], r[1], r[2], r[3]);
  for (int i = 0; i < kRegisters; ++i) {
    out[(lane * kRegisters + i) * 2] = static_cast<uint16_t>(r[i]);
    out[(lane * kRegisters + i) * 2 + 1] = static_cast<uint16_t>(r[i] >> 16);
  }
}

template <class Op, int kRegisters>
void print_ldmatrix() {
  GuardedBuffer out(32 * kRegisters * 4);
  auto* const values = reinterpret_cast<uint16_t*>(out.data());
  Stream stream;
  stream.memory = {{out.data(), out.size(), "out", true}};
  expect_ok(launch_kernel(ldmatrix_kernel<Op, kRegisters>, {.grid = {1, 1, 1}, .block = {32, 1, 1}, .smem_bytes = 512},
                          &stream, values));
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 2 * kRegisters; ++i) std::printf("%d ", values[lane * 2 * kRegisters + i]);
    std::printf("\n");
  }
}

void ldmatrix(std::string const& name) {
#define MOYE_LDMATRIX(op, registers) \
  if (name == #op) return print_ldmatrix<op, registers>()
  MOYE_LDMATRIX(SM75_U32x1_LDSM_N, 1);
  MOYE_LDMATRIX(SM75_U32x2_LDSM_N, 2);
  MOYE_LDMATRIX(SM75_U32x4_LDSM_N, 4);
  MOYE_LDMATRIX(SM75_U16x2_LDSM_T, 1);
  MOYE_LDMATRIX(SM75_U16x4_LDSM_T, 2);
  MOYE_LDMATRIX(SM75_U16x8_LDSM_T, 4);
#undef MOYE_LDMATRIX
  ++failures;
}

// One x4 over 16 rows and two 16-byte columns, as an A operand of m16n8k16 is read.
MOYE_KERNEL(32)
banks_kernel(int row_bytes, int swizzle_bits) {
  int const lane = static_cast<int>(lane_id()), row = lane % 16, chunk = lane / 16;
  int const offset = row * row_bytes + chunk * 16;
  int const swizzled = offset ^ (offset >> 3 & ((1 << swizzle_bits) - 1) << 4);
  uint32_t r[4];
  SM75_U32x4_LDSM_N::copy(*reinterpret_cast<uint128_t const*>(smem_base() + swizzled), r[0], r[1], r[2], r[3]);
}

void banks(int row_bytes, int swizzle_bits) {
  Stream stream;
  expect_ok(launch_kernel(banks_kernel, {.grid = {1, 1, 1}, .block = {32, 1, 1}, .smem_bytes = 32 * row_bytes}, &stream,
                          row_bytes, swizzle_bits));
  std::printf("%d of %d\n", static_cast<int>(stream.counters.ldmatrix_wavefronts),
              static_cast<int>(stream.counters.ldmatrix_ideal_wavefronts));
}

// --------------------------------------------------------------------------------------------------------- conversions

// The nearest 16-bit float of the given format by search in the order of its bits; ties to even.
template <class T>
uint16_t nearest(float value, uint16_t infinity) {
  if (value != value) return 0x7fff;
  uint16_t const sign = std::signbit(value) ? 0x8000 : 0;
  double const magnitude = std::fabs(static_cast<double>(value));
  uint16_t low = 0, high = infinity;  // low <= magnitude < high, but for the largest
  while (high - low > 1) {
    auto const middle = static_cast<uint16_t>((low + high) / 2);
    (static_cast<double>(static_cast<float>(T::bitcast(middle))) <= magnitude ? low : high) = middle;
  }
  if (std::isinf(value)) return sign | infinity;
  double const below = static_cast<float>(T::bitcast(low));
  // Where infinity is next, the limit lies where the next number would be.
  double const step = below - static_cast<float>(T::bitcast(low - (high == infinity)));
  double const above = high == infinity ? below + step : static_cast<float>(T::bitcast(high));
  double const middle = (below + above) / 2;
  bool const up = magnitude > middle || (magnitude == middle && low % 2 == 1);
  return sign | (up ? high : low);
}

template <class T>
void conversions_of(uint16_t infinity) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    T const value = T::bitcast(static_cast<uint16_t>(bits));
    auto const as_float = static_cast<float>(value);
    bool const nan = (bits & 0x7fff) > infinity;
    expect_equal(T(as_float).storage, nan ? 0x7fff : bits, "round trip", bits);
    if (nan || (bits & 0x7fff) == infinity) continue;
    // This number, the next one, the middle between them and the floats around it.
    T const next = T::bitcast(static_cast<uint16_t>(bits + 1));
    float const other = static_cast<float>(next);
    if (other != other || std::isinf(other)) continue;
    auto const middle = static_cast<float>((static_cast<double>(as_float) + other) / 2);
    for (float x : {middle, std::nextafter(middle, as_float), std::nextafter(middle, other)}) {
      expect_equal(T(x).storage, nearest<T>(x, infinity), "nearest", bits);
    }
  }
  for (float x : {65504.0f, 65519.0f, 65519.996f, 65520.0f, 65536.0f, 3.3895314e38f, 3.39e38f, 3.4e38f, 1e-8f, 2.9e-8f,
                  3e-8f, 1e-45f, -1e-45f, 0.0f, -0.0f}) {
    expect_equal(T(x).storage, nearest<T>(x, infinity), "limit");
  }
}

void conversions() {
  conversions_of<half_t>(0x7c00);
  conversions_of<bfloat16_t>(0x7f80);
  float const a = 1.0f + 0x1p-12f, b = 1.0f - 0x1p-12f, c = -1.0f;
  float d;
  UniversalFMA<float>::fma(d, a, b, c);
  expect_equal(d, -0x1p-24f, "fused multiply-add");
  double const x = 1.0 + 0x1p-30, y = 1.0 - 0x1p-30, z = -1.0;
  double w;
  UniversalFMA<double>::fma(w, x, y, z);
  expect_equal(w, -0x1p-60, "fused multiply-add of doubles");
  uint128_t const from{1, 2, 3, 4};
  uint128_t to{};
  UniversalCopy<uint128_t>::copy(from, to);
  expect_equal(to.w, 4, "UniversalCopy");
}

// ------------------------------------------------------------------------------------------------------- GuardedBuffer

void guarded_buffers() {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{14}, size_t{16}, size_t{4095}, size_t{4096}, size_t{100000}}) {
    for (size_t alignment : {1, 2, 16, 64}) {
      GuardedBuffer end(bytes, alignment), start(bytes, alignment, GuardedBuffer::Flush::start);
      expect_equal(reinterpret_cast<uintptr_t>(end.data()) % alignment, 0, "alignment");
      expect_equal(reinterpret_cast<uintptr_t>(start.data()) % 4096, 0, "flush start");
      size_t const slack = (4096 - (reinterpret_cast<uintptr_t>(end.data()) + bytes) % 4096) % 4096;
      expect_equal(slack < alignment, true, "flush end");
      for (size_t i = 0; i < bytes; ++i) expect_equal(end.data()[i], 0xff, "content");
      std::memset(end.data(), 0, bytes);
      expect_equal(end.damage().empty(), true, "no damage");
      end.data()[-1] = 0;
      expect_equal(end.damage().find("offset -1 ") != std::string::npos, true, "damage before");
      start.data()[bytes] = 0;
      expect_equal(start.damage().find("offset " + std::to_string(bytes) + " ") != std::string::npos, true,
                   "damage behind");
      GuardedBuffer const moved = std::move(end);
      expect_equal(moved.size(), bytes, "moved");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::string const name = argv[1];
  if (name == "ldmatrix") {
    ldmatrix(argv[2]);
    return failures != 0;
  }
  if (name == "banks") {
    banks(std::atoi(argv[2]), std::atoi(argv[3]));
    return failures != 0;
  }
  Options const options = options_from(argc, argv, 2);
  if (name == "builtins") {
    builtins(options);
  } else if (name == "shfl") {
    shfl(options);
  } else if (name == "barriers") {
    barriers(options);
  } else if (name == "sync_warp") {
    sync_warps(options);
  } else if (name == "cp_async") {
    cp_async_of_size<uint32_t, SM80_CP_ASYNC_CACHEALWAYS>(options);
    cp_async_of_size<uint64_t, SM80_CP_ASYNC_CACHEALWAYS>(options);
    cp_async_of_size<uint128_t, SM80_CP_ASYNC_CACHEALWAYS>(options);
    cp_async_of_size<uint128_t, SM80_CP_ASYNC_CACHEGLOBAL>(options);
  } else if (name == "groups") {
    groups(options);
  } else if (name == "conversions") {
    conversions();
  } else if (name == "guarded_buffers") {
    guarded_buffers();
  } else {
    return 2;
  }
  if (failures == 0) std::printf("ok\n");
  return failures != 0;
}
