// sm90_split_k: D = A * B^T on wgmma, where tiles of D are fewer than multiprocessors and k is long: the CTAs of a
// cluster share one tile of D, multiply a part of k each, and add up their sums through distributed shared memory.
//   A (M,K), B (N,K), D (M,N), 16-bit operands in any order, in tiles below 64 rows A along k; TF32: split_k_tf32.h
//   alignment          16 bytes; rows of one element's pack first what TMA cannot read where it is (gemm/pack.h)
//   cluster            {1, S} in the table: rank r of S has the k-tiles from k * r / S to k * (r + 1) / S, maybe none;
//                      rows with S = 1 are for two CTAs of few stages on a multiprocessor, which have more loads in
//                      flight, or for tiles of one wave
//   warpgroups 0, 1..  consumers: each multiplies 64 rows of the tile, or 64 columns where 64 does not divide its rows
//   last warp          producer: one thread starts the loads, those of the first stages before the others are ready
//   full[s]            1 arrival, the producer's, and the stage's bytes: consumers wait for them
//   empty[s]           1 arrival of every consumer warp: the producer waits for them
//   barrier 1          named, all consumers: no wgmma reads the stages any more; the sums go there
//   cluster barrier    (of the CTA where S = 1) first: all CTAs' sums are there; last: they have been read
// Rank r adds up its share of the tile, rank 0's sums first: the result depends on k and S alone.
#pragma once

#include "gemm/cluster_sums.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/finishing.h"
#include "gemm/order.h"
#include "gemm/pack.h"
#include "gemm/split_k.h"
#include "gemm/split_k_tf32.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/copy.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch_recorder.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_traits_sm90.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

template <class Gemm, Order kOrder, Finishing kFinishing = Finishing::any>
MOYE_KERNEL(Gemm::kThreads)
sm90_split_k_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT TileGrid const grid,
                    MOYE_GRID_CONSTANT OperandMaps const maps) {
  Gemm::template run<kOrder, kFinishing>(args, grid, maps);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_split_k && kConfig.dtype != Dtype::tf32)
struct Gemm<kConfig> : PacksOperands<kConfig> {
  using Element = typename ElementOf<kConfig.dtype>::Type;
  using Sum = typename Accumulator<kConfig.accumulator>::Sum;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kSplit = kConfig.cluster.n;  // CTAs that share a tile
  static_assert(kConfig.cluster.m == 1 && kSplit >= 1 && kSplit <= 8, "clusters of up to 8 CTAs along k");
  static constexpr bool kPacks = kPacksOperands<kConfig>;
  static_assert(sizeof(Element) == 2, "16-bit operands, which wgmma takes in any order");
  static_assert(kConfig.alignment == 16 || kPacks, "TMA needs addresses and strides of 16 bytes");

  // Where 64 does not divide a tile's rows, the operands are exchanged: wgmma's rows are columns of d.
  static constexpr bool kExchanged = kBlkM % 64 != 0;
  static constexpr int kConsumers = (kExchanged ? kBlkN : kBlkM) / 64;  // side by side along m, or n
  static constexpr int kConsumerThreads = 128 * kConsumers, kThreads = kConsumerThreads + 32;
  static_assert((kExchanged ? kBlkM : kBlkN) <= 256 && kBlkN % 64 == 0, "whole wgmmas, whole boxes");
  static constexpr int kSumsBarrier = 1;

  template <Order kOrder>
  struct Operands : TmaOperands<kConfig, kOrder, ClusterMN{kConsumers, 1}, ClusterMN{1, 1}> {};

  // wgmma with the operands exchanged: each warpgroup has 64 of d's columns, and kColumns rows.
  template <Order kOrder, int kColumns>
  struct Exchanged {
    using Op = SM90_WGMMA_SS<kColumns, Sum, Element, Element, kGmmaMajor<kMajorOfB<kOrder>>,
                             kGmmaMajor<kMajorOfA<kOrder>>, GMMA::ScaleIn::One, GMMA::ScaleIn::One>;
    using TiledMma = decltype(make_tiled_mma(Op{}, Layout<Shape<Int<kConfig.tile.n / 64>, _1, _1>>{}));
  };

  // Rows of sums lie 32 bytes apart in the banks: the pairs of eight rows that a warp writes meet no conflict, nor do
  // the reads along a row where a rank's share begins with 128 bytes. Exchanged, a warp writes eight columns of every
  // other of eight rows, which lie 16 bytes apart.
  static constexpr int kPitch = kBlkN + (kExchanged ? 4 : 8);
  using SumsLayout = Layout<Shape<Int<kBlkM>, Int<kBlkN>>, Stride<Int<kPitch>, _1>>;
  using ExchangedSums = Layout<Shape<Int<kBlkN>, Int<kBlkM>>, Stride<_1, Int<kPitch>>>;
  using Sums = ClusterSums<Sum, kBlkM, kBlkN, SumsLayout, kSplit, kConsumerThreads>;

  struct SharedStorage {
    union {
      OperandStages<kConfig> operands;  // until the last wgmma
      Sum sums[cosize_v<SumsLayout>];   // from then on
    };
    TmaPipeline<kStages> pipeline;
  };

  template <Order kOrder, Finishing kFinishing>
  static MOYE_DEVICE void run(GemmArgs const& args, TileGrid const& grid, OperandMaps const& maps) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x), rank = int(block_idx().x % kSplit);
    TileCoord const tile = tile_coord(block_idx().x / kSplit, grid);
    int const begin = Sums::first_k_tile(rank, grid.k), k_tiles = Sums::first_k_tile(rank + 1, grid.k) - begin;

    if (thread >= kConsumerThreads) {
      bool const elected = elect_one_sync();
      if (elected) {
        prefetch_maps(maps);
        smem.pipeline.init(/*warps=*/4 * kConsumers);
        fence_mbarrier_init();
      }
      produce<kOrder, kFinishing>(args, grid, tile, begin, k_tiles, maps, smem, elected);
      sync_warp();
      sync_cluster<kSplit>();
      Sums::arrive_behind_reads();
    } else {
      auto begun = typename Sums::template Begun<kFinishing>(args, tile, rank, thread);
      griddepcontrol_wait();
      begun.load(begun.share.row);
      sync_threads();
      consume<kOrder>(k_tiles, smem, thread);
      Sums::template add_and_store<kFinishing, kTakesPair<kConfig>>(args, begun, tile, rank, smem.sums, thread);
    }
    Sums::wait_for_reads();
  }

  /// The producer's warp: produce_part() of this kernel's operands.
  template <Order kOrder, Finishing kFinishing>
  static MOYE_DEVICE void produce(GemmArgs const& args, TileGrid const& grid, TileCoord const& tile, int begin,
                                  int k_tiles, OperandMaps const& maps, SharedStorage& smem, bool elected) {
    constexpr bool kMayBePair = kFinishing == Finishing::pair || kFinishing == Finishing::any;
    using OperandA = typename Operands<kOrder>::A;
    using OperandB = typename Operands<kOrder>::B;
    bool const pair = kMayBePair && args.epilogue.second_b != nullptr;  // whole stages
    uint32_t const bytes = OperandA::stage_bytes(OperandA::box_of_few(args.m)) +
                           OperandB::stage_bytes(pair ? OperandB::kBoxOther : OperandB::box_of_few(args.n));
    produce_part<Operands<kOrder>, kMayBePair>(args, grid, tile, begin, k_tiles, maps, smem.operands, smem.pipeline,
                                               bytes, early_operands_of(args), elected, [] {
                                                 sync_warp();
                                                 sync_threads();
                                               });
  }

  /// Consumers: smem.sums = the products of this CTA's `k_tiles` stages.
  template <Order kOrder>
  static MOYE_DEVICE void consume(int k_tiles, SharedStorage& smem, int thread) {
    using Loaded = Operands<kOrder>;
    Tensor sA = make_tensor(make_smem_ptr(smem.operands.a), Loaded::A::smem_layout());  // (ROWS_M,BLK_K,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), Loaded::B::smem_layout());  // (BLK_N,BLK_K,PIPE)
    if constexpr (kExchanged) {
      Tensor sC = make_tensor(make_smem_ptr(smem.sums), ExchangedSums{});  // (BLK_N,BLK_M)
      using Mma = typename Exchanged<kOrder, kBlkM>::TiledMma;
      using MmaOfBoxes = typename Exchanged<kOrder, Loaded::A::kRows>::TiledMma;
      multiply<Mma, MmaOfBoxes>(sB, sA, sC, k_tiles, smem, thread);
    } else {
      Tensor sC = make_tensor(make_smem_ptr(smem.sums), SumsLayout{});  // (BLK_M,BLK_N)
      multiply<typename Loaded::TiledMma, typename Loaded::TiledMmaOfB>(sA, sB, sC, k_tiles, smem, thread);
    }
  }

  /// sC (M,N) = the products of sA (M,K,PIPE) and sB (N,K,PIPE), M and N being wgmma's. MmaOfB: makes B's descriptors.
  template <class TiledMma, class MmaOfB, class A, class B, class C>
  static MOYE_DEVICE void multiply(A const& sA, B const& sB, C const& sC, int k_tiles, SharedStorage& smem,
                                   int thread) {
    TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    // Of the warpgroup's first thread: descriptors are the same in all lanes, sums are not.
    auto const thr_mma_a = tiled_mma.get_slice(warpgroup_id() * 128);
    auto const thr_mma_b = MmaOfB{}.get_slice(warpgroup_id() * 128);
    Tensor tCrA = thr_mma_a.partition_fragment_A(sA);           // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCrB = thr_mma_b.partition_fragment_B(sB);           // (MMA,MMA_N,MMA_K,PIPE)
    Tensor tCrC = partition_fragment_C(tiled_mma, sC.shape());  // (MMA,MMA_M,MMA_N)
    Tensor tCsC = thr_mma.partition_C(sC);                      // (MMA,MMA_M,MMA_N)

    if (k_tiles == 0) clear(tCrC);
    warpgroup_fence_operand(tCrC);
    tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
    PipelineState<kStages> read, last;  // last: the stage whose wgmma may be in flight
    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++read) {
      // The stage has landed: multiply it.
      smem.pipeline.consumer_wait(read);
      warpgroup_arrive();
      gemm(tiled_mma, tCrA(_, _, _, read.index()), tCrB(_, _, _, read.index()), tCrC);
      warpgroup_commit_group();
      // The wgmma before is done: its stage may be filled again.
      warpgroup_wait_group<1>();
      if (k_tile > 0) smem.pipeline.consumer_release(last, thread % 32);
      last = read;
      tiled_mma.accumulate_ = GMMA::ScaleOut::One;
    }
    warpgroup_wait_group<0>();
    warpgroup_fence_operand(tCrC);
    // Every load has been waited for. The wgmmas of other warps may still read their stages.
    named_barrier_sync(kSumsBarrier, kConsumerThreads);
    copy(tCrC, tCsC);
  }

  static constexpr unsigned kCompiledOrders = kFewRows<kConfig> ? order_bits(Order::NN, Order::NT) : kAllOrders;

  template <Order kOrder, Finishing kFinishing = Finishing::any>
  static constexpr auto* kernel() {
    return sm90_split_k_kernel<Gemm, kOrder, kFinishing>;
  }
  static constexpr auto short_kernels() {
    if constexpr (kTakesPair<kConfig>)
      return Finishings<Finishing::plain, Finishing::sum, Finishing::words, Finishing::pair>{};
    else
      return Finishings<Finishing::plain, Finishing::sum, Finishing::words>{};
  }
  using Short = decltype(short_kernels());
  static Status prepare_short() { return Short::template prepare<Gemm>(); }

  static Status launch(GemmArgs const& given, StreamHandle stream) {
    TileGrid grid;
    TileMNK const of_d{kBlkM, tile_columns<kConfig>(given), kConfig.tile.k};
    if (Status status = make_split_grid<kSplit>(of_d, given, &grid); !status.ok()) return status;
    GemmArgs args = given;
    args.early |= early_operands();
    if constexpr (kPacks) {
      args.early = 0;  // of what a kernel ahead packs
      if (Status status = Packing<Element>(given).launch(&args, stream); !status.ok()) return status;
    }
    return dispatch<kCompiledOrders>(order_of(args), [&](auto order) -> Status {
      constexpr Order kOrder = decltype(order)::value;
      using Loaded = Operands<kOrder>;
      OperandMaps maps;
      Status const status =
          make_operand_maps<Loaded>(args, &maps, Loaded::A::box_of_few(args.m), Loaded::B::box_of_few(args.n));
      return status.ok() ? launch_split<Gemm, kOrder>(args, grid, maps, stream) : status;
    });
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .consumers = kConsumers,
                                         .consumer_tile = {kExchanged ? kBlkM : 64, kExchanged ? 64 : kBlkN},
                                         .min_arch = 90,
                                         .max_arch = 90,  // sm_90a's code
                                         .orders = kCompiledOrders,
                                         .any_stride = kPacks,
                                         .derives = true,
                                         .takes_pair = kTakesPair<kConfig>,
                                         .scales = true};
};

}  // namespace moye
