#include "emulate_cpu.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "emulated_launch_cpu.h"
#include "gemm.h"
#include "interrupt_cpu.h"
#include "moye/emu/guarded_buffer.h"

namespace nb = nanobind;

namespace moye {
namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// The bytes of a NumPy array of any dtype (NumPy exports no buffer of a bfloat16 array), without a copy.
Bytes to_bytes(char const* name, nb::handle array) {
  if (!nb::hasattr(array, "flags") || !nb::cast<bool>(array.attr("flags").attr("c_contiguous")))
    throw nb::type_error((std::string("emulate: ") + name + " is no contiguous numpy.ndarray").c_str());
  return nb::cast<Bytes>(array.attr("reshape")(-1).attr("view")("uint8"));
}

Dtype parse_dtype(std::string const& name) {
  constexpr std::pair<char const*, Dtype> kNumpyNames[] = {
      {"bfloat16", Dtype::bf16}, {"float16", Dtype::f16}, {"float32", Dtype::f32},        {"float64", Dtype::f64},
      {"int8", Dtype::s8},       {"int32", Dtype::s32},   {"float8_e4m3fn", Dtype::e4m3}, {"float8_e5m2", Dtype::e5m2}};
  for (auto const& [numpy_name, dtype] : kNumpyNames) {
    if (name == numpy_name || name == dtype_name(dtype)) return dtype;
  }
  throw std::invalid_argument("emulate: no kernel reads or writes " + name);
}

/// d's own dtype, if it has one of ours; raw bytes are of the config's.
Dtype dtype_of_result(nb::handle d, Dtype config_dtype, std::optional<std::string> const& out_dtype) {
  if (out_dtype) return parse_dtype(*out_dtype);
  std::string const name = nb::cast<std::string>(d.attr("dtype").attr("name"));
  return name == "uint8" ? config_dtype : parse_dtype(name);
}

emu::ThreadOrder parse_order(std::string const& word) {
  if (word == "fifo") return emu::ThreadOrder::fifo;
  if (word == "lifo") return emu::ThreadOrder::lifo;
  if (word == "random") return emu::ThreadOrder::random;
  throw std::invalid_argument("emulate: order is fifo, lifo or random, not " + word);
}

nb::dict to_dict(emu::Counters const& counters) {
  nb::dict dict;
  dict["launches"] = counters.launches;
  dict["ctas"] = counters.ctas;
  dict["switches"] = counters.switches;
  dict["barriers"] = counters.barriers;
  dict["warp_syncs"] = counters.warp_syncs;
  dict["shuffles"] = counters.shuffles;
  dict["ldmatrix"] = counters.ldmatrix;
  dict["ldmatrix_wavefronts"] = counters.ldmatrix_wavefronts;
  dict["ldmatrix_ideal_wavefronts"] = counters.ldmatrix_ideal_wavefronts;
  dict["mma"] = counters.mma;
  dict["wgmma"] = counters.wgmma;
  dict["stmatrix"] = counters.stmatrix;
  dict["stmatrix_wavefronts"] = counters.stmatrix_wavefronts;
  dict["stmatrix_ideal_wavefronts"] = counters.stmatrix_ideal_wavefronts;
  dict["cp_async"] = counters.cp_async;
  dict["cp_async_bytes"] = counters.cp_async_bytes;
  dict["shared_loads"] = counters.shared_loads;
  dict["shared_load_bytes"] = counters.shared_load_bytes;
  dict["shared_stores"] = counters.shared_stores;
  dict["shared_store_bytes"] = counters.shared_store_bytes;
  dict["global_loads"] = counters.global_loads;
  dict["global_load_bytes"] = counters.global_load_bytes;
  dict["global_stores"] = counters.global_stores;
  dict["global_store_bytes"] = counters.global_store_bytes;
  dict["cluster_barriers"] = counters.cluster_barriers;
  dict["mbarrier_phases"] = counters.mbarrier_phases;
  dict["mbarrier_arrivals"] = counters.mbarrier_arrivals;
  dict["mbarrier_waits"] = counters.mbarrier_waits;
  dict["mbarrier_blocking_waits"] = counters.mbarrier_blocking_waits;
  dict["proxy_fences"] = counters.proxy_fences;
  dict["tma_loads"] = counters.tma_loads;
  dict["tma_load_bytes"] = counters.tma_load_bytes;
  dict["tma_load_sectors"] = counters.tma_load_sectors;
  dict["tma_load_ideal_sectors"] = counters.tma_load_ideal_sectors;
  dict["tma_smem_bytes"] = counters.tma_smem_bytes;
  dict["tma_stores"] = counters.tma_stores;
  dict["tma_store_bytes"] = counters.tma_store_bytes;
  dict["tma_store_sectors"] = counters.tma_store_sectors;
  dict["tma_store_ideal_sectors"] = counters.tma_store_ideal_sectors;
  auto const add_requests = [&](std::string const& name, emu::Transactions const& transactions) {
    dict[(name + "_requests").c_str()] = transactions.requests;
  };
  auto const add_wavefronts = [&](std::string const& name, emu::Transactions const& transactions) {
    dict[(name + "_wavefronts").c_str()] = transactions.wavefronts;
    dict[(name + "_ideal_wavefronts").c_str()] = transactions.ideal_wavefronts;
    dict[(name + "_bank_conflicts").c_str()] = transactions.bank_conflicts;
  };
  auto const add_sectors = [&](std::string const& name, emu::Transactions const& transactions) {
    dict[(name + "_sectors").c_str()] = transactions.sectors;
    dict[(name + "_ideal_sectors").c_str()] = transactions.ideal_sectors;
  };
  add_requests("shared_load", counters.shared_load_transactions);
  add_wavefronts("shared_load", counters.shared_load_transactions);
  add_requests("shared_store", counters.shared_store_transactions);
  add_wavefronts("shared_store", counters.shared_store_transactions);
  add_requests("global_load", counters.global_load_transactions);
  add_sectors("global_load", counters.global_load_transactions);
  add_requests("global_store", counters.global_store_transactions);
  add_sectors("global_store", counters.global_store_transactions);
  add_requests("cp_async", counters.cp_async_transactions);
  add_wavefronts("cp_async", counters.cp_async_transactions);
  add_sectors("cp_async", counters.cp_async_transactions);
  return dict;
}

nb::dict to_report(Status const& status, emu::Counters const& counters, double expected_seconds = 0) {
  nb::dict report;
  report["expected_seconds"] = expected_seconds;
  report["ok"] = status.ok();
  report["message"] = status.message;
  report["counters"] = to_dict(counters);
  return report;
}

/// Whether Python runs its handlers of signals on this thread.
bool on_main_thread() {
  nb::module_ const threading = nb::module_::import_("threading");
  return threading.attr("current_thread")().is(threading.attr("main_thread")());
}

nb::list to_list(std::vector<emu::MbarrierEvent> const& trace) {
  nb::list list;
  for (emu::MbarrierEvent const& e : trace) {
    std::string_view const path = e.loc.file;
    std::string const place(path.substr(path.rfind('/') + 1));
    list.append(nb::make_tuple(e.what, nb::make_tuple(e.block.x, e.block.y, e.block.z), e.thread, e.offset, e.phase,
                               e.pending, e.count, e.bytes, place + ":" + std::to_string(e.loc.line)));
  }
  return list;
}

/// Runs the request. The arrays of `stream` are those of the request.
///
/// The main thread runs Python's handlers of signals ten times a second, and the first that raises, as Ctrl-C does,
/// ends the launch: then Python's error is set. Elsewhere Ctrl-C ends it as it does under XLA.
EmulatedLaunch run(GemmRequest const& request, emu::Stream& stream, bool on_main_thread) {
  stream.memory = emulated_memory(request);
  GemmCall call;
  if (Status status = decode_gemm(request, call); !status.ok()) return {status};
  if (on_main_thread) {
    return launch_emulated(request, call, stream, [] {
      nb::gil_scoped_acquire const gil;
      return PyErr_CheckSignals() != 0;
    });
  }
  Interrupt interrupt;
  return launch_emulated(request, call, stream, [&] { return interrupt.requested(); });
}

/// Buffers of a request that hold copies of arrays, between guards. Those that are written come back.
class GuardedCopies {
 public:
  explicit GuardedCopies(emu::GuardedBuffer::Flush side) : side_(side) {}
  GuardedCopies(GuardedCopies const&) = delete;
  GuardedCopies& operator=(GuardedCopies const&) = delete;

  /// Puts `buffer` into guarded memory: a copy, or NaN where it is to be written.
  void add(char const* name, Buffer& buffer, bool written) {
    size_t const bytes = size_t(buffer.elements * item_bytes(buffer.dtype));
    size_t const alignment = 16;  // of an operand's address, as XLA's buffers have at least
    copies_.push_back({name, buffer.data, written, emu::GuardedBuffer(bytes, alignment, side_)});
    if (!written && bytes > 0) std::memcpy(copies_.back().guarded.data(), buffer.data, bytes);
    buffer.data = copies_.back().guarded.data();
  }

  /// Copies results back. What was written outside a buffer, or nothing.
  std::string finish() {
    std::string damaged;
    for (Copy& copy : copies_) {
      if (copy.written && copy.guarded.size() > 0) std::memcpy(copy.array, copy.guarded.data(), copy.guarded.size());
      std::string const damage = copy.guarded.damage();
      if (damaged.empty() && !damage.empty()) damaged = std::string("written outside ") + copy.name + ": " + damage;
    }
    return damaged;
  }

 private:
  struct Copy {
    char const* name;
    void* array;
    bool written;
    emu::GuardedBuffer guarded;
  };
  emu::GuardedBuffer::Flush side_;
  std::vector<Copy> copies_;
};

using Strides = std::vector<int64_t>;

nb::dict emulate(std::string const& config, nb::handle a, nb::handle b, nb::handle d, std::vector<int64_t> const& sizes,
                 std::vector<int64_t> const& a_strides, std::vector<int64_t> const& b_strides,
                 std::vector<int64_t> const& d_strides, std::optional<std::string> const& out_dtype,
                 std::string const& mode, uint64_t seed, bool detect_races, std::string const& order, int workers,
                 bool guard, std::string const& flush, bool count_transactions, int multiprocessors, bool trace,
                 nb::object c, Strides const& c_strides, nb::object bias, Strides const& bias_strides,
                 nb::object residual, Strides const& residual_strides, double alpha, double beta,
                 std::string const& activation, nb::object preactivation, nb::object second_b,
                 nb::object second_product, nb::object lhs_scale, Strides const& lhs_scale_strides,
                 nb::object rhs_scale, Strides const& rhs_scale_strides, nb::object multiplier) {
  emu::Stream stream;
  stream.options.seed = seed;
  stream.options.detect_races = detect_races;
  stream.options.order = parse_order(order);
  stream.options.workers = workers;
  stream.options.count_transactions = count_transactions;
  stream.options.trace_mbarriers = trace;
  if (multiprocessors < 1)
    throw std::invalid_argument("emulate: multiprocessors is " + std::to_string(multiprocessors) + ", not positive");
  stream.options.multiprocessors = multiprocessors;
  if (!parse_mode(mode, stream.options.mode))
    throw std::invalid_argument("emulate: mode is eager, lazy or random, not " + mode);

  if (flush != "end" && flush != "start") throw std::invalid_argument("emulate: flush is end or start, not " + flush);
  auto const side = flush == "end" ? emu::GuardedBuffer::Flush::end : emu::GuardedBuffer::Flush::start;

  RegisteredGemm const* gemm = find_gemm(config);
  if (gemm == nullptr) return to_report(gemm_error(config, sizes, "no compiled GEMM has this name"), stream.counters);
  Dtype const a_dtype = storage_dtype(gemm->config.dtype), b_dtype = storage_dtype_of_b(gemm->config.dtype);
  Dtype const d_dtype = dtype_of_result(d, a_dtype, out_dtype);
  Bytes const a_bytes = to_bytes("a", a), b_bytes = to_bytes("b", b), d_bytes = to_bytes("d", d);

  GemmRequest request{.config = config,
                      .sizes = sizes,
                      .a_strides = a_strides,
                      .b_strides = b_strides,
                      .d_strides = d_strides,
                      .a = {a_bytes.data(), int64_t(a_bytes.size()) / item_bytes(a_dtype), a_dtype},
                      .b = {b_bytes.data(), int64_t(b_bytes.size()) / item_bytes(b_dtype), b_dtype},
                      .d = {d_bytes.data(), int64_t(d_bytes.size()) / item_bytes(d_dtype), d_dtype},
                      .workspace = nullptr,
                      .workspace_bytes = 0};
  // Of d's dtype, so that arrays of raw bytes do. NumPy's names are checked where the elements have some.
  auto const to_d_buffer = [&](char const* name, nb::handle array) -> Buffer {
    Bytes const bytes = to_bytes(name, array);
    Dtype const dtype = dtype_of_result(array, d_dtype, {});
    return {bytes.data(), int64_t(bytes.size()) / item_bytes(dtype), dtype};
  };
  EpilogueRequest& epilogue = request.epilogue;
  epilogue.activation = activation;
  epilogue.alpha = alpha;
  epilogue.beta = beta;
  if (!c.is_none()) epilogue.c = {true, to_d_buffer("c", c), c_strides};
  if (!bias.is_none()) epilogue.bias = {true, to_d_buffer("bias", bias), bias_strides};
  if (!residual.is_none()) epilogue.residual = {true, to_d_buffer("residual", residual), residual_strides};
  if (!multiplier.is_none()) epilogue.multiplier = {true, to_d_buffer("multiplier", multiplier), d_strides};
  auto const to_scale = [](char const* name, nb::handle array, Strides const& strides) -> EpilogueMatrix {
    Bytes const bytes = to_bytes(name, array);
    Dtype const dtype = dtype_of_result(array, Dtype::f32, {});
    return {true, {bytes.data(), int64_t(bytes.size()) / item_bytes(dtype), dtype}, strides};
  };
  if (!lhs_scale.is_none()) epilogue.lhs_scale = to_scale("lhs_scale", lhs_scale, lhs_scale_strides);
  if (!rhs_scale.is_none()) epilogue.rhs_scale = to_scale("rhs_scale", rhs_scale, rhs_scale_strides);
  epilogue.wants_preactivation = !preactivation.is_none();
  if (epilogue.wants_preactivation) epilogue.preactivation = to_d_buffer("preactivation", preactivation);
  epilogue.has_second_b = !second_b.is_none();
  if (epilogue.has_second_b) {
    Bytes const bytes = to_bytes("second_b", second_b);
    epilogue.second_b = {bytes.data(), int64_t(bytes.size()) / item_bytes(b_dtype), b_dtype};
    if (epilogue.wants_preactivation) epilogue.second_product = to_d_buffer("second_product", second_product);
  }

  if (Status status = gemm_workspace_bytes(request, request.workspace_bytes); !status.ok())
    return to_report(status, stream.counters);

  constexpr size_t kWorkspaceAlignment = 256;  // as XLA's on a GPU
  size_t room = size_t(request.workspace_bytes) + kWorkspaceAlignment;
  std::unique_ptr<unsigned char[]> workspace(new unsigned char[room]);
  std::memset(workspace.get(), 0xff, room);
  request.workspace = workspace.get();
  std::align(kWorkspaceAlignment, size_t(request.workspace_bytes), request.workspace, room);

  EmulatedLaunch launch;
  bool const main_thread = on_main_thread();
  {
    nb::gil_scoped_release no_gil;
    if (!guard) {
      launch = run(request, stream, main_thread);
    } else {
      GuardedCopies copies(side);
      copies.add("a", request.a, false);
      copies.add("b", request.b, false);
      if (epilogue.has_second_b) copies.add("second_b", epilogue.second_b, false);
      // Who passes one array as d and as c, residual or multiplier wants it updated in place: then it is not full of
      // NaN.
      auto const in_place = [&](EpilogueMatrix const& matrix) {
        return matrix.present && matrix.buffer.data == request.d.data;
      };
      void* const d_data = request.d.data;
      bool const keep_d = in_place(epilogue.c) || in_place(epilogue.residual) || in_place(epilogue.multiplier);
      copies.add("d", request.d, true);
      if (keep_d) std::memcpy(request.d.data, d_data, d_bytes.size());
      for (auto const& [name, matrix] : {std::pair{"c", &epilogue.c},
                                         {"bias", &epilogue.bias},
                                         {"residual", &epilogue.residual},
                                         {"multiplier", &epilogue.multiplier},
                                         {"lhs_scale", &epilogue.lhs_scale},
                                         {"rhs_scale", &epilogue.rhs_scale}}) {
        if (!matrix->present) continue;
        if (matrix->buffer.data == d_data) {
          matrix->buffer.data = request.d.data;
        } else {
          copies.add(name, matrix->buffer, false);
        }
      }
      if (epilogue.wants_preactivation) {
        copies.add("preactivation", epilogue.preactivation, true);
        if (epilogue.has_second_b) copies.add("second_product", epilogue.second_product, true);
      }
      launch = run(request, stream, main_thread);
      std::string const damage = copies.finish();
      if (launch.status.ok()) launch.status.message = damage;
    }
  }
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  nb::dict report = to_report(launch.status, stream.counters, launch.expected_seconds);
  if (trace) report["trace"] = to_list(stream.trace);
  return report;
}

emu::Memory to_memory(Buffer const& buffer, char const* name, bool writable) {
  return {buffer.data, size_t(buffer.elements * item_bytes(buffer.dtype)), name, writable};
}

}  // namespace

bool parse_mode(std::string_view word, emu::Mode& mode) {
  if (word == "eager") {
    mode = emu::Mode::eager;
  } else if (word == "lazy") {
    mode = emu::Mode::lazy;
  } else if (word == "random") {
    mode = emu::Mode::random;
  } else {
    return false;
  }
  return true;
}

std::vector<emu::Memory> emulated_memory(AttentionRequest const& request) {
  std::vector<emu::Memory> memory;
  for (AttentionPart const& part : attention_parts(request.of_gradients)) {
    if (!is_in_result_before(request, part))
      memory.push_back(to_memory((request.*part.operand).buffer, part.name, part.is_result));
  }
  if (request.has_o_rest) memory.push_back(to_memory(request.o_rest.buffer, "o_rest", true));
  if (request.mask.present) memory.push_back({request.mask.data, size_t(request.mask.elements), "mask", false});
  if (request.dropout.present)
    memory.push_back({request.dropout.data, size_t(request.dropout.elements), "dropout", false});
  if (request.bias.present) memory.push_back(to_memory(request.bias.buffer, "bias", false));
  if (request.has_ds) memory.push_back(to_memory(request.ds, "ds", true));
  memory.push_back(to_memory(request.lse, "lse", !request.of_gradients));
  if (request.of_gradients) memory.push_back(to_memory(request.delta, "delta", false));
  return memory;
}

std::vector<emu::Memory> emulated_memory(GemmRequest const& request) {
  std::vector<emu::Memory> memory = {to_memory(request.a, "a", false),
                                     to_memory(request.b, "b", false),
                                     to_memory(request.d, "d", true),
                                     {request.workspace, size_t(request.workspace_bytes), "workspace", true}};
  EpilogueRequest const& epilogue = request.epilogue;
  for (auto const& [name, matrix] : {std::pair{"c", &epilogue.c},
                                     {"bias", &epilogue.bias},
                                     {"residual", &epilogue.residual},
                                     {"multiplier", &epilogue.multiplier},
                                     {"lhs_scale", &epilogue.lhs_scale},
                                     {"rhs_scale", &epilogue.rhs_scale}}) {
    if (matrix->present && matrix->buffer.data != request.d.data)
      memory.push_back(to_memory(matrix->buffer, name, false));
  }
  if (epilogue.has_second_b) memory.push_back(to_memory(epilogue.second_b, "second_b", false));
  if (epilogue.wants_preactivation) {
    memory.push_back(to_memory(epilogue.preactivation, "preactivation", true));
    if (epilogue.has_second_b) memory.push_back(to_memory(epilogue.second_product, "second_product", true));
  }
  return memory;
}

std::vector<emu::Memory> emulated_memory(GroupedRequest const& request) {
  std::vector<emu::Memory> memory = emulated_memory(request.gemm);
  memory.push_back(to_memory(request.group_sizes, "group_sizes", false));
  if (request.has_rows) memory.push_back(to_memory(request.d_rows, "d_rows", false));
  return memory;
}

std::vector<emu::Memory> emulated_memory(WeightsRequest const& request) {
  bool const two_in_a_byte = request.b_dtype == WeightDtype::s4 || request.b_dtype == WeightDtype::u4;
  size_t const b_bytes = size_t(request.b_elements) / (two_in_a_byte ? 2 : 1);
  std::vector<emu::Memory> memory = {to_memory(request.a, "a", false),
                                     {request.b, b_bytes, "b", false},
                                     to_memory(request.scales, "scales", false),
                                     to_memory(request.d, "d", true)};
  if (request.has_zeros) memory.push_back(to_memory(request.zeros, "zeros", false));
  return memory;
}

std::vector<emu::Memory> emulated_memory(BlockScaledRequest const& request) {
  return {to_memory(request.a, "a", false), to_memory(request.b, "b", false),
          to_memory(request.a_scales, "a_scales", false), to_memory(request.b_scales, "b_scales", false),
          to_memory(request.d, "d", true)};
}

void add_emulate(nb::module_& module) {
  module.def(
      "emulate", &emulate, nb::arg("config"), nb::arg("a"), nb::arg("b"), nb::arg("d"), nb::arg("sizes"),
      nb::arg("a_strides"), nb::arg("b_strides"), nb::arg("d_strides"), nb::arg("out_dtype") = nb::none(),
      nb::arg("mode") = "lazy", nb::arg("seed") = 0, nb::arg("detect_races") = true, nb::arg("order") = "fifo",
      nb::arg("workers") = 1, nb::arg("guard") = true, nb::arg("flush") = "end", nb::arg("count_transactions") = false,
      nb::arg("multiprocessors") = emu::Options{}.multiprocessors, nb::arg("trace") = false, nb::arg("c") = nb::none(),
      nb::arg("c_strides") = Strides(3), nb::arg("bias") = nb::none(), nb::arg("bias_strides") = Strides(3),
      nb::arg("residual") = nb::none(), nb::arg("residual_strides") = Strides(3), nb::arg("alpha") = 1.0,
      nb::arg("beta") = 0.0, nb::arg("activation") = "none", nb::arg("preactivation") = nb::none(),
      nb::arg("second_b") = nb::none(), nb::arg("second_product") = nb::none(), nb::arg("lhs_scale") = nb::none(),
      nb::arg("lhs_scale_strides") = Strides(3), nb::arg("rhs_scale") = nb::none(),
      nb::arg("rhs_scale_strides") = Strides(3), nb::arg("multiplier") = nb::none(),
      "Runs one launch in the emulator and returns {ok, message, counters, expected_seconds}.\n\n"
      "a, b, d: contiguous NumPy arrays, d is written. sizes: up to three of the batch, m, n, k; strides in\n"
      "elements, of (batch modes, m, k), (batch modes, n, k), (batch modes, m, n). guard: the kernel works on\n"
      "copies that end (or, by flush, start) at an inaccessible page, with d full of NaN before, and the bytes\n"
      "around them must still be there afterwards.\n"
      "count_transactions: fills in the counters of requests, wavefronts and sectors of plain accesses and cp.async.\n"
      "multiprocessors: of the emulated device, which persistent kernels choose their grid by.\n"
      "trace: adds `trace`, what happened to mbarriers: (what, block, thread or -1 for TMA, offset, complete phases,\n"
      "pending arrivals, arrivals of a phase, missing bytes, line), the state after it.\n"
      "c, bias, residual: arrays of d's dtype, with strides of (batch modes, m, n), 0 where they are broadcast; d\n"
      "itself may be passed as c. preactivation: an array like d, written. It is z = alpha * a b + beta * c + bias,\n"
      "and d is activation(z) + residual, activation being none, relu, gelu_tanh, gelu_erf or silu.\n"
      "second_b: an array like b, then d is activation(alpha * a b) * (a second_b); second_product, where there is a\n"
      "preactivation: an array like d, written. It is a second_b.\n"
      "multiplier: an array like d, where the activation is a derivative, as d_silu: d is alpha * a b * multiplier *\n"
      "activation'(c) then, and preactivation alpha * a b * activation(c).\n"
      "lhs_scale, rhs_scale: f32, with strides of (batch modes, m, n), 0 along n of the former and m of the latter;\n"
      "factors of a b.\n"
      "expected_seconds: what was measured before a long launch, else 0. One of more than ten seconds says so on\n"
      "stderr.");
}

}  // namespace moye
