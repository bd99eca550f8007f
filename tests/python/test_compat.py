"""The touch points with JAX that depend on its version: each says what it says, on whichever JAX is installed."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import dot_general_p
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from python.support import lowered_text

from jax_moye import _compat


def explicit_mesh() -> AbstractMesh:
    return AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)


def test_canonical_sharding():
    assert _compat.canonical_sharding(None) is None
    with pytest.raises(ValueError, match="needs a mesh"):
        _compat.canonical_sharding(PartitionSpec("x"))
    with pytest.raises(TypeError, match="out_sharding is None, a"):
        _compat.canonical_sharding("x")
    mesh = explicit_mesh()
    with jax.sharding.use_abstract_mesh(mesh):
        assert _compat.canonical_sharding(PartitionSpec("x")) == NamedSharding(mesh, PartitionSpec("x"))


def test_permuted_specs_are_as_long_as_the_order():
    assert _compat.permute_spec(PartitionSpec("x", "y"), (1, 0)) == PartitionSpec("y", "x")
    assert _compat.permute_spec(PartitionSpec("x"), (2, 0, 1)) == PartitionSpec(None, "x", None)
    assert not _compat.has_partial_sums(PartitionSpec("x"))


def test_the_type_in_front_of_a_transpose():
    mesh = explicit_mesh()
    aval = _compat.local_aval((3, 4, 6), jnp.float32)
    aval = aval.update(sharding=NamedSharding(mesh, PartitionSpec(None, "y", "x")))
    source = _compat.source_aval(aval, (2, 0, 1))  # aval is transpose(source, (2, 0, 1))
    assert source.shape == (4, 6, 3)
    assert tuple(source.sharding.spec) == ("y", "x", None)


def test_outside_of_shard_map_nothing_varies():
    x = jnp.ones(3)
    assert _compat.varying_axes(x) == frozenset()
    assert _compat.match_varying(x, x)[0] is x


def test_the_jaxpr_of_a_function_of_types_inside_of_shard_map():
    """Numbers are made to vary there, and the types are those that the program has."""
    mesh = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
    specs = PartitionSpec("x", "y"), PartitionSpec()

    def fun(x, w):
        return jax.nn.gelu(x @ w)[:, :1].astype(jnp.bfloat16)

    sizes = jnp.ones((4, 12)), jnp.ones((3, 5))
    mapped = jax.shard_map(fun, mesh=mesh, in_specs=specs, out_specs=specs[0])
    (equation,) = jax.make_jaxpr(mapped)(*sizes).eqns
    wanted = equation.params["jaxpr"]
    avals = [x.aval for x in wanted.invars]
    assert [_compat.varying_axes_of(x) for x in avals] == [{"x", "y"}, frozenset()]
    assert all(map(_compat.is_on_mesh, avals))
    found = _compat.jaxpr_of(fun, avals)
    assert str(found) == str(wanted)
    assert [x.aval for x in (*found.invars, *found.outvars)] == [x.aval for x in (*wanted.invars, *wanted.outvars)]
    without = [_compat.without_mesh(x) for x in avals]
    assert not any(map(_compat.is_on_mesh, without))
    assert str(_compat.jaxpr_of(fun, without)) == str(jax.make_jaxpr(fun)(jnp.ones((2, 3)), sizes[1]).jaxpr)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_broadcast_batch(dim):
    x = np.arange(6.0).reshape(2, 3)
    found = _compat.broadcast_batch(jnp.asarray(x), 4, dim, None)
    np.testing.assert_array_equal(found, np.broadcast_to(np.expand_dims(x, dim), found.shape))
    assert found.shape[dim] == 4


def test_dead_code_is_dropped_inside_of_loops_too():
    def fun(x):
        jnp.sin(x)
        return lax.fori_loop(0, 3, lambda _, y: (jnp.cos(y), y + 1)[1], x)

    text = str(_compat.without_dead_code(jax.make_jaxpr(fun)(1.0).jaxpr))
    assert "sin" not in text
    assert "cos" not in text
    assert "add" in text


def scan_of(consts, carry, stacked, results):
    """A scan's equation, and the function that it is of, whose results tell its operands apart."""

    def fun(*operands):
        of_all, start, rows = operands[:consts], operands[consts : consts + carry], operands[consts + carry :]

        def body(state, row):
            total = sum((i + 1) * x for i, x in enumerate((*of_all, *state, *row)))
            return tuple(x * total for x in state), tuple(total * (i + 2) for i in range(results))

        return jax.tree.leaves(lax.scan(body, start, rows, length=3))

    operands = [jnp.float32(i + 1) for i in range(consts + carry)]
    operands += [jnp.arange(3, dtype=jnp.float32) - i for i in range(stacked)]
    (equation,) = (x for x in jax.make_jaxpr(fun)(*operands).eqns if x.primitive.name == "scan")
    return equation, operands


SCANS = [(0, 1, 0, 0), (0, 0, 1, 1), (1, 1, 1, 1), (2, 3, 4, 5), (3, 0, 1, 2), (0, 2, 1, 0)]


@pytest.mark.parametrize("counts", SCANS)
def test_what_a_scan_says_of_its_operands(counts):
    equation, _ = scan_of(*counts)
    found = _compat.scan_operands(equation.params)
    assert (found.consts, found.carry, len(found.linear)) == (*counts[:2], sum(counts[:3]))
    assert not any(found.linear)
    assert _compat.scan_operands({name: equation.params[name] for name in ("jaxpr", "length")}) is None
    assert _compat.scan_operands({}) is None
    unknown = equation.params | {name: object() for name in ("ft_in", "ft_out") if name in equation.params}
    assert (_compat.scan_operands(unknown) is None) == ("ft_in" in equation.params)


@pytest.mark.parametrize("after", SCANS)
@pytest.mark.parametrize("before", SCANS)
def test_parameters_of_a_scan_with_other_operands(before, after):
    """Those of one scan with the operands and the body of another are the other one's, for JAX, too."""
    (one, _), (other, operands) = scan_of(*before), scan_of(*after)
    described = _compat.scan_operands(other.params)
    params = _compat.scan_params(one.params, described, other.params["jaxpr"])
    assert params.keys() == other.params.keys()
    assert _compat.scan_operands(params) == described

    def results_and_gradients(of_scan):
        def fun(*xs):
            return other.primitive.bind(*xs, **of_scan)

        cotangents = [jnp.ones_like(x) for x in fun(*operands)]
        return fun(*operands), jax.vjp(fun, *operands)[1](cotangents)

    with jax.enable_checks(True):
        jax.tree.map(np.testing.assert_array_equal, *map(results_and_gradients, (params, other.params)))


def test_what_a_lowering_rule_sees():
    """A rule that is not cacheable sees the transpose in front of its operand, the platform, and where it runs."""
    seen = []
    probe_p = jax.extend.core.Primitive("probe")
    probe_p.def_abstract_eval(lambda x: x)

    def rule(ctx, x):
        _, permutation = _compat.transposed_source(x)
        exported = _compat.is_exported(ctx)
        seen.append(
            (permutation, _compat.platforms(ctx), _compat.why_not_local(ctx), exported, _compat.mesh_of_types(ctx))
        )
        return [x]

    mlir.register_lowering(probe_p, rule, cacheable=False)
    lowered_text(lambda x: probe_p.bind(lax.transpose(x, (1, 0))), jnp.ones((2, 3)), platform="cpu")
    lowered_text(lambda x: probe_p.bind(x), jnp.ones((2, 3)), platform="cuda")
    assert seen == [((1, 0), ("cpu",), None, False, None), (None, ("cuda",), None, False, None)]


def test_which_arguments_the_caller_keeps():
    """Those of the main function that are not donated, and constants, also reshaped; of others nobody knows."""
    seen = []
    probe_p = jax.extend.core.Primitive("probe of arguments")
    probe_p.def_abstract_eval(lambda x: x)

    def rule(ctx, x):
        seen.append(_compat.is_borrowed(x))
        return [x]

    mlir.register_lowering(probe_p, rule, cacheable=False)
    ones, kept = jnp.ones((2, 3)), np.ones((2, 3), np.float32)

    def fun(x, y):
        inside = jax.jit(lambda z: probe_p.bind(z) * 2)
        return sum(map(probe_p.bind, (x, y, x + y, y.reshape(3, 2).reshape(2, 3), jnp.asarray(kept)))) + inside(y)

    jax.jit(fun, donate_argnums=0).lower(ones, ones)
    assert seen == [False, True, False, True, True, False]
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
    spread = jax.device_put(ones, NamedSharding(mesh, PartitionSpec("d")))  # JAX leaves it to XLA what it is for
    seen.clear()
    jax.jit(lambda x, y: probe_p.bind(x) + probe_p.bind(y), donate_argnums=0).lower(spread, spread)
    assert seen == [False, True]


@pytest.mark.parametrize("platforms", [("cpu",), ("cpu", "cuda")], ids="+".join)
def test_an_equation_is_lowered_without_being_traced(platforms):
    """Each where it stands, and equal ones by one run of their primitive's rule for each platform."""
    outer_p, inner_p = (jax.extend.core.Primitive(f"probe_{name}") for name in ("outer", "inner"))
    outer_p.def_abstract_eval(lambda x, y, factor: x)
    lowered = []

    def outer(ctx, x, y, factor):
        return _compat.lower_equation(ctx, inner_p, (x, y), ctx.avals_in, factor=factor)

    def inner(platform, ctx, x, y, factor):
        lowered.append((platform, factor))
        return mlir.lower_fun(lambda x, y: x + factor * y, multiple_results=False)(ctx, x, y)

    mlir.register_lowering(outer_p, outer, cacheable=False)
    for platform in ("cpu", "cuda"):
        mlir.register_lowering(inner_p, functools.partial(inner, platform), platform=platform)

    def fun(x, y):
        first = outer_p.bind(x, y, factor=2.0)
        second = outer_p.bind(first, y, factor=2.0)
        return outer_p.bind(second, y, factor=3.0)

    with jax.enable_checks(True):
        x = jax.ShapeDtypeStruct((2, 3), jnp.float32)
        program = jax.jit(fun).trace(x, x).lower(lowering_platforms=platforms)
    assert lowered == [(platform, factor) for factor in (2.0, 3.0) for platform in platforms]
    text = program.as_text(debug_info=True)
    assert text.count("stablehlo.add") == 3 * len(platforms)
    begin = fun.__code__.co_firstlineno
    for line in (begin + 1, begin + 2, begin + 3):
        assert f'test_compat.py":{line}:' in text
    if platforms == ("cpu",):
        ones = np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(program.compile()(ones, ones), 8 * ones)


def test_lax_itself_ends_with_its_block():
    taken = []
    put_back = _compat.hook(
        dot_general_p,
        lambda original, *operands: taken.append(operands[0].shape) or original(*operands[:2], **operands[2]),
    )
    try:
        a = jnp.ones((2, 3))
        with _compat.lax_itself():
            jax.make_jaxpr(lambda a: lax.dot(a, a.T))(a)
        assert taken == []
        jax.make_jaxpr(lambda a: lax.dot(a, a.T))(a)
        assert taken == [(2, 3)]
    finally:
        put_back()
    jax.make_jaxpr(lambda a: lax.dot(a, a.T))(a)
    assert len(taken) == 1


def test_whoever_calls_jit_is_seen_until_it_ends():
    found, seen = jax.jit, []
    put_back = _compat.hook_jit(lambda original, *args, **kwargs: seen.append(kwargs) or original(*args, **kwargs))
    try:
        assert jax.jit(jnp.sin, keep_unused=True)(0.0) == 0
        assert jax.jit.__doc__ == found.__doc__
    finally:
        put_back()
    assert seen == [{"keep_unused": True}]
    assert jax.jit is found


def test_which_shardings_say_something():
    for axis_type, expected in ((AxisType.Auto, False), (AxisType.Explicit, True)):
        mesh = jax.make_mesh((1,), ("x",), axis_types=(axis_type,))
        assert _compat.asks_for_axes(NamedSharding(mesh.abstract_mesh, PartitionSpec())) == expected
    assert not _compat.asks_for_axes(None)


def test_a_process_alone_shares_nothing():
    """JAX's private state of jax.distributed is where it was, and says that no coordinator was asked for."""
    from jax._src import distributed

    assert {"client", "process_id", "num_processes"} <= {*dir(distributed.global_state)}
    assert distributed.global_state.client is None
    assert _compat.key_value_store() is None


def test_checkify_has_rules_where_they_were():
    from jax._src import checkify

    assert lax.dot_general_p in checkify.error_checks
    probe_p = jax.extend.core.Primitive("probe")
    _compat.check_for_nan(probe_p)
    try:
        assert checkify.error_checks[probe_p].func is checkify.nan_error_check
    finally:
        del checkify.error_checks[probe_p]


def test_a_sparse_rule_waits_for_the_package(monkeypatch):
    transform = pytest.importorskip("jax.experimental.sparse.transform")
    probe_p = jax.extend.core.Primitive("probe")
    probe_p.def_abstract_eval(lambda x, y, scale: x)
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "jax.experimental.sparse.transform")
        _compat.give_sparse_rule(probe_p, None)
    assert probe_p not in transform.sparse_rules_bcoo
    _compat.give_sparse_rule(probe_p, lambda x, y, scale: scale * (x @ y))
    try:
        assert transform.sparse_rules_bcoo[probe_p] is transform.sparse_rules_bcsr[probe_p]
        dense = jnp.asarray([[0.0, 2.0], [3.0, 0.0]])
        fun = transform.sparsify(lambda x, y: probe_p.bind(x, y, scale=5.0))
        np.testing.assert_array_equal(fun(transform.BCOO.fromdense(dense), dense), 5 * np.array(dense @ dense))
    finally:
        del transform.sparse_rules_bcoo[probe_p], transform.sparse_rules_bcsr[probe_p]


def test_the_primitive_of_ragged_dot():
    """Found by its name in a traced program; what is there is what lax binds."""
    primitive = _compat.ragged_dot_general_p()
    x, w, sizes = jnp.ones((4, 2)), jnp.ones((3, 2, 5)), jnp.array([1, 2, 1])
    (equation,) = jax.make_jaxpr(lax.ragged_dot)(x, w, sizes).jaxpr.eqns
    assert equation.primitive is primitive
