"""One product that is measured: who is a contender, what is timed, and what is kept of it."""

from __future__ import annotations

import dataclasses
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.measured import SHAPE, able, bf16, explained

from jax_moye._kernels import devices
from jax_moye._primitives import autotune, product_race
from jax_moye._primitives.product_race import ByXla, InterruptedMeasurementError, measured
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.cost_xla import elementwise_us
from jax_moye._selection.decide import decide
from jax_moye._selection.entry import parse_entry
from jax_moye._selection.problem import GemmProblem
from jax_moye._selection.ranking import contenders
from jax_moye._selection.request import Operand, Request
from jax_moye._timing.rounds import Contender

WORDS = "bfloat16 bfloat16 bfloat16 DEFAULT"


class Product:
    """A DirectProduct whose configs take the times of a table, and whose results are right but for one."""

    program_size, sets = 1, 2

    def __init__(self, us, wrong=(), broken=()):
        self.us, self.wrong, self.broken, self.added, self.asked = us, wrong, broken, [], []

    def __call__(self, layout, device, names):
        self.layout, self.names = layout, names
        self.asked.append((layout, names))
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_closed = True

    def contender(self, name):
        if name in self.broken:
            raise RuntimeError("it does not launch")
        self.added.append(name)
        us = self.us.get(name, 30.0)
        return Contender(name, run=None, wait=None, clock=lambda passes: passes * us * 1e-6)

    def sample(self, array=None):
        ones = np.ones(8, np.float32)
        return 2 * ones if array is None and self.added[-1] in self.wrong else ones


@pytest.fixture
def one(places, monkeypatch):
    """What is measured of a product, played."""

    def run(product, xla_us=40.0, stop=None, is_fused=False, is_parted=False, **options):
        operands = tuple(Operand(shape, np.dtype(bf16)) for shape in options.get("shapes", SHAPE[:2]))
        request = Request("mk,kn->mn", np.dtype(bf16), None, None, options.get("implementation"), None)
        changes = {"xlas_orders": options.get("xlas_orders", (None, None)), "beta": options.get("beta", 0.0)}
        request = dataclasses.replace(request, **changes)
        target = LoweringTarget.of_device(devices.DEVICES["h200"])
        call = decide(request, operands, target).call
        rival = Contender("xla", run=None, wait=None, clock=lambda passes: passes * xla_us * 1e-6)
        fast = Contender("xla", run=None, wait=None, clock=lambda passes: passes * xla_us * 0.5e-6)
        monkeypatch.setattr(product_race, "DirectProduct", product)

        def xla_contender(product, orders=None, padded=None, **_):
            product.padded = padded
            is_reordered = orders is not None  # reads other numbers
            return (
                (fast if is_reordered else rival),
                (2 if is_reordered else 1) * np.ones(8, np.float32),
                ByXla(is_fused, is_parted),
            )

        monkeypatch.setattr(product_race, "_xla_contender", xla_contender)
        monkeypatch.setattr(jax, "local_devices", lambda backend: [None])
        candidates = contenders(call.problem, 90, target.configs, autotune.CANDIDATES)
        return measured(request, operands, call, candidates, None, {}, stop)

    return run


def names_of():
    return able(explained(*SHAPE, implementation="moye"))


def test_the_fastest_is_kept_with_the_times_of_all(one):
    names = names_of()
    product = Product({names[3]: 20.0, names[1]: 25.0})
    entry = one(product)
    assert (entry.config, entry.us[names[3]], entry.us[names[1]]) == (names[3], 20.0, 25.0)
    assert entry.xla_us == {WORDS: 40.0}
    assert entry.lead[WORDS] == pytest.approx(2.0)
    assert list(entry.us) == product.names == names[: autotune.CANDIDATES]
    assert product.is_closed
    assert product.layout.sizes == (1, 256, 128, 512)


def test_what_xla_computes_in_a_fusion_is_kept(one):
    assert one(Product({})).fused == ()
    entry = one(Product({}), is_fused=True)
    assert entry.fused == (WORDS,)
    assert parse_entry(json.loads(json.dumps(entry.to_dict()))) == entry
    assert one(Product({}), is_fused=True, implementation="moye").fused == ()
    reordered = one(Product({}), is_fused=True, xlas_orders=((1, 0), None))
    assert reordered.fused == (*reordered.xla_us,)


def test_whether_xla_adds_up_parts_of_k_is_kept(one):
    entry = one(Product({}), is_fused=True, is_parted=True)
    assert (entry.fused, entry.parted) == ((WORDS,), (WORDS,))
    assert parse_entry(json.loads(json.dumps(entry.to_dict()))) == entry
    assert one(Product({}), is_fused=True, is_parted=True, beta=1.0).parted == ()


PARTS = """
ENTRY %main.1 (x.1: bf16[16,2048], w.1: bf16[2048,5632]) -> bf16[16,5632] {
  %gemm_fusion_dot.3 = f32[8,16,5632]{2,1,0} fusion(%bitcast.1, %w.1), kind=kCustom, calls=%gemm_fusion_dot_computation
  ROOT %loop_reduce_fusion = bf16[16,5632]{1,0} fusion(%gemm_fusion_dot.3), kind=kLoop, calls=%fused_reduce
}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PARTS, (True, True)),
        (PARTS.replace("loop_reduce_fusion", "loop_convert_fusion"), (True, False)),
        (PARTS.replace("fusion(%gemm_fusion_dot.3)", "fusion(%bitcast.1)"), (True, False)),
        ('%cublas-gemm.1 = custom-call(%x, %w), custom_call_target="__cublas$gemm"', (False, False)),
    ],
)
def test_how_xla_computes_a_product_its_program_says(text, expected):
    assert ByXla.of(text) == expected


@pytest.mark.parametrize("orders", [(None, None), ((1, 0), None)])
def test_a_fusion_that_a_kernel_takes_in_is_none_of_xlas(one, orders):
    """XLA's fusion has c, and so has the kernel."""
    assert one(Product({}), is_fused=True, beta=1.0, xlas_orders=orders).fused == ()


def test_xla_is_timed_with_operands_in_its_own_order(one):
    """Of the program that reads them so, whose result is another."""
    entry = one(Product({}), xlas_orders=((1, 0), None))
    assert entry.xla_us == {f"{WORDS} written for it: lhs": 20.0}
    assert [*entry.lead] == [*entry.xla_us]
    both = one(Product({}), xlas_orders=((1, 0), (1, 0)))
    assert [*both.xla_us] == [f"{WORDS} written for it: lhs, rhs"]


@pytest.mark.usefixtures("every_config_is_built")
def test_who_reads_padded_lines_is_timed_on_them_and_pays_for_them(one):
    """Rows of 65 elements: a's lines are padded to 80, and b's 64 columns are read as they are."""
    product = Product({})
    entry = one(product, shapes=((8192, 65), (65, 64)))
    (plain, as_they_are), (padded, of_padded) = product.asked
    assert (plain.strides["a"][-2:], padded.strides["a"][-2:]) == ((65, 1), (80, 1))
    assert plain.strides["b"] == padded.strides["b"]
    assert of_padded
    assert not set(as_they_are) & set(of_padded)
    assert product.padded[1].strides["a"] == padded.strides["a"]
    padding_us = entry.us[of_padded[0]] - 30.0
    assert padding_us == pytest.approx(elementwise_us(2 * 8192 * 65 * 2), abs=0.1)
    assert {entry.us[name] for name in as_they_are} <= {30.0}


def test_one_set_of_operands_where_no_line_is_padded(one):
    product = Product({})
    one(product)
    assert len(product.asked) == 1


class Arrays:
    """Sets of operands of a DirectProduct, on the CPU."""

    program_size, device = 2, None

    def __init__(self, **shapes):
        self.device = jax.devices("cpu")[0]
        self.of = {
            name: [jnp.arange(np.prod(shape), dtype=jnp.float32) + i for i in range(2)]
            for name, shape in shapes.items()
        }

    def arrays(self, name):
        return self.of[name]

    def xla_contender(self, program, operands):
        return Contender("xla", run=lambda i: program(*operands[0], *operands[1]), wait=None)

    def sample(self, array):
        return np.asarray(array)


@pytest.mark.parametrize("swapped", [False, True])
def test_what_xla_reads_in_its_own_order(swapped):
    shapes = (2, 3, 4, 5), (2, 6, 4, 5)  # bmhk, bnhk
    of = dict(zip("ba" if swapped else "ab", shapes, strict=True))
    product, operands = Arrays(**of), tuple(Operand(shape, np.dtype(np.float32)) for shape in shapes)
    left, right = (product.of[name][0] for name in ("ba" if swapped else "ab"))

    def xla(x, y):
        return jnp.einsum("bmhk,bnhk->bhmn", x, y)

    _, plain, _ = product_race._xla_contender(product, operands, swapped, xla, {})
    np.testing.assert_array_equal(plain, xla(left.reshape(shapes[0]), right.reshape(shapes[1])))
    _, found, _ = product_race._xla_contender(product, operands, swapped, xla, {}, ((0, 2, 1, 3), None))
    heads_first = left.reshape(2, 4, 3, 5)  # the memory as it is, and no transpose in front of the product
    np.testing.assert_array_equal(found, jnp.einsum("bhmk,bnhk->bhmn", heads_first, right.reshape(shapes[1])))


def test_what_xla_reads_of_padded_lines():
    """The same numbers, wherever they lie: the last line has nothing behind it."""
    shapes = (3, 5), (5, 4)
    plain = GemmProblem(
        1,
        3,
        4,
        5,
        dtype="f32",
        out_dtype="f32",
        a_strides=(0, 5, 1),
        b_strides=(0, 1, 4),
        d_strides=(0, 4, 1),
        swapped=False,
    )
    read = dataclasses.replace(plain, a_strides=(0, 8, 1))
    product, operands = Arrays(a=(2 * 8 + 5,), b=shapes[1]), tuple(Operand(x, np.dtype(np.float32)) for x in shapes)
    left, right = (product.of[name][0] for name in "ab")
    _, found, _ = product_race._xla_contender(product, operands, False, jnp.matmul, {}, padded=(plain, read))
    lines = jnp.pad(left, (0, 3)).reshape(3, 8)[:, :5]
    np.testing.assert_array_equal(found, lines @ right.reshape(shapes[1]))


def test_ties_are_the_models_order(one):
    names = names_of()
    assert one(Product({names[5]: 20.0, names[2]: 20.1, names[7]: 20.05})).config == names[2]


def test_a_wrong_result_and_a_launch_that_fails_are_no_candidates(one, caplog):
    names = names_of()
    entry = one(Product({names[0]: 1.0, names[1]: 2.0, names[2]: 3.0}, wrong=names[:1], broken=names[1:2]))
    assert entry.config == names[2]
    assert not {*names[:2]} & {*entry.us}
    assert f"{names[0]} is not chosen: its result differs from XLA's" in caplog.text
    with pytest.raises(RuntimeError, match="no config computes it as XLA does"):
        one(Product({}, wrong=names))


def test_equal_bits_are_compared_once(one, monkeypatch):
    compared, real = [], product_race.same_result
    monkeypatch.setattr(product_race, "same_result", lambda ours, theirs: compared.append(ours) or real(ours, theirs))
    names = names_of()
    one(Product({}, wrong=names[1:2]))
    assert len(compared) == 2  # the first one, and the wrong one


def test_xla_is_not_asked_where_the_caller_insists(one):
    names = names_of()
    entry = one(Product({names[1]: 5.0}), implementation="moye")
    assert (entry.config, entry.xla_us, entry.lead) == (names[1], {}, {})


def test_a_told_measurement_stops(one):
    stop = threading.Event()
    stop.set()
    product = Product({})
    with pytest.raises(InterruptedMeasurementError):
        one(product, stop=stop)
    assert product.is_closed


def test_contenders_of_large_products_rest_in_between():
    """Or the clock falls while they are timed, and what is found the fastest is not what is in a long run."""
    assert product_race.race_of(2 * 1024**3) == product_race.RACE
    assert product_race.RACE.idle_ms == 0
    large = product_race.race_of(2 * 4096**3)
    assert large.idle_ms >= 5 * large.round_ms > 0
    assert large == product_race.RACE._replace(idle_ms=large.idle_ms, round_ms=large.round_ms)
