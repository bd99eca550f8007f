"""Programs of attention that are drawn at random, which run in their own types and in float64.

    drawn = draw(seed)      drawn.fun(drawn.types), drawn.args

What is drawn: how the softmax is written, the mask and how it is applied, where the scale stands, the order of
dimensions, groups of queries, types, where q, k and v come from, and what is around it all: calls, checkpoints, vmap,
scans, derivatives.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from python.spelled_attentions import APPLIED, LEAST, MASKS, SURE, Spelling, Types, attention, given_of

DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
# How often each is drawn.
OF_DTYPES = {"bf16": 6, "f16": 3, "f32": 0.5}
OF_BATCHES = {"batch": 6, "mapped": 2, "none": 1, "mapped queries": 0.7}
OF_SOURCES = {"arrays": 5, "split": 1.5, "slices": 1, "index": 1, "projected": 2, "scanned": 1.5}
OF_SOURCES |= {"same": 0.4, "k is v": 0.4, "twice": 0.8}
OF_GROUPS = {"repeat": 1, "broadcast": 1, "reshape": 2}
OF_SOFTMAX = {"jax": 5, "where": 0.7, "by hand": 2, "stopped": 2, "exp2": 0.7, "no maximum": 0.5, "logsumexp": 1}
OF_SOFTMAX |= {"log_softmax": 1, "clamped": 0.4, "one more": 0.4}
OF_SCALES = {"after": 5, "divided": 2, "queries": 2, "keys": 0.5, "both": 0.5, "behind": 1, "divided behind": 0.5}
OF_SCALES |= {"array": 1, "none": 0.5}
OF_SCORES = {"converted": 5, "preferred": 3, "narrow": 2}
OF_CALLS = {"none": 3, "jit": 1, "checkpoint": 1, "saved": 0.5, "checkpoint in jit": 0.7, "branch": 0.5}
OF_TRANSFORMS = {"value": 2, "grad": 2, "vjp": 4, "value and grad": 2, "jvp": 0.7, "hvp": 0.2, "mapped grad": 1}
DROPPED = ("dropout", "dropped pairs")
AROUND: dict[str, Callable[..., Any]] = {
    "none": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "saved": functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
    "checkpoint in jit": lambda f: jax.jit(jax.checkpoint(f)),
    "branch": lambda f: lambda *x: lax.cond(x[0].sum() < np.inf, f, f, *x),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is drawn.

    Attributes:
      spelling: of the attention.
      sizes: by letter.
      dtype: of q, k and v.
      batch: "batch" in the letters, "mapped", "mapped queries", whose keys are one, or "none".
      source: where q, k and v come from.
      grouping: how queries share keys.
      calls: a key of `AROUND`.
      transform: which derivative.
    """

    spelling: Spelling
    sizes: dict[str, int]
    dtype: Any
    batch: str
    source: str
    grouping: str
    calls: str
    transform: str

    @property
    def front(self) -> str:
        """The letter of a mapped dimension."""
        return "b" if self.batch.startswith("mapped") else ""

    @property
    def q(self) -> str:
        """The letters of queries of one call, their heads as one dimension."""
        return self.spelling.q.replace("ng", "h")

    @property
    def k(self) -> str:
        """Of keys; n where they have fewer heads."""
        return self.spelling.k if self.grouping == "reshape" else self.spelling.k.replace("h", "n")

    @property
    def gain(self) -> float:
        """A factor of queries whose program has no scale."""
        return self.spelling.head_dim**-0.5 if self.spelling.scale == "none" else 1.0

    @property
    def is_sure(self) -> bool:
        """Whether the search has to find it."""
        one, is_usual = self.spelling, self.dtype in (ml_dtypes.bfloat16, np.float32)
        is_masked_so = one.mask is None or one.applied in ("where", "where not")
        return (
            (is_usual or (self.dtype == np.float16 and (one.scores_in == "converted" or self.transform == "value")))
            and one.softmax in SURE
            and (
                one.extra in (None, "cap")
                or (one.extra == "biases" and (one.mask is None or self.source != "scanned"))
                or (one.extra in DROPPED and one.mask in (None, "causal", "iota", "window"))
            )
            and (one.late, one.shares) == (False, "narrow")
            and one.mask in (None, "causal", "iota", "window", "padding", "lengths", "argument")
            and is_masked_so
            and one.scale in ("after", "divided")
            and self.transform in ("value", "vjp", "grad", "value and grad")
            and self.calls not in ("saved", "branch")
            and self.batch != "mapped queries"  # several of which share keys
        )


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One program.

    Attributes:
      seed: of which it is drawn.
      plan: what was drawn.
      fun: of `Types`, the function.
      args: NumPy's arrays.
    """

    seed: int
    plan: Plan
    fun: Callable[[Types], Callable[..., Any]]
    args: list[np.ndarray]

    @property
    def types(self) -> Types:
        """Its own."""
        return Types(self.plan.dtype)

    def exact_args(self) -> list[np.ndarray]:
        """The arguments, those of floats in float64."""
        return [x.astype(np.float64) if x.dtype in DTYPES.values() else x for x in self.args]


def draw(seed: int, dtype: Any = None, **spelled: Any) -> Drawn:
    """A program.

    Args:
      seed: the same one, the same program.
      dtype: of q, k and v; None: what was drawn.
      **spelled: what its `Spelling` has, whatever was drawn.
    """
    rng = np.random.default_rng(seed)
    plan, given = _plan(rng)
    spelling = dataclasses.replace(plan.spelling, **spelled)
    plan = dataclasses.replace(plan, spelling=spelling, dtype=dtype or plan.dtype)
    floats, make = _SOURCES[plan.source](rng, plan)
    args = [*floats, *given]
    fun, others = _derivative(rng, plan, make, args, len(floats))
    return Drawn(seed, plan, lambda types: lambda *x: fun(types, x[: len(args)], x[len(args) :]), [*args, *others])


# --------------------------------------------------------------------------------------------------------- the choices


def _pick(rng: Any, weights: dict[str, float]) -> str:
    of = np.array(list(weights.values()))
    return list(weights)[rng.choice(len(weights), p=of / of.sum())]


def _plan(rng: Any) -> tuple[Plan, list[np.ndarray]]:
    """What is drawn, and what the program is given of a mask."""
    b, n = int(rng.integers(1, 3)), int(rng.integers(1, 3))
    group = int(rng.choice([1, 1, 2, 3]))
    h, d = n * group, int(rng.choice([8, 16, 24, 16]))
    t = int(rng.integers(2, 20))
    s = t if rng.random() < 0.6 else t + int(rng.integers(1, 8))
    dtype = DTYPES[_pick(rng, OF_DTYPES)]
    of_batch = _pick(rng, OF_BATCHES)
    source = "arrays" if of_batch == "mapped queries" else _pick(rng, OF_SOURCES)
    grouping = "none" if group == 1 else _pick(rng, OF_GROUPS)
    if source not in ("arrays", "k is v", "twice"):
        s = t
        if source not in ("scanned", "projected"):
            group, h, grouping = 1, n, "none"
    b = 1 if of_batch == "none" else b
    letters = "b" if of_batch == "batch" else ""
    heads = "ng" if grouping == "reshape" else "h"
    of_q, scores = _orders(rng, letters, heads, source)
    mask = None if rng.random() < 0.2 else str(rng.choice(list(MASKS)))
    if of_batch == "mapped queries" and mask is not None and "b" in MASKS[mask][0]:
        mask = "iota"
    one = _spelling(rng, of_q, scores, mask, d)
    sizes = {"b": b, "q": t, "k": s, "h": h, "n": n, "g": group, "d": d}
    in_place = one.applied in ("where", "where not") and one.softmax not in ("where", "no maximum", "one more")
    least = 0 if in_place and not one.late and rng.random() < 0.3 else 1
    given = None if mask is None else given_of(rng, mask, b, h, t, s, least)
    given = given if given is None or of_batch != "none" or mask == "of one" else given[0]
    calls, transform = _pick(rng, OF_CALLS), _pick(rng, OF_TRANSFORMS)
    transform = "grad" if transform == "mapped grad" and of_batch.startswith("mapped") else transform
    plan = Plan(one, sizes, dtype, of_batch, source, grouping, calls, transform)
    return plan, [] if given is None else [given]


def _orders(rng: Any, letters: str, heads: str, source: str) -> tuple[str, str]:
    """The letters of q and of scores."""
    is_any = source in ("arrays", "k is v", "twice")
    order = [letters, *(["q", heads] if not is_any or rng.permutation(2)[0] == 0 else [heads, "q"]), "d"]
    if source in ("arrays", "twice") and letters and rng.random() < 0.15:
        order[0], order[1] = order[1], order[0]
    orders = (
        (letters, heads, "q", "k"),
        (letters, heads, "k", "q"),
        (letters, "q", heads, "k"),
        (heads, letters, "q", "k"),
    )
    return "".join(order), "".join(orders[rng.choice(4, p=[0.7, 0.1, 0.1, 0.1])])


def _spelling(rng: Any, q: str, scores: str, mask: str | None, head_dim: int) -> Spelling:
    softmax = _pick(rng, OF_SOFTMAX)
    softmax = "jax" if softmax == "where" and mask is None else softmax
    extra = (
        None
        if rng.random() < 0.88
        else str(rng.choice(["cap", "bias", "biases", "zeroed", "dropout", "dropped pairs", "shares"]))
    )
    one = Spelling(
        q=q,
        k=q.replace("q", "k").replace("g", ""),
        scores=scores,
        softmax=softmax,
        mask=mask,
        applied=str(rng.choice(APPLIED, p=[0.45, 0.15, 0.2, 0.15, 0.05])),
        low=float(rng.choice([-1e9, -1e30, LEAST, -np.inf, LEAST / 2])),
        scale=_pick(rng, OF_SCALES),
        head_dim=head_dim,
        scores_in=_pick(rng, OF_SCORES),
        late=bool(rng.random() < 0.08) and extra is None and softmax != "where",
        shares=_pick(rng, {"narrow": 8, "wide": 1.5}),
        extra=extra,
    )
    if one.low == -np.inf and one.applied in ("multiplied", "both"):  # sums of -inf and -inf, or 0 times it
        one = dataclasses.replace(one, low=-1e30)
    if one.softmax == "no maximum" and one.scores_in == "narrow":
        one = dataclasses.replace(one, scores_in="converted")
    return one


# ------------------------------------------------------------------------------------------- where q, k and v come from

Make = Callable[[Types], Callable[..., Any]]


def _normal(rng: Any, shape: Sequence[int], dtype: Any, factor: float = 1.0) -> np.ndarray:
    return (rng.normal(size=tuple(shape)) * factor).astype(dtype)


def _core(plan: Plan, types: Types) -> Callable[..., Any]:
    """The attention of q, k and v, and of what the mask is given, with what is around it."""
    one, sizes = plan.spelling, plan.sizes
    has_groups = "g" in one.q
    k = one.k.replace("n", "h") if plan.grouping in ("repeat", "broadcast") else one.k
    at = plan.q.index("h")

    def flat(x: Any) -> Any:
        return x.reshape(*x.shape[:at], -1, *x.shape[at + 2 :])

    def of_arrays(q: Any, keys: Any, values: Any, *given: Any) -> Any:
        if has_groups:
            q = q.reshape(*q.shape[:at], sizes["n"], sizes["g"], *q.shape[at + 1 :])
        if plan.grouping in ("repeat", "broadcast"):
            keys, values = (_repeated(x, plan.k.index("n"), sizes["g"], plan.grouping) for x in (keys, values))
        out = attention(dataclasses.replace(one, k=k), types, q, keys, values, *(given or (None,)))
        if not has_groups:
            return out
        return (flat(out[0]), out[1]) if isinstance(out, tuple) else flat(out)

    inner = AROUND[plan.calls](of_arrays)
    if not plan.front:
        return inner
    of_keys = 0 if plan.batch == "mapped" else None
    of_mask = 0 if one.mask is not None and "b" in MASKS[one.mask][0] else None

    def mapped(*args: Any) -> Any:
        return jax.vmap(inner, in_axes=(0, of_keys, of_keys, *[of_mask] * (len(args) - 3)))(*args)

    return mapped


def _repeated(x: Any, axis: int, times: int, how: str) -> Any:
    if how == "repeat":
        return jnp.repeat(x, times, axis=axis)
    wide = jnp.broadcast_to(jnp.expand_dims(x, axis + 1), (*x.shape[: axis + 1], times, *x.shape[axis + 1 :]))
    return wide.reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])


def _shapes(plan: Plan) -> tuple[list[int], list[int]]:
    of_keys = plan.front if plan.batch == "mapped" else ""
    return [plan.sizes[x] for x in plan.front + plan.q], [plan.sizes[x] for x in of_keys + plan.k]


def _of_arrays(rng: Any, plan: Plan) -> tuple[list[np.ndarray], Make]:
    """Queries, keys and values, of which some are one array, or which two attentions read."""
    q, k = _shapes(plan)
    shapes = {"same": [q], "k is v": [q, k]}.get(plan.source, [q, k, k])
    floats = [_normal(rng, shape, plan.dtype, plan.gain if i == 0 else 1.0) for i, shape in enumerate(shapes)]

    def make(types: Types) -> Callable[..., Any]:
        def fun(*args: Any) -> Any:
            given, behind = args[: len(shapes)], args[len(shapes) :]
            core = _core(plan, types)
            q, k, v = {1: given * 3, 2: (*given, given[-1])}.get(len(given), given)
            if plan.source != "twice":
                return core(q, k, v, *behind)
            first, *rest = jax.tree.leaves(core(q, k, v, *behind))
            return first + jax.tree.leaves(core(first + q, k, v, *behind))[0], *rest

        return fun

    return floats, make


def _of_parts(rng: Any, plan: Plan) -> tuple[list[np.ndarray], Make]:
    """One array, of which q, k and v are parts."""
    (shape, _), d = _shapes(plan), plan.sizes["d"]
    at = len(shape) - 2
    of_all = [*shape[:at], 3, *shape[at:]] if plan.source == "index" else [*shape[:-1], 3 * d]

    def parts(x: Any) -> Any:
        if plan.source == "split":
            return jnp.split(x, 3, axis=-1)
        if plan.source == "slices":
            return [x[..., i * d : i * d + d] for i in range(3)]
        return [lax.index_in_dim(x, i, at, keepdims=False) for i in range(3)]

    return [
        _normal(rng, of_all, plan.dtype, plan.gain**0.5)
    ], lambda types: lambda x, *given: _core(plan, types)(*parts(x), *given)


def _of_layers(rng: Any, plan: Plan) -> tuple[list[np.ndarray], Make]:
    """Residual layers of x, whose last dimension is that of all heads: one, or two in a scan."""
    h, n, d = (plan.sizes[x] for x in "hnd")
    width, of_keys = h * d, n * d if "n" in plan.k else h * d
    order, of_q = (plan.front + plan.q).replace("h", "").replace("d", ""), plan.front + plan.q
    layers, at, heads = [2] * (plan.source == "scanned"), of_q.index("h"), len(order)
    shapes = [(width, width), (width, of_keys), (width, of_keys), (width, width)]
    factors = [plan.gain, 1.0, 1.0, 1.0]
    weights = [
        _normal(rng, [*layers, *shape], plan.dtype, width**-0.5 * factor)
        for shape, factor in zip(shapes, factors, strict=True)
    ]

    def block(types: Types, x: Any, of: Any, given: Any) -> Any:
        parts = ((x @ w).reshape(*x.shape[:-1], -1, d) for w in of[:3])
        out, *rest = jax.tree.leaves(_core(plan, types)(*(jnp.moveaxis(y, heads, at) for y in parts), *given))
        return x + jnp.moveaxis(out, at, heads).reshape(x.shape) @ of[3], *rest

    def make(types: Types) -> Callable[..., Any]:
        def fun(x: Any, *args: Any) -> Any:
            of, given = args[:4], args[4:]
            if not layers:
                return block(types, x, of, given)
            return lax.scan(lambda x, of: (block(types, x, of, given)[0], None), x, of)[0]

        return fun

    return [_normal(rng, [*(plan.sizes[x] for x in order), width], plan.dtype), *weights], make


_SOURCES = {name: _of_arrays for name in ("arrays", "same", "k is v", "twice")}
_SOURCES |= {name: _of_parts for name in ("split", "slices", "index")}
_SOURCES |= {name: _of_layers for name in ("projected", "scanned")}

# ---------------------------------------------------------------------------------------------------------- derivatives


def _derivative(
    rng: Any, plan: Plan, make: Make, args: Sequence[np.ndarray], count: int
) -> tuple[Callable[..., Any], list[np.ndarray]]:
    """The derivative by the first arguments: a function of types, the program's arguments and others; and those."""
    outs = jax.tree.leaves(jax.eval_shape(make(Types(plan.dtype)), *args))
    is_loss = plan.transform in ("grad", "value and grad", "hvp", "mapped grad")
    # Of a loss they are the weights of squares, all positive: its value is no difference of large numbers.
    of_outs = [rng.uniform(0.5, 1.5, x.shape) if is_loss else rng.normal(size=x.shape) for x in outs]
    cotangents = [x.astype(out.dtype) for x, out in zip(of_outs, outs, strict=True)]
    tangents = [_normal(rng, x.shape, x.dtype) for x in args[:count]]

    def fun(types: Types, args: Any, others: Any) -> Any:
        forward, first, behind = make(types), args[:count], args[count:]
        of_first = lambda *x: forward(*x, *behind)  # noqa: E731

        def loss(*x: Any) -> Any:
            squares = (y.astype(types.wide) ** 2 for y in jax.tree.leaves(of_first(*x)))
            return sum(jnp.sum(y * w.astype(types.wide)) for y, w in zip(squares, others, strict=True))

        gradient = jax.grad(loss, tuple(range(count)))
        if plan.transform == "value":
            return of_first(*first)
        if plan.transform == "vjp":
            out, pullback = jax.vjp(of_first, *first)
            return out, pullback(jax.tree.unflatten(jax.tree.structure(out), others))
        if plan.transform == "jvp":
            return jax.jvp(of_first, first, others)
        if plan.transform == "grad":
            return gradient(*first)
        if plan.transform == "value and grad":
            return jax.value_and_grad(loss, tuple(range(count)))(*first)
        if plan.transform == "mapped grad":  # of two examples, with one mask
            return jax.vmap(gradient)(*(jnp.stack([x, x[::-1]]) for x in first))
        of_one = jax.grad(lambda x: loss(x, *first[1:]))
        return jax.jvp(of_one, first[:1], (jnp.ones_like(first[0]),))

    return fun, {"value": [], "jvp": tangents}.get(plan.transform, cotangents)
