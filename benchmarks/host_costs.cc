// For host_costs.py: handlers that do what the CUDA handlers do before they launch, and handlers that do nothing.
// The table's rows are all there, with nothing behind them. And a handler that times another one, where there is a GPU.
#include <algorithm>
#include <chrono>
#include <vector>

#include "attention.cc"
#include "gemm.cc"
#include "modes.cc"
#include "registry.cc"
#include "targets.h"
#include "xla_call.h"

namespace moye {

template <GemmConfig kConfig>
GemmEntry gemm_entry() {
  return {.launch = [](GemmArgs const&, StreamHandle) -> Status { return {}; },
          .launch_grouped = nullptr,
          .launch_weights = nullptr,
          .launch_attention = nullptr,
          .prepare = []() -> Status { return {}; },
          .workspace_bytes = [](GemmArgs const&) -> int64_t { return 0; },
          .out_dtypes = ~0u,
          .facts = {.threads = 128, .smem_bytes = 0, .min_arch = 80, .any_stride = true}};
}

namespace {

ffi::Error empty(ffi::AnyBuffer, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>, ffi::Result<ffi::AnyBuffer>) {
  return ffi::Error::Success();
}

ffi::Error empty_fused(ffi::AnyBuffer, ffi::AnyBuffer, ffi::RemainingArgs, ffi::Result<ffi::AnyBuffer>,
                       ffi::Result<ffi::AnyBuffer>, ffi::RemainingRets) {
  return ffi::Error::Success();
}

/// What a CUDA handler does before it launches.
template <class Target>
XLA_FFI_Error* decode(XLA_FFI_CallFrame* frame) {
  using Attributes = typename Target::Attributes;
  static auto* const handler = make_handler<Attributes, Target::kBuffers>(
      ffi::Ffi::Bind(), Target::kAttributes, [](Attributes const& attributes, auto const&... buffers) {
        return guarded(attributes.config, [&] {
          GemmRequest request{};
          if (auto error = Target::read(attributes, buffers..., request); error.failure()) return error;
          GemmCall call;
          if (Status const status = decode_gemm(request, call); !status.ok())
            return to_error(status, ffi::ErrorCode::kInvalidArgument);
          return to_error(call.gemm->entry.launch(call.args, nullptr), ffi::ErrorCode::kInternal);
        });
      });
  return handler->Call(frame);
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

extern "C" XLA_FFI_Error* Decode(XLA_FFI_CallFrame* frame) { return moye::decode<moye::PlainGemm>(frame); }
extern "C" XLA_FFI_Error* DecodeFused(XLA_FFI_CallFrame* frame) { return moye::decode<moye::FusedGemm>(frame); }
