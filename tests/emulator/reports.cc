// reports CASE [option=value ...]: a kernel that breaks one rule (or, named ..._ok, keeps it); prints the report or
// "ok". A comment "@name" marks a line that test_reports.py expects in a report.
#include "reports.h"

#include <setjmp.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include "moye/arch/barrier.h"
#include "moye/arch/copy.h"
#include "moye/arch/copy_sm75.h"
#include "moye/arch/copy_sm80.h"
#include "moye/arch/launch.h"
#include "moye/arch/warp.h"
#include "program.h"
#include "reports_barriers.h"

namespace {

// --------------------------------------------------------------------------------------------- races on shared memory

MOYE_KERNEL(64)
missing_barrier(uint32_t const*, uint32_t* out) {
  uint32_t* const smem = smem_words();
  smem[tid()] = tid();                  // @missing_barrier store
  out[tid()] = smem[(tid() + 1) % 64];  // @missing_barrier load
}

MOYE_KERNEL(64)
missing_barrier_before_reuse(uint32_t const*, uint32_t* out) {
  uint32_t* const smem = smem_words();
  smem[tid()] = tid();
  sync_threads();
  out[tid()] = smem[63 - tid()];  // @reuse load
  smem[tid()] = 0;                // @reuse store
}

// All 64 threads read word 0; only the last one's read comes after the barrier that orders the others' before the
// store.
MOYE_KERNEL(64)
one_late_reader(uint32_t const*, uint32_t* out) {
  uint32_t* const smem = smem_words();
  if (tid() == 0) smem[0] = 1;
  sync_threads();
  if (tid() != 63) out[tid()] = smem[0];
  sync_threads();
  if (tid() == 63) out[tid()] = smem[0];  // @one_late_reader load
  if (tid() == 0) smem[0] = 2;            // @one_late_reader store
}

MOYE_KERNEL(32)
missing_warp_sync(uint32_t const*, uint32_t* out) {
  uint32_t* const smem = smem_words();
  smem[tid()] = tid();             // @missing_warp_sync store
  shfl_sync(kFullWarp, tid(), 0);  // all lanes are here, yet memory is not ordered
  out[tid()] = smem[tid() ^ 1];    // @missing_warp_sync load
}

MOYE_KERNEL(64)
arrive_instead_of_sync(uint32_t const*, uint32_t* out) {
  uint32_t* const smem = smem_words();
  if (tid() < 32) {
    smem[tid()] = tid();  // @arrive store
    named_barrier_sync(1, 64);
  } else {
    named_barrier_arrive(1, 64);
    out[tid()] = smem[tid() - 32];  // @arrive load
  }
}

// Bytes and halves of one word, each of its own thread.
MOYE_KERNEL(64)
neighbours_ok(uint32_t const*, uint32_t* out) {
  auto* const bytes = smem_base();
  auto* const halves = reinterpret_cast<uint16_t*>(smem_base() + 64);
  bytes[tid()] = static_cast<unsigned char>(tid());
  halves[tid()] = static_cast<uint16_t>(tid());
  reinterpret_cast<uint16_t*>(out)[tid()] = static_cast<uint16_t>(tid());
  reinterpret_cast<unsigned char*>(out + 64)[tid()] = static_cast<unsigned char>(tid());
  sync_threads();
  reinterpret_cast<unsigned char*>(out + 128)[tid()] = bytes[63 - tid()];
  reinterpret_cast<uint16_t*>(out + 160)[tid()] = halves[63 - tid()];
}

// The first of four bytes is written by thread 0, the others later by thread 32: its write must not hide the first one.
MOYE_KERNEL(64)
byte_race(uint32_t const*, uint32_t* out) {
  auto* const bytes = smem_base();
  if (tid() == 0) bytes[0] = 1;  // @byte_race store
  if (tid() >= 32 && tid() < 35) bytes[tid() - 31] = 2;
  if (tid() == 63) out[0] = bytes[0];  // @byte_race load
}

struct alignas(16) Big {
  uint32_t words[12];
};

MOYE_KERNEL(64)
structure_race(uint32_t const*, uint32_t*) {
  auto* const big = reinterpret_cast<Big*>(smem_base());
  Big mine;
  for (uint32_t& word : mine.words) word = tid();
  if (tid() == 40) big[1].words[11] = 7;  // @structure_race word
  sync_warp();
  if (tid() == 0) big[0] = mine;
  if (tid() == 0) big[1] = mine;  // @structure_race structure
}

// An algorithm: everything in it is reported at its caller's line.
MOYE_DEVICE void fill(uint32_t* to, uint32_t value MOYE_LOC) {
  MOYE_SITE;
  UniversalCopy<uint32_t>::copy(value, *to);
}
MOYE_DEVICE void fill_two(uint32_t* to, uint32_t value MOYE_LOC) {
  MOYE_SITE;
  fill(to, value);
  fill(to + 1, value);
}

MOYE_KERNEL(64)
site(uint32_t const*, uint32_t*) {
  fill_two(smem_words() + tid(), 0);  // @site
}

// ------------------------------------------------------------------------------------------------------------ cp.async

MOYE_KERNEL(64)
no_wait(uint32_t const* in, uint32_t* out) {
  uint32_t* const smem = smem_words();
  Copy4::copy(in[tid()], smem[tid()]);  // @no_wait copy
  cp_async_commit_group();
  out[tid()] = smem[tid()];  // @no_wait load
}

MOYE_KERNEL(64)
wait_off_by_one(uint32_t const* in, uint32_t* out) {
  uint32_t* const smem = smem_words();
  Copy4::copy(in[tid()], smem[tid()]);
  cp_async_commit_group();
  Copy4::copy(in[64 + tid()], smem[64 + tid()]);  // @off_by_one copy
  cp_async_commit_group();
  cp_async_wait_group<1>();
  out[tid()] = smem[tid()];
  out[64 + tid()] = smem[64 + tid()];  // @off_by_one load
}

MOYE_KERNEL(64)
no_commit(uint32_t const* in, uint32_t* out) {
  uint32_t* const smem = smem_words();
  Copy4::copy(in[tid()], smem[tid()]);  // @no_commit copy
  cp_async_wait_group<0>();
  out[tid()] = smem[tid()];  // @no_commit load
}

MOYE_KERNEL(64)
wait_without_barrier(uint32_t const* in, uint32_t* out) {
  uint32_t* const smem = smem_words();
  Copy4::copy(in[tid()], smem[tid()]);  // @wait_without_barrier copy
  cp_async_wait_all();
  out[tid()] = smem[tid() ^ 1];  // @wait_without_barrier load
}

MOYE_KERNEL(64)
barrier_without_wait(uint32_t const* in, uint32_t* out) {
  uint32_t* const smem = smem_words();
  Copy4::copy(in[tid()], smem[tid()]);  // @barrier_without_wait copy
  cp_async_commit_group();
  sync_threads();
  out[tid()] = smem[63 - tid()];  // @barrier_without_wait load
}

MOYE_KERNEL(64)
overwritten_in_flight(uint32_t const* in, uint32_t*) {
  uint32_t* const smem = smem_words();
  Copy4::copy(in[tid()], smem[tid()]);  // @overwritten copy
  cp_async_commit_group();
  smem[tid()] = 0;  // @overwritten store
}

MOYE_KERNEL(64)
copied_twice(uint32_t const* in, uint32_t*) {
  uint32_t* const smem = smem_words();
  Copy4::copy(in[tid()], smem[tid()]);       // @copied_twice first
  Copy4::copy(in[64 + tid()], smem[tid()]);  // @copied_twice second
}

// What a kernel sees if the checker is off and it does not wait: out[0..63] before the wait, out[64..127] after.
MOYE_KERNEL(64)
in_flight(uint32_t const* in, uint32_t* out) {
  uint32_t* const smem = smem_words();
  smem[tid()] = 5;
  Copy4::copy(in[tid()], smem[tid()]);
  cp_async_commit_group();
  out[tid()] = smem[tid()];
  cp_async_wait_group<0>();
  out[64 + tid()] = smem[tid()];
}

MOYE_KERNEL(32)
misaligned_copy(uint32_t const* in, uint32_t*) {
  auto const& src = *reinterpret_cast<uint128_t const*>(in + 1);
  SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>::copy(src, *reinterpret_cast<uint128_t*>(smem_base()));  // @misaligned_copy
}

MOYE_KERNEL(32)
too_many_source_bytes(uint32_t const* in, uint32_t*) {
  Copy4::copy_zfill(in[tid()], smem_words()[tid()], 5);  // @too_many_source_bytes
}

// -------------------------------------------------------------------------------------------------------------- bounds

MOYE_KERNEL(64)
shared_load_outside(uint32_t const*, uint32_t* out) { out[tid()] = smem_words()[256 + tid()]; }  // @shared_load_outside

MOYE_KERNEL(64)
shared_store_before(uint32_t const*, uint32_t*) {
  smem_words()[static_cast<int>(tid()) - 1] = 0;  // @shared_store_before
}

MOYE_KERNEL(32)
ldmatrix_outside(uint32_t const*, uint32_t* out) {
  auto const& row = *reinterpret_cast<uint128_t const*>(smem_base() + 1024 - 64 + 16 * tid());
  uint32_t r;
  SM75_U32x1_LDSM_N::copy(row, r);  // @ldmatrix_outside
  out[tid()] = r;
}

MOYE_KERNEL(32)
ldmatrix_of_global(uint32_t const* in, uint32_t* out) {
  uint32_t r;
  SM75_U32x1_LDSM_N::copy(*reinterpret_cast<uint128_t const*>(in), r);  // @ldmatrix_of_global
  out[tid()] = r;
}

MOYE_KERNEL(32)
misaligned_ldmatrix(uint32_t const*, uint32_t* out) {
  uint32_t r;
  SM75_U32x1_LDSM_N::copy(*reinterpret_cast<uint128_t const*>(smem_base() + 8), r);  // @misaligned_ldmatrix
  out[tid()] = r;
}

MOYE_KERNEL(64)
load_outside(uint32_t const* in, uint32_t* out) { out[tid()] = in[200 + tid()]; }  // @load_outside

MOYE_KERNEL(64)
load_far_outside(uint32_t const* in, uint32_t* out) {
  out[tid()] = in[-5000 - static_cast<int>(tid())];  // @load_far_outside
}

MOYE_KERNEL(64)
store_outside(uint32_t const*, uint32_t* out) { out[256 + tid()] = 1; }  // @store_outside

MOYE_KERNEL(64)
write_to_input(uint32_t const* in, uint32_t*) { const_cast<uint32_t*>(in)[tid()] = 1; }  // @write_to_input

MOYE_KERNEL(64)
copy_outside(uint32_t const* in, uint32_t*) {
  Copy4::copy_zfill(in[224 + tid()], smem_words()[tid()], 4);  // @copy_outside
}

MOYE_KERNEL(64)
misaligned_load(uint32_t const* in, uint32_t* out) {
  auto const& two = *reinterpret_cast<uint64_t const*>(in + tid());
  out[tid()] = static_cast<uint32_t>(two >> 32);  // @misaligned_load
}

// Code that the hooks do not see: only the pages around the array are left to notice.
__attribute__((no_sanitize("thread"), noinline)) uint32_t load_unseen(uint32_t const* p) {
  return *const_cast<uint32_t const volatile*>(p);  // @fault
}

MOYE_KERNEL(64)
fault(uint32_t const* in, uint32_t* out) {
  if (tid() == 37) out[tid()] = load_unseen(in + kWords);
}

MOYE_KERNEL(64)
null_pointer(uint32_t const*, uint32_t* out) {
  if (tid() == 37) out[tid()] = load_unseen(nullptr);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winfinite-recursion"
__attribute__((no_sanitize("thread"), noinline)) uint32_t recurse(uint32_t depth) {
  uint32_t volatile room[64];
  room[depth % 64] = depth;
  return recurse(depth + 1) + room[depth % 32];
}
#pragma GCC diagnostic pop

MOYE_KERNEL(64)
stack_overflow(uint32_t const*, uint32_t* out) { out[tid()] = recurse(0); }

// Not the lowest thread's: below its stack there are others, whose threads wait.
__attribute__((noinline)) uint32_t recurse_to(uint32_t depth, uint32_t const* in) {
  uint32_t volatile room[64];
  room[depth % 64] = in[depth % kWords];
  return (depth == 0 ? 0 : recurse_to(depth - 1, in)) + room[depth % 32];
}

MOYE_KERNEL(64)
deep_recursion(uint32_t const* in, uint32_t* out) {
  sync_threads();
  if (tid() == 37) out[tid()] = recurse_to(300, in);
  sync_threads();
}

template <int kBytes>
__attribute__((noinline)) uint32_t fill(uint32_t const* in) {
  unsigned char volatile room[kBytes];
  for (int i = 0; i < kBytes; i += 512) room[i] = static_cast<unsigned char>(in[i % kWords]);
  return room[kBytes - 512];
}

MOYE_KERNEL(64)
large_frame(uint32_t const* in, uint32_t* out) {
  sync_threads();
  if (tid() == 37) out[tid()] = fill<128 * 1024>(in);
  sync_threads();
}

MOYE_KERNEL(64)
large_frame_ok(uint32_t const* in, uint32_t* out) { out[tid()] = fill<48 * 1024>(in); }

// ---------------------------------------------------------------------------------------------- races on global memory

MOYE_KERNEL(64)
two_ctas(uint32_t const*, uint32_t* out) {
  out[48 * block_idx().x + tid()] = 1;  // @two_ctas
}

MOYE_KERNEL(64)
two_ctas_ok(uint32_t const*, uint32_t* out) { reinterpret_cast<uint16_t*>(out)[64 * block_idx().x + tid()] = 1; }

MOYE_KERNEL(64)
reads_other_cta(uint32_t const*, uint32_t* out) {
  if (block_idx().x == 0) {
    out[tid()] = 1;  // @reads_other_cta store
  } else {
    smem_words()[tid()] = out[tid()];  // @reads_other_cta load
  }
}

MOYE_KERNEL(64)
global_race_in_cta(uint32_t const*, uint32_t* out) {
  out[tid() / 2] = tid();  // @global_race_in_cta
}

MOYE_KERNEL(64)
global_in_cta_ok(uint32_t const*, uint32_t* out) {
  out[tid()] = tid();
  sync_threads();
  out[64 + tid()] = out[63 - tid()];
  sync_threads();
  out[63 - tid()] = 0;
}

// ---------------------------------------------------------------------------------------------------------------- main

struct Case {
  char const* name;
  Kernel kernel;
  Dim3 grid{1, 1, 1};
  unsigned threads = 64;
};

#define MOYE_CASE(name, ...) {#name, name, __VA_ARGS__}
constexpr Dim3 kOne{1, 1, 1}, kTwo{2, 1, 1};
Case const kCases[] = {
    MOYE_CASE(missing_barrier, kOne, 64),
    MOYE_CASE(missing_barrier_before_reuse, kOne, 64),
    MOYE_CASE(one_late_reader, kOne, 64),
    MOYE_CASE(missing_warp_sync, kOne, 32),
    MOYE_CASE(arrive_instead_of_sync, kOne, 64),
    MOYE_CASE(neighbours_ok, kOne, 64),
    MOYE_CASE(byte_race, kOne, 64),
    MOYE_CASE(structure_race, kOne, 64),
    MOYE_CASE(site, kOne, 64),
    MOYE_CASE(no_wait, kOne, 64),
    MOYE_CASE(wait_off_by_one, kOne, 64),
    MOYE_CASE(no_commit, kOne, 64),
    MOYE_CASE(wait_without_barrier, kOne, 64),
    MOYE_CASE(barrier_without_wait, kOne, 64),
    MOYE_CASE(overwritten_in_flight, kOne, 64),
    MOYE_CASE(copied_twice, kOne, 64),
    MOYE_CASE(in_flight, kOne, 64),
    MOYE_CASE(misaligned_copy, kOne, 32),
    MOYE_CASE(too_many_source_bytes, kOne, 32),
    MOYE_CASE(shared_load_outside, kOne, 64),
    MOYE_CASE(shared_store_before, kOne, 64),
    MOYE_CASE(ldmatrix_outside, kOne, 32),
    MOYE_CASE(ldmatrix_of_global, kOne, 32),
    MOYE_CASE(misaligned_ldmatrix, kOne, 32),
    MOYE_CASE(load_outside, kOne, 64),
    MOYE_CASE(load_far_outside, kOne, 64),
    MOYE_CASE(store_outside, kOne, 64),
    MOYE_CASE(write_to_input, kOne, 64),
    MOYE_CASE(copy_outside, kOne, 64),
    MOYE_CASE(misaligned_load, kOne, 64),
    MOYE_CASE(fault, kOne, 64),
    MOYE_CASE(null_pointer, kOne, 64),
    MOYE_CASE(stack_overflow, kOne, 64),
    MOYE_CASE(deep_recursion, kOne, 64),
    MOYE_CASE(large_frame, kOne, 64),
    MOYE_CASE(large_frame_ok, kOne, 64),
    MOYE_CASE(two_ctas, kTwo, 64),
    MOYE_CASE(two_ctas_ok, kTwo, 64),
    MOYE_CASE(reads_other_cta, kTwo, 64),
    MOYE_CASE(global_race_in_cta, kOne, 64),
    MOYE_CASE(global_in_cta_ok, kOne, 64),
    MOYE_CASE(deadlock, kOne, 64),
    MOYE_CASE(deadlock_of_two, kOne, 96),
    MOYE_CASE(count_mismatch, kOne, 128),
    MOYE_CASE(bad_count, kOne, 64),
    MOYE_CASE(bad_id, kOne, 64),
    MOYE_CASE(arrives_twice, kOne, 64),
    MOYE_CASE(arrives_twice_ok, kOne, 64),
    MOYE_CASE(divergent_barrier, kOne, 64),
    MOYE_CASE(divergent_collective, kOne, 32),
    MOYE_CASE(shfl_from_outside, kOne, 32),
    MOYE_CASE(mask_without_self, kOne, 32),
    MOYE_CASE(half_a_warp, kOne, 48),
    MOYE_CASE(spin, kOne, 64),
    MOYE_CASE(endless_barriers, kOne, 64),
};
#undef MOYE_CASE

struct Arrays {
  emu::GuardedBuffer in{kWords * 4}, out{kWords * 4};
  emu::Stream stream;

  explicit Arrays(emu::Options const& options) {
    for (uint32_t i = 0; i < kWords; ++i) in_words()[i] = 1000 + i;
    stream.options = options;
    stream.memory = {{in.data(), in.size(), "in", false}, {out.data(), out.size(), "out", true}};
  }

  uint32_t* in_words() { return reinterpret_cast<uint32_t*>(in.data()); }
  uint32_t* out_words() { return reinterpret_cast<uint32_t*>(out.data()); }

  Status run(Kernel kernel, Dim3 grid, Dim3 block, int smem_bytes = 1024) {
    return launch_kernel(kernel, {.grid = grid, .block = block, .smem_bytes = smem_bytes}, &stream, in_words(),
                         out_words());
  }
};

void print(Status const& status) { std::printf("%s\n", status.ok() ? "ok" : status.message.c_str()); }

// Launches that CUDA refuses, one report a line.
void shapes(emu::Options const& options) {
  Arrays arrays(options);
  print(arrays.run(neighbours_ok, {0, 1, 1}, {64, 1, 1}));
  print(arrays.run(neighbours_ok, {1, 65536, 1}, {64, 1, 1}));
  print(arrays.run(neighbours_ok, {1, 1, 1}, {1025, 1, 1}));
  print(arrays.run(neighbours_ok, {1, 1, 1}, {64, 1, 1}, 232449));
  print(launch_kernel(neighbours_ok, {.grid = {3, 1, 1}, .block = {64, 1, 1}, .cluster = {2, 1, 1}, .smem_bytes = 0},
                      &arrays.stream, nullptr, nullptr));
  print(launch_kernel(neighbours_ok, {.grid = {1, 1, 1}, .block = {64, 1, 1}, .smem_bytes = 0}, nullptr, nullptr,
                      nullptr));
  print(arrays.run(neighbours_ok, {1, 1, 1}, {64, 1, 1}));
}

// A fault of a host thread, while another one launches kernels that fault too, goes to the program's own handler; and
// that handler is in place again afterwards.
sigjmp_buf back;
int handled = 0;

void on_fault(int) {
  ++handled;
  siglongjmp(back, 1);
}

void faults(emu::Options const& options) {
  struct sigaction action = {};
  action.sa_handler = on_fault;
  sigaction(SIGSEGV, &action, nullptr);
  std::atomic<bool> stop{false};
  std::atomic<int> reported{0};
  std::thread launcher([&] {
    while (!stop) {
      Arrays arrays(options);
      reported += arrays.run(fault, kOne, {64, 1, 1}).message.find("out of bounds: fault by thread 37") == 0;
    }
  });
  while (reported == 0) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {
    if (sigsetjmp(back, 1) == 0) load_unseen(nullptr);
  }
  stop = true;
  launcher.join();
  struct sigaction current;
  sigaction(SIGSEGV, nullptr, &current);
  std::printf("%d handled, handler %s\n", handled, current.sa_handler == on_fault ? "restored" : "lost");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::string const name = argv[1];
  emu::Options const options = options_from(argc, argv, 2);
  if (name == "shapes") return shapes(options), 0;
  if (name == "faults") return faults(options), 0;
  for (Case const& c : kCases) {
    if (name != c.name) continue;
    Arrays arrays(options);
    Status const status = arrays.run(c.kernel, c.grid, {c.threads, 1, 1});
    print(status);
    if (name == "in_flight") {
      int early = 0, poisoned = 0, stale = 0, late = 0;
      for (uint32_t i = 0; i < 64; ++i) {
        uint32_t const before = arrays.out_words()[i];
        early += before == 1000 + i, poisoned += before == 0xffffffffu, stale += before == 5;
        late += arrays.out_words()[64 + i] == 1000 + i;
      }
      std::printf("%d early, %d poisoned, %d stale, %d late\n", early, poisoned, stale, late);
    }
    return 0;
  }
  return 2;
}
