"""What is known of one product of a program: who computes it, in how long, why no other kernel does, in words."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from jax_moye._format import rounded, us_text
from jax_moye._inspect.products import Product
from jax_moye._inspect.render import Page, Section, page_html, section_text
from jax_moye._kernels.configs import GemmConfig, facts_of
from jax_moye._kernels.devices import Device
from jax_moye._kernels.dtypes import ITEM_BYTES
from jax_moye._selection import capability, cost, cost_xla
from jax_moye._selection.decide import Decision, Source, Times, signature_of
from jax_moye._selection.epilogue import SECOND_B
from jax_moye._selection.grouped import GroupedCall
from jax_moye._selection.precision import wants_exact_f32
from jax_moye._selection.problem import GemmProblem
from jax_moye._selection.weights import WeightsCall

CALIBRATED = "h200"  # the GPU that cost.py's constants were fitted to
TOP = 8  # candidates that are listed
OTHER_SUMS = "batch_invariant=True: it sums in another order than the configs that are used then"
_SUMS = ("launch", "products", "stores", "memory", "pack", "add")  # the terms that a time is made of
OTHERS_OF_XLA = "kernels, and their times over that of the fastest config"
OF_LAX = "it is lax.dot_general's own (jax_moye.matmul, or jax_moye.intercept, asks for our kernels)"
OF_LAX_RAGGED = "it is lax.ragged_dot's own (jax_moye.ragged_dot, or jax_moye.intercept, asks for our kernels)"


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A config, in the order of the selection.

    Attributes:
      config: the kernel.
      reason: why it cannot compute the product; None if it can.
      us: predicted, of all its launches; None if it cannot.
      terms: what the time of one launch is made of; None if it cannot.
    """

    config: GemmConfig
    reason: str | None
    us: float | None
    terms: cost.Terms | None


@dataclasses.dataclass(frozen=True)
class Gemm:
    """One matrix product of a program.

    Attributes:
      what: the contraction, its operands and its result.
      count: how often the program computes it; of a while loop's body for one turn, of a branch as if it were taken.
      where: in which loops, branches and functions it stands.
      epilogue: what becomes of the sums before they are written, in words; None where it is nothing.
      candidates: the table, the best config first, and those behind all others that cannot compute the product.
      device: the GPU that is meant.
      decision: what the lowering was told.
      product: what was asked for.
      special: how a kernel computes a product of groups, or one with weights of 8 or 4 bits; None of others.
    """

    what: str
    count: int
    where: tuple[str, ...]
    epilogue: str | None
    candidates: tuple[Ranked, ...]
    device: Device
    decision: Decision = dataclasses.field(repr=False)
    product: Product = dataclasses.field(repr=False, compare=False)
    special: GroupedCall | WeightsCall | None = None

    @property
    def computed_by(self) -> Literal["moye", "xla", "error", "nothing"]:
        """A kernel of ours ("moye"), XLA, nobody since the program is an error, or nobody since a size is 0."""
        return "moye" if self.decision.kind == "kernel" else self.decision.kind

    @property
    def reason(self) -> str | None:
        """Why no kernel of ours computes it; None where one does."""
        if self.product.is_lax:
            return OF_LAX if self.product.groups is None else OF_LAX_RAGGED
        return self.decision.error() if self.computed_by == "error" else self.decision.reason

    @property
    def problem(self) -> GemmProblem | None:
        """As the kernels see it; None where it is none."""
        return self.decision.problem

    @property
    def config(self) -> GemmConfig | None:
        """The kernel; None where XLA computes it."""
        call = self.special or self.decision.call
        return call.config if call is not None and self.computed_by == "moye" else None

    @property
    def computer(self) -> str:
        """Who computes it, in a word: the config's name where it is a kernel."""
        return self.config.name if self.config else "XLA" if self.computed_by == "xla" else self.computed_by

    @property
    def split(self) -> bool:
        """The kernel runs three times, for f32 as 3 x TF32."""
        return self.decision.call is not None and self.decision.call.split

    @property
    def chosen_by(self) -> Source | None:
        """What chose the config.

        "cache" or "measured": it was measured on this machine, and so may XLA be ("measured": no file took it);
        "table": for the package; "model": it is predicted to be the fastest; "explicit": the caller named it. None
        where XLA computes the product unmeasured.
        """
        is_measured = self.decision.measured is not None
        return self.decision.source if is_measured or self.config is not None else None

    @property
    def measured(self) -> Times | None:
        """Microseconds that `tune` found of the best kernel, and of XLA; None where they decided nothing."""
        return self.decision.measured

    @property
    def lead(self) -> float | None:
        """What XLA's time is times ours at least, by the low end of the interval; None where that was not measured."""
        entry, of = self.decision.entry, signature_of(self.decision.request, self.product.operands)
        return None if entry is None else entry.lead.get(entry.nearest(of))

    @property
    def takes_in(self) -> str:
        """What stands behind the product and is one with it, in words (c: a sum); "" where it is nothing."""
        return self.epilogue or ("c" if self.product.request.beta != 0 else "")

    @property
    def epilogue_reason(self) -> str | None:
        """Why what follows the product is XLA's; None where it is not."""
        return self.decision.epilogue_reason

    @property
    def chosen(self) -> Ranked | None:
        """The candidate that computes the product; None where XLA does."""
        return next((ranked for ranked in self.candidates if ranked.config == self.config), None)

    @property
    def predicted_us(self) -> float | None:
        """Microseconds of one of them; None where XLA computes it: of its time there is only what `reason` says."""
        return self.chosen.us if self.chosen else None

    @property
    def xla_us(self) -> float | None:
        """Microseconds that XLA takes: as `tune` found, else predicted; None where nothing is known of it."""
        if self.measured is not None and self.measured.xla is not None:
            return self.measured.xla
        p, request = self.problem, self.product.request
        if p is None or self.split:
            return None
        if p.dtype == "f32" and not wants_exact_f32(request.precision):  # XLA multiplies it as TF32
            p = dataclasses.replace(p, dtype="tf32")
        return cost_xla.xla_us(p, self.device.arch, passes=int(request.beta != 0 or request.epilogue is not None))

    @property
    def is_calibrated(self) -> bool:
        """Whether the model was fitted to this GPU; else predicted times are good for nothing but the order."""
        return self.device.name == CALIBRATED

    def layouts(self) -> dict[str, str]:
        """Operands and result as layouts, shape:stride in elements: a (M,K), b (N,K), d (M,N), behind L if batched."""
        from jax_moye.layout import Layout

        p = self.problem
        if p is None:
            return {}
        modes = {
            "a": (p.m, p.k),
            "b": (p.n, p.k),
            "d": (p.m, p.n),
        }
        found = {}
        for name, shape in modes.items():
            *batch, rows, columns = p.strides[name]
            if p.outer:  # one mode L of several, the first of which runs fastest
                found[name] = str(Layout((*shape, p.batch_sizes[::-1]), (rows, columns, tuple(batch[::-1]))))
            elif p.batch > 1:
                found[name] = str(Layout((*shape, p.batch), (rows, columns, *batch)))
            else:
                found[name] = str(Layout(shape, (rows, columns)))
        return found

    def roofline(self) -> dict[str, Any] | None:
        """The least time that the data sheet allows: all products at its peak, or each byte moved once."""
        p = self.problem
        if p is None:
            return None
        launches = 3 if self.split else 1
        columns = p.n * (1 + p.pair)  # that are summed
        flops = 2 * p.batch * p.m * columns * p.k
        of_a, of_b = p.matrices
        read = (of_a * p.m + of_b * columns) * p.k * ITEM_BYTES[p.dtype]
        moved = read + p.batch * p.m * p.n * ITEM_BYTES[p.out_dtype]
        # Of what multiplies fastest, of all that is precise enough and has a kernel on this GPU.
        dtypes = {p.dtype, *(ranked.config.dtype for ranked in self.candidates if ranked.reason is None)}
        peak = max(filter(None, map(self.device.flops, dtypes)), default=None)
        bandwidth = self.device.memory_bytes_per_s
        times = {
            "products": launches * flops / peak * 1e6 if peak else None,
            "memory": moved / bandwidth * 1e6 if bandwidth else None,
        }
        known = {name: us for name, us in times.items() if us is not None}
        bound = max(known, key=known.__getitem__) if known else None
        us = known[bound] if bound else None
        share = us / self.predicted_us if us and self.predicted_us and self.is_calibrated else None
        return {
            "flops": flops,
            "bytes": moved,
            "flops_per_byte": flops / moved,
            "peak_flops": peak,
            "us": us,
            "bound": bound,
            "share": share,
        }

    def resources(self) -> dict[str, Any] | None:
        """What the kernel takes of a multiprocessor, and how its tiles fill the GPU; None where XLA computes it."""
        return None if self.chosen is None else _resources(self.chosen, self.device)

    def by_kernel(self) -> dict[str, str]:
        """For each kernel that was not taken why not, in a sentence."""
        if not self.candidates:
            return {}
        best = self.chosen or self.candidates[0]
        of_kernel: dict[str, list[Ranked]] = {}
        for ranked in self.candidates:
            of_kernel.setdefault(ranked.config.kernel, []).append(ranked)
        reasons = {}
        for kernel, configs in sorted(of_kernel.items(), key=lambda item: facts_of(item[0]).place):
            if self.config is None or self.config.kernel != kernel:
                reasons[kernel] = self._measured_slower(configs) or _why_not_kernel(configs, best, self.problem)
        return reasons

    def _measured_slower(self, configs: Sequence[Ranked]) -> str | None:
        """By how much a kernel was measured to be slower than the one that is taken; None if it was not measured."""
        entry = self.decision.entry
        timed = [] if entry is None else [ranked.config.name for ranked in configs if ranked.config.name in entry.us]
        if entry is None or not timed:
            return None
        first = min(timed, key=entry.us.__getitem__)
        return f"{entry.us[first] / entry.us[entry.config]:.2f} x the measured time: {first}"

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """All of it as JSON's types.

        Args:
          top: how many candidates that can compute the product are listed; None: all of them and those that cannot.
        """
        p, chosen, roofline = self.problem, self.chosen, self.roofline()
        return {
            "what": self.what,
            "count": self.count,
            "where": list(self.where),
            "computed_by": self.computed_by,
            "reason": self.reason,
            "epilogue": self.epilogue,
            "epilogue_reason": self.epilogue_reason,
            "problem": None if p is None else _problem_dict(p, self.layouts()),
            "config": None if self.config is None else _config_dict(self.config),
            "chosen_by": self.chosen_by,
            "measured": _measured_dict(self.decision),
            "xla_us": rounded(self.xla_us),
            "launches": 0 if self.config is None else 3 if self.split else 1,
            "resources": _all_rounded(self.resources()),
            "predicted": None if chosen is None else _prediction_dict(chosen, self.is_calibrated),
            "roofline": _all_rounded(roofline),
            "not_taken": self.by_kernel(),
            "candidates": [
                {
                    "config": ranked.config.name,
                    "us": rounded(ranked.us),
                    "dominating": ranked.terms.dominating if ranked.terms else None,
                    "reason": ranked.reason,
                }
                for ranked in _first(self.candidates, top)
            ],
        }

    def to_json(self, indent: int | None = 1) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    def facts(self) -> list[tuple[str, str]]:
        """What is said of the product besides the table, as pairs of a word and a sentence."""
        return list(_facts(self))

    def table(self, top: int = TOP) -> list[list[str]]:
        """The candidates that can compute it, the best first, as cells; the first line names the columns."""
        return _table(self, top)

    def section(self, top: int = TOP) -> Section:
        """All of it to be shown; `top` as in `text`."""
        title = f"{self.what}, {device_words(self.device)}"
        others = "kernels that were not taken" if self.config else OTHERS_OF_XLA
        return Section(title, self.facts(), self.table(top), others, self.by_kernel())

    def text(self, top: int = TOP) -> str:
        """The product as plain text.

        Args:
          top: lines of the table of candidates.
        """
        return section_text(self.section(top), tables=top > 0)

    def __str__(self) -> str:
        """As text."""
        return self.text()

    def _repr_html_(self) -> str:
        """For notebooks."""
        return page_html(Page("", None, [self.section()]))


def _registers(config: GemmConfig, arch: int) -> int | None:
    """Of a thread on an architecture; of the nearest one that was compiled; None in a build without nvcc."""
    if not config.registers:
        return None
    by_arch = {int(re.sub(r"\D", "", name)): count for name, count in config.registers.items()}
    older = [known for known in by_arch if known <= arch]
    return by_arch[max(older)] if older else max(by_arch.values())


def _resources(ranked: Ranked, device: Device) -> dict[str, Any]:
    """Shared memory, registers, occupancy and waves of a candidate that can compute the product."""
    from jax_moye.layout.resources import WaveReport, occupancy

    config, terms, limits = ranked.config, ranked.terms, device.limits
    assert terms is not None
    registers = _registers(config, device.arch)
    resident, fraction, limited_by = terms.resident, None, []
    if limits is not None and registers is not None:
        report = occupancy(config.threads, config.smem_bytes, registers, limits)
        resident, fraction, limited_by = report.ctas, report.fraction, list(report.limited_by)
    waves = WaveReport(terms.tiles, device.multiprocessors * max(1, resident))
    return {
        "smem_bytes": config.smem_bytes,
        "smem_limit": limits.smem_per_cta if limits else None,
        "registers": registers,
        "threads": config.threads,
        "ctas_per_sm": resident,
        "occupancy": fraction,
        "limited_by": limited_by,
        "tiles": waves.ctas,
        "slots": waves.slots,
        "waves": waves.waves,
        "tail": waves.tail,
        "wave_efficiency": waves.efficiency,
    }


# ------------------------------------------------------------------------------------------------------------ words


def _all_rounded(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if values is None else {key: rounded(value) for key, value in values.items()}


def _first(candidates: Sequence[Ranked], top: int | None) -> Sequence[Ranked]:
    return candidates if top is None else [ranked for ranked in candidates if ranked.reason is None][:top]


def device_words(device: Device) -> str:
    return f"on {device.name} (sm_{device.arch}, {device.multiprocessors} multiprocessors)"


def _problem_dict(p: GemmProblem, layouts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "batch": p.batch,
        "m": p.m,
        "n": p.n,
        "k": p.k,
        "dtype": p.dtype,
        "out_dtype": p.out_dtype,
        "accumulator": p.sums,
        "order": p.order,
        "alignment": p.alignment,
        "swapped": p.swapped,
        "layouts": dict(layouts),
    }


def _config_dict(config: GemmConfig) -> dict[str, Any]:
    return {
        "name": config.name,
        "kernel": config.kernel,
        "instruction": facts_of(config.kernel).instruction or None,
        "tile": list(config.tile),
        "stages": config.stages,
        "cluster": list(config.cluster),
        "alignment": config.alignment,
        "threads": config.threads,
    }


def _prediction_dict(ranked: Ranked, is_calibrated: bool) -> dict[str, Any]:
    terms = ranked.terms
    assert terms is not None
    return {
        "us": rounded(ranked.us),
        "calibrated": is_calibrated,
        "dominating": terms.dominating,
        "of_one_launch": {
            name: rounded(getattr(terms, name))
            for name in (*(f"{name}_us" for name in _SUMS), "hidden_us", "factor", "us")
        },
        "assumed_multiprocessors": terms.multiprocessors,
        "assumed_ctas_per_sm": terms.resident,
    }


def _times(count: int) -> str:
    return "" if count == 1 else f"{count} times"


def _why_not_kernel(configs: Sequence[Ranked], best: Ranked, problem: GemmProblem | None) -> str:
    """Why a kernel was not taken; its configs are in the order of the selection."""
    first = configs[0]
    if first.us is not None:
        assert first.terms is not None
        if missing := facts_of(first.config.kernel).missing:
            return f"nothing is known of it: write {missing}"
        ratio = f"{first.us / best.us:.2f} x the time" if best.us else "no faster"
        return f"{ratio}, {first.terms.dominating} first: {first.config.name}"
    near = [
        ranked
        for ranked in configs
        if problem is not None
        and ranked.config.dtype in problem.multiplied_as
        and ranked.config.accumulator == problem.sums
    ]
    if not near:
        kinds = dict.fromkeys(f"{ranked.config.dtype} summed in {ranked.config.accumulator}" for ranked in configs)
        return f"its configs are for {', '.join(kinds)}"
    # One reason, of the config that asks for least: a product that is aligned to 2 bytes is not aligned to 16 either.
    nearest = min(near, key=lambda ranked: (ranked.reason != OTHER_SUMS, ranked.config.alignment))
    return nearest.reason or ""


def _facts(gemm: Gemm) -> Iterator[tuple[str, str]]:
    can = sum(ranked.reason is None for ranked in gemm.candidates)
    if gemm.count != 1 or gemm.where:
        yield "in the program", ", ".join(filter(None, [_times(gemm.count), *gemm.where])) or "once"
    if gemm.config is not None:
        how = {
            "explicit": "named by the caller",
            "model": f"by the model the fastest of the {can} configs that can",
            "cache": "measured on this machine",
            "measured": "measured by this process",
            "table": "measured for the package",
        }[gemm.chosen_by or "model"]
        if gemm.special is not None:
            how = gemm.special.why
        launches = ", three launches: 3 x TF32" if gemm.split else ""
        yield "computed by", f"{gemm.config.name}, {how}{launches}"
    else:
        who = {"xla": "XLA", "error": "nobody, the program is an error", "nothing": "nobody"}[gemm.computed_by]
        yield "computed by", f"{who}: {_short(gemm.reason, gemm.candidates)}"
    if gemm.measured is not None:
        yield "measured", _measured_words(gemm)
    if gemm.epilogue is not None:
        of = f"XLA's: {_short(gemm.epilogue_reason, ())}" if gemm.epilogue_reason else "the kernel's, not in its time"
        yield "epilogue", f"{gemm.epilogue}: {of}"
    p = gemm.problem
    if p is None:
        if gemm.computed_by != "nothing" and gemm.special is None:
            yield "XLA", _xla_words(gemm)
        return
    layouts = gemm.layouts()
    batch = ",L" if p.batch > 1 else ""
    swapped = ", which is the right operand" if p.swapped else ""
    yield "a", f"{layouts['a']}  (M,K{batch}) {p.dtype}{swapped}"
    yield "b", f"{layouts['b']}  (N,K{batch}) {p.dtype}{f', and so lies {SECOND_B}' if p.pair else ''}"
    yield "d", f"{layouts['d']}  (M,N{batch}) {p.out_dtype}, summed in {p.sums}"
    is_padded = gemm.chosen is not None and capability.launched(gemm.chosen.config, p) is not p
    words = ": XLA pads lines in front of the kernel" * is_padded
    yield "order", f"{p.order or 'no mode of stride 1'}, aligned to {p.alignment} bytes{words}"
    if gemm.chosen is not None:
        yield from _kernel_facts(gemm, gemm.chosen)
    yield "XLA", _xla_words(gemm)
    roofline = gemm.roofline()
    if roofline and roofline["us"] is not None:
        share = f", {roofline['share']:.0%} of the predicted time" if roofline["share"] else ""
        tflops = f"{roofline['peak_flops'] / 1e12:.0f} TFLOP/s" if roofline["peak_flops"] else "unknown TFLOP/s"
        yield (
            "roofline",
            f"{us_text(roofline['us'])} us by {roofline['bound']}{share} ({roofline['flops'] / 1e9:.4g} GFLOP at "
            f"{tflops}, {roofline['bytes'] / 1e6:.4g} MB at {(gemm.device.memory_bytes_per_s or 0) / 1e12:.3g} TB/s)",
        )


def _kernel_facts(gemm: Gemm, chosen: Ranked) -> Iterator[tuple[str, str]]:
    config, terms = chosen.config, chosen.terms
    taken = _resources(chosen, gemm.device)
    assert terms is not None
    tile, cluster = ("x".join(map(str, sizes)) for sizes in (config.tile, config.cluster))
    split = " that share one tile and split k" if config.k_parts > 1 else ""
    split += f", {terms.parts} parts of k" if terms.parts > 1 else ""
    yield "tile", f"{tile}, {config.stages} stages, clusters of {cluster}{split}, loads of {config.alignment} bytes"
    limit = f" of {taken['smem_limit']:,}" if taken["smem_limit"] else ""
    yield "shared memory", f"{taken['smem_bytes']:,}{limit} bytes a CTA"
    yield "registers", f"{taken['registers'] or 'unknown'} a thread, {config.threads} threads"
    if taken["occupancy"] is not None:
        limited = " and ".join(taken["limited_by"])
        ctas = f"{taken['ctas_per_sm']} CTA{'' if taken['ctas_per_sm'] == 1 else 's'}"
        yield "occupancy", f"{ctas} a multiprocessor, {taken['occupancy']:.0%} of its warps, limited by {limited}"
    yield (
        "waves",
        f"{taken['tiles']} tiles on {taken['slots']} slots are {taken['tiles'] / taken['slots']:.2f} waves, the last "
        f"with {taken['tail']}: {taken['wave_efficiency']:.0%} of {taken['waves']} full ones",
    )
    parts = " + ".join(
        f"{name} {us_text(getattr(terms, f'{name}_us'))}" for name in _SUMS if getattr(terms, f"{name}_us")
    )
    factor = f", times {terms.factor:g} since no GPU has timed this tile" if terms.factor != 1 else ""
    split = " of each launch" if gemm.split else ""
    yield (
        "predicted",
        f"{us_text(chosen.us)} us, {terms.dominating} first: {parts} - hidden "
        f"{us_text(terms.hidden_us)}{split}{factor}",
    )
    if not gemm.is_calibrated:
        yield "", f"fitted to an {CALIBRATED.upper()}: on this GPU the times say which config is first, and no more"


def _measured_words(gemm: Gemm) -> str:
    measured, entry = gemm.decision.measured, gemm.decision.entry
    assert measured is not None
    assert entry is not None
    xla = "" if measured.xla is None else f", XLA {us_text(measured.xla)} us"
    timed = f"{len(entry.us)} config{'' if len(entry.us) == 1 else 's'}"
    return f"{us_text(measured.ours)} us, the fastest of {timed}{xla} ({gemm.decision.source}, {entry.date})"


def _xla_words(gemm: Gemm) -> str:
    if gemm.xla_us is None:
        return "its time is not known: of such products none was timed on such a GPU"
    is_measured = gemm.measured is not None and gemm.measured.xla is not None
    return f"{us_text(gemm.xla_us)} us, {'measured' if is_measured else 'predicted'}"


def _measured_dict(decision: Decision) -> dict[str, Any] | None:
    measured, entry = decision.measured, decision.entry
    if measured is None or entry is None:
        return None
    return {
        "source": decision.source,
        "config": entry.config,
        "us": rounded(measured.ours),
        "xla_us": rounded(measured.xla),
        "configs": len(entry.us),
        "date": entry.date,
    }


def _short(reason: str | None, candidates: Sequence[Ranked]) -> str:
    """A reason in one line: those of all configs are in the table."""
    if reason is None:
        return ""
    names = sum(f"{ranked.config.name}: " in reason for ranked in candidates)
    if names > 1:
        return "no config can compute it, for the reasons below"
    return reason.splitlines()[0]


_COLUMNS = ("", "config", "us", "x", "first term", "waves", "last", "CTAs/SM", "smem", "regs")


def _table(gemm: Gemm, top: int) -> list[list[str]]:
    best = gemm.candidates[0].us if gemm.candidates else None
    lines = [list(_COLUMNS)]
    for i, ranked in enumerate(_first(gemm.candidates, None)):
        if ranked.us is None or (i >= top and ranked.config != gemm.config):
            continue
        taken = _resources(ranked, gemm.device)
        assert ranked.terms is not None
        lines.append(
            [
                str(i + 1) + ("*" if ranked.config == gemm.config else ""),
                ranked.config.name,
                us_text(ranked.us),
                f"{ranked.us / best:.2f}" if best else "-",
                ranked.terms.dominating,
                str(taken["waves"]),
                f"{taken['tail'] / taken['slots']:.0%}",
                str(taken["ctas_per_sm"]),
                str(taken["smem_bytes"]),
                str(taken["registers"] or "-"),
            ]
        )
    return lines
