// From a warpgroup's wgmma accumulators to d. Two ways, chosen once per call by the host:
//   store_by_tma        sums that are only converted: into swizzled rows of 128 bytes, and TMA stores them, clipped at
//                       d's edges, while the warpgroup goes on
//   store_by_threads    everything else: sums through shared memory, finished and stored as TileEpilogue does
// Each warpgroup has a staging of its own and meets in a named barrier of its own.
#pragma once

#include "gemm/epilogue.h"
#include "gemm/tma_operand.h"
#include "moye/arch/convert.h"
#include "moye/arch/copy_sm90.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/tma.h"
#include "moye/atom/mma_traits_sm90.h"

namespace moye {

/// kColumns: of a warpgroup's accumulators, which have 64 rows per atom along m.
template <int kColumns, Dtype kAccumulator>
struct WarpgroupEpilogue {
  using Sum = typename Accumulator<kAccumulator>::Sum;
  static constexpr int kRows = 64;

  // TMA: boxes of 128 bytes, 64 rows; two of them, so that one is filled while the other is stored.
  static constexpr int kBoxBytes = kRows * 128;
  template <class Out>
  static constexpr int kBox = 128 / int(sizeof(Out));  // columns
  static constexpr int kBuffers = 2;
  // Threads: 32 columns of sums, rows 32 bytes apart in the banks.
  static constexpr int kChunk = 32;
  static constexpr int kPitch = kChunk + 8;
  // Columns that boxes or chunks do not divide: the last box begins early and stores some columns once more, so that it
  // is whole; the last chunk, which may read d's old elements as c, is cut.
  static_assert(kColumns % 16 == 0 && kColumns >= kBox<uint16_t>, "whole stmatrix, a whole box");

  union SharedStorage {
    alignas(1024) unsigned char boxes[kBuffers][kBoxBytes];
    alignas(16) Sum sums[kRows * kPitch];
  };

  /// Whether the fast way is open to the call.
  static bool stores_by_tma(GemmArgs const& args) {
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

  /// Host: d's map and its rank, where stores_by_tma.
  static Status make_map(TensorMap* map, int* rank, GemmArgs const& args) {
    *rank = moves_along_several(args, args.d_batch_strides) ? 5 : 3;
    BatchOfMap const batch = batch_of_map(args, args.d_batch_strides, *rank);
    switch (args.d_dtype) {
      case Dtype::bf16:
        return make_map_of<bfloat16_t>(map, batch, args);
      case Dtype::f16:
        return make_map_of<half_t>(map, batch, args);
      default:
        return make_map_of<float>(map, batch, args);  // or s32: bits
    }
  }

  /// tCrC (MMA,MMA_M,MMA_N) with MMA_N = 1; atom i of m has the rows from row(i) on. Coordinates in d, elements.
  /// batch: the matrix's number.
  /// buffer: the box to fill first, then the next call's. thread: in the warpgroup; barrier: a named barrier that no
  /// other warpgroup uses.
  template <class Accumulators, class RowOf>
  static MOYE_DEVICE void store_by_tma(GemmArgs const& args, TensorMap const* map, int rank, Accumulators const& tCrC,
                                       SharedStorage& smem, RowOf const& row, int column, int batch, int& buffer,
                                       int thread, int barrier MOYE_LOC) {
    MOYE_SITE;
    auto const store = [&](auto out) {
      store_boxes<decltype(out)>(args, map, rank, tCrC, smem, row, column, batch, buffer, thread, barrier);
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

  /// tile_row(i): the row in the tile of atom i; column: in the tile.
  template <int kVector, class Accumulators, class RowOf>
  static MOYE_DEVICE void store_by_threads(TileEpilogue<Sum, kVector> const& epilogue, Accumulators const& tCrC,
                                           SharedStorage& smem, RowOf const& tile_row, int column, int thread,
                                           int barrier MOYE_LOC) {
    MOYE_SITE;
    int const warp = thread / 32, lane = thread % 32;
    constexpr int kAtoms = decltype(size<1>(tCrC))::value;
    constexpr int kChunks = ceil_div(kColumns, kChunk);
    // Vectors that a thread finishes together: beside many accumulators there are registers for one alone.
    constexpr int kCount = decltype(size(tCrC))::value > 160 ? 1 : 4;
    MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
        for (int step = 0; step < kAtoms * kChunks; ++step) {
      named_barrier_sync(barrier, 128);
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
              Sum* const to = &smem.sums[(warp * 16 + half * 8 + lane / 4) * kPitch + j * 8 + lane % 4 * 2];
              *reinterpret_cast<uint64_t*>(to) = detail::bit_cast<uint64_t>(pair);
            }
          }
        }
      }
      named_barrier_sync(barrier, 128);
      constexpr int kVectors = kChunk / kVector, kRowStep = 128 / kVectors;
      int const first_row = tile_row(step / kChunks), first_column = column + step % kChunks * kChunk;
      MOYE_NO_UNROLL
      for (int vector = thread; vector < kRows * kVectors; vector += 128 * kCount) {
        int const r = vector / kVectors, c = vector % kVectors * kVector;
        if (kColumns % kChunk != 0 && step % kChunks * kChunk + c >= kColumns) continue;
        auto const sums_of = [&](int i) {
          using Word = typename Row<Sum, kVector>::Word;
          auto const word = *reinterpret_cast<Word const*>(&smem.sums[(r + i * kRowStep) * kPitch + c]);
          return detail::bit_cast<Row<Sum, kVector>>(word);
        };
        epilogue.template store_rows<kCount>(sums_of, first_row + r, kRowStep, first_column + c);
      }
    }
  }

 private:
  template <class Out>
  static Status make_map_of(TensorMap* map, BatchOfMap const& batch, GemmArgs const& args) {
    return make_matrix_map<Out>(map, args.d, {args.n, 1}, {args.m, args.d_m_stride}, batch, kBox<Out>, kRows);
  }

  /// One thread. Every mode of d's batch moves: with one of them the matrix's number is its coordinate. With several,
  /// it is taken apart here, box by box: coordinates that wait take registers from the accumulators.
  static MOYE_DEVICE void store_box(GemmArgs const& args, TensorMap const* map, int rank, unsigned char const* box,
                                    int column, int row, int batch) {
    if (rank == 3) return tma_store(map, box, column, row, batch);
    auto const [outer, middle, inner] = batch_coord(args.batch_sizes, batch).modes;
    tma_store(map, box, column, row, inner, middle, outer);
  }

  template <class Out, class Accumulators, class RowOf>
  static MOYE_DEVICE void store_boxes(GemmArgs const& args, TensorMap const* map, int rank, Accumulators const& tCrC,
                                      SharedStorage& smem, RowOf const& row, int column, int batch, int& buffer,
                                      int thread, int barrier) {
    MOYE_UNROLL
    for (int i = 0; i < decltype(size<1>(tCrC))::value; ++i) {
      MOYE_UNROLL
      for (int c = 0; c < ceil_div(kColumns, kBox<Out>); ++c) {
        int const first = c * kBox<Out> + kBox<Out> <= kColumns ? c * kBox<Out> : kColumns - kBox<Out>;
        unsigned char* const box = smem.boxes[buffer];
        buffer = (buffer + 1) % kBuffers;
        if (thread == 0) tma_store_wait_group_read<kBuffers - 1>();  // what this buffer held is on its way
        named_barrier_sync(barrier, 128);
        // Accumulators 4j and 4j + 1 are two neighbours of columns 8j to 8j + 7, the next two those eight rows below.
        auto const sum = [&](int k) { return tCrC(first / 2 + k, i, _0{}); };
        if constexpr (sizeof(Out) == 2) {
          fill_box_16<Out>(box, sum, thread);
        } else {
          fill_box_32<Out>(box, sum, thread);
        }
        fence_proxy_async_shared_cta();
        named_barrier_sync(barrier, 128);
        if (thread == 0) {
          store_box(args, map, rank, box, column + first, row(i), batch);
          tma_store_commit_group();
        }
      }
    }
  }

  /// stmatrix x4: lanes 0-7, 8-15, 16-23, 24-31 name the rows of (rows 0-7, 8-15) x (columns 0-7, 8-15).
  template <class Out, class SumOf>
  static MOYE_DEVICE void fill_box_16(unsigned char* box, SumOf const& sum, int thread) {
    int const lane = thread % 32, row = thread / 32 * 16 + lane % 16;
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
  static MOYE_DEVICE void fill_box_32(unsigned char* box, SumOf const& sum, int thread) {
    int const lane = thread % 32;
    bool const is_odd = lane / 4 % 2 != 0;
    MOYE_UNROLL
    for (int half = 0; half < 2; ++half) {
      int const row = thread / 32 * 16 + half * 8 + lane / 4;
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
};

}  // namespace moye
