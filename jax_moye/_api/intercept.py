"""`with jax_moye.intercept():`: JAX's own matrix products, computed by our kernels inside the block."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jax_moye import _compat
from jax_moye._api.dot_general import dot_general

_logger = logging.getLogger("jax_moye")


class Interception:
    """What `jax_moye.intercept()` gives its block.

    Attributes:
      calls: how many products were taken so far. One is counted where it is traced: a jitted function counts when it is
        compiled, a loop's body once, and a program from a cache not at all. Tracing may also see one product twice, as
        a function that is differentiated and then rematerialized does.
    """

    calls: int = 0

    def __repr__(self) -> str:
        """The count, in words."""
        return f"<jax_moye.intercept: {self.calls} calls of lax.dot_general taken>"


class _Active(threading.local):
    """The interceptions that this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[Interception] = []
        self.context: Any = None  # of all of them together: generators may leave them in any order


_active = _Active()
_lock = threading.Lock()
_count = 0  # of the blocks that threads are in: the hook stands while it is not zero
_unhook: Callable[[], None]

# Part of the key of every cache of traced, lowered and compiled programs, and a thread's own. New contexts may not be
# made while JAX runs in another thread: hence here, at import.
_intercepting = jax.make_user_context(default_value=False)


def _take(original: Callable[..., Any], lhs: Any, rhs: Any, params: dict[str, Any]) -> Any:
    """What lax.dot_general does while some thread is in a block."""
    if not _active.stack:
        return original(lhs, rhs, **params)
    for interception in _active.stack:
        interception.calls += 1
    return dot_general(lhs, rhs, **params)


@contextlib.contextmanager
def intercept() -> Iterator[Interception]:
    """Inside the block, whatever multiplies through `jax.lax.dot_general` multiplies through `jax_moye.dot_general`.

    That is `@`, `jnp.matmul`, `jnp.dot`, `jnp.einsum`, `jnp.tensordot`, and the layers of any library, whichever name
    for `lax.dot_general` they hold: what is replaced is the primitive below it. Options come from around the block:
    `with jax_moye.options(...), jax_moye.intercept():`.

    A function that was jitted before is traced again inside, and its old program is used again outside: being inside is
    part of the key of JAX's caches. What was traced inside stays ours when it runs outside, as the second half of
    `jax.vjp` does.

    It says so with one warning in the log "jax_moye", and ends with the block, by an exception too. Blocks nest. Being
    inside is a matter of the thread that entered: threads it starts are outside, and several may enter at a time. Only
    the primitive's `bind` is the process's: another package that replaces it must not do so between one thread's
    entering and the last one's leaving, unless it puts back what it found.

    Not for the bodies of Pallas kernels: Pallas knows how to lower JAX's primitive, not ours.

    Yields:
      The Interception, whose `calls` says how many products were taken.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> x = jnp.ones((3, 4), jnp.bfloat16)
      >>> with jax_moye.intercept() as taken:
      ...     y = x @ x.T
      >>> taken.calls
      1
    """
    global _count, _unhook
    interception = Interception()
    _logger.warning("jax_moye.intercept: lax.dot_general is jax_moye.dot_general in this thread until the block ends")
    with _lock:
        if _count == 0:
            _unhook = _compat.hook_dot_general(_take)
        _count += 1
    if not _active.stack:
        _active.context = _intercepting(True)
        _active.context.__enter__()
    _active.stack.append(interception)
    try:
        yield interception
    finally:
        _active.stack.remove(interception)
        if not _active.stack:
            _active.context.__exit__(None, None, None)
        with _lock:
            _count -= 1
            if _count == 0:
                _unhook()
        _logger.info("jax_moye.intercept: the block ended; it took %d calls", interception.calls)
