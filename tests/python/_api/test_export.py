"""Programs that are saved, loaded and lowered for machines that are not this one."""

import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import FUSED_TARGET, TARGET, custom_calls, integers

import jax_moye
from jax_moye._kernels import ffi

pytest.importorskip("flatbuffers")

ROOT = pathlib.Path(__file__).resolve().parents[3]
SAVED = ROOT / "tests" / "data" / "exported"
ROW = "sm80_multistage_bf16_64x64x64_s3_a16"  # which every build has


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def export(fun, *args, platforms=("cpu",), **kwargs):
    kwargs.setdefault("disabled_checks", jax_moye.EXPORT_DISABLED_CHECKS)
    return jax.export.export(jax.jit(fun), platforms=platforms, **kwargs)(*args)


def emulated(a, b):
    return jax_moye.matmul(a, b, interpret=True)


def kernels(a, b):
    return jax_moye.matmul(a, b, implementation="moye")


def test_what_must_be_declared():
    with pytest.raises(ValueError, match=TARGET):
        export(emulated, bf16(4, 8), bf16(8, 4), disabled_checks=())
    for module in filter(None, map(ffi.extension, ("cpu", "cuda"))):
        declared = {check.is_custom_call() for check in jax_moye.EXPORT_DISABLED_CHECKS}
        others = {ffi.SCALED_TARGET, ffi.VIEW_TARGET, ffi.GROUPED_TARGET, ffi.WEIGHTS_TARGET, ffi.BLOCK_SCALED_TARGET}
        others |= {ffi.SCALED_GROUPED_TARGET, ffi.SCATTERED_GROUPED_TARGET}
        others |= {ffi.VIEW_ATTENTION_TARGET, ffi.VIEW_ATTENTION_GRAD_TARGET}
        others |= {ffi.JOINED_ATTENTION_GRAD_TARGET}
        others |= {ffi.BIASED_ATTENTION_TARGET, ffi.BIASED_ATTENTION_GRAD_TARGET}
        others |= {ffi.CAPPED_ATTENTION_TARGET, ffi.CAPPED_ATTENTION_GRAD_TARGET}
        others |= {ffi.DROPPED_ATTENTION_TARGET, ffi.DROPPED_ATTENTION_GRAD_TARGET}
        assert declared == {TARGET, FUSED_TARGET, ffi.ATTENTION_TARGET, ffi.ATTENTION_GRAD_TARGET} | others
        assert set(module.handlers()) - {ffi.MARK_TARGET} <= declared


def test_round_trip(rng):
    a, b = integers(rng, (5, 8), jnp.bfloat16), integers(rng, (8, 3), jnp.bfloat16)
    saved = export(emulated, a, b).serialize(vjp_order=2)
    loaded = jax.export.deserialize(saved)
    assert f"@{TARGET}" in loaded.mlir_module()
    np.testing.assert_array_equal(np.asarray(loaded.call(a, b), np.float64), a.astype(np.float64) @ b)

    cotangent = integers(rng, (5, 3), jnp.bfloat16)
    _, vjp = jax.vjp(loaded.call, a, b)
    a_bar, b_bar = vjp(jnp.asarray(cotangent))
    np.testing.assert_array_equal(np.asarray(a_bar, np.float64), cotangent.astype(np.float64) @ b.T)
    np.testing.assert_array_equal(np.asarray(b_bar, np.float64), a.T.astype(np.float64) @ cotangent)
    assert loaded.vjp().vjp().mlir_module().count(f"@{TARGET}") >= 4  # derivatives of derivatives were saved with it
    # Part of another program, under vmap or jit.
    doubled = jax.jit(lambda a, b: loaded.call(2 * a, b))(a, b)
    np.testing.assert_array_equal(np.asarray(doubled, np.float64), 2 * a.astype(np.float64) @ b)


def test_several_platforms_in_one_file(rng):
    fun = lambda a, b: jax_moye.matmul(a, b, config=ROW)  # noqa: E731
    exported = export(fun, bf16(8, 16), bf16(16, 8), platforms=("cpu", "cuda"))
    text = exported.mlir_module()
    assert text.count(f"@{TARGET}") == 1
    assert "stablehlo.dot_general" in text  # on the CPU
    a, b = integers(rng, (8, 16), jnp.bfloat16), integers(rng, (16, 8), jnp.bfloat16)
    out = jax.export.deserialize(exported.serialize()).call(a, b)
    np.testing.assert_array_equal(np.asarray(out, np.float64), a.astype(np.float64) @ b)


def test_symbolic_shapes_are_xlas(rng):
    (m,) = jax.export.symbolic_shape("m")
    exported = export(jax_moye.matmul, bf16(m, 6), bf16(6, 5))
    assert TARGET not in exported.mlir_module()
    a, b = integers(rng, (3, 6), jnp.bfloat16), integers(rng, (6, 5), jnp.bfloat16)
    out = jax.export.deserialize(exported.serialize()).call(a, b)
    np.testing.assert_array_equal(np.asarray(out, np.float64), a.astype(np.float64) @ b)
    with pytest.raises(NotImplementedError, match="not all known"):
        export(emulated_moye, bf16(m, 6), bf16(6, 5))


def emulated_moye(a, b):
    return jax_moye.matmul(a, b, interpret=True, implementation="moye")


def in_a_new_process(code, *args):
    environ = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], env=environ, capture_output=True, text=True, timeout=240
    )


def test_register_before_loading(tmp_path, rng):
    """In a process that traces nothing of ours."""
    a, b = integers(rng, (5, 8), jnp.bfloat16), integers(rng, (8, 3), jnp.bfloat16)
    (tmp_path / "program").write_bytes(export(emulated, a, b).serialize())
    load = """
import sys
import jax, jax.numpy as jnp
import jax_moye
if "register" in sys.argv:
    jax_moye.register()
with open(sys.argv[1], "rb") as file:
    loaded = jax.export.deserialize(bytearray(file.read()))
print(loaded.call(jnp.ones((5, 8), jnp.bfloat16), jnp.ones((8, 3), jnp.bfloat16)).sum())
"""
    done = in_a_new_process(load, tmp_path / "program", "register")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 5 * 8 * 3
    done = in_a_new_process(load, tmp_path / "program")
    assert done.returncode != 0
    assert f"No FFI handler registered for {TARGET}" in done.stderr


def test_register_says_what_is_wrong(monkeypatch):
    with pytest.raises(ValueError, match="not 'tpu'"):
        jax_moye.register("tpu")
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: f"built without {platform}")
    with pytest.raises(NotImplementedError, match="register: built without cuda"):
        jax_moye.register("cuda")
    jax_moye.register()  # what there is


# ---------------------------------------------------------------------------------------------- programs kept here


def saved(kind):
    """Of every version, written by save_programs.py of that version."""
    return pytest.mark.parametrize(
        "path", sorted(SAVED.glob(f"[0-9]*.[0-9]*.[0-9].{kind}.bin")), ids=lambda path: path.stem
    )


def load(path):
    jax_moye.register("cpu")
    loaded = jax.export.deserialize(bytearray(path.read_bytes()))
    rows = set(re.findall(r'config = "(\w+)"', loaded.mlir_module() + loaded.vjp().mlir_module()))
    assert ROW in rows
    if not rows <= {row.name for row in jax_moye.configs()}:
        pytest.skip(f"this build lacks one of {rows}")
    return loaded


@saved("cpu")
def test_saved_programs_of_earlier_versions(path):
    """They load and compute, derivatives included, for as long as JAX itself loads what that version of JAX wrote."""
    loaded = load(path)
    rng = np.random.default_rng(1)
    a, b, cotangent = (integers(rng, shape, jnp.bfloat16) for shape in ((24, 40), (40, 16), (24, 16)))
    out, vjp = jax.vjp(loaded.call, a, b)
    a_bar, b_bar = vjp(jnp.asarray(cotangent))
    a64, b64, cotangent64 = (x.astype(np.float64) for x in (a, b, cotangent))
    np.testing.assert_array_equal(np.asarray(out, np.float64), a64 @ b64)
    np.testing.assert_array_equal(np.asarray(a_bar, np.float64), cotangent64 @ b64.T)
    np.testing.assert_array_equal(np.asarray(b_bar, np.float64), a64.T @ cotangent64)


@saved("layer.cpu")
def test_saved_layers_of_earlier_versions(path):
    loaded = load(path)
    rng = np.random.default_rng(1)
    x, w, bias, cotangent = (integers(rng, shape, jnp.bfloat16) for shape in ((24, 40), (40, 16), (16,), (24, 16)))
    out, vjp = jax.vjp(loaded.call, x, w, bias)
    x64, w64, bias64, cotangent64 = (v.astype(np.float64) for v in (x, w, bias, cotangent))
    z = x64 @ w64 + bias64
    np.testing.assert_array_equal(np.asarray(out, np.float64), np.maximum(z, 0))
    z_bar = np.where(z > 0, cotangent64, 0)
    expected = (z_bar @ w64.T, x64.T @ z_bar, z_bar.sum(axis=0))
    for actual, wanted in zip(vjp(jnp.asarray(cotangent)), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(actual, np.float64), wanted)


@saved("cuda")
def test_saved_programs_for_gpus(path):
    """What they call is still there; tests/gpu can run them."""
    loaded = jax.export.deserialize(bytearray(path.read_bytes()))
    assert loaded.platforms == ("cuda",)
    (call,) = custom_calls(loaded.mlir_module())
    assert set(call.attributes) == {"config", "sizes", "a_strides", "b_strides", "d_strides"}
    assert (call.config, call.sizes) == (ROW, (1, 24, 16, 40))
    assert (call.a_strides, call.b_strides, call.d_strides) == ((0, 40, 1), (0, 1, 16), (0, 16, 1))
    gradients = custom_calls(loaded.vjp().mlir_module())
    assert {call.config for call in gradients} <= {row.name for row in jax_moye.configs()}
    assert len(gradients) == 2


def test_a_program_of_each_kind_is_kept():
    kept = {path.name for path in SAVED.glob("*.bin")}
    assert {"0.1.0.cpu.bin", "0.1.0.cuda.bin", "0.1.0.layer.cpu.bin"} <= kept


# --------------------------------------------------------------------------------------------------- several devices


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import jax_moye
kind = {kind!r}
mesh = jax.make_mesh((2,), ("x",), axis_types=(getattr(AxisType, kind.title()) if kind != "manual" else AxisType.Auto,))
fun = lambda a, b: jax_moye.matmul(a, b, interpret=True, implementation="moye")
if kind == "manual":
    fun = jax.shard_map(fun, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
a = jax.device_put(jnp.ones((8, 16), jnp.bfloat16), NamedSharding(mesh, P("x")))
b = jax.device_put(jnp.ones((16, 8), jnp.bfloat16), NamedSharding(mesh, P()))
with jax.set_mesh(mesh):
    exported = jax.export.export(jax.jit(fun), disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS)(a, b)
    loaded = jax.export.deserialize(exported.serialize())
    assert "{target}" in loaded.mlir_module()
    assert loaded.nr_devices == 2
    print(float(jax.jit(loaded.call)(a, b).sum()))
"""


@pytest.mark.parametrize("kind", ["explicit", "manual", "auto"])
def test_programs_for_several_devices(kind, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2", prepend=" ")
    done = in_a_new_process(SHARDED.format(kind=kind, target=TARGET))
    if kind == "auto":
        assert done.returncode != 0
        assert "jax.export cannot save a program in which the partitioner propagates shardings" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) == 8 * 8 * 16


# ----------------------------------------------------------------------------------- for GPUs that are not here
