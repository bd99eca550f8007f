// What both extension modules show to Python.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "handlers.h"

namespace moye {

/// Adds `api_version`, `own_kernel_headers`, `configs()`, `add_kernel(...)` and `workspace_bytes(...)` to the module.
void add_common_functions(nanobind::module_& module);

/// {target: {"execute": capsule, "instantiate": capsule}}, as jax.ffi.register_ffi_target takes them.
nanobind::dict to_dict(std::vector<TargetHandlers> const& targets);

}  // namespace moye
