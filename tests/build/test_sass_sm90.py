"""What ptxas makes of the Hopper kernels: TMA and wgmma as such, nothing serialized, nothing spilled, and no path with
more registers than setmaxnreg gives it.

Compiled is a row of each kind: for each kernel, dtype and accumulator the widest tile of each height (which says how
many warpgroups share it), apart for widths that are whole multiples of 64 and others, and for operands of 16 bits that
TMA cannot read. The widest tile has the most sums to hold in the same registers. Of dtypes whose code differs from
another one's in the name of its multiplications alone it is the narrowest tile, if they have 8 bits of one kernel.
Orders take turns. All of them obey tools/sass_rules.json.

A build that compiles all rows in all orders, as those of releases do, refuses each for what fails here because of
ptxas's messages (tools/nvcc_gate.py: spills, serialized wgmma, an ignored setmaxnreg), and at its end applies the rules
to all of them. tests/build/test_sass.py looks at the whole of an installed module.
"""

from __future__ import annotations

import collections
import functools
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_sass  # noqa: E402
import nvcc_gate  # noqa: E402

ROW = re.compile(r"^ *(\{(sm90_\w+), *(\w+), *(\w+),[^{]*\{([^}]*)\}[^{]*\{([^}]*)\}, *(\d+)\}),", re.MULTILINE)
ORDERS = ("NT", "TN", "NN", "TT")
ORDERS_OF = {"sm90_grouped": ORDERS[:3], "sm90_transposed": ("NN", "TN"), "sm90_split_k_tf32": ("TN", "NN")}
# The first kernel of sm90_parallel_split_k is sm90_cooperative's, of TF32 sm90_transposed's. Doubles, tiny tiles and
# rows that begin anywhere have no wgmma: see test_sass_portable.py.
# Nor have weights: see test_weights. Attention has one order: see test_attention.
WITHOUT_WGMMA = ("sm90_multistage", "sm90_sliced_k", "sm90_odd_rows")
ELSEWHERE = ("sm90_parallel_split_k", *WITHOUT_WGMMA, "sm90_weights", "sm90_attention", "sm90_attention_grad")
COTANGENTS_OF_A_GATE = "{sm90_pingpong,bf16,f32,{128,128,64},5,{1,1},16}"  # no other row computes both
TWINS = {"f16": "bf16", "e5m2": "e4m3", "e4m3xe5m2": "e4m3", "e5m2xe4m3": "e4m3"}  # {dtype: whose code is the same}
RULES = json.loads((ROOT / "tools/sass_rules.json").read_text())


def function_of(row: str) -> str:
    """The name of a row's kernel, without its last word: that of the row, but for products of another kernel's."""
    kernel, dtype, *_ = re.findall(r"\w+", row)
    return "sm90_split_k_tf32" if (kernel, dtype) == ("sm90_split_k", "tf32") else kernel


def is_transposed(row: str) -> bool:
    """Whether it has the main loop of sm90_transposed."""
    return function_of(row) in ("sm90_transposed", "sm90_split_k_tf32")


def rows() -> list[tuple[str, str, str]]:
    """(kernel, row, order) of the widest tile of each kind: greatest alignment, largest cluster; of TWINS narrowest."""
    found: dict[tuple, tuple] = {}
    first_kernel: dict[str, str] = {}  # of a dtype
    for text, kernel, dtype, sums, tile, cluster, alignment in ROW.findall((ROOT / "cuda/gemm/configs.h").read_text()):
        is_again = first_kernel.setdefault(dtype, kernel) != kernel and TWINS.get(dtype) == "e4m3"
        if kernel in ELSEWHERE or is_again:
            continue
        text = re.sub(r"\s+", "", text)
        tile_m, tile_n, _ = (int(x) for x in tile.split(","))
        cluster_m, cluster_n = (int(x) for x in cluster.split(","))
        by_threads = dtype in ("bf16", "f16") and int(alignment) < 16
        key = (kernel, dtype, sums, tile_m, tile_n % 64 == 0, by_threads)
        rank = (int(alignment), tile_n, cluster_m * cluster_n, text)
        if dtype in TWINS:
            key, rank = key[:2], (int(alignment), -tile_m * tile_n, cluster_m * cluster_n, text)
        found[key] = max(found.get(key, rank), rank)
    result, turn = [], collections.Counter()
    for (kernel, dtype, *_), (*_, text) in found.items():
        # Other types than those of 16 bits are contiguous along k alone, but for the kernel of those that are not.
        turns, function = dtype in ("bf16", "f16") or is_transposed(text), function_of(text)
        orders = ORDERS_OF.get(function, ORDERS)
        result.append((kernel, text, orders[turn[function] % len(orders)] if turns else "NT"))
        turn[function] += turns
    return [*result, ("sm90_pingpong", COTANGENTS_OF_A_GATE, "NN")]


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


@functools.cache
def compile_rows(kernel: str, bits: int) -> tuple[dict[str, dict], list[str], dict[str, list[Instruction]]]:
    """Rows of a kernel at once, as most of nvcc's time goes into the headers: those with operands of so many bits.

    Returns {name: what ptxas reported}, what tools/nvcc_gate.py refuses, and {name: code} if there is a disassembler.
    """
    rows = [(row, order) for k, row, order in ROWS if k == kernel and bits_of(row) == bits]
    # All ways of storing in one, whose code kernels of a way have a part of: see test_short_kernels.
    ways = ", Stores::any" if kernel in ("sm90_cooperative", "sm90_pingpong") else ""
    names = [f"{function_of(row)}_kernel<Gemm<GemmConfig{row}>, Order::{order}{ways}>" for row, order in rows]
    return compile_kernels(kernel, names)


def bits_of(row: str) -> int:
    """Of an operand's element."""
    dtype = row.split(",")[1]
    return 8 if re.match(r"s8|e[45]m[23]", dtype) else 16 if dtype in ("bf16", "f16") else 32


def compile_kernels(kernel: str, names: list[str]) -> tuple[dict[str, dict], list[str], dict[str, list[Instruction]]]:
    """The same of kernels that are named in C++."""
    template = (ROOT / "cuda/gemm/instance.cu.in").read_text().replace("@KERNEL@", kernel)
    # One kernel in place of a row's entry, which has all four orders.
    head = template[: template.index("template <GemmConfig kConfig>")]
    uses = "".join(f"auto* kernel_{index}() {{ return &{name}; }}\n" for index, name in enumerate(names))
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder, "rows.cu"), pathlib.Path(folder, "rows.cubin")
        source.write_text(f"{head}{uses}}}  // namespace moye\n")
        command = [
            *("nvcc", "-std=c++20", "-O3", "-cubin", f"-I{ROOT / 'cuda'}"),
            *("--generate-code=arch=compute_90a,code=sm_90a", "-Xptxas", "-v,-warn-spills,-warn-lmem-usage"),
            *(source, "-o", target),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        kernels, faults = nvcc_gate.read_ptxas(done.stdout + done.stderr)
        assert len(kernels) == len(names)
        listings = [] if check_sass.unavailable() else re.split(r"Function : ", check_sass.disassemble(target))[1:]
    code = {listing.split(maxsplit=1)[0]: parse(listing) for listing in listings}
    return {str(kernel["kernel"]): kernel for kernel in kernels}, faults, code


def _enumerators(name: str, file: str) -> list[str]:
    text = (ROOT / "cuda/gemm" / file).read_text()
    return re.findall(r"\w+", re.search(rf"enum class {name} {{([^}}]*)}}", text)[1])


def mangled(names: Iterable[str], row: str, order: str) -> str:
    """The one of the names that is this row's kernel in this order."""
    dtypes = _enumerators("Dtype", "config.h")
    _, dtype, sums, *_ = re.findall(r"\w+", row)
    numbers = "E.*".join(f"Li{number}" for number in re.findall(r"\b\d+\b", row))
    orders = _enumerators("Order", "order.h")
    pattern = rf"DtypeE{dtypes.index(dtype)}ELS\w+_{dtypes.index(sums)}E.*{numbers}E.*OrderE{orders.index(order)}E"
    (name,) = (name for name in names if re.search(pattern, name))
    return name


def broken_rules(codes: dict[str, list[Instruction]], rules: list[dict] = RULES, subset: bool = True) -> list[str]:
    """Of tools/sass_rules.json, by what is compiled here."""
    counts: check_sass.Counts = {}
    for name, code in codes.items():
        (counts["sm_90a", name],) = check_sass.count_listing(listing_of(code)).values()
    return check_sass.broken_rules(counts, rules, subset)


def codes_without_spills(kernel: str, names: list[str]) -> Iterable[list[Instruction]]:
    """The machine code of kernels, of which ptxas reports nothing that is refused; skips where nothing disassembles."""
    reports, faults, codes = compile_kernels(kernel, names)
    assert faults == []
    for report in reports.values():
        assert [report[f"{what}_bytes"] for what in ("stack", "spill_store", "spill_load")] == [0, 0, 0]
    if reason := check_sass.unavailable():
        pytest.skip(f"{reason}: the messages of ptxas were checked")
    assert broken_rules(codes) == []
    return codes.values()


def check_code(
    code: list[Instruction], tma_stores: bool = True, deals_registers: bool = True, multiplies: str = r"[HIQ]GMMA\.64x"
) -> None:
    """What every Hopper kernel has.

    tma_stores: whether TMA stores sums once they are rounded: float ones, neither those that CTAs have to add up nor
    those that lie across D.
    deals_registers: whether the producer gives registers to the consumers.
    multiplies: what the tensor core's instruction is.
    """
    opcodes = " ".join(instruction.opcode for instruction in code)
    for opcode in (multiplies, r"UTMALDG\.", r"SYNCS\.", *((r"UTMASTG\.", r"STSM") if tma_stores else ())):
        assert re.search(rf"\b{opcode}", opcodes), f"no {opcode}"
    assert not re.search(r"\b(LDL|STL)\b", opcodes)

    given: dict[str, list[tuple[int, int]]] = {}
    for index, instruction in enumerate(code):
        if instruction.opcode.startswith("USETMAXREG"):
            kind = "producer" if "DEALLOC" in instruction.opcode else "consumers"
            registers = int(re.findall(r"0x[0-9a-f]+", instruction.operands)[-1], 16)
            given.setdefault(kind, []).append((index, registers))
    if not deals_registers:  # all threads have what ptxas says
        assert not given
        return
    assert set(given) == {"producer", "consumers"}
    highest_of_all = 0
    for start, registers in given["producer"]:  # twice where its warps have parted before
        producer = reachable(code, start)
        highest = max(highest_register(code[index]) for index in producer)
        assert highest < registers, f"the producer uses R{highest} of {registers} registers"
        highest_of_all = max(highest_of_all, highest)
    assert highest_of_all > 0
    # Everything else; jumps through tables hide which of it the consumers reach.
    highest = max(highest_register(instruction) for instruction in code)
    registers = min(registers for _, registers in given["consumers"])
    assert highest < registers, f"R{highest} of {registers} registers"


def listing_of(code: list[Instruction]) -> str:
    listing = "".join(f"  /*{a:04x}*/ {p} {o} {rest.strip()} ;\n" for a, p, o, rest in code)
    return f"\tcode for sm_90a\n\t\tFunction : f\n{listing}"


def flow_of(code: list[Instruction]) -> list[tuple[int, str, int | None, bool]]:
    """What check_sass.main_loop reads."""
    (flow,) = check_sass.read_code(listing_of(code)).values()
    return flow


def check_scales_of_blocks(code: list[Instruction], row: str) -> None:
    """Two loops over k, for scales of 128 columns and of each: the tensor core waits for no scale."""
    m = int(re.search(r"\{(\d+),", row)[1])
    sums, columns = m * 128 // (128 * 2), 128 if m == 128 else 64
    at = {instruction.address: index for index, instruction in enumerate(code)}
    ends = [
        (at[target], index)
        for index, (_, _, opcode, operands) in enumerate(code)
        if opcode.startswith("BRA") and (found := re.search(r"0x([0-9a-f]+)\s*$", operands))
        if (target := int(found[1], 16)) <= code[index].address
    ]
    shortest: dict[tuple[int, ...], list[str]] = {}  # of those around the same multiplications
    for first, last in sorted(ends, key=lambda loop: loop[0] - loop[1]):
        multiplications = tuple(i for i in range(first, last + 1) if code[i].opcode.startswith("QGMMA"))
        shortest[multiplications] = [opcode for _, _, opcode, _ in code[first : last + 1]]
    loops = [loop for multiplications, loop in shortest.items() if len(multiplications) == 4]
    counted = [collections.Counter(opcode.split(".")[0] for opcode in loop) for loop in loops]
    of_columns, of_blocks = sorted(counted, key=lambda loop: -loop["FMUL"])
    assert (of_columns["FFMA"], of_columns["FMUL"], of_columns["LDG"]) == (sums, sums, 2 + columns // 8)
    assert (of_blocks["FFMA"], of_blocks["FMUL"], of_blocks["LDG"]) == (sums, 2, 3)
    for loop in loops:
        first = next(index for index, opcode in enumerate(loop) if opcode.startswith("QGMMA"))
        assert not [opcode for opcode in loop[first:] if opcode.startswith("LDG")]
        assert sum(opcode.startswith("FMUL") for opcode in loop[:first]) <= 2  # of scales that were loaded a block ago


def check_promotion(code: list[Instruction], row: str) -> None:
    """Sums of 8-bit floats leave the tensor core with every turn of the main loop, or never."""
    loop = collections.Counter(opcode.split(".")[0] for _, opcode, *_ in check_sass.main_loop(flow_of(code)))
    m, n, _ = (int(x) for x in re.search(r"\{(\d+),(\d+),(\d+)\}", row).groups())
    consumers = 1 if row.startswith("{sm90_grouped") else 3 if m % 192 == 0 else 2  # that share a tile
    assert loop["QGMMA"] > 0
    assert loop["FADD"] == (0 if ",f32_fast," in row else m * n // (128 * consumers)), loop


def check_descriptors(code: list[Instruction]) -> None:
    """They are computed once a warp: none is carried over from a lane's registers between one wgmma and the next."""
    loop = [opcode.split(".")[0] for _, opcode, *_ in check_sass.main_loop(flow_of(code))]
    multiplies = [index for index, opcode in enumerate(loop) if opcode.endswith("GMMA")]
    assert "R2UR" not in loop[multiplies[0] : multiplies[-1]], loop


def check_halves(code: list[Instruction]) -> None:
    """Of registers with an operand: while the tensor core reads one half of them, loads fill the other one alone."""
    first, *_, last = [address for address, *_ in check_sass.main_loop(flow_of(code))]
    loop = [instruction for instruction in code if first <= instruction.address <= last]
    halves: list[set[int]] = []  # first registers of operands, of each stage
    loads: list[set[int]] = []  # what is loaded behind it
    for _, _, opcode, operands in loop:
        if opcode == "WARPGROUP.ARRIVE":
            halves.append(set())
            loads.append(set())
        elif opcode.startswith("HGMMA"):
            found = re.fullmatch(r"R\d+, R(\d+), gdesc\[UR\d+\], R\d+(, UP\d+)?(, gsb0)?", operands.strip())
            assert found, operands
            halves[-1].add(int(found[1]))
        elif opcode.startswith("LDS"):
            assert opcode == "LDS.64"
            loads[-1].add(int(re.match(r"R(\d+),", operands)[1]))
        elif opcode.startswith("WARPGROUP.DEPBAR"):
            assert operands.strip() == "gsb0, 0x1"  # the multiplications in front go on
    one, other = ({register + pair for register in half for pair in (0, 2)} for half in halves)
    assert len(one) == len(other) == 8
    assert not one & other
    assert loads == [other, one]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
@pytest.mark.parametrize(
    ("kernel", "row", "order"), ROWS, ids=["-".join((*re.findall(r"\w+", row), order)) for _, row, order in ROWS]
)
def test_row(kernel, row, order):
    reports, faults, codes = compile_rows(kernel, bits_of(row))
    name = mangled(reports, row, order)
    assert [reports[name][f"{what}_bytes"] for what in ("stack", "spill_store", "spill_load")] == [0, 0, 0]
    assert faults == []  # of this row or another that was compiled with it
    if reason := check_sass.unavailable():
        pytest.skip(f"{reason}: the messages of ptxas were checked")
    code = codes[name]
    splits_k = kernel == "sm90_split_k"
    by_threads = ",s32," in row or splits_k or is_transposed(row)
    check_code(code, tma_stores=not by_threads, deals_registers=not splits_k or is_transposed(row))
    if kernel != "sm90_parts" and ",f32_blocks," not in row:  # registers are too few, or hold addresses of scales
        check_descriptors(code)
    if is_transposed(row):
        check_halves(code)
    if ",f32_blocks," in row:
        check_scales_of_blocks(code, row)
    elif re.search(r",e[45]m[23],", row):
        check_promotion(code, row)


KERNELS = sorted({kernel for kernel, *_ in ROWS})


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
@pytest.mark.parametrize("kernel", KERNELS)
def test_rules(kernel):
    """Each rule of the kernel finds a row, and all rows obey."""
    codes = {}
    for bits in {bits_of(row) for of, row, _ in ROWS if of == kernel}:
        codes |= compile_rows(kernel, bits)[2]
    if reason := check_sass.unavailable():
        pytest.skip(reason)
    functions = {function_of(row) for of, row, _ in ROWS if of == kernel}
    rules = [rule for rule in RULES if rule["kernel"] in (*(f"{name}_kernel" for name in functions), "_kernel")]
    rules = [rule for rule in rules if not names_short_ways(rule)]  # see test_short_kernels
    assert len(rules) > len(functions)
    assert broken_rules(codes, rules, subset=False) == []


def names_short_ways(rule: dict) -> bool:
    """Whether a rule is for kernels of some ways alone, none of which test_row compiles."""
    return re.search(r"StoresE(\[23\]|5|6)E$", rule.get("where", "")) is not None


# {kernel: (a row, what its simplest call's kernel has behind the order, those of others)}
SHORT = {
    "sm90_pingpong": (
        "{sm90_pingpong,bf16,f32,{128,128,64},6,{1,1},16}",
        "Stores::converted",
        ("Stores::activated", "Stores::pair", "Stores::gated"),
    ),
    "sm90_cooperative": (
        "{sm90_cooperative,bf16,f32,{256,128,64},4,{1,1},16}",
        "Stores::converted",
        ("Stores::activated", "Stores::pair", "Stores::gated"),
    ),
    "sm90_split_k": (
        "{sm90_split_k,bf16,f32,{64,128,64},4,{1,2},16}",
        "Finishing::plain",
        ("Finishing::sum", "Finishing::words", "Finishing::pair"),
    ),
    "sm90_transposed": (
        "{sm90_transposed,tf32,f32,{128,128,32},6,{1,1},16}",
        "Stores::wide",
        ("Stores::activated",),
    ),
}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
@pytest.mark.parametrize("kernel", SHORT)
def test_short_kernels(kernel):
    """A program runs a kernel once, and waits for its instructions: the simplest call's are few."""
    row, simplest, others = SHORT[kernel]
    names = [f"{kernel}_kernel<Gemm<GemmConfig{row}>, Order::NN, {one}>" for one in (simplest, *others)]
    general = f"{kernel}_kernel<Gemm<GemmConfig{row}>, Order::NN>"
    codes, splits_k = [*codes_without_spills(kernel, [*names, general])], kernel == "sm90_split_k"
    for code in codes:
        check_code(code, tma_stores=not splits_k and not is_transposed(row), deals_registers=not splits_k)
    lengths = sorted(map(len, codes))
    assert lengths[0] < lengths[-1] / (5 if kernel in ("sm90_pingpong", "sm90_cooperative") else 4)
    of_short = [rule for rule in RULES if rule["kernel"] == f"{kernel}_kernel" and names_short_ways(rule)]
    assert broken_rules(compile_kernels(kernel, names)[2], of_short, subset=False) == []
    if is_transposed(row):  # two neighbours are one store, of what is not finished element by element
        stores = sorted(sum(opcode == "STG.E.64" for _, _, opcode, _ in code) for code in codes)
        assert stores[-2:] == [32, 32]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
@pytest.mark.parametrize("kernel", ["sm90_pingpong", "sm90_cooperative"])
def test_results_of_32_bits(kernel):
    """They have a kernel of their own, in which threads fill the boxes that TMA stores."""
    name = f"{kernel}_kernel<Gemm<GemmConfig{SHORT[kernel][0]}>, Order::NN, Stores::wide>"
    for code in codes_without_spills(kernel, [name]):
        check_code(code, tma_stores=False)
        opcodes = {opcode.split(".")[0] for _, _, opcode, _ in code}
        assert "UTMASTG" in opcodes
        assert "STSM" not in opcodes


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_sums_of_parts():
    """The second kernels of sm90_parallel_split_k."""
    names = [f"sm90_parallel_split_k_kernel<AddParts<{is_plain}>>" for is_plain in ("false", "true")]
    for code in codes_without_spills("sm90_parallel_split_k", names):
        assert not [opcode for _, _, opcode, _ in code if "GMMA" in opcode]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_weights():
    """mma.sync beside TMA: the CTA that shares its multiprocessor with another one, and that with the most sums."""
    rows = (
        "{sm90_weights, bf16xs4, f32, {16, 256, 128}, 5, {1, 1}, 16}",
        "{sm90_weights, bf16xs4, f32, {64, 256, 128}, 6, {1, 1}, 16}",
    )
    table = (ROOT / "cuda/gemm/configs.h").read_text()
    assert {re.sub(r"\s+", "", row) for row in rows} <= {re.sub(r"\s+", "", row) for row, *_ in ROW.findall(table)}
    names = [f"sm90_weights_kernel<Gemm<GemmConfig{row}>>" for row in rows]
    for code in codes_without_spills("sm90_weights", names):
        check_code(code, tma_stores=False, multiplies=r"HMMA\.16816")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
@pytest.mark.parametrize(
    ("kernel", "functions"),
    [
        ("sm90_attention", ["sm90_attention_kernel"]),
        ("sm90_attention_grad", ["sm90_attention_grad_rows_kernel", "sm90_attention_grad_columns_kernel"]),
    ],
)
@pytest.mark.parametrize("scores", ["plain", "biased", "capped", "dropped", "biased_dropped"])
def test_attention(kernel, functions, scores):
    """Each row's kernels, of dropout those of the widest tile for each head_dim: sums stay in registers."""
    table = (ROOT / "cuda/gemm/configs.h").read_text()
    table = [row for row in ROW.findall(table) if row[1] == kernel]
    of_tiles = {(tile, dtype == "tf32"): row for row, _, dtype, _, tile, *_ in reversed(table)}
    if "dropped" in scores:
        sizes = {row: ([int(x) for x in tile.split(",")], is_f32) for (tile, is_f32), row in of_tiles.items()}
        in_order = sorted(sizes.items(), key=lambda item: item[1][0][:2])
        of_tiles = {(size[2], is_f32): row for row, (size, is_f32) in in_order}
    rows = [re.sub(r"\s+", "", row) for row, *_ in table if scores == "plain" or row in of_tiles.values()]
    assert len(rows) >= 3
    # One consumer of a multiprocessor's only CTA: all its threads have as many registers as one can use.
    alone = re.compile(r"sm90_attention,((b?f16).*\{64,64,256\}|tf32.*\{64,64,128\})")
    groups: dict[tuple[bool, bool], list[str]] = {}
    for row in rows:
        groups.setdefault(("tf32" not in row, not alone.search(row)), []).append(row)
    for (tma_stores, deals_registers), of in groups.items():
        names = [f"{function}<Gemm<GemmConfig{row}>, ScoresKind::{scores}>" for function in functions for row in of]
        for code in codes_without_spills(kernel, names):
            check_code(code, tma_stores=tma_stores, deals_registers=deals_registers)
            loop = collections.Counter(opcode.split(".")[0] for _, opcode, *_ in check_sass.main_loop(flow_of(code)))
            # Both products of a tile, of 64 columns and 64 elements of head_dim at least; of f32 that of scores.
            assert loop["HGMMA"] >= 8, loop


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_groups_of_two_right_hand_operands():
    """The most sums with which sm90_grouped takes a second b, in the orders that do: a producer with two loops."""
    (row,) = (
        re.sub(r"\s+", "", row)
        for row, kernel, dtype, _, tile, *_ in ROW.findall((ROOT / "cuda/gemm/configs.h").read_text())
        if (kernel, dtype, re.sub(r"\s+", "", tile)) == ("sm90_grouped", "bf16", "128,128,64")
    )
    names = [f"sm90_grouped_kernel<Gemm<GemmConfig{row}>, Order::{order}>" for order in ("NN", "NT")]
    for code in codes_without_spills("sm90_grouped", names):
        check_code(code)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
@pytest.mark.parametrize(
    ("row", "orders"),
    [
        ("{sm90_cooperative,bf16,f32,{128,192,64},4,{2,1},16}", ("NT", "TN")),
        ("{sm90_pingpong,bf16,f32,{64,256,64},4,{1,1},16}", ("NN", "TT")),
    ],
)
def test_operands_read_ahead(row, orders):
    """The most columns whose c or residual TMA brings to the boxes, where nothing spills, and which loop starts it."""
    table = (ROOT / "cuda/gemm/configs.h").read_text()
    assert row in {re.sub(r"\s+", "", found) for found, *_ in ROW.findall(table)}
    kernel = re.search(r"\w+", row)[0]
    names = [f"{kernel}_kernel<Gemm<GemmConfig{row}>, Order::{order}, Stores::ahead>" for order in orders]
    for code in codes_without_spills(kernel, names):
        check_code(code)
        assert [opcode for _, _, opcode, _ in code if opcode.startswith("LDSM")]
        loop = [opcode.split(".")[0] for _, opcode, *_ in check_sass.main_loop(flow_of(code))]
        # Of maps of rank 3 and 5. A consumer of sm90_pingpong starts them while it waits for its turn.
        assert loop.count("UTMALDG") == (2 if kernel == "sm90_cooperative" else 0)


def test_rules_find_kernels_of_releases():
    """Those of all ways are compiled here alone, and a release stops at a rule that finds none."""
    assert [rule for rule in RULES if re.search(r"StoresE0E", rule.get("where", ""))] == []


def test_a_row_of_each_kind_is_compiled():
    """Every kernel, dtype and accumulator, each kernel in all orders, and the most sums that a kernel holds."""
    table = ROW.findall((ROOT / "cuda/gemm/configs.h").read_text())
    table = [row for row in table if row[1] not in ELSEWHERE]
    words = [re.findall(r"\w+", row) for _, row, _ in ROWS]
    assert {tuple(x[:3]) for x in words if x[1] not in TWINS} == {row[1:4] for row in table if row[2] not in TWINS}
    assert {x[1] for x in words} == {row[2] for row in table}
    for kernel in {row[1] for row in table}:
        # The parts of sm90_parts are contiguous along k.
        orders = {"NT"} if kernel == "sm90_parts" else set(ORDERS_OF.get(kernel, ORDERS))
        assert {order for name, _, order in ROWS if name == kernel} == orders
        sums = [math.prod(int(x) for x in row[4].split(",")[:2]) for row in table if row[1] == kernel]
        assert max(int(x[3]) * int(x[4]) for x in words if x[0] == kernel) == max(sums)


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
        ("LDS.128 R200, [R2]", "USETMAXREG.DEALLOC.CTAPOOL 0x20", "the producer uses R39 of 32"),  # the first of two
        ("LDS.128 R200", "LDS.128 R229", "R232 of 232"),
        ("BF16 R24", "BF16 R105", "R232 of 232"),
        ("UTMALDG", "LDGSTS", "no UTMALDG"),
        ("LDS.128", "LDL.128", "LDL"),
        ("USETMAXREG.DEALLOC.CTAPOOL 0x28", "NOP", "producer"),
    ):
        assert good in CODE
        with pytest.raises(AssertionError, match=fault):
            check_code(parse(CODE.replace(good, bad)))


def loop_of_halves() -> str:
    """Of two stages, each with four multiplications and the loads of the other one's operands."""
    lines = []
    for own, other in ((84, 68), (68, 84)):
        lines += ["WARPGROUP.ARRIVE "]
        lines += [f"HGMMA.64x64x8.F32.TF32 R24, R{own - 4 * step}, gdesc[UR12], R24" for step in range(4)]
        lines += ["WARPGROUP.DEPBAR.LE gsb0, 0x1"]
        lines += [f"LDS.64 R{other - 4 * step + pair}, [R6+0x12000]" for pair in (0, 2) for step in range(4)]
    lines += ["@!P0 BRA 0x0000", "EXIT"]
    return "".join(f"        /*{16 * index:04x}*/   {line} ;\n" for index, line in enumerate(lines))


def test_the_check_of_halves():
    code = loop_of_halves()
    check_halves(parse(code))
    for good, bad in (
        ("gsb0, 0x1", "gsb0, 0x0"),  # nothing goes on while registers are loaded
        ("LDS.64 R68,", "LDS.64 R84,"),  # into what is read
        ("LDS.64 R68,", "LDS.128 R68,"),
        ("R24, R84, gdesc", "R24, gdesc[UR8], gdesc"),  # both operands from shared memory
    ):
        assert good in code
        with pytest.raises(AssertionError):
            check_halves(parse(code.replace(good, bad)))
