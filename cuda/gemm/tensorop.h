// How the kernels on mma.sync lay out a dtype: its warps, its way from global to shared memory, shared memory without
// bank conflicts, and how fragments are read from there.
#pragma once

#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/order.h"
#include "moye/atom/copy_atom.h"
#include "moye/atom/mma_atom.h"
#include "moye/layout.h"

namespace moye {

/// kWarpsM x kWarpsN warps, each with atoms of Op. Along n a warp takes two atoms at a time where they have 8 columns
/// and 16 rows, so that one x4 ldmatrix brings in the fragments of both.
template <class Op, int kWarpsM, int kWarpsN>
using WarpTiledMma =
    decltype(make_tiled_mma(Op{}, Layout<Shape<Int<kWarpsM>, Int<kWarpsN>, _1>>{},
                            Tile<Int<kWarpsM* decltype(get<0>(typename MmaTraits<Op>::ShapeMNK{}))::value>,
                                 Int<kWarpsN* decltype(get<0>(typename MmaTraits<Op>::ShapeMNK{}))::value>,
                                 decltype(get<2>(typename MmaTraits<Op>::ShapeMNK{}))>{}));

/// Whether ldmatrix reads fragments of Element from memory that is contiguous along kMajor: it moves rows of 16 bytes,
/// 4 bytes to a thread, and transposes 16-bit elements alone.
template <class Element, Major kMajor>
inline constexpr bool has_ldmatrix = kMajor == Major::k ? sizeof(Element) <= 4 : sizeof(Element) == 2;

/// A fragment's way from shared memory: ldmatrix, or element by element. For bytes along m or n that is dear: 16 times
/// the instructions, each a wavefront of 32 bytes, four times the wavefronts. Wider loads hold bytes of several rows,
/// and a transpose in registers leaves a thread rows side by side, which an atom has 8 apart: D's rows and columns
/// would come permuted, and no longer as pairs for the epilogue.
template <class Element, Major kMajor>
using FragmentCopyAtom = CopyAtom<Conditional<!has_ldmatrix<Element, kMajor>, UniversalCopy<Element>,
                                              Conditional<kMajor == Major::k, SM75_U32x4_LDSM_N, SM75_U16x8_LDSM_T>>,
                                  Element>;

/// Shared memory of k-tiles, (BLK,BLK_K) or (BLK,BLK_K,PIPE), swizzled and without padding: free of bank conflicts for
/// 16-byte cp.async and for FragmentCopyAtom.
///   ldmatrix    8 rows of 16 bytes, one below the other, lie in 8 different groups of 4 banks
///   words       4 ks of 8 rows (4 of 8-byte elements): runs of 32 bytes along k or rows, 4 of which fill the banks
///   bytes       a thread's 4 are ks of one row, so that a warp reads ks 4 apart: 8 rows of 4 such ks
template <class Element, Major kMajor, class TileShape>
MOYE_HOST_DEVICE constexpr auto swizzled_smem(TileShape const& shape) {
  constexpr int kRows = decltype(get<0>(TileShape{}))::value, kBlkK = decltype(get<1>(TileShape{}))::value;
  constexpr int kBytes = int(sizeof(Element));
  constexpr int kBits = trailing_zeros<kBytes>;  // of the bytes of an element
  if constexpr (kMajor == Major::k && kBytes <= 4) {
    static_assert(kBlkK * kBytes == 64 || kBlkK * kBytes == 128, "the swizzles are for rows of 64 or 128 bytes");
    return tile_to_shape(composition(Swizzle<kBlkK * kBytes == 128 ? 3 : 2, 4 - kBits, 3>{},
                                     Layout<Shape<_8, Int<kBlkK>>, Stride<Int<kBlkK>, _1>>{}),
                         shape);
  } else if constexpr (kMajor == Major::k) {
    static_assert(kBlkK * kBytes == 128, "the swizzle is for rows of 128 bytes");
    return tile_to_shape(
        composition(Swizzle<2, 5 - kBits, 2>{}, Layout<Shape<_4, Int<kBlkK>>, Stride<Int<kBlkK>, _1>>{}), shape);
  } else if constexpr (kBytes == 2) {
    constexpr int kRun = kRows < 64 ? kRows : 64;  // of 32, 64 or 128 bytes, whose pieces of 16 change places
    constexpr int kBase = kRun == 64 ? 3 : kRun == 32 ? 2 : 1;
    static_assert(kRun >> kBase == 8, "runs of 16, 32 or 64 elements");
    return tile_to_shape(composition(Swizzle<kBase, 3, 3>{}, Layout<Shape<Int<kRun>, _8>, Stride<_1, Int<kRun>>>{}),
                         shape);
  } else if constexpr (kBytes == 1) {
    constexpr int kRun = kRows % 128 == 0 ? 128 : 64;  // what 8 or 4 threads of a cp.async copy
    return tile_to_shape(
        composition(Swizzle<2, 4, kRun == 128 ? 5 : 4>{}, Layout<Shape<Int<kRun>, _16>, Stride<_1, Int<kRun>>>{}),
        shape);
  } else {
    constexpr int kRun = 128 / kBytes;  // elements of all banks
    return tile_to_shape(composition(Swizzle<2, 5 - kBits, 2>{}, Layout<Shape<Int<kRun>, _4>, Stride<_1, Int<kRun>>>{}),
                         shape);
  }
}

/// The stages of both operands in such memory.
template <GemmConfig kConfig>
struct SwizzledOperands {
  alignas(1024) ElementOfA<kConfig.dtype> a[kConfig.tile.m * kConfig.tile.k * kConfig.stages];
  alignas(1024) ElementOfB<kConfig.dtype> b[kConfig.tile.n * kConfig.tile.k * kConfig.stages];
};

/// The widest copy of kBytes from global to shared memory: cp.async, or through registers where it knows no such size.
template <int kBytes>
struct GlobalCopyOp {
  using Type = UniversalCopy<Conditional<kBytes == 2, uint16_t, uint8_t>>;
};
template <>
struct GlobalCopyOp<16> {
  using Type = SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>;
};
template <>
struct GlobalCopyOp<8> {
  using Type = SM80_CP_ASYNC_CACHEALWAYS<uint64_t>;
};
template <>
struct GlobalCopyOp<4> {
  using Type = SM80_CP_ASYNC_CACHEALWAYS<uint32_t>;
};

}  // namespace moye
