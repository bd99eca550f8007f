// How a call ended and where it ran. Plain C++, no CUDA header: ffi/ reads this with g++ and no toolkit.
#pragma once

#include <string>

namespace moye {

/// How a launch ended. Empty message: well. The GPU's message is CUDA's, the emulator's is its report.
struct Status {
  std::string message;
  bool ok() const { return message.empty(); }
};

/// Where to run: a cudaStream_t on the GPU, a moye::emu::Stream* in the emulator.
using StreamHandle = void*;

}  // namespace moye
