"""The results of a benchmark: their summary, the protocol's mode, how they are shown, and the page made of them."""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from python.bench_results import measured, on_h200, report, three

from jax_moye import __main__ as cli
from jax_moye._bench import command, results


def test_summary():
    found = [measured(f"A{i + 1}", 1 + i / 10) for i in range(11)]
    found += [measured("G1", 4.0, "odd"), {"id": "B1", "regime": "mid", "correct": False}]
    *regimes, core = results.summary(found)
    assert regimes[1] == "odd: geometric mean of the ratios 4.000 of 1 rows"
    mean = np.exp(np.mean(np.log([1 + i / 10 for i in range(11)])))
    assert f"{mean:.3f} of 11 rows" in core  # G1 is not core
    assert "one row in ten at 1.100 or below" in core
    assert core.endswith("the lowest: A1 1.000, A2 1.100, A3 1.200, A4 1.300, A5 1.400")


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ([], "sustained"),
        (["--warmup-ms", "300"], "short"),
        (["--mode", "burst"], "burst"),
        (["--mode", "both"], "sustained"),
    ],
)
def test_mode(options, mode):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert results.mode(parser.parse_args(options)) == mode


def test_show(tmp_path, capsys):
    file = tmp_path / "result.json"
    file.write_text(json.dumps(report(*three())))
    assert cli.main(["show", str(file), "--svg", str(tmp_path / "charts")]) == 0
    printed = capsys.readouterr().out
    assert "core, A to E: geometric mean of the ratios 2.000 of 1 rows" in printed
    for name in ("result_ratio.svg", "result_roofline.svg"):
        ElementTree.fromstring((tmp_path / "charts" / name).read_text())
        assert name in printed


def test_show_of_what_is_no_result(tmp_path, capsys):
    file = tmp_path / "result.json"
    assert cli.main(["show", str(file)]) == 1
    file.write_text("{")
    assert cli.main(["show", str(file)]) == 1
    file.write_text('{"shape": [1, 2]}')
    assert cli.main(["show", str(file)]) == 1
    assert capsys.readouterr().err.count("result.json") == 3


def test_the_page_of_a_result_with_bursts_and_epilogues():
    path = pathlib.Path(__file__).resolve().parents[3] / "tools/benchmark_pages.py"
    spec = importlib.util.spec_from_file_location("benchmark_pages", path)
    pages = sys.modules["benchmark_pages"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(pages)
        lines = [on_h200("A1", 2.0, 200.0, burst={"ratio": 1.5}), on_h200("B1", 2.0, 200.0, epilogue="bias+gelu")]
        made = {"gpu": "NVIDIA H200", "jax": "0.11.2", "commit": "abc", "date": "2026-01-01", "rows": lines}
        made |= {"protocol": {"mode": "sustained", "alternations": 9}, "not_run": []}
        charts = {}
        page = pages.section(pages.Result("benchmarks/results/f.json", made), charts)
    finally:
        del sys.modules["benchmark_pages"]
    assert "in bursts, the core's geometric mean is 1.500." in page
    assert "| B1 | 64x64x64 | NN | bf16 bias+gelu | 200 |" in page
    assert list(charts) == ["docs/images/nvidia_h200_ratio.svg", "docs/images/nvidia_h200_roofline.svg"]
