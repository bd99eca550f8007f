// gemm_driver m n k [key=value...]: emulated launches of a row of the table (MOYE_ROW); prints "ok", "wrong: ..." or
// "error: ...". a and b hold integers in [-2, 2] in memory that ends at a guard page, as does d; gaps between their
// rows hold NaN, or 85. Keys, with their defaults:
//   order=NT batch=1 broadcast= (a or b)   as gemm/order.h and GemmArgs say
//   outer=1 middle=1                       the batch's modes before the last; those of a, b, c and the residual lie in
//                                          memory in the opposite order
//   pad=0 d_pad=0                          elements between rows of a and b, and of d
//   out=f32                                d's dtype
//   epilogue=0   1: d = relu(2 a b - c + bias) + residual, and the pre-activation
//   special=0    1: a NaN in a, an infinity in b
//   launches=1   of new operands in other memory, the earlier ones' not to be touched
//   mode=lazy threads=fifo seed=0 races=1 workers=1 multiprocessors=2   emu::Options
//   watchdog=60  seconds after which a CTA is reported as endless
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "moye/arch/types.h"
#include "moye/emu/emu.h"
#include "moye/emu/guarded_buffer.h"

namespace moye {
using enum Kernel;
using enum Dtype;

constexpr GemmConfig kRow = GemmConfig MOYE_ROW;
constexpr Dtype kStored = storage_dtype(kRow.dtype);
using Element = ElementOf<kStored>::Type;

struct Options {
  std::map<std::string, std::string> words = {
      {"order", "NT"},   {"batch", "1"},           {"outer", "1"},      {"middle", "1"},   {"broadcast", ""},
      {"pad", "0"},      {"d_pad", "0"},           {"out", "f32"},      {"epilogue", "0"}, {"special", "0"},
      {"launches", "1"}, {"mode", "lazy"},         {"threads", "fifo"}, {"seed", "0"},     {"races", "1"},
      {"workers", "1"},  {"multiprocessors", "2"}, {"watchdog", "60"}};

  std::string const& operator[](char const* key) const { return words.at(key); }
  int number(char const* key) const { return std::atoi(words.at(key).c_str()); }
};

template <class T>
double value_of(T x) {
  if constexpr (std::is_arithmetic_v<T>) {
    return double(x);
  } else {
    return double(float(x));
  }
}

/// A batch of matrices in memory, and their values. Mode 1 of `shape` (batch, 1, 2) is contiguous if `transposed`.
struct Matrices {
  int64_t shape[3], strides[3];
  std::vector<double> values;
  emu::GuardedBuffer buffer;

  static int64_t pitch(int64_t inner, int pad, int multiple) {
    return (inner + pad + multiple - 1) / multiple * multiple;
  }
  static int64_t elements(int64_t batch, int64_t outer, int64_t inner, int64_t pitch) {
    return batch * outer * inner == 0 ? 0 : batch * outer * pitch - (pitch - inner);  // ends with the last element
  }

  Matrices(int64_t batch, int64_t rows, int64_t columns, bool transposed, int pad, int multiple, size_t item)
      : shape{batch, rows, columns},
        values(size_t(batch * rows * columns)),
        buffer(size_t(elements(batch, transposed ? columns : rows, transposed ? rows : columns,
                               pitch(transposed ? rows : columns, pad, multiple))) *
               item) {
    int64_t const inner = transposed ? rows : columns, outer = transposed ? columns : rows;
    int64_t const step = pitch(inner, pad, multiple);
    strides[0] = outer * step;
    strides[1] = transposed ? 1 : step;
    strides[2] = transposed ? step : 1;
  }

  double& value(int64_t batch, int64_t i, int64_t j) { return values[size_t((batch * shape[1] + i) * shape[2] + j)]; }
  int64_t offset(int64_t batch, int64_t i, int64_t j) const {
    return batch * strides[0] + i * strides[1] + j * strides[2];
  }

  /// Integers in [-2, 2].
  void draw(std::mt19937& random) {
    for (double& value : values) value = int(random() % 5) - 2;
  }

  /// The values into the buffer as T.
  template <class T>
  void write() {
    std::memset(buffer.data(), std::is_integral_v<T> ? 85 : 0xff, buffer.size());
    for (int64_t b = 0; b < shape[0]; ++b) {
      for (int64_t i = 0; i < shape[1]; ++i) {
        for (int64_t j = 0; j < shape[2]; ++j) {
          reinterpret_cast<T*>(buffer.data())[offset(b, i, j)] = T(float(value(b, i, j)));
        }
      }
    }
  }
};

bool same(double got, double expected) { return got == expected || (std::isnan(got) && std::isnan(expected)); }

/// One launch; what is wrong with it, or nothing. memory: keeps the matrices of all launches, so that none has
/// another's addresses.
template <class Out>
std::string launch(int m, int n, int k, Options const& options, std::mt19937& random, std::deque<Matrices>& memory) {
  int const batch = options.number("batch"), pad = options.number("pad"), d_pad = options.number("d_pad");
  int const outer = options.number("outer"), middle = options.number("middle"), inner = batch / (outer * middle);
  // Where matrix l of an operand with opposite modes is.
  auto const turned = [&](int64_t l) {
    return (l % inner * middle + l / inner % middle) * outer + l / (inner * middle);
  };
  auto const turned_strides = [&](int64_t stride) {
    return BatchStrides{{stride, stride * outer, stride * outer * middle}};
  };
  bool const broadcast_a = options["broadcast"] == "a", broadcast_b = options["broadcast"] == "b";
  int const multiple = std::max(1, kRow.alignment / int(sizeof(Element)));
  auto const add_matrices = [&](int64_t batch, int64_t rows, int64_t columns, bool transposed, int pad, int multiple,
                                size_t item) -> Matrices& {
    return memory.emplace_back(batch, rows, columns, transposed, pad, multiple, item);
  };
  Matrices& a = add_matrices(broadcast_a ? 1 : batch, m, k, options["order"][0] == 'T', pad, multiple, sizeof(Element));
  Matrices& b = add_matrices(broadcast_b ? 1 : batch, n, k, options["order"][1] == 'N', pad, multiple, sizeof(Element));
  Matrices& d = add_matrices(batch, m, n, false, d_pad, 1, sizeof(Out));
  Matrices& z = add_matrices(batch, m, n, false, d_pad, 1, sizeof(Out));
  Matrices& c = add_matrices(batch, m, n, true, 0, 1, sizeof(Out));
  Matrices& bias = add_matrices(1, 1, n, false, 0, 1, sizeof(Out));
  int const residual_pad = options.number("epilogue") == 2 ? 4 : 3;  // 4: pairs of elements are words
  Matrices& residual = add_matrices(batch, m, n, false, residual_pad, 1, sizeof(Out));
  for (Matrices* matrices : {&a, &b, &c, &bias, &residual}) matrices->draw(random);
  if (options.number("special") != 0) {
    a.value(0, m / 2, k / 2) = std::numeric_limits<double>::quiet_NaN();
    b.value(0, n / 3, k - 1) = value_of(Element(std::numeric_limits<float>::infinity()));  // or the largest number
  }
  a.write<Element>();
  b.write<Element>();
  for (Matrices* matrices : {&c, &bias, &residual}) matrices->write<Out>();

  GemmArgs args{.a = a.buffer.data(),
                .b = b.buffer.data(),
                .d = d.buffer.data(),
                .workspace = nullptr,
                .batch = batch,
                .m = m,
                .n = n,
                .k = k,
                .batch_sizes = make_batch_sizes(outer, middle, inner)};
  args.a_batch_strides = turned_strides(broadcast_a ? 0 : a.strides[0]);
  args.a_m_stride = a.strides[1];
  args.a_k_stride = a.strides[2];
  args.b_batch_strides = turned_strides(broadcast_b ? 0 : b.strides[0]);
  args.b_n_stride = b.strides[1];
  args.b_k_stride = b.strides[2];
  args.d_batch_strides = {{d.strides[0] * middle * inner, d.strides[0] * inner, d.strides[0]}};
  args.d_m_stride = d.strides[1];
  args.d_n_stride = d.strides[2];
  args.d_dtype = std::is_same_v<Out, float> ? f32 : std::is_same_v<Out, half_t> ? f16 : bf16;

  emu::Stream stream;
  stream.options.watchdog_steps = 20'000'000;
  stream.options.watchdog_seconds = options.number("watchdog");
  std::string const& mode = options["mode"];
  stream.options.mode = mode == "eager" ? emu::Mode::eager : mode == "random" ? emu::Mode::random : emu::Mode::lazy;
  std::string const& threads = options["threads"];
  stream.options.order = threads == "lifo"     ? emu::ThreadOrder::lifo
                         : threads == "random" ? emu::ThreadOrder::random
                                               : emu::ThreadOrder::fifo;
  stream.options.seed = uint64_t(options.number("seed"));
  stream.options.detect_races = options.number("races") != 0;
  stream.options.workers = options.number("workers");
  stream.options.multiprocessors = options.number("multiprocessors");
  auto const add = [&](Matrices const& matrices, char const* name, bool writable) {
    stream.memory.push_back({matrices.buffer.data(), matrices.buffer.size(), name, writable});
  };
  add(a, "a", false);
  add(b, "b", false);
  add(d, "d", true);
  bool const fused = options.number("epilogue") != 0, has_c = options.number("epilogue") == 1;  // 2: all but c
  if (fused) {
    args.epilogue = {.alpha = 2,
                     .beta = has_c ? -1.0 : 0.0,
                     .c = {has_c ? c.buffer.data() : nullptr, turned_strides(c.strides[0]), c.strides[1], c.strides[2]},
                     .bias = {bias.buffer.data(), {}, 0, 1},
                     .residual = {residual.buffer.data(), turned_strides(residual.strides[0]), residual.strides[1], 1},
                     .activation = Activation::relu,
                     .preactivation = z.buffer.data()};
    add(c, "c", false);
    add(bias, "bias", false);
    add(residual, "residual", false);
    add(z, "preactivation", true);
  }
  GemmEntry const entry = gemm_entry<kRow>();
  std::vector<unsigned char> workspace(size_t(entry.workspace_bytes(args)), 0xff);
  args.workspace = workspace.data();
  stream.memory.push_back({workspace.data(), workspace.size(), "workspace", true});
  if (Status status = entry.launch(args, &stream); !status.ok()) return "error: " + status.message;
  for (Matrices const* matrices : {&d, &z}) {
    if (std::string const damage = matrices->buffer.damage(); !damage.empty()) return "error: " + damage;
  }

  // Sums of products of small integers are exact; NaN and infinities come out as they do here.
  int wrong = 0;
  std::string first;
  auto const compare = [&](char const* name, Matrices const& matrices, int64_t l, int i, int j, double expected) {
    double const got = value_of(reinterpret_cast<Out const*>(matrices.buffer.data())[matrices.offset(l, i, j)]);
    if (same(got, value_of(Out(float(expected))))) return;
    if (wrong++ == 0) {
      first = std::string(name) + "[" + std::to_string(l) + "," + std::to_string(i) + "," + std::to_string(j) +
              "] is " + std::to_string(got) + ", not " + std::to_string(expected);
    }
  };
  for (int64_t l = 0; l < batch; ++l) {
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        double sum = 0;
        double const* const row = &a.values[size_t(((broadcast_a ? 0 : turned(l)) * m + i) * k)];
        double const* const column = &b.values[size_t(((broadcast_b ? 0 : turned(l)) * n + j) * k)];
        for (int x = 0; x < k; ++x) sum += row[x] * column[x];
        if (fused) {
          sum = 2 * sum - (has_c ? c.value(turned(l), i, j) : 0) + bias.value(0, 0, j);
          compare("preactivation", z, l, i, j, sum);
          sum = (sum < 0 ? 0 : sum) + residual.value(turned(l), i, j);
        }
        compare("d", d, l, i, j, sum);
      }
    }
  }
  for (int64_t l = 0; l < batch; ++l) {  // gaps between d's rows still hold what they held
    for (int i = 0; i < m; ++i) {
      for (int64_t j = n; j < d.strides[1] && (l + 1 < batch || i + 1 < m); ++j) {
        Out const gap = reinterpret_cast<Out const*>(d.buffer.data())[d.offset(l, i, j)];
        unsigned char bytes[sizeof(Out)];
        std::memcpy(bytes, &gap, sizeof(Out));
        if (!std::all_of(bytes, bytes + sizeof(Out), [](unsigned char byte) { return byte == 0xff; }))
          return "error: a gap between d's rows has been written";
      }
    }
  }
  if (wrong == 0) return "";
  return "wrong: " + std::to_string(wrong) + " of " + std::to_string(batch * m * n) + " elements, first " + first;
}

int run(int m, int n, int k, Options const& options) {
  std::mt19937 random(1);
  std::deque<Matrices> memory;
  for (int i = 0; i < options.number("launches"); ++i) {
    std::string const& out = options["out"];
    std::string const report = out == "bf16"  ? launch<bfloat16_t>(m, n, k, options, random, memory)
                               : out == "f16" ? launch<half_t>(m, n, k, options, random, memory)
                                              : launch<float>(m, n, k, options, random, memory);
    if (!report.empty()) {
      std::printf("%s\n", report.c_str());
      return 0;
    }
  }
  std::printf("ok\n");
  return 0;
}

}  // namespace moye

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  moye::Options options;
  for (int i = 4; i < argc; ++i) {
    std::string const word = argv[i];
    size_t const equals = word.find('=');
    if (equals == std::string::npos || options.words.count(word.substr(0, equals)) == 0) return 2;
    options.words[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return moye::run(std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]), options);
}
