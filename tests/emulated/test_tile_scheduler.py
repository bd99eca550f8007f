"""The order in which CTAs take the tiles of d."""

from __future__ import annotations

import pathlib
import subprocess

import jax_moye
from tests import cxx
from tests.emulated.problems import Problem
from tests.emulated.test_matrix import check_exact


def test_every_tile_once():
    binary = cxx.build("tile_scheduler", [pathlib.Path(__file__).with_name("tile_scheduler.cc")])
    done = subprocess.run([binary], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_more_rows_of_tiles_than_a_group():
    config = next(
        c for c in jax_moye.configs() if c.kernel == "sm80_multistage" and c.alignment == 16 and c.tile[0] == 64
    )
    for order in ("NN", "TT"):
        check_exact(config, Problem(9 * 64 + 1, 3 * 64, 24, order, batch=2))
