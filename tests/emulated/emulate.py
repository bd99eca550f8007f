"""The emulator as the tests call it."""

from __future__ import annotations

from jax_moye import _moye_cpu


def emulate(config, call, **options) -> dict:
    """Runs `config` on `call` (problems.Call) in guarded memory with the race checker on."""
    return _moye_cpu.emulate(
        config.name,
        call.a,
        call.b,
        call.d,
        call.sizes,
        call.a_strides,
        call.b_strides,
        call.d_strides,
        **options,
    )
