// Pipelines: slots of shared memory, called stages, that are filled and used in turn.
//   PipelineState     which stage is next, and in which round: a position in the endless row of fills
//   CpAsyncPipeline   stages that all threads fill with cp.async and read; one group per stage, one barrier per stage
//   TmaPipeline       stages that one thread fills by TMA and others read; two mbarriers per stage
#pragma once

#include "moye/arch/barrier.h"
#include "moye/arch/cluster.h"
#include "moye/arch/config.h"
#include "moye/arch/copy_sm80.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/types.h"

namespace moye {

/// The i-th fill of a pipeline lies in stage i % kStages; the parity of its round, i / kStages, is the phase that an
/// mbarrier of that stage completes.
///   after n increments: index() == n % kStages, phase() == n / kStages % 2
template <int kStages>
class PipelineState {
  static_assert(kStages >= 1, "a pipeline has at least one stage");

 public:
  constexpr PipelineState() = default;
  MOYE_HOST_DEVICE constexpr PipelineState(int index, uint32_t phase) : index_(index), phase_(phase) {}

  MOYE_HOST_DEVICE constexpr int index() const { return index_; }
  MOYE_HOST_DEVICE constexpr uint32_t phase() const { return phase_; }  // 0 or 1

  MOYE_HOST_DEVICE constexpr PipelineState& operator++() {
    ++index_;
    if (index_ == kStages) {
      index_ = 0;
      phase_ ^= 1;
    }
    return *this;
  }
  /// The same as n increments, n >= 0.
  MOYE_HOST_DEVICE constexpr PipelineState& operator+=(int n) {
    unsigned const fills = unsigned(index_) + unsigned(n);
    index_ = int(fills % kStages);
    phase_ ^= fills / kStages % 2;
    return *this;
  }
  friend MOYE_HOST_DEVICE constexpr PipelineState operator+(PipelineState state, int n) { return state += n; }
  friend MOYE_HOST_DEVICE constexpr bool operator==(PipelineState const& x, PipelineState const& y) {
    return x.index_ == y.index_ && x.phase_ == y.phase_;
  }

 private:
  int index_ = 0;
  uint32_t phase_ = 0;
};

/// kStages stages that all threads of a CTA fill with cp.async and read. kStages - 1 of them are on their way or landed
/// while one is read:
///   fill(); ... kStages - 1 of them                 the first stages
///   consumer_wait();                                read() has landed, write() is free
///   for each stage: [fill()] and reads of read(), in any order; consumer_release(); consumer_wait();
/// where fill() is: copies to stage write(), if any are left; producer_commit(). Groups count stages, so that empty
/// ones are committed too. There is no producer_acquire: every thread reads and fills, and consumer_wait is both.
template <int kStages>
class CpAsyncPipeline {
  static_assert(kStages >= 2, "one stage is read while the others fill");

 public:
  static constexpr int kAhead = kStages - 1;  // stages filled before the first is read

  /// The stage that is read, and the one that is filled next.
  MOYE_DEVICE int read() const { return read_.index(); }
  /// Of read(), for an mbarrier of that stage: see PipelineState.
  MOYE_DEVICE uint32_t read_phase() const { return read_.phase(); }
  MOYE_DEVICE int write() const { return write_.index(); }

  /// The copies since the last commit are those of stage write().
  MOYE_DEVICE void producer_commit(MOYE_LOC_ONLY) {
    MOYE_SITE;
    cp_async_commit_group();
    ++write_;
  }
  /// The calling thread has read all it wants of stage read().
  MOYE_DEVICE void consumer_release() { ++read_; }
  /// Behind it, stage read() has landed, every thread's copies of it; and every thread has released the stage before
  /// it, which is write(). All threads of the CTA take part.
  MOYE_DEVICE void consumer_wait(MOYE_LOC_ONLY) const {
    MOYE_SITE;
    cp_async_wait_group<kStages - 2>();
    sync_threads();
  }

 private:
  PipelineState<kStages> read_, write_;
};

/// kStages stages that one thread of a CTA fills by TMA and warps read, as two mbarriers each; it lies in shared
/// memory.
///   full[s]    1 arrival, the producer's, with the bytes to come (arrive.expect_tx)   stage s has landed
///   empty[s]   1 arrival of every warp that reads, of all kCtas CTAs                  stage s may be filled again
/// The i-th fill of a stage completes phase i of its `full`, the release of that fill phase i of its `empty`. A wait
/// names the phase bit, i % 2, which a PipelineState counts. So the law of both sides, each with a state of its own:
///   producer   for each fill: full = producer_acquire(write, bytes); TMA loads of `bytes` that report to full; ++write
///   consumer   for each fill: consumer_wait(read); reads; consumer_release(read) once they are done; ++read
/// kCtas: CTAs of a cluster that multicast into each other's stages. A producer then fills all of them, and waits until
/// all have released the stage.
template <int kStages, int kCtas = 1>
struct TmaPipeline {
  using State = PipelineState<kStages>;

  alignas(8) uint64_t full[kStages];
  alignas(8) uint64_t empty[kStages];

  /// The producer's first state. A new `empty` has completed no phase; to wait for the phase before the first, of bit
  /// 1, returns at once: all stages are free.
  static MOYE_HOST_DEVICE constexpr State producer_start() { return {0, 1}; }

  /// One thread; behind it fence_mbarrier_init and a barrier of all who use the pipeline. warps: of a CTA that read.
  MOYE_DEVICE void init(int warps MOYE_LOC) {
    MOYE_SITE;
    for (int stage = 0; stage < kStages; ++stage) {
      mbarrier_init(&full[stage], 1);
      mbarrier_init(&empty[stage], uint32_t(warps * kCtas));
    }
  }

  /// Behind it consumers have released the stage of `write`, and the mbarrier that is returned expects `bytes`: all
  /// that arrive in this CTA's stage, those that other CTAs multicast among them.
  MOYE_DEVICE uint64_t* producer_acquire(State const& write, uint32_t bytes MOYE_LOC) {
    MOYE_SITE;
    mbarrier_wait(&empty[write.index()], write.phase());
    mbarrier_arrive_expect_tx(&full[write.index()], bytes);
    return &full[write.index()];
  }

  /// Behind it the stage of `read` has landed.
  MOYE_DEVICE void consumer_wait(State const& read MOYE_LOC) {
    MOYE_SITE;
    mbarrier_wait(&full[read.index()], read.phase());
  }

  /// The calling warp has read all it wants of the stage of `read`. All its lanes call: lane i arrives in CTA i.
  MOYE_DEVICE void consumer_release(State const& read, int lane MOYE_LOC) {
    MOYE_SITE;
    if constexpr (kCtas == 1) {
      if (lane == 0) mbarrier_arrive(&empty[read.index()]);
    } else {
      mbarrier_arrive_cluster(&empty[read.index()], uint32_t(lane), lane < kCtas);
    }
  }
};

/// A barrier of all CTAs of the cluster. (barrier.cluster of one CTA would do, and takes longer.)
template <int kCtas>
MOYE_DEVICE void sync_cluster(MOYE_LOC_ONLY) {
  MOYE_SITE;
  if constexpr (kCtas > 1) {
    cluster_sync();
  } else {
    sync_threads();
  }
}

/// The same where nothing but mbarriers, behind fence_mbarrier_init, has to be seen: nobody waits for memory.
template <int kCtas>
MOYE_DEVICE void sync_cluster_behind_init(MOYE_LOC_ONLY) {
  MOYE_SITE;
  if constexpr (kCtas > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    sync_threads();
  }
}

}  // namespace moye
