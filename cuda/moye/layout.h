// Layout: a function from coordinates to indices, given by a shape and a stride of the same nesting, and its algebra.
// CuTe's semantics and names; 0-based, first mode fastest. Static numbers stay static through every operation.
//
// Where CuTe's composition silently returns a wrong layout, ours stops the compilation with a sentence (layout_plan.h).
#pragma once

#include "moye/int_tuple.h"
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

template <class Shape_, class Stride_ = LayoutLeft::Apply<Shape_>>
struct Layout : Tuple<Shape_, Stride_> {
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

// ---------------------------------------------------------------------------------------------------------------------
// Choosing and regrouping modes

/// Modes [B, E).
template <int B, int E, class S, class D>
MOYE_HOST_DEVICE constexpr auto take(Layout<S, D> const& l) {
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

// ---------------------------------------------------------------------------------------------------------------------
// From leaves to plans and back

/// The type of a flat layout of numbers: 1:0 for none, an integer layout for one.
template <class P, class J>
struct LayoutOfNumbers;
template <class P>
struct LayoutOfNumbers<P, Seq<>> {
  using Type = Layout<Int<1>, Int<0>>;
};
template <class P>
struct LayoutOfNumbers<P, Seq<0>> {
  using Type = Layout<Int<static_cast<int>(P::value.shape[0])>, Int<static_cast<int>(P::value.stride[0])>>;
};
template <class P, int... J>
struct LayoutOfNumbers<P, Seq<J...>> {
  using Type =
      Layout<Tuple<Int<static_cast<int>(P::value.shape[J])>...>, Tuple<Int<static_cast<int>(P::value.stride[J])>...>>;
};
template <class P>
using LayoutOf = typename LayoutOfNumbers<P, MakeSeq<P::value.size>>::Type;

template <class Shapes, class Strides>
struct FlatLeavesOf;
template <class... S, class... D>
struct FlatLeavesOf<Tuple<S...>, Tuple<D...>> {
  static constexpr FlatLeaves<sizeof...(S)> value = {{static_value<S>...}, {static_value<D>...}};
};

/// The product of elements [B, E) of a flat tuple.
template <int B, int E, class T>
MOYE_HOST_DEVICE constexpr auto product_of_range(T const& t) {
  if constexpr (E - B == 1) {
    return get<B>(t);
  } else {
    MOYE_RETURN(product(take<B, E>(t)))
  }
}

/// Layout of a flat tuple of shapes and one of strides: 1:0 for none, an integer layout for one.
template <class... S, class... D>
MOYE_HOST_DEVICE constexpr auto layout_from_leaves(Tuple<S...> const& shape, Tuple<D...> const& stride) {
  if constexpr (sizeof...(S) == 0) {
    return make_layout(Int<1>{}, Int<0>{});
  } else if constexpr (sizeof...(S) == 1) {
    MOYE_RETURN(make_layout(get<0>(shape), get<0>(stride)))
  } else {
    MOYE_RETURN(make_layout(shape, stride))
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// coalesce, filter

template <class Shapes, class Strides, bool kKeepLast>
struct CoalescePlanOf {
  static constexpr auto value = plan_coalesce(FlatLeavesOf<Shapes, Strides>::value, kKeepLast);
};

template <class Plan, class Shapes, class Strides, int... J>
MOYE_HOST_DEVICE constexpr auto build_coalesced(Shapes const& shapes, Strides const& strides, Seq<J...>) {
  MOYE_RETURN(layout_from_leaves(make_tuple(product_of_range<Plan::value.begin[J], Plan::value.end[J]>(shapes)...),
                                 make_tuple(get<Plan::value.begin[J]>(strides)...)))
}

template <class S, class D, bool kKeepLast>
struct StaticCoalesced {
  static constexpr auto value = coalesced(NumbersOf<S, D>::value, kKeepLast);
};

/// The same where strides are static but not numbers: the type of the stride each leaf of the result keeps.
template <class S, class D, bool kKeepLast>
struct BasisCoalesced {
  static constexpr auto plan = plan_coalesce(NumbersOf<S, D>::value, kKeepLast);
  static constexpr auto value = coalesced(NumbersOf<S, D>::value, kKeepLast);
  using Strides = typename FlattenImpl<D>::Type;
  template <int J>
  using StrideAt = TupleElement<plan.begin[J], Strides>;
};
template <class P, class J>
struct BasisLayout;
template <class P>
struct BasisLayout<P, Seq<>> {
  using Type = Layout<Int<1>, Int<0>>;
};
template <class P>
struct BasisLayout<P, Seq<0>> {
  using Type = Layout<Int<static_cast<int>(P::value.shape[0])>, typename P::template StrideAt<0>>;
};
template <class P, int... J>
struct BasisLayout<P, Seq<J...>> {
  using Type = Layout<Tuple<Int<static_cast<int>(P::value.shape[J])>...>, Tuple<typename P::template StrideAt<J>...>>;
};

template <bool kKeepLast, class S, class D>
MOYE_HOST_DEVICE constexpr auto coalesce_impl([[maybe_unused]] Layout<S, D> const& l) {
  if constexpr (leaf_count<S> == 0) {
    return Layout<Int<1>, Int<0>>{};
  } else if constexpr (is_static_numbers<S> && is_static_numbers<D>) {
    return LayoutOf<StaticCoalesced<S, D, kKeepLast>>{};
  } else if constexpr (is_static_numbers<S> && is_static<D>) {
    using P = BasisCoalesced<S, D, kKeepLast>;
    return typename BasisLayout<P, MakeSeq<P::value.size>>::Type{};
  } else {
    auto const shapes = flatten_to_tuple(l.shape());
    auto const strides = flatten_to_tuple(l.stride());
    using Plan = CoalescePlanOf<RemoveCvref<decltype(shapes)>, RemoveCvref<decltype(strides)>, kKeepLast>;
    MOYE_RETURN(build_coalesced<Plan>(shapes, strides, MakeSeq<Plan::value.size>{}))
  }
}

/// The same function on the same size with as few leaves as possible: coalesce(L)(i) == L(i) for i < size(L).
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto coalesce(Layout<S, D> const& l) {
  return coalesce_impl<false>(l);
}
/// By mode: each leaf of the profile says "coalesce this mode"; modes beyond the profile stay.
template <class S, class D, class Profile>
MOYE_HOST_DEVICE constexpr auto coalesce(Layout<S, D> const& l, Profile const& profile);

template <int I, class L, class Profile>
MOYE_HOST_DEVICE constexpr auto coalesce_mode(L const& l, Profile const& profile) {
  if constexpr (I < tuple_size<Profile>) {
    MOYE_RETURN(coalesce(mode<I>(l), get<I>(profile)))
  } else {
    return mode<I>(l);
  }
}
template <class L, class Profile, int... I>
MOYE_HOST_DEVICE constexpr auto coalesce_by_mode(L const& l, Profile const& profile, Seq<I...>) {
  MOYE_RETURN(make_layout(coalesce_mode<I>(l, profile)...))
}
template <class S, class D, class Profile>
MOYE_HOST_DEVICE constexpr auto coalesce(Layout<S, D> const& l, Profile const& profile) {
  if constexpr (is_tuple<Profile>) {
    static_assert(tuple_size<Profile> <= rank_v<S>, "coalesce: the profile has more modes than the layout");
    MOYE_RETURN(coalesce_by_mode(l, profile, MakeSeq<rank_v<S>>{}))
  } else {
    MOYE_RETURN(coalesce(l))
  }
}
/// The same function on the same size; goes on beyond the shape exactly as the original does.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto coalesce_x(Layout<S, D> const& l) {
  return coalesce_impl<true>(l);
}

template <class S, class D>
struct FilterZerosImpl {
  using Type = Conditional<is_constant<0, D>, Int<1>, S>;
};
template <class... S, class... D>
struct FilterZerosImpl<Tuple<S...>, Tuple<D...>> {
  using Type = Tuple<typename FilterZerosImpl<S, D>::Type...>;
};
/// Modes of stride 0 get extent 1.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto filter_zeros(Layout<S, D> const& l) {
  if constexpr (is_static<S>) {
    return make_layout(typename FilterZerosImpl<S, D>::Type{}, l.stride());
  } else {
    auto const filtered = [](auto const& s, auto const& d) {
      if constexpr (is_constant<0, RemoveCvref<decltype(d)>>) {
        return Int<1>{};
      } else {
        return s;
      }
    };
    return make_layout(transform_leaf(l.shape(), l.stride(), filtered), l.stride());
  }
}
/// The layout without what repeats: no stride 0, no extent 1.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto filter([[maybe_unused]] Layout<S, D> const& l) {
  MOYE_RETURN(coalesce(filter_zeros(l)))
}

// ---------------------------------------------------------------------------------------------------------------------
// composition

template <class ShapesA, class StridesA, class ShapesB, class StridesB>
struct CompositionPlanOf {
  static constexpr auto value = plan_composition(FlatLeavesOf<ShapesA, StridesA>::value, tuple_size<ShapesA>,
                                                 FlatLeavesOf<ShapesB, StridesB>::value);
};

/// composition of static layouts: the plan, and strides as numbers.
template <class SA, class DA, class SB, class DB>
struct StaticComposition {
  static constexpr auto left = coalesced(NumbersOf<SA, DA>::value, true);
  static constexpr auto plan = plan_composition(padded(left), left.size, NumbersOf<SB, DB>::value);
  static constexpr int shape(int j) { return static_cast<int>(plan.shape[j]); }
  static constexpr int stride(int j) {
    return plan.source[j] < 0 ? 0 : static_cast<int>(plan.factor[j] * left.stride[plan.source[j]]);
  }
};
/// Where A's strides are static but not numbers, the stride types are multiplied.
template <class SA, class DA, class SB, class DB>
struct BasisComposition {
  using Left = BasisCoalesced<SA, DA, true>;
  static constexpr auto plan = plan_composition(padded(Left::value), Left::value.size, NumbersOf<SB, DB>::value);
  static constexpr int shape(int j) { return static_cast<int>(plan.shape[j]); }
  template <int J>
  static MOYE_HOST_DEVICE constexpr auto stride() {
    if constexpr (plan.source[J] < 0) {
      return Int<0>{};
    } else {
      return Int<static_cast<int>(plan.factor[J])>{} * typename Left::template StrideAt<plan.source[J]>{};
    }
  }
};
template <class P, int J>
struct ComposedStride {
  using Type = Int<P::stride(J)>;
};
template <class SA, class DA, class SB, class DB, int J>
struct ComposedStride<BasisComposition<SA, DA, SB, DB>, J> {
  using Type = decltype(BasisComposition<SA, DA, SB, DB>::template stride<J>());
};
template <class P, class J>
struct ComposedLeaf {
  using ShapeType = Tuple<>;
  using StrideType = Tuple<>;
};
template <class P, int J>
struct ComposedLeaf<P, Seq<J>> {
  using ShapeType = Int<P::shape(J)>;
  using StrideType = typename ComposedStride<P, J>::Type;
};
template <class P, int J0, int J1, int... J>
struct ComposedLeaf<P, Seq<J0, J1, J...>> {
  using ShapeType = Tuple<Int<P::shape(J0)>, Int<P::shape(J1)>, Int<P::shape(J)>...>;
  using StrideType = Tuple<typename ComposedStride<P, J0>::Type, typename ComposedStride<P, J1>::Type,
                           typename ComposedStride<P, J>::Type...>;
};
/// The composed leaves in the nesting of B, from B's leaf kFirst on.
template <class P, class Profile, int kFirst, class I = void>
struct ComposedModes : ComposedLeaf<P, MakeRange<P::plan.begin[kFirst], P::plan.begin[kFirst + 1]>> {};
template <class P, class... Mode, int kFirst>
struct ComposedModes<P, Tuple<Mode...>, kFirst, void>
    : ComposedModes<P, Tuple<Mode...>, kFirst, MakeSeq<sizeof...(Mode)>> {};
template <class P, class... Mode, int kFirst, int... I>
struct ComposedModes<P, Tuple<Mode...>, kFirst, Seq<I...>> {
  using ShapeType = Tuple<typename ComposedModes<P, Mode, kFirst + leaves_before<I, Tuple<Mode...>>>::ShapeType...>;
  using StrideType = Tuple<typename ComposedModes<P, Mode, kFirst + leaves_before<I, Tuple<Mode...>>>::StrideType...>;
};

/// Stops the compilation with the sentence that belongs to the error.
template <LayoutError kError>
MOYE_HOST_DEVICE constexpr void check_layout_error() {
  static_assert(kError != LayoutError::kStrideDivisibility,
                "composition: a stride of the right layout and an extent of the left one do not divide each other");
  static_assert(kError != LayoutError::kShapeDivisibility,
                "composition: an extent of the right layout is not a multiple of the rest of the mode it has to fill");
  static_assert(kError != LayoutError::kCarry,
                "composition: two modes of the right layout overflow one mode of the left one (their sum carries)");
  static_assert(kError != LayoutError::kNonInjective, "complement: the layout may reach an element twice");
  static_assert(kError != LayoutError::kLeftInverseDivisibility, "left_inverse: the strides do not divide each other");
  static_assert(kError != LayoutError::kDynamicNotSupported,
                "layout algebra: this operation needs a number that is not known at compile time");
}

template <class Plan, int J, int L, class StridesA, class ShapesB>
MOYE_HOST_DEVICE constexpr auto composed_shape(ShapesB const& shapes) {
  if constexpr (Plan::value.shape[J] == kDynamic) {
    return get<L>(shapes);
  } else {
    return Int<static_cast<int>(Plan::value.shape[J])>{};
  }
}
template <class Plan, int J, int L, class StridesA, class StridesB>
MOYE_HOST_DEVICE constexpr auto composed_stride(StridesA const& a, StridesB const& b) {
  if constexpr (Plan::value.source[J] < 0) {
    return Int<0>{};
  } else if constexpr (Plan::value.factor[J] == kDynamic) {
    return get<L>(b) * get<Plan::value.source[J]>(a);
  } else {
    return Int<static_cast<int>(Plan::value.factor[J])>{} * get<Plan::value.source[J]>(a);
  }
}
template <class Plan, int L, class StridesA, class ShapesB, class StridesB, int... J>
MOYE_HOST_DEVICE constexpr auto composed_leaf(StridesA const& a, ShapesB const& sb, StridesB const& db, Seq<J...>) {
  MOYE_RETURN(layout_from_leaves(make_tuple(composed_shape<Plan, J, L, StridesA>(sb)...),
                                 make_tuple(composed_stride<Plan, J, L>(a, db)...)))
}
template <class Plan, class StridesA, class ShapesB, class StridesB, int... L>
MOYE_HOST_DEVICE constexpr auto composed_leaves(StridesA const& a, ShapesB const& sb, StridesB const& db, Seq<L...>) {
  MOYE_RETURN(
      make_layout(composed_leaf<Plan, L>(a, sb, db, MakeRange<Plan::value.begin[L], Plan::value.begin[L + 1]>{})...))
}

template <class SA, class DA, class SB, class DB>
MOYE_HOST_DEVICE constexpr auto compose_static() {
  using Composition =
      Conditional<is_static_numbers<DA>, StaticComposition<SA, DA, SB, DB>, BasisComposition<SA, DA, SB, DB>>;
  check_layout_error<Composition::plan.error>();
  using Modes = ComposedModes<Composition, SB, 0>;
  return Layout<typename Modes::ShapeType, typename Modes::StrideType>{};
}

template <class SA, class DA, class SB, class DB>
MOYE_HOST_DEVICE constexpr auto compose_dynamic(Layout<SA, DA> const& a, Layout<SB, DB> const& b) {
  auto const left = coalesce_x(a);
  auto const shapes_a = wrap(left.shape());
  auto const strides_a = wrap(left.stride());
  auto const shapes_b = flatten_to_tuple(b.shape());
  auto const strides_b = flatten_to_tuple(b.stride());
  using Plan = CompositionPlanOf<RemoveCvref<decltype(shapes_a)>, RemoveCvref<decltype(strides_a)>,
                                 RemoveCvref<decltype(shapes_b)>, RemoveCvref<decltype(strides_b)>>;
  check_layout_error<Plan::value.error>();
  auto const leaves = composed_leaves<Plan>(strides_a, shapes_b, strides_b, MakeSeq<leaf_count<SB>>{});
  MOYE_RETURN(make_layout(unflatten(leaves.shape(), b.shape()), unflatten(leaves.stride(), b.shape())))
}

template <class SA, class DA, class SB, class DB>
MOYE_HOST_DEVICE constexpr auto compose_layouts([[maybe_unused]] Layout<SA, DA> const& a,
                                                [[maybe_unused]] Layout<SB, DB> const& b) {
  if constexpr (is_static_numbers<SA> && is_static<DA> && is_static_numbers<SB> && is_static_numbers<DB>) {
    return compose_static<SA, DA, SB, DB>();
  } else {
    return compose_dynamic(a, b);
  }
}

template <int I, class A, class T>
MOYE_HOST_DEVICE constexpr auto compose_mode(A const& a, T const& tiler) {
  MOYE_RETURN(composition(mode<I>(a), get<I>(tiler)))
}
template <class A, class T, int... I>
MOYE_HOST_DEVICE constexpr auto compose_by_mode(A const& a, T const& tiler, Seq<I...>) {
  MOYE_RETURN(make_layout(compose_mode<I>(a, tiler)...))
}

/// composition(A, B)(c) == A(B(c)) for every c in B's shape, which the result refines.
/// With a tuple of layouts, integers (n stands for n:1) and `_` as B: by mode; modes of A beyond the tuple are dropped.
template <class SA, class DA, class B>
MOYE_HOST_DEVICE constexpr auto composition(Layout<SA, DA> const& a, B const& b) {
  if constexpr (is_underscore<B>) {
    return a;
  } else if constexpr (is_layout<B>) {
    return compose_layouts(a, b);
  } else if constexpr (is_integral<B>) {
    return compose_layouts(a, make_layout(b));
  } else {
    static_assert(is_tuple<B>, "composition: the right operand is neither a layout nor a tiler");
    static_assert(tuple_size<B> <= rank_v<SA>, "composition: the tiler has more modes than the layout");
    MOYE_RETURN(compose_by_mode(a, b, MakeSeq<tuple_size<B>>{}))
  }
}

/// Why composition(A, B) does not exist; kNone if it does.
template <class A, class B>
inline constexpr LayoutError composition_error = LayoutError::kNone;
template <class SA, class DA, class SB, class DB>
inline constexpr LayoutError composition_error<Layout<SA, DA>, Layout<SB, DB>> = [] {
  using Left = decltype(coalesce_x(declval<Layout<SA, DA> const&>()));
  return CompositionPlanOf<decltype(wrap(declval<Left>().shape())), decltype(wrap(declval<Left>().stride())),
                           decltype(flatten_to_tuple(declval<SB const&>())),
                           decltype(flatten_to_tuple(declval<DB const&>()))>::value.error;
}();
template <class A, class T, class I>
inline constexpr LayoutError tiler_error = LayoutError::kNone;
template <class A, class... T, int... I>
inline constexpr LayoutError tiler_error<A, Tuple<T...>, Seq<I...>> = [] {
  LayoutError first = LayoutError::kNone;
  ((first = first == LayoutError::kNone ? composition_error<decltype(mode<I>(declval<A const&>())), T> : first), ...);
  return first;
}();
template <class SA, class DA, class... T>
inline constexpr LayoutError composition_error<Layout<SA, DA>, Tuple<T...>> =
    tiler_error<Layout<SA, DA>, Tuple<T...>, MakeSeq<sizeof...(T)>>;
template <class SA, class DA, auto v>
inline constexpr LayoutError composition_error<Layout<SA, DA>, C<v>> =
    composition_error<Layout<SA, DA>, Layout<C<v>, Int<1>>>;

// ---------------------------------------------------------------------------------------------------------------------
// complement

template <class Shapes, class Strides>
struct ComplementPlanOf {
  static constexpr auto value = plan_complement(FlatLeavesOf<Shapes, Strides>::value);
};

template <class Plan, class Target, int... J>
MOYE_HOST_DEVICE constexpr auto build_complement(Target const& target, Seq<J...>) {
  auto const period = Int<static_cast<int>(Plan::value.period)>{};
  auto const rest = ceil_div(target, period);
  MOYE_RETURN(coalesce(
      make_layout(make_tuple(Int<static_cast<int>(Plan::value.shape[J])>{}..., rest),
                  make_tuple(Int<static_cast<int>(Plan::value.stride[J])>{}..., compact_col_major(rest, period)))))
}

template <class S, class D, long long kTarget>
struct ComplementNumbers {
  static constexpr auto complement = static_complement(NumbersOf<S, D>::value, kTarget);
  static constexpr auto value = complement.layout;
};

/// The layout of what L leaves out of [0, target): disjoint from L, increasing, and (L, complement) covers the target.
template <class S, class D, class Target>
MOYE_HOST_DEVICE constexpr auto complement(Layout<S, D> const& l, Target const& target) {
  if constexpr (is_static_numbers<S> && is_static_numbers<D> && is_static_integral<Target> && leaf_count<S> != 0) {
    using Numbers_ = ComplementNumbers<S, D, static_value<Target>>;
    check_layout_error<Numbers_::complement.error>();
    return LayoutOf<Numbers_>{};
  } else {
    return complement_dynamic(l, target);
  }
}
template <class S, class D, class Target>
MOYE_HOST_DEVICE constexpr auto complement_dynamic(Layout<S, D> const& l, Target const& target) {
  auto const part = filter(l);
  auto const shapes = wrap(part.shape());
  auto const strides = wrap(part.stride());
  using Shapes = RemoveCvref<decltype(shapes)>;
  using Strides = RemoveCvref<decltype(strides)>;
  if constexpr (tuple_size<Shapes> == 1 && !(is_static<Shapes> && is_static<Strides>)) {
    auto const stride = get<0>(strides);
    auto const period = stride * get<0>(shapes);
    MOYE_RETURN(
        coalesce(make_layout(make_tuple(stride, ceil_div(product(target), period)), make_tuple(Int<1>{}, period))))
  } else {
    using Plan = ComplementPlanOf<Shapes, Strides>;
    check_layout_error<Plan::value.error>();
    if constexpr (Plan::value.error == LayoutError::kNone) {
      MOYE_RETURN(build_complement<Plan>(target, MakeSeq<tuple_size<Shapes>>{}))
    } else {
      return make_layout(Int<1>{}, Int<0>{});
    }
  }
}
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto complement(Layout<S, D> const& l) {
  return complement(l, cosize(filter(l)));
}

template <class L>
inline constexpr LayoutError complement_error = [] {
  using Part = decltype(filter(declval<L const&>()));
  return ComplementPlanOf<decltype(wrap(declval<Part>().shape())), decltype(wrap(declval<Part>().stride()))>::value
      .error;
}();

// ---------------------------------------------------------------------------------------------------------------------
// inverses

template <class Shapes, class Strides>
struct RightInversePlanOf {
  static constexpr auto value = plan_right_inverse(FlatLeavesOf<Shapes, Strides>::value);
};
template <class Shapes, class Strides>
struct LeftInversePlanOf {
  static constexpr auto value = plan_left_inverse(FlatLeavesOf<Shapes, Strides>::value);
};

template <class Plan, int J, class Shapes>
MOYE_HOST_DEVICE constexpr auto inverse_shape(Shapes const& shapes) {
  if constexpr (Plan::value.shape[J] == kDynamic) {
    return get<Plan::value.source[J]>(shapes);
  } else {
    return Int<static_cast<int>(Plan::value.shape[J])>{};
  }
}
template <class Plan, int J, class Shapes>
MOYE_HOST_DEVICE constexpr auto inverse_stride(Shapes const& shapes) {
  if constexpr (Plan::value.source[J] < 0) {
    return Int<0>{};
  } else {
    MOYE_RETURN(product(take<0, Plan::value.source[J]>(shapes)))
  }
}
template <class Plan, class Shapes, int... J>
MOYE_HOST_DEVICE constexpr auto build_inverse(Shapes const& shapes, Seq<J...>) {
  MOYE_RETURN(coalesce(
      make_layout(make_tuple(inverse_shape<Plan, J>(shapes)...), make_tuple(inverse_stride<Plan, J>(shapes)...))))
}

template <class S, class D>
struct RightInverseNumbers {
  static constexpr auto leaves = padded(coalesced(NumbersOf<S, D>::value, false));
  static constexpr auto value = static_inverse(leaves, plan_right_inverse(leaves));
};

/// L(right_inverse(L)(i)) == i, on the largest domain [0, n) that exists; 1:0 if L never takes the step from 0 to 1.
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto right_inverse([[maybe_unused]] Layout<S, D> const& l) {
  if constexpr (is_static_numbers<S> && is_static_numbers<D> && leaf_count<S> != 0) {
    return LayoutOf<RightInverseNumbers<S, D>>{};
  } else {
    auto const part = coalesce(l);
    auto const shapes = wrap(part.shape());
    using Plan = RightInversePlanOf<RemoveCvref<decltype(shapes)>, RemoveCvref<decltype(wrap(part.stride()))>>;
    return build_inverse<Plan>(shapes, MakeSeq<Plan::value.size>{});
  }
}

/// left_inverse(L)(L(i)) == i for injective L; always L(left_inverse(L)(L(i))) == L(i).
template <class S, class D>
MOYE_HOST_DEVICE constexpr auto left_inverse(Layout<S, D> const& l) {
  auto const part = coalesce(l);
  auto const shapes = wrap(part.shape());
  using Plan = LeftInversePlanOf<RemoveCvref<decltype(shapes)>, RemoveCvref<decltype(wrap(part.stride()))>>;
  check_layout_error<Plan::value.error>();
  if constexpr (Plan::value.size == 0) {
    return part;
  } else {
    MOYE_RETURN(build_inverse<Plan>(shapes, MakeSeq<Plan::value.size>{}))
  }
}
template <class L>
inline constexpr LayoutError left_inverse_error = [] {
  using Part = decltype(coalesce(declval<L const&>()));
  return LeftInversePlanOf<decltype(wrap(declval<Part>().shape())), decltype(wrap(declval<Part>().stride()))>::value
      .error;
}();

// ---------------------------------------------------------------------------------------------------------------------
// Division: a layout split into a tile and the rest

template <class L, class T, class F, int... I, int... J>
MOYE_HOST_DEVICE constexpr auto apply_by_mode(L const& l, T const& tiler, F const& f, Seq<I...>, Seq<J...>) {
  MOYE_RETURN(make_layout(f(mode<I>(l), get<I>(tiler))..., mode<tuple_size<T> + J>(l)...))
}

/// (tile, rest): composition with (B, complement(B, size)). Where B's size does not divide, the rest is rounded up.
/// With a tuple: mode by mode, so each mode of the result is (tile, rest); `_` leaves a mode whole.
template <class S, class D, class T>
MOYE_HOST_DEVICE constexpr auto logical_divide(Layout<S, D> const& l, T const& tiler) {
  if constexpr (is_underscore<T>) {
    return l;
  } else if constexpr (is_layout<T>) {
    MOYE_RETURN(composition(l, make_layout(tiler, complement(tiler, coalesce(l).shape()))))
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
  static_assert(tuple_size<T> < 0, "zipped_divide: a mode is not a (tile, rest) pair");
  using First = T;
  using Second = T;
};
template <class T0, class T1>
struct PairTypes<Tuple<T0, T1>> {
  using First = T0;
  using Second = T1;
};
template <int K, class T, class I, class J>
struct UnzipImpl;
template <int K, class T, int... I, int... J>
struct UnzipImpl<K, T, Seq<I...>, Seq<J...>> {
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

/// ((tile of mode 0, tile of mode 1, ...), (rest of mode 0, rest of mode 1, ..., modes not divided))
template <class S, class D, class T>
MOYE_HOST_DEVICE constexpr auto zipped_divide(Layout<S, D> const& l, T const& tiler) {
  auto const divided = logical_divide(l, tiler);
  constexpr int kModes = is_tuple<T> ? tuple_size<T> : 0;
  MOYE_RETURN(make_layout(unzip<kModes>(divided.shape()), unzip<kModes>(divided.stride())))
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
  auto const product_ = logical_product(block, tiler);
  constexpr int kModes = is_tuple<T> ? tuple_size<T> : 0;
  MOYE_RETURN(make_layout(unzip<kModes>(product_.shape()), unzip<kModes>(product_.stride())))
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
  static_assert(is_tuple<decltype(block.shape())> || N == 1 || is_tuple<decltype(tiler.shape())>);
  MOYE_RETURN(logical_product(append<N>(block, one), append<N>(tiler, one)))
}
/// The block, repeated next to itself: mode i is (block_i, tiler_i).
template <class S, class D, class S2, class D2>
MOYE_HOST_DEVICE constexpr auto blocked_product(Layout<S, D> const& block, Layout<S2, D2> const& tiler) {
  constexpr int kRank = rank_v<S> > rank_v<S2> ? rank_v<S> : rank_v<S2>;
  auto const result = ranked_product<kRank>(block, tiler);
  MOYE_RETURN(zip_modes(mode<0>(result), mode<1>(result), MakeSeq<kRank>{}))
}
/// The block, interleaved with its copies: mode i is (tiler_i, block_i).
template <class S, class D, class S2, class D2>
MOYE_HOST_DEVICE constexpr auto raked_product(Layout<S, D> const& block, Layout<S2, D2> const& tiler) {
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
template <class Strides>
inline constexpr bool has_unit_stride = is_constant<1, Strides> || is_constant<-1, Strides>;
template <class... D>
inline constexpr bool has_unit_stride<Tuple<D...>> = (has_unit_stride<D> || ...);

/// The layout in units of 1/N element: the contiguous mode gets N times as long, the other strides N times as large.
template <int N, class S, class D>
MOYE_HOST_DEVICE constexpr auto downcast(Layout<S, D> const& l) {
  if constexpr (N == 1) {
    return l;
  } else {
    static_assert(has_unit_stride<D>, "downcast: no mode is contiguous");
    auto const longer = [](auto const& s, auto const& d) {
      if constexpr (has_unit_stride<RemoveCvref<decltype(d)>>) {
        return s * Int<N>{};
      } else {
        return s;
      }
    };
    auto const larger = [](auto const& d) {
      if constexpr (has_unit_stride<RemoveCvref<decltype(d)>>) {
        return d;
      } else {
        return d * Int<N>{};
      }
    };
    return make_layout(transform_leaf(l.shape(), l.stride(), longer), transform_leaf(l.stride(), larger));
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

/// A layout R with A(R(i)) == B(R(i)) == i: what the two have in common as one contiguous vector.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto max_common_layout(A const& a, B const& b) {
  auto const inverse = right_inverse(b);
  if constexpr (composition_error<A, RemoveCvref<decltype(inverse)>> != LayoutError::kNone) {
    return make_layout(Int<1>{}, Int<0>{});
  } else {
    auto const common = coalesce(composition(a, inverse));
    if constexpr (is_constant<1, decltype(mode<0>(common).stride())> && is_static<decltype(mode<0>(common).shape())>) {
      MOYE_RETURN(composition(inverse, mode<0>(common)))
    } else {
      return make_layout(Int<1>{}, Int<0>{});
    }
  }
}
/// The number of elements that are contiguous and in the same order in both.
template <class A, class B>
MOYE_HOST_DEVICE constexpr auto max_common_vector(A const& a, B const& b) {
  return size(max_common_layout(a, b));
}

template <class S, class D>
struct MaxAlignment;
template <class... S, class... D>
struct MaxAlignment<Tuple<S...>, Tuple<D...>> {
  static constexpr long long value = [] {
    // A leaf of stride 1 is cut at its extent; every other stride must be a multiple.
    long long n = 0;
    (((n = gcd_value(n, static_value<D> == kDynamic ? 1
                        : static_value<S> == 1      ? 0
                        : static_value<D> == 1      ? (static_value<S> == kDynamic ? 1 : static_value<S>)
                                                    : static_value<D>))),
     ...);
    return n == 0 ? 1 : n;
  }();
};

// ---------------------------------------------------------------------------------------------------------------------
// Coordinate layouts

template <int I, class S>
MOYE_HOST_DEVICE constexpr auto identity_stride(S const& s) {
  return transform_leaf(make_layout(s).stride(), [](auto const& d) { return d * E<I>{}; });
}
template <class Shape_, int... I>
MOYE_HOST_DEVICE constexpr auto identity_strides(Shape_ const& shape, Seq<I...>) {
  return make_tuple(identity_stride<I>(get<I>(shape))...);
}
/// The layout that returns its coordinate: make_identity_layout((M,N))(m,n) == (m,n). Nested modes count linearly, so
/// the coordinate has one number per mode.
template <class Shape_>
MOYE_HOST_DEVICE constexpr auto make_identity_layout(Shape_ const& shape) {
  if constexpr (is_tuple<Shape_>) {
    MOYE_RETURN(make_layout(shape, identity_strides(shape, MakeSeq<tuple_size<Shape_>>{})))
  } else {
    MOYE_RETURN(make_layout(shape, E<0>{}))
  }
}

}  // namespace moye
