"""How a kernel runs in the CPU emulator."""

from __future__ import annotations

import dataclasses
from typing import Literal

MODES = ("lazy", "eager", "random")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InterpretParams:
    """How the emulator runs a kernel; `interpret=True` means `InterpretParams()`.

    A kernel that breaks a rule of the GPU's memory model (a race, a missing wait, a deadlock, an access outside its
    operands) ends the program with an error that names the threads and the source lines.

    A product that will take more than ten seconds says so on stderr before it begins, by what a small product of the
    same kernel takes then. A terminal sees how far it is. Ctrl-C ends it within a second; where the program has set a
    handler of its own for SIGINT, which may want the product, the second Ctrl-C does.

    Attributes:
      mode: when an asynchronous copy takes effect: "lazy", only at the wait that guarantees it, so that a missing wait
        computes with NaN; "eager", at once; "random", anywhere between.
      seed: of the mode "random".
      detect_races: check every access to shared memory against all earlier ones. It is what the emulator is for, and
        makes tensor-core kernels slower by a fifth to a half, the others up to twice as slow: hence on.
    """

    mode: Literal["lazy", "eager", "random"] = "lazy"
    seed: int = 0
    detect_races: bool = True

    def __post_init__(self) -> None:
        """Checks the fields, which are part of a compiled program."""
        if self.mode not in MODES:
            raise ValueError(f"InterpretParams: mode is one of {', '.join(MODES)}, not {self.mode!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise ValueError(f"InterpretParams: seed is an int in [0, 2**63), not {self.seed!r}")
        if not isinstance(self.detect_races, bool):
            raise ValueError(f"InterpretParams: detect_races is a bool, not {self.detect_races!r}")


def canonical_interpret(interpret: bool | InterpretParams | None) -> InterpretParams | None:
    """The parameters that `interpret` stands for, None where no emulator is asked for.

    Raises:
      TypeError: interpret is neither None, a bool nor InterpretParams.
    """
    if interpret is None or interpret is False:
        return None
    if interpret is True:
        return InterpretParams()
    if isinstance(interpret, InterpretParams):
        return interpret
    raise TypeError(f"interpret is None, a bool or a jax_moye.InterpretParams, not {interpret!r}")
