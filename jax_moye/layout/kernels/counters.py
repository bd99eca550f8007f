"""Reports of banks and sectors by the names of the emulator's counters."""

from __future__ import annotations

from jax_moye.layout.transactions import BankReport, SectorReport


def bank_counts(name: str, report: BankReport) -> dict[str, int]:
    """Of plain accesses to shared memory; name: "shared_load" or "shared_store"."""
    return {
        f"{name}_requests": report.requests,
        f"{name}_wavefronts": report.wavefronts,
        f"{name}_ideal_wavefronts": report.ideal,
    }


def matrix_counts(name: str, report: BankReport) -> dict[str, int]:
    """Of instructions that move matrices; name: "ldmatrix" or "stmatrix"."""
    return {
        name: report.requests,
        f"{name}_wavefronts": report.wavefronts,
        f"{name}_ideal_wavefronts": report.ideal,
    }


def sector_counts(name: str, report: SectorReport) -> dict[str, int]:
    """Of what threads move to or from global memory; name: "global_load", "global_store" or "cp_async"."""
    return {
        f"{name}_requests": report.requests,
        f"{name}_sectors": report.sectors,
        f"{name}_ideal_sectors": report.ideal,
    }


def tma_counts(name: str, report: SectorReport) -> dict[str, int]:
    """Of what TMA moves; name: "load" or "store"."""
    return {
        f"tma_{name}s": report.requests,
        f"tma_{name}_bytes": report.useful_bytes,
        f"tma_{name}_sectors": report.sectors,
        f"tma_{name}_ideal_sectors": report.ideal,
    }
