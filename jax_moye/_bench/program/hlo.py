"""What a compiled program does, by its text in XLA's HLO: how many kernels it launches, and how much they write.

A kernel is an instruction that runs on the device: a fusion, a custom call, a copy, or another one that XLA has left as
it is. Instructions that only name, pass on or order values are none. A loop's kernels count as often as it turns.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

# Instructions that launch what is in other computations, and the attributes that name these.
_CALLS = {
    "call": ("to_apply",),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
    "async-start": ("calls", "called_computation"),
}
# Instructions that launch nothing.
_NO_KERNEL = frozenset(
    ["parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency", "domain"]
    + ["opt-barrier", "optimization-barrier", "partition-id", "replica-id", "get-dimension-size"]
    + ["async-update", "async-done"]
)
_NO_KERNEL_CALLED = frozenset(["AllocateBuffer"])  # custom calls that launch nothing
OURS = "jax_moye_"  # how the names of our custom calls begin
_WORKSPACE = r"[su]8\[\d*\]"  # a result of a custom call behind the first one
_BITS = {"pred": 8, "token": 0, "opaque": 0}


class Instruction(NamedTuple):
    """A line of a computation.

    Attributes:
      name: of its result.
      result: its type.
      opcode: what it does.
      operands: names.
      attributes: the text behind the operands.
    """

    name: str
    result: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str


class Computation(NamedTuple):
    """A function of a program.

    Attributes:
      instructions: by name.
      root: the name of its result.
    """

    instructions: dict[str, Instruction]
    root: str


@dataclasses.dataclass(frozen=True)
class Work:
    """What a program, or a part of it, does in one run.

    Attributes:
      kernels: that are launched.
      ours: how many of them are of this project.
      written_bytes: the sizes of their results. Of a result that is updated in place, the part that is new. Workspaces
        of custom calls are left out.
      is_exact: whether the turns of all loops are known; of others one is counted. Of branches all count.
    """

    kernels: int = 0
    ours: int = 0
    written_bytes: int = 0
    is_exact: bool = True

    def __add__(self, other: Work) -> Work:
        """Both."""
        return Work(
            self.kernels + other.kernels,
            self.ours + other.ours,
            self.written_bytes + other.written_bytes,
            self.is_exact and other.is_exact,
        )

    def times(self, turns: int) -> Work:
        """As often as a loop turns."""
        return Work(self.kernels * turns, self.ours * turns, self.written_bytes * turns, self.is_exact)


def work_of(text: str) -> Work:
    """What a compiled program does.

    Args:
      text: of it, as `compiled.as_text()` gives it.

    Raises:
      ValueError: it is no such text.
    """
    computations, entry = parse(text)

    @functools.cache
    def of(name: str) -> Work:
        done = Work()
        for instruction in computations[name].instructions.values():
            done += one(instruction, computations[name])
        return done

    def all_of(instruction: Instruction, *attributes: str) -> Work:
        done = Work()
        for called in _called(instruction, *attributes):
            done += of(called)
        return done

    def one(instruction: Instruction, computation: Computation) -> Work:
        opcode = instruction.opcode
        if opcode == "while":
            turns = re.search(r'"known_trip_count":\{"n":"?(\d+)', instruction.attributes)
            known = Work(is_exact=turns is not None)
            return known + all_of(instruction, "condition", "body").times(int(turns[1]) if turns else 1)
        if opcode in _CALLS:
            return all_of(instruction, *_CALLS[opcode])
        if opcode in _NO_KERNEL or opcode.endswith("-start"):  # which counts where it is done
            return Work()
        # What is done says less than what was started.
        started = computation.instructions[instruction.operands[0]] if opcode.endswith("-done") else instruction
        target = _target(started)
        if target in _NO_KERNEL_CALLED:
            return Work()
        (called,) = [*_called(started, "calls"), ""][:1]
        if opcode.startswith("fusion") and called in computations:
            within = computations[called]
            targets = [_target(inner) for inner in within.instructions.values()]  # a call whose operands are slices
            written = _written(within, within.root)
        else:
            targets = [target]
            written = _written(computation, instruction.name, has_workspaces=bool(target))
        return Work(1, int(any(one.startswith(OURS) for one in targets)), written)

    return of(entry)


# ------------------------------------------------------------------------------------------------------------ reading


def parse(text: str) -> tuple[dict[str, Computation], str]:
    """The computations of a program, and the name of that where it begins.

    Raises:
      ValueError: there are none.
    """
    found: dict[str, Computation] = {}
    entry = name = ""
    lines: list[Instruction] = []
    root = ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{$", line):
            name, lines, root = head[2], [], ""
            entry = name if head[1] else entry
        elif line.startswith("}") and name:
            found[name] = Computation({one.name: one for one in lines}, root)
            name = ""
        elif name and (made := re.match(r"\s+(ROOT )?%?([\w.-]+) = (.*)$", line)):
            lines.append(_instruction(made[2], made[3]))
            root = made[2] if made[1] else root
    if not entry:
        raise ValueError("it is no program in HLO")
    return found, entry


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text) if text.startswith("(") else text.index(" ")
    result, rest = text[:end], text[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    rest = rest[len(opcode) :]
    end = _closing(rest)
    operands = tuple(re.findall(r"%([\w.-]+)", rest[:end]))
    return Instruction(name, result, opcode, operands, rest[end:])


def _closing(text: str) -> int:
    """Where the parenthesis that a text begins with is closed: the place behind it."""
    depth = 0
    for mark in re.finditer(r"[()]", text):
        depth += 1 if mark[0] == "(" else -1
        if depth == 0:
            return mark.end()
    return len(text)


def _called(instruction: Instruction, *names: str) -> Iterator[str]:
    """The computations that attributes of these names hold, one or several in braces."""
    for name in names:
        for several in re.findall(rf"\b{name}=(\{{[^}}]*\}}|%?[\w.-]+)", instruction.attributes):
            yield from re.findall(r"%?([\w.-]+)", several)


def _target(instruction: Instruction) -> str:
    """The function that a custom call calls; "" of others."""
    found = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    return found[1] if found else ""


def _arrays(type_: str) -> list[str]:
    """The arrays of a type, in their order."""
    return re.findall(r"\b[a-z]\w*\[[^\]]*\]", re.sub(r"/\*.*?\*/", "", type_))


def size(array: str) -> int:
    """Bytes of an array such as `bf16[8,16]`."""
    dtype, _, shape = array.rstrip("]").partition("[")
    digits = re.search(r"\d+", dtype)
    bits = _BITS[dtype] if dtype in _BITS else int(digits[0]) if digits else 0
    count = 1
    for extent in re.findall(r"\d+", shape):
        count *= int(extent)
    return -(-bits * count // 8)


def _written(computation: Computation, name: str, has_workspaces: bool = False) -> int:
    """Bytes of a value that a kernel writes."""
    instruction = computation.instructions[name]
    if instruction.opcode == "tuple":
        return sum(_written(computation, operand) for operand in instruction.operands)
    if instruction.opcode == "bitcast":
        return _written(computation, instruction.operands[0])
    if instruction.opcode == "dynamic-update-slice":  # in place
        instruction = computation.instructions[instruction.operands[1]]
    if instruction.opcode == "get-tuple-element" and "index=0" not in instruction.attributes:
        of_call = computation.instructions[instruction.operands[0]].opcode == "custom-call"
        if of_call and re.match(_WORKSPACE, instruction.result):
            return 0
    first, *others = [*_arrays(instruction.result), ""]
    kept = [array for array in others if not (has_workspaces and re.match(_WORKSPACE, array))]
    return sum(map(size, filter(None, [first, *kept])))
