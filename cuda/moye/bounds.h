// Bounds checks for tensors: with MOYE_BOUNDS_CHECK defined as 1, every coordinate given to a Tensor is held against
// its shape, and the first one outside ends the kernel with a report of coordinate, shape and line (arch/bounds.h). For
// the emulator and debug builds. Without it nothing here exists, and nothing is paid.
#pragma once

#include "moye/int_tuple.h"

#if !defined(MOYE_BOUNDS_CHECK)
#define MOYE_BOUNDS_CHECK 0
#endif

#if MOYE_BOUNDS_CHECK

#include "moye/arch/bounds.h"

namespace moye {

/// Whether a coordinate lies in a shape: each number in the product of the extents it stands for. `_` always does.
template <class Coord, class Shape>
MOYE_HOST_DEVICE constexpr bool is_inside_shape(Coord const& coord, Shape const& shape);

template <class Coord, class Shape, int... I>
MOYE_HOST_DEVICE constexpr bool are_inside_modes(Coord const& coord, Shape const& shape, Seq<I...>) {
  return (is_inside_shape(get<I>(coord), get<I>(shape)) && ...);
}
template <class Coord, class Shape>
MOYE_HOST_DEVICE constexpr bool is_inside_shape(Coord const& coord, Shape const& shape) {
  if constexpr (is_underscore<Coord>) {
    return true;
  } else if constexpr (is_arith_tuple<Coord>) {
    return is_inside_shape(as_coord<tuple_size<Shape>>(coord), shape);
  } else if constexpr (is_tuple<Coord>) {
    static_assert(is_tuple<Shape> && tuple_size<Coord> == tuple_size<Shape>,
                  "Tensor: coordinate and shape differ in rank");
    return are_inside_modes(coord, shape, MakeSeq<tuple_size<Coord>>{});
  } else {
    auto const c = static_cast<long long>(coord);
    return 0 <= c && c < static_cast<long long>(product(shape));
  }
}

/// A short text, without a standard library.
struct ShortText {
  static constexpr int kMost = 120;
  char text[kMost + 1] = {};
  int length = 0;

  MOYE_HOST_DEVICE void put(char c) {
    if (length < kMost) text[length++] = c;
  }
  MOYE_HOST_DEVICE void put(long long n) {
    if (n < 0) put('-');
    char digits[20];
    int count = 0;
    auto rest = static_cast<unsigned long long>(n < 0 ? -n : n);
    do {
      digits[count++] = static_cast<char>('0' + rest % 10);
      rest /= 10;
    } while (rest != 0);
    while (count > 0) put(digits[--count]);
  }
  template <class T>
  MOYE_HOST_DEVICE void put_tuple(T const& t) {
    if constexpr (is_underscore<T>) {
      put('_');
    } else if constexpr (is_tuple<T> || is_arith_tuple<T>) {
      put('(');
      put_modes(t, MakeSeq<tuple_size<T>>{});
      put(')');
    } else {
      put(static_cast<long long>(t));
    }
  }

 private:
  template <class T, int... I>
  MOYE_HOST_DEVICE void put_modes(T const& t, Seq<I...>) {
    ((I > 0 ? put(',') : void(), put_tuple(get<I>(t))), ...);
  }
};

template <class Coord, class Shape>
MOYE_HOST_DEVICE void report_bounds(Coord const& coord, Shape const& shape, SourceLine where) {
  ShortText coord_text, shape_text;
  coord_text.put_tuple(coord);
  shape_text.put_tuple(shape);
  out_of_bounds(coord_text.text, shape_text.text, where);
}

template <class Coord, class Shape>
MOYE_HOST_DEVICE constexpr void check_bounds(Coord const& coord, Shape const& shape, SourceLine where) {
  if (!is_inside_shape(coord, shape)) report_bounds(coord, shape, where);
}

}  // namespace moye

#endif  // MOYE_BOUNDS_CHECK
