// blocks_driver m n k [key=value...]: one emulated launch of a row of the table (`row`) that multiplies 8-bit floats
// whose blocks of 128 along k have scales; prints "ok", "wrong: ..." or "error: ...". Without arguments: a line of such
// words on the standard input is a case, and each has its line of output. All arrays end at a guard page. a and b hold
// integers in [-2, 2], scales are powers of two from 1/8 to 8 of both signs: all sums are exact.
// Keys, with their defaults:
//   batch=1          matrices
//   columns=1        0: b has a scale for 128 of n
//   data=1           seed of the numbers
//   out=f32          d's dtype: f32, bf16 or f16
//   special=0        1: a scale of each operand is NaN, another one infinite
//   order=NT         the only one
//   mode=lazy threads=fifo seed=0 races=1 workers=1 multiprocessors=2   emu::Options
//   watchdog=60      seconds after which a CTA is reported as endless
#include <cmath>
#include <cstdint>
#include <limits>
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

Words const kDefaults = {{"batch", "1"}, {"columns", "1"}, {"data", "1"},
                         {"out", "f32"}, {"special", "0"}, {"order", "NT"}};

/// (batch, rows, columns), f32.
struct Scales {
  int rows, columns;
  std::vector<float> values;
  emu::GuardedBuffer buffer;

  Scales(int batch, int rows, int columns)
      : rows(rows),
        columns(columns),
        values(size_t(batch) * size_t(rows) * size_t(columns), std::numeric_limits<float>::quiet_NaN()),
        buffer(values.size() * sizeof(float)) {}

  float& at(int batch, int row, int column) {
    return values[(size_t(batch) * size_t(rows) + size_t(row)) * size_t(columns) + size_t(column)];
  }
  void write() { std::copy(values.begin(), values.end(), reinterpret_cast<float*>(buffer.data())); }
  emu::Memory memory(char const* name) const { return {buffer.data(), buffer.size(), name, false}; }
};

/// One launch; what is wrong with it, or nothing.
template <class Out>
std::string launch(int m, int n, int k, Options const& options) {
  int const batch = options.number("batch"), blocks = k / kScaledBlock, of_n = (n + kScaledBlock - 1) / kScaledBlock;
  bool const of_columns = options.number("columns") != 0;
  std::mt19937 random(unsigned(options.number("data")));
  Matrices a(batch, m, k, false, 0, 1, 1), b(batch, n, k, false, 0, 1, 1), d(batch, m, n, false, 0, 1, sizeof(Out));
  a.draw(random);
  b.draw(random);
  a.write<Element>();
  b.write<ElementB>();
  // What lies behind the last column of b is NaN.
  Scales of_a(batch, m, blocks), of_b(batch, of_columns ? blocks : of_n, of_columns ? of_n * kScaledBlock : blocks);
  auto const scale_of_b = [&](int l, int j, int block) -> float& {
    return of_columns ? of_b.at(l, block, j) : of_b.at(l, j / kScaledBlock, block);
  };
  auto const draw = [&] { return std::ldexp(random() % 2 == 0 ? 1.0f : -1.0f, int(random() % 7) - 3); };
  for (float& value : of_a.values) value = draw();
  for (int l = 0; l < batch; ++l) {
    for (int j = 0; j < n; j += of_columns ? 1 : kScaledBlock) {
      for (int block = 0; block < blocks; ++block) scale_of_b(l, j, block) = draw();
    }
  }
  if (options.number("special") != 0 && blocks > 0) {
    float const specials[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
    for (float const special : specials) {
      of_a.at(int(random() % unsigned(batch)), int(random() % unsigned(m)), int(random() % unsigned(blocks))) = special;
      scale_of_b(int(random() % unsigned(batch)), int(random() % unsigned(n)), int(random() % unsigned(blocks))) =
          special;
    }
  }
  of_a.write();
  of_b.write();

  auto const stride = [&](Matrices const& matrices) { return BatchStrides{{0, 0, matrices.strides[0]}}; };
  BlockScaledArgs const args{.gemm = {.a = a.buffer.data(),
                                      .b = b.buffer.data(),
                                      .d = d.buffer.data(),
                                      .workspace = nullptr,
                                      .batch = batch,
                                      .m = m,
                                      .n = n,
                                      .k = k,
                                      .batch_sizes = make_batch_sizes(1, 1, batch),
                                      .a_batch_strides = stride(a),
                                      .a_m_stride = k,
                                      .a_k_stride = 1,
                                      .b_batch_strides = stride(b),
                                      .b_n_stride = k,
                                      .b_k_stride = 1,
                                      .d_batch_strides = stride(d),
                                      .d_m_stride = n,
                                      .d_n_stride = 1,
                                      .d_dtype = kDtypeOf<Out>},
                             .a_scales = reinterpret_cast<float const*>(of_a.buffer.data()),
                             .b_scales = reinterpret_cast<float const*>(of_b.buffer.data()),
                             .of_columns = of_columns};
  emu::Stream stream = make_stream(options);
  stream.memory = {a.memory("a", false), b.memory("b", false), of_a.memory("a_scales"), of_b.memory("b_scales"),
                   d.memory("d", true)};
  if (Status status = entry_of_row().launch_block_scaled(args, &stream); !status.ok())
    return "error: " + status.message;
  if (std::string const damage = d.buffer.damage(); !damage.empty()) return "error: " + damage;
  Comparison comparison;
  for (int l = 0; l < batch; ++l) {
    for (int i = 0; i < m; ++i) {
      for (int j = 0; j < n; ++j) {
        double sum = 0;
        for (int block = 0; block < blocks; ++block) {
          double of_block = 0;
          for (int x = block * kScaledBlock; x < (block + 1) * kScaledBlock; ++x) {
            of_block += a.value(l, i, x) * b.value(l, j, x);
          }
          sum += of_block * double(of_a.at(l, i, block)) * double(scale_of_b(l, j, block));
        }
        comparison.compare<Out>("d", d, l, i, j, sum);
      }
    }
  }
  return comparison.report(int64_t(batch) * m * n);
}

std::string run(int m, int n, int k, Options const& options) {
  std::string const& out = options["out"];
  if (out == "bf16") return launch<bfloat16_t>(m, n, k, options);
  return out == "f16" ? launch<half_t>(m, n, k, options) : launch<float>(m, n, k, options);
}

}  // namespace moye

int main(int argc, char** argv) { return moye::run_cases(argc, argv, moye::kDefaults, moye::run); }
