"""`with jax_moye.intercept():`: JAX's own matrix products, computed by our kernels inside the block."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core.primitives import dot_general_p

from jax_moye import _compat
from jax_moye._api.dot_general import dot_general
from jax_moye._api.ragged_dot import ragged_dot_general
from jax_moye._log import logger, say_once


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


class _OfThread:
    """The interceptions that a thread is in, the innermost last."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.stack: list[Interception] = []
        self.context: Any = None  # of all of them together: generators may leave them in any order

    def enter(self, interception: Interception) -> None:
        """In this thread."""
        with _lock:
            self.tidy()
            if not self.stack:
                _hold_hook()
                self.context = _intercepting(_generation)
                self.context.__enter__()
            self.stack.append(interception)

    def leave(self, interception: Interception) -> None:
        """In any thread: where it is another one, this one's context is left to tidy."""
        global _generation
        with _lock:
            self.stack.remove(interception)
            if threading.get_ident() == self.thread:
                self.tidy()
            elif not self.stack:
                _generation += 1  # what the thread traces until then must not be found by a block of its own

    def tidy(self) -> None:
        """Leaves the context where no interception is left. In this thread: contexts are its own."""
        with _lock:
            if self.context is not None and not self.stack:
                context, self.context = self.context, None
                context.__exit__(None, None, None)
                _release_hook()

    def __del__(self) -> None:
        """The thread ended before its blocks did."""
        if self.context is not None:
            _release_hook()


class _Active(threading.local):
    """The interceptions of each thread."""

    def __init__(self) -> None:
        self.of_thread = _OfThread()


_active = _Active()
_lock = threading.RLock()
_count = 0  # of the threads that are in blocks: the hook stands while it is not zero
_unhook: Callable[[], Any]

# Part of the key of every cache of traced, lowered and compiled programs, and a thread's own. New contexts may not be
# made while JAX runs in another thread: hence here, at import.
_intercepting = jax.make_user_context(default_value=0)
_generation = 1  # the value inside; another one after a block was left by another thread than had entered it


def _hold_hook() -> None:
    global _count, _unhook
    if _count == 0:
        unhooks = [
            _compat.hook(dot_general_p, functools.partial(_take, dot_general)),
            _compat.hook(_compat.ragged_dot_general_p(), functools.partial(_take, ragged_dot_general)),
        ]
        _unhook = lambda: [unhook() for unhook in unhooks]  # noqa: E731
    _count += 1


def _release_hook() -> None:
    global _count
    with _lock:
        _count -= 1
        if _count == 0:
            _unhook()


def _take(ours: Callable[..., Any], original: Callable[..., Any], *operands_and_params: Any) -> Any:
    """What lax.dot_general does while some thread is in a block, or lax.ragged_dot_general."""
    *operands, params = operands_and_params
    of_thread = _active.of_thread
    if not of_thread.stack:
        of_thread.tidy()  # another thread may have left this one's block
        return original(*operands, **params)
    for interception in of_thread.stack:
        interception.calls += 1
    return ours(*operands, **params)


@contextlib.contextmanager
def intercept() -> Iterator[Interception]:
    """Inside the block, whatever multiplies through `jax.lax.dot_general` multiplies through `jax_moye.dot_general`.

    That is `@`, `jnp.matmul`, `jnp.dot`, `jnp.einsum`, `jnp.tensordot`, and the layers of any library, whichever name
    for `lax.dot_general` they hold: what is replaced is the primitive below it. So is that of `jax.lax.ragged_dot` and
    `jax.lax.ragged_dot_general`, by `jax_moye.ragged_dot_general`. Options come from around the block:
    `with jax_moye.options(...), jax_moye.intercept():`.

    A function that was jitted before is traced again inside, and its old program is used again outside: being inside is
    part of the key of JAX's caches. What was traced inside stays ours when it runs outside, as the second half of
    `jax.vjp` does.

    The first block of a process says in the log "jax_moye" what it does; each says at its end, at level INFO, how many
    products it took. It ends by an exception, too. Blocks nest. Being inside is a matter of the thread that entered:
    threads it starts are outside, and several may enter at a time. Whoever leaves the block, such as another thread
    that closes a generator, ends it for the thread that entered, whose programs that were jitted inside are JAX's again
    once it has traced a product or entered a block. Only the primitive's `bind` is the process's: another package that
    replaces it must not do so between one thread's entering and the last one's leaving, unless it puts back what it
    found.

    Not for the bodies of Pallas kernels: Pallas knows how to lower JAX's primitive, not ours. Products of the sparse
    arrays of `jax.experimental.sparse` are JAX's, and counted.

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
    interception, of_thread = Interception(), _active.of_thread
    say_once(
        logging.WARNING,
        "jax_moye.intercept: until the block ends, JAX's products in this thread (@, jnp.matmul, jnp.einsum, layers) "
        "are jax_moye.dot_general's: our kernels where one is chosen, XLA elsewhere (JAX_MOYE_LOG=info says which)",
    )
    of_thread.enter(interception)
    try:
        yield interception
    finally:
        of_thread.leave(interception)
        logger.info("jax_moye.intercept: the block ended; it took %d calls", interception.calls)
