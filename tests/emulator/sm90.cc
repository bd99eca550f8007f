// sm90 CASE [option=value ...]: kernels with mbarriers, TMA and clusters, one for each rule. Those named ..._ok keep it
// and print "ok" if their output is right; the others break it and print the report. A comment "@name" marks a line
// that test_sm90.py expects in a report. Here are persistent kernels, registers and overlapping launches; the other
// kernels are in the headers beside this file.
#include "sm90.h"

#include <vector>

#include "moye/arch/device.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/register.h"
#include "program.h"
#include "sm90_clusters.h"
#include "sm90_tma.h"

namespace {

// -------------------------------------------------------------------------------------------------- a ring, persistent

// One producer thread, one consumer warp, three stages, every box of `in` to the same place of `out` through a second
// buffer: mbarriers full (0 to 2) and empty (3 to 5).
MOYE_KERNEL(64)
ring_ok(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  constexpr int kStages = 3, kTiles = 16;
  if (tid() == 0) {
    for (int i = 0; i < kStages; ++i) mbarrier_init(bar(i), 1), mbarrier_init(bar(kStages + i), 32);
    fence_mbarrier_init();
  }
  sync_threads();
  auto const step = static_cast<int>(grid_dim().x);
  auto const first = static_cast<int>(block_idx().x);
  if (warp_id() == 0) {
    if (elect_one_sync()) {
      for (int tile = first, i = 0; tile < kTiles; tile += step, ++i) {
        int const stage = i % kStages;
        mbarrier_wait(bar(kStages + stage), i / kStages % 2 ^ 1);
        mbarrier_arrive_expect_tx(bar(stage), kBoxBytes);
        tma_load(&maps.in, bar(stage), box(stage), tile % 4 * kBox, tile / 4 * kBox);
      }
    }
  } else {
    uint32_t const lane = lane_id();
    for (int tile = first, i = 0; tile < kTiles; tile += step, ++i) {
      int const stage = i % kStages;
      mbarrier_wait(bar(stage), static_cast<uint32_t>(i / kStages % 2));
      uint32_t words[8];
      for (uint32_t w = 0; w < 8; ++w) words[w] = box(stage)[lane + 32 * w];
      mbarrier_arrive(bar(kStages + stage));
      if (lane == 0) tma_store_wait_group_read<0>();
      sync_warp();
      for (uint32_t w = 0; w < 8; ++w) box(3)[lane + 32 * w] = words[w];
      fence_proxy_async_shared_cta();
      sync_warp();
      if (lane == 0) {
        tma_store(&maps.out, box(3), tile % 4 * kBox, tile / 4 * kBox);
        tma_store_commit_group();
      }
    }
    if (lane == 0) tma_store_wait_group_read<0>();
  }
}

// ------------------------------------------------------------------------------------------------ registers and others

template <int kFewer, int kMore>
MOYE_KERNEL(384)
registers(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  if (warp_id() < 4) {
    warpgroup_reg_dealloc<kFewer>();  // @registers fewer
  } else {
    warpgroup_reg_alloc<kMore>();  // @registers more
  }
  make_mbarriers(1);
  if (tid() == 0) {
    griddepcontrol_wait();
    prefetch_tensor_map(&maps.in);
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0, CacheHint::evict_last);
    griddepcontrol_launch_dependents();
  }
  mbarrier_wait(bar(), 0);
  write_out(out, box());
}

// Launched before the kernel ahead has ended.
enum class OverlapBug { none, load_first, one_waits };

template <OverlapBug kBug>
MOYE_KERNEL(64)
overlap(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);
  if (tid() == 0) {
    if (kBug != OverlapBug::load_first) griddepcontrol_wait();
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);  // @overlap load
  }
  if (kBug != OverlapBug::one_waits) griddepcontrol_wait();
  mbarrier_wait(bar(), 0);
  write_out(out, box());
}

MOYE_KERNEL(64)
elect_ok(MOYE_GRID_CONSTANT Maps const, uint32_t* out) {
  bool const first = elect_one_sync(), second = elect_one_sync();
  uint32_t count = first && second ? 1 : 0;
  uint32_t const wrong = first != second;
  for (int delta = 16; delta > 0; delta /= 2) count += shfl_xor_sync(kFullWarp, count, delta);
  if (wrong != 0 || count != 1) return;
  for (uint32_t i = tid(); i < kBox * kBox; i += 64) out[i / kBox * kSize + i % kBox] = i / kBox * kSize + i % kBox;
}

// ---------------------------------------------------------------------------------------------------------------- main

// What `out` holds afterwards, if there was no report.
enum class Output { nothing, box, two_boxes, four_boxes, columns, everything, edges, three_times };

struct Case {
  char const* name;
  Kernel kernel;
  Output output = Output::nothing;
  unsigned threads = 64;
  unsigned grid = 1;
  unsigned cluster = 1;
  bool programmatic = false;
};

#define MOYE_CASE(name, ...) {#name, name, __VA_ARGS__}
#define MOYE_BUG(name) {#name, name}
#define MOYE_CLUSTER_BUG(name) {#name, name, Output::nothing, 64, 2, 2}
Case const kCases[] = {
    MOYE_CASE(load_ok, Output::box),
    MOYE_CASE(expect_late_ok, Output::box),
    MOYE_CASE(load_no_wait, Output::box),
    MOYE_BUG(load_wait_by_one),
    MOYE_BUG(wrong_parity),
    MOYE_BUG(wrong_parity_of_producer),
    MOYE_BUG(expect_too_few),
    MOYE_BUG(expect_too_many),
    MOYE_BUG(expect_twice),
    MOYE_BUG(early_refill),
    {"load_over_stores_ok", load_over_stores<true>, Output::box},
    {"load_over_stores", load_over_stores<false>},
    MOYE_BUG(load_in_flight_at_exit),
    MOYE_CASE(load_edges_ok, Output::box),
    MOYE_BUG(load_misaligned),
    MOYE_BUG(load_between_pieces),
    MOYE_BUG(store_before_the_begin),
    MOYE_BUG(load_outside_smem),
    MOYE_BUG(load_rank),
    MOYE_BUG(load_no_map),
    MOYE_BUG(no_fence_after_init),
    MOYE_BUG(no_barrier_after_init),
    MOYE_BUG(uninitialized),
    MOYE_BUG(overwritten),
    MOYE_BUG(initialized_twice),
    MOYE_CASE(initialized_again_ok, Output::box),
    MOYE_CASE(arrive_orders_ok, Output::box),
    MOYE_BUG(arrive_too_early),
    MOYE_BUG(poll_forever),
    {"store_ok", store<StoreBug::none>, Output::two_boxes},
    {"store_late_fence_ok", store<StoreBug::late_fence>, Output::two_boxes},
    {"store_no_fence", store<StoreBug::no_fence>},
    {"store_no_barrier", store<StoreBug::no_barrier>},
    {"store_no_wait", store<StoreBug::no_wait>, Output::two_boxes},
    {"store_no_barrier_after_wait", store<StoreBug::no_barrier_after_wait>},
    {"store_no_wait_at_exit", store<StoreBug::no_wait_at_exit>},
    MOYE_CASE(store_two_buffers_ok, Output::four_boxes),
    MOYE_BUG(store_wait_off_by_one),
    MOYE_CASE(store_edges_ok, Output::edges),
    MOYE_BUG(store_to_input),
    MOYE_CASE(reduce_ok, Output::three_times, 64, 2),
    MOYE_CASE(ring_ok, Output::everything, 64, 2),
    {"ring_of_one_ok", ring_ok, Output::everything, 64, 1},
    {"ring_of_a_cluster_ok", ring_ok, Output::everything, 64, 2, 2},
    {"multicast_ok", multicast<MulticastBug::none>, Output::columns, 64, 2, 2},
    {"multicast_no_wait_for_peer", multicast<MulticastBug::no_wait_for_peer>, Output::nothing, 64, 2, 2},
    {"multicast_half_expected", multicast<MulticastBug::half_expected>, Output::nothing, 64, 2, 2},
    {"multicast_wrong_mask", multicast<MulticastBug::wrong_mask>, Output::nothing, 64, 2, 2},
    {"multicast_no_wait_at_exit", multicast<MulticastBug::no_wait_at_exit>, Output::nothing, 64, 2, 2},
    MOYE_CASE(remote_arrive_ok, Output::box, 64, 2, 2),
    MOYE_CLUSTER_BUG(remote_arrive_not_waited),
    MOYE_CLUSTER_BUG(remote_arrive_before_init),
    MOYE_CLUSTER_BUG(remote_arrive_no_fence),
    MOYE_CLUSTER_BUG(remote_arrive_no_cta),
    MOYE_CLUSTER_BUG(multicast_mask),
    {"peer_memory_ok", peer_memory<false, false>, Output::box, 64, 2, 2},
    {"peer_memory_relaxed", peer_memory<true, false>, Output::nothing, 64, 2, 2},
    {"peer_memory_left", peer_memory<false, true>, Output::nothing, 64, 2, 2},
    MOYE_CLUSTER_BUG(cluster_wait_alone),
    MOYE_CLUSTER_BUG(cluster_arrive_twice),
    MOYE_CASE(cluster_exit_ok, Output::box, 64, 2, 2),
    MOYE_CLUSTER_BUG(cluster_deadlock),
    {"registers_ok", registers<40, 232>, Output::box, 384},
    {"registers_24_240_ok", registers<24, 240>, Output::box, 384},
    {"registers_too_many", registers<40, 240>, Output::nothing, 384},
    {"registers_up_is_down", registers<40, 160>, Output::nothing, 384},
    {"overlap_ok", overlap<OverlapBug::none>, Output::box, 64, 1, 1, true},
    {"overlap_load_first", overlap<OverlapBug::load_first>, Output::nothing, 64, 1, 1, true},
    {"overlap_one_waits", overlap<OverlapBug::one_waits>, Output::nothing, 64, 1, 1, true},
    {"no_overlap_ok", overlap<OverlapBug::load_first>, Output::box},
    MOYE_CASE(elect_ok, Output::box),
};
#undef MOYE_CASE
#undef MOYE_BUG
#undef MOYE_CLUSTER_BUG

constexpr uint32_t kUntouched = 0xeeeeeeeeu;

// What word (row, column) of `out` should be.
uint32_t expected(Output output, int row, int column) {
  auto const value = static_cast<uint32_t>(row * kSize + column);
  bool written = false;
  switch (output) {
    case Output::nothing:
      break;
    case Output::box:
      written = row < 16 && column < 16;
      break;
    case Output::two_boxes:
      written = row < 32 && column < 16;
      break;
    case Output::four_boxes:
      written = column < 16;
      break;
    case Output::columns:
      written = column < 32;
      break;
    case Output::everything:
      written = true;
      break;
    case Output::edges:
      written = (row < 16 && (column < 16 || column >= 60)) || (row >= 60 && column < 16);
      break;
    case Output::three_times:
      if (row < 16 && column < 16) return kUntouched + 3 * value;
      break;
  }
  return written ? value : kUntouched;
}

TensorMapSpec spec(void const* address) {
  return {.type = TensorMapType::u32,
          .rank = 2,
          .address = address,
          .sizes = {kSize, kSize},
          .strides = {4 * kSize},
          .box = {kBox, kBox}};
}

void run(Case const& c, emu::Options const& options, bool undeclared) {
  emu::GuardedBuffer in{kSize * kSize * 4, 256}, out{kSize * kSize * 4, 256};
  auto* const in_words = reinterpret_cast<uint32_t*>(in.data());
  auto* const out_words = reinterpret_cast<uint32_t*>(out.data());
  for (uint32_t i = 0; i < kSize * kSize; ++i) in_words[i] = i, out_words[i] = kUntouched;
  emu::Stream stream;
  stream.options = options;
  stream.memory = {{out.data(), out.size(), "out", true}};
  if (!undeclared) stream.memory.push_back({in.data(), in.size(), "in", false});
  Maps maps;
  Status status = make_tensor_map(&maps.in, spec(in_words));
  if (status.ok()) status = make_tensor_map(&maps.out, spec(out_words));
  if (status.ok()) {
    status = launch_kernel(c.kernel,
                           {.grid = {c.grid, 1, 1},
                            .block = {c.threads, 1, 1},
                            .cluster = {c.cluster, 1, 1},
                            .smem_bytes = 4 * kBoxBytes + 64,
                            .programmatic = c.programmatic},
                           &stream, maps, out_words);
  }
  if (!status.ok()) {
    std::printf("%s\n", status.message.c_str());
    return;
  }
  int wrong = 0;
  for (int row = 0; row < kSize; ++row) {
    for (int column = 0; column < kSize; ++column) {
      wrong += out_words[row * kSize + column] != expected(c.output, row, column);
    }
  }
  if (wrong != 0) {
    std::printf("%d wrong\n", wrong);
    return;
  }
  emu::Counters const& n = stream.counters;
  std::printf(
      "ok\nphases=%llu arrivals=%llu waits=%llu fences=%llu loads=%llu %llu %llu stores=%llu %llu clusters=%llu\n",
      (unsigned long long)n.mbarrier_phases, (unsigned long long)n.mbarrier_arrivals,
      (unsigned long long)n.mbarrier_waits, (unsigned long long)n.proxy_fences, (unsigned long long)n.tma_loads,
      (unsigned long long)n.tma_load_bytes, (unsigned long long)n.tma_smem_bytes, (unsigned long long)n.tma_stores,
      (unsigned long long)n.tma_store_bytes, (unsigned long long)n.cluster_barriers);
}

// Specs that the hardware cannot do, one message a line.
void print_specs() {
  alignas(16) static unsigned char memory[64];
  TensorMapSpec const good{.type = TensorMapType::bf16,
                           .rank = 3,
                           .address = memory,
                           .sizes = {64, 64, 64},
                           .strides = {128, 8192},
                           .box = {64, 64, 1},
                           .swizzle = TensorMapSwizzle::b128};
  auto print = [&](auto const& change) {
    TensorMapSpec spec = good;
    change(spec);
    TensorMap map;
    Status const status = make_tensor_map(&map, spec);
    std::printf("%s\n", status.ok() ? "ok" : status.message.c_str());
  };
  print([](TensorMapSpec&) {});
  print([](TensorMapSpec& spec) { spec.rank = 6; });
  print([](TensorMapSpec& spec) { spec.address = memory + 8; });
  print([](TensorMapSpec& spec) { spec.sizes[1] = 0; });
  print([](TensorMapSpec& spec) { spec.sizes[2] = (uint64_t{1} << 32) + 1; });
  print([](TensorMapSpec& spec) { spec.strides[0] = 136; });
  print([](TensorMapSpec& spec) { spec.strides[1] = uint64_t{1} << 40; });
  print([](TensorMapSpec& spec) { spec.box[1] = 257; });
  print([](TensorMapSpec& spec) { spec.box[2] = 0; });
  print([](TensorMapSpec& spec) { spec.box[0] = 4; });
  print([](TensorMapSpec& spec) { spec.box[0] = 72; });
  print([](TensorMapSpec& spec) { spec.swizzle = TensorMapSwizzle::b64; });
  print([](TensorMapSpec& spec) { spec.type = TensorMapType::u16, spec.fill = TensorMapFill::nan; });
}

// What launchers of persistent kernels are told.
void print_device(emu::Options options) {
  options.multiprocessors = 3;
  options.max_blocks_per_multiprocessor = 2;
  emu::Stream stream;
  stream.options = options;
  int multiprocessors = 0, blocks = 0, clusters = 0;
  LaunchConfig const config{.grid = {1, 1, 1}, .block = {64, 1, 1}, .cluster = {4, 1, 1}, .smem_bytes = 0};
  device_multiprocessors(&stream, &multiprocessors);
  max_active_blocks(load_ok, 64, 0, &stream, &blocks);
  max_active_clusters(load_ok, config, &stream, &clusters);
  std::printf("%d %d %d\n", multiprocessors, blocks, clusters);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::string const name = argv[1];
  bool const undeclared = name == "stale_map";  // its memory was given back
  emu::Options const options = options_from(argc, argv, 2);
  if (name == "specs") return print_specs(), 0;
  if (name == "device") return print_device(options), 0;
  for (Case const& c : kCases) {
    if (name == c.name || (undeclared && std::string(c.name) == "load_ok")) return run(c, options, undeclared), 0;
  }
  if (name == "list") {
    for (Case const& c : kCases) std::printf("%s\n", c.name);
    return 0;
  }
  return 2;
}
