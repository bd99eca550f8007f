"""`python -m jax_moye explain`."""

import json

import jax.numpy as jnp
import pytest

import jax_moye
from jax_moye import _compat
from jax_moye.__main__ import main
from jax_moye._format import rounded, us_text
from jax_moye._inspect.command import explain_shape, parse_shape


def test_command(capsys):
    assert main(["explain", "--shape", "64x64x64:bf16:NT", "--device", "h200", "--top", "3"]) == 0
    text = capsys.readouterr().out
    assert "order" in text
    assert "NT, aligned to 16 bytes" in text
    assert main(["explain", "--shape", "2x64x64x64:f16", "--shape", "8x8x8:f64", "--device", "a100", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert [found["gemms"][0]["problem"]["batch"] for found in both] == [2, 1]
    assert main(["explain", "--shape", "64x64:bf16"]) == 1
    assert main(["explain", "--shape", "64x64x64:bf16", "--device", "x"]) == 1
    errors = capsys.readouterr().err
    assert "4096x4096x4096:bf16:NT" in errors
    assert "device 'x' is not known" in errors


def test_shapes_of_the_command():
    assert parse_shape("4096x4096x4096:bf16") == (1, 4096, 4096, 4096, "bf16", "NN")
    assert parse_shape("2x3x4x5:f16:TN") == (2, 3, 4, 5, "f16", "TN")
    assert parse_shape("2x3x4x5:bfloat16:tn") == (2, 3, 4, 5, "bf16", "TN")  # as JAX spells it
    assert parse_shape("3x4x5:float8_e4m3fn") == (1, 3, 4, 5, "e4m3", "NN")
    assert parse_shape("2 x 3 x 4 x 5 : f16 : TN") == (2, 3, 4, 5, "f16", "TN")  # as --help writes its form
    for order in ("NN", "NT", "TN", "TT"):
        assert explain_shape(f"16x32x64:bf16:{order}", device=90)[0].problem.order == order
        assert explain_shape(f"16x32x64:bf16:{order}", device=90)[0].problem.sizes == (1, 16, 32, 64)
    for wrong in ("4096", "4096x4096:bf16", "1x2x3:bf17", "1x2x3:bf16:N", "1x2x3x4x5:bf16", "1x2x3 4:bf16"):
        with pytest.raises(ValueError, match="--shape is"):
            parse_shape(wrong)


def test_a_batch_of_0_is_a_size_of_0(capsys):
    assert main(["explain", "--shape", "0x16x16x16:bf16", "--device", "h200"]) == 0
    assert "nobody: a size is 0" in capsys.readouterr().out


def test_a_result_of_64_bits(capsys):
    """It is what was asked for, as operands of f64 are, and JAX warns of nothing."""
    assert main(["explain", "--shape", "64x64x64:f32", "--out-dtype", "f64", "--device", "h200"]) == 0
    assert " into float64, on h200" in capsys.readouterr().out


def test_a_number_of_lines_is_not_negative(capsys):
    with pytest.raises(SystemExit):
        main(["explain", "--shape", "16x16x16:bf16", "--top", "-3"])
    assert "argument --top: -3 is below 0" in capsys.readouterr().err


def test_it_says_which_gpu_is_assumed(monkeypatch, capsys):
    monkeypatch.delenv("JAX_MOYE_CUDA_ARCH", raising=False)
    monkeypatch.setattr(_compat, "cuda_arch", lambda: None)
    note = "JAX sees no GPU here: one NVIDIA H200 is assumed."
    assert main(["explain", "--shape", "16x16x16:bf16"]) == 0
    assert note in capsys.readouterr().out
    assert main(["explain", "--shape", "16x16x16:bf16", "--device", "h200"]) == 0
    assert note not in capsys.readouterr().out
    with jax_moye.cuda_target(80):
        assert jax_moye.explain(lambda x: x @ x, jnp.ones((4, 4))).notes[:1] != (note,)
    assert jax_moye.explain(lambda x: x @ x, jnp.ones((4, 4))).notes[0].startswith(note)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ("1024x1024x1024:bf16", {}),  # ours
        ("17x1024x1023:bf16", {}),
        ("64x64x64:f32", {}),  # as TF32
        ("256x256x256:bf16", {"batch_invariant": True}),
        ("256x256x256:f16", {"implementation": "xla"}),
    ],
)
def test_xlas_time_is_always_shown(shape, options):
    (gemm,) = explain_shape(shape, device="h200", **options)
    assert gemm.xla_us > 0
    assert f"{us_text(gemm.xla_us)} us, predicted" in dict(gemm.facts())["XLA"]
    assert gemm.to_dict()["xla_us"] == rounded(gemm.xla_us)
    (elsewhere,) = explain_shape(shape, device="a100", **options)
    assert elsewhere.xla_us is None
    assert "not known" in dict(elsewhere.facts())["XLA"]


def test_xlas_time_of_a_program():
    x = jnp.ones((512, 512), jnp.bfloat16)
    found = jax_moye.explain(lambda x: jnp.dot(x, x) + jax_moye.matmul(x, x + 1), x, device="h200")
    of_lax = next(gemm for gemm in found if gemm.computed_by == "xla")
    line = found.summary()[1 + list(found).index(of_lax)]
    assert line[-3:] == [us_text(of_lax.xla_us)] * 3
