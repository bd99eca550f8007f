"""The grammar of a config's name: what a row of configs.h is called, and what a name says."""

from __future__ import annotations

import pathlib

import pytest

from jax_moye._kernels.config_names import parse_name, parse_row, rows_of

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROW = "{my_kernel, bf16, f32, {32, 64, 16}, 1, {1, 1}, 4}"


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (ROW, "my_kernel_bf16_32x64x16_s1_a4"),
        ("{k, e4m3,  f32_fast, {128, 64, 128}, 5, {1, 2}, 16}", "k_e4m3_f32_fast_128x64x128_s5_c1x2_a16"),
        ("{k,f64,f64,{ 8, 8,8},1,{2,1},8}", "k_f64_8x8x8_s1_c2x1_a8"),
        ("{k, s8, s32, {8, 8, 8}, 1, {1, 1}, 1}", "k_s8_8x8x8_s1_a1"),
    ],
)
def test_names(row, name):
    assert parse_row(row).name == name


def test_names_are_those_of_the_table():
    rows = rows_of((ROOT / "cuda/gemm/configs.h").read_text())
    names = [parse_row(row).name for row in rows]
    assert len(set(names)) == len(rows) > 50
    assert "sm90_cooperative_bf16_256x128x64_s4_c1x2_a16" in names


def test_a_name_says_what_the_row_says():
    rows = [parse_row(row) for row in rows_of((ROOT / "cuda/gemm/configs.h").read_text())]
    assert [parse_name(row.name) for row in rows] == rows
    for wrong in ("", "sm80_multistage", "sm80_multistage_bf16_128x128x32_s4", "sm80_multistage_i4_8x8x8_s4_a16"):
        with pytest.raises(ValueError, match="no name of a config"):
            parse_name(wrong)


@pytest.mark.parametrize("row", ["", "{k, bf16}", "{k, bf16, f32, {1, 2}, 1, {1, 1}, 4}", ROW + ",", ROW[:-1]])
def test_what_is_no_row(row):
    with pytest.raises(ValueError, match=r"a row of cuda/gemm/configs\.h is"):
        parse_row(row)
