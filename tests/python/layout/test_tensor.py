"""Tensors on NumPy memory; copy and gemm for one thread and for all."""

import json
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_moye import layout as lay
from jax_moye.layout import errors
from jax_moye.layout.atoms import CopyAtom, UniversalCopy, UniversalFMA, mma_atom
from jax_moye.layout.execute import copy, gemm
from jax_moye.layout.tensor import Tensor, local_partition, local_tile, make_fragment_like, make_tensor, zeros
from jax_moye.layout.tiled import make_tiled_copy, make_tiled_copy_A, make_tiled_copy_B, make_tiled_mma

DATA = pathlib.Path(__file__).parents[2] / "data" / "oracle"
FACTS = json.loads((DATA / "moye_facts.json").read_text())["facts"]


def facts(op):
    return [f for f in FACTS if f["op"] == op]


# ---- Tensor --------------------------------------------------------------------------------------------------------


def test_elements_and_slices():
    data = np.arange(24.0)
    t = make_tensor(data, "(4,(2,3)):(1,(4,8))")
    assert (t.shape, t.rank, t.size, len(t), t.dtype) == ((4, (2, 3)), 2, 24, 2, np.float64)
    assert t[1, 2] == t(1, 2) == t[9] == 9
    assert t[1, (1, 0)] == 5
    row = t[1, None]
    assert isinstance(row, Tensor)
    assert row.data is data
    assert row.numpy().tolist() == [1, 5, 9, 13, 17, 21]
    assert t[:, (1, lay._)].numpy().shape == (4, 3)
    assert t[..., 2].values().tolist() == [8, 9, 10, 11]
    assert repr(row) == "Tensor of float64 ((2,3)):((4,8)) at 1"
    t[1, None] = 0
    assert data[[1, 5, 9, 13, 17, 21]].tolist() == [0] * 6
    t[0, 0] = -1
    assert data[0] == -1
    t[:, 0] = np.array([5, 6, 7, 8])
    assert data[:4].tolist() == [5, 6, 7, 8]
    t[:, 1] = t[:, 0]
    assert data[4:8].tolist() == [5, 6, 7, 8]
    assert np.asarray(t).shape == (4, 6)
    assert np.asarray(t, np.float32).dtype == np.float32


@pytest.mark.parametrize("view", ["C", "F", "transposed", "reversed", "strided", "bfloat16", "one", "scalar"])
def test_arrays_are_seen_through_their_own_strides(view):
    array = np.arange(24.0).reshape(4, 6)
    if view == "bfloat16":
        import ml_dtypes

        array = np.asfortranarray(array.astype(ml_dtypes.bfloat16))
    array = {
        "F": lambda: np.asfortranarray(array),
        "transposed": lambda: array.T,
        "reversed": lambda: array[::-1, ::-2],
        "strided": lambda: array[1::2, 2:5],
        "one": lambda: array[:1, 2:3],
        "scalar": lambda: array[0, 0:1].reshape(()),
    }.get(view, lambda: array)()
    t = Tensor(array)
    assert np.array_equal(t.numpy().reshape(array.shape), array)
    before = array.copy()
    t.assign(t.numpy() + 1)
    assert np.array_equal(array, before + 1)


@settings(max_examples=100, deadline=None)
@given(st.permutations([0, 1, 2]), st.tuples(*[st.integers(1, 5)] * 3), st.integers(0, 7), st.data())
def test_a_tensor_is_its_layout(order, extents, offset, data):
    layout = lay.make_ordered_layout(extents, tuple(order))
    if data.draw(st.booleans()):
        layout = lay.Swizzle(2, 1, 2) @ layout
    buffer = np.arange(layout.cosize + offset + 32)
    t = Tensor(buffer, layout, offset)
    coord = tuple(data.draw(st.integers(0, n - 1)) for n in extents)
    assert t[coord] == offset + layout(*coord)
    kept = tuple(c if data.draw(st.booleans()) else None for c in coord)
    whole = t.numpy()
    expected = whole[tuple(slice(None) if k is None else k for k in kept)]
    got = t[kept].numpy() if None in kept else t[kept]
    assert np.array_equal(np.reshape(got, np.shape(expected)), expected)


def test_memory_of_its_own():
    t = make_tensor("float32", (2, 3))
    assert np.isnan(t.numpy()).all()
    assert (make_tensor("int32", (4,)).numpy() == -1).all()
    assert (zeros(t).numpy() == 0).all()
    assert (zeros("bf16", "(4,2):(2,1)").values() == 0).all()
    fragment = make_fragment_like(make_tensor("float16", "(8,16):(1,8)")[:, 3])
    assert (str(fragment.layout), fragment.dtype) == ("(8):(1)", np.float16)
    assert make_fragment_like(t, "float64").dtype == np.float64
    assert str(make_fragment_like(lay.Layout("(4,2):(2,1)"))) == str(lay.make_fragment_like("(4,2):(2,1)"))


def test_recast_and_group():
    t = make_tensor(np.arange(16, dtype=np.uint16), "(8,2):(1,8)")
    wide = t.recast("uint64")
    assert wide.shape == (2, 2)
    assert wide[1, 0] == 4 + (5 << 16) + (6 << 32) + (7 << 48)
    assert np.array_equal(wide.recast("uint16").values(), t.values())
    assert t.group_modes(0, 2).shape == ((8, 2),)
    with pytest.raises(errors.Misaligned):
        Tensor(t.data, "(4):(1)", 1).recast("uint64")
    with pytest.raises(errors.UpcastDivisibility):
        make_tensor(np.arange(16, dtype=np.uint16), "(4,3):(1,5)").recast("uint32")


@pytest.mark.parametrize(
    ("error", "function"),
    [
        (errors.OutOfDomain, lambda: Tensor(np.zeros(23), "(4,6)")),
        (errors.OutOfDomain, lambda: Tensor(np.zeros(24), "(4,6):(1,4)", 1)),
        (errors.OutOfDomain, lambda: Tensor(np.zeros(24), "4:-1")),
        (errors.OutOfDomain, lambda: Tensor(np.zeros(8), "Sw<1,2,3> o 8 o 1:0")),
        (errors.InvalidType, lambda: Tensor(np.zeros((2, 3)), "(2,3)")),
        (errors.InvalidType, lambda: Tensor(np.zeros((2, 0)))),
        (errors.OutOfDomain, lambda: make_tensor("float32", "4:-1")),
        (errors.AtomMismatch, lambda: make_tensor("uint128", (4,))),
        (errors.CoordOutOfRange, lambda: make_tensor("float32", (4, 6))[4, 0]),
        (errors.CoordOutOfRange, lambda: make_tensor("float32", (4, 6))[None, 6]),
        (errors.RankMismatch, lambda: make_tensor("float32", (4, 6))[1, 2, 3]),
        (errors.ProfileMismatch, lambda: make_tensor("float32", (4, 6)).assign(np.zeros((6, 4)))),
        (errors.ShapeDivisibility, lambda: local_tile("(6,8)", (4, 4), (0, 0))),
        (errors.CoordOutOfRange, lambda: local_tile("(6,8)", (3, 4), (2, 0))),
        (errors.RankMismatch, lambda: local_tile("(6,8)", (3, 4), (0, 0), (1, None, 1))),
    ],
)
def test_errors(error, function):
    with pytest.raises(error):
        function()


# ---- Tiles and partitions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", facts("local_partition"))
def test_local_partition(fact):
    text, kind, which = fact["args"]
    layout = lay.Layout(text)
    threads = lay.Layout(kind.rpartition(" ")[2]) if "layout" in kind else lay.parse_tiler(kind.rpartition(" ")[2])
    index = int(which.split()[-1]) if "thread" in which else (0, 0)
    got, offset = local_partition(layout, threads, index)
    assert (str(got), offset) == (fact["layout"], fact["offset"])
    part = local_partition(make_tensor(np.arange(48), layout), threads, index)
    assert part.numpy().tolist() == fact["expect"]


def test_local_tile():
    (fact,) = (f for f in facts("local_tile") if "layout" in f and f["args"][0] == "(6,8):(1,6)")
    t = make_tensor(np.arange(48), "(6,8):(1,6)")
    tile = local_tile(t, (2, 2), (0, 0))
    assert tile.numpy().tolist() == fact["expect"]
    assert (str(tile.layout), tile.offset) == (fact["layout"], fact["offset"])
    (fact,) = facts("rank(tile)")
    assert local_tile(t, (3, 2), (0, None)).rank == fact["expect"]
    assert local_tile(t, (3, 2), (0, None)).shape == (3, 2, 4)
    assert local_tile(t, (3, 2), (None, None)).shape == (3, 2, 2, 4)
    array = t.numpy()
    for m in range(2):
        for n in range(4):
            expected = array[3 * m : 3 * m + 3, 2 * n : 2 * n + 2]
            assert np.array_equal(local_tile(t, (3, 2), (m, n)).numpy(), expected)
    # A is (M,K), tiler and coordinate are those of (M,N,K).
    assert np.array_equal(local_tile(t, (3, 5, 2), (1, 7, 2), (1, None, 1)).numpy(), array[3:6, 4:6])
    assert local_tile("(7,8)", (4, 4), (1, 1), allow_residue=True)[0].shape == (4, 4)
    assert local_tile(t, (3,), (1,)).shape[0] == 3


# ---- copy ----------------------------------------------------------------------------------------------------------


def test_copy_of_elements_converts():
    src = make_tensor(np.arange(6.0), (2, 3))
    dst = make_tensor("float16", "(2,3):(3,1)")
    copy(src, dst)
    assert np.array_equal(dst.numpy(), src.numpy())
    assert dst.data.tolist() == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("fact", facts("tiled_copy_roundtrip"), ids=lambda f: f"{f['args'][0]}-{f['args'][2]}")
def test_moye_roundtrips(fact):
    """Shared memory to registers by the atom, registers to global memory: nothing is lost or misplaced."""
    name, _kind, thr, val, smem = (
        a.removeprefix("thr ").removeprefix("val ").removeprefix("smem ") for a in fact["args"]
    )
    atom = CopyAtom(name.replace("UInt16", "uint16"), "uint16")
    tiled = make_tiled_copy(atom, thr, val)
    layout = lay.Layout(smem)
    shared = make_tensor(np.arange(layout.cosize, dtype=np.uint16), layout)
    out = make_tensor("uint16", layout)
    threads = [tiled.get_slice(t) for t in range(tiled.threads)]
    targets = [t.partition_D(out) for t in threads]
    registers = [make_fragment_like(t) for t in targets]
    copy(tiled, [t.partition_S(shared) for t in threads], registers)
    for register, target in zip(registers, targets, strict=True):
        copy(register, target)
    assert np.array_equal(out.numpy(), shared.numpy())
    # The same with the tile as one, and with one side of each.
    for other in (make_tensor("uint16", layout), make_tensor("uint16", layout)):
        copy(tiled, shared, other)
        assert np.array_equal(other.numpy(), shared.numpy())
    again = [make_fragment_like(t) for t in targets]
    copy(tiled, shared, again)
    assert all(np.array_equal(a.values(), r.values()) for a, r in zip(again, registers, strict=True))


@pytest.mark.parametrize("swizzle", [None, "Sw<1,3,3>", "Sw<2,3,3>", "Sw<3,3,3>"])
def test_ldmatrix_of_swizzled_memory(swizzle):
    """All of A, through a swizzle, into the fragments of mma.sync: each thread has what the MMA's partition says."""
    mma = make_tiled_mma("SM80_16x8x16_F32BF16BF16F32_TN", "(2,2,1):(1,2,0)", (32, 32, 16))
    tiled = make_tiled_copy_A(CopyAtom("SM75_U32x4_LDSM_N", "bf16"), mma)
    layout = lay.Layout("(64,64):(64,1)")
    memory = make_tensor("bf16", layout if swizzle is None else lay.Swizzle(swizzle) @ layout)
    memory.assign(np.arange(4096).reshape(64, 64) % 251)
    threads = range(mma.threads)
    fragments = [mma.get_slice(t).partition_fragment_A(memory) for t in threads]
    copy(tiled, memory, [tiled.get_slice(t).retile_D(f) for t, f in zip(threads, fragments, strict=True)])
    for t in threads:
        part = mma.get_slice(t).partition_A(memory)
        assert np.array_equal(fragments[t].values(), part.values())


def test_copy_misuse():
    with pytest.raises(errors.ProfileMismatch, match="6 elements to 4"):
        copy(zeros("f32", (2, 3)), zeros("f32", (2, 2)))
    for operands in ((1, 2), (zeros("f32", (2,)),), ("x", zeros("f32", (2,)), zeros("f32", (2,)))):
        with pytest.raises(errors.InvalidType):
            copy(*operands)


def test_copies_that_the_hardware_would_not_do():
    vector = make_tiled_copy(CopyAtom(UniversalCopy("uint128"), "f32"), "(8,4)", "(4,1)")
    ldsm = make_tiled_copy(CopyAtom("SM75_U32x4_LDSM_N", "f16"), "(16,2)", "(2,4)")
    good, padded = make_tensor("f32", (32, 4)), make_tensor("f32", "(32,4):(1,33)")
    with pytest.raises(errors.Misaligned, match="begins at byte 132 of dst") as raised:
        copy(vector, good, padded)
    assert raised.value.hint == "strides that are multiples of 4 elements"
    with pytest.raises(errors.Misaligned, match="elements 0 and 4 of src are not neighbours"):
        copy(vector, make_tensor("f32", "(32,4):(4,1)"), good)
    with pytest.raises(errors.AtomMismatch, match="src has float64"):
        copy(vector, make_tensor("f64", (32, 4)), good)
    thread = ldsm.get_slice(0)
    tile = make_tensor("f16", (32, 8))
    with pytest.raises(errors.AtomMismatch, match="by 32 threads together"):
        copy(thread, thread.partition_S(tile), thread.partition_D(tile))
    with pytest.raises(errors.ProfileMismatch, match="32 threads need"):
        copy(ldsm, [make_tensor("f16", (8,))] * 31, [make_tensor("f16", (8,))] * 32)
    with pytest.raises(errors.ProfileMismatch, match="different sizes"):
        copy(ldsm, [make_tensor("f16", (8,))] * 31 + [make_tensor("f16", (16,))], [make_tensor("f16", (8,))] * 32)
    with pytest.raises(errors.ProfileMismatch):
        copy(ldsm, [make_tensor("f16", (8,))] * 32, [make_tensor("f16", (16,))] * 32)
    with pytest.raises(errors.ProfileMismatch):
        copy(vector.get_slice(0), make_tensor("f32", (6,)), make_tensor("f32", (6,)))
    with pytest.raises(errors.InvalidType):
        copy(ldsm, 3, 4)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(1, 32), (2, 64), (4, 128)]), st.sampled_from(["(8,4)", "(4,8):(8,1)", "(2,16)"]), st.booleans()
)
def test_vector_copies_are_copies(width, thr, swizzled):
    elements, bits = width
    kind = {32: "uint32", 64: "uint64", 128: "uint128"}[bits]
    tiled = make_tiled_copy(CopyAtom(UniversalCopy(kind), "f32"), thr, (4, 2))
    m, n = (2 * x for x in tiled.tile_size)
    src = make_tensor(np.arange(m * n, dtype=np.float32), (m, n))
    layout = lay.Layout((m, n), (1, m + 4))
    dst = make_tensor("f32", lay.Swizzle(2, 2, 3) @ layout if swizzled else layout)
    copy(tiled, src, dst)
    assert np.array_equal(dst.numpy(), src.numpy())
    assert tiled.get_slice(0).partition_S(src).layout[0][0].size == elements


# ---- gemm ----------------------------------------------------------------------------------------------------------


def integers(shape, kind="float32", seed=0):
    return np.asfortranarray(np.random.default_rng(seed).integers(-3, 4, shape).astype(kind))


@pytest.mark.parametrize(
    ("atom", "places", "tiles"),
    [
        ("SM80_16x8x8_F32TF32TF32F32_TN", "(2,2,1):(2,1,1)", "[32;32;8]"),
        ("SM80_16x8x8_F32TF32TF32F32_TN", "(3,1,1)", "[_;16;_]"),
        ("SM80_8x8x4_F64F64F64F64_TN", "(2,3,1)", "[_;_;_]"),
        ("SM70_8x8x4_F32F16F16F32_NT", "(2,2,1):(2,1,0)", "[(4,4,2):(1,8,4);32;4]"),
        ("SM70_8x8x4_F32F16F16F16_TN", "(1,1,1)", "[_;_;_]"),
        ("SM90_64x16x16_F32F16F16_SS", "(2,1,1)", "[_;_;_]"),
        ("SM90_64x16x16_F32F16F16_RS", "(1,2,1)", "[_;_;_]"),
        ("UniversalFMA<float>", "(4,4,1)", "[(4,2):(2,1);_;_]"),
        ("UniversalFMA<double,float,float,double>", "(16,2,1):(2,1,0)", "[_;_;_]"),
    ],
)
def test_gemm_of_fragments_and_tiles(atom, places, tiles):
    mma = make_tiled_mma(atom, places, tiles)
    m, n, k = (2 * x for x in mma.tile_shape)
    types = {"float32": np.float32, "tfloat32": np.float32, "float16": np.float16, "float64": np.float64}
    d_type, a_type, b_type, c_type = (types[t] for t in mma.atom.dtypes)
    a, b, c = integers((m, k), a_type), integers((n, k), b_type, 1), integers((m, n), c_type, 2)
    expected = c + a.astype(np.float64) @ b.T.astype(np.float64)
    d = make_tensor(mma.atom.dtype_D, f"({m},{n}):({n},1)")
    gemm(mma, d, Tensor(a), Tensor(b), Tensor(c))
    assert np.array_equal(d.numpy(), expected)
    zeroed = make_tensor(mma.atom.dtype_D, (m, n))
    gemm(mma, zeroed, Tensor(a), Tensor(b), 0)
    assert np.array_equal(zeroed.numpy(), expected - c)
    if d_type != c_type:
        return
    threads = [mma.get_slice(t) for t in range(mma.layout_C_TV[0].size)]
    tCrA, tCrB = ([getattr(t, f"partition_fragment_{x}")(Tensor(y)) for t in threads] for x, y in (("A", a), ("B", b)))
    tCrC = [t.partition_fragment_C(Tensor(c)) for t in threads]
    for t, ra, rb, rc in zip(threads, tCrA, tCrB, tCrC, strict=True):
        for register, part in (
            (ra, t.partition_A(Tensor(a))),
            (rb, t.partition_B(Tensor(b))),
            (rc, t.partition_C(Tensor(c))),
        ):
            if register is not part and register.data is not part.data:
                copy(part, register)
    gemm(mma, tCrC, tCrA, tCrB, tCrC)
    out = make_tensor(mma.atom.dtype_D, (m, n))
    for t, rc in zip(threads, tCrC, strict=True):
        copy(rc, t.partition_C(out))
    assert np.array_equal(out.numpy(), expected)


def test_threads_along_k_hold_sums_of_their_own():
    mma = make_tiled_mma("SM80_16x8x8_F32TF32TF32F32_TN", "(1,1,2)")
    a, b = integers((16, 32)), integers((8, 32), seed=1)
    out = make_tensor("float32", (16, 8))
    with pytest.raises(errors.AtomMismatch, match="2 threads along K"):
        gemm(mma, out, Tensor(a), Tensor(b), 0)
    fragments = [mma.get_slice(t).partition_fragment_C(out) for t in range(mma.threads)]
    gemm(mma, fragments, Tensor(a), Tensor(b), 0)
    zeros(out)
    for t, fragment in enumerate(fragments):
        part = mma.get_slice(t).partition_C(out)
        part.assign(part.numpy() + fragment.numpy())
    assert np.array_equal(out.numpy(), a @ b.T)


def test_one_thread_multiplies():
    mma = make_tiled_mma(UniversalFMA("float32"), "(4,4)")
    thread = mma.get_slice(6)
    a, b = integers((8, 4)), integers((8, 4), seed=1)
    out = make_tensor(np.zeros(64, np.float32), (8, 8))
    part = thread.partition_C(out)
    gemm(thread, part, thread.partition_A(Tensor(a)), thread.partition_B(Tensor(b)), 0)
    owned = np.zeros((8, 8), bool)
    owned.reshape(-1, order="F")[:] = False
    rows, columns = part.indices() % 8, part.indices() // 8
    owned[rows, columns] = True
    assert owned.sum() == 4
    assert np.array_equal(out.numpy(), np.where(owned, a @ b.T, 0))


def test_gemm_misuse():
    mma = make_tiled_mma("SM80_16x8x8_F32TF32TF32F32_TN")
    a, b, d = make_tensor("f32", (16, 8)), make_tensor("f32", (8, 8)), make_tensor("f32", (16, 8))
    with pytest.raises(errors.InvalidType, match="is no MMA"):
        gemm("mma", d, a, b, d)
    with pytest.raises(errors.AtomMismatch, match="by 32 threads together"):
        gemm(mma.get_slice(0), d, a, b, d)
    with pytest.raises(errors.AtomMismatch, match="by 32 threads together"):
        gemm(mma_atom("SM80_16x8x8_F32TF32TF32F32_TN"), d, a, b, d)
    with pytest.raises(errors.AtomMismatch, match="A has float16 elements, not float32"):
        gemm(mma, d, make_tensor("f16", (16, 8)), b, d)
    with pytest.raises(errors.ProfileMismatch, match="the rests do not agree"):
        gemm(mma, d, make_tensor("f32", (32, 8)), b, d)
    with pytest.raises(errors.ProfileMismatch, match="the rests do not agree"):
        gemm(mma, d, a, make_tensor("f32", (8, 16)), d)
    with pytest.raises(errors.ProfileMismatch, match=r"C .* and D"):
        gemm(mma, d, a, b, make_tensor("f32", (32, 8)))
    with pytest.raises(errors.ProfileMismatch, match="more modes than two"):
        gemm(mma, d, make_tensor("f32", (16, 8, 2)), b, d)
    with pytest.raises(errors.ProfileMismatch, match="32 threads need"):
        gemm(mma, d, [a] * 3, b, d)
    with pytest.raises(errors.ProfileMismatch, match="3 values of A"):
        gemm(mma, d, [make_tensor("f32", (3, 1, 1))] * 32, b, d)
    with pytest.raises(errors.ShapeDivisibility):
        gemm(mma, d, make_tensor("f32", (15, 8)), b, d)


def test_moye_warp_gemm():
    """MoYe.jl's ldmatrix test: 16x16 by 16x8 f16 through LDSM x4 and x2, registers as it states."""
    (fact,) = facts("warp gemm 16x16x8 f16")
    assert "row lane/4" in fact["args"][4]
    mma = make_tiled_mma("MMAOP_16x8x16_F16F16F16F16_TN")
    a, b = np.ascontiguousarray(integers((16, 16), np.float16)), np.ascontiguousarray(integers((8, 16), np.float16, 1))
    s2r_a = make_tiled_copy_A(CopyAtom("LDSM_U32x4_N", "f16"), mma)
    s2r_b = make_tiled_copy_B(CopyAtom("LDSM_U32x2_N", "f16"), mma)
    threads = [mma.get_slice(t) for t in range(32)]
    ra, rb = [t.partition_fragment_A(Tensor(a)) for t in threads], [t.partition_fragment_B(Tensor(b)) for t in threads]
    copy(s2r_a, Tensor(a), [s2r_a.retile(r) for r in ra])
    copy(s2r_b, Tensor(b), [s2r_b.retile(r) for r in rb])
    rc = [zeros(t.partition_fragment_C(make_tensor("f16", (16, 8)))) for t in threads]
    gemm(mma, rc, ra, rb, rc)
    expected = a.astype(np.float32) @ b.T.astype(np.float32)
    for lane, register in enumerate(rc):
        row, column = lane // 4, 2 * (lane % 4)
        assert register.values()[:2].tolist() == expected[row, column : column + 2].tolist()
        assert register.values()[2:].tolist() == expected[row + 8, column : column + 2].tolist()


@pytest.mark.parametrize(
    ("fact", "stride"), [(f, s) for f, s in zip(facts("smem copy") + facts("smem transpose"), (32, 33), strict=True)]
)
def test_moye_copies_through_shared_memory(fact, stride):
    """Global to shared to global memory, one block of (32,32) by threads (32,8)."""
    assert f"(1,{stride})" in " ".join(fact["args"])
    source = make_tensor(np.arange(1024, dtype=np.float32), (32, 32))
    target, shared = make_tensor("f32", (32, 32)), make_tensor("f32", lay.Layout((32, 32), (1, stride)))
    through = lay.Layout((32, 32), (stride, 1)) if fact["op"] == "smem transpose" else shared.layout
    for thread in range(256):
        copy(local_partition(source, "(32,8)", thread), local_partition(shared, "(32,8)", thread))
    for thread in range(256):
        copy(local_partition(shared.with_layout(through), "(32,8)", thread), local_partition(target, "(32,8)", thread))
    expected = source.numpy().T if fact["op"] == "smem transpose" else source.numpy()
    assert np.array_equal(target.numpy(), expected)
