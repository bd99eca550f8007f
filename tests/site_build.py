"""Builds the documentation's site for tests."""

import ast
import fcntl
import os
import pathlib
import re
import subprocess
import sys

import child_processes
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def sphinx(docs, out, *arguments):
    """Runs sphinx-build with warnings as errors, where no address outside of this machine answers."""
    for module in ("sphinx", "myst_nb", "furo", "sphinx_copybutton"):
        pytest.importorskip(module)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", out / "trees"]
    environ = child_processes.environment(out / "compiled", ROOT) | {
        "HTTP_PROXY": "http://127.0.0.1:9",  # the discard port: nobody listens
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    return subprocess.run(
        [*command, *arguments, docs, out / "site"], capture_output=True, text=True, env=environ, cwd=out, check=False
    )


def notebooks():
    """The pages whose code runs when the site is built."""
    (patterns,) = re.findall(r"^notebooks = (\[.*?\])$", (DOCS / "conf.py").read_text(), re.MULTILINE | re.DOTALL)
    for pattern in ast.literal_eval(patterns):
        found = sorted(DOCS.glob(f"{pattern}.md"))
        assert found, pattern
        yield from found


def build_once(tmp_path_factory):
    """The folder with the site, built by the first test process that asks: the others wait for it.

    JAX_MOYE_SITE in the environment names a folder to build it in, or one where it has been built before.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    out = pathlib.Path(os.environ.get("JAX_MOYE_SITE") or shared / "whole_site").absolute()
    with out.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "status").exists():
            out.mkdir(exist_ok=True)
            done = sphinx(DOCS, out)
            (out / "messages").write_text(done.stdout + done.stderr)
            (out / "status").write_text(str(done.returncode))
    return out
