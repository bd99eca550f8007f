"""The programs on images: their gradients against differences, and their patches and convolutions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python._bench.models.slopes import check_slope

from jax_moye._bench.models import images, parts
from jax_moye._bench.models.table import MODELS


@pytest.mark.parametrize("name", ["vision_transformer", "mlp_mixer"])
def test_gradients_of_training(name):
    model = MODELS[name]
    step, (parameters, *data) = model.make("float32", **model.small)
    new, value = jax.jit(step)(parameters, *data)
    gradients = jax.tree.map(lambda p, n: (p - n) / parts.LEARNING_RATE, parameters, new)
    assert abs(float(value) - np.log(model.small["classes"])) < 0.5
    check_slope(jax.jit(lambda p: step(p, *data)[1]), parameters, gradients)


def test_gradients_of_a_unet():
    model = MODELS["unet_blocks"]
    step, (parameters, *data) = model.make("float32", **model.small | {"blocks": 2})
    assert parameters[0]["skip"] is not None  # its input has half the channels
    assert parameters[1]["skip"] is None
    value, gradients = jax.jit(step)(parameters, *data)
    assert float(value) > 0.5
    check_slope(jax.jit(lambda p: step(p, *data)[0]), parameters, gradients)
    with pytest.raises(ValueError, match="width 28 is no multiple of 2 x groups 8"):
        model.make("float32", **model.small | {"width": 28})


def test_patches():
    pixels = np.arange(2 * 6 * 6 * 3).reshape(2, 6, 6, 3)
    found = np.asarray(images.patches(jnp.asarray(pixels), 2))
    assert found.shape == (2, 9, 12)
    np.testing.assert_array_equal(found[1, 5], pixels[1, 2:4, 4:6].ravel())


def test_a_convolution():
    random = parts.Random("float32")
    x, layer = random.normal(1, 4, 5, 2), images.convolution(random, 2, 3)
    padded, (kernel, bias) = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), map(np.asarray, layer)
    expected = np.array(
        [[np.tensordot(padded[0, i : i + 3, j : j + 3], kernel, 3) for j in range(5)] for i in range(4)]
    )
    np.testing.assert_allclose(images.convolved(x, layer)[0], expected + bias, rtol=1e-4, atol=1e-6)
