// Uses every wrapper of Hopper's data movement once, to be compiled by nvcc for sm_90a.
#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/device.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/register.h"
#include "moye/arch/tensor_map.h"
#include "moye/arch/tma.h"
#include "moye/arch/warp.h"

namespace {

using namespace moye;

struct Maps {
  TensorMap rank2, rank3, rank4, rank5;
};

MOYE_KERNEL(384)
kernel(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  auto* const bar = reinterpret_cast<uint64_t*>(smem_base() + 64 * 1024);
  auto* const smem = smem_base();
  uint32_t const warp = warp_id();
  if (warp < 4) {
    warpgroup_reg_dealloc<40>();
  } else {
    warpgroup_reg_alloc<232>();
  }
  griddepcontrol_wait();
  if (warp == 0 && elect_one_sync()) {
    prefetch_tensor_map(&maps.rank2);
    mbarrier_init(bar, 2);
    fence_mbarrier_init();
    fence_proxy_async();
  }
  cluster_arrive_relaxed();
  cluster_wait();
  auto const hint = CacheHint::evict_first;
  uint16_t const mask = 3;
  if (warp == 0 && elect_one_sync()) {
    mbarrier_expect_tx(bar, 1024);
    mbarrier_arrive_expect_tx(bar, 1024);
    tma_load(&maps.rank2, bar, smem, 1, 2);
    tma_load(&maps.rank3, bar, smem, 1, 2, 3);
    tma_load(&maps.rank4, bar, smem, 1, 2, 3, 4);
    tma_load(&maps.rank5, bar, smem, 1, 2, 3, 4, 5);
    tma_load(&maps.rank2, bar, smem, 1, 2, hint);
    tma_load(&maps.rank3, bar, smem, 1, 2, 3, hint);
    tma_load(&maps.rank4, bar, smem, 1, 2, 3, 4, hint);
    tma_load(&maps.rank5, bar, smem, 1, 2, 3, 4, 5, hint);
    tma_load_multicast(&maps.rank2, bar, mask, smem, 1, 2);
    tma_load_multicast(&maps.rank3, bar, mask, smem, 1, 2, 3);
    tma_load_multicast(&maps.rank4, bar, mask, smem, 1, 2, 3, 4);
    tma_load_multicast(&maps.rank5, bar, mask, smem, 1, 2, 3, 4, 5);
    tma_load_multicast(&maps.rank2, bar, mask, smem, 1, 2, hint);
    tma_load_multicast(&maps.rank3, bar, mask, smem, 1, 2, 3, hint);
    tma_load_multicast(&maps.rank4, bar, mask, smem, 1, 2, 3, 4, hint);
    tma_load_multicast(&maps.rank5, bar, mask, smem, 1, 2, 3, 4, 5, hint);
  }
  mbarrier_arrive(bar);
  mbarrier_arrive_cluster(bar, block_rank_in_cluster() ^ 1);
  mbarrier_arrive_cluster(bar, thread_idx().x % 32, thread_idx().x % 32 < 2);
  if (!mbarrier_try_wait(bar, 0)) mbarrier_wait(bar, 0);
  fence_proxy_async_shared_cta();
  sync_threads();
  if (warp == 0 && elect_one_sync()) {
    tma_store(&maps.rank2, smem, 1, 2);
    tma_store(&maps.rank3, smem, 1, 2, 3);
    tma_store(&maps.rank4, smem, 1, 2, 3, 4);
    tma_store(&maps.rank5, smem, 1, 2, 3, 4, 5);
    tma_store(&maps.rank2, smem, 1, 2, hint);
    tma_store(&maps.rank3, smem, 1, 2, 3, hint);
    tma_store(&maps.rank4, smem, 1, 2, 3, 4, hint);
    tma_store(&maps.rank5, smem, 1, 2, 3, 4, 5, hint);
    tma_reduce_add(&maps.rank2, smem, 1, 2);
    tma_reduce_add(&maps.rank3, smem, 1, 2, 3);
    tma_reduce_add(&maps.rank4, smem, 1, 2, 3, 4);
    tma_reduce_add(&maps.rank5, smem, 1, 2, 3, 4, 5);
    tma_store_commit_group();
    tma_store_wait_group_read<1>();
    tma_store_wait_group<0>();
    mbarrier_inval(bar);
  }
  griddepcontrol_launch_dependents();
  auto* const words = reinterpret_cast<uint32_t*>(smem);
  Dim3 const shape = cluster_shape(), id = cluster_id_in_grid(), dims = cluster_grid_dims(),
             block = block_id_in_cluster();
  out[thread_idx().x] = *mapa(words + thread_idx().x, 1) + shape.x + id.y + dims.z + block.x;
  cluster_sync();
  cluster_arrive();
  cluster_wait();
}

}  // namespace

Status run(StreamHandle stream, TensorMapSpec const& spec, uint32_t* out) {
  Maps maps;
  int count = 0;
  if (Status status = make_tensor_map(&maps.rank2, spec); !status.ok()) return status;
  if (Status status = device_multiprocessors(stream, &count); !status.ok()) return status;
  LaunchConfig const config{.grid = {static_cast<unsigned>(count), 1, 1},
                            .block = {384, 1, 1},
                            .cluster = {2, 1, 1},
                            .smem_bytes = 65 * 1024,
                            .programmatic = true};
  if (Status status = max_active_blocks(kernel, 384, config.smem_bytes, stream, &count); !status.ok()) return status;
  if (Status status = max_active_clusters(kernel, config, stream, &count); !status.ok()) return status;
  if (Status status = prepare_kernel(kernel, config.smem_bytes); !status.ok()) return status;
  return launch_kernel(kernel, config, stream, maps, out);
}
