#include "registry.h"

#include <array>
#include <cstddef>
#include <deque>
#include <iterator>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "gemm/configs.h"

namespace moye {
namespace {

constexpr size_t kNumConfigs = std::size(kGemmConfigs);

template <size_t... kRow>
std::array<RegisteredGemm, kNumConfigs> make_table(std::index_sequence<kRow...>) {
  return {{{int(kRow), kGemmConfigs[kRow], kernel_name(kGemmConfigs[kRow].kernel), config_name(kGemmConfigs[kRow]),
            gemm_entry<kGemmConfigs[kRow]>()}...}};
}

/// What was added to the table. Never destroyed: XLA's threads may still run while the process exits.
struct Added {
  std::shared_mutex mutex;
  std::deque<RegisteredGemm> gemms;  // whose addresses stay

  RegisteredGemm const* find(std::string_view name) const {
    for (RegisteredGemm const& gemm : gemms) {
      if (gemm.name == name) return &gemm;
    }
    return nullptr;
  }
};

Added& added() {
  static auto& all = *new Added;
  return all;
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

RegisteredGemm const& add_gemm(OwnKernel const& own, std::string kernel, std::string name) {
  Added& all = added();
  std::unique_lock const lock(all.mutex);
  if (RegisteredGemm const* known = all.find(name)) return *known;
  int const index = int(kNumConfigs + all.gemms.size());
  return all.gemms.emplace_back(RegisteredGemm{index, own.config, std::move(kernel), std::move(name), own.entry});
}

bool add_gemm(RegisteredGemm const& of_table, void* library, std::string name) {
  Added& all = added();
  std::unique_lock const lock(all.mutex);
  if (all.find(name) != nullptr) return false;
  RegisteredGemm gemm = of_table;
  gemm.index = int(kNumConfigs + all.gemms.size());
  gemm.name = std::move(name);
  gemm.entry.own_activation = true;
  gemm.library = library;
  all.gemms.push_back(std::move(gemm));
  return true;
}

RegisteredGemm const* find_gemm(std::string_view name) {
  // Never destroyed, as above.
  static auto const& index = *[] {
    auto* map = new std::unordered_map<std::string_view, RegisteredGemm const*>;
    for (RegisteredGemm const& gemm : registered_gemms()) map->emplace(gemm.name, &gemm);
    return map;
  }();
  auto const found = index.find(name);
  if (found != index.end()) return found->second;
  std::shared_lock const lock(added().mutex);
  return added().find(name);
}

}  // namespace moye
