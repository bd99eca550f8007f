// Runs the kernels of kernels.h on the GPU:
//   nvcc -std=c++20 -gencode arch=compute_80,code=[compute_80,sm_80] -Icuda -Itests/emulator -o kernels \
//     tests/moye/kernels_gpu.cu
// With -DMOYE_ATOM_KERNELS those of atom_kernels.h, which need compute_90,sm_90.
#include <cstdio>
#include <vector>

#include "atom_kernels.h"

namespace moye {

struct RunOnGpu {
  int* failures;

  template <class T>
  static T* to_device(std::vector<T> const& host) {
    void* device = nullptr;
    cudaMalloc(&device, host.size() * sizeof(T));
    cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice);
    return static_cast<T*>(device);
  }

  template <class Kernel>
  void operator()(char const* name) const {
    std::vector<typename Kernel::A> a(Kernel::kM * Kernel::kK);
    std::vector<typename Kernel::B> b(Kernel::kN * Kernel::kK);
    std::vector<typename Kernel::C> c(Kernel::kM * Kernel::kN);
    for (size_t i = 0; i < a.size(); ++i) a[i] = operand_value<typename Kernel::A>(unsigned(i));
    for (size_t i = 0; i < b.size(); ++i) b[i] = operand_value<typename Kernel::B>(unsigned(i) + 1000003u);
    auto* da = to_device(a);
    auto* db = to_device(b);
    auto* dc = to_device(c);
    cudaMemset(dc, 0xff, c.size() * sizeof(c[0]));
    Status status = Kernel::launch({da, db, dc}, nullptr);
    cudaError_t const error = cudaMemcpy(c.data(), dc, c.size() * sizeof(c[0]), cudaMemcpyDeviceToHost);
    if (status.ok() && error != cudaSuccess) status.message = cudaGetErrorString(error);
    int const wrong = status.ok() ? wrong_elements<Kernel>(a.data(), b.data(), c.data()) : -1;
    std::printf("%s %s: %s (%d wrong)\n", wrong == 0 ? "ok" : "FAILED", name, status.message.c_str(), wrong);
    *failures += wrong != 0;
    cudaFree(da), cudaFree(db), cudaFree(dc);
  }
};

}  // namespace moye

int main() {
  int failures = 0;
#if defined(MOYE_ATOM_KERNELS)
  moye::for_each_atom_kernel(moye::RunOnGpu{&failures});
#else
  moye::for_each_kernel(moye::RunOnGpu{&failures});
#endif
  std::printf("%d failures\n", failures);
  return failures != 0;
}
