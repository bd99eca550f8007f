"""The built site: no warning, links to downloads, JAX's documentation and the source; its pages in a browser."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import urllib.parse

import pytest
from site_build import DOCS, ROOT, build_once, notebooks

from jax_moye.layout import names

nbformat = pytest.importorskip("nbformat")  # MyST-NB brings it

pytestmark = pytest.mark.timeout(900)  # the first of these tests builds the site


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


references = load(DOCS / "references.py")
answers = load(DOCS / "playground/answers.py")
playground = load(ROOT / "tools/playground.py")
screenshots = load(ROOT / "tools/screenshots.py")


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
        assert len(cells) == len(re.findall(r"^```(?:python|sh run)$", page.read_text(), re.MULTILINE)) > 0
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
        blocks = re.findall(r"^```(python|sh run)\n(.*?)^```\n", page.read_text(), re.MULTILINE | re.DOTALL)
        assert code == [
            re.sub("^", "!" if kind == "sh run" else "", block[:-1], flags=re.M) + "\n" for kind, block in blocks
        ]
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
    page = (
        "# `jax.jit` of `jax_moye.matmul`\n\n`jnp.dot`, [`jax.jit`](a.md), `jax.jit(f)`\n\n```python\n`jax.jit`\n```\n"
    )
    linked = page.replace("`jnp.dot`", "{py:obj}`jnp.dot <jax.numpy.dot>`")
    assert references.link(page) == linked
    assert references.link_docstring("see `jax.jit`") == "see :py:obj:`jax.jit <jax.jit>`"


def test_the_reference_leads_to_the_source_and_pages_to_the_reference(site):
    reference = (site / "api/jax_moye.html").read_text()
    (source,) = set(re.findall(r'href="\.\./(_modules/[^"#]+)#matmul"', reference))
    assert "def </span><span" not in source
    assert "Returns" in (site / source).read_text()
    assert 'href="api/jax_moye.html#jax_moye.matmul"' in (site / "quickstart.html").read_text()


def test_names_of_moye_and_cute_lead_to_the_reference(site):
    page = (site / "coming_from.html").read_text()
    rows = re.findall(r'<tr class="row-[^"]*">\s*(.*?)</tr>', page.split('id="all-names"')[1], re.DOTALL)
    cells = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in rows[1:]]
    assert [len(row) for row in cells] == [5] * len(names.NAMES)
    linked = {target for row in cells for target in re.findall(r'href="api/layout\w*\.html#(jax_moye[\w.]+)"', row[2])}
    for name in ("jax_moye.layout.copy", "jax_moye.layout.local_tile", "jax_moye.layout.Tensor.recast"):
        assert name in linked
    for row, given in zip(names.NAMES, cells, strict=True):
        assert re.findall(r'<span class="pre">(.*?)</span>', given[2]) == row.python.split()


# In a browser -----------------------------------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(screenshots.browser() is None, reason=f"none of {', '.join(screenshots.BROWSERS)}")


@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium."""
    with screenshots.chromium() as started:
        yield started


@pytest.fixture(scope="module")
def complete(site, tmp_path_factory):
    """A copy of the site with all that the playground runs: other processes may test the site at the same time."""
    folder = tmp_path_factory.mktemp("complete") / "site"
    shutil.copytree(site, folder)
    assert playground.main([str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def address(complete):
    """Where the complete site is served."""
    with screenshots.served(complete) as address:
        yield address


@needs_browser
def test_the_playground_says_what_is_missing(chromium, site, tmp_path):
    generated = shutil.ignore_patterns(*playground.FILES, "layout.zip")
    shutil.copytree(site / "_static", tmp_path / "_static", ignore=generated)
    shutil.copy(site / "playground.html", tmp_path)
    with screenshots.served(tmp_path) as address:
        page, _complaints = screenshots.open_page(chromium, f"{address}playground.html", 1360)
        assert page.locator("#play .status").inner_text().startswith("This copy of the site has no Pyodide")
        page.close()


DONE = '#play:not([data-state="starting"], [data-state="busy"])'


def shown(page):
    """What the playground shows, as answers.answer gives it."""
    page.wait_for_selector(DONE)
    state = page.locator("#play").get_attribute("data-state")
    if state == "error":
        return {"error": page.locator("#play .status").inner_text()}
    assert state == "done"
    saved = page.evaluate("async () => (await fetch(document.querySelector('#play .save').href)).text()")
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#play .costs tbody tr").all()]
    facts = page.locator("#play .facts li").all_inner_texts()
    return {"svg": saved, "facts": facts, "costs": [tuple(row) for row in rows]}


def typed(page):
    """The kind and the fields of the form that is shown."""
    form = page.locator("#play form:visible")
    fields = form.evaluate("(form) => Object.fromEntries(new FormData(form))")
    return form.get_attribute("data-kind"), fields, page.locator("#play .picture").evaluate("(e) => e.clientWidth")


@needs_browser
def test_the_playground_shows_what_the_library_answers(chromium, address):
    page, complaints = screenshots.open_page(chromium, f"{address}playground.html", 1360)
    asked = 0
    for tab in page.get_by_role("tab").all():
        tab.click()
        kind, fields, width = typed(page)
        assert kind == tab.get_attribute("data-kind")
        assert shown(page) == answers.answer(kind, fields, width), fields
        for example in page.locator("#play form:visible button[data-fields]").all():
            example.click()
            before, (kind, fields, width) = fields, typed(page)
            assert fields == before | json.loads(example.get_attribute("data-fields"))
            assert shown(page) == answers.answer(kind, fields, width), fields
            asked += 1
    assert asked > 10
    assert page.locator("#play .picture svg").is_visible()
    assert page.locator("#mmas option").count() == len(answers.names()["mmas"])
    # By hand: a layout that is none, then one that is; the address keeps it for another page.
    page.get_by_role("tab", name="Layout").click()
    page.get_by_role("textbox", name="Layout", exact=True).fill("(4,8")
    page.keyboard.press("Enter")
    assert shown(page) == answers.answer(*typed(page))
    assert "expected ')'" in page.locator("#play .status").inner_text()
    assert not page.locator("#play .picture svg").count()
    page.get_by_role("textbox", name="Layout", exact=True).fill("(3,32):(32,1)")
    page.keyboard.press("Enter")
    assert shown(page) == answers.answer(*typed(page))
    assert "layout=(3,32):(32,1)" in urllib.parse.unquote(page.url)
    other, more = screenshots.open_page(chromium, page.url, 390)
    assert shown(other) == answers.answer(*typed(other))
    assert typed(other)[:2] == typed(page)[:2]
    assert shown(other)["costs"] == shown(page)["costs"]
    # The table goes on below on the phone: nothing scrolls.
    assert shown(other)["svg"].count(">i\\j<") > shown(page)["svg"].count(">i\\j<") == 1
    for opened in (page, other):
        assert opened.evaluate(
            "(() => { const e = document.querySelector('#play .picture'); return e.scrollWidth <= e.clientWidth })()"
        )
    assert other.locator("#play .picture svg").is_visible()
    assert complaints == more == []
    page.close()
    other.close()


@needs_browser
def test_every_page_fits_a_desktop_and_a_phone(chromium, address, complete):
    wrong = {}
    for path in sorted(complete.rglob("*.html")):
        name = path.relative_to(complete)
        if name.parts[0] == "_modules":  # source code alone
            continue
        page, complaints = screenshots.open_page(chromium, f"{address}{name}", screenshots.WIDTHS[0])
        for width in screenshots.WIDTHS:
            page.set_viewport_size({"width": width, "height": screenshots.HEIGHT})
            if found := screenshots.problems(page) + complaints:
                wrong[str(name), width] = found
        page.close()
    assert wrong == {}


@needs_browser
def test_what_does_not_fit_is_found(chromium, tmp_path):
    wide = '<article><img src="absent.png" alt=""><pre style="width: 600px; font-size: 8px">code</pre>{}</article>'
    (tmp_path / "wide.html").write_text("<!doctype html>" + wide.format(""))
    scrolled = '<div style="overflow-x: auto"><table><tr><td style="min-width: 900px">x</td></tr></table></div>'
    (tmp_path / "fits.html").write_text(f"<!doctype html><article>{scrolled}</article>")
    with screenshots.served(tmp_path) as address:
        found = {}
        for name in ("wide", "fits"):
            page, complaints = screenshots.open_page(chromium, f"{address}{name}.html", 390)
            found[name] = " ".join(screenshots.problems(page) + complaints)
            page.close()
    for problem in ("pixels wide", "pre code ends at", "absent.png does not load", "small letters", "404"):
        assert problem in found["wide"]
    assert "ends at" not in found["fits"]
    assert "pixels wide" not in found["fits"]


@needs_browser
def test_the_command_that_takes_pictures(complete, tmp_path):
    command = [sys.executable, ROOT / "tools/screenshots.py", complete, tmp_path]
    command += ["--pages", "index", "tutorials/00_layouts", "--widths", "390"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 pictures" in done.stdout
    for name in ("index", "tutorials-00_layouts"):
        picture = (tmp_path / f"{name}-390.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert int.from_bytes(picture[16:20], "big") == 390
        assert int.from_bytes(picture[20:24], "big") > screenshots.HEIGHT
