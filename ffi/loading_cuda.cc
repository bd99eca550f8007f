#include "loading_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>

#include "moye/arch/kernel_library.h"
#include "registry.h"

namespace moye {
namespace {

constexpr int kMaxDevices = 64, kMaxConfigs = 1024;
std::array<std::array<std::atomic<bool>, kMaxConfigs>, kMaxDevices> loaded;

/// Null: none is kept of that config, or of that device.
std::atomic<bool>* find_loaded(RegisteredGemm const* gemm, int device) {
  bool const is_kept = gemm != nullptr && gemm->index < kMaxConfigs && device >= 0 && device < kMaxDevices;
  return is_kept ? &loaded[size_t(device)][size_t(gemm->index)] : nullptr;
}

/// A function of the driver's, which a module that is imported where there is none cannot be linked with.
template <class F>
F* driver_function(char const* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaError_t const error = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  if (error == cudaSuccess && found == cudaDriverEntryPointSuccess) return reinterpret_cast<F*>(function);
  cudaGetLastError();
  return nullptr;
}

/// Makes a device's primary context, the runtime's and XLA's, this thread's for a scope, if there is one: it creates
/// none, and leaves the thread as it was.
class ContextScope {
 public:
  explicit ContextScope(int ordinal) {
    unsigned flags = 0;
    int is_active = 0;
    if (!has_driver() || driver().get(&device_, ordinal) != CUDA_SUCCESS) return;
    if (driver().state(device_, &flags, &is_active) != CUDA_SUCCESS || is_active == 0) return;
    CUcontext context = nullptr;
    if (driver().retain(&context, device_) != CUDA_SUCCESS) return;
    entered = driver().push(context) == CUDA_SUCCESS;
    if (!entered) driver().release(device_);
  }
  ~ContextScope() {
    if (!entered) return;
    CUcontext context = nullptr;
    driver().pop(&context);
    driver().release(device_);
  }
  ContextScope(ContextScope const&) = delete;
  ContextScope& operator=(ContextScope const&) = delete;

  bool entered = false;

 private:
  struct Driver {
    CUresult (*get)(CUdevice*, int);
    CUresult (*state)(CUdevice, unsigned*, int*);
    CUresult (*retain)(CUcontext*, CUdevice);
    CUresult (*release)(CUdevice);
    CUresult (*push)(CUcontext);
    CUresult (*pop)(CUcontext*);
  };

  static Driver const& driver() {
    static Driver const functions = {driver_function<CUresult(CUdevice*, int)>("cuDeviceGet"),
                                     driver_function<CUresult(CUdevice, unsigned*, int*)>("cuDevicePrimaryCtxGetState"),
                                     driver_function<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain"),
                                     driver_function<CUresult(CUdevice)>("cuDevicePrimaryCtxRelease"),
                                     driver_function<CUresult(CUcontext)>("cuCtxPushCurrent"),
                                     driver_function<CUresult(CUcontext*)>("cuCtxPopCurrent")};
    return functions;
  }
  static bool has_driver() {
    Driver const& all = driver();
    return all.get && all.state && all.retain && all.release && all.push && all.pop;
  }

  CUdevice device_ = 0;
};

}  // namespace

void load_kernels(std::string_view config) {
  RegisteredGemm const* const gemm = find_gemm(config);
  int devices = 0;
  if (gemm == nullptr || cudaGetDeviceCount(&devices) != cudaSuccess) {
    cudaGetLastError();  // a pending error would be blamed on the next user of the runtime
    return;
  }
  for (int device = 0; device < devices; ++device) {
    std::atomic<bool>* const is_loaded = find_loaded(gemm, device);
    if (is_loaded != nullptr && is_loaded->load(std::memory_order_acquire)) continue;
    ContextScope const context(device);
    if (!context.entered) continue;
    KernelLibraryScope const library(gemm->library);
    bool const ok = gemm->entry.prepare().ok();  // concurrent first calls may load twice, which is harmless
    if (!ok) cudaGetLastError();
    if (ok && is_loaded != nullptr) is_loaded->store(true, std::memory_order_release);
  }
}

bool kernels_are_loaded(std::string_view config, int device) {
  std::atomic<bool>* const is_loaded = find_loaded(find_gemm(config), device);
  return is_loaded != nullptr && is_loaded->load(std::memory_order_acquire);
}

}  // namespace moye
