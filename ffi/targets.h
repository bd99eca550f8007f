// The targets: the arrays and the attributes of their calls, which XLA wants by name, and what is read from them. Both
// platforms' handlers are made of these; handlers.h says what each target computes. A change of a target's attributes
// gets a new name, since they are frozen into exported programs.
//   kName, kBuffers, kAttributes   the calls: the names of attributes, and the members of Attributes they become
//   read()                         fills a Request from the attributes, the operands and the results of a call
//   kDecode                        checks the request, and makes a Call of it
//   kLaunch                        the member of GemmEntry that launches it
// All in one file, over 600 lines: a target is made of older ones, whose attributes may not change.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "xla_call.h"

namespace moye {

inline constexpr char const* kOurDtypes = "operands and results are bf16, f16, f32, f64, s8, s32, e4m3 or e5m2";

/// Why a request cannot be run, with what it is of.
inline Status error_of(GemmRequest const& request, std::string_view reason) {
  return gemm_error(request.config, request.sizes, reason);
}
inline Status error_of(GroupedRequest const& request, std::string_view reason) {
  return error_of(request.gemm, reason);
}
inline Status error_of(WeightsRequest const& request, std::string_view reason) {
  return gemm_error(request.config, request.sizes, reason);
}
inline Status error_of(BlockScaledRequest const& request, std::string_view reason) {
  return gemm_error(request.config, request.sizes, reason);
}
inline Status error_of(AttentionRequest const& request, std::string_view reason) {
  return attention_error(request.config, request.sizes, reason);
}

template <class Request>
ffi::Error invalid(Request const& request, std::string_view reason) {
  return to_error(error_of(request, reason), ffi::ErrorCode::kInvalidArgument);
}

// ------------------------------------------------------------------------------------------------------- products

/// The attributes of all targets of products. Each target's calls have some of them.
struct GemmAttributes {
  std::string_view config;
  Int64s sizes, a_strides, b_strides, d_strides;
  std::string_view activation;
  double alpha, beta;
  Int64s bias_strides, c_strides, residual_strides;  // of those that are no operands: not looked at
  // Which follow a and b, in their order: "c,bias,residual" or less, or "second_b", which lies as b does, or
  // "c,multiplier", the latter lying as d does.
  std::string_view operands;
  Int64s lhs_scale_strides, rhs_scale_strides;
  int64_t a_offset, b_offset, second_b_offset;
  std::string_view ragged;
};

/// What all of them have. decode_gemm() checks it.
inline ffi::Error read_call(GemmAttributes const& attributes, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer d,
                            GemmRequest& request) {
  request.config = attributes.config;
  request.sizes = to_span(attributes.sizes);
  request.a_strides = to_span(attributes.a_strides);
  request.b_strides = to_span(attributes.b_strides);
  request.d_strides = to_span(attributes.d_strides);
  if (!to_buffer(a, request.a) || !to_buffer(b, request.b) || !to_buffer(d, request.d))
    return invalid(request, kOurDtypes);
  return ffi::Error::Success();
}

/// The rest of a fused call: operands behind the named ones, results likewise.
inline ffi::Error read_epilogue(GemmAttributes const& attributes, bool takes_scales, ffi::RemainingArgs operands,
                                ffi::RemainingRets results, GemmRequest& request) {
  auto const error = [&](std::string_view reason) { return invalid(request, reason); };
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
  Slot const* const slots_end = std::end(slots) - (takes_scales ? 0 : 2);
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
                   (takes_scales ? "second_b, lhs_scale and rhs_scale" : "second_b") + ", each once at most, not " +
                   std::string(attributes.operands));
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

struct PlainGemm {
  static constexpr char const* kName = "jax_moye_gemm_v1";
  static constexpr Buffers kBuffers{.operands = 2, .results = 2};
  using Attributes = GemmAttributes;
  static constexpr auto kAttributes =
      std::tuple{Attribute{"config", &Attributes::config}, Attribute{"sizes", &Attributes::sizes},
                 Attribute{"a_strides", &Attributes::a_strides}, Attribute{"b_strides", &Attributes::b_strides},
                 Attribute{"d_strides", &Attributes::d_strides}};
  using Request = GemmRequest;
  using Call = GemmCall;
  static constexpr auto kDecode = decode_gemm;
  static constexpr auto kLaunch = &GemmEntry::launch;

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer a, ffi::AnyBuffer b,
                         ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::AnyBuffer> workspace, Request& request) {
    request.workspace = workspace->untyped_data();
    request.workspace_bytes = int64_t(workspace->size_bytes());
    return read_call(attributes, a, b, *d, request);
  }
};

struct FusedGemm : PlainGemm {
  static constexpr char const* kName = "jax_moye_fused_gemm_v1";
  static constexpr Buffers kBuffers{.operands = 2, .more_operands = true, .results = 2, .more_results = true};
  static constexpr auto kAttributes = std::tuple_cat(
      PlainGemm::kAttributes,
      std::tuple{Attribute{"activation", &Attributes::activation}, Attribute{"alpha", &Attributes::alpha},
                 Attribute{"beta", &Attributes::beta}, Attribute{"bias_strides", &Attributes::bias_strides},
                 Attribute{"c_strides", &Attributes::c_strides}, Attribute{"operands", &Attributes::operands},
                 Attribute{"residual_strides", &Attributes::residual_strides}});

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs operands,
                         ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::AnyBuffer> workspace,
                         ffi::RemainingRets results, Request& request, bool takes_scales = false) {
    if (auto error = PlainGemm::read(attributes, a, b, d, workspace, request); error.failure()) return error;
    return read_epilogue(attributes, takes_scales, operands, results, request);
  }
};

inline constexpr auto kScaleStrides = std::tuple{Attribute{"lhs_scale_strides", &GemmAttributes::lhs_scale_strides},
                                                 Attribute{"rhs_scale_strides", &GemmAttributes::rhs_scale_strides}};

struct ScaledGemm : FusedGemm {
  static constexpr char const* kName = "jax_moye_scaled_gemm_v1";
  static constexpr auto kAttributes = std::tuple_cat(FusedGemm::kAttributes, kScaleStrides);

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs operands,
                         ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::AnyBuffer> workspace,
                         ffi::RemainingRets results, Request& request) {
    return FusedGemm::read(attributes, a, b, operands, d, workspace, results, request, /*takes_scales=*/true);
  }
};

struct ViewGemm : ScaledGemm {
  static constexpr char const* kName = "jax_moye_view_gemm_v1";
  static constexpr auto kAttributes =
      std::tuple_cat(ScaledGemm::kAttributes, std::tuple{Attribute{"a_offset", &Attributes::a_offset},
                                                         Attribute{"b_offset", &Attributes::b_offset},
                                                         Attribute{"second_b_offset", &Attributes::second_b_offset}});

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs operands,
                         ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::AnyBuffer> workspace,
                         ffi::RemainingRets results, Request& request) {
    request.a_offset = attributes.a_offset;
    request.b_offset = attributes.b_offset;
    request.epilogue.second_b_offset = attributes.second_b_offset;
    return ScaledGemm::read(attributes, a, b, operands, d, workspace, results, request);
  }
};

struct GroupedGemm {
  static constexpr char const* kName = "jax_moye_grouped_gemm_v1";
  static constexpr Buffers kBuffers{.operands = 3, .more_operands = true, .results = 1, .more_results = true};
  using Attributes = GemmAttributes;
  static constexpr auto kAttributes =
      std::tuple_cat(FusedGemm::kAttributes, std::tuple{Attribute{"ragged", &Attributes::ragged}});
  using Request = GroupedRequest;
  using Call = GroupedCall;
  static constexpr auto kDecode = decode_grouped;
  static constexpr auto kLaunch = &GemmEntry::launch_grouped;

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer group_sizes,
                         ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> d, ffi::RemainingRets results,
                         Request& request, bool takes_scales = false) {
    if (auto error = read_call(attributes, a, b, *d, request.gemm); error.failure()) return error;
    request.ragged = attributes.ragged;
    if (!to_buffer(group_sizes, request.group_sizes)) return invalid(request, "the groups' sizes are s32");
    return read_epilogue(attributes, takes_scales, operands, results, request.gemm);
  }
};

struct ScaledGroupedGemm : GroupedGemm {
  static constexpr char const* kName = "jax_moye_scaled_grouped_gemm_v1";
  static constexpr auto kAttributes = std::tuple_cat(GroupedGemm::kAttributes, kScaleStrides);

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer group_sizes,
                         ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> d, ffi::RemainingRets results,
                         Request& request) {
    return GroupedGemm::read(attributes, a, b, group_sizes, operands, d, results, request, /*takes_scales=*/true);
  }
};

struct PermutedGroupedGemm {
  static constexpr char const* kName = "jax_moye_permuted_grouped_gemm_v1";
  static constexpr Buffers kBuffers{.operands = 5, .more_operands = true, .results = 1, .more_results = true};
  using Attributes = GemmAttributes;
  static constexpr auto kAttributes = GroupedGemm::kAttributes;
  using Request = PermutedRequest;
  using Call = PermutedCall;
  static constexpr auto kDecode = decode_permuted;
  static constexpr auto kLaunch = &GemmEntry::launch_permuted;

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer group_sizes,
                         ffi::AnyBuffer a_rows, ffi::AnyBuffer d_rows, ffi::RemainingArgs operands,
                         ffi::Result<ffi::AnyBuffer> d, ffi::RemainingRets results, Request& request) {
    if (!to_buffer(a_rows, request.a_rows) || !to_buffer(d_rows, request.d_rows))
      return invalid(request, "indices of rows are s32");
    return GroupedGemm::read(attributes, a, b, group_sizes, operands, d, results, request);
  }
};

struct WeightsAttributes {
  std::string_view config;
  int64_t group, parts;
  Int64s sizes;
};

struct WeightsGemm {
  static constexpr char const* kName = "jax_moye_weights_gemm_v1";
  static constexpr Buffers kBuffers{.operands = 3, .more_operands = true, .results = 1};
  using Attributes = WeightsAttributes;
  static constexpr auto kAttributes =
      std::tuple{Attribute{"config", &Attributes::config}, Attribute{"group", &Attributes::group},
                 Attribute{"parts", &Attributes::parts}, Attribute{"sizes", &Attributes::sizes}};
  using Request = WeightsRequest;
  using Call = WeightsCall;
  static constexpr auto kDecode = decode_weights;
  static constexpr auto kLaunch = &GemmEntry::launch_weights;

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer scales,
                         ffi::RemainingArgs zeros, ffi::Result<ffi::AnyBuffer> d, Request& request) {
    auto const error = [&](std::string_view reason) { return invalid(request, reason); };
    request.config = attributes.config;
    request.sizes = to_span(attributes.sizes);
    request.group = attributes.group;
    request.parts = attributes.parts;
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
    if (!to_buffer(a, request.a) || !to_buffer(*d, request.d) || !to_buffer(scales, request.scales))
      return error(kOurDtypes);
    if (zeros.size() > 1) return error("beside a, the weights and their scales there are zeros, and nothing else");
    request.has_zeros = zeros.size() == 1;
    if (!request.has_zeros) return ffi::Error::Success();
    auto const buffer = zeros.get<ffi::AnyBuffer>(0);
    if (buffer.has_error() || !to_buffer(*buffer, request.zeros)) return error("zeros are s8");
    return ffi::Error::Success();
  }
};

struct BlockScaledAttributes {
  std::string_view config;
  Int64s sizes;
  bool of_columns;
};

struct BlockScaledGemm {
  static constexpr char const* kName = "jax_moye_block_scaled_gemm_v1";
  static constexpr Buffers kBuffers{.operands = 4, .results = 1};
  using Attributes = BlockScaledAttributes;
  static constexpr auto kAttributes =
      std::tuple{Attribute{"config", &Attributes::config}, Attribute{"sizes", &Attributes::sizes},
                 Attribute{"of_columns", &Attributes::of_columns}};
  using Request = BlockScaledRequest;
  using Call = BlockScaledCall;
  static constexpr auto kDecode = decode_block_scaled;
  static constexpr auto kLaunch = &GemmEntry::launch_block_scaled;

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer a_scales,
                         ffi::AnyBuffer b_scales, ffi::Result<ffi::AnyBuffer> d, Request& request) {
    request.config = attributes.config;
    request.sizes = to_span(attributes.sizes);
    request.of_columns = attributes.of_columns;
    bool const are_ours = to_buffer(a, request.a) && to_buffer(b, request.b) && to_buffer(*d, request.d) &&
                          to_buffer(a_scales, request.a_scales) && to_buffer(b_scales, request.b_scales);
    return are_ours ? ffi::Error::Success() : invalid(request, kOurDtypes);
  }
};

// ------------------------------------------------------------------------------------------------------ attention

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
  Int64s bias_strides;
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

/// The mask of such a call, where it has one.
inline ffi::Error read_mask(AttentionAttributes const& attributes, ffi::RemainingArgs operands,
                            AttentionRequest& request) {
  if (operands.size() > 1) return invalid(request, "beside q, k and v there is a mask, and nothing else");
  if (operands.size() == 0) return ffi::Error::Success();
  auto const mask = operands.get<ffi::AnyBuffer>(0);
  if (mask.has_error() || mask->element_type() != ffi::DataType::PRED)
    return invalid(request, "the mask is of booleans");
  request.mask = {/*present=*/true, mask->untyped_data(), int64_t(mask->element_count()),
                  to_span(attributes.mask_strides), attributes.mask_is_infinite};
  return ffi::Error::Success();
}

/// What is added to the scores of such a call.
inline ffi::Error read_bias(AttentionAttributes const& attributes, ffi::AnyBuffer bias, AttentionRequest& request) {
  request.bias = {/*present=*/true, {}, to_span(attributes.bias_strides)};
  return to_buffer(bias, request.bias.buffer) ? ffi::Error::Success() : invalid(request, kOurDtypes);
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
    if (results.size() > 1) return invalid(request, "beside dq, dk and dv there is ds, or nothing");
    request.has_ds = results.size() == 1;
    if (!request.has_ds) return ffi::Error::Success();
    auto ds = results.get<ffi::AnyBuffer>(0);
    return !ds.has_error() && to_buffer(**ds, request.ds) ? ffi::Error::Success() : invalid(request, kOurDtypes);
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

/// Calls f.template operator()<Target>() for all targets: a list of what it returns.
template <class F>
auto for_all_targets(F const& f) {
  return [&]<class... Target>(std::tuple<Target...>*) {
    return std::vector{f.template operator()<Target>()...};
  }(static_cast<std::tuple<PlainGemm, FusedGemm, ScaledGemm, ViewGemm, GroupedGemm, ScaledGroupedGemm,
                           PermutedGroupedGemm, WeightsGemm, BlockScaledGemm, Attention, AttentionGrad, ViewAttention,
                           ViewAttentionGrad, JoinedAttentionGrad, BiasedAttention, BiasedAttentionGrad,
                           CappedAttention, CappedAttentionGrad>*>(nullptr));
}

}  // namespace moye
