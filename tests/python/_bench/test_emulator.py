"""`bench --emulator`: all of the benchmark on two small shapes, and the CPU time of a launch."""

from __future__ import annotations

import json

from jax_moye import __main__ as cli


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
    assert "emulated: its times say nothing about a GPU" in printed
    assert "own: geometric mean of the ratios" in printed
    assert "S1   1x64x48x40 NN bf16" in printed
    assert "race checker on" in printed
    assert "CPU time per launch" in printed
