// Runs the kernels of kernels.h, or with MOYE_ATOM_KERNELS those of atom_kernels.h, in the emulator. Prints what is
// wrong; exits with 1 if anything is.
#include <cstdio>
#include <vector>

#include "atom_kernels.h"

namespace moye {

struct RunEmulated {
  int* failures;

  template <class Kernel>
  void operator()(char const* name) const {
    std::vector<typename Kernel::A> a(Kernel::kM * Kernel::kK);
    std::vector<typename Kernel::B> b(Kernel::kN * Kernel::kK);
    std::vector<typename Kernel::C> c(Kernel::kM * Kernel::kN);
    for (size_t i = 0; i < a.size(); ++i) a[i] = operand_value<typename Kernel::A>(unsigned(i));
    for (size_t i = 0; i < b.size(); ++i) b[i] = operand_value<typename Kernel::B>(unsigned(i) + 1000003u);
    emu::Stream stream;
    stream.memory = {{a.data(), a.size() * sizeof(a[0]), "a", false},
                     {b.data(), b.size() * sizeof(b[0]), "b", false},
                     {c.data(), c.size() * sizeof(c[0]), "c", true}};
    Status const status = Kernel::launch({a.data(), b.data(), c.data()}, &stream);
    int const wrong = status.ok() ? wrong_elements<Kernel>(a.data(), b.data(), c.data()) : -1;
    if (wrong != 0) {
      std::printf("%s: %s (%d wrong)\n", name, status.message.c_str(), wrong);
      ++*failures;
    }
    if (stream.counters.ldmatrix_wavefronts != stream.counters.ldmatrix_ideal_wavefronts) {
      std::printf("%s: bank conflicts of ldmatrix: %d wavefronts, %d needed\n", name,
                  int(stream.counters.ldmatrix_wavefronts), int(stream.counters.ldmatrix_ideal_wavefronts));
      ++*failures;
    }
  }
};

}  // namespace moye

int main() {
  int failures = 0;
#if defined(MOYE_ATOM_KERNELS)
  moye::for_each_atom_kernel(moye::RunEmulated{&failures});
#else
  moye::for_each_kernel(moye::RunEmulated{&failures});
#endif
  return failures != 0;
}
