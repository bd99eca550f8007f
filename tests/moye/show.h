// Layouts as text, in the notation of the recorded facts (tests/data/oracle).
#pragma once

#include <string>

#include "moye/moye.h"

namespace moye {

/// Appends x to text. A class with one function per type: most types here are shown once, and compiled for that.
template <class T>
struct Show {
  static void append(std::string& text, T const& x) { text += std::to_string(x); }
};
template <>
struct Show<Underscore> {
  static void append(std::string& text, Underscore) { text += '_'; }
};
template <class T, int I>
struct Show<ScaledBasis<T, I>> {
  static void append(std::string& text, ScaledBasis<T, I> const& x) {
    Show<T>::append(text, x.value());
    text += '@' + std::to_string(I);
  }
};
template <class... T>
struct Show<Tuple<T...>> {
  static void append(std::string& text, Tuple<T...> const& x) { append(text, x, MakeSeq<sizeof...(T)>{}); }
  template <int... I>
  static void append(std::string& text, [[maybe_unused]] Tuple<T...> const& x, Seq<I...>) {
    text += '(';
    ((text += I == 0 ? "" : ",", Show<T>::append(text, get<I>(x))), ...);
    text += ')';
  }
};
template <class... T>
struct Show<ArithTuple<T...>> : Show<Tuple<T...>> {};
template <class S, class D>
struct Show<Layout<S, D>> {
  static void append(std::string& text, Layout<S, D> const& l) {
    Show<S>::append(text, l.shape());
    text += ':';
    Show<D>::append(text, l.stride());
  }
};
template <int B, int M, int S>
struct Show<Swizzle<B, M, S>> {
  static void append(std::string& text, Swizzle<B, M, S>) {
    text += "Sw<" + std::to_string(B) + "," + std::to_string(M) + "," + std::to_string(S) + ">";
  }
};
template <class W, class O, class L>
struct Show<ComposedLayout<W, O, L>> {
  static void append(std::string& text, ComposedLayout<W, O, L> const& l) {
    Show<W>::append(text, {});
    text += " o ";
    Show<O>::append(text, l.offset());
    text += " o ";
    Show<L>::append(text, l.layout());
  }
};
template <>
struct Show<LayoutError> {
  static void append(std::string& text, LayoutError error) {
    switch (error) {
      case LayoutError::kNone:
        text += "none";
        return;
      case LayoutError::kStrideDivisibility:
        text += "!StrideDivisibility";
        return;
      case LayoutError::kShapeDivisibility:
        text += "!ShapeDivisibility";
        return;
      case LayoutError::kCarry:
        text += "!Carry";
        return;
      case LayoutError::kNonInjective:
        text += "!NonInjective";
        return;
      case LayoutError::kLeftInverseDivisibility:
        text += "!LeftInverseDivisibility";
        return;
      case LayoutError::kLeftInverseOverlap:
        text += "!LeftInverseOverlap";
        return;
      case LayoutError::kDynamicNotSupported:
        text += "!DynamicNotSupported";
        return;
    }
  }
};
template <>
struct Show<std::string> {
  static void append(std::string& text, std::string const& x) { text += x; }
};

template <class T>
std::string show(T const& x) {
  std::string text;
  Show<T>::append(text, x);
  return text;
}

}  // namespace moye
