"""Times by the device's clock, on a GPU that is played: sets, launches, passes, and what the gate does."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._timing import direct
from jax_moye._timing.direct import DirectProduct, Layout, same_result


def layout(m=256, n=128, k=512, batch=1, **changes):
    strides = {"a": (m * k, k, 1), "b": (n * k, 1, n), "d": (m * n, n, 1)}
    return Layout((batch, m, n, k), strides, "bf16", "bf16")._replace(**changes)


class Device:
    """As much of a device as is asked for."""

    local_hardware_id = 0


@dataclasses.dataclass
class Played:
    """What the extension would do: it keeps what it was told."""

    log: list = dataclasses.field(default_factory=list)

    def DirectProduct(self, *arguments):  # noqa: N802
        self.log.append(("memory", arguments))
        return self

    def add(self, config, launches):
        self.log.append(("add", config, launches))
        return len(self.log)

    def seconds(self, number, replays):
        self.log.append(("seconds", number, replays))
        return 1e-3 * replays

    def sample(self, count, size, address):
        self.log.append(("sample", count, size, address))
        return np.arange(4, dtype=ml_dtypes.bfloat16).tobytes()

    def give_back(self):
        self.log.append(("given back",))

    def close_gate(self):
        self.log.append(("closed",))

    def open_gate(self):
        self.log.append(("open",))

    def marked_seconds(self):
        return 0.5


@pytest.fixture
def played(monkeypatch):
    played = Played()
    module = ffi.extension("cpu")
    monkeypatch.setattr(ffi, "extension", lambda platform: played if platform == "cuda" else module)
    monkeypatch.setattr(direct, "l2_bytes", lambda: 60 << 20)
    return played


CONFIG = next(config.name for config in jax_moye.configs() if config.dtype == "bf16")


@pytest.mark.parametrize(
    ("of", "sets"),
    [
        (layout(4096, 4096, 4096), 2),  # 100 MB each
        (layout(1024, 1024, 1024), 20),
        (layout(256, 256, 2048), 64),  # 55, in whole programs of 32
        (layout(64, 64, 64), 256),  # as many as a graph holds
    ],
)
def test_sets_are_twice_the_cache(played, of, sets):
    with DirectProduct(of, Device(), [CONFIG]) as product:
        assert product.sets == sets
        (_, arguments) = played.log[0]
        assert arguments[6] == sets
        assert len(arguments[7]) % 1024 == 0
        assert not np.isnan(np.frombuffer(arguments[7], ml_dtypes.bfloat16).astype(np.float32)).any()
    assert played.log[-1] == ("given back",)


def test_the_memory_is_given_back_after_an_error(played):
    with pytest.raises(ZeroDivisionError), DirectProduct(layout(), Device(), []):
        raise ZeroDivisionError
    assert played.log[-1] == ("given back",)


@pytest.mark.parametrize(("of", "launches"), [(layout(8192, 8192, 8192), 2), (layout(1024, 1024, 1024), 80)])
def test_a_pass_is_one_replay_of_about_half_a_millisecond(played, of, launches):
    with DirectProduct(of, Device(), []) as product:
        contender = product.contender(CONFIG)
        assert played.log[-1] == ("add", CONFIG, launches)
        assert launches % product.sets == 0
        assert contender.round(3) == pytest.approx(1e-3 / launches)
        assert played.log[-1] == ("seconds", 2, 3)
        assert not contender.host_bound


def test_a_sample_of_ours_and_of_an_array(played):
    class Array:
        def unsafe_buffer_pointer(self):
            return 4096

    with DirectProduct(layout(), Device(), []) as product:
        assert product.sample().dtype == ml_dtypes.bfloat16
        assert played.log[-1][-1] == 0
        product.sample(Array())
        assert played.log[-1][-1] == 4096


@pytest.mark.parametrize(
    ("of", "size"),
    [
        (layout(64, 64, 64), 32),
        (layout(1024, 1024, 1024), 20),
        (layout(16, 18176, 4544), 10),  # of 2 sets, which alone would be less than a pass of ours by far
        (layout(8192, 8192, 8192), 2),
    ],
)
def test_xlas_programs_are_a_pass_and_run_behind_a_gate(played, monkeypatch, of, size):
    """All programs of a pass are dispatched between the marks, while the gate is closed."""

    class Marked:
        def block_until_ready(self):
            played.log.append(("waited",))

    monkeypatch.setattr(direct, "_mark", lambda index: played.log.append(("mark", index)) or Marked())
    ran = []
    with DirectProduct(of, Device(), []) as product:
        assert product.program_size == size
        operands = [(f"a{i}", f"b{i}") for i in range(product.sets)]
        contender = product.xla_contender(lambda *flat: ran.append(flat) or ["d"], operands)
        assert contender.products == contender.programs * size == max(size, len(operands))
        played.log.clear()
        assert contender.round(2) == pytest.approx(0.5 / (2 * contender.products))
        assert played.log == [("closed",), ("mark", 0), ("mark", 1), ("open",), ("waited",)]
        in_turn = [operands[i % len(operands)] for i in range(contender.products)]  # from pass to pass, too
        assert [x for flat in ran[: contender.programs] for x in flat] == [x for pair in in_turn for x in pair]
        assert len(ran) == 2 * contender.programs
        ran.clear()
        assert contender.round(1000) == pytest.approx(0.5 / (len(ran) * size))
        assert len(ran) <= 24  # XLA makes the host wait with 32


def test_the_gate_is_opened_after_an_error(played, monkeypatch):
    monkeypatch.setattr(direct, "_mark", lambda index: None)

    def fails(*flat):
        raise RuntimeError("of XLA")

    with DirectProduct(layout(), Device(), []) as product:
        contender = product.xla_contender(fails, [("a", "b")] * product.sets)
        with pytest.raises(RuntimeError, match="of XLA"):
            contender.round(1)
        assert played.log[-1] == ("open",)


def test_one_result_and_two():
    rng = np.random.default_rng(0)
    exact = rng.standard_normal(10_000)
    for dtype in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64):
        one = exact.astype(dtype)
        assert same_result(one, (exact * (1 + 1e-3 * rng.standard_normal(exact.size))).astype(dtype))
        assert not same_result(one, np.roll(one, 1))
        assert not same_result(one, (1.05 * exact).astype(dtype))
        broken = one.copy()
        broken[7] = np.nan
        assert not same_result(broken, one)
        assert same_result(broken, broken)
    whole = rng.integers(-1000, 1000, 100)
    assert same_result(whole, whole)
    assert not same_result(whole, whole + (np.arange(100) == 3))
