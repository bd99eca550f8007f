// MmaAtom: one multiply-accumulate instruction. TiledMma: the atom repeated over warps (the atom layout) and over
// values (the permutation tile). ThrMma: one thread's part of it, which partitions tensors and makes fragments.
#pragma once

#include "moye/atom/copy_atom.h"
#include "moye/atom/mma_traits.h"
#include "moye/tensor.h"

namespace moye {

template <class Op_>
struct MmaAtom {
  using Op = Op_;
  using Traits = MmaTraits<Op>;
  using ValTypeD = typename Traits::ValTypeD;
  using ValTypeA = typename Traits::ValTypeA;
  using ValTypeB = typename Traits::ValTypeB;
  using ValTypeC = typename Traits::ValTypeC;
  using ShapeMNK = typename Traits::ShapeMNK;
  using ThrId = typename Traits::ThrId;
  using LayoutATV = typename Traits::ALayout;
  using LayoutBTV = typename Traits::BLayout;
  using LayoutCTV = typename Traits::CLayout;

  /// D = A * B + C, all in registers.
  template <class D, class A, class B, class C>
  static MOYE_DEVICE void call(D&& d, A const& a, B const& b, C const& c) {
    static_assert(is_rmem<D> && is_rmem<A> && is_rmem<B> && is_rmem<C>, "mma: the operands are not in registers");
    static_assert(
        is_target_arch<min_arch<Op>>,
        "mma: the architecture this kernel is compiled for does not have the instruction; it must be at least "
        "sm_<kMinArch of the op>");
    static_assert(
        is_whole_bytes<ValTypeA> && is_whole_bytes<ValTypeB>,
        "mma: the values are smaller than a byte: make_tiled_mma(MmaInWords<Op>{}, ...) has registers of them");
    call_impl(as_operands<typename Op::DRegisters>(d), as_operands<typename Op::ARegisters>(a),
              as_operands<typename Op::BRegisters>(b), as_operands<typename Op::CRegisters>(c),
              MakeSeq<register_count<typename Op::DRegisters>>{}, MakeSeq<register_count<typename Op::ARegisters>>{},
              MakeSeq<register_count<typename Op::BRegisters>>{}, MakeSeq<register_count<typename Op::CRegisters>>{});
  }

 private:
  template <class D, class A, class B, class C, int... DI, int... AI, int... BI, int... CI>
  static MOYE_DEVICE void call_impl(D const& d, A const& a, B const& b, C const& c, Seq<DI...>, Seq<AI...>, Seq<BI...>,
                                    Seq<CI...>) {
    Op::fma(d(Int<DI>{})..., a(Int<AI>{})..., b(Int<BI>{})..., c(Int<CI>{})...);
  }
};

template <class Tiled>
struct ThrMma;

/// The thread layout with the lanes between an atom's threads, if there are any, as a fifth mode: with fewer than four
/// of sm_70's quad pairs those lanes execute the instruction, too, and do as the atom's own.
template <class ThrLayout>
MOYE_HOST_DEVICE constexpr auto with_lanes_between(ThrLayout const& thr_vmnk) {
  if constexpr (decltype(size(complement(thr_vmnk)))::value == 1) {
    return thr_vmnk;
  } else {
    return append<5>(thr_vmnk, complement(thr_vmnk));
  }
}

/// AtomLayout_: (m,n,k) -> which atom's threads. Permutation_: per mode the tile (an integer, a layout of its elements,
/// or
/// `_`) within which the atoms' rows and columns are dealt out.
template <class Atom_, class AtomLayout_, class Permutation_>
struct TiledMma : Atom_ {
  using Atom = Atom_;
  using AtomShape = typename Atom::ShapeMNK;
  using AtomLayout = AtomLayout_;
  using Permutation = Permutation_;
  using ThrLayoutVMNK =
      decltype(tiled_product(typename Atom::ThrId{}, AtomLayout{}));  // (thread of atom, M, N, K) -> thread
  static constexpr int kNumThreads = decltype(size(ThrLayoutVMNK{}))::value;
  static_assert(rank_v<AtomLayout> == 3 && rank_v<Permutation> == 3,
                "TiledMma: atom layout and permutation are (M,N,K)");

  MOYE_HOST_DEVICE static constexpr auto thr_layout_vmnk() { return ThrLayoutVMNK{}; }

  /// The extent of the tile along mode I of (M,N,K).
  template <int I>
  MOYE_HOST_DEVICE static constexpr auto tile_size_mnk() {
    constexpr auto kAtoms = get<I>(AtomShape{}) * size<I + 1>(ThrLayoutVMNK{});
    using Tile_ = TupleElement<I, Permutation>;
    if constexpr (is_underscore<Tile_>) {
      return kAtoms;
    } else {
      static_assert(decltype(size(declval<Tile_>()))::value % kAtoms == 0,
                    "TiledMma: the permutation tile is not a multiple of the atoms that share it");
      return size(Tile_{});
    }
  }
  MOYE_HOST_DEVICE static constexpr auto tile_shape() {
    return make_shape(tile_size_mnk<0>(), tile_size_mnk<1>(), tile_size_mnk<2>());
  }

  /// ((thread of atom, (atoms along I, atoms along J)), (value, (RestI, RestJ, ...))) of a layout (I, J, ...)
  template <int I, int J, class LayoutTV, class L>
  MOYE_HOST_DEVICE static constexpr auto thrfrg(LayoutTV const& layout_tv, L const& l) {
    static_assert(rank_v<L> >= 2, "TiledMma: the tensor has fewer than two modes");
    auto const permuted = logical_divide(l, make_tile(get<I>(Permutation{}), get<J>(Permutation{})));
    auto const atoms = zipped_divide(permuted, make_tile(get<I>(AtomShape{}), get<J>(AtomShape{})));
    auto const values = composition(mode<0>(atoms), layout_tv);  // (thread of atom, value)
    auto const rest =
        zipped_divide(mode<1>(atoms), make_tile(size<I + 1>(ThrLayoutVMNK{}), size<J + 1>(ThrLayoutVMNK{})));
    return make_layout(make_layout(mode<0>(values), mode<0>(rest)), make_layout(mode<1>(values), mode<1>(rest)));
  }
  template <class L>
  MOYE_HOST_DEVICE static constexpr auto thrfrg_A(L const& l) {
    return thrfrg<0, 2>(typename Atom::LayoutATV{}, l);
  }
  template <class L>
  MOYE_HOST_DEVICE static constexpr auto thrfrg_B(L const& l) {
    return thrfrg<1, 2>(typename Atom::LayoutBTV{}, l);
  }
  template <class L>
  MOYE_HOST_DEVICE static constexpr auto thrfrg_C(L const& l) {
    return thrfrg<0, 1>(typename Atom::LayoutCTV{}, l);
  }

  // (thread, (value, (atoms of this thread))) -> index in the tile of A, B or C. Threads that differ only along the
  // mode the operand does not have hold the same elements: stride 0.
  MOYE_HOST_DEVICE static constexpr auto layout_A_TV() {
    auto const l = thrfrg_A(make_layout(make_shape(tile_size_mnk<0>(), tile_size_mnk<2>())));
    return layout_TV(l, mode<0>(mode<1>(mode<0>(l))), shared<2>(), mode<1>(mode<1>(mode<0>(l))));
  }
  MOYE_HOST_DEVICE static constexpr auto layout_B_TV() {
    auto const l = thrfrg_B(make_layout(make_shape(tile_size_mnk<1>(), tile_size_mnk<2>())));
    return layout_TV(l, shared<1>(), mode<0>(mode<1>(mode<0>(l))), mode<1>(mode<1>(mode<0>(l))));
  }
  MOYE_HOST_DEVICE static constexpr auto layout_C_TV() {
    auto const l = thrfrg_C(make_layout(make_shape(tile_size_mnk<0>(), tile_size_mnk<1>())));
    return layout_TV(l, mode<0>(mode<1>(mode<0>(l))), mode<1>(mode<1>(mode<0>(l))), shared<3>());
  }

  template <class Thread>
  MOYE_HOST_DEVICE static constexpr auto get_slice(Thread const& thread) {
    return ThrMma<TiledMma>(static_cast<int>(thread));
  }
  template <class Thread>
  MOYE_HOST_DEVICE static constexpr auto get_thread_slice(Thread const& thread) {
    return get_slice(thread);
  }

  // CuTe's names for them.
  MOYE_HOST_DEVICE static constexpr auto get_layoutA_TV() { return layout_A_TV(); }
  MOYE_HOST_DEVICE static constexpr auto get_layoutB_TV() { return layout_B_TV(); }
  MOYE_HOST_DEVICE static constexpr auto get_layoutC_TV() { return layout_C_TV(); }
  MOYE_HOST_DEVICE static constexpr auto get_thr_layout_vmnk() { return thr_layout_vmnk(); }

  // The inverse, for pictures: ((m,k) -> thread + threads * value, (thread of atom, M, K) -> thread) of A's tile, and
  // of B's and C's. Of threads that hold the same element the first counts.
  MOYE_HOST_DEVICE static constexpr auto get_layoutA_MK() {
    return make_tuple(by_place(layout_A_TV(), make_shape(tile_size_mnk<0>(), tile_size_mnk<2>())),
                      select<0, 1, 3>(ThrLayoutVMNK{}));
  }
  MOYE_HOST_DEVICE static constexpr auto get_layoutB_NK() {
    return make_tuple(by_place(layout_B_TV(), make_shape(tile_size_mnk<1>(), tile_size_mnk<2>())),
                      select<0, 2, 3>(ThrLayoutVMNK{}));
  }
  MOYE_HOST_DEVICE static constexpr auto get_layoutC_MN() {
    return make_tuple(by_place(layout_C_TV(), make_shape(tile_size_mnk<0>(), tile_size_mnk<1>())),
                      select<0, 1, 2>(ThrLayoutVMNK{}));
  }

  /// The shape of a thread's part of a tile: (value, RestM, RestK) of (M,K), (value, RestN, RestK) of (N,K),
  /// (value, RestM, RestN) of (M,N).
  template <class ShapeMK>
  MOYE_HOST_DEVICE static constexpr auto partition_shape_A(ShapeMK const& shape_mk) {
    return part_shape(thrfrg_A(make_layout(shape_mk)).shape());
  }
  template <class ShapeNK>
  MOYE_HOST_DEVICE static constexpr auto partition_shape_B(ShapeNK const& shape_nk) {
    return part_shape(thrfrg_B(make_layout(shape_nk)).shape());
  }
  template <class ShapeMN>
  MOYE_HOST_DEVICE static constexpr auto partition_shape_C(ShapeMN const& shape_mn) {
    return part_shape(thrfrg_C(make_layout(shape_mn)).shape());
  }

 private:
  template <class Frg>
  static MOYE_HOST_DEVICE constexpr auto part_shape(Frg const& frg) {
    return tuple_cat(make_tuple(get<1, 0>(frg)), get<1, 1>(frg));
  }
  template <class LayoutTV, class Tile_>
  static MOYE_HOST_DEVICE constexpr auto by_place(LayoutTV const& layout_tv, Tile_ const& tile) {
    return composition(right_inverse(layout_tv), make_layout(tile));
  }
  template <int I>
  static MOYE_HOST_DEVICE constexpr auto shared() {
    return make_layout(size<I>(ThrLayoutVMNK{}), Int<0>{});
  }
  template <class L, class M, class N, class K>
  static MOYE_HOST_DEVICE constexpr auto layout_TV(L const& l, M const& thr_m, N const& thr_n, K const& thr_k) {
    auto const by_vmnk = make_layout(mode<0>(mode<0>(l)), thr_m, thr_n, thr_k);
    auto const all = with_lanes_between(ThrLayoutVMNK{});
    if constexpr (rank_v<RemoveCvref<decltype(all)>> == 4) {
      return make_layout(composition(by_vmnk, right_inverse(all)), mode<1>(l));
    } else {
      auto const by_lane = append<5>(by_vmnk, make_layout(size<4>(all), Int<0>{}));
      return make_layout(composition(by_lane, right_inverse(all)), mode<1>(l));
    }
  }
};

template <class Atom, class AtomLayout, class Permutation>
MOYE_HOST_DEVICE constexpr auto size(TiledMma<Atom, AtomLayout, Permutation> const&) {
  return Int<TiledMma<Atom, AtomLayout, Permutation>::kNumThreads>{};
}
template <int I, class Atom, class AtomLayout, class Permutation>
MOYE_HOST_DEVICE constexpr auto tile_size(TiledMma<Atom, AtomLayout, Permutation> const&) {
  return TiledMma<Atom, AtomLayout, Permutation>::template tile_size_mnk<I>();
}
template <class Atom, class AtomLayout, class Permutation>
MOYE_HOST_DEVICE constexpr auto tile_shape(TiledMma<Atom, AtomLayout, Permutation> const&) {
  return TiledMma<Atom, AtomLayout, Permutation>::tile_shape();
}

template <class Tiled>
struct ThrMma : Tiled {
  int thread;

  MOYE_HOST_DEVICE constexpr explicit ThrMma(int t) : thread(t) {}

  /// This thread's elements of a tile: (value,RestM,RestK,...), (value,RestN,RestK,...), (value,RestM,RestN,...)
  template <TensorLike T>
  MOYE_HOST_DEVICE constexpr auto partition_A(T&& t) const {
    return slice_thread<1, 3>(t, [](auto const& l) { return Tiled::thrfrg_A(l); });
  }
  template <TensorLike T>
  MOYE_HOST_DEVICE constexpr auto partition_B(T&& t) const {
    return slice_thread<2, 3>(t, [](auto const& l) { return Tiled::thrfrg_B(l); });
  }
  template <TensorLike T>
  MOYE_HOST_DEVICE constexpr auto partition_C(T&& t) const {
    return slice_thread<1, 2>(t, [](auto const& l) { return Tiled::thrfrg_C(l); });
  }

  /// Registers for a partitioned tensor.
  template <TensorLike T>
  MOYE_HOST_DEVICE static constexpr auto make_fragment_A(T const& partitioned) {
    return make_fragment_like<typename Tiled::ValTypeA>(partitioned.layout());
  }
  template <TensorLike T>
  MOYE_HOST_DEVICE static constexpr auto make_fragment_B(T const& partitioned) {
    return make_fragment_like<typename Tiled::ValTypeB>(partitioned.layout());
  }
  template <TensorLike T>
  MOYE_HOST_DEVICE static constexpr auto make_fragment_C(T const& partitioned) {
    return make_tensor<typename Tiled::ValTypeC>(partitioned.shape());
  }

  // Of operands that the instruction reads from shared memory: descriptors.
  template <TensorLike T>
    requires requires(T const& t) { Tiled::make_operand_A(t); }
  MOYE_DEVICE static auto make_fragment_A(T const& partitioned) {
    return Tiled::make_operand_A(partitioned);
  }
  template <TensorLike T>
    requires requires(T const& t) { Tiled::make_operand_B(t); }
  MOYE_DEVICE static auto make_fragment_B(T const& partitioned) {
    return Tiled::make_operand_B(partitioned);
  }

  template <TensorLike T>
  MOYE_HOST_DEVICE constexpr auto partition_fragment_A(T&& t) const {
    return make_fragment_A(partition_A(t));
  }
  template <TensorLike T>
  MOYE_HOST_DEVICE constexpr auto partition_fragment_B(T&& t) const {
    return make_fragment_B(partition_B(t));
  }
  template <TensorLike T>
  MOYE_HOST_DEVICE constexpr auto partition_fragment_C(T&& t) const {
    return make_fragment_C(partition_C(t));
  }

 private:
  /// kI, kJ: the places of the operand's modes in (V,M,N,K).
  template <int kI, int kJ, class T, class F>
  MOYE_HOST_DEVICE constexpr auto slice_thread(T&& t, F const& thrfrg) const {
    using ThrLayout = typename Tiled::ThrLayoutVMNK;
    auto const all = with_lanes_between(ThrLayout{});
    auto const vmnk = idx2crd(right_inverse(all)(thread), product_each(shape(all)));
    auto const inner = thrfrg(layout_part(t.layout()));
    constexpr int kRest = rank_v<decltype(shape<1, 1>(declval<RemoveCvref<decltype(inner)> const&>()))>;
    auto const coord =
        make_coord(make_coord(get<0>(vmnk), make_coord(get<kI>(vmnk), get<kJ>(vmnk))), make_coord(_, repeat<kRest>(_)));
    if constexpr (is_composed<typename RemoveCvref<T>::LayoutType>) {
      return make_view(t.data(), t.layout().with(inner))(coord);
    } else {
      return make_view(t.data(), inner)(coord);
    }
  }
};

/// Registers for this thread's part of an (M,N) tile of C.
template <class Atom, class AtomLayout, class Permutation, class ShapeMN>
MOYE_HOST_DEVICE constexpr auto partition_fragment_C(TiledMma<Atom, AtomLayout, Permutation> const&,
                                                     ShapeMN const& shape_mn) {
  using Tiled = TiledMma<Atom, AtomLayout, Permutation>;
  return make_tensor<typename Tiled::ValTypeC>(Tiled::partition_shape_C(shape_mn));
}

/// The op's atom for every place of atom_layout (m,n,k) -> atom, over a tile per mode.
template <class Op, class AtomLayout = Layout<Shape<_1, _1, _1>>,
          class Permutation = Tile<Underscore, Underscore, Underscore>>
MOYE_HOST_DEVICE constexpr auto make_tiled_mma(Op const&, AtomLayout const& atom_layout = {},
                                               Permutation const& permutation = {}) {
  auto const layout_mnk = append<3>(atom_layout, make_layout(Int<1>{}, Int<0>{}));
  auto const tile_mnk = append<3>(permutation, _);
  return TiledMma<MmaAtom<Op>, RemoveCvref<decltype(layout_mnk)>, RemoveCvref<decltype(tile_mnk)>>{};
}

}  // namespace moye
