"""`python -m jax_moye configs`: prints the table of compiled kernels, or a part of it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys

from jax_moye._command_line import describe, pattern, whole
from jax_moye._kernels.configs import ConfigTable, GemmConfig, all_configs, configs
from jax_moye._kernels.dtypes import OPERAND_NAMES, short_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye configs`."""
    describe(
        parser,
        "Prints the compiled kernels of matrix products, a line for each; --all or a --kernel of theirs those\n"
        "of groups, attention, quantized weights and blocks with scales, too. An option leaves out what it does\n"
        "not name.\n"
        "A name says the kernel, the dtype of the operands, the tile (m, n, k), the stages (s), the cluster\n"
        "(c) and the bytes of one load from global memory (a). out: dtypes of the result; order: of a and b,\n"
        "N is row-major and T is stored transposed; all: the four; any: and operands with no dimension of\n"
        "stride 1; warps: of a CTA; smem: its bytes of shared memory; regs: registers of a thread; arch:\n"
        "the GPUs. --json prints all fields.",
        [
            "--dtype bf16 --arch 90",
            "--name '.*_s4_.*'",
            "--kernel simt_tiled --json",
            "--all --name '.*attention.*'",
        ],
    )
    table = all_configs()
    parser.add_argument("--all", action="store_true", help="also those that compute something else than one product")
    parser.add_argument("--name", type=pattern, help="configs whose name this regular expression matches whole")
    kernels = list(dict.fromkeys(config.kernel for config in table))
    parser.add_argument("--kernel", choices=kernels, metavar="KERNEL", help=f"one of {', '.join(kernels)}")
    dtypes = list(dict.fromkeys([*OPERAND_NAMES, *(config.dtype for config in table)]))
    parser.add_argument(
        "--dtype", type=short_name, choices=dtypes, metavar="DTYPE", help=f"of the operands: {', '.join(dtypes)}"
    )
    outs = list(dict.fromkeys(out for config in table for out in config.out_dtypes))
    parser.add_argument(
        "--out-dtype", type=short_name, choices=outs, metavar="DTYPE", help=f"of the result: {', '.join(outs)}"
    )
    parser.add_argument("--order", type=str.upper, choices=("NN", "NT", "TN", "TT"), help="that they take")
    parser.add_argument("--arch", type=_arch, help="that they run on, e.g. 90")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _arch(text: str) -> int:
    """The number of an architecture, 90 of "90" or "sm_90"."""
    return whole(10)(text.removeprefix("sm_"))


def chosen(arguments: argparse.Namespace) -> list[GemmConfig]:
    """The configs that the options name, in the order of the table."""
    asked = arguments
    tests = {
        "name": lambda config: re.fullmatch(asked.name, config.name),
        "kernel": lambda config: config.kernel == asked.kernel,
        "dtype": lambda config: config.dtype == asked.dtype,
        "out_dtype": lambda config: asked.out_dtype in config.out_dtypes,
        "order": lambda config: asked.order in config.orders,
        "arch": lambda config: config.min_arch <= asked.arch <= (config.max_arch or asked.arch),
    }
    rest = set(all_configs()) - set(configs())
    is_of_rest = asked.kernel is not None and all(config in rest for config in all_configs() if tests["kernel"](config))
    table = all_configs() if asked.all or is_of_rest else configs()
    given = [test for name, test in tests.items() if getattr(asked, name) is not None]
    return [config for config in table if all(test(config) for test in given)]


def main(arguments: argparse.Namespace) -> int:
    """Prints the table. Returns 0, and 1 where no config is as asked."""
    found = chosen(arguments)
    if not found:
        table = all_configs() if arguments.all else configs()
        print(f"jax_moye configs: none of the {len(table)} configs is as asked", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps([_described(config) for config in found], indent=1))
    else:
        print(ConfigTable(found))
    return 0


def _described(config: GemmConfig) -> dict[str, object]:
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return fields | {"registers": None if config.registers is None else dict(config.registers), "archs": config.archs}
