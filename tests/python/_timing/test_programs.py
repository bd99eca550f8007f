"""Programs of products: a loop computes what single programs compute, and what XLA moves out of it is found."""

from __future__ import annotations

import re

import jax.numpy as jnp
import pytest
from python.workloads import five_sets

from jax_moye._timing import programs
from jax_moye._timing.correctness import same_bits
from jax_moye._timing.operands import OperandSets
from jax_moye._timing.programs import accepted, compile_all, loop_contender, program_contender

pytestmark = pytest.mark.usefixtures("x64")


def sets(count: int, repeats: int = 0) -> OperandSets:
    return OperandSets(tuple(of[:count] for of in five_sets().arrays), count, repeats)


def test_a_loop_computes_every_set():
    loop = loop_contender("xla", jnp.matmul, five_sets(repeats=3))
    plain = program_contender("xla", jnp.matmul, five_sets())
    assert not compile_all([loop], lambda name: False)  # whose products were in the loop
    for _ in range(2):  # the second run writes over what the first one made
        for x, y in zip(loop.run(0), plain.run(0), strict=True):
            assert same_bits(x, y)
    assert (loop.programs, loop.products) == (1, 5 * 3)
    assert loop.method == "loop of 3 rounds"


def test_programs_share_the_sets():
    contender = program_contender("xla", jnp.matmul, five_sets(group=2))
    assert (contender.programs, contender.products, contender.method) == (3, 5, "program")
    assert [len(contender.run(i)) for i in range(3)] == [2, 2, 1]
    contender.wait()
    whole = program_contender("xla", jnp.matmul, five_sets()).run(0)
    assert same_bits(contender.run(1)[0], whole[2])


def test_the_products_stay_in_the_loop(monkeypatch):
    seen = []
    is_hoisted = programs.is_hoisted
    monkeypatch.setattr(programs, "is_hoisted", lambda *given: seen.append(given) or is_hoisted(*given))
    assert not compile_all([loop_contender("xla", jnp.matmul, sets(4, 3))], lambda name: False)
    ((text, products),) = seen
    assert products == 4
    before_entry = text[: text.index("\nENTRY")]
    assert " while(" in text
    assert len(re.findall(r" (?:dot|custom-call)\(", before_entry)) >= 4


def test_is_hoisted(monkeypatch):
    body = "HloModule m\n%body {\n" + "  %d = bf16[4,4] dot(%a, %b)\n" * 3 + "}\n"
    entry = "\nENTRY %main {\n  %w = (s32[]) while(%t), body=%body\n}\n"
    outside = entry.replace(
        "}", '  %c = bf16[4,4] custom-call(%a, %b), custom_call_target="__cublas$lt$matmul"\n' * 3 + "}"
    )
    assert not programs.is_hoisted(body + entry, 3)
    assert programs.is_hoisted(body + outside, 3)
    monkeypatch.setattr(programs, "is_hoisted", lambda program, products: True)
    errors = compile_all([loop_contender("xla", jnp.matmul, sets(2, 2))], lambda name: False)
    assert isinstance(errors["xla"], programs.HoistedError)


def test_what_does_not_compile_is_named():
    def wrong(a, b):
        raise ValueError("no such product")

    good = program_contender("good", jnp.matmul, sets(2))
    bad = program_contender("bad", wrong, sets(2))
    option = program_contender("option", jnp.matmul, sets(2), {"xla_no_such_option": 1})
    errors = compile_all([bad, good, option], lambda name: name == "good")
    assert errors.keys() == {"bad", "option"}
    assert "no such product" in str(errors["bad"])
    assert "xla_no_such_option" in str(errors["option"])


def test_options_that_xla_does_not_know():
    assert accepted({"xla_gpu_enable_triton_gemm": False}) is not None
    assert accepted({"xla_no_such_option": False}) is None
    assert programs.quick_options() in ({"xla_gpu_autotune_level": 0}, None)
