"""README's commands and table, .ci/run, and facts that stand in two files."""

import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest

import jax_moye
from jax_moye.__main__ import main
from jax_moye._kernels.config_names import parse_row, rows_of
from tests.build import test_sass_portable, test_sass_sm90

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CONFIGS, CUDA_CONFIGS = "JAX_MOYE_CONFIGS", "JAX_MOYE_CUDA_CONFIGS"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def command(name):
    """The one line of README's command `name`."""
    block = re.search(rf"^<!-- command: {name} -->\n```sh\n(.*?)\n```$", README, re.MULTILINE | re.DOTALL)
    assert block, f"README has no command {name}"
    (line,) = block[1].splitlines()
    return line


def test_the_two_commands():
    for name in ("quickstart", "test"):
        assert command(name).startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert ".venv/bin/python examples/quickstart.py" in command("quickstart")
    assert "'.[test]'" in command("test")
    assert command("test").endswith(".venv/bin/pytest")


@pytest.mark.parametrize("browser", [True, False])
def test_ci_runs_readmes_test_command(tmp_path, browser):
    # Stand-ins record what they are called with, in a folder that holds .ci/run and README alone.
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    (tmp_path / ".ci" / "run").chmod(0o755)
    (tmp_path / "README.md").write_text(README)
    for name in ("bin/python3", "bin/apt-get", ".venv/bin/pip", ".venv/bin/pytest"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{tmp_path}/calls"\n')
        path.chmod(0o755)
    for name in ("dirname", "sed", "sh", "wc"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    for name, output in (("id", "0"), *[("chromium", "")] * browser):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho {output}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environ = {"PATH": str(tmp_path / "bin")}  # nothing else: no browser of this machine, and no apt-get
    run = subprocess.run([tmp_path / ".ci" / "run"], env=environ, capture_output=True, text=True, cwd="/")
    assert run.returncode == 0, run.stderr
    installed = [
        "bin/apt-get update -qq",
        "bin/apt-get install -qq -y --no-install-recommends chromium-headless-shell",
    ]
    assert (tmp_path / "calls").read_text().splitlines() == [
        *([] if browser else installed),
        "bin/python3 -m venv .venv",
        ".venv/bin/pip install .[test]",
        ".venv/bin/pytest ",
    ]
    assert f"+ {command('test')}" in run.stdout


def test_what_ci_compiles_for_cuda():
    """Fewer configs than for the emulator; with the tests that compile no kernel, dtype, alignment or cluster less."""
    text = (ROOT / ".ci" / "run").read_text().replace("\\\n", "")
    emulated, compiled = (re.search(rf'^{name}="(.*)"$', text, re.MULTILINE)[1] for name in (CONFIGS, CUDA_CONFIGS))
    assert max(emulated.count("("), compiled.count("(")) < 32  # of a regular expression of CMake
    table = [parse_row(row) for row in rows_of((ROOT / "cuda/gemm/configs.h").read_text())]
    kept = [row for row in table if re.search(compiled, row.name)]
    tested = [parse_row(row) for _, row, _ in test_sass_sm90.ROWS]
    tested += [parse_row(row) for rows in test_sass_portable.ROWS.values() for row, _ in rows]
    tested += [row for row in table if row.kernel.startswith("sm90_attention")]
    # sm90_parallel_split_k: its first kernel is another row's, and its second, which is tested, has no config.
    rows = [row for row in table if re.search(emulated, row.name) and row.kernel != "sm90_parallel_split_k"]
    # Each of Hopper's has host code of its own.
    assert {row.kernel for row in rows if row.kernel.startswith("sm90_")} <= {row.kernel for row in kept}
    assert {row.kernel for row in rows} <= {row.kernel for row in kept + tested}
    twins = test_sass_sm90.TWINS
    for what in ("dtype", "accumulator", "alignment"):
        covered = {(row.kernel, getattr(row, what)) for row in kept + tested}
        left = {(row.kernel, getattr(row, what)) for row in rows} - covered
        assert {(kernel, twins.get(value, value)) for kernel, value in left} <= covered
    assert {(row.kernel, row.cluster == (1, 1)) for row in rows} <= {
        (row.kernel, row.cluster == (1, 1)) for row in kept + tested
    }


def test_ci_refuses_a_readme_without_the_command(tmp_path):
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((ROOT / ".ci" / "run").read_bytes())
    (tmp_path / "README.md").write_text(README.replace("<!-- command: test -->", ""))
    run = subprocess.run(["sh", tmp_path / ".ci" / "run"], capture_output=True, text=True)
    assert run.returncode == 2
    assert "exactly one line" in run.stderr


def table_tool():
    spec = importlib.util.spec_from_file_location("readme_table", ROOT / "tools/readme_table.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_readmes_table_is_current():
    tool = table_tool()
    if (why := tool.why_not()) is not None:
        pytest.skip(why)
    assert tool.rewritten(README) == README


def test_readmes_table_has_every_row():
    """Kernels, dtypes, tiles and alignments by the rows alone, of any build; the rest is what `kFacts` say."""
    others = ("sm90_grouped", "sm90_weights", "sm90_attention")  # not of jax_moye.configs()
    expected = {}
    for row in map(parse_row, rows_of((ROOT / "cuda/gemm/configs.h").read_text())):
        if not row.kernel.startswith(others) and row.accumulator != "f32_blocks":
            tiles, alignments = expected.setdefault((row.kernel, table_tool()._memory(row.dtype)), (set(), set()))
            tiles.add("x".join(map(str, row.tile)))
            alignments.add(str(row.alignment))
    line = r"^\| `(\w+)` \| ([^|]*) \| [^|]* \| ([^|]*) \| ([^|]*) \|"
    found = {(m[1], m[2]): (set(m[3].split(", ")), set(m[4].split(", "))) for m in re.finditer(line, README, re.M)}
    assert found == expected


def test_a_build_of_some_configs_leaves_readmes_table(monkeypatch, tmp_path, capsys):
    tool = table_tool()
    (tmp_path / "README.md").write_text(README)
    monkeypatch.setattr(tool, "README", tmp_path / "README.md")
    monkeypatch.setattr(tool._moye_cpu, "configs", lambda: [{}] * 3)
    monkeypatch.setattr(sys, "argv", ["readme_table.py"])
    assert tool.main() == 2
    assert "this build has 3 of the " in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text() == README


def test_readmes_example_runs():
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    environ = dict(os.environ, JAX_PLATFORMS="cpu")
    run = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, env=environ, cwd="/")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "(64, 128)"
    assert lines[1] == "64"  # 64 ones times 64 ones


def test_readme_names_what_is_there():
    # Everything in backticks that is a path: all of the map, and what the text above it names.
    section = README.split("## Map")[1]
    paths = re.findall(r"^\|(?: \d \|)? (`.*?) \|", section, re.MULTILINE)
    named = [name for path in paths for name in re.findall(r"`(.*?)`", path)]
    assert len(named) > 25
    for name in named + re.findall(r"`([\w.-]+(?:/[\w.-]*)+)`", README):
        assert (ROOT / name).exists(), name


def test_readme_is_short():
    generated = r"<!-- (\w+): begin -->.*?<!-- \1: end -->"
    assert len(re.sub(generated, "", README, flags=re.DOTALL).splitlines()) <= 200


def map_lines(words):
    """The lines of README's map that say where `words` is."""
    return [line for line in README.split("## Map")[1].splitlines() if words in line]


def test_readmes_map_leads_to_the_file():
    # The five places that a reader of the map alone has to find, each beside what only that place holds.
    (line,) = map_lines("**An instruction's PTX**")
    assert "`cuda/moye/arch/`" in line
    assembly = [path for path in (ROOT / "cuda").rglob("*.*h") if re.search(r"\basm\b", path.read_text())]
    assert {path.parent for path in assembly} == {ROOT / "cuda/moye/arch"}
    (line,) = map_lines("**A config's line**")
    assert "constexpr GemmConfig kGemmConfigs[]" in (ROOT / re.search(r"`(.*?)`", line)[1]).read_text()
    (line,) = map_lines("**A time is measured**")
    engine = [path.read_text() for path in (ROOT / re.search(r"`(.*?)`", line)[1]).glob("*.py")]
    assert any("perf_counter()" in text for text in engine)
    (line,) = map_lines("**A product becomes a kernel**")
    assert "def decide(" in (ROOT / re.search(r"`(.*?)`", line)[1]).read_text()
    (line,) = map_lines("**XLA is preferred**")
    assert "def xla_wins(" in (ROOT / re.search(r"`(.*?)`", line)[1]).read_text()


def test_readmes_picture_is_what_its_command_draws(tmp_path, monkeypatch):
    drawn = shlex.split(command("picture"))
    assert drawn[:4] == ["python", "-m", "jax_moye", "draw"]
    (image,) = [word for word in drawn if word.endswith(".svg")]
    assert f"]({image})" in README
    (tmp_path / image).parent.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(drawn[3:]) == 0
    assert (tmp_path / image).read_text() == (ROOT / image).read_text(), "run README's command anew"


def test_the_installed_version_is_the_modules():
    try:
        installed = metadata.version("jax-moye")
    except metadata.PackageNotFoundError:
        pytest.skip("jax_moye was built in place, not installed by pip")
    assert installed == jax_moye.__version__


def test_the_changelog_knows_the_version():
    assert f"## {jax_moye.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_hooks_and_dev_extra_pin_the_same_tools():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    extra = PROJECT["project"]["optional-dependencies"]["dev"]
    pins = set(re.findall(r"\b([a-z-]+==[\d.]+)", hooks))
    assert {pin.partition("==")[0] for pin in pins} == {"ruff", "clang-format", "mypy", "codespell"}
    assert pins <= set(extra)


def test_disassembler_and_compiler_are_of_one_release():
    wheels = json.loads((ROOT / "build_backend" / "cuda_wheels.json").read_text())
    (toolkit,) = {".".join(pin["version"].split(".")[:2]) for pin in wheels.values()}
    pins = [p for p in PROJECT["project"]["optional-dependencies"]["test"] if p.startswith("nvidia-cuda-")]
    assert len(pins) == 3
    for pin in pins:
        assert f"=={toolkit}." in pin


@pytest.mark.parametrize("workflow", ["test", "gpu", "wheels"])
def test_workflows_are_yaml(workflow):
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((ROOT / ".github" / "workflows" / f"{workflow}.yml").read_text())
    assert found["name"] == workflow
    assert found["jobs"]


def test_actions_are_pinned_by_commit():
    """A tag can be moved to other code; the version behind it is for readers."""
    uses = [
        line.partition("uses:")[2].strip()
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(uses) > 5
    for action in uses:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    assert len({action.partition("@")[0] for action in uses}) == len(set(uses)), "one version of each"


def test_what_the_workflows_install_to_publish_has_one_version():
    text = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    assert (runs := re.findall(r"pipx run (\S+)", text))
    assert all(re.fullmatch(r"[a-z-]+==[\d.]+", run) for run in runs)


def test_tools_of_the_build_have_an_upper_bound():
    tool = PROJECT["tool"]["scikit-build"]
    bounds = [*PROJECT["build-system"]["requires"], tool["cmake"]["version"], tool["ninja"]["version"]]
    assert len(bounds) == 5
    for bound in bounds:
        assert "==" in bound or re.search(r"<\d", bound), bound


def test_workflows_call_the_shared_scripts():
    assert "run: .ci/run" in (ROOT / ".github" / "workflows" / "test.yml").read_text()
    assert "run: scripts/gpu_check.sh" in (ROOT / ".github" / "workflows" / "gpu.yml").read_text()


FORMS = ("idea", "slow_product", "wrong_result")


def test_issue_forms_are_these():
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    assert {path.stem for path in folder.glob("*.yml")} == {*FORMS, "config"}


@pytest.mark.parametrize("form", FORMS)
def test_issue_forms_are_what_github_reads(form):
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml").read_text())
    assert set(found) == {"name", "description", "labels", "body"}
    ids = [field["id"] for field in found["body"]]
    assert len(ids) == len(set(ids))
    assert any(field.get("validations", {}).get("required") for field in found["body"])
    for field in found["body"]:
        assert field["type"] in ("input", "textarea")
        assert set(field["attributes"]) <= {"label", "description", "placeholder", "render"}
        for name in re.findall(r"`(?:python -c \"[^`]*)?(?:print\()?jax_moye\.(\w+)\(", str(field)):
            assert callable(getattr(jax_moye, name)), name


def test_the_citation_is_of_this_version_and_names_nobody():
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(found), "what the format requires"
    assert found["version"] == jax_moye.__version__
    assert found["license"] == PROJECT["project"]["license"]
    assert found["authors"] == PROJECT["project"]["authors"]
    assert found["abstract"] == PROJECT["project"]["description"] + "."


def test_the_security_page_gives_no_address_and_names_what_is_there():
    text = (ROOT / "SECURITY.md").read_text()
    assert not re.findall(r"https?:|\S+@\S+", text)
    for variable in re.findall(r"`(JAX_MOYE_\w+)`", text):
        assert any(variable in path.read_text() for path in (ROOT / "jax_moye").rglob("*.py")), variable
