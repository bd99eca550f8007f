"""`with jax_moye.intercept():`: JAX's own matrix products, computed by our kernels inside the block."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core.primitives import dot_general_p, remat_p

from jax_moye import _compat
from jax_moye._api.checkpoint_policies import as_dot_general
from jax_moye._api.dot_general import dot_general
from jax_moye._api.optimize import optimize
from jax_moye._api.ragged_dot import ragged_dot_general
from jax_moye._log import logger, say_once


class Interception:
    """What `jax_moye.intercept()` gives its block.

    Attributes:
      calls: how many products were taken so far. One is counted where it is traced: a jitted function counts when it is
        compiled, a loop's body once, and a program from a cache not at all. Tracing may also see one product twice, as
        a function that is differentiated and then rematerialized does.
      optimize: whether functions that are jitted in the block are optimized.
    """

    calls: int = 0

    def __init__(self, optimize: bool = False) -> None:
        """Of one block."""
        self.optimize = optimize

    def __repr__(self) -> str:
        """The count, in words."""
        return f"<jax_moye.intercept: {self.calls} calls of lax.dot_general taken>"


class _Hook:
    """Stands in JAX while some thread needs it."""

    def __init__(self, install: Callable[[], Callable[[], Any]]) -> None:
        self.install = install  # returns what puts back what was found
        self.count = 0  # of the threads
        self.unhook: Callable[[], Any] = lambda: None

    def hold(self) -> None:
        if self.count == 0:
            self.unhook = self.install()
        self.count += 1

    def release(self) -> None:
        self.count -= 1
        if self.count == 0:
            self.unhook()


class _OfThread:
    """The interceptions that a thread is in, the innermost last."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.stack: list[Interception] = []
        self.context: Any = None  # of all of them together: generators may leave them in any order
        self.held: tuple[_Hook, ...] = ()  # while the context is entered

    @property
    def wanted(self) -> tuple[_Hook, ...]:
        """The hooks that its interceptions need."""
        if not self.stack:
            return ()
        return (_of_products, _of_jit) if any(one.optimize for one in self.stack) else (_of_products,)

    def enter(self, interception: Interception) -> None:
        """In this thread."""
        with _lock:
            self.stack.append(interception)
            self.tidy()

    def leave(self, interception: Interception) -> None:
        """In any thread: where it is another one, this one's context is left to tidy."""
        global _generation
        with _lock:
            self.stack.remove(interception)
            if threading.get_ident() == self.thread:
                self.tidy()
            elif self.wanted != self.held:
                _generation += 1  # what the thread traces until then must not be found by a block of its own

    def tidy(self) -> None:
        """Brings context and hooks up to date with the interceptions. In this thread: contexts are its own."""
        if self.wanted == self.held:  # else another thread may have left this one's block
            return
        with _lock:
            wanted, held = self.wanted, self.held
            if self.context is not None:
                context, self.context = self.context, None
                context.__exit__(None, None, None)
            if wanted:
                self.context = _intercepting((_generation, len(wanted)))
                self.context.__enter__()
            self.held = wanted
            for hook in wanted:
                if hook not in held:
                    hook.hold()
            for hook in held:
                if hook not in wanted:
                    hook.release()

    def __del__(self) -> None:
        """The thread ended before its blocks did."""
        with _lock:
            for hook in self.held:
                hook.release()


class _Active(threading.local):
    """The interceptions of each thread."""

    def __init__(self) -> None:
        self.of_thread = _OfThread()


_active = _Active()
_lock = threading.RLock()

# Part of the key of every cache of traced, lowered and compiled programs, and a thread's own. New contexts may not be
# made while JAX runs in another thread: hence here, at import.
_intercepting = jax.make_user_context(default_value=(0, 0))
_generation = 1  # in the value inside; another one after a block was left by another thread than had entered it


def _hook_products() -> Callable[[], Any]:
    unhooks = [
        _compat.hook(dot_general_p, functools.partial(_take, dot_general)),
        _compat.hook(_compat.ragged_dot_general_p(), functools.partial(_take, ragged_dot_general)),
        _compat.hook(remat_p, _checkpoint),
    ]
    return lambda: [unhook() for unhook in unhooks]


_of_products = _Hook(_hook_products)
_of_jit = _Hook(lambda: _compat.hook_jit(_jit))


def _take(ours: Callable[..., Any], original: Callable[..., Any], *operands_and_params: Any) -> Any:
    """What lax.dot_general does while some thread is in a block, or lax.ragged_dot_general."""
    *operands, params = operands_and_params
    of_thread = _active.of_thread
    of_thread.tidy()
    if not of_thread.stack:
        return original(*operands, **params)
    for interception in of_thread.stack:
        interception.calls += 1
    return ours(*operands, **params)


def _checkpoint(original: Callable[..., Any], *operands_and_params: Any) -> Any:
    """What jax.checkpoint does: its policy is asked about our products as it would be about JAX's."""
    *operands, params = operands_and_params
    of_thread, policy = _active.of_thread, params.get("policy")
    of_thread.tidy()
    if of_thread.stack and policy is not None:
        params = params | {"policy": as_dot_general(policy)}
    return original(*operands, **params)


def _jit(original: Callable[..., Any], fun: Any = None, *args: Any, **kwargs: Any) -> Any:
    """What jax.jit does while some thread is in a block that optimizes."""
    _active.of_thread.tidy()
    if not _optimizes():
        return original(*(() if fun is None else (fun,)), *args, **kwargs)
    if fun is None:  # a decorator with arguments
        return functools.partial(_jit, original, *args, **kwargs)
    return original(_optimized_inside(fun), *args, **kwargs)


def _optimizes() -> bool:
    return any(interception.optimize for interception in _active.of_thread.stack)


def _optimized_inside(fun: Any) -> Any:
    """A function that is optimized where it is traced inside of a block: the same one, whenever it is asked for.

    It is kept beside the function, since jit's caches tell functions by their identity.
    """
    known = getattr(fun, "__dict__", {}).get(_OPTIMIZED)
    if known is not None and known.__wrapped__ is fun:  # and no copy of another function's attributes
        return known
    optimized = optimize(fun)

    def inside(*args: Any, **kwargs: Any) -> Any:
        return (optimized if _optimizes() else fun)(*args, **kwargs)

    inside = functools.wraps(fun)(inside)
    with contextlib.suppress(AttributeError, TypeError):  # a builtin, or a method
        setattr(fun, _OPTIMIZED, inside)
    return inside


_OPTIMIZED = "_jax_moye_optimized"


@contextlib.contextmanager
def intercept(*, optimize: bool = False) -> Iterator[Interception]:
    """Inside the block, whatever multiplies through `jax.lax.dot_general` multiplies through `jax_moye.dot_general`.

    That is `@`, `jnp.matmul`, `jnp.dot`, `jnp.einsum`, `jnp.tensordot`, and the layers of any library, whichever name
    for `lax.dot_general` they hold: what is replaced is the primitive below it. So is that of `jax.lax.ragged_dot` and
    `jax.lax.ragged_dot_general`, by `jax_moye.ragged_dot_general`. Policies of `jax.checkpoint` see `lax.dot_general`
    in each product. Options come from around the block: `with jax_moye.options(...), jax_moye.intercept():`.

    A function that was jitted before is traced again inside, and its old program is used again outside: being inside is
    part of the key of JAX's caches. What was traced inside stays ours when it runs outside, as the second half of
    `jax.vjp` does.

    The first block of a process says in the log "jax_moye" what it does; each says at its end, at level INFO, how many
    products it took. It ends by an exception, too. Blocks nest. Being inside is a matter of the thread that entered:
    threads it starts are outside, and several may enter at a time. Whoever leaves the block, such as another thread
    that closes a generator, ends it for the thread that entered, whose programs that were jitted inside are JAX's again
    once it has traced a product or entered a block. Only the primitive's `bind` is the process's, and `jax.jit` with
    optimize: another package that replaces them must not do so between one thread's entering and the last one's
    leaving, unless it puts back what it found.

    Not for the bodies of Pallas kernels: Pallas knows how to lower JAX's primitive, not ours. Products of the sparse
    arrays of `jax.experimental.sparse` are JAX's, and counted.

    With `optimize=True` kernels also take in what stands behind products, as in `jax_moye.optimize`. A kernel can do so
    where a whole program is known, and JAX has no place through which all programs go. So what is reached is this: a
    function that this thread gives to `jax.jit`, by that name, in the block, and whatever it calls; functions that were
    jitted before are optimized where they are called by such a one. It holds while such a function is traced in a block
    with optimize=True; outside it has its old program. What is not reached: calls of functions that were jitted before
    the block, such as those that were decorated where they are defined, if no other jitted function is around them;
    those of libraries that hold `jit` under another name, as by `from jax import jit`; and what runs without jit. Their
    products are taken as without optimize.

    Args:
      optimize: whether functions that are jitted in the block are optimized.

    Yields:
      The Interception, whose `calls` says how many products were taken.

    Raises:
      TypeError: optimize is no bool.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> x = jnp.ones((3, 4), jnp.bfloat16)
      >>> with jax_moye.intercept() as taken:
      ...     y = x @ x.T
      >>> taken.calls
      1
      >>> with jax_moye.intercept(optimize=True):
      ...     text = str(jax.make_jaxpr(jax.jit(lambda x: jax.nn.relu(x @ x.T)))(x))
      >>> "activation='relu'" in text
      True
    """
    if not isinstance(optimize, bool):
        raise TypeError(f"intercept: optimize is a bool, not {optimize!r}")
    interception, of_thread = Interception(optimize), _active.of_thread
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
