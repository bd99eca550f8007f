"""Folders that only their user can write, and what is put into them."""

from __future__ import annotations

import pathlib

import pytest

from jax_moye._kernels import cache


@pytest.fixture
def home(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(path))
    cache._temporary.cache_clear()
    yield path
    cache._temporary.cache_clear()


def test_a_private_folder(home):
    folder = cache.private_folder("kernels")
    assert folder == home / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache.private_folder("kernels") == folder


@pytest.mark.parametrize("mode", [0o770, 0o750, 0o701, 0o777])
def test_a_folder_that_others_can_open_is_not_used(home, mode):
    planted = home / "kernels"
    planted.mkdir(parents=True)
    planted.chmod(mode)
    folder = cache.private_folder("kernels")
    assert home not in folder.parents
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache.private_folder("kernels") == folder  # one for the process


def test_a_folder_of_another_user_is_not_used(home, monkeypatch):
    cache.private_folder("kernels")
    monkeypatch.setattr(cache.os, "getuid", lambda: 12345)
    assert home not in cache.private_folder("kernels").parents


def test_a_link_is_not_used(home, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    home.mkdir()
    (home / "kernels").symlink_to(elsewhere)
    assert not {home, elsewhere} & {cache.private_folder("kernels"), *cache.private_folder("kernels").parents}


def test_a_folder_below_one_that_everybody_can_write_is_not_used(home):
    cache.private_folder("kernels")
    home.chmod(0o777)
    assert home not in cache.private_folder("kernels").parents
    home.chmod(0o1777)  # sticky, as /tmp: what is in it stays its owner's
    assert cache.private_folder("kernels") == home / "kernels"


def test_where_there_is_no_cache(home, monkeypatch):
    home.write_text("a file")
    first = cache.private_folder("kernels")
    monkeypatch.setattr(cache, "cache_dir", lambda: None)
    assert cache.private_folder("kernels") == first
    assert first.is_dir()
    assert cache.private_folder("others") != first


def test_the_first_of_two_stays(tmp_path):
    made = []
    for text in ("first", "second"):
        folder = tmp_path / text
        folder.mkdir()
        (folder / "file").write_text(text)
        made.append(cache.put(tmp_path, "name", folder))
    assert made[0] == made[1] == pathlib.Path(tmp_path, "name")
    assert (made[0] / "file").read_text() == "first"
