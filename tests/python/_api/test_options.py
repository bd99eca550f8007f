"""jax_moye.options: a block's options reach every product in it, are part of jit's key and end with the block."""

import copy
import functools
import pathlib
import pickle
import threading

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import TARGET, lowered_text

import jax_moye
from jax_moye import InterpretParams
from jax_moye._api.options import Options, resolve
from jax_moye._kernels import ffi
from jax_moye._selection.decide import why_not_xla
from jax_moye._selection.precision import SERVED_PRESETS
from jax_moye._selection.request import Request

A = jnp.ones((5, 8), jnp.bfloat16)
B = jnp.ones((8, 3), jnp.bfloat16)


def product_parameters(jaxpr) -> list[dict]:
    """The parameters of all contractions of a jaxpr, those of inner ones included."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("jax_moye_contract", "jax_moye_fused"):
            found.append(equation.params)
        for value in equation.params.values():
            if isinstance(value, (jax.extend.core.Jaxpr, jax.extend.core.ClosedJaxpr)):
                found += product_parameters(getattr(value, "jaxpr", value))
    return found


def options_of(fun, *args) -> list[Options]:
    """What the products of `fun` were asked to promise."""
    names = [field for field in Options.__dataclass_fields__]
    return [
        Options(**{name: params[name] for name in names})
        for params in product_parameters(jax.make_jaxpr(fun)(*args).jaxpr)
    ]


def runs_in_the_emulator(fun, *args) -> bool:
    return TARGET in lowered_text(fun, *args, platform="cpu")


# -------------------------------------------------------------------------------------------------------------- blocks


def test_a_block_changes_the_products_in_it():
    assert options_of(jax_moye.matmul, A, B) == [Options()]
    with jax_moye.options(interpret=True, deterministic=True):
        assert options_of(jax_moye.matmul, A, B) == [Options(deterministic=True, interpret=InterpretParams())]
        with jax_moye.options(batch_invariant=True, interpret=InterpretParams(mode="eager")):
            inner = Options(deterministic=True, batch_invariant=True, interpret=InterpretParams(mode="eager"))
            assert options_of(jax_moye.matmul, A, B) == [inner]
            with jax_moye.options(deterministic=False, interpret=None):
                assert options_of(jax_moye.matmul, A, B) == [Options(batch_invariant=True)]
            assert options_of(jax_moye.matmul, A, B) == [inner]
        assert options_of(jax_moye.matmul, A, B) == [Options(deterministic=True, interpret=InterpretParams())]
    assert options_of(jax_moye.matmul, A, B) == [Options()]


def test_a_block_that_raises_ends():
    with pytest.raises(KeyError), jax_moye.options(deterministic=True):
        raise KeyError
    assert resolve("f") == Options()


def test_a_jitted_function_has_a_program_for_each():
    traced = []

    @jax.jit
    def fun(a, b):
        traced.append(resolve("fun"))
        return jax_moye.matmul(a, b)

    for _ in range(2):
        assert not runs_in_the_emulator(lambda a, b: fun(a, b), A, B)
        with jax_moye.options(interpret=True):
            assert runs_in_the_emulator(lambda a, b: fun(a, b), A, B)
            np.testing.assert_array_equal(fun(A, B), np.full((5, 3), 8))
        np.testing.assert_array_equal(fun(A, B), np.full((5, 3), 8))
    assert len(traced) == 2
    assert {options.interpret for options in traced} == {None, InterpretParams()}


def test_inside_of_a_jitted_function():
    @jax.jit
    def fun(a, b):
        with jax_moye.options(interpret=True):
            inside = jax_moye.matmul(a, b)
        return inside + jax_moye.matmul(a, b)

    assert [options.interpret for options in options_of(fun, A, B)] == [InterpretParams(), None]


def test_a_block_can_be_entered_again_and_decorates():
    emulated = jax_moye.options(interpret=True)
    with emulated, emulated:
        assert resolve("f").interpret == InterpretParams()
    with emulated:
        assert resolve("f").interpret == InterpretParams()
    assert resolve("f").interpret is None

    @emulated
    def fun(a, b):
        """Multiplies."""
        return jax_moye.matmul(a, b)

    assert runs_in_the_emulator(fun, A, B)
    assert (fun.__name__, fun.__doc__) == ("fun", "Multiplies.")
    assert resolve("f").interpret is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_block_is_copied_with_what_holds_it(copied):
    block = jax_moye.options(interpret=True, batch_invariant=True)
    with block:
        (again,) = copied((block,))
        with pytest.raises(RuntimeError, match="it alone can leave it"):
            copied(block).__exit__(None, None, None)  # nobody has entered it
    with again:
        assert resolve("matmul") == Options(batch_invariant=True, interpret=InterpretParams())


def test_what_runs_after_the_block_has_ended_is_not_decorated():
    """The body of a generator or a coroutine would have other options than it says, without a word."""

    def generator():
        yield

    async def coroutine():
        pass

    async def both():
        yield

    for fun in (generator, coroutine, both):
        with pytest.raises(TypeError, match=rf"options: .*{fun.__name__} is a generator or a coroutine.*with"):
            jax_moye.options(deterministic=True)(fun)


def test_a_block_is_its_threads():
    block = jax_moye.options(deterministic=True)
    seen = []

    def other():
        seen.append(resolve("f"))
        with block:
            seen.append(resolve("f"))

    with block:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert resolve("f") == Options(deterministic=True)
    assert seen == [Options(), Options(deterministic=True)]


# ------------------------------------------------------------------------------------------------ arguments and blocks


def test_arguments_come_before_the_block():
    with jax_moye.options(interpret=True, deterministic=True, batch_invariant=True):
        changes = dict(interpret=False, deterministic=False, batch_invariant=False)
        assert resolve("f", **changes) == Options()
        assert options_of(functools.partial(jax_moye.matmul, **changes), A, B) == [Options()]
        assert resolve("f", implementation="moye").interpret == InterpretParams()
    with jax_moye.options(interpret=True):
        assert resolve("f", implementation="xla") == Options(implementation="xla")
    with jax_moye.options(implementation="xla"):
        assert resolve("f", interpret=True) == Options(interpret=InterpretParams())
        assert resolve("f", config="any") == Options()
        assert resolve("f", batch_invariant=True) == Options(batch_invariant=True)
        assert resolve("f", implementation="moye") == Options(implementation="moye")
        with jax_moye.options(implementation=None):
            assert resolve("f") == Options()


def test_derivatives_keep_what_their_product_was_made_with():
    with jax_moye.options(interpret=True, deterministic=True):
        out, vjp = jax.vjp(jax_moye.matmul, A, B)
        linearized = jax.linearize(jax_moye.matmul, A, B)[1]
    expected = Options(deterministic=True, interpret=InterpretParams())
    assert options_of(vjp, out) == [expected] * 2
    assert options_of(linearized, A, B) == [expected] * 2

    @jax.grad
    @jax_moye.options(batch_invariant=True, interpret=True)
    def loss(a, b):
        return jax_moye.matmul(a, b, preferred_element_type=jnp.float32).sum()

    assert {options.batch_invariant for options in options_of(jax.jacfwd(loss), A, B)} == {True}


@pytest.mark.parametrize(
    "function",
    [
        jax_moye.matmul,
        functools.partial(jax_moye.dot_general, dimension_numbers=(((1,), (0,)), ((), ()))),
        functools.partial(jax_moye.einsum, "mk,kn->mn"),
        jax_moye.linear,
    ],
    ids=["matmul", "dot_general", "einsum", "linear"],
)
def test_every_function_obeys(function):
    assert options_of(function, A, B) == [Options()]
    with jax_moye.options(deterministic=True, batch_invariant=True, interpret=True):
        assert options_of(function, A, B) == [Options(True, True, None, InterpretParams())]


DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "precision.md"


@pytest.mark.skipif(not DOCUMENT.exists(), reason="no docs beside the tests")
def test_the_document():
    """Its example runs, and it names every preset of JAX that a kernel of ours serves."""
    text = DOCUMENT.read_text()
    names: dict = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    np.testing.assert_array_equal(names["y"], np.full((8, 32), 64))
    assert options_of(names["g"], A, B) == [Options(deterministic=True)]
    for preset in SERVED_PRESETS:
        shortened = {"BF16_BF16_F32_X3": "_X3", "BF16_BF16_F32_X6": "_X6", "BF16_BF16_F32_X9": "_X9"}
        names_of_preset = {f"`{name}`" for name in (preset, shortened.get(preset, preset))}
        assert any(name in text for name in names_of_preset) or preset == "DEFAULT", preset


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (dict(deterministic=1), TypeError, "deterministic is a bool, not 1"),
        (dict(batch_invariant="yes"), TypeError, "batch_invariant is a bool, not 'yes'"),
        (dict(implementation="cublas"), ValueError, "implementation is None, 'moye' or 'xla', not 'cublas'"),
        (dict(interpret="lazy"), TypeError, "interpret is None, a bool or a jax_moye.InterpretParams"),
        (dict(interpret=True, implementation="xla"), ValueError, "config and interpret are about our kernels"),
        (dict(batch_invariant=True, implementation="xla"), ValueError, "contradict each other: how XLA sums"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_at_once(changes, error, message):
    with pytest.raises(error, match=message):
        jax_moye.options(**changes)
    with pytest.raises(error, match=message):
        jax_moye.matmul(A, B, **changes)


def test_a_contract_does_not_give_way():
    with jax_moye.options(batch_invariant=True):
        with pytest.raises(ValueError, match="matmul: implementation='xla' and batch_invariant=True contradict"):
            jax_moye.matmul(A, B, implementation="xla")
        with pytest.raises(ValueError, match="options: implementation='xla' and batch_invariant=True contradict"):
            jax_moye.options(implementation="xla").__enter__()
    assert resolve("f") == Options()


def test_options_are_not_traced():
    with pytest.raises(TypeError, match="options: deterministic is part of the program"):
        jax.jit(lambda flag: jax_moye.options(deterministic=flag))(True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'precision'"):
        jax_moye.options(precision="high")


# ---------------------------------------------------------------------------------------------------- what XLA promises


def request(**changes):
    fields = dict(
        spec="mk,kn->mn",
        out_dtype=jnp.dtype("bfloat16"),
        precision=None,
        config=None,
        implementation=None,
        interpret=None,
    )
    return Request(**(fields | changes))


@pytest.mark.parametrize(
    ("flags", "promises"),
    [
        ("", False),
        ("--xla_gpu_deterministic_ops=true", True),
        ("--xla_dump_to=/tmp --xla_gpu_exclude_nondeterministic_ops=1", True),
        ("--xla_gpu_deterministic_ops", True),
        ("--xla_gpu_deterministic_ops=false", False),
        ("--xla_gpu_deterministic_ops=true --xla_gpu_deterministic_ops=false", False),
        ("--xla_gpu_deterministic_ops_not=true", False),
    ],
)
def test_xla_is_deterministic_if_its_flags_say_so(monkeypatch, flags, promises):
    monkeypatch.setenv("XLA_FLAGS", flags)
    reason = why_not_xla("cuda", request(deterministic=True))
    assert (reason is None) == promises
    assert promises or "--xla_gpu_deterministic_ops=true" in reason
    assert why_not_xla("cpu", request(deterministic=True)) is None
    assert why_not_xla("cuda", request()) is None
    assert "number of rows" in why_not_xla("cpu", request(batch_invariant=True))


@pytest.fixture
def kernels_are_there(monkeypatch):
    """As on a machine whose jax_moye was built with nvcc."""
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: None)
    monkeypatch.setattr(ffi, "register", lambda platform: None)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    jax.clear_caches()


def test_deterministic_prefers_our_kernels(kernels_are_there):
    f32 = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    bf16 = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    for operands, precision in (((f32, f32), ("default", "highest")), ((bf16, f32), "highest")):
        fun = functools.partial(jax_moye.matmul, precision=precision)
        assert TARGET not in lowered_text(fun, *operands)
        with jax_moye.options(deterministic=True):
            assert TARGET in lowered_text(fun, *operands)


def test_deterministic_is_an_error_where_xla_would_compute(kernels_are_there, monkeypatch):
    complex64 = jax.ShapeDtypeStruct((4, 4), jnp.complex64)
    fun = functools.partial(jax_moye.matmul, deterministic=True)
    with pytest.raises(NotImplementedError, match=r"on cuda XLA promises the same bits .* only with"):
        lowered_text(fun, complex64, complex64)
    with pytest.raises(NotImplementedError, match="deterministic=True: on cuda"):
        lowered_text(functools.partial(fun, implementation="xla"), A, B)
    assert "dot_general" in lowered_text(fun, complex64, complex64, platform="cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
    assert "dot_general" in lowered_text(fun, complex64, complex64)
    assert "dot_general" in lowered_text(functools.partial(fun, implementation="xla"), A, B)


def test_a_partitioned_program_is_held_to_the_contracts(kernels_are_there):
    mesh = jax.sharding.AbstractMesh((2,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    a = jax.ShapeDtypeStruct((64, 64), jnp.complex64, sharding=sharding)
    b = jax.ShapeDtypeStruct((64, 64), jnp.complex64)
    for contract in ("deterministic", "batch_invariant"):
        fun = functools.partial(jax_moye.matmul, **{contract: True})
        with pytest.raises(NotImplementedError, match=f"{contract}=True"):
            lowered_text(fun, a, b)


def test_another_thread_cannot_leave_the_block():
    """As one does that closes a generator: it is told, and the block goes on for the thread that entered it."""
    block, errors = jax_moye.options(deterministic=True), []

    def leave():
        with pytest.raises(RuntimeError, match="another thread entered this block, and it alone can leave it"):
            block.__exit__(None, None, None)
        errors.append(None)

    with block:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        assert errors == [None]
        assert resolve("matmul").deterministic
    assert not resolve("matmul").deterministic
