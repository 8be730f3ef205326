"""The contents of several buckets as one, so that one statement can evaluate all of them."""

import heapq
from collections.abc import Iterable, Iterator, Mapping

from slackwater.engine.index.contract import Contents
from slackwater.engine.payloads import bucket_of
from slackwater.engine.state.entry import Entry, group_width, is_digest, part


class BucketRoute:
    """Finds the bucket of an entry by its name.

    Args:
        buckets: The number of buckets of the stage.
        keys: All keys of the stage whose entries are requested, because a name does not contain a long key.
    """

    def __init__(self, buckets: int, keys: Iterable[bytes]) -> None:
        self._buckets = buckets
        self._long = {group: bucket_of(key, buckets) for key in keys if is_digest(group := part(key))}

    def bucket(self, name: bytes) -> int:
        """Returns the bucket of an entry, or of entries with a prefix that begins with a complete group."""
        group = name[: group_width(name)]
        return self._long[group] if is_digest(group) else bucket_of(group, self._buckets)


class TogetherContents:
    """Implements :class:`~slackwater.engine.index.contract.Contents`.

    Args:
        by_bucket: The contents of the buckets.
        route: Finds the buckets of all keys that are requested.
    """

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

    def first(self, prefix: bytes) -> Entry | None:
        """See :class:`Contents`."""
        return self._of(prefix).first(prefix)

    def last(self, prefix: bytes) -> Entry | None:
        """See :class:`Contents`."""
        return self._of(prefix).last(prefix)

    def group(self, prefix: bytes, limit: int | None = None) -> list[Entry]:
        """See :class:`Contents`."""
        return self._of(prefix).group(prefix, limit)

    def scan(self, prefix: bytes, *, descending: bool = False) -> Iterator[Entry]:
        """See :class:`Contents`."""
        return self._of(prefix).scan(prefix, descending=descending)

    def entries(self) -> Iterator[Entry]:
        """See :class:`Contents`."""
        return heapq.merge(*(contents.entries() for contents in self._by_bucket.values()))

    def _of(self, name: bytes) -> Contents:
        return self._by_bucket[self._route.bucket(name)]
