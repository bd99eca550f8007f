// A kernel of kernels.h for every MMA op of moye/arch: two by two of its atoms multiply a tile of 4 x 4 x 2, straight
// from shared memory. Four quad pairs of sm_70 are a warp.
#pragma once

#include "kernels.h"

namespace moye {

/// The op, with words as elements if its values are smaller than a byte.
template <class Op>
using OnMemory = Conditional<is_whole_bytes<typename MmaTraits<Op>::ValTypeA>, Op, MmaInWords<Op>>;

template <class Op, int kMode>
inline constexpr int kExtent = decltype(get<kMode>(typename MmaTraits<OnMemory<Op>>::ShapeMNK{}))::value;

template <class Op>
using AtomKernel = TileKernel<Tiled<OnMemory<Op>, Warps2x2>, Padded<4 * kExtent<Op, 0>, 2 * kExtent<Op, 2>>,
                              Padded<4 * kExtent<Op, 1>, 2 * kExtent<Op, 2>>, Shared, Shared>;

/// visit.template operator()<Kernel>(name) for the op of every name.
template <class Visit>
void for_each_atom_kernel(Visit const& visit) {
#define MOYE_MMA_OP(op, a, b, c, arch) visit.template operator()<AtomKernel<op>>(#op);
#include "mma_ops.inc"
#undef MOYE_MMA_OP
  visit.template
  operator()<TileKernel<Tiled<SM61_DP4A, Layout<Shape<_16, _8, _1>>>, Padded<32, 16>, Padded<16, 16>, Shared, Shared>>(
      "SM61_DP4A");
  // Quad pairs through tiled copies of four values: K-major operands, and M- and N-major ones.
  visit.template operator()<TileKernel<Tiled<SM70_8x8x4_F32F16F16F32_TN, Warps2x2, Tile<_32, _32, _4>>, Padded<32, 8>,
                                       Padded<32, 8>, UniversalCopy<uint64_t>, UniversalCopy<uint64_t>>>(
      "SM70 TN copies");
  visit.template
  operator()<TileKernel<Tiled<SM70_8x8x4_F16F16F16F16_NT, Warps2x2, Tile<_32, _32, _4>>, Layout<Shape<_32, _8>>,
                        Layout<Shape<_64, _8>>, UniversalCopy<uint64_t>, UniversalCopy<uint64_t>>>("SM70 NT copies");
  // 8-bit floats through ldmatrix.
  visit.template operator()<
      TileKernel<Tiled<SM89_16x8x32_F32E4M3E5M2F32_TN, Warps2x2, Tile<_32, _32, _32>>, KMajor<float_e4m3_t, 64, 64>,
                 KMajor<float_e5m2_t, 64, 64>, SM75_U32x4_LDSM_N, SM75_U32x4_LDSM_N>>("SM89 ldmatrix");
}

}  // namespace moye
