"""The partition that contains the rows of a stage key; in scope ``aggregate`` it must never change.

In this scope, partitions with the same number advance together, and other partitions independently. A key
with rows in two partitions would get documents that no commit ever produced. The state of each key therefore
contains the partition that it belongs to.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slackwater.engine.index import Contents
from slackwater.engine.packer import PackingSpec
from slackwater.engine.payloads import Event, Outcome
from slackwater.engine.state.entry import MAX_INPUTS, OWNER_TAG, group_width, part
from slackwater.protocol import ConfigError, InputError
from slackwater.sql.plan import DocumentsOutput, EnginePlan

_SEQUENCE_BITS: Final = 32
_OWNER_BYTES: Final = 4


def sequence_in_group(partition: int, sequence: int) -> int:
    """Returns the sequence of a payload that comes from a partition of a group."""
    return partition << _SEQUENCE_BITS | sequence


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """A partition, and an event of the key in this partition."""

    partition: int
    event: Event

    @property
    def entry(self) -> bytes:
        """The value of the key's owner entry."""
        return self.partition.to_bytes(_OWNER_BYTES, "big")


Owners = Mapping[bytes, KeyOwner]
"""The owners by stage key."""


class KeyOwners:
    """Finds the owners of keys, stores them in the state, and compares them."""

    def __init__(self, spec: PackingSpec) -> None:
        self._spec = spec

    def find(self, payloads: Iterable[tuple[int, Sequence[Event]]]) -> Owners:
        """Returns the owner of each key in a batch.

        The sequences of payloads are those of :func:`sequence_in_group`.

        Raises:
            InputError: A key has rows in two partitions, or a table was truncated.
        """
        owners: dict[bytes, KeyOwner] = {}
        for sequence, events in payloads:
            partition = sequence >> _SEQUENCE_BITS
            for event in events:
                key = event[2]
                owner = owners.get(key)
                if owner is None:
                    if not key:
                        raise self._truncated(event, partition)
                    owners[key] = KeyOwner(partition, event)
                elif owner.partition != partition:
                    raise self._split(KeyOwner(partition, event), owner.partition)
        return owners

    def check(self, owners: Owners, contents: Contents) -> None:
        """Compares the owners of a batch with the stored ones.

        Raises:
            InputError: A key's rows come from another partition than before.
        """
        names = {key: part(key) + OWNER_TAG for key in owners}
        stored = contents.get_many(names.values())
        for key in sorted(owners):
            before = stored.get(names[key])
            if before is not None and before != owners[key].entry:
                raise self._split(owners[key], int.from_bytes(before, "big"))

    def conclude(self, owners: Owners, contents: Contents, outcome: Outcome) -> None:
        """Adds the changes of the keys' owners to the outcome. A key without rows has no owner."""
        changed = {name: row for name, row in outcome.changes if _is_row(name, group_width(name))}
        written = {name[: group_width(name)] for name, row in changed.items() if row is not None}
        for key in sorted(owners):
            group = part(key)
            name = group + OWNER_TAG
            has_rows = group in written or any(
                _is_row(stored, len(group)) and stored not in changed for stored, _ in contents.scan(group)
            )
            outcome.change(name, contents.get(name), owners[key].entry if has_rows else None)

    def _split(self, owner: KeyOwner, other_partition: int) -> InputError:
        lsn, _, key, *_ = owner.event
        return InputError(
            f"{self._table(owner.event)}, key {self._spec.key_json(key).decode()}, commit LSN {lsn}: a row "
            f"in partition {owner.partition}, but rows of this key came from partition {other_partition}. "
            "In scope 'aggregate' all inputs must be partitioned in the same way by the view's key: set "
            "the connector's "
            "message.key.columns to the columns of that key for every table, or add the transform "
            "PartitionRouting with them; then take a new snapshot into new topics and start with a new "
            "checkpoint. Or use scope 'strict'"
        )

    def _truncated(self, event: Event, partition: int) -> InputError:
        return InputError(
            f"TRUNCATE of {self._table(event)}, commit LSN {event[0]}, in partition {partition}: it affects "
            "the rows of all partitions, which are at different commits in scope 'aggregate'. Use DELETE, or "
            "scope 'strict'; to continue, take a new snapshot and start with a new checkpoint"
        )

    def _table(self, event: Event) -> str:
        return self._spec.inputs[event[1]].plan.table.full_name


def _is_row(name: bytes, width: int) -> bool:
    return 1 <= name[width] <= MAX_INPUTS


def check_aggregate(plan: EnginePlan) -> None:
    """Refuses pipelines that cannot run in scope ``aggregate``.

    Raises:
        ConfigError: The pipeline has rows that move between keys whose groups are at different commits.
    """
    stage = plan.stages[0]
    if len(plan.stages) > 1:
        raise _unsupported(f"has {len(plan.stages)} stages")
    if stage.rows is None or not isinstance(stage.rows.output, DocumentsOutput):
        raise _unsupported("keeps aggregates without their rows")
    if not stage.key:
        raise _unsupported("has one group without a key")


def _unsupported(problem: str) -> ConfigError:
    return ConfigError(
        f"scope 'aggregate': the pipeline {problem}; its partitions are at different commits, so all joins "
        "and groups of its views must use the same key. Use scope 'strict'"
    )
