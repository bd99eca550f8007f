// What the layout library needs of a standard library, in a form that nvcc, NVRTC and g++ compile fast: a tuple whose
// empty elements take no room, with its algorithms; and what moye/constants.h has.
#pragma once

#include "moye/constants.h"

namespace moye {

// ---------------------------------------------------------------------------------------------------------------------
// Tuple: a tuple of empty types is an empty type, so static shapes, strides and layouts cost no storage.

/// Whether the type says everything: nothing is stored, and T{} is the value.
template <class T>
inline constexpr bool is_empty = __is_empty(T);
template <>
inline constexpr bool is_empty<Underscore> = true;

template <int I, class T, bool kEmpty = is_empty<T>>
struct TupleLeaf {
  using Type = T;
  T value;
  TupleLeaf() = default;
  MOYE_HOST_DEVICE constexpr explicit TupleLeaf(T const& t) : value(t) {}
};
template <int I, class T>
struct TupleLeaf<I, T, true> {
  using Type = T;
  TupleLeaf() = default;
  MOYE_HOST_DEVICE constexpr explicit TupleLeaf(T const&) {}
};

template <class S, class... T>
struct TupleBase;
template <int... I, class... T>
struct TupleBase<Seq<I...>, T...> : TupleLeaf<I, T>... {
  TupleBase() = default;
  MOYE_HOST_DEVICE constexpr explicit TupleBase(T const&... t)
    requires(sizeof...(T) > 0)
      : TupleLeaf<I, T>(t)... {}
};

struct EmptyTuple {
  EmptyTuple() = default;
  template <class... T>
  MOYE_HOST_DEVICE constexpr explicit EmptyTuple(T const&...) {}
};
template <bool kEmpty, class... T>
struct TupleStorageImpl {
  using Type = EmptyTuple;
};
template <class... T>
struct TupleStorageImpl<false, T...> {
  using Type = TupleBase<MakeSeq<sizeof...(T)>, T...>;
};

template <class... T>
struct Tuple : TupleStorageImpl<(is_empty<T> && ...), T...>::Type {
  Tuple() = default;
  MOYE_HOST_DEVICE constexpr Tuple(T const&... t) : TupleStorageImpl<(is_empty<T> && ...), T...>::Type(t...) {}
};
template <>
struct Tuple<> {};

// The same tuple under the names that say what it is for.
template <class... T>
using Shape = Tuple<T...>;
template <class... T>
using Stride = Tuple<T...>;
template <class... T>
using Step = Tuple<T...>;
template <class... T>
using Coord = Tuple<T...>;
template <class... T>
using Tile = Tuple<T...>;

template <class... T>
MOYE_HOST_DEVICE constexpr Tuple<T...> make_tuple([[maybe_unused]] T... t) {
  if constexpr ((is_empty<T> && ...)) {
    return {};
  } else {
    return Tuple<T...>(t...);
  }
}
template <class... T>
MOYE_HOST_DEVICE constexpr Tuple<T...> make_shape(T... t) {
  return make_tuple(t...);
}
template <class... T>
MOYE_HOST_DEVICE constexpr Tuple<T...> make_stride(T... t) {
  return make_tuple(t...);
}
template <class... T>
MOYE_HOST_DEVICE constexpr Tuple<T...> make_step(T... t) {
  return make_tuple(t...);
}
template <class... T>
MOYE_HOST_DEVICE constexpr Tuple<T...> make_coord(T... t) {
  return make_tuple(t...);
}
template <class... T>
MOYE_HOST_DEVICE constexpr Tuple<T...> make_tile(T... t) {
  return make_tuple(t...);
}

template <class T>
inline constexpr bool is_tuple = false;
template <class... T>
inline constexpr bool is_tuple<Tuple<T...>> = true;

template <int I, class... T>
struct TypeAtImpl {
  static_assert(I < 0, "get: the tuple has no such element");
};
template <class T0, class... T>
struct TypeAtImpl<0, T0, T...> {
  using Type = T0;
};
template <class T0, class T1, class... T>
struct TypeAtImpl<1, T0, T1, T...> {
  using Type = T1;
};
template <class T0, class T1, class T2, class... T>
struct TypeAtImpl<2, T0, T1, T2, T...> {
  using Type = T2;
};
template <class T0, class T1, class T2, class T3, class... T>
struct TypeAtImpl<3, T0, T1, T2, T3, T...> {
  using Type = T3;
};
template <int I, class T0, class T1, class T2, class T3, class... T>
  requires(I > 3)
struct TypeAtImpl<I, T0, T1, T2, T3, T...> : TypeAtImpl<I - 4, T...> {};

template <int I, class T>
struct TupleElementImpl;
template <int I, class... T>
struct TupleElementImpl<I, Tuple<T...>> : TypeAtImpl<I, T...> {};
/// The type of get<I>
template <int I, class T>
using TupleElement = typename TupleElementImpl<I, T>::Type;

/// Element I, by value: elements are integers, constants, or small structs of them.
template <int I, class... T>
MOYE_HOST_DEVICE constexpr typename TypeAtImpl<I, T...>::Type get([[maybe_unused]] Tuple<T...> const& t) {
  using Element = typename TypeAtImpl<I, T...>::Type;
  if constexpr (is_empty<Element>) {
    return Element{};
  } else {
    return static_cast<TupleLeaf<I, Element> const&>(t).value;
  }
}
/// get<I, J, ...>(t) == get<J, ...>(get<I>(t))
template <int I, int J, int... K, class T>
MOYE_HOST_DEVICE constexpr auto get(T const& t) {
  return get<J, K...>(get<I>(t));
}

template <class... T>
struct JoinTuplesImpl;
template <>
struct JoinTuplesImpl<> {
  using Type = Tuple<>;
};
template <class... A>
struct JoinTuplesImpl<Tuple<A...>> {
  using Type = Tuple<A...>;
};
template <class... A, class... B, class... Rest>
struct JoinTuplesImpl<Tuple<A...>, Tuple<B...>, Rest...> : JoinTuplesImpl<Tuple<A..., B...>, Rest...> {};
template <class... A, class... B, class... C, class... D, class... Rest>
struct JoinTuplesImpl<Tuple<A...>, Tuple<B...>, Tuple<C...>, Tuple<D...>, Rest...>
    : JoinTuplesImpl<Tuple<A..., B..., C..., D...>, Rest...> {};
/// The type of tuple_cat
template <class... T>
using JoinTuples = typename JoinTuplesImpl<T...>::Type;

template <class T>
inline constexpr int tuple_size = 1;
template <class... T>
inline constexpr int tuple_size<Tuple<T...>> = static_cast<int>(sizeof...(T));

/// Whether every integer in it, at any depth, is known at compile time.
template <class T>
inline constexpr bool is_static = is_empty<T>;

/// Whether every leaf is an integral constant. (A basis stride is static, but not a number.)
template <class T>
inline constexpr bool is_static_numbers = is_static_integral<T>;
template <class... T>
inline constexpr bool is_static_numbers<Tuple<T...>> = (is_static_numbers<T> && ...);

// Returns the expression. Where its type says everything, only the type is computed, and no code: a layout is worked
// out by hundreds of small functions, which would otherwise all be generated, inlined and found to do nothing.
#define MOYE_RETURN(...)                  \
  using Returned = decltype(__VA_ARGS__); \
  if constexpr (is_static<Returned>) {    \
    return Returned{};                    \
  } else {                                \
    return __VA_ARGS__;                   \
  }

// ---------------------------------------------------------------------------------------------------------------------
// Tuple algorithms. A scalar counts as a tuple of one element where that makes sense.

template <class... T, class F, int... I>
MOYE_HOST_DEVICE constexpr auto apply_impl(Tuple<T...> const& t, F const& f, Seq<I...>) {
  return f(get<I>(t)...);
}
/// f(get<0>(t), get<1>(t), ...)
template <class... T, class F>
MOYE_HOST_DEVICE constexpr auto apply(Tuple<T...> const& t, F const& f) {
  MOYE_RETURN(apply_impl(t, f, MakeSeq<sizeof...(T)>{}))
}

template <class T, class F, int... I>
MOYE_HOST_DEVICE constexpr auto transform_impl(T const& t, F const& f, Seq<I...>) {
  return make_tuple(f(get<I>(t))...);
}
template <class T, class U, class F, int... I>
MOYE_HOST_DEVICE constexpr auto transform_impl(T const& t, U const& u, F const& f, Seq<I...>) {
  return make_tuple(f(get<I>(t), get<I>(u))...);
}
template <class T, class U, class V, class F, int... I>
MOYE_HOST_DEVICE constexpr auto transform_impl(T const& t, U const& u, V const& v, F const& f, Seq<I...>) {
  return make_tuple(f(get<I>(t), get<I>(u), get<I>(v))...);
}
/// (f(t0), f(t1), ...)
template <class... T, class F>
MOYE_HOST_DEVICE constexpr auto transform(Tuple<T...> const& t, F const& f) {
  MOYE_RETURN(transform_impl(t, f, MakeSeq<sizeof...(T)>{}))
}
/// (f(t0, u0), f(t1, u1), ...)
template <class... T, class... U, class F>
MOYE_HOST_DEVICE constexpr auto transform(Tuple<T...> const& t, Tuple<U...> const& u, F const& f) {
  static_assert(sizeof...(T) == sizeof...(U), "transform: the tuples differ in rank");
  MOYE_RETURN(transform_impl(t, u, f, MakeSeq<sizeof...(T)>{}))
}

/// (f(t0, u0, v0), f(t1, u1, v1), ...)
template <class... T, class... U, class... V, class F>
MOYE_HOST_DEVICE constexpr auto transform(Tuple<T...> const& t, Tuple<U...> const& u, Tuple<V...> const& v,
                                          F const& f) {
  static_assert(sizeof...(T) == sizeof...(U) && sizeof...(T) == sizeof...(V), "transform: the tuples differ in rank");
  MOYE_RETURN(transform_impl(t, u, v, f, MakeSeq<sizeof...(T)>{}))
}

/// f at every leaf of a nested tuple, which keeps its profile.
template <class T, class F>
MOYE_HOST_DEVICE constexpr auto transform_leaf(T const& t, F const& f) {
  if constexpr (is_tuple<T>) {
    auto const inner = [&](auto const& x) { return transform_leaf(x, f); };
    MOYE_RETURN(transform(t, inner))
  } else {
    return f(t);
  }
}
template <class T, class U, class F>
MOYE_HOST_DEVICE constexpr auto transform_leaf(T const& t, U const& u, F const& f) {
  if constexpr (is_tuple<T>) {
    auto const inner = [&](auto const& x, auto const& y) { return transform_leaf(x, y, f); };
    MOYE_RETURN(transform(t, u, inner))
  } else {
    return f(t, u);
  }
}

template <int I, int N, class T, class V, class F>
MOYE_HOST_DEVICE constexpr auto fold_impl(T const& t, V const& v, F const& f) {
  if constexpr (I == N) {
    return v;
  } else {
    return fold_impl<I + 1, N>(t, f(v, get<I>(t)), f);
  }
}
/// f(...f(f(v, t0), t1)..., tn)
template <class... T, class V, class F>
MOYE_HOST_DEVICE constexpr auto fold(Tuple<T...> const& t, V const& v, F const& f) {
  MOYE_RETURN(fold_impl<0, static_cast<int>(sizeof...(T))>(t, v, f))
}

template <class... T, class F, int... I>
MOYE_HOST_DEVICE constexpr void for_each_impl(Tuple<T...> const& t, F const& f, Seq<I...>) {
  (f(get<I>(t)), ...);
}
template <class... T, class F>
MOYE_HOST_DEVICE constexpr void for_each(Tuple<T...> const& t, F const& f) {
  for_each_impl(t, f, MakeSeq<sizeof...(T)>{});
}

template <int B, class T, int... I>
MOYE_HOST_DEVICE constexpr auto take_impl(T const& t, Seq<I...>) {
  return make_tuple(get<B + I>(t)...);
}
/// (t_B, ..., t_{E-1})
template <int B, int E, class... T>
MOYE_HOST_DEVICE constexpr auto take(Tuple<T...> const& t) {
  static_assert(0 <= B && B <= E && E <= static_cast<int>(sizeof...(T)), "take: no such range of modes");
  MOYE_RETURN(take_impl<B>(t, MakeSeq<E - B>{}))
}

/// (t_I, t_J, ...)
template <int... I, class... T>
MOYE_HOST_DEVICE constexpr auto select(Tuple<T...> const& t) {
  MOYE_RETURN(make_tuple(get<I>(t)...))
}

template <class T, class U, int... I, int... J>
MOYE_HOST_DEVICE constexpr auto tuple_cat_impl(T const& t, U const& u, Seq<I...>, Seq<J...>) {
  return make_tuple(get<I>(t)..., get<J>(u)...);
}
template <class T, class U, class... Rest>
MOYE_HOST_DEVICE constexpr auto tuple_cat_values(T const& t, U const& u, Rest const&... rest) {
  auto const both = tuple_cat_impl(t, u, MakeSeq<tuple_size<T>>{}, MakeSeq<tuple_size<U>>{});
  if constexpr (sizeof...(Rest) == 0) {
    return both;
  } else {
    return tuple_cat_values(both, rest...);
  }
}
/// (t0, ..., u0, ..., ...)
template <class... T>
MOYE_HOST_DEVICE constexpr JoinTuples<T...> tuple_cat(T const&... t) {
  if constexpr (is_static<JoinTuples<T...>>) {
    return {};
  } else if constexpr (sizeof...(T) == 1) {
    return (t, ...);
  } else {
    return tuple_cat_values(t...);
  }
}

/// A scalar as a tuple of one, a tuple as itself.
template <class T>
MOYE_HOST_DEVICE constexpr auto wrap(T const& t) {
  if constexpr (is_tuple<T>) {
    return t;
  } else {
    return make_tuple(t);
  }
}

/// A tuple of one as its element, at any depth; anything else as itself.
template <class T>
MOYE_HOST_DEVICE constexpr auto unwrap(T const& t) {
  if constexpr (is_tuple<T> && tuple_size<T> == 1) {
    MOYE_RETURN(unwrap(get<0>(t)))
  } else {
    return t;
  }
}

template <class T, int... I>
MOYE_HOST_DEVICE constexpr auto repeat_impl(T const& t, Seq<I...>) {
  return make_tuple((static_cast<void>(I), t)...);
}
/// (t, t, ..., t), N times
template <int N, class T>
MOYE_HOST_DEVICE constexpr auto repeat(T const& t) {
  MOYE_RETURN(repeat_impl(t, MakeSeq<N>{}))
}

/// t with x at the end until it has N elements.
template <int N, class T, class X>
MOYE_HOST_DEVICE constexpr auto append(T const& t, X const& x) {
  if constexpr (!is_tuple<T>) {
    if constexpr (N == 1) {
      return t;
    } else {
      MOYE_RETURN(append<N>(make_tuple(t), x))
    }
  } else {
    static_assert(tuple_size<T> <= N, "append: the tuple already has more modes");
    if constexpr (tuple_size<T> == N) {
      return t;
    } else {
      MOYE_RETURN(tuple_cat(t, repeat<N - tuple_size<T>>(x)))
    }
  }
}
/// t with x in front until it has N elements.
template <int N, class T, class X>
MOYE_HOST_DEVICE constexpr auto prepend(T const& t, X const& x) {
  if constexpr (!is_tuple<T>) {
    if constexpr (N == 1) {
      return t;
    } else {
      MOYE_RETURN(prepend<N>(make_tuple(t), x))
    }
  } else {
    static_assert(tuple_size<T> <= N, "prepend: the tuple already has more modes");
    if constexpr (tuple_size<T> == N) {
      return t;
    } else {
      MOYE_RETURN(tuple_cat(repeat<N - tuple_size<T>>(x), t))
    }
  }
}

/// (t_0, ..., (t_B, ..., t_{E-1}), ..., t_n): modes [B, E) become one mode.
template <int B, int E, class... T>
MOYE_HOST_DEVICE constexpr auto group(Tuple<T...> const& t) {
  static_assert(0 <= B && B < E && E <= static_cast<int>(sizeof...(T)), "group: no such range of modes");
  MOYE_RETURN(tuple_cat(take<0, B>(t), make_tuple(take<B, E>(t)), take<E, static_cast<int>(sizeof...(T))>(t)))
}

/// t with element I replaced by x.
template <int I, class... T, class X>
MOYE_HOST_DEVICE constexpr auto replace(Tuple<T...> const& t, X const& x) {
  static_assert(0 <= I && I < static_cast<int>(sizeof...(T)), "replace: the tuple has no such element");
  MOYE_RETURN(tuple_cat(take<0, I>(t), make_tuple(x), take<I + 1, static_cast<int>(sizeof...(T))>(t)))
}
/// t with x in place of its first element; x where t is a scalar.
template <class T, class X>
MOYE_HOST_DEVICE constexpr auto replace_front(T const& t, X const& x) {
  if constexpr (is_tuple<T>) {
    MOYE_RETURN(replace<0>(t, x))
  } else {
    return x;
  }
}
/// t with x in place of its last element; x where t is a scalar.
template <class T, class X>
MOYE_HOST_DEVICE constexpr auto replace_back(T const& t, X const& x) {
  if constexpr (is_tuple<T>) {
    MOYE_RETURN(replace<tuple_size<T> - 1>(t, x))
  } else {
    return x;
  }
}
/// t with x before element I, or behind all of them.
template <int I, class... T, class X>
MOYE_HOST_DEVICE constexpr auto insert(Tuple<T...> const& t, X const& x) {
  static_assert(0 <= I && I <= static_cast<int>(sizeof...(T)), "insert: the tuple has no such place");
  MOYE_RETURN(tuple_cat(take<0, I>(t), make_tuple(x), take<I, static_cast<int>(sizeof...(T))>(t)))
}
/// t without element I.
template <int I, class... T>
MOYE_HOST_DEVICE constexpr auto remove(Tuple<T...> const& t) {
  static_assert(0 <= I && I < static_cast<int>(sizeof...(T)), "remove: the tuple has no such element");
  MOYE_RETURN(tuple_cat(take<0, I>(t), take<I + 1, static_cast<int>(sizeof...(T))>(t)))
}
/// t with one more element at the end; append<N> fills up to N.
template <class T, class X>
MOYE_HOST_DEVICE constexpr auto append(T const& t, X const& x) {
  MOYE_RETURN(tuple_cat(wrap(t), make_tuple(x)))
}
/// t with one more element in front; prepend<N> fills up to N.
template <class T, class X>
MOYE_HOST_DEVICE constexpr auto prepend(T const& t, X const& x) {
  MOYE_RETURN(tuple_cat(make_tuple(x), wrap(t)))
}

/// The first leaf.
template <class T>
MOYE_HOST_DEVICE constexpr auto front(T const& t) {
  if constexpr (is_tuple<T>) {
    return front(get<0>(t));
  } else {
    return t;
  }
}
/// The last leaf.
template <class T>
MOYE_HOST_DEVICE constexpr auto back(T const& t) {
  if constexpr (is_tuple<T>) {
    return back(get<tuple_size<T> - 1>(t));
  } else {
    return t;
  }
}

template <int I, class... T>
MOYE_HOST_DEVICE constexpr auto zip_element(T const&... t) {
  return make_tuple(get<I>(t)...);
}
template <int... I, class... T>
MOYE_HOST_DEVICE constexpr auto zip_impl(Seq<I...>, T const&... t) {
  return make_tuple(zip_element<I>(t...)...);
}
/// ((t0, u0, ...), (t1, u1, ...), ...)
template <class T, class... U>
MOYE_HOST_DEVICE constexpr auto zip(T const& t, U const&... u) {
  static_assert(((tuple_size<T> == tuple_size<U>) && ...), "zip: the tuples differ in rank");
  MOYE_RETURN(zip_impl(MakeSeq<tuple_size<T>>{}, wrap(t), wrap(u)...))
}

template <class T>
inline constexpr bool is_nested_tuple = false;
template <class... T>
inline constexpr bool is_nested_tuple<Tuple<T...>> = (is_tuple<T> || ...);

template <class T, class Guide>
MOYE_HOST_DEVICE constexpr auto zip2_by(T const& t, Guide const& guide);

template <class T, class Guide, int... I, int... J>
MOYE_HOST_DEVICE constexpr auto zip2_by_modes(T const& t, Guide const& guide, Seq<I...>, Seq<J...>) {
  auto const pairs = make_tuple(zip2_by(get<I>(t), get<I>(guide))...);
  return make_tuple(make_tuple(get<0>(get<I>(pairs))...),
                    make_tuple(get<1>(get<I>(pairs))..., get<tuple_size<Guide> + J>(t)...));
}
/// Splits pairs: where the guide has a leaf, t has a pair; firsts and seconds are collected, nested like the guide.
/// What t has beyond the guide goes behind the seconds. ((a,b),((c,d),e)) by (x,(y)) is ((a,(c)),(b,(d,e))).
template <class T, class Guide>
MOYE_HOST_DEVICE constexpr auto zip2_by(T const& t, Guide const& guide) {
  if constexpr (is_tuple<Guide>) {
    static_assert(is_tuple<T> && tuple_size<T> >= tuple_size<Guide>,
                  "zip2_by: there are fewer modes than the guide has");
    MOYE_RETURN(zip2_by_modes(t, guide, MakeSeq<tuple_size<Guide>>{}, MakeSeq<tuple_size<T> - tuple_size<Guide>>{}))
  } else {
    static_assert(is_tuple<T> && tuple_size<T> == 2, "zip2_by: a mode is not a (tile, rest) pair");
    return t;
  }
}

/// x at every leaf of t.
template <class T, class X>
MOYE_HOST_DEVICE constexpr auto repeat_like(T const& t, X const& x) {
  MOYE_RETURN(transform_leaf(t, [&](auto const&) { return x; }))
}

/// (v, f(v, t0), f(f(v, t0), t1), ...): as many elements as t, the last one not used. MoYe.jl's escan.
template <class... T, class V, class F>
MOYE_HOST_DEVICE constexpr auto exclusive_scan(Tuple<T...> const& t, V const& v, F const& f) {
  auto const step = [&](auto const& done_and_next, auto const& x) {
    auto const next = get<1>(done_and_next);
    return make_tuple(append(get<0>(done_and_next), next), f(next, x));
  };
  MOYE_RETURN(get<0>(fold(t, make_tuple(make_tuple(), v), step)))
}

}  // namespace moye
