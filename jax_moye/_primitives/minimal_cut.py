"""Which values to keep, so that others follow from them, at the least cost: a minimal cut of a graph.

Each value is an edge whose capacity is its cost, from what it is computed of to what is computed of it. Values that
cannot be computed begin at the source, and those that are wanted end at the sink. What flows from the source to the
sink at most is what a cut between them costs at least (Ford and Fulkerson), and shortest paths find it (Edmonds and
Karp).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SOURCE, _SINK = "source", "sink"
_Graph = dict[Any, dict[Any, int]]  # what is left of the capacity from one node to another


def minimal_cut(
    costs: Mapping[Any, int], made_of: Mapping[Any, Sequence[Any] | None], wanted: Iterable[Any]
) -> tuple[set[Any], int]:
    """The values to keep, and what they cost together.

    Args:
      costs: by value.
      made_of: by value, those that it can be computed of; None: it cannot be computed.
      wanted: the values that are kept, or follow from those that are.

    Returns:
      Of several sets of that cost the one from which the least is computed.
    """
    endless = sum(costs.values()) + 1
    graph: _Graph = {_SOURCE: {}, _SINK: {}}

    def connect(one: Any, other: Any, capacity: int) -> None:
        graph.setdefault(one, {})[other] = capacity
        graph.setdefault(other, {}).setdefault(one, 0)

    for value, cost in costs.items():
        connect((value, "in"), (value, "out"), cost)
        before = made_of[value]
        for one in [_SOURCE] if before is None else [(operand, "out") for operand in before]:
            connect(one, (value, "in"), endless)
    for value in wanted:
        connect((value, "out"), _SINK, endless)
    total = 0
    while path := _path(graph):
        flow = min(graph[one][other] for one, other in path)
        total += flow
        for one, other in path:
            graph[one][other] -= flow
            graph[other][one] += flow
    behind = _behind(graph)
    return {value for value in costs if (value, "out") in behind and (value, "in") not in behind}, total


def _path(graph: _Graph) -> list[tuple[Any, Any]]:
    """A shortest one through edges that have capacity left, from the source to the sink; empty if there is none."""
    before: dict[Any, Any] = {_SOURCE: None}
    waiting: list[Any] = [_SOURCE]
    for at in waiting:
        for other, capacity in graph[at].items():
            if capacity > 0 and other not in before:
                before[other] = at
                waiting.append(other)
    if _SINK not in before:
        return []
    nodes: list[Any] = [_SINK]
    while nodes[-1] != _SOURCE:
        nodes.append(before[nodes[-1]])
    return [(one, other) for other, one in itertools.pairwise(nodes)]


def _behind(graph: _Graph) -> set[Any]:
    """The nodes from which the sink can be reached through edges that have capacity left."""
    found: set[Any] = {_SINK}
    waiting: list[Any] = [_SINK]
    for at in waiting:
        new = [other for other in graph[at] if other not in found and graph[other][at] > 0]
        found.update(new)
        waiting += new
    return found
