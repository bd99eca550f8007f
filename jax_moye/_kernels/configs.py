"""The table of compiled kernels, cuda/gemm/configs.h, as Python sees it."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.util
import json
import pathlib
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from jax_moye.layout.kernels import KernelFacts

from jax_moye._format import fitted_table
from jax_moye._kernels.frozen import FrozenDict

# Beside the compiled modules, which in an editable install are not beside this file.
_MODULE = importlib.util.find_spec("jax_moye._moye_cpu")
_REGISTERS = pathlib.Path((_MODULE and _MODULE.origin) or __file__).with_name("_registers.json")


@dataclasses.dataclass(frozen=True)
class GemmConfig:
    """One compiled kernel: what the table says and what the kernel reports about itself.

    Attributes:
      name: computed from the fields below, of `jax_moye.kernel` also from the kernel's text; what the custom call
        carries and `matmul(config=...)` takes.
      kernel: the file of cuda/gemm it is compiled from.
      dtype: of both operands: bf16, f16, f32, f64, s8 (int8), e4m3 (float8_e4m3fn), e5m2 (float8_e5m2), or one that is
        f32 in memory: tf32 is multiplied as TF32, and bf16x3, bf16x6 and bf16x9 as so many products of the parts of
        bfloat16 into which an element is split. e4m3xe5m2 is a of e4m3 and b of e5m2, e5m2xe4m3 the reverse.
      accumulator: what products are summed in; f32_fast are sums of 8-bit floats that stay in the tensor core, which
        keeps some 14 bits of them; f32_blocks are f32's of blocks of 128 products that are multiplied by scales.
      out_dtypes: that it can write.
      tile: (m, n, k), elements of one CTA's tile.
      stages: slots of the shared-memory pipeline.
      cluster: (m, n), CTAs of one cluster; those of a kernel that splits k, (1, k_parts), share one tile.
      alignment: bytes of one global load; it divides the operands' addresses and strides other than 1.
      orders: of the operands that it takes, first letter a, second b; N is row-major, T is stored transposed.
      any_stride: whether it takes operands with no mode of stride 1.
      threads: per CTA.
      smem_bytes: shared memory per CTA.
      min_arch: 80 for sm_80 and newer.
      max_arch: the newest that runs it: 90 for code of sm_90a, which is sm_90's alone; 0 where there is no limit.
      consumers: warpgroups that multiply what a producer loads; 0 where all warps load and multiply.
      consumer_tile: (m, n), elements of d that one consumer sums at a time: a part of the CTA's tile, or all of it
        where each consumer has a tile of its own; (0, 0) where there are none.
      derives: whether it multiplies sums by an activation's derivative at another array.
      takes_gate: whether it also multiplies by a third array then, and writes both cotangents of a layer with a gate.
      takes_pair: whether it multiplies a with two matrices b, and then the two products element by element.
      scales: whether it multiplies the product's rows and columns by scales.
      grouped: whether it computes products of groups, `ragged_dot`'s, and nothing else.
      weights: whether it multiplies by weights of 8 or 4 bits, `quantized_matmul`'s, and nothing else; dtype is then of
        a and of the weights, e.g. "bf16xs4".
      block_scales: whether it multiplies 8-bit floats that have a scale for every 128 along k, `scaled_matmul`'s, and
        nothing else; its accumulator is f32_blocks.
      attention: whether it computes attention, or, of sm90_attention_grad, the gradients of one, and nothing else.
      registers: per thread by architecture, e.g. {"sm_80": 128}; None when the package was built without nvcc.
    """

    name: str
    kernel: str
    dtype: str
    accumulator: str
    out_dtypes: tuple[str, ...]
    tile: tuple[int, int, int]
    stages: int
    cluster: tuple[int, int]
    alignment: int
    orders: tuple[str, ...]
    any_stride: bool
    threads: int
    smem_bytes: int
    min_arch: int
    max_arch: int = 0
    consumers: int = 0
    consumer_tile: tuple[int, int] = (0, 0)
    # Not in digests: measurements of what rows could do before stay.
    derives: bool = dataclasses.field(default=True, compare=False)
    takes_gate: bool = dataclasses.field(default=False, compare=False)
    takes_pair: bool = dataclasses.field(default=False, compare=False)
    scales: bool = dataclasses.field(default=False, compare=False)
    grouped: bool = False
    weights: bool = dataclasses.field(default=False, compare=False)
    block_scales: bool = dataclasses.field(default=False, compare=False)
    attention: bool = dataclasses.field(default=False, compare=False)
    registers: Mapping[str, int] | None = dataclasses.field(default=None, compare=False)

    def __hash__(self) -> int:
        """Of the name, which the fields make."""
        return hash(self.name)

    @functools.cached_property
    def k_parts(self) -> int:
        """CTAs that share one tile and multiply a part of k each: 1, but of a kernel that splits k."""
        return self.cluster[1] if facts_of(self.kernel).splits_k else 1

    @property
    def cluster_tile(self) -> tuple[int, int]:
        """(m, n), elements of d that the CTAs of a cluster compute."""
        return self.tile[0] * self.cluster[0], self.tile[1] * self.cluster[1] // self.k_parts

    @property
    def archs(self) -> str:
        """The GPUs that run it, in short: "sm_80+", "sm_90"."""
        if self.max_arch == self.min_arch:
            return f"sm_{self.min_arch}"
        return f"sm_{self.min_arch}-{self.max_arch}" if self.max_arch else f"sm_{self.min_arch}+"


@functools.cache
def facts_of(kernel: str) -> KernelFacts:
    """What jax_moye/layout/kernels/<kernel>.py says of a kernel; without such a file nothing but `missing`."""
    from jax_moye.layout.kernels import kernel_facts  # not with `import jax_moye`: the layouts take time to load

    return kernel_facts(kernel)


class ConfigTable(Sequence[GemmConfig]):
    """An immutable sequence of configs; prints as a table."""

    def __init__(self, configs: Iterable[GemmConfig]) -> None:
        """Keeps the configs in their order."""
        self._configs = tuple(configs)
        self._hash = hash(self._configs)  # once: a table is part of the key of every cache of selections

    def __len__(self) -> int:
        """The number of configs."""
        return len(self._configs)

    def __iter__(self) -> Iterator[GemmConfig]:
        """Iterates over the configs."""
        return iter(self._configs)

    @overload
    def __getitem__(self, index: int) -> GemmConfig: ...
    @overload
    def __getitem__(self, index: slice) -> ConfigTable: ...
    def __getitem__(self, index):
        """A config, or the table of a slice."""
        return ConfigTable(self._configs[index]) if isinstance(index, slice) else self._configs[index]

    def __eq__(self, other: object) -> bool:
        """Whether the configs are equal."""
        return isinstance(other, ConfigTable) and self._configs == other._configs

    def __hash__(self) -> int:
        """Of the configs."""
        return self._hash

    def __repr__(self) -> str:
        """The table, one line per config."""
        return _render(self._configs)


# What the name does not say. All of it fits the width of a terminal.
_COLUMNS: Mapping[str, Any] = types.MappingProxyType(
    {
        "name": lambda config: config.name,
        "out": lambda config: " ".join(config.out_dtypes),
        "order": lambda config: (
            "any" if config.any_stride else "all" if len(config.orders) == 4 else " ".join(config.orders)
        ),
        "warp": lambda config: config.threads // 32,
        "smem": lambda config: config.smem_bytes,
        "regs": lambda config: max(config.registers.values()) if config.registers else "-",
        "arch": lambda config: config.archs.removeprefix("sm_"),
    }
)


def _render(configs: Iterable[GemmConfig]) -> str:
    cells = [[str(column(config)) for column in _COLUMNS.values()] for config in configs]
    return "\n".join(fitted_table([list(_COLUMNS), *cells]))


def _read_registers() -> Mapping[str, Mapping[str, int]]:
    """The report of the nvcc build; empty where there was none."""
    try:
        return json.loads(_REGISTERS.read_text())
    except FileNotFoundError:
        return {}


@functools.cache
def configs() -> ConfigTable:
    """The compiled kernels that compute products of two matrices.

    Returns:
      An immutable sequence of `GemmConfig`, in the order of cuda/gemm/configs.h.

    Example:
      >>> import jax_moye
      >>> {config.dtype for config in jax_moye.configs()} >= {"bf16", "f16", "f32", "f64"}
      True
    """
    return ConfigTable(
        config
        for config in all_configs()
        if not (config.grouped or config.weights or config.block_scales or config.attention)
    )


@functools.cache
def grouped_configs() -> ConfigTable:
    """The compiled kernels that compute products of groups."""
    return ConfigTable(config for config in all_configs() if config.grouped)


@functools.cache
def weights_configs() -> ConfigTable:
    """The compiled kernels that multiply by weights of 8 or 4 bits."""
    return ConfigTable(config for config in all_configs() if config.weights)


@functools.cache
def block_scaled_configs() -> ConfigTable:
    """The compiled kernels that multiply 8-bit floats whose blocks along k have scales."""
    return ConfigTable(config for config in all_configs() if config.block_scales)


@functools.cache
def attention_configs() -> ConfigTable:
    """The compiled kernels that compute attention or its gradients."""
    return ConfigTable(config for config in all_configs() if config.attention)


@functools.cache
def all_configs() -> ConfigTable:
    """The compiled kernels, whatever they compute."""
    from jax_moye import _moye_cpu  # here, so that importing jax_moye does not load it

    registers = _read_registers()
    found = []
    for row in _moye_cpu.configs():  # of cuda/gemm/configs.h
        of_row = registers.get(row["name"])
        found.append(GemmConfig(**row, registers=None if of_row is None else FrozenDict(of_row)))
    return ConfigTable(found)


@functools.cache
def _by_name() -> Mapping[str, GemmConfig]:
    return {config.name: config for config in all_configs()}


_own: dict[str, GemmConfig] = {}  # by name: what `jax_moye.kernel` compiled in this process


def add_config(described: Mapping[str, Any], registers: Mapping[str, int]) -> GemmConfig:
    """Makes a config that is in no table known by its name.

    Args:
      described: what the extension module says of it.
      registers: per thread by architecture; empty where it was compiled for the emulator alone.
    """
    config = GemmConfig(**described, registers=FrozenDict(registers) if registers else None)
    _own[config.name] = config
    return config


def is_own(config: GemmConfig) -> bool:
    """Whether a config is in no table, but was compiled by `jax_moye.kernel` in this process."""
    return config.name in _own


def find_config(config: str | GemmConfig) -> GemmConfig:
    """The config of the table that a name or a config stands for, or the one that was compiled by itself.

    Raises:
      ValueError: no config has this name; the message lists close ones.
      TypeError: config is neither a str nor a GemmConfig.
    """
    if not isinstance(config, (str, GemmConfig)):
        raise TypeError(f"config is the name of a compiled kernel or a config of jax_moye.configs(), not {config!r}")
    name = config if isinstance(config, str) else config.name
    known = _by_name()
    if name in known:
        return known[name]
    if name in _own:
        return _own[name]
    if re.search(r"_h[0-9a-f]{8}$", name):
        raise ValueError(f"no compiled kernel is named {name!r}: call jax_moye.kernel for it in this process, too")
    close = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    hint = f"close names are {', '.join(close)}" if close else "jax_moye.configs() lists the names"
    raise ValueError(f"no compiled kernel is named {name!r}; {hint}")
