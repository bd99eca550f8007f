"""The same operands give the same bits: repeated, in other processes, and in programs that are the same text."""

import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye import InterpretParams

REPEATS = 100
PACKAGE = pathlib.Path(jax_moye.__file__).parents[1]

# What each process computes, as digests, and the program it lowers for a GPU.
PROGRAM = """
import functools, hashlib, json
import jax, jax.numpy as jnp, numpy as np
import jax_moye

rng = np.random.default_rng(7)
digests = {}
for dtype in ("bfloat16", "float32"):
    a, b = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((33, 72), (72, 24)))
    for name, options in (("emulator", dict(interpret=True)), ("xla", dict(implementation="xla"))):
        fun = functools.partial(jax_moye.matmul, deterministic=True, **options)
        out, vjp = jax.vjp(fun, a, b)
        results = [out, *vjp(out)]
        digests[f"{dtype} {name}"] = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in results)).hexdigest()

def train_step(w, x):
    def loss(w):
        y = jnp.tanh(jax_moye.matmul(x, w[0]))
        return jax_moye.matmul(y, w[1], preferred_element_type=jnp.float32).sum()
    return jax.grad(loss)(w)

with jax_moye.options(implementation="moye", deterministic=True):
    w = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((256, 512), (512, 100))]
    x = jax.ShapeDtypeStruct((300, 256), jnp.bfloat16)
    text = jax.jit(train_step).trace(w, x).lower(lowering_platforms=("cuda",)).as_text()
digests["calls"] = text.count("@jax_moye")
digests["text"] = hashlib.sha256(text.encode()).hexdigest()
print(json.dumps(digests))
"""


def in_a_process(hash_seed: int) -> dict:
    outcome = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        # Another seed is another order of sets of strings.
        env=os.environ | {"PYTHONPATH": str(PACKAGE), "PYTHONHASHSEED": str(hash_seed), "JAX_PLATFORMS": "cpu"},
    )
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout.splitlines()[-1])


def test_three_processes():
    first, *others = [in_a_process(seed) for seed in (0, 1, 2)]
    assert others == [first] * 2
    assert first["calls"] == 4
    assert first["bfloat16 xla"] != first["float32 xla"]  # digests of something


def digest(x) -> str:
    return hashlib.sha256(np.asarray(x).tobytes()).hexdigest()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("options", [dict(interpret=True), dict(implementation="xla")], ids=["emulator", "xla"])
def test_repeated(rng, dtype, options):
    a, b = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((19, 40), (40, 24)))
    fun = jax.jit(functools.partial(jax_moye.matmul, deterministic=True, **options))
    assert len({digest(fun(a, b)) for _ in range(REPEATS)}) == 1


def test_repeated_in_random_order(rng):
    """Whenever the emulator lets copies and instructions take effect, and whichever thread runs first."""
    a, b = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((70, 72), (72, 80)))
    names = ("sm80_multistage_bf16_64x64x32_s3_a2", "sm90_cooperative_bf16_128x128x64_s5_a16")
    for name in set(names) & {row.name for row in jax_moye.configs()}:
        results = {
            digest(jax_moye.matmul(a, b, config=name, interpret=InterpretParams(mode="random", seed=seed)))
            for seed in range(6)
        }
        assert len(results) == 1, name
