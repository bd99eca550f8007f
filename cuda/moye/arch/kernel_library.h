// Kernels that were compiled while the program runs, in the place of those of the same names that are compiled in.
// Plain C++, no CUDA header, as arch/status.h. In the emulator there are none.
#pragma once

namespace moye {

/// A cudaLibrary_t: what this thread launches, asks about and prepares is its kernel of that name. Null: what is
/// compiled in.
inline thread_local void* kernel_library = nullptr;

/// Sets it for a scope.
class KernelLibraryScope {
 public:
  explicit KernelLibraryScope(void* library) : before_(kernel_library) { kernel_library = library; }
  ~KernelLibraryScope() { kernel_library = before_; }
  KernelLibraryScope(KernelLibraryScope const&) = delete;
  KernelLibraryScope& operator=(KernelLibraryScope const&) = delete;

 private:
  void* before_;
};

}  // namespace moye
