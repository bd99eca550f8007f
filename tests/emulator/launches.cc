// launches CASE: what a launch takes from the process, how it is ended, and what it leaves behind. Prints what
// test_launches.py expects.
#include <sys/resource.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <new>
#include <thread>
#include <vector>

#include "moye/arch/barrier.h"
#include "moye/arch/copy_sm80.h"
#include "moye/arch/launch.h"
#include "moye/arch/warp.h"
#include "program.h"

namespace {

std::atomic<long> allocations_left{-1};  // before one fails, and then every further one; less than 0: none does

}  // namespace

// Every allocation of the program, the emulator's among them.
void* operator new(size_t bytes) {
  long left = allocations_left.load();
  while (left > 0 && !allocations_left.compare_exchange_weak(left, left - 1)) {
  }
  void* const memory = left == 0 ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

using namespace moye;
using Copy4 = SM80_CP_ASYNC_CACHEALWAYS<uint32_t>;

constexpr uint32_t kWords = 1 << 16;

struct Arrays {
  emu::GuardedBuffer in{kWords * 4}, out{kWords * 4};
  emu::Stream stream;

  explicit Arrays(int workers = 1) {
    for (uint32_t i = 0; i < kWords; ++i) words(in)[i] = i;
    std::memset(out.data(), 0, out.size());
    stream.options.workers = workers;
    stream.memory = {{in.data(), in.size(), "in", false}, {out.data(), out.size(), "out", true}};
  }

  static uint32_t* words(emu::GuardedBuffer& buffer) { return reinterpret_cast<uint32_t*>(buffer.data()); }

  Status run(void (*kernel)(uint32_t const*, uint32_t*), unsigned ctas, unsigned threads) {
    return launch_kernel(kernel, {.grid = {ctas, 1, 1}, .block = {threads, 1, 1}, .smem_bytes = 64 * 1024}, &stream,
                         words(in), words(out));
  }
};

// Copies asynchronously, meets, and stores: what makes the emulator allocate in the middle of a kernel.
MOYE_KERNEL(1024)
reverse(uint32_t const* in, uint32_t* out) {
  emu::Site const site(emu::Loc::here());  // something to be destroyed, where an exception would come by
  auto* const smem = reinterpret_cast<uint32_t*>(smem_base());
  uint32_t const threads = block_dim().x, tid = thread_idx().x;
  in += block_idx().x * threads, out += block_idx().x * threads;
  Copy4::copy(in[tid], smem[tid]);
  cp_async_commit_group();
  cp_async_wait_group<0>();
  sync_threads();
  out[tid] = shfl_xor_sync(kFullWarp, smem[threads - 1 - tid], 1);
}

bool is_reversed(Arrays& arrays, unsigned ctas, unsigned threads) {
  for (unsigned cta = 0; cta < ctas; ++cta) {
    for (unsigned i = 0; i < threads; ++i) {
      if (Arrays::words(arrays.out)[cta * threads + i] != cta * threads + threads - 1 - (i ^ 1)) return false;
    }
  }
  return true;
}

// ------------------------------------------------------------------------------------------------------------- memory

bool is_out_of_memory(Status const& status) { return status.message.find("out of memory") != std::string::npos; }

/// One allocation after the other is the first to fail, on whichever OS thread: each launch says so or is right.
void allocations() {
  int failed = 0;
  for (long first = 0;; ++first) {
    Arrays arrays(3);
    arrays.stream.options.count_transactions = true;
    allocations_left = first;
    Status status;
    try {
      status = arrays.run(reverse, 8, 64);
    } catch (std::bad_alloc const&) {  // not even words
      status.message = "out of memory";
    }
    bool const one_failed = allocations_left == 0;
    allocations_left = -1;
    failed += is_out_of_memory(status);
    bool const good = status.ok() ? is_reversed(arrays, 8, 64) : one_failed && is_out_of_memory(status);
    if (!good) return (void)std::printf("%ld allocations: %s\n", first, status.message.c_str());
    if (!one_failed) break;
  }
  std::printf("%s, %s\n", failed > 20 ? "many failed" : "few failed", "all said so");
}

struct Bytes {
  size_t mapped, resident;
};

Bytes bytes_of_process() {
  size_t mapped = 0, resident = 0, page = size_t(sysconf(_SC_PAGESIZE));
  std::ifstream("/proc/self/statm") >> mapped >> resident;
  return {mapped * page, resident * page};
}

/// A launch whose stacks find no address space, between two that have some.
void address_space() {
  Arrays arrays;
  std::printf("%s\n", arrays.run(reverse, 1, 64).ok() ? "ok" : "failed");
  rlimit limit;
  getrlimit(RLIMIT_AS, &limit);
  rlimit const before = limit;
  limit.rlim_cur = bytes_of_process().mapped + (10 << 20);
  setrlimit(RLIMIT_AS, &limit);
  std::printf("%s\n", arrays.run(reverse, 1, 1024).message.c_str());
  setrlimit(RLIMIT_AS, &before);
  for (unsigned threads : {64, 1024, 64}) {
    Status const status = arrays.run(reverse, 1, threads);
    std::printf("%s\n", status.ok() && is_reversed(arrays, 1, threads) ? "ok" : "failed");
  }
}

size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

std::atomic<size_t> most_threads{0};

MOYE_KERNEL(1024)
count_threads(uint32_t const*, uint32_t*) {
  if (thread_idx().x != 0) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // until the others run
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Threads:", 0) != 0) continue;
    size_t const threads = std::stoul(line.substr(8));
    for (size_t most = most_threads; threads > most && !most_threads.compare_exchange_weak(most, threads);) {
    }
  }
}

/// What a launch on more OS threads than there can be takes, and what it keeps.
void footprint() {
  Arrays arrays(1000);
  size_t const before = mappings();
  Status const status = arrays.run(count_threads, 400, 1024);
  std::printf("%s\n", status.ok() ? "ok" : status.message.c_str());
  std::printf("%zu threads\n", most_threads.load());
  std::printf("%zu mappings\n", mappings() - before);
  std::printf("%zu MB\n", bytes_of_process().resident >> 20);
}

// --------------------------------------------------------------------------------------------------------- arithmetic

MOYE_KERNEL(32)
scale(uint32_t const* in, uint32_t* out) {
  float x;
  uint32_t const i = 32 * block_idx().x + thread_idx().x;
  std::memcpy(&x, in + i, 4);
  x *= 0.5f;
  std::memcpy(out + i, &x, 4);
}

/// A caller who flushes subnormal numbers to zero, as XLA's OS threads do.
void subnormals() {
  for (int workers : {1, 2}) {
    Arrays arrays(workers);
    for (uint32_t i = 0; i < 64; ++i) Arrays::words(arrays.in)[i] = 0x00800000 + i;  // the smallest normal numbers
#if defined(__x86_64__)
    unsigned const before = _mm_getcsr(), flushing = before | 0x8040;
    _mm_setcsr(flushing);
#endif
    Status const status = arrays.run(scale, 2, 32);
#if defined(__x86_64__)
    bool const as_before = _mm_getcsr() == flushing;
    _mm_setcsr(before);
#else
    bool const as_before = true;
#endif
    bool const exact = status.ok() && Arrays::words(arrays.out)[2] == 0x00400001;
    std::printf("%s, %s\n", exact ? "exact" : "flushed", as_before ? "restored" : "lost");
  }
}

// ------------------------------------------------------------------------------------------------------------- watcher

MOYE_KERNEL(64)
endless_loads(uint32_t const*, uint32_t* out) {
  uint32_t volatile* const flag = out;
  out[1 + thread_idx().x] = 1;
  while (*flag != 1) {
  }
}

MOYE_KERNEL(64)
endless_waits(uint32_t const*, uint32_t* out) {
  out[1 + thread_idx().x] = 1;
  for (;;) sync_threads();
}

class Impatient final : public emu::Watcher {
 public:
  explicit Impatient(int patience) : patience_(patience) {}
  bool go_on(uint64_t stored_bytes) noexcept override {
    stored_bytes_ = stored_bytes;
    same_thread_ = same_thread_ && std::this_thread::get_id() == thread_;
    return ++calls_ <= patience_;
  }
  int calls() const { return calls_; }
  uint64_t stored_bytes() const { return stored_bytes_; }
  bool same_thread() const { return same_thread_; }

 private:
  int patience_, calls_ = 0;
  uint64_t stored_bytes_ = 0;
  std::thread::id const thread_ = std::this_thread::get_id();
  bool same_thread_ = true;
};

/// Kernels that never end, but by their watcher, and one that does.
void watcher() {
  for (auto const& kernel : {endless_loads, endless_waits}) {
    Arrays arrays(2);
    arrays.stream.options.detect_races = false;
    arrays.stream.options.watchdog_steps = uint64_t{1} << 60;
    Impatient impatient(2);
    arrays.stream.watcher = &impatient;
    auto const begin = std::chrono::steady_clock::now();
    Status const status = arrays.run(kernel, 2, 64);
    double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    bool const prompt = seconds > 0.25 && seconds < 3;  // a few tenths, unless the machine is busy
    std::printf("%s %s %s\n", status.ok() ? "ended" : status.message.c_str(), prompt ? "in time" : "late",
                impatient.same_thread() ? "here" : "elsewhere");
  }
  Arrays arrays(2);
  Impatient patient(1 << 30);
  arrays.stream.watcher = &patient;
  Status const status = arrays.run(reverse, 8, 64);
  bool const right = status.ok() && is_reversed(arrays, 8, 64);
  std::printf("%s %d call, %d bytes\n", right ? "ok" : "wrong", patient.calls(), int(patient.stored_bytes()));
}

}  // namespace

int main(int argc, char** argv) {
  struct Case {
    char const* name;
    void (*run)();
  };
  Case const cases[] = {{"allocations", allocations},
                        {"address_space", address_space},
                        {"footprint", footprint},
                        {"subnormals", subnormals},
                        {"watcher", watcher}};
  for (Case const& c : cases) {
    if (argc == 2 && std::string(argv[1]) == c.name) return c.run(), 0;
  }
  return 2;
}
