#include "gemm.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "gemm/batch.h"
#include "gemm/order.h"
#include "gemm/weights.h"
#include "modes.h"

namespace moye {
namespace {

/// Those of the batch, outermost first (size 1 where there is none), then rows and columns.
using Modes = std::array<Mode, kBatchModes + 2>;

Modes modes_of(GemmArgs const& args, BatchStrides const& batch, Mode rows, Mode columns) {
  Modes modes;
  for (int i = 0; i < kBatchModes; ++i) modes[size_t(i)] = {args.batch_sizes.modes[i], batch.modes[i]};
  modes[kBatchModes] = rows;
  modes[kBatchModes + 1] = columns;
  return modes;
}

/// The first strides of an operand, those of the batch modes, behind zeros for the modes that there are not.
BatchStrides batch_strides(std::span<int64_t const> strides) {
  BatchStrides batch = {};
  size_t const modes = strides.size() - 2;
  std::copy_n(strides.begin(), modes, batch.modes + (kBatchModes - modes));
  return batch;
}

int64_t row_stride(std::span<int64_t const> strides) { return strides[strides.size() - 2]; }
int64_t column_stride(std::span<int64_t const> strides) { return strides.back(); }

/// How many strides an operand has, in words.
char const* in_words(size_t strides) { return strides == 3 ? "three" : strides == 4 ? "four" : "five"; }

bool has_bit(unsigned bits, unsigned bit) { return (bits >> bit & 1u) != 0; }

/// The address of an element of a buffer, which may have no address yet; `offset` is not negative, and not checked.
void* element_at(void* data, int64_t offset, Dtype dtype) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(data) + uintptr_t(offset) * uintptr_t(item_bytes(dtype)));
}

/// Why the operand cannot be loaded `config.alignment` bytes at a time; empty if it can.
std::string misaligned(char const* name, GemmConfig const& config, void const* data, Modes const& modes,
                       bool k_is_contiguous, bool any_stride) {
  Mode const row = modes[kBatchModes], k = modes[kBatchModes + 1];
  Mode const along = k_is_contiguous ? k : row;
  Mode const across = k_is_contiguous ? row : k;
  if (!any_stride && along.size > 1 && along.stride != 1) return std::string(name) + " has no mode of stride 1";
  int64_t const bytes = item_bytes(config.dtype);
  auto const fits = [&](Mode mode) { return mode.size <= 1 || mode.stride % (config.alignment / bytes) == 0; };
  bool const pointer_fits = reinterpret_cast<uintptr_t>(data) % config.alignment == 0;
  bool const batch_fits = std::all_of(modes.begin(), modes.begin() + kBatchModes, fits);
  if (batch_fits && fits(across) && pointer_fits) return {};
  return std::string(name) + (pointer_fits ? " has strides" : " has an address") + " that " +
         std::to_string(config.alignment) + " bytes do not divide";
}

/// One past the last byte of a buffer.
unsigned char const* end_of(Buffer const& buffer) {
  return static_cast<unsigned char const*>(buffer.data) + buffer.elements * item_bytes(buffer.dtype);
}

bool overlap(Buffer const& one, Buffer const& other) { return one.data < end_of(other) && other.data < end_of(one); }

/// Whether a thread that has read an element of the one has read all that the other's element there holds.
bool same_elements(Modes const& one, Modes const& other) {
  for (size_t i = 0; i < one.size(); ++i) {
    if (one[i].size > 1 && one[i].stride != other[i].stride) return false;
  }
  return true;
}

struct NamedMatrix {
  char const* name;
  EpilogueMatrix const& matrix;
};

std::array<NamedMatrix, 4> matrices_of(EpilogueRequest const& epilogue) {
  return {{{"c", epilogue.c},
           {"bias", epilogue.bias},
           {"residual", epilogue.residual},
           {"the multiplier", epilogue.multiplier}}};
}

std::array<NamedMatrix, 2> scales_of(EpilogueRequest const& epilogue) {
  return {{{"lhs_scale", epilogue.lhs_scale}, {"rhs_scale", epilogue.rhs_scale}}};
}

/// Why the strides of an epilogue's operand are none; empty if they are.
std::string bad_strides(NamedMatrix const& operand, size_t strides) {
  auto const& [what, matrix] = operand;
  if (matrix.strides.size() != strides)
    return std::string(in_words(strides)) + " strides of " + what + " are needed, not " + to_text(matrix.strides);
  if (std::any_of(matrix.strides.begin(), matrix.strides.end(), [](int64_t stride) { return stride < 0; }))
    return std::string(what) + " has strides " + to_text(matrix.strides) + ", which are negative";
  return {};
}

/// What of an epilogue needs no buffer. Why it is none; empty if it is one.
std::string decode_epilogue(EpilogueRequest const& request, size_t strides, EpilogueArgs& args) {
  auto const name = std::find(std::begin(kActivationNames), std::end(kActivationNames), request.activation);
  if (name == std::end(kActivationNames))
    return "activation is none, relu, gelu_tanh, gelu_erf or silu, or one with d_, not " +
           std::string(request.activation);
  for (NamedMatrix const& operand : matrices_of(request)) {
    if (!operand.matrix.present) continue;
    if (std::string reason = bad_strides(operand, strides); !reason.empty()) return reason;
  }
  for (NamedMatrix const& scale : scales_of(request)) {
    if (!scale.matrix.present) continue;
    if (std::string reason = bad_strides(scale, strides); !reason.empty()) return reason;
  }
  if (request.lhs_scale.present && column_stride(request.lhs_scale.strides) != 0)
    return "lhs_scale has a stride along n: it is of rows";
  if (request.rhs_scale.present && row_stride(request.rhs_scale.strides) != 0)
    return "rhs_scale has a stride along m: it is of columns";
  if (request.beta != 0 && !request.c.present) return "beta is " + std::to_string(request.beta) + ", and there is no c";
  auto const operand = [](EpilogueMatrix const& matrix) -> EpilogueOperand {
    if (!matrix.present) return {};
    return {matrix.buffer.data, batch_strides(matrix.strides), row_stride(matrix.strides),
            column_stride(matrix.strides)};
  };
  auto const scale = [](EpilogueMatrix const& matrix, int64_t (*stride)(std::span<int64_t const>)) -> EpilogueScales {
    if (!matrix.present) return {};
    return {static_cast<float const*>(matrix.buffer.data), batch_strides(matrix.strides), stride(matrix.strides)};
  };
  args = {.alpha = request.alpha,
          .beta = request.beta,
          .c = request.beta == 0 ? EpilogueOperand{} : operand(request.c),
          .bias = operand(request.bias),
          .residual = operand(request.residual),
          .activation = Activation(name - std::begin(kActivationNames)),
          .preactivation = request.wants_preactivation ? request.preactivation.data : nullptr,
          .second_b = request.has_second_b
                          ? element_at(request.second_b.data, request.second_b_offset, request.second_b.dtype)
                          : nullptr,
          .second_product = request.has_second_b && request.wants_preactivation ? request.second_product.data : nullptr,
          .row_scale = scale(request.lhs_scale, row_stride),
          .column_scale = scale(request.rhs_scale, column_stride),
          .multiplier = operand(request.multiplier)};
  bool const is_plain = !request.bias.present && !request.residual.present;
  if (request.has_second_b && (request.c.present || !is_plain))
    return "a call with a second b has no c, bias or residual";
  if (request.lhs_scale.present || request.rhs_scale.present) {
    if (request.has_second_b) return "a call with a second b has no scales";
    if (args.activation >= kFirstDerivative) return "a product times a derivative has no scales";
  }
  if (args.activation < kFirstDerivative)
    return request.multiplier.present ? "a multiplier is one of an activation's derivative" : "";
  if (!request.c.present || !is_plain || request.has_second_b)
    return "a derivative is one of c, and has no bias, residual or second b beside it";
  if (request.multiplier.present != request.wants_preactivation)
    return "a derivative has one result, and with a multiplier two";
  args.c = operand(request.c);
  return {};
}

/// Why an epilogue does not fit d, which has been checked; empty if it does.
std::string unfit_epilogue(GemmRequest const& request, GemmEntry const& entry, GemmArgs const& args, Modes const& d) {
  EpilogueRequest const& epilogue = request.epilogue;
  std::string const d_dtype = dtype_name(request.d.dtype);
  bool const is_integer = request.d.dtype == Dtype::s32;
  bool const is_integer_epilogue =
      epilogue.alpha == 1 && (epilogue.beta == 0 || epilogue.beta == 1) && args.epilogue.activation <= Activation::relu;
  bool const is_derivative = args.epilogue.activation >= kFirstDerivative;
  if (is_derivative && !entry.facts.derives) return "the kernel multiplies by no derivative";
  if (epilogue.multiplier.present && !entry.facts.takes_gate) return "the kernel takes no multiplier";
  if (is_derivative && item_bytes(request.d.dtype) != 2)
    return "a product times a derivative has 16 bits, not those of " + d_dtype;
  bool const is_own = args.epilogue.activation == Activation::own;
  if (is_own && !entry.own_activation) return "the kernel was not compiled with a function of its own";
  if (!is_own && entry.own_activation && args.epilogue.activation != Activation::none)
    return "the kernel knows no activation but its own";
  if (entry.own_activation && (epilogue.has_second_b || epilogue.multiplier.present))
    return "a kernel with a function of its own takes neither a second b nor a multiplier";
  if (is_own && request.d.dtype == Dtype::f64) return "a kernel's own function is one of f32, not of f64";
  bool const is_scaled = epilogue.lhs_scale.present || epilogue.rhs_scale.present;
  if (is_scaled && !entry.facts.scales) return "the kernel takes no scales";
  if (is_scaled && is_integer) return "a result of integers has no scales";
  if (is_integer && !is_integer_epilogue)
    return "a result of integers takes alpha 1, beta 0 or 1, and activation none or relu";

  auto const unfit_result = [&](std::string const& what, Buffer const& z) -> std::string {
    if (z.dtype != request.d.dtype) return what + " is " + dtype_name(z.dtype) + ", d " + d_dtype;
    if (z.elements != request.d.elements)
      return what + " has " + std::to_string(z.elements) + " elements, d " + std::to_string(request.d.elements);
    if (reinterpret_cast<uintptr_t>(z.data) % item_bytes(z.dtype) != 0) return what + " is not aligned to its elements";
    if (overlap(z, request.d)) return what + " and d overlap";
    return {};
  };
  if (epilogue.wants_preactivation) {
    std::string reason = unfit_result("the pre-activation", epilogue.preactivation);
    if (reason.empty() && epilogue.has_second_b) {
      reason = unfit_result("the second product", epilogue.second_product);
      if (reason.empty() && overlap(epilogue.preactivation, epilogue.second_product))
        reason = "the pre-activation and the second product overlap";
      // Kernels look at the address of the former alone.
      auto const address = [](Buffer const& z) { return reinterpret_cast<uintptr_t>(z.data); };
      if (reason.empty() && !has_no_element(d) &&
          (address(epilogue.preactivation) ^ address(epilogue.second_product)) % 16 != 0)
        reason = "the second product is aligned otherwise than the pre-activation, by 16 bytes";
    }
    if (!reason.empty()) return reason;
  }
  auto const modes_of_matrix = [&](EpilogueMatrix const& matrix) {
    return modes_of(args, batch_strides(matrix.strides), {args.m, row_stride(matrix.strides)},
                    {args.n, column_stride(matrix.strides)});
  };
  auto const unfit_buffer = [&](char const* name, EpilogueMatrix const& matrix) -> std::string {
    if (std::string reason = outside(name, modes_of_matrix(matrix), matrix.buffer.elements); !reason.empty())
      return reason;
    if (reinterpret_cast<uintptr_t>(matrix.buffer.data) % item_bytes(matrix.buffer.dtype) != 0)
      return std::string(name) + " is not aligned to its elements";
    return {};
  };
  for (auto const& [name, matrix] : scales_of(epilogue)) {
    if (!matrix.present) continue;
    if (matrix.buffer.dtype != Dtype::f32)
      return std::string(name) + " is " + dtype_name(matrix.buffer.dtype) + ", not f32";
    if (matrix.buffer.data == nullptr && !has_no_element(d)) return std::string(name) + " has no address";
    if (std::string reason = unfit_buffer(name, matrix); !reason.empty()) return reason;
    if (overlap(matrix.buffer, request.d)) return std::string(name) + " and d overlap";
    if (epilogue.wants_preactivation && overlap(matrix.buffer, epilogue.preactivation))
      return std::string(name) + " and the pre-activation overlap";
  }
  for (auto const& [name, matrix] : matrices_of(epilogue)) {
    if (!matrix.present) continue;
    Buffer const& buffer = matrix.buffer;
    if (buffer.dtype != request.d.dtype)
      return std::string(name) + " is " + dtype_name(buffer.dtype) + ", and d is " + d_dtype;
    if (std::string reason = unfit_buffer(name, matrix); !reason.empty()) return reason;
    Modes const modes = modes_of_matrix(matrix);
    // An element is read before it is written, and by the same thread, only where both are at the same place.
    bool const in_place = buffer.data == request.d.data && same_elements(modes, d);
    if (overlap(buffer, request.d) && !in_place)
      return std::string(name) + " and d overlap, and " + name + "'s strides are not d's";
    if (epilogue.wants_preactivation && overlap(buffer, epilogue.preactivation))
      return std::string(name) + " and the pre-activation overlap";
  }
  return {};
}

/// What needs no buffer: the config, the number and signs of sizes and strides.
Status decode_attributes(GemmRequest const& request, GemmCall& call) {
  auto const error = [&](std::string_view reason) { return gemm_error(request.config, request.sizes, reason); };
  call.gemm = find_gemm(request.config);
  if (call.gemm == nullptr) return error("no compiled GEMM has this name");
  if (request.sizes.size() < 4 || request.sizes.size() > 3 + kBatchModes)
    return error("four to six sizes are needed: those of one to three batch modes, m, n and k");
  size_t const batch_modes = request.sizes.size() - 3, strides_needed = batch_modes + 2;
  for (auto const strides : {request.a_strides, request.b_strides, request.d_strides}) {
    if (strides.size() != strides_needed)
      return error(std::string(in_words(strides_needed)) + " strides of each operand are needed, not " +
                   to_text(strides));
    if (std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride < 0; }))
      return error("strides " + to_text(strides) + " are negative");
  }
  for (int64_t const offset : {request.a_offset, request.b_offset, request.epilogue.second_b_offset}) {
    if (offset < 0) return error("offset " + std::to_string(offset) + " is negative");
  }
  for (int64_t const size : request.sizes) {
    if (size < 0 || size > kMaxSize) return error("sizes lie between 0 and 2^31 - 1");
  }
  int64_t batch = 1;
  for (int64_t const size : request.sizes.first(batch_modes)) {
    if (size > 0 && batch > kMaxSize / size) return error("the batch has more than 2^31 - 1 matrices");
    batch *= size;
  }
  int modes[kBatchModes] = {1, 1, 1};
  std::copy_n(request.sizes.begin(), batch_modes, modes + (kBatchModes - batch_modes));
  Dtype const dtype = call.gemm->config.dtype;
  call.args = {.a = element_at(request.a.data, request.a_offset, storage_dtype(dtype)),
               .b = element_at(request.b.data, request.b_offset, storage_dtype_of_b(dtype)),
               .d = request.d.data,
               .workspace = request.workspace_bytes > 0 ? request.workspace : nullptr,
               .batch = batch,
               .m = request.sizes[batch_modes],
               .n = request.sizes[batch_modes + 1],
               .k = request.sizes[batch_modes + 2],
               .batch_sizes = make_batch_sizes(modes[0], modes[1], modes[2]),
               .a_batch_strides = batch_strides(request.a_strides),
               .a_m_stride = row_stride(request.a_strides),
               .a_k_stride = column_stride(request.a_strides),
               .b_batch_strides = batch_strides(request.b_strides),
               .b_n_stride = row_stride(request.b_strides),
               .b_k_stride = column_stride(request.b_strides),
               .d_batch_strides = batch_strides(request.d_strides),
               .d_m_stride = row_stride(request.d_strides),
               .d_n_stride = column_stride(request.d_strides),
               .d_dtype = request.d.dtype};
  std::string reason = decode_epilogue(request.epilogue, strides_needed, call.args.epilogue);
  if (!reason.empty()) return error(reason);
  return {};
}

/// Why the operands are not what the config takes; empty if they are. one_matrix: d is one, whatever the batch is.
std::string unfit(GemmRequest const& request, GemmCall const& call, bool one_matrix = false) {
  GemmConfig const& config = call.gemm->config;
  GemmEntry const& entry = call.gemm->entry;
  GemmArgs const& args = call.args;
  if (request.a.dtype != storage_dtype(config.dtype) || request.b.dtype != storage_dtype_of_b(config.dtype))
    return std::string("operands are ") + dtype_name(request.a.dtype) + " and " + dtype_name(request.b.dtype);
  if (!has_bit(entry.out_dtypes, unsigned(args.d_dtype)))
    return std::string("the kernel does not write ") + dtype_name(args.d_dtype);

  Modes const a = modes_of(args, args.a_batch_strides, {args.m, args.a_m_stride}, {args.k, args.a_k_stride});
  Modes const b = modes_of(args, args.b_batch_strides, {args.n, args.b_n_stride}, {args.k, args.b_k_stride});
  Modes const d = modes_of(args, args.d_batch_strides, {args.m, args.d_m_stride}, {args.n, args.d_n_stride});
  if (std::string reason = outside("a", a, request.a.elements, request.a_offset); !reason.empty()) return reason;
  if (std::string reason = outside("b", b, request.b.elements, request.b_offset); !reason.empty()) return reason;
  if (std::string reason = outside("d", d, request.d.elements); !reason.empty()) return reason;
  Modes written = d;
  if (one_matrix) written[kBatchModes - 1] = {1, 0};
  if (!covers_exactly(written, request.d.elements))
    return "strides of d do not write each of its elements exactly once";
  if (std::string reason = unfit_epilogue(request, entry, args, d); !reason.empty()) return reason;
  bool const has_second_b = request.epilogue.has_second_b;
  Buffer const& second_b = request.epilogue.second_b;
  if (has_second_b) {
    if (!entry.facts.takes_pair) return "the kernel takes no second b";
    if (item_bytes(args.d_dtype) != 2) return std::string("d of two b has 16 bits, not ") + dtype_name(args.d_dtype);
    if (second_b.data == nullptr && !has_no_element(d)) return "the second b has no address";
    if (second_b.dtype != request.b.dtype) return std::string("the second b is ") + dtype_name(second_b.dtype);
    int64_t const first = request.epilogue.second_b_offset;
    if (std::string reason = outside("the second b", b, second_b.elements, first); !reason.empty()) return reason;
  }
  if (has_no_element(d)) return {};  // nothing runs

  Order const order = order_of(args);
  if (!has_bit(entry.facts.orders, unsigned(order))) return "the kernel does not take this order of the operands";
  std::string reason = misaligned("a", config, args.a, a, major_a(order) == Major::k, entry.facts.any_stride);
  if (reason.empty()) reason = misaligned("b", config, args.b, b, major_b(order) == Major::k, entry.facts.any_stride);
  if (reason.empty() && has_second_b)
    reason = misaligned("the second b", config, args.epilogue.second_b, b, major_b(order) == Major::k,
                        entry.facts.any_stride);
  if (!reason.empty()) return reason;
  if (reinterpret_cast<uintptr_t>(args.d) % item_bytes(args.d_dtype) != 0) return "d is not aligned to its elements";

  // Of the addresses too, which the caller who asked for the bytes may not have known: XLA's are multiples of 16.
  int64_t const needed = entry.workspace_bytes(args);
  if (request.workspace_bytes < needed)
    return "a workspace of " + std::to_string(needed) + " bytes is needed, not " +
           std::to_string(request.workspace_bytes);
  if (needed > 0 && reinterpret_cast<uintptr_t>(args.workspace) % 16 != 0)
    return "the workspace is not aligned to 16 bytes";
  return {};
}

/// Why the rows of d that a call names are none; empty if they are.
std::string unfit_rows(GroupedRequest const& request, GemmArgs const& args) {
  Buffer const& rows = request.d_rows;
  if (rows.dtype != Dtype::s32) return std::string("the array of rows of d is ") + dtype_name(rows.dtype) + ", not s32";
  if (rows.elements != args.m)
    return "the array of rows of d has " + std::to_string(rows.elements) + " elements, and there are " +
           std::to_string(args.m) + " rows";
  if (reinterpret_cast<uintptr_t>(rows.data) % 4 != 0) return "the array of rows of d is not aligned to its elements";
  for (auto const& [name, matrix] : matrices_of(request.gemm.epilogue)) {
    // The thread that writes an element of d has read another one of it.
    if (matrix.present && overlap(matrix.buffer, request.gemm.d))
      return std::string(name) + " and d overlap, whose rows are stored elsewhere";
  }
  return {};
}

/// Why groups are not what the config takes; empty if they are.
std::string unfit_groups(GroupedRequest const& request, GemmCall const& call) {
  bool const rows_are_ragged = request.ragged == "m";
  if (request.gemm.sizes.size() != 4) return "four sizes are needed: the number of groups, m, n and k";
  if (!rows_are_ragged && request.ragged != "k") return "what is ragged is m or k, not " + std::string(request.ragged);
  if (!rows_are_ragged && request.has_rows) return "rows are stored elsewhere where m is ragged, not k";
  GemmArgs const& args = call.args;
  if (args.batch > kMaxGroups)
    return "there are " + std::to_string(args.batch) + " groups, and the kernel has room for " +
           std::to_string(kMaxGroups);
  if (request.group_sizes.dtype != Dtype::s32)
    return std::string("the groups' sizes are ") + dtype_name(request.group_sizes.dtype) + ", not s32";
  if (request.group_sizes.elements != args.batch)
    return "there are " + std::to_string(request.group_sizes.elements) + " sizes of " + std::to_string(args.batch) +
           " groups";
  if (reinterpret_cast<uintptr_t>(request.group_sizes.data) % 4 != 0)
    return "the groups' sizes are not aligned to their elements";
  auto const moves = [](BatchStrides const& strides) { return strides.modes[kBatchModes - 1] != 0; };
  if (moves(args.a_batch_strides)) return "a has a stride along groups";
  if (rows_are_ragged && moves(args.d_batch_strides)) return "d has a stride along groups, and its rows are cut";
  if (!rows_are_ragged && moves(args.b_batch_strides)) return "b has a stride along groups, and its k is cut";
  if (!rows_are_ragged && request.gemm.epilogue.has_second_b) return "two b are of groups of rows, and k is cut";
  if (std::string reason = unfit(request.gemm, call, rows_are_ragged); !reason.empty()) return reason;
  bool const a_by_k = major_a(order_of(args)) == Major::k;
  if (args.m > 0 && args.n > 0 && a_by_k != rows_are_ragged)
    return "elements side by side in memory belong to several groups: m is ragged with orders NN and NT, k with TN";
  return request.has_rows ? unfit_rows(request, args) : "";
}

}  // namespace

Status gemm_error(std::string_view config, std::span<int64_t const> sizes, std::string_view reason) {
  return {"jax_moye: " + std::string(config) + ", sizes (batch, m, n, k) = " + to_text(sizes) + ": " +
          std::string(reason)};
}

Status decode_gemm(GemmRequest const& request, GemmCall& call) {
  if (Status status = decode_attributes(request, call); !status.ok()) return status;
  if (call.gemm->entry.launch == nullptr)
    return gemm_error(request.config, request.sizes,
                      call.gemm->entry.launch_grouped != nullptr   ? "the kernel computes products of groups alone"
                      : call.gemm->entry.launch_weights != nullptr ? "the kernel multiplies with weights alone"
                      : call.gemm->entry.launch_block_scaled != nullptr
                          ? "the kernel multiplies blocks with scales alone"
                          : "the kernel computes attention alone");
  std::string const reason = unfit(request, call);
  return reason.empty() ? Status{} : gemm_error(request.config, request.sizes, reason);
}

Status decode_grouped(GroupedRequest const& request, GroupedCall& call) {
  GemmCall gemm;
  if (Status status = decode_attributes(request.gemm, gemm); !status.ok()) return status;
  std::string const reason = gemm.gemm->entry.launch_grouped == nullptr ? "the kernel computes no products of groups"
                                                                        : unfit_groups(request, gemm);
  if (!reason.empty()) return gemm_error(request.gemm.config, request.gemm.sizes, reason);
  call = {gemm.gemm,
          {.gemm = gemm.args,
           .group_sizes = static_cast<int32_t const*>(request.group_sizes.data),
           .d_rows = request.has_rows ? static_cast<int32_t const*>(request.d_rows.data) : nullptr}};
  return {};
}

Status decode_weights(WeightsRequest const& request, WeightsCall& call) {
  auto const error = [&](std::string const& reason) {
    return Status{"jax_moye: " + std::string(request.config) + ", sizes (m, n, k) = " + to_text(request.sizes) + ": " +
                  reason};
  };
  call.gemm = find_gemm(request.config);
  if (call.gemm == nullptr) return error("no compiled GEMM has this name");
  GemmConfig const& config = call.gemm->config;
  if (call.gemm->entry.launch_weights == nullptr) return error("the kernel multiplies with no weights");
  if (request.sizes.size() != 3) return error("three sizes are needed: m, n and k");
  for (int64_t const size : request.sizes) {
    if (size < 0 || size > kMaxSize) return error("sizes lie between 0 and 2^31 - 1");
  }
  int64_t const m = request.sizes[0], n = request.sizes[1], k = request.sizes[2];
  if (request.group < 1) return error("a group has " + std::to_string(request.group) + " rows of the weights");
  if (request.group < k && request.group % kWeightGroup != 0)
    return error("groups of " + std::to_string(request.group) + " are no multiples of " + std::to_string(kWeightGroup));
  if (request.parts < 1 || request.parts > kMostWeightParts)
    return error("k is split into 1 to " + std::to_string(kMostWeightParts) + " parts, not " +
                 std::to_string(request.parts));
  int64_t const groups = k <= request.group ? 1 : (k + request.group - 1) / request.group;

  if (request.a.dtype != storage_dtype(config.dtype)) return error(std::string("a is ") + dtype_name(request.a.dtype));
  constexpr WeightKind kKinds[] = {WeightKind::s8, WeightKind::s4, WeightKind::s4, WeightKind::e4m3};
  if (kKinds[int(request.b_dtype)] != weight_kind(config.dtype)) return error("the weights have another dtype");
  if (!has_bit(call.gemm->entry.out_dtypes, unsigned(request.d.dtype)) ||
      (request.d.dtype != Dtype::f32 && request.d.dtype != request.a.dtype))
    return error(std::string("the result is f32 or a's dtype, not ") + dtype_name(request.d.dtype));
  if (request.scales.dtype != Dtype::f32 && request.scales.dtype != Dtype::bf16 && request.scales.dtype != Dtype::f16)
    return error(std::string("scales are f32, bf16 or f16, not ") + dtype_name(request.scales.dtype));
  if (request.has_zeros && (request.zeros.dtype != Dtype::s8 || weight_kind(config.dtype) == WeightKind::e4m3))
    return error("zeros are s8, and those of weights that are integers");
  auto const wrong = [&](char const* name, int64_t elements, int64_t rows, int64_t columns) -> std::string {
    if (elements == rows * columns) return {};
    return std::string(name) + " has " + std::to_string(elements) + " elements, not " + std::to_string(rows) + " x " +
           std::to_string(columns);
  };
  std::string reason = wrong("a", request.a.elements, m, k);
  if (reason.empty()) reason = wrong("b", request.b_elements, k, n);
  if (reason.empty()) reason = wrong("d", request.d.elements, m, n);
  if (reason.empty()) reason = wrong("the array of scales", request.scales.elements, groups, n);
  if (reason.empty() && request.has_zeros) reason = wrong("the array of zeros", request.zeros.elements, groups, n);
  if (!reason.empty()) return error(reason);

  int64_t const row_bits = n * weight_bits(config.dtype);
  if (k * item_bytes(request.a.dtype) % 16 != 0 || row_bits % 128 != 0)
    return error("rows of a and of the weights are no multiples of 16 bytes");
  auto const address = [](void const* data) { return reinterpret_cast<uintptr_t>(data); };
  if (m > 0 && n > 0) {
    if (address(request.a.data) % 16 != 0 || address(request.b) % 16 != 0)
      return error("a or b has an address that 16 bytes do not divide");
    if (address(request.d.data) % uintptr_t(item_bytes(request.d.dtype)) != 0 ||
        address(request.scales.data) % uintptr_t(item_bytes(request.scales.dtype)) != 0 ||
        address(request.zeros.data) % 4 != 0)
      return error("d, scales or zeros are not aligned");
  }
  call.args = {.gemm = {.a = request.a.data,
                        .b = request.b,
                        .d = request.d.data,
                        .workspace = nullptr,
                        .batch = 1,
                        .m = m,
                        .n = n,
                        .k = k,
                        .batch_sizes = make_batch_sizes(1, 1, 1),
                        .a_batch_strides = {},
                        .a_m_stride = k,
                        .a_k_stride = 1,
                        .b_batch_strides = {},
                        .b_n_stride = 1,
                        .b_k_stride = n,
                        .d_batch_strides = {},
                        .d_m_stride = n,
                        .d_n_stride = 1,
                        .d_dtype = request.d.dtype},
               .scales = request.scales.data,
               .scale_dtype = request.scales.dtype,
               .zeros = request.has_zeros ? static_cast<int8_t const*>(request.zeros.data) : nullptr,
               .group = request.group,
               .is_signed = request.b_dtype == WeightDtype::s4 || request.b_dtype == WeightDtype::s8,
               .parts = int(request.parts)};
  return {};
}

Status decode_block_scaled(BlockScaledRequest const& request, BlockScaledCall& call) {
  auto const error = [&](std::string_view reason) { return gemm_error(request.config, request.sizes, reason); };
  if (request.sizes.size() != 4) return error("four sizes are needed: batch, m, n and k");
  for (int64_t const size : request.sizes) {
    if (size < 0 || size > kMaxSize) return error("sizes lie between 0 and 2^31 - 1");
  }
  int64_t const batch = request.sizes[0], m = request.sizes[1], n = request.sizes[2], k = request.sizes[3];
  int64_t const a_strides[] = {m * k, k, 1}, b_strides[] = {n * k, k, 1}, d_strides[] = {m * n, n, 1};
  GemmRequest const gemm{.config = request.config,
                         .sizes = request.sizes,
                         .a_strides = a_strides,
                         .b_strides = b_strides,
                         .d_strides = d_strides,
                         .a = request.a,
                         .b = request.b,
                         .d = request.d,
                         .workspace = nullptr,
                         .workspace_bytes = 0};
  GemmCall found;
  if (Status status = decode_attributes(gemm, found); !status.ok()) return status;
  if (found.gemm->entry.launch_block_scaled == nullptr) return error("the kernel takes no scales of blocks");
  if (k % kScaledBlock != 0) return error("k is no multiple of " + std::to_string(kScaledBlock));
  if (std::string const reason = unfit(gemm, found); !reason.empty()) return error(reason);
  int64_t const blocks = k / kScaledBlock, blocks_of_n = (n + kScaledBlock - 1) / kScaledBlock;
  struct Scales {
    char const* name;
    Buffer const& buffer;
    int64_t elements;  // of a matrix
  };
  for (auto const& [name, buffer, elements] :
       {Scales{"a's scales", request.a_scales, m * blocks},
        Scales{"b's scales", request.b_scales, blocks_of_n * blocks * (request.of_columns ? kScaledBlock : 1)}}) {
    if (buffer.dtype != Dtype::f32) return error(std::string(name) + " are " + dtype_name(buffer.dtype) + ", not f32");
    int64_t needed;
    if (__builtin_mul_overflow(elements, batch, &needed) || buffer.elements != needed)
      return error(std::string(name) + " have " + std::to_string(buffer.elements) + " elements, not " +
                   std::to_string(batch) + " x " + std::to_string(elements));
    if (batch * m * n > 0 && reinterpret_cast<uintptr_t>(buffer.data) % 8 != 0)  // columns are read in pairs
      return error(std::string(name) + " have an address that 8 bytes do not divide");
    if (overlap(buffer, request.d)) return error(std::string(name) + " and d overlap");
  }
  call = {found.gemm,
          {found.args, static_cast<float const*>(request.a_scales.data),
           static_cast<float const*>(request.b_scales.data), request.of_columns}};
  return {};
}

Status gemm_workspace_bytes(GemmRequest const& request, int64_t& bytes) {
  GemmCall call;
  if (Status status = decode_attributes(request, call); !status.ok()) return status;
  bytes = call.gemm->entry.workspace_bytes(call.args);
  return {};
}

}  // namespace moye
