"""`python -m jax_moye explain`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

import jax

from jax_moye._command_line import describe, whole
from jax_moye._inspect.explain import Explanation, explain
from jax_moye._inspect.gemm import TOP
from jax_moye._kernels import own
from jax_moye._kernels.devices import DEVICES
from jax_moye._kernels.dtypes import JAX_NAMES, OPERAND_NAMES, short_name
from jax_moye._timing.workloads import parse_shape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye explain`."""
    describe(
        parser,
        "Says which kernel computes a product on a GPU, or why XLA does; how long it takes, and XLA; and why no\n"
        "other config was taken. Times are predicted, unless they were measured for this GPU. Nothing runs, and\n"
        "no GPU is needed. docs/how_selection_works.md explains the words.",
        [
            "--shape 4096x4096x4096:bf16",
            "--shape 8x64x64x128:f16:NT --device a100 --top 3",
            "--shape 1024x1024x1024:f32 --precision highest --json",
        ],
    )
    parser.add_argument(
        "--shape",
        required=True,
        action="append",
        help="[batch x] m x n x k : dtype [: order], e.g. 4096x4096x4096:bf16 or 8x64x64x128:f16:NT; may be repeated",
    )
    parser.add_argument(
        "--device", help=f"{', '.join(DEVICES)}, or an architecture such as 90 (default: the GPU here, else an H200)"
    )
    parser.add_argument("--precision", help="as in jax_moye.matmul, e.g. highest")
    parser.add_argument(
        "--out-dtype",
        type=short_name,
        choices=(*OPERAND_NAMES, "s32"),
        help="dtype of the result (default: the operands')",
    )
    parser.add_argument("--config", help="the config to use")
    own.add_arguments(parser)
    parser.add_argument("--batch-invariant", action="store_true", help="as in jax_moye.matmul")
    parser.add_argument("--top", type=whole(0), default=TOP, help=f"lines of the ranked table (default: {TOP})")
    parser.add_argument("--json", action="store_true", help="print JSON with the whole table")


def explain_shape(text: str, **options: Any) -> Explanation:
    """`explain` of a shape as the command line writes it; the options are explain's.

    Raises:
      ValueError: it is none.
    """
    batch, m, n, k, name, order = parse_shape(text)
    lead = "b" if batch != 1 else ""
    a, b = (lead + "mk", lead + "kn")
    labels = (a if order[0] == "N" else lead + "km", b if order[1] == "N" else lead + "nk")
    sizes = {"b": batch, "m": m, "n": n, "k": k}
    shapes = [tuple(sizes[label] for label in operand) for operand in labels]
    return explain(*shapes, OPERAND_NAMES[name], spec=f"{labels[0]},{labels[1]}->{lead}mn", **options)


def main(arguments: argparse.Namespace) -> int:
    """Prints. Returns 0, and 1 where an argument is wrong."""
    out_dtype = arguments.out_dtype and JAX_NAMES[arguments.out_dtype]
    try:
        kernels = own.from_arguments(arguments)
        if len(kernels) + (arguments.config is not None) > 1:
            raise ValueError("one config is used: give one --config-row, or --config")
    except (OSError, ValueError, RuntimeError) as error:
        print(f"jax_moye explain: {error}", file=sys.stderr)
        return 1
    options = {
        "device": arguments.device,
        "precision": arguments.precision,
        "preferred_element_type": out_dtype,
        "config": kernels[0] if kernels else arguments.config,
        "batch_invariant": arguments.batch_invariant or None,
    }
    wide = jax.enable_x64(True) if arguments.out_dtype == "f64" else contextlib.nullcontext()
    try:
        with wide:
            found = [explain_shape(text, **options) for text in arguments.shape]
    except (TypeError, ValueError) as error:
        print(f"jax_moye explain: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps([explanation.to_dict() for explanation in found], indent=1))
        return 0
    for i, explanation in enumerate(found):
        if i:
            print()
        explanation.show(top=arguments.top)
    return 0
