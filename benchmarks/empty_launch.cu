// For host_costs.py --gpu: a handler that launches an empty kernel with as many bytes of arguments as a Hopper kernel
// has.
#include <cuda_runtime_api.h>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

struct Arguments {
  char bytes[3 * 128 + 256];  // three tensor maps, and what the kernel is to do
};

__global__ void empty_kernel(__grid_constant__ Arguments const) {}

ffi::Error launch(cudaStream_t stream, ffi::AnyBuffer, ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>,
                  ffi::Result<ffi::AnyBuffer>) {
  empty_kernel<<<1, 128, 0, stream>>>(Arguments{});
  return cudaGetLastError() == cudaSuccess ? ffi::Error::Success() : ffi::Error::Internal("launch");
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(EmptyLaunch, launch,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
