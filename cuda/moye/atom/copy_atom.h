// CopyAtom: one copy instruction on values of a type. TiledCopy: the atom repeated over the threads and values of a
// tile. ThrCopy: one thread's part of it, which partitions tensors.
#pragma once

#include "moye/atom/copy_traits.h"
#include "moye/tensor.h"

namespace moye {

// ---------------------------------------------------------------------------------------------------------------------
// Fragments as an instruction's operands

/// Whether the first N elements of a tensor are one vector in memory (registers count as memory).
template <class T, int N>
inline constexpr bool is_vector = [] {
  using L = typename RemoveCvref<T>::LayoutType;
  using Flat = decltype(coalesce(layout_part(declval<L const&>())));
  constexpr bool kContiguous = N == 1 || is_constant<1, decltype(declval<Flat const&>().stride())>;
  return is_constant<N, decltype(size(declval<L const&>()))> && kContiguous && N <= swizzle_vector<L>;
}();

template <class Registers>
using RegisterOf = RemoveCvref<decltype(declval<Registers>()[0])>;
template <class Registers>
inline constexpr int register_count = static_cast<int>(sizeof(Registers) / sizeof(RegisterOf<Registers>));

/// A fragment as the instruction's operands: element i is operand i, of type RegisterOf<Registers>. One operand is one
/// vector, in memory or registers; several need not be neighbours, but each is contiguous.
template <class Registers, class T>
MOYE_HOST_DEVICE auto as_operands(T&& t) {
  using R = RegisterOf<Registers>;
  constexpr int kElement = static_cast<int>(sizeof(typename RemoveCvref<T>::Value));
  constexpr int kCount = register_count<Registers>;
  static_assert(size_v<typename RemoveCvref<T>::LayoutType> * kElement == static_cast<int>(sizeof(Registers)),
                "copy or mma: a fragment does not have as many values as the instruction's operand");
  if constexpr (kCount == 1) {
    static_assert(is_vector<T, static_cast<int>(sizeof(R)) / kElement>,
                  "copy or mma: the values of an operand are not contiguous, or not in the instruction's order");
    auto& first = t(Int<0>{});
    auto const begin = make_rmem_ptr<1>(&first);
    return make_view(recast_ptr<R>(begin), make_layout(Int<1>{}, Int<0>{}));
  } else {
    static_assert(is_rmem<T>, "copy or mma: only registers can be several operands");
    return recast<R>(t);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// CopyAtom

template <class Op_, class T>
struct CopyAtom {
  using Op = Op_;
  using Traits = CopyTraits<Op>;
  using Value = T;
  static constexpr int kValueBits = static_cast<int>(sizeof(T)) * 8;

  using ThrId = typename Traits::ThrId;
  using ValLayoutSrc =
      decltype(recast_layout<1, kValueBits>(typename Traits::SrcLayout{}));  // (thread, value) -> value
  using ValLayoutDst = decltype(recast_layout<1, kValueBits>(typename Traits::DstLayout{}));
  using ValLayoutRef = decltype(recast_layout<1, kValueBits>(typename Traits::RefLayout{}));
  static constexpr int kThreads = decltype(size(ThrId{}))::value;
  static constexpr int kNumValSrc = decltype(size<1>(ValLayoutSrc{}))::value;
  static constexpr int kNumValDst = decltype(size<1>(ValLayoutDst{}))::value;
  static_assert(decltype(size<0>(ValLayoutSrc{}))::value == kThreads &&
                decltype(size<0>(ValLayoutDst{}))::value == kThreads);

  /// Executes the instruction: src has kNumValSrc contiguous values, dst has kNumValDst.
  template <class Src, class Dst>
  static MOYE_DEVICE void call(Src const& src, Dst&& dst) {
    check<Src, Dst>();
    call_impl(as_operands<typename Op::SRegisters>(src), as_operands<typename Op::DRegisters>(dst),
              MakeSeq<register_count<typename Op::SRegisters>>{}, MakeSeq<register_count<typename Op::DRegisters>>{});
  }
  /// The same, with only the first src_bytes read and zeros behind them. For cp.async.
  template <class Src, class Dst>
  static MOYE_DEVICE void call_zfill(Src const& src, Dst&& dst, int src_bytes) {
    check<Src, Dst>();
    Op::copy_zfill(as_operands<typename Op::SRegisters>(src)(Int<0>{}),
                   as_operands<typename Op::DRegisters>(dst)(Int<0>{}), src_bytes);
  }

 private:
  template <class Src, class Dst>
  static MOYE_HOST_DEVICE constexpr void check() {
    static_assert(
        sizeof(typename RemoveCvref<Src>::Value) == sizeof(T) && sizeof(typename RemoveCvref<Dst>::Value) == sizeof(T),
        "copy: the tensors' elements do not have the size of the atom's values");
  }
  template <class S, class D, int... I, int... J>
  static MOYE_DEVICE void call_impl(S const& src, D const& dst, Seq<I...>, Seq<J...>) {
    Op::copy(src(Int<I>{})..., dst(Int<J>{})...);
  }
};

template <class T>
inline constexpr bool has_zfill_op = false;
template <class S, class D>
inline constexpr bool has_zfill_op<SM80_CP_ASYNC_CACHEALWAYS<S, D>> = true;
template <class S, class D>
inline constexpr bool has_zfill_op<SM80_CP_ASYNC_CACHEGLOBAL<S, D>> = true;

// ---------------------------------------------------------------------------------------------------------------------
// TiledCopy

template <class Tiled>
struct ThrCopy;

/// LayoutTV_: (thread, value) -> index in the tile, in the atom's reference numbering. Tiler_: the tile's modes.
template <class Atom_, class LayoutTV_, class Tiler_>
struct TiledCopy : Atom_ {
  using Atom = Atom_;
  using LayoutTV = LayoutTV_;
  using Tiler = Tiler_;
  static constexpr int kNumThreads = decltype(size<0>(LayoutTV{}))::value;
  static constexpr int kNumValues = decltype(size<1>(LayoutTV{}))::value;
  static_assert(kNumThreads % Atom::kThreads == 0, "TiledCopy: fewer threads than the copy atom needs");
  static_assert(kNumValues % decltype(size<1>(typename Atom::ValLayoutRef{}))::value == 0,
                "TiledCopy: fewer values per thread than the copy atom moves");

  MOYE_HOST_DEVICE static constexpr auto tile_size() { return product_each(tile_shape(Tiler{})); }

  /// (thread, (value of an atom, atom)) -> index in the tile, numbered as the side with layout Side_ numbers them.
  template <class Side_>
  MOYE_HOST_DEVICE static constexpr auto side_layout_TV(Side_ const& side) {
    using Ref = typename Atom::ValLayoutRef;
    // (the atom's (thread, value), (rest of the threads, rest of the values)) -> tile
    auto const divided = zipped_divide(LayoutTV{}, make_tile(size<0>(Ref{}), size<1>(Ref{})));
    auto const to_ref = composition(right_inverse(Ref{}), side);  // the side's (thread, value) -> the reference's
    auto const atom = composition(mode<0>(divided), to_ref);
    auto const rest = mode<1>(divided);
    return make_layout(coalesce(make_layout(mode<0>(atom), mode<0>(rest))),
                       make_layout(coalesce(mode<1>(atom)), coalesce(mode<1>(rest))));
  }
  MOYE_HOST_DEVICE static constexpr auto layout_S_TV() { return side_layout_TV(typename Atom::ValLayoutSrc{}); }
  MOYE_HOST_DEVICE static constexpr auto layout_D_TV() { return side_layout_TV(typename Atom::ValLayoutDst{}); }
  // CuTe's names for them.
  MOYE_HOST_DEVICE static constexpr auto get_layoutS_TV() { return layout_S_TV(); }
  MOYE_HOST_DEVICE static constexpr auto get_layoutD_TV() { return layout_D_TV(); }

  // The inverse, for pictures: ((m,n) -> thread + threads * value, thread -> thread) of the source's or destination's
  // tile. Of threads that hold, or give the address of, the same element the first counts.
  MOYE_HOST_DEVICE static constexpr auto get_layoutS_MN() { return by_place(layout_S_TV()); }
  MOYE_HOST_DEVICE static constexpr auto get_layoutD_MN() { return by_place(layout_D_TV()); }

  /// (thread, (value, atom), rest of mode 0, rest of mode 1, ...) of a tensor
  template <class T, class LayoutTVSide>
  MOYE_HOST_DEVICE static constexpr auto thread_values(T&& t, LayoutTVSide const& layout_tv) {
    static_assert(rank_v<RemoveCvref<T>> >= rank_v<Tiler>, "TiledCopy: the tensor has fewer modes than the tile");
    auto const mapped = tidfrg(layout_part(t.layout()), layout_tv);
    if constexpr (is_composed<typename RemoveCvref<T>::LayoutType>) {
      return make_view(t.data(), t.layout().with(mapped));
    } else {
      return make_view(t.data(), mapped);
    }
  }

  /// ((thread, (value, atom)), (rest of mode 0, rest of mode 1, ...)) of a source's or destination's layout: what a
  /// partition takes one thread's part of.
  template <class L>
  MOYE_HOST_DEVICE static constexpr auto tidfrg_S(L const& l) {
    return tidfrg(l, layout_S_TV());
  }
  template <class L>
  MOYE_HOST_DEVICE static constexpr auto tidfrg_D(L const& l) {
    return tidfrg(l, layout_D_TV());
  }
  template <class L, class LayoutTVSide>
  MOYE_HOST_DEVICE static constexpr auto tidfrg(L const& l, LayoutTVSide const& layout_tv) {
    auto const tiled = zipped_divide(l, Tiler{});  // ((TileM,TileN,...),(RestM,RestN,...))
    MOYE_RETURN(make_layout(composition(mode<0>(tiled), layout_tv), mode<1>(tiled)))
  }

  template <class Thread>
  MOYE_HOST_DEVICE static constexpr auto get_slice(Thread const& thread) {
    return ThrCopy<TiledCopy>{static_cast<int>(thread)};
  }
  template <class Thread>
  MOYE_HOST_DEVICE static constexpr auto get_thread_slice(Thread const& thread) {
    return get_slice(thread);
  }

  /// A fragment cut for another tiling of the same values (an MmaAtom's, say), seen as this copy's (value, atom) modes.
  template <class T>
  MOYE_HOST_DEVICE static constexpr auto retile(T&& t) {
    constexpr int kRank = rank_v<RemoveCvref<T>>;
    constexpr int kV = decltype(size<0>(declval<RemoveCvref<T> const&>()))::value;
    static_assert(kNumValues % kV == 0, "retile: the fragment's vectors do not divide this copy's values per thread");
    // The first kV values of a thread in the tile are the fragment's mode 0; the others are spread over its other
    // modes. The tile in units of (all threads) x kV values: (m,n) -> which group of kV values it belongs to.
    auto const extents = tile_size();
    auto const group_of = upcast<kNumThreads * kV>(composition(right_inverse(LayoutTV{}), make_layout(extents)));
    // (value in the fragment's mode 0, group) -> (v,m,n) in the part of the fragment that one tile covers
    auto const values = logical_product(make_layout(Int<kV>{}), right_inverse(group_of));
    using Ref = typename Atom::ValLayoutRef;
    auto const atoms = zipped_divide(values, make_layout(size<1>(Ref{})));  // (value of an atom, atom) -> (v,m,n)
    auto const tiled = zipped_divide(
        t.layout(), prepend<tuple_size<RemoveCvref<decltype(extents)>> + 1>(product_each(group_of.shape()), Int<kV>{}));
    auto const result = make_layout(composition(mode<0>(tiled), atoms), mode<1>(tiled));
    auto const view = make_view(t.data(), result);  // ((value,atom),(1,RestM,RestN,...))
    return view(_, prepend<kRank>(repeat<kRank - 1>(_), Int<0>{}));
  }

 private:
  template <class LayoutTVSide>
  MOYE_HOST_DEVICE static constexpr auto by_place(LayoutTVSide const& layout_tv) {
    return make_tuple(composition(right_inverse(layout_tv), make_layout(tile_size())), make_layout(Int<kNumThreads>{}));
  }
  template <class Tile_>
  MOYE_HOST_DEVICE static constexpr auto tile_shape(Tile_ const& tile) {
    return transform(tile, [](auto const& x) {
      if constexpr (is_layout<RemoveCvref<decltype(x)>>) {
        return x.shape();
      } else {
        return x;
      }
    });
  }
};

template <class Atom, class LayoutTV, class Tiler>
MOYE_HOST_DEVICE constexpr auto size(TiledCopy<Atom, LayoutTV, Tiler> const&) {
  return Int<TiledCopy<Atom, LayoutTV, Tiler>::kNumThreads>{};
}

template <class Tiled>
struct ThrCopy : Tiled {
  using TiledCopyType = Tiled;
  int thread;

  MOYE_HOST_DEVICE constexpr explicit ThrCopy(int t) : thread(t) {}

  /// This thread's source elements: ((value,atom),RestM,RestN,...)
  template <TensorLike T>
  MOYE_HOST_DEVICE constexpr auto partition_S(T&& t) const {
    return slice_thread(Tiled::thread_values(t, Tiled::layout_S_TV()));
  }
  /// This thread's destination elements: ((value,atom),RestM,RestN,...)
  template <TensorLike T>
  MOYE_HOST_DEVICE constexpr auto partition_D(T&& t) const {
    return slice_thread(Tiled::thread_values(t, Tiled::layout_D_TV()));
  }
  /// A fragment as this copy's source or destination.
  template <TensorLike T>
  MOYE_HOST_DEVICE constexpr auto retile_S(T&& t) const {
    return Tiled::retile(t);
  }
  template <TensorLike T>
  MOYE_HOST_DEVICE constexpr auto retile_D(T&& t) const {
    return Tiled::retile(t);
  }

 private:
  template <class T>
  MOYE_HOST_DEVICE constexpr auto slice_thread(T const& t) const {
    // t: ((thread, (value, atom)), (RestM, RestN, ...))
    constexpr int kRest = rank_v<decltype(shape<1>(declval<T const&>()))>;
    return t(make_coord(thread, _), repeat<kRest>(_));
  }
};

/// From where threads and values sit in the tile: thr_layout (m,n) -> thread, val_layout (m,n) -> value.
template <class Atom, class ThrLayout, class ValLayout = Layout<_1, _0>>
MOYE_HOST_DEVICE constexpr auto make_tiled_copy(Atom const&, ThrLayout const& thr_layout,
                                                ValLayout const& val_layout = {}) {
  auto const layout_mn = raked_product(thr_layout, val_layout);  // (m,n) -> (thread, value)
  auto const layout_tv =
      composition(right_inverse(layout_mn), make_layout(make_shape(size(thr_layout), size(val_layout))));
  using Tiler = RemoveCvref<decltype(product_each(layout_mn.shape()))>;
  return TiledCopy<Atom, RemoveCvref<decltype(layout_tv)>, Tiler>{};
}

/// Copies that bring in exactly what a TiledMma's threads hold of A, B or C.
template <class Atom, class Mma>
MOYE_HOST_DEVICE constexpr auto make_tiled_copy_A(Atom const&, Mma const&) {
  return TiledCopy<Atom, decltype(Mma::layout_A_TV()),
                   decltype(make_shape(Mma::template tile_size_mnk<0>(), Mma::template tile_size_mnk<2>()))>{};
}
template <class Atom, class Mma>
MOYE_HOST_DEVICE constexpr auto make_tiled_copy_B(Atom const&, Mma const&) {
  return TiledCopy<Atom, decltype(Mma::layout_B_TV()),
                   decltype(make_shape(Mma::template tile_size_mnk<1>(), Mma::template tile_size_mnk<2>()))>{};
}
template <class Atom, class Mma>
MOYE_HOST_DEVICE constexpr auto make_tiled_copy_C(Atom const&, Mma const&) {
  return TiledCopy<Atom, decltype(Mma::layout_C_TV()),
                   decltype(make_shape(Mma::template tile_size_mnk<0>(), Mma::template tile_size_mnk<1>()))>{};
}
/// Copies that read, or write, what another tiled copy's threads read or write: the one undoes the other.
template <class Atom, class A, class LayoutTV, class Tiler>
MOYE_HOST_DEVICE constexpr auto make_tiled_copy_S(Atom const&, TiledCopy<A, LayoutTV, Tiler> const&) {
  return TiledCopy<Atom, decltype(TiledCopy<A, LayoutTV, Tiler>::layout_S_TV()), Tiler>{};
}
template <class Atom, class A, class LayoutTV, class Tiler>
MOYE_HOST_DEVICE constexpr auto make_tiled_copy_D(Atom const&, TiledCopy<A, LayoutTV, Tiler> const&) {
  return TiledCopy<Atom, decltype(TiledCopy<A, LayoutTV, Tiler>::layout_D_TV()), Tiler>{};
}

}  // namespace moye
