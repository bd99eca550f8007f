// The kernels of conformance.cu, one for each kind of wrapper of moye/arch. All take words in, words out.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

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

/// One word a thread: its warpgroup.
MOYE_KERNEL(384)
warpgroup_id_kernel(uint32_t const*, uint32_t* out) { out[thread_idx().x] = uint32_t(warpgroup_id()); }

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

/// in: four bit patterns of a float a thread. out: four words a thread.
MOYE_KERNEL(64)
round_to_tf32_kernel(uint32_t const* in, uint32_t* out) {
  for (uint32_t i = thread_idx().x; i < 256; i += 64) {
    out[i] = round_to_tf32(__builtin_bit_cast(float, in[i]));
  }
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

/// in: two bit patterns of a float a thread, 64 words apart. out: both as neighbours, in one store of 8 bytes.
MOYE_KERNEL(64)
f32_pair_kernel(uint32_t const* in, uint32_t* out) {
  uint32_t const thread = thread_idx().x;
  reinterpret_cast<uint64_t*>(out)[thread] =
      f32_pair(__builtin_bit_cast(float, in[thread]), __builtin_bit_cast(float, in[64 + thread]));
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

}  // namespace moye::conformance
