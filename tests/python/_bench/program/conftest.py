"""A module of a user's own, whose functions return programs."""

from __future__ import annotations

import sys
import textwrap

import jax
import pytest

MINE = """
    import jax
    import jax.numpy as jnp
    import numpy as np

    def layer(width=16, dtype="bfloat16"):
        '''A layer.

        And more.
        '''
        def step(x, w, b):
            return jnp.sum(x + jax.nn.silu(x @ w + b), axis=0), {"product": x.T @ x}
        x = np.arange(8 * width).reshape(8, width) / 64
        return step, [jnp.asarray(x, dtype), jnp.ones((width, width), dtype), jnp.ones(width, dtype)]

    def complex_layer():
        return (lambda x: x @ x), (jnp.ones((8, 8), jnp.complex64),)

    def fails():
        raise OSError("no data")

    def cannot_be_traced():
        return (lambda x: x.nothing), (1.0,)

    def one():
        return layer

    def three():
        return layer, 1, 2

    number = 3

    class Inner:
        make = staticmethod(layer)
"""


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of a user's own, in the folder where the command runs."""
    (tmp_path / "mine.py").write_text(textwrap.dedent(MINE))
    (tmp_path / "broken.py").write_text("import no_such_module_of_anybody\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    for name in ("mine", "broken"):
        sys.modules.pop(name, None)
