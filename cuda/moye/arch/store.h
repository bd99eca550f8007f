// Stores of 16 bytes that stay one instruction. An assignment of 16 bytes is taken apart along the elements that the
// registers hold, and where the address is computed at run time nvcc 13.0 does not join the parts again: two doubles
// become an STS.64 and two STS (tests/moye/test_stores.py; these can go when it passes without them). And a load that
// is one access for the emulator, too.
#pragma once

#include "moye/arch/types.h"

namespace moye {

#if defined(__CUDACC__)

/// dst = src in shared memory. PTX ISA, Data Movement and Conversion Instructions: st.
MOYE_DEVICE void store_shared(uint128_t const& src, uint128_t& dst) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(&dst))),
               "r"(src.x), "r"(src.y), "r"(src.z), "r"(src.w)
               : "memory");
}
/// dst = src in global memory. PTX ISA, Data Movement and Conversion Instructions: st.
MOYE_DEVICE void store_global(uint128_t const& src, uint128_t& dst) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(&dst)), "r"(src.x), "r"(src.y),
               "r"(src.z), "r"(src.w)
               : "memory");
}
/// src in shared memory.
MOYE_DEVICE uint128_t load_shared(uint128_t const& src) { return src; }

#else

// One integer, so that the emulator sees one access: g++ too would store the parts of a struct.
inline void store_shared(uint128_t const& src, uint128_t& dst) {
  __extension__ typedef unsigned __int128 Word;
  reinterpret_cast<Word&>(dst) = detail::bit_cast<Word>(src);
}
inline void store_global(uint128_t const& src, uint128_t& dst) { store_shared(src, dst); }
inline uint128_t load_shared(uint128_t const& src) {
  __extension__ typedef unsigned __int128 Word;
  return detail::bit_cast<uint128_t>(reinterpret_cast<Word const&>(src));
}

#endif

}  // namespace moye
