// cp.async and its groups. A copy is an access by its own agent: ordered before nothing but the wait for its group.
#include "moye/emu/machine.h"

namespace moye::emu {
namespace {

void take_effect(AsyncCopy const& copy) {
  if (copy.src_bytes != 0) std::memcpy(copy.dst, copy.src, copy.src_bytes);
  std::memset(copy.dst + copy.src_bytes, 0, copy.bytes - copy.src_bytes);
}

// Completes the copies for which `due` is true.
template <class Due>
void complete(Thread& thread, Due&& due) {
  size_t kept = 0;
  for (AsyncCopy const& copy : thread.copies) {
    if (due(copy)) {
      take_effect(copy);
    } else {
      thread.copies[kept++] = copy;
    }
  }
  thread.copies.resize(kept);
}

// Mode::random: some of the copies in flight, now.
void complete_some(Thread& thread) {
  Domain& domain = *thread.domain;
  if (domain.launch->options.mode != Mode::random) return;
  complete(thread, [&](AsyncCopy const&) { return domain.random() % 4 == 0; });
}

}  // namespace

void cp_async(void* smem_dst, void const* gmem_src, int bytes, int src_bytes, Loc loc) {
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  Options const& options = domain.launch->options;
  loc = thread.reported(loc);
  domain.count_step(thread, loc);
  uint32_t const offset = smem_offset(thread, smem_dst, bytes, "cp.async (write)", loc);
  if (src_bytes < 0 || src_bytes > bytes) {
    domain.fail([&] {
      return format("cp.async by %s at %s: %d of %d bytes are to be read", who(thread).c_str(), at(loc).c_str(),
                    src_bytes, bytes);
    });
  }
  bool const misaligned_src = src_bytes != 0 && reinterpret_cast<uintptr_t>(gmem_src) % bytes != 0;
  if (offset % bytes != 0 || misaligned_src) {
    domain.fail([&] {
      return format("cp.async by %s at %s: %d bytes from %p to smem+0x%x are not aligned to their size",
                    who(thread).c_str(), at(loc).c_str(), bytes, gmem_src, offset);
    });
  }
  if (src_bytes != 0) global_access(thread, gmem_src, src_bytes, false, "cp.async (read)", loc);
  if (domain.detect_races) {
    domain.used_agents = domain.agents;
    shared_access(thread, *thread.cta, offset, bytes, true, Proxy::cp_async, "cp.async", loc);
  }
  ++domain.counters.cp_async;
  domain.counters.cp_async_bytes += src_bytes;
  if (domain.count_transactions) {
    void const* const pc = __builtin_return_address(0);
    keep_access(thread, AccessKind::cp_async_store, pc, offset, bytes);
    keep_access(thread, AccessKind::cp_async_load, pc, reinterpret_cast<uintptr_t>(gmem_src), src_bytes);
  }

  AsyncCopy const copy{static_cast<unsigned char*>(smem_dst), gmem_src, bytes, src_bytes, thread.groups};
  if (options.mode == Mode::eager) return take_effect(copy);
  if (options.poison) std::memset(smem_dst, 0xff, bytes);
  thread.copies.push_back(copy);
  complete_some(thread);
}

void cp_async_commit_group(Loc loc) {
  Thread& thread = *current_thread;
  thread.domain->count_step(thread, thread.reported(loc));
  ++thread.groups;
  complete_some(thread);
  thread.domain->yield_sometimes();
}

void cp_async_wait_group(int groups_in_flight, Loc loc) {
  Thread& thread = *current_thread;
  thread.domain->count_step(thread, thread.reported(loc));
  auto const allowed = static_cast<uint32_t>(groups_in_flight);
  if (thread.groups > allowed) {
    uint32_t const done = thread.groups - allowed;  // groups 0 to done - 1
    complete(thread, [done](AsyncCopy const& copy) { return copy.group < done; });
    if (thread.clock != nullptr) {
      uint32_t& known = thread.clock[thread.domain->cp_async_agent(thread)];
      known = std::max(known, done);
    }
  }
  complete_some(thread);
}

void cp_async_wait_all(Loc loc) {
  ++current_thread->groups;  // what was not committed
  cp_async_wait_group(0, loc);
}

}  // namespace moye::emu
