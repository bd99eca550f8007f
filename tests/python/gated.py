"""Gated layers, and their cotangents, that a named config computes, as `optimize` makes them: on a GPU, emulated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from python.float64 import exact

import jax_moye
from jax_moye._kernels.dtypes import numpy_dtype
from jax_moye._primitives.rewritten import rewritten_p
from jax_moye._selection.epilogue import ACTIVATIONS, Epilogue

CONFIGS = [config for config in jax_moye.configs() if config.takes_pair and not config.grouped]
OF_COTANGENTS = [config for config in jax_moye.configs() if config.takes_gate]
TARGET = "jax_moye_fused_gemm_v1"


@dataclasses.dataclass(frozen=True)
class Gated:
    """activation(x @ g) * (x @ u), and how the operands lie in memory.

    Attributes:
      sizes: m, n, k.
      order: of x and the weights, T where they are transposed arrays.
      batch: of x.
      weights: whether these have the batch, too.
      keeps: both products are results.
    """

    sizes: tuple[int, int, int]
    order: str = "NN"
    activation: str = "relu"
    batch: tuple[int, ...] = ()
    weights: bool = False
    keeps: bool = False

    def __str__(self) -> str:
        """As a test's name."""
        words = [*map(str, self.batch), *map(str, self.sizes), self.order, self.activation]
        return "-".join([*words, *["weights"] * self.weights, *["keeps"] * self.keeps])

    def operands(self, dtype, integers: bool) -> list[jax.Array]:
        """As in memory: integers, whose products and sums are exact, or normal numbers."""
        (m, n, k), rng = self.sizes, np.random.default_rng([*self.sizes, *self.batch])
        shapes = [(*self.batch, m, k)] + [(*(self.batch if self.weights else ()), k, n)] * 2
        arrays = [rng.integers(-2, 3, s) if integers else rng.standard_normal(s) / (s[-2] or 1) ** 0.5 for s in shapes]
        arrays[0] = rng.standard_normal(shapes[0]) if not integers else arrays[0]
        letters = self.order[0] + self.order[1] * 2
        stored = [x.swapaxes(-1, -2) if way == "T" else x for x, way in zip(arrays, letters, strict=True)]
        return [jnp.asarray(x, dtype) for x in stored]

    def __call__(self, *stored: jax.Array):
        """What a program has."""
        letters = self.order[0] + self.order[1] * 2
        x, g, u = (a.swapaxes(-1, -2) if way == "T" else a for a, way in zip(stored, letters, strict=True))
        y, z = x @ g, x @ u
        d = ACTIVATIONS[self.activation](y) * z
        return (d, y, z) if self.keeps else (d,)

    def exact(self, stored: Sequence[jax.Array]) -> list[np.ndarray]:
        """The results in float64."""
        return list(exact(self, stored))


@dataclasses.dataclass(frozen=True)
class Cotangents:
    """Those of gate and up, h being activation(gate) * up, and d_y that of h @ w; w lies as the order says.

    Attributes:
      sizes: m, n, k of d_y @ w^T.
      order: of d_y and w^T, T where they are transposed arrays.
      batch: of all but w.
    """

    sizes: tuple[int, int, int]
    order: str = "NT"
    activation: str = "relu"
    batch: tuple[int, ...] = ()

    def __str__(self) -> str:
        """As a test's name."""
        return "-".join([*map(str, self.batch), *map(str, self.sizes), self.order, self.activation])

    def operands(self, dtype, integers: bool) -> list[jax.Array]:
        """d_y, w, gate and up, as in memory."""
        (m, n, k), rng = self.sizes, np.random.default_rng([*self.sizes, *self.batch])
        d_y, w = (*self.batch, m, k), (k, n)
        shapes = [
            d_y[:-2] + (d_y[-1], d_y[-2]) if self.order[0] == "T" else d_y,
            w if self.order[1] == "N" else w[::-1],
        ]
        shapes += [(*self.batch, m, n)] * 2
        draws = [rng.integers(-2, 3, s) if integers else rng.standard_normal(s) for s in shapes]
        draws[1] = draws[1] if integers else draws[1] / k**0.5
        return [jnp.asarray(x, dtype) for x in draws]

    def __call__(self, d_y: jax.Array, w: jax.Array, gate: jax.Array, up: jax.Array):
        """What a backward pass has."""
        d_y = d_y.swapaxes(-1, -2) if self.order[0] == "T" else d_y
        w = w.T if self.order[1] == "T" else w
        return jax.vjp(lambda gate, up: ACTIVATIONS[self.activation](gate) * up, gate, up)[1](d_y @ w)

    def exact(self, stored: Sequence[jax.Array]) -> list[np.ndarray]:
        """The results in float64."""
        return list(exact(self, stored))


def is_of_pair(epilogue: Epilogue) -> bool:
    """Whether it is a gated layer's."""
    return epilogue.is_of_pair


def is_of_gate(epilogue: Epilogue) -> bool:
    """Whether it is that of its cotangents."""
    return epilogue.is_of_gate


def computed_by(
    config, fun, operands: Sequence[jax.Array], interpret: bool, is_it: Callable[[Epilogue], bool] = is_of_pair
):
    """The function with its gated layers, or their cotangents, one at least, in the hands of a config."""
    with jax_moye.options(interpret=interpret):
        closed = jax.make_jaxpr(jax_moye.optimize(fun))(*operands)
    named = {"config": config.name, "implementation": "moye"}

    def of_config(equation):
        is_gated = equation.primitive is rewritten_p and is_it(equation.params["epilogue"])
        return equation.replace(params={**equation.params, **named}) if is_gated else equation

    equations = [of_config(equation) for equation in closed.eqns]
    assert any(one is not other for one, other in zip(equations, closed.eqns, strict=True)), closed
    return jax.jit(jaxpr_as_fun(ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts)))


def cases_of(config) -> Iterator[Gated]:
    """Every order, sizes around tiles, batches, with and without the products, in integers."""
    tile_m, tile_n, tile_k = config.tile[0], config.tile[1] // 2, config.tile[2]
    step = 8  # of sizes along which operands are contiguous, and of n, of which TMA stores pieces of 16 bytes
    yield Gated((tile_m, tile_n, tile_k))
    yield Gated((tile_m + 1, tile_n + step, tile_k + step), "NT", keeps=True)
    yield Gated((2 * tile_m - step, 2 * tile_n - step, config.stages * tile_k + 3), "TN", "none", keeps=True)
    yield Gated((tile_m + step, step, 2 * tile_k + step), "TT")
    yield Gated((tile_m, tile_n, tile_k + 3), "NT")  # odd lines of all operands
    yield Gated((1, 3 * tile_n + step, step), "NN", keeps=True)
    yield Gated((tile_m + 3, tile_n + step, tile_k - step), batch=(3,), weights=True)
    yield Gated((5, 2 * step, 4 * step), "NT", batch=(2, 3), weights=True, keeps=True)
    yield Gated((7, step, step), batch=(2, 3))
    yield Gated((5 * tile_m + 3, 5 * tile_n + step, 2 * tile_k), "NT", keeps=True)


def cotangents_of(config) -> Iterator[Cotangents]:
    """Every order, sizes around tiles, and batches, in integers."""
    tile_m, tile_n, tile_k = config.tile
    step = 8  # as in cases_of
    yield Cotangents((tile_m, tile_n, tile_k))
    yield Cotangents((tile_m + 1, tile_n + step, tile_k + step), "NT")
    yield Cotangents((2 * tile_m - step, 2 * tile_n - step, config.stages * tile_k + 3), "TN")
    yield Cotangents((tile_m + step, step, 2 * tile_k + step), "TT")
    yield Cotangents((1, 3 * tile_n + step, step), "NN")
    yield Cotangents((7, step, step), batch=(2, 3))
    yield Cotangents((5 * tile_m + 3, 5 * tile_n + step, 2 * tile_k))


def check_exact(
    config, case: Gated | Cotangents, interpret: bool, is_it: Callable[[Epilogue], bool] = is_of_pair
) -> None:
    """One call of the config, and the answer rounded once."""
    operands = case.operands(numpy_dtype(config.dtype), integers=True)
    fun = computed_by(config, case, operands, interpret, is_it)
    text = fun.lower(*operands).as_text()
    assert text.count(f"custom_call @{TARGET}") == 1
    assert f'"{config.name}"' in text
    for found, expected in zip(fun(*operands), case.exact(operands), strict=True):
        rounded = expected.astype(np.float32).astype(found.dtype)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(rounded), err_msg=str(case))


def check_close(config, activation: str, interpret: bool) -> None:
    """Of normal numbers: what the products and one rounding allow."""
    case = Gated((config.tile[0] + 1, config.tile[1] + 8, 3 * config.tile[2]), "NT", activation, keeps=True)
    _check_close(config, case, interpret, is_of_pair)


def check_cotangents(config, activation: str, interpret: bool) -> None:
    """The same of the cotangents."""
    case = Cotangents((config.tile[0] + 1, config.tile[1] + 8, 3 * config.tile[2]), "NT", activation)
    _check_close(config, case, interpret, is_of_gate)


def _check_close(config, case: Any, interpret: bool, is_it: Callable[[Epilogue], bool]) -> None:
    operands = case.operands(numpy_dtype(config.dtype), integers=False)
    found = computed_by(config, case, operands, interpret, is_it)(*operands)
    unit = float(jnp.finfo(found[0].dtype).eps) / 2
    for one, expected in zip(found, case.exact(operands), strict=True):
        error = abs(np.asarray(one, np.float64) - expected)
        assert (error <= unit * abs(expected) + 2.0**-12 * abs(expected).max()).all(), str(case)


def check_step(interpret: bool, implementation: str | None) -> None:
    """A step of training of a layer with a residual, optimized, against float64."""
    rng = np.random.default_rng(0)
    shapes = (64, 96), (96, 128), (96, 128), (128, 96)
    operands = [jnp.asarray(rng.standard_normal(s) / s[0] ** 0.5, jnp.bfloat16) for s in shapes]

    def loss(x, g, u, d):
        y = x + (jax.nn.silu(x @ g) * (x @ u)) @ d
        return (y.astype(jnp.promote_types(y.dtype, jnp.float32)) ** 2).mean()

    step = jax.value_and_grad(loss, (0, 1, 2, 3))
    expected = jax.tree.leaves(exact(step, operands))
    with jax_moye.options(interpret=interpret, implementation=implementation):
        equations = jax.make_jaxpr(jax_moye.optimize(step))(*operands).eqns
        epilogues = [e.params["epilogue"] for e in equations if e.primitive is rewritten_p]
        assert [e.keeps for e in epilogues if e.is_of_pair] == [True]
        assert [e.name for e in epilogues if e.is_of_gate] == ["d_silu"]
        optimized = jax.jit(jax_moye.optimize(step))
        assert f"custom_call @{TARGET}" in optimized.lower(*operands).as_text()
        found = jax.tree.leaves(optimized(*operands))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(one, np.float64), other, rtol=0, atol=2.0**-5 * abs(np.asarray(other)).max()
        )
