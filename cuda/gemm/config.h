// The seam between ffi/ and the kernels: what a row of the table is, what a call is, what a kernel reports.
// Plain C++20, no CUDA header, so that g++ and nvcc both read it.
#pragma once

#include <cstdint>

#include "moye/arch/status.h"

namespace moye {

enum class Kernel { simt_tiled, sm80_multistage };  // each names the file gemm/<enumerator>.cuh
enum class Dtype { bf16, f16, f32, f64 };

// The enumerators' names, in their order: parts of a config's name.
inline constexpr char const* kKernelNames[] = {"simt_tiled", "sm80_multistage"};
inline constexpr char const* kDtypeNames[] = {"bf16", "f16", "f32", "f64"};
constexpr char const* kernel_name(Kernel kernel) { return kKernelNames[int(kernel)]; }
constexpr char const* dtype_name(Dtype dtype) { return kDtypeNames[int(dtype)]; }

struct TileMNK {
  int m, n, k;
};

/// What is compiled: one row of gemm/configs.h. A structural type, so a row can be a template argument.
struct GemmConfig {
  Kernel kernel;
  Dtype dtype;    // of a and b
  TileMNK tile;   // elements of one CTA's tile
  int stages;     // slots of the shared-memory pipeline
  int alignment;  // bytes of one global load; pointers and non-unit strides of a and b are multiples of it
};

/// What varies per call: d[b,m,n] = sum_k a[b,m,k] * b[b,n,k]. Strides and sizes in elements.
struct GemmArgs {
  void const* a;
  void const* b;
  void* d;
  void* workspace;  // GemmEntry::workspace_bytes(args) bytes, uninitialized; null where that is 0
  int64_t batch, m, n, k;
  int64_t a_batch_stride, a_m_stride, a_k_stride;
  int64_t b_batch_stride, b_n_stride, b_k_stride;
  int64_t d_batch_stride, d_m_stride, d_n_stride;
  Dtype d_dtype;
};

/// What the kernel reports about a row: derived facts live with the kernel, not in the table.
struct GemmEntry {
  Status (*launch)(GemmArgs const&, StreamHandle);
  /// Loads the row's kernels on the current device, so that no later launch does. Does nothing in the emulator.
  Status (*prepare)();
  int64_t (*workspace_bytes)(GemmArgs const&);
  int threads;          // per CTA
  int smem_bytes;       // per CTA, the largest of the row's kernels
  int min_arch;         // 80 for sm_80; 70 where any CUDA GPU of this project will do
  unsigned out_dtypes;  // bit i: Dtype(i) can be written
  unsigned orders;      // bit 0 NN, 1 NT, 2 TN, 3 TT: first letter a, second b; N = row-major as JAX writes it
  bool any_stride;      // true: no operand needs a unit stride
};

/// The bits of GemmEntry::out_dtypes.
template <class... Dtypes>
constexpr unsigned dtype_bits(Dtypes... dtypes) {
  return ((1u << unsigned(dtypes)) | ...);
}

template <GemmConfig kConfig>
struct Gemm;  // one partial specialization per kernel file

template <GemmConfig kConfig>
GemmEntry gemm_entry();  // defined once per row, in its own translation unit

}  // namespace moye
