// Which tiles of d a CTA computes.
//   tile_coord      tile id -> (m, n, batch)
//   TileScheduler   the tiles of a CTA that stays for several, a range
#pragma once

#include "gemm/batch.h"
#include "gemm/config.h"
#include "moye/arch/builtin.h"
#include "moye/arch/config.h"
#include "moye/arch/status.h"
#include "moye/int_tuple.h"

namespace moye {

struct TileCoord {
  int m, n, batch;  // in tiles, in tiles, in matrices
  int k = 0;        // the first k-tile
};

inline constexpr int kSuperM = 8;  // rows of tiles, unless the host says otherwise

/// Tiles run down `super_m` rows of tiles before they step one column to the right, so that the CTAs resident at one
/// time read few different rows of a and columns of b. The last group holds the rows that remain.
/// A bijection from [0, tiles_m * tiles_n * batch) for every size and every super_m >= 1.
MOYE_HOST_DEVICE constexpr TileCoord tile_coord(unsigned tile, unsigned tiles_m, unsigned tiles_n,
                                                unsigned super_m = kSuperM) {
  unsigned const tiles = tiles_m * tiles_n;
  unsigned const in_matrix = tile % tiles;
  // More rows than there are would overflow; the order is the same.
  unsigned const group_m = super_m < tiles_m ? super_m : tiles_m;
  unsigned const group = in_matrix / (group_m * tiles_n);
  unsigned const first_m = group * group_m;
  unsigned const rows = tiles_m - first_m < group_m ? tiles_m - first_m : group_m;
  unsigned const in_group = in_matrix - first_m * tiles_n;
  return {int(first_m + in_group % rows), int(in_group / rows), int(tile / tiles)};
}

/// The tiles of one call, the same for all its CTAs.
struct TileGrid {
  int m, n, k;  // tiles along each mode; where k is split, of one part
  int super_m;  // rows of tiles that the order runs down before it steps right
  int tiles;    // of d, of all its matrices; where k is split, as many for each part
  struct {
    Divisor matrix, group;    // by the tiles of a matrix, of a group of rows of tiles
    Divisor rows, last_rows;  // by the rows of a group, of the last group
  } by;
  int parts = 1;  // of k, each of which has a matrix of sums: those of one matrix of d lie one behind the other
};

/// The same, by multiplications: it stands in front of the first load, where nothing hides what it takes.
MOYE_HOST_DEVICE constexpr TileCoord tile_coord(unsigned tile, TileGrid const& grid) {
  unsigned const matrix = divide(tile, grid.by.matrix);
  unsigned const in_matrix = tile - matrix * unsigned(grid.m * grid.n);
  unsigned const group = divide(in_matrix, grid.by.group);
  unsigned const first_m = group * unsigned(grid.super_m);
  unsigned const in_group = in_matrix - first_m * unsigned(grid.n);
  bool const is_last = unsigned(grid.m) - first_m < unsigned(grid.super_m);
  unsigned const rows = is_last ? unsigned(grid.m) - first_m : unsigned(grid.super_m);
  unsigned const column = divide(in_group, is_last ? grid.by.last_rows : grid.by.rows);
  return {int(first_m + in_group - column * rows), int(column), int(matrix)};
}

/// Host. What tile_coord needs of a grid of m x n tiles: m * n < 2^31.
constexpr TileGrid make_grid(unsigned m, unsigned n, unsigned super_m) {
  unsigned const rows = super_m < m ? super_m : m, last = m % rows;
  return {.m = int(m),
          .n = int(n),
          .k = 0,
          .super_m = int(rows),
          .tiles = int(m * n),
          .by = {.matrix = make_divisor(m * n),
                 .group = make_divisor(rows * n),
                 .rows = make_divisor(rows),
                 .last_rows = make_divisor(last > 0 ? last : rows)}};
}

/// The tiles of a call with something to write.
inline Status make_tile_grid(TileMNK const& tile, GemmArgs const& args, TileGrid* grid) {
  constexpr int64_t kMax = 0x7fffffff;  // CUDA's limit of gridDim.x, and what the kernels' 32-bit coordinates hold
  int64_t const m = ceil_div(args.m, tile.m), n = ceil_div(args.n, tile.n), k = ceil_div(args.k, tile.k);
  if (args.m > kMax - tile.m || args.n > kMax - tile.n || args.k > kMax - tile.k)
    return {"a size of m, n, k is over 2^31 - 1 less one tile"};
  if (m > kMax / n || m * n > kMax / args.batch) return {"d has more than 2^31 - 1 tiles"};
  *grid = make_grid(unsigned(m), unsigned(n), kSuperM);
  grid->k = int(k);
  grid->tiles = int(m * n * args.batch);
  return {};
}

/// What is multiplied for a tile: the matrix of the operands and the first k-tile, where the tile's matrix is that of a
/// part of k.
MOYE_HOST_DEVICE constexpr TileCoord operand_tile(TileCoord const& tile, TileGrid const& grid) {
  return {tile.m, tile.n, tile.batch / grid.parts, tile.batch % grid.parts * grid.k};
}

/// The tiles of one CTA of a persistent kernel, as a range: `for (TileCoord tile : TileScheduler<>(grid))`.
/// A cluster's first tile is the one of its index, the next ones lie as many further as the grid has clusters. `grid`
/// counts tiles of whole clusters, kClusterM x kClusterN CTAs; what the range holds are this CTA's own tiles in them.
/// turn, turns: every turns-th of these tiles, from the one at `turn` on, for a consumer that takes turns with others.
template <int kClusterM = 1, int kClusterN = 1>
class TileScheduler {
  static constexpr unsigned kCluster = kClusterM * kClusterN;

 public:
  struct End {};
  class Iterator {
   public:
    MOYE_DEVICE Iterator(TileGrid const& grid, unsigned id, unsigned step) : grid_(grid), id_(id), step_(step) {}
    MOYE_DEVICE TileCoord operator*() const {
      TileCoord tile = tile_coord(id_, grid_);
      if constexpr (kCluster > 1) {
        int const rank = int(block_idx().x % kCluster);
        tile.m = tile.m * kClusterM + rank % kClusterM;
        tile.n = tile.n * kClusterN + rank / kClusterM;
      }
      return tile;
    }
    MOYE_DEVICE Iterator& operator++() {
      id_ += step_;
      return *this;
    }
    MOYE_DEVICE bool operator!=(End) const { return id_ < unsigned(grid_.tiles); }

   private:
    TileGrid const& grid_;
    unsigned id_, step_;
  };

  MOYE_DEVICE explicit TileScheduler(TileGrid const& grid, int turn = 0, int turns = 1)
      : grid_(grid), turn_(unsigned(turn)), turns_(unsigned(turns)) {}

  MOYE_DEVICE Iterator begin() const {
    unsigned const clusters = grid_dim().x / kCluster;
    return {grid_, block_idx().x / kCluster + turn_ * clusters, turns_ * clusters};
  }
  MOYE_DEVICE End end() const { return {}; }

 private:
  TileGrid const& grid_;
  unsigned turn_, turns_;
};

}  // namespace moye
