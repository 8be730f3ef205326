"""The layout of a bucket's contents: sorted entries, with those of one stage key next to each other.

An entry's name is ``group + tag + rest``. `group` is derived from the stage key, or from the key of a group
whose aggregates are kept. The tag determines what the entry is, and the meaning of its rest:

* 0: the hash of the last document; no rest.
* 1 + number of the input: a row; its primary key.
* `ACCUMULATORS_TAG`: a group's counts and sums; no rest.
* `MULTISET_TAG`: a value of an ordered multiset; number of the multiset (2 bytes), then the sort key.
* `RANKS_TAG`: how many values a range of an ordered multiset has; number of the multiset (2 bytes), level (1
  byte), then the sort key at which the range begins.
* `WITHHELD_TAG`: the key is withheld, because it cannot be evaluated; no rest.
* `MOMENT_TAG`: in the group of no columns, the clock of rows that expire; or a row that ends at a moment: the
  moment (8 bytes), then a digest of the row.
* `OWNER_TAG`: the partition that contains a key's rows; no rest.
* `SHARER_TAG`: an entry, other than a row, of a stage whose rows another one keeps; its number among those
  stages (1 byte), then its own tag and rest.

Packed keys are msgpack arrays, none of which is a prefix of another, so a group's entries are exactly those
whose names start with it. Keys that are too long for the name of an entry are represented by a digest, after
a byte that cannot start a msgpack value. A stage with rows and accumulators may have both under one key; rows
are read by ``group + tag``.
"""

from hashlib import blake2b
from typing import Final

MAX_PART_BYTES: Final = 240
"""The maximum length of `group`, and of a row's key. LMDB allows names of up to 511 bytes."""

MAX_INPUTS: Final = 0xEF
"""The tags of inputs are below the tags with a special meaning."""

DOCUMENT_TAG: Final = b"\x00"
ACCUMULATORS_TAG: Final = b"\xf0"
MULTISET_TAG: Final = b"\xf1"
SHARER_TAG: Final = b"\xf2"
RANKS_TAG: Final = b"\xf3"
WITHHELD_TAG: Final = b"\xf4"
MOMENT_TAG: Final = b"\xf5"
OWNER_TAG: Final = b"\xff"
META_NAME: Final = b"\x00meta"
"""Not the name of an entry, because no msgpack array starts with a zero byte."""

HASH_BYTES: Final = 16

_DIGEST_MARK: Final = b"\xc1"

_FIXED_WIDTHS: Final = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
}  # fmt: skip
"""For the first byte of a msgpack number, the number of bytes that follow it."""

_COUNTED: Final = {
    0xC4: (1, False), 0xC5: (2, False), 0xC6: (4, False), 0xD9: (1, False), 0xDA: (2, False),
    0xDB: (4, False), 0xDC: (2, True), 0xDD: (4, True),
}  # fmt: skip
"""For the first byte of a msgpack value, the width of its count, and whether it counts items instead of
bytes."""

Entry = tuple[bytes, bytes]
Change = tuple[bytes, bytes | None]
"""An entry's name and its new value; None removes the entry."""


def part(packed_key: bytes) -> bytes:
    """Returns a packed key as a part of a name; different keys have different parts."""
    if len(packed_key) <= MAX_PART_BYTES:
        return packed_key
    return _DIGEST_MARK + digest(packed_key)


def group_width(name: bytes) -> int:
    """Returns the length of the group in an entry's name, in bytes."""
    return 1 + HASH_BYTES if is_digest(name) else _end_of_value(name, 0)


def is_digest(part_of_name: bytes) -> bool:
    """Returns whether a part of a name represents a key that is too long for it."""
    return part_of_name.startswith(_DIGEST_MARK)


def _end_of_value(data: bytes, start: int) -> int:
    """Returns the end of a msgpack value. Keys contain arrays, text, bytes, numbers, booleans and nil."""
    first = data[start]
    if first in _FIXED_WIDTHS:
        return start + 1 + _FIXED_WIDTHS[first]
    if first in _COUNTED:
        width, is_array = _COUNTED[first]
        count = int.from_bytes(data[start + 1 : start + 1 + width], "big")
        return _end_of_items(data, start + 1 + width, count) if is_array else start + 1 + width + count
    if 0x90 <= first <= 0x9F:
        return _end_of_items(data, start + 1, first - 0x90)
    return start + 1 + (first - 0xA0 if 0xA0 <= first <= 0xBF else 0)


def _end_of_items(data: bytes, start: int, count: int) -> int:
    for _ in range(count):
        start = _end_of_value(data, start)
    return start


def input_tag(number: int) -> bytes:
    """Returns the tag of an input's rows.

    Raises:
        ValueError: There are not enough tags for this many inputs.
    """
    if number >= MAX_INPUTS:
        msg = f"input {number} of a stage, expected at most {MAX_INPUTS} inputs; make the view smaller"
        raise ValueError(msg)
    return bytes((number + 1,))


def sharer_part(number: int) -> bytes:
    """Returns what follows the group in names of a stage's entries that are not rows.

    The number is that among the stages whose rows are kept together; 0 for the one that keeps them.
    """
    return SHARER_TAG + bytes((number,)) if number else b""


def tag_of(name: bytes, width: int) -> bytes:
    """Returns the tag of an entry of any of the stages, given the length of its group."""
    place = width + 2 if name[width : width + 1] == SHARER_TAG else width
    return name[place : place + 1]


def digest(data: bytes) -> bytes:
    """Returns 16 bytes that represent contents in comparisons."""
    return blake2b(data, digest_size=HASH_BYTES).digest()
