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
//   jax_moye_scaled_grouped_gemm_v1  as grouped, with operands lhs_scale and rhs_scale as scaled has them
//   jax_moye_scattered_grouped_gemm_v1 (a, b, group_sizes, d_rows, ...) -> ...
//                            as scaled grouped, for groups of rows: row i of the product is stored in row d_rows[i] of
//                            all results
//   jax_moye_weights_gemm_v1 (a, b, scales, [zeros]) -> d
//                            d = sum over groups of k of scales * (a (b - zeros)), b weights of 8 or 4 bits
//   jax_moye_block_scaled_gemm_v1 (a, b, a_scales, b_scales) -> d
//                            d = sum over blocks of 128 of k of a_scales b_scales (a b), 8-bit floats
//   jax_moye_attention_v1    (q, k, v, [mask]) -> (o, lse, [o_rest])
//                            s = scale q k^T, masked or not, causal or not; lse = log sum exp(s), o = exp(s - lse) v;
//                            o_rest is what rounding took from o, rounded itself
//   jax_moye_attention_grad_v1 (q, k, v, d_o, lse, delta) -> (dq, dk, dv)
//                            the gradients of that; delta is the sum over rows of o * d_o
//   jax_moye_view_attention_v1, jax_moye_view_attention_grad_v1
//                            as those two, both with a mask or without; q, k, v and d_o are parts of larger arrays:
//                            their first elements are at q_offset, k_offset, v_offset and d_o_offset of those; ds is
//                            multiplied in ds_parts
//   jax_moye_joined_attention_grad_v1  (q, k, v, d_o, lse, delta, [mask]) -> (arrays)
//                            as that of views; dq, dk and dv are parts of results: result_of says which of them each is
//                            part of, dq_offset, dk_offset and dv_offset where its first element is
//   jax_moye_biased_attention_v1       (q, k, v, bias, [mask]) -> (o, lse, [o_rest])
//   jax_moye_biased_attention_grad_v1  (q, k, v, d_o, lse, delta, bias, [mask]) -> (dq, dk, dv, [ds])
//                            as those of views; the bias is added to the scores behind the scale, lse is two arrays
//                            (AttentionArgs), ds is the gradient of the scores
//   jax_moye_capped_attention_v1, jax_moye_capped_attention_grad_v1
//                            as those of views, of scores cap * tanh(scale / cap * q k^T)
//   jax_moye_dropped_attention_v1      (q, k, v, kept, [bias], [mask]) -> (o, lse, [o_rest])
//   jax_moye_dropped_attention_grad_v1 (q, k, v, d_o, lse, delta, kept, [bias], [mask]) -> (dq, dk, dv, [ds])
//                            as those of views, or with a bias as those; weights that are not kept, booleans, are 0 in
//                            o, and the others have a factor, of which delta is, and lse is not
//   jax_moye_mark_v1         () -> (nothing of interest)   CUDA alone: an event on the stream, for whoever measures
#pragma once

#include <vector>

#include "xla/ffi/api/c_api.h"

namespace moye {

struct TargetHandlers {
  char const* name;
  XLA_FFI_Handler* execute;
  XLA_FFI_Handler* instantiate = nullptr;  // of CUDA's
  XLA_FFI_Handler* record = nullptr;       // of CUDA's, for runtimes that have this stage (record_cuda.h)
};

/// Whether XLA asks a handler about itself: it answers so without being called.
inline bool asks_for_metadata(XLA_FFI_CallFrame const* frame) {
  return frame->extension_start != nullptr && frame->extension_start->type == XLA_FFI_Extension_Metadata;
}

std::vector<TargetHandlers> cpu_handlers();
std::vector<TargetHandlers> cuda_handlers();
TargetHandlers mark_handlers();  // CUDA's, too

}  // namespace moye
