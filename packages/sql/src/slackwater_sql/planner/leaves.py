"""What the leaves of a pipeline's trees stand for, and by which columns their rows may be split."""

import re

from slackwater_sql.column_type import carried
from slackwater_sql.logical import Leaf, Relation, Scan
from slackwater_sql.planner.fragment import Origin, StageRows
from slackwater_sql.planner.partitioning import Key, Partitioning, partitioning

_DECIMAL_PRECISION = re.compile(r"DECIMAL\(\d+")


class Leaves:
    """The leaves so far, by number."""

    def __init__(self) -> None:
        self.origins: dict[int, Origin] = {}
        self._next = 0

    def add(self, origin: Origin | None, columns: tuple[str, ...], identity: tuple[str, ...]) -> Leaf:
        """A leaf that stands for `origin`; None: for the groups of an accumulate part."""
        number = self._next
        self._next += 1
        if origin is not None:
            self.origins[number] = origin
        return Leaf(number, columns, identity)

    def split(self, relation: Relation, key: Key) -> Partitioning | None:
        """How to split the leaves by a key of the relation; None if there is no way."""
        split = partitioning(relation, key, self.may_be_key)
        return split if split is not None and self.has_equal_types(split) else None

    def may_be_key(self, leaf: Leaf, key: Key) -> bool:
        """Rows of a table are split where they are read: by columns that are told apart by their JSON."""
        origin = self.origins.get(leaf.number)
        if not isinstance(origin, Scan):
            return set(key) <= set(leaf.columns)
        table = origin.table
        names = {number: name for name, number in origin.ids.items()}
        columns = [names.get(each) for each in key]
        if not table.replica_identity_full and not set(columns) <= set(table.primary_key):
            return False
        found = [table.column(name) for name in columns if name is not None]
        return all(each is not None and each.type.is_key_safe for each in found)

    def has_equal_types(self, split: Partitioning) -> bool:
        """Whether equal keys of all leaves are equal on the wire."""
        return len(set(self.key_types(split))) <= 1

    def key_types(self, split: Partitioning) -> list[tuple[str, ...]]:
        """For each leaf the types of its key, as far as they matter for being equal."""
        return [tuple(self._family(part.leaf, name) for name in part.key) for part in split]

    def _family(self, leaf: Leaf, name: str) -> str:
        """Columns of one family have equal wire values exactly when they are equal."""
        origin = self.origins.get(leaf.number)
        if isinstance(origin, Scan):
            of_column = {number: column for column, number in origin.ids.items()}
            declared = origin.table.column(of_column[name])
            return "" if declared is None else declared.type.wire_family
        if isinstance(origin, StageRows):
            of_type = dict(zip(origin.wire, origin.types, strict=True))[name]
            return _DECIMAL_PRECISION.sub("DECIMAL(", carried(of_type).wire_family)
        return ""
