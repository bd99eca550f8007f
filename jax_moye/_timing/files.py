"""Files of results: JSON, written at once."""

from __future__ import annotations

import json
import pathlib
import secrets
from typing import Any


def write_json(value: Any, path: pathlib.Path) -> None:
    """Writes the file at once: whoever stops the run finds the old one or the new one."""
    text = json.dumps(value, indent=1) + "\n"
    # Made now and by us: a file or a link of this name that somebody else has put there is an error.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    with partial.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.close()
            partial.replace(path)
        except BaseException:  # a full disk, an interrupt
            partial.unlink(missing_ok=True)
            raise


def read_json(path: pathlib.Path) -> Any:
    """What a file of results holds."""
    return json.loads(path.read_text(encoding="utf-8"))
