"""Contenders that JAX compiles: products on all sets of operands, in one of two kinds of programs.

- `program_contender`: jitted functions of `group` independent products on `group` sets of operands, whose results are
  new arrays. XLA launches them back to back, as one CUDA graph where its command buffers apply. The host pays for every
  operand and result of every dispatch, and for a graph whose buffers have moved: more than a short product takes.
- `loop_contender`: a loop on the device around products on all sets, whose results are donated. The host pays once for
  some milliseconds of work, and the buffers stay where they are. A barrier ties the operands of each time around to the
  time before, so that XLA cannot move the products out of the loop; the compiled program is asked whether it did.
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_moye._timing.operands import OperandSets
from jax_moye._timing.rounds import Contender


class HoistedError(NotImplementedError):
    """XLA moved the products out of a loop: its times would be nothing's."""


def program_contender(
    name: str, fun: Callable[..., Any], sets: OperandSets, options: dict[str, Any] | None = None
) -> Contender:
    """The products of each group in one call of a jitted program.

    Args:
      name: of the contender.
      fun: of one set of operands.
      sets: of operands.
      options: of the compiler.
    """
    programs = sets.programs
    program = jax.jit(lambda *lists: [fun(*one) for one in zip(*lists, strict=True)], compiler_options=options or None)
    last: list[Any] = []

    def run(i: int) -> list[Any]:
        last[:] = program(*programs[i])  # the results before are dropped: the device reuses their memory in order
        return list(last)

    def wait() -> None:
        jax.block_until_ready(last)
        last.clear()  # all contenders' results of a large product would not fit the memory

    def lower() -> Callable[[], None]:
        lowered = program.lower(*programs[0])
        return lambda: (lowered.compile(), None)[1]

    return Contender(name, run, wait, len(programs), len(sets), "program", lower)


def loop_contender(
    name: str, fun: Callable[..., Any], sets: OperandSets, options: dict[str, Any] | None = None
) -> Contender:
    """Products on all sets, again and again, in one call of a jitted program.

    Its results live until the next run, which writes over them.

    Args:
      name: of the contender.
      fun: of one set of operands.
      sets: of operands, with the number of repeats.
      options: of the compiler.
    """

    def products(lists: Any, token: Any, outs: Any) -> Any:
        def once(_: Any, carry: Any) -> Any:
            # The token comes out of the barrier, so that the barrier's operands differ from time to time.
            inner, token = lax.optimization_barrier((lists, carry[0]))
            return token, [fun(*one) for one in zip(*inner, strict=True)]

        return lax.fori_loop(0, sets.repeats, once, (token, outs))

    program = jax.jit(products, donate_argnums=(1, 2), compiler_options=options or None)
    state: list[Any] = []

    def start() -> list[Any]:
        if not state:
            of_one = jax.eval_shape(fun, *sets.first)
            zeros = [jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), of_one) for _ in range(len(sets))]
            state[:] = [jnp.int32(0), zeros]
        return state

    def run(i: int) -> list[Any]:
        del i
        state[:] = program(sets.arrays, *start())
        return list(state[1])

    def lower() -> Callable[[], None]:
        lowered = program.lower(sets.arrays, *start())

        def compile_it() -> None:
            if is_hoisted(lowered.compile().as_text() or "", len(sets)):
                raise HoistedError("XLA moved the products out of the loop")

        return compile_it

    method = f"loop of {sets.repeats} rounds"
    return Contender(name, run, lambda: jax.block_until_ready(state), 1, len(sets) * sets.repeats, method, lower)


def is_hoisted(program: str, products: int) -> bool:
    """Whether the entry of a compiled program, in HLO, holds as many kernels as its loop has products."""
    entry = program[program.find("\nENTRY") :]
    return len(re.findall(r" (?:dot|custom-call|fusion|call|convolution)\(", entry)) >= products


def compile_all(contenders: Iterable[Contender], own: Callable[[str], bool]) -> dict[str, Exception]:
    """Compiles contenders in threads. XLA's one after the other: it times kernels on the GPU meanwhile.

    Args:
      contenders: those that know how are compiled.
      own: whether the one of this name is all ours, so that nothing runs on the GPU while it is compiled.

    Returns:
      What went wrong, by name.
    """
    wrong: dict[str, Exception] = {}
    lowered: dict[bool, list[tuple[str, Callable[[], None]]]] = {True: [], False: []}
    for contender in contenders:
        if contender.lower is not None:
            try:  # tracing is Python's, here
                lowered[own(contender.name)].append((contender.name, contender.lower()))
            except Exception as error:  # what keeps one from being timed keeps no other
                wrong[contender.name] = error

    def compile_in_order(several: Iterable[tuple[str, Callable[[], None]]]) -> None:
        for name, compile_it in several:
            try:
                compile_it()
            except Exception as error:
                wrong[name] = error

    with concurrent.futures.ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        tasks = [[one] for one in lowered[True]] + [lowered[False]]
        for done in [pool.submit(compile_in_order, task) for task in tasks if task]:
            done.result()
    return wrong


@functools.cache
def quick_options() -> dict[str, Any] | None:
    """Options of the compiler for what is not timed: no search for the fastest kernel. None where it knows no such."""
    return accepted({"xla_gpu_autotune_level": 0})


def accepted(options: dict[str, Any]) -> dict[str, Any] | None:
    """The options, if XLA here knows them; else None."""
    try:
        jax.jit(lambda x: x + 1, compiler_options=options).lower(jax.ShapeDtypeStruct((), "int32")).compile()
    except Exception:  # of jaxlib, whose type is not public in all versions
        return None
    return options
