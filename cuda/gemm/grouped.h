// Products of groups: where a group begins and which tiles it has, found on the device from the groups' sizes.
//   ragged m   rows of a and of d are cut into groups: d[i] = a[i] * b[group of i]; rows behind the last group are zero
//   ragged k   k is cut into groups, and d has a matrix for each: d[g] = the sum over the k of group g
//   GroupTable       a CTA's table of groups in shared memory: make_group_table fills it in
//   GroupedTiles     the tiles of a CTA, a range; a tile never holds rows of two groups
//   of_groups        the modes of a tensor map that ends where a group does
#pragma once

#include "gemm/config.h"
#include "gemm/order.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/arch/warp.h"

namespace moye {

/// The mode that is cut into groups. TMA reads rows of a where k is contiguous, and k of both operands where it is not.
enum class Ragged { m, k };
template <Order kOrder>
inline constexpr Ragged kRaggedOf = kMajorOfA<kOrder> == Major::k ? Ragged::m : Ragged::k;
inline constexpr unsigned kGroupedOrders = order_bits(Order::NN, Order::NT, Order::TN);

/// A group, and its tiles. Behind the groups of a ragged m stands one more, of the rows that belong to none.
struct GroupTable {
  int begin[kMaxGroups + 2];       // of the ragged mode, elements
  int first_tile[kMaxGroups + 2];  // of all tiles; of ragged m alone: a group of ragged k has as many as any other
};

/// The tiles of a call as far as the host knows them.
struct GroupedGrid {
  int groups;
  int length;            // of the ragged mode
  int tiles_m, tiles_n;  // of one matrix of d: m is not known where it is ragged
  int k_tiles;           // where m is ragged
  int most_tiles;        // of d, whatever the sizes are
};

/// Host. The sizes have been checked to be below 2^31.
template <Ragged kRagged>
Status make_grouped_grid(TileMNK const& tile, GemmArgs const& args, GroupedGrid* grid) {
  constexpr int64_t kMax = 0x7fffffff;
  int64_t const groups = args.batch, length = kRagged == Ragged::m ? args.m : args.k;
  if (args.m > kMax - tile.m || args.n > kMax - tile.n || args.k > kMax - tile.k)
    return {"a size of m, n, k is over 2^31 - 1 less one tile"};
  int64_t const m = ceil_div(args.m, tile.m), n = ceil_div(args.n, tile.n), k = ceil_div(args.k, tile.k);
  // Each group has one tile that is not full at most, and so have the rows behind them.
  int64_t const rows_of_tiles = kRagged == Ragged::m ? m + groups : m * groups;
  if (rows_of_tiles > kMax / n) return {"d has more than 2^31 - 1 tiles"};
  *grid = {.groups = int(groups),
           .length = int(length),
           .tiles_m = int(m),
           .tiles_n = int(n),
           .k_tiles = int(k),
           .most_tiles = int(rows_of_tiles * n)};
  return {};
}

/// One warp, all lanes: the table of groups whose sizes are group_sizes[0], [1], ... A size below zero counts as zero,
/// and groups end where the ragged mode does. Behind it a barrier.
template <Ragged kRagged, int kTileM>
MOYE_DEVICE void make_group_table(GroupTable& table, GroupedGrid const& grid, int32_t const* group_sizes,
                                  int lane MOYE_LOC) {
  MOYE_SITE;
  constexpr int kEach = kMaxGroups / 32;
  // Lane i has so many groups, from i times as many on.
  int const each = (grid.groups + 31) / 32, first = lane * each;
  int const count = grid.groups - first < each ? grid.groups - first : each;  // below zero: none
  auto const limited = [&](int x, int y) {  // neither is below zero: their sum fits an unsigned
    unsigned const sum = unsigned(x) + unsigned(y), length = unsigned(grid.length);
    return int(sum < length ? sum : length);
  };
  // What the lanes before this one have together.
  auto const before = [&](int own, auto const& add) {
    int total = own;
    MOYE_UNROLL
    for (int delta = 1; delta < 32; delta *= 2) {
      int const other = shfl_up_sync(kFullWarp, total, delta);
      if (lane >= delta) total = add(total, other);
    }
    int const others = shfl_up_sync(kFullWarp, total, 1);
    return lane == 0 ? 0 : others;
  };

  int sizes[kEach];
  int rows = 0;
  MOYE_UNROLL
  for (int i = 0; i < kEach; ++i) {  // loads that are under way together
    sizes[i] = i < count ? group_sizes[first + i] : 0;
  }
  MOYE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    if (sizes[i] < 0) sizes[i] = 0;
    rows = limited(rows, sizes[i]);
  }
  int begin = before(rows, limited), tiles = 0;
  auto const tiles_of = [&](int size) { return (size + kTileM - 1) / kTileM * grid.tiles_n; };
  int const own_begin = begin;
  MOYE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    int const end = limited(begin, sizes[i]);
    tiles += tiles_of(end - begin);
    begin = end;
  }
  int tile = before(tiles, [](int x, int y) { return x + y; });
  begin = own_begin;
  MOYE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    int const end = limited(begin, sizes[i]);
    if (i < count) {
      table.begin[first + i] = begin;
      table.first_tile[first + i] = tile;
    }
    tile += tiles_of(end - begin);
    begin = end;
  }
  if (lane != 31) return;  // behind all groups
  table.begin[grid.groups] = begin;
  table.first_tile[grid.groups] = tile;
  table.begin[grid.groups + 1] = grid.length;
  table.first_tile[grid.groups + 1] = tile + tiles_of(grid.length - begin);
}

/// A tile of d. begin, size: of its group along the ragged mode.
struct GroupedTile {
  int m, n;  // in tiles, m from the group's first row on where that is ragged
  int group, begin, size;
};

/// The tiles of a CTA: `for (GroupedTile tile : GroupedTiles<kRagged, kTileM>(grid, table))`. CTA i has the tiles
/// i, i + CTAs, ... of a row in which those of a group lie side by side, in the order of tile_coord().
template <Ragged kRagged, int kTileM>
class GroupedTiles {
 public:
  struct End {};
  class Iterator {
   public:
    MOYE_DEVICE Iterator(GroupedGrid const& grid, GroupTable const& table)
        : grid_(grid), table_(table), id_(int(block_idx().x)), tiles_(tiles(grid, table)) {}
    MOYE_DEVICE GroupedTile operator*() const {
      int const group = group_of(), begin = table_.begin[group], size = table_.begin[group + 1] - begin;
      int const first = kRagged == Ragged::m ? table_.first_tile[group] : group * grid_.tiles_m * grid_.tiles_n;
      int const tiles_m = kRagged == Ragged::m ? (size + kTileM - 1) / kTileM : grid_.tiles_m;
      TileCoord const tile = tile_coord(unsigned(id_ - first), unsigned(tiles_m), unsigned(grid_.tiles_n));
      return {tile.m, tile.n, group, begin, size};
    }
    MOYE_DEVICE Iterator& operator++() {
      id_ += int(grid_dim().x);
      return *this;
    }
    MOYE_DEVICE bool operator!=(End) const { return id_ < tiles_; }

   private:
    static MOYE_DEVICE int tiles(GroupedGrid const& grid, GroupTable const& table) {
      return kRagged == Ragged::m ? table.first_tile[grid.groups + 1] : grid.most_tiles;
    }

    /// The last one whose first tile is not behind this one: empty groups have none.
    MOYE_DEVICE int group_of() const {
      if constexpr (kRagged == Ragged::k) return id_ / (grid_.tiles_m * grid_.tiles_n);
      int low = 0, high = grid_.groups;
      while (low < high) {
        int const middle = (low + high + 1) / 2;
        if (table_.first_tile[middle] <= id_) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      return low;
    }

    GroupedGrid const& grid_;
    GroupTable const& table_;
    int id_, tiles_;
  };

  MOYE_DEVICE GroupedTiles(GroupedGrid const& grid, GroupTable const& table) : grid_(grid), table_(table) {}
  MOYE_DEVICE Iterator begin() const { return {grid_, table_}; }
  MOYE_DEVICE End end() const { return {}; }

 private:
  GroupedGrid const& grid_;
  GroupTable const& table_;
};

/// Of a tile: those that its sums are multiplied from.
template <Ragged kRagged, int kTileK>
MOYE_DEVICE int k_tiles_of(GroupedTile const& tile, GroupedGrid const& grid) {
  if constexpr (kRagged == Ragged::k) return (tile.size + kTileK - 1) / kTileK;
  return tile.group < grid.groups ? grid.k_tiles : 0;
}

// A tensor map has the ragged mode, of `length` elements, twice, with one stride, and begins `length` of them before
// the tensor. Element begin + i of a group that ends at begin + size is
//   length - size + i along the first, begin + size along the second
// whose sum is length + begin + i. The first mode ends where i = size: TMA clips there, as at the end of a tensor.
// The first element of such a map is no memory: no box may be loaded of which nothing lies in the tensor.

/// Host: the second of them, in the place of a batch's.
inline BatchOfMap of_groups(TensorMode ragged) {
  return {.modes = {{ragged.size + 1, ragged.stride}, {1, 0}, {1, 0}}, .rank = 3};
}

/// Host: where such a map begins.
inline void const* origin_of_groups(void const* data, TensorMode ragged, int bytes) {
  return reinterpret_cast<void const*>(reinterpret_cast<uintptr_t>(data) -
                                       uintptr_t(ragged.size * ragged.stride * bytes));
}

/// Coordinate of the first element of a tile's group along the first mode, and of all of it along the second.
MOYE_DEVICE int first_of_group(GroupedTile const& tile, GroupedGrid const& grid) { return grid.length - tile.size; }
MOYE_DEVICE int end_of_group(GroupedTile const& tile) { return tile.begin + tile.size; }

}  // namespace moye
