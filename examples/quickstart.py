"""Trains a small classifier of handwritten digits. Every matrix product, forward and backward, is jax_moye.matmul.

    python examples/quickstart.py

On a GPU the compiled kernels run; with none the same kernels run in jax_moye's CPU emulator (`interpret=True`).
Exit status 1 if the accuracy on images held out from training is below 95 %.
"""

import argparse
import functools
import pathlib
import re
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import jax_moye

DIGITS = pathlib.Path(__file__).parent / "data" / "digits.npz"
BATCH = 256  # images per step


def logits(params, images, matmul):
    """Scores of the ten digits: (images, 64) -> (images, 10), bf16 operands and products."""
    (w1, b1), (w2, b2) = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    hidden = jax.nn.relu(matmul(images.astype(jnp.bfloat16), w1) + b1)
    return (matmul(hidden, w2) + b2).astype(jnp.float32)


def loss(params, images, labels, matmul):
    """Mean cross-entropy."""
    scores = jax.nn.log_softmax(logits(params, images, matmul))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


def step(params, velocity, images, labels, *, matmul):
    """One step of gradient descent with momentum; the gradient too comes back, to be compared."""
    value, gradient = jax.value_and_grad(loss)(params, images, labels, matmul)
    velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.1 * g, velocity, gradient)
    params = jax.tree.map(lambda p, v: p + v, params, velocity)
    return params, velocity, value, gradient


def load():
    """(train images, train labels), (held-out images, held-out labels): pixels in [0, 1], one in five held out."""
    with np.load(DIGITS) as data:
        images = data["images"].reshape(-1, 64).astype(np.float32) / 16
        labels = data["labels"].astype(np.int32)
    order = np.random.default_rng(0).permutation(len(labels))
    held_out, train = np.split(order, [len(order) // 5])
    return (images[train], labels[train]), (images[held_out], labels[held_out])


def main(argv=None):
    """Trains, prints what ran and how well, returns the exit status."""
    parser = argparse.ArgumentParser(description="Trains a classifier of handwritten digits through jax_moye.matmul.")
    parser.add_argument("--epochs", type=int, default=30)
    epochs = parser.parse_args(argv).epochs

    device = jax.devices()[0]
    interpret = device.platform != "gpu"
    matmul = functools.partial(jax_moye.matmul, implementation="moye", interpret=interpret)
    (images, labels), (test_images, test_labels) = load()

    rng = np.random.default_rng(1)
    params = [
        (jnp.asarray(rng.normal(0, np.sqrt(2 / m), (m, n)), jnp.float32), jnp.zeros(n, jnp.float32))
        for m, n in ((64, 128), (128, 10))
    ]
    velocity = jax.tree.map(jnp.zeros_like, params)

    ours = jax.jit(functools.partial(step, matmul=matmul))
    theirs = jax.jit(functools.partial(step, matmul=jnp.matmul))
    first = (params, velocity, images[:BATCH], labels[:BATCH])
    program = ours.lower(*first).as_text()
    kernels = sorted(set(re.findall(r'config = "([^"]+)"', program)))
    print(f"device     {device.device_kind}{', kernels in the CPU emulator' if interpret else ''}")
    print(f"kernels    {', '.join(kernels)}")
    print(f"           {len(re.findall('custom_call @jax_moye', program))} launches in one jitted step")

    start, value = time.perf_counter(), float("inf")
    for epoch in range(epochs):
        order = rng.permutation(len(labels))
        for batch in np.split(order[: len(order) // BATCH * BATCH], len(order) // BATCH):
            params, velocity, value, _ = ours(params, velocity, images[batch], labels[batch])
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1:4d} loss {value:.3f}")
    seconds = time.perf_counter() - start

    scores = jax.jit(functools.partial(logits, matmul=matmul))(params, test_images)
    accuracy = float((np.asarray(scores).argmax(axis=1) == test_labels).mean())
    gradients = [jax.tree.leaves(f(*first)[3]) for f in (ours, theirs)]
    difference = max(float(jnp.abs(a - b).max()) for a, b in zip(*gradients, strict=True))
    largest = max(float(jnp.abs(g).max()) for g in gradients[1])
    print(f"accuracy   {accuracy:.1%} of {len(test_labels)} held-out images, trained in {seconds:.1f} s")
    print(f"difference {difference:.1e} at most from the first gradients with jnp.matmul (largest {largest:.1e})")
    return 0 if accuracy >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
