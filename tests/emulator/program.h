// What the test programs of this folder share: options from the command line, arrays, and the way they answer.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "moye/emu/guarded_buffer.h"

/// Reads "mode=lazy order=fifo seed=1 races=1 poison=1 workers=1 ..." from argv[first] on; anything else ends the
/// program.
inline moye::emu::Options options_from(int argc, char** argv, int first) {
  using namespace moye::emu;
  Options options;
  for (int i = first; i < argc; ++i) {
    std::string const argument = argv[i];
    size_t const equals = argument.find('=');
    std::string const key = argument.substr(0, equals), value = argument.substr(equals + 1);
    if (key == "mode") {
      options.mode = value == "eager" ? Mode::eager : value == "lazy" ? Mode::lazy : Mode::random;
    } else if (key == "order") {
      options.order = value == "fifo" ? ThreadOrder::fifo : value == "lifo" ? ThreadOrder::lifo : ThreadOrder::random;
    } else if (key == "seed") {
      options.seed = std::stoull(value);
    } else if (key == "races") {
      options.detect_races = value == "1";
    } else if (key == "poison") {
      options.poison = value == "1";
    } else if (key == "workers") {
      options.workers = std::stoi(value);
    } else if (key == "watchdog_steps") {
      options.watchdog_steps = std::stoull(value);
    } else if (key == "watchdog_seconds") {
      options.watchdog_seconds = std::stod(value);
    } else {
      std::fprintf(stderr, "unknown option %s\n", argument.c_str());
      std::exit(2);
    }
  }
  return options;
}

inline void print_counters(moye::emu::Counters const& c) {
  auto print = [](char const* name, uint64_t value) { std::printf("%s=%llu\n", name, (unsigned long long)value); };
  print("ctas", c.ctas);
  print("barriers", c.barriers);
  print("warp_syncs", c.warp_syncs);
  print("shuffles", c.shuffles);
  print("ldmatrix", c.ldmatrix);
  print("ldmatrix_wavefronts", c.ldmatrix_wavefronts);
  print("ldmatrix_ideal_wavefronts", c.ldmatrix_ideal_wavefronts);
  print("mma", c.mma);
  print("cp_async", c.cp_async);
  print("cp_async_bytes", c.cp_async_bytes);
  print("shared_loads", c.shared_loads);
  print("shared_load_bytes", c.shared_load_bytes);
  print("shared_stores", c.shared_stores);
  print("shared_store_bytes", c.shared_store_bytes);
  print("global_loads", c.global_loads);
  print("global_load_bytes", c.global_load_bytes);
  print("global_stores", c.global_stores);
  print("global_store_bytes", c.global_store_bytes);
}
