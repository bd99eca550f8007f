// Activations of an epilogue, and their derivatives: of one element, and of all that a thread holds.
#pragma once

#include "gemm/config.h"
#include "moye/arch/math.h"
#include "moye/core.h"

namespace moye {

/// Whether this is compiled with a function of a user's, which stands in front: jax_moye/_kernels/own_epilogue.py
/// writes it. Calls ask for that one alone then.
#ifdef MOYE_OWN_ACTIVATION
inline constexpr bool kOwnActivation = true;
#else
inline constexpr bool kOwnActivation = false;
#endif
/// That function. kRounded: its result will be rounded to 16 bits.
template <bool kRounded>
MOYE_DEVICE float own_activation(float x);

inline constexpr double kLog2E = 1.44269504088896340736;

/// Of the normal distribution, for results that will be rounded to 16 bits: how much of it lies below z, and
/// e^(-z^2/2).
struct Normal {
  float below, bell;
};
/// erfc is e^-x^2 times a polynomial of 1 / (1 + 0.3275911 x), with an error of 1.5e-7 (Abramowitz and Stegun, Handbook
/// of Mathematical Functions, 7.1.26): a third of the instructions.
MOYE_DEVICE Normal normal(float z) {
  float const x = float(0.70710678118654752440) * (z < 0 ? -z : z), t = reciprocal(1.0f + 0.3275911f * x);
  float const p = 0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)));
  float const bell = fast_exp2(float(-kLog2E) * x * x), tail = 0.5f * t * p * bell;  // erfc(x) / 2
  return {z < 0 ? tail : 1.0f - tail, bell};
}

/// activation(z). gelu_tanh is z * (1 + tanh(u)) / 2, which is z / (1 + exp(-2 u)).
/// kRounded: z is a float, and the result will be rounded to 16 bits. Then 2^x with its error of 1e-5 at most will do,
/// a fiftieth of that rounding, and erf as above.
template <bool kRounded = false, class Compute>
MOYE_DEVICE Compute activate(Activation activation, Compute z) {
  if constexpr (kOwnActivation && is_same<Compute, float>) {
    return activation == Activation::own ? own_activation<kRounded>(z) : z;
  }
  switch (activation) {
    case Activation::relu:
      return z < Compute(0) ? Compute(0) : z;  // NaN stays NaN
    case Activation::gelu_tanh: {
      constexpr Compute kMinus2Sqrt2OverPi = Compute(-1.59576912160573071176);
      if constexpr (kRounded) {
        constexpr float kLinear = float(-1.59576912160573071176 * kLog2E), kCubic = float(0.044715) * kLinear;
        return z * reciprocal(1.0f + fast_exp2(z * (kLinear + kCubic * (z * z))));
      }
      return z * reciprocal(Compute(1) + exp(kMinus2Sqrt2OverPi * (z + Compute(0.044715) * z * z * z)));
    }
    case Activation::gelu_erf:
      if constexpr (kRounded) return z * normal(z).below;
      return z * (Compute(0.5) * (Compute(1) + erf(z * Compute(0.70710678118654752440))));
    case Activation::silu:
      if constexpr (kRounded) return z * reciprocal(1.0f + fast_exp2(float(-kLog2E) * z));
      return z * reciprocal(Compute(1) + exp(-z));
    default:
      return z;
  }
}
/// Integers know relu alone; the host admits nothing else.
template <bool kRounded = false>
MOYE_DEVICE int32_t activate(Activation activation, int32_t z) {
  return activation == Activation::relu && z < 0 ? 0 : z;
}

/// An activation and its derivative at c, of a result that will be rounded to 16 bits, as above.
struct Activated {
  float value, slope;
};
/// `derivative` names the derivative. gelu_tanh is c times a logistic function, as silu is.
MOYE_DEVICE Activated activated(Activation derivative, float c) {
  auto const logistic = [](float x) { return reciprocal(1.0f + fast_exp2(float(-kLog2E) * x)); };
  switch (derivative) {
    case Activation::d_relu:
      return {c < 0 ? 0.0f : c, c > 0 ? 1.0f : 0.0f};
    case Activation::d_gelu_tanh: {
      constexpr float k2Sqrt2OverPi = 1.59576912160573071176f, kCubic = 0.044715f;
      float const square = c * c, s = logistic(k2Sqrt2OverPi * c * (1.0f + kCubic * square));
      return {c * s, s + c * k2Sqrt2OverPi * (1.0f + 3 * kCubic * square) * s * (1.0f - s)};
    }
    case Activation::d_gelu_erf: {
      Normal const at = normal(c);
      return {c * at.below, at.below + c * 0.39894228040143267794f * at.bell};
    }
    case Activation::d_silu: {
      float const s = logistic(c);
      return {c * s, s * (1.0f + c * (1.0f - s))};
    }
    default:
      return {c, 1.0f};
  }
}

/// z times the derivative that `activation` names, at c. Of relu it is a choice: 0 where c is not positive, of an
/// infinite z, too.
MOYE_DEVICE float times_derivative(Activation activation, float z, float c) {
  if (activation == Activation::d_relu) return c > 0 ? z : 0.0f;
  return z * activated(activation, c).slope;
}

/// f(C<activation>{}). All are compared before one is computed: who jumps over the code of each waits for instructions.
template <class Compute, class F>
MOYE_DEVICE void with_activation(Activation activation, F const& f) {
  if constexpr (is_same<Compute, int32_t>) {
    if (activation == Activation::relu) f(C<Activation::relu>{});
  } else {
    switch (activation) {
      case Activation::relu:
        return f(C<Activation::relu>{});
      case Activation::gelu_tanh:
        return f(C<Activation::gelu_tanh>{});
      case Activation::gelu_erf:
        return f(C<Activation::gelu_erf>{});
      case Activation::silu:
        return f(C<Activation::silu>{});
      default:
        return;
    }
  }
}

/// The same of the derivatives.
template <class F>
MOYE_DEVICE void with_derivative(Activation activation, F const& f) {
  switch (activation) {
    case Activation::d_relu:
      return f(C<Activation::d_relu>{});
    case Activation::d_gelu_tanh:
      return f(C<Activation::d_gelu_tanh>{});
    case Activation::d_gelu_erf:
      return f(C<Activation::d_gelu_erf>{});
    case Activation::d_silu:
      return f(C<Activation::d_silu>{});
    default:
      return;
  }
}

/// activate() of all of z. Of a user's function there is a branch for every eight, behind which latencies overlap: that
/// leaves registers to functions of every kind. kInTurn: each name is compared behind the code of the one before, as
/// ptxas has registers for where sums are integers.
template <bool kRounded = false, bool kInTurn = false, class Compute, int kCount>
MOYE_DEVICE void activate_all(Activation activation, Compute (&z)[kCount]) {
  auto const all = [&](auto known, int first, int end) {
    MOYE_UNROLL
    for (int i = first; i < end; ++i) z[i] = activate<kRounded>(decltype(known)::value, z[i]);
  };
  if constexpr (kOwnActivation) {
    constexpr int kTogether = kCount < 8 ? kCount : 8;
    static_assert(kCount % kTogether == 0);
    MOYE_UNROLL
    for (int first = 0; first < kCount; first += kTogether) {
      if (activation == Activation::own) all(C<Activation::own>{}, first, first + kTogether);
    }
  } else if constexpr (kInTurn) {
    constexpr int kTogether = kCount < 16 ? kCount : 16;
    auto const each = [&](auto known, int first) {
      if (activation == decltype(known)::value) all(known, first, first + kTogether);
    };
    MOYE_UNROLL
    for (int first = 0; first < kCount; first += kTogether) {
      each(C<Activation::relu>{}, first);
      each(C<Activation::gelu_tanh>{}, first);
      each(C<Activation::gelu_erf>{}, first);
      each(C<Activation::silu>{}, first);
    }
  } else {
    with_activation<Compute>(activation, [&](auto known) { all(known, 0, kCount); });
  }
}

}  // namespace moye
