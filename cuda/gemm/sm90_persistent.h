// What the persistent, warp-specialized kernels of Hopper share: how they are started, and their producer. A kernel's
// file has its consumers.
#pragma once

#include "gemm/config.h"
#include "gemm/entry.h"
#include "gemm/epilogue_sm90.h"
#include "gemm/launch.h"
#include "gemm/order.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/device.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"
#include "moye/arch/launch_recorder.h"
#include "moye/pipeline.h"

namespace moye {

/// What the host makes of a call: the kernel's argument beside GemmArgs. (In one struct with them, LLVM takes what it
/// loads of them for different from thread to thread, and epilogues become longer.)
struct PersistentParams {
  TileGrid grid;             // of clusters
  CacheHint hint_a, hint_b;  // of what one CTA loads for itself
  OperandMaps maps;
  StoreParams store;
};

/// Boxes of each consumer warp's staging: all that its sums fill, as 16-bit results, or as many as the stages leave
/// shared memory for, beside other_bytes of the kernel's own.
template <GemmConfig kConfig>
constexpr int staging_boxes(int consumers, TileMN consumer_tile, int other_bytes = 0) {
  constexpr int kSmemBytes = 227 * 1024, kBarrierBytes = 1024, kBoxBytes = 16 * 128;
  int const for_boxes = kSmemBytes - kBarrierBytes - other_bytes - int(sizeof(OperandStages<kConfig>));
  int const left = for_boxes / (consumers * 4 * kBoxBytes);
  int const all = consumer_tile.m / 64 * ceil_div(consumer_tile.n, 64);
  return left < 2 ? 2 : left < all ? left : all < 2 ? 2 : all;
}

/// One thread, first of all: neither the first load nor the first store waits for its map.
MOYE_DEVICE void prefetch_maps(PersistentParams const& params) {
  prefetch_maps(params.maps);
  prefetch_tensor_map(&params.store.map_d);
}

/// What this CTA loads of each operand, and for whom: CTAs of its row of the cluster need the same rows of A, those of
/// its column the same rows of B.
struct Multicasts {
  Multicast a, b;
};

template <ClusterMN kClusterMN>
MOYE_DEVICE Multicasts multicasts() {
  constexpr int kClusterM = kClusterMN.m, kClusterN = kClusterMN.n, kCluster = kClusterM * kClusterN;
  int const rank = int(block_idx().x % kCluster), rank_m = rank % kClusterM, rank_n = rank / kClusterM;
  Multicasts of{.a = {.part = rank_n, .mask = 0}, .b = {.part = rank_m, .mask = 0}};
  for (int n = 0; n < kClusterN; ++n) of.a.mask |= uint16_t(1u << (rank_m + n * kClusterM));
  for (int m = 0; m < kClusterM; ++m) of.b.mask |= uint16_t(1u << (m + rank_n * kClusterM));
  return of;
}

/// Whether the producer loads operands that last before the kernel ahead has ended: of small tiles, whose launches are
/// short. In larger ones no register is left for it. Operands that are packed first never last.
template <GemmConfig kConfig>
inline constexpr bool kLoadsEarly = kConfig.cluster.m * kConfig.cluster.n == 1 && kConfig.alignment == 16 &&
                                    kConfig.tile.k == 64 && kConfig.tile.m * kConfig.tile.n <= 64 * 256;

/// One thread: the loads of all tiles, stage after stage. It runs ahead of the consumers, into the next tiles. Where it
/// loads early it waits for the kernel ahead here, and fills the first stages in two passes: with operands that last
/// before that, with the others behind it. kMayBePair, kMapRank: as of load_stage().
template <class Operands, bool kMayBePair, int kMapRank, GemmConfig kConfig, class Pipeline>
MOYE_DEVICE void produce(GemmArgs const& args, PersistentParams const& params, OperandStages<kConfig>& stages,
                         Pipeline& pipeline MOYE_LOC) {
  MOYE_SITE;
  auto [a, b] = multicasts<kConfig.cluster>();
  a.hint = params.hint_a, b.hint = params.hint_b;
  auto write = Pipeline::producer_start();
  Which early{.a = false, .b = false};
  if constexpr (kLoadsEarly<kConfig>) {
    if ((args.early & kEarlyNextAtOnce) != 0) griddepcontrol_launch_dependents();
    early = early_operands_of(args);
  }
  bool begins = early.a || early.b;
  if (kLoadsEarly<kConfig> && !begins) griddepcontrol_wait();  // the kernel ahead may still run up to here
  for (TileCoord const of_sums : TileScheduler<kConfig.cluster.m, kConfig.cluster.n>(params.grid)) {
    TileCoord const tile = operand_tile(of_sums, params.grid);
    OperandCoords const coords = operand_coords<kMapRank>(args, params.maps, tile);
    int const at_once = params.grid.k < kConfig.stages ? params.grid.k : kConfig.stages;
    MOYE_NO_UNROLL
    for (int pass = begins ? 0 : 2; pass < 3; ++pass) {
      if (pass == 1) griddepcontrol_wait();  // which may still write the others
      if (pass < 2) write = Pipeline::producer_start();
      Which const which = of_pass(pass, early);
      int const end = pass < 2 ? at_once : params.grid.k;
      MOYE_NO_UNROLL
      for (int k_tile = pass == 2 && begins ? at_once : 0; k_tile < end; ++k_tile, ++write) {
        // The consumers of all CTAs have released the stage: fill it, here and in the CTAs that share it. Behind the
        // first pass it is the producer's already.
        uint64_t* const full =
            pass == 1 ? &pipeline.full[write.index()] : pipeline.producer_acquire(write, Operands::kStageBytes);
        load_stage<Operands, kMayBePair, kMapRank>(args, params.maps, tile, coords, tile.k + k_tile, stages,
                                                   write.index(), full, a, b, which);
      }
    }
    begins = false;
  }
  if constexpr (kLoadsEarly<kConfig>) {
    if ((args.early & kEarlyNext) != 0) griddepcontrol_launch_dependents();  // whose early loads follow ours
  }
}

/// The same, whatever the maps' rank is. Short launches have one copy of the loads, since a program waits for it; in
/// larger tiles there is no register for that.
template <class Operands, bool kMayBePair, GemmConfig kConfig, class Pipeline>
MOYE_DEVICE void produce(GemmArgs const& args, PersistentParams const& params, OperandStages<kConfig>& stages,
                         Pipeline& pipeline MOYE_LOC) {
  MOYE_SITE;
  if constexpr (kLoadsEarly<kConfig>) {
    produce<Operands, kMayBePair, /*kMapRank=*/0>(args, params, stages, pipeline);
  } else if (params.maps.rank == 3) {
    produce<Operands, kMayBePair, 3>(args, params, stages, pipeline);
  } else {
    produce<Operands, kMayBePair, 5>(args, params, stages, pipeline);
  }
}

/// Calls f(stores, way) with each way that has a kernel of its own, as a compile-time constant.
template <class Kernel, class F>
Status for_each_short_kernel(F const& f) {
  auto const one = [&](auto stores, StoreParams::Way way) -> Status {
    if constexpr (Kernel::Epilogue::template has_kernel<Kernel::kSums>(decltype(stores)::value)) return f(stores, way);
    return {};
  };
  if (Status status = one(C<Stores::converted>{}, StoreParams::Way::converted); !status.ok()) return status;
  if (Status status = one(C<Stores::wide>{}, StoreParams::Way::wide); !status.ok()) return status;
  if (Status status = one(C<Stores::activated>{}, StoreParams::Way::activated); !status.ok()) return status;
  if (Status status = one(C<Stores::ahead>{}, StoreParams::Way::ahead); !status.ok()) return status;
  if (Status status = one(C<Stores::pair>{}, StoreParams::Way::pair); !status.ok()) return status;
  return one(C<Stores::gated>{}, StoreParams::Way::gated);
}

template <class Kernel>
Status prepare_short_kernels() {
  return for_each_order<compiled_orders<Kernel>()>([](auto order) {
    return for_each_short_kernel<Kernel>([&](auto stores, StoreParams::Way) {
      auto* const kernel = Kernel::template kernel<decltype(order)::value, decltype(stores)::value>();
      return prepare_kernel(kernel, Kernel::kFacts.smem_bytes);
    });
  });
}

/// Host: as many clusters as the device runs at one time, if there are that many tiles for them. Where k is split into
/// `parts`, `sums` describes what is stored, a matrix for each part of each matrix of d; else it is `args` itself.
/// params: what the kernel takes beside args, whose PersistentParams are filled in here.
template <GemmConfig kConfig, class Params = PersistentParams>
Status launch_clusters(GemmArgs args, GemmArgs const& sums, int parts, StreamHandle stream, Params params = {}) {
  using Kernel = Gemm<kConfig>;
  constexpr int kClusterM = kConfig.cluster.m, kClusterN = kConfig.cluster.n, kCluster = kClusterM * kClusterN;
  TileMNK const tile{kConfig.tile.m * kClusterM, tile_columns<kConfig>(args) * kClusterN, kConfig.tile.k};
  if (Status status = make_tile_grid(tile, sums, &params.grid); !status.ok()) return status;
  params.hint_a = hint_of(params.grid.n), params.hint_b = hint_of(params.grid.m);
  params.grid.parts = parts;
  params.grid.k = ceil_div(params.grid.k, parts);
  if (Status status = Kernel::Epilogue::make_params(&params.store, sums); !status.ok()) return status;
  return dispatch<compiled_orders<Kernel>()>(order_of(args), [&](auto order) -> Status {
    constexpr Order kOrder = decltype(order)::value;
    using Operands = typename Kernel::template Operands<kOrder>;
    if (Status status = make_operand_maps<Operands>(args, &params.maps); !status.ok()) return status;
    LaunchConfig config{.grid = {},
                        .block = {unsigned(Kernel::kFacts.threads)},
                        .cluster = {kCluster, 1, 1},
                        .smem_bytes = Kernel::kFacts.smem_bytes,
                        .programmatic = true};
    auto* kernel = Kernel::template kernel<kOrder>();
    if constexpr (requires { Kernel::prepare_short(); }) {
      for_each_short_kernel<Kernel>([&](auto stores, StoreParams::Way way) -> Status {
        // A function of a user's is in one kernel that was compiled with it.
        bool const is_own = sums.epilogue.activation == Activation::own;
        if (params.store.way == way && !is_own) kernel = Kernel::template kernel<kOrder, decltype(stores)::value>();
        return {};
      });
    }
    int resident = 0;  // clusters
    if (Status status = max_active_clusters(kernel, config, stream, &resident); !status.ok()) return status;
    args.early = kLoadsEarly<kConfig> ? args.early | early_where(params.grid.tiles <= resident / 2) : 0;
    config.grid = {unsigned(resident < params.grid.tiles ? resident : params.grid.tiles) * kCluster};
    return launch_kernel(kernel, config, stream, args, params);
  });
}

template <GemmConfig kConfig>
Status launch_clusters(GemmArgs const& args, StreamHandle stream) {
  return launch_clusters<kConfig>(args, args, /*parts=*/1, stream);
}

}  // namespace moye
