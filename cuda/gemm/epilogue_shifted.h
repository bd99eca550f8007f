// Rows of results that TMA cannot store, because they begin or end between two words of 16 bytes: threads store the
// boxes of gemm/epilogue_sm90.h, shifted, so that global memory gets whole sectors of 32 bytes.
//   sectors   of a row, whole ones: words of 16 bytes, each out of two neighbouring pieces of shared memory. A box's last
//             sector, which the next box has the other end of, waits for it: the box leaves its last 32 bytes behind
//   ends      of a tile's row, in front of its first whole sector and behind the last: two bytes a lane, once a sector
//   barriers  of a box: the warp has filled it; the warp has read it, and it may be filled again
// Rows need not be shifted alike.
#pragma once

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/epilogue_box.h"
#include "gemm/shift.h"
#include "moye/arch/barrier.h"
#include "moye/arch/config.h"
#include "moye/arch/store.h"
#include "moye/arch/types.h"
#include "moye/arch/warp.h"
#include "moye/core.h"

namespace moye {

/// 16 rows of a tile in global memory, as many bytes of each as there are: a warp's part of a result.
struct ShiftedRows {
  unsigned char* first;
  int64_t pitch;    // bytes from one row to the next
  int rows, bytes;  // there are
};

/// The rows of d, or of what lies at `data` as d does, from the tile's row `tile_row` on, kColumns of kItem bytes at
/// most. Warp: of gemm/epilogue_sm90.h.
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

/// A box in shared memory, 16 rows of 128 bytes in the 128-byte swizzle, and what the box before has left behind.
struct ShiftedBox {
  static constexpr int kRows = 16, kRowBytes = 128, kSector = 32, kWord = 16;  // bytes
  static constexpr int kLeftBytes = kRows * kSector;

  unsigned char* box;
  int left;  // where that is: bytes behind the box's first one, kLeftBytes

  /// A warp, which has filled the box with the bytes [begin, begin + 128) of rows of d: stores what is not stored yet.
  /// before: bytes of a row that the boxes before had, of which whole sectors are stored; more than `begin` where the
  /// last box begins early.
  MOYE_DEVICE void store(ShiftedRows const& d, int begin, int before, int lane) const {
    if (before >= d.bytes) return;  // beside d
    sync_warp();                    // the box is there
    store_sectors(d, begin, before, lane);
    bool const is_last = d.bytes <= begin + kRowBytes;
    MOYE_NO_UNROLL
    for (int end = before == 0 ? 0 : 1; end < (is_last ? 2 : 1); ++end) store_ends(d, begin, end == 1, lane);
    int const row = lane % kRows, byte = kRowBytes - kSector + lane / kRows * kWord;
    uint128_t const last = word(row, byte);
    sync_warp();  // the box has been read
    store_shared(last, *reinterpret_cast<uint128_t*>(place(row, byte - kRowBytes)));
  }

 private:
  /// Of a byte of the box, or below 0 of the one before, whose last sectors lie in the banks in which they were.
  MOYE_DEVICE unsigned char* place(int row, int byte) const {
    int const line = byte >= 0 ? row * kRowBytes : left + (row / 8 * 2 + row % 2) * kRowBytes;
    return box + line + ((byte >> 4 & 7) ^ (row % 8)) * kWord + (byte & (kWord - 1));
  }

  MOYE_DEVICE uint128_t word(int row, int byte) const {
    return load_shared(*reinterpret_cast<uint128_t const*>(place(row, byte)));
  }

  /// Four rows together, of each the eight words that begin in the box or, by the shift, before it.
  MOYE_DEVICE void store_sectors(ShiftedRows const& d, int begin, int before, int lane) const {
    auto const store_rows = [&](int first_row, auto other) {
      int const row = first_row + other + lane / 8;
      unsigned char* const p = d.first + row * d.pitch;
      int const shift = int(reinterpret_cast<uintptr_t>(p) % kSector);
      int const at = lane % 8 * kWord - shift;           // of the box
      int const sector = begin + at - lane % 2 * kWord;  // of the row: where it begins
      bool const is_whole = sector >= 0 && sector >= before - shift && sector + kSector <= d.bytes;
      if (row < d.rows && is_whole) {
        int const low = at & -kWord;
        uint128_t const first = word(row, low);
        uint128_t const second = at == low ? first : word(row, low + kWord);
        store_global(shifted_words(first, second, at - low), *reinterpret_cast<uint128_t*>(p + begin + at));
      }
    };
    MOYE_NO_UNROLL
    for (int row = 0; row < kRows; row += 8) {
      store_rows(row, _0{});
      store_rows(row, _4{});
      sync_warp();  // lanes without a word wait: each store is one request
    }
  }

  /// Two rows together, which share no bank: of each what lies in front of the first whole sector, or behind the last.
  MOYE_DEVICE void store_ends(ShiftedRows const& d, int begin, bool behind, int lane) const {
    auto const store_rows = [&](int first_row, auto other) {
      int const row = first_row + other + lane / 16 * 4;
      unsigned char* const p = d.first + row * d.pitch;
      int const shift = int(reinterpret_cast<uintptr_t>(p) % kSector);
      int const front = -shift & (kSector - 1);
      int const back = front <= d.bytes ? (shift + d.bytes) % kSector : 0;
      int const first = behind ? d.bytes - back : 0, end = behind || d.bytes < front ? d.bytes : front;
      int const at = first + lane % 16 * 2;
      if (row < d.rows && at < end) {
        *reinterpret_cast<uint16_t*>(p + at) = *reinterpret_cast<uint16_t const*>(place(row, at - begin));
      }
    };
    MOYE_NO_UNROLL
    for (int row = 0; row < kRows; row += 8) {
      store_rows(row, _0{});
      store_rows(row, _1{});
      store_rows(row, _2{});
      store_rows(row, _3{});
      sync_warp();  // as above
    }
  }
};

/// A warp's box number c of kColumns, of what lies at `data` as d does. It is in the first of the warp's buffers; the
/// second one has what each of two results leaves behind. tile_row: the box's first.
template <int kColumns, class Out, class Warp>
MOYE_DEVICE void store_shifted_box(Warp const& warp, void* data, int result, int c, int tile_row) {
  constexpr int kItem = int(sizeof(Out));
  static_assert(2 * ShiftedBox::kLeftBytes <= int(sizeof(warp.boxes[0])), "d and the pre-activation");
  ShiftedBox const box{.box = warp.boxes[0], .left = int(sizeof(warp.boxes[0])) + result * ShiftedBox::kLeftBytes};
  box.store(shifted_rows<kColumns, kItem>(warp, data, tile_row), /*begin=*/first_column<kColumns, Out>(c) * kItem,
            /*before=*/c * kBoxColumns<Out> * kItem, warp.lane);
}

/// The same warp; what follows from a lane's number is computed anew, or it would take registers from box to box.
template <class Warp>
MOYE_DEVICE Warp computed_here(Warp warp) {
  MOYE_COMPUTED_HERE("+r", warp.lane);
  return warp;
}

}  // namespace moye
