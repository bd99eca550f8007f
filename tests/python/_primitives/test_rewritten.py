"""The primitive that stands for a product and the equations behind it: a kernel, or the equations as they were."""

from __future__ import annotations

import logging

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jax_moye
from jax_moye._log import say_once
from jax_moye._primitives.rewritten import Original, rewritten_p

TARGET = "jax_moye_fused_gemm_v1"


def layer(x, w, b, r):
    return jax.nn.silu(x @ w + b) + r


def operands(dtype=jnp.bfloat16):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=s), dtype) for s in ((16, 24), (24, 32), (32,), (16, 32)))


def equation(*arrays):
    (found,) = (e for e in jax.make_jaxpr(jax_moye.optimize(layer))(*arrays).eqns if e.primitive is rewritten_p)
    return found


def test_the_equations_are_kept():
    x, w, b, r = operands()
    original = equation(x, w, b, r).params["original"]
    assert isinstance(original, Original)
    assert repr(original) == f"{len(original.jaxpr.jaxpr.eqns)} equations"
    np.testing.assert_allclose(
        np.asarray(original(x, w, b[None], r)[0], np.float32), np.asarray(layer(x, w, b, r), np.float32), atol=2**-5
    )


def test_one_kernel_in_the_emulator_and_on_a_gpu():
    arrays = operands()
    with jax_moye.options(interpret=True):
        text = jax.jit(jax_moye.optimize(layer)).lower(*arrays).as_text()
    assert text.count(TARGET) == 1
    assert "stablehlo.logistic" not in text
    with jax_moye.options(implementation="moye"), jax_moye.cuda_target(90):
        lowered = jax.jit(jax_moye.optimize(layer)).trace(*arrays).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count(TARGET) == 1


def test_a_transpose_in_front_is_a_stride():
    x, w, b, r = operands()
    fun = jax_moye.optimize(lambda w, x, b, r: layer(x, w.T, b, r))
    with jax_moye.options(interpret=True):
        text = jax.jit(fun).lower(w.T, x, b, r).compile().as_text()
        result = jax.jit(fun)(w.T, x, b, r)
    assert TARGET in text
    assert " transpose(" not in text
    np.testing.assert_allclose(np.asarray(result, np.float32), np.asarray(layer(x, w, b, r), np.float32), atol=2**-4)


def test_without_a_kernel_it_is_the_program_that_was():
    """Operation by operation, which XLA sees as if nobody had rewritten it."""
    arrays = operands()
    kinds = [
        [
            line.split("= ")[1].split(" ")[0]
            for line in jax.jit(f).lower(*arrays).as_text().splitlines()
            if "= st" in line
        ]
        for f in (jax_moye.optimize(layer), layer)
    ]
    assert sorted(kinds[0]) == sorted(kinds[1])


def test_the_products_own_kernel_is_not_asked_for_implicitly():
    """A product that is an error by contract stays one."""
    arrays = operands(jnp.float16)
    with jax_moye.options(implementation="moye"), pytest.raises(NotImplementedError, match="implementation='moye'"):
        jax.jit(jax_moye.optimize(layer))(*arrays)


def test_contracts_hold_where_no_kernel_computes_it_all(monkeypatch):
    """The product is ours then, or an error: in XLA's hands it would break what was asked for."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    x, w, *_ = operands()
    relu_of_product = jax_moye.optimize(lambda x, w: jax.nn.relu(x @ w))
    for options in ({"deterministic": True}, {"batch_invariant": True}, {"implementation": "moye"}):
        with jax_moye.options(**options):
            (found,) = (e for e in jax.make_jaxpr(relu_of_product)(x, w).eqns if e.primitive is rewritten_p)
            product = found.params["original"].jaxpr.jaxpr.eqns[0]
            assert product.primitive.name == "jax_moye_contract"
            assert product.params.items() >= options.items()
            mapped = jax.make_jaxpr(jax.vmap(relu_of_product, (0, None)))(x[None], w)
            assert "dot_general" not in str(mapped)
    (found,) = (e for e in jax.make_jaxpr(relu_of_product)(x, w).eqns if e.primitive is rewritten_p)
    of_xla = found.params["original"].by_xla.jaxpr.jaxpr.eqns[0]
    assert of_xla.params["implementation"] == "xla"
    assert found.params["original"].jaxpr.jaxpr.eqns[0].params["implementation"] is None
    with jax_moye.options(batch_invariant=True, interpret=True):
        result = jax.vmap(relu_of_product, (0, None))(x[None], w)[0]
    np.testing.assert_allclose(np.asarray(result, np.float32), np.asarray(jax.nn.relu(x @ w), np.float32), atol=2**-5)
    with (
        jax_moye.options(batch_invariant=True),
        pytest.raises(NotImplementedError, match="batch_invariant=True: how XLA sums a row"),
    ):
        jax.vmap(relu_of_product, (0, None))(x[None], w)


CONTRACTS = {
    "deterministic": {"deterministic": True},
    "batch_invariant": {"batch_invariant": True},
    "moye": {"implementation": "moye"},
}


def gradient(fun):
    return lambda *arrays: jax.grad(lambda *a: (fun(*a).astype(jnp.float32) ** 2).sum(), (0, 1))(*arrays)


# No kernel computes the first ones as a whole in f32.
PROGRAMS = {
    "a gated layer": lambda x, w: jax.nn.silu(x @ w) * (x @ (w + w)),
    "and its gradient": gradient(lambda x, w: jax.nn.silu(x @ w) * (x @ (w + w))),
    "a kept activation and its derivative": gradient(lambda x, w: jax.nn.gelu(x @ w) @ w.T),
    "relu's": gradient(lambda x, w: jax.nn.relu(x @ w) @ w.T),
}


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_contract_breaks_no_program(name, contract, dtype, monkeypatch):
    """What no kernel computes as a whole is the equations as they were, whose products keep it."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    x, w, *_ = operands(dtype)
    fun = PROGRAMS[name]
    with jax_moye.options(**CONTRACTS[contract], interpret=True):
        lowered = jax.jit(jax_moye.optimize(fun)).lower(x, w)
        result = lowered.compile()(x, w)
    assert "stablehlo.dot_general" not in lowered.as_text()
    wide = jax.tree.leaves(fun(x.astype(jnp.float32), w.astype(jnp.float32)))
    for got, wanted in zip(jax.tree.leaves(result), wide, strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float32), wanted, atol=0.02 * np.abs(wanted).max())


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("arch", [80, 90])
def test_an_error_is_the_programs_own(name, contract, dtype, arch, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    x, w, *_ = operands(dtype)

    def raises(fun):
        try:
            with jax_moye.options(**CONTRACTS[contract]), jax_moye.cuda_target(arch):
                jax.jit(fun).trace(x, w).lower(lowering_platforms=("cuda",))
        except NotImplementedError:
            return True
        return False

    def as_it_was(x, w):
        with jax_moye.intercept():
            return PROGRAMS[name](x, w)

    assert raises(jax_moye.optimize(PROGRAMS[name])) == raises(as_it_was)


def test_explain_says_who_computes_the_product_of_what_no_kernel_does():
    x, w, *_ = operands(jnp.float32)
    with jax_moye.options(batch_invariant=True):
        (gemm,) = jax_moye.explain(jax_moye.optimize(PROGRAMS["a gated layer"]), x, w, device="h200")
    assert gemm.computed_by == "moye"
    assert "it takes one matrix b, and these are two" in gemm.epilogue_reason


def test_what_is_kept_of_8_bits_is_of_8_bits():
    """A kernel would write it in more."""
    x, w, *_ = operands(jnp.float8_e4m3fn)
    fun = gradient(lambda x, w: jax.nn.relu(x @ w))
    assert "keeps=True" not in str(jax.make_jaxpr(jax_moye.optimize(fun))(x, w))
    with jax_moye.options(interpret=True):
        result = jax.jit(jax_moye.optimize(fun))(x, w)
    for got, wanted in zip(result, fun(x, w), strict=True):
        got, wanted = np.asarray(got, np.float32), np.asarray(wanted, np.float32)
        np.testing.assert_allclose(got, wanted, atol=0.1 * np.abs(wanted).max())


def test_the_log_says_once_why_xla_computes_it(caplog):
    with caplog.at_level(logging.INFO, "jax_moye"):
        for platform in ("cpu", "cuda"):
            say_once.cache_clear()
            caplog.clear()
            with jax_moye.cuda_target(90):
                traced = jax.jit(jax_moye.optimize(layer)).trace(*operands())
                program = traced.lower(lowering_platforms=(platform,)).as_text()
            if "jax_moye_fused_gemm" in program:  # a build with kernels for CUDA
                assert platform == "cuda"
                assert not caplog.records
                continue
            (record,) = caplog.records
            assert "XLA computes mk,kn->mn on bfloat16[16, 24] and bfloat16[24, 32]" in record.getMessage()
        say_once.cache_clear()
        caplog.clear()
        with jax_moye.options(interpret=True):  # a kernel does
            jax.jit(jax_moye.optimize(layer)).lower(*operands())
        assert not caplog.records


def test_partitioned_over_devices_it_is_xlas():
    arrays = operands()
    mesh = Mesh(np.array(jax.devices()[:1]), "d")
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec("d"))
    result = jax.jit(jax_moye.optimize(layer), in_shardings=(sharding, None, None, sharding))(*arrays)
    np.testing.assert_array_equal(result, jax.jit(layer)(*arrays))


def test_second_derivatives_and_maps():
    arrays = operands(jnp.float32)
    optimized = jax_moye.optimize(layer)
    hessian, expected = (
        jax.jvp(jax.grad(lambda x, f=f: (f(x, *arrays[1:]) ** 2).sum()), arrays[:1], arrays[:1])[1]
        for f in (optimized, layer)
    )
    np.testing.assert_allclose(hessian, expected, rtol=1e-4, atol=1e-4)
    batched = jax.vmap(optimized, (None, None, 0, None))(arrays[0], arrays[1], jnp.stack([arrays[2]] * 3), arrays[3])
    assert batched.shape == (3, 16, 32)


def test_export():
    arrays = operands()
    with jax_moye.options(interpret=True):
        exported = jax.export.export(
            jax.jit(jax_moye.optimize(layer)), disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS
        )(*arrays)
    again = jax.export.deserialize(exported.serialize())
    with jax_moye.options(interpret=True):
        np.testing.assert_array_equal(again.call(*arrays), jax.jit(jax_moye.optimize(layer))(*arrays))
