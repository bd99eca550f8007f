"""benchmarks/programs.py: `optimize` finds what is to be found in each, and computes the same."""

from __future__ import annotations

import collections
import importlib.util
import pathlib

import jax
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr

import jax_moye

PATH = pathlib.Path(__file__).resolve().parents[4] / "benchmarks/programs.py"
_spec = importlib.util.spec_from_file_location("programs", PATH)
programs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(programs)

LAYERS = 2
# attention_p and attention_grad_p of each program: one of each layer, or of a scan's body.
FOUND = {
    "gpt2": (LAYERS, LAYERS),
    "bert": (LAYERS, LAYERS),
    "llama": (2, 1),  # of the scan, and of what its derivative computes anew
    "llama_prefill": (1, 0),
    "llama_decoding": (LAYERS, 0),
    "diffusion_transformer": (LAYERS, LAYERS),
    "gemma": (1, 1),
    "phi3": (LAYERS, LAYERS),
    "translation": (6, 3),  # of the texts that are read and written, and of one in the other
    "linear_layers": (0, 0),
}


def primitives(jaxpr, found):
    for equation in jaxpr.eqns:
        found[equation.primitive.name] += 1
        for value in equation.params.values():
            for x in value if isinstance(value, (tuple, list)) else [value]:
                if isinstance(x, (Jaxpr, ClosedJaxpr)):
                    primitives(getattr(x, "jaxpr", x), found)
    return found


def test_every_program_is_here():
    assert FOUND.keys() == programs.SMALL.keys()


@pytest.mark.parametrize("name", FOUND)
def test_attention_is_found(name):
    step, args = getattr(programs, name)(**programs.SMALL[name])
    jaxpr = jax.make_jaxpr(jax_moye.optimize(step))(*args)
    found = primitives(jaxpr.jaxpr, collections.Counter())
    assert (found["jax_moye_attention"], found["jax_moye_attention_grad"]) == FOUND[name]
    assert not found["dot_general"]


def test_gates_of_one_product_are_found():
    step, args = programs.phi3(**programs.SMALL["phi3"])
    equations = jax.make_jaxpr(jax_moye.optimize(step))(*args).eqns
    epilogues = [equation.params["epilogue"] for equation in equations if "epilogue" in equation.params]
    assert [(x.name, x.keeps) for x in epilogues if x.halves] == [("silu", True)] * LAYERS
