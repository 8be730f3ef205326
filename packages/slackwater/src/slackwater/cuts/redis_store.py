"""The marker store in Redis (6.2 or later): its layout, and the scripts that change several keys at once.

Everything that is read is checked: decoding raises KeyError, TypeError, ValueError or a protocol error for
values that Slackwater did not write.

LSNs are unsigned 64-bit numbers and Lua's numbers hold 53 bits: scripts compare them by XADD, or as decimal
text. Nothing in Redis is trusted: a value that is not a number is an error that begins with WRONGVALUE, and
it cannot make a loop longer.
"""

import dataclasses
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import redis

from slackwater.cuts.errors import MarkerStoreUnavailableError, StoreFault
from slackwater.protocol import (
    END_OF_TIME_MS,
    CommitPosition,
    ConnectorReport,
    Cut,
    FrontierState,
    FrontierStatus,
    InputError,
    Marker,
    OpenTransaction,
    PublishedCut,
    RegressionNotice,
    decode_cut,
    decode_marker,
    decode_open_transaction,
    encode_cut,
    encode_marker,
    encode_open_transaction,
)
from slackwater.protocol.keys import cuts_key, frontier_key, markers_key, open_key

_PUT_CUT = """
local known = redis.call('HMGET', KEYS[2], 'timeline', 'log_id')
if known[2] and ARGV[6] ~= '' and known[2] ~= ARGV[6] then return 0 end
local newest = tonumber(known[1] or '0')
if not newest then return redis.error_reply('WRONGVALUE timeline is no number') end
if newest > tonumber(ARGV[1]) then return 0 end
local added = redis.pcall('XADD', KEYS[1], ARGV[2] .. '-1', 'cut', ARGV[3], 'log', ARGV[4])
if type(added) == 'table' and added.err then
  if string.find(added.err, 'equal or smaller', 1, true) then return 0 end
  if string.find(added.err, 'exhausted', 1, true) then return 0 end
  return added
end
if ARGV[5] ~= '0' then redis.call('XTRIM', KEYS[1], 'MINID', ARGV[5] .. '-0') end
if ARGV[6] ~= '' then redis.call('HSET', KEYS[2], 'log_id', ARGV[6]) end
redis.call('HSET', KEYS[2], unpack(ARGV, 7))
return 1
"""
"""Keys: cuts, frontier. Arguments: timeline, LSN, cut, log offset, oldest LSN to keep, id of the cut log
(may be empty), then fields of the frontier."""

_SET_MARKERS = """
local function is_less(a, b) return #a < #b or (#a == #b and a < b) end
local known = redis.call('HMGET', KEYS[2], 'timeline', 'lsn', 'log_id')
if known[3] and ARGV[3] ~= '' and known[3] ~= ARGV[3] then return 0 end
local newest, own = tonumber(known[1] or '0'), tonumber(ARGV[1])
if not newest then return redis.error_reply('WRONGVALUE timeline is no number') end
if newest > own or (newest == own and is_less(ARGV[2], known[2] or '0')) then return 0 end
redis.call('UNLINK', KEYS[1])
for first = 4, #ARGV, 4000 do
  redis.call('HSET', KEYS[1], unpack(ARGV, first, math.min(first + 3999, #ARGV)))
end
redis.call('HSET', KEYS[2], 'markers_timeline', ARGV[1])
if ARGV[3] ~= '' then redis.call('HSET', KEYS[2], 'log_id', ARGV[3]) end
return 1
"""
"""Keys: markers, frontier. Arguments: timeline and LSN of the newest cut, id of the cut log (may be empty),
then field and marker of each partition."""

_FORGET = """
local known = redis.pcall('HMGET', KEYS[2], 'log_id', 'timeline')
if known.err then known = {'', '0'} end
if ARGV[1] ~= '' and (not known[1] or known[1] == ARGV[1]) then return 0 end
local newest = tonumber(known[2] or '0')
if not (newest and newest <= 1000) then newest = 1000 end
for timeline = 0, math.max(newest, tonumber(ARGV[3])) do redis.call('UNLINK', ARGV[2] .. timeline) end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
return 1
"""
"""Keys: markers, frontier, open. Arguments: id of the cut log whose content stays (empty: nothing stays),
what the keys of cuts begin with, up to which timeline at least. The streams of cuts have the same hash tag as
the declared keys, so they are in the same slot of a cluster."""

_CONTENT = re.compile("WRONGTYPE|WRONGVALUE")
"""The words of Redis and our scripts for a key that contains something else."""


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The position of a store's newest cut, without the cut itself."""

    position: CommitPosition
    log_offset: int
    """The offset at which the cut log keeps it."""
    publisher: str


class RedisMarkerStore:
    """Cuts, markers and states of sources, in Redis.

    A cache without authority: it may lose everything at any moment, may be older than the cut log, may be
    replaced by a copy of itself or of another store, and may contain data of other writers. What it contains
    is true only if the cut log confirms it. All methods block for at most the store's time-out and raise only
    :class:`~slackwater.cuts.errors.MarkerStoreUnavailableError`, with the fault if the content
    cannot be read. Not thread-safe.

    Args:
        client: Must return bytes and have a socket time-out; :meth:`connect` creates one.
        address: The server's name in errors, without credentials.
    """

    max_cuts = 50_000
    """The number of cuts that are kept; older ones are read from the cut log."""
    max_bytes = 64 * 1024 * 1024
    """Their encoded size; the newest cut is kept even if it alone is larger."""

    def __init__(self, client: redis.Redis, *, address: str = "") -> None:
        self._client = client
        self._address = address
        self._windows: defaultdict[str, _Window] = defaultdict(_Window)
        self._log_id = ""
        self._put_cut = client.register_script(_PUT_CUT)
        self._set_markers = client.register_script(_SET_MARKERS)
        self._forget_source = client.register_script(_FORGET)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        password: str | None = None,
        timeout: timedelta = timedelta(seconds=5),
    ) -> "RedisMarkerStore":
        """Returns a store at ``redis://user@host:port/db``; does not connect to the server yet.

        Args:
            url: Address; ``rediss://`` for TLS, with ``?ssl_ca_certs=<file>`` for an authority that the
                system does not trust, and ``&ssl_certfile=<file>&ssl_keyfile=<file>`` for a certificate of
                the client.
            password: Overrides one in the URL.
            timeout: For connecting and for each answer.

        Raises:
            ValueError: The URL has another form.
        """
        seconds = timeout.total_seconds()
        options: dict[str, Any] = {"password": password} if password else {}
        client = redis.Redis.from_url(url, socket_timeout=seconds, socket_connect_timeout=seconds, **options)
        return cls(client, address=_address(url))

    def bind(self, log_id: str) -> None:
        """Names the cut log that the cuts of this process must come from.

        From then on everything published from another log counts as absent, and publishing from one is
        refused until :meth:`adopt`. Does not connect to the server.
        """
        self._log_id = log_id

    def adopt(self, source: str) -> bool:
        """Removes everything published from another log than the bound one; returns whether there was any.

        Called by sidecars only. Without :meth:`bind` it does nothing.
        """
        return bool(self._log_id) and self._forget("adopt", source, self._log_id, 0)

    def clear(self, source: str, timeline: int) -> None:
        """Removes everything about a source, at least up to a timeline.

        Called by sidecars only, for content that cannot be right.
        """
        self._forget("clear", source, "", timeline)

    def put_cut(self, cut: PublishedCut, status: FrontierStatus) -> bool:
        """Makes a cut and the frontier visible at once.

        Called by sidecars, after the cut log has acknowledged the cut. Idempotent, and safe with several
        sidecars: a cut that is not above the newest one of its timeline, or belongs to an older timeline,
        changes nothing and returns False.
        """
        source, data = cut.cut.source, encode_cut(cut.cut)
        keys = [cuts_key(source, cut.cut.timeline), frontier_key(source)]
        arguments = [
            cut.cut.timeline,
            cut.cut.lsn,
            data,
            cut.log_offset,
            self._windows[keys[0]].add(cut.cut.lsn, len(data), self.max_cuts, self.max_bytes),
            self._log_id,
            *chain.from_iterable((_encode_frontier(cut, status) | _encode_status(status)).items()),
        ]
        return bool(self._ask("put_cut", lambda: self._put_cut(keys=keys, args=arguments)) == 1)

    def position(self, source: str) -> StoredPosition | None:
        """Returns the position of the newest cut; None if there is none. One short round trip."""
        names = ["log_id", "timeline", "lsn", "log", "publisher"]
        with self._guarded("position"):
            fields = cast("list[bytes | None]", self._client.hmget(frontier_key(source), names))
            log_id, timeline, lsn, log_offset, publisher = fields
            if timeline is None or lsn is None or log_offset is None or self._is_foreign(log_id):
                return None
            position = CommitPosition(_decode_number(timeline), _decode_number(lsn))
            return StoredPosition(position, _decode_number(log_offset), (publisher or b"").decode())

    def set_markers(
        self, source: str, position: CommitPosition, markers: Mapping[tuple[str, int], Marker]
    ) -> bool:
        """Replaces the markers of all partitions, at once.

        Called by sidecars, after the cut log has acknowledged what they follow from: a cut, and markers that
        are ahead of it. Returns False and does nothing if the store has a newer cut than the one at
        ``position``.
        """
        keys = [markers_key(source), frontier_key(source)]
        arguments: list[Any] = [position.timeline, position.lsn, self._log_id]
        for (topic, partition), marker in markers.items():
            arguments += (f"{topic}/{partition}", encode_marker(marker))
        return bool(self._ask("set_markers", lambda: self._set_markers(keys=keys, args=arguments)) == 1)

    def newest(self, source: str, timeline: int) -> PublishedCut | None:
        """Returns the newest cut of a timeline; None if there is none."""
        with self._guarded("newest"), self._checked(source) as together:
            together.xrevrange(cuts_key(source, timeline), count=1)
            entries = self._unless_foreign(together.execute())
            return _decode_published(entries[0][0]) if entries and entries[0] else None

    def cuts_after(self, source: str, timeline: int, lsn: int, *, limit: int) -> list[PublishedCut]:
        """Returns the oldest ``limit`` cuts above ``lsn``, ascending.

        Not guaranteed: that they connect to ``lsn`` (see ``Cut.previous_lsn``); older ones may be trimmed.
        """
        with self._guarded("cuts_after"), self._checked(source) as together:
            together.xrange(cuts_key(source, timeline), min=f"{lsn}-2", count=limit)
            entries = self._unless_foreign(together.execute())
            return [_decode_published(entry) for entry in entries[0]] if entries else []

    def markers(self, source: str) -> dict[tuple[str, int], Marker]:
        """Returns the marker of each topic and partition, as :meth:`set_markers` left them."""
        with self._guarded("markers"), self._checked(source) as together:
            together.hgetall(markers_key(source))
            answers = self._unless_foreign(together.execute())
            return dict(_decode_marker_field(*item) for item in answers[0].items()) if answers else {}

    def set_status(self, source: str, status: FrontierStatus) -> None:
        """Replaces the state of the frontier; leaves the newest cut alone."""
        key = frontier_key(source)
        connector = b"" if status.connector is None else msgspec.json.encode(status.connector)
        fields = _encode_status(status) | {"connector": connector}
        self._ask("set_status", lambda: self._client.hset(key, mapping=fields))

    def status(self, source: str) -> FrontierStatus | None:
        """Returns the state that a sidecar reported last; None if there was none."""
        with self._guarded("status"):
            found = cast("dict[bytes, bytes]", self._client.hgetall(frontier_key(source)))
            fields = {field.decode(): value for field, value in found.items()}
            return _decode_status(fields) if "state" in fields else None

    def set_open(self, source: str, transactions: Sequence[OpenTransaction]) -> None:
        """Replaces the list of transactions that the frontier waits for, at once."""
        key = open_key(source)
        with self._guarded("set_open"), self._client.pipeline(transaction=True) as together:
            together.unlink(key)
            if transactions:
                together.hset(key, mapping={str(t.xid): encode_open_transaction(t) for t in transactions})
            together.execute()

    def open(self, source: str) -> list[OpenTransaction]:
        """Returns the transactions the frontier waits for, longest wait first."""
        with self._guarded("open"):
            fields = cast("dict[bytes, bytes]", self._client.hgetall(open_key(source)))
            return sorted(map(_decode_open, fields.values()), key=lambda t: (t.since_ms, t.xid))

    def close(self) -> None:
        """Frees connections. The store must not be used afterwards."""
        self._client.close()

    def _forget(self, operation: str, source: str, unless_log_id: str, timeline: int) -> bool:
        keys = [markers_key(source), frontier_key(source), open_key(source)]
        arguments: list[str | int] = [unless_log_id, cuts_key(source, 0)[:-1], timeline]
        return bool(self._ask(operation, lambda: self._forget_source(keys=keys, args=arguments)) == 1)

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
            raise MarkerStoreUnavailableError(operation, self._address, reason, _fault(error)) from error


def markers_of(cut: Cut) -> dict[tuple[str, int], Marker]:
    """Returns the marker of every partition at a cut."""
    return {
        (topic, number): Marker(cut.lsn, offset)
        for topic, offsets in cut.end_offsets.items()
        for number, offset in enumerate(offsets)
    }


def merged_markers(
    at_cut: Mapping[tuple[str, int], Marker], ahead: Mapping[tuple[str, int], Marker]
) -> dict[tuple[str, int], Marker]:
    """Returns for each partition the further one of its two markers, of one timeline."""
    result = dict(at_cut)
    for key, marker in ahead.items():
        held = result.get(key)
        if held is None or held.safe_commit_lsn < marker.safe_commit_lsn:
            result[key] = marker
    return result


def _fault(error: Exception) -> StoreFault | None:
    if isinstance(error, redis.exceptions.NoPermissionError):
        return StoreFault.REFUSED
    is_away = isinstance(error, redis.RedisError) and not _CONTENT.search(str(error))
    return None if is_away else StoreFault.CONTENT


@dataclass(slots=True)
class _Window:
    """The cuts of a stream that this process has published lately, to recognise those too old to keep."""

    cuts: deque[tuple[int, int]] = field(default_factory=deque)
    total: int = 0
    floor: int = 0

    def add(self, lsn: int, size: int, max_cuts: int, max_bytes: int) -> int:
        """Notes a cut; returns the oldest LSN to keep, or 0 if nothing has to be removed."""
        if not self.cuts or lsn > self.cuts[-1][0]:
            self.cuts.append((lsn, size))
            self.total += size
        while len(self.cuts) > 1 and (len(self.cuts) > max_cuts or self.total > max_bytes):
            self.total -= self.cuts.popleft()[1]
            self.floor = self.cuts[0][0]
        return self.floor


def _address(url: str) -> str:
    """Returns the part of a URL that may be shown."""
    parts = urlsplit(url)
    return f"{parts.netloc.rpartition('@')[2]}{parts.path}"


def _decode_published(entry: tuple[bytes, dict[bytes, bytes]]) -> PublishedCut:
    """Returns the cut in an entry of the stream of cuts."""
    fields = entry[1]
    return PublishedCut(decode_cut(fields[b"cut"]), _decode_number(fields[b"log"]))


def _decode_marker_field(field: bytes, value: bytes) -> tuple[tuple[str, int], Marker]:
    """Returns topic and partition with their marker from a field of the markers hash."""
    topic, _, partition = field.decode().rpartition("/")
    return (topic, _decode_number(partition)), decode_marker(value)


def _decode_open(value: bytes) -> OpenTransaction:
    """Returns a transaction from a field of the open hash."""
    found = decode_open_transaction(value)
    for place in found.places:
        _decode_number(place.rpartition("/")[2])
    return found


def _decode_number(text: bytes | str, below: int = 2**64) -> int:
    """Returns a number from its text.

    Raises:
        ValueError: It is not a number, negative, or too large.
    """
    number = int(text)
    if not 0 <= number < below:
        raise ValueError(f"{text!r} is out of range")
    return number


def _encode_frontier(cut: PublishedCut, status: FrontierStatus) -> dict[str, Any]:
    """Returns the fields of the frontier hash that follow from a cut."""
    return {
        "lsn": cut.cut.lsn,
        "timeline": cut.cut.timeline,
        "commit_ts_ms": cut.cut.commit_ts_ms,
        "event_count": cut.cut.event_count,
        "log": cut.log_offset,
        "publisher": status.sidecar,
    }


def _encode_status(status: FrontierStatus) -> dict[Any, Any]:
    """Returns the fields of the frontier hash that describe the state."""
    return {
        "wall_ms": status.wall_ms,
        "sidecar": status.sidecar,
        "state": str(status.state),
        "detail": status.detail,
        "on_timeline": "" if status.timeline is None else status.timeline,
        "regression": msgspec.json.encode(status.regression) if status.regression else "",
    }


def _decode_status(fields: Mapping[str, bytes]) -> FrontierStatus:
    """Returns the state from the fields of the frontier hash."""
    connector = fields.get("connector")
    return FrontierStatus(
        state=FrontierState(fields["state"].decode()),
        detail=fields["detail"].decode(),
        wall_ms=_decode_number(fields["wall_ms"], END_OF_TIME_MS),
        sidecar=fields["sidecar"].decode(),
        timeline=_decode_number(fields["on_timeline"]) if fields.get("on_timeline") else None,
        regression=_decode_regression(fields.get("regression", b"")),
        connector=msgspec.json.decode(connector, type=ConnectorReport) if connector else None,
    )


def _decode_regression(text: bytes) -> RegressionNotice | None:
    if not text:
        return None
    found = msgspec.json.decode(text, type=RegressionNotice)
    if not all(0 <= number < 2**64 for number in dataclasses.astuple(found)):
        raise ValueError(f"{text!r} does not describe a regression")
    return found
