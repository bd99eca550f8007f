"""Times kernels by the profiler's clock: those of whole programs, and products in the middle of other kernels.

    python benchmarks/device_clock.py --program transformer_decoding --kernels 12
    PYTHONPATH=benchmarks python benchmarks/device_clock.py --program programs:llama_decoding
    python benchmarks/device_clock.py --product 16x6144x2048:NN:sm90_split_k_bf16_16x64x64_s11_a16 --product ...:gelu

Programs are those of `python -m jax_moye bench --program`, by XLA and optimized. What a host spends between steps is
not counted, so this is no measure of what a user waits for. A product is timed cold, behind other kernels that have
other code and 200 MB of other data, and hot, behind itself, as races time it. In a program a kernel is cold.
"""

from __future__ import annotations

import argparse
import collections
import functools
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jax_moye
from jax_moye._bench.program.arms import compile_arm
from jax_moye._bench.program.load import load

STEPS = 12


class Kernel(NamedTuple):
    """One run of a kernel, in nanoseconds."""

    name: str
    start: float
    duration: float


def kernels_of(run: Callable[[], Any]) -> list[list[Kernel]]:
    """What each of STEPS runs of a compiled program executes on the GPU, in order."""
    jax.block_until_ready(run())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(STEPS):
                jax.block_until_ready(run())
        planes = [
            plane
            for path in pathlib.Path(folder).rglob("*.xplane.pb")
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes
            if plane.name.startswith("/device:GPU")
        ]
        found = [
            Kernel(event.name, event.start_ns, event.duration_ns)
            for plane in planes
            for line in plane.lines
            if line.name.startswith("Stream")
            for event in line.events
        ]
    found.sort(key=lambda kernel: kernel.start)
    of_step, rest = divmod(len(found), STEPS)
    if of_step == 0 or rest:
        raise RuntimeError(f"the profiler saw {len(found)} kernels in {STEPS} equal steps")
    return [found[i * of_step : (i + 1) * of_step] for i in range(STEPS)]


def span_us(step: Sequence[Kernel]) -> float:
    """From the first kernel's start to the last one's end."""
    return (step[-1].start + step[-1].duration - step[0].start) / 1e3


def time_program(name: str, most: int) -> None:
    """Prints a line for XLA's program and one for ours, and of each the kernels that take longest together."""
    program = load(name, {}, None, False)
    of_xla = 0.0
    for way in ("xla", "optimize"):
        steps = kernels_of(functools.partial(compile_arm(way, program).compiled, *program.args))
        us = statistics.median(map(span_us, steps))
        of_xla = of_xla or us
        print(f"{name:30} {way:9} {us:9.1f} us  {of_xla / us:6.3f}  {len(steps[0])} kernels", flush=True)
        together: collections.Counter[str] = collections.Counter()
        for i in range(len(steps[0])):
            together[steps[0][i].name] += round(statistics.median(step[i].duration for step in steps))
        for kernel, ns in together.most_common(most):
            print(f"    {ns / 1e3:9.1f} us in {sum(one.name == kernel for one in steps[0]):3}  {kernel[:200]}")


def others(large: Sequence[Any], small: Sequence[Any]) -> Any:
    """A scalar that some 30 kernels of XLA's compute one after the other: sums, softmaxes, sorts and products."""
    result = large[0][0, 0].astype(jnp.float32) * 0
    for x, y in zip(large, small, strict=True):
        x, y = x + (result * 0).astype(x.dtype), y + (result * 0).astype(y.dtype)
        result += jnp.sum(x.astype(jnp.float32), 0)[0] + jax.nn.softmax(x[:512].astype(jnp.float32), -1)[0, 0]
        result += (jnp.sort(y[:64], -1)[0, 0] + (y @ y)[0, 0]).astype(jnp.float32)
    return result


def time_product(name: str) -> None:
    """Prints a product's times, cold and hot. name: MxNxK:ORDER:CONFIG, and :gelu, with a bias, or :residual."""
    sizes, order, config, *epilogue = name.split(":")
    m, n, k = map(int, sizes.split("x"))
    key = jax.random.key(0)

    def normal(*shape: int) -> Any:
        return jax.random.normal(key, shape, jnp.bfloat16)

    a, b = normal(*((m, k) if order[0] == "N" else (k, m))), normal(*((k, n) if order[1] == "N" else (n, k)))
    large, small = [normal(2048 + 64 * i, 2048) for i in range(6)], [normal(1024, 1024) for _ in range(6)]
    options: dict[str, Any] = {"config": config, "implementation": "moye"}
    operands = {"gelu": {"bias": normal(n), "activation": "gelu"}, "residual": {"residual": normal(m, n)}}

    def product(a: Any, b: Any) -> Any:
        x, w = a if order[0] == "N" else a.T, b if order[1] == "N" else b.T
        if epilogue:
            return jax_moye.linear(x, w, **operands[epilogue[0]], **options)
        return jax_moye.matmul(x, w, **options)

    def behind_others(a: Any, b: Any, large: Sequence[Any], small: Sequence[Any]) -> Any:
        return product(a + (others(large, small) * 0).astype(a.dtype), b)

    hot, cold = jax.jit(product).lower(a, b).compile(), jax.jit(behind_others).lower(a, b, large, small).compile()
    steps = kernels_of(lambda: [hot(a, b) for _ in range(8)])
    ours = {kernel.name for kernel in steps[0]}
    hot_us = statistics.median(sum(kernel.duration for kernel in step) / 8e3 for step in steps)
    steps = kernels_of(lambda: cold(a, b, large, small))
    cold_us = statistics.median(sum(one.duration for one in step if one.name in ours) / 1e3 for step in steps)
    print(f"{name:80} cold {cold_us:8.2f} us  hot {hot_us:8.2f} us  behind {len(steps[0])} kernels", flush=True)


def main() -> None:
    """Prints a line for each program and product."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", action="append", default=[], help="one that is built in, or module:function")
    parser.add_argument("--kernels", type=int, default=0, help="of a program that are listed (default: none)")
    parser.add_argument("--product", action="append", default=[], help="MxNxK:ORDER:CONFIG[:gelu or :residual]")
    arguments = parser.parse_args()
    for name in arguments.program:
        time_program(name, arguments.kernels)
    for name in arguments.product:
        time_product(name)


if __name__ == "__main__":
    main()
