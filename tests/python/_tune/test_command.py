"""The command `tune`, in the emulator and with times that are made up."""

from __future__ import annotations

import json
import os
import pathlib
import re
import resource

import jax
import pytest
from python.measured import H200, bf16, explained

from jax_moye.__main__ import main
from jax_moye._inspect.programs import explain_workload
from jax_moye._kernels.devices import DEVICES
from jax_moye._selection import measurements
from jax_moye._timing.workloads import Workload
from jax_moye._tune import command, tune
from jax_moye._tune.times import Protocol, Times


def test_what_fails_keeps_the_rest(fake, monkeypatch):
    calls = []

    def time_product(product, call, candidates, target, protocol):
        calls.append(call.problem.m)
        if len(calls) == 2:
            raise MemoryError("no memory")
        if len(calls) == 3:
            raise KeyboardInterrupt
        return Times({candidates[0].name: 1.0}, None, None, False, {})

    monkeypatch.setattr(tune, "time_product", time_product)
    monkeypatch.setattr(command, "of_jax", lambda device: DEVICES["h200"])
    workloads = [Workload.from_shape(f"{m}x64x64:bf16", m) for m in (64, 128, 256)]
    target = tune.find_target(None, False, None)
    assert command.run(workloads, target, Protocol()) == 130
    (entry,) = measurements.read(target.path).entries.values()
    assert entry.problem.m == 64


def test_the_command_in_the_emulator(places, capsys):
    common = ["tune", "--emulator", "--turn-ms", "0.1", "--top", "2"]
    assert main([*common, "--shape", "32x48x64:bf16", "--shape", "2x16x16x16:f32:NT"]) == 0
    text = capsys.readouterr().out
    path = pathlib.Path(measurements.emulator_file())
    assert str(path) in text
    assert "S1   32x48x64 NN bf16: " in text
    assert "S2   2x16x16x16 NT f32: " in text
    assert "the model's first config: " in text
    tables = measurements.read(path)
    assert (tables.head["gpu"], tables.head["emulated"], len(tables.entries)) == ("emulator", True, 2)
    # A second run adds to it.
    name = next(iter(tables.entries.values())).config
    assert main([*common, "--shape", "16x48x64:bf16", "--sweep", re.escape(name)]) == 0
    again = measurements.read(path).entries
    assert len(again) == 3
    assert list(list(again.values())[-1].us) == [name]
    # And nothing chooses by it.
    shutil_path = pathlib.Path(measurements.cache_file(H200))
    shutil_path.write_bytes(path.read_bytes())
    measurements.forget()
    assert explained((32, 64), (64, 48), bf16, implementation="moye").chosen_by == "model"
    capsys.readouterr()
    assert main(["tune", "--regret", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.count("the model's ") == 3 + 1
    assert "32x48x64 NN bf16" in text


def test_a_suite(places, tmp_path, capsys):
    suite = tmp_path / "suite.json"
    row = {"batch": 1, "m": 16, "n": 16, "k": 16, "layout": "TN", "dtype": "bf16", "regime": "tiny"}
    suite.write_text(json.dumps({"rows": [row | {"id": "A1"}, row | {"id": "B1", "epilogue": "bias+gelu"}]}))
    out = tmp_path / "out.json"
    common = ["tune", "--emulator", "--turn-ms", "0.1", "--top", "1", "--suite", str(suite), "--out", str(out)]
    assert main([*common, "--rows", "B.*"]) == 0
    (entry,) = measurements.read(out).entries.values()
    assert (entry.problem.order, entry.variant) == ("TN", "gelu_tanh bias")
    assert main([*common, "--rows", "C.*"]) == 1
    assert "nothing to tune" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to tune"),
        (["--shape", "64x64:bf16"], "--shape is"),
        (["--shape", "0x8x8:bf16"], "a size is 0"),
        (["--shape", "8x8x8:bf16", "--rows", "A.*"], "--rows is of the workloads of --suite"),
        (["--suite", "/dev/null"], "/dev/null is no suite"),
        (["--suite", "/nowhere.json"], "--suite /nowhere.json is no file"),
        (["--regret", "/nowhere.json"], "--regret /nowhere.json is no file"),
        (["--regret", __file__], "test_command.py is no file of tune's"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    assert main(["tune", "--emulator", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [("--sweep", "("), ("--rows", "["), ("--turn-ms", "0"), ("--budget-s", "-1"), ("--top", "few"), ("--top", "0")],
)
def test_wrong_values(option, value, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--emulator", "--shape", "8x8x8:bf16", option, value])
    assert ended.value.code == 2
    assert f"argument {option}: " in capsys.readouterr().err


def test_json(places, capsys):
    options = ["--turn-ms", "0.1", "--top", "1", "--shape", "16x16x16:bf16", "--json"]
    assert main(["tune", "--emulator", *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["file"] == measurements.emulator_file()
    (product,) = printed["products"]
    (entry,) = measurements.read(printed["file"]).entries.values()
    assert (product["id"], product["entry"]) == ("S1", json.loads(json.dumps(entry.to_dict())))
    assert main(["tune", "--regret", printed["file"], "--json"]) == 0
    (regret,) = json.loads(capsys.readouterr().out)
    assert (regret["what"], regret["alone"]) == ("16x16x16 NN bf16", 1.0)


class TestFiles:
    """What cannot be written is said before anything is timed, in a line, and nothing is left behind or replaced."""

    @pytest.fixture
    def tune_into(self, monkeypatch, capsys):
        def never(*arguments):
            raise AssertionError("something was timed")

        monkeypatch.setattr(tune, "time_product", never)

        def run(*options):
            assert main(["tune", "--emulator", "--shape", "16x16x16:bf16", *options]) == 1
            said = capsys.readouterr()
            assert said.out == ""
            assert len(said.err.splitlines()) == 1
            assert said.err.startswith("jax_moye tune: ")
            return said.err

        return run

    def test_a_folder(self, tune_into, tmp_path):
        assert "no plain file" in tune_into("--out", str(tmp_path))
        assert list(tmp_path.iterdir()) == []

    def test_a_device_is_not_replaced(self, tune_into, tmp_path):
        path = tmp_path / "pipe"
        os.mkfifo(path)
        assert "no plain file" in tune_into("--out", str(path))
        assert path.is_fifo()

    @pytest.mark.parametrize("text", ["# jax_moye\n", '{"format": "jax_moye tuned 1"}', "[]"])
    def test_a_file_of_something_else_is_not_replaced(self, tune_into, tmp_path, text):
        path = tmp_path / "README.md"
        path.write_text(text)
        assert f"--out {path} is no file of tune's, and is left as it is" in tune_into("--out", str(path))
        assert path.read_text() == text
        assert list(tmp_path.iterdir()) == [path]
        with pytest.raises(ValueError, match=r"README\.md is no file of tune's"):
            tune.find_target(None, True, path)

    def test_an_empty_file_is_filled(self, tmp_path):
        path = tmp_path / "out.json"
        path.touch()
        assert tune.find_target(None, True, path).path == path

    def test_a_home_that_cannot_be_written(self, tune_into, monkeypatch, tmp_path):
        (tmp_path / "home").write_text("a file, in which nobody, not even root, makes a folder")
        monkeypatch.delenv("JAX_MOYE_CACHE_DIR", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
        assert "home" in tune_into()

    def test_no_home(self, tune_into, monkeypatch):
        monkeypatch.setattr(measurements, "cache_dir", lambda: None)
        assert "--out names a file" in tune_into()


def test_a_disk_that_is_full(fake, monkeypatch, tmp_path):
    """What cannot be written leaves no part of a file, where it fills up only after it was tried, too."""
    fake["us"] = lambda i: 1.0 + i
    target = tune.find_target(None, False, tmp_path / "out.json")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    products = [gemm.product for gemm in explain_workload(Workload.from_shape("64x64x64:bf16", 1), DEVICES["h200"])]
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            measurements.make_ready(target.path)
        monkeypatch.setattr(measurements, "make_ready", lambda path: None)
        with pytest.raises(OSError, match="File too large"):
            list(tune.tune_products(products, target, Protocol()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in tmp_path.iterdir()] == [".out.json.lock"]
    assert [product.entry is not None for product in tune.tune_products(products, target, Protocol())] == [True]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is a GPU")
def test_without_a_gpu_the_command_says_so(capsys):
    assert main(["tune", "--shape", "8x8x8:bf16"]) == 2
    assert "--emulator" in capsys.readouterr().err
