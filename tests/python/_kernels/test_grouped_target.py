"""The target jax_moye_grouped_gemm_v1: what XLA hands it, and what an edited program gets."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import to_attribute

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import grouped_configs
from jax_moye._kernels.dtypes import numpy_dtypes

G, M, N, K = 3, 16, 24, 32
BF16 = next(row.name for row in grouped_configs() if row.dtype == "bf16")
ONE_B = next(row.name for row in grouped_configs() if not row.takes_pair)
ORDINARY = next(row.name for row in jax_moye.configs() if row.dtype == "bf16" and row.alignment == 16)
SIZES = np.array([5, 0, 9], np.int32)
CALL = dict(
    activation="none",
    alpha=1.0,
    beta=0.0,
    operands="",
    config=BF16,
    ragged="m",
    sizes=(G, M, N, K),
    a_strides=(0, K, 1),
    b_strides=(N * K, 1, N),
    d_strides=(0, N, 1),
    c_strides=(0, 0, 0),
    bias_strides=(0, 0, 0),
    residual_strides=(0, 0, 0),
    mode="lazy",
    seed=0,
    detect_races=True,
)
# The same where k is ragged: M and N lie side by side, and d has a matrix for each group.
BY_K = dict(ragged="k", a_strides=(0, 1, M), b_strides=(0, 1, N), d_strides=(M * N, N, 1))
BY_K_SHAPES = dict(a_shape=(K, M), b_shape=(K, N), d_shape=(G, M, N))


def call(
    *extra,
    a_shape=(M, K),
    b_shape=(G, K, N),
    d_shape=(M, N),
    dtype="bfloat16",
    dtype_of_b=None,
    out="float32",
    group_sizes=SIZES,
    results=(),
    drop=(),
    target=ffi.GROUPED_TARGET,
    **changes,
):
    """The custom call on ones and twos, the sizes of the groups, and `extra` operands: d and the other results."""
    ffi.register("cpu")
    a, b = jnp.ones(a_shape, dtype), jnp.full(b_shape, 2, dtype_of_b or dtype)
    attributes = {key: to_attribute(value) for key, value in (CALL | changes).items() if key not in drop}
    shapes = [jax.ShapeDtypeStruct(d_shape, out), *(jax.ShapeDtypeStruct(*result) for result in results)]
    fun = jax.ffi.ffi_call(target, shapes)
    run = jax.jit(lambda *operands: fun(*operands, **attributes))
    return jax.block_until_ready(run(a, b, jnp.asarray(group_sizes), *extra))


def product(sizes=SIZES):
    """2 K in the rows of groups, 0 behind them."""
    rows = min(int(np.maximum(sizes, 0).sum()), M)
    return np.where(np.arange(M)[:, None] < rows, 2.0 * K, 0.0) * np.ones((M, N))


@pytest.mark.parametrize("config", grouped_configs(), ids=lambda row: row.name)
def test_every_config_and_order(config):
    dtype, dtype_of_b = numpy_dtypes(config.dtype)
    run = functools.partial(call, config=config.name, dtype=dtype, dtype_of_b=dtype_of_b)
    by_k = dict(b_shape=(G, N, K), b_strides=(N * K, K, 1))
    if "NN" in config.orders:
        (d,) = run()
        np.testing.assert_array_equal(d, product())
        (d,) = run(**BY_K, **BY_K_SHAPES)
        np.testing.assert_array_equal(d, np.broadcast_to(2.0 * SIZES[:, None, None], (G, M, N)))
    else:
        for order in ({}, BY_K | BY_K_SHAPES):
            with pytest.raises(jax.errors.JaxRuntimeError, match="the kernel does not take this order of the operands"):
                run(**order)
    for out in ("float32", "bfloat16", "float16"):
        (d,) = run(out=out, **by_k)
        np.testing.assert_array_equal(np.asarray(d, np.float32), product())


@pytest.mark.parametrize("mode", ["lazy", "eager", "random"])
def test_modes_of_the_emulator(mode):
    for seed in range(3):
        (d,) = call(mode=mode, seed=seed, detect_races=seed < 2)
        np.testing.assert_array_equal(d, product())


@pytest.mark.parametrize("sizes", [(0, 0, 0), (16, 0, 0), (99, 1, 1), (-1, 4, 2), (2**31 - 1,) * 3, (-(2**31),) * 3])
def test_sizes_of_groups_are_never_wrong(sizes):
    """They are on a GPU's memory when a program runs: whatever is there, nothing outside of the arrays is touched."""
    (d,) = call(group_sizes=np.array(sizes, np.int32))
    np.testing.assert_array_equal(d, product(np.array(sizes, np.int64)))


EMPTY = [dict(sizes=(0, M, N, K), b_shape=(0, K, N), group_sizes=SIZES[:0]), dict(sizes=(G, 0, N, K), a_shape=(0, K))]
EMPTY += [dict(sizes=(G, M, 0, K), b_shape=(G, K, 0)), dict(sizes=(G, M, N, 0), a_shape=(M, 0), b_shape=(G, 0, N))]


@pytest.mark.parametrize("changes", EMPTY, ids=["groups", "m", "n", "k"])
def test_sizes_of_0(changes):
    _, m, n, _ = changes["sizes"]
    (d,) = call(**changes, d_shape=(m, n))
    np.testing.assert_array_equal(d, np.zeros((m, n)))


@pytest.mark.parametrize("config", [row for row in grouped_configs() if row.takes_pair], ids=lambda row: row.name)
@pytest.mark.parametrize("keeps", [False, True])
def test_two_matrices_of_each_group(config, keeps):
    """The second is the first times -3: ones and twos make 2 K and -6 K."""
    dtype = {"bf16": "bfloat16", "f16": "float16"}[config.dtype]
    for orders in ({}, dict(b_shape=(G, N, K), b_strides=(N * K, K, 1))):
        second = jnp.full(orders.get("b_shape", (G, K, N)), -6, dtype)
        named = dict(operands="second_b", activation="relu", alpha=0.5, out=dtype, config=config.name, dtype=dtype)
        d, *kept = call(second, results=[((M, N), dtype)] * (2 * keeps), **orders, **named)
        expected = [product() / 2 * product() * -3, product() / 2, product() * -3]
        for found, wanted in zip([d, *kept], expected, strict=False):
            np.testing.assert_array_equal(np.asarray(found, np.float64), wanted.astype(d.dtype).astype(np.float64))
        assert len(kept) == 2 * keeps


SCALED = dict(
    target=ffi.SCALED_GROUPED_TARGET,
    operands="lhs_scale,rhs_scale",
    lhs_scale_strides=(0, 1, 0),
    rhs_scale_strides=(N, 0, 1),
    dtype="float8_e4m3fn",
    out="bfloat16",
    b_shape=(G, N, K),
    b_strides=(N * K, K, 1),
)
SCALES = jnp.ones((M,), jnp.float32), jnp.ones((G, N), jnp.float32)


@pytest.mark.parametrize("config", [row for row in grouped_configs() if row.scales], ids=lambda row: row.name)
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_scales_of_rows_and_of_the_columns_of_groups(config, out):
    dtype, dtype_of_b = numpy_dtypes(config.dtype)
    named = SCALED | dict(config=config.name, dtype=dtype, dtype_of_b=dtype_of_b, out=out)
    rows, columns = 2.0 ** (np.arange(M) % 3), 2.0 ** (np.arange(G)[:, None] + np.arange(N) % 2)
    of_rows = np.concatenate([columns, np.zeros((1, N))])[np.repeat(np.arange(G + 1), [*SIZES, M - SIZES.sum()])]
    (d,) = call(jnp.asarray(rows, jnp.float32), jnp.asarray(columns, jnp.float32), **named)
    np.testing.assert_array_equal(np.asarray(d, np.float64), product() * rows[:, None] * of_rows)
    # One for all rows, and one for all columns of a group.
    named |= dict(lhs_scale_strides=(0, 0, 0), rhs_scale_strides=(1, 0, 0))
    (d,) = call(jnp.full((), 2, jnp.float32), jnp.asarray(columns[:, 0], jnp.float32), **named)
    np.testing.assert_array_equal(np.asarray(d, np.float64), product() * 2 * of_rows[:, :1])


EDITS_OF_SCALES = {
    "lhs_scale along n": (dict(lhs_scale_strides=(0, 1, 1)), "lhs_scale has a stride along n: it is of rows"),
    "rhs_scale along m": (dict(rhs_scale_strides=(N, 1, 1)), "rhs_scale has a stride along m: it is of columns"),
    "lhs_scale too small": (dict(lhs_scale_strides=(0, 2, 0)), "lhs_scale has 16 elements, and its strides reach"),
    "rhs_scale of more groups": (dict(rhs_scale_strides=(N + 9, 0, 1)), "rhs_scale has 72 elements, and its strides"),
    "two strides": (dict(lhs_scale_strides=(1, 0)), "three strides of lhs_scale are needed, not (1, 0)"),
    "scales of bf16": (dict(scales="bfloat16"), "lhs_scale is bf16, not f32"),
    "scales of a kernel without": (
        dict(config=BF16, dtype="bfloat16", b_shape=(G, K, N), b_strides=(N * K, 1, N)),
        "the kernel takes no scales",
    ),
    "not named": (dict(operands=""), "there are 2 operands beside a and b, and 0 are named"),
    "to the target without": (
        dict(target=ffi.GROUPED_TARGET, drop=("lhs_scale_strides", "rhs_scale_strides")),
        "operands names c, bias, residual, multiplier and second_b, each once",
    ),
    "no strides": (dict(drop=("rhs_scale_strides",)), "Wrong number of attributes"),
}


@pytest.mark.parametrize("edit", EDITS_OF_SCALES)
def test_an_edited_call_with_scales_gets_an_error(edit):
    changes, message = EDITS_OF_SCALES[edit]
    config = next(row.name for row in grouped_configs() if row.dtype == "e4m3")
    changes = SCALED | dict(config=config) | changes
    scales = [x.astype(changes.pop("scales", "float32")) for x in SCALES]
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        call(*scales, **changes)
    assert message in str(error.value)
    assert "INVALID_ARGUMENT" in str(error.value)


EDITS = {
    # names
    "unknown config": (dict(config="nope"), "no compiled GEMM has this name"),
    "empty config": (dict(config=""), "no compiled GEMM has this name"),
    "an ordinary config": (dict(config=ORDINARY), "the kernel computes no products of groups"),
    "ragged x": (dict(ragged="x"), "what is ragged is m or k, not x"),
    "ragged n": (dict(ragged="n"), "what is ragged is m or k, not n"),
    "ragged nothing": (dict(ragged=""), "what is ragged is m or k, not "),
    "unknown mode": (dict(mode="quick"), "mode is eager, lazy or random, not quick"),
    "unknown activation": (
        dict(activation="tanh"),
        "activation is none, relu, gelu_tanh, gelu_erf or silu, or one with d_, not tanh",
    ),
    # numbers of sizes and strides
    "no sizes": (dict(sizes=()), "four to six sizes are needed"),
    "three sizes": (dict(sizes=(M, N, K)), "four to six sizes are needed"),
    "five sizes": (
        dict(
            sizes=(1, G, M, N, K),
            a_strides=(0, 0, K, 1),
            b_strides=(0, N * K, 1, N),
            d_strides=(0, 0, N, 1),
        ),
        "four sizes are needed: the number of groups, m, n and k",
    ),
    "seven sizes": (dict(sizes=(1, 1, 1, G, M, N, K)), "four to six sizes are needed"),
    "negative size": (dict(sizes=(G, -M, N, K)), "sizes lie between 0 and 2^31 - 1"),
    "negative number of groups": (dict(sizes=(-G, M, N, K)), "sizes lie between 0 and 2^31 - 1"),
    "large size": (dict(sizes=(G, 2**31, N, K)), "sizes lie between 0 and 2^31 - 1"),
    "two strides": (dict(a_strides=(K, 1)), "three strides of each operand are needed, not (32, 1)"),
    "four strides": (dict(b_strides=(0, N * K, 1, N)), "three strides of each operand are needed"),
    "negative stride": (dict(d_strides=(0, -N, 1)), "strides (0, -24, 1) are negative"),
    # groups
    "513 groups": (
        dict(sizes=(513, M, N, K), b_shape=(513, K, N), group_sizes=np.zeros(513, np.int32)),
        "there are 513 groups, and the kernel has room for 512",
    ),
    "2^31 - 1 groups": (dict(sizes=(2**31 - 1, M, N, K)), "there are 2147483647 groups"),
    "fewer sizes of groups": (dict(group_sizes=SIZES[:2]), "there are 2 sizes of 3 groups"),
    "more sizes of groups": (dict(group_sizes=np.tile(SIZES, 2)), "there are 6 sizes of 3 groups"),
    "no sizes of groups": (dict(group_sizes=SIZES[:0]), "there are 0 sizes of 3 groups"),
    "sizes of groups are floats": (dict(group_sizes=SIZES.astype(np.float32)), "the groups' sizes are f32, not s32"),
    "sizes of groups are int8": (dict(group_sizes=SIZES.astype(np.int8)), "the groups' sizes are s8, not s32"),
    "sizes of groups are uint32": (dict(group_sizes=SIZES.astype(np.uint32)), "the groups' sizes are s32"),
    "sizes of groups are int16": (dict(group_sizes=SIZES.astype(np.int16)), "the groups' sizes are s32"),
    # strides along groups
    "a along groups": (dict(a_strides=(K, K, 1), a_shape=(M + G, K)), "a has a stride along groups"),
    "a along groups of k": (BY_K | BY_K_SHAPES | dict(a_strides=(1, 1, M)), "a has a stride along groups"),
    "d along groups": (dict(d_strides=(M * N, N, 1), d_shape=(G, M, N)), "d has a stride along groups, and its rows"),
    "b along groups of k": (
        BY_K | BY_K_SHAPES | dict(b_strides=(K * N, 1, N), b_shape=(G, K, N)),
        "b has a stride along groups, and its k is cut",
    ),
    # orders
    "TN with ragged m": (
        dict(a_strides=(0, 1, M), a_shape=(K, M)),
        "elements side by side in memory belong to several groups: m is ragged with orders NN and NT, k with TN",
    ),
    "TT with ragged m": (
        dict(a_strides=(0, 1, M), a_shape=(K, M), b_strides=(N * K, K, 1), b_shape=(G, N, K)),
        "the kernel does not take this order of the operands",
    ),
    "NN with ragged k": (
        BY_K | BY_K_SHAPES | dict(a_strides=(0, K, 1), a_shape=(M, K)),
        "elements side by side in memory belong to several groups",
    ),
    "NT with ragged k": (
        BY_K | BY_K_SHAPES | dict(a_strides=(0, K, 1), b_strides=(0, K, 1), a_shape=(M, K), b_shape=(N, K)),
        "elements side by side in memory belong to several groups",
    ),
    "ragged k with m's strides": (dict(ragged="k"), "b has a stride along groups"),
    "ragged m with k's strides": (BY_K_SHAPES | BY_K | dict(ragged="m"), "d has a stride along groups"),
    # buffers
    "a too small": (dict(a_shape=(M - 1, K)), "a has 480 elements, and its strides reach beyond them"),
    "b has fewer matrices": (dict(b_shape=(G - 1, K, N)), "b has 1536 elements, and its strides reach beyond them"),
    "d too small": (dict(d_shape=(M - 1, N)), "d has 360 elements, and its strides reach beyond them"),
    "d too large": (dict(d_shape=(M + 1, N)), "strides of d do not write each of its elements exactly once"),
    "d over itself": (dict(d_strides=(0, 1, 1)), "strides of d do not write each of its elements exactly once"),
    "d of one group": (
        BY_K | BY_K_SHAPES | dict(d_shape=(M, N), d_strides=(0, N, 1)),
        "strides of d do not write each of its elements exactly once",
    ),
    "overflowing stride": (dict(b_strides=(2**62, 1, N)), "b has 2304 elements, and its strides reach beyond them"),
    "m too large": (dict(sizes=(G, M + 1, N, K)), "a has 512 elements"),
    # dtypes and alignment
    "operands of another dtype": (dict(dtype="float16"), "operands are f16 and f16"),
    "operands of no dtype of ours": (dict(dtype="int16"), "operands and results are bf16"),
    "result of another dtype": (dict(out="int32"), "the kernel does not write s32"),
    "rows of k that TMA cannot load": (
        dict(sizes=(G, M, N, 33), a_shape=(M, 33), a_strides=(0, 33, 1), b_shape=(G, 33, N), b_strides=(N * 33, 1, N)),
        "a has strides that 16 bytes do not divide",
    ),
    "matrices that TMA cannot load": (
        dict(b_strides=(N * K + 1, 1, N), b_shape=(G, K + 1, N)),
        "b has strides that 16 bytes do not divide",
    ),
    "no unit stride": (dict(a_strides=(0, 2 * K, 2), a_shape=(M, 2 * K)), "a has no mode of stride 1"),
    # what else the call has
    "operands that nobody names": (dict(extra=1), "1 operands beside a and b, and 0 are named"),
    "operands that are not there": (dict(operands="bias"), "operands are named that the call does not have"),
    "unknown operand": (
        dict(extra=1, operands="scale"),
        "operands names c, bias, residual, multiplier and second_b, each once",
    ),
    "a second b": (dict(extra=1, operands="second_b", config=ONE_B), "the kernel takes no second b"),
    "a second b beside f32": (dict(extra=1, operands="second_b"), "d of two b has 16 bits, not f32"),
    "a second b of f32": (dict(extra=1, operands="second_b", out="bfloat16"), "the second b is f32"),
    "a second b where k is cut": (
        BY_K | BY_K_SHAPES | dict(extra=1, operands="second_b", out="bfloat16"),
        "two b are of groups of rows, and k is cut",
    ),
    "a second b and a bias": (
        dict(extra=2, operands="bias,second_b", out="bfloat16"),
        "a call with a second b has no c, bias or residual",
    ),
    "a multiplier": (dict(extra=1, operands="multiplier"), "a multiplier is one of an activation's derivative"),
    "two results more": (dict(results=[((M, N), "float32")] * 2), "other result, is a result or not"),
    "bias too small": (dict(extra=1, operands="bias", bias_strides=(N, 0, 1)), "bias has 24 elements"),
    "attribute missing": (dict(drop=("ragged",)), "Wrong number of attributes"),
    "ragged of another type": (dict(ragged=1), "expected"),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_call_gets_an_error(edit):
    changes, message = EDITS[edit]
    changes = dict(changes)
    extra = [jnp.ones((N,), jnp.float32)] * changes.pop("extra", 0)
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        call(*extra, **changes)
    text = str(error.value)
    assert message in text, text
    assert "INVALID_ARGUMENT" in text
    if "Wrong number" not in message and message != "expected":  # those are XLA's words
        wanted = CALL | changes
        sizes = ", ".join(map(str, wanted["sizes"]))
        assert f"jax_moye: {wanted['config']}, sizes (batch, m, n, k) = ({sizes}): " in text


@pytest.mark.parametrize(
    "changes",
    [
        dict(d_strides=(0, 1, M)),  # d lies by columns
        dict(sizes=(G, M, 20, K), b_shape=(G, 20, K), b_strides=(20 * K, K, 1), d_shape=(M, 20), d_strides=(0, 20, 1),
             out="bfloat16"),
    ],
    ids=["by columns", "40 bytes"],
)  # fmt: skip
def test_results_that_tma_cannot_store(changes):
    """What the launcher says."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="rows of d are not of 16 bytes") as error:
        call(**changes)
    assert f"jax_moye: {BF16}, sizes (batch, m, n, k) = (3, 16, 2" in str(error.value)


def test_the_ordinary_targets_take_no_config_of_groups():
    workspace = [((0,), "uint8")]
    a, b = jnp.ones((M, K), jnp.bfloat16), jnp.ones((K, N), jnp.bfloat16)
    own = {name: to_attribute(value) for name, value in CALL.items() if name != "ragged"}
    own |= {"sizes": np.array((1, M, N, K)), "b_strides": np.array((0, 1, N))}
    plain = {name: own[name] for name in ("a_strides", "b_strides", "d_strides", "config", "sizes", "mode", "seed")}
    plain["detect_races"] = True
    shapes = [jax.ShapeDtypeStruct((M, N), jnp.float32), *(jax.ShapeDtypeStruct(*x) for x in workspace)]
    ffi.register("cpu")
    for target, attributes in ((ffi.TARGET, plain), (ffi.FUSED_TARGET, own)):
        run = functools.partial(jax.ffi.ffi_call(target, shapes), a, b)
        with pytest.raises(jax.errors.JaxRuntimeError, match="products of groups alone") as error:
            jax.block_until_ready(run(**attributes))
        assert f"jax_moye: {BF16}, sizes (batch, m, n, k) = (1, 16, 24, 32): " in str(error.value)
        np.testing.assert_array_equal(run(**(attributes | {"config": ORDINARY}))[0], np.full((M, N), K))


def test_the_binding_of_the_tests_refuses_them():
    """`emulate`, which knows no sizes of groups."""
    x = np.zeros((64, 64), jnp.bfloat16)
    report = ffi.extension("cpu").emulate(
        BF16, x, x, x, [1, 64, 64, 64], [0, 64, 1], [0, 1, 64], [0, 64, 1], out_dtype="bf16"
    )
    assert not report["ok"]
    assert "products of groups alone" in report["message"]


def test_handlers_have_the_targets_names():
    for module in filter(None, map(ffi.extension, ("cpu", "cuda"))):
        assert {ffi.TARGET, ffi.FUSED_TARGET, ffi.GROUPED_TARGET, ffi.SCALED_GROUPED_TARGET} <= set(module.handlers())
