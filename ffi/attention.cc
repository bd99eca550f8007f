#include "attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "modes.h"

namespace moye {
namespace {

constexpr int kAlignment = 16;  // bytes, of addresses and strides
constexpr size_t kSizes = 6, kStrides = 3;

constexpr AttentionPart kForward[] = {
    {"q", &AttentionRequest::q, &AttentionArgs::q, true, false},
    {"k", &AttentionRequest::k, &AttentionArgs::k, false, false},
    {"v", &AttentionRequest::v, &AttentionArgs::v, false, false},
    {"o", &AttentionRequest::o, &AttentionArgs::o, true, true},
};
/// Which calls may have or not; it lies as o does.
constexpr AttentionPart kRest = {"o_rest", &AttentionRequest::o_rest, &AttentionArgs::o_rest, true, true};
constexpr AttentionPart kGradients[] = {
    {"q", &AttentionRequest::q, &AttentionArgs::q, true, false},
    {"k", &AttentionRequest::k, &AttentionArgs::k, false, false},
    {"v", &AttentionRequest::v, &AttentionArgs::v, false, false},
    {"d_o", &AttentionRequest::d_o, &AttentionArgs::d_o, true, false},
    {"dq", &AttentionRequest::dq, &AttentionArgs::dq, true, true},
    {"dk", &AttentionRequest::dk, &AttentionArgs::dk, false, true},
    {"dv", &AttentionRequest::dv, &AttentionArgs::dv, false, true},
};

/// a * b; more than kMaxSize where it is more, of numbers that are not negative.
int64_t product(int64_t a, int64_t b) {
  int64_t result;
  return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

bool is_aligned(void const* data) { return reinterpret_cast<uintptr_t>(data) % kAlignment == 0; }

/// Why sizes are none of this config; empty if they are.
std::string bad_sizes(AttentionRequest const& request, GemmConfig const& config, AttentionArgs& args) {
  if (request.sizes.size() != kSizes)
    return "six sizes are needed: batch, kv_heads, group, q_rows, kv_rows and head_dim";
  for (int64_t const size : request.sizes) {
    if (size < 0 || size > kMaxSize) return "sizes lie between 0 and 2^31 - 1";
  }
  args.batch = request.sizes[0];
  args.kv_heads = request.sizes[1];
  args.group = request.sizes[2];
  args.q_rows = request.sizes[3];
  args.kv_rows = request.sizes[4];
  args.head_dim = request.sizes[5];
  if (args.group < 1) return "each head of keys and values belongs to one head of queries or more, not to 0";
  if (args.head_dim < 8 || args.head_dim > config.tile.k || args.head_dim % 8 != 0)
    return "head_dim is a multiple of 8, and at most " + std::to_string(config.tile.k);
  if (std::max(args.q_rows, args.kv_rows) > kMaxSize - std::max(config.tile.m, config.tile.n))
    return "there are more rows than 2^31 - 1 less a tile's";
  auto const tiles = [](int64_t rows, int tile) { return (rows + tile - 1) / tile; };
  int64_t const most = std::max(tiles(args.q_rows, config.tile.m), tiles(args.kv_rows, config.tile.n));
  int64_t const heads = product(product(args.batch, args.kv_heads), args.group * config.cluster.n);
  if (heads > kMaxSize || product(heads, most) > kMaxSize) return "there are more than 2^31 - 1 tiles of all heads";
  return {};
}

/// Why an array is not what the config takes; empty if it is.
std::string unfit(AttentionPart const& part, AttentionRequest const& request, Dtype dtype, AttentionArgs& args) {
  auto const& [buffer, strides, offset] = request.*part.operand;
  std::string const name = part.name;
  if (strides.size() != kStrides)
    return "three strides of " + name + " are needed, along batch, heads and rows, not " + to_text(strides);
  if (std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride < 0; }))
    return name + " has strides " + to_text(strides) + ", which are negative";
  if (offset < 0) return name + " has offset " + std::to_string(offset) + ", which is negative";
  if (buffer.dtype != dtype) return name + " is " + dtype_name(buffer.dtype) + ", not " + dtype_name(dtype);
  std::array<Mode, kStrides + 1> const modes = {
      {{args.batch, strides[0]},
       {part.has_query_heads ? args.kv_heads * args.group : args.kv_heads, strides[1]},
       {part.has_query_heads ? args.q_rows : args.kv_rows, strides[2]},
       {args.head_dim, 1}}};
  int64_t const first = has_no_element(modes) ? 0 : offset;
  if (std::string reason = outside(part.name, modes, buffer.elements, first); !reason.empty()) return reason;
  if (part.is_result && request.result_of.empty() && !covers_exactly(modes, buffer.elements))
    return "strides of " + name + " do not write each of its elements exactly once";
  int const elements = kAlignment / item_bytes(dtype);
  if (std::any_of(strides.begin(), strides.end(), [&](int64_t stride) { return stride % elements != 0; }))
    return name + " has strides that 16 bytes do not divide";
  void* const data = static_cast<char*>(buffer.data) + first * item_bytes(dtype);
  if (!is_aligned(data)) return name + " has an address that 16 bytes do not divide";
  args.*part.array = {data, strides[0], strides[1], strides[2]};
  return {};
}

/// The same of dq, dk and dv as parts of arrays: together they are all of these.
std::string unfit_together(AttentionRequest const& request, AttentionArgs const& args) {
  if (request.result_of.empty()) return {};
  int64_t const heads = args.kv_heads * args.group;
  auto const placed = [&](AttentionOperand const& operand, int64_t of_heads, int64_t rows) {
    auto const& strides = operand.strides;
    return PlacedModes{{{{args.batch, strides[0]}, {of_heads, strides[1]}, {rows, strides[2]}, {args.head_dim, 1}}},
                       operand.offset};
  };
  std::array<AttentionOperand const*, 3> const operands = {&request.dq, &request.dk, &request.dv};
  std::array<PlacedModes, 3> const all = {placed(request.dq, heads, args.q_rows),
                                          placed(request.dk, args.kv_heads, args.kv_rows),
                                          placed(request.dv, args.kv_heads, args.kv_rows)};
  for (int64_t const result : request.result_of) {
    std::vector<PlacedModes> parts;
    int64_t elements = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (request.result_of[i] != result) continue;
      parts.push_back(all[i]);
      elements = operands[i]->buffer.elements;
    }
    if (!cover_together(parts, elements))
      return "strides and offsets of dq, dk and dv do not write each element of result " + std::to_string(result) +
             " exactly once";
  }
  return {};
}

/// The same of lse or delta: `count` numbers of each row.
std::string unfit_rows(char const* name, Buffer const& rows, AttentionArgs const& args, int count = 1) {
  if (rows.dtype != Dtype::f32) return std::string(name) + " is " + dtype_name(rows.dtype) + ", not f32";
  int64_t const elements = args.batch * args.kv_heads * args.group * args.q_rows * count;
  if (rows.elements != elements)
    return std::string(name) + " has " + std::to_string(rows.elements) + " elements, not " +
           (count == 1 ? "one" : std::to_string(count)) + " of each row of queries: " + std::to_string(elements);
  if (!is_aligned(rows.data)) return std::string(name) + " has an address that 16 bytes do not divide";
  return {};
}

/// Why four strides along the scores are none of an operand's; empty if they are.
std::string unfit_strides(char const* name, std::span<int64_t const> strides, int64_t elements,
                          AttentionArgs const& args) {
  if (strides.size() != 4)
    return "four strides of " + std::string(name) + " are needed, along batch, heads, rows and columns, not " +
           to_text(strides);
  if (std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride < 0; }))
    return std::string(name) + " has strides " + to_text(strides) + ", which are negative";
  std::array<Mode, 4> const modes = {{{args.batch, strides[0]},
                                      {args.kv_heads * args.group, strides[1]},
                                      {args.q_rows, strides[2]},
                                      {args.kv_rows, strides[3]}}};
  return outside(name, modes, elements);
}

/// The same of a bias, and of its gradient.
std::string unfit_bias(AttentionRequest const& request, Dtype dtype, AttentionArgs& args) {
  auto const& [present, buffer, strides] = request.bias;
  if (!present) return request.has_ds ? "there is no bias to have a gradient" : "";
  auto const bad = [&](char const* name, Buffer const& of) -> std::string {
    if (of.dtype != dtype && of.dtype != Dtype::f32)
      return std::string(name) + " is " + dtype_name(of.dtype) + ", not " + dtype_name(dtype) + " or f32";
    return is_aligned(of.data) ? "" : std::string(name) + " has an address that 16 bytes do not divide";
  };
  if (std::string reason = bad("the bias", buffer); !reason.empty()) return reason;
  if (std::string reason = unfit_strides("the bias", strides, buffer.elements, args); !reason.empty()) return reason;
  args.bias = {buffer.data, strides[0], strides[1], strides[2], strides[3], buffer.dtype == Dtype::f32};
  if (!request.has_ds) return {};
  if (std::string reason = bad("ds", request.ds); !reason.empty()) return reason;
  int64_t const scores = product(args.batch * args.kv_heads * args.group * args.q_rows, args.kv_rows);
  if (request.ds.elements != scores)
    return "ds has " + std::to_string(request.ds.elements) +
           " elements, not one of each score: " + std::to_string(scores);
  args.ds = {request.ds.data, request.ds.dtype == Dtype::f32};
  return {};
}

/// The same of a mask.
std::string unfit_mask(MaskOperand const& mask, AttentionArgs& args) {
  if (!mask.present) return {};
  auto const& strides = mask.strides;
  if (std::string reason = unfit_strides("the mask", strides, mask.elements, args); !reason.empty()) return reason;
  args.mask = {{static_cast<unsigned char const*>(mask.data), strides[0], strides[1], strides[2], strides[3]},
               mask.is_infinite,
               mask.has_gradients};
  return {};
}

/// The same of dropout.
std::string unfit_dropout(AttentionRequest const& request, AttentionArgs& args) {
  auto const& dropout = request.dropout;
  if (!dropout.present) return "";
  if (args.mask.is_infinite && args.mask.has_gradients) return "masked scores that are -inf have no gradients";
  if (request.has_cap) return "scores with a cap have no dropout";
  auto const& strides = dropout.strides;
  if (std::string reason = unfit_strides("the dropout", strides, dropout.elements, args); !reason.empty())
    return reason;
  args.dropout = {{static_cast<unsigned char const*>(dropout.data), strides[0], strides[1], strides[2], strides[3]},
                  float(dropout.factor)};
  if (!std::isfinite(args.dropout.factor) || !(args.dropout.factor > 0))
    return "the factor of weights that are kept is no finite number above 0";
  return {};
}

}  // namespace

std::span<AttentionPart const> attention_parts(bool of_gradients) {
  if (of_gradients) return kGradients;
  return kForward;
}

bool is_in_result_before(AttentionRequest const& request, AttentionPart const& part) {
  if (!part.is_result || request.result_of.empty()) return false;
  for (AttentionPart const& other : kGradients) {
    if (other.operand == part.operand) break;
    if (other.is_result && (request.*other.operand).buffer.data == (request.*part.operand).buffer.data) return true;
  }
  return false;
}

Status attention_error(std::string_view config, std::span<int64_t const> sizes, std::string_view reason) {
  return {"jax_moye: " + std::string(config) + ", sizes (batch, kv_heads, group, q_rows, kv_rows, head_dim) = " +
          to_text(sizes) + ": " + std::string(reason)};
}

Status decode_attention(AttentionRequest const& request, AttentionCall& call) {
  auto const error = [&](std::string_view reason) { return attention_error(request.config, request.sizes, reason); };
  call.gemm = find_gemm(request.config);
  if (call.gemm == nullptr) return error("no compiled GEMM has this name");
  GemmConfig const& config = call.gemm->config;
  if (call.gemm->entry.launch_attention == nullptr) return error("the kernel computes no attention");
  if (request.of_gradients != (config.kernel == Kernel::sm90_attention_grad))
    return error(request.of_gradients ? "the kernel computes attention, and not its gradients"
                                      : "the kernel computes gradients of attention alone");
  AttentionArgs& args = call.args = {};
  if (std::string reason = bad_sizes(request, config, args); !reason.empty()) return error(reason);
  args.scale = float(request.scale);
  if (!std::isfinite(args.scale) || !(args.scale > 0)) return error("the scale is no finite number above 0");
  if (request.has_cap) {
    args.cap = float(request.cap);
    if (!std::isfinite(args.cap) || !(args.cap > 0)) return error("the cap is no finite number above 0");
    if (!std::isfinite(args.scale / args.cap)) return error("the scale is too large for the cap");
    if (request.bias.present) return error("scores with a bias have no cap");
  }
  args.is_causal = request.is_causal;
  args.diagonal = std::clamp(request.diagonal, -args.q_rows, args.kv_rows);  // nothing and all is left out beyond
  for (AttentionPart const& part : attention_parts(request.of_gradients)) {
    if (std::string reason = unfit(part, request, storage_dtype(config.dtype), args); !reason.empty())
      return error(reason);
  }
  if (std::string reason = unfit_together(request, args); !reason.empty()) return error(reason);
  if (request.has_o_rest) {
    if (storage_dtype(config.dtype) == Dtype::f32) return error("rounding takes nothing from a result of f32");
    if (std::string reason = unfit(kRest, request, storage_dtype(config.dtype), args); !reason.empty())
      return error(reason);
  }
  if (std::string reason = unfit_mask(request.mask, args); !reason.empty()) return error(reason);
  if (std::string reason = unfit_dropout(request, args); !reason.empty()) return error(reason);
  if (std::string reason = unfit_bias(request, storage_dtype(config.dtype), args); !reason.empty())
    return error(reason);
  if (std::string reason = unfit_rows("lse", request.lse, args, request.bias.present ? 2 : 1); !reason.empty())
    return error(reason);
  args.lse = static_cast<float*>(request.lse.data);
  if (!request.of_gradients) return {};
  if (std::string reason = unfit_rows("delta", request.delta, args); !reason.empty()) return error(reason);
  args.delta = static_cast<float const*>(request.delta.data);
  // Of a number of f16 its rounding may leave less than f16 has, and f32 is not rounded in front of products.
  int const most = config.dtype == Dtype::bf16 ? 2 : 1;
  if (request.ds_parts < 1 || request.ds_parts > most)
    return error("ds_parts is " + std::to_string(request.ds_parts) + ", and lies between 1 and " +
                 std::to_string(most));
  args.ds_parts = int(request.ds_parts);
  return {};
}

}  // namespace moye
