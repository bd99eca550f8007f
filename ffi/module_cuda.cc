// jax_moye._moye_cuda: the kernels compiled by nvcc. Importing it touches neither the driver nor a device.
#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "direct_cuda.h"
#include "handlers.h"
#include "module.h"
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
  if (!moye::add_gemm(*of_table, library, std::move(name))) check(cudaLibraryUnload(library), "cudaLibraryUnload");
}

}  // namespace

NB_MODULE(_moye_cuda, module) {
  moye::add_common_functions(module);
  moye::add_direct_product(module);
  module.def("add_compiled", &add_compiled, nb::arg("code"), nb::arg("config"), nb::arg("name"),
             "Adds a config of the table whose kernel is that of `code`, a cubin, which stays loaded for good. It was\n"
             "compiled with a function of a user's, its activation \"own\".");
  module.def("handlers", [] {
    nb::dict gemm, fused_gemm, scaled_gemm, view_gemm, grouped_gemm, weights_gemm, attention, attention_grad,
        view_attention, view_attention_grad, mark, targets;
    gemm["prepare"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeGemmCudaPrepare));
    gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeGemmCuda));
    fused_gemm["prepare"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeFusedGemmCudaPrepare));
    fused_gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeFusedGemmCuda));
    scaled_gemm["prepare"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeScaledGemmCudaPrepare));
    scaled_gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeScaledGemmCuda));
    view_gemm["prepare"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeViewGemmCudaPrepare));
    view_gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeViewGemmCuda));
    grouped_gemm["prepare"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeGroupedGemmCudaPrepare));
    grouped_gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeGroupedGemmCuda));
    weights_gemm["prepare"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeWeightsGemmCudaPrepare));
    weights_gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeWeightsGemmCuda));
    attention["prepare"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeAttentionCudaPrepare));
    attention["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeAttentionCuda));
    attention_grad["prepare"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeAttentionGradCudaPrepare));
    attention_grad["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeAttentionGradCuda));
    view_attention["prepare"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeViewAttentionCudaPrepare));
    view_attention["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeViewAttentionCuda));
    view_attention_grad["prepare"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeViewAttentionGradCudaPrepare));
    view_attention_grad["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeViewAttentionGradCuda));
    mark["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeMarkCuda));
    targets[kGemmTarget] = gemm;
    targets[kFusedGemmTarget] = fused_gemm;
    targets[kScaledGemmTarget] = scaled_gemm;
    targets[kViewGemmTarget] = view_gemm;
    targets[kGroupedGemmTarget] = grouped_gemm;
    targets[kWeightsGemmTarget] = weights_gemm;
    targets[kAttentionTarget] = attention;
    targets[kAttentionGradTarget] = attention_grad;
    targets[kViewAttentionTarget] = view_attention;
    targets[kViewAttentionGradTarget] = view_attention_grad;
    targets[kMarkTarget] = mark;
    return targets;
  });
}
