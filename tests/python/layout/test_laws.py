"""The laws of the algebra over all coordinates, for layouts drawn at random."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_moye import layout as lay
from jax_moye.layout import errors
from jax_moye.layout import int_tuple as it

EXTENTS = [1, 2, 3, 4, 5, 6, 7, 8, 16, 32]
SETTINGS = settings(max_examples=100, deadline=None, derandomize=True)


@st.composite
def shapes(draw, limit=256):
    """1 to 5 leaves of product at most `limit`, nested to depth 3."""
    leaves, size = [], 1
    for extent in draw(st.lists(st.sampled_from(EXTENTS), min_size=1, max_size=5)):
        if size * extent <= limit:
            leaves.append(extent)
            size *= extent

    def nest(flat, depth):
        if len(flat) == 1 and draw(st.booleans()):
            return flat[0]
        if depth == 0 or len(flat) == 1:
            return tuple(flat)
        cut = draw(st.integers(1, len(flat) - 1))
        return (nest(flat[:cut], depth - 1), nest(flat[cut:], depth - 1))

    return nest(leaves or [1], 3)


@st.composite
def layouts(draw, limit=256, kinds=("col", "row", "permuted", "padded", "broadcast", "any")):
    shape = draw(shapes(limit))
    extents = it.leaves(shape)
    kind = draw(st.sampled_from(kinds))
    if kind == "any":
        strides = [draw(st.integers(0, 40)) for _ in extents]
    else:
        order = list(range(len(extents)))
        if kind == "row":
            order.reverse()
        elif kind != "col":
            order = draw(st.permutations(order))
        strides, step = [0] * len(extents), 1
        for i in order:
            step *= draw(st.integers(1, 4)) if kind == "padded" else 1
            strides[i] = step
            step *= extents[i]
        if kind == "broadcast":
            strides[draw(st.integers(0, len(strides) - 1))] = 0
    return lay.Layout(shape, it.unflatten(tuple(strides), shape))


def compact(limit=256):
    return layouts(limit, ("col", "row", "permuted"))


def injective(limit=64):
    return layouts(limit, ("col", "row", "permuted", "padded"))


@st.composite
def factors(draw, a):
    """A layout into [0, a.size), often one that divides a's modes."""
    divisors = [d for d in range(1, a.size + 1) if a.size % d == 0]
    leaves = []
    for _ in range(draw(st.integers(1, 2))):
        stride = draw(st.sampled_from(divisors))
        leaves.append((draw(st.sampled_from([d for d in divisors if d * stride <= a.size])), stride))
    shape, strides = zip(*leaves, strict=True)
    return lay.Layout(shape, strides)


def beyond(layout, i):
    """The index at a position that may lie beyond the size: the last leaf goes on."""
    total = 0
    for extent, stride in layout.leaves[:-1]:
        total += i % extent * stride
        i //= extent
    return total + i * layout.leaves[-1][1]


def values(layout):
    return [layout(i) for i in range(layout.size)]


@SETTINGS
@given(layouts())
def test_text_round_trip(layout):
    assert lay.Layout(str(layout)) == layout
    assert eval(repr(layout), {"Layout": lay.Layout}) == layout
    assert layout.values().tolist() == values(layout)
    assert layout.cosize >= 1 + max(values(layout)) - min(values(layout))


@SETTINGS
@given(layouts())
def test_all_kinds_of_coordinates_agree(layout):
    for i, coord in enumerate(lay.coordinates(layout.shape)):
        assert layout(coord) == layout(i)
        if isinstance(layout.shape, tuple):
            assert layout(lay.crd2crd(i, layout.size, it.product_each(layout.shape))) == layout(i)


@SETTINGS
@given(layouts())
def test_coalesce(layout):
    short = lay.coalesce(layout)
    assert values(short) == values(layout)
    assert short.depth <= 1
    assert lay.coalesce(short) == short
    assert short == lay.Layout("1:0") or all(s > 1 for s, _ in short.leaves)
    for (s, d), (_, e) in zip(short.leaves, short.leaves[1:], strict=False):
        assert e != s * d
    by_mode = lay.coalesce(layout, it.repeat(1, layout.rank))
    assert by_mode.rank == layout.rank
    assert values(by_mode) == values(layout)


@SETTINGS
@given(layouts(), layouts())
def test_functional_equality_is_that_of_the_coalesced_forms(a, b):
    assert lay.functionally_equal(a, b) == (values(a) == values(b))


@SETTINGS
@given(layouts())
def test_filter_and_nullspace(layout):
    assert set(values(lay.filter(layout))) == set(values(layout))
    null = lay.nullspace(layout)
    assert all(layout(i) == 0 for i in values(null))
    assert lay.filter(layout).size * null.size == layout.size


@SETTINGS
@given(st.data())
def test_composition(data):
    a = data.draw(layouts(), "A")
    b = data.draw(st.one_of(layouts(), factors(a)), "B")
    for extend in (False, True):
        try:
            r = lay.composition(a, b, extend=extend)
        except errors.OutOfDomain:
            if extend:
                raise
            continue
        except errors.LayoutError:
            continue
        assert lay.compatible(b.shape, r.shape)
        assert values(r) == [beyond(a, beyond(b, i)) for i in range(b.size)]
        if not extend:
            assert values(r) == [a(b(i)) for i in range(b.size)]


@SETTINGS
@given(layouts())
def test_identities_of_composition(layout):
    assert lay.functionally_equal(lay.composition(layout, layout.size), layout)
    assert lay.composition(lay.Layout(layout.cosize), layout).shape == layout.shape
    assert values(lay.composition(lay.Layout(layout.cosize), layout)) == values(layout)


@SETTINGS
@given(st.data())
def test_composition_is_associative(data):
    a = data.draw(layouts(128), "A")
    b = data.draw(factors(a), "B")
    c = data.draw(factors(b), "C")
    try:
        left = lay.composition(lay.composition(a, b), c)
        right = lay.composition(a, lay.composition(b, c))
    except errors.LayoutError:
        return
    assert values(left) == values(right)


@SETTINGS
@given(layouts(), st.one_of(st.none(), st.integers(1, 500)))
def test_complement(layout, target):
    try:
        rest = lay.complement(layout, target)
    except errors.NonInjective:
        return
    image, others = set(values(layout)), values(rest)
    assert others == sorted(set(others))
    assert not image & set(others[1:])
    assert len({a + b for a in image for b in others}) == len(image) * len(others)
    assert lay.complement(lay.make_layout(layout, rest)).size == 1


@SETTINGS
@given(compact())
def test_complement_of_the_complement(layout):
    target = 4 * layout.size
    rest = lay.complement(layout, target)
    assert lay.make_layout(layout, rest).size == target
    assert sorted(values(lay.make_layout(layout, rest))) == list(range(target))


@SETTINGS
@given(layouts())
def test_right_inverse(layout):
    inverse = lay.right_inverse(layout)
    assert [layout(i) for i in values(inverse)] == list(range(inverse.size))
    assert lay.coalesce(lay.composition(layout, inverse)) == lay.Layout(inverse.size)


@SETTINGS
@given(layouts())
def test_left_inverse(layout):
    try:
        inverse = lay.left_inverse(layout)
    except (errors.LeftInverseDivisibility, errors.NonInjective):
        return
    if len(set(values(layout))) == layout.size:
        assert [beyond(inverse, v) for v in values(layout)] == list(range(layout.size))
    short = lay.coalesce(layout)
    assert [beyond(short, beyond(inverse, v)) for v in values(layout)] == values(layout)


@SETTINGS
@given(compact())
def test_inverses_of_a_bijection_agree(layout):
    assert lay.functionally_equal(lay.left_inverse(layout), lay.right_inverse(layout))


@SETTINGS
@given(st.data())
def test_logical_divide(data):
    a = data.draw(layouts(), "A")
    b = data.draw(st.one_of(layouts(64), factors(a)), "B")
    try:
        r = lay.logical_divide(a, b)
    except errors.LayoutError:
        return
    assert r.rank == 2
    assert r[0] == lay.composition(a, b)
    assert r == lay.composition(a, lay.make_layout(b, lay.complement(b, a.size)))
    assert sorted(values(r)) == sorted(values(a))
    assert lay.zipped_divide(a, b) == r


@SETTINGS
@given(st.data())
def test_logical_divide_with_a_residue_loses_nothing(data):
    a = data.draw(compact(), "A")
    tile = data.draw(st.integers(1, 2 * a.size), "tile")
    try:
        r = lay.logical_divide(a, tile, allow_residue=True)
    except errors.LayoutError:
        return
    assert set(values(r)) >= set(values(a))
    if a.size % tile:
        with pytest.raises(errors.LayoutError):
            lay.logical_divide(a, tile)


@SETTINGS
@given(st.data())
def test_divides_by_mode(data):
    a = data.draw(layouts(), "A")
    tiler = tuple(
        data.draw(st.sampled_from([d for d in range(1, m.size + 1) if m.size % d == 0]), f"mode {i}")
        for i, m in enumerate(a[: data.draw(st.integers(1, a.rank), "rank")])
    )
    try:
        logical = lay.logical_divide(a, tiler)
    except errors.LayoutError:
        return
    zipped, tiled, flat = (f(a, tiler) for f in (lay.zipped_divide, lay.tiled_divide, lay.flat_divide))
    assert zipped[0] == lay.composition(a, tiler)
    assert zipped.rank == 2
    for i, t in enumerate(tiler):
        assert logical[i][0].size == t
        assert zipped[0][i] == logical[i][0]
        assert zipped[1][i] == logical[i][1]
    assert sorted(values(zipped)) == sorted(values(a))
    assert values(tiled) == values(flat) == values(zipped)
    assert it.leaves(flat.shape) == it.leaves(zipped.shape)


@SETTINGS
@given(st.one_of(injective(), layouts(64)), st.one_of(injective(), layouts(32)))
def test_products(a, b):
    try:
        r = lay.logical_product(a, b)
    except errors.LayoutError:
        return
    assert r[0] == a
    assert lay.compatible(b.shape, r[1].shape)
    if len(set(values(a))) == a.size and len(set(values(b))) == b.size:
        assert len(set(values(r))) == r.size
    try:
        blocked, raked = lay.blocked_product(a, b), lay.raked_product(a, b)
    except errors.ProfileMismatch:
        return
    assert blocked.rank == raked.rank == max(a.rank, b.rank)
    assert blocked.size == a.size * b.size
    assert sorted(values(blocked)) == sorted(values(raked)) == sorted(values(r))
    for i in range(a.rank):
        if isinstance(a.shape, tuple) and isinstance(b.shape, tuple) and i < b.rank:
            assert blocked[i][0] == raked[i][1] == a[i]


@SETTINGS
@given(injective(32), st.lists(st.integers(1, 2), min_size=5, max_size=5), st.permutations(range(5)))
def test_tile_to_shape(block, counts, order):
    target = tuple(e * n for e, n in zip(it.product_each(block.shape), counts, strict=False))
    try:
        r = lay.tile_to_shape(block, target, tuple(order[: len(target)]))
    except errors.LayoutError:
        assert block.cosize > block.size  # copies go into the gaps of a padded block, and may not fit
        return
    assert lay.compatible(target, r.shape)
    assert len(set(values(r))) == r.size
    assert all(r[i][0] == (m if isinstance(block.shape, tuple) else block) for i, m in enumerate(block))


@SETTINGS
@given(layouts(), st.sampled_from([2, 4, 8]))
def test_upcast_undoes_downcast(layout, n):
    try:
        finer = lay.downcast(layout, n)
    except errors.DowncastNoUnitStride:
        assert 1 not in it.leaves(layout.stride)
        return
    except errors.NonInjective:
        return
    assert lay.upcast(finer, n) == layout
    assert lay.recast_layout(layout, 8 * n, 8) == finer


@st.composite
def with_unit_modes(draw):
    """Layouts with several modes of stride 1, extents of 1 among them, and now and then a negative stride."""
    leaves = draw(
        st.lists(
            st.tuples(st.sampled_from([1, 1, 2, 3, 4]), st.sampled_from([0, 1, 1, 2, 5, -1, -4])),
            min_size=1,
            max_size=4,
        )
    )
    shape, stride = zip(*leaves, strict=True)
    return lay.Layout(shape, stride)


@SETTINGS
@given(layouts(64) | with_unit_modes(), st.sampled_from([2, 3, 4, 8]))
def test_downcast(layout, n):
    """Each element of the layout becomes its n consecutive parts, wherever the layout puts the mode of them."""
    long_units = [s for s, d in layout.leaves if d == 1 and s > 1]
    if len(long_units) > 1:
        with pytest.raises(errors.NonInjective):
            lay.downcast(layout, n)
        return
    if not any(d == 1 for _s, d in layout.leaves):
        with pytest.raises(errors.DowncastNoUnitStride):
            lay.downcast(layout, n)
        return
    finer = lay.downcast(layout, n)
    assert it.congruent(finer.shape, layout.shape)
    assert finer.size == n * layout.size
    leaves = list(zip(finer.leaves, layout.leaves, strict=True))
    assert sum(new[0] != old[0] for new, old in leaves) == 1
    parts = next(i for i, (new, old) in enumerate(leaves) if new[0] != old[0])
    flat, fine = (lay.Layout(*zip(*x.leaves, strict=True)) for x in (layout, finer))
    for c in lay.coordinates(flat.shape):
        for j in range(n):
            inner = tuple(n * x + j if i == parts else x for i, x in enumerate(c))
            assert fine(inner) == n * flat(c) + j


@pytest.mark.parametrize(
    ("text", "n", "expected"),
    [("(1,4):(1,1)", 4, "(1,16):(4,1)"), ("(1,1):(1,1)", 2, "(2,1):(1,2)"), ("(1,7):(1,0)", 8, "(8,7):(1,0)")],
)
def test_downcast_skips_extents_of_1(text, n, expected):
    assert str(lay.downcast(text, n)) == expected
    assert str(lay.recast_layout(text, 8 * n, 8)) == expected


def test_downcast_of_two_modes_of_stride_1():
    with pytest.raises(errors.NonInjective, match=r"modes 2:1 and 2:1"):
        lay.downcast("(2,2):(1,1)", 2)
    with pytest.raises(errors.NonInjective, match="recast_layout") as caught:
        lay.recast_layout("(2,2):(1,1)", 16, 8)
    assert caught.value.op == "recast_layout"
    with pytest.raises(errors.DowncastNoUnitStride, match="backwards"):
        lay.downcast("4:-1", 2)


@SETTINGS
@given(layouts(), layouts())
def test_max_common_vector(a, b):
    n = lay.max_common_vector(a, b)
    common = lay.max_common_layout(a, b)
    assert common.size == n
    assert [a(i) for i in values(common)] == [b(i) for i in values(common)] == list(range(n))


@SETTINGS
@given(layouts())
def test_max_alignment(layout):
    n = lay.max_alignment(layout)
    image = set(values(layout))
    assert all(v - v % n + i in image for v in image for i in range(n))


@SETTINGS
@given(shapes(), st.integers(1, 64))
def test_domain_distribute(shape, parts):
    r = lay.domain_distribute(shape, parts)
    assert parts % r.size == 0
    assert values(r) == sorted(set(values(r)))
    assert r.cosize <= math.prod(it.leaves(shape))


@SETTINGS
@given(st.data())
def test_slice_and_dice(data):
    layout = data.draw(layouts())

    def coordinate(shape):
        if isinstance(shape, tuple) and data.draw(st.booleans()):
            return tuple(map(coordinate, shape))
        return data.draw(st.one_of(st.just(lay._), st.integers(0, it.product(shape) - 1)))

    coord = tuple(map(coordinate, it.modes(layout.shape)))
    layout = layout if isinstance(layout.shape, tuple) else lay.make_layout(layout)
    kept, offset = lay.slice_and_offset(coord, layout)
    assert kept.size * lay.dice(coord, layout).size == layout.size
    full = [c for c in lay.coordinates(layout.shape) if _matches(coord, c, layout.shape)]
    assert [offset + v for v in values(kept)] == [layout(c) for c in full]


def _matches(coord, full, shape):
    if coord is lay._:
        return True
    if isinstance(coord, tuple):
        return all(map(_matches, coord, full, it.wrap(shape)))
    return lay.Layout(shape)(full) == coord if not isinstance(shape, int) else coord == full


@st.composite
def swizzles(draw):
    bits = draw(st.integers(0, 3))
    shift = draw(st.integers(max(bits, 1), 4)) * draw(st.sampled_from([1, 1, 1, -1]))
    return lay.Swizzle(bits, draw(st.integers(0, 4)), shift)


@SETTINGS
@given(swizzles(), st.integers(0, 3))
def test_swizzle_is_an_involution_and_a_bijection(swizzle, block):
    indices = range(block * swizzle.period, (block + 1) * swizzle.period)
    moved = [swizzle(i) for i in indices]
    assert sorted(moved) == list(indices)
    assert [swizzle(i) for i in moved] == list(indices)
    if swizzle.shift > 0:
        assert all(moved[k] == moved[0] + k for k in range(2**swizzle.base))
    assert lay.make_swizzle(swizzle.yyy_mask, swizzle.zzz_mask).bits == swizzle.bits
    assert lay.Swizzle(str(swizzle)) == swizzle


@SETTINGS
@given(swizzles(), swizzles(), st.integers(0, 300), compact(64))
def test_composition_of_swizzles(a, b, offset, layout):
    b = lay.Swizzle(min(b.bits, abs(a.shift)), b.base, a.shift)
    try:
        both = lay.composition(a, b)
    except errors.BadSwizzle:
        return
    assert all(both(i) == a(b(i)) for i in range(2048))
    inner = lay.ComposedLayout(b, offset, layout)
    assert values(lay.composition(a, inner)) == [a(v) for v in values(inner)]


@SETTINGS
@given(swizzles(), st.sampled_from([1, 2, 4, 8]))
def test_swizzle_commutes_with_the_element_size(swizzle, n):
    finer = swizzle.downcast(n)
    assert finer.upcast(n) == swizzle
    assert all(finer(i) // n == swizzle(i // n) for i in range(min(finer.period, 4096)))


@SETTINGS
@given(st.data())
def test_slices_of_swizzled_layouts(data):
    swizzle = data.draw(swizzles())
    layout = data.draw(st.one_of(compact(), injective(256)))
    layout = layout if isinstance(layout.shape, tuple) else lay.make_layout(layout)
    composed = lay.ComposedLayout(swizzle, data.draw(st.integers(0, 700)), layout)
    assert [composed(i) for i in range(composed.size)] == composed.values().tolist()
    assert lay.parse(str(composed)) == composed
    coord = tuple(
        data.draw(st.one_of(st.just(lay._), st.integers(0, it.product(s) - 1)), "coordinate") for s in layout.shape
    )
    kept, offset = lay.slice_and_offset(coord, composed)
    full = [c for c in lay.coordinates(layout.shape) if _matches(coord, c, layout.shape)]
    assert [offset + kept(i) for i in range(kept.size)] == [composed(c) for c in full]


@SETTINGS
@given(swizzles(), compact())
def test_swizzled_operations_act_on_the_inner_layout(swizzle, layout):
    composed = swizzle @ layout
    inverse = lay.right_inverse(composed)
    assert [inverse(composed(i)) for i in range(layout.size)] == list(range(layout.size))
    for operation in (lay.coalesce, lay.flatten):
        assert operation(composed) == swizzle @ operation(layout)
    divided = lay.logical_divide(composed, 1)
    assert [divided(i) for i in range(divided.size)] == [composed(i) for i in range(composed.size)]
    n = lay.max_common_vector(composed, layout)
    assert n <= max(2**swizzle.base, layout.size if not swizzle.bits else 0) or n == 1
    inner = lay.right_inverse(layout)
    assert all(composed(inner(i)) == i for i in range(n))
    common = lay.max_common_layout(composed, composed)
    n = lay.max_common_vector(composed, composed)
    assert n == min(lay.max_common_vector(layout, layout), 2**swizzle.base if swizzle.bits else layout.size)
    assert common.size <= n
    assert [layout(i) for i in values(common)] == list(range(common.size))


def vectors_that_move_whole(a, b, n):
    """Whether a copy from a to b in vectors of n elements is right: each lies whole, and in order, in both memories.

    Vectors are n elements of the common layout, those whose first element is at a multiple of n, as a copy needs them.
    """
    common = lay.max_common_layout(getattr(a, "layout", a), getattr(b, "layout", b))
    vector = lay.composition(common, n)
    order = lay.make_layout(vector, lay.complement(vector, a.size))
    for v in range(order[1].size):
        places = [order(j, v) for j in range(n)]
        if max(places) >= a.size:  # the complement of a vector that does not divide the size is rounded up
            continue
        for x in (a, b):
            inner = getattr(x, "layout", x)
            if inner(places[0]) % n == 0 and [x(c) for c in places] != [x(places[0]) + j for j in range(n)]:
                return False
    return True


def test_equal_swizzles_do_not_cancel():
    """CuTe takes all of the common layout where two swizzles are equal; the second vector already tells them apart."""
    a, b = "Sw<1,0,3> o 0 o (8,8):(1,8)", "Sw<1,0,3> o 0 o (8,8):(1,16)"
    assert lay.max_common_vector("(8,8):(1,8)", "(8,8):(1,16)") == 8
    a, b = lay.ComposedLayout(a), lay.ComposedLayout(b)
    assert lay.max_common_vector(a, b) == 1
    # The elements of vector 1 are in opposite pairs of the two memories.
    assert [a(i) for i in range(8, 16)] != [b(i) - b(8) + a(8) for i in range(8, 16)]
    assert not vectors_that_move_whole(a, b, 8)


@SETTINGS
@given(swizzles(), swizzles(), compact(), st.integers(0, 3))
def test_vectors_of_swizzled_layouts_move_whole(first, second, layout, extra):
    a = first @ layout
    for b in (first @ layout, second @ layout, layout, lay.ComposedLayout(first, extra, layout)):
        n = lay.max_common_layout(a, b).size
        assert n <= lay.max_common_vector(a, b)
        if getattr(b, "offset", 0):
            assert n <= b.offset
        else:
            assert vectors_that_move_whole(a, b, n)
