"""The marker store in Redis (6.2 or later)."""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast
from urllib.parse import urlsplit

import redis

from slackwater.cuts import redis_layout as layout
from slackwater.cuts.errors import (
    MarkerStoreContentError,
    MarkerStoreRefusedError,
    MarkerStoreUnavailableError,
)
from slackwater.cuts.store import CutRetention, FrontierStatus, StoredPosition
from slackwater.protocol import (
    CommitPosition,
    InputError,
    Marker,
    OpenTransaction,
    PublishedCut,
    encode_cut,
    encode_marker,
    encode_open_transaction,
)
from slackwater.protocol.keys import cuts_key, frontier_key, markers_key, open_key

_CONTENT = re.compile("WRONGTYPE|WRONGVALUE")
"""The words of Redis and our scripts for a key that contains something else."""


class RedisMarkerStore:
    """Implements :class:`~slackwater.cuts.store.MarkerStore`.

    Args:
        client: Must return bytes and have a socket time-out; :meth:`connect` creates one.
        address: The server's name in errors, without credentials.
        retention: How many of the cuts passed to this store are kept.
    """

    def __init__(
        self, client: redis.Redis, *, address: str = "", retention: CutRetention | None = None
    ) -> None:
        self._client = client
        self._address = address
        self._retention = _RetentionWindow(retention or CutRetention())
        self._log_id = ""
        self._put_cut = client.register_script(layout.PUT_CUT)
        self._set_markers = client.register_script(layout.SET_MARKERS)
        self._forget_source = client.register_script(layout.FORGET)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        password: str | None = None,
        timeout: timedelta = timedelta(seconds=5),
        retention: CutRetention | None = None,
    ) -> "RedisMarkerStore":
        """Returns a store at ``redis://user@host:port/db``; does not connect to the server yet.

        Args:
            url: Address; ``rediss://`` for TLS, with ``?ssl_ca_certs=<file>`` for an authority that the
                system does not trust, and ``&ssl_certfile=<file>&ssl_keyfile=<file>`` for a certificate of
                the client.
            password: Overrides one in the URL.
            timeout: For connecting and for each answer.
            retention: See the class.

        Raises:
            ValueError: The URL has another form.
        """
        seconds = timeout.total_seconds()
        options: dict[str, Any] = {"password": password} if password else {}
        client = redis.Redis.from_url(url, socket_timeout=seconds, socket_connect_timeout=seconds, **options)
        return cls(client, address=_address(url), retention=retention)

    def bind(self, log_id: str) -> None:
        """See the protocol."""
        self._log_id = log_id

    def adopt(self, source: str) -> bool:
        """See the protocol."""
        return bool(self._log_id) and self._forget("adopt", source, self._log_id, 0)

    def clear(self, source: str, timeline: int) -> None:
        """See the protocol."""
        self._forget("clear", source, "", timeline)

    def put_cut(self, cut: PublishedCut, status: FrontierStatus) -> bool:
        """See the protocol."""
        source, data = cut.cut.source, encode_cut(cut.cut)
        keys = [cuts_key(source, cut.cut.timeline), frontier_key(source)]
        arguments = [
            cut.cut.timeline,
            cut.cut.lsn,
            data,
            cut.log_offset,
            self._retention.add(keys[0], cut.cut.lsn, len(data)),
            self._log_id,
            *layout.flat(layout.encode_frontier(cut, status)),
            *layout.flat(layout.encode_status(status)),
        ]
        return bool(self._ask("put_cut", lambda: self._put_cut(keys=keys, args=arguments)) == 1)

    def position(self, source: str) -> StoredPosition | None:
        """See the protocol."""
        names = ["log_id", "timeline", "lsn", "log", "publisher"]
        with self._guarded("position"):
            fields = cast("list[bytes | None]", self._client.hmget(frontier_key(source), names))
            log_id, timeline, lsn, log_offset, publisher = fields
            if timeline is None or lsn is None or log_offset is None or self._is_foreign(log_id):
                return None
            position = CommitPosition(layout.decode_number(timeline), layout.decode_number(lsn))
            return StoredPosition(position, layout.decode_number(log_offset), (publisher or b"").decode())

    def set_markers(
        self, source: str, position: CommitPosition, markers: Mapping[tuple[str, int], Marker]
    ) -> bool:
        """See the protocol."""
        keys = [markers_key(source), frontier_key(source)]
        arguments: list[Any] = [position.timeline, position.lsn, self._log_id]
        for (topic, partition), marker in markers.items():
            arguments += (f"{topic}/{partition}", encode_marker(marker))
        return bool(self._ask("set_markers", lambda: self._set_markers(keys=keys, args=arguments)) == 1)

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        """See the protocol."""
        with self._guarded("newest"), self._checked(source) as together:
            together.xrevrange(cuts_key(source, timeline), count=1)
            entries = self._unless_foreign(together.execute())
            return layout.decode_published(entries[0][0]) if entries and entries[0] else None

    def cuts_after(self, source: str, timeline: int, lsn: int, *, limit: int) -> list[PublishedCut]:
        """See the protocol."""
        with self._guarded("cuts_after"), self._checked(source) as together:
            together.xrange(cuts_key(source, timeline), min=f"{lsn}-2", count=limit)
            entries = self._unless_foreign(together.execute())
            return [layout.decode_published(entry) for entry in entries[0]] if entries else []

    def markers(self, source: str) -> dict[tuple[str, int], Marker]:
        """See the protocol."""
        with self._guarded("markers"), self._checked(source) as together:
            together.hgetall(markers_key(source))
            answers = self._unless_foreign(together.execute())
            return dict(layout.decode_marker_field(*item) for item in answers[0].items()) if answers else {}

    def set_status(self, source: str, status: FrontierStatus) -> None:
        """See the protocol."""
        key = frontier_key(source)
        fields = layout.encode_status(status) | layout.encode_connector(status.connector)
        self._ask("set_status", lambda: self._client.hset(key, mapping=fields))

    def status(self, source: str) -> FrontierStatus | None:
        """See the protocol."""
        fields = self._hash("status", frontier_key(source))
        with self._guarded("status"):
            return layout.decode_status(fields) if "state" in fields else None

    def set_open(self, source: str, transactions: Sequence[OpenTransaction]) -> None:
        """See the protocol."""
        key = open_key(source)
        with self._guarded("set_open"), self._client.pipeline(transaction=True) as together:
            together.unlink(key)
            if transactions:
                together.hset(key, mapping={str(t.xid): encode_open_transaction(t) for t in transactions})
            together.execute()

    def open(self, source: str) -> list[OpenTransaction]:
        """See the protocol."""
        fields = self._hash("open", open_key(source))
        with self._guarded("open"):
            return sorted(map(layout.decode_open, fields.values()), key=lambda t: (t.since_ms, t.xid))

    def close(self) -> None:
        """See the protocol."""
        self._client.close()

    def _forget(self, operation: str, source: str, unless_log_id: str, timeline: int) -> bool:
        keys = [markers_key(source), frontier_key(source), open_key(source)]
        arguments: list[str | int] = [unless_log_id, cuts_key(source, 0)[:-1], timeline]
        return bool(self._ask(operation, lambda: self._forget_source(keys=keys, args=arguments)) == 1)

    def _hash(self, operation: str, key: str) -> dict[str, bytes]:
        with self._guarded(operation):
            fields = cast("dict[bytes, bytes]", self._client.hgetall(key))
            return {field.decode(): value for field, value in fields.items()}

    def _ask(self, operation: str, question: Callable[[], Any]) -> Any:
        with self._guarded(operation):
            return question()

    def _is_foreign(self, log_id: bytes | None) -> bool:
        return bool(self._log_id) and log_id is not None and log_id.decode() != self._log_id

    @contextmanager
    def _checked(self, source: str) -> Iterator[Any]:
        """Commands that are answered at one moment, with the log that the answers come from."""
        with self._client.pipeline(transaction=True) as together:
            together.hget(frontier_key(source), "log_id")
            yield together

    def _unless_foreign(self, answers: list[Any]) -> list[Any] | None:
        return None if self._is_foreign(answers[0]) else answers[1:]

    @contextmanager
    def _guarded(self, operation: str) -> Iterator[None]:
        try:
            yield
        except (redis.RedisError, InputError, ValueError, KeyError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise _kind(error)(operation, self._address, reason) from error


def _kind(error: Exception) -> type[MarkerStoreUnavailableError]:
    if isinstance(error, redis.exceptions.NoPermissionError):
        return MarkerStoreRefusedError
    is_away = isinstance(error, redis.RedisError) and not _CONTENT.search(str(error))
    return MarkerStoreUnavailableError if is_away else MarkerStoreContentError


class _RetentionWindow:
    """The cuts that this process has published lately, to recognise those that are too old to keep."""

    def __init__(self, retention: CutRetention) -> None:
        self._retention = retention
        self._windows: dict[str, _Window] = {}

    def add(self, stream: str, lsn: int, size: int) -> int:
        """Notes a cut; returns the oldest LSN to keep, or 0 if nothing has to be removed."""
        window = self._windows.setdefault(stream, _Window())
        if not window.cuts or lsn > window.cuts[-1][0]:
            window.cuts.append((lsn, size))
            window.total += size
        while len(window.cuts) > 1 and (
            len(window.cuts) > self._retention.max_cuts or window.total > self._retention.max_bytes
        ):
            window.total -= window.cuts.popleft()[1]
            window.floor = window.cuts[0][0]
        return window.floor


@dataclass(slots=True)
class _Window:
    cuts: deque[tuple[int, int]] = field(default_factory=deque)
    total: int = 0
    floor: int = 0


def _address(url: str) -> str:
    """Returns the part of a URL that may be shown."""
    parts = urlsplit(url)
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}"
