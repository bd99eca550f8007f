// One small kernel per instruction: a CTA multiplies one tile that it brings through shared memory into registers.
// The same source runs in the emulator (kernels.cc) and on the GPU (kernels_gpu.cu).
#pragma once

#include "moye/arch/barrier.h"
#include "moye/arch/launch.h"
#include "moye/moye.h"

namespace moye {

struct TileOperands {
  void const* a;  // (M,K), k contiguous
  void const* b;  // (N,K), k contiguous
  void* c;        // (M,N), n contiguous
};

template <class Kernel>
MOYE_KERNEL(Kernel::kThreads)
tile_kernel(MOYE_GRID_CONSTANT TileOperands const operands) {
  Kernel::run(operands);
}

struct FromSharedMemory {};  // in place of a copy op: gemm() reads shared memory itself

/// SmemLayoutA (M,K) and SmemLayoutB (N,K) of one tile; CopyOpA and CopyOpB from there to registers.
template <class TiledMma_, class SmemLayoutA, class SmemLayoutB, class CopyOpA, class CopyOpB>
struct TileKernel {
  using Mma = TiledMma_;
  using A = typename Mma::ValTypeA;
  using B = typename Mma::ValTypeB;
  using C = typename Mma::ValTypeC;
  static constexpr int kThreads = Mma::kNumThreads;
  static constexpr int kM = decltype(size<0>(SmemLayoutA{}))::value;
  static constexpr int kN = decltype(size<0>(SmemLayoutB{}))::value;
  static constexpr int kK = decltype(size<1>(SmemLayoutA{}))::value;

  struct Storage {
    alignas(1024) A a[cosize_v<SmemLayoutA>];
    alignas(1024) B b[cosize_v<SmemLayoutB>];
  };

  static MOYE_DEVICE void run(TileOperands const& operands) {
    auto& smem = *reinterpret_cast<Storage*>(smem_base());
    int const thread = thread_idx().x;
    Tensor gA = make_tensor(make_gmem_ptr(static_cast<A const*>(operands.a)), make_shape(Int<kM>{}, Int<kK>{}),
                            LayoutRight{});  // (M,K)
    Tensor gB = make_tensor(make_gmem_ptr(static_cast<B const*>(operands.b)), make_shape(Int<kN>{}, Int<kK>{}),
                            LayoutRight{});  // (N,K)
    Tensor gC = make_tensor(make_gmem_ptr(static_cast<C*>(operands.c)), make_shape(Int<kM>{}, Int<kN>{}),
                            LayoutRight{});                         // (M,N)
    Tensor sA = make_tensor(make_smem_ptr(smem.a), SmemLayoutA{});  // (M,K)
    Tensor sB = make_tensor(make_smem_ptr(smem.b), SmemLayoutB{});  // (N,K)
    for (int i = thread; i < kM * kK; i += kThreads) sA(i) = gA(i);
    for (int i = thread; i < kN * kK; i += kThreads) sB(i) = gB(i);
    sync_threads();

    Mma mma;
    auto const thr_mma = mma.get_slice(thread);
    Tensor tCgC = thr_mma.partition_C(gC);        // (MMA,MMA_M,MMA_N)
    Tensor tCrC = thr_mma.make_fragment_C(tCgC);  // (MMA,MMA_M,MMA_N)
    clear(tCrC);
    if constexpr (is_same<CopyOpA, FromSharedMemory>) {
      gemm(mma, thr_mma.partition_A(sA), thr_mma.partition_B(sB), tCrC);
    } else {
      Tensor tCrA = thr_mma.partition_fragment_A(sA);  // (MMA,MMA_M,MMA_K)
      Tensor tCrB = thr_mma.partition_fragment_B(sB);  // (MMA,MMA_N,MMA_K)
      auto const copy_a = make_tiled_copy_A(CopyAtom<CopyOpA, A>{}, mma);
      auto const copy_b = make_tiled_copy_B(CopyAtom<CopyOpB, B>{}, mma);
      auto const thr_copy_a = copy_a.get_slice(thread);
      auto const thr_copy_b = copy_b.get_slice(thread);
      copy(copy_a, thr_copy_a.partition_S(sA), thr_copy_a.retile_D(tCrA));
      copy(copy_b, thr_copy_b.partition_S(sB), thr_copy_b.retile_D(tCrB));
      gemm(mma, tCrA, tCrB, tCrC);
    }
    copy(tCrC, tCgC);
  }

  static Status launch(TileOperands const& operands, StreamHandle stream) {
    return launch_kernel(tile_kernel<TileKernel>, {{1, 1, 1}, {kThreads, 1, 1}, {1, 1, 1}, int(sizeof(Storage))},
                         stream, operands);
  }
};

/// A tile of Rows x Ks values: k contiguous in rows of kRowValues, swizzled in units of 16 bytes.
template <class T, int kRows, int kKs>
using KMajor = decltype(tile_to_shape(
    composition(
        Swizzle<2, trailing_zeros<16 / static_cast<int>(sizeof(T))>, 3>{},
        Layout<Shape<_8, Int<64 / static_cast<int>(sizeof(T))>>, Stride<Int<64 / static_cast<int>(sizeof(T))>, _1>>{}),
    make_shape(Int<kRows>{}, Int<kKs>{})));
/// m or n contiguous in runs of 64 16-bit values, swizzled.
template <int kRows, int kKs>
using MnMajor = decltype(tile_to_shape(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_64, _8>, Stride<_1, _64>>{}),
                                       make_shape(Int<kRows>{}, Int<kKs>{})));
/// k contiguous, rows padded.
template <int kRows, int kKs>
using Padded = Layout<Shape<Int<kRows>, Int<kKs>>, Stride<Int<kKs + 4>, _1>>;

template <class Op, class AtomLayout, class Tile_ = Tile<Underscore, Underscore, Underscore>>
using Tiled = decltype(make_tiled_mma(Op{}, AtomLayout{}, Tile_{}));
using Warps2x2 = Layout<Shape<_2, _2, _1>>;
using Shared = FromSharedMemory;

template <class Op, int kKs>
using Plain = TileKernel<Tiled<Op, Warps2x2>, Padded<64, kKs>, Padded<64, kKs>, Shared, Shared>;

using BF16x16 = SM80_16x8x16_F32BF16BF16F32_TN;
using F16x16 = SM80_16x8x16_F32F16F16F32_TN;
using F16x8 = SM80_16x8x8_F32F16F16F32_TN;
using TF32x8 = SM80_16x8x8_F32TF32TF32F32_TN;
using S8x32 = SM80_16x8x32_S32S8S8S32_TN;
using Groups = Layout<Shape<_16, _4>, Stride<_4, _1>>;

/// visit.template operator()<Kernel>(name) for every kernel.
template <class Visit>
void for_each_kernel(Visit const& visit) {
#define MOYE_VISIT(...) visit.template operator()<__VA_ARGS__>(#__VA_ARGS__)
  using Perm = Tile<_32, _32, _16>;
  // ldmatrix in its six forms, through the swizzled layouts of both majors
  MOYE_VISIT(TileKernel<Tiled<BF16x16, Warps2x2, Perm>, KMajor<bfloat16_t, 64, 64>, KMajor<bfloat16_t, 96, 64>,
                        SM75_U32x4_LDSM_N, SM75_U32x4_LDSM_N>);
  MOYE_VISIT(TileKernel<Tiled<F16x16, Warps2x2, Perm>, MnMajor<64, 32>, MnMajor<128, 32>, SM75_U16x8_LDSM_T,
                        SM75_U16x8_LDSM_T>);
  MOYE_VISIT(TileKernel<Tiled<F16x16, Warps2x2, Perm>, KMajor<half_t, 64, 32>, MnMajor<64, 32>, SM75_U32x4_LDSM_N,
                        SM75_U16x8_LDSM_T>);
  MOYE_VISIT(TileKernel<Tiled<F16x16, Warps2x2>, KMajor<half_t, 64, 32>, KMajor<half_t, 64, 32>, SM75_U32x4_LDSM_N,
                        SM75_U32x2_LDSM_N>);
  MOYE_VISIT(
      TileKernel<Tiled<F16x16, Warps2x2>, MnMajor<64, 32>, MnMajor<64, 32>, SM75_U16x8_LDSM_T, SM75_U16x4_LDSM_T>);
  MOYE_VISIT(TileKernel<Tiled<F16x8, Warps2x2>, KMajor<half_t, 64, 32>, KMajor<half_t, 64, 32>, SM75_U32x2_LDSM_N,
                        SM75_U32x1_LDSM_N>);
  MOYE_VISIT(
      TileKernel<Tiled<F16x8, Warps2x2>, MnMajor<64, 32>, MnMajor<64, 32>, SM75_U16x4_LDSM_T, SM75_U16x2_LDSM_T>);
  MOYE_VISIT(TileKernel<Tiled<TF32x8, Layout<Shape<_2, _2, _1>, Stride<_2, _1, _1>>, Tile<_32, _32, _8>>,
                        KMajor<tfloat32_t, 64, 16>, KMajor<tfloat32_t, 64, 16>, SM75_U32x4_LDSM_N, SM75_U32x4_LDSM_N>);
  MOYE_VISIT(TileKernel<Tiled<S8x32, Warps2x2, Tile<_32, _32, _32>>, KMajor<int8_t, 64, 64>, KMajor<int8_t, 64, 64>,
                        SM75_U32x4_LDSM_N, SM75_U32x4_LDSM_N>);
  // register copies of one element, of two
  MOYE_VISIT(TileKernel<Tiled<BF16x16, Warps2x2>, MnMajor<64, 32>, Padded<64, 32>, UniversalCopy<uint16_t>,
                        UniversalCopy<uint32_t>>);
#if !defined(MOYE_FEW_KERNELS)
  // mma of several kinds, operands straight from padded shared memory; atom_kernels.h has every one
  MOYE_VISIT(Plain<SM80_16x8x8_F32BF16BF16F32_TN, 16>);
  MOYE_VISIT(Plain<SM80_16x8x16_F32BF16BF16F32_TN, 32>);
  MOYE_VISIT(Plain<SM80_16x8x8_F32F16F16F32_TN, 16>);
  MOYE_VISIT(Plain<SM80_16x8x16_F32F16F16F32_TN, 32>);
  MOYE_VISIT(Plain<SM80_16x8x8_F16F16F16F16_TN, 16>);
  MOYE_VISIT(Plain<SM80_16x8x16_F16F16F16F16_TN, 32>);
  MOYE_VISIT(Plain<SM80_16x8x4_F32TF32TF32F32_TN, 16>);
  MOYE_VISIT(Plain<SM80_16x8x8_F32TF32TF32F32_TN, 16>);
  MOYE_VISIT(Plain<SM80_8x8x4_F64F64F64F64_TN, 16>);
  MOYE_VISIT(Plain<SM80_8x8x16_S32S8S8S32_TN, 32>);
  MOYE_VISIT(Plain<SM80_8x8x16_S32S8U8S32_TN, 32>);
  MOYE_VISIT(Plain<SM80_8x8x16_S32U8S8S32_TN, 32>);
  MOYE_VISIT(Plain<SM80_8x8x16_S32U8U8S32_TN, 32>);
  MOYE_VISIT(Plain<SM80_16x8x16_S32S8S8S32_TN, 32>);
  MOYE_VISIT(Plain<SM80_16x8x16_S32S8U8S32_TN, 32>);
  MOYE_VISIT(Plain<SM80_16x8x16_S32U8S8S32_TN, 32>);
  MOYE_VISIT(Plain<SM80_16x8x16_S32U8U8S32_TN, 32>);
  MOYE_VISIT(Plain<SM80_16x8x32_S32S8S8S32_TN, 64>);
  MOYE_VISIT(Plain<SM80_16x8x32_S32S8U8S32_TN, 64>);
  MOYE_VISIT(Plain<SM80_16x8x32_S32U8S8S32_TN, 64>);
  MOYE_VISIT(Plain<SM80_16x8x32_S32U8U8S32_TN, 64>);
#endif
  // no tensor core; a thread owns single elements, or groups of four
  MOYE_VISIT(TileKernel<Tiled<UniversalFMA<float, float, float, float>, Layout<Shape<_16, _16, _1>>>, Padded<64, 8>,
                        Padded<32, 8>, Shared, Shared>);
  MOYE_VISIT(
      TileKernel<
          Tiled<UniversalFMA<double, double, double, double>, Layout<Shape<_16, _16, _1>>, Tile<Groups, Groups, _1>>,
          Layout<Shape<_128, _8>, Stride<_1, Int<132>>>, Layout<Shape<_64, _8>, Stride<_1, Int<68>>>, Shared, Shared>);
#undef MOYE_VISIT
}

// Values of an element of memory: one, or the 4-bit integers or bits of a word.
template <class T>
inline constexpr int kValues = 1;
template <>
inline constexpr int kValues<int4x8_t> = 8;
template <>
inline constexpr int kValues<uint4x8_t> = 8;
template <>
inline constexpr int kValues<uint1x32_t> = 32;

template <class T>
double value_of(T const& element, int i) {
  if constexpr (kValues<T> == 1) {
    return static_cast<double>(static_cast<float>(element));
  } else {
    constexpr int kBits = 32 / kValues<T>;
    int const value = static_cast<int>(element.storage >> (kBits * i)) & ((1 << kBits) - 1);
    return is_same<T, int4x8_t> && value >= 8 ? value - 16 : value;
  }
}

/// The i-th operand element: small integers, exact in every type; any where they are packed.
template <class T>
T operand_value(unsigned i) {
  i = i * 2654435761u;
  if constexpr (kValues<T> == 1) {
    int const low = is_same<T, uint8_t> ? 0 : -2;
    return static_cast<T>(static_cast<float>(static_cast<int>((i >> 16) % 5u) + low));
  } else {
    return {i ^ (i >> 15)};
  }
}

/// Whether the op counts bits that differ in place of multiplying.
template <class Op>
inline constexpr bool is_xor = false;
template <class Op>
inline constexpr bool is_xor<MmaInWords<Op>> = is_xor<Op>;
template <>
inline constexpr bool is_xor<SM80_8x8x128_S32U1U1S32_TN_XORPOPC> = true;
template <>
inline constexpr bool is_xor<SM80_16x8x128_S32U1U1S32_TN_XORPOPC> = true;
template <>
inline constexpr bool is_xor<SM80_16x8x256_S32U1U1S32_TN_XORPOPC> = true;

/// Elements of c that are not the sum of products.
template <class Kernel>
int wrong_elements(typename Kernel::A const* a, typename Kernel::B const* b, typename Kernel::C const* c) {
  int wrong = 0;
  for (int m = 0; m < Kernel::kM; ++m) {
    for (int n = 0; n < Kernel::kN; ++n) {
      double sum = 0;
      for (int k = 0; k < Kernel::kK; ++k) {
        for (int i = 0; i < kValues<typename Kernel::A>; ++i) {
          double const x = value_of(a[m * Kernel::kK + k], i), y = value_of(b[n * Kernel::kK + k], i);
          sum += is_xor<typename Kernel::Mma::Op> ? double(x != y) : x * y;
        }
      }
      wrong += !(static_cast<double>(static_cast<float>(c[m * Kernel::kN + n])) == sum);
    }
  }
  return wrong;
}

}  // namespace moye
