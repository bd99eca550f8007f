// One vector store each, for test_stores.py to find in the machine code: by copy() and by a copy atom, to global and to
// shared memory. The names of the kernels say how many bytes.
#include "moye/moye.h"

namespace moye {

template <int kBytes, class T>
__global__ void to_global(T* d, T const* s) {
  constexpr int kN = kBytes / int(sizeof(T));
  Tensor r = make_tensor<T>(Layout<Int<kN>>{});
  for (int i = 0; i < kN; ++i) r(i) = s[i];
  copy(r, make_tensor(make_gmem_ptr<kBytes>(d), Layout<Int<kN>>{}));
}

template <int kBytes, class T, class Word>
__global__ void to_global_by_atom(T* d, T const* s) {
  constexpr int kN = kBytes / int(sizeof(T));
  Tensor r = make_tensor<T>(Layout<Shape<Int<kN>, _1>>{});
  for (int i = 0; i < kN; ++i) r(i) = s[i];
  copy(CopyAtom<UniversalCopy<Word>, T>{}, r, make_tensor(make_gmem_ptr<kBytes>(d), r.layout()));
}

/// From global memory to padded shared memory through registers, zeros beyond `left`: the address is known at run time
/// only, and the registers hold a vector or its elements.
template <int kBytes, class T, class Word, int kPad>
__global__ void to_shared(T* d, T const* s, int left) {
  constexpr int kN = kBytes / int(sizeof(T));
  __shared__ alignas(16) T memory[8 * (64 + kPad)];
  int const thread = threadIdx.x;
  auto const tiled = make_tiled_copy(CopyAtom<UniversalCopy<Word>, T>{}, Layout<Shape<Int<64 / kN>, Int<kN>>>{},
                                     Layout<Shape<Int<kN>, _1>>{});
  Tensor t = make_tensor(make_smem_ptr(memory), Layout<Shape<_64, _8>, Stride<_1, Int<64 + kPad>>>{});
  Tensor g = make_tensor(make_gmem_ptr<16>(s), Layout<Shape<_64, _8>>{});
  Tensor part = tiled.get_slice(thread).partition_D(t);
  Tensor staged = make_fragment_like(part);
  copy_zfill(tiled, [&](int, int) { return left - thread; }, tiled.get_slice(thread).partition_S(g), staged);
  MOYE_NO_UNROLL
  for (int round = 0; round < left; ++round) {
    __syncthreads();
    copy(staged, part);
    __syncthreads();
    d[thread] = memory[(thread + round) % 64];
  }
}

/// What the others must not be: a struct of two, stored as one.
struct Pair {
  float x, y;
};
__global__ void control(Pair* d, Pair const* s) { d[threadIdx.x] = s[threadIdx.x]; }

#define MOYE_STORES(kBytes, T, Word)                                         \
  template __global__ void to_global<kBytes, T>(T*, T const*);               \
  template __global__ void to_global_by_atom<kBytes, T, Word>(T*, T const*); \
  template __global__ void to_shared<kBytes, T, Word, kBytes / sizeof(T)>(T*, T const*, int);
MOYE_STORES(8, float, uint64_t)
MOYE_STORES(16, float, uint128_t)
MOYE_STORES(16, double, uint128_t)
MOYE_STORES(4, half_t, uint32_t)
MOYE_STORES(8, half_t, uint64_t)
MOYE_STORES(16, half_t, uint128_t)
MOYE_STORES(4, bfloat16_t, uint32_t)
MOYE_STORES(8, bfloat16_t, uint64_t)
MOYE_STORES(16, bfloat16_t, uint128_t)

}  // namespace moye
