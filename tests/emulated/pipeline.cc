// PipelineState counts as its law says; CpAsyncPipeline hands every stage over whole, in order, and never too early:
// the emulator lets copies land as late as they may and looks for races. Prints what is wrong; exits with 1 if
// anything.
#include "moye/pipeline.h"

#include <cstdio>
#include <vector>

#include "moye/arch/launch.h"
#include "moye/emu/emu.h"

namespace moye {

int failures = 0;

template <int kStages>
void check_state() {
  PipelineState<kStages> state;
  for (int n = 0; n < 5 * kStages; ++n, ++state) {
    PipelineState<kStages> const jumped = PipelineState<kStages>{} + n;
    bool ok = state.index() == n % kStages && state.phase() == unsigned(n / kStages % 2) && jumped == state;
    for (int more = 0; more < 3 * kStages; ++more) ok = ok && state + more == PipelineState<kStages>{} + (n + more);
    if (!ok) {
      std::printf("PipelineState<%d> after %d: index %d, phase %u\n", kStages, n, state.index(), state.phase());
      ++failures;
    }
  }
  constexpr PipelineState<kStages> kProducer = TmaPipeline<kStages>::producer_start();
  static_assert(kProducer.index() == 0 && kProducer.phase() == 1);
}

constexpr int kThreads = 96;

/// out[tile * kThreads + i] = in[tile * kThreads + (i + 37) % kThreads]: each thread reads what another one copied.
template <int kStages>
MOYE_KERNEL(kThreads)
rotate_kernel(uint32_t const* in, uint32_t* out, int tiles) {
  auto* stages = reinterpret_cast<uint32_t*>(smem_base());
  int const thread = thread_idx().x;
  CpAsyncPipeline<kStages> pipeline;
  int next = 0;
  auto const fill = [&] {
    if (next < tiles) {
      SM80_CP_ASYNC_CACHEALWAYS<uint32_t>::copy(in[next * kThreads + thread],
                                                stages[pipeline.write() * kThreads + thread]);
    }
    ++next;
    pipeline.producer_commit();
  };
  for (int stage = 0; stage < pipeline.kAhead; ++stage) fill();
  pipeline.consumer_wait();
  for (int tile = 0; tile < tiles; ++tile) {
    fill();
    out[tile * kThreads + thread] = stages[pipeline.read() * kThreads + (thread + 37) % kThreads];
    pipeline.consumer_release();
    pipeline.consumer_wait();
  }
}

template <int kStages>
void check_pipeline() {
  for (int tiles : {0, 1, kStages - 1, kStages, 3 * kStages + 1}) {
    for (auto mode : {emu::Mode::eager, emu::Mode::lazy, emu::Mode::random}) {
      std::vector<uint32_t> in(tiles * kThreads + 1), out(in.size());
      for (size_t i = 0; i < in.size(); ++i) in[i] = uint32_t(i * 2654435761u);
      emu::Stream stream;
      stream.options.mode = mode;
      stream.options.detect_races = true;
      stream.memory = {{in.data(), in.size() * 4, "in", false}, {out.data(), out.size() * 4, "out", true}};
      Status const status = launch_kernel(rotate_kernel<kStages>,
                                          {.grid = {1}, .block = {kThreads}, .smem_bytes = kStages * kThreads * 4},
                                          &stream, static_cast<uint32_t const*>(in.data()), out.data(), tiles);
      int wrong = 0;
      for (int i = 0; i < tiles * kThreads; ++i) {
        wrong += out[i] != in[i / kThreads * kThreads + (i % kThreads + 37) % kThreads];
      }
      if (!status.ok() || wrong != 0) {
        std::printf("%d stages, %d tiles: %d wrong; %s\n", kStages, tiles, wrong, status.message.c_str());
        ++failures;
      }
    }
  }
}

template <int... kStages>
void check_all() {
  (check_state<kStages>(), ...);
  (check_pipeline<kStages + 1>(), ...);
}

}  // namespace moye

int main() {
  moye::check_all<1, 2, 3, 4, 5, 6>();
  return moye::failures != 0;
}
