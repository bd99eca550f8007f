// The layout algebra's decisions, on numbers. An operation looks at the flat leaves of its operands, where a number
// that is not known at compile time is kDynamic, and answers with a plan: which leaves are merged, dropped, split or
// scaled. layout.h turns a plan into types. So the algorithms are ordinary functions, are evaluated once per pair of
// layouts, say what is wrong by name, and leave every dynamic number untouched.
#pragma once

#include "moye/core.h"

namespace moye {

enum class LayoutError {
  kNone,
  kStrideDivisibility,       // a stride neither divides nor is divided by an extent it meets
  kShapeDivisibility,        // an extent is not a multiple of the part of a mode it has to fill
  kCarry,                    // two modes meet in one mode of the other layout and overflow it: sums would carry
  kNonInjective,             // complement of a layout that may hit an element twice
  kLeftInverseDivisibility,  // the strides do not divide each other
  kLeftInverseOverlap,       // modes overlap so that no layout finds a position for every index
  kDynamicNotSupported,      // a number the decision needs is not known at compile time
};

/// Leaves of a layout; kDynamic where not static.
template <int N>
struct FlatLeaves {
  static constexpr int kSize = N;
  long long shape[N];
  long long stride[N];
};

/// A flat layout of at most N leaves, all static.
template <int N>
struct Numbers {
  int size = 0;
  long long shape[N] = {};
  long long stride[N] = {};

  constexpr void push(long long s, long long d) {
    shape[size] = s;
    stride[size] = d;
    ++size;
  }
};

/// Output leaf i is the product of the input's extents [begin[i], end[i]) with the stride of begin[i].
template <int N>
struct CoalescePlan {
  int size = 0;
  int begin[N] = {};
  int end[N] = {};
};

/// Drops leaves of extent 1 and merges a leaf with its right neighbour where stride * extent == the neighbour's stride.
/// With keep_last the last leaf's extent is taken to be larger than 1: it says how the function goes on beyond the
/// shape.
template <int N>
constexpr CoalescePlan<N> plan_coalesce(FlatLeaves<N> const& in, bool keep_last) {
  CoalescePlan<N> plan;
  for (int i = 0; i < N; ++i) {
    if (in.shape[i] == 1 && !(keep_last && i == N - 1)) continue;
    if (plan.size > 0) {
      int const last = plan.end[plan.size - 1] - 1;
      bool const known = in.shape[last] != kDynamic && in.stride[last] != kDynamic && in.stride[i] != kDynamic;
      if (known && in.shape[last] * in.stride[last] == in.stride[i]) {
        plan.end[plan.size - 1] = i + 1;
        continue;
      }
    }
    plan.begin[plan.size] = i;
    plan.end[plan.size] = i + 1;
    ++plan.size;
  }
  return plan;
}

/// The coalesced layout itself, where all numbers are static. Without leaves it stands for 1:0.
template <int N>
constexpr Numbers<N> coalesced(FlatLeaves<N> const& in, bool keep_last) {
  CoalescePlan<N> const plan = plan_coalesce(in, keep_last);
  Numbers<N> out;
  for (int i = 0; i < plan.size; ++i) {
    long long extent = 1;
    for (int j = plan.begin[i]; j < plan.end[i]; ++j) extent *= in.shape[j];
    out.push(extent, in.stride[plan.begin[i]]);
  }
  return out;
}
/// N leaves, those that do not exist as 1:0.
template <int N>
constexpr FlatLeaves<N> padded(Numbers<N> const& in) {
  FlatLeaves<N> leaves = {};
  for (int i = 0; i < N; ++i) {
    leaves.shape[i] = i < in.size ? in.shape[i] : 1;
    leaves.stride[i] = i < in.size ? in.stride[i] : 0;
  }
  return leaves;
}

/// The same for a layout of which only the first `size` leaves count.
template <int N>
constexpr Numbers<N> coalesced(Numbers<N> const& in) {
  return coalesced(padded(in), false);
}
template <int N>
constexpr FlatLeaves<N> without_zero_strides(FlatLeaves<N> in) {
  for (int i = 0; i < N; ++i) {
    if (in.stride[i] == 0) in.shape[i] = 1;
  }
  return in;
}
/// Leaf l of B becomes the leaves [begin[l], begin[l+1]) of the result: extent shape[j] (kDynamic: B's own extent),
/// stride factor[j] (kDynamic: B's own stride) times the stride of A's leaf source[j] (-1: stride 0).
template <int NA, int NB>
struct CompositionPlan {
  LayoutError error = LayoutError::kNone;
  int size = 0;
  int begin[NB + 1] = {};
  long long shape[NA * NB] = {};
  long long factor[NA * NB] = {};
  int source[NA * NB] = {};

  constexpr void emit(long long s, long long d, int a) {
    shape[size] = s;
    factor[size] = d;
    source[size] = a;
    ++size;
  }
};

/// A after B, leaf by leaf. A is coalesced and has rank_a leaves; what follows them does not count.
///
/// Each leaf s:d of B walks over A's modes from the left, dividing its stride d by their extents until it finds the
/// mode it starts in, and fills modes from there. It is sound iff every division is exact, and the largest digits that
/// B's leaves put into one mode of A add up to less than its extent (no carry into the next mode). CuTe checks less and
/// can return a wrong layout, e.g. (4,3):(3,1) o 4:3; here that is an error.
template <int NA, int NB>
constexpr CompositionPlan<NA, NB> plan_composition(FlatLeaves<NA> const& a, int rank_a, FlatLeaves<NB> const& b) {
  CompositionPlan<NA, NB> plan;
  long long digit[NA] = {};
  auto const fail = [&](LayoutError error) {
    if (plan.error == LayoutError::kNone) plan.error = error;
  };
  for (int l = 0; l < NB; ++l) {
    plan.begin[l] = plan.size;
    long long rest = b.shape[l];
    long long step = b.stride[l];
    if (step == 0) {
      plan.emit(rest, 0, -1);
      continue;
    }
    if (rest ==
        1) {  // nothing steps, but the stride must find its place all the same, as in CuTe: 1:3 is no mode of 2:1
      for (int i = 0; i < rank_a - 1 && step != kDynamic && a.shape[i] != kDynamic; ++i) {
        if (step % a.shape[i] != 0) {
          if (step > a.shape[i]) fail(LayoutError::kStrideDivisibility);
          break;
        }
        step /= a.shape[i];
      }
      plan.emit(1, 0, -1);
      continue;
    }
    if (rank_a == 1) {
      plan.emit(rest, step, 0);
      continue;
    }
    if (step == kDynamic || step < 0) {
      fail(LayoutError::kDynamicNotSupported);
      continue;
    }
    for (int i = 0; i < rank_a - 1 && rest != 1; ++i) {
      long long const extent = a.shape[i];
      if (extent == kDynamic) {
        fail(LayoutError::kDynamicNotSupported);
        rest = 1;
        break;
      }
      if (step % extent == 0) {
        step /= extent;
        continue;
      }
      if (step > extent) {
        fail(LayoutError::kStrideDivisibility);
        rest = 1;
        break;
      }
      long long const n = (extent + step - 1) / step;
      if (rest == kDynamic) {
        fail(LayoutError::kDynamicNotSupported);
        rest = 1;
        break;
      }
      if (rest <= n) {
        plan.emit(rest, step, i);
        digit[i] += (rest - 1) * step;
        rest = 1;
        break;
      }
      if (extent % step != 0) fail(LayoutError::kStrideDivisibility);
      if (rest % n != 0) fail(LayoutError::kShapeDivisibility);
      plan.emit(n, step, i);
      digit[i] += (n - 1) * step;
      rest /= n;
      step = 1;
    }
    if (rest != 1) plan.emit(rest, step, rank_a - 1);
  }
  plan.begin[NB] = plan.size;
  for (int i = 0; i < rank_a - 1; ++i) {
    if (a.shape[i] != kDynamic && digit[i] > a.shape[i] - 1) fail(LayoutError::kCarry);
  }
  return plan;
}

/// The gaps of a layout, smallest stride first: extents and strides, and the stride at which everything starts again.
template <int N>
struct ComplementPlan {
  LayoutError error = LayoutError::kNone;
  long long shape[N] = {};
  long long stride[N] = {};
  long long period = 1;
};

/// The leaves' indices in the order of their strides; equal strides stay in place. Dynamic strides come last.
template <int N>
struct StrideOrder {
  int index[N] = {};
};
template <int N>
constexpr StrideOrder<N> stride_order(FlatLeaves<N> const& in) {
  StrideOrder<N> order;
  auto const less = [&](int i, int j) {
    if (in.stride[i] == kDynamic) return false;
    return in.stride[j] == kDynamic || in.stride[i] < in.stride[j];
  };
  for (int i = 0; i < N; ++i) {
    int at = i;
    for (; at > 0 && less(i, order.index[at - 1]); --at) order.index[at] = order.index[at - 1];
    order.index[at] = i;
  }
  return order;
}

/// `in` is filtered: no stride 0 and no extent 1, unless it is 1:0.
template <int N>
constexpr ComplementPlan<N> plan_complement(FlatLeaves<N> const& in) {
  ComplementPlan<N> plan;
  StrideOrder<N> const order = stride_order(in);
  for (int i = 0; i < N; ++i) {
    long long const shape = in.shape[order.index[i]];
    long long const stride = in.stride[order.index[i]];
    plan.shape[i] = 1;
    plan.stride[i] = 0;
    if (stride == 0) continue;  // 1:0, the layout of one element
    if (shape == kDynamic || stride == kDynamic) {
      plan.error = LayoutError::kDynamicNotSupported;
      return plan;
    }
    if (stride < plan.period) {
      plan.error = LayoutError::kNonInjective;
      return plan;
    }
    plan.shape[i] = stride / plan.period;
    plan.stride[i] = plan.period;
    plan.period = shape * stride;
  }
  return plan;
}

/// The complement of a static layout in [0, target).
template <int N>
struct StaticComplement {
  LayoutError error = LayoutError::kNone;
  Numbers<N + 1> layout;
};
template <int N>
constexpr StaticComplement<N> static_complement(FlatLeaves<N> const& in, long long target) {
  StaticComplement<N> result;
  ComplementPlan<N> const plan = plan_complement(padded(coalesced(without_zero_strides(in), false)));
  result.error = plan.error;
  if (plan.error == LayoutError::kNone) {
    for (int i = 0; i < N; ++i) result.layout.push(plan.shape[i], plan.stride[i]);
    result.layout.push((target + plan.period - 1) / plan.period, plan.period);
    result.layout = coalesced(result.layout);
  }
  return result;
}

/// Whether a stride is no multiple of what the smaller ones cover: copies of the layout side by side leave indices out.
template <int N>
constexpr bool has_holes(FlatLeaves<N> const& in) {
  FlatLeaves<N> const part = padded(coalesced(without_zero_strides(in), false));
  StrideOrder<N> const order = stride_order(part);
  long long covered = 1;
  for (int i = 0; i < N; ++i) {
    long long const stride = part.stride[order.index[i]];
    if (stride == 0) continue;
    if (stride % covered != 0) return true;
    covered = part.shape[order.index[i]] * stride;
  }
  return false;
}

/// Leaf i of an inverse: extent shape[i] (kDynamic: the extent of leaf source[i]), and the stride of leaf source[i] in
/// the compact layout of the same extents, that is the product of the extents before it (0 where source[i] is -1).
template <int N>
struct InversePlan {
  LayoutError error = LayoutError::kNone;
  int size = 0;
  long long shape[N + 1] = {};
  int source[N + 1] = {};

  constexpr void emit(long long s, int from) {
    shape[size] = s;
    source[size] = from;
    ++size;
  }
};

/// The longest run 0, 1, 2, ... of indices that the layout produces.
template <int N>
constexpr InversePlan<N> plan_right_inverse(FlatLeaves<N> const& in) {
  InversePlan<N> plan;
  StrideOrder<N> const order = stride_order(in);
  long long next = 1;
  for (int i = 0; i < N; ++i) {
    int const leaf = order.index[i];
    if (in.stride[leaf] != next || in.shape[leaf] == 1) continue;
    plan.emit(in.shape[leaf], leaf);
    if (in.shape[leaf] == kDynamic) break;
    next *= in.shape[leaf];
  }
  return plan;
}

/// The largest n such that the indices of a coalesced layout are whole vectors of n, each from a multiple of n on.
template <int N>
constexpr long long plan_alignment(FlatLeaves<N> const& in) {
  InversePlan<N> const plan = plan_right_inverse(in);
  bool contiguous[N] = {};
  long long n = 1;
  for (int i = 0; i < plan.size; ++i) {
    if (plan.shape[i] == kDynamic) continue;  // ends anywhere
    contiguous[plan.source[i]] = true;
    n *= plan.shape[i];
  }
  for (int i = 0; i < N; ++i) {
    if (!contiguous[i] && in.shape[i] != 1) n = gcd_value(n, in.stride[i] == kDynamic ? 1 : in.stride[i]);
  }
  return n;
}

/// The inverse that a plan describes, of static leaves.
template <int N>
constexpr Numbers<N + 1> static_inverse(FlatLeaves<N> const& in, InversePlan<N> const& plan) {
  Numbers<N + 1> out;
  for (int i = 0; i < plan.size; ++i) {
    long long stride = plan.source[i] < 0 ? 0 : 1;
    for (int j = 0; j < plan.source[i]; ++j) stride *= in.shape[j];
    out.push(plan.shape[i], stride);
  }
  return coalesced(out);
}

template <int N>
constexpr InversePlan<N> plan_left_inverse(FlatLeaves<N> const& in) {
  InversePlan<N> plan;
  StrideOrder<N> const order = stride_order(in);
  long long done = 1;   // indices below `done` are decided
  long long reach = 0;  // the largest index of the modes so far
  int previous = -1;    // the leaf whose multiples fill the gap up to the next stride
  for (int i = 0; i < N; ++i) {
    int const leaf = order.index[i];
    long long const stride = in.stride[leaf];
    if (stride == 0 || in.shape[leaf] == 1) continue;
    if (stride == kDynamic || (in.shape[leaf] == kDynamic && i != N - 1)) {
      plan.error = LayoutError::kDynamicNotSupported;
      return plan;
    }
    if (stride < done || stride % done != 0) {
      plan.error = LayoutError::kLeftInverseDivisibility;
      return plan;
    }
    if (in.shape[leaf] != kDynamic) {
      // Indices that smaller strides reach beyond this one are found in its multiples, if those go on: the last mode's
      // do beyond the size, and those of a mode that the next stride cuts.
      bool const cut = i + 1 < N && in.stride[order.index[i + 1]] <= in.shape[leaf] * stride;
      if (reach >= stride && !cut && leaf != N - 1) {
        plan.error = LayoutError::kLeftInverseOverlap;
        return plan;
      }
      reach += (in.shape[leaf] - 1) * stride;
    }
    plan.emit(stride / done, previous);
    done = stride;
    previous = leaf;
  }
  if (previous >= 0) plan.emit(in.shape[previous], previous);
  return plan;
}

}  // namespace moye
