"""tune and tuned: what is timed, what is written, what a selection finds, and that a damaged file changes nothing."""

import dataclasses
import importlib
import json
import logging
import math
import os
import pathlib
import random
import re
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import custom_calls, lowered_text

import jax_moye
from jax_moye.__main__ import main
from jax_moye._kernels import ffi
from jax_moye._kernels.devices import DEVICES, find_device
from jax_moye._selection import capability, measurements
from jax_moye._selection.capability import LoweringTarget, usable_configs, why_not
from jax_moye._selection.decide import decide
from jax_moye._selection.measurements import Entry
from jax_moye._selection.ranking import rank
from jax_moye._timing.engine import Arm
from jax_moye._tune import times
from jax_moye._tune.times import Protocol, Target, Times

tune = importlib.import_module("jax_moye._tune.tune")  # the module: jax_moye.tune is the function
ROOT = pathlib.Path(__file__).resolve().parents[3]
H200 = "NVIDIA H200"
bf16 = jnp.bfloat16
SHAPE = ((256, 512), (512, 128), "bfloat16")
TABLES = measurements.TABLES  # the package's: conftest.py hides them from tests
HEAD = {"gpu": H200, "driver": "580.1", "emulated": False, "arch": 90}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """An H200 is assumed: an empty cache, no tables in the package, and a driver."""
    monkeypatch.setenv(measurements.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(measurements, "TABLES", tmp_path / "tables")
    monkeypatch.setattr(measurements, "driver_version", lambda: "580.1")
    monkeypatch.setattr(measurements, "_warned", set())
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: None)
    monkeypatch.setattr(ffi, "register", lambda platform: None)
    for name in ("XLA_FLAGS", "JAX_MOYE_CUDA_ARCH"):
        monkeypatch.delenv(name, raising=False)
    measurements.forget()
    yield tmp_path
    measurements.forget()


def explained(*args, **options):
    return jax_moye.explain(*args, **options, device=find_device("h200"))[0]


def able(gemm):
    """The names of the rows that can compute a product, in the model's order."""
    return [ranked.config.name for ranked in gemm.candidates if ranked.reason is None]


def head(**changes):
    return measurements.new_head(H200, "580.1", False, "2026-11-20") | HEAD | changes


def entry_of(gemm, us=None, xla_us=None, **changes):
    """An entry of a product, in which the fifth row of the model's order is the fastest."""
    names = able(gemm)
    us = us or {name: 20.0 + i for i, name in enumerate(names)} | {names[4]: 10.0}
    config = changes.pop("config", min(us, key=us.__getitem__))
    row = next(row for row in jax_moye.configs() if row.name == config)
    request, (lhs, rhs) = gemm.product.request, gemm.product.operands
    words = measurements.signature(lhs.dtype, rhs.dtype, request.out_dtype, request.precision)
    fields = {
        "problem": measurements.usual_key(gemm.problem),
        "variant": "",
        "config": config,
        "row": measurements.config_digest(row),
        "us": us,
        "xla_us": {} if xla_us is None else {words: xla_us},
        "host_bound": False,
        "date": "2026-11-20",
    }
    return Entry(**fields | changes)


def keep(entry, path=None, **changes):
    measurements.write(path or measurements.cache_file(H200), head(**changes), [entry])


def seal(body):
    """The bytes of a file whose sum is right."""
    body = {name: value for name, value in body.items() if name != "sha256"}
    return json.dumps(body | {"sha256": measurements._sha256(body)}).encode()


# -------------------------------------------------------------------------------------------------------------- lookup


def test_what_was_measured_comes_before_the_model(places):
    before = explained(*SHAPE, implementation="moye")
    fifth = able(before)[4]
    assert (before.chosen_by, before.config.name) == ("model", able(before)[0])
    keep(entry_of(before))
    after = explained(*SHAPE, implementation="moye")
    assert (after.chosen_by, after.config.name, after.measured.ours) == ("cache", fifth, 10.0)
    assert f"computed by    {fifth}, measured on this machine" in after.text()
    assert "10.0 us, the fastest of" in after.text()
    measured = json.loads(after.to_json())["measured"]
    assert (measured["source"], measured["config"], measured["us"], measured["xla_us"]) == ("cache", fifth, 10.0, None)
    ratios = [reason for reason in after.by_kernel().values() if "x the measured time" in reason]
    assert ratios
    assert all(float(reason.split(" x ")[0]) >= 1 for reason in ratios)
    # And the lowering does as explain says.
    a, b = (jax.ShapeDtypeStruct(shape, bf16) for shape in SHAPE[:2])
    (call,) = custom_calls(lowered_text(lambda a, b: jax_moye.matmul(a, b, implementation="moye"), a, b))
    assert call.config == fifth


@pytest.mark.parametrize(
    "near",
    [
        ((257, 512), (512, 128), "bfloat16"),
        ((256, 512), (512, 136), "bfloat16"),
        ((256, 520), (520, 128), "bfloat16"),
        ((256, 511), (511, 128), "bfloat16"),
        ((256, 512), (512, 128), "float16"),
        ((3, 256, 512), (3, 512, 128), "bfloat16"),
        ((3, 256, 512), (512, 128), "bfloat16"),
    ],
)
def test_an_entry_serves_exactly_its_problem(places, near):
    keep(entry_of(explained(*SHAPE, implementation="moye")))
    assert explained(*SHAPE, implementation="moye").chosen_by == "cache"
    assert explained(*near, implementation="moye").chosen_by == "model"


def test_orders_results_and_accumulators_are_other_problems(places):
    square = ((256, 256), (256, 256), "float16")
    keep(entry_of(explained(*square, implementation="moye")))
    for options in (
        {"spec": "km,kn->mn"},
        {"spec": "mk,nk->mn"},
        {"spec": "km,nk->mn"},
        {"spec": "mk,kn->nm"},  # swapped
        {"preferred_element_type": "float32"},
        {"precision": "F16_F16_F16"},
    ):
        assert explained(*square, **options, implementation="moye").chosen_by == "model"
    assert explained(*square, spec="mk,kn->mn", implementation="moye").chosen_by == "cache"


def test_a_transpose_in_front_is_the_same_problem(places):
    a, b = (jax.ShapeDtypeStruct(shape, bf16) for shape in ((512, 256), (512, 128)))
    keep(entry_of(explained(a, b, spec="km,kn->mn", implementation="moye"), xla_us=30.0))
    found = jax_moye.explain(lambda a, b: jax_moye.matmul(a.T, b), a, b, device=90)[0]
    assert found.chosen_by == "cache"


def test_contracts_and_names_come_first(places):
    gemm = explained(*SHAPE, implementation="moye")
    keep(entry_of(gemm))
    names = able(gemm)
    assert explained(*SHAPE, config=names[2]).chosen_by == "explicit"
    assert explained(*SHAPE, config=names[2]).config.name == names[2]
    invariant = explained(*SHAPE, batch_invariant=True)
    assert (invariant.chosen_by, invariant.measured) == ("model", None)
    same = explained(*SHAPE, deterministic=True)
    assert (same.chosen_by, same.config.name) == ("cache", names[4])


def test_the_emulator_and_other_gpus_ask_nothing(places):
    gemm = explained(*SHAPE, implementation="moye")
    keep(entry_of(gemm))
    a, b = (jax.ShapeDtypeStruct(shape, bf16) for shape in SHAPE[:2])
    nowhere = LoweringTarget("cuda", 90, None, usable_configs("cuda", 90))
    assert decide(gemm.product.request, gemm.product.operands, nowhere).measured is None
    assert (
        decide(gemm.product.request, gemm.product.operands, LoweringTarget.of_device(gemm.device)).measured.ours == 10
    )
    interpreted = lowered_text(lambda a, b: jax_moye.matmul(a, b, interpret=True), a, b, platform="cpu")
    assert custom_calls(interpreted)[0].config != able(gemm)[4]
    for device in ("h100", "a100", "h100-pcie"):
        assert jax_moye.explain(*SHAPE, device=device, implementation="moye")[0].measured is None


def test_the_cache_comes_before_the_table(places):
    gemm = explained(*SHAPE, implementation="moye")
    names, table = able(gemm), places / "tables" / "nvidia_h200.json"
    other = dataclasses.replace(entry_of(gemm, {names[3]: 11.0, names[0]: 12.0}, xla_us=30.0))
    # A table of the package need be of neither this driver nor this table of configs.
    keep(other, table, driver="570.2", table="another")
    assert (explained(*SHAPE).chosen_by, explained(*SHAPE).config.name) == ("table", names[3])
    assert f"{names[3]}, measured for the package" in explained(*SHAPE, implementation="moye").text()
    keep(entry_of(gemm, xla_us=30.0))
    assert (explained(*SHAPE).chosen_by, explained(*SHAPE).config.name) == ("cache", names[4])


def test_a_row_that_changed_is_not_what_was_measured(places, monkeypatch):
    gemm = explained(*SHAPE, implementation="moye")
    table = places / "tables" / "nvidia_h200.json"
    keep(entry_of(gemm), table)
    assert explained(*SHAPE, implementation="moye").chosen_by == "table"
    # A new row beside it changes nothing; another smem of the row itself does.
    rows = usable_configs("cuda", 90)
    changed = {able(gemm)[4]: {"smem_bytes": 1000}}
    for new, chosen_by in ((dataclasses.replace(rows[0], name="new"), "table"), (None, "model")):
        listed = [*rows, new] if new else [dataclasses.replace(r, **changed.get(r.name, {})) for r in rows]
        monkeypatch.setattr(capability, "usable_configs", lambda platform, arch, listed=listed: type(rows)(listed))
        assert explained(*SHAPE, implementation="moye").chosen_by == chosen_by
    digest = measurements.config_digest(rows[0])
    assert measurements.config_digest(dataclasses.replace(rows[0], registers={"sm_90": 1})) == digest
    for field, value in (("smem_bytes", 1), ("stages", 9), ("orders", ("NN",)), ("tile", (1, 2, 3))):
        assert measurements.config_digest(dataclasses.replace(rows[0], **{field: value})) != digest


@pytest.mark.parametrize("other", [{"driver": "580.2"}, {"table": "another"}, {"gpu": "NVIDIA L4"}, {"emulated": True}])
def test_a_foreign_file_is_ignored_with_one_warning(places, other, caplog):
    gemm = explained(*SHAPE, implementation="moye")
    keep(entry_of(gemm), **other)
    with caplog.at_level(logging.WARNING, logger="jax_moye"):
        for m in range(1, 20):
            assert explained((m, 512), (512, 128), bf16, implementation="moye").chosen_by == "model"
        measurements.forget()
        assert explained(*SHAPE, implementation="moye").chosen_by == "model"
    (warning,) = caplog.records
    assert str(measurements.cache_file(H200)) in warning.getMessage()
    assert next(iter(other)) in warning.getMessage()


def test_an_entry_must_name_a_row_that_can(places):
    gemm = explained(*SHAPE, implementation="moye")
    wrong = next(row for row in jax_moye.configs() if why_not(row, gemm.problem, 90))
    for config, row in (("no_such_row", "0"), (wrong.name, measurements.config_digest(wrong))):
        entry = dataclasses.replace(entry_of(gemm), config=config, row=row, us={config: 1.0})
        keep(entry)
        assert explained(*SHAPE, implementation="moye").chosen_by == "model"


def test_files_are_read_once(places, monkeypatch):
    keep(entry_of(explained(*SHAPE, implementation="moye")))
    times = []
    read = measurements.read
    monkeypatch.setattr(measurements, "read", lambda path: times.append(path) or read(path))
    for m in range(1, 50):
        explained((m, 512), (512, 128), bf16)
    assert times == [measurements.cache_file(H200)]


# ------------------------------------------------------------------------------------------------------- XLA is faster


def test_xla_may_be_the_fastest(places):
    gemm = explained(*SHAPE, implementation="moye")
    keep(entry_of(gemm, xla_us=8.0))
    found = explained(*SHAPE)
    assert (found.computed_by, found.chosen_by, found.config) == ("xla", "cache", None)
    assert found.reason == f"measured: XLA 8 us, our best {able(gemm)[4]} 10 us (cache)"
    assert json.loads(found.to_json())["measured"]["xla_us"] == 8.0
    assert found.reason in found.text()
    a, b = (jax.ShapeDtypeStruct(shape, bf16) for shape in SHAPE[:2])
    assert custom_calls(lowered_text(jax_moye.matmul, a, b)) == []
    for options in ({"implementation": "moye"}, {"deterministic": True}, {"config": able(gemm)[4]}):
        assert explained(*SHAPE, **options).config.name == able(gemm)[4]


@pytest.mark.parametrize(
    ("xla_us", "changes", "computed_by"),
    [
        (9.0, {}, "xla"),
        (9.95, {}, "moye"),  # within what two runs differ by
        (30.0, {}, "moye"),
        (9.0, {"host_bound": True}, None),  # nobody knows what was timed: the models decide
        (9.0, {"xla_us": {"bfloat16 bfloat16 bfloat16 HIGHEST": 9.0}}, None),  # of another precision
    ],
)
def test_when_xla_is_the_fastest(places, xla_us, changes, computed_by):
    of_models = explained(*SHAPE).computed_by
    gemm = explained(*SHAPE, implementation="moye")
    us = {name: 10.0 for name in able(gemm)}
    keep(entry_of(gemm, us, xla_us) if not changes else dataclasses.replace(entry_of(gemm, us, xla_us), **changes))
    found = explained(*SHAPE)
    assert found.computed_by == (computed_by or of_models)
    assert found.chosen_by == "cache" or (computed_by is None and found.computed_by == "xla")


def test_an_epilogue_has_its_own_entry(places):
    def layer(x, w, b):
        return jax_moye.linear(x, w, b, activation="silu")

    args = [jax.ShapeDtypeStruct(shape, bf16) for shape in ((2048, 2048), (2048, 2048), (2048,))]
    gemm = explained(*args[:2], implementation="moye")
    keep(entry_of(gemm, xla_us=1.0))
    assert explained(*args[:2]).computed_by == "xla"
    found = jax_moye.explain(layer, *args, device="h200")[0]
    # What was measured of the product alone says nothing of the layer.
    assert (found.computed_by, found.chosen_by, found.measured) == ("moye", "model", None)
    layers = dataclasses.replace(gemm.problem, epilogue=True)
    us = {name: 10.0 for name in able(gemm)}
    entry = dataclasses.replace(entry_of(gemm, us, 12.0, variant="silu bias", config=able(gemm)[1]), problem=layers)
    keep(entry)
    found = jax_moye.explain(layer, *args, device="h200")[0]
    assert (found.computed_by, found.config.name, found.chosen_by) == ("moye", able(gemm)[1], "cache")
    assert f'config = "{able(gemm)[1]}"' in lowered_text(layer, *args)
    keep(dataclasses.replace(entry_of(gemm, us, 8.0, variant="silu bias"), problem=layers))
    found = jax_moye.explain(layer, *args, device="h200")[0]
    assert found.epilogue_reason.startswith("measured: XLA 8 us, our best")
    assert (found.computed_by, found.chosen_by, found.config) == ("xla", "cache", None)
    assert "custom_call @jax_moye" in lowered_text(layer, *args)  # a program that is there keeps its kernels
    assert "custom_call @jax_moye" not in lowered_text(lambda *args: layer(*args), *args)


def test_three_launches_have_their_own_entry(places):
    options = {"precision": "high", "implementation": "moye"}
    single = jax_moye.explain((512, 512), (512, 512), "float32", implementation="moye", device="h200")[0]
    assert single.problem.dtype == "tf32"
    keep(entry_of(single))
    found = jax_moye.explain((512, 512), (512, 512), "float32", **options, device="h200")[0]
    assert found.measured is None
    names = able(single)
    entry = entry_of(single, {name: 1.0 for name in names}, variant="3xtf32", config=names[1])
    keep(entry)
    found = jax_moye.explain((512, 512), (512, 512), "float32", **options, device="h200")[0]
    assert (found.split, found.config.name, found.chosen_by) == (True, names[1], "cache")


# --------------------------------------------------------------------------------------------------------------- files


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv(measurements.VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert measurements.cache_dir() == "/home/x/.cache/jax_moye"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert measurements.cache_dir() == "/home/x/.cache/jax_moye"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert measurements.cache_dir() == "/xdg/jax_moye"
    monkeypatch.setenv(measurements.VARIABLE, "/own")
    assert measurements.cache_dir() == "/own"
    monkeypatch.setattr(measurements, "driver_version", lambda: "580.1")
    digest = measurements.table_digest(jax_moye.configs())
    assert measurements.cache_file(H200) == f"/own/nvidia_h200-580.1-{digest}.json"
    assert measurements.emulator_file() == f"/own/emulator-{digest}.json"
    monkeypatch.setattr(measurements, "driver_version", lambda: None)
    assert measurements.cache_file(H200) is None


def test_writing_keeps_the_rest_and_replaces_the_file_at_once(places, monkeypatch):
    first, second = (explained((m, 512), (512, 128), bf16, implementation="moye") for m in (256, 512))
    path = pathlib.Path(measurements.cache_file(H200))
    keep(entry_of(first))
    keep(entry_of(second))
    keep(entry_of(first, {able(first)[0]: 5.0}))
    entries = measurements.read(path).entries
    assert [entry.us[entry.config] for entry in entries.values()] == [5.0, 10.0]
    before = path.read_bytes()

    def fail(*args):
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no"):
            keep(entry_of(second, {able(first)[0]: 6.0}))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(ValueError, match="is a file of gpu 'NVIDIA H200', and this is 'NVIDIA L4'"):
        keep(entry_of(first), gpu="NVIDIA L4")
    assert path.read_bytes() == before


def damaged(rng, good):
    """A file with bits flipped, bytes cut off or put in, or something else altogether."""
    kind = rng.randrange(6)
    data = bytearray(good)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(40)] = rng.randbytes(rng.randrange(40))
    elif kind == 3:
        return rng.choice([b"", b"\0" * 99, b"[" * 9999, b"{}", b"null", b"1e999", b'"x"', b"\xff\xfe", b"[1]", b"NaN"])
    elif kind == 4:  # a digit or a name for another
        digits = [match.start() for match in re.finditer(rb"[0-9a-z]", good)]
        data[rng.choice(digits)] = rng.choice(b"0123456789abcdefsx_")
    else:
        lines = good.splitlines(keepends=True)
        rng.shuffle(lines)
        return b"".join(lines[: rng.randint(1, len(lines))])
    return bytes(data)


VALUES = [None, True, -1, 0, 3, 10**30, 1.5, -0.0, math.nan, math.inf, "", "bf16", "x" * 50, [], [1], [1, 2, 3], {}]


def swapped(rng, good):
    """A file whose sum is right, and in which something has another type or value, is missing or is new."""
    body = json.loads(good)
    for _ in range(rng.randint(1, 2)):
        node = body
        while True:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            if not keys:
                break
            key = rng.choice(list(keys))
            if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.75:
                node = node[key]
                continue
            action = rng.randrange(4)
            if action == 0:
                del node[key]
            elif action == 1 and isinstance(node, dict):
                node["new"] = rng.choice(VALUES)
            else:
                node[key] = rng.choice(VALUES)
            break
    return seal(body)


def test_a_thousand_damaged_files(places, caplog):
    gemms = [explained((m, 512), (512, 128), bf16, implementation="moye") for m in (256, 512, 1024)]
    for gemm in gemms:
        keep(entry_of(gemm, xla_us=30.0))
    path = pathlib.Path(measurements.cache_file(H200))
    good, rng = path.read_bytes(), random.Random(0)
    rows = usable_configs("cuda", 90)
    right = {gemm: able(gemm)[4] for gemm in gemms}
    legal = {gemm: set(able(gemm)) for gemm in gemms}
    ignored = 0
    for i in range(1000):
        resealed = i % 2 == 1
        data = swapped(rng, good) if resealed else damaged(rng, good)
        path.write_bytes(data)
        measurements.forget()
        measurements._warned.clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="jax_moye"):
            found = {gemm: measurements.find(gemm.problem, "", H200, 90, rows) for gemm in gemms}
        assert len(caplog.records) <= 1
        for gemm, choice in found.items():
            # With a sum that is right anything may be said, if it is a kernel that can; else only what was said before.
            assert choice is None or choice.config.name in (legal[gemm] if resealed else {right[gemm]})
        if all(choice is None for choice in found.values()):
            ignored += 1
            assert len(caplog.records) == 1 or resealed
    assert ignored > 700


def test_what_is_no_file_is_no_file(places, monkeypatch):
    path = pathlib.Path(measurements.cache_file(H200))
    path.mkdir(parents=True)
    assert explained(*SHAPE, implementation="moye").chosen_by == "model"
    path.rmdir()
    os.mkfifo(path)  # reading it would wait for ever
    measurements.forget()
    assert explained(*SHAPE, implementation="moye").chosen_by == "model"
    monkeypatch.setenv(measurements.VARIABLE, str(path / "below"))
    assert explained(*SHAPE, implementation="moye").chosen_by == "model"


# -------------------------------------------------------------------------------------------------------------- timing


class FakeArm(Arm):
    """An arm that takes as long as it is told; counts its turns."""

    def __init__(self, name, seconds, dispatch=0.1):
        super().__init__(name, run=lambda i: [], wait=lambda: None)
        self.seconds, self.turns, self.share = seconds, 0, dispatch

    def turn(self, programs, passes, group):
        self.turns += 1
        self.dispatch = max(self.dispatch, self.share)
        return self.seconds


PROTOCOL = Protocol(turn_ms=0.0, warmup_ms=0.0)
WORK = times._Work([()] * 4, 2, 0)


def test_the_race_spends_its_time_on_the_best():
    arms = [FakeArm(f"c{i}", (10 + i) * 1e-6) for i in range(12)] + [FakeArm("slow", 100e-6)]
    xla = FakeArm("xla", 9e-6)
    us, host_bound = times._race(arms, xla, WORK, PROTOCOL)
    assert us == pytest.approx({arm.name: arm.seconds * 1e6 for arm in [*arms, xla]})
    assert not host_bound
    alone, first, last = 3, 2 + PROTOCOL.rounds[0], 2 + PROTOCOL.rounds[1]
    assert [arm.turns for arm in arms] == [alone + first + last] * 8 + [alone + first] * 4 + [alone]
    assert xla.turns == last
    assert len(arms[0].times) == PROTOCOL.rounds[1]  # the median is of the last round
    assert times._race([FakeArm("c", 1e-6, 0.99)], None, WORK, PROTOCOL) == ({"c": pytest.approx(1.0)}, True)
    assert times._race([], xla, WORK, PROTOCOL) == ({}, False)


@pytest.fixture
def fake(places, monkeypatch):
    """tune() on a GPU that is not there; returns what sets the times, by rank in the model's order."""
    state = {}

    def time_product(product, call, candidates, target, protocol):
        state["candidates"] = [row.name for row in candidates]
        us = {row.name: state["us"](i) for i, row in enumerate(candidates)}
        return Times(us, state.get("xla_us"), state.get("host_bound", False), state.get("rejected", {}))

    def target(device, emulated, path):
        return Target(jax.devices("cpu")[0], "cuda", 90, head(), pathlib.Path(path or measurements.cache_file(H200)))

    monkeypatch.setattr(tune, "time_product", time_product)
    monkeypatch.setattr(tune, "_gpu", lambda: None)
    monkeypatch.setattr(tune, "of_jax", lambda device: DEVICES["h200"])
    monkeypatch.setattr(tune, "_target", target)
    return state


def test_tune_writes_what_the_next_program_does(fake):
    fake |= {"us": lambda i: {0: 12.0, 1: 11.0, 2: 13.0, 4: 10.0}.get(i, 20.0), "xla_us": 15.0}
    gemm = explained(*SHAPE, implementation="moye")
    found = jax_moye.tune(*SHAPE)
    assert fake["candidates"] == able(gemm)[: tune.TOP]
    (product,) = found.products
    assert product.entry.config == able(gemm)[4]
    assert list(product.entry.us.values()) == [12.0, 11.0, 13.0, 20.0, 10.0, 20.0, 20.0, 20.0]
    assert explained(*SHAPE).config.name == able(gemm)[4]
    assert explained(*SHAPE).chosen_by == "cache"
    (one,) = found.regret()
    assert (one.alone, one.top3) == (10.0 / 12.0, 10.0 / 11.0)
    assert (one.chosen, one.best) == (able(gemm)[0], able(gemm)[4])
    text = str(found)
    assert f"256x128x512 NN bf16: {able(gemm)[4]} 10 us of 8, XLA 15" in text
    assert "the model's first config: 0.8333 of the best measured" in text
    assert found.rows()[1][1:] == [able(gemm)[4], "10", "15", "8", ""]
    assert found._repr_html_().count("<td>") == 6
    assert "the best of its first three: 0.9091 of the best measured" in text
    assert f"written to {measurements.cache_file(H200)}" in text
    assert explained(*SHAPE).predicted_us == explained(*SHAPE).chosen.us  # the model's, of the row that was measured


def test_tune_writes_of_a_layer_what_the_next_one_finds(fake):
    def layer(x, w, b):
        return jax_moye.linear(x, w, b, activation="silu")

    args = [jax.ShapeDtypeStruct(shape, bf16) for shape in ((2048, 2048), (2048, 2048), (2048,))]
    fake |= {"us": lambda i: 20.0 - (i == 2), "xla_us": 30.0}
    (product,) = jax_moye.tune(layer, *args).products
    assert (product.entry.variant, product.entry.problem.epilogue) == ("silu bias", True)
    found = jax_moye.explain(layer, *args, device="h200")[0]
    assert (found.chosen_by, found.config.name) == ("cache", product.entry.config)


def test_all_configs_and_some(fake):
    fake["us"] = lambda i: 10.0 + i
    gemm = explained(*SHAPE, implementation="moye")
    jax_moye.tune(*SHAPE, top=None)
    assert fake["candidates"] == able(gemm)
    jax_moye.tune(*SHAPE, top=1)
    assert fake["candidates"] == able(gemm)[:1]


def test_equals_are_the_models(fake):
    fake["us"] = lambda i: [10.05, 10.0, 9.97][i] if i < 3 else 12.0
    gemm = explained(*SHAPE, implementation="moye")
    assert jax_moye.tune(*SHAPE).products[0].entry.config == able(gemm)[0]
    fake["us"] = lambda i: [10.3, 10.0][i] if i < 2 else 12.0
    assert jax_moye.tune(*SHAPE).products[0].entry.config == able(gemm)[1]
    fake["host_bound"] = True
    assert jax_moye.tune(*SHAPE).products[0].entry.config == able(gemm)[0]


def test_every_product_of_a_function_and_what_is_left_out(fake):
    fake["us"] = lambda i: 10.0

    def step(x, w):
        y = jax_moye.matmul(x, w, precision="F64_F64_F64")
        y = jax_moye.matmul(y, w, implementation="xla") + jnp.dot(x, w)
        y = jax_moye.matmul(y, w, config=name)
        y = jax_moye.matmul(y, w, batch_invariant=True)
        return jax_moye.linear(y, w, activation="relu") + jax_moye.matmul(y, w.T)

    x = jax.ShapeDtypeStruct((64, 64), bf16)
    name = able(explained(x, x, implementation="moye"))[0]
    found = jax_moye.tune(jax.grad(lambda x, w: jnp.sum(step(x, w).astype(jnp.float32))), x, x)
    variants = {(product.entry.problem.order, product.entry.variant) for product in found.products if product.entry}
    assert ("NN", "relu") in variants
    assert {("NT", ""), ("NN", "")} & variants
    why = "\n".join(product.why for product in found.products if product.entry is None)
    for reason in (
        "no kernel computes",
        "implementation='xla'",
        "lax.dot_general's own",
        "names the config",
        "batch_inv",
    ):
        assert reason in why
    assert "not tuned: " in str(found)


def test_what_fails_keeps_the_rest(fake, monkeypatch):
    calls = []

    def time_product(product, call, candidates, target, protocol):
        calls.append(call.problem.m)
        if len(calls) == 2:
            raise MemoryError("no memory")
        if len(calls) == 3:
            raise KeyboardInterrupt
        return Times({candidates[0].name: 1.0}, None, False, {})

    monkeypatch.setattr(tune, "time_product", time_product)
    rows = [tune.workloads.own_row(f"{m}x64x64:bf16", m) for m in (64, 128, 256)]
    target = tune._target(None, False, None)
    assert tune.run(rows, target, Protocol()) == 130
    (entry,) = measurements.read(target.path).entries.values()
    assert entry.problem.m == 64


def test_the_budget(fake, capsys):
    fake["us"] = lambda i: 10.0
    found = jax_moye.tune(*SHAPE, budget_s=-1)
    assert found.products[0].why == "the budget of -1 s was over"
    assert not pathlib.Path(measurements.cache_file(H200)).exists()


def test_errors():
    with pytest.raises(RuntimeError, match="while a program is traced"):
        jax.jit(lambda x: jax_moye.tune(*SHAPE) or x)(1.0)
    for transformed in (jax.grad, jax.jit, lambda f: jax.vmap(f, axis_size=2)):
        with pytest.raises(RuntimeError, match="while a program is traced"):
            transformed(lambda x: jax_moye.tune(x, x) or x)(jnp.ones((2, 2)) if transformed is not jax.grad else 1.0)
    for top in (0, -1, 1.5, True, "all"):
        with pytest.raises(ValueError, match="top is a number of configs"):
            jax_moye.tune(*SHAPE, top=top)
    if jax.default_backend() == "cpu":
        with pytest.raises(RuntimeError, match="tune: JAX sees no GPU here"):
            jax_moye.tune(*SHAPE)


# ----------------------------------------------------------------------------------------------------- in the emulator


def emulated(tmp_path, *candidates):
    path = tmp_path / "emulated.json"
    return tune._target(jax.devices("cpu")[0], True, path), Protocol(top=2, turn_ms=0.1, rounds=(1, 1), warmup_ms=0)


def product_of(*args, **options):
    return jax_moye.explain(*args, **options, device=80)[0].product


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (((33, 40), (40, 24), "bfloat16"), {}),
        (((24, 33), (40, 24), "bfloat16"), {"spec": "km,nk->mn"}),
        (((2, 16, 24), (2, 24, 8), "float16"), {"preferred_element_type": "float32"}),
        (((16, 32), (16, 32), "int8"), {"spec": "mk,nk->mn", "preferred_element_type": "int32"}),
        (((16, 32), (16, 32), "float8_e4m3fn"), {"spec": "mk,nk->mn", "preferred_element_type": "bfloat16"}),
        (((16, 16), (16, 16), "float64"), {}),
        (((16, 16), (16, 16), "float32"), {"precision": "TF32_TF32_F32_X3"}),
    ],
)
def test_right_results_are_within_their_bounds(tmp_path, args, options):
    target, protocol = emulated(tmp_path)
    (found,) = tune.tune_products([product_of(*args, **options)], target, protocol)
    assert found.why is None
    assert len(found.entry.us) == 2
    if "precision" in options:  # not XLA's on a CPU
        assert found.rejected.keys() == {"xla"}
    else:
        assert (found.rejected, len(found.entry.xla_us)) == ({}, 1)


def test_right_layers_are_within_their_bounds(tmp_path):
    def layer(x, w, b, r):
        return jax_moye.linear(x, w, b, activation="gelu", residual=r)

    structs = [jax.ShapeDtypeStruct(shape, bf16) for shape in ((16, 32), (32, 24), (24,), (16, 24))]
    target, protocol = emulated(tmp_path)
    (found,) = tune.tune_products([jax_moye.explain(layer, *structs, device=80)[0].product], target, protocol)
    assert (found.why, found.rejected, found.entry.variant) == (None, {}, "gelu_tanh bias residual")


@pytest.mark.parametrize("wrong", [lambda d: d.at[-1, -1].add(1), lambda d: d.at[0, 0].set(np.nan)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_wrong_results_have_no_time(tmp_path, monkeypatch, wrong, dtype):
    target, protocol = emulated(tmp_path)
    product = product_of((32, 48), (48, 24), dtype)
    right, (_, bad) = times.program_of, tune._candidates(product, target, protocol)[1]

    def program_of(product, implementation, interpret):
        fun = right(product, implementation, interpret)
        return fun if product.request.config != bad.name else lambda *operands: wrong(fun(*operands))

    monkeypatch.setattr(times, "program_of", program_of)
    (found,) = tune.tune_products([product], target, protocol)
    assert bad.name not in found.entry.us
    assert found.rejected[bad.name].startswith("WRONG")
    assert bad.name in tune.line(found, None)


@pytest.mark.parametrize("hoisted", [False, True])
def test_short_products_run_in_a_loop(tmp_path, monkeypatch, hoisted):
    """As on a GPU; where XLA moves the products out of the loop, in programs of products alone."""
    right, looped_arm = times._work, times.looped_arm
    looped = []

    def work(product, device):
        sets = right(product, device).sets
        return times._Work(sets * 3, 3, 2)

    def loop(name, fun, operands, rounds):
        assert (len(operands[0]), rounds) == (3, 2)
        arm = looped_arm(name, fun, operands, rounds)
        if hoisted:

            def refuse():
                raise NotImplementedError("moved out")

            return dataclasses.replace(arm, lower=lambda: refuse)
        looped.append(name)
        return arm

    monkeypatch.setattr(times, "_work", work)
    monkeypatch.setattr(times, "looped_arm", loop)
    target, protocol = emulated(tmp_path)
    (found,) = tune.tune_products([product_of((24, 16), (16, 8), "bfloat16")], target, protocol)
    assert (found.why, found.rejected, len(found.entry.us), len(found.entry.xla_us)) == (None, {}, 2, 1)
    assert len(looped) == (0 if hoisted else 3)


def test_inputs_are_untouched(tmp_path, monkeypatch, places):
    monkeypatch.setattr(tune, "_gpu", lambda: jax.devices("cpu")[0])
    monkeypatch.setattr(tune, "of_jax", lambda device: DEVICES["h200"])
    target = emulated(tmp_path)[0]
    monkeypatch.setattr(tune, "_target", lambda *args, **options: target)
    a, b, gone = (jnp.asarray(np.arange(256).reshape(16, 16) % 7, bf16) for _ in range(3))
    before = [np.asarray(x).tobytes() for x in (a, b)]
    found = jax_moye.tune(lambda a, b, c: jax_moye.matmul(a, b) @ c, a, b, gone, top=1)
    assert [product.entry is not None for product in found.products] == [True, False]
    assert [np.asarray(x).tobytes() for x in (a, b)] == before
    gone.delete()  # what is deleted cannot be read: its shape is enough
    assert jax_moye.tune(a, gone, top=1).products[0].entry is not None


def test_the_command_in_the_emulator(places, capsys):
    common = ["tune", "--emulator", "--turn-ms", "0.1", "--top", "2"]
    assert main([*common, "--shape", "32x48x64:bf16", "--shape", "2x16x16x16:f32:NT"]) == 0
    text = capsys.readouterr().out
    path = pathlib.Path(measurements.emulator_file())
    assert str(path) in text
    assert "S1   32x48x64 NN bf16: " in text
    assert "S2   2x16x16x16 NT f32: " in text
    assert "the model's first config: " in text
    tables = measurements.read(path)
    assert (tables.head["gpu"], tables.head["emulated"], len(tables.entries)) == ("emulator", True, 2)
    # A second run adds to it.
    name = next(iter(tables.entries.values())).config
    assert main([*common, "--shape", "16x48x64:bf16", "--sweep", re.escape(name)]) == 0
    again = measurements.read(path).entries
    assert len(again) == 3
    assert list(list(again.values())[-1].us) == [name]
    # And nothing chooses by it.
    shutil_path = pathlib.Path(measurements.cache_file(H200))
    shutil_path.write_bytes(path.read_bytes())
    measurements.forget()
    assert explained((32, 64), (64, 48), bf16, implementation="moye").chosen_by == "model"
    capsys.readouterr()
    assert main(["tune", "--regret", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.count("the model's ") == 3 + 1
    assert "32x48x64 NN bf16" in text


def test_a_suite(places, tmp_path, capsys):
    suite = tmp_path / "suite.json"
    row = {"batch": 1, "m": 16, "n": 16, "k": 16, "layout": "TN", "dtype": "bf16", "regime": "tiny"}
    suite.write_text(json.dumps({"rows": [row | {"id": "A1"}, row | {"id": "B1", "epilogue": "bias+gelu"}]}))
    out = tmp_path / "out.json"
    common = ["tune", "--emulator", "--turn-ms", "0.1", "--top", "1", "--suite", str(suite), "--out", str(out)]
    assert main([*common, "--rows", "B.*"]) == 0
    (entry,) = measurements.read(out).entries.values()
    assert (entry.problem.order, entry.variant) == ("TN", "gelu_tanh bias")
    assert main([*common, "--rows", "C.*"]) == 1
    assert "nothing to tune" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to tune"),
        (["--shape", "64x64:bf16"], "--shape is"),
        (["--shape", "8x8x8:bf16", "--top", "few"], "few"),
        (["--shape", "8x8x8:bf16", "--top", "0"], "--top is a number"),
        (["--shape", "8x8x8:bf16", "--sweep", "("], "tune: "),
        (["--regret", "/nowhere.json"], "nowhere"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    assert main(["tune", "--emulator", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is a GPU")
def test_without_a_gpu_the_command_says_so(capsys):
    assert main(["tune", "--shape", "8x8x8:bf16"]) == 2
    assert "--emulator" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------------- tables


def test_tables_are_in_the_wheel():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    assert build["wheel"]["packages"] == ["jax_moye"]  # with all that is tracked in it
    excluded = [*build["wheel"].get("exclude", []), *build["sdist"]["exclude"]]
    assert not [pattern for pattern in excluded if "tables" in pattern or "json" in pattern or "jax_moye" in pattern]
    assert TABLES.joinpath("README.md").is_file()


def test_tables_are_what_tune_writes(monkeypatch):
    """Every table of the package is about a GPU that is known, and every entry names a config that can compute it."""
    for path in TABLES.glob("*.json"):
        tables = measurements.read(path)
        device = next(device for device in DEVICES.values() if device.kind == tables.head["gpu"])
        assert path.name == f"{measurements.slug(device.kind)}.json"
        assert not tables.head["emulated"]
        monkeypatch.setattr(measurements, "TABLES", TABLES)
        for entry in tables.entries.values():
            names = {row.name: row for row in jax_moye.configs()}
            if entry.config in names:
                assert why_not(names[entry.config], entry.problem, device.arch) is None
                if measurements.config_digest(names[entry.config]) == entry.row:
                    found = measurements.find(
                        entry.problem, entry.variant, device.kind, device.arch, jax_moye.configs()
                    )
                    assert (found.config.name, found.source) == (entry.config, "table")


def test_regret_is_of_todays_model(places):
    gemm = explained(*SHAPE, implementation="moye")
    order = [row.name for row, reason in rank(gemm.problem, 90, jax_moye.configs()) if reason is None]
    us = {order[1]: 20.0, order[2]: 16.0, order[3]: 10.0}  # the model's first was not timed
    (one,) = tune.regret([entry_of(gemm, us)], 90)
    assert (one.chosen, one.best, one.alone, one.top3) == (order[1], order[3], 0.5, 1.0)
    assert tune.regret([entry_of(gemm, {"gone": 1.0} | us, config=order[1])], 90) == [one]
    assert tune.regret([], 90) == []
    assert tune.regret_lines([]) == []


def test_choices_print_what_they_are():
    gemm = explained(*SHAPE, implementation="moye")
    entry = entry_of(gemm)
    assert not tune._is_xlas(dataclasses.replace(entry, xla_us={"any": 1e9}))
    assert tune.words(entry) == "256x128x512 NN bf16"
    odd = explained((3, 31, 65), (3, 65, 33), "bfloat16", implementation="moye")
    assert tune.words(entry_of(odd)) == "3x31x33x65 NN bf16 aligned to 2"
