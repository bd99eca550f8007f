// The targets of products: the arrays and the attributes of their calls, which XLA wants by name, and what is read from
// them. targets.h says what a target has.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <tuple>

#include "gemm.h"
#include "xla_call.h"

namespace moye {

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

struct ScatteredGroupedGemm : ScaledGroupedGemm {
  static constexpr char const* kName = "jax_moye_scattered_grouped_gemm_v1";
  static constexpr Buffers kBuffers{.operands = 4, .more_operands = true, .results = 1, .more_results = true};

  static ffi::Error read(Attributes const& attributes, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer group_sizes,
                         ffi::AnyBuffer d_rows, ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> d,
                         ffi::RemainingRets results, Request& request) {
    request.has_rows = true;
    auto error = ScaledGroupedGemm::read(attributes, a, b, group_sizes, operands, d, results, request);
    if (error.failure()) return error;
    return to_buffer(d_rows, request.d_rows) ? error : invalid(request, "indices of rows are s32");
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

}  // namespace moye
