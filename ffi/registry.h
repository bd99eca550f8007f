// The launch table: one GemmEntry per config of gemm/configs.h, found by its name, and those that were added later.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "gemm/config.h"
#include "gemm/own_kernel.h"

namespace moye {

/// The config's name, computed from its fields: "sm80_multistage_bf16_128x128x32_s4_a16". The accumulator and the
/// cluster are named where they are not the usual ones: "sm90_cooperative_bf16_128x256x64_s4_c2x1_a16".
std::string config_name(GemmConfig const& config);

struct RegisteredGemm {
  int index;  // of the table; those that were added follow
  GemmConfig config;
  std::string kernel;
  std::string name;
  GemmEntry entry;
  void* library = nullptr;  // CUDA's, of a function of a user's: its kernels run (moye/arch/kernel_library.h)
};

/// All configs of the table, in its order.
std::span<RegisteredGemm const> registered_gemms();

/// Adds a config that was compiled by itself, or finds the one that has this name already. It stays for good.
RegisteredGemm const& add_gemm(OwnKernel const& own, std::string kernel, std::string name);

/// Adds a config of the table whose kernel is another library's, which was compiled with a function of a user's, under
/// another name. False: there is that name already.
bool add_gemm(RegisteredGemm const& of_table, void* library, std::string name);

/// The config of that name, or null.
RegisteredGemm const* find_gemm(std::string_view name);

}  // namespace moye
