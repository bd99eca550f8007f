"""The documentation: it builds without a warning, its examples run, its claims of speed come from result files."""

import argparse
import ast
import contextlib
import importlib.util
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import typing

import pytest
from site_build import DOCS, ROOT, notebooks, sphinx

import jax_moye
from jax_moye.__main__ import main


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


pages = load(ROOT / "tools/benchmark_pages.py")
cells_of_pages = load(DOCS / "notebooks.py")


# The site --------------------------------------------------------------------------------------------------------


def test_all_that_a_page_shows_is_compared():
    # What the build would not compare: pictures and outputs that do not directly follow a block of Python.
    for page in notebooks():
        text = page.read_text()
        shown = [match for match in cells_of_pages.CELL.finditer(text) if match["shown"]]
        assert sum(1 for match in shown if match["picture"]) == len(re.findall(r"^!\[", text, re.MULTILINE)), page
        blocks = len(re.findall(r"^```(?:text|diff)$", text, re.MULTILINE))
        assert sum(1 for match in shown if match["text"] is not None) == blocks, page


SMALL_SITE = """
import sys
sys.path.insert(0, {docs!r})
extensions = ["notebooks", "myst_nb"]
notebooks = ["index"]
nb_execution_mode, nb_execution_show_tb, nb_output_stderr = {settings}
"""
PAGE = "# Page\n\n```python\n1 + 1\n```\n\n```text\n{}\n```\n\n```python\n{}\n```\n"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("shown", "code", "message"),
    [
        ("2", "print('to stdout')", None),
        ("3", "", r"index\.md:7: WARNING: the page shows something else than its code gives:\n2"),
        ("2", "import sys; print('to stderr', file=sys.stderr)", "stderr was found"),
        ("2", "assert 1 == 2", "AssertionError"),
    ],
)
def test_what_stops_the_build(tmp_path, shown, code, message):
    names = ("nb_execution_mode", "nb_execution_show_tb", "nb_output_stderr")
    settings = dict(re.findall(r"^(nb_\w+) = (.+)$", (DOCS / "conf.py").read_text(), re.MULTILINE))
    settings = ", ".join(settings[name] for name in names)  # as the site has them
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "conf.py").write_text(SMALL_SITE.format(docs=str(DOCS), settings=settings))
    (docs / "index.md").write_text(PAGE.format(shown, code))
    done = sphinx(docs, tmp_path)
    if message is None:
        assert done.returncode == 0, done.stderr
        assert "to stdout" in (tmp_path / "site/index.html").read_text()
        assert sphinx(docs, tmp_path, "-D", "write_outputs=1").returncode == 0
        assert (docs / "index.md").read_text() == PAGE.format(shown, code)
    else:
        assert done.returncode != 0
        assert re.search(message, done.stderr), done.stderr


def executed(*outputs):
    """A notebook with a cell for each of the outputs."""
    return {"cells": [{"cell_type": "code", "outputs": list(output)} for output in outputs]}


def test_what_a_page_shows_is_what_its_code_gives(tmp_path):
    page = tmp_path / "page.md"
    text = "```python\na\n```\n\n```diff\nold\n```\n\n```python\nb\n```\n\n![six](images/six.svg)\n\nend\n"
    page.write_text(text)
    printed = {"output_type": "stream", "text": ["a\n", "b\n"]}
    drawn = {"output_type": "execute_result", "data": {"image/svg+xml": ["<svg>", "</svg>"], "text/plain": ["six"]}}
    notebook = executed([printed], [drawn])
    first, second = cells_of_pages.compare(page, notebook)
    assert first == (5, "the page shows something else than its code gives:\na\nb\n")
    assert second == (13, "images/six.svg is not what the code draws")
    assert cells_of_pages.compare(page, notebook, write=True) == []
    assert page.read_text() == text.replace("old\n", "a\nb\n")
    assert (tmp_path / "images/six.svg").read_text() == "<svg></svg>"
    assert cells_of_pages.compare(page, notebook) == []
    (tmp_path / "images/six.svg").write_text("old")
    assert cells_of_pages.compare(page, notebook) == [(14, second[1])]
    ((line, message),) = cells_of_pages.compare(page, executed([printed], [printed]))
    assert (line, message) == (14, "the code draws 0 pictures for images/six.svg")
    ((line, message),) = cells_of_pages.compare(page, executed([printed]))
    assert message == "the page has 2 blocks that run, its notebook 1 cells"


def test_pages_become_notebooks():
    page = (
        "# T\n\n```python\n1\n```\n\n```text\n1\n```\n\n```sh\nls\n```\n\n```python\n2\n```\n\nend\n\n```text\n2\n```\n"
    )
    cells = page.replace("```python\n1", "```{code-cell} python\n:tags: [remove-output]\n1")
    cells = cells.replace("```python\n2", "```{code-cell} python\n2")
    assert cells_of_pages.as_notebook(page).endswith("\n---\n" + cells)


def test_lines_of_a_terminal_become_cells():
    block = "```sh run\npython -m jax_moye draw '(2,2)'\npython -m jax_moye draw --help\n```\n"
    text = cells_of_pages.as_notebook(f"# T\n\n{block}\nend\n")
    shown, code = re.search(
        r"^```sh\n(.*?)^```\n\n```\{code-cell\} python\n:tags: \[remove-input\]\n(.*?)^```\n", text, re.M | re.S
    ).groups()
    assert shown == block.removeprefix("```sh run\n").removesuffix("```\n")  # as one pastes it
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    assert "  0 | 0 2" in out.getvalue()
    assert "usage: " in out.getvalue()
    with pytest.raises(AssertionError, match="no MMA instruction"):
        exec(code.replace("'(2,2)'", "'mma', 'nothing'"), {})
    with pytest.raises(ValueError, match="not 'ls'"):
        cells_of_pages.as_notebook("```sh run\nls\n```\n")


def test_the_tables_of_names_are_current():
    assert load(ROOT / "tools/names_tables.py").main(["--check"]) == 0


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


def test_what_public_functions_return_is_in_the_reference():
    named, returned = documented("jax_moye.md"), set()
    for name in jax_moye.__all__:
        function = getattr(jax_moye, name)
        if callable(function) and not isinstance(function, type):
            hint = typing.get_type_hints(inspect.unwrap(function)).get("return")
            for cls in (hint, *typing.get_args(hint)):
                if getattr(cls, "__module__", "").startswith("jax_moye"):
                    assert getattr(jax_moye, cls.__name__) is cls  # a user can name it
                    returned.add(f"jax_moye.{cls.__name__}")
    expected = ("ConfigTable", "Explanation", "GemmConfig", "Interception", "OptionsBlock", "Report", "Tuning")
    assert returned == {f"jax_moye.{name}" for name in expected}
    assert returned <= named
    assert not [name for name in named if "._" in name]


def test_the_reference_names_each_thing_once():
    text = "\n".join((DOCS / "api" / name).read_text() for name in ("jax_moye.md", "layout.md", "layout_modules.md"))
    names = re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, re.MULTILINE)
    assert len(names) == len(set(names))


def run_page(name, checks):
    """The page's code in one process, and then the checks."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)
    code = "\n".join([*blocks, *checks])
    environ = dict(os.environ, JAX_PLATFORMS="cpu")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environ, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_code_of_optimize_runs():
    plain = "jax.value_and_grad(loss)(parameters, jnp.ones((4, 8)))"
    run_page("optimize.md", [f"assert jax.tree.all(jax.tree.map(jnp.allclose, (value, gradients), {plain}))"])


def test_the_code_of_drop_in_runs():
    # Not while the site is built: it would need Flax and Equinox.
    for module in ("flax", "equinox", "flatbuffers"):
        pytest.importorskip(module)
    checks = (
        "assert linear(x).shape == einsum(x[None])[0].shape == (16, 128)",
        "assert attention(x, decode=False).shape == (16, 64)",
        "assert dense.init_with_output(jax.random.key(0), x)[0].shape == (16, 128)",
        "assert logits.shape == (16, 10) and isinstance(model.layers[0], jax_moye.contrib.equinox.Linear)",
        "assert taken.calls == 1 and again.tolist() == (x @ w).tolist()",
    )
    run_page("drop_in.md", checks)


# Commands and links ----------------------------------------------------------------------------------------------


def markdown():
    """All pages: those of the root, of the benchmarks and of the site."""
    return [*sorted(ROOT.glob("*.md")), ROOT / "benchmarks/README.md", *sorted(DOCS.rglob("*.md"))]


def test_every_command_line_is_understood(monkeypatch):
    class UnderstoodError(Exception):
        pass

    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser, *arguments):
        parse(parser, *arguments)
        raise UnderstoodError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    commands = {}
    for page in markdown():
        text = re.sub(r"^<!--.*?-->$", "", page.read_text(), flags=re.MULTILINE)
        lines = "\n".join(re.findall(r"^```sh(?: run)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)).splitlines()
        lines += re.findall(r"`(python -m jax_moye [^`]*)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
        for line in lines:
            if (found := re.search(r"python -m jax_moye (.*)", line)) and "..." not in line:
                commands[found[1]] = page.name
    assert len(commands) > 20
    for command, page in commands.items():
        try:
            main(shlex.split(command, comments=True))
        except UnderstoodError:
            continue
        except SystemExit as ended:  # an option or a command that is not there
            if ended.code == 0 and command.endswith("--help"):
                continue
            pytest.fail(f"{page}: {command}")


@pytest.mark.parametrize("page", markdown(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    # In the repository, where Sphinx does not look: links between files, and to headings of pages.
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("https://", "http://")):
            file, _, heading = target.partition("#")
            path = page.parent / file if file else page
            assert path.exists(), target
            if heading:
                titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
                assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, target


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
    "benchmarks/README.md": {"50 ms"},  # how long a contender runs in a round
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


def test_result_files_that_are_named_are_there():
    pattern = r"`(?:benchmarks/results/)?((?:nvidia|sm)_\w+-\d{4}[\w.*-]*)`"
    named = {name for path in prose() for name in re.findall(pattern, path.read_text())}
    assert len(named) > 50
    assert [name for name in named if not any((ROOT / "benchmarks/results").glob(name))] == []


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
        pages.Result("models", report(gpu="I", rows=[row("decode/x", 1.0, [0.9, 1.1], "decode")])),
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
