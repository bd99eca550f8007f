"""The built site: no warning, every page's links to downloads, to JAX's documentation and to the source."""

import importlib.util
import json
import re

import pytest

from site_build import DOCS, ROOT, build_once, notebooks

nbformat = pytest.importorskip("nbformat")  # MyST-NB brings it

pytestmark = pytest.mark.timeout(600)  # the first of these tests builds the site


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


references = load(DOCS / "references.py")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the build."""
    return build_once(tmp_path_factory)


@pytest.fixture(scope="module")
def site(built):
    """The folder with index.html."""
    return built / "site"


def test_the_site_builds_without_a_warning(built, site):
    # No network answers there, so it builds where there is none.
    assert (built / "status").read_text() == "0", (built / "messages").read_text()
    index = (site / "index.html").read_text()
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix(".html")
        assert (site / name).exists(), name
        assert f'href="{name}"' in index or name.parts[0] == "tutorials" or name.stem == "index", name
    reference = (site / "api/jax_moye.html").read_text()
    assert 'id="jax_moye.matmul"' in reference
    assert "preferred_element_type" in reference
    for page in notebooks():
        notebook = json.loads((built / "jupyter_execute" / page.relative_to(DOCS).with_suffix(".ipynb")).read_text())
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert len(cells) == page.read_text().count("```python\n") > 0
        assert all(cell["execution_count"] for cell in cells), page
    table = r'<div class="output text_html">.*computed by'  # explain's, as a table
    assert re.search(table, (site / "quickstart.html").read_text(), re.DOTALL)


def test_every_page_that_runs_can_be_downloaded(built, site):
    for page in notebooks():
        name = page.relative_to(DOCS).with_suffix("")
        (target,) = re.findall(r'<a href="([^"]+)" download>', (site / f"{name}.html").read_text())
        file = (site / f"{name}.html").parent / target
        notebook = nbformat.reads(file.read_text(), as_version=4)
        nbformat.validate(notebook)
        code = [cell.source + "\n" for cell in notebook.cells if cell.cell_type == "code"]
        assert code == re.findall(r"^```python\n(.*?)^```\n", page.read_text(), re.MULTILINE | re.DOTALL)
        executed = nbformat.reads((built / "jupyter_execute" / f"{name}.ipynb").read_text(), as_version=4)
        outputs = [[cell.outputs for cell in x.cells if cell.cell_type == "code"] for x in (notebook, executed)]
        assert outputs[0] == outputs[1]
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
        assert text.startswith(page.read_text().splitlines()[0])
        # Neither links to files that are not beside it, nor what only the site's builder reads.
        assert set(re.findall(r"\]\((\w+:)?", text)) <= {"https:", "http:"}, page
        assert "```{" not in text, page
    whole = nbformat.reads((site / "notebooks/quickstart.ipynb").read_text(), as_version=4)
    program = (ROOT / "examples/quickstart.py").read_text()
    assert any(f"```python\n{program}```" in cell.source for cell in whole.cells)


def test_pages_have_copy_buttons(site):
    assert "_static/copybutton.js" in (site / "quickstart.html").read_text()
    script = (site / "_static/copybutton.js").read_text()
    assert re.escape(">>> ")[:3] in script, "prompts are not copied"


def test_names_lead_to_jaxs_documentation(site):
    found = {
        (link, anchor)
        for page in site.rglob("*.html")
        for link, anchor in re.findall(rf'href="{references.JAX_DOCS}([^"#]+)#([^"]+)"', page.read_text())
    }
    assert found == {(f"_autosummary/{name}.html", name) for name in references.JAX_NAMES}


@pytest.mark.parametrize("name", references.JAX_NAMES)
def test_names_of_jax_exist(name):
    import jax
    import jax.export

    thing = jax
    for part in name.split(".")[1:]:
        thing = getattr(thing, part)
    assert callable(thing)


def test_names_in_pages_become_references():
    page = "# `jax.jit` of `jax_moye.matmul`\n\n`jnp.dot`, [`jax.jit`](a.md), `jax.jit(f)`\n\n```python\n`jax.jit`\n```\n"
    linked = page.replace("`jnp.dot`", "{py:obj}`jnp.dot <jax.numpy.dot>`")
    assert references.link(page) == linked
    assert references.link_docstring("see `jax.jit`") == "see :py:obj:`jax.jit <jax.jit>`"


def test_the_reference_leads_to_the_source_and_pages_to_the_reference(site):
    reference = (site / "api/jax_moye.html").read_text()
    (source,) = set(re.findall(r'href="\.\./(_modules/[^"#]+)#[^"]*matmul"', reference))
    assert "def </span><span" not in source
    assert "Returns" in (site / source).read_text()
    assert 'href="api/jax_moye.html#jax_moye.matmul"' in (site / "quickstart.html").read_text()
