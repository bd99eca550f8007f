"""Bugs planted in how Hopper's persistent kernels wait for the kernel ahead, and in what they read before it ends."""

from __future__ import annotations

from tests.emulated.mutants_sm90 import COOPERATIVE, PINGPONG, SHARED, C, Mutant, P, deadlock, too_early

KERNEL_AHEAD = (
    "  if (kLoadsEarly<kConfig> && !begins) griddepcontrol_wait();  // the kernel ahead may still run up to here\n"
)
MAPS = "tma_operand.h"
OTHERS_WAIT = "    if (!kLoadsEarly<kConfig> || thread >= 128) griddepcontrol_wait();\n"

MUTANTS = [
    Mutant(
        "sm90_cooperative_does_not_wait_for_the_kernel_ahead",
        COOPERATIVE,
        SHARED,
        KERNEL_AHEAD,
        "",
        too_early("TMA load", C),
    ),
    Mutant(
        "sm90_pingpong_does_not_wait_for_the_kernel_ahead",
        PINGPONG,
        SHARED,
        KERNEL_AHEAD,
        "",
        too_early("TMA load", P),
    ),
    Mutant(
        "sm90_cooperative_stores_over_what_is_still_read",
        COOPERATIVE,
        C,
        OTHERS_WAIT,
        "",
        too_early(r"\S+ store", r"\S+"),
    ),
    Mutant(
        "sm90_pingpong_stores_over_what_is_still_read",
        PINGPONG,
        P,
        OTHERS_WAIT,
        "",
        too_early(r"\S+ store", r"\S+"),
    ),
    Mutant(
        "sm90_pingpong_the_other_operand_read_early",
        PINGPONG,
        MAPS,
        ".b = (args.early & kEarlyB) != 0",
        ".b = (args.early & kEarlyA) != 0",
        too_early("TMA load", P),
        options=("early=1",),
    ),
    Mutant(
        "sm90_pingpong_late_operand_never_read",
        PINGPONG,
        MAPS,
        ".b = pass == 2 || early.b == (pass == 0)}",
        ".b = pass == 2 || (early.b && pass == 0)}",
        deadlock("parity 0", P),
        options=("early=1",),
    ),
    Mutant(
        "sm90_pingpong_late_operand_read_early",
        PINGPONG,
        SHARED,
        "      if (pass == 1) griddepcontrol_wait();  // which may still write the others\n",
        "",
        too_early("TMA load", P),
        options=("early=2",),
    ),
]
