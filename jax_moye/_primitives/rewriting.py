"""Rewrites a jaxpr: its products, with what stands behind them, become equations of ours.

Equations are replaced, nothing else is touched, so that names, sources, effects and loops stay what they are.
chains.py says what a product takes in; a product of groups becomes grouped_p, or with its gate what
grouped_rewritten.py says, and where its rows lie elsewhere what grouped_rows.py says. dequantizing.py finds products by
weights of 8 and 4 bits. Before that, needed_parts.py makes products of which a part is read smaller, calls.py opens
calls that stand between a product and what it takes in, residuals.py says what a loop need not stack for its
derivative, and hoisted_products.py which products stand outside of a loop; behind it views.py says which operands are
read as parts of larger arrays, and attention_joined.py which gradients of attention are written as such. Attention
comes first: attention_finding.py takes its products, also of two loops together (scan_pairs.py), where a checkpoint
saves a part (attention_saved.py), and where a body is given the mask (known_constants.py, small_masks.py). Four are
about what is in memory, whoever computes it:
relu_masks.py lets relu's derivative read its result, one_hot.py keeps the derivative of a loss by labels out of it, and
at the end recomputed.py what an activation and its derivative have in common, and empty_stacks.py the zeros that a
scan's stacks begin with. Last, column_sums.py keeps sums of columns apart from what XLA would compute beside them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from jax_moye._primitives.attention_across_calls import with_parts_together
from jax_moye._primitives.attention_finding import with_attention
from jax_moye._primitives.attention_joined import with_joined_gradients
from jax_moye._primitives.attention_saved import with_saved_attention
from jax_moye._primitives.calls import Group, with_calls_opened, with_products_opened
from jax_moye._primitives.chains import chain_from
from jax_moye._primitives.column_sums import with_sums_apart
from jax_moye._primitives.dequantizing import dequantized_from, without_unread
from jax_moye._primitives.empty_stacks import with_empty_stacks
from jax_moye._primitives.equations import CLOSED_CALL
from jax_moye._primitives.grouped_rewritten import as_grouped, grouped_pair_from
from jax_moye._primitives.grouped_rows import with_rows_in_place
from jax_moye._primitives.hoisted_products import with_hoisted_products
from jax_moye._primitives.known_constants import Constants, of_arrays, with_known
from jax_moye._primitives.needed_parts import with_needed_parts
from jax_moye._primitives.one_hot import with_choices
from jax_moye._primitives.overwriting import borrowed_by
from jax_moye._primitives.pairs import cotangents_from, ordered, pair_from
from jax_moye._primitives.patterns import Program
from jax_moye._primitives.recomputed import with_recomputed
from jax_moye._primitives.relu_masks import with_masks_of_results
from jax_moye._primitives.residuals import with_fewer_residuals
from jax_moye._primitives.small_masks import with_small_masks
from jax_moye._primitives.views import is_in_memory, with_views

# Equations whose jaxprs are rewritten, and the parameters that hold them; () is all. Of functions with derivatives of
# their own it is what they compute: their rules stay, for who differentiates the result. Pallas kernels are not looked
# into, nor are equations that nobody here has heard of.
_INNER: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("jit", "pjit", CLOSED_CALL, "core_call", "scan", "while", "cond", "checkpoint", "remat", "remat2", "shard_map"),
    (),
) | dict.fromkeys(("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"), ("call_jaxpr", "fun_jaxpr"))


def rewritten(
    closed: ClosedJaxpr,
    parameters: Mapping[str, Any],
    in_loop: bool = False,
    are_in_memory: Sequence[bool] | None = None,
    known: Sequence[JaxprEqn] = (),
    are_borrowed: Sequence[bool] | None = None,
) -> ClosedJaxpr:
    """The same program, rewritten.

    Args:
      closed: a program.
      parameters: of the products: what `Options.parameters` gives.
      in_loop: it is the body of a loop, or in one.
      are_in_memory: which of its inputs are arrays that are written to memory whole, whoever reads them; None: all.
      known: equations that make those of its inputs that are known.
      are_borrowed: which of its inputs somebody reads when it is done; None: of none that is said.
    """
    are_in_memory = are_in_memory or [True] * len(closed.jaxpr.invars)
    known = [*known, *of_arrays(closed)]
    jaxpr = _rewritten(closed.jaxpr, parameters, in_loop, are_in_memory, known=known, are_borrowed=are_borrowed)
    return closed if jaxpr is closed.jaxpr else ClosedJaxpr(jaxpr, closed.consts)


def _rewritten(
    jaxpr: Jaxpr,
    parameters: Mapping[str, Any],
    in_loop: bool,
    are_in_memory: Sequence[bool],
    has_attention: bool = True,
    known: Sequence[JaxprEqn] = (),
    are_borrowed: Sequence[bool] | None = None,
) -> Jaxpr:
    jaxpr = with_masks_of_results(with_choices(with_needed_parts(jaxpr)))
    opened = with_rows_in_place(_opened(jaxpr, parameters, in_loop, has_attention, known), parameters)
    given = {*opened.constvars, *(x for x, is_in in zip(opened.invars, are_in_memory, strict=True) if is_in)}
    borrowed = {*opened.constvars, *(x for x, is_so in zip(opened.invars, are_borrowed or (), strict=False) if is_so)}
    before = Program(opened.eqns, opened.outvars, in_loop, borrowed)
    constants = Constants(Program([*known, *opened.eqns], opened.outvars))
    equations = [
        _with_inner(before, index, parameters, in_loop, [is_in_memory(before, x, given) for x in one.invars], constants)
        for index, one in enumerate(opened.eqns)
    ]
    program = Program(equations, opened.outvars, in_loop, borrowed)
    chosen = _chosen(program, parameters)
    gone = program.taken - chosen.replaced.keys()
    new = [
        one
        for index, equation in enumerate(equations)
        if index not in gone
        for one in (*chosen.in_front.get(index, ()), chosen.replaced.get(index, equation))
    ]
    if all(one is other for one, other in zip(new, jaxpr.eqns, strict=False)) and len(new) == len(jaxpr.eqns):
        return _finished(jaxpr, given)
    new = ordered(new)
    new = without_unread(new, opened.outvars, program) if chosen.are_some_dequantized else new
    return _finished(opened.replace(eqns=new), given)


def _finished(jaxpr: Jaxpr, given: Collection[Any]) -> Jaxpr:
    """With what does not ask for products, of a program whose inputs `given` are in memory."""
    return with_sums_apart(with_empty_stacks(with_joined_gradients(with_views(with_recomputed(jaxpr), given))))


def _opened(
    jaxpr: Jaxpr, parameters: Mapping[str, Any], in_loop: bool, has_attention: bool, known: Sequence[JaxprEqn]
) -> Jaxpr:
    """With attention, without borders that hide a product from what it takes in, and with less in loops."""

    def found(one: Jaxpr, in_loop: bool) -> Jaxpr:
        def as_it_was(one: Jaxpr) -> Jaxpr:  # of attention that no kernel computes
            return _rewritten(one, parameters, in_loop, [False] * len(one.invars), has_attention=False)

        return with_saved_attention(one, lambda program: with_attention(program, parameters, as_it_was))

    def of_two_loops(one: Jaxpr) -> Jaxpr:
        return with_fewer_residuals(found(one, True), of_two_loops)

    def here(one: Jaxpr) -> Jaxpr:
        return with_known(one, known, lambda inside: found(inside, in_loop))

    jaxpr = with_small_masks(jaxpr) if has_attention else jaxpr
    closed = here(with_parts_together(jaxpr, here, with_products_opened)) if has_attention else jaxpr
    opened = with_calls_opened(closed, lambda program: _chosen(program, parameters).groups, in_loop)
    # A call may have become its equations for a sum behind its attention.
    opened = here(opened) if has_attention and opened is not closed else opened
    of_pairs = of_two_loops if has_attention else None
    fewer = with_known(opened, known, lambda one: with_fewer_residuals(one, of_pairs))
    return with_hoisted_products(fewer)


@dataclasses.dataclass
class _Chosen:
    """What becomes of a program's products.

    Attributes:
      replaced: by index of an equation, the one in its place.
      in_front: likewise, what stands in front of that one.
      groups: the equations that become one.
      are_some_dequantized: whether there are products by dequantized weights.
    """

    replaced: dict[int, JaxprEqn] = dataclasses.field(default_factory=dict)
    in_front: dict[int, list[JaxprEqn]] = dataclasses.field(default_factory=dict)
    groups: list[Group] = dataclasses.field(default_factory=list)
    are_some_dequantized: bool = False


def _chosen(program: Program, parameters: Mapping[str, Any]) -> _Chosen:
    """What becomes of a program's products; the program knows then what is taken."""
    chosen = _Chosen()
    replaced, equations = chosen.replaced, program.equations
    for index in range(len(equations)):  # only those that a kernel of weights computes, and that is all of them
        dequantized = dequantized_from(program, index, parameters)
        if dequantized is not None:
            program.taken.update(dequantized.members)
            chosen.groups.append(Group(frozenset(dequantized.members)))
            replaced[dequantized.place] = dequantized.equation(program)
    chosen.are_some_dequantized = bool(replaced)
    for index in range(len(equations)):  # before something else is made of one of the two products
        pair = pair_from(program, index, parameters) or grouped_pair_from(program, index, parameters)
        if pair is not None:
            program.taken.update(pair.members)
            program.keep(*[pair.first.value, pair.second.value] * pair.keeps)
            chosen.groups.append(Group(frozenset((*pair.members, *pair.inside))))
            *chosen.in_front[pair.first.product], replaced[pair.first.product] = pair.equations(program)
    for index, equation in enumerate(equations):
        if equation.primitive.name == "ragged_dot_general" and index not in program.taken:
            replaced[index] = as_grouped(equation, parameters)
        both = cotangents_from(program, index, parameters)
        if both is not None:
            program.taken.update(both.members)
            program.keep(both.d_gate, both.d_up)
            chosen.groups.append(Group(frozenset(both.members), both.beside(program)))
            replaced[both.place] = both.equation(program)
            continue
        chain = chain_from(program, index, parameters)
        if chain is not None:
            program.taken.update(chain.members)
            program.keep(chain.value, *[chain.kept] * (chain.kept is not None))
            chosen.groups.append(Group(frozenset((*chain.members, *chain.shared)), chain.beside(program)))
            replaced[chain.place] = chain.equation(program)
            for other, changed in chain.others(program).items():
                program.taken.add(other)
                replaced |= {} if changed is None else {other: changed}
    return chosen


def _with_inner(
    program: Program,
    index: int,
    parameters: Mapping[str, Any],
    in_loop: bool,
    are_in_memory: Sequence[bool],
    constants: Constants,
) -> JaxprEqn:
    """An equation of a program, whose own jaxprs are rewritten."""
    equation = program.equations[index]
    if equation.primitive.name not in _INNER:
        return equation
    is_loop = equation.primitive.name in ("scan", "while")
    in_loop = in_loop or is_loop

    def given(jaxpr: Jaxpr) -> Sequence[bool]:
        # What a loop is given XLA copies, the parts alone where nobody else reads more. cond has an index in front.
        count = len(jaxpr.invars)
        return [False] * count if is_loop or count > len(are_in_memory) else are_in_memory[len(are_in_memory) - count :]

    def of(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            known = constants.of_body(equation, value.jaxpr)
            borrowed = borrowed_by(program, index, value)
            return rewritten(value, parameters, in_loop, given(value.jaxpr), known, borrowed)
        if isinstance(value, Jaxpr):
            known, borrowed = constants.of_body(equation, value), borrowed_by(program, index, value)
            return _rewritten(value, parameters, in_loop, given(value), known=known, are_borrowed=borrowed)
        if isinstance(value, tuple) and any(isinstance(one, (ClosedJaxpr, Jaxpr)) for one in value):
            new = tuple(map(of, value))
            return value if all(one is other for one, other in zip(new, value, strict=True)) else new
        return value

    bodies = _INNER[equation.primitive.name] or equation.params
    params = {name: of(value) if name in bodies else value for name, value in equation.params.items()}
    if all(params[name] is value for name, value in equation.params.items()):
        return equation
    return equation.replace(params=params)
