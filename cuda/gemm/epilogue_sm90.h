// From a warpgroup's wgmma accumulators to d. Three ways, chosen once per call by the host:
//   boxes       sums that are only converted: into swizzled rows of 128 bytes, and TMA stores them, clipped at d's
//               edges, while the warp goes on
//   vectors     everything else: 32 columns of sums through shared memory, finished and stored as TileEpilogue does,
//               four neighbours a lane
//   elements    the same where neighbours are no words: an element a lane, so that a row's are stored side by side
// Each warp has 16 rows of every atom and a staging of its own: no warp waits for another one.
#pragma once

#include "gemm/epilogue.h"
#include "gemm/tma_operand.h"
#include "moye/arch/barrier.h"
#include "moye/arch/convert.h"
#include "moye/arch/copy_sm90.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/tma.h"
#include "moye/atom/mma_traits_sm90.h"

namespace moye {

/// What the host makes of a call for its epilogue.
struct StoreParams {
  enum class Way { boxes, vectors, elements };
  Way way;
  TensorMap map;  // of d; empty where threads store it
  int rank;       // of the map
};

/// kColumns: of a warpgroup's accumulators, which have 64 rows per atom along m. kBuffers: boxes of a warp; all but one
/// may be on their way while the next is filled. kRegisters: of a thread.
template <int kColumns, Dtype kAccumulator, int kBuffers, int kRegisters>
struct WarpgroupEpilogue {
  using Sum = typename Accumulator<kAccumulator>::Sum;
  using Way = StoreParams::Way;
  static constexpr int kWarps = 4, kRows = 16;  // rows of a warp, of every atom

  // Boxes: 128 bytes, 16 rows.
  static constexpr int kBoxBytes = kRows * 128;
  template <class Out>
  static constexpr int kBox = 128 / int(sizeof(Out));  // columns
  // Threads: 32 columns of sums, rows 32 bytes apart in the banks.
  static constexpr int kChunk = 32;
  static constexpr int kPitch = kChunk + 8;
  // Columns that boxes or chunks do not divide: the last box begins early and stores some columns once more, so that it
  // is whole; the last chunk, which may read d's old elements as c, is cut.
  static_assert(kColumns % 16 == 0 && kColumns >= kBox<uint16_t>, "whole stmatrix, a whole box");
  static_assert(kBuffers >= 2, "one box is filled while another is stored");

  union SharedStorage {
    alignas(1024) unsigned char boxes[kWarps][kBuffers][kBoxBytes];
    alignas(16) Sum sums[kWarps][kRows * kPitch];
  };

  /// Host: how the call's results are stored.
  static Status make_params(StoreParams* params, GemmArgs const& args) {
    params->rank = moves_along_several(args, args.d_batch_strides) ? 5 : 3;
    params->way = is_of_boxes(args) ? Way::boxes : TileEpilogue<Sum>::is_of_words(args) ? Way::vectors : Way::elements;
    if (params->way != Way::boxes) return {};
    BatchOfMap const batch = batch_of_map(args, args.d_batch_strides, params->rank);
    switch (args.d_dtype) {
      case Dtype::bf16:
        return make_map<bfloat16_t>(&params->map, batch, args);
      case Dtype::f16:
        return make_map<half_t>(&params->map, batch, args);
      default:
        return make_map<float>(&params->map, batch, args);  // or s32: bits
    }
  }

  /// tCrC (MMA,MMA_M,MMA_N) with MMA_N = 1; atom i of m has the rows from row(i) on, columns from `column` on: in the
  /// tile, whose extents are tile_m and tile_n.
  /// thread: in the warpgroup.
  template <int kTileM, int kTileN, class Accumulators, class RowOf>
  static MOYE_DEVICE void store(GemmArgs const& args, StoreParams const& params, TileCoord const& tile,
                                Accumulators const& tCrC, SharedStorage& smem, RowOf const& row, int column,
                                int thread MOYE_LOC) {
    MOYE_SITE;
    thread = computed_here(thread);  // lanes' addresses would take registers from the main loop
    int const warp = thread / 32, lane = thread % 32;
    auto const row_of_warp = [&](int atom) { return row(atom) + warp * kRows; };
    if (params.way == Way::boxes) {
      auto const row_of_d = [&](int atom) { return tile.m * kTileM + row_of_warp(atom); };
      store_boxes(args, params, tCrC, smem.boxes[warp], row_of_d, tile.n * kTileN + column, tile.batch, lane);
      return;
    }
    // What a lane finishes together: as much as there are registers for beside the accumulators.
    constexpr int kLeft = kRegisters - decltype(size(tCrC))::value, kCount = kLeft >= 80 ? 4 : 1;
    if constexpr (kLeft >= 64) {
      if (params.way == Way::vectors) {
        TileEpilogue<Sum> const epilogue(args, tile, kTileM, kTileN);
        return store_chunks<kCount>(epilogue, tCrC, smem.sums[warp], row_of_warp, column, lane);
      }
    }
    TileEpilogue<Sum, 1> const epilogue(args, tile, kTileM, kTileN);
    store_chunks<kCount>(epilogue, tCrC, smem.sums[warp], row_of_warp, column, lane);
  }

  /// Before the CTA ends: shared memory outlives the stores' reads.
  static MOYE_DEVICE void finish(int thread MOYE_LOC) {
    MOYE_SITE;
    if (thread % 32 == 0) tma_store_wait_group_read<0>();
  }

 private:
  // ---- boxes

  static bool is_of_boxes(GemmArgs const& args) {
    EpilogueArgs const& epilogue = args.epilogue;
    bool const plain = epilogue.alpha == 1 && epilogue.c.data == nullptr && epilogue.bias.data == nullptr &&
                       epilogue.residual.data == nullptr && epilogue.activation == Activation::none &&
                       epilogue.preactivation == nullptr;
    int const bytes = item_bytes(args.d_dtype), vector = 16 / bytes;
    auto const aligned = [&](int64_t size, int64_t stride) { return size <= 1 || stride % vector == 0; };
    bool aligned_batch = true;
    for (int i = 0; i < kBatchModes; ++i) {
      int64_t const size = args.batch_sizes.modes[i], stride = args.d_batch_strides.modes[i];
      aligned_batch = aligned_batch && aligned(size, stride) && (size <= 1 || stride != 0);
    }
    // TMA clips a row in pieces of 16 bytes: it would write the rest of a last one that n ends in.
    return plain && bytes <= 4 && args.d_n_stride == 1 && args.n % vector == 0 && aligned(args.m, args.d_m_stride) &&
           reinterpret_cast<uintptr_t>(args.d) % 16 == 0 && aligned_batch;
  }

  template <class Out>
  static Status make_map(TensorMap* map, BatchOfMap const& batch, GemmArgs const& args) {
    return make_matrix_map<Out>(map, args.d, {args.n, 1}, {args.m, args.d_m_stride}, batch, kBox<Out>, kRows);
  }

  template <class Accumulators, class RowOf>
  static MOYE_DEVICE void store_boxes(GemmArgs const& args, StoreParams const& params, Accumulators const& tCrC,
                                      unsigned char (&boxes)[kBuffers][kBoxBytes], RowOf const& row, int column,
                                      int batch, int lane) {
    auto const store = [&](auto out) {
      store_boxes_of<decltype(out)>(args, params, tCrC, boxes, row, column, batch, lane);
    };
    if (args.d_dtype == Dtype::bf16) {
      store(bfloat16_t{});
    } else if (args.d_dtype == Dtype::f16) {
      store(half_t{});
    } else if (is_same<Sum, float> || args.d_dtype == Dtype::f32) {
      store(float{});
    } else {
      store(Sum{});
    }
  }

  template <class Out, class Accumulators, class RowOf>
  static MOYE_DEVICE void store_boxes_of(GemmArgs const& args, StoreParams const& params, Accumulators const& tCrC,
                                         unsigned char (&boxes)[kBuffers][kBoxBytes], RowOf const& row, int column,
                                         int batch, int lane) {
    MOYE_UNROLL
    for (int i = 0; i < decltype(size<1>(tCrC))::value; ++i) {
      MOYE_UNROLL
      for (int c = 0; c < ceil_div(kColumns, kBox<Out>); ++c) {
        int const first = c * kBox<Out> + kBox<Out> <= kColumns ? c * kBox<Out> : kColumns - kBox<Out>;
        int const number = i * ceil_div(kColumns, kBox<Out>) + c;
        unsigned char* const box = boxes[number % kBuffers];
        // What this buffer held is on its way: of the tile before all of it, a main loop ago.
        if (number == 0 && lane == 0) tma_store_wait_group_read<0>();
        if (number >= kBuffers && lane == 0) tma_store_wait_group_read<kBuffers - 1>();
        if (number == 0 || number >= kBuffers) sync_warp();
        // Accumulators 4j and 4j + 1 are two neighbours of columns 8j to 8j + 7, the next two those eight rows below.
        auto const sum = [&](int k) { return tCrC(first / 2 + k, i, _0{}); };
        if constexpr (sizeof(Out) == 2) {
          fill_box_16<Out>(box, sum, lane);
        } else {
          fill_box_32<Out>(box, sum, lane);
        }
        fence_proxy_async_shared_cta();
        sync_warp();
        if (lane == 0) {
          store_box(args, params, box, column + first, row(i), batch);
          tma_store_commit_group();
        }
      }
    }
  }

  /// One thread. Every mode of d's batch moves: with one of them the matrix's number is its coordinate. With several,
  /// it is taken apart here, box by box: coordinates that wait take registers from the accumulators.
  static MOYE_DEVICE void store_box(GemmArgs const& args, StoreParams const& params, unsigned char const* box,
                                    int column, int row, int batch) {
    if (params.rank == 3) return tma_store(&params.map, box, column, row, batch);
    auto const [outer, middle, inner] = batch_coord(args.batch_sizes, batch).modes;
    tma_store(&params.map, box, column, row, inner, middle, outer);
  }

  /// stmatrix x4: lanes 0-7, 8-15, 16-23, 24-31 name the rows of (rows 0-7, 8-15) x (columns 0-7, 8-15).
  template <class Out, class SumOf>
  static MOYE_DEVICE void fill_box_16(unsigned char* box, SumOf const& sum, int lane) {
    int const row = lane % 16;
    MOYE_UNROLL
    for (int j = 0; j < kBox<Out> / 16; ++j) {
      auto const pair = [&](int k) {
        return pack_pair<Out>(static_cast<float>(sum(j * 8 + k)), static_cast<float>(sum(j * 8 + k + 1)));
      };
      int const piece = (j * 2 + lane / 16) ^ (row % 8);  // of 16 bytes: the 128-byte swizzle
      SM90_U32x4_STSM_N::copy(pair(0), pair(2), pair(4), pair(6),
                              *reinterpret_cast<uint128_t*>(box + row * 128 + piece * 16));
    }
  }

  /// Pairs. In odd rows the columns 16 to 31 come first: the swizzle alone would put rows 2i and 2i + 1 of the same
  /// columns into the same banks.
  template <class Out, class SumOf>
  static MOYE_DEVICE void fill_box_32(unsigned char* box, SumOf const& sum, int lane) {
    bool const is_odd = lane / 4 % 2 != 0;
    MOYE_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const row = half * 8 + lane / 4;
      MOYE_UNROLL
      for (int j = 0; j < kBox<Out> / 8; ++j) {
        auto const element = [&](int k) {  // registers have no index: both are read
          Sum const even = sum(j * 4 + half * 2 + k), odd = sum((j ^ 2) * 4 + half * 2 + k);
          return static_cast<Out>(is_odd ? odd : even);
        };
        int const piece = ((is_odd ? j ^ 2 : j) * 2 + lane % 4 / 2) ^ (row % 8);
        Row<Out, 2> const pair{element(0), element(1)};
        *reinterpret_cast<uint64_t*>(box + row * 128 + piece * 16 + lane % 2 * 8) = detail::bit_cast<uint64_t>(pair);
      }
    }
  }

  // ---- vectors and elements

  /// kCount: vectors that a lane finishes together.
  template <int kCount, int kVector, class Accumulators, class RowOf>
  static MOYE_DEVICE void store_chunks(TileEpilogue<Sum, kVector> const& epilogue, Accumulators const& tCrC,
                                       Sum (&sums)[kRows * kPitch], RowOf const& row, int column, int lane) {
    constexpr int kAtoms = decltype(size<1>(tCrC))::value;
    constexpr int kChunks = ceil_div(kColumns, kChunk);
    MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
        for (int step = 0; step < kAtoms * kChunks; ++step) {
      sync_warp();  // the step before has been read
      MOYE_UNROLL
      for (int i = 0; i < kAtoms; ++i) {
        MOYE_UNROLL
        for (int c = 0; c < kChunks; ++c) {  // accumulators are registers: their indices are constants
          if (step != i * kChunks + c) continue;
          MOYE_UNROLL
          for (int j = 0; j < kChunk / 8 && c * kChunk + j * 8 < kColumns; ++j) {
            MOYE_UNROLL
            for (int half = 0; half < 2; ++half) {
              int const first = (c * kChunk / 8 + j) * 4 + half * 2;
              Row<Sum, 2> const pair{convert<Sum>(tCrC(first, i, _0{})), convert<Sum>(tCrC(first + 1, i, _0{}))};
              Sum* const to = &sums[(half * 8 + lane / 4) * kPitch + j * 8 + lane % 4 * 2];
              *reinterpret_cast<uint64_t*>(to) = detail::bit_cast<uint64_t>(pair);
            }
          }
        }
      }
      sync_warp();
      constexpr int kVectors = kChunk / kVector, kRowStep = 32 / kVectors;  // rows that a warp has side by side
      int const r = lane / kVectors, c = lane % kVectors * kVector, first_column = step % kChunks * kChunk + c;
      if (kColumns % kChunk != 0 && first_column >= kColumns) continue;
      auto const sums_of = [&](int at) {
        using Word = typename Row<Sum, kVector>::Word;
        return detail::bit_cast<Row<Sum, kVector>>(*reinterpret_cast<Word const*>(&sums[at * kPitch + c]));
      };
      int const first_row = row(step / kChunks);
      MOYE_NO_UNROLL
      for (int i = r; i < kRows; i += kRowStep * kCount) {
        epilogue.template store_rows<kCount>([&](int k) { return sums_of(i + k * kRowStep); }, first_row + i, kRowStep,
                                             column + first_column);
      }
    }
  }
};

}  // namespace moye
