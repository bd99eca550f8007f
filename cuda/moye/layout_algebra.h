// The algebra that the rest is made of: coalesce, composition, complement, inverses. CuTe's semantics and names;
// 0-based, first mode fastest. Static numbers stay static through every operation.
//
// Where CuTe's composition silently returns a wrong layout, ours stops the compilation with a sentence (layout_plan.h).
#pragma once

#include "moye/layout_type.h"

namespace moye {

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

/// Stops the compilation with the sentence that belongs to the error. What it names are the operands.
template <LayoutError kError, class... Operands>
MOYE_HOST_DEVICE constexpr void refuse() {
  static_assert(kError != LayoutError::kStrideDivisibility,
                "composition: a stride of the right layout and an extent of the left one do not divide each other");
  static_assert(kError != LayoutError::kShapeDivisibility,
                "composition: an extent of the right layout is not a multiple of the rest of the mode it has to fill");
  static_assert(kError != LayoutError::kCarry,
                "composition: two modes of the right layout overflow one mode of the left one (their sum carries)");
  static_assert(kError != LayoutError::kNonInjective, "complement: the layout may reach an element twice");
  static_assert(kError != LayoutError::kLeftInverseOverlap,
                "left_inverse: modes overlap so that no layout finds a position for every index");
  static_assert(kError != LayoutError::kLeftInverseDivisibility, "left_inverse: the strides do not divide each other");
  static_assert(kError != LayoutError::kDynamicNotSupported,
                "layout algebra: this operation needs a number that is not known at compile time");
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
/// By mode, as coalesce.
template <class S, class D, class Profile>
MOYE_HOST_DEVICE constexpr auto filter([[maybe_unused]] Layout<S, D> const& l, Profile const& profile) {
  MOYE_RETURN(coalesce(filter_zeros(l), profile))
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
  if constexpr (Composition::plan.error != LayoutError::kNone) {
    refuse<Composition::plan.error, Layout<SA, DA>, Layout<SB, DB>>();
  }
  using Modes = ComposedModes<Composition, SB, 0>;
  return Layout<typename Modes::ShapeType, typename Modes::StrideType>{};
}

/// A leaf s:d of the right layout over modes I, I+1, ... of A, where a plan cannot know how far it reaches: the extents
/// of the result are computed, min(rest of the mode, rest of the leaf), and may be 1.
template <int I, class ShapesA, class StridesA, class S, class D, class DoneS, class DoneD>
MOYE_HOST_DEVICE constexpr auto walk_leaf(ShapesA const& sa, StridesA const& da, S const& s, D const& d,
                                          DoneS const& done_s, DoneD const& done_d) {
  if constexpr (is_constant<1, S> && tuple_size<DoneS> != 0) {
    return layout_from_leaves(done_s, done_d);
  } else if constexpr (is_constant<1, S> || is_constant<0, D>) {
    return make_layout(s, Int<0>{});
  } else if constexpr (I == tuple_size<ShapesA> - 1) {
    return layout_from_leaves(append(done_s, s), append(done_d, d * get<I>(da)));
  } else {
    auto const extent = get<I>(sa);
    auto const free = ceil_div(extent, d);  // elements of this mode at steps of d
    auto const next = ceil_div(d, extent);
    if constexpr (is_constant<1, RemoveCvref<decltype(free)>>) {
      return walk_leaf<I + 1>(sa, da, s, next, done_s, done_d);
    } else {
      auto const here = min(free, s);
      return walk_leaf<I + 1>(sa, da, s / here, next, append(done_s, here), append(done_d, d * get<I>(da)));
    }
  }
}
template <class ShapesA, class StridesA, class ShapesB, class StridesB, int... L>
MOYE_HOST_DEVICE constexpr auto walk_leaves(ShapesA const& sa, StridesA const& da, ShapesB const& sb,
                                            StridesB const& db, Seq<L...>) {
  return make_layout(walk_leaf<0>(sa, da, get<L>(sb), get<L>(db), make_tuple(), make_tuple())...);
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
  if constexpr (Plan::value.error == LayoutError::kDynamicNotSupported) {
    auto const leaves = walk_leaves(shapes_a, strides_a, shapes_b, strides_b, MakeSeq<leaf_count<SB>>{});
    return make_layout(unflatten(leaves.shape(), b.shape()), unflatten(leaves.stride(), b.shape()));
  } else {
    if constexpr (Plan::value.error != LayoutError::kNone) refuse<Plan::value.error, Layout<SA, DA>, Layout<SB, DB>>();
    auto const leaves = composed_leaves<Plan>(strides_a, shapes_b, strides_b, MakeSeq<leaf_count<SB>>{});
    MOYE_RETURN(make_layout(unflatten(leaves.shape(), b.shape()), unflatten(leaves.stride(), b.shape())))
  }
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
/// Numbers that are not known at compile time are taken to divide as they must: composition_error_of checks values.
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

template <class T>
constexpr void write_leaves(T const& t, long long*& out) {
  if constexpr (is_tuple<T>) {
    for_each(t, [&](auto const& x) { write_leaves(x, out); });
  } else {
    *out++ = static_cast<long long>(t);
  }
}
template <class S, class D>
constexpr FlatLeaves<leaf_count<S>> leaves_of(Layout<S, D> const& l) {
  FlatLeaves<leaf_count<S>> leaves = {};
  long long* shape = leaves.shape;
  long long* stride = leaves.stride;
  write_leaves(l.shape(), shape);
  write_leaves(l.stride(), stride);
  return leaves;
}
/// Why composition(a, b) does not exist for these values of their dynamic numbers; kNone if it does. For host code,
/// which knows the sizes that kernels will divide.
template <class SA, class DA, class SB, class DB>
constexpr LayoutError composition_error_of(Layout<SA, DA> const& a, Layout<SB, DB> const& b) {
  auto const left = coalesced(leaves_of(a), true);
  return plan_composition(padded(left), left.size, leaves_of(b)).error;
}

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
    if constexpr (Numbers_::complement.error != LayoutError::kNone) {
      refuse<Numbers_::complement.error, Layout<S, D>, Target>();
    }
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
    if constexpr (Plan::value.error == LayoutError::kNone) {
      MOYE_RETURN(build_complement<Plan>(target, MakeSeq<tuple_size<Shapes>>{}))
    } else {
      refuse<Plan::value.error, Layout<S, D>, Target>();
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
  if constexpr (Plan::value.error != LayoutError::kNone) refuse<Plan::value.error, Layout<S, D>>();
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

}  // namespace moye
