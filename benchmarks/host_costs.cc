// For host_costs.py: handlers that do what the CUDA handlers do before they launch, and handlers that do nothing.
// The table's rows are all there, with nothing behind them. And a handler that times another one, where there is a GPU.
#include <algorithm>
#include <chrono>
#include <vector>

#include "gemm.cc"
#include "registry.cc"
#include "xla_call.h"

namespace moye {

template <GemmConfig kConfig>
GemmEntry gemm_entry() {
  return {.launch = [](GemmArgs const&, StreamHandle) -> Status { return {}; },
          .prepare = []() -> Status { return {}; },
          .workspace_bytes = [](GemmArgs const&) -> int64_t { return 0; },
          .threads = 128,
          .smem_bytes = 0,
          .min_arch = 80,
          .out_dtypes = ~0u,
          .orders = ~0u,
          .any_stride = true};
}

namespace {

ffi::Error empty(ffi::AnyBuffer, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>, ffi::Result<ffi::AnyBuffer>) {
  return ffi::Error::Success();
}

ffi::Error empty_fused(ffi::AnyBuffer, ffi::AnyBuffer, ffi::RemainingArgs, ffi::Result<ffi::AnyBuffer>,
                       ffi::Result<ffi::AnyBuffer>, ffi::RemainingRets) {
  return ffi::Error::Success();
}

ffi::Error launch(GemmRequest const& request) {
  GemmCall call;
  if (Status const status = decode_gemm(request, call); !status.ok())
    return to_error(status, ffi::ErrorCode::kInvalidArgument);
  return to_error(call.gemm->entry.launch(call.args, nullptr), ffi::ErrorCode::kInternal);
}

ffi::Error decode(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> d,
                  ffi::Result<ffi::AnyBuffer> workspace, Int64s a_strides, Int64s b_strides, std::string_view config,
                  Int64s d_strides, Int64s sizes) {
  return guarded(config, [&] {
    GemmRequest request;
    if (auto error = read_call(a, b, *d, *workspace, config, sizes, a_strides, b_strides, d_strides, request);
        error.failure()) {
      return error;
    }
    return launch(request);
  });
}

ffi::Error decode_fused(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> d,
                        ffi::Result<ffi::AnyBuffer> workspace, ffi::RemainingRets results, Int64s a_strides,
                        std::string_view activation, double alpha, Int64s b_strides, double beta, Int64s bias_strides,
                        Int64s c_strides, std::string_view config, Int64s d_strides, std::string_view operand_names,
                        Int64s residual_strides, Int64s sizes) {
  return guarded(config, [&] {
    GemmRequest request;
    if (auto error = read_call(a, b, *d, *workspace, config, sizes, a_strides, b_strides, d_strides, request);
        error.failure()) {
      return error;
    }
    EpilogueAttributes const attributes{activation,       alpha,        beta, bias_strides, c_strides,
                                        residual_strides, operand_names};
    if (auto error = read_epilogue(attributes, operands, results, request); error.failure()) return error;
    return launch(request);
  });
}

XLA_FFI_Handler* timed_handler = nullptr;
std::vector<double> timed_us;

}  // namespace
}  // namespace moye

/// Calls the handler that time_handler() named, and keeps the time of each of its executions.
extern "C" XLA_FFI_Error* Timed(XLA_FFI_CallFrame* frame) {
  bool const is_call = frame->extension_start == nullptr && frame->stage == XLA_FFI_ExecutionStage_EXECUTE;
  auto const start = std::chrono::steady_clock::now();
  XLA_FFI_Error* const error = moye::timed_handler(frame);
  std::chrono::duration<double, std::micro> const us = std::chrono::steady_clock::now() - start;
  if (is_call) moye::timed_us.push_back(us.count());
  return error;
}

extern "C" void time_handler(XLA_FFI_Handler* handler) {
  moye::timed_handler = handler;
  moye::timed_us.clear();
}

/// The quantile, 0 to 1, of the times since time_handler(), in microseconds; -1 if there is none.
extern "C" double timed_quantile(double quantile) {
  auto times = moye::timed_us;
  if (times.empty()) return -1;
  std::sort(times.begin(), times.end());
  return times[size_t(quantile * double(times.size() - 1))];
}

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    Empty, moye::empty,
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(EmptyFused, moye::empty_fused,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(Decode, moye::decode,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<moye::Int64s>("a_strides")
                                  .Attr<moye::Int64s>("b_strides")
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_strides")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DecodeFused, moye::decode_fused,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .RemainingRets()
                                  .Attr<moye::Int64s>("a_strides")
                                  .Attr<std::string_view>("activation")
                                  .Attr<double>("alpha")
                                  .Attr<moye::Int64s>("b_strides")
                                  .Attr<double>("beta")
                                  .Attr<moye::Int64s>("bias_strides")
                                  .Attr<moye::Int64s>("c_strides")
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_strides")
                                  .Attr<std::string_view>("operands")
                                  .Attr<moye::Int64s>("residual_strides")
                                  .Attr<moye::Int64s>("sizes"));
