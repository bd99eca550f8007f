"""wgmma in cuda/moye against the recorded facts and against Python: atoms, tiles of shared memory, descriptors."""

from __future__ import annotations

import gzip
import itertools
import json
import pathlib
import re
import sys

from jax_moye import layout as lay
from jax_moye.layout import atoms, dtypes
from jax_moye.layout.gmma import make_gmma_desc

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import notation as n
import programs

DATA = pathlib.Path(__file__).parents[1] / "data" / "oracle"
ORACLE = json.loads((DATA / "layout_algebra.json").read_text())
FACTS = json.loads(gzip.decompress((DATA / "atoms.json.gz").read_bytes()))
PRELUDE = """
#include "moye/atom/copy_traits_sm90.h"
#include "moye/atom/mma_traits_sm90.h"
using GMMA::Major;
"""
ROW_BYTES = {"INTER": 16, "SW32": 32, "SW64": 64, "SW128": 128}


# ---- Atoms ---------------------------------------------------------------------------------------------------------


def cpp_op(name: str) -> str:
    """The C++ type of CuTe's name: the 16-bit instructions have majors, integers no scales."""
    if not name.endswith("_TN"):
        return f"{name}<Major::K, Major::K>"
    return name if "_S32" in name else f"{name}<>"


NAMES = [x for x in atoms.mma_atom_names() if x.startswith("SM90_64x") and not x.endswith("SATURATE")]


def test_every_atom(tmp_path: pathlib.Path):
    """All 1056 names of Python, 336 of them recorded: threads, fragments, types and registers."""
    recorded = {atom["name"]: atom for atom in FACTS["mma_atoms"] if atom["name"].startswith("SM90_64x")}
    assert recorded.keys() <= set(NAMES)
    lines, want = {}, {}
    for i, name in enumerate(NAMES):
        atom = atoms.mma_atom(name)
        of = f"MmaAtom<{cpp_op(name)}>"
        fields = ["ShapeMNK", "ThrId", "LayoutATV", "LayoutBTV", "LayoutCTV"]
        types = [dtypes.dtype(t).cute for t in atom.dtypes]
        facts = [f"C<is_same<typename {of}::ValType{x}, {t}>>{{}}" for x, t in zip("DABC", types, strict=True)]
        registers = [f"C<int(sizeof(typename {of}::Op::{x}Registers))>{{}}" for x in "DABC"]
        lines[i] = programs.types(i, *(f"typename {of}::{f}{{}}" for f in fields), *facts, *registers)
        layouts = [getattr(atom, f"layout_{x}_TV") for x in "ABC"]
        sizes = [r.count * (8 if r.dtype == "uint64" else 4) for r in atom.registers]
        want[i] = [n.text(atom.shape_mnk), str(atom.thr_id), *map(str, layouts), *["1"] * 4, *map(str, sizes)]
        if name in recorded:
            assert [str(x) for x in layouts] == [recorded[name][f"layout_{x}_TV"] for x in "ABC"]
    results = programs.evaluate("wgmma_atoms", lines, tmp_path, PRELUDE)
    assert [(NAMES[i], got, want[i]) for i, got in results.items() if got != want[i]] == []


def test_stmatrix(tmp_path: pathlib.Path):
    recorded = [atom for atom in FACTS["copy_atoms"] if "_STSM_" in atom["name"]]
    assert len(recorded) == 6
    fields = ["ThrId", "ValLayoutSrc", "ValLayoutDst", "ValLayoutRef"]
    lines = {
        i: programs.types(i, *(f"typename CopyAtom<{a['name']}, {a['value_type']}>::{f}{{}}" for f in fields))
        for i, a in enumerate(recorded)
    }
    for i, got in programs.evaluate("stmatrix_atoms", lines, tmp_path, PRELUDE).items():
        assert got == [recorded[i]["thr_id"], *(recorded[i][f"val_layout_{x}"] for x in ("src", "dst", "ref"))]


TILED = [case for case in ORACLE["cases"] if case["op"] == "make_tiled_mma" and "SM90_64x" in case["args"][0]]


def test_tiled_mma(tmp_path: pathlib.Path):
    """Two warpgroups, one below the other."""
    lines = {}
    for i, case in enumerate(TILED):
        op, atom_layout, _ = case["args"]
        made = f"decltype(make_tiled_mma({op}{{}}, {n.cpp_argument(atom_layout)}{{}}))"
        fields = ["thr_layout_vmnk()", "tile_shape()", *(f"layout_{x}_TV()" for x in "ABC")]
        lines[i] = programs.types(i, *(f"{made}::{f}" for f in fields), f"size({made}{{}})")
    assert len(lines) == 3
    for i, got in programs.evaluate("wgmma_tiled", lines, tmp_path, PRELUDE).items():
        want = [field.split("=", 1)[1] for field in TILED[i]["out"].split(" ")]
        assert [n.normalized(n.layout(x)) if n.is_layout(x) else x for x in got] == [
            n.normalized(n.layout(x)) if n.is_layout(x) else x for x in want
        ]


# ---- Tiles of shared memory and their descriptors ------------------------------------------------------------------


def cpp_atom(major: str, swizzle: str, kind: str) -> str:
    return f"gmma_smem_atom<Major::{major}, {dtypes.dtype(kind).cute}, {ROW_BYTES[swizzle]}>()"


def test_gmma_smem_atom(tmp_path: pathlib.Path):
    """As Python's, which is as recorded."""
    cases = [case["args"] for case in ORACLE["cases"] if case["op"] == "gmma_smem_atom"]
    assert len(cases) == 20
    lines = {i: programs.types(i, cpp_atom(*args)) for i, args in enumerate(cases)}
    for i, (got,) in programs.evaluate("gmma_smem_atoms", lines, tmp_path, PRELUDE).items():
        mine, python = lay.ComposedLayout(got), lay.gmma_smem_atom(*cases[i])
        assert mine.layout == python.layout
        assert mine.swizzle == python.swizzle or mine.swizzle.bits == python.swizzle.bits == 0


RECORDED = [tuple(c["args"][x] for x in ("major", "atom", "dtype", "MN", "K_tile")) for c in ORACLE["gmma_desc"]]
# Tiles of other shapes, in both orders of atoms.
FURTHER = [
    (major, swizzle, kind, mn, 128 // (dtypes.dtype(kind).bits // 8))
    for major, swizzle, kind in itertools.product(("K", "MN"), ROW_BYTES, ("bf16", "tf32", "uint8", "float_e5m2_t"))
    if major == "K" or kind == "bf16"
    for mn in ((8, 24, 192, 256) if major == "K" else (64, 192, 256))
]
TILES = [(*tile, order) for tile in dict.fromkeys(RECORDED + FURTHER) for order in ("0,1", "1,0")]


def test_descriptors(tmp_path: pathlib.Path):
    """For every instruction along K: LBO, SBO, the swizzle and what is added to the start address."""
    lines, want = {}, {}
    for i, (major, swizzle, kind, mn, depth, order) in enumerate(TILES):
        size = dtypes.dtype(kind).bits // 8
        step = 32 // size
        value = dtypes.dtype(kind).cute
        order_type = ", ".join(f"I<{x}>" for x in order.split(","))
        tile = f"tile_to_shape({cpp_atom(major, swizzle, kind)}, T<I<{mn}>, I<{depth}>>{{}}, T<{order_type}>{{}})"
        part = f"zipped_divide({tile}, T<I<{mn}>, I<{step}>>{{}})"
        fields = f"gmma_fields<Major::{major}, {value}>(mode<0>({part}))"
        names = ("leading_byte_offset", "stride_byte_offset", "layout_type")
        starts = [f"gmma_desc_layout<{value}>({part})(I<0>{{}}, T<I<0>, I<{k}>>{{}})" for k in range(depth // step)]
        lines[i] = programs.types(i, *(f"C<{fields}.{x}>{{}}" for x in names), *starts)
        python_tile = lay.tile_to_shape(
            lay.gmma_smem_atom(major, swizzle, kind), (mn, depth), tuple(map(int, order.split(",")))
        )
        python = [make_gmma_desc(python_tile, major, kind, k=k) for k in range(depth // step)]
        first = python[0]
        expected = [first.leading_byte_offset, first.stride_byte_offset, first.layout_type]
        want[i] = [str(x) for x in (*expected, *(d.start_address for d in python))]
        if (major, swizzle, kind, mn, depth) in RECORDED and order == "0,1":
            out = ORACLE["gmma_desc"][RECORDED.index((major, swizzle, kind, mn, depth))]["out"]
            assert [out[x] for x in ("LBO_16B", "SBO_16B", "layout_type")] == expected
    results = programs.evaluate("gmma_descriptors", lines, tmp_path, PRELUDE)
    assert [(TILES[i], got, want[i]) for i, got in results.items() if got != want[i]] == []


REFUSED = {
    "SM90_WGMMA_SS<40, int32_t, int8_t, int8_t>::Facts::kN": "integers have N of",
    "SM90_WGMMA_SS<264, float, half_t, half_t>::Facts::kN": "N is 8, 16",
    "SM90_WGMMA_SS<64, float, half_t, bfloat16_t>::Facts::kN": "types that no instruction multiplies",
    "SM90_WGMMA_SS<64, half_t, bfloat16_t, bfloat16_t>::Facts::kN": "no such accumulators",
    "SM90_WGMMA_SS<64, float, tfloat32_t, tfloat32_t, Major::MN>::Facts::kN": "only 16-bit operands",
    "SM90_WGMMA_RS<64, float, half_t, half_t, Major::MN>::Facts::kN": "A in registers is K-major",
    "gmma_smem_atom<Major::K, half_t, 256>()": "rows have 16, 32, 64 or 128 bytes",
    "gmma_fields<Major::K, half_t>(L<T<I<64>, I<16>>, T<I<64>, I<1>>>{})": "one swizzled row apart",
    "gmma_fields<Major::K, half_t>(L<T<I<64>, I<16>>, T<I<1>, I<64>>>{})": "",
    "gmma_fields<Major::K, half_t>(L<T<I<64>, I<32>>, T<I<32>, I<1>>>{})": "32 bytes along K",
    "gmma_fields<Major::MN, float>(L<T<I<64>, I<8>>, T<I<1>, I<64>>>{})": "only 16-bit",
    "gmma_fields<Major::K, half_t>(composition(Swizzle<2, 3, 4>{}, L<T<I<64>, I<16>>, T<I<64>, I<1>>>{}))": "swizzles",
    "gmma_fields<Major::K, half_t>(L<T<T<I<8>, I<2>, I<2>>, T<I<8>, I<2>>>, T<T<I<8>, I<64>, I<1024>>, "
    "T<I<1>, I<2048>>>>{})": "more than one stride",
}


def test_refusals(tmp_path: pathlib.Path):
    """What has no instruction or no descriptor does not compile, for that reason."""
    lines = {i: programs.types(i, f"C<int(sizeof({x}))>{{}}, ({x})") for i, x in enumerate(REFUSED)}
    refused = programs.refusals("wgmma_refused", lines, tmp_path, PRELUDE)
    for i, (expression, sentence) in enumerate(REFUSED.items()):
        assert i in refused, expression
        assert re.search(sentence, "\n".join(refused[i])), (expression, refused[i])


def test_stages(tmp_path: pathlib.Path):
    """A stage of a ring of tiles begins where the descriptor plus the stage's stride says."""
    lines = {}
    for i, swizzle in enumerate(ROW_BYTES):
        tile = f"tile_to_shape({cpp_atom('K', swizzle, 'bf16')}, T<I<128>, I<64>, I<4>>{{}})"
        part = f"zipped_divide({tile}, T<I<64>, I<16>>{{}})"
        places = [f"gmma_desc_layout<half_t>({part})(I<0>{{}}, T<I<1>, I<2>, I<{s}>>{{}})" for s in range(4)]
        lines[i] = programs.types(i, *places)
    results = programs.evaluate("gmma_stages", lines, tmp_path, PRELUDE)
    for i, swizzle in enumerate(ROW_BYTES):
        python = lay.tile_to_shape(lay.gmma_smem_atom("K", swizzle, "bf16"), (128, 64, 4))
        assert [8 * int(start) for start in results[i]] == [python.layout(64, 32, s) for s in range(4)]
