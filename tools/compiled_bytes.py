"""What a program's kernels read and write on an H200, without one: XLA compiles for a GPU that is only described.

    pip install --no-deps jax-cuda13-plugin==$JAX jax-cuda13-pjrt==$JAX     # of jax's own version
    PYTHONPATH=benchmarks python tools/compiled_bytes.py programs:gpt2 --size layers=2

Prints, for XLA's program, inside `jax_moye.intercept` and for `jax_moye.optimize`, the kernels that move most, products
apart: megabytes, how often a kernel runs, and what it computes. Nothing is timed, and decisions about products are the
model's and the tables'. jax_moye has to be built with JAX_MOYE_CUDA=ON; a few configs are enough, all count as
compiled.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# XLA's GpuTargetConfigProto of an H200, of what its cost model asks for.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  memory_bandwidth: 4800000000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 151397597184
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  device_vendor: "NVIDIA Corporation"
  device_address_bits: 64
  name: "NVIDIA H200"
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H200"
"""
_ITEM_BITS = {"pred": 8, "s4": 4, "u4": 4, "token": 0}
_MOVES_NOTHING = ("parameter", "get-tuple-element", "tuple", "constant", "bitcast", "after-all", "while", "conditional")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{")
# XLA's names of kernels that write a part of an array where it is: a scatter, or a slice of a stack.
_IN_PLACE = re.compile("scatter|dynamic.update.slice")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([\w\-]+)\((.*)")


class Kernel(NamedTuple):
    """An instruction that moves data.

    Attributes:
      name: XLA's.
      op: HLO's opcode.
      times: it runs, in loops whose length XLA knows.
      read: bytes of its operands, each time; of a gather, or of a slice of a stack, more than it reads.
      written: bytes of its results, likewise; of a part of an array as many as it reads.
      source: the operation of JAX.
    """

    name: str
    op: str
    times: int
    read: int
    written: int
    source: str

    @property
    def moved(self) -> int:
        """All bytes."""
        return self.times * (self.read + self.written)

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix multiplication, or a custom call."""
        return self.op == "custom-call" or "gemm" in self.name


def bytes_of(shape: str) -> int:
    """Of a shape of HLO, or a tuple of some: f32[8,128]{1,0}."""
    total = 0
    for dtype, sizes in re.findall(r"\b([a-z]\w*)\[([\d,]*)\]", shape):
        digits = re.search(r"\d+", dtype)
        bits = _ITEM_BITS.get(dtype, int(digits[0]) if digits else 0)
        total += bits * math.prod(int(size) for size in sizes.split(",") if size) // 8
    return total


def kernels(text: str) -> list[Kernel]:
    """What a compiled module runs.

    Args:
      text: the module, as `compiled.as_text()` prints it.
    """
    computations: dict[str, list[str]] = {}
    entry = ""
    lines: list[str] = []
    for line in text.splitlines():
        if begins := _COMPUTATION.match(line):
            lines = computations[begins[2]] = []
            entry = begins[2] if begins[1] else entry
        lines.append(line)

    def run(name: str, times: int) -> Iterator[Kernel]:
        shapes: dict[str, str] = {}
        for line in computations[name]:
            found = _INSTRUCTION.match(line)
            if found is None:
                continue
            result, shapes[result], op, rest = found[1], found[2], found[3], found[4]
            if op == "while":
                count = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
                body = re.search(r"body=%?([\w.\-]+)", line)
                yield from run(body[1] if body else "", times * (int(count[1]) if count else 1))
            if op in _MOVES_NOTHING or 'custom_call_target="AllocateBuffer"' in line:
                continue
            given = [shapes.get(x, "") for x in re.findall(r"%([\w.\-]+)", rest.split("), ")[0])]
            source = re.search(r'op_name="([^"]*)"', line)
            written = bytes_of(found[2])
            if _IN_PLACE.search(result) and found[2] in given:
                given.remove(found[2])
                written = sum(map(bytes_of, given))
            yield Kernel(result, op, times, sum(map(bytes_of, given)), written, source[1] if source else "")

    return list(run(entry, 1))


def compiled(name: str, sizes: dict[str, int], wrap: Any, device: Any) -> Any:
    """A program for a described GPU; its arguments are never made."""
    import jax
    from jax.sharding import SingleDeviceSharding

    from jax_moye._bench.program.load import load

    step: list[Any] = []

    def arguments() -> Any:
        program = load(name, sizes, None)
        step.append(program.fun)
        return program.args

    sharding = SingleDeviceSharding(device)
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), jax.eval_shape(arguments)
    )
    return jax.jit(wrap(step[0])).lower(*shapes).compile()


def count_all_configs_as_compiled() -> None:
    """No kernel runs here, and XLA needs to know its custom call alone."""
    import jax_moye
    from jax_moye._kernels import configs, ffi

    others = (configs.grouped_configs, configs.weights_configs, configs.block_scaled_configs, configs.attention_configs)
    every = frozenset(x.name for x in (*jax_moye.configs(), *(x for of_kind in others for x in of_kind())))
    built = ffi.built
    ffi.built = lambda platform: every if platform == "cuda" else built(platform)


def intercepted(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose products are taken over."""
    import jax_moye

    def inside(*args: Any) -> Any:
        with jax_moye.intercept():
            return fun(*args)

    return inside


def main() -> None:
    """Prints the programs' kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="of bench --program: a built-in one, or module:function")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", help="of the program")
    parser.add_argument(
        "--top", type=int, default=24, metavar="N", help="kernels to print of each; default: %(default)s"
    )
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the plugin looks for no libraries then

    from jax.experimental.topologies import get_topology_desc

    import jax_moye

    count_all_configs_as_compiled()
    sizes = {key: int(value) for key, value in (size.split("=") for size in args.size)}
    (device,) = get_topology_desc("1x1x1", platform="cuda", target_config=H200, topology="1x1x1").devices
    for what, wrap in (("XLA", lambda fun: fun), ("intercept", intercepted), ("optimize", jax_moye.optimize)):
        program = compiled(args.program, sizes, wrap, device)
        found = kernels(program.as_text())
        products = sum(x.moved for x in found if x.is_product)
        rest = sorted((x for x in found if not x.is_product), key=lambda x: -x.moved)
        peak = program.memory_analysis().temp_size_in_bytes
        print(
            f"{what}: {sum(x.times for x in found)} kernels, products move {products / 1e6:.0f} MB, the rest "
            f"{sum(x.moved for x in rest) / 1e6:.0f} MB, {peak / 1e6:.0f} MB of temporary memory"
        )
        for x in rest[: args.top]:
            print(
                f"  {x.moved / 1e6:9.1f} MB {x.times:4} x ({x.read / 1e6:.1f} read, {x.written / 1e6:.1f} written) "
                f"{x.name}: {x.source}"
            )


if __name__ == "__main__":
    sys.exit(main())
