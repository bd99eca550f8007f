// sm90_gemv: D = A * B^T where A has one to four rows: each element of B is loaded once and multiplied by FMAs, as fast
// as memory delivers it.
//   A (M,K), B (N,K), D (M,N), each in any order; batch: outermost tile index
//   alignment          16 bytes: of each load of B
//   TiledMma           all threads have the tile's rows, and parts of its columns and of k: those along B's contiguous
//                      mode side by side, so that 8 or more load lines of 128 bytes together
//   gmem -> registers  no shared memory; what lies beyond N and K is zero and not read. Many CTAs of a multiprocessor
//                      have a k-tile each on its way, which hides the latency
//   sums of k          of a warp's lanes by shuffles, of its warps through shared memory
//   cluster            where tiles are few and k is long, `parts` CTAs share a tile of D, a part of k each: rank r adds
//                      up its share of the sums through distributed shared memory, rank 0's first
//   cluster barrier    first: all CTAs' sums are there; last: they have been read
// The order of sums depends on n and k alone, not on the other rows or on the batch.
#pragma once

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue.h"
#include "gemm/operand.h"
#include "gemm/order.h"
#include "gemm/tile_scheduler.h"
#include "moye/algorithm/copy.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"
#include "moye/arch/store.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_atom.h"
#include "moye/tensor.h"

namespace moye {

template <class Gemm, Order kOrder>
MOYE_KERNEL_SHARED(Gemm::kThreads, Gemm::kResident)
sm90_gemv_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid) {
  Gemm::template run<kOrder>(args, grid);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_gemv)
struct Gemm<kConfig> {
  using Element = typename ElementOf<kConfig.dtype>::Type;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kThreads = 256;
  static constexpr int kVector = 16 / int(sizeof(Element));              // elements of one load of B
  static constexpr int kResident = kBlkM == 1 ? 4 : kBlkM == 2 ? 3 : 2;  // CTAs of a multiprocessor
  static constexpr int kMostParts = 8;                                   // CTAs that share a tile
  static_assert(kConfig.accumulator == Dtype::f32 && kConfig.alignment == 16);
  static_assert(kConfig.stages == 1 && kConfig.cluster.m == 1 && kConfig.cluster.n == 1);
  static_assert(kBlkN * kBlkK % (kThreads * kVector) == 0, "every thread loads whole vectors of B's tile");

  /// Who has what of a tile. Along B's contiguous mode a thread has one vector, and its neighbours the next ones.
  template <Major kMajorB>
  struct Arrangement {
    static constexpr bool kAlongN = kMajorB == Major::mn;
    static constexpr int kAlong = (kAlongN ? kBlkN : kBlkK) / kVector, kAcross = kThreads / kAlong;
    static constexpr int kN = kAlongN ? kAlong : kAcross, kK = kAlongN ? kAcross : kAlong;  // threads
    static constexpr int kOwnN = kBlkN / kN, kOwnK = kBlkK / kK;                            // elements
    static_assert(kAlong <= 32 && 32 % kAlong == 0, "lanes of a warp hold whole rows of the tile along that mode");
    using Threads =
        Layout<Shape<_1, Int<kN>, Int<kK>>, Stride<_0, Int<kAlongN ? 1 : kAlong>, Int<kAlongN ? kAlong : 1>>>;
    using TilerN = Layout<Shape<Int<kN>, Int<kOwnN>>, Stride<Int<kOwnN>, _1>>;  // thread i: kOwnN * i + (0, kOwnN)
    using TilerK = Layout<Shape<Int<kK>, Int<kOwnK>>, Stride<Int<kOwnK>, _1>>;
    using TiledMma =
        decltype(make_tiled_mma(UniversalFMA<float, float, float, float>{}, Threads{}, Tile<_1, TilerN, TilerK>{}));
    static_assert(decltype(size(TiledMma{}))::value == kThreads);
    static constexpr int kLanesK = kAlongN ? 32 / kAlong : kAlong;  // of a warp: they have parts of the same sums
    static constexpr int kLaneStep = kAlongN ? kAlong : 1;          // from one of them to the next
    static constexpr int kSummands = kK / kLanesK;                  // warps whose sums are added up
  };
  template <Order kOrder>
  using TiledMmaOf = typename Arrangement<kMajorOfB<kOrder>>::TiledMma;
  using TiledMma = TiledMmaOf<Order::NN>;

  static constexpr int kMostSummands = kThreads / 32;
  struct SharedStorage {
    alignas(16) float sums[kMostSummands][kBlkM * kBlkN];  // of the warps, row by row
  };

  template <Order kOrder>
  static MOYE_DEVICE void run(GemmArgs const& args, TileGrid const& grid) {
    constexpr Major kMajorA = kMajorOfA<kOrder>, kMajorB = kMajorOfB<kOrder>;
    using Threads = Arrangement<kMajorB>;
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x), rank = int(block_rank_in_cluster()), parts = grid.parts;
    TileCoord const tile = tile_coord(block_idx().x / unsigned(parts), grid);
    int const begin = grid.k * rank / parts, end = grid.k * (rank + 1) / parts;
    int const m_left = int(args.m) - tile.m * kBlkM;  // rows of A from this tile on
    int const n_left = int(args.n) - tile.n * kBlkN;
    griddepcontrol_wait();  // the kernel ahead may still run up to here

    auto const* a = static_cast<Element const*>(args.a) + matrix_offset(args, tile.batch, args.a_batch_strides);
    auto const* b = static_cast<Element const*>(args.b) + matrix_offset(args, tile.batch, args.b_batch_strides);
    Tensor mA = make_tensor(make_gmem_ptr(a), make_shape(grid.m * kBlkM, grid.k * kBlkK),
                            operand_stride<kMajorA, kVector>(args.a_m_stride, args.a_k_stride));  // (m,k)
    Tensor mB = make_tensor(make_gmem_ptr(b), make_shape(grid.n * kBlkN, grid.k * kBlkK),
                            operand_stride<kMajorB, kVector>(args.b_n_stride, args.b_k_stride));  // (n,k)
    Tensor gA = local_tile(mA, Shape<Int<kBlkM>, Int<kBlkK>>{}, make_coord(tile.m, _));           // (BLK_M,BLK_K,k)
    Tensor gB = local_tile(mB, Shape<Int<kBlkN>, Int<kBlkK>>{}, make_coord(tile.n, _));           // (BLK_N,BLK_K,k)

    TiledMmaOf<kOrder> tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor tCgA = thr_mma.partition_A(gA);                                                     // (1,MMA_M,MMA_K,k)
    Tensor tCgB = thr_mma.partition_B(gB);                                                     // (1,MMA_N,MMA_K,k)
    Tensor tCcA = thr_mma.partition_A(make_identity_tensor(Shape<Int<kBlkM>, Int<kBlkK>>{}));  // (1,MMA_M,MMA_K)
    Tensor tCcB = thr_mma.partition_B(make_identity_tensor(Shape<Int<kBlkN>, Int<kBlkK>>{}));  // (1,MMA_N,MMA_K)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});            // (1,MMA_M,MMA_N)
    clear(tCrC);

    auto const multiply = [&](auto is_whole, int k_tile) {
      constexpr bool kWhole = decltype(is_whole)::value;
      int const k_left = int(args.k) - k_tile * kBlkK;
      Tensor tCrB = load<kWhole, kMajorB, /*kIsB=*/true>(tCgB(_0{}, _, _, k_tile), tCcB(_0{}, _, _), n_left,
                                                         k_left);  // (1,MMA_N,MMA_K)
      Tensor tCrA = load<kWhole, kMajorA, /*kIsB=*/false>(tCgA(_0{}, _, _, k_tile), tCcA(_0{}, _, _), m_left,
                                                          k_left);  // (1,MMA_M,MMA_K)
      gemm(tiled_mma, tCrA, tCrB, tCrC);
    };
    int const whole_k_tiles = n_left < kBlkN ? 0 : int(args.k) / kBlkK;
    MOYE_NO_UNROLL
    for (int k_tile = begin; k_tile < end; ++k_tile) {
      if (k_tile < whole_k_tiles) {
        multiply(true_type{}, k_tile);
      } else {
        multiply(false_type{}, k_tile);
      }
    }
    add_lanes<Threads>(tCrC);
    int const in_warp = thread % 32 / Threads::kLaneStep % Threads::kLanesK;  // along k
    if (in_warp == 0) {
      Tensor tCcC = thr_mma.partition_C(make_identity_tensor(Shape<Int<kBlkM>, Int<kBlkN>>{}));  // (1,MMA_M,MMA_N)
      write_sums<Threads>(tCrC, tCcC, smem, thread);
    }
    sync_threads();
    add_and_store<Threads::kSummands>(args, tile, rank, parts, smem, thread);
  }

 private:
  /// A thread's part of an operand in one k-tile, as floats: src and coord are (MMA_ROWS,MMA_K). Rows of A beyond the
  /// last are that one once more. kWhole: else zeros where fewer than `rows` and `ks` are left.
  template <bool kWhole, Major kMajor, bool kIsB, class Src, class Coord>
  static MOYE_DEVICE auto load(Src const& src, Coord const& coord, int rows, int ks) {
    constexpr int kRows = decltype(size<0>(src))::value, kK = decltype(size<1>(src))::value;
    constexpr bool kAlongRows = kMajor == Major::mn;
    constexpr int kAlong = kAlongRows ? kRows : kK, kAcross = kAlongRows ? kK : kRows;
    // What a thread has along the contiguous mode are vectors; but columns of A begin anywhere.
    constexpr int kWidth = !kIsB && kAlongRows ? 1 : kAlong < kVector ? kAlong : kVector;
    using Word = typename WordOf<kWidth* int(sizeof(Element))>::Type;
    Tensor elements = make_tensor<Element>(Layout<Shape<Int<kAlong>, Int<kAcross>>>{});  // (ALONG,ACROSS)
    Tensor floats = make_tensor<float>(Layout<Shape<_1, Int<kRows>, Int<kK>>>{});        // (1,MMA_ROWS,MMA_K)
    auto const at = [&](int along, int across) {
      int const row = kAlongRows ? along : across, k = kAlongRows ? across : along;
      return make_coord(kIsB || row < rows ? row : rows - 1, k);
    };
    MOYE_UNROLL
    for (int j = 0; j < kAcross; ++j) {
      MOYE_UNROLL
      for (int i = 0; i < kAlong; i += kWidth) {
        auto const& from = reinterpret_cast<Word const&>(src(at(i, j)));
        auto& to = reinterpret_cast<Word&>(elements(i, j));
        auto const first = coord(at(i, j));
        int const rows_left = rows - get<0>(first), ks_left = ks - get<1>(first);
        if (kWhole || (rows_left >= (kAlongRows ? kWidth : 1) && ks_left >= (kAlongRows ? 1 : kWidth))) {
          if constexpr (kIsB) {
            to = load_global_streaming(from);
          } else {
            to = from;
          }
        } else if constexpr (!kWhole) {
          MOYE_UNROLL
          for (int e = 0; e < kWidth; ++e) {
            bool const exists = rows_left > (kAlongRows ? e : 0) && ks_left > (kAlongRows ? 0 : e);
            elements(i + e, j) = exists ? src(at(i + e, j)) : static_cast<Element>(0.0f);
          }
        }
      }
    }
    MOYE_UNROLL
    for (int j = 0; j < kAcross; ++j) {
      MOYE_UNROLL
      for (int i = 0; i < kAlong; ++i) {
        floats(_0{}, kAlongRows ? i : j, kAlongRows ? j : i) = convert<float>(elements(i, j));
      }
    }
    return floats;
  }

  /// The sums of the lanes that have the same columns, in each of them.
  template <class Threads, class Accumulators>
  static MOYE_DEVICE void add_lanes(Accumulators& tCrC) {
    MOYE_UNROLL
    for (int lanes = Threads::kLaneStep; lanes < Threads::kLaneStep * Threads::kLanesK; lanes *= 2) {
      MOYE_UNROLL
      for (int i = 0; i < size(tCrC); ++i) tCrC(i) += shfl_xor_sync(kFullWarp, tCrC(i), lanes);
    }
  }

  /// To the sums of a warp; a thread's columns are neighbours.
  template <class Threads, class Accumulators, class Coords>
  static MOYE_DEVICE void write_sums(Accumulators const& tCrC, Coords const& tCcC, SharedStorage& smem, int thread) {
    int const summand = Threads::kAlongN ? thread / 32 : 0;
    MOYE_UNROLL
    for (int m = 0; m < kBlkM; ++m) {
      MOYE_UNROLL
      for (int n = 0; n < Threads::kOwnN; n += 4) {
        auto const coord = tCcC(_0{}, m, n);
        Row<float, 4> row;
        MOYE_UNROLL
        for (int i = 0; i < 4; ++i) row.elements[i] = tCrC(_0{}, m, n + i);
        float* const to = &smem.sums[summand][get<0>(coord) * kBlkN + get<1>(coord)];
        store_shared(detail::bit_cast<uint128_t>(row), *reinterpret_cast<uint128_t*>(to));
      }
    }
  }

  /// The tile's vectors of four neighbours along n, one of a thread; where k is split each rank stores a share of them.
  template <int kSummands>
  static MOYE_DEVICE void add_and_store(GemmArgs const& args, TileCoord const& tile, int rank, int parts,
                                        SharedStorage& smem, int thread) {
    constexpr int kVectors = kBlkM * kBlkN / 4;
    static_assert(kVectors <= kThreads);
    auto const add = [&](Row<float, 4>& sum, float const* from) {
      auto const row = detail::bit_cast<Row<float, 4>>(load_shared(*reinterpret_cast<uint128_t const*>(from)));
      MOYE_UNROLL
      for (int i = 0; i < 4; ++i) sum.elements[i] += row.elements[i];
    };
    Row<float, 4> sum = {};
    if (thread < kVectors) {
      MOYE_UNROLL
      for (int i = 0; i < kSummands; ++i) add(sum, &smem.sums[i][thread * 4]);
    }
    int const share = (kVectors + parts - 1) / parts, first = rank * share;
    if (parts > 1) {
      // Nobody else reads where a thread writes the sums of all warps: they lie where its own first summand lay.
      auto& own = *reinterpret_cast<uint128_t*>(&smem.sums[0][thread % kVectors * 4]);
      if (thread < kVectors) store_shared(detail::bit_cast<uint128_t>(sum), own);
      cluster_sync();  // all ranks' sums are there
      sum = {};
      if (thread < share && first + thread < kVectors) {
        MOYE_UNROLL
        for (int r = 0; r < kMostParts; ++r) {
          if (r < parts) add(sum, mapa(&smem.sums[0][(first + thread) * 4], uint32_t(r)));
        }
      }
      cluster_sync();  // and have been read
    }
    if (thread >= share || first + thread >= kVectors) return;
    int const row = (first + thread) / (kBlkN / 4), column = (first + thread) % (kBlkN / 4) * 4;
    with_tile_epilogue<float, 4, /*kDerives=*/false, /*kScales=*/true>(
        args, tile, kBlkM, kBlkN, [&](auto const& epilogue) { epilogue.store(sum.elements, row, column); });
  }

 public:
  template <Order kOrder>
  static constexpr auto* kernel() {
    return sm90_gemv_kernel<Gemm, kOrder>;
  }

  /// CTAs that share a tile: as many as fill the multiprocessors, with two k-tiles each or more.
  static int parts_of(TileGrid const& grid) {
    constexpr int kCtas = 132 * kResident;  // of the H100 and the H200
    int parts = 1;
    while (parts < kMostParts && 2 * parts * grid.n <= kCtas && grid.k >= 4 * parts) parts *= 2;
    return parts;
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) {
    TileGrid grid;
    if (Status status = make_tile_grid(kConfig.tile, args, &grid); !status.ok()) return status;
    grid.parts = parts_of(grid);
    if (grid.tiles > 0x7fffffff / grid.parts) return {"d has more than 2^31 - 1 tiles, each counted for a part of k"};
    LaunchConfig const config{.grid = {unsigned(grid.tiles) * unsigned(grid.parts)},
                              .block = {kThreads},
                              .cluster = {unsigned(grid.parts), 1, 1},
                              .smem_bytes = kFacts.smem_bytes,
                              .programmatic = true,
                              .resident = kResident};
    return dispatch(order_of(args), [&](auto order) {
      return launch_kernel(kernel<decltype(order)::value>(), config, stream, args, grid);
    });
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .min_arch = 90,
                                         .max_arch = 90,  // sm_90a's code
                                         .any_stride = false,
                                         .scales = true};
};

}  // namespace moye
