// Of wgmma.cc: operands in shared memory, which are found as the hardware finds them: strides of the descriptor, then a
// swizzle of the address bits. So a wrong descriptor gives wrong values, and bytes outside shared memory a report.
#pragma once

#include <string>

#include "moye/emu/meeting.h"

namespace moye::emu {

inline constexpr int kKBytes = 32;  // of an operand's row, along k: what one wgmma multiplies

// "warp 3", with its block if the grid has more than one CTA: the warp issues, whichever lane is the last to come.
inline std::string warp_name(Thread const& thread) {
  Domain const& domain = *thread.domain;
  bool const one = domain.launch->clusters * domain.ctas.size() == 1;
  return (one ? "" : block_name(thread.cta->index) + " ") + format("warp %d", thread.warp->id);
}

/// What a descriptor says of an operand in shared memory.
struct Matrix {
  uint32_t start, leading, stride;  // bytes
  int swizzle;                      // bits: rows of 16 << swizzle bytes
  bool mn_major;

  uint32_t row() const { return 16u << swizzle; }

  /// The 16 bytes `chunk` (0 or 1) of row `mn`, K-major; those of 8 elements from 8 * mn on in column `chunk`,
  /// MN-major.
  uint32_t address(uint32_t mn, uint32_t chunk) const {
    uint32_t at;
    if (!mn_major) {
      at = mn % 8 * row() + mn / 8 * stride + chunk * (swizzle == 0 ? leading : 16);
    } else {
      uint32_t const width = row() / 16;
      uint32_t const next_mn = swizzle == 0 ? stride : leading, next_k = swizzle == 0 ? leading : stride;
      at = mn % width * 16 + mn / width * next_mn + chunk % 8 * row() + chunk / 8 * next_k;
    }
    at += start;
    return at ^ (at >> 7 & ((1u << swizzle) - 1)) << 4;
  }
};

// Bits 0-13 start address, 16-29 LBO, 32-45 SBO, all in 16 bytes; 49-51 base offset; 62-63 swizzle (PTX ISA, "Matrix
// Descriptor Format").
inline Matrix decode(uint64_t descriptor, bool mn_major) {
  static constexpr int kSwizzles[4] = {0, 3, 2, 1};
  auto field = [descriptor](int bit) { return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4; };
  return {field(0), field(16), field(32), kSwizzles[descriptor >> 62], mn_major};
}

inline void check_descriptor(Thread& thread, char operand, uint64_t descriptor, bool mn_major, int extent, Loc loc) {
  constexpr uint64_t kFields = 0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 3ull << 62;
  Matrix const matrix = decode(descriptor, mn_major);
  auto fail = [&](std::string const& problem) {
    thread.domain->fail([&] {
      return format("wgmma by %s at %s: the descriptor of %c, 0x%016llx, %s", warp_name(thread).c_str(),
                    at(loc).c_str(), operand, static_cast<unsigned long long>(descriptor), problem.c_str());
    });
  };
  if (uint64_t const base = descriptor >> 49 & 7; base != 0)
    fail(format("has a base offset of %d", static_cast<int>(base)));
  if ((descriptor & ~kFields) != 0) fail("has bits outside its fields");
  uint32_t const phase = matrix.start / 128 & ((1u << matrix.swizzle) - 1);
  if (phase != 0) {
    fail(format("begins at 0x%x, in row %u of the swizzle: tiles begin at multiples of %u bytes", matrix.start,
                phase * 128 / matrix.row(), 8 * matrix.row()));
  }
  // Without the stride the same bytes are read again.
  bool const two_rows = mn_major ? extent * 2 > static_cast<int>(matrix.row()) : extent > 8;
  bool const mn_by_leading = mn_major && matrix.swizzle != 0;
  bool const two_columns = mn_major || matrix.swizzle == 0;
  if (two_rows && (mn_by_leading ? matrix.leading : matrix.stride) == 0) {
    fail(format("has a %s byte offset of 0", mn_by_leading ? "leading" : "stride"));
  }
  if (two_columns && (mn_by_leading ? matrix.stride : matrix.leading) == 0) {
    fail(format("has a %s byte offset of 0", mn_by_leading ? "stride" : "leading"));
  }
}

/// Offset in the CTA's shared memory of 16 bytes.
inline uint32_t offset_of(Thread& thread, Matrix const& matrix, uint32_t mn, uint32_t chunk, char operand, Loc loc) {
  constexpr uint32_t kWindow = 0x400;  // as smem_ptr_to_u32
  uint32_t const address = matrix.address(mn, chunk);
  auto const size = static_cast<uint32_t>(thread.domain->launch->shape.smem_bytes);
  if (address < kWindow || address - kWindow + 16 > size) {
    thread.domain->fail([&] {
      return format(
          "out of bounds: wgmma by %s at %s: the descriptor of %c (start 0x%x, LBO %u, SBO %u, rows of %u bytes) leads "
          "to offset %lld of shared memory (%u bytes)",
          warp_name(thread).c_str(), at(loc).c_str(), operand, matrix.start, matrix.leading, matrix.stride,
          matrix.row(), static_cast<long long>(address) - kWindow, size);
    });
  }
  return address - kWindow;
}

/// Calls visit(mn, k byte, offset) for each 16 bytes of `rows` rows of the matrix from first_row on; for an MN-major
/// one mn counts groups of 8 rows and the k byte is 2 * k.
template <class Visit>
void for_each_chunk(Thread& thread, Matrix const& matrix, int first_row, int rows, char operand, Loc loc,
                    Visit const& visit) {
  int const first = matrix.mn_major ? first_row / 8 : first_row, count = matrix.mn_major ? rows / 8 : rows;
  int const chunks = matrix.mn_major ? kKBytes / 2 : kKBytes / 16;
  for (int i = 0; i < count; ++i) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      visit(i, chunk,
            offset_of(thread, matrix, static_cast<uint32_t>(first + i), static_cast<uint32_t>(chunk), operand, loc));
    }
  }
}

}  // namespace moye::emu
