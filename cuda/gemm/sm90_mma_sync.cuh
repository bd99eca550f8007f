// sm90_mma_sync: D = A * B^T of 32-bit operands that lie along m and n, as a weight's gradient has them: TMA and mma.sync.
//   A (M,K) along m, B (N,K) along n, D (M,N); order TN; alignment 16 bytes; batch: outermost tile index
//   cluster            {1, S} in the table: its S CTAs share one tile, and rank r has k-tiles k * r / S to k * (r + 1) / S
//   all but one warp   consumers: fragments of mma.sync are read from the rows of a stage as TMA left them, two rows of
//                      A or one column of D at a time. No transpose, and no bank conflict
//   last warp          producer: one thread starts the loads, those of the first stages before the others are ready
//   full[s]            1 arrival, the producer's, and the stage's bytes: consumers wait for them
//   empty[s]           1 arrival of every consumer warp: the producer waits for them
//   barrier 1          named, all consumers: no warp reads the stages any more; the sums go there
//   cluster barrier    first: all CTAs' sums are there; last: they have been read
// Rank r adds up its share of the tile, rank 0's sums first: the result depends on k and S alone.
#pragma once

#include "gemm/cluster_sums.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/order.h"
#include "gemm/sm90_persistent.h"
#include "gemm/sync_mma.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"
#include "moye/arch/launch_recorder.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_atom.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

template <class Gemm, Order kOrder>
MOYE_KERNEL(Gemm::kThreads)
sm90_mma_sync_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid,
                     MOYE_GRID_CONSTANT OperandMaps const maps) {
  Gemm::run(args, grid, maps);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_mma_sync)
struct Gemm<kConfig> {
  using Element = ElementOfA<kConfig.dtype>;
  static_assert(sizeof(Element) == 4 && kConfig.alignment == 16, "a lane reads four elements together");
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kSplit = kConfig.cluster.n;  // CTAs that share a tile
  static_assert(kConfig.cluster.m == 1 && kSplit <= 8, "clusters of up to 8 CTAs along k");
  static constexpr int kBoxRows = 32;  // elements of a box along m or n

#ifndef MS_WN
#define MS_WN (kBlkM * kBlkN > 64 * 128 ? 4 : 2)
#endif
  static constexpr int kWarpsM = 2, kWarpsN = MS_WN;
  static constexpr int kConsumerWarps = kWarpsM * kWarpsN, kConsumerThreads = 32 * kConsumerWarps;
  static constexpr int kThreads = kConsumerThreads + 32;
  static_assert(kBlkM % kBoxRows == 0 && kBlkN % kBoxRows == 0, "whole boxes");
  static constexpr int kSumsBarrier = 1;

  struct Operands {
    using A = TmaOperand<Element, Major::mn, kBlkM, kStages, 1>;
    using B = TmaOperand<Element, Major::mn, kBlkN, kStages, 1>;
    static constexpr uint32_t kStageBytes = A::kStageBytes + B::kStageBytes;
  };
  using OperandA = typename Operands::A;
  using OperandB = typename Operands::B;

  // Of A a lane reads two neighbours together: rows i and i + 8 of an atom. Of k it takes neighbours for what an atom
  // has 4 apart: with the swizzle, the words of a warp then lie in all banks. Each warp has a part of each box.
  using Rows = Layout<Shape<_8, _2, Int<kWarpsM>>, Stride<_2, _1, _16>>;
  using Columns = Layout<Shape<Int<kBoxRows>>, Stride<_1>>;
  using Ks = Layout<Shape<_4, _2>, Stride<_2, _1>>;
  using MmaOp = typename Sm80Mma<kConfig.dtype, kConfig.accumulator>::Op;
  using TiledMma = decltype(make_tiled_mma(MmaOp{}, Layout<Shape<Int<kWarpsM>, Int<kWarpsN>, _1>>{},
                                           Tile<Rows, Columns, Ks>{}));
  static_assert(decltype(size(TiledMma{}))::value == kConsumerThreads);

  // Pairs of a half-warp, in four rows two apart, lie in all banks, and so do 16 bytes of 8 lanes along a row.
  using SumsLayout = Layout<Shape<Int<kBlkM>, Int<kBlkN>>, Stride<Int<kBlkN + 4>, _1>>;
  using Sums = ClusterSums<float, kBlkM, kBlkN, SumsLayout, kSplit, kConsumerThreads>;

  struct SharedStorage {
    union {
      OperandStages<kConfig> operands;  // until the last load of a fragment
      float sums[cosize_v<SumsLayout>];  // from then on
    };
    TmaPipeline<kStages> pipeline;
  };

  static MOYE_DEVICE void run(GemmArgs const& args, TileGrid const& grid, OperandMaps const& maps) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x), rank = int(block_idx().x % kSplit);
    TileCoord const tile = tile_coord(block_idx().x / kSplit, grid);
    int const begin = Sums::first_k_tile(rank, grid.k), k_tiles = Sums::first_k_tile(rank + 1, grid.k) - begin;

    if (thread >= kConsumerThreads) {
      bool const elected = elect_one_sync();
      int const at_once = k_tiles < kStages ? k_tiles : kStages;
      auto write = TmaPipeline<kStages>::producer_start();
      // The first stages are free: their loads start before the consumers know of the mbarriers.
      if (elected) {
        prefetch_maps(maps);
        smem.pipeline.init(/*warps=*/kConsumerWarps);
        fence_mbarrier_init();
        griddepcontrol_wait();  // the kernel ahead may still run up to here
        produce(args, grid, tile, begin, at_once, maps, smem, write);
      }
      sync_warp();
      sync_threads();
      if (elected) {
        produce(args, grid, tile, begin + at_once, k_tiles - at_once, maps, smem, write);
        if ((args.early & kEarlyNext) != 0) griddepcontrol_launch_dependents();  // whose early loads follow ours
      }
      sync_warp();
      sync_cluster<kSplit>();
    } else {
      griddepcontrol_wait();
      sync_threads();
      consume(k_tiles, smem, thread);
      sync_cluster<kSplit>();  // all ranks' sums are there
      Sums::template add_and_store<false>(args, tile, rank, smem.sums, thread);
    }
    if constexpr (kSplit > 1) cluster_sync();  // and have been read
  }

  /// One thread: the loads of `k_tiles` k-tiles from `begin` on.
  static MOYE_DEVICE void produce(GemmArgs const& args, TileGrid const& grid, TileCoord const& tile, int begin,
                                  int k_tiles, OperandMaps const& maps, SharedStorage& smem,
                                  PipelineState<kStages>& write) {
    if (maps.rank == 3) {
      produce<3>(args, grid, tile, begin, k_tiles, maps, smem, write);
    } else {
      produce<5>(args, grid, tile, begin, k_tiles, maps, smem, write);
    }
  }

  template <int kRank>
  static MOYE_DEVICE void produce(GemmArgs const& args, TileGrid const& grid, TileCoord const& tile, int begin,
                                  int k_tiles, OperandMaps const& maps, SharedStorage& smem,
                                  PipelineState<kStages>& write) {
    OperandCoords const coords = operand_coords<kRank>(args, tile);
    Multicast const a{.hint = hint_of(grid.n)}, b{.hint = hint_of(grid.m)};
    MOYE_NO_UNROLL
    for (int k_tile = begin; k_tile < begin + k_tiles; ++k_tile, ++write) {
      // The consumers have released the stage: fill it.
      uint64_t* const full = smem.pipeline.producer_acquire(write, Operands::kStageBytes);
      load_stage<Operands, kRank>(args, maps, tile, coords, k_tile, smem.operands, write.index(), full, a, b);
    }
  }

  /// Consumers: smem.sums = the products of this CTA's `k_tiles` stages.
  static MOYE_DEVICE void consume(int k_tiles, SharedStorage& smem, int thread) {
    int const lane = thread % 32;
    Tensor sA = make_tensor(make_smem_ptr(smem.operands.a), OperandA::smem_layout());  // (BLK_M,BLK_K,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), OperandB::smem_layout());  // (BLK_N,BLK_K,PIPE)
    Tensor sC = make_tensor(make_smem_ptr(smem.sums), SumsLayout{});                   // (BLK_M,BLK_N)
    TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor tCsA = thr_mma.partition_A(sA);                                           // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCsB = thr_mma.partition_B(sB);                                           // (MMA,MMA_N,MMA_K,PIPE)
    Tensor tCsC = thr_mma.partition_C(sC);                                           // (MMA,MMA_M,MMA_N)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)
    constexpr int kSteps = decltype(size<2>(tCsA))::value;                           // MMA_K
    constexpr int kRestM = decltype(size<1>(tCsA))::value, kRestN = decltype(size<1>(tCsB))::value;
    Tensor tCrA = make_tensor<Element>(Shape<Shape<_2, _2>, Int<kRestM>, _2>{});  // (MMA,MMA_M,2)
    Tensor tCrB = make_tensor<Element>(Shape<_2, Int<kRestN>, _2>{});             // (MMA,MMA_N,2)
    static_assert(kSteps % 2 == 0, "a stage begins with the first half of the registers");
    // Where the lane reads, of both k of an atom; boxes, steps and stages lie whole periods of the swizzle apart.
    constexpr int kInBox = kRestN * kBoxRows / kBlkN;  // of a warp's atoms along n
    int first_a[2], first_b[2][kInBox];
    MOYE_UNROLL
    for (int k = 0; k < 2; ++k) {
      first_a[k] = int(&tCsA(make_coord(_0{}, k), _0{}, _0{}, _0{}) - smem.operands.a);
      MOYE_COMPUTED_HERE("+r", first_a[k]);
      MOYE_UNROLL
      for (int i = 0; i < kInBox; ++i) {
        first_b[k][i] = int(&tCsB(k, i, _0{}, _0{}) - smem.operands.b);
        MOYE_COMPUTED_HERE("+r", first_b[k][i]);
      }
    }
    constexpr int kBox = kBoxRows * kBlkK, kStep = 8 * kBoxRows;  // elements
    // One step of a stage that has landed, into one half of the registers.
    auto const load = [&](int stage, int step, int to) {
      Element const* const a = OperandA::stage(smem.operands.a, stage) + step * kStep;
      Element const* const b = OperandB::stage(smem.operands.b, stage) + step * kStep;
      MOYE_UNROLL
      for (int k = 0; k < 2; ++k) {
        MOYE_UNROLL
        for (int i = 0; i < kRestM; ++i) {
          auto const rows =
              detail::bit_cast<Row<Element, 2>>(*reinterpret_cast<uint64_t const*>(a + first_a[k] + i * kBox));
          tCrA(make_coord(_0{}, k), i, to) = rows.elements[0];
          tCrA(make_coord(_1{}, k), i, to) = rows.elements[1];
        }
        MOYE_UNROLL
        for (int i = 0; i < kRestN; ++i) tCrB(k, i, to) = b[first_b[k][i % kInBox] + i / kInBox * kBox];
      }
    };

    clear(tCrC);
    PipelineState<kStages> read;
    if (k_tiles > 0) {
      smem.pipeline.consumer_wait(read);
      load(read.index(), 0, 0);
    }
    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      PipelineState<kStages> const stage = read;
      ++read;
      MOYE_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        // The next step's fragments are on their way while this one's are multiplied.
        if (step + 1 < kSteps) {
          load(stage.index(), step + 1, (step + 1) % 2);
        } else {
          // TMA writes there next, and its writes know nothing of loads that are under way.
          fence_proxy_async_shared_cta();
          sync_warp();
          smem.pipeline.consumer_release(stage, lane);
          if (k_tile + 1 < k_tiles) {
            smem.pipeline.consumer_wait(read);
            load(read.index(), 0, 0);
          }
        }
        gemm(tiled_mma, tCrA(_, _, step % 2), tCrB(_, _, step % 2), tCrC);
      }
    }
    // Every load of TMA's has been waited for. Other warps may still read their stages.
    named_barrier_sync(kSumsBarrier, kConsumerThreads);
    copy(tCrC, tCsC);
  }

  static constexpr unsigned kCompiledOrders = order_bits(Order::TN);

  template <Order kOrder>
  static constexpr auto* kernel() {
    return sm90_mma_sync_kernel<Gemm, kOrder>;
  }

  static Status launch(GemmArgs const& args, StreamHandle stream) {
    TileGrid grid;
    if (Status status = make_tile_grid(kConfig.tile, args, &grid); !status.ok()) return status;
    if (grid.tiles > 0x7fffffff / kSplit) return {"d has more than 2^31 - 1 tiles, each counted once for a part of k"};
    OperandMaps maps;
    if (Status status = make_operand_maps<Operands>(args, &maps); !status.ok()) return status;
    LaunchConfig const config{.grid = {unsigned(grid.tiles) * kSplit},
                              .block = {kThreads},
                              .cluster = {kSplit, 1, 1},
                              .smem_bytes = kFacts.smem_bytes,
                              .programmatic = true};
    return launch_kernel(kernel<Order::TN>(), config, stream, args, grid, maps);
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .min_arch = 90,
                                         .max_arch = 90,  // as the others with clusters
                                         .orders = kCompiledOrders,
                                         .any_stride = false,
                                         .derives = true,
                                         .scales = true};
};

}  // namespace moye
