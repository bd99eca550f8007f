// What drivers of emulated kernels share: the row that they run, their options, and matrices in guarded memory.
//   Options     key=value words of a command line, and their defaults
//   Matrices    matrices in memory that ends at a guard page, and their values
//   Comparison  what a launch has written, compared with what it should have written
//   run_cases   main() of a driver that runs a case of each line of stdin
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "gemm/config.h"
#include "gemm/element.h"
#include "moye/arch/types.h"
#include "moye/emu/emu.h"
#include "moye/emu/guarded_buffer.h"

namespace moye {
using enum Kernel;
using enum Dtype;

/// The row that runs: driver.py defines both beside its kernel, so that rows of a dtype share a driver.
GemmConfig row();
GemmEntry entry_of_row();

inline constexpr Dtype kDtype = MOYE_DTYPE;
using Element = ElementOf<storage_dtype(kDtype)>::Type;  // of a
using ElementB = ElementOf<storage_dtype_of_b(kDtype)>::Type;
/// Elements that divide a stride of a and b.
inline int stride_multiple() { return std::max(1, row().alignment / int(sizeof(Element))); }

using Words = std::map<std::string, std::string>;

/// What every driver takes: emu::Options.
inline Words const kEmulatorWords = {{"mode", "lazy"}, {"threads", "fifo"},      {"seed", "0"},     {"races", "1"},
                                     {"workers", "1"}, {"multiprocessors", "2"}, {"watchdog", "60"}};

struct Options {
  Words words;  // at first the defaults

  explicit Options(Words own) : words(std::move(own)) { words.insert(kEmulatorWords.begin(), kEmulatorWords.end()); }

  std::string const& operator[](char const* key) const { return words.at(key); }
  int number(char const* key) const { return std::atoi(words.at(key).c_str()); }

  /// "key=value"; false where there is no such key.
  bool set(std::string const& word) {
    size_t const equals = word.find('=');
    if (equals == std::string::npos || words.count(word.substr(0, equals)) == 0) return false;
    words[word.substr(0, equals)] = word.substr(equals + 1);
    return true;
  }
};

inline emu::Stream make_stream(Options const& options) {
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
  return stream;
}

template <class T>
double value_of(T x) {
  if constexpr (std::is_arithmetic_v<T>) {
    return double(x);
  } else {
    return double(float(x));
  }
}

template <class Out>
inline constexpr Dtype kDtypeOf = std::is_same_v<Out, float>    ? f32
                                  : std::is_same_v<Out, double> ? f64
                                  : std::is_same_v<Out, half_t> ? f16
                                                                : bf16;

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

  /// Normal numbers, as f32.
  void draw_normal(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (double& value : values) value = normal(random);
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

  /// For Stream::memory.
  emu::Memory memory(char const* name, bool writable) const { return {buffer.data(), buffer.size(), name, writable}; }

  /// Whether the gaps between rows of T, which are no transposed ones, do not hold what they held at first.
  template <class T>
  bool has_written_gap() const {
    for (int64_t b = 0; b < shape[0]; ++b) {
      for (int64_t i = 0; i < shape[1] && (b + 1 < shape[0] || i + 1 < shape[1]); ++i) {
        unsigned char const* const gap = buffer.data() + offset(b, i, shape[2]) * int64_t(sizeof(T));
        size_t const bytes = size_t(strides[1] - shape[2]) * sizeof(T);
        if (!std::all_of(gap, gap + bytes, [](unsigned char byte) { return byte == 0xff; })) return true;
      }
    }
    return false;
  }
};

inline bool same(double got, double expected) { return got == expected || (std::isnan(got) && std::isnan(expected)); }

/// Sums of products of small integers are exact; NaN and infinities come out as they do on the host.
struct Comparison {
  int wrong = 0;
  std::string first = {};

  /// Of one element, which the kernel has written as Out. allowed: how far off it may be.
  template <class Out>
  void compare(char const* name, Matrices const& matrices, int64_t l, int64_t i, int64_t j, double expected,
               double allowed = 0) {
    double const got = value_of(reinterpret_cast<Out const*>(matrices.buffer.data())[matrices.offset(l, i, j)]);
    if (same(got, value_of(Out(float(expected)))) || std::abs(got - expected) <= allowed) return;
    if (wrong++ == 0) {
      first = std::string(name) + "[" + std::to_string(l) + "," + std::to_string(i) + "," + std::to_string(j) +
              "] is " + std::to_string(got) + ", not " + std::to_string(expected);
    }
  }

  /// Of so many elements; empty where all are right.
  std::string report(int64_t elements) const {
    if (wrong == 0) return "";
    return "wrong: " + std::to_string(wrong) + " of " + std::to_string(elements) + " elements, first " + first;
  }
};

/// A case is three sizes and key=value words: that of the command line, or of each line of stdin. Behind each stands
/// what launch(size, size, size, options) says in one line, or ok where it says nothing.
template <class Launch>
int run_cases(int argc, char** argv, Words const& defaults, Launch const& launch) {
  auto const run = [&](std::vector<std::string> const& words) {
    if (words.size() < 3) return false;
    Options options(defaults);
    if (!std::all_of(words.begin() + 3, words.end(), [&](std::string const& word) { return options.set(word); }))
      return false;
    std::string said = launch(std::stoi(words[0]), std::stoi(words[1]), std::stoi(words[2]), options);
    std::replace(said.begin(), said.end(), '\n', ';');
    std::puts(said.empty() ? "ok" : said.c_str());
    std::fflush(stdout);  // whatever the next case does
    return true;
  };
  if (argc > 1) return run({argv + 1, argv + argc}) ? 0 : 2;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    if (!run({std::istream_iterator<std::string>(words), {}})) return 2;
  }
  return 0;
}

}  // namespace moye
