// The CUDA handler: stateless, allocates nothing, synchronizes nothing, so that XLA may capture it into a CUDA graph.
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <string>

#include "handlers.h"
#include "xla_call.h"

namespace moye {
namespace {

ffi::Error to_error(cudaError_t error, char const* what) {
  if (error == cudaSuccess) return ffi::Error::Success();
  cudaGetLastError();  // a pending error would be blamed on the next user of the runtime
  auto const code = error == cudaErrorMemoryAllocation ? ffi::ErrorCode::kResourceExhausted : ffi::ErrorCode::kInternal;
  return ffi::Error(code, std::string("jax_moye: ") + what + ": " + cudaGetErrorString(error));
}

/// Loads the row's kernels on `device`, once. Loading takes a lock in the driver and can deadlock against a running
/// collective, hence before execution; concurrent first calls may load twice, which is harmless.
ffi::Error prepare_on_device(RegisteredGemm const& gemm, int device) {
  constexpr int kMaxDevices = 64;
  constexpr int kMaxConfigs = 1024;
  static std::array<std::array<std::atomic<bool>, kMaxConfigs>, kMaxDevices> done;
  size_t const row = size_t(&gemm - registered_gemms().data());
  bool const known = device < kMaxDevices && row < kMaxConfigs;
  if (known && done[device][row].load(std::memory_order_acquire)) return ffi::Error::Success();

  int current = 0;
  if (auto error = to_error(cudaGetDevice(&current), "cudaGetDevice"); error.failure()) return error;
  if (auto error = to_error(cudaSetDevice(device), "cudaSetDevice"); error.failure()) return error;
  Status const status = gemm.entry.prepare();
  if (auto error = to_error(cudaSetDevice(current), "cudaSetDevice"); error.failure()) return error;
  if (!status.ok()) return ffi::Error::Internal(gemm_error(gemm.name, {}, status.message).message);
  if (known) done[device][row].store(true, std::memory_order_release);
  return ffi::Error::Success();
}

/// All attributes are decoded, since a handler that names one has to name all.
ffi::Error prepare(int32_t device, Int64s, Int64s, std::string_view config, Int64s, Int64s) {
  return guarded(config, [&] {
    // A runtime that does not know the device at this stage says -1: the launch loads the kernels then. So does an
    // unknown name wait for the launch's error.
    RegisteredGemm const* gemm = find_gemm(config);
    if (device < 0 || gemm == nullptr) return ffi::Error::Success();
    return prepare_on_device(*gemm, device);
  });
}

ffi::Error execute(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> d,
                   ffi::Result<ffi::AnyBuffer> workspace, Int64s a_strides, Int64s b_strides, std::string_view config,
                   Int64s d_strides, Int64s sizes) {
  return guarded(config, [&] {
    GemmCall call;
    if (auto error = decode_call(a, b, *d, *workspace, config, sizes, a_strides, b_strides, d_strides, call);
        error.failure()) {
      return error;
    }
    Status const status = call.gemm->entry.launch(call.args, stream);
    if (status.ok()) return ffi::Error::Success();
    std::span<int64_t const> const size_span(sizes.begin(), sizes.size());
    return ffi::Error::Internal(gemm_error(config, size_span, status.message).message);
  });
}

}  // namespace
}  // namespace moye

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeGemmCudaPrepare, moye::prepare,
                              ffi::Ffi::BindPrepare()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Attr<moye::Int64s>("a_strides")
                                  .Attr<moye::Int64s>("b_strides")
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_strides")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeGemmCuda, moye::execute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<moye::Int64s>("a_strides")
                                  .Attr<moye::Int64s>("b_strides")
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_strides")
                                  .Attr<moye::Int64s>("sizes"),
                              {ffi::Traits::kCmdBufferCompatible});
