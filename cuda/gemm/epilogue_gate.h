// Layers with a gate, as gemm/epilogue_sm90.h stores them: two ways of 16-bit results.
//   store_pair    of two b, whose columns are the halves of a tile: the first product activated, times the second. Both
//                 products are written, too, where the call asks for them
//   store_gated   of a multiplier: both cotangents of a layer, of one product
#pragma once

#include "gemm/activation.h"
#include "gemm/config.h"
#include "gemm/epilogue.h"
#include "gemm/epilogue_box.h"
#include "gemm/epilogue_staging.h"
#include "moye/arch/barrier.h"
#include "moye/arch/config.h"
#include "moye/arch/mbarrier.h"
#include "moye/arch/tma.h"
#include "moye/arch/types.h"
#include "moye/core.h"
#include "moye/tensor.h"

namespace moye {

/// The second half's columns are those of the other product.
template <class Warp, class Accumulators, class RowOf>
MOYE_DEVICE void store_pair(Warp const& warp, Accumulators const& tCrC, RowOf const& row) {
  constexpr int kColumns = Warp::kColumns, kBuffers = Warp::kBuffers, kBox = kBoxColumns<uint16_t>;
  constexpr int kAtoms = decltype(size<1>(tCrC))::value, kBoxesN = kColumns / 2 / kBox, kSums = kBox / 2;
  static_assert(kColumns % (2 * kBox) == 0 && is_same<typename Warp::Sum, float>, "whole boxes in both halves");
  bool const products = warp.args.epilogue.preactivation != nullptr;  // both are written, too
  int filled = 0;                                                     // boxes
  MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
      for (int number = 0; number < kAtoms * kBoxesN; ++number) {
    // f(k, i, first): of this box, first being the number of its first sum in atom i. Indices are constants.
    auto const with_sums = [&](auto const& f) {
      MOYE_UNROLL
      for (int i = 0; i < kAtoms; ++i) {
        MOYE_UNROLL
        for (int c = 0; c < kBoxesN; ++c) {
          if (number != i * kBoxesN + c) continue;
          MOYE_UNROLL
          for (int k = 0; k < kSums; ++k) f(k, i, c * kSums);
          sync_warp();  // keeps the branch, as in take_sums
        }
      }
    };
    float z[kSums] = {};  // as in take_sums
    MOYE_NO_UNROLL
    for (int output = 0; output < (products ? 3 : 2); ++output) {
      TensorMap const* map = &warp.params.map_d;
      if (output == 0) {
        map = &warp.params.map_preactivation;
        with_sums([&](int k, int i, int first) {
          z[k] = warp.params.alpha * static_cast<float>(tCrC(first + k, i, _0{}));
          MOYE_COMPUTED_HERE("+f", z[k]);  // as in take_sums
        });
        if (!products) continue;
      } else if (output == 1) {
        activate_all</*kRounded=*/true>(warp.args.epilogue.activation, z);
        with_sums([&](int k, int i, int first) {
          z[k] *= static_cast<float>(tCrC(kColumns / 4 + first + k, i, _0{}));
          MOYE_COMPUTED_HERE("+f", z[k]);
        });
      } else {
        map = &warp.params.map_second_product;
        with_sums([&](int k, int i, int first) {
          z[k] = static_cast<float>(tCrC(kColumns / 4 + first + k, i, _0{}));
          MOYE_COMPUTED_HERE("+f", z[k]);
        });
      }
      // What this buffer held is on its way: of the tile before all of it, a main loop ago.
      if (warp.lane == 0 && filled == 0) tma_store_wait_group_read<0>();
      if (warp.lane == 0 && filled >= kBuffers) tma_store_wait_group_read<kBuffers - 1>();
      sync_warp();
      unsigned char* const box = warp.boxes[filled % kBuffers];
      ++filled;
      fill_box(warp, box, z);
      fence_proxy_async_shared_cta();
      sync_warp();
      if constexpr (Warp::kScatters) {
        EpilogueArgs const& epilogue = warp.args.epilogue;
        void* const result = output == 0 ? epilogue.preactivation : output == 1 ? warp.args.d : epilogue.second_product;
        int const column = warp.column + number % kBoxesN * kBox;
        if (scatter<2>(warp, result, box, column, row(number / kBoxesN))) continue;
      }
      if (warp.lane == 0) {
        store_box(warp, *map, box, warp.column + number % kBoxesN * kBox, row(number / kBoxesN));
        tma_store_commit_group();
      }
    }
  }
}

/// By halves of boxes; what is read of both operands becomes the results.
template <class Warp, class Accumulators, class RowOf>
MOYE_DEVICE void store_gated(Warp const& warp, Accumulators const& tCrC, RowOf const& row) {
  constexpr int kBox = kBoxColumns<uint16_t>, kBoxesN = Warp::kColumns / kBox, kBuffers = Warp::kBuffers;
  constexpr int kParts = decltype(size<1>(tCrC))::value * kBoxesN * 2;
  EpilogueArgs const& epilogue = warp.args.epilogue;
  auto const row_of = [&](int part) { return row(part / 2 / kBoxesN); };
  auto const column_of = [&](int part) { return warp.column + part % (2 * kBoxesN) * (kBox / 2); };
  using Operand = OperandBox<kBox / 2>;
  struct Operands {
    Operand at, multiplier;
  };
  auto const load = [&](int part) {
    Operands operands;
    operands.at.load_present(warp, epilogue.c, row_of(part), column_of(part));
    operands.multiplier.load_present(warp, epilogue.multiplier, row_of(part), column_of(part));
    return operands;
  };
  Operands operands = load(0);
  MOYE_NO_UNROLL  // the finishing touches are long: one copy of them
      for (int part = 0; part < kParts; ++part) {
    Operands const next = load(part + 1 < kParts ? part + 1 : part);  // under way while these are computed
    float z[Operand::kSums];
    take_sums<uint16_t>(warp, tCrC, part, z);
    int const half = part % 2, first = part / 2 * 2;
    if (half == 0) wait_for_boxes(warp, first, /*outputs=*/2);
    unsigned char* const box = warp.boxes[first % kBuffers];
    unsigned char* const second_box = warp.boxes[(first + 1) % kBuffers];
    operands.at.differentiate_gate(warp, z, operands.multiplier);
    operands.multiplier.fill(box, half, warp.lane);
    operands.at.fill(second_box, half, warp.lane);
    if (half == 1) store_results<uint16_t>(warp, box, second_box, /*outputs=*/2, column_of(part - 1), row_of(part));
    operands = next;
  }
}

}  // namespace moye
