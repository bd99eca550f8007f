// jax_moye._moye_cpu: the kernels in the CPU emulator, as an XLA handler and, for the tests, as a plain function.
#include <nanobind/nanobind.h>

#include "emulate_cpu.h"
#include "handlers.h"
#include "module.h"

namespace nb = nanobind;

NB_MODULE(_moye_cpu, module) {
  moye::add_common_functions(module);
  module.def("handlers", [] { return moye::to_dict(moye::cpu_handlers()); });
  moye::add_emulate(module);
}
