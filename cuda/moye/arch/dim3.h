// Three unsigned sizes or indices: CUDA's dim3 without CUDA's headers, for both machines and for the emulator itself.
#pragma once

namespace moye {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

}  // namespace moye
