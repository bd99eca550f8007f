// IntTuple: an integer (static or dynamic) or a tuple of IntTuples. Shapes, strides and coordinates are IntTuples.
// Everything is 0-based and colexicographic: the first mode varies fastest.
#pragma once

#include "moye/core.h"

namespace moye {

// ---------------------------------------------------------------------------------------------------------------------
// Basis strides: E<I> is "one step along mode I". A layout whose strides are multiples of E<I> returns coordinates, so a
// coordinate tensor is partitioned by the same code as the data and says where each element came from.

template <class T, int I>
struct ScaledBasis : Tuple<T> {
  static constexpr int kMode = I;
  ScaledBasis() = default;
  MOYE_HOST_DEVICE constexpr explicit ScaledBasis(T const& t) : Tuple<T>(t) {}
  MOYE_HOST_DEVICE constexpr T value() const { return get<0>(static_cast<Tuple<T> const&>(*this)); }
};
template <int I>
using E = ScaledBasis<Int<1>, I>;

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
    return make_arith_tuple(tuple_cat(repeat<T::kMode>(Int<0>{}), make_tuple(t.value())));
  } else {
    return t;
  }
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

/// All leaves in one tuple of depth 1; a scalar becomes a tuple of one.
template <class T>
MOYE_HOST_DEVICE constexpr auto flatten_to_tuple(T const& t) {
  if constexpr (!is_tuple<T>) {
    return make_tuple(t);
  } else if constexpr (depth_v<T> <= 1) {
    return t;
  } else {
    auto const flat = [](auto const&... x) { return tuple_cat(flatten_to_tuple(x)...); };
    MOYE_RETURN(apply(t, flat))
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

/// The product of all leaves.
template <class T>
MOYE_HOST_DEVICE constexpr auto product(T const& t) {
  if constexpr (is_tuple<T>) {
    auto const multiply = [](auto const&... x) { return (Int<1>{} * ... * product(x)); };
    MOYE_RETURN(apply(t, multiply))
  } else {
    return t;
  }
}

/// (product(t_0), product(t_1), ...)
template <class T>
MOYE_HOST_DEVICE constexpr auto product_each(T const& t) {
  auto const multiply = [](auto const& x) { return product(x); };
  MOYE_RETURN(transform(wrap(t), multiply))
}

/// The number of coordinates of a shape; size<I...> of one of its modes.
template <int... I, class T>
  requires(is_integral<T> || is_tuple<T>)
MOYE_HOST_DEVICE constexpr auto size(T const& t) {
  if constexpr (sizeof...(I) == 0) {
    return product(t);
  } else {
    MOYE_RETURN(product(get<I...>(t)))
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
    if constexpr (!is_tuple<A>) {
      return product(a) % product(b) == Int<0>{};
    } else if constexpr (tuple_size<B> > tuple_size<A>) {
      return false_type{};
    } else {
      return apply(transform(take<0, tuple_size<B>>(a), b, [](auto const& x, auto const& y) { return evenly_divides(x, y); }),
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
      return apply(transform(a, take<0, tuple_size<A>>(b), [](auto const& x, auto const& y) { return elem_less(x, y); }),
                   [](auto const&... x) { return (true_type{} && ... && x); });
    }
  } else {
    static_assert(!is_tuple<A> && !is_tuple<B>, "elem_less: the coordinate's profile is not the shape's");
    return a < b;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Coordinates and indices

template <int I, class Coord, class Shape, class Stride>
MOYE_HOST_DEVICE constexpr auto crd2idx_split(Coord const& coord, Shape const& shape, Stride const& stride);

/// The index of a coordinate: sum of coordinate times stride. A scalar coordinate of a tuple shape is split
/// colexicographically; the last mode takes what is left, so that the function extends beyond the shape. `_` counts as 0.
template <class Coord, class Shape, class Stride>
MOYE_HOST_DEVICE constexpr auto crd2idx(Coord const& coord, Shape const& shape, Stride const& stride) {
  if constexpr (is_underscore<Coord> || is_constant<0, Coord>) {
    return Int<0>{};
  } else if constexpr (is_tuple<Coord>) {
    static_assert(is_tuple<Shape>, "crd2idx: the coordinate is a tuple, the shape is an integer");
    static_assert(tuple_size<Coord> == tuple_size<Shape>, "crd2idx: coordinate and shape differ in rank");
    MOYE_RETURN(crd2idx_tuple(coord, shape, stride, MakeSeq<tuple_size<Coord>>{}))
  } else if constexpr (is_tuple<Shape>) {
    MOYE_RETURN(crd2idx_split<0>(coord, shape, stride))
  } else {
    return coord * stride;
  }
}

template <class Coord, class Shape, class Stride, int... I>
MOYE_HOST_DEVICE constexpr auto crd2idx_tuple(Coord const& coord, Shape const& shape, Stride const& stride, Seq<I...>) {
  MOYE_RETURN((Int<0>{} + ... + crd2idx(get<I>(coord), get<I>(shape), get<I>(stride))))
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

/// Strides that make a shape compact, first mode fastest, starting from `first`. A static extent 1 gets stride 0.
template <class Shape, class First = Int<1>>
MOYE_HOST_DEVICE constexpr auto compact_col_major(Shape const& shape, First const& first = {}) {
  if constexpr (is_tuple<Shape>) {
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
    return transform(index, shape, stride, [](auto const& i, auto const& s, auto const& d) { return idx2crd(i, s, d); });
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

// ---------------------------------------------------------------------------------------------------------------------
// Slicing

/// Whether a coordinate keeps at least one mode.
template <class T>
inline constexpr bool has_underscore = is_underscore<T>;
template <class... T>
inline constexpr bool has_underscore<Tuple<T...>> = (has_underscore<T> || ...);

/// The parts of `t` at which the coordinate has `_`, as a tuple.
template <class Coord, class T>
MOYE_HOST_DEVICE constexpr auto slice_to_tuple(Coord const& coord, T const& t) {
  if constexpr (is_underscore<Coord>) {
    return make_tuple(t);
  } else if constexpr (is_tuple<Coord>) {
    if constexpr (!has_underscore<Coord>) {
      return make_tuple();
    } else {
      static_assert(is_tuple<T> && tuple_size<Coord> == tuple_size<T>, "slice: the coordinate does not match the modes");
      auto const keep = [](auto const& c, auto const& x) { return slice_to_tuple(c, x); };
      auto const join = [](auto const&... x) { return tuple_cat(x...); };
      MOYE_RETURN(apply(transform(coord, t, keep), join))
    }
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
MOYE_HOST_DEVICE constexpr auto dice_to_tuple(Coord const& coord, T const& t) {
  if constexpr (is_underscore<Coord>) {
    return make_tuple();
  } else if constexpr (is_tuple<Coord>) {
    static_assert(is_tuple<T> && tuple_size<Coord> == tuple_size<T>, "dice: the coordinate does not match the modes");
    auto const keep = [](auto const& c, auto const& x) { return dice_to_tuple(c, x); };
    auto const join = [](auto const&... x) { return tuple_cat(x...); };
    MOYE_RETURN(apply(transform(coord, t, keep), join))
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
