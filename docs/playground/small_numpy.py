"""The part of NumPy that counting accesses needs, on lists: the registry that has Pyodide has no NumPy for it.

The playground mounts this file as `numpy`. An array has its elements in one list, the last axis first, and nothing of
it is a view. What is not here raises; nothing gives another answer than NumPy.
"""

from __future__ import annotations

import itertools
import math
import operator

int64 = int
bool_ = bool
newaxis = None


class ndarray:  # noqa: N801  NumPy's name
    """An array: a list and a shape."""

    __array_priority__ = 1

    def __init__(self, flat, shape):
        """Elements in C's order."""
        self._flat, self.shape = list(flat), tuple(shape)
        if len(self._flat) != math.prod(self.shape):
            raise ValueError(f"{len(self._flat)} elements for shape {self.shape}")

    # ---- Facts

    @property
    def size(self):
        """Number of elements."""
        return len(self._flat)

    @property
    def ndim(self):
        """Number of axes."""
        return len(self.shape)

    def __len__(self):
        """Extent of the first axis."""
        return self.shape[0]

    def __iter__(self):
        """Along the first axis."""
        return (self[i] for i in range(len(self)))

    def __bool__(self):
        """Of one element."""
        if self.size != 1:
            raise ValueError("the truth value of an array with more than one element is ambiguous")
        return bool(self._flat[0])

    def tolist(self):
        """Nested lists."""
        flat = self._flat
        for n in reversed(self.shape[1:]):
            flat = [flat[i : i + n] for i in range(0, len(flat), n)] if n else [[] for _ in range(self.shape[0])]
        return list(flat) if self.ndim else flat[0]

    # ---- Shape

    def reshape(self, *shape, order="C"):
        """Another shape; order "F" counts the first axis fastest, before and after."""
        shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if -1 in shape:
            rest = math.prod(n for n in shape if n != -1)
            shape = tuple(self.size // rest if n == -1 else n for n in shape)
        if order == "F":
            turned = ndarray(self.transpose()._flat, shape[::-1])
            return turned.transpose()
        return ndarray(self._flat, shape)

    def transpose(self, *axes):
        """Axes in another order; without any, reversed."""
        axes = axes or tuple(reversed(range(self.ndim)))
        strides = _strides(self.shape)
        places = _places(tuple(self.shape[a] for a in axes), tuple(strides[a] for a in axes))
        return ndarray((self._flat[p] for p in places), tuple(self.shape[a] for a in axes))

    def astype(self, kind):
        """Elements as `int` or `bool`."""
        return ndarray(map(kind, self._flat), self.shape)

    # ---- Elements

    def _select(self, key):
        """Places in the list and the shape of what a key selects."""
        key = key if isinstance(key, tuple) else (key,)
        if any(isinstance(k, ndarray) for k in key):
            return self._select_arrays(key)
        if Ellipsis in key:
            at = key.index(Ellipsis)
            absent = self.ndim - sum(k is not None for k in key) + 1
            key = (*key[:at], *[slice(None)] * absent, *key[at + 1 :])
        places, shape, axis, strides = [0], [], 0, _strides(self.shape)
        for k in key + (slice(None),) * (self.ndim - sum(x is not None for x in key)):
            if k is None:
                shape.append(1)
                continue
            n, step = self.shape[axis], strides[axis]
            if isinstance(k, slice):
                chosen = range(n)[k]
                shape.append(len(chosen))
            else:
                chosen = (range(n)[operator.index(k)],)
            places = [p + i * step for p in places for i in chosen]
            axis += 1
        return places, tuple(shape)

    def _select_arrays(self, key):
        first = key[0]
        if len(key) == 1 and first.shape == self.shape and all(isinstance(x, bool) for x in first._flat):
            places = [i for i, x in enumerate(first._flat) if x]
            return places, (len(places),)
        if not all(isinstance(k, ndarray) and k.shape == first.shape for k in key):
            raise TypeError("indices are integers and slices, a mask, or arrays of one shape")
        strides, rest = _strides(self.shape), self.shape[len(key) :]
        inner = _places(rest, strides[len(key) :])
        starts = (
            sum(range(n)[i] * d for i, n, d in zip(index, self.shape, strides, strict=False))
            for index in zip(*(k._flat for k in key), strict=True)
        )
        return [start + i for start in starts for i in inner], (*first.shape, *rest)

    def __getitem__(self, key):
        """An element, or a copy of what the key selects."""
        places, shape = self._select(key)
        return ndarray((self._flat[p] for p in places), shape) if shape else self._flat[places[0]]

    def __setitem__(self, key, value):
        """Sets what the key selects."""
        places, shape = self._select(key)
        for place, x in zip(places, _flat_as(value, shape), strict=True):
            self._flat[place] = x

    # ---- Arithmetic

    def _with(self, other, function):
        if not isinstance(other, ndarray):
            return ndarray((function(x, other) for x in self._flat), self.shape)
        shape = self.shape if self.shape == other.shape else _broadcast(self.shape, other.shape)
        return ndarray(map(function, _flat_as(self, shape), _flat_as(other, shape)), shape)

    def __neg__(self):
        """-x."""
        return ndarray((-x for x in self._flat), self.shape)

    def __invert__(self):
        """Not, of a mask."""
        return ndarray((not x if isinstance(x, bool) else ~x for x in self._flat), self.shape)

    __hash__ = None

    # ---- Reductions

    def _along(self, axis, function):
        if axis is None:
            return function(self._flat)
        axis = range(self.ndim)[axis]
        n, inner = self.shape[axis], math.prod(self.shape[axis + 1 :])
        outer = math.prod(self.shape[:axis])
        flat = (
            function(self._flat[o * n * inner + i : (o + 1) * n * inner : inner])
            for o in range(outer)
            for i in range(inner)
        )
        return ndarray(flat, self.shape[:axis] + self.shape[axis + 1 :])

    def any(self, axis=None):
        """Whether any is true."""
        return self._along(axis, any)

    def sum(self, axis=None):
        """The sum."""
        return self._along(axis, sum)

    def max(self, axis=None, initial=None):
        """The largest."""
        return self._along(axis, lambda x: max(x if initial is None else [initial, *x]))

    def min(self, axis=None):
        """The smallest."""
        return self._along(axis, min)

    def argmax(self):
        """Where the first of the largest is, in the list."""
        return self._flat.index(max(self._flat))


def _operators():
    compare = ("eq", "ne", "lt", "le", "gt", "ge")
    for name in ("add", "sub", "mul", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift", *compare):
        function = getattr(operator, name)
        short = name.strip("_")
        setattr(ndarray, f"__{short}__", lambda self, other, f=function: self._with(other, f))
        if name not in compare:
            reflected = lambda self, other, f=function: self._with(other, lambda x, y: f(y, x))  # noqa: E731
            setattr(ndarray, f"__r{short}__", reflected)


_operators()


def _strides(shape):
    return tuple(itertools.accumulate(reversed(shape[1:]), operator.mul, initial=1))[::-1] if shape else ()


def _places(shape, strides):
    places = [0]
    for n, step in zip(shape, strides, strict=True):
        places = [p + i * step for p in places for i in range(n)]
    return places


def _broadcast(*shapes):
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    out = tuple(next((n for n in extents if n != 1), 1) for extents in zip(*padded, strict=True))
    if any(n not in (1, m) for shape in padded for n, m in zip(shape, out, strict=True)):
        raise ValueError(f"shapes {shapes} do not fit together")
    return out


def _flat_as(x, shape):
    """The elements of a number or an array as those of a larger shape."""
    if not isinstance(x, ndarray):
        return [x] * math.prod(shape)
    if x.shape == shape:
        return x._flat
    if _broadcast(x.shape, shape) != shape:
        raise ValueError(f"shape {x.shape} does not fit {shape}")
    padded = (1,) * (len(shape) - x.ndim) + x.shape
    strides = tuple(0 if n == 1 else d for n, d in zip(padded, _strides(padded), strict=True))
    return [x._flat[p] for p in _places(shape, strides)]


# ---- Functions -----------------------------------------------------------------------------------------------------


def array(x, dtype=None):
    """From nested lists."""
    shape, flat = [], x
    while isinstance(flat, (list, tuple)):
        shape.append(len(flat))
        flat = flat[0] if flat else None
    flat = x
    for _ in shape[1:]:
        flat = [y for row in flat for y in row]
    return ndarray(flat if shape else [x], shape)


def _filled(shape, value):
    shape = shape if isinstance(shape, tuple) else (shape,)
    return ndarray([value] * math.prod(shape), shape)


def zeros(shape, dtype=int):
    """Zeros."""
    return _filled(shape, dtype(0))


def ones(shape, dtype=int):
    """Ones."""
    return _filled(shape, dtype(1))


def arange(n, dtype=int):
    """0, 1, ... n - 1."""
    return ndarray(range(n), (n,))


def where(condition, a, b):
    """An element of a where the condition is true, else of b."""
    shape = _broadcast(*(x.shape for x in (condition, a, b) if isinstance(x, ndarray)))
    triples = zip(*(_flat_as(x, shape) for x in (condition, a, b)), strict=True)
    return ndarray((x if c else y for c, x, y in triples), shape)


def minimum(a, b):
    """The smaller of each two."""
    return where(b > a, a, b)


def sort(x, axis=-1):
    """Sorted along the last axis."""
    n = x.shape[-1]
    rows = (sorted(x._flat[i : i + n]) for i in range(0, x.size, n)) if n else ()
    return ndarray([y for row in rows for y in row], x.shape)


def pad(x, widths, constant_values=0):
    """With as many elements before and after each axis."""
    out = _filled(
        tuple(n + before + after for n, (before, after) in zip(x.shape, widths, strict=True)), constant_values
    )
    out[tuple(slice(before, before + n) for n, (before, _after) in zip(x.shape, widths, strict=True))] = x
    return out


def nonzero(x):
    """The coordinates of what is true, an array for each axis."""
    found = [c for c, y in zip(itertools.product(*map(range, x.shape)), x._flat, strict=True) if y]
    return tuple(ndarray((c[axis] for c in found), (len(found),)) for axis in range(x.ndim))


def argwhere(x):
    """The coordinates of what is true, a row for each."""
    places = nonzero(x)
    return ndarray((i for c in zip(*(p._flat for p in places), strict=True) for i in c), (len(places[0]), x.ndim))


def flatnonzero(x):
    """Places in the list of what is true."""
    return nonzero(x.reshape(-1))[0]


def unravel_index(place, shape):
    """The coordinate of a place in the list."""
    return tuple(place // d % n for n, d in zip(shape, _strides(shape), strict=True))


def unique(x, return_counts=False):
    """The distinct elements in order, and how often each is there."""
    counts = {}
    for y in x._flat:
        counts[y] = counts.get(y, 0) + 1
    distinct = sorted(counts)
    values = ndarray(distinct, (len(distinct),))
    return (values, ndarray((counts[y] for y in distinct), (len(distinct),))) if return_counts else values


def isin(x, among):
    """Whether each element is among others."""
    known = set(among._flat)
    return ndarray((y in known for y in x._flat), x.shape)


class add:  # noqa: N801  NumPy's name
    """Of NumPy's function, its method `at`."""

    @staticmethod
    def at(x, index, value):
        """x[index] += value, once for each mention."""
        for place in x._select(index)[0]:
            x._flat[place] += value
