// Where the calling thread is, and the line its accesses are reported at.
#include "moye/emu/machine.h"

namespace moye::emu {

Dim3 thread_idx() { return current_thread->index; }
Dim3 block_idx() { return current_thread->cta->index; }
Dim3 block_dim() { return current_thread->domain->launch->shape.block; }
Dim3 grid_dim() { return current_thread->domain->launch->shape.grid; }
uint32_t lane_id() { return static_cast<uint32_t>(current_thread->lane); }
uint32_t warp_id() { return static_cast<uint32_t>(current_thread->warp->id); }
unsigned char* smem_base() { return current_thread->cta->smem; }

uint32_t smem_ptr_to_u32(void const* smem_ptr, Loc loc) {
  // The driver keeps the first KiB of the window, so the CTA's first byte is at 0x400, a multiple of 1024 as on the
  // GPU.
  constexpr uint32_t kWindow = 0x400;
  Thread& thread = *current_thread;
  return kWindow + smem_offset(thread, smem_ptr, 0, "cvta.to.shared", thread.reported(loc));
}

Site::Site(Loc loc) {
  Thread* const thread = current_thread;
  if (thread == nullptr) return;  // host code that uses the same algorithms
  if (thread->site_depth++ == 0) thread->site = loc;
}

Site::~Site() {
  if (current_thread != nullptr) --current_thread->site_depth;
}

}  // namespace moye::emu
