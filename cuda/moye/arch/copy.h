// Copies that need no special instruction.
#pragma once

#include "moye/arch/types.h"

namespace moye {

/// One assignment: the widest load and store that S and D allow.
template <class S, class D = S>
struct UniversalCopy {
  using SRegisters = S[1];
  using DRegisters = D[1];

  MOYE_DEVICE static void copy(S const& src, D& dst) { dst = static_cast<D>(src); }
};

}  // namespace moye
