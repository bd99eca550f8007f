// Layouts and their algebra, with CuTe's semantics and names: this file divides, multiplies, orders and recasts them.
//   layout_type.h      the type, choosing and regrouping modes
//   layout_algebra.h   coalesce, composition, complement, inverses
//   layout_plan.h      the algebra's decisions, on numbers
#pragma once

#include "moye/layout_algebra.h"

namespace moye {

// ---------------------------------------------------------------------------------------------------------------------
// Division: a layout split into a tile and the rest

template <class L, class T, class F, int... I, int... J>
MOYE_HOST_DEVICE constexpr auto apply_by_mode(L const& l, T const& tiler, F const& f, Seq<I...>, Seq<J...>) {
  MOYE_RETURN(make_layout(f(mode<I>(l), get<I>(tiler))..., mode<tuple_size<T> + J>(l)...))
}

/// stride, or 0 where there is only one element.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto stride_of_extent(S const&, D const& stride) {
  if constexpr (is_constant<1, S>) {
    return Int<0>{};
  } else {
    return stride;
  }
}
/// s:d by a tile of n elements: (n, ceil(s / n)):(d, n * d). The commonest case of logical_divide.
template <class S, class D, class N>
MOYE_HOST_DEVICE constexpr auto divide_leaf(Layout<S, D> const& l, N const& n) {
  auto const rest = ceil_div(l.shape(), n);
  return make_layout(make_tuple(n, rest),
                     make_tuple(stride_of_extent(n, l.stride()), stride_of_extent(rest, n * l.stride())));
}

/// Tiles that do not divide may reach beyond the layout, for predication; they may not leave elements out.
template <class L, class T, class Rest>
MOYE_HOST_DEVICE constexpr void check_tiles_cover() {
  if constexpr (is_static<decltype(shape(declval<L>()))> && is_static<T> && is_static<Rest>) {
    constexpr int kTiles = size_v<T> * size_v<Rest>;
    if constexpr (kTiles != size_v<L>) {
      using Numbers_ = NumbersOf<decltype(declval<T>().shape()), decltype(declval<T>().stride())>;
      static_assert(kTiles > size_v<L> && !has_holes(Numbers_::value),
                    "logical_divide: the tile has gaps that are no multiple of its parts, so tiles leave elements out");
    }
  }
}

/// (tile, rest): composition with (B, complement(B, size)). Where B's size does not divide, the rest is rounded up.
/// With a tuple: mode by mode, so each mode of the result is (tile, rest); `_` leaves a mode whole.
template <class S, class D, class T>
MOYE_HOST_DEVICE constexpr auto logical_divide(Layout<S, D> const& l, T const& tiler) {
  if constexpr (is_underscore<T>) {
    return l;
  } else if constexpr (is_layout<T>) {
    auto const rest = complement(tiler, coalesce(l).shape());
    check_tiles_cover<Layout<S, D>, T, RemoveCvref<decltype(rest)>>();
    MOYE_RETURN(composition(l, make_layout(tiler, rest)))
  } else if constexpr (is_integral<T> && is_integral<S>) {
    return divide_leaf(l, tiler);
  } else if constexpr (is_integral<T>) {
    MOYE_RETURN(logical_divide(l, make_layout(tiler)))
  } else {
    static_assert(tuple_size<T> <= rank_v<S>, "logical_divide: the tiler has more modes than the layout");
    return apply_by_mode(
        l, tiler, [](auto const& x, auto const& t) { return logical_divide(x, t); }, MakeSeq<tuple_size<T>>{},
        MakeSeq<rank_v<S> - tuple_size<T>>{});
  }
}

template <int I, class T>
MOYE_HOST_DEVICE constexpr auto unzip_element(T const& t) {
  static_assert(is_tuple<T> && tuple_size<T> == 2, "zipped_divide: a mode is not a (tile, rest) pair");
  return get<I>(t);
}
template <int K, class T, int... I, int... J>
MOYE_HOST_DEVICE constexpr auto unzip_impl(T const& t, Seq<I...>, Seq<J...>) {
  return make_tuple(make_tuple(unzip_element<0>(get<I>(t))...),
                    make_tuple(unzip_element<1>(get<I>(t))..., get<K + J>(t)...));
}
template <class T>
struct PairTypes {
  static constexpr bool kIsPair = false;
  using First = T;
  using Second = T;
};
template <class T0, class T1>
struct PairTypes<Tuple<T0, T1>> {
  static constexpr bool kIsPair = true;
  using First = T0;
  using Second = T1;
};
template <int K, class T, class I, class J>
struct UnzipImpl;
template <int K, class T, int... I, int... J>
struct UnzipImpl<K, T, Seq<I...>, Seq<J...>> {
  static_assert((PairTypes<TupleElement<I, T>>::kIsPair && ...), "zipped_divide: a mode is not a (tile, rest) pair");
  using Type = Tuple<Tuple<typename PairTypes<TupleElement<I, T>>::First...>,
                     Tuple<typename PairTypes<TupleElement<I, T>>::Second..., TupleElement<K + J, T>...>>;
};
/// A tuple whose first K elements are pairs, as ((first of each), (second of each, the others)).
template <int K, class T>
MOYE_HOST_DEVICE constexpr auto unzip(T const& t) {
  if constexpr (K == 0) {
    static_assert(tuple_size<T> == 2, "zipped_divide: the result is not a (tile, rest) pair");
    return t;
  } else if constexpr (is_static<T>) {
    return typename UnzipImpl<K, T, MakeSeq<K>, MakeSeq<tuple_size<T> - K>>::Type{};
  } else {
    return unzip_impl<K>(t, MakeSeq<K>{}, MakeSeq<tuple_size<T> - K>{});
  }
}

/// A layout of pairs, one for each leaf of the tiler, as (first of each, second of each): zip2_by with less to compile
/// for tilers that are not nested.
template <class T, class L>
MOYE_HOST_DEVICE constexpr auto unzip_by(L const& l, T const& tiler) {
  if constexpr (is_nested_tuple<T>) {
    MOYE_RETURN(make_layout(zip2_by(l.shape(), tiler), zip2_by(l.stride(), tiler)))
  } else {
    constexpr int kModes = is_tuple<T> ? tuple_size<T> : 0;
    MOYE_RETURN(make_layout(unzip<kModes>(l.shape()), unzip<kModes>(l.stride())))
  }
}

/// ((tile of mode 0, tile of mode 1, ...), (rest of mode 0, rest of mode 1, ..., modes not divided))
template <class S, class D, class T>
MOYE_HOST_DEVICE constexpr auto zipped_divide(Layout<S, D> const& l, T const& tiler) {
  MOYE_RETURN(unzip_by(logical_divide(l, tiler), tiler))
}

template <class L, int... I>
MOYE_HOST_DEVICE constexpr auto unpack_second(L const& l, Seq<I...>) {
  MOYE_RETURN(make_layout(mode<0>(l), mode<I>(mode<1>(l))...))
}
template <class L, int... I, int... J>
MOYE_HOST_DEVICE constexpr auto unpack_both(L const& l, Seq<I...>, Seq<J...>) {
  MOYE_RETURN(make_layout(mode<I>(mode<0>(l))..., mode<J>(mode<1>(l))...))
}
/// ((tiles...), rest 0, rest 1, ...)
template <class S, class D, class T>
MOYE_HOST_DEVICE constexpr auto tiled_divide(Layout<S, D> const& l, T const& tiler) {
  auto const zipped = zipped_divide(l, tiler);
  MOYE_RETURN(unpack_second(zipped, MakeSeq<rank_v<RemoveCvref<decltype(mode<1>(zipped))>>>{}))
}
/// (tile 0, tile 1, ..., rest 0, rest 1, ...)
template <class S, class D, class T>
MOYE_HOST_DEVICE constexpr auto flat_divide(Layout<S, D> const& l, T const& tiler) {
  auto const zipped = zipped_divide(l, tiler);
  MOYE_RETURN(unpack_both(zipped, MakeSeq<rank_v<RemoveCvref<decltype(mode<0>(zipped))>>>{},
                          MakeSeq<rank_v<RemoveCvref<decltype(mode<1>(zipped))>>>{}))
}

/// tiled_divide by the tile of all arguments.
template <class S, class D, class... T>
MOYE_HOST_DEVICE constexpr auto tile(Layout<S, D> const& l, T const&... tiler) {
  return tiled_divide(l, make_tile(tiler...));
}

// ---------------------------------------------------------------------------------------------------------------------
// Product: a layout repeated as another layout says

/// (A, copies of A in the order of B). With a tuple: mode by mode.
template <class S, class D, class T>
MOYE_HOST_DEVICE constexpr auto logical_product(Layout<S, D> const& block, T const& tiler) {
  if constexpr (is_underscore<T>) {
    return block;
  } else if constexpr (is_layout<T>) {
    MOYE_RETURN(make_layout(block, composition(complement(block, size(block) * cosize(tiler)), tiler)))
  } else if constexpr (is_integral<T>) {
    MOYE_RETURN(logical_product(block, make_layout(tiler)))
  } else {
    static_assert(tuple_size<T> <= rank_v<S>, "logical_product: the tiler has more modes than the layout");
    return apply_by_mode(
        block, tiler, [](auto const& x, auto const& t) { return logical_product(x, t); }, MakeSeq<tuple_size<T>>{},
        MakeSeq<rank_v<S> - tuple_size<T>>{});
  }
}
template <class S, class D, class T>
MOYE_HOST_DEVICE constexpr auto zipped_product(Layout<S, D> const& block, T const& tiler) {
  MOYE_RETURN(unzip_by(logical_product(block, tiler), tiler))
}
template <class S, class D, class T>
MOYE_HOST_DEVICE constexpr auto tiled_product(Layout<S, D> const& block, T const& tiler) {
  auto const zipped = zipped_product(block, tiler);
  MOYE_RETURN(unpack_second(zipped, MakeSeq<rank_v<RemoveCvref<decltype(mode<1>(zipped))>>>{}))
}
template <class S, class D, class T>
MOYE_HOST_DEVICE constexpr auto flat_product(Layout<S, D> const& block, T const& tiler) {
  auto const zipped = zipped_product(block, tiler);
  MOYE_RETURN(unpack_both(zipped, MakeSeq<rank_v<RemoveCvref<decltype(mode<0>(zipped))>>>{},
                          MakeSeq<rank_v<RemoveCvref<decltype(mode<1>(zipped))>>>{}))
}

template <class A, class B, int... I>
MOYE_HOST_DEVICE constexpr auto zip_modes(A const& a, B const& b, Seq<I...>) {
  MOYE_RETURN(make_layout(make_layout(mode<I>(a), mode<I>(b))...))
}
template <int N, class A, class B>
MOYE_HOST_DEVICE constexpr auto ranked_product(A const& block, B const& tiler) {
  auto const one = make_layout(Int<1>{}, Int<0>{});
  MOYE_RETURN(logical_product(append<N>(block, one), append<N>(tiler, one)))
}
/// The block, repeated next to itself: mode i is (block_i, tiler_i).
template <class S, class D, class S2, class D2>
MOYE_HOST_DEVICE constexpr auto blocked_product(Layout<S, D> const& block, Layout<S2, D2> const& tiler) {
  static_assert(rank_v<S> + rank_v<S2> > 2 || !is_tuple<S> || is_tuple<S2>,
                "blocked_product: the block is a tuple of one mode, the tiler an integer layout");
  constexpr int kRank = rank_v<S> > rank_v<S2> ? rank_v<S> : rank_v<S2>;
  auto const result = ranked_product<kRank>(block, tiler);
  MOYE_RETURN(zip_modes(mode<0>(result), mode<1>(result), MakeSeq<kRank>{}))
}
/// The block, interleaved with its copies: mode i is (tiler_i, block_i).
template <class S, class D, class S2, class D2>
MOYE_HOST_DEVICE constexpr auto raked_product(Layout<S, D> const& block, Layout<S2, D2> const& tiler) {
  static_assert(rank_v<S> + rank_v<S2> > 2 || !is_tuple<S2> || is_tuple<S>,
                "raked_product: the tiler is a tuple of one mode, the block an integer layout");
  constexpr int kRank = rank_v<S> > rank_v<S2> ? rank_v<S> : rank_v<S2>;
  auto const result = ranked_product<kRank>(block, tiler);
  MOYE_RETURN(zip_modes(mode<1>(result), mode<0>(result), MakeSeq<kRank>{}))
}

// ---------------------------------------------------------------------------------------------------------------------
// Compact layouts in a given order

/// Which leaf comes at which place: rank by the numbers in `order`, static ones first and ascending.
template <class Shapes, class Keys>
struct OrderOf {
  static constexpr auto value = stride_order(FlatLeavesOf<Shapes, Keys>::value);
};
template <class Plan, int kLeaf, class Shapes, int... P>
MOYE_HOST_DEVICE constexpr auto ordered_stride(Shapes const& shapes, Seq<P...>) {
  if constexpr (is_constant<1, TupleElement<kLeaf, Shapes>>) {
    return Int<0>{};
  } else {
    constexpr int kPlace = [] {
      for (int p = 0; p < tuple_size<Shapes>; ++p) {
        if (Plan::value.index[p] == kLeaf) return p;
      }
      return 0;
    }();
    return (Int<1>{} * ... * ordered_extent<(P < kPlace), Plan::value.index[P]>(shapes));
  }
}
template <bool kCounts, int kLeaf, class Shapes>
MOYE_HOST_DEVICE constexpr auto ordered_extent(Shapes const& shapes) {
  if constexpr (kCounts) {
    return get<kLeaf>(shapes);
  } else {
    return Int<1>{};
  }
}
template <class Plan, class Shapes, int... L>
MOYE_HOST_DEVICE constexpr auto ordered_strides(Shapes const& shapes, Seq<L...> leaves) {
  return make_tuple(ordered_stride<Plan, L>(shapes, leaves)...);
}

/// t with each leaf repeated over the nesting of profile.
template <class T, class Profile>
MOYE_HOST_DEVICE constexpr auto spread(T const& t, Profile const& profile) {
  if constexpr (is_tuple<T>) {
    return transform(t, profile, [](auto const& x, auto const& p) { return spread(x, p); });
  } else {
    return transform_leaf(profile, [&](auto const&) { return t; });
  }
}

/// A compact layout whose strides grow as the numbers in `order` do. A number of `order` may stand for a whole mode.
template <class Shape_, class Order_>
MOYE_HOST_DEVICE constexpr auto make_ordered_layout(Shape_ const& shape, Order_ const& order) {
  auto const shapes = flatten_to_tuple(shape);
  auto const keys = flatten_to_tuple(spread(order, shape));
  using Plan = OrderOf<RemoveCvref<decltype(shapes)>, RemoveCvref<decltype(keys)>>;
  auto const strides = ordered_strides<Plan>(shapes, MakeSeq<leaf_count<Shape_>>{});
  MOYE_RETURN(make_layout(shape, unflatten(strides, shape)))
}
/// Its strides.
template <class Shape_, class Order_>
MOYE_HOST_DEVICE constexpr auto compact_order(Shape_ const& shape, Order_ const& order) {
  MOYE_RETURN(make_ordered_layout(shape, order).stride())
}
/// The compact layout with the shape, the order of strides and the zero strides of another one.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto make_layout_like(Layout<S, D> const& l) {
  auto const compact = make_ordered_layout(filter_zeros(l).shape(), l.stride());
  return make_layout(l.shape(), transform_leaf(compact.stride(), l.stride(), [](auto const& d, auto const& original) {
                       if constexpr (is_constant<0, RemoveCvref<decltype(original)>>) {
                         return Int<0>{};
                       } else {
                         return d;
                       }
                     }));
}

/// A register fragment's layout: mode 0 (the values of one instruction) contiguous, first leaf fastest, its zero
/// strides kept; the other modes behind it, in the order of the original's strides.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto make_fragment_like(Layout<S, D> const& l) {
  if constexpr (rank_v<S> <= 1) {
    MOYE_RETURN(make_layout(l.shape()))
  } else {
    auto const values = filter_zeros(mode<0>(l)).shape();
    auto const value_layout = make_layout(get<0>(l.shape()), compact_col_major(values));
    auto const rest = take<1, rank_v<S>>(l);
    auto const ordered = make_ordered_layout(rest.shape(), rest.stride());
    auto const scaled = transform_leaf(ordered.stride(), [&](auto const& d) { return d * product(values); });
    MOYE_RETURN(make_layout(l.shape(), tuple_cat(make_tuple(value_layout.stride()), scaled)))
  }
}
template <class Shape_>
  requires(is_tuple<Shape_> || is_integral<Shape_>)
MOYE_HOST_DEVICE constexpr auto make_fragment_like(Shape_ const& shape) {
  MOYE_RETURN(make_layout(shape))
}

template <int... I>
MOYE_HOST_DEVICE constexpr auto index_tuple(Seq<I...>) {
  return make_tuple(Int<I>{}...);
}
/// The block repeated until it fills a shape; copies are laid out in the order of `order` (first mode fastest).
template <class S, class D, class Target, class Order_>
MOYE_HOST_DEVICE constexpr auto tile_to_shape(Layout<S, D> const& block, Target const& target, Order_ const& order) {
  constexpr int kRank = rank_v<Target>;
  static_assert(rank_v<S> <= kRank, "tile_to_shape: the block has more modes than the target shape");
  auto const padded = append<kRank>(block, make_layout(Int<1>{}, Int<0>{}));
  auto const extents = product_each(target);
  auto const counts = transform(extents, product_each(padded.shape()), [](auto const& t, auto const& b) {
    if constexpr (is_static_integral<RemoveCvref<decltype(t)>>) {
      static_assert(RemoveCvref<decltype(t)>::value % RemoveCvref<decltype(b)>::value == 0,
                    "tile_to_shape: the block does not divide the target shape");
    }
    return t / b;
  });
  MOYE_RETURN(blocked_product(padded, make_ordered_layout(counts, order)))
}
template <class S, class D, class Target>
MOYE_HOST_DEVICE constexpr auto tile_to_shape(Layout<S, D> const& block, Target const& target) {
  MOYE_RETURN(tile_to_shape(block, target, index_tuple(MakeSeq<rank_v<Target>>{})))
}
// ---------------------------------------------------------------------------------------------------------------------
// Element size

/// What becomes of a leaf S:D in units of N elements.
template <int N, class S, class D>
struct UpcastImpl {  // static stride
  static constexpr long long kStride = static_value<D>;
  static constexpr long long kAbs = kStride < 0 ? -kStride : kStride;
  static_assert(kAbs % N == 0 || N % (kAbs == 0 ? 1 : kAbs) == 0,
                "upcast: a stride and the vector width do not divide each other");
  static constexpr int kNew = static_cast<int>((kAbs + N - 1) / N);
  using Fewer = Int<kAbs == 0 ? 1 : static_cast<int>((N + kAbs - 1) / kAbs)>;
  static MOYE_HOST_DEVICE constexpr auto shape(S const& s) { return ceil_div(s, Fewer{}); }
  static MOYE_HOST_DEVICE constexpr Int<(kStride < 0 ? -kNew : kNew)> stride(D const&) { return {}; }
};
template <int N, class S, class D>
  requires(!is_static_integral<D>)
struct UpcastImpl<N, S, D> {
  static MOYE_HOST_DEVICE constexpr S shape(S const& s) { return s; }
  static MOYE_HOST_DEVICE constexpr auto stride(D const& d) { return d / Int<N>{}; }
};
template <int N, class... S, class... D>
struct UpcastImpl<N, Tuple<S...>, Tuple<D...>> {
  static MOYE_HOST_DEVICE constexpr auto shape(Tuple<S...> const& s) { return shape(s, MakeSeq<sizeof...(S)>{}); }
  static MOYE_HOST_DEVICE constexpr auto stride(Tuple<D...> const& d) { return stride(d, MakeSeq<sizeof...(S)>{}); }

 private:
  template <int... I>
  static MOYE_HOST_DEVICE constexpr auto shape([[maybe_unused]] Tuple<S...> const& s, Seq<I...>) {
    return make_tuple(UpcastImpl<N, S, D>::shape(get<I>(s))...);
  }
  template <int... I>
  static MOYE_HOST_DEVICE constexpr auto stride([[maybe_unused]] Tuple<D...> const& d, Seq<I...>) {
    return make_tuple(UpcastImpl<N, S, D>::stride(get<I>(d))...);
  }
};
/// The layout in units of N elements: strides divided by N, extents of contiguous modes too.
template <int N, class S, class D>
MOYE_HOST_DEVICE constexpr auto upcast(Layout<S, D> const& l) {
  if constexpr (N == 1) {
    return l;
  } else {
    MOYE_RETURN(make_layout(UpcastImpl<N, S, D>::shape(l.shape()), UpcastImpl<N, S, D>::stride(l.stride())))
  }
}
/// The leaf along which the parts of an element lie: the one of stride 1, if need be one of extent 1. -1: there is
/// none; -2: there are two.
template <class S, class D>
inline constexpr int unit_leaf = [] {
  FlatLeaves<leaf_count<S>> const leaves = NumbersOf<S, D>::value;
  int found = -1;
  bool is_long = false;
  for (int i = 0; i < leaf_count<S>; ++i) {
    if (leaves.stride[i] != 1 || (leaves.shape[i] == 1 && found >= 0)) continue;
    if (leaves.shape[i] != 1 && is_long) return -2;
    is_long = leaves.shape[i] != 1;
    found = i;
  }
  return found;
}();
template <int N, bool kUnit, class S>
MOYE_HOST_DEVICE constexpr auto downcast_shape(S const& s) {
  if constexpr (kUnit) {
    return s * Int<N>{};
  } else {
    return s;
  }
}
template <int N, bool kUnit, class D>
MOYE_HOST_DEVICE constexpr auto downcast_stride(D const& d) {
  if constexpr (kUnit) {
    return d;
  } else {
    return d * Int<N>{};
  }
}
template <int N, int kUnit, class Shapes, class Strides, int... I>
MOYE_HOST_DEVICE constexpr auto downcast_leaves(Shapes const& shapes, Strides const& strides, Seq<I...>) {
  return make_layout(make_tuple(downcast_shape<N, I == kUnit>(get<I>(shapes))...),
                     make_tuple(downcast_stride<N, I == kUnit>(get<I>(strides))...));
}

/// The layout in units of 1/N element: the contiguous mode gets N times as long, the other strides N times as large.
template <int N, class S, class D>
MOYE_HOST_DEVICE constexpr auto downcast(Layout<S, D> const& l) {
  if constexpr (N == 1) {
    return l;
  } else {
    static_assert(unit_leaf<S, D> != -1, "downcast: no mode is contiguous");
    static_assert(unit_leaf<S, D> != -2,
                  "downcast: two modes have stride 1, and the parts of an element lie along one");
    auto const leaves = downcast_leaves<N, unit_leaf<S, D>>(flatten_to_tuple(l.shape()), flatten_to_tuple(l.stride()),
                                                            MakeSeq<leaf_count<S>>{});
    MOYE_RETURN(make_layout(unflatten(leaves.shape(), l.shape()), unflatten(leaves.stride(), l.shape())))
  }
}
/// The layout of the same memory seen as elements of kNewBits instead of kOldBits bits.
template <int kOldBits, int kNewBits, class L>
MOYE_HOST_DEVICE constexpr auto recast_layout(L const& l) {
  if constexpr (kNewBits % kOldBits == 0) {
    return upcast<kNewBits / kOldBits>(l);
  } else if constexpr (kOldBits % kNewBits == 0) {
    return downcast<kOldBits / kNewBits>(l);
  } else {
    constexpr int kGcd = static_cast<int>(gcd_value(kOldBits, kNewBits));
    return downcast<kOldBits / kGcd>(upcast<kNewBits / kGcd>(l));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Vector width

/// The length of the first mode, if its stride is 1 and it is known; otherwise 1.
template <class L>
inline constexpr int first_vector = 1;
template <auto s, class... S, class... D>
inline constexpr int first_vector<Layout<Tuple<C<s>, S...>, Tuple<Int<1>, D...>>> = s;
template <auto s>
inline constexpr int first_vector<Layout<C<s>, Int<1>>> = s;

constexpr int smallest_factor(int n) {
  for (int p = 2; p * p <= n; ++p) {
    if (n % p == 0) return p;
  }
  return n;
}
/// The largest n found with A(inverse(i)) == i for i < n, from kTry down over its divisors.
template <class A, class Inverse, int kTry>
struct CommonVector {
  static constexpr int value = [] {
    if constexpr (kTry <= 1) {
      return 1;
    } else if constexpr (composition_error<Inverse, Int<kTry>> != LayoutError::kNone) {
      return CommonVector<A, Inverse, kTry / smallest_factor(kTry)>::value;
    } else {
      using Part = decltype(composition(Inverse{}, Int<kTry>{}));
      if constexpr (composition_error<A, Part> != LayoutError::kNone) {
        return CommonVector<A, Inverse, kTry / smallest_factor(kTry)>::value;
      } else {
        return first_vector<decltype(coalesce(composition(declval<A const&>(), Part{})))>;
      }
    }
  }();
};

/// A layout R with A(R(i)) == B(R(i)) == i: what the two have in common as one contiguous vector, of kMost elements at
/// most.
template <int kMost = 1 << 30, class A, class B>
  requires(is_layout<A> && is_layout<B>)
MOYE_HOST_DEVICE constexpr auto max_common_layout([[maybe_unused]] A const& a, B const& b) {
  using Inverse = decltype(right_inverse(b));
  if constexpr (!is_static<Inverse>) {
    return make_layout(Int<1>{}, Int<0>{});
  } else {
    // As far as A is known to reach.
    constexpr int kInverse = min_value(kMost, size_v<Inverse>);
    constexpr int kTry = is_static<decltype(size(a))> ? min_value(size_v<A>, kInverse) : kInverse;
    constexpr int kCommon = CommonVector<A, Inverse, kTry>::value;
    if constexpr (kCommon == 1) {
      return make_layout(Int<1>{}, Int<0>{});
    } else {
      return composition(Inverse{}, Int<kCommon>{});
    }
  }
}
/// The number of elements that are contiguous and in the same order in both.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto max_common_vector(A const& a, B const& b) {
  return size(max_common_layout(a, b));
}

template <class Layout_>
struct MaxAlignment {
  using Part = decltype(coalesce(declval<Layout_ const&>()));
  static constexpr long long value =
      plan_alignment(NumbersOf<decltype(declval<Part>().shape()), decltype(declval<Part>().stride())>::value);
};
/// The largest n such that the layout's indices are whole vectors of n elements, each from a multiple of n on: as far
/// as static numbers prove it. It bounds the width of an access.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto max_alignment(Layout<S, D> const&) {
  return Int<static_cast<int>(MaxAlignment<Layout<S, D>>::value)>{};
}

// ---------------------------------------------------------------------------------------------------------------------
// Coordinate layouts

template <class Shape_, int... Path>
MOYE_HOST_DEVICE constexpr auto identity_strides(Shape_ const& shape, Seq<Path...>) {
  if constexpr (is_tuple<Shape_>) {
    return identity_modes(shape, Seq<Path...>{}, MakeSeq<tuple_size<Shape_>>{});
  } else {
    return E<Path...>{};
  }
}
template <class Shape_, int... Path, int... I>
MOYE_HOST_DEVICE constexpr auto identity_modes(Shape_ const& shape, Seq<Path...>, Seq<I...>) {
  return make_tuple(identity_strides(get<I>(shape), Seq<Path..., I>{})...);
}
/// The layout that returns its coordinate, nested like the shape: make_identity_layout((M,N))(m,n) == (m,n).
template <class Shape_>
MOYE_HOST_DEVICE constexpr auto make_identity_layout(Shape_ const& shape) {
  if constexpr (is_tuple<Shape_>) {
    MOYE_RETURN(make_layout(shape, identity_strides(shape, Seq<>{})))
  } else {
    MOYE_RETURN(make_layout(shape, E<0>{}))
  }
}

}  // namespace moye
