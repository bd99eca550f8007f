"""Files of results are replaced at once."""

from __future__ import annotations

import json

import pytest

from jax_moye._timing import files


def test_written_at_once(tmp_path):
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        files.write_json({"rows": object()}, path)
    assert path.read_text() == "old"
    files.write_json({"rows": []}, path)
    assert json.loads(path.read_text()) == files.read_json(path) == {"rows": []}
    assert list(tmp_path.iterdir()) == [path]


def test_no_link_is_followed(tmp_path, monkeypatch):
    """What is beside the file may be somebody else's: in a folder for everybody, a link of the expected name."""
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "beef")
    (tmp_path / "victim").write_text("mine")
    for name in ("out.json.part", "out.json.beef.part"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        files.write_json({}, tmp_path / "out.json")
    assert (tmp_path / "victim").read_text() == "mine"
    (tmp_path / "out.json.beef.part").unlink()
    files.write_json({}, tmp_path / "out.json")
    assert (tmp_path / "victim").read_text() == "mine"


def test_nothing_is_left_of_what_cannot_be_written(tmp_path):
    (tmp_path / "out.json").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_json({}, tmp_path / "out.json")
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
