"""Files of measurements for the tests of `_tune` and of what a selection finds."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp

import jax_moye
from jax_moye._kernels.devices import find_device
from jax_moye._selection import measurements
from jax_moye._selection.entry import Entry
from jax_moye._timing.rounds import Race
from jax_moye._tune import tune
from jax_moye._tune.times import Protocol

H200 = "NVIDIA H200"
bf16 = jnp.bfloat16
SHAPE = ((256, 512), (512, 128), "bfloat16")
HEAD = {"gpu": H200, "driver": "580.1", "emulated": False, "arch": 90}


def explained(*args, **options):
    return jax_moye.explain(*args, **options, device=find_device("h200"))[0]


def able(gemm):
    """The names of the rows that can compute a product, in the model's order."""
    return [ranked.config.name for ranked in gemm.candidates if ranked.reason is None]


def head(**changes):
    return measurements.new_head(H200, "580.1", False, "2026-11-20") | HEAD | changes


def entry_of(gemm, us=None, xla_us=None, **changes):
    """An entry of a product, in which the fifth row of the model's order is the fastest."""
    names = able(gemm)
    us = us or {name: 20.0 + i for i, name in enumerate(names)} | {names[4]: 10.0}
    config = changes.pop("config", min(us, key=us.__getitem__))
    row = next(row for row in jax_moye.configs() if row.name == config)
    request, (lhs, rhs) = gemm.product.request, gemm.product.operands
    words = measurements.signature(lhs.dtype, rhs.dtype, request.out_dtype, request.precision)
    fields = {
        "problem": measurements.usual_key(gemm.problem),
        "variant": "",
        "config": config,
        "row": measurements.config_digest(row),
        "us": us,
        "xla_us": {} if xla_us is None else {words: xla_us},
        "host_bound": False,
        "date": "2026-11-20",
    }
    return Entry(**fields | changes)


def keep(entry, path=None, **changes):
    measurements.write(path or measurements.cache_file(H200), head(**changes), [entry])


def seal(body):
    """The bytes of a file whose sum is right."""
    body = {name: value for name, value in body.items() if name != "sha256"}
    return json.dumps(body | {"sha256": measurements._sha256(body)}).encode()


def emulated(tmp_path):
    """A target in the emulator, and a protocol that takes no time."""
    path = tmp_path / "emulated.json"
    how = Race(round_ms=0.1, rounds=(1, 1), warmup_ms=0)
    return tune.find_target(jax.devices("cpu")[0], True, path), Protocol(top=2, race=how)


def product_of(*args, **options):
    return jax_moye.explain(*args, **options, device=80)[0].product
