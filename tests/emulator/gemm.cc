// gemm BUG M N K [option=value ...]      one GEMM: prints its report, "ok", or how many numbers are wrong; and counters
// gemm benchmark SIZE REPEATS [...]      the least CPU time of a launch, in ms
// gemm two_threads M N K [...]           launches from two host threads at once, one of which always fails
#include "gemm.h"

#include <algorithm>
#include <ctime>
#include <thread>
#include <vector>

#include "program.h"

namespace {

using moye::bfloat16_t;
using moye::emu::GuardedBuffer;
using moye::emu::Stream;

moye::Status run(Bug bug, Problem const& problem, Stream* stream) {
  switch (bug) {
#define MOYE_CASE(name) \
  case Bug::name:       \
    return launch_gemm<4, Bug::name>(problem, stream)
    MOYE_CASE(none);
    MOYE_CASE(no_wait);
    MOYE_CASE(wait_off_by_one);
    MOYE_CASE(no_barrier);
    MOYE_CASE(refill_before_barrier);
    MOYE_CASE(overwrite_in_flight);
    MOYE_CASE(stage_out_of_range);
    MOYE_CASE(row_not_predicated);
    MOYE_CASE(column_not_predicated);
    MOYE_CASE(wrong_swizzle);
    MOYE_CASE(tile_overlap);
    MOYE_CASE(write_operand);
#undef MOYE_CASE
  }
  return {"no such bug"};
}

constexpr char const* kBugNames[] = {
    "none",
    "no_wait",
    "wait_off_by_one",
    "no_barrier",
    "refill_before_barrier",
    "overwrite_in_flight",
    "stage_out_of_range",
    "row_not_predicated",
    "column_not_predicated",
    "wrong_swizzle",
    "tile_overlap",
    "write_operand",
};

// Guarded operands of one problem, with small integers in them.
struct Operands {
  GuardedBuffer a, b, d;
  Problem problem;

  Operands(int m, int n, int k) : a(size_t{2} * m * k), b(size_t{2} * n * k), d(size_t{4} * m * n) {
    auto fill = [](GuardedBuffer& buffer, unsigned seed) {
      auto* const values = reinterpret_cast<bfloat16_t*>(buffer.data());
      for (size_t i = 0; i < buffer.size() / 2; ++i) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = bfloat16_t(static_cast<float>(seed >> 16) / 65536.0f * 5 - 2 >= 0 ? float(seed >> 24 & 1) : -1.0f);
      }
    };
    fill(a, 1);
    fill(b, 2);
    problem = {reinterpret_cast<bfloat16_t const*>(a.data()),
               reinterpret_cast<bfloat16_t const*>(b.data()),
               reinterpret_cast<float*>(d.data()),
               m,
               n,
               k};
  }

  std::vector<moye::emu::Memory> memory() const {
    return {{a.data(), a.size(), "A", false}, {b.data(), b.size(), "B", false}, {d.data(), d.size(), "D", true}};
  }

  int wrong() const {
    std::vector<int> av(a.size() / 2), bv(b.size() / 2);
    for (size_t i = 0; i < av.size(); ++i) av[i] = static_cast<int>(static_cast<float>(problem.a[i]));
    for (size_t i = 0; i < bv.size(); ++i) bv[i] = static_cast<int>(static_cast<float>(problem.b[i]));
    int count = 0;
    for (int i = 0; i < problem.m; ++i) {
      for (int j = 0; j < problem.n; ++j) {
        int sum = 0;
        for (int k = 0; k < problem.k; ++k) sum += av[i * problem.k + k] * bv[j * problem.k + k];
        count += problem.d[i * problem.n + j] != static_cast<float>(sum);
      }
    }
    return count;
  }
};

int run_one(Bug bug, int m, int n, int k, moye::emu::Options const& options) {
  Operands operands(m, n, k);
  Stream stream{options, operands.memory(), {}};
  moye::Status const status = run(bug, operands.problem, &stream);
  if (!status.ok()) {
    std::printf("%s\n", status.message.c_str());
    return 0;
  }
  std::string const damage = operands.a.damage() + operands.b.damage() + operands.d.damage();
  int const wrong = operands.wrong();
  if (!damage.empty()) {
    std::printf("%s\n", damage.c_str());
  } else if (wrong != 0) {
    std::printf("%d of %d wrong\n", wrong, m * n);
  } else {
    std::printf("ok\n");
  }
  print_counters(stream.counters);
  return 0;
}

int benchmark(int size, int repeats, moye::emu::Options const& options) {
  Operands operands(size, size, size);
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    Stream stream{options, operands.memory(), {}};
    std::clock_t const start = std::clock();
    if (!run(Bug::none, operands.problem, &stream).ok()) return 1;
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  std::printf("%.2f\n", best * 1e3);
  return 0;
}

int two_threads(int m, int n, int k, moye::emu::Options const& options) {
  int good = 0, caught = 0;
  std::thread first([&] {
    for (int i = 0; i < 10; ++i) {
      Operands operands(m, n, k);
      Stream stream{options, operands.memory(), {}};
      good += run(Bug::none, operands.problem, &stream).ok() && operands.wrong() == 0;
    }
  });
  std::thread second([&] {
    for (int i = 0; i < 10; ++i) {
      Operands operands(m, n, k);
      Stream stream{options, operands.memory(), {}};
      std::string const message = run(Bug::no_wait, operands.problem, &stream).message;
      caught += message.find("race on shared memory") == 0;
    }
  });
  first.join();
  second.join();
  std::printf("%d good, %d caught\n", good, caught);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  std::string const what = argv[1];
  if (what == "benchmark") return benchmark(std::atoi(argv[2]), std::atoi(argv[3]), options_from(argc, argv, 4));
  if (argc < 5) return 2;
  int const m = std::atoi(argv[2]), n = std::atoi(argv[3]), k = std::atoi(argv[4]);
  if (what == "two_threads") return two_threads(m, n, k, options_from(argc, argv, 5));
  auto const* const name = std::find(std::begin(kBugNames), std::end(kBugNames), what);
  if (name == std::end(kBugNames)) return 2;
  return run_one(static_cast<Bug>(name - kBugNames), m, n, k, options_from(argc, argv, 5));
}
