#!/usr/bin/env python3
"""Counts instructions in the machine code of a built extension and compares them with tools/sass_rules.json.

    check_sass.py _moye_cuda.so     fails where a kernel breaks a rule
    check_sass.py --subset FILE     the same, and a rule may find no kernel: not all rows were built
    check_sass.py --keep JSON FILE  the same as without, and keeps the counts for who asks about the same file
    check_sass.py --available       says whether there is a disassembler (exit status 0), or why not

No GPU is needed, only cuobjdump and nvdisasm: of PATH, of a CUDA toolkit, or of the wheels nvidia-cuda-cuobjdump and
nvidia-cuda-nvdisasm.

A rule holds for every kernel whose name contains `kernel` and, if given, whose mangled name matches the regular
expression `where` (the row of configs.h is in it as numbers), on the architectures `arch` as far as the file has code
for them. `min` and `max` bound the number of instructions of an opcode, with the modifiers that the key names and any
others: HMMA.16816.F32 is an HMMA and an HMMA.F32. `loop` holds a `min` and a `max` for the main loop alone: of a
kernel's loops the one with the most multiplications (of tensor cores, where it uses them), and the shortest such.
"early SYNCS" are arrivals at an mbarrier while loads from shared memory are under way, see `early_arrivals`.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

RULES = pathlib.Path(__file__).with_name("sass_rules.json")
_FUNCTION = re.compile(r"Function : (\S+)")
_INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)")
_ENDS = re.compile(r"(?:BRA|JMP|EXIT|RET)\b(?!.*\bU?P\d)(?!.*\.DIV\b)")  # without a condition

_TARGET = re.compile(r"\b0x([0-9a-f]+) ?;")
_BUILD_ID = re.compile(rb"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0(.{20})", re.DOTALL)  # a note of ELF: sizes, type, name
_LOOP = "loop "  # before the names of the main loop's instructions
_EARLY = "early SYNCS"
# Behind an instruction's line: the upper half of its encoding. Bits 46 to 48 name the scoreboard, one of six, that says
# when the result is there, 7: none; bits 52 to 57 those that the instruction waits for.
_UPPER_HALF = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/\s*")

# Address, opcode with modifiers, where a branch goes, whether what follows is not next.
_Instruction = tuple[int, str, int | None, bool]
Counts = dict[tuple[str, str], collections.Counter[str]]


def find_tool(name: str) -> str | None:
    """The path of a CUDA tool, or None."""
    folders = [os.path.join(os.environ[v], "bin") for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    folders += ["/usr/local/cuda/bin"]
    spec = importlib.util.find_spec("nvidia")  # a namespace package: it has paths, no file
    folders += [os.path.join(p, "cu13", "bin") for p in (spec.submodule_search_locations or [])] if spec else []
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


def unavailable() -> str | None:
    """Why nothing can be disassembled here, or None."""
    missing = [name for name in ("cuobjdump", "nvdisasm") if find_tool(name) is None]
    return f"{' and '.join(missing)} not found (pip install .[test] brings them)" if missing else None


def disassemble(binary: str | os.PathLike[str]) -> str:
    """What cuobjdump -sass prints of an object, an extension or a cubin."""
    return _cuobjdump("-sass", binary)


def _cuobjdump(*arguments: str | os.PathLike[str], **options: Any) -> str:
    cuobjdump, nvdisasm = find_tool("cuobjdump"), find_tool("nvdisasm")
    if cuobjdump is None or nvdisasm is None:
        raise FileNotFoundError(unavailable())
    environ = dict(os.environ, PATH=os.pathsep.join([os.path.dirname(nvdisasm), os.environ.get("PATH", "")]))
    command = [cuobjdump, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, **options).stdout


def count_instructions(binary: str | os.PathLike[str]) -> Counts:
    """{(architecture, mangled kernel): {opcode with modifiers: count}} of an object, an extension or a cubin.

    The main loop's instructions are counted once more, as "loop <opcode>"; "early SYNCS" is not an opcode.
    """
    counts: Counts = {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # One cubin for each config and architecture: they are disassembled side by side.
        _cuobjdump("-xelf", "all", os.path.abspath(binary), cwd=folder)
        cubins = sorted(pathlib.Path(folder).iterdir())
        for one in pool.map(lambda cubin: count_listing(disassemble(cubin)), cubins or [binary]):
            counts.update(one)
    return counts


def count_listing(listing: str) -> Counts:
    """`count_instructions` of what cuobjdump -sass prints."""
    counts: Counts = {}
    for kernel, instructions in read_code(listing).items():
        counts[kernel] = collections.Counter(name for _, name, *_ in instructions)
        counts[kernel].update(_LOOP + name for _, name, *_ in main_loop(instructions))
    for kernel, number in early_arrivals(listing).items():
        counts[kernel][_EARLY] = number
    return counts


def early_arrivals(listing: str) -> collections.Counter[tuple[str, str]]:
    """By kernel, how often an mbarrier is arrived at while loads from shared memory are under way, as the code stands.

    Who waits for the mbarrier may have TMA write over what is still to be read: neither the arrival nor a warp's
    barrier waits for loads, and what uses them may stand behind it. A fence of memory does wait.
    """
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    arch = kernel = opcode = ""
    under_way = set[int]()  # scoreboards
    for line in listing.splitlines():
        if line.startswith("\tcode for "):
            arch = line.removeprefix("\tcode for ").strip()
        elif match := _FUNCTION.search(line):
            kernel = match[1]
            under_way.clear()
        elif match := _INSTRUCTION.match(line):
            opcode = match[3]
        elif opcode and (match := _UPPER_HALF.fullmatch(line)):
            bits = int(match[1], 16)
            under_way -= {board for board in range(6) if bits >> 52 + board & 1}
            if opcode.startswith("MEMBAR"):
                under_way.clear()
            if opcode.startswith("SYNCS.ARRIVE") and under_way:
                found[arch, kernel] += 1
            if opcode.split(".")[0] in ("LDS", "LDSM") and bits >> 46 & 7 < 6:
                under_way.add(bits >> 46 & 7)
            opcode = ""
    return found


def read_code(listing: str) -> dict[tuple[str, str], list[_Instruction]]:
    """{(architecture, mangled kernel): its instructions} of what cuobjdump -sass prints."""
    code: dict[tuple[str, str], list[_Instruction]] = {}
    arch, current = "", list[_Instruction]()
    for line in listing.splitlines():
        if line.startswith("\tcode for "):
            arch = line.removeprefix("\tcode for ").strip()
        elif match := _FUNCTION.search(line):
            current = code.setdefault((arch, match[1]), [])
        elif match := _INSTRUCTION.match(line):
            target = _TARGET.search(line) if match[3].startswith("BRA") else None
            ends = match[2] is None and _ENDS.match(line, match.start(3)) is not None
            current.append((int(match[1], 16), match[3], int(target[1], 16) if target else None, ends))
    return code


def _identity(binary: str | os.PathLike[str]) -> str:
    """Of these counts: the linker's build id, which stays the file's when it is stripped or copied, and this program.

    Empty where the file has none.
    """
    note = _BUILD_ID.search(pathlib.Path(binary).read_bytes())
    return f"{note[1].hex()}-{hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()}" if note else ""


def keep(path: pathlib.Path, binary: str | os.PathLike[str], counts: Counts) -> None:
    """Writes a file's counts for `kept`."""
    rows = [[arch, kernel, dict(opcodes)] for (arch, kernel), opcodes in counts.items()]
    path.write_text(json.dumps({"identity": _identity(binary), "counts": rows}) + "\n")


def kept(path: pathlib.Path, binary: str | os.PathLike[str]) -> Counts | None:
    """The counts that `keep` wrote for this very file, however it is called now, or None."""
    table = json.loads(path.read_text())
    if not table["identity"] or table["identity"] != _identity(binary):
        return None
    return {(arch, kernel): collections.Counter(opcodes) for arch, kernel, opcodes in table["counts"]}


def main_loop(code: list[_Instruction]) -> list[_Instruction]:
    """The loop with the most multiplications; of several that hold the same ones, the innermost.

    A branch backwards closes a loop where all ways to it lead through its target. Others come back from code that
    stands behind the rest, as waiting for an mbarrier does.
    """
    tensor_cores = any(name.split(".")[0].endswith("MMA") for _, name, *_ in code)

    def multiplies(name: str) -> bool:
        opcode = name.split(".")[0]
        return opcode.endswith("MMA") if tensor_cores else opcode in ("FFMA", "DFMA")

    before = [0]  # multiplications, of the instructions in front
    for _, name, *_ in code:
        before.append(before[-1] + multiplies(name))
    index_of = {address: index for index, (address, *_) in enumerate(code)}
    ends = [(index_of[to], index) for index, (at, _, to, _) in enumerate(code) if to in index_of and to <= at]
    ends.sort(key=lambda loop: (before[loop[1] + 1] - before[loop[0]], loop[0] - loop[1]), reverse=True)
    for first, last in ends:
        if code[last][0] not in _without(code, code[first][0]):
            return code[first : last + 1]
    return []


def _without(code: list[_Instruction], avoided: int) -> set[int]:
    """The addresses that can be reached from the beginning without the one to avoid."""
    index_of = {address: index for index, (address, *_) in enumerate(code)}
    seen, todo = {avoided}, [0]
    while todo:
        index = todo.pop()
        if index >= len(code) or code[index][0] in seen:
            continue
        address, _, target, ends = code[index]
        seen.add(address)
        if target in index_of:
            todo.append(index_of[target])
        if not ends:
            todo.append(index + 1)
    return seen - {avoided}


def number_of(opcodes: Mapping[str, int], key: str) -> int:
    """Instructions of an opcode that have the key's modifiers, in any order, or more: "LDSM.4", "HMMA"."""
    opcode, *modifiers = key.split(".")
    found = 0
    for name, count in opcodes.items():
        own, *others = name.split(".")
        found += count if own == opcode and set(modifiers) <= set(others) else 0
    return found


def architectures(binary: str | os.PathLike[str]) -> set[str]:
    """{"sm_80", ...}: what the file has machine code for. Much cheaper than reading the code."""
    cuobjdump = find_tool("cuobjdump")
    if cuobjdump is None:
        raise FileNotFoundError(unavailable())
    listing = subprocess.run([cuobjdump, "--list-elf", binary], capture_output=True, text=True, check=True)
    return set(re.findall(r"\.(sm_\w+)\.cubin", listing.stdout))


def broken_rules(counts: Counts, rules: list[Mapping[str, Any]], subset: bool = False) -> list[str]:
    """One sentence per kernel, architecture and bound that does not hold, and per rule that finds no kernel.

    With `subset` a rule may find none.
    """
    faults = []
    present = {arch for arch, _ in counts}
    for rule in rules:
        for arch in present.intersection(rule["arch"]):
            hits = {
                kernel: opcodes
                for (kernel_arch, kernel), opcodes in counts.items()
                if kernel_arch == arch and rule["kernel"] in kernel and re.search(rule.get("where", ""), kernel)
            }
            if not hits and not subset:
                faults.append(f"{arch}: no kernel for the rule {json.dumps(rule)}")
            for kernel, opcodes in hits.items():
                for where, bounds in (("", rule), (_LOOP, rule.get("loop", {}))):
                    for opcode, bound in bounds.get("min", {}).items():
                        if (number := number_of(opcodes, where + opcode)) < bound:
                            faults.append(f"{arch}: {number} {where}{opcode}, expected at least {bound}, in {kernel}")
                    for opcode, bound in bounds.get("max", {}).items():
                        if (number := number_of(opcodes, where + opcode)) > bound:
                            faults.append(f"{arch}: {number} {where}{opcode}, expected at most {bound}, in {kernel}")
    return sorted(faults)


def main() -> int:
    """Checks one file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--available", action="store_true", help="only say whether there is a disassembler")
    parser.add_argument("--subset", action="store_true", help="a rule may find no kernel: not all rows were built")
    parser.add_argument("--rules", type=pathlib.Path, default=RULES)
    parser.add_argument("--keep", type=pathlib.Path, help="where to write the counts, for tests/build/test_sass.py")
    parser.add_argument("--print", dest="show", action="store_true", help="print the counts of every kernel")
    parser.add_argument("binary", nargs="?")
    args = parser.parse_args()
    if args.available:
        print(unavailable() or find_tool("cuobjdump"))
        return 1 if unavailable() else 0
    if args.binary is None:
        parser.error("which file?")
    counts = count_instructions(args.binary)
    if args.keep:
        keep(args.keep, args.binary, counts)
    if args.show:
        for (arch, kernel), opcodes in sorted(counts.items()):
            print(arch, kernel, dict(opcodes.most_common()))
    faults = ["there is no machine code in it"]
    if counts:
        faults = broken_rules(counts, json.loads(args.rules.read_text()), args.subset)
    for fault in faults[:20]:
        print(f"check_sass: {fault}", file=sys.stderr)
    print(f"check_sass: {args.binary}: {len(counts)} kernels, {len(faults)} broken rules")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
