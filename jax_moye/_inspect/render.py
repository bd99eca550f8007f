"""How an explanation is shown: sections of facts and tables as plain text, in HTML for notebooks, and by rich."""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jax_moye._format import Table, html_table, text_table


class Section(NamedTuple):
    """What is said of one product.

    Attributes:
      title: the product.
      facts: pairs of a word and a sentence.
      table: of candidates, the columns' names first.
      others: what the reasons are about.
      reasons: by kernel, why it was not taken.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    table: Table
    others: str
    reasons: Mapping[str, str]


class Page(NamedTuple):
    """What is said of a program.

    Attributes:
      title: of all of it.
      summary: a table of the sections and of attentions; None where there is one section, which says it all, or none.
      sections: one for each product.
      notes: at the end.
    """

    title: str
    summary: Table | None
    sections: Sequence[Section]
    notes: Sequence[str] = ()


def section_text(section: Section, tables: bool = True) -> str:
    """A section as plain text, with or without its tables."""
    width = max(len(name) for name, _ in section.facts)
    lines = [section.title, *(f"  {name:{width}}  {sentence}" for name, sentence in section.facts)]
    if tables and section.table[1:]:
        lines += ["", *text_table(section.table, indent="  ")]
    if tables and section.reasons:
        width = max(map(len, section.reasons))
        lines += ["", f"  {section.others}"]
        lines += [f"  {kernel:{width}}  {reason}" for kernel, reason in section.reasons.items()]
    return "\n".join(lines)


def page_text(page: Page, tables: bool) -> str:
    """A page as plain text, with or without its sections' tables."""
    if page.summary is None and not page.sections:
        return "\n".join([page.title, *page.notes])
    if page.summary is None:
        return "\n".join([section_text(page.sections[0], tables), *page.notes])
    lines = [page.title, *text_table(page.summary, indent="  "), *page.notes]
    for i, section in enumerate(page.sections):
        lines += ["", f"[{i}] {section_text(section, tables)}"]
    return "\n".join(lines)


def page_html(page: Page) -> str:
    """A page in HTML: each section opens and closes."""
    parts = []
    if page.summary is not None:
        parts += [f"<p>{html.escape(page.title)}</p>", html_table(page.summary)]
    for i, section in enumerate(page.sections):
        details = [_pairs(section.facts)]
        if section.table[1:]:
            details.append(html_table(section.table))
        if section.reasons:
            details += [f"<p>{section.others}</p>", _pairs(section.reasons.items())]
        label = f"[{i}] " if page.summary is not None else ""
        is_open = " open" if page.summary is None else ""
        title = f"<summary>{label}{html.escape(section.title)}</summary>"
        parts.append(f"<details{is_open}>{title}{''.join(details)}</details>")
    if page.summary is None and not page.sections:
        parts.append(f"<p>{html.escape(page.title)}</p>")
    parts += [f"<p>{html.escape(note)}</p>" for note in page.notes]
    return f"<div>{''.join(parts)}</div>"


def _pairs(pairs: Any) -> str:
    """A table of names and sentences."""
    lines = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(sentence)}</td></tr>" for name, sentence in pairs)
    return f"<table>{''.join(lines)}</table>"


def page_rich(page: Page, tables: bool) -> Iterator[Any]:
    """A page as what rich prints: the same words as `page_text`."""
    rich_tables, rich_texts = (importlib.import_module(f"rich.{name}") for name in ("table", "text"))

    def table(lines: Table, title: str | None = None) -> Any:
        made = rich_tables.Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
        for i, column in enumerate(lines[0]):
            made.add_column(column, overflow="fold", no_wrap=i != 1)
        for line in lines[1:]:
            made.add_row(*map(rich_texts.Text, line), style="bold green" if line[0].endswith("*") else None)
        return made

    if page.summary is not None:
        yield table(page.summary, page.title)
    for i, section in enumerate(page.sections):
        label = f"[{i}] " if page.summary is not None else ""
        yield rich_texts.Text(f"{label}{section.title}", style="bold")
        facts = rich_tables.Table.grid(padding=(0, 2))
        for name, sentence in section.facts:
            facts.add_row(rich_texts.Text(name, style="cyan"), rich_texts.Text(sentence))
        yield facts
        if tables and section.table[1:]:
            yield table(section.table)
        if tables and section.reasons:
            yield table([["", section.others], *([kernel, reason] for kernel, reason in section.reasons.items())])
    for note in page.notes:
        yield rich_texts.Text(note, style="yellow")
