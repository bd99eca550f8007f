// Rows of results that TMA cannot store, because they begin or end between two words of 16 bytes: threads store the
// boxes of gemm/epilogue_staging.h, shifted, so that global memory gets whole sectors of 32 bytes.
//   rows      in shared memory begin at the same place of a sector as in global memory: a thread's pairs of columns are
//             stored there as words, which the lanes of a row make of their own and the next one's where that is odd
//   sectors   of a row, whole ones: words of 16 bytes. A box's last sector, which the next box has the other end of, is
//             left for it
//   ends      of a tile's row, in front of its first whole sector and behind the last: two bytes a lane, once a sector
//   barriers  of a box: the box before has been read; the warp has filled it; the warp has read it
// Rows need not be shifted alike.
#pragma once

#include "gemm/activation.h"
#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "gemm/epilogue_box.h"
#include "gemm/epilogue_staging.h"
#include "moye/arch/barrier.h"
#include "moye/arch/config.h"
#include "moye/arch/convert.h"
#include "moye/arch/store.h"
#include "moye/arch/types.h"
#include "moye/arch/warp.h"
#include "moye/core.h"
#include "moye/tensor.h"

namespace moye {

/// 16 rows of a tile in global memory, as many bytes of each as there are: a warp's part of a result.
struct ShiftedRows {
  unsigned char* first;
  int64_t pitch;    // bytes from one row to the next
  int rows, bytes;  // there are

  /// Bytes by which a row begins behind a multiple of 32.
  MOYE_DEVICE int shift(int row) const {
    return int((uint32_t(reinterpret_cast<uintptr_t>(first)) + uint32_t(row) * uint32_t(pitch)) % 32);
  }
};

/// The rows of d, or of what lies at `data` as d does, from the tile's row `tile_row` on, kColumns of kItem bytes at
/// most. Warp: of gemm/epilogue_staging.h.
template <int kColumns, int kItem, class Warp>
MOYE_DEVICE ShiftedRows shifted_rows(Warp const& warp, void* data, int tile_row) {
  GemmArgs const& args = warp.args;
  int const row = warp.place.row + tile_row, left = int(args.n) - warp.column;
  int const bytes = (left < kColumns ? left : kColumns) * kItem;
  int64_t const first =
      matrix_offset(args, warp.place.matrix, args.d_batch_strides) + row * args.d_m_stride + warp.column;
  return {.first = static_cast<unsigned char*>(data) + first * kItem,
          .pitch = args.d_m_stride * kItem,
          .rows = warp.place.end - row,
          .bytes = shfl_sync(kFullWarp, bytes, 0)};  // ptxas has to know that no branch by it parts the lanes
}

/// Rows of shared memory that begin as far behind a multiple of 32 bytes as those of d in global memory: 16 of them, of
/// 128 bytes each. In front of these is the sector that the box before has left behind.
struct ShiftedBox {
  static constexpr int kRows = 16, kRowBytes = 128, kSector = 32, kWord = 16;  // bytes
  // Four rows lie in all banks, and four more between them: what a warp stores, 4 words of 8 rows, meets each bank once
  // if the rows are shifted alike.
  static constexpr int kPitch = kRowBytes + kSector, kGap = kWord;
  static constexpr int kBytes = kRows * kPitch + kRows / 4 * kGap, kLeftBytes = kRows * kSector;
  static constexpr int kWords = 16;  // of 4 bytes, that a thread has of a box

  unsigned char *rows, *left;  // kBytes; kLeftBytes

  /// A warp. Of rows lane / 4 and lane / 4 + 8 in turn, words has the columns 8j + lane % 4 * 2 and the next one, for
  /// j = 0, 1, ...: of 2 bytes both in a word, of 4 bytes one in each. is_first: no box is before it.
  template <int kItem>
  MOYE_DEVICE void fill(ShiftedRows const& d, uint32_t const (&words)[kWords], bool is_first, int lane) const {
    if (!is_first) store_shared(load_shared(*left_word(lane)), *word(lane % kRows, lane / kRows * kWord));
    sync_warp();  // the box before has been read, and what it has left is there
    MOYE_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const row = half * 8 + lane / 4, shift = d.shift(row);
      unsigned char* const p = place(row, shift + lane % 4 * 2 * kItem);
      if constexpr (kItem == 4) {
        MOYE_UNROLL
        for (int k = 0; k < kWords / 2; ++k)
          store_word(words[k / 2 * 4 + half * 2 + k % 2], p + k / 2 * 32 + k % 2 * 4);
      } else {
        // Where rows begin between two words, a word has the second column of a lane and the first one of the next.
        bool const is_odd = shift % 4 != 0;
        int const next_lane = lane - lane % 4 + (lane + 1) % 4;
        if (is_odd && lane % 4 == 0) *reinterpret_cast<uint16_t*>(p) = uint16_t(words[half]);
        unsigned char* const aligned = is_odd ? p + 2 : p;
        MOYE_UNROLL
        for (int j = 0; j < kWords / 2; ++j) {
          uint32_t const own = words[2 * j + half], after = j + 1 < kWords / 2 ? words[(2 * j + 2 + half) % kWords] : 0;
          uint32_t const next = shfl_sync(kFullWarp, lane % 4 == 0 ? after : own, next_lane);
          store_word(uint32_t((uint64_t(next) << 32 | own) >> (is_odd ? 16 : 0)), aligned + j * 16);
        }
      }
    }
  }

  /// A warp, which has filled it with the bytes [begin, begin + 128) of rows of d: stores what is not stored yet.
  /// before: bytes of a row that the boxes before had, of which whole sectors are stored; more than `begin` where the
  /// last box begins early.
  MOYE_DEVICE void store(ShiftedRows const& d, int begin, int before, int lane) const {
    sync_warp();  // the box is there
    store_sectors(d, begin, before, lane);
    bool const is_last = d.bytes <= begin + kRowBytes;
    MOYE_NO_UNROLL
    for (int end = before == 0 ? 0 : 1; end < (is_last ? 2 : 1); ++end) store_ends(d, begin, end == 1, lane);
    sync_warp();  // the box has been read
    if (!is_last) store_shared(load_shared(*word(lane % kRows, kRowBytes + lane / kRows * kWord)), *left_word(lane));
  }

 private:
  MOYE_DEVICE unsigned char* place(int row, int byte) const { return rows + row * kPitch + row / 4 * kGap + byte; }
  MOYE_DEVICE uint128_t* word(int row, int byte) const { return reinterpret_cast<uint128_t*>(place(row, byte)); }
  MOYE_DEVICE uint128_t* left_word(int lane) const { return reinterpret_cast<uint128_t*>(left + lane * kWord); }
  static MOYE_DEVICE void store_word(uint32_t value, unsigned char* p) { *reinterpret_cast<uint32_t*>(p) = value; }

  /// Four rows together, of each the eight words of its first four sectors.
  MOYE_DEVICE void store_sectors(ShiftedRows const& d, int begin, int before, int lane) const {
    unsigned char* p = d.first + lane / 8 * d.pitch;
    MOYE_UNROLL
    for (int i = 0; i < kRows; i += 4, p += 4 * d.pitch) {
      int const row = i + lane / 8, shift = int(uint32_t(reinterpret_cast<uintptr_t>(p)) % kSector);
      int const byte = begin + lane % 8 * kWord - shift;  // of the row
      int const sector = byte - lane % 2 * kWord;         // where it begins
      bool const is_whole = sector >= 0 && sector >= before - shift && sector + kSector <= d.bytes;
      if (row < d.rows && is_whole) {
        store_global(load_shared(*word(row, lane % 8 * kWord)), *reinterpret_cast<uint128_t*>(p + byte));
      }
    }
  }

  /// Two rows together, which share no bank: of each what lies in front of the first whole sector, or behind the last.
  MOYE_DEVICE void store_ends(ShiftedRows const& d, int begin, bool behind, int lane) const {
    int row = lane / 16 * 2;
    unsigned char* p = d.first + row * d.pitch;
    unsigned char const* in_box = place(row, lane % 16 * 2 - begin);
    // Four rows at a time, of which a lane has this one and the next.
    MOYE_NO_UNROLL
    for (int i = 0; i < kRows; i += 4, row += 4, p += 4 * d.pitch, in_box += 4 * kPitch + kGap) {
      MOYE_UNROLL
      for (int other = 0; other < 2; ++other) {
        unsigned char* const of_row = p + other * d.pitch;
        int const shift = int(uint32_t(reinterpret_cast<uintptr_t>(of_row)) % kSector);
        int const front = -shift & (kSector - 1);
        int const first = behind ? d.bytes - ((shift + d.bytes) & (kSector - 1)) : 0;
        int const at = first + lane % 16 * 2, end = behind || d.bytes < front ? d.bytes : front;
        if (row + other < d.rows && at < end && at >= (behind ? front : 0)) {
          auto const& element = *reinterpret_cast<uint16_t const*>(in_box + other * kPitch + shift + first);
          *reinterpret_cast<uint16_t*>(of_row + at) = element;
        }
        sync_warp();  // lanes without an element wait: each store is one request
      }
    }
  }
};

/// A warp's box number c of kColumns, of what lies at `data` as d does. It goes through the warp's buffers, where each
/// of two results leaves something behind. tile_row: the box's first. words: as above.
template <int kColumns, class Out, class Warp>
MOYE_DEVICE void store_shifted_box(Warp const& warp, void* data, int result, int c, int tile_row,
                                   uint32_t const (&words)[ShiftedBox::kWords]) {
  constexpr int kItem = int(sizeof(Out));
  static_assert(ShiftedBox::kBytes + 2 * ShiftedBox::kLeftBytes <= int(sizeof(warp.boxes)), "d and the pre-activation");
  ShiftedRows const d = shifted_rows<kColumns, kItem>(warp, data, tile_row);
  int const before = c * ShiftedBox::kRowBytes;
  if (before >= d.bytes) return;  // beside d
  unsigned char* const rows = warp.boxes[0];
  ShiftedBox const box{.rows = rows, .left = rows + ShiftedBox::kBytes + result * ShiftedBox::kLeftBytes};
  box.fill<kItem>(d, words, c == 0, warp.lane);
  box.store(d, first_column<kColumns, Out>(c) * kItem, before, warp.lane);
}

/// The sums as they are, a box at a time, through the warp's buffers.
template <class Out, class Warp, class Accumulators, class RowOf>
MOYE_DEVICE void store_converted_shifted(Warp const& tile, Accumulators const& tCrC, RowOf const& row) {
  constexpr int kColumns = Warp::kColumns, kBoxesN = ceil_div(kColumns, kBoxColumns<Out>);
  constexpr int kAtoms = decltype(size<1>(tCrC))::value;
  constexpr int kPerWord = 4 / int(sizeof(Out));
  MOYE_NO_UNROLL
  for (int number = 0; number < kAtoms * kBoxesN; ++number) {
    Warp const warp = computed_here(tile);
    uint32_t words[ShiftedBox::kWords] = {};
    with_box<kColumns, Out, kAtoms>(number, [&](int first, int i) {
      MOYE_UNROLL
      for (int k = 0; k < ShiftedBox::kWords; ++k) {
        auto const sum = [&](int j) { return tCrC(first + k * kPerWord + j, i, _0{}); };
        if constexpr (kPerWord == 2) {
          words[k] = pack_pair<Out>(static_cast<float>(sum(0)), static_cast<float>(sum(1)));
        } else {
          words[k] = detail::bit_cast<uint32_t>(static_cast<Out>(sum(0)));
        }
        MOYE_COMPUTED_HERE("+r", words[k]);  // or LLVM converts all of them first
      }
    });
    store_shifted_box<kColumns, Out>(warp, warp.args.d, /*result=*/0, number % kBoxesN, row(number / kBoxesN), words);
  }
}

/// As store_finished() of gemm/epilogue_sm90.h, without derivatives and scales. Nothing is under way while a box is
/// stored, which takes registers, too.
template <class Warp, class Accumulators, class RowOf>
MOYE_DEVICE void store_finished_shifted(Warp const& tile, Accumulators const& tCrC, RowOf const& row) {
  constexpr int kColumns = Warp::kColumns, kBoxesN = ceil_div(kColumns, kBoxColumns<uint16_t>);
  constexpr int kAtoms = decltype(size<1>(tCrC))::value;
  using Operand = OperandBox<kBoxColumns<uint16_t>, /*kAnyEnd=*/true>;
  EpilogueArgs const& epilogue = tile.args.epilogue;
  MOYE_NO_UNROLL
  for (int number = 0; number < kAtoms * kBoxesN; ++number) {
    Warp const warp = computed_here(tile);
    int const c = number % kBoxesN, tile_row = row(number / kBoxesN), column = warp.column + first_column<kColumns>(c);
    auto const store = [&](void* data, int result, float const(&z)[Operand::kSums]) {
      uint32_t words[ShiftedBox::kWords];
      MOYE_UNROLL
      for (int k = 0; k < ShiftedBox::kWords; ++k) {
        words[k] = warp.args.d_dtype == Dtype::bf16 ? pack_pair<bfloat16_t>(z[2 * k], z[2 * k + 1])
                                                    : pack_pair<half_t>(z[2 * k], z[2 * k + 1]);
      }
      store_shifted_box<kColumns, uint16_t>(warp, data, result, c, tile_row, words);
    };
    float z[Operand::kSums];
    take_sums<uint16_t>(warp, tCrC, number, z);
    Operand pairs;
    EpilogueOperand const& addend = epilogue.c.data != nullptr ? epilogue.c : epilogue.bias;
    pairs.load(warp, addend, tile_row, column);
    pairs.add(warp, addend, warp.params.scale, z);
    if (epilogue.preactivation != nullptr) store(epilogue.preactivation, /*result=*/1, z);
    activate_all</*kRounded=*/true, /*kInTurn=*/is_same<typename Warp::Sum, int32_t>>(epilogue.activation, z);
    pairs.load(warp, epilogue.residual, tile_row, column);
    pairs.add(warp, epilogue.residual, 1.0f, z);
    store(warp.args.d, /*result=*/0, z);
  }
}

}  // namespace moye
