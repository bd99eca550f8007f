// The happens-before checker.
//
// Shared memory: for every 16 bytes the shadow holds the last write and the reads since, each with the agent's event
// number. A new access is a race unless its thread's clock has reached that event. Accesses to parts of 16 bytes split
// the cell into four of 4 bytes, whose records have byte masks. Reads are recorded per warp (32 agents), so that any
// number of lanes fits; of more than eight warps that read the same bytes between two barriers some are forgotten: a
// race may then be missed, never invented.
//
// Asynchronous operations (async_access) are recorded like threads, under an agent of their own. They see what the
// generic proxy wrote only behind a fence.proxy.async, which is what the second part of a clock keeps.
//
// Global memory: per byte of writable arrays the last write and the last read, in one 64-bit word each, for all CTAs.
// Nothing orders two CTAs of a launch; within a CTA the clocks decide.
#include <algorithm>
#include <cstdlib>
#include <new>

#include "moye/emu/machine.h"
#include "moye/emu/vector.h"

namespace moye::emu {

// -------------------------------------------------------------------------------------------------------------- clocks

namespace {

// Signed, because the oldest vector units compare nothing else. Events stay far below 2^31.
MOYE_EMU_WIDE_VECTORS void take_larger(int32_t* a, int32_t const* b, int count) {
  for (int i = 0; i < count; ++i) a[i] = a[i] > b[i] ? a[i] : b[i];
}

}  // namespace

void join(Domain const& domain, Clock into, Clock from) {
  for (int part = 0; part < (domain.proxy_fences ? 2 : 1); ++part) {
    take_larger(reinterpret_cast<int32_t*>(into + part * domain.agents),
                reinterpret_cast<int32_t const*>(from + part * domain.agents), domain.used_agents);
  }
}

void release(Thread& thread, Clock into) {
  join(*thread.domain, into, thread.clock);
  ++thread.clock[thread.agent];
}

void acquire(Thread& thread, Clock from) {
  Domain const& domain = *thread.domain;
  uint32_t const mine = thread.clock[thread.agent];  // only the thread's own event is newer than at the release
  std::memcpy(thread.clock, from, domain.used_agents * sizeof(uint32_t));
  if (domain.proxy_fences) {
    std::memcpy(thread.clock + domain.agents, from + domain.agents, domain.used_agents * sizeof(uint32_t));
  }
  thread.clock[thread.agent] = mine;
}

int new_async_agent(Thread& thread, bool warp) {
  Domain& domain = *thread.domain;
  auto const count = static_cast<int>(domain.async_agents.size());
  if (count == domain.most_async_agents) {
    domain.fail([&] {
      return format("emulator: more than %d mbarriers, threads and warps with asynchronous operations in %s", count,
                    block_name(thread.cta->index).c_str());
    });
  }
  domain.async_agents.push_back({&thread, warp});
  int const agent = static_cast<int>(domain.threads.size()) + count;
  domain.used_agents = std::max(domain.used_agents, agent + 1);
  return agent;
}

void async_done(Thread& thread, int agent, uint32_t event) {
  thread.clock[agent] = std::max(thread.clock[agent], event);
}

void proxy_fence(Thread& thread) {
  Domain& domain = *thread.domain;
  domain.proxy_fences = true;
  std::memcpy(thread.clock + domain.agents, thread.clock, domain.used_agents * sizeof(uint32_t));
  ++thread.clock[thread.agent];  // what the thread writes from here on is not behind the fence
}

uint16_t Domain::site(char const* what, Loc loc) {
  uintptr_t const key = reinterpret_cast<uintptr_t>(what) ^ reinterpret_cast<uintptr_t>(loc.file) * 5 ^
                        static_cast<uintptr_t>(loc.line) * 37;
  CachedSite& cached = site_cache_[(key ^ key >> 8) & 255];
  if (cached.site.what != what || cached.site.loc.file != loc.file || cached.site.loc.line != loc.line) {
    cached = {{what, loc}, launch->add_site({what, loc})};
  }
  return cached.index;
}

namespace {

std::string agent_name(Domain const& domain, uint32_t agent) {
  size_t const threads = domain.threads.size();
  if (agent < threads) return who(domain.threads[agent]);
  if (agent >= static_cast<uint32_t>(domain.first_cp_async_agent())) {
    return who(domain.threads[agent - domain.first_cp_async_agent()]);  // a copy is named after the thread
  }
  Domain::AsyncAgent const& async = domain.async_agents[agent - threads];
  if (!async.warp) return who(*async.thread);
  bool const one = domain.launch->clusters * domain.ctas.size() == 1;
  return (one ? "" : block_name(async.thread->cta->index) + " ") + format("warp %d", async.thread->warp->id);
}

// "ldmatrix (read) by thread 0 (warp 0 lane 0) at sm80.cuh:147"
std::string describe(Launch const& launch, uint16_t site, bool write, std::string const& by) {
  AccessSite const& access = launch.sites[site];
  return format("%s (%s) by %s at %s", access.what, write ? "write" : "read", by.c_str(), at(access.loc).c_str());
}

}  // namespace

// ------------------------------------------------------------------------------------------------------- shared memory

namespace {

struct Access {
  Domain* domain;
  Cta* cta;
  Clock clock;
  uint32_t* floors;  // may be null
  uint32_t agent, event;
  uint16_t site;
  bool write;
  bool async;  // through the async proxy
  // The last write found to be ordered before this access: neighbouring cells mostly hold the same one.
  uint32_t ordered_agent, ordered_event;

  bool after(uint32_t other_agent, uint32_t other_event) const { return clock[other_agent] >= other_event; }

  /// Whether the write is ordered before this access and visible to its proxy.
  bool sees(WriteRecord const& record) const {
    bool const fence_needed = async && !domain->is_async_agent(record.agent);
    return clock[record.agent + (fence_needed ? domain->agents : 0)] >= record.event;
  }

  /// The lanes whose read is not ordered before this access.
  uint32_t unordered(ReadRecord const& record) const {
    // A clock's components only grow, so their least value, once computed, answers for most reads after it: a store to
    // what 256 threads have read costs 8 comparisons, not 256.
    if (floors != nullptr && record.event <= floors[record.group]) return 0;
    Clock const first = clock + 32 * record.group;
    uint32_t least = first[0];
    for (int i = 1; i < 32; ++i) least = first[i] < least ? first[i] : least;
    if (floors != nullptr) floors[record.group] = least;
    if (record.event <= least) return 0;
    uint32_t result = 0;
    for (uint32_t rest = record.lanes; rest != 0; rest &= rest - 1) {
      if (first[__builtin_ctz(rest)] < record.event) result |= rest & -rest;
    }
    return result;
  }
};

[[noreturn]] void fail_race(Access const& access, uint32_t offset, uint32_t agent, uint32_t event, uint16_t site,
                            bool write) {
  Domain& domain = *access.domain;
  domain.fail([&] {
    std::lock_guard lock(domain.launch->mutex);
    Launch const& launch = *domain.launch;
    std::string const place = domain.ctas.size() == 1 ? "" : " of " + block_name(access.cta->index);
    std::string const first = describe(launch, access.site, access.write, agent_name(domain, access.agent));
    std::string const second = describe(launch, site, write, agent_name(domain, agent));
    std::string text = format("race on shared memory smem+0x%x", offset) + place + ": " + first;
    if (write && access.after(agent, event)) {
      return text + " is ordered after " + second + ", but no fence.proxy.async lies between them";
    }
    return text + " is not ordered after " + second;
  });
}

template <int kMostWrites>
void check(Access& access, Records<kMostWrites> const& records, uint32_t offset, uint8_t mask) {
  for (int i = 0; i < records.write_count; ++i) {
    WriteRecord const& record = records.writes[i];
    if ((record.mask & mask) == 0) continue;
    if (record.agent == access.ordered_agent && record.event == access.ordered_event) continue;
    if (!access.sees(record)) fail_race(access, offset, record.agent, record.event, record.site, true);
    access.ordered_agent = record.agent;
    access.ordered_event = record.event;
  }
  if (!access.write) return;
  for (int i = 0; i < records.read_count; ++i) {
    ReadRecord const& record = records.reads[i];
    if ((record.mask & mask) == 0) continue;
    if (uint32_t const lanes = access.unordered(record); lanes != 0) {
      fail_race(access, offset, 32u * record.group + __builtin_ctz(lanes), record.event, record.site, false);
    }
  }
}

template <int kMostWrites>
void record_write(Access const& access, Records<kMostWrites>& records, uint8_t mask) {
  int kept = 0;
  for (int i = 0; i < records.write_count; ++i) {
    records.writes[i].mask &= ~mask;
    if (records.writes[i].mask != 0) records.writes[kept++] = records.writes[i];
  }
  records.writes[kept] = {access.event, static_cast<uint16_t>(access.agent), access.site, mask};
  records.write_count = static_cast<uint8_t>(kept + 1);
  kept = 0;
  for (int i = 0; i < records.read_count; ++i) {
    records.reads[i].mask &= ~mask;
    if (records.reads[i].mask != 0) records.reads[kept++] = records.reads[i];
  }
  records.read_count = static_cast<uint8_t>(kept);
}

// A read that happened before this one need not be kept: what is ordered after this one is ordered after that one.
bool superseded(Access const& access, ReadRecord const& record, uint8_t mask) {
  // Mostly it did not: another warp reads the same, and one lane tells.
  if ((record.mask & ~mask) != 0 || !access.after(32u * record.group + __builtin_ctz(record.lanes), record.event)) {
    return false;
  }
  return access.unordered(record) == 0;
}

template <int kMostWrites>
void record_read(Access const& access, Records<kMostWrites>& records, uint8_t mask) {
  auto const group = static_cast<uint16_t>(access.agent / 32);
  uint32_t const lane = 1u << access.agent % 32;
  ReadRecord* place = nullptr;
  for (int i = 0; i < records.read_count; ++i) {
    ReadRecord& record = records.reads[i];
    if (record.group == group && record.event == access.event && record.mask == mask && record.site == access.site) {
      record.lanes |= lane;
      return;
    }
    if (place == nullptr && superseded(access, record, mask)) place = &record;
  }
  if (place == nullptr)
    place = &records.reads[records.read_count < records.kReads ? records.read_count++ : records.kReads - 1];
  *place = {access.event, lane, access.site, group, mask};
}

template <int kMostWrites>
void touch(Access& access, Records<kMostWrites>& records, uint32_t offset, uint8_t mask) {
  check(access, records, offset, mask);
  if (access.write) {
    record_write(access, records, mask);
  } else {
    record_read(access, records, mask);
  }
}

WordRecords* split(Shadow& shadow, ShadowCell& cell) {
  if (cell.split == ShadowCell::kWhole) {
    cell.split = static_cast<int32_t>(shadow.words.size());
    WholeRecords const& whole = cell.records;
    for (int i = 0; i < 4; ++i) {
      WordRecords& word = shadow.words.emplace_back();
      word.write_count = whole.write_count;
      word.read_count = whole.read_count;
      std::copy_n(whole.writes, whole.write_count, word.writes);
      std::copy_n(whole.reads, whole.read_count, word.reads);
    }
  }
  return &shadow.words[cell.split];
}

}  // namespace

void reset(Shadow& shadow, size_t ctas, size_t smem_bytes) {
  size_t const cells = smem_bytes / 16 + 1;
  shadow.words.clear();
  ++shadow.epoch;
  if (shadow.ctas.size() >= ctas && shadow.cells >= cells && shadow.epoch != 0) return;
  shadow.cells = std::max(shadow.cells, cells);
  shadow.epoch = 1;
  shadow.ctas.clear();
  for (size_t i = 0; i < ctas; ++i) shadow.ctas.push_back(std::make_unique<ShadowCell[]>(shadow.cells));
}

namespace {

// Cells from the next but so many on are fetched into the processor's cache while others are looked at.
constexpr int kAhead = 8;

void touch_range(Access& access, uint32_t offset, size_t bytes) {
  constexpr uint8_t kAllBytes = 0xf;
  Domain& domain = *access.domain;
  Cta& cta = *access.cta;
  auto const end = static_cast<uint32_t>(offset + bytes);
  for (uint32_t start = offset & ~15u; start < end; start += 16) {
    ShadowCell& cell = cta.shadow[start / 16];
    if (end - start > kAhead * 16) __builtin_prefetch(&cell + kAhead, 1);
    if (cell.epoch != domain.shadow.epoch) {
      cell.epoch = domain.shadow.epoch;
      cell.split = ShadowCell::kWhole;
      cell.records.clear();
    }
    bool const whole = offset <= start && start + 16 <= end;
    if (whole && cell.split == ShadowCell::kWhole) {
      touch(access, cell.records, start, kAllBytes);
      continue;
    }
    WordRecords* const words = split(domain.shadow, cell);
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t const word = start + 4 * i;
      uint32_t const low = std::max(offset, word), high = std::min(end, word + 4);
      if (low >= high) continue;
      auto const mask = static_cast<uint8_t>(((1u << (high - low)) - 1) << (low - word));
      touch(access, words[i], low, mask);
    }
    if (whole && access.write) {  // one record tells it all again; the four cells are reused with the next CTA
      cell.split = ShadowCell::kWhole;
      cell.records.clear();
      record_write(access, cell.records, kAllBytes);
    }
  }
}

}  // namespace

void shared_access(Thread& thread, Cta& cta, uint32_t offset, size_t bytes, bool write, Proxy proxy, char const* what,
                   Loc loc) {
  Domain& domain = *thread.domain;
  Access access{&domain, &cta, thread.clock, thread.floors, 0, 0, domain.site(what, loc), write, false, UINT32_MAX, 0};
  if (proxy == Proxy::thread) {
    access.agent = static_cast<uint32_t>(thread.agent);
    access.event = thread.clock[thread.agent];
  } else {
    access.agent = static_cast<uint32_t>(domain.cp_async_agent(thread));
    access.event = thread.groups + 1;
  }
  touch_range(access, offset, bytes);
}

namespace {

Access async_access_of(Domain& domain, AsyncOperation const& operation, Cta& cta, bool write) {
  return {&domain,
          &cta,
          operation.order,
          operation.floors,
          static_cast<uint32_t>(operation.agent),
          operation.event,
          domain.site(operation.what, operation.loc),
          write,
          true,
          UINT32_MAX,
          0};
}

}  // namespace

void async_access(Domain& domain, AsyncOperation const& operation, Cta& cta, uint32_t offset, size_t bytes,
                  bool write) {
  Access access = async_access_of(domain, operation, cta, write);
  touch_range(access, offset, bytes);
}

void async_reads(Domain& domain, AsyncOperation const& operation, Cta& cta, uint32_t const* offsets, int count) {
  Access access = async_access_of(domain, operation, cta, /*write=*/false);
  for (int i = 0; i < count; ++i) {
    if (i + kAhead < count) __builtin_prefetch(&cta.shadow[offsets[i + kAhead] / 16], 1);
    touch_range(access, offsets[i], 16);
  }
}

// ------------------------------------------------------------------------------------------------------- global memory

namespace {

// Who touched a byte last, in 64 bits: 1 | CTA (24) | thread in it (10) | site (14) | event (15), or 0 for nobody.
constexpr uint64_t kMaxCtas = 1 << 24;
constexpr uint64_t kMaxEvent = (1 << 15) - 1;  // a later one is stored as this, and taken to be ordered

struct Touch {
  uint64_t cta, thread, site, event;

  uint64_t pack() const { return uint64_t{1} << 63 | cta << 39 | thread << 29 | site << 15 | event; }
  static Touch unpack(uint64_t bits) {
    return {bits >> 39 & (kMaxCtas - 1), bits >> 29 & 1023, bits >> 15 & (kMaxSites - 1), bits & kMaxEvent};
  }
};

bool ordered(Thread const& thread, Touch const& touch) {
  for (Cta const& cta : thread.domain->ctas) {
    if (cta.linear == touch.cta) {
      return touch.event == kMaxEvent || thread.clock[cta.threads[touch.thread].agent] >= touch.event;
    }
  }
  return false;
}

Dim3 block_of(Launch const& launch, uint64_t linear) {
  Dim3 const grid = launch.shape.grid;
  return {static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
          static_cast<unsigned>(linear / (uint64_t{grid.x} * grid.y))};
}

[[noreturn]] void fail_global_race(Thread& thread, Region const& region, size_t offset, uint16_t site, bool write,
                                   Touch const& other, bool other_write) {
  thread.domain->fail([&] {
    Launch& launch = *thread.domain->launch;
    std::lock_guard lock(launch.mutex);
    bool const same_cta = other.cta == thread.cta->linear;
    std::string const other_name = who(launch, block_of(launch, other.cta), static_cast<int>(other.thread));
    return format("race on global memory %s+0x%zx: ", region.memory.name, offset) +
           describe(launch, site, write, who(thread)) + " is not ordered after " +
           describe(launch, static_cast<uint16_t>(other.site), other_write, other_name) +
           (same_cta ? "" : ": nothing orders two CTAs of a launch");
  });
}

// With one worker nobody else writes the words: no need for an atomic exchange, which costs more than all else here.
uint64_t exchange(std::atomic<uint64_t>& word, uint64_t value, bool alone) {
  if (!alone) return word.exchange(value, std::memory_order_relaxed);
  uint64_t const old = word.load(std::memory_order_relaxed);
  word.store(value, std::memory_order_relaxed);
  return old;
}

}  // namespace

void allocate_global_shadow(Region& region) {
  auto allocate = [&] {
    void* const words = std::calloc(std::max<size_t>(1, region.memory.bytes), sizeof(uint64_t));
    if (words == nullptr) throw std::bad_alloc();
    return std::unique_ptr<std::atomic<uint64_t>[], void (*)(void*)>(static_cast<std::atomic<uint64_t>*>(words),
                                                                     std::free);
  };
  region.writes = allocate();
  region.reads = allocate();
}

void global_race_check(Thread& thread, Region& region, size_t offset, size_t bytes, bool write, char const* what,
                       Loc loc) {
  Domain& domain = *thread.domain;
  Launch& launch = *domain.launch;
  if (thread.cta->linear >= kMaxCtas) return;
  bool const alone = launch.options.workers <= 1;
  uint16_t const site = domain.site(what, loc);
  Touch const mine{thread.cta->linear, static_cast<uint64_t>(thread.id), site,
                   std::min<uint64_t>(thread.clock[thread.agent], kMaxEvent)};
  uint64_t const packed = mine.pack();
  std::atomic<uint64_t>* const writes = region.writes.get();
  std::atomic<uint64_t>* const reads = region.reads.get();
  uint64_t ordered_before = 0;  // the last word found to be: neighbouring bytes mostly hold the same one
  auto check = [&](size_t i, uint64_t word, bool other_write) {
    if (word == 0 || word == ordered_before) return;
    Touch const other = Touch::unpack(word);
    if (!ordered(thread, other)) fail_global_race(thread, region, i, site, write, other, other_write);
    ordered_before = word;
  };
  for (size_t i = offset; i < offset + bytes; ++i) {
    if (write) {
      check(i, exchange(writes[i], packed, alone), true);
      check(i, reads[i].load(std::memory_order_relaxed), false);
    } else {
      check(i, writes[i].load(std::memory_order_relaxed), true);
      reads[i].store(packed, std::memory_order_relaxed);
    }
  }
}

}  // namespace moye::emu
