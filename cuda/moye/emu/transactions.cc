// What memory instructions cost: wavefronts of shared memory, sectors of global memory.
//
// A plain access and a cp.async are executed by one fiber at a time, so the instruction that the lanes of a warp
// execute together is put together afterwards: between two meetings of all lanes of a warp (bar.sync, bar.arrive, a
// .sync instruction with all lanes in its mask, the kernel's end), the n-th accesses of the lanes from one code address
// are one instruction. So lanes that skip an instruction (a predicate) are absent from it, unless they execute it
// another time before the next meeting: then, in a loop, later turns of some lanes are counted with earlier turns of
// others. A cp.async that reads nothing is not absent. An access of more than 16 bytes is as many instructions of 16 as
// it takes. What is counted are the accesses of the source as the host compiler makes them; nvcc may split an
// assignment of a structure into several.
//
// Shared memory has 32 banks of 4 bytes. The lanes of an instruction are served in phases: all 32 where each moves up
// to 4 bytes, 16 neighbours with 8 bytes, 8 neighbours with 16 bytes. A phase takes as many wavefronts as the bank with
// the most distinct words has words; lanes that touch the same word share it. Hardware can do better where phases touch
// the same words. (ldmatrix is counted in warp.cc: one phase for each matrix.) Global memory is moved in sectors of 32
// bytes.
#include <algorithm>

#include "moye/emu/machine.h"

namespace moye::emu {
namespace {

constexpr uint64_t kBanks = 32, kBankBytes = 4, kSectorBytes = 32;

// The accesses of an instruction's lanes, in the order of the lanes.
struct Request {
  LaneAccess const* lanes[32];
  int count = 0;
  int bytes = 0;  // of the lane that moves most
};

// f(unit) of every `unit_bytes` bytes that the access touches.
template <class F>
void for_each_unit(LaneAccess const& access, uint64_t unit_bytes, F const& f) {
  if (access.bytes == 0) return;  // of a cp.async that writes zeros alone
  for (uint64_t unit = access.address / unit_bytes; unit * unit_bytes < access.address + access.bytes; ++unit) f(unit);
}

// The distinct units of `unit_bytes` bytes that lanes first to last - 1 touch.
std::vector<uint64_t> distinct_units(Request const& request, uint64_t unit_bytes, int first = 0, int last = 32) {
  std::vector<uint64_t> units;
  for (int i = 0; i < request.count; ++i) {
    LaneAccess const& access = *request.lanes[i];
    if (access.lane < first || access.lane >= last) continue;
    for_each_unit(access, unit_bytes, [&](uint64_t unit) { units.push_back(unit); });
  }
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  return units;
}

void add_phases(Request const& request, Transactions& to) {
  int const lanes_per_phase = request.bytes <= 4 ? 32 : request.bytes <= 8 ? 16 : 8;
  for (int first = 0; first < 32; first += lanes_per_phase) {
    uint64_t words_in_bank[kBanks] = {};
    uint64_t most = 0;
    for (uint64_t word : distinct_units(request, kBankBytes, first, first + lanes_per_phase)) {
      most = std::max(most, ++words_in_bank[word % kBanks]);
    }
    to.wavefronts += most;
    if (most > 1) to.bank_conflicts += most - 1;
  }
}

uint64_t ceil_div(uint64_t n, uint64_t d) { return (n + d - 1) / d; }

void count(Request const& request, AccessKind kind, Counters& counters) {
  auto const add_wavefronts = [&](Transactions& to) {
    ++to.requests;
    add_phases(request, to);
    to.ideal_wavefronts += ceil_div(distinct_units(request, kBankBytes).size(), kBanks);
  };
  auto const add_sectors = [&](Transactions& to) {
    to.sectors += distinct_units(request, kSectorBytes).size();
    to.ideal_sectors += ceil_div(distinct_units(request, 1).size(), kSectorBytes);
  };
  switch (kind) {
    case AccessKind::shared_load:
      return add_wavefronts(counters.shared_load_transactions);
    case AccessKind::shared_store:
      return add_wavefronts(counters.shared_store_transactions);
    case AccessKind::cp_async_store:
      return add_wavefronts(counters.cp_async_transactions);
    case AccessKind::cp_async_load:
      return add_sectors(counters.cp_async_transactions);
    case AccessKind::global_load:
      ++counters.global_load_transactions.requests;
      return add_sectors(counters.global_load_transactions);
    case AccessKind::global_store:
      ++counters.global_store_transactions.requests;
      return add_sectors(counters.global_store_transactions);
  }
}

bool same_instruction(LaneAccess const& a, LaneAccess const& b) { return a.pc == b.pc && a.kind == b.kind; }

// Accesses of one instruction's code address: the n-th of each lane belong together.
void count_all(LaneAccess const* begin, LaneAccess const* end, Counters& counters) {
  LaneAccess const* next[32] = {};  // by lane
  for (LaneAccess const* access = end; access-- != begin;) next[access->lane] = access;
  for (;;) {
    Request request;
    for (int lane = 0; lane < 32; ++lane) {
      LaneAccess const*& access = next[lane];
      if (access == nullptr) continue;
      request.lanes[request.count++] = access;
      request.bytes = std::max<int>(request.bytes, access->bytes);
      ++access;
      if (access == end || access->lane != lane) access = nullptr;
    }
    if (request.count == 0) return;
    count(request, begin->kind, counters);
  }
}

}  // namespace

void keep_access(Thread& thread, AccessKind kind, void const* pc, uint64_t address, size_t bytes) {
  constexpr size_t kMostBytes = 16;
  size_t done = 0;
  do {
    auto const part = static_cast<uint8_t>(std::min(bytes - done, kMostBytes));
    thread.warp->accesses.push_back({pc, address + done, kind, static_cast<uint8_t>(thread.lane), part});
    done += kMostBytes;
  } while (done < bytes);
}

void count_transactions(Domain& domain, Warp& warp) {
  std::vector<LaneAccess>& accesses = warp.accesses;
  // Stable: the accesses of one lane from one code address stay in the order of the program.
  std::stable_sort(accesses.begin(), accesses.end(), [](LaneAccess const& a, LaneAccess const& b) {
    if (a.pc != b.pc) return std::less<>{}(a.pc, b.pc);
    return a.kind != b.kind ? a.kind < b.kind : a.lane < b.lane;
  });
  LaneAccess const* const end = accesses.data() + accesses.size();
  for (LaneAccess const *first = accesses.data(), *last; first != end; first = last) {
    for (last = first; last != end && same_instruction(*first, *last);) ++last;
    count_all(first, last, domain.counters);
  }
  accesses.clear();
}

}  // namespace moye::emu
