// gemm_driver m n k [key=value...]: emulated launches of a row of the table (`row`); prints "ok", "wrong: ..." or
// "error: ...". Without arguments, of each line of stdin. a and b hold integers in [-2, 2] in memory that ends at a
// guard page, as does d; gaps between their rows hold NaN, or 85. Keys, with their defaults:
//   order=NT batch=1 broadcast= (a or b)   as gemm/order.h and GemmArgs say
//   outer=1 middle=1                       the batch's modes before the last; those of a, b, c and the residual lie in
//                                          memory in the opposite order
//   pad=0 d_pad=0                          elements between rows of a and b, and of d
//   out=f32                                d's dtype
//   scales=0     1: the product's rows and columns times powers of two, other ones in each matrix
//   epilogue=0   1: d = relu(2 a b - c + bias) + residual, and the pre-activation; 2: the same without c
//                3: d = relu(a b + bias); 4: d = relu(2 a b + bias) + residual; 5: d = 2 a b - d
//                6: d = 2 a b * relu'(d); 7: as 3, and the pre-activation
//   pair=0       1: d = relu(2 a b) * (a second_b); 2: and both products
//   gate=0       1: d = 2 a b * multiplier * relu'(c), and 2 a b * relu(c)
//   early=0      kEarly...: operands that the kernel may read before it has waited for the kernel ahead
//   special=0    1: a NaN in a, an infinity in b
//   units=0      more: normal numbers in a and b, and d may be wrong by so many 2^-24 of the sum of |a| |b|
//   launches=1   of new operands in other memory, the earlier ones' not to be touched
//   mode=lazy threads=fifo seed=0 races=1 workers=1 multiprocessors=2   emu::Options
//   watchdog=60  seconds after which a CTA is reported as endless
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "driver_support.h"
#include "gemm/batch.h"
#include "gemm/config.h"
#include "moye/arch/types.h"
#include "moye/emu/emu.h"

namespace moye {

Words const kDefaults = {{"order", "NT"},   {"batch", "1"},  {"outer", "1"},   {"middle", "1"},
                         {"broadcast", ""}, {"pad", "0"},    {"d_pad", "0"},   {"out", "f32"},
                         {"epilogue", "0"}, {"pair", "0"},   {"special", "0"}, {"launches", "1"},
                         {"units", "0"},    {"scales", "0"}, {"gate", "0"},    {"early", "0"}};

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
  auto const add_matrices = [&](int64_t batch, int64_t rows, int64_t columns, bool transposed, int pad, int multiple,
                                size_t item) -> Matrices& {
    return memory.emplace_back(batch, rows, columns, transposed, pad, multiple, item);
  };
  Matrices& a =
      add_matrices(broadcast_a ? 1 : batch, m, k, options["order"][0] == 'T', pad, stride_multiple(), sizeof(Element));
  Matrices& b =
      add_matrices(broadcast_b ? 1 : batch, n, k, options["order"][1] == 'N', pad, stride_multiple(), sizeof(Element));
  Matrices& second_b =
      add_matrices(broadcast_b ? 1 : batch, n, k, options["order"][1] == 'N', pad, stride_multiple(), sizeof(Element));
  Matrices& d = add_matrices(batch, m, n, false, d_pad, 1, sizeof(Out));
  Matrices& second_product = add_matrices(batch, m, n, false, d_pad, 1, sizeof(Out));
  Matrices& z = add_matrices(batch, m, n, false, d_pad, 1, sizeof(Out));
  Matrices& c = add_matrices(batch, m, n, true, 0, 1, sizeof(Out));
  Matrices& bias = add_matrices(1, 1, n, false, 0, 1, sizeof(Out));
  // 3: no pairs of elements are words. 8: rows are such of words of 16 bytes.
  int const epilogue = options.number("epilogue"), residual_pad = epilogue == 2 ? 4 : epilogue == 4 ? 8 : 3;
  Matrices& residual = add_matrices(batch, m, n, false, residual_pad, 1, sizeof(Out));
  for (Matrices* matrices : {&a, &b, &c, &bias, &residual, &second_b}) matrices->draw(random);
  double const unit = options.number("units") * 0x1p-24;
  if (unit > 0) {
    for (Matrices* matrices : {&a, &b}) matrices->draw_normal(random);
  }
  if (options.number("special") != 0) {
    a.value(0, m / 2, k / 2) = std::numeric_limits<double>::quiet_NaN();
    b.value(0, n / 3, k - 1) = value_of(ElementB(std::numeric_limits<float>::infinity()));  // or the largest number
  }
  a.write<Element>();
  b.write<ElementB>();
  second_b.write<ElementB>();
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
  args.d_dtype = kDtypeOf<Out>;

  emu::Stream stream = make_stream(options);
  stream.memory = {a.memory("a", false), b.memory("b", false), d.memory("d", true)};
  bool const pair = options.number("pair") != 0, keeps = options.number("pair") == 2;
  if (pair) {
    args.epilogue.alpha = 2;
    args.epilogue.activation = Activation::relu;
    args.epilogue.second_b = second_b.buffer.data();
    stream.memory.push_back(second_b.memory("second_b", false));
  }
  if (keeps) {
    args.epilogue.preactivation = z.buffer.data();
    args.epilogue.second_product = second_product.buffer.data();
    stream.memory.push_back(z.memory("preactivation", true));
    stream.memory.push_back(second_product.memory("second_product", true));
  }
  bool const gate = options.number("gate") != 0;  // of d, whose rows are the pre-activation's and the multiplier's
  Matrices& at = add_matrices(batch, m, n, false, d_pad, 1, sizeof(Out));
  Matrices& multiplier = add_matrices(batch, m, n, false, d_pad, 1, sizeof(Out));
  if (gate) {
    auto const operand = [&](Matrices& matrices) -> EpilogueOperand {
      matrices.draw(random);
      matrices.write<Out>();
      return {matrices.buffer.data(), args.d_batch_strides, matrices.strides[1], 1};
    };
    args.epilogue.alpha = 2;
    args.epilogue.beta = 1;
    args.epilogue.c = operand(at);
    args.epilogue.multiplier = operand(multiplier);
    args.epilogue.activation = Activation::d_relu;
    args.epilogue.preactivation = z.buffer.data();
    stream.memory.push_back(at.memory("c", false));
    stream.memory.push_back(multiplier.memory("multiplier", false));
    stream.memory.push_back(z.memory("preactivation", true));
  }
  bool const fused = epilogue == 1 || epilogue == 2, has_c = epilogue == 1;
  if (fused) {
    args.epilogue = {.alpha = 2,
                     .beta = has_c ? -1.0 : 0.0,
                     .c = {has_c ? c.buffer.data() : nullptr, turned_strides(c.strides[0]), c.strides[1], c.strides[2]},
                     .bias = {bias.buffer.data(), {}, 0, 1},
                     .residual = {residual.buffer.data(), turned_strides(residual.strides[0]), residual.strides[1], 1},
                     .activation = Activation::relu,
                     .preactivation = z.buffer.data()};
    stream.memory.push_back(c.memory("c", false));
    stream.memory.push_back(bias.memory("bias", false));
    stream.memory.push_back(residual.memory("residual", false));
    stream.memory.push_back(z.memory("preactivation", true));
  }
  if (epilogue == 4) {
    args.epilogue.alpha = 2;
    args.epilogue.residual = {residual.buffer.data(), turned_strides(residual.strides[0]), residual.strides[1], 1};
    stream.memory.push_back(residual.memory("residual", false));
  }
  if (epilogue == 5 || epilogue == 6) {
    d.draw(random);
    d.write<Out>();
    args.epilogue.alpha = 2;
    args.epilogue.beta = -1;
    if (epilogue == 6) args.epilogue.activation = Activation::d_relu;
    args.epilogue.c = {d.buffer.data(), args.d_batch_strides, args.d_m_stride, args.d_n_stride};
  }
  if (epilogue == 7) {
    args.epilogue.preactivation = z.buffer.data();
    stream.memory.push_back(z.memory("preactivation", true));
  }
  if (epilogue == 3 || epilogue == 4 || epilogue == 7) {
    args.epilogue.bias = {bias.buffer.data(), {}, 0, 1};
    args.epilogue.activation = Activation::relu;
    stream.memory.push_back(bias.memory("bias", false));
  }
  bool const scaled = options.number("scales") != 0;
  std::vector<float> scales[2];  // of the rows and of the columns of each matrix
  auto const scale = [](int64_t l, int64_t i) { return float(1 << (i + i / 7 + l) % 4); };
  for (int side = 0; scaled && side < 2; ++side) {
    int64_t const extent = side == 0 ? m : n;
    for (int64_t l = 0; l < batch; ++l) {
      for (int64_t i = 0; i < extent; ++i) scales[side].push_back(scale(l, i));
    }
    EpilogueScales const of_side{scales[side].data(), {{extent * middle * inner, extent * inner, extent}}, 1};
    (side == 0 ? args.epilogue.row_scale : args.epilogue.column_scale) = of_side;
    stream.memory.push_back({scales[side].data(), scales[side].size() * sizeof(float), "scales", false});
  }
  args.early = options.number("early");
  for (emu::Memory& array : stream.memory) {
    bool const of_a = array.base == args.a, of_b = array.base == args.b || array.base == args.epilogue.second_b;
    array.lasting = (of_a && (args.early & kEarlyA) != 0) || (of_b && (args.early & kEarlyB) != 0);
  }
  GemmEntry const entry = entry_of_row();
  std::vector<unsigned char> workspace(size_t(entry.workspace_bytes(args)), 0xff);
  args.workspace = workspace.data();
  stream.memory.push_back({workspace.data(), workspace.size(), "workspace", true});
  if (Status status = entry.launch(args, &stream); !status.ok()) return "error: " + status.message;
  for (Matrices const* matrices : {&d, &z, &second_product}) {
    if (std::string const damage = matrices->buffer.damage(); !damage.empty()) return "error: " + damage;
  }

  Comparison comparison;
  for (int64_t l = 0; l < batch; ++l) {
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        double sum = 0, magnitude = 0;
        double const* const row = &a.values[size_t(((broadcast_a ? 0 : turned(l)) * m + i) * k)];
        size_t const column = size_t(((broadcast_b ? 0 : turned(l)) * n + j) * k);
        for (int x = 0; x < k; ++x) {
          sum += row[x] * b.values[column + x];
          magnitude += std::abs(row[x] * b.values[column + x]);
        }
        if (scaled) sum *= double(scale(l, i)) * double(scale(l, j));
        if (fused) {
          sum = 2 * sum - (has_c ? c.value(turned(l), i, j) : 0) + bias.value(0, 0, j);
          comparison.compare<Out>("preactivation", z, l, i, j, sum);
          sum = (sum < 0 ? 0 : sum) + residual.value(turned(l), i, j);
        }
        if (epilogue == 7) comparison.compare<Out>("preactivation", z, l, i, j, sum + bias.value(0, 0, j));
        if (epilogue == 3 || epilogue == 7) sum = std::max(sum + bias.value(0, 0, j), 0.0);
        if (epilogue == 4) sum = std::max(2 * sum + bias.value(0, 0, j), 0.0) + residual.value(turned(l), i, j);
        if (epilogue == 5) sum = 2 * sum - d.value(l, i, j);
        if (epilogue == 6) sum = d.value(l, i, j) > 0 ? 2 * sum : 0;
        if (pair) {
          double second = 0;
          for (int x = 0; x < k; ++x) second += row[x] * second_b.values[column + x];
          if (keeps) comparison.compare<Out>("preactivation", z, l, i, j, 2 * sum);
          if (keeps) comparison.compare<Out>("second_product", second_product, l, i, j, second);
          sum = (sum < 0 ? 0 : 2 * sum) * second;
        }
        if (gate) {
          double const c = at.value(l, i, j);
          comparison.compare<Out>("preactivation", z, l, i, j, 2 * sum * std::max(c, 0.0));
          sum = c > 0 ? 2 * sum * multiplier.value(l, i, j) : 0;
        }
        comparison.compare<Out>("d", d, l, i, j, sum, unit * magnitude);
      }
    }
  }
  if (d.has_written_gap<Out>()) return "error: a gap between d's rows has been written";
  return comparison.report(batch * m * n);
}

std::string run(int m, int n, int k, Options const& options) {
  std::mt19937 random(1);
  std::deque<Matrices> memory;
  std::string report;
  for (int i = 0; i < options.number("launches") && report.empty(); ++i) {
    std::string const& out = options["out"];
    report = out == "bf16"  ? launch<bfloat16_t>(m, n, k, options, random, memory)
             : out == "f16" ? launch<half_t>(m, n, k, options, random, memory)
             : out == "f64" ? launch<double>(m, n, k, options, random, memory)
                            : launch<float>(m, n, k, options, random, memory);
  }
  return report;
}

}  // namespace moye

int main(int argc, char** argv) { return moye::run_cases(argc, argv, moye::kDefaults, moye::run); }
