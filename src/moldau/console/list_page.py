"""Pages of lists: filtered, sorted and cut on the server, so that lists of 10,000 entries stay usable."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query

PAGE_SIZE_MAX = 500

Search = Annotated[str, Query(max_length=250)]
Page = Annotated[int, Query(ge=1, le=1_000_000)]
PageSize = Annotated[int, Query(ge=1, le=PAGE_SIZE_MAX)]
Sort = Annotated[str, Query(max_length=50, pattern="^-?[a-z_]+$")]

Item = TypeVar("Item")


def matching(items: Sequence[Item], search: str, name: Callable[[Item], str]) -> list[Item]:
    """Return the items whose name contains the text, ignoring case."""
    wanted = search.strip().lower()
    return [each for each in items if wanted in name(each).lower()] if wanted else list(items)


def ordered(items: list[Item], sort: str, keys: dict[str, Callable[[Item], Any]]) -> list[Item]:
    """Sort by the key of this name, descending after a minus; an unknown name leaves the order."""
    key = keys.get(sort.removeprefix("-"))
    return items if key is None else sorted(items, key=key, reverse=sort.startswith("-"))


def cut(items: Sequence[Item], page: int, size: int) -> list[Item]:
    return list(items[(page - 1) * size : page * size])
