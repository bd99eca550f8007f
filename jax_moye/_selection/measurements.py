"""What was measured to be the fastest: the files that `tune` writes, and what a selection finds in them.

A file has entries, each of one problem on one GPU: microseconds of the configs that were timed, and of XLA. A problem
is a product, or an attention, perhaps with its gradients, which several configs compute together. A file of the user's
cache counts for the GPU, the driver and the table of configs that it was written for. A table of the package counts for
its GPU, and each of its entries as long as the config that it names is described as it was. An entry serves exactly its
problem. A file that cannot be read, or whose checksum is wrong, is ignored. docs/tuning.md describes the form.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Literal, NamedTuple, get_args

import jax.numpy as jnp

from jax_moye._kernels.cache import cache_dir
from jax_moye._kernels.configs import GemmConfig, configs
from jax_moye._selection.capability import why_not
from jax_moye._selection.entry import SUMMED, WRITTEN, Entry, Timed, check, parse_entry
from jax_moye._selection.epilogue import Epilogue
from jax_moye._selection.problem import GemmProblem, parse_spec

FORMAT = "jax_moye tuned 1"
Source = Literal["cache", "table", "measured"]
TABLES = pathlib.Path(__file__).resolve().parents[1] / "tables"  # the package's

_logger = logging.getLogger("jax_moye")
_warned: set[str] = set()


class Choice(NamedTuple):
    """What a selection found.

    Attributes:
      config: the one that was the fastest.
      source: "cache": the user's; "table": the package's; "measured": this process's own, which no file has.
      entry: what it is from.
    """

    config: GemmConfig
    source: Source
    entry: Entry

    @property
    def us(self) -> float:
        """Microseconds of the config."""
        return self.entry.us[self.config.name]


# ------------------------------------------------------------------------------------------------------------- keys


def usual_key(problem: GemmProblem) -> GemmProblem:
    """The problem with its accumulator spelled out: "f32" and None may be the same."""
    return problem if problem.accumulator else dataclasses.replace(problem, accumulator=problem.sums)


def variant(spec: str, epilogue: Epilogue | None, beta: float, split: bool) -> str:
    """What a kernel does beside the product: a file's word for it.

    Args:
      spec: of the product.
      epilogue: of a fused product.
      beta: of a third operand.
      split: 3 x TF32.
    """
    words = []
    if epilogue is not None and not epilogue.is_nothing:
        out_labels = parse_spec(spec).out
        words += [epilogue.timed_as, *(_named(*operand, out_labels) for operand in epilogue.operands)]
        words += ["kept"] * epilogue.keeps
        words += ["halves"] * epilogue.halves  # XLA computes one product then
        words += [SUMMED] * epilogue.is_summed
    elif beta != 0:
        words.append("c")
    return " ".join(words + ["3xtf32"] * split)


def _named(name: str, labels: str, out_labels: str) -> str:
    """An operand's name, and, of one that usually has all dimensions of the result and has not, those that it has."""
    if name not in ("c", "residual") or set(labels) == set(out_labels):
        return name
    return f"{name}[{','.join(str(out_labels.index(label)) for label in labels)}]"


def signature(lhs_dtype: Any, rhs_dtype: Any, out_dtype: Any, precision: Any, written: Sequence[str] = ()) -> str:
    """What XLA's time depends on besides the problem.

    Args:
      lhs_dtype: of the product.
      rhs_dtype: likewise.
      out_dtype: likewise.
      precision: likewise.
      written: the operands that XLA reads in another order than a kernel, in which it would write them itself.
    """
    if precision is None:
        words = "DEFAULT"
    elif isinstance(precision, tuple):
        words = ",".join(dict.fromkeys(level.name for level in precision))
    else:
        words = getattr(precision, "name", None) or repr(precision)
    words = " ".join([*(jnp.dtype(dtype).name for dtype in (lhs_dtype, rhs_dtype, out_dtype)), words])
    return words + (WRITTEN + ", ".join(written) if written else "")


@functools.lru_cache(maxsize=4096)
def config_digest(config: GemmConfig) -> str:
    """Twelve hexadecimal digits that change when anything does that the table says of a config but its registers."""
    described = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.compare}
    return _sha256(described)[:12]


def table_digest(table: Iterable[GemmConfig]) -> str:
    """The same of a table, in any order."""
    return _sha256(sorted(config_digest(config) for config in table))[:12]


@functools.cache
def _digest_of_all() -> str:
    return table_digest(configs())


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@functools.cache
def _nvml() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() == 0:
            return nvml
    return None


@functools.cache
def power_limit() -> int | None:
    """Watts that the first GPU may take: it sets the clock of large products. None where nobody says."""
    nvml, gpu, milliwatts = _nvml(), ctypes.c_void_p(), ctypes.c_uint()
    if nvml is None or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)) != 0:
        return None
    if nvml.nvmlDeviceGetPowerManagementLimit(gpu, ctypes.byref(milliwatts)) != 0:
        return None
    return milliwatts.value // 1000


@functools.cache
def driver_version() -> str | None:
    """Of the GPU's driver, e.g. "580.95.05"; without NVML of the CUDA that it is for; None where there is no driver."""
    version, number = ctypes.create_string_buffer(96), ctypes.c_int()
    nvml = _nvml()
    if nvml is not None and nvml.nvmlSystemGetDriverVersion(version, len(version)) == 0:
        return version.value.decode()
    with contextlib.suppress(OSError):
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value:
            return f"cuda{number.value}"
    return None


# ------------------------------------------------------------------------------------------------------------ places


def slug(name: str) -> str:
    """A GPU's name as part of a file's: "nvidia_h200"."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def cache_file(kind: str) -> str | None:
    """The file of the user's cache for a GPU, its power limit, this driver, this table and this jaxlib.

    None where there is no driver or no home.

    Args:
      kind: what `devices.Device.kind` is.
    """
    driver = driver_version()
    folder = None if driver is None else cache_dir()
    return None if driver is None or folder is None else os.path.join(folder, _file_name(kind, driver))


@functools.cache
def _file_name(kind: str, driver: str) -> str:
    watts = power_limit()
    of_power = "" if watts is None else f"-{watts}w"
    return f"{slug(kind)}{of_power}-{driver}-jaxlib{metadata.version('jaxlib')}-{_digest_of_all()}.json"


def emulator_file() -> str | None:
    """Where `tune --emulator` writes: no selection reads it."""
    folder = cache_dir()
    return None if folder is None else os.path.join(folder, f"emulator-{_digest_of_all()}.json")


# ------------------------------------------------------------------------------------------------------------- files


_Entries = Mapping[tuple[Timed, str], Entry]


class Tables(NamedTuple):
    """A file: what it is about, and its entries by key."""

    head: Mapping[str, Any]
    entries: _Entries


def read(path: str | os.PathLike[str]) -> Tables:
    """What a file says.

    Raises:
      OSError: it cannot be read.
      ValueError: it is no file of `tune`, or not as `tune` wrote it; RecursionError where it is nested without end.
    """
    raw = json.loads(pathlib.Path(path).read_bytes())
    check(isinstance(raw, dict) and raw.get("format") == FORMAT, f"its format is not {FORMAT!r}")
    check(raw.pop("sha256", None) == _sha256(raw), "its sum is not what it says: it is damaged, or edited by hand")
    entries = raw.pop("entries", None)
    check(isinstance(entries, list), "entries is no list")
    parsed = [parse_entry(entry) for entry in entries]
    for name in ("gpu", "driver", "table"):
        check(isinstance(raw.get(name), str), f"{name} is no text")
    check(type(raw.get("emulated")) is bool, "emulated is neither true nor false")
    return Tables(raw, {entry.key: entry for entry in parsed})


def _warn_once(path: str, reason: object) -> None:
    if path not in _warned:
        _warned.add(path)
        _logger.warning("jax_moye: %s is ignored: %s", path, reason)


def _read_or_warn(path: str | None, expected: Mapping[str, Any]) -> _Entries:
    """The entries of a file; none where there is no file, or, said once, where it is not what is expected."""
    if path is None or not os.path.isfile(path):  # no pipe, which would wait
        return {}
    try:
        tables = read(path)
        for name, value in expected.items():
            check(tables.head[name] == value, f"{name} is {tables.head[name]!r}, and {value!r} is wanted")
        return tables.entries
    except Exception as error:  # whatever is in a file: a program must not depend on it
        _warn_once(path, error)
        return {}


def write(path: str | os.PathLike[str], head: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """Adds entries to a file, in place of those about the same; it is replaced at once or not at all.

    Of those stay XLA's times by signatures that the new ones lack.

    Processes that write the same file take turns.

    Args:
      path: it need not exist, nor its folder. What is in it is kept, unless it cannot be read.
      head: what the file is about: gpu, driver, table, emulated, and what else may interest a reader.
      entries: new ones.

    Raises:
      OSError: it cannot be written.
      ValueError: the file is about another GPU.
    """
    path = pathlib.Path(path)
    _make_folder(path)
    with _turn(path):
        _write(path, head, entries)
    for entry in entries:
        _here.pop((head["gpu"], *entry.key), None)
    forget()


def _make_folder(path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "no plain file", str(path))  # a device, which would be replaced, or a folder


def make_ready(path: str | os.PathLike[str]) -> None:
    """Tries whether `write` could write a file, before anything is measured for it. Makes its folder.

    Raises:
      OSError: it could not.
    """
    path = pathlib.Path(path)
    _make_folder(path)
    with _turn(path), tempfile.TemporaryFile(dir=path.parent) as file:
        file.write(bytes(4096))


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raises ValueError where a file that somebody named has something in it that `tune` did not write."""
    path = pathlib.Path(path)
    if path.is_file() and path.stat().st_size:
        try:
            read(path)
        except (RecursionError, ValueError) as error:
            raise ValueError(f"{path} is no file of tune's, and is left as it is: {error}") from None


@contextlib.contextmanager
def _turn(path: pathlib.Path) -> Iterator[None]:
    """Holds the lock of a file, which is a file beside it: the file itself is replaced."""
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: pathlib.Path, head: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    kept: dict[tuple[Timed, str], Entry] = {}
    if path.is_file():
        try:
            before = read(path)
        except Exception as error:  # as where it is looked up
            _warn_once(str(path), error)
        else:
            for name in ("gpu", "emulated"):
                if before.head[name] != head[name]:
                    raise ValueError(f"{path} is a file of {name} {before.head[name]!r}, and this is {head[name]!r}")
            kept = dict(before.entries)
    for entry in entries:
        kept[entry.key] = entry.with_times_of(kept[entry.key]) if entry.key in kept else entry
    body = {"format": FORMAT, **head, "entries": [entry.to_dict() for entry in kept.values()]}
    body = json.loads(json.dumps(body))  # tuples are lists, as who reads it sees them
    lines = [f'"{name}": {json.dumps(value)},' for name, value in body.items() if name != "entries"]
    listed = ",\n".join(json.dumps(entry) for entry in body["entries"])  # a line each: differences can be read
    text = "\n".join(["{", *lines, f'"sha256": "{_sha256(body)}",', '"entries": [', listed, "]", "}", ""])
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".tune-", delete=False) as file:
        name = file.name
        try:
            file.write(text)
            file.close()  # here the disk may be full
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


# ------------------------------------------------------------------------------------------------------------ lookup


Autotune = Literal["on", "cached", "off"]
AUTOTUNE = "JAX_MOYE_AUTOTUNE"

# What `remember` was told, by kind of GPU, problem and variant.
_here: dict[tuple[str, Timed, str], Entry | None] = {}


def autotune_mode(asked: Autotune | None) -> Autotune:
    """What of measurements counts: what the caller asked for, else JAX_MOYE_AUTOTUNE, else "on".

    Raises:
      ValueError: the variable is something else.
    """
    mode = asked or os.environ.get(AUTOTUNE) or "on"
    if mode not in get_args(Autotune):
        raise ValueError(f"{AUTOTUNE} is on, cached or off, not {mode!r}")
    return mode  # type: ignore[return-value]


def remember(kind: str, key: tuple[Timed, str], entry: Entry | None) -> None:
    """Keeps for this process what no file could take, or what another process of the program has found.

    Args:
      kind: of the GPU.
      key: problem and variant.
      entry: what was measured; None: nothing, and what the user's cache says of it does not count.
    """
    _here[kind, *key] = entry
    _find.cache_clear()


def key_digest(key: tuple[str, Timed, str]) -> str:
    """A name for what was measured, the same in all processes.

    Args:
      key: signature, problem and variant.
    """
    signature_, problem, of = key
    return _sha256([signature_, problem.to_dict(), of])


def find(
    problem: GemmProblem,
    of: str,
    kind: str,
    arch: int | None,
    table: Sequence[GemmConfig],
    own: bool = True,
) -> Choice | None:
    """What was measured of a problem: on this machine, else for the package's table; None if nothing was.

    Args:
      problem: what is to be computed.
      of: its variant.
      kind: of the GPU, as in `devices.Device`.
      arch: of the GPU.
      table: the configs that may compute it.
      own: whether what was measured on this machine counts.
    """
    return _find(problem, of, kind, arch, table, cache_file(kind) if own else None, own, TABLES)


@functools.lru_cache(maxsize=4096)
def _find(
    problem: GemmProblem,
    of: str,
    kind: str,
    arch: int | None,
    table: Sequence[GemmConfig],
    cache: str | None,
    own: bool,
    tables: pathlib.Path,
) -> Choice | None:
    for source, entry in _sources((usual_key(problem), of), kind, cache, own, tables):
        config = _by_name(table).get(entry.config)
        if config is not None and config_digest(config) == entry.row and why_not(config, problem, arch) is None:
            return Choice(config, source, entry)
    return None


def _sources(
    key: tuple[Timed, str], kind: str, cache: str | None, own: bool, tables: pathlib.Path
) -> Iterator[tuple[Source, Entry]]:
    """What `entries_of` gives."""
    if own and (kind, *key) in _here:
        if (here := _here[kind, *key]) is not None:
            yield "measured", here
    elif (kept := _of_cache(cache, kind).get(key)) is not None:
        yield "cache", kept
    # Not read where this machine's own entry will do.
    if (of_package := _of_package(tables, kind).get(key)) is not None:
        yield "table", of_package


def entries_of(key: tuple[Timed, str], kind: str, own: bool) -> Iterator[tuple[Source, Entry]]:
    """All that is known of a problem, the entry that counts most first.

    Args:
      key: problem and variant.
      kind: of the GPU, as in `devices.Device`.
      own: whether what was measured on this machine counts.
    """
    return _sources(key, kind, cache_file(kind) if own else None, own, TABLES)


@functools.lru_cache(maxsize=64)
def _of_cache(path: str | None, kind: str) -> _Entries:
    expected = {"gpu": kind, "driver": driver_version(), "table": _digest_of_all(), "emulated": False}
    return _read_or_warn(path, expected)


@functools.lru_cache(maxsize=64)
def _of_package(tables: pathlib.Path, kind: str) -> _Entries:
    return _read_or_warn(str(tables / f"{slug(kind)}.json"), {"gpu": kind, "emulated": False})


@functools.lru_cache(maxsize=64)
def _by_name(table: Sequence[GemmConfig]) -> Mapping[str, GemmConfig]:
    return {config.name: config for config in table}


def forget() -> None:
    """Reads the files anew when they are next asked. Programs that are there stay as they are."""
    for cached in (_find, _of_cache, _of_package):
        cached.cache_clear()


def new_head(kind: str, driver: str, emulated: bool, date: str) -> dict[str, Any]:
    """What a new file says of itself."""
    return {
        "gpu": kind,
        "driver": driver,
        "table": _digest_of_all(),
        "emulated": emulated,
        "jax": metadata.version("jax"),
        "jaxlib": metadata.version("jaxlib"),
        "date": date,
    }
