"""Sphinx' configuration. `sphinx-build -W docs build/docs` builds the site; CONTRIBUTING.md has the command."""

import importlib.util
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))  # notebooks.py, references.py

project = "jax_moye"
author = "The jax_moye authors"
_INIT = (ROOT / "jax_moye" / "__init__.py").read_text()
version = release = re.search(r'^__version__ = "(.*?)"', _INIT, re.MULTILINE)[1]

extensions = [
    "notebooks",
    "references",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

# Pages whose code runs while the site is built. An exception in a cell, and a line on its stderr, is a warning.
notebooks = [
    "quickstart",
    "command_line",
    "epilogues",
    "attention",
    "quantized_weights",
    "precision",
    "adding_a_config",
    "coming_from",
    "tutorials/[0-9]*",
]
nb_execution_mode = "force"
nb_execution_show_tb = True
nb_execution_timeout = 120
nb_output_stderr = "error"

# Docstrings are Google's form with Markdown's single backticks: code, not a cross-reference.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
# Names of types that a signature shows as they are: what they stand for would fill lines.
_ALIASES = ("ArrayLike", "ArrayOperand", "DTypeLike", "DimensionNumbers", "PrecisionLike")
autodoc_type_aliases = {name: name for name in _ALIASES}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
# What a page documents may need what the build's machine has not.
autodoc_mock_imports = [name for name in ("equinox",) if importlib.util.find_spec(name) is None]
maximum_signature_line_length = 90
python_use_unqualified_type_names = True
highlight_language = "python"
intersphinx_timeout = 5  # seconds; then the names of references.py
# What is copied can be pasted: no prompts, and of a session not its outputs.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"jax_moye {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False

# Files beside docs/ that pages name: those that are pages of the site, too, and all others, which are shown as text.
_PAGES = {
    "../README.md": "index.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
    "../benchmarks/README.md": "measuring.md",
    "suite.json": None,
}


def _links(text):
    """The text with links to files that are not in the site as what they name."""

    def replace(match):
        label, target = match[1], match[2]
        if target.startswith("docs/"):  # from a file in the root, included by a page
            return f"[{'' if label == target else label}]({target.removeprefix('docs/')})"  # none: the page's title
        root = f"../{target}" if f"../{target}" in _PAGES else target
        if _PAGES.get(root):
            return f"[{label}]({_PAGES[root]})"
        if target.startswith("../") or target in ("LICENSE",):
            return f"`{label}`"
        return match[0]

    return re.sub(r"\[([^\]\n]+)\]\(((?:\.\./|docs/|[A-Z]+)[\w./-]*)\)", replace, text)


def _source_read(_app, name, source):
    if not name.startswith("tutorials/"):
        source[0] = _links(source[0])


def _include_read(_app, _path, _name, source):
    source[0] = _links(source[0])


def _docstring(_app, _what, _name, _object, _options, lines):
    """Bars are sizes in docstrings, not substitutions, and stars patterns of files; pages become links."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith(">>>"):
            parts = line.split("`")
            parts[::2] = [part.replace("|", "\\|").replace("/*", "/\\*") for part in parts[::2]]
            lines[i] = re.sub(r"(?<!`)docs/(\w+)\.md", r":doc:`/\1`", "`".join(parts))


def _signature(_app, _what, _name, _object, _options, signature, returns):
    """An alias beside None is its name: Sphinx 9 writes `TypeAliasForwardRef('ArrayLike') | None`."""
    return signature and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", signature), returns


def setup(app):
    """Connects what rewrites links and docstrings."""
    app.connect("autodoc-process-docstring", _docstring, priority=900)
    app.connect("autodoc-process-signature", _signature)
    app.connect("source-read", _source_read)
    app.connect("include-read", _include_read)
