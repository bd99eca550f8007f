// Tiles of shared memory for wgmma, and the descriptors by which it finds them (PTX ISA, "Asynchronous Warpgroup Level
// Matrix Shared Memory Layout" and "Matrix Descriptor Format"). jax_moye/layout/gmma.py is the same in Python.
//
// Only tiles made of gmma_smem_atoms have a descriptor. In units of 16 bytes they are one of these (W = 1, 2, 4, 8 for
// rows of 16, 32, 64, 128 bytes; n and k count atoms):
//   K-major   ((8,n),2):((W,SBO),1)            without a swizzle  ((8,n),2):((1,SBO),LBO)
//   MN-major  ((W,n),(8,k)):((1,LBO),(W,SBO))  without a swizzle  ((1,n),(8,k)):((0,SBO),(1,LBO))
#pragma once

#include "moye/arch/mma_sm90.h"
#include "moye/tensor.h"

namespace moye {

/// The smallest layout (MN,K) of elements T that a descriptor describes; tile_to_shape makes tiles of it. kRowBytes: of
/// a swizzled row, 32, 64 or 128; 16 is no swizzle. The tile begins at a multiple of 8 rows.
template <GMMA::Major kMajor, class T, int kRowBytes = 128>
MOYE_HOST_DEVICE constexpr auto gmma_smem_atom() {
  static_assert(kRowBytes == 16 || kRowBytes == 32 || kRowBytes == 64 || kRowBytes == 128,
                "gmma_smem_atom: rows have 16, 32, 64 or 128 bytes");
  constexpr int kBits = kRowBytes == 16 ? 0 : kRowBytes == 32 ? 1 : kRowBytes == 64 ? 2 : 3;
  constexpr auto kSwizzle = upcast<static_cast<int>(sizeof(T))>(Swizzle<kBits, 4, 3>{});
  using Row = Int<kRowBytes / static_cast<int>(sizeof(T))>;
  if constexpr (kMajor == GMMA::Major::K) {
    return composition(kSwizzle, Layout<Shape<_8, Row>, Stride<Row, _1>>{});
  } else {
    return composition(kSwizzle, Layout<Shape<Row, _8>, Stride<_1, Row>>{});
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Descriptors

/// The 64 bits: start address, LBO and SBO in units of 16 bytes, and the swizzle. The base offset is 0.
struct GmmaDescriptor {
  uint64_t bits;
};

/// A descriptor but for the start address; offsets in units of 16 bytes.
struct GmmaFields {
  int leading_byte_offset, stride_byte_offset;
  int layout_type;  // 0: no swizzle, 1: 128 bytes, 2: 64 bytes, 3: 32 bytes

  MOYE_HOST_DEVICE constexpr uint64_t bits() const {
    return static_cast<uint64_t>(leading_byte_offset) << 16 | static_cast<uint64_t>(stride_byte_offset) << 32 |
           static_cast<uint64_t>(layout_type) << 62;
  }
};

namespace detail {

template <class L>
inline constexpr int gmma_stride = [] {
  using Flat = RemoveCvref<decltype(coalesce(declval<L const&>()))>;
  using Stride_ = RemoveCvref<decltype(declval<Flat const&>().stride())>;
  static_assert(!is_tuple<Stride_>,
                "make_gmma_desc: a mode of the tile needs more than one stride; tile_to_shape of a "
                "gmma_smem_atom always has a descriptor");
  return static_value<decltype(size(declval<Flat const&>()))> == 1 ? 0 : static_cast<int>(static_value<Stride_>);
}();

/// A mode cut into blocks of kExtent: the strides in them and between them.
template <int kExtent, class L>
struct GmmaBlocks {
  using Mode = RemoveCvref<decltype(coalesce(declval<L const&>()))>;
  static constexpr int kSize = static_cast<int>(static_value<decltype(size(declval<Mode const&>()))>);
  static constexpr int kInner = [] {
    if constexpr (kSize <= kExtent) {
      return gmma_stride<Mode>;
    } else {
      static_assert(kSize % kExtent == 0, "make_gmma_desc: the tile is not made of whole gmma_smem_atoms");
      return gmma_stride<RemoveCvref<decltype(mode<0>(logical_divide(Mode{}, Int<kExtent>{})))>>;
    }
  }();
  static constexpr int kOuter = [] {
    if constexpr (kSize <= kExtent) {
      return 0;
    } else {
      return gmma_stride<RemoveCvref<decltype(mode<1>(logical_divide(Mode{}, Int<kExtent>{})))>>;
    }
  }();
  /// Whether the blocks are what the instruction takes for granted.
  static MOYE_HOST_DEVICE constexpr bool has(int stride) { return kInner == stride || kSize == 1 || kExtent == 1; }
};

}  // namespace detail

/// The fields for what one instruction reads: a layout (MN,K) of elements T with 32 bytes along K.
template <GMMA::Major kMajor, class T, class L>
MOYE_HOST_DEVICE constexpr GmmaFields gmma_fields(L const&) {
  static_assert(is_static<decltype(layout_part(declval<L const&>()))> && rank_v<L> == 2,
                "make_gmma_desc: the tile is not a static (MN,K)");
  constexpr int kSize = static_cast<int>(sizeof(T)), kUnits = 16 / kSize;
  static_assert(kMajor == GMMA::Major::K || kSize == 2, "make_gmma_desc: only 16-bit elements may be MN-major");
  using Plain = RemoveCvref<decltype(layout_part(declval<L const&>()))>;
  static_assert(static_value<decltype(size<1>(declval<Plain const&>()))> * kSize == 32,
                "make_gmma_desc: one instruction reads 32 bytes along K");
  constexpr int kBits = [] {
    if constexpr (is_composed<L>) {
      using Swizzle_ = RemoveCvref<decltype(downcast<kSize>(declval<L const&>().swizzle()))>;
      static_assert(Swizzle_::kBits == 0 || (Swizzle_::kBits <= 3 && Swizzle_::kBase == 4 && Swizzle_::kShift == 3),
                    "make_gmma_desc: wgmma has the swizzles of gmma_smem_atom alone");
      return Swizzle_::kBits;
    } else {
      return 0;
    }
  }();
  constexpr int kWidth = 1 << kBits;  // of a row, in units of 16 bytes
  using MN = RemoveCvref<decltype(upcast<kUnits>(mode<0>(Plain{})))>;
  using K = RemoveCvref<decltype(upcast<kUnits>(mode<1>(Plain{})))>;
  constexpr int kType = (4 - kBits) % 4;
  if constexpr (kMajor == GMMA::Major::K) {
    static_assert(static_value<decltype(size(declval<K const&>()))> == 2,
                  "make_gmma_desc: the elements along K are not 16 contiguous bytes");
    using Rows = detail::GmmaBlocks<8, MN>;
    static_assert(Rows::has(kWidth), "make_gmma_desc: rows do not lie one swizzled row apart");
    constexpr int kColumn = detail::gmma_stride<K>;
    static_assert(kBits == 0 || kColumn == 1, "make_gmma_desc: the two halves along K are not neighbours");
    return {kColumn, Rows::kOuter, kType};
  } else {
    static_assert(static_value<decltype(size(declval<MN const&>()))> * kUnits ==
                      static_value<decltype(size<0>(declval<Plain const&>()))>,
                  "make_gmma_desc: the elements along MN are not 16 contiguous bytes");
    using Rows = detail::GmmaBlocks<kWidth, MN>;
    using Columns = detail::GmmaBlocks<8, K>;
    static_assert(kBits == 0 || Rows::has(1), "make_gmma_desc: the 16 bytes of a row are not neighbours");
    static_assert(Columns::has(kWidth), "make_gmma_desc: columns do not lie one swizzled row apart");
    return kBits == 0 ? GmmaFields{Columns::kOuter, Rows::kOuter, kType}
                      : GmmaFields{Rows::kOuter, Columns::kOuter, kType};
  }
}

/// The descriptor of a tile (MN,K) of shared memory, as one instruction reads it. The whole tile that it is part of
/// begins at a multiple of 8 swizzled rows.
template <GMMA::Major kMajor, TensorLike T>
MOYE_DEVICE GmmaDescriptor make_gmma_desc(T const& tile MOYE_LOC) {
  MOYE_SITE;
  static_assert(is_smem<T>, "make_gmma_desc: the tile is not in shared memory");
  using Value = typename T::Value;
  constexpr uint64_t kFields = gmma_fields<kMajor, Value>(typename T::LayoutType{}).bits();
  Value const* begin = tile.data().get();
  if constexpr (is_composed<typename T::LayoutType>) begin += tile.layout().offset();
  return {kFields | (smem_ptr_to_u32(begin) & 0x3ffffu) >> 4};
}

/// Stands where a pointer would in a tensor of descriptors: an offset, in units of 16 bytes, is added to the start
/// address.
struct DescriptorIterator {
  using Element = GmmaDescriptor;
  static constexpr bool kIsDescriptor = true;
  uint64_t bits;

  /// The low word only: addresses in shared memory do not carry out of their 14 bits.
  template <class Offset>
  MOYE_HOST_DEVICE constexpr GmmaDescriptor operator[](Offset const& offset) const {
    auto const low = static_cast<uint32_t>(bits) + static_cast<uint32_t>(static_cast<int>(offset));
    return {(bits & 0xffffffff00000000u) | low};
  }
};
template <long long kMultiple, class Offset>
MOYE_HOST_DEVICE constexpr auto advance(DescriptorIterator const& it, Offset const& offset) {
  return DescriptorIterator{it[offset].bits};
}

/// Where the descriptors of a partitioned layout ((MN,K),RestMN,RestK,...) of elements T begin, in units of 16 bytes:
/// (1,RestMN,RestK,...). The swizzle changes nothing: the hardware applies it to the sum.
template <class T, class L>
MOYE_HOST_DEVICE constexpr auto gmma_desc_layout(L const& partitioned) {
  auto const rest = upcast<16 / static_cast<int>(sizeof(T))>(take<1, rank_v<L>>(layout_part(partitioned)));
  return make_layout(tuple_cat(make_tuple(Int<1>{}), rest.shape()), tuple_cat(make_tuple(Int<0>{}), rest.stride()));
}

/// The descriptors of a partitioned tensor of shared memory ((MN,K),RestMN,RestK,...): (1,RestMN,RestK,...).
template <GMMA::Major kMajor, TensorLike T>
MOYE_DEVICE auto make_gmma_desc_fragment(T const& partitioned MOYE_LOC) {
  MOYE_SITE;
  auto const first = make_view(partitioned.data(), mode<0>(partitioned.layout()));
  return make_view(DescriptorIterator{make_gmma_desc<kMajor>(first).bits},
                   gmma_desc_layout<typename T::Value>(partitioned.layout()));
}

}  // namespace moye
