"""cuBLASLt by its C functions: the fastest of the first 32 results of its heuristic, each captured as a CUDA graph.

The library is the one that XLA uses, out of the wheels that bring JAX its CUDA. The operands are JAX's arrays, by their
addresses, and nothing but a stream and graphs is asked of the driver. The device's own clock says what a pass takes.

cuBLASLt's matrices lie column by column. A row-major (m, n) is its (n, m), so it computes d^T = b^T a^T: b is its A,
and a its B, each transposed where it is stored transposed.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import glob
import importlib.util
import math
import os
import pathlib
import re
import weakref
from collections.abc import Iterator, Sequence
from ctypes import byref, c_double, c_float, c_int8, c_int32, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_moye._timing.operands import OperandSets, expected_us
from jax_moye._timing.rounds import Contender, Race, race
from jax_moye._timing.workloads import Workload

RESULTS = 32  # of the heuristic, the likeliest first
WORKSPACE_BYTES = 32 << 20  # what cuBLAS itself takes on Hopper
PASS_US = 500.0  # what a replay of a graph takes, about
LARGEST_GRAPH = 512  # launches in a graph, about
_RACE = Race(slow=1.5, rounds=(3, 7), round_ms=10.0, warmup_ms=20.0)

# Of cublasLt.h, cublas_api.h and library_types.h.
_TYPES = {"f32": 0, "f64": 1, "f16": 2, "s8": 3, "s32": 10, "bf16": 14, "e4m3": 28, "e5m2": 29}
_OF_RESULT = {"s8": "s32", "e4m3": "bf16", "e5m2": "bf16"}
_SUMS_F32, _SUMS_F64, _SUMS_S32, _SUMS_TF32 = 68, 70, 72, 77  # CUBLAS_COMPUTE_...
_TRANSA, _TRANSB, _EPILOGUE, _BIAS_POINTER, _FAST_ACCUM = 3, 4, 7, 8, 25  # CUBLASLT_MATMUL_DESC_...
_BATCH_COUNT, _BATCH_OFFSET = 5, 6  # CUBLASLT_MATRIX_LAYOUT_...
_MAX_WORKSPACE = 1  # CUBLASLT_MATMUL_PREF_...
_NO_EPILOGUE, _BIAS = 1, 4  # CUBLASLT_EPILOGUE_...
_ACTIVATIONS = {None: 0, "relu": 2, "gelu": 32}  # its GELU is the one by tanh
_NOT_SUPPORTED = 15  # CUBLAS_STATUS_...
# Of cuda.h.
_NON_BLOCKING, _CAPTURE_RELAXED = 1, 2


class Heuristic(ctypes.Structure):
    """A cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int32),
        ("waves", c_float),
        ("reserved", c_int32 * 4),
    )


class Matrix(NamedTuple):
    """A matrix as cuBLASLt sees it, column by column.

    Attributes:
      rows: of a column.
      columns: of the matrix.
      transposed: whether the product reads it so.
    """

    rows: int
    columns: int
    transposed: bool = False


def matrices(workload: Workload) -> tuple[Matrix, Matrix, Matrix]:
    """Its A, which is b, its B, which is a, and its D, which is d^T."""
    m, n, k = workload.m, workload.n, workload.k
    left = Matrix(k, n, True) if workload.layout[1] == "T" else Matrix(n, k)
    right = Matrix(m, k, True) if workload.layout[0] == "T" else Matrix(k, m)
    return left, right, Matrix(n, m)


def sums(workload: Workload) -> tuple[int, str, Any]:
    """Of a workload's dtype and precision: the compute type, the dtype of alpha and beta, and ctypes' name of that."""
    dtype = workload.table_dtype
    if dtype == "f64":
        return _SUMS_F64, "f64", c_double
    if dtype == "s8":
        return _SUMS_S32, "s32", c_int32
    by_tf32 = dtype == "f32" and workload.precision in (None, "DEFAULT")  # as XLA
    return (_SUMS_TF32 if by_tf32 else _SUMS_F32), "f32", c_float


def epilogue(workload: Workload) -> int:
    """The epilogue's number.

    Raises:
      NotImplementedError: cuBLASLt has no such.
    """
    bias, activation, residual = workload.finish
    if activation not in _ACTIVATIONS or (residual and activation):
        raise NotImplementedError(f"cuBLASLt has no epilogue {workload.epilogue}")
    return (_BIAS * bias | _ACTIVATIONS[activation]) or _NO_EPILOGUE


# The libraries ---------------------------------------------------------------------------------------------------


def library_paths(maps: str, folders: Sequence[str]) -> list[str]:
    """Where libcublasLt may be, the likeliest first: what this process has loaded, then what lies in the wheels.

    Args:
      maps: of /proc/self/maps.
      folders: of the packages `nvidia`.
    """
    loaded = re.findall(r"/\S*/libcublasLt\.so\.\d+\S*", maps)
    there = [path for folder in folders for path in glob.glob(f"{glob.escape(folder)}/*/lib/libcublasLt.so.*")]
    return list(dict.fromkeys([*loaded, *sorted(there, reverse=True)]))


@functools.cache
def libraries() -> tuple[Any, Any]:
    """LibcublasLt and the CUDA driver.

    Raises:
      NotImplementedError: one is not here.
    """
    spec = importlib.util.find_spec("nvidia")
    maps = pathlib.Path("/proc/self/maps")
    paths = library_paths(
        maps.read_text() if maps.exists() else "", list(spec.submodule_search_locations or ()) if spec else []
    )
    blas = _first([*paths, "libcublasLt.so.13", "libcublasLt.so.12"])
    if blas is None:
        raise NotImplementedError("there is no libcublasLt here, which jax's CUDA wheels bring")
    driver = _first(["libcuda.so.1"])
    if driver is None:
        raise NotImplementedError("there is no CUDA driver here")
    return blas, driver


def _first(names: Sequence[str]) -> Any:
    """The first library that can be loaded; None without one."""
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, os.RTLD_LAZY)
    return None


def call(library: Any, function: str, *arguments: Any) -> None:
    """Calls a C function with arguments of ctypes.

    Raises:
      NotImplementedError: cuBLASLt has no kernel.
      RuntimeError: its status is another one.
    """
    status = getattr(library, function)(*arguments)
    if status == _NOT_SUPPORTED and function.startswith("cublasLt"):
        raise NotImplementedError("cuBLASLt has no kernel for it")
    if status:
        raise RuntimeError(f"{function}: status {status}")


class Session:
    """A handle of cuBLASLt and a stream on a GPU, for as long as the process runs."""

    def __init__(self, ordinal: int):
        """Makes them.

        Raises:
          NotImplementedError: there is no library.
          RuntimeError: CUDA says why not.
        """
        self.blas, self.driver = libraries()
        device, context = c_int32(), c_void_p()
        self.handle, self.stream, self.events = c_void_p(), c_void_p(), (c_void_p(), c_void_p())
        call(self.driver, "cuInit", c_uint(0))
        call(self.driver, "cuDeviceGet", byref(device), c_int32(ordinal))
        call(self.driver, "cuDevicePrimaryCtxRetain", byref(context), device)  # JAX's
        call(self.driver, "cuCtxSetCurrent", context)
        call(self.driver, "cuStreamCreate", byref(self.stream), c_uint(_NON_BLOCKING))
        for event in self.events:
            call(self.driver, "cuEventCreate", byref(event), c_uint(0))
        call(self.blas, "cublasLtCreate", byref(self.handle))

    def wait(self) -> None:
        """Until all that was launched is done."""
        call(self.driver, "cuStreamSynchronize", self.stream)

    def seconds(self, graph: Graph, passes: int) -> float:
        """What replays of a graph take, by the device's clock."""
        begin, end = self.events
        call(self.driver, "cuEventRecord", begin, self.stream)
        for _ in range(passes):
            graph.launch()
        call(self.driver, "cuEventRecord", end, self.stream)
        call(self.driver, "cuEventSynchronize", end)
        milliseconds = c_float()
        call(self.driver, "cuEventElapsedTime", byref(milliseconds), begin, end)
        return milliseconds.value / 1000


session = functools.cache(Session)


class Graph:
    """What was put on a session's stream within `captured`; destroyed when nobody holds it."""

    def __init__(self, session: Session, captured: c_void_p):
        """Makes a captured graph executable.

        Raises:
          RuntimeError: CUDA says why not.
        """
        self._session, self._executable = session, c_void_p()
        call(session.driver, "cuGraphInstantiateWithFlags", byref(self._executable), captured, c_uint64(0))
        weakref.finalize(self, session.driver.cuGraphExecDestroy, self._executable).atexit = False

    def launch(self) -> None:
        """Puts it on the stream."""
        call(self._session.driver, "cuGraphLaunch", self._executable, self._session.stream)


# The products ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _made(blas: Any, kind: str, *arguments: Any) -> Iterator[c_void_p]:
    """A descriptor of cuBLASLt, destroyed at the end."""
    made = c_void_p()
    call(blas, f"cublasLt{kind}Create", byref(made), *arguments)
    try:
        yield made
    finally:
        call(blas, f"cublasLt{kind}Destroy", made)


def _set(blas: Any, kind: str, of: c_void_p, attribute: int, value: Any) -> None:
    call(blas, f"cublasLt{kind}SetAttribute", of, c_int32(attribute), byref(value), c_size_t(ctypes.sizeof(value)))


class Products:
    """The products of all sets of operands, as cuBLASLt's heuristic would compute them; a context."""

    def __init__(self, workload: Workload, sets: OperandSets, session: Session):
        """Asks for results and a workspace.

        Args:
          workload: whose products they are.
          sets: of operands.
          session: that they run in.

        Raises:
          NotImplementedError: cuBLASLt has no such epilogue.
        """
        number = epilogue(workload)
        self._workload, self._session, self._sets = workload, session, sets
        lead = (workload.batch,) if workload.batch > 1 else ()
        shape = (*lead, workload.m, workload.n)
        self.results = [jnp.zeros(shape, workload.result_dtype) for _ in range(len(sets))]
        self._workspace = jnp.zeros(WORKSPACE_BYTES, jnp.uint8)
        jax.block_until_ready((self.results, self._workspace, sets.arrays))
        compute, self._scale_type, self._scalar = sums(workload)
        self._exit = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            blas = session.blas
            enter = undo.enter_context
            self._product = enter(_made(blas, "MatmulDesc", c_int32(compute), c_int32(_TYPES[self._scale_type])))
            operand = _TYPES[workload.table_dtype]
            result = _TYPES[_OF_RESULT.get(workload.table_dtype, workload.table_dtype)]
            types = (operand, operand, result)
            self._layouts = []
            for attribute, matrix, of in zip((_TRANSA, _TRANSB, None), matrices(workload), types, strict=True):
                sizes = c_uint64(matrix.rows), c_uint64(matrix.columns), c_int64(matrix.rows)
                layout = enter(_made(blas, "MatrixLayout", c_int32(of), *sizes))
                self._layouts.append(layout)
                if workload.batch > 1:
                    _set(blas, "MatrixLayout", layout, _BATCH_COUNT, c_int32(workload.batch))
                    _set(blas, "MatrixLayout", layout, _BATCH_OFFSET, c_int64(matrix.rows * matrix.columns))
                if attribute is not None:
                    _set(blas, "MatmulDesc", self._product, attribute, c_int32(matrix.transposed))
            _set(blas, "MatmulDesc", self._product, _EPILOGUE, c_uint32(number))
            if workload.precision is not None and workload.precision.endswith("FAST_ACCUM"):
                _set(blas, "MatmulDesc", self._product, _FAST_ACCUM, c_int8(1))
            self._exit = undo.pop_all()

    def __enter__(self) -> Products:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Destroys what describes them. Graphs stay."""
        self._exit.close()

    def _addresses(self, i: int) -> tuple[int, int, int, int]:
        """Of its A, B, C and D of a set; the bias is set meanwhile."""
        a, b, *more = (of[i].unsafe_buffer_pointer() for of in self._sets.arrays)
        if self._workload.finish.bias:
            _set(self._session.blas, "MatmulDesc", self._product, _BIAS_POINTER, c_void_p(more.pop(0)))
        d = self.results[i].unsafe_buffer_pointer()
        return b, a, more.pop(0) if self._workload.finish.residual else d, d

    def heuristics(self) -> list[Heuristic]:
        """The results that can be tried.

        Raises:
          NotImplementedError: there is none.
        """
        self._addresses(0)  # a bias has to be somewhere
        blas, (left, right, d) = self._session.blas, self._layouts
        found, count = (Heuristic * RESULTS)(), c_int32()
        with _made(blas, "MatmulPreference") as preference:
            _set(blas, "MatmulPreference", preference, _MAX_WORKSPACE, c_uint64(WORKSPACE_BYTES))
            given = (self._session.handle, self._product, left, right, d, d, preference)
            call(blas, "cublasLtMatmulAlgoGetHeuristic", *given, c_int32(RESULTS), found, byref(count))
        able = [one for one in found[: count.value] if one.state == 0]
        if not able:
            raise NotImplementedError("cuBLASLt has no kernel for it")
        return able

    def launch(self, heuristic: Heuristic, i: int) -> None:
        """Puts the product of a set on the stream."""
        a, b, c, d = map(c_void_p, self._addresses(i))
        left, right, layout = self._layouts
        alpha, beta = self._scalar(1), self._scalar(1 if self._workload.finish.residual else 0)
        workspace = c_void_p(self._workspace.unsafe_buffer_pointer())
        given: Sequence[Any] = (byref(alpha), a, left, b, right, byref(beta), c, layout, d, layout)
        given = (*given, byref(heuristic.algo), workspace, c_size_t(WORKSPACE_BYTES), self._session.stream)
        call(self._session.blas, "cublasLtMatmul", self._session.handle, self._product, *given)

    def captured(self, heuristic: Heuristic, times: int) -> Graph:
        """A graph of the products of all sets, so many times, after one of them has run."""
        driver, stream = self._session.driver, self._session.stream
        self.launch(heuristic, 0)  # loads
        self._session.wait()
        captured = c_void_p()
        call(driver, "cuStreamBeginCapture_v2", stream, c_int32(_CAPTURE_RELAXED))
        try:
            for _ in range(times):
                for i in range(len(self._sets)):
                    self.launch(heuristic, i)
        finally:  # the stream is of use again, whatever happened
            call(driver, "cuStreamEndCapture", stream, byref(captured))
        try:
            return Graph(self._session, captured)
        finally:
            call(driver, "cuGraphDestroy", captured)

    def contender(self, name: str, heuristic: Heuristic, times: int) -> Contender:
        """One result of the heuristic."""
        graph, session = self.captured(heuristic, times), self._session
        return Contender(
            name,
            functools.partial(self._replay, graph),  # who holds it holds what the graph reads and writes
            session.wait,
            products=times * len(self._sets),
            clock=functools.partial(session.seconds, graph),
        )

    def _replay(self, graph: Graph, _: int) -> Sequence[jax.Array]:
        graph.launch()
        return self.results


def contender(workload: Workload, sets: OperandSets, ordinal: int) -> Contender:
    """The fastest of the heuristic's results.

    Args:
      workload: that is computed.
      sets: of operands.
      ordinal: of the GPU.

    Raises:
      NotImplementedError: there is no library, or it has no kernel for the workload.
      RuntimeError: none of its results ran.
    """
    us = expected_us(workload.flops, workload.footprint)
    times = max(1, math.ceil(min(PASS_US / us, LARGEST_GRAPH) / len(sets)))
    contenders, why = [], None
    with Products(workload, sets, session(ordinal)) as products:
        found = products.heuristics()
        for i, heuristic in enumerate(found):
            try:
                contenders.append(products.contender(str(i), heuristic, times))
            except (NotImplementedError, RuntimeError) as error:  # of a result that its heuristic was too hopeful about
                why = error
    if not contenders:
        raise RuntimeError(f"none of {len(found)} results ran") from why
    of_all = race(contenders, None, _RACE).us
    best = min(contenders, key=lambda one: of_all[one.name])
    method = f"graph, result {int(best.name) + 1} of {len(found)} of the heuristic"
    return dataclasses.replace(best, name="cublaslt", method=method, times=[], spans=[])
