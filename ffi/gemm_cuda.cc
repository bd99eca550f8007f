// The CUDA handlers: stateless, allocate nothing, synchronize nothing, so that XLA may capture them into a CUDA graph.
#include <cuda_runtime_api.h>

#include "handlers.h"
#include "loading_cuda.h"
#include "moye/arch/kernel_library.h"
#include "moye/arch/launch_recorder.h"
#include "record_cuda.h"
#include "targets.h"
#include "xla_call.h"

namespace moye {
namespace {

/// Decodes and validates the request, and launches it.
template <class Target>
ffi::Error launch(typename Target::Request const& request, cudaStream_t stream) {
  typename Target::Call call;
  if (Status const status = Target::kDecode(request, call); !status.ok())
    return to_error(status, ffi::ErrorCode::kInvalidArgument);
  // Kernels of one's own are another library's, whose launches no recorder of ours sees: XLA captures them.
  bool const of_module = call.gemm->library != nullptr || size_t(call.gemm->index) < registered_gemms().size();
  if (launch_recorder != nullptr && !of_module) return ffi::Error::Internal("jax_moye: not to be recorded");
  KernelLibraryScope const scope(call.gemm->library);
  Status const status = (call.gemm->entry.*Target::kLaunch)(call.args, stream);
  return status.ok() ? ffi::Error::Success() : to_error(error_of(request, status.message), ffi::ErrorCode::kInternal);
}

template <class Target>
XLA_FFI_Error* execute(XLA_FFI_CallFrame* frame) {
  using Attributes = typename Target::Attributes;
  static auto* const handler = make_handler<Attributes, Target::kBuffers>(
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>(), Target::kAttributes,
      [](Attributes const& attributes, cudaStream_t stream, auto const&... buffers) {
        return guarded(attributes.config, [&] {
          typename Target::Request request{};
          if (auto error = Target::read(attributes, buffers..., request); error.failure()) return error;
          return launch<Target>(request, stream);
        });
      },
      {ffi::Traits::kCmdBufferCompatible});
  Hints const hints(frame);
  return handler->Call(frame);
}

/// The attribute that names a config; empty: there is none.
std::string_view config_of(XLA_FFI_Attrs const& attributes) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    std::string_view const name(attributes.names[i]->ptr, attributes.names[i]->len);
    if (name != "config" || attributes.types[i] != XLA_FFI_AttrType_STRING) continue;
    auto const* const value = static_cast<XLA_FFI_ByteSpan const*>(attributes.attrs[i]);
    return {value->ptr, value->len};
  }
  return {};
}

/// Once for each call of an executable, when XLA makes or loads it. No exception leaves it: the launch loads what is
/// not loaded here, or says why not.
template <class Target>
XLA_FFI_Error* instantiate(XLA_FFI_CallFrame* frame) {
  if (asks_for_metadata(frame)) return execute<Target>(frame);
  guarded({}, [&] { return load_kernels(config_of(frame->attrs)), ffi::Error::Success(); });
  return nullptr;
}

template <class Target>
XLA_FFI_Error* record(XLA_FFI_CallFrame* frame) {
  return record_call(frame, execute<Target>);
}

}  // namespace

std::vector<TargetHandlers> cuda_handlers() {
  return for_all_targets(
      []<class Target> { return TargetHandlers{Target::kName, execute<Target>, instantiate<Target>, record<Target>}; });
}

}  // namespace moye
