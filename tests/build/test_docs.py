"""The documentation: it builds without a warning, its examples run, its claims of speed come from result files."""

import ast
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import jax_moye
from tests import cxx
from tests.emulated.driver import DRIVER, instance_source, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
KERNEL_PAGE = (DOCS / "adding_a_kernel.md").read_text()


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


pages = load(ROOT / "tools/benchmark_pages.py")


# The site --------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    pytest.importorskip("furo")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", tmp_path / "trees"]
    environ = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [*command, DOCS, tmp_path / "site"], capture_output=True, text=True, env=environ, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    index = (tmp_path / "site/index.html").read_text()
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix(".html")
        assert (tmp_path / "site" / name).exists(), name
        assert f'href="{name}"' in index or name.parts[0] == "tutorials" or name.stem == "index", name
    reference = (tmp_path / "site/api/jax_moye.html").read_text()
    assert 'id="jax_moye.matmul"' in reference
    assert "preferred_element_type" in reference


def documented(*names):
    """What the pages' autodoc directives name."""
    text = "\n".join((DOCS / "api" / name).read_text() for name in names)
    return set(re.findall(r"^\.\. auto(?:function|class|data|exception|module):: ([\w.]+)", text, re.MULTILINE))


def test_every_public_name_is_in_the_reference():
    named = documented("jax_moye.md", "layout.md", "layout_modules.md")
    missing = [name for name in jax_moye.__all__ if f"jax_moye.{name}" not in named]
    assert not missing
    tree = ast.parse((ROOT / "jax_moye/layout/__init__.py").read_text())
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    public = {alias.asname or alias.name for node in imported for alias in node.names}
    assert len(public) > 100
    assert not {name for name in public if f"jax_moye.layout.{name}" not in named}
    for module in ("checks", "draw", "kernels", "resources", "schedule"):
        assert f"jax_moye.layout.{module}" in named


@pytest.mark.parametrize("page", ["quickstart.md", "adding_a_config.md"])
def test_the_pages_blocks_run(page):
    runner = load(DOCS / "tutorials/run.py")
    _namespace, blocks, _pictures = runner.run(DOCS / page)
    assert blocks > 0


# A kernel as the page says ---------------------------------------------------------------------------------------


def edits():
    """File, old and new text of each of the page's diffs."""
    for file, diff in re.findall(r"<!-- edit: (\S+) -->\n```diff\n(.*?)^```$", KERNEL_PAGE, re.MULTILINE | re.DOTALL):
        lines = diff.splitlines(keepends=True)
        yield file, *("".join(line[1:] for line in lines if line[0] in (" ", sign)) for sign in "-+")


def test_the_kernel_that_the_page_adds(tmp_path):
    gemm = tmp_path / "gemm"
    gemm.mkdir()
    for path in (ROOT / "cuda/gemm").iterdir():
        (gemm / path.name).write_text(path.read_text())
    for file, old, new in edits():
        path = tmp_path / pathlib.Path(file).relative_to("cuda")
        text = path.read_text()
        assert text.count(old) == 1, f"{file} does not hold what the page changes:\n{old}"
        path.write_text(text.replace(old, new))
    ((file, source),) = re.findall(r"<!-- file: (\S+) -->\n```cpp\n(.*?)^```$", KERNEL_PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / pathlib.Path(file).relative_to("cuda")).write_text(source)
    row = re.search(r"^\+  (\{simt_direct,.*?\}),$", KERNEL_PAGE, re.MULTILINE)[1]
    instance = tmp_path / "instance.cc"
    instance.write_text(instance_source(row))
    binary = cxx.build("gemm_driver", [DRIVER], [f"-DMOYE_ROW={row}", f"-I{tmp_path}"], kernel_sources=[instance])
    for order in ("NN", "NT", "TN", "TT"):
        assert run(binary, (70, 66, 20), f"order={order}") == "ok"
        assert run(binary, (33, 65, 7), f"order={order}", "batch=3", "pad=3", "d_pad=5", "epilogue=1") == "ok"


def test_all_edits_of_the_page_are_found():
    # What test_the_kernel_that_the_page_adds would miss: diffs that its pattern does not find.
    assert [file for file, _, _ in edits()] == ["cuda/gemm/config.h"] * 2 + ["cuda/gemm/configs.h"]


# Speed -----------------------------------------------------------------------------------------------------------

LOG = "<!-- speed: log -->"  # a page of predictions and measurements: each section names the results that it quotes
HOST = "<!-- speed: host costs, in no result file -->"
GENERATED = "<!-- Generated by tools/benchmark_pages.py"
CLAIM = re.compile(
    r"""
      \d[\d.,]*\s?[kMGTP]?(?:FLOP/s|FLOPS|flops|i?B/s)\b    # 690 TFLOP/s, 4.1 TB/s
    | \d[\d.,]*\s?(?:ns|us|µs|ms)\b                         # 12.5 us
    | \d[\d.,]*\s(?:of|times)\s(?:the\s)?(?:\w+\s)?(?:speed|XLA's|XLA\b|cuBLAS\w*|torch's?\b)   # 0.95 of XLA's speed
    | \b(?:its|XLA's|torch's|cuBLAS'?s?|their)\sspeed
    | \d[\d.,]*\s?(?:x|\u00d7|times|%|percent)\s(?:as\sfast|faster|slower|of\sXLA|of\storch|of\scuBLAS|of\sthe\speak)
    | \b(?:twice|thrice|half)\sas\sfast
    """,
    re.VERBOSE,
)
# The only mentions that are no claim, word for word.
NO_CLAIM = {
    "benchmarks/README.md": {"50 ms"},  # the length of a turn
}


def claims(text):
    """Claims of speed outside of generated blocks."""
    for marks in re.findall(r"<!-- (\w+): begin -->", text):
        text = re.sub(rf"<!-- {marks}: begin -->.*?<!-- {marks}: end -->", "", text, flags=re.DOTALL)
    return [match[0] for match in CLAIM.finditer(re.sub(r"\s+", " ", text))]


def log_sections(text):
    """The sections of a log with claims, and the result files that each names."""
    known = {path.name for path in (ROOT / "benchmarks/results").iterdir()}
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        if claims(section):
            yield section, {name for name in known if name in section}


def prose():
    return [ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("path", prose(), ids=lambda path: str(path.relative_to(ROOT)))
def test_speed_is_quoted_from_result_files(path):
    text, name = path.read_text(), str(path.relative_to(ROOT))
    if text.startswith(GENERATED):
        assert name == pages.PAGE  # whose content test_generated_pages_are_current compares
        return
    if LOG in text:
        assert name == "docs/performance.md"
        for section, files in log_sections(text):
            title = section.splitlines()[0]
            assert files or HOST in section, f"{name}: section {title!r} quotes speeds and names no result file"
        assert text.count(HOST) == 1
        return
    found = set(claims(text)) - NO_CLAIM.get(name, set())
    assert not found, f"{name} speaks of speed outside of a block that a tool writes: {sorted(found)}"


@pytest.mark.parametrize(
    "text",
    [
        "It reaches 690 TFLOP/s on an H200.",
        "takes 12.5 us",
        "bf16 products run at 0.95 to 1.01 of its\nspeed",
        "0.98 of XLA's speed",
        "1.4x faster",
        "20 % slower",
        "twice as fast",
        "reads 4.1 TB/s",
        "<!-- table: begin -->\n<!-- table: end -->\nand 3 ms",
    ],
)
def test_claims_are_found(text):
    assert claims(text)


def test_what_is_no_claim():
    for text in (
        "<!-- speed: begin -->\n12 us\n<!-- speed: end -->",
        "16 bytes at a time, 2^-23 for every 16 products",
        "within 60 s; 4 MB; three times its width",
        "where that is faster",
    ):
        assert not claims(text), text


def test_generated_pages_are_current():
    done = subprocess.run(
        [sys.executable, ROOT / "tools/benchmark_pages.py", "--check"],
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr


def report(gpu="G", date="2026-01-01", rows=(), **more):
    return {"gpu": gpu, "date": date, "rows": list(rows), "emulated": False, **more}


def row(name, ratio, interval, regime="large"):
    sizes = {"batch": 1, "m": 64, "n": 64, "k": 64, "layout": "NN", "dtype": "bf16"}
    return {"id": name, "regime": regime, "ratio": ratio, "ratio_ci": interval, **sizes}


def test_which_result_is_shown():
    suite = {"rows": [{"id": f"A{i}"} for i in range(4)]}
    full = [row(f"A{i}", 1.0, [0.9, 1.1]) for i in range(4)]
    found = [
        pages.Result("partial", report(date="2026-03", rows=full[:1])),
        pages.Result("new", report(date="2026-02", rows=full[:3])),
        pages.Result("old", report(date="2026-01", rows=full)),
        pages.Result("other", report(gpu="H", date="2026-01", rows=full[:1])),
    ]
    assert [result.file for result in pages.shown(found, suite)] == ["new", "other"]


def test_numbers_of_the_table():
    rows = [
        row("A1", 0.5, [0.4, 0.6]),
        row("A2", 2.0, [1.9, 2.1]),
        row("G1", 4.0, [3, 5], "odd"),
        row("B1", 1.0, [0.9, 1.1], "mid"),
    ]
    lines = pages.regime_table(rows).splitlines()
    assert lines[2] == "| A, large | 2 | 1.000 | 0.500 (A1) | 2.000 (A2) | 1 | 0 | 1 |"
    assert lines[3] == "| G, odd sizes | 1 | 4.000 | 4.000 (G1) | 4.000 (G1) | 1 | 0 | 0 |"
    assert lines[-1] == "| core, A to E | 3 | 1.000 | 0.500 (A1) | 2.000 (A2) | 1 | 1 | 1 |"


def test_readme_shows_the_shown_result():
    (newest,) = pages.shown(pages.results(), json.loads((ROOT / "benchmarks/suite.json").read_text()))
    readme = (ROOT / "README.md").read_text()
    assert newest.file in readme
    assert all((ROOT / name).exists() for name in re.findall(r"benchmarks/results/[\w.-]+\w", readme))
