// What the ways of gemm/epilogue_sm90.h share: a warp's boxes, 16 rows of 128 bytes in shared memory, and what is done
// with them.
//   take_sums, with_box     of the accumulators, those of a box
//   wait_for_boxes          until it may be filled: what it held has been read
//   store_results           once it is filled: TMA stores it, or threads, where its rows lie elsewhere
// A box on its way to d is filled in the order of the tile: along its columns first, then along its rows. Each warp has
// rows and boxes of its own.
#pragma once

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "gemm/epilogue_box.h"
#include "moye/arch/barrier.h"
#include "moye/arch/config.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/store.h"
#include "moye/arch/tensor_map.h"
#include "moye/arch/tma.h"
#include "moye/arch/types.h"
#include "moye/arch/warp.h"
#include "moye/core.h"
#include "moye/tensor.h"

namespace moye {

/// What the host makes of a call for its epilogue.
struct StoreParams {
  enum class Way { converted, wide, activated, ahead, finished, pair, gated, shifted, finished_shifted, elements };
  Way way;
  bool derives, scales;                                    // of `ahead` and `finished`
  float alpha, scale;                                      // of the sums, and of c or, where there is none, the bias
  TensorMap map_d, map_preactivation, map_second_product;  // empty where threads store d, or there is none
  TensorMap map_ahead;                                     // of `ahead`: c or the residual
  int rank;                                                // of all
};

/// Where the first row of a tile lies: along the operands of the epilogue, whose rows end, and among their matrices;
/// and in d's map. Both are the same but of a group, whose map ends where it does (gemm/grouped.h). Rows of no group
/// have no matrix.
struct EpiloguePlace {
  int row, end, matrix;
  int map_row, map_matrix;
  bool has_matrix = true;
  int32_t const* rows = nullptr;  // of kScatters: where each row of the operands lies in d; null: where the map says
};

/// What stays the same of a warp's tile. kColumns: of its warpgroup's accumulators. kBuffers: of its boxes, all but one
/// of which may be on their way while the next is filled. kScatters: whether rows of d may lie elsewhere.
template <class Sum_, int kColumns_, int kBuffers_, bool kScatters_>
struct EpilogueWarp {
  using Sum = Sum_;
  static constexpr int kColumns = kColumns_, kBuffers = kBuffers_, kRows = 16;  // rows of every atom
  static constexpr int kBoxBytes = kRows * 128;
  static constexpr bool kScatters = kScatters_;

  GemmArgs const& args;
  StoreParams const& params;
  unsigned char (&boxes)[kBuffers][kBoxBytes];
  EpiloguePlace place;
  int column;  // of d, the tile's first
  int lane;
  uint64_t* landed = nullptr;  // of kAhead
};

/// The same warp; what follows from a lane's number is computed anew, or it would take registers from box to box.
template <class Warp>
MOYE_DEVICE Warp computed_here(Warp warp) {
  MOYE_COMPUTED_HERE("+r", warp.lane);
  return warp;
}

// ---- sums

/// f(the first sum of box `number`, its atom): accumulators are registers, and their indices constants.
template <int kColumns, class Out, int kAtoms, int kBegin = 0, class F>
MOYE_DEVICE void with_box(int number, F const& f) {
  constexpr int kBoxesN = ceil_div(kColumns, kBoxColumns<Out>), kEnd = kAtoms * kBoxesN;
  if constexpr (kBegin + 1 == kEnd) {
    f(first_column<kColumns, Out>(kBegin % kBoxesN) / 2, kBegin / kBoxesN);
  } else {
    if (number == kBegin) {
      f(first_column<kColumns, Out>(kBegin % kBoxesN) / 2, kBegin / kBoxesN);
    } else {
      with_box<kColumns, Out, kAtoms, kBegin + 1>(number, f);
    }
  }
}

/// alpha times the sums of a box of Out, or of a half of one. They are counted along the columns first.
template <class Out, class Warp, class Accumulators, int kCount>
MOYE_DEVICE void take_sums(Warp const& warp, Accumulators const& tCrC, int number, float (&z)[kCount]) {
  constexpr int kAtoms = decltype(size<1>(tCrC))::value, kInBox = kBoxColumns<Out> / 2 / kCount;
  constexpr int kColumns = Warp::kColumns, kPartsN = ceil_div(kColumns, kBoxColumns<Out>) * kInBox;
  MOYE_UNROLL
  for (int k = 0; k < kCount; ++k) z[k] = 0;  // or ptxas keeps their registers from the kernel's beginning on
  MOYE_UNROLL
  for (int i = 0; i < kAtoms; ++i) {
    MOYE_UNROLL
    for (int c = 0; c < kPartsN; ++c) {  // accumulators are registers: their indices are constants
      if (number != i * kPartsN + c) continue;
      MOYE_UNROLL
      for (int k = 0; k < kCount; ++k) {
        auto sum = tCrC(first_column<kColumns, Out>(c / kInBox) / 2 + c % kInBox * kCount + k, i, _0{});
        if constexpr (is_same<typename Warp::Sum, int32_t>) {
          MOYE_COMPUTED_HERE("+r", sum);  // or LLVM converts all of them first
        }
        z[k] = warp.params.alpha * static_cast<float>(sum);
        MOYE_COMPUTED_HERE("+f", z[k]);  // or LLVM chooses from all accumulators first
      }
      sync_warp();  // keeps the branch: ptxas would take all accumulators in turn, each under its condition
    }
  }
}

// ---- boxes

/// Until the tile's boxes from `first` on, one or two, may be filled. What they held is on its way: of the tile
/// before all of it, a main loop ago.
template <class Warp>
MOYE_DEVICE void wait_for_boxes(Warp const& warp, int first, int outputs) {
  if (warp.lane == 0 && first == 0) tma_store_wait_group_read<0>();
  if (warp.lane == 0 && first + outputs > Warp::kBuffers) tma_store_wait_group_read<Warp::kBuffers - 2>();
  sync_warp();
}

/// One thread. Every mode of d's batch moves: with one of them the matrix's number is its coordinate. With several,
/// it is taken apart here, box by box: coordinates that wait take registers from the accumulators.
template <class Warp>
MOYE_DEVICE void store_box(Warp const& warp, TensorMap const& map, unsigned char const* box, int column, int row) {
  int const map_row = warp.place.map_row + row, matrix = warp.place.map_matrix;
  if (warp.params.rank == 3) return tma_store(&map, box, column, map_row, matrix);
  auto const [outer, middle, inner] = batch_coord(warp.args.batch_sizes, matrix).modes;
  tma_store(&map, box, column, map_row, inner, middle, outer);
}

/// A box of a result that lies as d does, where rows lie elsewhere: four rows at a time, each by eight lanes. False
/// where they do not.
template <int kBytes, class Warp>
MOYE_DEVICE bool scatter(Warp const& warp, void* z, unsigned char const* box, int column, int tile_row) {
  if (warp.place.rows == nullptr) return false;
  GemmArgs const& args = warp.args;
  int lane = warp.lane;
  MOYE_COMPUTED_HERE("+r", lane);  // what is known of lanes would take registers from the sums
  // Lane i knows where row i lies.
  int const from = warp.place.row + tile_row + lane % Warp::kRows;
  int const to = from < warp.place.end ? warp.place.rows[from] : -1;
  int const piece = lane % 8, at = column + piece * (16 / kBytes);
  bool const is_stored = at < int(args.n);
  MOYE_UNROLL
  for (int i = 0; i < Warp::kRows; i += 4) {
    int const row = i + lane / 8, to_row = shfl_sync(kFullWarp, to, row);
    if (!is_stored || unsigned(to_row) >= unsigned(args.m)) continue;
    auto const& bytes = *reinterpret_cast<uint128_t const*>(box + row * 128 + (piece ^ row % 8) * 16);
    auto* const row_of_z = static_cast<unsigned char*>(z) + (to_row * args.d_m_stride + at) * kBytes;
    store_global(bytes, *reinterpret_cast<uint128_t*>(row_of_z));
  }
  return true;
}

/// What has been filled: of d, and of the pre-activation, or a multiplier's other result, where there are two.
template <class Out, class Warp>
MOYE_DEVICE void store_results(Warp const& warp, unsigned char const* box, unsigned char const* second_box, int outputs,
                               int column, int row) {
  fence_proxy_async_shared_cta();
  sync_warp();
  if constexpr (Warp::kScatters) {
    if (warp.place.rows != nullptr) {
      MOYE_NO_UNROLL
      for (int i = 0; i < outputs; ++i)
        scatter<int(sizeof(Out))>(warp, i == 0 ? warp.args.d : warp.args.epilogue.preactivation,
                                  i == 0 ? box : second_box, column, row);
      return;
    }
  }
  if (warp.lane == 0) {
    MOYE_NO_UNROLL
    for (int i = 0; i < outputs; ++i) {
      store_box(warp, i == 0 ? warp.params.map_d : warp.params.map_preactivation, i == 0 ? box : second_box, column,
                row);
      tma_store_commit_group();
    }
  }
}

}  // namespace moye
