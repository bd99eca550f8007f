// Clusters: CTAs that run at the same time and reach each other's shared memory (PTX ISA, "Special Registers:
// %clusterid ..., "Parallel Synchronization and Communication: barrier.cluster", "Data Movement and Conversion: mapa").
// Every function works without a cluster too: then it is one of one CTA.
#pragma once

#include "moye/arch/builtin.h"
#if !defined(__CUDACC__)
#include "moye/emu/sm90.h"
#endif

namespace moye {

#if defined(__CUDACC__)
namespace detail {

#define MOYE_CLUSTER_DIM3(function, name)                                                 \
  MOYE_DEVICE Dim3 function() {                                                           \
    Dim3 d;                                                                               \
    asm("mov.u32 %0, %%" name ".x;\nmov.u32 %1, %%" name ".y;\nmov.u32 %2, %%" name ".z;" \
        : "=r"(d.x), "=r"(d.y), "=r"(d.z));                                               \
    return d;                                                                             \
  }
MOYE_CLUSTER_DIM3(cluster_nctaid, "cluster_nctaid")
MOYE_CLUSTER_DIM3(cluster_ctaid, "cluster_ctaid")
MOYE_CLUSTER_DIM3(clusterid, "clusterid")
MOYE_CLUSTER_DIM3(nclusterid, "nclusterid")
#undef MOYE_CLUSTER_DIM3

}  // namespace detail
#endif

/// CTAs of a cluster.
MOYE_DEVICE Dim3 cluster_shape() {
#if defined(__CUDACC__)
  return detail::cluster_nctaid();
#else
  return emu::cluster_shape();
#endif
}

/// Index of the cluster in the grid.
MOYE_DEVICE Dim3 cluster_id_in_grid() {
#if defined(__CUDACC__)
  return detail::clusterid();
#else
  return emu::cluster_id_in_grid();
#endif
}

/// Clusters of the grid.
MOYE_DEVICE Dim3 cluster_grid_dims() {
#if defined(__CUDACC__)
  return detail::nclusterid();
#else
  return emu::cluster_grid_dims();
#endif
}

/// Index of the CTA in its cluster.
MOYE_DEVICE Dim3 block_id_in_cluster() {
#if defined(__CUDACC__)
  return detail::cluster_ctaid();
#else
  return emu::block_id_in_cluster();
#endif
}

/// The same as one number, x fastest: what masks and mapa count in.
MOYE_DEVICE uint32_t block_rank_in_cluster() {
#if defined(__CUDACC__)
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return emu::block_rank_in_cluster();
#endif
}

/// Counts the thread at the cluster's barrier; what it did before is ordered before all threads' cluster_wait.
MOYE_DEVICE void cluster_arrive(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
  emu::cluster_arrive(true, loc);
#endif
}

/// Counts the thread and orders nothing but mbarriers behind fence_mbarrier_init.
MOYE_DEVICE void cluster_arrive_relaxed(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#else
  emu::cluster_arrive(false, loc);
#endif
}

/// Waits until all threads of the cluster that have not exited have arrived.
MOYE_DEVICE void cluster_wait(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  emu::cluster_wait(loc);
#endif
}

/// Waits for every thread of the cluster.
MOYE_DEVICE void cluster_sync(MOYE_LOC_ONLY) {
#if defined(__CUDACC__)
  cluster_arrive();
  cluster_wait();
#else
  emu::cluster_arrive(true, loc);
  emu::cluster_wait(loc);
#endif
}

/// The same place in the shared memory of CTA `cta` of the cluster, for plain loads and stores.
template <class T>
MOYE_DEVICE T* mapa(T* smem_ptr, uint32_t cta MOYE_LOC) {
#if defined(__CUDACC__)
  uint64_t remote;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(smem_ptr), "r"(cta));
  return reinterpret_cast<T*>(remote);
#else
  return static_cast<T*>(emu::mapa(smem_ptr, cta, loc));
#endif
}

}  // namespace moye
