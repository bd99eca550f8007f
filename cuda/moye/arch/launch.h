// Starting a kernel, on the GPU or in the emulator. Host code.
#pragma once

#include <type_traits>
#include <utility>

#include "moye/arch/builtin.h"
#include "moye/arch/launch_config.h"
#include "moye/arch/status.h"

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <map>

#include "moye/arch/kernel_library.h"
#include "moye/arch/launch_recorder.h"
#endif

namespace moye {

#if defined(__CUDACC_RTC__)  // which compiles no host code: it is parsed

template <class... P>
Status launch_kernel(void (*kernel)(P...), LaunchConfig const&, StreamHandle, std::type_identity_t<P>...);
template <class... P>
Status prepare_kernel(void (*kernel)(P...), int smem_bytes);

#elif defined(__CUDACC__)

namespace detail {

inline Status cuda_status(cudaError_t error, char const* call) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // the error is reported here: do not leave it for the next caller of CUDA in this process
  return {std::string(call) + ": " + cudaGetErrorString(error)};
}

/// What the driver said of a kernel on the current device. A thread asks once: that takes the driver longer than half
/// of a launch, and a lock.
template <class Ask>
Status ask_once(void const* kernel, int* answer, Ask const& ask) {
  thread_local std::map<std::pair<void const*, int>, int> answers;  // of this Ask
  int device = 0;
  if (Status status = cuda_status(cudaGetDevice(&device), "cudaGetDevice"); !status.ok()) return status;
  std::pair const key(kernel, device);
  if (auto const known = answers.find(key); known != answers.end()) {
    *answer = known->second;
    return {};
  }
  Status const status = ask();
  if (status.ok()) answers.emplace(key, *answer);
  return status;
}

/// What CUDA launches for a kernel: that of its name in `kernel_library`, where there is one (a cudaKernel_t, which
/// CUDA's functions take for the address of a kernel), or the kernel itself.
inline Status function_of(void const* kernel, void const** function) {
  *function = kernel;
  if (kernel_library == nullptr) return {};
  thread_local std::map<std::pair<void*, void const*>, void const*> known;
  std::pair const key(kernel_library, kernel);
  if (auto const found = known.find(key); found != known.end()) {
    *function = found->second;
    return {};
  }
  char const* name = nullptr;
  if (Status status = cuda_status(cudaFuncGetName(&name, kernel), "cudaFuncGetName"); !status.ok()) return status;
  cudaKernel_t found = nullptr;
  Status const status = cuda_status(cudaLibraryGetKernel(&found, static_cast<cudaLibrary_t>(kernel_library), name),
                                    "cudaLibraryGetKernel");
  if (!status.ok()) return {status.message + ": " + name};
  *function = known[key] = reinterpret_cast<void const*>(found);
  return {};
}

/// Allows the kernel `smem_bytes`. Beyond the default they do not change from one of its launches to the next.
inline Status allow_smem(void const* kernel, int smem_bytes) {
  if (smem_bytes <= kDefaultSmemBytes) return {};
  int allowed = 0;
  return ask_once(kernel, &allowed, [=] {
    return cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes),
                       "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
  });
}

/// Whether a kernel may be launched before the one ahead on the stream has ended.
inline bool may_overlap(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  return programmatic_launch_allowed() && cudaStreamIsCapturing(stream, &capture) == cudaSuccess &&
         capture == cudaStreamCaptureStatusNone;
}

}  // namespace detail

/// Puts the kernel on the stream, or hands it to the `launch_recorder`; does not wait for it. The arguments are copied
/// before this returns.
template <class... P>
Status launch_kernel(void (*kernel)(P...), LaunchConfig const& config, StreamHandle stream,
                     std::type_identity_t<P>... args) {
  auto const* function = reinterpret_cast<void const*>(kernel);
  if (launch_recorder != nullptr) {
#if __has_builtin(__builtin_clear_padding)  // the same arguments are the same bytes
    (__builtin_clear_padding(&args), ...);
#endif
    KernelArgument const arguments[] = {{&args, sizeof(args)}...};
    return launch_recorder->record(function, config, arguments);
  }
  if (!config.compiled_in) {
    if (Status status = detail::function_of(function, &function); !status.ok()) return status;
  }
  if (Status status = detail::allow_smem(function, config.smem_bytes); !status.ok()) return status;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(config.grid.x, config.grid.y, config.grid.z);
  launch.blockDim = dim3(config.block.x, config.block.y, config.block.z);
  launch.dynamicSmemBytes = static_cast<size_t>(config.smem_bytes);
  launch.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attributes[2] = {};
  launch.attrs = attributes;
  if (config.cluster.x * config.cluster.y * config.cluster.z > 1) {
    cudaLaunchAttribute& cluster = attributes[launch.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = config.cluster.x;
    cluster.val.clusterDim.y = config.cluster.y;
    cluster.val.clusterDim.z = config.cluster.z;
  }
  if (config.programmatic && detail::may_overlap(launch.stream)) {
    cudaLaunchAttribute& programmatic = attributes[launch.numAttrs++];
    programmatic.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    programmatic.val.programmaticStreamSerializationAllowed = 1;
  }
  void* values[] = {const_cast<void*>(static_cast<void const*>(&args))..., nullptr};
  return detail::cuda_status(cudaLaunchKernelExC(&launch, function, values), "cudaLaunchKernelExC");
}

/// Loads the kernel on the current device, so that no later launch does, and allows it its shared memory. A
/// `kernel_library` need not have it: it is of one order of the operands.
template <class... P>
Status prepare_kernel(void (*kernel)(P...), int smem_bytes) {
  auto const* function = reinterpret_cast<void const*>(kernel);
  if (!detail::function_of(function, &function).ok()) return {};
  cudaFuncAttributes attributes;
  Status status = detail::cuda_status(cudaFuncGetAttributes(&attributes, function), "cudaFuncGetAttributes");
  if (!status.ok()) return status;
  return detail::allow_smem(function, smem_bytes);
}

#else

/// Runs the kernel in the emulator, to its end. `stream` is a moye::emu::Stream*.
template <class... P>
Status launch_kernel(void (*kernel)(P...), LaunchConfig const& config, StreamHandle stream,
                     std::type_identity_t<P>... args) {
  auto run_thread = [&] { kernel(args...); };
  return emu::launch(
      {config.grid, config.block, config.cluster, config.smem_bytes, config.programmatic, config.resident},
      static_cast<emu::Stream*>(stream), [](void* run) { (*static_cast<decltype(run_thread)*>(run))(); }, &run_thread);
}

template <class... P>
Status prepare_kernel(void (*)(P...), int) {
  return {};
}

#endif

}  // namespace moye
