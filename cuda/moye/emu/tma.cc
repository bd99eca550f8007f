// TMA: boxes of a tensor between global and shared memory.
//
// A load takes effect at its issue (Mode::eager), when every thread of the cluster waits for something (lazy: nothing
// but the mbarrier tells a thread that its bytes have come), or somewhere between (random). A store reads shared memory
// at the wait that guarantees it, and writes global memory likewise.
//
// Bounds of global memory, and races on it, are checked at the issue.
#include <algorithm>

#include "moye/arch/convert.h"
#include "moye/arch/tensor_map.h"
#include "moye/arch/types.h"
#include "moye/emu/machine.h"

namespace moye::emu {
namespace {

constexpr char const* kLoad = "TMA load";
constexpr uint32_t kPiece = 16;        // bytes that swizzles move together
constexpr uint32_t kSectorBytes = 32;  // of global memory

char const* name(TmaStoreKind kind) { return kind == TmaStoreKind::store ? "TMA store" : "TMA reduction"; }

// The shared address with its 16-byte pieces exchanged. Offsets in a CTA's memory do for addresses: the window begins
// at a multiple of 1024.
uint32_t swizzled(uint32_t offset, uint8_t swizzle) {
  uint32_t const bits = (1u << swizzle) - 1;  // 128 bytes: 3 bits, 7 to 9 onto 4 to 6
  return offset ^ (offset >> 7 & bits) << 4;
}

// f(offset in shared memory, bytes) of the places a box covers, in few calls where it can.
template <class F>
void for_each_place(EncodedTensorMap const& map, uint32_t offset, F const& f) {
  uint32_t const bytes = map.box_bytes();
  auto const repeat = static_cast<uint32_t>(repeat_bytes(static_cast<TensorMapSwizzle>(map.swizzle)));
  if (map.swizzle == 0 || (offset % repeat == 0 && bytes % repeat == 0)) return f(offset, bytes);
  for (uint32_t done = 0; done < bytes; done += kPiece) f(swizzled(offset + done, map.swizzle), kPiece);
}

/// A row of a box: what of it lies in the tensor.
struct Row {
  uint32_t offset;         // in the dense box, bytes
  unsigned char* inside;   // in global memory; null if nothing of it is
  uint32_t before, bytes;  // bytes of the row before that, and in it
};

template <class F>
void for_each_row(EncodedTensorMap const& map, int32_t const* coordinates, F const& f) {
  uint32_t const row_bytes = uint32_t{map.box[0]} * map.element_bytes;
  uint32_t const rows = map.box_bytes() / row_bytes;
  int64_t const first = coordinates[0];
  int64_t const begin = std::max<int64_t>(first, 0);
  int64_t const end = std::min<int64_t>(first + map.box[0], static_cast<int64_t>(map.sizes[0]));
  for (uint32_t r = 0; r < rows; ++r) {
    bool inside = begin < end;
    uint64_t place = 0;
    uint32_t rest = r;
    for (int i = 1; i < map.rank; ++i) {
      int64_t const coordinate = int64_t{coordinates[i]} + rest % map.box[i];
      rest /= map.box[i];
      inside = inside && coordinate >= 0 && static_cast<uint64_t>(coordinate) < map.sizes[i];
      place += static_cast<uint64_t>(coordinate) * map.strides[i - 1];
    }
    Row row{r * row_bytes, nullptr, 0, 0};
    if (inside) {
      row.inside =
          reinterpret_cast<unsigned char*>(map.base + place + static_cast<uint64_t>(begin) * map.element_bytes);
      row.before = static_cast<uint32_t>(begin - first) * map.element_bytes;
      row.bytes = static_cast<uint32_t>(end - begin) * map.element_bytes;
    }
    f(row);
  }
}

/// What a box moves of global memory.
struct Traffic {
  uint64_t bytes = 0, sectors = 0;

  void add(Row const& row) {
    auto const begin = reinterpret_cast<uintptr_t>(row.inside);
    bytes += row.bytes;
    sectors += (begin + row.bytes - 1) / kSectorBytes - begin / kSectorBytes + 1;
  }
  uint64_t ideal_sectors() const { return (bytes + kSectorBytes - 1) / kSectorBytes; }
};

EncodedTensorMap checked_map(Thread& thread, void const* tensor_map, int rank, char const* what, Loc loc) {
  auto const fail = [&](std::string const& text) {
    thread.domain->fail([&] { return format("%s by %s at %s: ", what, who(thread).c_str(), at(loc).c_str()) + text; });
  };
  if (reinterpret_cast<uintptr_t>(tensor_map) % 64 != 0) fail("the tensor map's address is not a multiple of 64");
  EncodedTensorMap map;
  std::memcpy(&map, tensor_map, sizeof(map));
  if (map.magic != EncodedTensorMap::kMagic) fail("the tensor map was not made by make_tensor_map");
  if (map.rank != rank) fail(format("the tensor map has rank %d, the instruction %d", map.rank, rank));
  return map;
}

// What sm_90 answers with "illegal instruction", as tests/gpu/conformance_tma.cu found on an H200.
void check_coordinates(Thread& thread, EncodedTensorMap const& map, int32_t const* coordinates, bool store,
                       char const* what, Loc loc) {
  if (coordinates[0] * map.element_bytes % 16 != 0) {
    thread.domain->fail([&] {
      return format("%s by %s at %s: coordinate %d of mode 0 is not a multiple of 16 bytes", what, who(thread).c_str(),
                    at(loc).c_str(), coordinates[0]);
    });
  }
  if (store && map.sizes[0] * map.element_bytes % 16 != 0 &&
      static_cast<uint64_t>(coordinates[0] + map.box[0]) > map.sizes[0]) {
    thread.domain->fail([&] {
      return format("%s by %s at %s: the tensor's rows end within 16 bytes, which a store writes whole", what,
                    who(thread).c_str(), at(loc).c_str());
    });
  }
  for (int mode = 0; store && mode < map.rank; ++mode) {
    if (coordinates[mode] >= 0) continue;
    thread.domain->fail([&] {
      return format("%s by %s at %s: coordinate %d of mode %d is negative, which only loads may have", what,
                    who(thread).c_str(), at(loc).c_str(), coordinates[mode], mode);
    });
  }
}

// The offset of a box in the thread's shared memory.
uint32_t checked_box(Thread& thread, EncodedTensorMap const& map, void const* smem, char const* what, Loc loc) {
  uint32_t const offset = smem_offset(thread, smem, map.box_bytes(), what, loc);
  if (offset % 128 != 0) {
    thread.domain->fail([&] {
      return format("%s by %s at %s: the address smem+0x%x is not a multiple of 128", what, who(thread).c_str(),
                    at(loc).c_str(), offset);
    });
  }
  for_each_place(map, offset, [&](uint32_t place, uint32_t bytes) {
    smem_offset(thread, thread.cta->smem + place, bytes, what, loc);
  });
  return offset;
}

// ----------------------------------------------------------------------------------------------------------------
// loads

void fill(EncodedTensorMap const& map, unsigned char* row, uint32_t bytes) {
  bool const nan = map.fill == static_cast<uint8_t>(TensorMapFill::nan);
  std::memset(row, nan ? 0xff : 0, bytes);
}

void round_floats(unsigned char* row, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += 4) {
    float value;
    std::memcpy(&value, row + i, 4);
    uint32_t const word = round_to_tf32(value);
    std::memcpy(row + i, &word, 4);
  }
}

void take_effect(TmaLoad const& load) {
  Cta& cta = *load.mbarrier->cta;
  Domain& domain = *cta.domain;
  if (cta.live == 0) {
    domain.fail([&] {
      return format("the TMA load by %s at %s comes to %s, which has exited", who(*load.thread).c_str(),
                    at(load.loc).c_str(), block_name(cta.index).c_str());
    });
  }
  uint32_t const row_bytes = uint32_t{load.map.box[0]} * load.map.element_bytes;
  bool const is_rounded = load.map.type == static_cast<uint8_t>(TensorMapType::tf32);
  unsigned char data[256 * 8];
  for_each_row(load.map, load.coordinates, [&](Row const& row) {
    fill(load.map, data, row_bytes);
    if (row.inside != nullptr) std::memcpy(data + row.before, row.inside, row.bytes);
    if (is_rounded) round_floats(data, row_bytes);
    for (uint32_t done = 0; done < row_bytes; done += kPiece) {
      std::memcpy(cta.smem + swizzled(load.offset + row.offset + done, load.map.swizzle), data + done, kPiece);
    }
  });
  complete_tx(*load.mbarrier, load.map.box_bytes(), load.sequence);
}

void complete(Domain& domain, size_t i) {
  TmaLoad const load = domain.tma_loads[i];
  domain.tma_loads.erase(domain.tma_loads.begin() + static_cast<ptrdiff_t>(i));
  take_effect(load);
}

void issue_load(Thread& thread, EncodedTensorMap const& map, int32_t const* coordinates, uint32_t offset, Cta& cta,
                uint32_t mbarrier_offset, bool multicast, Loc loc) {
  Domain& domain = *thread.domain;
  require_live(thread, cta, kLoad, loc);
  Mbarrier& mbarrier = find_mbarrier(thread, cta, mbarrier_offset, /*remote=*/true, kLoad, loc);
  uint32_t const sequence = ++mbarrier.loads;
  mbarrier.load_loc = loc;
  if (domain.detect_races) {
    if (mbarrier.agent < 0) mbarrier.agent = new_async_agent(thread, /*warp=*/false);
    domain.async_agents[mbarrier.agent - domain.threads.size()].thread = &thread;
    char const* const what = multicast ? "TMA multicast load" : kLoad;
    AsyncOperation const write{thread.clock, thread.floors, mbarrier.agent, sequence, what, loc};
    for_each_place(map, offset, [&](uint32_t place, uint32_t bytes) {
      async_access(domain, write, cta, place, bytes, /*write=*/true);
    });
  }
  mbarrier.in_flight.push_back(sequence);
  trace(mbarrier, &thread, kLoad, loc);
  domain.counters.tma_smem_bytes += map.box_bytes();
  TmaLoad load{map, {}, offset, &mbarrier, sequence, &thread, loc};
  std::copy_n(coordinates, map.rank, load.coordinates);
  Options const& options = domain.launch->options;
  if (options.mode == Mode::eager) return take_effect(load);
  if (options.poison) {
    for_each_place(map, offset, [&](uint32_t place, uint32_t bytes) { std::memset(cta.smem + place, 0xff, bytes); });
  }
  domain.tma_loads.push_back(load);
}

void load(void const* tensor_map, uint64_t* bar, void* smem_dst, int rank, int32_t const* coordinates, uint32_t mask,
          bool multicast, Loc loc) {
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  loc = thread.reported(loc);
  domain.count_step(thread, loc);
  EncodedTensorMap const map = checked_map(thread, tensor_map, rank, kLoad, loc);
  check_coordinates(thread, map, coordinates, /*store=*/false, kLoad, loc);
  uint32_t const offset = checked_box(thread, map, smem_dst, kLoad, loc);
  uint32_t const mbarrier_offset = smem_offset(thread, bar, 8, kLoad, loc);
  if (mask == 0 || mask >> domain.ctas.size() != 0) {
    domain.fail([&] {
      return format("%s by %s at %s: the mask %#x does not name CTAs of a cluster of %zu", kLoad, who(thread).c_str(),
                    at(loc).c_str(), mask, domain.ctas.size());
    });
  }
  Traffic traffic;
  for_each_row(map, coordinates, [&](Row const& row) {
    if (row.inside == nullptr) return;
    global_access(thread, row.inside, row.bytes, false, "TMA load (read)", loc);
    traffic.add(row);
  });
  if (traffic.bytes == 0) {  // the hardware then touches the map's first element
    char const* const what = "TMA load of nothing but zeros (read of the map's first element)";
    global_access(thread, reinterpret_cast<void const*>(map.base), map.element_bytes, false, what, loc);
  }
  ++domain.counters.tma_loads;
  domain.counters.tma_load_bytes += traffic.bytes;
  domain.counters.tma_load_sectors += traffic.sectors;
  domain.counters.tma_load_ideal_sectors += traffic.ideal_sectors();
  for (Cta& cta : domain.ctas) {
    if ((mask >> cta.rank & 1) == 0) continue;
    issue_load(thread, map, coordinates, offset, cta, mbarrier_offset, multicast, loc);
  }
  complete_some_tma_loads(domain);
  domain.yield_sometimes();
}

}  // namespace

void tma_load(void const* tensor_map, uint64_t* bar, void* smem_dst, int rank, int32_t const* coordinates, Loc loc) {
  load(tensor_map, bar, smem_dst, rank, coordinates, 1u << current_thread->cta->rank, /*multicast=*/false, loc);
}

void tma_load_multicast(void const* tensor_map, uint64_t* bar, void* smem_dst, int rank, int32_t const* coordinates,
                        uint32_t mask, Loc loc) {
  load(tensor_map, bar, smem_dst, rank, coordinates, mask, /*multicast=*/true, loc);
}

void complete_tma_load(Domain& domain) {
  bool const any = domain.launch->options.mode == Mode::random;
  complete(domain, any ? domain.random() % domain.tma_loads.size() : domain.tma_loads.size() - 1);
}

void complete_some_tma_loads(Domain& domain) {
  if (domain.launch->options.mode != Mode::random || domain.tma_loads.empty() || domain.random() % 4 != 0) return;
  complete_tma_load(domain);
}

// ---------------------------------------------------------------------------------------------------------------
// stores

namespace {

template <class T>
void add(unsigned char* to, unsigned char const* from, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + i, sizeof(T));
    std::memcpy(&b, from + i, sizeof(T));
    if constexpr (std::is_integral_v<T> || std::is_same_v<T, double>) {
      a += b;
    } else {
      a = T(static_cast<float>(a) + static_cast<float>(b));
    }
    std::memcpy(to + i, &a, sizeof(T));
  }
}

using Add = void (*)(unsigned char*, unsigned char const*, uint32_t);

// Null where the hardware has no such reduction. Signed and unsigned numbers add alike.
Add addition(uint8_t type) {
  switch (static_cast<TensorMapType>(type)) {
    case TensorMapType::u32:
    case TensorMapType::s32:
      return add<uint32_t>;
    case TensorMapType::u64:
    case TensorMapType::s64:
      return add<uint64_t>;
    case TensorMapType::f16:
      return add<half_t>;
    case TensorMapType::bf16:
      return add<bfloat16_t>;
    case TensorMapType::f32:
      return add<float>;
    case TensorMapType::f64:
      return add<double>;
    default:
      return nullptr;
  }
}

void read_source(Thread& thread, TmaStore& store) {
  if (!store.data.empty()) return;
  store.data.resize(store.map.box_bytes());
  for (uint32_t done = 0; done < store.data.size(); done += kPiece) {
    uint32_t const place = swizzled(store.offset + done, store.map.swizzle);
    std::memcpy(store.data.data() + done, thread.cta->smem + place, kPiece);
  }
}

void write_destination(Thread& thread, TmaStore& store) {
  if (store.written) return;
  read_source(thread, store);
  store.written = true;
  std::unique_lock<std::mutex> lock;
  Add const reduce = store.kind == TmaStoreKind::reduce_add ? addition(store.map.type) : nullptr;
  if (reduce != nullptr) lock = std::unique_lock(thread.domain->launch->mutex);  // other OS threads add to the same
  for_each_row(store.map, store.coordinates, [&](Row const& row) {
    if (row.inside == nullptr) return;
    unsigned char const* const from = store.data.data() + row.offset + row.before;
    if (reduce != nullptr) {
      reduce(row.inside, from, row.bytes);
    } else {
      std::memcpy(row.inside, from, row.bytes);
    }
  });
}

// Mode::random: some of the thread's stores read, or also write, now.
void advance_some_stores(Thread& thread) {
  Domain& domain = *thread.domain;
  if (domain.launch->options.mode != Mode::random) return;
  for (TmaStore& store : thread.stores) {
    uint64_t const choice = domain.random() % 8;
    if (choice == 0) read_source(thread, store);
    if (choice == 1) write_destination(thread, store);
  }
}

}  // namespace

void tma_store(void const* tensor_map, void const* smem_src, int rank, int32_t const* coordinates, TmaStoreKind kind,
               Loc loc) {
  char const* const what = name(kind);
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  loc = thread.reported(loc);
  domain.count_step(thread, loc);
  EncodedTensorMap const map = checked_map(thread, tensor_map, rank, what, loc);
  check_coordinates(thread, map, coordinates, /*store=*/true, what, loc);
  uint32_t const offset = checked_box(thread, map, smem_src, what, loc);
  if (kind == TmaStoreKind::reduce_add && addition(map.type) == nullptr) {
    domain.fail([&] {
      return format("%s by %s at %s: there is no addition of 8- or 16-bit integers", what, who(thread).c_str(),
                    at(loc).c_str());
    });
  }
  Traffic traffic;
  for_each_row(map, coordinates, [&](Row const& row) {
    if (row.inside == nullptr) return;
    traffic.add(row);
    if (kind == TmaStoreKind::store) {
      global_access(thread, row.inside, row.bytes, true, "TMA store (write)", loc);
    } else {
      global_reduction(thread, row.inside, row.bytes, "TMA reduction (write)", loc);
    }
  });
  ++domain.counters.tma_stores;
  domain.counters.tma_store_bytes += traffic.bytes;
  domain.counters.tma_store_sectors += traffic.sectors;
  domain.counters.tma_store_ideal_sectors += traffic.ideal_sectors();
  if (domain.detect_races) {
    if (thread.store_agent < 0) thread.store_agent = new_async_agent(thread, /*warp=*/false);
    AsyncOperation const read{thread.clock, thread.floors, thread.store_agent, thread.store_groups + 1, what, loc};
    for_each_place(map, offset, [&](uint32_t place, uint32_t bytes) {
      async_access(domain, read, *thread.cta, place, bytes, /*write=*/false);
    });
  }
  TmaStore& store = thread.stores.emplace_back();
  store.map = map;
  std::copy_n(coordinates, rank, store.coordinates);
  store.offset = offset;
  store.kind = kind;
  store.group = thread.store_groups;
  store.written = store.waited = false;
  store.loc = loc;
  if (domain.launch->options.mode == Mode::eager) write_destination(thread, store);
  advance_some_stores(thread);
  domain.yield_sometimes();
}

void tma_store_commit_group(Loc loc) {
  Thread& thread = *current_thread;
  thread.domain->count_step(thread, thread.reported(loc));
  ++thread.store_groups;
  advance_some_stores(thread);
}

void tma_store_wait_group(int groups_in_flight, bool read, Loc loc) {
  Thread& thread = *current_thread;
  Domain& domain = *thread.domain;
  domain.count_step(thread, thread.reported(loc));
  auto const allowed = static_cast<uint32_t>(groups_in_flight);
  if (thread.store_groups > allowed) {
    uint32_t const done = thread.store_groups - allowed;  // groups 0 to done - 1
    for (TmaStore& store : thread.stores) {
      if (store.group >= done) continue;
      store.waited = true;
      read_source(thread, store);
      if (!read) write_destination(thread, store);
    }
    auto const finished = [](TmaStore const& store) { return store.waited && store.written; };
    thread.stores.erase(std::remove_if(thread.stores.begin(), thread.stores.end(), finished), thread.stores.end());
    if (thread.store_agent >= 0) async_done(thread, thread.store_agent, done);
  }
  advance_some_stores(thread);
  domain.yield_sometimes();
}

void finish_tma_stores(Thread& thread) {
  for (TmaStore& store : thread.stores) {
    if (!store.waited) {
      thread.domain->fail([&] {
        return format("%s exits while its %s at %s may still read shared memory: it has not waited for the group",
                      who(thread).c_str(), name(store.kind), at(store.loc).c_str());
      });
    }
    write_destination(thread, store);
  }
  thread.stores.clear();
}

}  // namespace moye::emu
