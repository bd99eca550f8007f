"""cuda/moye/pipeline.h: the states count, the stages are handed over, and each of its lines is needed."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

from tests import cxx

HERE = pathlib.Path(__file__).parent
HEADER = cxx.CUDA / "moye/pipeline.h"


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    program = cxx.build("pipeline", flags=flags, kernel_sources=[HERE / "pipeline.cc"])
    return subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)


def test_pipeline():
    done = run()
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("old", "new", "expect"),
    [
        ("kStages - 2>();\n    sync_threads();\n", "kStages - 2>();\n", r"race on shared memory .*"),
        ("    cp_async_wait_group<kStages - 2>();\n", "", r"race on shared memory .*cp\.async"),
        ("cp_async_wait_group<kStages - 2>", "cp_async_wait_group<kStages - 1>", r"race on shared memory .*cp\.async"),
        ("    ++write_;\n", "", r"race on shared memory .*cp\.async|\d+ wrong"),
        ("    cp_async_commit_group();\n", "", r"race on shared memory .*cp\.async"),
        ("kAhead = kStages - 1", "kAhead = kStages", r"race on shared memory .*cp\.async|\d+ wrong"),
        ("      phase_ ^= 1;\n", "", r"PipelineState<2> after 2: index 0, phase 0"),
        ("phase_ ^= fills / kStages % 2", "phase_ ^= fills / kStages", r"PipelineState<2> after"),
    ],
)
def test_planted_bug(old, new, expect, tmp_path):
    text = HEADER.read_text()
    assert text.count(old) == 1
    (tmp_path / "moye").mkdir()
    (tmp_path / "moye/pipeline.h").write_text(text.replace(old, new))
    done = run(f"-I{tmp_path}")
    assert done.returncode == 1
    assert re.search(expect, done.stdout), done.stdout
