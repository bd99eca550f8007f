"""What the public functions make of their arguments before anything is traced."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_moye
from jax_moye._api import arguments
from jax_moye._api.options import Options

V = np.ones(3, np.float32)
VECTORS = (((0,), (0,)), ((), ()))


def options_of(**changes):
    names = ("precision", "preferred_element_type", "out_sharding", "config", "implementation", "interpret")
    given = dict.fromkeys((*names, "deterministic", "batch_invariant")) | changes
    return arguments.product_options("matmul", **given)


def test_a_dtype_that_is_not_there_is_named_in_jaxs_warning():
    with pytest.warns(UserWarning, match="float64"):
        assert jax_moye.dot_general(V, V, VECTORS, preferred_element_type=np.float64).dtype == jnp.float32
    with pytest.warns(UserWarning, match="float64"):
        assert jax_moye.matmul(V, V, preferred_element_type="float64").dtype == jnp.float32
    with jax.enable_x64(True):
        assert jax_moye.matmul(V, V, preferred_element_type="float64").dtype == jnp.float64


def test_precision_is_canonicalized_as_by_jax():
    for precision in (None, "default", "highest", lax.Precision.HIGH, ("high", "high"), "TF32_TF32_F32"):
        (equation,) = jax.make_jaxpr(lambda x, p=precision: lax.dot_general(x, x, VECTORS, p))(V).eqns
        assert arguments.canonical_precision(precision) == equation.params["precision"]
    with jax.default_matmul_precision("BF16_BF16_F32"):
        assert arguments.canonical_precision(None) is lax.DotAlgorithmPreset.BF16_BF16_F32


@pytest.mark.parametrize(
    "precision", [7, ("high",), ("high", lax.Precision.HIGH), "sharp", ["high", "sharp"]], ids=repr
)
def test_what_is_no_precision(precision):
    with pytest.raises(ValueError, match=r"precision is None, a lax\.Precision or its name"):
        arguments.canonical_precision(precision)


def test_equal_arguments_have_one_program():
    config = jax_moye.configs()[0]
    first = options_of(precision="high", preferred_element_type="float32", config=config.name, interpret=True)
    second = options_of(
        precision=lax.Precision.HIGH,
        preferred_element_type=jnp.float32,
        config=config,
        interpret=jax_moye.InterpretParams(),
    )
    assert first == second
    assert hash(first) == hash(second)
    assert first != options_of(precision="highest")
    assert first.parameters() == {
        "precision": (lax.Precision.HIGH, lax.Precision.HIGH),
        "out_sharding": None,
        "config": config.name,
        **Options(interpret=jax_moye.InterpretParams()).parameters(),
    }


def test_an_eager_call_finds_its_program():
    traced = []

    @arguments.jitted_where_eager("power")
    def raised(x, *, power):
        traced.append(power)
        return x**power

    assert [float(raised(jnp.float32(3), power=2)) for _ in range(2)] == [9, 9]
    assert traced == [2]
    (equation,) = jax.make_jaxpr(lambda x: raised(x, power=2))(1.0).eqns  # the function's own, and no jit around it
    assert equation.primitive.name in ("integer_pow", "square")


def test_float64_is_not_what_nobody_asked_for():
    """NumPy's dtype is equal to None, and eager calls find their programs by equality."""
    with jax.enable_x64(True):
        x, w = jnp.ones((2, 3), jnp.float32), jnp.ones((3, 4), jnp.float32)
        for product in (jax_moye.matmul, jax_moye.linear, functools.partial(jax_moye.gated_linear_unit, w_up=w)):
            wanted = [None, "float64", None]
            found = [product(x, w, preferred_element_type=dtype).dtype for dtype in wanted]
            assert found == ["float32", "float64", "float32"]


def test_weak_types_are_jnps():
    integers = jnp.ones(3, jnp.int8)
    lhs, rhs = arguments.weakly_promoted(integers, jnp.asarray(2.0))
    assert jnp.result_type(lhs, rhs) == jnp.result_type(integers, 2.0)
    assert jax.typeof(lhs).weak_type
    assert arguments.weakly_promoted(integers, integers)[0] is integers
