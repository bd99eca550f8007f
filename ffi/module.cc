#include "module.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gemm.h"
#include "xla/ffi/api/c_api.h"

namespace nb = nanobind;

namespace moye {
namespace {

constexpr std::array kOrders = {"NN", "NT", "TN", "TT"};  // by bit of GemmEntry::orders

nb::dict describe(RegisteredGemm const& gemm) {
  GemmConfig const& config = gemm.config;
  nb::list out_dtypes, orders;
  for (int i = 0; i < kDtypes; ++i) {
    if (gemm.entry.out_dtypes >> i & 1u) out_dtypes.append(dtype_name(Dtype(i)));
  }
  for (size_t i = 0; i < kOrders.size(); ++i) {
    if (gemm.entry.facts.orders >> i & 1u) orders.append(kOrders[i]);
  }
  nb::dict fields;
  fields["name"] = gemm.name;
  fields["kernel"] = gemm.kernel;
  fields["dtype"] = dtype_name(config.dtype);
  fields["accumulator"] = dtype_name(config.accumulator);
  fields["out_dtypes"] = nb::tuple(out_dtypes);
  fields["tile"] = nb::make_tuple(config.tile.m, config.tile.n, config.tile.k);
  fields["stages"] = config.stages;
  fields["cluster"] = nb::make_tuple(config.cluster.m, config.cluster.n);
  fields["alignment"] = config.alignment;
  fields["orders"] = nb::tuple(orders);
  fields["any_stride"] = gemm.entry.facts.any_stride;
  fields["derives"] = gemm.entry.facts.derives;
  fields["takes_gate"] = gemm.entry.facts.takes_gate;
  fields["takes_pair"] = gemm.entry.facts.takes_pair;
  fields["scales"] = gemm.entry.facts.scales;
  fields["grouped"] = gemm.entry.launch_grouped != nullptr;
  fields["weights"] = gemm.entry.launch_weights != nullptr;
  fields["block_scales"] = gemm.entry.launch_block_scaled != nullptr;
  fields["attention"] = gemm.entry.launch_attention != nullptr;
  fields["threads"] = gemm.entry.facts.threads;
  fields["consumers"] = gemm.entry.facts.consumers;
  fields["consumer_tile"] = nb::make_tuple(gemm.entry.facts.consumer_tile.m, gemm.entry.facts.consumer_tile.n);
  fields["smem_bytes"] = gemm.entry.facts.smem_bytes;
  fields["min_arch"] = gemm.entry.facts.min_arch;
  fields["max_arch"] = gemm.entry.facts.max_arch;
  return fields;
}

nb::list configs() {
  nb::list all;
  for (RegisteredGemm const& gemm : registered_gemms()) all.append(describe(gemm));
  return all;
}

nb::dict add_kernel(uintptr_t function, std::string kernel, std::string name) {
  auto const get = reinterpret_cast<OwnKernel const* (*)()>(function);
  return describe(add_gemm(*get(), std::move(kernel), std::move(name)));
}

/// The headers that both sides of an OwnKernel have to agree on, from "<file>=<SHA-256>,...", which CMake wrote.
nb::dict own_kernel_headers() {
  nb::dict headers;
  std::string_view rest = JAX_MOYE_OWN_KERNEL_HEADERS;
  while (!rest.empty()) {
    std::string_view const one = rest.substr(0, rest.find(','));
    size_t const equals = one.find('=');
    headers[nb::str(one.data(), equals)] = nb::str(one.data() + equals + 1, one.size() - equals - 1);
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
  return headers;
}

int64_t workspace_bytes(std::string_view config, std::vector<int64_t> const& sizes,
                        std::vector<int64_t> const& a_strides, std::vector<int64_t> const& b_strides,
                        std::vector<int64_t> const& d_strides, std::string_view out_dtype, int64_t a_offset,
                        int64_t b_offset) {
  GemmRequest request{.config = config,
                      .sizes = sizes,
                      .a_strides = a_strides,
                      .b_strides = b_strides,
                      .d_strides = d_strides,
                      .a = {},
                      .b = {},
                      .d = {},
                      .workspace = nullptr,
                      .workspace_bytes = 0,
                      .a_offset = a_offset,
                      .b_offset = b_offset};
  for (int i = 0; i < kDtypes; ++i) {
    if (out_dtype == dtype_name(Dtype(i))) request.d.dtype = Dtype(i);
  }
  int64_t bytes = 0;
  if (Status status = gemm_workspace_bytes(request, bytes); !status.ok()) throw nb::value_error(status.message.c_str());
  return bytes;
}

}  // namespace

void add_common_functions(nb::module_& module) {
  module.attr("api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  module.def("configs", &configs,
             "The configs of gemm/configs.h with what each kernel reports about itself, as dicts.");
  module.attr("own_kernel_headers") = own_kernel_headers();
  module.def("add_kernel", &add_kernel, nb::arg("function"), nb::arg("kernel"), nb::arg("name"),
             "Adds the config of a library that was compiled by itself, and returns what configs() says of one.\n\n"
             "function: the address of its jax_moye_own_kernel. The library stays loaded for good.");
  module.def("workspace_bytes", &workspace_bytes, nb::arg("config"), nb::arg("sizes"), nb::arg("a_strides"),
             nb::arg("b_strides"), nb::arg("d_strides"), nb::arg("out_dtype"), nb::arg("a_offset") = 0,
             nb::arg("b_offset") = 0, "Bytes of workspace that a call with these attributes needs.");
}

nb::dict to_dict(std::vector<TargetHandlers> const& targets) {
  nb::dict all;
  for (TargetHandlers const& target : targets) {
    nb::dict stages;
    stages["execute"] = nb::capsule(reinterpret_cast<void*>(target.execute));
    if (target.instantiate != nullptr) stages["instantiate"] = nb::capsule(reinterpret_cast<void*>(target.instantiate));
    all[target.name] = stages;
  }
  return all;
}

}  // namespace moye
