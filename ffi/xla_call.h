// From XLA's buffers to a GemmRequest, and from a Status to XLA's error. Shared by the handlers of both platforms.
#pragma once

#include <exception>
#include <new>
#include <span>
#include <string_view>

#include "gemm.h"
#include "xla/ffi/api/ffi.h"

namespace moye {

namespace ffi = xla::ffi;

using Int64s = ffi::Span<int64_t const>;

inline ffi::Error to_error(Status const& status, ffi::ErrorCode code) {
  return status.ok() ? ffi::Error::Success() : ffi::Error(code, status.message);
}

/// False for a type no kernel reads or writes.
inline bool to_dtype(ffi::DataType type, Dtype& dtype) {
  switch (type) {
    case ffi::DataType::BF16:
      dtype = Dtype::bf16;
      return true;
    case ffi::DataType::F16:
      dtype = Dtype::f16;
      return true;
    case ffi::DataType::F32:
      dtype = Dtype::f32;
      return true;
    case ffi::DataType::F64:
      dtype = Dtype::f64;
      return true;
    case ffi::DataType::S8:
      dtype = Dtype::s8;
      return true;
    case ffi::DataType::S32:
      dtype = Dtype::s32;
      return true;
    case ffi::DataType::F8E4M3FN:
      dtype = Dtype::e4m3;
      return true;
    case ffi::DataType::F8E5M2:
      dtype = Dtype::e5m2;
      return true;
    default:
      return false;
  }
}

/// Decodes and validates a custom call's operands, results and attributes.
inline ffi::Error decode_call(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer d, ffi::AnyBuffer workspace,
                              std::string_view config, Int64s sizes, Int64s a_strides, Int64s b_strides,
                              Int64s d_strides, GemmCall& call) {
  auto const to_span = [](Int64s values) { return std::span<int64_t const>(values.begin(), values.size()); };
  auto const to_buffer = [](ffi::AnyBuffer buffer, Dtype dtype) {
    return Buffer{buffer.untyped_data(), int64_t(buffer.element_count()), dtype};
  };
  Dtype a_dtype, b_dtype, d_dtype;
  if (!to_dtype(a.element_type(), a_dtype) || !to_dtype(b.element_type(), b_dtype) ||
      !to_dtype(d.element_type(), d_dtype)) {
    return to_error(
        gemm_error(config, to_span(sizes), "operands and result are bf16, f16, f32, f64, s8, s32, e4m3 or e5m2"),
        ffi::ErrorCode::kInvalidArgument);
  }
  GemmRequest const request{.config = config,
                            .sizes = to_span(sizes),
                            .a_strides = to_span(a_strides),
                            .b_strides = to_span(b_strides),
                            .d_strides = to_span(d_strides),
                            .a = to_buffer(a, a_dtype),
                            .b = to_buffer(b, b_dtype),
                            .d = to_buffer(d, d_dtype),
                            .workspace = workspace.untyped_data(),
                            .workspace_bytes = int64_t(workspace.size_bytes())};
  return to_error(decode_gemm(request, call), ffi::ErrorCode::kInvalidArgument);
}

/// Calls f(), which returns an ffi::Error. No exception leaves a handler: XLA would lose its type and text.
template <class F>
ffi::Error guarded(std::string_view config, F const& f) {
  try {
    return f();
  } catch (std::bad_alloc const&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, gemm_error(config, {}, "out of host memory").message);
  } catch (std::exception const& error) {
    return ffi::Error::Internal(gemm_error(config, {}, error.what()).message);
  } catch (...) {
    return ffi::Error::Internal(gemm_error(config, {}, "an exception of unknown type").message);
  }
}

}  // namespace moye
