// The CPU machine that runs kernels: what moye/arch calls when the compiler is not nvcc, and what tests and ffi/ need.
//
// Every CUDA thread is a fiber; the CTAs of a launch are distributed over a few OS threads. Barriers and warp
// collectives are meeting points of fibers. An asynchronous copy takes effect at a legal moment chosen by Mode. Every
// access to shared memory is checked against the happens-before order of all earlier ones, every access to global
// memory against the arrays that the launch declared. A launch that breaks a rule returns its report as a Status: it
// never aborts.
//
// Plain loads and stores are seen if the kernel's translation unit is compiled with -fsanitize=thread; emu/hooks.cc
// takes the place of the compiler's runtime, which is not linked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "moye/arch/dim3.h"
#include "moye/arch/status.h"

namespace moye::emu {

// --------------------------------------------------------------------------------------------------- source locations

/// A source line: of the wrapper's caller, through a defaulted argument.
struct Loc {
  char const* file = nullptr;
  int line = 0;
  static constexpr Loc here(char const* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

/// While it lives, everything this thread does is reported at `loc`. Of several, the outermost counts.
class Site {
 public:
  explicit Site(Loc loc);
  ~Site();
  Site(Site const&) = delete;
  Site& operator=(Site const&) = delete;
};

// ------------------------------------------------------------------------------------------------------------ launches

/// When an asynchronous copy takes effect.
enum class Mode {
  eager,   // at its issue
  lazy,    // at the wait that guarantees it
  random,  // somewhere between, by Options::seed
};

/// Which of the threads that can run does.
enum class ThreadOrder { fifo, lifo, random };

/// OS threads of all launches that run at the same time, as long as those are not more: each has some MB, and mappings
/// of the system, of which a process has 65530.
inline constexpr int kMostWorkers = 64;

struct Options {
  Mode mode = Mode::lazy;
  uint64_t seed = 0;
  bool detect_races = true;
  bool poison = true;  // shared memory starts as 0xff bytes, NaN in every float type, and so is a copy's destination
                       // from its issue until it takes effect
  ThreadOrder order = ThreadOrder::fifo;
  int workers = 1;                 // OS threads, at most; launch() says how many it takes
  size_t stack_bytes = 64 * 1024;  // of each CUDA thread
  /// Accesses (but to its own stack) and instructions of one thread without its ever waiting for another, after which
  /// it is reported as endless. A loop that does neither is not noticed; C++ does not let it be endless.
  uint64_t watchdog_steps = 100'000'000;
  double watchdog_seconds = 600;          // of one CTA (cluster), after which it is reported as endless; 0: never
  int multiprocessors = 2;                // what arch/device.h reports: the grids of persistent kernels
  int max_blocks_per_multiprocessor = 1;  // and how many of their CTAs fit
  /// Whether to fill in the Transactions of Counters. It costs time and memory for every access between two meetings of
  /// a warp (transactions.cc).
  bool count_transactions = false;
  bool trace_mbarriers = false;  // whether to fill in Stream::trace
};

/// What happened to an mbarrier, and its state after it.
struct MbarrierEvent {
  char const* what;         // "mbarrier.arrive", "mbarrier.try_wait (waits)", "TMA load", "complete_tx", ...
  Dim3 block;               // whose mbarrier it is
  int thread;               // who did it, in its CTA; -1: TMA
  uint32_t offset;          // of the mbarrier in shared memory
  uint64_t phase;           // complete ones
  uint32_t pending, count;  // arrivals
  int64_t bytes;            // expected and not come
  Loc loc;
};

/// An array in global memory that the kernel may read, and write if `writable`.
struct Memory {
  void const* base;
  size_t bytes;
  char const* name;
  bool writable;
  bool lasting = false;  // no kernel ahead writes it: it may be read before a griddepcontrol.wait
};

/// What the memory instructions of one kind cost, per warp: an instruction is what its lanes do together.
struct Transactions {
  uint64_t requests = 0;          // instructions, each by one warp
  uint64_t wavefronts = 0;        // of shared memory: cycles, with bank conflicts
  uint64_t ideal_wavefronts = 0;  // the fewest in which the same bytes can be moved, 128 in each
  uint64_t bank_conflicts = 0;    // wavefronts behind the first of each phase
  uint64_t sectors = 0;           // of global memory: 32-byte pieces touched
  uint64_t ideal_sectors = 0;     // the fewest that hold as many bytes

  Transactions& operator+=(Transactions const& other);
};

/// What the launches of a stream did, summed over threads.
struct Counters {
  uint64_t launches = 0;
  uint64_t ctas = 0;
  uint64_t switches = 0;  // from fiber to fiber
  uint64_t barriers = 0;  // completed CTA barriers
  uint64_t warp_syncs = 0;
  uint64_t shuffles = 0;  // per warp, as are ldmatrix and mma
  uint64_t ldmatrix = 0;
  uint64_t ldmatrix_wavefronts = 0;        // shared-memory cycles the ldmatrix took
  uint64_t ldmatrix_ideal_wavefronts = 0;  // and would have taken without bank conflicts
  uint64_t mma = 0;
  uint64_t wgmma = 0;  // per warp
  uint64_t stmatrix = 0;
  uint64_t stmatrix_wavefronts = 0, stmatrix_ideal_wavefronts = 0;
  uint64_t cp_async = 0;                             // per thread
  uint64_t cp_async_bytes = 0;                       // read from global memory, zero fill excluded
  uint64_t shared_loads = 0, shared_load_bytes = 0;  // plain, per thread
  uint64_t shared_stores = 0, shared_store_bytes = 0;
  uint64_t global_loads = 0, global_load_bytes = 0;
  uint64_t global_stores = 0, global_store_bytes = 0;
  uint64_t cluster_barriers = 0;         // completed
  uint64_t mbarrier_phases = 0;          // completed
  uint64_t mbarrier_arrivals = 0;        // per thread
  uint64_t mbarrier_waits = 0;           // per thread
  uint64_t mbarrier_blocking_waits = 0;  // of them, those that found the phase incomplete
  uint64_t proxy_fences = 0;             // per thread
  uint64_t tma_loads = 0;                // instructions
  uint64_t tma_load_bytes = 0;           // read from global memory, once for all receivers; zero fill excluded
  uint64_t tma_load_sectors = 0;         // 32-byte pieces that a box's rows touch, each row by itself
  uint64_t tma_load_ideal_sectors = 0;   // the fewest that hold as many bytes as the box
  uint64_t tma_smem_bytes = 0;           // written to shared memory
  uint64_t tma_stores = 0;               // instructions, reductions among them
  uint64_t tma_store_bytes = 0;          // written to global memory
  uint64_t tma_store_sectors = 0, tma_store_ideal_sectors = 0;
  // With Options::count_transactions; ldmatrix is counted above.
  Transactions shared_load_transactions, shared_store_transactions;  // plain; no sectors
  Transactions global_load_transactions, global_store_transactions;  // plain; no wavefronts
  Transactions cp_async_transactions;                                // wavefronts of its stores, sectors of its loads

  Counters& operator+=(Counters const& other);
};

/// Told while launches of a stream run.
class Watcher {
 public:
  virtual ~Watcher() = default;
  /// Called about ten times a second on the OS thread that launched, and once after the last CTA. stored_bytes: what
  /// the launch has written to global memory so far, or a little less. False ends the launch: what it has not written
  /// by then stays as it is.
  virtual bool go_on(uint64_t stored_bytes) noexcept = 0;
};

/// What a StreamHandle points to.
struct Stream {
  Options options;
  std::vector<Memory> memory;
  Counters counters;
  Watcher* watcher = nullptr;        // none: nothing but a failure ends a launch
  std::vector<MbarrierEvent> trace;  // in their order, one cluster after the other with one worker
};

struct Shape {
  Dim3 grid, block, cluster;
  int smem_bytes;
  bool programmatic = false;  // a thread that touches global memory before its griddepcontrol.wait is reported
  int resident = 1;           // CTAs that share a multiprocessor's registers
};

/// Runs run_thread(argument) once in every CUDA thread and returns when all have ended or one has failed, or when the
/// stream's watcher has ended the launch. Several host threads may launch at the same time, each on its own Stream:
/// they share kMostWorkers.
Status launch(Shape const& shape, Stream* stream, void (*run_thread)(void*), void* argument);

// ------------------------------------------------------------------------------------------- what moye/arch's wrappers
// call

Dim3 thread_idx();
Dim3 block_idx();
Dim3 block_dim();
Dim3 grid_dim();
uint32_t lane_id();
uint32_t warp_id();
unsigned char* smem_base();
uint32_t smem_ptr_to_u32(void const* smem_ptr, Loc loc);

inline constexpr int kWholeCta = -1;
void bar_sync(int id, int threads, Loc loc);
void bar_arrive(int id, int threads, Loc loc);
void sync_warp(uint32_t mask, Loc loc);

enum class ShflKind { idx, up, down, bfly };
uint64_t shfl_bits(uint32_t mask, uint64_t bits, ShflKind kind, int operand, Loc loc);
template <class T>
T shfl(uint32_t mask, T value, ShflKind kind, int operand, Loc loc) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shfl_bits(mask, bits, kind, operand, loc);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

/// smem_src: this lane's row; dst: `matrices` registers.
void ldmatrix(void const* smem_src, int matrices, bool transposed, uint32_t* dst, Loc loc);

/// smem_dst: this lane's row; src: `matrices` registers.
void stmatrix(void* smem_dst, int matrices, bool transposed, uint32_t const* src, Loc loc);

/// dst and src: `bytes` bytes (4, 8 or 16), of which src_bytes are copied and the rest zero.
void cp_async(void* smem_dst, void const* gmem_src, int bytes, int src_bytes, Loc loc);
void cp_async_commit_group(Loc loc);
void cp_async_wait_group(int groups_in_flight, Loc loc);
void cp_async_wait_all(Loc loc);

enum class MmaType : uint8_t { f16, bf16, tf32, f32, f64, s8, u8, s4, u4, u1, e4m3, e5m2, s32 };
/// saturate: of an s32 sum that does not wrap around. xor_popc, and_popc: what stands in place of a product of bits.
/// tn and so on: the majors of A and B, of m8n8k4 with f16 alone, a quad pair's instruction.
enum class MmaOption : uint8_t { none, saturate, xor_popc, and_popc, tn, nt, nn, tt };
/// An mma.sync: D = A * B + C with A (m,k), B (n,k), C and D (m,n).
struct MmaKind {
  int m, n, k;
  MmaType a, b, cd;
  MmaOption option = MmaOption::none;
};

/// cd: this lane's registers of C, replaced by those of D; a, b: of A and B.
void mma(MmaKind const& kind, void* cd, void const* a, void const* b, Loc loc);

/// A wgmma.mma_async: D = A * B + D with A (64,k), B (n,k), D (64,n); k is 32 bytes.
struct WgmmaKind {
  int n;
  MmaType a, b, d;
  bool mn_major_a, mn_major_b;
  bool negate_a, negate_b;
};
/// d: this lane's registers themselves, which hold the result after the wait. a, b: descriptors.
void wgmma(WgmmaKind const& kind, void* d, uint64_t a, uint64_t b, bool scale_d, Loc loc);
/// a: this lane's four registers of A, in place.
void wgmma_rs(WgmmaKind const& kind, void* d, uint32_t const* a, uint64_t b, bool scale_d, Loc loc);
void wgmma_fence(Loc loc);
void wgmma_commit_group(Loc loc);
void wgmma_wait_group(int groups_in_flight, Loc loc);

}  // namespace moye::emu
