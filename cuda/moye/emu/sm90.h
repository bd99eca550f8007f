// What moye/arch's wrappers of Hopper's instructions call: clusters, mbarriers, TMA.
#pragma once

#include "moye/emu/emu.h"

namespace moye::emu {

// ------------------------------------------------------------------------------------------------------------ clusters

Dim3 cluster_shape();
Dim3 cluster_id_in_grid();
Dim3 cluster_grid_dims();
Dim3 block_id_in_cluster();
uint32_t block_rank_in_cluster();
/// release: whether memory accesses before it are ordered too.
void cluster_arrive(bool release, Loc loc);
void cluster_wait(Loc loc);
/// The same place in the shared memory of the cluster's CTA of this rank.
void* mapa(void const* smem_ptr, uint32_t rank, Loc loc);

/// True in one lane of the mask, always the same one.
bool elect_sync(uint32_t mask, Loc loc);
/// setmaxnreg: registers per thread from here on. An increase waits until the CTA's file has them.
void setmaxnreg(int registers, bool increase, Loc loc);
void griddepcontrol_wait();

// ----------------------------------------------------------------------------------------------------------- mbarriers

void mbarrier_init(uint64_t* bar, uint32_t count, Loc loc);
void mbarrier_inval(uint64_t* bar, Loc loc);
void mbarrier_arrive(uint64_t* bar, Loc loc);
void mbarrier_expect_tx(uint64_t* bar, uint32_t bytes, bool arrive, Loc loc);
void mbarrier_arrive_cluster(uint64_t* bar, uint32_t rank, Loc loc);
/// Waits until the phase of this parity is complete (true) or nothing else can happen (false).
bool mbarrier_try_wait(uint64_t* bar, uint32_t parity, Loc loc);
void mbarrier_wait(uint64_t* bar, uint32_t parity, Loc loc);
void fence_mbarrier_init(Loc loc);
void fence_proxy_async(Loc loc);

// ----------------------------------------------------------------------------------------------------------------- TMA

/// tensor_map: a moye::TensorMap, filled in by encode_tensor_map (emu/tensor_map.h).
void tma_load(void const* tensor_map, uint64_t* bar, void* smem_dst, int rank, int32_t const* coordinates, Loc loc);
/// mask: the CTAs of the cluster that receive the box.
void tma_load_multicast(void const* tensor_map, uint64_t* bar, void* smem_dst, int rank, int32_t const* coordinates,
                        uint32_t mask, Loc loc);
enum class TmaStoreKind { store, reduce_add };
void tma_store(void const* tensor_map, void const* smem_src, int rank, int32_t const* coordinates, TmaStoreKind kind,
               Loc loc);
void tma_store_commit_group(Loc loc);
/// read: whether to wait only until the sources have been read.
void tma_store_wait_group(int groups_in_flight, bool read, Loc loc);

}  // namespace moye::emu
