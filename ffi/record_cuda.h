// XLA's stage "record" (jaxlib 0.11.2 and newer): a handler adds its kernels to XLA's CUDA graph one by one, in place
// of launching them on a stream that is captured. Its kernels may then begin before the one ahead has ended, as on a
// stream, and new addresses cost the host less.
#pragma once

#include <cstdint>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace moye {

/// Of this process, by which one sees that calls are recorded.
struct RecordedNodes {
  int64_t created, updated;  // nodes
  int64_t known;             // calls that were given what they had been given before, but for addresses
};
RecordedNodes recorded_nodes();

/// What a call has of attributes that are no part of a target: they change no result, and programs that were exported
/// before have none. In its scope the call has only those of its target.
///   uses_pdl         XLA's own: kernels of calls that have it may begin early
///   early_operands   bits (gemm/config.h, kEarly...): operands that nothing writes while the program runs
class Hints {
 public:
  explicit Hints(XLA_FFI_CallFrame* frame);
  ~Hints() { frame_->attrs = before_; }
  Hints(Hints const&) = delete;
  Hints& operator=(Hints const&) = delete;

  int early_operands = 0;

 private:
  XLA_FFI_CallFrame* frame_;
  XLA_FFI_Attrs before_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<XLA_FFI_ByteSpan*> names_;
  std::vector<void*> values_;
};

/// Calls `execute`, whose launches become nodes of XLA's graph. When buffers have moved, their nodes get the arguments
/// of then with the new addresses (known_launches.h), or `execute` is called again. Where a kernel's code is not known
/// (a kernel of one's own), or it reads through L1, XLA is asked to capture the call: of the kernels that it loads
/// itself XLA asks that they have as much shared memory, and as little L1, as a multiprocessor can give them.
XLA_FFI_Error* record_call(XLA_FFI_CallFrame* frame, XLA_FFI_Handler* execute);

/// The handler of a target that is registered in the place of all others: asked about itself, it registers them with
/// XLA, with their stage "record". jaxlib's own registration (0.11.2) hands XLA the other stages alone.
XLA_FFI_Error* register_with_record(XLA_FFI_CallFrame* frame);

}  // namespace moye
