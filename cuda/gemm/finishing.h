// Kernels of a config for calls whose results threads finish in few ways, beside the one that finishes all of them.
#pragma once

#include "gemm/entry.h"
#include "gemm/order.h"
#include "moye/arch/config.h"
#include "moye/arch/launch.h"
#include "moye/arch/types.h"
#include "moye/layout.h"

namespace moye {

/// How d is made of the sums. plain: they are d; sum: and of c, or a residual, too; words: without scales and
/// derivatives; pair: of two b, and nothing else is written; all of these in words alone. Each may have a kernel of its
/// own: in a program a kernel's instructions come from memory, and those of a short kernel are there sooner.
enum class Finishing : uint8_t { plain, sum, words, pair, any };

/// The finishings that have a kernel each; all others are those of any.
template <Finishing... kEach>
struct Finishings {
  /// Calls f(finishing) with that of the kernel as a compile-time constant.
  template <class F>
  static Status dispatch(Finishing finishing, F const& f) {
    Status status;
    bool const has_kernel = ((finishing == kEach && (status = f(C<kEach>{}), true)) || ...);
    return has_kernel ? status : f(C<Finishing::any>{});
  }

  /// Loads the kernels of such a Gemm, but that of any.
  template <class Gemm>
  static Status prepare() {
    return for_each_order<compiled_orders<Gemm>()>([](auto order) {
      Status status;
      auto const prepare_one = [&](auto finishing) {
        auto* const kernel = Gemm::template kernel<decltype(order)::value, decltype(finishing)::value>();
        status = prepare_kernel(kernel, Gemm::kFacts.smem_bytes);
        return status.ok();
      };
      static_cast<void>((prepare_one(C<kEach>{}) && ...));
      return status;
    });
  }
};

}  // namespace moye
