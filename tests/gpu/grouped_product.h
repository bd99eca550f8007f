// Of grouped_check.cu: a product of groups in memory, and what the device fills its arrays with and checks them by.
#pragma once

#include <algorithm>
#include <cstring>

#include "gemm/batch.h"
#include "gemm/order.h"
#include "machine.h"
#include "moye/arch/types.h"
#include "registry.h"

namespace moye {
namespace {

/// A product and its arrays, as kernels get it. Elements of a, b and the epilogue's operands are known by their
/// indices: -2 to 2.
struct Product {
  int groups, m, n, k;
  bool rows_are_ragged, a_transposed, b_transposed;
  Dtype of_a_in_memory, of_b_in_memory, out;
  int64_t a_pitch, b_pitch, d_pitch;
  uint32_t seed;
  int poisoned;                        // the group whose part of a is NaN, or -1
  bool fused;                          // d = relu(a b + bias of the group) + residual, and the pre-activation z
  int32_t *sizes, *begins, *group_of;  // begins: groups + 1 of them; group_of: of each element of the ragged mode
  unsigned char *a, *b, *d, *z, *bias, *residual;

  MOYE_HOST_DEVICE int length() const { return rows_are_ragged ? m : k; }
  MOYE_HOST_DEVICE int matrices_of_b() const { return rows_are_ragged ? groups : 1; }
  MOYE_HOST_DEVICE int matrices_of_d() const { return rows_are_ragged ? 1 : groups; }
  MOYE_HOST_DEVICE int64_t elements_of_a() const { return a_pitch * (a_transposed ? k : m); }
  MOYE_HOST_DEVICE int64_t matrix_of_b() const { return b_pitch * (b_transposed ? n : k); }
  MOYE_HOST_DEVICE int64_t elements_of_b() const { return matrix_of_b() * matrices_of_b(); }
  MOYE_HOST_DEVICE int64_t matrix_of_d() const { return d_pitch * m; }
  MOYE_HOST_DEVICE int64_t elements_of_d() const { return matrix_of_d() * matrices_of_d(); }

  MOYE_HOST_DEVICE int integer(uint32_t array, int64_t row, int64_t column) const {
    uint32_t x = seed + array * 0x7feb352du + uint32_t(row) * 0x9e3779b1u + uint32_t(column) * 0x85ebca77u;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return int((x >> 8) % 5u) - 2;
  }
  MOYE_HOST_DEVICE int of_a(int i, int x) const { return integer(0, i, x); }
  MOYE_HOST_DEVICE int of_b(int g, int j, int x) const { return integer(1, int64_t(g) * n + j, x); }
  MOYE_HOST_DEVICE int of_bias(int g, int j) const { return integer(2, g, j); }
  MOYE_HOST_DEVICE int of_residual(int g, int i, int j) const { return integer(3, int64_t(g) * m + i, j); }

  MOYE_HOST_DEVICE bool a_is_nan(int i, int x) const {
    int const group = group_of[rows_are_ragged ? i : x];
    return group == groups || group == poisoned;
  }
  MOYE_HOST_DEVICE bool b_is_nan(int g, int x) const {
    return rows_are_ragged ? begins[g] == begins[g + 1] : group_of[x] == groups;
  }
};

MOYE_HOST_DEVICE float nan() { return detail::bit_cast<float>(0x7fffffffu); }
MOYE_HOST_DEVICE bool is_nan(float x) { return !(x == x); }

MOYE_HOST_DEVICE uint32_t bits_of(Dtype dtype, float x) {
  if (dtype == Dtype::bf16) return bfloat16_t(x).storage;
  if (dtype == Dtype::f16) return half_t(x).storage;
  if (dtype == Dtype::e4m3) return float_e4m3_t(x).storage;
  if (dtype == Dtype::e5m2) return float_e5m2_t(x).storage;
  return detail::bit_cast<uint32_t>(x);
}
MOYE_HOST_DEVICE float value_of(Dtype dtype, uint32_t bits) {
  if (dtype == Dtype::bf16) return float(bfloat16_t::bitcast(uint16_t(bits)));
  if (dtype == Dtype::f16) return float(half_t::bitcast(uint16_t(bits)));
  return detail::bit_cast<float>(bits);
}
MOYE_HOST_DEVICE uint32_t load(Dtype dtype, unsigned char const* array, int64_t at) {
  return dtype == Dtype::f32 ? reinterpret_cast<uint32_t const*>(array)[at]
                             : reinterpret_cast<uint16_t const*>(array)[at];
}
MOYE_HOST_DEVICE void store(Dtype dtype, unsigned char* array, int64_t at, float x) {
  if (dtype == Dtype::f32) {
    reinterpret_cast<uint32_t*>(array)[at] = bits_of(dtype, x);
  } else if (dtype == Dtype::e4m3 || dtype == Dtype::e5m2) {
    array[at] = static_cast<unsigned char>(bits_of(dtype, x));
  } else {
    reinterpret_cast<uint16_t*>(array)[at] = uint16_t(bits_of(dtype, x));
  }
}

// ---- What the device does besides: f(0), f(1), ..., f(count - 1), side by side

#if defined(__CUDACC__)
void check_cuda(cudaError_t error, std::string const& what) {
  if (error != cudaSuccess) testing::fail(what + ": " + cudaGetErrorString(error));
}
template <class F>
__global__ void apply(int64_t count, F const f) {
  int64_t const threads = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += threads) f(i);
}
template <class F>
void for_each(int64_t count, F const& f) {
  if (count == 0) return;
  apply<<<unsigned(std::min<int64_t>((count + 255) / 256, 1 << 16)), 256>>>(count, f);
  check_cuda(cudaGetLastError(), "a kernel of this program");
}
void wait(std::string const& what) { check_cuda(cudaDeviceSynchronize(), what); }
#else
template <class F>
void for_each(int64_t count, F const& f) {
  for (int64_t i = 0; i < count; ++i) f(i);
}
void wait(std::string const&) {}
#endif

struct FillBytes {
  unsigned char* bytes;
  MOYE_HOST_DEVICE void operator()(int64_t at) const { bytes[at] = 0xff; }
};

struct FillA {
  Product p;
  MOYE_HOST_DEVICE void operator()(int64_t at) const {
    int const outer = int(at / p.a_pitch), inner = int(at % p.a_pitch);
    int const i = p.a_transposed ? inner : outer, x = p.a_transposed ? outer : inner;
    bool const is_gap = i >= p.m || x >= p.k;
    store(p.of_a_in_memory, p.a, at, is_gap || p.a_is_nan(i, x) ? nan() : float(p.of_a(i, x)));
  }
};

struct FillB {
  Product p;
  MOYE_HOST_DEVICE void operator()(int64_t at) const {
    int const g = int(at / p.matrix_of_b()), in_matrix = int(at % p.matrix_of_b());
    int const outer = int(in_matrix / p.b_pitch), inner = int(in_matrix % p.b_pitch);
    int const j = p.b_transposed ? outer : inner, x = p.b_transposed ? inner : outer;
    bool const is_gap = j >= p.n || x >= p.k;
    store(p.of_b_in_memory, p.b, at, is_gap || p.b_is_nan(g, x) ? nan() : float(p.of_b(g, j, x)));
  }
};

struct FillBias {
  Product p;
  MOYE_HOST_DEVICE void operator()(int64_t at) const {
    store(p.out, p.bias, at, float(p.of_bias(int(at / p.n), int(at % p.n))));
  }
};

struct FillResidual {
  Product p;
  MOYE_HOST_DEVICE void operator()(int64_t at) const {
    int const row = int(at / p.n);
    store(p.out, p.residual, at, float(p.of_residual(row / p.m, row % p.m, int(at % p.n))));
  }
};

/// What checks have found: all of it -1 at first.
struct Found {
  uint64_t wrong, outside;   // the first element of a result, and the first byte around one
  uint32_t expected, found;  // bits of that element
};

MOYE_HOST_DEVICE void note(uint64_t& first, int64_t at) {
#if defined(__CUDA_ARCH__)
  atomicMin(reinterpret_cast<unsigned long long*>(&first), static_cast<unsigned long long>(at));
#else
  first = std::min(first, uint64_t(at));
#endif
}

/// Of d, or of the pre-activation.
struct CheckResult {
  Product p;
  bool preactivation;
  Found* found;

  /// The bits that the element has to have; any NaN stands for all.
  MOYE_HOST_DEVICE uint32_t expected(int64_t at) const {
    int const matrix = int(at / p.matrix_of_d()), in_matrix = int(at % p.matrix_of_d());
    int const i = int(in_matrix / p.d_pitch), j = int(in_matrix % p.d_pitch);
    if (j >= p.n) return p.out == Dtype::f32 ? 0xffffffffu : 0xffffu;  // a gap stays as it was
    int const g = p.rows_are_ragged ? p.group_of[i] : matrix;
    int const begin = p.rows_are_ragged ? 0 : p.begins[g];
    int const end = !p.rows_are_ragged ? p.begins[g + 1] : g < p.groups ? p.k : 0;
    if (g == p.poisoned && begin < end) return bits_of(p.out, nan());
    int sum = 0;
    for (int x = begin; x < end; ++x) sum += p.of_a(i, x) * p.of_b(p.rows_are_ragged ? g : 0, j, x);
    if (p.fused) {
      if (g < p.groups) sum += p.of_bias(g, j);
      if (!preactivation) sum = (sum > 0 ? sum : 0) + p.of_residual(matrix, i, j);
    }
    return bits_of(p.out, float(sum));
  }

  MOYE_HOST_DEVICE bool is_right(uint32_t bits, uint32_t expected) const {
    return bits == expected || (is_nan(value_of(p.out, bits)) && is_nan(value_of(p.out, expected)));
  }
  MOYE_HOST_DEVICE uint32_t bits(int64_t at) const { return load(p.out, preactivation ? p.z : p.d, at); }
  MOYE_HOST_DEVICE bool is_gap(int64_t at) const { return at % p.d_pitch >= p.n; }
  MOYE_HOST_DEVICE void operator()(int64_t at) const {
    uint32_t const has = bits(at), must = expected(at);
    if (is_gap(at) ? has != must : !is_right(has, must)) note(found->wrong, at);
  }
};

struct Show {
  CheckResult check;
  MOYE_HOST_DEVICE void operator()(int64_t) const {
    auto const at = int64_t(check.found->wrong);
    check.found->expected = check.expected(at);
    check.found->found = check.bits(at);
  }
};

struct CheckBytes {
  unsigned char const* bytes;
  Found* found;
  MOYE_HOST_DEVICE void operator()(int64_t at) const {
    if (bytes[at] != 0xff) note(found->outside, at);
  }
};

}  // namespace
}  // namespace moye
