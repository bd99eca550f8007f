// What each copy instruction moves from where to where: facts, as layouts.
//   ThrId       (logical thread) -> lane
//   SrcLayout   (logical thread, bit) -> bit of the data, on the source's side
//   DstLayout   the same on the destination's side
//   RefLayout   the side that thread and value layouts of a TiledCopy speak about
#pragma once

#include "moye/arch/copy.h"
#include "moye/arch/copy_sm75.h"
#include "moye/arch/copy_sm80.h"
#include "moye/layout.h"

namespace moye {

template <class Op>
struct CopyTraits;

/// One thread copies kBits bits.
template <int kBits>
struct SingleThreadCopyTraits {
  using ThrId = Layout<_1, _0>;
  using SrcLayout = Layout<Shape<_1, Int<kBits>>, Stride<_0, _1>>;
  using DstLayout = SrcLayout;
  using RefLayout = SrcLayout;
};

template <class S, class D>
struct CopyTraits<UniversalCopy<S, D>> : SingleThreadCopyTraits<static_cast<int>(sizeof(S)) * 8> {};
template <class S, class D>
struct CopyTraits<SM80_CP_ASYNC_CACHEALWAYS<S, D>> : SingleThreadCopyTraits<static_cast<int>(sizeof(S)) * 8> {};
template <class S, class D>
struct CopyTraits<SM80_CP_ASYNC_CACHEGLOBAL<S, D>> : SingleThreadCopyTraits<static_cast<int>(sizeof(S)) * 8> {};

// ldmatrix. Source: lane i holds the address of 16 bytes, row i % 8 of matrix i / 8; with fewer than four matrices the
// other lanes repeat the addresses. Destination: register j holds matrix j, row lane / 4, bytes 4 * (lane % 4) and up
// (_N); with _T the 16-bit elements of a column, so a thread's two values are 128 bits apart.

template <>
struct CopyTraits<SM75_U32x1_LDSM_N> {
  using ThrId = Layout<_32, _1>;
  using SrcLayout = Layout<Shape<Shape<_8, _4>, _128>, Stride<Stride<_128, _0>, _1>>;
  using DstLayout = Layout<Shape<_32, _32>, Stride<_32, _1>>;
  using RefLayout = DstLayout;
};
template <>
struct CopyTraits<SM75_U32x2_LDSM_N> {
  using ThrId = Layout<_32, _1>;
  using SrcLayout = Layout<Shape<Shape<_16, _2>, _128>, Stride<Stride<_128, _0>, _1>>;
  using DstLayout = Layout<Shape<_32, Shape<_32, _2>>, Stride<_32, Stride<_1, _1024>>>;
  using RefLayout = DstLayout;
};
template <>
struct CopyTraits<SM75_U32x4_LDSM_N> {
  using ThrId = Layout<_32, _1>;
  using SrcLayout = Layout<Shape<_32, _128>, Stride<_128, _1>>;
  using DstLayout = Layout<Shape<_32, Shape<_32, _4>>, Stride<_32, Stride<_1, _1024>>>;
  using RefLayout = DstLayout;
};
template <>
struct CopyTraits<SM75_U16x2_LDSM_T> {
  using ThrId = Layout<_32, _1>;
  using SrcLayout = Layout<Shape<Shape<_8, _4>, _128>, Stride<Stride<_128, _0>, _1>>;
  using DstLayout = Layout<Shape<Shape<_4, _8>, Shape<_16, _2>>, Stride<Stride<_256, _16>, Stride<_1, _128>>>;
  using RefLayout = DstLayout;
};
template <>
struct CopyTraits<SM75_U16x4_LDSM_T> {
  using ThrId = Layout<_32, _1>;
  using SrcLayout = Layout<Shape<Shape<_16, _2>, _128>, Stride<Stride<_128, _0>, _1>>;
  using DstLayout =
      Layout<Shape<Shape<_4, _8>, Shape<_16, _2, _2>>, Stride<Stride<_256, _16>, Stride<_1, _128, _1024>>>;
  using RefLayout = DstLayout;
};
template <>
struct CopyTraits<SM75_U16x8_LDSM_T> {
  using ThrId = Layout<_32, _1>;
  using SrcLayout = Layout<Shape<_32, _128>, Stride<_128, _1>>;
  using DstLayout =
      Layout<Shape<Shape<_4, _8>, Shape<_16, _2, _4>>, Stride<Stride<_256, _16>, Stride<_1, _128, _1024>>>;
  using RefLayout = DstLayout;
};

}  // namespace moye
