// One call in the emulator, as somebody waits for it: how long it will take, how far it is, and how it is ended.
#pragma once

#include <functional>

#include "attention.h"
#include "gemm.h"
#include "moye/emu/emu.h"

namespace moye {

struct EmulatedLaunch {
  Status status;
  bool interrupted = false;     // then the status says so
  double expected_seconds = 0;  // what emulated_seconds() said before
};

/// Runs the call, whose arrays are those of `stream`. A launch that will take more than ten seconds says so on stderr
/// before it begins; where stderr is a terminal, one that takes more than two shows how far it is.
///
/// interrupted: asked about ten times a second, on this thread; true ends the launch.
EmulatedLaunch launch_emulated(GemmRequest const& request, GemmCall const& call, emu::Stream& stream,
                               std::function<bool()> const& interrupted);

EmulatedLaunch launch_emulated(GroupedRequest const& request, GroupedCall const& call, emu::Stream& stream,
                               std::function<bool()> const& interrupted);

EmulatedLaunch launch_emulated(WeightsRequest const& request, WeightsCall const& call, emu::Stream& stream,
                               std::function<bool()> const& interrupted);

EmulatedLaunch launch_emulated(BlockScaledRequest const& request, BlockScaledCall const& call, emu::Stream& stream,
                               std::function<bool()> const& interrupted);

EmulatedLaunch launch_emulated(AttentionRequest const& request, AttentionCall const& call, emu::Stream& stream,
                               std::function<bool()> const& interrupted);

/// Seconds that the call will take on as many OS threads as `options` and this machine allow, from what a small product
/// of the same config takes now; 0 where that is not worth a measurement, and of what is no plain product. It
/// takes up to some tenths of a second, once for each config, order, options and shape of the grid.
double emulated_seconds(GemmCall const& call, emu::Options const& options);

}  // namespace moye
