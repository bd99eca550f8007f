"""Several devices, in a process of its own with four of them: each runs kernels on its part."""

import os
import pathlib
import subprocess
import sys
import textwrap

import jax_moye

PREAMBLE = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import jax_moye

assert jax.device_count() == 4
rng = np.random.default_rng(0)
a, b = (jnp.asarray(rng.integers(-2, 3, shape), jnp.float32) for shape in ((8, 16), (16, 12)))
matmul = functools.partial(jax_moye.matmul, interpret=True)

def calls(fun, *args):
    return jax.jit(fun).lower(*args).compile().as_text().count('custom_call_target="jax_moye_gemm_v1"')
"""


def run(code: str) -> None:
    outcome = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", PREAMBLE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ
        | {
            "PYTHONPATH": str(pathlib.Path(jax_moye.__file__).parents[1]),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        },
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_automatic_sharding():
    run("""
        mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
        for spec_a, spec_b in ((P("x"), P()), (P("x"), P(None, "y")), (P(None, "x"), P("x")), (P("x", "y"), P("y"))):
            x, y = (jax.device_put(z, NamedSharding(mesh, s)) for z, s in ((a, spec_a), (b, spec_b)))
            np.testing.assert_array_equal(jax.jit(matmul)(x, y), a @ b)
            assert calls(matmul, x, y) == 1
            gradients = jax.jit(jax.grad(lambda x, y: matmul(x, y).sum(), (0, 1)))(x, y)
            expected = jax.grad(lambda x, y: (x @ y).sum(), (0, 1))(a, b)
            for g, e in zip(gradients, expected, strict=True):
                np.testing.assert_array_equal(g, e)
    """)


def test_explicit_sharding_is_typed():
    run("""
        mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
        with jax.set_mesh(mesh):
            x, y = jax.device_put(a, P("x", None)), jax.device_put(b, P(None, "y"))
            out = matmul(x, y)
            assert jax.typeof(out).sharding.spec == P("x", "y"), jax.typeof(out)
            np.testing.assert_array_equal(out, a @ b)
            gradient = jax.grad(lambda x: matmul(x, y).sum())(x)
            assert jax.typeof(gradient).sharding.spec == P("x", None)

            x, y = jax.device_put(a, P(None, "x")), jax.device_put(b, P("x", None))
            try:
                matmul(x, y)
            except Exception as error:
                assert "out_sharding" in str(error), error
            else:
                raise AssertionError("a sum over a sharded dimension needs out_sharding")
            for sharding in (P("y", None), NamedSharding(mesh, P("y", None))):
                out = matmul(x, y, out_sharding=sharding)
                assert jax.typeof(out).sharding.spec == P("y", None)
                np.testing.assert_array_equal(out, a @ b)
            mapped = jax.vmap(matmul, (0, None))(jax.device_put(jnp.stack([a, a]), P("y", "x")), b)
            assert jax.typeof(mapped).sharding.spec == P("y", "x", None), jax.typeof(mapped)
    """)


def test_shard_map_over_all_axes_runs_kernels():
    run("""
        mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
        f = jax.shard_map(matmul, mesh=mesh, in_specs=(P("x"), P(None, "y")), out_specs=P("x", "y"))
        np.testing.assert_array_equal(jax.jit(f)(a, b), a @ b)
        assert calls(f, a, b) == 1
        gradients = jax.jit(jax.grad(lambda a, b: f(a, b).sum(), (0, 1)))(a, b)
        expected = jax.grad(lambda a, b: (a @ b).sum(), (0, 1))(a, b)
        for g, e in zip(gradients, expected, strict=True):
            np.testing.assert_array_equal(g, e)
        g = jax.shard_map(
            lambda a, b: jax.lax.psum(matmul(a, b), "x"), mesh=mesh, in_specs=(P(None, "x"), P("x")), out_specs=P()
        )
        np.testing.assert_array_equal(jax.jit(g)(a, b), a @ b)
        assert calls(g, a, b) == 1
    """)


def test_shard_map_over_some_axes_is_xlas():
    run("""
        mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
        f = jax.shard_map(matmul, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
        np.testing.assert_array_equal(jax.jit(f)(a, b), a @ b)
        assert calls(f, a, b) == 0
        insisting = functools.partial(matmul, implementation="moye")
        f = jax.shard_map(insisting, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
        try:
            jax.jit(f)(a, b)
        except NotImplementedError as error:
            assert "not manual in this shard_map" in str(error)
        else:
            raise AssertionError
    """)
