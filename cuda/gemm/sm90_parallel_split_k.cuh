// sm90_parallel_split_k: sm90_cooperative where tiles of D are fewer than multiprocessors and k is long: k is split
// into parts, each with its own tiles, and a second kernel adds up the parts' sums. Of TF32 it is sm90_transposed.
//   A (M,K), B (N,K), D (M,N), 16-bit operands in any order, TF32 in those of sm90_transposed; alignment 16 bytes;
//   batch: outermost tile index
//   parts              as many as make the waves short, see parts_of(); one: the first kernel, and nothing behind it
//   first kernel       sm90_cooperative's, or sm90_transposed's: the tiles of part p begin with k-tile p * k_tiles, and
//                      their sums, f32, go to the workspace, (M,N) for each part of each matrix; beyond k TMA loads
//                      zeros
//   second kernel      one CTA for 8 rows and 128 columns of D: each thread adds up four neighbours, part 0's first,
//                      and finishes and stores them as gemm/epilogue.h does; waits for the first by griddepcontrol
// Unlike sm90_split_k's clusters it takes any number of CTAs, and tiles as large as they come.
#pragma once

#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "gemm/order.h"
#include "gemm/sm90_cooperative.cuh"
#include "gemm/sm90_persistent.h"
#include "gemm/sm90_transposed.cuh"
#include "gemm/tile_scheduler.h"
#include "moye/arch/builtin.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"

namespace moye {

/// The sums of all parts: of matrix b and part p from (b * parts + p) * matrix on.
struct PartialSums {
  float const* sums;
  int64_t matrix, pitch;  // elements from one matrix to the next, and from one row
  int parts;
  unsigned tiles_m, tiles_n;  // of d
};

/// Adds up the parts of a tile of d and finishes it: each thread a vector. kIsPlain: d is the sum, in words of four
/// elements. A kernel of its own, since the registers and the instructions of an epilogue would be most of it.
template <bool kIsPlain>
struct AddParts {
  static constexpr int kVector = 4, kThreads = 256;
  static constexpr int kTileN = 32 * kVector, kTileM = kThreads / 32;
  static constexpr int kTogether = 8;  // parts whose loads are under way together
  using Epilogue = TileEpilogue<float, kVector>;

  static MOYE_DEVICE void run(GemmArgs const& args, PartialSums const& from) {
    griddepcontrol_wait();  // the sums are there
    unsigned const in_matrix = block_idx().x % (from.tiles_m * from.tiles_n);
    TileCoord const tile{int(in_matrix / from.tiles_n), int(in_matrix % from.tiles_n),
                         int(block_idx().x / (from.tiles_m * from.tiles_n))};
    int const row = int(thread_idx().x) / 32, column = int(thread_idx().x) % 32 * kVector;
    int64_t const m = int64_t(tile.m) * kTileM + row, n = int64_t(tile.n) * kTileN + column;
    if (m >= args.m || n >= args.n) return;
    float const* const p = from.sums + tile.batch * from.parts * from.matrix + m * from.pitch + n;

    Row<float, kVector> sums = {};
    MOYE_NO_UNROLL
    for (int first = 0; first < from.parts; first += kTogether) {
      uint128_t words[kTogether];
      MOYE_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        if (first + i < from.parts) words[i] = *reinterpret_cast<uint128_t const*>(p + (first + i) * from.matrix);
      }
      MOYE_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        if (first + i >= from.parts) break;
        auto const part = detail::bit_cast<Row<float, kVector>>(words[i]);
        MOYE_UNROLL
        for (int j = 0; j < kVector; ++j) sums.elements[j] += part.elements[j];
      }
    }
    auto const sums_of = [&](int) { return sums; };
    if constexpr (kIsPlain) {
      Epilogue::of_product(args, tile, kTileM, kTileN).template store_plain<1>(sums_of, row, 0, column);
    } else {
      with_tile_epilogue<float, kVector, /*kDerives=*/false, /*kScales=*/true>(
          args, tile, kTileM, kTileN,
          [&](auto const& epilogue) { epilogue.template store_rows<1>(sums_of, row, /*row_step=*/0, column); });
    }
  }
};

template <class Add>
MOYE_KERNEL(Add::kThreads)
sm90_parallel_split_k_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT PartialSums const from) {
  Add::run(args, from);
}

/// The config of the first kernel.
constexpr GemmConfig products_config(GemmConfig config) {
  config.kernel = config.dtype == Dtype::tf32 ? Kernel::sm90_transposed : Kernel::sm90_cooperative;
  return config;
}

/// kernel() is the first kernel's.
template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_parallel_split_k)
struct Gemm<kConfig> : Gemm<products_config(kConfig)> {
  static constexpr GemmConfig kProductsConfig = products_config(kConfig);
  using Products = Gemm<kProductsConfig>;
  static_assert(kConfig.alignment == 16 && (sizeof(typename Products::Element) == 2 || kConfig.dtype == Dtype::tf32),
                "operands that are read where they are");

  static Status prepare() {
    if (Status status = prepare_kernel(sm90_parallel_split_k_kernel<AddParts<true>>, /*smem_bytes=*/0); !status.ok())
      return status;
    return prepare_kernel(sm90_parallel_split_k_kernel<AddParts<false>>, /*smem_bytes=*/0);
  }

  /// Into how many parts the k of a call is split: what makes the waves of the first kernel and the bytes of the second
  /// shortest together. It depends on the call alone, so that any machine computes the same.
  static int parts_of(GemmArgs const& args) {
    constexpr int kCtas = kConfig.cluster.m * kConfig.cluster.n, kResident = kMultiprocessors / kCtas;
    int64_t const tiles = ceil_div(args.m, kConfig.tile.m * kConfig.cluster.m) *
                          ceil_div(args.n, kConfig.tile.n * kConfig.cluster.n) * args.batch;
    int64_t const k_tiles = ceil_div(args.k, kConfig.tile.k);
    // Of one k-tile's multiply-adds on a multiprocessor.
    constexpr double kKTileUs = double(kConfig.tile.m) * kConfig.tile.n * kConfig.tile.k / kProductsPerUs;
    double const add_us = double(args.m) * double(args.n) * double(args.batch) * 2 * sizeof(float) / kBytesPerUs;
    int best = 1;
    double best_us = 0;
    for (int parts = 1; parts <= kMostParts && parts <= k_tiles; ++parts) {
      int64_t const each = ceil_div(k_tiles, int64_t(parts)), waves = ceil_div(tiles * parts, int64_t(kResident));
      if (ceil_div(k_tiles, each) != parts) continue;  // a part would have nothing
      double const us =
          double(waves) * (double(each) * kKTileUs + kTileUs) + (parts > 1 ? kSecondUs + parts * add_us : 0);
      if (parts == 1 || us < best_us) best = parts, best_us = us;
    }
    return best;
  }

  static int64_t workspace_bytes(GemmArgs const& args) {
    int const parts = args.batch == 0 || args.m == 0 || args.n == 0 ? 1 : parts_of(args);
    if (parts == 1) return 0;
    int64_t bytes;
    if (__builtin_mul_overflow(args.m * pitch_of(args), args.batch * parts * int64_t(sizeof(float)), &bytes))
      return INT64_MAX;
    return bytes;
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) {
    int const parts = parts_of(args);
    if (parts == 1) return Products::launch(args, stream);

    int64_t const pitch = pitch_of(args), matrix = args.m * pitch;
    GemmArgs products = args;  // what the first kernel reads of it: operands, and the dtype of sums
    products.d_dtype = Dtype::f32;
    products.epilogue = GemmArgs{}.epilogue;
    GemmArgs sums = products;
    sums.d = args.workspace;
    sums.n = pitch;
    sums.batch = args.batch * parts;
    sums.batch_sizes = make_batch_sizes(1, 1, int(sums.batch));
    sums.d_batch_strides = {0, 0, matrix};
    sums.d_m_stride = pitch;
    sums.d_n_stride = 1;
    if (Status status = launch_clusters<kProductsConfig>(products, sums, parts, stream, params_of(sums)); !status.ok())
      return status;

    return is_plain(args.epilogue) && AddParts<true>::Epilogue::is_of_words(args)
               ? launch_sum<AddParts<true>>(args, parts, pitch, stream)
               : launch_sum<AddParts<false>>(args, parts, pitch, stream);
  }

  /// The second kernel. pitch: elements from one row of sums to the next.
  template <class Add>
  static Status launch_sum(GemmArgs const& args, int parts, int64_t pitch, StreamHandle stream) {
    int64_t const tiles_m = ceil_div(args.m, Add::kTileM), tiles_n = ceil_div(args.n, Add::kTileN);
    if (tiles_m * tiles_n > 0x7fffffff / args.batch) return {"d has too many tiles to add up the parts of k"};
    PartialSums const from{.sums = static_cast<float const*>(args.workspace),
                           .matrix = args.m * pitch,
                           .pitch = pitch,
                           .parts = parts,
                           .tiles_m = unsigned(tiles_m),
                           .tiles_n = unsigned(tiles_n)};
    LaunchConfig const config{
        .grid = {unsigned(tiles_m * tiles_n * args.batch)}, .block = {unsigned(Add::kThreads)}, .programmatic = true};
    return launch_kernel(sm90_parallel_split_k_kernel<Add>, config, stream, args, from);
  }

  static constexpr KernelFacts kFacts = [] {
    KernelFacts facts = Products::kFacts;
    facts.derives = facts.takes_gate = facts.takes_pair = false;  // the second kernel adds up sums of one product
    return facts;
  }();

 private:
  static constexpr int kMultiprocessors = 132;  // of the H100 and the H200
  static constexpr int kMostParts = 32;
  static constexpr double kProductsPerUs = kConfig.dtype == Dtype::tf32 ? 1.4e6 : 3.0e6;  // of a multiprocessor
  static constexpr double kTileUs = 2;                       // of a wave, beside its k-tiles
  static constexpr double kSecondUs = 2, kBytesPerUs = 4e6;  // of the second kernel

  /// What the first kernel takes beside its arguments.
  static auto params_of(GemmArgs const& sums) {
    if constexpr (requires { Products::make_params(sums); }) {
      return Products::make_params(sums);
    } else {
      return PersistentParams{};
    }
  }

  /// Rows of sums are whole vectors for TMA and for the second kernel.
  static int64_t pitch_of(GemmArgs const& args) { return ceil_div(args.n, 4) * 4; }
};

}  // namespace moye
