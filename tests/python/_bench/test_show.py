"""`show`: every file of benchmarks/results, files that were edited, and two of them."""

from __future__ import annotations

import copy
import json
import pathlib
import random
from xml.etree import ElementTree

import pytest
from python.bench_results import report, three

from jax_moye import __main__ as cli

RESULTS = pathlib.Path(__file__).resolve().parents[3] / "benchmarks/results"
FILES = sorted(RESULTS.iterdir()) if RESULTS.is_dir() else []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_file_of_results_is_shown(file, capsys):
    assert cli.main(["show", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    if file.suffix != ".json":
        return
    found = json.loads(file.read_text())
    text = " ".join(" ".join(lines).split())
    for key, name in (("rows", "id"), ("rungs", "kernel"), ("products", "id")):
        assert all(row.get(name, "") in text for row in found.get(key, []))
    for about in ("about", "how"):
        assert found.get(about, "") in text
    for entry in found.get("entries", []):
        assert f"{entry['config']} {entry['us'][entry['config']]:g}" in text
    if not found.keys() & {"rungs"}:
        assert found["gpu"] in text
    assert cli.main(["show", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_charts(tmp_path, capsys):
    file = tmp_path / "result.json"
    file.write_text(json.dumps(report(*three())))
    assert cli.main(["show", str(file), "--svg", str(tmp_path / "charts")]) == 0
    printed = capsys.readouterr().out
    assert "core, A to E: geometric mean of the ratios 2.000 of 1 rows" in printed
    for name in ("result_ratio.svg", "result_roofline.svg"):
        ElementTree.fromstring((tmp_path / "charts" / name).read_text())
        assert name in printed


def test_what_is_no_result(tmp_path, capsys):
    file = tmp_path / "result.json"
    texts = [None, "{", '{"shape": [1, 2]}', "[]", "3", "[" * 100_000, "\udcff"]
    for text in texts:
        if text is not None:
            file.write_text(text, errors="surrogateescape")
        assert cli.main(["show", str(file)]) == 1
    assert cli.main(["show", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("is no file of results") == len(texts) + 1 == len(said.err.splitlines())


def test_what_is_wrong_is_said_in_words(tmp_path, capsys):
    file = tmp_path / "result.json"
    for text, words in [
        (None, "no such file or directory"),
        ("# a page\n", "it is no JSON (Expecting value: line 1 column 1 (char 0))"),
        ('{"rows": [{"id": "A1"}]}', "it has no field "),
    ]:
        if text is not None:
            file.write_text(text)
        assert cli.main(["show", str(file)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"jax_moye show: {file} is no file of results: {words}")
        assert "Error(" not in error


def places(value, path=()):
    """The path of every value in JSON."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def edited(value, path, new):
    """The same JSON with another value at a path; None: without it."""
    value = copy.deepcopy(value)
    at = value
    for key in path[:-1]:
        at = at[key]
    if new is None:
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return value


@pytest.mark.parametrize("file", [file for file in FILES if file.suffix == ".json"], ids=lambda file: file.name)
def test_an_edited_file_has_no_traceback_and_no_escapes(file, tmp_path, capsys):
    found, rng = json.loads(file.read_text()), random.Random(file.name)
    for key, value in found.items():  # the first few of each list are as good as all
        if isinstance(value, list):
            found[key] = value[:3]
    wrong = (None, 0, -1, "\x1b[31mred\x1b[0m", {}, [], [3], {"x": 1}, 1e400, True)
    everywhere = list(places(found))[1:]
    path, whole = tmp_path / "edited.json", tmp_path / "whole.json"
    whole.write_text(json.dumps(found))
    for place in rng.sample(everywhere, min(60, len(everywhere))):
        path.write_text(json.dumps(edited(found, place, rng.choice(wrong))))
        for arguments in ([], [str(whole)]):
            assert cli.main(["show", str(path), *arguments]) in (0, 1)
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "[31mred" in json.dumps(wrong)


def test_escapes_are_spelled_out(tmp_path, capsys):
    rows = three()
    rows[0]["id"] = "A1\x1b]0;title\x07\u202e"
    file = tmp_path / "result.json"
    file.write_text(json.dumps(report(*rows)))
    assert cli.main(["show", str(file)]) == 0
    out = capsys.readouterr().out
    assert r"A1\x1b]0;title\x07\u202e" in out
    assert out.replace("\n", "").isprintable()
    text = tmp_path / "notes.txt"
    text.write_text("a\x1b[2Jb\n")
    assert cli.main(["show", str(text)]) == 0
    assert capsys.readouterr().out == "a\\x1b[2Jb\n"


def test_two_files(tmp_path, capsys):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps(report(*three())))
    rows = three()
    rows[0] |= {"ratio": 4.0, "ratio_ci": [3.9, 4.1]}
    second.write_text(json.dumps(report(*rows)))
    assert cli.main(["show", str(first), str(second)]) == 0
    text = capsys.readouterr().out
    assert "A: first.json: NVIDIA H200" in text
    (line,) = (line for line in text.splitlines() if line.startswith("A1 ") and "[" in line)
    assert line.split()[-6:] == ["2.000", "4.000", "2.000", "[1.950,", "2.050]", "faster"]
    assert "3 products, B is 1.260 times as fast (geometric mean): 2 level, 1 faster" in text
    assert cli.main(["show", str(first), str(second), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [file["file"] for file in found["files"]] == ["first.json", "second.json"]
    of_a1 = found["products"][-1]
    assert (of_a1["faster"], of_a1["verdict"], of_a1["compared"]) == (2.0, "faster", "ratio to xla")
    assert of_a1["interval"] == [1.95, 2.05]


def test_what_cannot_be_compared(tmp_path, capsys):
    file, other = tmp_path / "a.json", tmp_path / "b.json"
    file.write_text(json.dumps(report(*three())))
    other.write_text(json.dumps(report(three()[0] | {"id": "A9"})))
    text = tmp_path / "c.txt"
    text.write_text("text")
    assert cli.main(["show", str(file), str(other)]) == 1
    assert "no product in common" in capsys.readouterr().err
    assert cli.main(["show", str(file), str(text)]) == 1
    assert "c.txt has no times to compare" in capsys.readouterr().err
    assert cli.main(["show", str(file), str(file), "--svg", str(tmp_path)]) == 1
    assert "--svg draws one file" in capsys.readouterr().err
