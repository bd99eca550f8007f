// THE TABLE: one row = one compiled kernel. CMake reads the rows and writes one source file per row.
#pragma once

#include "gemm/config.h"

namespace moye {
using enum Kernel;
using enum Dtype;
// clang-format off
inline constexpr GemmConfig kGemmConfigs[] = {
  // kernel,            dtype, sums, tile (m, n, k),   stages, cluster (m, n), alignment (bytes)
  {sm80_multistage,    bf16,  f32,  {128, 128, 32},   4,      {1, 1},         16},
  {sm80_multistage,    bf16,  f32,  { 64,  64, 64},   3,      {1, 1},         16},
  {sm80_multistage,    bf16,  f32,  { 64,  64, 32},   3,      {1, 1},          8},
  {sm80_multistage,    bf16,  f32,  { 64,  64, 32},   3,      {1, 1},          4},
  {sm80_multistage,    bf16,  f32,  { 64,  64, 32},   3,      {1, 1},          2},
  {sm80_multistage,    f16,   f32,  {128, 128, 32},   4,      {1, 1},         16},
  {sm80_multistage,    f16,   f32,  { 64,  64, 64},   3,      {1, 1},         16},
  {sm80_multistage,    f16,   f32,  { 64,  64, 32},   3,      {1, 1},          8},
  {sm80_multistage,    f16,   f32,  { 64,  64, 32},   3,      {1, 1},          4},
  {sm80_multistage,    f16,   f32,  { 64,  64, 32},   3,      {1, 1},          2},
  {simt_tiled,         f32,   f32,  {128, 128,  8},   1,      {1, 1},         16},
  {simt_tiled,         f32,   f32,  { 64,  64,  8},   1,      {1, 1},          4},
  {simt_tiled,         f64,   f64,  { 64,  64,  8},   1,      {1, 1},         16},
  {simt_tiled,         f64,   f64,  { 64,  64,  8},   1,      {1, 1},          8},
  {simt_overlap,       f32,   f32,  {128, 128,  8},   1,      {1, 1},         16},
  {simt_overlap,       f32,   f32,  { 64,  64,  8},   1,      {1, 1},          4},
  {simt_overlap,       f64,   f64,  { 64,  64,  8},   1,      {1, 1},         16},
  {simt_overlap,       f64,   f64,  { 64,  64,  8},   1,      {1, 1},          8},
  {simt_double_buffer, f32,   f32,  {128, 128,  8},   2,      {1, 1},         16},
  {simt_double_buffer, f32,   f32,  { 64,  64,  8},   2,      {1, 1},          4},
  {simt_double_buffer, f64,   f64,  { 64,  64,  8},   2,      {1, 1},         16},
  {simt_double_buffer, f64,   f64,  { 64,  64,  8},   2,      {1, 1},          8},
  {sm80_tensorop,      bf16,  f32,  {128, 128, 64},   1,      {1, 1},         16},
  {sm80_tensorop,      bf16,  f32,  { 64,  64, 64},   1,      {1, 1},          2},
  {sm80_tensorop,      f16,   f32,  {128, 128, 64},   1,      {1, 1},         16},
  {sm80_tensorop,      f16,   f16,  {128, 128, 64},   1,      {1, 1},         16},
  {sm80_tensorop,      tf32,  f32,  {128, 128, 32},   1,      {1, 1},         16},
  {sm80_tensorop,      tf32,  f32,  { 64,  64, 32},   1,      {1, 1},          4},
  {sm80_ldmatrix,      bf16,  f32,  {128, 128, 64},   1,      {1, 1},         16},
  {sm80_ldmatrix,      bf16,  f32,  { 64,  64, 64},   1,      {1, 1},          2},
  {sm80_ldmatrix,      f16,   f32,  {128, 128, 64},   1,      {1, 1},         16},
  {sm80_ldmatrix,      f16,   f16,  {128, 128, 64},   1,      {1, 1},         16},
  {sm80_ldmatrix,      tf32,  f32,  {128, 128, 32},   1,      {1, 1},         16},
  {sm80_ldmatrix,      tf32,  f32,  { 64,  64, 32},   1,      {1, 1},          4},
  {sm80_double_buffer, bf16,  f32,  {128, 128, 32},   2,      {1, 1},         16},
  {sm80_double_buffer, bf16,  f32,  { 64,  64, 32},   2,      {1, 1},          2},
  {sm80_double_buffer, f16,   f32,  {128, 128, 32},   2,      {1, 1},         16},
  {sm80_double_buffer, f16,   f16,  {128, 128, 32},   2,      {1, 1},         16},
  {sm80_double_buffer, tf32,  f32,  {128, 128, 16},   2,      {1, 1},         16},
  {sm80_double_buffer, tf32,  f32,  { 64,  64, 16},   2,      {1, 1},          4},
  {sm90_cooperative,   bf16,  f32,  {128, 128, 64},   5,      {1, 1},         16},
  {sm90_cooperative,   bf16,  f32,  {128, 192, 64},   4,      {1, 1},         16},
  {sm90_cooperative,   bf16,  f32,  {128, 192, 64},   4,      {2, 1},         16},
  {sm90_cooperative,   bf16,  f32,  {128, 256, 64},   4,      {1, 1},         16},
  {sm90_cooperative,   bf16,  f32,  {128, 256, 64},   4,      {1, 2},         16},
  {sm90_cooperative,   bf16,  f32,  {128, 256, 64},   4,      {2, 1},         16},
  {sm90_cooperative,   bf16,  f32,  {256, 128, 64},   4,      {1, 1},         16},
  {sm90_cooperative,   bf16,  f32,  {256, 128, 64},   4,      {2, 1},         16},
  {sm90_cooperative,   bf16,  f32,  {192, 192, 64},   3,      {1, 1},         16},
  {sm90_cooperative,   bf16,  f32,  {256, 192, 64},   3,      {1, 1},         16},
  {sm90_cooperative,   bf16,  f32,  { 64, 256, 64},   4,      {1, 1},         16},
  {sm90_pingpong,      bf16,  f32,  { 64, 256, 64},   4,      {1, 1},         16},
  {sm90_pingpong,      bf16,  f32,  {128, 128, 64},   5,      {1, 1},         16},
  {sm90_pingpong,      bf16,  f32,  {128, 128, 64},   5,      {1, 2},         16},
  {sm90_pingpong,      bf16,  f32,  {128, 128, 64},   5,      {2, 1},         16},
  {sm90_pingpong,      bf16,  f32,  {128, 192, 64},   4,      {1, 1},         16},
  {sm90_pingpong,      bf16,  f32,  {128, 192, 64},   4,      {2, 1},         16},
};
// clang-format on
}  // namespace moye
