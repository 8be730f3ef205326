"""Parts of trees with other ids."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar, cast

from slackwater.sql.catalog import Table
from slackwater.sql.logical import JoinKind, Relation, Span, children

ID: Final = re.compile(r'"(c\d+)"')

T = TypeVar("T")


def created(relation: Relation) -> Iterator[str]:
    """Yields the ids in the order in which the tree creates its columns; some more than once."""
    for child in children(relation):
        yield from created(child)
    yield from relation.columns


def renamed(part: T, ids: Mapping[str, str]) -> T:
    """Returns a part of a tree with new ids, also within SQL; ids occur in no text that the user wrote."""
    result: Any = part
    if isinstance(part, str) and not isinstance(part, JoinKind):
        result = ids.get(part) or ID.sub(lambda found: f'"{ids.get(found[1], found[1])}"', part)
    elif isinstance(part, tuple):
        result = tuple(renamed(each, ids) for each in part)
    elif isinstance(part, dict):
        result = {name: renamed(each, ids) for name, each in part.items()}
    elif is_dataclass(part) and not isinstance(part, type | Table | Span):
        values = {each.name: renamed(getattr(part, each.name), ids) for each in fields(part)}
        result = replace(part, **values)
    return cast("T", result)
