// Dropout of attention's weights, of kernels of their own: which are dropped is an operand, a byte each, as of a mask.
// The sum of a row is of all weights; what the others are multiplied by, their sums are in the end.
//   DropoutIf         of two rows, tile by tile: sm90_attention
//   drop              what belongs to weights that are dropped becomes 0
//   to_kept_fragments weights as A's fragments of the next wgmma, but for those that are dropped
//   set_masked        what masked scores weigh, where all of a row's are masked and have gradients
#pragma once

#include "gemm/attention.h"
#include "gemm/attention_cap.h"
#include "gemm/attention_mask.h"
#include "gemm/config.h"
#include "moye/core.h"

namespace moye {

/// Values whose bits are not set become 0, the others are multiplied by the factor.
template <int kSums>
MOYE_DEVICE void drop(float (&values)[kSums], uint32_t const (&kept)[kSums / 32], float factor) {
  MOYE_UNROLL
  for (int i = 0; i < kSums; ++i) values[i] = (kept[i / 32] >> i % 32 & 1) == 0 ? 0 : values[i] * factor;
}

/// As to_fragments(), of 0 where a bit is not set.
template <class T, int kN>
MOYE_DEVICE void to_kept_fragments(float const (&sums)[kN / 2], uint32_t (&fragments)[kFragmentWords<T, kN>],
                                   uint32_t kept) {
  static_assert(kN == 64, "a thread has 32 sums");
  MOYE_UNROLL
  for (int i = 0; i < kN / 4; ++i) {
    auto const of = [&](int at) { return (kept >> at & 1) == 0 ? 0 : sums[at]; };
    set_pair<T>(fragments, i, of(2 * i), of(2 * i + 1));
  }
}

/// Those of two rows, or those of a step's rows for two columns, become what of(i) is where their bit is not set.
template <int kSums, class Of>
MOYE_DEVICE void set_masked(float (&weights)[kSums], uint32_t kept, Of const& of) {
  MOYE_UNROLL
  for (int i = 0; i < kSums; ++i) {
    if ((kept >> i & 1) == 0) weights[i] = of(i);
  }
}

/// As TileMask, for want of registers: all is computed where it is used, so that nothing stays in registers.
template <int kSteps, auto kBytes = &AttentionArgs::mask>
struct TileMaskAtUse {
  AttentionArgs const& args;
  AttentionPlace const& at;
  int row, lane;
  uint32_t kept[kSteps] = {};

  MOYE_DEVICE TileMaskAtUse(AttentionArgs const& args, AttentionPlace const& at, int row, int lane)
      : args(args), at(at), row(row), lane(lane) {}

  MOYE_DEVICE void start(int) {}

  /// `kept` of columns `column` on. columns: of both rows, that count.
  MOYE_DEVICE void load(int const (&columns)[2], int column) {
    if ((args.*kBytes).data == nullptr) return;
    int own = row;
    AttentionPlace place = at;
    MOYE_COMPUTED_HERE("+r", own);
    MOYE_COMPUTED_HERE("+r", place.head);
    MOYE_COMPUTED_HERE("+r", place.batch);
    TileMask<kSteps, /*kIsAhead=*/false, kBytes> tile(args, place, own, lane);
    tile.load(columns, column);
    MOYE_UNROLL
    for (int step = 0; step < kSteps; ++step) kept[step] = tile.kept[step];
  }
};

/// The dropout of a thread's rows `row` and `row` + 8, in tiles of kSteps x 64 columns.
template <int kSteps>
struct TileDropout {
  TileMaskAtUse<kSteps, &AttentionArgs::dropout> kept;

  MOYE_DEVICE TileDropout(AttentionArgs const& args, AttentionPlace const& at, int row, int lane)
      : kept(args, at, row, lane) {}

  /// Loads that of columns `column` on. columns: of both rows, that count.
  MOYE_DEVICE void load(int const (&columns)[2], int column) { kept.load(columns, column); }

  MOYE_DEVICE void apply(float (&weights)[kSteps * 32]) const { drop(weights, kept.kept, 1); }

  /// Of sums of weights.
  MOYE_DEVICE float factor() const { return kept.args.dropout.factor; }
};

/// In its place where nothing is dropped.
struct NoDropout {
  template <class... Args>
  MOYE_DEVICE explicit NoDropout(Args const&...) {}
  MOYE_DEVICE void load(int const (&)[2], int) {}
  template <int kSums>
  MOYE_DEVICE void apply(float (&)[kSums]) const {}
  MOYE_DEVICE float factor() const { return 1; }
};

/// TileDropout, or NoDropout.
template <ScoresKind kKind, int kSteps>
using DropoutIf = Conditional<kIsDropped<kKind>, TileDropout<kSteps>, NoDropout>;

}  // namespace moye
