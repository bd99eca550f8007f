"""How a kernel runs in the emulator: what InterpretParams takes, and what `interpret=` stands for."""

import pytest

import jax_moye
from jax_moye._kernels.interpret import MODES, InterpretParams, canonical_interpret


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "fast"},
        {"seed": -1},
        {"seed": 1.5},
        {"seed": True},
        {"seed": 2**63},
        {"detect_races": "yes"},
        {"detect_races": None},
    ],
    ids=repr,
)
def test_interpret_params(arguments):
    with pytest.raises(ValueError, match=f"InterpretParams: {next(iter(arguments))} is"):
        jax_moye.InterpretParams(**arguments)


def test_what_interpret_stands_for():
    assert canonical_interpret(None) is None
    assert canonical_interpret(False) is None
    assert canonical_interpret(True) == InterpretParams(mode="lazy", seed=0, detect_races=True)
    for mode in MODES:
        params = InterpretParams(mode=mode, seed=3)
        assert canonical_interpret(params) is params
    for wrong in ("yes", 1, "lazy"):
        with pytest.raises(TypeError, match=r"interpret is None, a bool or a jax_moye\.InterpretParams"):
            canonical_interpret(wrong)


def test_equal_params_are_one_key_of_jaxs_caches():
    assert hash(InterpretParams(seed=1)) == hash(InterpretParams(seed=1))
    assert InterpretParams(seed=1) != InterpretParams(seed=2)
    with pytest.raises(TypeError, match="positional"):
        InterpretParams("lazy")
