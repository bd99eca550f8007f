// Meetings of a warp's lanes, and the instructions that are little more: __syncwarp, shfl, ldmatrix,
// stmatrix.
#include <algorithm>

#include "moye/emu/meeting.h"

namespace moye::emu {
namespace {

std::string progress(void const* object) {
  auto const& meeting = *static_cast<Meeting const*>(object);
  return format("(%d of %d lanes)", __builtin_popcount(meeting.arrived), __builtin_popcount(meeting.mask));
}

// The meeting with this mask, or a new one. A lane that another meeting waits for has gone astray.
Meeting& find_meeting(Thread& thread, char const* what, uint32_t mask, Loc loc) {
  Warp& warp = *thread.warp;
  Meeting* unused = nullptr;
  for (Meeting& meeting : warp.meetings) {
    if (meeting.arrived == 0) {
      unused = &meeting;
      continue;
    }
    bool const same =
        meeting.mask == mask && meeting.what == what && meeting.loc.line == loc.line && meeting.loc.file == loc.file;
    if (same) return meeting;
    if ((meeting.mask & mask) == 0) continue;
    thread.domain->fail([&] {
      Thread const& other = warp.first[__builtin_ctz(meeting.arrived)];
      return format("divergent warp: %s executes %s (lanes %#x) at %s while %s waits in %s (lanes %#x) at %s",
                    who(thread).c_str(), what, mask, at(loc).c_str(), who(other).c_str(), meeting.what, meeting.mask,
                    at(meeting.loc).c_str());
    });
  }
  if (unused == nullptr) {
    // Arguments of waiting lanes are reached through pointers into the vector: it must not move.
    warp.meetings.reserve(32);
    unused = &warp.meetings.emplace_back();
  }
  unused->mask = mask;
  unused->what = what;
  unused->loc = loc;
  return *unused;
}

}  // namespace

bool meet(Thread& thread, char const* what, uint32_t mask, void* arguments, Loc loc, Meeting*& meeting) {
  Domain& domain = *thread.domain;
  domain.count_step(thread, loc);
  mask &= thread.warp->lanes;
  if ((mask >> thread.lane & 1) == 0) {
    domain.fail([&] {
      return format("%s by %s at %s: its mask %#x does not contain the lane itself", what, who(thread).c_str(),
                    at(loc).c_str(), mask);
    });
  }
  meeting = &find_meeting(thread, what, mask, loc);
  meeting->arguments[thread.lane] = arguments;
  meeting->arrived |= 1u << thread.lane;
  if (meeting->arrived == mask) {
    if (domain.count_transactions && mask == thread.warp->lanes) count_transactions(domain, *thread.warp);
    return true;
  }
  domain.block(what, progress, meeting, loc);
  return false;
}

void part(Thread& thread, Meeting& meeting) {
  Domain& domain = *thread.domain;
  uint32_t const others = meeting.mask & ~(1u << thread.lane);
  meeting.arrived = 0;
  for (uint32_t rest = others; rest != 0; rest &= rest - 1) {
    domain.make_ready(thread.warp->first[__builtin_ctz(rest)]);
  }
  domain.yield_sometimes();
}

void require_full_warp(Thread& thread, char const* what, Loc loc) {
  if (thread.warp->lanes == 0xffffffffu) return;
  thread.domain->fail([&] {
    return format("%s by %s at %s: its warp has only %d lanes", what, who(thread).c_str(), at(loc).c_str(),
                  __builtin_popcount(thread.warp->lanes));
  });
}

// ---------------------------------------------------------------------------------------------------------- __syncwarp

void sync_warp(uint32_t mask, Loc loc) {
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  mask &= thread.warp->lanes;
  meet_and_execute(thread, "__syncwarp", mask, nullptr, thread.reported(loc), [&](void* const*) {
    ++domain.counters.warp_syncs;
    if (!domain.detect_races) return;
    domain.clear(domain.scratch_clock);
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      release(thread.warp->first[__builtin_ctz(rest)], domain.scratch_clock);
    }
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      acquire(thread.warp->first[__builtin_ctz(rest)], domain.scratch_clock);
    }
  });
}

// ---------------------------------------------------------------------------------------------------------------- shfl

namespace {

struct ShflArguments {
  uint64_t bits, result;
  ShflKind kind;
  int operand;
};

int source_lane(ShflArguments const& arguments, int lane) {
  int source = lane;
  switch (arguments.kind) {
    case ShflKind::idx:
      return arguments.operand & 31;
    case ShflKind::up:
      source = lane - arguments.operand;
      break;
    case ShflKind::down:
      source = lane + arguments.operand;
      break;
    case ShflKind::bfly:
      source = lane ^ arguments.operand;
      break;
  }
  return source < 0 || source > 31 ? lane : source;
}

}  // namespace

uint64_t shfl_bits(uint32_t mask, uint64_t bits, ShflKind kind, int operand, Loc loc) {
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  loc = thread.reported(loc);
  mask &= thread.warp->lanes;
  ShflArguments mine{bits, bits, kind, operand};
  meet_and_execute(thread, "shfl.sync", mask, &mine, loc, [&](void* const* arguments) {
    ++domain.counters.shuffles;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      int const lane = __builtin_ctz(rest);
      auto& to = *static_cast<ShflArguments*>(arguments[lane]);
      int const source = source_lane(to, lane);
      if ((mask >> source & 1) == 0) {
        domain.fail([&] {
          return format("shfl.sync at %s: %s reads lane %d, which is not in the mask %#x", at(loc).c_str(),
                        who(thread.warp->first[lane]).c_str(), source, mask);
        });
      }
      to.result = static_cast<ShflArguments*>(arguments[source])->bits;
    }
  });
  return mine.result;
}

// ------------------------------------------------------------------------------------------------------------ ldmatrix

namespace {

struct LdmatrixArguments {
  void const* row;
  uint32_t* dst;
};

// Eight rows of 16 bytes are read per wavefront, unless two different ones lie in the same four of the 32 banks.
uint64_t wavefronts(uint32_t const (&offsets)[8]) {
  int rows_at[8] = {};  // by group of four banks
  int most = 1;
  for (int i = 0; i < 8; ++i) {
    bool repeated = false;
    for (int j = 0; j < i; ++j) repeated |= offsets[j] == offsets[i];
    if (!repeated) most = std::max(most, ++rows_at[offsets[i] / 16 % 8]);
  }
  return static_cast<uint64_t>(most);
}

void load_matrix(Thread& thread, void* const* arguments, int matrix, bool transposed, Loc loc) {
  Domain& domain = *thread.domain;
  char const* rows[8];
  uint32_t offsets[8];
  for (int i = 0; i < 8; ++i) {
    int const lane = 8 * matrix + i;
    Thread& owner = thread.warp->first[lane];
    rows[i] = static_cast<char const*>(static_cast<LdmatrixArguments*>(arguments[lane])->row);
    offsets[i] = smem_offset(owner, rows[i], 16, "ldmatrix", loc);
    if (offsets[i] % 16 != 0) {
      domain.fail([&] {
        return format("ldmatrix by %s at %s: the row address smem+0x%x is not a multiple of 16", who(owner).c_str(),
                      at(loc).c_str(), offsets[i]);
      });
    }
    if (domain.detect_races) {
      shared_access(owner, *thread.cta, offsets[i], 16, false, Proxy::thread, "ldmatrix", loc);
    }
  }
  domain.counters.ldmatrix_wavefronts += wavefronts(offsets);
  ++domain.counters.ldmatrix_ideal_wavefronts;
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t value;
    if (!transposed) {
      std::memcpy(&value, rows[lane / 4] + lane % 4 * 4, 4);
    } else {
      uint16_t low, high;
      std::memcpy(&low, rows[lane % 4 * 2] + lane / 4 * 2, 2);
      std::memcpy(&high, rows[lane % 4 * 2 + 1] + lane / 4 * 2, 2);
      value = low | static_cast<uint32_t>(high) << 16;
    }
    static_cast<LdmatrixArguments*>(arguments[lane])->dst[matrix] = value;
  }
}

}  // namespace

void ldmatrix(void const* smem_src, int matrices, bool transposed, uint32_t* dst, Loc loc) {
  static char const* const kNames[2][3] = {{"ldmatrix.x1", "ldmatrix.x2", "ldmatrix.x4"},
                                           {"ldmatrix.x1.trans", "ldmatrix.x2.trans", "ldmatrix.x4.trans"}};
  Thread& thread = *current_thread;
  loc = thread.reported(loc);
  require_full_warp(thread, "ldmatrix", loc);
  LdmatrixArguments mine{smem_src, dst};
  meet_and_execute(thread, kNames[transposed][matrices / 2], 0xffffffffu, &mine, loc, [&](void* const* arguments) {
    ++thread.domain->counters.ldmatrix;
    for (int i = 0; i < matrices; ++i) load_matrix(thread, arguments, i, transposed, loc);
  });
}

// ------------------------------------------------------------------------------------------------------------ stmatrix

namespace {

struct StmatrixArguments {
  void* row;
  uint32_t const* src;
};

void store_matrix(Thread& thread, void* const* arguments, int matrix, bool transposed, Loc loc) {
  Domain& domain = *thread.domain;
  char* rows[8];
  uint32_t offsets[8];
  for (int i = 0; i < 8; ++i) {
    int const lane = 8 * matrix + i;
    Thread& owner = thread.warp->first[lane];
    rows[i] = static_cast<char*>(static_cast<StmatrixArguments*>(arguments[lane])->row);
    offsets[i] = smem_offset(owner, rows[i], 16, "stmatrix", loc);
    if (offsets[i] % 16 != 0) {
      domain.fail([&] {
        return format("stmatrix by %s at %s: the row address smem+0x%x is not a multiple of 16", who(owner).c_str(),
                      at(loc).c_str(), offsets[i]);
      });
    }
    if (domain.detect_races) shared_access(owner, *thread.cta, offsets[i], 16, true, Proxy::thread, "stmatrix", loc);
  }
  domain.counters.stmatrix_wavefronts += wavefronts(offsets);
  ++domain.counters.stmatrix_ideal_wavefronts;
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t const value = static_cast<StmatrixArguments*>(arguments[lane])->src[matrix];
    if (!transposed) {
      std::memcpy(rows[lane / 4] + lane % 4 * 4, &value, 4);
    } else {
      auto const low = static_cast<uint16_t>(value), high = static_cast<uint16_t>(value >> 16);
      std::memcpy(rows[lane % 4 * 2] + lane / 4 * 2, &low, 2);
      std::memcpy(rows[lane % 4 * 2 + 1] + lane / 4 * 2, &high, 2);
    }
  }
}

}  // namespace

void stmatrix(void* smem_dst, int matrices, bool transposed, uint32_t const* src, Loc loc) {
  static char const* const kNames[2][3] = {{"stmatrix.x1", "stmatrix.x2", "stmatrix.x4"},
                                           {"stmatrix.x1.trans", "stmatrix.x2.trans", "stmatrix.x4.trans"}};
  Thread& thread = *current_thread;
  loc = thread.reported(loc);
  require_full_warp(thread, "stmatrix", loc);
  StmatrixArguments mine{smem_dst, src};
  meet_and_execute(thread, kNames[transposed][matrices / 2], 0xffffffffu, &mine, loc, [&](void* const* arguments) {
    ++thread.domain->counters.stmatrix;
    for (int i = 0; i < matrices; ++i) store_matrix(thread, arguments, i, transposed, loc);
  });
}

}  // namespace moye::emu
