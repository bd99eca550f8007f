"""`python -m jax_moye explain`."""

import json

import pytest

from jax_moye.__main__ import main
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
    for order in ("NN", "NT", "TN", "TT"):
        assert explain_shape(f"16x32x64:bf16:{order}", device=90)[0].problem.order == order
        assert explain_shape(f"16x32x64:bf16:{order}", device=90)[0].problem.sizes == (1, 16, 32, 64)
    for wrong in ("4096", "4096x4096:bf16", "1x2x3:bf17", "1x2x3:bf16:N", "1x2x3x4x5:bf16"):
        with pytest.raises(ValueError, match="--shape is"):
            parse_shape(wrong)
