"""The tutorials are complete; their code, and what they show of its output, is run by tests/build/test_docs.py."""

import pathlib
import re

from jax_moye._bench import ladder
from jax_moye._kernels.configs import attention_configs, grouped_configs, weights_configs
from jax_moye.layout.kernels import kernel_facts

HERE = pathlib.Path(__file__).parents[3] / "docs" / "tutorials"
PAGES = sorted(HERE.glob("[0-9]*.md"))
GROUPED = {config.kernel for config in grouped_configs()}  # whose products the ladder has not
WEIGHTS = {config.kernel for config in weights_configs()}  # likewise
ATTENTION = {config.kernel for config in attention_configs()}  # likewise
# The kernels beside the ladder, and those that they follow.
BESIDE = {
    **dict.fromkeys(GROUPED, "sm90_pingpong"),
    **dict.fromkeys(WEIGHTS, "sm90_split_k"),
    "sm90_attention": "sm90_pingpong",
    "sm90_attention_grad": "sm90_attention",
    "sm90_multistage": "sm80_multistage",
    "sm90_odd_rows": "sm90_sliced_k",
    "sm90_parts": "sm90_cooperative",
    "sm90_sliced_k": "sm80_multistage",
    "sm90_transposed": "sm90_cooperative",
}
RUNGS = [HERE / f"{kernel_facts(kernel).page:02}_{kernel}.md" for kernel in ladder.RUNGS]


def test_every_chapter_is_there_and_links_lead_somewhere():
    layouts = ["00_layouts", "01_tiled_copy_and_mma", "02_pipelining", "03_tensor_cores", "04_swizzles"]
    # Then the ladder, a page for each kernel, and, before its last ten, what the Hopper kernels stand on.
    rungs = [page.stem for page in RUNGS]
    assert [page.stem for page in PAGES] == [*layouts, *rungs[:-10], "17_tiles_and_mbarriers", *rungs[-10:]]
    assert [int(page.stem[:2]) for page in PAGES] == list(range(len(PAGES)))
    shown = set()
    for page in (*PAGES, HERE / "README.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)  # a lambda's [](int x) is no link
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if not target.startswith("https://"):
                assert (HERE / target).is_file(), f"{page.name}: {target}"
                shown.add(target)
    assert {f"images/{file.name}" for file in (HERE / "images").iterdir()} <= shown


def test_every_page_has_code_and_a_picture():
    for page in PAGES:
        text = page.read_text()
        assert text.count("```python\n") >= (10 if "01" <= page.stem < "05" else 5), page.stem
        assert "![" in text


def test_every_rung_shows_its_diff_and_its_counters():
    for page in RUNGS:
        text, kernel = page.read_text(), page.stem[3:]
        shown = re.findall(r"^```(diff|text)\n(.*?)^```$", text, re.M | re.S)
        if kernel != "simt_tiled":
            below = BESIDE.get(kernel, ladder.RUNGS[ladder.RUNGS.index(kernel) - 1])
            assert f'"{below}"' in text
            assert any(kind == "diff" and re.search(r"^\+", part, re.M) for kind, part in shown), kernel
            assert kernel in GROUPED | WEIGHTS | ATTENTION or any(
                kind == "text" and re.match(r" +before +after\n|no counter differs\n", part) for kind, part in shown
            ), kernel
