"""What ptxas makes of the Hopper kernels: TMA and wgmma as such, nothing serialized, nothing spilled, and no path with
more registers than setmaxnreg gives it.

Compiled are rows of the table in one order each, which together have every kernel, dtype, tile and order: all rows in
all orders would take minutes. tests/build/test_sass.py looks at the whole of an installed module.
"""

from __future__ import annotations

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_sass  # noqa: E402

ROW = re.compile(r"^ *(\{(sm90_\w+), *(\w+), *(\w+),[^{]*\{([^}]*)\}[^{]*\{([^}]*)\}, *(\d+)\}),", re.MULTILINE)
ORDERS = ("NT", "TN", "NN", "TT")


def rows() -> list[tuple[str, str, str]]:
    """(kernel, row, order) of a row for each kernel, dtype, accumulator and tile: alignment 16, the largest cluster."""
    found: dict[tuple[str, str, str, str], tuple[int, int, str]] = {}
    for text, kernel, dtype, sums, tile, cluster, alignment in ROW.findall((ROOT / "cuda/gemm/configs.h").read_text()):
        text, tile = re.sub(r"\s+", "", text), re.sub(r"\s+", "", tile)
        cluster_m, cluster_n = (int(x) for x in cluster.split(","))
        key = (kernel, dtype, sums, tile)
        found[key] = max(found.get(key, (0, 0, "")), (int(alignment), cluster_m * cluster_n, text))
    result = []
    for index, ((kernel, dtype, *_), (*_, text)) in enumerate(found.items()):
        # Other types than those of 16 bits are contiguous along k alone.
        result.append((kernel, text, ORDERS[index % 4] if dtype in ("bf16", "f16") else "NT"))
    return result


ROWS = rows()
Instruction = collections.namedtuple("Instruction", "address predicate opcode operands")
_LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][A-Z0-9_.a-z]*)\s*([^;]*);", re.MULTILINE)


def parse(listing: str) -> list[Instruction]:
    return [Instruction(int(a, 16), p, o, rest) for a, p, o, rest in _LINE.findall(listing)]


def highest_register(instruction: Instruction) -> int:
    """The highest index of a register that it names, or that follow from one it names; -1: none."""
    opcode = instruction.opcode
    named = [int(index) for index in re.findall(r"(?<!U)\bR(\d+)", instruction.operands)]
    if not named:
        return -1
    highest = max(named)
    if shape := re.match(r"HGMMA\.64x(\d+)x\d+\.(F16|F32)|[IQ]GMMA\.64x(\d+)x", opcode):
        sums = int(shape[1] or shape[3]) // (4 if shape[2] == "F16" else 2)
        highest = max(highest, named[0] + sums - 1)
    elif re.match(r"(LD|ST)[A-Z]*\b", opcode):
        words = 4 if ".128" in opcode else 2 if ".64" in opcode else 1
        # `[R2.64+0x10]` is an address in two registers.
        highest = max(highest + 1, *(index + words - 1 for index in named)) if words > 1 else highest
    return highest


def reachable(code: list[Instruction], start: int) -> set[int]:
    """Indices of the instructions that may follow code[start], itself among them, without those of a call."""
    at = {instruction.address: index for index, instruction in enumerate(code)}
    seen, todo = set(), [start]
    while todo:
        index = todo.pop()
        if index in seen or index >= len(code):
            continue
        seen.add(index)
        _, predicate, opcode, operands = code[index]
        target = re.search(r"(0x[0-9a-f]+)\s*$", operands)
        name = opcode.split(".")[0]
        assert name not in ("BRX", "JMX"), "a jump through a table: where it leads is not in the instruction"
        if name in ("BRA", "JMP", "BSSY") and target:
            todo.append(at[int(target[1], 16)])
        if name not in ("BRA", "JMP", "EXIT", "RET") or predicate or "UP" in operands or "DIV" in opcode:
            todo.append(index + 1)
    return seen


def compile_row(folder: pathlib.Path, kernel: str, row: str, order: str) -> tuple[pathlib.Path, str]:
    """The object, and what ptxas said."""
    template = (ROOT / "cuda/gemm/instance.cu.in").read_text().replace("@KERNEL@", kernel).replace("@ROW@", row)
    source, target = folder / "row.cu", folder / "row.cubin"
    # One kernel in place of the row's entry, which has all four orders.
    head = template[: template.index("template <GemmConfig kConfig>")]
    name = f"{kernel}_kernel<Gemm<GemmConfig{row}>, Order::{order}>"
    source.write_text(f"{head}auto* one_order() {{ return &{name}; }}\n}}  // namespace moye\n")
    command = [
        *("nvcc", "-std=c++20", "-O3", "-cubin", f"-I{ROOT / 'cuda'}", "--generate-code=arch=compute_90a,code=sm_90a"),
        *("-Xptxas", "-v,-warn-spills,-warn-lmem-usage", source, "-o", target),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target, done.stdout + done.stderr


def disassemble(binary: pathlib.Path) -> str:
    cuobjdump, nvdisasm = check_sass.find_tool("cuobjdump"), check_sass.find_tool("nvdisasm")
    environ = dict(os.environ, PATH=os.pathsep.join([os.path.dirname(nvdisasm), os.environ.get("PATH", "")]))
    return subprocess.run([cuobjdump, "-sass", binary], env=environ, capture_output=True, text=True, check=True).stdout


def check_code(code: list[Instruction], tma_stores: bool = True, deals_registers: bool = True) -> None:
    """What every Hopper kernel has.

    tma_stores: whether TMA stores sums once they are rounded: float ones, not those that CTAs have to add up.
    deals_registers: whether the producer gives registers to the consumers.
    """
    opcodes = " ".join(instruction.opcode for instruction in code)
    for opcode in (r"[HIQ]GMMA\.64x", r"UTMALDG\.", r"SYNCS\.", *((r"UTMASTG\.", r"STSM") if tma_stores else ())):
        assert re.search(rf"\b{opcode}", opcodes), f"no {opcode}"
    assert not re.search(r"\b(LDL|STL)\b", opcodes)

    given = {}
    for index, instruction in enumerate(code):
        if instruction.opcode.startswith("USETMAXREG"):
            kind = "producer" if "DEALLOC" in instruction.opcode else "consumers"
            given[kind] = (index, int(re.findall(r"0x[0-9a-f]+", instruction.operands)[-1], 16))
    if not deals_registers:  # all threads have what ptxas says
        assert not given
        return
    assert set(given) == {"producer", "consumers"}
    start, registers = given["producer"]
    producer = reachable(code, start)
    highest = max(highest_register(code[index]) for index in producer)
    assert 0 < highest < registers, f"the producer uses R{highest} of {registers} registers"
    # Everything else; jumps through tables hide which of it the consumers reach.
    highest = max(highest_register(instruction) for instruction in code)
    assert highest < given["consumers"][1], f"R{highest} of {given['consumers'][1]} registers"


def check_promotion(code: list[Instruction], row: str) -> None:
    """Sums of 8-bit floats leave the tensor core with every turn of the main loop, or never."""
    targets = [re.search(r"(0x[0-9a-f]+)\s*$", i.operands) if i.opcode.startswith("BRA") else None for i in code]
    flow = [(i.address, i.opcode, target and int(target[1], 16)) for i, target in zip(code, targets, strict=True)]
    loop = collections.Counter(opcode.split(".")[0] for _, opcode, _ in check_sass.main_loop(flow))
    m, n, _ = (int(x) for x in re.search(r"\{(\d+),(\d+),(\d+)\}", row).groups())
    consumers = 3 if m % 192 == 0 else 2
    assert loop["QGMMA"] > 0
    assert loop["FADD"] == (0 if ",f32_fast," in row else m * n // (128 * consumers)), loop


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
@pytest.mark.parametrize(
    ("kernel", "row", "order"), ROWS, ids=["-".join((*re.findall(r"\w+", row), order)) for _, row, order in ROWS]
)
def test_row(kernel, row, order, tmp_path):
    target, said = compile_row(tmp_path, kernel, row, order)
    assert said.count("Compiling entry function") == 1
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said
    assert re.findall(r"\(C75\d\d\)", said) == [], said
    if reason := check_sass.unavailable():
        pytest.skip(f"{reason}: the messages of ptxas were checked")
    code = parse(disassemble(target))
    splits_k = kernel == "sm90_split_k"
    check_code(code, tma_stores=",s32," not in row and not splits_k, deals_registers=not splits_k)
    if re.search(r",e[45]m[23],", row):
        check_promotion(code, row)


CODE = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 BRA 0x0090 ;
        /*0020*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xe8 ;
        /*0030*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0040*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2+URZ], R3 ;
        /*0050*/                   STSM.16.M88.4 [R160], R4 ;
        /*0060*/                   UTMASTG.3D [UR8], [UR4] ;
        /*0070*/                   BRA 0x00c0 ;
        /*0080*/                   LDS.128 R200, [R2] ;
        /*0090*/                   USETMAXREG.DEALLOC.CTAPOOL 0x28 ;
        /*00a0*/                   UTMALDG.3D [UR8], [UR4], desc[URZ] ;
        /*00b0*/              @!P0 BRA 0x00a0 ;
        /*00c0*/                   IMAD.MOV.U32 R39, RZ, RZ, R3 ;
        /*00d0*/                   EXIT ;
"""


def test_the_check_of_registers():
    check_code(parse(CODE))
    for good, bad, fault in (
        ("R39, RZ", "R40, RZ", "the producer uses R40 of 40"),
        ("LDS.128 R200", "LDS.128 R229", "R232 of 232"),
        ("BF16 R24", "BF16 R105", "R232 of 232"),
        ("UTMALDG", "LDGSTS", "no UTMALDG"),
        ("LDS.128", "LDL.128", "LDL"),
        ("USETMAXREG.DEALLOC.CTAPOOL 0x28", "NOP", "producer"),
    ):
        assert good in CODE
        with pytest.raises(AssertionError, match=fault):
            check_code(parse(CODE.replace(good, bad)))
