#!/usr/bin/env python3
"""Takes pictures of pages of the built site in a headless Chromium, at the width of a desktop and of a phone.

    python tools/screenshots.py build/docs build/screenshots

It says what does not fit the width, which picture does not load, and what a page's scripts complain of; then its
status is 1. Chromium is Debian's `chromium-headless-shell` or another one that is installed; `pip install playwright`
brings what drives it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import os
import pathlib
import shutil
import sys
import threading
from collections.abc import Iterator
from typing import Any

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PAGES = ("index", "quickstart", "benchmarks", "tutorials/04_swizzles", "playground")
WIDTHS = (1360, 390)  # CSS pixels: a desktop, a phone
HEIGHT = 900

# What a reader cannot see, or has to scroll the whole page sideways for: sentences.
_PROBLEMS = """
async () => {
  const images = [...document.querySelectorAll("img")];
  for (const image of images) image.loading = "eager";
  await Promise.all(images.map((image) => image.decode().catch(() => null)));
  const found = [], width = document.documentElement.clientWidth;
  for (const e of [document.documentElement, document.querySelector(".content")])  // on a phone Furo's content scrolls
    if (e && e.scrollWidth > e.clientWidth) found.push(`the page is ${e.scrollWidth} of ${e.clientWidth} pixels wide`);
  const scrolls = (element) => {
    for (let e = element.parentElement; e && e.tagName !== "ARTICLE"; e = e.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(e).overflowX)) return true;
    return false;
  };
  const parts = ["img", "svg", "pre", "table", "p", "li"].map((name) => `article ${name}`).join();
  for (const e of document.querySelectorAll(parts)) {
    const box = e.getBoundingClientRect();
    const name = `${e.tagName.toLowerCase()} ${e.getAttribute("src") || e.textContent.trim().slice(0, 40)}`;
    if (box.right > width + 1 && !scrolls(e)) found.push(`${name} ends at ${Math.round(box.right)} of ${width} pixels`);
    if (e.tagName === "IMG" && !e.naturalWidth) found.push(`${name} does not load`);
    if (e.tagName === "PRE" && parseFloat(getComputedStyle(e).fontSize) < 11) found.push(`${name}: small letters`);
  }
  return found;
}
"""


def browser() -> str | None:
    """The Chromium to use: that of JAX_MOYE_BROWSER, or one on the path; None where there is none."""
    named = os.environ.get("JAX_MOYE_BROWSER")
    return named or next(filter(None, map(shutil.which, BROWSERS)), None)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: Any) -> None:
        """Says nothing."""


@contextlib.contextmanager
def served(folder: pathlib.Path) -> Iterator[str]:
    """The address at which a folder is served on this machine."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A headless Chromium, as Playwright's Browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


def open_page(started: Any, address: str, width: int) -> tuple[Any, list[str]]:
    """A page at a width, loaded, and the list of what its scripts complain of, which grows while it is open."""
    page = started.new_page(viewport={"width": width, "height": HEIGHT})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(f"a script stopped: {error}"))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    page.goto(address, wait_until="load")
    if page.locator("#play").count():
        page.wait_for_selector('#play:not([data-state="starting"], [data-state="busy"])', timeout=60_000)
    return page, complaints


def problems(page: Any) -> list[str]:
    """What does not fit a page's width, or is not there."""
    return page.evaluate(_PROBLEMS)


def take(site: pathlib.Path, out: pathlib.Path, pages: list[str], widths: list[int]) -> list[str]:
    """Takes the pictures, OUT/NAME-WIDTH.png, and returns what is wrong with the pages."""
    wrong = []
    with served(site) as address, chromium() as started:
        for name in pages:
            for width in widths:
                page, complaints = open_page(started, f"{address}{name}.html", width)
                wrong += [f"{name}, {width} pixels: {problem}" for problem in problems(page) + complaints]
                file = out / f"{name.replace('/', '-')}-{width}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                page.screenshot(path=file, full_page=True)
                page.close()
    return wrong


def main(argv: list[str] | None = None) -> int:
    """Takes pictures; 0, 1 for pages that do not fit, 2 without a browser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=pathlib.Path, help="the built site: the folder with index.html")
    parser.add_argument("out", type=pathlib.Path, help="the folder for the pictures")
    parser.add_argument("--pages", nargs="+", default=list(PAGES), help=f"without .html ({' '.join(PAGES)}); all: all")
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS), help="in CSS pixels (1360 390)")
    arguments = parser.parse_args(argv)
    if browser() is None:
        print(f"screenshots.py: no browser: none of {', '.join(BROWSERS)}, no JAX_MOYE_BROWSER", file=sys.stderr)
        return 2
    pages = arguments.pages
    if pages == ["all"]:
        pages = [
            str(path.relative_to(arguments.site).with_suffix("")) for path in sorted(arguments.site.rglob("*.html"))
        ]
    wrong = take(arguments.site, arguments.out, pages, arguments.widths)
    print(*wrong, sep="\n")
    print(f"{len(pages) * len(arguments.widths)} pictures in {arguments.out}, {len(wrong)} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
