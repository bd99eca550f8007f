#include "modes.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace moye {
namespace {

/// Sets `offset` to the largest that the modes reach. False where it is over int64.
bool largest_offset(std::span<Mode const> modes, int64_t& offset) {
  offset = 0;
  for (Mode const mode : modes) {
    int64_t extent;
    if (__builtin_mul_overflow(mode.size - 1, mode.stride, &extent)) return false;
    if (__builtin_add_overflow(offset, extent, &offset)) return false;
  }
  return true;
}

/// The modes with strides of a block's size and more, or those inside of a block; in the order of their strides.
std::array<Mode, 5> modes_of(PlacedModes const& part, int64_t block, bool are_outer) {
  std::array<Mode, 5> found;
  found.fill({1, 0});
  size_t count = 0;
  for (Mode const mode : part.modes) {
    if (mode.size > 1 && (mode.stride >= block) == are_outer) found[count++] = mode;
  }
  std::sort(found.begin(), found.begin() + count, [](Mode left, Mode right) { return left.stride < right.stride; });
  return found;
}

/// Whether they do so in blocks of this size, each part in one piece of a block.
bool cover_blocks(std::span<PlacedModes const> parts, int64_t elements, int64_t block) {
  auto const is_same = [](Mode left, Mode right) { return left.size == right.size && left.stride == right.stride; };
  std::array<Mode, 5> outer = modes_of(parts[0], block, true);
  std::vector<std::pair<int64_t, int64_t>> pieces;  // first element, and their number
  for (PlacedModes const& part : parts) {
    auto const inner = modes_of(part, block, false), others = modes_of(part, block, true);
    if (!std::equal(outer.begin(), outer.end(), others.begin(), is_same)) return false;
    int64_t count = 1;
    for (Mode const mode : inner) {
      if (__builtin_mul_overflow(count, mode.size, &count)) return false;
    }
    if (!covers_exactly(inner, count)) return false;
    pieces.emplace_back(part.first, count);
  }
  std::sort(pieces.begin(), pieces.end());
  int64_t end = 0;
  for (auto const [first, count] : pieces) {
    if (first != end) return false;
    end += count;
  }
  outer.back() = {block, 1};
  return end == block && covers_exactly(outer, elements);
}

}  // namespace

bool cover_together(std::span<PlacedModes const> parts, int64_t elements) {
  if (parts.empty()) return elements == 0;
  for (PlacedModes const& part : parts) {
    if (has_no_element(part.modes)) return elements == 0;
  }
  auto const is_block = [&](Mode mode) { return mode.size > 1 && cover_blocks(parts, elements, mode.stride); };
  auto const& modes = parts.front().modes;
  return cover_blocks(parts, elements, elements) || std::any_of(modes.begin(), modes.end(), is_block);
}

std::string to_text(std::span<int64_t const> values) {
  std::string text = "(";
  for (size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + ")";
}

bool has_no_element(std::span<Mode const> modes) {
  return std::any_of(modes.begin(), modes.end(), [](Mode mode) { return mode.size == 0; });
}

std::string outside(char const* name, std::span<Mode const> modes, int64_t elements, int64_t first) {
  if (has_no_element(modes)) return {};
  int64_t offset;
  if (largest_offset(modes, offset) && !__builtin_add_overflow(offset, first, &offset) && offset < elements) return {};
  std::string const has = std::string(name) + " has " + std::to_string(elements) + " elements, and its strides ";
  return has + (first == 0 ? "" : "from " + std::to_string(first) + " on ") + "reach beyond them";
}

}  // namespace moye
