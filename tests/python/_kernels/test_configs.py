"""The table as Python sees it, against the table's text."""

import dataclasses
import json
import pathlib
import re

import pytest

import jax_moye
from jax_moye import configs as _  # noqa: F401  (the function, not the module)
from jax_moye._format import WIDTH
from jax_moye._kernels.config_names import ConfigFields, parse_name, parse_row, rows_of
from jax_moye._kernels.configs import ConfigTable, GemmConfig, find_config
from jax_moye._kernels.dtypes import FLOAT8, ITEM_BYTES, USUAL_ACCUMULATOR, WAYS_OF_F32

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHARED_MEMORY = 227 * 1024  # bytes of sm_90, the most of any architecture


def rows_of_the_table() -> list[str]:
    return [parse_row(row).name for row in rows_of((ROOT / "cuda" / "gemm" / "configs.h").read_text())]


def test_the_rows_are_those_of_the_table():
    names = [row.name for row in jax_moye.configs()]
    table = rows_of_the_table()
    assert names
    # A build with JAX_MOYE_CONFIGS has fewer; those it has are in the table's order.
    assert names == [name for name in table if name in set(names)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", jax_moye.configs(), ids=lambda row: row.name)
def test_rows_are_plausible(row):
    fields = ConfigFields(row.kernel, row.dtype, row.accumulator, row.tile, row.stages, row.cluster, row.alignment)
    assert row.name == fields.name  # in C++ and in Python
    assert parse_name(row.name) == fields
    item = ITEM_BYTES[row.dtype]
    assert row.threads % 32 == 0
    assert 32 <= row.threads <= 1024
    assert 0 < row.smem_bytes <= SHARED_MEMORY
    assert item <= row.alignment <= 16
    assert row.alignment & (row.alignment - 1) == 0
    assert set(row.orders) <= {"NN", "NT", "TN", "TT"}
    assert row.orders
    assert set(row.out_dtypes) <= {"bf16", "f16", "f32", "f64", "s32"}
    natural = USUAL_ACCUMULATOR[row.dtype] if row.dtype in ("s8", *FLOAT8, *WAYS_OF_F32) else row.dtype
    assert natural in row.out_dtypes
    assert row.min_arch >= 70
    assert row.max_arch == (90 if row.kernel.startswith("sm90_") else 0)
    assert (ROOT / "cuda" / "gemm" / f"{row.kernel}.cuh").exists()
    if row.registers is not None:
        assert all(
            re.fullmatch(r"sm_\d+a?", arch) and 0 < registers <= 255 for arch, registers in row.registers.items()
        )


def test_every_dtype_has_a_row_without_alignment():
    for dtype, item in (("bf16", 2), ("f16", 2), ("f32", 4), ("f64", 8)):
        assert any(row.dtype == dtype and row.alignment == item and row.any_stride for row in jax_moye.configs())
        assert {order for row in jax_moye.configs() if row.dtype == dtype for order in row.orders} == {
            "NN",
            "NT",
            "TN",
            "TT",
        }
    for dtype in ("bf16", "f16"):
        assert all({"bf16", "f16", "f32"} <= set(r.out_dtypes) for r in jax_moye.configs() if r.dtype == dtype)


def test_rows_and_table_are_immutable_and_hashable():
    table = jax_moye.configs()
    assert table is jax_moye.configs()
    with pytest.raises(dataclasses.FrozenInstanceError):
        table[0].name = "another"
    with pytest.raises(TypeError):
        table[0] = table[1]
    assert len({*table}) == len(table)
    assert hash(table) == hash(table[:])
    assert table[:2] == table[:][:2]
    assert table[-1] == list(table)[-1]
    assert table != list(table)
    assert table[0] in table


def test_the_table_prints_as_a_table():
    lines = repr(jax_moye.configs()).splitlines()
    assert lines[0].split() == ["name", "out", "order", "warp", "smem", "regs", "arch"]
    assert len(lines) == 1 + len(jax_moye.configs())
    for line, row in zip(lines[1:], jax_moye.configs(), strict=True):
        name, *rest = line.split()
        orders = ["any"] if row.any_stride else ["all"] if len(row.orders) == 4 else list(row.orders)
        outs, (warps, smem, regs, arch) = rest[: -4 - len(orders)], rest[-4:]
        assert (name, outs, arch) == (row.name, list(row.out_dtypes), row.archs[3:])
        assert rest[-4 - len(orders) : -4] == orders
        assert (32 * int(warps), int(smem)) == (row.threads, row.smem_bytes)
        assert regs == (str(max(row.registers.values())) if row.registers else "-")
        assert "x".join(map(str, row.tile)) in name  # what has no column


def test_the_table_fits_a_terminal():
    """Of all rows for products, and not only of this build's; a name that is too long for that takes two tables."""
    longest = max((row for row in rows_of_the_table() if "_f32_blocks_" not in row), key=len)
    (row,) = jax_moye.configs()[:1]
    fields = dict(out_dtypes=("bf16", "f16", "f32", "s32"), threads=384, smem_bytes=232_448, registers={"sm_90": 168})
    for name, tables in ((longest, 1), (longest + "_own", 2)):
        lines = repr(ConfigTable([dataclasses.replace(row, name=name, **fields)])).splitlines()
        assert max(map(len, [*lines, *repr(jax_moye.configs()).splitlines()])) <= WIDTH
        assert sum(line.startswith("name ") for line in lines) == tables
        assert all(word in " ".join(lines) for word in ("s32", "232448", "168"))


def test_find_config():
    row = jax_moye.configs()[3]
    assert find_config(row.name) is row
    assert find_config(row) is row
    assert find_config(dataclasses.replace(row, threads=1)) is row  # the compiled row counts, not a copy's fields
    with pytest.raises(ValueError, match="no compiled kernel is named 'nope'"):
        find_config(dataclasses.replace(row, name="nope"))


def test_registers_come_from_the_builds_report(tmp_path, monkeypatch):
    import sys

    module = sys.modules["jax_moye._kernels.configs"]
    name = rows_of_the_table()[0]
    report = tmp_path / "_registers.json"
    report.write_text(json.dumps({name: {"sm_80": 168, "sm_90": 160}}))
    monkeypatch.setattr(module, "_REGISTERS", report)
    of_products = {row.name for row in jax_moye.configs()}
    table = ConfigTable(row for row in module.all_configs.__wrapped__() if row.name in of_products)
    assert dict(table[0].registers) == {"sm_80": 168, "sm_90": 160}
    assert table[1].registers is None
    assert " 168 " in repr(table).splitlines()[1]
    assert isinstance(table[0], GemmConfig)
    assert table[0] == jax_moye.configs()[0]
    with pytest.raises(TypeError):
        table[0].registers["sm_80"] = 0
    monkeypatch.setattr(module, "_REGISTERS", tmp_path / "absent.json")
    assert module.all_configs.__wrapped__()[0].registers is None
