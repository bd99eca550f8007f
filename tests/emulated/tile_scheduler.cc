// tile_coord takes every tile of every grid up to 64 x 64 exactly once, for super_m 1 to 16, and stays inside a group
// of super_m rows of tiles; that of a TileGrid, which multiplies, is the same. Prints a number for each order, for the
// same formula in Python to be held against; exits with 1 if an order is wrong. And batch_coord divides exactly.
#include "gemm/tile_scheduler.h"

#include <cstdio>
#include <vector>

#include "gemm/batch.h"

namespace moye {

bool same(TileCoord const& left, TileCoord const& right) {
  return left.m == right.m && left.n == right.n && left.batch == right.batch && left.k == right.k;
}

/// The order's number: of the code of each tile's place, weighted with its turn. 0: not a bijection.
uint64_t check(unsigned tiles_m, unsigned tiles_n, unsigned batch, unsigned super_m) {
  unsigned const tiles = tiles_m * tiles_n * batch;
  std::vector<char> seen(tiles, 0);
  uint64_t number = 1;
  TileGrid const grid = make_grid(tiles_m, tiles_n, super_m);
  for (unsigned tile = 0; tile < tiles; ++tile) {
    TileCoord const coord = tile_coord(tile, tiles_m, tiles_n, super_m);
    if (!same(tile_coord(tile, grid), coord)) {
      std::printf("super_m %u, grid %u x %u: tile %u lies elsewhere in a TileGrid\n", super_m, tiles_m, tiles_n, tile);
      return 0;
    }
    bool const inside = coord.m >= 0 && unsigned(coord.m) < tiles_m && coord.n >= 0 && unsigned(coord.n) < tiles_n &&
                        coord.batch >= 0 && unsigned(coord.batch) < batch;
    unsigned const group = tile % (tiles_m * tiles_n) / (super_m * tiles_n);
    if (!inside || unsigned(coord.m) / super_m != group ||
        seen[(coord.batch * tiles_m + coord.m) * tiles_n + coord.n]++) {
      std::printf("super_m %u, grid %u x %u x %u: tile %u is (%d, %d, %d)\n", super_m, tiles_m, tiles_n, batch, tile,
                  coord.m, coord.n, coord.batch);
      return 0;
    }
    uint64_t const code = uint64_t(coord.m * 64 + coord.n + 1);
    number += (tile + 1) * code * code;
  }
  return number;
}

/// Tiles around those with which a matrix, a group and a column begin, and the last ones, of grids as large as a launch
/// may have.
bool check_large(unsigned tiles_m, unsigned tiles_n, unsigned batch, unsigned super_m) {
  TileGrid const grid = make_grid(tiles_m, tiles_n, super_m);
  uint64_t const tiles = uint64_t(tiles_m) * tiles_n * batch;
  for (uint64_t const step :
       {uint64_t(1), uint64_t(grid.super_m), uint64_t(grid.super_m) * tiles_n, uint64_t(tiles_m) * tiles_n}) {
    for (uint64_t turn = 1; turn * step <= tiles; turn = turn * 3 + 1) {
      for (uint64_t const tile : {turn * step - 1, turn * step, tiles - turn * step, tiles - 1}) {
        if (tile < tiles &&
            !same(tile_coord(unsigned(tile), grid), tile_coord(unsigned(tile), tiles_m, tiles_n, super_m)))
          return false;
      }
    }
  }
  return true;
}

int check_grids() {
  for (unsigned super_m = 1; super_m <= 16; ++super_m) {
    for (unsigned m = 1; m <= 64; ++m) {
      for (unsigned n = 1; n <= 64; ++n) {
        uint64_t const number = check(m, n, 1, super_m);
        if (number == 0) return 1;
        std::printf("%llu\n", static_cast<unsigned long long>(number));
      }
    }
    for (unsigned m = 1; m <= 20; ++m) {
      for (unsigned n = 1; n <= 20; ++n) {
        if (check(m, n, 3, super_m) == 0) return 1;
      }
    }
  }
  // The largest grids a launch may have: no intermediate of the formula overflows.
  unsigned const last = 0x7ffffffe;
  for (unsigned super_m : {1u, 8u, 0x7fffffffu}) {
    TileCoord const row = tile_coord(last, 1, 0x7fffffff, super_m);
    TileCoord const column = tile_coord(last, 0x7fffffff, 1, super_m);
    if (row.m != 0 || row.n != int(last) || row.batch != 0) return 1;
    if (column.m != int(last) || column.n != 0 || column.batch != 0) return 1;
    for (unsigned const m : {1u, 3u, 7u, 12u, 641u, 32769u, 1u << 20, 6700417u, 0x7fffffffu}) {
      for (unsigned const n : {1u, 2u, 7u, 131u, 32768u, 1u << 30, 0x7fffffffu}) {
        if (uint64_t(m) * n > 0x7fffffff) continue;
        if (!check_large(m, n, 1, super_m) || !check_large(m, n, 0x7fffffff / (m * n), super_m)) return 1;
      }
    }
  }
  return 0;
}

bool divides(int outer, int middle, int inner, int matrix) {
  BatchCoord const coord = batch_coord(make_batch_sizes(outer, middle, inner), matrix);
  return coord.modes[0] == matrix / inner / middle && coord.modes[1] == matrix / inner % middle &&
         coord.modes[2] == matrix % inner;
}

/// Every number of small batches; of large ones those around multiples of both modes, and the last.
int check_batches() {
  for (int outer = 1; outer <= 4; ++outer) {
    for (int middle = 1; middle <= 12; ++middle) {
      for (int inner = 1; inner <= 40; ++inner) {
        for (int matrix = 0; matrix < outer * middle * inner; ++matrix) {
          if (!divides(outer, middle, inner, matrix)) return 1;
        }
      }
    }
  }
  constexpr int kLast = 0x7fffffff;
  int const sizes[] = {1,     2,     3,     5,       7,       12,      31,      32,        33,        127,       641,
                       32767, 32768, 32769, 1 << 20, 6700417, 1 << 29, 1 << 30, kLast / 3, kLast / 2, kLast - 1, kLast};
  for (int const inner : sizes) {
    for (int const middle : sizes) {
      if (middle > kLast / inner) continue;
      int const outer = kLast / inner / middle, matrices = outer * middle * inner;
      for (int64_t const step : {int64_t(inner), int64_t(inner) * middle}) {
        for (int64_t turn = 1; turn * step <= matrices; turn = turn * 3 + 1) {
          for (int64_t const number : {turn * step - 1, turn * step, matrices - turn * step, int64_t(matrices) - 1}) {
            if (number < matrices && !divides(outer, middle, inner, int(number))) return 1;
          }
        }
      }
    }
  }
  return 0;
}

}  // namespace moye

int main() { return moye::check_grids() != 0 || moye::check_batches() != 0; }
