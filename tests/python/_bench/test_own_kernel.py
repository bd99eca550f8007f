"""`bench --kernel` without its build, which takes a minute: the copy, what CMake makes of it, arguments."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest

from jax_moye import __main__ as cli
from jax_moye._bench import own_kernel
from jax_moye._kernels.config_names import parse_row, rows_of

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROW = "{my_kernel, bf16, f32, {32, 64, 16}, 1, {1, 1}, 4}"
NAME = "my_kernel_bf16_32x64x16_s1_a4"


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "my_kernel.cuh"
    path.write_text("#pragma once\n")
    return path


@pytest.mark.parametrize("row", ["", "{k, bf16}", "{k, bf16, f32, {1, 2}, 1, {1, 1}, 4}", ROW + ",", ROW[:-1]])
def test_what_is_no_row(row):
    with pytest.raises(ValueError, match="--config-row is"):
        own_kernel.own_config(row)


def test_edits():
    config_h = (ROOT / "cuda/gemm/config.h").read_text()
    changed = own_kernel.with_kernel(config_h, "my_kernel")
    enumerators = re.search(r"enum class Kernel \{(.*?)\};", changed, re.DOTALL)[1].replace("\n", " ").split(",")
    names = re.search(r"kKernelNames\[\] = \{(.*?)\};", changed, re.DOTALL)[1].split(",")
    assert [name.strip().strip('"') for name in names] == [word.strip() for word in enumerators if word.strip()]
    assert names[-1].strip() == '"my_kernel"'
    assert own_kernel.with_kernel(changed, "my_kernel") == changed
    assert own_kernel.with_kernel(config_h, "simt_tiled") == config_h

    configs_h = (ROOT / "cuda/gemm/configs.h").read_text()
    changed = own_kernel.with_rows(configs_h, [ROW])
    assert changed.count(f"  {ROW},\n") == 1
    assert len(changed) == len(configs_h) + len(ROW) + 4
    assert own_kernel.with_rows(changed, [ROW]) == changed
    with pytest.raises(ValueError, match="two lists"):
        own_kernel.with_kernel("", "my_kernel")
    with pytest.raises(ValueError, match="the table"):
        own_kernel.with_rows("", [ROW])


def test_the_copy(tmp_path, kernel):
    tree = tmp_path / "tree"
    own_kernel.make_tree(ROOT, tree, kernel, [ROW])
    assert (tree / "cuda/gemm/my_kernel.cuh").read_text() == kernel.read_text()
    assert NAME in {parse_row(row).name for row in rows_of((tree / "cuda/gemm/configs.h").read_text())}
    assert (tree / "jax_moye/_bench/bench.py").read_bytes() == (ROOT / "jax_moye/_bench/bench.py").read_bytes()
    assert not list(tree.rglob("*.so"))
    assert not (tree / "tests").exists()
    before = {path: path.stat().st_mtime_ns for path in tree.rglob("*") if path.is_file()}
    kernel.write_text("#pragma once\n// changed\n")
    own_kernel.make_tree(ROOT, tree, kernel, [ROW])
    changed = {path for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert changed == {tree / "cuda/gemm/my_kernel.cuh"}
    with pytest.raises(ValueError, match="is none"):
        own_kernel.make_tree(tmp_path, tree, kernel, [ROW])


def test_cmake_finds_the_row(tmp_path, kernel):
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("needs cmake and ninja on the path")
    tree = tmp_path / "tree"
    own_kernel.make_tree(ROOT, tree, kernel, [ROW])
    configure, build, install = own_kernel.commands(tree, [NAME], emulator=True)
    done = subprocess.run(configure, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    instances = [path for path in (tree / "build/cc").glob("*.cc")]
    assert [path.stem for path in instances] == [NAME]
    assert "gemm/my_kernel.cuh" in instances[0].read_text()
    assert build[1] == "--build"
    assert install[-1] == str(tree)


def test_the_commands_run_in_order_and_a_failure_is_said(kernel, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(own_kernel.tempfile, "gettempdir", lambda: str(tmp_path))
    ran = []

    def run(command, **options):
        ran.append((command, options))
        failed = "--build" in command and len(ran) < 3
        return subprocess.CompletedProcess(command, int(failed) or (5 if "-P" in command else 0), "what cmake said", "")

    monkeypatch.setattr(own_kernel.subprocess, "run", run)
    options = ["bench", "--kernel", str(kernel), "--config-row", ROW, "--emulator"]
    assert cli.main(options) == 1
    assert "what cmake said" in capsys.readouterr().err
    ran += [None] * 3
    assert cli.main(options) == 5
    command, given = ran[-1]
    assert command[1:4] == ["-P", "-m", "jax_moye._bench.command"]
    tree = tmp_path / f"jax_moye_kernel_{own_kernel.os.getuid()}" / "my_kernel"
    assert given["env"]["PYTHONPATH"].split(":")[0] == str(tree)
    assert given["env"]["JAX_MOYE_COMMIT"].endswith("+my_kernel")


def test_wrong_arguments(kernel, tmp_path, capsys):
    for options, message in [
        (["--kernel", str(kernel)], "needs --config-row"),
        (["--kernel", str(kernel), "--config-row", "{x}"], "--config-row is"),
        (["--kernel", str(kernel), "--config-row", ROW.replace("my_", "your_")], "begins with the name"),
        (
            ["--kernel", str(tmp_path / "my_kernel2.cuh"), "--config-row", ROW.replace("kernel", "kernel2")],
            "No such file",
        ),
    ]:
        assert cli.main(["bench", "--emulator", *options]) == 1
        assert message in capsys.readouterr().err


def test_the_folder_is_private(tmp_path, monkeypatch):
    """Made so, kept by the next run, and refused where somebody else may have planted something in it."""
    folder = tmp_path / "folder"
    for _ in range(2):
        assert own_kernel.private_folder(folder) == folder
        assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)  # nobody else could write to it
    assert own_kernel.private_folder(folder).stat().st_mode & 0o777 == 0o700
    for mode in (0o770, 0o702):
        folder.chmod(mode)
        with pytest.raises(ValueError, match="not a folder that this user alone can write to"):
            own_kernel.private_folder(folder)
    folder.chmod(0o700)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(ValueError, match="not a folder that this user alone can write to"):
            own_kernel.private_folder(tmp_path / name)
    monkeypatch.setattr(own_kernel.os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(ValueError, match="set TMPDIR to another place"):
        own_kernel.private_folder(folder)


def test_nothing_runs_from_a_planted_folder(kernel, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(own_kernel.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(own_kernel.subprocess, "run", lambda *args, **options: pytest.fail("it was run"))
    planted = tmp_path / f"jax_moye_kernel_{own_kernel.os.getuid()}"
    planted.mkdir()
    planted.chmod(0o777)
    assert cli.main(["bench", "--kernel", str(kernel), "--config-row", ROW, "--emulator"]) == 1
    assert "not a folder that this user alone can write to" in capsys.readouterr().err
    assert list(planted.iterdir()) == []
