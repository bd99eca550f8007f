"""Lowering for a GPU on a machine that need not have one."""

import contextlib
import functools
import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.support import TARGET, custom_calls, lowered_text

import jax_moye
from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._kernels.dtypes import numpy_dtypes
from jax_moye._primitives import contraction, fused
from jax_moye._selection import capability, decide

matmul = functools.partial(jax_moye.matmul, implementation="moye")

# The tests speak of programs for another machine's GPU.
pytestmark = [
    pytest.mark.skipif(_compat.cuda_arch() is not None, reason="there is a GPU: tests/gpu runs the programs"),
    pytest.mark.usefixtures("every_config_is_built"),
]


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def in_order(order):
    """matmul of operands that are stored as `order` says."""

    def fun(a, b):
        return matmul(a.T if order[0] == "T" else a, b.T if order[1] == "T" else b)

    a, b = bf16(128, 256), bf16(256, 512)
    stored = [bf16(*reversed(x.shape)) if letter == "T" else x for x, letter in zip((a, b), order, strict=True)]
    return fun, stored


@pytest.mark.parametrize(
    ("arch", "config"),
    [(None, "sm90_sliced_k_bf16_16x32x64_s9_a16"), (80, "sm80_multistage_bf16_64x64x64_s3_a16")],
    ids=["default", "sm_80"],
)
@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
def test_four_orders_are_strides(order, arch, config):
    """For an H200, if nobody says otherwise."""
    fun, operands = in_order(order)
    with contextlib.nullcontext() if arch is None else jax_moye.cuda_target(arch):
        (call,) = custom_calls(lowered_text(fun, *operands))
    assert call.config == config
    assert call.sizes == (1, 128, 512, 256)
    assert call.a_strides == ((0, 256, 1) if order[0] == "N" else (0, 1, 128))
    assert call.b_strides == ((0, 1, 512) if order[1] == "N" else (0, 256, 1))
    assert call.d_strides == (0, 512, 1)
    assert call.operands == ("%arg0", "%arg1")  # what is in memory, not a transpose of it
    hints = {"uses_pdl", "early_operands"} if ffi.records_calls() else set()
    assert set(call.attributes) == {"config", "sizes", "a_strides", "b_strides", "d_strides"} | hints


@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
def test_gradients_read_their_operands_in_place(order):
    fun, operands = in_order(order)
    vjp = lambda a, b, out_bar: jax.vjp(fun, a, b)[1](out_bar)  # noqa: E731
    text = lowered_text(vjp, *operands, bf16(128, 512))
    calls = custom_calls(text)
    assert len(calls) == 2
    assert all(set(call.operands) <= {"%arg0", "%arg1", "%arg2"} for call in calls), text
    assert "stablehlo.convert" not in text


def test_large_products_get_large_tiles():
    (call,) = custom_calls(lowered_text(matmul, bf16(4096, 4096), bf16(4096, 4096)))
    assert call.config == "sm90_cooperative_bf16_256x128x64_s4_c1x2_a16"
    (config,) = [row for row in jax_moye.configs() if row.name == call.config]
    assert config.tile[0] * config.tile[1] >= 128 * 128


@pytest.mark.parametrize("config", jax_moye.configs(), ids=lambda row: row.name)
def test_a_config_can_be_asked_for(config):
    with jax.enable_x64(True):
        a, b = (jax.ShapeDtypeStruct((256, 256), dtype) for dtype in numpy_dtypes(config.dtype))
        turn = (lambda x: x) if "NN" in config.orders else jnp.transpose  # some rows take NT alone
        wide = jnp.float32 if a.dtype != b.dtype else None  # JAX promotes no two 8-bit floats
        fun = functools.partial(matmul, config=config, preferred_element_type=wide)
        (call,) = custom_calls(lowered_text(lambda x, y: fun(x, turn(y)), a, b))
        assert call.config == config.name


def test_the_workspace_is_a_result():
    text = lowered_text(matmul, bf16(64, 64), bf16(64, 64))
    assert "-> (tensor<64x64xbf16>, tensor<0xui8>)" in text


def test_f32_from_bf16_operands_needs_no_conversion():
    text = lowered_text(functools.partial(matmul, preferred_element_type=jnp.float32), bf16(64, 64), bf16(64, 64))
    assert "-> (tensor<64x64xf32>, tensor<0xui8>)" in text
    assert "stablehlo.convert" not in text


def test_one_program_for_two_platforms():
    fun = lambda a, b: jax_moye.matmul(a, b, config="sm80_multistage_bf16_64x64x64_s3_a16")  # noqa: E731
    traced = jax.jit(fun).trace(bf16(64, 64), bf16(64, 64))
    text = traced.lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert text.count(f"@{TARGET}") == 1
    assert "stablehlo.dot_general" in text
    assert "stablehlo.case" in text


@pytest.mark.parametrize("is_layer", [False, True])
@pytest.mark.parametrize("platforms", [("cuda",), ("cpu", "cuda")], ids="+".join)
def test_equal_products_are_decided_once_and_none_is_traced_to_be_lowered(monkeypatch, is_layer, platforms):
    """A program of many equal layers is lowered in little more time than lax's."""
    decided, traced = [], []
    local_p = fused.fused_local_p if is_layer else contraction.contract_local_p
    find, abstract_eval = decide._find_kernel, local_p.abstract_eval
    monkeypatch.setattr(decide, "_find_kernel", lambda *args: decided.append(args[2].platform) or find(*args))
    monkeypatch.setattr(
        local_p, "abstract_eval", lambda *args, **kwargs: traced.append(0) or abstract_eval(*args, **kwargs)
    )
    config = "sm80_multistage_bf16_64x64x64_s3_a16"

    def program(x, w, *bias):
        product = jax_moye.linear if is_layer else jax_moye.matmul
        for _ in range(5):
            x = product(x, w, *bias, config=config)
        return x

    shapes = [bf16(64, 64), bf16(64, 64), bf16(64)]
    text = jax.jit(program).trace(*shapes[: 2 + is_layer]).lower(lowering_platforms=platforms).as_text()
    assert text.count("custom_call @jax_moye") == 5
    # On the CPU, where only XLA computes it, a layer's product is decided about once more, without its epilogue.
    assert sorted(decided) == ["cpu"] * ("cpu" in platforms) * (1 + is_layer) + ["cuda"]
    assert traced == []


def scaled(x):
    return 2 * x


SQUARE = bf16(64, 64)
PAIR = (SQUARE, SQUARE)


def chained(fun):
    """Behind a product of x with itself."""
    return lambda x, *operands: fun(matmul(x, x), *operands)


@pytest.mark.parametrize(
    ("fun", "shapes", "donated", "early"),
    [
        (matmul, PAIR, (), [0]),
        (chained(matmul), PAIR, (), [0, 2]),
        (chained(lambda y, w: matmul(w, y)), PAIR, (), [0, 1]),
        (chained(lambda y, w: matmul(y, w.T)), PAIR, (), [0, 2]),
        (chained(lambda y, w: matmul(y.reshape(16, 256), w)), (SQUARE, bf16(256, 64)), (), [0, 2]),
        (
            chained(lambda y, v, w: jax_moye.linear(v, w, residual=y, implementation="moye")),
            (SQUARE, *PAIR),
            (),
            [0, 3],
        ),
        (chained(lambda y, w: jax.jit(scaled)(matmul(jax.jit(matmul)(y, y), w))), PAIR, (), [0, 0, 2]),
        (chained(lambda y, w: matmul(scaled(y), w)), PAIR, (), [0, 0]),
        (chained(lambda y, w: matmul(y, scaled(w))), PAIR, (), [0, 0]),
        (
            chained(lambda y, w: matmul(y, w.astype(jnp.bfloat16))),
            (SQUARE, jax.ShapeDtypeStruct((64, 64), jnp.float32)),
            (),
            [0, 0],
        ),
        (chained(lambda y: matmul(y, jnp.ones((64, 64), jnp.bfloat16))), PAIR[:1], (), [0, 0]),
        (chained(lambda y, w: (matmul(y, w), scaled(w))), PAIR, (1,), [0, 0]),
        (lambda x, w: jax.lax.fori_loop(0, 3, lambda _, x: matmul(matmul(x, x), w), x), PAIR, (), [0, 0]),
        (chained(lambda y, w: jax.jit(matmul)(y, scaled(w))), PAIR, (), [0, 0]),
        (chained(lambda y, w: matmul(y, w.reshape(64, 64))), (SQUARE, bf16(4096)), (), [0, 0]),
    ],
    ids=[
        "no kernel ahead",
        "weights",
        "on the left",
        "transposed",
        "in another shape",
        "kernel adds",
        "inner kernel",
        "computed between",
        "weights computed",
        "converted",
        "constant",
        "donated",
        "loop",
        "inner",
        "reshaped",
    ],
)
def test_operands_that_last_are_read_early_where_calls_are_recorded(monkeypatch, fun, shapes, donated, early):
    """What the program was given as a kernel reads it, and nobody writes while it runs, right behind another kernel."""
    monkeypatch.setattr(ffi, "records_calls", lambda: True)
    traced = jax.jit(fun, donate_argnums=donated).trace(*shapes)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert sorted(map(int, re.findall(r"early_operands = (\d+)", text))) == early
    assert "uses_pdl = true" in text


@pytest.mark.parametrize(("precision", "early"), [("high", "000"), ("default", "2")], ids=["three launches", "one"])
def test_parts_of_numbers_are_computed_and_do_not_last(monkeypatch, precision, early):
    """3 x TF32 multiplies what the program makes of its arguments."""
    monkeypatch.setattr(ffi, "records_calls", lambda: True)
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    config = "sm80_multistage_tf32_64x64x32_s3_a16"

    def fun(x, w):
        return matmul(matmul(x, x, precision="default", config=config), w, precision=precision, config=config)

    assert "".join(sorted(re.findall(r"early_operands = (\d+)", lowered_text(fun, x, x)))) == "0" + early


def test_of_exported_programs_nothing_lasts(monkeypatch):
    """Another program may compute their arguments."""
    monkeypatch.setattr(ffi, "records_calls", lambda: True)
    exported = jax.export.export(
        jax.jit(chained(matmul)), platforms=("cuda",), disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS
    )(*PAIR)
    assert set(re.findall(r"early_operands = (\d+)", exported.mlir_module())) == {"0"}


def test_platforms_without_kernels():
    fun = jax.jit(jax_moye.matmul).trace(bf16(64, 64), bf16(64, 64))
    assert "dot_general" in fun.lower(lowering_platforms=("tpu",)).as_text()
    with pytest.raises(NotImplementedError, match="for another platform"):
        jax.jit(matmul).trace(bf16(64, 64), bf16(64, 64)).lower(lowering_platforms=("tpu",))


def test_the_emulator_is_not_for_gpus():
    for implementation in (None, "moye"):
        with pytest.raises(NotImplementedError, match="emulator on the CPU, and this program is for cuda"):
            lowered_text(
                functools.partial(jax_moye.matmul, implementation=implementation, interpret=True),
                bf16(8, 8),
                bf16(8, 8),
            )


@pytest.mark.parametrize(
    ("dtype", "precision", "ours"),
    [
        ("bfloat16", None, True),
        ("bfloat16", "highest", True),
        ("bfloat16", "BF16_BF16_F32", True),
        ("bfloat16", "F32_F32_F32", False),
        ("float16", "high", True),
        ("float32", None, "tf32"),
        ("float32", "default", "tf32"),
        ("float32", "high", "f32"),  # 64x64: 3 x TF32 takes longer
        ("float32", ("highest", "default"), False),
        ("float32", "highest", True),
        ("float32", "F32_F32_F32", True),
        ("float32", ("default", "highest"), False),
        ("float32", "TF32_TF32_F32", "tf32"),
        ("float32", "TF32_TF32_F32_X3", "f32"),
        ("float32", "BF16_BF16_F32", False),
        ("float32", lax.DotAlgorithm(np.float32, np.float32, np.float32), False),
        ("float16", "F16_F16_F16", True),
        ("int8", None, "s8"),
        ("int8", "highest", "s8"),
        ("int8", "F32_F32_F32", False),
        ("int16", None, False),
        ("float8_e4m3fn", None, "e4m3"),
        ("float8_e5m2", "ANY_F8_ANY_F8_F32_FAST_ACCUM", "e5m2"),
        ("float8_e4m3fn", "highest", False),
        ("float8_e4m3fn", "ANY_F8_ANY_F8_F32", False),
    ],
    ids=str,
)
def test_who_computes_by_default(kernels_are_there, dtype, precision, ours):
    """`ours` names the operands of the rows that compute, where the table has any."""
    jax.clear_caches()
    if isinstance(ours, str):
        ours = any(row.dtype == ours for row in jax_moye.configs())
    a = jax.ShapeDtypeStruct((64, 64), dtype)
    text = lowered_text(functools.partial(jax_moye.matmul, precision=precision), a, a)
    assert (TARGET in text) == ours
    assert ("dot_general" in text) != ours


def rows_with(**fields) -> list[str]:
    return [c.name for c in jax_moye.configs() if all(getattr(c, name) == value for name, value in fields.items())]


def chosen(dtype, precision=None, size=64, **options) -> str:
    """The config of a square product."""
    jax.clear_caches()
    a = jax.ShapeDtypeStruct((size, size), dtype)
    (call,) = custom_calls(lowered_text(functools.partial(matmul, precision=precision, **options), a, a))
    return call.config


def test_tf32_only_where_jax_computes_in_it():
    tf32, f32 = rows_with(dtype="tf32"), rows_with(dtype="f32")
    if not tf32:
        pytest.skip("no row of tf32 in this build")
    for precision in (None, "default", "DEFAULT", "TF32_TF32_F32"):
        assert chosen("float32", precision) in tf32
    for precision in ("high", "highest", ("default", "highest"), "F32_F32_F32", "TF32_TF32_F32_X3", "BF16_BF16_F32_X3"):
        assert chosen("float32", precision) in f32
    # By name, unless the precision forbids it.
    for precision in (None, "TF32_TF32_F32", "BF16_BF16_F32"):
        assert chosen("float32", precision, config=tf32[0]) == tf32[0]
    for precision in ("highest", "F32_F32_F32", "BF16_BF16_F32_X3"):
        with pytest.raises(ValueError, match=r"multiplies in TF32, and precision .* asks for more"):
            chosen("float32", precision, config=tf32[0])


def test_f16_sums_only_where_they_are_asked_for():
    narrow, wide = rows_with(dtype="f16", accumulator="f16"), rows_with(dtype="f16", accumulator="f32")
    if not narrow:
        pytest.skip("no row that sums in f16 in this build")
    assert chosen("float16", "F16_F16_F16") in narrow
    assert chosen("float16", "F16_F16_F16", size=63) in narrow + wide
    for precision in (None, "highest", "F16_F16_F32", "DEFAULT"):
        assert chosen("float16", precision) in wide
    assert chosen("float16", config=narrow[0]) == narrow[0]
    with pytest.raises(ValueError, match=r"sums in f16, and precision .* asks for more"):
        chosen("float16", "highest", config=narrow[0])


def test_fast_accumulation_only_where_it_is_asked_for(kernels_are_there, monkeypatch):
    """Sums of 8-bit floats leave the tensor core every 128 of k, but for the preset that says they need not."""
    monkeypatch.setattr(_compat, "cuda_arch", lambda: 90)
    monkeypatch.setattr(capability, "_device_meant", lambda arch: None)  # it is not here
    for dtype, name in (("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2")):
        fast, promoted = rows_with(dtype=dtype, accumulator="f32_fast"), rows_with(dtype=dtype, accumulator="f32")
        if not fast or not promoted:
            continue
        assert chosen(name, "ANY_F8_ANY_F8_F32_FAST_ACCUM") in fast
        for precision in (None, "default", "DEFAULT"):
            assert chosen(name, precision) in promoted
            assert chosen(name, precision, config=fast[0]) == fast[0]  # by name
        a = jax.ShapeDtypeStruct((64, 64), name)
        more = functools.partial(jax_moye.matmul, precision="ANY_F8_ANY_F8_F32")
        jax.clear_caches()
        assert not set(custom_calls(lowered_text(more, a, a))) & set(fast)
        with pytest.raises((ValueError, NotImplementedError), match=r"ANY_F8_ANY_F8_F32"):
            chosen(name, "ANY_F8_ANY_F8_F32", config=fast[0])


def test_one_gpus_code_is_for_that_gpu(kernels_are_there, monkeypatch):
    rows = rows_with(max_arch=90, dtype="bf16")
    if not rows:
        pytest.skip("no row of sm_90a in this build")
    assert chosen("bfloat16", size=4096) in rows  # where there is no GPU, an H200's
    monkeypatch.setattr(
        capability, "_device_meant", lambda arch: None
    )  # none of those that cuda_arch now names is here
    for arch, message in ((80, "needs sm_90"), (100, "code is sm_90's"), (90, None)):
        monkeypatch.setattr(_compat, "cuda_arch", lambda arch=arch: arch)
        if message is None:
            assert chosen("bfloat16", size=4096) in rows
            assert chosen("bfloat16", size=4096, config=rows[0]) == rows[0]
        else:
            assert chosen("bfloat16", size=4096) not in rows
            with pytest.raises(ValueError, match=message):
                chosen("bfloat16", size=4096, config=rows[0])


def test_rows_that_the_cuda_module_lacks(kernels_are_there, monkeypatch):
    chosen_before = chosen("bfloat16", size=4096)
    monkeypatch.setattr(ffi, "built", lambda platform: frozenset(rows_with(dtype="bf16")) - {chosen_before})
    assert chosen("bfloat16", size=4096) != chosen_before
    with pytest.raises(ValueError, match="is not in this build"):
        chosen("bfloat16", size=4096, config=chosen_before)


@pytest.mark.parametrize("out_dtype", ["int8", "int16", "int32", "float32", "bfloat16"])
def test_results_of_int8(kernels_are_there, out_dtype):
    if not rows_with(dtype="s8"):
        pytest.skip("no row of int8 in this build")
    a = jax.ShapeDtypeStruct((64, 64), jnp.int8)
    text = lowered_text(functools.partial(jax_moye.matmul, preferred_element_type=out_dtype), a, a)
    assert TARGET in text
    assert ("stablehlo.convert" in text) == (out_dtype in ("int8", "int16"))


def test_int8_sums_beyond_int32_are_not_floats(kernels_are_there):
    a, b = (jax.ShapeDtypeStruct(shape, jnp.int8) for shape in ((8, 131072), (131072, 8)))
    assert TARGET not in lowered_text(functools.partial(jax_moye.matmul, preferred_element_type=jnp.float32), a, b)


def test_a_build_without_nvcc_leaves_a_gpu_to_xla(caplog):
    if ffi.extension("cuda") is not None:
        pytest.skip("this jax_moye has CUDA kernels")
    jax.clear_caches()
    with caplog.at_level(logging.INFO, logger="jax_moye"):
        # Odd: of others XLA may be faster, and that is what the log would say.
        assert TARGET not in lowered_text(jax_moye.matmul, bf16(4095, 4095), bf16(4095, 4095))
    assert "built without kernels for cuda" in caplog.text


def test_mixed_operands(kernels_are_there):
    jax.clear_caches()
    a, b = bf16(64, 64), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    assert TARGET not in lowered_text(functools.partial(jax_moye.matmul, precision="highest"), a, b)
    text = lowered_text(matmul, a, b)
    assert TARGET in text
    assert text.count("stablehlo.convert") == 1


def test_several_devices_go_to_xla(kernels_are_there):
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))  # explicit since jax 0.11
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    a = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16, sharding=sharding)
    for fun, insists in ((jax_moye.matmul, False), (matmul, True)):
        traced = jax.jit(fun).trace(a, bf16(64, 64))
        if insists:
            with pytest.raises(NotImplementedError, match="partitioned over 2 devices outside of shard_map"):
                traced.lower(lowering_platforms=("cuda",))
        else:
            assert TARGET not in traced.lower(lowering_platforms=("cuda",)).as_text()
