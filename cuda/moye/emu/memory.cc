// Addresses: which memory an access is to, and whether it is inside. Plain accesses come here from the hooks.
#include <link.h>

#include "moye/emu/machine.h"

namespace moye::emu {
namespace {

// An access this near to a declared array, and outside all of them, is taken for an index out of range.
constexpr uintptr_t kNear = 1 << 20;
// And from here on it is of no use to name the nearest one.
constexpr uintptr_t kFar = 1 << 30;

// "by thread 37 (warp 1 lane 5) at sm80.cuh:147"
std::string by(Thread const& thread, Loc loc) { return "by " + who(thread) + " at " + at(loc); }

Region* region_of(Launch& launch, uintptr_t address) {
  for (Region& region : launch.regions) {
    if (address - region.base() < region.memory.bytes) return &region;
  }
  return nullptr;
}

// The declared array whose nearer end is nearest.
Region const* nearest_region(Launch const& launch, uintptr_t address, uintptr_t* distance) {
  Region const* nearest = nullptr;
  *distance = UINTPTR_MAX;
  for (Region const& region : launch.regions) {
    uintptr_t const end = region.base() + region.memory.bytes;
    uintptr_t const away = address < region.base() ? region.base() - address : address < end ? 0 : address - end;
    if (away >= *distance) continue;
    *distance = away;
    nearest = &region;
  }
  return nearest;
}

std::string place(Launch const& launch, uintptr_t address) {
  uintptr_t distance;
  Region const* const region = nearest_region(launch, address, &distance);
  if (region == nullptr) return "no array was declared";
  if (distance >= kFar) return "no array is near";
  return format("the nearest array is %s (%zu bytes), of which it is offset %td", region->memory.name,
                region->memory.bytes, static_cast<ptrdiff_t>(address - region->base()));
}

// Constants of the program itself are no arrays, wherever the loader has put them.
bool in_loaded_module(uintptr_t address) {
  struct Query {
    uintptr_t address;
    bool found;
  } query{address, false};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& q = *static_cast<Query*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          ElfW(Phdr) const& header = info->dlpi_phdr[i];
          if (header.p_type == PT_LOAD && q.address - (info->dlpi_addr + header.p_vaddr) < header.p_memsz)
            q.found = true;
        }
        return q.found ? 1 : 0;
      },
      &query);
  return query.found;
}

// The kernel's arguments, until it has copied them: locals of the functions that launched it.
bool in_launching_function(Launch const& launch, uintptr_t address) {
  constexpr uintptr_t kFrames = 64 * 1024;
  return address - launch.host_frame < kFrames;
}

[[noreturn]] void fail_outside(Thread& thread, uintptr_t address, size_t bytes, char const* what, Loc loc) {
  thread.domain->fail([&] {
    return format("out of bounds: %s of %zu bytes %s: %s", what, bytes, by(thread, loc).c_str(),
                  place(*thread.domain->launch, address).c_str());
  });
}

// The other CTA of the cluster in whose shared memory the bytes lie, null if there is none.
Cta* other_cta(Thread& thread, void const* address, size_t bytes) {
  Domain& domain = *thread.domain;
  if (domain.ctas.size() == 1) return nullptr;
  size_t const size = domain.launch->shape.smem_bytes;
  for (Cta& cta : domain.ctas) {
    auto const offset = static_cast<size_t>(static_cast<unsigned char const*>(address) - cta.smem);
    if (&cta != thread.cta && offset <= size && bytes <= size - offset) return &cta;
  }
  return nullptr;
}

// An access that starts in `region`.
void access_region(Thread& thread, Region& region, uintptr_t address, size_t bytes, bool write, char const* what,
                   Loc loc, bool record = true) {
  size_t const offset = address - region.base();
  if (bytes > region.memory.bytes - offset) fail_outside(thread, address, bytes, what, loc);
  if (!thread.may_touch_global && (write || !region.memory.lasting)) {
    thread.domain->fail([&] {
      return format("%s of %zu bytes %s, before its griddepcontrol.wait: the kernel ahead may still run", what, bytes,
                    by(thread, loc).c_str());
    });
  }
  if (write && !region.memory.writable) {
    thread.domain->fail([&] {
      return format("write to read-only memory: %s of %zu bytes %s, at offset %zu of %s (%zu bytes)", what, bytes,
                    by(thread, loc).c_str(), offset, region.memory.name, region.memory.bytes);
    });
  }
  if (record && region.writes != nullptr) global_race_check(thread, region, offset, bytes, write, what, loc);
}

}  // namespace

uint32_t smem_offset(Thread& thread, void const* address, size_t bytes, char const* what, Loc loc) {
  Domain& domain = *thread.domain;
  ptrdiff_t const offset = static_cast<unsigned char const*>(address) - thread.cta->smem;
  size_t const size = domain.launch->shape.smem_bytes;
  if (static_cast<size_t>(offset) > size || bytes > size - offset) {
    domain.fail([&] {
      if (!domain.in_smem_mapping(reinterpret_cast<uintptr_t>(address)))
        return format("%s %s: %p is not an address in shared memory", what, by(thread, loc).c_str(), address);
      return format("out of bounds: %s of %zu bytes %s: offset %td of shared memory (%zu bytes)", what, bytes,
                    by(thread, loc).c_str(), offset, size);
    });
  }
  return static_cast<uint32_t>(offset);
}

void global_access(Thread& thread, void const* address, size_t bytes, bool write, char const* what, Loc loc) {
  auto const start = reinterpret_cast<uintptr_t>(address);
  Region* const region = region_of(*thread.domain->launch, start);
  if (region == nullptr) fail_outside(thread, start, bytes, what, loc);
  access_region(thread, *region, start, bytes, write, what, loc);
}

void global_reduction(Thread& thread, void const* address, size_t bytes, char const* what, Loc loc) {
  auto const start = reinterpret_cast<uintptr_t>(address);
  Region* const region = region_of(*thread.domain->launch, start);
  if (region == nullptr) fail_outside(thread, start, bytes, what, loc);
  access_region(thread, *region, start, bytes, true, what, loc, /*record=*/false);
}

namespace {

void checked_access(Thread& thread, void const* address, size_t bytes, size_t alignment, bool write, void const* pc) {
  Domain& domain = *thread.domain;
  Loc const loc = thread.reported({static_cast<char const*>(pc), -1});
  domain.count_step(thread, loc);
  auto const start = reinterpret_cast<uintptr_t>(address);
  if (domain.in_stacks(start)) {
    if (domain.below_stack(start)) domain.fail_on_overflow(thread);
    return;  // another fiber's
  }

  char const* const what = write ? "plain store" : "plain load";
  if (start % alignment != 0) {
    domain.fail([&] {
      return format("%s of %zu bytes %s: the address %p is not a multiple of %zu", what, bytes, by(thread, loc).c_str(),
                    address, alignment);
    });
  }
  Counters& counters = domain.counters;
  if (domain.in_smem_mapping(start)) {
    Cta* const other = other_cta(thread, address, bytes);
    uint32_t const offset = other == nullptr
                                ? smem_offset(thread, address, bytes, what, loc)
                                : static_cast<uint32_t>(static_cast<unsigned char const*>(address) - other->smem);
    if (other != nullptr) touch_remote_cta(thread, *other, what, loc);
    if (write) {
      ++counters.shared_stores, counters.shared_store_bytes += bytes;
    } else {
      ++counters.shared_loads, counters.shared_load_bytes += bytes;
    }
    if (domain.count_transactions) {
      keep_access(thread, write ? AccessKind::shared_store : AccessKind::shared_load, pc, offset, bytes);
    }
    Cta& cta = other != nullptr ? *other : *thread.cta;
    if (domain.detect_races) shared_access(thread, cta, offset, bytes, write, Proxy::thread, what, loc);
    return;
  }
  Launch& launch = *domain.launch;
  if (Region* const region = region_of(launch, start)) {
    if (write) {
      ++counters.global_stores, counters.global_store_bytes += bytes;
    } else {
      ++counters.global_loads, counters.global_load_bytes += bytes;
    }
    if (domain.count_transactions) {
      keep_access(thread, write ? AccessKind::global_store : AccessKind::global_load, pc, start, bytes);
    }
    return access_region(thread, *region, start, bytes, write, what, loc);
  }
  uintptr_t distance;
  if (nearest_region(launch, start, &distance) == nullptr || distance >= kNear) return;
  if (in_launching_function(launch, start) || in_loaded_module(start)) return;
  fail_outside(thread, start, bytes, what, loc);
}

}  // namespace

void plain_access(void const* address, size_t bytes, size_t alignment, bool write, void const* pc) {
  Thread& thread = *current_thread;
  try {
    return checked_access(thread, address, bytes, alignment, write, pc);
  } catch (std::bad_alloc const&) {
    // Not through the kernel: compilers take it that the sanitizer's functions do not throw.
  }
  thread.domain->fail_without_memory();
}

std::string overflow_text(Thread const& thread) {
  return "stack overflow in " + who(thread) +
         format(": Options::stack_bytes is %zu", thread.domain->launch->options.stack_bytes);
}

std::string describe_fault(Thread& thread, uintptr_t address, uintptr_t pc, uintptr_t sp, bool protection) {
  Domain& domain = *thread.domain;
  // One byte on: code addresses in a Loc are return addresses, behind the instruction.
  Loc const loc = thread.reported({reinterpret_cast<char const*>(pc + 1), -1});
  if (protection) return "fault " + by(thread, loc) + ": a vector access that is not aligned, or a wild address";
  bool const outside_its_stack = sp != 0 && sp - thread.stack_begin >= thread.stack_bytes;
  if (outside_its_stack || domain.in_stacks(address)) return overflow_text(thread);
  std::string text = "out of bounds: fault " + by(thread, loc);
  if (domain.in_smem_mapping(address)) {
    return text + format(", at offset %td of shared memory (%d bytes)",
                         static_cast<ptrdiff_t>(address - reinterpret_cast<uintptr_t>(thread.cta->smem)),
                         domain.launch->shape.smem_bytes);
  }
  return text + format(", at address 0x%zx: ", static_cast<size_t>(address)) + place(*domain.launch, address);
}

}  // namespace moye::emu
