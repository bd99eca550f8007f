// D = A * B^T written against moye/arch alone: the emulator's own test object, so that its tests need no other part of
// the library. bf16 operands, f32 output; A (m,k), B (n,k), D (m,n), row-major; 128x128x32 tiles, cp.async ring,
// ldmatrix, mma.m16n8k16. Each planted Bug is one wrong line, marked.
#pragma once

#include "moye/arch/barrier.h"
#include "moye/arch/copy_sm75.h"
#include "moye/arch/copy_sm80.h"
#include "moye/arch/launch.h"
#include "moye/arch/mma_sm80.h"
#include "moye/arch/warp.h"

enum class Bug {
  none,
  no_wait,                // cp.async.wait_group is missing
  wait_off_by_one,        // one group too many may be in flight
  no_barrier,             // __syncthreads after the wait is missing
  refill_before_barrier,  // a stage is refilled while other warps may still read it
  overwrite_in_flight,    // the ring has one stage less than the loads assume
  stage_out_of_range,     // the ring has one stage more than there is memory for
  row_not_predicated,     // rows of A beyond m are read
  column_not_predicated,  // columns of D beyond n are written
  wrong_swizzle,          // ldmatrix looks where the data is not
  tile_overlap,           // two CTAs write the same columns of D
  write_operand,          // D is stored into A
};

struct Problem {
  moye::bfloat16_t const* a;
  moye::bfloat16_t const* b;
  float* d;
  int m, n, k;
};

template <int kStages, Bug kBug>
MOYE_KERNEL(128)
gemm_kernel(Problem p) {
  using namespace moye;
  constexpr int kTile = 128, kTileK = 32;
  constexpr int kOperandBytes = kTile * kTileK * 2, kStageBytes = 2 * kOperandBytes;
  unsigned char* const smem = smem_base();
  int const thread = static_cast<int>(thread_idx().x), lane = thread % 32, warp = thread / 32;
  int const warp_m = warp % 2 * 64, warp_n = warp / 2 * 64;
  int const tile_m = static_cast<int>(block_idx().x) * kTile;
  int const tile_n = static_cast<int>(block_idx().y) * (kBug == Bug::tile_overlap ? kTile - 1 : kTile);

  // Rows of 64 bytes, whose four 16-byte chunks are permuted by two bits of the row.
  auto place = [](int row, int chunk) { return row * 64 + ((chunk ^ (row >> 1 & 3)) << 4); };
  auto stage_of = [&](int tile) {
    if (kBug == Bug::stage_out_of_range) return smem + tile % (kStages + 1) * kStageBytes;
    if (kBug == Bug::overwrite_in_flight) return smem + tile % (kStages - 1) * kStageBytes;
    return smem + tile % kStages * kStageBytes;
  };
  auto load = [&](int tile) {
    unsigned char* const stage = stage_of(tile);
    for (int i = thread; i < kTile * 4; i += 128) {
      int const row = i / 4, chunk = i % 4, k = tile * kTileK + chunk * 8;
      int const left = k < p.k ? (p.k - k >= 8 ? 16 : (p.k - k) * 2) : 0;
      bool const in_a = kBug == Bug::row_not_predicated || tile_m + row < p.m;
      auto const* const a = reinterpret_cast<uint128_t const*>(p.a + static_cast<int64_t>(tile_m + row) * p.k + k);
      auto const* const b = reinterpret_cast<uint128_t const*>(p.b + static_cast<int64_t>(tile_n + row) * p.k + k);
      auto* const smem_a = reinterpret_cast<uint128_t*>(stage + place(row, chunk));
      auto* const smem_b = reinterpret_cast<uint128_t*>(stage + kOperandBytes + place(row, chunk));
      SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>::copy_zfill(*a, *smem_a, in_a ? left : 0);
      SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>::copy_zfill(*b, *smem_b, tile_n + row < p.n ? left : 0);
    }
  };

  float acc[4][8][4] = {};
  int const tiles = (p.k + kTileK - 1) / kTileK;
  for (int tile = 0; tile < kStages - 1; ++tile) {
    if (tile < tiles) load(tile);
    cp_async_commit_group();
  }
  for (int tile = 0; tile < tiles; ++tile) {
    if (kBug == Bug::refill_before_barrier) {
      if (tile + kStages - 1 < tiles) load(tile + kStages - 1);
      cp_async_commit_group();
      cp_async_wait_group<kStages - 1>();
      sync_threads();
    } else {
      if (kBug == Bug::wait_off_by_one) {
        cp_async_wait_group<kStages - 1>();
      } else if (kBug != Bug::no_wait) {
        cp_async_wait_group<kStages - 2>();
      }
      if (kBug != Bug::no_barrier) sync_threads();
      if (tile + kStages - 1 < tiles) load(tile + kStages - 1);
      cp_async_commit_group();
    }
    unsigned char const* const stage = stage_of(tile);
    for (int kk = 0; kk < 2; ++kk) {
      uint32_t a[4][4], b[4][4];
      for (int i = 0; i < 4; ++i) {
        int const row = warp_m + i * 16 + lane % 16, chunk = kk * 2 + lane / 16;
        int const where = kBug == Bug::wrong_swizzle ? row * 64 + ((chunk ^ (row & 3)) << 4) : place(row, chunk);
        SM75_U32x4_LDSM_N::copy(*reinterpret_cast<uint128_t const*>(stage + where), a[i][0], a[i][1], a[i][2], a[i][3]);
      }
      for (int j = 0; j < 4; ++j) {
        int const row = warp_n + j * 16 + lane % 8 + lane / 16 * 8, chunk = kk * 2 + lane / 8 % 2;
        SM75_U32x4_LDSM_N::copy(*reinterpret_cast<uint128_t const*>(stage + kOperandBytes + place(row, chunk)), b[j][0],
                                b[j][1], b[j][2], b[j][3]);
      }
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 8; ++j) {
          float (&c)[4] = acc[i][j];
          uint32_t const(&bj)[4] = b[j / 2];
          SM80_16x8x16_F32BF16BF16F32_TN::fma(c[0], c[1], c[2], c[3], a[i][0], a[i][1], a[i][2], a[i][3], bj[j % 2 * 2],
                                              bj[j % 2 * 2 + 1], c[0], c[1], c[2], c[3]);
        }
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 8; ++j) {
      for (int v = 0; v < 4; ++v) {
        int const row = tile_m + warp_m + i * 16 + v / 2 * 8 + lane / 4;
        int const column = tile_n + warp_n + j * 8 + lane % 4 * 2 + v % 2;
        if (row >= p.m || (kBug != Bug::column_not_predicated && column >= p.n)) continue;
        float* const d = kBug == Bug::write_operand ? reinterpret_cast<float*>(const_cast<bfloat16_t*>(p.a)) : p.d;
        d[static_cast<int64_t>(row) * p.n + column] = acc[i][j][v];
      }
    }
  }
}

template <int kStages, Bug kBug>
moye::Status launch_gemm(Problem const& p, moye::StreamHandle stream) {
  unsigned const grid_m = static_cast<unsigned>(p.m + 127) / 128, grid_n = static_cast<unsigned>(p.n + 127) / 128;
  return moye::launch_kernel(gemm_kernel<kStages, kBug>,
                             {.grid = {grid_m, grid_n, 1}, .block = {128, 1, 1}, .smem_bytes = kStages * 16384}, stream,
                             p);
}
