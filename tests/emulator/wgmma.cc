// wgmma CASE [option=value ...]: a kernel that breaks one rule of wgmma (or, named ..._ok, keeps them); prints the
// report or "ok", and for some cases what it found. A comment "@name" marks a line that test_wgmma.py expects in a
// report.
#include <cmath>

#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/copy_sm80.h"
#include "moye/arch/launch.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_traits_sm90.h"
#include "program.h"

namespace {

using namespace moye;
using GMMA::Major;
using GMMA::ScaleOut;
using Op = SM90_64x64x16_F32BF16BF16_SS<Major::K, Major::K>;
using OpRS = SM90_64x64x16_F32BF16BF16_RS<Major::K, Major::K>;
using Kernel = void (*)(float* out);

constexpr int kTileBytes = 64 * 64 * 2;
constexpr uint64_t kBaseOffset = 1ull << 49;
constexpr uint64_t kStrides = 0x3fff3fffull << 16;  // LBO and SBO

int tid() { return static_cast<int>(thread_idx().x); }

/// Tile i of shared memory: (64,64), K-major, 128-byte swizzle.
auto tile(int i) {
  return make_tensor(make_smem_ptr<1024>(reinterpret_cast<bfloat16_t*>(smem_base() + i * kTileBytes)),
                     tile_to_shape(gmma_smem_atom<Major::K, bfloat16_t>(), Shape<_64, _64>{}));
}
/// Of what one instruction reads of it.
uint64_t descriptor(int i, int k = 0) {
  return make_gmma_desc<Major::K>(local_tile(tile(i), Shape<_64, _16>{}, make_coord(0, k))).bits;
}
void fill(int i, float value) {
  auto const t = tile(i);
  int const threads = static_cast<int>(block_dim().x);
  for (int j = tid(); j < 64 * 64; j += threads) t(j % 64, j / 64) = bfloat16_t(value);  // @fill
}
/// Two tiles of ones, visible to wgmma.
void fill_two() {
  fill(0, 1);
  fill(1, 1);
  fence_proxy_async_shared_cta();
  sync_threads();
}
/// A is 1, B is 1: every element of D is 16 times `products`.
void write_out(Op::DRegisters const& d, float* out) {
  for (int i = 0; i < 32; ++i) out[32 * tid() + i] = d[i];
}
/// One product, waited for.
void multiply(Op::DRegisters& d, uint64_t a, uint64_t b, ScaleOut scale = ScaleOut::Zero MOYE_LOC) {
  MOYE_SITE;
  warpgroup_arrive();
  Op::fma(d, a, b, scale);
  warpgroup_commit_group();
  warpgroup_wait_group<0>();
}

MOYE_KERNEL(128)
multiply_ok(float* out) {
  fill_two();
  Op::DRegisters d = {};
  multiply(d, descriptor(0), descriptor(1), ScaleOut::One);
  multiply(d, descriptor(0, 3), descriptor(1, 3), ScaleOut::One);
  for (float& x : d) x += 8;
  warpgroup_arrive();
  for (int k = 0; k < 2; ++k) Op::fma(d, descriptor(0, k), descriptor(1, k), ScaleOut::One);
  warpgroup_commit_group();
  Op::DRegisters other;
  Op::fma(other, descriptor(0), descriptor(1), ScaleOut::Zero);
  warpgroup_commit_group();
  warpgroup_wait_group<1>();
  float const first = d[0];  // of the first group: done
  warpgroup_wait_group<0>();
  for (int i = 0; i < 32; ++i) d[i] += other[i] + first - first;
  write_out(d, out);  // 32 + 8 + 32 + 16
}

/// Two stages, one group in flight: a stage is written again only when all four warps have waited for its reader.
MOYE_KERNEL(128)
pipeline_ok(float* out) {
  fill(0, 1);
  fill(2, 1);
  fence_proxy_async_shared_cta();
  sync_threads();
  Op::DRegisters d = {};
  for (int k = 0; k < 5; ++k) {
    int const stage = k % 2;
    warpgroup_arrive();
    Op::fma(d, descriptor(2 * stage), descriptor(2 * stage), ScaleOut::One);
    warpgroup_commit_group();
    warpgroup_wait_group<1>();
    sync_threads();
    if (k < 4) {
      fill(2 * (1 - stage), static_cast<float>(k + 2));
      fence_proxy_async_shared_cta();
    }
    sync_threads();
  }
  warpgroup_wait_group<0>();
  write_out(d, out);  // 16 * (1 + 4 + 9 + 16 + 25)
}

MOYE_KERNEL(128)
no_arrive(float*) {
  fill_two();
  Op::DRegisters d = {};
  Op::fma(d, descriptor(0), descriptor(1), ScaleOut::One);  // @no_arrive
}

MOYE_KERNEL(128)
no_arrive_after_wait(float*) {
  fill_two();
  Op::DRegisters d = {};
  multiply(d, descriptor(0), descriptor(1));
  for (float& x : d) x *= 2;
  Op::fma(d, descriptor(0), descriptor(1), ScaleOut::One);  // @no_arrive_after_wait
}

MOYE_KERNEL(128)
no_proxy_fence(float*) {
  fill(0, 1);
  fence_proxy_async_shared_cta();
  fill(1, 1);
  sync_threads();
  Op::DRegisters d;
  multiply(d, descriptor(0), descriptor(1));  // @no_proxy_fence
}

MOYE_KERNEL(128)
fence_before_store(float*) {
  fence_proxy_async_shared_cta();
  fill(0, 1);
  sync_threads();
  Op::DRegisters d;
  multiply(d, descriptor(0), descriptor(0));  // @fence_before_store
}

MOYE_KERNEL(128)
no_proxy_fence_after_copy(float* out) {
  using Copy = SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>;
  auto const* const in = reinterpret_cast<uint128_t const*>(out);
  auto* const smem = reinterpret_cast<uint128_t*>(smem_base());
  for (int i = tid(); i < kTileBytes / 16; i += 128) Copy::copy(in[i], smem[i]);  // @no_proxy_fence_after_copy cp.async
  cp_async_wait_all();
  sync_threads();
  Op::DRegisters d;
  multiply(d, descriptor(0), descriptor(0));  // @no_proxy_fence_after_copy wgmma
}

MOYE_KERNEL(128)
no_barrier(float*) {
  fill(0, 1);
  fence_proxy_async_shared_cta();
  Op::DRegisters d;
  multiply(d, descriptor(0), descriptor(0));  // @no_barrier
}

MOYE_KERNEL(128)
overwritten_in_flight(float*) {
  fill_two();
  Op::DRegisters d;
  warpgroup_arrive();
  Op::fma(d, descriptor(0), descriptor(1), ScaleOut::Zero);  // @overwritten_in_flight wgmma
  warpgroup_commit_group();
  if (tid() == 0) *reinterpret_cast<uint32_t*>(smem_base()) = 0;  // @overwritten_in_flight store
  warpgroup_wait_group<0>();
}

MOYE_KERNEL(128)
wait_off_by_one(float*) {
  fill_two();
  Op::DRegisters d;
  warpgroup_arrive();
  Op::fma(d, descriptor(0), descriptor(1), ScaleOut::Zero);
  warpgroup_commit_group();
  Op::fma(d, descriptor(0, 1), descriptor(1, 1), ScaleOut::One);  // @wait_off_by_one wgmma
  warpgroup_commit_group();
  warpgroup_wait_group<1>();
  sync_threads();
  fill(0, 2);
  warpgroup_wait_group<0>();
}

/// The wait of a warp says nothing about the other three's reads of B.
MOYE_KERNEL(128)
wait_of_one_warp(float*) {
  fill_two();
  Op::DRegisters d;
  multiply(d, descriptor(0), descriptor(1));  // @wait_of_one_warp wgmma
  sync_warp(kFullWarp);
  if (tid() == 0) *reinterpret_cast<uint32_t*>(smem_base() + kTileBytes) = 0;  // @wait_of_one_warp store
}

MOYE_KERNEL(128)
uncommitted(float*) {
  fill_two();
  Op::DRegisters d;
  warpgroup_arrive();
  Op::fma(d, descriptor(0), descriptor(1), ScaleOut::Zero);  // @uncommitted
  warpgroup_wait_group<0>();
}

MOYE_KERNEL(128)
no_wait(float*) {
  fill_two();
  Op::DRegisters d;
  warpgroup_arrive();
  Op::fma(d, descriptor(0), descriptor(1), ScaleOut::Zero);  // @no_wait
  warpgroup_commit_group();
}

/// Accumulators hold nothing until the wait, whatever the mode.
MOYE_KERNEL(128)
read_in_flight(float* out) {
  fill_two();
  Op::DRegisters d = {};
  warpgroup_arrive();
  Op::fma(d, descriptor(0), descriptor(1), ScaleOut::One);
  warpgroup_commit_group();
  write_out(d, out);
  warpgroup_wait_group<0>();
}

MOYE_KERNEL(128)
written_in_flight(float*) {
  fill_two();
  Op::DRegisters d = {};
  warpgroup_arrive();
  Op::fma(d, descriptor(0), descriptor(1), ScaleOut::One);
  warpgroup_commit_group();
  if (tid() == 70) d[7] = 1;
  warpgroup_wait_group<0>();  // @written_in_flight
}

MOYE_KERNEL(128)
another_shape_in_flight(float*) {
  fill_two();
  Op::DRegisters d = {};
  warpgroup_arrive();
  Op::fma(d, descriptor(0), descriptor(1), ScaleOut::One);
  using Narrow = SM90_64x32x16_F32BF16BF16_SS<Major::K, Major::K>;
  auto& half = reinterpret_cast<Narrow::DRegisters&>(d);
  Narrow::fma(half, descriptor(0), descriptor(1), ScaleOut::One);  // @another_shape_in_flight
}

MOYE_KERNEL(128)
three_warps(float*) {
  fill_two();
  Op::DRegisters d;
  if (tid() < 96) multiply(d, descriptor(0), descriptor(1));  // @three_warps
}

MOYE_KERNEL(128)
two_descriptors_in_a_warpgroup(float*) {
  fill_two();
  Op::DRegisters d;
  multiply(d, descriptor(0), descriptor(tid() / 64));  // @two_descriptors_in_a_warpgroup
}

MOYE_KERNEL(128)
two_descriptors_in_a_warp(float*) {
  fill_two();
  Op::DRegisters d;
  multiply(d, descriptor(0), descriptor(1, tid() == 37));  // @two_descriptors_in_a_warp
}

MOYE_KERNEL(96)
incomplete_warpgroup(float*) {
  Op::DRegisters d;
  Op::fma(d, descriptor(0), descriptor(1), ScaleOut::Zero);  // @incomplete_warpgroup
}

MOYE_KERNEL(128)
misaligned_tile(float*) {
  fill_two();
  Op::DRegisters d;
  multiply(d, descriptor(0) + 8, descriptor(1));  // @misaligned_tile
}

MOYE_KERNEL(128)
base_offset(float*) {
  fill_two();
  Op::DRegisters d;
  multiply(d, descriptor(0) | kBaseOffset, descriptor(1));  // @base_offset
}

MOYE_KERNEL(128)
pointer_for_descriptor(float*) {
  fill_two();
  Op::DRegisters d;
  multiply(d, descriptor(0), 0x00007f00a5a5c400ull);  // @pointer_for_descriptor
}

MOYE_KERNEL(128)
no_stride(float*) {
  fill_two();
  Op::DRegisters d;
  multiply(d, descriptor(0), descriptor(1) & ~kStrides);  // @no_stride
}

MOYE_KERNEL(128)
stride_out_of_range(float*) {
  fill_two();
  Op::DRegisters d;
  multiply(d, descriptor(0), descriptor(1) | 1ull << 42);  // @stride_out_of_range
}

/// The descriptor of another swizzle: no report, but not the product either.
MOYE_KERNEL(128)
wrong_swizzle(float* out) {
  auto const t = tile(0);
  for (int j = tid(); j < 64 * 64; j += 128) t(j % 64, j / 64) = bfloat16_t(j / 64 < 16 ? 1.f : 0.f);
  fill(1, 1);
  fence_proxy_async_shared_cta();
  sync_threads();
  Op::DRegisters d;
  multiply(d, descriptor(0) ^ 3ull << 62, descriptor(1));  // 64 bytes for 128
  write_out(d, out);
}

MOYE_KERNEL(128)
registers_of_a_ok(float* out) {
  fill_two();
  Op::DRegisters d;
  OpRS::ARegisters a = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  warpgroup_arrive();
  OpRS::fma(d, a, descriptor(1), ScaleOut::Zero);
  warpgroup_commit_group();
  warpgroup_wait_group<0>();
  write_out(d, out);
}

MOYE_KERNEL(128)
registers_of_a_written(float* out) {
  fill_two();
  Op::DRegisters d;
  OpRS::ARegisters a = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  warpgroup_arrive();
  OpRS::fma(d, a, descriptor(1), ScaleOut::Zero);  // @registers_of_a_written
  warpgroup_commit_group();
  a[2] = 0;
  warpgroup_wait_group<0>();
  write_out(d, out);
}

// -----------------------------------------------------------------------------------------------------------------
// main

struct Case {
  char const* name;
  Kernel kernel;
};
#define MOYE_CASE(name) {#name, name}
Case const kCases[] = {
    MOYE_CASE(multiply_ok),
    MOYE_CASE(pipeline_ok),
    MOYE_CASE(no_arrive),
    MOYE_CASE(no_arrive_after_wait),
    MOYE_CASE(no_proxy_fence),
    MOYE_CASE(fence_before_store),
    MOYE_CASE(no_proxy_fence_after_copy),
    MOYE_CASE(no_barrier),
    MOYE_CASE(overwritten_in_flight),
    MOYE_CASE(wait_off_by_one),
    MOYE_CASE(wait_of_one_warp),
    MOYE_CASE(uncommitted),
    MOYE_CASE(no_wait),
    MOYE_CASE(read_in_flight),
    MOYE_CASE(written_in_flight),
    MOYE_CASE(another_shape_in_flight),
    MOYE_CASE(three_warps),
    MOYE_CASE(two_descriptors_in_a_warpgroup),
    MOYE_CASE(two_descriptors_in_a_warp),
    MOYE_CASE(incomplete_warpgroup),
    MOYE_CASE(misaligned_tile),
    MOYE_CASE(base_offset),
    MOYE_CASE(pointer_for_descriptor),
    MOYE_CASE(no_stride),
    MOYE_CASE(stride_out_of_range),
    MOYE_CASE(wrong_swizzle),
    MOYE_CASE(registers_of_a_ok),
    MOYE_CASE(registers_of_a_written),
};

}  // namespace

int main(int argc, char** argv) {
  std::string const name = argc > 1 ? argv[1] : "";
  for (Case const& one : kCases) {
    if (name != one.name) continue;
    static float out[128 * 64];
    emu::Stream stream;
    stream.options = options_from(argc, argv, 2);
    stream.memory = {{out, sizeof(out), "out", true}};
    LaunchConfig config;
    config.grid = {1, 1, 1};
    config.block = {name == "incomplete_warpgroup" ? 96u : 128u, 1, 1};
    config.smem_bytes = 4 * kTileBytes;
    Status const status = launch_kernel(one.kernel, config, &stream, static_cast<float*>(out));
    std::printf("%s\n", status.ok() ? "ok" : status.message.c_str());
    if (!status.ok()) return 1;
    // What the elements of D have in common.
    bool same = true;
    for (int i = 1; i < 128 * 32; ++i) same &= std::memcmp(&out[i], &out[0], sizeof(float)) == 0;
    std::printf("%g%s\n", static_cast<double>(std::isnan(out[0]) ? NAN : out[0]), same ? "" : " and others");
    return 0;
  }
  std::fprintf(stderr, "no such case\n");
  return 2;
}
