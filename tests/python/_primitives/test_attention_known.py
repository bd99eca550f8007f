"""What is known of a program's values while it is traced."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jax_moye._primitives.attention_formulas import Affine, Choice
from jax_moye._primitives.attention_known import KnownValues, axes_of
from jax_moye._primitives.attention_masks import All, Mask, Traced
from jax_moye._primitives.patterns import Program


def known_of(fun, *shapes):
    """What is known of a function's result."""
    jaxpr = jax.make_jaxpr(fun)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    out = jaxpr.outvars[0]
    return KnownValues(program).of(program.flat.names.get(out, out))


def test_masks_through_calls_and_shapes():
    causal = Mask(frozenset({(0, 1), (1, -1)}), 0)
    assert known_of(lambda: jnp.tril(jnp.ones((4, 6), bool))) == Choice(causal, True, False)
    assert known_of(lambda: jnp.tril(jnp.ones((4, 6), bool), 2)).mask.offset == 2
    assert known_of(lambda: jnp.tril(jnp.ones((4, 6), bool)).T).mask == Mask(frozenset({(1, 1), (0, -1)}), 0)
    wide = known_of(lambda: jnp.broadcast_to(jnp.tril(jnp.ones((4, 6), bool))[:, None], (2, 4, 3, 6)))
    assert wide.mask == Mask(frozenset({(1, 1), (3, -1)}), 0)
    of_indices = known_of(lambda: jnp.arange(4)[:, None] >= jnp.arange(6)[None] - 1)
    assert of_indices == Choice(causal._replace(offset=1), True, False)
    assert known_of(lambda: jnp.tril(jnp.ones((4, 4), bool), 3)) == Choice.of(True)
    assert known_of(lambda: jnp.where(jnp.tril(jnp.ones((4, 6), bool)), 0.0, -1e9)).outside == np.float32(-1e9)
    assert known_of(lambda: jnp.arange(4)) == Affine(frozenset({(0, 1)}), 0)
    assert known_of(lambda: jnp.sqrt(16.0)) == Choice.of(4.0)


def test_what_is_not_known():
    assert known_of(lambda x: x + 1, (3,)) is None
    assert known_of(lambda: jax.random.key_data(jax.random.key(0))) is None
    assert known_of(lambda: jnp.arange(4) * jnp.arange(4)) is None


def test_integers_that_a_type_does_not_hold():
    """They begin again, so that a difference of two without a sign is not below zero."""
    assert known_of(lambda: jnp.arange(300, dtype=jnp.uint8)) is None
    assert known_of(lambda: jnp.arange(300).astype(jnp.int8)) is None
    assert known_of(lambda: jnp.arange(4, dtype=jnp.uint32) - 1) is None
    assert known_of(lambda: jnp.arange(4) - 1) == Affine(frozenset({(0, 1)}), -1)
    assert known_of(lambda: jnp.arange(4) * 2**30) is None

    def near(dtype):
        i = jnp.arange(4, dtype=dtype)
        return i[:, None] - i[None] < 2

    assert isinstance(known_of(lambda: near(jnp.uint32)).mask, Traced)
    assert known_of(lambda: near(jnp.int32)).mask == Mask(frozenset({(0, -1), (1, 1)}), 1)


def test_booleans_of_which_nothing_is_known():
    """They are masks by their names, along the dimensions that they have."""
    found = known_of(lambda x: x > 0, (3, 1))
    assert (found.mask.dims, found.inside, found.outside) == ((0, None), True, False)
    wide = known_of(lambda x: jnp.where((x > 0)[None, :, 0, None], 0.0, -1e9) * jnp.ones((2, 3, 5)), (3, 1))
    assert (wide.mask.dims, wide.outside) == ((1, None), np.float32(-1e9))
    reverse = known_of(lambda x: 1.0 - (x > 0), (3, 1))
    assert (reverse.mask.dims, reverse.inside, reverse.outside) == ((0, None), 0, 1)
    assert isinstance(known_of(lambda: np.tril(np.ones((4, 6), bool)) & jnp.ones((4, 6), bool)).mask, Traced)
    assert known_of(lambda: jnp.tril(jnp.ones((4, 6), bool)).reshape(24)).mask.dims == (0,)
    both = known_of(lambda x: jnp.tril(jnp.ones((3, 3), bool)) & (x > 0), (3, 3)).mask
    causal, traced = both.parts
    assert (causal, traced.dims) == (Mask(frozenset({(0, 1), (1, -1)}), 0), (0, 1))
    assert known_of(lambda x: jnp.tril(x > 0), (3, 3)).mask.parts[0] == causal
    neither = known_of(lambda x: (x > 0) | (x < -1), (3, 3)).mask
    assert isinstance(neither, All)
    assert neither.is_reverse
    assert all(part.is_reverse for part in neither.parts)


def test_what_is_read():
    jaxpr = jax.make_jaxpr(lambda x: (jnp.sin(x), jax.jit(lambda y: (jnp.cos(y), y + 1))(x)[1]))(1.0).jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    known = KnownValues(program)
    live = [step.equation.primitive.name for step in program.flat.steps if id(step) in known.live]
    assert sorted(live) == ["add", "sin"]
    assert [known.order[id(step)] for step in program.flat.steps] == list(range(len(program.flat.steps)))


def test_dimensions_of_shapes():
    def of(fun, *shape):
        return axes_of(jax.make_jaxpr(fun)(jax.ShapeDtypeStruct(shape, jnp.float32)).jaxpr.eqns[0])

    assert of(lambda x: x.transpose(1, 0), 2, 3) == [1, 0]
    assert of(lambda x: x.reshape(2, 1, 3), 2, 3) == [0, ".", 1]
    assert of(lambda x: x.reshape(6), 2, 3) is None
    assert of(lambda x: x.reshape(3, 3, order="F"), 3, 3) is None
    assert of(lambda x: jax.lax.broadcast_in_dim(x, (2, 4, 3), (0, 2)), 2, 3) == [0, "*", 1]
    assert of(lambda x: jax.lax.broadcast_in_dim(x, (2, 3), (0, 1)), 2, 1) == [0, "*"]
    assert of(lambda x: x + 1, 2, 3) is None
