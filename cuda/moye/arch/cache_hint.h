// What a copy tells the L2 cache (PTX ISA, "Data Movement and Conversion: createpolicy", and the operand cache-policy
// of cp.async and cp.async.bulk.tensor).
#pragma once

#include "moye/arch/builtin.h"

namespace moye {

/// What L2 is to do with the data: the policies of createpolicy.fractional.
enum class CacheHint : uint64_t {
  none = 0,  // no operand
  evict_normal = 0x1000000000000000,
  evict_first = 0x12f0000000000000,
  evict_last = 0x14f0000000000000,
};

}  // namespace moye
