#include "registry.h"

#include <array>
#include <cstddef>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "gemm/configs.h"

namespace moye {
namespace {

constexpr size_t kNumConfigs = std::size(kGemmConfigs);

template <size_t... kRow>
std::array<RegisteredGemm, kNumConfigs> make_table(std::index_sequence<kRow...>) {
  return {{{kGemmConfigs[kRow], config_name(kGemmConfigs[kRow]), gemm_entry<kGemmConfigs[kRow]>()}...}};
}

}  // namespace

char const* dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16:
      return "bf16";
    case Dtype::f16:
      return "f16";
    case Dtype::f32:
      return "f32";
    case Dtype::f64:
      return "f64";
  }
  return "?";
}

char const* kernel_name(Kernel kernel) {
  switch (kernel) {
    case Kernel::simt_tiled:
      return "simt_tiled";
    case Kernel::sm80_multistage:
      return "sm80_multistage";
  }
  return "?";
}

std::string config_name(GemmConfig const& config) {
  auto const number = [](int value) { return std::to_string(value); };
  return std::string(kernel_name(config.kernel)) + "_" + dtype_name(config.dtype) + "_" + number(config.tile.m) + "x" +
         number(config.tile.n) + "x" + number(config.tile.k) + "_s" + number(config.stages) + "_a" +
         number(config.alignment);
}

std::span<RegisteredGemm const> registered_gemms() {
  static auto const& table = *new std::array(make_table(std::make_index_sequence<kNumConfigs>{}));
  return table;
}

RegisteredGemm const* find_gemm(std::string_view name) {
  // Never destroyed: XLA's threads may still run while the process exits.
  static auto const& index = *[] {
    auto* map = new std::unordered_map<std::string_view, RegisteredGemm const*>;
    for (RegisteredGemm const& gemm : registered_gemms()) map->emplace(gemm.name, &gemm);
    return map;
  }();
  auto const found = index.find(name);
  return found == index.end() ? nullptr : found->second;
}

}  // namespace moye
