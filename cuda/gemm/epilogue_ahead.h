// c, or a residual where there is no c, under way while its tile is multiplied: TMA brings all that a warp needs of it
// into the boxes of gemm/epilogue_staging.h. The warp finishes each box in place, and TMA stores it from there.
//   landed[w]   mbarrier of a consumer's warp w: 1 arrival, lane 0's, and in even phases the bytes of its boxes. The odd
//               phases end once all lanes have waited: so each tile's phase bit is 0, and takes no register
//   lane 0      of each warp starts its loads and its stores: only a thread that has started stores can wait for them
// A warp's boxes are its own. What comes after what, in them, through the generic proxy (lanes) or the async one (TMA):
//   TMA reads (a tile's stores), then writes   lane 0 has waited for its stores' reads (wait_group.read 0)
//   lanes read and write, then TMA writes      their fence and barrier in front of those stores, which lane 0 waited for
//   TMA writes, then lanes read and write      every lane waits for `landed`, which orders both proxies without a fence
//   lanes read, then write                     ldmatrix and stmatrix name the same 16 bytes in the same lane
//   lanes write, then TMA reads                fence.proxy.async of every lane, then the warp's barrier
// In global memory, where c may be d: TMA has read all that a warp needs before the warp's first store. Boxes cover no
// column twice then (StoreParams), so nobody else writes what is read.
#pragma once

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/tma_operand.h"
#include "moye/arch/config.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/tensor_map.h"
#include "moye/arch/tma.h"
#include "moye/arch/types.h"
#include "moye/core.h"

namespace moye {

/// One thread, of a consumer's mbarriers, before fence_mbarrier_init and a barrier of all.
MOYE_DEVICE void init_landed(uint64_t (&landed)[4] MOYE_LOC) {
  MOYE_SITE;
  for (uint64_t& of_warp : landed) mbarrier_init(&of_warp, 1);
}

/// Registers of a thread beside its float sums, with which it has the ways that not every tile leaves registers for.
inline constexpr int kRegistersForMore = 104;

/// Whether a kernel's calls may be read ahead: a thread has the registers, and a warp's boxes hold its part of a tile,
/// of which a warpgroup has `columns`.
constexpr bool can_load_ahead(Dtype accumulator, int registers, int sums, int columns, int boxes) {
  int const atoms = 2 * sums / columns;
  return accumulator != Dtype::s32 && registers - sums >= kRegistersForMore && boxes >= atoms * ceil_div(columns, 64);
}

/// Of a call that has one of both.
MOYE_HOST_DEVICE constexpr EpilogueOperand const& operand_ahead(EpilogueArgs const& epilogue) {
  return epilogue.c.data != nullptr ? epilogue.c : epilogue.residual;
}

/// Host: whether there is one of both, which TMA reads where it can store d, and a main loop to start the loads in.
inline bool has_operand_ahead(GemmArgs const& args) {
  EpilogueArgs const& epilogue = args.epilogue;
  if ((epilogue.c.data != nullptr) == (epilogue.residual.data != nullptr) || args.k == 0) return false;
  EpilogueOperand const& operand = operand_ahead(epilogue);
  int const vector = 16 / item_bytes(args.d_dtype);
  bool aligned = operand.n_stride == 1 && reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 &&
                 (args.m <= 1 || (operand.m_stride > 0 && operand.m_stride % vector == 0));
  for (int i = 0; i < kBatchModes; ++i) {
    int64_t const stride = operand.batch_strides.modes[i];
    aligned = aligned && (args.batch_sizes.modes[i] <= 1 || (stride >= 0 && stride % vector == 0));
  }
  return aligned;
}

/// Host: its map, of boxes of 16-bit elements. rank: of d's map.
inline Status make_map_ahead(TensorMap* map, GemmArgs const& args, int rank, int box_columns, int box_rows) {
  EpilogueOperand const& operand = operand_ahead(args.epilogue);
  TensorMode const n{args.n, 1}, m{args.m, operand.m_stride};
  BatchOfMap const batch = batch_of_map(args, operand.batch_strides, rank);
  return args.d_dtype == Dtype::bf16
             ? make_matrix_map<bfloat16_t>(map, operand.data, n, m, batch, box_columns, box_rows)
             : make_matrix_map<half_t>(map, operand.data, n, m, batch, box_columns, box_rows);
}

/// Lane 0 of a warp: starts the loads of kBoxes boxes, of which box i has its first row in the tile at row_of(i) and
/// its first column of d at column_of(i). A box of which nothing lies in d keeps what it has: TMA would read the map's
/// first element instead, which another warp may be storing. Warp: of gemm/epilogue_staging.h.
template <int kBoxes, class Warp, class RowOf, class ColumnOf>
MOYE_DEVICE void load_boxes_ahead(Warp const& warp, RowOf const& row_of, ColumnOf const& column_of MOYE_LOC) {
  MOYE_SITE;
  static_assert(kBoxes <= int(sizeof(warp.boxes) / sizeof(warp.boxes[0])));
  BatchCoord const matrix = batch_coord(warp.args.batch_sizes, warp.place.matrix);
  BatchStrides const& strides = operand_ahead(warp.args.epilogue).batch_strides;
  TensorMap const* const map = &warp.params.map_ahead;
  uint64_t* const landed = warp.landed;
  tma_store_wait_group_read<0>();  // the tile before has left the boxes
  MOYE_NO_UNROLL
  for (int i = 0; i < kBoxes; ++i) {
    int const row = warp.place.row + row_of(i), column = column_of(i);
    if (row >= warp.place.end || column >= int(warp.args.n)) continue;
    mbarrier_expect_tx(landed, sizeof(warp.boxes[0]));
    if (warp.params.rank == 3) {
      tma_load(map, landed, warp.boxes[i], column, row, map_coord<3>(matrix, strides).c2);
    } else {
      auto const [c2, c3, c4] = map_coord<5>(matrix, strides);
      tma_load(map, landed, warp.boxes[i], column, row, c2, c3, c4);
    }
  }
  mbarrier_arrive(landed);
}

}  // namespace moye
