// jax_moye._moye_cuda: the kernels compiled by nvcc. Importing it touches neither the driver nor a device.
#include <nanobind/nanobind.h>

#include "handlers.h"
#include "module.h"

namespace nb = nanobind;

NB_MODULE(_moye_cuda, module) {
  moye::add_common_functions(module);
  module.def("handlers", [] {
    nb::dict stages, targets;
    stages["prepare"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeGemmCudaPrepare));
    stages["execute"] = nb::capsule(reinterpret_cast<void*>(&JaxMoyeGemmCuda));
    targets[kGemmTarget] = stages;
    return targets;
  });
}
