// What the kernels of reports.cc share.
#pragma once

#include "moye/arch/builtin.h"
#include "moye/arch/copy_sm80.h"

namespace {

using namespace moye;
using Copy4 = SM80_CP_ASYNC_CACHEALWAYS<uint32_t>;

constexpr int kWords = 256;  // of `in` and of `out`
using Kernel = void (*)(uint32_t const* in, uint32_t* out);

uint32_t* smem_words() { return reinterpret_cast<uint32_t*>(smem_base()); }
uint32_t tid() { return thread_idx().x; }

}  // namespace
