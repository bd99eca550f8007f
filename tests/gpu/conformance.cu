// One tiny kernel per instruction wrapper of moye/arch: the emulator is our reading of the PTX manual, and these
// programs hold it against the hardware. nvcc compiles this file for the GPU, a host compiler for the emulator; the
// outputs of the two must be equal bit by bit, so operands are small integers wherever an instruction may round. Over
// 600 lines: one case for each wrapper.
//
//   conformance --list      prints the manifest: case, wrapper, PTX instruction, bytes of output, separated by tabs
//   conformance DIRECTORY   runs every case and writes its output to DIRECTORY/<case>.bin
//
// Inputs follow from the case's name alone: see `element` here and in test_conformance.py, which computes every output
// again from the manual's fragment layouts.

#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <type_traits>
#include <utility>

#include "machine.h"
#include "moye/arch/barrier.h"
#include "moye/arch/builtin.h"
#include "moye/arch/convert.h"
#include "moye/arch/copy.h"
#include "moye/arch/copy_sm75.h"
#include "moye/arch/copy_sm80.h"
#include "moye/arch/mma.h"
#include "moye/arch/mma_sm61.h"
#include "moye/arch/mma_sm70.h"
#include "moye/arch/mma_sm75.h"
#include "moye/arch/mma_sm80.h"
#include "moye/arch/mma_sm89.h"
#include "moye/arch/mma_sm90_f64.h"
#include "moye/arch/store.h"
#include "moye/arch/types.h"
#include "moye/arch/warp.h"

namespace moye::conformance {

// ---- Kernels. All take words in, words out.
// ----------------------------------------------------------------------------

template <class T, int N>
MOYE_DEVICE void load_registers(T (&registers)[N], unsigned char const*& in) {
  T const* mine = reinterpret_cast<T const*>(in) + lane_id() * N;
  for (int i = 0; i < N; ++i) registers[i] = mine[i];
  in += 32 * N * sizeof(T);
}

template <class Op, class D, class A, class B, class C, size_t... kD, size_t... kA, size_t... kB, size_t... kC>
MOYE_DEVICE void call_fma(D& d, A const& a, B const& b, C const& c, std::index_sequence<kD...>,
                          std::index_sequence<kA...>, std::index_sequence<kB...>, std::index_sequence<kC...>) {
  Op::fma(d[kD]..., a[kA]..., b[kB]..., c[kC]...);
}

template <class Registers>
using Indices = std::make_index_sequence<std::extent_v<Registers>>;

/// The first architecture that has the op, 80 for sm_80; 0: all have it.
template <class Op>
constexpr int kFirstArch = 0;
template <class Op>
  requires requires { Op::kMinArch; }
constexpr int kFirstArch<Op> = Op::kMinArch;

/// in: the A registers of 32 lanes, then B's, then C's. out: D's.
template <class Op>
MOYE_KERNEL(32)
mma_kernel(uint32_t const* in, uint32_t* out) {
  using D = typename Op::DRegisters;
  using A = typename Op::ARegisters;
  using B = typename Op::BRegisters;
  using C = typename Op::CRegisters;
  D d;
  A a;
  B b;
  C c;
  auto const* bytes = reinterpret_cast<unsigned char const*>(in);
  load_registers(a, bytes);
  load_registers(b, bytes);
  load_registers(c, bytes);
  if constexpr (is_target_arch<kFirstArch<Op>>) {
    call_fma<Op>(d, a, b, c, Indices<D>{}, Indices<A>{}, Indices<B>{}, Indices<C>{});
  } else {
    return;  // not launched either
  }
  auto* mine = reinterpret_cast<std::remove_extent_t<D>*>(out) + lane_id() * std::extent_v<D>;
  for (size_t i = 0; i < std::extent_v<D>; ++i) mine[i] = d[i];
}

template <class Op, size_t... kI>
MOYE_DEVICE void call_copy(uint128_t const& row, typename Op::DRegisters& registers, std::index_sequence<kI...>) {
  Op::copy(row, registers[kI]...);
}

/// in: 64 rows of 16 bytes, then the row whose address each lane passes. out: the registers.
template <class Op>
MOYE_KERNEL(32)
ldmatrix_kernel(uint32_t const* in, uint32_t* out) {
  auto* words = reinterpret_cast<uint32_t*>(smem_base());
  uint32_t const lane = lane_id();
  for (int i = 0; i < 8; ++i) words[lane + 32 * i] = in[lane + 32 * i];
  sync_threads();
  typename Op::DRegisters registers;
  auto const* rows = reinterpret_cast<uint128_t const*>(smem_base());
  call_copy<Op>(rows[in[256 + lane]], registers, Indices<typename Op::DRegisters>{});
  constexpr int kCount = std::extent_v<typename Op::DRegisters>;
  for (int i = 0; i < kCount; ++i) out[lane * kCount + i] = registers[i];
}

/// in: one T for each of 64 threads. Thread t copies its own to place 63 - t, past a fill of 0xa5 bytes. out: the
/// places.
template <class Op, bool kZfill>
MOYE_KERNEL(64)
cp_async_kernel(uint32_t const* in, uint32_t* out) {
  using T = std::remove_extent_t<typename Op::SRegisters>;
  constexpr int kWords = sizeof(T) / 4;
  auto* words = reinterpret_cast<uint32_t*>(smem_base());
  int const thread = static_cast<int>(thread_idx().x);
  for (int i = 0; i < kWords; ++i) words[thread + 64 * i] = 0xa5a5a5a5u;
  sync_threads();
  T const& source = reinterpret_cast<T const*>(in)[thread];
  T& destination = reinterpret_cast<T*>(smem_base())[63 - thread];
  if constexpr (kZfill) {
    Op::copy_zfill(source, destination, thread % static_cast<int>(sizeof(T) + 1));
  } else {
    Op::copy(source, destination);
  }
  cp_async_commit_group();
  cp_async_wait_group<0>();
  sync_threads();
  for (int i = 0; i < kWords; ++i) out[thread + 64 * i] = words[thread + 64 * i];
}

/// in: three words a thread, copied in three groups; each is read as soon as it may be. out: as in.
MOYE_KERNEL(64)
cp_async_groups_kernel(uint32_t const* in, uint32_t* out) {
  using Op = SM80_CP_ASYNC_CACHEALWAYS<uint32_t>;
  auto* words = reinterpret_cast<uint32_t*>(smem_base());
  uint32_t const thread = thread_idx().x;
  for (int group = 0; group < 3; ++group) {
    Op::copy(in[thread + 64 * group], words[thread + 64 * group]);
    if (group < 2) cp_async_commit_group();  // the third stays uncommitted: only wait_all waits for it
  }
  cp_async_wait_group<1>();
  sync_threads();
  out[thread] = words[63 - thread];
  cp_async_wait_group<0>();
  sync_threads();
  out[thread + 64] = words[64 + 63 - thread];
  cp_async_wait_all();
  sync_threads();
  out[thread + 128] = words[128 + 63 - thread];
}

enum class Shuffle { idx, down, up, xor_ };

/// in: 32 values of T, then 32 lanes. out: of idx, one round with those lanes; of the others a round for each of 0
/// to 31.
template <Shuffle kShuffle, class T>
MOYE_KERNEL(32)
shfl_kernel(uint32_t const* in, uint32_t* out) {
  uint32_t const lane = lane_id();
  T const value = reinterpret_cast<T const*>(in)[lane];
  auto* results = reinterpret_cast<T*>(out);
  if constexpr (kShuffle == Shuffle::idx) {
    results[lane] = shfl_sync(kFullWarp, value, static_cast<int>(in[32 * sizeof(T) / 4 + lane]));
  } else {
    for (int delta = 0; delta < 32; ++delta) {
      T result;
      if constexpr (kShuffle == Shuffle::down) result = shfl_down_sync(kFullWarp, value, delta);
      if constexpr (kShuffle == Shuffle::up) result = shfl_up_sync(kFullWarp, value, delta);
      if constexpr (kShuffle == Shuffle::xor_) result = shfl_xor_sync(kFullWarp, value, delta);
      results[32 * delta + lane] = result;
    }
  }
}

/// The two halves of a warp shuffle apart from each other, each under its own mask.
MOYE_KERNEL(32)
shfl_half_kernel(uint32_t const* in, uint32_t* out) {
  uint32_t const lane = lane_id();
  if (lane < 16) {
    out[lane] = shfl_xor_sync(0x0000ffffu, in[lane], 5);
  } else {
    out[lane] = shfl_xor_sync(0xffff0000u, in[lane], 10);
  }
}

/// Three warps exchange words through shared memory.
MOYE_KERNEL(96)
sync_threads_kernel(uint32_t const* in, uint32_t* out) {
  auto* words = reinterpret_cast<uint32_t*>(smem_base());
  uint32_t const thread = thread_idx().x;
  words[thread] = in[thread];
  sync_threads();
  out[thread] = words[95 - thread];
}

/// Two warps pass words to and fro over barriers 1 to 14: one waits for the other, then the other way round. The warp
/// that need not wait does if kWait, and only arrives otherwise.
template <bool kWait>
MOYE_DEVICE void announce(int id) {
  if constexpr (kWait) {
    named_barrier_sync(id, 64);
  } else {
    named_barrier_arrive(id, 64);
  }
}

template <bool kWait>
MOYE_KERNEL(64)
named_barrier_kernel(uint32_t const* in, uint32_t* out) {
  auto* words = reinterpret_cast<uint32_t*>(smem_base());
  uint32_t const lane = lane_id();
  bool const first = thread_idx().x < 32;
  for (int id = 1; id < 15; id += 2) {
    if (first) {
      words[lane] = in[lane] + static_cast<uint32_t>(id);
      announce<kWait>(id);
      named_barrier_sync(id + 1, 64);
      out[(id / 2) * 32 + lane] = words[32 + (lane ^ 1)];
    } else {
      named_barrier_sync(id, 64);
      words[32 + lane] = 3 * words[31 - lane];
      announce<kWait>(id + 1);
    }
  }
}

/// Neighbours exchange words through shared memory: the whole warp, then each half under its own mask.
MOYE_KERNEL(32)
sync_warp_kernel(uint32_t const* in, uint32_t* out) {
  auto* words = reinterpret_cast<uint32_t*>(smem_base());
  uint32_t const lane = lane_id();
  words[lane] = in[lane];
  sync_warp();
  out[lane] = words[31 - lane];
  words[32 + lane] = in[32 + lane];
  if (lane < 16) {
    sync_warp(0x0000ffffu);
    out[32 + lane] = words[32 + (lane ^ 3)];
  } else {
    sync_warp(0xffff0000u);
    out[32 + lane] = words[32 + (lane ^ 9)];
  }
}

/// Sixteen words a thread: where it is and how large CTA and grid are.
MOYE_KERNEL(64)
builtin_kernel(uint32_t const*, uint32_t* out) {
  Dim3 const thread = thread_idx(), block = block_idx(), threads = block_dim(), blocks = grid_dim();
  uint32_t const in_block = thread.x + threads.x * (thread.y + threads.y * thread.z);
  uint32_t const block_number = block.x + blocks.x * (block.y + blocks.y * block.z);
  out += 16 * (in_block + block_number * threads.x * threads.y * threads.z);
  Dim3 const values[] = {thread, block, threads, blocks};
  for (int i = 0; i < 4; ++i) {
    out[3 * i] = values[i].x;
    out[3 * i + 1] = values[i].y;
    out[3 * i + 2] = values[i].z;
  }
  out[12] = lane_id();
  out[13] = smem_ptr_to_u32(smem_base() + 48) - smem_ptr_to_u32(smem_base());
  out[14] = smem_ptr_to_u32(smem_base()) % 1024;
  out[15] = 0;
}

/// One word a thread: its warp.
MOYE_KERNEL(96)
warp_id_kernel(uint32_t const*, uint32_t* out) { out[thread_idx().x] = warp_id(); }

/// in, out: one T for each of 64 threads.
template <class T>
MOYE_KERNEL(64)
universal_copy_kernel(uint32_t const* in, uint32_t* out) {
  uint32_t const thread = thread_idx().x;
  UniversalCopy<T>::copy(reinterpret_cast<T const*>(in)[thread], reinterpret_cast<T*>(out)[63 - thread]);
}

/// in, out: 16 bytes for each of 64 threads; thread t stores its own to shared memory and on to place 63 - t.
MOYE_KERNEL(64)
store_kernel(uint32_t const* in, uint32_t* out) {
  auto* const places = reinterpret_cast<uint128_t*>(smem_base());
  uint32_t const thread = thread_idx().x;
  store_shared(reinterpret_cast<uint128_t const*>(in)[thread], places[thread ^ 5]);
  sync_threads();
  store_global(load_shared(places[thread]), reinterpret_cast<uint128_t*>(out)[63 - thread]);
}

/// in: four bit patterns of a float a thread, those of a pair 64 words apart. out: two words a thread.
template <class To>
MOYE_KERNEL(64)
pack_pair_kernel(uint32_t const* in, uint32_t* out) {
  uint32_t const thread = thread_idx().x;
  for (int i = 0; i < 2; ++i) {
    uint32_t const* const pair = in + 128 * i + thread;
    out[64 * i + thread] = pack_pair<To>(__builtin_bit_cast(float, pair[0]), __builtin_bit_cast(float, pair[64]));
  }
}

/// in: two words a thread, 64 words apart; numbers below 2 are made of them. out: a word a thread.
template <class T>
MOYE_KERNEL(64)
sub_pair_kernel(uint32_t const* in, uint32_t* out) {
  uint32_t const thread = thread_idx().x;
  out[thread] = sub_pair<T>(in[thread] & 0xbfffbfff, in[64 + thread] & 0xbfffbfff);
}

/// in: a word a thread, of four e4m3 below 2. out: two words a thread.
template <class T>
MOYE_KERNEL(64)
unpack_e4m3_pair_kernel(uint32_t const* in, uint32_t* out) {
  uint32_t const thread = thread_idx().x;
  for (int first = 0; first < 2; ++first) {
    out[64 * first + thread] = unpack_e4m3_pair<T>(in[thread] & 0xbfbfbfbf, first);
  }
}

/// in: four bit patterns of a float a thread. out: the storage of To.
template <class To>
MOYE_KERNEL(64)
from_float_kernel(uint32_t const* in, uint32_t* out) {
  uint32_t const thread = thread_idx().x;
  for (int i = 0; i < 4; ++i) {
    out[64 * i + thread] = To(__builtin_bit_cast(float, in[64 * i + thread])).storage;
  }
}

/// The same with what JAX's astype does where the value is too large.
template <class To>
MOYE_KERNEL(64)
from_float_overflowing_kernel(uint32_t const* in, uint32_t* out) {
  uint32_t const thread = thread_idx().x;
  for (int i = 0; i < 4; ++i) {
    out[64 * i + thread] = To::from_float_overflowing(__builtin_bit_cast(float, in[64 * i + thread])).storage;
  }
}

/// in: four words a thread whose low bits are a From. out: the floats.
template <class From>
MOYE_KERNEL(64)
to_float_kernel(uint32_t const* in, uint32_t* out) {
  uint32_t const thread = thread_idx().x;
  for (int i = 0; i < 4; ++i) {
    auto const value = From::bitcast(static_cast<decltype(From::storage)>(in[64 * i + thread]));
    out[64 * i + thread] = __builtin_bit_cast(uint32_t, static_cast<float>(value));
  }
}

// ---- Inputs
// ------------------------------------------------------------------------------------------------------------

/// What the elements of a piece of input are.
enum class Kind {
  word,    // any 32 bits
  middle,  // a float from 2^-27 to 2^18: where f16 rounds, overflows and is subnormal
  root,    // a float about 2^-65, so that products are subnormal
  tiny,    // a float below 2^-124, subnormals among them
  nan,     // any NaN, quiet or signalling
  half16,  // any 16 bits, in a word of its own
  byte,    // any 8 bits, four in a word: s8 and u8
  eighth,  // a float from 2^-19 to 2^20: where 8-bit floats round, overflow and are subnormal
  end,     // an s32 within 1000 of the least or the greatest
  row,     // 0 to 63
  lane,    // 0 to 31
  // integers of -8 to 8
  e4m3,
  e5m2,
  bf16,
  f16,
  f32,
  f64,
  s32,  // -1000 to 1000
};

struct Piece {
  Kind kind;
  int count;  // elements
};

/// 32 bits that look random and follow from the case's name and the element's place.
uint32_t hash(std::string const& name, uint32_t piece, uint32_t i) {
  uint32_t h = 2166136261u;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;  // FNV-1a
  h += 0x9e3779b9u * ((piece << 20) + i + 1);
  h = (h ^ (h >> 16)) * 0x85ebca6bu;  // the finalizer of MurmurHash3
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

template <class T>
void append(std::vector<unsigned char>& bytes, T value) {
  auto const* first = reinterpret_cast<unsigned char const*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof(T));
}

void element(std::vector<unsigned char>& bytes, Kind kind, uint32_t h) {
  int const small = static_cast<int>(h % 17u) - 8;
  switch (kind) {
    case Kind::word:
      return append(bytes, h);
    case Kind::middle:
      return append(bytes, (h & 0x807fffffu) | ((100u + (h >> 23) % 46u) << 23));
    case Kind::root:
      return append(bytes, (h & 0x807fffffu) | ((60u + (h >> 23) % 5u) << 23));
    case Kind::tiny:
      return append(bytes, h & 0x81ffffffu);
    case Kind::nan:
      return append(bytes, h | 0x7f800001u);
    case Kind::half16:
      return append(bytes, h & 0xffffu);
    case Kind::byte:
      return append(bytes, static_cast<uint8_t>(h));
    case Kind::row:
      return append(bytes, h % 64u);
    case Kind::lane:
      return append(bytes, h % 32u);
    case Kind::eighth:
      return append(bytes, (h & 0x807fffffu) | ((108u + (h >> 23) % 39u) << 23));
    case Kind::end:
      return append(bytes, h & 1u ? 0x7fffffffu - (h >> 1) % 1000u : 0x80000000u + (h >> 1) % 1000u);
    case Kind::e4m3:
      return append(bytes, float_e4m3_t(static_cast<float>(small)).storage);
    case Kind::e5m2:
      return append(bytes, float_e5m2_t(static_cast<float>(small)).storage);
    case Kind::bf16:
      return append(bytes, bfloat16_t(static_cast<float>(small)).storage);
    case Kind::f16:
      return append(bytes, half_t(static_cast<float>(small)).storage);
    case Kind::f32:
      return append(bytes, static_cast<float>(small));
    case Kind::f64:
      return append(bytes, static_cast<double>(small));
    case Kind::s32:
      return append(bytes, static_cast<int32_t>(h % 2001u) - 1000);
  }
}

std::vector<uint32_t> input(std::string const& name, std::vector<Piece> const& pieces) {
  std::vector<unsigned char> bytes;
  for (uint32_t p = 0; p < pieces.size(); ++p) {
    for (int i = 0; i < pieces[p].count; ++i) {
      element(bytes, pieces[p].kind, hash(name, p, static_cast<uint32_t>(i)));
    }
  }
  std::vector<uint32_t> words((bytes.size() + 3) / 4 + 1);  // never empty
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

// ---- Cases
// -------------------------------------------------------------------------------------------------------------

using WordKernel = void (*)(uint32_t const*, uint32_t*);

struct Case {
  std::string name;         // of the output file
  std::string wrapper;      // of moye/arch
  std::string instruction;  // PTX
  WordKernel kernel;
  LaunchConfig launch;
  std::vector<Piece> input;
  size_t out_words;
  int first_arch = 0;  // of GPUs that have the instruction, 80 for sm_80
};

LaunchConfig one_cta(unsigned threads, int smem_bytes = 0) {
  LaunchConfig config;
  config.grid = {1, 1, 1};
  config.block = {threads, 1, 1};
  config.smem_bytes = smem_bytes;
  return config;
}

/// Elements of `kind` in 32 lanes' `Registers`.
template <class Registers>
Piece piece(Kind kind) {
  bool const bytes = kind == Kind::byte || kind == Kind::e4m3 || kind == Kind::e5m2;
  int const per_register = bytes ? 4 : kind == Kind::bf16 || kind == Kind::f16 ? 2 : 1;
  return {kind, 32 * static_cast<int>(std::extent_v<Registers>) * per_register};
}

template <class Op>
Case mma(std::string const& wrapper, std::string const& instruction, Kind a, Kind b, Kind c) {
  return {wrapper,
          wrapper,
          instruction,
          mma_kernel<Op>,
          one_cta(32),
          {piece<typename Op::ARegisters>(a), piece<typename Op::BRegisters>(b), piece<typename Op::CRegisters>(c)},
          32 * sizeof(typename Op::DRegisters) / 4,
          kFirstArch<Op>};
}

template <class Op>
Case ldmatrix(std::string const& wrapper, std::string const& instruction) {
  return {wrapper,
          wrapper,
          instruction,
          ldmatrix_kernel<Op>,
          one_cta(32, 1024),
          {{Kind::word, 256}, {Kind::row, 32}},
          32 * std::extent_v<typename Op::DRegisters>};
}

template <class Op>
std::vector<Case> cp_async(std::string const& wrapper, std::string const& instruction) {
  constexpr int kBytes = sizeof(typename Op::SRegisters);
  std::vector<Piece> const in = {{Kind::word, 64 * kBytes / 4}};
  std::string const name = wrapper + "_" + std::to_string(kBytes);
  size_t const words = 64 * kBytes / 4;
  return {{name, wrapper, instruction, cp_async_kernel<Op, false>, one_cta(64, 64 * kBytes), in, words},
          {name + "_zfill", wrapper, instruction + ", src-size", cp_async_kernel<Op, true>, one_cta(64, 64 * kBytes),
           in, words}};
}

template <Shuffle kShuffle, class T>
Case shfl(std::string const& wrapper, std::string const& instruction) {
  size_t const rounds = kShuffle == Shuffle::idx ? 1 : 32;
  std::string const name = wrapper + "_" + std::to_string(8 * sizeof(T));
  return {name,
          wrapper,
          instruction,
          shfl_kernel<kShuffle, T>,
          one_cta(32),
          {{Kind::word, 32 * static_cast<int>(sizeof(T)) / 4}, {Kind::lane, 32}},
          rounds * 32 * sizeof(T) / 4};
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  auto add = [&](Case const& one) { cases.push_back(one); };
  auto add_all = [&](std::vector<Case> const& more) { cases.insert(cases.end(), more.begin(), more.end()); };

  add(ldmatrix<SM75_U32x1_LDSM_N>("SM75_U32x1_LDSM_N", "ldmatrix.x1"));
  add(ldmatrix<SM75_U32x2_LDSM_N>("SM75_U32x2_LDSM_N", "ldmatrix.x2"));
  add(ldmatrix<SM75_U32x4_LDSM_N>("SM75_U32x4_LDSM_N", "ldmatrix.x4"));
  add(ldmatrix<SM75_U16x2_LDSM_T>("SM75_U16x2_LDSM_T", "ldmatrix.x1.trans"));
  add(ldmatrix<SM75_U16x4_LDSM_T>("SM75_U16x4_LDSM_T", "ldmatrix.x2.trans"));
  add(ldmatrix<SM75_U16x8_LDSM_T>("SM75_U16x8_LDSM_T", "ldmatrix.x4.trans"));

#define MOYE_MMA(wrapper, a, b, c) add(mma<wrapper>(#wrapper, "mma.sync", Kind::a, Kind::b, Kind::c))
  MOYE_MMA(SM80_16x8x8_F32BF16BF16F32_TN, bf16, bf16, f32);
  MOYE_MMA(SM80_16x8x16_F32BF16BF16F32_TN, bf16, bf16, f32);
  MOYE_MMA(SM80_16x8x8_F32F16F16F32_TN, f16, f16, f32);
  MOYE_MMA(SM80_16x8x16_F32F16F16F32_TN, f16, f16, f32);
  MOYE_MMA(SM80_16x8x8_F16F16F16F16_TN, f16, f16, f16);
  MOYE_MMA(SM80_16x8x16_F16F16F16F16_TN, f16, f16, f16);
  MOYE_MMA(SM80_16x8x4_F32TF32TF32F32_TN, f32, f32, f32);
  MOYE_MMA(SM80_16x8x8_F32TF32TF32F32_TN, f32, f32, f32);
  MOYE_MMA(SM80_8x8x4_F64F64F64F64_TN, f64, f64, f64);
  MOYE_MMA(SM80_8x8x16_S32S8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_8x8x16_S32S8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_8x8x16_S32U8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_8x8x16_S32U8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x16_S32S8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x16_S32S8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x16_S32U8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x16_S32U8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x32_S32S8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x32_S32S8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x32_S32U8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x32_S32U8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM70_8x8x4_F16F16F16F16_TN, f16, f16, f16);
  MOYE_MMA(SM70_8x8x4_F16F16F16F16_NT, f16, f16, f16);
  MOYE_MMA(SM70_8x8x4_F16F16F16F16_NN, f16, f16, f16);
  MOYE_MMA(SM70_8x8x4_F16F16F16F16_TT, f16, f16, f16);
  MOYE_MMA(SM70_8x8x4_F32F16F16F32_TN, f16, f16, f32);
  MOYE_MMA(SM70_8x8x4_F32F16F16F32_NT, f16, f16, f32);
  MOYE_MMA(SM70_8x8x4_F32F16F16F32_NN, f16, f16, f32);
  MOYE_MMA(SM70_8x8x4_F32F16F16F32_TT, f16, f16, f32);
  MOYE_MMA(SM75_16x8x8_F32F16F16F32_TN, f16, f16, f32);
  MOYE_MMA(SM75_16x8x8_F16F16F16F16_TN, f16, f16, f16);
  MOYE_MMA(SM75_8x8x16_S32S8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_8x8x16_S32S8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_8x8x16_S32S8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_8x8x16_S32U8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_8x8x16_S32U8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x16_S32S8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x16_S32S8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x16_S32U8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x16_S32U8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x32_S32S8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x32_S32S8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x32_S32U8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x32_S32U8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_8x8x32_S32S4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_8x8x32_S32S4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_8x8x32_S32U4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_8x8x32_S32U4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x32_S32S4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x32_S32S4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x32_S32U4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x32_S32U4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x64_S32S4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x64_S32S4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x64_S32U4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x64_S32U4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_8x8x32_S32S4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_8x8x32_S32S4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_8x8x32_S32U4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_8x8x32_S32U4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x32_S32S4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x32_S32S4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x32_S32U4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x32_S32U4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x64_S32S4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x64_S32S4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x64_S32U4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x64_S32U4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_8x8x128_S32U1U1S32_TN_XORPOPC, word, word, s32);
  MOYE_MMA(SM80_8x8x128_S32U1U1S32_TN_ANDPOPC, word, word, s32);
  MOYE_MMA(SM80_16x8x128_S32U1U1S32_TN_XORPOPC, word, word, s32);
  MOYE_MMA(SM80_16x8x128_S32U1U1S32_TN_ANDPOPC, word, word, s32);
  MOYE_MMA(SM80_16x8x256_S32U1U1S32_TN_XORPOPC, word, word, s32);
  MOYE_MMA(SM80_16x8x256_S32U1U1S32_TN_ANDPOPC, word, word, s32);
  MOYE_MMA(SM89_16x8x32_F32E4M3E4M3F32_TN, e4m3, e4m3, f32);
  MOYE_MMA(SM89_16x8x32_F32E4M3E5M2F32_TN, e4m3, e5m2, f32);
  MOYE_MMA(SM89_16x8x32_F32E5M2E4M3F32_TN, e5m2, e4m3, f32);
  MOYE_MMA(SM89_16x8x32_F32E5M2E5M2F32_TN, e5m2, e5m2, f32);
  MOYE_MMA(SM89_16x8x32_F16E4M3E4M3F16_TN, e4m3, e4m3, f16);
  MOYE_MMA(SM89_16x8x32_F16E4M3E5M2F16_TN, e4m3, e5m2, f16);
  MOYE_MMA(SM89_16x8x32_F16E5M2E4M3F16_TN, e5m2, e4m3, f16);
  MOYE_MMA(SM89_16x8x32_F16E5M2E5M2F16_TN, e5m2, e5m2, f16);
  MOYE_MMA(SM90_16x8x4_F64F64F64F64_TN, f64, f64, f64);
  MOYE_MMA(SM90_16x8x8_F64F64F64F64_TN, f64, f64, f64);
  MOYE_MMA(SM90_16x8x16_F64F64F64F64_TN, f64, f64, f64);
#undef MOYE_MMA
  add(mma<SM61_DP4A>("SM61_DP4A", "dp4a.s32.s32", Kind::byte, Kind::byte, Kind::word));
  // One rounding, nothing flushed to zero.
  cases.push_back(mma<UniversalFMA<float>>("UniversalFMA", "fma.rn.f32", Kind::middle, Kind::middle, Kind::middle));
  cases.back().name = "UniversalFMA_f32";
  cases.push_back(mma<UniversalFMA<float>>("UniversalFMA", "fma.rn.f32", Kind::root, Kind::root, Kind::tiny));
  cases.back().name = "UniversalFMA_f32_subnormal";
  cases.push_back(mma<UniversalFMA<double>>("UniversalFMA", "fma.rn.f64", Kind::f64, Kind::f64, Kind::f64));
  cases.back().name = "UniversalFMA_f64";

  add_all(cp_async<SM80_CP_ASYNC_CACHEALWAYS<uint32_t>>("SM80_CP_ASYNC_CACHEALWAYS", "cp.async.ca 4"));
  add_all(cp_async<SM80_CP_ASYNC_CACHEALWAYS<uint64_t>>("SM80_CP_ASYNC_CACHEALWAYS", "cp.async.ca 8"));
  add_all(cp_async<SM80_CP_ASYNC_CACHEALWAYS<uint128_t>>("SM80_CP_ASYNC_CACHEALWAYS", "cp.async.ca 16"));
  add_all(cp_async<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>>("SM80_CP_ASYNC_CACHEGLOBAL", "cp.async.cg 16"));
  add({"cp_async_groups",
       "cp_async_commit_group cp_async_wait_group cp_async_wait_all",
       "cp.async.commit_group cp.async.wait_group cp.async.wait_all",
       cp_async_groups_kernel,
       one_cta(64, 768),
       {{Kind::word, 192}},
       192});

  add(shfl<Shuffle::idx, uint32_t>("shfl_sync", "shfl.sync.idx"));
  add(shfl<Shuffle::idx, uint64_t>("shfl_sync", "shfl.sync.idx"));
  add(shfl<Shuffle::down, uint32_t>("shfl_down_sync", "shfl.sync.down"));
  add(shfl<Shuffle::up, uint32_t>("shfl_up_sync", "shfl.sync.up"));
  add(shfl<Shuffle::xor_, uint32_t>("shfl_xor_sync", "shfl.sync.bfly"));
  add(shfl<Shuffle::xor_, uint64_t>("shfl_xor_sync", "shfl.sync.bfly"));
  add({"shfl_xor_sync_half", "shfl_xor_sync", "shfl.sync.bfly", shfl_half_kernel, one_cta(32), {{Kind::word, 32}}, 32});

  add({"sync_threads", "sync_threads", "bar.sync 0", sync_threads_kernel, one_cta(96, 384), {{Kind::word, 96}}, 96});
  add({"named_barrier",
       "named_barrier_sync",
       "bar.sync",
       named_barrier_kernel<true>,
       one_cta(64, 256),
       {{Kind::word, 32}},
       7 * 32});
  add({"named_barrier_arrive",
       "named_barrier_sync named_barrier_arrive",
       "bar.sync bar.arrive",
       named_barrier_kernel<false>,
       one_cta(64, 256),
       {{Kind::word, 32}},
       7 * 32});
  add({"sync_warp", "sync_warp", "bar.warp.sync", sync_warp_kernel, one_cta(32, 256), {{Kind::word, 64}}, 64});
  LaunchConfig solid;
  solid.grid = {2, 3, 2};
  solid.block = {8, 4, 2};
  solid.smem_bytes = 64;
  add({"builtin",
       "thread_idx block_idx block_dim grid_dim lane_id smem_base smem_ptr_to_u32",
       "mov %tid ...",
       builtin_kernel,
       solid,
       {},
       12 * 64 * 16});
  add({"warp_id", "warp_id", "mov %tid", warp_id_kernel, one_cta(96), {}, 96});

  add({"UniversalCopy_4",
       "UniversalCopy",
       "ld st",
       universal_copy_kernel<uint32_t>,
       one_cta(64),
       {{Kind::word, 64}},
       64});
  add({"UniversalCopy_8",
       "UniversalCopy",
       "ld st",
       universal_copy_kernel<uint64_t>,
       one_cta(64),
       {{Kind::word, 128}},
       128});
  add({"UniversalCopy_16",
       "UniversalCopy",
       "ld.v4 st.v4",
       universal_copy_kernel<uint128_t>,
       one_cta(64),
       {{Kind::word, 256}},
       256});

  add({"store_16",
       "store_shared load_shared store_global",
       "st.v4",
       store_kernel,
       one_cta(64, 1024),
       {{Kind::word, 256}},
       256});
  add({"pack_pair_bfloat16",
       "pack_pair",
       "cvt.rn.bf16x2.f32",
       pack_pair_kernel<bfloat16_t>,
       one_cta(64),
       {{Kind::word, 248}, {Kind::nan, 8}},
       128});
  add({"pack_pair_half",
       "pack_pair",
       "cvt.rn.f16x2.f32",
       pack_pair_kernel<half_t>,
       one_cta(64),
       {{Kind::middle, 248}, {Kind::nan, 8}},
       128});

  add({"sub_pair_bfloat16",
       "sub_pair",
       "sub.rn.bf16x2",
       sub_pair_kernel<bfloat16_t>,
       one_cta(64),
       {{Kind::word, 128}},
       64});
  add({"sub_pair_half", "sub_pair", "sub.rn.f16x2", sub_pair_kernel<half_t>, one_cta(64), {{Kind::word, 128}}, 64});
  add({"unpack_e4m3_pair_bfloat16",
       "unpack_e4m3_pair",
       "cvt.rn.f16x2.e4m3x2",
       unpack_e4m3_pair_kernel<bfloat16_t>,
       one_cta(64),
       {{Kind::word, 64}},
       128});
  add({"unpack_e4m3_pair_half",
       "unpack_e4m3_pair",
       "cvt.rn.f16x2.e4m3x2",
       unpack_e4m3_pair_kernel<half_t>,
       one_cta(64),
       {{Kind::word, 64}},
       128});

  add({"bfloat16_from_float",
       "bfloat16_t",
       "cvt.rn.bf16.f32",
       from_float_kernel<bfloat16_t>,
       one_cta(64),
       {{Kind::word, 248}, {Kind::nan, 8}},
       256});
  add({"bfloat16_to_float", "bfloat16_t", "shl", to_float_kernel<bfloat16_t>, one_cta(64), {{Kind::half16, 256}}, 256});
  add({"half_from_float",
       "half_t",
       "cvt.rn.f16.f32",
       from_float_kernel<half_t>,
       one_cta(64),
       {{Kind::middle, 248}, {Kind::nan, 8}},
       256});
  add({"float_e4m3_from_float",
       "float_e4m3_t",
       "cvt.rn.satfinite.e4m3x2.f32",
       from_float_kernel<float_e4m3_t>,
       one_cta(64),
       {{Kind::eighth, 248}, {Kind::nan, 8}},
       256});
  add({"float_e4m3_from_float_overflowing",
       "float_e4m3_t",
       "none",
       from_float_overflowing_kernel<float_e4m3_t>,
       one_cta(64),
       {{Kind::eighth, 248}, {Kind::nan, 8}},
       256});
  add({"float_e4m3_to_float",
       "float_e4m3_t",
       "cvt.rn.f16x2.e4m3x2",
       to_float_kernel<float_e4m3_t>,
       one_cta(64),
       {{Kind::half16, 256}},
       256});
  add({"float_e5m2_from_float",
       "float_e5m2_t",
       "cvt.rn.satfinite.e5m2x2.f32",
       from_float_kernel<float_e5m2_t>,
       one_cta(64),
       {{Kind::eighth, 248}, {Kind::nan, 8}},
       256});
  add({"float_e5m2_from_float_overflowing",
       "float_e5m2_t",
       "none",
       from_float_overflowing_kernel<float_e5m2_t>,
       one_cta(64),
       {{Kind::eighth, 248}, {Kind::nan, 8}},
       256});
  add({"float_e5m2_to_float",
       "float_e5m2_t",
       "cvt.rn.f16x2.e5m2x2",
       to_float_kernel<float_e5m2_t>,
       one_cta(64),
       {{Kind::half16, 256}},
       256});
  add({"half_to_float", "half_t", "cvt.f32.f16", to_float_kernel<half_t>, one_cta(64), {{Kind::half16, 256}}, 256});
  return cases;
}

/// Runs the case; its output was full of 0xff bytes before.
std::vector<uint32_t> run(Case const& one) {
  testing::Machine machine;
  std::vector<uint32_t> const in = input(one.name, one.input);
  std::vector<uint32_t> out(one.out_words, 0xffffffffu);
  auto* in_array = static_cast<uint32_t*>(machine.allocate("in", 4 * in.size(), false));
  auto* out_array = static_cast<uint32_t*>(machine.allocate("out", 4 * out.size(), true));
  machine.upload(in_array, in.data(), 4 * in.size());
  machine.upload(out_array, out.data(), 4 * out.size());
  testing::check(prepare_kernel(one.kernel, one.launch.smem_bytes), one.name);
  testing::check(launch_kernel(one.kernel, one.launch, machine.stream(), in_array, out_array), one.name);
  machine.wait();
  machine.download(out.data(), out_array, 4 * out.size());
  return out;
}

}  // namespace moye::conformance

int main(int count, char** arguments) {
  using namespace moye;
  if (count < 2) testing::fail("usage: conformance --list | conformance DIRECTORY [CASE TO LEAVE OUT]...");
  for (conformance::Case const& one : conformance::all_cases()) {
    if (std::string(arguments[1]) == "--list") {
      std::cout << one.name << '\t' << one.wrapper << '\t' << one.instruction << '\t' << 4 * one.out_words << '\n';
      continue;
    }
    if (std::find(arguments + 2, arguments + count, one.name) != arguments + count) continue;
    if (!testing::Machine::has_arch(one.first_arch)) {
      std::printf("%s left out: it needs sm_%d\n", one.name.c_str(), one.first_arch);
      continue;
    }
    std::vector<uint32_t> const out = conformance::run(one);
    std::ofstream file(std::string(arguments[1]) + "/" + one.name + ".bin", std::ios::binary);
    file.write(reinterpret_cast<char const*>(out.data()), static_cast<std::streamsize>(4 * out.size()));
    if (!file.flush()) testing::fail("cannot write " + one.name + ".bin");
    std::printf("%s\n", one.name.c_str());
  }
  return 0;
}
