// From a warpgroup's wgmma accumulators to d. Ten ways, chosen once per call by the host:
//   converted   sums as they are, as 16 bits: into swizzled rows of 128 bytes, and TMA stores them, clipped at d's edges,
//               while the warp goes on
//   wide        the same as 32 bits
//   activated   16-bit results with at most a row of bias, an activation and what it is applied to: the same, finished
//               in registers, with no question asked for each box that the host can answer
//   ahead       the same with c, a residual, or a derivative at c, which TMA has brought to the boxes meanwhile
//               (gemm/epilogue_ahead.h)
//   finished    results of 16 bits or floats, with c or bias, scales, activation and so on, or of 16 bits times a
//               derivative at c: the same, finished in registers, box by box
//   pair        16-bit results of two b, whose columns are the halves of a tile: the same, the first activated, and
//               multiplied with the second (gemm/epilogue_gate.h)
//   gated       16-bit results of a multiplier: the same, two of one product, the cotangents of a layer with a gate
//   shifted, finished_shifted   as converted, and as finished without derivatives and scales, where rows of d are not of
//               whole words of 16 bytes: threads store the boxes in whole sectors (gemm/epilogue_shifted.h)
//   elements    everything else, and where accumulators leave no registers for that: 32 columns of sums through shared
//               memory, finished as TileEpilogue does, an element a lane, so that a row's are stored side by side
// Each warp has 16 rows of every atom and a staging of its own (gemm/epilogue_staging.h): no warp waits for another
// one.
// Over 600 lines: its ways share a warp's boxes, and the host's choice among them stands beside them.
#pragma once

#include "gemm/epilogue.h"
#include "gemm/epilogue_ahead.h"
#include "gemm/epilogue_box.h"
#include "gemm/epilogue_gate.h"
#include "gemm/epilogue_shifted.h"
#include "gemm/epilogue_staging.h"
#include "gemm/grouped.h"
#include "gemm/tma_operand.h"
#include "moye/arch/barrier.h"
#include "moye/arch/convert.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/tma.h"
#include "moye/atom/mma_traits_sm90.h"

namespace moye {

/// The ways that a kernel knows: any, one, or those that have no kernel of their own. In a program a kernel's
/// instructions come from memory, and those of a short kernel are there sooner.
enum class Stores : uint8_t { any, converted, wide, activated, ahead, pair, gated, others };

/// Whether calls of such a kernel may have a second b.
template <Stores kStores>
inline constexpr bool kMayBePair = kStores == Stores::any || kStores == Stores::pair;

/// Whether a thread has registers for what is read of two operands beside its sums, and a warpgroup's columns are whole
/// boxes: c may be d.
constexpr bool has_room_for_gate(int registers, int sums, int columns) {
  return registers - sums >= 100 && columns % OperandBox<>::kColumns == 0;
}

/// kColumns: of a warpgroup's accumulators, which have 64 rows per atom along m. kBuffers: boxes of a warp; all but one
/// may be on their way while the next is filled. kRegisters: of a thread, but for those of other sums. kPairs: whether
/// calls may have a second b. kDerives, kHasScales: whether there are registers to finish what is multiplied by a
/// derivative; by scales. kGates: whether calls may have a multiplier. kLooksAhead: whether there are registers to
/// choose what is loaded a box ahead. kScatters: whether rows of d may lie elsewhere (Place::rows). kLoadsAhead:
/// whether the kernel calls load_ahead(), where can_load_ahead().
template <int kColumns, Dtype kAccumulator, int kBuffers, int kRegisters, bool kPairs = false, bool kDerives = true,
          bool kHasScales = kDerives, bool kGates = false, bool kLooksAhead = true, bool kScatters = false,
          bool kLoadsAhead = false>
struct WarpgroupEpilogue {
  using Sum = typename Accumulator<kAccumulator>::Sum;
  using Way = StoreParams::Way;
  using Place = EpiloguePlace;
  using Warp = EpilogueWarp<Sum, kColumns, kBuffers, kScatters>;
  static constexpr int kWarps = 4, kRows = Warp::kRows;
  template <class Out>
  static constexpr int kBox = kBoxColumns<Out>;
  static constexpr int kSums = kBox<uint16_t> / 2;  // of a thread, in a box of 16-bit results
  static constexpr bool kMayDerive = kDerives && !kOwnActivation;
  using Box = OperandBox<>;
  static_assert(Box::kRows == kRows && Box::kColumns == kBox<uint16_t> && Box::kSums == kSums);
  // Elements: 32 columns of sums, rows 32 bytes apart in the banks.
  static constexpr int kChunk = 32;
  static constexpr int kPitch = kChunk + 8;
  // Columns that boxes or chunks do not divide: the last box begins early and stores some columns once more, so that it
  // is whole; the last chunk, which may read d's old elements as c, is cut.
  static_assert(kColumns % 16 == 0 && kColumns >= kBox<uint16_t>, "whole stmatrix, a whole box");
  static_assert(kBuffers >= 2, "one box is filled while another is stored");

  union SharedStorage {
    alignas(1024) unsigned char boxes[kWarps][kBuffers][Warp::kBoxBytes];
    alignas(16) Sum sums[kWarps][kRows * kPitch];
  };

  /// Host: how the call's results are stored. ragged: the rows of the only matrix are cut into groups.
  static Status make_params(StoreParams* params, GemmArgs const& args, bool ragged = false) {
    EpilogueArgs const& epilogue = args.epilogue;
    bool const pair = epilogue.second_b != nullptr, gated = epilogue.multiplier.data != nullptr;
    bool const plain = is_plain(epilogue);
    int const bytes = item_bytes(args.d_dtype);
    auto const are_pairs = [&](EpilogueOperand const& operand) { return is_of_pairs(operand, 2 * bytes); };
    bool const can_finish = (bytes == 2 || (is_same<Sum, float> && bytes == 4 && !pair && !gated)) &&
                            are_pairs(epilogue.c) && are_pairs(epilogue.bias) && are_pairs(epilogue.residual) &&
                            are_pairs(epilogue.multiplier) &&
                            (epilogue.c.data == nullptr || epilogue.bias.data == nullptr);
    params->derives = epilogue.activation >= kFirstDerivative;
    params->scales = has_scales(epilogue);
    // c may be d: of columns that are finished twice, a pre-activation that is shifted otherwise is stored too late.
    bool const in_time =
        epilogue.c.data == nullptr || epilogue.preactivation == nullptr || kColumns % Box::kColumns == 0;
    bool const is_of_rows = args.d_n_stride == 1 && bytes <= 4 && in_time && !pair && !gated;
    bool const is_short = can_finish && bytes == 2 && is_same<Sum, float> && is_one_row(epilogue.bias) &&
                          !params->scales && !kOwnActivation;
    bool const is_simple =
        is_short && epilogue.alpha == 1 && epilogue.c.data == nullptr && epilogue.residual.data == nullptr;
    bool const is_ahead = is_short && kAhead && epilogue.preactivation == nullptr && has_operand_ahead(args);
    params->way = !(plain || can_finish) ? Way::elements
                  : is_of_boxes(args)    ? (pair        ? Way::pair
                                            : gated     ? Way::gated
                                            : plain     ? (bytes == 2 ? Way::converted : Way::wide)
                                            : is_simple ? Way::activated
                                            : is_ahead  ? Way::ahead
                                                        : Way::finished)
                  : !is_of_rows || params->derives || params->scales ? Way::elements
                  : plain                                            ? Way::shifted
                  : bytes == 2                                       ? Way::finished_shifted
                                                                     : Way::elements;
    params->alpha = float(epilogue.alpha);
    params->scale = epilogue.c.data != nullptr ? float(epilogue.beta) : 1.0f;
    params->rank = moves_along_several(args, args.d_batch_strides) ? 5 : 3;
    if (!kDerives && params->derives) return {"the kernel multiplies by no derivative"};
    if (pair && params->way != Way::pair) return {"d of two b is stored by TMA: 16-bit elements, rows of 16 bytes"};
    if (gated && !(kGates && params->way == Way::gated))
      return {"results of a multiplier are stored by TMA: 16-bit elements, rows of 16 bytes, operands of pairs"};
    if (params->way >= Way::shifted) return {};
    if (Status status = make_map(&params->map_d, params->rank, args.d, args, ragged); !status.ok()) return status;
    if constexpr (kAhead) {
      if (params->way == Way::ahead)
        return make_map_ahead(&params->map_ahead, args, params->rank, Box::kColumns, kRows);
    }
    if (epilogue.preactivation == nullptr) return {};
    Status const status = make_map(&params->map_preactivation, params->rank, epilogue.preactivation, args, ragged);
    if (!status.ok() || !pair) return status;
    return make_map(&params->map_second_product, params->rank, epilogue.second_product, args, ragged);
  }

  /// tCrC (MMA,MMA_M,MMA_N) with MMA_N = 1; atom i of m has the rows from row(i) on, columns from `column` on: in the
  /// tile, whose extents are tile_m and tile_n. thread: in the warpgroup. landed: as load_ahead() had it, if there was
  /// such a call.
  template <int kTileM, int kTileN, Stores kStores = Stores::any, class Accumulators, class RowOf>
  static MOYE_DEVICE void store(GemmArgs const& args, StoreParams const& params, TileCoord const& tile,
                                Accumulators const& tCrC, SharedStorage& smem, RowOf const& row, int column, int thread,
                                uint64_t* landed = nullptr MOYE_LOC) {
    MOYE_SITE;
    MOYE_COMPUTED_HERE("+r", thread);  // lanes' addresses would take registers from the main loop
    int const warp = thread / 32, lane = thread % 32;
    auto const row_of_warp = [&](int atom) { return row(atom) + warp * kRows; };
    Place const place{tile.m * kTileM, int(args.m), tile.batch, tile.m * kTileM, tile.batch};
    if constexpr (kStores != Stores::any && kStores != Stores::others) {
      if (kAhead) landed += warp;
      constexpr int kTile = kStores == Stores::pair ? kTileN / 2 : kTileN;  // columns of d
      Warp const w{args, params, smem.boxes[warp], place, tile.n * kTile + column, lane, landed};
      store_one_way<kStores>(w, tCrC, row_of_warp);
      return;
    }
    constexpr int kSumsOfThread = decltype(size(tCrC))::value;
    if constexpr (kStores == Stores::any && has_kernel<kSumsOfThread>(Stores::pair)) {
      if (params.way == Way::pair) {
        store<kTileM, kTileN, Stores::pair>(args, params, tile, tCrC, smem, row, column, thread, landed);
        return;
      }
    }
    if (kAhead) landed += warp;
    Warp const w{args, params, smem.boxes[warp], place, tile.n * kTileN + column, lane, landed};
    if (store_by_tma<kStores>(w, tCrC, row_of_warp) || store_shifted(w, tCrC, row_of_warp)) return;
    with_tile_epilogue<Sum, 1, kDerives && !kOwnActivation, kScales<kSumsOfThread>>(
        args, tile, kTileM, kTileN, [&](auto const& epilogue) {
          constexpr int kCount = kRegisters - kSumsOfThread >= 80 ? 4 : 1;
          store_elements<kCount>(epilogue, tCrC, smem.sums[warp], row_of_warp, column, lane);
        });
  }

  /// Once for each tile, before its main loop or in it, all of a warpgroup: starts what is read ahead, if the call
  /// reads so. column, row: as those of store(). landed: of the warpgroup's first warp; the others' follow.
  /// kSumsOfThread: all that it has of a tile.
  template <int kTileM, int kTileN, int kSumsOfThread, Stores kStores, class RowOf>
  static MOYE_DEVICE void load_ahead(GemmArgs const& args, StoreParams const& params, TileCoord const& tile,
                                     RowOf const& row, int column, int thread, uint64_t* landed,
                                     SharedStorage& smem MOYE_LOC) {
    MOYE_SITE;
    if constexpr (kAhead && kStores == Stores::ahead) {
      if (params.way != Way::ahead) return;
      MOYE_COMPUTED_HERE("+r", thread);  // as in store()
      if (thread % 32 != 0) return;
      constexpr int kBoxesN = ceil_div(kColumns, Box::kColumns);
      int const warp = thread / 32;
      Place const place{tile.m * kTileM + warp * kRows, int(args.m), tile.batch, 0, 0};
      Warp const of_lane{.args = args,
                         .params = params,
                         .boxes = smem.boxes[warp],
                         .place = place,
                         .column = tile.n * kTileN + column,
                         .lane = 0,
                         .landed = landed + warp};
      load_boxes_ahead<2 * kSumsOfThread / kColumns * kBoxesN>(
          of_lane, [&](int box) { return row(box / kBoxesN); },
          [&](int box) { return of_lane.column + first_column<kColumns>(box % kBoxesN); });
    }
  }

  /// The same of a tile of a group, at `place`, the tile_n-th along n. kMayBePair: whether this call may have a second
  /// b, if any may. Elements are no way here: can_store_groups().
  template <int kTileN, bool kMayBePair, class Accumulators, class RowOf>
  static MOYE_DEVICE void store_group(GemmArgs const& args, StoreParams const& params, Place const& place,
                                      Accumulators const& tCrC, SharedStorage& smem, RowOf const& row, int tile_n,
                                      int thread MOYE_LOC) {
    MOYE_SITE;
    constexpr int kSumsOfThread = decltype(size(tCrC))::value;
    static_assert(kOwnActivation || kHasRoomForMore<kSumsOfThread> == (kHasRoom<kSumsOfThread> && is_same<Sum, float>));
    MOYE_COMPUTED_HERE("+r", thread);  // as above
    int const warp = thread / 32, lane = thread % 32;
    auto const row_of_warp = [&](int atom) { return row(atom) + warp * kRows; };
    if constexpr (kPairs && kMayBePair && !kOwnActivation) {
      if (params.way == Way::pair) {
        store_pair(Warp{args, params, smem.boxes[warp], place, tile_n * (kTileN / 2), lane}, tCrC, row_of_warp);
        return;
      }
    }
    store_by_tma<Stores::any>(Warp{args, params, smem.boxes[warp], place, tile_n * kTileN, lane}, tCrC, row_of_warp);
  }

  /// Whether a kernel of this way alone stores all calls of the way. kSumsOfThread: all that it has of a tile.
  template <int kSumsOfThread>
  static MOYE_HOST_DEVICE constexpr bool has_kernel(Stores stores) {
    return !kOwnActivation &&
           (stores == Stores::converted || stores == Stores::wide ||
            (stores == Stores::activated && kHasRoomForMore<kSumsOfThread>) || (stores == Stores::ahead && kAhead) ||
            (stores == Stores::pair && kPairs) || (stores == Stores::gated && kGates));
  }

  /// Host: whether store_group() stores the call's results, which make_params() has described. kSumsOfThread: all that
  /// it has of a tile. kMayBePair: as there.
  template <int kSumsOfThread, bool kMayBePair>
  static bool can_store_groups(StoreParams const& params) {
    bool const is_finished = params.way == Way::activated || params.way == Way::finished;
    return params.way == Way::converted || params.way == Way::wide || (is_finished && kHasRoom<kSumsOfThread>) ||
           (params.way == Way::pair && kPairs && kMayBePair);
  }

  /// Whether there are registers for scales beside a thread's sums of a tile, and beside what a second b needs.
  template <int kSumsOfThread>
  static constexpr bool kScales = kHasScales && kRegisters - kSumsOfThread >= (kPairs ? 120 : 60);

  /// Before the CTA ends: shared memory outlives the stores' reads.
  static MOYE_DEVICE void finish(int thread MOYE_LOC) {
    MOYE_SITE;
    if (thread % 32 == 0) tma_store_wait_group_read<0>();
  }

  static constexpr bool kAhead = kLoadsAhead && !kOwnActivation;

 private:
  /// Whether TMA can write d, and the preactivation, which lies as d does.
  static bool is_of_boxes(GemmArgs const& args) {
    int const bytes = item_bytes(args.d_dtype), vector = 16 / bytes;
    auto const aligned = [&](int64_t size, int64_t stride) { return size <= 1 || stride % vector == 0; };
    bool aligned_batch = true;
    for (int i = 0; i < kBatchModes; ++i) {
      int64_t const size = args.batch_sizes.modes[i], stride = args.d_batch_strides.modes[i];
      aligned_batch = aligned_batch && aligned(size, stride) && (size <= 1 || stride != 0);
    }
    // c may be d: where the last box begins early, its first columns would be finished twice.
    bool const once = args.epilogue.c.data == nullptr || kColumns % (128 / bytes) == 0;
    // TMA clips a row in pieces of 16 bytes: it would write the rest of a last one that n ends in.
    return bytes <= 4 && args.d_n_stride == 1 && args.n % vector == 0 && aligned(args.m, args.d_m_stride) &&
           reinterpret_cast<uintptr_t>(args.d) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(args.epilogue.preactivation) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(args.epilogue.second_product) % 16 == 0 && aligned_batch && once;
  }

  static Status make_map(TensorMap* map, int rank, void const* data, GemmArgs const& args, bool ragged) {
    TensorMode const n{args.n, 1}, m{args.m, args.d_m_stride};
    BatchOfMap const batch = ragged ? of_groups(m) : batch_of_map(args, args.d_batch_strides, rank);
    if (ragged) data = origin_of_groups(data, m, item_bytes(args.d_dtype));
    switch (args.d_dtype) {
      case Dtype::bf16:
        return make_matrix_map<bfloat16_t>(map, data, n, m, batch, kBox<bfloat16_t>, kRows);
      case Dtype::f16:
        return make_matrix_map<half_t>(map, data, n, m, batch, kBox<half_t>, kRows);
      default:
        return make_matrix_map<float>(map, data, n, m, batch, kBox<float>, kRows);  // or s32: bits
    }
  }

  // What is finished together needs registers beside the accumulators.
  template <int kSumsOfThread>
  static constexpr bool kHasRoom = kRegisters - kSumsOfThread >= 100 && !is_same<Sum, double>;
  template <int kSumsOfThread>
  static constexpr bool kHasRoomForMore = kRegisters - kSumsOfThread >= kRegistersForMore && is_same<Sum, float> &&
                                          !kOwnActivation;  // one copy of a user's function

  // Addresses and shifts of rows do; not one is left beside a gate and 128 sums of sm90_cooperative, in clusters, nor
  // for the conversion of as many integers.
  template <int kSumsOfThread>
  static constexpr bool kHasRoomToShift = kRegisters - kSumsOfThread >= (kGates || is_same<Sum, int32_t> ? 108 : 56);

  /// By a way that may have a kernel of its own. row: of the warp, in the tile.
  template <Stores kWay, class Accumulators, class RowOf>
  static MOYE_DEVICE void store_one_way(Warp const& warp, Accumulators const& tCrC, RowOf const& row) {
    if constexpr (kWay == Stores::converted) {
      if (warp.args.d_dtype == Dtype::bf16) {
        store_boxes_of<bfloat16_t>(warp, tCrC, row);
      } else {
        store_boxes_of<half_t>(warp, tCrC, row);
      }
    } else if constexpr (kWay == Stores::wide) {
      if (is_same<Sum, float> || warp.args.d_dtype == Dtype::f32) {
        store_boxes_of<float>(warp, tCrC, row);
      } else {
        store_boxes_of<Sum>(warp, tCrC, row);
      }
    } else if constexpr (kWay == Stores::pair) {
      store_pair(warp, tCrC, row);
    } else if constexpr (kWay == Stores::gated) {
      store_gated(warp, tCrC, row);
    } else {
      constexpr bool kIsAhead = kWay == Stores::ahead;
      if constexpr (kIsAhead && kMayDerive) {
        if (warp.params.derives) return store_derived<kIsAhead>(warp, tCrC, row);
      }
      if (warp.args.d_dtype == Dtype::bf16) {
        store_activated<bfloat16_t, kIsAhead>(warp, tCrC, row);
      } else {
        store_activated<half_t, kIsAhead>(warp, tCrC, row);
      }
    }
  }

  /// row: of the warp, in the tile. False where TMA cannot store the call's results, or there are no registers for it.
  /// kStores: any, or others.
  template <Stores kStores, class Accumulators, class RowOf>
  static MOYE_DEVICE bool store_by_tma(Warp const& warp, Accumulators const& tCrC, RowOf const& row) {
    constexpr int kSumsOfThread = decltype(size(tCrC))::value;
    auto const is_stored = [&](auto way, Way of_call) {
      if (warp.params.way != of_call) return false;
      store_one_way<decltype(way)::value>(warp, tCrC, row);
      return true;
    };
    if constexpr (kStores == Stores::any) {
      if constexpr (has_kernel<kSumsOfThread>(Stores::converted)) {
        if (is_stored(C<Stores::converted>{}, Way::converted)) return true;
        if (is_stored(C<Stores::wide>{}, Way::wide)) return true;
      }
      if constexpr (has_kernel<kSumsOfThread>(Stores::activated)) {
        if (is_stored(C<Stores::activated>{}, Way::activated)) return true;
      }
      if constexpr (has_kernel<kSumsOfThread>(Stores::ahead)) {
        if (is_stored(C<Stores::ahead>{}, Way::ahead)) return true;
      }
      if constexpr (has_kernel<kSumsOfThread>(Stores::gated)) {
        if (is_stored(C<Stores::gated>{}, Way::gated)) return true;
      }
    }
    if constexpr (kHasRoom<kSumsOfThread>) {
      bool const is_simple = !kHasRoomForMore<kSumsOfThread> && (warp.params.way == Way::activated);
      if (is_simple || (warp.params.way == Way::finished)) {
        if constexpr (is_same<Sum, float>) {
          if (warp.args.d_dtype == Dtype::f32) {
            if constexpr (!kHasRoomForMore<kSumsOfThread>) return false;
            store_finished<float, /*kScaled=*/true>(warp, tCrC, row);
            return true;
          }
        }
        if constexpr (kMayDerive) {
          if (warp.params.derives) {
            store_derived</*kIsAhead=*/false>(warp, tCrC, row);
            return true;
          }
        }
        // Most calls have no scales, which take time where they are tested for. A user's function is there once.
        if constexpr (kScales<kSumsOfThread>) {
          if (kOwnActivation || warp.params.scales) {
            store_finished<uint16_t, /*kScaled=*/true>(warp, tCrC, row);
            return true;
          }
        }
        store_finished<uint16_t, /*kScaled=*/false>(warp, tCrC, row);
        return true;
      }
    }
    return false;
  }

  /// The same where threads store boxes; not with a user's function, which would be there once more.
  template <class Accumulators, class RowOf>
  static MOYE_DEVICE bool store_shifted(Warp const& warp, Accumulators const& tCrC, RowOf const& row) {
    constexpr int kSumsOfThread = decltype(size(tCrC))::value;
    if constexpr (kHasRoomToShift<kSumsOfThread> && !kOwnActivation) {
      if (warp.params.way == Way::shifted) {
        with_result<Sum>(warp.args.d_dtype, [&](auto out) { store_converted_shifted<decltype(out)>(warp, tCrC, row); });
        return true;
      }
    }
    if constexpr (kHasRoom<kSumsOfThread> && kHasRoomToShift<kSumsOfThread> && !kOwnActivation) {
      if (warp.params.way == Way::finished_shifted) {
        store_finished_shifted(warp, tCrC, row);
        return true;
      }
    }
    return false;
  }

  // ---- converted

  template <class Out, class Accumulators, class RowOf>
  static MOYE_DEVICE void store_boxes_of(Warp const& warp, Accumulators const& tCrC, RowOf const& row) {
    int const lane = warp.lane;
    MOYE_UNROLL
    for (int i = 0; i < decltype(size<1>(tCrC))::value; ++i) {
      MOYE_UNROLL
      for (int c = 0; c < ceil_div(kColumns, kBox<Out>); ++c) {
        int const first = first_column<kColumns, Out>(c);
        int const number = i * ceil_div(kColumns, kBox<Out>) + c;
        unsigned char* const box = warp.boxes[number % kBuffers];
        // What this buffer held is on its way: of the tile before all of it, a main loop ago.
        if (number == 0 && lane == 0) tma_store_wait_group_read<0>();
        if (number >= kBuffers && lane == 0) tma_store_wait_group_read<kBuffers - 1>();
        if (number == 0 || number >= kBuffers) sync_warp();
        // Accumulators 4j and 4j + 1 are two neighbours of columns 8j to 8j + 7, the next two those eight rows below.
        fill_box<Out>(box, [&](int k) { return tCrC(first / 2 + k, i, _0{}); }, lane);
        fence_proxy_async_shared_cta();
        sync_warp();
        if constexpr (kScatters) {
          if (scatter<int(sizeof(Out))>(warp, warp.args.d, box, warp.column + first, row(i))) continue;
        }
        if (lane == 0) {
          store_box(warp, warp.params.map_d, box, warp.column + first, row(i));
          tma_store_commit_group();
        }
      }
    }
  }

  // ---- activated, ahead. Of a box, z[i] is as below. A call of it asks for each box which activation it has, and no
  // more: epilogues longer than a tile's products are not hidden by them.

  /// kIsAhead: c or a residual lies in the box that it is finished in, and there is no pre-activation.
  template <class Out, bool kIsAhead = false, class Accumulators, class RowOf>
  static MOYE_DEVICE void store_activated(Warp const& warp, Accumulators const& tCrC, RowOf const& row) {
    constexpr int kAtoms = decltype(size<1>(tCrC))::value, kBoxesN = ceil_div(kColumns, kBox<Out>);
    static_assert(!kIsAhead || kBuffers >= kAtoms * kBoxesN);
    bool const has_c = kIsAhead && warp.args.epilogue.c.data != nullptr;
    int const outputs = kIsAhead || warp.args.epilogue.preactivation == nullptr ? 1 : 2;
    auto const column_of = [&](int box) { return warp.column + first_column<kColumns, Out>(box % kBoxesN); };
    BiasRow bias;
    bias.load(warp, column_of(0));
    if constexpr (kIsAhead) mbarrier_wait(warp.landed, /*parity=*/0);
    MOYE_NO_UNROLL  // activations are long: one copy of them
        for (int number = 0; number < kAtoms * kBoxesN; ++number) {
      int const first = number * outputs;
      unsigned char *const box = warp.boxes[first % kBuffers], *const second_box = warp.boxes[(first + 1) % kBuffers];
      Box operand;
      if constexpr (kIsAhead) operand.read(box, warp.lane);
      float z[kSums];
      with_box<kColumns, Out, kAtoms>(number, [&](int begin, int i) {
        MOYE_UNROLL
        for (int k = 0; k < kSums; k += 4) {
          Row<float, 2> const pair = bias.template pair<Out>(k / 4);
          MOYE_UNROLL
          for (int j = 0; j < 4; ++j) {
            float const sum = tCrC(begin + k + j, i, _0{});
            z[k + j] = (kIsAhead ? warp.params.alpha * sum : sum) + pair.elements[j % 2];
            MOYE_COMPUTED_HERE("+f", z[k + j]);  // or LLVM chooses from all accumulators first
          }
        }
      });
      // The next box's are under way while this one is computed.
      if (!kIsAhead || warp.args.epilogue.bias.data != nullptr)
        bias.load(warp, column_of(number + 1 < kAtoms * kBoxesN ? number + 1 : number));
      if (has_c) operand.template add_of<Out>(warp.params.scale, z);
      auto const z_of = [&](int k) { return z[k]; };
      if (outputs == 2) wait_for_boxes(warp, first, outputs), fill_box<Out>(second_box, z_of, warp.lane);
      activate_all</*kRounded=*/true>(warp.args.epilogue.activation, z);
      if constexpr (kIsAhead) {
        if (!has_c) operand.template add_of<Out>(1.0f, z);
      } else if (outputs == 1 && (number == 0 || number >= kBuffers)) {  // as where boxes are converted
        if (warp.lane == 0 && number == 0) tma_store_wait_group_read<0>();
        if (warp.lane == 0 && number >= kBuffers) tma_store_wait_group_read<kBuffers - 1>();
        sync_warp();
      }
      fill_box<Out>(box, z_of, warp.lane);
      store_results<Out>(warp, box, second_box, outputs, column_of(number), row(number / kBoxesN));
    }
    if (kIsAhead && warp.lane == 0) mbarrier_arrive(warp.landed);  // no lane waits any more: see `landed`
  }

  // ---- ahead, finished: times a derivative at c

  /// By halves of boxes, which leaves registers to compute many elements side by side. kIsAhead: as in
  /// store_activated(); else a box of c is loaded while the one before is computed.
  template <bool kIsAhead, class Accumulators, class RowOf>
  static MOYE_DEVICE void store_derived(Warp const& warp, Accumulators const& tCrC, RowOf const& row) {
    constexpr int kAtoms = decltype(size<1>(tCrC))::value, kBoxesN = ceil_div(kColumns, Box::kColumns);
    constexpr int kLast = kAtoms * kBoxesN - 1;
    static_assert(!kIsAhead || kBuffers > kLast);
    auto const row_of = [&](int box) { return row(box / kBoxesN); };
    auto const column_of = [&](int box) { return warp.column + first_column<kColumns>(box % kBoxesN); };
    auto const load = [&](int box) {
      Box at;
      at.load_present(warp, warp.args.epilogue.c, row_of(box), column_of(box));
      return at;
    };
    Box next;
    if constexpr (kIsAhead) {
      mbarrier_wait(warp.landed, /*parity=*/0);
    } else {
      next = load(0);
    }
    MOYE_NO_UNROLL  // derivatives are long: one copy of them
        for (int number = 0; number <= kLast; ++number) {
      unsigned char* const filled = warp.boxes[number % kBuffers];
      Box at;
      if constexpr (kIsAhead) {
        at.read(filled, warp.lane);
      } else {
        at = next;
        next = load(number < kLast ? number + 1 : number);
        wait_for_boxes(warp, number, /*outputs=*/1);
      }
      MOYE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float z[kSums / 2];
        with_box<kColumns, uint16_t, kAtoms>(number, [&](int first, int i) {
          MOYE_UNROLL
          for (int k = 0; k < kSums / 2; ++k) {
            z[k] = warp.params.alpha * static_cast<float>(tCrC(first + half * (kSums / 2) + k, i, _0{}));
            MOYE_COMPUTED_HERE("+f", z[k]);  // as in store_activated()
          }
        });
        auto result = at.half(half);
        result.multiply_by_derivative(warp, z);
        result.fill(filled, half, warp.lane);
      }
      store_results<uint16_t>(warp, filled, filled, /*outputs=*/1, column_of(number), row_of(number));
    }
    if (kIsAhead && warp.lane == 0) mbarrier_arrive(warp.landed);  // as in store_activated()
  }

  // ---- finished. Of a box, z[i] is the sum of row lane / 4 + i / 2 % 2 * 8 and column i / 4 * 8 + lane % 4 * 2 + i
  // % 2.

  /// Out: of d's size, float or 16 bits. kScaled: also by scales, where there are registers for them.
  template <class Out, bool kScaled, class Accumulators, class RowOf>
  static MOYE_DEVICE void store_finished(Warp const& tile, Accumulators const& tCrC, RowOf const& row) {
    constexpr bool kRounded = sizeof(Out) == 2;
    constexpr int kAtoms = decltype(size<1>(tCrC))::value, kBoxesN = ceil_div(kColumns, kBox<Out>);
    using Word = typename WordOf<2 * int(sizeof(Out))>::Type;
    EpilogueArgs const& epilogue = tile.args.epilogue;
    int const outputs = epilogue.preactivation == nullptr ? 1 : 2;
    auto const row_of = [&](int box) { return row(box / kBoxesN); };
    auto const column_of = [&](int box) { return tile.column + first_column<kColumns, Out>(box % kBoxesN); };
    // What the next box needs of c, or of a residual where there is no c, is under way while this one is computed. A
    // row of bias is near.
    OperandBox<kBox<Out>, /*kAnyEnd=*/false, Word> pairs;
    EpilogueOperand const& addend = epilogue.c.data != nullptr ? epilogue.c : epilogue.bias;
    // (Integers' conversion and a user's function have no registers for the choice.)
    constexpr bool kMayBeResidual = kLooksAhead && !kOwnActivation && !is_same<Sum, int32_t>;
    bool const is_residual_ahead = kMayBeResidual && epilogue.c.data == nullptr && epilogue.residual.data != nullptr;
    auto const load_ahead = [&](int box) {
      if (is_residual_ahead) {
        pairs.load_present(tile, epilogue.residual, row_of(box), column_of(box));
      } else {
        pairs.load(tile, addend, row_of(box), column_of(box));
      }
    };
    load_ahead(0);
    MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
        for (int number = 0; number < kAtoms * kBoxesN; ++number) {
      Warp const warp = kRounded ? tile : computed_here(tile);  // floats and scales take more registers
      float z[pairs.kSums];
      take_sums<Out>(warp, tCrC, number, z);
      int const first = number * outputs;
      wait_for_boxes(warp, first, outputs);
      unsigned char* const box = warp.boxes[first % kBuffers];
      unsigned char* const second_box = warp.boxes[(first + 1) % kBuffers];
      int const next = number + 1 < kAtoms * kBoxesN ? number + 1 : number;
      if constexpr (kScaled && kScales<decltype(size(tCrC))::value>) {
        if (has_scales(epilogue)) multiply_by_scales(warp, row_of(number), column_of(number), z);
      }
      if (is_residual_ahead) {
        if (epilogue.bias.data != nullptr) {
          OperandBox<kBox<Out>, /*kAnyEnd=*/false, Word> bias;
          bias.load_present(warp, epilogue.bias, row_of(number), column_of(number));
          bias.add(warp, epilogue.bias, 1.0f, z);
        }
      } else {
        pairs.add(warp, addend, warp.params.scale, z);
        pairs.load(warp, epilogue.residual, row_of(number), column_of(number));
      }
      if (outputs == 2) fill_box(warp, second_box, z);
      activate_all<kRounded, /*kInTurn=*/is_same<Sum, int32_t>>(epilogue.activation, z);
      pairs.add(warp, epilogue.residual, 1.0f, z);
      load_ahead(next);
      fill_box(warp, box, z);
      store_results<Out>(warp, box, second_box, outputs, column_of(number), row_of(number));
    }
  }

  // ---- elements

  /// kCount: rows in which a lane finishes its element together.
  template <int kCount, class Epilogue, class Accumulators, class RowOf>
  static MOYE_DEVICE void store_elements(Epilogue const& epilogue, Accumulators const& tCrC,
                                         Sum (&sums)[kRows * kPitch], RowOf const& row, int column, int lane) {
    constexpr int kAtoms = decltype(size<1>(tCrC))::value;
    constexpr int kChunks = ceil_div(kColumns, kChunk);
    MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
        for (int step = 0; step < kAtoms * kChunks; ++step) {
      sync_warp();  // the step before has been read
      MOYE_UNROLL
      for (int i = 0; i < kAtoms; ++i) {
        MOYE_UNROLL
        for (int c = 0; c < kChunks; ++c) {  // accumulators are registers: their indices are constants
          if (step != i * kChunks + c) continue;
          MOYE_UNROLL
          for (int j = 0; j < kChunk / 8 && c * kChunk + j * 8 < kColumns; ++j) {
            MOYE_UNROLL
            for (int half = 0; half < 2; ++half) {
              int const first = (c * kChunk / 8 + j) * 4 + half * 2;
              Row<Sum, 2> const pair{convert<Sum>(tCrC(first, i, _0{})), convert<Sum>(tCrC(first + 1, i, _0{}))};
              Sum* const to = &sums[(half * 8 + lane / 4) * kPitch + j * 8 + lane % 4 * 2];
              *reinterpret_cast<uint64_t*>(to) = detail::bit_cast<uint64_t>(pair);
            }
          }
        }
      }
      sync_warp();
      int const first_row = row(step / kChunks), lane_column = step % kChunks * kChunk + lane;
      if (kColumns % kChunk != 0 && lane_column >= kColumns) continue;
      MOYE_NO_UNROLL
      for (int i = 0; i < kRows; i += kCount) {
        auto const sums_of = [&](int k) { return Row<Sum, 1>{sums[(i + k) * kPitch + lane]}; };
        epilogue.template store_rows<kCount>(sums_of, first_row + i, /*row_step=*/1, column + lane_column);
      }
    }
  }
};

}  // namespace moye
