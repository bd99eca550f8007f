#include "moye/emu/guarded_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace moye::emu {
namespace {

size_t page_bytes() {
  static size_t const bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Inaccessible bytes on either side, whole pages of any size: an index far out of range meets them too, and not
// whatever the system put beside the array, which may be a library's readable data.
constexpr size_t kGuardBytes = 1 << 20;

}  // namespace

GuardedBuffer::GuardedBuffer(size_t bytes, size_t alignment, Flush flush) : bytes_(bytes) {
  size_t const page = page_bytes();
  size_t const accessible = (bytes + alignment + page - 1) / page * page;  // a band of at least `alignment` bytes
  map_bytes_ = accessible + 2 * kGuardBytes;
  void* const map = mmap(nullptr, map_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED || mprotect(static_cast<char*>(map) + kGuardBytes, accessible, PROT_READ | PROT_WRITE) != 0) {
    if (map != MAP_FAILED) munmap(map, map_bytes_);
    throw std::bad_alloc();
  }
  map_ = static_cast<unsigned char*>(map);
  size_t const offset = flush == Flush::start ? 0 : (accessible - bytes) / alignment * alignment;
  data_ = map_ + kGuardBytes + offset;
  std::memset(map_ + kGuardBytes, 0xff, accessible);
}

GuardedBuffer::~GuardedBuffer() {
  if (map_ != nullptr) munmap(map_, map_bytes_);
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept { *this = std::move(other); }

GuardedBuffer& GuardedBuffer::operator=(GuardedBuffer&& other) noexcept {
  std::swap(map_, other.map_);
  std::swap(map_bytes_, other.map_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::string GuardedBuffer::damage() const {
  unsigned char const* const first = map_ + kGuardBytes;
  unsigned char const* const last = map_ + map_bytes_ - kGuardBytes;
  for (unsigned char const* p = first; p != last; ++p) {
    if (p == data_ && bytes_ != 0) p += bytes_;  // the array itself
    if (p == last) break;
    if (*p != 0xff) {
      return "the byte at offset " + std::to_string(p - data_) + " of an array of " + std::to_string(bytes_) +
             " bytes was written";
    }
  }
  return {};
}

}  // namespace moye::emu
