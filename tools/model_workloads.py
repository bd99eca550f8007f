#!/usr/bin/env python3
"""Writes benchmarks/models/fit.json and validation.json: the products of real models, as workloads of the benchmark.

benchmarks/models/models.json has public configurations of models. From each follow the products of a training step
(forward, and both gradients), of prefill and of decoding, and attention's with one batch dimension.
A third of the model families is for validation, by their names alone; no shape is in both files, and none in the suite
that figures are quoted on.

  python tools/model_workloads.py            writes the two files
  python tools/model_workloads.py --check    exits with 1 if they are others
"""

from __future__ import annotations

import json
import pathlib
import sys
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks/models"
SUITE = ROOT / "benchmarks/suite.json"
DECODED = (1, 2, 4, 8, 12, 16, 32, 64)  # sequences that are decoded together
PREFILLED = (77, 128, 512, 1000, 2048)  # tokens
ATTENDED = 1024  # tokens of a sequence, at most, in attention's products
MOST_FLOPS = 2.5e12  # of one product; for larger ones the training step has fewer tokens
TRANSPOSED = {"NN": "NT", "NT": "NN"}

Sizes = tuple[int, int, int, int, str]  # batch, m, n, k, layout
Layer = tuple[int, int]  # (in, out)


def is_validation(family: str) -> bool:
    """Whether the products of a family of models are kept from fitting."""
    return zlib.crc32(family.encode()) % 3 == 0


def layers(model: Mapping[str, Any]) -> dict[str, Layer]:
    """(in, out) of the layers of a model."""
    width, heads, kv_heads, head_dim = (model[name] for name in ("width", "heads", "kv_heads", "head_dim"))
    return {
        "qkv": (width, (heads + 2 * kv_heads) * head_dim),
        "kv": (width, kv_heads * head_dim),
        "o": (heads * head_dim, width),
        "up": (width, model["ffn"]),
        "down": (model["ffn"], width),
        "head": (width, model["vocab"]),
    }


def forward(tokens: int, layer: Layer, weights: str) -> Sizes:
    """Inputs (tokens,in) times the weight, which is stored (in,out): NN, or (out,in): NT."""
    return 1, tokens, layer[1], layer[0], weights


def gradients(tokens: int, layer: Layer, weights: str) -> dict[str, Sizes]:
    """With respect to x, and to the weight as it is stored."""
    rows, columns = layer if weights == "NN" else layer[::-1]
    return {"dx": (1, tokens, *layer, TRANSPOSED[weights]), "dw": (1, rows, columns, tokens, "TN")}


def training_tokens(model: Mapping[str, Any], layer: Layer) -> int:
    """Tokens of a training step, halved until one product has few enough operations."""
    tokens = model["tokens"]
    while 2 * tokens * layer[0] * layer[1] > MOST_FLOPS:
        tokens //= 2
    return tokens


def products(model: Mapping[str, Any]) -> Iterator[tuple[str, str, Sizes]]:
    """(phase, what is computed, sizes) of each product of a model."""
    number, weights = zlib.crc32(model["name"].encode()), model["weights"]
    for i, (name, layer) in enumerate(layers(model).items()):
        for step in (0, 5):
            yield "decode", name, forward(DECODED[(number + 3 * i + step) % len(DECODED)], layer, weights)
        if name == "kv":  # a part of qkv, in models that decode it alone
            continue
        tokens = training_tokens(model, layer)
        yield "train", name, forward(tokens, layer, weights)
        for gradient, sizes in gradients(tokens, layer, weights).items():
            yield "train", f"{name}-{gradient}", sizes
        if name != "head":
            yield "prefill", name, forward(PREFILLED[(number + i) % len(PREFILLED)], layer, weights)
    # Both operands transposed: the order that layers do not need.
    tokens, layer = training_tokens(model, layers(model)["o"]), layers(model)["o"]
    yield "train", "o-tt", (1, tokens, layer[1], layer[0], "TT")
    queries, head_dim = min(model["context"], ATTENDED), model["head_dim"]
    yield "train", "scores", (2 * model["heads"], queries, queries, head_dim, "NT")
    yield "train", "values", (2 * model["heads"], queries, head_dim, queries, "NN")


def workloads() -> dict[str, list[dict[str, Any]]]:
    """The lines of both files, by the file's name; of equal products the first."""
    models = json.loads((FOLDER / "models.json").read_text())["models"]
    names = ("batch", "m", "n", "k", "layout")
    seen = {tuple(line[name] for name in names) for line in json.loads(SUITE.read_text())["rows"]}
    found: dict[str, list[dict[str, Any]]] = {"validation": [], "fit": []}  # what both have is for validation
    for part, lines in found.items():
        for model in models:
            if is_validation(model["family"]) != (part == "validation"):
                continue
            for phase, what, sizes in products(model):
                if sizes in seen:
                    continue
                seen.add(sizes)
                # In small letters: capitals are the suite's regimes.
                identity = f"{phase}/{model['name'].lower()}/{what}/{sizes[1]}"
                lines.append(
                    {"id": identity, "regime": phase} | dict(zip(names, sizes, strict=True)) | {"dtype": "bf16"}
                )
    return found


def text(part: str, lines: list[dict[str, Any]]) -> str:
    """A file, with a line for each workload."""
    about = f"Products of real models, for {part}: written by tools/model_workloads.py from models.json"
    listed = ",\n".join(json.dumps(line) for line in lines)
    return f'{{"about": {json.dumps(about)}, "rows": [\n{listed}\n]}}\n'


def main() -> int:
    """Writes the files, or compares."""
    status = 0
    for part, lines in workloads().items():
        path = FOLDER / f"{part}.json"
        wanted = text(part, lines)
        if "--check" not in sys.argv[1:]:
            path.write_text(wanted)
            print(f"{path.relative_to(ROOT)}: {len(lines)} workloads")
        elif not path.is_file() or path.read_text() != wanted:
            print(f"{path.relative_to(ROOT)} is not what this script writes", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
