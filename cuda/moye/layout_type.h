// Layout: a function from coordinates to indices, given by a shape and a stride of the same nesting. The type, its
// numbers, and choosing and regrouping its modes. Kernels include moye/layout.h.
#pragma once

#include "moye/coord.h"
#include "moye/layout_plan.h"

namespace moye {

// ---------------------------------------------------------------------------------------------------------------------
// The type

/// Tag for make_layout: strides of a compact layout, first mode fastest (LayoutLeft) or last mode fastest
/// (LayoutRight).
struct LayoutLeft {
  template <class S>
  using Apply = decltype(compact_col_major(declval<S const&>()));
};
struct LayoutRight {
  template <class S>
  using Apply = decltype(compact_row_major(declval<S const&>()));
};
using GenColMajor = LayoutLeft;
using GenRowMajor = LayoutRight;

template <class Shape_, class Stride_>
struct Layout;

template <class T>
inline constexpr bool is_layout = false;
template <class Shape_, class Stride_>
inline constexpr bool is_layout<Layout<Shape_, Stride_>> = true;

/// Whether no extent is known to be less than 1.
template <class T>
inline constexpr bool is_shape = true;
template <auto v>
inline constexpr bool is_shape<C<v>> = v > 0;
template <class... T>
inline constexpr bool is_shape<Tuple<T...>> = (is_shape<T> && ...);

template <class Shape_, class Stride_ = LayoutLeft::Apply<Shape_>>
struct Layout : Tuple<Shape_, Stride_> {
  static_assert(is_shape<Shape_>, "Layout: an extent is less than 1");
  static_assert(is_congruent<Shape_, Stride_>, "Layout: shape and stride differ in nesting");
  static constexpr int kRank = rank_v<Shape_>;

  Layout() = default;
  MOYE_HOST_DEVICE constexpr Layout(Shape_ const& shape, Stride_ const& stride)
      : Tuple<Shape_, Stride_>(shape, stride) {}

  MOYE_HOST_DEVICE constexpr Shape_ shape() const {
    if constexpr (is_static<Shape_>) {
      return {};
    } else {
      return static_cast<TupleLeaf<0, Shape_> const&>(*this).value;
    }
  }
  MOYE_HOST_DEVICE constexpr Stride_ stride() const {
    if constexpr (is_static<Stride_>) {
      return {};
    } else {
      return static_cast<TupleLeaf<1, Stride_> const&>(*this).value;
    }
  }

  /// The index of a coordinate (one integer, or one coordinate per mode); a sublayout where the coordinate has `_`.
  template <class First, class... Rest>
  MOYE_HOST_DEVICE constexpr auto operator()(First const& first, Rest const&... rest) const {
    if constexpr (has_underscore<Tuple<First, Rest...>>) {
      return slice_layout(*this, first, rest...);
    } else {
      return slice_offset(*this, first, rest...);
    }
  }

  /// composition(*this, tiler)
  template <class... Tiler>
  MOYE_HOST_DEVICE constexpr auto compose(Tiler const&... tiler) const {
    if constexpr (sizeof...(Tiler) == 1) {
      MOYE_RETURN(composition(*this, tiler...))
    } else {
      MOYE_RETURN(composition(*this, make_tuple(tiler...)))
    }
  }
  /// The same function on another shape of the same size.
  template <class... S>
  MOYE_HOST_DEVICE constexpr auto with_shape(S const&... s) const {
    if constexpr (sizeof...(S) == 1) {
      MOYE_RETURN(composition(*this, make_layout(s...)))
    } else {
      MOYE_RETURN(composition(*this, make_layout(make_tuple(s...))))
    }
  }
};

template <class Shape_, class Stride_>
  requires((is_tuple<Shape_> || is_integral<Shape_>) && !is_same<Stride_, LayoutLeft> &&
           !is_same<Stride_, LayoutRight> && !is_layout<Stride_>)
MOYE_HOST_DEVICE constexpr Layout<Shape_, Stride_> make_layout(Shape_ const& shape, Stride_ const& stride) {
  if constexpr (is_static<Shape_> && is_static<Stride_>) {
    return {};
  } else {
    return {shape, stride};
  }
}
template <class Shape_>
  requires(is_tuple<Shape_> || is_integral<Shape_>)
MOYE_HOST_DEVICE constexpr auto make_layout(Shape_ const& shape, LayoutLeft = {}) {
  MOYE_RETURN(make_layout(shape, compact_col_major(shape)))
}
template <class Shape_>
  requires(is_tuple<Shape_> || is_integral<Shape_>)
MOYE_HOST_DEVICE constexpr auto make_layout(Shape_ const& shape, LayoutRight) {
  MOYE_RETURN(make_layout(shape, compact_row_major(shape)))
}
/// One layout from several: each becomes a mode.
template <class... S, class... D>
MOYE_HOST_DEVICE constexpr Layout<Tuple<S...>, Tuple<D...>> make_layout(Layout<S, D> const&... layouts) {
  if constexpr ((is_static<Layout<S, D>> && ...)) {
    return {};
  } else {
    return {Tuple<S...>(layouts.shape()...), Tuple<D...>(layouts.stride()...)};
  }
}

template <class T>
inline constexpr int cosize_v = static_cast<int>(static_value<decltype(cosize(declval<T const&>()))>);
template <class T>
inline constexpr int size_v = static_cast<int>(static_value<decltype(size(declval<T const&>()))>);

template <class S, class D>
inline constexpr int rank_v<Layout<S, D>> = rank_v<S>;
template <class S, class D>
inline constexpr int depth_v<Layout<S, D>> = depth_v<S>;
template <class S, class D>
inline constexpr int leaf_count<Layout<S, D>> = leaf_count<S>;
template <class S, class D>
inline constexpr bool is_static<Layout<S, D>> = is_static<S> && is_static<D>;

template <int... I, class S, class D>
MOYE_HOST_DEVICE constexpr auto shape(Layout<S, D> const& layout) {
  if constexpr (sizeof...(I) == 0) {
    return layout.shape();
  } else {
    return get<I...>(layout.shape());
  }
}
template <int... I, class S, class D>
MOYE_HOST_DEVICE constexpr auto stride(Layout<S, D> const& layout) {
  if constexpr (sizeof...(I) == 0) {
    return layout.stride();
  } else {
    return get<I...>(layout.stride());
  }
}
/// The number of elements, of the whole or of mode <I...>.
template <int... I, class S, class D>
MOYE_HOST_DEVICE constexpr auto size(Layout<S, D> const& layout) {
  MOYE_RETURN(product(shape<I...>(layout)))
}

/// Mode I, or for more indices the mode of that mode.
template <int... I, class S, class D>
MOYE_HOST_DEVICE constexpr auto layout(Layout<S, D> const& l) {
  if constexpr (sizeof...(I) == 0) {
    return l;
  } else {
    MOYE_RETURN(make_layout(get<I...>(l.shape()), get<I...>(l.stride())))
  }
}
/// Mode I; an integer layout is its own mode 0.
template <int I, class S, class D>
MOYE_HOST_DEVICE constexpr auto mode([[maybe_unused]] Layout<S, D> const& l) {
  if constexpr (!is_tuple<S>) {
    static_assert(I == 0, "mode: an integer layout has one mode");
    return l;
  } else if constexpr (is_static<S> && is_static<D>) {
    return Layout<TupleElement<I, S>, TupleElement<I, D>>{};
  } else {
    return make_layout(get<I>(l.shape()), get<I>(l.stride()));
  }
}

/// Mode I, or for more indices the mode of that mode.
template <int I, int... J, class S, class D>
MOYE_HOST_DEVICE constexpr auto get(Layout<S, D> const& l) {
  if constexpr (sizeof...(J) == 0) {
    return mode<I>(l);
  } else {
    return get<J...>(mode<I>(l));
  }
}

template <class T>
struct LeafNumbers {
  static constexpr void write(long long*& out) { *out++ = static_value<T>; }
};
template <class... T>
struct LeafNumbers<Tuple<T...>> {
  static constexpr void write([[maybe_unused]] long long*& out) { (LeafNumbers<T>::write(out), ...); }
};
/// The leaves of a layout's shape and stride as numbers.
template <class S, class D>
struct NumbersOf {
  static constexpr FlatLeaves<leaf_count<S>> value = [] {
    FlatLeaves<leaf_count<S>> leaves = {};
    long long* shape = leaves.shape;
    long long* stride = leaves.stride;
    LeafNumbers<S>::write(shape);
    LeafNumbers<D>::write(stride);
    return leaves;
  }();
};
/// The sum over all leaves of coordinate times stride.
template <class Coord, class Stride_>
MOYE_HOST_DEVICE constexpr auto crd2idx_leafwise(Coord const& coord, Stride_ const& stride) {
  if constexpr (is_tuple<Coord>) {
    return apply(transform(coord, stride, [](auto const& c, auto const& d) { return crd2idx_leafwise(c, d); }),
                 [](auto const&... x) { return (Int<0>{} + ... + x); });
  } else {
    return coord * stride;
  }
}
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto absolute_strides(Layout<S, D> const&, D const& stride) {
  return transform_leaf(stride, [](auto const& d) {
    if constexpr (is_static_integral<RemoveCvref<decltype(d)>>) {
      return C<(RemoveCvref<decltype(d)>::value < 0 ? -RemoveCvref<decltype(d)>::value
                                                    : RemoveCvref<decltype(d)>::value)>{};
    } else {
      return d;
    }
  });
}
template <class S, class D>
struct CosizeImpl {
  static constexpr int value = [] {
    FlatLeaves<leaf_count<S>> const leaves = NumbersOf<S, D>::value;
    long long last = 0;
    for (int i = 0; i < leaf_count<S>; ++i) {
      last += (leaves.shape[i] - 1) * (leaves.stride[i] < 0 ? -leaves.stride[i] : leaves.stride[i]);
    }
    return static_cast<int>(last + 1);
  }();
};
/// One more than the largest index. Static negative strides count by their absolute value.
template <int... I, class S, class D>
MOYE_HOST_DEVICE constexpr auto cosize(Layout<S, D> const& l) {
  if constexpr (sizeof...(I) > 0) {
    return cosize(layout<I...>(l));
  } else if constexpr (is_static_numbers<S> && is_static_numbers<D> && leaf_count<S> != 0) {
    return Int<CosizeImpl<S, D>::value>{};
  } else {
    auto const last = transform_leaf(l.shape(), [](auto const& s) { return s - Int<1>{}; });
    return crd2idx_leafwise(last, absolute_strides(l, l.stride())) + Int<1>{};
  }
}

template <class T>
MOYE_HOST_DEVICE constexpr auto plus_one(T const& t) {
  if constexpr (is_arith_tuple<T>) {
    return transform(take<0, tuple_size<T>>(t), [](auto const& x) { return plus_one(x); });
  } else {
    return t + Int<1>{};
  }
}
/// The shape of what the layout produces: one more than the largest index, for each mode of coordinates.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto coshape(Layout<S, D> const& l) {
  if constexpr (is_static_numbers<S> && is_static_numbers<D> && leaf_count<S> != 0) {
    return cosize(l);
  } else {
    auto const last = transform_leaf(l.shape(), [](auto const& s) { return s - Int<1>{}; });
    return plus_one(as_arith_tuple(crd2idx_leafwise(last, absolute_strides(l, l.stride()))));
  }
}
/// The nesting of what the layout produces, with zeros: 0 for indices.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto coprofile(Layout<S, D> const& l) {
  return repeat_like(coshape(l), Int<0>{});
}

// ---------------------------------------------------------------------------------------------------------------------
// Coordinates from indices: the inverse of a compact layout

/// The coordinate of an index, nested like the shape.
template <class S, class D, class Index>
MOYE_HOST_DEVICE constexpr auto get_hier_coord(Layout<S, D> const& l, Index const& index) {
  return idx2crd(index, l.shape(), l.stride());
}
/// The same with one number for each mode; a number alone for rank 1.
template <class S, class D, class Index>
MOYE_HOST_DEVICE constexpr auto get_flat_coord(Layout<S, D> const& l, Index const& index) {
  if constexpr (is_tuple<S>) {
    return unwrap(transform(get_hier_coord(l, index), l.shape(),
                            [](auto const& c, auto const& s) { return crd2idx(c, s, compact_col_major(s)); }));
  } else {
    return get_hier_coord(l, index);
  }
}
/// The same as one number, the colexicographic place.
template <class S, class D, class Index>
MOYE_HOST_DEVICE constexpr auto get_1d_coord(Layout<S, D> const& l, Index const& index) {
  return crd2idx(get_hier_coord(l, index), l.shape(), compact_col_major(l.shape()));
}

// ---------------------------------------------------------------------------------------------------------------------
// Choosing and regrouping modes

/// Modes [B, E).
template <int B, int E, class S, class D>
MOYE_HOST_DEVICE constexpr auto take(Layout<S, D> const& l) {
  static_assert(B < E, "take: an empty range of modes is no layout");
  MOYE_RETURN(make_layout(take<B, E>(l.shape()), take<B, E>(l.stride())))
}
/// Modes I, J, ... in that order.
template <int... I, class S, class D>
MOYE_HOST_DEVICE constexpr auto select(Layout<S, D> const& l) {
  MOYE_RETURN(make_layout(select<I...>(l.shape()), select<I...>(l.stride())))
}
/// Modes [B, E) as one mode.
template <int B, int E, class S, class D>
MOYE_HOST_DEVICE constexpr auto group(Layout<S, D> const& l) {
  MOYE_RETURN(make_layout(group<B, E>(l.shape()), group<B, E>(l.stride())))
}
template <int N, class S, class D, class S2 = Int<1>, class D2 = Int<0>>
MOYE_HOST_DEVICE constexpr auto append(Layout<S, D> const& l, Layout<S2, D2> const& x = {}) {
  MOYE_RETURN(make_layout(append<N>(l.shape(), x.shape()), append<N>(l.stride(), x.stride())))
}
template <int N, class S, class D, class S2 = Int<1>, class D2 = Int<0>>
MOYE_HOST_DEVICE constexpr auto prepend(Layout<S, D> const& l, Layout<S2, D2> const& x = {}) {
  MOYE_RETURN(make_layout(prepend<N>(l.shape(), x.shape()), prepend<N>(l.stride(), x.stride())))
}
/// Modes and leaves in opposite order.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto reverse(Layout<S, D> const& l) {
  MOYE_RETURN(make_layout(reverse(l.shape()), reverse(l.stride())))
}
/// Mode I replaced by x.
template <int I, class S, class D, class S2, class D2>
MOYE_HOST_DEVICE constexpr auto replace(Layout<S, D> const& l, Layout<S2, D2> const& x) {
  MOYE_RETURN(make_layout(replace<I>(l.shape(), x.shape()), replace<I>(l.stride(), x.stride())))
}
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto flatten(Layout<S, D> const& l) {
  MOYE_RETURN(make_layout(flatten(l.shape()), flatten(l.stride())))
}
/// A tuple of one mode as that mode.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto unwrap(Layout<S, D> const& l) {
  MOYE_RETURN(make_layout(unwrap(l.shape()), unwrap(l.stride())))
}
/// The modes at which the coordinate has `_`.
template <class Coord, class S, class D>
MOYE_HOST_DEVICE constexpr auto slice(Coord const& coord, Layout<S, D> const& l) {
  MOYE_RETURN(make_layout(slice(coord, l.shape()), slice(coord, l.stride())))
}
/// The modes at which the coordinate does not have `_`.
template <class Coord, class S, class D>
MOYE_HOST_DEVICE constexpr auto dice(Coord const& coord, Layout<S, D> const& l) {
  MOYE_RETURN(make_layout(dice(coord, l.shape()), dice(coord, l.stride())))
}
/// One coordinate as itself, several as a tuple.
template <class... C>
struct PackedCoord {
  using Type = Tuple<C...>;
};
template <class C>
struct PackedCoord<C> {
  using Type = C;
};
template <class C>
MOYE_HOST_DEVICE constexpr C const& pack_coord(C const& coord) {
  return coord;
}
template <class C0, class C1, class... C>
MOYE_HOST_DEVICE constexpr Tuple<C0, C1, C...> pack_coord(C0 const& c0, C1 const& c1, C const&... c) {
  return {c0, c1, c...};
}

/// The shape or stride that a slice keeps. A lone `_` keeps all of it.
template <class T, class... C>
struct KeptImpl {
  using Type = typename SliceImpl<Tuple<C...>, T>::Kept;
};
template <class T, class C>
struct KeptImpl<T, C> {
  using Type = typename SliceImpl<C, T>::Kept;
};
template <class T>
struct KeptImpl<T, Underscore> {
  using Type = T;
};

/// A slice of a tensor is the sublayout of the modes with `_` ...
template <class S, class D, class... C>
MOYE_HOST_DEVICE constexpr auto slice_layout([[maybe_unused]] Layout<S, D> const& l,
                                             [[maybe_unused]] C const&... coords) {
  if constexpr (is_static<S> && is_static<D>) {
    return Layout<typename KeptImpl<S, C...>::Type, typename KeptImpl<D, C...>::Type>{};
  } else {
    return slice(pack_coord(coords...), l);
  }
}
/// ... from the index of the others on.
template <class S, class D, class... C>
MOYE_HOST_DEVICE constexpr auto slice_offset([[maybe_unused]] Layout<S, D> const& l, C const&... coords) {
  if constexpr (!(is_static<S> && is_static<D>)) {
    return crd2idx(pack_coord(coords...), l.shape(), l.stride());
  } else if constexpr (sizeof...(C) == 1) {
    return (static_crd2idx<S, D>(coords), ...);
  } else {
    return StaticModes<S, D>::index(coords...);
  }
}
/// (sublayout, offset)
template <class Coord, class L>
MOYE_HOST_DEVICE constexpr auto slice_and_offset(Coord const& coord, L const& l) {
  return make_tuple(slice_layout(l, coord), slice_offset(l, coord));
}

template <class F, class S, class D, int... I>
MOYE_HOST_DEVICE constexpr auto transform_modes_impl(Layout<S, D> const& l, F const& f, Seq<I...>) {
  MOYE_RETURN(make_layout(f(mode<I>(l))...))
}
/// make_layout(f(mode 0), f(mode 1), ...)
template <class F, class S, class D>
MOYE_HOST_DEVICE constexpr auto transform_modes(Layout<S, D> const& l, F const& f) {
  MOYE_RETURN(transform_modes_impl(l, f, MakeSeq<rank_v<S>>{}))
}

}  // namespace moye
