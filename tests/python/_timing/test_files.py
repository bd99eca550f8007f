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
