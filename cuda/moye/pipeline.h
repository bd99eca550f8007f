// Pipelines: slots of shared memory, called stages, that are filled and used in turn.
//   PipelineState     which stage is next, and in which round: a position in the endless row of fills
//   CpAsyncPipeline   stages that cp.async fills; one group per stage, one barrier per stage
#pragma once

#include "moye/arch/barrier.h"
#include "moye/arch/config.h"
#include "moye/arch/copy_sm80.h"
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

/// A producer's first state where it waits on mbarriers that say "empty": those of a new pipeline have completed no
/// phase, and a wait for the phase before the first one returns at once.
template <int kStages>
MOYE_HOST_DEVICE constexpr PipelineState<kStages> producer_start() {
  return {0, 1};
}

/// kStages stages that all threads of a CTA fill with cp.async and read. kStages - 1 of them are on their way or landed
/// while one is read:
///   fill(); ... kStages - 1 of them                 the first stages
///   wait();                                         read() has landed, write() is free
///   for each stage: [fill()] and reads of read(), in any order; release(); wait();
/// where fill() is: copies to stage write(), if any are left; commit(). Groups count stages, so that empty ones are
/// committed too.
template <int kStages>
class CpAsyncPipeline {
  static_assert(kStages >= 2, "one stage is read while the others fill");

 public:
  static constexpr int kAhead = kStages - 1;  // stages filled before the first is read

  /// The stage that is read, and the one that is filled next.
  MOYE_DEVICE int read() const { return read_.index(); }
  MOYE_DEVICE int write() const { return write_.index(); }

  /// The copies since the last commit are those of stage write().
  MOYE_DEVICE void commit(MOYE_LOC_ONLY) {
    MOYE_SITE;
    cp_async_commit_group();
    ++write_;
  }
  /// The calling thread has read all it wants of stage read().
  MOYE_DEVICE void release() { ++read_; }
  /// Behind it, stage read() has landed, every thread's copies of it; and every thread has released the stage before
  /// it, which is write(). All threads of the CTA take part.
  MOYE_DEVICE void wait(MOYE_LOC_ONLY) const {
    MOYE_SITE;
    cp_async_wait_group<kStages - 2>();
    sync_threads();
  }

 private:
  PipelineState<kStages> read_, write_;
};

}  // namespace moye
