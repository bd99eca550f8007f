// The emulator's state. One Domain = one cluster of CTAs = one scheduling domain, run by one OS thread at a time.
//
//   Launch   one kernel launch: shape, options, arrays, the shadow of writable global memory, the first error
//   Domain   the cluster that an OS thread is running; its pools (stacks, shared memory, shadow, clocks) outlive it
//   Cta      shared memory, barriers
//   Warp     the place where lanes meet
//   Thread   a fiber, its clock, its asynchronous copies
//
// Order is kept by vector clocks. A clock has one component per *agent*: agents 0..T-1 are the domain's threads, the
// next ones asynchronous operations as they turn up (new_async_agent: the TMA loads of an mbarrier, the TMA stores of a
// thread, the wgmmas of a warp), the last T the cp.async copies of the threads, counted in groups.
//
// A clock has these components twice. The first ones tell what has happened; the second ones what the async proxy is
// known to see of it: fence.proxy.async makes the second ones as large as the first.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "moye/emu/emu.h"
#include "moye/emu/fiber.h"
#include "moye/emu/shadow.h"
#include "moye/emu/sm90.h"
#include "moye/emu/tensor_map.h"

namespace moye::emu {

struct Cta;
struct Domain;
struct Launch;
struct Thread;
struct Warp;

/// The happens-before knowledge of a thread or a barrier: of each agent, the last event known to have happened, and
/// from component Domain::agents on, the last event the async proxy is known to see.
/// Points into Domain::clock_pool; null when races are not detected.
using Clock = uint32_t*;

/// What an instruction family keeps in a warp while operations are in flight (wgmma.cc). Emptied with each cluster.
struct WarpState {
  virtual ~WarpState() = default;
  /// A thread of the warp ends: fails if operations of it are still in flight.
  virtual void on_exit(Thread& thread) = 0;
};

/// A cp.async that was issued and has not taken effect.
struct AsyncCopy {
  unsigned char* dst;
  void const* src;
  int bytes, src_bytes;
  uint32_t group;
};

struct Mbarrier;

/// A TMA load that was issued and has not taken effect.
struct TmaLoad {
  EncodedTensorMap map;
  int32_t coordinates[EncodedTensorMap::kMaxRank];
  uint32_t offset;     // in shared memory
  Mbarrier* mbarrier;  // of the CTA that receives the box: a multicast is one of these for each
  uint32_t sequence;   // of the mbarrier's loads
  Thread* thread;
  Loc loc;
};

/// A TMA store or reduction that was issued and has not yet written global memory.
struct TmaStore {
  EncodedTensorMap map;
  int32_t coordinates[EncodedTensorMap::kMaxRank];
  uint32_t offset;  // in shared memory
  TmaStoreKind kind;
  uint32_t group;
  std::vector<unsigned char> data;  // what it has read, empty before
  bool written;
  bool waited;  // for its having read
  Loc loc;
};

/// What a blocked thread waits for.
struct Wait {
  char const* what = nullptr;
  std::string (*describe)(void const* object) = nullptr;
  void const* object = nullptr;
  Loc loc;
};

struct Thread {
  uintptr_t stack_begin;  // of its fiber: registers and local memory, which the hooks pass over at once
  size_t stack_bytes;
  Domain* domain;
  Cta* cta;
  Warp* warp;
  Clock clock;
  uint32_t* floors;     // by 32 agents: no component of the clock is less than this (race.cc)
  uint64_t steps_left;  // until the next look at whether to go on (Domain::out_of_steps)
  uint64_t more_steps;  // of Options::watchdog_steps after those
  int site_depth;       // Site objects alive; site is the outermost
  Loc site;
  int id;     // in the CTA
  int agent;  // in the domain
  int lane;
  bool finished;
  bool may_touch_global;  // the kernel ahead has ended, for what the thread knows
  Dim3 index;
  Wait wait;
  uint32_t groups;  // cp.async groups committed
  std::vector<AsyncCopy> copies;
  uint32_t store_groups;  // bulk groups committed
  std::vector<TmaStore> stores;
  int store_agent;                           // of its TMA stores, -1 without one
  uint64_t cluster_arrivals, cluster_waits;  // at barrier.cluster
  std::vector<Mbarrier*> unfenced;           // initialized by it since its last fence
  bool phase_complete;                       // of a wait at an mbarrier: how it ended
  Fiber fiber;

  Loc reported(Loc loc) const { return site_depth > 0 ? site : loc; }
};

/// What a lane did to memory: part of an instruction of its warp.
enum class AccessKind : uint8_t { shared_load, shared_store, global_load, global_store, cp_async_load, cp_async_store };
struct LaneAccess {
  void const* pc;  // of the instruction
  uint64_t address;
  AccessKind kind;
  uint8_t lane;
  uint8_t bytes;  // at most 16
};

/// Lanes of a warp that wait for each other.
struct Meeting {
  uint32_t mask = 0;  // who takes part
  uint32_t arrived = 0;
  char const* what = nullptr;
  Loc loc;
  void* arguments[32];
};

struct Warp {
  Cta* cta;
  int id;                            // in the CTA
  uint32_t lanes;                    // that exist
  Thread* first;                     // lane 0; the others follow
  int registers;                     // per thread, setmaxnreg's
  std::vector<Meeting> meetings;     // more than one at a time only with partial masks
  std::vector<LaneAccess> accesses;  // since all lanes last met; empty unless transactions are counted
  std::unique_ptr<WarpState> wgmma;  // made and used by wgmma.cc
};

/// One of a CTA's 16 barriers.
struct Barrier {
  int id = 0;
  int expected = 0, count = 0;  // threads
  Loc first_loc;                // of this phase
  Thread* first_thread = nullptr;
  Clock clock = nullptr;
  std::vector<Thread*> waiters;
  uint32_t arrived[32] = {};  // lanes, by warp
  Loc locs[32];               // by warp
};

/// An initialized mbarrier. Its 8 bytes of shared memory hold a mark and its place in Cta::mbarriers (mbarrier.cc).
struct Mbarrier {
  /// What a thread at it waits for, by parity.
  struct Phase {
    Mbarrier const* mbarrier;
    uint32_t parity;
  };
  struct Waiter {
    Thread* thread;
    uint32_t parity;
    bool polls;  // try_wait: it may be told no
  };

  Cta* cta;
  uint32_t offset;
  bool valid;
  uint32_t count, pending;  // arrivals
  int64_t bytes;            // expected and not come; less than 0 where they came before they were expected
  uint64_t phase;           // completed ones
  Phase phases[2];
  std::vector<Waiter> waiters;
  Thread* owner;  // who initialized it
  Loc loc;
  uint32_t init_event, fence_event;  // of the owner; 0: not fenced
  uint64_t fence_arrivals;           // at barrier.cluster, of the owner, at the fence
  Clock arrived = nullptr;           // what the arrivals so far know
  Clock complete = nullptr;          // and those of the last completed phase
  int agent = -1;                    // of the TMA loads to it, whose events are their sequence numbers
  uint32_t loads = 0;                // issued
  Loc load_loc;                      // of the last one
  std::vector<uint32_t> in_flight;   // sequence numbers, ascending
};

/// What another CTA of the cluster did here last, by thread: the CTA must not exit before it knows.
struct RemoteOperation {
  Thread const* thread;
  uint32_t event;
  char const* what;
  Loc loc;
};

inline constexpr int kBarriers = 16;
inline constexpr int kRegisters = 64 * 1024;     // of a multiprocessor
inline constexpr size_t kPageBytes = 64 * 1024;  // a multiple of every page size in use
/// Address space kept free on either side of a mapping, so that an index out of range in an array of the caller, who
/// may get the addresses beside it, is not taken for a stack overflow or for shared memory.
inline constexpr size_t kMappingMargin = 1 << 20;
inline constexpr uint64_t kStepsAtOnce = 1 << 16;  // a few milliseconds

struct Cta {
  Domain* domain;
  Dim3 index;
  uint64_t linear;  // index in the grid, x fastest
  unsigned char* smem;
  Thread* threads;
  Warp* warps;
  int warp_count;
  Barrier barriers[kBarriers];
  ShadowCell* shadow;  // per 16 bytes of shared memory
  uint32_t rank;       // in the cluster
  int live;            // threads that have not exited
  std::vector<std::unique_ptr<Mbarrier>> mbarriers;
  std::vector<RemoteOperation> remote;
  Clock exit_clock;    // what its exited threads knew; null without mbarriers and clusters
  int free_registers;  // of the multiprocessor's, per 32 lanes
  std::vector<Thread*> register_waiters;
};

/// What an access was and where: what races are reported with. line < 0: file is a code address.
struct AccessSite {
  char const* what;
  Loc loc;
};

/// A declared array.
struct Region {
  Memory memory;
  // Per byte the last write and the last read, packed (race.cc); null for arrays that are only read.
  std::unique_ptr<std::atomic<uint64_t>[], void (*)(void*)> writes { nullptr, nullptr };
  std::unique_ptr<std::atomic<uint64_t>[], void (*)(void*)> reads { nullptr, nullptr };

  uintptr_t base() const { return reinterpret_cast<uintptr_t>(memory.base); }
};

/// So many fit into the 14 bits that the shadow of global memory has for them.
inline constexpr size_t kMaxSites = 1 << 14;

struct Launch {
  Shape shape;
  Options options;
  std::vector<Region> regions;
  void (*run_thread)(void*);
  void* argument;
  int threads_per_cta, ctas_per_cluster;
  uint64_t clusters;
  uintptr_t host_frame;  // an address in the launching function: the kernel's arguments lie above it

  std::atomic<uint64_t> next_cluster{0};
  std::atomic<uint64_t> failed_cluster{UINT64_MAX};  // the lowest
  std::atomic<bool> stop{false};                     // the watcher has ended the launch
  std::atomic<bool> out_of_memory{false};            // a string that says so might find no memory either
  std::atomic<uint64_t> stored_bytes{0};             // to global memory, as far as the domains have told
  std::mutex mutex;                                  // of what follows
  std::condition_variable worker_ended;
  size_t ended_workers = 0;
  std::string message;
  Counters counters;
  std::vector<MbarrierEvent> trace;
  std::vector<AccessSite> sites;

  void report_failure(uint64_t cluster, std::string const& text);
  void report_out_of_memory();
  uint16_t add_site(AccessSite const& site);
};

struct Domain {
  Domain() = default;
  ~Domain();
  Domain(Domain const&) = delete;
  Domain& operator=(Domain const&) = delete;

  /// Runs clusters of the launch until none is left.
  void work(Launch& launch);

  // Scheduling: called by the running thread.
  void make_ready(Thread& thread);
  void block(char const* what, std::string (*describe)(void const*), void const* object, Loc loc);  // until make_ready
  void yield();            // lets the other threads that can run do so first
  void yield_sometimes();  // under ThreadOrder::random, at an instruction that does not wait
  void finish_thread();
  void count_step(Thread& thread, Loc loc) {
    if (--thread.steps_left == 0) out_of_steps(thread, loc);
  }
  uint64_t random();

  /// Address space and memory that the domain keeps while nobody uses it, in bytes.
  size_t kept_bytes() const;

  /// Ends the cluster; `message` is called on the OS thread's own stack.
  template <class Message>
  [[noreturn]] void fail(Message const& message) {
    fail_with([](void const* object) { return (*static_cast<Message const*>(object))(); }, &message);
  }
  [[noreturn]] void fail_with(std::string (*message)(void const*), void const* object);
  /// Ends the cluster where the emulator itself has found no memory. Not from inside a catch block: its exception
  /// would stay alive.
  [[noreturn]] void fail_without_memory();
  [[noreturn]] void fail_on_overflow(Thread& thread);

  bool is_async_agent(uint32_t agent) const {
    return agent >= threads.size() && agent < static_cast<uint32_t>(first_cp_async_agent());
  }
  int first_cp_async_agent() const { return static_cast<int>(threads.size()) + most_async_agents; }
  int cp_async_agent(Thread const& thread) const { return first_cp_async_agent() + thread.agent; }

  /// A clock for this cluster, all zero. Only if races are detected.
  Clock further_clock();
  void clear(Clock clock) const {
    std::memset(clock, 0, agents * sizeof(uint32_t));
    if (proxy_fences) std::memset(clock + agents, 0, agents * sizeof(uint32_t));
  }

  uint16_t site(char const* what, Loc loc);
  bool in_smem_mapping(uintptr_t address) const { return address - smem_begin < smem_bytes_mapped; }
  bool in_stacks(uintptr_t address) const { return address - stacks_begin < stacks_bytes_mapped; }
  /// Whether the address is below a stack of the domain, where an overflow gets to first.
  bool below_stack(uintptr_t address) const {
    return (address - stacks_begin) % (stack_bytes_ + kStackGuardBytes) < kStackGuardBytes;
  }

  Launch* launch = nullptr;
  uint64_t cluster = 0;  // index of the running one
  bool detect_races = false;
  bool count_transactions = false;
  Counters counters;
  std::vector<MbarrierEvent> trace;
  Thread* running = nullptr;
  std::vector<Cta> ctas;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  int agents = 0;             // components of a clock, in each of its two parts
  int used_agents = 0;        // the others are 0: kernels without cp.async need not carry its part
  bool proxy_fences = false;  // whether there was a fence.proxy.async: until then the second parts are 0
  /// Who issues the operations of the asynchronous agents, in the order of new_async_agent.
  struct AsyncAgent {
    Thread* thread;
    bool warp;  // all of the thread's warp together
  };
  std::vector<AsyncAgent> async_agents;
  int most_async_agents = 0;
  std::unique_ptr<uint32_t[]> clock_pool;
  std::unique_ptr<uint32_t[]> floor_pool;
  Clock scratch_clock = nullptr;

  // Two mappings, each with bytes that nothing may touch around every part. Those around shared memory are more than a
  // CTA can have, so that an index out of range does not reach the next CTA's. Those below a stack are guard pages
  // where Linux has them inside of a mapping, since 6.13: pages protected otherwise are two mappings of the system for
  // each CUDA thread, of which a process has 65530. Elsewhere a kernel's accesses, calls and waits are looked at.
  static constexpr size_t kStackGuardBytes = 32 * 1024;
  static constexpr size_t kSmemGuardBytes = 256 * 1024;
  uintptr_t stacks_begin = 0;
  size_t stacks_bytes_mapped = 0;
  uintptr_t smem_begin = 0;
  size_t smem_bytes_mapped = 0;

  Shadow shadow;

  // Asynchronous operations that take effect on their own.
  std::vector<TmaLoad> tma_loads;  // in flight
  std::vector<Mbarrier*> polled;   // with a waiter that polls
  int idle_polls = 0;              // times all pollers were told no since anything happened

  // barrier.cluster. Two clocks: threads may arrive for the next phase while others still leave this one.
  uint64_t cluster_phase = 0;  // completed ones
  int cluster_pending = 0;     // threads that have not arrived
  Clock cluster_clocks[2] = {};
  std::vector<Thread*> cluster_waiters;

 private:
  void start_cluster(uint64_t index);
  void map_stacks(size_t count, size_t bytes);
  void map_smem(size_t count, size_t bytes);
  void allocate_clocks();
  void clear_clocks();
  void schedule();
  [[noreturn]] void deadlock();
  void refill_steps(Thread& thread);
  void out_of_steps(Thread& thread, Loc loc);
  [[noreturn]] void endless(Thread& thread, Loc loc);
  [[noreturn]] void leave_cluster();
  void tell_stored_bytes();
  void check_time();

  Fiber main_;
  std::vector<Thread*> ready_;  // a ring: its size is a power of two
  size_t ready_head_ = 0, ready_count_ = 0;
  int live_ = 0;
  uint64_t random_state_ = 0;
  std::chrono::steady_clock::time_point deadline_;
  bool failed_ = false;
  uint64_t told_stored_bytes_ = 0;
  std::string (*failure_)(void const*) = nullptr;
  void const* failure_object_ = nullptr;

  size_t stack_bytes_ = 0, stack_count_ = 0;
  size_t smem_part_bytes_ = 0, smem_part_count_ = 0;
  size_t clock_pool_size_ = 0, floor_pool_size_ = 0;
  std::vector<std::unique_ptr<uint32_t[]>> further_clocks_;
  size_t further_clock_size_ = 0, used_further_clocks_ = 0;
  std::vector<Clock> barrier_clocks_;
  struct CachedSite {
    AccessSite site{};
    uint16_t index = 0;
  };
  CachedSite site_cache_[256];
};

// ---------------------------------------------------------------------------------------------- asynchronous
// operations

/// Lets one TMA load in flight take effect: the newest, under Mode::random any. Fails if its CTA has exited.
void complete_tma_load(Domain& domain);
/// Under Mode::random, sometimes one of those in flight.
void complete_some_tma_loads(Domain& domain);
/// The thread ends: fails if a TMA store of it may not have read its source, and completes the others.
void finish_tma_stores(Thread& thread);

/// The mbarrier in the CTA, ready for the thread's instruction `what`. remote: through the cluster or the async proxy,
/// which need a fence after its initialization.
Mbarrier& find_mbarrier(Thread& thread, Cta& cta, uint32_t offset, bool remote, char const* what, Loc loc);
/// Keeps what has happened to an mbarrier, by a thread or null for TMA. Only with Options::trace_mbarriers.
void trace(Mbarrier const& mbarrier, Thread const* thread, char const* what, Loc loc);
/// Bytes of TMA have come.
void complete_tx(Mbarrier& mbarrier, uint32_t bytes, uint32_t sequence);
/// Tells all pollers no. False if there is none, or if it has been tried often enough.
bool refuse_pollers(Domain& domain);

/// Fails if the CTA has exited.
void require_live(Thread& thread, Cta& cta, char const* what, Loc loc);
/// The same, and remembers that it must not exit yet.
void touch_remote_cta(Thread& thread, Cta& cta, char const* what, Loc loc);
/// The thread, which is the last one of its CTA, exits: fails if others still reach the CTA's shared memory.
void check_cta_exit(Thread& thread);
/// The thread exits: others no longer wait for it at barrier.cluster.
void leave_cluster_barrier(Thread& thread);

// ------------------------------------------------------------------------------------------------------------- current

/// The CUDA thread this OS thread is running, null outside kernels. Initial-exec: one load instead of a call, in every
/// instrumented access; 8 bytes fit in the room that the C library keeps for libraries loaded later.
extern constinit thread_local Thread* current_thread __attribute__((tls_model("initial-exec")));

// ------------------------------------------------------------------------------------------------------------- reports

std::string format(char const* pattern, ...) __attribute__((format(printf, 1, 2)));
/// "sm80.cuh:147"; for a code address what addr2line says of it, or module+offset.
std::string at(Loc loc);
/// "block (1,0,0) thread 37 (warp 1 lane 5)", without the block if the grid has one CTA.
std::string who(Launch const& launch, Dim3 block, int thread_id);
std::string who(Thread const& thread);
/// "block (1,0,0)"
std::string block_name(Dim3 block);

// -------------------------------------------------------------------------------------------------------------- memory

enum class Proxy { thread, cp_async };

/// The offset in the thread's shared memory of `bytes` bytes at `address`; fails if they are not inside.
uint32_t smem_offset(Thread& thread, void const* address, size_t bytes, char const* what, Loc loc);
/// Fails unless the bytes are in a declared array, writable if written; records the access in its shadow.
void global_access(Thread& thread, void const* address, size_t bytes, bool write, char const* what, Loc loc);

/// A reduction to a declared array: the same without the record, because reductions do not race with each other.
void global_reduction(Thread& thread, void const* address, size_t bytes, char const* what, Loc loc);

/// A plain load or store of a running kernel, outside its thread's own stack, before it happens. pc: what follows it.
void plain_access(void const* address, size_t bytes, size_t alignment, bool write, void const* pc);

std::string overflow_text(Thread const& thread);
/// The message for a fault at `address`, by the instruction at `pc` (fault.cc calls it). sp: the stack pointer, or 0.
/// protection: the processor did not tell the address.
std::string describe_fault(Thread& thread, uintptr_t address, uintptr_t pc, uintptr_t sp, bool protection);

// -------------------------------------------------------------------------------------------------------- transactions

/// Keeps the access until the lanes of the thread's warp have met. Only with Domain::count_transactions.
void keep_access(Thread& thread, AccessKind kind, void const* pc, uint64_t address, size_t bytes);
/// All lanes of the warp have met, or ended: what they have done since the last time is counted.
void count_transactions(Domain& domain, Warp& warp);

// ----------------------------------------------------------------------------------------------------------------
// races

/// Makes what the thread knows known to `into` and starts a new event of the thread.
void release(Thread& thread, Clock into);
/// Makes known to the thread what `from` knows, to which the thread has released since it last learnt anything.
void acquire(Thread& thread, Clock from);

/// Makes known to `into` what `from` knows.
void join(Domain const& domain, Clock into, Clock from);

// Asynchronous operations that access shared memory through the async proxy: TMA, wgmma. Call these only if
// Domain::detect_races. An operation is ordered after what the thread that issued it knows, and before whatever knows
// that its agent has reached its event:
//
//   if (state.agent < 0) state.agent = new_async_agent(thread, /*warp=*/true);             // once per cluster and warp
//   AsyncOperation const read{thread.clock, thread.floors, state.agent, group + 1, "wgmma", loc};
//   async_access(domain, read, cta, offset, bytes, /*write=*/false);                        // at its issue
//   async_done(waiting_thread, state.agent, groups_complete);                               // at wait_group

/// A new component of all clocks, 0 in each. Reports name the thread, or its warp.
int new_async_agent(Thread& thread, bool warp);

struct AsyncOperation {
  Clock order;       // what it is ordered after: the clock of the thread that issued it, or one made by join
  uint32_t* floors;  // Thread::floors if `order` is that thread's own clock, else null
  int agent;
  uint32_t event;  // from 1 on; those of an agent happen in this order
  char const* what;
  Loc loc;
};
/// Records the access of `bytes` bytes at `offset` in the CTA's shared memory and fails if it is a race. A plain write
/// or a cp.async before it must be followed by fence.proxy.async; a plain read need not.
void async_access(Domain& domain, AsyncOperation const& operation, Cta& cta, uint32_t offset, size_t bytes, bool write);
/// Reads of 16 bytes at each of `count` offsets.
void async_reads(Domain& domain, AsyncOperation const& operation, Cta& cta, uint32_t const* offsets, int count);
/// The thread knows from now on that the agent has reached this event.
void async_done(Thread& thread, int agent, uint32_t event);
/// fence.proxy.async: what the thread knows to have happened is visible to the async proxy.
void proxy_fence(Thread& thread);

/// An access to shared memory by the thread, or by its cp.async copies of the group being formed.
void shared_access(Thread& thread, Cta& cta, uint32_t offset, size_t bytes, bool write, Proxy proxy, char const* what,
                   Loc loc);
/// An access to a writable array, at `offset`.
void global_race_check(Thread& thread, Region& region, size_t offset, size_t bytes, bool write, char const* what,
                       Loc loc);
void allocate_global_shadow(Region& region);
/// Empties the shadow of `ctas` CTAs' shared memory.
void reset(Shadow& shadow, size_t ctas, size_t smem_bytes);

// --------------------------------------------------------------------------------------------------------------
// signals

/// While it lives, faults of kernels become reports (fault.cc).
class FaultHandler {
 public:
  FaultHandler();
  ~FaultHandler();
};
/// The same for the OS thread it is made on: a stack for the handler.
class FaultStack {
 public:
  FaultStack();
  ~FaultStack();

 private:
  std::unique_ptr<char[]> stack_;
  void* previous_stack_ = nullptr;
  size_t previous_bytes_ = 0;
  int previous_flags_ = 0;
};

}  // namespace moye::emu
