// IntTuple: an integer (static or dynamic) or a tuple of IntTuples. Shapes, strides and coordinates are IntTuples.
// Everything is 0-based and colexicographic: the first mode varies fastest. This file has their nesting, arithmetic and
// comparison; moye/coord.h has coordinates and indices.
#pragma once

#include "moye/core.h"

namespace moye {

// ---------------------------------------------------------------------------------------------------------------------
// Basis strides: E<I> is "one step along mode I". A layout whose strides are multiples of E<I> returns coordinates, so
// a coordinate tensor is partitioned by the same code as the data and says where each element came from.

template <class T, int I>
struct ScaledBasis : Tuple<T> {
  static constexpr int kMode = I;
  ScaledBasis() = default;
  MOYE_HOST_DEVICE constexpr explicit ScaledBasis(T const& t) : Tuple<T>(t) {}
  MOYE_HOST_DEVICE constexpr T value() const { return get<0>(static_cast<Tuple<T> const&>(*this)); }
};
/// E<I>: one step along mode I; E<I, J>: along mode J of mode I.
template <int... I>
struct BasisImpl {
  using Type = Int<1>;
};
template <int I, int... J>
struct BasisImpl<I, J...> {
  using Type = ScaledBasis<typename BasisImpl<J...>::Type, I>;
};
template <int... I>
using E = typename BasisImpl<I...>::Type;

/// A coordinate that can be added to another one. Missing trailing elements are 0.
template <class... T>
struct ArithTuple : Tuple<T...> {
  ArithTuple() = default;
  MOYE_HOST_DEVICE constexpr ArithTuple(Tuple<T...> const& t) : Tuple<T...>(t) {}
};

template <class T>
inline constexpr bool is_scaled_basis = false;
template <class T, int I>
inline constexpr bool is_scaled_basis<ScaledBasis<T, I>> = true;
template <class T>
inline constexpr bool is_arith_tuple = false;
template <class... T>
inline constexpr bool is_arith_tuple<ArithTuple<T...>> = true;

template <class... T>
inline constexpr int tuple_size<ArithTuple<T...>> = static_cast<int>(sizeof...(T));

template <class T>
concept Coordinate = is_scaled_basis<T> || is_arith_tuple<T>;
template <class T>
concept Integral = is_integral<T>;

template <class... T>
MOYE_HOST_DEVICE constexpr ArithTuple<T...> make_arith_tuple(Tuple<T...> const& t) {
  return t;
}

template <class T>
MOYE_HOST_DEVICE constexpr auto as_arith_tuple(T const& t) {
  if constexpr (is_scaled_basis<T>) {
    return make_arith_tuple(tuple_cat(repeat<T::kMode>(Int<0>{}), make_tuple(as_arith_tuple(t.value()))));
  } else {
    return t;
  }
}

/// What a coordinate layout returned, as a coordinate of N modes.
template <int N, class... T>
MOYE_HOST_DEVICE constexpr auto as_coord(ArithTuple<T...> const& t) {
  static_assert(sizeof...(T) <= N, "crd2idx: the coordinate has more modes than the shape");
  return append<N>(take<0, static_cast<int>(sizeof...(T))>(t), Int<0>{});
}

template <Integral N, class T, int I>
MOYE_HOST_DEVICE constexpr auto operator*(N const& n, ScaledBasis<T, I> const& e) {
  if constexpr (is_constant<0, N>) {
    return Int<0>{};
  } else {
    using Product = decltype(n * e.value());
    return ScaledBasis<Product, I>(n * e.value());
  }
}
template <class T, int I, Integral N>
MOYE_HOST_DEVICE constexpr auto operator*(ScaledBasis<T, I> const& e, N const& n) {
  return n * e;
}

template <class... T, class... U, int... I>
MOYE_HOST_DEVICE constexpr auto add_impl(Tuple<T...> const& t, Tuple<U...> const& u, Seq<I...>) {
  return make_arith_tuple(make_tuple((get<I>(t) + get<I>(u))...));
}
template <Coordinate T, Coordinate U>
MOYE_HOST_DEVICE constexpr auto operator+(T const& t, U const& u) {
  auto const a = as_arith_tuple(t);
  auto const b = as_arith_tuple(u);
  constexpr int kRank = tuple_size<RemoveCvref<decltype(a)>> > tuple_size<RemoveCvref<decltype(b)>>
                            ? tuple_size<RemoveCvref<decltype(a)>>
                            : tuple_size<RemoveCvref<decltype(b)>>;
  return add_impl(append<kRank>(take<0, tuple_size<RemoveCvref<decltype(a)>>>(a), Int<0>{}),
                  append<kRank>(take<0, tuple_size<RemoveCvref<decltype(b)>>>(b), Int<0>{}), MakeSeq<kRank>{});
}
template <auto a, Coordinate T>
  requires(a == 0)
MOYE_HOST_DEVICE constexpr T operator+(C<a>, T const& t) {
  return t;
}
template <auto a, Coordinate T>
  requires(a == 0)
MOYE_HOST_DEVICE constexpr T operator+(T const& t, C<a>) {
  return t;
}

// ---------------------------------------------------------------------------------------------------------------------
// Structure

template <class T>
inline constexpr int rank_v = tuple_size<T>;

/// The number of modes; 1 for an integer.
template <class T>
MOYE_HOST_DEVICE constexpr Int<rank_v<T>> rank(T const&) {
  return {};
}

template <class T>
inline constexpr int depth_v = 0;
template <class... T>
inline constexpr int depth_v<Tuple<T...>> = [] {
  int depth = 0;
  ((depth = depth_v<T> > depth ? depth_v<T> : depth), ...);
  return depth + 1;
}();

/// 0 for an integer, one more than the deepest mode for a tuple.
template <class T>
MOYE_HOST_DEVICE constexpr Int<depth_v<T>> depth(T const&) {
  return {};
}

template <class T>
inline constexpr int leaf_count = 1;
template <class... T>
inline constexpr int leaf_count<Tuple<T...>> = (0 + ... + leaf_count<T>);

template <class T>
struct FlattenImpl {
  using Type = Tuple<T>;
};
template <class... T>
struct FlattenImpl<Tuple<T...>> {
  using Type = JoinTuples<typename FlattenImpl<T>::Type...>;
};
/// All leaves in one tuple of depth 1; a scalar becomes a tuple of one.
template <class T>
MOYE_HOST_DEVICE constexpr auto flatten_to_tuple([[maybe_unused]] T const& t) {
  if constexpr (is_static<T>) {
    return typename FlattenImpl<T>::Type{};
  } else if constexpr (!is_tuple<T>) {
    return make_tuple(t);
  } else if constexpr (depth_v<T> <= 1) {
    return t;
  } else {
    return apply(t, [](auto const&... x) { return tuple_cat(flatten_to_tuple(x)...); });
  }
}
/// As flatten_to_tuple, but a scalar stays a scalar.
template <class T>
MOYE_HOST_DEVICE constexpr auto flatten(T const& t) {
  if constexpr (is_tuple<T>) {
    return flatten_to_tuple(t);
  } else {
    return t;
  }
}

template <int kFirst, class Leaves, class Profile, int... I>
MOYE_HOST_DEVICE constexpr auto unflatten_impl(Leaves const& leaves, Profile const& profile, Seq<I...>);

/// The leaves [kFirst, ...) in the nesting of profile.
template <int kFirst = 0, class Leaves, class Profile>
MOYE_HOST_DEVICE constexpr auto unflatten(Leaves const& leaves, Profile const& profile) {
  if constexpr (!is_tuple<Profile>) {
    return get<kFirst>(leaves);
  } else if constexpr (depth_v<Profile> == 1) {
    return take<kFirst, kFirst + tuple_size<Profile>>(leaves);
  } else {
    MOYE_RETURN(unflatten_impl<kFirst>(leaves, profile, MakeSeq<tuple_size<Profile>>{}))
  }
}

template <int I, class T>
inline constexpr int leaves_before = 0;
template <int I, class... T>
inline constexpr int leaves_before<I, Tuple<T...>> = [] {
  int const counts[] = {leaf_count<T>..., 0};
  int sum = 0;
  for (int i = 0; i < I; ++i) sum += counts[i];
  return sum;
}();

template <int kFirst, class Leaves, class Profile, int... I>
MOYE_HOST_DEVICE constexpr auto unflatten_impl(Leaves const& leaves, Profile const& profile, Seq<I...>) {
  return make_tuple(unflatten<kFirst + leaves_before<I, Profile>>(leaves, get<I>(profile))...);
}

/// Same nesting.
template <class A, class B>
inline constexpr bool is_congruent = !is_tuple<A> && !is_tuple<B>;
template <class... A, class... B>
  requires(sizeof...(A) == sizeof...(B))
inline constexpr bool is_congruent<Tuple<A...>, Tuple<B...>> = (is_congruent<A, B> && ...);
template <class A, class B>
MOYE_HOST_DEVICE constexpr C<is_congruent<A, B>> congruent(A const&, B const&) {
  return {};
}

/// B's nesting refines A's: every leaf of A stands for a leaf or a tuple of B.
template <class A, class B>
inline constexpr bool is_weakly_congruent = !is_tuple<A>;
template <class... A, class... B>
  requires(sizeof...(A) == sizeof...(B))
inline constexpr bool is_weakly_congruent<Tuple<A...>, Tuple<B...>> = (is_weakly_congruent<A, B> && ...);
template <class A, class B>
MOYE_HOST_DEVICE constexpr C<is_weakly_congruent<A, B>> weakly_congruent(A const&, B const&) {
  return {};
}

// ---------------------------------------------------------------------------------------------------------------------
// Arithmetic

/// The product of all leaves of a static tuple.
template <class T>
inline constexpr int static_product = 0;
template <auto v>
inline constexpr int static_product<C<v>> = static_cast<int>(v);
template <class... T>
inline constexpr int static_product<Tuple<T...>> = (1 * ... * static_product<T>);

/// The product of all leaves.
template <class T>
MOYE_HOST_DEVICE constexpr auto product([[maybe_unused]] T const& t) {
  if constexpr (!is_tuple<T>) {
    return t;
  } else if constexpr (is_static<T>) {
    return Int<static_product<T>>{};
  } else {
    return apply(t, [](auto const&... x) { return (Int<1>{} * ... * product(x)); });
  }
}

/// (product(t_0), product(t_1), ...)
template <class T>
MOYE_HOST_DEVICE constexpr auto product_each(T const& t) {
  return transform(wrap(t), [](auto const& x) { return product(x); });
}

/// The sizes of the parts of t that stand where guide has leaves.
template <class T, class Guide>
MOYE_HOST_DEVICE constexpr auto product_like(T const& t, Guide const& guide) {
  if constexpr (is_tuple<Guide>) {
    static_assert(is_tuple<T>, "product_like: the guide's nesting is deeper");
    MOYE_RETURN(transform(t, guide, [](auto const& x, auto const& g) { return product_like(x, g); }))
  } else {
    return product(t);
  }
}
/// The sum of all leaves.
template <class T>
MOYE_HOST_DEVICE constexpr auto flatsum(T const& t) {
  if constexpr (is_tuple<T>) {
    MOYE_RETURN(apply(t, [](auto const&... x) { return (Int<0>{} + ... + flatsum(x)); }))
  } else {
    return t;
  }
}
/// The sum over all leaves of a * b.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto inner_product(A const& a, B const& b) {
  MOYE_RETURN(flatsum(transform_leaf(a, b, [](auto const& x, auto const& y) { return x * y; })))
}
/// a * b by leaf of a; a leaf of a counts for the whole part of b.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto elem_scale(A const& a, B const& b) {
  if constexpr (is_tuple<A>) {
    static_assert(is_tuple<B>, "elem_scale: the operands are nested differently");
    MOYE_RETURN(transform(a, b, [](auto const& x, auto const& y) { return elem_scale(x, y); }))
  } else {
    return a * product(b);
  }
}

/// The number of coordinates of a shape; size<I...> of one of its modes.
template <int... I, class T>
  requires(is_integral<T> || is_tuple<T>)
MOYE_HOST_DEVICE constexpr auto size(T const& t) {
  if constexpr (sizeof...(I) == 0) {
    return product(t);
  } else {
    return product(get<I...>(t));
  }
}

/// Rounded-up quotient, by mode. A tuple divided by an integer: the divisor is used up from the left.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto ceil_div(A const& a, B const& b) {
  if constexpr (is_tuple<A> && is_tuple<B>) {
    static_assert(tuple_size<A> >= tuple_size<B>, "ceil_div: the divisor has more modes than the dividend");
    return transform(a, append<tuple_size<A>>(b, Int<1>{}),
                     [](auto const& x, auto const& y) { return ceil_div(x, y); });
  } else if constexpr (is_tuple<A>) {
    auto const step = [](auto const& done_and_rest, auto const& x) {
      auto const rest = get<1>(done_and_rest);
      return make_tuple(append<tuple_size<TupleElement<0, RemoveCvref<decltype(done_and_rest)>>> + 1>(
                            get<0>(done_and_rest), ceil_div(x, rest)),
                        ceil_div(rest, product(x)));
    };
    MOYE_RETURN(get<0>(fold(a, make_tuple(make_tuple(), b), step)))
  } else if constexpr (is_tuple<B>) {
    return ceil_div(a, product(b));
  } else {
    return (a + b - Int<1>{}) / b;
  }
}

/// a / b where one divides the other: ceil(a / b). Tuples as in ceil_div.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto shape_div(A const& a, B const& b) {
  if constexpr (is_tuple<A> && is_tuple<B>) {
    static_assert(tuple_size<A> == tuple_size<B>, "shape_div: the shapes differ in rank");
    return transform(a, b, [](auto const& x, auto const& y) { return shape_div(x, y); });
  } else if constexpr (is_tuple<A>) {
    auto const step = [](auto const& done_and_rest, auto const& x) {
      auto const rest = get<1>(done_and_rest);
      return make_tuple(append<tuple_size<TupleElement<0, RemoveCvref<decltype(done_and_rest)>>> + 1>(
                            get<0>(done_and_rest), shape_div(x, rest)),
                        shape_div(rest, product(x)));
    };
    MOYE_RETURN(get<0>(fold(a, make_tuple(make_tuple(), b), step)))
  } else if constexpr (is_tuple<B>) {
    return shape_div(a, product(b));
  } else {
    if constexpr (is_static_integral<A> && is_static_integral<B>) {
      static_assert(A::value % B::value == 0 || B::value % A::value == 0,
                    "shape_div: neither number divides the other");
    }
    return ceil_div(a, b);
  }
}

/// Whether coordinates of A are coordinates of B: same sizes where A stops, B may split A's modes further.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto compatible(A const& a, B const& b) {
  if constexpr (is_tuple<A>) {
    if constexpr (is_tuple<B> && tuple_size<A> == tuple_size<B>) {
      return apply(transform(a, b, [](auto const& x, auto const& y) { return compatible(x, y); }),
                   [](auto const&... x) { return (true_type{} && ... && x); });
    } else {
      return false_type{};
    }
  } else {
    return a == product(b);
  }
}

/// Whether every mode of b is a multiple of a's: a tiles b without residue.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto evenly_divides(A const& a, B const& b) {
  if constexpr (is_tuple<B>) {
    if constexpr (tuple_size<B> > tuple_size<A>) {
      return false_type{};
    } else {
      return apply(transform(take<0, tuple_size<B>>(wrap(a)), b,
                             [](auto const& x, auto const& y) { return evenly_divides(x, y); }),
                   [](auto const&... x) { return (true_type{} && ... && x); });
    }
  } else {
    return product(a) % b == Int<0>{};
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Comparison

/// Every element of a is less than its partner in b. elem_less(coordinate, shape) says "inside": the residue predicate.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto elem_less(A const& a, B const& b) {
  if constexpr (is_arith_tuple<A>) {
    return elem_less(take<0, tuple_size<A>>(a), b);
  } else if constexpr (is_tuple<A> && is_tuple<B>) {
    if constexpr (tuple_size<A> > tuple_size<B>) {
      return false_type{};
    } else {
      return apply(
          transform(a, take<0, tuple_size<A>>(b), [](auto const& x, auto const& y) { return elem_less(x, y); }),
          [](auto const&... x) { return (true_type{} && ... && x); });
    }
  } else {
    static_assert(!is_tuple<A> && !is_tuple<B>, "elem_less: the coordinate's profile is not the shape's");
    return a < b;
  }
}

template <class A, class B>
MOYE_HOST_DEVICE constexpr auto elem_gtr(A const& a, B const& b) {
  return elem_less(b, a);
}
/// Every leaf of a is at most its partner in b.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto elem_leq(A const& a, B const& b) {
  if constexpr (is_tuple<A>) {
    return apply(transform(a, b, [](auto const& x, auto const& y) { return elem_leq(x, y); }),
                 [](auto const&... x) { return (true_type{} && ... && x); });
  } else {
    return a <= b;
  }
}
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto elem_geq(A const& a, B const& b) {
  return elem_leq(b, a);
}

/// -1, 0 or 1 as a is less than, equal to or greater than b, where the first (or last) mode that differs decides. A
/// tuple that ends first is less.
template <bool kLastFirst, int I = 0, class A, class B>
MOYE_HOST_DEVICE constexpr int order_of_tuples(A const& a, B const& b) {
  static_assert(is_tuple<A> == is_tuple<B>, "lex_less, colex_less: the operands are nested differently");
  if constexpr (!is_tuple<A>) {
    return a < b ? -1 : b < a ? 1 : 0;
  } else if constexpr (I == tuple_size<A> || I == tuple_size<B>) {
    return tuple_size<A> < tuple_size<B> ? -1 : tuple_size<A> > tuple_size<B> ? 1 : 0;
  } else {
    int const order = order_of_tuples<kLastFirst>(get<kLastFirst ? tuple_size<A> - 1 - I : I>(a),
                                                  get<kLastFirst ? tuple_size<B> - 1 - I : I>(b));
    return order != 0 ? order : order_of_tuples<kLastFirst, I + 1>(a, b);
  }
}
/// The first mode counts most.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto lex_less([[maybe_unused]] A const& a, [[maybe_unused]] B const& b) {
  if constexpr (is_static<A> && is_static<B>) {
    return C<(order_of_tuples<false>(A{}, B{}) < 0)>{};
  } else {
    return order_of_tuples<false>(a, b) < 0;
  }
}
/// The last mode counts most: the order in which layouts count their coordinates.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto colex_less([[maybe_unused]] A const& a, [[maybe_unused]] B const& b) {
  if constexpr (is_static<A> && is_static<B>) {
    return C<(order_of_tuples<true>(A{}, B{}) < 0)>{};
  } else {
    return order_of_tuples<true>(a, b) < 0;
  }
}

}  // namespace moye
