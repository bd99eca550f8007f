// What a kernel that jax_moye.kernel() compiles by itself hands to the extension module: its library's one function,
//   extern "C" moye::OwnKernel const* jax_moye_own_kernel();
#pragma once

#include "gemm/config.h"

namespace moye {

struct OwnKernel {
  GemmConfig config;
  GemmEntry entry;
};

}  // namespace moye
