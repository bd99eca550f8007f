// The seam between ffi/ and the kernels: what a config is, what a call is, what a kernel reports.
// Plain C++20, no CUDA header, so that g++ and nvcc both read it.
#pragma once

#include <cstdint>

#include "moye/arch/status.h"

namespace moye {

/// Each names the file gemm/<enumerator>.cuh.
enum class Kernel {
  simt_tiled,
  simt_overlap,
  simt_double_buffer,
  sm70_tensorop,
  sm80_tensorop,
  sm80_ldmatrix,
  sm80_double_buffer,
  sm80_multistage,
  sm80_persistent,
  sm90_multistage,
  sm90_cooperative,
  sm90_pingpong,
  sm90_split_k,
  sm90_parallel_split_k,
  sm90_grouped,
  sm90_parts,
  sm90_weights,
  sm90_attention,
  sm90_attention_grad,
  sm90_sliced_k,
  sm90_transposed,
  sm90_odd_rows,
#ifdef MOYE_OWN_KERNEL
  MOYE_OWN_KERNEL,  // one that jax_moye.kernel() compiles by itself: it has no name below
#endif
};

/// What is multiplied, summed and written. Those behind e5m2 and tf32 are in no memory: tf32 is f32 that is multiplied
/// as tf32; bf16x3, bf16x6 and bf16x9 are f32 that is multiplied as so many products of bf16 parts; f32_fast are sums
/// of 8-bit floats that stay in the tensor core, which keeps some 14 bits of them, where f32's leave it for f32
/// registers every 128 products; bf16xs8 and the like are a of bf16 and b, weights, of s8. s4 are weights of 4 bits,
/// signed or not. e4m3xe5m2 is a of e4m3 and b of e5m2, which the tensor core multiplies as they are. f32_blocks are
/// f32's sums of 8-bit floats, each 128 products of which are multiplied by scales before they are added.
enum class Dtype {
  bf16,
  f16,
  f32,
  f64,
  tf32,
  s8,
  s32,
  e4m3,
  e5m2,
  f32_fast,
  bf16x3,
  bf16x6,
  bf16x9,
  bf16xs8,
  bf16xs4,
  bf16xe4m3,
  f16xs8,
  f16xs4,
  f16xe4m3,
  e4m3xe5m2,
  e5m2xe4m3,
  f32_blocks
};

// The enumerators' names, in their order: parts of a config's name.
inline constexpr char const* kKernelNames[] = {
    "simt_tiled",       "simt_overlap",       "simt_double_buffer", "sm70_tensorop",         "sm80_tensorop",
    "sm80_ldmatrix",    "sm80_double_buffer", "sm80_multistage",    "sm80_persistent",       "sm90_multistage",
    "sm90_cooperative", "sm90_pingpong",      "sm90_split_k",       "sm90_parallel_split_k", "sm90_grouped",
    "sm90_parts",       "sm90_weights",       "sm90_attention",     "sm90_attention_grad",   "sm90_sliced_k",
    "sm90_transposed",  "sm90_odd_rows"};
inline constexpr char const* kDtypeNames[] = {"bf16",     "f16",       "f32",       "f64",       "tf32",   "s8",
                                              "s32",      "e4m3",      "e5m2",      "f32_fast",  "bf16x3", "bf16x6",
                                              "bf16x9",   "bf16xs8",   "bf16xs4",   "bf16xe4m3", "f16xs8", "f16xs4",
                                              "f16xe4m3", "e4m3xe5m2", "e5m2xe4m3", "f32_blocks"};
inline constexpr int kDtypes = int(sizeof(kDtypeNames) / sizeof(kDtypeNames[0]));
constexpr char const* kernel_name(Kernel kernel) { return kKernelNames[int(kernel)]; }
constexpr char const* dtype_name(Dtype dtype) { return kDtypeNames[int(dtype)]; }

/// The dtype of the buffers that hold `dtype`; of a's where b has another.
constexpr Dtype storage_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::tf32:
    case Dtype::f32_fast:
    case Dtype::f32_blocks:
    case Dtype::bf16x3:
    case Dtype::bf16x6:
    case Dtype::bf16x9:
      return Dtype::f32;
    case Dtype::bf16xs8:
    case Dtype::bf16xs4:
    case Dtype::bf16xe4m3:
      return Dtype::bf16;
    case Dtype::f16xs8:
    case Dtype::f16xs4:
    case Dtype::f16xe4m3:
      return Dtype::f16;
    case Dtype::e4m3xe5m2:
      return Dtype::e4m3;
    case Dtype::e5m2xe4m3:
      return Dtype::e5m2;
    default:
      return dtype;
  }
}

/// The same of b's, where b are no weights.
constexpr Dtype storage_dtype_of_b(Dtype dtype) {
  if (dtype == Dtype::e4m3xe5m2) return Dtype::e5m2;
  if (dtype == Dtype::e5m2xe4m3) return Dtype::e4m3;
  return storage_dtype(dtype);
}

/// Whether a and b are 8-bit floats.
constexpr bool is_float8(Dtype dtype) {
  return storage_dtype(dtype) == Dtype::e4m3 || storage_dtype(dtype) == Dtype::e5m2;
}

constexpr int item_bytes(Dtype dtype) {
  switch (storage_dtype(dtype)) {
    case Dtype::f64:
      return 8;
    case Dtype::f32:
    case Dtype::s32:
      return 4;
    case Dtype::bf16:
    case Dtype::f16:
      return 2;
    default:
      return 1;
  }
}

/// What products of `dtype` are summed in where a config does not say otherwise.
constexpr Dtype default_accumulator(Dtype dtype) {
  return dtype == Dtype::f64 ? Dtype::f64 : dtype == Dtype::s8 ? Dtype::s32 : Dtype::f32;
}

struct TileMNK {
  int m, n, k;
};

struct TileMN {
  int m, n;
};

struct ClusterMN {
  int m, n;
};

/// What is compiled: one row of gemm/configs.h. A structural type, so a config can be a template argument.
struct GemmConfig {
  Kernel kernel;
  Dtype dtype;        // of a and b, or of both as in e4m3xe5m2
  Dtype accumulator;  // of the sums
  TileMNK tile;       // elements of one CTA's tile
  int stages;         // slots of the shared-memory pipeline
  ClusterMN cluster;  // CTAs of one cluster along m and n; sm90_split_k: n CTAs share one tile and split its k
  int alignment;      // bytes of one global load; pointers and non-unit strides of a and b are multiples of it
};

inline constexpr int kBatchModes = 3;

/// Strides along the batch modes, outermost first, in elements; 0 along one over which the operand is broadcast.
struct BatchStrides {
  int64_t modes[kBatchModes];
};

/// What divides numbers below 2^31 by a number that the host knows, without a division: a chain of some thirty
/// instructions, for which producers have neither the time nor the registers. make_divisor() of gemm/batch.h fills it
/// in.
struct Divisor {
  unsigned multiplier, shift;
};

/// The modes of a batch, outermost first, 1 where there is none: {1, 1, n} is one mode. make_batch_sizes() of
/// gemm/batch.h fills it in.
struct BatchSizes {
  int modes[kBatchModes];
  Divisor divisors[kBatchModes - 1];  // by the middle and by the inner mode
};

/// A matrix that an epilogue reads: broadcast along modes whose stride is 0. Its dtype is d's.
struct EpilogueOperand {
  void const* data;  // null: there is none
  BatchStrides batch_strides;
  int64_t m_stride, n_stride;
};

/// What the rows or the columns of the product are multiplied by, f32.
struct EpilogueScales {
  float const* data;  // null: nothing
  BatchStrides batch_strides;
  int64_t stride;  // along m or n; 0: one scale for all
};

/// own: the function with which the kernel was compiled (gemm/epilogue.h).
/// d_*: not of z, but z times the derivative at c, which is not added then.
enum class Activation { none, relu, gelu_tanh, gelu_erf, silu, own, d_relu, d_gelu_tanh, d_gelu_erf, d_silu };
inline constexpr char const* kActivationNames[] = {"none", "relu",   "gelu_tanh",   "gelu_erf",   "silu",
                                                   "own",  "d_relu", "d_gelu_tanh", "d_gelu_erf", "d_silu"};
inline constexpr Activation kFirstDerivative = Activation::d_relu;
inline constexpr int kActivations = int(sizeof(kActivationNames) / sizeof(kActivationNames[0]));

/// What becomes of the product, element by element, in the accumulator's precision:
///   z = alpha * (a b) + beta * c + bias,  preactivation = z,  d = activation(z) + residual
/// or, with scales, where alpha * (a b) is multiplied by that of its row, then by that of its column:
///   z[m,n] = alpha * (a b)[m,n] * row_scale[m] * column_scale[n] + beta * c + bias
/// or, with a second b (c, bias, residual and scales are null then):
///   z = alpha * (a b),  second_product = a second_b,  d = activation(z) * second_product
/// or, where the activation is a derivative (bias, residual, preactivation and scales are null then):
///   d = alpha * (a b) * activation'(c), of 16 bits
/// or, with a multiplier beside it, the cotangents of both factors of activation(c) * multiplier:
///   d = alpha * (a b) * multiplier * activation'(c),  preactivation = alpha * (a b) * activation(c)
struct EpilogueArgs {
  double alpha, beta;  // beta = 0: c is not read
  EpilogueOperand c, bias, residual;
  Activation activation;
  void* preactivation;   // null, or of d's dtype, sizes and strides; with a multiplier its other result
  void const* second_b;  // null, or of b's dtype, sizes and strides
  void* second_product;  // null, or of d's dtype, sizes and strides
  EpilogueScales row_scale = {}, column_scale = {};
  EpilogueOperand multiplier = {};
};

/// What varies per call: d[b,m,n] = epilogue(sum_k a[b,m,k] * b[b,n,k]). Strides and sizes in elements. b counts the
/// matrices of a batch of up to three modes, in row-major order; gemm/batch.h says where each lies.
struct GemmArgs {
  void const* a;
  void const* b;
  void* d;
  void* workspace;         // GemmEntry::workspace_bytes(args) bytes, uninitialized; null where that is 0
  int64_t batch, m, n, k;  // batch: matrices
  BatchSizes batch_sizes;  // of their modes
  BatchStrides a_batch_strides;
  int64_t a_m_stride, a_k_stride;
  BatchStrides b_batch_strides;
  int64_t b_n_stride, b_k_stride;
  BatchStrides d_batch_strides;
  int64_t d_m_stride, d_n_stride;
  Dtype d_dtype;
  EpilogueArgs epilogue = {.alpha = 1,
                           .beta = 0,
                           .c = {},
                           .bias = {},
                           .residual = {},
                           .activation = Activation::none,
                           .preactivation = nullptr,
                           .second_b = nullptr,
                           .second_product = nullptr};
  int early = 0;  // of kEarly...: operands that no kernel ahead writes, to be read before it has ended
};
inline constexpr int kEarlyA = 1, kEarlyB = 2;  // b: second_b, too
inline constexpr int kEarlyNext = 4;            // the kernel behind is let in behind the last load
inline constexpr int kEarlyNextAtOnce = 8;      // and before the loads: the device has room for the CTAs of both

/// A product of groups, see gemm/grouped.h: batch is their number, and a matrix's stride along it is 0 where its rows
/// or its k are cut into groups. m or k, whichever that is, is of all groups together.
struct GroupedArgs {
  GemmArgs gemm;
  int32_t const* group_sizes;  // on the device, batch of them
  /// Of a ragged m, on the device, m of them: row i of the product is stored in row d_rows[i] of d, and of the
  /// pre-activation and the second product. Each row of d once; one that is outside d stores nothing; null: row i.
  int32_t const* d_rows = nullptr;
};
inline constexpr int kMaxGroups = 512;

/// A product of 8-bit floats that have a scale for every 128 along k, f32:
///   d[l,m,n] = sum over k of a[l,m,k] * a_scale[l,m,k / 128] * b[l,n,k] * b_scale
/// batch has one mode, a, b and d are row-major as they stand there, and k is a multiple of kScaledBlock.
struct BlockScaledArgs {
  GemmArgs gemm;
  float const* a_scales;  // (batch, m, k / 128)
  float const* b_scales;  // (batch, n / 128 rounded up, k / 128); of columns: (batch, k / 128, n up to whole blocks)
  bool of_columns;        // b has a scale for each n, not for 128 of them
};
inline constexpr int kScaledBlock = 128;

/// A product with weights: d[m,n] = sum over groups g of scales[g,n] * sum_k a[m,k] * (b[k,n] - zeros[g,n]), k those of
/// the group. batch is 1, all is row-major; b are the weights, (k, n), those of 4 bits two in a byte, the first in its
/// low half.
struct WeightsArgs {
  GemmArgs gemm;
  void const* scales;  // (groups, n), bf16, f16 or f32
  Dtype scale_dtype;
  int8_t const* zeros;  // (groups, n); null: none
  int64_t group;        // rows of b that share a row of scales: a multiple of kWeightGroup, or not less than k
  bool is_signed;       // weights that are integers: from -8 or 0 on, of 8 bits always
  int parts;            // CTAs among which k is split
};
inline constexpr int kMostWeightParts = 8, kWeightGroup = 64;

/// Rows of an attention: (batch, heads, rows, head_dim), contiguous along head_dim. Strides in elements.
struct AttentionArray {
  void* data;  // null: there is none
  int64_t batch_stride, head_stride, row_stride;
};

/// Bytes along (batch, heads, q_rows, kv_rows). Strides in elements, 0 along what they are the same for.
struct AttentionBytes {
  unsigned char const* data;  // null: there are none
  int64_t batch_stride, head_stride, row_stride, column_stride;
};

/// 0 where a score is masked.
struct AttentionMask : AttentionBytes {
  bool is_infinite;  // masked scores are -inf, of which no other makes NaN; else so low that they count beside none
  // In a row all of whose scores are masked they have gradients as any others. With dropout alone, and not if -inf.
  bool has_gradients = false;
};

/// 0 where a weight is dropped.
struct AttentionDropout : AttentionBytes {
  float factor;  // of the others, above 0
};

/// Floats along (batch, heads, q_rows, kv_rows), which are added to the scores. Strides in elements, 0 along what it is
/// the same for; any other, such as of rows of 49.
struct AttentionBias {
  void const* data;  // null: nothing is added
  int64_t batch_stride, head_stride, row_stride, column_stride;
  bool is_f32;  // else of the dtype of the arrays
};

/// The gradient of what is added to the scores: ds itself, dense (batch, heads, q_rows, kv_rows).
struct AttentionScoresGrad {
  void* data;   // null: nobody wants it
  bool is_f32;  // else rounded to the dtype of the arrays
};

/// Attention. Query head h belongs to the keys and values of head h / group; of each:
///   s[i,j] = scale * (q k^T)[i,j] + bias[i,j], or masked, and is left out where is_causal and j > i + diagonal;
///            with a cap, which goes with no bias, cap * tanh(scale / cap * (q k^T)[i,j]) in the place of the sum
///   lse[i] = log sum_j exp(s[i,j]),  p = exp(s - lse),  o = p v
/// and of the gradients, with delta[i] the sum over row i of o * d_o:
///   dv = p^T d_o,  ds = p * (d_o v^T - delta), or 0 where masked,  dq = scale * ds k,  dk = scale * ds^T q;
///   with a cap ds has one factor more, 1 - tanh^2
/// With dropout, which goes with no cap, lse is that of all scores, and c[i,j] a factor, or 0 where a weight is
/// dropped:
///   o = (c * p) v,  dv = (c * p)^T d_o,  ds = p * (c * (d_o v^T) - delta)
/// A row without a column, of which nothing is summed, has o = 0, lse = -inf, and gradients of zero. p and ds are
/// rounded to the dtype of the arrays, all else is f32.
///
/// With a bias, which may be as low as a mask makes a score, lse is two arrays, so that s - lse is exact where scores
/// are low: the largest score of each row, and the logarithm of the sum of exp(s - largest). Of a row without a column
/// they are 0 and inf, of one all of whose scores are -inf 0 and NaN.
struct AttentionArgs {
  int64_t batch, kv_heads, group, q_rows, kv_rows, head_dim;
  float scale;  // above 0
  bool is_causal;
  int64_t diagonal;
  AttentionArray q, k, v;  // q: kv_heads * group heads of q_rows; k, v: kv_heads of kv_rows
  AttentionMask mask;
  AttentionArray o;           // as q; of the gradients: null
  AttentionArray o_rest;      // as o: what rounding took from that, rounded itself; null: nobody wants it
  float* lse;                 // (batch, kv_heads * group, q_rows); written, or, for gradients, read
  AttentionArray d_o;         // as q; from here on of the gradients alone
  float const* delta;         // as lse
  int ds_parts;               // 2: ds is multiplied as its rounding and that of what this took from it; else 1
  float cap = 0;              // of the scores; 0: they have none
  AttentionArray dq, dk, dv;  // as q, k, v
  AttentionBias bias = {};
  AttentionScoresGrad ds = {};  // of gradients with a bias alone
  AttentionDropout dropout = {};
};

/// What a kernel says of one of its configs: derived facts live with the kernel, not in the table.
struct KernelFacts {
  int threads;     // per CTA
  int smem_bytes;  // per CTA, the largest of all orders
  /// Warpgroups that multiply what a producer loads; 0: all warps load and multiply.
  int consumers = 0;
  /// Of d, what one consumer sums: a part of the CTA's tile, or all of it where each consumer has a tile of its own.
  /// {0, 0} where there are no consumers.
  TileMN consumer_tile = {0, 0};
  int min_arch;             // 80 for sm_80; 70 where any CUDA GPU of this project will do
  int max_arch = 0;         // 0: every newer one too; 90 for code of sm_90a, which sm_100 does not run
  unsigned orders = 0xf;    // bit 0 NN, 1 NT, 2 TN, 3 TT: first letter a, second b; N = row-major as JAX writes it
  bool any_stride;          // true: no operand needs a unit stride
  bool derives = false;     // multiplies by an activation's derivative
  bool takes_gate = false;  // multiplies by such a derivative and a multiplier, and writes two results
  bool takes_pair = false;  // two matrices b, whose products an epilogue multiplies
  bool scales = false;      // multiplies the product's rows and columns by scales
};

/// A compiled kernel, as ffi/ calls it.
struct GemmEntry {
  // One of them, the others are null: a product, products of groups, a product with weights, one of blocks that have
  // scales, or attention: of a config of sm90_attention_grad its gradients.
  Status (*launch)(GemmArgs const&, StreamHandle);
  Status (*launch_grouped)(GroupedArgs const&, StreamHandle);
  Status (*launch_weights)(WeightsArgs const&, StreamHandle);
  Status (*launch_block_scaled)(BlockScaledArgs const&, StreamHandle);
  Status (*launch_attention)(AttentionArgs const&, StreamHandle);
  /// Loads the config's kernels on the current device, so that no later launch does. Does nothing in the emulator.
  Status (*prepare)();
  int64_t (*workspace_bytes)(GemmArgs const&);
  unsigned out_dtypes;  // bit i: Dtype(i) can be written
  KernelFacts facts;
  bool own_activation = false;  // compiled with a function of a user's, and with no other activation
};

/// The bits of GemmEntry::out_dtypes.
template <class... Dtypes>
constexpr unsigned dtype_bits(Dtypes... dtypes) {
  return ((1u << unsigned(dtypes)) | ...);
}

template <GemmConfig kConfig>
struct Gemm;  // one partial specialization per kernel file

template <GemmConfig kConfig>
GemmEntry gemm_entry();  // defined once per config, in its own translation unit

}  // namespace moye
