"""Finds attention in a jaxpr, and its derivative, and replaces it by equations of attention_p and attention_grad_p.

    softmax(scale * q k^T + bias + mask) v scores of 16 bits or f32, a softmax of either, shares of 16 bits; or all f32
    softmax(cap * tanh(scale / cap * q k^T) + mask) v
    softmax([scale * q k^T, others])       whose shares are taken apart again, those of k multiplied with v

The softmax is over the keys, and masks are booleans, known while the program is traced or not (attention_operand.py).
Dimensions may have any order, and those of a batch any number that a kernel merges; queries may come
in groups, of which each has keys and values. Nothing else may read the scores, nor anything that is made of them: the
equations that do are the forward product, or those of its derivative (attention_search.py), in whichever form JAX's
rules, or a program, write them. What is left as it is: a scale that is not known, a softmax that the program returns.

Shares may have dropout (attention_dropout.py). An array that is added to the scores and is no mask is a bias
(attention_bias.py), of which there may be several, in front of the scale, too (attention_biases.py). It may have a
gradient: the derivative of the scores, which the program sums over what the bias is the same for.

Other scores beside those of the keys are what decoding has: the token's own, beside those of a cache.

Values may have a smaller head_dim than keys (attention_padded.py). Keys and values that are repeated for the queries of
a group are read in front of that, where there are no gradients (attention_repeated.py).

In a body of jax.checkpoint there may be no forward product: then attention_p computes what the derivative needs of it.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from jax_moye import _compat
from jax_moye._log import say_once
from jax_moye._primitives.attention import (
    GRADIENTS,
    AttentionParams,
    Together,
    attention_grad_p,
    attention_p,
    delta_of,
    reference,
    rest_of,
)
from jax_moye._primitives.attention_biases import bias_operand, gradient_of_biases
from jax_moye._primitives.attention_conversions import with_conversions_at_products
from jax_moye._primitives.attention_dropout import by_variables
from jax_moye._primitives.attention_formulas import is_same
from jax_moye._primitives.attention_known import KnownValues
from jax_moye._primitives.attention_labels import Labels
from jax_moye._primitives.attention_lowering import is_for_attention
from jax_moye._primitives.attention_masks import dims_of, parts_of
from jax_moye._primitives.attention_moved import with_factors_at_scores, without_ones
from jax_moye._primitives.attention_operand import (
    KernelMask,
    MadeOperand,
    kernel_mask,
    mask_operand,
    without_means_of_all,
)
from jax_moye._primitives.attention_padded import with_values_padded
from jax_moye._primitives.attention_products import is_exact_in_tf32, is_multiplied_as, is_widening, precision_of
from jax_moye._primitives.attention_repeated import with_keys_once
from jax_moye._primitives.attention_scaled import factors_of
from jax_moye._primitives.attention_search import Search, searches
from jax_moye._primitives.attention_softmax import NotAttentionError
from jax_moye._primitives.pairs import ordered
from jax_moye._primitives.patterns import Program, aval_of
from jax_moye._primitives.rewritten import Original

Rewrite = Callable[[Jaxpr], Jaxpr]
_LARGEST_CAP = 256.0  # times what a kernel's tanh is off, 2^-22: less than 16 bits, or TF32, have of a weight


@dataclasses.dataclass(frozen=True)
class Attention:
    """One that was found.

    Attributes:
      search: that found it.
      members: the indices of its equations.
      results: by name, as of the search: the variable, with the labels of its dimensions. Where a kernel would write
        another type than the product, it is behind the conversion.
      params: of both primitives.
      bias: the operand of floats that are added to the scores; None where there is none.
      mask: that of booleans, likewise.
      kept: that of dropout, likewise.
    """

    search: Search
    members: frozenset[int]
    results: Mapping[str, tuple[Any, Labels]]
    params: AttentionParams
    bias: MadeOperand | None
    mask: MadeOperand | None
    kept: MadeOperand | None

    @property
    def behind(self) -> list[MadeOperand]:
        """The operands behind the arrays that are multiplied."""
        return [one for one in (self.bias, self.mask, self.kept) if one is not None]


def with_attention(jaxpr: Jaxpr, parameters: Mapping[str, Any], rewrite: Rewrite) -> Jaxpr:
    """The same program, whose attentions are equations of ours; the same object if there is none.

    Args:
      jaxpr: a program, without what its calls and loops contain.
      parameters: of a product: what `Options.parameters` gives.
      rewrite: of the equations as they were, for where no kernel computes them.
    """
    if parameters.get("implementation") == "xla":
        return jaxpr
    stay: set[Any] = set()
    start = with_conversions_at_products(without_ones(jaxpr))
    while True:
        moved, scores = with_factors_at_scores(start, stay)
        ready = with_conversions_at_products(moved) if scores else start
        new, left = _with_attention(ready, parameters, rewrite, scores)
        if not left:
            return jaxpr if new is ready else new
        stay |= left  # what is no attention's stays where it is


def _with_attention(
    jaxpr: Jaxpr, parameters: Mapping[str, Any], rewrite: Rewrite, moved: Mapping[Any, Any]
) -> tuple[Jaxpr, set[Any]]:
    """The same program, whose attentions are equations of ours, or the same object; and what should not have moved.

    Args:
      jaxpr: a program whose conversions are at products.
      parameters: of a product.
      rewrite: of the equations as they were.
      moved: of `with_factors_at_scores`.
    """
    widened = {equation.outvars[0] for equation in jaxpr.eqns if is_widening(equation)}
    is_candidate = [_may_be_scores(equation, widened) for equation in jaxpr.eqns]
    if sum(is_candidate) < 2:
        return jaxpr, set(moved.values())
    program = Program(jaxpr.eqns, jaxpr.outvars)
    known = KnownValues(program)
    new: dict[int, list[JaxprEqn]] = {}
    for step in program.flat.steps:
        is_of_program = step.equation is program.equations[step.place]
        if not is_of_program or not is_candidate[step.place] or step.place in program.taken:
            continue
        found = next(_found(program, known, step, parameters), None)
        if found is not None:
            program.taken.update(found.members)
            found = _with_factors(program, known, found)
            for place, equations in _equations(program, found, parameters, rewrite).items():
                new.setdefault(place, []).extend(equations)
    if left := {x for scores, x in moved.items() if program.made_by[scores] not in program.taken}:
        return jaxpr, left
    if not new:
        return jaxpr, set()
    kept = ((i, equation) for i, equation in enumerate(jaxpr.eqns))
    equations = [x for i, equation in kept for x in (*new.get(i, ()), *([] if i in program.taken else [equation]))]
    return jaxpr.replace(eqns=ordered(equations)), set()


def _may_be_scores(equation: Any, widened: Collection[Any]) -> bool:
    """Whether a kernel's product has a product's operands, or what they were before they were converted to f32."""
    if equation.primitive.name != "dot_general" or _compat.asks_for_axes(equation.params["out_sharding"]):
        return False
    avals = [x.aval for x in equation.invars]
    if any(isinstance(x, Literal) for x in equation.invars) or any(map(_compat.has_explicit_axes, avals)):
        return False
    if all(x in widened for x in equation.invars) and is_exact_in_tf32(equation):
        return True
    return is_multiplied_as(equation, avals[0].dtype, None)


def _found(program: Program, known: KnownValues, step: Any, parameters: Mapping[str, Any]) -> Iterator[Attention]:
    """The attention whose scores a product makes."""
    for begin in searches(program, known, step):
        try:
            search = begin()
            search.run()
            found = _whole(program, known, search, parameters)
        except NotAttentionError as error:
            if error.args:
                say_once(logging.INFO, f"an attention is left to the program's equations: {error}")
            continue
        if is_for_attention(found.params, *_shapes(search), search.dtype):
            yield found


def _shapes(search: Search) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(search.q.variable.aval.shape), tuple(search.k.variable.aval.shape)


def _whole(program: Program, known: KnownValues, search: Search, parameters: Mapping[str, Any]) -> Attention:
    """What a search found.

    Raises:
      NotAttentionError: it is not all of an attention, or others read a part of it.
    """
    scores = search.softmax.scores
    ds, behind_ds = gradient_of_biases(program, search)
    search.results |= ds
    has_gradients = any(name in search.results for name in GRADIENTS)
    if scores is None or search.v is None or not search.results or (has_gradients and search.d_o is None):
        raise NotAttentionError
    if search.joined is not None and (
        search.results.keys() != {"o", "shares"} or scores.in_tanh is not None or scores.biases
    ):
        raise NotAttentionError
    if search.joined is not None and search.value_dim != search.sizes["d"]:
        raise NotAttentionError
    if scores.in_tanh is not None and scores.scores > _LARGEST_CAP:
        raise NotAttentionError("the scores have so large a cap that a kernel would be less precise than the program")
    members = {step.place for step in search.steps.values()} - behind_ds
    # What a call computes beside, such as a mask, is computed anew: others that read it are seen below.
    if any(step.equation.effects for place in members for step in program.flat.at[place]):
        raise NotAttentionError
    results: dict[str, tuple[Any, Labels]] = {}
    for name, result in search.results.items():
        if name == "shares":
            (results[name],) = ((variable, result.labels) for variable in program.equations[result.place].outvars)
            continue
        if name == "ds":
            results[name] = result.variable, result.labels
            continue
        variable, labels, tail = _with_tail(program, result.place, result.labels, search.dtype)
        results[name] = variable, labels
        members.update(tail)
    made = {x for place in members for x in program.equations[place].outvars} - {x for x, _ in results.values()}
    members.update(_unread(program, known, made))
    if any(not set(program.readers.get(x, ())) <= members for x in made) or members & program.taken:
        raise NotAttentionError
    told = kernel_mask(search)
    dropout = _dropout(search, told)
    if dropout is not None:
        told = without_means_of_all(search, told)
    have_gradients = told.scores_have_gradients({name: one.cleared for name, one in search.results.items()})
    if have_gradients and scores.in_tanh is not None:
        raise NotAttentionError("a row all of whose scores are masked has a derivative by scores that have a cap")
    bias = bias_operand(program, search, told.row)
    mask = mask_operand(program.flat, told.parts, search) if told.parts else None
    kept = None
    if dropout is not None and search.softmax.kept is not None:
        region = by_variables(program, search.softmax.kept, members)
        kept = mask_operand(program.flat, parts_of(region), search)
    behind = [x for one in (bias, mask, kept) if one is not None for x in one.variables]
    gradients = [x for name, (x, _) in results.items() if name in GRADIENTS]
    for operands, not_of in (((search.q, search.k, search.v), results.values()), ((search.d_o,), ())):
        given = [*(x.variable for x in operands if x is not None), *behind]
        if _depends(program, given, [*gradients, *(x for x, _ in not_of)]):
            raise NotAttentionError
    of_others = () if search.joined is None else (search.joined.operand,)
    read = (x.variable for x in (search.q, search.k, search.v, search.d_o, *of_others) if x is not None)
    if not _are_made(program, [x for x, _ in results.values()], {*read, *behind}):
        raise NotAttentionError("a mask that masks nothing, or all, is made of what the program is given")
    names = {label: "q" if label == told.row else "g" for label in search.rows}

    def renamed(labels: Labels) -> str:
        return "".join(names.get(label, label) for label in labels)

    of_arrays = {"q": search.q, "k": search.k, "v": search.v, "d_o": search.d_o}
    labels_of = {name: renamed(x.labels) for name, x in of_arrays.items() if x is not None}
    labels_of |= {name: renamed(labels) for name, (_, labels) in results.items()}
    labels_of.setdefault("o", labels_of.get("d_o", labels_of["q"]))
    joined, factor = search.joined, None
    if joined is not None:
        labels_of["others"], factor = renamed(joined.operand.labels), scores.scores / joined.factor
    if mask is not None:
        labels_of["mask"] = renamed(mask.labels)
    if kept is not None:
        labels_of["kept"] = renamed(kept.labels)
    if bias is not None:
        labels_of["bias"] = renamed(bias.labels)
    rounds = search.dtype != jnp.float32  # results, to fewer bits than sums have
    params = AttentionParams(
        scale=scores.scale,
        diagonal=told.diagonal,
        labels=tuple(sorted(labels_of.items())),
        options=tuple(parameters.items()),
        others=factor,
        cap=None if scores.in_tanh is None else scores.scores,
        dropout=dropout,
        precision=None if rounds else precision_of(x.equation for x in search.steps.values()),
        ds_parts=search.ds_parts,
        has_rest=rounds and search.softmax.is_wide and not {"dq", "dk", "ds"}.isdisjoint(search.results),
        mask_is_infinite=told.is_infinite,
        means_of_all=told.means_of_all,
        scores_have_gradients=have_gradients,
        ds_dtype=str(results["ds"][0].aval.dtype) if "ds" in results else None,
    )
    return Attention(search, frozenset(members), results, params, bias, mask, kept)


def _dropout(search: Search, told: KernelMask) -> float | None:
    """The factor of weights that dropout keeps; None where there is none.

    Raises:
      NotAttentionError: results have different ones, or no kernel has it.
    """
    first, *others = search.dropouts
    if first is None or any(x is None or not is_same(x, first) for x in others):
        if any(x is not None for x in search.dropouts):
            raise NotAttentionError
        return None
    kept, scores = search.softmax.kept, search.softmax.scores
    if kept is None or scores is None or search.joined is not None:
        raise NotAttentionError
    if scores.in_tanh is not None:
        raise NotAttentionError("weights of scores that have a cap are dropped")
    if not dims_of(kept) <= {*search.batch, *search.rows, "k"}:
        raise NotAttentionError("which weights are dropped is of other scores, too")
    if told.is_infinite and told.clearing is not None:
        raise NotAttentionError("weights are dropped, and a row all of whose scores are masked may be no number")
    return first


def _depends(program: Program, values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether values are made of others, each of which the program makes.

    Args:
      program: where they stand.
      values: that are made.
      others: of which they may be.
    """
    first = min((program.made_by[x] for x in others), default=len(program.equations))
    waiting, seen = list(values), set()
    while waiting:
        x = waiting.pop()
        index = None if isinstance(x, Literal) else program.made_by.get(x)
        if index is None or index < first or index in seen:
            continue
        if any(x is other for other in others):
            return True
        seen.add(index)
        waiting += program.equations[index].invars
    return False


def _are_made(program: Program, values: Sequence[Any], given: Collection[Any]) -> bool:
    """Whether a program makes values of what is given, and of nothing else that it is given itself.

    Args:
      program: where they stand.
      values: that are made.
      given: of which they may be.
    """
    waiting, seen = list(values), {*given}
    while waiting:
        x = waiting.pop()
        if isinstance(x, Literal) or x in seen:
            continue
        if x not in program.made_by:
            return False
        seen.add(x)
        waiting += program.equations[program.made_by[x]].invars
    return True


def _unread(program: Program, known: KnownValues, values: set[Any]) -> set[int]:
    """The equations that are made of values, and whose results nobody reads, or are the same values.

    Args:
      program: where they stand.
      known: of it.
      values: to which those results are added.
    """
    found: set[int] = set()
    waiting = list(values)
    while waiting:
        for index in program.readers.get(waiting.pop(), ()):
            if index in found or index == len(program.equations):
                continue
            if not any(id(step) in known.live for step in program.flat.at.get(index, ())):
                found.add(index)
                values.update(program.equations[index].outvars)
                waiting += program.equations[index].outvars
    return found


def _with_tail(program: Program, place: int, labels: Labels, dtype: Any) -> tuple[Any, Labels, list[int]]:
    """A product's result behind the transposes, and the conversion to a kernel's type, that alone read it.

    Raises:
      NotAttentionError: it is not of that type.
    """
    (variable,), members = program.equations[place].outvars, []
    aval: Any = aval_of(variable)
    while True:
        index = program.only_reader(variable)
        equation: Any = None if index is None else program.equations[index]
        name = None if equation is None else equation.primitive.name
        if index is not None and name == "transpose":
            labels = tuple(labels[axis] for axis in equation.params["permutation"])
        elif (
            index is None
            or name != "convert_element_type"
            or aval.dtype == dtype
            or equation.outvars[0].aval.dtype != dtype
        ):
            break
        (variable,) = equation.outvars
        aval = aval_of(variable)
        members.append(index)
    if aval.dtype != dtype or aval.weak_type or not isinstance(variable, Var):
        raise NotAttentionError
    return variable, labels, members


def _with_factors(program: Program, known: KnownValues, found: Attention) -> Attention:
    """The same, whose scale has the numbers that its queries and keys are multiplied by in front of it."""
    search, results = found.search, found.results
    if search.joined is not None:  # whose scores are scaled likewise
        return found
    operands = {"q": search.q.variable, "k": search.k.variable}
    of_results = {name: x for name, (x, _) in results.items()}
    factors = factors_of(program, known, operands, of_results, found.members)
    program.taken.update(factors.members)
    for name, x in factors.operands.items():
        setattr(search, name, getattr(search, name)._replace(variable=x))
    results = {name: (factors.results.get(name, x), labels) for name, (x, labels) in results.items()}
    params = dataclasses.replace(found.params, scale=found.params.scale * factors.factor)
    return dataclasses.replace(found, results=results, params=params)


# -------------------------------------------------------------------------------------------------- the new equations


def _equations(
    program: Program, found: Attention, parameters: Mapping[str, Any], rewrite: Rewrite
) -> dict[int, list[JaxprEqn]]:
    """What stands in the place of an attention, by the index in front of which it stands."""
    search, params = found.search, found.params
    assert search.v is not None
    gradients = [name for name in GRADIENTS if name in found.results]
    of_program = tuple(name for name in ("o", "shares") if name in found.results)
    given = [search.q.variable, search.k.variable, search.v.variable]
    first = program.equations[search.results["o"].place if "o" in found.results else min(found.members)]

    def bound(primitive: Any, operands: Sequence[Any], outs: Sequence[Any], original: Original) -> list[JaxprEqn]:
        names = {"attention": params, "original": original, "results": of_program if outs is of_o else tuple(gradients)}
        names["together"] = together
        of_equation = {"primitive": primitive, "params": names, "effects": frozenset()}
        equation = first.replace(invars=list(operands), outvars=list(outs), **of_equation)
        if search.value_dim == search.sizes["d"]:
            return [equation]
        return with_values_padded(equation, params, search.sizes["d"], _as_equations)

    # The arrays of the bias, the mask and dropout, and behind them what the equations as they were read in their place.
    new: list[JaxprEqn] = []
    behind: list[Any] = []
    for one in found.behind:
        equations, arrays = (
            ([], [one.variables[0]]) if one.made is None else _as_equations(one.made, one.variables, first)
        )
        new, behind = [*new, *equations], [*behind, *arrays]
    behind += [x for one in found.behind if one.made is not None for x in one.variables]
    of_results = [found.results[name][0] for name in (*of_program, *gradients)]
    d_o = None if search.d_o is None or not gradients else search.d_o.variable
    permutation = None
    if d_o is not None and search.value_dim == search.sizes["d"]:  # what is padded is an array of its own
        d_o, permutation = _in_front(program, d_o)
    others = None if search.joined is None else search.joined.operand.variable
    together = None
    # Of what makes a mask nobody knows which values are one.
    if all(one.made is None for one in found.behind if one is not found.bias):
        own = list(dict.fromkeys(x for one in found.behind for x in one.variables)) if new else behind
        all_given = [*given, *(x for x in (d_o, others) if x is not None), *own]
        whole = _original(program, all_given, of_results, lambda jaxpr: jaxpr)
        together = Together.of(whole, None if d_o is None else d_o.aval, permutation)
        if new:
            of_own = Jaxpr([], own, behind[: len(found.behind)], new, debug_info=_compat.UNNAMED)
            together = together._replace(behind=Original(ClosedJaxpr(of_own, [])))
    if search.joined is not None:
        given.append(search.joined.operand.variable)
        of_o = [found.results[name][0] for name in ("o", "shares")]
        original = _original(program, [*given, *behind], of_o, rewrite)
        return {max(found.members): [*new, *bound(attention_p, [*given, *behind], of_o, original)]}
    o = found.results["o"][0] if "o" in found.results else None
    forward = _with_lse(program, [*given, *behind], o, params, rewrite)
    aval_o, *of_kernel = forward.jaxpr.out_avals
    of_o = [Var(aval_o) if o is None else o, *map(Var, of_kernel)]
    at = min(found.members) if o is None else search.results["o"].place
    at_all = {at: [*new, *bound(attention_p, [*given, *behind], of_o, forward)]}
    if not gradients:
        *before, equation = at_all[at]
        if equation.primitive is attention_p:  # else values are padded
            at_all[at] = [*before, *with_keys_once(program, equation, _in_front, _as_equations)]
        return at_all
    assert search.d_o is not None
    given.append(search.d_o.variable)
    of_delta = [of_o[0], given[3], *of_o[2:]]
    in_f32, (delta,) = _as_equations(functools.partial(delta_of, params=params), of_delta, first)
    results = [found.results[name][0] for name in gradients]
    of_rows = [of_o[1], delta]
    backward = _original(program, [*given, *of_rows, *behind], results, rewrite)
    grad = bound(attention_grad_p, [*given, *of_rows, *behind], results, backward)
    at_all.setdefault(max(found.members), []).extend([*in_f32, *grad])
    return at_all


def _in_front(program: Program, variable: Any) -> tuple[Any, tuple[int, ...] | None]:
    """The array in front of the transposes that make another, and these in one; None where there are none."""
    permutation = None
    while (index := program.made_by.get(variable)) is not None:
        equation = program.equations[index]
        if equation.primitive.name != "transpose":
            break
        (variable,), behind = equation.invars, permutation
        permutation = tuple(equation.params["permutation"])
        permutation = permutation if behind is None else tuple(permutation[axis] for axis in behind)
    return variable, permutation


def _as_equations(fun: Callable[..., Any], operands: Sequence[Any], like: JaxprEqn) -> tuple[list[JaxprEqn], list[Any]]:
    """The equations of a function of variables, and its results."""
    with _compat.lax_itself():
        jaxpr = _compat.jaxpr_of(fun, [x.aval for x in operands])
    names = dict(zip(jaxpr.invars, operands, strict=True))
    equations = []
    for equation in jaxpr.eqns:
        names |= {x: Var(x.aval) for x in equation.outvars}
        invars = [x if isinstance(x, Literal) else names[x] for x in equation.invars]
        outvars = [names[x] for x in equation.outvars]
        equations.append(equation.replace(invars=invars, outvars=outvars, source_info=like.source_info))
    return equations, [names[x] for x in jaxpr.outvars if isinstance(x, Var)]


def _sliced(program: Program, given: Sequence[Any], wanted: Sequence[Any]) -> tuple[list[Any], list[JaxprEqn]]:
    """The equations that make variables of others, which are new ones; and those."""
    inputs = [Var(x.aval) for x in given]
    names: dict[Any, Any] = {}
    for variable, new in zip(given, inputs, strict=True):
        names.setdefault(variable, new)  # one array may be two operands
    indices: set[int] = set()
    waiting = [x for x in wanted if x not in names]
    while waiting:
        x = waiting.pop()
        index = None if isinstance(x, Literal) or x in names else program.made_by[x]
        if index is not None and index not in indices:
            indices.add(index)
            waiting += program.equations[index].invars
    equations = []
    for index in sorted(indices):
        equation = program.equations[index]
        invars = [names.get(x, x) if isinstance(x, Var) else x for x in equation.invars]
        equations.append(equation.replace(invars=invars))
    return inputs, equations


def _original(program: Program, given: Sequence[Any], wanted: Sequence[Any], rewrite: Rewrite) -> Original:
    """The equations that make results, such as gradients with what of the forward ones they need.

    Args:
      program: where they stand.
      given: the operands. No equation reads those that are new.
      wanted: the results.
      rewrite: of the equations.
    """
    inputs, equations = _sliced(program, given, wanted)
    jaxpr = Jaxpr([], inputs, list(wanted), equations, debug_info=_compat.UNNAMED)
    return Original(ClosedJaxpr(rewrite(_compat.without_dead_code(jaxpr, keep_inputs=True)), []))


def _with_lse(program: Program, given: Sequence[Any], o: Any, params: AttentionParams, rewrite: Rewrite) -> Original:
    """The equations that make the result, and, for who differentiates it by a kernel, the logarithms and the rest.

    Args:
      program: where they stand.
      given: q, k and v, and the mask and what it is made of.
      o: the result; None where the program has none.
      params: of the attention.
      rewrite: of the equations.
    """
    inputs, equations = _sliced(program, given, [] if o is None else [o])
    whole = Jaxpr([], inputs, [] if o is None else [o], equations, debug_info=_compat.UNNAMED)
    whole = rewrite(whole)
    like = program.equations[min(program.made_by.values(), default=0)]
    operands = whole.invars[: 3 + params.has_bias + params.has_mask + (params.dropout is not None)]
    dtype = inputs[0].aval.dtype

    def beside(*values: Any) -> tuple[Any, ...]:
        given, of_program = values[: len(operands)], values[len(operands) :]
        in_f32, lse = reference(*given, params=params)
        result = of_program[0] if of_program else in_f32.astype(dtype)
        rest = [rest_of(in_f32, result)] if params.has_rest else []
        return (*([] if of_program else [result]), lse, *rest)

    # What only a kernel's derivative reads is nobody's product: XLA leaves it out where no kernel is.
    added, outs = _as_equations(beside, [*operands, *whole.outvars], like)
    whole = whole.replace(outvars=[*whole.outvars, *outs], eqns=[*whole.eqns, *added])
    return Original(ClosedJaxpr(_compat.without_dead_code(whole, keep_inputs=True), []))
