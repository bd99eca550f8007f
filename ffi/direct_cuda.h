// What the CUDA module shows to Python beside its handlers: launches without XLA, for whoever measures.
#pragma once

#include <nanobind/nanobind.h>

namespace moye {

/// Adds `DirectProduct` and `marked_seconds()` to the module.
void add_direct_product(nanobind::module_& module);

}  // namespace moye
