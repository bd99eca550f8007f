// wgmma as an MmaAtom: fragments of C in registers, of A and B descriptors (of A registers in RS). A TiledMma of it has
// one atom per warpgroup:
//
//   auto tiled_mma = make_tiled_mma(SM90_64x256x16_F32BF16BF16_SS<Major::K, Major::K>{}, Layout<Shape<_2, _1, _1>>{});
//   auto thr_mma = tiled_mma.get_slice(thread);
//   auto tCrA = thr_mma.partition_fragment_A(sA);                    // (1,MMA_M,MMA_K,PIPE) descriptors
//   auto tCrB = thr_mma.partition_fragment_B(sB);                    // (1,MMA_N,MMA_K,PIPE) descriptors
//   auto tCrC = partition_fragment_C(tiled_mma, Shape<_128, _256>{});  // (MMA,MMA_M,MMA_N)
//   tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
//   warpgroup_fence_operand(tCrC);
//   warpgroup_arrive();
//   gemm(tiled_mma, tCrA(_, _, _, stage), tCrB(_, _, _, stage), tCrC);  // one wgmma per (m,n,k)
//   warpgroup_commit_group();
//
// With a group in flight across iterations the first k-tile stands before the loop (or C is cleared): in
// a loop that begins with accumulate_ at Zero, ptxas 13.0 copies accumulators and serializes every wgmma (C7514).
#pragma once

#include "moye/atom/gmma.h"
#include "moye/atom/mma_atom.h"

namespace moye {

namespace mma_layout {
/// A or B in shared memory: every thread sees all of it.
template <int kRows, int kK>
using GmmaSmem = Layout<Shape<_128, Shape<Int<kRows>, Int<kK>>>, Stride<_0, Stride<_1, Int<kRows>>>>;
/// C: warp w has rows 16 * w to 16 * w + 15, each like mma.sync's.
template <int kN>
using GmmaC =
    Layout<Shape<Shape<_4, _8, _4>, Shape<_2, _2, Int<kN / 8>>>, Stride<Stride<_128, _1, _16>, Stride<_64, _8, _512>>>;
/// A in registers; kPacked elements in each.
template <int kPacked>
struct GmmaRegistersA {
  using Type = Layout<Shape<Shape<_4, _8, _4>, Shape<Int<kPacked>, _2, _2>>,
                      Stride<Stride<Int<64 * kPacked>, _1, _16>, Stride<_64, _8, Int<256 * kPacked>>>>;
};
template <>
struct GmmaRegistersA<1> {
  using Type = Layout<Shape<Shape<_4, _8, _4>, Shape<_2, _2>>, Stride<Stride<_64, _1, _16>, Stride<_8, _256>>>;
};
}  // namespace mma_layout

template <class Facts>
struct GmmaTraits {
  using ValTypeD = typename Facts::ValTypeD;
  using ValTypeA = typename Facts::ValTypeA;
  using ValTypeB = typename Facts::ValTypeB;
  using ValTypeC = ValTypeD;
  using ShapeMNK = Shape<Int<Facts::kM>, Int<Facts::kN>, Int<Facts::kK>>;
  using ThrId = Layout<_128, _1>;
  using BLayout = mma_layout::GmmaSmem<Facts::kN, Facts::kK>;
  using CLayout = mma_layout::GmmaC<Facts::kN>;
};

template <int kN, class D, class A, class B, GMMA::Major kMajorA, GMMA::Major kMajorB, GMMA::ScaleIn kScaleA,
          GMMA::ScaleIn kScaleB>
struct MmaTraits<SM90_WGMMA_SS<kN, D, A, B, kMajorA, kMajorB, kScaleA, kScaleB>>
    : GmmaTraits<typename SM90_WGMMA_SS<kN, D, A, B, kMajorA, kMajorB, kScaleA, kScaleB>::Facts> {
  using ALayout = mma_layout::GmmaSmem<64, 32 / static_cast<int>(sizeof(A))>;
  static constexpr bool kSmemA = true;
};
template <int kN, class D, class A, class B, GMMA::Major kMajorA, GMMA::Major kMajorB, GMMA::ScaleIn kScaleA,
          GMMA::ScaleIn kScaleB>
struct MmaTraits<SM90_WGMMA_RS<kN, D, A, B, kMajorA, kMajorB, kScaleA, kScaleB>>
    : GmmaTraits<typename SM90_WGMMA_RS<kN, D, A, B, kMajorA, kMajorB, kScaleA, kScaleB>::Facts> {
  using ALayout = typename mma_layout::GmmaRegistersA<4 / static_cast<int>(sizeof(A))>::Type;
  static constexpr bool kSmemA = false;
};

/// The atom of wgmma. Unlike others it has a state, as CuTe's: whether the next product is added to C. gemm() adds all
/// of its k-blocks but the first in any case.
template <class Op_>
  requires requires { typename Op_::Facts; }
struct MmaAtom<Op_> {
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

  GMMA::ScaleOut accumulate_ = GMMA::ScaleOut::One;

  /// Starts D = A * B + C, where C is D. It is done when warpgroup_wait_group has waited for it.
  template <class D, class A, class B, class C>
  MOYE_DEVICE void call(D&& d, A const& a, B const& b, C const&) const {
    static_assert(is_rmem<D> && is_rmem<C>, "wgmma: C and D are not in registers");
    Op::fma(registers<typename Op::DRegisters>(d), operand_a(a), b(Int<0>{}).bits, accumulate_);
  }

  /// Fragments of A and B, for ThrMma: of what lies in shared memory the descriptors.
  template <TensorLike T>
  static MOYE_DEVICE auto make_operand_A(T const& partitioned) {
    if constexpr (Traits::kSmemA) {
      return make_gmma_desc_fragment<Op::Facts::kMajorA>(partitioned);
    } else {
      return make_fragment_like<ValTypeA>(partitioned.layout());
    }
  }
  template <TensorLike T>
  static MOYE_DEVICE auto make_operand_B(T const& partitioned) {
    return make_gmma_desc_fragment<Op::Facts::kMajorB>(partitioned);
  }

 private:
  /// A fragment's storage itself: the instruction writes it after it has returned.
  template <class Registers, class T>
  static MOYE_DEVICE auto& registers(T const& t) {
    static_assert(size_v<typename T::LayoutType> * static_cast<int>(sizeof(typename T::Value)) ==
                          static_cast<int>(sizeof(Registers)) &&
                      static_value<decltype(coalesce(declval<T const&>().layout()).stride())> == 1,
                  "wgmma: a fragment is not the instruction's registers, one after the other");
    using Target = CopyConst<typename T::Element, RegisterOf<Registers>>;
    return *reinterpret_cast<Target(*)[register_count<Registers>]>(t.data().get());
  }
  template <class T>
  static MOYE_DEVICE decltype(auto) operand_a(T const& a) {
    if constexpr (Traits::kSmemA) {
      return a(Int<0>{}).bits;
    } else {
      return registers<typename Op::ARegisters>(a);
    }
  }
};

/// warpgroup_fence_operand of all registers of a fragment: before the first wgmma that uses it, and after the wait.
template <TensorLike T>
MOYE_DEVICE void warpgroup_fence_operand(T&& fragment) {
  using Value = typename RemoveCvref<T>::Value;
  static_assert(is_rmem<T>, "warpgroup_fence_operand: the tensor is not in registers");
  using Register = Conditional<is_same<Value, float>, float, uint32_t>;
  auto* const registers = reinterpret_cast<Register*>(&fragment(Int<0>{}));
  constexpr int kCount = size_v<typename RemoveCvref<T>::LayoutType> * static_cast<int>(sizeof(Value)) / 4;
  MOYE_UNROLL
  for (int i = 0; i < kCount; ++i) warpgroup_fence_operand(registers[i]);
}

}  // namespace moye
