// Layouts as text, in the notation of tests/data/layout_algebra.tsv.
#pragma once

#include <string>

#include "moye/moye.h"

namespace moye {

template <class T>
std::string show(T const& x) {
  if constexpr (is_underscore<T>) {
    return "_";
  } else if constexpr (is_scaled_basis<T>) {
    return show(x.value()) + "@" + std::to_string(T::kMode);
  } else if constexpr (is_arith_tuple<T>) {
    return show(take<0, tuple_size<T>>(x));
  } else {
    return std::to_string(x);
  }
}
template <class... T>
std::string show(Tuple<T...> const& t) {
  std::string text;
  for_each(t, [&](auto const& x) { text += (text.empty() ? "" : ",") + show(x); });
  return "(" + text + ")";
}
template <class S, class D>
std::string show(Layout<S, D> const& l) {
  return show(l.shape()) + ":" + show(l.stride());
}
template <int B, int M, int S>
std::string show(Swizzle<B, M, S> const&) {
  return "Sw<" + std::to_string(B) + "," + std::to_string(M) + "," + std::to_string(S) + ">";
}
template <class W, class O, class L>
std::string show(ComposedLayout<W, O, L> const& l) {
  return show(l.swizzle()) + " o " + show(l.offset()) + " o " + show(l.layout());
}

inline char const* show(LayoutError error) {
  switch (error) {
    case LayoutError::kNone:
      return "none";
    case LayoutError::kStrideDivisibility:
      return "!StrideDivisibility";
    case LayoutError::kShapeDivisibility:
      return "!ShapeDivisibility";
    case LayoutError::kCarry:
      return "!Carry";
    case LayoutError::kNonInjective:
      return "!NonInjective";
    case LayoutError::kLeftInverseDivisibility:
      return "!LeftInverseDivisibility";
    case LayoutError::kDynamicNotSupported:
      return "!DynamicNotSupported";
  }
  return "?";
}

}  // namespace moye
