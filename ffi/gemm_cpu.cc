// The CPU handler: the same config, run in the emulator, one worker per core. XLA calls it on a thread of its own or on
// the caller's, in any case without Python's lock.
#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>

#include "emulate_cpu.h"
#include "emulated_launch_cpu.h"
#include "handlers.h"
#include "interrupt_cpu.h"
#include "targets.h"
#include "xla_call.h"

namespace moye {
namespace {

/// A target's attributes, and those that the emulator has beside them.
template <class OfTarget>
struct Attributes : OfTarget {
  bool detect_races;
  std::string_view mode;
  int64_t seed;
};

/// Decodes and validates the request, and runs it.
template <class Target>
ffi::Error launch(typename Target::Request const& request, bool detect_races, std::string_view mode, int64_t seed) {
  typename Target::Call call;
  if (Status const status = Target::kDecode(request, call); !status.ok())
    return to_error(status, ffi::ErrorCode::kInvalidArgument);
  emu::Stream stream;
  stream.options.seed = uint64_t(seed);
  stream.options.detect_races = detect_races;
  stream.options.workers = int(std::max(1u, std::thread::hardware_concurrency()));
  if (!parse_mode(mode, stream.options.mode))
    return invalid(request, "mode is eager, lazy or random, not " + std::string(mode));
  stream.memory = emulated_memory(request);
  Interrupt interrupt;
  EmulatedLaunch const done = launch_emulated(request, call, stream, [&] { return interrupt.requested(); });
  if (done.status.ok()) return ffi::Error::Success();
  return to_error(error_of(request, done.status.message),
                  done.interrupted ? ffi::ErrorCode::kCancelled : ffi::ErrorCode::kInternal);
}

template <class Target>
XLA_FFI_Error* execute(XLA_FFI_CallFrame* frame) {
  using All = Attributes<typename Target::Attributes>;
  static auto* const handler = make_handler<All, Target::kBuffers>(
      ffi::Ffi::Bind(),
      std::tuple_cat(Target::kAttributes, std::tuple{Attribute{"detect_races", &All::detect_races},
                                                     Attribute{"mode", &All::mode}, Attribute{"seed", &All::seed}}),
      [](All const& attributes, auto const&... buffers) {
        return guarded(attributes.config, [&] {
          typename Target::Request request{};
          if (auto error = Target::read(attributes, buffers..., request); error.failure()) return error;
          return launch<Target>(request, attributes.detect_races, attributes.mode, attributes.seed);
        });
      });
  return handler->Call(frame);
}

}  // namespace

std::vector<TargetHandlers> cpu_handlers() {
  return for_all_targets([]<class Target> { return TargetHandlers{Target::kName, execute<Target>}; });
}

}  // namespace moye
