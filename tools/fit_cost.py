#!/usr/bin/env python3
"""How well the models of time choose, and their constants fitted anew, from files of measurements.

The files are benchmarks/results/*-configs.json, *-measured.json and *-raced.json: products of real models, each with
the times of configs ("us") and, where it was measured in the same run, of XLA ("xla_us", or "xla_seconds"). Products
of benchmarks/models/validation.json, and those whose row says "kept", are kept from fitting; all others are fitted to.
With a product in several files, a config's time is their geometric mean.

  python tools/fit_cost.py                   how well the constants choose that are in the sources
  python tools/fit_cost.py --fit             fits them to the fitting part, prints them, and how well they choose
  python tools/fit_cost.py --worst 20 FILE   twenty of the worst choices of each part, from other files

Regret is the time of the best config measured over that of the model's choice among those measured. XLA's model is
fitted to its times in the files and to those of the package's table, which are compared with ours of the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import pathlib
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import jax_moye
from jax_moye._kernels.configs import GemmConfig, facts_of
from jax_moye._selection import cost, cost_xla, measurements
from jax_moye._selection.problem import GemmProblem, make_problem
from jax_moye.layout.kernels import Speed

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/results"
MODELS = ROOT / "benchmarks/models"
FILES = sorted(path for kind in ("configs", "measured", "raced") for path in RESULTS.glob(f"*-{kind}.json"))
ARCH = 90
PARTS = ("fit", "validation")

# What is fitted of the kernels: constants of the same fact, which some of them share.
_MMA_SYNC = ("sm80_multistage", "sm80_persistent", "sm80_double_buffer", "sm80_ldmatrix", "sm80_tensorop")
_WGMMA = ("sm90_cooperative", "sm90_pingpong", "sm90_split_k")
_PARTS = ("sm90_parallel_split_k",)  # whose first kernel is sm90_cooperative
_SHARED: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("sm80_multistage",), ("products_per_us",)),
    (_MMA_SYNC, ("copy_us", "store_us", "launch_us")),
    ((*_WGMMA, *_PARTS), ("products_per_us",)),
    ((*_WGMMA[:2], *_PARTS), ("k_tile_us",)),
    ((*_WGMMA[:1], *_PARTS), ("store_us",)),
    (_WGMMA[1:2], ("store_us",)),
    (_PARTS, ("add_us",)),
    (_WGMMA[2:], ("k_tile_us", "store_us", "part_us", "wave_us")),
    (("sm90_sliced_k",), ("k_tile_us", "store_us", "wave_us")),
)
# Factors of tiles stay near 1: as if each had been measured so many more times to be 1.
_MEASURED_TO_BE_1 = 20
_ROBUST = 0.1  # logarithm of a ratio, from which on errors count linearly

Sizes = tuple[int, int, int, int, str, str]  # batch, m, n, k, layout, dtype


class Product(NamedTuple):
    """What was measured of one product.

    Attributes:
      sizes: of it.
      problem: as the kernels see it.
      us: by config, of all that were timed.
      xla_us: None where XLA was not timed in the same run.
      part: "fit" or "validation".
    """

    sizes: Sizes
    problem: GemmProblem
    us: Mapping[GemmConfig, float]
    xla_us: float | None
    part: str


def sizes_of(row: Mapping[str, Any]) -> Sizes:
    """Of a workload or a product of a file."""
    return row["batch"], row["m"], row["n"], row["k"], row["layout"], row["dtype"]


def problem_of(row: Mapping[str, Any], dtype: str | None = None) -> GemmProblem:
    """The problem of a row; dtype: of the config, where that is not the operands'."""
    lead = "b" if row["batch"] > 1 else ""
    a, b = lead + ("mk" if row["layout"][0] == "N" else "km"), lead + ("kn" if row["layout"][1] == "N" else "nk")
    sizes = {"b": row["batch"], "m": row["m"], "n": row["n"], "k": row["k"]}
    shapes = [[sizes[label] for label in labels] for labels in (a, b)]
    return make_problem(f"{a},{b}->{lead}mn", *shapes, dtype or row["dtype"], row["dtype"])


def read(paths: Iterable[pathlib.Path]) -> list[Product]:
    """The products of files with at least two configs that this build has."""
    kept = {sizes_of(row) for row in json.loads((MODELS / "validation.json").read_text())["rows"]}
    table = {config.name: config for config in jax_moye.configs()}
    rows: dict[Sizes, Mapping[str, Any]] = {}
    us: dict[Sizes, dict[GemmConfig, list[float]]] = {}
    xla: dict[Sizes, list[float]] = {}
    for path in paths:
        for row in json.loads(path.read_text())["products"]:
            sizes = sizes_of(row)
            rows.setdefault(sizes, row)
            if row.get("kept"):
                kept.add(sizes)
            for name in row["us"].keys() & table.keys():
                us.setdefault(sizes, {}).setdefault(table[name], []).append(row["us"][name])
            if us_of_xla := row.get("xla_us") or 1e6 * row.get("xla_seconds", 0):
                xla.setdefault(sizes, []).append(us_of_xla)
    return [
        Product(
            sizes,
            problem_of(row),
            {
                config: statistics.geometric_mean(us[sizes][config])
                for config in sorted(us[sizes], key=lambda c: c.name)
            },
            statistics.geometric_mean(xla[sizes]) if sizes in xla else None,
            "validation" if sizes in kept else "fit",
        )
        for sizes, row in rows.items()
        if len(us.get(sizes, ())) > 1
    ]


# ------------------------------------------------------------------------------------------------------ how it chooses


class Chosen(NamedTuple):
    """What the model chooses for a product: the best time over the chosen config's, the two configs."""

    regret: float
    product: Product
    config: GemmConfig
    best: GemmConfig

    def __str__(self) -> str:
        """In a line."""
        us = self.product.us
        batch, m, n, k, layout, _ = self.product.sizes
        what = f"{f'{batch}x' if batch > 1 else ''}{m}x{n}x{k} {layout}"
        return (
            f"{self.regret:.3f}  {what}: {self.config.name} {us[self.config]:.4g} us, {self.best.name} "
            f"{us[self.best]:.4g} us"
        )


def choices(products: Iterable[Product]) -> list[Chosen]:
    """The model's choice for each product, the worst first."""
    found = []
    for product in products:
        us = product.us
        config = min(us, key=lambda config: cost.predicted_us(config, product.problem, ARCH))
        best = min(us, key=us.__getitem__)
        found.append(Chosen(us[best] / us[config], product, config, best))
    return sorted(found, key=lambda chosen: chosen.regret)


def mean_regret(found: Sequence[Chosen]) -> float:
    """The geometric mean."""
    return statistics.geometric_mean(chosen.regret for chosen in found)


def best_possible(products: Sequence[Product], trials: int = 20) -> float:
    """The mean regret of a model that knows every time, where times are measured with the noise that these have.

    Noise is what two configs differ by that are the same code for aligned operands: with and without packing. The
    predicted times stand for the true ones. What is level for minutes, such as a clock, is no noise of this kind.
    """
    twins: dict[bool, list[float]] = {False: [], True: []}
    for product in products:
        if product.problem.alignment < 16:
            continue
        by_shape: dict[Any, list[float]] = {}
        for config, us in product.us.items():
            if not facts_of(config.kernel).pads:
                continue
            by_shape.setdefault((config.kernel, config.tile, config.stages, config.cluster), []).append(us)
        for a, b in (times for times in by_shape.values() if len(times) == 2):
            twins[min(product.us.values()) > 20] += [math.log(a / b) / math.sqrt(2), math.log(b / a) / math.sqrt(2)]
    rng = np.random.default_rng(0)
    logs = []
    for product in products:
        true = np.log([cost.predicted_us(config, product.problem, ARCH) for config in product.us])
        noise = rng.choice(twins[min(product.us.values()) > 20] or [0.0], (trials, len(true)))
        logs.append(np.mean((true + noise).min(1) - (true + noise)[:, true.argmin()]))
    return math.exp(np.mean(logs))


# ------------------------------------------------------------------------------------------------------------- fitting


class Constant(NamedTuple):
    """A constant that is fitted.

    Attributes:
      owners: "H200", or the kernels that share it.
      field: of the Machine, or of their Speed.
      key: where that is a table: the entry's; None where it is a number.
    """

    owners: tuple[str, ...]
    field: str
    key: Any = None

    @property
    def is_of_tile(self) -> bool:
        """Whether it is a factor of a tile."""
        return self.field == "by_tile"


def _entry(value: Any, key: Any) -> float:
    return value if key is None else dict(value)[key]


def _with(value: Any, key: Any, number: float) -> Any:
    if key is None:
        return number
    changed = dict(value) | {key: number}
    return tuple(changed.items()) if isinstance(value, tuple) else changed


def constants() -> list[Constant]:
    """All that are fitted."""
    found = [Constant(("H200",), field) for field in cost.Machine._fields]
    found += [Constant(kernels, field) for kernels, fields in _SHARED for field in fields]
    found += [Constant(_WGMMA[:1], "odd_store_us", key) for key, _ in facts_of(_WGMMA[0]).speed.odd_store_us]
    found += [Constant(_WGMMA[1:2], "odd_store_us", key) for key, _ in facts_of(_WGMMA[1]).speed.odd_store_us]
    for kernels in ((*_WGMMA[:1], *_PARTS), _WGMMA[1:2]):
        found += [Constant(kernels, "by_tile", tile) for tile in facts_of(kernels[0]).speed.by_tile]
    return found


State = tuple[cost.Machine, Mapping[str, Speed]]


def present() -> State:
    """The constants of the sources."""
    kernels = {config.kernel for config in jax_moye.configs()}
    return cost.H200, {kernel: facts_of(kernel).speed for kernel in kernels}


def values(state: State, fitted: Sequence[Constant]) -> np.ndarray:
    """Of the constants, their logarithms."""
    machine, speeds = state
    owners = [machine if one.owners == ("H200",) else speeds[one.owners[0]] for one in fitted]
    return np.log([_entry(getattr(owner, one.field), one.key) for owner, one in zip(owners, fitted, strict=True)])


def changed(state: State, fitted: Sequence[Constant], logs: np.ndarray) -> State:
    """The constants with others in their places."""
    machine, speeds = state[0], dict(state[1])
    for one, log in zip(fitted, logs, strict=True):
        number = math.exp(log)
        if one.owners == ("H200",):
            machine = machine._replace(**{one.field: number})
            continue
        for kernel in one.owners:
            value = getattr(speeds[kernel], one.field)
            speeds[kernel] = speeds[kernel]._replace(**{one.field: _with(value, one.key, number)})
    return machine, speeds


@contextlib.contextmanager
def using(state: State) -> Iterator[None]:
    """The model with other constants."""
    before = cost.H200, cost.facts_of
    facts = {kernel: facts_of(kernel)._replace(speed=speed) for kernel, speed in state[1].items()}
    cost.H200, cost.facts_of = state[0], facts.__getitem__  # type: ignore[assignment]
    cost._of_config.cache_clear()
    try:
        yield
    finally:
        cost.H200, cost.facts_of = before
        cost._of_config.cache_clear()


def least_squares(residuals: Callable[[np.ndarray], np.ndarray], x: np.ndarray, rounds: int = 15) -> np.ndarray:
    """The x for which the sum of squares is least: Levenberg and Marquardt's, with differences for derivatives."""
    r, damping, step = residuals(x), 1e-2, 1e-4
    for _ in range(rounds):
        jacobian = np.stack([(residuals(x + step * one) - r) / step for one in np.eye(len(x))], axis=1)
        squares, gradient = jacobian.T @ jacobian, jacobian.T @ r
        for _ in range(8):
            scale = np.diag(np.diag(squares) + 1e-6 * len(r))
            to = x + np.clip(np.linalg.solve(squares + damping * scale, -gradient), -0.5, 0.5)
            new = residuals(to)
            if new @ new < r @ r:
                break
            damping *= 4
        else:
            return x
        gain = 1 - new @ new / (r @ r)
        x, r, damping = to, new, max(damping / 3, 1e-6)
        if gain < 1e-4:
            break
    return x


def robust(errors: np.ndarray) -> np.ndarray:
    """Errors whose squares grow linearly from _ROBUST on."""
    return np.sign(errors) * _ROBUST * np.sqrt(2 * (np.sqrt(1 + (errors / _ROBUST) ** 2) - 1))


def fit(products: Sequence[Product]) -> State:
    """Constants that predict the times; a config counts by how near the best it is, since choices are among those."""
    state, fitted = present(), constants()
    timed = [(product, config, us) for product in products for config, us in product.us.items()]
    logs = np.log([us for _, _, us in timed])
    weights = np.array([min(product.us.values()) / us for product, _, us in timed])
    tiles = np.array([one.is_of_tile for one in fitted])

    def residuals(x: np.ndarray) -> np.ndarray:
        with using(changed(state, fitted, x)):
            predicted = np.log([cost.predicted_us(config, product.problem, ARCH) for product, config, _ in timed])
        return np.concatenate([robust(weights * (predicted - logs)), math.sqrt(_MEASURED_TO_BE_1) * x[tiles]])

    return changed(state, fitted, least_squares(residuals, values(state, fitted)))


# ----------------------------------------------------------------------------------------------------------------- XLA


class Compared(NamedTuple):
    """Our chosen kernel and XLA on one product.

    Attributes:
      problem: the product.
      ours_us: measured, of the config that the model chooses.
      xla_us: measured in the same run.
      predicted_us: of that config.
      part: "fit" or "validation".
    """

    problem: GemmProblem
    ours_us: float
    xla_us: float
    predicted_us: float
    part: str

    @property
    def as_predicted_us(self) -> float:
        """What XLA would take where ours takes what is predicted: runs differ in clocks, and ratios decide."""
        return self.xla_us / self.ours_us * self.predicted_us

    @property
    def error(self) -> float:
        """Logarithm of the predicted ratio over the measured one."""
        xlas = cost_xla.xla_us(self.problem, ARCH)
        assert xlas is not None
        return math.log(self.as_predicted_us / xlas)


def compared(products: Iterable[Product]) -> list[Compared]:
    """All products on which XLA was measured, those of the package's table among them.

    But for those that take XLA less than its call costs the host, which is what decides who computes them.
    """
    timed = [(product.problem, product.us, product.xla_us, product.part) for product in products if product.xla_us]
    known = {measurements.usual_key(problem) for problem, *_ in timed}
    table = {config.name: config for config in jax_moye.configs()}
    for entry in measurements.read(measurements.TABLES / "nvidia_h200.json").entries.values():
        us = {table[name]: us for name, us in entry.us.items() if name in table}
        if us and entry.problem not in known and not entry.variant and not entry.host_bound and len(entry.xla_us) == 1:
            timed.append((entry.problem, us, *entry.xla_us.values(), "fit"))
    found = []
    for problem, us, xla_us, part in timed:
        if xla_us > cost_xla.XLA_CALL_US and cost_xla.xla_us(problem, ARCH) is not None:
            config = min(us, key=lambda config: cost.predicted_us(config, problem, ARCH))
            found.append(Compared(problem, us[config], xla_us, cost.predicted_us(config, problem, ARCH), part))
    return found


def xla_constants() -> dict[tuple[str, Any], float]:
    """What is fitted of XLA's model: by name, and key or index where it is a table."""
    names = ("_READ_BYTES_PER_US", "_WRITE_BYTES_PER_US", "_K_US", "_SPLIT_US")
    found: dict[tuple[str, Any], float] = {(name, None): getattr(cost_xla, name) for name in names}
    found |= {("_PRODUCTS_PER_US", dtype): rate for dtype, rate in cost_xla._PRODUCTS_PER_US.items()}
    return found | {("_ODD", odd): cost_xla._ODD[odd] for odd in (1, 2)}


def set_xla_constants(numbers: Mapping[tuple[str, Any], float]) -> None:
    """Puts them into the model; f16 is taken to be as fast as bf16."""
    for (name, key), number in numbers.items():
        if key is None:
            setattr(cost_xla, name, number)
        elif name == "_ODD":
            cost_xla._ODD = tuple(number if i == key else old for i, old in enumerate(cost_xla._ODD))  # type: ignore
        else:
            cost_xla._PRODUCTS_PER_US[key] = numbers[name, "bf16"] if key == "f16" else number


def fit_xla(rows: Sequence[Compared]) -> dict[tuple[str, Any], float]:
    """XLA's constants, fitted; they are in the model from then on."""
    numbers = xla_constants()

    def residuals(x: np.ndarray) -> np.ndarray:
        set_xla_constants(dict(zip(numbers, np.exp(x), strict=True)))
        return robust(np.array([row.error for row in rows]))

    start = np.log(list(numbers.values()))
    # Of a dtype that was not measured, nothing: it stays where it is.
    fitted = least_squares(lambda x: np.concatenate([residuals(x), 1e-3 * (x - start)]), start, rounds=40)
    set_xla_constants(dict(zip(numbers, np.exp(fitted), strict=True)))
    return xla_constants()


def spread(rows: Sequence[Compared]) -> float:
    """The root of the mean square of the errors."""
    return math.sqrt(statistics.fmean(row.error**2 for row in rows))


def sure(rows: Iterable[Compared]) -> float:
    """cost_xla.SURE: a ratio is predicted too high by so much in one of twenty products that were fitted to."""
    return math.exp(1.645 * spread([row for row in rows if row.part == "fit"]))


def xla_in_words(rows: Sequence[Compared]) -> Iterator[str]:
    """How well the two models together predict who is faster, in lines."""
    for part in PARTS:
        of_part = [row for row in rows if row.part == part]
        if not of_part:
            continue
        kept = [
            row
            for row in of_part
            if (xlas := cost_xla.xla_us(row.problem, ARCH)) and row.predicted_us * sure(rows) < xlas
        ]
        yield f"XLA, {part}: {len(of_part)} products, {spread(of_part):.1%} error of the ratio"
        groups: dict[str, list[Compared]] = {}
        for row in of_part:
            rows_of_d = "m < 64" if row.problem.m < 64 else "m >= 64"
            odd = ", odd" if row.problem.alignment < 16 else ""
            groups.setdefault(f"{row.problem.dtype} {row.problem.order} {rows_of_d}{odd}", []).append(row)
        for group, members in sorted(groups.items()):
            mean = math.exp(statistics.fmean(row.error for row in members))
            yield f"  {group}: {len(members)}, {spread(members):.1%}, XLA is faster than predicted by {1 / mean:.3f}"
        if kept:
            ratios = [row.xla_us / row.ours_us for row in kept]
            yield (
                f"  ours on {len(kept)} of them: XLA's time over ours {statistics.geometric_mean(ratios):.3f} "
                f"(geometric mean), {min(ratios):.3f} at worst"
            )
    yield f"cost_xla.SURE = {sure(rows):.3g}"


# ------------------------------------------------------------------------------------------------------------ printing


def in_words(products: Sequence[Product], worst: int) -> Iterator[str]:
    """How well the model chooses, in lines."""
    for part in PARTS:
        of_part = [product for product in products if product.part == part]
        if not of_part:
            continue
        found = choices(of_part)
        errors = [
            math.log(cost.predicted_us(config, product.problem, ARCH) / us)
            for product in of_part
            for config, us in product.us.items()
            if us < 1.3 * min(product.us.values())
        ]
        yield (
            f"{part}: {len(found)} products, regret {mean_regret(found):.4f} (geometric mean), {found[0].regret:.3f} "
            f"at worst; {math.sqrt(statistics.fmean(x * x for x in errors)):.1%} error of the times of configs within "
            f"30 % of the best; with this noise the best model would reach {best_possible(of_part):.4f}"
        )
        yield from (f"  {chosen}" for chosen in found[:worst])


def constants_in_words(state: State) -> Iterator[str]:
    """What was fitted, as the sources write it."""
    for one, log in zip(constants(), values(state, constants()), strict=True):
        number = f"{math.exp(log):.3g}"
        number = re.sub(r"e\+0?", "e", number)
        where = f"{', '.join(one.owners)}: {one.field}"
        yield f"{where}{'' if one.key is None else f'[{one.key}]'} = {number}"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="default: all of benchmarks/results")
    parser.add_argument("--fit", action="store_true", help="fit the constants first")
    parser.add_argument("--worst", type=int, default=5, help="how many of the worst choices of each part to list")
    options = parser.parse_args(arguments)
    products = read(options.files or FILES)
    state = present()
    if options.fit:
        state = fit([product for product in products if product.part == "fit"])
        print(*constants_in_words(state), sep="\n")
    with using(state):
        print(*in_words(products, options.worst), sep="\n")
        rows = compared(products)
        if options.fit:
            for (name, key), number in fit_xla([row for row in rows if row.part == "fit"]).items():
                print(f"cost_xla.{name}{'' if key is None else f'[{key!r}]'} = {number:.3g}")
        print(*xla_in_words(rows), sep="\n")


if __name__ == "__main__":
    main()
