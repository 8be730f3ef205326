"""The live entries of a bucket, sorted: a cache on a local disk that may disappear at any moment.

The log of the state is authoritative. An index whose token does not match the log is rebuilt.

The contents of several buckets can be read as one, so that one statement can evaluate all of them.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from slackwater.engine.payloads import bucket_of
from slackwater.engine.state.entry import Change, Entry, group_width, is_digest, part

T = TypeVar("T")


class Contents(Protocol):
    """A view of entries that nobody else changes. Use it in one thread, within the call that provides it."""

    @property
    def token(self) -> bytes | None:
        """The token of the state whose contents the index has; None for a new or cleared index."""

    def get(self, name: bytes) -> bytes | None:
        """Returns the value of an entry, or None. Like all reads, it sees changes of this transaction."""

    def get_many(self, names: Iterable[bytes]) -> dict[bytes, bytes]:
        """Returns the values of those of the entries that exist, by name."""

    def group(self, prefix: bytes, limit: int | None = None) -> list[Entry]:
        """Returns the entries whose names start with `prefix`, ascending; at most `limit` of them."""

    def scan(self, prefix: bytes, *, descending: bool = False, start: bytes | None = None) -> Iterator[Entry]:
        """Yields the same as :meth:`group`, but reads only as far as requested.

        It begins at the name `start`, which starts with `prefix` and need not exist, or at the end. Changes
        must not be made before the end of the scan. Other reads and other scans are allowed. `prefix` must
        not be empty.
        """

    def entries(self) -> Iterator[Entry]:
        """Yields all entries, ascending. Changes must not be made before the end."""


class IndexTransaction(Contents, Protocol):
    """The contents of an index, which can be changed."""

    def apply(self, changes: Iterable[Change]) -> None:
        """Applies the changes in order; removing an entry that does not exist is not an error."""

    def clear(self) -> None:
        """Removes all entries and the token."""

    def set_token(self, token: bytes) -> None:
        """Sets the token of the state that the contents belong to."""


class BucketIndex(Protocol):
    """Stores a bucket's index. It may lose the index, or all changes since any moment.

    Methods raise UnavailableError if the index cannot be read or written; :meth:`update` may repair it.
    """

    def update(self, work: Callable[[IndexTransaction], T]) -> T:
        """Runs `work` in a transaction and commits; nothing is changed if it raises.

        It may run `work` several times, so `work` must have no effect except on its transaction. It blocks
        while another process updates the same index.
        """

    def snapshot(self) -> AbstractContextManager[Contents]:
        """Provides the contents as they are now, whatever is updated in the meantime. It blocks nobody."""

    def load(self, batches: Iterable[Iterable[Change]], token: bytes) -> None:
        """Replaces all contents by the result of these changes, in limited memory and not atomically.

        During this time, this process and others may find the index as it was before, without contents, or as
        it is afterwards. The changes are in order, and read once.
        """


class BucketRoute:
    """Finds the bucket of an entry by its name.

    The keys are all whose entries are requested, because a name does not contain a long key.
    """

    def __init__(self, buckets: int, keys: Iterable[bytes]) -> None:
        self._buckets = buckets
        self._long = {group: bucket_of(key, buckets) for key in keys if is_digest(group := part(key))}

    def bucket(self, name: bytes) -> int:
        """Returns the bucket of an entry, or of entries with a prefix that begins with a complete group."""
        group = name[: group_width(name)]
        return self._long[group] if is_digest(group) else bucket_of(group, self._buckets)


class TogetherContents:
    """Implements :class:`Contents` for several buckets."""

    def __init__(self, by_bucket: Mapping[int, Contents], route: BucketRoute) -> None:
        self._by_bucket = by_bucket
        self._route = route

    @property
    def token(self) -> bytes | None:
        """None, because several buckets have no common token."""
        return None

    def get(self, name: bytes) -> bytes | None:
        """See :class:`Contents`."""
        return self._of(name).get(name)

    def get_many(self, names: Iterable[bytes]) -> dict[bytes, bytes]:
        """See :class:`Contents`."""
        wanted: dict[int, list[bytes]] = {}
        for name in names:
            wanted.setdefault(self._route.bucket(name), []).append(name)
        found: dict[bytes, bytes] = {}
        for bucket, of_bucket in wanted.items():
            found |= self._by_bucket[bucket].get_many(of_bucket)
        return found

    def group(self, prefix: bytes, limit: int | None = None) -> list[Entry]:
        """See :class:`Contents`."""
        return self._of(prefix).group(prefix, limit)

    def scan(self, prefix: bytes, *, descending: bool = False, start: bytes | None = None) -> Iterator[Entry]:
        """See :class:`Contents`."""
        return self._of(prefix).scan(prefix, descending=descending, start=start)

    def entries(self) -> Iterator[Entry]:
        """See :class:`Contents`."""
        return heapq.merge(*(contents.entries() for contents in self._by_bucket.values()))

    def _of(self, name: bytes) -> Contents:
        return self._by_bucket[self._route.bucket(name)]
