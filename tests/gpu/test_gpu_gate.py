"""Cotangents of gated layers on a GPU: every config with a multiplier. test_cotangents.py has them emulated."""

from __future__ import annotations

import jax
import pytest
from python.gated import OF_COTANGENTS, check_cotangents, check_exact, check_step, cotangents_of, is_of_gate
from this_gpu import why_not_here

from jax_moye._selection.epilogue import ACTIVATIONS

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

every_config = pytest.mark.parametrize("config", OF_COTANGENTS, indirect=True, ids=lambda config: config.name)
NAMES = [name for name in ACTIVATIONS if name != "none"]


@every_config
def test_exact_integers(config):
    for case in cotangents_of(config):
        check_exact(config, case, interpret=False, is_it=is_of_gate)


@every_config
@pytest.mark.parametrize("activation", NAMES)
def test_activations(config, activation):
    check_cotangents(config, activation, interpret=False)


@every_config
def test_again_and_again(config):
    """Runs of one program give the same bits, whatever was in memory."""
    case = list(cotangents_of(config))[-1]
    for _ in range(3):
        check_exact(config, case, interpret=False, is_it=is_of_gate)
        jax.clear_caches()


def test_a_step_of_training():
    if all(why_not_here(config) for config in OF_COTANGENTS):
        pytest.skip("no kernel with a multiplier for this GPU")
    check_step(interpret=False, implementation="moye")
