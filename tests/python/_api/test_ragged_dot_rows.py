"""lhs_rows and permutation of ragged_dot and ragged_gated_linear_unit: what they mean, refuse, and leave to XLA."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import TARGET, custom_calls, lowered_text

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import grouped_configs

READ, M, K, N, GROUPS = 13, 40, 24, 32, 4
SIZES = jnp.array([9, 0, 17, 6])  # and 8 rows of no group
EMULATED = {"implementation": "moye", "interpret": True}
ragged_dot = functools.partial(jax_moye.ragged_dot, **EMULATED)
gated = functools.partial(jax_moye.ragged_gated_linear_unit, **EMULATED)


@pytest.fixture
def case(rng):
    def integers(*shape):
        return jnp.asarray(rng.integers(-2, 3, shape), jnp.bfloat16)

    return {
        "x": integers(READ, K),
        "w": integers(GROUPS, K, N),
        "v": integers(GROUPS, K, N),
        "bias": integers(GROUPS, N),
        "rows": jnp.asarray(rng.integers(0, READ, M)),
        "permutation": jnp.asarray(rng.permutation(M)),
    }


def stored(y, permutation):
    return np.asarray(y, np.float64)[np.argsort(permutation)]


def in_float64(case, w):
    """The product of the rows that are read, group by group."""
    x, w = np.asarray(case["x"], np.float64)[np.asarray(case["rows"])], np.asarray(w, np.float64)
    out, begin = np.zeros((M, N)), 0
    for size, matrix in zip(np.asarray(SIZES), w, strict=True):
        out[begin : begin + size] = x[begin : begin + size] @ matrix
        begin += size
    return out


def bias_of_rows(bias):
    return np.concatenate([np.repeat(np.asarray(bias, np.float64), SIZES, 0), np.zeros((M - int(SIZES.sum()), N))])


def calls(fun, *args):
    text = lowered_text(fun, *args, platform="cpu")
    for target in (ffi.SCATTERED_GROUPED_TARGET, ffi.GROUPED_TARGET):
        text = text.replace(target, TARGET)
    return custom_calls(text)


def equal(found, wanted):
    np.testing.assert_array_equal(np.asarray(found, np.float64), wanted)


def test_a_mixture_of_experts_has_no_scatter(case):
    """Two products of the chosen experts, each token read as often as it was sent, results in the order of tokens."""
    rng = np.random.default_rng(0)
    tokens, chosen, width = 20, 2, 24
    x = jnp.asarray(rng.integers(-2, 3, (tokens, width)), jnp.bfloat16)
    up = jnp.asarray(rng.integers(-1, 2, (GROUPS, width, 32)), jnp.bfloat16)
    down = jnp.asarray(rng.integers(-1, 2, (GROUPS, 32, width)), jnp.bfloat16)
    experts = rng.integers(0, GROUPS, tokens * chosen)
    order = np.argsort(experts, kind="stable")
    sizes = np.bincount(experts, minlength=GROUPS)

    def layer(x, up, down):
        hidden = ragged_dot(x, up, sizes, lhs_rows=order // chosen, activation="relu")
        return ragged_dot(hidden, down, sizes, permutation=order)

    text = lowered_text(layer, x, up, down, platform="cpu")
    assert [text.count(f"@{target}") for target in (ffi.GROUPED_TARGET, ffi.SCATTERED_GROUPED_TARGET)] == [1, 1]
    assert text.count('"stablehlo.gather"') == 1
    assert not [what for what in ("stablehlo.scatter", "stablehlo.sort") if what in text]
    found = layer(x, up, down)
    for i, expert in enumerate(experts):  # one row of each token and expert
        one = np.asarray(x, np.float64)[i // chosen] @ np.asarray(up, np.float64)[expert]
        equal(found[i], np.maximum(one, 0) @ np.asarray(down, np.float64)[expert])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32])
def test_dtypes_of_indices(case, dtype):
    rows, permutation = (np.asarray(case[name]).astype(dtype) for name in ("rows", "permutation"))
    found = ragged_dot(case["x"], case["w"], SIZES, lhs_rows=rows, permutation=permutation)
    equal(found, stored(in_float64(case, case["w"]), case["permutation"]))


@pytest.mark.parametrize("interpret", [True, None])
def test_indices_outside_read_the_nearest_row(case, interpret):
    """As jnp.take does with mode="clip", in front of a kernel and of XLA's product."""
    rows = np.array([-1, -(2**31), READ, 2**31 - 1] * (M // 4), np.int32)
    options = {"implementation": None, "interpret": interpret}
    found = ragged_dot(case["x"], case["w"], SIZES, lhs_rows=rows, **options)
    equal(found, in_float64(case | {"rows": np.clip(rows, 0, READ - 1)}, case["w"]))


@pytest.mark.parametrize("interpret", [True, None])
@pytest.mark.parametrize("keys", [("rows",), ("permutation",), ("rows", "permutation")], ids=lambda keys: keys[0])
def test_bias_activation_and_gate(case, keys, interpret):
    """In rows of the product, whatever is read and stored; one call where a kernel does it."""
    if "rows" not in keys:
        case |= {"rows": jnp.arange(M), "x": case["x"][case["rows"]]}
    given = {name: case[name] for name in keys}
    named = dict(zip(("lhs_rows", "permutation"), (given.get("rows"), given.get("permutation")), strict=True))
    options = {"implementation": None, "interpret": interpret}
    permutation = given.get("permutation", np.arange(M))

    fun = lambda x, w, b: ragged_dot(x, w, SIZES, bias=b, activation="relu", **named, **options)  # noqa: E731
    wanted = np.maximum(in_float64(case, case["w"]) + bias_of_rows(case["bias"]), 0)
    equal(fun(case["x"], case["w"], case["bias"]), stored(wanted, permutation))
    assert len(calls(fun, case["x"], case["w"], case["bias"])) == (interpret is True)

    of_gate = {"x_rows": named["lhs_rows"], "permutation": named["permutation"]}
    fun = lambda x, w, v: gated(x, w, v, SIZES, activation="relu", **of_gate, **options)  # noqa: E731
    wanted = np.maximum(in_float64(case, case["w"]), 0) * in_float64(case, case["v"])
    wanted = np.asarray(jnp.asarray(wanted, jnp.bfloat16), np.float64)
    equal(fun(case["x"], case["w"], case["v"]), stored(wanted, permutation))
    assert len(calls(fun, case["x"], case["w"], case["v"])) == (interpret is True)


def test_gradients_of_a_gated_layer(case):
    """Next to those of a gather, the layer, and a scatter; the kernel writes both products in the rows of results."""
    cotangent = jnp.asarray(np.random.default_rng(1).integers(-1, 2, (M, N)), jnp.bfloat16)

    def gradients(fun):
        return jax.grad(lambda *args: (fun(*args) * cotangent).astype(jnp.float32).sum(), (0, 1, 2))(
            case["x"], case["w"], case["v"]
        )

    rows, permutation = case["rows"], case["permutation"]
    found = gradients(lambda x, w, v: gated(x, w, v, SIZES, x_rows=rows, permutation=permutation))
    plain = lambda x, w, v: (  # noqa: E731
        jax_moye.ragged_gated_linear_unit(x[rows], w, v, SIZES, implementation="xla")[jnp.argsort(permutation)]
    )
    for one, wanted in zip(found, gradients(plain), strict=True):
        scale = float(jnp.abs(wanted).max())
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(wanted, np.float32), 0, 2**-6 * scale)


@pytest.mark.parametrize("epilogue", [{}, {"activation": "relu"}], ids=["bias", "relu"])
def test_gradients_with_bias_and_activation(case, epilogue):
    """The bias is that of each row's group, wherever the row is stored."""
    rows, permutation = case["rows"], case["permutation"]
    cotangent = jnp.asarray(np.random.default_rng(1).integers(-1, 2, (M, N)), jnp.bfloat16)

    def gradients(fun):
        loss = lambda *args: (fun(*args) * cotangent).astype(jnp.float32).sum()  # noqa: E731
        return jax.grad(loss, (0, 1, 2))(case["x"], case["w"], case["bias"])

    of_rows = functools.partial(ragged_dot, group_sizes=SIZES, lhs_rows=rows, permutation=permutation, **epilogue)
    plain = functools.partial(jax_moye.ragged_dot, group_sizes=SIZES, implementation="xla", **epilogue)
    found = gradients(lambda x, w, b: of_rows(x, w, bias=b))
    wanted = gradients(lambda x, w, b: plain(x[rows], w, bias=b)[jnp.argsort(permutation)])
    for one, other in zip(found, wanted, strict=True):
        scale = float(jnp.abs(other).max())
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), 0, 2**-6 * scale)


def test_scales_are_of_rows_of_lhs(case):
    """Rows and their scales are gathered in front of the product."""
    scales = jnp.asarray(2.0 ** np.arange(READ) % 7, jnp.float32)
    found = jax_moye.ragged_dot(
        case["x"], case["w"], SIZES, lhs_scale=scales, rhs_scale=jnp.float32(0.5), lhs_rows=case["rows"],
        permutation=case["permutation"], preferred_element_type=jnp.float32,
    )  # fmt: skip
    wanted = in_float64(case, case["w"]) * np.asarray(scales, np.float64)[case["rows"]][:, None] * 0.5
    equal(found, stored(wanted, case["permutation"]))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.int8])
def test_other_dtypes(case, dtype):
    """Without a kernel they are XLA's."""
    preferred = jnp.int32 if dtype == jnp.int8 else jnp.float32
    options = {"lhs_rows": case["rows"], "permutation": case["permutation"], "preferred_element_type": preferred}
    found = jax_moye.ragged_dot(case["x"].astype(dtype), case["w"].astype(dtype), SIZES, **options)
    assert found.dtype == preferred
    equal(found, stored(in_float64(case, case["w"]), case["permutation"]))


def test_rows_that_are_not_of_16_bytes(case):
    """What no kernel reads or stores is XLA's, and implementation="moye" says so."""
    x, w = case["x"][:, :20], case["w"][:, :20]
    options = {"lhs_rows": case["rows"], "permutation": case["permutation"]}
    found = jax_moye.ragged_dot(x, w, SIZES, **options)
    equal(found, stored(in_float64(case | {"x": x}, w), case["permutation"]))
    with pytest.raises(NotImplementedError, match="rows of lhs are 40 bytes"):
        ragged_dot(x, w, SIZES, **options)


def test_configs(case):
    """The name of a row of sm90_grouped, which stores rows in their order, too."""
    name = next(config.name for config in grouped_configs() if config.dtype == "bf16")
    fun = lambda x, w, **options: ragged_dot(x, w, SIZES, config=name, **options)  # noqa: E731
    options = {"lhs_rows": case["rows"], "permutation": case["permutation"]}
    text = lowered_text(functools.partial(fun, **options), case["x"], case["w"], platform="cpu")
    assert f'config = "{name}"' in text
    with pytest.raises(ValueError, match=f"config '{name}' cannot compute .*: rows of lhs are 40 bytes"):
        fun(case["x"][:, :20], case["w"][:, :20], **options)


def test_empty_arrays(case):
    none = jnp.zeros(0, jnp.int32)
    out = ragged_dot(case["x"], case["w"], SIZES, lhs_rows=none, permutation=none)
    assert out.shape == (0, N)
    out = ragged_dot(case["x"][:0], case["w"], SIZES, lhs_rows=none)
    assert out.shape == (0, N)
    no_k = ragged_dot(case["x"][:, :0], case["w"][:, :0], SIZES, lhs_rows=case["rows"])
    equal(no_k, np.zeros((M, N)))
    no_groups = ragged_dot(case["x"], case["w"][:0], SIZES[:0], lhs_rows=case["rows"])
    equal(no_groups, np.zeros((M, N)))


WRONG = [
    ({"lhs_rows": jnp.zeros((M, 1), int)}, ValueError, r"lhs_rows has shape \(40, 1\), and it is \(m,\)"),
    ({"lhs_rows": jnp.zeros(M)}, TypeError, "lhs_rows is float32, and indices of rows are integers"),
    ({"lhs_rows": "ab"}, TypeError, "lhs_rows is an array, not str"),
    ({"permutation": [0, 1]}, TypeError, "permutation is an array, not list"),
    ({"bias": [[1.0]]}, TypeError, "bias is an array, not list"),
    ({"lhs_scale": "ab"}, TypeError, "lhs_scale is an array, not str"),
    ({"rhs_scale": {"a": 1}}, TypeError, "rhs_scale is an array, not dict"),
    ({"permutation": 3}, ValueError, r"permutation has shape \(\), and it is \(m,\)"),
    ({"permutation": jnp.zeros(M, bool)}, TypeError, "permutation is bool, and indices of rows are integers"),
    ({"permutation": jnp.zeros(M, int)}, ValueError, r"permutation has shape \(40,\), and it is \(13,\).* row of lhs$"),
    (
        {"lhs_rows": jnp.zeros(M, int), "permutation": jnp.zeros(READ, int)},
        ValueError,
        r"permutation has shape \(13,\), and it is \(40,\): an index for each row of lhs_rows",
    ),
]


@pytest.mark.parametrize(("options", "error", "match"), WRONG)
def test_what_is_refused(case, options, error, match):
    with pytest.raises(error, match=f"ragged_dot: {match}"):
        ragged_dot(case["x"], case["w"], SIZES, **options)


def test_what_else_is_refused(case):
    with pytest.raises(ValueError, match="ragged_dot: lhs_rows has 3 indices, and lhs has no rows"):
        ragged_dot(case["x"][:0], case["w"], SIZES, lhs_rows=jnp.zeros(3, int))
    with pytest.raises(ValueError, match=r"ragged_dot: lhs has shape \(24,\), and with lhs_rows it is a matrix"):
        ragged_dot(case["x"][0], case["w"], SIZES, lhs_rows=jnp.zeros(3, int))
    with pytest.raises(ValueError, match=r"ragged_gated_linear_unit: x_rows has shape \(\), and it is \(m,\)"):
        gated(case["x"], case["w"], case["v"], SIZES, x_rows=0)
    with pytest.raises(ValueError, match=r"lhs_scale has shape \(40,\), and it is \(\) or \(13,\)"):
        ragged_dot(case["x"], case["w"], SIZES, lhs_rows=case["rows"], lhs_scale=jnp.ones(M))


def test_export(case):
    """What was exported runs after the program that made it."""
    fun = jax.jit(lambda x, w: ragged_dot(x, w, SIZES, lhs_rows=case["rows"], permutation=case["permutation"]))
    exported = jax.export.export(fun, disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS)(case["x"], case["w"])
    found = jax.export.deserialize(exported.serialize()).call(case["x"], case["w"])
    equal(found, stored(in_float64(case, case["w"]), case["permutation"]))


@pytest.mark.parametrize("device", ["h100", 80])
def test_explain(case, device, monkeypatch):
    """The kernel that stores rows, where there is one; which rows are gathered does not matter."""
    monkeypatch.setattr(ffi, "built", lambda platform: None)

    def fun(x, w, v):
        hidden = jax_moye.ragged_gated_linear_unit(x, w, v, SIZES, x_rows=case["rows"])
        return jax_moye.ragged_dot(hidden, w.swapaxes(1, 2), SIZES, permutation=case["permutation"])

    found = jax_moye.explain(fun, case["x"], case["w"], case["v"], device=device)
    assert [one.what.endswith(", permuted") for one in found] == [False, True]
    for one in found:
        assert f"bfloat16[{M}, " in one.what
        if device == "h100":
            assert one.config.name.startswith("sm90_grouped_bf16")
        else:
            assert one.computed_by == "xla"
