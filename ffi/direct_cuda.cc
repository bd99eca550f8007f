// Times of kernels, by the device's clock. DirectProduct launches configs without XLA, on memory and a stream of its
// own; marks are events on the stream on which XLA runs programs. jax_moye/_timing/direct.py is about when and how
// long.
#include "direct_cuda.h"

#include <cuda_runtime_api.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "handlers.h"
#include "xla_call.h"

namespace nb = nanobind;

namespace moye {
namespace {

void check(cudaError_t error, char const* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // a pending error would be blamed on the next user of the runtime
  if (error == cudaErrorMemoryAllocation) throw std::bad_alloc();
  throw std::runtime_error(std::string("jax_moye: ") + what + ": " + cudaGetErrorString(error));
}

void check(Status const& status) {
  if (!status.ok()) throw std::runtime_error(status.message);
}

/// In its scope a device is current in this thread, and calls that a capture in another thread would forbid are
/// allowed.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
  }
  ~OnDevice() {
    cudaThreadExchangeStreamCaptureMode(&mode_);
    cudaSetDevice(before_);
  }
  OnDevice(OnDevice const&) = delete;
  OnDevice& operator=(OnDevice const&) = delete;

 private:
  int before_ = 0;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

Dtype parse_dtype(std::string const& name) {
  for (int i = 0; i < kDtypes; ++i) {
    if (name == dtype_name(Dtype(i))) return Dtype(i);
  }
  throw std::invalid_argument("DirectProduct: no kernel has a dtype " + name);
}

nb::dlpack::dtype dlpack_dtype(Dtype dtype) {
  auto const code = [&]() -> uint8_t {
    switch (dtype) {
      case Dtype::bf16:
        return uint8_t(nb::dlpack::dtype_code::Bfloat);
      case Dtype::s8:
      case Dtype::s32:
        return uint8_t(nb::dlpack::dtype_code::Int);
      case Dtype::e4m3:
      case Dtype::e5m2:
        return uint8_t(nb::dlpack::dtype_code::UInt);  // who gets it reads the bits
      default:
        return uint8_t(nb::dlpack::dtype_code::Float);
    }
  }();
  return {code, uint8_t(8 * item_bytes(dtype)), 1};
}

/// A matrix in each set of operands.
struct Slot {
  std::string name;
  std::vector<int64_t> strides;
  Dtype dtype;
  int64_t elements, offset;  // the latter in bytes, from the set's beginning
  bool is_operand;           // that is multiplied

  int64_t bytes() const { return elements * item_bytes(dtype); }
};

/// Elements from the first to the last that the modes reach.
int64_t extent(std::vector<int64_t> const& sizes, std::vector<int64_t> const& strides) {
  if (strides.size() != sizes.size())
    throw std::invalid_argument("DirectProduct: each matrix has a stride for each of its modes");
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return last + 1;
}

/// One product on `sets` sets of operands, in one piece of memory.
class DirectProduct {
 public:
  /// `matrices` are (name, strides) of a, b and d, and of c, bias, residual, multiplier, second_b, preactivation and
  /// second_product where there are such; `fill` is what the operands are filled with, again and again: a is (batch
  /// modes, m, k), b and second_b (batch modes, n, k), the others (batch modes, m, n). Throws std::bad_alloc,
  /// MemoryError in Python, where the device has not that much free.
  DirectProduct(int device, std::vector<int64_t> sizes, nb::dict matrices, std::string const& dtype,
                std::string const& out_dtype, int64_t workspace_bytes, int sets, nb::bytes fill, nb::bytes out_fill,
                std::string activation, double alpha, double beta)
      : device_(device),
        sets_(sets),
        sizes_(std::move(sizes)),
        workspace_bytes_(workspace_bytes),
        activation_(std::move(activation)),
        alpha_(alpha),
        beta_(beta) {
    bool const some_batch = sizes_.size() >= 4 && sizes_.size() <= 3 + kBatchModes;
    if (!some_batch || std::any_of(sizes_.begin(), sizes_.end(), [](int64_t size) { return size <= 0; }))
      throw std::invalid_argument("DirectProduct: sizes are (one to three batch modes, m, n, k), all positive");
    if (sets <= 0 || workspace_bytes < 0) throw std::invalid_argument("DirectProduct: sets are positive");
    for (nb::bytes const* pattern : {&fill, &out_fill}) {
      if (pattern->size() == 0 || pattern->size() % kAlign != 0)
        throw std::invalid_argument("DirectProduct: what fills the operands is a multiple of 1024 bytes");
    }
    auto const matrix = sizes_.end() - 3;
    int64_t const m = matrix[0], n = matrix[1], k = matrix[2];
    for (auto const& [key, value] : matrices) {
      auto const name = nb::cast<std::string>(key);
      bool const is_b = name == "b" || name == "second_b", is_operand = name == "a" || is_b;
      auto const strides = nb::cast<std::vector<int64_t>>(value);
      std::vector<int64_t> shape(sizes_.begin(), matrix);
      shape.insert(shape.end(), {is_b ? n : m, is_operand ? k : n});
      Dtype const parsed = parse_dtype(is_operand ? dtype : out_dtype);
      Dtype const stored = name == "a" ? storage_dtype(parsed) : storage_dtype_of_b(parsed);
      place(name, strides, stored, extent(shape, strides), is_operand);
    }
    slot("a"), slot("b"), slot("d");  // or throws
    workspace_offset_ = set_bytes_;
    set_bytes_ += rounded(workspace_bytes);

    OnDevice const here(device_);
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    if (size_t(set_bytes_) * size_t(sets_) + kLeave > free) throw std::bad_alloc();
    try {
      check(cudaMalloc(reinterpret_cast<void**>(&memory_), size_t(set_bytes_) * size_t(sets_)), "cudaMalloc");
      check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
      check(cudaEventCreate(&begin_), "cudaEventCreate");
      check(cudaEventCreate(&end_), "cudaEventCreate");
      for (int set = 0; set < sets_; ++set) {
        for (Slot const& of : slots_) {
          if (of.name != "d") repeat(of.is_operand ? fill : out_fill, of, set);
        }
      }
      check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    } catch (...) {
      give_back();
      throw;
    }
  }

  ~DirectProduct() { give_back(); }
  DirectProduct(DirectProduct const&) = delete;
  DirectProduct& operator=(DirectProduct const&) = delete;

  /// Frees memory, graphs and stream. Arrays that array() returned are gone with it.
  void give_back() noexcept {
    try {
      OnDevice const here(device_);
      if (stream_ != nullptr) cudaStreamSynchronize(stream_);
      for (Captured& captured : captured_) cudaGraphExecDestroy(captured.graph);
      if (begin_ != nullptr) cudaEventDestroy(begin_);
      if (end_ != nullptr) cudaEventDestroy(end_);
      if (stream_ != nullptr) cudaStreamDestroy(stream_);
      if (memory_ != nullptr) cudaFree(memory_);
    } catch (...) {
    }
    captured_.clear();
    begin_ = end_ = nullptr;
    stream_ = nullptr;
    memory_ = nullptr;
    cudaGetLastError();
  }

  /// Runs a config on the first set, and captures `launches` runs that go from set to set. Returns its number.
  int add(std::string const& config, int launches) {
    check_open();
    if (launches <= 0) throw std::invalid_argument("DirectProduct: launches are positive");
    nb::gil_scoped_release unlocked;
    OnDevice const here(device_);
    check(decoded(config, 0).gemm->entry.prepare());
    Slot const& d = slot("d");
    check(cudaMemsetAsync(at(d, 0), 0xff, size_t(d.bytes()), stream_), "cudaMemsetAsync");  // NaN, or -1
    launch(config, 0);
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");

    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      for (int i = 0; i < launches; ++i) launch(config, i % sets_);
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    Captured captured{nullptr, launches};
    cudaError_t const made = cudaGraphInstantiateWithFlags(&captured.graph, graph, 0);
    cudaGraphDestroy(graph);
    check(made, "cudaGraphInstantiateWithFlags");
    captured_.push_back(captured);
    check(cudaGraphUpload(captured.graph, stream_), "cudaGraphUpload");
    return int(captured_.size()) - 1;
  }

  /// Seconds that `replays` of a config's captured runs take, one behind the other.
  double seconds(int number, int replays) {
    check_open();
    if (number < 0 || number >= int(captured_.size()) || replays <= 0)
      throw std::invalid_argument("DirectProduct: the number is what add() returned, and replays are positive");
    nb::gil_scoped_release unlocked;
    OnDevice const here(device_);
    check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < replays; ++i)
      check(cudaGraphLaunch(captured_[size_t(number)].graph, stream_), "cudaGraphLaunch");
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return double(milliseconds) / 1e3;
  }

  /// Bytes of d, as the config wrote it that was added last: `count` runs of `bytes` bytes, evenly spread. Or of
  /// another array of that size on the device, which is complete.
  nb::bytes sample(int count, int64_t bytes, uintptr_t address) {
    check_open();
    if (count <= 1 || bytes <= 0) throw std::invalid_argument("DirectProduct: count is over 1, and bytes are positive");
    Slot const& d = slot("d");
    unsigned char const* const data = address == 0 ? at(d, 0) : reinterpret_cast<unsigned char const*>(address);
    int64_t const item = item_bytes(d.dtype), run = std::min(bytes / item * item, d.bytes());
    std::string found(size_t(run * count), '\0');
    {
      nb::gil_scoped_release unlocked;
      OnDevice const here(device_);
      for (int i = 0; i < count; ++i) {
        int64_t const start = (d.bytes() - run) / item * i / (count - 1) * item;
        check(cudaMemcpyAsync(found.data() + i * run, data + start, size_t(run), cudaMemcpyDeviceToHost, stream_),
              "cudaMemcpyAsync");
      }
      check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    }
    return nb::bytes(found.data(), found.size());
  }

  /// A matrix of one set as a flat array on the device, for DLPack. 8-bit floats are unsigned integers there.
  nb::ndarray<> array(std::string const& name, int set) {
    check_open();
    if (set < 0 || set >= sets_) throw std::invalid_argument("DirectProduct: there are fewer sets");
    Slot const& of = slot(name);
    size_t const shape[] = {size_t(of.elements)};
    // With an owner, or nanobind would copy.
    return nb::ndarray<>(at(of, set), 1, shape, nb::find(this), nullptr, dlpack_dtype(of.dtype),
                         nb::device::cuda::value, device_);
  }

 private:
  static constexpr int64_t kAlign = 1024;             // bytes, of every matrix
  static constexpr size_t kLeave = size_t(64) << 20;  // bytes of the device that stay free

  struct Captured {
    cudaGraphExec_t graph;
    int launches;
  };

  static int64_t rounded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  void check_open() const {
    if (memory_ == nullptr) throw std::runtime_error("DirectProduct: its memory was given back");
  }

  void place(std::string const& name, std::vector<int64_t> const& strides, Dtype dtype, int64_t elements,
             bool is_operand) {
    slots_.push_back({name, strides, dtype, elements, set_bytes_, is_operand});
    set_bytes_ += rounded(slots_.back().bytes());
  }

  Slot const* find_slot(std::string_view name) const {
    auto const found = std::find_if(slots_.begin(), slots_.end(), [&](Slot const& of) { return of.name == name; });
    return found == slots_.end() ? nullptr : &*found;
  }

  Slot const& slot(std::string_view name) const {
    if (Slot const* const found = find_slot(name)) return *found;
    throw std::invalid_argument("DirectProduct: it has no matrix " + std::string(name));
  }

  unsigned char* at(Slot const& of, int set) const { return memory_ + set_bytes_ * set + of.offset; }
  Buffer buffer(Slot const& of, int set) const { return {at(of, set), of.elements, of.dtype}; }

  /// Repeats a pattern over a matrix. It begins elsewhere in every set, so that no two sets are alike.
  void repeat(nb::bytes const& pattern, Slot const& of, int set) {
    auto const* const bytes = static_cast<unsigned char const*>(pattern.data());
    size_t const size = pattern.size(), whole = size_t(of.bytes()), begin = size_t(set) * kAlign % size;
    unsigned char* const data = at(of, set);
    size_t done = std::min(size - begin, whole);
    check(cudaMemcpyAsync(data, bytes + begin, done, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
    while (done < whole) {
      size_t const more = std::min(done, whole - done);
      check(cudaMemcpyAsync(data + done, data, more, cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
      done += more;
    }
  }

  EpilogueMatrix matrix(char const* name, int set) const {
    Slot const* const of = find_slot(name);
    return of == nullptr ? EpilogueMatrix{} : EpilogueMatrix{true, buffer(*of, set), of->strides};
  }

  GemmCall decoded(std::string const& config, int set) const {
    auto const buffer_of = [&](char const* name) {
      Slot const* const of = find_slot(name);
      return of == nullptr ? Buffer{} : buffer(*of, set);
    };
    GemmRequest const request{.config = config,
                              .sizes = sizes_,
                              .a_strides = slot("a").strides,
                              .b_strides = slot("b").strides,
                              .d_strides = slot("d").strides,
                              .a = buffer(slot("a"), set),
                              .b = buffer(slot("b"), set),
                              .d = buffer(slot("d"), set),
                              .workspace = memory_ + set_bytes_ * set + workspace_offset_,
                              .workspace_bytes = workspace_bytes_,
                              .epilogue = {.activation = activation_,
                                           .alpha = alpha_,
                                           .beta = beta_,
                                           .c = matrix("c", set),
                                           .bias = matrix("bias", set),
                                           .residual = matrix("residual", set),
                                           .wants_preactivation = find_slot("preactivation") != nullptr,
                                           .preactivation = buffer_of("preactivation"),
                                           .has_second_b = find_slot("second_b") != nullptr,
                                           .second_b = buffer_of("second_b"),
                                           .second_product = buffer_of("second_product"),
                                           .multiplier = matrix("multiplier", set)}};
    GemmCall call;
    check(decode_gemm(request, call));
    return call;
  }

  void launch(std::string const& config, int set) {
    GemmCall const call = decoded(config, set);
    check(call.gemm->entry.launch(call.args, stream_));
  }

  int device_, sets_;
  std::vector<int64_t> sizes_;
  int64_t workspace_bytes_, workspace_offset_ = 0, set_bytes_ = 0;
  std::string activation_;
  double alpha_, beta_;
  std::vector<Slot> slots_;
  unsigned char* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<Captured> captured_;
};

// ---- Marks

/// Holds a stream back until open() is called, so that what is dispatched meanwhile runs without the host. Not for
/// ever: a host that is kept from dispatching would wait for what it has not yet dispatched.
class Gate {
 public:
  static constexpr auto kLongest = std::chrono::milliseconds(200);

  void close() {
    std::lock_guard const lock(mutex_);
    is_open_ = false;
    was_forced_ = false;
  }
  void open() {
    std::lock_guard const lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    was_forced_ = !opened_.wait_for(lock, kLongest, [&] { return is_open_; });
  }
  bool was_forced() {
    std::lock_guard const lock(mutex_);
    return was_forced_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = true, was_forced_ = false;
};

/// The gate and the two marks of a process, which times one block of programs at a time.
Gate gate;
std::array<cudaEvent_t, 2> marks = {};

/// 0: waits for the gate and records the first event. 1: records the second.
ffi::Error mark(cudaStream_t stream, ffi::Result<ffi::AnyBuffer>, int64_t index) {
  return guarded("mark", [&] {
    if (index != 0 && index != 1) return ffi::Error::InvalidArgument("jax_moye: a mark is 0 or 1");
    if (index == 0) check(cudaLaunchHostFunc(stream, [](void*) { gate.wait(); }, nullptr), "cudaLaunchHostFunc");
    cudaEvent_t& event = marks[size_t(index)];
    if (event == nullptr) check(cudaEventCreate(&event), "cudaEventCreate");
    check(cudaEventRecord(event, stream), "cudaEventRecord");
    return ffi::Error::Success();
  });
}

/// Seconds between the two marks, once the second is reached. They mean nothing where the gate was forced.
double marked_seconds() {
  nb::gil_scoped_release unlocked;
  if (marks[0] == nullptr || marks[1] == nullptr) throw std::runtime_error("jax_moye: nothing was marked");
  check(cudaEventSynchronize(marks[1]), "cudaEventSynchronize");
  if (gate.was_forced()) throw std::runtime_error("jax_moye: the host was kept from dispatching what is timed");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, marks[0], marks[1]), "cudaEventElapsedTime");
  return double(milliseconds) / 1e3;
}

}  // namespace

void add_direct_product(nb::module_& module) {
  nb::class_<DirectProduct>(module, "DirectProduct", "One product on sets of operands, launched without XLA.")
      .def(nb::init<int, std::vector<int64_t>, nb::dict, std::string const&, std::string const&, int64_t, int,
                    nb::bytes, nb::bytes, std::string, double, double>(),
           nb::arg("device"), nb::arg("sizes"), nb::arg("matrices"), nb::arg("dtype"), nb::arg("out_dtype"),
           nb::arg("workspace_bytes"), nb::arg("sets"), nb::arg("fill"), nb::arg("out_fill"), nb::arg("activation"),
           nb::arg("alpha"), nb::arg("beta"))
      .def("add", &DirectProduct::add, nb::arg("config"), nb::arg("launches"))
      .def("seconds", &DirectProduct::seconds, nb::arg("number"), nb::arg("replays"))
      .def("sample", &DirectProduct::sample, nb::arg("count"), nb::arg("bytes"), nb::arg("address") = 0)
      .def("array", &DirectProduct::array, nb::arg("name"), nb::arg("set"))
      .def("give_back", &DirectProduct::give_back);
  module.def("close_gate", [] { gate.close(); }, "Lets mark 0 hold XLA's stream back.");
  module.def("open_gate", [] { gate.open(); }, "Lets it go.");
  module.def("marked_seconds", &marked_seconds, "Seconds between the two marks on XLA's stream.");
}

TargetHandlers mark_handlers() {
  XLA_FFI_DEFINE_HANDLER(
      handler, mark,
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<cudaStream_t>>().Ret<ffi::AnyBuffer>().Attr<int64_t>("index"));
  return {"jax_moye_mark_v1", handler};
}

}  // namespace moye
