"""What the GPU tests share."""

import os

import pytest

# Several test processes share the card, and torch may be beside them. Read when JAX's backend starts.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Nothing is measured while a test lowers its program, but in the tests about that.
os.environ.setdefault("JAX_MOYE_AUTOTUNE", "cached")


@pytest.fixture(scope="session")
def gpu():
    """The first GPU as JAX sees it; skips where there is none."""
    import jax

    device = jax.devices()[0]
    if device.platform != "gpu":
        pytest.skip(f"no GPU: JAX's first device is {device}")
    try:
        from jax_moye import _moye_cuda  # noqa: F401
    except ImportError:
        pytest.skip("jax_moye was built without CUDA")
    return device


@pytest.fixture
def config(request, gpu):
    """The config that a test is about, of its parametrization; skips where this GPU does not run it."""
    from this_gpu import why_not_here

    if reason := why_not_here(request.param):
        pytest.skip(reason)
    return request.param
