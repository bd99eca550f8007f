"""How busy the tensor cores are with so many stages of cp.async: a model, and the share of the peak as measured."""

from __future__ import annotations

from typing import Any

from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.dtypes import ITEM_BYTES
from jax_moye.layout.kernels import kernel_layouts

# Multiply-adds per clock of one multiprocessor through mma.sync: NVIDIA's A100 white paper; for sm_90 what
# docs/performance.md says of it, 2500 FLOP a clock in bf16, and as much less for the other dtypes as on sm_80.
FMA_PER_CLOCK = {
    "sm_80": {"bf16": 1024, "f16": 1024, "tf32": 512, "s8": 2048, "f64": 64},
    "sm_90": {"bf16": 1250, "f16": 1250, "tf32": 625, "s8": 2500, "f64": 128},
}
L2_BYTES_PER_CLOCK = 64  # into one multiprocessor
LATENCY = 800  # clocks from cp.async to its data in shared memory, on a busy device: an assumption


def stage_model(
    config: GemmConfig, arch: str = "sm_90", latency: int = LATENCY, registers: int | None = None, k: int = 4096
) -> dict[str, Any]:
    """How busy the tensor cores are with `config.stages` stages of cp.async: a model, nothing of it is measured.

    A k-tile takes a CTA's multiprocessor the longest of three times, in clocks: its multiplications through mma.sync,
    its shared-memory wavefronts (as the layouts predict and the emulator counts them), its bytes from the L2 cache. The
    CTAs resident on a multiprocessor share it. The loads of a k-tile are ordered `stages - 1` k-tiles before it is
    multiplied and awaited one k-block early: so (stages - 1 - 1/blocks) k-tiles take no less than `latency`. The first
    k-tile is waited for once. The epilogue, and CTAs that are too few or too many for the device, are left out.

    Args:
      config: of sm80_multistage.
      arch: "sm_80" or "sm_90".
      latency: clocks that a load is under way.
      registers: per thread, as compiled; None: what the layouts let expect.
      k: of the product.

    Returns:
      {"efficiency": with the CTAs that fit, "alone": with one, "ctas", "clocks": {...} of one k-tile}.
    """
    layouts = kernel_layouts(config, "NN")
    tile_m, tile_n, tile_k = config.tile
    counts = layouts.counts(k, tile_n)
    wavefronts = sum(n for name, n in counts.items() if name.endswith("_wavefronts") and "ideal" not in name)
    clocks = {
        "mma": tile_m * tile_n * tile_k / FMA_PER_CLOCK[arch][config.dtype],
        "shared": wavefronts,
        "l2": (tile_m + tile_n) * tile_k * ITEM_BYTES[config.dtype] / L2_BYTES_PER_CLOCK,
    }
    resident = layouts.occupancy_report(arch, registers).ctas
    blocks = tile_k // layouts.mma.tile_shape[2]
    k_tiles = -(-k // tile_k)

    def efficiency(ctas: int) -> float:
        period = max(ctas * max(clocks.values()), latency / (config.stages - 1 - 1 / blocks))
        return round(k_tiles * ctas * clocks["mma"] / (latency + k_tiles * period), 4)

    return {"efficiency": efficiency(resident), "alone": efficiency(1), "ctas": resident, "clocks": clocks}


def share_of_peak(figures: dict[str, Any], dtype: str, device) -> float | None:
    """Of what mma.sync can do at the clock that was read while it ran; None where that or the peak is not known."""
    arch = f"sm_{str(getattr(device, 'compute_capability', '')).replace('.', '')}"
    multiprocessors, mhz = getattr(device, "core_count", None), figures["sm_mhz"]
    rate = FMA_PER_CLOCK.get(arch, {}).get(dtype)
    if not (multiprocessors and mhz and rate):
        return None
    return round(figures["tflops"] * 1e12 / (2 * rate * multiprocessors * mhz * 1e6), 4)
