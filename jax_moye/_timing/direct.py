"""Contenders timed by the device's own clock: kernels launched without a program, and XLA's programs between two marks.

A kernel of ours needs no compilation: `DirectProduct` holds sets of operands in memory of its own, launches a config on
one after the other from a CUDA graph, and reads events around it. XLA's program gets the same operands, without a copy.
Its events stand on XLA's stream, which is held back until all that is timed has been dispatched: the host is in neither
time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_moye._kernels import ffi
from jax_moye._kernels.dtypes import ITEM_BYTES, numpy_dtype
from jax_moye._timing.gpu import l2_bytes
from jax_moye._timing.operands import expected_us
from jax_moye._timing.rounds import Contender

PASS_US = 500.0  # what a pass takes, about: one replay of a graph
LARGEST_GRAPH = 256  # launches in a graph, and sets of operands
LARGEST_PROGRAM = 32  # products in one of XLA's programs
_DISPATCHES = 24  # XLA takes 32 programs before it makes the host wait
_FILL_BYTES = 1023 * 1024  # of random elements: rows of matrices are seldom a divisor, so few are alike
_SAMPLES, _SAMPLE_BYTES = 8, 65536  # of a result, to be compared
_RIGHT = ("b", "second_b")


class Layout(NamedTuple):
    """One product as a kernel sees it.

    Attributes:
      sizes: (batch, m, n, k).
      strides: in elements, of "a" (batch, m, k), "b" and "second_b" (batch, n, k), "d" (batch, m, n), and of an
        epilogue's other operands.
      dtype: of a and b, as in `GemmConfig.dtype`.
      out_dtype: of the others.
      activation: of the epilogue.
      alpha: factor of the sums.
      beta: factor of "c".
    """

    sizes: tuple[int, ...]
    strides: Mapping[str, tuple[int, ...]]
    dtype: str
    out_dtype: str
    activation: str = "none"
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def footprint(self) -> int:
        """Bytes of all matrices of a set, about."""
        *batch, m, n, k = self.sizes
        outs = sum(1 for name in self.strides if name not in ("a", *_RIGHT))
        operands = (m + self._right_operands * n) * k * ITEM_BYTES[self.dtype]
        return math.prod(batch) * (operands + outs * m * n * ITEM_BYTES[self.out_dtype])

    @property
    def _right_operands(self) -> int:
        """Right-hand operands."""
        return sum(1 for name in self.strides if name in _RIGHT)

    @property
    def flops(self) -> int:
        """Floating-point operations of a set's products."""
        return 2 * self._right_operands * math.prod(self.sizes)

    @property
    def expected_us(self) -> float:
        """About what the product takes on a large GPU."""
        return expected_us(self.flops, self.footprint)


class DirectProduct:
    """A product on a GPU, on memory of its own, which the end of a `with` block gives back."""

    def __init__(self, layout: Layout, device: jax.Device, configs: Sequence[str]):
        """Asks for the memory.

        Args:
          layout: of the product.
          device: of JAX.
          configs: names of those that are to be timed.

        Raises:
          MemoryError: the GPU has not that much free.
          RuntimeError: CUDA says why not.
        """
        module = ffi.extension("cuda")
        assert module is not None
        all_strides = [layout.strides[name] for name in "abd"]
        workspaces = [ffi.workspace_bytes(name, layout.sizes, all_strides, layout.out_dtype) for name in configs]
        self.layout, self.device, self.sets = layout, device, _sets(layout)
        self._module, self._ordinal = module, device.local_hardware_id or 0
        self._product = module.DirectProduct(
            self._ordinal,
            list(layout.sizes),
            {name: list(strides) for name, strides in layout.strides.items()},
            layout.dtype,
            layout.out_dtype,
            max(workspaces, default=0),
            self.sets,
            random_bytes(layout.dtype),
            random_bytes(layout.out_dtype),
            layout.activation,
            layout.alpha,
            layout.beta,
        )

    def __enter__(self) -> DirectProduct:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Gives the memory back."""
        self._product.give_back()

    def contender(self, config: str) -> Contender:
        """A config, which has run once.

        Raises:
          RuntimeError: it cannot compute the product, or CUDA says why it did not.
        """
        times = max(1, math.ceil(min(PASS_US / self.layout.expected_us, LARGEST_GRAPH) / self.sets))
        launches = self.sets * times
        number = self._product.add(config, launches)
        return Contender(
            config,
            run=lambda _: (),
            wait=lambda: None,
            products=launches,
            method="CUDA graph",
            clock=lambda passes: self._product.seconds(number, passes),
        )

    def sample(self, array: jax.Array | None = None) -> np.ndarray:
        """Elements of the result that the last added config wrote, from several places; or of an array of that size."""
        address = 0 if array is None else array.unsafe_buffer_pointer()
        return np.frombuffer(self._product.sample(_SAMPLES, _SAMPLE_BYTES, address), numpy_dtype(self.layout.out_dtype))

    def arrays(self, name: str) -> list[jax.Array]:
        """A matrix of all sets, flat, as it lies in memory. 8-bit floats are unsigned integers."""
        return [
            jax.dlpack.from_dlpack(_OnDevice(self._product.array(name, i), self._ordinal)) for i in range(self.sets)
        ]

    @property
    def program_size(self) -> int:
        """How many products one of XLA's programs computes: a divisor of the sets, or all of them some times over.

        Between two programs the GPU waits for some microseconds, as between two graphs of ours: so programs take as
        long as graphs, as far as that can be.
        """
        if self.sets > LARGEST_PROGRAM:
            return LARGEST_PROGRAM
        times = math.ceil(PASS_US / self.layout.expected_us / self.sets)
        return self.sets * min(times, LARGEST_PROGRAM // self.sets)

    def xla_contender(
        self, program: Callable[..., Sequence[jax.Array]], operands: Sequence[Sequence[jax.Array]]
    ) -> Contender:
        """XLA's compiled program.

        Args:
          program: takes the operands of `program_size` products, one product behind the other, and returns the results.
          operands: of all sets, those of a product together; a program of more products has some of them twice, which
            XLA does not know.
        """
        size = self.program_size
        products = [*operands] * max(1, size // len(operands))
        groups = [[x for one in products[i : i + size] for x in one] for i in range(0, len(products), size)]

        return marked_contender("xla", program, groups, size)


def marked_contender(
    name: str, program: Callable[..., Sequence[jax.Array]], groups: Sequence[Sequence[jax.Array]], size: int
) -> Contender:
    """A compiled program of XLA's, timed between two marks on its stream.

    Args:
      name: of the contender.
      program: computes `size` products.
      groups: its operands, of one call after the other.
      size: how many products a call computes.
    """
    module = ffi.extension("cuda")
    assert module is not None

    def run(i: int) -> Sequence[jax.Array]:
        return program(*groups[i])

    def clock(passes: int) -> float:
        most = min(passes, max(1, _DISPATCHES // len(groups)))
        module.close_gate()
        try:
            _mark(0)
            for _ in range(most):
                for i in range(len(groups)):
                    run(i)
            last = _mark(1)
        finally:
            module.open_gate()
        last.block_until_ready()
        return module.marked_seconds() * passes / most

    return Contender(
        name,
        run=run,
        wait=lambda: None,
        programs=len(groups),
        products=len(groups) * size,
        method="program",
        clock=clock,
    )


def _sets(layout: Layout) -> int:
    """So many that they are twice as large as the L2 cache, as far as one graph holds them; whole programs of XLA's."""
    sets = max(2, math.ceil(2 * l2_bytes() / layout.footprint))
    if sets > LARGEST_PROGRAM:
        sets = LARGEST_PROGRAM * math.ceil(sets / LARGEST_PROGRAM)
    return min(LARGEST_GRAPH, sets)


class _OnDevice:
    """An array as DLPack hands it on; its memory is complete, whatever stream asks."""

    def __init__(self, capsule: Any, ordinal: int):
        self._capsule, self._ordinal = capsule, ordinal

    def __dlpack__(self, **unused: Any) -> Any:
        del unused
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._ordinal  # kDLCUDA


@functools.cache
def random_bytes(dtype: str) -> bytes:
    """Random elements: normal floats, integers of all sizes, whose power is a program's.

    Args:
      dtype: as in `GemmConfig.dtype`.
    """
    rng = np.random.default_rng(0)
    of = numpy_dtype(dtype)
    count = _FILL_BYTES // of.itemsize
    if np.issubdtype(of, np.integer):
        return rng.integers(-127, 128, count).astype(of).tobytes()
    return rng.standard_normal(count, np.float32).astype(of).tobytes()


@functools.cache
def _marker(index: int) -> Callable[[], jax.Array]:
    ffi.register("cuda")
    # One element: nobody can wait for the call that makes an empty result.
    one = jax.ShapeDtypeStruct((1,), np.uint8)

    def mark() -> jax.Array:
        return jax.ffi.ffi_call(ffi.MARK_TARGET, one, has_side_effect=True)(index=np.int64(index))

    return jax.jit(mark).lower().compile()


def _mark(index: int) -> jax.Array:
    """Puts a mark between the programs that were dispatched before and those that will be."""
    return _marker(index)()


def same_result(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two samples are one result, but for rounding and the order of sums: no bug of a kernel is that small.

    XLA may be less precise than our kernel: the bound is one for gross errors, and the tests' is float64.
    """
    if np.issubdtype(ours.dtype, np.integer):
        return bool(np.array_equal(ours, theirs))
    x, y = (sample.astype(np.float64) for sample in (ours, theirs))
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return bool(np.array_equal(np.isfinite(x), np.isfinite(y)))
    return bool(np.sqrt(np.mean((x - y) ** 2)) <= 0.02 * np.sqrt(np.mean(y**2)))
