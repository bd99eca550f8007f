"""Bugs planted in sm90_multistage.cuh, whose stages are filled and read between its products; as in mutants.py."""

from __future__ import annotations

import functools

from tests.emulated.mutants import OF_PIPELINE, PIPELINE, race
from tests.emulated.mutants import Mutant as OfAnyResult
from tests.emulated.mutants_tensorop import either, out_of_bounds

ROW = "{sm90_multistage, f64, f64, {64, 64, 16}, 3, {1, 1}, 16}"
ELEMENTS = "{sm90_multistage, f64, f64, {64, 64, 16}, 3, {1, 1}, 8}"
D = "sm90_multistage.cuh"
Mutant = functools.partial(OfAnyResult, options=("out=f64",))
WAIT = "          pipeline.consumer_release();\n          pipeline.consumer_wait();\n"

MUTANTS = [
    *(
        Mutant(f"sm90_multistage_{name}", ROW, PIPELINE, *texts, either(D, "plain load", "cp.async"))
        for name, texts in OF_PIPELINE.items()
    ),
    Mutant(
        "sm90_multistage_first_wait_missing",
        ROW,
        D,
        "    if (grid.k > 0) {\n      pipeline.consumer_wait();\n",
        "    if (grid.k > 0) {\n",
        race(D, "plain load", "cp.async"),
    ),
    Mutant(
        "sm90_multistage_later_wait_missing",
        ROW,
        D,
        WAIT,
        "          pipeline.consumer_release();\n",
        either(D, "plain load", "cp.async"),
    ),
    Mutant(
        "sm90_multistage_stage_not_released",
        ROW,
        D,
        WAIT,
        "          pipeline.consumer_wait();\n",
        "wrong",
        (70, 66, 20),
    ),
    Mutant(
        "sm90_multistage_copies_under_the_last_products",
        ROW,
        D,
        "          if (!whole && k_left > 0) load_edge();\n          commit();\n" + WAIT,
        WAIT + "          if (!whole && k_left > 0) load_edge();\n          commit();\n",
        either(D, "plain load", "cp.async"),
    ),
    Mutant("sm90_multistage_columns_too_early", ROW, D, "if (next_i == 0) read_b", "if (i == 0) read_b", "wrong"),
    Mutant(
        "sm90_multistage_some_vectors_not_copied",
        ROW,
        D,
        "constexpr int kSlots = (kSteps - 1) * kN;",
        "constexpr int kSlots = kSteps * kN;",
        "wrong",
        (64, 64, 200),
    ),
    Mutant(
        "sm90_multistage_row_not_predicated",
        ROW,
        D,
        "whole_rows = m_left >= kBlkM && n_left >= kBlkN",
        "whole_rows = n_left >= kBlkN",
        out_of_bounds(D, r"cp\.async"),
        (65, 64, 64),
        order="NN",
    ),
    Mutant(
        "sm90_multistage_k_tail_not_predicated",
        ROW,
        D,
        "whole_rows && k_left >= kBlkK",
        "whole_rows && k_left > 0",
        out_of_bounds(D, r"cp\.async"),
        (64, 64, 72),
    ),
    Mutant(
        "sm90_multistage_edge_not_predicated",
        ELEMENTS,
        D,
        "tAcA, m_left, k_left)",
        "tAcA, kBlkM, k_left)",
        out_of_bounds(D, r"cp\.async"),
        (65, 66, 64),
    ),
    Mutant(
        "sm90_multistage_epilogue_before_the_last_read",
        ROW,
        D,
        "    sync_threads();  // every warp is done with the stages, which the epilogue's rows replace\n",
        "",
        either(D, "plain load", "plain store"),
    ),
]
