// Loads a config's kernels where they will run, before anything runs there.
#pragma once

#include <string_view>

namespace moye {

/// Loads the kernels of that config on all devices this process has a context on, each once. Loading takes a lock in
/// the driver and can deadlock against a running collective, hence before any execution; and once for each executable,
/// since what XLA calls in each execution costs the host some microseconds a call. What cannot be loaded, on a device
/// of another kind, say, and a name that is not known are left to the launch, which says so.
void load_kernels(std::string_view config);

/// Whether load_kernels() has loaded them on that device.
bool kernels_are_loaded(std::string_view config, int device);

}  // namespace moye
