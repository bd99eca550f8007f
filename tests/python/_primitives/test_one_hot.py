"""Scatters of one number into each row of zeros, which `optimize` turns into choices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye

ROWS, COLUMNS = (2, 3), 300
LABELS = np.array([[1, 299, 7], [0, -1, 400]])  # one from behind, and one outside


def primitives(closed) -> list[str]:
    """Of all equations, those of calls among them."""
    found = []
    for equation in getattr(closed, "jaxpr", closed).eqns:
        found.append(equation.primitive.name)
        for value in equation.params.values():
            for one in value if isinstance(value, (tuple, list)) else (value,):
                found += primitives(one) if hasattr(getattr(one, "jaxpr", one), "eqns") else []
    return found


def assert_same(fun, *args, is_choice: bool = True):
    """The same bits as without `optimize`, with a scatter or without."""
    optimized = jax_moye.optimize(fun)
    names = primitives(jax.make_jaxpr(optimized)(*args))
    assert "scatter-add" in primitives(jax.make_jaxpr(fun)(*args))
    assert ("scatter-add" in names) != is_choice
    assert not is_choice or "select_n" in names
    for one, other in zip(
        jax.tree.leaves(jax.jit(fun)(*args)), jax.tree.leaves(jax.jit(optimized)(*args)), strict=True
    ):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.fixture
def logits(rng):
    return jnp.asarray(rng.standard_normal((*ROWS, COLUMNS)), jnp.float32)


def by_take_along_axis(x, labels):
    return jnp.take_along_axis(x, labels[..., None], -1)[..., 0]


def by_vmap(x, labels):
    return jax.vmap(jax.vmap(lambda row, label: row[label]))(x, labels)


def by_aranges(x, labels):
    return x[jnp.arange(ROWS[0])[:, None], jnp.arange(ROWS[1]), labels]


def by_arange(x, labels):
    return x.reshape(-1, COLUMNS)[jnp.arange(labels.size), labels.reshape(-1)]


WAYS = [by_take_along_axis, by_vmap, by_aranges, by_arange]


@pytest.mark.parametrize("way", WAYS)
def test_losses_by_labels(way, logits):
    def loss(x):
        return -way(jax.nn.log_softmax(x), LABELS[:, :2] if way is by_vmap else LABELS).mean()

    assert_same(jax.grad(loss), logits[:, :2] if way is by_vmap else logits)


@pytest.mark.parametrize("way", WAYS)
def test_every_element_has_its_gradient(way, logits):
    """In float64: what stands behind the choice differs from row to row."""
    labels = np.where((LABELS < 0) | (LABELS >= COLUMNS), 5, LABELS)
    weights = np.arange(1.0, 7.0).reshape(ROWS)
    found = jax.jit(jax_moye.optimize(jax.grad(lambda x: (way(x, labels).reshape(ROWS) * weights).sum())))(logits)
    expected = np.zeros((*ROWS, COLUMNS))
    np.put_along_axis(expected, labels[..., None], weights[..., None], -1)
    np.testing.assert_array_equal(np.asarray(found, np.float64), expected)


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("clip", np.int8), ("fill", np.uint8), ("clip", np.int32), ("fill", np.uint32), ("promise_in_bounds", np.int16)],
)
def test_indices_of_any_type(mode, dtype, logits):
    """int8 cannot count 300 columns, and a row's index may be outside of them."""
    most = COLUMNS - 1 if mode == "promise_in_bounds" else np.iinfo(np.int32).max
    labels = np.minimum(np.array([[1, 99, 7], [0, 127, 400]]), min(np.iinfo(dtype).max, most)).astype(dtype)
    assert_same(jax.grad(lambda x: (jnp.take_along_axis(x, labels[..., None], -1, mode=mode) ** 2).sum()), logits)


@pytest.mark.parametrize("axis", [0, 1])
def test_other_dimensions(axis, logits):
    index = np.expand_dims(np.arange(COLUMNS * ROWS[1 - axis]).reshape(-1, COLUMNS) % ROWS[axis], axis)
    assert_same(jax.grad(lambda x: (jnp.take_along_axis(x, index, axis) ** 2).sum()), logits)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_types(dtype, logits):
    assert_same(jax.grad(lambda x: by_take_along_axis(x, LABELS).sum().astype(jnp.float32)), logits.astype(dtype))


def test_in_loops_and_checkpoints(logits):
    @jax.checkpoint
    def loss(x, labels):
        return -by_take_along_axis(jax.nn.log_softmax(jnp.sin(x)), labels).mean()

    def total(x):
        return jax.lax.scan(lambda sums, one: (sums + loss(*one), None), 0.0, (x, jnp.asarray(LABELS)))[0]

    assert_same(jax.grad(total), logits)


def test_in_shard_map(logits):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.P("x")

    def loss(x, labels):
        return -by_take_along_axis(jax.nn.log_softmax(x), labels)

    mapped = jax.shard_map(loss, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    assert_same(jax.grad(lambda x: mapped(x, jnp.asarray(LABELS)).mean()), logits)


class TestWhatStaysAScatter:
    def test_several_numbers_of_a_row(self, logits):
        labels = np.array([[[1, 2]], [[1, 1]]])
        assert_same(jax.grad(lambda x: (jnp.take_along_axis(x[:, :1], labels, -1) ** 2).sum()), logits, is_choice=False)

    def test_rows_that_are_not_all_counted(self, logits):
        rows = jnp.asarray([0, 0])[:, None]
        assert_same(jax.grad(lambda x: (x[rows, jnp.arange(3), LABELS] ** 2).sum()), logits, is_choice=False)
        assert_same(jax.grad(lambda x: (x[jnp.arange(1), 0, LABELS[0, :1]] ** 2).sum()), logits, is_choice=False)

    def test_rows_that_are_counted_backwards(self, logits):
        rows = jnp.arange(2)[::-1][:, None]
        assert_same(jax.grad(lambda x: (x[rows, jnp.arange(3), LABELS] ** 2).sum()), logits, is_choice=False)

    def test_rows_that_are_counted_in_another_order(self, logits):
        def loss(x):
            rows = jax.lax.reshape(jax.lax.broadcasted_iota(jnp.int32, (3, 3, 1), 0), (3, 3), (1, 0, 2))
            return (x[rows, jax.lax.broadcasted_iota(jnp.int32, (3, 3), 1), LABELS[0]] ** 2).sum()

        assert_same(jax.grad(loss), jnp.concatenate([logits, logits])[:3], is_choice=False)

    @pytest.mark.parametrize("dtype", [jnp.uint8, jnp.bfloat16])
    def test_rows_of_a_type_that_does_not_hold_all(self, dtype, logits):
        """Some rows are another one, too."""

        def loss(x):
            return (x[jnp.arange(COLUMNS, dtype=dtype).astype(jnp.int32), np.arange(COLUMNS) % 6] ** 2).sum()

        assert_same(jax.grad(loss), logits.reshape(-1, COLUMNS).T, is_choice=False)

    def test_a_diagonal(self, logits):
        rows = jnp.arange(2)
        assert_same(jax.grad(lambda x: (x[rows, rows, LABELS[0, :2]] ** 2).sum()), logits, is_choice=False)

    def test_whole_rows(self, logits):
        """The gradient of an embedding."""
        assert_same(jax.grad(lambda x: (x[0][LABELS.reshape(-1) % 3] ** 2).sum()), logits, is_choice=False)

    def test_an_array_that_is_not_zero(self, logits):
        def added(x):
            rows = jnp.arange(6)
            return x.reshape(6, COLUMNS).at[rows, LABELS.reshape(-1)].add(1.0)

        assert_same(added, logits, is_choice=False)

    def test_a_type_with_a_sharding(self, logits):
        mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
        with jax.set_mesh(mesh):
            x = jax.device_put(logits, jax.NamedSharding(mesh, jax.P("x")))
            assert_same(jax.grad(lambda x: (by_take_along_axis(x, LABELS) ** 2).sum()), x, is_choice=False)
