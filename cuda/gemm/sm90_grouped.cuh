// sm90_grouped: sm90_pingpong for products of groups, whose sizes only the device knows; gemm/grouped.h says which.
//   A (M,K), B (G,N,K), D (M,N) in NN and NT, the rows of A and D cut into groups; in TN A (M,K), B (N,K), D (G,M,N), K
//   cut; operands of 16 bits, the others contiguous along k and so in NT alone; alignment 16 bytes; TMA clips what it
//   loads and stores at a group's end
//   a second B         of NN and NT: a stage has half a tile's rows of each, of one group; see gemm/tma_operand.h
//   d_rows             of NN and NT: rows of D, and of what is kept beside it, lie elsewhere: threads store them
//   warp 0             first makes the table of groups; then one thread of it is the producer
//   warpgroup 0        producer: one thread starts the loads of all tiles, one after the other
//   warpgroups 1, 2    consumers: the CTA's first tile goes to consumer 0, the next to consumer 1, and so on in turn;
//                      each multiplies the stages of its tiles and skips those of the other's
//   full[s]            1 arrival, the producer's, and the stage's bytes: the consumer whose tile it is waits for them
//   empty[s]           1 arrival of every warp of that consumer: the producer waits for them
//   turn[c]            1 arrival of every warp of the other consumer: it has multiplied its tile, consumer c may begin
//   epilogue[c]        staging of consumer c, a part for each warp: no barrier; see gemm/epilogue_sm90.h
//   barriers           first: mbarriers and table are there
#pragma once

#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue_sm90.h"
#include "gemm/grouped.h"
#include "gemm/order.h"
#include "gemm/sm90_persistent.h"
#include "gemm/tma_operand.h"
#include "gemm/turns.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/device.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/warp.h"
#include "moye/atom/mma_traits_sm90.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

/// What the host makes of a call: the kernel's argument beside GroupedArgs.
struct GroupedParams {
  GroupedGrid grid;
  OperandMaps maps;
  StoreParams store;
};

template <class Gemm, Order kOrder>
MOYE_KERNEL(Gemm::kThreads)
sm90_grouped_kernel(MOYE_GRID_CONSTANT GroupedArgs const args, MOYE_GRID_CONSTANT GroupedParams const params) {
  Gemm::template run<kOrder>(args, params);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_grouped)
struct Gemm<kConfig> {
  using Element = ElementOfA<kConfig.dtype>;  // b's has as many bytes
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kStages = kConfig.stages;
  static_assert(kConfig.alignment == 16, "operands that TMA reads where they are");
  static_assert(kConfig.cluster.m == 1 && kConfig.cluster.n == 1, "neighbours among the tiles are of different groups");
  // The tensor core keeps some 14 bits of the sums of 8-bit floats: those of 128 products are added in f32, unless the
  // config sums in f32_fast.
  static constexpr bool kFloat8 = is_float8(kConfig.dtype);
  static constexpr bool kPromoted = kFloat8 && kConfig.accumulator == Dtype::f32;
  static_assert(kFloat8 || kConfig.accumulator != Dtype::f32_fast, "f32_fast: sums of 8-bit floats");
  static_assert(!kPromoted || kBlkK == 128, "promotion is by stage");

  static constexpr int kConsumers = 2;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static_assert(kBlkM % 64 == 0 && kBlkN <= 256, "whole wgmmas");
  // 64 K registers: 168 per thread with 384 threads.
  static constexpr int kSums = kBlkM * kBlkN / 128;  // of a thread
  static constexpr int kProducerRegisters = kSums >= 128 ? 24 : 40;
  static constexpr int kConsumerRegisters = kSums >= 128 ? 240 : 232;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 3 * 168, "more than the CTA has: a deadlock");

  // A tile of 64 rows that its group does not fill loads 16 of them, 32, or 48.
  template <Order kOrder>
  struct Operands : TmaOperands<kConfig, kOrder, ClusterMN{1, 1}, kConfig.cluster, kBlkM == 64 ? 16 : 0> {};
  using Epilogue =
      WarpgroupEpilogue<kBlkN, kConfig.accumulator,
                        staging_boxes<kConfig>(kConsumers, {kBlkM, kBlkN}, /*other_bytes=*/int(sizeof(GroupTable))),
                        kConsumerRegisters, kTakesPair<kConfig>, /*kDerives=*/true, /*kHasScales=*/kFloat8,
                        /*kGates=*/false, /*kLooksAhead=*/false, /*kScatters=*/true>;

  /// Whether calls of this order may have a second b: each group has a matrix of both.
  template <Order kOrder>
  static constexpr bool kMayBePair = kTakesPair<kConfig> && kRaggedOf<kOrder> == Ragged::m;

  struct SharedStorage {
    OperandStages<kConfig> operands;
    typename Epilogue::SharedStorage epilogue[kConsumers];
    TmaPipeline<kStages> pipeline;
    alignas(8) uint64_t turn[kConsumers];
    GroupTable groups;
  };

  template <Order kOrder>
  static MOYE_DEVICE void run(GroupedArgs const& args, GroupedParams const& params) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x);
    if (thread == 0) {
      prefetch_maps(params.maps);
      prefetch_tensor_map(&params.store.map_d);
      smem.pipeline.init(/*warps=*/4);
      for (int consumer = 0; consumer < kConsumers; ++consumer) mbarrier_init(&smem.turn[consumer], 4);
      fence_mbarrier_init();
    }
    griddepcontrol_wait();  // the kernel ahead may still run up to here
    if (thread < 32) make_group_table<kRaggedOf<kOrder>, kBlkM>(smem.groups, params.grid, args.group_sizes, thread);
    sync_threads();
    if (thread < 128) {
      warpgroup_reg_dealloc<kProducerRegisters>();
      if (thread < 32) {
        if (elect_one_sync()) produce<kOrder>(args.gemm, params, smem);
        sync_warp();
      }
    } else {
      warpgroup_reg_alloc<kConsumerRegisters>();
      consume<kOrder>(args, params, smem, warpgroup_id() - 1, thread % 128);
    }
  }

  /// One thread: the loads of all tiles, stage after stage. It runs ahead of the consumers, into the next tiles. Of two
  /// b it has a loop of its own: most calls have one, and producers have few registers for more.
  template <Order kOrder>
  static MOYE_DEVICE void produce(GemmArgs const& args, GroupedParams const& params, SharedStorage& smem) {
    if constexpr (kMayBePair<kOrder>) {
      if (args.epilogue.second_b != nullptr) return produce<kOrder, /*kPair=*/true>(args, params, smem);
    }
    produce<kOrder, /*kPair=*/false>(args, params, smem);
  }

  template <Order kOrder, bool kPair>
  static MOYE_DEVICE void produce(GemmArgs const& args, GroupedParams const& params, SharedStorage& smem) {
    using A = typename Operands<kOrder>::A;
    using B = typename Operands<kOrder>::B;
    constexpr Ragged kRagged = kRaggedOf<kOrder>;
    auto write = TmaPipeline<kStages>::producer_start();
    for (GroupedTile const tile : GroupedTiles<kRagged, kBlkM>(params.grid, smem.groups)) {
      // Where the mode is ragged, coordinates begin at the group's.
      int const begin = first_of_group(tile, params.grid);
      int const m = tile.m * kBlkM + (kRagged == Ragged::m ? begin : 0), k = kRagged == Ragged::k ? begin : 0;
      MapCoord const of_a{end_of_group(tile), 0, 0}, of_b{kRagged == Ragged::m ? tile.group : end_of_group(tile), 0, 0};
      int const k_tiles = k_tiles_of<kRagged, kBlkK>(tile, params.grid), n = tile.n * (kPair ? kBlkN / 2 : kBlkN);
      // A box beyond the rows would touch the map's first element, which is no memory, and takes time to fill.
      int const boxes_a = A::boxes_of(int(args.m) - m), boxes_b = kPair ? B::kBoxes : B::boxes_of(int(args.n) - n);
      uint32_t const bytes = A::kStageBytes / A::kBoxes * boxes_a + B::kStageBytes / B::kBoxes * boxes_b;
      MOYE_NO_UNROLL
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++write) {
        // The consumer has released the stage: fill it.
        uint64_t* const full = smem.pipeline.producer_acquire(write, bytes);
        int const first_k = k + k_tile * kBlkK, stage = write.index();
        A::template load<3>(&params.maps.a, full, A::stage(smem.operands.a, stage), m, first_k, of_a, {}, boxes_a);
        if constexpr (kPair) {
          B::template load_pair<3>(&params.maps.b, &params.maps.second_b, full, B::stage(smem.operands.b, stage), n,
                                   first_k, of_b, {});
        } else {
          B::template load<3>(&params.maps.b, full, B::stage(smem.operands.b, stage), n, first_k, of_b, {}, boxes_b);
        }
      }
    }
  }

  /// One warpgroup; thread: in it.
  template <Order kOrder>
  static MOYE_DEVICE void consume(GroupedArgs const& args, GroupedParams const& params, SharedStorage& smem,
                                  int consumer, int thread) {
    constexpr Ragged kRagged = kRaggedOf<kOrder>;
    int const lane = thread % 32;
    Tensor sA = make_tensor(make_smem_ptr(smem.operands.a), Operands<kOrder>::A::smem_layout());  // (BLK_M,BLK_K,PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.operands.b), Operands<kOrder>::B::smem_layout());  // (ROWS_N,BLK_K,PIPE)
    typename Operands<kOrder>::TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    auto const thr_mma_b = typename Operands<kOrder>::TiledMmaOfB{}.get_slice(thread);
    Tensor tCrA = thr_mma.partition_fragment_A(sA);                                  // (MMA,MMA_M,MMA_K,PIPE)
    Tensor tCrB = thr_mma_b.partition_fragment_B(sB);                                // (MMA,MMA_N,MMA_K,PIPE)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)

    PipelineState<kStages> read;
    uint32_t phase = uint32_t(1 - consumer);  // of turn[consumer]: consumer 0 begins, without a wait
    int whose = 0;                            // of the consumers, the tile
    for (GroupedTile const tile : GroupedTiles<kRagged, kBlkM>(params.grid, smem.groups)) {
      int const k_tiles = k_tiles_of<kRagged, kBlkK>(tile, params.grid);
      bool const is_own = whose == consumer;
      whose = 1 - whose;
      if (!is_own) {
        read += k_tiles;
        continue;
      }
      if constexpr (kPromoted) {
        multiply_promoted(tiled_mma, tCrA, tCrB, tCrC, k_tiles, smem, read, phase, consumer, lane);
      } else {
        multiply_in_turn(tiled_mma, tCrA, tCrB, tCrC, k_tiles, smem.pipeline, read, smem.turn, phase, consumer, lane);
      }

      // Store the tile, while the other consumer multiplies.
      constexpr bool kRowsAreRagged = kRagged == Ragged::m;
      int const m = tile.m * kBlkM;
      typename Epilogue::Place const place{.row = kRowsAreRagged ? tile.begin + m : m,
                                           .end = kRowsAreRagged ? end_of_group(tile) : int(args.gemm.m),
                                           .matrix = tile.group,
                                           .map_row = kRowsAreRagged ? first_of_group(tile, params.grid) + m : m,
                                           .map_matrix = kRowsAreRagged ? end_of_group(tile) : tile.group,
                                           .has_matrix = tile.group < params.grid.groups,
                                           .rows = kRowsAreRagged ? args.d_rows : nullptr};
      auto const row = [&](int atom) { return atom * 64; };
      Epilogue::template store_group<kBlkN, kMayBePair<kOrder>>(args.gemm, params.store, place, tCrC,
                                                                smem.epilogue[consumer], row, tile.n, thread);
    }
    Epilogue::finish(thread);
  }

  /// multiply_in_turn with a second set of registers, of 64 rows: their sums of a stage begin at zero and are added to
  /// tCrC by FADDs, before the next 64 rows of the tile are multiplied.
  template <class TiledMma, class A, class B, class C>
  static MOYE_DEVICE void multiply_promoted(TiledMma& tiled_mma, A const& tCrA, B const& tCrB, C& tCrC, int k_tiles,
                                            SharedStorage& smem, PipelineState<kStages>& read, uint32_t& phase,
                                            int consumer, int lane) {
    constexpr int kAtoms = decltype(size<1>(tCrC))::value, kBlocks = decltype(size<2>(tCrA))::value;
    Tensor tCrStage = make_fragment_like(tCrC(_, _0{}, _0{}));  // (MMA)
    clear(tCrC);
    mbarrier_wait(&smem.turn[consumer], phase);  // or `read` may be more than a round ahead of the stages
    phase ^= 1;
    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++read) {
      // The stage has landed: multiply it by itself.
      smem.pipeline.consumer_wait(read);
      MOYE_UNROLL
      for (int i = 0; i < kAtoms; ++i) {
        warpgroup_fence_operand(tCrStage);
        warpgroup_arrive();
        tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
        MOYE_UNROLL
        for (int block = 0; block < kBlocks; ++block) {
          gemm_atom(tiled_mma, tCrA(_, i, block, read.index()), tCrB(_, _0{}, block, read.index()), tCrStage(_));
          tiled_mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_group();
        warpgroup_wait_group<0>();
        warpgroup_fence_operand(tCrStage);
        // It may be filled again, while its sums are added.
        if (i + 1 == kAtoms) smem.pipeline.consumer_release(read, lane);
        MOYE_UNROLL
        for (int k = 0; k < size(tCrStage); ++k) tCrC(k, i, _0{}) += tCrStage(k);
      }
    }
    sync_warp();  // as in multiply_in_turn
    if (lane == 0) mbarrier_arrive(&smem.turn[1 - consumer]);
  }

  template <Order kOrder>
  static constexpr auto* kernel() {
    return sm90_grouped_kernel<Gemm, kOrder>;
  }

  // wgmma reads operands that are not of 16 bits along k alone.
  static constexpr unsigned kCompiledOrders = sizeof(Element) == 2 ? kGroupedOrders : order_bits(Order::NT);

  /// As many CTAs as the device runs at one time, if there can be that many tiles.
  static Status launch(GroupedArgs const& args, StreamHandle stream) {
    return dispatch<kCompiledOrders>(order_of(args.gemm), [&](auto order) -> Status {
      constexpr Order kOrder = decltype(order)::value;
      if (kRaggedOf<kOrder> == Ragged::k && args.gemm.batch == 0) return {};
      GroupedParams params{.grid = {}, .maps = {}, .store = {}};
      TileMNK const tile{kBlkM, tile_columns<kConfig>(args.gemm), kBlkK};
      if (Status status = make_grouped_grid<kRaggedOf<kOrder>>(tile, args.gemm, &params.grid); !status.ok())
        return status;
      if (Status status = make_maps<kOrder>(args.gemm, &params); !status.ok()) return status;
      LaunchConfig config{
          .grid = {}, .block = {unsigned(kThreads)}, .smem_bytes = kFacts.smem_bytes, .programmatic = true};
      auto* const kernel = sm90_grouped_kernel<Gemm, kOrder>;
      int resident = 0;
      if (Status status = max_active_clusters(kernel, config, stream, &resident); !status.ok()) return status;
      config.grid = {unsigned(resident < params.grid.most_tiles ? resident : params.grid.most_tiles)};
      return launch_kernel(kernel, config, stream, args, params);
    });
  }

  template <Order kOrder>
  static Status make_maps(GemmArgs const& args, GroupedParams* params) {
    using A = typename Operands<kOrder>::A;
    using B = typename Operands<kOrder>::B;
    constexpr bool kRowsAreRagged = kRaggedOf<kOrder> == Ragged::m;
    // To the epilogue ragged rows are those of one matrix.
    GemmArgs stored = args;
    if (kRowsAreRagged) stored.batch = 1, stored.batch_sizes = make_batch_sizes(1, 1, 1);
    if (Status status = Epilogue::make_params(&params->store, stored, kRowsAreRagged); !status.ok()) return status;
    if (!Epilogue::template can_store_groups<kSums, kMayBePair<kOrder>>(params->store))
      return {"rows of d are not of 16 bytes, or this tile leaves no registers for its epilogue, or takes no second b"};
    if (args.k == 0 || args.batch == 0) return {};  // nothing to load
    params->maps.rank = 3;
    TensorMode const m{args.m, args.a_m_stride}, n{args.n, args.b_n_stride};
    TensorMode const k_of_a{args.k, args.a_k_stride}, k_of_b{args.k, args.b_k_stride};
    TensorMode const ragged_of_a = kRowsAreRagged ? m : k_of_a;
    Status const status = A::make_map(&params->maps.a, origin_of_groups(args.a, ragged_of_a, sizeof(Element)), m,
                                      k_of_a, of_groups(ragged_of_a));
    if (!status.ok()) return status;
    if (kRowsAreRagged) return make_maps_of_b<Operands<kOrder>>(args, &params->maps, B::kBoxOther);
    return B::make_map(&params->maps.b, origin_of_groups(args.b, k_of_b, sizeof(Element)), n, k_of_b,
                       of_groups(k_of_b));
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .consumers = kConsumers,
                                         .consumer_tile = {kBlkM, kBlkN},  // each has a tile of its own
                                         .min_arch = 90,
                                         .max_arch = 90,  // sm_90a's code
                                         .orders = kCompiledOrders,
                                         .any_stride = false,
                                         .takes_pair = kTakesPair<kConfig>,
                                         .scales = Epilogue::template kScales<kSums>};
};

}  // namespace moye
