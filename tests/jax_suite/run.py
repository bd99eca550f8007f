"""JAX's own tests of matrix products, with jax_moye's functions in the place of JAX's.

    git clone --depth 1 --branch jax-v0.10.2 https://github.com/jax-ml/jax "$JAX_CHECKOUT"  # the installed version
    python tests/jax_suite/run.py "$JAX_CHECKOUT/tests"

The checkout stays outside of this repository. Printed is one row of docs/jax_tests.md for each file; exit status 1 if a
test failed that does not look for an equation named dot_general. Needed besides jax_moye: pytest and absl-py.

What is replaced (--replace):
  nothing     JAX's functions count their calls: which tests reach them, and that those pass without us
  functions   lax.dot_general, lax.ragged_dot, lax.ragged_dot_general, jnp.matmul and jnp.einsum by jax_moye's of the
              same names: arguments, dtypes, shapes, messages, weak types, derivatives, vmap
  intercept   `with jax_moye.intercept():` around it all: JAX's functions, our primitive below them
  optimize    what the tests give to jax.jit, to derivatives and vmap, and to their own checks is jax_moye.optimize of
              that, and so are the derivatives. A function that could not be rewritten is a failure
  traced      the same without any rewriting: what fails here fails because a program is traced before it is run
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import io
import json
import logging
import os
import pathlib
import sys
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

SELECTION = {  # file -> pytest's -k
    "lax_test.py": "testDot or dot_general_batching or RaggedTest",
    "lax_autodiff_test.py": "testDot",
    "lax_vmap_test.py": "testDot",
    "lax_numpy_test.py": (
        "testDot or testMixedPrecisionDot or testMatmul or testMatvec or testVecdot or testVecmat or testTensordot"
        " or testInner"
    ),
    "lax_numpy_einsum_test.py": "",
    "shape_poly_test.py": "ragged_dot",
    "export_test.py": "ragged_dot",
}

# Programs around products: loops, branches, checkpoints, functions with derivatives of their own, activations.
OPTIMIZED = SELECTION | {
    "lax_autodiff_test.py": "",
    "lax_control_flow_test.py": "",
    "custom_api_test.py": "",
    "nn_test.py": "",
    "api_test.py": "RematTest",
}

# Tests that look in a program for an equation called dot_general, or for its parameters, and how they fail where its
# name is another, which says nothing about what it computes: counted apart.
INTROSPECTIVE = {
    "testMixedPrecisionDot": "jax_moye_contract] not found in",
    "testMatmulBothSize1BatchDimsSqueezedJaxpr": "not enough values to unpack (expected 1, got 0)",
    "test_einsum_mixed_precision": "jax_moye_contract] not found in",
    "test_preferred_element_type": "KeyError: 'preferred_element_type'",
    "test_remat_checkpoint_dots": "AssertionError: 0 != ",  # of the equations called dot_general, the last they count
}


# Tests whose functions cannot be traced before they are run, by jit neither, or return other objects then: they fail
# with --replace traced in the same way, and are counted apart, too.
UNTRACEABLE = {
    "test_closure_with_vmap2": "UnexpectedTracerError",
    "test_nondiff_arg": "UnexpectedTracerError",
    "test_hard_stuff2": "GradTracer",
    "test_symbolic_zero_custom": "is not an instance of <class 'float'>",
    "test_platform_dependent_with_non_existent_custom_call": "Differentiation rule for",
    "testDotProductAttention": "The precision 'F16_F16_F32' is not supported",
}


@dataclasses.dataclass
class Outcome:
    """Of one file: a pytest plugin that counts.

    Attributes:
      passed: tests.
      skipped: tests.
      introspective: failures of the tests that look for JAX's equation, or cannot be traced.
      failed: the others' names and last lines.
      expected: how those of the former fail, by the first letters of their names.
    """

    passed: int = 0
    skipped: int = 0
    introspective: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    failed: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    expected: dict[str, str] = dataclasses.field(default_factory=lambda: INTROSPECTIVE)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped:
            self.skipped += 1
        elif report.failed:
            name = report.nodeid.rsplit("::", 1)[-1]
            lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            failure = (name, lines[0][2:].strip()[:200] if lines else "")
            looked = any(name.startswith(test) and line in failure[1] for test, line in self.expected.items())
            (self.introspective if looked else self.failed).append(failure)
        elif report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append((report.nodeid, str(report.longrepr).splitlines()[-1]))


def replace(names: dict[str, Any]) -> None:
    """Puts functions in the places where JAX's modules and its tests look them up.

    jax._src: jnp.matmul, lax.dot, lax.ragged_dot and lax's own rules read dot_general and ragged_dot_general in lax's
    private module, and jnp.einsum got the former as a default argument when it was defined. A run with --replace
    nothing shows whether these are still the places: its calls are counted, and none means that they are not.
    """
    import jax.numpy as jnp
    from jax import lax
    from jax._src.lax import lax as lax_internal

    if "dot_general" in names:
        lax.dot_general = lax_internal.dot_general = names["dot_general"]
        jnp.einsum.__kwdefaults__["_dot_general"] = names["dot_general"]
    for name in {"ragged_dot", "ragged_dot_general"} & set(names):
        setattr(lax, name, names[name])
        setattr(lax_internal, name, names[name])
    for name in {"matmul", "einsum"} & set(names):
        setattr(jnp, name, names[name])


def optimize_all(calls: collections.Counter[str], rewrites: bool) -> None:
    """Puts jax_moye.optimize around what tests jit, differentiate, map and check. Counts programs that it changed.

    jax._src: JAX's tests call jax.jit and its like by public names, but what they check they hand to the methods of
    JAX's private test_util.
    """
    import jax
    from jax._src import public_test_util, test_util

    import jax_moye._api.optimize as module
    from jax_moye._selection import attention

    attention.LEAST_SCORES = 0  # the tests' are small: all are looked for, and moved to where a kernel would be
    rewritten = module.rewritten

    def counted(closed: Any, parameters: Any) -> Any:
        new = rewritten(closed, parameters) if rewrites else closed
        calls["programs"] += new is not closed
        return new

    module.rewritten = counted  # type: ignore[assignment]

    def optimized(fun: Any) -> Any:
        """Of fun; fun itself where it asks for values that nobody has who traces it, as many references do."""
        whole = module.optimize(fun)

        @functools.wraps(fun)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return whole(*args, **kwargs)
            except (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError):
                return fun(*args, **kwargs)

        return wrapper

    def of_first(fun: Any, of_result: bool) -> Any:
        @functools.wraps(fun)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            by_us = sys._getframe(1).f_globals.get("__name__", "").startswith("jax_moye")
            if by_us or not args or not callable(args[0]):
                return fun(*args, **kwargs)
            result = fun(optimized(args[0]), *args[1:], **kwargs)
            return optimized(result) if of_result else result

        return wrapper

    for name in ("grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "vmap"):
        setattr(jax, name, of_first(getattr(jax, name), of_result=True))
    for name in ("jit", "checkpoint", "jvp", "vjp", "linearize"):
        setattr(jax, name, of_first(getattr(jax, name), of_result=False))
    check_grads = of_first(public_test_util.check_grads, of_result=False)
    test_util.check_grads = public_test_util.check_grads = check_grads
    for name, position in (("_CompileAndCheck", 0), ("_CheckAgainstNumpy", 1)):
        method = getattr(test_util.JaxTestCase, name)

        def checked(self: Any, *args: Any, method: Any = method, position: int = position, **kwargs: Any) -> Any:
            given = list(args)
            given[position] = optimized(given[position])
            return method(self, *given, **kwargs)

        setattr(test_util.JaxTestCase, name, checked)


class Complaints(logging.Handler):
    """What jax_moye.optimize warns of: functions that it could not rewrite."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("jax_moye.optimize"):
            self.messages.append(record.getMessage())


def main() -> int:
    """Runs the tests, prints the rows, returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=pathlib.Path, help="the folder tests/ of a checkout of jax")
    parser.add_argument(
        "--replace", choices=["nothing", "functions", "intercept", "optimize", "traced"], default="functions"
    )
    parser.add_argument("--emulated", action="store_true", help="kernels compute what they can, in the emulator")
    parser.add_argument("--cases", type=int, default=10, help="samples that JAX draws of each parametrized test")
    parser.add_argument("--files", nargs="*", help="of these only")
    parser.add_argument("--only", help="pytest's -k instead of the selection")
    parser.add_argument("--json", type=pathlib.Path, help="write all failures there")
    parser.add_argument("--verbose", action="store_true", help="show what pytest prints")
    args = parser.parse_args()

    os.environ["JAX_NUM_GENERATED_CASES"] = str(args.cases)  # read when JAX's test utilities are imported
    import jax
    import pytest
    from jax import lax

    calls: collections.Counter[str] = collections.Counter()

    def counted(name: str, fun: Any) -> Any:
        @functools.wraps(fun)
        def wrapper(*operands: Any, **options: Any) -> Any:
            calls[name] += 1
            return fun(*operands, **options)

        return wrapper

    stack, taken, complaints = contextlib.ExitStack(), None, Complaints()
    is_of_programs = args.replace in ("optimize", "traced")
    selection, expected = (OPTIMIZED, UNTRACEABLE | INTROSPECTIVE) if is_of_programs else (SELECTION, INTROSPECTIVE)
    if args.replace == "nothing":
        replace({name: counted(name, getattr(lax, name)) for name in ("dot_general", "ragged_dot_general")})
    else:
        import jax_moye

        if args.replace == "functions":
            names = ("dot_general", "ragged_dot", "ragged_dot_general", "matmul", "einsum")
            replace({name: counted(name, getattr(jax_moye, name)) for name in names})
        elif is_of_programs:
            optimize_all(calls, rewrites=args.replace == "optimize")
            logging.getLogger("jax_moye").addHandler(complaints)
        else:
            taken = stack.enter_context(jax_moye.intercept())

    if args.emulated:
        stack.enter_context(jax_moye.options(interpret=True))
    outcomes: dict[str, Outcome] = {}
    with stack:
        for file in args.files or selection:
            outcome = outcomes[file] = Outcome(expected=expected)
            chosen = selection[file] if args.only is None else args.only
            # Not this repository's settings of pytest: JAX's tests are run as they are.
            options = ["-c", os.devnull, "--rootdir", str(args.tests), "-q", "-W", "ignore", "--tb=short"]
            options += ["-p", "no:cacheprovider", "-p", "no:xdist", *(["-k", chosen] if chosen else [])]
            count = calls.total if taken is None else lambda: taken.calls
            start, before = time.perf_counter(), count()
            with contextlib.redirect_stdout(sys.stdout if args.verbose else io.StringIO()):
                pytest.main([*options, str(args.tests / file)], plugins=[outcome])
            outcome.failed += [("optimize", message) for message in complaints.messages]
            complaints.messages.clear()
            print(
                f"| {jax.__version__} | {args.replace} | {file} | {outcome.passed} | {len(outcome.failed)} | "
                f"{len(outcome.introspective)} | {outcome.skipped} |",
                f"  {count() - before} calls, {time.perf_counter() - start:.0f} s",
                flush=True,
            )
            for name, line in outcome.failed:
                print(f"    {name}: {line}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps({file: dataclasses.asdict(o) for file, o in outcomes.items()}, indent=1))
    return 1 if any(outcome.failed or not outcome.passed for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
