// tile_coord takes every tile of every grid exactly once, and stays inside a group of kSuperM rows of tiles.
#include "gemm/tile_scheduler.h"

#include <cstdio>
#include <vector>

namespace moye {

template <int kSuperM>
int check(unsigned tiles_m, unsigned tiles_n, unsigned batch) {
  unsigned const tiles = tiles_m * tiles_n * batch;
  std::vector<int> seen(tiles, 0);
  for (unsigned tile = 0; tile < tiles; ++tile) {
    TileCoord const coord = tile_coord<kSuperM>(tile, tiles_m, tiles_n);
    bool const inside = coord.m >= 0 && unsigned(coord.m) < tiles_m && coord.n >= 0 && unsigned(coord.n) < tiles_n &&
                        coord.batch >= 0 && unsigned(coord.batch) < batch;
    unsigned const group = tile % (tiles_m * tiles_n) / (kSuperM * tiles_n);
    if (!inside || unsigned(coord.m) / kSuperM != group ||
        seen[(coord.batch * tiles_m + coord.m) * tiles_n + coord.n]++) {
      std::printf("super_m %d, grid %u x %u x %u: tile %u is (%d, %d, %d)\n", kSuperM, tiles_m, tiles_n, batch, tile,
                  coord.m, coord.n, coord.batch);
      return 1;
    }
  }
  return 0;
}

int check_grids() {
  for (unsigned m = 1; m <= 20; ++m) {
    for (unsigned n = 1; n <= 20; ++n) {
      if (check<8>(m, n, 3) || check<1>(m, n, 1) || check<3>(m, n, 2)) return 1;
    }
  }
  // The largest grid a launch may have: no intermediate of the formula overflows.
  unsigned const last = 0x7ffffffe;
  TileCoord const coord = tile_coord<8>(last, 0x7fffffff, 1);
  return coord.m == int(last) && coord.n == 0 && coord.batch == 0 ? 0 : 1;
}

}  // namespace moye

int main() { return moye::check_grids(); }
