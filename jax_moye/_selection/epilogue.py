"""What a kernel makes of the sums before it writes them: its description, its dtypes, and its operands' strides."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_moye._selection.problem import BATCH_MODES, BatchMode, GemmProblem, NotServedError

# The kernels' names of what they apply (cuda/gemm/config.h), and what that is.
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda z: z,
    "relu": jax.nn.relu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}
# Not an activation of z, but z times the derivative of one at c.
DERIVATIVES = {f"d_{name}": name for name in ACTIVATIONS if name != "none"}
EPILOGUE_OPERANDS = ("c", "bias", "residual")
# Factors of the product, f32 whatever the others are: of dimensions of lhs and of rhs, which the other has not.
SCALES = ("lhs_scale", "rhs_scale")
# Another right-hand operand, which lies as the first one does; its product is the factor of activation(z). It has no
# labels of the output, and no other operand beside it.
SECOND_B = "second_b"
# Another array beside c, where the activation is a derivative: a factor of the result, which is one of two then. The
# other is the product times the activation itself, at c. It lies as the result does.
MULTIPLIER = "multiplier"


@dataclasses.dataclass(frozen=True)
class OwnActivation:
    """A function of the caller's, which a kernel is compiled with (_primitives/elementwise.py).

    Attributes:
      function: of an array, element by element. Derivatives are JAX's of it.
      body: the same of one float x, in C++.
    """

    function: Callable[[Any], Any]
    body: str = dataclasses.field(repr=False)

    def __call__(self, z: Any) -> Any:
        """Applies it; the result has z's dtype."""
        return self.function(z).astype(z.dtype)

    @property
    def __name__(self) -> str:
        """Of the function."""
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclasses.dataclass(frozen=True)
class Epilogue:
    """What becomes of the sums.

    Attributes:
      activation: a key of ACTIVATIONS, or of DERIVATIVES, with c alone, which is not added then; or a function of the
        caller's.
      alpha: factor of the product.
      beta: factor of c.
      operands: (name, labels) of the operands behind x and w, the names in the order of EPILOGUE_OPERANDS, then of
        SCALES. Labels are of the output; an operand is broadcast along those it lacks. Or SECOND_B alone, with w's
        labels. Or c and MULTIPLIER, with all labels of the output.
      keeps: what the activation is applied to is a result, too, and so is the product of SECOND_B; or the other result
        of MULTIPLIER is.
      halves: w and SECOND_B are the halves of one array, of which the program has one product, and so has XLA.
      is_summed: of a derivative: somebody sums the result's columns, as a bias's gradient is, and XLA does that in the
        kernel that multiplies by the derivative. No kernel of ours does.
    """

    activation: str | OwnActivation = "none"
    alpha: float = 1.0
    beta: float = 0.0
    operands: tuple[tuple[str, str], ...] = ()
    keeps: bool = False
    halves: bool = False
    is_summed: bool = False

    @property
    def is_nothing(self) -> bool:
        """Whether the sums stay what they are."""
        return self.activation == "none" and self.alpha == 1 and not self.operands

    @property
    def own(self) -> OwnActivation | None:
        """The activation, where it is a function of the caller's."""
        return self.activation if isinstance(self.activation, OwnActivation) else None

    @property
    def function(self) -> Callable[[Any], Any]:
        """The activation."""
        return self.activation if isinstance(self.activation, OwnActivation) else ACTIVATIONS[self.activation]

    @property
    def name(self) -> str:
        """Of the activation, for people."""
        return self.activation.__name__ if isinstance(self.activation, OwnActivation) else self.activation

    @property
    def timed_as(self) -> str:
        """The activation of the table with which kernels are timed: nobody times those of a function before it is.

        silu costs an exponential and a division: about what most functions do.
        """
        return "silu" if isinstance(self.activation, OwnActivation) else self.activation

    @property
    def is_of_pair(self) -> bool:
        """Whether there are two right-hand operands."""
        return any(name == SECOND_B for name, _ in self.operands)

    @property
    def is_derivative(self) -> bool:
        """Whether the product is multiplied by a derivative at c."""
        return self.activation in DERIVATIVES

    @property
    def is_of_gate(self) -> bool:
        """Whether there are two results, the cotangents of a layer with a gate."""
        return any(name == MULTIPLIER for name, _ in self.operands)

    @property
    def is_scaled(self) -> bool:
        """Whether the product is multiplied by scales."""
        return any(name in SCALES for name, _ in self.operands)

    def factor(self, name: str) -> float:
        """Of an operand."""
        return self.beta if name == "c" else 1.0


def stored_dtype(out_dtype: Any) -> Any:
    """The dtype of z, and that in which c, bias and residual are read: y's, but for 8 bits and small integers."""
    out_dtype = jnp.dtype(out_dtype)
    if jnp.issubdtype(out_dtype, jnp.floating) and out_dtype.itemsize == 1:
        return jnp.dtype("float32")
    if jnp.issubdtype(out_dtype, jnp.integer) and out_dtype.itemsize < 4:
        return jnp.dtype("int32")
    return out_dtype


def compute_dtype(operand_dtype: Any, out_dtype: Any) -> Any:
    """The dtype in which the epilogue computes: what the kernels have their sums in."""
    out_dtype = jnp.dtype(out_dtype)
    if not jnp.issubdtype(out_dtype, jnp.floating):
        return stored_dtype(out_dtype)
    return jnp.dtype("float64" if "float64" in (jnp.dtype(operand_dtype).name, out_dtype.name) else "float32")


def _row_major(labels_: str, sizes: dict[str, int]) -> dict[str, int]:
    strides, stride = {}, 1
    for label in reversed(labels_):
        strides[label] = stride
        stride *= sizes[label]
    return strides


def _mode_labels(size: int, stride: int, of_out: dict[str, int], sizes: dict[str, int]) -> list[str]:
    """The output's dimensions that a kernel sees as one mode, the outermost first."""
    return [
        label
        for label, of_label in of_out.items()
        if size > 1 and sizes[label] > 1 and stride <= of_label < stride * size
    ][::-1]


def _mode_stride(mode: Sequence[str], of_out: dict[str, int], of_operand: dict[str, int]) -> int | None:
    """The operand's stride along a mode; None if its dimensions there do not merge into one."""
    if not mode:
        return 0
    inner = mode[-1]
    stride = of_operand.get(inner, 0)
    merges = all(of_operand.get(label, 0) * of_out[inner] == stride * of_out[label] for label in mode)
    return stride if merges else None


def _is_along(problem: GemmProblem, name: str, strides: Sequence[int | None]) -> bool:
    """Whether an operand lies as its name says.

    Scales of lhs move along its rows alone, those of rhs along columns, and a multiplier as the result does.
    """
    if name == MULTIPLIER:
        in_order = zip(problem.sizes[:-1], strides, problem.strides["d"], strict=True)
        return all(size == 1 or stride == of_d for size, stride, of_d in in_order)
    if name not in SCALES:
        return True
    of_rows = (name == "lhs_scale") != problem.swapped
    return strides[-1 if of_rows else -2] == 0


def _splits(problem: GemmProblem, modes: Sequence[Sequence[str]], of_out: dict[str, int]) -> list[GemmProblem]:
    """The same problem with the outer dimensions of its m, or n, as one more mode of the batch, if it has room."""
    outer = problem.outer
    if problem.batch != 1:
        last = problem.a_strides[0], problem.b_strides[0], problem.d_strides[0]
        outer = (*outer, BatchMode(problem.batch_sizes[-1], *last))
    if len(outer) == BATCH_MODES:
        return []
    splits = []
    (_, a_m, a_k), (_, b_n, b_k), (_, d_m, d_n) = problem.a_strides, problem.b_strides, problem.d_strides
    *_, of_m, of_n = modes
    for i in range(1, len(of_m)):
        inner = of_out[of_m[i - 1]] // d_m
        a, b, d = (inner * a_m, a_m, a_k), (0, b_n, b_k), (inner * d_m, d_m, d_n)
        sizes: dict[str, Any] = {"batch": problem.batch * (problem.m // inner), "m": inner, "outer": outer}
        splits.append(dataclasses.replace(problem, **sizes, a_strides=a, b_strides=b, d_strides=d))
    for i in range(1, len(of_n)):
        inner = of_out[of_n[i - 1]] // d_n
        a, b, d = (0, a_m, a_k), (inner * b_n, b_n, b_k), (inner * d_n, d_m, d_n)
        sizes = {"batch": problem.batch * (problem.n // inner), "n": inner, "outer": outer}
        splits.append(dataclasses.replace(problem, **sizes, a_strides=a, b_strides=b, d_strides=d))
    return splits


def fit_epilogue(
    problem: GemmProblem, out_labels: str, sizes: dict[str, int], epilogue: Epilogue
) -> tuple[GemmProblem, dict[str, tuple[int, ...]]]:
    """The strides (batch modes..., m, n) along which a kernel reads the epilogue's operands.

    Args:
      problem: the contraction's.
      out_labels: the output's dimensions.
      sizes: of them.
      epilogue: whose operands are row-major arrays.

    Returns:
      The problem, which may have got a mode of its batch out of m or n, and the strides by name.

    Raises:
      NotServedError: an operand has no such strides, or integers cannot be finished so.
    """
    if problem.out_dtype == "s32" and epilogue.is_scaled:
        raise NotServedError("kernels multiply no integers by scales: the result has to be of floats")
    exact = epilogue.alpha == 1 and epilogue.beta in (0, 1) and epilogue.activation in ("none", "relu")
    if problem.out_dtype == "f64" and epilogue.own is not None:
        raise NotServedError("kernels are compiled with functions of float32 alone")
    if problem.out_dtype == "s32" and not exact:
        raise NotServedError("kernels finish integers with alpha 1, beta 0 or 1, and activation none or relu")
    of_out = _row_major(out_labels, sizes)

    def modes_of(candidate):
        in_order = zip(candidate.sizes[:-1], candidate.strides["d"], strict=True)
        return [_mode_labels(size, stride, of_out, sizes) for size, stride in in_order]

    candidates = [problem]
    for candidate in candidates:  # which grows: as many modes as are needed, as few as will do
        modes = modes_of(candidate)
        strides = {
            name: tuple(_mode_stride(mode, of_out, _row_major(labels_, sizes)) for mode in modes)
            for name, labels_ in epilogue.operands
        }
        if all(None not in one and _is_along(candidate, name, one) for name, one in strides.items()):
            return candidate, strides  # type: ignore[return-value]
        candidates += _splits(candidate, modes, of_out)
    raise NotServedError(f"no strides of a matrix broadcast {dict(epilogue.operands)} to {out_labels}")
