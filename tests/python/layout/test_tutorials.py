"""The tutorials run, and their pictures are what their code draws."""

import importlib.util
import pathlib
import re

import pytest

from jax_moye import ladder

HERE = pathlib.Path(__file__).parents[3] / "docs" / "tutorials"
spec = importlib.util.spec_from_file_location("tutorials_run", HERE / "run.py")
tutorials = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tutorials)


@pytest.mark.parametrize("page", tutorials.pages(), ids=lambda page: page.stem)
def test_page_runs(page):
    _namespace, blocks, pictures = tutorials.run(page)
    assert blocks == page.read_text().count("```python\n")
    assert blocks >= (10 if page.stem < "05" else 5)
    assert pictures == page.read_text().count("![")


def test_every_chapter_is_there_and_links_lead_somewhere():
    stems = [page.stem for page in tutorials.pages()]
    layouts = ["01_tiled_copy_and_mma", "02_pipelining", "03_tensor_cores", "04_swizzles"]
    # Then the ladder: a page for each kernel.
    assert stems == layouts + [f"{i:02}_{kernel}" for i, kernel in enumerate(ladder.RUNGS, 5)]
    shown = set()
    for page in (*tutorials.pages(), HERE / "README.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)  # a lambda's [](int x) is no link
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if not target.startswith("https://"):
                assert (HERE / target).is_file(), f"{page.name}: {target}"
                shown.add(target)
    assert {f"images/{file.name}" for file in (HERE / "images").iterdir()} <= shown


def test_every_rung_shows_its_diff_and_its_counters():
    for page in tutorials.pages()[4:]:
        text, (below, kernel) = page.read_text(), (None, page.stem[3:])
        shown = re.findall(r"^```(diff|text)\n(.*?)^```$", text, re.M | re.S)
        if kernel != "simt_tiled":
            below = ladder.RUNGS[ladder.RUNGS.index(kernel) - 1]
            assert f'"{below}"' in text
            assert any(kind == "diff" and re.search(r"^\+", part, re.M) for kind, part in shown), kernel
            assert any(
                kind == "text" and re.match(r" +before +after\n|no counter differs\n", part) for kind, part in shown
            ), kernel
        assert "![" in text


def test_runner_compares_what_a_page_shows(tmp_path):
    page = tmp_path / "1.md"
    page.write_text("```python\nshown = 'a\\nb'\n```\n\n```diff\na\nold\n```\n\nend\n")
    with pytest.raises(AssertionError, match=r"1\.md, line 6, shows something else(.|\n)*a\nb"):
        tutorials.run(page)
    tutorials.run(page, write_pictures=True)
    assert page.read_text() == "```python\nshown = 'a\\nb'\n```\n\n```diff\na\nb\n```\n\nend\n"
    assert tutorials.run(page)[1:] == (1, 0)


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
