"""Keeps each key's owner in its state, and compares: scope ``aggregate``."""

from slackwater_spark.stage.entry import MAX_INPUTS, group_width, part
from slackwater_spark.stage.index import IndexTransaction
from slackwater_spark.stage.owner import OWNER_TAG, KeyOwners, Owners
from slackwater_spark.stage.part_changes import PartChanges


class Ownership:
    """What the state says of keys' owners.

    Args:
        owners: Compares them.
    """

    def __init__(self, owners: KeyOwners) -> None:
        self._owners = owners

    def check(self, owners: Owners, contents: IndexTransaction) -> None:
        """Compares the owners of a batch with the stored ones.

        Raises:
            SplitKeyError: a key's rows come from another partition than before.
        """
        names = {key: part(key) + OWNER_TAG for key in owners}
        stored = contents.get_many(names.values())
        for key in sorted(owners):
            self._owners.check(owners[key], stored.get(names[key]))

    def conclude(self, owners: Owners, contents: IndexTransaction, changes: PartChanges) -> None:
        """Adds what changes of the keys' owners. A key without rows belongs to nobody."""
        changed = {name: row for name, row in changes.changes if _is_row(name, group_width(name))}
        written = {name[: group_width(name)] for name, row in changed.items() if row is not None}
        for key in sorted(owners):
            group = part(key)
            name = group + OWNER_TAG
            has_rows = group in written or any(
                _is_row(stored, len(group)) and stored not in changed for stored, _ in contents.scan(group)
            )
            changes.set(name, contents.get(name), owners[key].entry if has_rows else None)


def _is_row(name: bytes, width: int) -> bool:
    return 1 <= name[width] <= MAX_INPUTS
