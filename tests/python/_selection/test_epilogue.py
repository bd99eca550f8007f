"""What a kernel makes of the sums: dtypes, and the strides along which it reads an epilogue's operands."""

import jax.numpy as jnp
import numpy as np
import pytest

from jax_moye._selection import measurements
from jax_moye._selection.epilogue import Epilogue, OwnActivation, compute_dtype, fit_epilogue, stored_dtype
from jax_moye._selection.problem import NotServedError, make_problem


def test_nothing_is_nothing():
    assert Epilogue().is_nothing
    for other in (Epilogue("relu"), Epilogue(alpha=2.0), Epilogue(operands=(("bias", "n"),))):
        assert not other.is_nothing


@pytest.mark.parametrize(
    ("operand", "out", "stored", "compute"),
    [
        ("bfloat16", "bfloat16", "bfloat16", "float32"),
        ("bfloat16", "float32", "float32", "float32"),
        ("float64", "float64", "float64", "float64"),
        ("float8_e4m3fn", "float8_e4m3fn", "float32", "float32"),
        ("int8", "int8", "int32", "int32"),
        ("int8", "int32", "int32", "int32"),
    ],
)
def test_dtypes(operand, out, stored, compute):
    assert stored_dtype(out) == jnp.dtype(stored)
    assert compute_dtype(operand, out) == jnp.dtype(compute)


def fitted(operands, spec="bmk,kn->bmn", **sizes):
    sizes = dict(b=3, m=4, n=5, k=6) | sizes
    lhs, rhs, out = spec.replace("->", ",").split(",")
    problem = make_problem(spec, [sizes[x] for x in lhs], [sizes[x] for x in rhs], "bf16", "bf16")
    return problem, *fit_epilogue(problem, out, sizes, Epilogue(operands=operands))


def test_strides_are_those_of_a_row_major_array_and_0_where_it_is_broadcast():
    problem, same, strides = fitted((("bias", "n"), ("residual", "bmn")))
    assert same is problem
    assert problem.sizes == (1, 12, 5, 6)
    assert strides == {"bias": (0, 0, 1), "residual": (0, 5, 1)}


def test_a_batch_comes_out_of_m_where_an_operand_needs_one():
    problem, split, strides = fitted((("bias", "bn"),))
    assert problem.sizes == (1, 12, 5, 6)
    assert split.sizes == (3, 4, 5, 6)
    assert strides == {"bias": (5, 0, 1)}


def test_as_many_modes_as_the_operands_need():
    """Each dimension beside one of another operand is a mode of its own."""
    for spec, batch, strides in (
        ("abmk,kn->abmn", (2, 3), (0, 5, 0, 1)),  # all of m
        ("abmk,bkn->abmn", (2, 3), (0, 5, 0, 1)),  # beside a batch of the product's
        ("ambk,abkn->abmn", (2, 3), (0, 5, 0, 1)),  # two of them
        ("abmk,nk->nabm", (2, 3), (0, 5, 1, 0)),  # the roles swapped
    ):
        _, split, of = fitted((("bias", "bn"),), spec=spec, a=2)
        assert (split.batch_sizes, of["bias"]) == (batch, strides), spec
        assert split.batch == np.prod(batch)
    _, split, strides = fitted((("bias", "bn"), ("residual", "am")), spec="abmk,kn->abmn", a=2)
    assert strides == {"bias": (0, 5, 0, 1), "residual": (4, 0, 1, 0)}
    assert split.strides == {"a": (72, 24, 6, 1), "b": (0, 0, 1, 5), "d": (60, 20, 5, 1)}


def test_what_no_strides_describe():
    with pytest.raises(NotServedError, match="no strides of a matrix broadcast"):
        fitted((("bias", "bdn"),), spec="abcdmk,kn->abcdmn", a=2, c=2, d=2)


def test_what_a_column_adds_is_timed_apart():
    """Its kernel reads less than that of a whole array."""
    of = {
        "mn": "none c",
        "m": "none c[0]",
        "nm": "none c",
    }
    for labels, word in of.items():
        assert measurements.variant("mk,kn->mn", Epilogue(beta=1.0, operands=(("c", labels),)), 0.0, False) == word
    residual = Epilogue("relu", operands=(("bias", "n"), ("residual", "bn")))
    assert measurements.variant("bmk,kn->bmn", residual, 0.0, True) == "relu bias residual[0,2] 3xtf32"


def test_a_function_of_the_callers():
    """It is compared as it is, timed as silu, and has the dtype of what it is applied to."""
    narrow = OwnActivation(lambda z: z.astype(jnp.bfloat16), "  return x;\n")
    epilogue = Epilogue(narrow, operands=(("bias", "n"),))
    assert epilogue.own is narrow
    assert epilogue.function(jnp.ones(3, jnp.float32)).dtype == jnp.float32
    assert measurements.variant("mk,kn->mn", epilogue, 0.0, False) == "silu bias"
    assert not epilogue.is_nothing
    assert not epilogue.is_derivative
    assert Epilogue(narrow) == Epilogue(narrow)
    assert Epilogue(narrow) != Epilogue(OwnActivation(lambda z: z.astype(jnp.bfloat16), "  return x;\n"))
    assert Epilogue("relu").own is None
    assert Epilogue("relu").timed_as == "relu"
