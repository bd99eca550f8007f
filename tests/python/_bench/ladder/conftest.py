"""The ladder of bf16, as the command writes it."""

from __future__ import annotations

import json

import pytest

from jax_moye import __main__ as cli

SHAPE = (256, 256, 128)


@pytest.fixture(scope="session")
def ladder_files(tmp_path_factory):
    """The report and the chart of the command."""
    folder = tmp_path_factory.mktemp("ladder")
    files = folder / "ladder.json", folder / "ladder.svg"
    size = "x".join(map(str, SHAPE))
    options = ["--no-gpu", "--shape", size, "--stages", "--json", str(files[0]), "--svg", str(files[1])]
    assert cli.main(["ladder", *options]) == 0
    return json.loads(files[0].read_text()), files[1].read_text()


@pytest.fixture(scope="session")
def measured_report(ladder_files):
    """The report with times as a GPU gives them."""
    found = json.loads(json.dumps(ladder_files[0]))
    found["measured"] = {"gpu": "A<GPU>", "shape": [4096] * 3, "commit": "abc", "date": "now", "emulated": False}
    for i, rung in enumerate(found["rungs"]):
        rung["measured"] = {"us": 100.0 - i, "tflops": 10.0 + i} | ({"ratio": 1.5} if i else {})
    found["rungs"][-1] |= {"measured": None, "why": "NotImplementedError: not here"}
    for point in found["stages"]["points"]:
        point["measured"] = {"tflops": 100.0 + point["stages"]}
    return found
