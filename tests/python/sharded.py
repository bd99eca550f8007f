"""Programs on eight devices of the CPU, for test_sharding.py: `python sharded.py check_automatic`.

A process of its own: the number of the CPU's devices is fixed when the backend starts. Operands are small integers, so
that every product and sum is exact and results are compared for equality with NumPy's in float64.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import warnings

import jax
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
