"""What is asked for: operands in memory, a product alone and with its epilogue, and its words."""

import jax.numpy as jnp
import numpy as np
import pytest

from jax_moye._selection.epilogue import Epilogue
from jax_moye._selection.request import Operand, Request, describe, label_sizes

BF16 = jnp.dtype("bfloat16")


def request(**changes):
    fields = dict(spec="mk,kn->mn", out_dtype=BF16, precision=None, config=None, implementation=None, interpret=None)
    return Request(**fields | changes)


def test_an_operand_is_what_numpys_transpose_makes():
    stored = np.zeros((2, 3, 5))
    for permutation in (None, (0, 1, 2), (2, 0, 1), (1, 2, 0)):
        operand = Operand(stored.shape, stored.dtype, permutation)
        expected = stored if permutation is None else np.transpose(stored, permutation)
        assert operand.seen_shape == operand.transposed.shape == expected.shape
        assert operand.transposed.permutation is None


def test_sizes_and_words_are_those_of_the_specification():
    operands = (Operand((32, 16), BF16, (1, 0)), Operand((32, 8), BF16))
    assert label_sizes("mk,kn->mn", operands) == {"m": 16, "k": 32, "n": 8}
    assert describe(request(), operands) == "mk,kn->mn on bfloat16[16, 32] and bfloat16[32, 8] into bfloat16"
    assert describe(request(beta=2.0), operands).endswith("plus 2.0 c into bfloat16")


def test_the_product_alone_is_in_the_dtype_in_which_xla_finishes_it():
    assert request().without_epilogue(BF16) == request()
    fused = request(epilogue=Epilogue("relu"))
    assert fused.without_epilogue(BF16) == request(out_dtype=jnp.dtype("float32"))


@pytest.mark.parametrize(
    ("changes", "insists"),
    [
        ({}, False),
        ({"implementation": "moye"}, True),
        ({"implementation": "xla"}, False),
        ({"config": "any"}, True),
        ({"batch_invariant": True}, True),
        ({"deterministic": True}, False),
    ],
)
def test_who_insists(changes, insists):
    assert request(**changes).insists == insists
