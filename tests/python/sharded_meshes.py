"""Programs on eight devices, as those of sharded.py: shard_map, meshes of other kinds, shapes, precision, errors."""

from __future__ import annotations

import contextlib
import functools
import logging
import pathlib
import re
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from python.sharded import check, collectives, contract_of, integers, kernel_calls, make_mesh, matmul, place, rng, run

import jax_moye
from jax_moye._primitives.contraction import contract


def check_shard_map():
    """Over all axes, with replication checks, the kernel runs on what is there; over some axes XLA computes."""
    mesh = make_mesh(AxisType.Auto)
    a, b = integers(16, 32), integers(32, 8)
    expected = a.astype(np.float64) @ b
    f = jax.shard_map(matmul, mesh=mesh, in_specs=(P("x"), P(None, "y")), out_specs=P("x", "y"))
    out, hlo = run(mesh, f, (a, b), (P("x"), P(None, "y")))
    np.testing.assert_array_equal(out, expected)
    check("shard_map", (collectives(hlo), kernel_calls(hlo)), ([], 1))
    gradients, hlo = run(mesh, jax.grad(lambda a, b: f(a, b).sum(), (0, 1)), (a, b), (P("x"), P(None, "y")))
    np.testing.assert_array_equal(gradients[0], np.broadcast_to(b.sum(1), (16, 32)))
    np.testing.assert_array_equal(gradients[1], np.broadcast_to(a.sum(0)[:, None], (32, 8)))
    check("gradients of shard_map", collectives(hlo), ["all-reduce f32[32,2]", "all-reduce f32[8,32]"])

    def scattered(a, b):
        return lax.psum_scatter(matmul(a, b), "y", scatter_dimension=0, tiled=True)

    g = jax.shard_map(scattered, mesh=mesh, in_specs=(P(None, "y"), P("y")), out_specs=P("y"))
    out, hlo = run(mesh, g, (a, b), (P(None, "y"), P("y")))
    np.testing.assert_array_equal(out, expected)
    check("shard_map with K split", collectives(hlo), ["reduce-scatter f32[4,8]"])

    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.getLogger("jax_moye")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    partly = functools.partial(jax.shard_map, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
    falls_back = functools.partial(jax_moye.matmul, interpret=True)
    for _ in range(2):
        out, hlo = run(mesh, partly(lambda a, b: falls_back(a, b)), (a, b), (P("x"), P(None, "y")))
        np.testing.assert_array_equal(out, expected)
        check("shard_map over some axes", kernel_calls(hlo), 0)
    logger.removeHandler(handler)
    assert len(messages) == 1, messages
    assert "['y'] are not manual in this shard_map" in messages[0], messages
    expect_error(NotImplementedError, r"\['y'\] are not manual", run, mesh, partly(matmul), (a, b), (P("x"), P()))


def expect_error(kind, pattern, fun, *args):
    try:
        fun(*args)
    except kind as error:
        message = str(error)
    else:
        raise AssertionError(f"no {kind.__name__}: {pattern}")
    assert re.search(pattern, message, re.DOTALL), message


def check_other_meshes():
    """Meshes that are partly explicit, of six devices, and several in one program."""
    a, b = integers(12, 24), integers(24, 12)
    expected = a.astype(np.float64) @ b
    falls_back = functools.partial(jax_moye.matmul, interpret=True)
    mixed = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with jax.set_mesh(mixed):
        jitted = jax.jit(functools.partial(falls_back, out_sharding=P("x")))
        for a_spec, b_spec in ((P("x"), P()), (P("x"), P(None, "x")), (P(), P("x"))):
            out = jitted(place(mixed, a, a_spec), place(mixed, b, b_spec))
            np.testing.assert_array_equal(out, expected)
            assert jax.typeof(out).sharding.spec == P("x", None)
        reason = "some axes of the mesh are explicit"
        expect_error(NotImplementedError, reason, jax.jit(matmul), place(mixed, a, P("x")), b)

    # Six devices have meshes 2x3 and 3x2, whose parts lie on different devices.
    for shape in ((2, 3), (3, 2), (6, 1)):
        mesh = make_mesh(AxisType.Auto, shape)
        for a_spec, b_spec, out_spec, exchanged in (
            (P("x"), P(None, "y"), P("x", "y"), []),
            (P("x", "y"), P("y"), P("x"), [f"all-reduce f32[{12 // shape[0]},12]"] if shape[1] > 1 else []),
            (P(("y", "x")), P(), P(("y", "x")), []),
        ):
            out, hlo = run(mesh, matmul, (a, b), (a_spec, b_spec), out_spec)
            np.testing.assert_array_equal(out, expected)
            check((shape, a_spec), collectives(hlo), exchanged)

    # Results and operands without dimensions.
    mesh = make_mesh(AxisType.Auto)
    v, scalar = integers(16), integers()
    for fun, args, specs in (
        (matmul, (v, v), (P("x"), P("x"))),
        (jax.grad(lambda v, w: matmul(v, w).astype(jnp.float32)), (v, v), (P("x"), P("x"))),
        (lambda s, v: contract_of(",k->k", s, v), (scalar, v), (P(), P("x"))),
    ):
        out, _ = run(mesh, fun, args, specs)
        np.testing.assert_array_equal(out, fun(*args))

    # Partial sums in a type, which are added up where the program says so.
    mesh = make_mesh(AxisType.Explicit)

    def summed_later(a, b, product=falls_back):
        partial_sums = product(a, b, out_sharding=P(None, None, unreduced={"y"}))
        assert jax.typeof(partial_sums).sharding.spec.unreduced == {"y"}
        return jax.sharding.reshard(partial_sums, P())

    split_k = (P(None, "y"), P("y"))
    out, hlo = run(mesh, summed_later, (a, b), split_k)
    np.testing.assert_array_equal(out, expected)
    check("partial sums", (collectives(hlo), kernel_calls(hlo)), (["all-reduce f32[12,12]"], 0))
    insisting = functools.partial(summed_later, product=matmul)
    expect_error(NotImplementedError, "partial sums in a type", run, mesh, insisting, (a, b), split_k)

    # What the partitioner calls back does not depend on where the program is compiled.
    mesh = make_mesh(AxisType.Auto)
    placed = place(mesh, a, P(None, "y")), place(mesh, b, P("y"))
    lowered = jax.jit(matmul).lower(*placed)
    for other in (make_mesh(AxisType.Explicit), mesh):
        with jax.set_mesh(other):
            compiled = lowered.compile()
        np.testing.assert_array_equal(compiled(*placed), expected)

    # The partitioner before Shardy, which newer versions of JAX may not have any more.
    if hasattr(jax.config, "jax_use_shardy_partitioner"):
        mesh = make_mesh(AxisType.Auto)
        jax.config.update("jax_use_shardy_partitioner", False)
        out, hlo = run(mesh, falls_back, (a, b), (P(None, "y"), P("y")), P("y"))
        jax.config.update("jax_use_shardy_partitioner", True)
        np.testing.assert_array_equal(out, expected)
        check("GSPMD", kernel_calls(hlo), 0)

    # One program, two meshes of the same devices: with common parts, and with none.
    for first, second, calls in (((2, 4), (8, 1), 1), ((2, 3), (3, 2), 1)):
        first, second = make_mesh(AxisType.Auto, first), make_mesh(AxisType.Auto, second, ("u", "v"))
        a, b = integers(24, 24), integers(24, 24)
        placed = place(first, a, P("x")), place(second, b, P(None, "u"))
        jitted = jax.jit(matmul)
        np.testing.assert_array_equal(jitted(*placed), a.astype(np.float64) @ b)
        check("two meshes", kernel_calls(jitted.lower(*placed).compile().as_text()), calls)


def check_einsum_of_two_shardings():
    """Where only one operand's batch is sharded, jnp.einsum says whether the result's is."""
    mesh = make_mesh(AxisType.Explicit)
    operands = integers(4, 8, 8), integers(4, 8, 8)
    with jax.set_mesh(mesh):
        for specs in ((P("x"), P()), (P(), P("x")), (P("x"), P(None, "x")), (P("x"), P("x"))):
            a, b = map(jax.device_put, operands, specs)
            for subscripts in ("bij,bjk->bik", "bij,bkj->kbi", "bij,bjk->bki", "bij,bjk->ibk"):
                found = []
                for einsum in (jnp.einsum, functools.partial(jax_moye.einsum, interpret=True)):
                    try:
                        out = einsum(subscripts, a, b)
                        found.append((jax.typeof(out), np.asarray(out).tolist()))
                    except Exception as error:
                        found.append(type(error))
                check(f"{subscripts} of {specs}", found[1], found[0])


def check_shapes():
    """Sizes that the devices do not divide, products that are one matrix product only in parts, nothing at all."""
    auto, explicit = make_mesh(AxisType.Auto), make_mesh(AxisType.Explicit)
    a, b = integers(16, 32), integers(32, 8)
    for mesh in (auto, explicit):
        expect_error(ValueError, "divi(sible|de)", place, mesh, integers(15, 32), P("x"))

    # The partitioner may split what is left of a split array.
    for m, k, n in ((13, 32, 8), (16, 30, 8), (16, 32, 7), (13, 29, 7), (1, 1, 1), (3, 2, 5)):

        def sliced(a, b, m=m, k=k, n=n):
            return matmul(a[:m, :k], b[:k, :n])

        for a_spec, b_spec in ((P("x", "y"), P("y")), (P("y"), P(None, "x")), (P(None, "y"), P("y", "x"))):
            out, _ = run(auto, sliced, (a, b), (a_spec, b_spec))
            np.testing.assert_array_equal(out, a[:m, :k].astype(np.float64) @ b[:k, :n])

    # Five dimensions of the left operand, in an order that no strides express, unless one of them has size 1.
    x, w = integers(2, 4, 3, 2, 3, 16), integers(16, 8)
    expected = np.einsum("abcdek,kn->edcban", x.astype(np.float64), w)

    def product(x, w, implementation="moye"):
        return contract(
            "abcdek,kn->edcban",
            x,
            w,
            out_dtype="float32",
            precision=None,
            out_sharding=None,
            config=None,
            implementation=implementation,
            interpret=jax_moye.InterpretParams(),
        )

    for mesh in (auto, explicit):
        out, hlo = run(mesh, product, (x, w), (P("x"), P()), P(None, None, None, None, "x"))
        np.testing.assert_array_equal(out, expected)
        check("served in parts", kernel_calls(hlo), 1)
        out, hlo = run(mesh, functools.partial(product, implementation=None), (x, w), (P(), P(None, "y")))
        np.testing.assert_array_equal(out, expected)
        check("not served in parts", kernel_calls(hlo), 0)
        error = NotImplementedError if mesh is explicit else jax.errors.JaxRuntimeError
        expect_error(error, "more than one matrix multiplication", run, mesh, product, (x, w), (P(), P(None, "y")))

    for mesh in (auto, explicit):
        for m, k, n in ((0, 8, 8), (8, 0, 8)):
            operands = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
            out, _ = run(mesh, matmul, operands, (P("x"), P()))
            np.testing.assert_array_equal(out, np.zeros((m, n)))


def check_precision():
    """Parts of a sum are rounded to the result's dtype before they are added up, as XLA's are."""
    mesh = make_mesh(AxisType.Auto)
    a, b = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((16, 64), (64, 8)))
    a64, b64 = (np.asarray(x).astype(np.float64) for x in (a, b))
    magnitude = np.abs(a64) @ np.abs(b64)
    for out_dtype, unit in (("bfloat16", 2.0**-8), ("float32", 2.0**-24)):
        fun = functools.partial(matmul, preferred_element_type=out_dtype)
        out, hlo = run(mesh, fun, (a, b), (P(None, ("x", "y")), P(("x", "y"))), P())
        error = np.abs(np.asarray(out).astype(np.float64) - a64 @ b64)
        assert (error <= (16 * unit + 64 * 2.0**-24) * magnitude).all(), error.max()
        check(out_dtype, (len(collectives(hlo)), kernel_calls(hlo)), (1, 1))


def check_errors_and_export():
    """What raises, and what can be saved."""
    auto, explicit = make_mesh(AxisType.Auto), make_mesh(AxisType.Explicit)
    a, b = integers(16, 32), integers(32, 8)
    split = (P(None, "y"), P("y"))
    expect_error(Exception, "Contracting dimensions are sharded.*out_sharding", run, explicit, matmul, (a, b), split)
    compiled_only = functools.partial(jax_moye.matmul, implementation="moye")
    for mesh in (auto, explicit):
        reason = "partitioned over 8 devices.*only with interpret=True"
        expect_error(NotImplementedError, reason, run, mesh, compiled_only, (a, b), (P("x"), P()))
        out, hlo = run(mesh, jax_moye.matmul, (a, b), (P("x"), P()))
        np.testing.assert_array_equal(out, a @ b)
        assert "CustomSPMDPartitioning" not in hlo
    config = next(row.name for row in jax_moye.configs() if row.dtype == "bf16")
    named = functools.partial(jax_moye.matmul, interpret=True, config=config)
    expect_error(ValueError, "cannot compute", run, explicit, named, (a, b), (P("x"), P()))
    expect_error(jax.errors.JaxRuntimeError, "cannot compute", run, auto, named, (a, b), (P("x"), P()))

    checks = [jax.export.DisabledSafetyCheck.custom_call("jax_moye_gemm_v1")]

    def export(mesh, fun):
        with jax.set_mesh(mesh) if mesh is explicit else contextlib.nullcontext():
            operands = place(mesh, a, P("x")), place(mesh, b, P(None, "y"))
            exported = jax.export.export(jax.jit(fun), disabled_checks=checks)(*operands)
            return jax.jit(exported.call)(*operands)

    np.testing.assert_array_equal(export(explicit, matmul), a @ b)
    mapped = jax.shard_map(matmul, mesh=auto, in_specs=(P("x"), P(None, "y")), out_specs=P("x", "y"))
    np.testing.assert_array_equal(export(auto, mapped), a @ b)
    np.testing.assert_array_equal(export(auto, jax_moye.matmul), a @ b)  # XLA's on a CPU
    expect_error(NotImplementedError, "jax.export cannot save.*explicit mesh", export, auto, matmul)


def check_docs():
    """The code of docs/sharding.md runs, and does what its comments say."""
    page = pathlib.Path(__file__).parents[2] / "docs" / "sharding.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(code, page, "exec"), names)
    np.testing.assert_array_equal(names["y"], 128)
    # XLA's CPU backend exchanges bf16 as f32.
    for result, kind in (("y", "all-reduce f32[32,32]"), ("z", "reduce-scatter f32[32,8]")):
        fun = functools.partial(matmul, out_sharding=names[result].sharding)
        _, hlo = run(names["mesh"], fun, (names["x"], names["w"]), (P("data", "model"), P("model")))
        check(result, collectives(hlo), [kind])


if __name__ == "__main__":
    warnings.simplefilter("error")
    globals()[sys.argv[1]](*sys.argv[2:])
