// The CPU handler: the same row of the table, run in the emulator, one worker per core.
#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>

#include "emulate_cpu.h"
#include "handlers.h"
#include "xla_call.h"

namespace moye {
namespace {

ffi::Error execute(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> d,
                   ffi::Result<ffi::AnyBuffer> workspace, Int64s a_strides, Int64s b_strides, std::string_view config,
                   Int64s d_strides, bool detect_races, std::string_view mode, int64_t seed, Int64s sizes) {
  return guarded(config, [&] {
    emu::Options options;
    if (!parse_mode(mode, options.mode)) {
      return ffi::Error::InvalidArgument(
          gemm_error(config, {}, "mode is eager, lazy or random, not " + std::string(mode)).message);
    }
    options.seed = uint64_t(seed);
    options.detect_races = detect_races;
    options.workers = int(std::max(1u, std::thread::hardware_concurrency()));

    GemmCall call;
    if (auto error = decode_call(a, b, *d, *workspace, config, sizes, a_strides, b_strides, d_strides, call);
        error.failure()) {
      return error;
    }
    emu::Stream stream{.options = options,
                       .memory = {{a.untyped_data(), a.size_bytes(), "a", false},
                                  {b.untyped_data(), b.size_bytes(), "b", false},
                                  {d->untyped_data(), d->size_bytes(), "d", true},
                                  {workspace->untyped_data(), workspace->size_bytes(), "workspace", true}},
                       .counters = {}};
    Status const status = call.gemm->entry.launch(call.args, &stream);
    if (status.ok()) return ffi::Error::Success();
    std::span<int64_t const> const size_span(sizes.begin(), sizes.size());
    return ffi::Error::Internal(gemm_error(config, size_span, status.message).message);
  });
}

}  // namespace
}  // namespace moye

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxMoyeGemmCpu, moye::execute,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<moye::Int64s>("a_strides")
                                  .Attr<moye::Int64s>("b_strides")
                                  .Attr<std::string_view>("config")
                                  .Attr<moye::Int64s>("d_strides")
                                  .Attr<bool>("detect_races")
                                  .Attr<std::string_view>("mode")
                                  .Attr<int64_t>("seed")
                                  .Attr<moye::Int64s>("sizes"));
