#!/usr/bin/env python3
"""CUDA compiler launcher: runs nvcc and stops at what only ptxas's messages tell.

ptxas reports serialized wgmma (C7510, C7511), injected waits (C7517, C7519), an ignored setmaxnreg (C7508) as
*information* with exit status 0, and no -Werror changes that. Here they are errors, as are warnings of ptxas, stack
frames and spills.

    nvcc_gate.py [ccache] nvcc <arguments with -Xptxas=-v ... -o object>

writes <object>.ptxas.json: the kernels of the object with architecture, registers, stack frame and spills.
A compiler cache goes behind the gate: it replays nvcc's messages.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys

_ADVISORY = re.compile(r"\(C75\d\d\)|Potential Performance Loss|\bptxas warning\b")
_ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


def read_ptxas(text: str) -> tuple[list[dict[str, object]], list[str]]:
    """The kernels that ptxas -v names, and the reasons to refuse the object."""
    kernels: list[dict[str, object]] = []
    faults = []
    function = None
    for line in text.splitlines():
        if _ADVISORY.search(line):
            faults.append(line.strip())
        if match := _ENTRY.search(line):
            kernels.append({"kernel": match[1], "arch": match[2]})
            function = match[1]
        elif match := _FUNCTION.search(line):
            function = match[1]
        elif match := _STACK.search(line):
            stack, stores, loads = (int(number) for number in match.groups())
            if kernels and function == kernels[-1]["kernel"]:
                kernels[-1].update(stack_bytes=stack, spill_store_bytes=stores, spill_load_bytes=loads)
            if stack or stores or loads:
                arch = kernels[-1]["arch"] if kernels else "?"
                faults.append(f"{function} for {arch}: {line.strip()}")
        elif kernels and (match := _REGISTERS.search(line)):
            kernels[-1]["registers"] = int(match[1])
    return kernels, faults


def main() -> int:
    """Runs the command behind the gate."""
    command = sys.argv[1:]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0 or "-o" not in command:
        sys.stderr.write(result.stderr)
        return result.returncode
    kernels, faults = read_ptxas(result.stderr)
    target = pathlib.Path(command[command.index("-o") + 1])
    if faults:
        sys.stderr.write(result.stderr)
        sys.stderr.write(f"nvcc_gate: {target}: refused for {len(faults)} finding(s)\n")
        for fault in faults:
            sys.stderr.write(f"nvcc_gate:   {fault}\n")
        target.unlink(missing_ok=True)  # or the next build would take it for good
        return 3
    report = target.with_name(target.name + ".ptxas.json")
    report.write_text(json.dumps({"object": target.name, "kernels": kernels}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
