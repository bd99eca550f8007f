// Of sm90.cc: CTAs of a cluster, which multicast and write to each other.
#pragma once

#include "moye/arch/cluster.h"
#include "sm90.h"

namespace {

// Makes mbarriers 0 to count - 1 and lets the cluster see them.
void make_cluster_mbarriers(int count, uint32_t arrivals = 1) {
  if (tid() == 0) {
    for (int i = 0; i < count; ++i) mbarrier_init(bar(i), arrivals);
    fence_mbarrier_init();
  }
  cluster_arrive_relaxed();
  cluster_wait();
}

// Each CTA loads half of the rows of every tile for both: 2 stages, each refilled when both CTAs have drained it.
// mbarriers full (0, 1), empty (2, 3). CTA r writes what it received where `in` has it, tile by tile.
enum class MulticastBug { none, no_wait_for_peer, half_expected, wrong_mask, no_wait_at_exit };

template <MulticastBug kBug>
MOYE_KERNEL(64)
multicast(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  constexpr int kStages = 2, kTiles = 4;
  constexpr uint32_t kStageBytes = 2 * kBoxBytes;
  constexpr uint32_t kDrained = kBug == MulticastBug::no_wait_for_peer ? 1 : 2;  // arrivals at empty
  uint32_t const rank = block_rank_in_cluster();
  if (tid() == 0) {
    for (int i = 0; i < kStages; ++i) mbarrier_init(bar(i), 1), mbarrier_init(bar(kStages + i), kDrained);
    fence_mbarrier_init();
  }
  cluster_arrive_relaxed();
  cluster_wait();
  if (warp_id() == 0) {
    if (elect_one_sync()) {
      int i = 0;
      for (; i < kTiles; ++i) {
        int const stage = i % kStages;
        mbarrier_wait(bar(kStages + stage), i / kStages % 2 ^ 1);
        mbarrier_arrive_expect_tx(bar(stage), kBug == MulticastBug::half_expected ? kBoxBytes : kStageBytes);
        uint16_t const mask = kBug == MulticastBug::wrong_mask ? 1 : 3;
        int const half = static_cast<int>(rank);
        tma_load_multicast(&maps.in, bar(stage), mask, box(2 * stage + half), 16 * half, 16 * i);  // @multicast
      }
      for (int last = i + kStages; i < last && kBug != MulticastBug::no_wait_at_exit; ++i) {
        mbarrier_wait(bar(kStages + i % kStages), i / kStages % 2 ^ 1);
      }
    }
  } else {
    for (int i = 0; i < kTiles; ++i) {
      int const stage = i % kStages;
      mbarrier_wait(bar(stage), static_cast<uint32_t>(i / kStages % 2));
      for (uint32_t w = lane_id(); w < 2 * kBox * kBox; w += 32) {
        if (i % 2 != static_cast<int>(rank)) continue;
        uint32_t const row = 16 * static_cast<uint32_t>(i) + w / kBox % kBox;
        out[row * kSize + 16 * (w / (kBox * kBox)) + w % kBox] = box(2 * stage)[w];  // @multicast read
      }
      sync_warp();
      bool const arrives = kDrained == 1 ? lane_id() == rank : lane_id() < 2;
      mbarrier_arrive_cluster(bar(kStages + stage), lane_id(), arrives);  // @multicast arrive
    }
  }
}

MOYE_KERNEL(64)
remote_arrive_ok(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_cluster_mbarriers(1, 2);
  if (tid() == 0) {
    mbarrier_arrive_cluster(bar(), 0);
    mbarrier_arrive_cluster(bar(), 1);
  }
  mbarrier_wait(bar(), 0);
  if (block_rank_in_cluster() == 0) {
    if (tid() == 0) {
      mbarrier_init(bar(1), 1);
      fence_mbarrier_init();
    }
    sync_threads();
    if (tid() == 0) {
      mbarrier_arrive_expect_tx(bar(1), kBoxBytes);
      tma_load(&maps.in, bar(1), box(), 0, 0);
    }
    mbarrier_wait(bar(1), 0);
    write_out(out, box());
  }
}

MOYE_KERNEL(64)
remote_arrive_not_waited(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  make_cluster_mbarriers(1);
  if (tid() == 0 && block_rank_in_cluster() == 0) mbarrier_arrive_cluster(bar(), 1);  // @remote_arrive_not_waited
}

MOYE_KERNEL(64)
remote_arrive_before_init(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  make_mbarriers(1);
  if (tid() == 0) mbarrier_arrive_cluster(bar(), block_rank_in_cluster() ^ 1);  // @remote_arrive_before_init
  cluster_sync();
}

MOYE_KERNEL(64)
remote_arrive_no_fence(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  if (tid() == 0) mbarrier_init(bar(), 1);  // @remote_arrive_no_fence init
  cluster_sync();
  if (tid() == 0) mbarrier_arrive_cluster(bar(), block_rank_in_cluster() ^ 1);  // @remote_arrive_no_fence arrive
  cluster_sync();
}

MOYE_KERNEL(64)
remote_arrive_no_cta(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  make_cluster_mbarriers(1);
  if (tid() == 0) mbarrier_arrive_cluster(bar(), 2);  // @remote_arrive_no_cta
}

MOYE_KERNEL(64)
multicast_mask(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  make_cluster_mbarriers(1);
  if (tid() == 0) tma_load_multicast(&maps.in, bar(), 5, box(), 0, 0);  // @multicast_mask
}

// CTA 1 reads what CTA 0 wrote, in CTA 0's memory, and only then CTA 0 exits.
template <bool kRelaxed, bool kLeaveEarly>
MOYE_KERNEL(64)
peer_memory(MOYE_GRID_CONSTANT Maps const, uint32_t* out) {
  uint32_t const rank = block_rank_in_cluster();
  for (uint32_t i = tid(); i < kBox * kBox && rank == 0; i += 64) {
    box()[i] = i / kBox * kSize + i % kBox;  // @peer_memory store
  }
  if (kRelaxed) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    cluster_sync();
  }
  if (rank == 1) write_out(out, mapa(box(), 0));
  if (!kLeaveEarly) cluster_sync();
}

MOYE_KERNEL(64)
cluster_wait_alone(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  cluster_wait();  // @cluster_wait_alone
}

MOYE_KERNEL(64)
cluster_arrive_twice(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  cluster_arrive();
  cluster_arrive();  // @cluster_arrive_twice
}

// Threads that have exited are not waited for.
MOYE_KERNEL(64)
cluster_exit_ok(MOYE_GRID_CONSTANT Maps const, uint32_t* out) {
  Dim3 const shape = cluster_shape(), block = block_id_in_cluster(), grid = cluster_grid_dims();
  bool const right = shape.x == 2 && shape.y == 1 && shape.z == 1 && grid.x == 1 && cluster_id_in_grid().x == 0 &&
                     block.x == block_rank_in_cluster() && block.x == block_idx().x;
  if (tid() < 32) return;
  cluster_sync();
  if (!right || block.x == 0) return;
  for (uint32_t i = lane_id(); i < kBox * kBox; i += 32) {
    out[i / kBox * kSize + i % kBox] = i / kBox * kSize + i % kBox;
  }
}

MOYE_KERNEL(64)
cluster_deadlock(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  if (block_rank_in_cluster() == 0) {
    cluster_sync();  // @cluster_deadlock
  } else if (warp_id() == 0) {
    named_barrier_sync(1, 64);  // @cluster_deadlock peer
  }
}

}  // namespace
