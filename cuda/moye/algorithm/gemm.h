// Multiplication of fragments.
#pragma once

#include "moye/algorithm/copy.h"
#include "moye/atom/mma_atom.h"

namespace moye {

/// Whether an instruction takes the fragment as it is: registers, or descriptors of shared memory.
template <class T>
inline constexpr bool is_mma_operand = is_rmem<T>;
template <class T>
  requires requires { decltype(declval<T const&>().data())::kIsDescriptor; }
inline constexpr bool is_mma_operand<T> = true;

/// The MMA whose products are added to C, if it is one that can leave C out.
template <class Mma>
MOYE_HOST_DEVICE constexpr Mma accumulating(Mma mma) {
  if constexpr (requires { mma.accumulate_; }) mma.accumulate_ = decltype(mma.accumulate_)::One;
  return mma;
}

/// D += ... of one k-block: A (V,M), B (V,N), C and D (V,M,N). Columns are walked back and forth, so that one operand's
/// registers stay in the tensor core's reuse cache from one instruction to the next.
template <class Mma, TensorLike D, TensorLike A, TensorLike B, TensorLike C>
MOYE_DEVICE void gemm_block(Mma const& mma, D&& d, A const& a, B const& b, C const& c) {
  constexpr int kM = decltype(size<1>(declval<A const&>()))::value;
  constexpr int kN = decltype(size<1>(declval<B const&>()))::value;
  MOYE_UNROLL
  for (int n = 0; n < kN; ++n) {
    MOYE_UNROLL
    for (int i = 0; i < kM; ++i) {
      int const m = n % 2 != 0 ? kM - 1 - i : i;
      mma.call(d(_, m, n), a(_, m), b(_, n), c(_, m, n));
    }
  }
}

/// D = A * B + C with one thread's fragments: A (V,M,K) or (V,M), B (V,N,K) or (V,N), C and D (V,M,N). A and B may lie
/// in shared memory; then each k-block is copied to registers first.
template <class Mma, TensorLike D, TensorLike A, TensorLike B, TensorLike C>
  requires requires { typename Mma::ThrLayoutVMNK; }
MOYE_DEVICE void gemm(Mma const& mma, D&& d, A const& a, B const& b, C const& c MOYE_LOC) {
  MOYE_SITE;
  constexpr int kRank = rank_v<A>;
  static_assert(kRank == rank_v<B> && (kRank == 2 || kRank == 3),
                "gemm: A and B are (V,M,K) and (V,N,K), or without K");
  static_assert(rank_v<C> == 3 && rank_v<RemoveCvref<D>> == 3, "gemm: C and D are (V,M,N)");
  static_assert(is_constant<0, decltype(size<1>(declval<A const&>()) - size<1>(declval<C const&>()))>,
                "gemm: A and C differ in M");
  static_assert(is_constant<0, decltype(size<1>(declval<B const&>()) - size<2>(declval<C const&>()))>,
                "gemm: B and C differ in N");
  if constexpr (kRank == 3) {
    static_assert(is_constant<0, decltype(size<2>(declval<A const&>()) - size<2>(declval<B const&>()))>,
                  "gemm: A and B differ in K");
    gemm_k<0>(mma, d, a, b, c);
  } else {
    gemm_in_registers(mma, d, a, b, c);
  }
}
/// C += A * B
template <class Mma, TensorLike A, TensorLike B, TensorLike C>
  requires requires { typename Mma::ThrLayoutVMNK; }
MOYE_DEVICE void gemm(Mma const& mma, A const& a, B const& b, C&& c MOYE_LOC) {
  MOYE_SITE;
  gemm(mma, c, a, b, c);
}

/// C += A * B by one instruction, for kernels that have something to do between two of them: A, B and C are (V).
template <class Mma, TensorLike A, TensorLike B, TensorLike C>
MOYE_DEVICE void gemm_atom(Mma const& mma, A const& a, B const& b, C&& c MOYE_LOC) {
  MOYE_SITE;
  mma.call(c, a, b, c);
}

template <int kBlock, class Mma, class D, class A, class B, class C>
MOYE_DEVICE void gemm_k(Mma const& mma, D&& d, A const& a, B const& b, C const& c) {
  constexpr int kBlocks = decltype(size<2>(declval<A const&>()))::value;
  gemm_in_registers(mma, d, a(_, _, Int<kBlock>{}), b(_, _, Int<kBlock>{}), c);
  if constexpr (kBlock + 1 < kBlocks) {
    gemm_k<kBlock + 1>(accumulating(mma), d, a, b, d);
  }
}

/// One k-block. Operands that the instruction does not take where they are are copied to registers.
template <class Mma, class D, class A, class B, class C>
MOYE_DEVICE void gemm_in_registers(Mma const& mma, D&& d, A const& a, B const& b, C const& c) {
  if constexpr (!is_mma_operand<A>) {
    auto r = make_fragment_like<typename Mma::ValTypeA>(a);
    copy(a, r);
    gemm_in_registers(mma, d, r, b, c);
  } else if constexpr (!is_mma_operand<B>) {
    auto r = make_fragment_like<typename Mma::ValTypeB>(b);
    copy(b, r);
    gemm_in_registers(mma, d, a, r, c);
  } else {
    gemm_block(mma, d, a, b, c);
  }
}

}  // namespace moye
