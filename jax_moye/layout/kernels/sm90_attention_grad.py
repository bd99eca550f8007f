"""What is known of sm90_attention_grad."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_moye.layout.kernels.attention import (
    ROW_BLOCK,
    AttentionLayouts,
    both_mmas,
    box_columns,
    check_order,
    rows_array,
    summed_array,
)
from jax_moye.layout.kernels.facts import KernelFacts
from jax_moye.layout.kernels.tma import TmaOperandLayouts

# No speed: it computes no product of two matrices.
FACTS = KernelFacts(
    instruction="wgmma", page=24, idea="its gradients, from weights computed anew", is_of_gradients=True
)


@dataclasses.dataclass(frozen=True)
class AttentionGradLayouts(AttentionLayouts):
    """Either kernel of sm90_attention_grad as layouts.

    Attributes:
      summed: the streamed rows once more, as the operand of which rows are summed over, (HEAD,STEP,SHARES*PIPE).
    """

    summed: TmaOperandLayouts

    @property
    def operands(self) -> tuple[TmaOperandLayouts, ...]:
        """All that wgmma reads in shared memory."""
        return *self.arrays, *([self.summed] if self.summed_by_wgmma else [])

    @property
    def owned(self) -> TmaOperandLayouts:
        """A CTA's own rows, of Q and dO, or of K and V: (OWNED,BOX,PARTS), twice; results of 16 bits lie there then."""
        return self.arrays[0]

    @property
    def streamed(self) -> TmaOperandLayouts:
        """Rows of the others, (STEP,BOX,PARTS*PIPE), twice."""
        return self.arrays[2]


def describe(config: Any, order: str) -> AttentionGradLayouts:
    """The layouts of a config."""
    check_order(config, order)
    owned, step, head = config.tile
    parts = head // box_columns(config)
    of_cta = rows_array(config, "owned", owned, parts, box_rows=ROW_BLOCK)
    of_step = rows_array(config, "streamed", step, config.stages * parts)
    of_rows = config.consumers * config.stages * 3 * step * 4  # lse, delta and a masked score's weight, f32
    return AttentionGradLayouts(
        config.name,
        config.kernel,
        order,
        config.tile,
        *both_mmas(config),
        (of_cta, of_cta, of_step, of_step),
        other_bytes=of_rows + 8 * (2 * config.stages + 1),  # mbarriers: two of each stage, and one
        consumers=config.consumers,
        stages=config.stages,
        summed=summed_array(config, "summed"),
    )
