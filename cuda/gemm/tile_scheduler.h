// Which tile of d a CTA computes: tile id -> (m, n, batch).
#pragma once

#include "gemm/config.h"
#include "moye/arch/config.h"
#include "moye/arch/device.h"
#include "moye/arch/launch.h"
#include "moye/int_tuple.h"

namespace moye {

struct TileCoord {
  int m, n, batch;  // in tiles, in tiles, in matrices
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
  int m, n, k;  // tiles along each mode
  int super_m;  // rows of tiles that the order runs down before it steps right
  int tiles;    // of d, of all its matrices
};

MOYE_HOST_DEVICE constexpr TileCoord tile_coord(unsigned tile, TileGrid const& grid) {
  return tile_coord(tile, grid.m, grid.n, grid.super_m);
}

/// The tiles of a call with something to write.
inline Status make_tile_grid(TileMNK const& tile, GemmArgs const& args, TileGrid* grid) {
  constexpr int64_t kMax = 0x7fffffff;  // CUDA's limit of gridDim.x, and what the kernels' 32-bit coordinates hold
  int64_t const m = ceil_div(args.m, tile.m), n = ceil_div(args.n, tile.n), k = ceil_div(args.k, tile.k);
  if (args.m > kMax - tile.m || args.n > kMax - tile.n || args.k > kMax - tile.k)
    return {"a size of m, n, k is over 2^31 - 1 less one tile"};
  if (m > kMax / n || m * n > kMax / args.batch) return {"d has more than 2^31 - 1 tiles"};
  *grid = {.m = int(m), .n = int(n), .k = int(k), .super_m = kSuperM, .tiles = int(m * n * args.batch)};
  return {};
}

/// Launches `kernel(args, grid)` with one CTA per tile of d. Nothing to write: nothing is launched.
template <class KernelFunction>
Status launch_tiles(KernelFunction* kernel, TileMNK const& tile, int threads, int smem_bytes, GemmArgs const& args,
                    StreamHandle stream) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return {};
  TileGrid grid;
  if (Status status = make_tile_grid(tile, args, &grid); !status.ok()) return status;
  LaunchConfig const config{.grid = {unsigned(grid.tiles)}, .block = {unsigned(threads)}, .smem_bytes = smem_bytes};
  return launch_kernel(kernel, config, stream, args, grid);
}

/// The same with as many CTAs as the device runs at one time, if there are that many tiles: CTA i computes the tiles i,
/// i + CTAs, ...
template <class KernelFunction>
Status launch_persistent(KernelFunction* kernel, TileMNK const& tile, int threads, int smem_bytes, GemmArgs const& args,
                         StreamHandle stream) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return {};
  TileGrid grid;
  if (Status status = make_tile_grid(tile, args, &grid); !status.ok()) return status;
  int multiprocessors = 0, resident = 0;
  if (Status status = device_multiprocessors(stream, &multiprocessors); !status.ok()) return status;
  if (Status status = max_active_blocks(kernel, threads, smem_bytes, stream, &resident); !status.ok()) return status;
  if (resident == 0) return {"no multiprocessor of this device holds a CTA of the kernel"};
  int64_t const at_once = int64_t(multiprocessors) * resident;
  int const ctas = at_once < grid.tiles ? int(at_once) : grid.tiles;
  LaunchConfig const config{.grid = {unsigned(ctas)}, .block = {unsigned(threads)}, .smem_bytes = smem_bytes};
  return launch_kernel(kernel, config, stream, args, grid);
}

}  // namespace moye
