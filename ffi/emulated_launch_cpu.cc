#include "emulated_launch_cpu.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "emulate_cpu.h"
#include "gemm/order.h"

namespace moye {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void write_to_stderr(std::string const& text) {
  [[maybe_unused]] ssize_t const written = write(STDERR_FILENO, text.data(), text.size());  // in one piece
}

/// "42 s", "9 min", "3.5 h"
std::string duration_text(double seconds) {
  char text[32];
  if (seconds < 100) {
    std::snprintf(text, sizeof(text), "%.0f s", seconds);
  } else if (seconds < 100 * 60) {
    std::snprintf(text, sizeof(text), "%.0f min", seconds / 60);
  } else {
    std::snprintf(text, sizeof(text), "%.1f h", seconds / 3600);
  }
  return text;
}

double ceil_div(double n, double divisor) { return std::max(1.0, double(int64_t((n + divisor - 1) / divisor))); }

// ------------------------------------------------------------------------------------------------------- how long

double tiles_of(GemmConfig const& config, GemmArgs const& args) {
  return double(args.batch) * ceil_div(double(args.m), config.tile.m) * ceil_div(double(args.n), config.tile.n);
}

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
using Array = std::unique_ptr<void, FreeMemory>;

/// Zeros, aligned as XLA's buffers on a GPU are.
Array make_array(int64_t bytes) {
  constexpr size_t kAlignment = 256;
  size_t const room = (size_t(bytes) + kAlignment) / kAlignment * kAlignment;
  Array array(std::aligned_alloc(kAlignment, room));
  if (array == nullptr) throw std::bad_alloc();
  std::memset(array.get(), 0, room);
  return array;
}

/// Seconds of a product of dense operands in the call's order; nothing if it cannot be run.
std::optional<double> time_of(GemmCall const& call, emu::Options const& options, int64_t m, int64_t n, int64_t k) {
  GemmConfig const& config = call.gemm->config;
  Order const order = order_of(call.args);
  Dtype const a_dtype = storage_dtype(config.dtype), b_dtype = storage_dtype_of_b(config.dtype);
  Dtype const d_dtype = call.args.d_dtype;
  bool const a_by_k = major_a(order) == Major::k, b_by_k = major_b(order) == Major::k;
  int64_t const sizes[] = {1, m, n, k};
  int64_t const a_strides[] = {m * k, a_by_k ? k : 1, a_by_k ? 1 : m};
  int64_t const b_strides[] = {n * k, b_by_k ? k : 1, b_by_k ? 1 : n};
  int64_t const d_strides[] = {m * n, n, 1};
  Array const a = make_array(m * k * item_bytes(a_dtype)), b = make_array(n * k * item_bytes(b_dtype));
  Array const d = make_array(m * n * item_bytes(d_dtype));
  GemmRequest request{.config = call.gemm->name,
                      .sizes = sizes,
                      .a_strides = a_strides,
                      .b_strides = b_strides,
                      .d_strides = d_strides,
                      .a = {a.get(), m * k, a_dtype},
                      .b = {b.get(), n * k, b_dtype},
                      .d = {d.get(), m * n, d_dtype},
                      .workspace = nullptr,
                      .workspace_bytes = 0};
  if (!gemm_workspace_bytes(request, request.workspace_bytes).ok()) return {};
  Array const workspace = make_array(request.workspace_bytes);
  request.workspace = workspace.get();
  GemmCall small;
  if (!decode_gemm(request, small).ok()) return {};
  emu::Stream stream;
  stream.options = options;
  stream.memory = emulated_memory(request);
  Clock::time_point const begin = Clock::now();
  if (!small.gemm->entry.launch(small.args, &stream).ok()) return {};
  return seconds_since(begin);
}

/// What a product of `tiles` tiles takes: `seconds` at this k, and so much for each further element of it.
struct Speed {
  double tiles, k, seconds, per_k;
};

std::optional<Speed> measure_speed(GemmCall const& call, emu::Options const& options, int64_t parallel_tiles) {
  constexpr double kEnough = 0.03;  // seconds
  GemmConfig const& config = call.gemm->config;
  int64_t const m = int64_t(config.tile.m) * config.cluster.m * parallel_tiles;
  int64_t const n = int64_t(config.tile.n) * config.cluster.n;
  // Twice: the first one makes stacks and shared memory, and the machine may have other things to do.
  auto const time = [&](int64_t k) -> std::optional<double> {
    std::optional<double> const first = time_of(call, options, m, n, k);
    if (!first) return {};
    std::optional<double> const second = time_of(call, options, m, n, k);
    return second ? std::min(*first, *second) : second;
  };
  int64_t const least_k = 2 * int64_t(config.tile.k) * config.cluster.m * config.cluster.n;
  int64_t k = least_k;
  std::optional<double> const least = time(k);
  std::optional<double> most = least;
  do {
    k *= 4;
    most = time(k);
    if (!least || !most) return {};
  } while (*most < kEnough && k < call.args.k);
  double const tiles = double(m / config.tile.m) * double(n / config.tile.n);
  double const per_k = *most > *least ? (*most - *least) / double(k - least_k) : *most / double(k);
  return Speed{tiles, double(k), *most, per_k};
}

// -------------------------------------------------------------------------------------------------- what is said

std::atomic<bool> progress_is_shown{false};  // by one launch at a time

class Narrator final : public emu::Watcher {
 public:
  Narrator(GemmRequest const& request, GemmCall const& call, emu::Stream const& stream,
           std::function<bool()> const& interrupted)
      : interrupted_(interrupted), total_bytes_(double(request.d.elements * item_bytes(request.d.dtype))) {
    if (request.epilogue.wants_preactivation) total_bytes_ *= 2;
    constexpr double kWorthSaying = 10;  // seconds
    expected_ = emulated_seconds(call, stream.options);
    if (expected_ < kWorthSaying) return;
    std::string const words = "the emulator will take about " + duration_text(expected_) + "; Ctrl-C ends it";
    write_to_stderr(gemm_error(request.config, request.sizes, words).message + "\n");
  }

  ~Narrator() override {
    if (!shows_) return;
    write_to_stderr("\r\033[K");
    progress_is_shown = false;
  }

  bool go_on(uint64_t stored_bytes) noexcept override {
    try {
      if (!was_interrupted_) was_interrupted_ = interrupted_();
      show(double(stored_bytes) / std::max(1.0, total_bytes_));
    } catch (...) {
      was_interrupted_ = true;
    }
    return !was_interrupted_;
  }

  bool was_interrupted() const { return was_interrupted_; }
  double expected() const { return expected_; }

 private:
  /// fraction: of the result, written.
  void show(double fraction) {
    constexpr double kPatience = 2;  // seconds
    double const seconds = seconds_since(begin_);
    if (!terminal_ || seconds < kPatience || (!shows_ && progress_is_shown.exchange(true))) return;
    shows_ = true;
    fraction = std::min(fraction, 1.0);
    // What has been measured counts as soon as there is enough of it.
    double const left = fraction > 0.05 ? seconds / fraction - seconds : expected_ - seconds;
    char text[128];
    std::snprintf(text, sizeof(text), "\r\033[Kjax_moye: emulator: %.0f %% of the result after %s", 100 * fraction,
                  duration_text(seconds).c_str());
    write_to_stderr(text + (left > 0 ? ", about " + duration_text(left) + " left" : std::string()));
  }

  std::function<bool()> const& interrupted_;
  double total_bytes_;
  double expected_ = 0;
  Clock::time_point const begin_ = Clock::now();
  bool const terminal_ = isatty(STDERR_FILENO) == 1;
  bool shows_ = false;
  bool was_interrupted_ = false;
};

}  // namespace

double emulated_seconds(GemmCall const& call, emu::Options const& options) {
  // The slowest configs do as many multiply-adds in five seconds, on one OS thread of a machine of 2025.
  constexpr double kWorthMeasuring = 1 << 26;
  if (call.gemm->entry.launch == nullptr) return 0;  // of groups: nobody knows the tiles; others: not measured
  GemmConfig const& config = call.gemm->config;
  double const tiles = tiles_of(config, call.args);
  double const parallel = std::min({tiles, double(std::max(1, options.workers)), double(emu::kMostWorkers)});
  double const work = tiles * config.tile.m * config.tile.n * double(call.args.k);
  if (work / std::max(1.0, parallel) < kWorthMeasuring) return 0;

  using Key = std::tuple<std::string, Order, Dtype, int64_t, emu::Mode, emu::ThreadOrder, bool, bool, int>;
  static std::mutex mutex;
  static auto& known = *new std::map<Key, Speed>;
  Key const key{call.gemm->name, order_of(call.args),  call.args.d_dtype,          int64_t(parallel),      options.mode,
                options.order,   options.detect_races, options.count_transactions, options.multiprocessors};
  std::optional<Speed> speed;
  {
    std::lock_guard lock(mutex);
    if (auto const found = known.find(key); found != known.end()) speed = found->second;
  }
  if (!speed) {
    speed = measure_speed(call, options, int64_t(parallel));
    if (!speed) return 0;
    std::lock_guard lock(mutex);
    known.emplace(key, *speed);
  }
  double const rounds = std::max(1.0, tiles / speed->tiles);
  return rounds * (speed->seconds + speed->per_k * (double(call.args.k) - speed->k));
}

namespace {

/// What a narrator says of a call that is no plain product. d: all of its results.
GemmRequest said_of(std::string_view config, std::span<int64_t const> sizes, Buffer const& d) {
  GemmRequest said{};
  said.config = config;
  said.sizes = sizes;
  said.d = d;
  return said;
}

template <class Launch>
EmulatedLaunch narrated(GemmRequest const& request, GemmCall const& call, emu::Stream& stream,
                        std::function<bool()> const& interrupted, Launch const& launch) {
  Narrator narrator(request, call, stream, interrupted);
  stream.watcher = &narrator;
  Status status = launch();
  stream.watcher = nullptr;
  bool const ended = status.ok() && narrator.was_interrupted();
  if (ended) status.message = "emulator: Ctrl-C has ended the launch; what it has computed is lost";
  return {status, ended, narrator.expected()};
}

}  // namespace

EmulatedLaunch launch_emulated(GemmRequest const& request, GemmCall const& call, emu::Stream& stream,
                               std::function<bool()> const& interrupted) {
  return narrated(request, call, stream, interrupted, [&] { return call.gemm->entry.launch(call.args, &stream); });
}

EmulatedLaunch launch_emulated(GroupedRequest const& request, GroupedCall const& call, emu::Stream& stream,
                               std::function<bool()> const& interrupted) {
  return narrated(request.gemm, {call.gemm, call.args.gemm}, stream, interrupted,
                  [&] { return call.gemm->entry.launch_grouped(call.args, &stream); });
}

EmulatedLaunch launch_emulated(WeightsRequest const& request, WeightsCall const& call, emu::Stream& stream,
                               std::function<bool()> const& interrupted) {
  return narrated(said_of(request.config, request.sizes, request.d), {call.gemm, call.args.gemm}, stream, interrupted,
                  [&] { return call.gemm->entry.launch_weights(call.args, &stream); });
}

EmulatedLaunch launch_emulated(BlockScaledRequest const& request, BlockScaledCall const& call, emu::Stream& stream,
                               std::function<bool()> const& interrupted) {
  return narrated(said_of(request.config, request.sizes, request.d), {call.gemm, call.args.gemm}, stream, interrupted,
                  [&] { return call.gemm->entry.launch_block_scaled(call.args, &stream); });
}

EmulatedLaunch launch_emulated(AttentionRequest const& request, AttentionCall const& call, emu::Stream& stream,
                               std::function<bool()> const& interrupted) {
  Buffer results{nullptr, 0, storage_dtype(call.gemm->config.dtype)};
  for (AttentionPart const& part : attention_parts(request.of_gradients)) {
    if (part.is_result && !is_in_result_before(request, part))
      results.elements += (request.*part.operand).buffer.elements;
  }
  return narrated(said_of(request.config, request.sizes, results), {call.gemm, {}}, stream, interrupted,
                  [&] { return call.gemm->entry.launch_attention(call.args, &stream); });
}

}  // namespace moye
