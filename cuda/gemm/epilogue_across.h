// From accumulators of D^T to d: rows of the tensor core's are columns of d, and threads store pairs of neighbours.
//   converted   sums as they are, as 16 bits, in words of a pair
//   wide        the same as floats
//   activated   the same of activation(alpha * product + bias of its column)
//   elements    everything else: as TileEpilogue does
#pragma once

#include "gemm/activation.h"
#include "gemm/batch.h"
#include "gemm/epilogue.h"
#include "gemm/epilogue_sm90.h"
#include "moye/arch/convert.h"
#include "moye/tensor.h"

namespace moye {

/// Two warpgroups. A thread has kVector neighbours along n of pairs of rows, 8 apart. tCrC: (MMA,MMA_N,MMA_M). Columns:
/// where row i of a warpgroup's lies in the tile.
template <int kBlkM, int kBlkN, class Columns>
struct AcrossEpilogue {
  static constexpr int kVector = 2, kSums = kBlkM / 2;  // of a thread

  /// Host: how the call's results are stored.
  static Status make_params(StoreParams* params, GemmArgs const& stored) {
    using Words = TileEpilogue<float, kVector>;
    EpilogueArgs const& epilogue = stored.epilogue;
    bool const is_simple = Words::is_of_words(stored) && epilogue.c.data == nullptr &&
                           epilogue.residual.data == nullptr && epilogue.preactivation == nullptr &&
                           (epilogue.bias.data == nullptr || epilogue.bias.m_stride == 0) && !has_scales(epilogue);
    using Way = StoreParams::Way;
    params->way = !is_simple                     ? Way::elements
                  : !is_plain(epilogue)          ? Way::activated
                  : stored.d_dtype == Dtype::f32 ? Way::wide
                                                 : Way::converted;
    return {};
  }

  /// Whether a kernel of this way alone stores all calls of the way. Where a thread has more sums, one that finishes
  /// all of them and nothing else has no registers for it.
  template <int kSumsOfThread>
  static MOYE_HOST_DEVICE constexpr bool has_kernel(Stores stores) {
    return !kOwnActivation && (stores == Stores::converted || stores == Stores::wide ||
                               (stores == Stores::activated && kSumsOfThread <= 64));
  }

  /// Of the tile's, the first that a consumer thread has; its rows begin with thread % 4 * 2.
  static MOYE_DEVICE int first_column(int thread) { return int(Columns{}(thread / 32 * 16 + thread % 32 / 4)); }

  /// stored: where d lies, or the sums of k's parts; way: as make_params() had it. thread: of both warpgroups.
  template <Stores kStores, class Sums>
  static MOYE_DEVICE void store(GemmArgs const& args, GemmArgs const& stored, StoreParams::Way way,
                                TileCoord const& tile, Sums& tCrC, int thread) {
    constexpr bool kHasSimple = !has_kernel<kSums>(Stores::activated);
    if constexpr (has_kernel<kSums>(kStores)) {
      store_simple<kStores>(args, stored, tile, tCrC, thread);
    } else if (kHasSimple && way == StoreParams::Way::activated) {
      store_simple<Stores::activated>(args, stored, tile, tCrC, thread);
    } else {
      store_any(args, tile, tCrC, thread);
    }
  }

 private:
  template <class Sums>
  static MOYE_DEVICE void store_any(GemmArgs const& args, TileCoord const& tile, Sums const& tCrC, int thread) {
    constexpr int kTogether = kBlkM > 64 ? 4 : 8, kSteps = kBlkM / 8 / kTogether * 2;
    int const m = thread % 4 * 2, n = first_column(thread);
    with_tile_epilogue<float, kVector, /*kDerives=*/false, /*kScales=*/true>(
        args, tile, kBlkM, kBlkN, [&](auto const& epilogue) {
          MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
              for (int step = 0; step < kSteps; ++step) {
            Row<float, kVector> rows[kTogether];
            MOYE_UNROLL
            for (int i = 0; i < kSteps; ++i) {  // sums are registers: their indices are constants
              if (i != step) continue;
              MOYE_UNROLL
              for (int j = 0; j < kTogether; ++j) {
                MOYE_UNROLL
                for (int c = 0; c < kVector; ++c)
                  rows[j].elements[c] = tCrC(make_coord(i % 2, c, i / 2 * kTogether + j), _0{}, _0{});
              }
            }
            int const first = step / 2 * kTogether * 8 + step % 2 + m;
            epilogue.template store_rows<kTogether>([&](int j) { return chosen(rows, j); }, first, 8, n);
          }
        });
  }

  /// The same of sums that are finished where they are.
  template <Stores kStores, class Sums>
  static MOYE_DEVICE void store_simple(GemmArgs const& args, GemmArgs const& stored, TileCoord const& tile, Sums& tCrC,
                                       int thread) {
    if constexpr (kStores == Stores::wide) return store_words<float>(stored, tile, tCrC, thread);
    if constexpr (kStores == Stores::activated) finish(args, tile, tCrC, thread);
    if (kStores != Stores::converted && stored.d_dtype == Dtype::f32) {
      store_words<float>(stored, tile, tCrC, thread);
    } else if (stored.d_dtype == Dtype::bf16) {
      store_words<bfloat16_t>(stored, tile, tCrC, thread);
    } else {
      store_words<half_t>(stored, tile, tCrC, thread);
    }
  }

  template <class Sums>
  static MOYE_DEVICE void finish(GemmArgs const& args, TileCoord const& tile, Sums& tCrC, int thread) {
    int const n = tile.n * kBlkN + first_column(thread);
    EpilogueArgs const& epilogue = args.epilogue;
    Row<float, kVector> bias = {};
    if (epilogue.bias.data != nullptr && n < int(args.n)) {
      int64_t const at = matrix_offset(args, tile.batch, epilogue.bias.batch_strides) + n;
      if (args.d_dtype == Dtype::f32) {
        bias = loaded<float>(epilogue.bias.data, at);
      } else if (args.d_dtype == Dtype::bf16) {
        bias = loaded<bfloat16_t>(epilogue.bias.data, at);
      } else {
        bias = loaded<half_t>(epilogue.bias.data, at);
      }
    }
    static_assert(decltype(size(tCrC))::value == kSums);
    float z[kSums];
    auto const alpha = static_cast<float>(epilogue.alpha);
    MOYE_UNROLL
    for (int i = 0; i < kSums; ++i) z[i] = alpha * tCrC(i) + bias.elements[i / 2 % 2];
    activate_all(epilogue.activation, z);
    MOYE_UNROLL
    for (int i = 0; i < kSums; ++i) tCrC(i) = z[i];
  }

  template <class T>
  static MOYE_DEVICE Row<float, kVector> loaded(void const* data, int64_t at) {
    auto const word = *reinterpret_cast<typename Row<T, kVector>::Word const*>(static_cast<T const*>(data) + at);
    auto const row = detail::bit_cast<Row<T, kVector>>(word);
    return {convert<float>(row.elements[0]), convert<float>(row.elements[1])};
  }

  template <class T, class Sums>
  static MOYE_DEVICE void store_words(GemmArgs const& args, TileCoord const& tile, Sums const& tCrC, int thread) {
    int const m = thread % 4 * 2, n = first_column(thread);
    int const m_left = int(args.m) - tile.m * kBlkM - m;
    if (n >= int(args.n) - tile.n * kBlkN) return;
    int64_t const first = int64_t(tile.m) * kBlkM + m;
    T* row = static_cast<T*>(args.d) + first * args.d_m_stride + int64_t(tile.n) * kBlkN + n;
    if (args.batch > 1) row += matrix_offset(args, tile.batch, args.d_batch_strides);
    MOYE_UNROLL
    for (int i = 0; i < kBlkM / 8; ++i, row += 8 * args.d_m_stride) {
      MOYE_UNROLL
      for (int j = 0; j < 2; ++j) {
        if (i * 8 + j >= m_left) continue;
        float const first = tCrC(make_coord(j, 0, i), _0{}, _0{}), second = tCrC(make_coord(j, 1, i), _0{}, _0{});
        T* const at = row + j * args.d_m_stride;
        if constexpr (sizeof(T) == 4) {
          *reinterpret_cast<uint64_t*>(at) = f32_pair(first, second);
        } else {
          *reinterpret_cast<uint32_t*>(at) = pack_pair<T>(first, second);
        }
      }
    }
  }

  /// rows[j] of rows in registers.
  template <int kRows>
  static MOYE_DEVICE Row<float, kVector> chosen(Row<float, kVector> const (&rows)[kRows], int j) {
    Row<float, kVector> row = rows[0];
    MOYE_UNROLL
    for (int i = 1; i < kRows; ++i) {
      if (i == j) row = rows[i];
    }
    return row;
  }
};

}  // namespace moye
