// One tiny kernel per instruction wrapper of moye/arch: the emulator is our reading of the PTX manual, and these
// programs hold it against the hardware. nvcc compiles this file for the GPU, a host compiler for the emulator; the
// outputs of the two must be equal bit by bit, so operands are small integers wherever an instruction may round.
//
//   conformance --list      prints the manifest: case, wrapper, PTX instruction, bytes of output, separated by tabs
//   conformance DIRECTORY   runs every case and writes its output to DIRECTORY/<case>.bin
//
// Inputs follow from the case's name alone: see `element` here and in test_conformance.py, which computes every output
// again from the manual's fragment layouts.

#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <type_traits>
#include <utility>

#include "conformance_kernels.h"
#include "machine.h"

namespace moye::conformance {

// ---- Inputs
// ------------------------------------------------------------------------------------------------------------

/// What the elements of a piece of input are.
enum class Kind {
  word,    // any 32 bits
  middle,  // a float from 2^-27 to 2^18: where f16 rounds, overflows and is subnormal
  root,    // a float about 2^-65, so that products are subnormal
  tiny,    // a float below 2^-124, subnormals among them
  nan,     // any NaN, quiet or signalling
  half16,  // any 16 bits, in a word of its own
  byte,    // any 8 bits, four in a word: s8 and u8
  eighth,  // a float from 2^-19 to 2^20: where 8-bit floats round, overflow and are subnormal
  end,     // an s32 within 1000 of the least or the greatest
  row,     // 0 to 63
  lane,    // 0 to 31
  // integers of -8 to 8
  e4m3,
  e5m2,
  bf16,
  f16,
  f32,
  f64,
  s32,  // -1000 to 1000
};

struct Piece {
  Kind kind;
  int count;  // elements
};

/// 32 bits that look random and follow from the case's name and the element's place.
uint32_t hash(std::string const& name, uint32_t piece, uint32_t i) {
  uint32_t h = 2166136261u;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;  // FNV-1a
  h += 0x9e3779b9u * ((piece << 20) + i + 1);
  h = (h ^ (h >> 16)) * 0x85ebca6bu;  // the finalizer of MurmurHash3
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

template <class T>
void append(std::vector<unsigned char>& bytes, T value) {
  auto const* first = reinterpret_cast<unsigned char const*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof(T));
}

void element(std::vector<unsigned char>& bytes, Kind kind, uint32_t h) {
  int const small = static_cast<int>(h % 17u) - 8;
  switch (kind) {
    case Kind::word:
      return append(bytes, h);
    case Kind::middle:
      return append(bytes, (h & 0x807fffffu) | ((100u + (h >> 23) % 46u) << 23));
    case Kind::root:
      return append(bytes, (h & 0x807fffffu) | ((60u + (h >> 23) % 5u) << 23));
    case Kind::tiny:
      return append(bytes, h & 0x81ffffffu);
    case Kind::nan:
      return append(bytes, h | 0x7f800001u);
    case Kind::half16:
      return append(bytes, h & 0xffffu);
    case Kind::byte:
      return append(bytes, static_cast<uint8_t>(h));
    case Kind::row:
      return append(bytes, h % 64u);
    case Kind::lane:
      return append(bytes, h % 32u);
    case Kind::eighth:
      return append(bytes, (h & 0x807fffffu) | ((108u + (h >> 23) % 39u) << 23));
    case Kind::end:
      return append(bytes, h & 1u ? 0x7fffffffu - (h >> 1) % 1000u : 0x80000000u + (h >> 1) % 1000u);
    case Kind::e4m3:
      return append(bytes, float_e4m3_t(static_cast<float>(small)).storage);
    case Kind::e5m2:
      return append(bytes, float_e5m2_t(static_cast<float>(small)).storage);
    case Kind::bf16:
      return append(bytes, bfloat16_t(static_cast<float>(small)).storage);
    case Kind::f16:
      return append(bytes, half_t(static_cast<float>(small)).storage);
    case Kind::f32:
      return append(bytes, static_cast<float>(small));
    case Kind::f64:
      return append(bytes, static_cast<double>(small));
    case Kind::s32:
      return append(bytes, static_cast<int32_t>(h % 2001u) - 1000);
  }
}

std::vector<uint32_t> input(std::string const& name, std::vector<Piece> const& pieces) {
  std::vector<unsigned char> bytes;
  for (uint32_t p = 0; p < pieces.size(); ++p) {
    for (int i = 0; i < pieces[p].count; ++i) {
      element(bytes, pieces[p].kind, hash(name, p, static_cast<uint32_t>(i)));
    }
  }
  std::vector<uint32_t> words((bytes.size() + 3) / 4 + 1);  // never empty
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

// ---- Cases
// -------------------------------------------------------------------------------------------------------------

using WordKernel = void (*)(uint32_t const*, uint32_t*);

struct Case {
  std::string name;         // of the output file
  std::string wrapper;      // of moye/arch
  std::string instruction;  // PTX
  WordKernel kernel;
  LaunchConfig launch;
  std::vector<Piece> input;
  size_t out_words;
  int first_arch = 0;  // of GPUs that have the instruction, 80 for sm_80
};

LaunchConfig one_cta(unsigned threads, int smem_bytes = 0) {
  LaunchConfig config;
  config.grid = {1, 1, 1};
  config.block = {threads, 1, 1};
  config.smem_bytes = smem_bytes;
  return config;
}

/// Elements of `kind` in 32 lanes' `Registers`.
template <class Registers>
Piece piece(Kind kind) {
  bool const bytes = kind == Kind::byte || kind == Kind::e4m3 || kind == Kind::e5m2;
  int const per_register = bytes ? 4 : kind == Kind::bf16 || kind == Kind::f16 ? 2 : 1;
  return {kind, 32 * static_cast<int>(std::extent_v<Registers>) * per_register};
}

template <class Op>
Case mma(std::string const& wrapper, std::string const& instruction, Kind a, Kind b, Kind c) {
  return {wrapper,
          wrapper,
          instruction,
          mma_kernel<Op>,
          one_cta(32),
          {piece<typename Op::ARegisters>(a), piece<typename Op::BRegisters>(b), piece<typename Op::CRegisters>(c)},
          32 * sizeof(typename Op::DRegisters) / 4,
          kFirstArch<Op>};
}

template <class Op>
Case ldmatrix(std::string const& wrapper, std::string const& instruction) {
  return {wrapper,
          wrapper,
          instruction,
          ldmatrix_kernel<Op>,
          one_cta(32, 1024),
          {{Kind::word, 256}, {Kind::row, 32}},
          32 * std::extent_v<typename Op::DRegisters>};
}

template <class Op>
std::vector<Case> cp_async(std::string const& wrapper, std::string const& instruction) {
  constexpr int kBytes = sizeof(typename Op::SRegisters);
  std::vector<Piece> const in = {{Kind::word, 64 * kBytes / 4}};
  std::string const name = wrapper + "_" + std::to_string(kBytes);
  size_t const words = 64 * kBytes / 4;
  return {{name, wrapper, instruction, cp_async_kernel<Op, false>, one_cta(64, 64 * kBytes), in, words},
          {name + "_zfill", wrapper, instruction + ", src-size", cp_async_kernel<Op, true>, one_cta(64, 64 * kBytes),
           in, words}};
}

template <Shuffle kShuffle, class T>
Case shfl(std::string const& wrapper, std::string const& instruction) {
  size_t const rounds = kShuffle == Shuffle::idx ? 1 : 32;
  std::string const name = wrapper + "_" + std::to_string(8 * sizeof(T));
  return {name,
          wrapper,
          instruction,
          shfl_kernel<kShuffle, T>,
          one_cta(32),
          {{Kind::word, 32 * static_cast<int>(sizeof(T)) / 4}, {Kind::lane, 32}},
          rounds * 32 * sizeof(T) / 4};
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  auto add = [&](Case const& one) { cases.push_back(one); };
  auto add_all = [&](std::vector<Case> const& more) { cases.insert(cases.end(), more.begin(), more.end()); };

  add(ldmatrix<SM75_U32x1_LDSM_N>("SM75_U32x1_LDSM_N", "ldmatrix.x1"));
  add(ldmatrix<SM75_U32x2_LDSM_N>("SM75_U32x2_LDSM_N", "ldmatrix.x2"));
  add(ldmatrix<SM75_U32x4_LDSM_N>("SM75_U32x4_LDSM_N", "ldmatrix.x4"));
  add(ldmatrix<SM75_U16x2_LDSM_T>("SM75_U16x2_LDSM_T", "ldmatrix.x1.trans"));
  add(ldmatrix<SM75_U16x4_LDSM_T>("SM75_U16x4_LDSM_T", "ldmatrix.x2.trans"));
  add(ldmatrix<SM75_U16x8_LDSM_T>("SM75_U16x8_LDSM_T", "ldmatrix.x4.trans"));

#define MOYE_MMA(wrapper, a, b, c) add(mma<wrapper>(#wrapper, "mma.sync", Kind::a, Kind::b, Kind::c))
  MOYE_MMA(SM80_16x8x8_F32BF16BF16F32_TN, bf16, bf16, f32);
  MOYE_MMA(SM80_16x8x16_F32BF16BF16F32_TN, bf16, bf16, f32);
  MOYE_MMA(SM80_16x8x8_F32F16F16F32_TN, f16, f16, f32);
  MOYE_MMA(SM80_16x8x16_F32F16F16F32_TN, f16, f16, f32);
  MOYE_MMA(SM80_16x8x8_F16F16F16F16_TN, f16, f16, f16);
  MOYE_MMA(SM80_16x8x16_F16F16F16F16_TN, f16, f16, f16);
  MOYE_MMA(SM80_16x8x4_F32TF32TF32F32_TN, f32, f32, f32);
  MOYE_MMA(SM80_16x8x8_F32TF32TF32F32_TN, f32, f32, f32);
  MOYE_MMA(SM80_8x8x4_F64F64F64F64_TN, f64, f64, f64);
  MOYE_MMA(SM80_8x8x16_S32S8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_8x8x16_S32S8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_8x8x16_S32U8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_8x8x16_S32U8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x16_S32S8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x16_S32S8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x16_S32U8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x16_S32U8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x32_S32S8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x32_S32S8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x32_S32U8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_16x8x32_S32U8U8S32_TN, byte, byte, s32);
  MOYE_MMA(SM70_8x8x4_F16F16F16F16_TN, f16, f16, f16);
  MOYE_MMA(SM70_8x8x4_F16F16F16F16_NT, f16, f16, f16);
  MOYE_MMA(SM70_8x8x4_F16F16F16F16_NN, f16, f16, f16);
  MOYE_MMA(SM70_8x8x4_F16F16F16F16_TT, f16, f16, f16);
  MOYE_MMA(SM70_8x8x4_F32F16F16F32_TN, f16, f16, f32);
  MOYE_MMA(SM70_8x8x4_F32F16F16F32_NT, f16, f16, f32);
  MOYE_MMA(SM70_8x8x4_F32F16F16F32_NN, f16, f16, f32);
  MOYE_MMA(SM70_8x8x4_F32F16F16F32_TT, f16, f16, f32);
  MOYE_MMA(SM75_16x8x8_F32F16F16F32_TN, f16, f16, f32);
  MOYE_MMA(SM75_16x8x8_F16F16F16F16_TN, f16, f16, f16);
  MOYE_MMA(SM75_8x8x16_S32S8S8S32_TN, byte, byte, s32);
  MOYE_MMA(SM80_8x8x16_S32S8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_8x8x16_S32S8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_8x8x16_S32U8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_8x8x16_S32U8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x16_S32S8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x16_S32S8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x16_S32U8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x16_S32U8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x32_S32S8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x32_S32S8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x32_S32U8S8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_16x8x32_S32U8U8S32_TN_SATURATE, byte, byte, end);
  MOYE_MMA(SM80_8x8x32_S32S4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_8x8x32_S32S4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_8x8x32_S32U4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_8x8x32_S32U4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x32_S32S4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x32_S32S4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x32_S32U4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x32_S32U4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x64_S32S4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x64_S32S4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x64_S32U4S4S32_TN, word, word, s32);
  MOYE_MMA(SM80_16x8x64_S32U4U4S32_TN, word, word, s32);
  MOYE_MMA(SM80_8x8x32_S32S4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_8x8x32_S32S4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_8x8x32_S32U4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_8x8x32_S32U4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x32_S32S4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x32_S32S4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x32_S32U4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x32_S32U4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x64_S32S4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x64_S32S4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x64_S32U4S4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_16x8x64_S32U4U4S32_TN_SATURATE, word, word, end);
  MOYE_MMA(SM80_8x8x128_S32U1U1S32_TN_XORPOPC, word, word, s32);
  MOYE_MMA(SM80_8x8x128_S32U1U1S32_TN_ANDPOPC, word, word, s32);
  MOYE_MMA(SM80_16x8x128_S32U1U1S32_TN_XORPOPC, word, word, s32);
  MOYE_MMA(SM80_16x8x128_S32U1U1S32_TN_ANDPOPC, word, word, s32);
  MOYE_MMA(SM80_16x8x256_S32U1U1S32_TN_XORPOPC, word, word, s32);
  MOYE_MMA(SM80_16x8x256_S32U1U1S32_TN_ANDPOPC, word, word, s32);
  MOYE_MMA(SM89_16x8x32_F32E4M3E4M3F32_TN, e4m3, e4m3, f32);
  MOYE_MMA(SM89_16x8x32_F32E4M3E5M2F32_TN, e4m3, e5m2, f32);
  MOYE_MMA(SM89_16x8x32_F32E5M2E4M3F32_TN, e5m2, e4m3, f32);
  MOYE_MMA(SM89_16x8x32_F32E5M2E5M2F32_TN, e5m2, e5m2, f32);
  MOYE_MMA(SM89_16x8x32_F16E4M3E4M3F16_TN, e4m3, e4m3, f16);
  MOYE_MMA(SM89_16x8x32_F16E4M3E5M2F16_TN, e4m3, e5m2, f16);
  MOYE_MMA(SM89_16x8x32_F16E5M2E4M3F16_TN, e5m2, e4m3, f16);
  MOYE_MMA(SM89_16x8x32_F16E5M2E5M2F16_TN, e5m2, e5m2, f16);
  MOYE_MMA(SM90_16x8x4_F64F64F64F64_TN, f64, f64, f64);
  MOYE_MMA(SM90_16x8x8_F64F64F64F64_TN, f64, f64, f64);
  MOYE_MMA(SM90_16x8x16_F64F64F64F64_TN, f64, f64, f64);
#undef MOYE_MMA
  add(mma<SM61_DP4A>("SM61_DP4A", "dp4a.s32.s32", Kind::byte, Kind::byte, Kind::word));
  // One rounding, nothing flushed to zero.
  cases.push_back(mma<UniversalFMA<float>>("UniversalFMA", "fma.rn.f32", Kind::middle, Kind::middle, Kind::middle));
  cases.back().name = "UniversalFMA_f32";
  cases.push_back(mma<UniversalFMA<float>>("UniversalFMA", "fma.rn.f32", Kind::root, Kind::root, Kind::tiny));
  cases.back().name = "UniversalFMA_f32_subnormal";
  cases.push_back(mma<UniversalFMA<double>>("UniversalFMA", "fma.rn.f64", Kind::f64, Kind::f64, Kind::f64));
  cases.back().name = "UniversalFMA_f64";

  add_all(cp_async<SM80_CP_ASYNC_CACHEALWAYS<uint32_t>>("SM80_CP_ASYNC_CACHEALWAYS", "cp.async.ca 4"));
  add_all(cp_async<SM80_CP_ASYNC_CACHEALWAYS<uint64_t>>("SM80_CP_ASYNC_CACHEALWAYS", "cp.async.ca 8"));
  add_all(cp_async<SM80_CP_ASYNC_CACHEALWAYS<uint128_t>>("SM80_CP_ASYNC_CACHEALWAYS", "cp.async.ca 16"));
  add_all(cp_async<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>>("SM80_CP_ASYNC_CACHEGLOBAL", "cp.async.cg 16"));
  add({"cp_async_groups",
       "cp_async_commit_group cp_async_wait_group cp_async_wait_all",
       "cp.async.commit_group cp.async.wait_group cp.async.wait_all",
       cp_async_groups_kernel,
       one_cta(64, 768),
       {{Kind::word, 192}},
       192});

  add(shfl<Shuffle::idx, uint32_t>("shfl_sync", "shfl.sync.idx"));
  add(shfl<Shuffle::idx, uint64_t>("shfl_sync", "shfl.sync.idx"));
  add(shfl<Shuffle::down, uint32_t>("shfl_down_sync", "shfl.sync.down"));
  add(shfl<Shuffle::up, uint32_t>("shfl_up_sync", "shfl.sync.up"));
  add(shfl<Shuffle::xor_, uint32_t>("shfl_xor_sync", "shfl.sync.bfly"));
  add(shfl<Shuffle::xor_, uint64_t>("shfl_xor_sync", "shfl.sync.bfly"));
  add({"shfl_xor_sync_half", "shfl_xor_sync", "shfl.sync.bfly", shfl_half_kernel, one_cta(32), {{Kind::word, 32}}, 32});

  add({"sync_threads", "sync_threads", "bar.sync 0", sync_threads_kernel, one_cta(96, 384), {{Kind::word, 96}}, 96});
  add({"named_barrier",
       "named_barrier_sync",
       "bar.sync",
       named_barrier_kernel<true>,
       one_cta(64, 256),
       {{Kind::word, 32}},
       7 * 32});
  add({"named_barrier_arrive",
       "named_barrier_sync named_barrier_arrive",
       "bar.sync bar.arrive",
       named_barrier_kernel<false>,
       one_cta(64, 256),
       {{Kind::word, 32}},
       7 * 32});
  add({"sync_warp", "sync_warp", "bar.warp.sync", sync_warp_kernel, one_cta(32, 256), {{Kind::word, 64}}, 64});
  LaunchConfig solid;
  solid.grid = {2, 3, 2};
  solid.block = {8, 4, 2};
  solid.smem_bytes = 64;
  add({"builtin",
       "thread_idx block_idx block_dim grid_dim lane_id smem_base smem_ptr_to_u32",
       "mov %tid ...",
       builtin_kernel,
       solid,
       {},
       12 * 64 * 16});
  add({"warp_id", "warp_id", "mov %tid", warp_id_kernel, one_cta(96), {}, 96});
  add({"warpgroup_id", "warpgroup_id", "mov %tid", warpgroup_id_kernel, one_cta(384), {}, 384});

  add({"UniversalCopy_4",
       "UniversalCopy",
       "ld st",
       universal_copy_kernel<uint32_t>,
       one_cta(64),
       {{Kind::word, 64}},
       64});
  add({"UniversalCopy_8",
       "UniversalCopy",
       "ld st",
       universal_copy_kernel<uint64_t>,
       one_cta(64),
       {{Kind::word, 128}},
       128});
  add({"UniversalCopy_16",
       "UniversalCopy",
       "ld.v4 st.v4",
       universal_copy_kernel<uint128_t>,
       one_cta(64),
       {{Kind::word, 256}},
       256});

  add({"store_16",
       "store_shared load_shared store_global",
       "st.v4",
       store_kernel,
       one_cta(64, 1024),
       {{Kind::word, 256}},
       256});
  add({"round_to_tf32",
       "round_to_tf32",
       "cvt.rn.tf32.f32",
       round_to_tf32_kernel,
       one_cta(64),
       {{Kind::word, 248}, {Kind::nan, 8}},
       256});
  add({"pack_pair_bfloat16",
       "pack_pair",
       "cvt.rn.bf16x2.f32",
       pack_pair_kernel<bfloat16_t>,
       one_cta(64),
       {{Kind::word, 248}, {Kind::nan, 8}},
       128});
  add({"pack_pair_half",
       "pack_pair",
       "cvt.rn.f16x2.f32",
       pack_pair_kernel<half_t>,
       one_cta(64),
       {{Kind::middle, 248}, {Kind::nan, 8}},
       128});

  add({"f32_pair", "f32_pair", "st.b64", f32_pair_kernel, one_cta(64), {{Kind::word, 128}}, 128});
  add({"sub_pair_bfloat16",
       "sub_pair",
       "sub.rn.bf16x2",
       sub_pair_kernel<bfloat16_t>,
       one_cta(64),
       {{Kind::word, 128}},
       64});
  add({"sub_pair_half", "sub_pair", "sub.rn.f16x2", sub_pair_kernel<half_t>, one_cta(64), {{Kind::word, 128}}, 64});
  add({"unpack_e4m3_pair_bfloat16",
       "unpack_e4m3_pair",
       "cvt.rn.f16x2.e4m3x2",
       unpack_e4m3_pair_kernel<bfloat16_t>,
       one_cta(64),
       {{Kind::word, 64}},
       128});
  add({"unpack_e4m3_pair_half",
       "unpack_e4m3_pair",
       "cvt.rn.f16x2.e4m3x2",
       unpack_e4m3_pair_kernel<half_t>,
       one_cta(64),
       {{Kind::word, 64}},
       128});

  add({"bfloat16_from_float",
       "bfloat16_t",
       "cvt.rn.bf16.f32",
       from_float_kernel<bfloat16_t>,
       one_cta(64),
       {{Kind::word, 248}, {Kind::nan, 8}},
       256});
  add({"bfloat16_to_float", "bfloat16_t", "shl", to_float_kernel<bfloat16_t>, one_cta(64), {{Kind::half16, 256}}, 256});
  add({"half_from_float",
       "half_t",
       "cvt.rn.f16.f32",
       from_float_kernel<half_t>,
       one_cta(64),
       {{Kind::middle, 248}, {Kind::nan, 8}},
       256});
  add({"float_e4m3_from_float",
       "float_e4m3_t",
       "cvt.rn.satfinite.e4m3x2.f32",
       from_float_kernel<float_e4m3_t>,
       one_cta(64),
       {{Kind::eighth, 248}, {Kind::nan, 8}},
       256});
  add({"float_e4m3_from_float_overflowing",
       "float_e4m3_t",
       "none",
       from_float_overflowing_kernel<float_e4m3_t>,
       one_cta(64),
       {{Kind::eighth, 248}, {Kind::nan, 8}},
       256});
  add({"float_e4m3_to_float",
       "float_e4m3_t",
       "cvt.rn.f16x2.e4m3x2",
       to_float_kernel<float_e4m3_t>,
       one_cta(64),
       {{Kind::half16, 256}},
       256});
  add({"float_e5m2_from_float",
       "float_e5m2_t",
       "cvt.rn.satfinite.e5m2x2.f32",
       from_float_kernel<float_e5m2_t>,
       one_cta(64),
       {{Kind::eighth, 248}, {Kind::nan, 8}},
       256});
  add({"float_e5m2_from_float_overflowing",
       "float_e5m2_t",
       "none",
       from_float_overflowing_kernel<float_e5m2_t>,
       one_cta(64),
       {{Kind::eighth, 248}, {Kind::nan, 8}},
       256});
  add({"float_e5m2_to_float",
       "float_e5m2_t",
       "cvt.rn.f16x2.e5m2x2",
       to_float_kernel<float_e5m2_t>,
       one_cta(64),
       {{Kind::half16, 256}},
       256});
  add({"half_to_float", "half_t", "cvt.f32.f16", to_float_kernel<half_t>, one_cta(64), {{Kind::half16, 256}}, 256});
  return cases;
}

/// Runs the case; its output was full of 0xff bytes before.
std::vector<uint32_t> run(Case const& one) {
  testing::Machine machine;
  std::vector<uint32_t> const in = input(one.name, one.input);
  std::vector<uint32_t> out(one.out_words, 0xffffffffu);
  auto* in_array = static_cast<uint32_t*>(machine.allocate("in", 4 * in.size(), false));
  auto* out_array = static_cast<uint32_t*>(machine.allocate("out", 4 * out.size(), true));
  machine.upload(in_array, in.data(), 4 * in.size());
  machine.upload(out_array, out.data(), 4 * out.size());
  testing::check(prepare_kernel(one.kernel, one.launch.smem_bytes), one.name);
  testing::check(launch_kernel(one.kernel, one.launch, machine.stream(), in_array, out_array), one.name);
  machine.wait();
  machine.download(out.data(), out_array, 4 * out.size());
  return out;
}

}  // namespace moye::conformance

int main(int count, char** arguments) {
  using namespace moye;
  if (count < 2) testing::fail("usage: conformance --list | conformance DIRECTORY [CASE TO LEAVE OUT]...");
  for (conformance::Case const& one : conformance::all_cases()) {
    if (std::string(arguments[1]) == "--list") {
      std::cout << one.name << '\t' << one.wrapper << '\t' << one.instruction << '\t' << 4 * one.out_words << '\n';
      continue;
    }
    if (std::find(arguments + 2, arguments + count, one.name) != arguments + count) continue;
    if (!testing::Machine::has_arch(one.first_arch)) {
      std::printf("%s left out: it needs sm_%d\n", one.name.c_str(), one.first_arch);
      continue;
    }
    std::vector<uint32_t> const out = conformance::run(one);
    std::ofstream file(std::string(arguments[1]) + "/" + one.name + ".bin", std::ios::binary);
    file.write(reinterpret_cast<char const*>(out.data()), static_cast<std::streamsize>(4 * out.size()));
    if (!file.flush()) testing::fail("cannot write " + one.name + ".bin");
    std::printf("%s\n", one.name.c_str());
  }
  return 0;
}
