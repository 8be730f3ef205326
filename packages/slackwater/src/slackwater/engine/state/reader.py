"""Reads blobs from the segments of a store; small segments are read completely."""

from collections import OrderedDict
from typing import Final

from slackwater.engine.state.log import Blob
from slackwater.engine.state.manifest import segment_path
from slackwater.engine.state.store import StateStore

_KEPT_SEGMENTS: Final = 64
_SMALL_BYTES: Final = 256 << 10
"""If a blob ends before this offset, everything before it in the segment is read, too, because it contains
blobs of many buckets."""


class SegmentReader:
    """Implements :class:`~slackwater.engine.state.log.BlobSource`. Use it from one thread.

    Args:
        store: The store of the checkpoint.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._beginnings: OrderedDict[str, bytes] = OrderedDict()

    def read(self, blob: Blob) -> bytes:
        """Returns the bytes of a blob, which may be damaged."""
        end = blob.offset + blob.length
        path = segment_path(blob.segment)
        if end > _SMALL_BYTES:
            return self._store.read_part(path, blob.offset, blob.length)
        beginning = self._beginnings.get(blob.segment)
        if beginning is None:
            beginning = self._store.read_part(path, 0, _SMALL_BYTES)
            self._beginnings[blob.segment] = beginning
            if len(self._beginnings) > _KEPT_SEGMENTS:
                self._beginnings.popitem(last=False)
        return beginning[blob.offset : end]
