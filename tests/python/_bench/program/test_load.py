"""Programs by name: those that are built in, a user's own, and what is wrong with others."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_moye._bench.models.table import MODELS
from jax_moye._bench.program.load import ProgramError, load

pytestmark = pytest.mark.usefixtures("mine")


def test_one_that_is_built_in():
    sizes = {**MODELS["mlp_mixer"].small, "layers": 1}
    found = load("mlp_mixer", sizes, "float16")
    assert found.sizes.startswith("layers 1, width 32, inner_tokens 24")
    assert found.sizes.endswith("patch 2, float16")
    assert found.about == MODELS["mlp_mixer"].about
    assert load("mlp_mixer", {"layers": 1}, None, is_small=True).sizes == f"{found.sizes.rpartition(',')[0]}, bfloat16"
    assert jax.eval_shape(found.fun, *found.args)[1].shape == ()


def test_keywords_numpy_and_dotted_names():
    found = load("mine:Inner.make", {"width": 8}, None)
    assert found.sizes == "width 8"
    assert [arg.shape for arg in found.args] == [(8, 8), (8, 8), (8,)]
    assert isinstance(found.args, tuple)


def test_arrays_of_numpy_are_on_the_device(monkeypatch):
    load("mine:layer", {}, None)
    monkeypatch.setattr(sys.modules["mine"], "one", lambda: (jnp.sin, (np.ones(3), 2.0)))
    array, scalar = load("mine:one", {}, None).args
    assert isinstance(array, jax.Array)
    assert scalar == 2.0


@pytest.mark.parametrize(
    ("name", "sizes", "why"),
    [
        ("transformer", {}, "neither built in .* nor module:function"),
        ("mlp_mixer", {"depth": 3}, "depth is none of its sizes, which are layers, width"),
        ("unet_blocks", {"width": 30}, "width 30 is no multiple of heads 10|width 30 is no multiple"),
        ("nowhere.mine:layer", {}, "there is no module nowhere"),
        ("broken:layer", {}, "broken fails: ModuleNotFoundError: No module named 'no_such_module_of_anybody'"),
        ("mine:nothing", {}, "mine has no nothing"),
        ("mine:number", {}, "mine:number is int and no function"),
        ("mine:fails", {}, r"mine:fails\(\) failed: OSError: no data"),
        ("mine:layer", {"depth": 3}, r"mine:layer\(depth=3\) failed: TypeError: .*depth"),
        ("mine:one", {}, r"mine:one\(\) returned function, and not \(step, arguments\)"),
        ("mine:three", {}, r"returned \(function, int, int\), and not"),
    ],
)
def test_what_is_no_program(name, sizes, why):
    with pytest.raises(ProgramError, match=why):
        load(name, sizes, None)


def test_a_dtype_is_of_those_that_are_built_in():
    with pytest.raises(ProgramError, match="--dtype is of programs that are built in"):
        load("mine:layer", {}, "float32")
