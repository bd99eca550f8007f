"""jax_moye.kernel: the kernel of docs/own_kernel.md compiled, called, changed, and refused.

tests/build/test_own_kernel_page.py does what the page does: a race is reported at its lines, and what a change costs.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye._kernels import cache, compiler, own
from jax_moye._kernels.config_names import parse_name
from jax_moye._kernels.configs import find_config, is_own

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs/own_kernel.md").read_text()
TEXT = re.search(r"<!-- file: mine.cuh -->\n```cpp\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
ROW = "{mine, f32, f32, {64, 64, 8}, 1, {1, 1}, 4}"

pytestmark = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with mine.cuh, and a cache that the tests of this file share."""
    path = tmp_path_factory.mktemp("own")
    (path / "mine.cuh").write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def _one_cache(folder, monkeypatch):
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(folder / "cache"))


@pytest.fixture(scope="module")
def mine(folder):
    before = os.environ.get("JAX_MOYE_CACHE_DIR")
    os.environ["JAX_MOYE_CACHE_DIR"] = str(folder / "cache")
    try:
        return jax_moye.kernel(folder / "mine.cuh", config=ROW)
    finally:
        os.environ.pop("JAX_MOYE_CACHE_DIR")
        if before is not None:
            os.environ["JAX_MOYE_CACHE_DIR"] = before


def integers(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.integers(-4, 5, shape), jnp.float32) for shape in shapes]


def test_the_config(mine):
    assert re.fullmatch(r"mine_f32_64x64x8_s1_a4_h[0-9a-f]{8}", mine.name)
    assert (mine.kernel, mine.dtype, mine.tile, mine.threads) == ("mine", "f32", (64, 64, 8), 256)
    assert parse_name(mine.name).name == mine.name.rpartition("_")[0]
    assert find_config(mine.name) is mine
    assert find_config(mine) is mine
    assert is_own(mine)
    assert mine not in jax_moye.configs()  # nobody gets it who does not name it


def test_a_config_of_another_process(mine):
    """A config can be pickled; its code cannot."""
    with pytest.raises(ValueError, match=r"call jax_moye\.kernel for it in this process, too"):
        jax_moye.matmul(*integers((8, 8), (8, 8)), config=mine.name[:-8] + "00000000", interpret=True)


def test_products_are_exact(mine):
    a, b, batched = integers((70, 33), (33, 90), (3, 70, 33))
    options = {"config": mine, "interpret": True}
    expected = np.asarray(a) @ np.asarray(b)
    assert (jax.jit(lambda a, b: jax_moye.matmul(a, b, **options))(a, b) == expected).all()
    assert (jax_moye.matmul(a, b.T.copy().T, **options) == expected).all()
    of_batch = jax.vmap(lambda a: jax_moye.matmul(a, b, **options))(batched)
    assert (of_batch == np.asarray(batched) @ np.asarray(b)).all()
    with jax_moye.options(interpret=True):
        layer = jax_moye.linear(a, b, activation="relu", config=mine.name)
    assert (layer == np.maximum(expected, 0)).all()


def test_its_name_is_in_the_program_and_explained(mine):
    a, b = integers((70, 33), (33, 90))
    text = jax.jit(lambda a, b: jax_moye.matmul(a, b, config=mine, interpret=True)).lower(a, b).as_text()
    assert f'config = "{mine.name}"' in text
    explained = jax_moye.explain(a, b, config=mine, device="h200", precision="highest")
    assert explained[0].computed_by == "moye"
    assert [one.config.name for one in explained[0].candidates if is_own(one.config)] == [mine.name]


def test_what_was_compiled_is_found_again(folder, mine, monkeypatch):
    ran = []
    run = compiler.run
    monkeypatch.setattr(compiler, "run", lambda command, *rest: ran.append(command) or run(command, *rest))
    assert jax_moye.kernel(folder / "mine.cuh", config=ROW) == mine
    assert [("-E" in command, "-c" in command) for command in ran] == [(True, False)]
    assert {path.name for path in (folder / "cache/kernels").iterdir()} == {
        pathlib.Path(path).name for path in (folder / "cache/kernels").glob("[0-9a-f]" * 32)
    }


def test_another_text_is_another_config(folder, mine, tmp_path):
    """Of the file, or of one that it includes; the same text elsewhere, or with another row, is the same version."""
    source = compiler.Source(
        folder / "mine.cuh", parse_name(mine.name), pathlib.Path(jax_moye.include_dir()), is_new=True
    )
    (tmp_path / "kernel.cc").write_text("")

    def version(text, header="// one\n"):
        (tmp_path / "mine.cuh").write_text(text)
        (tmp_path / "mine.h").write_text(header)
        here = source._replace(path=tmp_path / "mine.cuh")
        (tmp_path / "kernel.cc").write_text(here.instance())
        return compiler.preprocessed(here, ["g++"], tmp_path)[1]

    own_version = mine.name.rpartition("_h")[2]
    assert version(TEXT) == own_version
    assert version(TEXT + "// changed\n") != own_version
    including = TEXT.replace("#pragma once\n", '#pragma once\n#include "mine.h"\n')
    assert version(including) != version(including, "// two\n")


def test_what_the_compiler_refuses_is_an_error_with_its_line(folder):
    (folder / "typo").mkdir()
    path = folder / "typo/mine.cuh"
    path.write_text(TEXT.replace("copy(tArA, tAsA)", "copy(tArA, tAsX)"))
    line = next(i for i, line in enumerate(TEXT.splitlines(), 1) if "copy(tArA, tAsA)" in line)
    with pytest.raises(jax_moye.KernelError, match=f"^mine.cuh:{line}: .*tAsX") as error:
        jax_moye.kernel(path, config=ROW)
    assert (error.value.file, error.value.line) == (str(path), line)


def test_a_config_of_a_kernel_of_the_package():
    """What does not fit does not compile: a k-tile of 64 x 8 is not one 16-byte load of each of 256 threads."""
    path = pathlib.Path(jax_moye.include_dir()) / "gemm/simt_tiled.cuh"
    with pytest.raises(jax_moye.KernelError, match=r"^simt_tiled.cuh:\d+: .*whole number of loads"):
        jax_moye.kernel(path, config="{simt_tiled, f32, f32, {64, 128, 8}, 1, {1, 1}, 16}")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{mine}", "a row of cuda/gemm/configs.h is"),
        (ROW.replace("mine", "yours"), "'yours', and the file is mine.cuh"),
        (ROW.replace("{64, 64, 8}", "{64, 0, 8}"), "tile, stages and cluster are 1 or more"),
        (ROW.replace(" 1, {", " 0, {"), "tile, stages and cluster are 1 or more"),
        (ROW.replace("4}", "3}"), "the alignment is 1, 2, 4, 8 or 16 bytes"),
    ],
)
def test_wrong_rows(folder, row, words):
    with pytest.raises(ValueError, match=words):
        jax_moye.kernel(folder / "mine.cuh", config=row)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"file": 3}, "file is a path such as 'mine.cuh', not 3"),
        ({"config": None}, "config is a row such as '{mine, .*', not None"),
        ({"config": [ROW]}, "config is a row such as"),
        ({"arch": "90"}, "arch is an int such as 90, not '90'"),
        ({"arch": True}, "arch is an int such as 90, not True"),
    ],
)
def test_wrong_types(folder, changes, words):
    with pytest.raises(TypeError, match=f"kernel: {words}"):
        jax_moye.kernel(**{"file": folder / "mine.cuh", "config": ROW} | changes)


def test_wrong_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        jax_moye.kernel(tmp_path / "mine.cuh", config=ROW)
    (tmp_path / 'a"b').mkdir()
    (tmp_path / 'a"b' / "mine.cuh").write_text(TEXT)
    with pytest.raises(ValueError, match="no C\\+\\+ compiler includes"):
        jax_moye.kernel(tmp_path / 'a"b' / "mine.cuh", config=ROW)


def test_headers_of_another_build(folder, monkeypatch):
    module = own.ffi.extension("cpu")
    assert set(module.own_kernel_headers) >= {"gemm/config.h", "moye/emu/emu.h"}
    with pytest.raises(RuntimeError, match=r"config\.h is not what this jax_moye was built with"):
        own.check_headers(pathlib.Path(jax_moye.include_dir()), {"gemm/config.h": "another"})


def test_a_library_is_loaded_from_a_private_folder_alone(folder, mine, monkeypatch):
    """What another user could have planted under the right name is compiled anew, elsewhere."""
    (folder / "cache/kernels").chmod(0o777)
    try:
        loaded = []
        address = compiler.function_address
        monkeypatch.setattr(compiler, "function_address", lambda path: loaded.append(path) or address(path))
        assert jax_moye.kernel(folder / "mine.cuh", config=ROW) == mine
    finally:
        (folder / "cache/kernels").chmod(0o700)
        cache._temporary.cache_clear()
    (path,) = loaded
    assert folder not in path.parents
    assert path.parents[1].stat().st_mode & 0o777 == 0o700
