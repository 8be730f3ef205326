"""The layout of the data in Redis: fields and their texts, and the scripts that change several at once.

Everything that is read is checked: decoding raises KeyError, TypeError, ValueError or a protocol error for
values that Slackwater did not write.

LSNs are unsigned 64-bit numbers and Lua's numbers hold 53 bits: scripts compare them by XADD, or as decimal
text. Nothing in Redis is trusted: a value that is not a number is an error that begins with WRONGVALUE, and
it cannot make a loop longer.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from slackwater.cuts.store import FrontierState, FrontierStatus, RegressionNotice
from slackwater.protocol import (
    END_OF_TIME_MS,
    ConnectorReport,
    Marker,
    OpenTransaction,
    PublishedCut,
    decode_cut,
    decode_marker,
    decode_open_transaction,
)

PUT_CUT = """
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

SET_MARKERS = """
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

FORGET = """
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


def decode_published(entry: tuple[bytes, dict[bytes, bytes]]) -> PublishedCut:
    """Returns the cut in an entry of the stream of cuts."""
    fields = entry[1]
    return PublishedCut(decode_cut(fields[b"cut"]), decode_number(fields[b"log"]))


def decode_marker_field(field: bytes, value: bytes) -> tuple[tuple[str, int], Marker]:
    """Returns topic and partition with their marker from a field of the markers hash."""
    topic, _, partition = field.decode().rpartition("/")
    return (topic, decode_number(partition)), decode_marker(value)


def decode_open(value: bytes) -> OpenTransaction:
    """Returns a transaction from a field of the open hash."""
    found = decode_open_transaction(value)
    for place in found.places:
        decode_number(place.rpartition("/")[2])
    return found


def decode_number(text: bytes | str, below: int = 2**64) -> int:
    """Returns a number from its text.

    Raises:
        ValueError: It is not a number, negative, or too large.
    """
    number = int(text)
    if not 0 <= number < below:
        raise ValueError(f"{text!r} is out of range")
    return number


def encode_frontier(cut: PublishedCut, status: FrontierStatus) -> dict[str, Any]:
    """Returns the fields of the frontier hash that follow from a cut."""
    return {
        "lsn": cut.cut.lsn,
        "timeline": cut.cut.timeline,
        "commit_ts_ms": cut.cut.commit_ts_ms,
        "event_count": cut.cut.event_count,
        "log": cut.log_offset,
        "publisher": status.sidecar,
    }


def encode_status(status: FrontierStatus) -> dict[Any, Any]:
    """Returns the fields of the frontier hash that describe the state."""
    return {
        "wall_ms": status.wall_ms,
        "sidecar": status.sidecar,
        "state": str(status.state),
        "detail": status.detail,
        "on_timeline": "" if status.timeline is None else status.timeline,
        "regression": msgspec.json.encode(status.regression) if status.regression else "",
    }


def encode_connector(report: ConnectorReport | None) -> dict[Any, Any]:
    """Returns the field of the frontier hash that describes the connector."""
    return {"connector": b"" if report is None else msgspec.json.encode(report)}


def decode_status(fields: Mapping[str, bytes]) -> FrontierStatus:
    """Returns the state from the fields of the frontier hash."""
    return FrontierStatus(
        state=FrontierState(fields["state"].decode()),
        detail=fields["detail"].decode(),
        wall_ms=decode_number(fields["wall_ms"], END_OF_TIME_MS),
        sidecar=fields["sidecar"].decode(),
        timeline=decode_number(fields["on_timeline"]) if fields.get("on_timeline") else None,
        regression=_decode_regression(fields.get("regression", b"")),
        connector=_decode_connector(fields.get("connector", b"")),
    )


def _decode_connector(text: bytes) -> ConnectorReport | None:
    return msgspec.json.decode(text, type=ConnectorReport) if text else None


def _decode_regression(text: bytes) -> RegressionNotice | None:
    if not text:
        return None
    found = msgspec.json.decode(text, type=RegressionNotice)
    *numbers, has_snapshot = dataclasses.astuple(found)
    if type(has_snapshot) is not bool or not all(type(n) is int and 0 <= n < 2**64 for n in numbers):
        raise ValueError(f"{text!r} does not describe a regression")
    return found


def flat(fields: Mapping[str, Any]) -> list[Any]:
    """Returns names and values one after the other, as scripts take them."""
    return [item for field in fields.items() for item in field]
