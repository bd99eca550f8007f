// mbarriers, and the two fences that go with them.
#include <algorithm>

#include "moye/emu/machine.h"

namespace moye::emu {
namespace {

constexpr uint64_t kMark = 0x6d626172;         // in the high half of an mbarrier's bytes; in the low half its place
constexpr int64_t kMostBytes = (1 << 20) - 1;  // of a phase (PTX ISA, "Tx-count of mbarrier")
constexpr uint32_t kMostArrivals = (1 << 20) - 1;
constexpr int kMostIdlePolls = 1000;

constexpr char const* kWait = "mbarrier.try_wait";

// "smem+0x28038 (initialized at sm90.cuh:35)"
std::string name(Mbarrier const& mbarrier) {
  return format("smem+0x%x (initialized at %s)", mbarrier.offset, at(mbarrier.loc).c_str());
}

// "mbarrier.arrive by thread 1 (warp 0 lane 1) at sm90.cuh:35: mbarrier smem+0x28038 (initialized at sm90.cuh:35)"
std::string subject(Thread const& thread, char const* what, Loc loc, Mbarrier const& mbarrier) {
  std::string const place = mbarrier.cta == thread.cta ? "" : " of " + block_name(mbarrier.cta->index);
  return format("%s by %s at %s: mbarrier ", what, who(thread).c_str(), at(loc).c_str()) + name(mbarrier) + place;
}

std::string describe(void const* object) {
  auto const& phase = *static_cast<Mbarrier::Phase const*>(object);
  Mbarrier const& mbarrier = *phase.mbarrier;
  return name(mbarrier) +
         format(" parity %u: %llu phases complete, %u of %u arrivals and %lld bytes missing in this one", phase.parity,
                static_cast<unsigned long long>(mbarrier.phase), mbarrier.pending, mbarrier.count,
                static_cast<long long>(mbarrier.bytes));
}

Mbarrier* at_offset(Cta& cta, uint32_t offset) {
  for (auto const& mbarrier : cta.mbarriers) {
    if (mbarrier->valid && mbarrier->offset == offset) return mbarrier.get();
  }
  return nullptr;
}

uint32_t checked_offset(Thread& thread, void const* bar, char const* what, Loc loc) {
  uint32_t const offset = smem_offset(thread, bar, 8, what, loc);
  if (offset % 8 != 0) {
    thread.domain->fail([&] {
      return format("%s by %s at %s: the address smem+0x%x is not a multiple of 8", what, who(thread).c_str(),
                    at(loc).c_str(), offset);
    });
  }
  return offset;
}

// Whether the thread knows of what the owner did in `event`, or at least that it came before the owner's arrival at
// barrier.cluster after its fence, which is enough for an mbarrier.
bool knows(Thread const& thread, Mbarrier const& mbarrier, uint32_t event) {
  if (&thread == mbarrier.owner || thread.clock[mbarrier.owner->agent] >= event) return true;
  return mbarrier.fence_event != 0 && thread.cluster_waits > mbarrier.fence_arrivals;
}

void check_bytes(Thread& thread, Mbarrier const& mbarrier, char const* what, Loc loc) {
  if (mbarrier.bytes <= kMostBytes && mbarrier.bytes >= -kMostBytes) return;
  thread.domain->fail([&] {
    return subject(thread, what, loc, mbarrier) + format(" waits for %lld bytes, more than the %lld it can count",
                                                         static_cast<long long>(mbarrier.bytes),
                                                         static_cast<long long>(kMostBytes));
  });
}

void wake(Domain& domain, Mbarrier& mbarrier) {
  size_t kept = 0;
  for (Mbarrier::Waiter const& waiter : mbarrier.waiters) {
    if ((mbarrier.phase & 1) == waiter.parity) {
      mbarrier.waiters[kept++] = waiter;
      continue;
    }
    if (mbarrier.complete != nullptr) join(domain, waiter.thread->clock, mbarrier.complete);
    waiter.thread->phase_complete = true;
    domain.make_ready(*waiter.thread);
  }
  mbarrier.waiters.resize(kept);
}

void complete_if_due(Mbarrier& mbarrier) {
  if (mbarrier.pending != 0 || mbarrier.bytes != 0) return;
  Domain& domain = *mbarrier.cta->domain;
  for (TmaLoad const& load : domain.tma_loads) {
    if (load.mbarrier != &mbarrier) continue;
    domain.fail([&] {
      return format(
          "mbarrier %s: phase %llu is complete while the %u bytes of the TMA load by %s at %s are still in "
          "flight: fewer bytes were expected than are loaded",
          name(mbarrier).c_str(), static_cast<unsigned long long>(mbarrier.phase), load.map.box_bytes(),
          who(*load.thread).c_str(), at(load.loc).c_str());
    });
  }
  ++domain.counters.mbarrier_phases;
  ++mbarrier.phase;
  mbarrier.pending = mbarrier.count;
  if (mbarrier.complete != nullptr) join(domain, mbarrier.complete, mbarrier.arrived);
  wake(domain, mbarrier);
}

void arrive(Thread& thread, Mbarrier& mbarrier, char const* what, Loc loc) {
  Domain& domain = *thread.domain;
  if (mbarrier.pending == 0) {
    domain.fail([&] {
      return subject(thread, what, loc, mbarrier) + format(" has its %u arrivals already and waits for %lld bytes",
                                                           mbarrier.count, static_cast<long long>(mbarrier.bytes));
    });
  }
  ++domain.counters.mbarrier_arrivals;
  domain.idle_polls = 0;
  if (mbarrier.arrived != nullptr) release(thread, mbarrier.arrived);
  --mbarrier.pending;
  complete_if_due(mbarrier);
  trace(mbarrier, &thread, what, loc);
  domain.yield_sometimes();
}

// The phase's mbarrier if the thread has to wait for it, else null: then the thread knows what its arrivals knew.
Mbarrier* incomplete(Thread& thread, uint64_t* bar, uint32_t parity, Loc loc) {
  Domain& domain = *thread.domain;
  Mbarrier& mbarrier =
      find_mbarrier(thread, *thread.cta, checked_offset(thread, bar, kWait, loc), /*remote=*/false, kWait, loc);
  if (parity > 1) {
    domain.fail([&] { return subject(thread, kWait, loc, mbarrier) + format(": parity %u is not 0 or 1", parity); });
  }
  ++domain.counters.mbarrier_waits;
  bool const complete = (mbarrier.phase & 1) != parity;
  trace(mbarrier, &thread, complete ? "mbarrier.try_wait" : "mbarrier.try_wait (waits)", loc);
  if (!complete) return &mbarrier;
  if (mbarrier.complete != nullptr) join(domain, thread.clock, mbarrier.complete);
  return nullptr;
}

void wait_at(Thread& thread, Mbarrier& mbarrier, uint32_t parity, bool polls, Loc loc) {
  Domain& domain = *thread.domain;
  ++domain.counters.mbarrier_blocking_waits;
  mbarrier.waiters.push_back({&thread, parity, polls});
  domain.block(kWait, describe, &mbarrier.phases[parity], loc);
}

void fence_initializations(Thread& thread) {
  for (Mbarrier* mbarrier : thread.unfenced) {
    mbarrier->fence_event = thread.clock != nullptr ? thread.clock[thread.agent] : 1;
    mbarrier->fence_arrivals = thread.cluster_arrivals;
  }
  thread.unfenced.clear();
}

}  // namespace

Mbarrier& find_mbarrier(Thread& thread, Cta& cta, uint32_t offset, bool remote, char const* what, Loc loc) {
  Domain& domain = *thread.domain;
  uint64_t bits;
  std::memcpy(&bits, cta.smem + offset, 8);
  auto const place = static_cast<uint32_t>(bits);
  bool const marked = bits >> 32 == kMark && place < cta.mbarriers.size();
  Mbarrier* const found = marked ? cta.mbarriers[place].get() : nullptr;
  if (found == nullptr || !found->valid || found->offset != offset) {
    domain.fail([&] {
      Mbarrier const* const overwritten = at_offset(cta, offset);
      if (overwritten != nullptr) return subject(thread, what, loc, *overwritten) + " has been overwritten";
      return format("%s by %s at %s: no mbarrier has been initialized at smem+0x%x", what, who(thread).c_str(),
                    at(loc).c_str(), offset) +
             (&cta == thread.cta ? "" : " of " + block_name(cta.index));
    });
  }
  if (!domain.detect_races) return *found;
  if (!knows(thread, *found, found->init_event)) {
    domain.fail(
        [&] { return subject(thread, what, loc, *found) + ": no barrier lies between its initialization and this"; });
  }
  if (remote && (found->fence_event == 0 || !knows(thread, *found, found->fence_event))) {
    domain.fail([&] {
      return subject(thread, what, loc, *found) + ": no fence_mbarrier_init lies between its initialization and this";
    });
  }
  return *found;
}

void trace(Mbarrier const& mbarrier, Thread const* thread, char const* what, Loc loc) {
  Domain& domain = *mbarrier.cta->domain;
  if (!domain.launch->options.trace_mbarriers) return;
  int const who = thread == nullptr ? -1 : static_cast<int>(thread - thread->cta->threads);
  domain.trace.push_back({what, mbarrier.cta->index, who, mbarrier.offset, mbarrier.phase, mbarrier.pending,
                          mbarrier.count, mbarrier.bytes, loc});
}

void complete_tx(Mbarrier& mbarrier, uint32_t bytes, uint32_t sequence) {
  Domain& domain = *mbarrier.cta->domain;
  domain.idle_polls = 0;
  mbarrier.bytes -= bytes;
  mbarrier.in_flight.erase(std::find(mbarrier.in_flight.begin(), mbarrier.in_flight.end(), sequence));
  if (mbarrier.arrived != nullptr) {
    mbarrier.arrived[mbarrier.agent] = mbarrier.in_flight.empty() ? mbarrier.loads : mbarrier.in_flight.front() - 1;
  }
  complete_if_due(mbarrier);
  trace(mbarrier, nullptr, "complete_tx", mbarrier.load_loc);
}

bool refuse_pollers(Domain& domain) {
  if (domain.polled.empty() || ++domain.idle_polls > kMostIdlePolls) return false;
  for (Mbarrier* mbarrier : domain.polled) {
    auto& waiters = mbarrier->waiters;
    for (Mbarrier::Waiter const& waiter : waiters) {
      if (!waiter.polls) continue;
      waiter.thread->phase_complete = false;
      domain.make_ready(*waiter.thread);
    }
    waiters.erase(std::remove_if(waiters.begin(), waiters.end(), [](auto const& waiter) { return waiter.polls; }),
                  waiters.end());
  }
  domain.polled.clear();
  return true;
}

// -------------------------------------------------------------------------------------------------------- instructions

void mbarrier_init(uint64_t* bar, uint32_t count, Loc loc) {
  constexpr char const* kWhat = "mbarrier.init";
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  Cta& cta = *thread.cta;
  loc = thread.reported(loc);
  domain.count_step(thread, loc);
  uint32_t const offset = checked_offset(thread, bar, kWhat, loc);
  if (count == 0 || count > kMostArrivals) {
    domain.fail([&] {
      return format("%s by %s at %s: %u arrivals are not 1 to %u", kWhat, who(thread).c_str(), at(loc).c_str(), count,
                    kMostArrivals);
    });
  }
  if (Mbarrier const* const before = at_offset(cta, offset)) {
    domain.fail([&] { return subject(thread, kWhat, loc, *before) + " is one already"; });
  }
  if (domain.detect_races) shared_access(thread, cta, offset, 8, true, Proxy::thread, kWhat, loc);
  uint64_t const bits = kMark << 32 | cta.mbarriers.size();
  std::memcpy(cta.smem + offset, &bits, 8);
  auto mbarrier = std::make_unique<Mbarrier>();
  mbarrier->cta = &cta;
  mbarrier->offset = offset;
  mbarrier->valid = true;
  mbarrier->count = mbarrier->pending = count;
  mbarrier->bytes = 0;
  mbarrier->phase = 0;
  for (uint32_t parity : {0u, 1u}) mbarrier->phases[parity] = {mbarrier.get(), parity};
  mbarrier->owner = &thread;
  mbarrier->loc = loc;
  mbarrier->init_event = thread.clock != nullptr ? thread.clock[thread.agent] : 0;
  mbarrier->fence_event = 0;
  mbarrier->fence_arrivals = 0;
  if (domain.detect_races) {
    mbarrier->arrived = domain.further_clock();
    mbarrier->complete = domain.further_clock();
  }
  thread.unfenced.push_back(mbarrier.get());
  trace(*mbarrier, &thread, kWhat, loc);
  cta.mbarriers.push_back(std::move(mbarrier));
}

void mbarrier_inval(uint64_t* bar, Loc loc) {
  constexpr char const* kWhat = "mbarrier.inval";
  Thread& thread = *current_thread;
  loc = thread.reported(loc);
  uint32_t const offset = checked_offset(thread, bar, kWhat, loc);
  Mbarrier& mbarrier = find_mbarrier(thread, *thread.cta, offset, /*remote=*/false, kWhat, loc);
  if (!mbarrier.waiters.empty() || !mbarrier.in_flight.empty()) {
    thread.domain->fail([&] { return subject(thread, kWhat, loc, mbarrier) + " is still in use"; });
  }
  if (thread.domain->detect_races) shared_access(thread, *thread.cta, offset, 8, true, Proxy::thread, kWhat, loc);
  mbarrier.valid = false;
}

void mbarrier_arrive(uint64_t* bar, Loc loc) {
  constexpr char const* kWhat = "mbarrier.arrive";
  Thread& thread = *current_thread;
  loc = thread.reported(loc);
  thread.domain->count_step(thread, loc);
  uint32_t const offset = checked_offset(thread, bar, kWhat, loc);
  arrive(thread, find_mbarrier(thread, *thread.cta, offset, /*remote=*/false, kWhat, loc), kWhat, loc);
}

void mbarrier_expect_tx(uint64_t* bar, uint32_t bytes, bool with_arrival, Loc loc) {
  char const* const what = with_arrival ? "mbarrier.arrive.expect_tx" : "mbarrier.expect_tx";
  Thread& thread = *current_thread;
  loc = thread.reported(loc);
  thread.domain->count_step(thread, loc);
  uint32_t const offset = checked_offset(thread, bar, what, loc);
  Mbarrier& mbarrier = find_mbarrier(thread, *thread.cta, offset, /*remote=*/false, what, loc);
  mbarrier.bytes += bytes;
  check_bytes(thread, mbarrier, what, loc);
  if (with_arrival) return arrive(thread, mbarrier, what, loc);
  trace(mbarrier, &thread, what, loc);
}

void mbarrier_arrive_cluster(uint64_t* bar, uint32_t rank, Loc loc) {
  constexpr char const* kWhat = "mbarrier.arrive.shared::cluster";
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  loc = thread.reported(loc);
  domain.count_step(thread, loc);
  uint32_t const offset = checked_offset(thread, bar, kWhat, loc);
  if (rank >= domain.ctas.size()) {
    domain.fail([&] {
      return format("%s by %s at %s: the cluster has %zu CTAs, none of rank %u", kWhat, who(thread).c_str(),
                    at(loc).c_str(), domain.ctas.size(), rank);
    });
  }
  Cta& cta = domain.ctas[rank];
  touch_remote_cta(thread, cta, kWhat, loc);
  arrive(thread, find_mbarrier(thread, cta, offset, /*remote=*/&cta != thread.cta, kWhat, loc), kWhat, loc);
}

bool mbarrier_try_wait(uint64_t* bar, uint32_t parity, Loc loc) {
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  loc = thread.reported(loc);
  domain.count_step(thread, loc);
  Mbarrier* const mbarrier = incomplete(thread, bar, parity, loc);
  if (mbarrier == nullptr) {
    domain.yield_sometimes();
    return true;
  }
  if (domain.launch->options.mode == Mode::random && domain.random() % 4 == 0) {
    domain.yield();
    return false;
  }
  domain.polled.push_back(mbarrier);
  wait_at(thread, *mbarrier, parity, /*polls=*/true, loc);
  return thread.phase_complete;
}

void mbarrier_wait(uint64_t* bar, uint32_t parity, Loc loc) {
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  loc = thread.reported(loc);
  domain.count_step(thread, loc);
  Mbarrier* const mbarrier = incomplete(thread, bar, parity, loc);
  if (mbarrier == nullptr) return domain.yield_sometimes();
  wait_at(thread, *mbarrier, parity, /*polls=*/false, loc);
}

void fence_mbarrier_init(Loc loc) {
  Thread& thread = *current_thread;
  thread.domain->count_step(thread, thread.reported(loc));
  fence_initializations(thread);
}

void fence_proxy_async(Loc loc) {
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  domain.count_step(thread, thread.reported(loc));
  ++domain.counters.proxy_fences;
  fence_initializations(thread);
  if (domain.detect_races) proxy_fence(thread);
}

}  // namespace moye::emu
