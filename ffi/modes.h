// Modes of an array in memory: whether they stay inside a buffer, and whether they take each element of it once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moye {

/// The largest size of a mode, and the largest number of tiles, which CTAs count in 32 bits.
inline constexpr int64_t kMaxSize = 0x7fffffff;

struct Mode {
  int64_t size, stride;  // elements
};

/// "(1, 2, 3)"
std::string to_text(std::span<int64_t const> values);

/// Whether they have no element.
bool has_no_element(std::span<Mode const> modes);

/// Why the modes of an operand, the first element of which is the buffer's at `first`, do not lie inside its buffer of
/// so many elements; empty if they do.
std::string outside(char const* name, std::span<Mode const> modes, int64_t elements, int64_t first = 0);

/// Whether the modes take every element of a buffer of `elements` exactly once: as many coordinates as elements, none
/// beyond the end (checked before), and no two the same because each stride steps over all the smaller modes.
template <size_t kModes>
bool covers_exactly(std::array<Mode, kModes> modes, int64_t elements) {
  if (has_no_element(modes)) return elements == 0;
  std::sort(modes.begin(), modes.end(), [](Mode left, Mode right) { return left.stride < right.stride; });
  int64_t count = 1, reach = 0;
  for (Mode const mode : modes) {
    if (__builtin_mul_overflow(count, mode.size, &count)) return false;
    if (mode.size == 1) continue;
    if (mode.stride <= reach) return false;
    reach += (mode.size - 1) * mode.stride;
  }
  return count == elements;
}

/// The modes of a part of an array, and its element that is their first.
struct PlacedModes {
  std::array<Mode, 4> modes;
  int64_t first;
};

/// Whether parts of an array of `elements` take every one of them exactly once, each inside of it (checked before):
/// side by side in blocks that repeat along the same modes, as the parts of each row of a matrix do.
bool cover_together(std::span<PlacedModes const> parts, int64_t elements);

}  // namespace moye
