// The CUDA handlers: stateless, allocate nothing, synchronize nothing, so that XLA may capture them into a CUDA graph.
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <string>

#include "handlers.h"
#include "moye/arch/kernel_library.h"
#include "moye/arch/launch_recorder.h"
#include "record_cuda.h"
#include "targets.h"
#include "xla_call.h"

namespace moye {
namespace {

ffi::Error to_error(cudaError_t error, char const* what) {
  if (error == cudaSuccess) return ffi::Error::Success();
  cudaGetLastError();  // a pending error would be blamed on the next user of the runtime
  auto const code = error == cudaErrorMemoryAllocation ? ffi::ErrorCode::kResourceExhausted : ffi::ErrorCode::kInternal;
  return ffi::Error(code, std::string("jax_moye: ") + what + ": " + cudaGetErrorString(error));
}

/// Loads the config's kernels on `device`, once. Loading takes a lock in the driver and can deadlock against a running
/// collective, hence before execution; concurrent first calls may load twice, which is harmless.
ffi::Error prepare_on_device(RegisteredGemm const& gemm, int device) {
  constexpr int kMaxDevices = 64;
  constexpr int kMaxConfigs = 1024;
  static std::array<std::array<std::atomic<bool>, kMaxConfigs>, kMaxDevices> done;
  size_t const index = size_t(gemm.index);
  bool const known = device < kMaxDevices && index < kMaxConfigs;
  if (known && done[device][index].load(std::memory_order_acquire)) return ffi::Error::Success();

  int current = 0;
  if (auto error = to_error(cudaGetDevice(&current), "cudaGetDevice"); error.failure()) return error;
  if (auto error = to_error(cudaSetDevice(device), "cudaSetDevice"); error.failure()) return error;
  Status const status = [&] {
    KernelLibraryScope const scope(gemm.library);
    return gemm.entry.prepare();
  }();
  if (auto error = to_error(cudaSetDevice(current), "cudaSetDevice"); error.failure()) return error;
  if (!status.ok()) return ffi::Error::Internal(gemm_error(gemm.name, {}, status.message).message);
  if (known) done[device][index].store(true, std::memory_order_release);
  return ffi::Error::Success();
}

ffi::Error prepare_config(std::string_view config, int32_t device) {
  return guarded(config, [&] {
    // A runtime that does not know the device at this stage says -1: the launch loads the kernels then. So does an
    // unknown name wait for the launch's error.
    RegisteredGemm const* gemm = find_gemm(config);
    if (device < 0 || gemm == nullptr) return ffi::Error::Success();
    return prepare_on_device(*gemm, device);
  });
}

/// Decodes and validates the request, and launches it.
template <class Target>
ffi::Error launch(typename Target::Request const& request, cudaStream_t stream) {
  typename Target::Call call;
  if (Status const status = Target::kDecode(request, call); !status.ok())
    return to_error(status, ffi::ErrorCode::kInvalidArgument);
  // Kernels of one's own are another library's, whose launches no recorder of ours sees: XLA captures them.
  bool const of_module = call.gemm->library != nullptr || size_t(call.gemm->index) < registered_gemms().size();
  if (launch_recorder != nullptr && !of_module) return ffi::Error::Internal("jax_moye: not to be recorded");
  KernelLibraryScope const scope(call.gemm->library);
  Status const status = (call.gemm->entry.*Target::kLaunch)(call.args, stream);
  return status.ok() ? ffi::Error::Success() : to_error(error_of(request, status.message), ffi::ErrorCode::kInternal);
}

template <class Target>
XLA_FFI_Error* prepare(XLA_FFI_CallFrame* frame) {
  using Attributes = typename Target::Attributes;
  // All attributes are decoded, since a handler that names one has to name all.
  static auto* const handler = make_handler<Attributes, Buffers{}>(
      ffi::Ffi::BindPrepare().Ctx<ffi::DeviceOrdinal>(), Target::kAttributes,
      [](Attributes const& attributes, int32_t device) { return prepare_config(attributes.config, device); });
  Hints const hints(frame);
  return handler->Call(frame);
}

template <class Target>
XLA_FFI_Error* execute(XLA_FFI_CallFrame* frame) {
  using Attributes = typename Target::Attributes;
  static auto* const handler = make_handler<Attributes, Target::kBuffers>(
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>(), Target::kAttributes,
      [](Attributes const& attributes, cudaStream_t stream, auto const&... buffers) {
        return guarded(attributes.config, [&] {
          typename Target::Request request{};
          if (auto error = Target::read(attributes, buffers..., request); error.failure()) return error;
          return launch<Target>(request, stream);
        });
      },
      {ffi::Traits::kCmdBufferCompatible});
  Hints const hints(frame);
  return handler->Call(frame);
}

template <class Target>
XLA_FFI_Error* record(XLA_FFI_CallFrame* frame) {
  return record_call(frame, execute<Target>);
}

}  // namespace

std::vector<TargetHandlers> cuda_handlers() {
  return for_all_targets(
      []<class Target> { return TargetHandlers{Target::kName, execute<Target>, prepare<Target>, record<Target>}; });
}

}  // namespace moye
