// gemm_driver m n k: one emulated launch of a row of the table (MOYE_ROW); prints "ok", "wrong: ..." or "error: ...".
// a (m,k) and b (n,k) are row-major and hold integers in [-2, 2]; d (m,n) is f32; all three end at a guard page.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <type_traits>

#include "gemm/config.h"
#include "moye/arch/types.h"
#include "moye/emu/emu.h"
#include "moye/emu/guarded_buffer.h"

namespace moye {
using enum Kernel;
using enum Dtype;

constexpr GemmConfig kRow = GemmConfig MOYE_ROW;
using Element = std::conditional_t<kRow.dtype == bf16, bfloat16_t, float>;

int run(int m, int n, int k) {
  emu::GuardedBuffer a(size_t(m) * k * sizeof(Element)), b(size_t(n) * k * sizeof(Element));
  emu::GuardedBuffer d(size_t(m) * n * sizeof(float));
  std::mt19937 random(1);
  auto fill = [&](emu::GuardedBuffer& buffer) {
    auto* elements = reinterpret_cast<Element*>(buffer.data());
    for (size_t i = 0; i < buffer.size() / sizeof(Element); ++i) elements[i] = Element(float(int(random() % 5) - 2));
  };
  fill(a);
  fill(b);

  GemmArgs args{.a = a.data(), .b = b.data(), .d = d.data(), .workspace = nullptr, .batch = 1, .m = m, .n = n, .k = k};
  args.a_m_stride = args.b_n_stride = k;
  args.a_k_stride = args.b_k_stride = args.d_n_stride = 1;
  args.d_m_stride = n;
  args.d_dtype = f32;

  emu::Stream stream;
  stream.options.watchdog_steps = 20'000'000;
  stream.options.watchdog_seconds = 5;
  stream.memory = {{a.data(), a.size(), "a", false}, {b.data(), b.size(), "b", false}, {d.data(), d.size(), "d", true}};
  if (Status status = gemm_entry<kRow>().launch(args, &stream); !status.ok()) {
    std::printf("error: %s\n", status.message.c_str());
    return 0;
  }
  int wrong = 0;
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l) {
        sum += float(reinterpret_cast<Element*>(a.data())[i * k + l]) *
               float(reinterpret_cast<Element*>(b.data())[j * k + l]);
      }
      float const got = reinterpret_cast<float*>(d.data())[i * n + j];
      wrong += !(got == sum);  // NaN is wrong
    }
  }
  if (wrong > 0) {
    std::printf("wrong: %d of %d elements\n", wrong, m * n);
  } else {
    std::printf("ok\n");
  }
  return 0;
}

}  // namespace moye

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  return moye::run(std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]));
}
