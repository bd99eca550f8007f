// sm90_skinny: D = A * B^T where A has one to four rows: each element of B is loaded once and multiplied by FMAs, as
// fast as memory delivers it.
//   A (M,K), B (N,K), D (M,N), each in any order; batch: outermost tile index
//   alignment      16 bytes: of each load of B
//   TiledMma       all threads have the tile's rows, and parts of its columns and of k: those along B's contiguous mode
//                  side by side, so that eight or more load lines of 128 bytes together
//   B: gmem -> smem -> registers   cp.async, zero-filled beyond N and K. A thread reads what it copied itself: stages
//                  are rings of threads, and the main loop has no barrier
//   A: gmem -> registers           a k-tile ahead; rows beyond the last are that one once more
//   sums of k      of a warp's lanes by shuffles, of its warps through shared memory
//   cluster        where tiles are few and k is long, `parts` CTAs share a tile of D, a part of k each: rank r adds up
//                  its share of the sums through distributed shared memory, rank 0's first
//   cluster barrier    first: all CTAs' sums are there; last: they have been read
// The order of sums depends on n, k and the order of B alone, not on the other rows or on the batch.
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
#include "moye/arch/copy_sm80.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"
#include "moye/arch/store.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_atom.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

template <class Gemm, Order kOrder>
MOYE_KERNEL_SHARED(Gemm::kThreads, Gemm::kResident)
sm90_skinny_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid) {
  Gemm::template run<kOrder>(args, grid);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_skinny)
struct Gemm<kConfig> {
  using Element = typename ElementOf<kConfig.dtype>::Type;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kThreads = 256;
  static constexpr int kVector = 16 / int(sizeof(Element));             // elements of one load of B
  static constexpr int kStages = kConfig.stages, kAhead = kStages - 1;  // k-tiles on their way
  static constexpr int kLoads = kBlkN * kBlkK / kThreads / kVector;     // of a thread and k-tile
  static constexpr int kResident = 2;                                   // CTAs of a multiprocessor
  static constexpr int kMostParts = 8;                                  // CTAs that share a tile
  static_assert(kConfig.accumulator == Dtype::f32 && kConfig.alignment == 16);
  static_assert(kStages >= 2 && kConfig.cluster.m == 1 && kConfig.cluster.n == 1);
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
    // Vectors of neighbouring threads lie side by side, those of one thread kThreads vectors apart.
    using SmemLayout = Conditional<
        kAlongN,
        Layout<Shape<Int<kBlkN>, Shape<Int<kOwnK>, Int<kK>>, Int<kStages>>,
               Stride<_1, Stride<Int<kThreads * kVector>, Int<kBlkN>>, Int<kBlkN * kBlkK>>>,
        Layout<Shape<Shape<Int<kOwnN>, Int<kN>>, Int<kBlkK>, Int<kStages>>,
               Stride<Stride<Int<kThreads * kVector>, Int<kBlkK>>, _1, Int<kBlkN * kBlkK>>>>;  // (BLK_N,BLK_K,PIPE)
  };
  template <Order kOrder>
  using TiledMmaOf = typename Arrangement<kMajorOfB<kOrder>>::TiledMma;
  using TiledMma = TiledMmaOf<Order::NN>;

  // Lanes that write the sums of eight neighbours, four at a time, and threads that read along a row meet in no bank.
  using SumsLayout = decltype(composition(
      Swizzle<1, 2, 3>{}, Layout<Shape<Int<kBlkM>, Int<kBlkN>>, Stride<Int<kBlkN>, _1>>{}));  // (BLK_M,BLK_N)
  struct SharedStorage {
    alignas(16) Element b[kBlkN * kBlkK * kStages];
    alignas(16) float sums[kThreads / 32][kBlkM * kBlkN];  // of the warps
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

    Tensor sB = make_tensor(make_smem_ptr(smem.b), typename Threads::SmemLayout{});  // (BLK_N,BLK_K,PIPE)

    TiledMmaOf<kOrder> tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor tCgA = thr_mma.partition_A(gA);                                                     // (1,MMA_M,MMA_K,k)
    Tensor tCgB = thr_mma.partition_B(gB);                                                     // (1,MMA_N,MMA_K,k)
    Tensor tCsB = thr_mma.partition_B(sB);                                                     // (1,MMA_N,MMA_K,PIPE)
    Tensor tCcA = thr_mma.partition_A(make_identity_tensor(Shape<Int<kBlkM>, Int<kBlkK>>{}));  // (1,MMA_M,MMA_K)
    Tensor tCcB = thr_mma.partition_B(make_identity_tensor(Shape<Int<kBlkN>, Int<kBlkK>>{}));  // (1,MMA_N,MMA_K)
    Tensor tCrB = make_tensor<float>(Layout<Shape<_1, Int<Threads::kOwnN>, Int<Threads::kOwnK>>>{});  // (1,MMA_N,MMA_K)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});                   // (1,MMA_M,MMA_N)
    clear(tCrC);

    auto const copy_b = [&](int k_tile, int stage) {
      copy_vectors<kMajorB>(tCgB(_0{}, _, _, k_tile), tCsB(_0{}, _, _, stage), tCcB(_0{}, _, _), n_left,
                            int(args.k) - k_tile * kBlkK);
    };
    auto const load_a = [&](int k_tile) {
      return load_rows<kMajorA>(tCgA(_0{}, _, _, k_tile), tCcA(_0{}, _, _), m_left, int(args.k) - k_tile * kBlkK);
    };
    MOYE_NO_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i < end) copy_b(begin + i, i);
      cp_async_commit_group();
    }
    auto rows = load_a(begin);  // (MMA_M,MMA_K)
    PipelineState<kStages> read, write(kAhead, 0);
    MOYE_NO_UNROLL
    for (int k_tile = begin; k_tile < end; ++k_tile, ++read, ++write) {
      // What the thread read a turn ago has been multiplied: the stage is filled anew.
      if (k_tile + kAhead < end) copy_b(k_tile + kAhead, write.index());
      cp_async_commit_group();
      auto const next_rows = load_a(k_tile + 1);  // (MMA_M,MMA_K)
      cp_async_wait_group<kAhead>();
      read_vectors<kMajorB>(tCsB(_0{}, _, _, read.index()), tCrB);
      gemm(tiled_mma, as_floats(rows), tCrB, tCrC);
      rows = next_rows;
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
  /// The i-th of a thread's vectors along the contiguous mode, of (MMA_N,MMA_K).
  template <Major kMajor, class T>
  static MOYE_DEVICE auto vector_of(T const& t, int i) {
    if constexpr (kMajor == Major::mn) {
      return t(_, i);
    } else {
      return t(i, _);
    }
  }

  /// A thread's part of B in one k-tile, src (MMA_N,MMA_K), to its places in a stage. Zeros where fewer than `columns`
  /// and `ks` are left.
  template <Major kMajor, class Src, class Dst, class Coord>
  static MOYE_DEVICE void copy_vectors(Src const& src, Dst const& dst, Coord const& coord, int columns, int ks) {
    using Copy = SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>;
    auto const from = [&](int i) -> auto const& {
      return reinterpret_cast<uint128_t const&>(vector_of<kMajor>(src, i)(_0{}));
    };
    auto const to = [&](int i) -> auto& { return reinterpret_cast<uint128_t&>(vector_of<kMajor>(dst, i)(_0{})); };
    if (columns >= kBlkN && ks >= kBlkK) {  // most tiles: nothing to compare
      MOYE_UNROLL
      for (int i = 0; i < kLoads; ++i) Copy::copy_once_zfill(from(i), to(i), int(sizeof(uint128_t)));
    } else {
      MOYE_NO_UNROLL
      for (int i = 0; i < kLoads; ++i) {
        int const elements = valid_elements<kMajor, kVector>(vector_of<kMajor>(coord, i)(_0{}), columns, ks);
        Copy::copy_once_zfill(from(i), to(i), elements * int(sizeof(Element)));
      }
    }
  }

  /// The same from a stage to registers, as floats: (1,MMA_N,MMA_K).
  template <Major kMajor, class Src, class Dst>
  static MOYE_DEVICE void read_vectors(Src const& src, Dst& dst) {
    MOYE_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      auto const& word = reinterpret_cast<uint128_t const&>(vector_of<kMajor>(src, i)(_0{}));
      auto const vector = detail::bit_cast<Row<Element, kVector>>(load_shared(word));
      MOYE_UNROLL
      for (int e = 0; e < kVector; ++e) {
        vector_of<kMajor>(dst(_0{}, _, _), i)(e) = convert<float>(vector.elements[e]);
      }
    }
  }

  /// A thread's part of A in one k-tile, src (MMA_M,MMA_K): in vectors where k is contiguous. Rows beyond the last are
  /// that one once more. Zeros where fewer than `ks` are left.
  template <Major kMajor, class Src, class Coord>
  static MOYE_DEVICE auto load_rows(Src const& src, Coord const& coord, int rows, int ks) {
    constexpr int kK = decltype(size<1>(src))::value;
    constexpr int kWidth = kMajor == Major::mn ? 1 : kK < kVector ? kK : kVector;
    using Word = typename WordOf<kWidth* int(sizeof(Element))>::Type;
    auto elements = make_tensor<Element>(Layout<Shape<Int<kBlkM>, Int<kK>>, Stride<Int<kK>, _1>>{});  // (MMA_M,MMA_K)
    auto const row = [&](int i) { return i < rows ? i : rows - 1; };
    if (ks >= kBlkK) {  // most tiles: nothing to compare
      MOYE_UNROLL
      for (int i = 0; i < kBlkM; ++i) {
        MOYE_UNROLL
        for (int k = 0; k < kK; k += kWidth) {
          reinterpret_cast<Word&>(elements(i, k)) = reinterpret_cast<Word const&>(src(row(i), k));
        }
      }
    } else {
      MOYE_UNROLL
      for (int i = 0; i < kBlkM; ++i) {
        MOYE_UNROLL
        for (int k = 0; k < kK; ++k) {
          elements(i, k) = get<1>(coord(_0{}, k)) < ks ? src(row(i), k) : static_cast<Element>(0.0f);
        }
      }
    }
    return elements;
  }

  /// (MMA_M,MMA_K) as floats, (1,MMA_M,MMA_K).
  template <class Rows>
  static MOYE_DEVICE auto as_floats(Rows const& rows) {
    constexpr int kK = decltype(size<1>(rows))::value;
    auto floats = make_tensor<float>(Layout<Shape<_1, Int<kBlkM>, Int<kK>>>{});  // (1,MMA_M,MMA_K)
    MOYE_UNROLL
    for (int i = 0; i < kBlkM; ++i) {
      MOYE_UNROLL
      for (int k = 0; k < kK; ++k) floats(_0{}, i, k) = convert<float>(rows(i, k));
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
        float* const to = &smem.sums[summand][SumsLayout{}(get<0>(coord), get<1>(coord))];
        store_shared(detail::bit_cast<uint128_t>(row), *reinterpret_cast<uint128_t*>(to));
      }
    }
  }

  /// The tile's vectors of four neighbours along n, one of a thread; where k is split each rank stores a share of them.
  template <int kSummands>
  static MOYE_DEVICE void add_and_store(GemmArgs const& args, TileCoord const& tile, int rank, int parts,
                                        SharedStorage& smem, int thread) {
    constexpr int kOfRow = kBlkN / 4, kVectors = kBlkM * kOfRow;
    static_assert(kVectors <= kThreads, "one vector of a thread, or none");
    auto const at = [](int vector) { return SumsLayout{}(vector / kOfRow, vector % kOfRow * 4); };
    auto const add = [](Row<float, 4>& sum, float const* from) {
      auto const row = detail::bit_cast<Row<float, 4>>(load_shared(*reinterpret_cast<uint128_t const*>(from)));
      MOYE_UNROLL
      for (int i = 0; i < 4; ++i) sum.elements[i] += row.elements[i];
    };
    Row<float, 4> sum = {};
    if (thread < kVectors) {
      MOYE_UNROLL
      for (int i = 0; i < kSummands; ++i) add(sum, &smem.sums[i][at(thread)]);
    }
    int const share = (kVectors + parts - 1) / parts, vector = rank * share + thread;
    bool const stores = thread < share && vector < kVectors;
    if (parts > 1) {
      // Where its own first summand lay a thread writes the sums of all warps, which no other thread of the CTA reads.
      if (thread < kVectors)
        store_shared(detail::bit_cast<uint128_t>(sum), *reinterpret_cast<uint128_t*>(&smem.sums[0][at(thread)]));
      cluster_sync();  // all ranks' sums are there
      sum = {};
      if (stores) {
        MOYE_UNROLL
        for (int r = 0; r < kMostParts; ++r) {
          if (r < parts) add(sum, mapa(&smem.sums[0][at(vector)], uint32_t(r)));
        }
      }
      cluster_sync();  // and have been read
    }
    if (!stores) return;
    with_tile_epilogue<float, 4, /*kDerives=*/false, /*kScales=*/true>(
        args, tile, kBlkM, kBlkN,
        [&](auto const& epilogue) { epilogue.store(sum.elements, vector / kOfRow, vector % kOfRow * 4); });
  }

 public:
  template <Order kOrder>
  static constexpr auto* kernel() {
    return sm90_skinny_kernel<Gemm, kOrder>;
  }

  /// CTAs that share a tile: as many as fill the multiprocessors, with a ring of k-tiles each or more.
  static int parts_of(TileGrid const& grid) {
    constexpr int kCtas = 132 * kResident;  // of the H100 and the H200
    int parts = 1;
    while (parts < kMostParts && 2 * parts * grid.n <= kCtas && grid.k >= 2 * parts * kStages) parts *= 2;
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
