// TMA: boxes of a tensor between global and shared memory, moved by one thread's instruction (PTX ISA, "Data Movement
// and Conversion: cp.async.bulk.tensor, cp.reduce.async.bulk.tensor, prefetch.tensormap").
//
// A TensorMap (arch/tensor_map.h makes one on the host) describes the tensor and the box; the instruction names the box
// by the coordinates of its first element, c0 along the contiguous mode. Elements outside the tensor are loaded as
// zeros and not stored. In shared memory a box is dense, c0 fastest, its address a multiple of 128 bytes; a swizzle
// exchanges 16-byte pieces by the bits of their absolute address.
//   c0 is a multiple of 16 bytes, and stores have no negative coordinate: an H200 answers anything else with an
//   illegal instruction. A store clips rows in pieces of 16 bytes: where the tensor's rows end within one, it writes
//   beyond them. A load of a box of which nothing lies in the tensor touches the map's first element, and faults where
//   that is no memory. (Seen with tests/gpu/conformance_tma.cu, gemm_check.cu and grouped_check.cu; the manual does not
//   say so.)
//
//   load    tells an mbarrier when its bytes have come (mbarrier_arrive_expect_tx announces them)
//   store   reads shared memory later: fence_proxy_async_shared_cta before it, tma_store_wait_group before the memory
//           is used again
#pragma once

#include "moye/arch/builtin.h"
#if !defined(__CUDACC__)
#include "moye/emu/sm90.h"
#endif

namespace moye {

/// A tensor and a box of it, as the hardware wants them. Kernels take it as MOYE_GRID_CONSTANT const and pass on its
/// address; a copy in local memory does not work.
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

/// What L2 is to do with the data: the policies of createpolicy.fractional.
enum class CacheHint : uint64_t {
  none = 0,  // no operand
  evict_normal = 0x1000000000000000,
  evict_first = 0x12f0000000000000,
  evict_last = 0x14f0000000000000,
};

#if defined(__CUDACC__)
namespace detail {

// Operands: %0 shared address, %1 map, %2 mbarrier (loads only), then the coordinates, then mask and hint.
#define MOYE_TMA_LOAD(rank, modifiers, coordinates, operands, ...)                                            \
  asm volatile("cp.async.bulk.tensor." rank "d.shared::cluster.global.mbarrier::complete_tx::bytes" modifiers \
               " [%0], [%1, {" coordinates "}], [%2]" operands ";" ::"r"(smem_ptr_to_u32(smem)),              \
               "l"(map), "r"(smem_ptr_to_u32(bar)), __VA_ARGS__                                               \
               : "memory")
#define MOYE_TMA_STORE(instruction, modifiers, coordinates, operands, ...)                   \
  asm volatile(instruction ".bulk_group" modifiers " [%1, {" coordinates "}], [%0]" operands \
                           ";" ::"r"(smem_ptr_to_u32(smem)),                                 \
               "l"(map), __VA_ARGS__                                                         \
               : "memory")

struct TmaRank2 {
  MOYE_DEVICE static void load(TensorMap const* map, uint64_t* bar, void* smem, int c0, int c1, CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_LOAD("2", "", "%3, %4", "", "r"(c0), "r"(c1));
    } else {
      MOYE_TMA_LOAD("2", ".L2::cache_hint", "%3, %4", ", %5", "r"(c0), "r"(c1), "l"(hint));
    }
  }

  MOYE_DEVICE static void load_multicast(TensorMap const* map, uint64_t* bar, uint16_t mask, void* smem, int c0, int c1,
                                         CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_LOAD("2", ".multicast::cluster", "%3, %4", ", %5", "r"(c0), "r"(c1), "h"(mask));
    } else {
      MOYE_TMA_LOAD("2", ".multicast::cluster.L2::cache_hint", "%3, %4", ", %5, %6", "r"(c0), "r"(c1), "h"(mask),
                    "l"(hint));
    }
  }

  MOYE_DEVICE static void store(TensorMap const* map, void const* smem, int c0, int c1, CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_STORE("cp.async.bulk.tensor.2d.global.shared::cta", "", "%2, %3", "", "r"(c0), "r"(c1));
    } else {
      MOYE_TMA_STORE("cp.async.bulk.tensor.2d.global.shared::cta", ".L2::cache_hint", "%2, %3", ", %4", "r"(c0),
                     "r"(c1), "l"(hint));
    }
  }

  MOYE_DEVICE static void reduce_add(TensorMap const* map, void const* smem, int c0, int c1) {
    MOYE_TMA_STORE("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add", "", "%2, %3", "", "r"(c0), "r"(c1));
  }
};

struct TmaRank3 {
  MOYE_DEVICE static void load(TensorMap const* map, uint64_t* bar, void* smem, int c0, int c1, int c2,
                               CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_LOAD("3", "", "%3, %4, %5", "", "r"(c0), "r"(c1), "r"(c2));
    } else {
      MOYE_TMA_LOAD("3", ".L2::cache_hint", "%3, %4, %5", ", %6", "r"(c0), "r"(c1), "r"(c2), "l"(hint));
    }
  }

  MOYE_DEVICE static void load_multicast(TensorMap const* map, uint64_t* bar, uint16_t mask, void* smem, int c0, int c1,
                                         int c2, CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_LOAD("3", ".multicast::cluster", "%3, %4, %5", ", %6", "r"(c0), "r"(c1), "r"(c2), "h"(mask));
    } else {
      MOYE_TMA_LOAD("3", ".multicast::cluster.L2::cache_hint", "%3, %4, %5", ", %6, %7", "r"(c0), "r"(c1), "r"(c2),
                    "h"(mask), "l"(hint));
    }
  }

  MOYE_DEVICE static void store(TensorMap const* map, void const* smem, int c0, int c1, int c2, CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_STORE("cp.async.bulk.tensor.3d.global.shared::cta", "", "%2, %3, %4", "", "r"(c0), "r"(c1), "r"(c2));
    } else {
      MOYE_TMA_STORE("cp.async.bulk.tensor.3d.global.shared::cta", ".L2::cache_hint", "%2, %3, %4", ", %5", "r"(c0),
                     "r"(c1), "r"(c2), "l"(hint));
    }
  }

  MOYE_DEVICE static void reduce_add(TensorMap const* map, void const* smem, int c0, int c1, int c2) {
    MOYE_TMA_STORE("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add", "", "%2, %3, %4", "", "r"(c0), "r"(c1),
                   "r"(c2));
  }
};

struct TmaRank4 {
  MOYE_DEVICE static void load(TensorMap const* map, uint64_t* bar, void* smem, int c0, int c1, int c2, int c3,
                               CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_LOAD("4", "", "%3, %4, %5, %6", "", "r"(c0), "r"(c1), "r"(c2), "r"(c3));
    } else {
      MOYE_TMA_LOAD("4", ".L2::cache_hint", "%3, %4, %5, %6", ", %7", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(hint));
    }
  }

  MOYE_DEVICE static void load_multicast(TensorMap const* map, uint64_t* bar, uint16_t mask, void* smem, int c0, int c1,
                                         int c2, int c3, CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_LOAD("4", ".multicast::cluster", "%3, %4, %5, %6", ", %7", "r"(c0), "r"(c1), "r"(c2), "r"(c3),
                    "h"(mask));
    } else {
      MOYE_TMA_LOAD("4", ".multicast::cluster.L2::cache_hint", "%3, %4, %5, %6", ", %7, %8", "r"(c0), "r"(c1), "r"(c2),
                    "r"(c3), "h"(mask), "l"(hint));
    }
  }

  MOYE_DEVICE static void store(TensorMap const* map, void const* smem, int c0, int c1, int c2, int c3,
                                CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_STORE("cp.async.bulk.tensor.4d.global.shared::cta", "", "%2, %3, %4, %5", "", "r"(c0), "r"(c1), "r"(c2),
                     "r"(c3));
    } else {
      MOYE_TMA_STORE("cp.async.bulk.tensor.4d.global.shared::cta", ".L2::cache_hint", "%2, %3, %4, %5", ", %6", "r"(c0),
                     "r"(c1), "r"(c2), "r"(c3), "l"(hint));
    }
  }

  MOYE_DEVICE static void reduce_add(TensorMap const* map, void const* smem, int c0, int c1, int c2, int c3) {
    MOYE_TMA_STORE("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add", "", "%2, %3, %4, %5", "", "r"(c0), "r"(c1),
                   "r"(c2), "r"(c3));
  }
};

struct TmaRank5 {
  MOYE_DEVICE static void load(TensorMap const* map, uint64_t* bar, void* smem, int c0, int c1, int c2, int c3, int c4,
                               CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_LOAD("5", "", "%3, %4, %5, %6, %7", "", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4));
    } else {
      MOYE_TMA_LOAD("5", ".L2::cache_hint", "%3, %4, %5, %6, %7", ", %8", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4),
                    "l"(hint));
    }
  }

  MOYE_DEVICE static void load_multicast(TensorMap const* map, uint64_t* bar, uint16_t mask, void* smem, int c0, int c1,
                                         int c2, int c3, int c4, CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_LOAD("5", ".multicast::cluster", "%3, %4, %5, %6, %7", ", %8", "r"(c0), "r"(c1), "r"(c2), "r"(c3),
                    "r"(c4), "h"(mask));
    } else {
      MOYE_TMA_LOAD("5", ".multicast::cluster.L2::cache_hint", "%3, %4, %5, %6, %7", ", %8, %9", "r"(c0), "r"(c1),
                    "r"(c2), "r"(c3), "r"(c4), "h"(mask), "l"(hint));
    }
  }

  MOYE_DEVICE static void store(TensorMap const* map, void const* smem, int c0, int c1, int c2, int c3, int c4,
                                CacheHint hint) {
    if (hint == CacheHint::none) {
      MOYE_TMA_STORE("cp.async.bulk.tensor.5d.global.shared::cta", "", "%2, %3, %4, %5, %6", "", "r"(c0), "r"(c1),
                     "r"(c2), "r"(c3), "r"(c4));
    } else {
      MOYE_TMA_STORE("cp.async.bulk.tensor.5d.global.shared::cta", ".L2::cache_hint", "%2, %3, %4, %5, %6", ", %7",
                     "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(hint));
    }
  }

  MOYE_DEVICE static void reduce_add(TensorMap const* map, void const* smem, int c0, int c1, int c2, int c3, int c4) {
    MOYE_TMA_STORE("cp.reduce.async.bulk.tensor.5d.global.shared::cta.add", "", "%2, %3, %4, %5, %6", "", "r"(c0),
                   "r"(c1), "r"(c2), "r"(c3), "r"(c4));
  }
};

#undef MOYE_TMA_LOAD
#undef MOYE_TMA_STORE

}  // namespace detail
#endif

/// Loads a box of a tensor of rank 2 into this CTA; its bytes count at `bar`.
MOYE_DEVICE void tma_load(TensorMap const* map, uint64_t* bar, void* smem, int c0, int c1,
                          CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank2::load(map, bar, smem, c0, c1, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1};
  emu::tma_load(map, bar, smem, 2, coordinates, loc);
#endif
}

/// Loads a box into the same place of every CTA of the cluster that `mask` names (bit r: rank r); the whole box counts
/// at the mbarrier in the same place of each of them.
MOYE_DEVICE void tma_load_multicast(TensorMap const* map, uint64_t* bar, uint16_t mask, void* smem, int c0, int c1,
                                    CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank2::load_multicast(map, bar, mask, smem, c0, c1, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1};
  emu::tma_load_multicast(map, bar, smem, 2, coordinates, mask, loc);
#endif
}

/// Stores a box of this CTA; a part of the thread's bulk group.
MOYE_DEVICE void tma_store(TensorMap const* map, void const* smem, int c0, int c1,
                           CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank2::store(map, smem, c0, c1, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1};
  emu::tma_store(map, smem, 2, coordinates, emu::TmaStoreKind::store, loc);
#endif
}

/// Adds a box of this CTA to the tensor, element by element, each addition atomic.
MOYE_DEVICE void tma_reduce_add(TensorMap const* map, void const* smem, int c0, int c1 MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank2::reduce_add(map, smem, c0, c1);
#else
  int32_t const coordinates[] = {c0, c1};
  emu::tma_store(map, smem, 2, coordinates, emu::TmaStoreKind::reduce_add, loc);
#endif
}

// Rank 3.
MOYE_DEVICE void tma_load(TensorMap const* map, uint64_t* bar, void* smem, int c0, int c1, int c2,
                          CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank3::load(map, bar, smem, c0, c1, c2, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1, c2};
  emu::tma_load(map, bar, smem, 3, coordinates, loc);
#endif
}

MOYE_DEVICE void tma_load_multicast(TensorMap const* map, uint64_t* bar, uint16_t mask, void* smem, int c0, int c1,
                                    int c2, CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank3::load_multicast(map, bar, mask, smem, c0, c1, c2, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1, c2};
  emu::tma_load_multicast(map, bar, smem, 3, coordinates, mask, loc);
#endif
}

MOYE_DEVICE void tma_store(TensorMap const* map, void const* smem, int c0, int c1, int c2,
                           CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank3::store(map, smem, c0, c1, c2, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1, c2};
  emu::tma_store(map, smem, 3, coordinates, emu::TmaStoreKind::store, loc);
#endif
}

MOYE_DEVICE void tma_reduce_add(TensorMap const* map, void const* smem, int c0, int c1, int c2 MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank3::reduce_add(map, smem, c0, c1, c2);
#else
  int32_t const coordinates[] = {c0, c1, c2};
  emu::tma_store(map, smem, 3, coordinates, emu::TmaStoreKind::reduce_add, loc);
#endif
}

// Rank 4.
MOYE_DEVICE void tma_load(TensorMap const* map, uint64_t* bar, void* smem, int c0, int c1, int c2, int c3,
                          CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank4::load(map, bar, smem, c0, c1, c2, c3, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1, c2, c3};
  emu::tma_load(map, bar, smem, 4, coordinates, loc);
#endif
}

MOYE_DEVICE void tma_load_multicast(TensorMap const* map, uint64_t* bar, uint16_t mask, void* smem, int c0, int c1,
                                    int c2, int c3, CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank4::load_multicast(map, bar, mask, smem, c0, c1, c2, c3, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1, c2, c3};
  emu::tma_load_multicast(map, bar, smem, 4, coordinates, mask, loc);
#endif
}

MOYE_DEVICE void tma_store(TensorMap const* map, void const* smem, int c0, int c1, int c2, int c3,
                           CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank4::store(map, smem, c0, c1, c2, c3, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1, c2, c3};
  emu::tma_store(map, smem, 4, coordinates, emu::TmaStoreKind::store, loc);
#endif
}

MOYE_DEVICE void tma_reduce_add(TensorMap const* map, void const* smem, int c0, int c1, int c2, int c3 MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank4::reduce_add(map, smem, c0, c1, c2, c3);
#else
  int32_t const coordinates[] = {c0, c1, c2, c3};
  emu::tma_store(map, smem, 4, coordinates, emu::TmaStoreKind::reduce_add, loc);
#endif
}

// Rank 5.
MOYE_DEVICE void tma_load(TensorMap const* map, uint64_t* bar, void* smem, int c0, int c1, int c2, int c3, int c4,
                          CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank5::load(map, bar, smem, c0, c1, c2, c3, c4, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1, c2, c3, c4};
  emu::tma_load(map, bar, smem, 5, coordinates, loc);
#endif
}

MOYE_DEVICE void tma_load_multicast(TensorMap const* map, uint64_t* bar, uint16_t mask, void* smem, int c0, int c1,
                                    int c2, int c3, int c4, CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank5::load_multicast(map, bar, mask, smem, c0, c1, c2, c3, c4, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1, c2, c3, c4};
  emu::tma_load_multicast(map, bar, smem, 5, coordinates, mask, loc);
#endif
}

MOYE_DEVICE void tma_store(TensorMap const* map, void const* smem, int c0, int c1, int c2, int c3, int c4,
                           CacheHint hint = CacheHint::none MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank5::store(map, smem, c0, c1, c2, c3, c4, hint);
#else
  (void)hint;
  int32_t const coordinates[] = {c0, c1, c2, c3, c4};
  emu::tma_store(map, smem, 5, coordinates, emu::TmaStoreKind::store, loc);
#endif
}

MOYE_DEVICE void tma_reduce_add(TensorMap const* map, void const* smem, int c0, int c1, int c2, int c3,
                                int c4 MOYE_LOC) {
#if defined(__CUDACC__)
  detail::TmaRank5::reduce_add(map, smem, c0, c1, c2, c3, c4);
#else
  int32_t const coordinates[] = {c0, c1, c2, c3, c4};
  emu::tma_store(map, smem, 5, coordinates, emu::TmaStoreKind::reduce_add, loc);
#endif
}

/// Makes one group of this thread's stores and reductions since the last commit.
MOYE_DEVICE void tma_store_commit_group(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
  emu::tma_store_commit_group(loc);
#endif
}

/// Waits until of this thread's groups at most the N newest still have to read shared memory. Other threads may then
/// write it after a barrier.
template <int N>
MOYE_DEVICE void tma_store_wait_group_read(MOYE_LOC_ONLY) {
  static_assert(N >= 0, "a number of groups");
#if defined(__CUDACC__)
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#else
  emu::tma_store_wait_group(N, true, loc);
#endif
}

/// Waits until of this thread's groups at most the N newest are incomplete: the others' writes are visible to it.
template <int N>
MOYE_DEVICE void tma_store_wait_group(MOYE_LOC_ONLY) {
  static_assert(N >= 0, "a number of groups");
#if defined(__CUDACC__)
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
#else
  emu::tma_store_wait_group(N, false, loc);
#endif
}

/// Brings the map itself near, ahead of the first instruction that uses it.
MOYE_DEVICE void prefetch_tensor_map(TensorMap const* map) {
#if defined(__CUDACC__)
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#else
  (void)map;
#endif
}

}  // namespace moye
