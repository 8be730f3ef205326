"""Damages JSON records: what a decoder must understand or refuse by name."""

import json
import random
from typing import Any

_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**53 + 1,
    2**63,
    -(2**63) - 1,
    10**400,
    1.5,
    1e300,
    "",
    "x",
    "7",
    "²",
    "-5:7",
    "7:",
    "7:9" + "9" * 5000,
    "1" * 5000,
    "\ud800",
    [],
    [None],
    {},
    {"": None},
)
_DEEP = 50_000


def damaged(value: bytes, rng: random.Random) -> bytes:
    """A record with one to three things wrong: a field of its JSON, or its bytes."""
    for _ in range(rng.randint(1, 3)):
        value = rng.choice((_change_field, _change_field, _change_field, _change_bytes))(value, rng)
    return value


def _change_field(value: bytes, rng: random.Random) -> bytes:
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return _change_bytes(value, rng)
    places = list(_places(document))
    if not places:
        return value
    owner, name = rng.choice(places)
    what = rng.randrange(10)
    if what == 0:
        del owner[name]
    elif what == 1 and isinstance(owner, dict):
        owner[rng.choice(("payload", "source", "transaction", "op", "id", "type"))] = owner[name]
    elif what == 2:
        owner[name] = [owner[name], owner[name]]
    elif what == 3:
        owner[name] = {"payload": owner[name]}
    else:
        owner[name] = rng.choice(_ODD)
    return json.dumps(document).encode()


def _change_bytes(value: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(value))
    what = rng.randrange(6)
    if what == 0:
        return value[:at]
    if what == 1:
        return value[:at] + bytes([rng.randrange(256)]) + value[at + 1 :]
    if what == 2:
        return value[:at] + b"\xff\xfe" + value[at:]
    if what == 3:
        return value[:at] + value[rng.randint(0, len(value)) :]
    if what == 4:
        return _nested(value, rng)
    return bytes(rng.randrange(256) for _ in range(rng.randint(0, 40)))


def _nested(value: bytes, rng: random.Random) -> bytes:
    """The record around, or inside, something that is nested deeper than any stack."""
    left, right = rng.choice(((b"[", b"]"), (b'{"payload":', b"}"), (b'{"after":', b"}")))
    deep = left * _DEEP + b"1" + right * _DEEP
    marks = [at for at in range(len(value)) if value[at : at + 1] == b":"]
    if not marks or rng.random() < 0.3:
        return deep
    at = rng.choice(marks) + 1
    return value[:at] + deep + b"," + value[at:] if rng.random() < 0.1 else _replaced(value, at, deep)


def _replaced(value: bytes, at: int, by: bytes) -> bytes:
    """The number or word behind a colon replaced."""
    end = at
    while end < len(value) and value[end : end + 1] not in b",}]":
        end += 1
    return value[:at] + by + value[end:]


def _places(document: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        owner = waiting.pop()
        inside = (
            list(owner.items())
            if isinstance(owner, dict)
            else list(enumerate(owner))
            if isinstance(owner, list)
            else []
        )
        for name, part in inside:
            found.append((owner, name))
            waiting.append(part)
    return found
