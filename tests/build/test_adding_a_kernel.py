"""docs/adding_a_kernel.md, step by step in a copy of the checkout: its files, its edits, its commands, its Python.

One build for the emulator, of one config: about a minute, or half of one where this checkout has a build whose objects
of the emulator itself are still true.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import cxx  # noqa: E402

PAGE = (ROOT / "docs/adding_a_kernel.md").read_text()
KERNEL, CONFIG = "simt_direct", "simt_direct_f32_32x64x1_s1_a4"
EDIT = re.compile(r"<!-- edit: (\S+) -->\n```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"<!-- file: (\S+) -->\n(````?)\w+\n(.*?)^\2$", re.MULTILINE | re.DOTALL)
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "results", "__pycache__", "*.so", "_registers.json")

HERE = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
EXACT = f"""
import jax_moye, numpy as np
rng = np.random.default_rng(0)
a, b = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((70, 33), (33, 66)))
d = jax_moye.matmul(a, b, config={CONFIG!r}, interpret=True)
assert (np.asarray(d) == a @ b).all()
"""
UNDESCRIBED = """
import jax_moye
from jax_moye.layout.errors import InvalidType
from jax_moye.layout.kernels import kernel_layouts
try:
    kernel_layouts(jax_moye.configs()[0])
except InvalidType as error:
    print(error)
"""

# In front of the copy's compiler: what this checkout's build made of the same file stands for what it would make.
LAUNCHER = """
import pathlib, shutil, subprocess, sys
command, objects = sys.argv[2:], pathlib.Path(sys.argv[1])
after = dict(zip(command, command[1:]))
ready = objects / f"{pathlib.Path(after.get('-c', '-')).name}.o"
if "/cuda/moye/emu/" in after.get("-c", "") and ready.is_file():
    shutil.copyfile(ready, after["-o"])
    pathlib.Path(after["-MF"]).write_text(f"{after['-o']}: {after['-c']}\\n")
else:
    sys.exit(subprocess.run(command).returncode)
"""


def section(number):
    """The text of a step."""
    return re.search(rf"^## {number}\. .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[0]


def blocks(text, language):
    """Its blocks of code, but for those of the files that it shows."""
    return re.findall(rf"^```{language}\n(.*?)^```$", FILE.sub("", text), re.MULTILINE | re.DOTALL)


def run(tree, *command, **options):
    """Runs a command in the copy, with the environment that step 1 makes; what it printed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHONPATH"))}
    environ |= {"JAX_PLATFORMS": "cpu", "PATH": f"{tree}/.venv/bin{os.pathsep}{environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree, env=environ, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-8000:]}{done.stderr[-8000:]}"
    return done.stdout


def shell(tree, text):
    """Runs a step's commands."""
    return [run(tree, "bash", "-ec", block) for block in blocks(text, "sh")]


def copy_of_the_checkout(folder):
    """A copy with the page's files and edits in it, nothing compiled."""
    tree = folder / "jax_moye"
    tree.mkdir()
    for path in ROOT.iterdir():
        if path.is_dir() and path.name not in ("build", "dist") and not path.name.startswith("."):
            shutil.copytree(path, tree / path.name, ignore=LEFT_OUT)
        elif path.is_file():
            shutil.copy(path, tree)
    for file, diff in EDIT.findall(PAGE):
        old, new = ("".join(line[1:] for line in diff.splitlines(True) if line[0] in (" ", sign)) for sign in "-+")
        text = (tree / file).read_text()
        assert text.count(old) == 1, f"{file} does not hold what the page changes:\n{old}"
        (tree / file).write_text(text.replace(old, new))
    for file, _fence, text in FILE.findall(PAGE):
        assert not (tree / file).exists(), file
        (tree / file).write_text(text)
    (tree / ".venv").symlink_to(sys.prefix)
    return tree


def take_objects(folder, tree, monkeypatch):
    """Lets the copy's build take the emulator's objects of this checkout's build, if they are of the copy's sources."""
    for path in (ROOT / "cuda/moye").rglob("*"):
        if path.is_file():
            assert (tree / path.relative_to(ROOT)).read_bytes() == path.read_bytes()  # the page changes nothing there
    objects = folder / "objects"
    objects.mkdir()
    for source in (ROOT / "cuda/moye/emu").glob("*.cc"):
        if built := cxx.built_object(source):
            (objects / built.name).symlink_to(built)
    (folder / "launcher.py").write_text(LAUNCHER)
    monkeypatch.setenv("CMAKE_CXX_COMPILER_LAUNCHER", f"{sys.executable};{folder / 'launcher.py'};{objects}")


def python(tree, code):
    return run(tree, sys.executable, "-W", "error", "-c", code)


def test_all_edits_and_files_of_the_page_are_found():
    # What the walk would miss: blocks that its patterns do not find.
    edits = ["cuda/gemm/config.h"] * 2 + ["cuda/gemm/configs.h", "docs/tutorials/README.md"]
    assert [file for file, _ in EDIT.findall(PAGE)] == edits
    files = [f"cuda/gemm/{KERNEL}.cuh", f"jax_moye/layout/kernels/{KERNEL}.py", f"docs/tutorials/28_{KERNEL}.md"]
    assert [file for file, _, _ in FILE.findall(PAGE)] == files
    assert not list((ROOT / "docs/tutorials").glob("28_*"))  # the number of the new page is free
    assert PAGE.count("```diff") + PAGE.count("<!-- file:") == PAGE.count("<!-- ") == len(edits) + len(files)


@pytest.mark.skipif(
    not all(shutil.which(tool, path=HERE) for tool in ("cmake", "ninja")), reason="needs cmake and ninja"
)
@pytest.mark.timeout(900)
def test_the_page_step_by_step(tmp_path, monkeypatch):
    """In one test, because all of it needs the build."""
    tree = copy_of_the_checkout(tmp_path)  # steps 1 to 5
    take_objects(tmp_path, tree, monkeypatch)

    # 6. The build has this one config.
    (built,) = shell(tree, section(6))
    table = built[built.index("name  ") :].splitlines()
    assert [line.split()[0] for line in table[1:]] == [CONFIG]

    # 7. Exact products of any size, order, padding and batch, with the race checker; layouts against counters.
    (printed,) = shell(tree, section(7))
    assert int(re.search(r"(\d+) passed", printed)[1]) > 30

    # 8. It computes, explain ranks it, kernel_layouts describes it.
    (code,) = blocks(section(8), "python")
    ranked, loads = python(tree, code).splitlines()
    assert ranked.split()[0] == CONFIG
    assert float(ranked.split()[1]) > 0
    assert re.match(r"b, UniversalCopy<float>: \d+ instructions, \d+ sectors", loads)
    python(tree, EXACT)

    # 9. The ladder shows it, its page runs, and its files are what the repository expects.
    (printed,) = shell(tree, section(9))
    assert re.search(rf"^{KERNEL} .*^28[.] {KERNEL}: no shared memory$", printed, re.MULTILINE | re.DOTALL)
    page = (tree / f"docs/tutorials/28_{KERNEL}.md").read_text()
    python(tree, "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)))
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "tests/python/layout/test_kernels.py"]
    assert "2 passed" in run(tree, *command, "-k", f"says_all and {KERNEL} or every_kernel_has_a_file")

    # What step 5 says of a kernel without that file.
    (tree / f"jax_moye/layout/kernels/{KERNEL}.py").unlink()
    python(tree, EXACT)
    assert f"write jax_moye/layout/kernels/{KERNEL}.py" in python(tree, UNDESCRIBED)
    (printed,) = shell(tree, section(9))
    assert f"{KERNEL} is not on the ladder: write jax_moye/layout/kernels/{KERNEL}.py" in printed
