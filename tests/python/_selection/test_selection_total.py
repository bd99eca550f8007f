"""Selection has an answer for everything, the same one everywhere, and one that the kernels and physics agree with."""

import dataclasses
import hashlib
import mmap
import os
import pathlib
import random
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import facts_of
from jax_moye._kernels.dtypes import ITEM_BYTES, numpy_dtype
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection import ranking
from jax_moye._selection.capability import LoweringTarget, usable_configs, why_not
from jax_moye._selection.cost import predicted_us, terms
from jax_moye._selection.decide import decide
from jax_moye._selection.epilogue import Epilogue
from jax_moye._selection.problem import MAX_SIZE, GemmProblem, NotServedError, make_problem, parse_spec
from jax_moye._selection.ranking import _best, rank
from jax_moye._selection.request import Operand, Request

ROOT = pathlib.Path(__file__).parents[3]
CONFIGS = jax_moye.configs()
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
    program = f"from python._selection.test_selection_total import digest; print(digest({PROBLEMS})[0])"
    there = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here


def test_the_best_is_the_first_of_the_ranking():
    """select() does not sort the table; what it finds is what explain() lists first."""
    rng = random.Random(3)
    found = 0
    for _ in range(300):
        m, n, k = (rng.choice(SIZES[1:20]) for _ in range(3))
        dtype = rng.choice(("bf16", "f16", "f32", "f64", "tf32", "s8", "e4m3"))
        out = {"tf32": "f32", "s8": "s32", "e4m3": "f32"}.get(dtype, dtype)
        problem = make_problem("mk,kn->mn", (m, k), (k, n), dtype, out)
        arch = rng.choice((80, 90))
        first = rank(problem, arch, CONFIGS)[0]
        assert _best(problem, arch, CONFIGS) is (first.config if first.reason is None else None)
        found += first.reason is None
    assert found > 200


def test_a_selection_is_kept(monkeypatch):
    problem = make_problem("mk,kn->mn", (72, 88), (88, 104), "bf16", "bf16")
    first = ranking.select(problem, 90, CONFIGS)
    monkeypatch.setattr(ranking, "predicted_us", None)
    monkeypatch.setattr(ranking, "why_not", None)
    again = make_problem("mk,kn->mn", (72, 88), (88, 104), "bf16", "bf16")
    assert ranking.select(again, 90, CONFIGS) is first


# -------------------------------------------------------------------------------------------- what the kernels accept


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
        operand = np.zeros(4096, numpy_dtype(config.dtype))
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
                operand,
                operand,
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

    a = buffer(item * elements((p.batch, p.m, p.k), p.a_strides))
    b = buffer(item * elements((p.batch, p.n, p.k), p.b_strides))
    d = buffer(out * p.batch * p.m * p.n + 1)[: -1 if runs else None][0 if runs else 1 :]
    outcome = ffi.extension("cpu").emulate(
        config.name,
        a,
        b,
        d,
        sizes=list(p.sizes),
        a_strides=list(p.a_strides),
        b_strides=list(p.b_strides),
        d_strides=list(p.d_strides),
        out_dtype=p.out_dtype,
        detect_races=False,
        guard=False,
    )
    assert runs or not outcome["ok"]
    return None if "d is not aligned to its elements" in outcome["message"] else outcome["message"]


def problem_with(config, a, b, sizes=(1, 16, 16, 16), out=None):
    batch, m, n, _ = sizes
    d = (m * n if batch > 1 else 0, n, 1)
    out = out or config.out_dtypes[0]
    return GemmProblem(*sizes, a, b, d, config.dtype, out, False, config.accumulator)


def batched_near_misses(config):
    """The same with two matrices, whose distance its loads divide and do not."""
    step = max(1, config.alignment // ITEM_BYTES[config.dtype])
    for pad in {0, step, step // 2, 1}:
        yield f"a's matrices {256 + pad} apart", (256 + pad, 16, 1), (256, 16, 1)
        yield f"b's matrices {256 + pad} apart", (256, 16, 1), (256 + pad, 16, 1)
    yield "a for all matrices", (0, 16, 1), (256, 16, 1)
    yield "b for all matrices", (256, 16, 1), (0, 16, 1)


@pytest.mark.parametrize("kernel", sorted({row.kernel for row in CONFIGS}))
def test_each_row_accepts_what_its_predicate_says(kernel):
    """Each row x each near miss of layouts and results; nothing runs."""
    outcomes = {True: 0, False: 0}
    for config in (row for row in CONFIGS if row.kernel == kernel):
        problems = [(what, problem_with(config, a, b)) for what, a, b in near_misses(config)]
        problems += [(what, problem_with(config, a, b, (2, 16, 16, 16))) for what, a, b in batched_near_misses(config)]
        results = ("bf16", "f16", "f32", "f64", "s32")
        problems += [(out, problem_with(config, (0, 16, 1), (0, 16, 1), out=out)) for out in results]
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
            spec = parse_spec(
                rng.choice(("mk,kn->mn", "mk,nk->mn", "km,nk->mn", "bmk,bkn->bmn", "bmk,kn->bmn", "bm,bm->bm"))
            )
            size = {label: rng.choice(sizes) for label in "bmnk"}
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
            reason, refused = why_not(config, problem, None), refusal(config, problem)
            assert (reason is None) == (refused is None), (config.name, problem, reason, refused)
            outcomes[reason is None] += 1
    assert min(outcomes.values()) > 0


@pytest.mark.parametrize("kernel", sorted({row.kernel for row in CONFIGS}))
def test_each_row_refuses_the_first_size_beyond_its_limit(kernel):
    """One more than the largest that the predicate allows: the launcher says no. The largest would run for hours."""
    for config in (row for row in CONFIGS if row.kernel == kernel):
        steps = (*config.cluster_tile, config.tile[2])
        for mode, step in enumerate(steps):
            for size, is_allowed in ((MAX_SIZE - step, True), (MAX_SIZE - step + 1, False)):
                sizes = [1, 16, 16, 16]
                sizes[1 + mode] = size
                row = 2**31 if mode == 2 else 16
                problem = problem_with(config, (0, row, 1), (0, row, 1), tuple(sizes))
                reason = why_not(config, problem, None)
                assert (reason is None) == is_allowed
                if not is_allowed:
                    assert "less one tile" in reason
                    assert "less one tile" in refusal(config, problem, runs=True)
        # 2^31 - 1 matrices of one tile or two. A tile whose k several CTAs split counts once for each.
        most = MAX_SIZE // config.k_parts
        for batch, rows, is_allowed in (
            (most, steps[0], True),
            (most, steps[0] + 1, False),
            (most + 1, steps[0], False),
        ):
            if batch > MAX_SIZE:
                continue  # no int32
            problem = problem_with(config, (0, 16, 1), (0, 16, 1), (batch, rows, 1, 16))
            assert (why_not(config, problem, None) is None) == is_allowed
            if not is_allowed:
                assert "more than 2^31 - 1 tiles" in refusal(config, problem, runs=True)


def test_sizes_of_0_are_nobodys():
    """Nothing is launched for them: the lowering asks nobody, and the module would do nothing."""
    request = Request("mk,kn->mn", jnp.dtype("bfloat16"), None, None, None, None)
    for m, n, k in ((0, 8, 8), (8, 0, 8), (8, 8, 0)):
        operands = tuple(Operand(shape, jnp.dtype("bfloat16")) for shape in ((m, k), (k, n)))
        decision = decide(request, operands, LoweringTarget("cuda", 90, None, CONFIGS))
        assert (decision.kind, decision.call) == ("nothing", None)


def test_rows_fit_every_gpu_that_they_are_for():
    """What the predicate says of architectures is what the row says, and its shared memory and registers are there."""
    from jax_moye.layout.resources import ARCHS

    for config in CONFIGS:
        problem = problem_with(config, (0, 16, 1), (0, 16, 1))
        for name, arch in ARCHS.items():
            number = int(name.removeprefix("sm_"))
            serves = number >= config.min_arch and (config.max_arch == 0 or number <= config.max_arch)
            assert (why_not(config, problem, number) is None) == serves, (config.name, name)
            if serves:
                assert config.smem_bytes <= arch.smem_per_cta, (config.name, name)
                registers = (config.registers or {}).get(name, 0)
                assert registers * config.threads <= arch.registers_per_sm, (config.name, name)


# ------------------------------------------------------------------------------------------------------------- physics


def legal_rows(problem, arch=90):
    return [row for row in CONFIGS if why_not(row, problem, arch) is None]


def problem_of(batch, m, n, k, dtype, order="NN"):
    a = (m * k, k, 1) if order[0] == "N" else (m * k, 1, m)
    b = (n * k, 1, n) if order[1] == "N" else (n * k, k, 1)
    out = {"tf32": "f32", "s8": "s32", "e4m3": "f32"}.get(dtype, dtype)
    return GemmProblem(batch, m, n, k, a, b, (m * n, n, 1), dtype, out, False)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32", "f64", "s8", "e4m3"])
def test_more_work_is_never_faster(dtype):
    """More products of a sum, more matrices: no row takes less time, and so the best does not."""
    order = "NT" if dtype in ("s8", "e4m3") else "NN"
    for m, n in ((16, 16), (128, 4096), (640, 640), (4096, 4096)):
        ks = [16, 32, 48, 64, 128, 144, 512, 1024, 4096, 4112, 16384]
        batches = [1, 2, 3, 8, 64, 1000]
        for problems in (
            [problem_of(1, m, n, k, dtype, order) for k in ks],
            [problem_of(batch, m, n, 128, dtype, order) for batch in batches],
        ):
            rows = legal_rows(problems[0])
            assert rows
            best = []
            for problem in problems:
                assert legal_rows(problem) == rows
                best.append(min(predicted_us(row, problem, 90) for row in rows))
            assert best == sorted(best)
            for row in rows:
                times = [predicted_us(row, problem, 90) for problem in problems]
                assert times == sorted(times), (row.name, times)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32", "f64", "s8", "e4m3"])
def test_larger_results_are_never_faster(dtype):
    """More rows, more columns: of 16 rows and more. Hopper tiles of fewer were measured to be slower."""
    sizes = [16, 32, 64, 80, 128, 144, 256, 640, 1024, 4096, 4112, 16384]
    for k in (16, 768, 4096):
        for other in (16, 144, 4096):
            for problems in (
                [problem_of(1, m, other, k, dtype, "NT") for m in sizes],
                [problem_of(1, other, n, k, dtype, "NT") for n in sizes],
            ):
                for row in legal_rows(problems[0]):
                    times = [predicted_us(row, problem, 90) for problem in problems]
                    assert times == sorted(times), (row.name, times)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "f32", "f64", "s8", "e4m3"])
def test_aligned_operands_are_never_slower(dtype):
    """No row takes longer where every pitch is a multiple of 16 bytes, and so the best one does not."""
    for m, n, k in ((16, 16, 16), (128, 4096, 768), (4096, 4096, 4096)):
        for order in ("NN", "NT", "TN", "TT"):
            aligned = problem_of(1, m, n, k, dtype, order)

            def odd(strides):
                return tuple(stride + (stride > 1) for stride in strides)

            others = [
                dataclasses.replace(aligned, a_strides=odd(aligned.a_strides)),
                dataclasses.replace(aligned, b_strides=odd(aligned.b_strides)),
                dataclasses.replace(aligned, d_strides=odd(aligned.d_strides)),
            ]
            best = min(predicted_us(row, aligned, 90) for row in legal_rows(aligned))
            for other in others:
                rows = legal_rows(other)
                assert set(rows) <= set(legal_rows(aligned))
                for row in rows:
                    assert predicted_us(row, aligned, 90) <= predicted_us(row, other, 90), (row.name, order)
                assert not rows or best <= min(predicted_us(row, other, 90) for row in rows)


def test_wider_results_are_never_faster():
    for m, n, k in ((64, 64, 64), (4096, 4096, 64), (8192, 8192, 8192)):
        narrow = problem_of(1, m, n, k, "bf16")
        wide = dataclasses.replace(narrow, out_dtype="f32")
        for row in legal_rows(narrow):
            if "f32" in row.out_dtypes:
                assert predicted_us(row, narrow, 90) <= predicted_us(row, wide, 90)


def test_no_time_is_below_the_roofline():
    """At the clock of the data sheet no row is predicted to be faster than an H200 can be."""
    from jax_moye._kernels.devices import DEVICES

    device = DEVICES["h200"]
    for dtype in ("bf16", "f16", "tf32", "f32", "f64", "s8", "e4m3"):
        for m, n, k in ((16, 16, 16), (128, 8192, 8192), (4096, 4096, 4096), (16384, 16384, 64)):
            problem = problem_of(1, m, n, k, dtype, "NT")
            item, out = ITEM_BYTES[dtype], ITEM_BYTES[problem.out_dtype]
            least = max(
                2e6 * m * n * k / device.flops(dtype),
                1e6 * ((m + n) * k * item + m * n * out) / device.memory_bytes_per_s,
            )
            for row in legal_rows(problem):
                assert predicted_us(row, problem, 90) >= least, (row.name, m, n, k)


def test_terms_add_up():
    rng = random.Random(5)
    for _ in range(100):
        problem = problem_of(
            *(rng.choice((1, 3, 64, 100, 1000)) for _ in range(4)), rng.choice(("bf16", "f32", "tf32"))
        )
        for row in legal_rows(problem):
            t = terms(row, problem, 90)
            total = t.launch_us + t.products_us + t.stores_us + t.memory_us - t.hidden_us + t.pack_us
            assert t.us == predicted_us(row, problem, 90) == pytest.approx(t.factor * total)
            assert getattr(t, f"{t.dominating}_us") == max(
                t.launch_us, t.products_us, t.stores_us, t.memory_us, t.pack_us
            )
            usable = facts_of(row.kernel).speed.usable.get(
                row.k_parts, 1.0
            )  # clusters along k leave some multiprocessors free
            assert t.waves == -(-t.tiles // (int(t.multiprocessors * usable) * t.resident))
            # The last tile of each mode costs as much as the others, but for Hopper tiles of fewer than 16 rows.
            (tile_m, tile_n), tile_k = row.cluster_tile, row.tile[2]
            sizes = {"m": tile_m, "n": tile_n, "k": tile_k}
            if problem.m < 16 and row.kernel.startswith("sm90_"):
                del sizes["m"]
            whole = {name: -(-getattr(problem, name) // size) * size for name, size in sizes.items()}
            assert terms(row, dataclasses.replace(problem, **whole), 90)[:3] == t[:3]
