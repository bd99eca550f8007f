#include "record_cuda.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gemm/config.h"
#include "handlers.h"
#include "kernel_images_cuda.h"
#include "known_launches.h"
#include "moye/arch/kernel_library.h"
#include "moye/arch/launch_recorder.h"

namespace moye {
namespace {

// ---- The ABI of jaxlib 0.11.2's xla/ffi/api/record_c_api.h, version 0.1, and of what c_api.h has for it. The headers
// that we are built with are older: newer ones would make a module that older runtimes refuse (pyproject.toml).
// jax_moye/_kernels/runtime.py says whether the installed jaxlib has it.

constexpr int64_t kRecordExtension = 128;
constexpr int32_t kMajor = 0, kMinor = 1;

struct Context;
struct Command;

enum Action : int { kCreate = 0, kUpdate = 1 };
enum SourceFormat : int { kPtx = 0, kCubin = 1 };
enum ArgumentKind : int { kDevicePointer = 0, kHostValue = 1 };

struct Sizes {
  int32_t x, y, z;
};

struct LaunchSizes {
  Sizes grid, block;
  Sizes cluster;  // zeros: none
};

struct Argument {
  void const* address;
  int64_t bytes;
  ArgumentKind kind;
};

struct Arguments {
  Argument const* arguments;
  int64_t number;
};

struct RecordApi {
  XLA_FFI_Error* (*create_launch)(Context*, char const* kernel, void const* code, int64_t code_bytes, SourceFormat,
                                  LaunchSizes, uint32_t smem_bytes, int32_t programmatic, Arguments const*,
                                  Command const* const* dependencies, uint32_t number_of_dependencies,
                                  Command const** command);
  XLA_FFI_Error* (*update_launch)(Context*, Command const*, Arguments const*);
  XLA_FFI_Error* (*create_memcpy_d2d)(Context*, void*, void*, int64_t, Command const* const*, uint32_t,
                                      Command const**);
  XLA_FFI_Error* (*update_memcpy_d2d)(Context*, Command const*, void*, void*, int64_t);
  XLA_FFI_Error* (*request_stream_capture)(Context*);
};

struct RecordFrame {
  Context* context;
  RecordApi const* api;
  Action action;
  Command const** commands;  // to be filled, or those that were created
  int64_t* number_of_commands;
  int64_t most_commands;
};

struct Extension {
  size_t struct_size;
  int64_t type;
  int32_t major, minor;
  Extension const* next;
};

struct RecordExtension {
  Extension base;
  RecordFrame const* frame;
};

struct FindExtensionArgs {
  size_t struct_size;
  void* extension_start;
  void* context;
  int64_t type;
  Extension const* extension;  // out
};
using FindExtension = XLA_FFI_Error*(FindExtensionArgs*);

struct RegisterArgs {
  size_t struct_size;
  void* extension_start;
  XLA_FFI_ByteSpan name, platform;
  XLA_FFI_Handler *instantiate, *prepare, *initialize, *execute, *record;
  uint32_t traits;
};
constexpr size_t kRegisterArgsBytes = offsetof(RegisterArgs, traits) + sizeof(uint32_t);

// ---- What we do with it

constexpr std::string_view kUsesPdl = "uses_pdl", kEarlyOperands = "early_operands";
std::atomic<int64_t> created_nodes = 0, updated_nodes = 0, known_updates = 0;
KnownLaunches& known_launches = *new KnownLaunches;  // there until the process ends, as XLA's threads are

XLA_FFI_Error* internal_error(XLA_FFI_Api const* api, std::string const& message) {
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = message.c_str();
  args.errc = XLA_FFI_Error_Code_INTERNAL;
  return api->XLA_FFI_Error_Create(&args);
}

void destroy(XLA_FFI_Api const* api, XLA_FFI_Error* error) {
  if (error == nullptr) return;
  XLA_FFI_Error_Destroy_Args args = {};
  args.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  args.error = error;
  api->XLA_FFI_Error_Destroy(&args);
}

/// Null: the runtime's is of another version.
RecordFrame const* find_frame(XLA_FFI_CallFrame const* frame) {
  XLA_FFI_Api const* const api = frame->api;
  // The function behind XLA_FFI_DeviceOrdinal_Get, which is the last of the API's table in older headers.
  size_t const offset = offsetof(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get) + sizeof(void*);
  if (api->struct_size < offset + sizeof(void*)) return nullptr;
  FindExtension* find = nullptr;
  std::memcpy(&find, reinterpret_cast<char const*>(api) + offset, sizeof(find));
  FindExtensionArgs args = {sizeof(FindExtensionArgs), nullptr, frame->ctx, kRecordExtension, nullptr};
  if (XLA_FFI_Error* const error = find(&args)) {
    destroy(api, error);
    return nullptr;
  }
  Extension const* const found = args.extension;
  if (found == nullptr || found->major != kMajor || found->minor != kMinor) return nullptr;
  return reinterpret_cast<RecordExtension const*>(found)->frame;
}

/// Calls f(buffer) for each of the call's buffers, a pointer to one of XLA's structs that may be replaced.
template <class F>
void for_each_buffer(XLA_FFI_CallFrame* frame, F const& f) {
  for (int64_t i = 0; i < frame->args.size; ++i)
    if (frame->args.types[i] == XLA_FFI_ArgType_BUFFER) f(frame->args.args[i]);
  for (int64_t i = 0; i < frame->rets.size; ++i)
    if (frame->rets.types[i] == XLA_FFI_RetType_BUFFER) f(frame->rets.rets[i]);
}

Addresses addresses_of(XLA_FFI_CallFrame* frame) {
  Addresses addresses;
  addresses.reserve(size_t(frame->args.size + frame->rets.size));
  for_each_buffer(frame, [&](void* buffer) { addresses.push_back(static_cast<XLA_FFI_Buffer*>(buffer)->data); });
  return addresses;
}

/// In its scope the call's buffers are so many bytes from where they are.
class MovedBuffers {
 public:
  MovedBuffers(XLA_FFI_CallFrame* frame, Distances const& distances) : frame_(frame) {
    copies_.reserve(distances.size());
    for_each_buffer(frame, [&](void*& buffer) {
      XLA_FFI_Buffer& copy = copies_.emplace_back(*static_cast<XLA_FFI_Buffer*>(buffer));
      copy.data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(copy.data) + distances[before_.size()]);
      before_.push_back(std::exchange(buffer, &copy));
    });
  }
  ~MovedBuffers() {
    size_t i = 0;
    for_each_buffer(frame_, [&](void*& buffer) { buffer = before_[i++]; });
  }
  MovedBuffers(MovedBuffers const&) = delete;
  MovedBuffers& operator=(MovedBuffers const&) = delete;

 private:
  XLA_FFI_CallFrame* frame_;
  std::vector<XLA_FFI_Buffer> copies_;
  std::vector<void*> before_;
};

/// In its scope this thread's launches are the recorder's, and the call is at the stage in which it launches.
class Recording {
 public:
  Recording(XLA_FFI_CallFrame* frame, LaunchRecorder& recorder) : frame_(frame), stage_(frame->stage) {
    frame->stage = XLA_FFI_ExecutionStage_EXECUTE;
    launch_recorder = &recorder;
  }
  ~Recording() {
    launch_recorder = nullptr;
    frame_->stage = stage_;
  }
  Recording(Recording const&) = delete;
  Recording& operator=(Recording const&) = delete;

 private:
  XLA_FFI_CallFrame* frame_;
  XLA_FFI_ExecutionStage stage_;
};

/// Gives the nodes of a call, of which there are as many, what they were given before, with the addresses of now.
XLA_FFI_Error* update_as_before(RecordFrame const& frame, KnownLaunch const& launch, Addresses const& addresses) {
  thread_local Kernels kernels;  // whose memory the next call uses again
  thread_local std::vector<Argument> values;
  kernels = launch.kernels;
  launch.move(kernels, distances_between(launch.addresses, addresses));
  Command const* const* node = frame.commands;
  for (LaunchArguments const& arguments : kernels) {
    values.clear();
    for (size_t i = 0; i < arguments.sizes.size(); ++i)
      values.push_back({arguments.bytes.data() + arguments.begins[i], int64_t(arguments.sizes[i]), kHostValue});
    Arguments const all = {values.data(), int64_t(values.size())};
    if (XLA_FFI_Error* const error = frame.api->update_launch(frame.context, *node++, &all)) return error;
    ++updated_nodes;
  }
  ++known_updates;
  return nullptr;
}

/// Only keeps what kernels are given.
class Listener final : public LaunchRecorder {
 public:
  explicit Listener(int early) { early_operands = early; }
  Status record(void const*, LaunchConfig const&, std::span<KernelArgument const> arguments) override {
    LaunchArguments& kept = kernels.emplace_back();
    for (KernelArgument const& argument : arguments) kept.add(argument.value, argument.bytes);
    return {};
  }
  Kernels kernels;
};

/// What `execute` gives its kernels where buffers are so far from where they are; none: an error.
std::optional<Kernels> kernels_of(XLA_FFI_CallFrame* frame, XLA_FFI_Handler* execute, int early,
                                  Distances const& distances) {
  MovedBuffers const moved(frame, distances);
  Listener listener(early);
  Recording const recording(frame, listener);
  if (XLA_FFI_Error* const error = execute(frame)) {
    destroy(frame->api, error);
    return {};
  }
  return std::move(listener.kernels);
}

class GraphRecorder final : public LaunchRecorder {
 public:
  GraphRecorder(XLA_FFI_Api const* api, RecordFrame const& frame) : api_(api), frame_(frame) {}

  Status record(void const* kernel, LaunchConfig const& config, std::span<KernelArgument const> arguments) override {
    std::vector<Argument> values;
    LaunchArguments& kept = kernels.emplace_back();
    for (KernelArgument const& argument : arguments) {
      values.push_back({argument.value, int64_t(argument.bytes), kHostValue});
      kept.add(argument.value, argument.bytes);
    }
    Arguments const all = {values.data(), int64_t(values.size())};
    error_ = frame_.action == kCreate ? create(kernel, config, all) : update(all);
    if (error_ != nullptr) return {"XLA cannot record a kernel"};
    return captured_ ? Status{"a kernel that XLA is to capture"} : Status{};
  }

  /// Of XLA; the caller owns it.
  XLA_FFI_Error* error() const { return error_; }
  /// Whether XLA is to capture the call: all of it, or there is nothing to record.
  bool captured() const { return captured_ || recorded_ == 0; }
  int64_t recorded() const { return recorded_; }

  Kernels kernels;  // what they were given

 private:
  XLA_FFI_Error* create(void const* kernel, LaunchConfig const& config, Arguments const& arguments) {
    bool const own = kernel_library != nullptr && !config.compiled_in;
    KernelImage const image = own ? kernel_image(kernel, kernel_library) : kernel_image(kernel);
    captured_ = image.code == nullptr || config.reads_through_l1;
    if (captured_ && recorded_ > 0)
      return internal_error(api_, "jax_moye: XLA captures all kernels of a call, or none");
    if (captured_) return nullptr;
    auto const sizes = [](Dim3 const& dim) { return Sizes{int32_t(dim.x), int32_t(dim.y), int32_t(dim.z)}; };
    bool const clustered = config.cluster.x * config.cluster.y * config.cluster.z > 1;
    LaunchSizes const launch = {sizes(config.grid), sizes(config.block), clustered ? sizes(config.cluster) : Sizes{}};
    Command const* command = nullptr;
    XLA_FFI_Error* const error =
        frame_.api->create_launch(frame_.context, image.name, image.code, int64_t(image.bytes), kCubin, launch,
                                  uint32_t(config.smem_bytes), config.programmatic && programmatic_launch_allowed(),
                                  &arguments, recorded_ > 0 ? &last_ : nullptr, recorded_ > 0, &command);
    if (error != nullptr) return error;
    if (recorded_ < frame_.most_commands) frame_.commands[recorded_] = command;
    last_ = command;
    ++recorded_;
    ++created_nodes;
    return nullptr;
  }

  /// The runtime keeps the kernel and its sizes, which a call's attributes and the device alone decide.
  XLA_FFI_Error* update(Arguments const& arguments) {
    captured_ = *frame_.number_of_commands == 0;
    if (captured_) return nullptr;
    if (recorded_ == *frame_.number_of_commands)
      return internal_error(api_, "jax_moye: a call launched more kernels than when it was recorded");
    ++updated_nodes;
    return frame_.api->update_launch(frame_.context, frame_.commands[recorded_++], &arguments);
  }

  XLA_FFI_Api const* api_;
  RecordFrame const& frame_;
  XLA_FFI_Error* error_ = nullptr;
  Command const* last_ = nullptr;
  int64_t recorded_ = 0;
  bool captured_ = false;
};

}  // namespace

RecordedNodes recorded_nodes() { return {created_nodes, updated_nodes, known_updates}; }

Hints::Hints(XLA_FFI_CallFrame* frame) : frame_(frame), before_(frame->attrs) {
  auto const is = [&](int64_t i, std::string_view name) {
    return std::string_view(before_.names[i]->ptr, before_.names[i]->len) == name;
  };
  auto const is_hint = [&](int64_t i) { return is(i, kUsesPdl) || is(i, kEarlyOperands); };
  int64_t hints = 0;
  for (int64_t i = 0; i < before_.size; ++i) hints += is_hint(i);
  if (hints == 0) return;  // as most calls have none: nothing is copied
  for (int64_t i = 0; i < before_.size; ++i) {
    if (is(i, kEarlyOperands) && before_.types[i] == XLA_FFI_AttrType_SCALAR) {
      auto const* const scalar = static_cast<XLA_FFI_Scalar const*>(before_.attrs[i]);
      if (scalar->dtype == XLA_FFI_DataType_S64) early_operands = int(*static_cast<int64_t const*>(scalar->value));
    }
    if (is_hint(i)) continue;
    types_.push_back(before_.types[i]);
    names_.push_back(before_.names[i]);
    values_.push_back(before_.attrs[i]);
  }
  frame->attrs.size = before_.size - hints;
  frame->attrs.types = types_.data();
  frame->attrs.names = names_.data();
  frame->attrs.attrs = values_.data();
}

XLA_FFI_Error* record_call(XLA_FFI_CallFrame* frame, XLA_FFI_Handler* execute) {
  XLA_FFI_Api const* const api = frame->api;
  if (asks_for_metadata(frame)) return execute(frame);
  RecordFrame const* const record = find_frame(frame);
  if (record == nullptr) return internal_error(api, "jax_moye: this jaxlib records calls in a way that is not known");
  Addresses addresses = addresses_of(frame);
  if (record->action == kUpdate && *record->number_of_commands > 0) {
    auto const known = known_launches.find(record->commands[0], addresses);
    if (known != nullptr) return update_as_before(*record, *known, addresses);
  }
  GraphRecorder recorder(api, *record);
  Hints const hints(frame);
  recorder.early_operands = hints.early_operands | kEarlyNext;
  XLA_FFI_Error* const error = [&] {
    Recording const recording(frame, recorder);
    return execute(frame);
  }();
  if (recorder.error() != nullptr) {
    destroy(api, error);
    return recorder.error();
  }
  if (recorder.captured()) {
    destroy(api, error);
    return record->api->request_stream_capture(record->context);
  }
  if (error != nullptr) return error;
  if (record->action == kCreate) {
    if (recorder.recorded() > record->most_commands)
      return internal_error(api, "jax_moye: XLA records at most " + std::to_string(record->most_commands) +
                                     " kernels of a call, and this one has " + std::to_string(recorder.recorded()));
    *record->number_of_commands = recorder.recorded();
  } else if (recorder.recorded() != *record->number_of_commands) {
    return internal_error(api, "jax_moye: a call launched fewer kernels than when it was recorded");
  }
  void const* const node = record->commands[0];
  if (record->action == kCreate) {
    known_launches.forget(node);
  } else if (known_launches.cannot_be_known(node)) {
    return nullptr;
  }
  auto known = known_launch(std::move(addresses), std::move(recorder.kernels), [&](Distances const& distances) {
    return kernels_of(frame, execute, recorder.early_operands, distances);
  });
  known_launches.add(node, std::move(known));
  return nullptr;
}

XLA_FFI_Error* register_with_record(XLA_FFI_CallFrame* frame) {
  static std::vector<TargetHandlers> const targets = [] {
    std::vector<TargetHandlers> all = cuda_handlers();
    all.push_back(mark_handlers());
    return all;
  }();
  XLA_FFI_Api const* const api = frame->api;
  if (!asks_for_metadata(frame)) return internal_error(api, "jax_moye: this target is there to register the others");
  static std::atomic<bool> registered = false;
  if (!registered.exchange(true)) {
    // The function is of the same place in all headers; its arguments are not.
    auto* const register_handler = reinterpret_cast<XLA_FFI_Error* (*)(RegisterArgs*)>(api->XLA_FFI_Handler_Register);
    constexpr std::string_view kPlatform = "CUDA";
    for (TargetHandlers const& target : targets) {
      RegisterArgs args = {};
      args.struct_size = kRegisterArgsBytes;
      args.name = {target.name, std::strlen(target.name)};
      args.platform = {kPlatform.data(), kPlatform.size()};
      args.instantiate = target.instantiate;
      args.execute = target.execute;
      args.record = target.record;
      if (XLA_FFI_Error* const error = register_handler(&args)) return error;
    }
  }
  return targets.front().execute(frame);  // whose version of the API is this one's
}

}  // namespace moye
