"""The command `bench`, tried in the emulator: what it writes, and that a wrong result fails it."""

from __future__ import annotations

import argparse
import dataclasses
import json

import jax
import numpy as np
import pytest

import jax_moye
from jax_moye import __main__ as cli
from jax_moye._bench import bench, command, contenders, results
from jax_moye._checkout import clone
from jax_moye._inspect import programs
from jax_moye._timing.workloads import Workload

# One short round of small sets: these tests are about the report, not about speed.
QUICK = ["--interpret", "--turn-ms", "1", "--warmup-ms", "1", "--alternations", "3", "--rotate-mb", "0.1"]
LINE = {"batch": 1, "m": 64, "n": 48, "k": 40, "layout": "NN", "dtype": "bf16", "regime": "tiny"}


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def run(tmp_path, lines: list[dict], *options: str) -> tuple[int, dict]:
    suite, out = tmp_path / "suite.json", tmp_path / "out.json"
    suite.write_text(json.dumps({"rows": lines}))
    status = cli.main(["bench", "--suite", str(suite), "--out", str(out), *QUICK, *options])
    return status, json.loads(out.read_text())


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="--interpret is for a machine without a GPU")
class TestRun:
    def test_report(self, tmp_path, capsys):
        rows = [
            LINE | {"id": "A1"},
            LINE | {"id": "B1", "layout": "TN", "batch": 2},
            LINE | {"id": "C1", "dtype": "f32", "precision": "HIGHEST"},
            LINE | {"id": "D1", "dtype": "f64"},
            LINE | {"id": "H1", "dtype": "s8", "layout": "NT"},
            LINE | {"id": "I1", "epilogue": "bias+gelu"},
            LINE | {"id": "X1", "dtype": "c64"},
            LINE | {"id": "X2", "epilogue": "bias+gelu", "batch": 2},
        ]
        status, report = run(tmp_path, rows)
        assert status == 0
        assert [row["id"] for row in report["rows"]] == ["A1", "B1", "C1", "D1", "H1", "I1"]
        why = {"X1": "c64 operands", "X2": "an epilogue of a batch"}
        assert {row["id"]: row["why"] for row in report["not_run"]} == why
        names = {config.name for config in jax_moye.configs()}
        for row in report["rows"]:
            assert row["correct"] is True
            assert 0 <= row["error_over_bound"] <= 1
            assert row["config"] in names
            assert row["us"] > 0
            assert row["baselines"].keys() == {"xla", "xla_no_triton"}
            assert row["methods"].keys() == {"jax_moye", "xla", "xla_no_triton"}
            low, high = row["ratio_ci"]
            assert low <= row["ratio"] <= high
            low, high = row["us_ci"]
            assert low <= row["us"] <= high
            assert (row["by_default"], row["default_timed_as"]) == ("moye", "jax_moye")
            assert row["default_us"] == row["us"]
            low, high = row["default_ratio_ci"]
            assert low <= row["default_ratio"] <= high
        assert report["emulated"] is True
        assert report["protocol"]["mode"] == "short"
        assert report["protocol"]["best_chosen"] == "in other rounds than those that time it"
        capsys.readouterr()
        assert cli.main(["show", str(tmp_path / "out.json")]) == 0
        assert "geometric mean" in capsys.readouterr().out

    def test_a_wrong_result_has_no_time_and_fails_the_run(self, tmp_path, monkeypatch):
        matmul = jax_moye.matmul
        monkeypatch.setattr(programs, "matmul", lambda a, b, **options: matmul(a, b, **options).at[-1, 7].add(1))
        status, report = run(tmp_path, [LINE | {"id": "A1"}])
        (row,) = report["rows"]
        assert status == 1
        assert row["correct"] is False
        assert row["error_over_bound"] > 1
        assert not row.keys() & {"us", "tflops", "ratio", "baselines"}

    def test_nan_is_wrong(self, tmp_path, monkeypatch):
        matmul = jax_moye.matmul
        monkeypatch.setattr(programs, "matmul", lambda a, b, **options: matmul(a, b, **options).at[-1, 7].set(np.nan))
        status, report = run(tmp_path, [LINE | {"id": "A1"}])
        assert status == 1
        assert report["rows"][0]["error_over_bound"] is None

    def test_a_config_that_cannot_serve_a_workload_is_left_out(self, tmp_path):
        name = next(config.name for config in jax_moye.configs() if config.dtype == "f32")
        rows = [LINE | {"id": "A1"}, LINE | {"id": "C1", "dtype": "f32"}]
        status, report = run(tmp_path, rows, "--config", name)
        assert status == 0
        assert [row["config"] for row in report["rows"]] == [name]
        assert report["rows"][0]["chosen_by"] == "explicit"
        assert [row["id"] for row in report["not_run"]] == ["A1"]

    def test_own_shapes_and_configs_in_both_modes(self, tmp_path):
        names = [config.name for config in jax_moye.configs() if config.dtype in ("bf16", "f64")]
        two = [next(name for name in names if "_bf16_" in name), next(name for name in names if "_f64_" in name)]
        out = tmp_path / "out.json"
        options = ["--shape", "2x16x32x24:bf16:TN", "--shape", "16x8x24:f64", "--config", ",".join(two)]
        more = ["--mode", "both", "--idle-ms", "1", "--launches", "graph", "--baselines", "xla", "--out", str(out)]
        assert cli.main(["bench", *options, *more, *QUICK]) == 0
        report = json.loads(out.read_text())
        assert report["protocol"]["launches"] == "graph"
        assert report["protocol"]["burst"] == {"idle_ms": 1, "turn_ms": 1}
        assert report["baselines"].keys() == {"xla"}
        assert [(row["id"], row["regime"], row["batch"], row["layout"]) for row in report["rows"]] == [
            ("S1", "own", 2, "TN"),
            ("S2", "own", 1, "NN"),
        ]
        for row, name in zip(report["rows"], two, strict=True):
            assert row["chosen_by"] == "model"
            assert set(row["configs"]) == {row["config"], name}  # the other one does not serve it
            assert row["regret"] <= 1
            assert row["us"] > 0
            assert row["burst"]["us"] > 0
            assert row["burst"].keys() >= {"ratio", "ratio_ci", "baselines", "best_baseline"}

    def test_what_a_program_runs_that_asks_for_nothing_is_timed(self, tmp_path, monkeypatch):
        """XLA's product is the baseline "xla", XLA's layer and another config have rounds of their own."""
        f32 = Workload.from_json(LINE | {"id": "D3", "dtype": "f32"})
        options = {"implementation": "moye", "interpret": True}
        selected = bench.config_of(jax.jit(programs.workload_program(f32, **options)).lower(*f32.structs).as_text())
        names = [config.name for config in jax_moye.configs() if config.dtype == "f32" and config.name != selected]
        beside, alone = names[:2]
        default = {"D1": {}, "D2": {}, "D3": {"config": beside, **options}, "D4": {"config": alone, **options}}
        workload_program = programs.workload_program

        def as_if_decided(workload, **asked):
            return workload_program(workload, **(default[workload.id] if asked == {"interpret": True} else asked))

        monkeypatch.setattr(bench, "workload_program", as_if_decided)
        rows = [LINE | {"id": "D1"}, LINE | {"id": "D2", "epilogue": "bias+gelu"}]
        rows += [LINE | {"id": name, "dtype": "f32"} for name in ("D3", "D4")]
        more = ["--config", f"{beside},{selected}", "--mode", "both", "--idle-ms", "1", "--baselines", "xla"]
        status, report = run(tmp_path, rows, *more)
        assert status == 0
        found = {row["id"]: row for row in report["rows"]}
        assert {name: (row["by_default"], row["default_timed_as"]) for name, row in found.items()} == {
            "D1": ("xla", "xla"),
            "D2": ("xla", "default"),
            "D3": ("moye", beside),
            "D4": ("moye", "default"),
        }
        assert found["D1"]["default_us"] == found["D1"]["baselines"]["xla"]
        assert found["D1"]["default_ratio_ci"] == [1.0, 1.0]
        assert found["D3"]["default_us"] == found["D3"]["configs"][beside]
        for row in found.values():
            assert row["baselines"].keys() == {"xla"}
            assert "default" not in row.get("configs", {})
            assert row["methods"].keys() == {"jax_moye", "xla", row["default_timed_as"]}
            assert row["burst"].keys() >= {"default_us", "default_ratio", "default_ratio_ci"}

    def test_a_default_that_is_wrong_fails_the_run(self, tmp_path, monkeypatch):
        workload_program = programs.workload_program

        def wrong(workload, **asked):
            asks_for_nothing = asked == {"interpret": True}
            return (
                (lambda a, b: jax.numpy.matmul(a, b) + 1) if asks_for_nothing else workload_program(workload, **asked)
            )

        monkeypatch.setattr(bench, "workload_program", wrong)
        status, report = run(tmp_path, [LINE | {"id": "A1"}], "--baselines", "xla")
        assert status == 1
        assert "default" in report["rows"][0]["why"]

    def test_burst_alone(self, tmp_path):
        status, report = run(tmp_path, [LINE | {"id": "A1"}], "--mode", "burst", "--idle-ms", "1", "--baselines", "xla")
        assert status == 0
        assert report["protocol"]["mode"] == "burst"
        assert report["rows"][0]["us"] > 0
        assert "burst" not in report["rows"][0]

    def test_a_baseline_that_fails_hides_nothing(self, tmp_path, monkeypatch):
        def fail(workload):
            raise RuntimeError("no such program")

        jit = jax.numpy.matmul
        monkeypatch.setattr(contenders, "xla_program", lambda workload: lambda a, b: jit(a, b) + 1)
        status, report = run(tmp_path, [LINE | {"id": "A1"}])
        assert status == 0
        (row,) = report["rows"]
        assert row["us"] > 0
        assert row["baselines"] == {}
        assert "ratio" not in row
        assert all("times the bound" in why for why in row["rejected_baselines"].values())
        monkeypatch.setattr(contenders, "xla_program", lambda workload: lambda a, b: fail(workload))
        status, report = run(tmp_path, [LINE | {"id": "A1"}])
        assert status == 0
        assert report["rows"][0]["rejected_baselines"] == {
            name: "RuntimeError: no such program" for name in ("xla", "xla_no_triton")
        }

    def test_ctrl_c_keeps_what_is_done(self, tmp_path, monkeypatch, capsys):
        bench_workload = bench.bench_workload

        def interrupted(workload, *rest):
            if workload.id == "B1":
                raise KeyboardInterrupt
            return bench_workload(workload, *rest)

        monkeypatch.setattr(bench, "bench_workload", interrupted)
        status, report = run(tmp_path, [LINE | {"id": name} for name in ("A1", "B1", "C1")], "--baselines", "xla")
        assert status == 130
        assert [row["id"] for row in report["rows"]] == ["A1"]
        assert report["not_run"] == [{"id": name, "why": "interrupted"} for name in ("B1", "C1")]
        assert "core, A to E" in capsys.readouterr().out

    def test_without_a_gpu_it_says_so(self, capsys):
        assert cli.main(["bench"]) == 2
        assert "no GPU" in capsys.readouterr().err


SAMPLE = ["decode/llama-3.1-70b/o/1", "decode/qwen3-0.6b/head/32", "train/bloom-7b1/up-dx/2048"]


def test_wrong_names(capsys):
    quick = ["bench", "--interpret", "--shape", "8x8x8:bf16"]
    assert cli.main([*quick, "--config", "sm80_nothing"]) == 1
    assert "sm80_nothing" in capsys.readouterr().err
    assert cli.main([*quick, "--baselines", "xla,mkl"]) == 1
    assert "mkl" in capsys.readouterr().err
    assert cli.main([*quick, "--out", "/dev/null"]) == 1
    assert "--out /dev/null is no plain file" in capsys.readouterr().err
    assert cli.main([*quick, "--out", "/proc/out.json"]) == 1
    assert "/proc" in capsys.readouterr().err
    assert cli.main(["bench", "--interpret", "--shape", "8x8:bf16"]) == 1
    assert "--shape" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--alternations", "2"),
        ("--sample", "0"),
        ("--turn-ms", "0"),
        ("--warmup-ms", "-1"),
        ("--idle-ms", "nan"),
        ("--rotate-mb", "-3"),
        ("--budget-s", "soon"),
        ("--rows", "("),
        ("--sweep", "*"),
    ],
)
def test_wrong_values(option, value, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--interpret", "--shape", "8x8x8:bf16", option, value])
    assert ended.value.code == 2
    assert f"argument {option}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--emulator", "--rows", "A1"], "--rows and --emulator both say"),
        (["--emulator", "--suite", "suite.json"], "--suite and --emulator both say"),
        (["--interpret", "--shape", "8x8x8:bf16", "--sample", "3"], "--sample and --shape both say"),
        (["--interpret", "--precision", "highest"], "--precision is of the workloads of --shape"),
        (["--interpret", "--config-row", "{}"], "--config-row is of the file of --kernel"),
        (["--interpret", "--shape", "0x8x8x8:bf16"], "a size is 0"),
        (["--interpret", "--suite", __file__], "test_command.py is no suite"),
    ],
)
def test_options_that_would_mean_nothing(options, why, capsys):
    assert cli.main(["bench", *options]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert why in said.err


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="--interpret is for a machine without a GPU")
def test_json_is_all_that_is_printed(tmp_path, capsys):
    out = tmp_path / "out.json"
    options = ["--shape", "16x8x8:f32", "--baselines", "xla", "--out", str(out), "--json"]
    assert cli.main(["bench", *options, *QUICK]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads(out.read_text())
    assert f"written to {out}" in said.err


def parsed(*options):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(options)


class TestModels:
    @pytest.mark.parametrize(
        ("options", "name"), [(["--models"], "validation"), (["--models", "fit"], "fit"), ([], None)]
    )
    def test_the_file_and_where_results_go(self, options, name):
        arguments = parsed(*options)
        suite, folder = command.suite_of(arguments)
        benchmarks = clone() / "benchmarks"
        assert suite == benchmarks / (f"models/{name}.json" if name else "suite.json")
        assert folder == benchmarks / "results"
        workloads, _ = command.chosen_workloads(arguments)
        assert len(workloads) == len(json.loads(suite.read_text())["rows"])

    def test_a_sample(self):
        everything, _ = command.chosen_workloads(parsed("--models"))
        small, _ = command.chosen_workloads(parsed("--models", "--sample", "20"))
        large, _ = command.chosen_workloads(parsed("--models", "--sample", "60"))
        assert len(small) == 20
        assert len(large) == 60
        assert [one for one in everything if one in large] == large  # in their order
        assert all(one in large for one in small)
        assert large != everything[:60]
        assert [one.id for one in command.sample(everything, 3)] == SAMPLE  # in every version of Python
        assert command.sample(everything, 10**6) == everything
        parts = {one.regime for one in everything}
        assert {one.regime for one in large} == parts
        decode, _ = command.chosen_workloads(parsed("--models", "--rows", "decode/.*", "--sample", "5"))
        assert {one.regime for one in decode} == {"decode"}

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            (["--models", "fit", "--suite", "x.json"], "--models and --suite both"),
            (["--models", "fit", "--shape", "8x8x8:bf16"], "--models and --shape both"),
            (["--suite", "nowhere.json"], "--suite nowhere.json is no file"),
        ],
    )
    def test_what_is_wrong(self, options, why, capsys):
        assert cli.main(["bench", "--interpret", *options]) == 1
        assert why in capsys.readouterr().err

    def test_without_a_checkout(self, monkeypatch, capsys):
        monkeypatch.setattr(command, "clone", lambda: None)
        assert cli.main(["bench", "--interpret", "--models"]) == 1
        assert "no benchmarks/models/validation.json here: run it in a clone" in capsys.readouterr().err

    def test_the_report_says_which(self, monkeypatch):
        monkeypatch.delenv("JAX_MOYE_AUTOTUNE", raising=False)
        described = results.describe(jax.devices("cpu")[0], parsed("--models", "fit", "--sample", "7"))
        assert (described["protocol"]["models"], described["protocol"]["sample"]) == ("fit", 7)
        assert described["protocol"]["autotune"] == "on"
        monkeypatch.setenv("JAX_MOYE_AUTOTUNE", "off")
        assert results.describe(jax.devices("cpu")[0], parsed())["protocol"]["autotune"] == "off"
        assert not {"models", "sample"} & results.describe(jax.devices("cpu")[0], parsed())["protocol"].keys()


class TestKernels:
    """`--kernel`: what is compiled is `--config`, and shapes are of its dtype. Compiled: test_own_kernel_page.py."""

    ROW = "{mine, tf32, f32, {64, 64, 8}, 1, {1, 1}, 4}"

    @pytest.fixture
    def compiled(self, monkeypatch):
        config = next(row for row in jax_moye.configs() if row.dtype == "f32")
        tf32 = dataclasses.replace(config, name="mine_tf32_64x64x8_s1_a4_h01234567", kernel="mine", dtype="tf32")
        monkeypatch.setattr(command.own, "kernel", lambda file, config: tf32)
        return tf32

    @pytest.mark.parametrize(
        ("options", "shapes"),
        [([], ["64x48x40:f32", "2x32x48x40:f32:NT"]), (["--shape", "8x8x8:f32"], ["8x8x8:f32"])],
    )
    def test_it_is_the_config(self, compiled, options, shapes, monkeypatch, capsys):
        seen = []
        monkeypatch.setattr(command, "chosen_workloads", lambda arguments: seen.append(arguments) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            cli.main(["bench", "--emulator", "--kernel", "mine.cuh", "--config-row", self.ROW, *options])
        assert (seen[0].config, seen[0].shape) == ([compiled.name], shapes)

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            (["--kernel", "nowhere.cuh"], "--kernel needs --config-row"),
            (["--config-row", ROW], "--config-row is of the file of --kernel"),
            (["--kernel", "nowhere.cuh", "--config-row", ROW], "--kernel nowhere.cuh is no file"),
        ],
    )
    def test_what_is_wrong(self, options, why, capsys):
        for subcommand in (["bench", "--emulator"], ["ladder", "--no-gpu"], ["explain", "--shape", "8x8x8:f32"]):
            assert cli.main([*subcommand, *options]) == 1
            said = capsys.readouterr()
            assert said.err.startswith(f"jax_moye {subcommand[0]}: ")
            assert why in said.err
            assert said.out == ""
