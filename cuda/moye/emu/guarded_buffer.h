// Memory for operands of emulated kernels that makes an access outside it visible.
#pragma once

#include <cstddef>
#include <string>

namespace moye::emu {

/// An array between two inaccessible megabytes. Its end (or start) lies at one of them, as near as `alignment` of the
/// start allows; the accessible bytes around the array are guard bands of 0xff, NaN in every float type. The array
/// itself starts as 0xff bytes too. A read or write beyond them is a fault, which the emulator turns into a report; a
/// read of a band yields NaN; a write to a band is found by damage().
class GuardedBuffer {
 public:
  enum class Flush { end, start };

  explicit GuardedBuffer(size_t bytes, size_t alignment = 16, Flush flush = Flush::end);
  ~GuardedBuffer();
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&& other) noexcept;

  unsigned char* data() { return data_; }
  unsigned char const* data() const { return data_; }
  size_t size() const { return bytes_; }

  /// Empty if the bands are as they were; else the first changed byte, as an offset from the array.
  std::string damage() const;

 private:
  unsigned char* map_ = nullptr;  // guard, the accessible bytes, guard
  size_t map_bytes_ = 0;
  unsigned char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace moye::emu
