// wgmma and stmatrix, as conformance.cu has the other instructions: each case a product of small integers, exact in
// every type. nvcc compiles this file for sm_90a, a host compiler for the emulator; test_conformance_wgmma.py computes
// every output with NumPy.
//
//   conformance_wgmma --list       prints the manifest: case, wrappers, PTX instruction, bytes of output
//   conformance_wgmma DIRECTORY    runs every case and writes its output to DIRECTORY/<case>.bin
//
// A case's name says all of it: instruction, majors of A and B, bytes of their swizzled rows, and what is special.

#include <cstring>
#include <fstream>
#include <iostream>
#include <string>

#include "machine.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/warp.h"
#include "moye/atom/copy_traits_sm90.h"
#include "moye/atom/mma_traits_sm90.h"

namespace moye::conformance {

using GMMA::Major;
using GMMA::ScaleIn;
using GMMA::ScaleOut;

// ---- Kernels

/// What surrounds the instruction.
enum class Kind {
  zero,        // the first product replaces D, which held C; the others are added
  accumulate,  // all are added to C
};

/// a (M,K) and b (N,K) with K contiguous and 128 bytes long, c and d (M,N): M is 64 rows of each warpgroup.
/// OpOfB has the columns of B that shared memory holds: more than Op where whole boxes along n are more than N.
template <class Op, int kRowBytesA, int kRowBytesB, int kWarpgroups, Kind kKind, class OpOfB>
MOYE_KERNEL(128 * kWarpgroups)
wgmma_kernel(void const* a_data, void const* b_data, void const* c_data, void* d_data) {
  using Facts = typename Op::Facts;
  using A = typename Facts::ValTypeA;
  using B = typename Facts::ValTypeB;
  using D = typename Facts::ValTypeD;
  constexpr int kM = 64 * kWarpgroups, kN = Facts::kN, kRows = OpOfB::Facts::kN;
  constexpr int kK = 128 / static_cast<int>(sizeof(A));
  using M_ = Int<kM>;
  using N_ = Int<kN>;
  using K_ = Int<kK>;
  auto const row_major = [](auto const* p, auto m, auto n) {
    return make_tensor(make_gmem_ptr(p), make_layout(make_shape(m, n), make_stride(n, Int<1>{})));
  };
  auto const mA = row_major(static_cast<A const*>(a_data), M_{}, K_{});              // (M,K)
  auto const mB = row_major(static_cast<B const*>(b_data), N_{}, K_{});              // (N,K)
  auto const mC = row_major(static_cast<D const*>(c_data), M_{}, N_{});              // (M,N)
  auto const mD = make_tensor(make_gmem_ptr(static_cast<D*>(d_data)), mC.layout());  // (M,N)
  auto const sA = make_tensor(make_smem_ptr<1024>(reinterpret_cast<A*>(smem_base())),
                              tile_to_shape(gmma_smem_atom<Facts::kMajorA, A, kRowBytesA>(), Shape<M_, K_>{}));
  auto const sB = make_tensor(make_smem_ptr<1024>(reinterpret_cast<B*>(smem_base() + kM * 128)),
                              tile_to_shape(gmma_smem_atom<Facts::kMajorB, B, kRowBytesB>(), Shape<Int<kRows>, K_>{}));
  int const thread = static_cast<int>(thread_idx().x);
  for (int i = thread; i < kM * kK; i += 128 * kWarpgroups) sA(i / kK, i % kK) = mA(i / kK, i % kK);
  for (int i = thread; i < kN * kK; i += 128 * kWarpgroups) sB(i / kK, i % kK) = mB(i / kK, i % kK);
  fence_proxy_async_shared_cta();
  sync_threads();

  auto tiled_mma = make_tiled_mma(Op{}, Layout<Shape<Int<kWarpgroups>, _1, _1>>{});
  auto const thr_mma = tiled_mma.get_slice(thread);
  auto const thr_mma_b = make_tiled_mma(OpOfB{}, Layout<Shape<Int<kWarpgroups>, _1, _1>>{}).get_slice(thread);
  auto const tCrB = thr_mma_b.partition_fragment_B(sB);          // (1,1,MMA_K) descriptors
  auto tCrC = partition_fragment_C(tiled_mma, Shape<M_, N_>{});  // (MMA,1,1)
  auto const tCgC = thr_mma.partition_C(mC);                     // (MMA,1,1)
  auto const tCgD = thr_mma.partition_C(mD);                     // (MMA,1,1)
  MOYE_UNROLL
  for (int i = 0; i < size(tCrC); ++i) tCrC(i) = tCgC(i);
  tiled_mma.accumulate_ = kKind == Kind::zero ? ScaleOut::Zero : ScaleOut::One;
  auto const product = [&](auto const& tCrA) {
    warpgroup_fence_operand(tCrC);
    warpgroup_arrive();
    gemm(tiled_mma, tCrA, tCrB, tCrC);
    warpgroup_commit_group();
    warpgroup_wait_group<0>();
    warpgroup_fence_operand(tCrC);
  };
  if constexpr (MmaTraits<Op>::kSmemA) {
    product(thr_mma.partition_fragment_A(sA));  // (1,1,MMA_K) descriptors
  } else {
    auto const tCgA = thr_mma.partition_A(mA);  // (MMA,1,MMA_K)
    auto tCrA = thr_mma.make_fragment_A(tCgA);  // (MMA,1,MMA_K)
    MOYE_UNROLL
    for (int i = 0; i < size(tCrA); ++i) tCrA(i) = tCgA(i);
    product(tCrA);
  }
  MOYE_UNROLL
  for (int i = 0; i < size(tCrC); ++i) tCgD(i) = tCrC(i);
}

template <class Op, size_t... kI>
MOYE_DEVICE void call_copy(typename Op::SRegisters& registers, uint128_t& row, std::index_sequence<kI...>) {
  Op::copy(registers[kI]..., row);
}

/// a: the registers of 32 lanes. d: 64 rows of 16 bytes, of 0xa5 where nothing was stored; lane i stores row
/// (5 * i + 3) % 64.
template <class Op>
MOYE_KERNEL(32)
stmatrix_kernel(void const* a, void const*, void const*, void* d) {
  constexpr int kCount = static_cast<int>(std::extent_v<typename Op::SRegisters>);
  auto* const words = reinterpret_cast<uint32_t*>(smem_base());
  auto const lane = static_cast<int>(lane_id());
  for (int i = 0; i < 8; ++i) words[lane + 32 * i] = 0xa5a5a5a5u;
  sync_threads();
  typename Op::SRegisters registers;
  for (int i = 0; i < kCount; ++i) registers[i] = static_cast<uint32_t const*>(a)[lane * kCount + i];
  auto* const rows = reinterpret_cast<uint128_t*>(smem_base());
  call_copy<Op>(registers, rows[(5 * lane + 3) % 64], std::make_index_sequence<kCount>{});
  sync_threads();
  for (int i = 0; i < 8; ++i) static_cast<uint32_t*>(d)[lane + 32 * i] = words[lane + 32 * i];
}

// ---- Inputs

/// As in conformance.cu: 32 bits that follow from the case's name and the element's place.
uint32_t hash(std::string const& name, uint32_t piece, uint32_t i) {
  uint32_t h = 2166136261u;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;
  h += 0x9e3779b9u * ((piece << 20) + i + 1);
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

/// `count` elements of T, integers of -8 to 8; 8-bit integers have any value.
template <class T>
std::vector<unsigned char> elements(std::string const& name, uint32_t piece, int count) {
  std::vector<unsigned char> bytes;
  for (int i = 0; i < count; ++i) {
    uint32_t const h = hash(name, piece, static_cast<uint32_t>(i));
    int const small = static_cast<int>(h % 17u) - 8;
    T value;
    if constexpr (sizeof(T) == 1 && std::is_integral_v<T>) {
      value = static_cast<T>(h);
    } else if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(small);
    } else {
      value = T(static_cast<float>(small));
    }
    auto const* first = reinterpret_cast<unsigned char const*>(&value);
    bytes.insert(bytes.end(), first, first + sizeof(T));
  }
  return bytes;
}

// ---- Cases

using Kernel = void (*)(void const*, void const*, void const*, void*);
struct Case {
  std::string name, wrappers, instruction;
  Kernel kernel;
  LaunchConfig launch;
  std::vector<unsigned char> a, b, c;
  size_t out_bytes;
};

LaunchConfig one_cta(unsigned threads, int smem_bytes) {
  LaunchConfig config;
  config.grid = {1, 1, 1};
  config.block = {threads, 1, 1};
  config.smem_bytes = smem_bytes;
  return config;
}

template <class Op, int kRowBytesA = 128, int kRowBytesB = 128, Kind kKind = Kind::zero, int kWarpgroups = 1,
          class OpOfB = Op>
Case wgmma(std::string const& instruction, std::string const& special = "") {
  using Facts = typename Op::Facts;
  using A = typename Facts::ValTypeA;
  using B = typename Facts::ValTypeB;
  using D = typename Facts::ValTypeD;
  constexpr int kM = 64 * kWarpgroups, kK = 128 / static_cast<int>(sizeof(A));
  std::string name = instruction + "_" + (Facts::kMajorA == Major::K ? "K" : "MN") + std::to_string(kRowBytesA) + "_" +
                     (Facts::kMajorB == Major::K ? "K" : "MN") + std::to_string(kRowBytesB);
  if (kKind == Kind::accumulate) name += "_accumulate";
  if (kWarpgroups > 1) name += "_m" + std::to_string(kM);
  name += special;
  return {name,
          std::string(MmaTraits<Op>::kSmemA ? "SM90_WGMMA_SS" : "SM90_WGMMA_RS") +
              " warpgroup_arrive warpgroup_commit_group warpgroup_wait_group warpgroup_fence_operand",
          "wgmma.mma_async",
          wgmma_kernel<Op, kRowBytesA, kRowBytesB, kWarpgroups, kKind, OpOfB>,
          one_cta(128 * kWarpgroups, (kM + OpOfB::Facts::kN) * 128),
          elements<A>(name, 0, kM * kK),
          elements<B>(name, 1, Facts::kN * kK),
          elements<D>(name, 2, kM * Facts::kN),
          kM * Facts::kN * sizeof(D)};
}

template <class Op>
Case stmatrix(std::string const& name) {
  return {name,
          name,
          "stmatrix",
          stmatrix_kernel<Op>,
          one_cta(32, 1024),
          elements<uint8_t>(name, 0, 32 * sizeof(typename Op::SRegisters)),
          {},
          {},
          1024};
}

#define MOYE_16(n, types, kind, a, b) SM90_64x##n##x16_##types##_##kind<Major::a, Major::b>
/// The cases of an instruction of 16-bit types.
#define MOYE_CASE_16(n, types, kind, a, b, ...) \
  cases.push_back(                              \
      wgmma<MOYE_16(n, types, kind, a, b) __VA_OPT__(, ) __VA_ARGS__>("SM90_64x" #n "x16_" #types "_" #kind))
#define MOYE_CASE_TN(n, k, types, kind, ...)                                                                         \
  cases.push_back(wgmma<SM90_64x##n##x##k##_##types##_##kind##_TN<> __VA_OPT__(, ) __VA_ARGS__>("SM90_64x" #n "x" #k \
                                                                                                "_" #types "_" #kind))
#define MOYE_CASE_INTEGER(n, types, kind, ...) \
  cases.push_back(                             \
      wgmma<SM90_64x##n##x32_##types##_##kind##_TN __VA_OPT__(, ) __VA_ARGS__>("SM90_64x" #n "x32_" #types "_" #kind))

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  // Every N.
#define MOYE_N(n) MOYE_CASE_16(n, F32BF16BF16, SS, K, K)
  MOYE_N(8), MOYE_N(16), MOYE_N(24), MOYE_N(32), MOYE_N(40), MOYE_N(48), MOYE_N(56), MOYE_N(64);
  MOYE_N(72), MOYE_N(80), MOYE_N(88), MOYE_N(96), MOYE_N(104), MOYE_N(112), MOYE_N(120), MOYE_N(128);
  MOYE_N(136), MOYE_N(144), MOYE_N(152), MOYE_N(160), MOYE_N(168), MOYE_N(176), MOYE_N(184), MOYE_N(192);
  MOYE_N(200), MOYE_N(208), MOYE_N(216), MOYE_N(224), MOYE_N(232), MOYE_N(240), MOYE_N(248), MOYE_N(256);
#undef MOYE_N
  // Every type, from shared memory and registers.
#define MOYE_BOTH(macro, n, ...) macro(n, __VA_ARGS__, SS), macro(n, __VA_ARGS__, RS)
  MOYE_CASE_16(64, F32BF16BF16, RS, K, K);
  MOYE_CASE_16(64, F32F16F16, SS, K, K), MOYE_CASE_16(64, F32F16F16, RS, K, K);
  MOYE_CASE_16(64, F16F16F16, SS, K, K), MOYE_CASE_16(64, F16F16F16, RS, K, K);
  MOYE_BOTH(MOYE_CASE_TN, 64, 8, F32TF32TF32);
  MOYE_BOTH(MOYE_CASE_TN, 64, 32, F32E4M3E4M3), MOYE_BOTH(MOYE_CASE_TN, 64, 32, F32E4M3E5M2);
  MOYE_BOTH(MOYE_CASE_TN, 64, 32, F32E5M2E4M3), MOYE_BOTH(MOYE_CASE_TN, 64, 32, F32E5M2E5M2);
  MOYE_BOTH(MOYE_CASE_TN, 64, 32, F16E4M3E4M3), MOYE_BOTH(MOYE_CASE_TN, 64, 32, F16E4M3E5M2);
  MOYE_BOTH(MOYE_CASE_TN, 64, 32, F16E5M2E4M3), MOYE_BOTH(MOYE_CASE_TN, 64, 32, F16E5M2E5M2);
  MOYE_BOTH(MOYE_CASE_INTEGER, 64, S32S8S8), MOYE_BOTH(MOYE_CASE_INTEGER, 64, S32S8U8);
  MOYE_BOTH(MOYE_CASE_INTEGER, 64, S32U8S8), MOYE_BOTH(MOYE_CASE_INTEGER, 64, S32U8U8);
#undef MOYE_BOTH
  // Other counts of registers.
  MOYE_CASE_16(8, F16F16F16, SS, K, K), MOYE_CASE_16(24, F16F16F16, RS, K, K), MOYE_CASE_16(256, F16F16F16, SS, K, K);
  MOYE_CASE_INTEGER(8, S32S8S8, SS), MOYE_CASE_INTEGER(24, S32S8S8, RS), MOYE_CASE_INTEGER(176, S32S8S8, SS);
  MOYE_CASE_INTEGER(256, S32U8S8, RS), MOYE_CASE_TN(256, 8, F32TF32TF32, RS), MOYE_CASE_TN(192, 32, F32E4M3E4M3, SS);
  // Every swizzle, K-major and MN-major.
  MOYE_CASE_16(32, F32BF16BF16, SS, K, K, 64, 32), MOYE_CASE_16(32, F32BF16BF16, SS, K, K, 32, 16);
  MOYE_CASE_16(32, F32BF16BF16, SS, K, K, 16, 64), MOYE_CASE_TN(32, 8, F32TF32TF32, SS, 64, 32);
  MOYE_CASE_TN(32, 8, F32TF32TF32, SS, 32, 16), MOYE_CASE_TN(32, 8, F32TF32TF32, SS, 16, 64);
  MOYE_CASE_TN(32, 32, F32E4M3E4M3, SS, 64, 32), MOYE_CASE_TN(32, 32, F32E4M3E4M3, SS, 32, 16);
  MOYE_CASE_INTEGER(32, S32S8S8, SS, 16, 64);
  MOYE_CASE_16(128, F32BF16BF16, SS, K, MN), MOYE_CASE_16(128, F32BF16BF16, SS, MN, K);
  MOYE_CASE_16(128, F32BF16BF16, SS, MN, MN), MOYE_CASE_16(256, F32F16F16, SS, MN, MN);
  MOYE_CASE_16(64, F32F16F16, SS, K, MN, 64, 64), MOYE_CASE_16(64, F32F16F16, SS, MN, K, 64, 32);
  MOYE_CASE_16(32, F32BF16BF16, SS, MN, MN, 64, 64), MOYE_CASE_16(48, F32BF16BF16, SS, MN, MN, 32, 32);
  MOYE_CASE_16(24, F32BF16BF16, SS, MN, MN, 16, 16), MOYE_CASE_16(176, F32BF16BF16, SS, K, MN, 128, 32);
  MOYE_CASE_16(8, F16F16F16, SS, MN, MN, 128, 16), MOYE_CASE_16(192, F32BF16BF16, SS, K, MN);
  MOYE_CASE_16(128, F32BF16BF16, RS, K, MN), MOYE_CASE_16(96, F32F16F16, RS, K, MN, 128, 64);
  // Rows of 128 bytes along n of which the last one is used in part: B in whole boxes of 64 columns.
  using OfWholeBoxes = MOYE_16(192, F32BF16BF16, SS, K, MN);
  MOYE_CASE_16(160, F32BF16BF16, SS, K, MN, 128, 128, Kind::zero, 1, OfWholeBoxes);
  MOYE_CASE_16(176, F32BF16BF16, SS, K, MN, 128, 128, Kind::zero, 1, OfWholeBoxes);
  // D as the third operand; signs; two warpgroups.
  MOYE_CASE_16(128, F32BF16BF16, SS, K, K, 128, 128, Kind::accumulate);
  MOYE_CASE_16(64, F16F16F16, SS, K, K, 128, 128, Kind::accumulate);
  MOYE_CASE_16(64, F32F16F16, RS, K, K, 128, 128, Kind::accumulate);
  MOYE_CASE_TN(96, 8, F32TF32TF32, SS, 128, 128, Kind::accumulate);
  MOYE_CASE_INTEGER(96, S32S8U8, SS, 128, 128, Kind::accumulate);
  MOYE_CASE_16(64, F32BF16BF16, SS, K, MN, 128, 128, Kind::accumulate, 2);
  MOYE_CASE_16(256, F32BF16BF16, SS, MN, K, 128, 128, Kind::zero, 2);
  constexpr auto kNeg = ScaleIn::Neg, kOne = ScaleIn::One;
  constexpr Major K = Major::K;
  cases.push_back(wgmma<SM90_64x32x16_F32BF16BF16_SS<K, K, kNeg, kOne>>("SM90_64x32x16_F32BF16BF16_SS", "_minus_a"));
  cases.push_back(wgmma<SM90_64x32x16_F32BF16BF16_RS<K, K, kOne, kNeg>>("SM90_64x32x16_F32BF16BF16_RS", "_minus_b"));
  cases.push_back(wgmma<SM90_64x32x8_F32TF32TF32_SS_TN<kNeg, kNeg>>("SM90_64x32x8_F32TF32TF32_SS", "_minus_a_minus_b"));
  cases.push_back(wgmma<SM90_64x32x32_F32E5M2E4M3_RS_TN<kNeg, kOne>>("SM90_64x32x32_F32E5M2E4M3_RS", "_minus_a"));

#define MOYE_STMATRIX(name) cases.push_back(stmatrix<name>(#name))
  MOYE_STMATRIX(SM90_U32x1_STSM_N), MOYE_STMATRIX(SM90_U32x2_STSM_N), MOYE_STMATRIX(SM90_U32x4_STSM_N);
  MOYE_STMATRIX(SM90_U16x2_STSM_T), MOYE_STMATRIX(SM90_U16x4_STSM_T), MOYE_STMATRIX(SM90_U16x8_STSM_T);
#undef MOYE_STMATRIX
  return cases;
}

/// Runs the case; its output was full of 0xff bytes before.
std::vector<unsigned char> run(Case const& one) {
  testing::Machine machine;
  auto const upload = [&](char const* name, std::vector<unsigned char> const& data, bool writable) {
    void* const array = machine.allocate(name, std::max<size_t>(data.size(), 16), writable);
    machine.upload(array, data.data(), data.size());
    return array;
  };
  std::vector<unsigned char> out(one.out_bytes, 0xff);
  void const* const a = upload("a", one.a, false);
  void const* const b = upload("b", one.b, false);
  void const* const c = upload("c", one.c, false);
  void* const d = upload("d", out, true);
  testing::check(prepare_kernel(one.kernel, one.launch.smem_bytes), one.name);
  testing::check(launch_kernel(one.kernel, one.launch, machine.stream(), a, b, c, d), one.name);
  machine.wait();
  machine.download(out.data(), d, out.size());
  return out;
}

}  // namespace moye::conformance

int main(int count, char** arguments) {
  using namespace moye;
  if (count != 2) testing::fail("usage: conformance_wgmma --list | conformance_wgmma DIRECTORY");
  for (conformance::Case const& one : conformance::all_cases()) {
    if (std::string(arguments[1]) == "--list") {
      std::cout << one.name << '\t' << one.wrappers << '\t' << one.instruction << '\t' << one.out_bytes << '\n';
      continue;
    }
    std::vector<unsigned char> const out = conformance::run(one);
    std::ofstream file(std::string(arguments[1]) + "/" + one.name + ".bin", std::ios::binary);
    file.write(reinterpret_cast<char const*>(out.data()), static_cast<std::streamsize>(out.size()));
    if (!file.flush()) testing::fail("cannot write " + one.name + ".bin");
    std::printf("%s\n", one.name.c_str());
  }
  return 0;
}
