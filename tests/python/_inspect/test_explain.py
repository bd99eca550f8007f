"""explain and report: what they print, which products they find, and that the lowering says the same."""

import doctest
import html.parser
import importlib
import io
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import custom_calls, lowered_text

import jax_moye
from jax_moye.__main__ import main
from jax_moye._inspect.command import explain_shape, parse_shape
from jax_moye._inspect.report import Report, measure_gemm
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import ConfigTable, GemmConfig
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection import capability, cost, decide, measurements, ranking, summation

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "explain"
UPDATE = "JAX_MOYE_UPDATE_GOLDEN"
bf16 = jnp.bfloat16


def struct(*shape, dtype=bf16):
    return jax.ShapeDtypeStruct(shape, dtype)


# ------------------------------------------------------------------------------------------------------------- golden


def row(kernel, dtype, tile, stages, alignment, threads, smem, registers, arch, cluster=(1, 1), accumulator="f32"):
    c = "" if cluster == (1, 1) else f"_c{cluster[0]}x{cluster[1]}"
    outs = {"bf16": ("bf16", "f32"), "f64": ("f64",)}.get(dtype, ("f32",))
    tile_words = "x".join(map(str, tile))
    return GemmConfig(
        name=f"{kernel}_{dtype}_{tile_words}_s{stages}{c}_a{alignment}",
        kernel=kernel,
        dtype=dtype,
        accumulator=accumulator,
        out_dtypes=outs,
        tile=tile,
        stages=stages,
        cluster=cluster,
        alignment=alignment,
        orders=("NN", "NT", "TN", "TT"),
        any_stride=alignment < 16,
        threads=threads,
        smem_bytes=smem,
        min_arch=arch,
        max_arch=90 if arch == 90 else 0,
        registers={f"sm_{arch}": registers},
    )


# A table of its own and a model of one line: the golden files are about what is said, not about what is fitted.
TABLE = ConfigTable(
    [
        row("sm90_cooperative", "bf16", (128, 256, 64), 4, 16, 384, 230_400, 168, 90, cluster=(2, 1)),
        row("sm90_pingpong", "bf16", (64, 256, 64), 4, 16, 384, 204_800, 168, 90),
        row("sm80_multistage", "bf16", (128, 128, 32), 4, 16, 128, 65_536, 241, 80),
        row("sm80_multistage", "bf16", (64, 64, 32), 3, 2, 128, 24_576, 128, 80),
        row("sm80_multistage", "tf32", (128, 128, 32), 3, 16, 128, 98_304, 252, 80),
        row("simt_tiled", "f32", (64, 64, 8), 1, 4, 256, 4_352, 88, 70),
        row("sm80_multistage", "f64", (64, 64, 16), 3, 8, 128, 49_152, 158, 80, accumulator="f64"),
    ]
)


def simple_terms(config, problem, arch):
    tile_m, tile_n, _ = config.tile
    tiles = problem.batch * -(-problem.m // tile_m) * -(-problem.n // tile_n)
    waves = -(-tiles // 128)
    products = waves * tile_m * tile_n * problem.k / {"sm90": 2**20, "sm80": 2**19, "simt": 2**17}[config.kernel[:4]]
    memory = (problem.m + problem.n) * problem.k / 2**20
    us = 2 + products + 1 + memory / 4
    return cost.Terms(2.0, products, 1.0, memory, 0.75 * memory, 0.0, 1.0, us, 128, 1, tiles, waves)


@pytest.fixture
def fixed(monkeypatch):
    """The table and the model of the golden files."""
    monkeypatch.setattr(capability, "usable_configs", lambda platform, arch: TABLE)
    monkeypatch.setattr(ffi, "built", lambda platform: frozenset(row.name for row in TABLE))
    monkeypatch.setattr(cost, "terms", simple_terms)
    monkeypatch.setattr(decide, "xla_us", lambda problem, *args, **kwargs: 9.5 if problem.k == 4097 else None)
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: None)
    monkeypatch.setattr(measurements, "find", lambda *args: None)
    for cached in (ranking.rank, ranking._best, summation.batch_invariant_configs):
        cached.cache_clear()
    yield
    for cached in (ranking.rank, ranking._best, summation.batch_invariant_configs):
        cached.cache_clear()


def program(x, w, bias):
    hidden, _ = jax.lax.scan(lambda y, _: (jax_moye.linear(y, w, bias, activation="silu"), None), x, None, length=4)
    return jnp.dot(hidden, w) + jax_moye.matmul(hidden, w.T, preferred_element_type=jnp.int16).astype(bf16)


GOLDEN_CASES = {
    "large": lambda: explain_shape("4096x4096x4096:bf16", device="h200"),
    "odd": lambda: jax_moye.explain((100, 99), (99, 60), "bfloat16", device="h200"),
    "left_to_xla": lambda: explain_shape("4096x4096x4097:bf16:NT", device="h200"),
    "transposed_batch": lambda: explain_shape("3x128x64x256:bf16:TT", preferred_element_type="float32", device="h100"),
    "split": lambda: explain_shape("4096x4096x4096:f32", precision="high", device="a100"),
    "too_old": lambda: explain_shape("512x512x512:bf16:NT", device="v100"),
    "insists": lambda: explain_shape("64x64x64:f64", config=TABLE[0], implementation="moye", device="h200"),
    "batch_invariant": lambda: explain_shape("64x64x64:bf16", batch_invariant=True, device="h200"),
    "program": lambda: jax_moye.explain(program, struct(64, 64), struct(64, 64), struct(64), device="h200"),
}


@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_golden(case, fixed, monkeypatch):
    monkeypatch.setattr(decide, "find_config", lambda config: TABLE[0])
    monkeypatch.setattr("jax_moye._api.arguments.find_config", lambda config: TABLE[0])
    found = GOLDEN_CASES[case]()
    for suffix, text in ((".txt", found.text()), (".json", found.to_json())):
        path = GOLDEN / f"{case}{suffix}"
        if os.environ.get(UPDATE):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + "\n")
        assert text + "\n" == path.read_text(), f"set {UPDATE}=1 to write what is right now"


def test_golden_files_are_all_compared():
    assert {path.stem for path in GOLDEN.iterdir()} == set(GOLDEN_CASES)


class Tags(html.parser.HTMLParser):
    """Fails where tags do not nest."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("case", ["large", "program", "too_old"])
def test_html_says_what_the_text_says(case, fixed):
    found = GOLDEN_CASES[case]()
    page = Tags()
    page.feed(found._repr_html_())
    assert page.open == []
    assert {"table", "details", "summary", "th", "td"} <= set(page.seen)
    for gemm in found:
        for _, sentence in gemm.facts():
            assert sentence in page.text
        for reason in gemm.by_kernel().values():
            assert reason in page.text


def test_html_is_escaped(fixed):
    found = jax_moye.explain((4, 4), (4, 4), "bfloat16", device="h200")
    sneaky = type(found)(found.device, found.gemms, ("<script>",))
    assert "<script>" not in sneaky._repr_html_()
    assert "->" not in sneaky._repr_html_()  # of mk,kn->mn


def test_rich_prints_the_same_numbers(fixed):
    console = pytest.importorskip("rich.console").Console(width=250, record=True, file=io.StringIO())
    found = GOLDEN_CASES["large"]()
    console.print(found)
    text = console.export_text()
    for cell in (cell for line in found[0].table() for cell in line):
        assert cell in text


# ------------------------------------------------------------------------------------------------------ jaxpr walking


def test_products_in_loops_branches_and_calls():
    def fun(x, w):
        def body(y, _):
            y = jax.checkpoint(lambda y: jax_moye.matmul(y, w))(y)
            return jax.lax.cond(
                y[0, 0] > 0, lambda y: jax_moye.matmul(y, y), lambda y: jax_moye.matmul(y.T, y), y
            ), None

        y, _ = jax.lax.scan(lambda y, _: jax.lax.scan(body, y, None, length=3), x, None, length=5)
        y = jax.lax.while_loop(lambda y: y[0, 0] < 0, lambda y: jax_moye.matmul(w, y), y)
        y = jax.jit(lambda y: jax_moye.matmul(y, w.astype(jnp.float32)))(y)

        @jax.custom_vjp
        def custom(y):
            return jax_moye.matmul(y, y, preferred_element_type=bf16)

        custom.defvjp(lambda y: (custom(y), None), lambda _, g: (g,))
        return custom(y)

    x = struct(16, 16)
    found = list(jax_moye.explain(fun, x, x, device=90))
    # y w, y y and the loop's w y are alike, y.T y has other strides, and two are of f32.
    assert [(gemm.count, gemm.problem.order) for gemm in found] == [(31, "NN"), (15, "TN"), (1, "NN"), (1, "NN")]
    assert found[0].where == ("scan of 5 > scan of 3 > checkpoint", "scan of 5 > scan of 3 > branch 1 of 2", "while")
    assert found[1].where == ("scan of 5 > scan of 3 > branch 0 of 2",)
    assert [gemm.what.partition(" into ")[2] for gemm in found] == ["bfloat16", "bfloat16", "float32", "bfloat16"]


def test_dead_products_are_left_out():
    def fun(x):
        jax_moye.matmul(x, x)
        return jax.lax.scan(lambda y, _: (y, jax_moye.matmul(x, x)), x, None, length=3)[0]

    assert len(jax_moye.explain(fun, struct(8, 8))) == 0
    assert "no matrix product" in str(jax_moye.explain(fun, struct(8, 8), device="h200"))


def test_a_product_of_lax_is_xlas():
    found = jax_moye.explain(lambda x: jnp.einsum("ij,jk->ki", x, x), struct(8, 8), device="h200")
    assert [gemm.computed_by for gemm in found] == ["xla"]
    assert "jax_moye.intercept" in found[0].reason
    with jax_moye.intercept():
        found = jax_moye.explain(lambda x: jnp.matmul(x, x), struct(4096, 4096), device="h200")
    assert [gemm.computed_by for gemm in found] == ["moye"]


def loss(x, w):
    y = jax_moye.matmul(x, w)
    y = jax_moye.matmul(w.T, y)
    z = jax_moye.einsum("ij,kj->ki", y, x.T)
    return jnp.sum(jax_moye.matmul(z, z[0]).astype(jnp.float32))


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("batched", [False, True])
def test_the_lowering_says_the_same(arch, batched):
    """Kernel, sizes and strides of each product, with transposes in front of operands, derivatives and vmap."""
    fun = jax.grad(loss, (0, 1))
    shapes = (struct(40, 40), struct(40, 40))
    if batched:
        fun, shapes = jax.vmap(fun), (struct(3, 40, 40), struct(3, 40, 40))
    with jax_moye.options(implementation="moye"), jax_moye.cuda_target(arch):
        calls = custom_calls(lowered_text(lambda *args: fun(*args), *shapes))
        found = jax_moye.explain(lambda *args: fun(*args), *shapes, device=arch)
    lowered = sorted((c.config, c.sizes, c.a_strides, c.b_strides) for c in calls)
    p = [(gemm, gemm.problem) for gemm in found for _ in range(gemm.count)]
    explained = sorted((gemm.config.name, q.sizes, q.a_strides, q.b_strides) for gemm, q in p)
    assert explained == lowered
    assert len(lowered) > 5


def test_fused_products_are_the_lowerings():
    fun = jax.grad(lambda x, w, b: jnp.sum(jax_moye.linear(x, w, b, activation="gelu").astype(jnp.float32)), (0, 1, 2))
    args = (struct(48, 32), struct(32, 64), struct(64))
    with jax_moye.options(implementation="moye"), jax_moye.cuda_target(90):
        text = lowered_text(lambda *args: fun(*args), *args)
        found = jax_moye.explain(lambda *args: fun(*args), *args, device=90)
    assert [gemm.epilogue for gemm in found] == ["gelu_tanh, bias", None, None]
    for gemm in found:
        assert f'config = "{gemm.config.name}"' in text


def test_an_epilogue_that_no_kernel_takes():
    fun = jax.vmap(lambda x, w, b: jax_moye.linear(x, w, b, activation="relu"), in_axes=(None, None, 0))
    found = jax_moye.explain(fun, struct(8, 8), struct(8, 8), struct(3, 8), device="h200")
    assert [gemm.count for gemm in found] == [1]
    integers = (struct(8, 8, dtype=jnp.int8), struct(8, 8, dtype=jnp.int8))
    found = jax_moye.explain(
        lambda x, w: jax_moye.linear(x, w, alpha=2.0, preferred_element_type=jnp.int32), *integers, device="h200"
    )
    assert "alpha 1" in found[0].epilogue_reason
    assert found[0].computed_by == "moye"


# ------------------------------------------------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((8, 8), (8, 8), "int16"), {}),
        (((8, 8), (8, 8), "float32"), {"precision": "default"}),
        (((8, 8), (8, 8), "float32"), {"precision": "BF16_BF16_F32_X9"}),
        (((8, 8), (8, 8), "bfloat16"), {"precision": "F64_F64_F64"}),
        (((8, 8), (8, 8), "float8_e4m3fn"), {"precision": "highest"}),
        (((8, 8), (8, 8), "complex64"), {}),
        (((4, 4, 8, 8), (4, 1, 8, 8), "bfloat16"), {}),
        (((2, 3, 4, 5), (3, 2, 5, 6), "bfloat16"), {"spec": "abmk,bakn->abmn"}),
        (((8, 8), (8, 8), "float16"), {"deterministic": True}),
    ],
)
@pytest.mark.parametrize("device", ["h200", "v100"])
def test_reasons_are_the_lowerings(shapes, options, device, monkeypatch):
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: None)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    found = jax_moye.explain(*shapes, **options, device=device)[0]
    request, operands = found.product.request, found.product.operands
    with jax_moye.cuda_target(found.device.arch):
        outcome = decide.decide(request, operands, capability.LoweringTarget.of_platform("cuda"))
    if outcome.kind == "kernel":
        assert found.computed_by == "moye"
        call = outcome.call
        assert (found.config, found.problem, found.split) == (call.config, call.problem, call.split)
    else:
        assert found.config is None
        assert outcome.reason in found.reason
        assert found.computed_by == outcome.kind == ("error" if decide.why_not_xla("cuda", request) else "xla")


def test_reasons_of_the_caller():
    assert jax_moye.explain((8, 8), (8, 8), bf16, implementation="xla")[0].reason == "implementation='xla'"
    found = jax_moye.explain((8, 8), (8, 8), "int16", implementation="moye")[0]
    assert found.computed_by == "error"
    assert "no kernel multiplies int16" in found.reason
    assert jax_moye.explain((0, 8), (8, 8), bf16)[0].computed_by == "nothing"


def test_every_kernel_has_a_reason_or_a_ratio():
    found = jax_moye.explain((256, 256), (256, 256), bf16, device="a100")[0]
    kernels = {candidate.config.kernel for candidate in found.candidates}
    assert set(found.by_kernel()) == kernels - {found.config.kernel}
    assert all(found.by_kernel().values())
    ranked = [candidate.us for candidate in found.candidates if candidate.us is not None]
    assert ranked == sorted(ranked)
    assert found.predicted_us == ranked[0]


def test_a_config_by_name_and_in_a_block():
    name = next(row.name for row in jax_moye.configs() if row.dtype == "bf16" and row.alignment == 16)
    found = jax_moye.explain((64, 64), (64, 64), bf16, config=name, device="h200")[0]
    assert (found.config.name, found.chosen_by) == (name, "explicit")
    with jax_moye.options(implementation="xla"):
        assert jax_moye.explain((8, 8), (8, 8), bf16, device="h200")[0].computed_by == "xla"


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        (((8, 8),), {}, TypeError, "b is missing"),
        (((8, 8), (8, 8)), {}, TypeError, "a is the shape .* no dtype"),
        (((8, 8), 3, "bfloat16"), {}, TypeError, "b is a shape"),
        (((8, -8), (8, 8), "bfloat16"), {}, ValueError, "a has the shape .* negative"),
        (((8, 8), (8, 8), "bfloat16"), {"dtype": "float32"}, TypeError, "at most a, b and dtype"),
        (((8, 8), (9, 8), "bfloat16"), {}, ValueError, "8 != 9"),
        (((8, 8), (8, 8), "bfloat16"), {"device": "h201"}, ValueError, "device 'h201' is not known; names are h200"),
        (((8, 8), (8, 8), "bfloat16"), {"device": 12}, ValueError, "device 12"),
        (((8, 8), (8, 8), "bfloat16"), {"device": 1.5}, TypeError, "device is a name"),
        (((8, 8), (8, 8), "bfloat16"), {"precision": "good"}, ValueError, "precision"),
        ((lambda x: x, 1.0), {"precision": "highest"}, TypeError, "precision is about the product of two arrays"),
        (((8, 8), (8, 8), "bfloat16"), {"spec": "ij,jk->ik", "dimension_numbers": 0}, TypeError, "give one"),
    ],
)
def test_errors(args, options, error, message):
    with pytest.raises(error, match=message):
        jax_moye.explain(*args, **options)


def test_dimension_numbers_and_arrays():
    numbers = (((1,), (1,)), ((), ()))
    found = jax_moye.explain(jnp.ones((8, 16), bf16), struct(24, 16), dimension_numbers=numbers, device=90)[0]
    assert found.problem.sizes == (1, 8, 24, 16)
    assert found.problem.order == "NT"
    assert jax_moye.explain((8, 8), (8, 8), "float64", device="h200")[0].problem.dtype == "f64"


# ------------------------------------------------------------------------------------------------------------ devices


# --------------------------------------------------------------------------------------------- the command and report


def test_command(capsys):
    assert main(["explain", "--shape", "64x64x64:bf16:NT", "--device", "h200", "--top", "3"]) == 0
    text = capsys.readouterr().out
    assert "order" in text
    assert "NT, aligned to 16 bytes" in text
    assert main(["explain", "--shape", "2x64x64x64:f16", "--shape", "8x8x8:f64", "--device", "a100", "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert [found["gemms"][0]["problem"]["batch"] for found in both] == [2, 1]
    assert main(["explain", "--shape", "64x64:bf16"]) == 1
    assert main(["explain", "--shape", "64x64x64:bf16", "--device", "x"]) == 1
    errors = capsys.readouterr().err
    assert "4096x4096x4096:bf16:NT" in errors
    assert "device 'x' is not known" in errors


def test_shapes_of_the_command():
    assert parse_shape("4096x4096x4096:bf16") == (1, 4096, 4096, 4096, "bf16", "NN")
    assert parse_shape("2x3x4x5:f16:TN") == (2, 3, 4, 5, "f16", "TN")
    for order in ("NN", "NT", "TN", "TT"):
        assert explain_shape(f"16x32x64:bf16:{order}", device=90)[0].problem.order == order
        assert explain_shape(f"16x32x64:bf16:{order}", device=90)[0].problem.sizes == (1, 16, 32, 64)
    for wrong in ("4096", "4096x4096:bf16", "1x2x3:bf17", "1x2x3:bf16:N", "1x2x3x4x5:bf16"):
        with pytest.raises(ValueError, match="--shape is"):
            parse_shape(wrong)


def step(x, w, b):
    y = jax_moye.linear(x, w, b, activation="gelu")
    z = jax_moye.matmul(y, w.T, precision="highest")
    return jnp.sum(z.astype(jnp.float32)) + jnp.sum(x @ w)


def test_report_without_a_gpu_predicts():
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("there is a GPU")
    report = jax_moye.report(jax.grad(step, (0, 1, 2)), struct(16, 16), struct(16, 16), struct(16))
    assert report.measured is None
    assert report.totals() == {"program": None, "xla": None}
    assert "JAX sees no GPU here" in str(report)
    assert json.loads(report.to_json())["measured"] is None
    with pytest.raises(TypeError, match="fun is a function"):
        jax_moye.report((8, 8), (8, 8))
    with pytest.raises(ValueError, match="alternations"):
        jax_moye.report(step, alternations=0)
    with pytest.raises(ValueError, match="turn_ms"):
        jax_moye.report(step, turn_ms=-1)


def test_report_measures_what_was_explained():
    """In the emulator: each product with its transposes, epilogue and dtypes, and a wrong kernel has no time."""
    explanation = jax_moye.explain(step, struct(16, 16), struct(16, 16), struct(16), device=80)
    assert {gemm.computed_by for gemm in explanation} == {"moye", "xla"}
    short = {"alternations": 2, "turn_ms": 0.1, "warmup_ms": 0.0}
    cpu = jax.devices("cpu")[0]
    measured = tuple(
        measure_gemm(gemm, cpu, **short, interpret=InterpretParams(detect_races=False)) for gemm in explanation
    )
    for gemm, one in zip(explanation, measured, strict=True):
        assert one.error is None
        assert (one.us is not None) == (gemm.computed_by == "moye")
        assert one.xla_us > 0
        assert gemm.computed_by != "moye" or one.difference < 0.02
    report = Report(explanation, measured, ())
    assert report.totals()["program"] > 0
    assert "times as fast" in str(report)
    page = Tags()
    page.feed(report._repr_html_())
    assert page.open == []
    json.dumps(report.to_dict())


def test_a_wrong_result_has_no_time(monkeypatch):
    gemm = jax_moye.explain((16, 16), (16, 16), bf16, implementation="moye", device=90)[0]
    report = importlib.import_module("jax_moye._inspect.report")  # the module: jax_moye.report is the function
    right = report.program_of
    monkeypatch.setattr(
        report,
        "program_of",
        lambda product, implementation, interpret: (
            right(product, "xla", None) if implementation == "xla" else lambda a, b: np.float32(1.1) * a
        ),
    )
    one = measure_gemm(gemm, jax.devices("cpu")[0], alternations=1, turn_ms=0.1, warmup_ms=0.0)
    assert one.us is None
    assert "WRONG" in one.error


PAGE = pathlib.Path(__file__).parents[3] / "docs" / "how_selection_works.md"


@pytest.mark.skipif(not PAGE.exists(), reason="no docs beside the tests")
def test_the_page_does_what_it_shows():
    outcome = doctest.testfile(str(PAGE), module_relative=False)
    assert outcome.attempted > 10
    assert outcome.failed == 0
    commands = [line.split()[4:] for line in PAGE.read_text().splitlines() if line.startswith("python -m jax_moye")]
    assert len(commands) == 2
    for command in commands:
        assert main(["explain", *command]) == 0
