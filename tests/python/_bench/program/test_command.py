"""`bench --program`, tried in the emulator: what it prints and writes, and which options go together."""

from __future__ import annotations

import json
import sys

import jax
import pytest
from python.bench_results import program_run

import jax_moye
from jax_moye import __main__ as cli
from jax_moye._bench.models.table import MODELS
from jax_moye._bench.program import run as program
from jax_moye._bench.program import show

QUICK = ["--interpret", "--turn-ms", "1", "--warmup-ms", "0", "--alternations", "3"]
on_the_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="--interpret is for a machine without a GPU")


def run(folder, *options, status=0):
    out = folder / "out.json"
    assert cli.main(["bench", *options, "--out", str(out), *QUICK]) == status
    return json.loads(out.read_text())


@on_the_cpu
class TestRun:
    def test_a_program_of_ones_own_four_ways(self, mine, capsys):
        report = run(mine, "--program", "mine:layer", "--size", "width=32")
        assert report["emulated"] is True
        assert report.keys() >= {"about", "how", "commit", "gpu", "jax", "date"}
        assert report["not_run"] == []
        (found,) = report["runs"]
        assert (found["program"], found["about"], found["sizes"]) == ("mine:layer", "A layer.", "width 32")
        assert list(show.arms_of(found)) == list(show.ARMS)
        for name, arm in show.arms_of(found).items():
            assert 0 < arm["ms"] <= arm["worst_ms"]
            low, high = arm["ratio_ci"]
            assert low <= arm["ratio"] <= high
            assert arm["kernels"] > arm["ours"]
            assert arm["ours"] == (0 if name == "xla" else 2)
            assert arm["written_bytes"] >= 32 * 32 * 2
            assert arm["memory_bytes"] >= 2 * 32 * 32 * 2
            assert arm["lower_s"] > 0
            assert arm["compile_s"] > 0
            assert ("difference" in arm) == (name != "xla")
            assert arm.get("difference", 0) < 0.02
        assert found["optimize"]["kernels"] <= found["products"]["kernels"]
        taken = {(row["product"], row["takes_in"], row["count"], row["won_us"]) for row in found["rewrites"]}
        assert taken == {("8x32x32 NN bf16", "silu, bias, residual", 1, None), ("32x32x8 TN bf16", "", 1, None)}
        assert found["not_run"] == []
        printed = capsys.readouterr().out
        assert "emulated: its times say nothing about a GPU" in " ".join(printed.split())
        assert "not measured" in printed
        assert cli.main(["show", str(mine / "out.json")]) == 0
        shown = capsys.readouterr().out
        assert next(line for line in printed.splitlines() if line.startswith("optimize ")) in shown.splitlines()

    def test_one_that_is_built_in(self, tmp_path, monkeypatch):
        pytest.importorskip("matplotlib")
        sizes = {**MODELS["transformer_decoding"].small, "layers": 1, "width": 16}
        options = [word for name, size in sizes.items() for word in ("--size", f"{name}={size}")]
        options += ["--dtype", "float16", "--svg", str(tmp_path / "charts"), "--json"]
        report = run(tmp_path, "--program", "transformer_decoding", *options)
        (found,) = report["runs"]
        assert found["sizes"].startswith("layers 1, width 16")
        assert found["sizes"].endswith("float16")
        assert found["optimize"]["kernels"] <= found["products"]["kernels"]
        words = {row["takes_in"].split(",")[0] for row in found["rewrites"]}
        assert words >= {"silu", "c"}
        assert (tmp_path / "charts/out_programs.svg").is_file()

    def test_the_emulator_takes_small_sizes(self, capsys, monkeypatch):
        model = MODELS["mlp_mixer"]
        small = {**model.small, "layers": 1}
        monkeypatch.setitem(MODELS, "mlp_mixer", model._replace(small=small))
        assert cli.main(["bench", "--emulator", "--program", "mlp_mixer", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["runs"][0]["sizes"] == f"{', '.join(f'{name} {size}' for name, size in small.items())}, bfloat16"
        assert report["protocol"]["alternations"] == 3

    def test_a_product_that_no_kernel_computes(self, mine, capsys):
        """Nothing is wrong: one way is not there, and it is said why."""
        (found,) = run(mine, "--program", "mine:complex_layer")["runs"]
        assert list(show.arms_of(found)) == ["xla", "intercept", "optimize"]
        (row,) = found["not_run"]
        assert row["id"] == "products"
        assert "complex64" in row["why"]
        assert row["is_wrong"] is False
        assert "products not run: NotImplementedError" in capsys.readouterr().out

    def test_a_wrong_result_has_no_time_and_fails_the_run(self, mine, monkeypatch, capsys):
        wrong = lambda fun: lambda *args: jax.tree.map(lambda x: x.at[-1].add(1e4), fun(*args))  # noqa: E731
        monkeypatch.setattr(jax_moye, "optimize", wrong)
        (found,) = run(mine, "--program", "mine:layer", status=1)["runs"]
        assert "optimize" not in found
        assert "intercept" in found
        (row,) = found["not_run"]
        assert row["id"] == "optimize"
        assert row["why"].startswith("WRONG: [1]['product'] differs from XLA's by ")
        assert "optimize not run: WRONG" in capsys.readouterr().out

    def test_what_is_left_as_it_is_is_said(self, mine, monkeypatch):
        def cannot(closed, parameters):
            raise KeyError("a bug")

        monkeypatch.setattr(sys.modules["jax_moye._primitives.rewriting"], "rewritten", cannot)
        (found,) = run(mine, "--program", "mine:layer")["runs"]
        assert any(note.startswith("jax_moye.optimize: mine.layer") for note in found["notes"])
        assert all(row["takes_in"] == "" for row in found["rewrites"])

    def test_what_fails_hides_nothing(self, mine, capsys):
        names = ["mine:nothing", "mine:cannot_be_traced", "mine:layer"]
        report = run(mine, *(word for name in names for word in ("--program", name)), status=1)
        assert [found["program"] for found in report["runs"]] == ["mine:layer"]
        assert [row["id"] for row in report["not_run"]] == names[:2]
        assert "mine has no nothing" in capsys.readouterr().err

    def test_ctrl_c_keeps_what_is_done(self, tmp_path, monkeypatch):
        def interrupted(name, *rest):
            if name == "mlp_mixer":
                raise KeyboardInterrupt
            return program_run(program=name)

        monkeypatch.setattr(program, "load", lambda name, *rest: name)
        monkeypatch.setattr(program, "bench_program", interrupted)
        names = ["vision_transformer", "mlp_mixer", "unet_blocks"]
        report = run(tmp_path, *(word for name in names for word in ("--program", name)), status=130)
        assert [found["program"] for found in report["runs"]] == names[:1]
        assert report["not_run"] == [{"id": name, "why": "interrupted"} for name in names[1:]]

    def test_without_a_gpu_it_says_so(self, capsys):
        assert cli.main(["bench", "--program", "mlp_mixer"]) == 2
        assert "no GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--program", "mlp_mixer", "--shape", "8x8x8:bf16"], "--shape is of workloads"),
        (["--program", "mlp_mixer", "--config-row", "{}"], "--config-row is of workloads"),
        (["--program", "mlp_mixer", "--mode", "burst"], "--mode burst is of workloads"),
        (["--shape", "8x8x8:bf16", "--size", "width=8"], "--size is of --program, and there is none"),
        (["--shape", "8x8x8:bf16", "--alone"], "--alone is of --program"),
        (["--program", "mlp_mixer", "--out", "/dev/null"], "--out /dev/null is no plain file"),
    ],
)
@on_the_cpu
def test_options_that_would_mean_nothing(options, why, capsys):
    assert cli.main(["bench", "--interpret", *options]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert why in said.err


@pytest.mark.parametrize("size", ["width", "width=", "width=wide", "8"])
def test_what_is_no_size(size, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--program", "mlp_mixer", "--size", size])
    assert ended.value.code == 2
    assert "is no size such as width=1024" in capsys.readouterr().err
