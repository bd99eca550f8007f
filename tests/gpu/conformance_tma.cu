// Hopper's data movement against the hardware: what conformance.cu is for the other wrappers, these programs are for
// TMA, mbarriers and clusters. nvcc compiles this file for sm_90a, a host compiler for the emulator; the outputs of the
// two must be equal bit by bit, and conformance_tma_reference.py computes them again.
//
//   conformance_tma --list      prints the manifest: case, wrappers, PTX instruction, bytes of output, between tabs
//   conformance_tma DIRECTORY   runs every case and writes its output to DIRECTORY/<case>.bin
//
// A tensor has rows of 160 bytes, 176 apart, and 9, 5, 4, 3 elements in its other modes. Each kernel moves a box three
// times: inside the tensor, over its lower edges (loads alone) and over its upper ones. Over 600 lines: one case for
// each instruction, rank and swizzle.
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>

#include "machine.h"
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/device.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/tensor_map.h"
#include "moye/arch/tma.h"
#include "moye/arch/warp.h"

namespace moye::conformance {

// ---- Kernels --------------------------------------------------------------------------------------------------------

constexpr int kZoneBytes = 4096;  // of shared memory, in which boxes land
constexpr int kPlaces = 3;        // of the box in the tensor
constexpr int kSmemBytes = 2 * kZoneBytes + 128;

struct Places {
  int c[kPlaces][5];
};

MOYE_DEVICE uint32_t* zone_words() { return reinterpret_cast<uint32_t*>(smem_base()); }
MOYE_DEVICE uint64_t* mbarriers() { return reinterpret_cast<uint64_t*>(smem_base() + 2 * kZoneBytes); }

MOYE_DEVICE void init_mbarriers(int count, uint32_t arrivals) {
  if (thread_idx().x == 0) {
    for (int i = 0; i < count; ++i) mbarrier_init(mbarriers() + i, arrivals);
    fence_mbarrier_init();
  }
  sync_threads();
}

// Shared memory as it is before a box lands.
MOYE_DEVICE void fill_zone() {
  for (uint32_t i = thread_idx().x; i < kZoneBytes / 4; i += block_dim().x) zone_words()[i] = 0xa5a5a5a5u;
  fence_proxy_async_shared_cta();
  sync_threads();
}

MOYE_DEVICE void write_zone(uint32_t* out) {
  for (uint32_t i = thread_idx().x; i < kZoneBytes / 4; i += block_dim().x) out[i] = zone_words()[i];
  sync_threads();
}

template <int kRank>
MOYE_DEVICE void load_box(TensorMap const* map, uint64_t* bar, void* smem, int const* c, CacheHint hint) {
  if constexpr (kRank == 2) tma_load(map, bar, smem, c[0], c[1], hint);
  if constexpr (kRank == 3) tma_load(map, bar, smem, c[0], c[1], c[2], hint);
  if constexpr (kRank == 4) tma_load(map, bar, smem, c[0], c[1], c[2], c[3], hint);
  if constexpr (kRank == 5) tma_load(map, bar, smem, c[0], c[1], c[2], c[3], c[4], hint);
}

template <int kRank>
MOYE_DEVICE void multicast_box(TensorMap const* map, uint64_t* bar, uint16_t mask, void* smem, int const* c,
                               CacheHint hint) {
  if constexpr (kRank == 2) tma_load_multicast(map, bar, mask, smem, c[0], c[1], hint);
  if constexpr (kRank == 3) tma_load_multicast(map, bar, mask, smem, c[0], c[1], c[2], hint);
  if constexpr (kRank == 4) tma_load_multicast(map, bar, mask, smem, c[0], c[1], c[2], c[3], hint);
  if constexpr (kRank == 5) tma_load_multicast(map, bar, mask, smem, c[0], c[1], c[2], c[3], c[4], hint);
}

template <int kRank>
MOYE_DEVICE void store_box(TensorMap const* map, void const* smem, int const* c, bool reduce, CacheHint hint) {
  if (reduce) {
    if constexpr (kRank == 2) tma_reduce_add(map, smem, c[0], c[1]);
    if constexpr (kRank == 3) tma_reduce_add(map, smem, c[0], c[1], c[2]);
    if constexpr (kRank == 4) tma_reduce_add(map, smem, c[0], c[1], c[2], c[3]);
    if constexpr (kRank == 5) tma_reduce_add(map, smem, c[0], c[1], c[2], c[3], c[4]);
  } else {
    if constexpr (kRank == 2) tma_store(map, smem, c[0], c[1], hint);
    if constexpr (kRank == 3) tma_store(map, smem, c[0], c[1], c[2], hint);
    if constexpr (kRank == 4) tma_store(map, smem, c[0], c[1], c[2], c[3], hint);
    if constexpr (kRank == 5) tma_store(map, smem, c[0], c[1], c[2], c[3], c[4], hint);
  }
}

/// out: the zone after each load of a box to offset `offset`.
template <int kRank>
MOYE_KERNEL(128)
load_kernel(MOYE_GRID_CONSTANT TensorMap const map, Places places, int offset, uint32_t bytes, bool hint,
            uint32_t const*, uint32_t* out) {
  init_mbarriers(1, 1);
  for (int i = 0; i < kPlaces; ++i) {
    fill_zone();
    if (thread_idx().x == 0) {
      prefetch_tensor_map(&map);
      mbarrier_arrive_expect_tx(mbarriers(), bytes);
      auto* const to = smem_base() + offset;
      if (hint) {
        load_box<kRank>(&map, mbarriers(), to, places.c[i], CacheHint::evict_last);
      } else {
        load_box<kRank>(&map, mbarriers(), to, places.c[i], CacheHint::none);
      }
    }
    mbarrier_wait(mbarriers(), static_cast<uint32_t>(i % 2));
    write_zone(out + i * (kZoneBytes / 4));
  }
}

/// A cluster of two, each loads a box for both, to the first and the second half of their zones; or, if `other`, for
/// the other one alone. out: the zones of CTA 0, then those of CTA 1.
template <int kRank>
MOYE_KERNEL(128)
multicast_kernel(MOYE_GRID_CONSTANT TensorMap const map, Places places, int other, uint32_t bytes, bool hint,
                 uint32_t const*, uint32_t* out) {
  uint32_t const rank = block_rank_in_cluster();
  init_mbarriers(1, 1);
  for (int i = 0; i < kPlaces; ++i) {
    fill_zone();
    cluster_sync();  // both have their zones ready
    if (thread_idx().x == 0) {
      mbarrier_arrive_expect_tx(mbarriers(), other ? bytes : 2 * bytes);
      uint16_t const mask = other ? static_cast<uint16_t>(2u >> rank) : static_cast<uint16_t>(3);
      auto* const to = smem_base() + rank * (kZoneBytes / 2);
      int const* const c = places.c[(i + static_cast<int>(rank)) % kPlaces];
      if (hint) {
        multicast_box<kRank>(&map, mbarriers(), mask, to, c, CacheHint::evict_first);
      } else {
        multicast_box<kRank>(&map, mbarriers(), mask, to, c, CacheHint::none);
      }
    }
    mbarrier_wait(mbarriers(), static_cast<uint32_t>(i % 2));
    write_zone(out + (static_cast<int>(rank) * kPlaces + i) * (kZoneBytes / 4));
  }
  cluster_sync();
}

/// in: a zone, whose box at `offset` is stored, or added, at three places. out: the tensor (it is `map`'s).
template <int kRank>
MOYE_KERNEL(128)
store_kernel(MOYE_GRID_CONSTANT TensorMap const map, Places places, int offset, uint32_t reduce, bool hint,
             uint32_t const* in, uint32_t*) {
  for (uint32_t i = thread_idx().x; i < kZoneBytes / 4; i += block_dim().x) zone_words()[i] = in[i];
  fence_proxy_async_shared_cta();
  sync_threads();
  if (thread_idx().x == 0) {
    for (int i = 0; i < kPlaces; ++i) {
      auto* const from = smem_base() + offset;
      if (hint) {
        store_box<kRank>(&map, from, places.c[i], false, CacheHint::evict_first);
      } else {
        store_box<kRank>(&map, from, places.c[i], reduce != 0, CacheHint::none);
      }
      tma_store_commit_group();
      if (i == 0) tma_store_wait_group_read<0>();
      tma_store_wait_group<0>();
    }
  }
}

/// One warp, an mbarrier of two arrivals: what try_wait says about both parities after each step.
MOYE_KERNEL(32)
mbarrier_kernel(uint32_t const* in, uint32_t* out) {
  init_mbarriers(1, 2);
  int step = 0;
  auto look = [&] {
    for (uint32_t parity = 0; parity < 2; ++parity) out[2 * step + parity] = mbarrier_try_wait(mbarriers(), parity);
    ++step;
  };
  if (thread_idx().x != 0) return;
  look();
  mbarrier_arrive(mbarriers());
  look();
  mbarrier_arrive(mbarriers());
  look();
  mbarrier_expect_tx(mbarriers(), 64);
  mbarrier_arrive(mbarriers());
  look();
  mbarrier_inval(mbarriers());
  fence_proxy_async();
  mbarrier_init(mbarriers(), 1);
  look();
  for (int i = 0; i < 5; ++i) {
    mbarrier_arrive(mbarriers());
    look();
  }
  out[2 * step] = in[0];
}

/// A warp hands words to another through three stages, twenty times. out: what has arrived, summed with the round.
MOYE_KERNEL(64)
ring_kernel(uint32_t const* in, uint32_t* out) {
  constexpr int kStages = 3, kRounds = 20;
  init_mbarriers(2 * kStages, 32);
  uint64_t *const full = mbarriers(), *const empty = full + kStages;
  uint32_t const lane = lane_id();
  for (int i = 0; i < kRounds; ++i) {
    int const stage = i % kStages;
    uint32_t const phase = static_cast<uint32_t>(i / kStages % 2);
    if (warp_id() == 0) {
      mbarrier_wait(empty + stage, phase ^ 1);
      zone_words()[32 * stage + lane] = in[lane] + static_cast<uint32_t>(i);
      mbarrier_arrive(full + stage);
    } else {
      mbarrier_wait(full + stage, phase);
      out[32 * i + lane] = zone_words()[32 * stage + (lane ^ 5)];
      mbarrier_arrive(empty + stage);
    }
  }
}

/// A cluster of four in a grid of two: who each is, what it reads in its neighbour's memory, and arrivals at a peer.
MOYE_KERNEL(64)
cluster_kernel(uint32_t const* in, uint32_t* out) {
  init_mbarriers(1, 4);
  cluster_arrive_relaxed();
  cluster_wait();
  uint32_t const rank = block_rank_in_cluster(), thread = thread_idx().x;
  zone_words()[thread] = in[thread] + block_idx().x;
  cluster_arrive();
  cluster_wait();
  uint32_t const neighbour = *mapa(zone_words() + thread, (rank + 1) % 4);
  mbarrier_arrive_cluster(mbarriers(), thread, thread < 4);
  mbarrier_wait(mbarriers(), 0);
  cluster_sync();  // nobody exits while others read its memory
  Dim3 const shape = cluster_shape(), id = cluster_id_in_grid(), dims = cluster_grid_dims();
  Dim3 const block = block_id_in_cluster();
  uint32_t const words[] = {neighbour, rank,   shape.x, shape.y, shape.z, id.x,    id.y,   id.z,
                            dims.x,    dims.y, dims.z,  block.x, block.y, block.z, thread, 0};
  uint32_t* const mine = out + 16 * (thread + 64 * (block_idx().x + grid_dim().x * block_idx().y));
  for (int i = 0; i < 16; ++i) mine[i] = words[i];
}

/// Three warpgroups exchange registers; out: by thread 1, and whether its warp elected exactly one lane, the same
/// twice.
MOYE_KERNEL(384)
register_kernel(uint32_t const* in, uint32_t* out) {
  griddepcontrol_wait();
  if (warp_id() < 4) {
    warpgroup_reg_dealloc<40>();
  } else {
    warpgroup_reg_alloc<232>();
  }
  bool const first = elect_one_sync(), second = elect_one_sync();
  uint32_t elected = first ? 1u : 0u;
  uint32_t different = first != second ? 1u : 0u;
  for (int delta = 16; delta > 0; delta /= 2) {
    elected += shfl_xor_sync(kFullWarp, elected, delta);
    different += shfl_xor_sync(kFullWarp, different, delta);
  }
  griddepcontrol_launch_dependents();
  out[thread_idx().x] = in[0] + 256 * elected + 65536 * different;
}

// ---- Inputs ---------------------------------------------------------------------------------------------------------

uint32_t hash(std::string const& name, uint32_t piece, uint32_t i) {
  uint32_t h = 2166136261u;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;  // FNV-1a
  h += 0x9e3779b9u * ((piece << 20) + i + 1);
  h = (h ^ (h >> 16)) * 0x85ebca6bu;  // the finalizer of MurmurHash3
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

/// Words without a meaning, or, with a type, small integers of it.
std::vector<unsigned char> input(std::string const& name, uint32_t piece, size_t bytes, TensorMapType const* type) {
  std::vector<unsigned char> result(bytes);
  size_t const size = type != nullptr ? static_cast<size_t>(bytes_of(*type)) : 4;
  for (size_t i = 0; i < bytes / size; ++i) {
    uint32_t const word = hash(name, piece, static_cast<uint32_t>(i));
    auto put = [&](auto value) { std::memcpy(result.data() + i * size, &value, sizeof(value)); };
    if (type == nullptr) {
      put(word);
      continue;
    }
    int const small = static_cast<int>(word % 17u) - 8;
    switch (*type) {
      case TensorMapType::f16:
        put(half_t(static_cast<float>(small)).storage);
        break;
      case TensorMapType::bf16:
        put(bfloat16_t(static_cast<float>(small)).storage);
        break;
      case TensorMapType::f32:
        put(static_cast<float>(small));
        break;
      case TensorMapType::f64:
        put(static_cast<double>(small));
        break;
      case TensorMapType::u64:
      case TensorMapType::s64:
        put(static_cast<int64_t>(small));
        break;
      default:
        put(static_cast<int32_t>(small));
    }
  }
  return result;
}

// ---- Cases ----------------------------------------------------------------------------------------------------------

struct Case {
  std::string name, wrappers, instruction;
  size_t out_bytes;
  std::function<std::vector<unsigned char>(Case const&)> run;
};

struct Type {
  char const* name;
  TensorMapType type;
};
constexpr Type kTypes[] = {{"u8", TensorMapType::u8},   {"bf16", TensorMapType::bf16}, {"f32", TensorMapType::f32},
                           {"f64", TensorMapType::f64}, {"f16", TensorMapType::f16},   {"u32", TensorMapType::u32},
                           {"s32", TensorMapType::s32}, {"u64", TensorMapType::u64},   {"tf32", TensorMapType::tf32}};
constexpr char const* kSwizzles[] = {"none", "b32", "b64", "b128"};

constexpr int kRowBytes = 160, kPitch = 176;
constexpr uint64_t kSizes[] = {0, 9, 5, 4, 3};
constexpr uint32_t kBoxes[6][5] = {{}, {}, {0, 8}, {0, 4, 3}, {0, 3, 2, 2}, {0, 3, 2, 2, 2}};

/// Bytes of the tensor: its modes 1, 2, ... follow each other without gaps.
size_t tensor_bytes(int rank) {
  size_t bytes = kPitch;
  for (int i = 1; i < rank; ++i) bytes *= kSizes[i];
  return bytes;
}

struct TmaCase {
  int rank;
  Type type;
  int swizzle;
  int offset = 0;  // of the box in the zone
  bool hint = false;
};

TensorMapSpec spec(TmaCase const& c, void const* address) {
  int const size = bytes_of(c.type.type);
  TensorMapSpec spec{.type = c.type.type, .rank = c.rank, .address = address, .sizes = {}, .strides = {}, .box = {}};
  spec.swizzle = static_cast<TensorMapSwizzle>(c.swizzle);
  int const row = c.swizzle == 0 ? 64 : span_bytes(spec.swizzle);
  spec.sizes[0] = static_cast<uint64_t>(kRowBytes / size);
  spec.box[0] = static_cast<uint32_t>(row / size);
  uint64_t stride = kPitch;
  for (int i = 1; i < c.rank; ++i) {
    spec.sizes[i] = kSizes[i];
    spec.strides[i - 1] = stride;
    spec.box[i] = kBoxes[c.rank][i];
    stride *= kSizes[i];
  }
  return spec;
}

/// The first inside, the second before the tensor's begin, the third across its end. Along mode 0 in steps of 16 bytes:
/// an H200 answers others, and negative coordinates of stores, with an illegal instruction.
Places places_of(TmaCase const& c, TensorMapSpec const& spec, bool store) {
  Places places = {};
  int const piece = 16 / bytes_of(c.type.type);
  for (int i = 0; i < c.rank; ++i) {
    auto const half = static_cast<int>(spec.box[i] / 2);
    places.c[0][i] = i == 0 ? piece : i % 2;
    places.c[1][i] = store ? 0 : i == 0 ? -piece : -1;
    places.c[2][i] = static_cast<int>(spec.sizes[i]) - (i == 0 ? (half + piece - 1) / piece * piece : half);
  }
  return places;
}

uint32_t box_bytes(TensorMapSpec const& spec) {
  auto bytes = static_cast<uint32_t>(bytes_of(spec.type));
  for (int i = 0; i < spec.rank; ++i) bytes *= spec.box[i];
  return bytes;
}

using TmaKernel = void (*)(TensorMap, Places, int, uint32_t, bool, uint32_t const*, uint32_t*);

LaunchConfig config_of(unsigned threads, unsigned grid = 1, unsigned cluster = 1) {
  LaunchConfig config;
  config.grid = {grid, 1, 1};
  config.block = {threads, 1, 1};
  config.cluster = {cluster, 1, 1};
  config.smem_bytes = kSmemBytes;
  return config;
}

template <class... P>
void launch(std::string const& name, testing::Machine& machine, void (*kernel)(P...), LaunchConfig const& config,
            std::type_identity_t<P>... args) {
  testing::check(prepare_kernel(kernel, config.smem_bytes), name);
  testing::check(launch_kernel(kernel, config, machine.stream(), args...), name);
  machine.wait();
}

/// Loads from a tensor of words without a meaning. middle: the kernel's third argument.
std::vector<unsigned char> run_load(Case const& one, TmaCase const& c, TmaKernel kernel, int middle, unsigned ctas) {
  testing::Machine machine;
  std::vector<unsigned char> const in = input(one.name, 0, tensor_bytes(c.rank), nullptr);
  std::vector<unsigned char> out(one.out_bytes, 0xff);
  void* const tensor = machine.allocate("tensor", in.size(), false);
  void* const result = machine.allocate("out", out.size(), true);
  machine.upload(tensor, in.data(), in.size());
  machine.upload(result, out.data(), out.size());
  TensorMapSpec const description = spec(c, tensor);
  TensorMap map;
  testing::check(make_tensor_map(&map, description), one.name);
  launch(one.name, machine, kernel, config_of(128, ctas, ctas), map, places_of(c, description, false), middle,
         box_bytes(description), c.hint, nullptr, static_cast<uint32_t*>(result));
  machine.download(out.data(), result, out.size());
  return out;
}

std::vector<unsigned char> run_store(Case const& one, TmaCase const& c, TmaKernel kernel, bool reduce) {
  testing::Machine machine;
  TensorMapType const* const type = reduce ? &c.type.type : nullptr;
  std::vector<unsigned char> const in = input(one.name, 0, kZoneBytes, type);
  std::vector<unsigned char> out = input(one.name, 1, one.out_bytes, type);
  void* const zone = machine.allocate("in", in.size(), false);
  void* const tensor = machine.allocate("tensor", out.size(), true);
  machine.upload(zone, in.data(), in.size());
  machine.upload(tensor, out.data(), out.size());
  TensorMapSpec const description = spec(c, tensor);
  TensorMap map;
  testing::check(make_tensor_map(&map, description), one.name);
  launch(one.name, machine, kernel, config_of(128), map, places_of(c, description, true), c.offset, reduce ? 1u : 0u,
         c.hint, static_cast<uint32_t const*>(zone), nullptr);
  machine.download(out.data(), tensor, out.size());
  return out;
}

using WordKernel = void (*)(uint32_t const*, uint32_t*);

std::vector<unsigned char> run_words(Case const& one, WordKernel kernel, LaunchConfig const& config, size_t in_words) {
  testing::Machine machine;
  std::vector<unsigned char> const in = input(one.name, 0, 4 * in_words, nullptr);
  std::vector<unsigned char> out(one.out_bytes, 0xff);
  void* const in_array = machine.allocate("in", in.size(), false);
  void* const out_array = machine.allocate("out", out.size(), true);
  machine.upload(in_array, in.data(), in.size());
  machine.upload(out_array, out.data(), out.size());
  launch(one.name, machine, kernel, config, static_cast<uint32_t const*>(in_array), static_cast<uint32_t*>(out_array));
  machine.download(out.data(), out_array, out.size());
  return out;
}

/// Which specs the driver makes a map of: a word each. Nothing is launched.
std::vector<unsigned char> run_specs(Case const& one) {
  testing::Machine machine;
  auto* const array = static_cast<unsigned char*>(machine.allocate("tensor", 1 << 16, false));
  TensorMapSpec const good{.type = TensorMapType::bf16,
                           .rank = 3,
                           .address = array,
                           .sizes = {64, 64, 4},
                           .strides = {128, 8192},
                           .box = {64, 64, 1},
                           .swizzle = TensorMapSwizzle::b128};
  std::vector<std::function<void(TensorMapSpec&)>> const changes = {
      [](TensorMapSpec&) {},
      [&](TensorMapSpec& spec) { spec.address = array + 8; },
      [&](TensorMapSpec& spec) { spec.address = array + 16; },
      [](TensorMapSpec& spec) { spec.sizes[1] = 0; },
      [](TensorMapSpec& spec) { spec.sizes[2] = uint64_t{1} << 32; },
      [](TensorMapSpec& spec) { spec.sizes[2] = (uint64_t{1} << 32) + 1; },
      [](TensorMapSpec& spec) { spec.strides[0] = 136; },
      [](TensorMapSpec& spec) { spec.strides[0] = 144; },
      [](TensorMapSpec& spec) { spec.strides[1] = (uint64_t{1} << 40) - 16; },
      [](TensorMapSpec& spec) { spec.strides[1] = uint64_t{1} << 40; },
      [](TensorMapSpec& spec) { spec.box[1] = 256; },
      [](TensorMapSpec& spec) { spec.box[1] = 257; },
      [](TensorMapSpec& spec) { spec.box[2] = 0; },
      [](TensorMapSpec& spec) { spec.box[0] = 4; },
      [](TensorMapSpec& spec) { spec.box[0] = 8; },
      [](TensorMapSpec& spec) { spec.box[0] = 72; },
      [](TensorMapSpec& spec) { spec.swizzle = TensorMapSwizzle::b64; },
      [](TensorMapSpec& spec) { spec.swizzle = TensorMapSwizzle::none, spec.box[0] = 256; },
      [](TensorMapSpec& spec) { spec.type = TensorMapType::u16, spec.fill = TensorMapFill::nan; },
      [](TensorMapSpec& spec) { spec.fill = TensorMapFill::nan; },
      // The outer stride the smaller one, overlapping rows, no multiple of each other.
      [](TensorMapSpec& spec) { spec.strides[0] = 8192, spec.strides[1] = 128; },
      [](TensorMapSpec& spec) { spec.strides[0] = 64; },
      [](TensorMapSpec& spec) { spec.strides[1] = 8208; },
      [](TensorMapSpec& spec) { spec.strides[1] = 0; },
  };
  std::vector<unsigned char> out(one.out_bytes, 0xff);
  if (changes.size() * 4 != out.size()) testing::fail("the number of specs");
  for (size_t i = 0; i < changes.size(); ++i) {
    TensorMapSpec spec = good;
    changes[i](spec);
    TensorMap map;
    uint32_t const made = detail::encode_tensor_map(&map, spec).ok() ? 1 : 0;
    std::memcpy(out.data() + 4 * i, &made, 4);
  }
  return out;
}

std::string name_of(std::string const& kind, TmaCase const& c) {
  return kind + "_" + c.type.name + "_" + std::to_string(c.rank) + "d_" + kSwizzles[c.swizzle];
}

template <int kRank>
Case load_case(std::string const& kind, TmaCase const& c) {
  return {name_of(kind, c), "tma_load prefetch_tensor_map",
          "cp.async.bulk.tensor." + std::to_string(kRank) + "d prefetch.tensormap", kPlaces * kZoneBytes,
          [c](Case const& one) { return run_load(one, c, load_kernel<kRank>, c.offset, 1); }};
}

template <int kRank>
Case multicast_case(std::string const& kind, TmaCase const& c, bool other) {
  return {name_of(kind, c), "tma_load_multicast cluster_sync block_rank_in_cluster",
          "cp.async.bulk.tensor." + std::to_string(kRank) + "d.multicast::cluster", 2 * kPlaces * kZoneBytes,
          [c, other](Case const& one) { return run_load(one, c, multicast_kernel<kRank>, other ? 1 : 0, 2); }};
}

template <int kRank>
Case store_case(std::string const& kind, TmaCase const& c, bool reduce) {
  return {name_of(kind, c),
          reduce ? "tma_reduce_add tma_store_commit_group tma_store_wait_group"
                 : "tma_store tma_store_commit_group tma_store_wait_group tma_store_wait_group_read",
          (reduce ? "cp.reduce.async.bulk.tensor." : "cp.async.bulk.tensor.global.") + std::to_string(kRank) + "d",
          tensor_bytes(kRank), [c, reduce](Case const& one) { return run_store(one, c, store_kernel<kRank>, reduce); }};
}

template <int kRank>
void add_rank(std::vector<Case>& cases) {
  for (int swizzle = 0; swizzle < 4; ++swizzle) {
    for (int type = 0; type < 4; ++type) {
      TmaCase const c{kRank, kTypes[type], swizzle};
      if (kRank != 2 && type != (swizzle + kRank) % 4) continue;
      cases.push_back(load_case<kRank>("load", c));
      cases.push_back(store_case<kRank>("store", c, false));
    }
    TmaCase const added{kRank, kTypes[1 + (swizzle + kRank) % 3], swizzle};
    cases.push_back(store_case<kRank>("reduce", added, true));
    TmaCase c{kRank, kTypes[(swizzle + kRank) % 4], swizzle};
    if (box_bytes(spec(c, nullptr)) > kZoneBytes / 2) continue;  // half a zone has to hold the box
    cases.push_back(multicast_case<kRank>("multicast", c, false));
    c.hint = true;
    cases.push_back(multicast_case<kRank>("multicast_other", c, true));
  }
  TmaCase const hint{.rank = kRank, .type = kTypes[1], .swizzle = 3, .hint = true};
  cases.push_back(load_case<kRank>("load_hint", hint));
  cases.push_back(store_case<kRank>("store_hint", hint, false));
}

void add_rest(std::vector<Case>& cases) {
  for (int type = 4; type < 8; ++type) cases.push_back(store_case<2>("reduce", {2, kTypes[type], 0}, true));
  for (int swizzle = 1; swizzle < 4; ++swizzle) {
    // The pattern is one of absolute addresses: a box that does not begin where it does.
    TmaCase const shifted{.rank = 2, .type = kTypes[1], .swizzle = swizzle, .offset = 384};
    cases.push_back(load_case<2>("load_shifted", shifted));
    cases.push_back(store_case<2>("store_shifted", shifted, false));
  }
  cases.push_back(load_case<2>("load", {2, kTypes[8], 3}));
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_rank<2>(cases);
  add_rank<3>(cases);
  add_rank<4>(cases);
  add_rank<5>(cases);
  add_rest(cases);
  cases.push_back({"tensor_map_specs", "make_tensor_map", "cuTensorMapEncodeTiled", 4 * 24, run_specs});
  auto const words = [&](std::string const& name, std::string const& wrappers, std::string const& instruction,
                         WordKernel kernel, LaunchConfig const& config, size_t in_words, size_t out_words) {
    cases.push_back({name, wrappers, instruction, 4 * out_words,
                     [kernel, config, in_words](Case const& one) { return run_words(one, kernel, config, in_words); }});
  };
  words("mbarrier",
        "mbarrier_init mbarrier_inval mbarrier_arrive mbarrier_expect_tx mbarrier_try_wait fence_mbarrier_init "
        "fence_proxy_async",
        "mbarrier.init mbarrier.inval mbarrier.arrive mbarrier.expect_tx mbarrier.try_wait", mbarrier_kernel,
        config_of(32), 1, 21);
  words("mbarrier_ring",
        "mbarrier_wait mbarrier_arrive mbarrier_arrive_expect_tx fence_proxy_async_shared_cta tma_store_wait_group",
        "mbarrier.try_wait.parity", ring_kernel, config_of(64), 32, 20 * 32);
  LaunchConfig two = config_of(64, 4, 4);
  two.grid.y = 2;
  words("cluster",
        "cluster_arrive cluster_arrive_relaxed cluster_wait cluster_shape cluster_id_in_grid cluster_grid_dims "
        "block_id_in_cluster block_rank_in_cluster mapa mbarrier_arrive_cluster",
        "barrier.cluster mapa mbarrier.arrive.shared::cluster", cluster_kernel, two, 64, 8 * 64 * 16);
  words("registers",
        "warpgroup_reg_alloc warpgroup_reg_dealloc elect_one_sync griddepcontrol_wait griddepcontrol_launch_dependents",
        "setmaxnreg elect.sync griddepcontrol", register_kernel, config_of(384), 1, 384);
  return cases;
}

}  // namespace moye::conformance

int main(int count, char** arguments) {
  using namespace moye;
  if (count < 2) testing::fail("usage: conformance_tma --list | conformance_tma DIRECTORY [CASE TO LEAVE OUT]...");
  for (conformance::Case const& one : conformance::all_cases()) {
    if (std::string(arguments[1]) == "--list") {
      std::cout << one.name << '\t' << one.wrappers << '\t' << one.instruction << '\t' << one.out_bytes << '\n';
      continue;
    }
    if (std::find(arguments + 2, arguments + count, one.name) != arguments + count) continue;
    std::vector<unsigned char> const out = one.run(one);
    std::ofstream file(std::string(arguments[1]) + "/" + one.name + ".bin", std::ios::binary);
    file.write(reinterpret_cast<char const*>(out.data()), static_cast<std::streamsize>(out.size()));
    if (!file.flush()) testing::fail("cannot write " + one.name + ".bin");
    std::printf("%s\n", one.name.c_str());
  }
  return 0;
}
