// The instances of gemm.h, compiled apart so that they alone are instrumented.
#pragma once

#include "gemm.h"

moye::Status run_gemm(Bug bug, Problem const& problem, moye::StreamHandle stream);
