// grouped_driver m n k sizes=3,0,17 [key=value...]: one emulated launch of a row of the table (`row`) that computes
// products of groups; prints "ok", "wrong: ..." or "error: ...". Without arguments: a line of such words on the
// standard input is a case, and each has its line of output.
// m is ragged with the orders NN and NT, k with TN. All arrays end at a guard page; a and b hold integers in [-2, 2],
// gaps between their rows NaN. Keys, with their defaults:
//   sizes=           of the groups: any integers, whose sum need not be m or k
//   order=NT         as gemm/order.h says
//   data=1           seed of the integers
//   pad=0 d_pad=0    elements between rows of a and b, and of d, rounded up to 16 bytes
//   out=f32          d's dtype
//   epilogue=0       1: d = relu(a b + bias of the group) + residual, and the pre-activation; behind the last group, d =
//                    residual: the product is zero, and the bias is none's
//   pair=0           1: d = relu(2 a b) * (a second_b), m being ragged; 2: and both products
//   scales=0         1: the product's rows, and the columns of each group's, times powers of two; behind the last group
//                    there are no columns' scales
//   d_rows=0         m being ragged, 1: rows of d in an order that is drawn; 2: some of them outside d, where nothing
//                    is stored
//   special=0        1: a NaN where a group ends and an infinity where the next one begins, of e4m3 a NaN; NaN behind the
//                    last group, and in the matrices of groups that have no rows
//   mode=lazy threads=fifo seed=0 races=1 workers=1 multiprocessors=2   emu::Options
//   watchdog=60      seconds after which a CTA is reported as endless
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "driver_support.h"
#include "gemm/batch.h"
#include "gemm/config.h"
#include "moye/arch/types.h"
#include "moye/emu/emu.h"
#include "moye/emu/guarded_buffer.h"

namespace moye {

Words const kDefaults = {{"sizes", ""},  {"order", "NT"}, {"data", "1"},     {"pad", "0"},
                         {"d_pad", "0"}, {"out", "f32"},  {"epilogue", "0"}, {"special", "0"},
                         {"pair", "0"},  {"scales", "0"}, {"d_rows", "0"}};

inline constexpr Dtype kDtypeOfB = storage_dtype_of_b(kDtype);

std::vector<int32_t> sizes_of(Options const& options) {
  std::vector<int32_t> sizes;
  std::istringstream words(options["sizes"]);
  for (std::string word; std::getline(words, word, ',');) sizes.push_back(int32_t(std::stol(word)));
  return sizes;
}

/// Where the groups begin, and, behind them, where the last one ends: written again, after the definition alone.
std::vector<int> begins_of(std::vector<int32_t> const& sizes, int length) {
  std::vector<int> begins = {0};
  for (int64_t const size : sizes) {
    begins.push_back(int(std::min<int64_t>(length, begins.back() + std::max<int64_t>(0, size))));
  }
  return begins;
}

/// Rows of d in which those of the product are stored. leaves_some: some are outside.
std::vector<int32_t> drawn_rows(std::mt19937& random, int m, bool leaves_some) {
  std::vector<int32_t> rows(static_cast<size_t>(m));
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), random);
  for (int32_t& row : rows) {
    if (leaves_some && random() % 4 == 0) row = random() % 2 == 0 ? -1 - row : m + row;
    using Limits = std::numeric_limits<int32_t>;
    if (leaves_some && random() % 32 == 0) row = random() % 2 == 0 ? Limits::min() : Limits::max();
  }
  return rows;
}

/// The operands of a call, and which group each element of the ragged mode is of.
struct Problem {
  int m, n, k, groups;
  bool rows_are_ragged;
  std::vector<int> begins;
  Matrices &a, &b, &second_b;

  int length() const { return rows_are_ragged ? m : k; }

  /// Sets element `at` of the ragged mode, whatever the other mode's.
  void fill(int at, double value) {
    if (rows_are_ragged) {
      for (int x = 0; x < k; ++x) a.value(0, at, x) = value;
    } else {
      for (int i = 0; i < m; ++i) a.value(0, i, at) = value;
      for (int j = 0; j < n; ++j) b.value(0, j, at) = value;
    }
  }

  /// What must not reach other groups.
  void make_special(std::mt19937& random) {
    double const nan = std::numeric_limits<double>::quiet_NaN();
    double const infinity = kDtypeOfB == e4m3 ? nan : std::numeric_limits<double>::infinity();
    for (int at = begins.back(); at < length(); ++at) fill(at, nan);
    std::vector<int> full;
    for (int g = 0; g < groups; ++g) {
      if (begins[size_t(g)] < begins[size_t(g) + 1]) {
        full.push_back(g);
      } else if (rows_are_ragged) {
        for (int j = 0; j < n; ++j) {
          for (int x = 0; x < k; ++x) b.value(g, j, x) = second_b.value(g, j, x) = nan;
        }
      }
    }
    if (full.empty() || k == 0) return;
    size_t const first = random() % full.size();
    int const end = begins[size_t(full[first]) + 1];
    int const next = full[first + 1 < full.size() ? first + 1 : 0], begin = begins[size_t(next)];
    int const j = int(random() % unsigned(n));
    if (rows_are_ragged) {
      a.value(0, end - 1, int(random() % unsigned(k))) = nan;
      b.value(next, j, int(random() % unsigned(k))) = infinity;
      second_b.value(next, int(random() % unsigned(n)), int(random() % unsigned(k))) = infinity;
    } else {
      a.value(0, int(random() % unsigned(m)), end - 1) = nan;
      b.value(0, j, begin) = infinity;
    }
  }

  /// What is summed for an element of d, in the matrix of group g: of rows behind the last group, nothing. right: b or
  /// second_b.
  double product(Matrices& right, int g, int i, int j) {
    double sum = 0;
    int const begin = rows_are_ragged ? 0 : begins[size_t(g)];
    int const end = !rows_are_ragged ? begins[size_t(g) + 1] : g < groups ? k : 0;
    for (int x = begin; x < end; ++x) sum += a.value(0, i, x) * right.value(rows_are_ragged ? g : 0, j, x);
    return sum;
  }
};

/// One launch; what is wrong with it, or nothing.
template <class Out>
std::string launch(int m, int n, int k, Options const& options) {
  std::vector<int32_t> const sizes = sizes_of(options);
  int const groups = int(sizes.size()), pad = options.number("pad"), d_pad = options.number("d_pad");
  bool const rows_are_ragged = options["order"] != "TN", fused = options.number("epilogue") != 0;
  bool const pair = options.number("pair") != 0, keeps = options.number("pair") == 2;
  int const d_multiple = 16 / int(sizeof(Out)), d_matrices = rows_are_ragged ? 1 : groups;
  bool const scatters = options.number("d_rows") != 0;
  std::mt19937 of_rows(unsigned(options.number("data")) + 1);
  std::vector<int32_t> const d_rows = drawn_rows(of_rows, scatters ? m : 0, options.number("d_rows") == 2);
  Matrices a(1, m, k, options["order"][0] == 'T', pad, stride_multiple(), sizeof(Element));
  Matrices b(rows_are_ragged ? groups : 1, n, k, options["order"][1] == 'N', pad, stride_multiple(), sizeof(Element));
  Matrices second_b(rows_are_ragged ? groups : 1, n, k, options["order"][1] == 'N', pad, stride_multiple(),
                    sizeof(Element));  // as b's
  Matrices d(d_matrices, m, n, false, d_pad, d_multiple, sizeof(Out));
  Matrices z(d_matrices, m, n, false, d_pad, d_multiple, sizeof(Out));
  Matrices second_product(d_matrices, m, n, false, d_pad, d_multiple, sizeof(Out));
  Matrices bias(groups, 1, n, false, 0, 2, sizeof(Out));
  Matrices residual(d_matrices, m, n, false, 6, 2, sizeof(Out));
  Problem problem{m, n, k, groups, rows_are_ragged, begins_of(sizes, rows_are_ragged ? m : k), a, b, second_b};
  std::mt19937 random(unsigned(options.number("data")));
  for (Matrices* matrices : {&a, &b, &bias, &residual, &second_b}) matrices->draw(random);
  if (options.number("special") != 0) problem.make_special(random);
  a.write<Element>();
  b.write<ElementB>();
  second_b.write<ElementB>();
  bias.write<Out>();
  residual.write<Out>();
  emu::GuardedBuffer group_sizes(sizes.size() * sizeof(int32_t));
  std::memcpy(group_sizes.data(), sizes.data(), group_sizes.size());

  auto const along_groups = [&](Matrices const& matrices, bool moves) {
    return BatchStrides{{0, 0, moves ? matrices.strides[0] : 0}};
  };
  GroupedArgs args{.gemm = {.a = a.buffer.data(),
                            .b = b.buffer.data(),
                            .d = d.buffer.data(),
                            .workspace = nullptr,
                            .batch = groups,
                            .m = m,
                            .n = n,
                            .k = k,
                            .batch_sizes = make_batch_sizes(1, 1, groups),
                            .a_batch_strides = {},
                            .a_m_stride = a.strides[1],
                            .a_k_stride = a.strides[2],
                            .b_batch_strides = along_groups(b, rows_are_ragged),
                            .b_n_stride = b.strides[1],
                            .b_k_stride = b.strides[2],
                            .d_batch_strides = along_groups(d, !rows_are_ragged),
                            .d_m_stride = d.strides[1],
                            .d_n_stride = d.strides[2],
                            .d_dtype = kDtypeOf<Out>},
                   .group_sizes = reinterpret_cast<int32_t const*>(group_sizes.data())};
  emu::Stream stream = make_stream(options);
  stream.memory = {a.memory("a", false),
                   b.memory("b", false),
                   d.memory("d", true),
                   {group_sizes.data(), group_sizes.size(), "group_sizes", false}};
  if (fused) {
    args.gemm.epilogue = {
        .alpha = 1,
        .beta = 0,
        .c = {},
        .bias = {bias.buffer.data(), along_groups(bias, true), 0, 1},
        .residual = {residual.buffer.data(), along_groups(residual, !rows_are_ragged), residual.strides[1], 1},
        .activation = Activation::relu,
        .preactivation = z.buffer.data()};
    stream.memory.push_back(bias.memory("bias", false));
    stream.memory.push_back(residual.memory("residual", false));
    stream.memory.push_back(z.memory("preactivation", true));
  }
  bool const scaled = options.number("scales") != 0;
  auto const scale = [](int g, int i) { return float(1 << (i + i / 7 + g) % 4); };
  emu::GuardedBuffer row_scale(size_t(m) * sizeof(float)), column_scale(size_t(groups) * size_t(n) * sizeof(float));
  if (scaled) {
    for (int i = 0; i < m; ++i) reinterpret_cast<float*>(row_scale.data())[i] = scale(0, i);
    for (int j = 0; j < groups * n; ++j) reinterpret_cast<float*>(column_scale.data())[j] = scale(1 + j / n, j % n);
    args.gemm.epilogue.row_scale = {reinterpret_cast<float*>(row_scale.data()), {}, 1};
    args.gemm.epilogue.column_scale = {reinterpret_cast<float*>(column_scale.data()), {{0, 0, n}}, 1};
    stream.memory.push_back({row_scale.data(), row_scale.size(), "row_scale", false});
    stream.memory.push_back({column_scale.data(), column_scale.size(), "column_scale", false});
  }
  if (pair) {
    args.gemm.epilogue.alpha = 2;
    args.gemm.epilogue.activation = Activation::relu;
    args.gemm.epilogue.second_b = second_b.buffer.data();
    stream.memory.push_back(second_b.memory("second_b", false));
  }
  if (keeps) {
    args.gemm.epilogue.preactivation = z.buffer.data();
    args.gemm.epilogue.second_product = second_product.buffer.data();
    stream.memory.push_back(z.memory("preactivation", true));
    stream.memory.push_back(second_product.memory("second_product", true));
  }
  emu::GuardedBuffer rows_of_d(d_rows.size() * sizeof(int32_t));
  std::copy(d_rows.begin(), d_rows.end(), reinterpret_cast<int32_t*>(rows_of_d.data()));
  if (scatters) {
    stream.memory.push_back({rows_of_d.data(), rows_of_d.size(), "d_rows", false});
    args.d_rows = reinterpret_cast<int32_t const*>(rows_of_d.data());
  }
  Status const status = entry_of_row().launch_grouped(args, &stream);
  if (!status.ok()) return "error: " + status.message;

  for (Matrices const* matrices : {&d, &z, &second_product}) {
    if (std::string const damage = matrices->buffer.damage(); !damage.empty()) return "error: " + damage;
    if (matrices->template has_written_gap<Out>()) return "error: a gap between rows has been written";
  }
  Comparison comparison;
  int group = 0;  // where m is ragged, of the row; behind the last group, `groups`
  for (int l = 0; l < d_matrices; ++l) {
    for (int i = 0; i < m; ++i) {
      while (rows_are_ragged && group < groups && i >= problem.begins[size_t(group) + 1]) ++group;
      int const g = rows_are_ragged ? group : l, to = scatters ? d_rows[size_t(i)] : i;
      if (to < 0 || to >= m) continue;
      for (int j = 0; j < n; ++j) {
        double sum = problem.product(b, g, i, j);
        if (scaled && g < groups) sum *= double(scale(0, i)) * double(scale(1 + g, j));
        if (fused) {
          sum += g < groups ? bias.value(g, 0, j) : 0;
          comparison.compare<Out>("preactivation", z, l, to, j, sum);
          sum = (sum < 0 ? 0 : sum) + residual.value(l, i, j);
        }
        if (pair) {
          double const second = problem.product(second_b, g, i, j);
          if (keeps) comparison.compare<Out>("preactivation", z, l, to, j, 2 * sum);
          if (keeps) comparison.compare<Out>("second_product", second_product, l, to, j, second);
          sum = (sum < 0 ? 0 : 2 * sum) * second;
        }
        comparison.compare<Out>("d", d, l, to, j, sum);
      }
    }
  }
  return comparison.report(int64_t(d_matrices) * m * n);
}

std::string run(int m, int n, int k, Options const& options) {
  return options["out"] == "bf16" ? launch<bfloat16_t>(m, n, k, options) : launch<float>(m, n, k, options);
}

}  // namespace moye

int main(int argc, char** argv) { return moye::run_cases(argc, argv, moye::kDefaults, moye::run); }
