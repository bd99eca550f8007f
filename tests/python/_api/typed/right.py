"""A user's program that names every public function and type: no type checker complains. test_types.py runs them."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

import jax_moye
from jax_moye import Device, Explanation, GemmConfig, Interception, InterpretParams, Report, Tuning, layout
from jax_moye.checkpoint_policies import dots_saveable


def products(x: jax.Array, w: np.ndarray, place: jax.NamedSharding | None = None) -> jax.Array:
    implementation: Literal["moye", "xla"] | None = "xla"
    config: GemmConfig = jax_moye.configs()[0]
    y: jax.Array = jax_moye.matmul(x, w, precision="highest", implementation=implementation)
    y += jax_moye.matmul(x, w, preferred_element_type=jnp.float32, config=config, deterministic=True)
    y += jax_moye.matmul(x, w, precision=jax.lax.Precision.HIGH, out_sharding=place, batch_invariant=True)
    y += jax_moye.matmul(x, w, interpret=InterpretParams(mode="random", seed=1), config="the name of one")
    y += jax_moye.dot_general(x, w, (((1,), (0,)), ((), ())), "high", "float32", interpret=True)
    y += jax_moye.dot_general(2.0, 3, (((), ()), ((), ())))
    y += jax_moye.einsum("mk,kn->mn", x, w, precision=jax.lax.DotAlgorithmPreset.F32_F32_F32)
    return y + jax_moye.einsum(x, [0, 1], w, [1, 2], optimize="optimal")


def layers(x: jax.Array, w: jax.Array, bias: jax.Array | None) -> jax.Array:
    y = jax_moye.linear(x, w, bias, activation="gelu", residual=x, alpha=np.float32(2), beta=1, c=x)
    y = jax_moye.linear(y, w, activation=jax.nn.relu, preferred_element_type=np.dtype("float32"))
    return jax_moye.gated_linear_unit(y, w, w, activation="sigmoid")


@jax_moye.options(deterministic=True)
def inside(x: jax.Array, w: np.ndarray) -> int:
    taken: Interception
    ours: jax_moye.OptionsBlock = jax_moye.options(implementation="moye", interpret=True, batch_invariant=False)
    with ours, jax_moye.intercept() as taken, jax_moye.cuda_target(90):
        jax.checkpoint(products, policy=dots_saveable)(x, w)
    jax.checkpoint(products, policy=jax_moye.checkpoint_policies.as_dot_general(dots_saveable))(x, w)
    return taken.calls


def questions(x: jax.Array) -> Sequence[str]:
    found: Explanation = jax_moye.explain((64, 64), (64, 64), "bfloat16", device="h200", precision="high")
    found = jax_moye.explain(layers, x, x, None, device=found.device)
    device: Device = found.device
    gemm: jax_moye.Gemm = found[0]
    ranked: jax_moye.Ranked | None = gemm.chosen
    report: Report = jax_moye.report(layers, x, x, None)
    tuning: Tuning = jax_moye.tune(x, x, top=3, preferred_element_type=jnp.float32, path=pathlib.Path("times.json"))
    regret: list[jax_moye.Regret] = tuning.regret()
    table: jax_moye.ConfigTable = jax_moye.configs()[1:]
    return [device.name, str(ranked), report.text(), tuning.text(), str(regret), str(table), jax_moye.__version__]


def saved(x: jax.Array) -> bytearray:
    fun = jax.jit(lambda x: products(x, np.eye(2)))
    exported = jax.export.export(fun, disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS)
    jax_moye.register("cpu")
    return exported(x).serialize()


def drawn() -> str:
    return layout.to_text(layout.Layout("(4,2):(2,1)"))
