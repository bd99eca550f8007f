// The launch table: one GemmEntry per config of gemm/configs.h, found by its name.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "gemm/config.h"

namespace moye {

/// The config's name, computed from its fields: "sm80_multistage_bf16_128x128x32_s4_a16". The accumulator and the
/// cluster are named where they are not the usual ones: "sm90_cooperative_bf16_128x256x64_s4_c2x1_a16".
std::string config_name(GemmConfig const& config);

struct RegisteredGemm {
  GemmConfig config;
  std::string name;
  GemmEntry entry;
};

/// All configs, in the table's order.
std::span<RegisteredGemm const> registered_gemms();

/// The config of that name, or null.
RegisteredGemm const* find_gemm(std::string_view name);

}  // namespace moye
