"""What is shown in HTML and by rich is what the text says."""

import io

import pytest
from python._inspect.golden import GOLDEN_CASES
from python._inspect.tags import Tags

import jax_moye


@pytest.mark.parametrize("case", ["large", "program", "too_old"])
def test_html_says_what_the_text_says(case, fixed):
    found = GOLDEN_CASES[case]()
    page = Tags()
    page.feed(found._repr_html_())
    assert page.open == []
    assert {"table", "details", "summary", "th", "td"} <= set(page.seen)
    for gemm in found:
        for _, sentence in gemm.facts():
            assert sentence in page.text
        for reason in gemm.by_kernel().values():
            assert reason in page.text


def test_html_is_escaped(fixed):
    found = jax_moye.explain((4, 4), (4, 4), "bfloat16", device="h200")
    sneaky = type(found)(found.device, found.gemms, ("<script>",))
    assert "<script>" not in sneaky._repr_html_()
    assert "->" not in sneaky._repr_html_()  # of mk,kn->mn


def test_rich_prints_the_same_numbers(fixed):
    console = pytest.importorskip("rich.console").Console(width=250, record=True, file=io.StringIO())
    found = GOLDEN_CASES["large"]()
    console.print(found)
    text = console.export_text()
    for cell in (cell for line in found[0].table() for cell in line):
        assert cell in text
