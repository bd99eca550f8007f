// sm90_split_k of TF32: the CTAs of a cluster share one tile of D, as those of sm90_transposed multiply it, so that
// operands are read where they lie. What sm90_split_k.cuh says of ranks and of their sums holds here, too.
//   A (M,K) along k or m, B (N,K) along n, D (M,N); orders NN and TN; batch: outermost tile index
//   warpgroup 0, warp 0     producer: one thread starts the loads, those of the first stages before the others are ready
//   warpgroup 0, warps 1-3  order TN: turn the boxes of A
//   warpgroups 1, 2         consumers: each has 64 columns of the tile
//   full[s], turned[s], empty[s]  as in sm90_transposed.cuh
//   barrier 1, cluster barrier    as in sm90_split_k.cuh
#pragma once

#include "gemm/cluster_sums.h"
#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "gemm/finishing.h"
#include "gemm/order.h"
#include "gemm/sm90_transposed.cuh"
#include "gemm/split_k.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch_recorder.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/warp.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

/// The config whose main loop it is.
constexpr GemmConfig transposed_config(GemmConfig config) {
  config.kernel = Kernel::sm90_transposed;
  config.cluster = {1, 1};
  return config;
}

template <class Gemm, Order kOrder, Finishing kFinishing = Finishing::any>
MOYE_KERNEL(Gemm::kThreads)
sm90_split_k_tf32_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid,
                         MOYE_GRID_CONSTANT OperandMaps const maps) {
  Gemm::template run<kOrder, kFinishing>(args, grid, maps);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_split_k && kConfig.dtype == Dtype::tf32)
struct Gemm<kConfig> {
  using Products = Gemm<transposed_config(kConfig)>;
  using SharedStorage = typename Products::SharedStorage;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kSplit = kConfig.cluster.n;  // CTAs that share a tile
  static_assert(kConfig.cluster.m == 1 && kSplit >= 2 && kSplit <= 8, "clusters of 2 to 8 CTAs along k");
  static constexpr int kThreads = Products::kThreads, kConsumerThreads = kThreads - 128;
  static constexpr int kSumsBarrier = 1;

  // A lane has pairs along n of two rows. Pieces of 16 bytes change places with the rows, so that the pairs of a
  // half-warp, in four columns and every other row of eight, lie in all banks.
  using SumsLayout =
      decltype(composition(Swizzle<2, 2, 6>{}, Layout<Shape<Int<kBlkM>, Int<kBlkN>>, Stride<Int<kBlkN>, _1>>{}));
  static_assert(kBlkN == 128, "a row has all banks four times: the swizzle");
  using Sums = ClusterSums<float, kBlkM, kBlkN, SumsLayout, kSplit, kConsumerThreads>;
  static_assert(sizeof(float) * kBlkM * kBlkN <= sizeof(SharedStorage::operands), "sums take the place of the stages");

  template <Order kOrder, Finishing kFinishing>
  static MOYE_DEVICE void run(GemmArgs const& args, TileGrid const& grid, OperandMaps const& maps) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    auto* const sums = reinterpret_cast<float*>(&smem.operands);
    int const thread = int(thread_idx().x), rank = int(block_idx().x % kSplit);
    TileCoord const tile = tile_coord(block_idx().x / kSplit, grid);
    int const begin = Sums::first_k_tile(rank, grid.k), k_tiles = Sums::first_k_tile(rank + 1, grid.k) - begin;

    if (thread < 32) {
      bool const elected = elect_one_sync();
      if (elected) {
        prefetch_maps(maps);
        Products::init_barriers(smem);
      }
      using Operands = typename Products::template Operands<kOrder>;
      Which const early{.a = false, .b = false};
      produce_part<Operands, /*kMayBePair=*/false>(
          args, grid, tile, begin, k_tiles, maps, smem.operands, smem.pipeline, Operands::kStageBytes, early, elected,
          [] {
            sync_warp();
            sync_threads();
            warpgroup_reg_dealloc<Products::template kProducerRegisters<kOrder>>();
          });
      sync_warp();
      cluster_sync();
      Sums::arrive_behind_reads();
    } else if (thread < 128) {
      griddepcontrol_wait();
      sync_threads();
      warpgroup_reg_dealloc<Products::template kProducerRegisters<kOrder>>();
      if constexpr (Products::template kTurns<kOrder>)
        Products::template turn_stages<kOrder>(k_tiles, smem, thread / 32 - 1, thread % 32);
      cluster_sync();
      Sums::arrive_behind_reads();
    } else {
      auto begun = typename Sums::template Begun<kFinishing>(args, tile, rank, thread - 128);
      griddepcontrol_wait();
      begun.load(begun.share.row);
      sync_threads();
      warpgroup_reg_alloc<Products::template kConsumerRegisters<kOrder>>();
      consume<kOrder>(k_tiles, smem, sums, thread - 128);
      Sums::template add_and_store<kFinishing, /*kPairs=*/false>(args, begun, tile, rank, sums, thread - 128);
    }
    Sums::wait_for_reads();
  }

  /// Consumers: sums = the products of this CTA's `k_tiles` stages.
  template <Order kOrder>
  static MOYE_DEVICE void consume(int k_tiles, SharedStorage& smem, float* sums, int thread) {
    typename Products::TiledMma tiled_mma;
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkN>, Int<kBlkM>>{});  // (MMA,MMA_N,MMA_M)
    PipelineState<kStages> read;
    typename Products::template Multiply<kOrder> multiply(smem, thread);
    multiply(k_tiles, read, tCrC);
    // Every load has been waited for. The wgmmas of other warps may still read their stages.
    named_barrier_sync(kSumsBarrier, kConsumerThreads);
    int const n = Products::Epilogue::first_column(thread);
    MOYE_UNROLL
    for (int i = 0; i < kBlkM / 4; ++i) {
      int const m = i / 2 * 8 + thread % 4 * 2 + i % 2;
      Row<float, 2> const pair{tCrC(make_coord(i % 2, 0, i / 2), _0{}, _0{}),
                               tCrC(make_coord(i % 2, 1, i / 2), _0{}, _0{})};
      *reinterpret_cast<uint64_t*>(sums + SumsLayout{}(m, n)) = detail::bit_cast<uint64_t>(pair);
    }
  }

  template <Order kOrder, Finishing kFinishing = Finishing::any>
  static constexpr auto* kernel() {
    return sm90_split_k_tf32_kernel<Gemm, kOrder, kFinishing>;
  }
  using Short = Finishings<Finishing::plain, Finishing::sum, Finishing::words>;
  static Status prepare_short() { return Short::template prepare<Gemm>(); }

  static constexpr unsigned kCompiledOrders = Products::kCompiledOrders;

  static Status launch(GemmArgs const& args, StreamHandle stream) {
    TileGrid grid;
    if (Status status = make_split_grid<kSplit>(kConfig.tile, args, &grid); !status.ok()) return status;
    return dispatch<kCompiledOrders>(order_of(args), [&](auto order) -> Status {
      constexpr Order kOrder = decltype(order)::value;
      OperandMaps maps;
      Status const status = make_operand_maps<typename Products::template Operands<kOrder>>(args, &maps);
      return status.ok() ? launch_split<Gemm, kOrder>(args, grid, maps, stream) : status;
    });
  }

  static constexpr KernelFacts kFacts = [] {
    KernelFacts facts = Products::kFacts;
    facts.derives = true;
    return facts;
  }();
};

}  // namespace moye
