"""What was measured: what a selection finds in a file, and that a damaged file changes nothing."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tomllib

import jax
import jaxlib
import pytest
from python.measured import H200, SHAPE, able, bf16, entry_of, explained, keep, seal
from python.support import custom_calls, lowered_text

import jax_moye
from jax_moye._kernels.devices import DEVICES
from jax_moye._selection import capability, measurements
from jax_moye._selection.capability import LoweringTarget, usable_configs, why_not
from jax_moye._selection.decide import decide

ROOT = pathlib.Path(__file__).resolve().parents[3]
TABLES = measurements.TABLES  # the package's: conftest.py hides them from tests


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


def test_modes_of_a_batch_belong_to_the_problem(places):
    """An entry of attention's scores is found again, and is none of another split of as many matrices."""

    def scores(batch, heads, spec="bqhd,bkhd->bhqk"):
        shapes = ((batch, 256, heads, 64), (batch, 128, heads, 64))
        return explained(*shapes, "bfloat16", spec=spec, implementation="moye")

    assert scores(4, 8).problem.batch_sizes == (4, 8)
    keep(entry_of(scores(4, 8)))
    assert scores(4, 8).chosen_by == "cache"
    for other in (scores(8, 4), scores(2, 16), scores(32, 1), scores(4, 8, "bqhd,bkhd->hbqk")):
        assert other.problem.batch == 32
        assert other.chosen_by == "model"
    digests = {measurements.key_digest(("", gemm.problem, "")) for gemm in (scores(4, 8), scores(8, 4), scores(32, 1))}
    assert len(digests) == 3


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
    # Another machine of the kind has not measured it, and the bits are to be the same there.
    same = explained(*SHAPE, deterministic=True)
    assert (same.chosen_by, same.measured) == ("model", None)
    for mode, chosen_by in (("off", "model"), ("cached", "cache"), ("on", "cache")):
        with jax_moye.options(autotune=mode):
            assert explained(*SHAPE, implementation="moye").chosen_by == chosen_by


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    """Each reads the file, adds an entry and replaces the file: without turns the last one would win."""
    program = """
import sys
import python.conftest  # by which all configs are built for a GPU
from python.measured import HEAD, SHAPE, entry_of, explained
from jax_moye._selection import measurements
number, path = int(sys.argv[1]), sys.argv[2]
head = measurements.new_head(HEAD["gpu"], HEAD["driver"], False, "2026-11-22") | HEAD
entries = [entry_of(explained((64 * number + 8 * i, 512), (512, 128), "bfloat16", implementation="moye"))
           for i in range(1, 5)]
print("ready", flush=True)
sys.stdin.readline()
for entry in entries:
    measurements.write(path, head, [entry])
"""
    path = tmp_path / "file.json"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path])}
    command = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, str(i), str(path)], env=environment, **pipes) for i in range(4)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert len(measurements.read(path).entries) == 16


def test_the_environment_says_what_counts(places, monkeypatch):
    keep(entry_of(explained(*SHAPE, implementation="moye")))
    for mode, chosen_by in (("off", "model"), ("cached", "cache"), ("on", "cache"), ("", "cache")):
        monkeypatch.setenv(measurements.AUTOTUNE, mode)
        assert explained(*SHAPE, implementation="moye").chosen_by == chosen_by
    monkeypatch.setenv(measurements.AUTOTUNE, "perhaps")
    with pytest.raises(ValueError, match="JAX_MOYE_AUTOTUNE is on, cached or off, not 'perhaps'"):
        explained(*SHAPE)


def test_what_a_process_remembers_comes_before_the_cache(places):
    gemm = explained(*SHAPE, implementation="moye")
    names = able(gemm)
    keep(entry_of(gemm))
    other = entry_of(gemm, {names[1]: 3.0})
    measurements.remember(H200, other.key, other)
    found = explained(*SHAPE, implementation="moye")
    assert (found.chosen_by, found.config.name) == ("measured", names[1])
    measurements.remember(H200, other.key, None)  # the first process of the program has measured nothing
    assert explained(*SHAPE, implementation="moye").chosen_by == "model"
    keep(entry_of(gemm))  # measured anew
    assert explained(*SHAPE, implementation="moye").chosen_by == "cache"


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


def test_the_table_is_not_read_where_the_cache_knows(places, monkeypatch):
    """It is the longer file: lowering a program whose products are all known here does not wait for it."""
    gemm = explained(*SHAPE, implementation="moye")
    keep(entry_of(gemm), places / "tables" / "nvidia_h200.json")
    keep(entry_of(gemm))
    measurements.forget()
    read, files = measurements.read, []
    monkeypatch.setattr(measurements, "read", lambda path: files.append(str(path)) or read(path))
    assert explained(*SHAPE, implementation="moye").chosen_by == "cache"
    assert files == [measurements.cache_file(H200)]
    assert explained((8, 512), (512, 128), bf16, implementation="moye").chosen_by == "model"
    assert files == [measurements.cache_file(H200), str(places / "tables" / "nvidia_h200.json")]


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
    for options in ({"implementation": "moye"}, {"config": able(gemm)[4]}):
        assert explained(*SHAPE, **options).config.name == able(gemm)[4]


@pytest.mark.parametrize(
    ("xla_us", "changes", "computed_by"),
    [
        (9.0, {}, "xla"),
        (10.15, {}, "xla"),  # within what two runs differ by
        (11.6, {}, "xla"),  # within what two of XLA's choices differ by
        (11.8, {}, "moye"),
        (30.0, {"lead": {"bfloat16 bfloat16 bfloat16 DEFAULT": 1.1}}, "xla"),  # the low end of the interval counts
        (11.0, {"lead": {"bfloat16 bfloat16 bfloat16 DEFAULT": 1.18}}, "moye"),
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


def test_times_of_other_operands_of_xlas_stay_and_serve_where_there_are_no_better(places):
    words = "bfloat16 bfloat16 bfloat16 DEFAULT"
    written = f"{words} written for it: lhs"
    gemm = explained(*SHAPE, implementation="moye")
    us = {name: 10.0 for name in able(gemm)}
    plain, other = (
        dataclasses.replace(entry_of(gemm, us), xla_us={of: xla_us}, lead={of: lead}, fused=(of,))
        for of, xla_us, lead in ((words, 30.0, 2.9), (written, 9.0, 0.8))
    )
    assert not other.is_won_by_ours(words)
    assert (other.nearest(words), other.nearest("float32 x")) == (written, "float32 x")
    keep(plain)
    keep(other)
    (both,) = measurements.read(measurements.cache_file(H200)).entries.values()
    assert (both.xla_us, both.lead) == ({words: 30.0, written: 9.0}, {words: 2.9, written: 0.8})
    assert both.fused == (words, written)
    assert both.is_won_by_ours(words)
    assert not both.is_won_by_ours(written)
    assert explained(*SHAPE).measured.xla == 30.0
    keep(dataclasses.replace(entry_of(gemm, us), xla_us={words: 31.0}))
    (both,) = measurements.read(measurements.cache_file(H200)).entries.values()
    assert (both.xla_us, both.lead) == ({written: 9.0, words: 31.0}, {written: 0.8})
    keep(dataclasses.replace(entry_of(gemm, us), host_bound=True))
    (one,) = measurements.read(measurements.cache_file(H200)).entries.values()
    assert one.xla_us == {}


def test_an_epilogue_has_its_own_entry(places, monkeypatch):
    monkeypatch.setattr("jax_moye._selection.decide.xla_us", lambda *args, **kwargs: 1e9)

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
    entry = dataclasses.replace(entry_of(gemm, us, 12.5, variant="silu bias", config=able(gemm)[1]), problem=layers)
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


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("JAX_MOYE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert measurements.cache_dir() == "/home/x/.cache/jax_moye"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert measurements.cache_dir() == "/home/x/.cache/jax_moye"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert measurements.cache_dir() == "/xdg/jax_moye"
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", "/own")
    assert measurements.cache_dir() == "/own"
    monkeypatch.setattr(measurements, "driver_version", lambda: "580.1")
    digest = measurements.table_digest(jax_moye.configs())
    assert measurements.cache_file(H200) == f"/own/nvidia_h200-580.1-jaxlib{jaxlib.__version__}-{digest}.json"
    monkeypatch.setattr(measurements, "power_limit", lambda: 500)
    measurements._file_name.cache_clear()
    assert "/nvidia_h200-500w-580.1-jaxlib" in measurements.cache_file(H200)
    measurements._file_name.cache_clear()
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
    assert [one for one in path.parent.iterdir() if one.suffix != ".lock"] == [path]
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


VALUES = [None, True, -1, 0, 3, 10**30, 1.5, -0.0, math.nan, math.inf, "", "bf16", "x" * 50, [], [1], [1, 2, 3], {}]


def test_a_thousand_damaged_files(places, caplog):
    gemms = [explained((m, 512), (512, 128), bf16, implementation="moye") for m in (256, 1024)]
    shapes = ((2, 256, 8, 64), (2, 128, 8, 64))
    gemms.append(explained(*shapes, bf16, spec="bqhd,bkhd->bhqk", implementation="moye"))
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
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(path / "below"))
    assert explained(*SHAPE, implementation="moye").chosen_by == "model"


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
