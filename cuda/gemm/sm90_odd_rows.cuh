// sm90_odd_rows: D = A * B^T of few rows, where rows of B begin at any element: 16 bytes divide neither n nor the
// pitch.
//   A (M,K) along k, B (N,K) along n, D (M,N), of any pitch each; 16-bit operands; batch: outer dimension of the grid
//   slices    rows k = 8 q + r of B, for one r, lie alike beside the words of 16 bytes: 8 pitches are whole words. Warp
//             r of 8 multiplies those, and sums all of the tile, up to 7 columns further right than it lies
//   gmem -> smem   B by TMA, from the word on in which the tile begins: in a map of lines of 8 rows those of a slice
//             are a box. Where TMA cannot, and A always, cp.async of whole words; zeros behind the ends of rows
//   smem -> rmem   B by ldmatrix, transposed; A element by element, k = r, r + 8, ..., from where the row begins
//   stage s holds k-tile s, s + kStages, ...; kStages - 1 of them are in flight while one is multiplied
//   full[s]   8 arrivals, one of each warp, and the bytes of B's boxes
//   consumer_wait  (1) the next stage's words have landed, for every thread's copies;
//                  (2) every warp is done with the stage that is refilled next
//   barriers of the epilogue: before the slices' sums replace the stages; before the sums of all slices are added up
//   griddepcontrol  all threads wait for the kernel ahead before the first load
#pragma once

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/epilogue.h"
#include "gemm/finishing.h"
#include "gemm/launch.h"
#include "gemm/operand.h"
#include "gemm/order.h"
#include "gemm/sync_mma.h"
#include "gemm/tensorop.h"
#include "gemm/tile_scheduler.h"
#include "gemm/tma_operand.h"
#include "moye/algorithm/copy.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/copy_sm80.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch_recorder.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/tma.h"
#include "moye/atom/copy_atom.h"
#include "moye/atom/gmma.h"
#include "moye/atom/mma_atom.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

/// What the host makes of a call.
struct OddRowsParams {
  TensorMap lines;   // of B: 8 rows each
  TensorMap rest;    // the same with a last line of the rows that are left, where 8 does not divide k
  bool by_tma;       // whether there are maps
  BatchSizes tiles;  // matrices of d, tiles along n, tiles along m
  int k_tiles;
};

template <class Gemm, Order, Finishing kFinishing = Finishing::any>
MOYE_KERNEL_SHARED(Gemm::kThreads, Gemm::kResident)
sm90_odd_rows_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT OddRowsParams const params) {
  Gemm::template run<kFinishing>(args, params);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_odd_rows)
struct Gemm<kConfig> {
  using MmaOp = typename Sm80Mma<kConfig.dtype, kConfig.accumulator>::Op;
  using Element = ElementOfA<kConfig.dtype>;
  // Elements of 16 bytes, the step of a load; and rows of B from one of a slice to the next.
  static constexpr int kWord = 8;
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kSlices = kWord, kThreads = 32 * kSlices;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kFrame = kBlkN + kWord;  // columns of a stage, in which the tile lies somewhere
  static constexpr int kPitchA = kBlkK + kWord;
  static constexpr int kPerSlice = kBlkK / kSlices;  // rows of B
  static_assert(sizeof(Element) == 2 && kConfig.alignment == 2, "ldmatrix transposes 16 bits");
  static_assert(kBlkM % 16 == 0 && kFrame % 64 == 0 && kPerSlice == 16, "whole atoms, whole swizzled rows");

  // The warps lie one behind the other along k, in shared memory's order. Of n a warp takes two atoms at a time.
  using TiledMma =
      decltype(make_tiled_mma(MmaOp{}, Layout<Shape<_1, _1, Int<kSlices>>>{}, Tile<_16, _16, Int<kBlkK>>{}));
  static_assert(decltype(size(TiledMma{}))::value == kThreads);

  // Of A as it lies in memory, (BLK_M,(BLK_K/8,SLICE)): k is in the order of B's rows.
  using LayoutA =
      Layout<Shape<Int<kBlkM>, Shape<Int<kPerSlice>, Int<kSlices>>>, Stride<Int<kPitchA>, Stride<Int<kWord>, _1>>>;
  static MOYE_HOST_DEVICE constexpr auto layout_b() {  // (FRAME,BLK_K): what one box brings lies together
    return tile_to_shape(gmma_smem_atom<GMMA::Major::MN, Element, 128>(), Shape<Int<kFrame>, Int<kBlkK>>{},
                         Step<_2, _1>{});
  }
  // A box: 128 bytes of each row of a slice.
  static constexpr int kBoxColumns = 64, kBoxElements = kBoxColumns * kPerSlice, kBoxes = kFrame / kBoxColumns;
  // Rows lie 32 bytes apart in the banks, as in StagedRows.
  using Sums = Layout<Shape<Int<kBlkM>, Int<kFrame>, Int<kSlices>>,
                      Stride<Int<kFrame + 8>, _1, Int<kBlkM*(kFrame + 8)>>>;  // (BLK_M,FRAME,SLICE)

  struct Stage {
    alignas(1024) Element b[kFrame * kBlkK];
    alignas(128) Element a[kBlkM * kPitchA];
  };
  struct SharedStorage {
    union {
      Stage stages[kStages];                    // until the last are read
      alignas(128) float sums[cosize_v<Sums>];  // from then on
    };
    alignas(8) uint64_t full[kStages];
  };
  static constexpr int kResident = 2 * int(sizeof(SharedStorage)) <= 226 * 1024 ? 2 : 1;  // CTAs of a multiprocessor

  using CopyWord = SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>;

  /// How far behind the beginning of its word an element lies.
  static MOYE_HOST_DEVICE int elements_ahead(Element const* p) {
    return int(reinterpret_cast<uintptr_t>(p) / 2 % kWord);
  }

  /// Copies word `word` of those from that on in which `row` lies, whose `count` elements from there on exist; zeros
  /// behind them. What is ahead of the row in its word is read with it: memory is allocated in whole words.
  static MOYE_DEVICE void copy_word(Element const* row, int word, int count, Element* to) {
    int const ahead = elements_ahead(row), left = count > 0 ? count + ahead - word * kWord : 0;
    int const elements = left < 0 ? 0 : left < kWord ? left : kWord;
    CopyWord::copy_zfill(*reinterpret_cast<uint128_t const*>(row - ahead + word * kWord),
                         *reinterpret_cast<uint128_t*>(to), 2 * elements);
  }

  template <Finishing kFinishing>
  static MOYE_DEVICE void run(GemmArgs const& args, OddRowsParams const& params) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x), slice = thread / 32, lane = thread % 32;
    BatchCoord const block = batch_coord(params.tiles, int(block_idx().x));
    TileCoord const tile{.m = block.modes[2], .n = block.modes[1], .batch = block.modes[0]};
    int const m_left = int(args.m) - tile.m * kBlkM;  // rows of A from this tile on
    int const n_left = int(args.n) - tile.n * kBlkN;  // columns of D, rows of B
    if (thread == 0) {
      if (params.by_tma) prefetch_tensor_map(&params.lines);
      for (int stage = 0; stage < kStages; ++stage) mbarrier_init(&smem.full[stage], kSlices);
      fence_mbarrier_init();
    }

    auto const *a = static_cast<Element const*>(args.a), *b = static_cast<Element const*>(args.b);
    int const first_column = elements_ahead(b) + tile.n * kBlkN;  // in the lines of the maps
    int matrix_of_b = 0;
    if (args.batch > 1) {
      BatchCoord const matrix = batch_coord(args.batch_sizes, tile.batch);
      a += batch_offset(matrix, args.a_batch_strides);
      b += batch_offset(matrix, args.b_batch_strides);
      matrix_of_b = map_coord<3>(matrix, args.b_batch_strides).c2;
    }
    a += int64_t(tile.m) * kBlkM * args.a_m_stride;
    b += int64_t(tile.n) * kBlkN;

    // Of A a warp copies rows, a word a lane. Of B it loads its slice's boxes; or else threads copy rows, a word each.
    constexpr int kWordsA = kPitchA / kWord, kWordsB = kFrame / kWord;
    static_assert(kWordsA <= 32 && kThreads % kWordsB == 0);
    int const columns = n_left < kBlkN ? n_left : kBlkN;
    int const rest = int(args.k) % kSlices;
    TensorMap const* const map = slice < rest ? &params.rest : &params.lines;
    int const box_column = int((first_column + slice * args.b_k_stride) / kWord * kWord);
    CacheHint const hint = hint_of(params.tiles.modes[2]);
    auto const* next_a = a + slice * args.a_m_stride;
    CpAsyncPipeline<kStages> pipeline;
    int k = 0;  // the first of the k-tile that is filled next
    auto const fill = [&] {
      if (k < args.k) {
        int const ks = int(args.k) - k < kBlkK ? int(args.k) - k : kBlkK;
        Stage& stage = smem.stages[pipeline.write()];
        if (params.by_tma) {
          if (lane == 0) {
            uint64_t* const full = &smem.full[pipeline.write()];
            mbarrier_arrive_expect_tx(full, kBoxes * kBoxElements * sizeof(Element));
            MOYE_UNROLL
            for (int i = 0; i < kBoxes; ++i) {
              tma_load(map, full, stage.b + layout_b()(i * kBoxColumns, slice * kPerSlice),
                       box_column + i * kBoxColumns, k / kSlices, matrix_of_b, hint);
            }
          }
        } else {
          int const word = thread % kWordsB;
          MOYE_NO_UNROLL
          for (int row = thread / kWordsB; row < kBlkK; row += kThreads / kWordsB) {
            copy_word(b + (k + row) * args.b_k_stride, word, row < ks ? columns : 0,
                      stage.b + layout_b()(word * kWord, row % kSlices * kPerSlice + row / kSlices));
          }
        }
        if (lane < kWordsA) {
          auto const* from = next_a;
          MOYE_UNROLL
          for (int i = 0; i < kBlkM / kSlices; ++i, from += kSlices * args.a_m_stride) {
            int const m = slice + i * kSlices;
            copy_word(from, lane, m < m_left ? ks : 0, stage.a + m * kPitchA + lane * kWord);
          }
        }
        k += kBlkK;
        next_a += kBlkK;
      }
      pipeline.producer_commit();
    };
    sync_threads();         // the mbarriers are there
    griddepcontrol_wait();  // the kernel ahead may still run up to here
    MOYE_NO_UNROLL
    for (int stage = 0; stage < pipeline.kAhead; ++stage) fill();

    TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor sA = make_tensor(make_smem_ptr(smem.stages[0].a), LayoutA{});   // (BLK_M,BLK_K), as if rows began with words
    Tensor sB = make_tensor(make_smem_ptr(smem.stages[0].b), layout_b());  // (FRAME,BLK_K)
    Tensor tCsA = thr_mma.partition_A(sA);                                 // (MMA,MMA_M,MMA_K)
    Tensor tCrA = thr_mma.partition_fragment_A(sA);                        // (MMA,MMA_M,MMA_K)
    Tensor tCrB = thr_mma.partition_fragment_B(sB);                        // (MMA,MMA_N,MMA_K)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kFrame>>{});  // (MMA,MMA_M,MMA_N)
    clear(tCrC);
    auto const smem_copy_b = make_tiled_copy_B(FragmentCopyAtom<Element, Major::mn>{}, tiled_mma);
    Tensor tXsB = smem_copy_b.get_slice(thread).partition_S(sB);  // (CPY,MMA_N,MMA_K)
    Tensor tXrB = smem_copy_b.get_slice(thread).retile_D(tCrB);   // (CPY,MMA_N,MMA_K)
    static_assert(decltype(size<2>(tCrA))::value == 1, "a warp has one atom along k");
    int const ahead_of_a = elements_ahead(a + lane / 4 * args.a_m_stride);  // of the lane's rows, which are 8 apart

    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < params.k_tiles; ++k_tile) {
      pipeline.consumer_wait();
      fill();
      if (params.by_tma) mbarrier_wait(&smem.full[pipeline.read()], pipeline.read_phase());
      int const at = pipeline.read() * int(sizeof(Stage) / sizeof(Element));
      MOYE_UNROLL
      for (int i = 0; i < size<1>(tCrA); ++i) {
        MOYE_UNROLL
        for (int v = 0; v < size<0>(tCrA); ++v) tCrA(v, i, _0{}) = *(&tCsA(v, i, _0{}) + at + ahead_of_a);
      }
      Tensor tXsB_read = tXsB;  // (CPY,MMA_N,MMA_K)
      move_view(tXsB_read, at);
      copy(smem_copy_b, tXsB_read, tXrB);
      gemm(tiled_mma, tCrA, tCrB, tCrC);
      pipeline.consumer_release();
    }
    if ((args.early & kEarlyNext) != 0) griddepcontrol_launch_dependents();

    sync_threads();  // every warp is done with the stages, which the sums replace
    Tensor sC = make_tensor(make_smem_ptr(smem.sums), Sums{});  // (BLK_M,FRAME,SLICE)
    copy(tCrC, thr_mma.partition_C(sC(_, _, slice)));           // (MMA,MMA_M,MMA_N)

    sync_threads();  // the sums of all slices are there
    // Where the tile begins in the sums of each slice.
    int ahead_of_b[kSlices];
    MOYE_UNROLL
    for (int r = 0; r < kSlices; ++r) ahead_of_b[r] = elements_ahead(b + r * args.b_k_stride);
    auto const store_by = [&](auto const& store) {
      MOYE_NO_UNROLL
      for (int i = thread; i < kBlkM * kBlkN; i += kThreads) {
        int const m = i / kBlkN, n = i % kBlkN;
        store(
            [&](int) {
              Row<float, 1> sum{sC(m, n + ahead_of_b[0], _0{})};
              MOYE_UNROLL
              for (int r = 1; r < kSlices; ++r) sum.elements[0] += sC(m, n + ahead_of_b[r], r);
              return sum;
            },
            m, n);
      }
    };
    if constexpr (kFinishing == Finishing::plain) {
      auto const epilogue = Epilogue::of_product(args, tile, kBlkM, kBlkN);
      store_by([&](auto const& sums_of, int m, int n) { epilogue.template store_plain<1>(sums_of, m, 0, n); });
    } else {
      with_tile_epilogue<float, 1, /*kDerives=*/false, /*kScales=*/true>(
          args, tile, kBlkM, kBlkN, [&](auto const& epilogue) {
            store_by([&](auto const& sums_of, int m, int n) { epilogue.template store_rows<1>(sums_of, m, 0, n); });
          });
    }
  }

 private:
  using Epilogue = TileEpilogue<float, 1>;  // rows of d, too, begin anywhere: a warp stores neighbours

 public:
  template <Order kOrder, Finishing kFinishing = Finishing::any>
  static constexpr auto* kernel() {
    return sm90_odd_rows_kernel<Gemm, kOrder, kFinishing>;
  }
  using Short = Finishings<Finishing::plain>;
  static Status prepare_short() { return Short::template prepare<Gemm>(); }

  static constexpr unsigned kCompiledOrders = order_bits(Order::NN);

  /// Whether lines of 8 rows of B are lines of a map: all matrices begin alike beside words, and lie in one mode.
  static bool can_load_by_tma(GemmArgs const& args) {
    if (args.k < kSlices || kSlices * args.b_k_stride + kBlkN > 0x7fffffff) return false;
    for (int i = 0; i < kBatchModes; ++i) {
      if (args.batch_sizes.modes[i] > 1 && args.b_batch_strides.modes[i] % kWord != 0) return false;
    }
    return !moves_along_several(args, args.b_batch_strides);
  }
  /// The map of `lines` lines of B, from the word on in which it begins, whose last has `rows` rows.
  static Status make_map(GemmArgs const& args, int lines, int rows, TensorMap* map) {
    auto const* const b = static_cast<Element const*>(args.b);
    int const ahead = elements_ahead(b);
    return make_matrix_map<Element>(map, b - ahead, {ahead + (rows - 1) * args.b_k_stride + args.n, 1},
                                    {lines, kSlices * args.b_k_stride}, batch_of_map(args, args.b_batch_strides, 3),
                                    kBoxColumns, kPerSlice);
  }

  static Status launch(GemmArgs args, StreamHandle stream) {
    TileGrid grid;
    if (Status status = make_tile_grid(kConfig.tile, args, &grid); !status.ok()) return status;
    OddRowsParams params{.lines = {},
                         .rest = {},
                         .by_tma = can_load_by_tma(args),
                         .tiles = make_batch_sizes(int(args.batch), grid.n, grid.m),
                         .k_tiles = grid.k};
    if (params.by_tma) {
      if (Status status = make_map(args, int(args.k) / kSlices, kSlices, &params.lines); !status.ok()) return status;
      int const rest = int(args.k) % kSlices;
      if (rest > 0) {
        if (Status status = make_map(args, int(args.k) / kSlices + 1, rest, &params.rest); !status.ok()) return status;
      }
    }
    bool const plain = Epilogue::is_of_words(args) && is_plain(args.epilogue);
    args.early = early_operands() & kEarlyNext;
    LaunchConfig const config{.grid = {unsigned(grid.tiles)},
                              .block = {unsigned(kThreads)},
                              .smem_bytes = kFacts.smem_bytes,
                              .programmatic = true,
                              .resident = kResident};
    return Short::dispatch(plain ? Finishing::plain : Finishing::any, [&](auto finishing) {
      return launch_kernel(kernel<Order::NN, decltype(finishing)::value>(), config, stream, args, params);
    });
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .min_arch = 90,  // griddepcontrol
                                         .max_arch = 90,
                                         .orders = kCompiledOrders,
                                         .any_stride = false,
                                         .scales = true};
};

}  // namespace moye
