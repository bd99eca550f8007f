"""What a caller may ask of all products in a block of code: who computes them, and under which contracts."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import jax

from jax_moye._api.types import Autotune, Config, Implementation, Interpret
from jax_moye._kernels.interpret import InterpretParams, canonical_interpret

_Function = TypeVar("_Function", bound=Callable[..., Any])

IMPLEMENTATIONS = (None, "moye", "xla")
AUTOTUNE = (None, "on", "cached", "off")


@dataclasses.dataclass(frozen=True)
class Options:
    """Canonical options of one product; docs/precision.md states the contracts.

    Attributes:
      deterministic: the same operands give the same bits in every run on the same kind of machine.
      batch_invariant: the bits of a row of the result depend neither on the other rows nor on their number.
      implementation: None, "moye" or "xla".
      interpret: how the emulator runs the kernel, None where none is asked for.
      autotune: "on", "cached" or "off"; None: as JAX_MOYE_AUTOTUNE says.
    """

    deterministic: bool = False
    batch_invariant: bool = False
    implementation: Implementation = None
    interpret: InterpretParams | None = None
    autotune: Autotune = None

    def parameters(self) -> dict[str, Any]:
        """The keyword arguments of `contract` that carry them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


# Part of the key of jit's caches, hence a program per value. Thread-local, as all of JAX's contexts.
_context = jax.make_user_context(default_value=Options())


class _Unset:
    """Of an option that is left as it is: None is a value."""

    def __repr__(self) -> str:
        return "unchanged"


_UNSET: Any = _Unset()


def options(
    *,
    deterministic: bool = _UNSET,
    batch_invariant: bool = _UNSET,
    implementation: Implementation = _UNSET,
    interpret: Interpret = _UNSET,
    autotune: Autotune = _UNSET,
) -> OptionsBlock:
    """Options of all products of jax_moye that are traced in a block of code, or in a function.

    What is left out stays as it is outside. A product's own arguments come before the block's. A function under
    `jax.jit` has a program for each set of options it is called under. Derivatives of a product have its options,
    wherever they are taken.

    Args:
      deterministic: the same operands give the same bits in every run. Our kernels do; they are then used wherever they
        can compute a product. On a GPU what is left is an error, unless XLA_FLAGS makes XLA deterministic, too.
      batch_invariant: the bits of a row of the result depend neither on M nor on the other rows, nor on vmap or on how
        the operands are aligned. A product that no such kernel computes is an error.
      implementation: as in `matmul`; None leaves the choice to jax_moye.
      interpret: as in `matmul`; None and False mean no emulator.
      autotune: how our kernels are chosen among themselves, and against XLA, where a program is lowered for the GPU of
        this process. "on", the default: a product that this machine has not seen is measured, in some tenths of a
        second beside XLA's compilation, and XLA computes it unless a kernel of ours is clearly faster; the next process
        finds what was measured in the user's cache (docs/tuning.md). "cached": what the cache has counts, and nothing
        is measured. "off": the package's tables and the model decide, alike on all machines of a kind, as they do under
        deterministic=True. None: what the environment variable JAX_MOYE_AUTOTUNE says.

    Returns:
      A context manager, which may be entered again and also decorates functions.

    Raises:
      TypeError: an option has the wrong type, or what is decorated is a generator or a coroutine.
      ValueError: an option has an unknown value, or two contradict each other.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> a = jnp.ones((3, 4), jnp.bfloat16)
      >>> with jax_moye.options(interpret=True, batch_invariant=True):
      ...     jax_moye.matmul(a, a.T).shape
      (3, 3)
    """
    changes = {
        "deterministic": deterministic,
        "batch_invariant": batch_invariant,
        "implementation": implementation,
        "interpret": interpret,
        "autotune": autotune,
    }
    changes = {name: value for name, value in changes.items() if value is not _UNSET}
    _merge("options", Options(), changes)  # raises what is wrong with them in any block
    return OptionsBlock(changes)


class OptionsBlock(contextlib.ContextDecorator, contextlib.AbstractContextManager[None]):
    """What `jax_moye.options` returns: a context manager, which may be entered again and also decorates functions."""

    def __init__(self, changes: dict[str, Any]) -> None:
        """Keeps the changes, for each time that the block is entered."""
        self._changes = changes
        self._entered = threading.local()  # of each thread, the contexts to leave, the innermost last

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is the same block, which nobody has entered."""
        return type(self), (self._changes,)

    def __call__(self, func: _Function) -> _Function:
        """The function in the block, whenever it is called."""
        kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        if any(is_kind(func) for is_kind in kinds):
            raise TypeError(
                f"options: {func.__qualname__} is a generator or a coroutine, whose body runs when the decorator's "
                "block has ended: write `with jax_moye.options(...):` around the products in it"
            )
        return super().__call__(func)

    def __enter__(self) -> None:
        """Changes the options of this thread."""
        context = _context(_merge("options", _context.value, self._changes))
        context.__enter__()
        self._entered.__dict__.setdefault("contexts", []).append(context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Puts back what they were.

        Raises:
          RuntimeError: this thread did not enter the block, whose options are a thread's own.
        """
        contexts = getattr(self._entered, "contexts", [])
        if not contexts:
            raise RuntimeError("options: another thread entered this block, and it alone can leave it")
        contexts.pop().__exit__(kind, error, traceback)


def resolve(
    function: str,
    *,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
    implementation: Implementation = None,
    interpret: Interpret = None,
    config: Config = None,
) -> Options:
    """The options of one product: its arguments, where those are None the block's, where there is none the defaults.

    Every public function calls this first, outside of its inner jax.jit, passes what it returns through that as a
    static argument, and to the primitive's bind, `contract(..., **options.parameters())`. Parameters of a primitive are
    what derivatives keep.

    Args:
      function: the name of the public function, for messages.
      deterministic: the argument of the public function as the caller gave it; None where there was none.
      batch_invariant: likewise.
      implementation: likewise.
      interpret: likewise; False means no emulator, whatever the block says.
      config: the argument of the public function; it is only held against the others.

    Raises:
      TypeError: an argument has the wrong type, or is traced.
      ValueError: an argument has an unknown value, or two contradict each other.
    """
    arguments = {
        "deterministic": deterministic,
        "batch_invariant": batch_invariant,
        "implementation": implementation,
        "interpret": interpret,
        "config": config,
    }
    return _merge(function, _context.value, {name: value for name, value in arguments.items() if value is not None})


def _merge(function: str, outer: Options, changes: dict[str, Any]) -> Options:
    """`outer` with changes, which come before it where the two contradict each other."""
    if not changes:
        return outer
    for name, value in changes.items():
        if isinstance(value, jax.core.Tracer):
            raise TypeError(f"{function}: {name} is part of the program and cannot be a traced value, got {value}")
    for name in ("deterministic", "batch_invariant"):
        if not isinstance(changes.get(name, False), bool):
            raise TypeError(f"{function}: {name} is a bool, not {changes[name]!r}")
    if changes.get("implementation") not in IMPLEMENTATIONS:
        raise ValueError(f"{function}: implementation is None, 'moye' or 'xla', not {changes['implementation']!r}")
    if changes.get("autotune") not in AUTOTUNE:
        raise ValueError(f"{function}: autotune is 'on', 'cached', 'off' or None, not {changes['autotune']!r}")
    if "interpret" in changes:
        changes = changes | {"interpret": canonical_interpret(changes["interpret"])}

    config = changes.get("config")
    about_kernels = config is not None or changes.get("interpret") is not None
    if changes.get("implementation") == "xla" and about_kernels:
        raise ValueError(
            f"{function}: config and interpret are about our kernels, and implementation='xla' asks for none"
        )
    merged = dataclasses.replace(outer, **{name: value for name, value in changes.items() if name != "config"})
    # The outer of two that contradict each other gives way. A contract does not: it would be broken without a word.
    from_outside = changes.get("implementation") is None
    if merged.implementation == "xla" and from_outside and (about_kernels or changes.get("batch_invariant")):
        merged = dataclasses.replace(merged, implementation=None)
    elif merged.implementation == "xla" and merged.interpret is not None:
        merged = dataclasses.replace(merged, interpret=None)
    if merged.implementation == "xla" and merged.batch_invariant:
        raise ValueError(
            f"{function}: implementation='xla' and batch_invariant=True contradict each other: how XLA sums a row "
            "depends on the number of rows"
        )
    return merged
