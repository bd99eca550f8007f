// sm90_weights: D = A * B of weights B of 8 or 4 bits, which become A's 16 bits on their way to the tensor core.
//   A (M,K), B (K,N), D (M,N), all row-major; alignment 16 bytes; scales and zeros (groups of K,N)
//   transposed         the tensor core computes D^T = B^T A^T: B^T in registers, A (M,K) in shared memory
//   cluster            `parts` CTAs share one tile of D, a part of K each, and add up their sums as sm90_split_k does
//   warpgroup 0        producer: one thread starts the loads, those of the first stages before the others are ready
//   warpgroups 1, 2    consumers: each warp has 16 bytes of every row of B's stage, and the sums of those columns
//   smem -> rmem       ldmatrix.trans: a word holds two neighbours along k, and in both the same 2 or 4 columns; each
//                      column becomes a register of a fragment (gemm/weights.h). A lane's rows of D^T are neighbours
//   grid               x: tiles of rows, `parts` CTAs of a cluster each; y: tiles of columns
//   full[s]            1 arrival, the producer's, and the stage's bytes: consumers wait for them
//   empty[s]           1 arrival of every consumer warp: the producer waits for them
//   barrier 1          named, all consumers: none reads the stages any more; the sums go there
//   cluster barrier    first: all CTAs' sums are there; last: they have been read
// Weights less zeros are exact; their products with A are summed over a group, and that sum is multiplied in f32.
#pragma once

#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue.h"
#include "gemm/sync_mma.h"
#include "gemm/tensorop.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "gemm/weights.h"
#include "moye/algorithm/copy.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/copy_sm75.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/store.h"
#include "moye/arch/tma.h"
#include "moye/arch/warp.h"
#include "moye/atom/copy_atom.h"
#include "moye/atom/gmma.h"
#include "moye/atom/mma_atom.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

/// What the host makes of a call.
struct WeightsParams {
  OperandMaps maps;
  int tiles_m, tiles_n;    // of D
  int k_tiles, remainder;  // of a part; the first `remainder` parts have one more
  int halves;              // of stages, of all of k
  int group_halves;        // of a group
};

template <class Gemm>
MOYE_KERNEL_SHARED(Gemm::kThreads, Gemm::kResident)
sm90_weights_kernel(MOYE_GRID_CONSTANT WeightsArgs const args, MOYE_GRID_CONSTANT WeightsParams const params) {
  Gemm::run(args, params);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_weights)
struct Gemm<kConfig> {
  using Element = typename ElementOf<storage_dtype(kConfig.dtype)>::Type;
  using Pairs = WeightPairs<Element, weight_kind(kConfig.dtype)>;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kBits = weight_bits(kConfig.dtype), kColumns = 16 / kBits;  // of a word, and of a lane
  static constexpr int kBlocks = kColumns / 2;  // of 16 rows of D^T: a lane has one row in each half of a block
  static constexpr int kConsumers = 2, kConsumerThreads = 128 * kConsumers, kThreads = 128 + kConsumerThreads;
  static constexpr int kChunk = 16, kRowBytes = 4 * kConsumers * kChunk;  // of a warp, of a row of a stage
  static constexpr int kResident = kBlkM == 16 ? 2 : 1;  // CTAs of a multiprocessor, whose latencies hide each other's
  // 64 K registers: 80 or 168 per thread.
  static constexpr int kProducerRegisters = kResident == 2 ? 32 : 40;
  static constexpr int kConsumerRegisters = kResident == 2 ? 104 : 232;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= (kResident == 2 ? 240 : 504), "more than a CTA has");
  static constexpr int kSumsBarrier = 1, kMostTilesN = 65535;  // CUDA's limit of gridDim.y
  static_assert(kConfig.accumulator == Dtype::f32 && kConfig.alignment == 16 && kConfig.cluster.n == 1);
  static_assert(kBlkN == kRowBytes * 8 / kBits && kBlkK == 128 && kBlkM % 16 == 0, "one swizzled row of 128 bytes");
  static constexpr bool kHasZeros = weight_kind(kConfig.dtype) != WeightKind::e4m3;

  using OperandA = TmaOperand<Element, Major::k, kBlkM, 2 * kStages, 1>;  // stages of half of BLK_K
  using TiledMma = WarpTiledMma<typename Sm80Mma<storage_dtype(kConfig.dtype), Dtype::f32>::Op, 1, 1>;
  static constexpr int kStageBytes = kBlkK * kRowBytes;

  // Rows of sums lie 16 bytes apart in the banks: lanes write vectors of four rows without a conflict.
  using SumsLayout = Layout<Shape<Int<kBlkM>, Int<kBlkN>>, Stride<Int<kBlkN + 4>, _1>>;
  static constexpr int kVector = 4;

  struct Stages {
    alignas(1024) Element a[kBlkM * kBlkK * kStages];
    alignas(1024) unsigned char b[kStageBytes * kStages];
  };
  struct SharedStorage {
    union {
      Stages stages;                                 // until the last are read
      alignas(16) float sums[cosize_v<SumsLayout>];  // from then on
    };
    TmaPipeline<kStages> pipeline;
  };

  static MOYE_HOST_DEVICE constexpr auto weights_layout() {
    return tile_to_shape(gmma_smem_atom<GMMA::Major::K, unsigned char, 128>(),
                         make_shape(Int<kBlkK>{}, Int<kRowBytes>{}, Int<kStages>{}));  // (BLK_K,BYTES,PIPE)
  }

  static MOYE_DEVICE void run(WeightsArgs const& args, WeightsParams const& params) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x), rank = int(block_rank_in_cluster());
    // No division: 16 rows are done before a hundred instructions more would be nothing.
    TileCoord const tile{int(cluster_id_in_grid().x), int(block_idx().y), 0};
    int const begin = rank * params.k_tiles + (rank < params.remainder ? rank : params.remainder);
    int const k_tiles = params.k_tiles + (rank < params.remainder ? 1 : 0);

    if (thread < 128) {
      bool const elected = thread < 32 && elect_one_sync();
      int const at_once = k_tiles < kStages ? k_tiles : kStages;
      auto write = TmaPipeline<kStages>::producer_start();
      // The first stages are free: their loads start before the consumers know of the mbarriers.
      if (elected) {
        prefetch_maps(params.maps);
        smem.pipeline.init(/*warps=*/4 * kConsumers);
        fence_mbarrier_init();
        griddepcontrol_wait();  // the kernel ahead may still run up to here
        produce(args, params, tile, begin, at_once, smem, write);
      }
      sync_warp();
      sync_threads();
      warpgroup_reg_dealloc<kProducerRegisters>();
      if (elected) produce(args, params, tile, begin + at_once, k_tiles - at_once, smem, write);
      sync_warp();
      sync_ranks(args.parts);
      if (args.parts > 1) cluster_arrive();
    } else {
      griddepcontrol_wait();
      sync_threads();
      warpgroup_reg_alloc<kConsumerRegisters>();
      if (kHasZeros && args.zeros != nullptr) {
        consume<kHasZeros>(args, params, tile, begin, k_tiles, smem, thread - 128);
      } else {
        consume<false>(args, params, tile, begin, k_tiles, smem, thread - 128);
      }
      sync_ranks(args.parts);  // all ranks' sums are there
      add_and_store(args, tile, rank, smem, thread - 128);
    }
    if (args.parts > 1) cluster_wait();  // and have been read
  }

  static MOYE_DEVICE void sync_ranks(int parts) {
    if (parts > 1) return cluster_sync();
    sync_threads();
  }

  /// One thread: the loads of `k_tiles` k-tiles from `begin` on.
  static MOYE_DEVICE void produce(WeightsArgs const& args, WeightsParams const& params, TileCoord const& tile,
                                  int begin, int k_tiles, SharedStorage& smem, PipelineState<kStages>& write) {
    int const box_a = OperandA::box_of_few(args.gemm.m);
    CacheHint const hint = hint_of(params.tiles_m);
    MOYE_NO_UNROLL
    for (int k_tile = begin; k_tile < begin + k_tiles; ++k_tile, ++write) {
      // The consumers have released the stage: fill it.
      uint64_t* const full = smem.pipeline.producer_acquire(write, 2 * OperandA::stage_bytes(box_a) + kStageBytes);
      MOYE_UNROLL
      for (int h = 0; h < 2; ++h) {
        OperandA::template load<3>(&params.maps.a, full, OperandA::stage(smem.stages.a, write.index() * 2 + h),
                                   tile.m * kBlkM, k_tile * kBlkK + h * 64, {},
                                   Multicast{.hint = hint_of(params.tiles_n)});
      }
      tma_load(&params.maps.b, full, smem.stages.b + write.index() * kStageBytes, tile.n * kRowBytes, k_tile * kBlkK, 0,
               hint);
    }
  }

  /// The zeros of a lane's columns, from `column` on, in one group of k: a byte each.
  template <bool kZeros>
  static MOYE_DEVICE uint32_t load_zeros(WeightsArgs const& args, int group, int column) {
    if (!kZeros || column >= args.gemm.n) return 0;
    auto const* const zeros = args.zeros + int64_t(group) * args.gemm.n + column;  // n is a multiple of kColumns
    if constexpr (kColumns == 4) return *reinterpret_cast<uint32_t const*>(zeros);
    return *reinterpret_cast<uint16_t const*>(zeros);
  }

  /// Consumers: smem.sums = the products of this CTA's `stages` stages, from stage `begin` of k on.
  template <bool kZeros>
  static MOYE_DEVICE void consume(WeightsArgs const& args, WeightsParams const& params, TileCoord const& tile,
                                  int begin, int stages, SharedStorage& smem, int thread) {
    int const warp = thread / 32, lane = thread % 32;
    int const first = (warp * kChunk * 8 + lane / 4 * 16) / kBits;  // the lane's first column of the tile
    int const column = tile.n * kBlkN + first;
    uint32_t power = Pairs::power(args.is_signed);
    MOYE_COMPUTED_HERE("+r", power);
    Tensor sA = make_tensor(make_smem_ptr(smem.stages.a), OperandA::smem_layout());  // (BLK_M,BLK_K/2,2*PIPE)
    Tensor sB = make_tensor(make_smem_ptr(smem.stages.b), weights_layout());         // (BLK_K,BYTES,PIPE)

    TiledMma tiled_mma;  // of a warp: D^T's rows are columns of B
    auto const thr_mma = tiled_mma.get_slice(lane);
    Tensor tCrW = make_tensor<Element>(Shape<_8, Int<kBlocks>, _4>{});  // (MMA,MMA_M,MMA_K), of half a stage
    Tensor tCrX = thr_mma.partition_fragment_B(sA(_, _, _0{}));         // (MMA,MMA_N,MMA_K), likewise
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<16 * kBlocks>, Int<kBlkM>>{});      // (MMA,MMA_M,MMA_N)
    Tensor tCrGroup = partition_fragment_C(tiled_mma, Shape<Int<16 * kBlocks>, Int<kBlkM>>{});  // (MMA,MMA_M,MMA_N)
    auto const smem_copy_x = make_tiled_copy_B(CopyAtom<SM75_U32x4_LDSM_N, Element>{}, tiled_mma);
    Tensor tXsX = smem_copy_x.get_slice(lane).partition_S(sA);  // (CPY,MMA_N,MMA_K,2*PIPE)
    Tensor tXrX = smem_copy_x.get_slice(lane).retile_D(tCrX);   // (CPY,MMA_N,MMA_K)
    // Where a lane reads: 32 rows of B, 16 of A and all stages lie whole periods of the swizzle apart. In registers, or
    // a third of the loop would compute it again.
    int lanes_w = int(&sB(lane, warp * kChunk, 0) - smem.stages.b);
    MOYE_COMPUTED_HERE("+r", lanes_w);
    int lanes_x[4];  // of each MMA_K
    MOYE_UNROLL
    for (int k = 0; k < 4; ++k) {
      lanes_x[k] = int(&tXsX(_0{}, _0{}, k, _0{}) - smem.stages.a);
      MOYE_COMPUTED_HERE("+r", lanes_x[k]);
    }
    clear(tCrC);
    clear(tCrGroup);

    // Groups begin and end with halves of a stage. An odd half behind k is left out.
    int const first_half = begin * 2, last = begin * 2 + stages * 2, end = last < params.halves ? last : params.halves;
    int group = first_half / params.group_halves, left = params.group_halves - first_half % params.group_halves;
    uint32_t next_zeros = first_half < end ? load_zeros<kZeros>(args, group, column) : 0;  // a part may have no k
    uint32_t offsets[kColumns] = {};  // not left open: ptxas 13.0 took another register than was written (f16xs8)
    WeightScales<kColumns> scales = {};
    // The scales of the group, and the zeros of the next one, are on their way while the group is summed.
    auto const begin_group = [&](int half) {
      MOYE_UNROLL
      for (int c = 0; c < kColumns; ++c) offsets[c] = Pairs::offset(int8_t(next_zeros >> 8 * c), args.is_signed);
      scales.load(args, group, column);
      if (half + left < params.halves) next_zeros = load_zeros<kZeros>(args, group + 1, column);
    };
    if (first_half < end) begin_group(first_half);
    PipelineState<kStages> read;
    MOYE_NO_UNROLL
    for (int half = first_half; half < end; ++half) {
      int const h = half % 2, stage = read.index() * 2 + h;
      if (h == 0) smem.pipeline.consumer_wait(read);
      MOYE_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (k % 2 == 0) {
          uint32_t words[4];  // of 8 rows of B each
          SM75_U16x8_LDSM_T::copy(*reinterpret_cast<uint128_t const*>(smem.stages.b + lanes_w +
                                                                      stage * (kStageBytes / 2) + k * 16 * kRowBytes),
                                  words[0], words[1], words[2], words[3]);
          MOYE_UNROLL
          for (int i = 0; i < 2; ++i) {
            MOYE_UNROLL
            for (int c = 0; c < kColumns; ++c) {
              auto* const registers = reinterpret_cast<uint32_t*>(&tCrW(_0{}, c / 2, k + i)) + c % 2;
              registers[0] = Pairs::template pair<kZeros>(words[2 * i], c, offsets[c], power);
              registers[2] = Pairs::template pair<kZeros>(words[2 * i + 1], c, offsets[c], power);
            }
          }
        }
        MOYE_UNROLL
        for (int j = 0; j < kBlkM / 16; ++j) {
          Tensor to = recast<uint32_t>(tXrX(_, j, k));  // (CPY)
          SM75_U32x4_LDSM_N::copy(
              *reinterpret_cast<uint128_t const*>(OperandA::stage(smem.stages.a, stage) + lanes_x[k] + j * 16 * 64),
              to(0), to(1), to(2), to(3));
        }
        gemm(tiled_mma, tCrW(_, _, k), tCrX(_, _, k), tCrGroup);
      }
      if (h == 1 || half + 1 == end) {
        sync_warp();  // all lanes have read the stage
        smem.pipeline.consumer_release(read, lane);
        ++read;
      }
      --left;
      if (left == 0 || half + 1 == end) {
        float factors[kColumns];
        scales.to_floats(args.scale_dtype, factors);
        MOYE_UNROLL
        for (int c = 0; c < kColumns; ++c) {
          MOYE_UNROLL
          for (int j = 0; j < size<2>(tCrC); ++j) {
            MOYE_UNROLL
            for (int e = 0; e < 2; ++e) tCrC(c % 2 * 2 + e, c / 2, j) += factors[c] * tCrGroup(c % 2 * 2 + e, c / 2, j);
          }
        }
        clear(tCrGroup);
        ++group;
        left = params.group_halves;
        if (half + 1 < end) begin_group(half + 1);
      }
    }
    // Every load has been waited for. Other warps may still read their stages.
    named_barrier_sync(kSumsBarrier, kConsumerThreads);
    MOYE_UNROLL
    for (int j = 0; j < size<2>(tCrC); ++j) {
      MOYE_UNROLL
      for (int e = 0; e < 2; ++e) {
        Row<float, kColumns> row;
        MOYE_UNROLL
        for (int c = 0; c < kColumns; ++c) row.elements[c] = tCrC(c % 2 * 2 + e, c / 2, j);
        float* const to = smem.sums + SumsLayout{}(j * 8 + lane % 4 * 2 + e, first);
        if constexpr (kColumns == 4) {
          store_shared(detail::bit_cast<uint128_t>(row), *reinterpret_cast<uint128_t*>(to));
        } else {
          using Word = typename Row<float, kColumns>::Word;
          *reinterpret_cast<Word*>(to) = detail::bit_cast<Word>(row);
        }
      }
    }
  }

  /// Consumers: the tile's rows in vectors of 16 bytes, dealt out to the ranks in one piece each.
  static MOYE_DEVICE void add_and_store(WeightsArgs const& args, TileCoord const& tile, int rank, SharedStorage& smem,
                                        int thread) {
    constexpr int kVectors = kBlkN / kVector;  // of one row
    float const* sums[kMostWeightParts];       // of each rank
    MOYE_UNROLL
    for (int r = 0; r < kMostWeightParts; ++r) sums[r] = mapa(smem.sums, uint32_t(r < args.parts ? r : 0));

    int64_t const m_left = args.gemm.m - int64_t(tile.m) * kBlkM;
    int const all = (m_left < kBlkM ? int(m_left) : kBlkM) * kVectors, share = (all + args.parts - 1) / args.parts;
    int const end = (rank + 1) * share < all ? (rank + 1) * share : all;
    MOYE_NO_UNROLL
    for (int first = rank * share;; first += kConsumerThreads) {  // in all threads alike
      int const vector = first + thread, row = vector / kVectors, at = vector % kVectors * kVector;
      bool const is_last = first + kConsumerThreads >= end;
      Row<float, kVector> parts[kMostWeightParts];
      MOYE_UNROLL
      for (int r = 0; r < kMostWeightParts; ++r) {  // all are on their way before the first is needed
        if (r < args.parts && vector < end)
          parts[r] = detail::bit_cast<Row<float, kVector>>(
              *reinterpret_cast<uint128_t const*>(sums[r] + SumsLayout{}(row, at)));
      }
      MOYE_UNROLL
      for (int r = 1; r < kMostWeightParts; ++r) {
        MOYE_UNROLL
        for (int i = 0; i < kVector; ++i) {
          if (r < args.parts) parts[0].elements[i] += parts[r].elements[i];
        }
      }
      // In front of the last stores: the barrier would wait for them, too.
      if (is_last && args.parts > 1) cluster_arrive();
      int64_t const column = int64_t(tile.n) * kBlkN + at;
      if (vector < end && column < args.gemm.n)  // a multiple of kVector
        store_row<Element>(args.gemm, (int64_t(tile.m) * kBlkM + row) * args.gemm.n + column, parts[0]);
      if (is_last) break;
    }
  }

  static constexpr unsigned kCompiledOrders = order_bits(Order::NN);
  template <Order>
  static constexpr auto* kernel() {
    return sm90_weights_kernel<Gemm>;
  }

  static Status launch(WeightsArgs const& args, StreamHandle stream) {
    GemmArgs const& gemm = args.gemm;
    TileGrid grid;
    if (Status status = make_tile_grid(kConfig.tile, gemm, &grid); !status.ok()) return status;
    if (grid.m > 0x7fffffff / args.parts || grid.n > kMostTilesN) return {"d has more tiles than one launch has CTAs"};
    WeightsParams params{.maps = {},
                         .tiles_m = grid.m,
                         .tiles_n = grid.n,
                         .k_tiles = grid.k / args.parts,
                         .remainder = grid.k % args.parts,
                         .halves = 0,
                         .group_halves = 0};
    params.halves = ceil_div(int(gemm.k), 64);
    params.group_halves = args.group < gemm.k ? int(args.group / 64) : params.halves > 0 ? params.halves : 1;
    if (gemm.k > 0) {
      BatchOfMap const one{.modes = {{1, 0}, {1, 0}, {1, 0}}, .rank = 3};
      Status status =
          OperandA::make_map(&params.maps.a, gemm.a, {gemm.m, gemm.k}, {gemm.k, 1}, one, OperandA::box_of_few(gemm.m));
      if (!status.ok()) return status;
      int64_t const bytes = gemm.n * kBits / 8;
      status =
          make_matrix_map<unsigned char>(&params.maps.b, gemm.b, {bytes, 1}, {gemm.k, bytes}, one, kRowBytes, kBlkK);
      if (!status.ok()) return status;
    }
    LaunchConfig const config{.grid = {unsigned(grid.m) * unsigned(args.parts), unsigned(grid.n), 1},
                              .block = {kThreads},
                              .cluster = {unsigned(args.parts), 1, 1},
                              .smem_bytes = kFacts.smem_bytes,
                              .programmatic = true,
                              .resident = kResident};
    return launch_kernel(kernel<Order::NN>(), config, stream, args, params);
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .consumers = kConsumers,
                                         .consumer_tile = {kBlkM, kBlkN / kConsumers},
                                         .min_arch = 90,
                                         .max_arch = 90,  // sm_90a's code
                                         .orders = order_bits(Order::NN),
                                         .any_stride = false};
};

}  // namespace moye
