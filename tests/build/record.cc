// record.cc CASE: ffi/record_cuda.cc between a handler of this file and a runtime of this file, which has the functions
// of jaxlib 0.11.2's stage "record" and says what it is asked for, a line each.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "handlers.h"
#include "kernel_images_cuda.h"
#include "moye/arch/kernel_library.h"
#include "moye/arch/launch_recorder.h"
#include "record_cuda.h"

extern "C" {
void** __wrap___cudaRegisterFatBinary(void* wrapper);
void __wrap___cudaRegisterFunction(void**, char const*, char*, char const*, int, struct uint3*, struct uint3*,
                                   struct dim3*, struct dim3*, int*);
void** __real___cudaRegisterFatBinary(void* wrapper) { return static_cast<void**>(wrapper); }
void __real___cudaRegisterFunction(void**, char const*, char*, char const*, int, struct uint3*, struct uint3*,
                                   struct dim3*, struct dim3*, int*) {}
}

namespace moye {
namespace {

char const first = 0, second = 0, foreign = 0;  // "kernels": their addresses

struct Fatbin {
  uint32_t magic = 0xba55ed50;
  uint16_t version = 1, header_bytes = 16;
  uint64_t bytes = 100;
} fatbin;
struct Wrapper {
  uint32_t magic = 0x466243b1, version = 1;
  void const* data = &fatbin;
  void const* unused = nullptr;
} wrapper;

alignas(256) char places[4 * 256];  // where the call's buffer lies

std::string scenario;
bool is(char const* name) { return scenario == name; }

// ---- The handler

XLA_FFI_Error* to_error(XLA_FFI_Api const* api, std::string const& message) {
  XLA_FFI_Error_Create_Args args = {};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = message.c_str();
  return api->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error* execute(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != nullptr) return std::puts("metadata"), nullptr;
  Hints const hints(frame);
  std::printf("execute: stage %d, %d attributes, early operands %d\n", int(frame->stage), int(frame->attrs.size),
              early_operands());
  if (is("invalid")) return to_error(frame->api, "the request is wrong");
  if (is("nothing")) return nullptr;
  int const number = 41;
  double const fraction = 0.5;
  // Where the buffer lies, and a number that may follow from it.
  auto* const data = static_cast<char*>(static_cast<XLA_FFI_Buffer const*>(frame->args.args[0])->data);
  struct {
    char* data;
    uint64_t number;
  } const place = {data, is("by number") ? reinterpret_cast<uintptr_t>(data) >> 8 : 0};
  KernelArgument const arguments[] = {
      {&number, sizeof(number)}, {&fraction, sizeof(fraction)}, {&place, sizeof(place)}};
  LaunchConfig config{.grid = {7, 2, 1},
                      .block = {128},
                      .cluster = {2, 1, 1},
                      .smem_bytes = 1000,
                      .programmatic = true,
                      .reads_through_l1 = is("through_l1")};
  char const* const kernel = is("foreign") ? &foreign : &first;
  KernelLibraryScope const library(is("library") ? &fatbin : nullptr);
  Status status = launch_recorder->record(kernel, config, arguments);
  if (is("two") || is("foreign_behind") || is("more")) {
    if (!status.ok()) return to_error(frame->api, status.message);
    config = {.grid = {3}, .block = {32}, .smem_bytes = 0, .compiled_in = true};
    status = launch_recorder->record(is("foreign_behind") ? &foreign : &second, config, arguments);
  }
  return status.ok() ? nullptr : to_error(frame->api, status.message);
}

// ---- The runtime

struct Dims {
  int32_t grid[3], block[3], cluster[3];
};
struct Argument {
  void const* address;
  int64_t bytes;
  int kind;
};
struct Arguments {
  Argument const* arguments;
  int64_t number;
};

void print(Arguments const* all) {
  int number = 0;
  double fraction = 0;
  std::memcpy(&number, all->arguments[0].address, sizeof(number));
  std::memcpy(&fraction, all->arguments[1].address, sizeof(fraction));
  char* data = nullptr;
  std::memcpy(&data, all->arguments[2].address, sizeof(data));
  std::printf(" arguments %d: %d (%d bytes, kind %d) %g at %d\n", int(all->number), number,
              int(all->arguments[0].bytes), all->arguments[0].kind, fraction, int(data - places));
}

XLA_FFI_Error* error_of_api = nullptr;

intptr_t commands_created = 0;

XLA_FFI_Error* create_launch(void*, char const* name, void const* code, int64_t bytes, int format, Dims dims,
                             uint32_t smem, int32_t pdl, Arguments const* arguments, void const* const* dependencies,
                             uint32_t number, void const** command) {
  std::printf("create %s: code %s of %d bytes, format %d, grid %d %d, block %d, cluster %d, smem %u, pdl %d, behind",
              name, code == &fatbin ? "ours" : "another", int(bytes), format, dims.grid[0], dims.grid[1], dims.block[0],
              dims.cluster[0], smem, pdl);
  for (uint32_t i = 0; i < number; ++i) std::printf(" %d", int(reinterpret_cast<intptr_t>(dependencies[i])));
  print(arguments);
  *command = reinterpret_cast<void const*>(++commands_created);
  return is("refused") ? error_of_api : nullptr;
}

XLA_FFI_Error* update_launch(void*, void const* command, Arguments const* arguments) {
  std::printf("update %d", int(reinterpret_cast<intptr_t>(command)));
  print(arguments);
  return nullptr;
}

XLA_FFI_Error* request_stream_capture(void*) { return std::puts("capture"), nullptr; }

struct RecordApi {
  void* create = reinterpret_cast<void*>(create_launch);
  void* update = reinterpret_cast<void*>(update_launch);
  void* copies[2] = {};
  void* capture = reinterpret_cast<void*>(request_stream_capture);
} record_api;

struct Frame {
  void* context = nullptr;
  RecordApi* api = &record_api;
  int action = 0;
  void const** commands = nullptr;
  int64_t* number = nullptr;
  int64_t most = 1;
} record_frame;

struct Extension {
  size_t struct_size = 0;
  int64_t type = 128;
  int32_t major = 0, minor = 1;
  void* next = nullptr;
  Frame* frame = &record_frame;
} extension;

struct FindArgs {
  size_t struct_size;
  void* start;
  void* context;
  int64_t type;
  void const* found;
};
XLA_FFI_Error* find(FindArgs* args) {
  args->found = args->type == 128 && !is("no_extension") ? &extension : nullptr;
  return nullptr;
}

int errors = 0;
XLA_FFI_Error* create_error(XLA_FFI_Error_Create_Args* args) {
  ++errors;
  return reinterpret_cast<XLA_FFI_Error*>(new std::string(args->message));
}
void destroy_error(XLA_FFI_Error_Destroy_Args* args) {
  --errors;
  delete reinterpret_cast<std::string*>(args->error);
}

struct RegisterArgs {
  size_t struct_size;
  void* start;
  XLA_FFI_ByteSpan name, platform;
  void* stages[5];  // instantiate, prepare, initialize, execute, record
  uint32_t traits;
};
XLA_FFI_Error* register_handler(RegisterArgs* args) {
  std::printf("register %.*s on %.*s, %d bytes, stages", int(args->name.len), args->name.ptr, int(args->platform.len),
              args->platform.ptr, int(args->struct_size));
  for (void* stage : args->stages) std::printf(" %d", stage != nullptr);
  std::puts("");
  return nullptr;
}

struct Api {
  XLA_FFI_Api api = {};
  void* find_extension = reinterpret_cast<void*>(find);
} api;

int run() {
  __wrap___cudaRegisterFatBinary(&wrapper);
  auto** const handle = reinterpret_cast<void**>(&wrapper);
  __wrap___cudaRegisterFunction(handle, &first, nullptr, "first", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  __wrap___cudaRegisterFunction(handle, &second, nullptr, "second", -1, nullptr, nullptr, nullptr, nullptr, nullptr);
  static char const code[50] = {};
  keep_library_code(&fatbin, code, sizeof(code));

  api.api.struct_size = is("old_api") ? sizeof(XLA_FFI_Api) : sizeof(Api);
  api.api.XLA_FFI_Error_Create = create_error;
  api.api.XLA_FFI_Error_Destroy = destroy_error;
  api.api.XLA_FFI_Handler_Register =
      reinterpret_cast<decltype(api.api.XLA_FFI_Handler_Register)>(reinterpret_cast<void*>(register_handler));
  if (is("version")) extension.minor = 2;
  void const* commands[2] = {};
  int64_t number = 0;
  record_frame.commands = commands;
  record_frame.number = &number;
  record_frame.most = is("two") || is("foreign_behind") || is("more") ? 2 : 1;
  if (is("too_many")) record_frame.most = 0;

  std::string names[] = {"config", "early_operands", "uses_pdl"};
  XLA_FFI_ByteSpan spans[3];
  XLA_FFI_ByteSpan* of_names[3];
  for (int i = 0; i < 3; ++i) {
    spans[i] = {names[i].data(), names[i].size()};
    of_names[i] = &spans[i];
  }
  int64_t early = 2;
  XLA_FFI_Scalar scalar{XLA_FFI_DataType_S64, &early};
  XLA_FFI_AttrType types[] = {XLA_FFI_AttrType_STRING, XLA_FFI_AttrType_SCALAR, XLA_FFI_AttrType_SCALAR};
  void* values[] = {nullptr, &scalar, nullptr};

  XLA_FFI_CallFrame frame = {};
  frame.api = &api.api;
  frame.stage = static_cast<XLA_FFI_ExecutionStage>(4);
  frame.attrs.size = 3;
  frame.attrs.types = types;
  frame.attrs.names = of_names;
  frame.attrs.attrs = values;
  std::remove_pointer_t<decltype(frame.extension_start)> metadata = {};
  metadata.type = XLA_FFI_Extension_Metadata;
  if (is("metadata") || is("register")) frame.extension_start = &metadata;
  if (is("refused")) error_of_api = to_error(&api.api, "the runtime's own error");

  XLA_FFI_Buffer buffer = {};
  XLA_FFI_ArgType const of_buffer = XLA_FFI_ArgType_BUFFER;
  void* buffers[] = {&buffer};
  frame.args.size = 1;
  frame.args.types = const_cast<XLA_FFI_ArgType*>(&of_buffer);
  frame.args.args = buffers;
  buffer.data = places;

  auto const call = [&](XLA_FFI_Error* error) {
    if (error != nullptr) std::printf("error: %s\n", reinterpret_cast<std::string*>(error)->c_str());
    std::printf("commands %d, stage %d, attributes %d, recorder %d, errors %d\n", int(number), int(frame.stage),
                int(frame.attrs.size), launch_recorder != nullptr, errors);
  };
  if (is("register") || is("register_called")) {
    call(register_with_record(&frame));
    call(register_with_record(&frame));
    return 0;
  }
  call(record_call(&frame, execute));
  record_frame.action = 1;
  bool const launches_fewer = is("more");
  if (launches_fewer) scenario = "one", number = 2;
  buffer.data = places + (launches_fewer ? 16 : 256);
  call(record_call(&frame, execute));
  if (is("in turns")) {
    for (int place : {0, 512, 16, 512 + 16}) {
      buffer.data = places + place;
      call(record_call(&frame, execute));
    }
    commands_created = 0;  // another graph, whose node has the address of the first
    record_frame.action = 0;
    call(record_call(&frame, execute));
    record_frame.action = 1;
    buffer.data = places;
    call(record_call(&frame, execute));
  }
  if (record_frame.most == 1) {
    RecordedNodes const nodes = recorded_nodes();
    std::printf("nodes %d %d, known %d\n", int(nodes.created), int(nodes.updated), int(nodes.known));
  }
  return 0;
}

}  // namespace

std::vector<TargetHandlers> cuda_handlers() { return {{"a_target", execute, execute, execute}, {"another", execute}}; }
TargetHandlers mark_handlers() { return {"a_mark", execute}; }

}  // namespace moye

int main(int, char** argv) {
  moye::scenario = argv[1];
  return moye::run();
}
