"""The emulator in front of somebody: Ctrl-C, how long a product will take, how far it is, and what it takes to run."""

from __future__ import annotations

import ctypes
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

import jax_moye
from jax_moye import _moye_cpu

ROOT = pathlib.Path(__file__).parents[2]
SLOW = "simt_tiled_f32_128x128x8_s1_a16"
SAYS = re.compile(rb"jax_moye: " + SLOW.encode() + rb", sizes .*: the emulator will take about [\d.]+ (s|min|h); ")
SECONDS = 3.0  # in which Ctrl-C is obeyed: one, and the rest for busy machines; the products below take half a minute

HEADER = f"""
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist's workers ignore it, and so would we
import jax, jax.numpy as jnp, numpy as np
import jax_moye
from jax_moye import _moye_cpu

n = 4096
x = np.ones((n, n), np.float32)

def say(*words):
    print(*words, flush=True)

def direct(n=n, **options):
    x, d = np.ones((n, n), np.float32), np.zeros((n, n), np.float32)
    return _moye_cpu.emulate("{SLOW}", x, x, d, [1, n, n, n], *[[0, n, 1]] * 3, **options)

product = jax.jit(lambda x: jax_moye.matmul(x, x, config="{SLOW}", precision="highest", interpret=True))
"""


class Process:
    """A Python process that says lines on stdout, with its stderr at a terminal or a pipe."""

    def __init__(self, script: str, terminal: bool) -> None:
        """Starts `script` behind HEADER."""
        self.stderr, theirs = pty.openpty() if terminal else os.pipe()
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", HEADER + script]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
        os.close(theirs)
        self.said = b""

    def wait_for(self, pattern: re.Pattern[bytes]) -> re.Match[bytes]:
        """What stderr says, when it does."""
        while not (found := pattern.search(self.said)):
            more = os.read(self.stderr, 4096)
            assert more, self.said
            self.said += more
        self.said = self.said[found.end() :]
        return found

    def line(self) -> str:
        """The next line of stdout."""
        return self.process.stdout.readline().decode().strip()

    def seconds_to_obey(self) -> tuple[float, str]:
        """From SIGINT to the next line of stdout, and that line."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        line = self.line()
        return time.monotonic() - begin, line

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        os.close(self.stderr)


def test_ctrl_c():
    """Of a call from Python, of a program of XLA's, and where the program handles SIGINT itself."""
    script = """
try:
    direct()
except KeyboardInterrupt:
    say("KeyboardInterrupt")

try:
    product(x).block_until_ready()
except KeyboardInterrupt:
    say("KeyboardInterrupt")

stop = []
signal.signal(signal.SIGINT, lambda *_: stop.append(1))
try:
    product(x).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    say(error)

try:
    print(direct(n=128, workers=2)["ok"], np.asarray(product(x[:8, :8]))[0, 0], flush=True)
    signal.raise_signal(signal.SIGINT)
    say(len(stop) >= 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    report = []
    thread = threading.Thread(target=lambda: report.append(direct()))
    thread.start()
    thread.join()
except KeyboardInterrupt:
    while not report:
        time.sleep(0.01)
    say(report[0]["message"])
"""
    ended = "emulator: Ctrl-C has ended the launch; what it has computed is lost"
    with Process(script, terminal=True) as process:
        for _ in range(2):
            process.wait_for(SAYS)
            process.wait_for(re.compile(rb"emulator: \d+ % of the result after \d+ s, about [\d.]+ (s|min|h) left"))
            seconds, line = process.seconds_to_obey()
            assert line == "KeyboardInterrupt"
            assert seconds < SECONDS
        # A program's own handler may want the product: the first SIGINT is its, the second ends the launch.
        process.wait_for(SAYS)
        process.process.send_signal(signal.SIGINT)
        process.wait_for(re.compile(rb"% of the result after \d+ s"))
        seconds, line = process.seconds_to_obey()
        assert line.startswith("CANCELLED: "), line
        assert line.endswith(ended)
        assert seconds < SECONDS
        assert process.line() == "True 8.0"
        assert process.line() == "True"
        process.wait_for(SAYS)
        time.sleep(0.3)
        assert process.seconds_to_obey() == (pytest.approx(0, abs=SECONDS), ended)


def test_without_a_terminal():
    """No progress is shown, and Ctrl-C ends the process, not only Python's wait for the product."""
    script = 'try:\n    product(x).block_until_ready()\nexcept KeyboardInterrupt:\n    say("ended")'
    with Process(script, terminal=False) as process:
        process.wait_for(SAYS)
        time.sleep(3)
        begin = time.monotonic()
        assert process.seconds_to_obey()[1] == "ended"
        assert process.process.wait(60) == 0
        assert time.monotonic() - begin < SECONDS
        assert b"of the result" not in process.said + os.read(process.stderr, 1 << 16)


def c_handler() -> bytes:
    """What the C library has for SIGINT: Python's signal.getsignal knows what Python has set alone."""
    action = ctypes.create_string_buffer(256)
    assert ctypes.CDLL(None).sigaction(signal.SIGINT, None, action) == 0
    return action.raw[:8]  # the function; behind it the C library leaves gaps


@pytest.mark.parametrize("python", [signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL], ids=str)
def test_handlers_of_signals(python):
    """Ours stands before Python's while a kernel runs, and before no other."""
    x = np.ones((128, 1024), np.float32)
    options = {"config": SLOW, "precision": "highest", "interpret": True}
    product = jax.jit(lambda x: jax_moye.matmul(x, x.T, **options)).lower(x).compile()
    python_before = signal.signal(signal.SIGINT, python)
    try:
        before, during, done = c_handler(), set(), threading.Event()

        def look():
            while not done.wait(0.01):
                during.add(c_handler())

        thread = threading.Thread(target=look)
        thread.start()
        product(x).block_until_ready()
        done.set()
        thread.join()
        assert c_handler() == before
        assert signal.getsignal(signal.SIGINT) is python
        assert (len(during - {before}) == 1) == callable(python)
    finally:
        signal.signal(signal.SIGINT, python_before)


def test_how_long_it_will_take(capfd):
    """What is measured beforehand is about right, and said if it is more than ten seconds."""
    n, k = 512, 512
    a, b, d = (np.ones(shape, np.float32) for shape in ((n, k), (k, n), (n, n)))
    strides = [0, k, 1], [0, 1, n], [0, n, 1]
    begin = time.monotonic()
    report = _moye_cpu.emulate(SLOW, a, b, d, [1, n, n, k], *strides, detect_races=False)
    seconds = time.monotonic() - begin
    assert report["ok"]
    assert seconds / 5 < report["expected_seconds"] < 5 * seconds
    small = _moye_cpu.emulate(SLOW, a, b, d, [1, n, n, 8], *strides)
    assert small["expected_seconds"] == 0, "not worth a measurement"
    assert ("will take" in capfd.readouterr().err) == (report["expected_seconds"] >= 10)


@pytest.mark.parametrize("run", ["jit", "direct"])
def test_subnormal_numbers(run):
    """XLA's threads flush them to zero; a kernel does not."""
    a, b = np.full((8, 16), 2.0**-130, np.float32), np.full((16, 8), 2.0**20, np.float32)
    if run == "jit":
        options = {"config": SLOW, "precision": "highest", "interpret": True}
        d = np.asarray(jax.jit(lambda a, b: jax_moye.matmul(a, b, **options))(a, b))
    else:
        d = np.zeros((8, 8), np.float32)
        assert _moye_cpu.emulate(SLOW, a, b, d, [1, 8, 8, 16], [0, 16, 1], [0, 1, 8], [0, 8, 1])["ok"]
    np.testing.assert_array_equal(d, np.full((8, 8), 16 * 2.0**-110, np.float32))


def test_no_address_space():
    """A product that finds none is an error, and neither the end of the process nor of the products behind it."""
    script = """
import resource
configs = ("sm80_multistage_bf16_128x128x32_s4_a16", "sm90_cooperative_bf16_256x128x64_s4_c1x2_a16")
x = jnp.ones((64, 64), jnp.bfloat16)
small, big = (
    jax.jit(lambda x, config=config: jax_moye.matmul(x, x, config=config, interpret=True)).lower(x).compile()
    for config in configs
)
say(small(x)[0, 0])
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (10 << 20), -1))
for _ in range(2):
    try:
        big(x).block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        say(error)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
say(big(x)[0, 0], small(x)[0, 0])
"""
    with Process(script, terminal=False) as process:
        assert process.line() == "64"
        for _ in range(2):
            assert process.line().endswith("out of memory")
        assert process.line() == "64 64"
