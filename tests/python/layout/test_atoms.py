"""Atoms against recorded facts: layouts, explicit tables of every instruction, and what copy and gemm make of them."""

import functools
import gzip
import json
import pathlib

import numpy as np
import pytest

from jax_moye import layout as lay
from jax_moye.layout import atoms, dtypes, errors
from jax_moye.layout.execute import copy, gemm
from jax_moye.layout.tensor import Tensor, make_tensor
from jax_moye.layout.tiled import make_tiled_copy, make_tiled_mma

DATA = pathlib.Path(__file__).parents[2] / "data" / "oracle"
FACTS = json.loads(gzip.decompress((DATA / "atoms.json.gz").read_bytes()))
MOYE = json.loads((DATA / "moye_facts.json").read_text())
MMA = [pytest.param(fact, id=fact["name"]) for fact in FACTS["mma_atoms"]]
COPIES = [pytest.param(fact, id=f"{fact['name']}-{fact['value_type']}") for fact in FACTS["copy_atoms"]]
# One wgmma of each family is enough where nothing depends on N.
NAMES = [n for n in atoms.mma_atom_names() if not n.startswith("SM90_64x") or n.startswith("SM90_64x24x")]


def table(layout, rows):
    """[thread][value] -> [row, column] of a (thread, value) layout of an operand with `rows` rows."""
    threads, values = layout[0].size, layout[1].size
    index = layout.values().reshape(values, threads).T
    return np.stack([index % rows, index // rows], -1)


# ---- MMA -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", MMA)
def test_mma_atom(fact):
    atom = atoms.mma_atom(fact["name"])
    assert atom.name == fact["name"]
    assert list(atom.shape_mnk) == fact["shape_mnk"]
    assert atom.threads == fact["num_threads"]
    assert atom.min_arch == int(fact["arch"].removeprefix("sm"))
    assert str(atom.thr_id) == fact["thr_id"]
    assert atom.values_per_thread == fact["values_per_thread"]
    for operand in "ABC":
        assert str(getattr(atom, f"layout_{operand}_TV")) == fact[f"layout_{operand}_TV"]
    for operand in "DABC":
        if fact["dtypes"][operand] != "?":
            assert getattr(atom, f"dtype_{operand}") == dtypes.dtype(fact["dtypes"][operand]).name
    if fact["thread_to_lane"] is not None:
        assert atom.thr_id.values().tolist() == fact["thread_to_lane"]
    for operand, source in (("A", fact.get("A_source")), ("B", fact.get("B_source"))):
        assert (operand in atom.smem_operands) == (source is not None)
    assert atom.arch_specific == ("B_source" in fact)
    for operand, rows in zip("ABC", (0, 1, 0), strict=True):
        if operand in fact:
            got = table(getattr(atom, f"layout_{operand}_TV"), atom.shape_mnk[rows])
            assert np.array_equal(got, fact[operand]), operand


def test_every_explicit_table_was_compared():
    assert len(FACTS["mma_atoms"]) == 428
    assert [sum(operand in fact for fact in FACTS["mma_atoms"]) for operand in "ABC"] == [104, 92, 116]


@pytest.mark.parametrize("fact", [p for p in MMA if "moye" in p.values[0]])
def test_registers_are_those_of_moye(fact):
    atom = atoms.mma_atom(fact["name"])
    moye = fact["moye"]
    assert atoms.mma_atom(moye["name"]).shape_mnk == atom.shape_mnk
    if atom.min_arch != 75 or atom.name == "SM75_8x8x16_S32S8S8S32_TN":
        assert atom.moye_name == moye["name"]
    for operand, got in zip("dabc", atom.registers, strict=True):
        kind, _, count = moye["regs"][operand].rpartition("x")
        assert got.count == int(count), operand
        assert {"Float32": "float32", "Float64": "float64"}.get(kind, "uint32") == (
            "uint32" if kind == "UInt32" else got.dtype
        )


@functools.cache
def times_reached(layout):
    """How often each index is, and whether all as often."""
    times = np.bincount(layout.values())
    return times.size, set(times.tolist())


def test_every_element_is_reached():
    """Once, or from shared memory by all threads. For every instruction there is, recorded or not."""
    for name in atoms.mma_atom_names():
        atom = atoms.mma_atom(name)
        m, n, k = atom.shape_mnk
        for operand, count in (("A", m * k), ("B", n * k), ("C", m * n), ("D", m * n)):
            copies = atom.threads if operand in atom.smem_operands else 1
            assert times_reached(getattr(atom, f"layout_{operand}_TV")) == (count, {copies}), (name, operand)


def test_moye_list():
    assert list(atoms.mma_ops_list()) == [op["name"] for op in MOYE["mma_ops_list"]]
    assert len(atoms.mma_ops_list()) == 51
    for op in MOYE["mma_ops_list"]:
        atom = atoms.mma_atom(op["name"])
        assert list(atom.shape_mnk) == op["shape"]
        assert list(atom.dtypes) == [dtypes.dtype(op["dtypes"][x]).name for x in "DABC"]
        assert atom.moye_name == op["name"]


def test_moyes_mistakes_are_not_copied():
    """MoYe.jl's traits of these differ from the hardware, or are missing: ours are the instruction's."""
    wrong = [
        fact for fact in FACTS["mma_atoms"] if not fact.get("moye", {}).get("status", "identical").startswith("id")
    ]
    assert len(wrong) == 17
    for fact in wrong:
        atom = atoms.mma_atom(fact["moye"]["name"])
        assert str(atom.layout_A_TV) == fact["layout_A_TV"]
        assert str(atom.layout_B_TV) == fact["layout_B_TV"]


def test_names():
    tf32 = "SM80_16x8x8_F32TF32TF32F32_TN"
    assert atoms.mma_atom("MMAOP_16x8x8_F32TF32TF32F32_TN") is not None
    assert atoms.mma_atom("MMAOP_16x8x8_F32TF32TF32F32_TN") == atoms.mma_atom(tf32)
    assert eval(repr(atoms.mma_atom(tf32)), {"mma_atom": atoms.mma_atom}) == atoms.mma_atom(tf32)
    assert hash(atoms.mma_atom(tf32)) == hash(atoms.mma_atom(tf32))
    assert len(set(atoms.mma_atom_names())) == len(atoms.mma_atom_names()) == 1152


@pytest.mark.parametrize(
    ("name", "majors"),
    [
        ("SM70_8x8x4_F32F16F16F32_NT", ("MN", "MN")),
        ("SM70_8x8x4_F32F16F16F32_TT", ("K", "MN")),
        ("SM80_16x8x8_F32TF32TF32F32_TN", ("K", "K")),
        ("SM90_64x128x16_F32F16F16_SS", ("K", "K")),
        ("SM90_64x128x16_F32F16F16_SS<GMMA::Major::MN,GMMA::Major::K>", ("MN", "K")),
        ("SM90_64x128x16_F32F16F16_RS<GMMA::Major::K,GMMA::Major::MN>", ("K", "MN")),
        ("SM90_64x64x8_F32TF32TF32_RS_TN<>", ("K", "K")),
        ("SM90::GMMA::MMA_64x128x16_F32F16F16_SS<GMMA::Major::K,GMMA::Major::K>", ("K", "K")),
    ],
)
def test_majors(name, majors):
    assert atoms.mma_atom(name).majors == majors


@pytest.mark.parametrize(
    "name",
    [
        "SM80_16x8x8_F32TF32TF32F32_NN",
        "SM80_16x8x7_F32F16F16F32_TN",
        "MMAOP_nothing",
        "",
        "SM90_64x12x16_F32F16F16_SS",
        "SM90_64x264x16_F32F16F16_SS",
        "SM90_64x40x32_S32S8S8_SS_TN",
        "SM90_64x64x8_F32TF32TF32_SS_TN<GMMA::Major::MN,GMMA::Major::K>",
        "SM90_64x128x16_F32F16F16_RS<GMMA::Major::MN,GMMA::Major::K>",
        "SM80_16x8x8_F32TF32TF32F32_TN<K,K>",
        "UniversalFMA<nonsense>",
    ],
)
def test_unknown_mma(name):
    with pytest.raises(errors.AtomMismatch) as raised:
        atoms.mma_atom(name)
    assert raised.value.hint


def test_the_beginning_of_a_name_hints_at_what_begins_so():
    with pytest.raises(errors.AtomMismatch) as raised:
        atoms.mma_atom("SM80_16x8x8")
    assert all(name.startswith("SM80_16x8x8_") for name in raised.value.hint.split(" or "))


@functools.cache
def operands(a, b):
    """The values that integers of two types may take here."""
    if a == "uint1":
        return (0, 2), (0, 2)
    return tuple((0, 4) if t.startswith("u") else (-2, 3) for t in (a, b))


def matrix(rng, bounds, shape, type_name):
    values = rng.integers(*bounds, shape)
    return values, Tensor(np.asfortranarray(values.astype(dtypes.storage(dtypes.dtype(type_name)))))


@pytest.mark.parametrize("name", [n for n in NAMES if "GC64" not in n])
def test_gemm_of_a_tile(name):
    """Two tiles along each mode, whole: every atom multiplies exactly."""
    rng = np.random.default_rng(0)
    mma = make_tiled_mma(name)
    m, n, k = (2 * x for x in mma.tile_shape)
    bounds = operands(mma.atom.dtype_A, mma.atom.dtype_B)
    a, a_tensor = matrix(rng, bounds[0], (m, k), mma.atom.dtype_A)
    b, b_tensor = matrix(rng, bounds[1], (n, k), mma.atom.dtype_B)
    c, c_tensor = matrix(rng, (0, 3), (m, n), mma.atom.dtype_C)
    d_tensor = make_tensor(mma.atom.dtype_D, (m, n))
    gemm(mma, d_tensor, a_tensor, b_tensor, c_tensor)
    popc_xor = (a[:, None, :] ^ b[None, :, :]).sum(-1) if name.endswith("XORPOPC") else None
    expected = c + (a @ b.T if popc_xor is None else popc_xor)
    assert np.array_equal(d_tensor.numpy().astype(np.complex128), expected)


def test_integers_saturate_or_wrap():
    for suffix, expected in (("", -(2**31) + 15), ("_SATURATE", 2**31 - 1)):
        mma = make_tiled_mma(f"SM80_8x8x16_S32S8S8S32_TN{suffix}")
        one = Tensor(np.ones((8, 16), np.int8))
        c = Tensor(np.full((8, 8), 2**31 - 1, np.int32))
        gemm(mma, c, one, one, c)
        assert c[0, 0] == expected


def test_tf32_drops_bits():
    mma = make_tiled_mma("SM80_16x8x4_F32TF32TF32F32_TN")
    a = Tensor(np.full((16, 4), 1 + 2.0**-11, np.float32))
    d = make_tensor("float32", (16, 8))
    gemm(mma, d, a, Tensor(np.ones((8, 4), np.float32)), 0)
    assert np.array_equal(d.numpy(), np.full((16, 8), 4, np.float32))


# ---- Copies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", COPIES)
def test_copy_atom(fact):
    atom = atoms.CopyAtom(fact["name"], fact["value_type"])
    assert atom.op.name == fact["name"]
    assert str(atom.thr_id) == fact["thr_id"]
    assert atom.threads == fact["num_threads"]
    for side in ("src", "dst", "ref"):
        assert str(getattr(atom.op, f"bit_layout_{side}")) == fact[f"bit_layout_{side}"]
        assert str(getattr(atom, f"val_layout_{side}")) == fact[f"val_layout_{side}"]
    if "ptx" in fact:
        assert atom.op.ptx == fact["ptx"]
    if "src_space" in fact:
        assert (atom.op.src_space, atom.op.dst_space) == (fact["src_space"], fact["dst_space"])
    if "alignment_bytes" in fact:
        assert atom.op.alignment == fact["alignment_bytes"]
    for side in ("src", "dst"):
        if f"{side}_table" in fact:
            layout = getattr(atom, f"val_layout_{side}")
            assert layout.values().reshape(layout[1].size, 32).T.tolist() == fact[f"{side}_table"]


@pytest.mark.parametrize("fact", [p for p in COPIES if "reg_table" in p.values[0]])
def test_matrices_in_registers(fact):
    """ldmatrix and stmatrix move element (matrix, row, column) as the tables say."""
    atom = atoms.CopyAtom(fact["name"], fact["value_type"])
    count, columns = fact["num_matrices"], 128 // fact["value_bits"]
    kind = dtypes.storage(dtypes.dtype(fact["value_type"]))
    for digit in (0, 1):  # what does not fit into a byte
        check_matrices(fact, atom, count, columns, (np.arange(8 * count * columns) >> 7 * digit & 127).astype(kind))
    check_matrices(fact, atom, count, columns, np.arange(8 * count * columns).astype(kind))


def check_matrices(fact, atom, count, columns, rows):
    memory = make_tensor(rows.copy(), lay.Layout((columns, 8 * count)))  # row r of matrix i is column r + 8*i
    side = "S" if "LDSM" in atom.op.name else "D"
    at = [matrix * 8 + row for matrix, row in fact["mem_row_of_thread"]]
    addresses = [memory[None, r] for r in at]
    registers = [make_tensor(rows.dtype.name, (len(t),)) for t in fact["reg_table"]]
    expected = np.array([[rows[(i * 8 + r) * columns + c] for i, r, c in t] for t in fact["reg_table"]])
    tiled = make_tiled_copy(atom, (32,), (len(fact["reg_table"][0]),))
    if side == "S":
        copy(tiled, addresses, registers)
        assert np.array_equal([r.values() for r in registers], expected)
    else:
        for register, values in zip(registers, expected, strict=True):
            register.assign(values)
        memory.assign(0)
        copy(tiled, registers, addresses)
        assert np.array_equal(memory.values(), rows)


def test_movmatrix_transposes():
    atom = atoms.CopyAtom("SM75_U32x1_MOVM_T", "float16")
    matrix = np.arange(64, dtype=np.float16).reshape(8, 8)
    layout = atoms.CopyAtom("LDSM_U32x1_N", "float16").val_layout_dst
    source = [make_tensor(matrix.reshape(-1)[layout.values().reshape(2, 32).T[t]], (2,)) for t in range(32)]
    target = [make_tensor("float16", (2,)) for _ in range(32)]
    copy(make_tiled_copy(atom, (32,), (2,)), source, target)
    expected = matrix.T.reshape(-1)[layout.values().reshape(2, 32).T]
    assert np.array_equal([t.values() for t in target], expected)


def test_ldsm_traits_of_moye():
    for name, sides in MOYE["ldsm_traits"].items():
        op = atoms.copy_op(name)
        assert op.name == f"SM75_{name.replace('LDSM_', '')[:-2]}_LDSM_{name[-1]}"
        assert (str(op.bit_layout_src), str(op.bit_layout_dst)) == (sides["src"], sides["dst"])
    assert atoms.copy_op("CPOP_ASYNC_CACHEALWAYS{UInt128}") == atoms.cp_async(16)
    assert atoms.copy_op("CPOP_ASYNC_CACHEGLOBAL{UInt128}") == atoms.cp_async(16, cache="global")
    assert atoms.copy_op("UniversalCopy{Float64}") == atoms.UniversalCopy(np.float64)
    facts = {f["args"][0]: f["expect"] for f in MOYE["facts"] if f["op"] == "cp.async sizes"}
    for kind, sizes in facts.items():
        for nbytes in (1, 2, 4, 8, 16):
            name = f"{kind}{{UInt{8 * nbytes}}}"
            if nbytes in sizes:
                assert atoms.copy_op(name).alignment == nbytes
            else:
                with pytest.raises(errors.AtomMismatch):
                    atoms.copy_op(name)


@pytest.mark.parametrize("name", atoms.copy_op_names())
def test_copy_names(name):
    assert atoms.copy_op(name).name == name


@pytest.mark.parametrize("name", ["", "LDSM_U32x8_N", "UniversalCopy", "UniversalCopy<x>", "SM75_U32x4_LDSM_T"])
def test_unknown_copy(name):
    with pytest.raises(errors.AtomMismatch):
        atoms.copy_op(name)


@pytest.mark.parametrize(("op", "kind"), [("SM75_U16x8_LDSM_T", "float32"), ("UniversalCopy<uint16_t>", "float32")])
def test_pieces_smaller_than_a_value(op, kind):
    with pytest.raises(errors.AtomMismatch, match="pieces of 16 bits"):
        atoms.CopyAtom(op, kind)


def test_gmma_smem_atom_errors():
    for arguments in (("M", "SW128", "float16"), ("K", "SW256", "float16"), ("K", "SW32", "float17")):
        with pytest.raises(errors.AtomMismatch):
            atoms.gmma_smem_atom(*arguments)


@pytest.mark.parametrize("t", dtypes._TABLE, ids=lambda t: t.name)
def test_dtypes(t):
    for name in (t.name, t.cute, t.short, t.short.lower()):
        assert dtypes.dtype(name) == t
    if t.name not in ("uint128", "gaussian_complex128"):
        stored = dtypes.storage(t)
        assert stored.itemsize * 8 == max(t.bits, 8)
        if t.name not in ("tfloat32", "uint1"):
            assert dtypes.dtype(stored) == t


@pytest.mark.parametrize("x", ["float31", object(), None, 7])
def test_no_dtype(x):
    with pytest.raises(errors.AtomMismatch):
        dtypes.dtype(x)
