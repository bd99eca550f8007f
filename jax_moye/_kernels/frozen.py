"""A mapping that nobody changes, and that can be pickled and copied: types.MappingProxyType cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

_Value = TypeVar("_Value")


class FrozenDict(Mapping[str, _Value]):
    """A read-only dict."""

    def __init__(self, items: Mapping[str, _Value]) -> None:
        """Keeps a copy."""
        self._items = dict(items)

    def __getitem__(self, key: str) -> _Value:
        """The value of a key."""
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        """Iterates over the keys."""
        return iter(self._items)

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._items)

    def __hash__(self) -> int:
        """Of the items."""
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        """As a dict's."""
        return repr(self._items)
