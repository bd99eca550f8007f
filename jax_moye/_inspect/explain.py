"""`explain`: which kernel computes each matrix product of a program on a GPU, how long it takes, and why no other.

Nothing is compiled or run, and no GPU is needed: a program is traced, its jaxpr is searched for products, and each is
put to the functions that the lowering asks (plan.py, select.py, cost.py). docs/how_selection_works.md explains the
terms.

Over 600 lines: the search, what is known of one product, and its text, HTML and JSON, which show the same fields.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import html
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TextIO

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from jax_moye import _compat
from jax_moye._api.dot_general import canonical_dimensions, dot_general, einsum, spec_of
from jax_moye._api.matmul import matmul
from jax_moye._api.types import Config, DimensionNumbers, Implementation
from jax_moye._format import html_table, rounded, text_table, us_text
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import ConfigTable, GemmConfig, facts_of
from jax_moye._kernels.devices import DEVICES, Device, find_device
from jax_moye._kernels.dtypes import ITEM_BYTES, JAX_NAMES, OPERAND_NAMES, SHORT_NAMES
from jax_moye._primitives.contraction import contract_p, first_served
from jax_moye._primitives.fused import fused_p
from jax_moye._selection import cost, plan
from jax_moye._selection.epilogue import Epilogue, compute_dtype, fit_epilogue
from jax_moye._selection.measurements import MEASURED, Choice, signature
from jax_moye._selection.plan import KernelCall, Request, Way, describe
from jax_moye._selection.problem import GemmProblem, NotServedError, make_problem, parse_spec
from jax_moye._selection.select import batch_invariant_rows, rank, why_not

CALIBRATED = "h200"  # the GPU that cost.py's constants were fitted to
TOP = 8  # rows of the table that are printed
_OTHER_SUMS = "batch_invariant=True"
_SUMS = ("launch", "products", "stores", "memory", "pack")  # the terms that a time is made of


# ------------------------------------------------------------------------------------------------- what is explained


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A row of the table of kernels, in the order of the selection.

    Attributes:
      config: the row.
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
      computed_by: "moye": a kernel of ours; "xla"; "error": the program cannot be lowered; "nothing": a size is 0.
      reason: why no kernel of ours computes it; None where one does.
      epilogue: what the kernel makes of the sums before it writes them, in words; None where it is nothing.
      epilogue_reason: why what follows the product is XLA's; None where it is not.
      problem: as the kernels see it; None where it is none.
      config: the kernel; None where XLA computes it.
      chosen_by: "cache" or "table": it was measured, by the user or for the package, and so may XLA be; "model": it is
        predicted to be the fastest; "explicit": the caller named the config. None where XLA computes it unmeasured.
      measured: what `tune` found of the product; None where it is not asked.
      split: the kernel runs three times, for f32 as 3 x TF32.
      candidates: the table, the best row first, and those behind all others that cannot compute the product.
      device: the GPU that is meant.
    """

    what: str
    count: int
    where: tuple[str, ...]
    computed_by: Literal["moye", "xla", "error", "nothing"]
    reason: str | None
    epilogue: str | None
    epilogue_reason: str | None
    problem: GemmProblem | None
    config: GemmConfig | None
    chosen_by: Literal["cache", "table", "model", "explicit"] | None
    measured: Choice | None
    split: bool
    candidates: tuple[Ranked, ...]
    device: Device
    product: Product = dataclasses.field(repr=False, compare=False)

    @property
    def chosen(self) -> Ranked | None:
        """The candidate that computes the product; None where XLA does."""
        return next((ranked for ranked in self.candidates if ranked.config == self.config), None)

    @property
    def predicted_us(self) -> float | None:
        """Microseconds of one of them; None where XLA computes it: of its time there is only what `reason` says."""
        return self.chosen.us if self.chosen else None

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
            "a": ((p.m, p.k), p.a_strides),
            "b": ((p.n, p.k), p.b_strides),
            "d": ((p.m, p.n), p.d_strides),
        }
        found = {}
        for name, (shape, (batch_stride, *strides)) in modes.items():
            if p.batch > 1:
                found[name] = str(Layout((*shape, p.batch), (*strides, batch_stride)))
            else:
                found[name] = str(Layout(shape, tuple(strides)))
        return found

    def roofline(self) -> dict[str, Any] | None:
        """The least time that the data sheet allows: all products at its peak, or each byte moved once."""
        p = self.problem
        if p is None:
            return None
        launches = 3 if self.split else 1
        flops = 2 * p.batch * p.m * p.n * p.k
        once = {name: 1 if strides[0] == 0 else p.batch for name, strides in (("a", p.a_strides), ("b", p.b_strides))}
        read = (once["a"] * p.m + once["b"] * p.n) * p.k * ITEM_BYTES[p.dtype]
        moved = read + p.batch * p.m * p.n * ITEM_BYTES[p.out_dtype]
        peak, bandwidth = self.device.flops(p.dtype), self.device.memory_bytes_per_s
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
        for kernel, rows in sorted(of_kernel.items(), key=lambda item: facts_of(item[0]).place):
            if self.config is not None and self.config.kernel == kernel:
                continue
            reasons[kernel] = _slower(rows, self.measured) or _why_not_kernel(rows, best, self.problem)
        return reasons

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
            "measured": None if self.measured is None else _measured_dict(self),
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

    def text(self, top: int = TOP) -> str:
        """The product as plain text.

        Args:
          top: rows of the table of candidates.
        """
        lines = [f"{self.what}, {_device_words(self.device)}"]
        facts = self.facts()
        width = max(len(name) for name, _ in facts)
        lines += [f"  {name:{width}}  {sentence}" for name, sentence in facts]
        if top and self.table(top)[1:]:
            lines += ["", *text_table(self.table(top), indent="  ")]
        if top and (not_taken := self.by_kernel()):
            width = max(map(len, not_taken))
            lines += ["", f"  {_not_taken(self)}"]
            lines += [f"  {kernel:{width}}  {reason}" for kernel, reason in not_taken.items()]
        return "\n".join(lines)

    def __str__(self) -> str:
        """As text."""
        return self.text()

    def _repr_html_(self) -> str:
        """For notebooks."""
        return _html([self], self.device, summary=False)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The matrix products of a program, in the order in which it names them; prints as a table.

    Attributes:
      device: the GPU that is meant.
      gemms: one `Gemm` for each different product.
      notes: what holds for the whole program.
    """

    device: Device
    gemms: tuple[Gemm, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """The number of different products."""
        return len(self.gemms)

    def __iter__(self) -> Iterator[Gemm]:
        """Iterates over them."""
        return iter(self.gemms)

    def __getitem__(self, index: int) -> Gemm:
        """One of them."""
        return self.gemms[index]

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """All of it as JSON's types; `top` as in `Gemm.to_dict`."""
        return {
            "device": self.device.to_dict(),
            "notes": list(self.notes),
            "gemms": [gemm.to_dict(top) for gemm in self.gemms],
        }

    def to_json(self, indent: int | None = 1) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    def summary(self) -> list[list[str]]:
        """A line of cells for each product; the first one names the columns."""
        return _summary(self.gemms)

    def text(self, top: int | None = None) -> str:
        """The program as plain text.

        Args:
          top: rows of each table of candidates; None: 8, and where there are several products none.
        """
        if not self.gemms:
            return "\n".join([f"no matrix product, {_device_words(self.device)}", *self.notes])
        if len(self.gemms) == 1:
            return "\n".join([self.gemms[0].text(TOP if top is None else top), *self.notes])
        lines = [f"{len(self.gemms)} different matrix products, {_device_words(self.device)}"]
        lines += [*text_table(self.summary(), indent="  "), *self.notes]
        for i, gemm in enumerate(self.gemms):
            lines += ["", f"[{i}] {gemm.text(top or 0)}"]
        return "\n".join(lines)

    def __str__(self) -> str:
        """As text."""
        return self.text()

    def __repr__(self) -> str:
        """As text: what an interactive session shows."""
        return self.text()

    def _repr_html_(self) -> str:
        """For notebooks."""
        return _html(self.gemms, self.device, summary=len(self.gemms) > 1, notes=self.notes)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """For `rich.print`."""
        yield from _rich(self, TOP)

    def show(self, file: TextIO | None = None, top: int | None = None) -> None:
        """Prints it: with colours where rich is installed and the file is a terminal, else as plain text.

        Args:
          file: None: standard output.
          top: as in `text`.
        """
        file = sys.stdout if file is None else file
        if file.isatty() and importlib.util.find_spec("rich"):
            console = importlib.import_module("rich.console").Console(file=file)
            for renderable in _rich(self, top):
                console.print(renderable)
            return
        print(self.text(top), file=file)


# ---------------------------------------------------------------------------------------------------------- explain


def explain(
    first: Any,
    /,
    *args: Any,
    dtype: DTypeLike | None = None,
    spec: str | None = None,
    dimension_numbers: DimensionNumbers | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    config: Config = None,
    implementation: Implementation = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
    device: str | int | Device | jax.Device | None = None,
) -> Explanation:
    """Which kernels compute the matrix products of a program on a GPU, how long they take, and why no others.

    `explain(a, b)` is about `jax_moye.matmul(a, b)`; a and b are shapes, anything with a shape and a dtype, or arrays.
    `explain(fun, *args)` is about every product in fun's jaxpr, those in loops, branches and jitted functions included;
    plain `jnp` products, which are XLA's, are listed as such. fun may be jitted or a derivative. Nothing runs.

    The program is one device's: of a program that is partitioned over devices the shapes are those before that, but for
    the bodies of `jax.shard_map`.

    Args:
      first: a, or a function.
      *args: b, and a dtype where a and b are shapes; or the function's arguments, arrays or `jax.ShapeDtypeStruct`.
      dtype: of a and b, where they are shapes.
      spec: e.g. "bmk,kn->bmn": explains `jax_moye.einsum(spec, a, b)`.
      dimension_numbers: explains `jax_moye.dot_general(a, b, dimension_numbers)`.
      precision: as in `jax_moye.matmul`, likewise the following.
      preferred_element_type: dtype of the result.
      config: a row of `jax_moye.configs()` or its name.
      implementation: None, "moye" or "xla".
      deterministic: True promises the same bits in every run.
      batch_invariant: True promises that a row's bits depend neither on M nor on the other rows.
      device: a name such as "h200", an architecture such as 90, or a CUDA device of JAX. None: this process's
        first GPU, or an H200 where there is none (or what `cuda_target` says).

    Returns:
      An `Explanation`, which prints as a table, has `to_json()`, and shows itself in notebooks.

    Raises:
      TypeError: an argument is missing, too many, or has the wrong type; options beside a function, which has its own.
      ValueError: the shapes do not fit, or an option or the device is unknown.

    Example:
      >>> import jax_moye
      >>> explanation = jax_moye.explain((4000, 4096), (4096, 4096), "bfloat16", device="h200")
      >>> explanation[0].computed_by, explanation[0].problem.order
      ('moye', 'NN')
      >>> jax_moye.explain((64, 64), (64, 64), "int16", device="h200")[0].reason
      'no kernel multiplies int16 by int16 into int16'
    """
    options: dict[str, Any] = {
        "precision": precision,
        "preferred_element_type": preferred_element_type,
        "config": config,
        "implementation": implementation,
        "deterministic": deterministic,
        "batch_invariant": batch_invariant,
    }
    board = find_device(device)
    if callable(first) and not hasattr(first, "shape"):
        of_arrays = options | {"dtype": dtype, "spec": spec, "dimension_numbers": dimension_numbers}
        for name, value in of_arrays.items():
            if value is not None:
                raise TypeError(f"explain: {name} is about the product of two arrays; a function has its own options")
        return explain_function(first, args, board)

    if not args:
        raise TypeError("explain: b is missing: explain(a, b), explain(a_shape, b_shape, dtype) or explain(fun, *args)")
    b, *rest = args
    if len(rest) > 1 or (rest and dtype is not None):
        raise TypeError("explain: at most a, b and dtype are positional where a and b are no function")
    dtype = rest[0] if rest else dtype
    if spec is not None and dimension_numbers is not None:
        raise TypeError("explain: spec and dimension_numbers both say what is multiplied; give one")
    a, b = _as_struct("a", first, dtype), _as_struct("b", b, dtype)
    if spec is not None:
        fun: Callable[..., Any] = lambda a, b: einsum(spec, a, b, **options)  # noqa: E731
    elif dimension_numbers is not None:
        fun = lambda a, b: dot_general(a, b, dimension_numbers, **options)  # noqa: E731
    else:
        fun = lambda a, b: matmul(a, b, **options)  # noqa: E731
    is_wide = any(np.dtype(x.dtype).itemsize == 8 for x in (a, b))
    with jax.enable_x64(True) if is_wide else contextlib.nullcontext():
        return explain_function(fun, (a, b), board)


def _as_struct(name: str, x: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an operand.

    Raises:
      TypeError: it is neither a shape nor an array, or the dtype is missing or said twice.
    """
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        if dtype is not None and jnp.dtype(dtype) != x.dtype:
            raise TypeError(f"explain: dtype is {jnp.dtype(dtype)}, and {name} has one, {x.dtype}")
        return jax.ShapeDtypeStruct(x.shape, x.dtype)
    if not isinstance(x, (tuple, list)) or not all(isinstance(size, (int, np.integer)) for size in x):
        raise TypeError(f"explain: {name} is a shape or has one and a dtype, not {x!r}")
    if any(size < 0 for size in x):
        raise ValueError(f"explain: {name} has the shape {tuple(x)}, and no size is negative")
    if dtype is None:
        raise TypeError(f"explain: {name} is the shape {tuple(x)}, and no dtype is given")
    return jax.ShapeDtypeStruct(
        tuple(map(int, x)), jnp.dtype(OPERAND_NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype)
    )


def explain_function(fun: Callable[..., Any], args: Sequence[Any], device: Device) -> Explanation:
    """`explain` of a function.

    Args:
      fun: whatever jax.jit takes, or its result.
      args: of fun: arrays, or what has a shape and a dtype.
      device: the GPU that is meant.
    """
    traced = (fun if hasattr(fun, "trace") else jax.jit(fun)).trace(*args)
    merged: dict[Product, tuple[int, dict[str, None]]] = {}
    for product, count, where in _products(_live(traced.jaxpr.jaxpr), 1, ()):
        before, places = merged.get(product, (0, {}))
        merged[product] = (before + count, places | dict.fromkeys([" > ".join(where)] if where else []))
    gemms = tuple(explain_product(product, device, count, tuple(places)) for product, (count, places) in merged.items())
    notes = []
    if (reason := ffi.why_unavailable("cuda")) is not None:
        notes.append(f"Here XLA computes all of it, since {reason}.")
    return Explanation(device, gemms, tuple(notes))


# ------------------------------------------------------------------------------------------------- products of a jaxpr


@dataclasses.dataclass(frozen=True)
class Operand:
    """What is in memory, and the transpose behind it that the kernel's strides may stand for; None if there is none."""

    shape: tuple[int, ...]
    dtype: Any
    permutation: tuple[int, ...] | None

    @property
    def aval(self) -> Any:
        """As an abstract array."""
        return _compat.local_aval(self.shape, self.dtype)


@dataclasses.dataclass(frozen=True)
class Product:
    """A product in a jaxpr.

    Attributes:
      request: what the caller asked for.
      operands: lhs and rhs.
      epilogue: of a fused one, else None.
      is_lax: whether it is lax's own, and so XLA's.
    """

    request: Request
    operands: tuple[Operand, Operand]
    epilogue: Epilogue | None = None
    is_lax: bool = False

    def seen(self) -> tuple[Any, Any]:
        """The operands as the specification sees them."""
        lhs, rhs = (
            _compat.local_aval(
                x.shape if x.permutation is None else tuple(x.shape[axis] for axis in x.permutation), x.dtype
            )
            for x in self.operands
        )
        return lhs, rhs


def _live(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr without what nobody reads, as XLA leaves it."""
    return _compat.without_dead_code(jaxpr)


def _products(jaxpr: Jaxpr, count: int, where: tuple[str, ...]) -> Iterator[tuple[Product, int, tuple[str, ...]]]:
    """The products of a jaxpr and of those inside it, how often each is computed, and where it stands."""
    made_by = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if equation.primitive is contract_p or equation.primitive is fused_p:
            yield _product(equation, made_by), count, where
        elif name == "dot_general":
            yield _lax_product(equation), count, where
        else:
            for inner, times, place in _inner_jaxprs(equation):
                yield from _products(inner, count * times, where + ((place,) if place else ()))


def _inner_jaxprs(equation: Any) -> Iterator[tuple[Jaxpr, int, str]]:
    """The jaxprs of an equation's parameters, how often each runs, and the name of the place."""
    name, params = equation.primitive.name, equation.params
    times, place = 1, ""
    if name == "scan":
        times, place = params["length"], f"scan of {params['length']}"
    elif name in ("while", "shard_map"):
        place = name
    elif name in ("checkpoint", "remat", "remat2"):
        place = "checkpoint"
    elif "name" in params and isinstance(params["name"], str):
        place = params["name"]
    if name == "custom_linear_solve":  # its other functions are for derivatives
        params = {"jaxprs": params["jaxprs"].solve}
    for value in params.values():
        several = value if isinstance(value, (tuple, list)) else (value,)
        jaxprs = [x.jaxpr if isinstance(x, ClosedJaxpr) else x for x in several]
        for i, inner in enumerate(jaxprs):
            if isinstance(inner, Jaxpr):
                yield inner, times, f"branch {i} of {len(jaxprs)}" if name == "cond" else place


def _source(variable: Any, made_by: Mapping[Any, Any]) -> Operand:
    """The operand, and the transpose right in front of it."""
    aval = variable.aval
    equation = made_by.get(variable) if not hasattr(variable, "val") else None  # a literal is not hashable
    if equation is None or equation.primitive.name != "transpose":
        return Operand(tuple(aval.shape), aval.dtype, None)
    stored = equation.invars[0].aval
    return Operand(tuple(stored.shape), stored.dtype, tuple(equation.params["permutation"]))


def _product(equation: Any, made_by: Mapping[Any, Any]) -> Product:
    """The product that an equation of contract_p or fused_p is."""
    params = dict(equation.params)
    epilogue, _ = params.pop("epilogue", None), params.pop("preactivation", None)
    params.pop("out_sharding")
    # The emulator is not what a GPU runs.
    request = Request(**params | {"interpret": None})
    lhs, rhs = equation.invars[:2]
    folded = [_source(variable, made_by) for variable in (lhs, rhs)]
    plain = [Operand(tuple(variable.aval.shape), variable.aval.dtype, None) for variable in (lhs, rhs)]
    if epilogue is not None:  # w is converted to x's dtype behind the transpose
        folded, plain = ([x, dataclasses.replace(w, dtype=x.dtype)] for x, w in (folded, plain))
        epilogue = None if epilogue.is_nothing else epilogue
    operands = plain if request.implementation == "xla" else first_served(request, folded, plain)
    return Product(request, (operands[0], operands[1]), epilogue)


def _lax_product(equation: Any) -> Product:
    lhs, rhs = (Operand(tuple(x.aval.shape), x.aval.dtype, None) for x in equation.invars)
    spec = spec_of(canonical_dimensions(equation.params["dimension_numbers"]), len(lhs.shape), len(rhs.shape))
    request = Request(spec, equation.outvars[0].aval.dtype, equation.params["precision"], None, None, None)
    return Product(request, (lhs, rhs), is_lax=True)


# ---------------------------------------------------------------------------------------------------- of one product


def explain_product(product: Product, device: Device, count: int = 1, where: tuple[str, ...] = ()) -> Gemm:
    """What becomes of one product on a GPU: the same questions in the same order as while lowering.

    Args:
      product: as it stands in a jaxpr.
      device: the GPU that is meant.
      count: how often the program computes it.
      where: in which loops and branches.
    """
    request, (lhs, rhs), epilogue = product.request, product.operands, product.epilogue
    what = describe(request, *product.seen())
    epilogue_reason = None
    if epilogue is not None:
        outcome = _decide(product, device)
        if outcome.computed_by == "xla" and request.implementation != "xla":
            epilogue_reason = outcome.reason
        if epilogue_reason is not None and not plan.is_about_time(epilogue_reason):
            # Then it is a contraction in the dtype in which XLA finishes it.
            dtype = compute_dtype(lhs.dtype, request.out_dtype)
            product = Product(dataclasses.replace(request, out_dtype=dtype), (lhs, rhs))
            outcome = _decide(product, device)
    else:
        outcome = _decide(product, device)
    problem = outcome.problem
    candidates: tuple[Ranked, ...] = ()
    if problem is not None:
        candidates = _candidates(problem, outcome.split, product.request.batch_invariant, device.arch)
    config = outcome.config
    return Gemm(
        what=what,
        count=count,
        where=where,
        computed_by=outcome.computed_by,
        reason=outcome.reason,
        epilogue=None if epilogue is None else _epilogue_words(epilogue),
        epilogue_reason=epilogue_reason,
        problem=problem,
        config=config,
        chosen_by=_chosen_by(outcome, request),
        measured=outcome.measured,
        split=outcome.split,
        candidates=candidates,
        device=device,
        product=product,
    )


@dataclasses.dataclass(frozen=True)
class _Outcome:
    computed_by: Literal["moye", "xla", "error", "nothing"]
    reason: str | None = None
    problem: GemmProblem | None = None
    config: GemmConfig | None = None
    split: bool = False
    measured: Choice | None = None


def _chosen_by(outcome: _Outcome, request: Request) -> Literal["cache", "table", "model", "explicit"] | None:
    if outcome.measured is not None:
        return outcome.measured.source
    if outcome.config is None:
        return None
    return "model" if request.config is None else "explicit"


def _decide(product: Product, device: Device) -> _Outcome:
    """Who computes a product, as plan.plan_call decides it for a GPU whose kernels are all there."""
    request, (lhs, rhs) = product.request, product.operands
    if product.is_lax:
        reason = "it is lax.dot_general's own (jax_moye.matmul, or jax_moye.intercept, asks for our kernels)"
        return _Outcome("xla", reason, _problem(product, device))
    if request.implementation == "xla":
        return _Outcome("xla", "implementation='xla'", _problem(product, device))
    permutations = (lhs.permutation, rhs.permutation)
    epilogue, may_split = product.epilogue, product.epilogue is None
    try:
        call = plan.find_kernel(
            request, lhs.aval, rhs.aval, permutations, device.arch, "cuda", may_split, device, epilogue
        )
        if call is None:
            return _Outcome("nothing", "a size is 0")
        rather_xla = plan.why_rather_xla(request, lhs.aval, rhs.aval, call, device.arch, may_split, epilogue)
        if rather_xla is not None:
            measured = call.measured if call.measured and rather_xla.startswith(MEASURED) else None
            return _Outcome("xla", rather_xla, call.problem, None, call.split, measured)
        if product.epilogue is not None:
            call = _with_epilogue(product, call, device)
    except NotServedError as error:
        return _not_served(str(error), product, device)
    except ValueError as error:  # the config asked for cannot compute this
        return _Outcome("error", str(error), _problem(product, device))
    return _Outcome("moye", None, call.problem, call.config, call.split, call.measured)


def _with_epilogue(product: Product, call: KernelCall, device: Device) -> KernelCall:
    """The call of a kernel that finishes the sums, too.

    Raises:
      NotServedError: it cannot.
    """
    assert product.epilogue is not None
    parsed, (lhs, rhs) = parse_spec(product.request.spec), product.seen()
    sizes = dict(zip(parsed.lhs, lhs.shape, strict=True)) | dict(zip(parsed.rhs, rhs.shape, strict=True))
    problem, _ = fit_epilogue(call.problem, parsed.out, sizes, product.epilogue)
    if problem is not call.problem and (reason := why_not(call.config, problem, device.arch)):
        raise NotServedError(f"{call.config.name}: {reason}")
    return dataclasses.replace(call, problem=problem)


def _not_served(reason: str, product: Product, device: Device) -> _Outcome:
    """XLA, or an error where the caller insists on our kernels or on what XLA does not promise."""
    problem = _problem(product, device)
    if product.epilogue is not None and not product.request.batch_invariant:
        return _Outcome("xla", reason, problem)  # then the product without its epilogue is asked about
    if product.request.implementation == "moye":
        return _Outcome("error", f"implementation='moye': {reason}", problem)
    if broken := plan.why_not_xla("cuda", product.request):
        return _Outcome("error", f"{broken}, and no kernel of ours computes it: {reason}", problem)
    return _Outcome("xla", reason, problem)


def _problem(product: Product, device: Device) -> GemmProblem | None:
    """What the kernels would see if they computed it; None if it is not for them."""
    request, (lhs, rhs) = product.request, product.operands
    try:
        dtype = plan.operand_dtype(lhs.dtype, rhs.dtype, request.out_dtype)
        way = plan.possible_ways(dtype, request.precision, "cuda", False)[0]
        lhs_shape, rhs_shape = (x.shape for x in product.seen())
        if 0 in lhs_shape or 0 in rhs_shape:
            return None
        return make_problem(
            request.spec,
            lhs_shape,
            rhs_shape,
            way.dtype,
            _written(way, request.out_dtype, plan.usable_rows("cuda", device.arch)),
            lhs.permutation,
            rhs.permutation,
            accumulator=way.accumulator,
        )
    except NotServedError:
        return None


def _written(way: Way, out_dtype: Any, table: Iterable[GemmConfig]) -> str:
    """The dtype that a kernel writes for a result of out_dtype: that one, or its sums'."""
    name = SHORT_NAMES.get(jnp.dtype(out_dtype).name)
    rows = [row for row in table if (row.dtype, row.accumulator) == (way.dtype, way.accumulator)]
    if name is not None and any(name in row.out_dtypes for row in rows):
        return name
    return {"f16": "f32", "f32_fast": "f32"}.get(way.accumulator, way.accumulator)


def _candidates(problem: GemmProblem, split: bool, batch_invariant: bool, arch: int) -> tuple[Ranked, ...]:
    """The whole table in the order of the selection, with times and reasons."""
    table: ConfigTable = plan.usable_rows("cuda", arch)
    allowed = None
    if batch_invariant:
        allowed = batch_invariant_rows(problem.dtype, problem.out_dtype, problem.sums, arch, table)
    can, cannot = [], []
    for config, reason in rank(problem, arch, table):
        if reason is None and allowed is not None and config not in allowed:
            reason = f"{_OTHER_SUMS}: it sums in another order than the rows that are used then"
        if reason is not None:
            cannot.append(Ranked(config, reason, None, None))
            continue
        predict = cost.predicted_split_us if split else cost.predicted_us
        can.append(Ranked(config, None, predict(config, problem, arch), cost.terms(config, problem, arch)))
    return (*can, *cannot)


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


def _device_words(device: Device) -> str:
    return f"on {device.name} (sm_{device.arch}, {device.multiprocessors} multiprocessors)"


def _epilogue_words(epilogue: Epilogue) -> str:
    parts = [name for name, _ in epilogue.operands]
    parts += [f"{name}={getattr(epilogue, name):g}" for name in ("alpha",) if epilogue.alpha != 1]
    parts += [f"beta={epilogue.beta:g}"] if epilogue.beta not in (0, 1) else []
    return ", ".join([epilogue.activation, *parts] if epilogue.activation != "none" else parts)


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


def _slower(rows: Sequence[Ranked], measured: Choice | None) -> str | None:
    """By how much a kernel was measured to be slower than the one that is taken; None if it was not measured."""
    us = {} if measured is None else measured.entry.us
    timed = [ranked.config.name for ranked in rows if ranked.config.name in us]
    if measured is None or not timed:
        return None
    first = min(timed, key=us.__getitem__)
    return f"{us[first] / measured.us:.2f} x the measured time: {first}"


def _why_not_kernel(rows: Sequence[Ranked], best: Ranked, problem: GemmProblem | None) -> str:
    """Why a kernel was not taken; the rows are in the order of the selection."""
    first = rows[0]
    if first.us is not None:
        assert first.terms is not None
        ratio = f"{first.us / best.us:.2f} x the time" if best.us else "no faster"
        return f"{ratio}, {first.terms.dominating} first: {first.config.name}"
    near = [
        ranked
        for ranked in rows
        if problem is not None and (ranked.config.dtype, ranked.config.accumulator) == (problem.dtype, problem.sums)
    ]
    if not near:
        kinds = dict.fromkeys(f"{ranked.config.dtype} summed in {ranked.config.accumulator}" for ranked in rows)
        return f"its rows are for {', '.join(kinds)}"
    # One reason, of the row that asks for least: a product that is aligned to 2 bytes is not aligned to 16 either.
    nearest = min(near, key=lambda ranked: (not (ranked.reason or "").startswith(_OTHER_SUMS), ranked.config.alignment))
    return nearest.reason or ""


def _facts(gemm: Gemm) -> Iterator[tuple[str, str]]:
    can = sum(ranked.reason is None for ranked in gemm.candidates)
    if gemm.count != 1 or gemm.where:
        yield "in the program", ", ".join(filter(None, [_times(gemm.count), *gemm.where])) or "once"
    if gemm.config is not None:
        how = {
            "explicit": "named by the caller",
            "model": f"by the model the fastest of the {can} rows that can",
            "cache": "measured on this machine",
            "table": "measured for the package",
        }[gemm.chosen_by or "model"]
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
        return
    layouts = gemm.layouts()
    batch = ",L" if p.batch > 1 else ""
    swapped = ", which is the right operand" if p.swapped else ""
    yield "a", f"{layouts['a']}  (M,K{batch}) {p.dtype}{swapped}"
    yield "b", f"{layouts['b']}  (N,K{batch}) {p.dtype}"
    yield "d", f"{layouts['d']}  (M,N{batch}) {p.out_dtype}, summed in {p.sums}"
    yield "order", f"{p.order or 'no mode of stride 1'}, aligned to {p.alignment} bytes"
    if gemm.chosen is not None:
        yield from _kernel_facts(gemm, gemm.chosen)
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
        yield "", f"fitted to an {CALIBRATED.upper()}: on this GPU the times say which row is first, and no more"


def _measured_words(gemm: Gemm) -> str:
    choice, xla_us = gemm.measured, _xla_us(gemm)
    assert choice is not None
    xla = "" if xla_us is None else f", XLA {us_text(xla_us)} us"
    times = f"{len(choice.entry.us)} row{'' if len(choice.entry.us) == 1 else 's'}"
    return f"{us_text(choice.us)} us, the fastest of {times}{xla} ({choice.source}, {choice.entry.date})"


def _xla_us(gemm: Gemm) -> float | None:
    """Of the measurement, if that was one of this product's dtypes and precision."""
    assert gemm.measured is not None
    request, (lhs, rhs) = gemm.product.request, gemm.product.seen()
    return gemm.measured.xla_us(signature(lhs.dtype, rhs.dtype, request.out_dtype, request.precision))


def _measured_dict(gemm: Gemm) -> dict[str, Any]:
    assert gemm.measured is not None
    choice = gemm.measured
    return {
        "source": choice.source,
        "config": choice.config.name,
        "us": rounded(choice.us),
        "xla_us": rounded(_xla_us(gemm)),
        "rows": len(choice.entry.us),
        "date": choice.entry.date,
    }


def _not_taken(gemm: Gemm) -> str:
    """The title of by_kernel()."""
    return "kernels that were not taken" if gemm.config else "kernels, and their times over that of the fastest row"


def _short(reason: str | None, candidates: Sequence[Ranked]) -> str:
    """A reason in one line: those of all rows are in the table."""
    if reason is None:
        return ""
    names = sum(f"{ranked.config.name}: " in reason for ranked in candidates)
    if names > 1:
        return "no row can compute it, for the reasons below"
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


def _summary(gemms: Sequence[Gemm]) -> list[list[str]]:
    lines = [["", "product", "times", "computed by", "us", "all, us"]]
    for i, gemm in enumerate(gemms):
        who = gemm.config.name if gemm.config else "XLA" if gemm.computed_by == "xla" else gemm.computed_by
        us = gemm.predicted_us
        lines.append([f"[{i}]", gemm.what, str(gemm.count), who, us_text(us), us_text(us and us * gemm.count)])
    return lines


# ------------------------------------------------------------------------------------------------------ HTML and rich


def _html(gemms: Sequence[Gemm], device: Device, *, summary: bool, notes: Sequence[str] = ()) -> str:
    parts = []
    if summary:
        parts += [f"<p>{len(gemms)} different matrix products, {html.escape(_device_words(device))}</p>"]
        parts += [html_table(_summary(gemms))]
    for i, gemm in enumerate(gemms):
        title = html.escape(f"{gemm.what}, {_device_words(gemm.device)}")
        facts = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(sentence)}</td></tr>" for name, sentence in gemm.facts()
        )
        not_taken = "".join(
            f"<tr><th>{html.escape(kernel)}</th><td>{html.escape(reason)}</td></tr>"
            for kernel, reason in gemm.by_kernel().items()
        )
        details = [f"<table>{facts}</table>"]
        if len(gemm.table()) > 1:
            details.append(html_table(gemm.table()))
        if not_taken:
            details.append(f"<p>{_not_taken(gemm)}</p><table>{not_taken}</table>")
        label = f"[{i}] {title}" if summary else title
        opened = "" if summary else " open"
        parts.append(f"<details{opened}><summary>{label}</summary>{''.join(details)}</details>")
    if not gemms:
        parts.append(f"<p>no matrix product, {html.escape(_device_words(device))}</p>")
    parts += [f"<p>{html.escape(note)}</p>" for note in notes]
    return f"<div>{''.join(parts)}</div>"


def _rich(explanation: Explanation, top: int | None) -> Iterator[Any]:
    """The same as text(), as what rich prints."""
    tables, texts = (importlib.import_module(f"rich.{name}") for name in ("table", "text"))

    def table(lines: Sequence[Sequence[str]], title: str | None = None) -> Any:
        made = tables.Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
        for i, column in enumerate(lines[0]):
            made.add_column(column, overflow="fold", no_wrap=i != 1)
        for line in lines[1:]:
            made.add_row(*map(texts.Text, line), style="bold green" if line[0].endswith("*") else None)
        return made

    gemms = explanation.gemms
    if len(gemms) != 1:
        title = f"{len(gemms)} different matrix products, {_device_words(explanation.device)}"
        yield table(_summary(gemms), title)
    shown = TOP if top is None and len(gemms) == 1 else top or 0
    for i, gemm in enumerate(gemms):
        label = f"[{i}] " if len(gemms) != 1 else ""
        yield texts.Text(f"{label}{gemm.what}, {_device_words(gemm.device)}", style="bold")
        facts = tables.Table.grid(padding=(0, 2))
        for name, sentence in gemm.facts():
            facts.add_row(texts.Text(name, style="cyan"), texts.Text(sentence))
        yield facts
        if shown and gemm.table(shown)[1:]:
            yield table(gemm.table(shown))
        if shown and (not_taken := gemm.by_kernel()):
            yield table([["", _not_taken(gemm)], *([kernel, reason] for kernel, reason in not_taken.items())])
    for note in explanation.notes:
        yield texts.Text(note, style="yellow")


# ----------------------------------------------------------------------------------------------------- command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye explain`."""
    parser.add_argument(
        "--shape",
        required=True,
        action="append",
        help="[batch x] m x n x k : dtype [: order], e.g. 4096x4096x4096:bf16 or 8x64x64x128:f16:NT; may be repeated",
    )
    parser.add_argument("--device", help=f"{', '.join(DEVICES)}, or an architecture such as 90 (default: the GPU here)")
    parser.add_argument("--precision", help="as in jax_moye.matmul, e.g. highest")
    parser.add_argument(
        "--out-dtype", choices=(*OPERAND_NAMES, "s32"), help="dtype of the result (default: the operands')"
    )
    parser.add_argument("--config", help="the row of the table to use")
    parser.add_argument("--batch-invariant", action="store_true", help="choose among the rows of batch_invariant=True")
    parser.add_argument("--top", type=int, default=TOP, help=f"rows of the ranked table (default: {TOP})")
    parser.add_argument("--json", action="store_true", help="print JSON with the whole table")


def parse_shape(text: str) -> tuple[int, int, int, int, str, str]:
    """(batch, m, n, k, dtype, order) of e.g. "4096x4096x4096:bf16:NT"; the order is NN unless said.

    Raises:
      ValueError: it is none; the message says what one looks like.
    """
    match = re.fullmatch(r"((?:\d+x){2,3}\d+):(\w+)(?::([NT]{2}))?", text)
    if match is None or match[2] not in OPERAND_NAMES:
        raise ValueError(
            "--shape is [batchx]mxnxk:dtype[:order], e.g. 4096x4096x4096:bf16:NT, with a dtype of "
            f"{', '.join(OPERAND_NAMES)} and an order of NN, NT, TN, TT, not {text!r}"
        )
    sizes = [int(size) for size in match[1].split("x")]
    batch, m, n, k = sizes if len(sizes) == 4 else (1, *sizes)
    return batch, m, n, k, match[2], match[3] or "NN"


def explain_shape(text: str, **options: Any) -> Explanation:
    """`explain` of a shape as the command line writes it; the options are explain's.

    Raises:
      ValueError: it is none.
    """
    batch, m, n, k, name, order = parse_shape(text)
    lead = "b" if batch > 1 else ""
    a, b = (lead + "mk", lead + "kn")
    labels = (a if order[0] == "N" else lead + "km", b if order[1] == "N" else lead + "nk")
    sizes = {"b": batch, "m": m, "n": n, "k": k}
    shapes = [tuple(sizes[label] for label in operand) for operand in labels]
    return explain(*shapes, OPERAND_NAMES[name], spec=f"{labels[0]},{labels[1]}->{lead}mn", **options)


def main(arguments: argparse.Namespace) -> int:
    """Prints. Returns 0, and 1 where an argument is wrong."""
    out_dtype = arguments.out_dtype and JAX_NAMES[arguments.out_dtype]
    options = {
        "device": arguments.device,
        "precision": arguments.precision,
        "preferred_element_type": out_dtype,
        "config": arguments.config,
        "batch_invariant": arguments.batch_invariant or None,
    }
    try:
        found = [explain_shape(text, **options) for text in arguments.shape]
    except (TypeError, ValueError) as error:
        print(f"jax_moye explain: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps([explanation.to_dict() for explanation in found], indent=1))
        return 0
    for i, explanation in enumerate(found):
        if i:
            print()
        explanation.show(top=arguments.top)
    return 0
