// The handlers that a module hands to Python. One target name on both platforms; its version is part of the name, since
// attributes are frozen into exported programs and compilation caches.
#pragma once

#include "xla/ffi/api/c_api.h"

inline constexpr char const* kGemmTarget = "jax_moye_gemm_v1";

extern "C" XLA_FFI_Error* JaxMoyeGemmCpu(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeGemmCuda(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeGemmCudaPrepare(XLA_FFI_CallFrame* call_frame);
