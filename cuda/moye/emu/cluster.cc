// Clusters: their barrier, the way into another CTA's shared memory, and when a CTA may exit. With setmaxnreg.
#include <algorithm>

#include "moye/emu/meeting.h"

namespace moye::emu {

Dim3 cluster_shape() { return current_thread->domain->launch->shape.cluster; }

Dim3 cluster_grid_dims() {
  Shape const& shape = current_thread->domain->launch->shape;
  return {shape.grid.x / shape.cluster.x, shape.grid.y / shape.cluster.y, shape.grid.z / shape.cluster.z};
}

Dim3 cluster_id_in_grid() {
  Dim3 const shape = cluster_shape(), block = current_thread->cta->index;
  return {block.x / shape.x, block.y / shape.y, block.z / shape.z};
}

Dim3 block_id_in_cluster() {
  Dim3 const shape = cluster_shape(), block = current_thread->cta->index;
  return {block.x % shape.x, block.y % shape.y, block.z % shape.z};
}

uint32_t block_rank_in_cluster() { return current_thread->cta->rank; }

// ------------------------------------------------------------------------------------------------------------- barrier

namespace {

constexpr char const* kArrive = "barrier.cluster.arrive";
constexpr char const* kWait = "barrier.cluster.wait";

std::string progress(void const* object) {
  auto const& domain = *static_cast<Domain const*>(object);
  return format("(%d threads have not arrived)", domain.cluster_pending);
}

int live_threads(Domain const& domain) {
  int count = 0;
  for (Cta const& cta : domain.ctas) count += cta.live;
  return count;
}

void complete_cluster_barrier(Domain& domain) {
  ++domain.counters.cluster_barriers;
  ++domain.cluster_phase;
  domain.cluster_pending = live_threads(domain);
  // The clock of the phase that begins was last read by threads that have arrived since.
  if (Clock const next = domain.cluster_clocks[domain.cluster_phase & 1]; next != nullptr) domain.clear(next);
  for (Thread* waiter : domain.cluster_waiters) domain.make_ready(*waiter);
  domain.cluster_waiters.clear();
}

}  // namespace

void cluster_arrive(bool release_memory, Loc loc) {
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  loc = thread.reported(loc);
  domain.count_step(thread, loc);
  if (thread.cluster_arrivals != thread.cluster_waits) {
    domain.fail([&] {
      return format("%s by %s at %s: the thread has not waited since it arrived before", kArrive, who(thread).c_str(),
                    at(loc).c_str());
    });
  }
  Clock const clock = domain.cluster_clocks[thread.cluster_arrivals & 1];
  if (release_memory && clock != nullptr) release(thread, clock);
  ++thread.cluster_arrivals;
  if (--domain.cluster_pending == 0) complete_cluster_barrier(domain);
  domain.yield_sometimes();
}

void cluster_wait(Loc loc) {
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  loc = thread.reported(loc);
  domain.count_step(thread, loc);
  if (thread.cluster_arrivals == thread.cluster_waits) {
    domain.fail([&] {
      return format("%s by %s at %s: the thread has not arrived", kWait, who(thread).c_str(), at(loc).c_str());
    });
  }
  if (domain.cluster_phase == thread.cluster_waits) {
    domain.cluster_waiters.push_back(&thread);
    domain.block(kWait, progress, &domain, loc);
  }
  if (Clock const clock = domain.cluster_clocks[thread.cluster_waits & 1]; clock != nullptr) {
    join(domain, thread.clock, clock);
  }
  ++thread.cluster_waits;
}

void leave_cluster_barrier(Thread& thread) {
  Domain& domain = *thread.domain;
  bool const arrived = thread.cluster_arrivals > domain.cluster_phase;
  if (!arrived && --domain.cluster_pending == 0 && live_threads(domain) != 0) complete_cluster_barrier(domain);
}

// ------------------------------------------------------------------------------------------------------- other's
// memory

void* mapa(void const* smem_ptr, uint32_t rank, Loc loc) {
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  loc = thread.reported(loc);
  domain.count_step(thread, loc);
  uint32_t const offset = smem_offset(thread, smem_ptr, 0, "mapa", loc);
  if (rank >= domain.ctas.size()) {
    domain.fail([&] {
      return format("mapa by %s at %s: the cluster has %zu CTAs, none of rank %u", who(thread).c_str(), at(loc).c_str(),
                    domain.ctas.size(), rank);
    });
  }
  return domain.ctas[rank].smem + offset;
}

void require_live(Thread& thread, Cta& cta, char const* what, Loc loc) {
  if (cta.live != 0) return;
  thread.domain->fail([&] {
    return format("%s by %s at %s: %s has exited, its shared memory is gone", what, who(thread).c_str(),
                  at(loc).c_str(), block_name(cta.index).c_str());
  });
}

void touch_remote_cta(Thread& thread, Cta& cta, char const* what, Loc loc) {
  if (thread.cta == &cta) return;
  require_live(thread, cta, what, loc);
  if (!thread.domain->detect_races) return;
  RemoteOperation const operation{&thread, thread.clock[thread.agent], what, loc};
  for (RemoteOperation& known : cta.remote) {
    if (known.thread == &thread) {
      known = operation;
      return;
    }
  }
  cta.remote.push_back(operation);
}

// Whatever the schedule: the CTA may exit only if one of its threads knows that others have done with its memory.
void check_cta_exit(Thread& thread) {
  Domain& domain = *thread.domain;
  Cta& cta = *thread.cta;
  if (domain.detect_races && (domain.ctas.size() > 1 || !cta.mbarriers.empty())) {
    if (cta.exit_clock == nullptr) cta.exit_clock = domain.further_clock();
    join(domain, cta.exit_clock, thread.clock);
  }
  if (cta.live != 0) return;
  for (TmaLoad const& load : domain.tma_loads) {
    if (load.mbarrier->cta != &cta) continue;
    domain.fail([&] {
      return format("%s exits while the TMA load by %s at %s is still in flight to its shared memory",
                    block_name(cta.index).c_str(), who(*load.thread).c_str(), at(load.loc).c_str());
    });
  }
  if (cta.exit_clock == nullptr) return;
  auto const fail = [&](Thread const& other, char const* what, Loc loc) {
    domain.fail([&] {
      return format("%s exits without having waited for %s by %s at %s, which needs its shared memory",
                    block_name(cta.index).c_str(), what, who(other).c_str(), at(loc).c_str());
    });
  };
  for (auto const& mbarrier : cta.mbarriers) {
    if (mbarrier->agent < 0 || cta.exit_clock[mbarrier->agent] >= mbarrier->loads) continue;
    fail(*domain.async_agents[mbarrier->agent - domain.threads.size()].thread, "the TMA load", mbarrier->load_loc);
  }
  for (RemoteOperation const& operation : cta.remote) {
    if (cta.exit_clock[operation.thread->agent] >= operation.event) continue;
    fail(*operation.thread, operation.what, operation.loc);
  }
}

// ----------------------------------------------------------------------------------------------------------- registers

namespace {

std::string wanted_registers(void const* object) {
  auto const& warp = *static_cast<Warp const*>(object);
  return format("(warp %d has %d registers per thread, the CTA could give each lane %d more)", warp.id, warp.registers,
                warp.cta->free_registers);
}

// Gives the thread's warp its registers if there are enough.
bool take_registers(Thread& thread, int registers) {
  Warp& warp = *thread.warp;
  int const more = registers - warp.registers;
  if (more > thread.cta->free_registers) return false;
  thread.cta->free_registers -= more;
  warp.registers = registers;
  return true;
}

}  // namespace

void griddepcontrol_wait() { current_thread->may_touch_global = true; }

void setmaxnreg(int registers, bool increase, Loc loc) {
  char const* const what = increase ? "setmaxnreg.inc" : "setmaxnreg.dec";
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  loc = thread.reported(loc);
  require_full_warp(thread, what, loc);
  meet_and_execute(thread, what, 0xffffffffu, nullptr, loc, [&](void* const*) {
    int const now = thread.warp->registers;
    if (increase ? registers < now : registers > now) {
      domain.fail([&] {
        return format("%s by %s at %s: from %d registers per thread to %d", what, who(thread).c_str(), at(loc).c_str(),
                      now, registers);
      });
    }
    while (!take_registers(thread, registers)) {
      thread.cta->register_waiters.push_back(&thread);
      domain.block(what, wanted_registers, thread.warp, loc);
    }
    if (increase) return;
    for (Thread* waiter : thread.cta->register_waiters) domain.make_ready(*waiter);
    thread.cta->register_waiters.clear();
  });
}

// --------------------------------------------------------------------------------------------------------------- elect

bool elect_sync(uint32_t mask, Loc loc) {
  Thread& thread = *current_thread;
  loc = thread.reported(loc);
  mask &= thread.warp->lanes;
  meet_and_execute(thread, "elect.sync", mask, nullptr, loc, [](void* const*) {});
  if (thread.domain->launch->options.order != ThreadOrder::random) return thread.lane == __builtin_ctz(mask);
  // The manual promises only that it is always the same one.
  for (uint64_t skip = thread.domain->launch->options.seed % __builtin_popcount(mask); skip != 0; --skip) {
    mask &= mask - 1;
  }
  return thread.lane == __builtin_ctz(mask);
}

}  // namespace moye::emu
