"""examples/seeds.py: each document's example agrees, and a difference is found."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

import jax_moye

ROOT = pathlib.Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "seeds.py"


@pytest.fixture(scope="module")
def seeds():
    spec = importlib.util.spec_from_file_location("seeds", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "checks", "left_out", "shown"),
    [
        ("tiled_copy", 32, 2, "tAgA (CPY,CPY_M,CPY_K,k): ((1,1),4,1,3)"),
        ("pipelining", 24, 7, "tAsA (CPY,CPY_M,CPY_K,2): ((2,1),2,1,2)"),
        ("tensor_cores", 33, 4, "tCsA (MMA,MMA_M,MMA_K): ((2,2),1,1)"),
        ("double_buffer", 20, 4, "tCsB_retiled (CPY,MMA_N,MMA_K,2): ((4,1),4,2,2)"),
        ("cta_swizzle", 8, 0, "rows first: 4 CTAs load from memory and from L2: (5,3)"),
        ("producer_consumer", 17, 11, "without fence_proxy_async: TMA sees what threads have stored: RaceError"),
    ],
)
def test_document(seeds, capsys, name, checks, left_out, shown):
    assert seeds.main([name]) == 0
    output = capsys.readouterr().out
    assert shown in output
    assert "WRONG" not in output
    assert int(output.splitlines()[-1].split()[0]) == checks
    assert output.count("  without ") == left_out


def test_all_documents_are_listed(seeds):
    text = "".join(example.__doc__ for example in seeds.EXAMPLES)
    for document in ("Document 000", "Document 001", "Documents 002 and 003", "Document 004"):
        assert document in text


def test_a_wait_that_nobody_misses_is_found(seeds, capsys):
    """With a program that is as right without it as with it."""
    report = seeds.Report()

    def run(sites):
        block = seeds.Block(32)
        block.run(lambda cta: cta.sync_warp() if sites("__syncwarp") else None)

    seeds.leave_out_each(report, run)
    assert (report.checked, report.failed) == (1, 1)
    assert "WRONG without __syncwarp: nothing raised" in capsys.readouterr().out


def test_the_checker_is_what_finds_them(seeds, capsys, monkeypatch):
    monkeypatch.setattr("jax_moye.layout.race.Clocks.check", lambda *_: None)
    assert seeds.main(["tensor_cores"]) == 4
    assert capsys.readouterr().out.count("WRONG without") == 4


def test_super_m_can_be_tried(seeds, capsys):
    loads = {}
    for super_m in (1, 5, 12):
        assert seeds.main(["cta_swizzle", "--super-m", str(super_m)]) == 0
        loads[super_m] = int(re.search(r"(\d+) loads from memory in order", capsys.readouterr().out)[1])
    assert loads[1] > loads[5] > loads[12]


def test_a_mismatch_is_found(seeds, capsys):
    report = seeds.Report()
    report.equal("a number", 1, 2)
    report.raises("nothing wrong", ValueError, lambda: None)
    report.shape("x", seeds.make_tensor("float32", (2, 3)), "(M,N)", (2, 4))
    assert (report.checked, report.failed) == (3, 3)
    assert capsys.readouterr().out.count("WRONG") == 3


def run(*arguments):
    """Another Python with the package that this one has."""
    package = str(pathlib.Path(jax_moye.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": package, "JAX_PLATFORMS": "cpu"}
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def test_status():
    """0 where all agrees, 1 where the library is wrong: sums that are 1 too large."""
    good = run(SCRIPT, "cta_swizzle")
    assert good.returncode == 0, good.stderr
    planted = (
        "import runpy, sys; from jax_moye.layout import execute as x; right = x._multiply_add; "
        "x._multiply_add = lambda *a: right(*a) + 1; sys.argv = ['seeds.py', 'tensor_cores']; "
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    bad = run("-c", planted)
    assert bad.returncode == 1
    assert "WRONG C == A B" in bad.stdout
