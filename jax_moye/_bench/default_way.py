"""The default way: who computes a workload in a program that asks for nothing, and in whose rounds it is timed.

Lowering such a program decides, on a GPU by measuring. Nothing is timed twice: where our kernel is chosen with a config
that is timed anyhow, its rounds are the default's. Where XLA is chosen and the program is XLA's own, word for word, the
ratio of the two is 1 and no measurement. With an epilogue the programs differ in where they round, and both are timed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax

OWN = "default"  # the contender where no other one is the same program


class DefaultWay(NamedTuple):
    """What becomes of a workload in a program that asks for nothing.

    Attributes:
      program: that asks for nothing, of one set of operands.
      config: of our kernel; None where XLA computes it.
      is_xlas: whether it is the program of the baseline "xla".
    """

    program: Callable[..., Any]
    config: str | None
    is_xlas: bool

    @property
    def by(self) -> str:
        """`moye` or `xla`."""
        return "xla" if self.config is None else "moye"

    def timed_as(self, ours: str, beside: Collection[str]) -> str:
        """The name of the contender that is the same program, OWN where there is none.

        Args:
          ours: the config of "jax_moye".
          beside: other configs that are timed, each by its name.
        """
        if self.config is None:
            return "xla" if self.is_xlas else OWN
        return "jax_moye" if self.config == ours else self.config if self.config in beside else OWN


def configs_in(program: str) -> set[str]:
    """The configs named in a lowered program."""
    return set(re.findall(r'config = "([^"]+)"', program))


def find(program: Callable[..., Any], of_xla: Callable[..., Any], structs: Sequence[Any]) -> DefaultWay:
    """Lowers a program that asks for nothing, which decides and, on a GPU, measures.

    Args:
      program: of one set of operands.
      of_xla: the same as the baseline "xla" computes it.
      structs: shapes and dtypes of the operands.

    Raises:
      NotImplementedError: it became several kernels of ours.
    """
    text = jax.jit(program).lower(*structs).as_text()
    configs = configs_in(text)
    if len(configs) > 1:
        raise NotImplementedError(f"by default it becomes {len(configs)} kernels of ours, not one")
    if configs:
        return DefaultWay(program, configs.pop(), is_xlas=False)
    return DefaultWay(program, None, is_same_program(text, jax.jit(of_xla).lower(*structs).as_text()))


def is_same_program(x: str, y: str) -> bool:
    """Whether two lowered programs are the same but for the names of values and for transposes that nobody reads."""
    return _live(x) == _live(y)


def _live(program: str) -> str:
    lines = program.splitlines()
    read = {name for line in lines for name in re.findall(r"%\w+", line.partition(" = ")[2] or line)}
    lines = [
        line for line in lines if not (made := re.match(r"\s*(%\w+) = stablehlo\.transpose ", line)) or made[1] in read
    ]
    names: dict[str, str] = {}
    return re.sub(r"%\w+", lambda name: names.setdefault(name[0], f"%{len(names)}"), "\n".join(lines))
