// A soft cap of attention's scores, cap * tanh(scale / cap * sum), with its derivative: of kernels of their own.
//   ScoresKind         what scores are: a kernel is compiled for each kind, and has nothing of the others
//   factor_of_scores   what they are to be multiplied with behind SoftCap
//   SoftCap            tanh of sums, and 1 - tanh^2; NoCap in its place
// tanh is made of an exponential and a reciprocal, and off by 2^-22 of 1 at most, which a cap of 50 makes 1e-5 of a
// score. The instruction tanh.approx is off by 2^-11 of itself: 0.02 of a score of 50, more than weights are rounded
// by.
#pragma once

#include "gemm/activation.h"
#include "gemm/config.h"
#include "moye/arch/math.h"
#include "moye/core.h"

namespace moye {

enum class ScoresKind { plain, biased, capped, dropped, biased_dropped };

template <ScoresKind kKind>
inline constexpr bool kIsBiased = kKind == ScoresKind::biased || kKind == ScoresKind::biased_dropped;
/// Whether weights are dropped.
template <ScoresKind kKind>
inline constexpr bool kIsDropped = kKind == ScoresKind::dropped || kKind == ScoresKind::biased_dropped;

/// Host: of a call, whose scores have a bias, a cap, or neither, and whose weights have dropout or not.
inline ScoresKind scores_kind(AttentionArgs const& args) {
  using enum ScoresKind;
  bool const has_bias = args.bias.data != nullptr;
  if (args.dropout.data != nullptr) return has_bias ? biased_dropped : dropped;
  return has_bias ? biased : args.cap > 0 ? capped : plain;
}

/// Of the plain and the biased ones their scale, of tanh the cap.
template <ScoresKind kKind>
MOYE_DEVICE float factor_of_scores(AttentionArgs const& args) {
  return kKind == ScoresKind::capped ? args.cap : args.scale;
}

/// A score in units of the cap, and its derivative by what is in tanh.
struct CappedScore {
  float value, slope;
};

struct SoftCap {
  float factor;  // of sums, for exponentials of base 2

  MOYE_DEVICE explicit SoftCap(AttentionArgs const& args)
      : factor(float(2 * kLog2E) * args.scale * reciprocal(args.cap)) {}

  /// Both are as precise near 1, and near 0 beside 1: the exponential is that of a negative number.
  MOYE_DEVICE CappedScore of(float sum) const {
    float const e = fast_exp2(-__builtin_fabsf(sum) * factor), share = reciprocal(1 + e), twice = 2 * share;
    return {__builtin_copysignf((1 - e) * share, sum), e * twice * twice};
  }

  template <int kSums>
  MOYE_DEVICE void apply(float (&sums)[kSums]) const {
    MOYE_UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] = of(sums[i]).value;
  }
};

/// Of scores without a cap.
struct NoCap {
  MOYE_DEVICE explicit NoCap(AttentionArgs const&) {}
  MOYE_DEVICE CappedScore of(float sum) const { return {sum, 1}; }
  template <int kSums>
  MOYE_DEVICE void apply(float (&)[kSums]) const {}
};

/// The cap, or NoCap.
template <ScoresKind kKind>
using CapIf = Conditional<kKind == ScoresKind::capped, SoftCap, NoCap>;

}  // namespace moye
