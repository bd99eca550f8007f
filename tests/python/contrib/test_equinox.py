"""Equinox: layers under vmap are one product, and contrib.equinox exchanges them."""

import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import FUSED_TARGET, TARGET, kernel_calls

import jax_moye

eqx = pytest.importorskip("equinox")
contrib = pytest.importorskip("jax_moye.contrib.equinox")

EMULATED = {"implementation": "moye", "interpret": True}


def test_it_is_imported_when_it_is_first_used():
    code = "import sys, jax_moye; assert 'equinox' not in sys.modules; assert jax_moye.contrib.equinox.use"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=pathlib.Path(jax_moye.__file__).parents[1])
    with pytest.raises(AttributeError, match=r"module 'jax_moye\.contrib' has no attribute 'nothing'"):
        _ = jax_moye.contrib.nothing


def program(fun, *args):
    return jax.jit(fun).lower(*args).compile().as_text()


def launches(text):
    return len(re.findall(rf'custom_call_target="(?:{TARGET}|{FUSED_TARGET})"', text))


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_importing_jax_moye_imports_no_equinox():
    code = "import sys, jax_moye; assert not {'equinox', 'flax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("use_bias", [True, False])
def test_a_layer_under_vmap_is_one_launch(rng, use_bias):
    theirs = eqx.nn.Linear(6, 5, use_bias=use_bias, key=jax.random.key(0))
    ours = contrib.use(theirs)
    assert ours.weight is theirs.weight
    x = jnp.asarray(rng.standard_normal((7, 3, 6)), jnp.float32)
    with jax_moye.options(**EMULATED):
        text = program(jax.vmap(jax.vmap(ours)), x)
        assert launches(text) == 1
        assert " transpose(" not in text  # the weight is (out, in): strides
        assert " copy(" not in text
        close(jax.vmap(jax.vmap(ours))(x), jax.vmap(jax.vmap(theirs))(x))
        close(ours(x[0, 0]), theirs(x[0, 0]))


def test_activations_are_in_the_launch(rng):
    layer = contrib.Linear(6, 5, activation="gelu", key=jax.random.key(0))
    x = jnp.asarray(rng.standard_normal((7, 6)), jnp.float32)
    with jax_moye.options(**EMULATED):
        assert launches(program(jax.vmap(layer), x)) == 1
        close(jax.vmap(layer)(x), jax.nn.gelu(x @ layer.weight.T + layer.bias))
        close(jax.vmap(contrib.from_linear(layer, "relu"))(x), jax.nn.relu(x @ layer.weight.T + layer.bias))


def test_dtypes_are_promoted_as_equinox_does(rng):
    theirs = eqx.nn.Linear(6, 5, key=jax.random.key(0))
    x = jnp.asarray(rng.standard_normal((7, 6)), jnp.bfloat16)
    ours = jax.vmap(contrib.use(theirs))(x)
    assert ours.dtype == jax.vmap(theirs)(x).dtype == jnp.float32
    close(ours, jax.vmap(theirs)(x))


@pytest.mark.parametrize(
    ("weight", "bias"), [("bfloat16", "float32"), ("float16", "bfloat16"), ("float32", "complex64")]
)
def test_a_wider_bias_is_promoted_to(rng, weight, bias):
    theirs = eqx.nn.Linear(6, 5, key=jax.random.key(0))
    arrays = theirs.weight.astype(weight), theirs.bias.astype(bias) + 2**-10
    theirs = eqx.tree_at(lambda layer: (layer.weight, layer.bias), theirs, arrays)
    x = jnp.asarray(rng.integers(-3, 4, (7, 6)), weight)
    ours, expected = jax.vmap(contrib.use(theirs))(x), jax.vmap(theirs)(x)
    assert ours.dtype == expected.dtype == jnp.promote_types(weight, bias)
    np.testing.assert_allclose(ours, expected, rtol=2**-7, atol=2**-7)  # theirs is rounded to the weight's before


def test_scalars_and_wrong_shapes():
    for sizes, x in ((("scalar", 5), jnp.float32(2)), ((6, "scalar"), jnp.ones(6)), (("scalar", "scalar"), 2.0)):
        layer = eqx.nn.Linear(*sizes, key=jax.random.key(0))
        expected = layer(jnp.asarray(x))
        assert contrib.use(layer)(jnp.asarray(x)).shape == expected.shape
        close(contrib.use(layer)(jnp.asarray(x)), expected)
    layer = contrib.use(eqx.nn.Linear(6, 5, key=jax.random.key(0)))
    with pytest.raises(ValueError, match=r"x has shape \(7, 6\), expected \(6,\): jax.vmap"):
        layer(jnp.ones((7, 6)))


def test_layers_deep_in_a_model(rng):
    class Special(eqx.nn.Linear):
        def __call__(self, x):
            return -super().__call__(x)

    keys = jax.random.split(jax.random.key(0), 3)
    model = {
        "mlp": eqx.nn.MLP(6, 6, 8, 2, key=keys[0]),
        "attention": [eqx.nn.MultiheadAttention(2, 6, key=keys[1])],
        "special": Special(6, 6, key=keys[2]),
    }
    ours = contrib.use(model)
    of = lambda tree: [  # noqa: E731
        type(x)
        for x in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, eqx.nn.Linear))
        if isinstance(x, eqx.Module)
    ]
    assert of(ours) == [contrib.Linear] * 7 + [Special]
    assert of(model) == [eqx.nn.Linear] * 7 + [Special]  # as it was

    def forward(model, x):
        x = jax.vmap(model["mlp"])(x)
        x = x + model["attention"][0](x, x, x)
        return jax.vmap(model["special"])(x)

    x = jnp.asarray(rng.standard_normal((5, 6)), jnp.float32)
    with jax_moye.options(**EMULATED):
        assert launches(program(lambda x: forward(ours, x), x)) == 7
        close(forward(ours, x), forward(model, x))
        gradients = [jax.tree.leaves(eqx.filter_grad(lambda m: jnp.sin(forward(m, x)).sum())(m)) for m in (ours, model)]
    for ours_, theirs_ in zip(*gradients, strict=True):
        close(ours_, theirs_)


def test_interception_takes_layers_as_they_are(rng):
    layer = eqx.nn.Linear(6, 5, key=jax.random.key(0))
    x = jnp.asarray(rng.standard_normal((7, 6)), jnp.float32)
    with jax_moye.options(**EMULATED), jax_moye.intercept() as taken:
        assert kernel_calls(jax.vmap(layer), x) == 1
        close(jax.vmap(layer)(x), x @ layer.weight.T + layer.bias)
    assert taken.calls > 0
    assert kernel_calls(jax.vmap(layer), x) == 0


@pytest.mark.parametrize("model", [3, None, "model", {"w": np.ones(3)}, jnp.ones(3), []], ids=repr)
def test_what_is_no_model(model):
    with pytest.raises(TypeError, match="use: the model is a pytree with modules of Equinox in it, not"):
        contrib.use(model)


def test_a_model_without_linear_layers_is_said(caplog):
    norm = eqx.nn.LayerNorm(4)
    assert contrib.use(norm) is not None
    assert [record.message for record in caplog.records] == [
        "jax_moye.contrib.equinox.use: no equinox.nn.Linear in LayerNorm"
    ]
    caplog.clear()
    layers = contrib.use({"a": [eqx.nn.Linear(2, 3, key=jax.random.key(0))], "b": 3})
    assert isinstance(layers["a"][0], contrib.Linear)
    assert caplog.records == []
