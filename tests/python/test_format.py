"""Tables and numbers, as text, HTML and JSON."""

import html.parser

from jax_moye._format import html_table, rounded, text_table, us_text

LINES = [["", "config", "us"], ["1*", "sm80_multistage", "7.25"], ["2", "<b>", ""]]


def test_columns_are_aligned_and_lines_end_with_their_text():
    assert text_table(LINES, indent="  ") == [
        "      config           us",
        "  1*  sm80_multistage  7.25",
        "  2   <b>",
    ]


def test_html_has_a_head_and_escapes_cells():
    cells = []

    class Cells(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag in ("th", "td"):
                cells.append([tag, ""])

        def handle_data(self, data):
            cells[-1][1] += data

    Cells().feed(html_table(LINES))
    expected = [("th", cell) for cell in LINES[0]] + [("td", cell) for line in LINES[1:] for cell in line]
    assert [tuple(cell) for cell in cells] == expected


def test_numbers():
    assert list(map(us_text, (None, 0.123, 9.994, 10.0, 999.94, 1000.4))) == [
        "-",
        "0.12",
        "9.99",
        "10.0",
        "999.9",
        "1000",
    ]
    assert rounded(1 / 3) == 0.333333
    assert rounded((2 / 3, 7)) == [0.666667, 7]
    assert rounded("text") == "text"
    assert rounded(None) is None
