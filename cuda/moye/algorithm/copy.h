// Copies of partitioned tensors. Each takes the place in the kernel it was called from, for the emulator's reports.
#pragma once

#include "moye/arch/store.h"
#include "moye/atom/copy_atom.h"
#include "moye/tensor.h"

namespace moye {

// ---------------------------------------------------------------------------------------------------------------------
// Without an atom

/// An element as another type. Conversions of the storage types are explicit; between two of them through float.
template <class D, class S>
MOYE_HOST_DEVICE D convert(S const& s) {
  if constexpr (is_same<D, S>) {
    return s;
  } else if constexpr (requires { static_cast<D>(s); }) {
    return static_cast<D>(s);
  } else {
    return static_cast<D>(static_cast<float>(s));
  }
}

/// Whether groups of n elements of a tensor start at multiples of n elements' bytes.
template <class T>
constexpr bool is_aligned(int n) {
  using Part = RemoveCvref<decltype(layout_part(declval<typename T::LayoutType const&>()))>;
  return decltype(declval<T&>().data())::kAlign % (n * static_cast<int>(sizeof(typename T::Value))) == 0 &&
         MaxAlignment<Part>::value % n == 0;
}

/// The largest number of elements, at most 16 bytes, that one access may move: contiguous and in the same order on both
/// sides, and every group of them aligned, which the pointers' kAlign and the strides prove.
template <class Src, class Dst>
inline constexpr int vector_length = [] {
  using S = RemoveCvref<Src>;
  using D = RemoveCvref<Dst>;
  if constexpr (!is_static<decltype(layout_part(declval<typename S::LayoutType const&>()))> ||
                !is_static<decltype(layout_part(declval<typename D::LayoutType const&>()))>) {
    return 1;
  } else if constexpr (!is_same<typename S::Value, typename D::Value>) {
    return 1;
  } else {
    constexpr int kBytes = static_cast<int>(sizeof(typename S::Value));
    constexpr long long kCommon = static_value<decltype(size(
        max_common_layout(declval<typename S::LayoutType const&>(), declval<typename D::LayoutType const&>())))>;
    constexpr int kSize = size_v<typename S::LayoutType>;
    int n = 1;
    while (n * 2 <= kCommon && kCommon % (n * 2) == 0 && kSize % (n * 2) == 0 && n * 2 * kBytes <= 16 &&
           is_aligned<S>(n * 2) && is_aligned<D>(n * 2)) {
      n *= 2;
    }
    return n;
  }
}();

template <int kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = uint8_t;
};
template <>
struct WordOf<2> {
  using Type = uint16_t;
};
template <>
struct WordOf<4> {
  using Type = uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint64_t;
};
template <>
struct WordOf<16> {
  using Type = uint128_t;
};

/// One store of a vector to a tensor like Dst.
template <class Dst, class Word>
MOYE_DEVICE void store_word(Word const& src, Word& dst) {
  if constexpr (is_same<Word, uint128_t> && is_smem<Dst>) {
    store_shared(src, dst);
  } else if constexpr (is_same<Word, uint128_t> && is_gmem<Dst>) {
    store_global(src, dst);
  } else {
    dst = src;
  }
}

/// dst = src, element by element or, where that is provably the same, in vectors.
template <TensorLike Src, TensorLike Dst>
MOYE_DEVICE void copy(Src const& src, Dst&& dst MOYE_LOC) {
  MOYE_SITE;
  constexpr int kVector = vector_length<Src, Dst>;
  if constexpr (kVector > 1) {
    using Word = typename WordOf<kVector* static_cast<int>(sizeof(typename Src::Value))>::Type;
    // Elements of the common vector first, in the order of the right inverse of dst; the tensors agree on it.
    auto const order = vector_order<kVector>(src.layout(), dst.layout());
    MOYE_UNROLL
    for (int i = 0; i < size<1>(order); ++i) {
      auto const first = order(Int<0>{}, i);
      store_word<Dst>(reinterpret_cast<Word const&>(src(first)), reinterpret_cast<Word&>(dst(first)));
    }
  } else {
    MOYE_UNROLL
    for (int i = 0; i < size(src); ++i) {
      dst(i) = convert<typename RemoveCvref<Dst>::Value>(src(i));
    }
  }
}

/// (element of a vector, vector) -> linear coordinate of both tensors
template <int kVector, class SrcLayout, class DstLayout>
MOYE_HOST_DEVICE constexpr auto vector_order(SrcLayout const& src, DstLayout const& dst) {
  auto const common = composition(max_common_layout(layout_part(src), layout_part(dst)), Int<kVector>{});
  auto const rest = complement(common, size(src));
  return make_layout(common, rest);
}

/// dst = src where pred(i...) says so.
template <class Pred, TensorLike Src, TensorLike Dst>
  requires(!requires { typename Pred::Op; })
MOYE_DEVICE void copy_if(Pred const& pred, Src const& src, Dst&& dst MOYE_LOC) {
  MOYE_SITE;
  MOYE_UNROLL
  for (int i = 0; i < size(src); ++i) {
    if (pred(i)) dst(i) = convert<typename RemoveCvref<Dst>::Value>(src(i));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// With an atom: src and dst are (V,REST...), V one or more vectors of the atom

/// f(i, j, ...) for every coordinate of the modes behind mode 0, all unrolled.
template <int I, class Shape_, class F, class... Index>
MOYE_DEVICE void for_each_rest(Shape_ const& shape, F const& f, Index... index) {
  if constexpr (I == tuple_size<Shape_>) {
    f(index...);
  } else {
    auto const extent = size(get<I>(shape));
    MOYE_UNROLL
    for (int i = 0; i < extent; ++i) {
      for_each_rest<I + 1>(shape, f, index..., i);
    }
  }
}

/// call(src vector, dst vector) for each of the atom's vectors in V. V is the atom's vector or (vector, more of them).
template <class Atom, class Src, class Dst, class Call>
MOYE_DEVICE void for_each_vector(Src const& src, Dst const& dst, Call const& call) {
  if constexpr (size_v<typename Src::LayoutType> == Atom::kNumValSrc) {
    call(src, dst);
  } else {
    using V = decltype(unwrap(declval<Src const&>().shape()));
    static_assert(rank_v<V> == 2, "copy: mode 0 is neither one vector of the atom nor (vector, vectors)");
    static_assert(is_constant<Atom::kNumValSrc, decltype(product(get<0>(declval<V const&>())))>,
                  "copy: the vectors in mode 0 do not have the atom's size");
    MOYE_UNROLL
    for (int v = 0; v < size(get<1>(V{})); ++v) {
      call(src(make_coord(make_coord(_, v))), dst(make_coord(make_coord(_, v))));
    }
  }
}

template <class T>
concept CopyAtomLike = requires { typename T::ValLayoutRef; };

/// Every vector of (V,REST...) with the atom's instruction.
template <CopyAtomLike Atom, TensorLike Src, TensorLike Dst>
MOYE_DEVICE void copy(Atom const&, Src const& src, Dst&& dst MOYE_LOC) {
  MOYE_SITE;
  for_each_rest<1>(wrap(src.shape()), [&](auto... i) {
    for_each_vector<Atom>(src(_, i...), dst(_, i...), [&](auto const& s, auto const& d) { Atom::call(s, d); });
  });
}

/// The same where pred(i, j, ...) says so; i, j, ... are the coordinates of REST.
template <CopyAtomLike Atom, class Pred, TensorLike Src, TensorLike Dst>
MOYE_DEVICE void copy_if(Atom const&, Pred const& pred, Src const& src, Dst&& dst MOYE_LOC) {
  MOYE_SITE;
  for_each_rest<1>(wrap(src.shape()), [&](auto... i) {
    if (pred(i...)) {
      for_each_vector<Atom>(src(_, i...), dst(_, i...), [&](auto const& s, auto const& d) { Atom::call(s, d); });
    }
  });
}

/// One vector of which n elements are read; the others become 0.
template <CopyAtomLike Atom, TensorLike Src, TensorLike Dst>
MOYE_DEVICE void copy_vector_zfill(int n, Src const& s, Dst const& d) {
  constexpr int kVector = Atom::kNumValSrc;
  using Value = typename Dst::Value;
  if constexpr (has_zfill_op<typename Atom::Op>) {
    Atom::call_zfill(s, d, n * static_cast<int>(sizeof(typename Atom::Value)));
  } else if constexpr (kVector == 1) {  // a predicated load, without a branch
    auto value = static_cast<Value>(0);
    if (n > 0) value = s(Int<0>{});
    d(Int<0>{}) = value;
  } else if (n == kVector) {
    Atom::call(s, d);
  } else {
    MOYE_UNROLL
    for (int e = 0; e < kVector; ++e) {
      if (e < n) {
        d(e) = s(e);
      } else {
        d(e) = static_cast<Value>(0);
      }
    }
  }
}

/// The same with zeros where the source ends: valid(i, j, ...) of the vector's elements are read, counted from its
/// first; the others become 0 and their addresses are never read. cp.async does that itself; UniversalCopy loads the
/// vector if all of it is valid and single elements otherwise, and on its way from global to shared memory it loads a
/// batch of vectors before it stores the first of them, so that one latency covers the batch.
template <CopyAtomLike Atom, class Valid, TensorLike Src, TensorLike Dst>
MOYE_DEVICE void copy_zfill(Atom const&, Valid const& valid, Src const& src, Dst&& dst MOYE_LOC) {
  MOYE_SITE;
  constexpr int kVector = Atom::kNumValSrc;
  static_assert(Atom::kThreads == 1, "copy_zfill: only for copies that one thread makes alone");
  static_assert(is_constant<kVector, decltype(product(get<0>(wrap(src.shape()))))>,
                "copy_zfill: mode 0 must be one vector of the atom, because valid() counts elements of one vector");
  if constexpr (!has_zfill_op<typename Atom::Op> && is_gmem<Src> && is_smem<RemoveCvref<Dst>>) {
    static_assert(rank_v<decltype(src.shape())> == 3,
                  "copy_zfill: from global to shared memory only (V,REST,REST) is copied");
    constexpr int kRest0 = decltype(size<1>(src))::value;
    constexpr int kVectors = kRest0 * decltype(size<2>(src))::value;
    constexpr int kBatch = kVectors % 8 == 0 ? 8 : kVectors;
    auto staged = make_tensor<typename Atom::Value>(Layout<Shape<Int<kVector>, Int<kBatch>>>{});  // (V,BATCH)
    // Unrolled, this loop would keep the addresses of all vectors alive across the kernel's main loop: they spill.
    MOYE_NO_UNROLL
    for (int first = 0; first < kVectors; first += kBatch) {
      MOYE_UNROLL
      for (int v = 0; v < kBatch; ++v) {
        int const i = (first + v) % kRest0, j = (first + v) / kRest0;
        copy_vector_zfill<Atom>(valid(i, j), src(_, i, j), staged(_, v));
      }
      MOYE_UNROLL
      for (int v = 0; v < kBatch; ++v) {
        Atom::call(staged(_, v), dst(_, (first + v) % kRest0, (first + v) / kRest0));
      }
    }
  } else {
    for_each_rest<1>(wrap(src.shape()),
                     [&](auto... i) { copy_vector_zfill<Atom>(valid(i...), src(_, i...), dst(_, i...)); });
  }
}

}  // namespace moye
