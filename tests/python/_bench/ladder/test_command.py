"""The command `ladder`: what it writes, and the whole way of a measurement in the emulator."""

from __future__ import annotations

import argparse

import pytest

from jax_moye import __main__ as cli
from jax_moye._bench import ladder
from jax_moye._bench.ladder import command
from jax_moye._bench.ladder.table import table

SHAPE = (256, 256, 128)


def test_json(ladder_files):
    found, _svg = ladder_files
    assert (found["dtype"], found["order"], found["shape"], found["measured"]) == ("bf16", "NN", list(SHAPE), None)
    shown = [rung["kernel"] for rung in found["rungs"]]
    assert shown == [kernel for kernel in ladder.RUNGS if kernel in ladder.rungs("bf16")]
    assert sorted(shown + found["left_out"]) == sorted(ladder.RUNGS)
    for rung in found["rungs"]:
        text = {"kernel", "idea", "page", "config", "dtype", "stand_in"}
        assert set(rung) == {*text, "threads", "smem_bytes", "registers", "counted"}
        assert rung["stand_in"] == (rung["dtype"] != "bf16")
        assert rung["counted"] == ladder.count(rung["config"], SHAPE)
    assert [point["stages"] for point in found["stages"]["points"]] == [2, 3, 4, 5, 6]


def test_timing_is_tried_without_a_gpu(monkeypatch, capsys):
    """The whole way of a measurement, on kernels in the emulator and a product of one tile."""
    chosen = {k: ladder.rungs("bf16")[k] for k in ("simt_tiled", "sm80_ldmatrix", "sm90_cooperative")}
    monkeypatch.setattr(command, "rungs", lambda dtype, order: chosen)
    options = "--interpret --gpu-shape 128x128x64 --shape 128x128x64 --alternations 2 --turn-ms 1 --warmup-ms 1"
    arguments = argparse.ArgumentParser()
    command.add_arguments(arguments)
    found = command.make_report(arguments.parse_args([*options.split(), "--rotate-mb", "0.1"]))
    assert found["measured"]["emulated"] is True
    assert found["measured"]["xla"]["us"] > 0
    for i, rung in enumerate(found["rungs"]):
        assert "why" not in rung, rung
        assert rung["measured"]["us"] > 0
        assert ("ratio" in rung["measured"]) == (i > 0)
        if i:
            low, high = rung["measured"]["ratio_ci"]
            assert low <= high
    assert "EMULATED" in table(found)


def test_the_command_says_what_is_wrong(capsys):
    assert cli.main(["ladder", "--shape", "4096x4096x4096"]) == 2
    assert "too large to count" in capsys.readouterr().err
    for options in (["--latency", "9"], ["--arch", "sm_80"]):
        assert cli.main(["ladder", "--no-gpu", *options]) == 2
        assert f"{options[0]} is of the model of --stages" in capsys.readouterr().err
    assert cli.main(["ladder", "--no-gpu", "--svg", "ladder.gif"]) == 2  # before anything is counted
    assert capsys.readouterr() == ("", "jax_moye ladder: --svg ladder.gif is none of .svg, .png, .pdf\n")
    for option, value in (("--latency", "0"), ("--alternations", "1"), ("--turn-ms", "0"), ("--rotate-mb", "x")):
        with pytest.raises(SystemExit):
            cli.main(["ladder", option, value])
        assert f"argument {option}: " in capsys.readouterr().err
    assert cli.main(["ladder", "--shape", "64x64x32", "--dtype", "f64", "--no-gpu", "--json", "/nowhere/x.json"]) == 1
    assert "nowhere" in capsys.readouterr().err
    for bad in ("4096", "0x1x1", "axbxc"):
        with pytest.raises(SystemExit):
            cli.main(["ladder", "--shape", bad])
        assert "is not MxNxK" in capsys.readouterr().err
