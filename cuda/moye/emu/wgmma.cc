// wgmma: asynchronous multiplication by the four warps of a warpgroup, each of which has its own 16 rows of A and D.
//
// An operation is issued by a warp, takes effect at a moment that Mode chooses and is known to be done after the warp's
// wait for its group: strict PTX, which promises nothing about the other three warps. Its reads of shared memory are
// accesses through the async proxy by an agent of the warp. Accumulators leave the registers with the first operation
// and come back with the wait that leaves none of theirs in flight; in between the registers hold 0xff bytes.
//
// Numerics as in mma.cc: exact products, added in order of k in f32 (wrapping 32 bits for integers); f16 accumulators
// are rounded after each instruction.
#include <algorithm>
#include <array>
#include <deque>
#include <type_traits>
#include <vector>

#include "moye/arch/types.h"
#include "moye/emu/meeting.h"
#include "moye/emu/vector.h"
#include "moye/emu/wgmma_operand.h"

namespace moye::emu {
namespace {

constexpr int kRows = 16;  // of a warp

/// Accumulators away from their registers.
struct Accumulators {
  WgmmaKind kind;
  int in_flight = 0;
  uint32_t* registers[32] = {};  // of each lane
  std::vector<uint32_t> bits;    // [kRows][n], f32 or integers

  int count() const { return kind.d == MmaType::f16 ? kind.n / 4 : kind.n / 2; }  // registers of a lane
};

struct Operation {
  WgmmaKind kind;
  uint64_t a, b;  // descriptors
  bool a_in_registers;
  uint32_t const* a_registers[32];
  uint32_t a_values[32][4];
  bool scale_d;
  Accumulators* accumulators;
  uint32_t group;
  bool done;
  Loc loc;
};

/// What all four warps of a warpgroup must agree in.
struct Signature {
  uint64_t a, b;
  WgmmaKind kind;
  bool scale_d, a_in_registers;
  Loc loc;

  bool operator==(Signature const& o) const {
    return a == o.a && b == o.b && scale_d == o.scale_d && a_in_registers == o.a_in_registers &&
           std::memcmp(&kind, &o.kind, sizeof(kind)) == 0;
  }
};

struct WgmmaState final : WarpState {
  int agent = -1;
  bool fenced = false;
  uint32_t groups = 0;                                      // committed
  std::deque<Operation> operations;                         // not known to be done
  std::vector<std::unique_ptr<Accumulators>> accumulators;  // those in flight, and unused ones
  std::vector<uint32_t> clock;                              // what all lanes know
  std::vector<Signature> issued;

  void on_exit(Thread& thread) override;
};

Warp* warpgroup_of(Warp const& warp) { return &warp.cta->warps[warp.id & ~3]; }

// The state of this warp; made for the four of a warpgroup together.
WgmmaState& state_of(Warp& warp) {
  if (warp.wgmma == nullptr) {
    Warp* const first = warpgroup_of(warp);
    for (int i = 0; i < 4; ++i) first[i].wgmma = std::make_unique<WgmmaState>();
  }
  return static_cast<WgmmaState&>(*warp.wgmma);
}

void require_warpgroup(Thread& thread, char const* what, Loc loc) {
  Warp const& warp = *thread.warp;
  Cta const& cta = *warp.cta;
  int const last = warp.id | 3;
  if (last < cta.warp_count && cta.warps[last].lanes == 0xffffffffu) return;
  thread.domain->fail([&] {
    return format("%s by %s at %s: the CTA's %d threads end inside its warpgroup", what, warp_name(thread).c_str(),
                  at(loc).c_str(), thread.domain->launch->threads_per_cta);
  });
}

// ------------------------------------------------------------------------------------------------------------
// execution

template <class Sum, class T>
Sum convert(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<Sum>(value);
  } else {
    return static_cast<float>(value);
  }
}

/// Bytes of `rows` rows of 32 bytes, K-major whatever the matrix is.
void gather(Thread& thread, Matrix const& matrix, int first_row, int rows, char operand, Loc loc, unsigned char* out) {
  unsigned char const* const smem = thread.cta->smem;
  for_each_chunk(thread, matrix, first_row, rows, operand, loc, [&](int i, int chunk, uint32_t offset) {
    if (!matrix.mn_major) {
      std::memcpy(out + i * kKBytes + chunk * 16, smem + offset, 16);
    } else {
      for (int j = 0; j < 8; ++j) std::memcpy(out + (8 * i + j) * kKBytes + 2 * chunk, smem + offset + 2 * j, 2);
    }
  });
}

/// d[j] += a[k] * b[k][j] for all k, in their order.
template <class Sum>
__attribute__((always_inline)) inline void add_all(Sum* __restrict d, Sum const* a, std::array<Sum, 256> const* b,
                                                   int ks, int n) {
  constexpr int kAtOnce = 4;  // d is read and written once for so many; each type has a multiple of them
  for (int k = 0; k < ks; k += kAtOnce) {
    Sum const *const b0 = b[k].data(), *const b1 = b[k + 1].data();
    Sum const *const b2 = b[k + 2].data(), *const b3 = b[k + 3].data();
    for (int j = 0; j < n; ++j) {
      d[j] = d[j] + a[k] * b0[j] + a[k + 1] * b1[j] + a[k + 2] * b2[j] + a[k + 3] * b3[j];
    }
  }
}
MOYE_EMU_WIDE_VECTORS void add_products(float* d, float const* a, std::array<float, 256> const* b, int ks, int n) {
  add_all(d, a, b, ks, n);
}
MOYE_EMU_WIDE_VECTORS void add_products(uint32_t* d, uint32_t const* a, std::array<uint32_t, 256> const* b, int ks,
                                        int n) {
  add_all(d, a, b, ks, n);
}

template <class Sum, class A, class B>
void multiply(Operation const& operation, unsigned char const* a_bytes, unsigned char const* b_bytes) {
  constexpr int kK = kKBytes / static_cast<int>(sizeof(A));
  int const n = operation.kind.n;
  Sum a[kRows][kK];
  for (int i = 0; i < kRows; ++i) {
    A row[kK];
    std::memcpy(row, a_bytes + i * kKBytes, kKBytes);
    for (int k = 0; k < kK; ++k) a[i][k] = operation.kind.negate_a ? -convert<Sum>(row[k]) : convert<Sum>(row[k]);
  }
  // On the heap: a module that is loaded at run time has little room for thread-local variables.
  static thread_local std::vector<std::array<Sum, 256>> b(kK);
  for (int j = 0; j < n; ++j) {
    B row[kK];
    std::memcpy(row, b_bytes + j * kKBytes, kKBytes);
    for (int k = 0; k < kK; ++k) b[k][j] = operation.kind.negate_b ? -convert<Sum>(row[k]) : convert<Sum>(row[k]);
  }
  std::vector<uint32_t>& bits = operation.accumulators->bits;
  for (int i = 0; i < kRows; ++i) {
    Sum d[256];
    if (operation.scale_d) {
      std::memcpy(d, &bits[i * n], n * sizeof(Sum));
    } else {
      std::fill(d, d + n, Sum{0});
    }
    add_products(d, a[i], b.data(), kK, n);
    if constexpr (std::is_same_v<Sum, float>) {
      if (operation.kind.d == MmaType::f16) {
        for (int j = 0; j < n; ++j) d[j] = static_cast<float>(half_t(d[j]));
      }
    }
    std::memcpy(&bits[i * n], d, n * sizeof(Sum));
  }
}

template <class A>
void multiply_float8(Operation const& operation, unsigned char const* a, unsigned char const* b) {
  if (operation.kind.b == MmaType::e4m3) return multiply<float, A, float_e4m3_t>(operation, a, b);
  return multiply<float, A, float_e5m2_t>(operation, a, b);
}

template <class A>
void multiply_integers(Operation const& operation, unsigned char const* a, unsigned char const* b) {
  // Unsigned sums wrap around, and a signed product is the same modulo 2^32.
  if (operation.kind.b == MmaType::s8) return multiply<uint32_t, A, int8_t>(operation, a, b);
  return multiply<uint32_t, A, uint8_t>(operation, a, b);
}

void multiply_kind(Operation const& operation, unsigned char const* a, unsigned char const* b) {
  switch (operation.kind.a) {
    case MmaType::bf16:
      return multiply<float, bfloat16_t, bfloat16_t>(operation, a, b);
    case MmaType::f16:
      return multiply<float, half_t, half_t>(operation, a, b);
    case MmaType::tf32:
      return multiply<float, tfloat32_t, tfloat32_t>(operation, a, b);
    case MmaType::e4m3:
      return multiply_float8<float_e4m3_t>(operation, a, b);
    case MmaType::e5m2:
      return multiply_float8<float_e5m2_t>(operation, a, b);
    case MmaType::s8:
      return multiply_integers<int8_t>(operation, a, b);
    case MmaType::u8:
      return multiply_integers<uint8_t>(operation, a, b);
    default:
      break;  // not types of A
  }
}

// The fragment of A in registers, as bytes of rows: register j of a lane is 4 bytes of row g + 8 * (j % 2), from byte
// 4 * q + 16 * (j / 2) on.
void gather_registers(Operation const& operation, unsigned char* out) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int j = 0; j < 4; ++j) {
      std::memcpy(out + (lane / 4 + 8 * (j % 2)) * kKBytes + 4 * (lane % 4) + 16 * (j / 2),
                  &operation.a_values[lane][j], 4);
    }
  }
}

void check_registers_of_a(Thread& thread, Operation const& operation) {
  if (!operation.a_in_registers) return;
  for (int lane = 0; lane < 32; ++lane) {
    if (std::memcmp(operation.a_registers[lane], operation.a_values[lane], 16) == 0) continue;
    thread.domain->fail([&] {
      return format("wgmma by %s at %s: its registers of A were written before warpgroup_wait_group",
                    who(thread.warp->first[lane]).c_str(), at(operation.loc).c_str());
    });
  }
}

void execute(Thread& thread, Operation& operation) {
  alignas(16) unsigned char a[kRows * kKBytes];
  static thread_local std::vector<unsigned char> b(256 * kKBytes);  // on the heap, as above
  if (operation.a_in_registers) {
    gather_registers(operation, a);
  } else {
    Matrix const matrix = decode(operation.a, operation.kind.mn_major_a);
    gather(thread, matrix, thread.warp->id % 4 * kRows, kRows, 'A', operation.loc, a);
  }
  gather(thread, decode(operation.b, operation.kind.mn_major_b), 0, operation.kind.n, 'B', operation.loc, b.data());
  multiply_kind(operation, a, b.data());
  operation.done = true;
}

/// Executes operations in order, those with a group below `groups`.
void execute_groups(Thread& thread, WgmmaState& state, uint32_t groups) {
  for (Operation& operation : state.operations) {
    if (operation.group >= groups) break;
    if (!operation.done) execute(thread, operation);
  }
}

// Mode::random: some of the first operations in flight, now.
void execute_some(Thread& thread, WgmmaState& state) {
  Domain& domain = *thread.domain;
  if (domain.launch->options.mode != Mode::random) return;
  for (Operation& operation : state.operations) {
    if (operation.done) continue;
    if (domain.random() % 2 == 0) break;
    execute(thread, operation);
  }
}

// ---------------------------------------------------------------------------------------------------------
// accumulators

/// copy(register word, element in Accumulators::bits, half: -1, or 0 or 1 of an f16 pair) for each element of a lane:
/// values go over two neighbours in n, rows g and g + 8, then blocks of 8 columns.
template <class Copy>
void for_each_element(Accumulators& accumulators, int lane, Copy const& copy) {
  int const n = accumulators.kind.n;
  for (int v = 0; v < n / 2; ++v) {
    int const row = lane / 4 + 8 * (v / 2 % 2), column = v / 4 * 8 + lane % 4 * 2 + v % 2;
    copy(v, accumulators.bits[row * n + column]);
  }
}

void take_registers(Accumulators& accumulators, int lane) {
  uint32_t const* const registers = accumulators.registers[lane];
  bool const halves = accumulators.kind.d == MmaType::f16;
  for_each_element(accumulators, lane, [&](int v, uint32_t& bits) {
    if (halves) {
      uint32_t const pair = registers[v / 2];
      auto const half = half_t::bitcast(static_cast<uint16_t>(pair >> 16 * (v % 2)));
      bits = detail::bit_cast<uint32_t>(static_cast<float>(half));
    } else {
      bits = registers[v];
    }
  });
}

void give_registers(Accumulators& accumulators, int lane) {
  uint32_t* const registers = accumulators.registers[lane];
  bool const halves = accumulators.kind.d == MmaType::f16;
  for_each_element(accumulators, lane, [&](int v, uint32_t& bits) {
    if (halves) {
      uint32_t const half = half_t(detail::bit_cast<float>(bits)).storage;
      registers[v / 2] = v % 2 == 0 ? half : registers[v / 2] | half << 16;
    } else {
      registers[v] = bits;
    }
  });
}

void poison(Thread& thread, Accumulators& accumulators, int lane) {
  if (!thread.domain->launch->options.poison) return;
  std::memset(accumulators.registers[lane], 0xff, 4 * accumulators.count());
}

void check_poison(Thread& thread, Accumulators const& accumulators, Loc loc) {
  if (!thread.domain->launch->options.poison) return;
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t const* const registers = accumulators.registers[lane];
    uint32_t bits = 0xffffffffu;
    for (int i = 0; i < accumulators.count(); ++i) bits &= registers[i];
    if (bits == 0xffffffffu) continue;
    thread.domain->fail([&] {
      return format("accumulators of %s were written while a wgmma was in flight; found at %s",
                    who(thread.warp->first[lane]).c_str(), at(loc).c_str());
    });
  }
}

// --------------------------------------------------------------------------------------------------------------- issue

struct WgmmaArguments {
  WgmmaKind kind;
  uint32_t* d;
  uint64_t a, b;
  uint32_t const* a_registers;  // or null
  bool scale_d;
};

/// The accumulators in flight in these registers, or null.
Accumulators* find_accumulators(Thread& thread, WgmmaState& state, void* const* arguments, Loc loc) {
  auto argument = [&](int lane) -> WgmmaArguments const& { return *static_cast<WgmmaArguments*>(arguments[lane]); };
  Accumulators* found = nullptr;
  for (auto const& held : state.accumulators) {
    if (held->in_flight == 0) continue;
    int lanes = 0;
    for (int lane = 0; lane < 32; ++lane) {
      WgmmaArguments const& mine = argument(lane);
      auto const begin = reinterpret_cast<uintptr_t>(mine.d),
                 other = reinterpret_cast<uintptr_t>(held->registers[lane]);
      size_t const bytes = mine.kind.n * (mine.kind.d == MmaType::f16 ? 1 : 2);
      bool const apart = begin + bytes <= other || other + 4 * static_cast<size_t>(held->count()) <= begin;
      bool const same = mine.d == held->registers[lane] && mine.kind.n == held->kind.n && mine.kind.d == held->kind.d;
      if (!apart && !same) {
        thread.domain->fail([&] {
          return format("wgmma by %s at %s: some of its accumulators are those of a wgmma in flight with another shape",
                        who(thread.warp->first[lane]).c_str(), at(loc).c_str());
        });
      }
      lanes += same;
    }
    if (lanes == 32) found = held.get();
    if (lanes != 0 && lanes != 32) {
      thread.domain->fail([&] {
        return format("wgmma by %s at %s: lanes of its warp name accumulators of different wgmmas in flight",
                      warp_name(thread).c_str(), at(loc).c_str());
      });
    }
  }
  return found;
}

Accumulators& start_accumulators(Thread& thread, WgmmaState& state, WgmmaKind const& kind, void* const* arguments,
                                 Loc loc) {
  if (!state.fenced) {
    thread.domain->fail([&] {
      return format(
          "wgmma by %s at %s: no warpgroup_arrive (wgmma.fence) orders it after the accesses to its registers",
          warp_name(thread).c_str(), at(loc).c_str());
    });
  }
  Accumulators* unused = nullptr;
  for (auto const& held : state.accumulators) {
    if (held->in_flight == 0) unused = held.get();
  }
  if (unused == nullptr) unused = state.accumulators.emplace_back(std::make_unique<Accumulators>()).get();
  unused->kind = kind;
  unused->bits.resize(kRows * kind.n);
  for (int lane = 0; lane < 32; ++lane) {
    unused->registers[lane] = static_cast<WgmmaArguments*>(arguments[lane])->d;
    take_registers(*unused, lane);
    poison(thread, *unused, lane);
  }
  return *unused;
}

void check_lanes(Thread& thread, void* const* arguments, Loc loc) {
  auto const& first = *static_cast<WgmmaArguments*>(arguments[0]);
  for (int lane = 1; lane < 32; ++lane) {
    auto const& other = *static_cast<WgmmaArguments*>(arguments[lane]);
    if (other.a == first.a && other.b == first.b && other.scale_d == first.scale_d) continue;
    thread.domain->fail([&] {
      return format("wgmma by %s at %s: other descriptors or another scale_d than lane 0 of its warp gives",
                    who(thread.warp->first[lane]).c_str(), at(loc).c_str());
    });
  }
}

void check_warpgroup(Thread& thread, WgmmaState& state, Signature const& signature) {
  Warp* const first = warpgroup_of(*thread.warp);
  size_t const place = state.issued.size();
  for (int i = 0; i < 4; ++i) {
    auto const& other = static_cast<WgmmaState const&>(*first[i].wgmma);
    if (other.issued.size() > place && !(other.issued[place] == signature)) {
      Signature const& theirs = other.issued[place];
      thread.domain->fail([&] {
        return format("wgmma by %s at %s: warp %d of its warpgroup executed another one in its place, at %s",
                      warp_name(thread).c_str(), at(signature.loc).c_str(), first[i].id, at(theirs.loc).c_str());
      });
    }
    if (first[i].first->finished && other.issued.size() <= place) {
      thread.domain->fail([&] {
        return format("wgmma by %s at %s: warp %d of its warpgroup has ended without it", warp_name(thread).c_str(),
                      at(signature.loc).c_str(), first[i].id);
      });
    }
  }
  state.issued.push_back(signature);
}

MOYE_EMU_WIDE_VECTORS void take_smaller(int32_t* a, int32_t const* b, int count) {
  for (int i = 0; i < count; ++i) a[i] = a[i] < b[i] ? a[i] : b[i];
}

// What all lanes know, and what the async proxy sees of what they all know.
Clock common_clock(Thread& thread, WgmmaState& state) {
  Domain const& domain = *thread.domain;
  state.clock.assign(2 * domain.agents, 0);
  for (int part = 0; part < (domain.proxy_fences ? 2 : 1); ++part) {
    Thread const* const lanes = thread.warp->first;
    auto* const to = reinterpret_cast<int32_t*>(state.clock.data() + part * domain.agents);
    std::memcpy(to, lanes[0].clock + part * domain.agents, domain.used_agents * sizeof(uint32_t));
    for (int lane = 1; lane < 32; ++lane) {
      take_smaller(to, reinterpret_cast<int32_t const*>(lanes[lane].clock + part * domain.agents), domain.used_agents);
    }
  }
  return state.clock.data();
}

void record_reads(Thread& thread, WgmmaState& state, Operation const& operation) {
  Domain& domain = *thread.domain;
  if (state.agent < 0) state.agent = new_async_agent(thread, /*warp=*/true);
  AsyncOperation const read{common_clock(thread, state), nullptr, state.agent,
                            operation.group + 1,         "wgmma", operation.loc};
  uint32_t offsets[2 * (kRows + 256)];
  int count = 0;
  auto keep = [&](int, int, uint32_t offset) { offsets[count++] = offset; };
  if (!operation.a_in_registers) {
    Matrix const matrix = decode(operation.a, operation.kind.mn_major_a);
    for_each_chunk(thread, matrix, thread.warp->id % 4 * kRows, kRows, 'A', operation.loc, keep);
  }
  Matrix const matrix = decode(operation.b, operation.kind.mn_major_b);
  for_each_chunk(thread, matrix, 0, operation.kind.n, 'B', operation.loc, keep);
  async_reads(domain, read, *thread.cta, offsets, count);
}

void issue(Thread& thread, void* const* arguments, Loc loc) {
  Domain& domain = *thread.domain;
  auto const& first = *static_cast<WgmmaArguments*>(arguments[0]);
  WgmmaState& state = state_of(*thread.warp);
  ++domain.counters.wgmma;
  check_lanes(thread, arguments, loc);
  bool const a_in_registers = first.a_registers != nullptr;
  if (!a_in_registers) check_descriptor(thread, 'A', first.a, first.kind.mn_major_a, 64, loc);
  check_descriptor(thread, 'B', first.b, first.kind.mn_major_b, first.kind.n, loc);
  check_warpgroup(thread, state, {first.a, first.b, first.kind, first.scale_d, a_in_registers, loc});

  Accumulators* accumulators = find_accumulators(thread, state, arguments, loc);
  if (accumulators == nullptr) {
    accumulators = &start_accumulators(thread, state, first.kind, arguments, loc);
  } else {
    check_poison(thread, *accumulators, loc);
  }
  ++accumulators->in_flight;
  Operation& operation = state.operations.emplace_back();
  operation = {first.kind,    first.a,      first.b,      a_in_registers, {}, {},
               first.scale_d, accumulators, state.groups, false,          loc};
  if (a_in_registers) {
    for (int lane = 0; lane < 32; ++lane) {
      operation.a_registers[lane] = static_cast<WgmmaArguments*>(arguments[lane])->a_registers;
      std::memcpy(operation.a_values[lane], operation.a_registers[lane], 16);
    }
  }
  if (domain.detect_races) record_reads(thread, state, operation);
  if (domain.launch->options.mode == Mode::eager) execute(thread, operation);
  execute_some(thread, state);
}

void issue_by_warp(WgmmaArguments& mine, Loc loc) {
  Thread& thread = *current_thread;
  loc = thread.reported(loc);
  require_warpgroup(thread, "wgmma", loc);
  meet_and_execute(thread, "wgmma", 0xffffffffu, &mine, loc,
                   [&](void* const* arguments) { issue(thread, arguments, loc); });
}

/// wgmma instructions without operands.
template <class Execute>
void for_warp(char const* what, Loc loc, Execute const& execute) {
  Thread& thread = *current_thread;
  loc = thread.reported(loc);
  require_warpgroup(thread, what, loc);
  meet_and_execute(thread, what, 0xffffffffu, nullptr, loc,
                   [&](void* const*) { execute(thread, state_of(*thread.warp), loc); });
}

void WgmmaState::on_exit(Thread& thread) {
  Warp const& warp = *thread.warp;
  if (!operations.empty()) {
    thread.domain->fail([&] {
      return format("%s ends while its wgmma at %s is in flight: no warpgroup_wait_group waited for it",
                    warp_name(thread).c_str(), at(operations.front().loc).c_str());
    });
  }
  Warp const* const first = warpgroup_of(warp);
  for (int i = 0; i < 4; ++i) {
    auto const& other = static_cast<WgmmaState const&>(*first[i].wgmma);
    if (other.issued.size() <= issued.size()) continue;
    thread.domain->fail([&] {
      return format("%s ends without the wgmma at %s, which warp %d of its warpgroup has executed",
                    warp_name(thread).c_str(), at(other.issued[issued.size()].loc).c_str(), first[i].id);
    });
  }
}

}  // namespace

void wgmma(WgmmaKind const& kind, void* d, uint64_t a, uint64_t b, bool scale_d, Loc loc) {
  WgmmaArguments mine{kind, static_cast<uint32_t*>(d), a, b, nullptr, scale_d};
  issue_by_warp(mine, loc);
}

void wgmma_rs(WgmmaKind const& kind, void* d, uint32_t const* a, uint64_t b, bool scale_d, Loc loc) {
  WgmmaArguments mine{kind, static_cast<uint32_t*>(d), 0, b, a, scale_d};
  issue_by_warp(mine, loc);
}

void wgmma_fence(Loc loc) {
  for_warp("wgmma.fence", loc, [](Thread& thread, WgmmaState& state, Loc) {
    state.fenced = true;
    execute_some(thread, state);
  });
}

void wgmma_commit_group(Loc loc) {
  for_warp("wgmma.commit_group", loc, [](Thread& thread, WgmmaState& state, Loc) {
    ++state.groups;
    execute_some(thread, state);
  });
}

void wgmma_wait_group(int groups_in_flight, Loc loc) {
  for_warp("wgmma.wait_group", loc, [groups_in_flight](Thread& thread, WgmmaState& state, Loc at) {
    auto const allowed = static_cast<uint32_t>(groups_in_flight);
    if (state.groups > allowed) {
      uint32_t const done = state.groups - allowed;  // groups 0 to done - 1
      execute_groups(thread, state, done);
      while (!state.operations.empty() && state.operations.front().group < done) {
        Accumulators& accumulators = *state.operations.front().accumulators;
        check_registers_of_a(thread, state.operations.front());
        state.operations.pop_front();
        if (--accumulators.in_flight != 0) continue;
        check_poison(thread, accumulators, at);
        for (int lane = 0; lane < 32; ++lane) give_registers(accumulators, lane);
        state.fenced = false;
      }
      if (state.agent >= 0) {
        for (int lane = 0; lane < 32; ++lane) async_done(thread.warp->first[lane], state.agent, done);
      }
    }
    execute_some(thread, state);
  });
}

}  // namespace moye::emu
