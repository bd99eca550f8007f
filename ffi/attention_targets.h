// The targets of attention: the arrays and the attributes of their calls, which XLA wants by name, and what is read
// from them. targets.h says what a target has.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <tuple>

#include "attention.h"
#include "gemm.h"
#include "xla_call.h"

namespace moye {

/// Why a request cannot be run, with what it is of.
inline Status error_of(AttentionRequest const& request, std::string_view reason) {
  return attention_error(request.config, request.sizes, reason);
}

/// The attributes of all targets of attention. Each target's calls have some of them; what the older ones have not, has
/// a value here.
struct AttentionAttributes {
  std::string_view config;
  Int64s sizes;
  double scale;
  double cap;
  bool is_causal;
  int64_t diagonal;
  Int64s q_strides, k_strides, v_strides;
  int64_t q_offset = 0, k_offset = 0, v_offset = 0;
  bool mask_is_infinite = false;
  Int64s mask_strides;
  bool mask_has_gradients = false;
  Int64s bias_strides;
  Int64s dropout_strides;
  double dropout_factor = 1;
  Int64s o_strides;
  Int64s d_o_strides, dq_strides, dk_strides, dv_strides;  // from here on of gradients alone
  int64_t d_o_offset = 0;
  int64_t ds_parts = 1;
  int64_t dq_offset = 0, dk_offset = 0, dv_offset = 0;
  Int64s result_of;
};

/// An array of attention as a call has it.
struct StridedBuffer {
  ffi::AnyBuffer buffer;
  Int64s strides;
  int64_t offset = 0;  // of parts of arrays
};

/// A call of attention, or, if the request says so, of its gradients: what decode_attention() checks.
///
/// arrays: in the order of attention_parts(). rows: lse, and delta of gradients.
inline ffi::Error read_attention(AttentionAttributes const& attributes, std::initializer_list<StridedBuffer> arrays,
                                 std::initializer_list<ffi::AnyBuffer> rows, AttentionRequest& request) {
  request.config = attributes.config;
  request.sizes = to_span(attributes.sizes);
  request.scale = attributes.scale;
  request.is_causal = attributes.is_causal;
  request.diagonal = attributes.diagonal;
  bool is_ours = true;
  auto part = attention_parts(request.of_gradients).begin();
  for (auto const& [buffer, strides, offset] : arrays) {
    AttentionOperand& operand = request.*(part++)->operand;
    operand.strides = to_span(strides);
    operand.offset = offset;
    is_ours = to_buffer(buffer, operand.buffer) && is_ours;
  }
  Buffer* to = &request.lse;
  for (ffi::AnyBuffer const& buffer : rows) {
    is_ours = to_buffer(buffer, *to) && is_ours;
    to = &request.delta;
  }
  return is_ours ? ffi::Error::Success() : invalid(request, kOurDtypes);
}

/// The mask of such a call, where it has one. first: of the operands that is one.
inline ffi::Error read_mask(AttentionAttributes const& attributes, ffi::RemainingArgs operands,
                            AttentionRequest& request, size_t first = 0) {
  if (operands.size() > first + 1) return invalid(request, "beside q, k and v there is a mask, and nothing else");
  if (operands.size() == first) return ffi::Error::Success();
  auto const mask = operands.get<ffi::AnyBuffer>(first);
  if (mask.has_error() || mask->element_type() != ffi::DataType::PRED)
    return invalid(request, "the mask is of booleans");
  request.mask = {/*present=*/true,
                  mask->untyped_data(),
                  int64_t(mask->element_count()),
                  to_span(attributes.mask_strides),
                  attributes.mask_is_infinite,
                  attributes.mask_has_gradients};
  return ffi::Error::Success();
}

/// What is added to the scores of such a call.
inline ffi::Error read_bias(AttentionAttributes const& attributes, ffi::AnyBuffer bias, AttentionRequest& request) {
  request.bias = {/*present=*/true, {}, to_span(attributes.bias_strides)};
  return to_buffer(bias, request.bias.buffer) ? ffi::Error::Success() : invalid(request, kOurDtypes);
}

/// Which weights of such a call are kept, and behind that the bias and the mask, where it has them: one is of booleans.
inline ffi::Error read_dropout(AttentionAttributes const& attributes, ffi::AnyBuffer kept, ffi::RemainingArgs behind,
                               AttentionRequest& request) {
  if (kept.element_type() != ffi::DataType::PRED) return invalid(request, "the dropout is of booleans");
  request.dropout = {/*present=*/true, kept.untyped_data(), int64_t(kept.element_count()),
                     to_span(attributes.dropout_strides), attributes.dropout_factor};
  size_t has_bias = 0;
  if (behind.size() > 0) {
    auto const first = behind.get<ffi::AnyBuffer>(0);
    if (first.has_error()) return invalid(request, kOurDtypes);
    has_bias = first->element_type() != ffi::DataType::PRED;
    if (has_bias != 0) {
      if (auto error = read_bias(attributes, *first, request); error.failure()) return error;
    }
  }
  return read_mask(attributes, behind, request, has_bias);
}

/// The gradient of the bias, where such a call has it as another result.
inline ffi::Error read_ds(ffi::RemainingRets results, AttentionRequest& request) {
  if (results.size() > 1) return invalid(request, "beside dq, dk and dv there is ds, or nothing");
  request.has_ds = results.size() == 1;
  if (!request.has_ds) return ffi::Error::Success();
  auto ds = results.get<ffi::AnyBuffer>(0);
  return !ds.has_error() && to_buffer(**ds, request.ds) ? ffi::Error::Success() : invalid(request, kOurDtypes);
}

/// What rounding took from o, where such a call has it as another result.
inline ffi::Error read_rest(AttentionAttributes const& attributes, ffi::RemainingRets results,
                            AttentionRequest& request) {
  if (results.size() > 1) return invalid(request, "beside o and lse there is what rounding took from o, or nothing");
  request.has_o_rest = results.size() == 1;
  if (!request.has_o_rest) return ffi::Error::Success();
  auto rest = results.get<ffi::AnyBuffer>(0);
  request.o_rest.strides = to_span(attributes.o_strides);
  if (rest.has_error() || !to_buffer(**rest, request.o_rest.buffer)) return invalid(request, kOurDtypes);
  return ffi::Error::Success();
}

/// What the targets of attention and those of its gradients have in common.
struct AnyAttention {
  using Attributes = AttentionAttributes;
  static constexpr auto kCommon =
      std::tuple{Attribute{"config", &Attributes::config},       Attribute{"sizes", &Attributes::sizes},
                 Attribute{"scale", &Attributes::scale},         Attribute{"is_causal", &Attributes::is_causal},
                 Attribute{"diagonal", &Attributes::diagonal},   Attribute{"q_strides", &Attributes::q_strides},
                 Attribute{"k_strides", &Attributes::k_strides}, Attribute{"v_strides", &Attributes::v_strides}};
  static constexpr auto kMask = std::tuple{Attribute{"mask_is_infinite", &Attributes::mask_is_infinite},
                                           Attribute{"mask_strides", &Attributes::mask_strides}};
  static constexpr auto kOffsets =
      std::tuple{Attribute{"q_offset", &Attributes::q_offset}, Attribute{"k_offset", &Attributes::k_offset},
                 Attribute{"v_offset", &Attributes::v_offset}};
  static constexpr auto kBias = std::tuple{Attribute{"bias_strides", &Attributes::bias_strides}};
  static constexpr auto kCap = std::tuple{Attribute{"cap", &Attributes::cap}};
  static constexpr auto kDropout = std::tuple{Attribute{"dropout_strides", &Attributes::dropout_strides},
                                              Attribute{"dropout_factor", &Attributes::dropout_factor}};
  using Request = AttentionRequest;
  using Call = AttentionCall;
  static constexpr auto kDecode = decode_attention;
  static constexpr auto kLaunch = &GemmEntry::launch_attention;
};

struct Attention : AnyAttention {
  static constexpr char const* kName = "jax_moye_attention_v1";
  static constexpr Buffers kBuffers{.operands = 3, .more_operands = true, .results = 2, .more_results = true};
  static constexpr auto kAttributes =
      std::tuple_cat(kCommon, kMask, std::tuple{Attribute{"o_strides", &Attributes::o_strides}});

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                         ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> o, ffi::Result<ffi::AnyBuffer> lse,
                         ffi::RemainingRets results, Request& request) {
    if (auto error = read_attention(attributes,
                                    {{q, attributes.q_strides, attributes.q_offset},
                                     {k, attributes.k_strides, attributes.k_offset},
                                     {v, attributes.v_strides, attributes.v_offset},
                                     {*o, attributes.o_strides}},
                                    {*lse}, request);
        error.failure())
      return error;
    if (auto error = read_mask(attributes, mask, request); error.failure()) return error;
    return read_rest(attributes, results, request);
  }
};

struct ViewAttention : Attention {
  static constexpr char const* kName = "jax_moye_view_attention_v1";
  static constexpr auto kAttributes = std::tuple_cat(Attention::kAttributes, kOffsets);
};

struct AttentionGrad : AnyAttention {
  static constexpr char const* kName = "jax_moye_attention_grad_v1";
  static constexpr Buffers kBuffers{.operands = 6, .results = 3};
  static constexpr auto kAttributes = std::tuple_cat(
      kCommon,
      std::tuple{Attribute{"d_o_strides", &Attributes::d_o_strides}, Attribute{"dq_strides", &Attributes::dq_strides},
                 Attribute{"dk_strides", &Attributes::dk_strides}, Attribute{"dv_strides", &Attributes::dv_strides}});

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                         ffi::AnyBuffer d_o, ffi::AnyBuffer lse, ffi::AnyBuffer delta, ffi::Result<ffi::AnyBuffer> dq,
                         ffi::Result<ffi::AnyBuffer> dk, ffi::Result<ffi::AnyBuffer> dv, Request& request) {
    request.of_gradients = true;
    request.ds_parts = attributes.ds_parts;
    return read_attention(attributes,
                          {{q, attributes.q_strides, attributes.q_offset},
                           {k, attributes.k_strides, attributes.k_offset},
                           {v, attributes.v_strides, attributes.v_offset},
                           {d_o, attributes.d_o_strides, attributes.d_o_offset},
                           {*dq, attributes.dq_strides},
                           {*dk, attributes.dk_strides},
                           {*dv, attributes.dv_strides}},
                          {lse, delta}, request);
  }
};

struct ViewAttentionGrad : AttentionGrad {
  static constexpr char const* kName = "jax_moye_view_attention_grad_v1";
  static constexpr Buffers kBuffers{.operands = 6, .more_operands = true, .results = 3};
  static constexpr auto kAttributes = std::tuple_cat(
      AttentionGrad::kAttributes, kMask, kOffsets,
      std::tuple{Attribute{"d_o_offset", &Attributes::d_o_offset}, Attribute{"ds_parts", &Attributes::ds_parts}});

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                         ffi::AnyBuffer d_o, ffi::AnyBuffer lse, ffi::AnyBuffer delta, ffi::RemainingArgs mask,
                         ffi::Result<ffi::AnyBuffer> dq, ffi::Result<ffi::AnyBuffer> dk, ffi::Result<ffi::AnyBuffer> dv,
                         Request& request) {
    if (auto error = AttentionGrad::read(attributes, q, k, v, d_o, lse, delta, dq, dk, dv, request); error.failure())
      return error;
    return read_mask(attributes, mask, request);
  }
};

/// dq, dk and dv may be parts of the same array.
struct JoinedAttentionGrad : ViewAttentionGrad {
  static constexpr char const* kName = "jax_moye_joined_attention_grad_v1";
  static constexpr Buffers kBuffers{.operands = 6, .more_operands = true, .results = 1, .more_results = true};
  static constexpr auto kAttributes = std::tuple_cat(
      ViewAttentionGrad::kAttributes,
      std::tuple{Attribute{"dq_offset", &Attributes::dq_offset}, Attribute{"dk_offset", &Attributes::dk_offset},
                 Attribute{"dv_offset", &Attributes::dv_offset}, Attribute{"result_of", &Attributes::result_of}});

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                         ffi::AnyBuffer d_o, ffi::AnyBuffer lse, ffi::AnyBuffer delta, ffi::RemainingArgs mask,
                         ffi::Result<ffi::AnyBuffer> first, ffi::RemainingRets others, Request& request) {
    request.result_of = to_span(attributes.result_of);
    int64_t const results = 1 + int64_t(others.size());
    std::array<ffi::Result<ffi::AnyBuffer>, 3> gradients = {first, first, first};
    bool is_one = request.result_of.size() == gradients.size();
    for (size_t i = 0; is_one && i < gradients.size(); ++i) {
      int64_t const result = request.result_of[i];
      is_one = result >= 0 && result < results;
      if (!is_one || result == 0) continue;
      auto other = others.get<ffi::AnyBuffer>(size_t(result - 1));
      if (other.has_error()) return invalid(request, kOurDtypes);
      gradients[i] = *other;
    }
    for (int64_t result = 0; is_one && result < results; ++result)
      is_one = std::count(request.result_of.begin(), request.result_of.end(), result) > 0;
    if (!is_one) return invalid(request, "result_of names a result for each of dq, dk and dv, and all results");
    auto const& [dq, dk, dv] = gradients;
    if (auto error = ViewAttentionGrad::read(attributes, q, k, v, d_o, lse, delta, mask, dq, dk, dv, request);
        error.failure())
      return error;
    request.dq.offset = attributes.dq_offset;
    request.dk.offset = attributes.dk_offset;
    request.dv.offset = attributes.dv_offset;
    return ffi::Error::Success();
  }
};

struct BiasedAttention : ViewAttention {
  static constexpr char const* kName = "jax_moye_biased_attention_v1";
  static constexpr Buffers kBuffers{.operands = 4, .more_operands = true, .results = 2, .more_results = true};
  static constexpr auto kAttributes = std::tuple_cat(ViewAttention::kAttributes, kBias);

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                         ffi::AnyBuffer bias, ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> o,
                         ffi::Result<ffi::AnyBuffer> lse, ffi::RemainingRets results, Request& request) {
    if (auto error = read_bias(attributes, bias, request); error.failure()) return error;
    return ViewAttention::read(attributes, q, k, v, mask, o, lse, results, request);
  }
};

struct BiasedAttentionGrad : ViewAttentionGrad {
  static constexpr char const* kName = "jax_moye_biased_attention_grad_v1";
  static constexpr Buffers kBuffers{.operands = 7, .more_operands = true, .results = 3, .more_results = true};
  static constexpr auto kAttributes = std::tuple_cat(ViewAttentionGrad::kAttributes, kBias);

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                         ffi::AnyBuffer d_o, ffi::AnyBuffer lse, ffi::AnyBuffer delta, ffi::AnyBuffer bias,
                         ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> dq, ffi::Result<ffi::AnyBuffer> dk,
                         ffi::Result<ffi::AnyBuffer> dv, ffi::RemainingRets results, Request& request) {
    if (auto error = read_bias(attributes, bias, request); error.failure()) return error;
    if (auto error = ViewAttentionGrad::read(attributes, q, k, v, d_o, lse, delta, mask, dq, dk, dv, request);
        error.failure())
      return error;
    return read_ds(results, request);
  }
};

struct CappedAttention : ViewAttention {
  static constexpr char const* kName = "jax_moye_capped_attention_v1";
  static constexpr auto kAttributes = std::tuple_cat(ViewAttention::kAttributes, kCap);

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                         ffi::RemainingArgs mask, ffi::Result<ffi::AnyBuffer> o, ffi::Result<ffi::AnyBuffer> lse,
                         ffi::RemainingRets results, Request& request) {
    request.has_cap = true;
    request.cap = attributes.cap;
    return ViewAttention::read(attributes, q, k, v, mask, o, lse, results, request);
  }
};

struct CappedAttentionGrad : ViewAttentionGrad {
  static constexpr char const* kName = "jax_moye_capped_attention_grad_v1";
  static constexpr auto kAttributes = std::tuple_cat(ViewAttentionGrad::kAttributes, kCap);

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                         ffi::AnyBuffer d_o, ffi::AnyBuffer lse, ffi::AnyBuffer delta, ffi::RemainingArgs mask,
                         ffi::Result<ffi::AnyBuffer> dq, ffi::Result<ffi::AnyBuffer> dk, ffi::Result<ffi::AnyBuffer> dv,
                         Request& request) {
    request.has_cap = true;
    request.cap = attributes.cap;
    return ViewAttentionGrad::read(attributes, q, k, v, d_o, lse, delta, mask, dq, dk, dv, request);
  }
};

struct DroppedAttention : ViewAttention {
  static constexpr char const* kName = "jax_moye_dropped_attention_v1";
  static constexpr Buffers kBuffers{.operands = 4, .more_operands = true, .results = 2, .more_results = true};
  static constexpr auto kAttributes = std::tuple_cat(ViewAttention::kAttributes, kBias, kDropout);

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                         ffi::AnyBuffer kept, ffi::RemainingArgs behind, ffi::Result<ffi::AnyBuffer> o,
                         ffi::Result<ffi::AnyBuffer> lse, ffi::RemainingRets results, Request& request) {
    if (auto error = read_attention(attributes,
                                    {{q, attributes.q_strides, attributes.q_offset},
                                     {k, attributes.k_strides, attributes.k_offset},
                                     {v, attributes.v_strides, attributes.v_offset},
                                     {*o, attributes.o_strides}},
                                    {*lse}, request);
        error.failure())
      return error;
    if (auto error = read_dropout(attributes, kept, behind, request); error.failure()) return error;
    return read_rest(attributes, results, request);
  }
};

struct DroppedAttentionGrad : ViewAttentionGrad {
  static constexpr char const* kName = "jax_moye_dropped_attention_grad_v1";
  static constexpr Buffers kBuffers{.operands = 7, .more_operands = true, .results = 3, .more_results = true};
  static constexpr auto kAttributes =
      std::tuple_cat(ViewAttentionGrad::kAttributes, kBias, kDropout,
                     std::tuple{Attribute{"mask_has_gradients", &Attributes::mask_has_gradients}});

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                         ffi::AnyBuffer d_o, ffi::AnyBuffer lse, ffi::AnyBuffer delta, ffi::AnyBuffer kept,
                         ffi::RemainingArgs behind, ffi::Result<ffi::AnyBuffer> dq, ffi::Result<ffi::AnyBuffer> dk,
                         ffi::Result<ffi::AnyBuffer> dv, ffi::RemainingRets results, Request& request) {
    if (auto error = AttentionGrad::read(attributes, q, k, v, d_o, lse, delta, dq, dk, dv, request); error.failure())
      return error;
    if (auto error = read_dropout(attributes, kept, behind, request); error.failure()) return error;
    return read_ds(results, request);
  }
};

}  // namespace moye
