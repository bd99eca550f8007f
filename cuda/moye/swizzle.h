// Swizzles: bijections of indices that spread the rows of a shared-memory tile over the banks, and layouts behind them.
//
// A swizzle moves nothing further than its period. So a layout's modes fall into two: strides that are multiples of the
// period commute with the swizzle, the others do not. Slicing adds the first kind to the pointer and keeps the second
// kind as an offset in front of the swizzle. Addresses are right for every coordinate, and the distance between, say,
// two 32-row blocks of a tile stays a compile-time number that the compiler folds into the instruction.
#pragma once

#include "moye/layout.h"

namespace moye {

/// Index bits [M + |S| ...) of width B are xor-ed into (S > 0: the lower) bits that are |S| places away. M low bits
/// stay: vectors of 2^M elements remain contiguous. An involution.
template <int B, int M, int S = B>
struct Swizzle {
  static_assert(B >= 0 && M >= 0, "Swizzle: negative number of bits");
  static_assert((S < 0 ? -S : S) >= B, "Swizzle: the shift is smaller than the number of bits");
  static constexpr int kBits = B;
  static constexpr int kBase = M;
  static constexpr int kShift = S;
  static constexpr int kSource = ((1 << B) - 1) << (M + (S > 0 ? S : 0));   // bits that are read
  static constexpr int kTarget = ((1 << B) - 1) << (M + (S < 0 ? -S : 0));  // bits that are changed
  /// Multiples of this commute: swizzle(i + k * kPeriod) == swizzle(i) + k * kPeriod.
  static constexpr int kPeriod = B == 0 ? 1 : 1 << (M + B + (S < 0 ? -S : S));

  template <class Index>
  MOYE_HOST_DEVICE constexpr auto operator()(Index const& index) const {
    if constexpr (is_static_integral<Index>) {
      return Int<swizzled(Index::value)>{};
    } else {
      return swizzled(index);
    }
  }

 private:
  template <class Index>
  static MOYE_HOST_DEVICE constexpr Index swizzled(Index index) {
    if constexpr (B == 0) {
      return index;
    } else if constexpr (S > 0) {
      return index ^ ((index & Index{kSource}) >> S);
    } else {
      return index ^ ((index & Index{kSource}) << -S);
    }
  }
};

template <class T>
inline constexpr bool is_swizzle = false;
template <int B, int M, int S>
inline constexpr bool is_swizzle<Swizzle<B, M, S>> = true;

template <int kMask>
inline constexpr int trailing_zeros = kMask % 2 != 0 ? 0 : 1 + trailing_zeros<kMask / 2>;
template <>
inline constexpr int trailing_zeros<0> = 0;
template <int kMask>
inline constexpr int bit_count = kMask == 0 ? 0 : kMask % 2 + bit_count<kMask / 2>;
template <>
inline constexpr int bit_count<0> = 0;

/// The swizzle that xors the bits of kSource into those of kTarget; both masks are runs of equally many ones.
template <int kSource, int kTarget>
MOYE_HOST_DEVICE constexpr auto make_swizzle() {
  constexpr int kBits = bit_count<kSource>;
  static_assert(kBits == bit_count<kTarget>, "make_swizzle: the masks have different numbers of bits");
  constexpr int kFrom = trailing_zeros<kSource>;
  constexpr int kTo = trailing_zeros<kTarget>;
  static_assert(kSource == ((1 << kBits) - 1) << kFrom && kTarget == ((1 << kBits) - 1) << kTo,
                "make_swizzle: a mask is not one run of bits");
  return Swizzle<kBits, (kFrom < kTo ? kFrom : kTo), kFrom - kTo>{};
}

/// Both, the right one first. They must xor over the same distance, and the left one not read what the right one
/// changes.
template <int B0, int M0, int S0, int B1, int M1, int S1>
MOYE_HOST_DEVICE constexpr auto composition(Swizzle<B0, M0, S0> const& left, Swizzle<B1, M1, S1> const& right) {
  if constexpr (B0 == 0) {
    return right;
  } else if constexpr (B1 == 0) {
    return left;
  } else {
    static_assert(S0 == S1, "composition: the swizzles' shifts differ");
    static_assert((Swizzle<B0, M0, S0>::kSource & Swizzle<B1, M1, S1>::kTarget) == 0,
                  "composition: a swizzle reads bits that the other one changes");
    constexpr int kSource = Swizzle<B0, M0, S0>::kSource ^ Swizzle<B1, M1, S1>::kSource;
    if constexpr (kSource == 0) {
      return Swizzle<0, M0, S0>{};
    } else {
      return make_swizzle<kSource, Swizzle<B0, M0, S0>::kTarget ^ Swizzle<B1, M1, S1>::kTarget>();
    }
  }
}

template <class Swizzle_, class Offset, class Layout_>
struct ComposedLayout;

template <class T>
inline constexpr bool is_composed = false;
template <class Swizzle_, class Offset, class Layout_>
inline constexpr bool is_composed<ComposedLayout<Swizzle_, Offset, Layout_>> = true;

template <class T>
inline constexpr bool is_any_layout = is_layout<T> || is_composed<T>;

/// Whether a swizzle of this period can touch what a stride contributes to an index.
template <int kPeriod, class D>
inline constexpr bool is_inside = static_value<D> == kDynamic || static_value<D> % kPeriod != 0;

template <int kPeriod, bool kInside, class D>
struct StridesImpl {
  using Type = Conditional<is_inside<kPeriod, D> == kInside, D, Int<0>>;
};
template <int kPeriod, bool kInside, class... D>
struct StridesImpl<kPeriod, kInside, Tuple<D...>> {
  using Type = Tuple<typename StridesImpl<kPeriod, kInside, D>::Type...>;
};
/// Strides of which the swizzle can touch the contribution (kInside) or cannot; the others as 0.
template <int kPeriod, bool kInside, class Stride_>
MOYE_HOST_DEVICE constexpr auto strides_by_side([[maybe_unused]] Stride_ const& stride) {
  if constexpr (is_static<Stride_>) {
    return typename StridesImpl<kPeriod, kInside, Stride_>::Type{};
  } else {
    return transform_leaf(stride, [](auto const& d) {
      if constexpr (is_inside<kPeriod, RemoveCvref<decltype(d)>> == kInside) {
        return d;
      } else {
        return Int<0>{};
      }
    });
  }
}

/// c -> swizzle(offset + layout(c)). Shape, size and the algebra are those of the layout; there are no strides.
template <class Swizzle_, class Offset, class Layout_>
struct ComposedLayout : Tuple<Offset, Layout_> {
  using SwizzleType = Swizzle_;
  using LayoutType = Layout_;
  static constexpr int kRank = Layout_::kRank;

  ComposedLayout() = default;
  MOYE_HOST_DEVICE constexpr ComposedLayout(Offset const& offset, Layout_ const& layout)
      : Tuple<Offset, Layout_>(offset, layout) {}

  MOYE_HOST_DEVICE constexpr Swizzle_ swizzle() const { return {}; }
  MOYE_HOST_DEVICE constexpr Offset offset() const { return get<0>(static_cast<Tuple<Offset, Layout_> const&>(*this)); }
  MOYE_HOST_DEVICE constexpr Layout_ layout() const {
    return get<1>(static_cast<Tuple<Offset, Layout_> const&>(*this));
  }
  MOYE_HOST_DEVICE constexpr auto shape() const { return layout().shape(); }

  template <class First, class... Rest>
  MOYE_HOST_DEVICE constexpr auto operator()(First const& first, Rest const&... rest) const {
    if constexpr (has_underscore<Tuple<First, Rest...>>) {
      return slice(pack_coord(first, rest...), *this);
    } else {
      return outside(first, rest...) + swizzle()(offset() + inside(first, rest...));
    }
  }

  /// The part of the index that the swizzle cannot touch.
  template <class... Coord>
  MOYE_HOST_DEVICE constexpr auto outside(Coord const&... coord) const {
    return slice_offset(one_side<false>(), coord...);
  }
  /// The part of the index that goes through the swizzle.
  template <class... Coord>
  MOYE_HOST_DEVICE constexpr auto inside(Coord const&... coord) const {
    return slice_offset(one_side<true>(), coord...);
  }
  template <bool kInside>
  MOYE_HOST_DEVICE constexpr auto one_side() const {
    return make_layout(shape(), strides_by_side<Swizzle_::kPeriod, kInside>(layout().stride()));
  }

  template <class... Tiler>
  MOYE_HOST_DEVICE constexpr auto compose(Tiler const&... tiler) const {
    return with(layout().compose(tiler...));
  }
  template <class... S>
  MOYE_HOST_DEVICE constexpr auto with_shape(S const&... s) const {
    return with(layout().with_shape(s...));
  }
  /// The same swizzle and offset before another layout.
  template <class NewLayout>
  MOYE_HOST_DEVICE constexpr auto with(NewLayout const& new_layout) const {
    return ComposedLayout<Swizzle_, Offset, NewLayout>(offset(), new_layout);
  }
};

template <int B, int M, int S, class Offset, class Layout_>
MOYE_HOST_DEVICE constexpr auto make_composed_layout(Swizzle<B, M, S> const&, Offset const& offset, Layout_ const& l) {
  return ComposedLayout<Swizzle<B, M, S>, Offset, Layout_>(offset, l);
}

template <int B, int M, int S, class SH, class D>
MOYE_HOST_DEVICE constexpr auto composition(Swizzle<B, M, S> const& swizzle, Layout<SH, D> const& l) {
  return make_composed_layout(swizzle, Int<0>{}, l);
}

template <int B, int M, int S, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto composition(Swizzle<B, M, S> const& swizzle, ComposedLayout<W, O, L> const& l) {
  return make_composed_layout(composition(swizzle, l.swizzle()), l.offset(), l.layout());
}

template <class W, class O, class L>
inline constexpr int rank_v<ComposedLayout<W, O, L>> = rank_v<L>;
template <class W, class O, class L>
inline constexpr int depth_v<ComposedLayout<W, O, L>> = depth_v<L>;
template <class W, class O, class L>
inline constexpr bool is_static<ComposedLayout<W, O, L>> = is_static<O> && is_static<L>;

// The algebra acts on the layout behind the swizzle.

template <int... I, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto shape(ComposedLayout<W, O, L> const& l) {
  return shape<I...>(l.layout());
}
template <int... I, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto size(ComposedLayout<W, O, L> const& l) {
  return size<I...>(l.layout());
}
template <int... I, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto cosize(ComposedLayout<W, O, L> const& l) {
  return cosize<I...>(l.layout());
}
template <int... I, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto layout(ComposedLayout<W, O, L> const& l) {
  return l.with(layout<I...>(l.layout()));
}
template <int I, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto mode(ComposedLayout<W, O, L> const& l) {
  return l.with(mode<I>(l.layout()));
}
template <int B, int E, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto take(ComposedLayout<W, O, L> const& l) {
  return l.with(take<B, E>(l.layout()));
}
template <int... I, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto select(ComposedLayout<W, O, L> const& l) {
  return l.with(select<I...>(l.layout()));
}
template <int B, int E, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto group(ComposedLayout<W, O, L> const& l) {
  return l.with(group<B, E>(l.layout()));
}
template <int N, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto append(ComposedLayout<W, O, L> const& l) {
  return l.with(append<N>(l.layout()));
}
template <int N, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto prepend(ComposedLayout<W, O, L> const& l) {
  return l.with(prepend<N>(l.layout()));
}
template <class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto flatten(ComposedLayout<W, O, L> const& l) {
  return l.with(flatten(l.layout()));
}
template <class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto coalesce(ComposedLayout<W, O, L> const& l) {
  return l.with(coalesce(l.layout()));
}
template <class W, class O, class L, class Profile>
MOYE_HOST_DEVICE constexpr auto coalesce(ComposedLayout<W, O, L> const& l, Profile const& profile) {
  return l.with(coalesce(l.layout(), profile));
}
template <class W, class O, class L, class B>
MOYE_HOST_DEVICE constexpr auto composition(ComposedLayout<W, O, L> const& l, B const& b) {
  return l.with(composition(l.layout(), b));
}
template <class W, class O, class L, class T>
MOYE_HOST_DEVICE constexpr auto logical_divide(ComposedLayout<W, O, L> const& l, T const& tiler) {
  return l.with(logical_divide(l.layout(), tiler));
}
template <class W, class O, class L, class T>
MOYE_HOST_DEVICE constexpr auto zipped_divide(ComposedLayout<W, O, L> const& l, T const& tiler) {
  return l.with(zipped_divide(l.layout(), tiler));
}
template <class W, class O, class L, class T>
MOYE_HOST_DEVICE constexpr auto tiled_divide(ComposedLayout<W, O, L> const& l, T const& tiler) {
  return l.with(tiled_divide(l.layout(), tiler));
}
template <class W, class O, class L, class T>
MOYE_HOST_DEVICE constexpr auto flat_divide(ComposedLayout<W, O, L> const& l, T const& tiler) {
  return l.with(flat_divide(l.layout(), tiler));
}
template <class W, class O, class L, class T>
MOYE_HOST_DEVICE constexpr auto logical_product(ComposedLayout<W, O, L> const& l, T const& tiler) {
  return l.with(logical_product(l.layout(), tiler));
}
template <class W, class O, class L, class T>
MOYE_HOST_DEVICE constexpr auto blocked_product(ComposedLayout<W, O, L> const& l, T const& tiler) {
  return l.with(blocked_product(l.layout(), tiler));
}
template <class W, class O, class L, class S, class D>
MOYE_HOST_DEVICE constexpr auto raked_product(ComposedLayout<W, O, L> const& l, Layout<S, D> const& tiler) {
  return l.with(raked_product(l.layout(), tiler));
}
template <class W, class O, class L, class T>
MOYE_HOST_DEVICE constexpr auto zipped_product(ComposedLayout<W, O, L> const& l, T const& tiler) {
  return l.with(zipped_product(l.layout(), tiler));
}
template <class W, class O, class L, class T>
MOYE_HOST_DEVICE constexpr auto tiled_product(ComposedLayout<W, O, L> const& l, T const& tiler) {
  return l.with(tiled_product(l.layout(), tiler));
}
template <class W, class O, class L, class T>
MOYE_HOST_DEVICE constexpr auto flat_product(ComposedLayout<W, O, L> const& l, T const& tiler) {
  return l.with(flat_product(l.layout(), tiler));
}
template <class W, class O, class L, class Target, class Order_>
MOYE_HOST_DEVICE constexpr auto tile_to_shape(ComposedLayout<W, O, L> const& l, Target const& target,
                                              Order_ const& order) {
  return l.with(tile_to_shape(l.layout(), target, order));
}
template <class W, class O, class L, class Target>
MOYE_HOST_DEVICE constexpr auto tile_to_shape(ComposedLayout<W, O, L> const& l, Target const& target) {
  return l.with(tile_to_shape(l.layout(), target));
}
template <class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto make_fragment_like(ComposedLayout<W, O, L> const& l) {
  return make_fragment_like(l.layout());
}
template <class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto make_layout_like(ComposedLayout<W, O, L> const& l) {
  return make_layout_like(l.layout());
}

/// Whether no kept mode of a slice passes through the swizzle any more, so that it is a plain layout.
template <class W, class L, class... C>
inline constexpr bool slice_is_plain = is_zero_stride<decltype(strides_by_side<W::kPeriod, true>(
    slice_layout(declval<L const&>(), declval<C const&>()...).stride()))>;

template <class W, class O, class L, class... C>
MOYE_HOST_DEVICE constexpr auto slice_layout(ComposedLayout<W, O, L> const& l, C const&... coords) {
  auto const kept = slice_layout(l.layout(), coords...);
  if constexpr (slice_is_plain<W, L, C...>) {
    return kept;
  } else {
    return make_composed_layout(l.swizzle(), l.offset() + l.inside(coords...), kept);
  }
}
template <class W, class O, class L, class... C>
MOYE_HOST_DEVICE constexpr auto slice_offset(ComposedLayout<W, O, L> const& l, C const&... coords) {
  if constexpr (!has_underscore<Tuple<C...>>) {
    return l.outside(coords...) + l.swizzle()(l.offset() + l.inside(coords...));
  } else if constexpr (slice_is_plain<W, L, C...>) {
    return l.outside(coords...) + l.swizzle()(l.offset() + l.inside(coords...));
  } else {
    return l.outside(coords...);
  }
}
/// The sublayout with everything else in its offset.
template <class Coord, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto slice(Coord const& coord, ComposedLayout<W, O, L> const& l) {
  return make_composed_layout(l.swizzle(), l.offset() + crd2idx(coord, l.shape(), l.layout().stride()),
                              slice(coord, l.layout()));
}

/// What N elements of a layout with this swizzle are to elements N times as large.
template <int N, int B, int M, int S>
MOYE_HOST_DEVICE constexpr auto upcast(Swizzle<B, M, S> const&) {
  constexpr int kLog = trailing_zeros<N>;
  static_assert(N == 1 << kLog, "upcast: not a power of two");
  constexpr int kBase = M - kLog;
  if constexpr (kBase >= 0) {
    return Swizzle<B, kBase, S>{};
  } else {
    return Swizzle<(B + kBase > 0 ? B + kBase : 0), 0, S>{};
  }
}
template <int N, int B, int M, int S>
MOYE_HOST_DEVICE constexpr auto downcast(Swizzle<B, M, S> const&) {
  static_assert(N == 1 << trailing_zeros<N>, "downcast: not a power of two");
  return Swizzle<B, M + trailing_zeros<N>, S>{};
}
template <int N, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto upcast(ComposedLayout<W, O, L> const& l) {
  return make_composed_layout(upcast<N>(l.swizzle()), l.offset() / Int<N>{}, upcast<N>(l.layout()));
}
template <int N, class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto downcast(ComposedLayout<W, O, L> const& l) {
  return make_composed_layout(downcast<N>(l.swizzle()), l.offset() * Int<N>{}, downcast<N>(l.layout()));
}

/// index -> layout(swizzle(index) - offset): the inverse of a swizzled layout, a function and not a layout.
template <class Layout_, class Offset, class Swizzle_>
struct SwizzledInverse : Tuple<Offset, Layout_> {
  SwizzledInverse() = default;
  MOYE_HOST_DEVICE constexpr SwizzledInverse(Offset const& offset, Layout_ const& layout)
      : Tuple<Offset, Layout_>(offset, layout) {}

  MOYE_HOST_DEVICE constexpr Offset offset() const { return get<0>(static_cast<Tuple<Offset, Layout_> const&>(*this)); }
  MOYE_HOST_DEVICE constexpr Layout_ layout() const {
    return get<1>(static_cast<Tuple<Offset, Layout_> const&>(*this));
  }
  template <class Index>
  MOYE_HOST_DEVICE constexpr auto operator()(Index const& index) const {
    return layout()(Swizzle_{}(index)-offset());
  }
};
template <class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto right_inverse(ComposedLayout<W, O, L> const& l) {
  auto const inverse = right_inverse(l.layout());
  return SwizzledInverse<RemoveCvref<decltype(inverse)>, O, W>(l.offset(), inverse);
}
template <class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto left_inverse(ComposedLayout<W, O, L> const& l) {
  auto const inverse = left_inverse(l.layout());
  return SwizzledInverse<RemoveCvref<decltype(inverse)>, O, W>(l.offset(), inverse);
}

/// The layout behind a swizzle, or the layout itself.
template <class L>
MOYE_HOST_DEVICE constexpr auto layout_part(L const& l) {
  if constexpr (is_composed<L>) {
    return l.layout();
  } else {
    return l;
  }
}
/// How many elements a swizzle leaves contiguous; "all" without one.
template <class L>
inline constexpr int swizzle_vector = 1 << 30;
template <int B, int M, int S, class O, class L>
inline constexpr int swizzle_vector<ComposedLayout<Swizzle<B, M, S>, O, L>> = B == 0 ? 1 << 30 : 1 << M;

/// As for plain layouts, and no more than the swizzle leaves contiguous and the offset in front of it is a multiple of.
template <class W, class O, class L>
MOYE_HOST_DEVICE constexpr auto max_alignment(ComposedLayout<W, O, L> const&) {
  constexpr long long kOffset = static_value<O> == kDynamic ? 1 : static_value<O>;
  constexpr long long kAll = gcd_value(MaxAlignment<L>::value, kOffset);
  return Int<static_cast<int>(gcd_value(kAll, swizzle_vector<ComposedLayout<W, O, L>>))>{};
}

/// The offset in front of a swizzle where it is known. (Where it is not, slices account for it in the pointer's
/// kAlign.)
template <class L>
inline constexpr long long inside_offset = 0;
template <class W, auto v, class L>
inline constexpr long long inside_offset<ComposedLayout<W, C<v>, L>> = v;

/// The most elements that the swizzles of two layouts leave contiguous and their offsets leave in place. Equal swizzles
/// do not cancel: beyond 2^M elements the order in a vector depends on its index, which the two layouts share in the
/// first vector only; and a vector's first element is not at its lowest address.
template <class A, class B>
inline constexpr int swizzled_vector = static_cast<int>(
    gcd_value(min_value(swizzle_vector<A>, swizzle_vector<B>), gcd_value(inside_offset<A>, inside_offset<B>)));

/// As for plain layouts, and no longer than the vectors that the swizzles leave whole.
template <class A, class B>
  requires(is_composed<A> || is_composed<B>)
MOYE_HOST_DEVICE constexpr auto max_common_vector(A const& a, B const& b) {
  return min(max_common_vector(layout_part(a), layout_part(b)), Int<swizzled_vector<A, B>>{});
}
/// Of those elements as many as a layout describes.
template <class A, class B>
  requires(is_composed<A> || is_composed<B>)
MOYE_HOST_DEVICE constexpr auto max_common_layout(A const& a, B const& b) {
  MOYE_RETURN(max_common_layout<swizzled_vector<A, B>>(layout_part(a), layout_part(b)))
}

}  // namespace moye
