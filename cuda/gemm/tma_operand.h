// An operand of a Hopper kernel: its stages in shared memory as TMA writes and wgmma reads them, and the boxes that
// fill one. Rows of 128 bytes with the 128-byte swizzle, whatever the type and order:
//   k contiguous    one box (BLK_K, BLK) of 128 bytes along k
//   mn contiguous   one box of 128 bytes along m or n and BLK_K; the last one of a tile whose rows 64 does not divide is
//                   whole, too, and brings rows of the next tile that nobody reads. (wgmma reads 16 bits alone so.)
// CTAs of a cluster that need the same stage load a part of it each and multicast it to all of them.
//   TmaOperand     one operand: its layout, its map, its loads
//   TmaOperands    a and b of a config in one order, and the TiledMma that reads their stages
//   OperandStages  both in shared memory
//   OperandMaps    the tensor maps of both, made by the host for each call
// With a second b (EpilogueArgs) a stage has half a tile's rows of each, so that columns of both products of d are sums
// of the same thread.
//   MapCoord       where a matrix of a batch lies in such a map: one coordinate, or one for each batch mode
#pragma once

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue.h"
#include "gemm/order.h"
#include "gemm/tile_scheduler.h"
#include "moye/arch/cluster.h"
#include "moye/arch/tensor_map.h"
#include "moye/arch/tma.h"
#include "moye/atom/gmma.h"
#include "moye/atom/mma_traits_sm90.h"
#include "moye/tensor.h"

namespace moye {

template <Major kMajor>
inline constexpr GMMA::Major kGmmaMajor = kMajor == Major::k ? GMMA::Major::K : GMMA::Major::MN;

template <class T>
constexpr TensorMapType tensor_map_type() {
  if constexpr (is_same<T, bfloat16_t>) {
    return TensorMapType::bf16;
  } else if constexpr (is_same<T, half_t>) {
    return TensorMapType::f16;
  } else if constexpr (is_same<T, tfloat32_t>) {
    return TensorMapType::tf32;
  } else if constexpr (sizeof(T) == 4) {
    return TensorMapType::f32;
  } else {
    return TensorMapType::u8;
  }
}

/// A mode of a tensor in global memory; strides in elements.
struct TensorMode {
  int64_t size, stride;
};

/// The batch modes of an operand as its map has them, behind the two of a matrix, innermost first: one of them in a map
/// of rank 3, all in one of rank 5. One along which the operand does not move (size 1, or stride 0: broadcast) is a
/// mode of one.
struct BatchOfMap {
  TensorMode modes[kBatchModes];
  int rank;
};

/// Whether an operand moves along several modes of the batch, for which a map needs rank 5.
inline bool moves_along_several(GemmArgs const& args, BatchStrides const& strides) {
  int moving = 0;
  for (int i = 0; i < kBatchModes; ++i) moving += args.batch_sizes.modes[i] > 1 && strides.modes[i] != 0;
  return moving > 1;
}

inline BatchOfMap batch_of_map(GemmArgs const& args, BatchStrides const& strides, int rank) {
  BatchOfMap batch{.modes = {{1, 0}, {1, 0}, {1, 0}}, .rank = rank};
  for (int i = 0; i < kBatchModes; ++i) {
    TensorMode const mode{args.batch_sizes.modes[i], strides.modes[i]};
    if (mode.size > 1 && mode.stride != 0) batch.modes[rank == 3 ? 0 : kBatchModes - 1 - i] = mode;
  }
  return batch;
}

/// Coordinates behind the two of a matrix's box; in a map of rank 3 the first alone.
struct MapCoord {
  int c2, c3, c4;
};

/// Of a matrix in a map that batch_of_map describes.
template <int kRank>
MOYE_DEVICE MapCoord map_coord(BatchCoord const& matrix, BatchStrides const& strides) {
  auto const coord = [&](int i) { return strides.modes[i] == 0 ? 0 : matrix.modes[i]; };
  if constexpr (kRank == 3) return {coord(0) + coord(1) + coord(2), 0, 0};  // at most one of them is not 0
  return {coord(2), coord(1), coord(0)};
}

/// Makes the map of a batch of matrices: `contiguous` has stride 1. The box is one matrix deep.
template <class T>
Status make_matrix_map(TensorMap* map, void const* data, TensorMode contiguous, TensorMode other,
                       BatchOfMap const& batch, int box_contiguous, int box_other) {
  auto const bytes = [](int64_t elements) { return uint64_t(elements) * sizeof(T); };
  auto const dense = [&](int64_t elements) { return (bytes(elements) + 15) / 16 * 16; };  // a stride nobody uses
  TensorMapSpec spec{
      .type = tensor_map_type<T>(), .rank = batch.rank, .address = data, .sizes = {}, .strides = {}, .box = {}};
  spec.sizes[0] = uint64_t(contiguous.size);
  spec.sizes[1] = uint64_t(other.size);
  spec.strides[0] = other.size == 1 ? dense(contiguous.size) : bytes(other.stride);
  spec.box[0] = uint32_t(box_contiguous);
  spec.box[1] = uint32_t(box_other);
  for (int i = 2; i < batch.rank; ++i) {
    TensorMode const mode = batch.modes[i - 2];
    spec.sizes[i] = uint64_t(mode.size);
    spec.strides[i - 1] = mode.size == 1 ? spec.strides[0] : bytes(mode.stride);
    spec.box[i] = 1;
  }
  spec.swizzle = TensorMapSwizzle::b128;
  return make_tensor_map(map, spec);
}

/// The rows of a stage for a tile of `rows`, where they are contiguous: whole boxes, of 16-bit elements 64 each.
constexpr int rows_of_boxes(int rows, int of_box = 64) { return (rows + of_box - 1) / of_box * of_box; }

/// What one CTA loads of a stage that kSharers CTAs of its cluster need: part `part`, into the CTAs that `mask` names.
/// hint: of what no other CTA needs.
struct Multicast {
  int part = 0;
  uint16_t mask = 1;
  CacheHint hint = CacheHint::none;
};

/// Of an operand that so many rows or columns of tiles read. What is read once leaves the L2 cache before what others
/// need.
MOYE_HOST_DEVICE constexpr CacheHint hint_of(int readers) {
  return readers == 1 ? CacheHint::evict_first : CacheHint::evict_normal;
}

/// kBlk of m or n, 128 bytes along k, kStages of them; kSharers CTAs of the cluster load a stage together.
/// kBoxRows: of a box where k is contiguous; 0: all that a CTA loads.
template <class T, Major kMajor, int kBlk, int kStages, int kSharers, int kBoxRows = 0>
struct TmaOperand {
  static constexpr int kBlkK = 128 / int(sizeof(T));
  static constexpr int kRows = kMajor == Major::k ? kBlk : rows_of_boxes(kBlk, kBlkK);  // of a stage
  static constexpr int kStageBytes = kRows * 128;
  static constexpr int kStageElements = kRows * kBlkK;
  static_assert(kMajor == Major::k || (sizeof(T) == 2 && kBlk % 8 == 0) || (sizeof(T) == 4 && kBlk % 4 == 0),
                "mn-major: 16 or 32 bits, boxes begin at 16 bytes");
  static_assert(kMajor == Major::mn || (kRows % (8 * kSharers) == 0 && kRows / kSharers <= 256), "boxes of 8 rows");

  static constexpr int kBoxContiguous = kBlkK;  // 128 bytes
  static constexpr int kBoxOther =
      kMajor == Major::k && kBoxRows > 0 ? kBoxRows : (kMajor == Major::k ? kRows : kBlkK) / kSharers;
  static_assert(kMajor == Major::mn || (kBoxOther % 8 == 0 && kRows % (kBoxOther * kSharers) == 0), "boxes of 8 rows");
  static constexpr int kBoxBytes = 128 * kBoxOther;

  static MOYE_HOST_DEVICE constexpr auto smem_layout() {
    constexpr auto kAtom = gmma_smem_atom<kGmmaMajor<kMajor>, T, 128>();
    constexpr auto kShape = make_shape(Int<kRows>{}, Int<kBlkK>{}, Int<kStages>{});
    if constexpr (kMajor == Major::k) {
      return tile_to_shape(kAtom, kShape);  // (ROWS,BLK_K,PIPE)
    } else {
      return tile_to_shape(kAtom, kShape, Step<_2, _1, _3>{});  // (ROWS,BLK_K,PIPE): a box's rows lie together
    }
  }

  /// Host: the map for a (rows, k) operand with these strides.
  static Status make_map(TensorMap* map, void const* data, TensorMode rows, TensorMode k, BatchOfMap const& batch,
                         int box_other = kBoxOther) {
    return kMajor == Major::k ? make_matrix_map<T>(map, data, k, rows, batch, kBoxContiguous, box_other)
                              : make_matrix_map<T>(map, data, rows, k, batch, kBoxContiguous, box_other);
  }

  /// The box_other of a map that leaves out what lies beyond all rows of the operand, if there are fewer than in a
  /// tile: TMA is slower to fill those with zeros. What the stage has there is arbitrary, and reaches nothing of d.
  static MOYE_HOST_DEVICE constexpr int box_of_few(int64_t rows) {
    return kMajor == Major::k && kSharers == 1 && rows < kBoxOther ? int(rows) : kBoxOther;
  }
  /// Bytes of a stage that arrive through a map of box_other.
  static MOYE_HOST_DEVICE constexpr uint32_t stage_bytes(int box_other) {
    return uint32_t(kStageBytes / kBoxOther * box_other);
  }

  /// Stage `index` of those from `stages` on.
  static MOYE_DEVICE T* stage(T* stages, int index) { return stages + index * kStageElements; }

  /// Where a stage has half its rows of each of two operands: the box_other of both maps.
  static constexpr int kBoxOfPair = kMajor == Major::k ? kBoxOther / 2 : kBoxOther;
  static constexpr bool kHoldsPair = kSharers == 1 && kRows == kBlk && kRows % 128 == 0;

  /// Boxes side by side along the rows of a stage, and of them those that begin before `rows_left` rows have ended.
  static constexpr int kRowsOfBox = kMajor == Major::k ? kBoxOther : kBoxContiguous;
  static constexpr int kBoxes = kRows / (kRowsOfBox * (kMajor == Major::k ? kSharers : 1));
  static MOYE_DEVICE int boxes_of(int rows_left) {
    return rows_left >= kRows ? kBoxes : (rows_left + kRowsOfBox - 1) / kRowsOfBox;
  }

  /// Starts this CTA's part of the loads of a stage: the matrix at `matrix` from (row, k) on. The bytes that arrive at
  /// each CTA's `full` from all parts together are kStageBytes.
  /// boxes: the first of them alone, kStageBytes / kBoxes for each; the others keep what they have.
  template <int kRank>
  static MOYE_DEVICE void load(TensorMap const* map, uint64_t* full, T* stage, int row, int k, MapCoord const& matrix,
                               Multicast const& multicast, int boxes = kBoxes MOYE_LOC) {
    MOYE_SITE;
    auto* const bytes = reinterpret_cast<unsigned char*>(stage);
    int const part = multicast.part;
    auto const box = [&](unsigned char* smem, int c0, int c1) {
      load_box<kRank>(map, full, smem, c0, c1, matrix, multicast);
    };
    if constexpr (kMajor == Major::k) {
      MOYE_UNROLL
      for (int i = 0; i < kBoxes; ++i) {
        if (i >= boxes) break;
        box(bytes + (i + part) * kBoxBytes, k, row + (i + part) * kBoxOther);
      }
    } else {
      MOYE_UNROLL
      for (int i = 0; i < kBoxes; ++i) {
        if (i >= boxes) break;
        box(bytes + i * kBlkK * 128 + part * kBoxBytes, row + i * kBoxContiguous, k + part * kBoxOther);
      }
    }
  }

  /// The same from two maps, whose boxes are kBoxOfPair: the rows from `row` on of both, half a stage of each.
  template <int kRank>
  static MOYE_DEVICE void load_pair(TensorMap const* first, TensorMap const* second, uint64_t* full, T* stage, int row,
                                    int k, MapCoord const& matrix, Multicast const& multicast MOYE_LOC) {
    static_assert(kHoldsPair);
    MOYE_SITE;
    auto* const bytes = reinterpret_cast<unsigned char*>(stage);
    MOYE_UNROLL
    for (int i = 0; i < 2; ++i) {
      TensorMap const* const map = i == 0 ? first : second;
      unsigned char* const half = bytes + i * (kStageBytes / 2);
      if constexpr (kMajor == Major::k) {
        load_box<kRank>(map, full, half, k, row, matrix, multicast);
      } else {
        MOYE_UNROLL
        for (int j = 0; j < kBoxes / 2; ++j)
          load_box<kRank>(map, full, half + j * kBlkK * 128, row + j * kBoxContiguous, k, matrix, multicast);
      }
    }
  }

 private:
  template <int kRank>
  static MOYE_DEVICE void load_box(TensorMap const* map, uint64_t* full, unsigned char* smem, int c0, int c1,
                                   MapCoord const& matrix, Multicast const& multicast MOYE_LOC) {
    MOYE_SITE;
    auto const [c2, c3, c4] = matrix;
    if constexpr (kSharers == 1) {
      if constexpr (kRank == 3) return tma_load(map, full, smem, c0, c1, c2, multicast.hint);
      if constexpr (kRank == 4) return tma_load(map, full, smem, c0, c1, c2, c3, multicast.hint);
      if constexpr (kRank == 5) return tma_load(map, full, smem, c0, c1, c2, c3, c4, multicast.hint);
    } else {
      if constexpr (kRank == 3) return tma_load_multicast(map, full, multicast.mask, smem, c0, c1, c2);
      if constexpr (kRank == 5) return tma_load_multicast(map, full, multicast.mask, smem, c0, c1, c2, c3, c4);
    }
  }
};

/// Whether a kernel of this config computes calls with a second b: a stage holds half a tile of each, a thread's
/// columns lie in both halves, and it has registers to multiply them.
constexpr bool can_take_pair(GemmConfig const& config) {
  bool const holds =
      item_bytes(config.dtype) == 2 && config.alignment == 16 && config.tile.n % 128 == 0 && config.cluster.m == 1;
  int const sums = config.tile.m * config.tile.n / 128;  // of a thread, of one warpgroup
  switch (config.kernel) {
    case Kernel::sm90_split_k:
      return holds;
    case Kernel::sm90_pingpong:  // their producers have few registers: two boxes of each stage
    case Kernel::sm90_grouped:
      return holds && sums <= 128 && config.tile.n == 128;
    case Kernel::sm90_cooperative:
      return holds && config.tile.m % 128 == 0 && sums <= 256;
    default:
      return false;
  }
}
template <GemmConfig kConfig>
inline constexpr bool kTakesPair = can_take_pair(kConfig);

/// Columns of d in a tile: half of the config's where they are products of two b.
template <GemmConfig kConfig>
MOYE_HOST_DEVICE constexpr int tile_columns(GemmArgs const& args) {
  return args.epilogue.second_b != nullptr ? kConfig.tile.n / 2 : kConfig.tile.n;
}

/// a and b of a config in one order. kConsumers: warpgroups that multiply a tile together, along m and n. kMulticast:
/// the cluster whose CTAs share stages, those of a row of it a's, those of a column b's. kBoxRowsOfA: as kBoxRows.
template <GemmConfig kConfig, Order kOrder, ClusterMN kConsumers, ClusterMN kMulticast, int kBoxRowsOfA = 0>
struct TmaOperands {
  using ElementA = ElementOfA<kConfig.dtype>;
  using ElementB = ElementOfB<kConfig.dtype>;
  using Sum = typename Accumulator<kConfig.accumulator>::Sum;
  using A = TmaOperand<ElementA, kMajorOfA<kOrder>, kConfig.tile.m, kConfig.stages, kMulticast.n,
                       kMajorOfA<kOrder> == Major::k ? kBoxRowsOfA : 0>;
  using B = TmaOperand<ElementB, kMajorOfB<kOrder>, kConfig.tile.n, kConfig.stages, kMulticast.m>;
  static_assert(kConfig.tile.k == A::kBlkK, "a k-tile is one swizzled row of 128 bytes");
  static constexpr uint32_t kStageBytes = A::kStageBytes + B::kStageBytes;

  template <int kColumns>
  using MmaOp = SM90_WGMMA_SS<kColumns, Sum, ElementA, ElementB, kGmmaMajor<kMajorOfA<kOrder>>,
                              kGmmaMajor<kMajorOfB<kOrder>>, GMMA::ScaleIn::One, GMMA::ScaleIn::One>;
  using Warpgroups = Layout<Shape<Int<kConsumers.m>, Int<kConsumers.n>, _1>>;
  using TiledMma = decltype(make_tiled_mma(MmaOp<kConfig.tile.n / kConsumers.n>{}, Warpgroups{}));
  // Of whole boxes: makes the descriptors of B, which are TiledMma's but may lead to more columns than it reads.
  using TiledMmaOfB = decltype(make_tiled_mma(MmaOp<B::kRows / kConsumers.n>{}, Warpgroups{}));
};

/// Whether a's tiles have fewer rows than a box of contiguous ones: kernels take such an a along k alone.
template <GemmConfig kConfig>
inline constexpr bool kFewRows = kConfig.tile.m < 64;

/// The stages of both operands in shared memory, as large as any order needs them.
template <GemmConfig kConfig>
struct OperandStages {
  static constexpr int kRowsOfA = kFewRows<kConfig> ? kConfig.tile.m : rows_of_boxes(kConfig.tile.m);
  alignas(1024) ElementOfA<kConfig.dtype> a[kRowsOfA * kConfig.tile.k * kConfig.stages];
  alignas(1024) ElementOfB<kConfig.dtype> b[rows_of_boxes(kConfig.tile.n) * kConfig.tile.k * kConfig.stages];
};

struct OperandMaps {
  TensorMap a, b;
  TensorMap second_b;  // empty where there is none
  int rank;            // of all, 3 or 5
};

/// One thread, first of all: the first load does not wait for its map.
MOYE_DEVICE void prefetch_maps(OperandMaps const& maps) {
  prefetch_tensor_map(&maps.a);
  prefetch_tensor_map(&maps.b);
}

/// Host: the maps of b, of rank 3 or 5 as maps->rank says, and of the second one, if there is one.
/// box_b: see box_of_few.
template <class Operands>
Status make_maps_of_b(GemmArgs const& args, OperandMaps* maps, int box_b) {
  BatchOfMap const batch = batch_of_map(args, args.b_batch_strides, maps->rank);
  auto const make_b = [&](TensorMap* map, void const* data, int box) {
    return Operands::B::make_map(map, data, {args.n, args.b_n_stride}, {args.k, args.b_k_stride}, batch, box);
  };
  if (args.epilogue.second_b == nullptr) return make_b(&maps->b, args.b, box_b);
  if (Status const of_b = make_b(&maps->b, args.b, Operands::B::kBoxOfPair); !of_b.ok()) return of_b;
  return make_b(&maps->second_b, args.epilogue.second_b, Operands::B::kBoxOfPair);
}

/// Host: the maps of a call. Without k there is nothing to load, and they stay empty. box_a, box_b: see box_of_few.
template <class Operands>
Status make_operand_maps(GemmArgs const& args, OperandMaps* maps, int box_a = Operands::A::kBoxOther,
                         int box_b = Operands::B::kBoxOther) {
  *maps = {};
  if (args.k == 0) return {};
  maps->rank =
      moves_along_several(args, args.a_batch_strides) || moves_along_several(args, args.b_batch_strides) ? 5 : 3;
  BatchOfMap const batch_a = batch_of_map(args, args.a_batch_strides, maps->rank);
  Status const status =
      Operands::A::make_map(&maps->a, args.a, {args.m, args.a_m_stride}, {args.k, args.a_k_stride}, batch_a, box_a);
  return status.ok() ? make_maps_of_b<Operands>(args, maps, box_b) : status;
}

/// Where the matrices of a tile lie in both maps. kMapRank: as of load_stage().
struct OperandCoords {
  MapCoord a, b;
};

template <int kMapRank = 0>
MOYE_DEVICE OperandCoords operand_coords(GemmArgs const& args, OperandMaps const& maps, TileCoord const& tile) {
  BatchCoord const matrix = batch_coord(args.batch_sizes, tile.batch);
  if (kMapRank == 3 || (kMapRank == 0 && maps.rank == 3))
    return {map_coord<3>(matrix, args.a_batch_strides), map_coord<3>(matrix, args.b_batch_strides)};
  return {map_coord<5>(matrix, args.a_batch_strides), map_coord<5>(matrix, args.b_batch_strides)};
}

/// Of the two operands.
struct Which {
  bool a = true, b = true;
};

/// What lasts while the kernel ahead still runs, as the call says.
MOYE_DEVICE Which early_operands_of(GemmArgs const& args) {
  return {.a = (args.early & kEarlyA) != 0, .b = (args.early & kEarlyB) != 0};
}
/// The first stages are filled in two passes, 0 with `early` and 1 with the others; pass 2 fills the later ones.
MOYE_DEVICE Which of_pass(int pass, Which early) {
  return {.a = pass == 2 || early.a == (pass == 0), .b = pass == 2 || early.b == (pass == 0)};
}

/// Starts this CTA's loads of stage `stage`: k-tile `k_tile` of `tile`, whose matrices lie at `coords`. What arrives
/// reports to `full`.
///
/// which: of the operands are loaded. kMayBePair: whether this call may have a second b, if any may. kMapRank: of the
/// maps, where the kernel has a loop for each; 0: either.
template <class Operands, bool kMayBePair, int kMapRank = 0, GemmConfig kConfig>
MOYE_DEVICE void load_stage(
    GemmArgs const& args, OperandMaps const& maps, TileCoord const& tile, OperandCoords const& coords, int k_tile,
    OperandStages<kConfig>& stages, int stage, uint64_t* full, Multicast const& multicast_a,
    Multicast const& multicast_b, Which which = {} MOYE_LOC) {
  MOYE_SITE;
  using A = typename Operands::A;
  using B = typename Operands::B;
  int const m = tile.m * kConfig.tile.m, n = tile.n * kConfig.tile.n, k = k_tile * kConfig.tile.k;
  auto const load = [&](auto rank) {
    constexpr int kRank = decltype(rank)::value;
    if (which.a) A::template load<kRank>(&maps.a, full, A::stage(stages.a, stage), m, k, coords.a, multicast_a);
    if (!which.b) return;
    if constexpr (kTakesPair<kConfig> && kMayBePair) {
      if (args.epilogue.second_b != nullptr) {
        B::template load_pair<kRank>(&maps.b, &maps.second_b, full, B::stage(stages.b, stage), n / 2, k, coords.b,
                                     multicast_b);
        return;
      }
    }
    B::template load<kRank>(&maps.b, full, B::stage(stages.b, stage), n, k, coords.b, multicast_b);
  };
  // Each has instructions of its own: most calls need one coordinate of a matrix.
  if (kMapRank == 3 || (kMapRank == 0 && maps.rank == 3)) {
    load(_3{});
  } else {
    load(_5{});
  }
}

}  // namespace moye
