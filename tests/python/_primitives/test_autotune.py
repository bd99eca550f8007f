"""Products that are measured while they are lowered: which, when, what becomes of it, and what where it fails."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import types

import jax
import pytest
from python.measured import SHAPE, able, bf16, entry_of, explained, keep
from python.support import custom_calls, lowered_text

import jax_moye
from jax_moye import _compat
from jax_moye._kernels import devices
from jax_moye._kernels.configs import facts_of, find_config
from jax_moye._primitives import autotune
from jax_moye._primitives.product_race import InterruptedMeasurementError, new_entry
from jax_moye._selection import capability, cost, measurements
from jax_moye._selection.decide import decide
from jax_moye._selection.entry import parse_entry

ROOT = pathlib.Path(__file__).resolve().parents[3]
WORDS = "bfloat16 bfloat16 bfloat16 DEFAULT"
A, B = (jax.ShapeDtypeStruct(shape, bf16) for shape in SHAPE[:2])


@pytest.fixture
def gpu(places, monkeypatch):
    """As on an H200, where measuring finds what a test says: microseconds of the model's third config, and of XLA."""
    monkeypatch.setattr(_compat, "cuda_arch", lambda: 90)
    monkeypatch.setattr(capability, "_device_meant", lambda arch: devices.DEVICES["h200"])
    monkeypatch.setattr(autotune, "_settled", set())
    monkeypatch.setattr(autotune, "_spent", [0.0, 0, 0.0])
    found = types.SimpleNamespace(ours=100.0, xla=200.0, calls=[], error=None)

    def measured(request, operands, call, candidates, xla, others, stop):
        found.calls.append(
            (request, call, measurements.variant(request.spec, request.epilogue, request.beta, call.split))
        )
        if found.error is not None:
            raise found.error
        assert len(candidates) == autotune.CANDIDATES
        xla_us = None if request.insists else found.xla
        lead = None if xla_us is None else xla_us / found.ours
        us = {candidates[2].name: found.ours}
        return new_entry(request, operands, call, [candidates[2]], us, xla_us, lead)

    monkeypatch.setattr(autotune, "measured", measured)
    jax.clear_caches()
    yield found
    jax.clear_caches()


def lowered(fun=jax_moye.matmul, *args):
    jax.clear_caches()
    return custom_calls(lowered_text(fun, *(args or (A, B))))


def test_a_new_product_is_measured_once_and_the_next_process_finds_it(gpu):
    third = able(explained(*SHAPE, implementation="moye"))[2]
    (call,) = lowered()
    assert call.config == third
    assert len(gpu.calls) == 1
    assert [one.config for one in lowered(lambda a, b: jax_moye.matmul(a, b) + jax_moye.matmul(a, b))] == [third] * 2
    assert len(gpu.calls) == 1
    autotune._settled.clear()  # as in the next process
    measurements.forget()
    assert [one.config for one in lowered()] == [third]
    assert len(gpu.calls) == 1
    found = explained(*SHAPE)
    assert (found.chosen_by, found.config.name, found.measured) == ("cache", third, (100.0, 200.0))
    assert re.search(r"measured +100\S* us, the fastest of 1 config, XLA 200\S* us \(cache", found.text())


def test_what_was_measured_before_is_decided_once(gpu, monkeypatch):
    lowered()
    asked = []
    monkeypatch.setattr(autotune, "decide", lambda *args: asked.append(args[0]) or decide(*args))
    assert len(lowered()) == 1
    autotune._settled.clear()  # as in the next process
    measurements.forget()
    assert len(lowered()) == 1
    assert len(asked) == 2
    assert len(gpu.calls) == 1


def test_what_was_measured_before_needs_no_layouts(gpu, monkeypatch):
    """To import them takes as long as to lower all products of a program."""
    calls = lowered()
    if find_config(calls[0].config).max_arch != 90:
        pytest.skip("the third config is not one of sm_90 alone in this build")
    autotune._settled.clear()  # as in the next process
    measurements.forget()
    for cached in (facts_of, capability._smem_limit, cost._of_config):
        cached.cache_clear()
    for config in jax_moye.configs():
        config.__dict__.pop("k_parts", None)
    for name in [name for name in sys.modules if name.startswith("jax_moye.layout")]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    assert lowered() == calls
    with pytest.raises(ImportError, match=r"jax_moye\.layout"):
        lowered(jax_moye.matmul, B, jax.ShapeDtypeStruct((128, 64), bf16))  # nobody has measured that


@pytest.mark.parametrize("count", [3, 4, 5])
def test_what_the_packages_table_has_is_measured_anew_where_configs_came_since(gpu, places, count):
    """An entry that has timed the four configs that the model names first counts as it is."""
    gemm = explained(*SHAPE, implementation="moye")
    first = able(gemm)[:count]
    table = places / "tables" / "nvidia_h200.json"
    keep(entry_of(gemm, {name: 20.0 + i for i, name in enumerate(first)}, xla_us=60.0), table)
    (call,) = lowered()
    assert call.config == (first[0] if count >= 4 else able(gemm)[2])
    assert len(gpu.calls) == (count < 4)
    assert explained(*SHAPE).chosen_by == ("table" if count >= 4 else "cache")
    with jax_moye.options(autotune="off"):
        (call,) = lowered()
    assert call.config == first[0]


@pytest.mark.parametrize(("xla", "is_ours"), [(101.0, False), (103.4, False), (103.6, True), (50.0, False)])
def test_xla_computes_what_is_not_clearly_faster(gpu, xla, is_ours):
    gpu.xla = xla
    assert bool(lowered()) == is_ours
    assert len(gpu.calls) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"autotune": "off"},
        {"autotune": "cached"},
        {"deterministic": True},
        {"batch_invariant": True},
        {"implementation": "xla"},
    ],
    ids=str,
)
def test_what_is_not_measured(gpu, options):
    with jax_moye.options(**options):
        lowered()
    assert gpu.calls == []


def test_what_xla_is_sure_to_win_is_not_measured(gpu, monkeypatch):
    asked = []
    monkeypatch.setattr(autotune, "is_lost", lambda problem, *us: asked.append((problem.sizes, us)) or True)
    assert lowered() == []
    assert gpu.calls == []
    ((sizes, (ours, xla)),) = asked
    assert sizes == (1, 256, 128, 512)
    assert 0 < xla < 1.23 * ours  # as the model has it, which leaves it to XLA
    with jax_moye.options(implementation="moye"):  # who insists has no XLA to leave it to
        lowered()
    assert len(gpu.calls) == 1


@pytest.mark.parametrize("is_known", [False, True])
def test_what_is_lost_is_agreed_on_by_all_processes(gpu, monkeypatch, is_known, tmp_path):
    """One of them may know more: what the first one does, or leaves to XLA, all do."""
    monkeypatch.setattr(autotune, "is_lost", lambda *times: True)
    if is_known:
        keep(entry_of(explained(*SHAPE, implementation="moye"), xla_us=200.0))
    shared = {}
    monkeypatch.setattr(_compat, "key_value_store", lambda: Store(0, shared))
    first = lowered()
    assert len(shared) == 1
    measurements.forget()
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(tmp_path / "another"))
    monkeypatch.setattr(measurements, "_here", {})
    monkeypatch.setattr(autotune, "_settled", set())
    monkeypatch.setattr(_compat, "key_value_store", lambda: Store(1, shared))
    assert lowered() == first


def test_what_the_model_gives_a_kernel_is_measured_however_small(gpu, monkeypatch):
    monkeypatch.setattr(autotune, "is_lost", lambda *times: True)
    monkeypatch.setattr("jax_moye._selection.decide.xla_wins", lambda ours, xlas: False)
    lowered()
    assert len(gpu.calls) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_outer_product_is_xlas(gpu, dtype):
    """It multiplies elements where they are read, and nobody measures that."""
    given = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((4096, 1), (1, 4096))]
    assert lowered(jax_moye.matmul, *given) == []
    assert gpu.calls == []
    explanation = explained((4096, 1), (1, 4096), dtype)
    assert "an outer product is no sum" in explanation.text()
    assert explained((4096, 1), (1, 4096), dtype, implementation="moye").config is not None


def test_other_programs_are_not_measured(gpu, monkeypatch):
    lowered(lambda a, b: jax_moye.matmul(a, b, config=able(explained(*SHAPE))[0]))
    with jax_moye.cuda_target(80):
        lowered()
    monkeypatch.setenv("JAX_MOYE_AUTOTUNE", "off")
    lowered()
    monkeypatch.delenv("JAX_MOYE_AUTOTUNE")
    monkeypatch.setattr(_compat, "cuda_arch", lambda: None)  # lowered for another machine
    lowered()
    assert gpu.calls == []
    jax.jit(jax_moye.matmul).lower(A, B)  # for the CPU
    assert gpu.calls == []


def test_a_product_whose_operand_is_written_anew_is_not_measured(gpu):
    """What would be timed, and compared with XLA's, reads another array than the program's kernel."""

    def grouped_keys_gradient(q, scores):
        return jax_moye.einsum("bamnc,banck->bkam", q.transpose(0, 2, 4, 3, 1), scores, implementation="moye")

    q, scores = (jax.ShapeDtypeStruct(shape, bf16) for shape in ((2, 64, 8, 4, 32), (2, 8, 4, 64, 64)))
    assert len(lowered(grouped_keys_gradient, q, scores)) == 1
    assert gpu.calls == []


def test_derivatives_have_the_options_of_their_product(gpu):
    with jax_moye.options(autotune="off"):
        program = jax.jit(jax.grad(lambda a, b: jax_moye.matmul(a, b).astype("float32").sum())).trace(A, B)
    program.lower(lowering_platforms=("cuda",))
    assert gpu.calls == []
    lowered(jax.grad(lambda a, b: jax_moye.matmul(a, b).astype("float32").sum(), argnums=(0, 1)))
    assert {request.spec for request, _, _ in gpu.calls} == {"an,kn->ak", "ak,an->kn"} or len(gpu.calls) == 2


def test_who_insists_has_our_kernels_measured_alone(gpu):
    gpu.xla = 1.0
    (call,) = lowered(lambda a, b: jax_moye.matmul(a, b, implementation="moye"))
    assert call.config == able(explained(*SHAPE, implementation="moye"))[2]
    assert lowered() == []  # who does not insist has XLA measured, too
    assert len(gpu.calls) == 2


def test_layers_and_sums_are_measured_as_such(gpu):
    bias = jax.ShapeDtypeStruct((128,), bf16)
    lowered(lambda a, b, c: jax_moye.linear(a, b, c, activation="silu"), A, B, bias)
    assert [variant for _, _, variant in gpu.calls] == ["silu bias"]
    assert explained(*SHAPE).chosen_by == "model" or explained(*SHAPE).measured is None


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("of CUDA"), ValueError("of XLA")], ids=repr)
def test_what_fails_is_left_to_the_model_and_not_tried_again(gpu, error, caplog):
    gpu.error = error
    with caplog.at_level(logging.INFO, "jax_moye"):
        first = lowered()
    assert "is not measured" in caplog.text
    assert lowered() == first
    assert len(gpu.calls) == 1
    assert explained(*SHAPE).measured is None


def test_a_cache_that_cannot_be_written_is_this_processes(gpu, monkeypatch, caplog):
    folder = pathlib.Path(measurements.cache_dir())
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file where the folder would be")
    autotune._warn_once.cache_clear()
    third = able(explained(*SHAPE, implementation="moye"))[2]
    assert [one.config for one in lowered()] == [third]
    assert "cannot be written" in caplog.text
    assert explained(*SHAPE).chosen_by == "measured"
    assert [one.config for one in lowered()] == [third]
    assert len(gpu.calls) == 1


def test_an_interrupt_ends_the_program(gpu, monkeypatch):
    """As it ends a compilation: the thread that measures is told, and what it held is given back."""
    told = threading.Event()
    monkeypatch.setattr(autotune, "_settled", set())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist's workers ignore it

    def measured(*args, stop):
        threading.Timer(0.2, lambda: os.kill(os.getpid(), 2)).start()
        assert stop.wait(30)
        told.set()
        raise InterruptedMeasurementError

    monkeypatch.setattr(autotune, "measured", measured)
    try:
        with pytest.raises(KeyboardInterrupt):
            lowered()
    finally:
        signal.signal(signal.SIGINT, before)
    assert told.is_set()
    assert autotune._settled == set()  # the next program tries again


def test_the_log_says_what_was_measured_and_how_long(gpu, caplog):
    with caplog.at_level(logging.INFO, "jax_moye"):
        lowered()
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("measured")]
    assert "bfloat16[256, 512] and bfloat16[512, 128]" in line
    assert "100 us, the fastest of 1, XLA 200 us (0.0" in line


def test_a_terminal_hears_of_it_every_two_seconds(gpu, monkeypatch, capsys):
    clock = iter(range(0, 1000))
    monkeypatch.setattr(autotune, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))  # a second each
    for is_a_tty, heard in ((False, []), (True, [5, 8])):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_a_tty=is_a_tty: is_a_tty)
        for m in range(4):
            lowered(jax_moye.matmul, jax.ShapeDtypeStruct((64 + m + 8 * is_a_tty, 512), bf16), B)
        said = re.findall(r"jax_moye: (\d) products measured", capsys.readouterr().err)
        assert [int(count) for count in said] == heard


# ------------------------------------------------------------------------------------------------- several processes


class Store:
    """A key-value store of one process's view."""

    def __init__(self, process_id, shared):
        self.process_id, self.shared = process_id, shared

    def put(self, name, text):
        self.shared[name] = text

    def get(self, name, seconds):
        if name not in self.shared:
            raise TimeoutError(f"nothing in {seconds} s")
        return self.shared[name]


@pytest.mark.parametrize("fails", [False, True])
def test_all_processes_do_what_the_first_one_found(gpu, monkeypatch, fails, tmp_path):
    shared = {}
    gpu.error = MemoryError() if fails else None
    monkeypatch.setattr(_compat, "key_value_store", lambda: Store(0, shared))
    first = lowered()
    assert len(gpu.calls) == 1
    assert len(shared) == 1
    # The second one has measured something else before: that does not count.
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(tmp_path / "another"))
    gemm = explained(*SHAPE, implementation="moye")
    other = entry_of(gemm, {able(gemm)[5]: 1.0}, xla_us=200.0)
    keep(other)
    monkeypatch.setattr(measurements, "_here", {})
    monkeypatch.setattr(autotune, "_settled", set())
    monkeypatch.setattr(_compat, "key_value_store", lambda: Store(1, shared))
    assert lowered() == first
    assert len(gpu.calls) == 1


def test_a_first_process_that_says_nothing_leaves_the_model(gpu, monkeypatch, caplog):
    monkeypatch.setattr(_compat, "key_value_store", lambda: Store(1, {}))
    with caplog.at_level(logging.INFO, "jax_moye"):
        lowered()
    assert "is not measured: TimeoutError: nothing in 120.0 s" in caplog.text
    assert gpu.calls == []


def test_what_is_known_is_handed_out_too(gpu, monkeypatch):
    lowered()  # measured, alone
    shared = {}
    autotune._settled.clear()
    monkeypatch.setattr(_compat, "key_value_store", lambda: Store(0, shared))
    lowered()
    assert len(gpu.calls) == 1
    (text,) = shared.values()
    assert parse_entry(json.loads(text)).config == able(explained(*SHAPE, implementation="moye"))[2]


def test_two_processes(tmp_path):
    """With JAX's own store: the second process gets what the first one measured."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path]), "JAX_PLATFORMS": "cpu"}
    program = """
import sys
import jax
number = int(sys.argv[1])
jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=number)
import python.conftest  # by which all configs are built for a GPU
from python.measured import SHAPE, able, entry_of, explained
from jax_moye import _compat
from jax_moye._primitives import autotune
gemm = explained(*SHAPE, implementation="moye")
entry = entry_of(gemm, {able(gemm)[number + 3]: 7.0})  # what this process would measure
key = ("words", *entry.key)
found = autotune._agreed(key, None, lambda: entry)
print(found.config == able(gemm)[3], found.us, flush=True)
_compat.key_value_store().client.wait_at_barrier("end", 60_000)
"""
    import socket

    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    command = [sys.executable, "-c", program]
    pipes = {"stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([*command, str(i), address], env=environment, **pipes) for i in (0, 1)]
    answers = [one.communicate(timeout=120)[0] for one in both]
    assert answers[0] == answers[1]
    assert answers[0].startswith("True ")
