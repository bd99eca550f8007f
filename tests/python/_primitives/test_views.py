"""Operands that are parts of larger arrays: which are found, how kernels read them, and that all else is as it was."""

from __future__ import annotations

import os
import re
import shutil

import hypothesis
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from python.float64 import exact
from python.viewed import CASES, VIEW_TARGET, WQKV, H, attention, check, integers, movements, viewed_equations

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._primitives import autotune, custom_call


@pytest.mark.parametrize("name", CASES)
def test_programs(name):
    check(name, interpret=True)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16], ids=lambda dtype: dtype.__name__)
def test_other_dtypes(dtype):
    for name in ("scores of a split", "columns from an odd one on", "a bias and an activation"):
        check(name, interpret=True, dtype=dtype)


@pytest.mark.parametrize("name", ["last columns", "gate and up of one array", "plus c"])
def test_an_ignored_offset_is_seen(name, monkeypatch):
    """The bug planted: what these tests compare finds it."""

    def without(problem):
        del problem
        return dict.fromkeys(("a_offset", "b_offset", "second_b_offset"), np.int64(0))

    monkeypatch.setattr(custom_call, "offset_attributes", without)
    jax.clear_caches()
    with pytest.raises(AssertionError, match="not equal"):
        check(name, interpret=True)
    jax.clear_caches()


# ------------------------------------------------------------------------------------------------ random chains


@st.composite
def chains(draw):
    """A shape, what is done to an array of it, as names and arguments, the shape then, and one of its dimensions."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=2, max_size=4)))
    start, steps = shape, []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["slice", "index", "split", "transpose", "merge", "cut", "expand"]))
        axis = draw(st.integers(0, len(shape) - 1))
        size = shape[axis]
        if kind == "slice":
            begin = draw(st.integers(0, size - 1))
            end, step = draw(st.integers(begin + 1, size)), draw(st.sampled_from([1, 1, 2]))
            argument = (slice(None),) * axis + (slice(begin, end, step),)
            shape = shape[:axis] + (len(range(begin, end, step)),) + shape[axis + 1 :]
        elif kind == "index" and len(shape) > 2:
            argument = (slice(None),) * axis + (draw(st.integers(-size, size - 1)),)
            shape = shape[:axis] + shape[axis + 1 :]
        elif kind == "split" and size % 2 == 0:
            argument = (axis, draw(st.integers(0, 1)))
            shape = shape[:axis] + (size // 2,) + shape[axis + 1 :]
        elif kind == "transpose":
            argument = tuple(draw(st.permutations(range(len(shape)))))
            shape = tuple(shape[dim] for dim in argument)
        elif kind == "merge" and axis + 1 < len(shape) and len(shape) > 2:
            shape = argument = shape[:axis] + (size * shape[axis + 1],) + shape[axis + 2 :]
        elif kind == "cut" and size % 2 == 0 and len(shape) < 5:
            shape = argument = shape[:axis] + (2, size // 2) + shape[axis + 1 :]
        elif kind == "expand" and len(shape) < 5:
            argument = axis
            shape = shape[:axis] + (1,) + shape[axis:]
        else:
            continue
        steps.append((kind, argument))
    return start, steps, shape, draw(st.integers(0, len(shape) - 1))


def run(steps, x, of):
    """The steps by jax.numpy, or by NumPy."""
    for kind, argument in steps:
        if kind in ("slice", "index"):
            x = x[argument]
        elif kind == "split":
            x = of.split(x, 2, axis=argument[0])[argument[1]]
        elif kind == "transpose":
            x = of.transpose(x, argument)
        elif kind == "expand":
            x = of.expand_dims(x, argument)
        else:
            x = of.reshape(x, argument)
    return x


found = {"views": 0}


@hypothesis.given(chains(), st.booleans())
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
def random_chain(chain, is_right):
    start, steps, shape, k = chain
    labels = "abcde"[: len(shape)]
    kept = labels.replace(labels[k], "")
    spec = f"{labels[k]}z,{labels}->z{kept}" if is_right else f"{labels},{labels[k]}z->{kept}z"

    def product(x, w, of):
        part = run(steps, x, of)
        return of.einsum(spec, w, part) if is_right else of.einsum(spec, part, w)

    def fun(x, w):
        return product(x, w, jnp)

    rng = np.random.default_rng(len(steps))
    x, w = rng.integers(-2, 3, start).astype(np.float32), rng.integers(-2, 3, (shape[k], 8)).astype(np.float32)
    expected = product(x.astype(np.float64), w.astype(np.float64), np)
    with jax_moye.options(interpret=True):
        equations = viewed_equations(fun, x, w)
        optimized = jax.jit(jax_moye.optimize(fun))
        if equations:
            (equation,) = equations
            views = [view for view in equation.params["views"] if view is not None]
            assert [view.source for view in views] == [aval.aval.shape for aval in equation.invars[is_right:][:1]]
            text = optimized.lower(x, w).as_text()
            assert "custom_call @jax_moye" in text
            assert not re.findall(r"stablehlo\.(?:slice|transpose)", text.split("custom_call @jax_moye")[0])
            found["views"] += 1
        np.testing.assert_array_equal(np.asarray(optimized(x, w), np.float64), expected)


def test_random_chains():
    """A chain of slices, indices, splits, transposes and reshapes, of which kernels read what they can."""
    found["views"] = 0
    random_chain()
    assert found["views"] >= 15


# ----------------------------------------------------------------------------------------- what is no part of an array


def test_what_is_computed_element_by_element_is_not_written_whole():
    """XLA computes the part alone. Where another product reads the array anyway, it is in memory."""
    x, w = jnp.ones((24, 64), jnp.bfloat16), jnp.ones((32, 16), jnp.bfloat16)
    assert not viewed_equations(lambda x, w: jnp.tanh(x)[:, :32] @ w, x, w)
    assert not viewed_equations(lambda x, w: (jnp.tanh(x) + 1).reshape(24, 2, 32)[:, 0] @ w, x, w)

    def also_whole(x, w):
        y = jnp.tanh(x)
        return y[:, :32] @ w, y @ jnp.concatenate([w, w])

    assert len(viewed_equations(also_whole, x, w)) == 1


def test_what_lowering_sees_through_stays():
    x, w = jnp.ones((24, 32), jnp.bfloat16), jnp.ones((16, 32), jnp.bfloat16)
    assert not viewed_equations(lambda x, w: x @ w.T, x, w)
    assert not viewed_equations(lambda x, w: x.reshape(32, 24).T @ w.reshape(32, 16), x, w)


def test_other_products_than_dense_operands_have_are_not_read_in_place():
    """Rows of several matrices would be one launch of many small ones; nor is there a contiguous mode to be lost."""
    x, w = jnp.ones((8, 5, 32), jnp.bfloat16), jnp.ones((32, 16), jnp.bfloat16)
    assert not viewed_equations(lambda x, w: x[:, 1:] @ w, x, w)
    assert len(viewed_equations(lambda x, w: x[:, 1] @ w, x, w)) == 1
    (equation,) = viewed_equations(lambda x, w: x[:, :, ::2] @ w[::2], x, w)
    assert [view is None for view in equation.params["views"]] == [True, False]


def test_the_caller_who_asks_for_xla_or_a_config_gets_the_program_as_it_was():
    x, w = jnp.ones((24, 32), jnp.bfloat16), jnp.ones((32, 48), jnp.bfloat16)
    for options in ({"implementation": "xla"}, {"config": "sm80_multistage_bf16_64x64x64_s3_a16"}):
        assert not viewed_equations(lambda x, w: jax_moye.matmul(x, w[:, :32], **options), x, w)  # noqa: B023


def test_inputs_of_loops_and_calls():
    """XLA copies what a loop is given, the part alone; what a call is given is what is known of it outside."""
    x, w = jnp.ones((24, 32), jnp.bfloat16), jnp.ones((3, 32, 64), jnp.bfloat16)

    def count(fun, *args):
        return str(jax.make_jaxpr(jax_moye.optimize(fun))(*args)).count("jax_moye_viewed")

    def in_scan(x, w):
        return jax.lax.scan(lambda x, w: (x @ w[:, :32], None), x, w)[0]

    assert count(in_scan, x, w) == 0
    inner = jax.jit(lambda x, w: x @ w[:, :32])
    assert count(lambda x, w: inner(x, w[1]), x, w) == 0  # the layer is not in memory
    assert count(inner, x, w[1]) == 1
    assert count(lambda x, w: jax.checkpoint(inner)(x, w), x, w[1]) == 1
    assert count(lambda x, w: inner(x, jnp.tanh(w)), x, w[1]) == 0
    assert count(lambda x, w, p: jax.lax.cond(p, inner, lambda x, w: x, x, w), x, w[1], True) == 1

    def product_in_scan(x, w):
        def body(x, w):
            y = (x @ w).reshape(24, 2, 32)
            return jnp.einsum("ak,bk->ab", y[:, 0], y[:, 1]) @ x, None

        return jax.lax.scan(body, x, w)[0]

    assert count(product_in_scan, x, w) == 1

    def of_a_call(x, w):
        y = jax.jit(lambda x, w: (x @ w, jnp.tanh(w)))(x, w)
        return y[0][:, :32] @ x.T, x @ y[1][:, :32]

    assert count(of_a_call, x, jnp.ones((32, 64), jnp.bfloat16)) == 1


# --------------------------------------------------------------------------------------------------- the way of XLA


def operations(text: str) -> list[str]:
    """Of compiled HLO."""
    return sorted(re.findall(r"= \S+ ([a-z-]+)\(", text))


@pytest.mark.parametrize("name", CASES)
def test_where_xla_computes_it_is_the_program_that_was(name):
    """Without interpret=True no kernel of ours runs here."""
    case = CASES[name]
    operands = integers(case, jnp.bfloat16)
    before, after = (jax.jit(f).lower(*operands).compile() for f in (case.fun, jax_moye.optimize(case.fun)))
    assert "custom_call_target" not in after.as_text()
    assert operations(before.as_text()) == operations(after.as_text())
    np.testing.assert_array_equal(before(*operands), after(*operands))


@pytest.mark.parametrize("name", ["attention of one product", "a bias and an activation", "gate and up of one array"])
def test_derivatives_and_vmap_are_those_of_the_program_that_was(name):
    case = CASES[name]
    operands = integers(case, jnp.float32)

    def loss(fun):
        return lambda *args: jnp.sum(fun(*args) ** 2)

    optimized = jax_moye.optimize(case.fun)
    with jax_moye.options(interpret=True):
        assert viewed_equations(case.fun, *operands)
        every = tuple(range(len(operands)))
        gradients = jax.jit(jax.grad(loss(case.fun), every))(*operands)
        for ours, theirs in zip(jax.grad(loss(optimized), every)(*operands), gradients, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        primals, tangents = tuple(operands), tuple(jnp.ones_like(x) for x in operands)
        pushed = jax.jit(lambda *both: jax.jvp(case.fun, *both))(primals, tangents)
        for ours, theirs in zip(jax.jvp(optimized, primals, tangents), pushed, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
        many = [jnp.stack([x, 2 * x]) for x in operands]
        np.testing.assert_allclose(jax.vmap(optimized)(*many), jax.jit(jax.vmap(case.fun))(*many), rtol=1e-5)
        # Around the derivatives, as it should be: those of the parts are products that read parts, too.
        both = jax_moye.optimize(jax.grad(loss(case.fun), every))
        for ours, theirs in zip(both(*operands), gradients, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_training_step_has_no_slice_of_its_heads():
    """Of a layer that is computed again for its derivative: six products of parts each way, and what reads them."""

    def block(x, w):
        q, k, v = (part[:, :, 0] for part in jnp.split((x @ w).reshape(2, 24, 3, 4, 16), 3, axis=2))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25)
        return jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(2, 24, 64)

    def loss(w, x):
        return jnp.mean(jax.checkpoint(block)(x, w) ** 2)

    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(shape) / 4, jnp.float32) for shape in (H, WQKV))
    step = jax.value_and_grad(loss)
    with jax_moye.options(interpret=True):
        optimized = jax.jit(jax_moye.optimize(step))
        assert movements(optimized.lower(w, x).as_text()).count("stablehlo.slice") == 0
        value, gradient = optimized(w, x)
    assert movements(jax.jit(step).lower(w, x).as_text()).count("stablehlo.slice") >= 6
    wanted, of_wanted = exact(step, (w, x))
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(gradient, of_wanted, rtol=1e-3, atol=1e-6 * float(np.abs(of_wanted).max()))


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("donated", [(), (1,)])
def test_an_array_that_is_updated_in_place_is_read_before(donated):
    """It is c, over which a kernel writes where it is donated, and the part's array: XLA copies one of them then."""

    def fun(x, w):
        return w + x @ w[32:]

    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (64, 32)).astype(np.float32), rng.integers(-2, 3, (64, 64)).astype(np.float32)
    with jax_moye.options(interpret=True):
        (equation,) = viewed_equations(fun, x, w)
        assert equation.invars[1] is equation.invars[2]
        optimized = jax.jit(jax_moye.optimize(fun), donate_argnums=donated)
        assert ("output_operand_aliases" in optimized.lower(x, w).as_text()) == (donated != ())
        np.testing.assert_array_equal(optimized(jnp.asarray(x), jnp.asarray(w)), w + x @ w[32:])


def test_other_readers_keep_their_slices():
    def fun(x, w):
        part = w[:, 16:]
        return x @ part, part + 1

    x, w = jnp.ones((24, 32), jnp.bfloat16), jnp.arange(32 * 48, dtype=jnp.bfloat16).reshape(32, 48) % 7
    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(fun)).lower(x, w)
        (_, ours), text = lowered.compile()(x, w), lowered.as_text()
    assert movements(text) == ["stablehlo.slice"]
    np.testing.assert_array_equal(ours, w[:, 16:] + 1)


# ------------------------------------------------------------------------------------------------- which kernel reads


def lowered_for_cuda(fun, *args, arch=90, **options):
    with jax_moye.options(implementation="moye", **options), jax_moye.cuda_target(arch):
        return jax.jit(jax_moye.optimize(fun)).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def config_of(text):
    return re.findall(r'config = "(\w+)"', text)


def test_the_kernel_is_the_one_of_dense_operands():
    x, whole, part = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 512), (512, 1536), (512, 512)))
    of_part = lowered_for_cuda(lambda x, w: x @ w[:, 512:1024], x, whole)
    of_dense = lowered_for_cuda(lambda x, w: x @ w, x, part)
    assert config_of(of_part) == config_of(of_dense)
    assert "b_offset = 512" in of_part
    assert not movements(of_part)


def test_an_offset_that_16_bytes_do_not_divide_is_read_by_another_kernel():
    x, whole = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((64, 64), (64, 256)))
    text = lowered_for_cuda(lambda x, w: x @ w[:, 1:65], x, whole)
    (name,) = config_of(text)
    (config,) = (config for config in jax_moye.configs() if config.name == name)
    assert config.alignment == 2
    assert "b_offset = 1 " in text
    # An aligned copy is faster, where it is small beside the product.
    x, whole = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8192, 4096), (4096, 8192)))
    text = lowered_for_cuda(lambda x, w: x @ w[:, 1:4097], x, whole)
    if VIEW_TARGET not in text:
        assert movements(text) == ["stablehlo.slice"]


def test_an_offset_of_0_needs_no_new_target():
    """Programs that are saved load where there is none."""
    x, whole = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((64, 64), (64, 256)))
    text = lowered_for_cuda(lambda x, w: x @ w[:, :64], x, whole)
    assert VIEW_TARGET not in text
    assert not movements(text)
    assert "b_strides = dense<[0, 1, 256]>" in text


def test_three_launches_read_parts_that_are_written():
    """Of f32 as 3 x TF32: what is split is computed."""
    x, whole = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 512), (512, 1536)))
    with jax.default_matmul_precision("high"):
        text = lowered_for_cuda(lambda x, w: x @ w[:, 512:1024], x, whole, arch=80)
    if text.count("custom_call @jax_moye") == 3:
        assert VIEW_TARGET not in text


def test_batch_invariant_rows():
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((48, 64), (64, 96)))
    with jax_moye.options(interpret=True, batch_invariant=True):
        fun = jax.jit(jax_moye.optimize(lambda x, w: x @ w[:, 32:]))
        assert VIEW_TARGET in fun.lower(x, w).as_text()
        np.testing.assert_array_equal(fun(x, w)[8:24], fun(x[8:24], w))


def test_explain_says_what_is_decided():
    """The product of the same operands in dense memory."""
    x, whole = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 512), (512, 1536)))
    (gemm,) = jax_moye.explain(jax_moye.optimize(lambda x, w: x @ w[:, 512:1024]), x, whole)
    assert gemm.what == "mk,kn->mn on bfloat16[512, 512] and bfloat16[512, 512] into bfloat16"
    assert gemm.problem.offsets == ()
    (gemm,) = jax_moye.explain(jax_moye.optimize(lambda x, w: jax.nn.relu(x @ w[:, 512:1024])), x, whole)
    assert gemm.epilogue == "relu"


def test_of_equal_products_one_is_decided_and_lowered(monkeypatch):
    decisions = []
    decide = autotune.decide
    monkeypatch.setattr(autotune, "decide", lambda *args: decisions.append(args) or decide(*args))
    monkeypatch.setattr(ffi, "records_calls", lambda: True)  # not of emulated calls

    def fun(x, w, v):
        for _ in range(3):
            x = (x @ w[:, 32:]) @ v[1]
        return x @ w[:, 24:56]  # another offset

    x, w, v = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((24, 32), (32, 64), (2, 32, 32)))
    with jax_moye.options(interpret=True):
        text = jax.jit(jax_moye.optimize(fun)).lower(x, w, v).as_text()
    assert len(decisions) == 3
    assert "b_offset = 24 " in text
    assert "b_offset = 1024 " in text


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("implementation", ["moye", None])
def test_a_function_behind_parts(implementation):
    """A kernel is compiled with it, or computes the product alone: both read the parts in place."""

    def capped(x):
        q, k = x[..., :16], x[..., 16:]
        return 5 * jnp.tanh(jnp.einsum("bqd,bkd->bqk", q, k) / 5)

    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 24, 32)), jnp.bfloat16)
    with jax_moye.options(implementation=implementation, interpret=True):
        lowered = jax.jit(jax_moye.optimize(capped)).lower(x)
        result = np.asarray(lowered.compile()(x), np.float64)
    text = lowered.as_text()
    assert [text.count(VIEW_TARGET), len(movements(text))] == [1, 0]
    assert ('activation = "own"' in text) == (implementation is not None)
    assert bool(re.search(r'config = "\w+_all_f\w+"', text)) == (implementation is not None)
    q, k = np.split(np.asarray(x, np.float64), 2, axis=-1)
    right = 5 * np.tanh(np.einsum("bqd,bkd->bqk", q, k) / 5)
    errors = [np.abs(y - right).max() for y in (result, np.asarray(capped(x), np.float64))]
    assert errors[0] <= max(errors[1], 2**-8 * 5)


# ------------------------------------------------------------------------------------------------------------ exports


def test_a_saved_program():
    case = CASES["attention of one product"]
    operands = integers(case, jnp.bfloat16)
    with jax_moye.options(interpret=True):
        fun = jax.jit(jax_moye.optimize(case.fun))
        expected = np.asarray(fun(*operands))
        declared = [jax.export.DisabledSafetyCheck.custom_call(ffi.TARGET)]
        with pytest.raises(ValueError, match=VIEW_TARGET):
            jax.export.export(fun, disabled_checks=declared)(*operands)
        exported = jax.export.export(fun, disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS)(*operands)
    loaded = jax.export.deserialize(exported.serialize(vjp_order=1))
    assert loaded.mlir_module().count(f"custom_call @{VIEW_TARGET}") == case.views
    np.testing.assert_array_equal(np.asarray(loaded.call(*operands)), expected)


def test_sizes_that_are_not_known_stay():
    (n,) = jax.export.symbolic_shape("n")
    x, w = jax.ShapeDtypeStruct((n, 64), jnp.bfloat16), jax.ShapeDtypeStruct((32, 16), jnp.bfloat16)
    exported = jax.export.export(jax.jit(jax_moye.optimize(lambda x, w: x[:, :32] @ w)))(x, w)
    assert exported.call(jnp.ones((3, 64), jnp.bfloat16), jnp.ones((32, 16), jnp.bfloat16)).shape == (3, 16)
    # A part whose sizes are known, of a product whose are not.
    x, w = jax.ShapeDtypeStruct((n, 32), jnp.bfloat16), jax.ShapeDtypeStruct((32, 48), jnp.bfloat16)
    assert not viewed_equations(lambda x, w: x @ w[:, 16:], x, w)


def test_intercepted_programs():
    h, w = (jnp.ones(shape, jnp.bfloat16) for shape in (H, WQKV))
    with jax_moye.intercept(optimize=True), jax_moye.options(interpret=True):
        text = jax.jit(lambda h, w: attention(h, w)).lower(h, w).as_text()
    assert text.count(f"custom_call @{VIEW_TARGET}") == 2


def test_programs_of_several_devices_stay_right():
    """Arrays of a mesh of one device, in and out of shard_map; what several devices do test_sharding.py says."""
    case = CASES["last columns"]
    x, w = integers(case, jnp.bfloat16)
    mesh, names = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,)), jax.sharding.PartitionSpec("x")
    specs = {"mesh": mesh, "in_specs": (names, jax.sharding.PartitionSpec()), "out_specs": names}
    with jax_moye.options(interpret=True):
        for check_vma in (False, True):  # with it, w is made to vary behind its slice
            fun = jax.jit(jax_moye.optimize(jax.shard_map(case.fun, **specs, check_vma=check_vma)))
            assert VIEW_TARGET in fun.lower(x, w).as_text()
            np.testing.assert_array_equal(fun(x, w), x @ w[:, 16:])
