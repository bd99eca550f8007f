// An operand of a Hopper kernel: its stages in shared memory as TMA writes and wgmma reads them, and the boxes that
// fill one. Rows of 128 bytes with the 128-byte swizzle, whatever the type and order:
//   k contiguous    one box (BLK_K, BLK) of 128 bytes along k
//   mn contiguous   one box (64, BLK_K) per 64 elements along m or n (16-bit elements only); the last one of a tile
//                   whose rows 64 does not divide is whole, too, and brings rows of the next tile that nobody reads
// CTAs of a cluster that need the same stage load a part of it each and multicast it to all of them.
#pragma once

#include "gemm/config.h"
#include "gemm/order.h"
#include "moye/arch/cluster.h"
#include "moye/arch/tensor_map.h"
#include "moye/arch/tma.h"
#include "moye/atom/gmma.h"
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

/// Makes the map of a batch of matrices: `contiguous` has stride 1. A batch that is broadcast (stride 0), or of one
/// matrix, is a mode of one. The box is one matrix deep.
template <class T>
Status make_matrix_map(TensorMap* map, void const* data, TensorMode contiguous, TensorMode other, TensorMode batch,
                       int box_contiguous, int box_other) {
  auto const bytes = [](int64_t elements) { return uint64_t(elements) * sizeof(T); };
  auto const dense = [&](int64_t elements) { return (bytes(elements) + 15) / 16 * 16; };  // a stride nobody uses
  bool const one_matrix = batch.size <= 1 || batch.stride == 0;
  TensorMapSpec spec{.type = tensor_map_type<T>(), .rank = 3, .address = data, .sizes = {}, .strides = {}, .box = {}};
  spec.sizes[0] = uint64_t(contiguous.size);
  spec.sizes[1] = uint64_t(other.size);
  spec.sizes[2] = one_matrix ? 1 : uint64_t(batch.size);
  spec.strides[0] = other.size == 1 ? dense(contiguous.size) : bytes(other.stride);
  spec.strides[1] = one_matrix ? spec.strides[0] : bytes(batch.stride);
  spec.box[0] = uint32_t(box_contiguous);
  spec.box[1] = uint32_t(box_other);
  spec.box[2] = 1;
  spec.swizzle = TensorMapSwizzle::b128;
  return make_tensor_map(map, spec);
}

/// The rows of a stage for a tile of `rows`, where they are contiguous: whole boxes.
constexpr int rows_of_boxes(int rows) { return (rows + 63) / 64 * 64; }

/// kBlk of m or n, 128 bytes along k, kStages of them; kSharers CTAs of the cluster load a stage together.
template <class T, Major kMajor, int kBlk, int kStages, int kSharers>
struct TmaOperand {
  static constexpr int kBlkK = 128 / int(sizeof(T));
  static constexpr int kRows = kMajor == Major::k ? kBlk : rows_of_boxes(kBlk);  // of a stage
  static constexpr int kStageBytes = kRows * 128;
  static_assert(kMajor == Major::k || (sizeof(T) == 2 && kBlk % 8 == 0), "mn-major: 16 bits, boxes begin at 16 bytes");
  static_assert(kMajor == Major::mn || (kRows % (8 * kSharers) == 0 && kRows / kSharers <= 256), "boxes of 8 rows");

  static constexpr int kBoxContiguous = kMajor == Major::k ? kBlkK : 64;
  static constexpr int kBoxOther = (kMajor == Major::k ? kRows : kBlkK) / kSharers;
  static constexpr int kBoxBytes = 128 * kBoxOther;

  static MOYE_HOST_DEVICE constexpr auto smem_layout() {
    constexpr auto kAtom = gmma_smem_atom<kGmmaMajor<kMajor>, T, 128>();
    constexpr auto kShape = make_shape(Int<kRows>{}, Int<kBlkK>{}, Int<kStages>{});
    if constexpr (kMajor == Major::k) {
      return tile_to_shape(kAtom, kShape);  // (ROWS,BLK_K,PIPE)
    } else {
      return tile_to_shape(kAtom, kShape, Step<_2, _1, _3>{});  // (ROWS,BLK_K,PIPE): a box's 64 rows lie together
    }
  }

  /// Host: the map for a (rows, k) operand with these strides.
  static Status make_map(TensorMap* map, void const* data, TensorMode rows, TensorMode k, TensorMode batch,
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

  /// Starts part `part` of kSharers of the stage at (row, k, batch), into all the CTAs that `mask` names. The bytes
  /// that arrive at each CTA's `full` from all parts together are kStageBytes.
  static MOYE_DEVICE void load(TensorMap const* map, uint64_t* full, unsigned char* stage, int row, int k, int batch,
                               int part, uint16_t mask MOYE_LOC) {
    MOYE_SITE;
    auto const box = [&](unsigned char* smem, int c0, int c1) {
      if constexpr (kSharers == 1) {
        tma_load(map, full, smem, c0, c1, batch);
      } else {
        tma_load_multicast(map, full, mask, smem, c0, c1, batch);
      }
    };
    if constexpr (kMajor == Major::k) {
      box(stage + part * kBoxBytes, k, row + part * kBoxOther);
    } else {
      MOYE_UNROLL
      for (int i = 0; i < kRows / 64; ++i) {
        box(stage + i * 64 * 128 + part * kBoxBytes, row + i * 64, k + part * kBoxOther);
      }
    }
  }
};

}  // namespace moye
