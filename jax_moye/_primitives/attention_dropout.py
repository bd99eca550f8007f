"""Dropout of attention's weights: a boolean of each weight, which is 0 where that is false, and a factor of the others.

    select(kept, weights / (1 - p), 0)          Flax's Dropout, Equinox
    weights * (kept / (1 - p))                  Flax's attention, of linen and nnx
    kept * weights / (1 - p)                    Haiku

The booleans stay computed by XLA, mostly of random bits; a kernel reads them as small as they are, in front of
broadcasts. The sum of a row is of all its weights: of a mask in front of the softmax it is not.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from jax_moye._primitives.attention_bias import variable_of
from jax_moye._primitives.attention_formulas import Cleared, Formula, Term
from jax_moye._primitives.attention_masks import All, Region, Traced
from jax_moye._primitives.patterns import Program


def dropout_of(what: Any, scale: float = 1.0) -> float | None:
    """The factor of what is kept, in shares or in the derivative of scores; None where nothing is dropped.

    Args:
      what: the formula of either.
      scale: of the scores.
    """
    what = what.formula if isinstance(what, Cleared) else what
    if not isinstance(what, Formula) or not any(term.kept for term in what.terms):
        return None
    factor = what.terms.get(Term(1, -1, kept=1), what.terms.get(Term(1, -1, 1, kept=1), math.nan) / scale)
    return factor if factor > 0 else None


def by_variables(program: Program, region: Region, members: Collection[int]) -> Region:
    """The same region, whose booleans have the names of the program's variables where it has them.

    Random bits are not computed anew then, but for those that a call makes which is part of the attention.

    Args:
      program: where it stands.
      region: of scores.
      members: the indices of the attention's equations.
    """
    if isinstance(region, All):
        return region._replace(parts=tuple(by_variables(program, part, members) for part in region.parts))
    if not isinstance(region, Traced):
        return region
    variable = variable_of(program, region.name)
    return region if variable is None or program.made_by.get(variable) in members else region._replace(name=variable)
