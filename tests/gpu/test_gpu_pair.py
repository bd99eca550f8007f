"""Gated layers on a GPU: every config with two right-hand operands. On the CPU test_pairs.py has them emulated."""

from __future__ import annotations

import jax
import pytest
from python.gated import CONFIGS, cases_of, check_close, check_exact, check_step
from this_gpu import why_not_here

from jax_moye._selection.epilogue import ACTIVATIONS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

every_config = pytest.mark.parametrize("config", CONFIGS, indirect=True, ids=lambda config: config.name)


@every_config
def test_exact_integers(config):
    for case in cases_of(config):
        check_exact(config, case, interpret=False)


@every_config
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(config, activation):
    check_close(config, activation, interpret=False)


@every_config
def test_again_and_again(config):
    """Runs of one program give the same bits, whatever was in memory."""
    case = list(cases_of(config))[-1]
    for _ in range(3):
        check_exact(config, case, interpret=False)
        jax.clear_caches()


def test_a_step_of_training():
    if all(why_not_here(config) for config in CONFIGS):
        pytest.skip("no kernel with two right-hand operands for this GPU")
    check_step(interpret=False, implementation="moye")
