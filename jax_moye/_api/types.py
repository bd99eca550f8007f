"""The types that the signatures of the public functions are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.interpret import InterpretParams


class SupportsJaxArray(Protocol):
    """What converts itself to an array, as a parameter of Flax does."""

    def __jax_array__(self) -> jax.Array:
        """The array."""


# What is an array already. jax.typing.ArrayLike, which dot_general and einsum take, has Python's numbers, too.
ArrayOperand = jax.Array | np.ndarray | SupportsJaxArray
DimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]
OutSharding = NamedSharding | PartitionSpec | None
Config = str | GemmConfig | None
Implementation = Literal["moye", "xla"] | None
Interpret = bool | InterpretParams | None
Autotune = Literal["on", "cached", "off"] | None
Activation = Literal["relu", "gelu", "gelu_exact", "silu", "swish"] | Callable[[Any], Any] | None
GateActivation = Activation | Literal["sigmoid"]
