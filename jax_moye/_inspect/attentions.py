"""The attentions of a program, as `explain`, `report` and `bench --program` list them beside the products.

An attention and its gradients are one row where the program has both: they are decided about, and timed, together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jax_moye._format import us_text
from jax_moye._inspect.products import Attention, Found, attentions_of, products_of
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives.attention_lowering import contest
from jax_moye._primitives.contests import Contest, sample
from jax_moye._selection.attention import AttentionDecision
from jax_moye._selection.attention_times import AttentionTimes
from jax_moye._selection.capability import LoweringTarget
from jax_moye._timing.direct import same_result
from jax_moye._timing.operands import expected_us, random_sets, rotated_bytes, rotation
from jax_moye._timing.programs import program_contender
from jax_moye._timing.rounds import Contender


@dataclasses.dataclass(frozen=True)
class AttentionRow:
    """A different attention of a program, with its gradients where it has any.

    Attributes:
      what: it is, in words.
      count: how often the program computes it.
      parts: it, and the gradients, as far as both are in the program.
      decisions: who computes each of these.
    """

    what: str
    count: int
    parts: tuple[Attention, ...] = dataclasses.field(repr=False)
    decisions: tuple[AttentionDecision, ...] = dataclasses.field(repr=False)

    @property
    def computed_by(self) -> str:
        """`"moye"`, or `"xla"` by the program's own equations."""
        return "xla" if any(one.config is None for one in self.decisions) else "moye"

    @property
    def computer(self) -> str:
        """Who computes it, as in the tables."""
        names = [one.config.name for one in self.decisions if one.config is not None]
        return " + ".join(names) if self.computed_by == "moye" else "XLA"

    @property
    def times(self) -> AttentionTimes | None:
        """What lowering measured of it; None where nothing is known."""
        return next((one.times for one in self.decisions if one.times is not None), None)

    @property
    def us(self) -> float | None:
        """Microseconds of our kernels; None where nobody measured them."""
        return None if self.times is None else self.times.us

    @property
    def xla_us(self) -> float | None:
        """Of what XLA makes of the program's equations."""
        return None if self.times is None else self.times.xla_us

    def to_dict(self) -> dict[str, Any]:
        """As JSON's types."""
        return {
            "what": self.what,
            "count": self.count,
            "computed_by": self.computed_by,
            "configs": [None if one.config is None else one.config.name for one in self.decisions],
            "reasons": [one.reason for one in self.decisions],
            "us": self.us,
            "xla_us": self.xla_us,
            "lead": None if self.times is None else self.times.lead,
            "source": None if self.times is None else self.times.source,
        }

    def cells(self) -> list[str]:
        """Its line in `explain`'s table, without a number."""
        us = self.xla_us if self.computed_by == "xla" else self.us
        times = [us_text(us), us_text(self.xla_us), us_text(us and us * self.count)]
        return [self.what, str(self.count), self.computer, *times]

    def contest(self, interpret: InterpretParams | None) -> Contest | None:
        """What is timed of it; None where no kernel of ours can compute it.

        Args:
          interpret: how the emulator runs our kernels; None on a GPU.
        """
        one = self.parts[0]
        if one.together is None or one.is_of_gradients:
            return None
        target = None if interpret is not None else LoweringTarget.of_platform("cuda")
        return contest(one.interpreted(interpret), one.operands, target, one.together)


def counted(gemms: Sequence[Any], attentions: Sequence[Any]) -> str:
    """How many of each there are, in words.

    Args:
      gemms: products.
      attentions: of a program.
    """
    products = f"{len(gemms) or 'no'} {'different ' * bool(gemms)}matrix product{'s' * (len(gemms) != 1)}"
    if not attentions:
        return products
    return f"{products} and {len(attentions)} different attention{'s' * (len(attentions) != 1)}"


def attention_rows(jaxpr: Any, target: LoweringTarget) -> tuple[list[AttentionRow], list[str], list[Found]]:
    """The different attentions of a program, a line for each of their parts, and the products of those left to XLA.

    Args:
      jaxpr: of the program.
      target: what it is for.
    """
    together: dict[Any, list[tuple[Attention, AttentionDecision, str, int]]] = {}
    lines: dict[tuple[str, str], int] = {}
    left: list[Found] = []
    for attention, count in attentions_of(jaxpr):
        decision, what = attention.decided(target)
        by = "the program's own equations" if decision.config is None else decision.config.name
        line = what, f"by {by}: {decision.reason}"
        lines[line] = lines.get(line, 0) + count
        if decision.config is None:
            left += [(one, count * of, where) for one, of, where in products_of(attention.original)]
        key = object() if attention.together is None else attention.together
        together.setdefault(key, []).append((attention, decision, what, count))
    rows: dict[Any, AttentionRow] = {}
    for members in together.values():
        parts, decisions, names, counts = zip(*members, strict=True)
        what = names[0] if len(names) == 1 else names[0].replace("attention", "attention and its gradients", 1)
        row = AttentionRow(what, counts[0], parts, decisions)
        of_params = dataclasses.replace(parts[0].params, scale=1.0, options=())
        alike = what, of_params, parts[0].operands, row.computer, *(one.reason for one in decisions)
        before = rows.get(alike)
        rows[alike] = row if before is None else dataclasses.replace(before, count=before.count + row.count)
    often = {1: "once"}
    said = [f"{what}: {often.get(count, f'{count} times')} {by}." for (what, by), count in lines.items()]
    return list(rows.values()), said, left


def contenders(row: AttentionRow, found: Contest, device: jax.Device) -> Iterator[Contender]:
    """XLA, and ours where it computes the attention: the configs that the row has.

    Args:
      row: of an explanation.
      found: what is timed of it.
      device: where to run.
    """
    us = expected_us(found.flops, found.footprint)
    of_sets = rotation(us, found.footprint, rotated_bytes(), device, largest_loop=0)
    sets = random_sets(found.types, of_sets, seed=0)
    queries = [x * x.dtype.type(found.factor) for x in sets.arrays[0]]
    sets = dataclasses.replace(sets, arrays=(queries, *sets.arrays[1:]))
    yield program_contender("xla", found.xla, sets)
    if row.computed_by == "moye":
        configs = tuple(one.config for one in row.decisions)
        fun = next(fun for of, fun in found.ours.items() if of == configs)
        yield program_contender("jax_moye", fun, sets)


def is_same(ours: Contender, xla: Contender) -> bool:
    """Whether the first results of both are one, but for rounding.

    Args:
      ours: a contender.
      xla: the other one.
    """
    both = [[sample(x) for x in jax.tree.leaves(one.run(0))] for one in (ours, xla)]
    return all(same_result(x, y) for x, y in zip(*both, strict=True))
