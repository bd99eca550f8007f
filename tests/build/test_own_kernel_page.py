"""docs/own_kernel.md from its first line to its last, with the installed package and a C++ compiler alone."""

import pathlib
import re
import shutil
import subprocess
import sys
from importlib import metadata

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/own_kernel.md").read_text()
STEP = re.compile(
    r"<!-- (?P<change>file|edit): (?P<file>\S+) -->\n```\w+\n(?P<text>.*?)^```$"
    r"|^```python\n(?P<code>.*?)^```$(?:\n\n```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
MARK = "<end of a block>"
TOOLS = ("g++", "as", "ld", "addr2line")  # g++, and the binutils without which it cannot do


def steps():
    """The page as a program, and what each of its blocks prints; None: the page does not say."""
    program, outputs = ["import pathlib"], []
    for step in STEP.finditer(PAGE):
        if step["change"] == "file":
            program.append(f"pathlib.Path({step['file']!r}).write_text({step['text']!r})")
        elif step["change"] == "edit":
            lines = step["text"].splitlines(True)
            old, new = ("".join(line[1:] for line in lines if line[0] in (" ", sign)) for sign in "-+")
            program += [f"text = pathlib.Path({step['file']!r}).read_text()", f"assert text.count({old!r}) == 1"]
            program.append(f"pathlib.Path({step['file']!r}).write_text(text.replace({old!r}, {new!r}))")
        else:
            program += [step["code"], f"print({MARK!r})"]
            outputs.append(step["output"])
    return "\n".join(program), outputs


def test_every_block_of_the_page_is_a_step():
    found = [step["change"] or "python" for step in STEP.finditer(PAGE)]
    assert len(found) == len(re.findall(r"^```(?:python|cpp|diff)$", PAGE, re.MULTILINE))
    assert {"file", "edit", "python"} == set(found)
    assert PAGE.count("```text") == sum(step["output"] is not None for step in STEP.finditer(PAGE))


@pytest.fixture
def bare(tmp_path):
    """What the page's reader has: the package, an empty folder, and on PATH a C++ compiler, no cmake and no nvcc."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(pathlib.Path(shutil.which(tool)).resolve())
    (tmp_path / "home").mkdir()
    return {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path / "home"), "JAX_PLATFORMS": "cpu", "LANG": "C.UTF-8"}


@pytest.mark.timeout(300)
def test_the_page(tmp_path, bare):
    program, outputs = steps()
    try:
        metadata.distribution("jax-moye")
        isolated = ["-I"]
    except metadata.PackageNotFoundError:  # built in place
        bare["PYTHONPATH"], isolated = str(ROOT), ["-P"]
    folder = tmp_path / "work"
    folder.mkdir()
    command = [sys.executable, *isolated, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=bare, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.split(f"{MARK}\n")[:-1]
    assert len(printed) == len(outputs)
    for block, (said, output) in enumerate(zip(printed, outputs, strict=True)):
        if output is not None or "main([" not in program.split(f"print({MARK!r})")[block]:
            assert said == (output or ""), f"block {block} printed\n{said}"
    bench, explained, ladder = printed[-3:]
    assert re.search(
        r"^ +computed by +mine_f32_64x64x8_s1_a4_h[0-9a-f]{8}, named by the caller$", explained, re.MULTILINE
    )
    assert re.search(r"^S1 +1x16x16x16 NN f32 .* ratio ", bench, re.MULTILINE)
    assert re.search(r"^mine +4352 ", ladder, re.MULTILINE)
    assert re.search(r"^mine: mine_f32_64x64x8_s1_a4_h[0-9a-f]{8}$", ladder, re.MULTILINE)
    # Compiled into a folder of the user that nobody else can look into.
    (cache,) = (tmp_path / "home/.cache/jax_moye").iterdir()
    assert cache.stat().st_mode & 0o777 == 0o700
    assert not [path for path in cache.iterdir() if path.name.startswith("tmp")]
