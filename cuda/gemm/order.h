// The order of a call's operands: which mode of a and of b is contiguous.
#pragma once

#include "gemm/config.h"

namespace moye {

/// First letter a, second letter b, as JAX writes them, a (M,K) and b (K,N): N = row-major, T = stored transposed.
/// The kernels see b as (N,K), so that N means k contiguous in a, and n contiguous in b.
enum class Order { NN, NT, TN, TT };

enum class Major { k, mn };  // the contiguous mode of an operand as the kernels see it

constexpr Major major_a(Order order) { return order == Order::NN || order == Order::NT ? Major::k : Major::mn; }
constexpr Major major_b(Order order) { return order == Order::NN || order == Order::TN ? Major::mn : Major::k; }

/// The order of `args`. A mode of size 1 counts as contiguous: its stride is never used. Where no mode is contiguous
/// (only kernels with `any_stride` take that), the answer says which loads coalesce best.
constexpr Order order_of(GemmArgs const& args) {
  bool const a_k_contiguous = args.a_k_stride == 1 || args.k == 1;
  bool const a_m_contiguous = args.a_m_stride == 1 || args.m == 1;
  bool const b_k_contiguous = args.b_k_stride == 1 || args.k == 1;
  bool const b_n_contiguous = args.b_n_stride == 1 || args.n == 1;
  bool const a_is_n = a_k_contiguous || !a_m_contiguous;
  bool const b_is_n = b_n_contiguous || !b_k_contiguous;
  return a_is_n ? (b_is_n ? Order::NN : Order::NT) : (b_is_n ? Order::TN : Order::TT);
}

inline constexpr unsigned kAllOrders = 0b1111;  // of GemmEntry::orders

/// Calls f(order) with `order` as a compile-time constant: decltype(order)::value.
template <Order kOrder>
struct OrderConstant {
  static constexpr Order value = kOrder;
};

template <class F>
auto dispatch(Order order, F const& f) {
  switch (order) {
    case Order::NN: return f(OrderConstant<Order::NN>{});
    case Order::NT: return f(OrderConstant<Order::NT>{});
    case Order::TN: return f(OrderConstant<Order::TN>{});
    default: return f(OrderConstant<Order::TT>{});
  }
}

/// f of each order; the first that fails ends it.
template <class F>
Status for_each_order(F const& f) {
  for (Order order : {Order::NN, Order::NT, Order::TN, Order::TT}) {
    if (Status status = dispatch(order, f); !status.ok()) return status;
  }
  return {};
}

}  // namespace moye
