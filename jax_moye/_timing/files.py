"""Files of results: JSON, written at once."""

from __future__ import annotations

import json
import pathlib
from typing import Any


def write_json(value: Any, path: pathlib.Path) -> None:
    """Writes the file at once: whoever stops the run finds the old one or the new one."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def read_json(path: pathlib.Path) -> Any:
    """What a file of results holds."""
    return json.loads(path.read_text(encoding="utf-8"))
