// What the emulator keeps in a TensorMap's 128 bytes.
#pragma once

#include <cstdint>

namespace moye::emu {

struct EncodedTensorMap {
  static constexpr uint32_t kMagic = 0x746d6170;
  static constexpr int kMaxRank = 5;

  uint64_t base;
  uint64_t sizes[kMaxRank];        // elements
  uint64_t strides[kMaxRank - 1];  // bytes, of modes 1, 2, ...
  uint16_t box[kMaxRank];          // elements
  uint8_t type;                    // a TensorMapType
  uint8_t element_bytes;
  uint8_t rank;
  uint8_t swizzle;  // a TensorMapSwizzle
  uint8_t fill;     // a TensorMapFill
  uint32_t magic;

  uint32_t box_bytes() const {
    uint32_t bytes = element_bytes;
    for (int i = 0; i < rank; ++i) bytes *= box[i];
    return bytes;
  }
};
static_assert(sizeof(EncodedTensorMap) <= 128, "it has to fit into a TensorMap");

}  // namespace moye::emu
