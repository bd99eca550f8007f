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

// The same for device code, which may not call them.
template <Order kOrder>
inline constexpr Major kMajorOfA = major_a(kOrder);
template <Order kOrder>
inline constexpr Major kMajorOfB = major_b(kOrder);

/// Whether vectors along a mode of `size` and `stride` are what the operand offers, beside its other mode: a stride of
/// one says so; where both are one (a column of a matrix with one column), the mode that has elements to load.
constexpr bool contiguous_along(int64_t size, int64_t stride, int64_t other_size, int64_t other_stride) {
  return stride == 1 && (size != 1 || other_stride != 1 || other_size == 1);
}

/// The order of `args`, from its strides alone: a mode of size 1 counts as contiguous only with a stride of 1, so that
/// whoever sets the strides decides. (A vector of k elements in b, n = 1, is loaded along k, not one by one along n.)
/// Where no mode is contiguous (only kernels with `any_stride` take that), the answer is N.
constexpr Order order_of(GemmArgs const& args) {
  bool const a_is_n = contiguous_along(args.k, args.a_k_stride, args.m, args.a_m_stride) ||
                      !contiguous_along(args.m, args.a_m_stride, args.k, args.a_k_stride);
  bool const b_is_n = contiguous_along(args.n, args.b_n_stride, args.k, args.b_k_stride) ||
                      !contiguous_along(args.k, args.b_k_stride, args.n, args.b_n_stride);
  return a_is_n ? (b_is_n ? Order::NN : Order::NT) : (b_is_n ? Order::TN : Order::TT);
}

/// The bits of KernelFacts::orders.
template <class... Orders>
constexpr unsigned order_bits(Orders... orders) {
  return ((1u << unsigned(orders)) | ...);
}
inline constexpr unsigned kAllOrders = order_bits(Order::NN, Order::NT, Order::TN, Order::TT);

/// Calls f(order) with `order` as a compile-time constant: decltype(order)::value.
template <Order kOrder>
struct OrderConstant {
  static constexpr Order value = kOrder;
};

template <class F>
auto dispatch(Order order, F const& f) {
  switch (order) {
    case Order::NN:
      return f(OrderConstant<Order::NN>{});
    case Order::NT:
      return f(OrderConstant<Order::NT>{});
    case Order::TN:
      return f(OrderConstant<Order::TN>{});
    default:
      return f(OrderConstant<Order::TT>{});
  }
}

/// The same for a kernel that is compiled for kOrders, bits as above: all of them, all but TT, NN and TN, NN and NT,
/// or NN or NT alone.
template <unsigned kOrders, class F>
auto dispatch(Order order, F const& f) {
  if constexpr (kOrders == kAllOrders) {
    return dispatch(order, f);
  } else if constexpr (kOrders == order_bits(Order::NN, Order::NT, Order::TN)) {
    if (order == Order::NN) return f(OrderConstant<Order::NN>{});
    if (order == Order::NT) return f(OrderConstant<Order::NT>{});
    return f(OrderConstant<Order::TN>{});
  } else if constexpr (kOrders == order_bits(Order::NN, Order::TN)) {
    return order == Order::NN ? f(OrderConstant<Order::NN>{}) : f(OrderConstant<Order::TN>{});
  } else if constexpr (kOrders == order_bits(Order::NN, Order::NT)) {
    return order == Order::NN ? f(OrderConstant<Order::NN>{}) : f(OrderConstant<Order::NT>{});
  } else {
    constexpr Order kOnly = kOrders == order_bits(Order::NN) ? Order::NN : Order::NT;
    static_assert(kOrders == order_bits(kOnly), "all orders, all but TT, NN and TN, NN and NT, NN, or NT");
    return f(OrderConstant<kOnly>{});
  }
}

/// f of each order of kOrders; the first that fails ends it.
template <unsigned kOrders, class F>
Status for_each_order(F const& f) {
  for (Order const order : {Order::NN, Order::NT, Order::TN, Order::TT}) {
    if ((kOrders >> unsigned(order) & 1u) == 0) continue;
    if (Status status = dispatch<kOrders>(order, f); !status.ok()) return status;
  }
  return {};
}

}  // namespace moye
