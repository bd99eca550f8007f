"""The fused target on a GPU, called as XLA calls it: the epilogues of tests/emulated/test_epilogue.py on every row."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._selection.epilogue import DERIVATIVES
from tests.emulated.problems import NUMPY_DTYPES, Problem, gpu_accumulation_bound, make_call, product
from tests.emulated.test_epilogue import (
    ACTIVATIONS,
    CASES,
    INTEGER_CASES,
    INTEGER_SCALED_CASES,
    SCALED_CASES,
    Case,
    Epilogue,
    assert_exact,
    assert_within,
    float_outputs,
    make,
)
from tests.emulated.test_epilogue_ahead import AHEAD, AHEAD_CASES, AHEAD_EXACT, sizes_of

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

CONFIGS = [pytest.param(config, id=config.name) for config in jax_moye.configs()]
MATRICES = ("c", "bias", "residual")
SCALES = ("lhs_scale", "rhs_scale")


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _registered(gpu):
    ffi.register("cuda")


def workspace_bytes(config, call) -> int:
    """That the call needs: rows of alignment below 16 pack operands that TMA cannot read."""
    (out,) = {dtype for dtype in config.out_dtypes if NUMPY_DTYPES[dtype] == call.d.dtype}
    module = ffi.extension("cpu")  # it knows all kernels
    return module.workspace_bytes(config.name, call.sizes, call.a_strides, call.b_strides, call.d_strides, out)


def fused_call(config, call, options, aliases=None):
    """A function of (a, b, matrices...) that makes the custom call, and its operands."""
    names = [name for name in MATRICES + SCALES if name in options]
    is_scaled = any(name in SCALES for name in names)
    attributes = {
        "config": config.name,
        "operands": ",".join(names),
        "activation": options.get("activation", "none"),
        "alpha": np.float64(options.get("alpha", 1.0)),
        "beta": np.float64(options.get("beta", 0.0)),
        "sizes": np.array(call.sizes, np.int64),
        "a_strides": np.array(call.a_strides, np.int64),
        "b_strides": np.array(call.b_strides, np.int64),
        "d_strides": np.array(call.d_strides, np.int64),
    }
    for name in MATRICES + SCALES * is_scaled:
        attributes[f"{name}_strides"] = np.array(options.get(f"{name}_strides", (0, 0, 0)), np.int64)
    d = jax.ShapeDtypeStruct(call.d.shape, call.d.dtype)
    workspace = jax.ShapeDtypeStruct((workspace_bytes(config, call),), jnp.uint8)
    results = [d, workspace] + [d] * ("preactivation" in options)
    fun = jax.ffi.ffi_call(ffi.SCALED_TARGET if is_scaled else ffi.FUSED_TARGET, results, input_output_aliases=aliases)
    operands = [call.a, call.b, *(options[name] for name in names)]
    return functools.partial(fun, **attributes), operands


def run(config, cases, aliases=None) -> None:
    """Runs (call, epilogue) pairs in one program, so that XLA compiles once; the results go where emulate's go."""
    functions, operands = zip(
        *(fused_call(config, call, epilogue.options, aliases) for call, epilogue in cases), strict=True
    )

    @jax.jit
    def program(operands):
        return [fun(*arrays) for fun, arrays in zip(functions, operands, strict=True)]

    for (call, epilogue), (d, _, *others) in zip(cases, program(operands), strict=True):
        call.d[...] = np.asarray(d)
        if others:
            epilogue.options["preactivation"][...] = np.asarray(others[0])


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_componentwise_bound(config):
    tile_m, tile_n, tile_k = config.tile
    outs = [float_outputs(config)[i % len(float_outputs(config))] for i in range(len(CASES))]
    sizes = (tile_m + 3, tile_n + 5, tile_k + 3)
    cases = [make(config, case, out, sizes, "normal") for case, out in zip(CASES, outs, strict=True)]
    run(config, cases)
    for (call, epilogue), out in zip(cases, outs, strict=True):
        of_sums = gpu_accumulation_bound(config, call.values_a, call.values_b, _compat.cuda_arch())
        assert_within(config, call, epilogue, out, of_sums)


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
@pytest.mark.parametrize("pad", [1, 8])
def test_scales(config, pad):
    if not config.scales:
        pytest.skip("it takes no scales")
    tile_m, tile_n, tile_k = config.tile
    sizes = (tile_m + 3, tile_n + (5 if pad == 1 else 8), tile_k)
    outs = float_outputs(config)
    cases = [(make(config, case, out, sizes, "normal", pad), out) for case in SCALED_CASES for out in outs]
    exact = [make(config, case, out, sizes, "integers", pad) for case in INTEGER_SCALED_CASES for out in outs]
    run(config, [*(one for one, _ in cases), *exact])
    for (call, epilogue), out in cases:
        of_sums = gpu_accumulation_bound(config, call.values_a, call.values_b, _compat.cuda_arch())
        assert_within(config, call, epilogue, out, of_sums)
    for call, epilogue in exact:
        assert_exact(call, epilogue)


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_exact_integers(config):
    tile_m, tile_n, _ = config.tile
    cases = [
        make(config, case, out, sizes, "integers")
        for out in config.out_dtypes
        for case, sizes in zip(
            INTEGER_CASES,
            [(tile_m + 1, 7, 20), (1, tile_n + 1, 9), (tile_m - 1, 2 * tile_n - 1, 5), (3, 2, 1)],
            strict=True,
        )
    ]
    # With K = 0 the epilogue is all there is; C full of NaN is not read where beta is 0.
    out = float_outputs(config)[0]
    everything = Case("relu", beta=2.0, c="bmn", bias="n", residual="bmn", preactivation=True)
    cases.append(make(config, everything, out, (19, 35, 0), "integers"))
    cases.append(make(config, Case("relu", c="bmn", bias="n"), out, (33, 21, 17), "integers"))
    cases[-1][1].options["c"][...] = np.nan
    run(config, cases)
    for call, epilogue in cases:
        assert_exact(call, epilogue)


# One row of each kernel: the activations are one piece of source.
FIRST = list({config.kernel: config for config in reversed(jax_moye.configs())}.values())


@pytest.mark.parametrize("config", [pytest.param(c, id=c.kernel) for c in FIRST], indirect=True)
def test_nan_and_infinity(config):
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 30000.0, -30000.0, 1.0]
    cases = []
    for activation in ACTIVATIONS:
        case = Case(activation, beta=1.0, c="bmn", preactivation=True)
        call, epilogue = make(config, case, float_outputs(config)[0], (4, 16, 1), "integers")
        call.a[...] = 0
        epilogue.add("c", "bmn", np.tile(np.array(special, call.d.dtype), 8))
        cases.append((call, epilogue))
    run(config, cases)
    for call, epilogue in cases:
        z, d = epilogue.reference(np.zeros((1, 4, 16)))
        np.testing.assert_array_equal(epilogue.preactivation(call).astype(np.longdouble), z)
        found = call.result().astype(np.longdouble)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(d))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(d))


@pytest.mark.parametrize("config", [pytest.param(c, id=c.kernel) for c in FIRST], indirect=True)
@pytest.mark.parametrize("pad", [1, 8])
def test_c_updated_in_place(config, pad):
    """Its buffer is d's: nothing is copied, and each element is read before it is written."""
    check_c_in_place(config, config.out_dtypes[0], (2, 2), pad)


def check_c_in_place(config, out: str, tiles: tuple[int, int], pad: int) -> None:
    tile_m, tile_n, _ = config.tile
    case = Case("none", beta=1.0, c="bmn")
    sizes = (tiles[0] * tile_m + 3, tiles[1] * tile_n + (5 if pad == 1 else 8), 12 if pad == 1 else 16)
    call, epilogue = make(config, case, out, sizes, "integers", pad)
    fun, (a, b, c) = fused_call(config, call, epilogue.options, aliases={2: 0})
    step = jax.jit(lambda a, b, c: fun(a, b, c)[0], donate_argnums=2)
    on_device = jnp.asarray(c)
    for _ in range(3):
        on_device = step(a, b, on_device)
    call.d[...] = np.asarray(on_device)
    expected = 3 * product(call.values_a, call.values_b) + epilogue.matrices["c"]
    np.testing.assert_array_equal(call.result(), expected.astype(call.d.dtype))


@pytest.mark.parametrize("config", [pytest.param(c, id=c.name) for c in AHEAD], indirect=True)
def test_operands_read_ahead(config):
    """By TMA, while a tile is multiplied: cut tiles, and so many that each consumer has several."""
    outs = ("bf16", "f16")
    cases = [(make(config, case, out, sizes_of(config), "normal", 8), out) for case in AHEAD_CASES for out in outs]
    tile_m, tile_n, tile_k = config.tile
    many = (24 * tile_m + 5, 24 * tile_n + 8, 2 * tile_k)
    exact = [make(config, dataclasses.replace(case, batch=1), "bf16", many, "integers", 8) for case in AHEAD_EXACT]
    run(config, [*(one for one, _ in cases), *exact])
    for (call, epilogue), out in cases:
        of_sums = gpu_accumulation_bound(config, call.values_a, call.values_b, _compat.cuda_arch())
        assert_within(config, call, epilogue, out, of_sums)
    for call, epilogue in exact:
        assert_exact(call, epilogue)
    check_c_in_place(config, "f16", (24, 24), 8)


@pytest.mark.parametrize("config", [pytest.param(c, id=c.name) for c in AHEAD if c.derives], indirect=True)
def test_derivatives_read_ahead(config):
    """They are those at a c that threads read, as its rows are no whole words of 16 bytes, bit by bit."""
    tile_m, tile_n, tile_k = config.tile
    m, n = 24 * tile_m + 5, 24 * tile_n + 8
    rows = np.random.default_rng(0).standard_normal((m, n))
    cases = []
    for i, activation in enumerate(DERIVATIVES):
        for pad in (8, 4):
            case = Case(activation, alpha=-0.25, beta=1.0)
            call, epilogue = make(config, case, ("bf16", "f16")[i % 2], (m, n, 2 * tile_k), "normal", 8)
            c = np.pad(rows, ((0, 0), (0, pad))).astype(call.d.dtype)
            epilogue.options |= {"c": c.ravel(), "c_strides": (0, n + pad, 1)}
            cases.append((call, epilogue))
    run(config, cases)
    for (ahead, _), (finished, _) in zip(cases[::2], cases[1::2], strict=True):
        np.testing.assert_array_equal(ahead.d.view(np.uint16), finished.d.view(np.uint16))


def test_command_buffers():
    """Five fused launches in a row are recorded into a CUDA graph and replayed, with other buffers each time."""
    config = next(c for c in jax_moye.configs() if c.name == "sm80_multistage_bf16_64x64x64_s3_a16")
    ffi.register("cuda")
    problem = Problem(64, 64, 64)
    call = make_call(config, problem, "bf16")
    epilogue = Epilogue(Case("relu", bias="n"), problem, call.d, "integers")
    fun, _ = fused_call(config, call, epilogue.options)
    rotation = np.roll(np.eye(64), 1, axis=0).astype(call.a.dtype).ravel()

    @jax.jit
    def chain(x, bias):
        for _ in range(8):
            x = fun(rotation, x, bias)[0]
        return x

    rng = np.random.default_rng(0)
    for _ in range(20):
        x, bias = rng.integers(-2, 3, (64, 64)), rng.integers(-1, 2, 64)
        expected = x.astype(np.float64)
        for _ in range(8):
            expected = np.maximum(np.roll(expected, 1, axis=0) + bias, 0)
        found = chain(x.astype(call.a.dtype).ravel(), bias.astype(call.a.dtype))
        np.testing.assert_array_equal(np.asarray(found).reshape(64, 64), expected.astype(call.a.dtype))
