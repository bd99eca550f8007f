// Pointers that know which memory they point to and how far they are aligned.
#pragma once

#include "moye/arch/types.h"
#include "moye/core.h"

namespace moye {

enum class Space { gmem, smem, rmem };

/// A T* into one kind of memory. kAlign, in bytes, is a promise about the address that slicing keeps up to date: copy()
/// vectorizes only where it can prove alignment from it.
template <Space kSpace_, class T, int kAlign_>
struct Pointer {
  using Element = T;
  static constexpr Space kSpace = kSpace_;
  static constexpr int kAlign = kAlign_;

  T* ptr;

  MOYE_HOST_DEVICE constexpr T& operator*() const { return *ptr; }
  template <class Index>
  MOYE_HOST_DEVICE constexpr T& operator[](Index const& index) const {
    if constexpr (is_static_integral<Index>) {
      return ptr[Index::value];
    } else {
      return ptr[index];
    }
  }
  MOYE_HOST_DEVICE constexpr T* get() const { return ptr; }
};

/// The pointer `offset` elements further on, with the alignment that is left when it moves by multiples of kMultiple
/// elements (0: not at all).
template <long long kMultiple, Space kSpace, class T, int kAlign, class Offset>
MOYE_HOST_DEVICE constexpr auto advance(Pointer<kSpace, T, kAlign> const& p, Offset const& offset) {
  constexpr int kLeft = static_cast<int>(gcd_value(kAlign, kMultiple * static_cast<long long>(sizeof(T))));
  return Pointer<kSpace, T, kLeft>{p.ptr + offset};
}

template <class T>
inline constexpr bool is_pointer = false;
template <Space kSpace, class T, int kAlign>
inline constexpr bool is_pointer<Pointer<kSpace, T, kAlign>> = true;

/// Global memory. kAlign: what is known of the address beyond the type's own alignment, in bytes.
template <int kAlign = 0, class T>
MOYE_HOST_DEVICE constexpr auto make_gmem_ptr(T* p) {
  return Pointer<Space::gmem, T, (kAlign > 0 ? kAlign : static_cast<int>(alignof(T)))>{p};
}
/// Shared memory: every tensor in it starts at a multiple of 16 bytes unless kAlign says otherwise.
template <int kAlign = 16, class T>
MOYE_HOST_DEVICE constexpr auto make_smem_ptr(T* p) {
  return Pointer<Space::smem, T, kAlign>{p};
}
/// Registers: an array of the thread's own.
template <int kAlign = 0, class T>
MOYE_HOST_DEVICE constexpr auto make_rmem_ptr(T* p) {
  return Pointer<Space::rmem, T, (kAlign > 0 ? kAlign : static_cast<int>(alignof(T)))>{p};
}

template <class T, int kAlign = 0>
MOYE_HOST_DEVICE auto make_gmem_ptr(void const* p) {
  return make_gmem_ptr<kAlign>(static_cast<T const*>(p));
}
template <class T, int kAlign = 0>
MOYE_HOST_DEVICE auto make_gmem_ptr(void* p) {
  return make_gmem_ptr<kAlign>(static_cast<T*>(p));
}
template <class T, int kAlign = 16>
MOYE_HOST_DEVICE auto make_smem_ptr(void* p) {
  return make_smem_ptr<kAlign>(static_cast<T*>(p));
}

/// The same address as a pointer to NewT; const stays.
template <class NewT, Space kSpace, class T, int kAlign>
MOYE_HOST_DEVICE auto recast_ptr(Pointer<kSpace, T, kAlign> const& p) {
  using Target = CopyConst<T, NewT>;
  return Pointer<kSpace, Target, kAlign>{reinterpret_cast<Target*>(p.ptr)};
}

}  // namespace moye
