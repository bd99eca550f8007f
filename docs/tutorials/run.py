"""Runs the tutorials: all Python blocks of a page in one namespace, from the top.

    python docs/tutorials/run.py [--write-pictures] [page.md ...]

Pages assert what they show. A picture, `![...](images/name.svg)`, must be the file that the variable `picture` gives
at that place, and a block of ```diff or ```text the text of the variable `shown`; `--write-pictures` writes both anew.
"""

import argparse
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
_PIECE = re.compile(
    r"^```python\n(?P<code>.*?)^```$"
    r"|^```(?:diff|text)\n(?P<shown>.*?)^```$"
    r"|^!\[[^\]]*\]\((?P<picture>[^)]+\.svg)\)$",
    re.M | re.S,
)


def pages():
    """All tutorials, in order."""
    return sorted(HERE.glob("[0-9]*.md"))


def run(page, write_pictures=False):
    """Runs a page.

    Args:
      page: path of a Markdown file.
      write_pictures: write the pictures, and the texts that the page shows, instead of comparing them.

    Returns:
      The namespace of the page, and how many blocks and pictures it has.

    Raises:
      AssertionError: the page shows something else than its code gives, or a picture's file is out of date.
    """
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": page.stem}
    blocks = pictures = 0
    written, end = [], 0  # the page with its texts anew, up to `end` of it
    for piece in _PIECE.finditer(text):
        if piece["code"] is not None:
            blocks += 1
            # Empty lines in front, so that a traceback names the line of the page.
            line = text.count("\n", 0, piece.start("code"))
            exec(compile("\n" * line + piece["code"], str(page), "exec"), namespace)
            continue
        if piece["shown"] is not None:
            shown = namespace["shown"].rstrip("\n") + "\n"
            written += [text[end : piece.start("shown")], shown]
            end = piece.end("shown")
            if not write_pictures and shown != piece["shown"]:
                line = text.count("\n", 0, piece.start("shown")) + 1
                raise AssertionError(
                    f"{page.name}, line {line}, shows something else than its code gives: "
                    f"python docs/tutorials/run.py --write-pictures\n{shown}"
                )
            continue
        pictures += 1
        file, svg = page.parent / piece["picture"], namespace["picture"].svg
        if write_pictures:
            file.parent.mkdir(exist_ok=True)
            file.write_text(svg, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != svg:
            raise AssertionError(f"{file} is not what {page.name} draws: python docs/tutorials/run.py --write-pictures")
    if write_pictures and end:
        page.write_text("".join([*written, text[end:]]), encoding="utf-8")
    return namespace, blocks, pictures


def main(argv=None):
    """Runs the pages named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-pictures", action="store_true")
    parser.add_argument("pages", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args(argv)
    for page in arguments.pages or pages():
        _namespace, blocks, pictures = run(page, arguments.write_pictures)
        print(f"{page.name}: {blocks} blocks, {pictures} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
