// One call, decoded and validated: what the CUDA handler, the CPU handler and the tests' binding have in common.
// Knows neither XLA nor a GPU.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "registry.h"

namespace moye {

/// What weights may be in memory; those of 4 bits lie two in a byte.
enum class WeightDtype { s8, s4, u4, e4m3 };

/// A dense buffer as its owner describes it.
struct Buffer {
  void* data;
  int64_t elements;
  Dtype dtype;
};

/// c, bias, residual or a multiplier as it arrives.
struct EpilogueMatrix {
  bool present = false;
  Buffer buffer = {};
  std::span<int64_t const> strides = {};  // batch modes, m, n; 0 along a mode over which it is broadcast
};

/// What becomes of the product; as it stands: nothing.
struct EpilogueRequest {
  std::string_view activation = "none";
  double alpha = 1, beta = 0;
  EpilogueMatrix c, bias, residual;
  bool wants_preactivation = false;
  Buffer preactivation = {};  // sizes and strides are d's
  bool has_second_b = false;
  Buffer second_b = {};                           // sizes and strides are b's
  int64_t second_b_offset = 0;                    // elements in front of its first one
  Buffer second_product = {};                     // with a second b and a pre-activation; sizes and strides are d's
  EpilogueMatrix lhs_scale = {}, rhs_scale = {};  // f32; strides are 0 along n of the former, along m of the latter
  EpilogueMatrix multiplier = {};                 // beside a derivative, whose other result is the pre-activation then
};

/// A call as it arrives. Nothing in it is trusted: attributes may come from an edited or corrupted saved program.
struct GemmRequest {
  std::string_view config;
  std::span<int64_t const> sizes;      // of one to three batch modes, outermost first; m, n, k
  std::span<int64_t const> a_strides;  // batch modes, m, k; all strides in elements
  std::span<int64_t const> b_strides;  // batch modes, n, k
  std::span<int64_t const> d_strides;  // batch modes, m, n
  Buffer a, b, d;
  void* workspace;
  int64_t workspace_bytes;
  EpilogueRequest epilogue = {};
  int64_t a_offset = 0, b_offset = 0;  // elements of the buffers in front of the first ones
};

struct GemmCall {
  RegisteredGemm const* gemm;
  GemmArgs args;
};

/// A product of groups as it arrives: sizes are (groups, m, n, k), strides begin with those along groups.
struct GroupedRequest {
  GemmRequest gemm = {};
  std::string_view ragged = {};  // "m" or "k": what is cut into groups
  Buffer group_sizes = {};       // s32, one of each group; what they are nobody knows before the kernel runs
  bool has_rows = false;
  Buffer d_rows = {};  // s32, in which row of d each row of the product is stored; likewise
};

struct GroupedCall {
  RegisteredGemm const* gemm;
  GroupedArgs args;
};

/// A product with weights as it arrives: sizes are (m, n, k), all arrays are row-major.
struct WeightsRequest {
  std::string_view config;
  std::span<int64_t const> sizes;
  int64_t group = 0, parts = 0;
  Buffer a = {}, d = {};
  void* b = nullptr;  // weights
  int64_t b_elements = 0;
  WeightDtype b_dtype = {};
  Buffer scales = {};
  bool has_zeros = false;
  Buffer zeros = {};
};

struct WeightsCall {
  RegisteredGemm const* gemm;
  WeightsArgs args;
};

/// A product of blocks that have scales, as it arrives: sizes are (batch, m, n, k), all arrays are row-major.
struct BlockScaledRequest {
  std::string_view config;
  std::span<int64_t const> sizes;
  bool of_columns = false;  // of b's scales, as BlockScaledArgs has it
  Buffer a = {}, b = {}, d = {}, a_scales = {}, b_scales = {};
};

struct BlockScaledCall {
  RegisteredGemm const* gemm;
  BlockScaledArgs args;
};

/// Fills `call`, or says why the request cannot be run. After success every element that the kernel reads or writes
/// lies inside its buffer, every element of d is written exactly once, and every address has the config's alignment.
/// Where beta is 0, c is checked and left out: no kernel reads it.
Status decode_gemm(GemmRequest const& request, GemmCall& call);

/// The same of a product of groups. Whatever the groups' sizes are, and the rows of d that are named, the kernel reads
/// and writes inside the buffers; each element of d is written once where each row is named once.
Status decode_grouped(GroupedRequest const& request, GroupedCall& call);

/// The same of a product with weights.
Status decode_weights(WeightsRequest const& request, WeightsCall& call);

/// The same of a product of blocks that have scales.
Status decode_block_scaled(BlockScaledRequest const& request, BlockScaledCall& call);

/// The bytes of workspace a call needs, from its attributes alone; no buffer is looked at.
Status gemm_workspace_bytes(GemmRequest const& request, int64_t& bytes);

/// "jax_moye: <config>, sizes (batch, m, n, k) = (1, 2, 3, 4): <reason>"
Status gemm_error(std::string_view config, std::span<int64_t const> sizes, std::string_view reason);

}  // namespace moye
