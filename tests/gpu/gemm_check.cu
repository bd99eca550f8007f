// Every row of gemm/configs.h, without JAX: exact products of small integers between guard bands, alone and with an
// epilogue, and single launches for compute-sanitizer and ncu, which take a minute to start a JAX program and a second
// to start this one. Not the rows for products of groups: those are grouped_check.cu's.
//
//   gemm_check                        every row, sizes around its tile, all four orders
//   gemm_check --small                few sizes: under compute-sanitizer
//   gemm_check --profile NAME M N K   three launches of one row on a row-major product, for a profiler
//
// Linked with the row's objects and ffi/registry.cc; see scripts/gpu_check.sh. A host compiler builds it for the
// emulator.

#include <cmath>
#include <cstring>

#include "gemm/batch.h"
#include "machine.h"
#include "moye/arch/types.h"
#include "registry.h"

namespace moye {
namespace {

constexpr size_t kGuardBytes = 256;  // on either side of each operand: NaN in every float type

size_t bytes_of(Dtype dtype) { return static_cast<size_t>(item_bytes(dtype)); }

template <class T>
void store_as(unsigned char* at, T const& x) {
  std::memcpy(at, &x, sizeof(T));
}

void store(Dtype dtype, unsigned char* at, double value) {
  float const x = static_cast<float>(value);
  switch (storage_dtype(dtype)) {
    case Dtype::bf16:
      return store_as(at, bfloat16_t(x));
    case Dtype::f16:
      return store_as(at, half_t(x));
    case Dtype::f32:
      return store_as(at, x);
    case Dtype::f64:
      return store_as(at, value);
    case Dtype::s8:
      return store_as(at, static_cast<int8_t>(value));
    case Dtype::s32:
      return store_as(at, static_cast<int32_t>(value));
    case Dtype::e4m3:
      return store_as(at, float_e4m3_t(x));
    case Dtype::e5m2:
      return store_as(at, float_e5m2_t(x));
    default:  // in no memory
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
/// Matrices of one outer index lie `outer` matrices apart.
Operand make_operand(Dtype dtype, int64_t batch, int64_t outer_modes, int64_t rows, int64_t columns, bool transposed,
                     int64_t multiple, uint32_t seed) {
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
    int64_t const inner_modes = batch / outer_modes, matrix = b % inner_modes * outer_modes + b / inner_modes;
    int64_t const at = matrix * operand.batch_stride + r * operand.row_stride + c * operand.column_stride;
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
  int outer = 1;  // batch modes of sizes outer and batch / outer, the outer one with the smaller stride in a, b and c
};

/// Of an operand with the modes of `p`.
BatchStrides strides_of(Operand const& operand, Problem const& p) {
  return {{0, operand.batch_stride, operand.batch_stride * p.outer}};
}

std::string describe(RegisteredGemm const& gemm, Problem const& p, Dtype out) {
  return gemm.name + " " + std::to_string(p.batch) +
         (p.outer > 1 ? " as " + std::to_string(p.outer) + " by the rest" : "") + "x" + std::to_string(p.m) + "x" +
         std::to_string(p.n) + "x" + std::to_string(p.k) + " " + (p.a_transposed ? "T" : "N") +
         (p.b_transposed ? "T" : "N") + " to " + dtype_name(out);
}

/// Row-major, [batch][m][n].
std::vector<int> multiply(Operand const& a, Operand const& b, Problem const& p) {
  std::vector<int> sums(static_cast<size_t>(p.batch * p.m * p.n));
  for (int64_t row = 0; row < p.batch * p.m; ++row) {
    int* const out = sums.data() + row * p.n;
    int const* const b_matrix = b.values.data() + row / p.m * p.k * p.n;
    for (int64_t k = 0; k < p.k; ++k) {
      int const x = a.values[static_cast<size_t>(row * p.k + k)];
      int const* const b_row = b_matrix + k * p.n;
      for (int64_t column = 0; column < p.n; ++column) out[column] += x * b_row[column];
    }
  }
  return sums;
}

/// What a row-major result of these numbers looks like, guard bands included.
std::vector<unsigned char> image_of(std::vector<int> const& values, Dtype dtype) {
  size_t const bytes = bytes_of(dtype);
  std::vector<unsigned char> image(2 * kGuardBytes + values.size() * bytes, 0xff);
  for (size_t i = 0; i < values.size(); ++i) store(dtype, image.data() + kGuardBytes + i * bytes, values[i]);
  return image;
}

/// A result, row-major, full of NaN before it is written.
struct Result {
  Dtype dtype;
  std::vector<unsigned char> expected;
  unsigned char* array;

  Result(testing::Machine& machine, char const* name, std::vector<int> const& values, Dtype dtype)
      : dtype(dtype), expected(image_of(values, dtype)) {
    array = static_cast<unsigned char*>(machine.allocate(name, expected.size(), true));
    std::vector<unsigned char> const nan(expected.size(), 0xff);
    machine.upload(array, nan.data(), nan.size());
  }
  void* data() const { return array + kGuardBytes; }

  /// Compares every byte, guard bands included.
  void compare(testing::Machine& machine, std::string const& name, int64_t columns) const {
    std::vector<unsigned char> found(expected.size());
    machine.download(found.data(), array, found.size());
    for (size_t at = 0; at < found.size(); ++at) {
      if (found[at] == expected[at]) continue;
      if (at < kGuardBytes || at >= found.size() - kGuardBytes) testing::fail(name + ": wrote outside it");
      auto const i = static_cast<int64_t>((at - kGuardBytes) / bytes_of(dtype));
      testing::fail(name + ": wrong at row " + std::to_string(i / columns) + " (of all batches), column " +
                    std::to_string(i % columns));
    }
  }
};

/// Runs one product in every output dtype, and once, in `fused_out`, with all of an epilogue.
int check(RegisteredGemm const& gemm, Problem const& p, std::vector<Dtype> const& outs, Dtype fused_out) {
  int64_t const multiple =
      std::max<int64_t>(1, gemm.config.alignment / static_cast<int64_t>(bytes_of(gemm.config.dtype)));
  testing::Machine machine;
  Operand a = make_operand(gemm.config.dtype, p.batch, p.outer, p.m, p.k, p.a_transposed, multiple, 1);
  Operand b =
      make_operand(storage_dtype_of_b(gemm.config.dtype), p.batch, p.outer, p.k, p.n, p.b_transposed, multiple, 2);
  upload(machine, a, "a", false);
  upload(machine, b, "b", false);
  std::vector<int> const sums = multiply(a, b, p);

  GemmArgs args{.a = a.data(),
                .b = b.data(),
                .d = nullptr,
                .workspace = nullptr,
                .batch = p.batch,
                .m = p.m,
                .n = p.n,
                .k = p.k,
                .batch_sizes = make_batch_sizes(1, p.outer, static_cast<int>(p.batch / p.outer)),
                .a_batch_strides = strides_of(a, p),
                .a_m_stride = a.row_stride,
                .a_k_stride = a.column_stride,
                .b_batch_strides = strides_of(b, p),
                .b_n_stride = b.column_stride,
                .b_k_stride = b.row_stride,
                .d_batch_strides = {{0, p.m * p.n * (p.batch / p.outer), p.m * p.n}},
                .d_m_stride = p.n,
                .d_n_stride = 1,
                .d_dtype = fused_out};
  auto const launch = [&](std::string const& name) {
    if (int64_t const bytes = gemm.entry.workspace_bytes(args); bytes > 0)
      args.workspace = machine.allocate("workspace", static_cast<size_t>(bytes), true);
    testing::check(gemm.entry.launch(args, machine.stream()), name);
    machine.wait();
  };
  for (Dtype out : outs) {
    std::string const name = describe(gemm, p, out);
    Result const d(machine, "d", sums, out);
    args.d = d.data();
    args.d_dtype = out;
    launch(name);
    d.compare(machine, name, p.n);
  }

  // z = a b + c + bias, d = relu(z) + residual: c like d, bias along n, residual transposed.
  Operand c = make_operand(fused_out, p.batch, p.outer, p.m, p.n, false, 1, 4);
  Operand bias = make_operand(fused_out, 1, 1, 1, p.n, false, 1, 5);
  Operand residual = make_operand(fused_out, p.batch, p.outer, p.m, p.n, true, 1, 6);
  upload(machine, c, "c", false);
  upload(machine, bias, "bias", false);
  upload(machine, residual, "residual", false);
  std::vector<int> z(sums), activated(sums);
  for (size_t i = 0; i < z.size(); ++i) {
    z[i] += c.values[i] + bias.values[i % static_cast<size_t>(p.n)];
    activated[i] = std::max(z[i], 0) + residual.values[i];
  }
  std::string const name = describe(gemm, p, fused_out) + ", fused";
  Result const d(machine, "d", activated, fused_out), preactivation(machine, "preactivation", z, fused_out);
  args.d = d.data();
  args.d_dtype = fused_out;
  args.epilogue = {.alpha = 1,
                   .beta = 1,
                   .c = {c.data(), strides_of(c, p), c.row_stride, c.column_stride},
                   .bias = {bias.data(), {}, 0, 1},
                   .residual = {residual.data(), strides_of(residual, p), residual.row_stride, residual.column_stride},
                   .activation = Activation::relu,
                   .preactivation = preactivation.data(),
                   .second_b = nullptr,
                   .second_product = nullptr};
  launch(name);
  d.compare(machine, name, p.n);
  preactivation.compare(machine, name + ", its pre-activation", p.n);
  return static_cast<int>(outs.size()) + 1;
}

std::vector<Problem> problems(RegisteredGemm const& gemm, bool small) {
  int const m = gemm.config.tile.m, n = gemm.config.tile.n, k = gemm.config.tile.k, stages = gemm.config.stages;
  std::vector<Problem> sizes = {{1, m + 1, 2 * n + 3, stages * k + k / 2 + 1, false, false},
                                {2, 17, 33, k - 1, false, false},
                                {6, 24, 40, k + 8, false, false, 2}};
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
      if (!(gemm.entry.facts.orders >> order & 1u)) continue;
      problem.a_transposed = order & 2u;
      problem.b_transposed = order & 1u;
      result.push_back(problem);
    }
  }
  return result;
}

std::vector<Dtype> out_dtypes(RegisteredGemm const& gemm) {
  std::vector<Dtype> outs;
  for (int i = 0; i < kDtypes; ++i) {
    if (gemm.entry.out_dtypes >> i & 1u) outs.push_back(Dtype(i));
  }
  return outs;
}

void check_row(RegisteredGemm const& gemm, bool small) {
  int const max_arch = gemm.entry.facts.max_arch;
  if (!testing::Machine::has_arch(gemm.entry.facts.min_arch) ||
      (max_arch != 0 && testing::Machine::is_newer(max_arch))) {
    std::printf("%-52s not for this GPU\n", gemm.name.c_str());
    return;
  }
  int count = 0;
  testing::check(gemm.entry.prepare(), gemm.name);
  std::vector<Dtype> const outs = out_dtypes(gemm);
  size_t index = 0;
  for (Problem const& problem : problems(gemm, small)) count += check(gemm, problem, outs, outs[index++ % outs.size()]);
  std::printf("%-52s %d products exact\n", gemm.name.c_str(), count);
  std::fflush(stdout);
}

void profile(std::string const& name, int64_t m, int64_t n, int64_t k) {
  RegisteredGemm const* gemm = find_gemm(name);
  if (gemm == nullptr) testing::fail("no compiled GEMM is named " + name);
  if (gemm->entry.launch == nullptr) testing::fail(name + " computes products of groups, and nothing else");
  Dtype const dtype = gemm->config.dtype;
  std::vector<Dtype> const outs = out_dtypes(*gemm);  // the operands' own, or the widest
  Dtype const out = std::find(outs.begin(), outs.end(), dtype) != outs.end() ? dtype : outs.back();
  testing::Machine machine;
  Operand a = make_operand(dtype, 1, 1, m, k, false, 1, 1);
  Operand b = make_operand(storage_dtype_of_b(dtype), 1, 1, k, n, false, 1, 2);
  upload(machine, a, "a", false);
  upload(machine, b, "b", false);
  void* d = machine.allocate("d", static_cast<size_t>(m * n) * bytes_of(out), true);
  GemmArgs args{a.data(), b.data(), d, nullptr, 1,  m, n, k,  make_batch_sizes(1, 1, 1), {}, k,
                1,        {},       1, n,       {}, n, 1, out};
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
    for (auto const& gemm : moye::registered_gemms()) {
      if (gemm.entry.launch != nullptr) moye::check_row(gemm, !words.empty());
    }
  } else {
    moye::testing::fail("usage: gemm_check [--small | --profile NAME M N K]");
  }
  return 0;
}
