"""The forms of files of results: what their lines say, and which times they have."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
from python.bench_results import on_h200, report
from python.measured import entry_of

import jax_moye
from jax_moye._bench import forms
from jax_moye._selection.attention_key import AttentionKey

RESULTS = pathlib.Path(__file__).resolve().parents[3] / "benchmarks/results"
LADDER = RESULTS / "nvidia_h200-2026-11-20-6889ca3-ladder.json"


def test_a_result_of_bench():
    burst = {"ratio": 1.5, "ratio_ci": [1.4, 1.6]}
    rows = [
        on_h200("A1", 2.0, 200.0, us_ci=[190.0, 210.0], by_default="moye", default_ratio=3.0, chosen_by="model"),
        on_h200("B1", 1.0, 50.0, "simt_tiled", host_bound=["xla"], clocks_differ=True, burst=burst),
        {**on_h200("C1", 1.0, 50.0), "correct": False, "why": "of a reason"},
    ]
    del rows[2]["ratio"]
    lines = forms.lines(report(*rows) | {"not_run": [{"id": "D1", "why": "no kernel"}]})
    text = "\n".join(lines)
    assert re.search(r"^A1 +64x64x64 NN bf16 +200 +2\.000 \[2\.000, 2\.000\] .* moye 3\.000", text, re.MULTILINE)
    assert "clocks; host: xla" in text
    assert "1.500 [1.400, 1.600]" in text
    assert "WRONG: of a reason" in text
    assert "D1 not run: no kernel" in text
    assert "geometric mean of the ratios 2.000 of 1 rows" in " ".join(text.split())
    for name in ("ratio", "by default", "notes", "burst", "kernel", "chosen by"):
        assert f"\n{name}: {forms.COLUMNS[name][:40]}" in text, name
    assert "lead: " not in text  # no such column
    a1, b1 = forms.timed(report(*rows))
    assert (a1.us, a1.us_ci, a1.ratio, a1.against) == (200.0, [190.0, 210.0], 2.0, "xla")
    assert b1.us_ci is None


def test_rows_are_the_same_product_by_all_that_they_compute():
    def key(**more):
        return forms.timed(report(on_h200("A1", 2.0, 200.0, **more)))[0].key

    different = [key(), key(k=32), key(layout="TN"), key(dtype="f16"), key(precision="HIGH"), key(epilogue="bias")]
    assert len(set(different)) == len(different)
    assert key(config="simt_tiled") == key()


def entry(a_strides, b_strides):
    problem = {"batch": 2, "m": 8, "n": 16, "k": 32, "dtype": "s8", "out_dtype": "s32"}
    problem |= {"a_strides": a_strides, "b_strides": b_strides, "d_strides": [128, 16, 1]}
    of_xla = {"xla_us": {"x": 3.0}, "lead": {"x": 1.4}}
    return {"problem": problem, "variant": "bias", "config": "c", "us": {"c": 2.0, "d": 4.0}, "date": "today"} | of_xla


def test_a_file_of_tune():
    made = {"gpu": "G", "date": "d", "entries": [entry([256, 32, 1], [512, 1, 16]), entry([256, 1, 8], [512, 32, 1])]}
    text = "\n".join(forms.lines(made))
    assert re.search(r"^2x8x16x32 NN s8 to s32 bias +c +2 +3 +1\.500 +1\.400 +2 ", text, re.MULTILINE)
    assert "2x8x16x32 TT s8 to s32 bias" in text
    assert [one.us for one in forms.timed(made)] == [2.0, 2.0]


def test_a_file_of_tune_as_it_is_written():
    """Problems with all their fields, and an attention, which has others."""
    gemm = jax_moye.explain((8, 32), (32, 16), "bfloat16", implementation="moye", device="h200")[0]
    sizes = (2, 4, 1, 128, 256, 64)
    both = {"config": "a + b", "us": {"a + b": 7.0}, "variant": "digest"}
    entries = [
        entry_of(gemm, {gemm.config.name: 5.0}),
        entry_of(gemm, problem=AttentionKey(sizes, "bf16", None, 1, ())),
    ]
    written = [one.to_dict() for one in entries]
    made = {"gpu": "G", "date": "d", "entries": [written[0], written[1] | both]}
    text = "\n".join(forms.lines(made))
    assert re.search(rf"^8x16x32 NN bf16 +{gemm.config.name} +5\b", text, re.MULTILINE)
    assert re.search(r"^attention, 2 x 4 heads, 128 x 256 scores of 64, bf16 digest +a \+ b +7\b", text, re.MULTILINE)
    assert [one.us for one in forms.timed(made)] == [5.0, 7.0]


@pytest.mark.skipif(not LADDER.exists(), reason="no results beside the tests")
def test_a_ladder():
    ladder = json.loads(LADDER.read_text())
    assert max(map(len, forms.lines(ladder))) <= 100
    assert [one.name for one in forms.timed(ladder)] == [rung["kernel"] for rung in ladder["rungs"]]
    assert forms.about(ladder).startswith("NVIDIA H200, 2026-11-20T15:22:16Z, commit 6889ca3")
    with pytest.raises(ValueError, match="nothing in it is timed"):
        forms.timed(ladder | {"rungs": [ladder["rungs"][0] | {"measured": None}]})


def test_whole_programs():
    run = {"program": "train", "xla": {"ms": 2.0, "losses": [1.0]}, "default": {"ms": 1.5, "calls": 3}}
    made = {"gpu": "G", "about": "A step.", "how": "Somehow.", "runs": [run], "more": {}}
    text = "\n".join(forms.lines(made))
    assert re.search(r"^program +xla ms +default ms +default calls\ntrain +2 +1\.5 +3$", text, re.MULTILINE)
    assert text.endswith("also in the file: more")
    assert [(one.name, one.us) for one in forms.timed(made)] == [("train, xla", 2000.0), ("train, default", 1500.0)]


@pytest.mark.parametrize("wrong", [{}, {"shape": 1}, [], [{}], 3, None])
def test_no_form(wrong):
    for read in (forms.lines, forms.timed):
        with pytest.raises(ValueError, match="none of the forms"):
            read(wrong)


@pytest.mark.parametrize("wrong", [0, -1.0, "1", None, True, float("nan")])
def test_what_is_no_time_is_not_compared(wrong):
    row = on_h200("A1", 2.0, 200.0)
    for key in ("us", "ratio"):
        if wrong is not None:  # which says that there is none
            with pytest.raises((TypeError, ValueError)):
                forms.timed(report(row | {key: wrong}))
    with pytest.raises((TypeError, ValueError)):
        forms.timed(report(row | {"ratio_ci": [1.0, wrong]}))
