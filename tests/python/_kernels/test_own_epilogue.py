"""Kernels that are compiled with a function: once, in the background or not, and never confused with the table's."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading

import pytest

import jax_moye
from jax_moye._kernels import compiler, nvrtc, own_epilogue
from jax_moye._kernels.configs import find_config
from jax_moye._selection.problem import GemmProblem

CONFIG = "sm80_multistage_bf16_64x64x64_s3_a16"
ROOT = pathlib.Path(__file__).resolve().parents[3]
compiles = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def _no_jobs(monkeypatch, tmp_path):
    monkeypatch.setattr(own_epilogue, "_jobs", {})
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(tmp_path / "cache"))


def kernel_of(body, config=CONFIG, platform="cpu", arch=None, *, wait=True):
    return own_epilogue.kernel_of(find_config(config), body, "NN", platform, arch, wait=wait)


@compiles
def test_nothing_is_compiled_twice(monkeypatch):
    body = "  return x + 3.0f;\n"
    name, reason = kernel_of(body)
    assert reason is None
    assert re.fullmatch(rf"{CONFIG}_all_f[0-9a-f]{{16}}", name)
    ran = []
    run = compiler.run
    monkeypatch.setattr(compiler, "run", lambda command, *rest: ran.append(command) or run(command, *rest))
    assert kernel_of(body) == (name, None)
    assert not ran
    own_epilogue._jobs.clear()  # as another process has it: what is on disk is found
    assert kernel_of(body) == (name, None)
    assert [("-E" in command, "-c" in command) for command in ran] == [(True, False)]
    other, _ = kernel_of("  return x + 4.0f;\n")
    assert other != name
    assert len(ran) == 4


@compiles
def test_another_process_finds_it(tmp_path):
    program = f"""
import jax_moye
from jax_moye._kernels import compiler, own_epilogue
from jax_moye._kernels.configs import find_config
run = compiler.run
def counted(command, *rest):
    print("compiles" if "-c" in command else "", end="")
    return run(command, *rest)
compiler.run = counted
print(own_epilogue.kernel_of(find_config("{CONFIG}"), "  return x - 3.0f;\\n", "NN", "cpu", None, wait=True))
"""
    environ = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    said = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ).stdout
        for _ in range(2)
    ]
    assert said[0].startswith("compiles('")
    assert said[1] == said[0].removeprefix("compiles")


@compiles
def test_in_the_background(monkeypatch):
    """Who does not wait is told so; who waits has it, and who comes later, too."""
    go = threading.Event()
    of_emulator = own_epilogue._for_emulator
    monkeypatch.setattr(own_epilogue, "_for_emulator", lambda kernel: go.wait(60) and of_emulator(kernel))
    body, reason = "  return x + 5.0f;\n", "its kernel is being compiled, for programs that are lowered later"
    for _ in range(2):
        assert kernel_of(body, wait=False) == (None, reason)
    assert len([thread for thread in threading.enumerate() if thread.name == "jax_moye-own-epilogue"]) == 1
    go.set()
    name, reason = kernel_of(body)
    assert reason is None
    assert kernel_of(body, wait=False) == (name, None)


def test_what_is_on_disk_is_there_at_once(monkeypatch):
    """On a GPU, too, where nobody waits."""
    loaded = []
    monkeypatch.setattr(own_epilogue, "_for_gpu", loaded.append)
    monkeypatch.setattr(nvrtc, "is_compiled", lambda source, order, arch: (order, arch) == ("NN", "90"))
    name, reason = kernel_of("  return x + 6.0f;\n", platform="cuda", arch=90, wait=False)
    assert (name, reason) == (loaded[0].name, None)
    assert re.fullmatch(rf"{CONFIG}_NN_f[0-9a-f]{{16}}", name)


@compiles
def test_what_does_not_compile_is_a_reason_each_time(caplog):
    for wait in (True, False):
        name, reason = kernel_of("  return y;\n", wait=wait)
        assert name is None
        assert reason.startswith(f"{CONFIG} does not compile with it: KernelError: ")
        assert "was not declared in this scope" in reason


def test_without_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert kernel_of("  return x;\n") == (
        None,
        f"{CONFIG} does not compile with it: KernelError: no C++ compiler: /nowhere/c++ is not on PATH (on Debian and "
        "Ubuntu: apt-get install g++)",
    )


def test_an_interrupt_leaves_nothing(monkeypatch):
    def interrupted(kernel):
        raise KeyboardInterrupt

    monkeypatch.setattr(own_epilogue, "_for_emulator", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kernel_of("  return x;\n")
    assert not own_epilogue._jobs


@compiles
def test_kernels_of_ones_own_and_those_that_copy(tmp_path, monkeypatch):
    page = (ROOT / "docs/own_kernel.md").read_text()
    text = re.search(r"<!-- file: mine.cuh -->\n```cpp\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "mine.cuh").write_text(text)
    mine = jax_moye.kernel(tmp_path / "mine.cuh", config="{mine, f32, f32, {64, 64, 8}, 1, {1, 1}, 4}")
    assert "a kernel of your own is compiled without functions of yours" in kernel_of("", mine.name)[1]
    copies = "sm90_cooperative_bf16_128x128x64_s5_a2"
    assert "copies its operands first" in kernel_of("", copies, "cuda", 90)[1]


@compiles
def test_orders_of_launches(tmp_path):
    """Python's are those that cuda/gemm/order.h chooses, of modes that are contiguous both, or neither, too."""
    cases = list(itertools.product((1, 5), (1, 6), (1, 7), *[[(8, 1), (1, 8), (1, 1), (16, 2)]] * 2))
    rows = ",".join(f"{{{m},{n},{k},{a_m},{a_k},{b_n},{b_k}}}" for m, n, k, (a_m, a_k), (b_n, b_k) in cases)
    (tmp_path / "orders.cc").write_text(f"""
#include <cstdio>
#include "gemm/order.h"
int main() {{
  long const rows[][7] = {{{rows}}};
  for (auto const& row : rows) {{
    moye::GemmArgs args = {{}};
    args.m = row[0], args.n = row[1], args.k = row[2], args.a_m_stride = row[3], args.a_k_stride = row[4];
    args.b_n_stride = row[5], args.b_k_stride = row[6];
    std::puts((char const*[]){{"NN", "NT", "TN", "TT"}}[int(moye::order_of(args))]);
  }}
}}
""")
    command = [*compiler.host_compiler(), "-std=c++20", f"-I{jax_moye.include_dir()}", "orders.cc", "-o", "orders"]
    subprocess.run(command, cwd=tmp_path, check=True)
    orders = subprocess.run([tmp_path / "orders"], capture_output=True, text=True, check=True).stdout.split()
    others = {"batch": 1, "d_strides": (0, 9, 1), "dtype": "bf16", "out_dtype": "f32", "swapped": False}
    of_problem = functools.partial(GemmProblem, **others)
    for (m, n, k, a, b), order in zip(cases, orders, strict=True):
        assert of_problem(m=m, n=n, k=k, a_strides=(0, *a), b_strides=(0, *b)).launch_order == order, (m, n, k, a, b)
    assert set(orders) == {"NN", "NT", "TN", "TT"}
