"""block_scaled_p: values against float64, one call under JAX's transformations, derivatives, and who computes it."""

import functools
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from python.block_scales import FAKE
from python.measured import emulated
from python.support import UNIT, lowered_text

import jax_moye
from jax_moye import _compat
from jax_moye._api import arguments
from jax_moye._inspect.report import measure_gemm
from jax_moye._kernels import devices, ffi
from jax_moye._kernels.configs import block_scaled_configs
from jax_moye._primitives import autotune, contests
from jax_moye._primitives import block_scaled as module
from jax_moye._selection import block_scaled, capability, measurements
from jax_moye._selection.entry import Entry, parse_entry
from jax_moye._timing.rounds import Contender
from jax_moye._tune.tune import tune_products

scaled_matmul = jax_moye.scaled_matmul
KERNEL = dict(implementation="moye", interpret=True)
TARGET = f"@{ffi.BLOCK_SCALED_TARGET}"
needs_rows = pytest.mark.skipif(not block_scaled_configs(), reason="no such row in this build")
# Who computes: XLA, from dequantized operands, or the kernel.
WAYS = [pytest.param({}, id="xla"), pytest.param(KERNEL, id="kernel", marks=needs_rows)]
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
B, M, N, K = 2, 70, 133, 384


def args_of(rng, dtypes=(E4M3, E4M3), of_columns=True, scales="float32", sizes=(B, M, N, K)):
    """Operands and scales that differ by up to 2^16 between blocks."""
    batch, m, n, k = sizes
    operands = [rng.standard_normal((batch, x, k)).astype(dtype) for x, dtype in zip((m, n), dtypes, strict=True)]
    rows = (m, n if of_columns else -(-n // 128))
    found = [np.exp2(rng.integers(-8, 9, (batch, x, k // 128))) * (1 + rng.random((batch, x, k // 128))) for x in rows]
    if scales == "float8_e8m0fnu":
        found = [np.exp2(np.floor(np.log2(x))) for x in found]
    return [jnp.asarray(x) for x in (*operands, *(x.astype(scales) for x in found))]


def widened(lhs, rhs, lhs_scales, rhs_scales):
    """Operands times their scales, in float64."""
    lhs, rhs, lhs_scales, rhs_scales = (np.asarray(x).astype(np.float64) for x in (lhs, rhs, lhs_scales, rhs_scales))
    if rhs_scales.shape[1] != rhs.shape[1]:
        rhs_scales = np.repeat(rhs_scales, 128, 1)[:, : rhs.shape[1]]
    block = lhs.shape[2] // lhs_scales.shape[2]
    return lhs * np.repeat(lhs_scales, block, 2), rhs * np.repeat(rhs_scales, block, 2)


def assert_close(found, *args):
    """Within a few roundings of f32 of each sum, and one to the result's dtype. (The emulator sums in f32.)"""
    lhs, rhs = widened(*args)
    exact, magnitude = (np.einsum("bmk,bnk->bmn", *pair) for pair in ((lhs, rhs), (abs(lhs), abs(rhs))))
    bound = (lhs.shape[2] + 8) * 2.0**-24 * magnitude + 1.01 * UNIT[str(found.dtype)] * abs(exact)
    assert (abs(np.asarray(found).astype(np.float64) - exact) <= bound).all()


# -------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of_columns", [True, False], ids=["columns", "blocks"])
@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E5M2, E5M2), (E4M3, E5M2), (E5M2, E4M3)], ids=str)
def test_values(rng, dtypes, of_columns, way):
    args = args_of(rng, dtypes, of_columns)
    if way and not any(row.dtype == _short(dtypes) for row in block_scaled_configs()):
        pytest.skip("no such row in this build")
    for out in ("float32", "bfloat16"):
        found = scaled_matmul(*args, preferred_element_type=out, **way)
        assert found.dtype == out
        assert_close(found, *args)


def _short(dtypes):
    names = [{E4M3: "e4m3", E5M2: "e5m2"}[dtype] for dtype in dtypes]
    return names[0] if names[0] == names[1] else "x".join(names)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scales", ["bfloat16", "float8_e8m0fnu"])
def test_dtypes_of_scales(rng, scales, way):
    args = args_of(rng, scales=scales)
    assert_close(scaled_matmul(*args, **way), *args)


@needs_rows
@pytest.mark.parametrize("sizes", [(1, 1, 1, 128), (1, 65, 128, 256), (3, 128, 127, 128), (1, 129, 257, 640)])
def test_sizes(rng, sizes):
    for of_columns in (True, False):
        args = args_of(rng, of_columns=of_columns, sizes=sizes)
        if sizes[3] == 128:  # one block is a product with scales of rows: the kernel is called below it
            found = jax.jit(functools.partial(_bound, **KERNEL))(*args)
        else:
            found = scaled_matmul(*args, **KERNEL)
        assert_close(found, *args)


def _bound(*args, **options):
    params = dict(config=None, implementation=None, interpret=None, deterministic=False, batch_invariant=False)
    options["interpret"] = jax_moye.InterpretParams() if options.get("interpret") else None
    return module.multiply_blocks(*args, out_dtype=jnp.dtype("float32"), autotune=None, **params | options)


@needs_rows
def test_one_call_and_no_copy_of_an_operand(rng):
    for of_columns in (True, False):
        args = args_of(rng, of_columns=of_columns)
        text = lowered_text(functools.partial(scaled_matmul, **KERNEL), *args, platform="cpu")
        assert text.count(TARGET) == 1
        assert "dot_general" not in text
        assert text.count("stablehlo.transpose") == of_columns  # of rhs' scales
        assert f"stablehlo.convert %arg{0}" not in text


@pytest.mark.parametrize("sizes", [(0, 3, 4, 256), (1, 0, 4, 256), (1, 3, 0, 256)])
def test_nothing_to_compute(sizes):
    batch, m, n, k = sizes
    args = [jnp.ones(shape, E4M3) for shape in ((batch, m, k), (batch, n, k))]
    args += [jnp.ones(shape) for shape in ((batch, m, 2), (batch, n, 2))]
    assert scaled_matmul(*args, **KERNEL).shape == (batch, m, n)


# ---------------------------------------------------------------------------------------------------- transformations


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of_columns", [True, False], ids=["columns", "blocks"])
def test_derivatives(rng, of_columns, way):
    """To the operands, in their dtypes, and to the scales: those of the formula in float32."""
    args = args_of(rng, of_columns=of_columns, sizes=(1, 9, 130, 256))
    cotangent = jnp.asarray(rng.standard_normal((1, 9, 130)), "float32")
    found_out, pullback = jax.vjp(functools.partial(scaled_matmul, **way), *args)
    assert_close(found_out, *args)
    found = pullback(cotangent)
    lhs, rhs = widened(*args)
    of_scales = [np.asarray(x, np.float64) for x in args[2:]]
    if not of_columns:
        of_scales[1] = np.repeat(of_scales[1], 128, 1)[:, :130]
    wide = [np.einsum("bmn,bnk->bmk", cotangent, rhs), np.einsum("bmn,bmk->bnk", cotangent, lhs)]
    for one, of_operand, arg, scale in zip(found[2:], wide, args, of_scales, strict=False):
        terms = (of_operand * np.asarray(arg).astype(np.float64)).reshape(*scale.shape, 128)
        exact, magnitude = terms.sum(-1), abs(terms).sum(-1)
        if one.shape != exact.shape:  # of 128 rows
            exact, magnitude = (np.add.reduceat(x, [0, 128], axis=1) for x in (exact, magnitude))
        assert (abs(np.asarray(one, np.float64) - exact) <= 1e-4 * magnitude + 1e-3 * abs(exact)).all()
    for one, of_operand, arg, scale in zip(found[:2], wide, args, of_scales, strict=False):
        assert one.dtype == arg.dtype
        exact = of_operand * np.repeat(scale, 128, 2)
        inside = abs(exact) < 400  # what 8 bits can hold
        near = abs(np.asarray(one).astype(np.float64) - exact) <= 2.0**-3 * abs(exact) + 2.0**-6
        assert inside.sum() > 20
        assert near[inside].all()


@pytest.mark.parametrize("way", WAYS)
def test_jvp_and_linear_transpose(rng, way):
    args = args_of(rng, sizes=(1, 5, 7, 256))
    fun = functools.partial(scaled_matmul, **way)
    direction = jnp.asarray(rng.standard_normal(args[2].shape), "float32")
    out, moved = jax.jvp(lambda s: fun(args[0], args[1], s, args[3]), (args[2],), (direction,))
    assert_close(out, *args)
    assert_close(moved, args[0], args[1], direction, args[3])
    # Which is linear in each: the transposed function is the pullback.
    of_scales = lambda s: fun(args[0], args[1], s, args[3])  # noqa: E731
    one = jnp.ones((1, 5, 7))
    (transposed,) = jax.linear_transpose(of_scales, args[2])(one)
    (pulled,) = jax.vjp(of_scales, args[2])[1](one)
    np.testing.assert_allclose(transposed, pulled, rtol=1e-6)


@needs_rows
@pytest.mark.parametrize(
    "in_axes", [(0, None, 0, None), (0, 0, 0, 0), (None, 0, None, 0), (1, None, 2, None), (0, 0, None, None)]
)
def test_vmap_is_one_call(rng, in_axes):
    each = [args_of(rng, sizes=(2, 5, 130, 256)) for _ in range(3)]
    stacked = [
        jnp.stack([one[i] for one in each], axis) if axis is not None else each[0][i] for i, axis in enumerate(in_axes)
    ]
    fun = jax.vmap(functools.partial(scaled_matmul, **KERNEL), in_axes)
    assert lowered_text(fun, *stacked, platform="cpu").count(TARGET) == 1
    found = fun(*stacked)
    for v in range(3):
        args = [each[v if axis is not None else 0][i] for i, axis in enumerate(in_axes)]
        assert_close(found[v], *args)


@needs_rows
def test_rows_do_not_depend_on_their_number(rng):
    """batch_invariant=True: both heights of a tile write the same bits."""
    args = args_of(rng, sizes=(1, 200, 130, 512))
    with jax_moye.options(batch_invariant=True):
        fun = functools.partial(scaled_matmul, interpret=True)
        whole = fun(*args)
        for rows in (1, 64, 130):
            part = fun(args[0][:, :rows], args[1], args[2][:, :rows], args[3])
            np.testing.assert_array_equal(part, whole[:, :rows])


def test_a_partitioned_program_is_xlas(rng):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    args = args_of(rng, sizes=(1, 4, 5, 256))
    placed = jax.device_put(args[0], NamedSharding(mesh, P(None, "x")))
    found = jax.jit(scaled_matmul)(placed, *args[1:])
    assert_close(found, *args)


@needs_rows
def test_inside_shard_map_each_device_has_a_call(rng):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = P(None, "x")
    fun = jax.shard_map(
        functools.partial(scaled_matmul, **KERNEL), mesh=mesh, in_specs=(rows, P(), rows, P()), out_specs=rows
    )
    args = args_of(rng, sizes=(1, 4, 5, 256))
    assert lowered_text(fun, *args, platform="cpu").count(TARGET) == 1
    assert_close(jax.jit(fun)(*args), *args)


@needs_rows
def test_scan_checkpoint_and_nan_checks(rng):
    """As other primitives: in a loop, computed again for derivatives, and with jax_debug_nans."""
    args = args_of(rng, sizes=(1, 4, 5, 256))
    fun = functools.partial(scaled_matmul, **KERNEL)

    def body(carry, scale):
        return carry + fun(args[0], args[1], args[2] * scale, args[3]), None

    total, _ = jax.jit(lambda scales: jax.lax.scan(body, jnp.zeros((1, 4, 5)), scales))(jnp.ones(3))
    assert_close(total / 3, *args)
    again = jax.grad(lambda s: jnp.sum(jax.checkpoint(fun)(args[0], args[1], s, args[3])))(args[2])
    once = jax.grad(lambda s: jnp.sum(fun(args[0], args[1], s, args[3])))(args[2])
    np.testing.assert_allclose(again, once, rtol=1e-6)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        fun(args[0], args[1], args[2].at[0, 0, 0].set(jnp.nan), args[3])


# ---------------------------------------------------------------------------------------------------- who computes it


STRUCTS = [
    jax.ShapeDtypeStruct(shape, dtype)
    for shape, dtype in (
        ((1, 4096, 4096), jnp.float8_e4m3fn),
        ((1, 2048, 4096), jnp.float8_e4m3fn),
        ((1, 4096, 32), jnp.float32),
        ((1, 2048, 32), jnp.float32),
    )
]


@pytest.fixture
def gpu(places, monkeypatch):
    """As on an H200, where clocks are played: microseconds of each of ours, in the model's order, and of XLA."""
    jax.clear_caches()
    by_name = {row.name: row for row in FAKE}
    real = block_scaled.find_config
    find = lambda config: by_name.get(getattr(config, "name", config)) or real(config)  # noqa: E731
    for where in (block_scaled, arguments, module):
        monkeypatch.setattr(where, "find_config", find)
    monkeypatch.setattr(block_scaled, "block_scaled_configs", lambda: FAKE)
    monkeypatch.setattr(ffi, "built", lambda platform: None)
    monkeypatch.setattr(_compat, "cuda_arch", lambda: 90)
    monkeypatch.setattr(capability, "_device_meant", lambda arch: devices.DEVICES["h200"])
    monkeypatch.setattr(autotune, "_settled", set())
    monkeypatch.setattr(autotune, "_spent", [0.0, 0, 0.0])
    clocks = {"us": {row.name: 40.0 for row in FAKE}, "xla": 100.0, "contests": []}

    def measured(problem, of, contest, stop):
        clocks["contests"].append((problem, of, contest))
        names = [configs[0].name for configs in contest.ours]
        us = {name: clocks["us"][name] for name in names}
        best = min(us, key=us.__getitem__)
        return Entry(
            problem, of, best, measurements.config_digest(by_name[best]), us, {of: clocks["xla"]}, False, "2026-11-26"
        )

    monkeypatch.setattr(module, "measured", measured)
    yield clocks
    jax.clear_caches()


def lowered(*args, **options):
    jax.clear_caches()
    return lowered_text(functools.partial(scaled_matmul, **options), *(args or STRUCTS))


def test_the_fastest_that_was_measured_computes_it(gpu, tmp_path):
    gpu["us"][FAKE[1].name] = 30.0
    text = lowered()
    assert text.count(TARGET) == 1
    assert f'config = "{FAKE[1].name}"' in text
    ((problem, of, contest),) = gpu["contests"]
    assert (problem.sums, problem.scaled, of) == ("f32_blocks", True, "columns float32 float32")
    assert (contest.flops, contest.types) == (2 * 4096 * 2048 * 4096, tuple(STRUCTS))
    assert {configs[0].name for configs in contest.ours} == {FAKE[0].name, FAKE[1].name}
    # The next process finds it in the file.
    autotune._settled.clear()
    measurements.forget()
    assert lowered() == text
    assert len(gpu["contests"]) == 1
    found = jax_moye.explain(scaled_matmul, *STRUCTS, device="h200")[0]
    assert (found.computed_by, found.config.name, found.chosen_by) == ("moye", FAKE[1].name, "cache")
    assert "scales of blocks of 128 along k" in found.text()
    assert found.roofline()["flops"] == contest.flops
    assert "are timed while they are lowered" in measure_gemm(found, jax.devices("cpu")[0]).error
    (tuned,) = tune_products([found.product], *emulated(tmp_path))
    assert "its blocks have scales" in tuned.why


def test_xla_computes_what_it_does_faster(gpu):
    gpu["xla"] = 39.0
    assert TARGET not in lowered()
    assert lowered(implementation="moye").count(TARGET) == 1
    with jax_moye.options(deterministic=True):
        assert lowered().count(TARGET) == 1
    assert len(gpu["contests"]) == 1
    found = jax_moye.explain(scaled_matmul, *STRUCTS, device="h200")[0]
    assert "by dequantized operands: measured: XLA by dequantized operands 39 us, our best" in found.what


def test_nobody_guesses(gpu, monkeypatch):
    monkeypatch.setenv(measurements.AUTOTUNE, "off")
    assert TARGET not in lowered()
    assert gpu["contests"] == []
    found = jax_moye.explain(scaled_matmul, *STRUCTS, device="h200")[0]
    assert "nobody has timed a kernel of ours" in found.what
    assert lowered(config=FAKE[0].name).count(TARGET) == 1


def test_scales_of_blocks_are_measured_for_themselves(gpu):
    lowered()
    blocks = [*STRUCTS[:3], jax.ShapeDtypeStruct((1, 16, 32), jnp.float32)]
    assert lowered(*blocks).count(TARGET) == 1
    assert [of for _, of, _ in gpu["contests"]] == ["columns float32 float32", "blocks float32 float32"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(dtype=jnp.bfloat16), None),
        (dict(k=64 * 32), None),
        (dict(dtype=jnp.float8_e5m2), "no kernel for"),
    ],
    ids=["bf16", "blocks of 64", "no row"],
)
def test_what_no_kernel_is_for(gpu, changes, reason):
    """It is a product by dequantized operands, also where the caller insists on our kernels."""
    dtype, k = changes.get("dtype", jnp.float8_e4m3fn), changes.get("k", 4096)
    shapes = [(1, 256, k), (1, 128, k)]
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    args += [jax.ShapeDtypeStruct((1, m, 32), jnp.float32) for m in (256, 128)]
    assert TARGET not in lowered(*args)
    assert gpu["contests"] == []
    if reason is not None:
        assert reason in jax_moye.explain(scaled_matmul, *args, device="h200")[0].what


def test_a_config_of_blocks_and_another_product(gpu):
    args = [jax.ShapeDtypeStruct(x.shape, jnp.float8_e5m2) if i < 2 else x for i, x in enumerate(STRUCTS)]
    with pytest.raises(ValueError, match="its operands are e4m3, these are e5m2"):
        lowered(*args, config=FAKE[0].name)


def test_a_measurement(places, monkeypatch, rng):
    """With programs that run: XLA's and ours, which the emulator's kernels stand for; operands are no zeros."""
    if not block_scaled_configs():
        pytest.skip("no such row in this build")
    monkeypatch.setattr(jax, "local_devices", lambda backend: jax.devices("cpu"))
    clocks = {"xla": 100.0}

    def marked(name, compiled, groups, size):
        run = lambda i: compiled(*groups[i])  # noqa: E731
        return Contender(
            name, run, lambda: None, 1, size, clock=lambda passes: passes * clocks.get(name, 20.0) * size * 1e-6
        )

    monkeypatch.setattr(contests, "marked_contender", marked)
    monkeypatch.setattr(contests, "_LARGEST_PROGRAM", 2)
    shapes = ((1, 64, 256), E4M3), ((1, 64, 256), E4M3), ((1, 64, 2), "float32"), ((1, 1, 2), "float8_e8m0fnu")
    types = tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in shapes)
    scales, operands = module.product_of(*types)
    request = block_scaled.Request("bmk,bnk->bmn", jnp.dtype("float32"), None, None, None, None)
    problem = block_scaled.make_block_scaled_problem(request, operands)
    interpret = jax_moye.InterpretParams()
    common = {"problem": problem, "of_columns": scales.of_columns, "interpret": interpret}
    row = next(row for row in block_scaled_configs() if row.dtype == "e4m3")
    ours = {(row,): lambda *values: [module._run_kernel(*values, config=row, **common)]}
    by_xla = functools.partial(module.by_dequantized, **module._options(request) | {"implementation": "xla"})
    contest = contests.Contest(ours, lambda *values: [by_xla(*values)], types, 1.0, block_scaled.flops(problem))
    first, *_ = contests.operand_sets(contest, jax.devices("cpu")[0])
    assert all((np.asarray(x).astype(np.float32) != 0).mean() > 0.9 for x in first)
    entry = contests.measured(problem, scales.variant, contest, threading.Event())
    assert (entry.config, entry.us, entry.xla_us) == (row.name, {row.name: 20.0}, {scales.variant: 100.0})
    assert parse_entry(json.loads(json.dumps(entry.to_dict()))) == entry
