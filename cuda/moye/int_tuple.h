// IntTuple: an integer (static or dynamic) or a tuple of IntTuples. Shapes, strides and coordinates are IntTuples.
// Everything is 0-based and colexicographic: the first mode varies fastest. Over 600 lines: one short function after
// the other, which a reader looks up by name.
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

// ---------------------------------------------------------------------------------------------------------------------
// Coordinates and indices

/// Whether a stride, or every stride of a tuple, is 0.
template <class Stride>
inline constexpr bool is_zero_stride = is_constant<0, Stride>;
template <class... D>
inline constexpr bool is_zero_stride<Tuple<D...>> = (is_zero_stride<D> && ...);

template <int I, class Coord, class Shape, class Stride>
MOYE_HOST_DEVICE constexpr auto crd2idx_split(Coord const& coord, Shape const& shape, Stride const& stride);

/// The index of a coordinate: sum of coordinate times stride. A scalar coordinate of a tuple shape is split
/// colexicographically; the last mode takes what is left, so that the function extends beyond the shape. `_` counts as
/// 0.
template <class Coord, class Shape, class Stride>
MOYE_HOST_DEVICE constexpr auto crd2idx(Coord const& coord, Shape const& shape, Stride const& stride) {
  if constexpr (is_underscore<Coord> || is_constant<0, Coord> || is_zero_stride<Stride>) {
    return Int<0>{};
  } else if constexpr (is_arith_tuple<Coord>) {
    return crd2idx(as_coord<tuple_size<Shape>>(coord), shape, stride);
  } else if constexpr (is_tuple<Coord>) {
    static_assert(is_tuple<Shape>, "crd2idx: the coordinate is a tuple, the shape is an integer");
    static_assert(tuple_size<Coord> == tuple_size<Shape>, "crd2idx: coordinate and shape differ in rank");
    return crd2idx_tuple(coord, shape, stride, MakeSeq<tuple_size<Coord>>{});
  } else if constexpr (is_tuple<Shape>) {
    return crd2idx_split<0>(coord, shape, stride);
  } else {
    return coord * stride;
  }
}

template <class Coord, class Shape, class Stride, int... I>
MOYE_HOST_DEVICE constexpr auto crd2idx_tuple(Coord const& coord, Shape const& shape, Stride const& stride, Seq<I...>) {
  return (Int<0>{} + ... + crd2idx(get<I>(coord), get<I>(shape), get<I>(stride)));
}

template <int I, class Coord, class Shape, class Stride>
MOYE_HOST_DEVICE constexpr auto crd2idx_split(Coord const& coord, Shape const& shape, Stride const& stride) {
  if constexpr (tuple_size<Shape> == 0) {
    return Int<0>{};
  } else if constexpr (I == tuple_size<Shape> - 1) {
    return crd2idx(coord, get<I>(shape), get<I>(stride));
  } else {
    auto const extent = product(get<I>(shape));
    return crd2idx(coord % extent, get<I>(shape), get<I>(stride)) + crd2idx_split<I + 1>(coord / extent, shape, stride);
  }
}

// The same for static shapes and strides, from their types alone: what is left at run time is arithmetic on
// coordinates.

/// The index of a scalar coordinate c in modes (S...):(D...): the sum of c / (extents before) % extent * stride.
template <class S, class D>
struct SplitIndex;
template <class... S, class... D>
struct SplitIndex<Tuple<S...>, Tuple<D...>> {
  template <class Index>
  static MOYE_HOST_DEVICE constexpr Index index(Index c) {
    Index sum = 0;
    Index const last = static_cast<Index>(sizeof...(S)) - 1;
    Index i = 0;
    // One term per leaf; divisors and factors are constants, and terms of stride 0 vanish.
    ((sum += (i == last ? c : c % Index(S::value)) * Index(D::value), c /= Index(S::value), ++i), ...);
    return sum;
  }
};

template <class Shape, class Stride, class Coord>
MOYE_HOST_DEVICE constexpr auto static_crd2idx([[maybe_unused]] Coord const& coord) {
  if constexpr (is_underscore<Coord> || is_constant<0, Coord> || is_zero_stride<Stride>) {
    return Int<0>{};
  } else if constexpr (is_arith_tuple<Coord>) {
    return static_crd2idx<Shape, Stride>(as_coord<tuple_size<Shape>>(coord));
  } else if constexpr (is_tuple<Coord>) {
    static_assert(is_tuple<Shape>, "crd2idx: the coordinate is a tuple, the shape is an integer");
    return static_crd2idx_modes<Shape, Stride>(coord, MakeSeq<tuple_size<Coord>>{});
  } else if constexpr (is_tuple<Shape>) {
    if constexpr (!is_static_numbers<Stride>) {
      return crd2idx_split<0>(coord, Shape{}, Stride{});
    } else {
      using Split = SplitIndex<typename FlattenImpl<Shape>::Type, typename FlattenImpl<Stride>::Type>;
      if constexpr (is_static_integral<Coord>) {
        return Int<Split::index(static_cast<int>(Coord::value))>{};
      } else {
        return Split::index(coord);
      }
    }
  } else {
    return coord * Stride{};
  }
}
template <class S, class D>
struct StaticModes;
template <class... S, class... D>
struct StaticModes<Tuple<S...>, Tuple<D...>> {
  template <class... C>
  static MOYE_HOST_DEVICE constexpr auto index(C const&... coord) {
    static_assert(sizeof...(C) == sizeof...(S), "crd2idx: coordinate and shape differ in rank");
    return (Int<0>{} + ... + static_crd2idx<S, D>(coord));
  }
};
template <class Shape, class Stride, class Coord, int... I>
MOYE_HOST_DEVICE constexpr auto static_crd2idx_modes(Coord const& coord, Seq<I...>) {
  return StaticModes<Shape, Stride>::index(get<I>(coord)...);
}

template <int kFirst, class T>
struct CompactImpl {
  using Type = Int<static_product<T> == 1 ? 0 : kFirst>;
};
template <int kFirst, class Done, class... T>
struct CompactTupleImpl {
  using Type = Done;
};
template <int kFirst, class... Done, class T, class... Rest>
struct CompactTupleImpl<kFirst, Tuple<Done...>, T, Rest...>
    : CompactTupleImpl<kFirst * static_product<T>, Tuple<Done..., typename CompactImpl<kFirst, T>::Type>, Rest...> {};
template <int kFirst, class... T>
struct CompactImpl<kFirst, Tuple<T...>> : CompactTupleImpl<kFirst, Tuple<>, T...> {};

/// Strides that make a shape compact, first mode fastest, starting from `first`. A static extent 1 gets stride 0.
template <class Shape, class First = Int<1>>
MOYE_HOST_DEVICE constexpr auto compact_col_major(Shape const& shape, First const& first = {}) {
  if constexpr (is_static<Shape> && is_static_integral<First>) {
    return typename CompactImpl<static_cast<int>(static_value<First>), Shape>::Type{};
  } else if constexpr (is_tuple<Shape>) {
    auto const step = [](auto const& done_and_next, auto const& x) {
      auto const next = get<1>(done_and_next);
      return make_tuple(append<tuple_size<TupleElement<0, RemoveCvref<decltype(done_and_next)>>> + 1>(
                            get<0>(done_and_next), compact_col_major(x, next)),
                        next * product(x));
    };
    MOYE_RETURN(get<0>(fold(shape, make_tuple(make_tuple(), first), step)))
  } else if constexpr (is_constant<1, Shape>) {
    return Int<0>{};
  } else {
    return first;
  }
}

template <class T, int... I>
MOYE_HOST_DEVICE constexpr auto reverse_impl(T const& t, Seq<I...>) {
  return make_tuple(get<tuple_size<T> - 1 - I>(t)...);
}
/// The leaves and modes in opposite order.
template <class T>
MOYE_HOST_DEVICE constexpr auto reverse(T const& t) {
  if constexpr (is_tuple<T>) {
    auto const turn = [](auto const& x) { return reverse(x); };
    MOYE_RETURN(transform(reverse_impl(t, MakeSeq<tuple_size<T>>{}), turn))
  } else {
    return t;
  }
}

/// Strides that make a shape compact, last mode fastest.
template <class Shape, class First = Int<1>>
MOYE_HOST_DEVICE constexpr auto compact_row_major(Shape const& shape, First const& first = {}) {
  MOYE_RETURN(reverse(compact_col_major(reverse(shape), first)))
}

/// The coordinate of an index under given strides: (index / stride) % shape at every leaf. Right for compact strides.
template <class Index, class Shape, class Stride>
MOYE_HOST_DEVICE constexpr auto idx2crd(Index const& index, Shape const& shape, Stride const& stride) {
  if constexpr (is_tuple<Index>) {
    static_assert(tuple_size<Index> == tuple_size<Shape>, "idx2crd: index and shape differ in rank");
    return transform(index, shape, stride,
                     [](auto const& i, auto const& s, auto const& d) { return idx2crd(i, s, d); });
  } else if constexpr (is_tuple<Shape>) {
    return transform(shape, stride, [&](auto const& s, auto const& d) { return idx2crd(index, s, d); });
  } else {
    if constexpr (is_constant<1, Shape>) {
      return Int<0>{};
    } else {
      return (index / stride) % shape;
    }
  }
}
/// The coordinate of a linear (colexicographic) index.
template <class Index, class Shape>
MOYE_HOST_DEVICE constexpr auto idx2crd(Index const& index, Shape const& shape) {
  if constexpr (is_tuple<Index>) {
    return transform(index, shape, [](auto const& i, auto const& s) { return idx2crd(i, s); });
  } else {
    return idx2crd(index, shape, compact_col_major(shape));
  }
}

/// The coordinate of shape `to` at the colexicographic place of `coord` in shape `from`.
template <class Coord, class From, class To>
MOYE_HOST_DEVICE constexpr auto crd2crd(Coord const& coord, From const& from, To const& to) {
  return idx2crd(crd2idx(coord, from, compact_col_major(from)), to);
}

template <class Coord, class Shape>
MOYE_HOST_DEVICE constexpr bool increment(Coord& coord, Shape const& shape);

template <class Coord, class Shape, int... I>
MOYE_HOST_DEVICE constexpr bool increment_modes(Coord& coord, Shape const& shape, Seq<I...>) {
  return (increment(static_cast<TupleLeaf<I, TupleElement<I, Coord>>&>(coord).value, get<I>(shape)) && ...);
}
/// Makes coord the next coordinate in colexicographic order. True where that is the first again.
template <class Coord, class Shape>
MOYE_HOST_DEVICE constexpr bool increment(Coord& coord, Shape const& shape) {
  if constexpr (is_tuple<Coord>) {
    static_assert(tuple_size<Coord> == tuple_size<Shape>, "increment: coordinate and shape differ in rank");
    return increment_modes(coord, shape, MakeSeq<tuple_size<Coord>>{});
  } else {
    static_assert(is_dynamic_integral<Coord>, "increment: a coordinate whose value is its type cannot change");
    if (++coord < shape) return false;
    coord = 0;
    return true;
  }
}

/// for (auto coord : coordinates(shape)): all of them in colexicographic order, nested like the shape.
template <class Shape>
struct CoordRange {
  using Coord = decltype(repeat_like(declval<Shape const&>(), 0));
  struct Iterator {
    Coord coord;
    long long position;
    Shape shape;

    MOYE_HOST_DEVICE constexpr Coord const& operator*() const { return coord; }
    MOYE_HOST_DEVICE constexpr Iterator& operator++() {
      increment(coord, shape);
      ++position;
      return *this;
    }
    MOYE_HOST_DEVICE constexpr bool operator!=(Iterator const& other) const { return position != other.position; }
  };
  Shape shape;

  MOYE_HOST_DEVICE constexpr Iterator begin() const { return {repeat_like(shape, 0), 0, shape}; }
  MOYE_HOST_DEVICE constexpr Iterator end() const {
    return {repeat_like(shape, 0), static_cast<long long>(product(shape)), shape};
  }
};
template <class Shape>
MOYE_HOST_DEVICE constexpr CoordRange<Shape> coordinates(Shape const& shape) {
  return {shape};
}

// ---------------------------------------------------------------------------------------------------------------------
// Slicing

/// Whether a coordinate keeps at least one mode.
template <class T>
inline constexpr bool has_underscore = is_underscore<T>;
template <class... T>
inline constexpr bool has_underscore<Tuple<T...>> = (has_underscore<T> || ...);

/// The types of the modes that a slice keeps, and of those that it fixes.
template <class Coord, class T>
struct SliceImpl {
  using Kept = Tuple<>;
  using Fixed = Tuple<T>;
};
template <class T>
struct SliceImpl<Underscore, T> {
  using Kept = Tuple<T>;
  using Fixed = Tuple<>;
};
template <class... C, class... T>
struct SliceImpl<Tuple<C...>, Tuple<T...>> {
  static_assert(sizeof...(C) == sizeof...(T), "slice: the coordinate does not match the modes");
  using Kept = JoinTuples<typename SliceImpl<C, T>::Kept...>;
  using Fixed = JoinTuples<typename SliceImpl<C, T>::Fixed...>;
};

/// The parts of `t` at which the coordinate has `_`, as a tuple.
template <class Coord, class T>
MOYE_HOST_DEVICE constexpr auto slice_to_tuple(Coord const& coord, [[maybe_unused]] T const& t) {
  if constexpr (is_static<T>) {
    return typename SliceImpl<Coord, T>::Kept{};
  } else if constexpr (is_underscore<Coord>) {
    return make_tuple(t);
  } else if constexpr (has_underscore<Coord>) {
    static_assert(is_tuple<T> && tuple_size<Coord> == tuple_size<T>, "slice: the coordinate does not match the modes");
    return apply(transform(coord, t, [](auto const& c, auto const& x) { return slice_to_tuple(c, x); }),
                 [](auto const&... x) { return tuple_cat(x...); });
  } else {
    return make_tuple();
  }
}
/// As slice_to_tuple; a lone `_` keeps t as it is.
template <class Coord, class T>
MOYE_HOST_DEVICE constexpr auto slice(Coord const& coord, T const& t) {
  if constexpr (is_underscore<Coord>) {
    return t;
  } else {
    return slice_to_tuple(coord, t);
  }
}

/// The parts of `t` at which the coordinate is not `_`: the opposite of slice.
template <class Coord, class T>
MOYE_HOST_DEVICE constexpr auto dice_to_tuple(Coord const& coord, [[maybe_unused]] T const& t) {
  if constexpr (is_static<T>) {
    return typename SliceImpl<Coord, T>::Fixed{};
  } else if constexpr (is_underscore<Coord>) {
    return make_tuple();
  } else if constexpr (is_tuple<Coord>) {
    static_assert(is_tuple<T> && tuple_size<Coord> == tuple_size<T>, "dice: the coordinate does not match the modes");
    return apply(transform(coord, t, [](auto const& c, auto const& x) { return dice_to_tuple(c, x); }),
                 [](auto const&... x) { return tuple_cat(x...); });
  } else {
    return make_tuple(t);
  }
}
template <class Coord, class T>
MOYE_HOST_DEVICE constexpr auto dice(Coord const& coord, T const& t) {
  if constexpr (is_tuple<Coord>) {
    return dice_to_tuple(coord, t);
  } else if constexpr (is_underscore<Coord>) {
    return make_tuple();
  } else {
    return t;
  }
}

}  // namespace moye
