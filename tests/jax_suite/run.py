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
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import io
import json
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

# Tests that look in a program for an equation called dot_general, or for its parameters, and how they fail where its
# name is another, which says nothing about what it computes: counted apart.
INTROSPECTIVE = {
    "testMixedPrecisionDot": "jax_moye_contract] not found in",
    "testMatmulBothSize1BatchDimsSqueezedJaxpr": "not enough values to unpack (expected 1, got 0)",
    "test_einsum_mixed_precision": "jax_moye_contract] not found in",
    "test_preferred_element_type": "KeyError: 'preferred_element_type'",
}


@dataclasses.dataclass
class Outcome:
    """Of one file: a pytest plugin that counts.

    Attributes:
      passed: tests.
      skipped: tests.
      introspective: failures of the tests that look for JAX's equation.
      failed: the others' names and last lines.
    """

    passed: int = 0
    skipped: int = 0
    introspective: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    failed: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped:
            self.skipped += 1
        elif report.failed:
            name = report.nodeid.rsplit("::", 1)[-1]
            lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            failure = (name, lines[0][2:].strip()[:200] if lines else "")
            looked = any(name.startswith(test) and line in failure[1] for test, line in INTROSPECTIVE.items())
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


def main() -> int:
    """Runs the tests, prints the rows, returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=pathlib.Path, help="the folder tests/ of a checkout of jax")
    parser.add_argument("--replace", choices=["nothing", "functions", "intercept"], default="functions")
    parser.add_argument("--cases", type=int, default=10, help="samples that JAX draws of each parametrized test")
    parser.add_argument("--files", nargs="*", default=list(SELECTION), help="of these only")
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

    stack, taken = contextlib.ExitStack(), None
    if args.replace == "nothing":
        replace({name: counted(name, getattr(lax, name)) for name in ("dot_general", "ragged_dot_general")})
    else:
        import jax_moye

        if args.replace == "functions":
            names = ("dot_general", "ragged_dot", "ragged_dot_general", "matmul", "einsum")
            replace({name: counted(name, getattr(jax_moye, name)) for name in names})
        else:
            taken = stack.enter_context(jax_moye.intercept())

    outcomes: dict[str, Outcome] = {}
    with stack:
        for file in args.files:
            outcome = outcomes[file] = Outcome()
            chosen = SELECTION[file] if args.only is None else args.only
            # Not this repository's settings of pytest: JAX's tests are run as they are.
            options = ["-c", os.devnull, "--rootdir", str(args.tests), "-q", "-W", "ignore", "--tb=short"]
            options += ["-p", "no:cacheprovider", "-p", "no:xdist", *(["-k", chosen] if chosen else [])]
            count = calls.total if taken is None else lambda: taken.calls
            start, before = time.perf_counter(), count()
            with contextlib.redirect_stdout(sys.stdout if args.verbose else io.StringIO()):
                pytest.main([*options, str(args.tests / file)], plugins=[outcome])
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
