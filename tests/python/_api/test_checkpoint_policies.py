"""Policies for jax.checkpoint: JAX's, asked about our products. Gradients under them are in test_transforms.py."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core.primitives import dot_general_p

import jax_moye
from jax_moye import checkpoint_policies

by_xla = functools.partial(jax_moye.matmul, implementation="xla")


def two_layers(mm):
    return lambda x, w: jnp.sin(mm(jnp.sin(mm(x, w)), w)).sum()


def saved_products(policy, fun, *args) -> int:
    """Products in the jaxpr of fun's gradient under a policy, those inside the rematerialized part included."""
    jaxpr = jax.make_jaxpr(jax.grad(jax.checkpoint(fun, policy=policy), tuple(range(len(args)))))(*args)
    return str(jaxpr).count("jax_moye_contract[") + str(jaxpr).count("dot_general[")


def test_our_policies_count_our_products_as_jaxs_count_dot_general():
    x, w = jnp.ones((3, 4, 4)), jnp.ones((3, 4, 4))
    plain, batched = (lambda mm: two_layers(mm)), (lambda mm: lambda x, w: jax.vmap(two_layers(mm))(x, w).sum())
    for make, args in ((plain, (x[0], w[0])), (batched, (x, w))):
        for name in ("dots_saveable", "dots_with_no_batch_dims_saveable", "checkpoint_dots"):
            theirs = saved_products(getattr(jax.checkpoint_policies, name), make(jnp.matmul), *args)
            ours = saved_products(getattr(checkpoint_policies, name), make(by_xla), *args)
            assert ours == theirs, name
            # A program may have both kinds.
            assert saved_products(getattr(checkpoint_policies, name), make(jnp.matmul), *args) == theirs
    again = saved_products(jax.checkpoint_policies.dots_saveable, plain(by_xla), x[0], w[0])
    assert again > saved_products(checkpoint_policies.dots_saveable, plain(by_xla), x[0], w[0])


def test_offloading_says_what_jaxs_policy_says():
    (ours,) = jax.make_jaxpr(by_xla)(jnp.ones((3, 3)), jnp.ones((3, 3))).eqns
    (theirs,) = jax.make_jaxpr(lambda x: lax.dot_general(x, x, (((1,), (0,)), ((), ()))))(jnp.ones((3, 3))).eqns
    avals = [v.aval for v in ours.invars]
    jaxs = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    policy = checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    assert policy(ours.primitive, *avals, **ours.params) == jaxs(dot_general_p, *avals, **theirs.params)
    assert policy(dot_general_p, *avals, **theirs.params) == jaxs(dot_general_p, *avals, **theirs.params)
    (batched,) = jax.make_jaxpr(by_xla)(jnp.ones((2, 3, 3)), jnp.ones((2, 3, 3))).eqns
    assert policy(batched.primitive, *avals, **batched.params) != policy(ours.primitive, *avals, **ours.params)
