"""wgmma descriptors: the instruction's addresses are the layout's; tiles without a descriptor are refused."""

import itertools

import pytest

from jax_moye import layout as lay
from jax_moye.layout import dtypes, errors
from jax_moye.layout.gmma import GmmaDescriptor, make_gmma_desc

SWIZZLES = {"INTER": 0, "SW32": 1, "SW64": 2, "SW128": 3}
TILES = [
    (major, swizzle, kind, order)
    for major, swizzle, kind in itertools.product(("K", "MN"), SWIZZLES, ("bf16", "tf32", "int8"))
    if major == "K" or kind == "bf16"
    for order in ((0, 1), (1, 0))
]


def address(descriptor, major, kind, mn, k):
    """The byte that the instruction reads for element (mn,k), as the PTX ISA describes it."""
    bits = {0: 0, 3: 1, 2: 2, 1: 3}[descriptor.layout_type]
    row, unit = 16 << bits, 128 // dtypes.dtype(kind).bits
    leading, stride = 16 * descriptor.leading_byte_offset, 16 * descriptor.stride_byte_offset
    if major == "K":
        at = mn % 8 * row + mn // 8 * stride + k // unit * (leading if bits == 0 else 16) + k % unit * 16 // unit
    else:
        wide = unit << bits  # elements of a row
        first, second = (stride, leading) if bits == 0 else (leading, stride)
        at = mn % wide * 16 // unit + mn // wide * first + k % 8 * row + k // 8 * second
    return lay.Swizzle(bits, 4, 3)(16 * descriptor.start_address + at)


@pytest.mark.parametrize(("major", "swizzle", "kind", "order"), TILES)
def test_the_instruction_reads_the_layout(major, swizzle, kind, order):
    size = dtypes.dtype(kind).bits // 8
    step = 32 // size
    atom = lay.gmma_smem_atom(major, swizzle, kind)
    mn, depth = 128, 8 * step
    tile = lay.tile_to_shape(atom, (mn, depth), order)
    base = 3 * 1024
    for instruction in range(depth // step):
        descriptor = make_gmma_desc(tile, major, kind, k=instruction, address=base)
        for i in range(0, mn, 3):
            for k in range(step):
                expected = base + size * tile(i, instruction * step + k)
                assert address(descriptor, major, kind, i, k) == expected, (i, k)


def test_bits():
    tile = lay.tile_to_shape(lay.gmma_smem_atom("K", "SW128", "bfloat16"), (128, 64))
    descriptor = make_gmma_desc(tile, "K", "bfloat16", k=2, address=2048)
    assert descriptor == GmmaDescriptor(132, 1, 64, 1)
    assert int(descriptor) == 132 | 1 << 16 | 64 << 32 | 1 << 62


K128 = "Sw<3,3,3> o 0 o ((8,16),(64,1)):((64,512),(1,0))"


@pytest.mark.parametrize(
    ("error", "problem", "args"),
    [
        (errors.NotCanonicalGmma, "only 16-bit", ("Sw<3,2,3> o 0 o (32,8):(1,32)", "MN", "tf32")),
        (errors.NotCanonicalGmma, "on bytes", (K128, "K", "tf32")),
        (errors.NotCanonicalGmma, "on bytes", ("Sw<2,3,4> o 0 o (8,64):(64,1)", "K", "bf16")),
        (errors.NotCanonicalGmma, "contiguous bytes", (K128, "MN", "bf16")),
        (errors.NotCanonicalGmma, "contiguous bytes", ("(64,64):(1,64)", "K", "bf16")),
        (errors.NotCanonicalGmma, "16 bytes along K", ("(64,64):(65,1)", "K", "bf16")),
        (errors.NotCanonicalGmma, "rows of a block", ("(64,64):(64,1)", "K", "bf16")),
        (errors.NotCanonicalGmma, "rows of a block", ("Sw<3,3,3> o 0 o (64,64):(72,1)", "K", "bf16")),
        (errors.NotCanonicalGmma, "no blocks of 8", ("(12,64):(8,1)", "K", "bf16")),
        (errors.NotCanonicalGmma, "more than one", ("((8,2,2),(8,8)):((8,64,1024),(1,2048))", "K", "bf16")),
        (errors.NotCanonicalGmma, "14 bits", ("((8,2),(8,2)):((8,1048576),(1,64))", "K", "bf16")),
        (errors.NotCanonicalGmma, "begins at byte", ("Sw<3,3,3> o 64 o (8,64):(64,1)", "K", "bf16")),
        (errors.AtomMismatch, "no such major", (K128, "M", "bf16")),
        (errors.AtomMismatch, "64 bits", ("(8,8):(8,1)", "K", "float64")),
        (errors.RankMismatch, "rank 3", ("(8,64,2):(64,1,512)", "K", "bf16")),
        (errors.ShapeDivisibility, "K = 24", ("(8,24):(64,1)", "K", "bf16")),
    ],
)
def test_refused(error, problem, args):
    with pytest.raises(error, match=problem) as caught:
        make_gmma_desc(*args)
    assert caught.value.op == "make_gmma_desc"


def test_refused_places():
    with pytest.raises(errors.Misaligned, match="multiple of 1024"):
        make_gmma_desc(K128, "K", "bf16", address=512)
    for k in (-1, 4):
        with pytest.raises(errors.CoordOutOfRange):
            make_gmma_desc(K128, "K", "bf16", k=k)
