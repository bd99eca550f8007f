// sm90_sliced_k: D = A * B^T of tiny tiles on mma.sync, each k-tile cut into slices, one for each warp.
//   A (M,K), B (N,K), D (M,N), each in any order; 16-bit operands; batch: outer dimension of the grid
//   CTA       one tile of D, small enough for as many CTAs as there are multiprocessors; every warp sums all of it,
//             over its own slice of each k-tile, so that few products wait for each other
//   gmem -> smem   cp.async of 16 bytes, zero-filled beyond M, N and K; shared memory is swizzled
//   smem -> rmem   ldmatrix, transposed for operands that are contiguous along m or n
//   stage s holds k-tile s, s + kStages, ...; kStages - 1 of them are in flight while one is multiplied
//   consumer_wait  (1) the next stage has landed, for every thread's copies;
//                  (2) every warp is done with the stage that is refilled next
//   barriers of the epilogue: before the warps' sums replace the stages; before the sums of all slices are added up
//   epilogue   a thread finishes one or two vectors of four neighbours along n. What is added to them comes by cp.async
//              behind the first stages, to shared memory that this thread alone reads: no barrier, and no registers
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
#include "moye/arch/device.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch_recorder.h"
#include "moye/atom/copy_atom.h"
#include "moye/atom/mma_atom.h"
#include "moye/pipeline.h"
#include "moye/tensor.h"

namespace moye {

/// What a launch of tiny tiles needs on its way to the first load and from the last product on: little, since nothing
/// hides that.
struct SlicedParams {
  BatchSizes tiles;  // matrices of d, tiles along n, tiles along m
  int k_tiles;
  int copies_at;  // of words: where the copies lie, in bytes of shared memory
};

template <class Gemm, Order kOrder, Finishing kFinishing = Finishing::any>
MOYE_KERNEL(Gemm::kThreads)
sm90_sliced_k_kernel(MOYE_GRID_CONSTANT GemmArgs const args, MOYE_GRID_CONSTANT SlicedParams const params) {
  Gemm::template run<kOrder, kFinishing>(args, params);
}

template <GemmConfig kConfig>
  requires(kConfig.kernel == Kernel::sm90_sliced_k)
struct Gemm<kConfig> {
  using MmaOp = typename Sm80Mma<kConfig.dtype, kConfig.accumulator>::Op;
  using Element = ElementOfA<kConfig.dtype>;
  static_assert(sizeof(Element) == 2 && kConfig.alignment == 16, "ldmatrix reads operands of 16 bits in any order");
  static constexpr int kBlkM = kConfig.tile.m, kBlkN = kConfig.tile.n, kBlkK = kConfig.tile.k;
  static constexpr int kSlices = 4, kThreads = 32 * kSlices;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kVector = 16 / int(sizeof(Element));  // elements of one global load

  // The warps lie one behind the other along k. Of n a warp takes two atoms at a time, as WarpTiledMma.
  using TiledMma =
      decltype(make_tiled_mma(MmaOp{}, Layout<Shape<_1, _1, Int<kSlices>>>{}, Tile<_16, _16, Int<kBlkK>>{}));
  static_assert(decltype(size(TiledMma{}))::value == kThreads);
  static_assert(kBlkM % 16 == 0 && kBlkN % 16 == 0 && kBlkK == 16 * kSlices, "whole atoms");

  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto smem_layout() {
    return swizzled_smem<Element, kMajor>(Shape<Int<kRows>, Int<kBlkK>>{});  // (BLK,BLK_K)
  }

  template <Major kMajor, int kRows>
  static MOYE_HOST_DEVICE constexpr auto global_copy() {
    using Copy = CopyAtom<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, Element>;
    return coalesced_copy<Copy, kMajor, kThreads, kRows, kBlkK, kVector>();
  }

  template <Major kMajor>
  using SmemCopyAtom = FragmentCopyAtom<Element, kMajor>;

  // Rows lie 32 bytes apart in the banks, as in StagedRows.
  using Sums = Layout<Shape<Int<kBlkM>, Int<kBlkN>, Int<kSlices>>,
                      Stride<Int<kBlkN + 8>, _1, Int<kBlkM*(kBlkN + 8)>>>;  // (BLK_M,BLK_N,SLICE)

  // Behind each other, so that a launch with less k has less shared memory, and more CTAs a multiprocessor.
  struct Stage {
    alignas(1024) Element a[kBlkM * kBlkK];
    alignas(1024) Element b[kBlkN * kBlkK];
  };
  union SharedStorage {
    Stage stages[kStages];
    alignas(128) float sums[cosize_v<Sums>];
  };

  static constexpr int kSumsBytes = int(sizeof(SharedStorage::sums));

  /// What a view of the first stage is in another one.
  template <class View>
  static MOYE_DEVICE View in_stage(View view, int stage) {
    move_view(view, stage * int(sizeof(Stage) / sizeof(Element)));
    return view;
  }

  template <Order kOrder, Finishing kFinishing>
  static MOYE_DEVICE void run(GemmArgs const& args, SlicedParams const& params) {
    constexpr Major kMajorA = kMajorOfA<kOrder>, kMajorB = kMajorOfB<kOrder>;
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = thread_idx().x, slice = thread / 32;
    BatchCoord const block = batch_coord(params.tiles, int(block_idx().x));
    TileCoord const tile{.m = block.modes[2], .n = block.modes[1], .batch = block.modes[0]};
    int const m_left = int(args.m) - tile.m * kBlkM;  // rows of A from this tile on
    int const n_left = int(args.n) - tile.n * kBlkN;  // columns of D, rows of B

    // Whole tiles: what lies beyond m, n and k is predicated, never read. Of k the first tile: a pointer moves on.
    auto const* a = static_cast<Element const*>(args.a);
    auto const* b = static_cast<Element const*>(args.b);
    if (args.batch > 1) {
      a += matrix_offset(args, tile.batch, args.a_batch_strides);
      b += matrix_offset(args, tile.batch, args.b_batch_strides);
    }
    Tensor mA = make_tensor(make_gmem_ptr(a), make_shape(params.tiles.modes[2] * kBlkM, Int<kBlkK>{}),
                            operand_stride<kMajorA, kVector>(args.a_m_stride, args.a_k_stride));  // (m,BLK_K)
    Tensor mB = make_tensor(make_gmem_ptr(b), make_shape(params.tiles.modes[1] * kBlkN, Int<kBlkK>{}),
                            operand_stride<kMajorB, kVector>(args.b_n_stride, args.b_k_stride));  // (n,BLK_K)
    Tensor gA = local_tile(mA, Shape<Int<kBlkM>, Int<kBlkK>>{}, make_coord(tile.m, _0{}));        // (BLK_M,BLK_K)
    Tensor gB = local_tile(mB, Shape<Int<kBlkN>, Int<kBlkK>>{}, make_coord(tile.n, _0{}));        // (BLK_N,BLK_K)
    // Of the first stage.
    Tensor sA = make_tensor(make_smem_ptr(smem.stages[0].a), smem_layout<kMajorA, kBlkM>());  // (BLK_M,BLK_K)
    Tensor sB = make_tensor(make_smem_ptr(smem.stages[0].b), smem_layout<kMajorB, kBlkN>());  // (BLK_N,BLK_K)

    auto const copy_a = global_copy<kMajorA, kBlkM>();
    auto const copy_b = global_copy<kMajorB, kBlkN>();
    auto const thr_copy_a = copy_a.get_slice(thread);
    auto const thr_copy_b = copy_b.get_slice(thread);
    Tensor tAgA = thr_copy_a.partition_S(gA);  // (CPY,CPY_M,CPY_K), of the k-tile that is filled next
    Tensor tAsA = thr_copy_a.partition_D(sA);  // (CPY,CPY_M,CPY_K)
    Tensor tBgB = thr_copy_b.partition_S(gB);  // (CPY,CPY_N,CPY_K)
    Tensor tBsB = thr_copy_b.partition_D(sB);  // (CPY,CPY_N,CPY_K)
    Tensor tAcA = thr_copy_a.partition_S(make_identity_tensor(Shape<Int<kBlkM>, Int<kBlkK>>{}));  // (CPY,CPY_M,CPY_K)
    Tensor tBcB = thr_copy_b.partition_S(make_identity_tensor(Shape<Int<kBlkN>, Int<kBlkK>>{}));  // (CPY,CPY_N,CPY_K)

    CpAsyncPipeline<kStages> pipeline;
    int k_left = int(args.k);  // elements of k from the k-tile on that is filled next
    auto const fill = [&] {
      if (k_left > 0) {
        int const stage = pipeline.write();
        auto const of_a = [&](int i, int j) {
          return valid_elements<kMajorA, kVector>(tAcA(_0{}, i, j), m_left, k_left);
        };
        auto const of_b = [&](int i, int j) {
          return valid_elements<kMajorB, kVector>(tBcB(_0{}, i, j), n_left, k_left);
        };
        // Few vectors: cheaper than copy_operand, which asks whether all of them are whole.
        copy_zfill(copy_a, of_a, tAgA, in_stage(tAsA, stage));
        copy_zfill(copy_b, of_b, tBgB, in_stage(tBsB, stage));
        move_view(tAgA, kBlkK * get<1>(mA.stride()));
        move_view(tBgB, kBlkK * get<1>(mB.stride()));
        k_left -= kBlkK;
      }
      pipeline.producer_commit();
    };
    griddepcontrol_wait();  // the kernel ahead may still run up to here
    MOYE_NO_UNROLL
    for (int stage = 0; stage < pipeline.kAhead; ++stage) fill();
    // The thread's vectors of d, and what is added to them. The copies belong to the next stage's group.
    int const m = row_of(thread), n = thread % kVectorsN * kVectorOut;
    bool const has_vectors = kVectors >= kThreads || thread < kVectors;
    Copies& copies = reinterpret_cast<Copies*>(smem_base() + params.copies_at)[thread];
    if constexpr (kFinishing == Finishing::words) {
      if (has_vectors) Epilogue(args, tile, kBlkM, kBlkN).copy_rows(copies, CopyWord{}, m, kRowStep, n);
    }
    if ((args.early & kEarlyNextAtOnce) != 0) griddepcontrol_launch_dependents();

    TiledMma tiled_mma;
    auto const thr_mma = tiled_mma.get_slice(thread);
    Tensor tCrA = thr_mma.partition_fragment_A(sA);                                  // (MMA,MMA_M,MMA_K)
    Tensor tCrB = thr_mma.partition_fragment_B(sB);                                  // (MMA,MMA_N,MMA_K)
    Tensor tCrC = partition_fragment_C(tiled_mma, Shape<Int<kBlkM>, Int<kBlkN>>{});  // (MMA,MMA_M,MMA_N)
    clear(tCrC);
    auto const smem_copy_a = make_tiled_copy_A(SmemCopyAtom<kMajorA>{}, tiled_mma);
    auto const smem_copy_b = make_tiled_copy_B(SmemCopyAtom<kMajorB>{}, tiled_mma);
    Tensor tXsA = smem_copy_a.get_slice(thread).partition_S(sA);  // (CPY,MMA_M,MMA_K)
    Tensor tXsB = smem_copy_b.get_slice(thread).partition_S(sB);  // (CPY,MMA_N,MMA_K)
    Tensor tXrA = smem_copy_a.get_slice(thread).retile_D(tCrA);   // (CPY,MMA_M,MMA_K)
    Tensor tXrB = smem_copy_b.get_slice(thread).retile_D(tCrB);   // (CPY,MMA_N,MMA_K)
    static_assert(decltype(size<2>(tCrA))::value == 1, "a warp has one atom along k");

    MOYE_NO_UNROLL
    for (int k_tile = 0; k_tile < params.k_tiles; ++k_tile) {
      pipeline.consumer_wait();
      fill();
      copy(smem_copy_a, in_stage(tXsA, pipeline.read()), tXrA);
      copy(smem_copy_b, in_stage(tXsB, pipeline.read()), tXrB);
      gemm(tiled_mma, tCrA, tCrB, tCrC);
      pipeline.consumer_release();
    }
    if ((args.early & kEarlyNext) != 0) griddepcontrol_launch_dependents();

    sync_threads();  // every warp is done with the stages, which the sums replace
    Tensor sC = make_tensor(make_smem_ptr(smem.sums), Sums{});  // (BLK_M,BLK_N,SLICE)
    copy(tCrC, thr_mma.partition_C(sC(_, _, slice)));           // (MMA,MMA_M,MMA_N)

    sync_threads();  // the sums of all slices are there
    if constexpr (kFinishing != Finishing::any) {
      if (!has_vectors) return;
      int64_t d = int64_t(tile.m) * kBlkM * args.d_m_stride + int64_t(tile.n) * kBlkN;
      if (args.batch > 1) d += matrix_offset(args, tile.batch, args.d_batch_strides);
      Epilogue const epilogue(args, d, m_left, n_left);
      auto const sums_of = [&](int i) { return added_up(sC, m + i * kRowStep, n); };
      if constexpr (kFinishing == Finishing::plain) {
        epilogue.template store_plain<kOwned>(sums_of, m, kRowStep, n);
      } else {
        cp_async_wait_group<0>();  // the thread's copies are there
        epilogue.store_copied(sums_of, copies, m, kRowStep, n);
      }
    } else {
      with_tile_epilogue<float, kVectorOut, /*kDerives=*/false, /*kScales=*/true>(
          args, tile, kBlkM, kBlkN, [&](auto const& epilogue) {
            MOYE_NO_UNROLL
            for (int vector = thread; vector < kVectors; vector += kThreads) {
              int const m = row_of(vector), n = vector % kVectorsN * kVectorOut;
              epilogue.template store_rows<1>([&](int) { return added_up(sC, m, n); }, m, 0, n);
            }
          });
    }
  }

 private:
  static constexpr int kVectorOut = 4, kVectorsN = kBlkN / kVectorOut, kVectors = kBlkM * kVectorsN;  // of the tile
  static constexpr int kOwned = kVectors <= kThreads ? 1 : kVectors / kThreads;  // below each other, of a thread
  static constexpr int kRowStep = kThreads / kVectorsN;
  static_assert(kThreads % kVectorsN == 0 && (kOwned == 1 || (kVectors % kThreads == 0 && kBlkN > 16)),
                "a thread stays in its columns, and row_of() in the order of rows");

  using Epilogue = TileEpilogue<float, kVectorOut>;
  using Copies = typename Epilogue::template Copied<kOwned, kOwned == 1 ? 16 : 8>;  // 8: of 16-bit elements alone
  static constexpr int kCopiesBytes = kVectors / kOwned * int(sizeof(Copies));
  static_assert(kCopiesBytes <= int(sizeof(Stage)) && kSumsBytes + kCopiesBytes <= int(sizeof(SharedStorage)),
                "a stage less of k leaves the shared memory of the copies");
  static_assert(kSumsBytes % 16 == 0, "the copies lie behind the sums");

  struct CopyWord {
    template <class Word>
    MOYE_DEVICE void operator()(Word const& from, Word& to) const {
      GlobalCopyOp<int(sizeof(Word))>::Type::copy(from, to);
    }
  };

  /// The tile's row of a vector. Two rows of 64 bytes that are read together lie 64 bytes apart in the banks if there
  /// is one between them.
  static MOYE_DEVICE int row_of(int vector) {
    int const row = vector / kVectorsN;
    return kBlkN == 16 ? (row & ~3) | (row & 1) << 1 | (row >> 1 & 1) : row;
  }

  /// The sums of all slices, in their order, of neighbours from (m, n) on.
  template <class SmemTensor>
  static MOYE_DEVICE Row<float, kVectorOut> added_up(SmemTensor const& sC, int m, int n) {
    Row<float, kVectorOut> sums = {};
    MOYE_UNROLL
    for (int slice = 0; slice < kSlices; ++slice) {
      auto const word = *reinterpret_cast<uint128_t const*>(&sC(m, n, slice));
      auto const of_slice = detail::bit_cast<Row<float, kVectorOut>>(word);
      MOYE_UNROLL
      for (int i = 0; i < kVectorOut; ++i)
        sums.elements[i] = slice == 0 ? of_slice.elements[i] : sums.elements[i] + of_slice.elements[i];
    }
    return sums;
  }

 public:
  template <Order kOrder, Finishing kFinishing = Finishing::any>
  static constexpr auto* kernel() {
    return sm90_sliced_k_kernel<Gemm, kOrder, kFinishing>;
  }
  // Of words: what is added is in words of four elements, as d is, and is copied; nothing is scaled.
  using Short = Finishings<Finishing::plain, Finishing::words>;
  static Status prepare_short() { return Short::template prepare<Gemm>(); }

  /// Whether there is a stage whose group the copies join, and one in whose place they lie, and the rest of the
  /// epilogue is TileEpilogue's without scales.
  static bool can_copy(GemmArgs const& args, int k_tiles) {
    return k_tiles > 0 && k_tiles < kStages &&
           kVectorOut * item_bytes(args.d_dtype) <= int(sizeof(typename Copies::Word)) && !has_scales(args.epilogue) &&
           args.epilogue.activation != Activation::own;
  }

  static Status launch(GemmArgs args, StreamHandle stream) {
    TileGrid grid;
    if (Status status = make_tile_grid(kConfig.tile, args, &grid); !status.ok()) return status;
    int const of_stages = grid.k < kStages ? grid.k * int(sizeof(Stage)) : kFacts.smem_bytes;
    int const least = of_stages > kSumsBytes ? of_stages : kSumsBytes;
    Finishing const finishing = !Epilogue::is_of_words(args) ? Finishing::any
                                : is_plain(args.epilogue)    ? Finishing::plain
                                : can_copy(args, grid.k)     ? Finishing::words
                                                             : Finishing::any;
    SlicedParams const params{
        .tiles = make_batch_sizes(int(args.batch), grid.n, grid.m), .k_tiles = grid.k, .copies_at = least};
    int const used = finishing == Finishing::words ? least + kCopiesBytes : least;
    LaunchConfig const config{.grid = {unsigned(grid.tiles)},
                              .block = {unsigned(kThreads)},
                              // More than a kernel has by default is allowed once, as much as it ever needs.
                              .smem_bytes = used <= kDefaultSmemBytes ? used : kFacts.smem_bytes,
                              .programmatic = true};
    return dispatch(order_of(args), [&](auto order) {
      return Short::dispatch(finishing, [&](auto of_kernel) -> Status {
        auto* const kernel = Gemm::kernel<decltype(order)::value, decltype(of_kernel)::value>();
        if (early_operands() != 0) {
          int multiprocessors = 0, resident = 0;
          if (Status status = device_multiprocessors(stream, &multiprocessors); !status.ok()) return status;
          Status const status = max_active_blocks(kernel, kThreads, kFacts.smem_bytes, stream, &resident);
          if (!status.ok()) return status;
          args.early = early_where(grid.tiles <= int64_t(multiprocessors) * resident / 2);
        }
        return launch_kernel(kernel, config, stream, args, params);
      });
    });
  }

  static constexpr KernelFacts kFacts = {.threads = kThreads,
                                         .smem_bytes = int(sizeof(SharedStorage)),
                                         .min_arch = 90,  // griddepcontrol
                                         .max_arch = 90,
                                         .any_stride = false,
                                         .scales = true};
};

}  // namespace moye
