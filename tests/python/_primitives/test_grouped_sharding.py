"""grouped_p on meshes of one device and of four: in shard_map, partitioned, explicit, exported."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from python.four_devices import checks_of, main, said_by
from python.groups import DECLARED, SIZES, K, M, N, assert_equal, calls_of, operands, ragged_dot, reference, transposes

import jax_moye
from jax_moye._selection.grouped import RAGGED_M


def test_a_mesh_of_one_device(rng):
    """Inside of shard_map, and of arrays that lie on a mesh."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    lhs, rhs = operands(RAGGED_M, rng)
    mapped = jax.shard_map(ragged_dot, mesh=mesh, in_specs=(P("x"), P(), P()), out_specs=P("x"))
    placed = [jax.device_put(x, NamedSharding(mesh, P())) for x in (lhs, rhs, SIZES)]
    for fun, args in ((mapped, (lhs, rhs, SIZES)), (ragged_dot, placed), (mapped, placed)):
        assert_equal(jax.jit(fun)(*args), reference(RAGGED_M, lhs, rhs, SIZES))
        bars = jax.jit(lambda x, w, s, fun=fun: jax.vjp(lambda x, w: fun(x, w, s), x, w)[1](jnp.ones_like(x @ w[0])))(
            *args
        )
        for bar, wanted in zip(bars, transposes(RAGGED_M, lhs, rhs, SIZES, np.ones((M, N))), strict=True):
            assert_equal(bar, wanted)


def tokens_and_experts(dtype=jnp.bfloat16):
    rng = np.random.default_rng(3)
    tokens, experts = rng.integers(-1, 2, (32, K)), rng.integers(-1, 2, (4, K, N))
    return jnp.asarray(tokens, dtype), jnp.asarray(experts, dtype)


def check_tokens_sharded():
    """Each device has eight of the tokens, all experts and sizes of its own; the experts' gradient is a sum."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    tokens, experts = tokens_and_experts()
    sizes = np.array([[2, 0, 5, 1], [0, 0, 0, 8], [3, 3, 0, 0], [0, 0, 0, 0]], np.int32)
    local = lambda x, w, s: ragged_dot(x, w, s[0])  # noqa: E731
    mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P("x"), P(), P("x")), out_specs=P("x")))
    assert calls_of(mapped.lower(tokens, experts, sizes).as_text())
    out, vjp = jax.vjp(lambda x, w: mapped(x, w, sizes), tokens, experts)
    cotangent = jnp.asarray(np.random.default_rng(4).integers(-1, 2, out.shape), out.dtype)
    tokens_bar, experts_bar = vjp(cotangent)
    summed = np.zeros(experts.shape)
    for device, of_device in enumerate(np.arange(32).reshape(4, 8)):
        args = tokens[of_device], experts, sizes[device]
        assert_equal(out[of_device], reference(RAGGED_M, *args))
        x_bar, w_bar = transposes(RAGGED_M, *args, cotangent[of_device])
        assert_equal(tokens_bar[of_device], x_bar)
        summed += w_bar
    assert_equal(experts_bar, summed)


def check_experts_sharded():
    """Each device has one of the experts: it rolls its tokens to the front, and the results are added up."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    tokens, experts = tokens_and_experts()
    sizes = np.array([7, 0, 13, 9], np.int32)

    def local(tokens, experts, sizes):
        begin = jnp.sum(jnp.where(jnp.arange(4) < lax.axis_index("x"), sizes, 0))
        own = lax.dynamic_slice_in_dim(sizes, lax.axis_index("x"), 1)
        rolled = ragged_dot(jnp.roll(tokens, -begin, 0), experts, own)
        return lax.psum(jnp.roll(rolled, begin, 0), "x")

    mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P(), P("x"), P()), out_specs=P()))
    assert calls_of(mapped.lower(tokens, experts, sizes).as_text())
    out, vjp = jax.vjp(lambda x, w: mapped(x, w, sizes), tokens, experts)
    assert_equal(out, reference(RAGGED_M, tokens, experts, sizes))
    cotangent = jnp.asarray(np.random.default_rng(4).integers(-1, 2, out.shape), out.dtype)
    for bar, wanted in zip(vjp(cotangent), transposes(RAGGED_M, tokens, experts, sizes, cotangent), strict=True):
        assert_equal(bar, wanted)


def check_a_gate_of_experts():
    """Each device has its experts, both matrices of each, and their tokens: one kernel, and two more for a gradient."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    tokens, gate = tokens_and_experts()
    up, sizes = jnp.flip(gate, 2), np.array([7, 0, 8, 5], np.int32)
    local = functools.partial(jax_moye.ragged_gated_linear_unit, activation="relu", interpret=True)
    mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P("x"),) * 4, out_specs=P("x")))
    assert len(calls_of(mapped.lower(tokens, gate, up, sizes).as_text())) == 1
    out, vjp = jax.vjp(lambda x, up: mapped(x, gate, up, sizes), tokens, up)
    x_bar, up_bar = vjp(jnp.ones_like(out))
    for device, of_device in enumerate(np.arange(32).reshape(4, 8)):
        own = slice(device, device + 1)
        operand = tokens[of_device], sizes[own]
        z, factor = (reference(RAGGED_M, operand[0], w[own], operand[1]) for w in (gate, up))
        assert_equal(out[of_device], np.maximum(z, 0) * factor)
        bars = transposes(RAGGED_M, operand[0], up[own], operand[1], np.maximum(z, 0))
        assert_equal(up_bar[own], bars[1])
        assert_equal(
            x_bar[of_device], bars[0] + transposes(RAGGED_M, *operand[:1], gate[own], sizes[own], (z > 0) * factor)[0]
        )


def check_columns_sharded_and_vmap():
    """A vmap inside of shard_map, whose operands vary over the mesh and do not; a mesh of two axes."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    tokens, experts = tokens_and_experts()
    experts = jnp.concatenate([experts, experts], 2)  # of 48 columns: 24 for each device
    sizes = np.array([[5, 6, 7, 8], [0, 0, 9, 0]], np.int32)
    local = lambda x, w, s: jax.vmap(ragged_dot, (None, None, 0))(x, w, s)  # noqa: E731
    specs = P(), P(None, None, "y"), P("x")
    mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P("x", None, "y")))
    out, vjp = jax.vjp(lambda x, w: mapped(x, w, sizes), tokens, experts)
    summed = np.zeros(tokens.shape)
    for of_sizes, of_out in zip(sizes, out, strict=True):
        assert_equal(of_out, reference(RAGGED_M, tokens, experts, of_sizes))
        summed += transposes(RAGGED_M, tokens, experts, of_sizes, np.ones(of_out.shape))[0]
    assert_equal(vjp(jnp.ones_like(out))[0], summed)


def check_who_computes_what_is_partitioned():
    """Outside of shard_map, and where not all axes are manual, XLA."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    tokens, experts = tokens_and_experts()
    sizes = jnp.array([5, 6, 7, 8], jnp.int32)
    placed = jax.device_put(tokens, NamedSharding(mesh, P("x")))
    free = functools.partial(jax_moye.ragged_dot, interpret=True)
    wanted = reference(RAGGED_M, tokens, experts, sizes)
    partly = functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P(None, None, "x"), P()), out_specs=P(None, "x"), axis_names={"x"}
    )
    for program, insisting, reason in (
        (free, ragged_dot, "partitioned over 4 devices outside of shard_map"),
        (partly(free), partly(ragged_dot), "'y'.* not manual in this shard_map"),
    ):
        assert not calls_of(jax.jit(program).lower(placed, experts, sizes).as_text())
        assert_equal(jax.jit(program)(placed, experts, sizes), wanted)
        with pytest.raises(NotImplementedError, match=reason):
            jax.jit(insisting)(placed, experts, sizes)
    with pytest.raises(NotImplementedError, match="batch_invariant=True"):
        jax.jit(functools.partial(free, batch_invariant=True))(placed, experts, sizes)


def check_explicit_meshes():
    """They are lax's."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))
    tokens, experts = tokens_and_experts()
    sizes = jnp.array([5, 6, 7, 8], jnp.int32)
    with jax.set_mesh(mesh):
        args = [jax.device_put(x, NamedSharding(mesh, P())) for x in (tokens, experts, sizes)]
        for product in (lax.ragged_dot, functools.partial(jax_moye.ragged_dot, interpret=True)):
            with pytest.raises(NotImplementedError, match="Please specify out_sharding"):
                product(*args)
            out = product(*args, out_sharding=P())
            assert out.sharding.is_equivalent_to(NamedSharding(mesh, P()), 2)
            assert_equal(out, reference(RAGGED_M, tokens, experts, sizes))
        with pytest.raises(NotImplementedError, match="explicit axes"):
            ragged_dot(*args, out_sharding=P())
        mapped = jax.jit(jax.shard_map(ragged_dot, in_specs=(P(), P(None, None, None), P()), out_specs=P()))
        assert_equal(mapped(*args), reference(RAGGED_M, tokens, experts, sizes))


def check_export_of_a_mapped_program():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    tokens, experts = tokens_and_experts()
    sizes = np.tile(np.array([3, 0, 4, 1], np.int32), (4, 1))
    local = lambda x, w, s: ragged_dot(x, w, s[0])  # noqa: E731
    mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P("x"), P(), P("x")), out_specs=P("x")))
    args = [
        jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip((tokens, experts, sizes), (P("x"), P(), P("x")), strict=True)
    ]
    exported = jax.export.export(mapped, disabled_checks=DECLARED)(*args)
    loaded = jax.export.deserialize(exported.serialize())
    np.testing.assert_array_equal(jax.jit(loaded.call)(*args), mapped(*args))


CHECKS = checks_of(globals())


@pytest.fixture(scope="module")
def on_four_devices():
    return said_by(__file__)


@pytest.mark.parametrize("name", CHECKS)
def test_four_devices(on_four_devices, name):
    assert len(CHECKS) == 7
    assert on_four_devices[name] == "", on_four_devices[name]


if __name__ == "__main__":
    main(globals())
