// Which tile of d a CTA computes: tile id -> (m, n, batch).
#pragma once

#include "gemm/config.h"
#include "moye/arch/config.h"
#include "moye/arch/launch.h"
#include "moye/int_tuple.h"

namespace moye {

struct TileCoord {
  int m, n, batch;  // in tiles, in tiles, in matrices
};

/// Tiles run down `kSuperM` rows of tiles before they step one column to the right, so that the CTAs resident at one
/// time read few different rows of a and columns of b. The last group holds the rows that remain.
/// A bijection from [0, tiles_m * tiles_n * batch) for every size.
template <int kSuperM = 8>
MOYE_HOST_DEVICE constexpr TileCoord tile_coord(unsigned tile, unsigned tiles_m, unsigned tiles_n) {
  unsigned const tiles = tiles_m * tiles_n;
  unsigned const in_matrix = tile % tiles;
  unsigned const group = in_matrix / (kSuperM * tiles_n);
  unsigned const first_m = group * kSuperM;
  unsigned const rows = tiles_m - first_m < kSuperM ? tiles_m - first_m : kSuperM;
  unsigned const in_group = in_matrix - first_m * tiles_n;
  return {int(first_m + in_group % rows), int(in_group / rows), int(tile / tiles)};
}

/// The tiles of one call, the same for all its CTAs.
struct TileGrid {
  int m, n, k;  // tiles along each mode
};

/// Launches `kernel(args, grid)` with one CTA per tile of d. Nothing to write: nothing is launched.
template <class KernelFunction>
Status launch_tiles(KernelFunction* kernel, TileMNK const& tile, int threads, int smem_bytes, GemmArgs const& args,
                    StreamHandle stream) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return {};
  constexpr int64_t kMax = 0x7fffffff;  // CUDA's limit of gridDim.x, and what the kernels' 32-bit coordinates hold
  int64_t const m = ceil_div(args.m, tile.m), n = ceil_div(args.n, tile.n), k = ceil_div(args.k, tile.k);
  if (args.m > kMax - tile.m || args.n > kMax - tile.n || args.k > kMax - tile.k)
    return {"a size of m, n, k is over 2^31 - 1 less one tile"};
  if (m > kMax / n || m * n > kMax / args.batch) return {"d has more than 2^31 - 1 tiles"};
  LaunchConfig const config{
      .grid = {unsigned(m * n * args.batch)}, .block = {unsigned(threads)}, .smem_bytes = smem_bytes};
  return launch_kernel(kernel, config, stream, args, TileGrid{int(m), int(n), int(k)});
}

}  // namespace moye
