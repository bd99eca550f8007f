// Coordinates of shapes, their indices, and slices: 0-based and colexicographic, the first mode varies fastest.
#pragma once

#include "moye/int_tuple.h"

namespace moye {

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
