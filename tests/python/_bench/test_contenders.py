"""How products are dispatched and take turns: the arms of the benchmark, its loops, its clock's readings."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import importlib.util
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_moye._bench import bench, contenders, workloads
from jax_moye._timing import correctness, engine

ROW = {"id": "A1", "regime": "own", "batch": 1, "m": 40, "n": 24, "k": 96, "layout": "NN", "dtype": "bf16"}


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def a_and_b():
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in [(40, 96), (96, 24)]]


class TestArms:
    def sets(self, count=5):
        a, b = a_and_b()
        return [jnp.roll(a, i) for i in range(count)], [b] * count

    def test_a_loop_computes_every_set(self):
        operands = self.sets()
        matmul = workloads.xla(ROW, jnp.dtype("bfloat16"))
        loop = contenders.looped_arm("xla", matmul, operands, 3)
        plain = contenders.jax_arm("xla", matmul, [tuple(operands)])
        assert not contenders.compile_all([loop], lambda arm: False)  # whose products were in the loop
        for _ in range(2):  # the second run writes over what the first one made
            for x, y in zip(loop.run(0), plain.run(0), strict=True):
                assert bench.same_bits(x, y)
        assert loop.repeats == 3

    def test_the_products_stay_in_the_loop(self, monkeypatch):
        seen = []
        is_hoisted = contenders.is_hoisted
        monkeypatch.setattr(contenders, "is_hoisted", lambda *given: seen.append(given) or is_hoisted(*given))
        matmul = workloads.xla(ROW, jnp.dtype("bfloat16"))
        assert not contenders.compile_all([contenders.looped_arm("xla", matmul, self.sets(4), 3)], lambda arm: False)
        ((text, products),) = seen
        assert products == 4
        before_entry = text[: text.index("\nENTRY")]
        assert " while(" in text
        assert len(re.findall(r" (?:dot|custom-call)\(", before_entry)) >= 4

    def test_is_hoisted(self):
        body = "HloModule m\n%body {\n" + "  %d = bf16[4,4] dot(%a, %b)\n" * 3 + "}\n"
        entry = "\nENTRY %main {\n  %w = (s32[]) while(%t), body=%body\n}\n"
        outside = entry.replace(
            "}", '  %c = bf16[4,4] custom-call(%a, %b), custom_call_target="__cublas$lt$matmul"\n' * 3 + "}"
        )
        assert not contenders.is_hoisted(body + entry, 3)
        assert contenders.is_hoisted(body + outside, 3)

    def test_what_does_not_compile_is_named(self):
        def wrong(a, b):
            raise ValueError("no such product")

        good = contenders.jax_arm("good", jnp.matmul, [tuple(self.sets(2))])
        bad = contenders.jax_arm("bad", wrong, [tuple(self.sets(2))])
        option = contenders.jax_arm("option", jnp.matmul, [tuple(self.sets(2))], {"xla_no_such_option": 1})
        errors = contenders.compile_all([bad, good, option], lambda arm: arm is good)
        assert errors.keys() == {"bad", "option"}
        assert "no such product" in str(errors["bad"])
        assert "xla_no_such_option" in str(errors["option"])

    @pytest.mark.parametrize("name", list(contenders.LAUNCHES))
    def test_options_of_launches_exist(self, name):
        assert correctness.accepted(contenders.LAUNCHES[name]) is not None
        assert correctness.accepted({"xla_gpu_enable_triton_gemm": False}) is not None
        assert correctness.accepted({"xla_no_such_option": False}) is None

    def test_pallas(self, monkeypatch):
        """Each config is taken by Pallas, and becomes one kernel in a program for CUDA."""
        pytest.importorskip("absl")
        hopper = importlib.import_module(contenders.PALLAS)
        gpu = types.SimpleNamespace(core_count=132)
        monkeypatch.setattr(hopper, "backend", types.SimpleNamespace(get_default_device=lambda: gpu))
        ways = contenders.pallas_ways(ROW | {"m": 1024, "n": 1024, "k": 512})
        assert len(ways) == len(contenders.PALLAS_CONFIGS)
        struct = jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16), jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
        for way in ways.values():
            text = jax.jit(way).trace(*struct).lower(lowering_platforms=("cuda",)).as_text()
            assert text.count("stablehlo.custom_call") == 1

    def test_pallas_configs_that_divide(self, monkeypatch):
        """Without its module, which needs more than JAX: the arguments are those of jax 0.9.2 to 0.11.2."""

        @dataclasses.dataclass(frozen=True)
        class TuningConfig:
            tile_m: int
            tile_n: int
            tile_k: int
            max_concurrent_steps: int
            epi_tile_n: int | None = 64
            epi_tile_m: int | None = 64
            grid_minor_dim: str = "N"
            grid_tile_width: int = 1
            wg_dimension: str = "N"
            cluster_dimension: str | None = None

        called = []
        fake = types.ModuleType("hopper_matmul_mgpu")
        fake.TuningConfig = TuningConfig
        fake.MatmulDimension = enum.IntEnum("MatmulDimension", {"M": 0, "N": 1})
        fake.matmul = lambda a, b, c, config: called.append((config, c, jax.config.jax_enable_x64)) or a @ b
        monkeypatch.setitem(sys.modules, contenders.PALLAS, fake)
        ways = contenders.pallas_ways(ROW | {"m": 128, "n": 384, "k": 64})
        assert list(ways) == ["128x128x64, 5 stages", "64x128x64, 6 stages"]
        for way in ways.values():
            way(*a_and_b())
        assert [(config.tile_m, config.tile_n) for config, _, _ in called] == [(64, 128), (64, 64)]
        assert all(c is None and not x64 for _, c, x64 in called)
        for wrong in ({"m": 100}, {"dtype": "f32"}, {"layout": "NT"}, {"batch": 2}, {"epilogue": "bias"}):
            with pytest.raises(NotImplementedError):
                contenders.pallas_ways(ROW | {"m": 128, "n": 384, "k": 64} | wrong)

    def work(self, rounds=None):
        return bench.Work(ROW, jnp.dtype("bfloat16"), self.sets(), 5, 1, rounds, {})

    def test_pallas_is_an_arm_of_many_ways(self, monkeypatch):
        hopper, names = types.SimpleNamespace(compute_capability="9.0"), ["xla", "pallas"]
        monkeypatch.setattr(contenders, "pallas_ways", lambda row: {"one": jnp.matmul, "two": jnp.matmul})
        ways, rejected = bench.ways_of_others(self.work(), hopper, names)
        assert [arm.method for arm in ways["pallas"]] == ["program, one", "program, two"]
        assert {arm.name for arm in ways["pallas"]} == {"pallas"}
        assert not rejected
        compiled, errors = bench.compile_ways(ways, lambda name: False)
        assert len(compiled["pallas"]) == 2
        assert not errors
        assert bench.baseline_arm("pallas", self.work(), hopper, compiled, errors).name == "pallas"
        ways, _ = bench.ways_of_others(self.work(), types.SimpleNamespace(compute_capability="8.0"), names)
        assert ways.keys() == {"xla"}

        def fail(row):
            raise NotImplementedError("not this row")

        monkeypatch.setattr(contenders, "pallas_ways", fail)
        ways, rejected = bench.ways_of_others(self.work(), hopper, names)
        assert ways.keys() == {"xla"}
        assert rejected == {"pallas": "NotImplementedError: not this row"}

    def test_of_several_ways_one_works(self):
        def wrong(a, b):
            raise ValueError("no such product")

        work = self.work(rounds=3)
        both = work.ways("xla", jnp.matmul)
        assert [arm.method for arm in both] == ["loop of 3 rounds", "program"]
        broken = contenders.looped_arm("xla", wrong, work.operands, 3)
        compiled, errors = bench.compile_ways({"xla": [broken, both[1]]}, lambda name: False)
        assert compiled == {"xla": [both[1]]}
        assert not errors
        other = work.ways("other", jnp.matmul)[1]
        compiled, errors = bench.compile_ways({"xla": [broken], "other": [other]}, lambda name: False)
        assert compiled.keys() == {"other"}
        assert "no such product" in str(errors["xla"])

    def test_the_fastest_way(self, monkeypatch):
        clock = {"now": 0.0}
        monkeypatch.setattr(engine.time, "perf_counter", lambda: clock["now"])

        def arm(name, seconds, repeats):
            def run(i):
                clock["now"] += seconds

            return engine.Arm(name, run, lambda: None, repeats=repeats)

        slow, fast = arm("slow", 3.0, 1), arm("fast", 20.0, 10)  # 2 s for each of its repeats
        assert self.work().fastest([slow, fast]) is fast
        assert fast.spans == []

    def test_torch_that_fails(self, monkeypatch):
        def fail(*given):
            raise RuntimeError("no kernel")

        monkeypatch.setattr(contenders, "torch_arm", fail)
        with pytest.raises(RuntimeError, match="no kernel"):
            bench.baseline_arm("torch", self.work(), types.SimpleNamespace(platform="gpu"), {}, {})
        assert bench.baseline_arm("torch", self.work(), types.SimpleNamespace(platform="cpu"), {}, {}) is None

    def test_rotation(self):
        device = jax.devices("cpu")[0]
        row = ROW | {"m": 256, "n": 256, "k": 256}
        footprint = 3 * 256 * 256 * 2
        group, programs = bench.rotation(row, footprint, 160_000_000, device)
        assert group == contenders.LARGEST_GROUP
        assert group * programs * footprint >= 160_000_000
        sets, rounds = contenders.loop_rotation(row, footprint, 160_000_000, device)
        assert sets * footprint >= 160_000_000
        assert rounds >= 2
        large = ROW | {"m": 4096, "n": 4096, "k": 4096}
        assert contenders.loop_rotation(large, 3 * 4096 * 4096 * 2, 160_000_000, device) is None
        assert bench.rotation(large, 3 * 4096 * 4096 * 2, 160_000_000, device) == (3, 1)


class TestTurns:
    def arm(self, log, name, repeats=1):
        return engine.Arm(name, lambda i: log.append((name, i)) or [], lambda: None, repeats=repeats)

    def test_alternation(self):
        log = []
        arms = [self.arm(log, "x"), self.arm(log, "y")]
        engine.take_turns(arms, 2, 3, alternations=4, turn_ms=0, warmup_ms=0)
        assert all(len(arm.times) == len(arm.spans) == 4 for arm in arms)
        order = [name for name, i in log if i == 0]
        assert order == ["x", "x", "y", "y"] + ["x", "y", "y", "x"] * 2

    def test_burst(self, monkeypatch):
        log, slept = [], []
        monkeypatch.setattr(engine.time, "sleep", slept.append)
        arm = self.arm(log, "x")
        engine.take_turns([arm], 1, 1, alternations=3, turn_ms=0, warmup_ms=0, idle_ms=50)
        assert slept == [0.05] * 3
        assert len(arm.times) == len(arm.spans) == 3
        assert len(log) == 2 + 2 * 3  # one pass behind each rest, which does not count

    def test_a_loop_counts_its_rounds(self, monkeypatch):
        clock = iter(range(100))
        monkeypatch.setattr(engine.time, "perf_counter", lambda: next(clock))
        assert self.arm([], "x", repeats=4).turn(1, 1, 5) == 2 / 20

    def test_again_forgets(self):
        arm = self.arm([], "x", repeats=3)
        arm.turn(1, 1, 1)
        assert arm.again().spans == []
        assert arm.again().repeats == 3
        assert len(arm.spans) == 1


class TestSampler:
    def sampler(self, samples):
        sampler = object.__new__(engine.Sampler)
        sampler._at = list(range(len(samples)))
        sampler._samples = samples
        return sampler

    def test_means(self):
        sampler = self.sampler([(1980, 300.0, 40, 0), (1500, 700.0, 60, 4), (1400, 690.0, 62, 4 | 0x20)])
        assert sampler.mean("sm_mhz", [(0, 0)]) == 1980
        assert sampler.mean("watts", [(0.5, 2)]) == 695
        assert sampler.mean("celsius", [(1, 2)]) == 61
        assert sampler.mean("celsius", [(7, 8)]) is None
        assert sampler.throttled([(0, 0)]) == []
        assert sampler.throttled([(0, 2)]) == ["power cap", "thermal, software"]
