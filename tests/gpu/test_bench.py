"""The benchmark itself, tried in the emulator: what it writes, and that a wrong result fails it."""

from __future__ import annotations

import json
import pathlib

import jax
import numpy as np
import pytest

import jax_moye
from jax_moye import __main__ as cli
from jax_moye import bench, measure

ROOT = pathlib.Path(__file__).resolve().parents[2]
# One short turn of small sets: these tests are about the report, not about speed.
QUICK = ["--interpret", "--turn-ms", "1", "--warmup-ms", "1", "--alternations", "3", "--rotate-mb", "0.1"]
ROW = {"batch": 1, "m": 64, "n": 48, "k": 40, "layout": "NN", "dtype": "bf16", "regime": "tiny"}


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def run(tmp_path, rows: list[dict], *options: str) -> tuple[int, dict]:
    suite, out = tmp_path / "suite.json", tmp_path / "out.json"
    suite.write_text(json.dumps({"rows": rows}))
    status = cli.main(["bench", "--suite", str(suite), "--out", str(out), *QUICK, *options])
    return status, json.loads(out.read_text())


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="--interpret is for a machine without a GPU")
class TestRun:
    def test_report(self, tmp_path, capsys):
        rows = [
            ROW | {"id": "A1"},
            ROW | {"id": "B1", "layout": "TN", "batch": 2},
            ROW | {"id": "C1", "dtype": "f32", "precision": "HIGHEST"},
            ROW | {"id": "D1", "dtype": "f64"},
            ROW | {"id": "X1", "dtype": "s8"},
            ROW | {"id": "X2", "epilogue": "bias+gelu"},
        ]
        status, report = run(tmp_path, rows)
        assert status == 0
        assert [row["id"] for row in report["rows"]] == ["A1", "B1", "C1", "D1"]
        assert {row["id"]: row["why"] for row in report["not_run"]} == {"X1": "s8 operands", "X2": "bias+gelu"}
        names = {config.name for config in jax_moye.configs()}
        for row in report["rows"]:
            assert row["correct"] is True
            assert 0 <= row["error_over_bound"] <= 1
            assert row["config"] in names
            assert row["us"] > 0
            assert row["baselines"].keys() == {"xla"}
            low, high = row["ratio_ci"]
            assert low <= row["ratio"] <= high
        assert report["emulated"] is True
        assert report["protocol"]["mode"] == "short"
        capsys.readouterr()
        assert cli.main(["show", str(tmp_path / "out.json")]) == 0
        assert "geometric mean" in capsys.readouterr().out

    def test_a_wrong_result_has_no_time_and_fails_the_run(self, tmp_path, monkeypatch):
        matmul = jax_moye.matmul
        monkeypatch.setattr(jax_moye, "matmul", lambda a, b, **options: matmul(a, b, **options).at[-1, 7].add(1))
        status, report = run(tmp_path, [ROW | {"id": "A1"}])
        (row,) = report["rows"]
        assert status == 1
        assert row["correct"] is False
        assert row["error_over_bound"] > 1
        assert not row.keys() & {"us", "tflops", "ratio", "baselines"}

    def test_nan_is_wrong(self, tmp_path, monkeypatch):
        matmul = jax_moye.matmul
        monkeypatch.setattr(jax_moye, "matmul", lambda a, b, **options: matmul(a, b, **options).at[-1, 7].set(np.nan))
        status, report = run(tmp_path, [ROW | {"id": "A1"}])
        assert status == 1
        assert report["rows"][0]["error_over_bound"] is None

    def test_a_config_that_cannot_serve_a_row_is_left_out(self, tmp_path):
        name = next(config.name for config in jax_moye.configs() if config.dtype == "f32")
        rows = [ROW | {"id": "A1"}, ROW | {"id": "C1", "dtype": "f32"}]
        status, report = run(tmp_path, rows, "--config", name)
        assert status == 0
        assert [row["config"] for row in report["rows"]] == [name]
        assert report["rows"][0]["chosen_by"] == "explicit"
        assert [row["id"] for row in report["not_run"]] == ["A1"]

    def test_without_a_gpu_it_says_so(self, capsys):
        assert cli.main(["bench"]) == 2
        assert "no GPU" in capsys.readouterr().err


def test_ratio_interval():
    rng = np.random.default_rng(0)
    ours, theirs = (scale * (1 + 0.01 * rng.standard_normal(15)) for scale in (1.0, 1.1))
    low, high = measure.ratio_interval(theirs, ours)
    assert 1.08 < low < 1.1 < high < 1.12


def test_the_suite_has_51_rows():
    rows = json.loads((ROOT / "benchmarks" / "suite.json").read_text())["rows"]
    assert len({row["id"] for row in rows}) == len(rows) == 51
    assert all(row.keys() >= bench.identity(row).keys() for row in rows)


def test_emulator(capsys):
    assert cli.main(["bench", "--emulator"]) == 0
    printed = capsys.readouterr().out
    assert "race checker on" in printed
    assert "CPU time per launch" in printed


def test_configs(capsys):
    assert cli.main(["configs"]) == 0
    assert all(config.name in capsys.readouterr().out for config in jax_moye.configs()[:1])
