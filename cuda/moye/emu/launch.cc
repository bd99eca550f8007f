// A launch: checking its shape, the OS threads that run its clusters, and the pools of stacks and shared memory they
// use.
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#include "moye/emu/machine.h"

namespace moye::emu {

Transactions& Transactions::operator+=(Transactions const& other) {
  requests += other.requests;
  wavefronts += other.wavefronts;
  ideal_wavefronts += other.ideal_wavefronts;
  bank_conflicts += other.bank_conflicts;
  sectors += other.sectors;
  ideal_sectors += other.ideal_sectors;
  return *this;
}

Counters& Counters::operator+=(Counters const& other) {
  launches += other.launches;
  ctas += other.ctas;
  switches += other.switches;
  barriers += other.barriers;
  warp_syncs += other.warp_syncs;
  shuffles += other.shuffles;
  ldmatrix += other.ldmatrix;
  ldmatrix_wavefronts += other.ldmatrix_wavefronts;
  ldmatrix_ideal_wavefronts += other.ldmatrix_ideal_wavefronts;
  mma += other.mma;
  wgmma += other.wgmma;
  stmatrix += other.stmatrix;
  stmatrix_wavefronts += other.stmatrix_wavefronts;
  stmatrix_ideal_wavefronts += other.stmatrix_ideal_wavefronts;
  cp_async += other.cp_async;
  cp_async_bytes += other.cp_async_bytes;
  shared_loads += other.shared_loads;
  shared_load_bytes += other.shared_load_bytes;
  shared_stores += other.shared_stores;
  shared_store_bytes += other.shared_store_bytes;
  global_loads += other.global_loads;
  global_load_bytes += other.global_load_bytes;
  global_stores += other.global_stores;
  global_store_bytes += other.global_store_bytes;
  cluster_barriers += other.cluster_barriers;
  mbarrier_phases += other.mbarrier_phases;
  mbarrier_arrivals += other.mbarrier_arrivals;
  mbarrier_waits += other.mbarrier_waits;
  mbarrier_blocking_waits += other.mbarrier_blocking_waits;
  proxy_fences += other.proxy_fences;
  tma_loads += other.tma_loads;
  tma_load_bytes += other.tma_load_bytes;
  tma_load_sectors += other.tma_load_sectors;
  tma_load_ideal_sectors += other.tma_load_ideal_sectors;
  tma_smem_bytes += other.tma_smem_bytes;
  tma_stores += other.tma_stores;
  tma_store_bytes += other.tma_store_bytes;
  tma_store_sectors += other.tma_store_sectors;
  tma_store_ideal_sectors += other.tma_store_ideal_sectors;
  shared_load_transactions += other.shared_load_transactions;
  shared_store_transactions += other.shared_store_transactions;
  global_load_transactions += other.global_load_transactions;
  global_store_transactions += other.global_store_transactions;
  cp_async_transactions += other.cp_async_transactions;
  return *this;
}

// -------------------------------------------------------------------------------------------------------------- pools

namespace {

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// A mapping of address space alone, with a margin on either side of its `bytes` bytes.
uintptr_t reserve(size_t bytes) {
  size_t const all = bytes + 2 * kMappingMargin;
  void* const map = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  return reinterpret_cast<uintptr_t>(map) + kMappingMargin;
}

void unmap(uintptr_t begin, size_t bytes) {
  if (bytes != 0) munmap(reinterpret_cast<void*>(begin - kMappingMargin), bytes + 2 * kMappingMargin);
}

// `count` parts of `bytes` accessible bytes, each behind `guard` inaccessible ones, and a guard at the end.
uintptr_t map_parts(size_t count, size_t bytes, size_t guard, size_t* mapped) {
  size_t const all = count * (guard + bytes) + guard;
  uintptr_t const begin = reserve(all);
  for (size_t i = 0; i < count && bytes != 0; ++i) {
    void* const part = reinterpret_cast<void*>(begin + i * (guard + bytes) + guard);
    if (mprotect(part, bytes, PROT_READ | PROT_WRITE) == 0) continue;
    unmap(begin, all);
    throw std::bad_alloc();
  }
  *mapped = all;
  return begin;
}

std::atomic<int> running_launches{0};

// Counts a launch, and says how many OS threads are its share.
class WorkerShare {
 public:
  WorkerShare() : workers_(std::max(1, kMostWorkers / ++running_launches)) {}
  ~WorkerShare() { --running_launches; }
  WorkerShare(WorkerShare const&) = delete;
  WorkerShare& operator=(WorkerShare const&) = delete;
  int workers() const { return workers_; }

 private:
  int workers_;
};

// Domains nobody uses. A launch borrows one for each of its OS threads.
class DomainPool {
 public:
  DomainPool() { free_.reserve(kMostWorkers); }

  std::unique_ptr<Domain> borrow() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Domain>();
    std::unique_ptr<Domain> domain = std::move(free_.back());
    free_.pop_back();
    kept_bytes_ -= domain->kept_bytes();
    return domain;
  }

  void give_back(std::unique_ptr<Domain> domain) {
    std::lock_guard lock(mutex_);
    size_t const bytes = kept_bytes_ + domain->kept_bytes();
    if (free_.size() == kMostWorkers || bytes > kMostKeptBytes) return;
    kept_bytes_ = bytes;
    free_.push_back(std::move(domain));
  }

 private:
  static constexpr size_t kMostKeptBytes = size_t{512} << 20;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Domain>> free_;
  size_t kept_bytes_ = 0;
};

DomainPool& domain_pool() {
  static auto* const pool = new DomainPool;  // never destroyed: an OS thread may outlive static objects
  return *pool;
}

}  // namespace

void Domain::map_stacks(size_t count, size_t bytes) {
  bytes = round_up(bytes, kPageBytes);
  if (stack_count_ >= count && stack_bytes_ == bytes) return;
  unmap(stacks_begin, stacks_bytes_mapped);
  stacks_begin = stacks_bytes_mapped = stack_count_ = 0;
  size_t const all = round_up(count * (kStackGuardBytes + bytes), kPageBytes);
  uintptr_t const begin = reserve(all);
  if (mprotect(reinterpret_cast<void*>(begin), all, PROT_READ | PROT_WRITE) != 0) {
    unmap(begin, all);
    throw std::bad_alloc();
  }
#if !defined(MOYE_EMU_NO_GUARD_PAGES)
  constexpr int kGuardInstall = 102;  // MADV_GUARD_INSTALL, which older headers do not have
  for (size_t i = 0; i < count; ++i) {
    void* const guard = reinterpret_cast<void*>(begin + i * (kStackGuardBytes + bytes));
    if (madvise(guard, kStackGuardBytes, kGuardInstall) != 0) break;
  }
#endif
  stacks_begin = begin;
  stacks_bytes_mapped = all;
  stack_count_ = count;
  stack_bytes_ = bytes;
}

void Domain::map_smem(size_t count, size_t bytes) {
  bytes = round_up(bytes, kPageBytes);
  if (smem_part_count_ >= count && smem_part_bytes_ >= bytes + kSmemGuardBytes) return;
  unmap(smem_begin, smem_bytes_mapped);
  smem_begin = smem_bytes_mapped = smem_part_count_ = 0;
  smem_begin = map_parts(count, bytes, kSmemGuardBytes, &smem_bytes_mapped);
  smem_part_count_ = count;
  smem_part_bytes_ = bytes + kSmemGuardBytes;
}

size_t Domain::kept_bytes() const {
  constexpr size_t kTouched = 16 * 1024;  // of a stack, by the kernels of this repository
  size_t const clocks = clock_pool_size_ + floor_pool_size_ + further_clocks_.size() * further_clock_size_;
  return stack_count_ * kTouched + smem_part_count_ * (smem_part_bytes_ - kSmemGuardBytes) + clocks * sizeof(uint32_t);
}

// A clock for each thread, then for each barrier, then one to compute with.
void Domain::allocate_clocks() {
  constexpr int kAsyncAgentsPerCta = 96;
  auto const thread_count = static_cast<int>(threads.size());
  most_async_agents = kAsyncAgentsPerCta * static_cast<int>(ctas.size());
  agents = (2 * thread_count + most_async_agents + 31) / 32 * 32;
  size_t const clock_size = 2 * static_cast<size_t>(agents);
  size_t const barrier_count = ctas.size() * kBarriers;
  size_t const size = (threads.size() + barrier_count + 1) * clock_size;
  if (clock_pool_size_ < size) {
    clock_pool = std::make_unique<uint32_t[]>(size);
    clock_pool_size_ = size;
  } else {
    std::memset(clock_pool.get(), 0, size * sizeof(uint32_t));  // another launch had its clocks elsewhere
  }
  if (further_clock_size_ != clock_size) further_clocks_.clear();
  further_clock_size_ = clock_size;
  proxy_fences = false;
  size_t const floors = threads.size() * agents / 32;
  if (floor_pool_size_ < floors) {
    floor_pool = std::make_unique<uint32_t[]>(floors);
    floor_pool_size_ = floors;
  }
  barrier_clocks_.resize(barrier_count);
  Clock next = clock_pool.get() + threads.size() * clock_size;
  for (Clock& clock : barrier_clocks_) {
    clock = next;
    next += clock_size;
  }
  scratch_clock = next;
}

// All zero again: the first parts of the threads' clocks, and the second parts of all clocks if there was a fence.
void Domain::clear_clocks() {
  std::memset(floor_pool.get(), 0, threads.size() * agents / 32 * sizeof(uint32_t));
  size_t const count = threads.size() + barrier_clocks_.size() + 1;
  for (size_t i = 0; i < count; ++i) {
    Clock const clock = clock_pool.get() + i * 2 * agents;
    if (i < threads.size()) std::memset(clock, 0, agents * sizeof(uint32_t));
    if (proxy_fences) std::memset(clock + agents, 0, agents * sizeof(uint32_t));
  }
  used_further_clocks_ = 0;
  proxy_fences = false;
  used_agents = static_cast<int>(threads.size());
  async_agents.clear();
}

Clock Domain::further_clock() {
  if (used_further_clocks_ == further_clocks_.size()) {
    further_clocks_.push_back(std::make_unique<uint32_t[]>(further_clock_size_));
  } else {
    std::memset(further_clocks_[used_further_clocks_].get(), 0, further_clock_size_ * sizeof(uint32_t));
  }
  return further_clocks_[used_further_clocks_++].get();
}

Domain::~Domain() {
  unmap(stacks_begin, stacks_bytes_mapped);
  unmap(smem_begin, smem_bytes_mapped);
}

// -------------------------------------------------------------------------------------------------------------- launch

void Launch::report_failure(uint64_t failed, std::string const& text) {
  std::lock_guard lock(mutex);
  if (failed >= failed_cluster) return;
  failed_cluster = failed;
  message = text;
}

void Launch::report_out_of_memory() {
  out_of_memory = true;
  failed_cluster = 0;  // nobody begins another one
}

uint16_t Launch::add_site(AccessSite const& site) {
  std::lock_guard lock(mutex);
  for (size_t i = 0; i < sites.size(); ++i) {
    if (sites[i].what == site.what && sites[i].loc.file == site.loc.file && sites[i].loc.line == site.loc.line) {
      return static_cast<uint16_t>(i);
    }
  }
  if (sites.size() == kMaxSites) return 0;
  sites.push_back(site);
  return static_cast<uint16_t>(sites.size() - 1);
}

namespace {

bool divides(Dim3 divisor, Dim3 n) { return n.x % divisor.x == 0 && n.y % divisor.y == 0 && n.z % divisor.z == 0; }

uint64_t volume(Dim3 d) { return uint64_t{d.x} * d.y * d.z; }

std::string text_of(Dim3 d) { return format("(%u,%u,%u)", d.x, d.y, d.z); }

// The limits of CUDA ("Technical Specifications per Compute Capability").
std::string complaint(Shape const& shape, Options const& options) {
  constexpr int kMaxSmemBytes = 227 * 1024;  // sm_90, opt-in, per CTA
  if (volume(shape.grid) == 0 || shape.grid.x > 0x7fffffffu || shape.grid.y > 65535 || shape.grid.z > 65535) {
    return "the grid " + text_of(shape.grid) + " is not one CUDA can launch";
  }
  if (volume(shape.block) == 0 || volume(shape.block) > 1024 || shape.block.z > 64) {
    return "the block " + text_of(shape.block) + " is not one CUDA can launch";
  }
  if (volume(shape.cluster) == 0 || volume(shape.cluster) > 16 || !divides(shape.cluster, shape.grid)) {
    return "the cluster " + text_of(shape.cluster) + " does not fit the grid " + text_of(shape.grid);
  }
  if (shape.smem_bytes < 0 || shape.smem_bytes > kMaxSmemBytes) {
    return format("%d bytes of shared memory per CTA, no GPU has more than %d", shape.smem_bytes, kMaxSmemBytes);
  }
  if (options.stack_bytes < 16 * 1024) return "Options::stack_bytes is less than 16384";
  return {};
}

// The arithmetic of a GPU, which knows subnormal numbers, for the OS thread it is made on. Those of XLA take them for
// zero, and what they start inherits that.
class IeeeArithmetic {
 public:
#if defined(__x86_64__)
  IeeeArithmetic() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }  // MXCSR as a process begins
  ~IeeeArithmetic() { _mm_setcsr(before_); }
#elif defined(__aarch64__)
  IeeeArithmetic() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
  }
  ~IeeeArithmetic() { asm volatile("msr fpcr, %0" ::"r"(before_)); }
#else
  IeeeArithmetic() = default;
#endif
  IeeeArithmetic(IeeeArithmetic const&) = delete;
  IeeeArithmetic& operator=(IeeeArithmetic const&) = delete;

 private:
#if defined(__x86_64__)
  unsigned before_;
#elif defined(__aarch64__)
  uint64_t before_;
#endif
};

// Until the last worker has ended.
void watch(Launch& launch, Watcher& watcher, size_t workers) {
  for (bool ended = false; !ended;) {
    {
      std::unique_lock lock(launch.mutex);
      ended = launch.worker_ended.wait_for(lock, std::chrono::milliseconds(100),
                                           [&] { return launch.ended_workers == workers; });
    }
    if (!watcher.go_on(launch.stored_bytes)) launch.stop = true;
  }
}

}  // namespace

Status launch(Shape const& shape, Stream* stream, void (*run_thread)(void*), void* argument) {
  if (stream == nullptr) return {"emulator: the stream is null, it has to be a moye::emu::Stream"};
  if (current_thread != nullptr) return {"emulator: a kernel cannot launch a kernel"};
  if (std::string text = complaint(shape, stream->options); !text.empty()) return {"emulator: " + text};

  Launch state;
  state.shape = shape;
  state.options = stream->options;
  state.run_thread = run_thread;
  state.argument = argument;
  state.threads_per_cta = static_cast<int>(volume(shape.block));
  state.ctas_per_cluster = static_cast<int>(volume(shape.cluster));
  state.clusters = volume(shape.grid) / volume(shape.cluster);
  state.host_frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  try {
    // Where arrays overlap the writable one comes first, and is found first.
    for (bool writable : {true, false}) {
      for (Memory const& memory : stream->memory) {
        if (memory.writable != writable) continue;
        Region& region = state.regions.emplace_back();
        region.memory = memory;
        if (writable && state.options.detect_races) allocate_global_shadow(region);
      }
    }
  } catch (std::bad_alloc const&) {
    return {"emulator: out of memory for the shadow of the writable arrays; Options::detect_races = false needs none"};
  }

  auto work = [&state]() noexcept {
    try {
      IeeeArithmetic const arithmetic;
      FaultStack const stack;
      std::unique_ptr<Domain> domain = domain_pool().borrow();
      domain->work(state);
      domain_pool().give_back(std::move(domain));
    } catch (std::bad_alloc const&) {
      state.report_out_of_memory();
    }
    std::lock_guard lock(state.mutex);
    ++state.ended_workers;
    state.worker_ended.notify_one();
  };
  {
    FaultHandler const handler;
    WorkerShare const share;
    int const most = std::min(std::max(1, state.options.workers), share.workers());
    auto const workers = static_cast<size_t>(std::min<uint64_t>(most, state.clusters));
    bool const watched = stream->watcher != nullptr;  // by this OS thread, which then leaves all the work to others
    std::vector<std::thread> threads;
    try {
      threads.reserve(workers);
      while (threads.size() < workers - (watched ? 0 : 1)) threads.emplace_back(work);
    } catch (std::bad_alloc const&) {
    } catch (std::system_error const&) {
      // No further OS thread to be had, as above: those there are do the work.
    }
    if (!watched || threads.empty()) work();
    if (watched) watch(state, *stream->watcher, std::max<size_t>(1, threads.size()));
    for (std::thread& thread : threads) thread.join();
  }
  state.counters.launches = 1;
  stream->counters += state.counters;
  stream->trace.insert(stream->trace.end(), state.trace.begin(), state.trace.end());
  if (state.out_of_memory) return {"emulator: out of memory"};
  return {state.message};
}

}  // namespace moye::emu
