// The targets: the arrays and the attributes of their calls, which XLA wants by name, and what is read from them. Both
// platforms' handlers are made of these; handlers.h says what each target computes. A change of a target's attributes
// gets a new name, since they are frozen into exported programs.
//   kName, kBuffers, kAttributes   the calls: the names of attributes, and the members of Attributes they become
//   read()                         fills a Request from the attributes, the operands and the results of a call
//   kDecode                        checks the request, and makes a Call of it
//   kLaunch                        the member of GemmEntry that launches it
// A target is made of older ones, whose attributes may not change.
#pragma once

#include <tuple>
#include <vector>

#include "attention_targets.h"
#include "product_targets.h"

namespace moye {

/// Calls f.template operator()<Target>() for all targets: a list of what it returns.
template <class F>
auto for_all_targets(F const& f) {
  return [&]<class... Target>(std::tuple<Target...>*) {
    return std::vector{f.template operator()<Target>()...};
  }(static_cast<std::tuple<PlainGemm, FusedGemm, ScaledGemm, ViewGemm, GroupedGemm, ScaledGroupedGemm,
                           ScatteredGroupedGemm, WeightsGemm, BlockScaledGemm, Attention, AttentionGrad, ViewAttention,
                           ViewAttentionGrad, JoinedAttentionGrad, BiasedAttention, BiasedAttentionGrad,
                           CappedAttention, CappedAttentionGrad, DroppedAttention, DroppedAttentionGrad>*>(nullptr));
}

}  // namespace moye
