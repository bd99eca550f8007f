// Type traits, index sequences, and integral constants with arithmetic, in a form that nvcc, NVRTC and g++ compile
// fast: what the layout library needs of a standard library beside tuples (moye/core.h).
#pragma once

#include "moye/arch/config.h"

namespace moye {

// ---------------------------------------------------------------------------------------------------------------------
// Type traits

template <class T>
struct RemoveCvrefImpl {
  using Type = T;
};
template <class T>
struct RemoveCvrefImpl<T const> : RemoveCvrefImpl<T> {};
template <class T>
struct RemoveCvrefImpl<T&> : RemoveCvrefImpl<T> {};
template <class T>
struct RemoveCvrefImpl<T&&> : RemoveCvrefImpl<T> {};
template <class T>
using RemoveCvref = typename RemoveCvrefImpl<T>::Type;

template <class T, class U>
inline constexpr bool is_same = false;
template <class T>
inline constexpr bool is_same<T, T> = true;

template <class T>
inline constexpr bool is_const = false;
template <class T>
inline constexpr bool is_const<T const> = true;

template <bool kCondition, class T, class U>
struct ConditionalImpl {
  using Type = T;
};
template <class T, class U>
struct ConditionalImpl<false, T, U> {
  using Type = U;
};
template <bool kCondition, class T, class U>
using Conditional = typename ConditionalImpl<kCondition, T, U>::Type;

/// To's type with From's const.
template <class From, class To>
using CopyConst = Conditional<is_const<From>, To const, To>;

/// A value of type T in an unevaluated expression.
template <class T>
T&& declval() noexcept;

// ---------------------------------------------------------------------------------------------------------------------
// Index sequences

template <int... I>
struct Seq {};

template <class S, class T>
struct ConcatSeqImpl;
template <int... I, int... J>
struct ConcatSeqImpl<Seq<I...>, Seq<J...>> {
  using Type = Seq<I..., (static_cast<int>(sizeof...(I)) + J)...>;
};

template <int N>
struct MakeSeqImpl {
  using Type = typename ConcatSeqImpl<typename MakeSeqImpl<N / 2>::Type, typename MakeSeqImpl<N - N / 2>::Type>::Type;
};
template <>
struct MakeSeqImpl<0> {
  using Type = Seq<>;
};
template <>
struct MakeSeqImpl<1> {
  using Type = Seq<0>;
};
template <>
struct MakeSeqImpl<2> {
  using Type = Seq<0, 1>;
};
template <>
struct MakeSeqImpl<3> {
  using Type = Seq<0, 1, 2>;
};
template <>
struct MakeSeqImpl<4> {
  using Type = Seq<0, 1, 2, 3>;
};

/// Seq<0, 1, ..., N-1>
template <int N>
using MakeSeq = typename MakeSeqImpl<N>::Type;

template <int kOffset, class S>
struct ShiftSeqImpl;
template <int kOffset, int... I>
struct ShiftSeqImpl<kOffset, Seq<I...>> {
  using Type = Seq<(kOffset + I)...>;
};

/// Seq<B, B+1, ..., E-1>
template <int B, int E>
using MakeRange = typename ShiftSeqImpl<B, MakeSeq<E - B>>::Type;

// ---------------------------------------------------------------------------------------------------------------------
// Integral constants: the value is in the type, so arithmetic on them happens in the type system.

template <auto v>
struct C {
  static constexpr auto value = v;
  using value_type = decltype(v);
  MOYE_HOST_DEVICE constexpr operator value_type() const { return v; }
};

template <int v>
using Int = C<v>;

using true_type = C<true>;
using false_type = C<false>;

template <class T>
inline constexpr bool is_dynamic_integral = false;
template <>
inline constexpr bool is_dynamic_integral<bool> = true;
template <>
inline constexpr bool is_dynamic_integral<char> = true;
template <>
inline constexpr bool is_dynamic_integral<signed char> = true;
template <>
inline constexpr bool is_dynamic_integral<unsigned char> = true;
template <>
inline constexpr bool is_dynamic_integral<short> = true;
template <>
inline constexpr bool is_dynamic_integral<unsigned short> = true;
template <>
inline constexpr bool is_dynamic_integral<int> = true;
template <>
inline constexpr bool is_dynamic_integral<unsigned> = true;
template <>
inline constexpr bool is_dynamic_integral<long> = true;
template <>
inline constexpr bool is_dynamic_integral<unsigned long> = true;
template <>
inline constexpr bool is_dynamic_integral<long long> = true;
template <>
inline constexpr bool is_dynamic_integral<unsigned long long> = true;

template <class T>
inline constexpr bool is_static_integral = false;
template <auto v>
inline constexpr bool is_static_integral<C<v>> = true;

template <class T>
inline constexpr bool is_integral = is_dynamic_integral<T> || is_static_integral<T>;

/// Stands for "not known at compile time" where a static value is asked for.
inline constexpr long long kDynamic = -9223372036854775807LL - 1;

/// The value of an integral constant, kDynamic for everything else.
template <class T>
inline constexpr long long static_value = kDynamic;
template <auto v>
inline constexpr long long static_value<C<v>> = static_cast<long long>(v);

template <long long n, class T>
inline constexpr bool is_constant = static_value<T> == n && n != kDynamic;

#define MOYE_CONSTANT_OPERATOR(op)                                 \
  template <auto a, auto b>                                        \
  MOYE_HOST_DEVICE constexpr C<(a op b)> operator op(C<a>, C<b>) { \
    return {};                                                     \
  }
MOYE_CONSTANT_OPERATOR(+)
MOYE_CONSTANT_OPERATOR(-)
MOYE_CONSTANT_OPERATOR(*)
MOYE_CONSTANT_OPERATOR(/)
MOYE_CONSTANT_OPERATOR(%)
MOYE_CONSTANT_OPERATOR(==)
MOYE_CONSTANT_OPERATOR(!=)
MOYE_CONSTANT_OPERATOR(<)
MOYE_CONSTANT_OPERATOR(<=)
MOYE_CONSTANT_OPERATOR(>)
MOYE_CONSTANT_OPERATOR(>=)
MOYE_CONSTANT_OPERATOR(&&)
MOYE_CONSTANT_OPERATOR(||)
#undef MOYE_CONSTANT_OPERATOR

template <auto a>
MOYE_HOST_DEVICE constexpr C<-a> operator-(C<a>) {
  return {};
}
template <auto a>
MOYE_HOST_DEVICE constexpr C<!a> operator!(C<a>) {
  return {};
}

template <class T>
concept DynamicIntegral = is_dynamic_integral<T>;

// Constant with variable: 0 and 1 stay (or make the result) static. A broadcast mode keeps its static stride 0 this
// way, and a register's offset stays a compile-time number. All other combinations are the built-in operators.
template <auto a, DynamicIntegral T>
  requires(a == 0)
MOYE_HOST_DEVICE constexpr T operator+(C<a>, T t) {
  return t;
}
template <auto a, DynamicIntegral T>
  requires(a == 0)
MOYE_HOST_DEVICE constexpr T operator+(T t, C<a>) {
  return t;
}
template <auto a, DynamicIntegral T>
  requires(a == 0)
MOYE_HOST_DEVICE constexpr T operator-(T t, C<a>) {
  return t;
}
template <auto a, DynamicIntegral T>
  requires(a == 0 || a == 1)
MOYE_HOST_DEVICE constexpr auto operator*(C<a>, T t) {
  if constexpr (a == 0) {
    return Int<0>{};
  } else {
    return t;
  }
}
template <auto a, DynamicIntegral T>
  requires(a == 0 || a == 1)
MOYE_HOST_DEVICE constexpr auto operator*(T t, C<a> c) {
  return c * t;
}
template <auto a, DynamicIntegral T>
  requires(a == 1)
MOYE_HOST_DEVICE constexpr T operator/(T t, C<a>) {
  return t;
}
template <auto a, DynamicIntegral T>
  requires(a == 0)
MOYE_HOST_DEVICE constexpr Int<0> operator/(C<a>, T) {
  return {};
}
template <auto a, DynamicIntegral T>
  requires(a == 1)
MOYE_HOST_DEVICE constexpr Int<0> operator%(T, C<a>) {
  return {};
}
template <auto a, DynamicIntegral T>
  requires(a == 0)
MOYE_HOST_DEVICE constexpr Int<0> operator%(C<a>, T) {
  return {};
}

template <class T, class U>
MOYE_HOST_DEVICE constexpr auto max(T t, U u) {
  if constexpr (is_static_integral<T> && is_static_integral<U>) {
    return C<(T::value > U::value ? T::value : U::value)>{};
  } else {
    return t > u ? t : u;
  }
}
template <class T, class U>
MOYE_HOST_DEVICE constexpr auto min(T t, U u) {
  if constexpr (is_static_integral<T> && is_static_integral<U>) {
    return C<(T::value < U::value ? T::value : U::value)>{};
  } else {
    return t < u ? t : u;
  }
}

MOYE_HOST_DEVICE constexpr int min_value(int a, int b) { return a < b ? a : b; }
MOYE_HOST_DEVICE constexpr long long gcd_value(long long a, long long b) {
  while (b != 0) {
    long long r = a % b;
    a = b;
    b = r;
  }
  return a < 0 ? -a : a;
}

using _0 = Int<0>;
using _1 = Int<1>;
using _2 = Int<2>;
using _3 = Int<3>;
using _4 = Int<4>;
using _5 = Int<5>;
using _6 = Int<6>;
using _7 = Int<7>;
using _8 = Int<8>;
using _9 = Int<9>;
using _10 = Int<10>;
using _16 = Int<16>;
using _24 = Int<24>;
using _32 = Int<32>;
using _48 = Int<48>;
using _64 = Int<64>;
using _96 = Int<96>;
using _128 = Int<128>;
using _192 = Int<192>;
using _256 = Int<256>;
using _512 = Int<512>;
using _1024 = Int<1024>;
using _2048 = Int<2048>;
using _4096 = Int<4096>;
using _8192 = Int<8192>;

/// Keeps a mode in a slice: t(_, 3). An enumerator, because device code cannot refer to a host object of class type.
enum Underscore : unsigned char { _ };

template <class T>
inline constexpr bool is_underscore = is_same<T, Underscore>;

}  // namespace moye
