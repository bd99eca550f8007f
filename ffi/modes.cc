#include "modes.h"

#include <algorithm>
#include <cstddef>

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

}  // namespace

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
