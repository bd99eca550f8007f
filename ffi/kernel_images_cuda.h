// The machine code of kernels, for who loads them himself: XLA, where launches become nodes of its graphs.
#pragma once

#include <cstddef>

namespace moye {

struct KernelImage {
  char const* name;  // of the kernel, in its code
  void const* code;  // a fatbin or a cubin, which stays; null: not known
  size_t bytes;
};

/// Of a kernel that is compiled into this module, by its address.
KernelImage kernel_image(void const* kernel);

/// The kernel of that name in a library, or of code that is not known.
KernelImage kernel_image(void const* kernel, void* library);

/// A cudaLibrary_t was loaded from this code, which stays.
void keep_library_code(void* library, void const* code, size_t bytes);

}  // namespace moye
