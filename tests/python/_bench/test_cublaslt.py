"""CuBLASLt through its C functions, played here on the CPU's memory: what it is told, what becomes of its results.

No GPU is in it: tests/gpu/test_bench.py has the library itself.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc

import jax
import ml_dtypes
import numpy as np
import pytest
from python.workloads import WORKLOAD, as_numpy, exact, one_set

from jax_moye._bench import contenders, cublaslt
from jax_moye._timing.operands import OperandSets
from jax_moye._timing.rounds import Race

pytestmark = pytest.mark.usefixtures("x64")

DTYPES = {
    0: np.dtype("float32"),
    1: np.dtype("float64"),
    2: np.dtype("float16"),
    3: np.dtype("int8"),
    10: np.dtype("int32"),
    14: np.dtype(ml_dtypes.bfloat16),
    28: np.dtype(ml_dtypes.float8_e4m3fn),
    29: np.dtype(ml_dtypes.float8_e5m2),
}
NOT_SUPPORTED = 15


def changed(**fields):
    return dataclasses.replace(WORKLOAD, **fields)


class Played:
    """The library and the driver: C functions of ctypes' arguments that return a status, on the CPU's memory.

    A launch takes as many microseconds as `us` says of its result of the heuristic.
    """

    def __init__(self, us=(4.0, 2.0, 3.0), broken=(), unable=(), status=0):
        self.us, self.broken, self.unable, self.status = us, broken, unable, status
        self.live: dict[int, dict] = {}
        self.made = 0
        self.clock, self.captured = 0.0, None
        self.graphs: dict[int, list] = {}
        self.asked: dict[str, int] = {}
        self.launched: list[int] = []

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def function(*arguments):
            for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference"):
                for verb in ("Create", "Destroy", "SetAttribute"):
                    if name == f"cublasLt{kind}{verb}":
                        return getattr(self, f"descriptor_{verb.lower()}")(kind, *arguments)
            return getattr(self, f"do_{name.lower()}")(*arguments)

        return function

    def new(self, reference, value) -> int:
        self.made += 1
        self.live[self.made] = value
        reference._obj.value = self.made
        return 0

    # cuBLASLt

    def do_cublasltcreate(self, reference):
        return self.new(reference, {"kind": "handle"})

    def descriptor_create(self, kind, reference, *arguments):
        return self.new(reference, {"kind": kind, "of": [argument.value for argument in arguments]})

    def descriptor_destroy(self, kind, handle):
        assert self.live.pop(handle.value)["kind"] == kind
        return 0

    def descriptor_setattribute(self, kind, handle, attribute, reference, size):
        assert self.live[handle.value]["kind"] == kind
        assert ctypes.sizeof(reference._obj) == size.value
        self.live[handle.value][attribute.value] = reference._obj.value
        return 0

    def do_cublasltmatmulalgogetheuristic(self, handle, product, a, b, c, d, preference, most, results, count):
        assert self.live[handle.value]["kind"] == "handle"
        assert c.value == d.value
        self.asked = {"most": most.value, "workspace": self.live[preference.value][1]}
        self.asked |= {"product": dict(self.live[product.value])}
        count._obj.value = len(self.us)
        for i in range(len(self.us)):
            results[i].algo[0], results[i].state = i, 1 if i in self.unable else 0
        return self.status

    def do_cublasltmatmul(self, handle, product, alpha, a, a_of, b, b_of, beta, c, c_of, d, d_of, algo, *rest):
        workspace, workspace_bytes, stream = rest
        assert workspace.value
        assert workspace_bytes.value == self.asked["workspace"]
        assert self.live[stream.value] == "stream"
        number = algo._obj[0]
        if number in self.broken:
            return NOT_SUPPORTED
        described = dict(self.live[product.value])
        layouts = [dict(self.live[of.value]) for of in (a_of, b_of, c_of, d_of)]
        addresses = [x.value for x in (a, b, c, d)]
        factors = alpha._obj.value, beta._obj.value

        def launch():
            self.launched.append(number)
            self.clock += self.us[number] * 1e-6
            self.multiply(described, layouts, addresses, factors)

        if self.captured is None:
            launch()
        else:
            self.captured.append(launch)
        return 0

    def multiply(self, product, layouts, addresses, factors):
        a, b, c, d = (self.matrix(*one) for one in zip(layouts, addresses, strict=True))
        wide = np.int64 if d.dtype == np.int32 else np.float64
        left, right = ((x.swapaxes(1, 2) if product[which] else x).astype(wide) for x, which in ((a, 3), (b, 4)))
        assert factors[0] == 1
        z = left @ right + (factors[1] * c.astype(wide) if factors[1] else 0)
        epilogue = product[7]
        if epilogue != 1:
            if epilogue & 4:
                bias = (ctypes.c_char * (d.shape[1] * d.dtype.itemsize)).from_address(product[8])
                z = z + np.frombuffer(bias, d.dtype).astype(wide)[None, :, None]
            z = np.asarray({0: lambda x: x, 2: jax.nn.relu, 32: jax.nn.gelu}[epilogue & ~4](z))
        d[:] = z.astype(d.dtype)

    def matrix(self, layout, address):
        """(batch, rows, columns) of a column-major matrix in memory."""
        of, rows, columns, leading = layout["of"]
        assert leading >= rows
        dtype, batch = DTYPES[of], layout.get(5, 1)
        stride = layout.get(6, 0)
        assert batch == 1 or stride == leading * columns
        memory = (ctypes.c_char * (batch * leading * columns * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, dtype).reshape(batch, columns, leading).swapaxes(1, 2)[:, :rows]

    # the driver

    def do_cuinit(self, flags):
        return 0

    def do_cudeviceget(self, reference, ordinal):
        reference._obj.value = ordinal.value
        return 0

    def do_cudeviceprimaryctxretain(self, reference, device):
        return self.new(reference, f"context of {device.value}")

    def do_cuctxsetcurrent(self, context):
        self.current = self.live[context.value]
        return 0

    def do_custreamcreate(self, reference, flags):
        assert flags.value == 1  # XLA's stream does not hold it up
        return self.new(reference, "stream")

    def do_custreamsynchronize(self, stream):
        assert self.captured is None
        return 0

    def do_cueventcreate(self, reference, flags):
        return self.new(reference, {"at": None})

    def do_cueventrecord(self, event, stream):
        self.live[event.value]["at"] = self.clock
        return 0

    def do_cueventsynchronize(self, event):
        return 0

    def do_cueventelapsedtime(self, reference, begin, end):
        reference._obj.value = 1000 * (self.live[end.value]["at"] - self.live[begin.value]["at"])
        return 0

    def do_custreambegincapture_v2(self, stream, mode):
        self.captured = []
        return 0

    def do_custreamendcapture(self, stream, reference):
        launches, self.captured = self.captured, None
        return self.new(reference, launches)

    def do_cugraphinstantiatewithflags(self, reference, graph, flags):
        assert isinstance(flags, ctypes.c_uint64)
        return self.new(reference, {"graph": self.live[graph.value]})

    def do_cugraphdestroy(self, graph):
        del self.live[graph.value]
        return 0

    def do_cugraphexecdestroy(self, graph):
        del self.live[graph.value]
        return 0

    def do_cugraphlaunch(self, graph, stream):
        for launch in self.live[graph.value]["graph"]:
            launch()
        return 0

    @property
    def left(self):
        """What was made and not destroyed, but for the session's."""
        return [value for value in self.live.values() if isinstance(value, dict) and value.get("kind") != "handle"]


@pytest.fixture
def play(monkeypatch):
    """Makes a library the one that is here; graphs and the race are short."""
    monkeypatch.setattr(cublaslt, "LARGEST_GRAPH", 4)
    monkeypatch.setattr(cublaslt, "_RACE", Race(round_ms=0.0, warmup_ms=0.0))

    def begin(**options):
        played = Played(**options)
        monkeypatch.setattr(cublaslt, "libraries", lambda: (played, played))
        monkeypatch.setattr(cublaslt, "session", cublaslt.Session)
        return played

    with jax.default_device(jax.devices("cpu")[0]):
        yield begin


def two_sets(workload):
    """Each of them different."""
    one = one_set(workload)
    other = [(x[::-1] + x).astype(x.dtype) if workload.dtype != "s8" else x[::-1] for x in one]
    return OperandSets(tuple(map(list, zip(one, other, strict=True))), 2), [one, other]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"layout": "NT"},
        {"layout": "TN", "dtype": "f16"},
        {"layout": "TT", "dtype": "f32", "precision": "HIGHEST"},
        {"layout": "TN", "batch": 3},
        {"layout": "NT", "batch": 2, "dtype": "f64"},
        {"layout": "NT", "dtype": "s8"},
        {"layout": "NT", "dtype": "f8e4m3"},
        {"m": 1, "layout": "TN"},
        {"n": 1, "layout": "NT"},
    ],
)
def test_products(play, fields):
    """The orders, batches and dtypes: what the columns, strides and transposes that it is told make of the memory."""
    played, workload = play(), changed(**fields)
    sets, operands = two_sets(workload)
    one = cublaslt.contender(workload, sets, 0)
    results = one.run(0)
    one.wait()
    for d, of_one in zip(results, operands, strict=True):
        assert d.dtype == workload.result_dtype
        expected = exact(workload, of_one)
        np.testing.assert_allclose(as_numpy(d), expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())
    assert played.current == "context of 0"


@pytest.mark.parametrize("epilogue", ["bias", "relu", "gelu", "bias+relu", "bias+gelu", "residual", "bias+residual"])
def test_epilogues(play, epilogue):
    play()
    workload = changed(epilogue=epilogue, dtype="f32", precision="HIGHEST")
    sets, operands = two_sets(workload)
    results = cublaslt.contender(workload, sets, 0).run(0)
    for d, of_one in zip(results, operands, strict=True):
        expected = contenders.xla_program(workload)(*of_one)
        np.testing.assert_allclose(as_numpy(d), as_numpy(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("epilogue", ["silu", "gelu_exact", "relu+residual"])
def test_epilogues_that_it_has_not(play, epilogue):
    played, workload = play(), changed(epilogue=epilogue)
    with pytest.raises(NotImplementedError, match="cuBLASLt has no epilogue"):
        cublaslt.contender(workload, two_sets(workload)[0], 0)
    assert [value for value in played.left if "kind" in value] == []


def test_sums():
    def compute(**fields):
        return cublaslt.sums(changed(**fields))[:2]

    assert compute() == compute(dtype="f16") == compute(dtype="f8e4m3") == (68, "f32")
    assert compute(dtype="f32") == compute(dtype="f32", precision="DEFAULT") == (77, "f32")
    assert compute(dtype="f32", precision="HIGHEST") == compute(dtype="f32", precision="HIGH") == (68, "f32")
    assert compute(dtype="f64") == (70, "f64")
    assert compute(dtype="s8") == (72, "s32")


def test_what_the_heuristic_is_asked(play):
    played = play()
    workload = changed(dtype="f8e4m3", layout="NT", precision="ANY_F8_ANY_F8_F32_FAST_ACCUM")
    cublaslt.contender(workload, two_sets(workload)[0], 0)
    assert (played.asked["most"], played.asked["workspace"]) == (32, 32 << 20)
    assert played.asked["product"][25] == 1
    assert (played.asked["product"][3], played.asked["product"][4]) == (1, 0)  # the order that 8 bits need
    cublaslt.contender(changed(), two_sets(WORKLOAD)[0], 0)
    assert 25 not in played.asked["product"]
    # cublasLt.h says so.
    assert ctypes.sizeof(cublaslt.Heuristic) == 96
    assert [getattr(cublaslt.Heuristic, name).offset for name in ("workspace_bytes", "state", "waves")] == [64, 72, 76]


def test_the_fastest_result_that_runs(play):
    """The first is slow, the second and third are none, the fourth and fifth are left."""
    played = play(us=(9.0, 1.0, 1.0, 5.0, 4.0), unable=(1,), broken=(2,))
    one = cublaslt.contender(WORKLOAD, two_sets(WORKLOAD)[0], 0)
    assert one.name == "cublaslt"
    assert one.method == "graph, result 4 of 4 of the heuristic"
    assert 1 not in played.launched
    before = len(played.launched)
    assert one.round(3) == pytest.approx(4e-6)
    assert set(played.launched[before:]) == {4}
    assert len(played.launched) - before == 3 * one.products
    assert one.products == 4  # each set twice: so short a product fills the graph
    assert not one.host_bound
    gc.collect()
    assert len([value for value in played.left if "graph" in value]) == 1
    assert not [value for value in played.left if "kind" in value]
    assert not [value for value in played.live.values() if isinstance(value, list)]  # graphs that were instantiated
    del one
    gc.collect()
    assert not [value for value in played.left if "graph" in value]


def test_without_a_kernel(play):
    for options in ({"us": ()}, {"unable": (0, 1, 2)}, {"status": NOT_SUPPORTED}):
        play(**options)
        with pytest.raises(NotImplementedError, match="cuBLASLt has no kernel for it"):
            cublaslt.contender(WORKLOAD, two_sets(WORKLOAD)[0], 0)
    played = play(broken=(0, 1, 2))
    with pytest.raises(RuntimeError, match="none of 3 results ran"):
        cublaslt.contender(WORKLOAD, two_sets(WORKLOAD)[0], 0)
    assert played.captured is None
    play(status=7)
    with pytest.raises(RuntimeError, match="cublasLtMatmulAlgoGetHeuristic: status 7"):
        cublaslt.contender(WORKLOAD, two_sets(WORKLOAD)[0], 0)


def test_where_the_library_is(tmp_path):
    for name in ("cublas/lib/libcublasLt.so.12", "cu13/lib/libcublasLt.so.13", "cu13/lib/libcublas.so.13"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    maps = "7f00-7f01 r-xp 00000000 00:2a 1 /elsewhere/lib/libcublasLt.so.12.9.1\n" * 2
    wheels = [str(tmp_path / name) for name in ("cublas/lib/libcublasLt.so.12", "cu13/lib/libcublasLt.so.13")]
    assert cublaslt.library_paths(maps, [str(tmp_path)])[0] == "/elsewhere/lib/libcublasLt.so.12.9.1"
    assert sorted(cublaslt.library_paths(maps, [str(tmp_path)])[1:]) == sorted(wheels)
    assert cublaslt.library_paths("", []) == []


@pytest.mark.parametrize("missing", ["libcublasLt", "driver"])
def test_without_the_library_it_says_so(monkeypatch, missing):
    def load(name, mode):
        if "libcublasLt" in name and missing != "libcublasLt":
            return "blas"
        raise OSError(name)

    monkeypatch.setattr(cublaslt.ctypes, "CDLL", load)
    with pytest.raises(NotImplementedError, match=f"there is no .*{missing} here"):
        cublaslt.libraries.__wrapped__()
