"""Names in pages and docstrings become links: to JAX's documentation, and to this site's own reference.

Pages stay Markdown that any viewer shows: a name stands there as code. Where JAX's documentation cannot be reached
while the site is built, an inventory of the names below takes the place of its own, so a build needs no network.
"""

import pathlib
import re
import zlib

JAX_DOCS = "https://docs.jax.dev/en/latest/"
# What pages and docstrings name: each has a page of its own there.
JAX_NAMES = (
    "jax.ShapeDtypeStruct",
    "jax.checkpoint",
    "jax.export.deserialize",
    "jax.jit",
    "jax.jvp",
    "jax.lax.dot_general",
    "jax.lax.with_sharding_constraint",
    "jax.nn.gelu",
    "jax.numpy.dot",
    "jax.numpy.einsum",
    "jax.numpy.matmul",
    "jax.numpy.tensordot",
    "jax.shard_map",
    "jax.vjp",
    "jax.vmap",
)
_FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
# Code that is a dotted name alone. Not in a link's text, and not in a heading, whose anchor it would change.
_NAME = re.compile(r"(?<![`\[\w}])`((?:jax|jnp|jax_moye)(?:\.\w+)+)`(?![`\]])")


def write_inventory(path):
    """Writes the names as Sphinx's inventory, version 2, so that intersphinx can read them."""
    lines = [f"{name} py:function 1 _autosummary/{name}.html#$ -\n" for name in JAX_NAMES]
    head = "# Sphinx inventory version 2\n# Project: JAX\n# Version: \n# The remainder is compressed using zlib.\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.encode() + zlib.compress("".join(lines).encode()))


def full_name(name):
    """`jnp.matmul` is `jax.numpy.matmul`."""
    return re.sub(r"^jnp\.", "jax.numpy.", name)


def link(text):
    """A Markdown page with the names in it as references; what has no page to refer to stays code."""
    done, end = [], 0
    for fence in _FENCED.finditer(text):
        done += [_link(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*done, _link(text[end:])])


def _link(text):
    def reference(match):
        return f"{{py:obj}}`{match[1]} <{full_name(match[1])}>`"

    lines = text.split("\n")
    return "\n".join(line if line.startswith("#") else _NAME.sub(reference, line) for line in lines)


def link_names(text):
    """A page with the tables of `jax_moye.layout.names`: their column of Python's names as references."""

    def row(match):
        return match[1] + re.sub(r"`([\w.]+)`", r"{py:obj}`\1 <jax_moye.layout.\1>`", match[2]) + match[3]

    begin, table, end = re.split(r"(?=^<!-- names: (?:begin|end) -->$)", text, flags=re.MULTILINE)
    return begin + re.sub(r"^((?:\|[^|]*){2})(\|[^|]*)((?:\|[^|]*){3})$", row, table, flags=re.MULTILINE) + end


def link_docstring(text):
    """The same of a line of a docstring: reStructuredText, whose code has single backticks here."""
    return _NAME.sub(lambda match: f":py:obj:`{match[1]} <{full_name(match[1])}>`", text)


def _config(app, config):
    fallback = pathlib.Path(app.doctreedir, "jax.inv")
    write_inventory(fallback)
    config.intersphinx_mapping = {"jax": (JAX_DOCS, (None, str(fallback)))}


def _source_read(_app, name, source):
    source[0] = link(source[0])
    if name == "coming_from":
        source[0] = link_names(source[0])


def _include_read(_app, _path, _name, source):
    source[0] = link(source[0])


def _docstring(_app, _what, _name, _object, _options, lines):
    for i, line in enumerate(lines):
        if not line.lstrip().startswith(">>>"):
            lines[i] = link_docstring(line)


def setup(app):
    """Registers the extension."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.intersphinx")
    app.connect("config-inited", _config, priority=100)  # before intersphinx reads the mapping
    app.connect("source-read", _source_read, priority=800)  # before pages become notebooks
    app.connect("include-read", _include_read, priority=800)
    app.connect("autodoc-process-docstring", _docstring, priority=950)
    return {"parallel_read_safe": True}
