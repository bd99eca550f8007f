"""Two files of results: what became faster or slower from the first to the second, with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax_moye._format import filled, fitted_table, significant, us_text, wrapped


class Timed(NamedTuple):
    """What a file says of one product.

    Attributes:
      key: the same in two files that say something of the same product.
      name: for a reader.
      us: microseconds; None where only the ratio is known.
      us_ci: its interval of 95 %; None where the file has none.
      ratio: time of `against` over ours; None where it was not timed.
      ratio_ci: its interval.
      against: whose time it is.
    """

    key: tuple[str, ...]
    name: str
    us: float | None
    us_ci: Sequence[float] | None = None
    ratio: float | None = None
    ratio_ci: Sequence[float] | None = None
    against: str | None = None


class File(NamedTuple):
    """A file: its name, what it is about, and its times."""

    name: str
    about: str
    timed: Sequence[Timed]


class Change(NamedTuple):
    """How a product changed.

    Attributes:
      first: as the first file says.
      second: as the second one does.
      faster: how many times as fast the second is.
      interval: of that, 95 %; None where a file has none.
      of: what was compared.
    """

    first: Timed
    second: Timed
    faster: float
    interval: tuple[float, float] | None
    of: str

    @property
    def verdict(self) -> str:
        """What the interval says: "faster", "slower", "level" where it contains 1, "?" where there is none."""
        if self.interval is None:
            return "?"
        low, high = self.interval
        return "faster" if low > 1 else "slower" if high < 1 else "level"


def changes(first: File, second: File) -> list[Change]:
    """The products that both files have, from what became slower the most to what became faster the most.

    Both runs timed a product next to others, which the same heat and clocks held back: where the best of them is the
    same in both files, the two ratios to it are compared, else the two times.

    Raises:
      ValueError: they have none in common.
    """
    before = {one.key: one for one in first.timed}
    pairs = [(before[one.key], one) for one in second.timed if one.key in before]
    found = [change for a, b in pairs if (change := _change(a, b)) is not None]
    if not found:
        raise ValueError("they have no product in common")
    return sorted(found, key=lambda change: change.faster)


def _change(a: Timed, b: Timed) -> Change | None:
    if a.against is not None and a.against == b.against and a.ratio and b.ratio:
        interval = quotient_interval(b.ratio, b.ratio_ci, a.ratio, a.ratio_ci)
        return Change(a, b, b.ratio / a.ratio, interval, f"ratio to {a.against}")
    if a.us and b.us:
        return Change(a, b, a.us / b.us, quotient_interval(a.us, a.us_ci, b.us, b.us_ci), "time")
    return None


def quotient_interval(
    x: float, x_ci: Sequence[float] | None, y: float, y_ci: Sequence[float] | None
) -> tuple[float, float] | None:
    """The interval of x / y, whose intervals are of two runs that know nothing of each other; None without both.

    On the scale of logarithms the two distances to an end of the interval add up as the sides of a right angle do.
    """
    if x_ci is None or y_ci is None:
        return None
    down = math.hypot(math.log(x / x_ci[0]), math.log(y_ci[1] / y))
    up = math.hypot(math.log(x_ci[1] / x), math.log(y / y_ci[0]))
    return x / y * math.exp(-down), x / y * math.exp(up)


def lines(first: File, second: File, found: Sequence[Change]) -> list[str]:
    """The comparison as text."""
    cells = [["product", "A", "B", "B is x as fast", "95 % interval", "verdict", "compared"]]
    for change in found:
        values = [_value(one, change.of) for one in (change.first, change.second)]
        interval = "" if change.interval is None else f"[{change.interval[0]:.3f}, {change.interval[1]:.3f}]"
        cells.append([change.second.name, *values, f"{change.faster:.3f}", interval, change.verdict, change.of])
    text = [*wrapped(f"A: {first.name}: {first.about}"), *wrapped(f"B: {second.name}: {second.about}"), ""]
    text += [*fitted_table(filled(cells)), ""]
    mean = statistics.geometric_mean([change.faster for change in found])
    verdicts = [change.verdict for change in found]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in ("slower", "level", "faster") if word in verdicts)
    unknown = f"{', ' if counts else ''}{verdicts.count('?')} without an interval" if "?" in verdicts else ""
    text += wrapped(f"{len(found)} products, B is {mean:.3f} times as fast (geometric mean): {counts}{unknown}")
    for file, other in ((first, second), (second, first)):
        keys = {one.key for one in other.timed}
        if missing := [one.name for one in file.timed if one.key not in keys]:
            text += wrapped(f"only in {'AB'[file is second]}: {len(missing)}, {', '.join(missing[:6])}")
    text += wrapped(
        "A and B: microseconds; or the time of another contender over ours, where both files have the same best one. "
        "faster, slower: the interval does not contain 1; level: it does; ?: a file has no interval."
    )
    return text + wrapped(
        "An interval is about the rounds of two runs. It knows nothing of what else differs between them."
    )


def _value(one: Timed, of: str) -> str:
    return us_text(one.us) if of == "time" else f"{one.ratio:.3f}"


def to_dict(first: File, second: File, found: Sequence[Change]) -> dict[str, Any]:
    """The comparison as JSON's types."""
    products = [
        {
            "product": change.second.name,
            "us": [change.first.us, change.second.us],
            "ratio": [change.first.ratio, change.second.ratio],
            "compared": change.of,
            "faster": significant(change.faster),
            "interval": None if change.interval is None else [significant(end) for end in change.interval],
            "verdict": change.verdict,
        }
        for change in found
    ]
    return {"files": [{"file": file.name, "about": file.about} for file in (first, second)], "products": products}
