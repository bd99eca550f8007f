// attention_driver q_rows kv_rows head_dim [key=value...]: one emulated launch of a row of the table (`row`) that
// computes attention or its gradients; prints "ok", "wrong: ..." or "error: ...". Without arguments: a line of such
// words on the standard input is a case, and each has its line of output. All arrays end at a guard page. They hold
// normal numbers; results are held against sums in double, as closely as the rounding of weights allows.
// Keys, with their defaults:
//   batch=1 heads=1 group=1   heads: of keys and values
//   diagonal=none    or an integer: scores above it are left out
//   cap=0            or what no score is above: cap * tanh(score / cap) is in its place; not with a bias
//   mask=none        or its dimensions, of b, h, q and k, the outermost first: of the first row all are masked
//   infinite=0       masked scores are low; 1: -inf
//   bias=none        or its dimensions, likewise: floats of f32 that are added to the scores
//   bias16=0         1: of the row's type
//   ds=0             1: their gradient is a result, f32; 2: of the row's type
//   parts=1          in how many dS is multiplied
//   dropout=none     or the dimensions of which weights are kept, likewise; not with a cap
//   gradients=0      1: where all scores of a row are masked, they have gradients; with dropout alone
//   level=0          1: all scores of a row are the same
//   rest=0           1: what rounding took from O is a result, too
//   pad=8            elements between rows
//   data=1           seed of the numbers
//   sharp=1          factor of the scale, which else is 1 / sqrt(head_dim)
//   order=NT         the only one
//   mode=lazy threads=fifo seed=0 races=1 workers=1 multiprocessors=2   emu::Options
//   watchdog=60      seconds after which a CTA is reported as endless
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "driver_support.h"
#include "gemm/config.h"
#include "moye/emu/emu.h"
#include "moye/emu/guarded_buffer.h"

namespace moye {

Words const kDefaults = {{"batch", "1"},    {"heads", "1"}, {"group", "1"},      {"diagonal", "none"}, {"mask", "none"},
                         {"infinite", "0"}, {"parts", "1"}, {"level", "0"},      {"rest", "0"},        {"pad", "8"},
                         {"data", "1"},     {"sharp", "1"}, {"order", "NT"},     {"bias", "none"},     {"bias16", "0"},
                         {"ds", "0"},       {"cap", "0"},   {"dropout", "none"}, {"gradients", "0"}};

bool is_of_gradients() { return row().kernel == Kernel::sm90_attention_grad; }
// Of a number, what a product may change by rounding it to 16 bits, or to TF32.
constexpr double kUnit = kDtype == bf16 ? 1.0 / 256 : 1.0 / 2048;
constexpr double kLeast = kDtype == f16 ? 1.0 / (1 << 25) : 0;            // what that adds to a subnormal number
constexpr double kResultUnit = kDtype == tf32 ? 1.0 / (1 << 23) : kUnit;  // what rounding a result may change

/// An array (batch * heads, rows, head_dim).
struct Rows : Matrices {
  Rows(int64_t heads, int64_t rows, int64_t head_dim, int pad)
      : Matrices(heads, rows, head_dim, false, pad, 8, sizeof(Element)) {}

  /// Normal numbers that a product does not round, times a factor.
  void fill(std::mt19937& random, float factor) {
    draw_normal(random);
    for (double& value : values) value = value_of(ElementOf<kDtype>::Type(factor * float(value)));
    write<Element>();
  }

  AttentionArray of(int64_t heads) { return {buffer.data(), heads * strides[0], strides[0], strides[1]}; }
};

/// One number of each row of queries.
struct OfRows {
  std::vector<double> values;
  emu::GuardedBuffer buffer;

  explicit OfRows(size_t rows) : values(rows), buffer(rows * sizeof(float)) {}
  float* data() { return reinterpret_cast<float*>(buffer.data()); }
  void write() {
    for (size_t i = 0; i < values.size(); ++i) data()[i] = float(values[i]);
  }
};

struct Problem {
  int batch, heads, group, q_rows, kv_rows, head_dim;
  double scale;
  bool is_causal;
  int diagonal;
  std::string mask;
  bool is_infinite;
  int parts;
  bool is_level;
  std::string bias;
  bool is_bias16;
  double cap;
  std::string dropout;
  bool masked_have_gradients;

  bool counts(int i, int j) const { return !is_causal || j <= i + diagonal; }
};

/// An array along some of the scores' dimensions.
struct OfScores {
  int64_t strides[4] = {};  // along batch, heads, rows and columns
  int64_t elements = 1;

  OfScores(Problem const& problem, std::string const& dims) {
    int64_t const sizes[4] = {problem.batch, problem.heads * problem.group, problem.q_rows, problem.kv_rows};
    for (auto letter = dims.rbegin(); letter != dims.rend(); ++letter) {
      size_t const dimension = std::string("bhqk").find(*letter);
      strides[dimension] = elements;
      elements *= sizes[dimension];
    }
  }

  int64_t offset(Problem const& problem, int head, int i, int j) const {
    int const heads = problem.heads * problem.group;
    return head / heads * strides[0] + head % heads * strides[1] + i * strides[2] + j * strides[3];
  }
};

/// What is added to the scores; no elements where the problem has nothing.
struct Bias : OfScores {
  std::vector<double> values;
  emu::GuardedBuffer buffer{0};

  Bias(Problem const& problem, std::mt19937& random) : OfScores(problem, problem.bias == "none" ? "" : problem.bias) {
    if (problem.bias == "none") return;
    std::normal_distribution<float> normal(0, 2);
    values.resize(size_t(elements));
    size_t const bytes = problem.is_bias16 ? sizeof(Element) : sizeof(float);
    buffer = emu::GuardedBuffer(size_t(elements) * bytes);
    for (size_t i = 0; i < values.size(); ++i) {
      float const value = normal(random);
      Element const rounded(value);
      std::memcpy(buffer.data() + i * bytes, problem.is_bias16 ? static_cast<void const*>(&rounded) : &value, bytes);
      values[i] = problem.is_bias16 ? value_of(rounded) : value;
    }
  }

  double at(Problem const& problem, int head, int i, int j) const {
    return values.empty() ? 0 : values[size_t(offset(problem, head, i, j))];
  }
};

/// Bytes of a mask, or of which weights are kept; none where the problem has none.
struct Mask : OfScores {
  emu::GuardedBuffer buffer{0};

  Mask(Problem const& problem, std::string const& dims, bool masks_first_row, std::mt19937& random)
      : OfScores(problem, dims == "none" ? "" : dims) {
    if (dims == "none") return;
    buffer = emu::GuardedBuffer(size_t(elements));
    for (int64_t i = 0; i < elements; ++i) {
      bool const is_of_first_row = masks_first_row && strides[2] != 0 && i / strides[2] % problem.q_rows == 0;
      buffer.data()[i] = !is_of_first_row && random() % 10 < 7;
    }
  }

  bool keeps(Problem const& problem, int head, int i, int j) const {
    return buffer.size() == 0 || buffer.data()[offset(problem, head, i, j)] != 0;
  }
};

constexpr double kFactor = 1.25;  // of weights that are kept

/// A result's exact numbers, and how far off each may be.
struct Exact {
  std::vector<double> values, allowed;
  explicit Exact(size_t size) : values(size), allowed(size) {}
  explicit Exact(Rows const& rows) : Exact(rows.values.size()) {}
};

struct Reference {
  Exact o, dq, dk, dv, ds;
};

/// The sums of one row of queries: lse and delta, and what it adds to the results.
void add_row(Problem const& problem, Mask const& mask, Bias const& bias, Mask const& dropout, Rows& q, Rows& k, Rows& v,
             Rows& d_o, int head, int i, OfRows& lse, OfRows& delta, Reference& to) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kLow = -1e30 * 0.6931471805599453;
  int const kv_head = head / problem.group, dim = problem.head_dim;
  std::vector<double> p(size_t(problem.kv_rows), 0.0), dp(p), size_of_dp(p), slope(size_t(problem.kv_rows), 1.0);
  double most = -kInfinity, total = 0;
  bool is_masked = true;  // all that counts
  for (int j = 0; j < problem.kv_rows; ++j) {
    double score = 0;
    for (int d = 0; d < dim; ++d) {
      score += q.value(head, i, d) * k.value(kv_head, j, d);
      dp[size_t(j)] += d_o.value(head, i, d) * v.value(kv_head, j, d);
      size_of_dp[size_t(j)] += std::abs(d_o.value(head, i, d) * v.value(kv_head, j, d));
    }
    score *= problem.scale;
    if (problem.cap > 0) {
      double const tanh = std::tanh(score / problem.cap);
      score = problem.cap * tanh;
      slope[size_t(j)] = 1 - tanh * tanh;
    }
    bool const is_kept = mask.keeps(problem, head, i, j);
    p[size_t(j)] = !problem.counts(i, j) ? -kInfinity
                   : is_kept             ? score + bias.at(problem, head, i, j)
                   : problem.is_infinite ? -kInfinity
                                         : kLow;
    is_masked = is_masked && !(problem.counts(i, j) && is_kept);
    most = std::max(most, p[size_t(j)]);
  }
  for (double& weight : p) {
    weight = std::isinf(most) ? 0 : std::exp(weight - most);
    total += weight;
  }
  size_t const row = size_t(head) * size_t(problem.q_rows) + size_t(i);
  bool const has_column = problem.kv_rows > 0 && problem.counts(i, 0);
  lse.values[row] = total == 0 ? -kInfinity : most + std::log(total);
  if (problem.bias != "none" && is_of_gradients()) {  // two arrays
    lse.values[row] = total == 0 ? 0 : most;
    lse.values[lse.values.size() / 2 + row] = !has_column  ? kInfinity
                                              : total == 0 ? std::numeric_limits<double>::quiet_NaN()
                                                           : std::log(total);
  }
  auto const of_weight = [&](int j) {
    return problem.dropout == "none" ? 1 : dropout.keeps(problem, head, i, j) ? kFactor : 0;
  };
  double sum = 0;
  for (int j = 0; j < problem.kv_rows; ++j) {
    if (total > 0) p[size_t(j)] /= total;
    if (is_masked && problem.is_infinite && problem.counts(i, j))
      p[size_t(j)] = std::numeric_limits<double>::quiet_NaN();
    dp[size_t(j)] *= of_weight(j);
    size_of_dp[size_t(j)] *= of_weight(j);
    sum += p[size_t(j)] * dp[size_t(j)];
  }
  delta.values[row] = sum;
  // Weights are off by what they are rounded to, and by a little of what their scores are. So is dS, of which two parts
  // are held to less of that little.
  double const little = problem.parts == 1 ? 1e-4 : 1e-5;
  // The forward pass divides in the end: exponentials that are all 1 are not rounded.
  bool const is_rounded = is_of_gradients() || !problem.is_level || problem.bias != "none";
  double const off = is_rounded ? 1.25 * kUnit + 1e-4 : 1e-5,
               off_of_ds = problem.parts == 1 ? off : 1.25 * kUnit * kUnit + little;
  auto const at = [&](Rows const& rows, int of_head, int of_row, int d) {
    return (size_t(of_head) * size_t(rows.shape[1]) + size_t(of_row)) * size_t(dim) + size_t(d);
  };
  auto const add = [](Exact& exact, size_t index, double value, double allowed) {
    exact.values[index] += value;
    exact.allowed[index] += allowed;
  };
  for (int j = 0; j < problem.kv_rows; ++j) {
    bool const has_gradient = mask.keeps(problem, head, i, j) || (is_masked && problem.masked_have_gradients);
    bool const is_kept = problem.counts(i, j) && has_gradient;
    double const weight = p[size_t(j)], factor = slope[size_t(j)] * problem.scale;
    double const ds = is_kept ? weight * (dp[size_t(j)] - sum) * factor : 0;
    double const off_of_dp = is_kept ? little * weight * (size_of_dp[size_t(j)] + std::abs(sum)) : 0;
    double const off_ds = off_of_ds * std::abs(ds) + (off_of_dp + kLeast) * factor;
    bool const is_no_number = std::isnan(weight);
    double const dropped = of_weight(j) == 0 && !is_no_number ? 0 : of_weight(j) * weight;
    double const of_dv = of_weight(j) == 0 ? 0 : dropped;
    double const off_weight = off * dropped + of_weight(j) * kLeast;
    // Of f32, from scores that are as precise as those of two parts.
    size_t const of_score = row * size_t(problem.kv_rows) + size_t(j);
    to.ds.values[of_score] = ds / problem.scale;
    to.ds.allowed[of_score] =
        1e-4 * (std::abs(ds) / problem.scale + (is_kept ? weight * size_of_dp[size_t(j)] : 0)) + 1e-7;
    for (int d = 0; d < dim; ++d) {
      double const of_q = q.value(head, i, d), of_k = k.value(kv_head, j, d), of_v = v.value(kv_head, j, d);
      double const of_o = d_o.value(head, i, d);
      add(to.o, at(q, head, i, d), dropped * of_v, off_weight * std::abs(of_v));
      add(to.dq, at(q, head, i, d), ds * of_k, off_ds * std::abs(of_k));
      add(to.dk, at(k, kv_head, j, d), ds * of_q, off_ds * std::abs(of_q));
      add(to.dv, at(k, kv_head, j, d), of_dv * of_o, (of_weight(j) == 0 ? 0 : off_weight) * std::abs(of_o));
    }
  }
}

void compare(Comparison& comparison, char const* name, Rows const& rows, Exact const& exact) {
  size_t index = 0;
  for (int64_t head = 0; head < rows.shape[0]; ++head) {
    for (int64_t i = 0; i < rows.shape[1]; ++i) {
      for (int64_t d = 0; d < rows.shape[2]; ++d, ++index) {
        double const value = exact.values[index],
                     allowed = exact.allowed[index] + kResultUnit * std::abs(value) + kLeast;
        comparison.compare<Element>(name, rows, head, i, d, value, allowed);
      }
    }
  }
  if (rows.has_written_gap<Element>() && comparison.wrong++ == 0)
    comparison.first = std::string("between rows of ") + name;
}

/// What is left of exact numbers behind what was written.
Exact rest_of(Exact const& exact, Rows const& rows) {
  Exact rest = exact;
  size_t index = 0;
  for (int64_t head = 0; head < rows.shape[0]; ++head) {
    for (int64_t i = 0; i < rows.shape[1]; ++i) {
      for (int64_t d = 0; d < rows.shape[2]; ++d)
        rest.values[index++] -= value_of(reinterpret_cast<Element const*>(rows.buffer.data())[rows.offset(head, i, d)]);
    }
  }
  return rest;
}

/// One launch; what is wrong with it, or nothing.
std::string launch(Problem const& problem, Options const& options) {
  int const heads = problem.heads * problem.group, pad = options.number("pad");
  int64_t const q_heads = int64_t(problem.batch) * heads, kv_heads = int64_t(problem.batch) * problem.heads;
  auto const of_queries = [&] { return Rows(q_heads, problem.q_rows, problem.head_dim, pad); };
  auto const of_keys = [&] { return Rows(kv_heads, problem.kv_rows, problem.head_dim, pad); };
  Rows q = of_queries(), d_o = of_queries(), o = of_queries(), o_rest = of_queries(), dq = of_queries();
  Rows k = of_keys(), v = of_keys(), dk = of_keys(), dv = of_keys();
  std::mt19937 random(unsigned(options.number("data")));
  for (Rows* rows : {&q, &k, &v, &d_o}) rows->fill(random, rows == &q && problem.is_level ? 0 : 1);
  Mask const mask(problem, problem.mask, true, random);
  Bias const bias(problem, random);
  Mask const dropout(problem, problem.dropout, false, random);
  bool const has_bias = problem.bias != "none";
  int const ds_bytes = options.number("ds") == 0 ? 0 : options.number("ds") == 1 ? 4 : 2;
  for (Rows* rows : {&o, &o_rest, &dq, &dk, &dv}) std::memset(rows->buffer.data(), 0xff, rows->buffer.size());
  size_t const rows = size_t(q_heads) * size_t(problem.q_rows), scores = rows * size_t(problem.kv_rows);
  OfRows lse(rows * (has_bias ? 2 : 1)), delta(rows);
  emu::GuardedBuffer ds(scores * size_t(ds_bytes));
  Reference exact{Exact(o), Exact(dq), Exact(dk), Exact(dv), Exact(scores)};
  for (int head = 0; head < q_heads; ++head) {
    for (int i = 0; i < problem.q_rows; ++i)
      add_row(problem, mask, bias, dropout, q, k, v, d_o, head, i, lse, delta, exact);
  }
  std::memset(ds.data(), 0xff, ds.size());
  std::memset(lse.buffer.data(), 0xff, lse.buffer.size());
  AttentionArgs args{.batch = problem.batch,
                     .kv_heads = problem.heads,
                     .group = problem.group,
                     .q_rows = problem.q_rows,
                     .kv_rows = problem.kv_rows,
                     .head_dim = problem.head_dim,
                     .scale = float(problem.scale),
                     .is_causal = problem.is_causal,
                     .diagonal = problem.diagonal,
                     .q = q.of(heads),
                     .k = k.of(problem.heads),
                     .v = v.of(problem.heads),
                     .mask = {},
                     .o = {},
                     .o_rest = {},
                     .lse = lse.data(),
                     .d_o = {},
                     .delta = nullptr,
                     .ds_parts = problem.parts,
                     .cap = float(problem.cap),
                     .dq = {},
                     .dk = {},
                     .dv = {},
                     .bias = {},
                     .ds = {},
                     .dropout = {}};
  emu::Stream stream = make_stream(options);
  stream.memory = {q.memory("q", false),
                   k.memory("k", false),
                   v.memory("v", false),
                   {lse.buffer.data(), lse.buffer.size(), "lse", !is_of_gradients()}};
  if (problem.mask != "none") {
    auto const& [of_batch, of_head, of_row, of_column] = mask.strides;
    args.mask = {
        {mask.buffer.data(), of_batch, of_head, of_row, of_column}, problem.is_infinite, problem.masked_have_gradients};
    stream.memory.push_back({mask.buffer.data(), mask.buffer.size(), "mask", false});
  }
  if (problem.dropout != "none") {
    auto const& [of_batch, of_head, of_row, of_column] = dropout.strides;
    args.dropout = {{dropout.buffer.data(), of_batch, of_head, of_row, of_column}, float(kFactor)};
    stream.memory.push_back({dropout.buffer.data(), dropout.buffer.size(), "dropout", false});
  }
  if (has_bias) {
    auto const& [of_batch, of_head, of_row, of_column] = bias.strides;
    args.bias = {bias.buffer.data(), of_batch, of_head, of_row, of_column, !problem.is_bias16};
    stream.memory.push_back({bias.buffer.data(), bias.buffer.size(), "bias", false});
  }
  if (ds_bytes > 0) {
    args.ds = {ds.data(), ds_bytes == 4};
    stream.memory.push_back({ds.data(), ds.size(), "ds", true});
  }
  if (is_of_gradients()) {
    lse.write();
    delta.write();
    args.d_o = d_o.of(heads);
    args.delta = delta.data();
    args.dq = dq.of(heads);
    args.dk = dk.of(problem.heads);
    args.dv = dv.of(problem.heads);
    stream.memory.push_back(d_o.memory("d_o", false));
    stream.memory.push_back({delta.buffer.data(), delta.buffer.size(), "delta", false});
    for (auto const& [name, rows] : {std::pair{"dq", &dq}, {"dk", &dk}, {"dv", &dv}})
      stream.memory.push_back(rows->memory(name, true));
  } else {
    args.o = o.of(heads);
    stream.memory.push_back(o.memory("o", true));
    if (options.number("rest") != 0) {
      args.o_rest = o_rest.of(heads);
      stream.memory.push_back(o_rest.memory("o_rest", true));
    }
  }
  if (Status status = entry_of_row().launch_attention(args, &stream); !status.ok()) return "error: " + status.message;
  for (Rows const* rows : {&o, &o_rest, &dq, &dk, &dv}) {
    if (std::string const damage = rows->buffer.damage(); !damage.empty()) return "error: " + damage;
  }
  if (std::string const damage = lse.buffer.damage(); !damage.empty()) return "error: " + damage;
  Comparison comparison;
  if (is_of_gradients()) {
    compare(comparison, "dq", dq, exact.dq);
    compare(comparison, "dk", dk, exact.dk);
    compare(comparison, "dv", dv, exact.dv);
    if (std::string const damage = ds.damage(); !damage.empty()) return "error: " + damage;
    for (size_t i = 0; i < scores && ds_bytes > 0; ++i) {
      double const got = ds_bytes == 4 ? double(reinterpret_cast<float const*>(ds.data())[i])
                                       : value_of(reinterpret_cast<Element const*>(ds.data())[i]);
      double const expected = exact.ds.values[i];
      double const allowed = exact.ds.allowed[i] + (ds_bytes == 4 ? 0 : kUnit * std::abs(expected) + kLeast);
      if (same(got, expected) || std::abs(got - expected) <= allowed) continue;
      if (comparison.wrong++ == 0)
        comparison.first =
            "ds[" + std::to_string(i) + "] is " + std::to_string(got) + ", not " + std::to_string(expected);
    }
    return comparison.report(int64_t(dq.values.size() + dk.values.size() + dv.values.size()));
  }
  compare(comparison, "o", o, exact.o);
  if (args.o_rest.data != nullptr) compare(comparison, "o_rest", o_rest, rest_of(exact.o, o));
  for (size_t i = 0; i < rows; ++i) {
    // With a bias: the largest score, and the logarithm of the sum relative to it, which is inf where there is no
    // column.
    double const sum = has_bias ? lse.data()[rows + i] : 0;
    double const got = sum == std::numeric_limits<double>::infinity() ? -sum : lse.data()[i] + sum;
    double const expected = has_bias && std::isnan(exact.o.values[i * size_t(problem.head_dim)])
                                ? std::numeric_limits<double>::quiet_NaN()
                                : lse.values[i];
    double const rounding = kDtype == tf32 ? kUnit : 0;  // of exponentials, before they are added up
    if (same(got, expected) || std::abs(got - expected) <= rounding + 1e-4 * (1 + std::abs(expected))) continue;
    if (comparison.wrong++ == 0)
      comparison.first =
          "lse[" + std::to_string(i) + "] is " + std::to_string(got) + ", not " + std::to_string(expected);
  }
  return comparison.report(int64_t(o.values.size() + lse.values.size()));
}

std::string run(int q_rows, int kv_rows, int head_dim, Options const& options) {
  Problem const problem{.batch = options.number("batch"),
                        .heads = options.number("heads"),
                        .group = options.number("group"),
                        .q_rows = q_rows,
                        .kv_rows = kv_rows,
                        .head_dim = head_dim,
                        .scale = double(float(options.number("sharp") / std::sqrt(double(head_dim)))),
                        .is_causal = options["diagonal"] != "none",
                        .diagonal = options.number("diagonal"),
                        .mask = options["mask"],
                        .is_infinite = options.number("infinite") != 0,
                        .parts = options.number("parts"),
                        .is_level = options.number("level") != 0,
                        .bias = options["bias"],
                        .is_bias16 = options.number("bias16") != 0,
                        .cap = std::stod(options["cap"]),
                        .dropout = options["dropout"],
                        .masked_have_gradients = options.number("gradients") != 0};
  return launch(problem, options);
}

}  // namespace moye

int main(int argc, char** argv) { return moye::run_cases(argc, argv, moye::kDefaults, moye::run); }
