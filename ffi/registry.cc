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

std::string config_name(GemmConfig const& config) {
  auto const number = [](int value) { return std::to_string(value); };
  std::string name = std::string(kernel_name(config.kernel)) + "_" + dtype_name(config.dtype);
  if (config.accumulator != default_accumulator(config.dtype))
    name += std::string("_") + dtype_name(config.accumulator);
  name += "_" + number(config.tile.m) + "x" + number(config.tile.n) + "x" + number(config.tile.k);
  name += "_s" + number(config.stages);
  if (config.cluster.m * config.cluster.n > 1) name += "_c" + number(config.cluster.m) + "x" + number(config.cluster.n);
  return name + "_a" + number(config.alignment);
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
