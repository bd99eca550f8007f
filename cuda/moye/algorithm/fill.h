// Element-by-element algorithms on fragments.
#pragma once

#include "moye/tensor.h"

namespace moye {

/// Every element = value.
template <TensorLike T, class Value>
MOYE_DEVICE void fill(T&& t, Value const& value MOYE_LOC) {
  MOYE_SITE;
  MOYE_UNROLL
  for (int i = 0; i < size(t); ++i) {
    t(i) = static_cast<typename RemoveCvref<T>::Value>(value);
  }
}

/// Every element = 0.
template <TensorLike T>
MOYE_DEVICE void clear(T&& t MOYE_LOC) {
  MOYE_SITE;
  MOYE_UNROLL
  for (int i = 0; i < size(t); ++i) {
    t(i) = static_cast<typename RemoveCvref<T>::Value>(0);
  }
}

/// dst[i] = f(src[i])
template <TensorLike Src, TensorLike Dst, class F>
MOYE_DEVICE void transform(Src const& src, Dst&& dst, F const& f MOYE_LOC) {
  MOYE_SITE;
  MOYE_UNROLL
  for (int i = 0; i < size(src); ++i) {
    dst(i) = f(src(i));
  }
}
/// dst[i] = f(a[i], b[i])
template <TensorLike A, TensorLike B, TensorLike Dst, class F>
MOYE_DEVICE void transform(A const& a, B const& b, Dst&& dst, F const& f MOYE_LOC) {
  MOYE_SITE;
  MOYE_UNROLL
  for (int i = 0; i < size(a); ++i) {
    dst(i) = f(a(i), b(i));
  }
}
/// t[i] = f(t[i])
template <TensorLike T, class F>
MOYE_DEVICE void transform(T&& t, F const& f MOYE_LOC) {
  MOYE_SITE;
  MOYE_UNROLL
  for (int i = 0; i < size(t); ++i) {
    t(i) = f(t(i));
  }
}

/// f(t[0]), f(t[1]), ...
template <TensorLike T, class F>
MOYE_DEVICE void for_each(T&& t, F const& f MOYE_LOC) {
  MOYE_SITE;
  MOYE_UNROLL
  for (int i = 0; i < size(t); ++i) {
    f(t(i));
  }
}
/// f(...f(f(init, t[0]), t[1])..., t[n - 1]); sum(t) = fold(t, 0, +)
template <TensorLike T, class Value, class F>
MOYE_DEVICE Value fold(T const& t, Value init, F const& f MOYE_LOC) {
  MOYE_SITE;
  MOYE_UNROLL
  for (int i = 0; i < size(t); ++i) {
    init = f(init, t(i));
  }
  return init;
}
template <TensorLike T>
MOYE_DEVICE auto sum(T const& t MOYE_LOC) {
  MOYE_SITE;
  using Value = typename T::Value;
  return fold(t, static_cast<Value>(0), [](Value const& a, Value const& b) { return a + b; });
}

/// y = alpha * x + beta * y. With beta == 0 y is not read, so that its NaNs do not survive.
template <class Alpha, TensorLike TX, class Beta, TensorLike TY>
MOYE_DEVICE void axpby(Alpha const& alpha, TX const& x, Beta const& beta, TY&& y MOYE_LOC) {
  MOYE_SITE;
  using Value = typename RemoveCvref<TY>::Value;
  if (beta == Beta(0)) {
    MOYE_UNROLL
    for (int i = 0; i < size(x); ++i) {
      y(i) = static_cast<Value>(alpha * x(i));
    }
  } else {
    MOYE_UNROLL
    for (int i = 0; i < size(x); ++i) {
      y(i) = static_cast<Value>(alpha * x(i) + beta * y(i));
    }
  }
}

}  // namespace moye
