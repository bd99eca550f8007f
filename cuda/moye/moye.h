// Everything of cuda/moye that a kernel uses.
#pragma once

#include "moye/algorithm/copy.h"
#include "moye/algorithm/fill.h"
#include "moye/algorithm/gemm.h"
#include "moye/atom/copy_atom.h"
#include "moye/atom/mma_atom.h"
#include "moye/layout.h"
#include "moye/swizzle.h"
#include "moye/tensor.h"
