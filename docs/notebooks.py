r"""Runs the code of pages while the site is built: a Sphinx extension in front of MyST-NB.

A page stays Markdown that any viewer shows. Its `python` blocks are the cells of a notebook, and so are its blocks of
`sh run`: lines of `python -m jax_moye` as one pastes them into a terminal, run in the root of the clone. A picture, or
a block of `text` or `diff`, that directly follows a cell is that cell's output as it was when the page was written:

    ```python
    draw("(2,3)")
    ```

    ![Six cells](images/six.svg)

The build shows it as it stands in the page, and warns where the cell gives something else (an error under -W). The
output of every other cell is added. `sphinx-build -D write_outputs=1 docs build/docs` writes pictures and blocks anew.

Every such page can be downloaded as a Jupyter notebook, with the outputs in their cells: notebooks/NAME.ipynb.
"""

import fnmatch
import json
import logging
import os
import pathlib
import re
import shlex

# No history, and not a line for each page that its process listens on a local port.
_QUIET = "c.HistoryManager.enabled = False\nc.IPKernelApp.log_level = 'ERROR'\n"
_DOWNLOAD = (
    '\n```{{raw}} html\n<p class="download"><a href="{}" download>Download this page as a notebook</a></p>\n```\n'
)
_HEADER = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n"
_COMMAND = "python -m jax_moye "
# What runs lines of a terminal: without their progress, which goes to stderr.
_RUN = """\
import contextlib, io
from jax_moye.__main__ import main
from jax_moye._checkout import clone
for arguments in {arguments}:
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.chdir(clone() or "."):
        try:
            status = main(arguments)
        except SystemExit as ended:  # of --help
            status = ended.code
    assert not status, said.getvalue()
"""
CELL = re.compile(
    r"^```(?P<kind>python|sh run)\n(?P<code>.*?)^```\n"
    r"(?P<shown>\n(?:!\[[^\]]*\]\((?P<picture>[^)]+\.svg)\)\n|```(?:diff|text)\n(?P<text>.*?)^```\n))?",
    re.MULTILINE | re.DOTALL,
)


def as_notebook(text):
    """A page as MyST-NB reads notebooks; what it shows of an output is not shown twice."""

    def cell(match):
        tags = ["remove-output"] if match["shown"] else []
        before, code = "", match["code"]
        if match["kind"] == "sh run":
            tags.append("remove-input")
            before, code = f"```sh\n{code}```\n\n", _RUN.format(arguments=[shlex.split(line) for line in _lines(code)])
        tags = f":tags: [{', '.join(tags)}]\n" if tags else ""
        return f"{before}```{{code-cell}} python\n{tags}{code}```\n{match['shown'] or ''}"

    return _HEADER + CELL.sub(cell, text)


def _lines(code):
    """The arguments of each line of a terminal."""
    for line in code.splitlines():
        if not line.startswith(_COMMAND):
            raise ValueError(f"`sh run` runs lines that begin with {_COMMAND!r}, not {line!r}")
        yield line.removeprefix(_COMMAND)


def with_download(text, name):
    """A page with a link to its notebook below the title."""
    title, newline, rest = text.partition("\n")
    return title + newline + _DOWNLOAD.format("../" * name.count("/") + f"notebooks/{name}.ipynb") + rest


def download(page, notebook):
    """The notebook to download of a page (path) and its executed notebook (JSON): no file beside it is needed.

    What the page shows of an output is left out, because the cell has it. Links to other pages are their text.
    """
    text = page.read_text(encoding="utf-8")
    executed = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    cells, end = [], 0
    for match in CELL.finditer(text):
        cells.append(_markdown(text[end : match.start()], page.parent))
        done = next(executed)
        code = match["code"].removesuffix("\n")
        if match["kind"] == "sh run":  # as Jupyter spells it
            code = "\n".join(f"!{line}" for line in code.splitlines())
        cells.append(
            {
                "cell_type": "code",
                "source": code,
                "execution_count": done["execution_count"],
                "outputs": done["outputs"],
            }
        )
        end = match.end()
    cells.append(_markdown(text[end:], page.parent))
    cells = [{"id": f"cell-{i}", "metadata": {}, **cell} for i, cell in enumerate(filter(None, cells))]
    language = {"kernelspec": notebook["metadata"]["kernelspec"], "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": language, "nbformat": 4, "nbformat_minor": 5}


def _markdown(text, folder):
    def included(match):
        return f"```python\n{(folder / match[1]).read_text(encoding='utf-8')}```"

    text = re.sub(r"^```\{literalinclude\} (\S+)\n(?::.*\n)*```", included, text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)\s]*\)", r"\1", text).strip()
    return {"cell_type": "markdown", "source": text} if text else None


def output(cell):
    """The text that a cell of an executed notebook (JSON) gave, and the pictures that it drew."""
    texts, pictures = [], []
    for part in cell["outputs"]:
        data = part.get("data", {})
        if "image/svg+xml" in data:
            pictures.append("".join(data["image/svg+xml"]))
        else:
            texts += part.get("text", data.get("text/plain", []))
    return "".join(texts), pictures


def compare(page, notebook, write=False):
    """Holds what a page shows against what its cells gave.

    Args:
      page: path of a Markdown file.
      notebook: the executed notebook made of it, as JSON.
      write: bring the page and its pictures up to date.

    Returns:
      (line of the page, what is wrong) for each output that is not the one shown; nothing when they are written.
    """
    text = page.read_text(encoding="utf-8")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    matches = list(CELL.finditer(text))
    if len(cells) != len(matches):
        return [(1, f"the page has {len(matches)} blocks that run, its notebook {len(cells)} cells")]
    wrong, written, end = [], [], 0  # the page with its outputs anew, up to `end` of it
    for match, cell in zip(matches, cells, strict=True):
        if not match["shown"]:
            continue
        line = text.count("\n", 0, match.end("code")) + 3
        given, pictures = output(cell)
        if match["text"] is not None:
            new = given.rstrip("\n") + "\n"
            written += [text[end : match.start("text")], new]
            end = match.end("text")
            if new != match["text"]:
                wrong.append((line, f"the page shows something else than its code gives:\n{new}"))
            continue
        file = page.parent / match["picture"]
        if len(pictures) != 1:
            wrong.append((line, f"the code draws {len(pictures)} pictures for {match['picture']}"))
        elif write:
            file.parent.mkdir(exist_ok=True)
            file.write_text(pictures[0], encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != pictures[0]:
            wrong.append((line, f"{match['picture']} is not what the code draws"))
    if not write:
        return wrong
    page.write_text("".join([*written, text[end:]]), encoding="utf-8")
    return []


def _runs(app, name):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in app.config.notebooks)


def _source_read(app, name, source):
    if _runs(app, name):
        source[0] = as_notebook(with_download(source[0], name))


def _start(app):
    # What the cells' processes inherit: the same outputs on every machine, and no file outside of the build's folders.
    os.environ["JAX_PLATFORMS"] = "cpu"
    own = pathlib.Path(app.doctreedir).parent / "ipython"
    os.environ |= {"IPYTHONDIR": str(own), "JUPYTER_RUNTIME_DIR": str(own / "runtime")}
    profile = own / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    profile.joinpath("ipython_kernel_config.py").write_text(_QUIET, encoding="utf-8")
    logging.getLogger("traitlets").setLevel(logging.WARNING)


def _finished(app, exception):
    if exception is not None:
        return
    from sphinx.util.logging import getLogger  # here: the tests of `compare` need no Sphinx

    for name in sorted(app.env.found_docs):
        if _runs(app, name):
            page = pathlib.Path(app.env.doc2path(name))
            executed = pathlib.Path(app.env.mystnb_config.output_folder, f"{name}.ipynb").read_text(encoding="utf-8")
            executed = json.loads(executed)
            for line, what in compare(page, executed, app.config.write_outputs):
                getLogger(__name__).warning("%s", what, location=(name, line))
            file = pathlib.Path(app.outdir, "notebooks", f"{name}.ipynb")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(download(page, executed), indent=1), encoding="utf-8")


def setup(app):
    """Registers the extension."""
    app.add_config_value("notebooks", [], "env")
    app.add_config_value("write_outputs", False, "")
    app.connect("builder-inited", _start)
    app.connect("source-read", _source_read, priority=900)  # after what rewrites links
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True}
