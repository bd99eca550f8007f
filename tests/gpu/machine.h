// The host's side of a test program that runs on either machine: memory the kernels can reach, a stream, and waiting.
// nvcc: the current CUDA device. A host compiler: the emulator, with the race checker on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "moye/arch/launch.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#endif

namespace moye::testing {

[[noreturn]] inline void fail(std::string const& what) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

inline void check(Status const& status, std::string const& what) {
  if (!status.ok()) fail(what + ": " + status.message);
}

/// Arrays live until `clear`; a read-only one is so in the emulator alone.
class Machine {
 public:
  Machine() = default;
  Machine(Machine const&) = delete;
  Machine& operator=(Machine const&) = delete;
  ~Machine() { clear(); }

#if defined(__CUDACC__)
  void* allocate(char const*, size_t bytes, bool) {
    void* array = nullptr;
    check_cuda(cudaMalloc(&array, bytes), "cudaMalloc");
    arrays_.push_back(array);
    return array;
  }
  void upload(void* array, void const* host, size_t bytes) {
    check_cuda(cudaMemcpy(array, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
  }
  void download(void* host, void const* array, size_t bytes) {
    check_cuda(cudaMemcpy(host, array, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
  }
  void wait() { check_cuda(cudaDeviceSynchronize(), "a kernel"); }
  StreamHandle stream() { return nullptr; }  // the default stream
  /// Whether it is an sm_<arch> GPU or a later one.
  static bool has_arch(int arch) {
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    return 10 * properties.major + properties.minor >= arch;
  }
  /// Whether it is newer than sm_<arch>.
  static bool is_newer(int arch) { return has_arch(arch + 1); }
  void clear() {
    for (void* array : arrays_) check_cuda(cudaFree(array), "cudaFree");
    arrays_.clear();
  }

 private:
  static void check_cuda(cudaError_t error, char const* what) {
    if (error != cudaSuccess) fail(std::string(what) + ": " + cudaGetErrorString(error));
  }
  std::vector<void*> arrays_;
#else
  void* allocate(char const* name, size_t bytes, bool writable) {
    void* array = std::aligned_alloc(256, (bytes + 255) / 256 * 256);  // aligned as cudaMalloc aligns
    if (array == nullptr) fail("out of memory");
    stream_.memory.push_back({array, bytes, name, writable});
    return array;
  }
  void upload(void* array, void const* host, size_t bytes) { std::memcpy(array, host, bytes); }
  void download(void* host, void const* array, size_t bytes) { std::memcpy(host, array, bytes); }
  void wait() {}  // an emulated launch returns when it has ended
  StreamHandle stream() { return &stream_; }
  static bool has_arch(int) { return true; }  // the emulator is every GPU, and newer than none
  static bool is_newer(int) { return false; }
  void clear() {
    for (auto const& array : stream_.memory) std::free(const_cast<void*>(array.base));
    stream_.memory.clear();
  }

 private:
  emu::Stream stream_;
#endif
};

}  // namespace moye::testing
