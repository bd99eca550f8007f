"""Trains on eight devices, data-parallel and tensor-parallel, through jax_moye's kernels.

    python examples/sharded_training.py

Without eight GPUs the devices are eight of the CPU's threads, and the kernels run in jax_moye's emulator. The mesh is
explicit: shardings are part of the types, and each device runs a kernel on its parts. Printed are the collectives of
the compiled step. Exit status 1 if the loss does not fall as it does on one device.
"""

import collections
import functools
import os
import re
import sys
import time

if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
import text
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_moye

CONTEXT, BATCH, WIDTH, STEPS = 4, 64, 64, 40


def loss(params, inputs, targets):
    """Mean cross-entropy of the next character: inputs (batch, features), targets (batch, letters), one-hot."""
    hidden = jax.nn.relu(jax_moye.matmul(inputs, params["up"]))  # split over "data" and "model": no communication
    # The contracted dimension is split over "model": one all-reduce.
    scores = jax_moye.matmul(hidden, params["down"], out_sharding=P("data", None) if sharded(inputs) else None)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(scores) * targets, axis=-1))


def sharded(x):
    """Whether the type of x has a sharding."""
    return not jax.typeof(x).sharding.mesh.empty


@jax.jit
def step(params, inputs, targets):
    """One step of gradient descent."""
    value, gradient = jax.value_and_grad(loss)(params, inputs, targets)
    return jax.tree.map(lambda p, g: p - 2.0 * g, params, gradient), value


def data(letters, count, rng):
    """Batches of one-hot characters."""
    for _ in range(STEPS):
        window = np.eye(count, dtype=np.float32)[text.windows(letters, rng, BATCH, CONTEXT + 1)]
        yield window[:, :-1].reshape(BATCH, -1), window[:, -1]


def train(params, batches, place):
    """The losses of all steps."""
    losses = []
    for inputs, targets in batches:
        params, value = step(params, place(inputs), place(targets))
        losses.append(float(value))
    return np.array(losses)


def main():
    """Trains twice, prints losses and collectives, returns the exit status."""
    letters, alphabet = text.load()
    count = -(-len(alphabet) // 8) * 8
    rng = np.random.default_rng(0)
    params = {
        "up": rng.normal(0, 0.1, (CONTEXT * count, WIDTH)).astype(np.float32),
        "down": rng.normal(0, 0.1, (WIDTH, count)).astype(np.float32),
    }
    make = functools.partial(data, letters, count)
    devices = min(8, 1 << (jax.device_count().bit_length() - 1))  # 1, 2, 4 or 8 of those that there are
    shape = (max(1, devices // 2), min(2, devices))
    mesh = jax.make_mesh(shape, ("data", "model"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:devices])
    interpret = None if jax.devices()[0].platform == "gpu" else jax_moye.InterpretParams(detect_races=False)
    start = time.perf_counter()
    with jax_moye.options(implementation="moye", interpret=interpret), jax.set_mesh(mesh):
        place = functools.partial(jax.device_put, device=NamedSharding(mesh, P("data")))
        specs = {"up": P(None, "model"), "down": P("model", None)}
        split = {name: jax.device_put(p, NamedSharding(mesh, specs[name])) for name, p in params.items()}
        losses = train(split, make(np.random.default_rng(1)), place)
        inputs, targets = next(make(np.random.default_rng(1)))
        program = step.lower(split, place(inputs), place(targets)).compile().as_text() or ""
    kinds = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"
    collectives = collections.Counter(re.findall(rf"[\])}}] ({kinds})(?:-start)?\(", program))
    one = train(jax.tree.map(jnp.asarray, params), make(np.random.default_rng(1)), jnp.asarray)  # XLA, one device
    for i in range(0, STEPS, 10):
        print(f"step {i:3d} loss {losses[i]:.4f}, on one device {one[i]:.4f}")
    print(f"step {STEPS - 1:3d} loss {losses[-1]:.4f}, on one device {one[-1]:.4f}")
    launches = len(re.findall('custom_call_target="jax_moye', program))
    print(f"{launches} launches on each of {mesh.size} devices; collectives: {dict(collectives)}")
    print(f"{time.perf_counter() - start:.1f} s")
    falls = losses[-5:].mean() < losses[:5].mean() - 0.5
    return 0 if falls and np.allclose(losses, one, rtol=1e-3) else 1


if __name__ == "__main__":
    sys.exit(main())
