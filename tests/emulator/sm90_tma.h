// Of sm90.cc: TMA loads, mbarriers, TMA stores.
#pragma once

#include "sm90.h"

namespace {

// ---------------------------------------------------------------------------------------------------------- TMA loads

MOYE_KERNEL(64)
load_ok(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);  // @load_ok
  }
  mbarrier_wait(bar(), 0);
  write_out(out, box());
}

// The load is issued before its bytes are expected, the arrival comes last.
MOYE_KERNEL(64)
expect_late_ok(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);
  if (tid() == 0) {
    tma_load(&maps.in, bar(), box(), 0, 0);
    mbarrier_expect_tx(bar(), kBoxBytes);
  }
  if (tid() == 0) mbarrier_arrive(bar());
  while (!mbarrier_try_wait(bar(), 0)) {
  }
  write_out(out, box());
}

MOYE_KERNEL(64)
load_no_wait(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);  // @load_no_wait load
  }
  sync_threads();
  write_out(out, box());
  mbarrier_wait(bar(), 0);
}

// One thread waits, the others go on without a barrier.
MOYE_KERNEL(64)
load_wait_by_one(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);  // @load_wait_by_one load
    mbarrier_wait(bar(), 0);
  }
  sync_warp();
  write_out(out, box());
}

MOYE_KERNEL(64)
wrong_parity(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);  // @wrong_parity load
  }
  sync_threads();
  mbarrier_wait(bar(), 1);
  write_out(out, box());
}

MOYE_KERNEL(64)
wrong_parity_of_producer(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  make_mbarriers(2);
  if (tid() == 0) {
    mbarrier_wait(bar(1), 0);  // @wrong_parity_of_producer
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);
  }
}

MOYE_KERNEL(64)
expect_too_few(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(0), 0, 0);  // @expect_too_few first
    tma_load(&maps.in, bar(), box(1), 16, 0);
  }
  mbarrier_wait(bar(), 0);
  write_out(out, box(1));
}

MOYE_KERNEL(64)
expect_too_many(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);  // @make_mbarriers
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes + 16);
    tma_load(&maps.in, bar(), box(), 0, 0);
  }
  mbarrier_wait(bar(), 0);  // @expect_too_many
  write_out(out, box());
}

MOYE_KERNEL(64)
expect_twice(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  make_mbarriers(1);
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);  // @expect_twice
  }
}

// A stage is loaded again before all have read it.
MOYE_KERNEL(64)
early_refill(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);
  }
  mbarrier_wait(bar(), 0);
  write_out(out, box());
  sync_warp();
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);  // @early_refill
  }
  mbarrier_wait(bar(), 1);
}

// Plain stores under a TMA load need a fence of the thread that stored or of the one that loads.
template <bool kFence>
MOYE_KERNEL(64)
load_over_stores(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);
  for (uint32_t i = tid(); i < kBox * kBox; i += 64) box()[i] = 7;  // @load_over_stores store
  if (kFence) fence_proxy_async_shared_cta();
  sync_threads();
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);  // @load_over_stores load
  }
  mbarrier_wait(bar(), 0);
  write_out(out, box());
}

MOYE_KERNEL(64)
load_in_flight_at_exit(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  make_mbarriers(1);
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);  // @load_in_flight_at_exit
  }
}

// Boxes that hang over each edge of the tensor, and one outside: zeros there.
MOYE_KERNEL(64)
load_edges_ok(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);
  int const places[5][2] = {{-4, 0}, {0, -4}, {56, 8}, {8, 56}, {64, 100}};
  int wrong = 0;
  for (int i = 0; i < 5; ++i) {
    int const x = places[i][0], y = places[i][1];
    if (tid() == 0) {
      mbarrier_arrive_expect_tx(bar(), kBoxBytes);
      tma_load(&maps.in, bar(), box(), x, y);
    }
    mbarrier_wait(bar(), i % 2);
    for (int w = static_cast<int>(tid()); w < kBox * kBox; w += 64) {
      int const column = x + w % kBox, row = y + w / kBox;
      bool const inside = column >= 0 && column < kSize && row >= 0 && row < kSize;
      wrong += box()[w] != (inside ? static_cast<uint32_t>(row * kSize + column) : 0u);
    }
    sync_threads();
  }
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);
  }
  mbarrier_wait(bar(), 1);
  if (wrong == 0) write_out(out, box());
}

MOYE_KERNEL(64)
load_between_pieces(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  make_mbarriers(1);
  if (tid() == 0) tma_load(&maps.in, bar(), box(), 1, 0);  // @load_between_pieces
}

MOYE_KERNEL(64)
store_before_the_begin(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  if (tid() == 0) tma_store(&maps.out, box(), 0, -1);  // @store_before_the_begin
}

MOYE_KERNEL(64)
load_misaligned(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  make_mbarriers(1);
  if (tid() == 0) tma_load(&maps.in, bar(), box() + 8, 0, 0);  // @load_misaligned
}

MOYE_KERNEL(64)
load_outside_smem(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  make_mbarriers(1);
  if (tid() == 0) tma_load(&maps.in, bar(), box(4), 0, 0);  // @load_outside_smem
}

MOYE_KERNEL(64)
load_rank(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  make_mbarriers(1);
  if (tid() == 0) tma_load(&maps.in, bar(), box(), 0, 0, 0);  // @load_rank
}

MOYE_KERNEL(64)
load_no_map(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  make_mbarriers(1);
  TensorMap const empty = {};
  if (tid() == 0) tma_load(&empty, bar(), box(), 0, 0);  // @load_no_map
}

// ---------------------------------------------------------------------------------------------------------- mbarriers

MOYE_KERNEL(64)
no_fence_after_init(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  if (tid() == 0) mbarrier_init(bar(), 1);  // @no_fence_after_init init
  sync_threads();
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);  // @no_fence_after_init load
  }
}

MOYE_KERNEL(64)
no_barrier_after_init(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  if (tid() == 0) {
    mbarrier_init(bar(), 1);  // @no_barrier_after_init init
    fence_mbarrier_init();
  }
  if (tid() == 40) mbarrier_arrive(bar());  // @no_barrier_after_init arrive
}

MOYE_KERNEL(64)
uninitialized(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  if (tid() == 40) mbarrier_arrive(bar());  // @uninitialized
}

MOYE_KERNEL(64)
overwritten(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  make_mbarriers(1);
  if (tid() == 3) *bar() = 0;
  sync_threads();
  if (tid() == 40) mbarrier_arrive(bar());  // @overwritten
}

MOYE_KERNEL(64)
initialized_twice(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  make_mbarriers(1);
  if (tid() == 0) mbarrier_init(bar(), 2);  // @initialized_twice
}

MOYE_KERNEL(64)
initialized_again_ok(MOYE_GRID_CONSTANT Maps const maps, uint32_t* out) {
  make_mbarriers(1);
  if (tid() == 0) mbarrier_inval(bar());
  make_mbarriers(1);
  if (tid() == 0) {
    mbarrier_arrive_expect_tx(bar(), kBoxBytes);
    tma_load(&maps.in, bar(), box(), 0, 0);
  }
  mbarrier_wait(bar(), 0);
  write_out(out, box());
}

// What is written before an arrival is seen behind the wait, also through several phases.
MOYE_KERNEL(64)
arrive_orders_ok(MOYE_GRID_CONSTANT Maps const, uint32_t* out) {
  make_mbarriers(1, 32);
  for (uint32_t round = 0; round < 4; ++round) {
    if (tid() < 32) {
      for (uint32_t i = tid(); i < kBox * kBox; i += 32) box()[i] = i / kBox * kSize + i % kBox + round - 3;
      mbarrier_arrive(bar());
    } else {
      mbarrier_wait(bar(), round % 2);
      for (uint32_t i = tid() - 32; i < kBox * kBox; i += 32) out[i / kBox * kSize + i % kBox] = box()[i];
    }
    sync_threads();
  }
}

MOYE_KERNEL(64)
arrive_too_early(MOYE_GRID_CONSTANT Maps const, uint32_t* out) {
  make_mbarriers(1, 32);
  if (tid() < 32) {
    mbarrier_arrive(bar());
    box()[tid()] = tid();  // @arrive_too_early store
  } else {
    mbarrier_wait(bar(), 0);
    out[tid()] = box()[tid() - 32];  // @arrive_too_early load
  }
}

MOYE_KERNEL(64)
poll_forever(MOYE_GRID_CONSTANT Maps const, uint32_t*) {
  make_mbarriers(1);
  if (tid() >= 32) {
    while (!mbarrier_try_wait(bar(), 0)) {  // @poll_forever
    }
  }
}

// --------------------------------------------------------------------------------------------------------- TMA stores

// Two boxes are staged one after the other in the same place and stored to rows 0 and 16.
enum class StoreBug { none, no_fence, no_barrier, no_wait, no_barrier_after_wait, no_wait_at_exit, late_fence };

template <StoreBug kBug>
MOYE_KERNEL(64)
store(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  for (uint32_t round = 0; round < 2; ++round) {
    if (round == 1) {
      if (tid() == 0 && kBug != StoreBug::no_wait) tma_store_wait_group_read<0>();
      if (kBug != StoreBug::no_barrier_after_wait) sync_threads();
    }
    for (uint32_t i = tid(); i < kBox * kBox; i += 64)
      box()[i] = (16 * round + i / kBox) * kSize + i % kBox;  // @staging
    if (kBug != StoreBug::no_fence && kBug != StoreBug::late_fence) fence_proxy_async_shared_cta();
    if (kBug != StoreBug::no_barrier) sync_threads();
    if (tid() == 0) {
      if (kBug == StoreBug::late_fence) fence_proxy_async_shared_cta();
      tma_store(&maps.out, box(), 0, static_cast<int>(16 * round));  // @tma_store
      tma_store_commit_group();
    }
  }
  if (tid() == 0 && kBug != StoreBug::no_wait_at_exit) tma_store_wait_group<0>();
}

// Two buffers, one group in flight.
MOYE_KERNEL(64)
store_two_buffers_ok(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  for (uint32_t round = 0; round < 4; ++round) {
    uint32_t* const staging = box(static_cast<int>(round % 2));
    if (tid() == 0) tma_store_wait_group_read<1>();
    sync_threads();
    for (uint32_t i = tid(); i < kBox * kBox; i += 64) staging[i] = (16 * round + i / kBox) * kSize + i % kBox;
    fence_proxy_async_shared_cta();
    sync_threads();
    if (tid() == 0) {
      tma_store(&maps.out, staging, 0, static_cast<int>(16 * round));
      tma_store_commit_group();
    }
  }
  if (tid() == 0) tma_store_wait_group_read<0>();
}

// Two buffers, but as many groups may be in flight.
MOYE_KERNEL(64)
store_wait_off_by_one(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  for (uint32_t round = 0; round < 4; ++round) {
    uint32_t* const staging = box(static_cast<int>(round % 2));
    if (tid() == 0) tma_store_wait_group_read<2>();
    sync_threads();
    for (uint32_t i = tid(); i < kBox * kBox; i += 64) staging[i] = i;  // @off_by_one staging
    fence_proxy_async_shared_cta();
    sync_threads();
    if (tid() == 0) {
      tma_store(&maps.out, staging, 0, static_cast<int>(16 * round));  // @off_by_one store
      tma_store_commit_group();
    }
  }
  if (tid() == 0) tma_store_wait_group_read<0>();
}

// What hangs over the edge is not stored.
MOYE_KERNEL(64)
store_edges_ok(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  int const places[4][2] = {{0, 0}, {60, 0}, {0, 60}, {64, 64}};
  for (auto const& place : places) {
    if (tid() == 0) tma_store_wait_group<0>();
    sync_threads();
    for (int w = static_cast<int>(tid()); w < kBox * kBox; w += 64) {
      box()[w] = static_cast<uint32_t>((place[1] + w / kBox) * kSize + place[0] + w % kBox);
    }
    fence_proxy_async_shared_cta();
    sync_threads();
    if (tid() == 0) {
      tma_store(&maps.out, box(), place[0], place[1]);
      tma_store_commit_group();
    }
  }
  if (tid() == 0) tma_store_wait_group<0>();
}

MOYE_KERNEL(64)
store_to_input(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  if (tid() == 0) tma_store(&maps.in, box(), 0, 0);  // @store_to_input
}

// Both CTAs add to the same box: 3 * in.
MOYE_KERNEL(64)
reduce_ok(MOYE_GRID_CONSTANT Maps const maps, uint32_t*) {
  for (uint32_t i = tid(); i < kBox * kBox; i += 64) box()[i] = (i / kBox * kSize + i % kBox) * (1 + block_idx().x);
  fence_proxy_async_shared_cta();
  sync_threads();
  if (tid() == 0) {
    tma_reduce_add(&maps.out, box(), 0, 0);
    tma_store_commit_group();
    tma_store_wait_group<0>();
  }
}

}  // namespace
