// Accesses outside of a tensor's shape, but inside of its memory, which nothing but a bounds check sees. The program
// runs access number argv[1] in the emulator and prints the launch's status; test_bounds.py builds it with
// MOYE_BOUNDS_CHECK and without.
#include <cstdio>
#include <cstdlib>

#include "moye/arch/builtin.h"
#include "moye/arch/launch.h"
#include "moye/moye.h"

namespace moye {

MOYE_KERNEL(32)
access_kernel(int number, int far) {
  if (thread_idx().x != 3) return;
  auto* const memory = reinterpret_cast<float*>(smem_base());
  for (int i = 0; i < 256; ++i) memory[i] = float(i);
  Tensor t = make_tensor(make_smem_ptr(memory), make_shape(Int<4>{}, Int<8>{}), make_stride(Int<1>{}, Int<4>{}));
  Tensor nested = make_tensor(t.data(), make_layout(make_shape(make_shape(Int<2>{}, Int<2>{}), Int<8>{})));
  Tensor swizzled = make_tensor(t.data(), composition(Swizzle<2, 0, 3>{}, t.layout()));
  Tensor small = make_tensor<float>(make_shape(Int<4>{}, Int<2>{}));
  float sum = 0;
  switch (number) {
    case 0:
      sum = t(3, far - 1) + t(31) + t(_, 7)(3) + nested(make_coord(1, 1), 7) + t[make_coord(3, 7)];
      break;
    case 1:
      sum = t(3, far);  // access 1
      break;
    case 2:
      sum = t(4 * far);  // access 2
      break;
    case 3:
      sum = t(_, far)(0);  // access 3
      break;
    case 4:
      sum = nested(make_coord(1, far), 5);  // access 4
      break;
    case 5:
      sum = t(3 - far, far - 1);  // access 5
      break;
    case 6:
      sum = swizzled(far, 0);  // access 6
      break;
    case 7:
      sum = t[make_coord(0, far)];
      break;
    case 8:
      copy(t, small);  // access 8
      sum = small(0);
      break;
  }
  memory[0] = sum;
}

}  // namespace moye

int main(int, char** arguments) {
  moye::emu::Stream stream;
  moye::Status const status = moye::launch_kernel(moye::access_kernel, {{1, 1, 1}, {32, 1, 1}, {1, 1, 1}, 2048},
                                                  &stream, std::atoi(arguments[1]), 8);
  std::printf("%s\n", status.ok() ? "ok" : status.message.c_str());
}
