"""The marker store in Redis (6.2 or later)."""

import dataclasses
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import redis

from slackwater_markers.errors import MarkerStoreUnavailableError
from slackwater_markers.status import FrontierState, FrontierStatus, PipelineStatus, RegressionNotice
from slackwater_markers.store import CutRetention
from slackwater_protocol import (
    Marker,
    OpenTransaction,
    PublishedCut,
    decode_cut,
    decode_marker,
    decode_open_transaction,
    encode_cut,
    encode_marker,
    encode_open_transaction,
)
from slackwater_protocol.keys import (
    PIPELINES_KEY,
    cuts_key,
    frontier_key,
    markers_key,
    open_key,
    pipeline_key,
)

T = TypeVar("T")

_PUBLISH = """
local timeline = redis.call('HGET', KEYS[3], 'timeline')
if timeline and tonumber(timeline) > tonumber(ARGV[1]) then return 0 end
local added = redis.pcall('XADD', KEYS[1], ARGV[2] .. '-1', 'cut', ARGV[3], 'log', ARGV[4])
if type(added) == 'table' and added.err then
  if string.find(added.err, 'equal or smaller', 1, true) then return 0 end
  return added
end
if ARGV[5] ~= '0' then redis.call('XTRIM', KEYS[1], 'MINID', ARGV[5] .. '-0') end
local markers = 6 + 2 * tonumber(ARGV[6])
for i = 7, markers, 1000 do
  redis.call('HSET', KEYS[2], unpack(ARGV, i, math.min(i + 999, markers)))
end
redis.call('HSET', KEYS[3], unpack(ARGV, markers + 1))
return 1
"""
"""Keys: cuts, markers, frontier. Arguments: timeline, LSN, cut, log offset, oldest LSN to keep, number of
markers, then the fields of markers and frontier. XADD compares the LSNs, since Lua's numbers hold 53 bits.
Markers are written many at a time: a command for each takes twice as long; ``unpack`` has a limit."""


class RedisMarkerStore:
    """Implements :class:`~slackwater_markers.store.MarkerStore`.

    Args:
        client: Must return bytes and have a socket time-out; :meth:`connect` makes one.
        address: How errors name the server; no credentials.
        retention: How many of the cuts that this store publishes are kept.
    """

    def __init__(
        self, client: redis.Redis, *, address: str = "", retention: CutRetention | None = None
    ) -> None:
        self._client = client
        self._address = address
        self._retention = _RetentionWindow(retention or CutRetention())
        self._publish = client.register_script(_PUBLISH)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        password: str | None = None,
        timeout: timedelta = timedelta(seconds=5),
        retention: CutRetention | None = None,
    ) -> "RedisMarkerStore":
        """A store at ``redis://host:port/db``; does not talk to the server yet.

        Args:
            url: Address; ``rediss://`` for TLS.
            password: Overrides one in the URL.
            timeout: For connecting and for each answer.
            retention: See the class.

        Raises:
            ValueError: the URL has another form.
        """
        seconds = timeout.total_seconds()
        options: dict[str, Any] = {"password": password} if password else {}
        client = redis.Redis.from_url(url, socket_timeout=seconds, socket_connect_timeout=seconds, **options)
        return cls(client, address=url.rpartition("@")[2].removeprefix("redis://"), retention=retention)

    def publish(
        self, cut: PublishedCut, markers: Mapping[tuple[str, int], Marker], status: FrontierStatus
    ) -> bool:
        """See the protocol."""
        source, data = cut.cut.source, encode_cut(cut.cut)
        keys = [cuts_key(source, cut.cut.timeline), markers_key(source), frontier_key(source)]
        fields = [
            item
            for (topic, partition), marker in markers.items()
            for item in (f"{topic}/{partition}", encode_marker(marker))
        ]
        arguments = [
            cut.cut.timeline,
            cut.cut.lsn,
            data,
            cut.log_offset,
            self._retention.add(keys[0], cut.cut.lsn, len(data)),
            len(markers),
            *fields,
            *_flat(_frontier_fields(cut)),
            *_flat(_status_fields(status)),
        ]
        return bool(self._ask("publish", lambda: self._publish(keys=keys, args=arguments)) == 1)

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        """See the protocol."""
        key = cuts_key(source, timeline)
        entries = self._ask("newest", lambda: self._client.xrevrange(key, count=1))
        return _published(entries[0]) if entries else None

    def cuts_after(self, source: str, timeline: int, lsn: int, *, limit: int) -> list[PublishedCut]:
        """See the protocol."""
        key, above = cuts_key(source, timeline), f"{lsn}-2"
        entries = self._ask("cuts_after", lambda: self._client.xrange(key, min=above, count=limit))
        return [_published(entry) for entry in entries]

    def markers(self, source: str) -> dict[tuple[str, int], Marker]:
        """See the protocol."""
        fields = self._hash("markers", markers_key(source))
        result = {}
        for field, value in fields.items():
            topic, _, partition = field.rpartition("/")
            result[topic, int(partition)] = decode_marker(value)
        return result

    def set_status(self, source: str, status: FrontierStatus) -> None:
        """See the protocol."""
        key = frontier_key(source)
        self._ask("set_status", lambda: self._client.hset(key, mapping=_status_fields(status)))

    def status(self, source: str) -> FrontierStatus | None:
        """See the protocol."""
        fields = self._hash("status", frontier_key(source))
        if "state" not in fields:
            return None
        return FrontierStatus(
            state=FrontierState(fields["state"].decode()),
            detail=fields["detail"].decode(),
            wall_ms=int(fields["wall_ms"]),
            sidecar=fields["sidecar"].decode(),
            timeline=int(fields["on_timeline"]) if fields.get("on_timeline") else None,
            regression=_regression(fields.get("regression", b"")),
        )

    def set_open(self, source: str, transactions: Sequence[OpenTransaction]) -> None:
        """See the protocol."""
        key = open_key(source)
        with self._guarded("set_open"), self._client.pipeline(transaction=True) as together:
            together.delete(key)
            if transactions:
                together.hset(key, mapping={str(t.xid): encode_open_transaction(t) for t in transactions})
            together.execute()

    def open(self, source: str) -> list[OpenTransaction]:
        """See the protocol."""
        fields = self._hash("open", open_key(source))
        return sorted(map(decode_open_transaction, fields.values()), key=lambda t: (t.since_ms, t.xid))

    def trim(self, source: str, timeline: int, min_lsn: int) -> None:
        """See the protocol."""
        key = cuts_key(source, timeline)
        self._ask("trim", lambda: self._client.xtrim(key, minid=f"{min_lsn}-0", approximate=False))

    def register_pipeline(self, pipeline: PipelineStatus) -> None:
        """See the protocol."""
        fields = {
            "source": pipeline.source,
            "output": pipeline.output,
            "query_id": pipeline.query_id,
            "batch_id": pipeline.batch_id,
            "timeline": pipeline.timeline,
            "commit_lsn": pipeline.commit_lsn,
            "wall_ms": pipeline.wall_ms,
        }
        with self._guarded("register_pipeline"):
            self._client.hset(pipeline_key(pipeline.name), mapping=cast("dict[Any, Any]", fields))
            self._client.sadd(PIPELINES_KEY, pipeline.name)

    def pipeline(self, name: str) -> PipelineStatus | None:
        """See the protocol."""
        fields = self._hash("pipeline", pipeline_key(name))
        if not fields:
            return None
        return PipelineStatus(
            name=name,
            source=fields["source"].decode(),
            output=fields["output"].decode(),
            query_id=fields["query_id"].decode(),
            batch_id=int(fields["batch_id"]),
            timeline=int(fields["timeline"]),
            commit_lsn=int(fields["commit_lsn"]),
            wall_ms=int(fields["wall_ms"]),
        )

    def pipelines(self) -> list[PipelineStatus]:
        """See the protocol."""
        names = self._ask("pipelines", lambda: self._client.smembers(PIPELINES_KEY))
        found = (self.pipeline(name.decode()) for name in sorted(names))
        return [pipeline for pipeline in found if pipeline is not None]

    def close(self) -> None:
        """See the protocol."""
        self._client.close()

    def _hash(self, operation: str, key: str) -> dict[str, bytes]:
        fields = self._ask(operation, lambda: self._client.hgetall(key))
        return {field.decode(): value for field, value in fields.items()}

    def _ask(self, operation: str, question: Callable[[], Any]) -> Any:
        with self._guarded(operation):
            return question()

    @contextmanager
    def _guarded(self, operation: str) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            reason = f"{type(error).__name__}: {error}"
            raise MarkerStoreUnavailableError(operation, self._address, reason) from error


class _RetentionWindow:
    """Which cuts this process has published lately, to say which are too old to keep."""

    def __init__(self, retention: CutRetention) -> None:
        self._retention = retention
        self._windows: dict[str, _Window] = {}

    def add(self, stream: str, lsn: int, size: int) -> int:
        """Notes a cut; returns the oldest LSN to keep, 0 while nothing needs to go."""
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
    cuts: deque[tuple[int, int]] = dataclasses.field(default_factory=deque)
    total: int = 0
    floor: int = 0


def _published(entry: tuple[bytes, dict[bytes, bytes]]) -> PublishedCut:
    fields = entry[1]
    return PublishedCut(decode_cut(fields[b"cut"]), int(fields[b"log"]))


def _frontier_fields(cut: PublishedCut) -> dict[str, Any]:
    return {
        "lsn": cut.cut.lsn,
        "timeline": cut.cut.timeline,
        "commit_ts_ms": cut.cut.commit_ts_ms,
        "event_count": cut.cut.event_count,
        "log": cut.log_offset,
    }


def _status_fields(status: FrontierStatus) -> dict[Any, Any]:
    return {
        "wall_ms": status.wall_ms,
        "sidecar": status.sidecar,
        "state": str(status.state),
        "detail": status.detail,
        "on_timeline": "" if status.timeline is None else status.timeline,
        "regression": json.dumps(dataclasses.asdict(status.regression)) if status.regression else "",
    }


def _regression(text: bytes) -> RegressionNotice | None:
    return RegressionNotice(**json.loads(text)) if text else None


def _flat(fields: Mapping[str, Any]) -> list[Any]:
    return [item for field in fields.items() for item in field]
