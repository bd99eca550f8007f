#include "gemm_kernels.h"

moye::Status run_gemm(Bug bug, Problem const& problem, moye::StreamHandle stream) {
  switch (bug) {
#define MOYE_CASE(name) \
  case Bug::name:       \
    return launch_gemm<4, Bug::name>(problem, stream)
    MOYE_CASE(none);
    MOYE_CASE(no_wait);
    MOYE_CASE(wait_off_by_one);
    MOYE_CASE(no_barrier);
    MOYE_CASE(refill_before_barrier);
    MOYE_CASE(overwrite_in_flight);
    MOYE_CASE(stage_out_of_range);
    MOYE_CASE(row_not_predicated);
    MOYE_CASE(column_not_predicated);
    MOYE_CASE(wrong_swizzle);
    MOYE_CASE(tile_overlap);
    MOYE_CASE(write_operand);
#undef MOYE_CASE
  }
  return {"no such bug"};
}
