// `_moye_cpu.emulate`: one launch of one config in the emulator, on plain arrays. What the tests of the kernels call.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "moye/emu/emu.h"

namespace moye {

/// False for a word that names no mode.
bool parse_mode(std::string_view word, emu::Mode& mode);

void add_emulate(nanobind::module_& module);

}  // namespace moye
