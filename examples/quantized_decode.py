"""Writes token by token with weights of 4 bits: a transformer's MLPs, in groups of 128 rows.

    python examples/quantized_decode.py

Weights are rounded to int4, with a scale for each column of a group of 128 rows, in bfloat16. Layers are stacked, and a
scan goes through them for each token. Then the scales are trained, so that the MLPs answer what they did before their
weights were rounded: gradients go to scales and activations. Attention is left out, and so are good texts: all weights
are random.

On a GPU of sm_90 a kernel reads the weights as they are; elsewhere the program runs on the CPU, where jax_moye's
kernels run in its emulator. Exit status 1 if a token's scores differ from those of dequantized weights by more than
rounding, or if training the scales does not make the MLPs' error smaller.
"""

import argparse
import functools
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp

import jax_moye

GROUP = 128  # rows that share a scale


class Quantized(NamedTuple):
    """A matrix of weights of 4 bits."""

    values: jax.Array  # (K, N), int4
    scales: jax.Array  # (K / GROUP, N), bfloat16


def quantize(w):
    """The nearest weights of 4 bits, by the largest of each column of a group: (K, N) -> Quantized."""
    k, n = w.shape
    groups = w.reshape(k // GROUP, GROUP, n)
    scales = (jnp.max(jnp.abs(groups), axis=1) / 7).astype(jnp.bfloat16)
    values = jnp.round(groups / scales.astype(jnp.float32)[:, None])
    return Quantized(jnp.clip(values, -8, 7).reshape(k, n).astype(jnp.int4), scales)


def dequantize(w):
    """(K, N), float32."""
    k, n = w.values.shape
    groups = w.values.astype(jnp.float32).reshape(k // GROUP, GROUP, n)
    return (groups * w.scales.astype(jnp.float32)[:, None]).reshape(k, n)


def quantized_product(x, w, **options):
    return jax_moye.quantized_matmul(x, w.values, w.scales, preferred_element_type=jnp.float32, **options)


def exact_product(x, w):
    w = dequantize(w) if isinstance(w, Quantized) else w
    return jnp.matmul(x.astype(jnp.float32), w, precision="highest")


def mlp(x, layer, product):
    """A layer with a gate: (rows, d_model) -> the same, in float32."""
    rows = (x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)).astype(jnp.bfloat16)
    hidden = jax.nn.silu(product(rows, layer["gate"])) * product(rows, layer["up"])
    return product(hidden.astype(jnp.bfloat16), layer["down"])


def scores(tokens, ends, layers, product):
    """Of the token behind each of `tokens`, (rows, tokens of the vocabulary), by stacked layers.

    ends: the embedding, (tokens of the vocabulary, d_model), and what makes scores of the last layer's rows.
    """
    embedding, head = ends
    step = lambda x, layer: (x + mlp(x, layer, product), None)  # noqa: E731
    x, _ = jax.lax.scan(step, embedding[tokens], layers)
    return x @ head


@functools.partial(jax.jit, static_argnames=("length", "product"))
def decode(first, ends, layers, length, product):
    """The tokens that are written behind `first`, (length, rows), and their scores."""

    def step(tokens, _):
        found = scores(tokens, ends, layers, product)
        return jnp.argmax(found, axis=-1), (tokens, found)

    return jax.lax.scan(step, first, None, length=length)[1]


def make_layers(key, layers, d_model, d_hidden):
    """Random weights, float32, the layers stacked."""
    shapes = {"gate": (d_model, d_hidden), "up": (d_model, d_hidden), "down": (d_hidden, d_model)}
    keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
    return {name: jax.random.normal(keys[name], (layers, *shape)) * shape[0] ** -0.5 for name, shape in shapes.items()}


@functools.partial(jax.jit, static_argnames="product")
def trained(factors, layer, x, wanted, product):
    """The factors of all scales after one step down the error of an MLP, and the error before it."""

    def error(factors):
        quantized = {
            name: w._replace(scales=(factors[name] * w.scales).astype(w.scales.dtype)) for name, w in layer.items()
        }
        return jnp.mean((mlp(x, quantized, product) - wanted) ** 2)

    value, gradient = jax.value_and_grad(error)(factors)
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(g)) for g in gradient.values()]))
    return {name: f - 0.02 * gradient[name] / largest for name, f in factors.items()}, value


def main():
    """Decodes, compares, trains scales, returns the exit status."""
    parser = argparse.ArgumentParser(description="Writes tokens with weights of 4 bits.")
    parser.add_argument("--length", type=int, default=8, help="tokens of each row")
    parser.add_argument("--rows", type=int, default=4, help="texts that are written at a time")
    parser.add_argument("--steps", type=int, default=10, help="of training the scales")
    arguments = parser.parse_args()

    keys = jax.random.split(jax.random.key(0), 4)
    full = make_layers(keys[0], layers=2, d_model=256, d_hidden=512)
    layers = jax.vmap(lambda layer: {name: quantize(w) for name, w in layer.items()})(full)
    ends = jax.random.normal(keys[1], (64, 256)), jax.random.normal(keys[2], (256, 64))
    bits = sum(w.values.size * 4 + w.scales.size * 16 for w in layers.values())
    print(f"{bits / sum(w.size for w in full.values()):.3f} bits for each weight")

    on_gpu = jax.devices()[0].platform == "gpu"
    interpret = None if on_gpu else jax_moye.InterpretParams(detect_races=False)
    product = functools.partial(quantized_product, interpret=interpret)

    first = jnp.arange(arguments.rows)
    tokens, found = decode(first, ends, layers, arguments.length, product)
    exact = jax.jit(jax.vmap(lambda row: scores(row, ends, layers, exact_product)))(tokens)
    difference = float(jnp.max(jnp.abs(found - exact)) / jnp.max(jnp.abs(exact)))
    for row in tokens.T:
        print("tokens", *row.tolist())
    print(f"scores differ by {difference:.1e} of the largest")

    layer, full = jax.tree.map(lambda x: x[0], (layers, full))
    x = jax.random.normal(keys[3], (32, 256))
    wanted = mlp(x, full, exact_product)
    factors, errors = {name: jnp.ones(w.scales.shape) for name, w in layer.items()}, []
    for step in range(arguments.steps):
        factors, error = trained(factors, layer, x, wanted, product)
        errors.append(float(error))
        print(f"step {step} error {errors[-1]:.5f}")
    return 0 if difference < 0.02 and errors[-1] < errors[0] else 1


if __name__ == "__main__":
    sys.exit(main())
