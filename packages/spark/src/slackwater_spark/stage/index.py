"""The index of a bucket: its live entries, sorted; a cache that may vanish at any moment."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from slackwater_spark.stage.entry import Change, Entry

T = TypeVar("T")


class IndexTransaction(Protocol):
    """A view of an index that nobody else changes; for one thread, within :meth:`BucketIndex.update` only."""

    @property
    def token(self) -> bytes | None:
        """Names the state whose contents the index has; None for a new index."""
        ...

    def group(self, prefix: bytes) -> list[Entry]:
        """The entries whose names start with `prefix`, ascending; changes of this transaction included."""
        ...

    def entries(self) -> Iterator[Entry]:
        """All entries, ascending. Not to be mixed with changes."""
        ...

    def apply(self, changes: Iterable[Change]) -> None:
        """Makes the changes, in order; removing an absent entry is no error."""
        ...

    def clear(self) -> None:
        """Removes all entries."""
        ...

    def set_token(self, token: bytes) -> None:
        """Says which state the contents belong to."""
        ...


class BucketIndex(Protocol):
    """Where a bucket's index is kept. Losing it, or all changes since any moment, is allowed."""

    def update(self, work: Callable[[IndexTransaction], T]) -> T:
        """Runs `work` in a transaction and commits; nothing is changed if it raises.

        May run `work` several times, so it must have no effect but on its transaction. Blocks while another
        process updates the same index.

        Raises:
            IndexFolderError: the index cannot be written.
        """
        ...
