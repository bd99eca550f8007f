// What the CTAs of a cluster that share the keys of sm90_attention do in the end.
//   add_parts       rank 0 gets the sums of all ranks, through distributed shared memory, in the order of the ranks
#pragma once

#include "gemm/attention.h"
#include "moye/arch/cluster.h"
#include "moye/arch/math.h"

namespace moye {

/// Rank 0 gets what all ranks have of its rows: sums, which each has relative to its own largest score. Behind it
/// the others must not exit before cluster_wait(): rank 0 reads.
template <class Gemm>
MOYE_DEVICE void add_parts(float (&sums)[Gemm::kHead / 2], typename Gemm::Rows& rows, float scale, int rank,
                           bool has_rows, typename Gemm::SharedStorage& smem, int thread) {
  constexpr int kSplit = Gemm::kSplit, kHead = Gemm::kHead;
  // Each thread's place is that of the same thread of the other ranks.
  float* const of_sums = reinterpret_cast<float*>(smem.k) + thread;
  float* const of_rows = reinterpret_cast<float*>(smem.v) + thread;
  static_assert(sizeof(smem.k) >= 128 * sizeof(sums));
  if (rank > 0) {
    MOYE_UNROLL
    for (int i = 0; i < kHead / 2; ++i) of_sums[i * 128] = sums[i];
    MOYE_UNROLL
    for (int r = 0; r < 2; ++r) of_rows[r * 128] = rows.largest[r], of_rows[(2 + r) * 128] = rows.sum[r];
  }
  cluster_sync();  // all ranks' sums are there
  if (rank == 0 && has_rows) {
    float largest[kSplit][2], most[2] = {rows.largest[0], rows.largest[1]};
    MOYE_UNROLL
    for (int s = 1; s < kSplit; ++s) {
      MOYE_UNROLL
      for (int r = 0; r < 2; ++r) {
        largest[s][r] = mapa(of_rows, s)[r * 128];
        most[r] = larger(most[r], largest[s][r]);
      }
    }
    auto const factor = [&](float of_rank, int r) {
      return of_rank == kNoScore ? 0 : fast_exp2((of_rank - most[r]) * scale);
    };
    float const own[2] = {factor(rows.largest[0], 0), factor(rows.largest[1], 1)};
    MOYE_UNROLL
    for (int i = 0; i < kHead / 2; ++i) sums[i] *= own[i / 2 % 2];
    MOYE_UNROLL
    for (int r = 0; r < 2; ++r) rows.sum[r] *= own[r], rows.largest[r] = most[r];
    MOYE_NO_UNROLL
    for (int s = 1; s < kSplit; ++s) {
      float const* const theirs = mapa(of_sums, s);
      float const* const their_rows = mapa(of_rows, s);
      float const of_rank[2] = {factor(their_rows[0], 0), factor(their_rows[128], 1)};
      MOYE_UNROLL
      for (int i = 0; i < kHead / 2; ++i) sums[i] += theirs[i * 128] * of_rank[i / 2 % 2];
      MOYE_UNROLL
      for (int r = 0; r < 2; ++r) rows.sum[r] += their_rows[(2 + r) * 128] * of_rank[r];
    }
  }
  cluster_arrive();  // in front of what rank 0 stores: the barrier would wait for that, too
}

}  // namespace moye
