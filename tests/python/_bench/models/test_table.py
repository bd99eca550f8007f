"""The built-in programs: their sizes go together, and their results are what they say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_moye._bench.models.table import MODELS

pytestmark = pytest.mark.parametrize("name", MODELS)


def test_the_usual_sizes_go_together(name):
    """Nothing is allocated: the arguments are shapes."""
    made = []

    def arguments():
        step, args = MODELS[name].make("bfloat16")
        made.append(step)
        return args

    args = jax.eval_shape(arguments)
    out = jax.eval_shape(made[0], *args)
    assert {leaf.dtype for leaf in jax.tree.leaves(args)} == {np.dtype("bfloat16"), np.dtype("int32")} or (
        name == "unet_blocks"
    )
    of_weights = jax.tree.map(jnp.shape, args[0])
    if name == "unet_blocks":
        assert jax.tree.map(jnp.shape, out[1]) == of_weights
    elif name != "transformer_decoding":
        assert jax.tree.map(jnp.shape, out[0]) == of_weights
        assert out[1].shape == ()
    else:
        assert out[0].shape == (16, 32000)


def test_small_sizes_run(name):
    """In half precision, whose range is small; results have the dtype or, as losses, float32."""
    model = MODELS[name]
    assert model.small.keys() == model.sizes.keys()
    one = {key: 1 for key in ("layers", "blocks") if key in model.sizes}
    step, args = model.make("float16", **model.small | one)
    results = jax.tree.leaves(jax.jit(step)(*args))
    assert all(bool(np.isfinite(np.asarray(x, np.float32)).all()) for x in results)
    assert {x.dtype for x in results} <= {np.dtype("float16"), np.dtype("float32")}


def test_other_sizes(name):
    model = MODELS[name]
    batch = model.small["batch"] + 1
    _, args = model.make("bfloat16", **model.small | {"batch": batch})
    assert batch in {size for leaf in jax.tree.leaves(args[1:]) for size in leaf.shape}
    with pytest.raises(ValueError, match="depth is none of its sizes, which are"):
        model.make("bfloat16", depth=3)
    with pytest.raises(ValueError, match="batch is 0"):
        model.make("bfloat16", batch=0)
