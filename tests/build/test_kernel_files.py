"""The kernels' files: each opens with a table of its roles and barriers, and is short enough to be read."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = sorted((ROOT / "cuda/gemm").glob("*.cuh"))
CLANG_FORMAT = shutil.which("clang-format", path=pathlib.Path(sys.executable).parent) or shutil.which("clang-format")

# A sentence, of one line or more; the table, each line indented, with a gap between its two columns; further sentences.
HEADER = re.compile(r"(?:// \S(?!.* {3}).*\n)+(?://   (?!.*\S {3,}\S.* {3}).*\n)+(?:// [A-Z](?!.* {3}).*\n)*")


def header_of(text: str) -> str:
    return text[: text.index("#pragma once")]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda path: path.stem)
def test_a_kernel_opens_with_its_table(kernel):
    text = kernel.read_text()
    header = header_of(text)
    assert header.startswith(f"// {kernel.stem}: ")
    assert HEADER.fullmatch(header)
    lines = header.splitlines()
    assert 8 <= len(lines) <= 15
    assert sum(line.startswith("//   ") for line in lines) >= 6
    assert max(map(len, lines)) <= 120  # clang-format leaves these lines alone
    assert len(text.splitlines()) <= 400


def test_a_joined_line_is_found():
    header = header_of((ROOT / "cuda/gemm/sm90_pingpong.cuh").read_text())
    joined = header.replace("\n//   turn[c] ", "\n// it turn[c] ")
    assert joined != header
    assert not HEADER.fullmatch(joined)
    assert not HEADER.fullmatch(header.replace("\n//   turn[c] ", " turn[c] "))


@pytest.mark.skipif(CLANG_FORMAT is None, reason="no clang-format on PATH or beside this Python")
def test_clang_format_neither_breaks_nor_joins_the_lines_of_a_table():
    """A line that is too long stays: in a sentence its last words would begin the next line."""
    long = "//   empty[s]  " + "one arrival of every warp of the consumer, in every CTA of the cluster: " * 2 + "end"
    header = f"// A sentence.\n{long}\n//   turn[c]   one arrival of every warp\n"
    command = [CLANG_FORMAT, f"--assume-filename={ROOT}/cuda/gemm/config.h"]
    done = subprocess.run(command, input=header, capture_output=True, text=True, check=True)
    assert done.stdout == header
    sentence = header.replace("//   ", "// ")
    assert subprocess.run(command, input=sentence, capture_output=True, text=True, check=True).stdout != sentence
