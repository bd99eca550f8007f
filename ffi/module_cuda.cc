// jax_moye._moye_cuda: the kernels compiled by nvcc. Importing it touches neither the driver nor a device.
#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "direct_cuda.h"
#include "handlers.h"
#include "kernel_images_cuda.h"
#include "loading_cuda.h"
#include "module.h"
#include "record_cuda.h"
#include "registry.h"

namespace nb = nanobind;

namespace {

void add_compiled(nb::bytes code, std::string const& config, std::string name) {
  auto const check = [](cudaError_t error, char const* call) {
    if (error == cudaSuccess) return;
    cudaGetLastError();
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
  };
  moye::RegisteredGemm const* const of_table = moye::find_gemm(config);
  if (of_table == nullptr) throw nb::value_error(("no compiled GEMM is named '" + config + "'").c_str());
  cudaLibrary_t library = nullptr;
  check(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cudaLibraryLoadData");
  if (!moye::add_gemm(*of_table, library, std::move(name))) {
    check(cudaLibraryUnload(library), "cudaLibraryUnload");
    return;
  }
  auto const& kept = *new std::string(code.c_str(), code.size());
  moye::keep_library_code(library, kept.data(), kept.size());
}

}  // namespace

NB_MODULE(_moye_cuda, module) {
  moye::add_common_functions(module);
  moye::add_direct_product(module);
  module.def("add_compiled", &add_compiled, nb::arg("code"), nb::arg("config"), nb::arg("name"),
             "Adds a config of the table whose kernel is that of `code`, a cubin, which stays loaded for good. It was\n"
             "compiled with a function of a user's, its activation \"own\".");
  module.def("kernels_are_loaded", &moye::kernels_are_loaded, nb::arg("config"), nb::arg("device"),
             "Whether an executable that calls this config has loaded its kernels on the device of that ordinal.");
  module.def(
      "recorded_nodes",
      [] {
        moye::RecordedNodes const nodes = moye::recorded_nodes();
        return nb::make_tuple(nodes.created, nodes.updated, nodes.known);
      },
      "How many nodes of XLA's CUDA graphs our launches became, how often one got new arguments, and how many calls\n"
      "got those of the same addresses before.");
  module.def(
      "recording_handlers",
      [] { return moye::to_dict({{"jax_moye_recorded_targets_v1", moye::register_with_record}}); },
      "A target for jaxlibs that record calls (_kernels/runtime.py), which registers all of handlers().");
  module.def("handlers", [] {
    std::vector<moye::TargetHandlers> targets = moye::cuda_handlers();
    targets.push_back(moye::mark_handlers());
    return moye::to_dict(targets);
  });
}
