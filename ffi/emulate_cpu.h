// `_moye_cpu.emulate`: one launch of one config in the emulator, on plain arrays. What the tests of the kernels call.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "moye/emu/emu.h"

namespace moye {

/// False for a word that names no mode.
bool parse_mode(std::string_view word, emu::Mode& mode);

/// The arrays of a request, as a stream of the emulator has them. One that lies in d, which is checked elsewhere, is d.
std::vector<emu::Memory> emulated_memory(GemmRequest const& request);
std::vector<emu::Memory> emulated_memory(GroupedRequest const& request);
std::vector<emu::Memory> emulated_memory(WeightsRequest const& request);
std::vector<emu::Memory> emulated_memory(BlockScaledRequest const& request);
std::vector<emu::Memory> emulated_memory(AttentionRequest const& request);

void add_emulate(nanobind::module_& module);

}  // namespace moye
