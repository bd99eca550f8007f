// Operands that TMA or wgmma cannot read where they are, copied before the GEMM into its workspace.
//   which     those whose mode of stride 1 wgmma does not take (8 and 32 bits: k alone), or that have none, or whose
//             address, pitch or batch stride is no multiple of 16 bytes; the others are read in place
//   where     args.workspace: first a, then b, lines of `pitch` bytes, zeros behind their elements
//   lines     along k; or along the rows, where the operand's own are and wgmma takes that (16 bits): nothing is turned
//   parts     an operand of f32 becomes kParts of bf16, one behind the other in each line; all such operands are copied
//   launch    one for both: one CTA per tile of 128 bytes along k and as many rows as a row has elements
//   tile      lanes read words along the operand's faster mode (warp: 128 bytes), shared memory turns them, and every
//             eight threads write 128 bytes of a row, 16 each; where lines of that mode begin between two words, eight
//             threads read 128 bytes of a line, each the two aligned vectors that hold its 16 bytes, and shift them
#pragma once

#include "gemm/batch.h"
#include "gemm/config.h"
#include "gemm/element.h"
#include "gemm/order.h"
#include "moye/algorithm/copy.h"
#include "moye/arch/barrier.h"
#include "moye/arch/grid_dependency.h"
#include "moye/arch/launch.h"
#include "moye/arch/store.h"
#include "moye/arch/types.h"

namespace moye {

/// (matrix, row, k) with any strides, and where its copy goes, whose lines are along k. (For lines along the rows, the
/// host calls them k, and k the rows.)
struct PackOperand {
  void const* from;
  unsigned char* to;
  BatchSizes batch_sizes;      // of the matrices to be packed: 1 where the operand is broadcast
  BatchStrides batch_strides;  // these and the next of `from`, elements
  int64_t row_stride, k_stride;
  int64_t pitch;  // of `to`, bytes
  int rows, k;
  unsigned tiles_rows, tiles_k, tiles;                  // tiles: of all matrices; 0: the operand is not packed
  void const* end;                                      // of `from`, behind the last element
  bool along_k;                                         // lanes lie side by side along k, else along the rows
  enum class Reads { words, vectors, elements } reads;  // aligned words; lines from anywhere on; what is far apart
};

/// The parts of an f32 number, kParts of them: x = parts[0] + parts[1] / 2^8 + parts[2] / 2^16, exactly where there are
/// three. Scaled so, the parts of the smallest numbers are none too small for bf16. Rounding to the nearest makes none
/// larger than the first, but of numbers below 2^-125. What would round to infinity is cut off.
/// Of infinity and NaN, and of none else, part 0 is that; the others are 0. Where x is not 0, part 0 is not.
template <int kParts>
MOYE_DEVICE void split_f32(float x, uint16_t (&parts)[kParts]) {
  constexpr uint32_t kInf = 0x7f800000;
  auto const bits = [](float value) { return detail::bit_cast<uint32_t>(value); };
  bool const is_finite = (bits(x) & kInf) != kInf;
  MOYE_UNROLL
  for (int i = 0; i < kParts; ++i) {
    uint32_t part = bfloat16_t(x).storage;
    if ((part & 0x7fff) == 0x7f80) part = bits(x) >> 16;      // cut off, and infinity itself
    if (i == 0 && (part & 0x7fff) == 0 && x != 0) part |= 1;  // inf times it is inf
    parts[i] = uint16_t(part);
    x = is_finite ? (x - detail::bit_cast<float>(part << 16)) * 256 : 0;
  }
}

/// 16 bytes from byte `shift` of `low` on, 0 to 15, of which the rest are the first ones of `high`.
MOYE_DEVICE uint128_t shifted_words(uint128_t const& low, uint128_t const& high, int shift) {
  uint32_t words[] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  MOYE_UNROLL
  for (int i = 0; i < 6; ++i) words[i] = shift & 8 ? words[i + 2] : words[i];
  MOYE_UNROLL
  for (int i = 0; i < 5; ++i) words[i] = shift & 4 ? words[i + 1] : words[i];
  int const bits = shift % 4 * 8;
  MOYE_UNROLL
  for (int i = 0; i < 4; ++i) words[i] = uint32_t((uint64_t(words[i + 1]) << 32 | words[i]) >> bits);
  return {words[0], words[1], words[2], words[3]};
}

/// T: an unsigned integer of the element's size. kParts: of bf16 that each f32 becomes; 0: it stays what it is.
template <class T, int kParts = 0>
struct Packer {
  static constexpr int kThreads = 256, kWarps = kThreads / 32;
  static constexpr int kWord = 4 / int(sizeof(T));    // elements of a word
  static constexpr int kTile = 128 / int(sizeof(T));  // elements along k, and rows
  static constexpr int kBlocks = 32 / kWarps;         // that a thread turns: of kWord rows and kWord elements along k
  // Words from one row to the next: odd, so that a column meets all banks.
  static constexpr int kPitch = 33;

  struct SharedStorage {
    alignas(16) uint32_t words[kTile * kPitch];
    alignas(16) uint32_t lines[kTile * kPitch];  // as they lie in global memory, 128 bytes of each
  };

  static MOYE_DEVICE void run(PackOperand const& operand, unsigned tile) {
    auto& smem = *reinterpret_cast<SharedStorage*>(smem_base());
    int const thread = int(thread_idx().x), warp = thread / 32, lane = thread % 32;
    unsigned const in_matrix = tile % (operand.tiles_rows * operand.tiles_k);
    int64_t const matrix = tile / (operand.tiles_rows * operand.tiles_k);
    int const first_row = int(in_matrix / operand.tiles_k) * kTile, first_k = int(in_matrix % operand.tiles_k) * kTile;
    auto const* from = static_cast<T const*>(operand.from) +
                       batch_offset(batch_coord(operand.batch_sizes, int(matrix)), operand.batch_strides) +
                       first_row * operand.row_stride + first_k * operand.k_stride;
    int const rows = operand.rows - first_row, ks = operand.k - first_k;  // left of the operand

    // A thread's 16 bytes of a row of the tile.
    auto const store = [&](int row, uint128_t const& words) {
      int64_t const byte = int64_t(first_k) * int(sizeof(T)) + thread % 8 * 16;
      unsigned char* const line = operand.to + (matrix * operand.rows + first_row + row) * operand.pitch;
      if constexpr (kParts > 0) {
        int64_t const part_bytes = operand.pitch / kParts;
        if (row < rows && byte / 2 < part_bytes) store_parts(words, line + byte / 2, part_bytes);
      } else {
        if (row < rows && byte < operand.pitch) store_global(words, *reinterpret_cast<uint128_t*>(line + byte));
      }
    };

    // All loads first, so that they are in flight together.
    bool const along_k = operand.along_k;
    int64_t const stride = along_k ? operand.k_stride : operand.row_stride;
    int64_t const other_stride = along_k ? operand.row_stride : operand.k_stride;
    int const line_left = along_k ? ks : rows, other_left = along_k ? rows : ks;
    if (operand.reads == PackOperand::Reads::vectors) {
      uint128_t vectors[kTile * 8 / kThreads];
      int const piece = thread % 8;
      MOYE_UNROLL
      for (int i = 0; i < kTile * 8 / kThreads; ++i) {
        int const line = (i * kThreads + thread) / 8, left = line_left * int(sizeof(T)) - piece * 16;
        vectors[i] = {};
        if (line < other_left && left > 0) {
          auto const* const p = reinterpret_cast<unsigned char const*>(from + line * other_stride) + piece * 16;
          vectors[i] = load_anywhere(p, left, operand.from, operand.end);
        }
      }
      if (along_k) {  // lines are rows: nothing is turned
        MOYE_UNROLL
        for (int i = 0; i < kTile * 8 / kThreads; ++i) store((i * kThreads + thread) / 8, vectors[i]);
        return;
      }
      MOYE_UNROLL
      for (int i = 0; i < kTile * 8 / kThreads; ++i) {
        uint32_t* const words = &smem.lines[(i * kThreads + thread) / 8 * kPitch + piece * 4];
        words[0] = vectors[i].x, words[1] = vectors[i].y, words[2] = vectors[i].z, words[3] = vectors[i].w;
      }
      sync_threads();  // the lines are there
    }
    uint32_t loaded[kBlocks][kWord];
    MOYE_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      MOYE_UNROLL
      for (int j = 0; j < kWord; ++j) {
        int const other = (i * kWarps + warp) * kWord + j;
        loaded[i][j] = 0;
        if (operand.reads == PackOperand::Reads::vectors) {
          loaded[i][j] = smem.lines[other * kPitch + lane];
        } else if (other < other_left) {
          loaded[i][j] = load(from + lane * kWord * stride + other * other_stride, stride, line_left - lane * kWord,
                              operand.reads == PackOperand::Reads::words);
        }
      }
    }

    // A word for shared memory holds kWord elements of one row.
    MOYE_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      int const block = i * kWarps + warp;
      if (along_k) {
        MOYE_UNROLL
        for (int j = 0; j < kWord; ++j) smem.words[(block * kWord + j) * kPitch + lane] = loaded[i][j];
      } else {
        transpose(loaded[i]);
        MOYE_UNROLL
        for (int j = 0; j < kWord; ++j) {
          // Lanes are kWord rows apart: they meet all banks once, if every 32 / kWord of them begin with another row.
          int const row = (j + lane / (32 / kWord)) % kWord;
          smem.words[(lane * kWord + row) * kPitch + block] = pick(loaded[i], row);
        }
      }
    }
    sync_threads();  // the tile is turned

    MOYE_UNROLL
    for (int i = 0; i < kTile * 8 / kThreads; ++i) {
      int const row = (i * kThreads + thread) / 8;
      uint32_t const* const word = &smem.words[row * kPitch + thread % 8 * 4];
      store(row, {word[0], word[1], word[2], word[3]});
    }
  }

 private:
  /// The parts of four f32, each part_bytes behind the one before.
  static MOYE_DEVICE void store_parts(uint128_t const& words, unsigned char* to, int64_t part_bytes) {
    uint32_t const bits[] = {words.x, words.y, words.z, words.w};
    uint16_t parts[4][kParts];
    MOYE_UNROLL
    for (int i = 0; i < 4; ++i) split_f32(detail::bit_cast<float>(bits[i]), parts[i]);
    MOYE_UNROLL
    for (int j = 0; j < kParts; ++j) {
      auto const pair = [&](int i) { return uint64_t(parts[i][j]) | uint64_t(parts[i + 1][j]) << 16; };
      *reinterpret_cast<uint64_t*>(to + j * part_bytes) = pair(0) | pair(2) << 32;
    }
  }

  /// kWord elements, `stride` apart; zeros for those behind the first `left`.
  static MOYE_DEVICE uint32_t load(T const* p, int64_t stride, int left, bool words) {
    if (words && left >= kWord) return *reinterpret_cast<uint32_t const*>(p);
    uint32_t word = 0;
    MOYE_UNROLL
    for (int i = 0; i < kWord; ++i) {
      if (i < left) word |= uint32_t(p[i * stride]) << (32 / kWord * i);
    }
    return word;
  }

  /// 16 bytes from p on, zeros behind the first `left`: of the aligned vectors that hold them, what lies in [begin,
  /// end).
  static MOYE_DEVICE uint128_t load_anywhere(unsigned char const* p, int left, void const* begin, void const* end) {
    int const shift = int(reinterpret_cast<uintptr_t>(p) % 16);
    auto const* const aligned = p - shift;
    uint128_t const low = load_vector(aligned, begin, end);
    uint128_t high = {};
    if (shift + (left < 16 ? left : 16) > 16) high = load_vector(aligned + 16, begin, end);
    uint128_t const shifted = shifted_words(low, high, shift);
    uint32_t words[] = {shifted.x, shifted.y, shifted.z, shifted.w};
    MOYE_UNROLL
    for (int i = 0; i < 4; ++i) {
      int const bytes = left - 4 * i;  // of the word
      if (bytes < 4) words[i] &= bytes <= 0 ? 0 : 0xffffffffu >> (32 - 8 * bytes);
    }
    return {words[0], words[1], words[2], words[3]};
  }

  /// The 16 bytes at an aligned address; where not all lie in [begin, end), those that do, and zeros.
  static MOYE_DEVICE uint128_t load_vector(unsigned char const* p, void const* begin, void const* end) {
    if (p >= begin && p + 16 <= end) return *reinterpret_cast<uint128_t const*>(p);
    uint32_t words[4] = {};
    MOYE_UNROLL
    for (int i = 0; i < 16 / int(sizeof(T)); ++i) {
      auto const* const element = p + i * int(sizeof(T));
      if (element < begin || element >= end) continue;
      words[i / kWord] |= uint32_t(*reinterpret_cast<T const*>(element)) << (i % kWord * (32 / kWord) % 32);
    }
    return {words[0], words[1], words[2], words[3]};
  }

  static MOYE_DEVICE uint32_t pick(uint32_t const (&words)[kWord], int index) {
    uint32_t word = words[0];  // registers have no index
    MOYE_UNROLL
    for (int i = 1; i < kWord; ++i) word = index == i ? words[i] : word;
    return word;
  }

  /// Element j of word i becomes element i of word j.
  static MOYE_DEVICE void transpose(uint32_t (&words)[kWord]) {
    constexpr int kBits = 32 / kWord;
    uint32_t turned[kWord];
    MOYE_UNROLL
    for (int i = 0; i < kWord; ++i) {
      turned[i] = 0;
      MOYE_UNROLL
      for (int j = 0; j < kWord; ++j) {
        turned[i] |= (words[j] >> (kBits * i) & (0xffffffffu >> (32 - kBits))) << (kBits * j);
      }
    }
    MOYE_UNROLL
    for (int i = 0; i < kWord; ++i) words[i] = turned[i];
  }
};

template <class T, int kParts>
MOYE_KERNEL(Packer<T>::kThreads)
pack_kernel(MOYE_GRID_CONSTANT PackOperand const a, MOYE_GRID_CONSTANT PackOperand const b) {
  griddepcontrol_wait();  // the kernel ahead may still run up to here
  unsigned const tile = block_idx().x;
  Packer<T, kParts>::run(tile < a.tiles ? a : b, tile < a.tiles ? tile : tile - a.tiles);
}

/// Packing the operands of a call, whose elements have the size of Element. Host code.
/// kParts > 0: all operands, f32, as that many parts of bf16: they are side by side along k, each of whole k-tiles.
template <class Element, int kParts = 0>
class Packing {
  using T = typename WordOf<int(sizeof(Element))>::Type;
  static_assert(kParts == 0 || sizeof(Element) == 4);

 public:
  static constexpr bool kAnyMajor = sizeof(Element) == 2;  // wgmma's operands may be MN-major
  static constexpr int kPartsBlkK = 64;                    // elements of a k-tile of parts

  explicit Packing(GemmArgs const& args) {
    if (args.batch == 0 || args.m == 0 || args.n == 0 || args.k == 0) return;
    Order const order = order_of(args);
    a_ = plan(args, args.a, args.m, args.a_batch_strides, args.a_m_stride, args.a_k_stride, major_a(order));
    b_ = plan(args, args.b, args.n, args.b_batch_strides, args.b_n_stride, args.b_k_stride, major_b(order));
  }

  /// The largest int64 where it is more than that.
  int64_t workspace_bytes() const {
    int64_t bytes;
    return __builtin_add_overflow(a_.bytes, b_.bytes, &bytes) ? kTooMany : bytes;
  }

  /// Starts the copies into args->workspace, of workspace_bytes(), and makes `args` name them.
  Status launch(GemmArgs* args, StreamHandle stream) {
    if (workspace_bytes() == 0) return {};
    if (a_.tiles > kMaxTiles - b_.tiles) return {"the operands to be packed have more than 2^31 - 1 tiles"};
    auto* const workspace = static_cast<unsigned char*>(args->workspace);
    a_.operand.to = workspace;
    b_.operand.to = workspace + a_.bytes;
    a_.operand.tiles = unsigned(a_.tiles);
    b_.operand.tiles = unsigned(b_.tiles);
    LaunchConfig const config{.grid = {unsigned(a_.tiles + b_.tiles)},
                              .block = {unsigned(Packer<T>::kThreads)},
                              .smem_bytes = int(sizeof(typename Packer<T>::SharedStorage)),
                              .programmatic = true,
                              .compiled_in = true};
    if (Status status = launch_kernel(pack_kernel<T, kParts>, config, stream, a_.operand, b_.operand); !status.ok())
      return status;
    if (a_.tiles > 0) {
      args->a = a_.operand.to;
      name_copy(a_, args->a_m_stride, args->a_k_stride, args->a_batch_strides);
    }
    if (b_.tiles > 0) {
      args->b = b_.operand.to;
      name_copy(b_, args->b_n_stride, args->b_k_stride, args->b_batch_strides);
    }
    if constexpr (kParts > 0) args->k = elements(a_.operand.pitch);
    return {};
  }

  static Status prepare() {
    return prepare_kernel(pack_kernel<T, kParts>, int(sizeof(typename Packer<T>::SharedStorage)));
  }

 private:
  static constexpr int64_t kTooMany = INT64_MAX, kMaxTiles = 0x7fffffff;

  struct Plan {
    PackOperand operand = {};
    int64_t bytes = 0, tiles = 0;  // 0: read in place
    bool keeps_lines = false;      // the copy's are along the rows
  };

  /// Of the bytes of a copy.
  static int64_t elements(int64_t bytes) { return bytes / (kParts > 0 ? 2 : int64_t(sizeof(T))); }

  /// The strides of a copy.
  static void name_copy(Plan const& plan, int64_t& row_stride, int64_t& k_stride, BatchStrides& batch_strides) {
    int64_t const pitch = elements(plan.operand.pitch);
    row_stride = plan.keeps_lines ? 1 : pitch;
    k_stride = plan.keeps_lines ? pitch : 1;
    batch_strides = packed_strides(plan.operand, pitch * plan.operand.rows);
  }

  /// Of the copies, matrices of `elements` one behind the other in row-major order.
  static BatchStrides packed_strides(PackOperand const& operand, int64_t elements) {
    BatchStrides strides = {};
    for (int i = kBatchModes - 1; i >= 0; --i) {
      if (operand.batch_sizes.modes[i] > 1) strides.modes[i] = elements;
      elements *= operand.batch_sizes.modes[i];
    }
    return strides;
  }

  static bool divisible(int64_t stride, int64_t bytes) { return stride * int64_t(sizeof(T)) % bytes == 0; }

  /// Whether each line begins at a multiple of `bytes`.
  static bool is_aligned(GemmArgs const& args, void const* data, BatchStrides const& batch_strides, int64_t other_size,
                         int64_t other_stride, int64_t bytes) {
    for (int i = 0; i < kBatchModes; ++i) {
      if (args.batch_sizes.modes[i] > 1 && !divisible(batch_strides.modes[i], bytes)) return false;
    }
    return reinterpret_cast<uintptr_t>(data) % uintptr_t(bytes) == 0 &&
           (other_size <= 1 || divisible(other_stride, bytes));
  }

  static Plan plan(GemmArgs const& args, void const* data, int64_t rows, BatchStrides const& batch_strides,
                   int64_t row_stride, int64_t k_stride, Major major) {
    int64_t const k = args.k;
    bool const k_major = major == Major::k;
    int64_t const size = k_major ? k : rows, stride = k_major ? k_stride : row_stride;
    int64_t const other_size = k_major ? rows : k, other_stride = k_major ? row_stride : k_stride;
    bool const is_broadcast = other_size > 1 && other_stride == 0;  // within a matrix: not what TMA is made for
    if (kParts == 0 && (k_major || kAnyMajor) && (size <= 1 || stride == 1) && !is_broadcast &&
        is_aligned(args, data, batch_strides, other_size, other_stride, 16)) {
      return {};
    }

    bool const keeps_lines = kAnyMajor && rows > 1 && row_stride == 1 && k_stride > 1;
    if (!keeps_lines) return plan_copy(args, data, rows, k, batch_strides, row_stride, k_stride);
    Plan plan = plan_copy(args, data, k, rows, batch_strides, k_stride, row_stride);
    plan.keeps_lines = true;
    return plan;
  }

  /// A copy whose lines are along k.
  static Plan plan_copy(GemmArgs const& args, void const* data, int64_t rows, int64_t k,
                        BatchStrides const& batch_strides, int64_t row_stride, int64_t k_stride) {
    constexpr int64_t kTile = Packer<T>::kTile;
    // Whole sectors of 32 bytes: a row of a box, 128 bytes, never touches a fifth one.
    int64_t pitch = (k * int64_t(sizeof(T)) + 31) / 32 * 32, copied_k = k;
    if constexpr (kParts > 0) {
      copied_k = (k + kPartsBlkK - 1) / kPartsBlkK * kPartsBlkK;
      pitch = copied_k * kParts * 2;
    }
    // The mode with the smaller stride is read along; one of size 1 has none.
    bool const along_k = rows == 1 || (k > 1 && k_stride <= row_stride);
    bool const is_line = (along_k ? k_stride : row_stride) == 1;
    bool const words = is_line && is_aligned(args, data, batch_strides, along_k ? rows : k,
                                             along_k ? row_stride : k_stride, /*bytes=*/4);
    using Reads = PackOperand::Reads;
    // The last element's place; no more than memory holds, but for sizes that nobody has an operand of.
    uint64_t last = uint64_t(rows - 1) * uint64_t(row_stride) + uint64_t(k - 1) * uint64_t(k_stride);
    for (int i = 0; i < kBatchModes; ++i) {
      last += uint64_t(args.batch_sizes.modes[i] - 1) * uint64_t(batch_strides.modes[i]);
    }
    Plan plan;
    plan.operand = {.from = data,
                    .to = nullptr,
                    .batch_sizes = {},
                    .batch_strides = batch_strides,
                    .row_stride = row_stride,
                    .k_stride = k_stride,
                    .pitch = pitch,
                    .rows = int(rows),
                    .k = int(k),
                    .tiles_rows = unsigned((rows + kTile - 1) / kTile),
                    .tiles_k = unsigned((copied_k + kTile - 1) / kTile),
                    .tiles = 0,
                    .end = reinterpret_cast<void const*>(reinterpret_cast<uintptr_t>(data) + (last + 1) * sizeof(T)),
                    .along_k = along_k,
                    .reads = words     ? Reads::words
                             : is_line ? Reads::vectors
                                       : Reads::elements};
    int64_t matrices = 1;  // fewer than 2^31, as d has
    int sizes[kBatchModes];
    for (int i = 0; i < kBatchModes; ++i) {
      sizes[i] = batch_strides.modes[i] == 0 ? 1 : args.batch_sizes.modes[i];
      matrices *= sizes[i];
    }
    plan.operand.batch_sizes = make_batch_sizes(sizes[0], sizes[1], sizes[2]);
    plan.tiles = kMaxTiles + 1;
    int64_t tiles;
    if (!__builtin_mul_overflow(int64_t(plan.operand.tiles_rows) * plan.operand.tiles_k, matrices, &tiles) &&
        tiles <= kMaxTiles) {
      plan.tiles = tiles;
    }
    if (__builtin_mul_overflow(rows * matrices, pitch, &plan.bytes)) plan.bytes = kTooMany;
    return plan;
  }

  Plan a_, b_;
};

/// Whether a config's operands are copied where TMA cannot read them: that is what its alignment says.
template <GemmConfig kConfig>
inline constexpr bool kPacksOperands = kConfig.alignment == int(sizeof(ElementOfA<kConfig.dtype>));

/// What such a kernel answers, see gemm/entry.h.
template <GemmConfig kConfig>
struct PacksOperands {};
template <GemmConfig kConfig>
  requires kPacksOperands<kConfig>
struct PacksOperands<kConfig> {
  using OperandPacking = Packing<ElementOfA<kConfig.dtype>>;
  static Status prepare() { return OperandPacking::prepare(); }
  static int64_t workspace_bytes(GemmArgs const& args) { return OperandPacking(args).workspace_bytes(); }
};

}  // namespace moye
