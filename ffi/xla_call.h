// From XLA's buffers to a GemmRequest, and from a Status to XLA's error. Shared by the handlers of both platforms.
#pragma once

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "attention.h"
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

inline std::span<int64_t const> to_span(Int64s values) { return {values.begin(), values.size()}; }

/// False for a buffer of a type no kernel reads or writes.
inline bool to_buffer(ffi::AnyBuffer from, Buffer& buffer) {
  buffer.data = from.untyped_data();
  buffer.elements = int64_t(from.element_count());
  return to_dtype(from.element_type(), buffer.dtype);
}

inline ffi::Error invalid(std::string_view config, Int64s sizes, std::string_view reason) {
  return to_error(gemm_error(config, to_span(sizes), reason), ffi::ErrorCode::kInvalidArgument);
}

inline constexpr char const* kOurDtypes = "operands and results are bf16, f16, f32, f64, s8, s32, e4m3 or e5m2";

/// What all targets have: operands, result, and attributes as they arrive. decode_gemm() checks them.
inline ffi::Error read_call(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer d, std::string_view config, Int64s sizes,
                            Int64s a_strides, Int64s b_strides, Int64s d_strides, GemmRequest& request) {
  request.config = config;
  request.sizes = to_span(sizes);
  request.a_strides = to_span(a_strides);
  request.b_strides = to_span(b_strides);
  request.d_strides = to_span(d_strides);
  if (!to_buffer(a, request.a) || !to_buffer(b, request.b) || !to_buffer(d, request.d))
    return invalid(config, sizes, kOurDtypes);
  return ffi::Error::Success();
}

/// The same with the workspace, which the grouped target has not.
inline ffi::Error read_call(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer d, ffi::AnyBuffer workspace,
                            std::string_view config, Int64s sizes, Int64s a_strides, Int64s b_strides, Int64s d_strides,
                            GemmRequest& request) {
  request.workspace = workspace.untyped_data();
  request.workspace_bytes = int64_t(workspace.size_bytes());
  return read_call(a, b, d, config, sizes, a_strides, b_strides, d_strides, request);
}

/// The attributes of the fused target beside those of read_call().
struct EpilogueAttributes {
  std::string_view activation;
  double alpha, beta;
  Int64s bias_strides, c_strides, residual_strides;  // of those that are no operands: not looked at
  // Which follow a and b, in their order: "c,bias,residual" or less, or "second_b", which lies as b does, or
  // "c,multiplier", the latter lying as d does.
  std::string_view operands;
  // Of the scaled and the view target alone; the others' calls name no scales.
  bool takes_scales = false;
  Int64s lhs_scale_strides = {}, rhs_scale_strides = {};
};

/// The rest of a fused call: operands behind the named ones, results likewise.
inline ffi::Error read_epilogue(EpilogueAttributes const& attributes, ffi::RemainingArgs operands,
                                ffi::RemainingRets results, GemmRequest& request) {
  auto const error = [&](std::string const& reason) {
    return to_error(gemm_error(request.config, request.sizes, reason), ffi::ErrorCode::kInvalidArgument);
  };
  EpilogueRequest& epilogue = request.epilogue;
  epilogue.activation = attributes.activation;
  epilogue.alpha = attributes.alpha;
  epilogue.beta = attributes.beta;
  struct Slot {
    std::string_view name;
    bool& present;
    Buffer& buffer;
  };
  Slot const slots[] = {{"c", epilogue.c.present, epilogue.c.buffer},
                        {"bias", epilogue.bias.present, epilogue.bias.buffer},
                        {"residual", epilogue.residual.present, epilogue.residual.buffer},
                        {"multiplier", epilogue.multiplier.present, epilogue.multiplier.buffer},
                        {"second_b", epilogue.has_second_b, epilogue.second_b},
                        {"lhs_scale", epilogue.lhs_scale.present, epilogue.lhs_scale.buffer},
                        {"rhs_scale", epilogue.rhs_scale.present, epilogue.rhs_scale.buffer}};
  Slot const* const slots_end = std::end(slots) - (attributes.takes_scales ? 0 : 2);
  epilogue.c.strides = to_span(attributes.c_strides);
  epilogue.bias.strides = to_span(attributes.bias_strides);
  epilogue.residual.strides = to_span(attributes.residual_strides);
  epilogue.multiplier.strides = request.d_strides;
  epilogue.lhs_scale.strides = to_span(attributes.lhs_scale_strides);
  epilogue.rhs_scale.strides = to_span(attributes.rhs_scale_strides);
  size_t count = 0;
  for (std::string_view rest = attributes.operands; !rest.empty(); ++count) {
    size_t const comma = rest.find(',');
    std::string_view const word = rest.substr(0, comma);
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
    auto const slot = std::find_if(std::begin(slots), slots_end, [&](Slot const& s) { return s.name == word; });
    if (slot == slots_end || slot->present)
      return error(std::string("operands names c, bias, residual, multiplier and ") +
                   (attributes.takes_scales ? "second_b, lhs_scale and rhs_scale" : "second_b") +
                   ", each once at most, not " + std::string(attributes.operands));
    auto const buffer = operands.get<ffi::AnyBuffer>(count);
    if (buffer.has_error()) return error("operands are named that the call does not have");
    slot->present = true;
    if (!to_buffer(*buffer, slot->buffer)) return error(kOurDtypes);
  }
  if (count != operands.size())
    return error("there are " + std::to_string(operands.size()) + " operands beside a and b, and " +
                 std::to_string(count) + " are named");
  if (results.size() == 0) return ffi::Error::Success();
  if (results.size() != size_t(1 + epilogue.has_second_b))
    return error(
        "beside d and the workspace the pre-activation, or a multiplier's other result, is a result or not, with a "
        "second b its product, too");
  epilogue.wants_preactivation = true;
  Buffer* const buffers[] = {&epilogue.preactivation, &epilogue.second_product};
  for (size_t i = 0; i < results.size(); ++i) {
    auto buffer = results.get<ffi::AnyBuffer>(i);
    if (buffer.has_error()) return error("the pre-activation is no buffer");
    if (!to_buffer(**buffer, *buffers[i])) return error(kOurDtypes);
  }
  return ffi::Error::Success();
}

/// What the view target has beside that.
inline void read_offsets(int64_t a, int64_t b, int64_t second_b, GemmRequest& request) {
  request.a_offset = a;
  request.b_offset = b;
  request.epilogue.second_b_offset = second_b;
}

/// What the grouped target has beside that: the groups.
inline ffi::Error read_groups(ffi::AnyBuffer group_sizes, std::string_view ragged, GroupedRequest& request) {
  request.ragged = ragged;
  if (!to_buffer(group_sizes, request.group_sizes))
    return to_error(gemm_error(request.gemm.config, request.gemm.sizes, "the groups' sizes are s32"),
                    ffi::ErrorCode::kInvalidArgument);
  return ffi::Error::Success();
}

/// A product with weights: what decode_weights() checks.
inline ffi::Error read_weights(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer scales, ffi::RemainingArgs zeros,
                               ffi::AnyBuffer d, std::string_view config, int64_t group, int64_t parts, Int64s sizes,
                               WeightsRequest& request) {
  auto const error = [&](std::string_view reason) { return invalid(config, sizes, reason); };
  request.config = config;
  request.sizes = to_span(sizes);
  request.group = group;
  request.parts = parts;
  request.b = b.untyped_data();
  request.b_elements = int64_t(b.element_count());
  switch (b.element_type()) {
    case ffi::DataType::S8:
      request.b_dtype = WeightDtype::s8;
      break;
    case ffi::DataType::S4:
      request.b_dtype = WeightDtype::s4;
      break;
    case ffi::DataType::U4:
      request.b_dtype = WeightDtype::u4;
      break;
    case ffi::DataType::F8E4M3FN:
      request.b_dtype = WeightDtype::e4m3;
      break;
    default:
      return error("weights are s8, s4, u4 or e4m3");
  }
  if (!to_buffer(a, request.a) || !to_buffer(d, request.d) || !to_buffer(scales, request.scales))
    return error(kOurDtypes);
  if (zeros.size() > 1) return error("beside a, the weights and their scales there are zeros, and nothing else");
  request.has_zeros = zeros.size() == 1;
  if (!request.has_zeros) return ffi::Error::Success();
  auto const buffer = zeros.get<ffi::AnyBuffer>(0);
  if (buffer.has_error() || !to_buffer(*buffer, request.zeros)) return error("zeros are s8");
  return ffi::Error::Success();
}

/// The attributes of both targets of attention beside the strides.
struct AttentionAttributes {
  std::string_view config;
  int64_t diagonal;
  bool is_causal;
  double scale;
  Int64s sizes;
};

struct StridedBuffer {
  ffi::AnyBuffer buffer;
  Int64s strides;
  int64_t offset = 0;  // of the view targets' operands
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
  if (is_ours) return ffi::Error::Success();
  return to_error(attention_error(request.config, request.sizes, kOurDtypes), ffi::ErrorCode::kInvalidArgument);
}

/// The mask of a call of attention or its gradients. It is checked by decode_attention().
inline ffi::Error read_mask(ffi::AnyBuffer mask, Int64s strides, bool is_infinite, AttentionRequest& request) {
  if (mask.element_type() != ffi::DataType::PRED)
    return to_error(attention_error(request.config, request.sizes, "the mask is of booleans"),
                    ffi::ErrorCode::kInvalidArgument);
  request.mask = {/*present=*/true, mask.untyped_data(), int64_t(mask.element_count()), to_span(strides), is_infinite};
  return ffi::Error::Success();
}

/// The same, where there may be none.
inline ffi::Error read_mask(ffi::RemainingArgs operands, Int64s strides, bool is_infinite, AttentionRequest& request) {
  auto const error = [&](std::string_view reason) {
    return to_error(attention_error(request.config, request.sizes, reason), ffi::ErrorCode::kInvalidArgument);
  };
  if (operands.size() > 1) return error("beside q, k and v there is a mask, and nothing else");
  if (operands.size() == 0) return ffi::Error::Success();
  auto const mask = operands.get<ffi::AnyBuffer>(0);
  return mask.has_error() ? error("the mask is of booleans") : read_mask(*mask, strides, is_infinite, request);
}

/// Adds the attributes of the view target of attention, and of its gradients, to a handler's binding.
template <class Binding>
auto with_view_attention(Binding binding) {
  return std::move(binding)
      .template Attr<std::string_view>("config")
      .template Attr<int64_t>("diagonal")
      .template Attr<bool>("is_causal")
      .template Attr<int64_t>("k_offset")
      .template Attr<Int64s>("k_strides")
      .template Attr<bool>("mask_is_infinite")
      .template Attr<Int64s>("mask_strides")
      .template Attr<Int64s>("o_strides")
      .template Attr<int64_t>("q_offset")
      .template Attr<Int64s>("q_strides")
      .template Attr<double>("scale")
      .template Attr<Int64s>("sizes")
      .template Attr<int64_t>("v_offset")
      .template Attr<Int64s>("v_strides");
}

template <class Binding>
auto with_view_attention_grad(Binding binding) {
  return std::move(binding)
      .template Attr<std::string_view>("config")
      .template Attr<int64_t>("d_o_offset")
      .template Attr<Int64s>("d_o_strides")
      .template Attr<int64_t>("diagonal")
      .template Attr<Int64s>("dk_strides")
      .template Attr<Int64s>("dq_strides")
      .template Attr<int64_t>("ds_parts")
      .template Attr<Int64s>("dv_strides")
      .template Attr<bool>("is_causal")
      .template Attr<int64_t>("k_offset")
      .template Attr<Int64s>("k_strides")
      .template Attr<bool>("mask_is_infinite")
      .template Attr<Int64s>("mask_strides")
      .template Attr<int64_t>("q_offset")
      .template Attr<Int64s>("q_strides")
      .template Attr<double>("scale")
      .template Attr<Int64s>("sizes")
      .template Attr<int64_t>("v_offset")
      .template Attr<Int64s>("v_strides");
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
