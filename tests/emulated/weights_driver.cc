// weights_driver m n k group=64 [key=value...]: one emulated launch of a row of the table (`row`) that multiplies
// with weights; prints "ok", "wrong: ..." or "error: ...". Without arguments: a line of such words on the standard
// input is a case, and each has its line of output. All arrays end at a guard page. a holds integers in [-2, 2],
// weights are any that their dtype has (of e4m3 those below 32 in magnitude), scales powers of two: all sums are exact.
// Keys, with their defaults:
//   group=64         rows of b that share a row of scales; 0: all
//   parts=1          CTAs that share a tile
//   data=1           seed of the numbers
//   signed=1         weights of 4 bits: 0: from 0 to 15, else from -8 to 7
//   zeros=0          1: zeros, in the weights' range
//   scales=f32       their dtype: f32, bf16 or f16
//   out=f32          d's dtype: f32 or a's
//   special=0        1: a scale is NaN, an element of a is infinite, and where a group is not split another scale
//   order=NN         the only one
//   mode=lazy threads=fifo seed=0 races=1 workers=1 multiprocessors=2   emu::Options
//   watchdog=60      seconds after which a CTA is reported as endless
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "driver_support.h"
#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/weights.h"
#include "moye/arch/types.h"
#include "moye/emu/emu.h"
#include "moye/emu/guarded_buffer.h"

namespace moye {

Words const kDefaults = {{"group", "64"},   {"parts", "1"}, {"data", "1"},    {"signed", "1"}, {"zeros", "0"},
                         {"scales", "f32"}, {"out", "f32"}, {"special", "0"}, {"order", "NN"}};

constexpr WeightKind kKind = weight_kind(kDtype);

/// A weight as its bits, and what it is.
struct Weight {
  uint8_t bits;
  double value;
};

Weight draw_weight(std::mt19937& random, bool is_signed) {
  if constexpr (kKind == WeightKind::s8) {
    int const value = int(random() % 256) - 128;
    return {uint8_t(value), double(value)};
  } else if constexpr (kKind == WeightKind::s4) {
    int const value = int(random() % 16) - (is_signed ? 8 : 0);
    return {uint8_t(value & 15), double(value)};
  } else {
    float_e4m3_t const value = float_e4m3_t::bitcast(uint8_t(random() % 0x60 | random() % 2 << 7));
    return {value.storage, double(float(value))};
  }
}

struct Weights {
  int n, k;
  std::vector<double> values;  // (k, n)
  emu::GuardedBuffer buffer;

  Weights(int rows, int columns, bool is_signed, std::mt19937& random)
      : n(columns),
        k(rows),
        values(size_t(rows) * size_t(columns)),
        buffer((size_t(rows) * size_t(columns) * size_t(weight_bits(kDtype)) + 7) / 8) {
    std::memset(buffer.data(), 0, buffer.size());
    for (size_t i = 0; i < values.size(); ++i) {
      Weight const weight = draw_weight(random, is_signed);
      values[i] = weight.value;
      if constexpr (kKind == WeightKind::s4) {
        buffer.data()[i / 2] |= uint8_t(weight.bits << (i % 2 * 4));
      } else {
        buffer.data()[i] = weight.bits;
      }
    }
  }
};

template <class Scale>
void write_scales(emu::GuardedBuffer& buffer, std::vector<double> const& values) {
  for (size_t i = 0; i < values.size(); ++i) reinterpret_cast<Scale*>(buffer.data())[i] = Scale(float(values[i]));
}

/// One launch; what is wrong with it, or nothing.
template <class Out>
std::string launch(int m, int n, int k, Options const& options) {
  bool const is_signed = options.number("signed") != 0, has_zeros = options.number("zeros") != 0;
  int const group = options.number("group") > 0 ? options.number("group") : std::max(k, 1);
  int const groups = std::max(1, (k + group - 1) / group);
  std::mt19937 random(unsigned(options.number("data")));
  Matrices a(1, m, k, false, 0, 1, sizeof(Element)), d(1, m, n, false, 0, 1, sizeof(Out));
  a.draw(random);
  Weights const weights(k, n, is_signed, random);
  std::vector<double> scales(size_t(groups) * size_t(n));
  for (double& scale : scales) scale = std::ldexp(random() % 2 == 0 ? 1.0 : -1.0, int(random() % 5) - 2);
  if (options.number("special") != 0) {
    scales[random() % scales.size()] = std::numeric_limits<double>::quiet_NaN();
    // The sums of a group's parts are multiplied on their own: infinity times one of each sign is NaN.
    if (options.number("parts") == 1) scales[random() % scales.size()] = std::numeric_limits<double>::infinity();
    if (m * k > 0) a.values[random() % a.values.size()] = std::numeric_limits<double>::infinity();
  }
  a.write<Element>();
  std::vector<double> zeros(scales.size());
  emu::GuardedBuffer zero_bytes(zeros.size());
  for (size_t i = 0; i < zeros.size(); ++i) {
    Weight zero{0, 0};
    if constexpr (kKind != WeightKind::e4m3) zero = draw_weight(random, is_signed);
    zeros[i] = has_zeros ? zero.value : 0;
    zero_bytes.data()[i] = uint8_t(int(zero.value));
  }
  std::string const& of_scales = options["scales"];
  Dtype const scale_dtype = of_scales == "f32" ? f32 : of_scales == "bf16" ? bf16 : f16;
  emu::GuardedBuffer scale_bytes(scales.size() * size_t(item_bytes(scale_dtype)));
  if (scale_dtype == f32) write_scales<float>(scale_bytes, scales);
  if (scale_dtype == bf16) write_scales<bfloat16_t>(scale_bytes, scales);
  if (scale_dtype == f16) write_scales<half_t>(scale_bytes, scales);

  WeightsArgs const args{.gemm = {.a = a.buffer.data(),
                                  .b = weights.buffer.data(),
                                  .d = d.buffer.data(),
                                  .workspace = nullptr,
                                  .batch = 1,
                                  .m = m,
                                  .n = n,
                                  .k = k,
                                  .batch_sizes = make_batch_sizes(1, 1, 1),
                                  .a_batch_strides = {},
                                  .a_m_stride = k,
                                  .a_k_stride = 1,
                                  .b_batch_strides = {},
                                  .b_n_stride = 1,
                                  .b_k_stride = n,
                                  .d_batch_strides = {},
                                  .d_m_stride = n,
                                  .d_n_stride = 1,
                                  .d_dtype = kDtypeOf<Out>},
                         .scales = scale_bytes.data(),
                         .scale_dtype = scale_dtype,
                         .zeros = has_zeros ? reinterpret_cast<int8_t const*>(zero_bytes.data()) : nullptr,
                         .group = group,
                         .is_signed = kKind == WeightKind::s8 || (kKind == WeightKind::s4 && is_signed),
                         .parts = options.number("parts")};
  emu::Stream stream = make_stream(options);
  stream.memory = {a.memory("a", false),
                   {weights.buffer.data(), weights.buffer.size(), "b", false},
                   {scale_bytes.data(), scale_bytes.size(), "scales", false},
                   {zero_bytes.data(), zero_bytes.size(), "zeros", false},
                   d.memory("d", true)};
  if (Status status = entry_of_row().launch_weights(args, &stream); !status.ok()) return "error: " + status.message;
  if (std::string const damage = d.buffer.damage(); !damage.empty()) return "error: " + damage;
  Comparison comparison;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int g = 0; g < groups; ++g) {
        double of_group = 0;
        size_t const at = size_t(g) * size_t(n) + size_t(j);
        for (int x = g * group; x < std::min(k, (g + 1) * group); ++x) {
          of_group += a.value(0, i, x) * (weights.values[size_t(x) * size_t(n) + size_t(j)] - zeros[at]);
        }
        if (k > 0) sum += scales[at] * of_group;
      }
      comparison.compare<Out>("d", d, 0, i, j, sum);
    }
  }
  return comparison.report(int64_t(m) * n);
}

std::string run(int m, int n, int k, Options const& options) {
  return options["out"] == "f32" ? launch<float>(m, n, k, options) : launch<Element>(m, n, k, options);
}

}  // namespace moye

int main(int argc, char** argv) { return moye::run_cases(argc, argv, moye::kDefaults, moye::run); }
