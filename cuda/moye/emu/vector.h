// Loops over vectors, for processors that have wider ones than all do.
#pragma once

#include <cstdint>  // which says whose C library it is

/// Before a function: it is compiled for AVX2, too, and the first call takes what the processor has. Sums are the same:
/// that has no fused multiplications.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define MOYE_EMU_WIDE_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define MOYE_EMU_WIDE_VECTORS
#endif
