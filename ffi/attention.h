// A call of attention, or of its gradients, decoded and validated: as gemm.h, of the other targets' calls.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "gemm.h"
#include "registry.h"

namespace moye {

/// An array of (batch, head, row, head_dim) as it arrives. It is contiguous along head_dim.
struct AttentionOperand {
  Buffer buffer = {};
  std::span<int64_t const> strides = {};  // batch, head, row
  int64_t offset = 0;                     // elements of the buffer in front of the first one
};

/// Which scores count, as it arrives.
struct MaskOperand {
  bool present = false;
  void const* data = nullptr;  // a byte each
  int64_t elements = 0;
  std::span<int64_t const> strides = {};  // batch, head, row, column
  bool is_infinite = false;
  bool has_gradients = false;
};

/// Which weights are kept, as it arrives.
struct DropoutOperand {
  bool present = false;
  void const* data = nullptr;  // a byte each
  int64_t elements = 0;
  std::span<int64_t const> strides = {};  // batch, head, row, column
  double factor = 1;                      // of those that are kept
};

/// What is added to the scores, as it arrives.
struct BiasOperand {
  bool present = false;
  Buffer buffer = {};
  std::span<int64_t const> strides = {};  // batch, head, row, column
};

/// A call as it arrives; AttentionArgs says what is what. Nothing in it is trusted.
struct AttentionRequest {
  bool of_gradients = false;
  std::string_view config = {};
  std::span<int64_t const> sizes = {};  // batch, kv_heads, group, q_rows, kv_rows, head_dim
  double scale = 1;
  bool has_cap = false;
  double cap = 0;
  bool is_causal = false;
  int64_t diagonal = 0;
  AttentionOperand q = {}, k = {}, v = {};
  MaskOperand mask = {};
  BiasOperand bias = {};
  DropoutOperand dropout = {};
  AttentionOperand o = {};  // a result; not of gradients
  bool has_o_rest = false;
  AttentionOperand o_rest = {};  // another, if there is one: what rounding took from o
  Buffer lse = {};               // a result; an operand of gradients
  AttentionOperand d_o = {};     // from here on of gradients alone
  Buffer delta = {};
  int64_t ds_parts = 1;
  AttentionOperand dq = {}, dk = {}, dv = {};  // results
  // Where some of them are parts of one array: which result each is part of. Else empty.
  std::span<int64_t const> result_of = {};
  bool has_ds = false;
  Buffer ds = {};  // another, if there is one
};

/// One of the arrays of a call.
struct AttentionPart {
  char const* name;
  AttentionOperand AttentionRequest::* operand;
  AttentionArray AttentionArgs::* array;
  bool has_query_heads;  // else it has heads and rows of keys and values
  bool is_result;
};

/// The arrays of a call but the mask, lse and delta; operands first.
std::span<AttentionPart const> attention_parts(bool of_gradients);

/// Whether an array in front of it is part of the same result.
bool is_in_result_before(AttentionRequest const& request, AttentionPart const& part);

struct AttentionCall {
  RegisteredGemm const* gemm;
  AttentionArgs args;
};

/// Fills `call`, or says why the request cannot be run. After success every element that the kernel reads or writes
/// lies inside its buffer, every element of a result is written exactly once, addresses and strides are multiples of 16
/// bytes, the scale is above 0, and the diagonal crosses the scores or lies just outside of them.
Status decode_attention(AttentionRequest const& request, AttentionCall& call);

/// "jax_moye: <config>, sizes (batch, kv_heads, group, q_rows, kv_rows, head_dim) = (1, 2, 3, 4, 5, 6): <reason>"
Status attention_error(std::string_view config, std::span<int64_t const> sizes, std::string_view reason);

}  // namespace moye
