"""explain: the golden texts, what it takes, and its page."""

import doctest
import os
import pathlib

import jax
import jax.numpy as jnp
import pytest
from python._inspect.golden import GOLDEN_CASES, TABLE, bf16, struct
from python.attentions import FORMS, gradients, operands, use_fake_rows

import jax_moye
from jax_moye.__main__ import main
from jax_moye._kernels import ffi
from jax_moye._selection import decide

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "explain"


UPDATE = "JAX_MOYE_UPDATE_GOLDEN"


@pytest.mark.parametrize("case", GOLDEN_CASES)
def test_golden(case, fixed, monkeypatch):
    monkeypatch.setattr(decide, "find_config", lambda config: TABLE[0])
    monkeypatch.setattr("jax_moye._api.arguments.find_config", lambda config: TABLE[0])
    monkeypatch.setattr("jax_moye._inspect.explain.find_config", lambda config: TABLE[0])
    found = GOLDEN_CASES[case]()
    for suffix, text in ((".txt", found.text()), (".json", found.to_json())):
        path = GOLDEN / f"{case}{suffix}"
        if os.environ.get(UPDATE):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + "\n")
        assert text + "\n" == path.read_text(), f"set {UPDATE}=1 to write what is right now"


def test_golden_files_are_all_compared():
    assert {path.stem for path in GOLDEN.iterdir()} == set(GOLDEN_CASES)


def test_a_config_by_name_and_in_a_block(every_config_is_built):
    name = next(row.name for row in jax_moye.configs() if row.dtype == "bf16" and row.alignment == 16)
    found = jax_moye.explain((64, 64), (64, 64), bf16, config=name, device="h200")[0]
    assert (found.config.name, found.chosen_by) == (name, "explicit")
    with jax_moye.options(implementation="xla"):
        assert jax_moye.explain((8, 8), (8, 8), bf16, device="h200")[0].computed_by == "xla"


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        (((8, 8),), {}, TypeError, "b is missing"),
        (((8, 8), (8, 8)), {}, TypeError, "a is the shape .* no dtype"),
        (((8, 8), 3, "bfloat16"), {}, TypeError, "b is a shape"),
        (((8, 8), (8, 8), "bfloat61"), {}, TypeError, "no dtype is named 'bfloat61'; close names are bfloat16"),
        (((8, 8), (8, 8), "bf16"), {"preferred_element_type": "f23"}, TypeError, "close names are .*f32"),
        (((8, -8), (8, 8), "bfloat16"), {}, ValueError, "a has the shape .* negative"),
        (((8, 8), (8, 8), "bfloat16"), {"dtype": "float32"}, TypeError, "at most a, b and dtype"),
        (((8, 8), (9, 8), "bfloat16"), {}, TypeError, "8 != 9"),
        (((8, 8), (8, 8), "bfloat16"), {"device": "h201"}, ValueError, "device 'h201' is not known; names are h200"),
        (((8, 8), (8, 8), "bfloat16"), {"device": 12}, ValueError, "device 12"),
        (((8, 8), (8, 8), "bfloat16"), {"device": 1.5}, TypeError, "device is a name"),
        (((8, 8), (8, 8), "bfloat16"), {"precision": "good"}, ValueError, "precision"),
        ((lambda x: x, 1.0), {"precision": "highest"}, TypeError, "precision is about the product of two arrays"),
        (((8, 8), (8, 8), "bfloat16"), {"spec": "ij,jk->ik", "dimension_numbers": 0}, TypeError, "give one"),
    ],
)
def test_errors(args, options, error, message):
    with pytest.raises(error, match=message):
        jax_moye.explain(*args, **options)


def test_shapes_are_no_arrays_to_a_function():
    with pytest.raises(TypeError, match="unsupported operand") as error:
        jax_moye.explain(lambda x, w: x @ w, (8, 4), (4, 8), device="h200")
    note = "explain: (8, 4) is no array to a function: give it an array or jax.ShapeDtypeStruct((8, 4), dtype)"
    assert note in error.value.__notes__
    with pytest.raises(TypeError, match="unsupported operand") as error:
        jax_moye.explain(lambda x, w: x @ w, jnp.ones((8, 4)), None, device="h200")
    assert not any("ShapeDtypeStruct" in note for note in getattr(error.value, "__notes__", []))


def test_dimension_numbers_and_arrays():
    numbers = (((1,), (1,)), ((), ()))
    found = jax_moye.explain(jnp.ones((8, 16), bf16), struct(24, 16), dimension_numbers=numbers, device=90)[0]
    assert found.problem.sizes == (1, 8, 24, 16)
    assert found.problem.order == "NT"
    assert jax_moye.explain((8, 8), (8, 8), "float64", device="h200")[0].problem.dtype == "f64"


PAGE = pathlib.Path(__file__).parents[3] / "docs" / "how_selection_works.md"


@pytest.mark.skipif(not PAGE.exists(), reason="no docs beside the tests")
def test_the_page_does_what_it_shows(every_config_is_built):
    outcome = doctest.testfile(str(PAGE), module_relative=False)
    assert outcome.attempted > 10
    assert outcome.failed == 0
    commands = [line.split()[4:] for line in PAGE.read_text().splitlines() if line.startswith("python -m jax_moye")]
    assert len(commands) == 2
    for command in commands:
        assert main(["explain", *command]) == 0


def test_attention_has_a_line(monkeypatch, rng):
    """By a kernel; where none is, the products of the program's equations are listed."""
    use_fake_rows(monkeypatch)
    monkeypatch.setattr(ffi, "built", lambda platform: None)
    q, k, v, d_o = operands(rng)
    fun = jax_moye.optimize(gradients(FORMS["plain"], True))
    found = jax_moye.explain(fun, q, k, v, d_o, device="h200")
    assert len(found) == 0
    forward, backward = found.notes[:2]
    assert forward.startswith(
        "attention, 2 x 2 heads, 24 x 24 scores of 16, causal: once by sm90_attention_bf16_128x128x64"
    )
    assert backward.startswith("the gradients of attention, 2 x 2 heads, 24 x 24 scores of 16, causal: once by sm90_")
    masked = jax_moye.optimize(lambda q, k, v, m: jax.nn.dot_product_attention(q, k, v, mask=m, implementation="xla"))
    (line, *_) = jax_moye.explain(masked, q, k, v, jnp.ones((2, 1, 1, 24), bool), device="h200").notes
    assert line.startswith(
        "attention, 2 x 2 heads, 24 x 24 scores of 16, masked: once by sm90_attention_bf16_128x128x64"
    )
    elsewhere = jax_moye.explain(fun, q, k, v, d_o, device=80)
    assert elsewhere.notes[0].startswith("attention, 2 x 2 heads, 24 x 24 scores of 16, causal: once by the program's")
    assert sum(gemm.count for gemm in elsewhere) == 7  # the scores of both, their result, and four of the derivative
