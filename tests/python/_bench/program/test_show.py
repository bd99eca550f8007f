"""How whole programs are shown: tables, what the rewrites won, and the chart."""

from __future__ import annotations

import importlib.util
from xml.etree import ElementTree

import pytest
from python.bench_results import arm, program_run, programs

from jax_moye._bench import forms, results
from jax_moye._bench.program import show as program_show


def test_a_line_for_each_way():
    head, *lines = program_show.arms_cells(program_run())
    assert [line[0] for line in lines] == ["xla", "intercept", "optimize"]
    optimize = dict(zip(head, lines[2], strict=True))
    assert optimize["ms"] == "3.2"
    assert optimize["worst ms"] == "4"
    assert optimize["XLA / it"] == "1.250 [1.219, 1.281]"
    assert (optimize["kernels"], optimize["our kernels"]) == ("24", "3")
    assert (optimize["written MB"], optimize["memory MB"]) == ("3", "5")
    assert (optimize["lower s"], optimize["compile s"], optimize["difference"]) == ("0.5", "2.5", "0.02")
    assert optimize["remarks"] == "host-bound"
    assert dict(zip(head, lines[0], strict=True))["difference"] == ""


def test_what_is_not_known():
    run = program_run(xla=arm(4.0, memory_bytes=None, turns_unknown=True, throttled=["power cap"]))
    head, xla, *_ = program_show.arms_cells(run)
    xla = dict(zip(head, xla, strict=True))
    assert xla["memory MB"] == "not known"
    assert xla["remarks"] == "kernels at least, power cap"


def test_a_line_for_each_rewrite():
    head, *lines = program_show.rewrites_cells(program_run())
    assert head == ["product", "takes in", "times", "by", "us", "XLA us", "lead", "won us", "measured"]
    assert [line[1:] for line in lines] == [
        ["bias, silu", "8", "ours", "20.0", "45.0", "1.100", "200", "cache"],
        ["c", "4", "XLA", "30.0", "30.0", "1.100", "0", "cache"],
        ["bias", "2", "ours", "", "", "", "not measured", ""],
        ["nothing", "3", "ours", "10.0", "15.0", "1.100", "15", "cache"],
    ]


def test_what_they_won_in_all():
    assert program_show.words(program_run()) == [
        "3 different products that take something in, computed 14 times: 0.2 ms won of the 2 that were measured",
        "1 different products of ours that take nothing in, computed 3 times: 0.015 ms won",
        "1 different products that are XLA's, as they were, computed 6 times",
        "the optimized program takes 0.8 ms less than XLA's",
        "products not run: no kernel of ours",
        "a note",
    ]
    slower = program_run(optimize=arm(5.0), rewrites=[], not_run=[], notes=[])
    assert program_show.words(slower) == ["the optimized program takes 1 ms more than XLA's"]


def test_the_file_is_shown_and_compared():
    report = programs(program_run(), program_run(program="decode"))
    report["not_run"] = [{"id": "mine:train", "why": "there is no module mine"}]
    text = "\n".join(forms.lines(report))
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("optimize   3.2") == 2
    assert text.count("won us: ") == 1  # what columns mean stands once
    assert "mine:train not run: there is no module mine" in text
    assert "also in the file" not in text
    times = forms.timed(report)
    assert [one.name for one in times][:2] == ["train layers 2, bfloat16, xla", "train layers 2, bfloat16, intercept"]
    assert [one.us for one in times][:3] == [4000.0, 4000.0, 3200.0]


def test_other_programs_beside_them():
    plain = {"program": "old", "xla": {"ms": 2.0}, "all ours": {"ms": 1.0}}
    text = "\n".join(forms.lines(programs(plain, program_run())))
    assert "old      2       1" in text
    assert "optimize   3.2" in text


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="no matplotlib")
def test_the_chart(tmp_path):
    chart = program_show.chart(programs(program_run(), program_run(program="decode")))
    assert len(chart.figure.axes) == 4
    bars = {chart.tips[bar.get_gid()]: bar.get_width() for axes in chart.figure.axes for bar in axes.patches}
    assert bars["train, optimize: 3.2 ms, 0.800 of XLA's"] == pytest.approx(0.8)
    assert bars["decode, optimize: 24, 0.800 of XLA's"] == pytest.approx(0.8)
    assert bars["train, intercept: 5 MB, 1.000 of XLA's"] == 1
    assert len(bars) == 2 * 3 * 4
    ElementTree.fromstring(chart.svg)
    (path,) = results.draw(programs(program_run()), tmp_path, "trial")
    assert path == tmp_path / "trial_programs.svg"
    assert path.read_text().startswith("<svg")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="no matplotlib")
def test_a_chart_of_what_there_is():
    plain = {"program": "old", "xla": {"ms": 2.0}, "all ours": {"ms": 1.0}}
    assert len(program_show.chart(programs(plain)).figure.axes) == 1
    assert program_show.chart(programs({"program": "old", "default": {"ms": 2.0}})) is None
    assert program_show.chart(programs()) is None
