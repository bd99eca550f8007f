"""Scans whose stacks begin as memory that nobody has written."""

from __future__ import annotations

import functools
import operator
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_moye
from jax_moye import _compat
from jax_moye._primitives import empty_stacks
from jax_moye._primitives.empty_stacks import of_empty_stacks, scan_p, with_empty_stacks
from jax_moye._primitives.scans import Scan

LENGTH, WIDTH = 5, 8


@pytest.fixture(autouse=True)
def are_small(monkeypatch):
    monkeypatch.setattr(empty_stacks, "_LEAST_BYTES", 1)


@pytest.fixture
def layers(rng):
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((LENGTH, WIDTH, WIDTH), (3, WIDTH))]


def forward(weights, x, reverse=False):
    def layer(x, w):
        y = jnp.tanh(x @ w)
        return y, (y, y.sum(), jnp.argmax(y))

    return lax.scan(layer, x, weights, reverse=reverse)


def of_sum(weights, x):
    last, (each, sums, _) = forward(weights, x)
    return (last**2).sum() + (each * sums[:, None, None]).sum()


def counted(x, weights):
    """No carry but a number, and nothing stacked is read."""
    return lax.scan(lambda count, _: (count + 1, x * count), 0, None, length=LENGTH)[1], weights


def of_nothing(x, weights):
    return lax.scan(lambda y, w: (y, w @ y[0]), x, weights[:0])


def nested(weights, x):
    return lax.scan(lambda y, _: (y + 1, forward(weights, y)[1]), x, None, length=2)


FUNCTIONS = {
    "forward": forward,
    "reverse": functools.partial(forward, reverse=True),
    "gradients": jax.value_and_grad(of_sum, (0, 1)),
    "counted": counted,
    "none": of_nothing,
    "nested": nested,
}


def scans_of(fun, *args):
    return [one for one in jax.make_jaxpr(jax_moye.optimize(fun))(*args).eqns if one.primitive is scan_p]


def lowered(fun, *args, **options):
    traced = jax.jit(jax_moye.optimize(fun), **options).trace(*args)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_element_is_written(name, layers, monkeypatch):
    """Whatever a stack begins as: the same bits as the scan's, also where that is NaN."""
    for scan in scans_of(FUNCTIONS[name], *layers):
        original = scan.params["original"]
        keys = iter(jax.random.split(jax.random.key(7), len(scan.invars)))
        operands = [random(next(keys), x.aval) for x in scan.invars]
        expected = original(*operands)
        monkeypatch.setattr(lax, "empty", never_zero)
        found = of_empty_stacks(Scan(original.jaxpr.eqns[0]), *operands)
        monkeypatch.undo()
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def never_zero(shape, dtype):
    return jnp.full(shape, jnp.nan if jnp.issubdtype(dtype, jnp.floating) else 99, dtype)


def random(key, aval):
    if jnp.issubdtype(aval.dtype, jnp.floating):
        return jax.random.normal(key, aval.shape, aval.dtype)
    return jax.random.randint(key, aval.shape, 0, 3, aval.dtype)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_transformations(name, layers):
    fun = FUNCTIONS[name]
    optimized = jax_moye.optimize(fun)
    assert scans_of(fun, *layers) or name == "none"
    jax.tree.map(np.testing.assert_array_equal, jax.jit(fun)(*layers), jax.jit(optimized)(*layers))
    if name == "forward":  # derivatives in both directions, and a batch, of the scan that is ours now
        for transform in (
            lambda fun: jax.grad(lambda w, x: sum(y.sum() for y in jax.tree.leaves(fun(w, x)[0]))),
            lambda fun: lambda w, x: jax.jvp(lambda w: fun(w, x)[0], [w], [w])[1],
            lambda fun: lambda w, x: jax.vmap(fun, (None, 0))(w, jnp.stack([x, 2 * x])),
        ):
            pair = [jax.jit(transform(one))(*layers) for one in (fun, optimized)]
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), *pair)


def pulled(weights, x):
    """What comes back through the layers of x."""
    return jax.vjp(lambda w: forward(w, x)[0], weights)[1](x)


@pytest.mark.parametrize(("fun", "scans"), [(forward, 1), (pulled, 2)])
def test_no_zeros_for_cuda(fun, scans, layers):
    """A stack for each result of a scan, and none is filled."""
    filled = re.compile(r"broadcast_in_dim [^:]*, dims = \[\] : \(tensor<\w+>\) -> tensor<5x")
    before = jax.jit(fun).trace(*layers).lower(lowering_platforms=("cuda",)).as_text()
    found = scans_of(fun, *layers)
    assert len(found) == scans
    after = lowered(fun, *layers)
    stacks = sum(len(Scan(one.params["original"].jaxpr.eqns[0]).stacked_results) for one in found)
    assert scans <= after.count("AllocateBuffer") <= stacks  # equal ones are one
    assert after.count("stablehlo.while") == before.count("stablehlo.while") == scans
    assert filled.search(before)
    assert not filled.search(after)
    assert "AllocateBuffer" not in before


def test_equal_stacks_are_one(layers):
    def layer(x, w):
        y = x @ w
        # -0.0 is another number than 0.0, although they are equal.
        return y, (jnp.exp(y), jnp.exp(y), y + 0.0, y + -0.0, y * 2, y * 2, jnp.exp(x))

    def fun(w, x):
        return lax.scan(layer, x, w)

    assert lowered(fun, *layers).count("AllocateBuffer") == 5
    (scan,) = scans_of(fun, *layers)
    found = of_empty_stacks(Scan(scan.params["original"].jaxpr.eqns[0]), *layers[::-1])
    for one, other in zip(found, jax.tree.leaves(fun(*layers)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_numbers_that_are_drawn_are_not_equal(layers):
    def layer(x, w):
        def draw():
            return lax.rng_uniform(0.0, 1.0, (WIDTH,))

        return x @ w, (draw(), draw(), jax.jit(draw)(), jax.jit(draw)())

    text = lowered(lambda w, x: lax.scan(layer, x, w), *layers)
    assert text.count("AllocateBuffer") == 4


def test_what_stays_as_it_is(layers, monkeypatch):
    weights, x = layers
    kept = [
        lambda w, x: lax.scan(lambda x, w: (x @ w, None), x, w),  # no stack
        lambda w, x: lax.scan(lambda x, w: (x @ w, x), x, w, unroll=2),
        lambda w, x: lax.scan(lambda x, w: (x @ w, (x, jax.debug.callback(operator.abs, 1))), x, w),  # effects
        lambda w, x: lax.scan(lambda x, w: (x @ w, jax.random.key(1)), x, w),  # no numbers
        lambda w, x: lax.while_loop(lambda x: x.sum() < 1, lambda x: x + w.sum(), x),
    ]
    for fun in kept:
        jaxpr = jax.make_jaxpr(fun)(weights, x).jaxpr
        assert with_empty_stacks(jaxpr) is jaxpr
    jaxpr = jax.make_jaxpr(forward)(weights, x).jaxpr
    assert with_empty_stacks(jaxpr) is not jaxpr
    once = with_empty_stacks(jaxpr)
    assert with_empty_stacks(once) is once
    monkeypatch.undo()
    assert with_empty_stacks(jaxpr) is jaxpr  # small


def test_stacks_in_the_hosts_memory_stay_there(layers, monkeypatch):
    jaxpr = jax.make_jaxpr(forward)(*layers).jaxpr
    monkeypatch.setattr(_compat, "is_in_device_memory", lambda aval: aval.ndim != 1)
    assert with_empty_stacks(jaxpr) is jaxpr


def test_where_an_array_is():
    aval = jax.typeof(jnp.ones(3))
    assert _compat.is_in_device_memory(aval)
    other = next(one for one in type(aval.memory_space) if one is not aval.memory_space)
    assert not _compat.is_in_device_memory(aval.update(memory_space=other))


def test_other_platforms_and_programs_of_others_have_the_scan(layers, monkeypatch):
    optimized = jax_moye.optimize(forward)
    with monkeypatch.context() as patch:
        patch.setattr(empty_stacks, "of_empty_stacks", None)
        jax.jit(optimized).lower(*layers)
    exported = jax.export.export(jax.jit(optimized), platforms=["cuda"])(*layers)
    assert "AllocateBuffer" not in exported.mlir_module()


def test_on_a_mesh_it_is_the_scan(layers):
    """In shard_map types name a mesh, and a body may exchange something; elsewhere XLA parts the stacks."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    for check in (False, True):
        of_part = jax.shard_map(forward, mesh=mesh, in_specs=(P(), P()), out_specs=(P(), P()), check_vma=check)
        assert "stablehlo.while" in lowered(of_part, *layers)
        assert "AllocateBuffer" not in lowered(of_part, *layers)
    of_many = NamedSharding(AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,)), P())
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in layers]
    assert "AllocateBuffer" in lowered(forward, *shapes)
    assert "AllocateBuffer" not in lowered(forward, *shapes, in_shardings=of_many)


def test_explain_looks_into_it(layers):
    """What is in its body counts as often as it runs."""
    rows = jax_moye.explain(jax_moye.optimize(forward), *layers, device="h200").gemms
    assert [(row.count, row.where) for row in rows] == [(LENGTH, (f"scan of {LENGTH}",))]
