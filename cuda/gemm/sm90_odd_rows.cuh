// sm90_odd_rows: D = A * B^T of few rows, where rows of B begin at any element: 16 bytes divide neither n nor the
// pitch.
//   A (M,K) along k, B (N,K) along n, D (M,N), of any pitch each; 16-bit operands; batch: outer dimension of the grid
//   slices    rows k = 8 q + r of B, for one r, lie alike beside the words of 16 bytes: 8 pitches are whole words. Warp
//             r of 8 multiplies those, and sums all of the tile, up to 7 columns further right than it lies
//   gmem -> smem   cp.async of whole words: of each row of B those from the word on in which the tile begins, of each
//             row of A likewise; zeros behind the ends of rows. Rows of a slice lie below each other
//   smem -> rmem   B by ldmatrix, transposed; A element by element, k = r, r + 8, ..., from where the row begins
//   stage s holds k-tile s, s + kStages, ...; kStages - 1 of them are in flight while one is multiplied
//   consumer_wait  (1) the next stage has landed, for every thread's copies;
//                  (2) every warp is done with the stage that is refilled next
//   barriers of the epilogue: before the slices' sums replace the stages; before the sums of all slices are added up,
//             each from as far right as its slice was loaded
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
#include "moye/algorithm/copy.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/arch/barrier.h"
#include "moye/arch/copy_sm80.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch_recorder.h"
#include "moye/atom/copy_atom.h"
#include "moye/atom/mma_atom.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

/// What the host makes of a call.
struct OddRowsParams {
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
  static MOYE_HOST_DEVICE constexpr auto layout_b() {
    return swizzled_smem<Element, Major::mn>(Shape<Int<kFrame>, Int<kBlkK>>{});  // (FRAME,BLK_K)
  }
  // Rows lie 32 bytes apart in the banks, as in StagedRows.
  using Sums = Layout<Shape<Int<kBlkM>, Int<kFrame>, Int<kSlices>>,
                      Stride<Int<kFrame + 8>, _1, Int<kBlkM*(kFrame + 8)>>>;  // (BLK_M,FRAME,SLICE)

  struct Stage {
    alignas(1024) Element b[kFrame * kBlkK];
    alignas(128) Element a[kBlkM * kPitchA];
  };
  union SharedStorage {
    Stage stages[kStages];
    alignas(128) float sums[cosize_v<Sums>];
  };
  static constexpr int kResident = 2 * int(sizeof(SharedStorage)) <= 226 * 1024 ? 2 : 1;  // CTAs of a multiprocessor

  using CopyWord = SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>;

  /// How far behind the beginning of its word an element lies.
  static MOYE_DEVICE int elements_ahead(Element const* p) { return int(reinterpret_cast<uintptr_t>(p) / 2 % kWord); }

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

    auto const *a = static_cast<Element const*>(args.a), *b = static_cast<Element const*>(args.b);
    if (args.batch > 1) {
      a += matrix_offset(args, tile.batch, args.a_batch_strides);
      b += matrix_offset(args, tile.batch, args.b_batch_strides);
    }
    a += int64_t(tile.m) * kBlkM * args.a_m_stride;
    b += int64_t(tile.n) * kBlkN;

    // A warp copies rows of A, a word a lane. Of B a thread has a word of rows that follow each other in memory, each
    // of another slice: row q of all of them, or of every other one.
    constexpr int kWordsA = kPitchA / kWord, kWordsB = kFrame / kWord, kRowsAtOnce = kThreads / kWordsB;
    constexpr int kSlicesAtOnce = kRowsAtOnce / kPerSlice;
    static_assert(kWordsA <= 32 && kRowsAtOnce % kPerSlice == 0);
    int const word = thread % kWordsB, q = thread / kWordsB % kPerSlice, first_slice = thread / kWordsB / kPerSlice;
    int const columns = n_left < kBlkN ? n_left : kBlkN;
    int const row = kWord * q + first_slice;  // of a k-tile, the first
    auto const* next_b = b + row * args.b_k_stride;
    auto* const to_b = smem.stages[0].b;
    CpAsyncPipeline<kStages> pipeline;
    auto const* next_a = a;
    int k_left = int(args.k);  // elements of k from the k-tile on that is filled next
    auto const fill = [&] {
      if (k_left > 0) {
        int const ks = k_left < kBlkK ? k_left : kBlkK;
        int const at = pipeline.write() * int(sizeof(Stage) / sizeof(Element));
        MOYE_UNROLL
        for (int i = 0; i < kSlices / kSlicesAtOnce; ++i) {
          int const r = first_slice + i * kSlicesAtOnce;
          auto* const to = to_b + at + layout_b()(word * kWord, r * kPerSlice + q);
          copy_word(next_b + i * kSlicesAtOnce * args.b_k_stride, word, row + i * kSlicesAtOnce < ks ? columns : 0, to);
        }
        MOYE_UNROLL
        for (int i = 0; i < kBlkM / kSlices; ++i) {
          int const m = slice + i * kSlices;
          auto* const to = smem.stages[0].a + at + m * kPitchA + lane * kWord;
          if (lane < kWordsA) copy_word(next_a + m * args.a_m_stride, lane, m < m_left ? ks : 0, to);
        }
        k_left -= kBlkK;
        next_a += kBlkK;
        next_b += kBlkK * args.b_k_stride;
      }
      pipeline.producer_commit();
    };
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

  static Status launch(GemmArgs args, StreamHandle stream) {
    TileGrid grid;
    if (Status status = make_tile_grid(kConfig.tile, args, &grid); !status.ok()) return status;
    OddRowsParams const params{.tiles = make_batch_sizes(int(args.batch), grid.n, grid.m), .k_tiles = grid.k};
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
