"""What the tests of the emulator share: running a program of this folder, and finding a line of its source."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).parent
MODES = ("eager", "lazy", "random")
ORDERS = ("fifo", "lifo", "random")
# Without it, reports place plain accesses outside every Site by their offset in the program.
HAS_ADDR2LINE = shutil.which("addr2line") is not None


def run(program: pathlib.Path, *arguments: object) -> str:
    """What the program prints."""
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.strip()


def line(file: str, end: str) -> int:
    """The number of the one line of a source file that ends in this text."""
    lines = (HERE / file).read_text().splitlines()
    (number,) = [i for i, content in enumerate(lines, 1) if content.endswith(end)]
    return number
