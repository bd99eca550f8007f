"""The pictures: every cell holds what the recorded tables of the instructions say, and every format is well-formed."""

import json
import pathlib
import xml.etree.ElementTree as ET

import cxx
import pytest

from jax_moye.layout import Layout, Swizzle
from jax_moye.layout.atoms import CopyAtom, mma_atom
from jax_moye.layout.draw import draw, draw_schedule, draw_tv, operand_loads, tile_coord, to_svg
from jax_moye.layout.tensor import make_tensor
from jax_moye.layout.tiled import make_tiled_copy, make_tiled_copy_A, make_tiled_mma

RECORDED = pathlib.Path(__file__).parents[2] / "data" / "drawn_atoms.json"
SVG = "{http://www.w3.org/2000/svg}"
TF32 = "SM80_16x8x8_F32TF32TF32F32_TN"


@pytest.fixture(scope="module")
def atoms():
    return json.loads(RECORDED.read_text())


def cells_of(svg):
    """(panel, row, column) -> (attributes, label lines) of each cell of an SVG."""
    found = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        assert group.get("class") == "cell"
        place = group.get("data-panel"), int(group.get("data-row")), int(group.get("data-column"))
        assert place not in found
        found[place] = group.attrib, [text.text for text in group.iter(f"{SVG}text")]
    return found


def label(thread, value):
    return [f"T{thread}", f"V{value}"]


# ---- Against the recorded tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        TF32,
        "SM80_16x8x16_F32BF16BF16F32_TN",
        "SM80_16x8x32_S32S8S8S32_TN",
        "SM80_8x8x4_F64F64F64F64_TN",
        "SM75_8x8x16_S32S8S8S32_TN",
        "SM70_8x8x4_F32F16F16F32_NT",
        "SM70_8x8x4_F32F16F16F32_TN",
    ],
)
def test_mma_cells_are_the_recorded_tables(atoms, name):
    record = next(r for r in atoms["mma_atoms"] if r["name"] == name)
    lanes = record["thread_to_lane"] or list(range(record["num_threads"]))
    cells = cells_of(to_svg(mma_atom(name)))
    expected = 0
    for operand in "ABC":
        for thread, values in enumerate(record[operand]):
            for value, (row, column) in enumerate(values):
                if operand == "B":  # recorded as (n,k), drawn as (k,n)
                    row, column = column, row
                attributes, lines = cells[operand, row, column]
                assert lines == label(lanes[thread], value)
                assert attributes["data-thread"] == str(lanes[thread])
                assert attributes["data-value"] == str(value)
                expected += 1
    assert len(cells) == expected


def _matrix_place(matrix, row, column, width):
    """Where element (row, column) of an 8x8 matrix of 16-bit pairs lies in A's tile: matrices go down, then right."""
    return 8 * (matrix % 2) + row, width * (matrix // 2) + column


@pytest.mark.parametrize(("mma", "dtype", "recorded", "width"), [
    (TF32, "float32", "float", 4),
    ("SM80_16x8x16_F32F16F16F32_TN", "float16", "half_t", 8),
])  # fmt: skip
def test_ldmatrix_of_a_product_is_the_recorded_table(atoms, mma, dtype, recorded, width):
    tiled = make_tiled_copy_A(CopyAtom("SM75_U32x4_LDSM_N", dtype), make_tiled_mma(mma))
    cells = cells_of(to_svg(tiled))
    name = "SM75_U32x4_LDSM_N"
    record = next(r for r in atoms["copy_atoms"] if r["name"] == name and r["value_type"] == recorded)
    for thread, (matrix, row) in enumerate(record["mem_row_of_thread"]):
        for value in range(width):
            place = _matrix_place(matrix, row, value, width)
            assert cells["source", *place][1] == label(thread, value)
    for thread, values in enumerate(record["reg_table"]):
        for value, (matrix, row, column) in enumerate(values):
            place = _matrix_place(matrix, row, column, width)
            assert cells["destination", *place][1] == label(thread, value)
    assert len(cells) == 2 * 16 * 2 * width
    # What a thread gets is what the instruction wants of A.
    fragments = next(r for r in atoms["mma_atoms"] if r["name"] == mma)["A"]
    for thread, values in enumerate(fragments):
        for value, place in enumerate(values):
            assert cells["destination", *place][1] == label(thread, value)


@pytest.mark.parametrize(
    ("name", "count"), [("SM75_U32x1_LDSM_N", 1), ("SM75_U32x2_LDSM_N", 2), ("SM75_U32x4_LDSM_N", 4)]
)
def test_copy_atom_is_the_recorded_table(atoms, name, count):
    record = next(r for r in atoms["copy_atoms"] if r["name"] == name and r["value_type"] == "half_t")
    cells = cells_of(to_svg(CopyAtom(name, "float16")))
    for thread, values in enumerate(record["reg_table"]):
        for value, (matrix, row, column) in enumerate(values):
            assert cells["destination", 8 * matrix + row, column][1] == label(thread, value)
    for thread, (matrix, row) in enumerate(record["mem_row_of_thread"]):
        if 8 * matrix + row == thread:  # with fewer than four matrices the other threads repeat addresses
            threads = cells["source", thread, 3][0]["data-thread"].split()
            assert str(thread) in threads
            assert len(threads) == 4 // count


def test_seed_copy_of_six_threads():
    tiled = make_tiled_copy(CopyAtom("UniversalCopy<double>", "float64"), "(2,3):(3,1)", "(2,3):(1,2)")
    cells = cells_of(to_svg(tiled))
    rows = [[int(cells["source", i, j][0]["data-thread"]) for j in range(9)] for i in range(4)]
    assert rows == [[0, 0, 0, 1, 1, 1, 2, 2, 2]] * 2 + [[3, 3, 3, 4, 4, 4, 5, 5, 5]] * 2
    for i in range(4):
        for j in range(9):
            assert cells["source", i, j][1] == cells["destination", i, j][1]
            assert cells["source", i, j][1][1] == f"V{i % 2 + 2 * (j % 3)}"


def test_tiled_mma_names_all_threads_of_an_element():
    mma = make_tiled_mma(TF32, "(2,2,1):(2,1,1)", (32, 32, 8))
    cells = cells_of(to_svg(mma))
    assert len(cells) == 32 * 8 + 32 * 8 + 32 * 32
    assert cells["A", 0, 0][0]["data-thread"] == "0 32"
    assert cells["A", 0, 0][1] == ["T0,32", "V0"]
    assert cells["B", 0, 0][1] == ["T0,64", "V0"]
    threads = [int(a["data-thread"]) for (panel, _i, _j), (a, _l) in cells.items() if panel == "C"]
    assert sorted(threads) == sorted(list(range(128)) * 8)


def test_operands_in_shared_memory_have_no_threads():
    cells = cells_of(to_svg(mma_atom("SM90_64x8x16_F32BF16BF16_SS")))
    assert cells["A", 3, 5] == ({**cells["A", 3, 5][0], "data-memory": "shared"}, [])
    assert "data-thread" not in cells["B", 0, 0][0]
    assert cells["C", 8, 1][1] == label(0, 3)


# ---- Layouts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["(4,8):(8,1)", "(2,(3,4)):(1,(2,6))", "((2,2),(2,4)):((1,8),(2,16))", "(6):(2)", "5:1"]
)
def test_layout_cells_are_offsets(text):
    layout = Layout(text)
    cells = cells_of(to_svg(layout))
    assert len(cells) == layout.size
    rows = layout[0].size if layout.rank == 2 else 1
    for i in range(layout.size):
        attributes, lines = cells["layout", i % rows, i // rows]
        assert lines == [str(layout(i))] == [attributes["data-offset"]]


def test_banks_of_a_swizzled_layout():
    layout = Swizzle(3, 3, 3) @ Layout("(8,64):(64,1)")
    cells = cells_of(to_svg(layout))
    for i in range(8):
        for j in range(64):
            attributes, lines = cells["layout", i, j]
            bank = layout(i, j) * 2 // 4 % 32
            assert lines == [str(layout(i, j)), f"b{bank}"]
            assert attributes["data-bank"] == str(bank)
    # What the swizzle is for: the eight rows of a 16-byte column have eight colours; without it they have one.
    fills = {row[0].colour for row in draw(layout).panels[0].cells}
    assert len(fills) == 8
    assert len({row[0].colour for row in draw("(8,64):(64,1)", bits=16).panels[0].cells}) == 1


def test_swizzle_and_tensor_and_text():
    assert draw("Sw<2,3,3>").panels[0].rows == 4
    assert draw("Sw<2,3,3>").panels[0].columns == 64
    tensor = make_tensor("float32", "(2,3):(3,1)")
    assert str(draw(tensor)) == str(draw("(2,3):(3,1)"))
    assert draw(draw(tensor)) == draw(tensor)


def test_tv_layout_with_holes():
    picture = draw_tv(Layout("(2,2):(1,4)"), (2, 4), "two threads")
    cells = cells_of(picture.svg)
    assert cells["tile", 0, 0][1] == label(0, 0)
    assert cells["tile", 1, 2][1] == label(1, 1)
    assert cells["tile", 0, 1][1] == []
    assert "T0V0" in picture.text
    assert "." in picture.text


# ---- Schedules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "super_m"), [(4, 6, 2), (5, 3, 2), (16, 16, 8), (7, 5, 8), (1, 9, 4), (9, 1, 1)])
def test_schedule_is_a_bijection(m, n, super_m):
    order = [tile_coord(i, m, n, super_m) for i in range(m * n)]
    assert sorted(order) == [(i, j) for i in range(m) for j in range(n)]
    cells = cells_of(draw_schedule(m, n, super_m).svg)
    for i, (row, column) in enumerate(order):
        assert cells["D", row, column][1] == [str(i)]
    if m % super_m == 0:  # the seed's formula: the fact "cta swizzle"
        for i, coord in enumerate(order):
            repeat = super_m * n
            assert coord == (i // repeat * super_m + i % super_m, i % repeat // super_m)


def test_schedule_is_that_of_the_kernels(tmp_path):
    """cuda/gemm/tile_scheduler.h, evaluated by the compiler."""
    checks = []
    for m, n, super_m in ((4, 6, 2), (5, 3, 2), (16, 16, 8), (7, 5, 8), (1, 9, 4), (9, 1, 1), (13, 2, 4)):
        for i in range(m * n):
            row, column = tile_coord(i, m, n, super_m)
            checks.append(f"static_assert(same(moye::tile_coord({i}, {m}, {n}, {super_m}), {row}, {column}));")
    source = tmp_path / "order.cc"
    same = "constexpr bool same(moye::TileCoord c, int m, int n) { return c.m == m && c.n == n && c.batch == 0; }"
    source.write_text("\n".join(['#include "gemm/tile_scheduler.h"', same, *checks, ""]))
    cxx.compile_only(source)


def test_loads_of_the_seed_example():
    """The fact "L2 example"."""
    assert operand_loads([tile_coord(i, 2, 4, 1) for i in range(4)]) == 5
    assert operand_loads([tile_coord(i, 2, 4, 2) for i in range(4)]) == 4
