"""Who else computes a workload, the variants of a contender, and what becomes of those that fail."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import importlib.util
import sys
import types

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from python.workloads import WORKLOAD, as_numpy, exact, five_sets, one_set

from jax_moye._bench import bench, contenders
from jax_moye._timing import rounds
from jax_moye._timing.programs import accepted, loop_contender
from jax_moye._timing.rounds import Contender

pytestmark = pytest.mark.usefixtures("x64")


def changed(**fields):
    return dataclasses.replace(WORKLOAD, **fields)


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [("bf16", "NN"), ("f32", "TN"), ("f64", "NN"), ("s8", "NT"), ("f8e4m3", "NT"), ("e5m2", "NN")],
)
def test_xla_program(dtype, layout):
    workload = changed(dtype=dtype, layout=layout)
    operands = one_set(workload)
    d = jax.jit(contenders.xla_program(workload))(*operands)
    assert d.shape == (workload.m, workload.n)
    results = {"s8": np.int32, "f8e4m3": ml_dtypes.bfloat16, "e5m2": ml_dtypes.bfloat16}
    assert d.dtype == results.get(dtype, operands[0].dtype)
    np.testing.assert_allclose(as_numpy(d), exact(workload, operands), rtol=0.02, atol=0.2)


@pytest.mark.parametrize("name", list(contenders.LAUNCHES))
def test_options_of_launches_exist(name):
    assert accepted(contenders.LAUNCHES[name]) is not None


class TestPallas:
    def test_programs(self, monkeypatch):
        """Each config is taken by Pallas, and becomes one kernel in a program for CUDA."""
        pytest.importorskip("absl")
        hopper = importlib.import_module(contenders.PALLAS)
        gpu = types.SimpleNamespace(core_count=132)
        monkeypatch.setattr(hopper, "backend", types.SimpleNamespace(get_default_device=lambda: gpu))
        programs = contenders.pallas_programs(changed(m=1024, n=1024, k=512))
        assert len(programs) == len(contenders.PALLAS_CONFIGS)
        struct = jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16), jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
        for program in programs.values():
            text = jax.jit(program).trace(*struct).lower(lowering_platforms=("cuda",)).as_text()
            assert text.count("stablehlo.custom_call") == 1

    def test_configs_that_divide(self, monkeypatch):
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
        programs = contenders.pallas_programs(changed(m=128, n=384, k=64))
        assert list(programs) == ["128x128x64, 5 stages", "64x128x64, 6 stages"]
        for program in programs.values():
            program(*one_set(WORKLOAD))
        assert [(config.tile_m, config.tile_n) for config, _, _ in called] == [(64, 128), (64, 64)]
        assert all(c is None and not x64 for _, c, x64 in called)
        for wrong in ({"m": 100}, {"dtype": "f32"}, {"layout": "NT"}, {"batch": 2}, {"epilogue": "bias"}):
            with pytest.raises(NotImplementedError):
                contenders.pallas_programs(changed(**{"m": 128, "n": 384, "k": 64} | wrong))

    def test_it_has_many_variants(self, monkeypatch):
        hopper, names = types.SimpleNamespace(compute_capability="9.0"), ["xla", "pallas"]
        monkeypatch.setattr(contenders, "pallas_programs", lambda workload: {"one": jnp.matmul, "two": jnp.matmul})
        sets = five_sets()
        found, rejected = contenders.jax_baselines(WORKLOAD, sets, hopper, names, {})
        assert [variant.method for variant in found["pallas"]] == ["program, one", "program, two"]
        assert {variant.name for variant in found["pallas"]} == {"pallas"}
        assert not rejected
        compiled, errors = contenders.compile_variants(found, lambda name: False)
        assert len(compiled["pallas"]) == 2
        assert not errors
        assert contenders.baseline("pallas", WORKLOAD, sets, hopper, compiled, errors).name == "pallas"
        older = types.SimpleNamespace(compute_capability="8.0")
        found, _ = contenders.jax_baselines(WORKLOAD, sets, older, names, {})
        assert found.keys() == {"xla"}

        def fail(workload):
            raise NotImplementedError("not this workload")

        monkeypatch.setattr(contenders, "pallas_programs", fail)
        found, rejected = contenders.jax_baselines(WORKLOAD, sets, hopper, names, {})
        assert found.keys() == {"xla"}
        assert rejected == {"pallas": "NotImplementedError: not this workload"}


def test_of_several_variants_one_works():
    def wrong(a, b):
        raise ValueError("no such product")

    sets = five_sets(repeats=3)
    both = contenders.variants("xla", jnp.matmul, sets)
    assert [variant.method for variant in both] == ["loop of 3 rounds", "program"]
    broken = loop_contender("xla", wrong, sets)
    compiled, errors = contenders.compile_variants({"xla": [broken, both[1]]}, lambda name: False)
    assert compiled == {"xla": [both[1]]}
    assert not errors
    other = contenders.variants("other", jnp.matmul, sets)[1]
    compiled, errors = contenders.compile_variants({"xla": [broken], "other": [other]}, lambda name: False)
    assert compiled.keys() == {"other"}
    assert "no such product" in str(errors["xla"])


def test_the_fastest_variant(monkeypatch):
    clock = {"now": 0.0}
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: clock["now"])

    def variant(name, seconds, products):
        def run(i):
            clock["now"] += seconds

        return Contender(name, run, lambda: None, products=products)

    slow, fast = variant("slow", 3.0, 1), variant("fast", 20.0, 10)  # 2 s for each of its products
    assert contenders.fastest([slow, fast]) is fast
    assert fast.spans == []
    assert contenders.fastest([slow]) is slow


def test_torch_that_fails(monkeypatch):
    def fail(*given):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(contenders, "torch_contender", fail)
    gpu, cpu = types.SimpleNamespace(platform="gpu"), types.SimpleNamespace(platform="cpu")
    with pytest.raises(RuntimeError, match="no kernel"):
        contenders.baseline("torch", WORKLOAD, five_sets(), gpu, {}, {})
    assert contenders.baseline("torch", WORKLOAD, five_sets(), cpu, {}, {}) is None


def test_cublaslt_needs_no_torch_and_says_what_is_missing(monkeypatch):
    gpu, cpu = types.SimpleNamespace(platform="gpu", local_hardware_id=3), types.SimpleNamespace(platform="cpu")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert contenders.importable("cublaslt")
    arguments = argparse.Namespace(baselines="xla,torch,cublaslt", no_torch=True)
    assert bench.baseline_names(arguments) == ["xla", "cublaslt"]
    seen = []
    monkeypatch.setattr(contenders.cublaslt, "session", seen.append)
    with pytest.raises(AttributeError):  # of a session that is None
        contenders.baseline("cublaslt", WORKLOAD, five_sets(), gpu, {}, {})
    assert seen == [3]
    monkeypatch.undo()
    monkeypatch.setattr(contenders.cublaslt.ctypes, "CDLL", lambda name, mode: (_ for _ in ()).throw(OSError(name)))
    contenders.cublaslt.libraries.cache_clear()
    with pytest.raises(NotImplementedError, match="there is no libcublasLt here, which jax's CUDA wheels bring"):
        contenders.baseline("cublaslt", WORKLOAD, five_sets(), gpu, {}, {})
    assert contenders.baseline("cublaslt", WORKLOAD, five_sets(), cpu, {}, {}) is None
