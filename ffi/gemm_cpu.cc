// The CPU handler: the same config, run in the emulator, one worker per core. XLA calls it on a thread of its own or on
// the caller's, in any case without Python's lock.
#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>

#include "emulate_cpu.h"
#include "emulated_launch_cpu.h"
#include "handlers.h"
#include "interrupt_cpu.h"
#include "xla_call.h"

namespace moye {
namespace {

/// What the attributes say of the emulator, one worker per core. False for a mode that there is not.
bool set_options(bool detect_races, std::string_view mode, int64_t seed, emu::Stream& stream) {
  stream.options.seed = uint64_t(seed);
  stream.options.detect_races = detect_races;
  stream.options.workers = int(std::max(1u, std::thread::hardware_concurrency()));
  return parse_mode(mode, stream.options.mode);
}

std::string unknown_mode(std::string_view mode) { return "mode is eager, lazy or random, not " + std::string(mode); }

/// The stream of a request, with its arrays.
ffi::Error make_stream(GemmRequest const& request, bool detect_races, std::string_view mode, int64_t seed,
                       emu::Stream& stream) {
  if (!set_options(detect_races, mode, seed, stream))
    return to_error(gemm_error(request.config, request.sizes, unknown_mode(mode)), ffi::ErrorCode::kInvalidArgument);
  stream.memory = emulated_memory(request);
  return ffi::Error::Success();
}

/// Runs a call that was decoded. gemm: of the request, or itself.
template <class Request, class Call>
ffi::Error launch(GemmRequest const& gemm, Request const& request, Call const& call, emu::Stream& stream) {
  Interrupt interrupt;
  EmulatedLaunch const done = launch_emulated(request, call, stream, [&] { return interrupt.requested(); });
  if (done.status.ok()) return ffi::Error::Success();
  return to_error(gemm_error(gemm.config, gemm.sizes, done.status.message),
                  done.interrupted ? ffi::ErrorCode::kCancelled : ffi::ErrorCode::kInternal);
}

/// Decodes and validates the request, and runs it.
ffi::Error launch(GemmRequest const& request, bool detect_races, std::string_view mode, int64_t seed) {
  emu::Stream stream;
  if (auto error = make_stream(request, detect_races, mode, seed, stream); error.failure()) return error;
  GemmCall call;
  if (Status const status = decode_gemm(request, call); !status.ok())
    return to_error(status, ffi::ErrorCode::kInvalidArgument);
  return launch(request, request, call, stream);
}

ffi::Error execute(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> d,
                   ffi::Result<ffi::AnyBuffer> workspace, Int64s a_strides, Int64s b_strides, std::string_view config,
                   Int64s d_strides, bool detect_races, std::string_view mode, int64_t seed, Int64s sizes) {
  return guarded(config, [&] {
    GemmRequest request;
    if (auto error = read_call(a, b, *d, *workspace, config, sizes, a_strides, b_strides, d_strides, request);
        error.failure()) {
      return error;
    }
    return launch(request, detect_races, mode, seed);
  });
}

ffi::Error execute_fused(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> d,
                         ffi::Result<ffi::AnyBuffer> workspace, ffi::RemainingRets results, Int64s a_strides,
                         std::string_view activation, double alpha, Int64s b_strides, double beta, Int64s bias_strides,
                         Int64s c_strides, std::string_view config, Int64s d_strides, bool detect_races,
                         std::string_view mode, std::string_view operand_names, Int64s residual_strides, int64_t seed,
                         Int64s sizes) {
  return guarded(config, [&] {
    GemmRequest request;
    if (auto error = read_call(a, b, *d, *workspace, config, sizes, a_strides, b_strides, d_strides, request);
        error.failure()) {
      return error;
    }
    EpilogueAttributes const attributes{activation,       alpha,        beta, bias_strides, c_strides,
                                        residual_strides, operand_names};
    if (auto error = read_epilogue(attributes, operands, results, request); error.failure()) return error;
    return launch(request, detect_races, mode, seed);
  });
}

ffi::Error execute_scaled(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs operands,
                          ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::AnyBuffer> workspace,
                          ffi::RemainingRets results, Int64s a_strides, std::string_view activation, double alpha,
                          Int64s b_strides, double beta, Int64s bias_strides, Int64s c_strides, std::string_view config,
                          Int64s d_strides, bool detect_races, Int64s lhs_scale_strides, std::string_view mode,
                          std::string_view operand_names, Int64s residual_strides, Int64s rhs_scale_strides,
                          int64_t seed, Int64s sizes) {
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
    return launch(request, detect_races, mode, seed);
  });
}

ffi::Error execute_view(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> d,
                        ffi::Result<ffi::AnyBuffer> workspace, ffi::RemainingRets results, int64_t a_offset,
                        Int64s a_strides, std::string_view activation, double alpha, int64_t b_offset, Int64s b_strides,
                        double beta, Int64s bias_strides, Int64s c_strides, std::string_view config, Int64s d_strides,
                        bool detect_races, Int64s lhs_scale_strides, std::string_view mode,
                        std::string_view operand_names, Int64s residual_strides, Int64s rhs_scale_strides,
                        int64_t second_b_offset, int64_t seed, Int64s sizes) {
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
    return launch(request, detect_races, mode, seed);
  });
}

ffi::Error execute_grouped(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer group_sizes, ffi::RemainingArgs operands,
                           ffi::Result<ffi::AnyBuffer> d, ffi::RemainingRets results, Int64s a_strides,
                           std::string_view activation, double alpha, Int64s b_strides, double beta,
                           Int64s bias_strides, Int64s c_strides, std::string_view config, Int64s d_strides,
                           bool detect_races, std::string_view mode, std::string_view operand_names,
                           std::string_view ragged, Int64s residual_strides, int64_t seed, Int64s sizes) {
  return guarded(config, [&] {
    GroupedRequest request;
    GemmRequest& gemm = request.gemm;
    if (auto error = read_call(a, b, *d, config, sizes, a_strides, b_strides, d_strides, gemm); error.failure())
      return error;
    if (auto error = read_groups(group_sizes, ragged, request); error.failure()) return error;
    EpilogueAttributes const attributes{activation,       alpha,        beta, bias_strides, c_strides,
                                        residual_strides, operand_names};
    if (auto error = read_epilogue(attributes, operands, results, gemm); error.failure()) return error;
    emu::Stream stream;
    if (auto error = make_stream(gemm, detect_races, mode, seed, stream); error.failure()) return error;
    Buffer const& sizes_of_groups = request.group_sizes;
    stream.memory.push_back({sizes_of_groups.data, size_t(sizes_of_groups.elements) * 4, "group_sizes", false});
    GroupedCall call;
    if (Status const status = decode_grouped(request, call); !status.ok())
      return to_error(status, ffi::ErrorCode::kInvalidArgument);
    return launch(gemm, request, call, stream);
  });
}

ffi::Error execute_weights(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer scales, ffi::RemainingArgs zeros,
                           ffi::Result<ffi::AnyBuffer> d, std::string_view config, bool detect_races, int64_t group,
                           std::string_view mode, int64_t parts, int64_t seed, Int64s sizes) {
  return guarded(config, [&] {
    WeightsRequest request;
    if (auto error = read_weights(a, b, scales, zeros, *d, config, group, parts, sizes, request); error.failure())
      return error;
    WeightsCall call;
    if (Status const status = decode_weights(request, call); !status.ok())
      return to_error(status, ffi::ErrorCode::kInvalidArgument);
    GemmRequest narrated{};  // no workspace
    narrated.config = config;
    narrated.sizes = request.sizes;
    narrated.a = request.a;
    narrated.d = request.d;
    emu::Stream stream;
    if (auto error = make_stream(narrated, detect_races, mode, seed, stream); error.failure()) return error;
    stream.memory.push_back({request.b, b.size_bytes(), "b", false});
    stream.memory.push_back({request.scales.data, scales.size_bytes(), "scales", false});
    if (request.has_zeros)
      stream.memory.push_back({request.zeros.data, size_t(request.zeros.elements), "zeros", false});
    return launch(narrated, narrated, call, stream);
  });
}

/// Decodes and validates a call of attention or its gradients, and runs it.
ffi::Error launch(AttentionRequest const& request, bool detect_races, std::string_view mode, int64_t seed) {
  AttentionCall call;
  if (Status const status = decode_attention(request, call); !status.ok())
    return to_error(status, ffi::ErrorCode::kInvalidArgument);
  emu::Stream stream;
  if (!set_options(detect_races, mode, seed, stream))
    return to_error(attention_error(request.config, request.sizes, unknown_mode(mode)),
                    ffi::ErrorCode::kInvalidArgument);
  stream.memory = emulated_memory(request);
  Interrupt interrupt;
  EmulatedLaunch const done = launch_emulated(request, call, stream, [&] { return interrupt.requested(); });
  if (done.status.ok()) return ffi::Error::Success();
  return to_error(attention_error(request.config, request.sizes, done.status.message),
                  done.interrupted ? ffi::ErrorCode::kCancelled : ffi::ErrorCode::kInternal);
}

ffi::Error execute_view_attention(ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::RemainingArgs mask,
                                  ffi::Result<ffi::AnyBuffer> o, ffi::Result<ffi::AnyBuffer> lse,
                                  std::string_view config, int64_t diagonal, bool is_causal, int64_t k_offset,
                                  Int64s k_strides, bool mask_is_infinite, Int64s mask_strides, Int64s o_strides,
                                  int64_t q_offset, Int64s q_strides, double scale, Int64s sizes, int64_t v_offset,
                                  Int64s v_strides, bool detect_races, std::string_view mode, int64_t seed) {
  return guarded(config, [&] {
    AttentionRequest request;
    AttentionAttributes const attributes{config, diagonal, is_causal, scale, sizes};
    if (auto error = read_attention(
            attributes, {{q, q_strides, q_offset}, {k, k_strides, k_offset}, {v, v_strides, v_offset}, {*o, o_strides}},
            {*lse}, request);
        error.failure())
      return error;
    if (auto error = read_mask(mask, mask_strides, mask_is_infinite, request); error.failure()) return error;
    return launch(request, detect_races, mode, seed);
  });
}

ffi::Error execute_attention(ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::RemainingArgs mask,
                             ffi::Result<ffi::AnyBuffer> o, ffi::Result<ffi::AnyBuffer> lse, std::string_view config,
                             bool detect_races, int64_t diagonal, bool is_causal, Int64s k_strides,
                             bool mask_is_infinite, Int64s mask_strides, std::string_view mode, Int64s o_strides,
                             Int64s q_strides, double scale, int64_t seed, Int64s sizes, Int64s v_strides) {
  return execute_view_attention(q, k, v, mask, o, lse, config, diagonal, is_causal, 0, k_strides, mask_is_infinite,
                                mask_strides, o_strides, 0, q_strides, scale, sizes, 0, v_strides, detect_races, mode,
                                seed);
}

ffi::Error execute_view_attention_grad(ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::AnyBuffer d_o,
                                       ffi::AnyBuffer lse, ffi::AnyBuffer delta, ffi::RemainingArgs mask,
                                       ffi::Result<ffi::AnyBuffer> dq, ffi::Result<ffi::AnyBuffer> dk,
                                       ffi::Result<ffi::AnyBuffer> dv, std::string_view config, int64_t d_o_offset,
                                       Int64s d_o_strides, int64_t diagonal, Int64s dk_strides, Int64s dq_strides,
                                       int64_t ds_parts, Int64s dv_strides, bool is_causal, int64_t k_offset,
                                       Int64s k_strides, bool mask_is_infinite, Int64s mask_strides, int64_t q_offset,
                                       Int64s q_strides, double scale, Int64s sizes, int64_t v_offset, Int64s v_strides,
                                       bool detect_races, std::string_view mode, int64_t seed) {
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
    return launch(request, detect_races, mode, seed);
  });
}

ffi::Error execute_attention_grad(ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::AnyBuffer d_o,
                                  ffi::AnyBuffer lse, ffi::AnyBuffer delta, ffi::Result<ffi::AnyBuffer> dq,
                                  ffi::Result<ffi::AnyBuffer> dk, ffi::Result<ffi::AnyBuffer> dv,
                                  std::string_view config, Int64s d_o_strides, bool detect_races, int64_t diagonal,
                                  Int64s dk_strides, Int64s dq_strides, Int64s dv_strides, bool is_causal,
                                  Int64s k_strides, std::string_view mode, Int64s q_strides, double scale, int64_t seed,
                                  Int64s sizes, Int64s v_strides) {
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
    return launch(request, detect_races, mode, seed);
  });
}

}  // namespace
}  // namespace moye

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeGemmCpu, moye::execute,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<moye::Int64s>("a_strides")
                                  .Attr<moye::Int64s>("b_strides")
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_strides")
                                  .Attr<bool>("detect_races")
                                  .Attr<std::string_view>("mode")
                                  .Attr<int64_t>("seed")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeFusedGemmCpu, moye::execute_fused,
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
                                  .Attr<bool>("detect_races")
                                  .Attr<std::string_view>("mode")
                                  .Attr<std::string_view>("operands")
                                  .Attr<moye::Int64s>("residual_strides")
                                  .Attr<int64_t>("seed")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeScaledGemmCpu, moye::execute_scaled,
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
                                  .Attr<bool>("detect_races")
                                  .Attr<moye::Int64s>("lhs_scale_strides")
                                  .Attr<std::string_view>("mode")
                                  .Attr<std::string_view>("operands")
                                  .Attr<moye::Int64s>("residual_strides")
                                  .Attr<moye::Int64s>("rhs_scale_strides")
                                  .Attr<int64_t>("seed")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeViewGemmCpu, moye::execute_view,
                              ffi::Ffi::Bind()
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
                                  .Attr<bool>("detect_races")
                                  .Attr<moye::Int64s>("lhs_scale_strides")
                                  .Attr<std::string_view>("mode")
                                  .Attr<std::string_view>("operands")
                                  .Attr<moye::Int64s>("residual_strides")
                                  .Attr<moye::Int64s>("rhs_scale_strides")
                                  .Attr<int64_t>("second_b_offset")
                                  .Attr<int64_t>("seed")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeGroupedGemmCpu, moye::execute_grouped,
                              ffi::Ffi::Bind()
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
                                  .Attr<bool>("detect_races")
                                  .Attr<std::string_view>("mode")
                                  .Attr<std::string_view>("operands")
                                  .Attr<std::string_view>("ragged")
                                  .Attr<moye::Int64s>("residual_strides")
                                  .Attr<int64_t>("seed")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeWeightsGemmCpu, moye::execute_weights,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("config")
                                  .Attr<bool>("detect_races")
                                  .Attr<int64_t>("group")
                                  .Attr<std::string_view>("mode")
                                  .Attr<int64_t>("parts")
                                  .Attr<int64_t>("seed")
                                  .Attr<moye::Int64s>("sizes"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeAttentionCpu, moye::execute_attention,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingArgs()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<std::string_view>("config")
                                  .Attr<bool>("detect_races")
                                  .Attr<int64_t>("diagonal")
                                  .Attr<bool>("is_causal")
                                  .Attr<moye::Int64s>("k_strides")
                                  .Attr<bool>("mask_is_infinite")
                                  .Attr<moye::Int64s>("mask_strides")
                                  .Attr<std::string_view>("mode")
                                  .Attr<moye::Int64s>("o_strides")
                                  .Attr<moye::Int64s>("q_strides")
                                  .Attr<double>("scale")
                                  .Attr<int64_t>("seed")
                                  .Attr<moye::Int64s>("sizes")
                                  .Attr<moye::Int64s>("v_strides"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeAttentionGradCpu, moye::execute_attention_grad,
                              ffi::Ffi::Bind()
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
                                  .Attr<bool>("detect_races")
                                  .Attr<int64_t>("diagonal")
                                  .Attr<moye::Int64s>("dk_strides")
                                  .Attr<moye::Int64s>("dq_strides")
                                  .Attr<moye::Int64s>("dv_strides")
                                  .Attr<bool>("is_causal")
                                  .Attr<moye::Int64s>("k_strides")
                                  .Attr<std::string_view>("mode")
                                  .Attr<moye::Int64s>("q_strides")
                                  .Attr<double>("scale")
                                  .Attr<int64_t>("seed")
                                  .Attr<moye::Int64s>("sizes")
                                  .Attr<moye::Int64s>("v_strides"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeViewAttentionCpu, moye::execute_view_attention,
                              moye::with_view_attention(ffi::Ffi::Bind()
                                                            .Arg<ffi::AnyBuffer>()
                                                            .Arg<ffi::AnyBuffer>()
                                                            .Arg<ffi::AnyBuffer>()
                                                            .RemainingArgs()
                                                            .Ret<ffi::AnyBuffer>()
                                                            .Ret<ffi::AnyBuffer>())
                                  .Attr<bool>("detect_races")
                                  .Attr<std::string_view>("mode")
                                  .Attr<int64_t>("seed"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeViewAttentionGradCpu, moye::execute_view_attention_grad,
                              moye::with_view_attention_grad(ffi::Ffi::Bind()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .Arg<ffi::AnyBuffer>()
                                                                 .RemainingArgs()
                                                                 .Ret<ffi::AnyBuffer>()
                                                                 .Ret<ffi::AnyBuffer>()
                                                                 .Ret<ffi::AnyBuffer>())
                                  .Attr<bool>("detect_races")
                                  .Attr<std::string_view>("mode")
                                  .Attr<int64_t>("seed"));
