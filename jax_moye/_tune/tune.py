"""`tune`: times the configs that can compute a product, and XLA, and writes down which is the fastest.

A user calls it: nothing here is timed while a program is traced or runs. times.py says what is timed and how,
command.py is the command line, _selection/measurements.py has the files and what a selection finds in them.
docs/tuning.md is about all of it.
"""

from __future__ import annotations

import dataclasses
import datetime
import html
import math
import os
import pathlib
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from jax_moye import _compat
from jax_moye._api.types import DimensionNumbers
from jax_moye._format import error_line, html_table
from jax_moye._inspect.explain import explain
from jax_moye._inspect.products import Product
from jax_moye._inspect.programs import added_structs, program_of
from jax_moye._kernels import ffi
from jax_moye._kernels.cache import VARIABLE
from jax_moye._kernels.configs import ConfigTable, GemmConfig, configs
from jax_moye._kernels.devices import of_jax
from jax_moye._primitives import product_race
from jax_moye._selection import measurements
from jax_moye._selection.capability import LoweringTarget, usable_configs
from jax_moye._selection.decide import KernelCall, decide
from jax_moye._selection.entry import Entry
from jax_moye._selection.problem import GemmProblem, NotServedError
from jax_moye._selection.ranking import contenders, rank
from jax_moye._selection.request import describe
from jax_moye._tune.times import TOP, Protocol, Target, Times, time_product


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What became of one product.

    Attributes:
      what: the product in words.
      entry: what was measured; None where it was not.
      why: why it was not; None where it was.
      rejected: by config why it has no time, e.g. a wrong result.
      seconds: that it took.
    """

    what: str
    entry: Entry | None
    why: str | None = None
    rejected: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


class Regret(NamedTuple):
    """How near the model comes to the best that was measured, 1.0 where it finds it.

    Attributes:
      what: the product in words.
      alone: the best measured time over that of the model's first config.
      top3: the same over the best of the model's first three.
      chosen: the model's first config.
      best: the fastest one.
    """

    what: str
    alone: float
    top3: float
    chosen: str
    best: str


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What `tune` measured; prints as a table.

    Attributes:
      path: the file that has it.
      products: one for each product of the program.
      arch: of the GPU; None in the emulator.
    """

    path: pathlib.Path
    products: tuple[Tuned, ...]
    arch: int | None

    def regret(self) -> list[Regret]:
        """Of the products that were measured."""
        entries = [product.entry for product in self.products if product.entry is not None]
        return regret(entries, self.arch)

    def rows(self) -> list[list[str]]:
        """A line of cells for each product; the first one names the columns."""
        lines = [["product", "config", "us", "XLA, us", "timed", ""]]
        for product in self.products:
            entry = product.entry
            if entry is None:
                lines.append([product.what, "-", "-", "-", "0", f"not tuned: {product.why}"])
                continue
            xla = ", ".join(f"{us:g}" for us in entry.xla_us.values()) or "-"
            who = "XLA's" if is_xla_faster(entry) else ""
            lines.append([words(entry), entry.config, f"{entry.us[entry.config]:g}", xla, str(len(entry.us)), who])
        return lines

    def _repr_html_(self) -> str:
        """For notebooks."""
        notes = [*regret_lines(self.regret()), f"written to {self.path}"]
        return f"<div>{html_table(self.rows())}{''.join(f'<p>{html.escape(note)}</p>' for note in notes)}</div>"

    def text(self) -> str:
        """As plain text."""
        lines = [line(product, self.arch) for product in self.products]
        return "\n".join([*lines, *regret_lines(self.regret()), f"written to {self.path}"])

    def __str__(self) -> str:
        """As text."""
        return self.text()

    def __repr__(self) -> str:
        """As text: what an interactive session shows."""
        return self.text()


def tune(
    first: Any,
    /,
    *args: Any,
    dtype: DTypeLike | None = None,
    spec: str | None = None,
    dimension_numbers: DimensionNumbers | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    top: int | None = TOP,
    budget_s: float = math.inf,
    path: str | os.PathLike[str] | None = None,
) -> Tuning:
    """Times the configs that can compute the products of a program, and XLA, and keeps which is the fastest.

    It takes what `explain` takes: two shapes and a dtype, two arrays, or a function and its arguments, whose products
    are all timed. Arguments are not read, and the program does not run: operands are random ones of its own. The
    outcome is written to the user's cache, `$JAX_MOYE_CACHE_DIR`, `$XDG_CACHE_HOME/jax_moye` or `~/.cache/jax_moye`,
    and decides for exactly these products in programs that are traced later on, in this process and others. A program
    that is compiled keeps its kernels. It takes some seconds for each product.

    Args:
      first: a, or a function.
      *args: b, and a dtype where a and b are shapes; or the function's arguments, arrays or `jax.ShapeDtypeStruct`.
      dtype: of a and b, where they are shapes.
      spec: e.g. "bmk,kn->bmn", as in `jax_moye.einsum`.
      dimension_numbers: as in `jax_moye.dot_general`.
      precision: as in `jax_moye.matmul`, likewise the following.
      preferred_element_type: dtype of the result.
      top: how many configs are timed, the first ones by the model; None: all that can compute the product.
      budget_s: seconds after which no product is begun.
      path: a file to write instead of the cache's.

    Returns:
      A `Tuning`, which prints as a table.

    Raises:
      RuntimeError: it is called while a program is traced, or JAX sees no GPU, or there are no kernels for it.
      TypeError: as in `explain`.
      ValueError: as in `explain`; top is below 1; path is a file of another GPU, or of something else.
      OSError: the file cannot be written.
    """
    _check_not_traced((first, *args))
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
        raise ValueError(f"tune: top is a number of configs, at least 1, or None, not {top!r}")
    gpu = find_gpu()
    of_arrays: dict[str, Any] = {"dtype": dtype, "spec": spec, "dimension_numbers": dimension_numbers}
    of_arrays |= {"precision": precision, "preferred_element_type": preferred_element_type}
    explanation = explain(first, *args, **of_arrays, device=of_jax(gpu))
    target = find_target(gpu, emulated=False, path=path)
    products = [gemm.product for gemm in explanation]
    found = tuple(tune_products(products, target, Protocol(top=top, budget_s=budget_s)))
    return Tuning(target.path, found, target.arch)


def find_gpu() -> jax.Device:
    """This process's first GPU.

    Raises:
      RuntimeError: there is none, or no kernels for it.
    """
    if _compat.cuda_arch() is None:
        raise RuntimeError("tune: JAX sees no GPU here, and nothing else is tuned for")
    if (reason := ffi.why_unavailable("cuda")) is not None:
        raise RuntimeError(f"tune: {reason}")
    return jax.devices("cuda")[0]


def _check_not_traced(args: Any) -> None:
    """Raises RuntimeError where a program is being traced: inside jit even a constant is a tracer."""
    if any(isinstance(x, jax.core.Tracer) for x in [*jax.tree.leaves(args), jnp.zeros(())]):
        raise RuntimeError(
            "tune: it is called while a program is traced (inside jit, grad or vmap), where nothing can be timed: call "
            "it before, with the function and its arguments, or with shapes"
        )


# ------------------------------------------------------------------------------------------------------- the products


def find_target(device: jax.Device, emulated: bool, path: str | os.PathLike[str] | None) -> Target:
    """Where and into which file.

    Raises:
      RuntimeError: no file was named, and there is no place for one.
      ValueError: the file that was named holds something else.
    """
    if path is not None:
        measurements.check_replaceable(path)
    if emulated:
        kind, driver, arch, usual = "emulator", "none", None, measurements.emulator_file()
    else:
        gpu = of_jax(device)
        kind, arch, usual = gpu.kind, gpu.arch, measurements.cache_file(gpu.kind)
        driver = measurements.driver_version() or "unknown"
    if path is None and usual is None:
        raise RuntimeError(f"tune: no home and no driver that names its version: name a file, or set {VARIABLE}")
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    head = measurements.new_head(kind, driver, emulated, date) | {"arch": arch}
    return Target(device, "cpu" if emulated else "cuda", arch, head, pathlib.Path(path or usual or ""))


def tune_products(products: Sequence[Product], target: Target, protocol: Protocol) -> Iterator[Tuned]:
    """Times products and writes each into the file when it is done.

    Args:
      products: as `explain` found them.
      target: where.
      protocol: how.

    Raises:
      OSError: the file cannot be written: before anything is timed, if that can be said then.
      ValueError: the file is about another GPU.
    """
    measurements.make_ready(target.path)
    end = time.monotonic() + protocol.budget_s
    for product in products:
        begin = time.monotonic()
        what = describe(product.request, product.operands)
        if begin > end:
            yield Tuned(what, None, f"the budget of {protocol.budget_s:g} s was over")
            continue
        try:
            call, candidates = _candidates(product, target, protocol)
            if protocol.quick:
                entry = _quickly(product, call, candidates)
                measurements.write(target.path, target.head, [entry])
                yield Tuned(what, entry, None, {}, time.monotonic() - begin)
                continue
            times = time_product(product, call, candidates, target, protocol)
            entry = _entry(product, call, candidates, times)
        except NotServedError as error:
            yield Tuned(what, None, str(error).splitlines()[0])
            continue
        except Exception as error:  # e.g. of memory: the other products are still worth having
            yield Tuned(what, None, error_line(error))
            continue
        measurements.write(target.path, target.head, [entry])
        yield Tuned(what, entry, None, times.rejected, time.monotonic() - begin)


def _candidates(product: Product, target: Target, protocol: Protocol) -> tuple[KernelCall, list[GemmConfig]]:
    """What a selection will ask for, and the configs to time, in the model's order.

    Raises:
      NotServedError: nothing that could be measured would change who computes the product; or nothing is to be timed.
    """
    request = product.request
    reasons = {
        "it is lax.dot_general's own, and so XLA's": product.is_lax,
        "it is a product of groups, whose tile follows from their sizes": product.groups is not None,
        "it has weights of 8 or 4 bits, whose kernel follows from its sizes": product.scales is not None,
        "its blocks have scales, and it is timed while it is lowered": product.block_scales is not None,
        "both its weights are in one array, and it is timed while it is lowered": (
            request.epilogue is not None and request.epilogue.halves
        ),
        "implementation='xla'": request.implementation == "xla",
        f"the program names the config {request.config!r}": request.config is not None,
        "batch_invariant=True chooses by nothing but dtypes": request.batch_invariant,
    }
    for reason, holds in reasons.items():
        if holds:
            raise NotServedError(reason)
    table = usable_configs(target.platform, target.arch)
    # No device: what was measured before does not count.
    request = dataclasses.replace(request, interpret=target.interpret)
    decision = decide(request, product.operands, LoweringTarget(target.platform, target.arch, None, table))
    if decision.call is None or decision.request != request:
        raise NotServedError(decision.epilogue_reason or decision.error())
    able = [config for config, reason in rank(decision.call.problem, target.arch, table) if reason is None]
    named = [config for config in able if protocol.sweep is None or re.fullmatch(protocol.sweep, config.name)]
    if not named:
        raise NotServedError(f"none of its {len(able)} configs has a name that matches {protocol.sweep!r}")
    if protocol.top is not None:
        named = contenders(decision.call.problem, target.arch, ConfigTable(named), protocol.top)
    return decision.call, named


def _quickly(product: Product, call: KernelCall, candidates: Sequence[GemmConfig]) -> Entry:
    """What lowering would find of a product.

    Raises:
      NotServedError: it converts operands or results.
    """
    request, operands = product.request, product.operands
    others = {name: struct.shape for (name, _), struct in added_structs(product)}
    if call.split or not product_race.is_plain(request, operands, call, others):
        raise NotServedError("its operands are converted: tune it without --quick")
    request = dataclasses.replace(request, implementation=None)
    return product_race.measured(request, operands, call, candidates, program_of(product, "xla", None), others)


def _entry(product: Product, call: KernelCall, candidates: Sequence[GemmConfig], times: Times) -> Entry:
    """What is written.

    Raises:
      NotServedError: no config has a time.
    """
    if not times.us:
        raise NotServedError("; ".join(f"{name}: {why}" for name, why in times.rejected.items()) or "nothing was timed")
    of = product.request, product.operands, call, candidates
    return product_race.new_entry(*of, times.us, times.xla_us, times.lead, times.host_bound)


# ------------------------------------------------------------------------------------------------------------- regret


def regret(entries: Sequence[Entry], arch: int | None) -> list[Regret]:
    """How near today's model comes to the best that was measured.

    Args:
      entries: of a file.
      arch: of its GPU.
    """
    found = []
    for entry in entries:
        if not isinstance(entry.problem, GemmProblem):  # no model predicts an attention
            continue
        ranked = [row.name for row, reason in rank(entry.problem, arch, configs()) if reason is None]
        timed = [name for name in ranked if name in entry.us]
        if not timed:
            continue
        best = min(timed, key=entry.us.__getitem__)
        alone, top3 = entry.us[timed[0]], min(entry.us[name] for name in timed[:3])
        found.append(Regret(words(entry), entry.us[best] / alone, entry.us[best] / top3, timed[0], best))
    return found


def regret_lines(found: Sequence[Regret]) -> list[str]:
    """Geometric means and the worst, as text."""
    if not found:
        return []
    lines = []
    for name, title in (("alone", "the model's first config"), ("top3", "the best of its first three")):
        values = [getattr(one, name) for one in found]
        mean, worst = statistics.geometric_mean(values), min(found, key=lambda one: getattr(one, name))
        lines.append(
            f"{title}: {mean:.4f} of the best measured, geometric mean of {len(found)}; "
            f"at worst {getattr(worst, name):.4f}, {worst.what}"
        )
    return lines


def words(entry: Entry) -> str:
    """The problem of an entry in a line."""
    p = entry.problem
    assert isinstance(p, GemmProblem)
    batch = "".join(f"{size}x" for size in p.batch_sizes) if p.batch > 1 else ""
    order = p.order or "strided"
    aligned = "" if p.alignment == 16 else f" aligned to {p.alignment}"
    dtypes = p.dtype if p.dtype == p.out_dtype else f"{p.dtype} to {p.out_dtype}"
    return f"{batch}{p.m}x{p.n}x{p.k} {order} {dtypes}{aligned}{' ' + entry.variant if entry.variant else ''}"


def line(product: Tuned, arch: int | None) -> str:
    """What became of a product in a line."""
    entry = product.entry
    if entry is None:
        return f"{product.what}: not tuned: {product.why}"
    xla = "".join(f", XLA {us:g}" for us in entry.xla_us.values())
    of_model = "".join(f", the model's {one.chosen} {one.alone:.3f} of it" for one in regret([entry], arch))
    wrong = [name for name, why in product.rejected.items() if why.startswith("WRONG")]
    notes = f"; WRONG: {', '.join(wrong)}" if wrong else ""
    notes += "; host-bound" if entry.host_bound else ""
    return (
        f"{words(entry)}: {entry.config} {entry.us[entry.config]:g} us of {len(entry.us)}{xla}{of_model}"
        f" ({product.seconds:.1f} s){notes}"
    )


def is_xla_faster(entry: Entry) -> bool:
    """Whether XLA computes what was measured, by any of its times."""
    return any(entry.is_won_by_ours(of) is False for of in entry.xla_us)
