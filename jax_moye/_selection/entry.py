"""What was measured of one problem, as files keep it: of ours and of XLA, and who wins by it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jax_moye._selection.attention_key import AttentionKey, is_attention, parse_attention
from jax_moye._selection.epilogue import SECOND_B
from jax_moye._selection.leads import wins_by
from jax_moye._selection.problem import BATCH_MODES, RARE_FIELDS, BatchMode, GemmProblem

Timed = GemmProblem | AttentionKey
_ARRAYS = frozenset(("c", "residual", "kept"))  # words of a variant, read or written beside the result
SUMMED = "summed"  # such a word: somebody sums the result's columns, which XLA does in its kernel behind the product
WRITTEN = " written for it: "  # in a signature, in front of the operands that XLA reads in an order of its own


@dataclasses.dataclass(frozen=True)
class Entry:
    """What was measured of one problem.

    Attributes:
      problem: with its accumulator spelled out.
      variant: "" of the product alone; else what `variant` says; of an attention the signature of XLA's equations.
      config: name of the fastest of ours; of an attention as `AttentionTimes` has it.
      row: what `config_digest` said of it then.
      us: microseconds by config, of all that were timed.
      xla_us: of XLA by `signature`: precision and dtypes decide what XLA does, and are not all in the problem.
      lead: what XLA's time is times ours at least, by the same: the low end of the interval (95 %) of that ratio.
      fused: those of the same by which XLA computed the product in a fusion, not by a library.
      parted: those of these where a kernel behind it added up parts of k.
      host_bound: the host may have been what was timed: no reason to leave the product to XLA.
      date: of the measurement, ISO 8601.
    """

    problem: Timed
    variant: str
    config: str
    row: str
    us: Mapping[str, float]
    xla_us: Mapping[str, float]
    host_bound: bool
    date: str
    lead: Mapping[str, float] = dataclasses.field(default_factory=dict)
    fused: tuple[str, ...] = ()
    parted: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Timed, str]:
        """What the entry is about; a file has one entry for each."""
        return self.problem, self.variant

    def to_dict(self) -> dict[str, Any]:
        """As in a file."""
        times = {name: dict(getattr(self, name)) for name in ("us", "xla_us", "lead")}
        of_xla = {"fused": [*self.fused], "parted": [*self.parted]}
        return dataclasses.asdict(self) | {"problem": self.problem.to_dict()} | of_xla | times

    def is_won_by_ours(self, of: str) -> bool | None:
        """Whether our best is so much faster than XLA that it computes the product; None where nobody can say.

        Args:
          of: `signature` of the product.
        """
        of = self.nearest(of)
        xla = self.xla_us.get(of)
        if xla is None or self.host_bound:
            return None
        ours = self.us[self.config]
        words = {word.partition("[")[0] for word in self.variant.split()}
        has_arrays = isinstance(self.problem, GemmProblem) and not _ARRAYS.isdisjoint(words)
        of_xla = {"is_fused": of in self.fused, "is_parted": of in self.parted, "is_summed": SUMMED in words}
        is_pair = SECOND_B in words
        least = wins_by(ours, self.problem, **of_xla, has_arrays=has_arrays, is_pair=is_pair, config=self.config)
        return self.lead.get(of, xla / ours) >= least

    def nearest(self, of: str) -> str:
        """The signature whose times say most of a product: its own, else one with other operands written for XLA.

        Args:
          of: `signature` of the product.
        """
        if of in self.xla_us:
            return of
        alike = (one for one in self.xla_us if one.partition(WRITTEN)[0] == of.partition(WRITTEN)[0])
        return next(alike, of)

    def with_times_of(self, before: Entry) -> Entry:
        """With the times of XLA by other signatures that an entry about the same has."""
        if before.host_bound or self.host_bound:
            return self
        others = {of for of in before.xla_us if of not in self.xla_us}
        return dataclasses.replace(
            self,
            xla_us={of: us for of, us in before.xla_us.items() if of in others} | dict(self.xla_us),
            lead={of: lead for of, lead in before.lead.items() if of in others} | dict(self.lead),
            fused=(*(of for of in before.fused if of in others), *self.fused),
            parted=(*(of for of in before.parted if of in others), *self.parted),
        )


def check(condition: bool, what: str) -> None:
    """Raises ValueError where a file says something that nobody wrote."""
    if not condition:
        raise ValueError(what)


def _times(raw: Any, what: str) -> dict[str, float]:
    check(isinstance(raw, dict), f"{what} is no object")
    for name, us in raw.items():
        check(type(us) in (int, float) and math.isfinite(us) and us > 0, f"{what} of {name} is no time")
    return raw


def _problem(raw: Any) -> GemmProblem:
    fields = {field.name for field in dataclasses.fields(GemmProblem)}
    check(isinstance(raw, dict) and set(raw) | set(RARE_FIELDS) == fields, "a problem has other fields")
    for name in ("batch", "m", "n", "k"):
        check(type(raw[name]) is int and raw[name] > 0, f"{name} is no size")
    for name in ("dtype", "out_dtype", "accumulator"):
        check(isinstance(raw[name], str), f"{name} is no dtype")
    for name in ("swapped", "epilogue", "pair", "derivative", "gate"):
        check(type(raw.get(name, False)) is bool, f"{name} is neither true nor false")
    strides = {}
    for name in ("a_strides", "b_strides", "d_strides"):
        is_triple = isinstance(raw[name], list) and [type(x) for x in raw[name]] == [int, int, int]
        check(is_triple, f"{name} are no strides")
        strides[name] = tuple(raw[name])
    outer = raw.get("outer", [])
    check(isinstance(outer, list) and len(outer) < BATCH_MODES, "outer are no modes of a batch")
    for mode in outer:
        is_mode = isinstance(mode, list) and [type(x) for x in mode] == [int] * 4 and mode[0] > 0
        check(is_mode, "a mode of a batch is a size and three strides")
    check(raw["batch"] % math.prod(mode[0] for mode in outer) == 0, "a batch is the product of its modes")
    return GemmProblem(**raw | strides | {"outer": tuple(BatchMode(*mode) for mode in outer)})


def parse_entry(raw: Any) -> Entry:
    """An entry as `Entry.to_dict` wrote it.

    Raises:
      ValueError: it is something else.
    """
    fields = {field.name for field in dataclasses.fields(Entry)}
    later = {"lead", "fused", "parted"}  # older files have none
    check(isinstance(raw, dict) and set(raw) | later == fields, "an entry has other fields")
    for name in ("variant", "config", "row", "date"):
        check(isinstance(raw[name], str), f"{name} is no text")
    check(type(raw["host_bound"]) is bool, "host_bound is neither true nor false")
    us, xla_us, lead = (_times(raw.get(name, {}), name) for name in ("us", "xla_us", "lead"))
    check(raw["config"] in us, "its config has no time")
    fused, parted = raw.get("fused", []), raw.get("parted", [])
    for name, of in (("fused", fused), ("parted", parted)):
        check(isinstance(of, list) and all(isinstance(x, str) for x in of), f"{name} are no signatures")
    problem = parse_attention(raw["problem"]) if is_attention(raw["problem"]) else _problem(raw["problem"])
    by_xla = {"xla_us": xla_us, "lead": lead, "fused": tuple(fused), "parted": tuple(parted)}
    return Entry(**raw | {"problem": problem, "us": us} | by_xla)
