"""tools/compiled_bytes.py: what it reads out of a compiled module."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/compiled_bytes.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("compiled_bytes", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("f32[8,128]{1,0}", 4096),
        ("bf16[]", 2),
        ("(bf16[2,3]{1,0}, s32[], pred[5]{0})", 21),
        ("f8e4m3fn[16,16]{1,0}", 256),
        ("s4[6]{0:E(4)}", 3),
        ("token[]", 0),
    ],
)
def test_bytes_of_a_shape(tool, shape, expected):
    assert tool.bytes_of(shape) == expected


def test_kernels_of_a_loop_count_as_often_as_it_runs(tool):
    def fun(x):
        return jax.lax.scan(lambda y, _: (jnp.sin(jnp.cumsum(y, 0)), None), x, length=7)[0]

    text = jax.jit(fun).lower(jnp.ones((16, 32))).compile().as_text()
    found = tool.kernels(text)
    assert "while(" in text
    assert 7 in {one.times for one in found}
    in_loop = [one for one in found if one.times == 7 and one.written >= 16 * 32 * 4]
    assert in_loop
    assert all(one.moved == 7 * (one.read + one.written) for one in in_loop)
    assert not {one.op for one in found} & {"parameter", "tuple", "get-tuple-element", "while"}


def test_products_are_told_apart(tool):
    text = "\n".join(
        [
            "HloModule jit_f",
            "",
            "ENTRY %main (x: bf16[8,8]) -> bf16[8,8] {",
            "  %x = bf16[8,8]{1,0} parameter(0)",
            "  %gemm_fusion_dot.1 = bf16[8,8]{1,0} fusion(%x, %x), kind=kCustom, calls=%c",
            '  %ours = (bf16[8,8]{1,0}, u8[0]{0}) custom-call(%x, %x), custom_call_target="ours"',
            '  %empty = bf16[8,8]{1,0} custom-call(), custom_call_target="AllocateBuffer"',
            '  ROOT %f = bf16[8,8]{1,0} fusion(%ours), kind=kLoop, calls=%d, metadata={op_name="jit(f)/add"}',
            "}",
        ]
    )
    found = tool.kernels(text)
    assert [(one.name, one.is_product, one.read, one.written) for one in found] == [
        ("gemm_fusion_dot.1", True, 256, 128),
        ("ours", True, 256, 128),
        ("f", False, 128, 128),
    ]
    assert found[-1].source == "jit(f)/add"


def test_what_is_written_in_place_is_no_whole_array(tool):
    text = """
ENTRY %main (zeros: f32[8,100], index: s32[8,1]) -> f32[8,100] {
  %zeros = f32[8,100]{1,0} parameter(0)
  %index = s32[8,1]{1,0} parameter(1)
  ROOT %input_scatter_fusion = f32[8,100]{1,0} fusion(%zeros, %index), kind=kInput, calls=%c
}"""
    (one,) = tool.kernels(text)
    assert (one.read, one.written) == (32, 32)


def test_it_says_how_it_is_used():
    run = subprocess.run([sys.executable, TOOL, "--help"], capture_output=True, text=True)
    assert run.returncode == 0
    assert "programs:gpt2 --size layers=2" in run.stdout
