"""A read-only mapping, and what holds one: all can be pickled and copied."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle

import jax
import jax.numpy as jnp
import pytest

import jax_moye
from jax_moye import checkpoint_policies
from jax_moye._kernels.devices import DEVICES
from jax_moye._kernels.frozen import FrozenDict

EXPLAINED = jax_moye.explain((64, 64), (64, 64), "bfloat16", device="h200")


def test_it_is_a_mapping_that_cannot_be_changed():
    source = {"a": 1, "b": 2}
    frozen = FrozenDict(source)
    source["a"] = 3
    assert dict(frozen) == {"a": 1, "b": 2} == frozen
    assert (len(frozen), frozen.get("c"), repr(frozen)) == (2, None, "{'a': 1, 'b': 2}")
    assert hash(frozen) == hash(FrozenDict({"b": 2, "a": 1}))
    with pytest.raises(TypeError):
        frozen["a"] = 3


@pytest.mark.parametrize("duplicate", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy], ids=["pickle", "copy"])
@pytest.mark.parametrize(
    "one",
    [jax_moye.configs()[0], jax_moye.configs(), DEVICES["h200"], EXPLAINED[0].decision],
    ids=lambda x: type(x).__name__,
)
def test_what_holds_one_can_be_duplicated(one, duplicate):
    assert duplicate(one) == one


def test_an_explanation_can_be_duplicated():
    assert copy.deepcopy(EXPLAINED).text() == pickle.loads(pickle.dumps(EXPLAINED)).text() == EXPLAINED.text()


def test_a_config_is_a_dict_of_its_fields():
    config = jax_moye.configs()[0]
    fields = dataclasses.asdict(config)
    assert jax_moye.configs()[0] == type(config)(**fields)
    layer = functools.partial(jax_moye.dot_general, config=config)  # as a layer of a model holds it
    assert copy.deepcopy(layer).keywords == {"config": config}


def test_a_policy_can_be_pickled():
    policy = pickle.loads(pickle.dumps(checkpoint_policies.dots_saveable))
    x = jnp.ones((4, 4))
    fun = jax.checkpoint(lambda x: jnp.sin(jax_moye.matmul(x, x)), policy=policy)
    assert str(jax.make_jaxpr(jax.grad(lambda x: fun(x).sum()))(x)).count("jax_moye_contract[") == 3
