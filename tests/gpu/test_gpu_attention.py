"""sm90_attention and sm90_attention_grad on a GPU: generated calls within their bounds. On the CPU a few, emulated."""

from __future__ import annotations

import numpy as np
import pytest
from test_gpu_matmul import why_not_here

from jax_moye._kernels.configs import attention_configs
from tests.emulated.attention_cases import KINDS, Case, check, random_case

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

every_config = pytest.mark.parametrize("config", attention_configs(), ids=lambda config: config.name)
CASES = 60  # of each config


def skip_where_it_does_not_run(config) -> None:
    if (reason := why_not_here(config)) is not None:
        pytest.skip(reason)


@every_config
def test_generated_calls(config):
    """Rows around those of tiles, groups, diagonals, masks, orders of dimensions."""
    skip_where_it_does_not_run(config)
    rng = np.random.default_rng(sum(map(ord, config.name)))
    for _ in range(CASES):
        check(config, random_case(rng, config.tile[2], 1500), None)


@every_config
@pytest.mark.parametrize("kind", KINDS)
def test_more_tiles_than_multiprocessors(config, kind):
    skip_where_it_does_not_run(config)
    case = Case(batch=3, kv_heads=4, group=2, q_rows=1030, kv_rows=1100, head_dim=config.tile[2], kind=kind)
    check(config, case, None)


@every_config
@pytest.mark.parametrize("index", ["kv_rows", "q_rows"])
def test_without_rows(config, index):
    skip_where_it_does_not_run(config)
    sizes = dict(batch=2, kv_heads=2, group=2, q_rows=70, kv_rows=70, head_dim=64) | {index: 0}
    check(config, Case(**sizes, diagonal=0), None)


@every_config
@pytest.mark.parametrize("mask", ["bhqk", "kq", "bk", "h", ""])
def test_masks(config, mask):
    skip_where_it_does_not_run(config)
    for is_infinite in (False, True):
        sizes = dict(batch=2, kv_heads=2, group=2, q_rows=270, kv_rows=300, head_dim=64)
        check(config, Case(**sizes, diagonal=100, mask=mask, mask_is_infinite=is_infinite), None)
