// Tensor: memory, or coordinates, seen through a layout. Views are pointer + layout and cheap to copy; tensors that own
// their elements are arrays of one thread, made of registers as long as every index is known at compile time.
#pragma once

#include "moye/bounds.h"
#include "moye/pointer.h"
#include "moye/swizzle.h"

namespace moye {

// ---------------------------------------------------------------------------------------------------------------------
// Engines: where elements are

/// Elements elsewhere: Iterator is a Pointer or a CoordIterator.
template <class Iterator>
struct ViewEngine {
  using Element = typename Iterator::Element;
  static constexpr bool kOwns = false;
  Iterator begin;
};

/// Elements here, in registers. 16-byte aligned, so that any vector access to an aligned group of them is legal.
template <class T, int N>
struct ArrayEngine {
  using Element = T;
  static constexpr bool kOwns = true;
  static_assert(N > 0, "ArrayEngine: a tensor without elements");
  alignas(16) T storage[N];

  MOYE_HOST_DEVICE constexpr ArrayEngine() {}  // leaves the registers as they are
};

/// Stands where a pointer would in a coordinate tensor: what it points to is the coordinate itself.
template <class Coord_>
struct CoordIterator {
  using Element = Coord_;
  Coord_ coord;

  MOYE_HOST_DEVICE constexpr Coord_ operator*() const { return coord; }
  template <class Offset>
  MOYE_HOST_DEVICE constexpr auto operator[](Offset const& offset) const {
    return coord + offset;
  }
};
template <long long kMultiple, class Coord_, class Offset>
MOYE_HOST_DEVICE constexpr auto advance(CoordIterator<Coord_> const& it, Offset const& offset) {
  auto const sum = it.coord + offset;
  return CoordIterator<RemoveCvref<decltype(sum)>>{sum};
}

// ---------------------------------------------------------------------------------------------------------------------
// Which numbers an offset is a multiple of

template <class T>
inline constexpr long long leaves_gcd = static_value<T> == kDynamic ? 1 : static_value<T>;
template <class... T>
inline constexpr long long leaves_gcd<Tuple<T...>> = [] {
  long long n = 0;
  ((n = gcd_value(n, leaves_gcd<T>)), ...);
  return n;
}();

/// The offset of a slice is a multiple of this; 0 if the offset is always 0.
template <class Coord, class Layout_>
struct SliceMultiple {
  using Strides = typename SliceImpl<Coord, decltype(layout_part(declval<Layout_ const&>()).stride())>::Fixed;
  static constexpr long long kAll = leaves_gcd<Strides>;
  static constexpr long long value = is_composed<Layout_> ? gcd_value(kAll, swizzle_vector<Layout_>) : kAll;
};
template <class Coord, class Layout_>
  requires(!has_underscore<Coord> && !is_tuple<Coord>)
struct SliceMultiple<Coord, Layout_> {
  static constexpr long long value = 1;
};

// ---------------------------------------------------------------------------------------------------------------------
// The type

template <class Engine_, class Layout_>
struct Tensor;

template <class Iterator, class Layout_>
MOYE_HOST_DEVICE constexpr auto make_view(Iterator const& begin, Layout_ const& layout) {
  return Tensor<ViewEngine<Iterator>, Layout_>{{begin}, layout};
}

template <class Engine_, class Layout_>
struct Tensor {
  using Engine = Engine_;
  using LayoutType = Layout_;
  using Element = typename Engine::Element;  // const for a view of const memory
  using Value = RemoveCvref<Element>;
  static constexpr int kRank = Layout_::kRank;

  Engine engine;
  [[no_unique_address]] Layout_ layout_;

  MOYE_HOST_DEVICE constexpr Layout_ layout() const { return layout_; }
  MOYE_HOST_DEVICE constexpr auto shape() const { return layout_.shape(); }
  MOYE_HOST_DEVICE constexpr auto stride() const { return layout_.stride(); }
  MOYE_HOST_DEVICE static constexpr auto size()
    requires(is_static<decltype(moye::shape(declval<Layout_ const&>()))>)
  {
    return decltype(moye::size(declval<Layout_ const&>())){};
  }

  MOYE_HOST_DEVICE constexpr auto data() const {
    if constexpr (Engine::kOwns) {
      return Pointer<Space::rmem, Element const, 16>{engine.storage};
    } else {
      return engine.begin;
    }
  }
  MOYE_HOST_DEVICE constexpr auto data() {
    if constexpr (Engine::kOwns) {
      return Pointer<Space::rmem, Element, 16>{engine.storage};
    } else {
      return engine.begin;
    }
  }

  /// The element at a coordinate; the subtensor where the coordinate has `_`. With MOYE_BOUNDS_CHECK a coordinate
  /// outside of the shape is reported.
#if MOYE_BOUNDS_CHECK
  // One function per number of coordinates, because a pack cannot be followed by the caller's line.
#define MOYE_UNPACK(...) __VA_ARGS__
#define MOYE_CHECKED_ACCESS(kTypes, kParameters, kCoords)                                                              \
  template <MOYE_UNPACK kTypes>                                                                                        \
  MOYE_HOST_DEVICE constexpr decltype(auto) operator()(MOYE_UNPACK kParameters, SourceLine where = SourceLine::here()) \
      const {                                                                                                          \
    check_bounds(pack_coord kCoords, layout_.shape(), where);                                                          \
    return at(data(), layout_, MOYE_UNPACK kCoords);                                                                   \
  }                                                                                                                    \
  template <MOYE_UNPACK kTypes>                                                                                        \
  MOYE_HOST_DEVICE constexpr decltype(auto) operator()(MOYE_UNPACK kParameters,                                        \
                                                       SourceLine where = SourceLine::here()) {                        \
    check_bounds(pack_coord kCoords, layout_.shape(), where);                                                          \
    return at(data(), layout_, MOYE_UNPACK kCoords);                                                                   \
  }
  MOYE_CHECKED_ACCESS((class A), (A const& a), (a))
  MOYE_CHECKED_ACCESS((class A, class B), (A const& a, B const& b), (a, b))
  MOYE_CHECKED_ACCESS((class A, class B, class C), (A const& a, B const& b, C const& c), (a, b, c))
  MOYE_CHECKED_ACCESS((class A, class B, class C, class D), (A const& a, B const& b, C const& c, D const& d),
                      (a, b, c, d))
  MOYE_CHECKED_ACCESS((class A, class B, class C, class D, class E),
                      (A const& a, B const& b, C const& c, D const& d, E const& e), (a, b, c, d, e))
  MOYE_CHECKED_ACCESS((class A, class B, class C, class D, class E, class F),
                      (A const& a, B const& b, C const& c, D const& d, E const& e, F const& f), (a, b, c, d, e, f))
#undef MOYE_CHECKED_ACCESS
#undef MOYE_UNPACK
#else
  template <class... Coords>
  MOYE_HOST_DEVICE constexpr decltype(auto) operator()(Coords const&... coords) const {
    return at(data(), layout_, coords...);
  }
  template <class... Coords>
  MOYE_HOST_DEVICE constexpr decltype(auto) operator()(Coords const&... coords) {
    return at(data(), layout_, coords...);
  }
#endif
  template <class Coord_>
  MOYE_HOST_DEVICE constexpr decltype(auto) operator[](Coord_ const& coord) const {
    check(coord);
    return at(data(), layout_, coord);
  }
  template <class Coord_>
  MOYE_HOST_DEVICE constexpr decltype(auto) operator[](Coord_ const& coord) {
    check(coord);
    return at(data(), layout_, coord);
  }

  /// The same elements through composition(layout, tiler).
  template <class... Tiler>
  MOYE_HOST_DEVICE constexpr auto compose(Tiler const&... tiler) const {
    return make_view(data(), layout_.compose(tiler...));
  }
  template <class... Tiler>
  MOYE_HOST_DEVICE constexpr auto compose(Tiler const&... tiler) {
    return make_view(data(), layout_.compose(tiler...));
  }

 private:
  template <class Coord_>
  MOYE_HOST_DEVICE constexpr void check([[maybe_unused]] Coord_ const& coord) const {
#if MOYE_BOUNDS_CHECK
    check_bounds(coord, layout_.shape(), {});  // an index operator has no room for the caller's line
#endif
  }
  template <class Iterator, class... Coords>
  static MOYE_HOST_DEVICE constexpr decltype(auto) at(Iterator const& begin, Layout_ const& layout,
                                                      Coords const&... coords) {
    if constexpr (has_underscore<Tuple<Coords...>>) {
      using Coord_ = typename PackedCoord<Coords...>::Type;
      auto const offset = slice_offset(layout, coords...);
      constexpr long long kOffset = static_value<RemoveCvref<decltype(offset)>>;
      // Behind a swizzle the pointer may stay where it is and the offset inside the layout change.
      constexpr long long kMultiple =
          kOffset != kDynamic && !is_composed<Layout_> ? kOffset : SliceMultiple<Coord_, Layout_>::value;
      return make_view(advance<kMultiple>(begin, offset), slice_layout(layout, coords...));
    } else {
      return begin[slice_offset(layout, coords...)];
    }
  }
};

template <class T>
inline constexpr bool is_tensor = false;
template <class Engine, class Layout_>
inline constexpr bool is_tensor<Tensor<Engine, Layout_>> = true;

template <class T>
concept TensorLike = is_tensor<RemoveCvref<T>>;

template <class T, Space kSpace>
inline constexpr bool is_in_space = false;
template <class E, class L, Space kSpace>
inline constexpr bool is_in_space<Tensor<E, L>, kSpace> = [] {
  using Begin = decltype(declval<Tensor<E, L> const&>().data());
  if constexpr (is_pointer<Begin>) {
    return Begin::kSpace == kSpace;
  } else {
    return false;
  }
}();
template <class T>
inline constexpr bool is_gmem = is_in_space<RemoveCvref<T>, Space::gmem>;
template <class T>
inline constexpr bool is_smem = is_in_space<RemoveCvref<T>, Space::smem>;
template <class T>
inline constexpr bool is_rmem = is_in_space<RemoveCvref<T>, Space::rmem>;

// ---------------------------------------------------------------------------------------------------------------------
// Making tensors

template <class T>
MOYE_HOST_DEVICE constexpr auto as_layout(T const& t) {
  if constexpr (is_any_layout<T>) {
    return t;
  } else {
    return make_layout(t);
  }
}

/// A view: make_tensor(make_gmem_ptr(p), layout), or with a shape, or with a shape and a stride.
template <Space kSpace, class T, int kAlign, class Layout_>
MOYE_HOST_DEVICE constexpr auto make_tensor(Pointer<kSpace, T, kAlign> const& p, Layout_ const& layout) {
  return make_view(p, as_layout(layout));
}
template <Space kSpace, class T, int kAlign, class Shape_, class Stride_>
MOYE_HOST_DEVICE constexpr auto make_tensor(Pointer<kSpace, T, kAlign> const& p, Shape_ const& shape,
                                            Stride_ const& stride) {
  return make_view(p, make_layout(shape, stride));
}
template <class Coord_, class Layout_>
MOYE_HOST_DEVICE constexpr auto make_tensor(CoordIterator<Coord_> const& it, Layout_ const& layout) {
  return make_view(it, layout);
}

/// An owning tensor in registers: make_tensor<float>(shape or layout). Its elements are not initialized.
template <class T, class Layout_>
  requires(is_any_layout<Layout_> || is_tuple<Layout_> || is_integral<Layout_>)
MOYE_HOST_DEVICE constexpr auto make_tensor(Layout_ const& layout) {
  using L = RemoveCvref<decltype(as_layout(layout))>;
  static_assert(is_static<L>, "make_tensor<T>: a tensor in registers needs a static layout");
  constexpr int kSize = static_cast<int>(static_value<decltype(cosize(declval<L const&>()))>);
  return Tensor<ArrayEngine<T, kSize>, L>{};
}

/// The tensor of its own coordinates: t(m, k) == (m, k). Partitioned like the data, it says where an element came from.
template <class Shape_>
MOYE_HOST_DEVICE constexpr auto make_identity_tensor(Shape_ const& shape) {
  auto const zero = make_arith_tuple(repeat<rank_v<Shape_>>(Int<0>{}));
  return make_view(CoordIterator<RemoveCvref<decltype(zero)>>{zero}, make_identity_layout(shape));
}

/// An owning tensor of a fragment's shape: the values of one instruction contiguous, the rest in the order of strides.
template <class T, class Layout_>
  requires(is_any_layout<Layout_> || is_tuple<Layout_>)
MOYE_HOST_DEVICE constexpr auto make_fragment_like(Layout_ const& layout) {
  return make_tensor<T>(make_fragment_like(layout));
}
template <class T, class E, class L>
MOYE_HOST_DEVICE constexpr auto make_fragment_like(Tensor<E, L> const& t) {
  return make_tensor<T>(make_fragment_like(t.layout()));
}
template <class E, class L>
MOYE_HOST_DEVICE constexpr auto make_fragment_like(Tensor<E, L> const& t) {
  return make_tensor<typename Tensor<E, L>::Value>(make_fragment_like(t.layout()));
}
/// An owning tensor, compact, with the shape and the order of strides of another one.
template <class E, class L>
MOYE_HOST_DEVICE constexpr auto make_tensor_like(Tensor<E, L> const& t) {
  return make_tensor<typename Tensor<E, L>::Value>(make_layout_like(t.layout()));
}

// ---------------------------------------------------------------------------------------------------------------------
// Looking at tensors

template <class E, class L>
inline constexpr int rank_v<Tensor<E, L>> = rank_v<L>;

template <int... I, class E, class L>
MOYE_HOST_DEVICE constexpr auto layout(Tensor<E, L> const& t) {
  return layout<I...>(t.layout());
}
template <int... I, class E, class L>
MOYE_HOST_DEVICE constexpr auto shape(Tensor<E, L> const& t) {
  return shape<I...>(t.layout());
}
template <int... I, class E, class L>
MOYE_HOST_DEVICE constexpr auto stride(Tensor<E, L> const& t) {
  return stride<I...>(t.layout());
}
template <int... I, class E, class L>
MOYE_HOST_DEVICE constexpr auto size(Tensor<E, L> const& t) {
  return size<I...>(t.layout());
}
template <int... I, class E, class L>
MOYE_HOST_DEVICE constexpr auto cosize(Tensor<E, L> const& t) {
  return cosize<I...>(t.layout());
}

// ---------------------------------------------------------------------------------------------------------------------
// The algebra on tensors: the layout changes, the elements stay where they are

template <TensorLike T>
MOYE_HOST_DEVICE constexpr auto flatten(T&& t) {
  return make_view(t.data(), flatten(t.layout()));
}
template <TensorLike T>
MOYE_HOST_DEVICE constexpr auto coalesce(T&& t) {
  return make_view(t.data(), coalesce(t.layout()));
}
template <TensorLike T, class Profile>
MOYE_HOST_DEVICE constexpr auto coalesce(T&& t, Profile const& profile) {
  return make_view(t.data(), coalesce(t.layout(), profile));
}
/// Modes [B, E) as one mode.
template <int B, int E, TensorLike T>
MOYE_HOST_DEVICE constexpr auto group_modes(T&& t) {
  return make_view(t.data(), group<B, E>(t.layout()));
}
template <int B, int E, TensorLike T>
MOYE_HOST_DEVICE constexpr auto take(T&& t) {
  return make_view(t.data(), take<B, E>(t.layout()));
}
template <int... I, TensorLike T>
MOYE_HOST_DEVICE constexpr auto select(T&& t) {
  return make_view(t.data(), select<I...>(t.layout()));
}
/// The tensor with modes of one element behind, or before, its own until it has N.
template <int N, TensorLike T>
MOYE_HOST_DEVICE constexpr auto append(T&& t) {
  return make_view(t.data(), append<N>(t.layout()));
}
template <int N, TensorLike T>
MOYE_HOST_DEVICE constexpr auto prepend(T&& t) {
  return make_view(t.data(), prepend<N>(t.layout()));
}
/// Modes 0 and 1 exchanged.
template <TensorLike T>
MOYE_HOST_DEVICE constexpr auto transpose(T&& t) {
  static_assert(rank_v<RemoveCvref<T>> == 2, "transpose: the tensor does not have two modes");
  return make_view(t.data(), select<1, 0>(t.layout()));
}
template <TensorLike T, class Tiler>
MOYE_HOST_DEVICE constexpr auto logical_divide(T&& t, Tiler const& tiler) {
  return make_view(t.data(), logical_divide(t.layout(), tiler));
}
template <TensorLike T, class Tiler>
MOYE_HOST_DEVICE constexpr auto zipped_divide(T&& t, Tiler const& tiler) {
  return make_view(t.data(), zipped_divide(t.layout(), tiler));
}
template <TensorLike T, class Tiler>
MOYE_HOST_DEVICE constexpr auto tiled_divide(T&& t, Tiler const& tiler) {
  return make_view(t.data(), tiled_divide(t.layout(), tiler));
}
template <TensorLike T, class Tiler>
MOYE_HOST_DEVICE constexpr auto flat_divide(T&& t, Tiler const& tiler) {
  return make_view(t.data(), flat_divide(t.layout(), tiler));
}

/// The tensor that starts at `coord`: domain_offset(c, t)(d) == t(c + d).
template <class Coord_, TensorLike T>
MOYE_HOST_DEVICE constexpr auto domain_offset(Coord_ const& coord, T&& t) {
  using L = typename RemoveCvref<T>::LayoutType;
  if constexpr (is_composed<L>) {
    auto const l = t.layout();
    constexpr long long kMultiple = gcd_value(leaves_gcd<decltype(l.layout().stride())>, swizzle_vector<L>);
    return make_view(advance<kMultiple>(t.data(), l.outside(coord)),
                     make_composed_layout(l.swizzle(), l.offset() + l.inside(coord), l.layout()));
  } else {
    return make_view(advance<leaves_gcd<decltype(t.layout().stride())>>(t.data(), t.layout()(coord)), t.layout());
  }
}

/// The same memory as elements of another type; the layout is recast with it.
template <class NewT, TensorLike T>
MOYE_HOST_DEVICE auto recast(T&& t) {
  using OldT = typename RemoveCvref<T>::Value;
  auto const l = recast_layout<static_cast<int>(sizeof(OldT)) * 8, static_cast<int>(sizeof(NewT)) * 8>(t.layout());
  return make_view(recast_ptr<NewT>(t.data()), l);
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiles and partitions

/// Keeps a mode out of a projection: local_tile(t, tiler, coord, Step<_1, X, _1>{}).
using X = Underscore;

/// Tile `coord` of the tensor cut into tiles: the tile's modes, then those modes of the rest where coord has `_`.
/// (m,k) with tile (BLK_M,BLK_K) at (i, _) is (BLK_M,BLK_K,k).
template <TensorLike T, class Tiler, class Coord_>
MOYE_HOST_DEVICE constexpr auto local_tile(T&& t, Tiler const& tiler, Coord_ const& coord) {
  auto const tiled = zipped_divide(t, tiler);  // ((BLK_M,BLK_K,...),(m,k,...))
  using L = typename RemoveCvref<decltype(tiled)>::LayoutType;
  constexpr int kTile = rank_v<decltype(shape<0>(declval<L const&>()))>;
  constexpr int kRest = rank_v<decltype(shape<1>(declval<L const&>()))>;
  return tiled(repeat<kTile>(_), append<kRest>(wrap(coord), _));
}
/// The same with only those modes of tiler and coord at which the projection has no X.
template <TensorLike T, class Tiler, class Coord_, class Projection>
MOYE_HOST_DEVICE constexpr auto local_tile(T&& t, Tiler const& tiler, Coord_ const& coord,
                                           Projection const& projection) {
  return local_tile(t, dice_to_tuple(projection, tiler), dice_to_tuple(projection, coord));
}

/// The elements of thread `index` when the threads of thr_layout cover the tensor side by side, tile after tile.
template <TensorLike T, class S, class D, class Index>
MOYE_HOST_DEVICE constexpr auto local_partition(T&& t, Layout<S, D> const& thr_layout, Index const& index) {
  auto const extents = product_each(thr_layout.shape());
  auto const tiled = zipped_divide(t, extents);  // ((THR_M,THR_N,...),(m,n,...))
  auto const linear = right_inverse(thr_layout)(index);
  using L = typename RemoveCvref<decltype(tiled)>::LayoutType;
  constexpr int kRest = rank_v<decltype(shape<1>(declval<L const&>()))>;
  return tiled(idx2crd(linear, extents), repeat<kRest>(_));
}
template <TensorLike T, class S, class D, class Index, class Projection>
MOYE_HOST_DEVICE constexpr auto local_partition(T&& t, Layout<S, D> const& thr_layout, Index const& index,
                                                Projection const& projection) {
  auto const coord = idx2crd(right_inverse(thr_layout)(index), product_each(thr_layout.shape()));
  auto const extents = dice_to_tuple(projection, product_each(thr_layout.shape()));
  auto const tiled = zipped_divide(t, extents);
  using L = typename RemoveCvref<decltype(tiled)>::LayoutType;
  constexpr int kRest = rank_v<decltype(shape<1>(declval<L const&>()))>;
  return tiled(dice_to_tuple(projection, coord), repeat<kRest>(_));
}

}  // namespace moye
