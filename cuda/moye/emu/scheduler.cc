// Which fiber runs: the ready ring, waiting, and the two ways of never ending.
#include "moye/emu/machine.h"

namespace moye::emu {

constinit thread_local Thread* current_thread = nullptr;

uint64_t Domain::random() {  // xorshift64*
  random_state_ ^= random_state_ >> 12;
  random_state_ ^= random_state_ << 25;
  random_state_ ^= random_state_ >> 27;
  return (random_state_ * 0x2545f4914f6cdd1dull) >> 16;
}

void Domain::make_ready(Thread& thread) {
  thread.wait.what = nullptr;
  ready_[(ready_head_ + ready_count_++) & (ready_.size() - 1)] = &thread;
}

void Domain::block(char const* what, std::string (*describe)(void const*), void const* object, Loc loc) {
  Thread& thread = *running;
  thread.wait.what = what;
  thread.wait.describe = describe;
  thread.wait.object = object;
  thread.wait.loc = loc;
  refill_steps(thread);
  schedule();
}

void Domain::yield() {
  make_ready(*running);
  schedule();
}

void Domain::yield_sometimes() {
  if (launch->options.order == ThreadOrder::random && random() % 8 == 0) yield();
}

void Domain::finish_thread() {
  Thread& thread = *running;
  if (thread.warp->wgmma != nullptr) thread.warp->wgmma->on_exit(thread);
  finish_tma_stores(thread);
  --thread.cta->live;
  check_cta_exit(thread);
  thread.finished = true;
  leave_cluster_barrier(thread);
  --live_;
  schedule();
}

void Domain::schedule() {
  Thread* const from = running;
  auto const frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  if (frame - from->stack_begin >= from->stack_bytes) fail_on_overflow(*from);
  if (launch->stop.load(std::memory_order_relaxed)) leave_cluster();
  size_t const mask = ready_.size() - 1;
  complete_some_tma_loads(*this);
  while (ready_count_ == 0 && live_ != 0) {
    // Everybody waits or has finished: the latest legal moment for what completes on its own.
    if (!tma_loads.empty()) {
      complete_tma_load(*this);
    } else if (!refuse_pollers(*this)) {
      deadlock();
    }
  }
  if (ready_count_ == 0) {
    current_thread = nullptr;
    Fiber::switch_to(from->fiber, main_);
  }
  Thread* to;
  if (launch->options.order == ThreadOrder::lifo) {
    to = ready_[(ready_head_ + --ready_count_) & mask];
  } else {
    if (launch->options.order == ThreadOrder::random) {
      std::swap(ready_[ready_head_ & mask], ready_[(ready_head_ + random() % ready_count_) & mask]);
    }
    to = ready_[ready_head_++ & mask];
    --ready_count_;
  }
  if (to == from) return;
  if ((++counters.switches & 0xfff) == 0) {
    check_time();
    tell_stored_bytes();
  }
  running = to;
  current_thread = to;
  Fiber::switch_to(from->fiber, to->fiber);
}

void Domain::leave_cluster() {
  current_thread = nullptr;
  Fiber::switch_to(running->fiber, main_);
  __builtin_unreachable();
}

void Domain::fail_with(std::string (*message)(void const*), void const* object) {
  failed_ = true;
  failure_ = message;
  failure_object_ = object;  // on the failing fiber's stack, which stays as it is
  leave_cluster();
}

void Domain::fail_without_memory() {
  launch->report_out_of_memory();
  leave_cluster();
}

void Domain::fail_on_overflow(Thread& thread) {
  fail([&] { return overflow_text(thread); });
}

void Domain::refill_steps(Thread& thread) {
  thread.steps_left = std::min(kStepsAtOnce, launch->options.watchdog_steps);
  thread.more_steps = launch->options.watchdog_steps - thread.steps_left;
}

void Domain::out_of_steps(Thread& thread, Loc loc) {
  if (launch->stop.load(std::memory_order_relaxed)) leave_cluster();
  if (thread.more_steps == 0) endless(thread, loc);
  thread.steps_left = std::min(kStepsAtOnce, thread.more_steps);
  thread.more_steps -= thread.steps_left;
}

void Domain::tell_stored_bytes() {
  uint64_t const stored = counters.global_store_bytes + counters.tma_store_bytes;
  launch->stored_bytes.fetch_add(stored - told_stored_bytes_, std::memory_order_relaxed);
  told_stored_bytes_ = stored;
}

namespace {

bool same_state(Thread const& a, Thread const& b) {
  if (a.finished || b.finished) return a.finished == b.finished;
  if (a.wait.what == nullptr && (&a == a.domain->running || &b == b.domain->running)) return &a == &b;
  return a.wait.what == b.wait.what && a.wait.object == b.wait.object && a.wait.loc.line == b.wait.loc.line &&
         a.wait.loc.file == b.wait.loc.file;
}

std::string state_of(Thread const& thread) {
  if (thread.finished) return "finished";
  if (thread.wait.what == nullptr) return &thread == thread.domain->running ? "is running" : "can run";
  std::string const details = thread.wait.describe(thread.wait.object);
  return format("waits in %s %s at %s", thread.wait.what, details.c_str(), at(thread.wait.loc).c_str());
}

// One line for each run of threads in the same state.
std::string states_of(Domain const& domain) {
  int const count = domain.launch->threads_per_cta;
  std::string text;
  for (Cta const& cta : domain.ctas) {
    for (int first = 0, last; first < count; first = last + 1) {
      last = first;
      while (last + 1 < count && same_state(cta.threads[first], cta.threads[last + 1])) ++last;
      std::string const range = [&] {
        if (first == last) return format("thread %d (warp %d)", first, first / 32);
        if (first / 32 == last / 32) return format("threads %d-%d (warp %d)", first, last, first / 32);
        return format("threads %d-%d (warps %d-%d)", first, last, first / 32, last / 32);
      }();
      text += "\n  " + block_name(cta.index) + " " + range + ": ";
      text += state_of(cta.threads[first]);
    }
  }
  return text;
}

}  // namespace

void Domain::deadlock() {
  fail([&] {
    return format("deadlock: %d of %zu threads can never run again", live_, threads.size()) + states_of(*this);
  });
}

void Domain::endless(Thread& thread, Loc loc) {
  fail([&] {
    return format("watchdog: %s made %llu steps without waiting for another thread and is now at %s",
                  who(thread).c_str(), static_cast<unsigned long long>(launch->options.watchdog_steps),
                  at(loc).c_str()) +
           states_of(*this);
  });
}

void Domain::check_time() {
  if (launch->options.watchdog_seconds <= 0 || std::chrono::steady_clock::now() < deadline_) return;
  fail([&] {
    return format("watchdog: %s has run for more than %g seconds", block_name(ctas[0].index).c_str(),
                  launch->options.watchdog_seconds) +
           states_of(*this);
  });
}

// ------------------------------------------------------------------------------------------------- a cluster's
// beginning

namespace {

void thread_main(void* argument) {
  auto& thread = *static_cast<Thread*>(argument);
  Domain& domain = *thread.domain;
  bool out_of_memory = false;
  try {
    domain.launch->run_thread(domain.launch->argument);
    domain.finish_thread();
  } catch (std::bad_alloc const&) {  // of the emulator, inside an instruction of the kernel
    out_of_memory = true;
  }
  if (out_of_memory) domain.fail_without_memory();
}

}  // namespace

void Domain::work(Launch& new_launch) {
  launch = &new_launch;
  detect_races = launch->options.detect_races;
  count_transactions = launch->options.count_transactions;
  counters = {};
  told_stored_bytes_ = 0;
  trace.clear();
  for (CachedSite& cached : site_cache_) cached = {};
  auto const ctas_per_cluster = static_cast<size_t>(launch->ctas_per_cluster);
  size_t const thread_count = ctas_per_cluster * launch->threads_per_cta;
  size_t const warps_per_cta = (launch->threads_per_cta + 31) / 32;
  map_stacks(thread_count, launch->options.stack_bytes);
  map_smem(ctas_per_cluster, launch->shape.smem_bytes);
  if (threads.size() != thread_count) threads = std::vector<Thread>(thread_count);
  warps.resize(ctas_per_cluster * warps_per_cta);
  if (ctas.size() != ctas_per_cluster) ctas = std::vector<Cta>(ctas_per_cluster);
  size_t ring = 1;
  while (ring < thread_count) ring *= 2;
  ready_.resize(ring);
  if (detect_races) allocate_clocks();

  for (uint64_t index; (index = launch->next_cluster++) < launch->clusters;) {
    if (index > launch->failed_cluster || launch->stop) break;
    start_cluster(index);
    running = ready_[ready_head_++ & (ready_.size() - 1)];
    --ready_count_;
    current_thread = running;
    Fiber::switch_to(main_, running->fiber);
    counters.ctas += ctas.size();
    if (failed_) launch->report_failure(index, failure_(failure_object_));
    if (failed_ || launch->stop || launch->out_of_memory) break;
    tell_stored_bytes();
    if (count_transactions) {
      for (Warp& warp : warps) emu::count_transactions(*this, warp);
    }
  }
  running = nullptr;
  std::lock_guard lock(launch->mutex);
  launch->counters += counters;
  launch->trace.insert(launch->trace.end(), trace.begin(), trace.end());
}

void Domain::start_cluster(uint64_t index) {
  Shape const& shape = launch->shape;
  int const per_cta = launch->threads_per_cta, warps_per_cta = (per_cta + 31) / 32;
  cluster = index;
  failed_ = false;
  live_ = static_cast<int>(threads.size());
  ready_head_ = ready_count_ = 0;
  random_state_ = (launch->options.seed + 1) * 0x9e3779b97f4a7c15ull ^ (index + 1) * 0xd1b54a32d192ed03ull;
  if (random_state_ == 0) random_state_ = 1;
  if (launch->options.watchdog_seconds > 0) {
    deadline_ = std::chrono::steady_clock::now() +
                std::chrono::microseconds(static_cast<int64_t>(launch->options.watchdog_seconds * 1e6));
  }
  if (detect_races) {
    reset(shadow, ctas.size(), shape.smem_bytes);
    clear_clocks();
  }
  for (Clock& clock : cluster_clocks) clock = detect_races && ctas.size() > 1 ? further_clock() : nullptr;
  tma_loads.clear();
  polled.clear();
  idle_polls = 0;
  cluster_phase = 0;
  cluster_pending = live_;
  cluster_waiters.clear();

  Dim3 const clusters{shape.grid.x / shape.cluster.x, shape.grid.y / shape.cluster.y, shape.grid.z / shape.cluster.z};
  Dim3 const origin{static_cast<unsigned>(index % clusters.x) * shape.cluster.x,
                    static_cast<unsigned>(index / clusters.x % clusters.y) * shape.cluster.y,
                    static_cast<unsigned>(index / (uint64_t{clusters.x} * clusters.y)) * shape.cluster.z};
  for (size_t rank = 0; rank < ctas.size(); ++rank) {
    Cta& cta = ctas[rank];
    auto const r = static_cast<unsigned>(rank);
    cta.domain = this;
    cta.index = {origin.x + r % shape.cluster.x, origin.y + r / shape.cluster.x % shape.cluster.y,
                 origin.z + r / (shape.cluster.x * shape.cluster.y)};
    cta.linear = cta.index.x + uint64_t{shape.grid.x} * (cta.index.y + uint64_t{shape.grid.y} * cta.index.z);
    cta.threads = &threads[rank * per_cta];
    cta.warps = &warps[rank * warps_per_cta];
    cta.warp_count = warps_per_cta;
    cta.smem = reinterpret_cast<unsigned char*>(smem_begin + rank * smem_part_bytes_ + kSmemGuardBytes);
    cta.rank = r;
    cta.live = per_cta;
    cta.mbarriers.clear();
    cta.remote.clear();
    cta.exit_clock = nullptr;
    cta.register_waiters.clear();
    cta.free_registers = 0;
    int const threads_at_once = shape.resident * 32 * warps_per_cta;
    int const registers = std::min(kRegisters / threads_at_once / 8 * 8, 256);  // what __launch_bounds__ leaves
    cta.shadow = detect_races ? shadow.ctas[rank].get() : nullptr;
    if (launch->options.poison) std::memset(cta.smem, 0xff, shape.smem_bytes);
    for (int id = 0; id < kBarriers; ++id) {
      Barrier& barrier = cta.barriers[id];
      barrier.id = id;
      barrier.count = 0;
      barrier.waiters.clear();
      barrier.clock = detect_races ? barrier_clocks_[rank * kBarriers + id] : nullptr;
    }
    for (int w = 0; w < warps_per_cta; ++w) {
      Warp& warp = cta.warps[w];
      int const lanes = std::min(32, per_cta - 32 * w);
      warp.cta = &cta;
      warp.id = w;
      warp.lanes = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
      warp.first = &cta.threads[32 * w];
      warp.meetings.clear();
      warp.accesses.clear();
      warp.wgmma.reset();
      warp.registers = registers;
    }
    for (int id = 0; id < per_cta; ++id) {
      Thread& thread = cta.threads[id];
      auto const i = static_cast<unsigned>(id);
      thread.domain = this;
      thread.cta = &cta;
      thread.warp = &cta.warps[id / 32];
      thread.id = id;
      thread.agent = static_cast<int>(rank) * per_cta + id;
      thread.lane = id % 32;
      auto const place = static_cast<size_t>(thread.agent);
      thread.clock = detect_races ? clock_pool.get() + place * 2 * agents : nullptr;
      if (detect_races) {
        thread.clock[thread.agent] = 1;
        thread.floors = floor_pool.get() + place * agents / 32;
      }
      refill_steps(thread);
      thread.site_depth = 0;
      thread.finished = false;
      thread.may_touch_global = !shape.programmatic;
      thread.index = {i % shape.block.x, i / shape.block.x % shape.block.y, i / (shape.block.x * shape.block.y)};
      thread.groups = 0;
      thread.copies.clear();
      thread.store_groups = 0;
      thread.stores.clear();
      thread.store_agent = -1;
      thread.cluster_arrivals = thread.cluster_waits = 0;
      thread.unfenced.clear();
      thread.stack_begin = stacks_begin + thread.agent * (stack_bytes_ + kStackGuardBytes) + kStackGuardBytes;
      thread.stack_bytes = stack_bytes_;
      thread.fiber.prepare(reinterpret_cast<void*>(thread.stack_begin), stack_bytes_, thread_main, &thread);
      make_ready(thread);
    }
  }
  if (launch->options.order == ThreadOrder::random) {
    std::swap(ready_[0], ready_[random() % ready_count_]);
  }
}

}  // namespace moye::emu
