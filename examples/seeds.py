"""The five documents this project grew from, run thread by thread on the CPU.

    python examples/seeds.py [tiled_copy] [pipelining] [double_buffer] [tensor_cores] [cta_swizzle]

Each example prints the shapes that its document states and compares what it computed with NumPy. Everything is
0-based: thread 2 of the documents is thread 1 here. The exit status is 1 if anything differs.
"""

import sys

import numpy as np

from jax_moye.layout import Layout, right_inverse
from jax_moye.layout.atoms import CopyAtom, UniversalCopy, UniversalFMA, cp_async, mma_atom, mma_ops_list
from jax_moye.layout.errors import Misaligned, TiledCopyTooFewValues
from jax_moye.layout.execute import copy, gemm
from jax_moye.layout.int_tuple import show
from jax_moye.layout.tensor import Tensor, local_tile, make_fragment_like, make_tensor, zeros
from jax_moye.layout.tiled import make_tiled_copy, make_tiled_copy_A, make_tiled_copy_B, make_tiled_mma

_ = None


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

    def raises(self, what, error, function):
        """That a mistake is found."""
        self.checked += 1
        try:
            function()
        except error as raised:
            print(f"  {what}: {type(raised).__name__}: {raised.problem}")
            return
        print(f"  WRONG {what}: nothing raised")
        self.failed += 1


def each(function, *parts):
    """What every thread does."""
    return [function(*p) for p in zip(*parts, strict=True)]


def at(tensors, *last):
    """Of every thread's tensor the slice at `last` of its last modes."""
    return [t[(_,) * (t.rank - len(last)) + last] for t in tensors]


def integers(rng, *shape):
    """Integers in [-4,4] as float32, column-major: every sum of products is exact."""
    return np.asfortranarray(rng.integers(-4, 5, shape).astype(np.float32))


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
    thread = copy6.get_slice(1)
    dst_t, src_t = thread.partition_D(dst), thread.partition_S(src)
    report.shape("dst_t", dst_t, "(CPY,CPY_M,CPY_K)", ((1, (2, 3)), 1, 1))
    report.equal("dst_t.layout", str(dst_t.layout), "((1,(2,3)),1,1):((0,(1,4)),0,0)")
    report.equal("src_t.layout", str(src_t.layout), "((1,(2,3)),1,1):((0,(1,4)),0,0)")
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

    mma = make_tiled_mma(UniversalFMA("float32"), "(16,16)")
    report.equal("UniversalFMA, atoms (16,16): threads", mma.threads, 256)
    report.equal("MoYe.jl's mma_ops_list", len([mma_atom(name) for name in mma_ops_list()]), 51)
    matmul_register_staged(report)
    coalescing(report)


def matmul_register_staged(report, bM=128, bN=128, bK=8, k_tiles=3):
    """One CTA of document 001's matmul_kernel."""
    rng = np.random.default_rng(1)
    A, B = integers(rng, bM, bK * k_tiles), integers(rng, bN, bK * k_tiles)
    C = np.full((bM, bN), 7, np.float32, order="F")
    copy_A = make_tiled_copy(CopyAtom(UniversalCopy("float32"), "float32"), "(32,8)", "(1,1)")
    copy_B = copy_A
    mma = make_tiled_mma(UniversalFMA("float32"), "(32,8)")
    threads = range(mma.threads)

    sA = make_tensor("float32", Layout((bM, bK), (1, bM + 1)))
    sB = make_tensor("float32", Layout((bN, bK), (1, bN + 1)))
    gA, gB, gC = (
        local_tile(Tensor(A), (bM, bK), (0, _)),
        local_tile(Tensor(B), (bN, bK), (0, _)),
        local_tile(Tensor(C), (bM, bN), (0, 0)),
    )
    thr_copy_A, thr_copy_B = [copy_A.get_slice(t) for t in threads], [copy_B.get_slice(t) for t in threads]
    tAgA, tAsA = [t.partition_S(gA) for t in thr_copy_A], [t.partition_D(sA) for t in thr_copy_A]
    tBgB, tBsB = [t.partition_S(gB) for t in thr_copy_B], [t.partition_D(sB) for t in thr_copy_B]
    tArA, tBrB = each(make_fragment_like, tAsA), each(make_fragment_like, tBsB)
    report.shape("tAgA", tAgA, "(CPY,CPY_M,CPY_K,k)", ((1, 1), 4, 1, k_tiles))
    report.shape("tAsA", tAsA, "(CPY,CPY_M,CPY_K)", ((1, 1), 4, 1))
    report.shape("tBrB", tBrB, "(CPY,CPY_N,CPY_K)", ((1, 1), 4, 1))
    thr_mma = [mma.get_slice(t) for t in threads]
    tCsA, tCsB = [t.partition_A(sA) for t in thr_mma], [t.partition_B(sB) for t in thr_mma]
    tCgC = [t.partition_C(gC) for t in thr_mma]
    tCrC = each(lambda t, c: zeros(t.make_fragment_C(c)), thr_mma, tCgC)
    report.shape("tCsA", tCsA, "(MMA,MMA_M,MMA_K)", (1, 4, 8))
    report.shape("tCsB", tCsB, "(MMA,MMA_N,MMA_K)", (1, 16, 8))
    report.shape("tCrC", tCrC, "(MMA,MMA_M,MMA_N)", (1, 4, 16))

    copy(copy_A, at(tAgA, 0), tArA)
    copy(copy_B, at(tBgB, 0), tBrB)
    for k in range(k_tiles):
        each(copy, tArA, tAsA)
        each(copy, tBrB, tBsB)
        k_next = min(k + 1, k_tiles - 1)
        copy(copy_A, at(tAgA, k_next), tArA)
        copy(copy_B, at(tBgB, k_next), tBrB)
        gemm(mma, tCrC, tCsA, tCsB, tCrC)
    each(copy, tCrC, tCgC)
    report.equal("C == A B^T", C, A @ B.T)


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
    matmul_pipelined(report, stages=1)
    matmul_pipelined(report, stages=2)
    narrow = make_tiled_copy(CopyAtom(cp_async(8), "float32"), "(32,8)", "(2,1)")
    src = Tensor(np.zeros((64, 8), np.float32, order="F"))
    report.raises(
        "rows padded by 1, not 2: 8 bytes are",
        Misaligned,
        lambda: copy(narrow, src, make_tensor("float32", Layout((64, 8), (1, 65)))),
    )


def matmul_pipelined(report, stages, bM=128, bN=128, bK=8, k_tiles=3):
    """One CTA of matmul_kernel of documents 002 and 003, with one shared buffer or two."""
    print(f"  -- {stages} shared buffer{'s' if stages > 1 else ''}")
    rng = np.random.default_rng(stages)
    A, B = integers(rng, bM, bK * k_tiles), integers(rng, bN, bK * k_tiles)
    C = np.full((bM, bN), 7, np.float32, order="F")
    atom = CopyAtom("CPOP_ASYNC_CACHEALWAYS{Float64}", "Float32")
    copy_A = copy_B = make_tiled_copy(atom, "(32,8)", "(2,1)")
    mma = make_tiled_mma(UniversalFMA("float32"), "(32,8)")
    sA_layout = Layout((bM, bK, stages), (1, bM + 2, (bM + 2) * bK))
    shapes = (((2, 1), 2, 1), ((2, 1), 2, 1), (1, 4, 8), (1, 16, 8), (1, 4, 16))
    layouts = sA_layout, sA_layout
    run_pipeline(report, stages, (A, B, C), (bM, bN, bK), mma, (copy_A, copy_B), layouts, None, shapes)


def run_pipeline(report, stages, matrices, tile, mma, gmem_copies, smem_layouts, smem_copies, shapes):
    """The kernel with one buffer (load after the copy to registers) or two (prefetch of tile and k-block)."""
    (A, B, C), (bM, bN, bK) = matrices, tile
    (copy_A, copy_B), (sA_layout, sB_layout) = gmem_copies, smem_layouts
    threads = range(mma.threads)
    sA, sB = make_tensor("float32", sA_layout), make_tensor("float32", sB_layout)
    gA, gB, gC = (
        local_tile(Tensor(A), (bM, bK), (0, _)),
        local_tile(Tensor(B), (bN, bK), (0, _)),
        local_tile(Tensor(C), (bM, bN), (0, 0)),
    )
    k_tiles = gA.layout[2].size
    thr_A, thr_B = [copy_A.get_slice(t) for t in threads], [copy_B.get_slice(t) for t in threads]
    tAgA, tAsA = [t.partition_S(gA) for t in thr_A], [t.partition_D(sA) for t in thr_A]
    tBgB, tBsB = [t.partition_S(gB) for t in thr_B], [t.partition_D(sB) for t in thr_B]
    thr_mma = [mma.get_slice(t) for t in threads]
    tCsA, tCsB = [t.partition_A(sA) for t in thr_mma], [t.partition_B(sB) for t in thr_mma]
    tCgC = [t.partition_C(gC) for t in thr_mma]
    tCrA = each(lambda t, a: t.make_fragment_A(a), thr_mma, at(tCsA, 0))
    tCrB = each(lambda t, b: t.make_fragment_B(b), thr_mma, at(tCsB, 0))
    tCrC = each(lambda t, c: zeros(t.make_fragment_C(c)), thr_mma, tCgC)
    report.shape("tAgA", tAgA, "(CPY,CPY_M,CPY_K,k)", (*shapes[0], k_tiles))
    report.shape("tAsA", tAsA, f"(CPY,CPY_M,CPY_K,{stages})", (*shapes[0], stages))
    report.shape("tBsB", tBsB, f"(CPY,CPY_N,CPY_K,{stages})", (*shapes[1], stages))
    report.shape("tCrA", tCrA, "(MMA,MMA_M,MMA_K)", shapes[2])
    report.shape("tCrB", tCrB, "(MMA,MMA_N,MMA_K)", shapes[3])
    report.shape("tCrC", tCrC, "(MMA,MMA_M,MMA_N)", shapes[4])

    if smem_copies is None:  # shared memory to registers as the MMA has cut them, element by element
        sources, targets = (tCsA, tCsB), (tCrA, tCrB)
    else:
        smem_A, smem_B = smem_copies
        thr_sA, thr_sB = [smem_A.get_slice(t) for t in threads], [smem_B.get_slice(t) for t in threads]
        sources = [t.partition_S(sA) for t in thr_sA], [t.partition_S(sB) for t in thr_sB]
        targets = each(lambda t, r: t.retile_D(r), thr_sA, tCrA), each(lambda t, r: t.retile_D(r), thr_sB, tCrB)
        report.shape("tCsA_retiled", sources[0], f"(CPY,MMA_M,MMA_K,{stages})", shapes[5])
        report.shape("tCsB_retiled", sources[1], f"(CPY,MMA_N,MMA_K,{stages})", shapes[6])
        report.shape("tCrA_retiled", targets[0], "(CPY,MMA_M,MMA_K)", shapes[7])
        report.shape("tCrB_retiled", targets[1], "(CPY,MMA_N,MMA_K)", shapes[8])

    def to_registers(stage, *block):
        for i in range(2):
            src, dst = at(sources[i], *block, stage), at(targets[i], *block)
            if smem_copies is None:
                each(copy, src, dst)
            else:
                copy(smem_copies[i], src, dst)

    def to_shared(k, stage):
        copy(copy_A, at(tAgA, k), at(tAsA, stage))
        copy(copy_B, at(tBgB, k), at(tBsB, stage))

    to_shared(0, 0)
    if stages == 1:
        for k in range(k_tiles):
            to_registers(0)
            if k + 1 < k_tiles:
                to_shared(k + 1, 0)
            gemm(mma, tCrC, tCrA, tCrB, tCrC)
    else:
        read, write = 0, 1
        current = read  # the buffer that registers are filled from: `read` changes while it is still in use
        to_registers(current, 0)
        k_blocks = tCrA[0].layout[2].size
        for k in range(k_tiles):
            for block in range(k_blocks):
                if block == k_blocks - 1:  # here the device waits for the copies under way
                    current = read
                to_registers(current, (block + 1) % k_blocks)
                if block == 0 and k + 1 < k_tiles:
                    to_shared(k + 1, write)
                    read, write = write, read
                gemm(mma, tCrC, at(tCrA, block), at(tCrB, block), tCrC)
    each(copy, tCrC, tCgC)
    report.equal("C == A B^T", C, A @ B.T)


# ---- Tensor cores --------------------------------------------------------------------------------------------------


def tensor_cores(report):
    """Document 000: TF32 16x8x8 with universal copies, then with ldmatrix."""
    mma = make_tiled_mma("MMAOP_16x8x8_F32TF32TF32F32_TN")
    report.equal("size(mma)", mma.threads, 32)
    smem_copy_A = make_tiled_copy_A(CopyAtom("LDSM_U32x4_N", "Float32"), mma)
    smem_copy_B = make_tiled_copy_B(CopyAtom("LDSM_U32x2_N", "Float32"), mma)
    report.equal("LDSM_U32x4_N for A: tile", smem_copy_A.tile_size, (16, 8))
    report.equal("LDSM_U32x2_N for B: tile", smem_copy_B.tile_size, (8, 8))
    for name, tiled, own in (("A", smem_copy_A, mma.layout_A_TV), ("B", smem_copy_B, mma.layout_B_TV)):
        report.equal(f"destination of smem_copy_{name} is {name} of the MMA", tiled.layout_D_TV.values(), own.values())
    row = np.unique(smem_copy_A.get_slice(9).partition_S(Tensor(np.zeros((16, 8), np.float32))).indices() // 8)
    report.equal("thread 9 holds the address of row", row.tolist(), [9])
    m_major = make_tensor("float32", Layout((16, 8), (1, 16)))
    report.raises(
        "ldmatrix of an M-major A",
        Misaligned,
        lambda: copy(smem_copy_A, m_major, make_tensor("float32", (16, 8))),
    )
    matmul_warp(report, mma, with_ldmatrix=False)
    matmul_warp(report, mma, with_ldmatrix=True)


def matmul_warp(report, mma, with_ldmatrix, bM=16, bN=8, bK=8):
    """Document 000's matmul_kernel: 16x8x8 by one warp, B through ldmatrix or not."""
    print(f"  -- registers through {'retiled copies' if with_ldmatrix else 'plain copies'}")
    A = np.arange(1, 129, dtype=np.float32).reshape((16, 8), order="F")
    B = np.arange(1, 65, dtype=np.float32).reshape((8, 8), order="F")  # (K,N)
    C = np.ones((16, 8), np.float32, order="F")
    sA, sB = make_tensor("float32", Layout((bM, bK), (1, bM))), make_tensor("float32", Layout((bN, bK), (bK, 1)))
    copy_A = make_tiled_copy(CopyAtom("CPOP_ASYNC_CACHEALWAYS{UInt128}", "Float32"), "(4,8)", "(4,1)")
    copy_B = make_tiled_copy(CopyAtom("CPOP_ASYNC_CACHEALWAYS{UInt64}", "Float32"), "(8,4):(4,1)", "(1,2)")
    threads = range(mma.threads)
    gA, gB = local_tile(Tensor(A), (bM, bK), (0, _)), local_tile(Tensor(B.T), (bN, bK), (0, _))
    gC = local_tile(Tensor(C), (bM, bN), (0, 0))
    thr_A, thr_B = each(copy_A.get_slice, threads), each(copy_B.get_slice, threads)
    tAgA, tAsA = [t.partition_S(gA) for t in thr_A], [t.partition_D(sA) for t in thr_A]
    tBgB, tBsB = [t.partition_S(gB) for t in thr_B], [t.partition_D(sB) for t in thr_B]
    thr_mma = [mma.get_slice(t) for t in threads]
    tCsA, tCsB = [t.partition_A(sA) for t in thr_mma], [t.partition_B(sB) for t in thr_mma]
    tCgC = [t.partition_C(gC) for t in thr_mma]
    tCrA = each(lambda t, x: t.make_fragment_A(x), thr_mma, tCsA)
    tCrB = each(lambda t, x: t.make_fragment_B(x), thr_mma, tCsB)
    tCrC = each(lambda t, x: zeros(t.make_fragment_C(x)), thr_mma, tCgC)
    report.shape("tAgA", tAgA, "(CPY,CPY_M,CPY_K,k)", ((4, 1), 1, 1, 1))
    report.shape("tBgB", tBgB, "(CPY,CPY_N,CPY_K,k)", ((2, 1), 1, 1, 1))
    report.shape("tCsA", tCsA, "(MMA,MMA_M,MMA_K)", ((2, 2), 1, 1))
    report.shape("tCsB", tCsB, "(MMA,MMA_N,MMA_K)", (2, 1, 1))
    report.shape("tCgC", tCgC, "(MMA,MMA_M,MMA_N)", ((2, 2), 1, 1))
    copy(copy_A, at(tAgA, 0), tAsA)
    copy(copy_B, at(tBgB, 0), tBsB)
    if with_ldmatrix:
        # A is M-major in shared memory: only UniversalCopy can bring it.
        smem_copy_A = make_tiled_copy_A(CopyAtom(UniversalCopy("Float32"), "Float32"), mma)
        smem_copy_B = make_tiled_copy_B(CopyAtom("LDSM_U32x2_N", "Float32"), mma)
        tCsA_retiled = [smem_copy_A.get_slice(t).partition_S(sA) for t in threads]
        tCsB_retiled = [smem_copy_B.get_slice(t).partition_S(sB) for t in threads]
        tCrA_retiled, tCrB_retiled = each(smem_copy_A.retile, tCrA), each(smem_copy_B.retile, tCrB)
        report.shape("tCrA_retiled", tCrA_retiled, "(CPY,MMA_M,MMA_K)", ((1, 4), 1, 1))
        report.shape("tCrB_retiled", tCrB_retiled, "(CPY,MMA_N,MMA_K)", ((2, 1), 1, 1))
        copy(smem_copy_A, tCsA_retiled, tCrA_retiled)
        copy(smem_copy_B, tCsB_retiled, tCrB_retiled)
    else:
        each(copy, tCsA, tCrA)
        each(copy, tCsB, tCrB)
    gemm(mma, tCrC, tCrA, tCrB, tCrC)
    each(copy, tCrC, tCgC)
    report.equal("C == A B", C, A @ B)


def double_buffer(report, bM=128, bN=128, bK=16, k_tiles=3):
    """Document 000's double buffering: TF32, 128 threads, ldmatrix x4 for B."""
    mma = make_tiled_mma("MMAOP_16x8x8_F32TF32TF32F32_TN", "(2,2,1):(2,1,1)", (32, 32, 8))
    gmem_copy_A = make_tiled_copy(CopyAtom("CPOP_ASYNC_CACHEALWAYS{UInt128}", "Float32"), "(16,8)", "(4,1)")
    gmem_copy_B = make_tiled_copy(CopyAtom("CPOP_ASYNC_CACHEALWAYS{UInt128}", "Float32"), "(32,4):(4,1)", "(1,4)")
    smem_copy_A = make_tiled_copy_A(CopyAtom(UniversalCopy("Float32"), "Float32"), mma)
    smem_copy_B = make_tiled_copy_B(CopyAtom("LDSM_U32x4_N", "Float32"), mma)
    report.equal("size(mma)", mma.threads, 128)
    report.equal("tile of the MMA", mma.tile_shape, (32, 32, 8))
    report.equal("tile of gmem_copy_A", gmem_copy_A.tile_size, (64, 8))
    report.equal("tile of gmem_copy_B", gmem_copy_B.tile_size, (32, 16))
    rng = np.random.default_rng(3)
    A, B = integers(rng, bM, bK * k_tiles), np.ascontiguousarray(integers(rng, bN, bK * k_tiles))
    C = np.full((bM, bN), 7, np.float32, order="F")
    layouts = Layout("(128,16,2):(1,128,2048)"), Layout("(128,16,2):(16,1,2048)")
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
    copies = (gmem_copy_A, gmem_copy_B), layouts, (smem_copy_A, smem_copy_B)
    run_pipeline(report, 2, (A, B, C), (bM, bN, bK), mma, *copies, shapes)


# ---- CTA swizzling -------------------------------------------------------------------------------------------------


def cta_swizzle(report):
    """Document 004: the order of CTAs as a layout, and what it saves."""
    tile_rows, tile_cols, super_m = 2, 4, 2  # C is 128x256, tiles are 64x64
    plain = Layout((tile_rows, tile_cols), order="row")  # (row, col) -> CTA
    swizzled = Layout(((super_m, tile_rows // super_m), tile_cols), ((1, super_m * tile_cols), super_m))
    for name, raster, loads in (("rows first", plain, (5, 3)), ("super_M = 2", swizzled, (4, 4))):
        rows_and_cols = [place(raster, cta, tile_rows) for cta in range(4)]
        first = len({row for row, _col in rows_and_cols}) + len({col for _row, col in rows_and_cols})
        report.equal(f"{name}: 4 CTAs load from memory and from L2", (first, 8 - first), loads)
    rows, cols, super_m = 48, 20, 12
    raster = Layout(((super_m, rows // super_m), cols), ((1, super_m * cols), super_m))
    repeat = super_m * cols
    stated = [((cta // repeat) * super_m + cta % super_m, (cta % repeat) // super_m) for cta in range(rows * cols)]
    computed = [place(raster, cta, rows) for cta in range(rows * cols)]
    report.equal("super_M = 12: the document's formula is the layout's inverse", computed == stated, True)
    report.equal("  every tile once", len(set(computed)), rows * cols)


def place(raster, cta, rows):
    """(row, column) of a CTA's tile."""
    index = right_inverse(raster)(cta)
    return index % rows, index // rows


EXAMPLES = [tiled_copy, pipelining, tensor_cores, double_buffer, cta_swizzle]


def main(names):
    """Runs the examples named, or all; the number of checks that failed."""
    known = {example.__name__: example for example in EXAMPLES}
    report = Report()
    for name in names or known:
        print(f"{name}: {known[name].__doc__}")
        known[name](report)
    print(f"{report.checked} checks, {report.failed} failed")
    return report.failed


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
