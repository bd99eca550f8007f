"""The five documents this project grew from, run thread by thread on the CPU.

    python examples/seeds.py [tiled_copy] [pipelining] [tensor_cores] [double_buffer] [cta_swizzle] [producer_consumer]
    python examples/seeds.py cta_swizzle --super-m 5

Each example prints the shapes that its document states and compares what it computed with NumPy. The kernels run in a
`Block`, in which copies take their time; then each wait and each barrier of the document is left out, one by one, and
what the block says about it is printed. Everything is 0-based: thread 2 of the documents is thread 1 here. The exit
status is 1 if anything differs.

It is longer than other files here: the examples share the report, a CTA's tiles and what leaves out a wait, and the
script can be copied alone.
"""

import argparse
import re
import sys

import numpy as np

from jax_moye.layout import Layout, gmma_smem_atom, right_inverse, size, tile_to_shape, to_typst
from jax_moye.layout.atoms import CopyAtom, UniversalCopy, UniversalFMA, cp_async, mma_atom, mma_ops_list
from jax_moye.layout.block import Block, BlockError, DeadlockError, RaceError
from jax_moye.layout.errors import Misaligned, OperandOrder, TiledCopyTooFewValues
from jax_moye.layout.execute import copy
from jax_moye.layout.int_tuple import show
from jax_moye.layout.schedule import schedule_traffic, tile_coord, wave_traffic
from jax_moye.layout.tensor import Tensor, local_tile, make_fragment_like, make_tensor, zeros
from jax_moye.layout.tiled import make_tiled_copy, make_tiled_copy_A, make_tiled_copy_B, make_tiled_mma

_: None = None  # in an index: all of this mode


class Report:
    """Prints what is checked, and counts what does not agree."""

    def __init__(self):
        """Nothing is checked yet."""
        self.checked = self.failed = 0

    def equal(self, what, got, expected):
        """Prints what was got; what was expected only where it differs."""
        self.checked += 1
        if isinstance(got, np.ndarray):
            same = bool(np.array_equal(got, expected))
            shown = "as NumPy" if got.size > 36 else "\n" + str(got)
        else:
            same = got == expected
            shown = show(got) if isinstance(got, tuple) else got
        print(f"  {what}: {shown}" if same else f"  WRONG {what}: {got}, expected {expected}")
        self.failed += not same

    def shape(self, name, tensors, modes, expected):
        """The shape of a thread's part, with the names of its modes."""
        parts = tensors if isinstance(tensors, list) else [tensors]
        self.equal(f"{name} {modes}", parts[0].shape, expected)
        assert all(t.shape == parts[0].shape for t in parts)

    def typst(self, what, thing, threads):
        """What print_typst prints: a picture with all threads in it, for https://typst.app."""
        shown = {int(number) for number in re.findall(r'"T(\d+)', to_typst(thing))}
        self.equal(
            f"print_typst({what}): threads 0 to", (min(shown), max(shown), len(shown)), (0, threads - 1, threads)
        )

    def raises(self, what, error, function):
        """That a mistake is found."""
        self.checked += 1
        try:
            function()
        except error as raised:
            print(f"  {what}: {type(raised).__name__}: {getattr(raised, 'problem', raised)}")
            return
        print(f"  WRONG {what}: nothing raised")
        self.failed += 1


class Sites:
    """The waits and barriers of a program, by name. One of them may be left out."""

    def __init__(self, left_out=None):
        """See the class."""
        self.left_out, self.names = left_out, []

    def __call__(self, name):
        """Whether the program is to do it."""
        if name not in self.names:
            self.names.append(name)
        return name != self.left_out


def leave_out_each(report, run):
    """Runs a kernel whole, then without each of its waits and barriers: that has to be found.

    Args:
      report: where to say so.
      run: runs the kernel with Sites.
    """
    whole = Sites()
    run(whole)
    for name in whole.names:
        report.raises(f"without {name}", BlockError, lambda name=name: run(Sites(name)))


def each(function, *parts):
    """What every thread does."""
    return [function(*p) for p in zip(*parts, strict=True)]


def at(tensors, *last):
    """Of every thread's tensor the slice at `last` of its last modes."""
    return [t[(_,) * (t.rank - len(last)) + last] for t in tensors]


def integers(rng, *shape, dtype="float32"):
    """Integers in [-4,4], column-major: every sum of products is exact."""
    return np.asfortranarray(rng.integers(-4, 5, shape).astype(dtype))


class Cta:
    """One CTA of a product C = A B^T: its block and memory, and what each of its threads has of them.

    Names are the documents': tAgA is what the copy of A has of the tile in global memory, tAsA of shared memory; tCsA
    what the MMA has of A in shared memory, tCrA in registers; tCgC of C.
    """

    def __init__(self, matrices, tile, mma, copies, smem_layouts, dtype="float32"):
        """See the class. `smem_layouts` may have a third mode, the stages."""
        (A, B, self.C), (bM, bN, bK) = matrices, tile
        self.mma, (self.copy_A, self.copy_B) = mma, copies
        self.block = Block(mma.threads)
        self.sA = self.block.shared(dtype, smem_layouts[0], "sA")
        self.sB = self.block.shared(dtype, smem_layouts[1], "sB")
        gA = local_tile(self.block.global_memory(A, "A"), (bM, bK), (0, _))
        gB = local_tile(self.block.global_memory(B, "B"), (bN, bK), (0, _))
        gC = local_tile(self.block.global_memory(self.C, "C", writable=True), (bM, bN), (0, 0))
        threads = range(mma.threads)
        thr_A, thr_B = [self.copy_A.get_slice(t) for t in threads], [self.copy_B.get_slice(t) for t in threads]
        self.tAgA, self.tAsA = [t.partition_S(gA) for t in thr_A], [t.partition_D(self.sA) for t in thr_A]
        self.tBgB, self.tBsB = [t.partition_S(gB) for t in thr_B], [t.partition_D(self.sB) for t in thr_B]
        self.thr_mma = [mma.get_slice(t) for t in threads]
        self.tCsA, self.tCsB = (
            [t.partition_A(self.sA) for t in self.thr_mma],
            [t.partition_B(self.sB) for t in self.thr_mma],
        )
        self.tCgC = [t.partition_C(gC) for t in self.thr_mma]
        self.tCrC = each(lambda t, c: zeros(t.make_fragment_C(c)), self.thr_mma, self.tCgC)
        self.k_tiles = size(gA, 2)

    def load(self, cta, k, *stage):
        """Global to shared memory, or to what stands in its place: k-tile k."""
        cta.copy(self.copy_A, at(self.tAgA, k), at(self.tAsA, *stage))
        cta.copy(self.copy_B, at(self.tBgB, k), at(self.tBsB, *stage))


# ---- Tiled copy and tiled MMA --------------------------------------------------------------------------------------


def tiled_copy(report):
    """Document 001: six threads copy (4,9); a matmul with register-staged prefetch."""
    src = make_tensor(np.arange(1, 37) * 0.1, (4, 9))
    dst = make_tensor(np.zeros(36), (4, 9))
    copy6 = make_tiled_copy(CopyAtom(UniversalCopy("float64"), "float64"), "(2,3):(3,1)", "(2,3):(1,2)")
    owner = np.zeros((4, 9), int)
    for t in range(copy6.threads):
        index = copy6.layout_TV.values().reshape(copy6.values, copy6.threads)[:, t]
        owner[index % 4, index // 4] = t
    blocks = np.array([[0, 1, 2], [3, 4, 5]])
    report.equal("threads of the tile (4,9)", owner, np.repeat(np.repeat(blocks, 2, axis=0), 3, axis=1))
    report.typst("tiled_copy", copy6, 6)
    thread = copy6.get_slice(1)
    dst_t, src_t = thread.partition_D(dst), thread.partition_S(src)
    report.shape("dst_t", dst_t, "(CPY,CPY_M,CPY_K)", ((1, (2, 3)), 1, 1))
    report.equal("dst_t.layout", str(dst_t.layout), "((1,(2,3)),1,1):((0,(1,4)),0,0)")
    report.equal("src_t.layout", str(src_t.layout), "((1,(2,3)),1,1):((0,(1,4)),0,0)")
    report.raises("copy(thread, dst_t, src_t), the order of copyto!", OperandOrder, lambda: copy(thread, dst_t, src_t))
    copy(thread, src_t, dst_t)
    expected = np.where(owner == 1, src.numpy(), 0)
    report.equal("dst after thread 1", dst.numpy(), expected)

    thread = copy6.get_slice(2)
    dst_t, src_t = thread.partition_D(dst), thread.partition_S(src)
    dst_r = make_fragment_like(dst_t)
    report.shape("dst_r", dst_r, "(CPY,CPY_M,CPY_K)", ((1, (2, 3)), 1, 1))
    copy(thread, src_t, dst_r)
    copy(thread, dst_r, dst_t)
    report.equal("dst after thread 2, through registers", dst.numpy(), np.where(owner == 2, src.numpy(), expected))

    vector = make_tiled_copy(CopyAtom(UniversalCopy("uint128"), "float64"), "(2,3):(3,1)", "(2,3):(1,2)")
    part = vector.get_slice(1).partition_D(dst)
    report.shape("dst_t with UniversalCopy<uint128_t>", part, "(CPY,CPY_M,CPY_K)", ((2, 3), 1, 1))
    copy(vector, src, dst)
    report.equal("dst after all six threads", dst.numpy(), src.numpy())
    report.raises(
        "val_layout with too few elements for a vector",
        TiledCopyTooFewValues,
        lambda: make_tiled_copy(CopyAtom(UniversalCopy("uint128"), "float64"), "(2,3):(3,1)", "(1,3)"),
    )

    ldsm = make_tiled_copy(CopyAtom("LDSM_U32x4_N", "uint16"), "(16,2)", "(2,4)")
    report.equal("LDSM_U32x4_N, thr (16,2) val (2,4): tile", ldsm.tile_size, (32, 8))
    report.equal("  source (thread,value)", str(ldsm.layout_S_TV), "((4,2,4),(8,1)):((8,128,32),(1,0))")
    report.equal("  destination (thread,value)", str(ldsm.layout_D_TV), "((16,2),((2,4),1)):((2,128),((1,32),0))")

    report.typst("ldmatrix", ldsm, 32)
    mma = make_tiled_mma(UniversalFMA("float32"), "(16,16)")
    report.equal("UniversalFMA, atoms (16,16): threads", mma.threads, 256)
    report.equal("MoYe.jl's mma_ops_list", len([mma_atom(name) for name in mma_ops_list()]), 51)
    report.equal("C == A B^T", *register_staged(report))
    # One line changed: the copy's instruction, and the values of a thread that go with it.
    for op, values in (("Float64", "(2,1)"), ("UInt128", "(4,1)")):
        vector = make_tiled_copy(CopyAtom(UniversalCopy(op), "float32"), "(32,8)", values)
        report.equal(f"C == A B^T with UniversalCopy{{{op}}}", *register_staged(copies=(vector, vector)))
    coalescing(report)
    leave_out_each(report, lambda sites: register_staged(sites=sites, small=True))


def register_staged(report=None, mma=None, copies=None, dtype="float32", sites=None, small=False):
    """One CTA of document 001's matmul_kernel: C, and what it has to be. `small`: fewer threads."""
    bM, bN, bK = (32, 32, 8) if small else (128, 128, 8)
    sites = sites or Sites()
    rng = np.random.default_rng(1)
    A, B = integers(rng, bM, bK * 3, dtype=dtype), integers(rng, bN, bK * 3, dtype=dtype)
    C = np.full((bM, bN), 7, np.float32, order="F")
    plain = make_tiled_copy(CopyAtom(UniversalCopy(dtype), dtype), "(8,8)" if small else "(32,8)", "(1,1)")
    mma = mma or make_tiled_mma(UniversalFMA("float32"), "(16,4)" if small else "(32,8)")
    layouts = Layout((bM, bK), (1, bM + 1)), Layout((bN, bK), (1, bN + 1))
    c = Cta((A, B, C), (bM, bN, bK), mma, copies or (plain, plain), layouts, dtype)
    tArA, tBrB = each(make_fragment_like, c.tAsA), each(make_fragment_like, c.tBsB)
    if report:
        report.shape("tAgA", c.tAgA, "(CPY,CPY_M,CPY_K,k)", ((1, 1), 4, 1, 3))
        report.shape("tAsA", c.tAsA, "(CPY,CPY_M,CPY_K)", ((1, 1), 4, 1))
        report.shape("tBrB", tBrB, "(CPY,CPY_N,CPY_K)", ((1, 1), 4, 1))
        report.shape("tCsA", c.tCsA, "(MMA,MMA_M,MMA_K)", (1, 4, 8))
        report.shape("tCsB", c.tCsB, "(MMA,MMA_N,MMA_K)", (1, 16, 8))
        report.shape("tCrC", c.tCrC, "(MMA,MMA_M,MMA_N)", (1, 4, 16))

    def program(cta):
        cta.copy(c.copy_A, at(c.tAgA, 0), tArA)
        cta.copy(c.copy_B, at(c.tBgB, 0), tBrB)
        for k in range(c.k_tiles):
            if sites("sync_threads before the stores: all have multiplied the tile that they replace"):
                yield cta.sync_threads()
            cta.copy(tArA, c.tAsA)
            cta.copy(tBrB, c.tBsB)
            if sites("sync_threads behind the stores: all have stored"):
                yield cta.sync_threads()
            k_next = min(k + 1, c.k_tiles - 1)
            cta.copy(c.copy_A, at(c.tAgA, k_next), tArA)
            cta.copy(c.copy_B, at(c.tBgB, k_next), tBrB)
            cta.gemm(c.mma, c.tCrC, c.tCsA, c.tCsB, c.tCrC)
        cta.copy(c.tCrC, c.tCgC)

    c.block.run(program)
    return C, A.astype(np.float32) @ B.T.astype(np.float32)


def coalescing(report):
    """Document 001's vectorized copies: which elements threads 0 and 1 begin with."""
    g = make_tensor("float32", (128, 8))
    for op, val, expected in (("Float64", 4, [0, 4]), ("Float64", 2, [0, 2]), ("UInt128", 4, [0, 4])):
        tiled = make_tiled_copy(CopyAtom(UniversalCopy(op), "float32"), "(32,8)", (val, 1))
        parts = [tiled.get_slice(t).partition_S(g) for t in (0, 1)]
        width = tiled.atom.num_val_src
        starts = [int(p.indices()[0]) for p in parts]
        gap = "coalesced" if starts[1] - starts[0] == width else "not coalesced"
        report.equal(f"UniversalCopy{{{op}}}, val ({val},1), {gap}: threads 0 and 1 begin at", starts, expected)


# ---- Pipelining ----------------------------------------------------------------------------------------------------


def pipelining(report):
    """Documents 002 and 003: global-to-shared copies under the math; then two buffers, and register prefetch."""
    for stages in (1, 2):
        print(f"  -- {stages} shared buffer{'s' if stages > 1 else ''}")
        report.equal("C == A B^T", *pipelined(stages, report))
        leave_out_each(report, lambda sites, stages=stages: pipelined(stages, sites=sites, small=True))
    narrow = make_tiled_copy(CopyAtom(cp_async(8), "float32"), "(32,8)", "(2,1)")
    src = Tensor(np.zeros((64, 8), np.float32, order="F"))
    report.raises(
        "rows padded by 1, not 2: 8 bytes are",
        Misaligned,
        lambda: copy(narrow, src, make_tensor("float32", Layout((64, 8), (1, 65)))),
    )
    # One line changed: 16 bytes, and the padding that they need.
    report.raises("UInt128 with rows padded by 2", Misaligned, lambda: pipelined(2, width=4))
    report.equal("C == A B^T with UInt128 and rows padded by 4", *pipelined(2, width=4, pad=4))


def pipelined(stages, report=None, sites=None, small=False, width=2, pad=2):
    """One CTA of matmul_kernel of documents 002 and 003, with one shared buffer or two."""
    bM, bN, bK = (32, 32, 8) if small else (128, 128, 8)
    rng = np.random.default_rng(stages)
    A, B = integers(rng, bM, bK * 3), integers(rng, bN, bK * 3)
    C = np.full((bM, bN), 7, np.float32, order="F")
    atom = CopyAtom(f"CPOP_ASYNC_CACHEALWAYS{{{'Float64' if width == 2 else 'UInt128'}}}", "Float32")
    tiled = make_tiled_copy(atom, "(8,8)" if small else "(32,8)", (width, 1))
    mma = make_tiled_mma(UniversalFMA("float32"), "(16,4)" if small else "(32,8)")
    layout = Layout((bM, bK, stages), (1, bM + pad, (bM + pad) * bK))
    c = Cta((A, B, C), (bM, bN, bK), mma, (tiled, tiled), (layout, layout))
    shapes = (((2, 1), 2, 1), ((2, 1), 2, 1), (1, 4, 8), (1, 16, 8), (1, 4, 16))
    run_pipeline(c, stages, sites or Sites(), None, report, shapes)
    return C, A @ B.T


def run_pipeline(c, stages, sites, smem_copies, report=None, shapes=()):
    """The kernel with one buffer (load after the copy to registers) or two (prefetch of tile and k-block)."""
    tCrA = each(lambda t, a: t.make_fragment_A(a), c.thr_mma, at(c.tCsA, 0))
    tCrB = each(lambda t, b: t.make_fragment_B(b), c.thr_mma, at(c.tCsB, 0))
    if smem_copies is None:  # shared memory to registers as the MMA has cut them, element by element
        sources, targets = (c.tCsA, c.tCsB), (tCrA, tCrB)
    else:
        slices = [[tiled.get_slice(t) for t in range(c.mma.threads)] for tiled in smem_copies]
        sources = [t.partition_S(c.sA) for t in slices[0]], [t.partition_S(c.sB) for t in slices[1]]
        targets = each(lambda t, r: t.retile_D(r), slices[0], tCrA), each(lambda t, r: t.retile_D(r), slices[1], tCrB)
    if report:
        report.shape("tAgA", c.tAgA, "(CPY,CPY_M,CPY_K,k)", (*shapes[0], c.k_tiles))
        report.shape("tAsA", c.tAsA, f"(CPY,CPY_M,CPY_K,{stages})", (*shapes[0], stages))
        report.shape("tBsB", c.tBsB, f"(CPY,CPY_N,CPY_K,{stages})", (*shapes[1], stages))
        report.shape("tCrA", tCrA, "(MMA,MMA_M,MMA_K)", shapes[2])
        report.shape("tCrB", tCrB, "(MMA,MMA_N,MMA_K)", shapes[3])
        report.shape("tCrC", c.tCrC, "(MMA,MMA_M,MMA_N)", shapes[4])
        if smem_copies:
            report.shape("tCsA_retiled", sources[0], f"(CPY,MMA_M,MMA_K,{stages})", shapes[5])
            report.shape("tCsB_retiled", sources[1], f"(CPY,MMA_N,MMA_K,{stages})", shapes[6])
            report.shape("tCrA_retiled", targets[0], "(CPY,MMA_M,MMA_K)", shapes[7])
            report.shape("tCrB_retiled", targets[1], "(CPY,MMA_N,MMA_K)", shapes[8])

    def to_registers(cta, stage, *block):
        for i in range(2):
            src, dst = at(sources[i], *block, stage), at(targets[i], *block)
            if smem_copies is None:
                cta.copy(src, dst)
            else:
                cta.copy(smem_copies[i], src, dst)

    def one_buffer(cta):
        c.load(cta, 0, 0)
        for k in range(c.k_tiles):
            if sites("cp_async_wait: the tile has landed"):
                cta.cp_async_wait_all()
            if sites("sync_threads behind the wait: everybody's part has"):
                yield cta.sync_threads()
            to_registers(cta, 0)
            if sites("sync_threads behind the reads: the buffer is free"):
                yield cta.sync_threads()
            if k + 1 < c.k_tiles:
                c.load(cta, k + 1, 0)
            cta.gemm(c.mma, c.tCrC, tCrA, tCrB, c.tCrC)
        cta.copy(c.tCrC, c.tCgC)

    def two_buffers(cta):
        c.load(cta, 0, 0)
        if sites("cp_async_wait before the loop"):
            cta.cp_async_wait_all()
        if sites("sync_threads before the loop"):
            yield cta.sync_threads()
        read, write = 0, 1
        current = read  # the buffer that registers are filled from: `read` changes while it is still in use
        to_registers(cta, current, 0)
        k_blocks = size(tCrA[0], 2)
        for k in range(c.k_tiles):
            for block in range(k_blocks):
                if block == k_blocks - 1:
                    if sites("cp_async_wait at the last k-block: the next tile has landed"):
                        cta.cp_async_wait_all()
                    if sites("sync_threads at the last k-block: for all, and this buffer is free"):
                        yield cta.sync_threads()
                    current = read
                to_registers(cta, current, (block + 1) % k_blocks)
                if block == 0 and k + 1 < c.k_tiles:
                    c.load(cta, k + 1, write)
                    read, write = write, read
                cta.gemm(c.mma, c.tCrC, at(tCrA, block), at(tCrB, block), c.tCrC)
        cta.copy(c.tCrC, c.tCgC)

    c.block.run(one_buffer if stages == 1 else two_buffers)


# ---- Tensor cores --------------------------------------------------------------------------------------------------


def tensor_cores(report):
    """Document 000: one line changed; TF32 16x8x8 with universal copies, then with ldmatrix."""
    # The line: document 001's kernel with a tensor-core instruction. NT: A is M-major, and B N-major.
    volta = make_tiled_mma("MMAOP_8x8x4_F32F16F16F32_NT", "(8,4)", (64, 64, 4))
    report.equal("size(mma) of MMAOP_8x8x4_F32F16F16F32_NT, atoms (8,4)", size(volta), 256)
    report.equal("majors of A and B", volta.atom.majors, ("MN", "MN"))
    report.equal("C == A B^T with that line", *register_staged(mma=volta, dtype="float16"))
    mma = make_tiled_mma("MMAOP_16x8x8_F32TF32TF32F32_TN")
    report.equal("size(mma)", size(mma), 32)
    report.typst("mma", mma, 32)
    smem_copy_A = make_tiled_copy_A(CopyAtom("LDSM_U32x4_N", "Float32"), mma)
    smem_copy_B = make_tiled_copy_B(CopyAtom("LDSM_U32x2_N", "Float32"), mma)
    report.equal("LDSM_U32x4_N for A: tile", smem_copy_A.tile_size, (16, 8))
    report.equal("LDSM_U32x2_N for B: tile", smem_copy_B.tile_size, (8, 8))
    for name, tiled, own in (("A", smem_copy_A, mma.layout_A_TV), ("B", smem_copy_B, mma.layout_B_TV)):
        report.equal(f"destination of smem_copy_{name} is {name} of the MMA", tiled.layout_D_TV.values(), own.values())
        report.typst(f"smem_copy_{name}", tiled, 32)
    row = np.unique(smem_copy_A.get_slice(9).partition_S(Tensor(np.zeros((16, 8), np.float32))).indices() // 8)
    report.equal("thread 9 holds the address of row", row.tolist(), [9])
    m_major = make_tensor("float32", Layout((16, 8), (1, 16)))
    report.raises(
        "ldmatrix of an M-major A",
        Misaligned,
        lambda: copy(smem_copy_A, m_major, make_tensor("float32", (16, 8))),
    )
    for with_ldmatrix in (False, True):
        print(f"  -- registers through {'retiled copies' if with_ldmatrix else 'plain copies'}")
        report.equal("C == A B", *warp_product(with_ldmatrix, report=report))
        leave_out_each(report, lambda sites, x=with_ldmatrix: warp_product(x, sites))


def warp_product(with_ldmatrix, sites=None, report=None, bM=16, bN=8, bK=8):
    """Document 000's matmul_kernel: 16x8x8 by one warp, B through ldmatrix or not.

    The document has no barrier behind its wait, and a wait is for a thread's own copies: the lanes of a warp may be at
    different places of a program. So there is a __syncwarp here.
    """
    sites = sites or Sites()
    A = np.arange(1, 129, dtype=np.float32).reshape((16, 8), order="F")
    B = np.arange(1, 65, dtype=np.float32).reshape((8, 8), order="F")  # (K,N)
    C = np.ones((16, 8), np.float32, order="F")
    copy_A = make_tiled_copy(CopyAtom("CPOP_ASYNC_CACHEALWAYS{UInt128}", "Float32"), "(4,8)", "(4,1)")
    copy_B = make_tiled_copy(CopyAtom("CPOP_ASYNC_CACHEALWAYS{UInt64}", "Float32"), "(8,4):(4,1)", "(1,2)")
    mma = make_tiled_mma("MMAOP_16x8x8_F32TF32TF32F32_TN")
    layouts = Layout((bM, bK), (1, bM)), Layout((bN, bK), (bK, 1))
    c = Cta((A, B.T, C), (bM, bN, bK), mma, (copy_A, copy_B), layouts)
    tCrA = each(lambda t, x: t.make_fragment_A(x), c.thr_mma, c.tCsA)
    tCrB = each(lambda t, x: t.make_fragment_B(x), c.thr_mma, c.tCsB)
    # A is M-major in shared memory: only UniversalCopy can bring it.
    smem_copy_A = make_tiled_copy_A(CopyAtom(UniversalCopy("Float32"), "Float32"), mma)
    smem_copy_B = make_tiled_copy_B(CopyAtom("LDSM_U32x2_N", "Float32"), mma)
    thr_A, thr_B = ([tiled.get_slice(t) for t in range(mma.threads)] for tiled in (smem_copy_A, smem_copy_B))
    tCsA_retiled, tCsB_retiled = [t.partition_S(c.sA) for t in thr_A], [t.partition_S(c.sB) for t in thr_B]
    tCrA_retiled = each(lambda t, r: t.retile_D(r), thr_A, tCrA)
    tCrB_retiled = each(lambda t, r: t.retile_D(r), thr_B, tCrB)
    if report:
        report.shape("tAgA", c.tAgA, "(CPY,CPY_M,CPY_K,k)", ((4, 1), 1, 1, 1))
        report.shape("tBgB", c.tBgB, "(CPY,CPY_N,CPY_K,k)", ((2, 1), 1, 1, 1))
        report.shape("tCsA", c.tCsA, "(MMA,MMA_M,MMA_K)", ((2, 2), 1, 1))
        report.shape("tCsB", c.tCsB, "(MMA,MMA_N,MMA_K)", (2, 1, 1))
        report.shape("tCgC", c.tCgC, "(MMA,MMA_M,MMA_N)", ((2, 2), 1, 1))
        report.shape("tCrA_retiled", tCrA_retiled, "(CPY,MMA_M,MMA_K)", ((1, 4), 1, 1))
        report.shape("tCrB_retiled", tCrB_retiled, "(CPY,MMA_N,MMA_K)", ((2, 1), 1, 1))

    def program(cta):
        c.load(cta, 0)
        if sites("cp_async_wait: the tile has landed"):
            cta.cp_async_wait_all()
        if sites("__syncwarp behind the wait, which the document does not have"):
            cta.sync_warp()
        if with_ldmatrix:
            cta.copy(smem_copy_A, tCsA_retiled, tCrA_retiled)
            cta.copy(smem_copy_B, tCsB_retiled, tCrB_retiled)
        else:
            cta.copy(c.tCsA, tCrA)
            cta.copy(c.tCsB, tCrB)
        cta.gemm(mma, c.tCrC, tCrA, tCrB, c.tCrC)
        cta.copy(c.tCrC, c.tCgC)

    c.block.run(program)
    return C, A @ B


def double_buffer(report):
    """Document 000's double buffering: TF32, 128 threads, ldmatrix x4 for B; then for A, too."""
    mma = tf32_mma()
    report.equal("size(mma)", size(mma), 128)
    report.equal("tile of the MMA", mma.tile_shape, (32, 32, 8))
    report.equal("C == A B^T", *tf32_product("NT", report))
    # One line more: with a K-major A, TN, ldmatrix brings A, too.
    report.equal("C == A B^T with a K-major A through LDSM_U32x4_N", *tf32_product("TN"))
    leave_out_each(report, lambda sites: tf32_product("NT", sites=sites))


def tf32_mma():
    """128 threads of TF32 tensor cores, on a tile of 32x32x8."""
    return make_tiled_mma("MMAOP_16x8x8_F32TF32TF32F32_TN", "(2,2,1):(2,1,1)", (32, 32, 8))


def tf32_product(majors, report=None, sites=None, bM=128, bN=128, bK=16):
    """The kernel with A M-major ("NT") or K-major ("TN"); B is K-major.

    The document has one more sync_threads, at the end. Nothing follows it, so it orders nothing, and is not here.
    """
    rng = np.random.default_rng(3)
    A, B = integers(rng, bM, bK * 3), np.ascontiguousarray(integers(rng, bN, bK * 3))
    C = np.full((bM, bN), 7, np.float32, order="F")
    gmem_atom, ldmatrix = CopyAtom("CPOP_ASYNC_CACHEALWAYS{UInt128}", "Float32"), CopyAtom("LDSM_U32x4_N", "Float32")
    k_major = make_tiled_copy(gmem_atom, "(32,4):(4,1)", "(1,4)"), Layout("(128,16,2):(16,1,2048)")
    m_major = make_tiled_copy(gmem_atom, "(16,8)", "(4,1)"), Layout("(128,16,2):(1,128,2048)")
    mma = tf32_mma()
    if majors == "TN":
        A, (gmem_copy_A, sA_layout), smem_atom = np.ascontiguousarray(A), k_major, ldmatrix
    else:  # A is M-major: ldmatrix cannot read it
        (gmem_copy_A, sA_layout), smem_atom = m_major, CopyAtom(UniversalCopy("Float32"), "Float32")
    if report:
        report.equal("tile of gmem_copy_A", gmem_copy_A.tile_size, (64, 8))
        report.equal("tile of gmem_copy_B", k_major[0].tile_size, (32, 16))
    c = Cta((A, B, C), (bM, bN, bK), mma, (gmem_copy_A, k_major[0]), (sA_layout, k_major[1]))
    shapes = (
        ((4, 1), 2, 2),
        ((4, 1), 4, 1),
        ((2, 2), 4, 2),
        (2, 8, 2),
        ((2, 2), 4, 8),
        ((1, (2, 2)), 4, 2, 2),
        ((4, 1), 4, 2, 2),
        ((1, 4), 4, 2),
        (((2, 2), 1), 4, 2),
    )
    smem_copies = make_tiled_copy_A(smem_atom, mma), make_tiled_copy_B(ldmatrix, mma)
    run_pipeline(c, 2, sites or Sites(), smem_copies, report, shapes)
    return C, A @ B.T


# ---- Tiles, CTA swizzling, persistence -----------------------------------------------------------------------------


def cta_swizzle(report, super_m=12):
    """Document 004: what tiles save; the order of CTAs as a layout, and what it saves."""
    # Every element of C reads a row of A and a column of B; a block tile reads each once for all its elements.
    m = n = k = 256
    loads = [(m // tile) * (n // tile) * (2 * tile * k) for tile in (1, 32, 64, 128)]
    report.equal(
        "elements loaded for C 256x256, K 256, with tiles of 1, 32, 64, 128", loads, [2**25, 2**20, 2**19, 2**18]
    )

    tile_rows, tile_cols, two = 2, 4, 2  # C is 128x256, tiles are 64x64
    plain = Layout((tile_rows, tile_cols), order="row")  # (row, col) -> CTA
    swizzled = Layout(((two, tile_rows // two), tile_cols), ((1, two * tile_cols), two))
    for name, raster, expected in (("rows first", plain, (5, 3)), ("super_M = 2", swizzled, (4, 4))):
        traffic = wave_traffic(place(raster, cta, tile_rows) for cta in range(4))
        report.equal(f"{name}: 4 CTAs load from memory and from L2", (traffic.memory, traffic.l2), expected)
    rows, cols = 4 * super_m, 20
    raster = Layout(((super_m, rows // super_m), cols), ((1, super_m * cols), super_m))
    repeat = super_m * cols
    stated = [((cta // repeat) * super_m + cta % super_m, (cta % repeat) // super_m) for cta in range(rows * cols)]
    computed = [place(raster, cta, rows) for cta in range(rows * cols)]
    report.equal(f"super_M = {super_m}: the document's formula is the layout's inverse", computed == stated, True)
    report.equal(
        "  and the kernels' scheduler", [tile_coord(i, rows, cols, super_m) for i in range(rows * cols)] == stated, True
    )
    report.equal("  every tile once", len(set(computed)), rows * cols)
    rest = {tile_coord(i, rows + 1, cols, super_m) for i in range((rows + 1) * cols)}
    report.equal("  also with a row of tiles more", len(rest), (rows + 1) * cols)

    # 132 CTAs at a time on 64x64 tiles: in their order, as persistent CTAs take them, and in a random one.
    total = 64 * 64
    ordered = schedule_traffic(64, 64, super_m, 132).memory
    shuffled = np.random.default_rng(0).permutation(total).tolist()
    waves = [[tile_coord(i, 64, 64, super_m) for i in shuffled[w : w + 132]] for w in range(0, total, 132)]
    scattered = sum(wave_traffic(wave).memory for wave in waves)
    print(f"  64x64 tiles, 132 at a time: {ordered} loads from memory in order, {scattered} in a random order")
    report.equal("  a random order costs more", scattered > ordered, True)


def place(raster, cta, rows):
    """(row, column) of a CTA's tile."""
    index = right_inverse(raster)(cta)
    return index % rows, index // rows


# ---- TMA, mbarriers, producer and consumers ------------------------------------------------------------------------


def producer_consumer(report):
    """Document 004: a warp orders TMA loads, four warps multiply; a ring of stages; CTAs that stay."""
    report.equal("C == A B^T", *ring_of_stages())
    for stages in (1, 2, 4):
        report.equal(f"C == A B^T with {stages} stages", *ring_of_stages(stages=stages))
    leave_out_each(report, lambda sites: ring_of_stages(sites))
    report.raises(
        "  which of them ends in a deadlock, and not in a race", DeadlockError, lambda: ring_of_stages(Sites(EMPTY))
    )
    report.raises("  and one that is a race", RaceError, lambda: ring_of_stages(Sites(FULL)))


FULL = "the wait for full: the stage has landed"
EMPTY = "the arrival at empty: the stage may be filled again"


def ring_of_stages(sites=None, stages=3, ctas=2, tile=(32, 32, 16)):
    """A product of 64x64x64 by CTAs that stay, one after the other: C, and what it has to be."""
    sites = sites or Sites()
    bM, bN, _bK = tile
    rng = np.random.default_rng(4)
    A, B = (np.ascontiguousarray(integers(rng, 64, 64)) for _i in range(2))
    C = np.full((64, 64), 7, np.float32)
    tiles_m, tiles_n = 64 // bM, 64 // bN
    for first in range(ctas):
        tiles = [tile_coord(i, tiles_m, tiles_n, super_m=2) for i in range(first, tiles_m * tiles_n, ctas)]
        persistent_cta(sites, (A, B, C), tiles, stages, tile)
    return C, A @ B.T


def persistent_cta(sites, matrices, tiles, stages, tile):
    """One CTA: 4 warps of consumers, then the producer's warp."""
    (A, B, C), (bM, bN, bK) = matrices, tile
    mma, ldmatrix = tf32_mma(), CopyAtom("LDSM_U32x4_N", "Float32")
    consumers = mma.threads
    block = Block(consumers + 32)
    # Rows of 64 bytes, swizzled as TMA does.
    smem_atom = gmma_smem_atom("K", "SW64", "float32")
    sA = block.shared("float32", tile_to_shape(smem_atom, (bM, bK, stages)), "sA")
    sB = block.shared("float32", tile_to_shape(smem_atom, (bN, bK, stages)), "sB")
    sC = block.shared("float32", Layout((bM, bN), (bN, 1)), "sC")
    mA, mB = block.global_memory(A, "A"), block.global_memory(B, "B")
    mC = block.global_memory(C, "C", writable=True)
    full = [block.mbarrier(f"full[{i}]") for i in range(stages)]
    empty = [block.mbarrier(f"empty[{i}]") for i in range(stages)]
    k_tiles = A.shape[1] // bK
    stage_bytes = (bM + bN) * bK * 4

    def producer(warp):
        one = warp[0]
        for i in range(stages):
            one.mbarrier_init(full[i], 1)  # the producer's arrival, and its bytes
            one.mbarrier_init(empty[i], consumers)
        if sites("fence_mbarrier_init: TMA sees the mbarriers"):
            one.fence_mbarrier_init()
        if sites("sync_threads behind the initialization"):
            yield warp.sync_threads()
        step = 0
        for m, n in tiles:
            for k in range(k_tiles):
                stage, phase = step % stages, step // stages % 2
                if sites("the wait for empty: all have read the stage"):
                    yield one.mbarrier_wait(empty[stage], phase ^ 1)
                if sites("expect_tx: how many bytes will come"):
                    one.mbarrier_arrive_expect_tx(full[stage], stage_bytes)
                else:
                    one.mbarrier_arrive(full[stage])
                one.tma_load(full[stage], local_tile(mA, (bM, bK), (m, k)), sA[_, _, stage])
                one.tma_load(full[stage], local_tile(mB, (bN, bK), (n, k)), sB[_, _, stage])
                step += 1

    def consumer(cta):
        threads = range(consumers)
        thr_mma = [mma.get_slice(t) for t in threads]
        copies = make_tiled_copy_A(ldmatrix, mma), make_tiled_copy_B(ldmatrix, mma)
        slices = [[tiled.get_slice(t) for t in threads] for tiled in copies]
        tCsA, tCsB = [t.partition_S(sA) for t in slices[0]], [t.partition_S(sB) for t in slices[1]]
        tCrA = [t.make_fragment_A(t.partition_A(sA[_, _, 0])) for t in thr_mma]
        tCrB = [t.make_fragment_B(t.partition_B(sB[_, _, 0])) for t in thr_mma]
        tCrA_retiled = each(lambda t, r: t.retile_D(r), slices[0], tCrA)
        tCrB_retiled = each(lambda t, r: t.retile_D(r), slices[1], tCrB)
        tCsC = [t.partition_C(sC) for t in thr_mma]
        tCrC = each(lambda t, c: t.make_fragment_C(c), thr_mma, tCsC)
        if sites("sync_threads behind the initialization"):
            yield cta.sync_threads()
        step = 0
        for m, n in tiles:
            each(zeros, tCrC)
            for _k in range(k_tiles):
                stage, phase = step % stages, step // stages % 2
                if sites(FULL):
                    yield cta.mbarrier_wait(full[stage], phase)
                cta.copy(copies[0], at(tCsA, stage), tCrA_retiled)
                cta.copy(copies[1], at(tCsB, stage), tCrB_retiled)
                if sites(EMPTY):
                    cta.mbarrier_arrive(empty[stage])
                cta.gemm(mma, tCrC, tCrA, tCrB, tCrC)
                step += 1
            if sites("the wait for the store before: it has read its source"):
                cta[0].tma_store_wait_group(0, read=True)
            if sites("the barrier behind that wait"):
                yield cta.bar_sync(1, consumers)
            cta.copy(tCrC, tCsC)
            if sites("fence_proxy_async: TMA sees what threads have stored"):
                cta.fence_proxy_async()
            if sites("the barrier before the store: all have stored"):
                yield cta.bar_sync(1, consumers)
            cta[0].tma_store(sC, local_tile(mC, (bM, bN), (m, n)))
            cta[0].tma_store_commit_group()
        if sites("the wait for the last store"):
            cta[0].tma_store_wait_group(0)

    block.run({producer: range(consumers, consumers + 32), consumer: range(consumers)})


EXAMPLES = [tiled_copy, pipelining, tensor_cores, double_buffer, cta_swizzle, producer_consumer]


def main(arguments):
    """Runs the examples named, or all; the number of checks that failed."""
    known = {example.__name__: example for example in EXAMPLES}
    parser = argparse.ArgumentParser(description="The five documents, run thread by thread.")
    parser.add_argument("names", nargs="*", choices=[[], *known], help="which of them; all by default")
    parser.add_argument("--super-m", type=int, default=12, help="rows of tiles in a group, of cta_swizzle (default 12)")
    options = parser.parse_args(arguments)
    report = Report()
    for name in options.names or known:
        summary = (known[name].__doc__ or "").splitlines()[0]
        print(f"{name}: {summary}")
        if name == "cta_swizzle":
            cta_swizzle(report, options.super_m)
        else:
            known[name](report)
    print(f"{report.checked} checks, {report.failed} failed")
    return report.failed


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
