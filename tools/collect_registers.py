#!/usr/bin/env python3
"""Merges the reports of tools/nvcc_gate.py into jax_moye/_registers.json: {config: {architecture: registers}}.

A row's objects are named after the row, so `<config>.cu.o` belongs to <config>; of several kernels the largest number
counts, because it limits how many CTAs fit.
"""

from __future__ import annotations

import argparse
import json
import pathlib


def collect(objects: list[pathlib.Path]) -> dict[str, dict[str, int]]:
    """The registers per thread of each config and architecture."""
    table: dict[str, dict[str, int]] = {}
    for path in objects:
        report = json.loads(path.with_name(path.name + ".ptxas.json").read_text())
        row: dict[str, int] = {}
        for kernel in report["kernels"]:
            row[kernel["arch"]] = max(kernel["registers"], row.get(kernel["arch"], 0))
        table[path.name.split(".")[0]] = dict(sorted(row.items()))
    return dict(sorted(table.items()))


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("objects", type=pathlib.Path, nargs="+")
    args = parser.parse_args()
    args.output.write_text(json.dumps(collect(args.objects), indent=1) + "\n")


if __name__ == "__main__":
    main()
