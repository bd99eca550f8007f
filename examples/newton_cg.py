"""Second-order optimization: Newton's method with conjugate gradients, through jax_moye's kernels.

    python examples/newton_cg.py

The Hessian is never formed. Its product with a vector is the derivative of the gradient in that direction, which needs
a forward rule on top of a reverse one: the products in both are jax_moye's kernels. On a GPU these are compiled; with
none they run in jax_moye's CPU emulator. Exit status 1 if the gradient is not zero in a few steps.
"""

import functools
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import jax_moye

DIGITS = pathlib.Path(__file__).parent / "data" / "digits.npz"


def loss(w, images, labels):
    """Regularized cross-entropy of a linear classifier, convex in w (64, 10)."""
    scores = jax.nn.log_softmax(jax_moye.matmul(images, w, precision="highest"))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean() + 0.005 * jnp.sum(w**2)


@jax.jit
def newton_step(w, images, labels):
    """The parameters after one step, the norm of the gradient before it, and the loss there."""
    value, gradient = jax.value_and_grad(loss)(w, images, labels)

    def hessian_times(v):
        return jax.jvp(lambda w: jax.grad(loss)(w, images, labels), (w,), (v,))[1]

    direction, _ = jax.scipy.sparse.linalg.cg(hessian_times, gradient, tol=1e-3, maxiter=25)
    return w - direction, jnp.linalg.norm(gradient), value


def main():
    """Minimizes, prints each step, returns the exit status."""
    with np.load(DIGITS) as data:
        images = jnp.asarray(data["images"][:256].reshape(-1, 64) / 16, jnp.float32)
        labels = jnp.asarray(data["labels"][:256], jnp.int32)
    w = jnp.zeros((64, 10), jnp.float32)

    interpret = None if jax.devices()[0].platform == "gpu" else jax_moye.InterpretParams(detect_races=False)
    with jax_moye.options(implementation="moye", interpret=interpret):
        start, norm = time.perf_counter(), float("inf")
        for i in range(8):
            w, norm, value = newton_step(w, images, labels)
            print(f"step {i} loss {value:.6f} gradient {norm:.1e}")
            if norm < 1e-5:
                break
        # The same derivatives with jnp.matmul's rules.
        v = jnp.asarray(np.random.default_rng(0).standard_normal(w.shape), jnp.float32)
        products = [
            jax.jvp(jax.grad(functools.partial(f, images=images, labels=labels)), (w,), (v,))[1]
            for f in (loss, reference_loss)
        ]
    difference = float(jnp.abs(products[0] - products[1]).max())
    print(f"Hessian-vector products differ by {difference:.1e} from those with jnp.matmul")
    print(f"{time.perf_counter() - start:.1f} s")
    return 0 if norm < 1e-5 and difference < 1e-5 else 1


def reference_loss(w, images, labels):
    """`loss` with jnp.matmul."""
    scores = jax.nn.log_softmax(jnp.matmul(images, w, precision="highest"))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean() + 0.005 * jnp.sum(w**2)


if __name__ == "__main__":
    sys.exit(main())
