"""Bugs planted in what attention's kernels do with f32: weighted sums by mma.sync, and stores by each thread."""

from __future__ import annotations

import functools

from tests.emulated.mutants_attention import BOTH, SHARED, F, G, Mutant
from tests.emulated.mutants_sm90 import race

Forward = functools.partial(
    Mutant,
    row="{sm90_attention, tf32, f32, {64, 64, 64}, 2, {1, 1}, 16}",
    file=SHARED,
    sizes=(90, 300, 40),
    options=("heads=2", "group=2"),
)
Gradients = functools.partial(
    Forward, row="{sm90_attention_grad, tf32, f32, {64, 64, 128}, 2, {1, 1}, 16}", sizes=(150, 200, 72)
)
RELEASED = "      fence_proxy_async_shared_cta();\n      sync_warp();\n"  # all lanes have read, then one releases
STORED = "if (column + j * 8 >= head_dim) break;"
MUTANTS = [
    Forward(
        name="attention_tf32_released_by_the_first_lane",
        old=RELEASED,
        new=RELEASED.replace("      sync_warp();\n", ""),
        expect=race("TMA load", F, "plain load", F),
    ),
    Forward(name="attention_tf32_weights_in_the_order_of_sums", old="i / 2 * 4 + i % 2]", new="i * 2]"),
    Forward(name="attention_tf32_first_keys_alone", old="k < kRows / 8", new="k < kRows / 16"),
    Forward(
        name="attention_tf32_columns_behind_head_dim",
        old=STORED,
        new="",
        expect="race on global memory o",
    ),
    Forward(name="attention_tf32_factor_of_the_other_row", old="of[1] * factors[r]", new="of[1] * factors[1 - r]"),
    Forward(
        name="attention_tf32_rows_behind_the_last",
        old="if (own >= rows) continue;",
        new="",
        expect="race on global memory o",
    ),
    Forward(
        name="attention_tf32_rows_of_other_lanes",
        old="row + lane / 4 + 8 * r",
        new="row + lane / 8 + 8 * r",
        expect="race on global memory o",
    ),
    Gradients(
        name="attention_grad_tf32_first_half_twice",
        file=BOTH,
        old="share_of<Gemm>() * Gemm::kStep * Gemm::kHeadOfSums",
        new="0",
    ),
    Gradients(
        name="attention_grad_tf32_half_stored_twice",
        file=BOTH,
        old="thread % 32, column);\n  } else",
        new="thread % 32, 0);\n  } else",
        expect="race on global memory d",
    ),
    Gradients(
        name="attention_grad_tf32_keys_of_the_rows_of_queries",
        file=G,
        old="&params.dk, args.dk, args.kv_rows",
        new="&params.dk, args.dk, args.q_rows",
    ),
    Gradients(
        name="attention_grad_tf32_scores_not_waited_for",
        file=G,
        old="warpgroup_wait_group<Weighted::kIsStarted ? 1 : 0>();  // all but dV",
        new="warpgroup_wait_group<1>();  // all but dV",
    ),
]
