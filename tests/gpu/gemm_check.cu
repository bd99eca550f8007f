// Every row of gemm/configs.h, without JAX: exact products of small integers between guard bands, and single launches
// for compute-sanitizer and ncu, which take a minute to start a JAX program and a second to start this one.
//
//   gemm_check                        every row, sizes around its tile, all four orders
//   gemm_check --small                few sizes: under compute-sanitizer
//   gemm_check --profile NAME M N K   three launches of one row on a row-major product, for a profiler
//
// Linked with the row's objects and ffi/registry.cc; see scripts/gpu_check.sh. A host compiler builds it for the
// emulator.

#include <cmath>
#include <cstring>

#include "machine.h"
#include "moye/arch/types.h"
#include "registry.h"

namespace moye {
namespace {

constexpr size_t kGuardBytes = 256;  // on either side of each operand: NaN in every float type

size_t bytes_of(Dtype dtype) { return dtype == Dtype::f64 ? 8 : dtype == Dtype::f32 ? 4 : 2; }

void store(Dtype dtype, unsigned char* at, double value) {
  switch (dtype) {
    case Dtype::bf16: {
      bfloat16_t const x(static_cast<float>(value));
      std::memcpy(at, &x, 2);
      return;
    }
    case Dtype::f16: {
      half_t const x(static_cast<float>(value));
      std::memcpy(at, &x, 2);
      return;
    }
    case Dtype::f32: {
      float const x = static_cast<float>(value);
      std::memcpy(at, &x, 4);
      return;
    }
    case Dtype::f64:
      std::memcpy(at, &value, 8);
      return;
  }
}

/// A matrix of small integers as a kernel gets it: strides, and memory between guard bands.
struct Operand {
  Dtype dtype;
  int64_t batch, rows, columns;
  int64_t batch_stride, row_stride, column_stride;  // elements
  std::vector<int> values;                          // [batch][rows][columns], row-major
  std::vector<unsigned char> image;                 // guard, memory, guard
  unsigned char* array = nullptr;

  void* data() const { return array + kGuardBytes; }
};

/// Integers of -2 to 2. Transposed: the rows are contiguous, not the columns. The pitch is a multiple of `multiple`.
Operand make_operand(Dtype dtype, int64_t batch, int64_t rows, int64_t columns, bool transposed, int64_t multiple,
                     uint32_t seed) {
  Operand operand{dtype, batch, rows, columns, 0, 0, 0, {}, {}};
  int64_t const inner = transposed ? rows : columns, outer = transposed ? columns : rows;
  int64_t const pitch = (inner + multiple - 1) / multiple * multiple;
  operand.batch_stride = outer * pitch;
  operand.row_stride = transposed ? 1 : pitch;
  operand.column_stride = transposed ? pitch : 1;
  size_t const size = bytes_of(dtype);
  operand.image.assign(2 * kGuardBytes + static_cast<size_t>(batch * outer * pitch) * size, 0xff);
  for (int64_t i = 0; i < batch * rows * columns; ++i) {
    seed = seed * 1664525u + 1013904223u;
    int const value = static_cast<int>((seed >> 16) % 5u) - 2;
    operand.values.push_back(value);
    int64_t const b = i / (rows * columns), r = i / columns % rows, c = i % columns;
    int64_t const at = b * operand.batch_stride + r * operand.row_stride + c * operand.column_stride;
    store(dtype, operand.image.data() + kGuardBytes + static_cast<size_t>(at) * size, value);
  }
  return operand;
}

void upload(testing::Machine& machine, Operand& operand, char const* name, bool writable) {
  operand.array = static_cast<unsigned char*>(machine.allocate(name, operand.image.size(), writable));
  machine.upload(operand.array, operand.image.data(), operand.image.size());
}

struct Problem {
  int64_t batch, m, n, k;
  bool a_transposed, b_transposed;
};

std::string describe(RegisteredGemm const& gemm, Problem const& p, Dtype out) {
  return gemm.name + " " + std::to_string(p.batch) + "x" + std::to_string(p.m) + "x" + std::to_string(p.n) + "x" +
         std::to_string(p.k) + " " + (p.a_transposed ? "T" : "N") + (p.b_transposed ? "T" : "N") + " to " +
         dtype_name(out);
}

/// Runs one product and compares every byte of d and of its guard bands.
void check(RegisteredGemm const& gemm, Problem const& p, Dtype out) {
  std::string const name = describe(gemm, p, out);
  int64_t const multiple =
      std::max<int64_t>(1, gemm.config.alignment / static_cast<int64_t>(bytes_of(gemm.config.dtype)));
  testing::Machine machine;
  Operand a = make_operand(gemm.config.dtype, p.batch, p.m, p.k, p.a_transposed, multiple, 1);
  Operand b = make_operand(gemm.config.dtype, p.batch, p.k, p.n, p.b_transposed, multiple, 2);
  Operand d = make_operand(out, p.batch, p.m, p.n, false, 1, 3);
  std::vector<unsigned char> expected = d.image;
  for (int64_t i = 0; i < p.batch * p.m * p.n; ++i) {
    int64_t const batch = i / (p.m * p.n), row = i / p.n % p.m, column = i % p.n;
    int64_t sum = 0;
    for (int64_t k = 0; k < p.k; ++k) {
      sum += a.values[static_cast<size_t>((batch * p.m + row) * p.k + k)] *
             b.values[static_cast<size_t>((batch * p.k + k) * p.n + column)];
    }
    store(out, expected.data() + kGuardBytes + static_cast<size_t>(i) * bytes_of(out), static_cast<double>(sum));
  }
  std::fill(d.image.begin(), d.image.end(), 0xff);
  upload(machine, a, "a", false);
  upload(machine, b, "b", false);
  upload(machine, d, "d", true);

  GemmArgs args{a.data(),
                b.data(),
                d.data(),
                nullptr,
                p.batch,
                p.m,
                p.n,
                p.k,
                a.batch_stride,
                a.row_stride,
                a.column_stride,
                b.batch_stride,
                b.column_stride,
                b.row_stride,
                d.batch_stride,
                d.row_stride,
                d.column_stride,
                out};
  if (int64_t const bytes = gemm.entry.workspace_bytes(args); bytes > 0) {
    args.workspace = machine.allocate("workspace", static_cast<size_t>(bytes), true);
  }
  testing::check(gemm.entry.launch(args, machine.stream()), name);
  machine.wait();
  std::vector<unsigned char> found(d.image.size());
  machine.download(found.data(), d.array, found.size());
  for (size_t at = 0; at < found.size(); ++at) {
    if (found[at] == expected[at]) continue;
    if (at < kGuardBytes || at >= found.size() - kGuardBytes) testing::fail(name + ": wrote outside d");
    size_t const i = (at - kGuardBytes) / bytes_of(out);
    testing::fail(name + ": wrong at row " + std::to_string(i / static_cast<size_t>(p.n)) +
                  " (of all batches), column " + std::to_string(i % static_cast<size_t>(p.n)));
  }
}

std::vector<Problem> problems(RegisteredGemm const& gemm, bool small) {
  int const m = gemm.config.tile.m, n = gemm.config.tile.n, k = gemm.config.tile.k, stages = gemm.config.stages;
  std::vector<Problem> sizes = {{1, m + 1, 2 * n + 3, stages * k + k / 2 + 1, false, false},
                                {2, 17, 33, k - 1, false, false}};
  if (!small) {
    sizes.insert(sizes.end(), {{1, m, n, k, false, false},
                               {1, m - 1, n - 1, (stages + 1) * k - 1, false, false},
                               {1, 2 * m + 3, n, stages * k, false, false},
                               {1, 1, n + 1, 2 * k, false, false},
                               {1, m, 1, 7, false, false},
                               {3, 8, 7, 1, false, false},
                               {1, 15, 65, 0, false, false},
                               {1, 128, 127, 2 * stages * k + 5, false, false}});
  }
  std::vector<Problem> result;
  for (Problem problem : sizes) {
    for (unsigned order = 0; order < 4; ++order) {
      if (!(gemm.entry.orders >> order & 1u)) continue;
      problem.a_transposed = order & 2u;
      problem.b_transposed = order & 1u;
      result.push_back(problem);
    }
  }
  return result;
}

void check_row(RegisteredGemm const& gemm, bool small) {
  int count = 0;
  testing::check(gemm.entry.prepare(), gemm.name);
  for (Problem const& problem : problems(gemm, small)) {
    for (Dtype out : {Dtype::bf16, Dtype::f16, Dtype::f32, Dtype::f64}) {
      if (!(gemm.entry.out_dtypes >> static_cast<unsigned>(out) & 1u)) continue;
      check(gemm, problem, out);
      ++count;
    }
  }
  std::printf("%-44s %d products exact\n", gemm.name.c_str(), count);
  std::fflush(stdout);
}

void profile(std::string const& name, int64_t m, int64_t n, int64_t k) {
  RegisteredGemm const* gemm = find_gemm(name);
  if (gemm == nullptr) testing::fail("no compiled GEMM is named " + name);
  Dtype const dtype = gemm->config.dtype;
  testing::Machine machine;
  Operand a = make_operand(dtype, 1, m, k, false, 1, 1), b = make_operand(dtype, 1, k, n, false, 1, 2);
  upload(machine, a, "a", false);
  upload(machine, b, "b", false);
  void* d = machine.allocate("d", static_cast<size_t>(m * n) * bytes_of(dtype), true);
  GemmArgs args{a.data(), b.data(), d, nullptr, 1, m, n, k, m * k, k, 1, k * n, 1, n, m * n, n, 1, dtype};
  for (int i = 0; i < 3; ++i) testing::check(gemm->entry.launch(args, machine.stream()), name);
  machine.wait();
}

}  // namespace
}  // namespace moye

int main(int count, char** arguments) {
  std::vector<std::string> const words(arguments + 1, arguments + count);
  if (words.size() == 5 && words[0] == "--profile") {
    moye::profile(words[1], std::stoll(words[2]), std::stoll(words[3]), std::stoll(words[4]));
  } else if (words.empty() || (words.size() == 1 && words[0] == "--small")) {
    for (auto const& gemm : moye::registered_gemms()) moye::check_row(gemm, !words.empty());
  } else {
    moye::testing::fail("usage: gemm_check [--small | --profile NAME M N K]");
  }
  return 0;
}
