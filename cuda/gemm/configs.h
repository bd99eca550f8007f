// THE TABLE: one row = one compiled kernel. CMake reads the rows and writes one source file per row.
#pragma once

#include "gemm/config.h"

namespace moye {
using enum Kernel;
using enum Dtype;
// clang-format off
inline constexpr GemmConfig kGemmConfigs[] = {
  // kernel,         dtype, tile (m, n, k),   stages, alignment (bytes)
  {sm80_multistage,  bf16,  {128, 128, 32},   4,      16},
  {sm80_multistage,  bf16,  { 64,  64, 64},   3,      16},
  {sm80_multistage,  bf16,  { 64,  64, 32},   3,       8},
  {sm80_multistage,  bf16,  { 64,  64, 32},   3,       4},
  {sm80_multistage,  bf16,  { 64,  64, 32},   3,       2},
  {sm80_multistage,  f16,   {128, 128, 32},   4,      16},
  {sm80_multistage,  f16,   { 64,  64, 64},   3,      16},
  {sm80_multistage,  f16,   { 64,  64, 32},   3,       8},
  {sm80_multistage,  f16,   { 64,  64, 32},   3,       4},
  {sm80_multistage,  f16,   { 64,  64, 32},   3,       2},
  {simt_tiled,       f32,   {128, 128,  8},   1,      16},
  {simt_tiled,       f32,   { 64,  64,  8},   1,       4},
  {simt_tiled,       f64,   { 64,  64,  8},   1,      16},
  {simt_tiled,       f64,   { 64,  64,  8},   1,       8},
};
// clang-format on
}  // namespace moye
