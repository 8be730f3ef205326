"""Which partition the rows of a stage key come from: in scope ``aggregate`` it must always be the same.

Partitions of one number go together there, others at their own pace. A key with rows in two of them would
get documents that never existed; so each key's state says which partition it belongs to.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slackwater_spark.stage.errors import SplitKeyError, TruncateInGroupsError
from slackwater_spark.stage.packing import PackingSpec
from slackwater_spark.stage.wire import Event

OWNER_TAG: Final = b"\xff"
"""The tag of a key's entry that says which partition its rows come from."""

_SEQUENCE_BITS: Final = 32
_OWNER_BYTES: Final = 4


def sequence_in_group(partition: int, sequence: int) -> int:
    """The sequence of a payload that says which partition, and so which group, it comes from."""
    return partition << _SEQUENCE_BITS | sequence


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """A partition, and an event of the key that came from it."""

    partition: int
    event: Event

    @property
    def entry(self) -> bytes:
        """The value of the key's owner entry."""
        return self.partition.to_bytes(_OWNER_BYTES, "big")


class KeyOwners:
    """Finds and compares the owners of keys.

    Args:
        spec: What the events were packed by.
    """

    def __init__(self, spec: PackingSpec) -> None:
        self._spec = spec

    def of(self, payloads: Iterable[tuple[int, Sequence[Event]]]) -> dict[bytes, KeyOwner]:
        """The owner of each key in a batch.

        Args:
            payloads: By :func:`sequence_in_group`.

        Raises:
            SplitKeyError: a key has rows in two partitions.
            TruncateInGroupsError: a table was truncated.
        """
        owners: dict[bytes, KeyOwner] = {}
        for sequence, events in payloads:
            partition = sequence >> _SEQUENCE_BITS
            for event in events:
                key = event[2]
                owner = owners.get(key)
                if owner is None:
                    if not key:
                        raise TruncateInGroupsError(self._table(event), event[0], partition)
                    owners[key] = KeyOwner(partition, event)
                elif owner.partition != partition:
                    raise self._split(KeyOwner(partition, event), owner.partition)
        return owners

    def check(self, owner: KeyOwner, stored: bytes | None) -> None:
        """Whether a key's state has the same owner.

        Raises:
            SplitKeyError: it has another one.
        """
        if stored is not None and stored != owner.entry:
            raise self._split(owner, int.from_bytes(stored, "big"))

    def _split(self, owner: KeyOwner, other_partition: int) -> SplitKeyError:
        lsn, _, key, *_ = owner.event
        return SplitKeyError(
            self._table(owner.event),
            self._spec.key_json(key).decode(),
            lsn,
            owner.partition,
            other_partition,
        )

    def _table(self, event: Event) -> str:
        return self._spec.inputs[event[1]].table.full_name


Owners = Mapping[bytes, KeyOwner]
"""By stage key."""
