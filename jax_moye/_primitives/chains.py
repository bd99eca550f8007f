"""A product of a jaxpr and the equations behind it that its kernel can take in, and the equation they become.

Nobody else reads what stands between two of them, unless said. They are in one jaxpr, after calls.py opened the calls
between them. In their order, each once unless said:

    product                        dot_general, or a contract_p that adds nothing
    name, reduce_precision         of checkpoint_name, and to the type that it has: the value stays the same. No reason
                                     to end there
    transpose                      the specification's output is permuted: nothing is moved. Not behind + array
    conversion                     to 16 bits or more. To a wider type only where a sum in it follows
    * number, / power of 2, -      alpha, any number of them: what the program's type holds of the number
    + vector of the last dimension bias; also an array of more, where these are one operand's alone or of the batch, and
                                   behind + array
    relu, gelu, silu               of the sum so far, whoever wrote it, also inside of jit and custom_jvp. Where others
                                     read the sum, too, it is a second result, and the activation's equations stay:
                                     not behind + array
    * derivative at an array       relu', gelu' or silu' at c, and the end: at what is given, or a product of ours
                                     writes, as what an activation is applied to elsewhere, or relu's result
    others of its elements         and numbers alone, more than sums and multiples: a function that a kernel is
                                     compiled with (own_activation.py)
    + array, - array, array -      c with beta 1 or -1, or alpha with the other sign, written over where nobody needs it
                                     any more (overwriting.py); behind a bias or an activation. Not where XLA computes
                                     the array in the sum, or the sum in what reads it (summands.py)
      + number * array               residual, of which there is a sum alone. The number is beta
    ---------------------------------------------------------------------------------------------------------
    a product, transposed, of a narrower type, with c: contract_p. All else: rewritten_p, which is the equations as
    they were wherever no kernel computes them all faster.

A kernel computes in f32 (f64 in f64) and rounds once, at the end; the program rounds at least as often. What stands in
front of a product's operands views.py says.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from jax_moye import _compat
from jax_moye._primitives.contraction import contract_p
from jax_moye._primitives.elementwise import UntranslatableError, translate
from jax_moye._primitives.equations import SUMS, is_elementwise, is_same, opened, operands_of
from jax_moye._primitives.overwriting import is_needed
from jax_moye._primitives.own_activation import equations_behind, name_of
from jax_moye._primitives.patterns import Program, Template, as_number, aval_of, matched, matched_at, possible
from jax_moye._primitives.recomputed import anew
from jax_moye._primitives.reference import canonical_dimensions, spec_of
from jax_moye._primitives.rewritten import Original, rewritten_p
from jax_moye._primitives.summands import (
    MOVES,
    as_bias,
    as_column_and_row,
    as_copy,
    as_multiple,
    has_column_sums,
    is_computed_where_read,
    is_fused_by_xla,
)
from jax_moye._selection.epilogue import (
    ACTIVATIONS,
    DERIVATIVES,
    EPILOGUE_OPERANDS,
    Epilogue,
    OwnActivation,
    stored_dtype,
)
from jax_moye._selection.problem import NotServedError, make_problem, parse_spec

_NAMES = tuple(name for name in ACTIVATIONS if name != "none")


def is_plain_float(aval: Any) -> bool:
    """Whether a result is of floats whose type is known for sure."""
    return jnp.issubdtype(aval.dtype, jnp.floating) and not aval.weak_type


@dataclasses.dataclass(frozen=True)
class Chain:
    """A product, and what stands behind it.

    Attributes:
      product: index of its equation.
      of_product: the parameters of contract_p of the product alone.
      members: indices of all equations.
      spec: of the product, with the order of the result's dimensions.
      value: what the last of them makes.
      alpha: factor of the product.
      beta: factor of c.
      operands: name -> (variable, labels of the result that it has), in the order of an epilogue's.
      activation: a key of ACTIVATIONS, or a function.
      is_wider: some equation converts to a wider type.
      may_end: whether there is something gained by ending here.
      has_name: some equation gives a name, which contract_p would lose: who differentiates the result asks for it.
      kept: what the activation is applied to, where somebody else reads it, too: then it is a second result.
      shared: indices of the activation's equations, which stay where it is kept.
    """

    product: int
    of_product: Mapping[str, Any]
    members: tuple[int, ...]
    spec: str
    value: Any
    alpha: float = 1.0
    beta: float = 0.0
    operands: Mapping[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
    activation: str | OwnActivation = "none"
    is_wider: bool = False
    may_end: bool = True
    has_name: bool = False
    kept: Any = None
    shared: tuple[int, ...] = ()

    @property
    def is_linear(self) -> bool:
        """Whether it is a product times alpha so far."""
        return not self.operands and self.activation == "none"

    def extended(self, members: Sequence[int], value: Any, **changes: Any) -> Chain:
        """With more equations, the last of which makes `value`."""
        return dataclasses.replace(self, members=(*self.members, *members), value=value, **changes)

    def equation(self, program: Program) -> JaxprEqn:
        """What stands in the place of the last of them, which makes the value."""
        product: Any = program.equations[self.product]
        variables = [*product.invars, *(variable for variable, _ in self.operands.values())]
        is_sum = self.activation == "none" and self.alpha == 1 and set(self.operands) <= {"c"}
        is_sum = is_sum and all(labels == parse_spec(self.spec).out for _, labels in self.operands.values())
        if is_sum and not self.is_wider and not self.has_name:
            out_dtype = aval_of(self.value).dtype
            params = dict(self.of_product) | {"spec": self.spec, "out_dtype": out_dtype, "beta": self.beta}
            params |= self._about_c(program, variables)
            of_contract: dict[str, Any] = {"primitive": contract_p, "params": params, "effects": frozenset()}
            return program.equations[self.place].replace(invars=variables, outvars=[self.value], **of_contract)
        named = tuple((name, labels) for name, (_, labels) in self.operands.items())
        is_summed = self.activation in DERIVATIVES and has_column_sums(program, self.value)
        about = {"keeps": self.kept is not None, "is_summed": is_summed}
        epilogue = Epilogue(self.activation, self.alpha, self.beta, named, **about)
        values = [self.value] if self.kept is None else [self.value, self.kept]
        members = *self.members, *self.shared
        equation = rewritten_equation(program, self.place, [self], members, variables, values, epilogue)
        return equation.replace(params=equation.params | self._about_c(program, variables))

    def _about_c(self, program: Program, variables: Sequence[Any]) -> dict[str, Any]:
        """What the equation says, whose operands these are, of a c that it may not be written over."""
        if "c" not in self.operands or self.activation in DERIVATIVES:  # that one no kernel writes over
            return {}
        c = self.operands["c"][0]
        is_loops = program.in_loop and len(program.equations) in program.readers.get(self.value, ())
        # What a loop carries has to end in the carry's memory, where a sum beside its c can be written.
        is_kept = (is_loops and c in program.beside_c) or is_needed(program, c, self.members, variables)
        if is_kept or c in program.beside_c:
            program.beside_c.add(self.value)
        return {"keeps_c": True} if is_kept else {}

    @property
    def place(self) -> int:
        """The index of the equation in whose place it stands."""
        return max(self.members)

    def beside(self, program: Program) -> frozenset[int]:
        """The index of the equation that makes what a derivative is at, if the program makes it."""
        at = self.operands["c"][0] if self.activation in DERIVATIVES else None
        return frozenset() if at is None or at not in program.made_by else frozenset([program.made_by[at]])

    def others(self, program: Program) -> dict[int, JaxprEqn | None]:
        """What else changes, by index: the equation that made the value makes it no more; None: it is gone."""
        if self.kept is None:
            return {}
        index = program.made_by[self.value]
        outvars = program.equations[index].outvars
        left = [Var(x.aval) if x is self.value else x for x in outvars]
        return {index: program.equations[index].replace(outvars=left) if len(left) > 1 else None}


def rewritten_equation(
    program: Program,
    place: int,
    chains: Sequence[Chain],
    members: Sequence[int],
    variables: Sequence[Any],
    values: Sequence[Any],
    epilogue: Epilogue,
    original: Original | None = None,
) -> JaxprEqn:
    """Products of one left operand, and what stands behind them, as one equation of rewritten_p.

    Args:
      program: whose equations they are.
      place: the index of the one in whose place it stands.
      chains: of the products.
      members: the indices of the equations.
      variables: its operands.
      values: its results.
      epilogue: what stands behind the products.
      original: the equations, of the operands; None: they are these.
    """
    params = {name: value for name, value in chains[0].of_product.items() if name not in ("beta", "out_sharding")}
    original = original or original_of(program, chains, members, variables, values)
    if epilogue.is_derivative:  # of what somebody else computes the activation of
        original = Original(anew(original.jaxpr, range(2, len(variables))))
    params |= {
        "spec": chains[0].spec,
        "out_dtype": aval_of(values[0]).dtype,
        "epilogue": epilogue,
        "original": original,
    }
    return program.equations[place].replace(
        invars=list(variables), outvars=list(values), primitive=rewritten_p, params=params, effects=frozenset()
    )


def original_of(
    program: Program, chains: Sequence[Chain], members: Sequence[int], variables: Sequence[Any], values: Sequence[Any]
) -> Original:
    """Equations of a program as one of their own. Their products are equations of contract_p.

    Args:
      program: whose they are.
      chains: of the products.
      members: the indices of the equations. Those that make what they read, and is not given, come to them.
      variables: what is given: the first product's operands, the second one's right one, and what else is read.
      values: what they make.
    """
    inputs = [Var(variable.aval) for variable in variables]
    # The same array may be an operand of a product and of what stands behind it: each reads its own input.
    renamed = {x: new for x, new in zip(variables, inputs, strict=True) if isinstance(x, Var)}
    indices = set(members)
    waiting = list(members)
    while waiting:  # for what makes their operands: numbers that somebody copied for them
        for x in program.equations[waiting.pop()].invars:
            index = None if isinstance(x, Literal) or x in renamed else program.made_by.get(x)
            if index is not None and index not in indices:
                indices.add(index)
                waiting.append(index)
    of_product = {chain.product: chain.of_product for chain in chains}
    equations = []
    for index in sorted(indices):
        equation = program.equations[index]
        invars: list[Any] = [renamed.get(x, x) if isinstance(x, Var) else x for x in equation.invars]
        equation = equation.replace(invars=invars)
        if index in of_product:
            right = 1 if index == chains[0].product else 2
            operands = zip(invars, program.equations[index].invars, (inputs[0], inputs[right]), strict=True)
            equation = equation.replace(
                invars=[given if before in renamed else x for x, before, given in operands],
                primitive=contract_p,
                params=dict(of_product[index]),
            )
        equations.append(equation)
    made = {*inputs, *(x for equation in equations for x in equation.outvars)}
    free = list(dict.fromkeys(x for equation in equations for x in operands_of(equation) if x not in made))
    jaxpr = Jaxpr([], [*inputs, *free], list(values), equations, debug_info=_compat.UNNAMED)
    pulled = (program.equations[index] for index in indices - set(members))
    if free or not all(map(is_elementwise, pulled)):  # a call makes another value beside, as a derivative
        jaxpr = _compat.without_dead_code(opened(jaxpr), keep_inputs=True)
        assert not {x for equation in jaxpr.eqns for x in operands_of(equation)} & set(free)
    return Original(ClosedJaxpr(jaxpr.replace(invars=inputs, debug_info=_compat.UNNAMED), []))


def chain_from(program: Program, index: int, parameters: Mapping[str, Any]) -> Chain | None:
    """The longest chain that begins with an equation; None if that is no product for our kernels, or stays as it is.

    Args:
      program: where it stands.
      index: of the equation.
      parameters: of a product of lax: what `Options.parameters` gives.
    """
    start = _start(program, index, parameters)
    chain = whole = start
    while chain is not None:
        found = (step(program, chain) for step in _STEPS)
        chain = next((longer for longer in found if longer is not None), None)
        is_just_named = chain is not None and chain.has_name and chain.is_linear and chain.alpha == 1
        if chain is not None and chain.may_end and not is_just_named and not _is_xlas_sum(program, chain):
            whole = chain
    if whole is not None and whole.activation == "none" and not {"c", "residual"} & set(whole.operands):
        dtype = aval_of(whole.value).dtype
        activated = next(iter(activations_of(program, whole.value)), None)
        # What is kept of 8 bits kernels would write in more.
        if activated is not None and stored_dtype(dtype) == dtype and _is_array(program, whole.value, activated[2]):
            activation, shared, value = activated
            kept = {"kept": whole.value, "shared": tuple(shared)}
            return dataclasses.replace(whole, value=value, activation=activation, **kept)
    is_ours = program.equations[index].primitive is contract_p
    return None if whole is start and is_ours else whole


def _is_xlas_sum(program: Program, chain: Chain) -> bool:
    added, labels = chain.operands.get("residual") or chain.operands.get("c") or (None, "")
    is_whole = set(labels) == set(parse_spec(chain.spec).out)  # else it is small, as a bias is
    return is_whole and chain.activation not in DERIVATIVES and is_computed_where_read(program, chain.value, added)


def _is_array(program: Program, before: Any, value: Any) -> bool:
    """Whether XLA writes the activation of another value: somebody reads more of it than elements for elements.

    A kernel that writes an activation beside what it is applied to would write one array more than XLA, where the next
    function is computed in XLA's kernel anyway: the square of relu, or a product with another array. What a loop stacks
    XLA would copy.
    """
    return not program.is_stacked(before, value) and program.is_read_whole(value, MOVES)


def linear_chain(program: Program, index: int, parameters: Mapping[str, Any]) -> Chain | None:
    """A product alone, or with the conversion of its result to a narrower type; as `chain_from`."""
    start = _start(program, index, parameters)
    return None if start is None else narrowed(program, start)


def narrowed(program: Program, start: Chain) -> Chain:
    """A product with the conversion of its result to a narrower type, if there is one, and its names."""
    while (longer := _named(program, start) or _converted(program, start)) is not None and not longer.is_wider:
        start = longer
    return start


def activations_of(program: Program, value: Any, taken: bool = False) -> Iterator[tuple[str, list[int], Any]]:
    """Activations of a value, whoever else reads it: names, indices of their equations, and what they make.

    Args:
      program: where they stand.
      value: what they are of.
      taken: as in `matched`.
    """
    for name, template in possible(program, _template, _NAMES, value):
        found = matched(program, value, template, alone=False, taken=taken)
        if found is not None:
            yield name, *found


def derivatives_of(program: Program, value: Any) -> Iterator[tuple[str, Any, list[int], Any]]:
    """Products of a value and an activation's derivative at something that is there anyway.

    Nobody else reads the value. Names of derivatives, what they are at, indices of their equations, and what they make.
    """
    near = list(program.kept_or_given(value))
    for name in DERIVATIVES:
        for at in near:
            for _, template in possible(program, _template, [name], at, value):
                found = matched_at(program, value, at, template)
                if found is not None:
                    yield name, at, *found


def _start(program: Program, index: int, parameters: Mapping[str, Any]) -> Chain | None:
    """A product alone; None if it is none for our kernels."""
    product: Any = program.equations[index]
    is_ours = product.primitive is contract_p
    if index in program.taken or not (is_ours or product.primitive.name == "dot_general"):
        return None
    out, params = product.outvars[0], product.params
    if not isinstance(out, Var) or not is_plain_float(out.aval) or _compat.asks_for_axes(params["out_sharding"]):
        return None
    avals: list[Any] = [x.aval for x in product.invars]
    if any(isinstance(x, Literal) for x in product.invars) or any(map(_compat.has_explicit_axes, avals)):
        return None
    if is_ours:
        is_free = params["beta"] == 0 and params["config"] is None and params["implementation"] != "xla"
        return Chain(index, {**params, "out_sharding": None}, (index,), params["spec"], out) if is_free else None
    spec = spec_of(canonical_dimensions(params["dimension_numbers"]), *(aval.ndim for aval in avals))
    of_product = {"spec": spec, "out_dtype": aval_of(out).dtype, "precision": params["precision"], "config": None}
    of_product |= {"beta": 0.0, "out_sharding": None, **parameters}
    return Chain(index, of_product, (index,), spec, out)


# ----------------------------------------------------------------------------------------------------------- steps


def _reader(program: Program, chain: Chain) -> tuple[int, Any, Any]:
    """The equation that alone reads a chain's value, its index, and its result: of a plain type, or None."""
    index = program.only_reader(chain.value)
    if index is None:
        return -1, None, None
    equation: Any = program.equations[index]
    out = next(iter(equation.outvars), None)  # a callback has none
    return (index, equation, out) if isinstance(out, Var) and is_plain_float(out.aval) else (-1, None, None)


def _named(program: Program, chain: Chain) -> Chain | None:
    """`name`, of which a policy of jax.checkpoint knows what to save, or what it puts behind that: nothing changes."""
    index, equation, out = _reader(program, chain)
    is_name = equation is not None and equation.primitive.name in ("name", "reduce_precision") and is_same(equation)
    return chain.extended([index], out, has_name=True) if is_name else None


def _transposed(program: Program, chain: Chain) -> Chain | None:
    """`transpose`: the kernel writes the result in that order."""
    index, equation, out = _reader(program, chain)
    if equation is None or equation.primitive.name != "transpose" or not set(chain.operands) <= {"bias"}:
        return None
    parsed = parse_spec(chain.spec)
    labels = "".join(parsed.out[i] for i in equation.params["permutation"])
    spec = f"{parsed.lhs},{parsed.rhs}->{labels}"
    operands = program.equations[chain.product].invars
    if _is_for_kernels(chain.spec, operands) and not _is_for_kernels(spec, operands):
        return None
    return chain.extended([index], out, spec=spec)


def _is_for_kernels(spec: str, operands: Sequence[Any]) -> bool:
    """Whether a product is one matrix multiplication, as far as that is known."""
    left, right = (aval_of(x).shape for x in operands)
    if not all(isinstance(size, int) and size > 0 for size in (*left, *right)):
        return True
    try:
        make_problem(spec, left, right, "bf16", "bf16")
    except NotServedError:
        return False
    return True


def _converted(program: Program, chain: Chain) -> Chain | None:
    """`convert_element_type`: the kernel's sums are rounded to the new type at once, or not at all."""
    index, equation, out = _reader(program, chain)
    if equation is None or equation.primitive.name != "convert_element_type" or not chain.is_linear:
        return None
    new, old = out.aval.dtype, chain.value.aval.dtype
    if new.itemsize <= old.itemsize:
        return chain.extended([index], out, may_end=True) if new.itemsize > 1 else None
    is_f32 = new == jnp.float32 and old.itemsize > 1
    # A wider result alone takes more memory to write, and to read, than the conversion costs.
    return chain.extended([index], out, is_wider=True, may_end=False) if is_f32 else None


def _scaled(program: Program, chain: Chain) -> Chain | None:
    """`mul` by a number, `div` by a power of two, `neg`: alpha."""
    index, equation, out = _reader(program, chain)
    if equation is None or not chain.is_linear or out.aval.shape != chain.value.aval.shape:  # numbers are copied, too
        return None
    factor: float | None = -1.0 if equation.primitive.name == "neg" else None
    if equation.primitive.name in ("mul", "div"):
        number = as_number(program, _other(equation, chain.value))
        is_first = equation.invars[0] is chain.value
        if equation.primitive.name == "mul":
            factor = number
        elif number and is_first and abs(math.frexp(number)[0]) == 0.5:
            factor = 1 / number
    alpha = chain.alpha * factor if factor else 0.0
    return chain.extended([index], out, alpha=alpha) if 2.0**-100 < abs(alpha) < 2.0**100 else None


def _other(equation: Any, value: Any) -> Any:
    """The operand of two that is not `value`."""
    left, right = equation.invars
    return right if left is value else left


def _biased(program: Program, chain: Chain) -> Chain | None:
    """`add` of what is the same along some dimensions, or `sub` from it, also behind a sum with another array."""
    index, equation, out = _reader(program, chain)
    is_sum = chain.activation == "none" and set(chain.operands) <= {"c"}
    if equation is None or equation.primitive.name not in SUMS or not is_sum:
        return None
    is_negated = equation.primitive.name == "sub"
    shape = out.aval.shape
    if shape != chain.value.aval.shape or not shape or (is_negated and equation.invars[0] is chain.value):
        return None
    found = as_bias(program, parse_spec(chain.spec), chain.value, _other(equation, chain.value))
    if found is None:
        return None
    vector, labels, members = found
    operands, sign = {**chain.operands, "bias": (vector, labels)}, -1.0 if is_negated else 1.0
    of_sum = {"alpha": sign * chain.alpha, "beta": sign * chain.beta, "operands": operands}
    return chain.extended([index, *members], out, may_end=True, **of_sum)


def _summed(program: Program, chain: Chain) -> Chain | None:
    """`add` or `sub` of an array like the value, which may be the same along some dimensions."""
    index, equation, out = _reader(program, chain)
    if equation is None or equation.primitive.name not in SUMS:
        return None
    other = _other(equation, chain.value)
    if {"c", "residual"} & set(chain.operands) or isinstance(other, Literal):
        return None
    shape = out.aval.shape
    if chain.value.aval.shape != shape or len(other.aval.shape) != len(shape):
        return None
    is_sum = equation.primitive.name != "sub"
    is_minuend = equation.invars[0] is chain.value
    spec = parse_spec(chain.spec)
    variable, labels, members = as_copy(program, spec, chain.value, other) or (other, spec.out, [])
    if other.aval.shape != shape and variable is other and len(labels) == len(shape):  # of one element
        return None
    is_whole = variable is other and other.aval.shape == shape
    both = as_column_and_row(program, spec, chain.value, other) if is_sum or not is_minuend else None
    is_lone = is_whole and (both is None or not chain.is_linear)
    if is_lone and is_fused_by_xla(program, as_multiple(program, other)[0]):
        return None
    if not chain.is_linear:
        residual = {"residual": (variable, labels)}
        return chain.extended([index, *members], out, operands={**chain.operands, **residual}) if is_sum else None
    operands, factor = {"c": (variable, labels)}, 1.0
    if is_whole:
        variable, factor, members = as_multiple(program, other)
        operands = {"c": (variable, labels)}
    if both is not None:
        operands, members = both
    return chain.extended(
        [index, *members],
        out,
        operands=operands,
        alpha=chain.alpha if is_sum or is_minuend else -chain.alpha,
        beta=-factor if is_minuend and not is_sum else factor,
        may_end=True,
    )


def _activated(program: Program, chain: Chain) -> Chain | None:
    """The equations of an activation."""
    if not chain.may_end or chain.activation != "none" or (summed := _with_sum_inside(chain)) is None:
        return None
    for name, template in possible(program, _template, _NAMES, chain.value):
        found = matched(program, chain.value, template)
        if found is not None:
            members, value = found
            return summed.extended(members, value, activation=name)
    return None


def _with_sum_inside(chain: Chain) -> Chain | None:
    """The chain with c in the place of a residual, to which an activation may be applied; None if it has another c."""
    if "residual" not in chain.operands:
        return chain
    if "c" in chain.operands or chain.activation != "none":
        return None
    names = {"residual": "c"}
    operands = {names.get(name, name): operand for name, operand in chain.operands.items()}
    in_order = {name: operands[name] for name in EPILOGUE_OPERANDS if name in operands}
    return dataclasses.replace(chain, operands=in_order, beta=1.0)


def _derived(program: Program, chain: Chain) -> Chain | None:
    """The equations of an activation's derivative, times the value, at something that is there anyway."""
    found = next(derivatives_of(program, chain.value), None) if chain.is_linear else None
    if found is None:
        return None
    name, at, members, value = found
    operands = {"c": (at, parse_spec(chain.spec).out)}
    return chain.extended(members, value, activation=name, operands=operands, beta=1.0)


@functools.lru_cache(maxsize=2048)
def _template(name: str, shape: tuple[int, ...], dtype: Any) -> Template:
    """An activation as JAX writes it; of a derivative (z, t) -> activation'(z) t.

    relu' is 0 at 0, that of jnp.maximum is 1/2, and not found.
    """
    operand = jax.ShapeDtypeStruct(shape, dtype)
    if name in ACTIVATIONS:
        return Template(jax.make_jaxpr(ACTIVATIONS[name])(operand).jaxpr)
    of = ACTIVATIONS[DERIVATIVES[name]]
    jaxpr = jax.make_jaxpr(lambda z, t: jax.vjp(of, z)[1](t)[0])(operand, operand).jaxpr
    return Template(_compat.without_dead_code(jaxpr))


def _applied(program: Program, chain: Chain) -> Chain | None:
    """Equations that make each element of one: a function that a kernel is compiled with."""
    dtype = aval_of(chain.value).dtype
    before = ACTIVATIONS.get(chain.activation) if isinstance(chain.activation, str) else None
    summed = _with_sum_inside(chain) if chain.may_end else None
    if before is None or summed is None or dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        return None
    found = equations_behind(program, chain.value)
    if found is None:
        return None
    members, value = found
    original = original_of(program, [], members, [chain.value], [value]).on_one_device

    def function(z: Any) -> Any:
        return original(before(z).astype(dtype))[0]

    function.__name__ = name_of((program.equations[index] for index in members), behind=str(chain.activation))
    try:
        body = translate(function, aval_of(value).shape, jnp.float32)
    except UntranslatableError:
        return None
    return summed.extended(members, value, activation=OwnActivation(function, body))


# Each makes a chain longer, or says None; the first that does not goes first. Another one is one more line.
_STEPS: tuple[Callable[[Program, Chain], Chain | None], ...] = (
    _activated,
    _derived,
    _named,
    _transposed,
    _converted,
    _scaled,
    _biased,
    _summed,
    _applied,
)
