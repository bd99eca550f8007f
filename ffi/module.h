// What both extension modules show to Python.
#pragma once

#include <nanobind/nanobind.h>

namespace moye {

/// Adds `api_version`, `own_kernel_headers`, `configs()`, `add_kernel(...)` and `workspace_bytes(...)` to the module.
void add_common_functions(nanobind::module_& module);

}  // namespace moye
