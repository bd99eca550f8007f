// What the rest of the software knows of a compiled kernel, made from what the kernel declares:
//   kFacts                          KernelFacts
//   launch(args, stream)            puts it on the stream; there is something to write. args: GemmArgs, GroupedArgs,
//                                   WeightsArgs, BlockScaledArgs or AttentionArgs
//   kernel<Order>()                 the __global__ function of an order
// and where it is not as most are:
//   kCompiledOrders                 bits: the orders that kernel<Order>() has; all of them
//   prepare()                       loads what is launched beside kernel<Order>(); nothing
//   prepare_short()                 loads kernels that are launched in its place for the simplest calls; nothing
//   workspace_bytes(args)           0
#pragma once

#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "gemm/order.h"
#include "moye/arch/launch.h"

namespace moye {

/// Shared memory that a CTA may have on every architecture that runs the code, bytes: sm_90's own, or, from sm_80 on,
/// what sm_86, sm_89 and sm_120 give.
constexpr int smem_limit(int max_arch) { return (max_arch == 90 ? 227 : 99) * 1024; }

template <class Kernel>
constexpr unsigned compiled_orders() {
  if constexpr (requires { Kernel::kCompiledOrders; }) {
    return Kernel::kCompiledOrders;
  } else {
    return kAllOrders;
  }
}

template <class Kernel>
Status launch(GemmArgs const& args, StreamHandle stream) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return {};
  return Kernel::launch(args, stream);
}

/// Whether the kernel computes products of groups, and nothing else.
template <class Kernel>
inline constexpr bool computes_groups =
    requires(GroupedArgs const& args, StreamHandle stream) { Kernel::launch(args, stream); };

template <class Kernel>
Status launch_grouped(GroupedArgs const& args, StreamHandle stream) {
  if (args.gemm.m == 0 || args.gemm.n == 0) return {};  // without groups rows are zero
  return Kernel::launch(args, stream);
}

/// Whether the kernel multiplies with weights, and nothing else.
template <class Kernel>
inline constexpr bool takes_weights =
    requires(WeightsArgs const& args, StreamHandle stream) { Kernel::launch(args, stream); };

template <class Kernel>
Status launch_weights(WeightsArgs const& args, StreamHandle stream) {
  if (args.gemm.m == 0 || args.gemm.n == 0) return {};
  return Kernel::launch(args, stream);
}

/// Whether the kernel multiplies blocks of k that have scales, and nothing else.
template <class Kernel>
inline constexpr bool takes_block_scales =
    requires(BlockScaledArgs const& args, StreamHandle stream) { Kernel::launch(args, stream); };

template <class Kernel>
Status launch_block_scaled(BlockScaledArgs const& args, StreamHandle stream) {
  if (args.gemm.batch == 0 || args.gemm.m == 0 || args.gemm.n == 0) return {};
  return Kernel::launch(args, stream);
}

/// Whether the kernel computes attention, or its gradients, and nothing else.
template <class Kernel>
inline constexpr bool computes_attention =
    requires(AttentionArgs const& args, StreamHandle stream) { Kernel::launch(args, stream); };

template <class Kernel>
Status launch_attention(AttentionArgs const& args, StreamHandle stream) {
  if (args.batch == 0 || args.kv_heads == 0 || args.group == 0) return {};
  return Kernel::launch(args, stream);
}

template <class Kernel>
Status prepare() {
  if constexpr (requires { Kernel::prepare(); }) {
    if (Status status = Kernel::prepare(); !status.ok()) return status;
  }
  if constexpr (requires { Kernel::prepare_short(); }) {
    if (Status status = Kernel::prepare_short(); !status.ok()) return status;
  }
  return for_each_order<compiled_orders<Kernel>()>([](auto order) {
    return prepare_kernel(Kernel::template kernel<decltype(order)::value>(), Kernel::kFacts.smem_bytes);
  });
}

template <class Kernel>
int64_t workspace_bytes(GemmArgs const& args) {
  if constexpr (requires { Kernel::workspace_bytes(args); }) {
    return Kernel::workspace_bytes(args);
  } else {
    return 0;
  }
}

template <GemmConfig kConfig>
GemmEntry make_entry() {
  using Kernel = Gemm<kConfig>;
  static_assert(
      Kernel::kFacts.smem_bytes <= smem_limit(Kernel::kFacts.max_arch),
      "more shared memory than one CTA gets: this line of gemm/configs.h needs fewer stages, or a smaller tile");
  GemmEntry entry = {.launch = nullptr,
                     .launch_grouped = nullptr,
                     .launch_weights = nullptr,
                     .launch_block_scaled = nullptr,
                     .launch_attention = nullptr,
                     .prepare = &prepare<Kernel>,
                     .workspace_bytes = &workspace_bytes<Kernel>,
                     .out_dtypes = Accumulator<kConfig.accumulator>::kOutDtypes,
                     .facts = Kernel::kFacts,
                     .own_activation = kOwnActivation};
  if constexpr (computes_groups<Kernel>) {
    entry.launch_grouped = &launch_grouped<Kernel>;
  } else if constexpr (takes_weights<Kernel>) {
    entry.launch_weights = &launch_weights<Kernel>;
  } else if constexpr (takes_block_scales<Kernel>) {
    entry.launch_block_scaled = &launch_block_scaled<Kernel>;
  } else if constexpr (computes_attention<Kernel>) {
    entry.launch_attention = &launch_attention<Kernel>;
  } else {
    entry.launch = &launch<Kernel>;
  }
  return entry;
}

}  // namespace moye
