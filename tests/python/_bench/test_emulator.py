"""`bench --emulator`: all of the benchmark on two small shapes, and the CPU time of a launch."""

from __future__ import annotations

import argparse
import json

from jax_moye import __main__ as cli
from jax_moye._bench.emulator import quick


def test_emulator(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert cli.main(["bench", "--emulator", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["emulated"] is True
    assert [(row["batch"], row["m"], row["dtype"], row["correct"]) for row in report["rows"]] == [
        (1, 64, "bf16", True),
        (2, 32, "f32", True),
    ]
    assert all(row["ratio_ci"][0] <= row["ratio"] <= row["ratio_ci"][1] for row in report["rows"])
    printed = capsys.readouterr().out
    assert "emulated: its times say nothing about a GPU" in " ".join(printed.split())  # lines are wrapped
    assert "own: geometric mean of the ratios" in printed
    assert "S1   1x64x48x40 NN bf16" in printed
    assert "race checker on" in printed
    assert "CPU time per launch" in printed


def test_results_without_a_name_are_in_a_folder_of_their_own():
    """One that is made for this run: a name that others know could be a link of theirs."""
    outs = []
    for _ in range(2):
        arguments = argparse.Namespace(shape=None, out=None)
        quick(arguments)
        outs.append(arguments.out)
        assert arguments.out.parent.stat().st_mode & 0o777 == 0o700
        arguments.out.parent.rmdir()
    assert outs[0].parent != outs[1].parent
    arguments = argparse.Namespace(shape=["1x1x1:f32"], out=outs[0])
    quick(arguments)
    assert (arguments.shape, arguments.out) == (["1x1x1:f32"], outs[0])
