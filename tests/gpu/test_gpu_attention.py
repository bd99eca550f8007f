"""sm90_attention and sm90_attention_grad on a GPU: generated calls within their bounds. On the CPU a few, emulated.

Of operands that are parts of larger arrays the CPU runs the same programs, in test_attention_views.py.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.attentions import (
    FORMS,
    NEARLY_EQUAL,
    arrays,
    assert_as_exact,
    errors_where_weights_are_nearly_equal,
    exact,
    gradients,
)
from python.viewed_attention import CASES as PARTS
from python.viewed_attention import TARGETS
from python.viewed_attention import check as check_parts

import jax_moye
from jax_moye._kernels.configs import attention_configs
from jax_moye._selection.capability import LoweringTarget
from tests.emulated.attention_cases import KINDS, Case, check, random_case
from tests.emulated.test_attention import BIASES, CAPS, DROPOUTS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

every_config = pytest.mark.parametrize("config", attention_configs(), indirect=True, ids=lambda config: config.name)
CASES = 60  # of each config


@every_config
def test_generated_calls(config):
    """Rows around those of tiles, groups, diagonals, masks, orders of dimensions."""
    rng = np.random.default_rng(sum(map(ord, config.name)))
    for _ in range(CASES):
        check(config, random_case(rng, config.tile[2], 1500), None)


@every_config
@pytest.mark.parametrize("kind", KINDS)
def test_more_tiles_than_multiprocessors(config, kind):
    case = Case(batch=3, kv_heads=4, group=2, q_rows=1030, kv_rows=1100, head_dim=config.tile[2], kind=kind)
    check(config, case, None)


@every_config
@pytest.mark.parametrize("kind", KINDS)
def test_what_rounding_took(config, kind):
    """Of many tiles, where the rest goes through the memory that the result is still read from."""
    if config.kernel != "sm90_attention":
        pytest.skip("gradients round their results once, and nobody wants the rest")
    case = Case(batch=3, kv_heads=4, group=2, q_rows=1030, kv_rows=1100, head_dim=config.tile[2], kind=kind)
    for dims_o, diagonal in ((None, None), ("bhqd", 70)):
        check(config, dataclasses.replace(case, with_rest=True, dims_o=dims_o, diagonal=diagonal), None)


@every_config
@pytest.mark.parametrize("index", ["kv_rows", "q_rows"])
def test_without_rows(config, index):
    sizes = dict(batch=2, kv_heads=2, group=2, q_rows=70, kv_rows=70, head_dim=64) | {index: 0}
    check(config, Case(**sizes, diagonal=0), None)


@every_config
@pytest.mark.parametrize("mask", ["bhqk", "kq", "bk", "h", ""])
def test_masks(config, mask):
    for is_infinite in (False, True):
        sizes = dict(batch=2, kv_heads=2, group=2, q_rows=270, kv_rows=300, head_dim=64)
        check(config, Case(**sizes, diagonal=100, mask=mask, mask_is_infinite=is_infinite), None)


@every_config
@pytest.mark.parametrize("name", BIASES)
def test_biases(config, name):
    """Of many tiles, in pairs and by elements, with masks, low ones and -inf; and their gradients."""
    case = Case(batch=3, kv_heads=2, group=2, q_rows=1030, kv_rows=1100, head_dim=config.tile[2])
    check(config, dataclasses.replace(case, **BIASES[name]), None)


@every_config
@pytest.mark.parametrize("name", CAPS)
def test_caps(config, name):
    """Of many tiles: scores far below the cap and near to it, with masks, windows and rows that see nothing."""
    case = Case(batch=3, kv_heads=2, group=2, q_rows=1030, kv_rows=1100, head_dim=config.tile[2])
    check(config, dataclasses.replace(case, **CAPS[name]), None)


@every_config
@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout(config, name):
    """Of many tiles, in words and bytes, with masks, biases, and gradients of rows all of whose scores are masked."""
    case = Case(batch=3, kv_heads=2, group=2, q_rows=1030, kv_rows=1100, head_dim=config.tile[2])
    check(config, dataclasses.replace(case, **DROPOUTS[name]), None)


needs_kernels = pytest.mark.skipif(
    len({config.kernel for config in attention_configs()}) < 2, reason="no rows of sm90_attention in this build"
)


def skip_on_other_gpus() -> None:
    if LoweringTarget.of_platform("cuda").arch != 90:
        pytest.skip("kernels of attention are sm_90's")


@needs_kernels
@pytest.mark.parametrize("name", NEARLY_EQUAL)
@pytest.mark.parametrize("offset", [0, 3])
def test_gradients_where_weights_are_nearly_equal(offset, name):
    """As precise as the program on a CPU, see the test of that name there; XLA may round less on a GPU."""
    skip_on_other_gpus()
    of_kernel, of_program = errors_where_weights_are_nearly_equal(name, offset)
    most = {"float16": 0.002, "float32": 0.004, "16 bits": 0.2}.get(name, 0.015)
    assert of_kernel < most, (of_kernel, of_program)


@needs_kernels
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_arrays(name):
    """With gradients: the kernels read them where they are."""
    skip_on_other_gpus()
    check_parts(name, interpret=False)


@needs_kernels
@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("head_dim", [64, 72, 128, 136, 256])
def test_large_gradients_are_written_side_by_side(head_dim, side_by_side):
    """Rows of q, k and v, or of each head's, several tiles each: no concatenation, and the same bits again."""
    skip_on_other_gpus()
    batch, rows, heads = 2, 517, 6
    parts = (3, heads) if side_by_side else (heads, 3)
    qkv, d_o = arrays(np.random.default_rng(0), (batch, rows, 3 * heads * head_dim), (batch, rows, heads, head_dim))

    def split(qkv):
        qkv = qkv.reshape(batch, rows, *parts, head_dim)
        return [qkv[:, :, i] if side_by_side else qkv[:, :, :, i] for i in range(3)]

    def fun(qkv, d_o):
        return jax.vjp(lambda x: FORMS["plain"](*split(x), True), qkv)[1](d_o)

    with jax_moye.options(implementation="moye"):
        compiled = jax.jit(jax_moye.optimize(fun)).lower(qkv, d_o).compile()
    text = compiled.as_text()
    assert text.count('custom_call_target="jax_moye_joined_attention_grad_v1"') == 1
    assert " concatenate(" not in text
    assert " pad(" not in text
    results, again = compiled(qkv, d_o), compiled(qkv, d_o)
    np.testing.assert_array_equal(*(np.asarray(x[0], np.float32) for x in (results, again)))
    axis = 2 if side_by_side else 3
    whole = np.moveaxis(np.asarray(qkv, np.float64).reshape(batch, rows, *parts, head_dim), axis, 0)
    _, *wanted = exact(*whole, np.asarray(d_o, np.float64), True)
    wanted = np.stack(wanted, axis=axis).reshape(qkv.shape)
    assert_as_exact(results, jax.jit(fun)(qkv, d_o), [wanted], jnp.bfloat16)


@needs_kernels
@pytest.mark.parametrize("head_dim", [64, 72, 128, 136, 256])
def test_large_parts_are_not_written_to_memory(head_dim):
    """Of one array of q, k and v, several tiles each: the compiled program has no copy, and the same bits again."""
    skip_on_other_gpus()
    batch, rows, heads = 2, 517, 6
    shapes = (batch, rows, 3 * heads * head_dim), (batch, rows, heads, head_dim)
    qkv, d_o = arrays(np.random.default_rng(0), *shapes)

    def fun(qkv, d_o):
        qkv = qkv.reshape(batch, rows, 3, heads, head_dim)
        return gradients(FORMS["plain"], True)(*(qkv[:, :, i] for i in range(3)), d_o)

    with jax_moye.options(implementation="moye"):
        compiled = jax.jit(jax_moye.optimize(fun)).lower(qkv, d_o).compile()
    text = compiled.as_text()
    assert [text.count(f'custom_call_target="{target}"') for target in TARGETS] == [1, 1]
    assert " slice(" not in text
    results, again = compiled(qkv, d_o), compiled(qkv, d_o)
    for x, y in zip(results, again, strict=True):
        np.testing.assert_array_equal(np.asarray(x, np.float32), np.asarray(y, np.float32))
    parts = np.moveaxis(np.asarray(qkv, np.float64).reshape(batch, rows, 3, heads, head_dim), 2, 0)
    assert_as_exact(results, jax.jit(fun)(qkv, d_o), exact(*parts, np.asarray(d_o, np.float64), True), jnp.bfloat16)
