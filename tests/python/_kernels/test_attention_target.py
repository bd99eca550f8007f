"""The targets of attention and its gradients, of parts of arrays, too: what XLA hands them, and edited programs get.

All in one file, over 600 lines: each call is another one with some attributes changed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import to_attribute

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import attention_configs
from jax_moye._kernels.dtypes import DTYPES
from jax_moye._selection.capability import why_not
from jax_moye._selection.problem import GemmProblem

BATCH, KV_HEADS, GROUP, Q_ROWS, KV_ROWS, HEAD_DIM = SIZES = (2, 2, 3, 5, 7, 16)
HEADS = KV_HEADS * GROUP
WIDTH = HEADS * HEAD_DIM
ORDINARY = next(row.name for row in jax_moye.configs() if row.dtype == "bf16" and row.alignment == 16)
GRAD = "sm90_attention_grad"


def rows(kernel):
    return [row for row in attention_configs() if row.kernel == kernel]


def name_of(kernel, dtype="bf16"):
    """A row of a dtype, of the smallest head_dim; a name of none where there is no row in this build."""
    found = sorted((row.tile[2], row.name) for row in rows(kernel) if row.dtype == dtype)
    return found[0][1] if found else "none"


needs_rows = pytest.mark.skipif(not attention_configs(), reason="no row of sm90_attention in this build")
CONFIG, GRAD_CONFIG = name_of("sm90_attention"), name_of(GRAD)
OF_TF32 = {"sm90_attention": name_of("sm90_attention", "tf32"), GRAD: name_of(GRAD, "tf32")}


def dense(*shape):
    """Strides along (batch, head, row) of (batch, head, row, head_dim)."""
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(3))


Q, KV, LSE = (BATCH, HEADS, Q_ROWS, HEAD_DIM), (BATCH, KV_HEADS, KV_ROWS, HEAD_DIM), (BATCH, HEADS, Q_ROWS)
COMMON = dict(
    sizes=SIZES, q_strides=dense(*Q), k_strides=dense(*KV), v_strides=dense(*KV), scale=0.25, is_causal=False,
    diagonal=0, detect_races=True, mode="lazy", seed=0,
)  # fmt: skip
CALL = COMMON | dict(config=CONFIG, o_strides=dense(*Q), mask_strides=(0, 0, 0, 0), mask_is_infinite=False)
GRAD_CALL = COMMON | dict(
    config=GRAD_CONFIG, d_o_strides=dense(*Q), dq_strides=dense(*Q), dk_strides=dense(*KV), dv_strides=dense(*KV)
)
VIEW = dict(q_offset=0, k_offset=0, v_offset=0)
VIEW_GRAD = VIEW | dict(d_o_offset=0, ds_parts=1, mask_strides=(0, 0, 0, 0), mask_is_infinite=False)

MASKED_GRAD_CALL = GRAD_CALL | VIEW_GRAD | dict(mask_strides=(0, 0, KV_ROWS, 1), mask_is_infinite=False)


def attributes_of(call, changes, drop):
    return {key: to_attribute(value) for key, value in (call | changes).items() if key not in drop}


def run(target, results, operands, attributes):
    ffi.register("cpu")
    fun = jax.ffi.ffi_call(target, tuple(results))
    found = jax.jit(lambda *arrays: fun(*arrays, **attributes))(*operands)
    return [np.asarray(x).astype(np.float64) for x in found]


def call(*, q=Q, k=KV, v=KV, o=Q, lse=LSE, dtype="bfloat16", v_dtype=None, out=None, of_lse="float32", drop=(),
         extra=(), view=False, value=3, rests=(), **changes):  # fmt: skip
    """The custom call on ones and one value. rests: shape and dtype of results behind. view: of parts of arrays."""
    target, changes = (ffi.VIEW_ATTENTION_TARGET, VIEW | changes) if view else (ffi.ATTENTION_TARGET, changes)
    operands = [jnp.ones(q, dtype), jnp.ones(k, dtype), jnp.full(v, value, v_dtype or dtype), *extra]
    results = [jax.ShapeDtypeStruct(*x) for x in ((o, out or dtype), (lse, of_lse), *rests)]
    return run(target, results, operands, attributes_of(CALL, changes, drop))


def call_grad(*, q=Q, k=KV, v=KV, d_o=Q, lse=LSE, delta=LSE, dq=Q, dk=KV, dv=KV, dtype="bfloat16", of_rows="float32",
              out=None, drop=(), extra=(), view=False, **changes):  # fmt: skip
    """That of the gradients, on ones, where all columns of a row count the same and sum up to 1."""
    target, changes = (
        (ffi.VIEW_ATTENTION_GRAD_TARGET, VIEW_GRAD | changes) if view else (ffi.ATTENTION_GRAD_TARGET, changes)
    )
    keys = max((GRAD_CALL | changes)["sizes"][4], 1)
    operands = [jnp.ones(x, dtype) for x in (q, k, v, d_o)]
    operands += [*of_the_rows(lse, delta, q[-1], keys, of_rows), *extra]
    results = [jax.ShapeDtypeStruct(x, out or dtype) for x in (dq, dk, dv)]
    return run(target, results, operands, attributes_of(GRAD_CALL, changes, drop))


def of_the_rows(lse, delta, head_dim, keys, dtype="float32"):
    """lse, where a row has so many keys, and delta, which is 2 less than d_o v^T."""
    score = COMMON["scale"] * head_dim + np.log(keys)
    return jnp.full(lse, score, dtype), jnp.full(delta, head_dim - 2, "float32")


MASK = jnp.asarray(np.arange(KV_ROWS) < np.where(np.arange(Q_ROWS) == 1, 0, 4)[:, None])  # of the second row all


def call_masked_grad(*, mask=MASK, lse=None, delta=None, dtype="bfloat16", out=None, drop=(), extra=(), **changes):
    """The same with a mask, which keeps four keys, but of the second row none."""
    shapes = dict(q=Q, k=KV, v=KV, d_o=Q, dq=Q, dk=KV, dv=KV)
    shapes |= {name: changes.pop(name) for name in shapes.keys() & changes.keys()}
    of_rows, of_delta = of_the_rows(lse or LSE, delta or LSE, HEAD_DIM, 4)
    low = changes.pop("low", -1e30)
    if lse is None:
        of_rows = of_rows.at[:, :, 1].set(low)
    operands = [jnp.ones(shapes[name], dtype) for name in ("q", "k", "v", "d_o")] + [of_rows, of_delta]
    operands += [*([] if mask is None else [mask]), *extra]
    results = [jax.ShapeDtypeStruct(shapes[name], out or dtype) for name in ("dq", "dk", "dv")]
    return run(ffi.VIEW_ATTENTION_GRAD_TARGET, results, operands, attributes_of(MASKED_GRAD_CALL, changes, drop))


@pytest.mark.parametrize("config", rows("sm90_attention"), ids=lambda row: row.name)
@pytest.mark.parametrize("mode", ["lazy", "eager", "random"])
def test_every_config(config, mode):
    o, lse = call(config=config.name, dtype=DTYPES[config.dtype].jax_name, mode=mode, seed=3)
    np.testing.assert_allclose(o, np.full(Q, 3.0), rtol=2.0**-22 if config.dtype == "tf32" else 0)  # f32 is not rounded
    np.testing.assert_allclose(lse, np.full(LSE, 0.25 * HEAD_DIM + np.log(KV_ROWS)), rtol=1e-6)


@pytest.mark.parametrize("config", [x for x in rows("sm90_attention") if x.dtype != "tf32"], ids=lambda row: row.name)
@pytest.mark.parametrize("view", [False, True])
def test_a_third_result(config, view):
    """What rounding took from a third: sums of 7 values, of which one is 7 / 3, and the others are 0."""
    dtype = DTYPES[config.dtype].jax_name
    values = jnp.zeros(KV, dtype).at[:, :, 2].set(7 / 3)
    wanted = float(values[0, 0, 2, 0]) / 7
    o, lse, rest = call(config=config.name, dtype=dtype, value=values, rests=((Q, dtype),), view=view)
    two = call(config=config.name, dtype=dtype, value=values, view=view)
    for x, other in zip((o, lse), two, strict=True):
        np.testing.assert_array_equal(x, other)
    np.testing.assert_array_equal(rest, np.full(Q, rest.flat[0]))
    assert abs(o.flat[0] - wanted) > 2**-14
    assert abs(o.flat[0] + rest.flat[0] - wanted) < 2**-18


@pytest.mark.parametrize("config", rows(GRAD), ids=lambda row: row.name)
@pytest.mark.parametrize("mode", ["lazy", "eager", "random"])
def test_every_config_of_gradients(config, mode):
    """p is 1 / 7 of each score, d_o v^T less delta 2."""
    dq, dk, dv = call_grad(config=config.name, dtype=DTYPES[config.dtype].jax_name, mode=mode, seed=3)
    of_a_key = GROUP * Q_ROWS / KV_ROWS
    np.testing.assert_allclose(dq, np.full(Q, 0.25 * 2), rtol=2e-2)
    np.testing.assert_allclose(dk, np.full(KV, 0.25 * 2 * of_a_key), rtol=2e-2)
    np.testing.assert_allclose(dv, np.full(KV, of_a_key), rtol=2e-2)


@needs_rows
def test_a_diagonal_far_outside():
    """Of any int64: nothing is left out above the scores, and all below."""
    for diagonal in (KV_ROWS, 2**31, 2**63 - 1):
        o, _ = call(is_causal=True, diagonal=diagonal)
        np.testing.assert_array_equal(o, np.full(Q, 3.0))
    for diagonal in (-Q_ROWS, -(2**31), -(2**63)):
        o, lse = call(is_causal=True, diagonal=diagonal)
        np.testing.assert_array_equal(o, np.zeros(Q))
        np.testing.assert_array_equal(lse, np.full(LSE, -np.inf))
        for gradient in call_grad(is_causal=True, diagonal=diagonal, lse=LSE):
            np.testing.assert_array_equal(gradient, np.zeros(gradient.shape))


@needs_rows
def test_a_mask():
    """Of keys, the same for all else: the others' values are not seen."""
    mask = np.arange(KV_ROWS) < 4
    v = np.where(mask[:, None], 1, 100) * np.ones(KV)
    for is_infinite in (False, True):
        operands = [jnp.ones(Q, "bfloat16"), jnp.ones(KV, "bfloat16"), jnp.asarray(v, "bfloat16"), jnp.asarray(mask)]
        attributes = attributes_of(CALL, dict(mask_strides=(0, 0, 0, 1), mask_is_infinite=is_infinite), ())
        results = [jax.ShapeDtypeStruct(Q, "bfloat16"), jax.ShapeDtypeStruct(LSE, "float32")]
        o, lse = run(ffi.ATTENTION_TARGET, results, operands, attributes)
        np.testing.assert_array_equal(o, np.ones(Q))
        np.testing.assert_allclose(lse, np.full(LSE, 0.25 * HEAD_DIM + np.log(4)), rtol=1e-6)


@pytest.mark.parametrize("config", rows(GRAD), ids=lambda row: row.name)
@pytest.mark.parametrize("low", [-1e30, -3e38, -np.inf])
def test_gradients_of_a_mask(config, low):
    """p is 1 / 4 of each score that is kept. The row without any gives each value a share of its cotangent, or NaN."""
    is_infinite = bool(low == -np.inf)
    dtype = DTYPES[config.dtype].jax_name
    dq, dk, dv = call_masked_grad(config=config.name, dtype=dtype, low=low, mask_is_infinite=is_infinite)
    kept = np.arange(KV_ROWS)[:, None] < 4
    of_a_key = GROUP * (Q_ROWS - 1) / 4
    of_masked_row = np.nan if is_infinite else GROUP / KV_ROWS
    np.testing.assert_allclose(dq, np.broadcast_to(np.where(np.arange(Q_ROWS)[:, None] == 1, 0, 0.5), Q), rtol=2e-2)
    np.testing.assert_allclose(dk, np.broadcast_to(np.where(kept, 0.5 * of_a_key, 0), KV), rtol=2e-2)
    np.testing.assert_allclose(dv, np.broadcast_to(kept * of_a_key + of_masked_row, KV), rtol=2e-2)


@needs_rows
def test_parts_of_one_array():
    """Behind what is no number, and in front of it."""
    width = HEADS * HEAD_DIM
    qkv = np.full((BATCH, Q_ROWS, 3 * width + 24), np.nan)
    qkv[..., 16 : 16 + 2 * width] = 1
    qkv[..., 16 + 2 * width : -8] = 3
    strides = (Q_ROWS * qkv.shape[-1], HEAD_DIM, qkv.shape[-1])
    sizes = dict(sizes=(BATCH, HEADS, 1, Q_ROWS, Q_ROWS, HEAD_DIM))
    offsets = dict(q_offset=16, k_offset=16 + width, v_offset=16 + 2 * width)
    whole = jnp.asarray(qkv, "bfloat16")
    changes = sizes | offsets | {f"{name}_strides": strides for name in "qkv"}
    results = [jax.ShapeDtypeStruct(Q, "bfloat16"), jax.ShapeDtypeStruct(LSE, "float32")]
    o, lse = run(ffi.VIEW_ATTENTION_TARGET, results, [whole] * 3, attributes_of(CALL, changes, ()))
    np.testing.assert_array_equal(o, np.full(Q, 3.0))
    np.testing.assert_allclose(lse, np.full(LSE, 0.25 * HEAD_DIM + np.log(Q_ROWS)), rtol=1e-6)

    rows = [jnp.asarray(lse, "float32"), jnp.full(LSE, 3 * HEAD_DIM - 2, "float32")]
    changes |= VIEW_GRAD | offsets | dict(d_o_offset=16 + width, d_o_strides=strides)
    changes |= {f"d{name}_strides": dense(*Q) for name in "qkv"}
    results = [jax.ShapeDtypeStruct(Q, "bfloat16")] * 3
    found = run(ffi.VIEW_ATTENTION_GRAD_TARGET, results, [whole] * 4 + rows, attributes_of(GRAD_CALL, changes, ()))
    for gradient, wanted in zip(found, (0.5, 0.5, 1.0), strict=True):
        np.testing.assert_allclose(gradient, np.full(Q, wanted), rtol=2e-2)


# Rows of dq, dk and dv side by side.
JOINED = dict(
    sizes=(BATCH, HEADS, 1, Q_ROWS, Q_ROWS, HEAD_DIM), result_of=(0, 0, 0), dq_offset=0, dk_offset=WIDTH,
    dv_offset=2 * WIDTH,
)  # fmt: skip
JOINED |= {f"d{x}_strides": (Q_ROWS * 3 * WIDTH, HEAD_DIM, 3 * WIDTH) for x in "qkv"}


def call_joined(*, results=((BATCH, Q_ROWS, 3 * WIDTH),), out="bfloat16", drop=(), extra=(), **changes):
    """The gradients as parts of results, on ones and values of 3."""
    operands = [*(jnp.full(Q, value, "bfloat16") for value in (1, 1, 3, 1))]
    operands += [*of_the_rows(LSE, LSE, HEAD_DIM, Q_ROWS), *extra]
    operands[5] = jnp.full(LSE, 3 * HEAD_DIM - 2, "float32")
    common = GRAD_CALL | VIEW_GRAD | JOINED | {f"{x}_strides": dense(*Q) for x in ("q", "k", "v", "d_o")}
    shapes = [jax.ShapeDtypeStruct(x, out) for x in results]
    return run(ffi.JOINED_ATTENTION_GRAD_TARGET, shapes, operands, attributes_of(common, changes, drop))


WANTED = (0.5, 0.5, 1.0)  # of all elements of dq, dk and dv


@needs_rows
def test_gradients_in_one_array():
    (found,) = call_joined()
    for part, wanted in zip(np.split(found, 3, axis=-1), WANTED, strict=True):
        np.testing.assert_allclose(part, np.full(part.shape, wanted), rtol=2e-2)


@needs_rows
def test_gradients_in_one_array_head_by_head():
    strides = (Q_ROWS * 3 * WIDTH, 3 * HEAD_DIM, 3 * WIDTH)
    changes = dict(dk_offset=HEAD_DIM, dv_offset=2 * HEAD_DIM) | {f"d{x}_strides": strides for x in "qkv"}
    (found,) = call_joined(**changes)
    for i, wanted in enumerate(WANTED):
        part = found.reshape(BATCH, Q_ROWS, HEADS, 3, HEAD_DIM)[..., i, :]
        np.testing.assert_allclose(part, np.full(part.shape, wanted), rtol=2e-2)


@needs_rows
@pytest.mark.parametrize("is_first", [False, True])
def test_two_of_the_gradients_in_one_array(is_first):
    """Which may be any result."""
    of_two = (BATCH, 2, HEADS, Q_ROWS, HEAD_DIM)
    strides = dict.fromkeys(("dk_strides", "dv_strides"), (2 * Q_ROWS * WIDTH, Q_ROWS * HEAD_DIM, HEAD_DIM))
    changes = strides | dict(dq_strides=dense(*Q), dk_offset=0, dv_offset=Q_ROWS * WIDTH)
    first = dict(result_of=(1, 0, 0), results=(of_two, Q))
    changes |= first if is_first else dict(result_of=(0, 1, 1), results=(Q, of_two))
    found = call_joined(**changes)
    two, dq = found if is_first else found[::-1]
    for part, wanted in ((dq, 0.5), (two[:, 0], 0.5), (two[:, 1], 1.0)):
        np.testing.assert_allclose(part, np.full(part.shape, wanted), rtol=2e-2)


TOGETHER = "strides and offsets of dq, dk and dv do not write each element of result 0 exactly once"
NAMES = "result_of names a result for each of dq, dk and dv, and all results"
JOINED_EDITS = {
    "one over another": (dict(dk_offset=0), TOGETHER),
    "one in part over another": (dict(dk_offset=WIDTH - 8), TOGETHER),
    "a gap": (dict(results=((BATCH, Q_ROWS, 3 * WIDTH + 8),)), TOGETHER),
    "other strides of one": (dict(dv_strides=(Q_ROWS * 3 * WIDTH, HEAD_DIM, 2 * WIDTH)), TOGETHER),
    "the same row twice": (dict.fromkeys((f"d{x}_strides" for x in "qkv"), (0, HEAD_DIM, 3 * WIDTH)), TOGETHER),
    "beyond": (dict(dv_offset=2 * WIDTH + 8), "dv has 2880 elements, and its strides from 200 on reach beyond them"),
    "a negative offset": (dict(dq_offset=-8), "dq has offset -8, which is negative"),
    "an offset of 4 elements": (dict(dq_offset=4, dv_offset=2 * WIDTH - 4), "dq has an address that 16 bytes do not"),
    "a result that is none": (dict(result_of=(0, 0, 1)), NAMES),
    "a negative result": (dict(result_of=(0, 0, -1)), NAMES),
    "two gradients": (dict(result_of=(0, 0)), NAMES),
    "a result of none": (dict(results=((BATCH, Q_ROWS, 3 * WIDTH), Q)), NAMES),
    "another dtype": (dict(out="float16"), "dq is f16, not bf16"),
    "no dtype of ours": (dict(out="int16"), "operands and results are bf16"),
    "no offset": (dict(drop=("dv_offset",)), "Wrong number of attributes"),
    "a mask too many": (dict(extra=(MASK, MASK)), "there is a mask, and nothing else"),
}


@needs_rows
@pytest.mark.parametrize("edit", JOINED_EDITS)
def test_an_edited_call_of_joined_gradients_gets_an_error(edit):
    check_edit(call_joined, *JOINED_EDITS[edit])


def without(index):
    """Sizes and shapes where one of them is 0, and what the call is then."""
    sizes = tuple(0 if i == index else size for i, size in enumerate(SIZES))
    batch, kv_heads, group, q_rows, kv_rows, head_dim = sizes
    q, kv = (batch, kv_heads * group, q_rows, head_dim), (batch, kv_heads, kv_rows, head_dim)
    return sizes, q, kv


@needs_rows
@pytest.mark.parametrize("offset", [None, 0, 2**62])
@pytest.mark.parametrize("index", [0, 1, 3, 4])
def test_sizes_of_0(index, offset):
    """An offset of what has no element is none."""
    sizes, q, kv = without(index)
    of_view = {} if offset is None else dict(view=True, **({"k_offset": offset} if 0 in kv else {}))
    o, lse = call(sizes=sizes, q=q, k=kv, v=kv, o=q, lse=q[:3], **of_view)
    np.testing.assert_array_equal(o, np.zeros(q))
    np.testing.assert_array_equal(lse, np.full(q[:3], -np.inf))


@needs_rows
@pytest.mark.parametrize("index", [0, 1, 3, 4])
def test_gradients_of_sizes_of_0(index):
    sizes, q, kv = without(index)
    found = call_grad(sizes=sizes, q=q, k=kv, v=kv, d_o=q, lse=q[:3], delta=q[:3], dq=q, dk=kv, dv=kv)
    for gradient, shape in zip(found, (q, kv, kv), strict=True):
        np.testing.assert_array_equal(gradient, np.zeros(shape))


# What all calls get.
EDITS = {
    "unknown config": (dict(config="nope"), "no compiled GEMM has this name"),
    "an ordinary config": (dict(config=ORDINARY), "the kernel computes no attention"),
    "unknown mode": (dict(mode="quick"), "mode is eager, lazy or random, not quick"),
    "five sizes": (dict(sizes=SIZES[:5]), "six sizes are needed: batch, kv_heads, group, q_rows, kv_rows and head_dim"),
    "seven sizes": (dict(sizes=(1, *SIZES)), "six sizes are needed"),
    "negative size": (dict(sizes=(-2, *SIZES[1:])), "sizes lie between 0 and 2^31 - 1"),
    "large size": (dict(sizes=(2**31, *SIZES[1:])), "sizes lie between 0 and 2^31 - 1"),
    "group of 0": (dict(sizes=(2, 2, 0, 5, 7, 16)), "each head of keys and values belongs to one head of queries"),
    "head_dim of 0": (dict(sizes=(*SIZES[:5], 0)), "head_dim is a multiple of 8, and at most"),
    "head_dim of 12": (dict(sizes=(*SIZES[:5], 12)), "head_dim is a multiple of 8, and at most"),
    "large head_dim": (dict(sizes=(*SIZES[:5], 264)), "head_dim is a multiple of 8, and at most"),
    "rows of queries": (dict(sizes=(2, 2, 3, 2**31 - 1, 7, 16)), "there are more rows than 2^31 - 1 less a tile's"),
    "rows of keys": (dict(sizes=(2, 2, 3, 5, 2**31 - 1, 16)), "there are more rows than 2^31 - 1 less a tile's"),
    "heads": (dict(sizes=(2**20, 2**20, 2**20, 5, 7, 16)), "there are more than 2^31 - 1 tiles of all heads"),
    "many heads": (dict(sizes=(2**31 - 1, 2**31 - 1, 3, 5, 7, 16)), "there are more than 2^31 - 1 tiles of all heads"),
    "tiles": (dict(sizes=(2**10, 2**10, 2**9, 5, 2**20, 16)), "there are more than 2^31 - 1 tiles of all heads"),
    "scale that is no number": (dict(scale=np.nan), "the scale is no finite number above 0"),
    "infinite scale": (dict(scale=1e39), "the scale is no finite number above 0"),  # as f32
    "scale of 0": (dict(scale=0.0), "the scale is no finite number above 0"),
    "negative scale": (dict(scale=-0.25), "the scale is no finite number above 0"),
    "two strides": (dict(q_strides=(1, 2)), "three strides of q are needed, along batch, heads and rows, not (1, 2)"),
    "negative stride": (dict(k_strides=(224, -112, 16)), "k has strides (224, -112, 16), which are negative"),
    "operands of f16": (dict(dtype="float16"), "q is f16, not bf16"),
    "operands of f32": (dict(dtype="float32"), "q is f32, not bf16"),
    "operands of 16-bit integers": (dict(dtype="int16"), "operands and results are bf16, f16, f32, f64"),
    "results of f32": (dict(out="float32"), " is f32, not bf16"),
    "q too small": (dict(q=(BATCH, HEADS, Q_ROWS - 1, HEAD_DIM)), "q has 768 elements, and its strides reach beyond"),
    "k too small": (dict(k=(BATCH, KV_HEADS, KV_ROWS, 8)), "k has 224 elements, and its strides reach beyond them"),
    "v of longer strides": (dict(v_strides=(224, 112, 24)), "v has 448 elements, and its strides reach beyond them"),
    "strides over int64": (dict(v_strides=(2**62, 2**62, 2**62)), "v has 448 elements, and its strides reach beyond"),
    "stride of 4 elements": (dict(k_strides=(224, 112, 4)), "k has strides that 16 bytes do not divide"),
    "lse too small": (dict(lse=(BATCH, HEADS, Q_ROWS - 1)), "lse has 48 elements, not one of each row of queries: 60"),
    "attribute missing": (dict(drop=("scale",)), "Wrong number of attributes"),
}  # fmt: skip
# What those with a mask get.
MASK_EDITS = {
    "three strides of a mask": (dict(mask_strides=(0, 0, 1)), "four strides of the mask are needed, along"),
    "negative stride of a mask": (dict(mask_strides=(0, 0, -1, 1)), "strides (0, 0, -1, 1), which are negative"),
    "mask too small": (dict(mask_strides=(0, 0, 8, 1)), "the mask has 35 elements, and its strides reach"),
    "mask of longer strides": (dict(mask_strides=(2**62, 2**62, 0, 0)), "the mask has 35 elements, and its strides"),
}
FORWARD_EDITS = {
    "another operand": (dict(extra=(jnp.ones(3),)), "the mask is of booleans"),
    "a config of gradients": (dict(config=GRAD_CONFIG), "the kernel computes gradients of attention alone"),
    "v of f16": (dict(v_dtype="float16"), "v is f16, not bf16"),
    "mask of bytes": (dict(extra=(jnp.ones(Q_ROWS, jnp.int8),)), "the mask is of booleans"),
    "two masks": (dict(extra=(jnp.ones(1, bool),) * 2), "beside q, k and v there is a mask, and nothing else"),
    "lse of f64": (dict(of_lse="float64"), "lse is f64, not f32"),
    "lse of bf16": (dict(of_lse="bfloat16"), "lse is bf16, not f32"),
    "o too small": (dict(o=(BATCH, HEADS, Q_ROWS - 1, HEAD_DIM)), "o has 768 elements, and its strides reach beyond"),
    "o too large": (dict(o=(BATCH, HEADS, Q_ROWS + 1, HEAD_DIM)), "strides of o do not write each of its elements ex"),
    "o written twice": (dict(o_strides=(480, 0, 16)), "strides of o do not write each of its elements exactly once"),
    "two rests": (dict(rests=((Q, "bfloat16"),) * 2), "beside o and lse there is what rounding took from o, or"),
    "rest of f32": (dict(rests=((Q, "float32"),)), "o_rest is f32, not bf16"),
    "rest of 16-bit integers": (dict(rests=((Q, "int16"),)), "operands and results are bf16, f16, f32, f64"),
    "rest too small": (dict(rests=((Q[:3], "bfloat16"),)), "o_rest has 60 elements, and its strides reach beyond them"),
    "rest too large": (dict(rests=(((3, *Q[1:]), "bfloat16"),)), "strides of o_rest do not write each of its elements"),
    "rows of o overlap": (dict(o_strides=(480, 80, 8)), "strides of o do not write each of its elements exactly once"),
}  # fmt: skip
NO_MASK = "another operand of gradients"
GRAD_EDITS = {
    NO_MASK: (dict(extra=(MASK,)), "Wrong number of arguments"),
    "a config of attention": (dict(config=CONFIG), "the kernel computes attention, and not its gradients"),
    "lse of f16": (dict(of_rows="float16"), "lse is f16, not f32"),
    "delta too small": (dict(delta=(BATCH, HEADS)), "delta has 12 elements, not one of each row of queries: 60"),
    "d_o too small": (dict(d_o=(BATCH, HEADS, 1, HEAD_DIM)), "d_o has 192 elements, and its strides reach beyond them"),
    "dq too large": (dict(dq=(BATCH, HEADS, 6, HEAD_DIM)), "strides of dq do not write each of its elements"),
    "dk written twice": (dict(dk_strides=(224, 0, 16)), "strides of dk do not write each of its elements exactly once"),
    "dv too small": (dict(dv=(BATCH, KV_HEADS, 6, HEAD_DIM)), "dv has 384 elements, and its strides reach beyond them"),
    "dv written twice": (dict(dv_strides=(0, 112, 16)), "strides of dv do not write each of its elements exactly once"),
    "three strides of dv": (dict(dv_strides=(448, 224, 112, 16)), "three strides of dv are needed"),
}  # fmt: skip

MASKED_GRAD_EDITS = {
    "two masks": (dict(extra=(MASK,)), "beside q, k and v there is a mask, and nothing else"),
    "no parts": (dict(ds_parts=0), "ds_parts is 0, and lies between 1 and 2"),
    "three parts": (dict(ds_parts=3), "ds_parts is 3, and lies between 1 and 2"),
    "mask of bytes": (dict(mask=MASK.astype(jnp.int8)), "the mask is of booleans"),
    "a config of attention": (dict(config=CONFIG), "the kernel computes attention, and not its gradients"),
    "delta too small": (dict(delta=(BATCH, HEADS)), "delta has 12 elements, not one of each row of queries: 60"),
    "dv written twice": (dict(dv_strides=(0, 112, 16)), "strides of dv do not write each of its elements exactly once"),
}  # fmt: skip


# What calls of parts of arrays get, of the gradients, too.
VIEW_EDITS = {
    "negative offset": (dict(q_offset=-8), "q has offset -8, which is negative"),
    "the least offset": (dict(v_offset=-(2**63)), "v has offset -9223372036854775808, which is negative"),
    "offset beyond": (dict(k_offset=448), "k has 448 elements, and its strides from 448 on reach beyond them"),
    "offset a row too far": (dict(k_offset=16), "k has 448 elements, and its strides from 16 on reach beyond them"),
    "offset over int64": (dict(q_offset=2**63 - 1), "q has 960 elements, and its strides from 9223372036854775807 on"),
    "offset of 4 elements": (dict(v=(2, 2, 8, 16), v_offset=4), "v has an address that 16 bytes do not divide"),
    "offset missing": (dict(drop=("k_offset",)), "Wrong number of attributes"),
    "offset of i32": (dict(q_offset=np.int32(0)), "Failed to decode"),
}
VIEW_GRAD_EDITS = {
    "offset of d_o": (dict(d_o_offset=8), "d_o has 960 elements, and its strides from 8 on reach beyond them"),
    "offset of d_o missing": (dict(drop=("d_o_offset",)), "Wrong number of attributes"),
    "two masks of gradients": (dict(extra=(MASK, MASK)), "there is a mask, and nothing else"),
}


def check_edit(run_call, changes, message):
    with jax.enable_x64(True), pytest.raises(jax.errors.JaxRuntimeError) as error:
        run_call(**changes)
    assert message in str(error.value), error.value
    assert "INVALID_ARGUMENT" in str(error.value)


@needs_rows
@pytest.mark.parametrize("edit", EDITS | FORWARD_EDITS)
def test_an_edited_call_gets_an_error(edit):
    check_edit(call, *(EDITS | FORWARD_EDITS)[edit])


@needs_rows
@pytest.mark.parametrize("edit", MASK_EDITS)
def test_an_edited_call_with_a_mask_gets_an_error(edit):
    changes, message = MASK_EDITS[edit]
    check_edit(call, changes | dict(extra=(MASK,)), message)


F32_EDITS = {
    "operands of bf16": (dict(dtype="bfloat16"), "q is bf16, not f32"),
    "results of bf16": (dict(out="bfloat16"), " is bf16, not f32"),
    "head_dim of 12 floats": (dict(sizes=(*SIZES[:5], 12)), "head_dim is a multiple of 8, and at most"),
    "stride of 2 floats": (dict(k_strides=(224, 112, 2)), "k has strides that 16 bytes do not divide"),
    "offset of 2 floats": (dict(k=(2, 2, 8, 16), k_offset=2, view=True), "k has an address that 16 bytes do not"),
}  # fmt: skip
F32_FORWARD_EDITS = {
    "v of bf16": (dict(v_dtype="bfloat16"), "v is bf16, not f32"),
    "a rest": (dict(rests=((Q, "float32"),)), "rounding takes nothing from a result of f32"),
}
F32_GRAD_EDITS = {"two parts": (dict(view=True, ds_parts=2), "ds_parts is 2, and lies between 1 and 1")}


@pytest.mark.skipif("none" in OF_TF32.values(), reason="no rows of TF32 in this build")
@pytest.mark.parametrize("kernel", OF_TF32)
@pytest.mark.parametrize("edit", F32_EDITS | F32_FORWARD_EDITS | F32_GRAD_EDITS)
def test_an_edited_call_of_float32_gets_an_error(kernel, edit):
    own, run_call = (F32_FORWARD_EDITS, call) if kernel != GRAD else (F32_GRAD_EDITS, call_grad)
    if edit in F32_EDITS | own:
        changes, message = (F32_EDITS | own)[edit]
        check_edit(run_call, dict(config=OF_TF32[kernel], dtype="float32") | changes, message)


@pytest.mark.skipif("none" in OF_TF32.values(), reason="no rows of TF32 in this build")
def test_parts_of_float32_begin_at_4_elements():
    arrays = dict(k=(2, 2, 8, 16), k_offset=4, view=True, dtype="float32")
    o, _ = call(config=OF_TF32["sm90_attention"], **arrays)
    np.testing.assert_allclose(o, np.full(Q, 3.0), rtol=2.0**-22)
    dq, _, _ = call_grad(config=OF_TF32[GRAD], **arrays)
    np.testing.assert_allclose(dq, np.full(Q, 0.25 * 2), rtol=2e-2)


@needs_rows
@pytest.mark.parametrize("edit", EDITS | MASK_EDITS | MASKED_GRAD_EDITS)
def test_an_edited_call_of_gradients_with_a_mask_gets_an_error(edit):
    check_edit(call_masked_grad, *(EDITS | MASK_EDITS | MASKED_GRAD_EDITS)[edit])


@needs_rows
@pytest.mark.parametrize("edit", EDITS | GRAD_EDITS)
def test_an_edited_call_of_gradients_gets_an_error(edit):
    check_edit(call_grad, *(EDITS | GRAD_EDITS)[edit])


@needs_rows
@pytest.mark.parametrize("edit", EDITS | FORWARD_EDITS | VIEW_EDITS)
def test_an_edited_call_of_parts_gets_an_error(edit):
    changes, message = (EDITS | FORWARD_EDITS | VIEW_EDITS)[edit]
    check_edit(call, changes | dict(view=True), message)


@needs_rows
@pytest.mark.parametrize("edit", [x for x in EDITS | GRAD_EDITS | VIEW_EDITS | VIEW_GRAD_EDITS if x != NO_MASK])
def test_an_edited_call_of_gradients_of_parts_gets_an_error(edit):
    changes, message = (EDITS | GRAD_EDITS | VIEW_EDITS | VIEW_GRAD_EDITS)[edit]
    check_edit(call_grad, changes | dict(view=True), message)


@needs_rows
@pytest.mark.parametrize("run_call", [call, call_grad])
def test_other_targets_take_no_offset(run_call):
    check_edit(run_call, dict(q_offset=0), "Wrong number of attributes")


def test_without_a_row_an_error():
    """Of a build without these kernels, too."""
    message = "no compiled GEMM has this name"
    check_edit(call, dict(config="sm90_attention_bf16_1x1x64_s1_a16"), message)
    for of_gradients in (call_grad, call_masked_grad):
        check_edit(of_gradients, dict(config="sm90_attention_grad_bf16_1x1x64_s1_a16"), message)


@needs_rows
def test_the_configs_compute_no_products():
    names = {row.name for row in jax_moye.configs()}
    for config in attention_configs():
        assert config.attention
        assert config.name not in names
        problem = GemmProblem(1, 64, 64, 64, (0, 64, 1), (0, 64, 1), (0, 64, 1), config.dtype, config.dtype, False)
        assert why_not(config, problem, 90) == "it computes attention, and no products"
        with pytest.raises(ValueError, match="it computes attention, and no products"):
            jax_moye.matmul(jnp.ones((8, 8), "bfloat16"), jnp.ones((8, 8), "bfloat16"), config=config.name,
                            interpret=True)  # fmt: skip


SCORES = (BATCH, HEADS, Q_ROWS, KV_ROWS)
BIAS = (0, Q_ROWS * KV_ROWS, KV_ROWS, 1)


def call_biased(*, bias=SCORES[1:], dtype="float32", low=0.0, lse=(2, *LSE), ds=None, of_ds="float32", **changes):
    """On ones, with a bias of 0 for the first four keys, and of `low` for the others; or its gradients."""
    array = jnp.broadcast_to(jnp.where(jnp.arange(bias[-1]) < 4, 0, low).astype(dtype), bias)
    if changes.pop("gradients", False):
        largest = jnp.full(lse[1:], COMMON["scale"] * HEAD_DIM)
        of_rows = jnp.stack([largest, jnp.full(lse[1:], np.log(4))])[: lse[0]]
        operands = [*[jnp.ones(x, "bfloat16") for x in (Q, KV, KV, Q)], of_rows, jnp.full(LSE, HEAD_DIM - 2.0), array]
        results = [*((x, "bfloat16") for x in (Q, KV, KV)), *([] if ds is None else [(ds, of_ds)])]
        target, of_call = ffi.BIASED_ATTENTION_GRAD_TARGET, GRAD_CALL | VIEW_GRAD
    else:
        operands = [*[jnp.ones(x, "bfloat16") for x in (Q, KV)], jnp.full(KV, 3, "bfloat16"), array]
        results = [(Q, "bfloat16"), (lse, "float32")]
        target, of_call = ffi.BIASED_ATTENTION_TARGET, CALL | VIEW
    attributes = attributes_of(of_call | dict(bias_strides=BIAS), changes, ())
    return run(target, [jax.ShapeDtypeStruct(*x) for x in results], operands, attributes)


@needs_rows
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bias(dtype):
    """So low that four keys are left: p is 1 / 4 of these."""
    o, (largest, log_sum) = call_biased(dtype=dtype, low=-1e4)
    np.testing.assert_array_equal(o, np.full(Q, 3.0))
    np.testing.assert_array_equal(largest, np.full(LSE, 0.25 * HEAD_DIM))
    np.testing.assert_allclose(log_sum, np.full(LSE, np.log(4)), rtol=1e-6)
    for of_ds in ("float32", "bfloat16"):
        dq, dk, dv, ds = call_biased(gradients=True, dtype=dtype, low=-1e4, ds=SCORES, of_ds=of_ds)
        kept = np.arange(KV_ROWS) < 4
        np.testing.assert_allclose(dq, np.full(Q, 0.5), rtol=2e-2)
        np.testing.assert_allclose(dv, np.broadcast_to(kept[:, None] * GROUP * Q_ROWS / 4, KV), rtol=2e-2)
        np.testing.assert_allclose(dk, 0.5 * dv, rtol=2e-2)
        np.testing.assert_allclose(ds, np.broadcast_to(kept * 2 / 4, SCORES), rtol=2e-2)
    assert len(call_biased(gradients=True)) == 3


WRONG_BIASES = {
    "the bias is f16, not bf16 or f32": dict(dtype="float16"),
    "four strides of the bias are needed": dict(bias_strides=(0, 0, 1)),
    "the bias has strides .*, which are negative": dict(bias_strides=(0, -1, 1, 1)),
    "the bias has 210 elements, and its strides reach": dict(bias_strides=(0, Q_ROWS * KV_ROWS + 1, KV_ROWS, 1)),
    "lse has .* elements, not 2 of each row of queries": dict(lse=(1, *LSE)),
}
WRONG_GRADIENTS = {
    "ds has .* elements, not one of each score": dict(ds=SCORES[1:]),
    "ds is f16, not bf16 or f32": dict(ds=SCORES, of_ds="float16"),
}


@needs_rows
@pytest.mark.parametrize("message", [*WRONG_BIASES, *WRONG_GRADIENTS])
def test_a_wrong_bias(message):
    for gradients in (False, True):
        if gradients or message in WRONG_BIASES:
            with pytest.raises(jax.errors.JaxRuntimeError, match=message):
                call_biased(gradients=gradients, **(WRONG_BIASES | WRONG_GRADIENTS)[message])


CAP = 2.0  # of scores of 4


def call_capped(*, extra=(), gradients=False, drop=(), **changes):
    """On ones, with a cap; or its gradients: each score is 2 tanh(2)."""
    if gradients:
        of_rows = jnp.full(LSE, CAP * np.tanh(2.0) + np.log(KV_ROWS), "float32"), jnp.full(LSE, HEAD_DIM - 2.0)
        operands = [*(jnp.ones(x, "bfloat16") for x in (Q, KV, KV, Q)), *of_rows, *extra]
        results = [(x, "bfloat16") for x in (Q, KV, KV)]
        target, of_call = ffi.CAPPED_ATTENTION_GRAD_TARGET, GRAD_CALL | VIEW_GRAD
    else:
        operands = [*(jnp.ones(x, "bfloat16") for x in (Q, KV)), jnp.full(KV, 3, "bfloat16"), *extra]
        results = [(Q, "bfloat16"), (LSE, "float32")]
        target, of_call = ffi.CAPPED_ATTENTION_TARGET, CALL | VIEW
    attributes = attributes_of(of_call | dict(cap=CAP), changes, drop)
    return run(target, [jax.ShapeDtypeStruct(*x) for x in results], operands, attributes)


@needs_rows
def test_a_cap():
    o, lse = call_capped()
    np.testing.assert_array_equal(o, np.full(Q, 3.0))
    np.testing.assert_allclose(lse, np.full(LSE, CAP * np.tanh(2.0) + np.log(KV_ROWS)), rtol=1e-6)
    slope = 1 - np.tanh(2.0) ** 2
    dq, dk, dv = call_capped(gradients=True)
    np.testing.assert_allclose(dq, np.full(Q, 0.5 * slope), rtol=2e-2)
    np.testing.assert_allclose(dv, np.full(KV, GROUP * Q_ROWS / KV_ROWS), rtol=2e-2)
    np.testing.assert_allclose(dk, 0.5 * slope * dv, rtol=2e-2)


WRONG_CAPS = {
    "no cap": (dict(cap=0.0), "the cap is no finite number above 0"),
    "a negative cap": (dict(cap=-2.0), "the cap is no finite number above 0"),
    "a cap that is no number": (dict(cap=np.nan), "the cap is no finite number above 0"),
    "a cap that f32 has not": (dict(cap=1e39), "the cap is no finite number above 0"),
    "a small cap": (dict(cap=1e-36, scale=1e3), "the scale is too large for the cap"),
    "cap missing": (dict(drop=("cap",)), "Wrong number of attributes"),
    "cap of f32": (dict(cap=np.float32(2)), "Failed to decode"),
    "two masks": (dict(extra=(MASK, MASK)), "there is a mask, and nothing else"),
}


@needs_rows
@pytest.mark.parametrize("edit", WRONG_CAPS)
@pytest.mark.parametrize("gradients", [False, True])
def test_a_wrong_cap(edit, gradients):
    changes, message = WRONG_CAPS[edit]
    check_edit(call_capped, changes | dict(gradients=gradients), message)


KEPT = np.arange(KV_ROWS) < 4  # the weights of three keys are dropped


def call_dropped(*, kept=KEPT, bias=None, extra=(), gradients=False, drop=(), **changes):
    """On ones, without the weights of some keys, the others twice; or its gradients."""
    behind = [jnp.asarray(kept), *([] if bias is None else [jnp.zeros(SCORES[1:], bias)]), *extra]
    if gradients:
        of_rows = jnp.full(LSE, 4 + np.log(KV_ROWS), "float32"), jnp.full(LSE, 2.0)
        if bias is not None:
            of_rows = jnp.stack([jnp.full(LSE, 4.0), jnp.full(LSE, np.log(KV_ROWS))]), of_rows[1]
        operands = [*(jnp.ones(x, "bfloat16") for x in (Q, KV, KV, Q)), *of_rows, *behind]
        results = [(x, "bfloat16") for x in (Q, KV, KV)]
        target, of_call = ffi.DROPPED_ATTENTION_GRAD_TARGET, GRAD_CALL | VIEW_GRAD | dict(mask_has_gradients=False)
    else:
        operands = [*(jnp.ones(x, "bfloat16") for x in (Q, KV)), jnp.full(KV, 3, "bfloat16"), *behind]
        results = [(Q, "bfloat16"), (LSE if bias is None else (2, *LSE), "float32")]
        target, of_call = ffi.DROPPED_ATTENTION_TARGET, CALL | VIEW
    of_dropout = dict(dropout_strides=(0, 0, 0, 1), dropout_factor=2.0)
    of_bias = dict(bias_strides=(0, 0, 0, 0) if bias is None else BIAS)
    attributes = attributes_of(of_call | of_dropout | of_bias, changes, drop)
    return run(target, [jax.ShapeDtypeStruct(*x) for x in results], operands, attributes)


@needs_rows
@pytest.mark.parametrize("bias", [None, "float32", "bfloat16"])
def test_dropout(bias):
    """With a bias, a mask, both and neither: which is which says the type."""
    share = 1 / KV_ROWS
    for extra in ((), (jnp.ones(KV_ROWS, bool),)):
        of_mask = dict(extra=extra) | (dict(mask_strides=(0, 0, 0, 1)) if extra else {})
        o, lse = call_dropped(bias=bias, **of_mask)
        np.testing.assert_allclose(o, np.full(Q, 3 * 2 * 4 * share), rtol=1e-2)
        total = lse if bias is None else lse[0] + lse[1]
        np.testing.assert_allclose(total, np.full(LSE, 4 + np.log(KV_ROWS)), rtol=1e-6)
        dq, dk, dv = call_dropped(bias=bias, gradients=True, **of_mask)
        ds = share * (2 * HEAD_DIM * KEPT - 2)
        np.testing.assert_allclose(dq, np.full(Q, 0.25 * ds.sum()), rtol=2e-2)
        rows = GROUP * Q_ROWS
        np.testing.assert_allclose(dv, np.broadcast_to((rows * 2 * share * KEPT)[:, None], KV), rtol=2e-2)
        np.testing.assert_allclose(dk, np.broadcast_to((rows * 0.25 * ds)[:, None], KV), rtol=2e-2)


WRONG_DROPOUTS = {
    "no factor": (dict(dropout_factor=0.0), "the factor of weights that are kept is no finite number above 0"),
    "a negative factor": (dict(dropout_factor=-1.0), "the factor of weights that are kept is no finite number above 0"),
    "a factor that f32 has not": (dict(dropout_factor=1e39), "is no finite number above 0"),
    "three strides": (dict(dropout_strides=(0, 0, 1)), "four strides of the dropout are needed"),
    "a negative stride": (
        dict(dropout_strides=(0, 0, 0, -1)),
        "the dropout has strides (0, 0, 0, -1), which are negative",
    ),
    "too far": (dict(dropout_strides=(0, 0, 1, 1)), "the dropout has 7 elements, and its strides reach"),
    "integers": (dict(kept=KEPT.astype("int8")), "the dropout is of booleans"),
    "floats behind it twice": (dict(bias="float32", extra=(jnp.zeros(7),)), "the mask is of booleans"),
    "two masks": (dict(extra=(MASK, MASK)), "there is a mask, and nothing else"),
    "factor missing": (dict(drop=("dropout_factor",)), "Wrong number of attributes"),
    "a bias too short": (
        dict(bias="float32", bias_strides=(9999, 1, 1, 1)),
        "the bias has 210 elements, and its strides reach",
    ),
}


@needs_rows
@pytest.mark.parametrize("edit", WRONG_DROPOUTS)
@pytest.mark.parametrize("gradients", [False, True])
def test_wrong_dropout(edit, gradients):
    changes, message = WRONG_DROPOUTS[edit]
    check_edit(call_dropped, changes | dict(gradients=gradients), message)


@needs_rows
def test_masked_scores_of_minus_infinity_have_no_gradients():
    of_mask = dict(extra=(jnp.ones(KV_ROWS, bool),), mask_strides=(0, 0, 0, 1), mask_has_gradients=True)
    assert len(call_dropped(gradients=True, **of_mask)) == 3
    message = "masked scores that are -inf have no gradients"
    check_edit(call_dropped, of_mask | dict(gradients=True, mask_is_infinite=True), message)
