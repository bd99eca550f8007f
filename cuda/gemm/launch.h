// How kernels that take (args, grid) are started: one CTA per tile of d, or as many as the device holds. Host code.
#pragma once

#include "gemm/config.h"
#include "gemm/order.h"
#include "gemm/tile_scheduler.h"
#include "moye/arch/device.h"
#include "moye/arch/launch.h"
#include "moye/arch/launch_recorder.h"

namespace moye {

/// What the call that this thread records may do early, of a launch with room or without for the CTAs of the kernel
/// behind. Without, there is none beside the kernel ahead, most likely: loads would not begin early, and would keep
/// those of the other operand waiting.
inline int early_where(bool has_room) {
  int const early = early_operands();
  return (early & kEarlyNext) | (has_room && early != 0 ? (early & (kEarlyA | kEarlyB)) | kEarlyNextAtOnce : 0);
}

/// Whether loads go through L1: cp.async of 16 bytes leaves it out, and smaller ones share its lines.
template <GemmConfig kConfig>
inline constexpr bool kReadsThroughL1 = kConfig.alignment < 16;

/// One CTA per tile.
template <GemmConfig kConfig>
Status launch_tiles(GemmArgs const& args, StreamHandle stream) {
  using Kernel = Gemm<kConfig>;
  TileGrid grid;
  if (Status status = make_tile_grid(kConfig.tile, args, &grid); !status.ok()) return status;
  LaunchConfig const config{.grid = {unsigned(grid.tiles)},
                            .block = {unsigned(Kernel::kFacts.threads)},
                            .smem_bytes = Kernel::kFacts.smem_bytes,
                            .reads_through_l1 = kReadsThroughL1<kConfig>};
  return dispatch(order_of(args), [&](auto order) {
    return launch_kernel(Kernel::template kernel<decltype(order)::value>(), config, stream, args, grid);
  });
}

/// As many CTAs as the device runs at one time, if there are that many tiles: TileScheduler deals them out.
template <GemmConfig kConfig>
Status launch_persistent(GemmArgs const& args, StreamHandle stream) {
  using Kernel = Gemm<kConfig>;
  constexpr int kThreads = Kernel::kFacts.threads, kSmemBytes = Kernel::kFacts.smem_bytes;
  TileGrid grid;
  if (Status status = make_tile_grid(kConfig.tile, args, &grid); !status.ok()) return status;
  int multiprocessors = 0;
  if (Status status = device_multiprocessors(stream, &multiprocessors); !status.ok()) return status;
  return dispatch(order_of(args), [&](auto order) -> Status {
    auto* const kernel = Kernel::template kernel<decltype(order)::value>();
    int resident = 0;
    if (Status status = max_active_blocks(kernel, kThreads, kSmemBytes, stream, &resident); !status.ok()) return status;
    if (resident == 0) return {"no multiprocessor of this device holds a CTA of the kernel"};
    int64_t const at_once = int64_t(multiprocessors) * resident;
    int const ctas = at_once < grid.tiles ? int(at_once) : grid.tiles;
    LaunchConfig const config{.grid = {unsigned(ctas)},
                              .block = {unsigned(kThreads)},
                              .smem_bytes = kSmemBytes,
                              .reads_through_l1 = kReadsThroughL1<kConfig>};
    return launch_kernel(kernel, config, stream, args, grid);
  });
}

}  // namespace moye
