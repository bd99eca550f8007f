"""A user's mistakes: type checkers report the lines that say so, and no others. test_types.py runs them."""

import jax
import jax.numpy as jnp

import jax_moye

x = jnp.ones((2, 2))

jax_moye.matmul(
    "a",  # wrong
    3,  # wrong
    implementation="moy",  # wrong
)
jax_moye.matmul(
    x,
    x,
    precision=7,  # wrong
    preferred_element_type=1.5,  # wrong
    out_sharding="x",  # wrong
    config=3,  # wrong
    interpret="yes",  # wrong
    deterministic="yes",  # wrong
    batch_invariant=None,
)
jax_moye.dot_general(
    "a",  # wrong
    x,
    ((1,), (0,)),  # wrong
    implementation="cuda",  # wrong
)
jax_moye.einsum(
    7j + 1,
    object(),  # wrong
    precision=b"high",  # wrong
)
jax_moye.linear(
    [1.0],  # wrong
    x,
    activation="softmax",  # wrong
    alpha="2",  # wrong
)
jax_moye.linear(
    x,
    x,
    activation="sigmoid",  # wrong
)
jax_moye.gated_linear_unit(
    x,
    None,  # wrong
    activation="tanh",  # wrong
)
jax_moye.options(
    implementation="torch",  # wrong
    deterministic=None,  # wrong
)
jax_moye.cuda_target(
    "sm_90",  # wrong
)
jax_moye.register(
    "rocm",  # wrong
)
jax_moye.InterpretParams(
    mode="late",  # wrong
)
jax_moye.explain(
    x,
    x,
    dtype=1.5,  # wrong
    implementation="moy",  # wrong
)
jax_moye.report(
    x,  # wrong
)
jax_moye.tune(
    x,
    x,
    top="all",  # wrong
    precision=7,  # wrong
)
matmul = jax_moye.matmull  # wrong
y: int = jax_moye.matmul(x, x)  # wrong
z: jax.Array = jax_moye.matmul(x, x)
