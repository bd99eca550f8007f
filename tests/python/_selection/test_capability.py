"""What a config can compute: why_not has a reason exactly where the kernel refuses."""

import dataclasses
import mmap
import random

import numpy as np
import pytest
from python._selection.problems import example_config, problem_with, row_major_problem

import jax_moye
from jax_moye import _compat
from jax_moye._kernels import devices, ffi
from jax_moye._kernels.dtypes import DTYPES, ITEM_BYTES, numpy_dtype, numpy_dtypes
from jax_moye._selection.capability import LoweringTarget, launched, why_not
from jax_moye._selection.problem import MAX_SIZE, GemmProblem, NotServedError, make_problem, parse_spec

CONFIGS = jax_moye.configs()


@pytest.mark.parametrize(
    ("config", "problem", "arch", "reason"),
    [
        ({}, {}, 80, None),
        ({}, {}, None, None),
        ({}, dict(dtype="f16"), 80, "its operands are bf16, these are f16"),
        ({}, dict(out_dtype="f32"), 80, "it writes bf16, and f32 is wanted"),
        ({}, {}, 75, "it needs sm_80 or newer, and this is sm_75"),
        (dict(min_arch=90, max_arch=90), {}, 90, None),
        (dict(min_arch=90, max_arch=90), {}, 80, "it needs sm_90 or newer, and this is sm_80"),
        (dict(min_arch=90, max_arch=90), {}, 100, "its code is sm_90's and not newer ones', and this is sm_100"),
        (dict(min_arch=90, max_arch=90), {}, None, None),
        (dict(smem_bytes=101_376), {}, 86, None),
        (dict(smem_bytes=101_377), {}, 86, "needs 101377 bytes of shared memory, and sm_86 has 101376"),
        (dict(smem_bytes=101_377), {}, 80, None),
        (dict(smem_bytes=10**6), {}, None, None),
        (dict(smem_bytes=10**6), {}, 1000, None),  # unknown: the driver says it
        ({}, dict(order="TN"), 80, "it takes the orders NN, NT, and this is TN"),
        ({}, dict(k=33), 80, "it loads 16 bytes at a time"),
        (dict(alignment=2), dict(k=33), 80, None),
        ({}, dict(m=2**31 - 1), 80, "less one tile"),
        ({}, dict(m=2**31 - 1 - 128), 80, None),
        ({}, dict(m=2**31 - 128), 80, "less one tile"),
        (dict(cluster=(2, 1)), dict(m=2**31 - 1 - 256), 80, None),
        (dict(cluster=(2, 1)), dict(m=2**31 - 256), 80, "less one tile"),
        (dict(cluster=(2, 1), alignment=1), dict(n=2**31 - 1 - 128), 80, None),
        (dict(cluster=(1, 2)), dict(n=2**31 - 256), 80, "less one tile"),
        (dict(alignment=1), dict(k=2**31 - 1 - 32), 80, None),
        ({}, dict(k=2**31 - 32), 80, "less one tile"),
        ({}, dict(m=2**30, n=2**30), 80, "more than 2^31 - 1 tiles"),
        ({}, dict(batch=2**31 - 1), 80, None),
        ({}, dict(batch=2**30, m=129), 80, "more than 2^31 - 1 tiles"),
        (dict(cluster=(2, 1)), dict(batch=2**30, m=129), 80, None),
        (dict(derives=False), dict(derivative=True), 80, "it multiplies by no derivative"),
        (dict(derives=True), dict(derivative=True), 80, None),
        (dict(derives=False), {}, 80, None),
        (dict(derives=True), dict(derivative=True, out_dtype="f32"), 80, "has 16 bits, and f32 is wanted"),
        (dict(derives=True), dict(derivative=True, gate=True), 80, "it writes one result, and these are two"),
        (dict(derives=True, takes_gate=True), dict(derivative=True, gate=True), 80, None),
        (
            dict(derives=True, takes_gate=True, alignment=2),
            dict(derivative=True, gate=True, n=60, k=64),
            80,
            "it stores rows of 16 bytes, and those of (64, 60) bf16 are no such",
        ),
        (dict(takes_gate=True, alignment=2), dict(n=60), 80, None),
    ],
)
def test_reasons(config, problem, arch, reason):
    beside = {name: problem.get(name, False) for name in ("derivative", "gate")}
    sizes = dict(m=64, n=64, k=64) | {name: value for name, value in problem.items() if name not in beside}
    problem = dataclasses.replace(row_major_problem(**sizes), **beside)
    actual = why_not(example_config(**config), problem, arch)
    assert actual is None if reason is None else reason in actual


def test_operands_that_change_places():
    """By one column: a config of two kinds of operands that was named for them as they are says why it is none."""
    swapped = dataclasses.replace(row_major_problem(m=1, n=64, k=64, dtype="e5m2xe4m3"), swapped=True)
    assert "these are e5m2xe4m3: the product is computed as its transpose" in why_not(example_config(), swapped, 90)
    for problem in (dataclasses.replace(swapped, swapped=False), dataclasses.replace(swapped, dtype="f16")):
        assert "transpose" not in why_not(example_config(), problem, 90)


def test_operands_without_a_unit_stride():
    problem = GemmProblem(1, 4, 4, 4, (0, 16, 2), (0, 16, 2), (0, 4, 1), "bf16", "bf16", False)
    assert problem.order is None
    assert "stride 1" in why_not(example_config(alignment=2), problem, 80)
    assert why_not(example_config(alignment=2, any_stride=True), problem, 80) is None


def strides_of(config, a_pitch=16, b_pitch=16):
    """Of a and b in an order that the row takes: along k, where it takes that."""
    return (0, a_pitch, 1), ((0, b_pitch, 1) if "NT" in config.orders else (0, 1, b_pitch))


def near_misses(config):
    """Problems beside what a row takes: its orders, pitches that its loads divide and do not, no mode of stride 1."""
    m = n = k = 16
    item = ITEM_BYTES[config.dtype]
    step = max(1, config.alignment // item)
    a, b = {"N": (0, k, 1), "T": (0, 1, m)}, {"N": (0, 1, n), "T": (0, k, 1)}
    for order in ("NN", "NT", "TN", "TT"):
        yield f"order {order}", a[order[0]], b[order[1]]
    pads = {step, step // 2, 1} - {0}
    yield from ((f"pitch {k + pad} of a", (0, k + pad, 1), b["N"]) for pad in pads)
    yield from ((f"pitch {n + pad} of b", a["N"], (0, 1, n + pad)) for pad in pads)
    yield "stride 2 of a", (0, 2 * k * step, 2), b["N"]
    yield "stride 2 of b", a["N"], (0, 2, 2 * n * step)


@pytest.mark.parametrize("kernel", sorted({row.kernel for row in CONFIGS}))
def test_predicates_agree_with_the_kernels(kernel):
    """Each row x each near miss: why_not has a reason exactly where the launcher in C++ refuses."""
    emulate = ffi.extension("cpu").emulate
    m = n = k = 16
    outcomes = set()
    # One row of each tile would do as well for the launches that are taken; refusals cost nothing.
    seen = set()
    for config in (row for row in CONFIGS if row.kernel == kernel):
        out = config.out_dtypes[0]
        operands = [np.zeros(4096, dtype) for dtype in numpy_dtypes(config.dtype)]
        kind = (config.dtype, config.alignment, config.accumulator)
        for what, a, b in near_misses(config):
            problem = GemmProblem(1, m, n, k, a, b, (0, n, 1), config.dtype, out, False, config.accumulator)
            reason = why_not(config, problem, None)
            if reason is None and (kind, what) in seen:
                continue
            seen.add((kind, what))
            d = np.zeros((m, n), numpy_dtype(out))
            strides = {"a_strides": list(a), "b_strides": list(b), "d_strides": [0, n, 1]}
            outcome = emulate(
                config.name,
                *operands,
                d,
                sizes=[1, m, n, k],
                **strides,
                out_dtype=out,
                detect_races=False,
                workers=1,
            )
            assert outcome["ok"] == (reason is None), (config.name, what, reason, outcome["message"])
            outcomes.add(outcome["ok"])
    assert True in outcomes


def buffer(bytes_):
    """Zeros that take no memory until somebody touches them."""
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which Python 3.11 does not name
        return np.frombuffer(mmap.mmap(-1, max(bytes_, 1), flags=flags), np.uint8)
    except (OSError, OverflowError, ValueError) as error:
        pytest.skip(f"no address space of {bytes_} bytes here: {error}")


def refusal(config, problem, runs=False):
    """Why the compiled module refuses a call, which does not run but for `runs`; None if it accepts it.

    The address of d is odd, and that is the last thing that is looked at before the launch.
    """
    p, item, out = problem, ITEM_BYTES[config.dtype], ITEM_BYTES[problem.out_dtype]

    def elements(sizes, strides):
        return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))

    a = buffer(item * elements((*p.batch_sizes, p.m, p.k), p.strides["a"]))
    b = buffer(item * elements((*p.batch_sizes, p.n, p.k), p.strides["b"]))
    d = buffer(out * p.batch * p.m * p.n + 1)[: -1 if runs else None][0 if runs else 1 :]
    outcome = ffi.extension("cpu").emulate(
        config.name,
        a,
        b,
        d,
        sizes=list(p.sizes),
        **{f"{name}_strides": list(strides) for name, strides in p.strides.items()},
        out_dtype=p.out_dtype,
        detect_races=False,
        guard=False,
    )
    assert runs or not outcome["ok"]
    return None if "d is not aligned to its elements" in outcome["message"] else outcome["message"]


def batched_near_misses(config):
    """The same with two matrices, whose distance its loads divide and do not."""
    step = max(1, config.alignment // ITEM_BYTES[config.dtype])
    (_, *a), (_, *b) = strides_of(config)
    for pad in {0, step, step // 2, 1}:
        yield f"a's matrices {256 + pad} apart", (256 + pad, *a), (256, *b)
        yield f"b's matrices {256 + pad} apart", (256, *a), (256 + pad, *b)
    yield "a for all matrices", (0, *a), (256, *b)
    yield "b for all matrices", (256, *a), (0, *b)


@pytest.mark.parametrize("kernel", sorted({row.kernel for row in CONFIGS}))
def test_each_row_accepts_what_its_predicate_says(kernel):
    """Each row x each near miss of layouts and results; nothing runs."""
    outcomes = {True: 0, False: 0}
    for config in (row for row in CONFIGS if row.kernel == kernel):
        problems = [(what, problem_with(config, a, b)) for what, a, b in near_misses(config)]
        problems += [(what, problem_with(config, a, b, (2, 16, 16, 16))) for what, a, b in batched_near_misses(config)]
        results = ("bf16", "f16", "f32", "f64", "s32")
        problems += [(out, problem_with(config, *strides_of(config), out=out)) for out in results]
        for what, problem in problems:
            reason, refused = why_not(config, problem, None), refusal(config, problem)
            assert (reason is None) == (refused is None), (config.name, what, reason, refused)
            outcomes[reason is None] += 1
    assert min(outcomes.values()) > 0


@pytest.mark.parametrize("kernel", sorted({row.kernel for row in CONFIGS}))
def test_each_row_accepts_sizes_as_its_predicate_says(kernel):
    """Sizes of 1, odd ones, and what contractions make of them: no stride of a mode of size 1 counts."""
    rng = random.Random(11)
    sizes = (1, 1, 2, 3, 8, 16, 17, 24, 64)
    outcomes = {True: 0, False: 0}
    for config in (row for row in CONFIGS if row.kernel == kernel):
        for _ in range(60):
            plain, batched = ("mk,kn->mn", "mk,nk->mn", "km,nk->mn"), ("bmk,bkn->bmn", "bmk,kn->bmn", "bm,bm->bm")
            spec = parse_spec(rng.choice((*plain, *batched, "bmhk,bnhk->bhmn")))
            size = {label: rng.choice(sizes) for label in "bmnkh"}
            permutations = [
                tuple(rng.sample(range(len(labels)), len(labels))) if rng.random() < 0.3 else None
                for labels in spec[:2]
            ]
            shapes = [[size[label] for label in labels] for labels in spec[:2]]
            try:
                problem = make_problem(
                    f"{spec.lhs},{spec.rhs}->{spec.out}",
                    *shapes,
                    config.dtype,
                    config.out_dtypes[-1],
                    *permutations,
                    accumulator=config.accumulator,
                )
            except NotServedError:
                continue
            problem = dataclasses.replace(problem, dtype=config.dtype)  # of two dtypes also where they are exchanged
            reason, refused = why_not(config, problem, None), refusal(config, launched(config, problem))
            assert (reason is None) == (refused is None), (config.name, problem, reason, refused)
            outcomes[reason is None] += 1
    takes_all = all(
        row.any_stride and row.alignment <= ITEM_BYTES[row.dtype] for row in CONFIGS if row.kernel == kernel
    )
    assert outcomes[True] > 0
    assert (outcomes[False] == 0) == takes_all


@pytest.mark.parametrize("kernel", sorted({row.kernel for row in CONFIGS}))
def test_each_row_refuses_the_first_size_beyond_its_limit(kernel):
    """One more than the largest that the predicate allows: the launcher says no. The largest would run for hours."""
    for config in (row for row in CONFIGS if row.kernel == kernel):
        has_memory = not DTYPES[config.dtype].parts  # else for copies of the operands, before anybody looks at sizes
        steps = (*config.cluster_tile, config.tile[2])
        for mode, step in enumerate(steps):
            for size, is_allowed in ((MAX_SIZE - step, True), (MAX_SIZE - step + 1, False)):
                sizes = [1, 16, 16, 16]
                sizes[1 + mode] = size
                pitches = (2**31 if mode == along else 16 for along in (2, 2 if "NT" in config.orders else 1))
                problem = problem_with(config, *strides_of(config, *pitches), tuple(sizes))
                reason = why_not(config, problem, None)
                assert (reason is None) == is_allowed
                if not is_allowed:
                    assert "less one tile" in reason
                    assert not has_memory or "less one tile" in refusal(config, problem, runs=True)
        # 2^31 - 1 matrices of one tile or two. A tile whose k several CTAs split counts once for each.
        most = MAX_SIZE // config.k_parts
        for batch, rows, is_allowed in (
            (most, steps[0], True),
            (most, steps[0] + 1, False),
            (most + 1, steps[0], False),
        ):
            if batch > MAX_SIZE:
                continue  # no int32
            problem = problem_with(config, *strides_of(config), (batch, rows, 1, 16))
            assert (why_not(config, problem, None) is None) == is_allowed
            if not is_allowed:
                assert not has_memory or "more than 2^31 - 1 tiles" in refusal(config, problem, runs=True)


def test_rows_fit_every_gpu_that_they_are_for():
    """What the predicate says of architectures is what the row says, and its shared memory and registers are there."""
    from jax_moye.layout.resources import ARCHS

    for config in CONFIGS:
        problem = problem_with(config, *strides_of(config))
        for name, arch in ARCHS.items():
            number = int(name.removeprefix("sm_"))
            serves = number >= config.min_arch and (config.max_arch == 0 or number <= config.max_arch)
            assert (why_not(config, problem, number) is None) == serves, (config.name, name)
            if serves:
                assert config.smem_bytes <= arch.smem_per_cta, (config.name, name)
                registers = (config.registers or {}).get(name, 0)
                assert registers * config.threads <= arch.registers_per_sm, (config.name, name)


def test_a_gpu_without_kernels_is_said_once(monkeypatch, caplog):
    """As after a build on a machine that had none."""
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: "nobody built them" if platform == "cuda" else None)
    monkeypatch.setattr(devices, "find_device", lambda device: None)
    message = "jax_moye: there is a GPU, and XLA computes all products on it: nobody built them"
    for arch, expected in ((None, []), (90, [message])):
        monkeypatch.setattr(_compat, "cuda_arch", lambda arch=arch: arch)
        for platform in ("cuda", "cuda", "cpu"):
            LoweringTarget.of_platform(platform)
        assert [record.message for record in caplog.records] == expected
