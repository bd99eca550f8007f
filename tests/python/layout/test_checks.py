"""Checks from layouts alone: the recorded facts of banks and sectors, and what each report says of bad layouts."""

import doctest
import importlib
import json
import pathlib
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_moye.layout import Layout, Swizzle, checks, errors, make_fragment_like, nullspace, transactions
from jax_moye.layout.atoms import CopyAtom, UniversalCopy, copy_op_names, cp_async
from jax_moye.layout.tiled import make_tiled_copy, make_tiled_copy_A, make_tiled_copy_B, make_tiled_mma

DATA = pathlib.Path(__file__).parents[2] / "data" / "oracle"
FACTS = json.loads((DATA / "bank_coalesce.json").read_text())["cases"]


@pytest.mark.parametrize("module", ["checks", "kernels", "kernels.wgmma", "resources", "transactions"])
def test_examples(module):
    outcome = doctest.testmod(importlib.import_module(f"jax_moye.layout.{module}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0


# ---- Recorded facts ------------------------------------------------------------------------------------------------


def k_fastest(rows: int, blk_k: int, bytes_: int, element: int) -> Layout:
    """The first warp of a copy whose lanes run along k: (lane, value) -> row + rows * k."""
    vector = bytes_ // element
    lanes_k = blk_k // vector
    return Layout(((lanes_k, 32 // lanes_k), vector), ((rows * vector, 1), rows))


def shared_access(case) -> tuple[Layout, str, dict]:
    """(lane, value) -> index in the case's shape, the element type, and options."""
    shape = Layout(case["layout"]).shape
    rows, columns = shape[0], Layout(shape[1]).size
    match case["kind"]:
        case "ldmatrix.x4 f16 A 16x16":
            return Layout(((16, 2), 8), ((1, 8 * rows), rows)), "f16", {"instruction": "ldmatrix.x4"}
        case "16B smem store (cp.async/STS.128), threads k-fastest":
            return k_fastest(rows, columns, 16, 2), "f16", {}
        case kind if kind.startswith("LDS.32 column read f32"):
            return Layout((32, 1), (1, 0)), "f32", {}
        case "LDS.32 A frag f32 thr(16,16):(1,16)":
            return Layout(((16, 2), 1), ((1, 0), 0)), "f32", {}
        case "LDS.128 A frag f32, 4 consecutive m per lane":
            return Layout(((16, 2), 4), ((4, 0), 1)), "f32", {}
    raise AssertionError(case["kind"])


@pytest.mark.parametrize("case", [c for c in FACTS if "wavefronts" in c], ids=lambda c: f"{c['kind']}-{c['name']}")
def test_recorded_banks(case):
    layout = Layout(case["layout"])
    smem = Swizzle(case["swizzle"]) @ layout if case.get("swizzle") else layout
    threads, value_type, options = shared_access(case)
    report = checks.bank_conflicts(smem, threads, value_type, **options)
    assert (report.wavefronts, report.ideal, report.degree) == (case["wavefronts"], case["ideal"], case["degree"])


def global_access(case) -> tuple[Layout, Layout, str, int]:
    """Memory, (lane, value) -> index, element type, width."""
    name, kind = case["name"], case["kind"]
    if kind.startswith("gmem M-major f32"):
        width, value = int(name.split("B")[0]), int(name.split("val(")[1].split(",")[0])
        return Layout((128, 8), (1, 4096)), Layout((32, width // 4), (value, 1)), "f32", width
    if kind.startswith("gmem K-major f16"):
        blk_k = 32 if "bK=32" in kind else 64
        return Layout((64, blk_k), (4096, 1)), k_fastest(64, blk_k, 16, 2), "f16", 16
    value_type, width = ("f32", 8) if "f32" in kind else ("f16", 4)
    return Layout((16, 8), (4096, 1)), Layout(((4, 8), 2), ((32, 1), 16)), value_type, width


@pytest.mark.parametrize("case", [c for c in FACTS if "sectors" in c], ids=lambda c: f"{c['kind']}-{c['name']}")
def test_recorded_sectors(case):
    gmem, threads, value_type, width = global_access(case)
    report = checks.sectors(gmem, threads, value_type, width=width)
    assert (report.sectors, report.useful_bytes, report.efficiency) == (
        case["sectors"],
        case["useful_bytes"],
        case["efficiency"],
    )
    assert report.lines == case["lines"]


def test_every_fact_is_used():
    assert len(FACTS) == sum("wavefronts" in c for c in FACTS) + sum("sectors" in c for c in FACTS)


# ---- Counting ------------------------------------------------------------------------------------------------------


def slow_wavefronts(addresses, width) -> int:
    """The rule of transactions.py, word by word."""
    total = 0
    lanes = 32 if width <= 4 else 128 // width
    for first in range(0, 32, lanes):
        words = {
            (address + byte) // 4
            for address in addresses[first : first + lanes]
            if address is not None
            for byte in range(width)
        }
        total += max((sum(word % 32 == bank for word in words) for bank in range(32)), default=0)
    return total


@settings(deadline=None)
@given(st.integers(0, 4), st.integers(1, 4000), st.integers(0, 2**32))
def test_counts_follow_the_rule(log_width, spread, seed):
    width, rng = 2**log_width, random.Random(seed)
    addresses = [rng.randrange(spread) * width if rng.random() < 0.9 else None for _ in range(32)]
    banks, sectors = transactions.shared_memory(addresses, width), transactions.global_memory(addresses, width)
    touched = {address + byte for address in addresses if address is not None for byte in range(width)}
    assert banks.wavefronts == slow_wavefronts(addresses, width)
    assert banks.ideal == -(-len({byte // 4 for byte in touched}) // 32)
    assert sectors.sectors == len({byte // 32 for byte in touched})
    assert sectors.lines == len({byte // 128 for byte in touched})
    assert sectors.useful_bytes == len(touched)
    assert sectors.ideal == -(-len(touched) // 32)
    if banks.worst is None:
        return
    worst = banks.worst
    words = [address // 4 for address in worst.addresses]
    assert words[0] != words[1]
    assert words[0] % 32 == words[1] % 32 == worst.bank
    for lane, word in zip(worst.lanes, words, strict=True):
        assert addresses[lane] // 4 <= word <= (addresses[lane] + width - 1) // 4


def test_lanes_that_take_no_part():
    assert transactions.shared_memory([None] * 32, 4).wavefronts == 0
    assert transactions.shared_memory([0, None, 128], 4).wavefronts == 2
    assert transactions.global_memory([None, 64, 64], 4).sectors == 1
    assert transactions.shared_memory([[0, 128], [0, 4]], 4).requests == 2


def test_bad_requests():
    with pytest.raises(errors.Misaligned, match="lane 1 moves 8 bytes at address 12"):
        transactions.shared_memory([0, 12], 8)
    with pytest.raises(errors.InvalidType, match="not 12"):
        transactions.global_memory([0], 12)
    with pytest.raises(errors.InvalidType, match="at most 32 lanes, not 33"):
        transactions.shared_memory(list(range(0, 132, 4)), 4)
    with pytest.raises(errors.InvalidType, match="1, 2 or 4 matrices, not 3"):
        transactions.ldmatrix([0] * 32, 3)
    with pytest.raises(errors.Misaligned):
        transactions.ldmatrix([8] * 32)


def test_reports_add_and_are_sentences():
    free, bad = transactions.shared_memory([4 * i for i in range(32)], 4), transactions.shared_memory([0, 128], 4)
    both = free + bad
    assert (both.requests, both.wavefronts, both.ideal, both.worst) == (2, 3, 2, bad.worst)
    assert str(free) == "access: 1 instruction, 1 wavefront, at least 1: degree 1, no bank conflict"
    same = transactions.shared_memory([16 * (i % 16) for i in range(32)], 16)
    assert (same.ok, same.degree) == (True, 2)
    assert str(same).endswith("degree 2, no bank conflict, but phases touch the same words")
    assert "lanes 0 and 1 touch words 0 and 32 (bytes 0x0 and 0x80), both of bank 0" in str(both)
    assert hash(both) == hash(free + bad)
    one = transactions.global_memory([0], 4, what="a")
    assert str(one + one) == (
        "a: 2 instructions, 2 sectors of 2 lines for 8 bytes, at least 2: 12% of what is moved is used"
    )


# ---- Layouts -------------------------------------------------------------------------------------------------------


def mma():
    return make_tiled_mma("SM80_16x8x16_F32F16F16F32_TN", "(2,2,1)", (32, 32, 16))


@pytest.mark.parametrize("make", [make_tiled_copy_A, make_tiled_copy_B])
@pytest.mark.parametrize(
    ("smem", "degree"),
    [
        ("(64,64):(64,1)", 8),
        ("Sw<3,3,3> o 0 o (64,64):(64,1)", 1),
        ("Sw<2,3,3> o 0 o (64,64):(64,1)", 2),
        ("(64,64):(72,1)", 1),
        ("(64,32):(32,1)", 4),
    ],
)
def test_ldmatrix_of_a_tiled_copy(make, smem, degree):
    """The degree of a whole tile, all warps, is that of one instruction."""
    copy = make(CopyAtom("SM75_U32x4_LDSM_N", "f16"), mma())
    report = checks.bank_conflicts(smem, copy)
    assert report.degree == degree
    assert report.requests * 4 == report.ideal
    assert report.ok == (degree == 1)


@pytest.mark.parametrize("matrices", (1, 2, 4))
@pytest.mark.parametrize("kind", ("N", "T"))
def test_ldmatrix_of_fewer_matrices(kind, matrices):
    """A tile has as many matrices whichever instruction loads them; lanes without a row do not count."""
    name = f"SM75_U32x{matrices}_LDSM_N" if kind == "N" else f"SM75_U16x{2 * matrices}_LDSM_T"
    copy = make_tiled_copy_A(CopyAtom(name, "f16"), mma())
    plain = "(64,64):(64,1)" if kind == "N" else "(64,64):(1,64)"
    assert checks.ldmatrix_legality(plain, copy).ok
    conflicts, free = (checks.bank_conflicts(smem, copy) for smem in (plain, f"Sw<3,3,3> o 0 o {plain}"))
    assert (conflicts.degree, free.degree) == (8, 1)
    assert free.requests * matrices == free.ideal == 2 * 64 * 64 // 64  # two warps along n read the same


def test_stmatrix_is_counted_at_its_destination():
    name = next(n for n in copy_op_names() if "U32x4_STSM_N" in n)
    copy = make_tiled_copy_A(CopyAtom(name, "f16"), mma())
    assert checks.bank_conflicts("(64,64):(64,1)", copy).degree == 8
    assert checks.bank_conflicts("Sw<3,3,3> o 0 o (64,64):(64,1)", copy).degree == 1


def test_thread_value_layouts_and_tiled_copies_agree():
    copy = make_tiled_copy(CopyAtom(cp_async(8), "bf16"), "(16,8):(8,1)", "(1,4)")
    for smem in ("(16,32):(32,1)", "(16,32):(40,1)", "Sw<2,3,3> o 0 o (16,32):(32,1)"):
        tiled = checks.bank_conflicts(smem, copy, what="x")
        assert tiled == checks.bank_conflicts(smem, copy.layout_D_TV, "bf16", width=8, what="x")
    gmem = "(16,32):(100,1)"
    assert checks.sectors(gmem, copy, what="x") == checks.sectors(gmem, copy.layout_S_TV, "bf16", width=8, what="x")


def test_base_address_of_global_memory():
    """The worst address that the alignment allows costs a sector for each row."""
    copy = make_tiled_copy(CopyAtom(cp_async(16), "bf16"), "(16,8):(8,1)", "(1,8)")
    aligned, shifted = (checks.sectors("(64,64):(4096,1)", copy, base=base) for base in (0, 16))
    assert (aligned.sectors, shifted.sectors) == (256, 320)
    with pytest.raises(errors.Misaligned, match="vector 0 of thread 0 is at byte 8, no multiple of 16"):
        checks.sectors("(64,64):(4096,1)", copy, base=8)


def test_alignment():
    """The padding that research/layouts.md warns of: 129 elements of f32 between rows, 8 bytes at a time."""
    copy = make_tiled_copy(CopyAtom(UniversalCopy("uint64"), "f32"), "(64,4)", "(2,1)")
    assert checks.alignment("(128,8):(1,130)", copy).ok
    report = checks.alignment("(128,8):(1,129)", copy)
    assert str(report) == "UniversalCopy<uint64_t>: vector 0 of thread 64 is at byte 516, no multiple of 8"
    with pytest.raises(errors.Misaligned, match="byte 516"):
        report.require()
    with pytest.raises(errors.Misaligned, match="byte 516"):
        checks.bank_conflicts("(128,8):(1,129)", copy)
    assert "no neighbours" in str(checks.alignment("(128,8):(8,1)", copy))
    narrow = "Sw<3,1,3> o 0 o (128,8):(1,128)"  # a swizzle that tears pieces of 16 bytes apart
    wide = make_tiled_copy(CopyAtom(UniversalCopy("uint128"), "f32"), "(32,8)", "(4,1)")
    assert not checks.alignment(narrow, wide).ok
    assert checks.alignment("Sw<3,2,3> o 0 o (128,8):(1,128)", wide).require().vectors == 256


def moye_facts(op):
    return [fact for fact in json.loads((DATA / "moye_facts.json").read_text())["facts"] if fact["op"] == op]


def test_moye_coalescing():
    """Whether a warp's 8 or 16 bytes per thread are next to each other, as the seed's page says."""
    facts = moye_facts("coalescing")
    assert len(facts) == 3
    for fact in facts:
        width, values = map(
            int, re.match(r"UniversalCopy<(\d+)B>, f32, thr \(32,8\), val \((\d),1\)", *fact["args"]).groups()
        )
        atom = CopyAtom(UniversalCopy(f"uint{8 * width}"), "f32")
        report = checks.sectors("(128,8):(1,4096)", make_tiled_copy(atom, "(32,8)", f"({values},1)"))
        assert (report.efficiency == 1) == (not fact["expect"].startswith("NOT")), fact


def test_moye_cp_async_alignment():
    facts = moye_facts("cp.async alignment")
    assert len(facts) == 2
    for fact in facts:
        copy = make_tiled_copy(CopyAtom(cp_async(8), "f32"), "(64,4)", "(2,1)")
        layout = fact["args"][1].removeprefix("smem ")
        assert checks.alignment(layout, copy).ok == (fact["expect"] == "ok")


def test_moye_layouts_for_ldmatrix():
    (fact,) = moye_facts("smem layouts accepted with LDSM")
    k_major, m_major = (re.search(r"\([\d,]+\):\([\d,]+\)", text)[0] for text in fact["args"])
    tiled = make_tiled_mma("SM80_16x8x8_F32TF32TF32F32_TN", "(2,2,1):(2,1,1)", (32, 32, 8))
    read_b = make_tiled_copy_B(CopyAtom("LDSM_U32x4_N", "f32"), tiled)
    read_a = make_tiled_copy_A(CopyAtom("LDSM_U32x4_N", "f32"), tiled)
    assert checks.ldmatrix_legality(Layout(k_major)[:2], read_b).ok
    assert not checks.ldmatrix_legality(Layout(m_major)[:2], read_a).ok
    plain = make_tiled_copy_A(CopyAtom(UniversalCopy("f32"), "f32"), tiled)
    assert checks.alignment(Layout(m_major)[:2], plain, side="S").ok


def test_ldmatrix_legality():
    copy = make_tiled_copy_A(CopyAtom("SM75_U32x4_LDSM_N", "f16"), mma())
    assert checks.ldmatrix_legality("(64,64):(72,1)", copy).ok
    assert "no multiple of 16" in str(checks.ldmatrix_legality("(64,64):(68,1)", copy))
    assert "no neighbours" in str(checks.ldmatrix_legality("(64,64):(1,64)", copy))  # M-major needs the _T
    assert not checks.ldmatrix_legality("Sw<3,2,3> o 0 o (64,64):(64,1)", copy).ok
    transposed = make_tiled_copy_A(CopyAtom("SM75_U16x8_LDSM_T", "f16"), mma())
    assert checks.ldmatrix_legality("(64,64):(1,64)", transposed).ok
    assert not checks.ldmatrix_legality("(64,64):(64,1)", transposed).ok
    report = checks.ldmatrix_legality(
        "(64,64):(64,1)", "((16,2),4):((1,256),64)", "f32", instruction="ldmatrix.x4.trans"
    )
    assert "16-bit elements, not of 32" in str(report)
    assert not checks.ldmatrix_legality(
        "(64,64):(64,1)", make_tiled_copy(CopyAtom(cp_async(16), "f16"), "(4,8)", "(1,8)")
    ).ok


def test_bad_accesses():
    with pytest.raises(errors.InvalidType, match="rank 2, not 1"):
        checks.bank_conflicts("(32,32):(32,1)", "(32):(1)", "f32")
    with pytest.raises(errors.InvalidType, match="no element type"):
        checks.bank_conflicts("(32,32):(32,1)", "(32,1):(1,0)")
    with pytest.raises(errors.InvalidType, match="12"):
        checks.bank_conflicts("(32,32):(32,1)", "(32,3):(3,1)", "f32")
    with pytest.raises(errors.InvalidType, match=r"ldmatrix.x3 is no instruction"):
        checks.bank_conflicts("(32,32):(32,1)", "(32,1):(1,0)", "f32", instruction="ldmatrix.x3")
    with pytest.raises(errors.InvalidType, match="no multiple of the 4 of a vector"):
        checks.sectors("(32,32):(1,32)", "(32,6):(6,1)", "f32", width=16)
    with pytest.raises(errors.OutOfDomain, match="index 62 of a tile of 32 elements"):
        checks.bank_conflicts("(4,8):(8,1)", "(32,1):(2,0)", "f32")
    with pytest.raises(errors.InvalidType, match="no address of their own"):
        checks.bank_conflicts("(32,32):(32,1)", "(32,1):(1,0)", "int4")


# ---- Coverage ------------------------------------------------------------------------------------------------------


def test_coverage():
    copy = make_tiled_copy(CopyAtom(cp_async(16), "bf16"), "(16,8):(8,1)", "(1,8)")
    report = checks.coverage(copy)
    assert report.require().ok
    assert str(report) == "coverage: 1024 of 1024 elements, each once"


def test_coverage_of_reads_that_repeat():
    """Threads along N read the same part of A: as often as the thread-value layout's nullspace is large."""
    copy = make_tiled_copy_A(CopyAtom("SM75_U32x4_LDSM_N", "f16"), mma())
    read = checks.coverage(copy, side="D", write=False)
    assert read.ok
    assert read.repeats == nullspace(copy.layout_D_TV).size == 2
    write = checks.coverage(copy, side="D")
    assert not write.ok
    with pytest.raises(errors.NonInjective, match=r"a race: thread 0 .* and thread 64 .* both write element 0"):
        write.require()


def test_coverage_with_holes():
    report = checks.coverage("(4,2):(1,8)", (4, 4))
    assert (report.touched, report.missing, report.collision) == (8, 4, None)
    with pytest.raises(errors.OutOfDomain, match="element 4 is left out"):
        report.require()
    with pytest.raises(errors.OutOfDomain, match="index 11 of a tile of 8 elements"):
        checks.coverage("(4,2):(1,8)", 8)


def test_coverage_in_memory():
    """Each element of the tile once, but two of them at one address."""
    assert checks.coverage("(8,2):(1,8)", (4, 4), memory="(4,4):(1,4)").ok
    report = checks.coverage("(8,2):(1,8)", (4, 4), memory="(4,4):(1,3)")
    assert report.missing is None
    assert report.collision == ((3, 0), (4, 0), 3)
    assert checks.coverage("(8,2):(1,8)", (4, 4), memory="Sw<1,0,1> o 0 o (4,4):(1,4)").ok


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_coverage_follows_its_definition(seed):
    rng = random.Random(seed)
    layout = Layout((rng.randint(1, 5), rng.randint(1, 5)), (rng.randint(0, 5), rng.randint(0, 5)))
    size = layout.cosize + rng.randint(0, 2)
    report, counts = checks.coverage(layout, size), np.bincount(layout.values(), minlength=size)
    assert report.touched == (counts > 0).sum()
    assert report.repeats == counts.max()
    assert report.ok == (counts == 1).all()
    if report.collision:
        (t0, v0), (t1, v1), element = report.collision
        assert (t0, v0) != (t1, v1)
        assert layout(t0, v0) == layout(t1, v1) == element


# ---- Vectors and swizzles ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "destination", "options", "width", "limit"),
    [
        ("(8,32):(4096,1)", "(8,32):(32,1)", {}, 16, "16 bytes"),
        ("(8,32):(4096,1)", "(8,32):(32,1)", {"most": 8}, 8, "8 bytes"),
        ("(8,32):(4100,1)", "(8,32):(32,1)", {}, 8, "the strides of the source"),
        ("(8,32):(4096,1)", "(8,32):(34,1)", {}, 4, "the strides of the destination"),
        ("(8,32):(4096,1)", "(8,32):(1,8)", {}, 2, "what is contiguous in both"),
        ("(8,32):(4096,1)", "Sw<3,1,3> o 0 o (8,32):(32,1)", {}, 4, "what is contiguous in both"),
        ("(8,32):(4096,1)", "(8,32):(32,1)", {"source_alignment": 4}, 4, "the address of the source"),
        ("(8,32):(4096,1)", "(8,32):(32,1)", {"destination_alignment": 2}, 2, "the address of the destination"),
        ("(8,6):(6,1)", "(8,6):(6,1)", {}, 16, "16 bytes"),  # 48 elements in a row
        ("(8,6):(8,1)", "(8,6):(8,1)", {}, 4, "what is contiguous in both"),
    ],
)
def test_widest_vector(source, destination, options, width, limit):
    report = checks.widest_vector(source, destination, "bf16", **options)
    assert (report.bytes, report.elements, report.limited_by) == (width, width // 2, limit)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_widest_vector_is_right(seed):
    """Every group of so many elements is contiguous and aligned on both sides."""
    rng = random.Random(seed)
    shape = (2 ** rng.randint(0, 3), 2 ** rng.randint(0, 3))
    layouts = [
        Layout(shape, rng.choice([(1, shape[0] + rng.randint(0, 4)), (shape[1] + rng.randint(0, 4), 1)]))
        for _ in range(2)
    ]
    n = checks.widest_vector(*layouts, "f32").elements
    source, destination = (x.values() for x in layouts)
    order = np.argsort(destination)
    for group in source[order].reshape(-1, n), destination[order].reshape(-1, n):
        assert (group == group[:, :1] + np.arange(n)).all()
        assert (group[:, 0] % n == 0).all()


def test_widest_vector_of_a_fragment():
    """What `copy` of cuda/moye/algorithm does with a thread's part of padded shared memory."""
    part = Layout("(1,(4,2)):(0,(1,64))")
    assert checks.widest_vector(part, make_fragment_like(part), "f32").bytes == 16


@pytest.mark.parametrize(("blk_k", "swizzle"), [(16, (1, 3, 3)), (32, (2, 3, 3)), (64, (3, 3, 3)), (128, (3, 3, 4))])
def test_best_swizzle(blk_k, swizzle):
    """The swizzles that research/layouts.md §5.5 gives for K-major rows of 16-bit elements."""
    store = make_tiled_copy(CopyAtom(cp_async(16), "f16"), Layout((1024 // blk_k, blk_k // 8), order="row"), "(1,8)")
    reads = [make(CopyAtom("SM75_U32x4_LDSM_N", "f16"), mma()) for make in (make_tiled_copy_A, make_tiled_copy_B)]
    smem = Layout((128, blk_k), (blk_k, 1))
    found, report = checks.best_swizzle(smem, [store, *reads])
    assert report.degree == 1
    assert found == Swizzle(*swizzle)


# ---- Resources -----------------------------------------------------------------------------------------------------


def test_smem_bytes():
    arrays = (("(128,32,4):(32,1,4096)", "bf16"), ("Sw<2,3,3> o 0 o (128,32,4):(32,1,4096)", "bf16"))
    assert checks.smem_bytes(*arrays).bytes == 65536
    assert checks.smem_bytes(*arrays, ("(3):(1)", "f32")).bytes == 65536 + 1024
    report = checks.smem_bytes(*arrays, *arrays, arch="sm_86")
    assert not report.ok
    with pytest.raises(errors.SmemOverflow, match=r"131,072 bytes .* more than the 101,376"):
        report.require()
    assert checks.layout_bytes("Sw<3,3,3> o 0 o (9,64):(64,1)", "f16") == 2 * 9 * 64
    assert checks.layout_bytes("Sw<2,0,2> o 0 o (5):(1)", "f16") == 2 * 6  # element 4 goes to index 5


@pytest.mark.parametrize(
    ("threads", "smem", "registers", "arch", "ctas", "limited_by"),
    [
        (128, 65536, 254, "sm_90", 2, ("registers",)),
        (128, 65536, 128, "sm_90", 3, ("shared memory",)),
        (128, 65536, 128, "sm_80", 2, ("shared memory",)),
        (128, 65536, 128, 86, 1, ("shared memory",)),
        (256, 8448, 128, "sm_90", 2, ("registers",)),
        (1024, 0, 32, "sm_75", 1, ("threads",)),
        (32, 0, 16, "sm_89", 24, ("CTAs",)),
        (32, 0, 16, "sm_90a", 32, ("CTAs",)),
        (384, 200 * 1024, 168, "sm_90", 1, ("registers", "shared memory")),
        (128, 164 * 1024, 32, "sm_80", 0, ("shared memory",)),
        (128, 0, 256, "sm_80", 0, ("registers",)),
    ],
)
def test_occupancy(threads, smem, registers, arch, ctas, limited_by):
    report = checks.occupancy(threads, smem, registers, arch)
    assert (report.ctas, report.limited_by) == (ctas, limited_by)
    assert report.ok == (ctas > 0)
    assert report.warps == ctas * -(-threads // 32)


def test_occupancy_of_nothing_known():
    with pytest.raises(errors.InvalidType, match="sm_99"):
        checks.occupancy(128, 0, 32, "sm_99")
    with pytest.raises(errors.InvalidShape):
        checks.occupancy(0, 0, 32, "sm_90")


def test_waves():
    report = checks.waves((4096, 4096), (128, 128), 132, 2)
    assert (report.ctas, report.waves, report.tail) == (1024, 4, 232)
    assert report.efficiency == pytest.approx(1024 / 1056)
    assert checks.waves((1, 1), (128, 128), 132, batch=133).waves == 2
    assert checks.waves((0, 5), (128, 128), 132).efficiency == 1
    with pytest.raises(errors.InvalidShape):
        checks.waves((1, 1), (1, 1), 132, 0)


def test_register_estimate():
    report = checks.register_estimate(("((2,2),4,8):((1,2),4,16)", "f32"), ((32, "bf16"), (32, "bf16")), overhead=30)
    assert (report.accumulators, report.fragments, report.total, report.ok) == (128, 64, 224, True)
    assert report.at_least == 128 + 32
    assert "spill" in str(checks.register_estimate((256, "f32")))


def compiled_rows():
    """The rows of the table whose layouts the library knows, in a package that nvcc has built."""
    import jax_moye
    from jax_moye.layout import kernels

    rows = [row for row in jax_moye.configs() if row.registers and row.kernel in ("simt_tiled", "sm80_multistage")]
    return [pytest.param(row, kernels.kernel_layouts(row).register_report(), id=row.name) for row in rows]


@pytest.mark.parametrize(
    ("row", "report"), compiled_rows() or [pytest.param(None, None, marks=pytest.mark.skip("no nvcc"))]
)
def test_register_estimate_against_the_compiler(row, report):
    # Fragments of bytes are put together in registers that the guess does not know.
    most = 1.8 if row.dtype in ("s8", "e4m3", "e5m2") else 1.5
    for arch, registers in row.registers.items():
        assert report.at_least <= registers, arch
        assert 0.75 * report.total <= registers <= most * report.total, arch
