// Every row of gemm/configs.h that computes products of groups, without JAX: random products of small integers, exact,
// between guard bands, in every order that the row has. The device fills the operands and checks the results, with
// kernels that compute each element by itself.
//
//   grouped_check           280 products of each row and order, 40 of them on islands; about 7000 together
//   grouped_check --small   few small products, without islands: under compute-sanitizer
//
// Sizes of groups are any integers: none, one, a tile and one more or less, below zero, more or less than there is. NaN
// are in gaps between rows of a and b, in what belongs to no group, in the matrices of groups without rows, and
// sometimes in all of a group, whose results alone may show it.
// An island is an array that begins or ends where mapped memory does, with gigabytes around it that are not mapped: the
// tensor maps of groups begin before their arrays, where nothing may be touched.
//
// Linked with the rows' objects and ffi/registry.cc; see scripts/gpu_check.sh. A host compiler builds it for the
// emulator.

#include <cstring>
#include <limits>
#include <random>

#include "grouped_product.h"
#include "machine.h"
#include "registry.h"

#if defined(__CUDACC__)
#include <cudaTypedefs.h>
#endif

namespace moye {
namespace {

constexpr size_t kGuardBytes = 256;            // on either side of an array, as far as there is memory
constexpr size_t kRoomBytes = 16ull << 20;     // of the largest array
constexpr int kMostFusedElements = 128 * 128;  // of a tile whose sums leave registers for an epilogue

// ---- Memory

/// Where an array may lie, and what may be read and written there.
struct Room {
  unsigned char* begin = nullptr;
  size_t bytes = 0;
};

enum class Place { between_guards, island_begins, island_ends };
constexpr char const* kPlaceNames[] = {"", ", islands that begin", ", islands that end"};

unsigned char* place(Room const& room, Place how, size_t bytes) {
  if (how == Place::island_begins) return room.begin;
  if (how == Place::island_ends) return room.begin + room.bytes - bytes;
  return room.begin + kGuardBytes;
}

/// Makes an array and its guard bands NaN.
void poison(Room const& room, unsigned char* array, size_t bytes) {
  unsigned char* const begin = std::max(room.begin, array - kGuardBytes);
  unsigned char* const end = std::min(room.begin + room.bytes, array + bytes + kGuardBytes);
  for_each(end - begin, FillBytes{begin});
}

void check_guards(Room const& room, unsigned char const* array, size_t bytes, Found* found) {
  unsigned char const* const begin = std::max<unsigned char const*>(room.begin, array - kGuardBytes);
  unsigned char const* const end = std::min<unsigned char const*>(room.begin + room.bytes, array + bytes + kGuardBytes);
  for_each(array - begin, CheckBytes{begin, found});
  for_each(end - array - int64_t(bytes), CheckBytes{array + bytes, found});
}

/// Of a, b, d and the pre-activation: either kind of place has one for each.
struct Rooms {
  Room a, b, d, z;
};

#if defined(__CUDACC__)
constexpr size_t kAroundBytes = 4ull << 30;

template <class Function>
Function driver_function(char const* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check_cuda(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found), name);
  if (found != cudaDriverEntryPointSuccess) testing::fail(std::string("this driver has no ") + name);
  return reinterpret_cast<Function>(function);
}

void check_driver(CUresult result, char const* what) {
  if (result != CUDA_SUCCESS) testing::fail(std::string(what) + ": CUresult " + std::to_string(int(result)));
}

/// Memory with nothing around it, until the program ends.
Room make_island() {
  static auto const granularity =
      driver_function<PFN_cuMemGetAllocationGranularity_v10020>("cuMemGetAllocationGranularity");
  static auto const reserve = driver_function<PFN_cuMemAddressReserve_v10020>("cuMemAddressReserve");
  static auto const create = driver_function<PFN_cuMemCreate_v10020>("cuMemCreate");
  static auto const map = driver_function<PFN_cuMemMap_v10020>("cuMemMap");
  static auto const set_access = driver_function<PFN_cuMemSetAccess_v10020>("cuMemSetAccess");
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  size_t unit = 0;
  check_driver(granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "cuMemGetAllocationGranularity");
  size_t const bytes = (kRoomBytes + unit - 1) / unit * unit, around = (kAroundBytes + unit - 1) / unit * unit;
  CUdeviceptr reserved = 0;
  check_driver(reserve(&reserved, bytes + 2 * around, 0, 0, 0), "cuMemAddressReserve");
  CUmemGenericAllocationHandle memory;
  check_driver(create(&memory, bytes, &properties, 0), "cuMemCreate");
  check_driver(map(reserved + around, bytes, 0, memory, 0), "cuMemMap");
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check_driver(set_access(reserved + around, bytes, &access, 1), "cuMemSetAccess");
  return {reinterpret_cast<unsigned char*>(reserved + around), bytes};
}
#endif

/// Memory that all products use, one after the other.
struct Rig {
  testing::Machine machine;
  Rooms ordinary, islands;
  unsigned char *bias, *residual;
  int32_t *sizes, *begins, *group_of;
  Found* found;

  explicit Rig(bool with_islands) {
    ordinary = {room("a"), room("b"), room("d"), room("preactivation")};
    bias = static_cast<unsigned char*>(machine.allocate("bias", kRoomBytes, true));
    residual = static_cast<unsigned char*>(machine.allocate("residual", kRoomBytes, true));
    sizes = static_cast<int32_t*>(machine.allocate("group_sizes", sizeof(int32_t) * kMaxGroups, true));
    begins = static_cast<int32_t*>(machine.allocate("begins", sizeof(int32_t) * (kMaxGroups + 1), true));
    group_of = static_cast<int32_t*>(machine.allocate("group_of", kRoomBytes, true));
    found = static_cast<Found*>(machine.allocate("found", sizeof(Found), true));
#if defined(__CUDACC__)
    if (with_islands) islands = {make_island(), make_island(), make_island(), make_island()};
#else
    (void)with_islands;
#endif
  }
  Room room(char const* name) {
    size_t const bytes = kRoomBytes + 2 * kGuardBytes;
    return {static_cast<unsigned char*>(machine.allocate(name, bytes, true)), bytes};
  }
};

// ---- Random products

using Sizes = std::vector<int64_t>;
using Random = std::mt19937;

/// 0 to n - 1.
int64_t below(Random& random, int64_t n) { return int64_t(random() % uint64_t(n)); }
template <class T>
T one_of(Random& random, std::vector<T> const& choices) {
  return choices[size_t(below(random, int64_t(choices.size())))];
}

/// Sizes whose sum is `length`, many of them zero where groups are many.
Sizes cut(Random& random, int64_t length, int groups) {
  Sizes ends;
  for (int i = 0; i + 1 < groups; ++i) ends.push_back(below(random, length + 1));
  std::sort(ends.begin(), ends.end());
  ends.push_back(length);
  Sizes sizes;
  for (size_t i = 0; i < ends.size(); ++i) sizes.push_back(ends[i] - (i == 0 ? 0 : ends[i - 1]));
  return sizes;
}

/// tile: along the ragged mode.
Sizes draw_sizes(Random& random, int64_t length, int groups, int tile, std::string* kind) {
  static std::vector<std::string> const kinds = {"cut",           "cut",  "cut short", "cut long", "edges",
                                                 "few and empty", "ones", "into one",  "empty",    "wild"};
  *kind = one_of(random, kinds);
  if (*kind == "cut") return cut(random, length, groups);
  if (*kind == "cut short") return cut(random, below(random, length + 1), groups);
  if (*kind == "cut long") return cut(random, length + 1 + below(random, length + 1), groups);
  Sizes sizes;
  int64_t const only = below(random, groups);
  for (int g = 0; g < groups; ++g) {
    int64_t size = 0;
    if (*kind == "edges")
      size =
          one_of<int64_t>(random, {0, 1, 15, 16, 17, tile - 1, tile, tile + 1, 2 * tile - 1, 2 * tile, 2 * tile + 1});
    if (*kind == "few and empty") size = below(random, 10) < 7 ? 0 : below(random, 90);
    if (*kind == "ones") size = 1;
    if (*kind == "into one") size = g == only ? length : 0;
    if (*kind == "wild") {
      using Limits = std::numeric_limits<int32_t>;
      size = below(random, 10) == 0 ? one_of<int64_t>(random, {Limits::min(), -1, Limits::max()})
                                    : below(random, length + length / 2 + 3) - length - 1;
    }
    sizes.push_back(size);
  }
  return sizes;
}

struct Case {
  Order order;
  int number;
  Product product;
  Sizes sizes;
  std::string kind;
  Place place;
};

std::string describe(RegisteredGemm const& gemm, Case const& c) {
  Product const& p = c.product;
  std::string text = gemm.name + " " + (p.a_transposed ? "T" : "N") + (p.b_transposed ? "T" : "N") + ", number " +
                     std::to_string(c.number) + ": m=" + std::to_string(p.m) + " n=" + std::to_string(p.n) +
                     " k=" + std::to_string(p.k) + " pitches " + std::to_string(p.a_pitch) + " " +
                     std::to_string(p.b_pitch) + " " + std::to_string(p.d_pitch) + " to " + dtype_name(p.out) +
                     (p.fused ? ", fused" : "") + kPlaceNames[int(c.place)] +
                     (p.poisoned >= 0 ? ", NaN in group " + std::to_string(p.poisoned) : "") + ", " +
                     std::to_string(p.groups) + " groups (" + c.kind + "):";
  for (int64_t size : c.sizes) text += " " + std::to_string(size);
  return text;
}

std::vector<Dtype> out_dtypes(RegisteredGemm const& gemm) {
  std::vector<Dtype> outs;
  for (int i = 0; i < kDtypes; ++i) {
    if (gemm.entry.out_dtypes >> i & 1u) outs.push_back(Dtype(i));
  }
  return outs;
}

Case draw_case(RegisteredGemm const& gemm, Order order, int number, bool small, bool on_islands) {
  Random random(uint32_t(number) * 8u + uint32_t(order) * 2u + uint32_t(small));
  TileMNK const tile = gemm.config.tile;
  Case c{.order = order, .number = number, .product = {}, .sizes = {}, .kind = {}, .place = Place::between_guards};
  Product& p = c.product;
  if (on_islands) c.place = below(random, 2) == 0 ? Place::island_begins : Place::island_ends;
  p.a_transposed = major_a(order) == Major::mn;
  p.b_transposed = major_b(order) == Major::k;
  p.rows_are_ragged = !p.a_transposed;
  p.of_a_in_memory = storage_dtype(gemm.config.dtype), p.of_b_in_memory = storage_dtype_of_b(gemm.config.dtype);
  p.out = one_of(random, out_dtypes(gemm));
  p.seed = random();
  p.fused = item_bytes(p.out) == 2 && tile.m * tile.n <= kMostFusedElements && below(random, 3) == 0;

  bool const padded = below(random, 3) == 0;  // sizes that 8 does not divide need rows that do not lie side by side
  // Around a tile, a few, or a multiple of 8, mostly an odd one.
  auto const extent = [&](int64_t of_tile, int64_t unit, int most) {
    switch (below(random, small ? 2 : 4)) {
      case 0:
        return of_tile + unit * (below(random, 3) - 1);
      case 1:
        return unit * (1 + below(random, 4));
      default:
        return unit * (1 + 2 * below(random, most / 16) + (below(random, 4) == 0));
    }
  };
  int64_t groups = small                   ? one_of<int64_t>(random, {1, 3, 8, 40})
                   : below(random, 3) == 0 ? one_of<int64_t>(random, {1, 2, 64, 128, 511, 512})
                                           : 1 + below(random, one_of<int64_t>(random, {8, 64, 512}));
  int64_t const tile_of_length = p.rows_are_ragged ? tile.m : tile.k;
  int64_t length = small ? 1 + below(random, 3 * tile_of_length)
                         : 1 + below(random, one_of<int64_t>(random, {16, 3 * tile_of_length, 600, 2000}));
  if (!p.rows_are_ragged && below(random, 40) == 0) length = 0;
  // Columns of d are of 16 bytes, whatever the pitch is.
  int64_t n = extent(tile.n, padded && p.out == Dtype::f32 ? 4 : 8, 400);
  int64_t other = p.rows_are_ragged ? extent(2 * tile.k, padded ? 1 : 8, 400) : extent(tile.m, padded ? 1 : 8, 400);
  if (p.rows_are_ragged && below(random, 40) == 0) other = 0;
  auto const fits = [&] {  // with 8 elements between rows at most
    int64_t const matrix = (n + 16) * (other + 16), most = int64_t(kRoomBytes) / 4;
    return groups * matrix <= most && length * (std::max(n, other) + 16) <= most;
  };
  while (!fits()) (n > other ? n : other) = std::max<int64_t>(8, (n > other ? n : other) / 16 * 8);

  p.groups = int(groups), p.n = int(n);
  p.m = int(p.rows_are_ragged ? length : other);
  p.k = int(p.rows_are_ragged ? other : length);
  auto const pitch = [&](int64_t inner, int64_t unit) {
    return std::max<int64_t>(unit, (inner + unit - 1) / unit * unit) + (padded ? unit * below(random, 2) : 0);
  };
  p.a_pitch = pitch(p.a_transposed ? p.m : p.k, 16 / item_bytes(p.of_a_in_memory));
  p.b_pitch = pitch(p.b_transposed ? p.k : p.n, 16 / item_bytes(p.of_b_in_memory));
  p.d_pitch = pitch(p.n, 16 / item_bytes(p.out));
  c.sizes = draw_sizes(random, length, p.groups, int(tile_of_length), &c.kind);
  p.poisoned = !p.fused && below(random, 4) == 0 ? int(below(random, groups)) : -1;
  return c;
}

// ---- Running them

void check(Rig& rig, RegisteredGemm const& gemm, Case& c) {
  Product& p = c.product;
  Rooms const& rooms = c.place == Place::between_guards ? rig.ordinary : rig.islands;
  size_t const a_bytes = size_t(p.elements_of_a()) * size_t(item_bytes(p.of_a_in_memory));
  size_t const b_bytes = size_t(p.elements_of_b()) * size_t(item_bytes(p.of_b_in_memory));
  size_t const d_bytes = size_t(p.elements_of_d()) * size_t(item_bytes(p.out));
  std::string const name = describe(gemm, c);
  if (std::max({a_bytes, b_bytes, d_bytes}) > kRoomBytes) testing::fail(name + ": needs more memory than there is");
  p.a = place(rooms.a, c.place, a_bytes);
  p.b = place(rooms.b, c.place, b_bytes);
  p.d = place(rooms.d, c.place, d_bytes);
  p.z = place(rooms.z, c.place, d_bytes);
  p.bias = rig.bias, p.residual = rig.residual;
  p.sizes = rig.sizes, p.begins = rig.begins, p.group_of = rig.group_of;

  // Where the groups begin, by the definition alone.
  std::vector<int32_t> sizes, begins = {0}, group_of(size_t(p.length()), p.groups);
  for (int64_t size : c.sizes) {
    auto const group = int32_t(sizes.size());
    int64_t const end = std::min<int64_t>(p.length(), begins.back() + std::max<int64_t>(0, size));
    for (int64_t at = begins.back(); at < end; ++at) group_of[size_t(at)] = group;
    sizes.push_back(int32_t(size));
    begins.push_back(int32_t(end));
  }
  auto const upload = [&](int32_t* array, std::vector<int32_t> const& values) {
    if (!values.empty()) rig.machine.upload(array, values.data(), values.size() * sizeof(int32_t));
  };
  upload(p.sizes, sizes);
  upload(p.begins, begins);
  upload(p.group_of, group_of);

  poison(rooms.a, p.a, a_bytes);
  poison(rooms.b, p.b, b_bytes);
  poison(rooms.d, p.d, d_bytes);
  for_each(p.elements_of_a(), FillA{p});
  for_each(p.elements_of_b(), FillB{p});
  GroupedArgs args{.gemm = {.a = p.a,
                            .b = p.b,
                            .d = p.d,
                            .workspace = nullptr,
                            .batch = p.groups,
                            .m = p.m,
                            .n = p.n,
                            .k = p.k,
                            .batch_sizes = make_batch_sizes(1, 1, p.groups),
                            .a_batch_strides = {},
                            .a_m_stride = p.a_transposed ? 1 : p.a_pitch,
                            .a_k_stride = p.a_transposed ? p.a_pitch : 1,
                            .b_batch_strides = {{0, 0, p.rows_are_ragged ? p.matrix_of_b() : 0}},
                            .b_n_stride = p.b_transposed ? p.b_pitch : 1,
                            .b_k_stride = p.b_transposed ? 1 : p.b_pitch,
                            .d_batch_strides = {{0, 0, p.rows_are_ragged ? 0 : p.matrix_of_d()}},
                            .d_m_stride = p.d_pitch,
                            .d_n_stride = 1,
                            .d_dtype = p.out},
                   .group_sizes = p.sizes};
  if (p.fused) {
    poison(rooms.z, p.z, d_bytes);
    for_each(int64_t(p.groups) * p.n, FillBias{p});
    for_each(int64_t(p.matrices_of_d()) * p.m * p.n, FillResidual{p});
    int64_t const residuals = p.rows_are_ragged ? 0 : int64_t(p.m) * p.n;
    args.gemm.epilogue = {.alpha = 1,
                          .beta = 0,
                          .c = {},
                          .bias = {p.bias, {{0, 0, p.n}}, 0, 1},
                          .residual = {p.residual, {{0, 0, residuals}}, p.n, 1},
                          .activation = Activation::relu,
                          .preactivation = p.z,
                          .second_b = nullptr,
                          .second_product = nullptr};
  }
  wait("what fills the operands of " + name);
  testing::check(gemm.entry.launch_grouped(args, rig.machine.stream()), name);
  wait(name);

  for_each(int64_t(sizeof(Found)), FillBytes{reinterpret_cast<unsigned char*>(rig.found)});
  for (bool preactivation : {false, true}) {
    if (preactivation && !p.fused) continue;
    std::string const what = name + (preactivation ? ", its pre-activation" : "");
    CheckResult const result{p, preactivation, rig.found};
    for_each(p.elements_of_d(), result);
    check_guards(preactivation ? rooms.z : rooms.d, preactivation ? p.z : p.d, d_bytes, rig.found);
    Found found;
    rig.machine.download(&found, rig.found, sizeof(found));
    if (found.outside != ~uint64_t{0}) testing::fail(what + "\nwrote outside it");
    if (found.wrong == ~uint64_t{0}) continue;
    for_each(1, Show{result});
    rig.machine.download(&found, rig.found, sizeof(found));
    auto const at = int64_t(found.wrong), in_matrix = at % p.matrix_of_d();
    testing::fail(what + "\nwrong in matrix " + std::to_string(at / p.matrix_of_d()) + ", row " +
                  std::to_string(in_matrix / p.d_pitch) + ", column " + std::to_string(in_matrix % p.d_pitch) + ": " +
                  std::to_string(value_of(p.out, found.found)) + ", not " +
                  std::to_string(value_of(p.out, found.expected)));
  }
}

/// The rows for products of groups that this GPU runs.
std::vector<RegisteredGemm const*> rows_here() {
  std::vector<RegisteredGemm const*> rows;
  for (RegisteredGemm const& gemm : registered_gemms()) {
    if (gemm.entry.launch_grouped == nullptr) continue;
    KernelFacts const& facts = gemm.entry.facts;
    if (testing::Machine::has_arch(facts.min_arch) &&
        (facts.max_arch == 0 || !testing::Machine::is_newer(facts.max_arch))) {
      rows.push_back(&gemm);
    } else {
      std::printf("%-52s not for this GPU\n", gemm.name.c_str());
    }
  }
  return rows;
}

void check_row(Rig& rig, RegisteredGemm const& gemm, bool small) {
  testing::check(gemm.entry.prepare(), gemm.name);
  int count = 0, on_islands = 0;
  for (unsigned order = 0; order < 4; ++order) {
    if (!(gemm.entry.facts.orders >> order & 1u)) continue;
    for (int number = 0; number < (small ? 4 : 280); ++number, ++count) {
      bool const islands = !small && number >= 240 && rig.islands.a.begin != nullptr;
      Case c = draw_case(gemm, Order(order), number, small, islands);
      check(rig, gemm, c);
      on_islands += islands;
    }
  }
  std::printf("%-52s %d products of groups exact, %d on islands\n", gemm.name.c_str(), count, on_islands);
  std::fflush(stdout);
}

}  // namespace
}  // namespace moye

int main(int count, char** arguments) {
  std::vector<std::string> const words(arguments + 1, arguments + count);
  bool const small = words.size() == 1 && words[0] == "--small";
  if (!words.empty() && !small) moye::testing::fail("usage: grouped_check [--small]");
  if (auto const rows = moye::rows_here(); !rows.empty()) {
    moye::Rig rig(/*with_islands=*/!small);
    for (auto const* gemm : rows) moye::check_row(rig, *gemm, small);
  }
  std::puts("ok");
  return 0;
}
