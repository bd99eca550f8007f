"""`jax_moye.optimize`: the products of a program with what stands behind them, each as one equation.

A function is traced, its jaxpr rewritten, and the rewritten one run: equations are replaced, nothing else is touched,
so that names, sources, effects and loops stay what they are. What is replaced:

    product; product of groups               contract_p; grouped_p
    product, narrower type, + another array  contract_p with c: the sum is the kernel's, and rounded once
    product, narrower type, + bias, relu,    rewritten_p, which is the equations as they were
      gelu or silu, + residual                 wherever no kernel computes them all faster

in the function's jaxpr and in those of jit, scan, while, cond and checkpoint in it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun

from jax_moye import _compat
from jax_moye._api.dot_general import canonical_dimensions, spec_of
from jax_moye._api.options import resolve
from jax_moye._log import logger
from jax_moye._primitives.contraction import contract_p
from jax_moye._primitives.grouped import LAX_DIMENSIONS, grouped_p
from jax_moye._primitives.rewritten import Original, rewritten_p
from jax_moye._selection.epilogue import ACTIVATIONS, Epilogue
from jax_moye._selection.problem import parse_spec

# Equations whose jaxprs are rewritten. The bodies of shard_map, of Pallas kernels and of functions with derivatives of
# their own are not.
_INNER = ("jit", "pjit", "closed_call", "core_call", "scan", "while", "cond", "checkpoint", "remat", "remat2")


def optimize(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes what `fun` does, in kernels that take in what stands behind its products.

    Every product of the program is one of `jax_moye.dot_general` or `ragged_dot_general`, as inside
    `jax_moye.intercept`: a kernel of ours where it is known to be faster, XLA elsewhere. Beyond that, what follows a
    product and is elementwise becomes part of its kernel where that is faster: the conversion of its result, a bias,
    relu, gelu or silu, and the sum with another array, such as a residual, another product, or a gradient so far.
    Whatever a kernel takes in is computed in f32 and rounded once at the end, never more often than the program rounds.
    All else is left as it is, and so is what no kernel of ours does faster.

    Put it inside of jax.jit and around the derivatives: `jax.jit(jax_moye.optimize(train_step))`. It looks into jit,
    scan, while, cond and checkpoint; the bodies of shard_map, custom_jvp and custom_vjp are left as they are. The
    result can be differentiated and mapped, but what is rewritten then is the program as it was.

    Args:
      fun: any function that JAX can trace. Arguments that are no arrays, Python's numbers among them, are passed on as
        they are.

    Returns:
      A function with fun's signature, results, dtypes and effects. Options come from around the call:
      `with jax_moye.options(...)`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> def layer(x, w, b):
      ...     return x + jax.nn.silu(x @ w + b)
      >>> x, w, b = jnp.ones((4, 8)), jnp.ones((8, 8)), jnp.ones(8)
      >>> print([equation.primitive.name for equation in jax.make_jaxpr(jax_moye.optimize(layer))(x, w, b).eqns])
      ['broadcast_in_dim', 'jax_moye_rewritten']
    """

    @functools.wraps(fun)
    def optimized(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        is_array = [isinstance(leaf, (*_compat.ARRAYS, jax.core.Tracer)) for leaf in leaves]

        def of_arrays(*arrays: Any) -> Any:
            given = iter(arrays)
            all_leaves = [next(given) if one else leaf for one, leaf in zip(is_array, leaves, strict=True)]
            of_call, of_keywords = jax.tree.unflatten(tree, all_leaves)
            return fun(*of_call, **of_keywords)

        arrays = [leaf for one, leaf in zip(is_array, leaves, strict=True) if one]
        closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        try:
            closed = rewritten(closed, resolve("optimize").parameters())
        except Exception:
            logger.warning("jax_moye.optimize: %s is run as it is: it could not be rewritten", fun, exc_info=True)
        return jax.tree.unflatten(jax.tree.structure(shape), jaxpr_as_fun(closed)(*arrays))

    return optimized


def rewritten(closed: ClosedJaxpr, parameters: Mapping[str, Any]) -> ClosedJaxpr:
    """The same program, rewritten.

    Args:
      closed: a program.
      parameters: of the products: what `Options.parameters` gives.
    """
    jaxpr = _rewritten(closed.jaxpr, parameters)
    return closed if jaxpr is closed.jaxpr else ClosedJaxpr(jaxpr, closed.consts)


def _rewritten(jaxpr: Jaxpr, parameters: Mapping[str, Any]) -> Jaxpr:
    equations = [_with_inner(equation, parameters) for equation in jaxpr.eqns]
    program = _Program(equations, jaxpr.outvars)
    replaced: dict[int, JaxprEqn | None] = {}  # None: part of another one
    for index, equation in enumerate(equations):
        if equation.primitive.name == "ragged_dot_general":
            replaced[index] = _grouped(equation, parameters)
        chain = _chain(program, index, replaced) if equation.primitive.name == "dot_general" else None
        if chain is not None:
            replaced |= dict.fromkeys(chain.members) | {max(chain.members): chain.equation(program, parameters)}
    kept = [replaced.get(index, equation) for index, equation in enumerate(equations)]
    new = [equation for equation in kept if equation is not None]
    if all(one is other for one, other in zip(new, jaxpr.eqns, strict=False)) and len(new) == len(jaxpr.eqns):
        return jaxpr
    return jaxpr.replace(eqns=new)


def _grouped(equation: JaxprEqn, parameters: Mapping[str, Any]) -> JaxprEqn:
    """An equation of lax.ragged_dot_general, as one of ours if it is one product of groups."""
    params: Any = equation.params
    known = (spec for spec, d in LAX_DIMENSIONS.items() if d == params["ragged_dot_dimension_numbers"])
    spec, avals = next(known, None), [x.aval for x in equation.invars]
    sizes: Any = avals[2]
    out: Any = equation.outvars[0].aval
    is_plain = params.get("group_offset") is None and params.get("out_sharding") is None
    if spec is None or not is_plain or any(map(_compat.has_explicit_axes, avals)):
        return equation
    if sizes.ndim != 1 or sizes.dtype != np.int32 or not _is_float(out):
        return equation
    of_product = {"spec": spec, "out_dtype": out.dtype, "precision": params["precision"], "config": None}
    return equation.replace(primitive=grouped_p, params=of_product | dict(parameters))


def _is_float(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.floating) and not aval.weak_type


def _with_inner(equation: JaxprEqn, parameters: Mapping[str, Any]) -> JaxprEqn:
    """An equation whose own jaxprs are rewritten."""
    if equation.primitive.name not in _INNER:
        return equation

    def of(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return rewritten(value, parameters)
        if isinstance(value, Jaxpr):
            return _rewritten(value, parameters)
        if isinstance(value, tuple) and any(isinstance(one, (ClosedJaxpr, Jaxpr)) for one in value):
            new = tuple(map(of, value))
            return value if all(one is other for one, other in zip(new, value, strict=True)) else new
        return value

    params = {name: of(value) for name, value in equation.params.items()}
    if all(params[name] is value for name, value in equation.params.items()):
        return equation
    return equation.replace(params=params)


class _Program:
    """Who makes and who reads each value of a jaxpr.

    Attributes:
      equations: of it.
    """

    def __init__(self, equations: Sequence[JaxprEqn], outvars: Iterable[Any]) -> None:
        """Counts."""
        self.equations = equations
        self.readers: dict[Any, list[int]] = {}
        self.made_by: dict[Any, int] = {}
        for index, equation in enumerate(equations):
            for variable in equation.invars:
                if isinstance(variable, Var):
                    self.readers.setdefault(variable, []).append(index)
            for variable in equation.outvars:
                self.made_by[variable] = index
        for variable in outvars:
            if isinstance(variable, Var):
                self.readers.setdefault(variable, []).append(len(equations))

    def only_reader(self, variable: Any) -> int | None:
        """The equation that alone reads it, once; None if there are more, or if it is a result."""
        readers = self.readers.get(variable, [])
        return readers[0] if len(readers) == 1 and readers[0] < len(self.equations) else None


@dataclasses.dataclass
class _Chain:
    """A product, and what stands behind it.

    Attributes:
      product: index of its equation.
      members: indices of all equations.
      spec: of the product.
      value: what the last of them makes.
      operands: name -> (variable, labels of the result that it has), in the order of an epilogue's.
      activation: a key of ACTIVATIONS.
    """

    product: int
    members: list[int]
    spec: str
    value: Any
    operands: dict[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
    activation: str = "none"

    def equation(self, program: _Program, parameters: Mapping[str, Any]) -> JaxprEqn:
        """What stands in the place of the last of them."""
        product: Any = program.equations[self.product]
        last = program.equations[max(self.members)]
        variables = [*product.invars, *(variable for variable, _ in self.operands.values())]
        of_product = {"spec": self.spec, "precision": product.params["precision"], "config": None, **parameters}
        params: dict[str, Any] = of_product | {"out_dtype": self.value.aval.dtype}
        if self.activation == "none" and set(self.operands) <= {"c"}:
            primitive: Any = contract_p
            params |= {"beta": float(bool(self.operands)), "out_sharding": None}
        else:
            primitive = rewritten_p
            named = tuple((name, labels) for name, (_, labels) in self.operands.items())
            params |= {
                "epilogue": Epilogue(self.activation, operands=named),
                "original": self._original(program, variables, of_product),
            }
        return last.replace(
            invars=variables, outvars=[self.value], primitive=primitive, params=params, effects=frozenset()
        )

    def _original(self, program: _Program, variables: Sequence[Any], of_product: Mapping[str, Any]) -> Original:
        """The equations, as a program of its own of these variables.

        Where a contract is asked for, which XLA might break, their product is one of ours: it keeps the contract, or is
        an error, wherever no kernel computes them all.
        """
        contracts = ("deterministic", "batch_invariant")
        is_ours = of_product["implementation"] == "moye" or any(of_product[name] for name in contracts)
        inputs = [Var(variable.aval) for variable in variables]
        renamed: dict[Any, Any] = {}
        for variable, new in zip(variables, inputs, strict=True):
            if isinstance(variable, Var):
                renamed.setdefault(variable, new)
        equations = []
        for index in sorted(self.members):
            equation = program.equations[index]
            invars: list[Any] = [renamed.get(x, x) if isinstance(x, Var) else x for x in equation.invars]
            equation = equation.replace(invars=invars)
            if index == self.product and is_ours:
                aval: Any = equation.outvars[0].aval
                params = {**of_product, "out_dtype": aval.dtype, "beta": 0.0, "out_sharding": None}
                equation = equation.replace(primitive=contract_p, params=params)
            equations.append(equation)
        jaxpr = Jaxpr([], inputs, [self.value], equations, debug_info=_compat.UNNAMED)
        return Original(ClosedJaxpr(jaxpr, []))


def _chain(program: _Program, index: int, replaced: Mapping[int, Any]) -> _Chain | None:
    """The longest chain that begins with an equation of a product; None if it is none for our kernels."""
    product: Any = program.equations[index]
    out: Any = product.outvars[0]
    params: Any = product.params
    is_plain = isinstance(out, Var) and _is_float(out.aval)
    if index in replaced or params.get("out_sharding") is not None or not is_plain:
        return None
    if any(isinstance(x, Literal) for x in product.invars):
        return None
    if any(_compat.has_explicit_axes(x.aval) for x in product.invars):
        return None
    lhs, rhs = (x.aval for x in product.invars)
    chain = _Chain(index, [index], spec_of(canonical_dimensions(params["dimension_numbers"]), lhs.ndim, rhs.ndim), out)
    while (step := _step(program, chain)) is not None:
        members, value, changes = step
        if any(member in replaced for member in members):
            break
        chain.members += members
        chain.value = value
        for name, change in changes.items():
            setattr(chain, name, change)
    return chain


_Step = tuple[list[int], Any, dict[str, Any]]


def _step(program: _Program, chain: _Chain) -> _Step | None:
    """The next equations that the kernel can take in, what they make, and how the chain changes; None at its end."""
    can_go_on = "residual" not in chain.operands
    if can_go_on and chain.activation == "none" and "c" not in chain.operands:
        found = _activation(program, chain)
        if found is not None:
            return found
    reader = program.only_reader(chain.value)
    if reader is None or not can_go_on:
        return None
    equation: Any = program.equations[reader]
    name, out = equation.primitive.name, equation.outvars[0]
    if name == "convert_element_type" and len(chain.members) == 1:
        new, old = out.aval.dtype, chain.value.aval.dtype
        is_narrower = jnp.issubdtype(new, jnp.floating) and new.itemsize <= old.itemsize and new.itemsize > 1
        return ([reader], out, {}) if is_narrower and not out.aval.weak_type else None
    if name not in ("add", "add_any") or out.aval.dtype != chain.value.aval.dtype or out.aval.weak_type:
        return None
    (other,) = (x for x in equation.invars if x is not chain.value)
    if isinstance(other, Literal) or out.aval.shape != chain.value.aval.shape:
        return None
    labels, has_bias = parse_spec(chain.spec).out, "bias" in chain.operands
    vector, members = _as_vector(program, other, out.aval.shape[-1])
    if vector is not None and not has_bias and chain.activation == "none" and "c" not in chain.operands:
        return [reader, *members], out, {"operands": {"bias": (vector, labels[-1])}}
    if other.aval.shape != out.aval.shape or "c" in chain.operands:
        return None
    name = "residual" if has_bias or chain.activation != "none" else "c"
    return [reader], out, {"operands": chain.operands | {name: (other, labels)}}


def _as_vector(program: _Program, variable: Any, size: int) -> tuple[Any, list[int]]:
    """A variable that is a vector, (1, ..., size), and the equation that copies it; None if it is none."""

    def is_vector(x: Any) -> bool:
        return isinstance(x, Var) and _sizes(x)[-1:] == (size,) and all(one == 1 for one in _sizes(x)[:-1])

    if is_vector(variable) and len(_sizes(variable)) > 0 and size > 1:
        return variable, []
    made_by = program.made_by.get(variable)
    if made_by is None or program.only_reader(variable) is None:
        return None, []
    equation: Any = program.equations[made_by]
    if equation.primitive.name != "broadcast_in_dim" or len(equation.invars) != 1:
        return None, []
    (before,) = equation.invars
    dimensions = equation.params["broadcast_dimensions"]
    if not is_vector(before) or size <= 1 or dimensions[-1:] != (len(_sizes(variable)) - 1,):
        return None, []
    return before, [made_by]


def _sizes(variable: Any) -> tuple[Any, ...]:
    return variable.aval.shape


@functools.lru_cache(maxsize=256)
def _templates(shape: tuple[int, ...], dtype: Any) -> tuple[tuple[str, Jaxpr], ...]:
    """The jaxprs of activations, as JAX writes them."""
    operand = jax.ShapeDtypeStruct(shape, dtype)
    known = ((name, fun) for name, fun in ACTIVATIONS.items() if name != "none")
    return tuple((name, jax.make_jaxpr(fun)(operand).jaxpr) for name, fun in known)


def _activation(program: _Program, chain: _Chain) -> _Step | None:
    """The equations of an activation of the chain's value, if all that read it are those of one."""
    readers = program.readers.get(chain.value, [])
    if not readers or readers[-1] >= len(program.equations):
        return None
    aval = chain.value.aval
    for name, template in _templates(tuple(aval.shape), aval.dtype):
        found = _matched(program, chain.value, readers, template)
        if found is not None:
            members, value = found
            return members, value, {"activation": name}
    return None


def _matched(program: _Program, value: Any, readers: Sequence[int], template: Jaxpr) -> tuple[list[int], Any] | None:
    """The equations from the first reader of a value on that are those of a template; None if they are others."""
    first, count = readers[0], len(template.eqns)
    members = list(range(first, first + count))
    if members[-1] >= len(program.equations) or not set(readers) <= set(members):
        return None
    known: dict[Any, Any] = {template.invars[0]: value}
    wanted: Any
    for index, wanted in zip(members, template.eqns, strict=True):
        equation: Any = program.equations[index]
        if equation.primitive is not wanted.primitive or len(equation.outvars) != len(wanted.outvars):
            return None
        if str(equation.params) != str(wanted.params):
            return None
        for x, y in zip(equation.invars, wanted.invars, strict=True):
            if isinstance(x, Literal) or isinstance(y, Literal):
                both = isinstance(x, Literal) and isinstance(y, Literal)
                if not both or x.aval.dtype != y.aval.dtype or not np.array_equal(x.val, y.val):
                    return None
            elif known.get(y) is not x:
                return None
        known |= dict(zip(wanted.outvars, equation.outvars, strict=True))
    (result,) = template.outvars
    inside = [known[x] for equation in template.eqns for x in equation.outvars if x is not result]
    if any(not set(program.readers.get(x, [])) <= set(members) for x in inside):
        return None
    return members, known[result]
