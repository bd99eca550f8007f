"""`explain`: which kernel computes each matrix product of a program on a GPU, how long it takes, and why no other.

Nothing is compiled or run, and no GPU is needed: a program is traced, its jaxpr is searched for products, and what
`_selection.decide` says of each is shown. docs/how_selection_works.md explains the terms.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from jax_moye._api.dot_general import dot_general, einsum
from jax_moye._api.matmul import matmul
from jax_moye._api.types import Config, DimensionNumbers, Implementation
from jax_moye._format import us_text
from jax_moye._inspect.attentions import AttentionRow, attention_rows, counted
from jax_moye._inspect.gemm import OTHER_SUMS, TOP, Gemm, Ranked, device_words
from jax_moye._inspect.products import Product, epilogue_words, products_of
from jax_moye._inspect.render import Page, page_html, page_rich, page_text
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import ConfigTable, find_config, is_own
from jax_moye._kernels.devices import Device, find_device
from jax_moye._kernels.dtypes import named_dtype
from jax_moye._kernels.target import ASSUMED, is_assumed
from jax_moye._selection import block_scaled, cost
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.decide import Decision, decide
from jax_moye._selection.grouped import decide_grouped
from jax_moye._selection.problem import GemmProblem
from jax_moye._selection.ranking import rank
from jax_moye._selection.request import Request, describe
from jax_moye._selection.summation import batch_invariant_configs
from jax_moye._selection.weights import decide_weights, dequantized_product


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The matrix products of a program, in the order in which it names them; prints as a table.

    Attributes:
      device: the GPU that is meant.
      gemms: one `Gemm` for each different product.
      notes: what holds for the whole program.
      attentions: one row for each different attention that `optimize` found.
    """

    device: Device
    gemms: tuple[Gemm, ...]
    notes: tuple[str, ...] = ()
    attentions: tuple[AttentionRow, ...] = ()

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
            "attentions": [one.to_dict() for one in self.attentions],
        }

    def to_json(self, indent: int | None = 1) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    def summary(self) -> list[list[str]]:
        """A line of cells for each product and each attention; the first one names the columns."""
        lines = [["", "product", "times", "computed by", "us", "XLA, us", "all, us"]]
        for i, gemm in enumerate(self.gemms):
            us = gemm.xla_us if gemm.computed_by == "xla" else gemm.predicted_us
            times = [us_text(us), us_text(gemm.xla_us), us_text(us and us * gemm.count)]
            lines.append([f"[{i}]", gemm.what, str(gemm.count), gemm.computer, *times])
        return lines + [["", *one.cells()] for one in self.attentions]

    def _page(self, top: int = TOP) -> Page:
        of_device, sections = device_words(self.device), [gemm.section(top) for gemm in self.gemms]
        if len(self.gemms) > 1 or self.attentions:
            return Page(f"{counted(self.gemms, self.attentions)}, {of_device}", self.summary(), sections, self.notes)
        return Page(f"no matrix product, {of_device}", None, sections, self.notes)

    def _top(self, top: int | None) -> int:
        """Lines of each table: unless said, of one product's alone."""
        return top if top is not None else TOP if len(self.gemms) == 1 else 0

    def text(self, top: int | None = None) -> str:
        """The program as plain text.

        Args:
          top: lines of each table of candidates; None: 8, and where there are several products none.
        """
        top = self._top(top)
        return page_text(self._page(top), tables=top > 0)

    def __str__(self) -> str:
        """As text."""
        return self.text()

    def __repr__(self) -> str:
        """As text: what an interactive session shows."""
        return self.text()

    def _repr_html_(self) -> str:
        """For notebooks."""
        return page_html(self._page())

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """For `rich.print`."""
        yield from page_rich(self._page(), tables=True)

    def show(self, file: TextIO | None = None, top: int | None = None) -> None:
        """Prints it: with colours where rich is installed and the file is a terminal, else as plain text.

        Args:
          file: None: standard output.
          top: as in `text`.
        """
        file = sys.stdout if file is None else file
        if file.isatty() and importlib.util.find_spec("rich"):
            console = importlib.import_module("rich.console").Console(file=file)
            top = self._top(top)
            for renderable in page_rich(self._page(top), tables=top > 0):
                console.print(renderable)
            return
        print(self.text(top), file=file)


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
      config: one of `jax_moye.configs()`, what `jax_moye.kernel` returned, or a name.
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
      >>> explanation = jax_moye.explain((4000, 4096), (4096, 4095), "bfloat16", device="h200")
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
    gpu = find_device(device)
    assumed = (ASSUMED.format(kind=gpu.kind),) if device is None and is_assumed() else ()
    if callable(first) and not hasattr(first, "shape"):
        of_arrays = options | {"dtype": dtype, "spec": spec, "dimension_numbers": dimension_numbers}
        for name, value in of_arrays.items():
            if value is not None:
                raise TypeError(f"explain: {name} is about the product of two arrays; a function has its own options")
        try:
            return _with_notes(explain_function(first, args, gpu), assumed)
        except TypeError as error:
            if shapes := [x for x in args if _is_shape(x) and len(x)]:
                error.add_note(
                    f"explain: {shapes[0]} is no array to a function: give it an array or jax.ShapeDtypeStruct("
                    f"{shapes[0]}, dtype)"
                )
            raise

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
        return _with_notes(explain_function(fun, (a, b), gpu), assumed)


def _with_notes(explanation: Explanation, notes: tuple[str, ...]) -> Explanation:
    return dataclasses.replace(explanation, notes=(*notes, *explanation.notes))


def _is_shape(x: Any) -> bool:
    return isinstance(x, (tuple, list)) and all(isinstance(size, (int, np.integer)) for size in x)


def _as_struct(name: str, x: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an operand.

    Raises:
      TypeError: it is neither a shape nor an array, or the dtype is missing or said twice.
    """
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        if dtype is not None and jnp.dtype(named_dtype(dtype)) != x.dtype:
            raise TypeError(f"explain: dtype is {named_dtype(dtype)}, and {name} has one, {x.dtype}")
        return jax.ShapeDtypeStruct(x.shape, x.dtype)
    if not _is_shape(x):
        raise TypeError(f"explain: {name} is a shape or has one and a dtype, not {x!r}")
    if any(size < 0 for size in x):
        raise ValueError(f"explain: {name} has the shape {tuple(x)}, and no size is negative")
    if dtype is None:
        raise TypeError(f"explain: {name} is the shape {tuple(x)}, and no dtype is given")
    return jax.ShapeDtypeStruct(tuple(map(int, x)), jnp.dtype(named_dtype(dtype)))


def explain_function(fun: Callable[..., Any], args: Sequence[Any], device: Device) -> Explanation:
    """`explain` of a function.

    Args:
      fun: whatever jax.jit takes, or its result.
      args: of fun: arrays, or what has a shape and a dtype.
      device: the GPU that is meant.
    """
    traced = (fun if hasattr(fun, "trace") else jax.jit(fun)).trace(*args)
    merged: dict[Product, tuple[int, dict[str, None]]] = {}
    attentions, words, left = attention_rows(traced.jaxpr.jaxpr, LoweringTarget.of_device(device))
    for product, count, where in (*products_of(traced.jaxpr.jaxpr), *left):
        before, places = merged.get(product, (0, {}))
        merged[product] = (before + count, places | dict.fromkeys([" > ".join(where)] if where else []))
    gemms = tuple(explain_product(product, device, count, tuple(places)) for product, (count, places) in merged.items())
    notes = words
    if (reason := ffi.why_unavailable("cuda")) is not None:
        notes.append(f"Here XLA computes all of it, since {reason}.")
    return Explanation(device, gemms, tuple(notes), tuple(attentions))


def explain_product(product: Product, device: Device, count: int = 1, where: tuple[str, ...] = ()) -> Gemm:
    """What becomes of one product on a GPU: the decision that the lowering would be told, and the candidates.

    Args:
      product: as it stands in a jaxpr.
      device: the GPU that is meant.
      count: how often the program computes it.
      where: in which loops and branches.
    """
    request, operands = product.request, product.operands
    asked = dataclasses.replace(request, implementation="xla") if product.is_lax else request
    target = LoweringTarget.of_device(device)
    if product.groups is not None:
        decision, call = decide_grouped(asked, product.groups, operands, target)
        if product.original is not None and decision.kind == "xla":
            alone = [one for one, *_ in products_of(product.original.jaxpr.jaxpr)]  # both alike
            plain = explain_product(alone[0], device, count * len(alone), where)
            how = "its rows moved by XLA" if request.epilogue is None else "gated behind it"
            return dataclasses.replace(plain, what=f"{plain.what}, {how}: {decision.reason}")
        if request.epilogue is not None and decision.kind != "kernel":
            decision = decision._replace(epilogue_reason=decision.reason)
        return Gemm(
            what=f"{describe(request, operands)}, {product.groups} groups{', permuted' if product.permuted else ''}",
            count=count,
            where=where,
            epilogue=None if request.epilogue is None else epilogue_words(request.epilogue),
            candidates=(),
            device=device,
            decision=decision,
            product=product,
            special=call,
        )
    if product.scales is not None:
        return _explain_weights(product, target, device, count, where)
    if product.block_scales is not None:
        return _explain_block_scaled(product, target, device, count, where)
    decision = decide(asked, operands, target)
    if _is_one_product(decision, request):
        whole, *_ = next(products_of(product.original.in_two[1].jaxpr.jaxpr))
        plain = explain_product(whole, device, count, where)
        return dataclasses.replace(plain, what=f"{plain.what}, gated behind it: {decision.epilogue_reason}")
    if not product.is_lax:
        original = product.original if decision.request.epilogue is not None else None
        product = Product(decision.request, operands, original=original)
    candidates: tuple[Ranked, ...] = ()
    if decision.problem is not None:
        is_split = decision.call is not None and decision.call.split
        own = [find_config(request.config)] if request.config is not None else []
        table = ConfigTable([*target.configs, *(config for config in own if is_own(config))])
        candidates = _candidates(decision.problem, is_split, request.batch_invariant, target.arch, table)
    return Gemm(
        what=describe(request, operands),
        count=count,
        where=where,
        epilogue=None if request.epilogue is None else epilogue_words(request.epilogue),
        candidates=candidates,
        device=device,
        decision=decision,
        product=product,
    )


def _is_one_product(decision: Decision, request: Request) -> bool:
    """Whether halves of one product stay that, since no kernel computes both; where one is slower XLA finishes them."""
    is_of_halves = request.epilogue is not None and request.epilogue.halves
    return is_of_halves and decision.epilogue_reason is not None and decision.request.epilogue is None


def _explain_weights(product: Product, target: LoweringTarget, device: Device, count: int, where: Any) -> Gemm:
    """What becomes of a product with weights of 8 or 4 bits; by dequantized weights, all that is known of that one."""
    request, operands, groups = product.request, product.operands, product.scales
    assert groups is not None
    what = f"{describe(request, operands)}, {groups} row{'' if groups == 1 else 's'} of scales"
    original = product.original  # of a program that dequantizes itself
    decision, call = decide_weights(request, groups, operands, target, of_program=original is not None)
    if decision.kind == "xla":
        what = f"{what}, by dequantized weights: {decision.reason}"
        own = Product(*dequantized_product(request, groups, operands))
        if original is not None:
            own, *_ = next(products_of(original.jaxpr.jaxpr))
        plain = explain_product(own, device, count, where)
        return dataclasses.replace(plain, what=what, product=product)
    return Gemm(what, count, where, None, (), device, decision, product, call)


def _explain_block_scaled(product: Product, target: LoweringTarget, device: Device, count: int, where: Any) -> Gemm:
    """What becomes of a product of blocks that have scales; by dequantized operands, all that is known of that one."""
    request, operands, scales = product.request, product.operands, product.block_scales
    assert scales is not None
    per_rhs = "" if scales.of_columns else f", of {block_scaled.BLOCK} rows of rhs each"
    what = f"{describe(request, operands)}, scales of blocks of {block_scaled.BLOCK} along k{per_rhs}"
    decision = block_scaled.decide_block_scaled(request, scales, operands, target)
    if decision.kind == "xla":
        own = Product(*block_scaled.dequantized_product(request, scales, operands))
        plain = explain_product(own, device, count, where)
        return dataclasses.replace(plain, what=f"{what}, by dequantized operands: {decision.reason}", product=product)
    return Gemm(what, count, where, None, (), device, decision, product)


def _candidates(
    problem: GemmProblem, is_split: bool, batch_invariant: bool, arch: int | None, table: ConfigTable
) -> tuple[Ranked, ...]:
    """All configs in the order of the selection, with times and reasons."""
    allowed = None
    if batch_invariant:
        allowed = batch_invariant_configs(problem.dtype, problem.out_dtype, problem.sums, arch, table)
    can, cannot = [], []
    for config, reason in rank(problem, arch, table):
        if reason is None and allowed is not None and config not in allowed:
            reason = OTHER_SUMS
        if reason is not None:
            cannot.append(Ranked(config, reason, None, None))
            continue
        predict = cost.predicted_split_us if is_split else cost.predicted_us
        can.append(Ranked(config, None, predict(config, problem, arch), cost.terms(config, problem, arch)))
    return (*can, *cannot)
