"""The file of each kernel in jax_moye/layout/kernels: there is one for each, and all that it says is used."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

import jax_moye
from jax_moye._bench import ladder
from jax_moye._inspect import gemm
from jax_moye._kernels import configs
from jax_moye._kernels.configs import GemmConfig, facts_of
from jax_moye._selection import capability, cost, ranking, summation
from jax_moye._selection.problem import GemmProblem
from jax_moye._timing import correctness
from jax_moye.layout.errors import InvalidType
from jax_moye.layout.kernels import KernelFacts, Speed, kernel_facts, kernel_layouts, kernel_names

PACKAGE = pathlib.Path(jax_moye.__file__).parent
ROOT = pathlib.Path(__file__).parents[3]
OTHERS = (  # no plain products
    *configs.grouped_configs(),
    *configs.weights_configs(),
    *configs.attention_configs(),
)
every_kernel = pytest.mark.parametrize("kernel", kernel_names())


def config(kernel="new", tile=(128, 64, 64), cluster=(1, 1), alignment=16, dtype="bf16"):
    orders = ("NN", "NT", "TN", "TT")
    return GemmConfig(
        f"{kernel}_{dtype}_a{alignment}", kernel, dtype, "f32", ("bf16",), tile, 4, cluster, alignment, orders, True,
        384, 99 * 1024, 80, consumers=2, consumer_tile=(tile[0] // 2, tile[1]),
    )  # fmt: skip


def problem(m=4096, stride=4096, d_stride=4096, epilogue=False):
    a, d = (0, stride, 1), (0, d_stride, 1)
    return GemmProblem(1, m, 4096, 4096, a, a, d, "bf16", "bf16", False, epilogue=epilogue)


# ---- One file for each kernel


def test_every_kernel_has_a_file_and_every_file_a_kernel():
    rows = (*jax_moye.configs(), *OTHERS)
    assert {row.kernel for row in rows} <= set(kernel_names())
    sources = ROOT / "cuda" / "gemm"
    if sources.is_dir():
        assert sorted(kernel_names()) == sorted(path.stem for path in sources.glob("*.cuh"))


@every_kernel
def test_a_file_says_all_that_is_to_be_said(kernel):
    facts = kernel_facts(kernel)
    assert facts.missing == ""
    assert facts.instruction
    assert facts.idea
    assert list(facts.speed.finish_us) == sorted(facts.speed.finish_us)
    results = ROOT / "benchmarks" / "results"
    is_predicted = kernel not in {row.kernel for row in OTHERS}
    if is_predicted and any(f'"{kernel}_' in file.read_text() for file in results.glob("*.json")):  # somebody timed it
        assert facts.speed.products_per_us > Speed().products_per_us
    page = ROOT / "docs" / "tutorials" / f"{facts.page:02}_{kernel}.md"
    if page.parent.is_dir():
        assert page.is_file()
        index = (page.parent / "README.md").read_text()
        assert f"\n{facts.page}. [{kernel}]({page.name}): {facts.idea}.\n" in index


def test_the_ladder_is_the_pages():
    pages = [kernel_facts(kernel).page for kernel in kernel_names()]
    assert pages == sorted(set(pages))
    assert kernel_names() == ladder.RUNGS


def test_files_that_others_share_are_no_kernels():
    shared = {path.stem for path in (PACKAGE / "layout" / "kernels").glob("[a-z]*.py")} - set(kernel_names())
    assert {"operands", "sync_mma", "wgmma"} <= shared
    for name in (*shared, "new"):
        assert kernel_facts(name) == KernelFacts(missing=f"jax_moye/layout/kernels/{name}.py")
        with pytest.raises(InvalidType, match=f"{name} is not described: write jax_moye/layout/kernels/{name}.py"):
            kernel_layouts(config(name))


def test_a_name_is_no_config():
    with pytest.raises(InvalidType, match=r"is a name, and no config. Hint: next\(config for config in jax_moye"):
        kernel_layouts("sm80_multistage_bf16_128x128x32_s4_a16")


def test_nobody_else_knows_a_kernel_by_its_name():
    # But for the two commands that show one kernel: the ladder's chart of stages, and the launch that --emulator times.
    files = ("_bench/ladder/rung_configs.py", "_bench/ladder/table.py", "_bench/emulator.py")
    allowed = {name: {"sm80_multistage"} for name in files}
    word = re.compile(r"""["'](simt|sm\d\d)(_[a-z_]+)?|kernel\.startswith|\bin \w+\.kernel\b""")
    names = "|".join(kernel_names())
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        if name.startswith("layout/"):
            continue
        code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL)  # examples may name one
        found = {re.sub(rf"^['\"]({names}).*", r"\1", match[0]) for match in word.finditer(code)}
        assert found <= allowed.get(name, set()), name


# ---- All of it is used


def changed(speed, **fields):
    """Whether a prediction changes with fields of the speed."""
    rows = [
        config("sm90_split_k", cluster=(1, 2)),
        config(alignment=4),
        config(dtype="tf32"),
    ]
    problems = [
        problem(),
        problem(m=1),
        problem(stride=4097),
        problem(d_stride=4095),
        problem(epilogue=True),
    ]

    def predictions(speed):
        cost._of_config.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            facts = KernelFacts(speed=speed, splits_k_by_sizes="add_us" in fields)
            patch.setattr(cost, "facts_of", lambda kernel: facts)
            patch.setattr(cost.ffi, "k_parts", lambda *call: 4)
            return [cost.terms(row, p, 90) for row in rows for p in problems]

    before, after = predictions(speed), predictions(speed._replace(**fields))
    cost._of_config.cache_clear()
    return before != after


OTHER = {
    "products_per_us": 1e6,
    "by_dtype": {"tf32": 0.1},
    "by_tile": {(128, 64, (1, 1)): 2.0},
    "needs_by_tile": True,
    "copy_us": 0.0,
    "k_tile_us": 9.0,
    "clips_rows": True,
    "store_us": 1.0,
    "odd_store_us": ((255, 1.0),),
    "finish_us": ((255, 1.0),),
    "launch_us": 1.0,
    "part_us": 1.0,
    "wave_us": 1.0,
    "least_wave_us": 1000.0,
    "add_us": 1.0,
    "usable": {2: 0.5},
    "below_alignment": 16,
}


@pytest.mark.parametrize("field", Speed._fields)
def test_every_field_of_a_speed_changes_a_prediction(field):
    speed = Speed(copy_us=0.0, products_per_us=1e5)  # TMA loads
    assert changed(Speed() if field == "copy_us" else speed, **{field: OTHER[field]})
    assert not changed(speed)


def test_by_how_many_sums_a_thread_has_it_finishes():
    speed = Speed(finish_us=((16, 1.0), (32, 2.0)))  # 128 x 64 sums are 32 of each thread of two warpgroups
    assert changed(speed, finish_us=((16, 1.0), (32, 3.0)))
    assert not changed(speed, finish_us=((16, 3.0), (32, 2.0), (64, 3.0)))


def test_every_other_field_is_read(monkeypatch):
    facts = KernelFacts(
        instruction="wgmma",
        page=99,
        idea="new",
        splits_k=True,
        promotes_float8=True,
        is_of_gradients=True,
        pads=True,
        takes_in_shortly=True,
    )
    by_sizes = facts._replace(splits_k=False, splits_k_by_sizes=True)
    said = {name for name in facts._fields if facts._asdict()[name] or by_sizes._asdict()[name]}
    assert set(KernelFacts._fields) == {"speed", "missing", *said}
    assert summation.summation(config()).instruction == "new"
    assert config(cluster=(1, 4)).k_parts == 1
    bound = correctness.of_config(config(dtype="e4m3"), 4096).sums
    for module in (configs, summation, correctness):
        monkeypatch.setattr(module, "facts_of", lambda kernel: facts)
    assert summation.summation(config()).instruction == "wgmma"
    assert config(cluster=(1, 4)).k_parts == 4
    assert correctness.of_config(config(dtype="e4m3"), 4096).sums < bound
    monkeypatch.setattr(summation, "facts_of", lambda kernel: by_sizes)
    assert summation.summation(config()).instruction == config().name
    # page and idea: test_a_file_says_all_that_is_to_be_said, test_the_ladder_is_the_pages
    # pads: _selection/test_ranking.py, test_operands_are_padded_where_that_is_faster
    # takes_in_shortly: _selection/test_leads.py, test_no_more_is_asked_of_short_kernels_that_take_in_others
    # is_of_gradients: _selection/test_attention.py, test_the_least_tile


# ---- A kernel without a file


def test_a_kernel_without_a_file_is_chosen_last():

    def is_timed(row):
        speed = facts_of(row.kernel).speed
        return not speed.needs_by_tile or (*row.tile[:2], row.cluster) in speed.by_tile

    able = [row for row in jax_moye.configs() if capability.why_not(row, problem(), 90) is None]
    known = [row for row in able if is_timed(row)]
    if not known:
        pytest.skip("no row of bf16 in this build")
    new = config()
    assert facts_of(new.kernel).speed == Speed()
    rows = configs.ConfigTable([new, *known])
    first, *_, last = (candidate.config for candidate in ranking.rank(problem(), 90, rows) if not candidate.reason)
    assert last == new != first
    assert ranking.select(problem(), 90, configs.ConfigTable([new])) == new  # what no other can
    ranked = [gemm.Ranked(row, None, 1.0, cost.terms(row, problem(), 90)) for row in (new, first)]
    assert gemm._why_not_kernel(ranked, ranked[1], problem()) == (
        "nothing is known of it: write jax_moye/layout/kernels/new.py"
    )


# ---- The package


def test_layouts_need_no_jax():
    """`jax_moye.layout` and all below it import NumPy and nothing of JAX: of the package they are taken from alone."""
    code = (
        "import importlib, pkgutil, sys, types\n"
        "package = types.ModuleType('jax_moye')\n"
        f"package.__path__ = [{str(PACKAGE)!r}]\n"
        "sys.modules['jax_moye'] = package\n"
        "layout = importlib.import_module('jax_moye.layout')\n"
        "names = [module.name for module in pkgutil.walk_packages(layout.__path__, 'jax_moye.layout.')]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names) > 40, [name for name in sys.modules if name.split('.')[0] in ('jax', 'jaxlib')])\n"
        "print({name.split('.')[1] for name in sys.modules if name.startswith('jax_moye.')})"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    beside = {"_command_line", "_optional", "layout"}  # modules of no room, which import nothing of the package
    assert done.stdout.splitlines()[0] == "True []"
    assert ast.literal_eval(done.stdout.splitlines()[1]) == beside
