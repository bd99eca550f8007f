"""What is known of a kernel beside its layouts: the form that the file of each kernel fills in.

A kernel without such a file is built and serves by name. Selection then takes it only where no other kernel can
compute the product, and `kernel_layouts` says which file to write.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from typing import NamedTuple

# Times as many products per microsecond as of 16-bit operands on tensor cores, and as of f32 with FMA.
TENSOR_CORE_DTYPES: Mapping[str, float] = types.MappingProxyType(
    {"tf32": 0.5, "s8": 2, "e4m3": 1.8, "e5m2": 1.8, "e4m3xe5m2": 1.8, "e5m2xe4m3": 1.8, "f64": 0.072}
)
FMA_DTYPES: Mapping[str, float] = types.MappingProxyType({"f64": 0.35})
COPIES_US = 0.0872  # of 1000 copies by cp.async, and about as long where data pass registers

_NONE: Mapping = types.MappingProxyType({})


class Speed(NamedTuple):
    """How fast a kernel is: what `jax_moye._selection.cost` knows of it, as one H200 measured it.

    The defaults are those of a kernel that nobody has measured: it computes what no other kernel can.

    Attributes:
      products_per_us: multiply-adds of one multiprocessor at its highest clock, of 16-bit operands (of f32 where FMAs
        multiply).
      by_dtype: times as many of other operands.
      by_tile: products are slower by this in a tile, (m, n, cluster).
      needs_by_tile: a tile without a factor in `by_tile` is not timed, and computes what no other kernel can.
      copy_us: of 1000 copies of threads that load the operands, each as wide as the alignment. 0.0: TMA loads them, in
        boxes that are filled with zeros beyond an operand.
      k_tile_us: of each k-tile, what does not overlap its products; another CTA of the multiprocessor can use it.
      clips_rows: where there are fewer rows than in a tile, and k is contiguous, TMA is not asked for the others.
      store_us: of 1000 elements of a tile that nothing hides.
      odd_store_us: (sums, us) in ascending order: `store_us` where rows of d are not of 16 bytes, which TMA cannot
        write, where a thread has up to so many sums. Empty: it takes no longer.
      finish_us: the same with an epilogue, and beside `odd_store_us` where d has such rows. Beside many sums a thread
        has registers for a few elements at a time, or for one, and latencies are not hidden.
      launch_us: more than what any kernel takes that has nothing to do.
      part_us: more of it for each CTA that shares a tile.
      wave_us: of each wave but the first: CTAs that start anew.
      least_wave_us: what such a wave takes at least, with its products and stores: a tile's way through its CTA.
      add_us: of a second kernel, which adds up parts of k, beside the bytes that it reads.
      usable: parts of k, share of the multiprocessors that clusters of so many CTAs fill.
      below_alignment: bytes. Operands that are aligned to so many or more are not timed; 0: it does not matter.
    """

    products_per_us: float = 0.01e6
    by_dtype: Mapping[str, float] = TENSOR_CORE_DTYPES
    by_tile: Mapping[tuple[int, int, tuple[int, int]], float] = _NONE
    needs_by_tile: bool = False
    copy_us: float = COPIES_US
    k_tile_us: float = 0.0
    clips_rows: bool = False
    store_us: float = 0.060
    odd_store_us: tuple[tuple[int, float], ...] = ()
    finish_us: tuple[tuple[int, float], ...] = ()
    launch_us: float = 0.0
    part_us: float = 0.0
    wave_us: float = 0.0
    least_wave_us: float = 0.0
    add_us: float = 0.0
    usable: Mapping[int, float] = _NONE
    below_alignment: int = 0


class KernelFacts(NamedTuple):
    """What is known of a kernel of cuda/gemm.

    Attributes:
      instruction: what multiplies: "fma", "mma.sync", "wgmma", ... Kernels with the same one sum in the same order. "":
        it is not known, and the kernel sums like no other.
      page: the number of its page in docs/tutorials, which is also its place on the ladder; 0: it is not on the ladder.
      idea: what it adds to the kernel below it on the ladder, in a few words.
      speed: what was measured.
      splits_k: the CTAs of a cluster share one tile, and each multiplies a part of k.
      splits_k_by_sizes: a call's sizes say into how many parts k is split, and a second kernel adds up their sums.
      promotes_float8: sums of 8-bit floats leave the tensor core, which keeps some 14 bits of them, after each k-tile,
        and are added up in f32.
      is_of_gradients: of attention, it computes the gradients.
      pads: XLA pads the lines of operands for it that TMA cannot read (_primitives/padding.py).
      takes_in_shortly: calls that take in c, a residual or a gate have kernels of their own, whose few instructions
        were measured to be there sooner in a program.
      symmetric: b^T a^T has the bits of (a b)^T: what is multiplied does not depend on which operand is a.
      missing: the file that would say all this; "" where there is one.
    """

    instruction: str = ""
    page: int = 0
    idea: str = ""
    speed: Speed = Speed()
    splits_k: bool = False
    splits_k_by_sizes: bool = False
    promotes_float8: bool = False
    is_of_gradients: bool = False
    pads: bool = False
    takes_in_shortly: bool = False
    symmetric: bool = True
    missing: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether a GPU measured it, so that the model has it in its order."""
        return self.speed != Speed()

    @property
    def place(self) -> float:
        """Sorts kernels as the ladder does, those that are not on it last."""
        return self.page or math.inf
