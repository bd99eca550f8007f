"""The tutorials run, and their pictures are what their code draws."""

import importlib.util
import pathlib
import re

import pytest

HERE = pathlib.Path(__file__).parents[3] / "docs" / "tutorials"
spec = importlib.util.spec_from_file_location("tutorials_run", HERE / "run.py")
tutorials = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tutorials)


@pytest.mark.parametrize("page", tutorials.pages(), ids=lambda page: page.stem)
def test_page_runs(page):
    _namespace, blocks, pictures = tutorials.run(page)
    assert blocks == page.read_text().count("```python\n")
    assert blocks >= 10
    assert pictures == page.read_text().count("![")


def test_every_chapter_is_there_and_links_lead_somewhere():
    stems = [page.stem for page in tutorials.pages()]
    assert stems == ["01_tiled_copy_and_mma", "02_pipelining", "03_tensor_cores", "04_swizzles"]
    shown = set()
    for page in (*tutorials.pages(), HERE / "README.md"):
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            if not target.startswith("https://"):
                assert (HERE / target).is_file(), f"{page.name}: {target}"
                shown.add(target)
    assert {f"images/{file.name}" for file in (HERE / "images").iterdir()} <= shown


def test_runner_finds_what_is_wrong(tmp_path):
    page = tmp_path / "1.md"
    page.write_text("# Title\n\n```python\na = 1\n```\n\ntext\n\n```python\nassert a == 2\n```\n")
    with pytest.raises(AssertionError) as raised:
        tutorials.run(page)
    assert raised.traceback[-1].lineno + 1 == 10  # the line of the page
    page.write_text(
        "```python\nfrom jax_moye.layout.draw import draw\n\npicture = draw('(2,3)')\n```\n\n![six](images/six.svg)\n"
    )
    with pytest.raises(AssertionError, match=r"six\.svg is not what 1\.md draws"):
        tutorials.run(page)
    tutorials.run(page, write_pictures=True)
    assert tutorials.run(page)[1:] == (1, 1)
    (tmp_path / "images" / "six.svg").write_text("old")
    with pytest.raises(AssertionError, match=r"six\.svg is not what 1\.md draws"):
        tutorials.run(page)
