// sm90_permuted: sm90_grouped of rows that lie elsewhere, so that no gather stands in front of it and none behind.
//   A (L,K), B (G,N,K), D (M,N) in NN and NT: row i of the product is read from row a_rows[i] of A, and stored in row
//   d_rows[i] of D; without one of them from or in row i; its rows are cut into groups; operands of 16 bits, alignment
//   16 bytes
//   a second B         a stage has half a tile's rows of each, of one group; see gemm/tma_operand.h
//   warpgroup 0        producer: warp 0 makes the table of groups; each warp copies a quarter of a tile's rows of A by
//                      cp.async, 16 bytes that lie as TMA would have put them; a thread of warp 0 loads B, by TMA
//   warpgroups 1, 2    consumers: the CTA's first tile goes to consumer 0, the next to consumer 1, and so on in turn;
//                      each multiplies the stages of its tiles and skips those of the other's
//   full[s]            5 arrivals and the bytes of B: the thread that loads B, and every producer's warp, which arrives
//                      kLag stages behind its copies: once they have landed, and wgmma can see them
//   empty[s]           1 arrival of every warp of that consumer: all producers wait for them
//   turn[c]            1 arrival of every warp of the other consumer: it has multiplied its tile, consumer c may begin
//   epilogue[c]        staging of consumer c, a part for each warp: TMA stores it, or, by d_rows, the warp's threads
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
#include "moye/arch/barrier.h"
#include "moye/arch/copy_sm80.h"
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

/// What the host makes of a call: the kernel's argument beside PermutedArgs. There is no map of a.
struct PermutedParams {
  GroupedGrid grid;
  OperandMaps maps;
  StoreParams store;
};

template <class Gemm, Order kOrder>
MOYE_KERNEL(Gemm::kThreads)
sm90_permuted_kernel(MOYE_GRID_CONSTANT PermutedArgs const args, MOYE_GRID_CONSTANT PermutedParams const params) {
  Gemm::template run<kOrder>(args, params);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_permuted)
struct Gemm<kConfig> {
  using Element = ElementOfA<kConfig.dtype>;
  static_assert(sizeof(Element) == 2, "others have no kernel yet");
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kStages = kConfig.stages;
  static_assert(kConfig.alignment == 16, "pieces of 16 bytes, and what TMA reads where it is");
  static_assert(kConfig.cluster.m == 1 && kConfig.cluster.n == 1, "neighbours among the tiles are of different groups");

  static constexpr int kConsumers = 2, kProducerWarps = 4;
  static constexpr int kThreads = 128 * (1 + kConsumers);
  static_assert(kBlkM % 64 == 0 && kBlkN <= 256, "whole wgmmas");
  // 64 K registers: 168 per thread with 384 threads.
  static constexpr int kSums = kBlkM * kBlkN / 128;  // of a thread
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 3 * 168, "more than the CTA has: a deadlock");

  // Of a: pieces of 16 bytes, eight in a row of a stage. A warp copies four rows at a time.
  static constexpr int kPieces = 8, kPiece = 16 / int(sizeof(Element));
  static constexpr int kRowsOfWarp = kBlkM / kProducerWarps;
  static_assert(kRowsOfWarp <= 32 && kRowsOfWarp % 8 == 0, "a lane for each row, whole swizzles");
  // Stages that a warp has begun and not announced. A consumer releases a stage when it has begun to multiply the next
  // one, which therefore has to be announced before all are begun again. One fewer leaves the consumers one in hand.
  static constexpr int kLag = kStages > 3 ? kStages - 3 : 1;
  static_assert(kLag <= kStages - 2, "the producers would wait for the consumers, and they for the producers");

  template <Order kOrder>
  struct Operands : TmaOperands<kConfig, kOrder, ClusterMN{1, 1}, kConfig.cluster> {};
  using Epilogue =
      WarpgroupEpilogue<kBlkN, kConfig.accumulator,
                        staging_boxes<kConfig>(kConsumers, {kBlkM, kBlkN}, /*other_bytes=*/int(sizeof(GroupTable))),
                        kConsumerRegisters, kTakesPair<kConfig>, /*kDerives=*/true, /*kHasScales=*/false,
                        /*kGates=*/false, /*kLooksAhead=*/false, /*kScatters=*/true>;

  struct SharedStorage {
    OperandStages<kConfig> operands;
    typename Epilogue::SharedStorage epilogue[kConsumers];
    TmaPipeline<kStages> pipeline;
    alignas(8) uint64_t turn[kConsumers];
    GroupTable groups;
  };
  using Tiles = GroupedTiles<Ragged::m, kBlkM>;

  template <Order kOrder>
  static MOYE_DEVICE void run(PermutedArgs const& args, PermutedParams const& params) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x);
    if (thread == 0) {
      prefetch_tensor_map(&params.maps.b);
      prefetch_tensor_map(&params.store.map_d);
      smem.pipeline.init(/*warps=*/4, /*arrivals=*/1 + kProducerWarps);
      for (int consumer = 0; consumer < kConsumers; ++consumer) mbarrier_init(&smem.turn[consumer], 4);
      fence_mbarrier_init();
    }
    griddepcontrol_wait();  // the kernel ahead may still run up to here
    if (thread < 32) make_group_table<Ragged::m, kBlkM>(smem.groups, params.grid, args.grouped.group_sizes, thread);
    sync_threads();
    if (thread < 128) {
      warpgroup_reg_dealloc<kProducerRegisters>();
      produce<kOrder>(args, params, smem, thread / 32, thread % 32);
    } else {
      warpgroup_reg_alloc<kConsumerRegisters>();
      consume<kOrder>(args, params, smem, warpgroup_id() - 1, thread % 128);
    }
  }

  /// One warp: its rows of all tiles, stage after stage, and of warp 0 the loads of b. It runs ahead of the consumers,
  /// into the next tiles. Of two b it has a loop of its own, as sm90_grouped's.
  template <Order kOrder>
  static MOYE_DEVICE void produce(PermutedArgs const& args, PermutedParams const& params, SharedStorage& smem, int warp,
                                  int lane) {
    if constexpr (kTakesPair<kConfig>) {
      if (args.grouped.gemm.epilogue.second_b != nullptr)
        return produce<kOrder, /*kPair=*/true>(args, params, smem, warp, lane);
    }
    produce<kOrder, /*kPair=*/false>(args, params, smem, warp, lane);
  }

  template <Order kOrder, bool kPair>
  static MOYE_DEVICE void produce(PermutedArgs const& args, PermutedParams const& params, SharedStorage& smem, int warp,
                                  int lane) {
    Tiles const tiles(params.grid, smem.groups);
    auto next = tiles.begin();
    if (!(next != tiles.end())) return;
    GroupedTile next_tile = *next;
    int next_row = row_of_lane(args, params, next_tile, warp, lane);
    auto write = TmaPipeline<kStages>::producer_start();
    int announced = 0, begun = 0;  // the stage that is announced next; how many have begun and are not announced
    for (bool is_left = true; is_left;) {
      // Where the lane's row of the next tile lies is under way while this one is copied.
      GroupedTile const tile = next_tile;
      int const row_of_a = next_row;
      ++next;
      is_left = next != tiles.end();
      if (is_left) {
        next_tile = *next;
        next_row = row_of_lane(args, params, next_tile, warp, lane);
      }
      int const k_tiles = k_tiles_of<Ragged::m, kBlkK>(tile, params.grid);
      MOYE_NO_UNROLL
      for (int k_tile = 0; k_tile < k_tiles; ++k_tile, ++write) {
        // The consumer has released the stage: fill it.
        mbarrier_wait(&smem.pipeline.empty[write.index()], write.phase());
        if (warp == 0) {
          if (elect_one_sync()) load_b<kOrder, kPair>(args.grouped.gemm, params, smem, write.index(), tile, k_tile);
          sync_warp();
        }
        copy_rows<kOrder>(args.grouped.gemm, smem, write.index(), row_of_a, k_tile, warp, lane);
        cp_async_commit_group();
        if (begun < kLag) {
          ++begun;
          continue;
        }
        cp_async_wait_group<kLag>();
        announced = announce(smem, announced, lane);
      }
    }
    cp_async_wait_group<0>();
    for (; begun > 0; --begun) announced = announce(smem, announced, lane);
  }

  /// Where the row of a lies that is this lane's of a tile; -1 where the tile's group has none, and of no group.
  static MOYE_DEVICE int row_of_lane(PermutedArgs const& args, PermutedParams const& params, GroupedTile const& tile,
                                     int warp, int lane) {
    int const row = tile.begin + tile.m * kBlkM + warp * kRowsOfWarp + lane;
    if (lane >= kRowsOfWarp || row >= end_of_group(tile) || tile.group >= params.grid.groups) return -1;
    if (args.a_rows == nullptr) return row;
    int const at = args.a_rows[row], last = int(args.a_size) - 1;
    return at < 0 ? 0 : at < last ? at : last;
  }

  /// One warp: starts the copies of its rows of a stage. Where there is no row of the group, the stage keeps what it
  /// has, which reaches nothing that is stored; behind k there are zeros.
  template <Order kOrder>
  static MOYE_DEVICE void copy_rows(GemmArgs const& args, SharedStorage& smem, int stage, int row_of_a, int k_tile,
                                    int warp, int lane) {
    constexpr int kAtOnce = 32 / kPieces;
    int const piece = lane % kPieces, first = lane / kPieces, k = k_tile * kBlkK + piece * kPiece;
    auto const* const from = static_cast<Element const*>(args.a) + k;
    auto* const to =
        reinterpret_cast<unsigned char*>(Operands<kOrder>::A::stage(smem.operands.a, stage)) + warp * kRowsOfWarp * 128;
    int const bytes = k < int(args.k) ? 16 : 0;
    MOYE_NO_UNROLL  // rows that are found together take registers
        for (int swizzle = 0; swizzle < kRowsOfWarp; swizzle += 8) {
      MOYE_UNROLL
      for (int i = 0; i < 8; i += kAtOnce) {
        int const at = shfl_sync(kFullWarp, row_of_a, swizzle + i + first);
        if (at < 0) continue;
        auto& swizzled = *reinterpret_cast<uint128_t*>(to + (swizzle + i + first) * 128 + (piece ^ (i + first)) * 16);
        auto const& source = *reinterpret_cast<uint128_t const*>(from + at * args.a_m_stride);
        SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>::copy_zfill(source, swizzled, bytes);
      }
    }
  }

  /// One thread: the loads of a stage of b, or of two.
  template <Order kOrder, bool kPair>
  static MOYE_DEVICE void load_b(GemmArgs const& args, PermutedParams const& params, SharedStorage& smem, int stage,
                                 GroupedTile const& tile, int k_tile) {
    using B = typename Operands<kOrder>::B;
    int const n = tile.n * (kPair ? kBlkN / 2 : kBlkN), k = k_tile * kBlkK;
    // A box beyond the columns takes time to fill.
    int const boxes = kPair ? B::kBoxes : B::boxes_of(int(args.n) - n);
    uint64_t* const full = &smem.pipeline.full[stage];
    mbarrier_arrive_expect_tx(full, uint32_t(B::kStageBytes / B::kBoxes * boxes));
    auto* const to = B::stage(smem.operands.b, stage);
    MapCoord const group{tile.group, 0, 0};
    if constexpr (kPair) {
      B::template load_pair<3>(&params.maps.b, &params.maps.second_b, full, to, n, k, group, {});
    } else {
      B::template load<3>(&params.maps.b, full, to, n, k, group, {}, boxes);
    }
  }

  /// One warp, whose copies of a stage have landed: it arrives there. Returns the next stage.
  static MOYE_DEVICE int announce(SharedStorage& smem, int stage, int lane) {
    fence_proxy_async_shared_cta();  // cp.async writes as threads do, wgmma reads as TMA does
    sync_warp();
    if (lane == 0) mbarrier_arrive(&smem.pipeline.full[stage]);
    return stage + 1 < kStages ? stage + 1 : 0;
  }

  /// One warpgroup; thread: in it.
  template <Order kOrder>
  static MOYE_DEVICE void consume(PermutedArgs const& args, PermutedParams const& params, SharedStorage& smem,
                                  int consumer, int thread) {
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
    for (GroupedTile const tile : Tiles(params.grid, smem.groups)) {
      int const k_tiles = k_tiles_of<Ragged::m, kBlkK>(tile, params.grid);
      bool const is_own = whose == consumer;
      whose = 1 - whose;
      if (!is_own) {
        read += k_tiles;
        continue;
      }
      multiply_in_turn(tiled_mma, tCrA, tCrB, tCrC, k_tiles, smem.pipeline, read, smem.turn, phase, consumer, lane);

      // Store the tile, while the other consumer multiplies.
      int const m = tile.m * kBlkM;
      typename Epilogue::Place const place{.row = tile.begin + m,
                                           .end = end_of_group(tile),
                                           .matrix = tile.group,
                                           .map_row = first_of_group(tile, params.grid) + m,
                                           .map_matrix = end_of_group(tile),
                                           .has_matrix = tile.group < params.grid.groups,
                                           .rows = args.d_rows};
      auto const row = [&](int atom) { return atom * 64; };
      Epilogue::template store_group<kBlkN, kTakesPair<kConfig>>(args.grouped.gemm, params.store, place, tCrC,
                                                                 smem.epilogue[consumer], row, tile.n, thread);
    }
    Epilogue::finish(thread);
  }

  template <Order kOrder>
  static constexpr auto* kernel() {
    return sm90_permuted_kernel<Gemm, kOrder>;
  }

  static constexpr unsigned kCompiledOrders = order_bits(Order::NN, Order::NT);

  /// As many CTAs as the device runs at one time, if there can be that many tiles.
  static Status launch(PermutedArgs const& args, StreamHandle stream) {
    GemmArgs const& gemm = args.grouped.gemm;
    return dispatch<kCompiledOrders>(order_of(gemm), [&](auto order) -> Status {
      constexpr Order kOrder = decltype(order)::value;
      PermutedParams params{.grid = {}, .maps = {}, .store = {}};
      TileMNK const tile{kBlkM, tile_columns<kConfig>(gemm), kBlkK};
      if (Status status = make_grouped_grid<Ragged::m>(tile, gemm, &params.grid); !status.ok()) return status;
      if (Status status = make_maps<kOrder>(gemm, &params); !status.ok()) return status;
      LaunchConfig config{
          .grid = {}, .block = {unsigned(kThreads)}, .smem_bytes = kFacts.smem_bytes, .programmatic = true};
      auto* const kernel = sm90_permuted_kernel<Gemm, kOrder>;
      int resident = 0;
      if (Status status = max_active_clusters(kernel, config, stream, &resident); !status.ok()) return status;
      config.grid = {unsigned(resident < params.grid.most_tiles ? resident : params.grid.most_tiles)};
      return launch_kernel(kernel, config, stream, args, params);
    });
  }

  template <Order kOrder>
  static Status make_maps(GemmArgs const& args, PermutedParams* params) {
    GemmArgs stored = args;  // to the epilogue ragged rows are those of one matrix
    stored.batch = 1, stored.batch_sizes = make_batch_sizes(1, 1, 1);
    if (Status status = Epilogue::make_params(&params->store, stored, /*ragged=*/true); !status.ok()) return status;
    if (!Epilogue::template can_store_groups<kSums, kTakesPair<kConfig>>(params->store))
      return {"rows of d are not of 16 bytes, or this tile leaves no registers for its epilogue, or takes no second b"};
    if (args.k == 0 || args.batch == 0) return {};  // nothing to load
    params->maps.rank = 3;
    return make_maps_of_b<Operands<kOrder>>(args, &params->maps, Operands<kOrder>::B::kBoxOther);
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .consumers = kConsumers,
                                         .consumer_tile = {kBlkM, kBlkN},  // each has a tile of its own
                                         .min_arch = 90,
                                         .max_arch = 90,  // sm_90a's code
                                         .orders = kCompiledOrders,
                                         .any_stride = false,
                                         .takes_pair = kTakesPair<kConfig>};
};

}  // namespace moye
