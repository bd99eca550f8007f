"""jax_moye.kernel on a GPU: the kernel of docs/own_kernel.md, compiled by nvcc, under jit and next to XLA."""

from __future__ import annotations

import json
import pathlib
import re

import jax
import numpy as np
import pytest

import jax_moye
from jax_moye import __main__ as cli
from jax_moye import _compat

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs/own_kernel.md").read_text()
TEXT = re.search(r"<!-- file: mine.cuh -->\n```cpp\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
ROW = "{mine, f32, f32, {64, 64, 8}, 1, {1, 1}, 4}"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "mine.cuh"
    path.write_text(TEXT)
    try:
        jax_moye.kernel(path, config=ROW)
    except jax_moye.KernelError as error:
        if "no nvcc" in str(error):
            pytest.skip(str(error))
        raise
    return path


def test_products_are_exact(file):
    mine = jax_moye.kernel(file, config=ROW)
    assert mine.registers.keys() == {f"sm_{_compat.cuda_arch()}"}
    rng = np.random.default_rng(0)
    for batch, m, n, k in [(1, 64, 64, 8), (1, 100, 90, 70), (3, 257, 130, 33), (1, 1, 1, 1)]:
        a, b = (rng.integers(-4, 5, size).astype(np.float32) for size in ((batch, m, k), (batch, k, n)))
        product = jax.jit(lambda a, b: jax_moye.matmul(a, b, config=mine))
        assert f'config = "{mine.name}"' in product.lower(a, b).as_text()
        assert (np.asarray(product(a, b)) == a @ b).all(), (batch, m, n, k)
        gradient = jax.grad(lambda a, b: jax_moye.matmul(a, b, config=mine).sum(), argnums=(0, 1))(a, b)
        assert (np.asarray(gradient[0]) == np.broadcast_to(b.sum(2)[:, None], a.shape)).all()
        fused = jax.jit(lambda a, b: jax_moye.linear(a, b, activation="relu", config=mine))(a[0], b[0])
        assert (np.asarray(fused) == np.maximum(a[0] @ b[0], 0)).all()


def test_a_changed_file_is_another_kernel(file):
    first = jax_moye.kernel(file, config=ROW)
    file.write_text(TEXT.replace("Layout<Shape<_32, _8>>{},", "Layout<Shape<_32, _8>, Stride<_8, _1>>{},", 1))
    second = jax_moye.kernel(file, config=ROW)
    assert first.name != second.name
    a = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 7
    both = jax.jit(lambda a: [jax_moye.matmul(a, a, config=config) for config in (first, second)])(a)
    assert all((np.asarray(d) == a @ a).all() for d in both)


def test_bench_times_it(file, tmp_path):
    out = tmp_path / "out.json"
    quick = ["--turn-ms", "2", "--warmup-ms", "1", "--alternations", "3", "--baselines", "xla"]
    options = ["--kernel", str(file), "--config-row", ROW, "--shape", "512x512x512:f32", "--out", str(out)]
    assert cli.main(["bench", *options, *quick]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["correct"]
    assert row["config"].startswith("mine_f32_64x64x8_s1_a4_h")
    assert row["us"] > 0
