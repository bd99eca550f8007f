"""What is said while a program runs: JAX_MOYE_LOG, and what is said once."""

import logging
import os
import subprocess
import sys

import pytest

from jax_moye import _log

PROGRAM = """
import jax.numpy as jnp, jax_moye
a = jnp.ones((3, 4))
for _ in range(2):
    with jax_moye.intercept():
        (2 * a) @ a.T
        jax_moye.matmul(a.astype(jnp.int16), a.T.astype(jnp.int16), interpret=True)
"""


def said(level):
    """What a program writes to stderr."""
    environment = {name: value for name, value in os.environ.items() if name != _log.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment | ({} if level is None else {_log.VARIABLE: level}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_info_shows_what_falls_back_to_xla():
    status, text = said("info")
    assert status == 0
    lines = text.splitlines()
    assert sum("are jax_moye.dot_general's" in line for line in lines) == 1
    (place,) = (line for line in lines if "float32[3, 4]" in line)
    assert place.endswith("the program is for cpu, where our kernels run only with interpret=True")
    (of_dtype,) = (line for line in lines if "int16[3, 4]" in line)
    assert "INFO XLA computes mk,kn->mn on int16[3, 4] and int16[4, 3] into int16: no kernel multiplies" in of_dtype
    ends = [line.rpartition("; ")[2] for line in lines if "the block ended" in line]
    assert ends == ["it took 1 calls", "it took 0 calls"]  # the second time the program was in the cache
    assert len(lines) == 5


def test_without_it_only_warnings_are_seen():
    assert said(None) == said("")
    status, text = said("WARNING")
    assert status == 0
    assert len(text.splitlines()) == 1
    assert said("error") == (0, "")
    status, text = said("loud")
    assert status == 1
    assert text.endswith("ValueError: JAX_MOYE_LOG is debug, info, warning, error or critical, not 'loud'\n")


@pytest.fixture
def handlers(monkeypatch):
    monkeypatch.setattr(_log.logger, "handlers", [])
    monkeypatch.setattr(_log.logger, "propagate", True)
    monkeypatch.setattr(_log.logger, "level", logging.NOTSET)
    return lambda: _log.logger.handlers


def test_a_level_is_set_once_and_for_all(handlers):
    _log.configure({})
    assert handlers() == []
    _log.configure({_log.VARIABLE: " Debug "})
    assert [type(handler) for handler in handlers()] == [logging.StreamHandler]
    assert (_log.logger.level, _log.logger.propagate) == (logging.DEBUG, False)


def test_what_is_said_once(caplog):
    with caplog.at_level(logging.INFO, logger="jax_moye"):
        for message in ("100 % one", "two", "100 % one"):
            _log.say_once(logging.INFO, message)
    assert [record.message for record in caplog.records] == ["100 % one", "two"]
