// bar.sync and bar.arrive: 16 counters per CTA (PTX ISA, "bar, barrier").
#include "moye/emu/meeting.h"

namespace moye::emu {
namespace {

std::string progress(void const* object) {
  auto const& barrier = *static_cast<Barrier const*>(object);
  return format("id %d (%d of %d threads have arrived)", barrier.id, barrier.count, barrier.expected);
}

void begin_phase(Barrier& barrier, Thread& thread, int threads, Loc loc) {
  barrier.expected = threads;
  barrier.first_loc = loc;
  barrier.first_thread = &thread;
  std::memset(barrier.arrived, 0, sizeof(barrier.arrived));
  if (barrier.clock != nullptr) thread.domain->clear(barrier.clock);
}

// The instruction is .aligned: all lanes of a warp execute the same one.
void check_warps(Thread& thread, Barrier& barrier) {
  Cta& cta = *thread.cta;
  for (int w = 0; w < cta.warp_count; ++w) {
    uint32_t const missing = barrier.arrived[w] != 0 ? cta.warps[w].lanes & ~barrier.arrived[w] : 0;
    if (missing == 0) continue;
    Thread& absent = cta.warps[w].first[__builtin_ctz(missing)];
    thread.domain->fail([&] {
      return format("divergent warp: bar id %d is complete with only some lanes of warp %d, at %s; %s has not arrived",
                    barrier.id, w, at(barrier.locs[w]).c_str(), who(absent).c_str());
    });
  }
}

// Checks the operands; returns the number of threads that is expected.
int checked_count(Thread& thread, char const* what, int id, int threads, Loc loc) {
  Domain& domain = *thread.domain;
  int const all = domain.launch->threads_per_cta;
  if (id < 0 || id >= kBarriers) {
    domain.fail([&] {
      return format("%s by %s at %s: barrier id %d is not one of 0 to 15", what, who(thread).c_str(), at(loc).c_str(),
                    id);
    });
  }
  if (threads == kWholeCta) return all;
  if (threads <= 0 || threads % 32 != 0 || threads > all) {
    domain.fail([&] {
      return format("%s id %d by %s at %s: %d threads is not a multiple of 32 up to the CTA's %d", what, id,
                    who(thread).c_str(), at(loc).c_str(), threads, all);
    });
  }
  return threads;
}

// Counts the thread. True if it was the last of the phase, whose waiters can then run again.
bool arrive(Thread& thread, Barrier& barrier, char const* what, int threads, Loc loc) {
  Domain& domain = *thread.domain;
  if (barrier.count == 0) {
    begin_phase(barrier, thread, threads, loc);
  } else if (barrier.expected != threads) {
    domain.fail([&] {
      return format("bar id %d: %s at %s expects %d threads, but %s at %s expected %d", barrier.id, who(thread).c_str(),
                    at(loc).c_str(), threads, who(*barrier.first_thread).c_str(), at(barrier.first_loc).c_str(),
                    barrier.expected);
    });
  }
  uint32_t& lanes = barrier.arrived[thread.warp->id];
  Loc& warp_loc = barrier.locs[thread.warp->id];
  if ((lanes >> thread.lane & 1) != 0) {
    domain.fail([&] {
      return format("%s id %d: %s arrives twice in one phase (%d of %d threads have arrived), at %s and now at %s",
                    what, barrier.id, who(thread).c_str(), barrier.count, barrier.expected, at(warp_loc).c_str(),
                    at(loc).c_str());
    });
  }
  if (lanes != 0 && (warp_loc.line != loc.line || warp_loc.file != loc.file)) {
    domain.fail([&] {
      return format("divergent warp: %s executes %s id %d at %s while other lanes of its warp execute it at %s",
                    who(thread).c_str(), what, barrier.id, at(loc).c_str(), at(warp_loc).c_str());
    });
  }
  lanes |= 1u << thread.lane;
  warp_loc = loc;
  if (domain.count_transactions && lanes == thread.warp->lanes) count_transactions(domain, *thread.warp);
  if (domain.detect_races) release(thread, barrier.clock);
  if (++barrier.count < barrier.expected) return false;

  check_warps(thread, barrier);
  ++domain.counters.barriers;
  barrier.count = 0;
  for (Thread* waiter : barrier.waiters) {
    if (domain.detect_races) acquire(*waiter, barrier.clock);
    domain.make_ready(*waiter);
  }
  barrier.waiters.clear();
  return true;
}

}  // namespace

void bar_sync(int id, int threads, Loc loc) {
  constexpr char const* kWhat = "bar.sync";
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  loc = thread.reported(loc);
  domain.count_step(thread, loc);
  threads = checked_count(thread, kWhat, id, threads, loc);
  Barrier& barrier = thread.cta->barriers[id];
  if (arrive(thread, barrier, kWhat, threads, loc)) {
    if (domain.detect_races) acquire(thread, barrier.clock);
    return domain.yield_sometimes();
  }
  barrier.waiters.push_back(&thread);
  domain.block(kWhat, progress, &barrier, loc);
}

// The warp arrives as a whole: a lane that runs ahead of the others must not be counted a second time before them.
void bar_arrive(int id, int threads, Loc loc) {
  constexpr char const* kWhat = "bar.arrive";
  Thread& thread = *current_thread;
  loc = thread.reported(loc);
  threads = checked_count(thread, kWhat, id, threads, loc);
  Barrier& barrier = thread.cta->barriers[id];
  uint32_t const lanes = thread.warp->lanes;
  meet_and_execute(thread, kWhat, lanes, nullptr, loc, [&](void* const*) {
    for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      arrive(thread.warp->first[__builtin_ctz(rest)], barrier, kWhat, threads, loc);
    }
  });
}

}  // namespace moye::emu
