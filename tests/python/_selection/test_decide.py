"""The one decision: an answer for everything, the same one everywhere; ours or XLA."""

import dataclasses
import functools
import hashlib
import logging
import os
import random
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from python._selection.results import (
    CONFIGS,
    H200,
    ROOT,
    config_of,
    host_bound,
    needs_results,
    square,
    suite,
    who,
)
from python.measured import entry_of
from python.support import TARGET, lowered_text

import jax_moye
from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._kernels.devices import find_device
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection import measurements
from jax_moye._selection.capability import LoweringTarget, usable_configs, why_not
from jax_moye._selection.cost import CALL_US, predicted_us
from jax_moye._selection.cost_xla import SURE
from jax_moye._selection.decide import decide, left_to_xla, xla_wins
from jax_moye._selection.epilogue import Epilogue
from jax_moye._selection.problem import parse_spec
from jax_moye._selection.ranking import select
from jax_moye._selection.request import Operand, Request

PROBLEMS = 10_000


SPECS = ("mk,kn->mn", "km,kn->mn", "mk,nk->mn", "mk,kn->nm", "bmk,bkn->bmn", "bmk,kn->bmn", "mk,bkn->mbn", "mk,k->m")


SPECS += ("k,k->", "m,n->mn", "abmk,akn->abmn", "bm,bm->bm", "abk,bcak->c", "b,b->b")


SIZES = (0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 64, 65, 100, 128, 129, 255, 768, 1000, 1023, 4096, 4097, 14336, 2**20, 2**31)


DTYPES = ("bfloat16", "float16", "float32", "float64", "int8", "float8_e4m3fn", "float8_e5m2", "int16", "bool")


DTYPES += ("complex64",)


LEVELS = (lax.Precision.DEFAULT, lax.Precision.HIGH, lax.Precision.HIGHEST)


PRECISIONS = (None, *((level, level) for level in LEVELS), *lax.DotAlgorithmPreset)


ARCHS = (None, 70, 75, 80, 86, 87, 89, *(90,) * 8, 100, 103, 120, 200)  # of sm_90 XLA's time is known, too


def random_request(rng):
    """Arguments of decide: shapes, dtypes, transposes, precision and options that need not fit each other."""
    spec = parse_spec(rng.choice(SPECS))
    sizes = {label: rng.choice(SIZES) for label in "abcmnk"}
    operands = []
    lhs_dtype = rng.choice(DTYPES)
    for labels, dtype in ((spec.lhs, lhs_dtype), (spec.rhs, lhs_dtype if rng.random() < 0.8 else rng.choice(DTYPES))):
        shape = [sizes[label] for label in labels]
        permutation = None
        if len(shape) > 1 and rng.random() < 0.4:
            permutation = tuple(rng.sample(range(len(shape)), len(shape)))
            stored = [0] * len(shape)
            for size, axis in zip(shape, permutation, strict=True):
                stored[axis] = size
            shape = stored
        operands.append(Operand(tuple(shape), jnp.dtype(dtype), permutation))
    request = Request(
        f"{spec.lhs},{spec.rhs}->{spec.out}",
        jnp.dtype(lhs_dtype if rng.random() < 0.7 else rng.choice(DTYPES)),
        rng.choice(PRECISIONS),
        None,
        None,
        None,
        rng.choice((0.0, 0.0, 1.0, 0.5)),
        rng.random() < 0.1,
        rng.random() < 0.1,
    )
    arch, platform = rng.choice(ARCHS), rng.choice(("cuda", "cpu"))
    epilogue = Epilogue("silu") if rng.random() < 0.5 and request.beta == 0 else None
    interpret = InterpretParams() if platform == "cpu" else None
    request = dataclasses.replace(request, epilogue=epilogue, interpret=interpret)
    return request, tuple(operands), LoweringTarget(platform, arch, None, usable_configs(platform, arch))


def answers(count):
    """What selection says of `count` random problems, one line each."""
    rng = random.Random(7)
    for _ in range(count):
        request, operands, target = random_request(rng)
        decision = decide(request, operands, target)
        call = decision.call
        assert (decision.reason is None) == (decision.kind == "kernel")
        assert (decision.cause is None) == (decision.kind in ("kernel", "nothing"))
        if decision.kind == "nothing":
            assert any(0 in x.shape for x in operands)
            yield "nothing"
            continue
        if call is not None:
            assert why_not(call.config, call.problem, target.arch) is None
            assert call.config in target.configs
            assert call.problem == decision.problem
            assert all(read in (x, x.transposed) for read, x in zip(call.operands, operands, strict=True))
        if decision.kind != "kernel":
            if decision.cause in ("time", "precision"):
                assert decision.kind == "xla"
                assert not request.deterministic
                assert not request.batch_invariant
            yield f"XLA: {decision.reason}"
            continue
        assert decision.source == "model"
        assert (request.epilogue == call.epilogue) == (decision.epilogue_reason is None)
        yield f"{call.config.name} {call.split} {call.problem}"


def digest(count):
    whole, kinds = hashlib.sha256(), {"XLA alone": 0, "XLA is faster": 0, "nothing": 0, "kernel": 0}
    for answer in answers(count):
        assert answer != "XLA: "
        whole.update(answer.encode())
        if answer.startswith("XLA: XLA is expected to take"):
            kinds["XLA is faster"] += 1
        else:
            kinds["XLA alone" if answer.startswith("XLA") else "nothing" if answer == "nothing" else "kernel"] += 1
    return whole.hexdigest(), kinds


def test_every_problem_has_an_answer_the_same_in_two_processes():
    here, kinds = digest(PROBLEMS)
    assert kinds["XLA is faster"] > PROBLEMS / 500, kinds
    assert min(kinds["XLA alone"], kinds["nothing"], kinds["kernel"]) > PROBLEMS / 50, kinds  # each kind occurs
    # Another seed of Python's hashes: no answer depends on the order of a set.
    environment = os.environ | {
        "PYTHONHASHSEED": "12345",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *sys.path]),
    }
    program = f"import python.conftest; from python._selection.test_decide import digest; print(digest({PROBLEMS})[0])"
    there = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


def test_the_configs_to_choose_from_are_those_of_the_module_now(monkeypatch):
    """No module of before stays in a cache, nor does that of a test."""
    before = usable_configs("cuda", 90)
    monkeypatch.setattr(ffi, "built", lambda platform: frozenset({before[0].name}))
    assert list(usable_configs("cuda", 90)) == [before[0]]
    monkeypatch.undo()
    assert usable_configs("cuda", 90) == before


def test_sizes_of_0_are_nobodys():
    """Nothing is launched for them: the lowering asks nobody, and the module would do nothing."""
    request = Request("mk,kn->mn", jnp.dtype("bfloat16"), None, None, None, None)
    for m, n, k in ((0, 8, 8), (8, 0, 8), (8, 8, 0)):
        operands = tuple(Operand(shape, jnp.dtype("bfloat16")) for shape in ((m, k), (k, n)))
        decision = decide(request, operands, LoweringTarget("cuda", 90, None, CONFIGS))
        assert (decision.kind, decision.call) == ("nothing", None)


@needs_results
def test_xla_gets_what_it_was_measured_to_compute_faster():
    """No row is ours on which XLA was faster, and those are on which it was much slower."""
    left, kept = [], []
    with jax.enable_x64(True):
        for row in suite():
            config = config_of(row)
            if config is None:
                continue
            ratio = row["us"] / row["baselines"]["xla"]
            reason = who(row, config)
            if not {"jax_moye", "xla"} & set(host_bound(row)):
                assert reason is not None or ratio < 1, (row["id"], ratio)
                assert reason is None or ratio > 0.7, (row["id"], ratio, reason)
            (kept if reason is None else left).append(row["id"])
    if {"G1", "G2", "G4"} <= {*kept, *left}:
        assert {"G1", "G2", "G4"} <= set(kept)
    assert len(left) > 3


def decision_of(m, n, k, dtype=jnp.bfloat16, arch=90, **options):
    operands = tuple(Operand(shape, jnp.dtype(dtype)) for shape in ((m, k), (k, n)))
    fields = dict(precision=None, config=None, implementation=None, interpret=None) | options
    request = Request("mk,kn->mn", jnp.dtype(dtype), **fields)
    return decide(request, operands, LoweringTarget("cuda", arch, None, usable_configs("cuda", arch)))


def reason_of(*args, **options):
    decision = decision_of(*args, **options)
    assert (decision.reason is None) == (decision.kind == "kernel")
    assert decision.cause == (None if decision.kind == "kernel" else "time")
    return decision.reason


@pytest.fixture
def slow(monkeypatch):
    """XLA as if it were twice as fast as our kernels, whichever this build has."""

    def twice_as_fast(problem, arch, passes=0):
        return None if arch != 90 else predicted_us(select(problem, 90, CONFIGS), problem, 90) / 2 * (1 + 3 * passes)

    monkeypatch.setattr("jax_moye._selection.decide.xla_us", twice_as_fast)


def test_a_kernel_shorter_than_its_call_counts_as_the_call():
    reason = reason_of(64, 64, 64)
    host = "the time of its call on the host"
    assert re.fullmatch(rf"XLA is expected to take [\d.]+ us, and the best kernel {CALL_US:.1f}, {host}", reason)
    assert host not in reason_of(4096, 4096, 4096)


def test_a_product_on_which_xla_is_faster_is_left_to_it(slow):
    reason = reason_of(1024, 4096, 4096)
    words = reason.split()
    assert reason == f"XLA is expected to take {words[5]} us, and the best kernel {words[-1]}"
    assert float(words[-1]) == pytest.approx(2 * float(words[5]), rel=0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"implementation": "moye"},
        {"config": CONFIGS[0].name},
        {"deterministic": True},
        {"batch_invariant": True},
        {"beta": 1.0},  # XLA would read and write the result once more
        {"epilogue": Epilogue("relu", 1.0, 0.0, ())},
    ],
    ids=str,
)
def test_not_where_the_caller_wants_ours_or_xla_takes_another_pass(slow, every_config_is_built, options):
    if "config" in options:
        name = next((row.name for row in CONFIGS if why_not(row, square(1024, 4096, 4096), 90) is None), None)
        if name is None:
            pytest.skip("no row of bf16 in this build")
        options = {"config": name}
    assert reason_of(1024, 4096, 4096) is not None
    assert reason_of(1024, 4096, 4096, **options) is None


A100 = LoweringTarget.of_device(find_device("a100"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"target": A100}, "on sm_80"),
        ({"dtype": "int8", "out_dtype": jnp.dtype("int32")}, "for s8 operands"),
        ({"dtype": "float8_e4m3fn", "out_dtype": jnp.dtype("float32")}, "for e4m3 operands"),
        ({"dtype": "float16", "precision": lax.DotAlgorithmPreset.F16_F16_F16}, "for sums in f16"),
        (
            {"spec": "mbk,bkn->bmn", "shapes": ((64, 3, 96), (3, 96, 32))},
            "for matrices that do not lie one behind the other",
        ),
        ({"spec": "mkb,bkn->bmn", "shapes": ((64, 96, 3), (3, 96, 32))}, "for operands with no dimension of stride 1"),
    ],
    ids=str,
)
def test_what_nobody_knows_is_xlas(every_config_is_built, options, why):
    """Unless a measurement or the caller says otherwise: a program must not become slower by a guess."""
    if decided(**options).kind == "error":
        pytest.skip("no row of it in this build")
    decision = decided(**options, implementation=None, autotune="off")
    assert (decision.kind, decision.cause, decision.source) == ("xla", "time", None)
    assert decision.reason == f"how long XLA takes is not modelled {why}, and was not measured: jax_moye.tune does"
    assert decision.call == decided(**options).call, "the kernel that tune and autotune ask about"
    for insisting in (
        {"implementation": "moye"},
        {"implementation": None, "deterministic": True},
        {"implementation": None, "config": decision.call.config.name},
    ):
        assert decided(**options, **insisting).kind == "kernel"


def test_f32_at_high_is_ours_wherever_it_runs(every_config_is_built):
    """XLA multiplies it in TF32: less than what our kernels promise."""
    high = {"dtype": "float32", "precision": (lax.Precision.HIGH,) * 2, "target": A100}
    if decided(**high).kind == "error":
        pytest.skip("no row of f32 in this build")
    assert decided(**high, implementation=None).kind == "kernel"


@pytest.mark.parametrize(("xla_us", "kind"), [(9.0, "xla"), (30.0, "kernel"), (None, "xla")])
def test_a_measurement_decides_what_the_models_do_not_know(places, xla_us, kind):
    operands = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((256, 512), (512, 128))]
    gemm = jax_moye.explain(*operands, implementation="moye", device="a100")[0]
    us = {candidate.config.name: 10.0 for candidate in gemm.candidates if candidate.reason is None}
    entry = entry_of(gemm, us, xla_us)
    head_ = measurements.new_head(A100.device.kind, "580.1", False, "2026-11-20") | {"arch": 80}
    measurements.write(measurements.cache_file(A100.device.kind), head_, [entry])
    decision = decided(shapes=((256, 512), (512, 128)), target=A100, implementation=None)
    assert (decision.kind, decision.source) == (kind, None if xla_us is None else "cache")
    assert ("not modelled on sm_80" in (decision.reason or "")) == (xla_us is None)


def test_high_precision_stays_exact(slow):
    """XLA multiplies f32 at HIGH in TF32: less than what our kernels promise."""
    if not any(row.dtype == "f32" for row in CONFIGS):
        pytest.skip("no row of f32 in this build")
    high = (lax.Precision.HIGH,) * 2
    assert reason_of(1024, 4096, 4096, jnp.float32, precision=high) is None
    assert reason_of(1024, 4096, 4096, jnp.float32, precision=(lax.Precision.HIGHEST,) * 2) is not None


def test_the_margin(monkeypatch):
    decision = decision_of(4096, 4096, 4096)
    ours = predicted_us(decision.call.config, square(4096, 4096, 4096), 90)
    assert decision.predicted.ours == ours
    for factor, is_left in ((0.99, True), (1.01, False)):
        monkeypatch.setattr("jax_moye._selection.decide.xla_us", lambda *args, f=factor, **kwargs: ours * SURE * f)
        reason = reason_of(4096, 4096, 4096)
        assert (reason is not None) == is_left
        assert reason is None or reason.endswith(f"the best kernel {ours:.1f}, which is too near to be sure of")


@pytest.mark.skipif(_compat.cuda_arch() is not None, reason="there is a GPU")
def test_lowering_and_explain_leave_it_to_xla(monkeypatch, caplog):
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: None)
    monkeypatch.setattr(ffi, "register", lambda platform: None)
    monkeypatch.setattr(measurements, "find", lambda *args: None)
    monkeypatch.setattr(
        "jax_moye._selection.decide.xla_us", lambda problem, arch, passes=0: 0.5 if problem.m == 24 else 1e9
    )
    jax.clear_caches()
    a, b = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((24, 4096), (4096, 4096)))
    with caplog.at_level(logging.INFO, "jax_moye"):
        text = lowered_text(jax_moye.matmul, a, b)
    assert TARGET not in text
    assert "XLA is expected to take 0.5 us" in caplog.text
    explained = jax_moye.explain(a, b, device="h200")[0]
    assert explained.computed_by == "xla"
    assert explained.reason.startswith("XLA is expected to take 0.5 us, and the best kernel ")
    assert explained.candidates[0].us > 1
    insisting = functools.partial(jax_moye.matmul, implementation="moye")
    assert TARGET in lowered_text(insisting, a, b)
    # Another platform, and a product of another size.
    assert TARGET in lowered_text(jax_moye.matmul, b, b)


# ------------------------------------------------------------------------------------------------- what a decision says


def decided(
    epilogue=None, dtype="bfloat16", shapes=((64, 96), (96, 32)), target=H200, permutations=(None, None), **options
):
    """The decision about a product of two matrices."""
    left, right = (Operand(shape, jnp.dtype(dtype), p) for shape, p in zip(shapes, permutations, strict=True))
    fields = dict(out_dtype=jnp.dtype(dtype), precision=None, config=None, implementation="moye", interpret=None)
    request = Request(**{"spec": "mk,kn->mn"} | fields | options, epilogue=epilogue)
    return decide(request, (left, right), target)


def test_a_kernel():
    decision = decided()
    assert (decision.kind, decision.reason, decision.cause, decision.source) == ("kernel", None, None, "model")
    assert (decision.measured, decision.entry, decision.epilogue_reason) == (None, None, None)
    assert decision.problem is decision.call.problem
    assert decision.predicted.ours == predicted_us(decision.call.config, decision.problem, 90)
    named = decided(config=decision.call.config.name, implementation=None)
    assert (named.source, named.call) == ("explicit", decision.call)


@pytest.mark.parametrize(
    ("options", "kind", "cause", "reason"),
    [
        ({"implementation": "xla"}, "xla", "caller", "implementation='xla'"),
        ({"dtype": "int16", "implementation": None}, "xla", "capability", "no kernel multiplies int16"),
        ({"dtype": "int16"}, "error", "capability", "no kernel multiplies int16"),
        ({"dtype": "float32", "implementation": None, "precision": (lax.Precision.DEFAULT, lax.Precision.HIGHEST)},
         "xla", "precision", "may use TF32"),
        ({"target": LoweringTarget("cpu", None, None, CONFIGS)}, "error", "place", "only with interpret=True"),
        ({"interpret": InterpretParams()}, "error", "place", "runs kernels in an emulator"),
        ({"shapes": ((0, 96), (96, 32))}, "nothing", None, "a size is 0"),
    ],
    ids=str,
)  # fmt: skip
def test_why_no_kernel(options, kind, cause, reason):
    decision = decided(**options)
    assert (decision.kind, decision.cause) == (kind, cause)
    assert reason in decision.reason


def test_where_the_kernels_are_not(monkeypatch):
    """A program may be for another machine if the caller insists and no GPU is here; else XLA computes it."""
    away = dataclasses.replace(H200, unavailable="they were not built")
    elsewhere = dataclasses.replace(away, is_elsewhere=True)
    monkeypatch.setattr("jax_moye._selection.decide.xla_us", lambda *args, **kwargs: 1e9)
    assert decided(target=elsewhere).kind == "kernel"
    for target, options in ((elsewhere, {"implementation": None}), (away, {}), (away, {"implementation": None})):
        decision = decided(target=target, **options)
        assert (decision.kind, decision.reason) == ("error" if not options else "xla", "they were not built")
        assert decision.call is not None, "a kernel could: tune asks"


def test_one_decision_is_about_product_and_epilogue():
    relu = Epilogue("relu")
    together = decided(relu)
    assert (together.kind, together.epilogue_reason, together.call.epilogue) == ("kernel", None, relu)
    # Integers are finished by kernels with alpha 1 alone: the product is a kernel's, and XLA finishes it.
    integers = {"dtype": "int8", "out_dtype": jnp.dtype("int32")}
    apart = decided(Epilogue("relu", alpha=2.0), **integers)
    assert (apart.kind, apart.call.epilogue, apart.request.epilogue) == ("kernel", None, None)
    assert "alpha 1" in apart.epilogue_reason
    nobody = decided(relu, dtype="int16", implementation=None)
    assert (nobody.kind, nobody.cause) == ("xla", "capability")
    assert nobody.epilogue_reason == "no kernel multiplies int16 by int16 into int16"
    refused = decided(Epilogue("relu", alpha=2.0), **integers, batch_invariant=True)
    assert refused.kind == "error"
    assert "the epilogue of mk,kn->mn on int8[64, 96]" in refused.error()


def test_xla_takes_the_epilogue_along_where_it_is_faster(monkeypatch):
    monkeypatch.setattr("jax_moye._selection.decide.xla_us", lambda *args, **kwargs: 0.1)
    decision = decided(Epilogue("relu"), implementation=None)
    assert (decision.kind, decision.cause, decision.source) == ("xla", "time", "model")
    assert decision.reason == decision.epilogue_reason
    assert decision.request.epilogue is not None
    assert decision.predicted.xla == 0.1


def test_how_much_faster_ours_must_be():
    assert xla_wins(1.001 / SURE, 1.0)
    assert not xla_wins(0.999 / SURE, 1.0)
    assert not xla_wins(0.5, 1.0)


def test_no_predicted_loss_is_accepted():
    assert SURE > 1
    assert xla_wins(1.0, 1.0)


def test_as_many_transposes_as_a_kernel_takes():
    swapped = ((96, 64), (32, 96))
    decision = decided(shapes=swapped, permutations=((1, 0), (1, 0)))
    assert [x.permutation for x in decision.call.operands] == [(1, 0), (1, 0)]
    one_order = next((c for c in CONFIGS if c.dtype == "e4m3" and c.orders == ("NT",)), None)
    if one_order is None:
        pytest.skip("no config of one order in this build")
    fields = {"dtype": "float8_e4m3fn", "out_dtype": jnp.dtype("float32"), "config": one_order.name}
    taken = decided(shapes=swapped, permutations=((1, 0), (1, 0)), **fields)
    assert [x.permutation for x in taken.call.operands] == [None, (1, 0)]
    assert taken.problem.order == "NT"


def test_no_transpose_is_written_for_a_kernel_that_nobody_insists_on():
    """Grouped keys' gradient: the two contracted dimensions of the one operand merge behind a transpose alone."""
    product = {"spec": "bamnc,banck->bkam", "shapes": ((2, 64, 8, 4, 32), (2, 8, 4, 64, 64))}
    permutations = ((0, 2, 4, 3, 1), None)
    insists = decided(**product, permutations=permutations)
    assert insists.kind == "kernel"
    assert [x.permutation for x in insists.call.operands] == [None, None]
    free = decided(**product, permutations=permutations, implementation=None)
    assert (free.kind, free.cause) == ("xla", "time")
    assert free.reason == "a transpose that no kernel reads through would be written to memory first"


def test_errors_name_the_contract():
    decision = decided(dtype="int16")
    assert decision.error() == f"implementation='moye': {decision.reason}"
    assert decision.error("it") == f"implementation='moye': it: {decision.reason}"
    invariant = decided(dtype="int16", implementation=None, batch_invariant=True)
    assert invariant.error("x @ y").endswith(f"and no kernel of ours computes x @ y: {invariant.reason}")
    left = left_to_xla(invariant.request, "place", "two devices", "cuda")
    assert (left.kind, left.reason) == ("error", "two devices")
