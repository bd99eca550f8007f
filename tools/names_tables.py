#!/usr/bin/env python3
"""Writes the tables of docs/coming_from.md from jax_moye.layout.names, each between its two markers.

With --check nothing is written, and the exit status is 1 if the page is not what would be.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the package of this checkout, installed or not

from jax_moye.layout import names  # noqa: E402

PAGE = ROOT / "docs" / "coming_from.md"


def differences() -> str:
    """The table of what has the same name and does not do the same."""
    lines = ["| of | what | there | here |", "|---|---|---|---|"]
    lines += [f"| {row.of} | {row.what} | {row.theirs} | {row.ours} |" for row in names.DIFFERENCES]
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """The page with its tables as they are now."""
    for marker, table in (("differences", differences()), ("names", names.as_markdown())):
        begin, end = (f"<!-- {marker}: {word} -->\n" for word in ("begin", "end"))
        pattern = f"(?<={re.escape(begin)}).*?(?={re.escape(end)})"
        text, count = re.subn(pattern, lambda _match, table=table: table, text, flags=re.DOTALL)
        assert count == 1, marker
    return text


def main(argv: list[str] | None = None) -> int:
    """Rewrites or checks the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args(argv)
    text = PAGE.read_text()
    if text == written(text):
        return 0
    if arguments.check:
        print(f"{PAGE.name} is not current: run tools/names_tables.py", file=sys.stderr)
        return 1
    PAGE.write_text(written(text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
