"""The grammar of a config's name, e.g. "sm90_cooperative_bf16_128x256x64_s4_c2x1_a16", and of its row in configs.h.

The name is made of the row's fields; what is usual (the accumulator, a cluster of one CTA) is left out. C++
(ffi/registry.cc) and CMake (cmake/JaxMoyeConfigs.cmake) make the same names, in their languages. That of a kernel of
one's own (`jax_moye.kernel`) ends with the version of its source, "_h" and 8 hexadecimal digits.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from jax_moye._kernels.dtypes import DTYPES, USUAL_ACCUMULATOR

ROW = "{kernel, dtype, sums, {m, n, k}, stages, {cluster m, n}, alignment}"
_WORD, _INT = r" *([a-z][a-z0-9_]*) *", r" *([0-9]+) *"
_ROW = re.compile(f"{{{_WORD},{_WORD},{_WORD}, *{{{_INT},{_INT},{_INT}}} *,{_INT}, *{{{_INT},{_INT}}} *,{_INT}}}")
_NAME = re.compile(
    rf"(?P<kernel>\w+?)_(?P<dtype>{'|'.join(DTYPES)})(?:_(?P<accumulator>[a-z]\w*?))?"
    r"_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_s(?P<stages>\d+)(?:_c(?P<cluster_m>\d+)x(?P<cluster_n>\d+))?"
    r"_a(?P<alignment>\d+)(?:_h[0-9a-f]{8})?"
)


class ConfigFields(NamedTuple):
    """What a row of cuda/gemm/configs.h says."""

    kernel: str
    dtype: str
    accumulator: str
    tile: tuple[int, int, int]
    stages: int
    cluster: tuple[int, int]
    alignment: int

    @property
    def name(self) -> str:
        """Of the config."""
        words = [self.kernel, self.dtype]
        words += [self.accumulator] if self.accumulator != USUAL_ACCUMULATOR.get(self.dtype) else []
        words += ["x".join(map(str, self.tile)), f"s{self.stages}"]
        words += ["c" + "x".join(map(str, self.cluster))] if self.cluster != (1, 1) else []
        return "_".join([*words, f"a{self.alignment}"])


def parse_row(text: str) -> ConfigFields:
    """The fields of a row, e.g. of "{simt_direct, f32, f32, {32, 64, 1}, 1, {1, 1}, 4}".

    Raises:
      ValueError: it is no row.
    """
    match = _ROW.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"a row of cuda/gemm/configs.h is {ROW}, not {text!r}")
    kernel, dtype, accumulator = match.groups()[:3]
    m, n, k, stages, cluster_m, cluster_n, alignment = map(int, match.groups()[3:])
    return ConfigFields(kernel, dtype, accumulator, (m, n, k), stages, (cluster_m, cluster_n), alignment)


def parse_name(name: str) -> ConfigFields:
    """The fields that a config's name stands for.

    Raises:
      ValueError: it is no such name.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no name of a config")
    found = match.groupdict()
    tile = int(found["m"]), int(found["n"]), int(found["k"])
    cluster = int(found["cluster_m"] or 1), int(found["cluster_n"] or 1)
    accumulator = found["accumulator"] or USUAL_ACCUMULATOR.get(found["dtype"], "")
    stages, alignment = int(found["stages"]), int(found["alignment"])
    return ConfigFields(found["kernel"], found["dtype"], accumulator, tile, stages, cluster, alignment)


def rows_of(configs_h: str) -> list[str]:
    """The rows of the text of cuda/gemm/configs.h, in their order."""
    return re.findall(r"^ *(\{\w+,.*\}),", configs_h, re.MULTILINE)
