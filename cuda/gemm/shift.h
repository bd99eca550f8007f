// What lies between two aligned words of 16 bytes.
#pragma once

#include "moye/arch/config.h"
#include "moye/arch/types.h"

namespace moye {

/// 16 bytes from byte `shift` of `low` on, 0 to 15, of which the rest are the first ones of `high`.
MOYE_DEVICE uint128_t shifted_words(uint128_t const& low, uint128_t const& high, int shift) {
  uint32_t words[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  MOYE_UNROLL
  for (int i = 0; i < 6; ++i) words[i] = shift & 8 ? words[i + 2] : words[i];
  MOYE_UNROLL
  for (int i = 0; i < 5; ++i) words[i] = shift & 4 ? words[i + 1] : words[i];
  int const bits = shift % 4 * 8;
  MOYE_UNROLL
  for (int i = 0; i < 4; ++i) words[i] = uint32_t((uint64_t(words[i + 1]) << 32 | words[i]) >> bits);
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace moye
