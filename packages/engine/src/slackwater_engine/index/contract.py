"""The index of a bucket: its live entries, sorted; a cache that may vanish at any moment."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from slackwater_engine.state.entry import Change, Entry

T = TypeVar("T")


class Contents(Protocol):
    """A view of entries that nobody else changes; for one thread, within the call that gave it only."""

    @property
    def token(self) -> bytes | None:
        """Names the state whose contents the index has; None for a new or cleared index."""
        ...

    def get(self, name: bytes) -> bytes | None:
        """The value of an entry, or None; changes of this transaction included, as in all reads."""
        ...

    def get_many(self, names: Iterable[bytes]) -> dict[bytes, bytes]:
        """The values of those of the entries that are there, by name."""
        ...

    def first(self, prefix: bytes) -> Entry | None:
        """The entry with the smallest name that starts with `prefix`, which is not empty."""
        ...

    def last(self, prefix: bytes) -> Entry | None:
        """The entry with the largest name that starts with `prefix`, which is not empty."""
        ...

    def group(self, prefix: bytes, limit: int | None = None) -> list[Entry]:
        """The entries whose names start with `prefix`, ascending; at most the first `limit` of them."""
        ...

    def scan(self, prefix: bytes, *, descending: bool = False) -> Iterator[Entry]:
        """Like :meth:`group`, but reads no further than it is asked to. Not to be mixed with changes.

        Other reads in between are fine, other scans, too. `prefix` is not empty.
        """
        ...

    def entries(self) -> Iterator[Entry]:
        """All entries, ascending. Not to be mixed with changes."""
        ...


class IndexTransaction(Contents, Protocol):
    """The contents of an index, to be changed."""

    def apply(self, changes: Iterable[Change]) -> None:
        """Makes the changes, in order; removing an absent entry is no error."""
        ...

    def clear(self) -> None:
        """Removes all entries, and the token."""
        ...

    def set_token(self, token: bytes) -> None:
        """Says which state the contents belong to."""
        ...


class BucketIndex(Protocol):
    """Keeps a bucket's index. It may lose it, or all changes since any moment."""

    def update(self, work: Callable[[IndexTransaction], T]) -> T:
        """Runs `work` in a transaction and commits; nothing is changed if it raises.

        May run `work` several times, so it must have no effect but on its transaction. Blocks while another
        process updates the same index.

        Raises:
            EngineUnavailableError: the index cannot be written.
        """
        ...

    def snapshot(self) -> AbstractContextManager[Contents]:
        """Gives the contents as they are now, whatever is updated meanwhile; blocks nobody.

        Raises:
            EngineUnavailableError: the index cannot be read. :meth:`update` may mend it.
        """
        ...

    def load(self, batches: Iterable[Iterable[Change]], token: bytes) -> None:
        """Replaces everything by what these changes make of nothing; in bounded memory, not as one step.

        Another process that uses the index meanwhile may find it as it was, without contents, or as it is
        afterwards; so may this one.

        Args:
            batches: Changes in order; read once.
            token: Says which state the contents belong to.

        Raises:
            EngineUnavailableError: the index cannot be written.
        """
        ...
