// The CUDA handlers: stateless, allocate nothing, synchronize nothing, so that XLA may capture them into a CUDA graph.
// More than 600 lines, of which half are bindings: XLA wants each target's attributes in its type and its signature.
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <string>

#include "handlers.h"
#include "moye/arch/kernel_library.h"
#include "xla_call.h"

namespace moye {
namespace {

ffi::Error to_error(cudaError_t error, char const* what) {
  if (error == cudaSuccess) return ffi::Error::Success();
  cudaGetLastError();  // a pending error would be blamed on the next user of the runtime
  auto const code = error == cudaErrorMemoryAllocation ? ffi::ErrorCode::kResourceExhausted : ffi::ErrorCode::kInternal;
  return ffi::Error(code, std::string("jax_moye: ") + what + ": " + cudaGetErrorString(error));
}

/// Loads the config's kernels on `device`, once. Loading takes a lock in the driver and can deadlock against a running
/// collective, hence before execution; concurrent first calls may load twice, which is harmless.
ffi::Error prepare_on_device(RegisteredGemm const& gemm, int device) {
  constexpr int kMaxDevices = 64;
  constexpr int kMaxConfigs = 1024;
  static std::array<std::array<std::atomic<bool>, kMaxConfigs>, kMaxDevices> done;
  size_t const index = size_t(gemm.index);
  bool const known = device < kMaxDevices && index < kMaxConfigs;
  if (known && done[device][index].load(std::memory_order_acquire)) return ffi::Error::Success();

  int current = 0;
  if (auto error = to_error(cudaGetDevice(&current), "cudaGetDevice"); error.failure()) return error;
  if (auto error = to_error(cudaSetDevice(device), "cudaSetDevice"); error.failure()) return error;
  Status const status = [&] {
    KernelLibraryScope const scope(gemm.library);
    return gemm.entry.prepare();
  }();
  if (auto error = to_error(cudaSetDevice(current), "cudaSetDevice"); error.failure()) return error;
  if (!status.ok()) return ffi::Error::Internal(gemm_error(gemm.name, {}, status.message).message);
  if (known) done[device][index].store(true, std::memory_order_release);
  return ffi::Error::Success();
}

ffi::Error prepare_config(std::string_view config, int32_t device) {
  return guarded(config, [&] {
    // A runtime that does not know the device at this stage says -1: the launch loads the kernels then. So does an
    // unknown name wait for the launch's error.
    RegisteredGemm const* gemm = find_gemm(config);
    if (device < 0 || gemm == nullptr) return ffi::Error::Success();
    return prepare_on_device(*gemm, device);
  });
}

/// All attributes are decoded, since a handler that names one has to name all.
ffi::Error prepare(int32_t device, Int64s, Int64s, std::string_view config, Int64s, Int64s) {
  return prepare_config(config, device);
}

ffi::Error prepare_fused(int32_t device, Int64s, std::string_view, double, Int64s, double, Int64s, Int64s,
                         std::string_view config, Int64s, std::string_view, Int64s, Int64s) {
  return prepare_config(config, device);
}

ffi::Error prepare_scaled(int32_t device, Int64s, std::string_view, double, Int64s, double, Int64s, Int64s,
                          std::string_view config, Int64s, Int64s, std::string_view, Int64s, Int64s, Int64s) {
  return prepare_config(config, device);
}

ffi::Error prepare_view(int32_t device, int64_t, Int64s, std::string_view, double, int64_t, Int64s, double, Int64s,
                        Int64s, std::string_view config, Int64s, Int64s, std::string_view, Int64s, Int64s, int64_t,
                        Int64s) {
  return prepare_config(config, device);
}

ffi::Error prepare_grouped(int32_t device, Int64s, std::string_view, double, Int64s, double, Int64s, Int64s,
                           std::string_view config, Int64s, std::string_view, std::string_view, Int64s, Int64s) {
  return prepare_config(config, device);
}

ffi::Error prepare_weights(int32_t device, std::string_view config, int64_t, int64_t, Int64s) {
  return prepare_config(config, device);
}

ffi::Error prepare_attention(int32_t device, std::string_view config, int64_t, bool, Int64s, bool, Int64s, Int64s,
                             Int64s, double, Int64s, Int64s) {
  return prepare_config(config, device);
}

ffi::Error prepare_attention_grad(int32_t device, std::string_view config, Int64s, int64_t, Int64s, Int64s, Int64s,
                                  bool, Int64s, Int64s, double, Int64s, Int64s) {
  return prepare_config(config, device);
}

ffi::Error prepare_view_attention(int32_t device, std::string_view config, int64_t, bool, int64_t, Int64s, bool, Int64s,
                                  Int64s, int64_t, Int64s, double, Int64s, int64_t, Int64s) {
  return prepare_config(config, device);
}

ffi::Error prepare_view_attention_grad(int32_t device, std::string_view config, int64_t, Int64s, int64_t, Int64s,
                                       Int64s, int64_t, Int64s, bool, int64_t, Int64s, bool, Int64s, int64_t, Int64s,
                                       double, Int64s, int64_t, Int64s) {
  return prepare_config(config, device);
}

/// Decodes and validates the request, and launches it.
ffi::Error launch(GemmRequest const& request, cudaStream_t stream) {
  GemmCall call;
  if (Status const status = decode_gemm(request, call); !status.ok())
    return to_error(status, ffi::ErrorCode::kInvalidArgument);
  KernelLibraryScope const scope(call.gemm->library);
  Status const status = call.gemm->entry.launch(call.args, stream);
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error::Internal(gemm_error(request.config, request.sizes, status.message).message);
}

ffi::Error execute(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> d,
                   ffi::Result<ffi::AnyBuffer> workspace, Int64s a_strides, Int64s b_strides, std::string_view config,
                   Int64s d_strides, Int64s sizes) {
  return guarded(config, [&] {
    GemmRequest request;
    if (auto error = read_call(a, b, *d, *workspace, config, sizes, a_strides, b_strides, d_strides, request);
        error.failure()) {
      return error;
    }
    return launch(request, stream);
  });
}

ffi::Error execute_fused(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs operands,
                         ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::AnyBuffer> workspace,
                         ffi::RemainingRets results, Int64s a_strides, std::string_view activation, double alpha,
                         Int64s b_strides, double beta, Int64s bias_strides, Int64s c_strides, std::string_view config,
                         Int64s d_strides, std::string_view operand_names, Int64s residual_strides, Int64s sizes) {
  return guarded(config, [&] {
    GemmRequest request;
    if (auto error = read_call(a, b, *d, *workspace, config, sizes, a_strides, b_strides, d_strides, request);
        error.failure()) {
      return error;
    }
    EpilogueAttributes const attributes{activation,       alpha,        beta, bias_strides, c_strides,
                                        residual_strides, operand_names};
    if (auto error = read_epilogue(attributes, operands, results, request); error.failure()) return error;
    return launch(request, stream);
  });
}

ffi::Error execute_scaled(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs operands,
                          ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::AnyBuffer> workspace,
                          ffi::RemainingRets results, Int64s a_strides, std::string_view activation, double alpha,
                          Int64s b_strides, double beta, Int64s bias_strides, Int64s c_strides, std::string_view config,
                          Int64s d_strides, Int64s lhs_scale_strides, std::string_view operand_names,
                          Int64s residual_strides, Int64s rhs_scale_strides, Int64s sizes) {
  return guarded(config, [&] {
    GemmRequest request;
    if (auto error = read_call(a, b, *d, *workspace, config, sizes, a_strides, b_strides, d_strides, request);
        error.failure()) {
      return error;
    }
    EpilogueAttributes const attributes{activation,
                                        alpha,
                                        beta,
                                        bias_strides,
                                        c_strides,
                                        residual_strides,
                                        operand_names,
                                        /*takes_scales=*/true,
                                        lhs_scale_strides,
                                        rhs_scale_strides};
    if (auto error = read_epilogue(attributes, operands, results, request); error.failure()) return error;
    return launch(request, stream);
  });
}

ffi::Error execute_view(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs operands,
                        ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::AnyBuffer> workspace,
                        ffi::RemainingRets results, int64_t a_offset, Int64s a_strides, std::string_view activation,
                        double alpha, int64_t b_offset, Int64s b_strides, double beta, Int64s bias_strides,
                        Int64s c_strides, std::string_view config, Int64s d_strides, Int64s lhs_scale_strides,
                        std::string_view operand_names, Int64s residual_strides, Int64s rhs_scale_strides,
                        int64_t second_b_offset, Int64s sizes) {
  return guarded(config, [&] {
    GemmRequest request;
    if (auto error = read_call(a, b, *d, *workspace, config, sizes, a_strides, b_strides, d_strides, request);
        error.failure()) {
      return error;
    }
    EpilogueAttributes const attributes{activation,
                                        alpha,
                                        beta,
                                        bias_strides,
                                        c_strides,
                                        residual_strides,
                                        operand_names,
                                        /*takes_scales=*/true,
                                        lhs_scale_strides,
                                        rhs_scale_strides};
    if (auto error = read_epilogue(attributes, operands, results, request); error.failure()) return error;
    read_offsets(a_offset, b_offset, second_b_offset, request);
    return launch(request, stream);
  });
}

ffi::Error execute_grouped(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer group_sizes,
                           ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> d, ffi::RemainingRets results,
                           Int64s a_strides, std::string_view activation, double alpha, Int64s b_strides, double beta,
                           Int64s bias_strides, Int64s c_strides, std::string_view config, Int64s d_strides,
                           std::string_view operand_names, std::string_view ragged, Int64s residual_strides,
                           Int64s sizes) {
  return guarded(config, [&] {
    GroupedRequest request;
    GemmRequest& gemm = request.gemm;
    if (auto error = read_call(a, b, *d, config, sizes, a_strides, b_strides, d_strides, gemm); error.failure())
      return error;
    if (auto error = read_groups(group_sizes, ragged, request); error.failure()) return error;
    EpilogueAttributes const attributes{activation,       alpha,        beta, bias_strides, c_strides,
                                        residual_strides, operand_names};
    if (auto error = read_epilogue(attributes, operands, results, gemm); error.failure()) return error;
    GroupedCall call;
    if (Status const status = decode_grouped(request, call); !status.ok())
      return to_error(status, ffi::ErrorCode::kInvalidArgument);
    Status const status = call.gemm->entry.launch_grouped(call.args, stream);
    if (status.ok()) return ffi::Error::Success();
    return ffi::Error::Internal(gemm_error(config, gemm.sizes, status.message).message);
  });
}

ffi::Error execute_weights(cudaStream_t stream, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer scales,
                           ffi::RemainingArgs zeros, ffi::Result<ffi::AnyBuffer> d, std::string_view config,
                           int64_t group, int64_t parts, Int64s sizes) {
  return guarded(config, [&] {
    WeightsRequest request;
    if (auto error = read_weights(a, b, scales, zeros, *d, config, group, parts, sizes, request); error.failure())
      return error;
    WeightsCall call;
    if (Status const status = decode_weights(request, call); !status.ok())
      return to_error(status, ffi::ErrorCode::kInvalidArgument);
    Status const status = call.gemm->entry.launch_weights(call.args, stream);
    if (status.ok()) return ffi::Error::Success();
    return ffi::Error::Internal(gemm_error(config, request.sizes, status.message).message);
  });
}

/// The same of attention or its gradients.
ffi::Error launch(AttentionRequest const& request, cudaStream_t stream) {
  AttentionCall call;
  if (Status const status = decode_attention(request, call); !status.ok())
    return to_error(status, ffi::ErrorCode::kInvalidArgument);
  Status const status = call.gemm->entry.launch_attention(call.args, stream);
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error::Internal(attention_error(request.config, request.sizes, status.message).message);
}

ffi::Error execute_view_attention(cudaStream_t stream, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                                  ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> o,
                                  ffi::Result<ffi::AnyBuffer> lse, std::string_view config, int64_t diagonal,
                                  bool is_causal, int64_t k_offset, Int64s k_strides, bool mask_is_infinite,
                                  Int64s mask_strides, Int64s o_strides, int64_t q_offset, Int64s q_strides,
                                  double scale, Int64s sizes, int64_t v_offset, Int64s v_strides) {
  return guarded(config, [&] {
    AttentionRequest request;
    AttentionAttributes const attributes{config, diagonal, is_causal, scale, sizes};
    if (auto error = read_attention(
            attributes, {{q, q_strides, q_offset}, {k, k_strides, k_offset}, {v, v_strides, v_offset}, {*o, o_strides}},
            {*lse}, request);
        error.failure())
      return error;
    if (auto error = read_mask(mask, mask_strides, mask_is_infinite, request); error.failure()) return error;
    return launch(request, stream);
  });
}

ffi::Error execute_attention(cudaStream_t stream, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                             ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> o, ffi::Result<ffi::AnyBuffer> lse,
                             std::string_view config, int64_t diagonal, bool is_causal, Int64s k_strides,
                             bool mask_is_infinite, Int64s mask_strides, Int64s o_strides, Int64s q_strides,
                             double scale, Int64s sizes, Int64s v_strides) {
  return execute_view_attention(stream, q, k, v, mask, o, lse, config, diagonal, is_causal, 0, k_strides,
                                mask_is_infinite, mask_strides, o_strides, 0, q_strides, scale, sizes, 0, v_strides);
}

ffi::Error execute_view_attention_grad(cudaStream_t stream, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                                       ffi::AnyBuffer d_o, ffi::AnyBuffer lse, ffi::AnyBuffer delta,
                                       ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> dq,
                                       ffi::Result<ffi::AnyBuffer> dk, ffi::Result<ffi::AnyBuffer> dv,
                                       std::string_view config, int64_t d_o_offset, Int64s d_o_strides,
                                       int64_t diagonal, Int64s dk_strides, Int64s dq_strides, int64_t ds_parts,
                                       Int64s dv_strides, bool is_causal, int64_t k_offset, Int64s k_strides,
                                       bool mask_is_infinite, Int64s mask_strides, int64_t q_offset, Int64s q_strides,
                                       double scale, Int64s sizes, int64_t v_offset, Int64s v_strides) {
  return guarded(config, [&] {
    AttentionRequest request{.of_gradients = true, .ds_parts = ds_parts};
    AttentionAttributes const attributes{config, diagonal, is_causal, scale, sizes};
    if (auto error = read_attention(attributes,
                                    {{q, q_strides, q_offset},
                                     {k, k_strides, k_offset},
                                     {v, v_strides, v_offset},
                                     {d_o, d_o_strides, d_o_offset},
                                     {*dq, dq_strides},
                                     {*dk, dk_strides},
                                     {*dv, dv_strides}},
                                    {lse, delta}, request);
        error.failure())
      return error;
    if (auto error = read_mask(mask, mask_strides, mask_is_infinite, request); error.failure()) return error;
    return launch(request, stream);
  });
}

ffi::Error execute_attention_grad(cudaStream_t stream, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                                  ffi::AnyBuffer d_o, ffi::AnyBuffer lse, ffi::AnyBuffer delta,
                                  ffi::Result<ffi::AnyBuffer> dq, ffi::Result<ffi::AnyBuffer> dk,
                                  ffi::Result<ffi::AnyBuffer> dv, std::string_view config, Int64s d_o_strides,
                                  int64_t diagonal, Int64s dk_strides, Int64s dq_strides, Int64s dv_strides,
                                  bool is_causal, Int64s k_strides, Int64s q_strides, double scale, Int64s sizes,
                                  Int64s v_strides) {
  return guarded(config, [&] {
    AttentionRequest request{.of_gradients = true};
    AttentionAttributes const attributes{config, diagonal, is_causal, scale, sizes};
    if (auto error = read_attention(attributes,
                                    {{q, q_strides},
                                     {k, k_strides},
                                     {v, v_strides},
                                     {d_o, d_o_strides},
                                     {*dq, dq_strides},
                                     {*dk, dk_strides},
                                     {*dv, dv_strides}},
                                    {lse, delta}, request);
        error.failure())
      return error;
    return launch(request, stream);
  });
}

}  // namespace
}  // namespace moye

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeGemmCudaPrepare, moye::prepare,
                              ffi::Ffi::BindPrepare()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Attr<moye::Int64s>("a_strides")
                                  .Attr<moye::Int64s>("b_strides")
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_strides")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeGemmCuda, moye::execute,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<moye::Int64s>("a_strides")
                                  .Attr<moye::Int64s>("b_strides")
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_strides")
                                  .Attr<moye::Int64s>("sizes"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeFusedGemmCudaPrepare, moye::prepare_fused,
                              ffi::Ffi::BindPrepare()
                                  .Ctx<ffi::DeviceOrdinal>()
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeFusedGemmCuda, moye::execute_fused,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
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
                                  .Attr<moye::Int64s>("sizes"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeScaledGemmCudaPrepare, moye::prepare_scaled,
                              ffi::Ffi::BindPrepare()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Attr<moye::Int64s>("a_strides")
                                  .Attr<std::string_view>("activation")
                                  .Attr<double>("alpha")
                                  .Attr<moye::Int64s>("b_strides")
                                  .Attr<double>("beta")
                                  .Attr<moye::Int64s>("bias_strides")
                                  .Attr<moye::Int64s>("c_strides")
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_strides")
                                  .Attr<moye::Int64s>("lhs_scale_strides")
                                  .Attr<std::string_view>("operands")
                                  .Attr<moye::Int64s>("residual_strides")
                                  .Attr<moye::Int64s>("rhs_scale_strides")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeScaledGemmCuda, moye::execute_scaled,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
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
                                  .Attr<moye::Int64s>("lhs_scale_strides")
                                  .Attr<std::string_view>("operands")
                                  .Attr<moye::Int64s>("residual_strides")
                                  .Attr<moye::Int64s>("rhs_scale_strides")
                                  .Attr<moye::Int64s>("sizes"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeViewGemmCudaPrepare, moye::prepare_view,
                              ffi::Ffi::BindPrepare()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Attr<int64_t>("a_offset")
                                  .Attr<moye::Int64s>("a_strides")
                                  .Attr<std::string_view>("activation")
                                  .Attr<double>("alpha")
                                  .Attr<int64_t>("b_offset")
                                  .Attr<moye::Int64s>("b_strides")
                                  .Attr<double>("beta")
                                  .Attr<moye::Int64s>("bias_strides")
                                  .Attr<moye::Int64s>("c_strides")
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_strides")
                                  .Attr<moye::Int64s>("lhs_scale_strides")
                                  .Attr<std::string_view>("operands")
                                  .Attr<moye::Int64s>("residual_strides")
                                  .Attr<moye::Int64s>("rhs_scale_strides")
                                  .Attr<int64_t>("second_b_offset")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeViewGemmCuda, moye::execute_view,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .RemainingRets()
                                  .Attr<int64_t>("a_offset")
                                  .Attr<moye::Int64s>("a_strides")
                                  .Attr<std::string_view>("activation")
                                  .Attr<double>("alpha")
                                  .Attr<int64_t>("b_offset")
                                  .Attr<moye::Int64s>("b_strides")
                                  .Attr<double>("beta")
                                  .Attr<moye::Int64s>("bias_strides")
                                  .Attr<moye::Int64s>("c_strides")
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_strides")
                                  .Attr<moye::Int64s>("lhs_scale_strides")
                                  .Attr<std::string_view>("operands")
                                  .Attr<moye::Int64s>("residual_strides")
                                  .Attr<moye::Int64s>("rhs_scale_strides")
                                  .Attr<int64_t>("second_b_offset")
                                  .Attr<moye::Int64s>("sizes"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeGroupedGemmCudaPrepare, moye::prepare_grouped,
                              ffi::Ffi::BindPrepare()
                                  .Ctx<ffi::DeviceOrdinal>()
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
                                  .Attr<std::string_view>("ragged")
                                  .Attr<moye::Int64s>("residual_strides")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeGroupedGemmCuda, moye::execute_grouped,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
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
                                  .Attr<std::string_view>("ragged")
                                  .Attr<moye::Int64s>("residual_strides")
                                  .Attr<moye::Int64s>("sizes"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeWeightsGemmCudaPrepare, moye::prepare_weights,
                              ffi::Ffi::BindPrepare()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Attr<std::string_view>("config")
                                  .Attr<int64_t>("group")
                                  .Attr<int64_t>("parts")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeWeightsGemmCuda, moye::execute_weights,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("config")
                                  .Attr<int64_t>("group")
                                  .Attr<int64_t>("parts")
                                  .Attr<moye::Int64s>("sizes"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeAttentionCudaPrepare, moye::prepare_attention,
                              ffi::Ffi::BindPrepare()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Attr<std::string_view>("config")
                                  .Attr<int64_t>("diagonal")
                                  .Attr<bool>("is_causal")
                                  .Attr<moye::Int64s>("k_strides")
                                  .Attr<bool>("mask_is_infinite")
                                  .Attr<moye::Int64s>("mask_strides")
                                  .Attr<moye::Int64s>("o_strides")
                                  .Attr<moye::Int64s>("q_strides")
                                  .Attr<double>("scale")
                                  .Attr<moye::Int64s>("sizes")
                                  .Attr<moye::Int64s>("v_strides"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeAttentionCuda, moye::execute_attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("config")
                                  .Attr<int64_t>("diagonal")
                                  .Attr<bool>("is_causal")
                                  .Attr<moye::Int64s>("k_strides")
                                  .Attr<bool>("mask_is_infinite")
                                  .Attr<moye::Int64s>("mask_strides")
                                  .Attr<moye::Int64s>("o_strides")
                                  .Attr<moye::Int64s>("q_strides")
                                  .Attr<double>("scale")
                                  .Attr<moye::Int64s>("sizes")
                                  .Attr<moye::Int64s>("v_strides"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeAttentionGradCudaPrepare, moye::prepare_attention_grad,
                              ffi::Ffi::BindPrepare()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_o_strides")
                                  .Attr<int64_t>("diagonal")
                                  .Attr<moye::Int64s>("dk_strides")
                                  .Attr<moye::Int64s>("dq_strides")
                                  .Attr<moye::Int64s>("dv_strides")
                                  .Attr<bool>("is_causal")
                                  .Attr<moye::Int64s>("k_strides")
                                  .Attr<moye::Int64s>("q_strides")
                                  .Attr<double>("scale")
                                  .Attr<moye::Int64s>("sizes")
                                  .Attr<moye::Int64s>("v_strides"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeAttentionGradCuda, moye::execute_attention_grad,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_o_strides")
                                  .Attr<int64_t>("diagonal")
                                  .Attr<moye::Int64s>("dk_strides")
                                  .Attr<moye::Int64s>("dq_strides")
                                  .Attr<moye::Int64s>("dv_strides")
                                  .Attr<bool>("is_causal")
                                  .Attr<moye::Int64s>("k_strides")
                                  .Attr<moye::Int64s>("q_strides")
                                  .Attr<double>("scale")
                                  .Attr<moye::Int64s>("sizes")
                                  .Attr<moye::Int64s>("v_strides"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeViewAttentionCudaPrepare, moye::prepare_view_attention,
                              moye::with_view_attention(ffi::Ffi::BindPrepare().Ctx<ffi::DeviceOrdinal>()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeViewAttentionCuda, moye::execute_view_attention,
                              moye::with_view_attention(ffi::Ffi::Bind()
                                                            .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                                            .Arg<ffi::AnyBuffer>()
                                                            .Arg<ffi::AnyBuffer>()
                                                            .Arg<ffi::AnyBuffer>()
                                                            .RemainingArgs()
                                                            .Ret<ffi::AnyBuffer>()
                                                            .Ret<ffi::AnyBuffer>()),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeViewAttentionGradCudaPrepare, moye::prepare_view_attention_grad,
                              moye::with_view_attention_grad(ffi::Ffi::BindPrepare().Ctx<ffi::DeviceOrdinal>()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeViewAttentionGradCuda, moye::execute_view_attention_grad,
                              moye::with_view_attention_grad(ffi::Ffi::Bind()
                                                                 .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .RemainingArgs()
                                                                 .Ret<ffi::AnyBuffer>()
                                                                 .Ret<ffi::AnyBuffer>()
                                                                 .Ret<ffi::AnyBuffer>()),
                              {ffi::Traits::kCmdBufferCompatible});
