// jax_moye._moye_cpu: the kernels in the CPU emulator, as an XLA handler and, for the tests, as a plain function.
#include <nanobind/nanobind.h>

#include "emulate_cpu.h"
#include "handlers.h"
#include "module.h"

namespace nb = nanobind;

NB_MODULE(_moye_cpu, module) {
  moye::add_common_functions(module);
  module.def("handlers", [] {
    nb::dict gemm, fused_gemm, scaled_gemm, view_gemm, grouped_gemm, weights_gemm, attention, attention_grad,
        view_attention, view_attention_grad, targets;
    gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeGemmCpu));
    fused_gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeFusedGemmCpu));
    scaled_gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeScaledGemmCpu));
    view_gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeViewGemmCpu));
    grouped_gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeGroupedGemmCpu));
    weights_gemm["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeWeightsGemmCpu));
    attention["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeAttentionCpu));
    attention_grad["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeAttentionGradCpu));
    view_attention["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeViewAttentionCpu));
    view_attention_grad["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeViewAttentionGradCpu));
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
    return targets;
  });
  moye::add_emulate(module);
}
