// Uses every wrapper of moye/arch once, to be compiled by nvcc; of mma.sync those that the architecture has.
#include "moye/arch/barrier.h"
#include "moye/arch/copy.h"
#include "moye/arch/copy_sm75.h"
#include "moye/arch/copy_sm80.h"
#include "moye/arch/launch.h"
#include "moye/arch/mma.h"
#include "moye/arch/mma_sm61.h"
#include "moye/arch/mma_sm70.h"
#include "moye/arch/mma_sm75.h"
#include "moye/arch/mma_sm80.h"
#include "moye/arch/mma_sm89.h"
#include "moye/arch/mma_sm90_f64.h"
#include "moye/arch/warp.h"

namespace {

using namespace moye;

template <int... I>
struct Indices {};

template <int kCount, int... I>
struct MakeIndices : MakeIndices<kCount - 1, kCount - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};

template <class T>
constexpr int kExtent = 0;
template <class T, size_t kSize>
constexpr int kExtent<T[kSize]> = kSize;
template <class Registers>
using IndicesOf = typename MakeIndices<kExtent<Registers>>::type;

template <class Op, int... D, int... A, int... B>
__device__ void use_mma(typename Op::DRegisters& d, typename Op::ARegisters& a, typename Op::BRegisters& b,
                        Indices<D...>, Indices<A...>, Indices<B...>) {
  Op::fma(d[D]..., a[A]..., b[B]..., d[D]...);
}

struct LastOp;
template <class T, class U>
constexpr bool is_same_op = false;
template <class T>
constexpr bool is_same_op<T, T> = true;

/// Ops, LastOp
template <class... Ops>
MOYE_KERNEL(32)
mma_kernel(unsigned char* memory) {
  auto use = [&]<class Op>(Op*) {
    if constexpr (!is_same_op<Op, LastOp>) {
      if constexpr (is_target_arch<Op::kMinArch>) {
        struct Fragments {
          typename Op::DRegisters d;
          typename Op::ARegisters a;
          typename Op::BRegisters b;
        };
        auto* const lanes = reinterpret_cast<Fragments*>(memory);
        Fragments mine = lanes[lane_id()];
        use_mma<Op>(mine.d, mine.a, mine.b, IndicesOf<typename Op::DRegisters>{}, IndicesOf<typename Op::ARegisters>{},
                    IndicesOf<typename Op::BRegisters>{});
        lanes[lane_id()] = mine;
      }
    }
  };
  (use(static_cast<Ops*>(nullptr)), ...);
}

MOYE_KERNEL(128)
kernel(uint128_t const* in, float* out, double* wide) {
  auto* const smem = reinterpret_cast<uint128_t*>(smem_base());
  auto* const words = reinterpret_cast<uint32_t*>(smem_base());
  auto* const doubles = reinterpret_cast<uint64_t*>(smem_base());
  unsigned const thread = thread_idx().x;

  SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>::copy(in[thread], smem[thread]);
  SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>::copy_zfill(in[thread], smem[thread], static_cast<int>(thread % 17));
  SM80_CP_ASYNC_CACHEALWAYS<uint128_t>::copy(in[thread], smem[thread]);
  SM80_CP_ASYNC_CACHEALWAYS<uint128_t>::copy_zfill(in[thread], smem[thread], static_cast<int>(thread % 17));
  SM80_CP_ASYNC_CACHEALWAYS<uint64_t>::copy(*reinterpret_cast<uint64_t const*>(in + thread), doubles[thread]);
  SM80_CP_ASYNC_CACHEALWAYS<uint64_t>::copy_zfill(*reinterpret_cast<uint64_t const*>(in + thread), doubles[thread], 3);
  SM80_CP_ASYNC_CACHEALWAYS<uint32_t>::copy(in[thread].x, words[thread]);
  SM80_CP_ASYNC_CACHEALWAYS<uint32_t>::copy_zfill(in[thread].x, words[thread], 3);
  cp_async_commit_group();
  cp_async_wait_group<1>();
  cp_async_wait_all();
  sync_threads();
  named_barrier_arrive(1, 128);
  named_barrier_sync(1, 128);
  sync_warp();
  sync_warp(kFullWarp);

  uint32_t r[6];
  SM75_U32x1_LDSM_N::copy(smem[thread], r[0]);
  SM75_U32x2_LDSM_N::copy(smem[thread], r[1], r[2]);
  SM75_U32x4_LDSM_N::copy(smem[thread], r[1], r[3], r[4], r[5]);
  SM75_U16x2_LDSM_T::copy(smem[thread], r[0]);
  SM75_U16x4_LDSM_T::copy(smem[thread], r[1], r[2]);
  SM75_U16x8_LDSM_T::copy(smem[thread], r[1], r[3], r[4], r[5]);
  uint128_t moved;
  UniversalCopy<uint128_t>::copy(smem[thread], moved);

  float sum;
  double wide_sum;
  UniversalFMA<float>::fma(sum, out[0], out[1], out[2]);
  UniversalFMA<double>::fma(wide_sum, wide[0], wide[1], wide[2]);
  sum += static_cast<float>(bfloat16_t(sum)) + static_cast<float>(half_t(sum)) + static_cast<float>(tfloat32_t(sum));
  sum += static_cast<float>(float_e4m3_t(sum)) + static_cast<float>(float_e5m2_t(sum)) +
         static_cast<float>(float_e4m3_t::from_float_overflowing(sum)) +
         static_cast<float>(float_e5m2_t::from_float_overflowing(sum));
  for (uint32_t x : r) sum += static_cast<float>(shfl_xor_sync(kFullWarp, x, 1));
  sum = shfl_sync(kFullWarp, sum, 3) + shfl_down_sync(kFullWarp, sum, 4) + shfl_up_sync(kFullWarp, sum, 5);
  wide[thread] = shfl_xor_sync(kFullWarp, wide_sum, 7);
  out[thread + block_dim().x * (block_idx().x + grid_dim().x * warp_id())] =
      sum + static_cast<float>(moved.w + smem_ptr_to_u32(smem));
}

}  // namespace

Status run(StreamHandle stream, unsigned char* memory, uint128_t const* in, float* out, double* wide) {
  auto* const all_mma = mma_kernel<
#define MOYE_MMA_OP(op, a, b, c, arch) op,
#include "mma_ops.inc"
#undef MOYE_MMA_OP
      SM61_DP4A, LastOp>;
  LaunchConfig const config{.grid = {1, 1, 1}, .block = {128, 1, 1}, .smem_bytes = 64 * 1024};
  if (Status status = prepare_kernel(kernel, config.smem_bytes); !status.ok()) return status;
  if (Status status = launch_kernel(kernel, config, stream, in, out, wide); !status.ok()) return status;
  return launch_kernel(all_mma, {.grid = {1, 1, 1}, .block = {32, 1, 1}, .smem_bytes = 0}, stream, memory);
}
