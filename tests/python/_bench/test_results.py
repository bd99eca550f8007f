"""The results of a benchmark: their summary, the protocol's mode, how they are shown, and the page made of them."""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import sys

import numpy as np
import pytest
from python.bench_results import measured, on_h200, report

from jax_moye._bench import command, results


def test_summary():
    found = [measured(f"A{i + 1}", 1 + i / 10) for i in range(11)]
    found += [measured("G1", 4.0, "odd"), {"id": "B1", "regime": "mid", "correct": False}]
    *regimes, core = results.summary(found)
    assert regimes[1:] == ["odd: geometric mean of the ratios 4.000 of 1 rows, the lowest G1 4.000"]
    mean = np.exp(np.mean(np.log([1 + i / 10 for i in range(11)])))
    assert f"{mean:.3f} of 11 rows" in core  # G1 is not core
    assert "one row in ten at 1.100 or below" in core
    assert core.endswith("the lowest: A1 1.000, A2 1.100, A3 1.200, A4 1.300, A5 1.400")


def by_default(name, ratio, default_ratio, timed_as="jax_moye", **more):
    more = {"by_default": "moye", "default_timed_as": timed_as, "default_ratio": default_ratio, **more}
    return on_h200(name, ratio, 100.0, **more)


def test_both_means_with_their_worst_rows():
    regime, core, default = results.summary([by_default("A1", 0.5, 1.0, "xla"), by_default("A2", 2.0, 4.0)])
    assert regime == (
        "large: geometric mean of the ratios 1.000 of 2 rows, the lowest A1 0.500; by default geometric mean of the "
        "ratios 2.000 of 2 rows, the lowest A1 1.000"
    )
    assert core.startswith("core, A to E: geometric mean of the ratios 1.000 of 2 rows; one row in ten at 0.500")
    assert default == (
        "core, A to E, by default over XLA's own: geometric mean of the ratios 2.000 of 2 rows; one row in ten at "
        "1.000 or below; the lowest: A1 1.000, A2 4.000"
    )
    *_, everything, default = results.summary([by_default("decode/x", 2.0, 4.0, regime="decode")])
    assert everything.startswith("all: geometric mean of the ratios 2.000 of 1 rows")
    assert default.startswith("all, by default over XLA's own: geometric mean of the ratios 4.000 of 1 rows")


def test_rows_that_the_host_limited_are_in_no_mean():
    of_others = {"baselines": {"xla": 1.0, "torch": 9.0}}
    found = [
        by_default("A1", 2.0, 3.0),
        by_default("A2", 9.0, 3.0, host_bound=["torch"]) | of_others,  # which might have been the best
        by_default("A3", 9.0, 9.0, host_bound=["xla"]),
        by_default("A4", 9.0, 9.0, host_bound=["jax_moye"]),
        by_default("A5", 9.0, 3.0, "xla", host_bound=["xla"]),  # one program against itself, whoever waits
        by_default("A6", 2.0, 9.0, "default", host_bound=["default"]),
    ]
    regime, core, default, left_out = results.summary(found)
    assert (
        "ratios 2.000 of 2 rows, the lowest A1 2.000; by default geometric mean of the ratios 3.000 of 3 rows" in regime
    )
    assert "ratios 2.000 of 2 rows" in core
    assert "ratios 3.000 of 3 rows" in default
    assert left_out == "host-bound and left out of means: 5 rows, A2, A3, A4, A5, A6"
    assert [results.line(row).endswith("host-bound") for row in found] == [False] + [True] * 5
    assert "by default moye 3.000" in results.line(found[0])
    assert results.summary(found[2:3]) == ["host-bound and left out of means: 1 rows, A3"]


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


def test_the_end_fits_a_terminal():
    found = [by_default(f"A{i}", 1 + i / 7, 2.0) for i in range(9)]
    text = results.end(report(*found) | {"emulated": True})
    assert text.startswith("NVIDIA H200, jax 0.11.2, commit abc, 2026-01-01T00:00:00Z, emulated: its times say nothing")
    assert max(map(len, text.splitlines())) <= 100
    assert " ".join(text.split()).endswith("the lowest: A0 2.000, A1 2.000, A2 2.000, A3 2.000, A4 2.000")


@pytest.fixture
def pages():
    path = pathlib.Path(__file__).resolve().parents[3] / "tools/benchmark_pages.py"
    spec = importlib.util.spec_from_file_location("benchmark_pages", path)
    module = sys.modules["benchmark_pages"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["benchmark_pages"]


def result_of(pages, *lines):
    made = {"gpu": "NVIDIA H200", "jax": "0.11.2", "commit": "abc", "date": "2026-01-01", "rows": list(lines)}
    made |= {"protocol": {"mode": "sustained", "alternations": 9}, "not_run": []}
    return pages.Result("benchmarks/results/f.json", made)


def test_the_page_of_a_result_with_bursts_and_epilogues(pages):
    bursts = {"A1": {"ratio": 1.5}, "B1": {"ratio": 9.0, "host_bound": ["jax_moye"]}}
    lines = [on_h200("A1", 2.0, 200.0, burst=bursts["A1"])]
    lines += [on_h200("B1", 2.0, 200.0, epilogue="bias+gelu", burst=bursts["B1"])]
    charts = {}
    page = pages.section(result_of(pages, *lines), charts)
    assert "in bursts, the core's geometric mean is 1.500." in page
    assert "| B1 | 64x64x64 | NN | bf16 bias+gelu | 200 |" in page
    assert list(charts) == ["docs/images/nvidia_h200_ratio.svg", "docs/images/nvidia_h200_roofline.svg"]
    assert "default way" not in pages.of_readme(result_of(pages, *lines))


def test_the_default_way_comes_first_in_readme(pages):
    lines = [by_default("A1", 0.5, 1.0, "xla"), by_default("A2", 2.0, 4.0), by_default("G1", 3.0, 1.5, regime="odd")]
    lines += [by_default("G2", 9.0, 9.0, regime="odd", host_bound=["jax_moye"])]
    result = result_of(pages, *lines)
    head, readme = pages.of_readme(result).split("| workloads |")
    assert "*default way*" in head
    assert "The host was a limit on 1 more, which is in no mean: G2." in head
    assert readme.startswith(" number | default way, mean | its lowest | our kernel, mean | lowest |")
    assert "| A, large | 2 | 2.000 | 1.000 (A1) | 1.000 | 0.500 (A1) | 2.000 (A2) | 1 | 0 | 1 |" in readme
    assert "| G, odd sizes | 1 | 1.500 | 1.500 (G1) | 3.000 | 3.000 (G1) | 3.000 (G1) | 1 | 0 | 0 |" in readme
    page = pages.section(result, {})
    assert "The five lowest: A1 0.500, A2 2.000." in page
    assert "over XLA's own program: A1 1.000, A2 4.000." in page
    assert "| moye&nbsp;4.000 |" in page


def test_the_name_of_a_file():
    report = {"gpu": "NVIDIA H200", "date": "2026-11-20T12:00:00Z", "commit": "abc1234"}
    assert results.file_name(report) == "nvidia_h200-20261120T120000Z-abc1234.json"
    assert results.file_name(report, "-programs") == "nvidia_h200-20261120T120000Z-abc1234-programs.json"


def test_a_file_is_tried_before_anything_is_timed(tmp_path):
    results.make_ready(tmp_path / "new" / "out.json")
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(ValueError, match="is no plain file"):
        results.make_ready(tmp_path / "new")
    with pytest.raises(OSError, match="nothing"):
        results.make_ready(pathlib.Path("/proc/nothing/out.json"))


def test_what_cannot_be_written_is_named(tmp_path, capsys):
    for file, named in (("/proc/charts", "/proc/charts"), (None, str(tmp_path / "out.json"))):

        def run(file=file):
            raise OSError(2, "No such file or directory", file)

        arguments = argparse.Namespace(json=False, svg=None)
        assert results.complete(run, {}, tmp_path / "out.json", arguments) == 1
        assert capsys.readouterr().err == f"jax_moye bench: {named} cannot be written: No such file or directory\n"
