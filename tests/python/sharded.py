"""Programs on eight devices of the CPU, for test_sharding.py: `python sharded.py check_automatic`.

A process of its own: the number of the CPU's devices is fixed when the backend starts. Operands are small integers, so
that every product and sum is exact and results are compared for equality with NumPy's in float64.
"""

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
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_moye
from jax_moye._primitives.contraction import contract

matmul = functools.partial(jax_moye.matmul, interpret=True, implementation="moye")
contract_of = functools.partial(jax_moye.einsum, interpret=True)
rng = np.random.default_rng(0)


def integers(*shape: int) -> np.ndarray:
    return rng.integers(-2, 3, shape).astype(np.float32)


def make_mesh(axis_type: AxisType, shape=(2, 4), names=("x", "y")):
    size = int(np.prod(shape))
    return jax.make_mesh(shape, names, axis_types=(axis_type,) * len(shape), devices=jax.devices()[:size])


def collectives(hlo: str) -> list[str]:
    """What devices exchange in an optimized program, e.g. "all-reduce f32[16,8]": one for each array, sorted.

    Scalars are left out: how a loss is summed up is XLA's.
    """
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|collective-broadcast|ragged-all-to-all"
    found = []
    for results, kind in re.findall(rf"= (\(.*?\)|\S+) ({kinds})(?:-start)?\(", hlo):
        found += [f"{kind} {array}" for array in re.findall(r"\w+\[[\d,]+\]", results)]
    return sorted(found)


def unordered(collective: str) -> str:
    """The same without the order of the array's two dimensions."""
    return re.sub(r"\[(\d+),(\d+)\]", lambda sizes: f"{sorted(map(int, sizes.groups()))}", collective)


def kernel_calls(hlo: str) -> int:
    return len(re.findall(r'custom_call_target="jax_moye_(?:fused_)?gemm_v1"', hlo))


def place(mesh, array, spec):
    return jax.device_put(array, NamedSharding(mesh, spec))


def run(mesh, fun, operands, specs, out_specs=None):
    """(results, optimized HLO) of a jitted function; out_specs are for an automatic mesh."""
    explicit = set(mesh.axis_types) == {AxisType.Explicit}
    out_shardings = None
    if not explicit and out_specs is not None:
        is_spec = lambda x: isinstance(x, P)  # noqa: E731
        out_shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), out_specs, is_leaf=is_spec)
    with jax.set_mesh(mesh) if explicit else contextlib.nullcontext():
        placed = [place(mesh, x, spec) for x, spec in zip(operands, specs, strict=True)]
        jitted = jax.jit(fun, out_shardings=out_shardings)
        return jitted(*placed), jitted.lower(*placed).compile().as_text()


def check(case, actual, expected):
    assert actual == expected, f"{case}: {actual} and not {expected}"


# ------------------------------------------------------------------------------------------------------ one product

# The shardings of a (16, 32), b (32, 8) and of the result, the collectives of the program. Meshes are x=2, y=4.
PRODUCTS = [
    ("replicated", P(), P(), P(), []),
    ("M", P("x"), P(), P("x"), []),
    ("M over two axes", P(("x", "y")), P(), P(("x", "y")), []),
    ("M and N", P("x"), P(None, "y"), P("x", "y"), []),
    ("N, M only in the result", P(), P(None, "y"), P("x", "y"), []),
    ("K", P(None, "y"), P("y"), P(), ["all-reduce f32[16,8]"]),
    ("K over two axes", P(None, ("x", "y")), P(("x", "y")), P(), ["all-reduce f32[16,8]"]),
    ("M and K", P("x", "y"), P("y"), P("x"), ["all-reduce f32[8,8]"]),
    ("K, result's M", P(None, "y"), P("y"), P("y"), ["reduce-scatter f32[4,8]"]),
    ("K, result's N", P(None, "y"), P("y"), P(None, "y"), ["reduce-scatter f32[16,2]"]),
    ("K over two axes, result's M", P(None, ("x", "y")), P(("x", "y")), P(("x", "y")), ["reduce-scatter f32[2,8]"]),
    (
        "K over two axes, result's M over one",
        P(None, ("x", "y")),
        P(("x", "y")),
        P("y"),
        ["all-reduce f32[4,8]", "reduce-scatter f32[4,8]"],
    ),
    ("M and K, result's M over both", P("x", "y"), P("y"), P(("x", "y")), ["reduce-scatter f32[2,8]"]),
    (
        "M and K, over both the other way",
        P("x", "y"),
        P("y"),
        P(("y", "x")),
        ["collective-permute f32[2,8]", "reduce-scatter f32[2,8]"],
    ),
    ("weight over the batch's axis", P("x"), P("x"), P("x"), ["all-gather f32[32,8]"]),
    ("result gathered", P("x"), P(), P(), ["all-gather f32[16,8]"]),
    ("K of one operand", P(None, "y"), P(), P(), ["all-gather f32[16,32]"]),
    ("K, differently", P(None, "x"), P("y"), P(), ["all-gather f32[16,32]", "all-gather f32[32,8]"]),
]


def check_products():
    """One product in every sharding, by the types of an explicit mesh and by the partitioner."""
    a, b = integers(16, 32), integers(32, 8)
    expected = a.astype(np.float64) @ b
    for axis_type in (AxisType.Explicit, AxisType.Auto):
        mesh = make_mesh(axis_type)
        for case, a_spec, b_spec, out_spec, exchanged in PRODUCTS:
            explicit = axis_type == AxisType.Explicit
            fun = functools.partial(matmul, out_sharding=out_spec) if explicit else matmul
            out, hlo = run(mesh, fun, (a, b), (a_spec, b_spec), out_spec)
            np.testing.assert_array_equal(out, expected, err_msg=case)
            assert out.sharding.is_equivalent_to(NamedSharding(mesh, out_spec), 2), (case, out.sharding)
            check((axis_type, case), collectives(hlo), exchanged)
            check((axis_type, case), kernel_calls(hlo), 1)


# -------------------------------------------------------------------------------------------------- training steps

BATCH = P(("x", "y"))
# Of one layer: shardings of x (16, 32), w (32, 64) and the result; the collectives of a loss, and those that the
# gradients of x and w add.
LAYERS = {
    "DP": (BATCH, P(), BATCH, [], ["all-reduce f32[32,64]"]),
    "FSDP": (BATCH, BATCH, BATCH, ["all-gather f32[32,64]"], ["reduce-scatter f32[4,64]"]),
    "TP-column": (P(), P(None, "y"), P(None, "y"), [], ["all-reduce f32[16,32]"]),
    "TP-row": (P(None, "y"), P("y"), P(), ["all-reduce f32[16,64]"], []),
    "TP-row, scattered": (
        P(None, "y"),
        P("y"),
        P("y"),
        ["reduce-scatter f32[4,64]"],
        ["all-gather f32[16,64]"],
    ),
    "DPxTP": (P("x"), P(None, "y"), P("x", "y"), [], ["all-reduce f32[32,16]", "all-reduce f32[8,32]"]),
}


def check_layers():
    """The losses and gradients of one layer, under the usual parallelisms."""
    x, w, t = integers(16, 32), integers(32, 64), integers(16, 64)
    x64, w64, t64 = (z.astype(np.float64) for z in (x, w, t))
    expected_loss, expected_gradients = (x64 @ w64 * t64).sum(), (t64 @ w64.T, x64.T @ t64)
    for axis_type in (AxisType.Explicit, AxisType.Auto):
        mesh = make_mesh(axis_type)
        for case, (x_spec, w_spec, out_spec, forward, backward) in LAYERS.items():
            product = matmul
            if axis_type == AxisType.Explicit:
                product = functools.partial(matmul, out_sharding=out_spec)

            def loss(x, w, t, product=product):
                return (product(x, w) * t).sum()

            specs = (x_spec, w_spec, out_spec)
            value, hlo = run(mesh, loss, (x, w, t), specs, P())
            np.testing.assert_array_equal(value, expected_loss)
            check((axis_type, case, "loss"), collectives(hlo), sorted(forward))

            fun = jax.value_and_grad(loss, (0, 1))
            (value, gradients), hlo = run(mesh, fun, (x, w, t), specs, (P(), (x_spec, w_spec)))
            np.testing.assert_array_equal(value, expected_loss)
            for gradient, wanted, spec in zip(gradients, expected_gradients, specs, strict=False):
                np.testing.assert_array_equal(gradient, wanted)
                assert gradient.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2), (case, gradient.sharding)
            check((axis_type, case, "gradients"), collectives(hlo), sorted(forward + backward))
            check((axis_type, case), kernel_calls(hlo), 3)


def explicit_mlp(x, w1, w2, t, *, hidden, out):
    """A loss of two layers; `hidden` and `out` are shardings."""
    between = jax.nn.relu(matmul(x, w1, out_sharding=hidden))
    return (matmul(between, w2, out_sharding=out) * t).sum()


def automatic_mlp(x, w1, w2, t, *, hidden, out):
    del out
    # Without a constraint the partitioner may split the gradient in another way.
    between = jax.nn.relu(lax.with_sharding_constraint(matmul(x, w1), hidden))
    return (matmul(between, w2) * t).sum()


# Of two layers: shardings of x (16, 32), w1 (32, 64), w2 (64, 8) and t (16, 8), then of what is between the layers; the
# collectives of the loss, and those that the gradients of w1 and w2 add.
MLPS = {
    "FSDP": (
        (BATCH, BATCH, BATCH, BATCH),
        BATCH,
        ["all-gather f32[32,64]", "all-gather f32[64,8]"],
        ["reduce-scatter f32[4,64]", "reduce-scatter f32[8,8]"],
    ),
    "DPxTP": (
        (P("x"), P(None, "y"), P("y"), P("x")),
        P("x", "y"),
        ["all-reduce f32[8,8]"],
        ["all-reduce f32[16,8]", "all-reduce f32[32,16]"],
    ),
    "FSDPxTP": (
        (P("x"), P("x", "y"), P("y", "x"), P("x")),
        P("x", "y"),
        ["all-gather f32[16,8]", "all-gather f32[32,16]", "all-reduce f32[8,8]"],
        ["reduce-scatter f32[16,16]", "reduce-scatter f32[16,4]"],
    ),
}


def check_mlps():
    """A training step of two layers, the first one's output split as the second one's input."""
    operands = x, w1, w2, t = integers(16, 32), integers(32, 64), integers(64, 8), integers(16, 8)
    before = x.astype(np.float64) @ w1
    hidden = np.maximum(before, 0)
    expected_loss = (hidden @ w2 * t).sum()
    expected_gradients = x.T @ ((t @ w2.T.astype(np.float64)) * (before > 0)), hidden.T @ t
    for axis_type in (AxisType.Explicit, AxisType.Auto):
        mesh = make_mesh(axis_type)
        for case, (specs, hidden_spec, forward, backward) in MLPS.items():
            mlp = explicit_mlp if axis_type == AxisType.Explicit else automatic_mlp
            hidden_sharding, out_sharding = NamedSharding(mesh, hidden_spec), NamedSharding(mesh, specs[3])
            loss = functools.partial(mlp, hidden=hidden_sharding, out=out_sharding)
            value, hlo = run(mesh, loss, operands, specs, P())
            np.testing.assert_array_equal(value, expected_loss)
            check((axis_type, case, "loss"), collectives(hlo), sorted(forward))
            fun = jax.value_and_grad(loss, (1, 2))
            (value, gradients), hlo = run(mesh, fun, operands, specs, (P(), specs[1:3]))
            np.testing.assert_array_equal(value, expected_loss)
            for gradient, wanted, spec in zip(gradients, expected_gradients, specs[1:3], strict=True):
                np.testing.assert_array_equal(gradient, wanted)
                assert gradient.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2), (case, gradient.sharding)
            check((axis_type, case, "gradients"), collectives(hlo), sorted(forward + backward))
            check((axis_type, case), kernel_calls(hlo), 5)

        # Layers that are alike are traced and lowered once.
        with jax.set_mesh(mesh) if axis_type == AxisType.Explicit else contextlib.nullcontext():
            layers = [place(mesh, w, P(None, None)) for w in (integers(32, 32), integers(32, 32), integers(32, 32))]
            lowered = jax.jit(lambda x, ws: functools.reduce(matmul, ws, x)).lower(place(mesh, x, P("x")), layers)
        check("like layers", len(re.findall("CustomSPMDPartitioning|manual_computation", lowered.as_text())), 1)


# ---------------------------------------------------------------------------------------------------------- optimize


def check_optimized():
    """Whole programs of JAX's own products: the same values, shardings and collectives, and our kernels."""
    operands = x, w1, w2, t = integers(16, 32), integers(32, 64), integers(64, 8), integers(16, 8)
    before = x.astype(np.float64) @ w1
    hidden = np.maximum(before, 0)
    gradients = x.T @ ((t @ w2.T.astype(np.float64)) * (before > 0)), hidden.T @ t
    updated = w1 - 0.5 * gradients[0], w2 - 0.5 * gradients[1]
    mesh = make_mesh(AxisType.Auto)
    our_kernels = functools.partial(jax_moye.options, interpret=True, implementation="moye")
    for case, (specs, hidden_spec, forward, backward) in MLPS.items():
        between = NamedSharding(mesh, hidden_spec)

        def loss(x, w1, w2, t, between=between):
            h = jax.nn.relu(lax.with_sharding_constraint(x @ w1, between))
            return ((h @ w2) * t).sum()

        def step(x, w1, w2, t, loss=loss):
            value, of_weights = jax.value_and_grad(loss, (1, 2))(x, w1, w2, t)
            return value, tuple(w - 0.5 * g for w, g in zip((w1, w2), of_weights, strict=True))

        with our_kernels():
            (value, weights), hlo = run(mesh, jax_moye.optimize(step), operands, specs, (P(), specs[1:3]))
        np.testing.assert_array_equal(value, (hidden @ w2 * t).sum())
        for weight, wanted, spec in zip(weights, updated, specs[1:3], strict=True):
            np.testing.assert_array_equal(weight, wanted)
            assert weight.sharding.is_equivalent_to(NamedSharding(mesh, spec), 2), (case, weight.sharding)
        # A gradient is exchanged before it is transposed.
        as_exchanged = [[unordered(one) for one in found] for found in (collectives(hlo), forward + backward)]
        check((case, "optimized"), *map(sorted, as_exchanged))
        check((case, "optimized"), kernel_calls(hlo), 5)

    # Inside shard_map a kernel takes in what stands behind the product there.
    for axis_type in (AxisType.Explicit, AxisType.Auto):
        mesh = make_mesh(axis_type)
        for check_vma in (True, False):

            def local(x, w, b):
                return jax.nn.relu(lax.psum(x @ w, "y") + b) + jax.nn.relu(0.5 * (x @ w) + b[0])

            def columns(x, w, b):
                return jax.nn.relu(x @ w + b)

            b, specs = integers(64), (P("x"), P(None, "y"), P("y"))
            fun = jax.shard_map(columns, mesh=mesh, in_specs=specs, out_specs=P("x", "y"), check_vma=check_vma)
            with our_kernels():
                out, hlo = run(mesh, jax_moye.optimize(fun), (x, w1, b), specs)
            np.testing.assert_array_equal(out, np.maximum(before + b, 0))
            check(("shard_map", check_vma), (collectives(hlo), kernel_calls(hlo)), ([], 1))
            assert "maximum" not in hlo

            specs = P("x", "y"), P("y"), P()
            fun = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P("x", "y"), check_vma=check_vma)
            with our_kernels():
                out, hlo = run(mesh, jax_moye.optimize(fun), (x, w1, b), specs)
            wanted, _ = run(mesh, fun, (x, w1, b), specs)
            np.testing.assert_array_equal(out, wanted)
            check(("psum", check_vma), (collectives(hlo), kernel_calls(hlo)), (["all-reduce f32[8,64]"], 2))


# -------------------------------------------------------------------------------------------------------- transforms


def check_transforms():
    """Under vmap, scan and checkpoint, with a third operand, and with a transpose in front."""
    auto, explicit = make_mesh(AxisType.Auto), make_mesh(AxisType.Explicit)
    x, w = integers(8, 16, 32), integers(32, 8)
    expected = x.astype(np.float64) @ w
    for mesh in (auto, explicit):
        out, hlo = run(mesh, jax.vmap(matmul, (0, None)), (x, w), (P("x"), P(None, "y")), P("x", None, "y"))
        np.testing.assert_array_equal(out, expected)
        check("vmap over a split dimension", (collectives(hlo), kernel_calls(hlo)), ([], 1))

    def constrained(x, w):
        return lax.with_sharding_constraint(matmul(x, w), NamedSharding(auto, P(None, "y")))

    out, hlo = run(auto, jax.vmap(constrained, (0, None), spmd_axis_name="x"), (x, w), (P("x"), P(None, "y")))
    np.testing.assert_array_equal(out, expected)
    assert out.sharding.is_equivalent_to(NamedSharding(auto, P("x", None, "y")), 3)
    check("vmap with spmd_axis_name", (collectives(hlo), kernel_calls(hlo)), ([], 1))

    # A loop whose body sums over a split dimension: the collective is inside, written once.
    steps = integers(3, 16, 16) // 2

    def scanned(x, steps):
        body = jax.checkpoint(lambda x, w: (matmul(x, w), None))
        return lax.scan(body, x, steps)[0]

    h = integers(8, 16)
    expected_scan = functools.reduce(np.matmul, steps.astype(np.float64), h.astype(np.float64))
    out, hlo = run(auto, scanned, (h, steps), (P("x"), P(None, "y")), P("x"))
    np.testing.assert_array_equal(out, expected_scan)
    check("scan", kernel_calls(hlo), 1)
    out, hlo = run(explicit, scanned, (h, steps), (P("x"), P()))
    np.testing.assert_array_equal(out, expected_scan)
    check("scan", (collectives(hlo), kernel_calls(hlo)), ([], 1))
    total = lambda h, steps: scanned(h, steps).sum()  # noqa: E731
    gradient, hlo = run(auto, jax.grad(total, 1), (h, steps), (P("x"), P()), P())
    first, second, third = steps.astype(np.float64)
    ones = np.ones((8, 16))
    expected_gradient = [
        h.T @ ones @ third.T @ second.T,
        (h @ first).T @ ones @ third.T,
        (h @ first @ second).T @ ones,
    ]
    np.testing.assert_array_equal(gradient, expected_gradient)
    check("gradient of scan", kernel_calls(hlo), 3)

    a, b, c = integers(16, 32), integers(32, 8), integers(16, 8)

    def add_product(a, b, c, out_sharding=None):
        return contract(
            "mk,kn->mn",
            a,
            b,
            c,
            beta=3.0,
            out_dtype="float32",
            precision=None,
            out_sharding=out_sharding,
            config=None,
            implementation="moye",
            interpret=jax_moye.InterpretParams(),
        )

    summed = a.astype(np.float64) @ b + 3 * c
    for specs, out_spec, exchanged in (
        ((P("x"), P(None, "y"), P("x", "y")), P("x", "y"), []),
        ((P(None, "y"), P("y"), P()), P(), ["all-reduce f32[16,8]"]),
        ((P(None, "y"), P("y"), P("y")), P("y"), ["reduce-scatter f32[4,8]"]),
    ):
        out, hlo = run(auto, add_product, (a, b, c), specs, out_spec)
        np.testing.assert_array_equal(out, summed)
        check(("c", out_spec), collectives(hlo), exchanged)
        sharding = NamedSharding(explicit.abstract_mesh, out_spec)
        out, hlo = run(explicit, functools.partial(add_product, out_sharding=sharding), (a, b, c), specs)
        np.testing.assert_array_equal(out, summed)
        check(("c", out_spec), collectives(hlo), exchanged)

    for mesh in (auto, explicit):
        out, hlo = run(mesh, lambda a, b: matmul(a.T, b), (a.T.copy(), b), (P(None, "x"), P(None, "y")), P("x", "y"))
        np.testing.assert_array_equal(out, a @ b)
        assert not re.search(r"= \S+ (?:transpose|copy)\(", hlo), hlo


# --------------------------------------------------------------------------------------------- meshes of other kinds


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


# --------------------------------------------------------------------------------------------------------- processes


def check_processes(port: str, process: str):
    """One of two processes with two devices each, which talk to each other: the same programs on a mesh of both."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"localhost:{port}", num_processes=2, process_id=int(process), initialization_timeout=60, local_device_ids=None
    )
    assert jax.process_count() == 2
    assert (jax.device_count(), jax.local_device_count()) == (4, 2)
    a, b = integers(16, 32), integers(32, 8)  # the same in both processes
    expected = a.astype(np.float64) @ b
    for axis_type in (AxisType.Explicit, AxisType.Auto):
        mesh = make_mesh(axis_type, (2, 2))
        for a_spec, b_spec, out_spec, exchanged in (
            (P("x"), P(None, "y"), P("x", "y"), []),
            (P(None, "x"), P("x"), P(), ["all-reduce f32[16,8]"]),
            (P("y", "x"), P("x"), P(("y", "x")), ["reduce-scatter f32[4,8]"]),
            (P("x"), P("x"), P("x"), ["all-gather f32[32,8]"]),
        ):
            fun = functools.partial(matmul, out_sharding=out_spec) if axis_type == AxisType.Explicit else matmul
            out, hlo = run(mesh, fun, (a, b), (a_spec, b_spec), out_spec)
            check((axis_type, a_spec, "processes"), (collectives(hlo), kernel_calls(hlo)), (exchanged, 1))
            assert len(out.addressable_shards) == 2
            for shard in out.addressable_shards:
                np.testing.assert_array_equal(shard.data, expected[shard.index])
    jax.distributed.shutdown()


if __name__ == "__main__":
    warnings.simplefilter("error")
    globals()[sys.argv[1]](*sys.argv[2:])
