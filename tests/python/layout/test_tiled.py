"""Laws, errors, worked examples and cost of TiledCopy and TiledMma. Recorded facts of them: test_oracle.py."""

import json
import os
import pathlib
import statistics
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_moye import layout as lay
from jax_moye.layout import atoms, errors, tiled, tiled_copy, tiled_mma
from jax_moye.layout import int_tuple as it
from jax_moye.layout.atoms import CopyAtom
from jax_moye.layout.tensor import Tensor, make_tensor
from jax_moye.layout.tiled import make_tiled_copy, make_tiled_mma

DATA = pathlib.Path(__file__).parents[2] / "data" / "oracle"


def agree(got, expected):
    assert lay.functionally_equal(got, lay.Layout(expected)), f"{got}, not {expected}"


def test_misuses():
    """What is said, beyond the classes that test_oracle.py looks at."""
    with pytest.raises(errors.TiledCopyTooFewValues, match="moves 8 float16") as raised:
        make_tiled_copy(CopyAtom("UniversalCopy<uint128_t>", "half_t"), "(16,8)", "(1,4)")
    assert raised.value.hint.startswith("8 values per thread")
    with pytest.raises(errors.TiledCopyTooFewThreads, match="takes 32 threads; 16") as raised:
        make_tiled_copy(CopyAtom("SM75_U32x4_LDSM_N", "half_t"), "(16,1)", "(2,4)")
    assert raised.value.hint == "32 threads"
    with pytest.raises(errors.RankMismatch):
        make_tiled_mma("SM80_16x8x8_F32TF32TF32F32_TN", "(1,1,1)", "[_;_;_;_]")


TF32 = "SM80_16x8x8_F32TF32TF32F32_TN"


@pytest.mark.parametrize(
    ("error", "function"),
    [
        (errors.ShapeDivisibility, lambda: make_tiled_mma(TF32, "(2,2)", (48, 32, 8))),
        (errors.AtomMismatch, lambda: make_tiled_mma("SM80_nothing")),
        (errors.AtomMismatch, lambda: make_tiled_mma(7)),
        (errors.InvalidType, lambda: make_tiled_mma(TF32, "(1,1)", 32)),
        (errors.AtomMismatch, lambda: make_tiled_copy("SM75_U32x4_LDSM_N", "(32,1)", "(1,8)")),
        (errors.CoordOutOfRange, lambda: make_tiled_mma(TF32).get_slice(32)),
        (errors.CoordOutOfRange, lambda: make_tiled_mma(TF32).get_slice(-1)),
        (errors.ShapeDivisibility, lambda: make_tiled_mma(TF32).get_slice(0).partition_A("(24,8)")),
        (errors.RankMismatch, lambda: make_tiled_mma(TF32).get_slice(0).partition_A("(16)")),
        (errors.ParseError, lambda: make_tiled_mma(TF32, "(2,2")),
        (errors.OutOfDomain, lambda: make_tiled_copy(CopyAtom(atoms.UniversalCopy("f32"), "f32"), "(4,4):(2,8)")),
    ],
)
def test_more_errors(error, function):
    with pytest.raises(error):
        function()


def test_copy_errors():
    copy = make_tiled_copy(CopyAtom(atoms.UniversalCopy("f32"), "f32"), "(4,4)", "(2,1)")
    with pytest.raises(errors.CoordOutOfRange):
        copy.get_slice(16)
    with pytest.raises(errors.ShapeDivisibility):
        copy.get_slice(0).partition_S("(12,4)")
    with pytest.raises(errors.RankMismatch):
        copy.get_slice(0).partition_S("(8)")
    with pytest.raises(errors.ShapeDivisibility):
        copy.retile("(3,2,2)")


def test_worked_example():
    """Two shipped configurations."""
    mma = make_tiled_mma("SM80_16x8x16_F32F16F16F32_TN", "(2,2,1):(1,2,0)", "[32;32;16]")
    thread = mma.get_slice(5)
    assert [str(x) for x in thread.partition_A("(128,64):(64,1)")] == ["((2,2,2),4,4):((1,512,8),2048,16)", "66"]
    assert [str(x) for x in thread.partition_B("(128,64):(64,1)")] == ["((2,2),8,4):((1,8),1024,16)", "66"]
    assert [str(x) for x in thread.partition_C("(128,128):(128,1)")] == ["((2,2),4,8):((1,1024),4096,16)", "130"]
    wgmma = make_tiled_mma("SM90_64x128x16_F32F16F16_SS", "(2,1,1)")
    agree(wgmma.layout_C_TV, "((4,8,8),((2,2,16),(1,1))):((256,1,16),((128,8,1024),(0,0)))")
    stsm = tiled.make_tiled_copy_C(
        CopyAtom("SM90_U32x4_STSM_N", "half_t"), make_tiled_mma("SM90_64x128x16_F32F16F16_SS")
    )
    agree(stsm.layout_S_TV, "((4,8,4),((2,2,2),8)):((128,1,16),((64,8,512),1024))")
    agree(stsm.layout_D_TV, "((16,2,4),(8,8)):((1,512,16),(64,1024))")


def thread_fragment_size(mma, operand, text):
    return getattr(mma.get_slice(0), f"partition_fragment_{operand}")(lay.Layout(text)).size


def test_moye_partition_shapes():
    facts = {f["op"]: f for f in json.loads((DATA / "moye_facts.json").read_text())["facts"]}
    atom, atom_layout = facts["tile_size"]["args"]
    mma = make_tiled_mma(atom, atom_layout)
    assert list(mma.tile_size) == facts["tile_size"]["expect"]
    for operand in "ABC":
        fact = facts[f"partition_{operand}_shape_rest"]
        partitioned, _ = getattr(mma.get_slice(0), f"partition_{operand}")(fact["args"][0])
        assert [mode.size for mode in partitioned][1:] == fact["expect"]
        fragment = getattr(mma.get_slice(0), f"make_fragment_{operand}")(partitioned)
        assert fragment.size == partitioned.size
        assert thread_fragment_size(mma, operand, fact["args"][0]) == partitioned.size
    assert facts["size(partition_fragment_X)==size(partition_X)"]["expect"]
    fact = facts["thread map of make_tiled_copy"]
    thr, val = (text.split(" ")[1] for text in fact["args"][:2])
    copy = make_tiled_copy(CopyAtom(atoms.UniversalCopy("f64"), "f64"), thr, val)
    owner = np.empty((4, 9), int)
    for t, v in lay.coordinates((6, 6)):
        owner[lay.idx2crd(copy.layout_TV(t, v), (4, 9))] = t
    assert owner.tolist() == fact["expect"]
    fact = facts["TiledMMA show"]
    mma = make_tiled_mma("MMAOP_8x8x4_F32F16F16F32_NT", "(2,2):(2,1)", "[(4,4,2):(1,8,4);32;4]")
    assert str(mma.thr_layout_vmnk) == fact["expect"]["ThrLayoutVMNK"]
    assert str(mma.atom.thr_id) == fact["expect"]["ThrID"]
    for operand in "ABC":
        assert str(getattr(mma.atom, f"layout_{operand}_TV")) == fact["expect"][f"{operand}_TV"]
    assert facts["make_tiled_mma"]["expect"] == {"threads": 128, "tile": [32, 32, 8]}


# ---- Laws ----------------------------------------------------------------------------------------------------------


@st.composite
def arrangements(draw, extents):
    """A compact layout of the extents, modes in any order."""
    order = draw(st.permutations(range(len(extents))))
    return lay.make_ordered_layout(tuple(extents), tuple(order))


@st.composite
def tensors(draw, extents):
    """An injective layout of the extents: any order of the modes, perhaps padded, perhaps swizzled."""
    layout = draw(arrangements(extents))
    pad = draw(st.sampled_from([0, 0, 1, 8]))
    last = max(range(len(extents)), key=lambda i: layout.stride[i])
    stride = tuple(d + pad * (i == last and d > 0) for i, d in enumerate(layout.stride))
    layout = lay.Layout(layout.shape, stride)
    swizzle = draw(st.sampled_from([None, None, lay.Swizzle(1, 2, 3), lay.Swizzle(3, 3, 3)]))
    return layout if swizzle is None else swizzle @ layout


SMALL = st.sampled_from([1, 2, 3, 4, 8])


def parts(count, partition):
    """The indices that each thread has: (thread, element)."""
    return np.stack([layout.values() + offset for layout, offset in map(partition, range(count))])


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_copy_partitions_are_disjoint_and_complete(data):
    thr = data.draw(st.tuples(SMALL, SMALL).flatmap(arrangements))
    val = data.draw(st.tuples(SMALL, SMALL).flatmap(arrangements))
    copy = make_tiled_copy(CopyAtom(atoms.UniversalCopy("f32"), "f32"), thr, val)
    assert sorted(copy.layout_TV.values()) == list(range(thr.size * val.size))
    rests = data.draw(st.tuples(*[st.sampled_from([1, 2, 3])] * data.draw(st.sampled_from([2, 3]))))
    extents = tuple(r * t for r, t in zip(rests, (*copy.tile_size, 1), strict=False))
    tensor = data.draw(tensors(extents))
    expected = np.sort(tensor.values())
    for side in "SD":
        got = parts(copy.threads, lambda t, side=side: getattr(copy.get_slice(t), f"partition_{side}")(tensor))
        assert np.array_equal(np.sort(got.reshape(-1)), expected)
        # Elements in the order of the values in the tile: thread t has those where thr says t.
        shape = getattr(copy.get_slice(0), f"partition_{side}")(tensor)[0].shape
        assert it.product_each(shape) == (val.size, *rests)


WARP = [
    "SM80_16x8x8_F32TF32TF32F32_TN",
    "SM80_16x8x16_F32BF16BF16F32_TN",
    "SM80_8x8x4_F64F64F64F64_TN",
    "SM80_16x8x32_S32S8S8S32_TN",
    "SM70_8x8x4_F32F16F16F32_NT",
    "UniversalFMA<float>",
    "SM90_64x16x16_F32F16F16_RS",
]


@st.composite
def tiled_mmas(draw):
    atom = atoms.mma_atom(draw(st.sampled_from(WARP)))
    places = draw(st.tuples(*[st.sampled_from([1, 2, 3])] * 2, st.sampled_from([1, 1, 2])))
    if atom.min_arch == 70:
        # Quad pairs lie between each other: only so many, and powers of two, fill whole warps.
        places = tuple(min(p, 2) for p in places)
        places = draw(st.sampled_from([(2, 2, 1), (4, 1, 1), (1, 4, 1), (1, 1, 1), (2, 1, 2), (1, 2, 2)]))
    atom_layout = draw(arrangements(places))
    repeats = draw(st.tuples(*[st.sampled_from([0, 1, 2])] * 3))
    tiles = tuple(lay._ if r == 0 else r * p * s for r, p, s in zip(repeats, places, atom.shape_mnk, strict=True))
    return make_tiled_mma(atom, atom_layout, tiles)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_mma_partitions_cover(data):
    """Each element of C belongs to one place of the atom layout along M and N, and likewise A and B."""
    mma = data.draw(tiled_mmas())
    places = dict(zip("mnk", [mode.size for mode in mma.thr_layout_vmnk][1:], strict=True))
    rests = data.draw(st.tuples(*[st.sampled_from([1, 2])] * 3))
    m, n, k = (r * t for r, t in zip(rests, mma.tile_shape, strict=True))
    order = sorted(mma.thr_layout_vmnk.values())
    for operand, extents, other in (("A", (m, k), "n"), ("B", (n, k), "m"), ("C", (m, n), "k")):
        tensor = data.draw(tensors(extents))
        copies = places[other] * (mma.atom.threads if operand in mma.atom.smem_operands else 1)
        got = np.stack(
            [
                layout.values() + offset
                for layout, offset in (getattr(mma.get_slice(t), f"partition_{operand}")(tensor) for t in order)
            ]
        )
        assert np.array_equal(np.sort(got.reshape(-1)), np.repeat(np.sort(tensor.values()), copies)), operand
        part, _offset = getattr(mma.get_slice(0), f"partition_{operand}")(tensor)
        assert it.product_each(mma.partition_shape(operand, extents)) == it.product_each(part.shape)
    # The TV layouts say the same of one tile.
    for operand, modes in (("A", (0, 2)), ("B", (1, 2)), ("C", (0, 1))):
        tile = lay.Layout(tuple(mma.tile_shape[i] for i in modes))
        tv = getattr(mma, f"layout_{operand}_TV")
        table = tv.values().reshape(tv[1].size, tv[0].size).T
        for t in order:
            layout, offset = getattr(mma.get_slice(t), f"partition_{operand}")(tile)
            assert np.array_equal(layout.values() + offset, table[t])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_retiled_fragments_agree(data):
    """What a copy for an MMA moves into retile_D(fragment) is what the MMA's partition has there."""
    name, kinds = data.draw(
        st.sampled_from(
            [
                ("SM80_16x8x8_F32TF32TF32F32_TN", [("UniversalCopy<float>", "float"), ("SM75_U32x4_LDSM_N", "float")]),
                (
                    "SM80_16x8x16_F32F16F16F32_TN",
                    [
                        ("UniversalCopy<uint16_t>", "half_t"),
                        ("SM75_U32x4_LDSM_N", "half_t"),
                        ("SM75_U32x2_LDSM_N", "half_t"),
                    ],
                ),
            ]
        )
    )
    atom = CopyAtom(*data.draw(st.sampled_from(kinds)))
    atom_layout = data.draw(arrangements(data.draw(st.sampled_from([(1, 1, 1), (2, 2, 1), (1, 2, 1), (4, 1, 1)]))))
    plain = make_tiled_mma(name, atom_layout)
    mma = make_tiled_mma(name, atom_layout, tuple(x * f for x, f in zip(plain.tile_shape, (1, 2, 1), strict=True)))
    operand = data.draw(st.sampled_from("AB"))
    copy = getattr(tiled, f"make_tiled_copy_{operand}")(atom, mma)
    rests = data.draw(st.tuples(*[st.sampled_from([1, 2, 3])] * 2))
    tile = lay.Layout(tuple(r * t for r, t in zip(rests, copy.tile_size, strict=True)), order="row")
    for t in data.draw(st.lists(st.integers(0, mma.threads - 1), min_size=1, max_size=4)):
        own, at = getattr(mma.get_slice(t), f"partition_{operand}")(tile)
        fragment = getattr(mma.get_slice(t), f"make_fragment_{operand}")(own)
        retiled = copy.get_slice(t).retile_D(fragment)
        wanted, offset = copy.get_slice(t).partition_D(tile)
        assert it.product_each(retiled.shape) == it.product_each(wanted.shape)
        register = np.empty(fragment.size, np.int64)
        register[fragment.values()] = own.values() + at
        assert np.array_equal(register[retiled.values()], wanted.values() + offset)
        assert copy.get_slice(t).retile_S(fragment) == retiled


def test_copies_of_copies():
    copy = make_tiled_copy(CopyAtom("LDSM_U32x4_N", "uint16"), "(16,2)", "(2,4)")
    other = CopyAtom(atoms.UniversalCopy("uint16"), "uint16")
    assert np.array_equal(tiled.make_tiled_copy_D(other, copy).layout_TV.values(), copy.layout_D_TV.values())
    assert np.array_equal(tiled.make_tiled_copy_S(other, copy).layout_TV.values(), copy.layout_S_TV.values())


@pytest.mark.parametrize(
    ("tv", "memory"),
    [
        ("((8,16),8):((8,64),1)", "(64,64):(64,1)"),
        ("(32,8):(8,1)", "(64,64):(64,1)"),
        ("((16,16),4):((4,128),1)", "(128,64):(1,128)"),
        ("(32,8):(8,1)", "((8,2),32):((32,256),1)"),
    ],
)
def test_copies_by_place_in_memory(tv, memory):
    tv, memory = lay.Layout(tv), lay.Layout(memory)
    copy = tiled.make_cotiled_copy(CopyAtom("UniversalCopy<uint64_t>", "half_t"), tv, memory)
    assert copy.threads == tv[0].size
    seen = []
    for t in range(copy.threads):
        layout, offset = copy.get_slice(t).partition_S(memory)
        first = layout[0].values() + offset
        assert first.tolist() == [tv(t, v) for v in range(tv[1].size)]
        seen += (layout.values() + offset).tolist()
    assert sorted(seen) == sorted(memory.values())


@pytest.mark.parametrize("pitch", [65, 66, 72, 80])
def test_copies_by_place_in_padded_memory(pitch):
    """Rows longer than what is in them, as shared memory has them to avoid bank conflicts."""
    memory = lay.Layout((64, 32), (pitch, 1))
    tv = lay.Layout(((4, 16), 8), ((8, pitch), 1))
    copy = tiled.make_cotiled_copy(CopyAtom("UniversalCopy<uint64_t>", "half_t"), tv, memory)
    assert copy.tile_size == (16, 32)
    for t in range(copy.threads):
        layout, offset = copy.get_slice(t).partition_S(memory)
        assert (layout[0].values() + offset).tolist() == [tv(t, v) for v in range(8)]


@pytest.mark.parametrize(
    ("tv", "memory", "error", "reason"),
    [
        ("(8,4):(4,1)", "(8,16):(20,1)", "OutOfDomain", "value 0 of thread 4 is at offset 16, where"),
        ("(8,1):(1,0)", "(8,2):(0,1)", "OutOfDomain", "value 0 of thread 2 is at offset 2, where"),
        ("(4,1):(65,1)", "(64,(4,8)):(1,(65,272))", "LeftInverseDivisibility", "272 of mode 8:272 is not a multiple"),
    ],
)
def test_copies_by_place_that_no_tile_has(tv, memory, error, reason):
    with pytest.raises(getattr(errors, error), match=reason) as raised:
        tiled.make_cotiled_copy(CopyAtom("UniversalCopy<uint16_t>", "half_t"), tv, memory)
    assert raised.value.op == "make_cotiled_copy"


def inverts(by_place, layout_tv):
    """Whether (m,n) -> (thread, value) leads back to the place it came from, for all of the tile."""
    places = by_place.values()
    return (layout_tv.values()[places] == np.arange(places.size)).all()


@pytest.mark.parametrize(
    ("name", "atoms"),
    [
        ("SM80_16x8x16_F32BF16BF16F32_TN", "(2,2,1)"),
        ("SM80_16x8x8_F32TF32TF32F32_TN", "(2,2,1):(2,1,1)"),
        ("SM70_8x8x4_F32F16F16F32_NT", "(2,2,1)"),
        ("SM80_8x8x4_F64F64F64F64_TN", "(1,4,2)"),
        ("UniversalFMA<float>", "(16,16,1)"),
    ],
)
def test_layouts_by_place_of_an_mma(name, atoms):
    mma = make_tiled_mma(name, atoms)
    m, n, k = mma.tile_shape
    sides = (("A", "MK", (m, k), 2), ("B", "NK", (n, k), 1), ("C", "MN", (m, n), 3))
    for operand, modes, tile, missing in sides:
        by_place, threads = getattr(mma, f"get_layout{operand}_{modes}")()
        assert by_place.size == tile[0] * tile[1]
        assert inverts(by_place, getattr(mma, f"layout_{operand}_TV"))
        assert [size.size for size in threads] == [x.size for i, x in enumerate(mma.thr_layout_vmnk) if i != missing]


@pytest.mark.parametrize(
    ("op", "thr", "val"), [("LDSM_U32x4_N", "(16,2)", "(2,4)"), ("LDSM_U16x8_T", "(4,8)", "(2,4)")]
)
def test_layouts_by_place_of_a_copy(op, thr, val):
    copy = make_tiled_copy(CopyAtom(op, "uint16"), thr, val)
    for side in "SD":
        by_place, threads = getattr(copy, f"get_layout{side}_MN")()
        assert threads.size == copy.threads
        assert by_place.size == 32 * 8
        assert inverts(by_place, getattr(copy, f"layout_{side}_TV"))


def test_copies_by_place_in_memory_that_are_none():
    atom = CopyAtom("UniversalCopy<uint64_t>", "half_t")
    for tv, memory in (
        ("(32,8):(8,1)", "(8,64):(72,1)"),
        ("(32,8):(16,1)", "(8,32):(32,1)"),
        ("(4,8):(9,1)", "(8,8):(8,1)"),
    ):
        with pytest.raises(errors.LayoutError) as raised:
            tiled.make_cotiled_copy(atom, tv, memory)
        assert raised.value.op == "make_cotiled_copy"


def test_tensors_and_layouts_partition_alike():
    mma = make_tiled_mma(TF32, "(2,2)")
    tensor = make_tensor("float32", (64, 32))
    for t in (0, 77, 127):
        thread = mma.get_slice(t)
        for operand in "ABC":
            layout, offset = getattr(thread, f"partition_{operand}")(tensor.layout)
            part = getattr(thread, f"partition_{operand}")(tensor)
            assert (part.layout, part.offset) == (layout, offset)
            assert part.data is tensor.data
            fragment = getattr(thread, f"partition_fragment_{operand}")(tensor)
            assert isinstance(fragment, Tensor)
            assert fragment.size == part.size
            assert getattr(thread, f"partition_fragment_{operand}")(tensor.layout).shape == part.shape


def test_smem_operands_stay_where_they_are():
    thread = make_tiled_mma("SM90_64x64x16_F32F16F16_SS").get_slice(0)
    part = thread.partition_A(make_tensor("float16", (64, 16)))
    assert thread.make_fragment_A(part) is part


# ---- Cost ----------------------------------------------------------------------------------------------------------


def median_ms(function, repeats=15):
    times = []
    for _ in range(repeats):
        for module in (tiled_copy, tiled_mma, lay.algebra, lay.inverse):
            for cached in vars(module).values():
                if hasattr(cached, "cache_clear"):
                    cached.cache_clear()
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def test_partition_takes_less_than_a_millisecond():
    """Nothing cached: the layouts of the largest tiles, swizzled, three stages."""
    mma = make_tiled_mma("SM80_16x8x16_F32BF16BF16F32_TN", "(2,4,1)", (64, 64, 16))
    smem = lay.tile_to_shape(lay.Swizzle(3, 3, 3) @ lay.Layout("(8,64):(64,1)"), (256, 64, 4))
    copy = tiled.make_tiled_copy_A(CopyAtom("SM75_U32x4_LDSM_N", "bf16"), mma)
    g2s = make_tiled_copy(CopyAtom(atoms.cp_async(16, cache="global"), "bf16"), "(32,8):(8,1)", "(1,8)")
    thread = mma.get_slice(77)
    budget = 1.0 if "PYTEST_XDIST_WORKER" not in os.environ else 3.0  # workers share the processor
    for name, function in {
        "partition_A": lambda: thread.partition_A(smem),
        "partition_C": lambda: thread.partition_C("(256,256):(8192,1)"),
        "partition_S, ldmatrix": lambda: copy.get_slice(77).partition_S(smem),
        "partition_D, cp.async": lambda: g2s.get_slice(77).partition_D(smem),
    }.items():
        assert median_ms(function) < budget, name
