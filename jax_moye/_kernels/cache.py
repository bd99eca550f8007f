"""The user's cache: where it is, and folders in it whose files are trusted because nobody else can write them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pathlib
import shutil
import stat
import tempfile

VARIABLE = "JAX_MOYE_CACHE_DIR"


def cache_dir() -> str | None:
    """$JAX_MOYE_CACHE_DIR, else $XDG_CACHE_HOME/jax_moye, else ~/.cache/jax_moye; None where there is no home."""
    if given := os.environ.get(VARIABLE):
        return given
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg):  # its specification: others are to be ignored
        return os.path.join(xdg, "jax_moye")
    home = os.path.expanduser("~")
    return os.path.join(home, ".cache", "jax_moye") if os.path.isabs(home) else None


def is_private(folder: pathlib.Path) -> bool:
    """Whether nobody but this user (and root) can write in the folder, or put another one in its place."""
    try:
        own = folder.lstat()
        above = [parent.stat() for parent in folder.parents]
    except OSError:
        return False
    if not stat.S_ISDIR(own.st_mode) or own.st_uid != os.getuid() or own.st_mode & 0o077:
        return False
    # Where everybody can write, and the sticky bit is not set, everybody can rename what is there.
    return not any(parent.st_mode & 0o002 and not parent.st_mode & stat.S_ISVTX for parent in above)


def private_folder(name: str) -> pathlib.Path:
    """A folder of the user's cache with mode 0700, or one for this process alone where the cache cannot have it.

    Args:
      name: of the folder, in `cache_dir()`.
    """
    if (cache := cache_dir()) is not None:
        folder = pathlib.Path(os.path.abspath(cache)) / name
        with contextlib.suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        if is_private(folder) and os.access(folder, os.W_OK):
            return folder
    return _temporary(name)


@functools.cache
def _temporary(name: str) -> pathlib.Path:
    folder = tempfile.mkdtemp(prefix=f"jax_moye_{name}_")  # mode 0700, a name that nobody knew
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return pathlib.Path(folder)


def put(folder: pathlib.Path, name: str, made: pathlib.Path) -> pathlib.Path:
    """Gives a folder that was made inside of `folder` its name, all at once; of two such, the first stays.

    Returns:
      The folder of that name.
    """
    with contextlib.suppress(OSError):  # there is one: of another process that was quicker
        made.rename(folder / name)
    return folder / name
