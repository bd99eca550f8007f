// What a persistent kernel's launcher asks about the device behind a stream. Host code.
//   nvcc       the current CUDA device
//   emulator   Options of the moye::emu::Stream
#pragma once

#include "moye/arch/launch.h"

namespace moye {

#if defined(__CUDACC_RTC__)  // as in arch/launch.h

Status device_multiprocessors(StreamHandle, int* count);
template <class... P>
Status max_active_blocks(void (*kernel)(P...), int threads, int smem_bytes, StreamHandle, int* blocks);
template <class... P>
Status max_active_clusters(void (*kernel)(P...), LaunchConfig const&, StreamHandle, int* clusters);

#elif defined(__CUDACC__)

/// Multiprocessors of the device.
inline Status device_multiprocessors(StreamHandle, int* count) {
  return detail::ask_once(nullptr, count, [=] {
    int device = 0;
    if (Status status = detail::cuda_status(cudaGetDevice(&device), "cudaGetDevice"); !status.ok()) return status;
    return detail::cuda_status(cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device),
                               "cudaDeviceGetAttribute(MultiProcessorCount)");
  });
}

/// CTAs of the kernel that one multiprocessor runs at the same time. The threads and bytes are the kernel's own: they
/// do not change from call to call.
template <class... P>
Status max_active_blocks(void (*kernel)(P...), int threads, int smem_bytes, StreamHandle, int* blocks) {
  auto const* function = reinterpret_cast<void const*>(kernel);
  if (Status status = detail::function_of(function, &function); !status.ok()) return status;
  return detail::ask_once(function, blocks, [=] {
    if (Status status = detail::allow_smem(function, smem_bytes); !status.ok()) return status;
    return detail::cuda_status(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, static_cast<size_t>(smem_bytes)),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  });
}

/// Clusters of the kernel that the device runs at the same time; config.grid is not looked at, and the rest of it is
/// the kernel's own, as above. Less than the multiprocessors divided by the cluster's size where that does not divide
/// the size of a GPC.
template <class... P>
Status max_active_clusters(void (*kernel)(P...), LaunchConfig const& config, StreamHandle, int* clusters) {
  auto const* function = reinterpret_cast<void const*>(kernel);
  if (Status status = detail::function_of(function, &function); !status.ok()) return status;
  return detail::ask_once(function, clusters, [=] {
    if (Status status = detail::allow_smem(function, config.smem_bytes); !status.ok()) return status;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = config.cluster.x;
    attribute.val.clusterDim.y = config.cluster.y;
    attribute.val.clusterDim.z = config.cluster.z;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(config.cluster.x, config.cluster.y, config.cluster.z);
    launch.blockDim = dim3(config.block.x, config.block.y, config.block.z);
    launch.dynamicSmemBytes = static_cast<size_t>(config.smem_bytes);
    launch.attrs = &attribute;
    launch.numAttrs = 1;
    return detail::cuda_status(cudaOccupancyMaxActiveClusters(clusters, function, &launch),
                               "cudaOccupancyMaxActiveClusters");
  });
}

#else

inline Status device_multiprocessors(StreamHandle stream, int* count) {
  *count = static_cast<emu::Stream*>(stream)->options.multiprocessors;
  return {};
}

template <class... P>
Status max_active_blocks(void (*)(P...), int, int, StreamHandle stream, int* blocks) {
  *blocks = static_cast<emu::Stream*>(stream)->options.max_blocks_per_multiprocessor;
  return {};
}

template <class... P>
Status max_active_clusters(void (*)(P...), LaunchConfig const& config, StreamHandle stream, int* clusters) {
  emu::Options const& options = static_cast<emu::Stream*>(stream)->options;
  auto const size = static_cast<int>(config.cluster.x * config.cluster.y * config.cluster.z);
  int const fit = options.multiprocessors * options.max_blocks_per_multiprocessor / size;
  *clusters = fit > 0 ? fit : 1;  // an emulated cluster runs on any number of multiprocessors
  return {};
}

#endif

}  // namespace moye
