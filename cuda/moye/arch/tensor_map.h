// Making TensorMaps. Host code.
#pragma once

#include <cstring>
#include <string>

#include "moye/arch/status.h"
#include "moye/arch/tma.h"

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <cudaTypedefs.h>  // types alone: nothing of libcuda is linked
#include <cuda_runtime_api.h>
#elif !defined(__CUDACC__)
#include "moye/emu/tensor_map.h"
#endif

namespace moye {

// The numbers of these enumerations are CUDA's (CUtensorMapDataType, ...Swizzle, ...L2promotion, ...FloatOOBfill).

/// tf32: floats, which loads round to TF32 as round_to_tf32() does. Nobody has tried stores.
enum class TensorMapType : uint8_t { u8, u16, u32, s32, u64, s64, f16, f32, f64, bf16, tf32 = 11 };

/// Which bits of a shared address are exchanged: its 16-byte pieces within 128 (64, 32) bytes, by the three (two, one)
/// bits above them.
enum class TensorMapSwizzle : uint8_t { none, b32, b64, b128 };

/// How much L2 fetches at least.
enum class TensorMapPromotion : uint8_t { none, b64, b128, b256 };

/// What elements outside the tensor are loaded as; `nan` is for floating-point types.
enum class TensorMapFill : uint8_t { zeros, nan };

inline constexpr int kMaxTensorMapRank = 5;

constexpr int bytes_of(TensorMapType type) {
  constexpr int kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 0, 4};
  return kBytes[static_cast<int>(type)];
}

/// The longest row of a box, bytes, and the shared addresses after which the pattern repeats.
constexpr int span_bytes(TensorMapSwizzle swizzle) { return 16 << static_cast<int>(swizzle); }
constexpr int repeat_bytes(TensorMapSwizzle swizzle) { return 8 * span_bytes(swizzle); }

/// A tensor in global memory and the box of it that one instruction moves. Mode 0 is contiguous.
struct TensorMapSpec {
  TensorMapType type;
  int rank;  // 1 to 5
  void const* address;
  uint64_t sizes[kMaxTensorMapRank];        // elements
  uint64_t strides[kMaxTensorMapRank - 1];  // bytes, of modes 1, 2, ...
  uint32_t box[kMaxTensorMapRank];          // elements
  TensorMapSwizzle swizzle = TensorMapSwizzle::none;
  TensorMapPromotion promotion = TensorMapPromotion::b128;
  TensorMapFill fill = TensorMapFill::zeros;
};

namespace detail {

/// What the hardware cannot do about the spec; empty if it can (CUDA driver API, cuTensorMapEncodeTiled). The driver
/// says only CUDA_ERROR_INVALID_VALUE.
MOYE_ONCE_A_CALL inline std::string tensor_map_complaint(TensorMapSpec const& spec) {
  auto const text = [](uint64_t value) { return std::to_string(value); };
  if (spec.rank < 1 || spec.rank > kMaxTensorMapRank)
    return "the rank is " + std::to_string(spec.rank) + ", not 1 to 5";
  if (reinterpret_cast<uintptr_t>(spec.address) % 16 != 0) return "the address is not a multiple of 16 bytes";
  uint64_t box_elements = 1;
  for (int i = 0; i < spec.rank; ++i) {
    auto const mode = [i] { return "mode " + std::to_string(i); };  // no string where there is nothing to complain of
    if (spec.sizes[i] == 0 || spec.sizes[i] > uint64_t{1} << 32) {
      return "the size of " + mode() + " is " + text(spec.sizes[i]) + ", not 1 to 2^32";
    }
    if (spec.box[i] == 0 || spec.box[i] > 256) {
      return "the box is " + text(spec.box[i]) + " along " + mode() + ", not 1 to 256";
    }
    box_elements *= spec.box[i];
    if (i == 0) continue;
    uint64_t const stride = spec.strides[i - 1];
    if (stride % 16 != 0 || stride >= uint64_t{1} << 40) {
      return "the stride of " + mode() + " is " + text(stride) + " bytes, not a multiple of 16 below 2^40";
    }
  }
  uint64_t const row = spec.box[0] * static_cast<uint64_t>(bytes_of(spec.type));
  if (row % 16 != 0) return "a row of the box is " + text(row) + " bytes, not a multiple of 16";
  if (spec.swizzle != TensorMapSwizzle::none && row > static_cast<uint64_t>(span_bytes(spec.swizzle))) {
    return "a row of the box is " + text(row) + " bytes, more than the " + std::to_string(span_bytes(spec.swizzle)) +
           " of its swizzle";
  }
  bool const floating = spec.type >= TensorMapType::f16;
  if (spec.fill == TensorMapFill::nan && !floating) return "elements that are no floating-point numbers have no NaN";
  return {};
}

#if defined(__CUDACC_RTC__)  // as in arch/launch.h

Status encode_tensor_map(TensorMap* map, TensorMapSpec const& spec);

#elif defined(__CUDACC__)

/// cuTensorMapEncodeTiled, which needs no context and no stream; null if the driver is too old.
inline PFN_cuTensorMapEncodeTiled_v12000 find_tensor_map_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaError_t const error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

inline Status encode_tensor_map(TensorMap* map, TensorMapSpec const& spec) {
  static PFN_cuTensorMapEncodeTiled_v12000 const encode = find_tensor_map_encoder();
  if (encode == nullptr) return {"tensor map: this driver has no cuTensorMapEncodeTiled"};
  cuuint64_t sizes[kMaxTensorMapRank], strides[kMaxTensorMapRank - 1] = {};
  cuuint32_t box[kMaxTensorMapRank], element_strides[kMaxTensorMapRank];
  for (int i = 0; i < spec.rank; ++i) {
    sizes[i] = spec.sizes[i];
    box[i] = spec.box[i];
    element_strides[i] = 1;
    if (i > 0) strides[i - 1] = spec.strides[i - 1];
  }
  CUresult const result =
      encode(reinterpret_cast<CUtensorMap*>(map), static_cast<CUtensorMapDataType>(spec.type),
             static_cast<cuuint32_t>(spec.rank), const_cast<void*>(spec.address), sizes, strides, box, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<CUtensorMapSwizzle>(spec.swizzle),
             static_cast<CUtensorMapL2promotion>(spec.promotion), static_cast<CUtensorMapFloatOOBfill>(spec.fill));
  if (result != CUDA_SUCCESS) {
    return {"tensor map: cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(result))};
  }
  return {};
}
static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) == alignof(CUtensorMap));
static_assert(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 == static_cast<int>(TensorMapType::bf16) &&
              CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 == static_cast<int>(TensorMapType::tf32) &&
              CU_TENSOR_MAP_SWIZZLE_128B == static_cast<int>(TensorMapSwizzle::b128) &&
              CU_TENSOR_MAP_L2_PROMOTION_L2_256B == static_cast<int>(TensorMapPromotion::b256) &&
              CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA == static_cast<int>(TensorMapFill::nan));

#else

MOYE_ONCE_A_CALL inline Status encode_tensor_map(TensorMap* map, TensorMapSpec const& spec) {
  if (std::string const complaint = tensor_map_complaint(spec); !complaint.empty()) {
    return {"tensor map: " + complaint};
  }
  emu::EncodedTensorMap encoded = {};
  encoded.base = reinterpret_cast<uintptr_t>(spec.address);
  for (int i = 0; i < spec.rank; ++i) {
    encoded.sizes[i] = spec.sizes[i];
    encoded.box[i] = static_cast<uint16_t>(spec.box[i]);
    if (i > 0) encoded.strides[i - 1] = spec.strides[i - 1];
  }
  encoded.type = static_cast<uint8_t>(spec.type);
  encoded.element_bytes = static_cast<uint8_t>(bytes_of(spec.type));
  encoded.rank = static_cast<uint8_t>(spec.rank);
  encoded.swizzle = static_cast<uint8_t>(spec.swizzle);
  encoded.fill = static_cast<uint8_t>(spec.fill);
  encoded.magic = emu::EncodedTensorMap::kMagic;
  std::memcpy(map, &encoded, sizeof(encoded));
  return {};
}

#endif

}  // namespace detail

/// Fills in the map; it is valid while the memory at `address` is. About a microsecond: make it for every call, or keep
/// it under address, sizes, strides, box and type together.
MOYE_ONCE_A_CALL inline Status make_tensor_map(TensorMap* map, TensorMapSpec const& spec) {
  if (std::string const complaint = detail::tensor_map_complaint(spec); !complaint.empty()) {
    return {"tensor map: " + complaint};
  }
  auto const row = static_cast<int>(spec.box[0]) * bytes_of(spec.type);
  if (spec.swizzle != TensorMapSwizzle::none && row != span_bytes(spec.swizzle)) {
    return {"tensor map: a row of the box is " + std::to_string(row) + " bytes, less than the " +
            std::to_string(span_bytes(spec.swizzle)) + " of its swizzle: rows would lie that far apart, with gaps"};
  }
  return detail::encode_tensor_map(map, spec);
}

}  // namespace moye
