"""Generated attention for sm90_attention and sm90_attention_grad, through their custom calls, held against float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jax_moye._kernels import ffi
from jax_moye._kernels.dtypes import DTYPES
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives.attention_call import Dropout, run_attention, run_attention_grad

KINDS = ("normal", "peaked", "positive", "level")  # level: all scores of a row are the same
DIMS = (("bqhd", "bkhd"), ("bhqd", "bhkd"), ("qbhd", "kbhd"), ("hbqd", "kbhd"), ("qhbd", "bkhd"))
# Of a number, what a product may change in it: by rounding to 16 bits, or to TF32.
UNITS = {"bf16": 2.0**-8, "f16": 2.0**-11, "tf32": 2.0**-11}
LEAST = {"bf16": 2.0**-133, "f16": 2.0**-24, "tf32": 2.0**-126}  # what that adds to a subnormal number
F32_UNIT = 2.0**-24  # the same of a result of f32


@dataclasses.dataclass(frozen=True)
class Case:
    batch: int
    kv_heads: int
    group: int
    q_rows: int
    kv_rows: int
    head_dim: int
    diagonal: int | None = None
    cap: float | None = None  # of the scores; not with a bias
    dims: tuple[str, str] = DIMS[0]  # of queries, and of keys and values
    dims_o: str | None = None
    mask: str | None = None  # its dimensions
    mask_is_infinite: bool = False
    bias: str | None = None  # its dimensions
    bias_is_f32: bool = True
    low: float | None = None  # the bias of a first row, and of a last column
    ds_is_f32: bool | None = None  # of the bias' gradient; None: nobody wants it
    dropout: str | None = None  # its dimensions; not with a cap
    mask_has_gradients: bool = False  # with dropout alone, and not behind -inf
    ds_parts: int = 1
    with_rest: bool = False
    kind: str = "normal"
    seed: int = 0

    @property
    def of_queries(self) -> tuple[int, int, int, int]:
        """(batch, head, row, head_dim)."""
        return self.batch, self.kv_heads * self.group, self.q_rows, self.head_dim

    @property
    def of_keys(self) -> tuple[int, int, int, int]:
        """The same of keys and values."""
        return self.batch, self.kv_heads, self.kv_rows, self.head_dim

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5 * (8 if self.kind == "peaked" else 1)


def random_case(rng: np.random.Generator, most_dim: int, most_rows: int = 300) -> Case:
    """One that a config computes whose tile has so much of head_dim."""
    q_rows, kv_rows = (int(rng.choice([1, 7, 63, 64, 65, 127, 128, 129, rng.integers(1, most_rows)])) for _ in "qk")
    diagonal = None
    if rng.random() < 0.7:
        diagonal = int(rng.choice([0, kv_rows - q_rows, rng.integers(-q_rows - 5, kv_rows + 5)]))
    dims = DIMS[rng.integers(len(DIMS))]
    mask, bias = ("".join(rng.permutation([x for x in "bhqk" if rng.random() < 0.6])) for _ in range(2))
    is_biased, cap = rng.random() < 0.4, rng.choice([0, 0, 1, 20, 50])
    dropout = None
    if rng.random() < 0.3:
        dropout, cap = "".join(rng.permutation([x for x in "bhqk" if rng.random() < 0.7])), 0
    is_infinite = bool(rng.random() < 0.5)
    return Case(
        batch=int(rng.integers(1, 3)),
        kv_heads=int(rng.integers(1, 3)),
        group=int(rng.choice([1, 1, 2, 3])),
        q_rows=q_rows,
        kv_rows=kv_rows,
        head_dim=int(rng.choice([most_dim, most_dim - 8, 8 * rng.integers(1, most_dim // 8 + 1)])),
        diagonal=diagonal,
        dims=dims,
        dims_o=DIMS[rng.integers(len(DIMS))][0] if rng.random() < 0.3 else None,
        mask=mask if rng.random() < 0.5 else None,
        mask_is_infinite=is_infinite,
        bias=bias if is_biased else None,
        cap=float(cap) if cap and not is_biased else None,
        bias_is_f32=bool(rng.random() < 0.5),
        ds_is_f32=[None, False, True][rng.integers(3)],
        kind=str(rng.choice(KINDS)),
        seed=int(rng.integers(1000)),
        with_rest=bool(rng.random() < 0.5),
        dropout=dropout,
        mask_has_gradients=dropout is not None and not is_infinite and bool(rng.random() < 0.5),
    )


def draw(case: Case, dtype: str) -> dict[str, np.ndarray]:
    """q, k, v and d_o, (batch, head, row, head_dim) of the config's dtype; f32 that TF32 holds."""
    rng = np.random.default_rng(case.seed)
    of = getattr(ml_dtypes, DTYPES[dtype].jax_name, DTYPES[dtype].jax_name)
    arrays = {}
    for name, shape in dict(q=case.of_queries, k=case.of_keys, v=case.of_keys, d_o=case.of_queries).items():
        values = rng.standard_normal(shape) * (name != "q" or case.kind != "level")
        arrays[name] = (abs(values) if case.kind == "positive" else values).astype(of)
        if dtype == "tf32":
            arrays[name] = (arrays[name].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return arrays


def of_f32(case: Case) -> Case:
    """The case with arrays of f32, which have no rest, no second part, and no 16 bits."""
    ds_is_f32 = None if case.ds_is_f32 is None else True
    return dataclasses.replace(case, bias_is_f32=True, ds_is_f32=ds_is_f32, with_rest=False, ds_parts=1)


def draw_mask(case: Case) -> np.ndarray:
    """(batch, head, row, column), 1 where scores are the same for all; the first row has no column."""
    sizes = dict(b=case.batch, h=case.kv_heads * case.group, q=case.q_rows, k=case.kv_rows)
    rng = np.random.default_rng(case.seed + 1)
    mask = rng.random([size if letter in (case.mask or "") else 1 for letter, size in sizes.items()]) < 0.7
    mask[:, :, 0] &= "q" not in (case.mask or "")
    return mask


def draw_bias(case: Case, dtype: str) -> np.ndarray:
    """(batch, head, row, column) as a kernel is given it, of size 1 where it is the same for all."""
    sizes = dict(b=case.batch, h=case.kv_heads * case.group, q=case.q_rows, k=case.kv_rows)
    rng = np.random.default_rng(case.seed + 2)
    bias = 2 * rng.standard_normal([size if letter in (case.bias or "") else 1 for letter, size in sizes.items()])
    if case.low is not None:
        bias[:, :, :1] = case.low
        bias[..., -1:] = case.low
    name = "float32" if case.bias_is_f32 else DTYPES[dtype].jax_name
    return bias.astype(getattr(ml_dtypes, name, name))


FACTOR = 1 / 0.7  # of weights that are not dropped


def draw_dropout(case: Case) -> np.ndarray:
    """(batch, head, row, column), 1 where it is the same for all: the weights that are kept."""
    sizes = dict(b=case.batch, h=case.kv_heads * case.group, q=case.q_rows, k=case.kv_rows)
    rng = np.random.default_rng(case.seed + 3)
    return rng.random([size if letter in (case.dropout or "") else 1 for letter, size in sizes.items()]) < 0.7


def letters_first(x: np.ndarray, dims: str) -> np.ndarray:
    """(batch, head, row, column) as an array of these dimensions, of those that are not among them the first."""
    moved = np.transpose(x, ["bhqk".index(c) for c in (*dims, *sorted({*"bhqk"} - {*dims}))])
    return moved.reshape(moved.shape[: len(dims)])


def names_of(dims: str) -> str:
    """The same dimensions as (batch, head, row, head_dim)."""
    return "bhkd" if "k" in dims else "bhqd"


def in_order(x: np.ndarray, dims: str) -> np.ndarray:
    """(batch, head, row, head_dim) as an array of these dimensions."""
    return np.transpose(x, [names_of(dims).index(c) for c in dims])


def back(x: Any, dims: str) -> np.ndarray:
    """The reverse, in float64."""
    return np.transpose(np.asarray(x).astype(np.float64), [dims.index(c) for c in names_of(dims)])


@dataclasses.dataclass
class Reference:
    """Results in float64, and what each may be off."""

    values: dict[str, np.ndarray]
    allowed: dict[str, np.ndarray]


def cut(depth: int, dtype: str) -> float:
    """What sums are off, relatively: each instruction cuts off, of 16 products or 8 of TF32, and the sum so far."""
    return (-(-depth // (8 if dtype == "tf32" else 16)) + 4) * 2.0**-23


def reference(case: Case, dtype: str, arrays: dict[str, np.ndarray]) -> Reference:
    """o, lse, dq, dk and dv, and delta as it is meant."""
    q, d_o = (arrays[name].astype(np.float64) for name in ("q", "d_o"))
    k, v = (np.repeat(arrays[name].astype(np.float64), case.group, axis=1) for name in "kv")
    unit, least, scale = UNITS[dtype], LEAST[dtype], case.scale
    scores = scale * q @ k.swapaxes(2, 3)
    of_sum = cut(case.head_dim, dtype) * scale * (abs(q) @ abs(k).swapaxes(2, 3))
    slope, of_tanh, of_slope = 1, 0, 0  # the derivative of the cap; what scores and, relatively, that are off for it
    if case.cap is not None:
        tanh, cosh = np.tanh(scores / case.cap), np.cosh(np.minimum(abs(scores / case.cap), 350))
        # 1 - tanh^2 would be nothing but what float64 rounds, of scores far beyond the cap.
        scores, slope, of_tanh = case.cap * tanh, cosh**-2.0, case.cap * 2.0**-22
        of_slope = 2 * (abs(tanh) * of_sum / case.cap + 2.0**-21)
    size_of_bias: Any = 0
    if case.bias is not None:
        bias = draw_bias(case, dtype).astype(np.float64)
        # In float32 nothing is left of a score beside a number so low.
        scores = np.where(bias < -1e9, bias, scores + bias)
        size_of_bias = np.where(bias < -1e9, 0, abs(bias))
    i, j = np.mgrid[: case.q_rows, : case.kv_rows]
    counts = np.broadcast_to(j <= i + (case.kv_rows if case.diagonal is None else case.diagonal), scores.shape)
    kept = counts & (draw_mask(case) if case.mask is not None else True)
    is_masked_row = counts.any(axis=3, keepdims=True) & ~kept.any(axis=3, keepdims=True)
    scores = np.where(kept, scores, -np.inf if case.mask_is_infinite else -1e30)
    scores = np.where(counts, scores, -np.inf)
    most = np.max(scores, axis=3, keepdims=True, initial=-np.inf)
    has_columns = np.isfinite(most)
    exponentials = np.exp(scores - np.where(has_columns, most, 0))
    total = exponentials.sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(has_columns, most, 0) + np.log(total)
    p = exponentials / np.where(has_columns, total, 1)
    has_no_number = counts.any(axis=3, keepdims=True) & ~has_columns  # all are -inf
    p = np.where(has_no_number & counts, np.nan, p)
    of_weight = np.broadcast_to(1.0 if case.dropout is None else FACTOR * draw_dropout(case), p.shape)
    dropped = np.where(of_weight > 0, of_weight * p, 0)  # what multiplies the values
    o = np.where(has_no_number, np.nan, dropped @ v)
    delta = (o * d_o).sum(axis=3, keepdims=True).astype(np.float32).astype(np.float64)
    dp = of_weight * (d_o @ v.swapaxes(2, 3))
    # Nothing goes through a score that is masked, unless all are.
    kept = counts & (kept | (is_masked_row & case.mask_has_gradients))
    ds = np.where(kept, slope * p * (dp - delta), 0)
    of_score = slope * of_sum + cut(case.head_dim, dtype) * size_of_bias + of_tanh  # absolute, so that of p relative
    worst = of_score.max(axis=3, keepdims=True, initial=0)
    of_lse = worst + 2.0**-21 * (1 + abs(np.where(has_columns & ~is_masked_row, lse, 0)))
    of_lse += unit if dtype == "tf32" else 0  # whose exponentials are rounded before they are added up
    of_p = worst + of_lse + 2.0**-20
    # What is below the smallest number of the dtype: of exponentials that are at most 1, and of p itself.
    of_small = least * (1 / np.where(has_columns, total, 1))
    sums = cut(case.kv_rows, dtype)
    allowed = {"lse": np.where(lse < -1e29, 1e30, of_lse)[..., 0]}  # how low a masked score is nobody says
    allowed["o"] = (unit + of_p + sums) * (dropped @ abs(v)) + of_small * (of_weight @ abs(v))
    # Exponentials of scores that are all the same are 1, which no rounding changes.
    of_exponentials = unit * (dropped @ abs(v)) if case.kind == "level" and case.bias is None else 0
    allowed["o and its rest"] = allowed["o"] - of_exponentials + unit**2 * (abs(o) + allowed["o"]) + least
    of_dp = cut(case.head_dim, dtype) * of_weight * (abs(d_o) @ abs(v).swapaxes(2, 3)) + 2.0**-23 * abs(dp)
    of_ds = slope * p * ((of_p + of_slope) * abs(dp - delta) + of_dp)
    of_ds = np.where(kept, of_ds, 0) + (unit**case.ds_parts + sums) * abs(ds) + least * (p > 0)
    allowed["dq"] = scale * (of_ds @ abs(k))
    per_row = unit + of_p + cut(case.q_rows * case.group, dtype)
    of_ds += cut(case.q_rows * case.group, dtype) * abs(ds)
    dk, allowed["dk"] = (scale * x.swapaxes(2, 3) @ y for x, y in ((ds, q), (of_ds, abs(q))))
    dv = dropped.swapaxes(2, 3) @ d_o
    allowed["dv"] = (dropped * per_row + of_weight * least * (p > 0)).swapaxes(2, 3) @ abs(d_o)
    allowed["ds"] = of_ds + (unit * abs(ds) + least if not case.ds_is_f32 else 0)
    values = {
        "largest": np.where(has_columns, most, 0)[..., 0],
        "ds": ds,
        "o": o,
        "o and its rest": o,
        "lse": lse[..., 0],
        "delta": delta[..., 0],
        "dq": scale * ds @ k,
    }

    def of_group(x: np.ndarray) -> np.ndarray:
        return x.reshape(case.batch, case.kv_heads, case.group, case.kv_rows, case.head_dim).sum(axis=2)

    values |= {"total": total[..., 0], "is_nan": np.isnan(p).any(axis=3)}
    values |= {"dk": of_group(dk), "dv": of_group(dv)}
    allowed |= {name: of_group(allowed[name]) for name in ("dk", "dv")}
    of_result = F32_UNIT if dtype == "tf32" else unit
    for name in ("o", "dq", "dk", "dv"):  # rounded once more
        allowed[name] += of_result * (abs(values[name]) + allowed[name]) + least
    return Reference(values, allowed)


def joined_lse(lse: np.ndarray) -> np.ndarray:
    """The logarithm of a row's sum, of the two arrays that calls with a bias have; of no column -inf."""
    largest, log_sum = lse
    return np.where(np.isposinf(log_sum) | np.isnan(log_sum), -np.inf, largest + np.where(log_sum < np.inf, log_sum, 0))


def apart_lse(wanted: Reference) -> np.ndarray:
    """The two arrays: of a row without a column 0 and inf, of one that is NaN 0 and NaN."""
    largest, total = wanted.values["largest"], wanted.values["total"]
    with np.errstate(divide="ignore"):
        log_sum = np.where(total > 0, np.log(total), np.inf)
    return np.stack([largest, np.where(wanted.values["is_nan"], np.nan, log_sum)]).astype(np.float32)


def compare(name: str, found: np.ndarray, wanted: Reference, message: str) -> None:
    exact, allowed = wanted.values[name], wanted.allowed[name]
    assert found.shape == exact.shape, message
    with np.errstate(invalid="ignore"):
        error = np.where((found == exact) | (np.isnan(found) & np.isnan(exact)), 0, abs(found - exact))
    wrong = (error != 0) & ~(error <= allowed)  # so is NaN
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0])
        raise AssertionError(
            f"{message}: {wrong.sum()} of {wrong.size} elements of {name} are wrong, first {where}: {found[where]} "
            f"instead of {exact[where]}, off by {error[where]} of {allowed[where]}"
        )


def check(config: Any, case: Case, interpret: InterpretParams | None) -> None:
    """One call of a config on the case's arrays. interpret: None on a GPU."""
    ffi.register("cuda" if interpret is None else "cpu")
    case = of_f32(case) if config.dtype == "tf32" else case
    arrays = draw(case, config.dtype)
    wanted = reference(case, config.dtype, arrays)
    dims_q, dims_k = case.dims
    dims_o = case.dims_o or dims_q
    dims: dict[str, Any] = dict(dims_q=dims_q, dims_k=dims_k, dims_v=dims_k, dims_o=case.dims_o)
    options = dims | dict(config=config, scale=case.scale, cap=case.cap, diagonal=case.diagonal, interpret=interpret)
    q, d_o = in_order(arrays["q"], dims_q), in_order(arrays["d_o"], dims_o)
    k, v = (in_order(arrays[name], dims_k) for name in "kv")
    message = f"{config.name} {case} {interpret}"
    mask = None
    if case.mask is not None:
        mask = letters_first(draw_mask(case), case.mask)
        options |= dict(dims_mask=case.mask, mask_is_infinite=case.mask_is_infinite)
    bias = None
    if case.bias is not None:
        bias = letters_first(draw_bias(case, config.dtype), case.bias)
        options |= dict(dims_bias=case.bias)
    kept = None if case.dropout is None else letters_first(draw_dropout(case), case.dropout)

    def more(kept: Any) -> dict[str, Any]:
        return {} if kept is None else {"dropout": Dropout(kept, case.dropout or "", FACTOR)}

    if config.kernel == "sm90_attention":
        options |= dict(with_rest=case.with_rest)
        run = jax.jit(lambda *arrays, kept, **others: run_attention(*arrays, **others, **more(kept), **options))
        o, lse, *rest = run(q, k, v, mask=mask, bias=bias, kept=kept)
        assert len(rest) == case.with_rest
        assert {x.dtype for x in (o, *rest)} == {q.dtype}
        assert lse.dtype == np.float32
        compare("o", back(o, dims_o), wanted, message)
        for x in rest:
            compare("o and its rest", back(o, dims_o) + back(x, dims_o), wanted, message)
        if case.bias is not None:
            lse = joined_lse(np.asarray(lse))
        compare("lse", np.asarray(lse).astype(np.float64), wanted, message)
        return
    lse, delta = (wanted.values[name].astype(np.float32) for name in ("lse", "delta"))
    options |= dict(ds_parts=case.ds_parts)
    if case.bias is not None:
        lse = apart_lse(wanted)
        of_ds = None if case.ds_is_f32 is None else np.float32 if case.ds_is_f32 else q.dtype
        options |= dict(ds_dtype=of_ds)
    options |= dict(mask_has_gradients=case.mask_has_gradients)
    run = jax.jit(lambda *arrays, kept, **others: run_attention_grad(*arrays, **others, **more(kept), **options))
    found = run(q, k, v, d_o, lse, delta, mask=mask, bias=bias, kept=kept)
    if case.bias is not None and case.ds_is_f32 is not None:
        *found, ds = found
        assert ds.dtype == of_ds
        compare("ds", np.asarray(ds).astype(np.float64), wanted, message)
    for name, x, of, x_dims in zip(("dq", "dk", "dv"), found, (q, k, v), (dims_q, dims_k, dims_k), strict=True):
        assert x.dtype == of.dtype
        compare(name, back(x, x_dims), wanted, message)
