"""Trains a transformer with a mixture of experts to continue a novel, with JAX's ragged_dot and with jax_moye's.

    pip install optax && python examples/mixture_of_experts.py

A router sends each token to the experts that it trusts most. Tokens are sorted by expert, and then each layer of all
experts is one product of groups, whose sizes only the device knows. Two models begin alike and see the same text; one
takes its groups' products from `jax.lax.ragged_dot`, between a gather and a scatter of the tokens' rows, the other from
`jax_moye.ragged_dot`, which reads and stores rows where they are, gradients included. All else is plain JAX. Weights
and residuals are float32, products bf16.

On a GPU the compiled kernels run, with larger sizes; with none the same kernels run in jax_moye's CPU emulator. Exit
status 1 if the losses of a step differ by more than --tolerance, relative to the loss.
"""

import argparse
import functools
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import text

import jax_moye


class Sizes(NamedTuple):
    """Of the model and its text; widths are multiples of 8, since kernels read rows of 16 bytes."""

    d_model: int
    d_expert: int
    experts: int
    experts_per_token: int
    layers: int
    heads: int
    batch: int
    length: int
    steps: int


ON_CPU = Sizes(d_model=32, d_expert=64, experts=8, experts_per_token=2, layers=2, heads=2, batch=4, length=32, steps=40)
ON_GPU = Sizes(
    d_model=1024, d_expert=2048, experts=16, experts_per_token=2, layers=2, heads=16, batch=32, length=256, steps=50
)
BALANCE = 1e-2  # weight of the loss that keeps the router from sending all tokens to few experts


def make_params(key, letters, sizes):
    """Random weights, float32. Those of all experts of a layer are one array, (experts, in, out)."""

    def weight(key, *shape):
        return jax.random.normal(key, shape) * shape[-2] ** -0.5

    def layer(key):
        keys = jax.random.split(key, 5)
        return {
            "qkv": weight(keys[0], sizes.d_model, 3 * sizes.d_model),
            "out": weight(keys[1], sizes.d_model, sizes.d_model),
            "router": weight(keys[2], sizes.d_model, sizes.experts),
            "up": weight(keys[3], sizes.experts, sizes.d_model, sizes.d_expert),
            "down": weight(keys[4], sizes.experts, sizes.d_expert, sizes.d_model),
        }

    keys = jax.random.split(key, 3 + sizes.layers)
    return {
        "embedding": jax.random.normal(keys[0], (letters, sizes.d_model)),
        "position": jax.random.normal(keys[1], (sizes.length, sizes.d_model)),
        "scores": weight(keys[2], sizes.d_model, letters),
        "layers": [layer(key) for key in keys[3:]],
    }


def normalized(x):
    """Each row divided by its root mean square."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def product(x, w):
    """The matrix product of x and w in bf16, its sums in float32."""
    return jnp.matmul(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


def attention(x, layer, heads):
    """Causal attention: (batch, length, d_model) -> the same."""
    batch, length, width = x.shape
    qkv = product(x, layer["qkv"]).astype(jnp.bfloat16).reshape(batch, length, 3, heads, width // heads)
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    return product(jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape), layer["out"])


def lax_ragged_dot(lhs, rhs, group_sizes, lhs_rows=None, permutation=None):
    """JAX's, and what moves rows in front of it and behind."""
    out = jax.lax.ragged_dot(lhs if lhs_rows is None else lhs[lhs_rows], rhs, group_sizes)
    return out if permutation is None else jnp.zeros_like(out).at[permutation].set(out, unique_indices=True)


def mixture(x, layer, experts_per_token, ragged_dot):
    """A two-layer network for each expert: (tokens, d_model) -> the same, and how unevenly tokens are spread."""
    tokens, experts = x.shape[0], layer["router"].shape[-1]
    probabilities = jax.nn.softmax(x @ layer["router"])
    gates, chosen = jax.lax.top_k(probabilities, experts_per_token)  # (tokens, experts_per_token)

    # Rows sorted by expert: a group of neighbours for each. Results are in the order of tokens again.
    chosen = chosen.reshape(-1)
    order = jnp.argsort(chosen)
    group_sizes = jnp.bincount(chosen, length=experts)
    up, down = (layer[name].astype(jnp.bfloat16) for name in ("up", "down"))
    hidden = jax.nn.gelu(ragged_dot(x.astype(jnp.bfloat16), up, group_sizes, lhs_rows=order // experts_per_token))
    rows = ragged_dot(hidden, down, group_sizes, permutation=order)
    rows = rows.astype(jnp.float32).reshape(tokens, experts_per_token, -1)
    share = group_sizes / chosen.size
    balance = experts * jnp.sum(share * jnp.mean(probabilities, axis=0))  # 1 where all experts are chosen alike
    return jnp.sum(gates[..., None] * rows, axis=1), balance


def loss(params, window, sizes, ragged_dot):
    """Mean cross-entropy of each character of (batch, length + 1) after those before it, and what is minimized."""
    x = params["embedding"][window[:, :-1]] + params["position"]
    balance = 0.0
    for layer in params["layers"]:
        x += attention(normalized(x), layer, sizes.heads)
        rows = normalized(x).reshape(-1, sizes.d_model)
        rows, uneven = mixture(rows, layer, sizes.experts_per_token, ragged_dot)
        x += rows.reshape(x.shape)
        balance += uneven
    scores = product(normalized(x), params["scores"])
    entropy = optax.softmax_cross_entropy_with_integer_labels(scores, window[:, 1:]).mean()
    return entropy + BALANCE * balance, entropy


class Training:
    """A model, its optimizer and its compiled step."""

    def __init__(self, sizes, letters, learning_rate, ragged_dot):
        """Every model begins with the same weights."""
        optimizer = optax.adam(learning_rate)
        self.params = make_params(jax.random.key(0), letters, sizes)
        self.state = optimizer.init(self.params)
        self.losses, self.seconds = [], []
        of_window = functools.partial(loss, sizes=sizes, ragged_dot=ragged_dot)

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def step(params, state, window):
            (_, entropy), gradient = jax.value_and_grad(of_window, has_aux=True)(params, window)
            updates, state = optimizer.update(gradient, state)
            return optax.apply_updates(params, updates), state, entropy

        window = jax.ShapeDtypeStruct((sizes.batch, sizes.length + 1), jnp.int32)
        self.compiled = step.lower(self.params, self.state, window).compile()

    def step(self, window):
        """One step; its loss."""
        start = time.perf_counter()
        self.params, self.state, value = self.compiled(self.params, self.state, window)
        self.losses.append(float(value))  # waits for it
        self.seconds.append(time.perf_counter() - start)
        return self.losses[-1]

    @property
    def milliseconds(self):
        """Of a step, the median of all but the first."""
        return 1e3 * float(np.median(self.seconds[1:] or self.seconds))


def main(argv=None):
    """Trains, prints losses and times, returns the exit status."""
    on_gpu = jax.devices()[0].platform == "gpu"
    defaults = ON_GPU if on_gpu else ON_CPU
    parser = argparse.ArgumentParser(description="Trains a mixture of experts, by JAX's ragged_dot and by jax_moye's.")
    parser.add_argument("--implementation", choices=["both", "xla", "moye"], default="both")
    parser.add_argument("--learning-rate", type=float, default=3e-4 if on_gpu else 3e-3)
    parser.add_argument("--tolerance", type=float, default=0.01, help="relative, of the losses of a step")
    for name, default in defaults._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"{default} by default")
    arguments = parser.parse_args(argv)
    sizes = Sizes(*(getattr(arguments, name) for name in Sizes._fields))

    # implementation="moye": an error where a product of groups, forward or backward, is not a kernel of ours.
    interpret = None if on_gpu else jax_moye.InterpretParams(detect_races=False)
    ours = functools.partial(jax_moye.ragged_dot, implementation="moye", interpret=interpret)
    functions = {"xla": lax_ragged_dot, "moye": ours}
    if arguments.implementation != "both":
        functions = {arguments.implementation: functions[arguments.implementation]}

    letters, alphabet = text.load()
    rng = np.random.default_rng(0)
    trainings = {
        name: Training(sizes, len(alphabet), arguments.learning_rate, ragged_dot)
        for name, ragged_dot in functions.items()
    }
    for i in range(sizes.steps):
        window = jnp.asarray(text.windows(letters, rng, sizes.batch, sizes.length + 1))
        print(f"step {i + 1:4d} loss", *(f"{name} {training.step(window):.5f}" for name, training in trainings.items()))
    for name, training in trainings.items():
        where = "" if on_gpu or name == "xla" else " in the emulator, which says nothing about a GPU"
        print(f"{name}: {training.milliseconds:.2f} ms per step{where}")
    if len(trainings) == 1:
        return 0

    xla, moye = (np.array(training.losses) for training in trainings.values())
    difference = np.max(np.abs(moye - xla) / xla)
    print(f"the losses differ by {difference:.1e} at most, {arguments.tolerance:.1e} is allowed")
    return 0 if difference <= arguments.tolerance else 1  # also where one is no number


if __name__ == "__main__":
    sys.exit(main())
