// nvcc's host code hands the fatbin of each source and the name of each kernel to CUDA's runtime when the module is
// loaded. CUDA has no function that gives them back, so the linker puts these two in front of the runtime's (--wrap in
// CMakeLists.txt).
#include "kernel_images_cuda.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace moye {
namespace {

/// What nvcc's host code names a fatbin by.
struct FatbinWrapper {
  uint32_t magic, version;
  void const* data;
  void const* unused;
};
constexpr uint32_t kWrapperMagic = 0x466243b1;

/// How a fatbin begins.
struct FatbinHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // behind the header
};
constexpr uint32_t kFatbinMagic = 0xba55ed50;

struct Images {
  std::mutex mutex;
  std::map<void const*, void const*> fatbins;    // by CUDA's handle
  std::map<void const*, KernelImage> kernels;    // by the kernel's address
  std::map<void const*, KernelImage> libraries;  // by cudaLibrary_t, without a name
};

Images& images() {
  static auto* const all = new Images;  // used while the module is loaded and unloaded
  return *all;
}

size_t fatbin_bytes(void const* fatbin) {
  auto const* const header = static_cast<FatbinHeader const*>(fatbin);
  return header != nullptr && header->magic == kFatbinMagic ? header->header_bytes + header->bytes : 0;
}

void add_fatbin(void const* handle, void const* wrapper) {
  auto const* const fatbin = static_cast<FatbinWrapper const*>(wrapper);
  if (fatbin == nullptr || fatbin->magic != kWrapperMagic) return;
  std::scoped_lock const lock(images().mutex);
  images().fatbins[handle] = fatbin->data;
}

void add_kernel(void const* handle, void const* kernel, char const* name) {
  std::scoped_lock const lock(images().mutex);
  auto const fatbin = images().fatbins.find(handle);
  if (fatbin == images().fatbins.end()) return;
  size_t const bytes = fatbin_bytes(fatbin->second);
  if (bytes > 0) images().kernels[kernel] = {name, fatbin->second, bytes};
}

}  // namespace

KernelImage kernel_image(void const* kernel) {
  std::scoped_lock const lock(images().mutex);
  auto const found = images().kernels.find(kernel);
  return found == images().kernels.end() ? KernelImage{} : found->second;
}

KernelImage kernel_image(void const* kernel, void* library) {
  KernelImage image;
  {
    std::scoped_lock const lock(images().mutex);
    auto const found = images().libraries.find(library);
    if (found == images().libraries.end()) return {};
    image = found->second;
  }
  image.name = kernel_image(kernel).name;
  return image.name == nullptr ? KernelImage{} : image;
}

void keep_library_code(void* library, void const* code, size_t bytes) {
  std::scoped_lock const lock(images().mutex);
  images().libraries[library] = {nullptr, code, bytes};
}

}  // namespace moye

struct uint3;
struct dim3;

// Names of CUDA's own: what crt/host_runtime.h, which nvcc's host code includes, declares.
extern "C" {

void** __real___cudaRegisterFatBinary(void* wrapper);
void** __wrap___cudaRegisterFatBinary(void* wrapper) {
  void** const handle = __real___cudaRegisterFatBinary(wrapper);
  moye::add_fatbin(handle, wrapper);
  return handle;
}

void __real___cudaRegisterFunction(void** handle, char const* kernel, char* name, char const* device_name, int threads,
                                   uint3* thread, uint3* block, dim3* block_dim, dim3* grid_dim, int* warp_size);
void __wrap___cudaRegisterFunction(void** handle, char const* kernel, char* name, char const* device_name, int threads,
                                   uint3* thread, uint3* block, dim3* block_dim, dim3* grid_dim, int* warp_size) {
  __real___cudaRegisterFunction(handle, kernel, name, device_name, threads, thread, block, block_dim, grid_dim,
                                warp_size);
  moye::add_kernel(handle, kernel, device_name);
}

}  // extern "C"
