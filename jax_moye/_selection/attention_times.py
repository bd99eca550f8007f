"""What was measured of an attention, alone or with its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jax_moye._kernels.configs import GemmConfig
from jax_moye._selection.attention_key import AttentionKey
from jax_moye._selection.entry import Entry
from jax_moye._selection.measurements import Source, config_digest, entries_of

_TOGETHER = " + "


class AttentionTimes(NamedTuple):
    """What a selection found.

    Attributes:
      configs: of the fastest of ours: of the forward pass, and of the gradients where these are with it. The entry has
        `together` of their names and of their digests.
      source: as in `measurements.Choice`.
      entry: what it is from.
      of: the signature of the program's equations.
    """

    configs: tuple[GemmConfig, ...]
    source: Source
    entry: Entry
    of: str

    @property
    def us(self) -> float:
        """Microseconds of these configs."""
        return self.entry.us[self.entry.config]

    @property
    def xla_us(self) -> float | None:
        """Of what XLA makes of the equations; None where these were not timed."""
        return self.entry.xla_us.get(self.of)

    @property
    def lead(self) -> float | None:
        """As in `Entry`."""
        return self.entry.lead.get(self.of)

    @property
    def is_ours(self) -> bool | None:
        """Whether kernels of ours compute it; None where nobody can say."""
        return self.entry.is_won_by_ours(self.of)


def together(words: Iterable[str]) -> str:
    """What an entry says of configs that compute an attention together.

    Args:
      words: their names, or their digests.
    """
    return _TOGETHER.join(words)


def find_attention(
    key: AttentionKey, of: str, kind: str, table: Sequence[GemmConfig], own: bool
) -> AttentionTimes | None:
    """What was measured of an attention, where `measurements.find` looks for a product; None if nothing was.

    Args:
      key: what is to be computed.
      of: the signature of the program's equations.
      kind: of the GPU, as in `devices.Device`.
      table: the configs that may compute it.
      own: whether what was measured on this machine counts.
    """
    by_name = {config.name: config for config in table}
    for source, entry in entries_of((key, of), kind, own):
        found = [by_name.get(name) for name in entry.config.split(_TOGETHER)]
        configs = tuple(config for config in found if config is not None)
        if len(configs) == len(found) and together(map(config_digest, configs)) == entry.row:
            return AttentionTimes(configs, source, entry, of)
    return None
