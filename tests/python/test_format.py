"""Tables and numbers, as text, HTML and JSON."""

import html.parser

from jax_moye._format import filled, fitted_table, html_table, printable, rounded, text_table, us_text, wrapped

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


def test_columns_without_room_follow_below():
    lines = [["name", "a" * 20, "b" * 20, "c" * 20], ["x", "1", "2", "3"], ["longer", "4", "5", ""]]
    assert fitted_table(lines, width=200) == text_table(lines)
    assert fitted_table(lines, width=50) == [
        "name    aaaaaaaaaaaaaaaaaaaa  bbbbbbbbbbbbbbbbbbbb",
        "x       1                     2",
        "longer  4                     5",
        "",
        "name  cccccccccccccccccccc",
        "x     3",  # and nothing of the line that has nothing there
    ]
    assert fitted_table(lines, width=49)[4] == "name    bbbbbbbbbbbbbbbbbbbb"
    assert len(fitted_table(lines, width=5)) == 3 + 1 + 3 + 1 + 2  # a column by itself stays as wide as it is
    assert fitted_table([["alone"], ["x"]], width=50) == ["alone", "x"]
    assert filled([["", "a", "b"], ["", "", "1"], ["", "", ""]]) == [["", "b"], ["", "1"], ["", ""]]


def test_long_texts_are_wrapped():
    assert wrapped("word " * 30, "    ") == [("word " * 20).strip(), "    " + ("word " * 10).strip()]
    assert wrapped("") == [""]
    assert len(wrapped("x" * 150)) == 1
    assert [len(line) for line in wrapped("x" * 150, break_words=True)] == [100, 52]


def test_what_would_steer_a_terminal_is_spelled_out():
    assert printable({"\x1b[1m": ["a\tb", "\u00e9", 1, None]}) == {r"\x1b[1m": [r"a\tb", "\u00e9", 1, None]}
