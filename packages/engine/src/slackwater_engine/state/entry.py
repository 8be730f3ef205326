"""The layout of a bucket's contents: sorted entries, those of one stage key side by side.

An entry's name is ``group + tag + rest``: `group` from the stage key, or from the key of a group whose
aggregates are kept. The tag says what the entry is and what its rest means:

* 0: the hash of the last document; no rest.
* 1 + number of the input: a row; its primary key.
* `ACCUMULATORS_TAG`: a group's counts and sums; no rest.
* `MULTISET_TAG`: a value of an ordered multiset; number of the multiset (2 bytes), then the sort key.
* `OWNER_TAG`: the partition that a key's rows come from; no rest.
* `SHARER_TAG`: an entry, other than a row, of a stage whose rows another one keeps; its number among those
  stages (1 byte), then its own tag and rest.

Packed keys are msgpack arrays, of which none is a prefix of another, so a group's entries are exactly those
that start with it. Keys too long for an index entry are represented by a digest, after a byte that starts no
msgpack value. A stage with rows and accumulators may have both under one key: rows are read by
``group + tag``.
"""

from hashlib import blake2b
from typing import Final

MAX_PART_BYTES: Final = 240
"""Of `group` and of a row's key each; LMDB takes names of 511 bytes."""

MAX_INPUTS: Final = 0xEF
"""Tags of inputs end below those with a meaning of their own."""

DOCUMENT_TAG: Final = b"\x00"
ACCUMULATORS_TAG: Final = b"\xf0"
MULTISET_TAG: Final = b"\xf1"
SHARER_TAG: Final = b"\xf2"
OWNER_TAG: Final = b"\xff"
META_NAME: Final = b"\x00meta"
"""Not the name of an entry: no msgpack array starts with a zero byte."""

HASH_BYTES: Final = 16

_DIGEST_MARK: Final = b"\xc1"

_FIXED_WIDTHS: Final = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
}  # fmt: skip
"""First byte of a msgpack number to the number of bytes behind it."""

_COUNTED: Final = {
    0xC4: (1, False), 0xC5: (2, False), 0xC6: (4, False), 0xD9: (1, False), 0xDA: (2, False),
    0xDB: (4, False), 0xDC: (2, True), 0xDD: (4, True),
}  # fmt: skip
"""First byte of a msgpack value to the width of its count, and whether items are counted, not bytes."""

Entry = tuple[bytes, bytes]
Change = tuple[bytes, bytes | None]
"""An entry's name and its new value; None removes it."""


def part(packed_key: bytes) -> bytes:
    """Returns a packed key as a part of a name; different for different keys."""
    if len(packed_key) <= MAX_PART_BYTES:
        return packed_key
    return _DIGEST_MARK + digest(packed_key)


def group_width(name: bytes) -> int:
    """Returns how many bytes of an entry's name are its group."""
    return 1 + HASH_BYTES if is_digest(name) else _end_of_value(name, 0)


def is_digest(part_of_name: bytes) -> bool:
    """Returns whether a part of a name stands for a key that is too long for it."""
    return part_of_name.startswith(_DIGEST_MARK)


def _end_of_value(data: bytes, start: int) -> int:
    """Returns the end of a msgpack value. Packed keys hold arrays, text, bytes, numbers, booleans and nil."""
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
        ValueError: There are no tags for so many inputs.
    """
    if number >= MAX_INPUTS:
        msg = f"input {number} of a stage, expected at most {MAX_INPUTS} inputs; make the view smaller"
        raise ValueError(msg)
    return bytes((number + 1,))


def sharer_part(number: int) -> bytes:
    """Returns what stands behind the group in names of entries, other than rows, of one of several stages.

    Args:
        number: The stage's among those whose rows are kept together; 0: the one that keeps them.
    """
    return SHARER_TAG + bytes((number,)) if number else b""


def tag_of(name: bytes, width: int) -> bytes:
    """Returns the tag of an entry, whichever stage it is of, by the width of its group."""
    place = width + 2 if name[width : width + 1] == SHARER_TAG else width
    return name[place : place + 1]


def digest(data: bytes) -> bytes:
    """Returns 16 bytes by which contents are compared."""
    return blake2b(data, digest_size=HASH_BYTES).digest()
