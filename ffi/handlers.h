// The handlers that a module hands to Python. One name per target on both platforms; its version is part of the name,
// since attributes are frozen into exported programs and compilation caches.
//   jax_moye_gemm_v1         (a, b) -> (d, workspace)                          d = a b
//   jax_moye_fused_gemm_v1   (a, b, [c, bias, residual]) -> (d, workspace, [preactivation])
//                            preactivation = alpha (a b) + beta c + bias, d = activation(preactivation) + residual
//                            (a, b, second_b) -> (d, workspace, [preactivation, second_product])
//                            preactivation = alpha (a b), second_product = a second_b,
//                            d = activation(preactivation) * second_product
//                            (a, b, c, multiplier) -> (d, workspace, other), where the activation is a derivative
//                            d = alpha (a b) * multiplier * activation'(c), other = alpha (a b) * activation(c)
//   jax_moye_scaled_gemm_v1  as fused, with operands lhs_scale and rhs_scale, f32, of rows and of columns
//                            preactivation = alpha (a b) lhs_scale rhs_scale + beta c + bias
//   jax_moye_view_gemm_v1    as scaled; a, b and second_b are parts of larger arrays: their first elements are at a_offset,
//                            b_offset and second_b_offset of those
//   jax_moye_grouped_gemm_v1 (a, b, group_sizes, [c, bias, residual]) -> (d, [preactivation])
//                            (a, b, group_sizes, second_b) -> (d, [preactivation, second_product])
//                            the same for groups of rows, or of k, two b of rows; sizes known on the device alone
//   jax_moye_weights_gemm_v1 (a, b, scales, [zeros]) -> d
//                            d = sum over groups of k of scales * (a (b - zeros)), b weights of 8 or 4 bits
//   jax_moye_attention_v1    (q, k, v, [mask]) -> (o, lse)
//                            s = scale q k^T, masked or not, causal or not; lse = log sum exp(s), o = exp(s - lse) v
//   jax_moye_attention_grad_v1 (q, k, v, d_o, lse, delta) -> (dq, dk, dv)
//                            the gradients of that; delta is the sum over rows of o * d_o
//   jax_moye_view_attention_v1, jax_moye_view_attention_grad_v1
//                            as those two, both with a mask or without; q, k, v and d_o are parts of larger arrays:
//                            their first elements are at q_offset, k_offset, v_offset and d_o_offset of those; ds is
//                            multiplied in ds_parts
//   jax_moye_mark_v1         () -> (nothing of interest)   CUDA alone: an event on the stream, for whoever measures
#pragma once

#include "xla/ffi/api/c_api.h"

inline constexpr char const* kGemmTarget = "jax_moye_gemm_v1";
inline constexpr char const* kFusedGemmTarget = "jax_moye_fused_gemm_v1";
inline constexpr char const* kScaledGemmTarget = "jax_moye_scaled_gemm_v1";
inline constexpr char const* kViewGemmTarget = "jax_moye_view_gemm_v1";
inline constexpr char const* kGroupedGemmTarget = "jax_moye_grouped_gemm_v1";
inline constexpr char const* kWeightsGemmTarget = "jax_moye_weights_gemm_v1";
inline constexpr char const* kAttentionTarget = "jax_moye_attention_v1";
inline constexpr char const* kAttentionGradTarget = "jax_moye_attention_grad_v1";
inline constexpr char const* kViewAttentionTarget = "jax_moye_view_attention_v1";
inline constexpr char const* kViewAttentionGradTarget = "jax_moye_view_attention_grad_v1";
inline constexpr char const* kMarkTarget = "jax_moye_mark_v1";

extern "C" XLA_FFI_Error* JaxMoyeGemmCpu(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeFusedGemmCpu(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeScaledGemmCpu(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeViewGemmCpu(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeGroupedGemmCpu(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeWeightsGemmCpu(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeAttentionCpu(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeAttentionGradCpu(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeViewAttentionCpu(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeViewAttentionGradCpu(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeGemmCuda(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeFusedGemmCuda(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeScaledGemmCuda(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeViewGemmCuda(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeGroupedGemmCuda(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeWeightsGemmCuda(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeAttentionCuda(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeAttentionGradCuda(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeViewAttentionCuda(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeViewAttentionGradCuda(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeGemmCudaPrepare(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeFusedGemmCudaPrepare(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeScaledGemmCudaPrepare(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeViewGemmCudaPrepare(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeGroupedGemmCudaPrepare(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeWeightsGemmCudaPrepare(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeAttentionCudaPrepare(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeAttentionGradCudaPrepare(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeViewAttentionCudaPrepare(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeViewAttentionGradCudaPrepare(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* JaxMoyeMarkCuda(XLA_FFI_CallFrame* call_frame);
