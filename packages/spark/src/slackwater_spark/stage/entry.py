"""How a bucket's contents are laid out in an index: sorted entries, those of one stage key side by side.

An entry's name is ``group + tag + row``: `group` from the stage key, `tag` 0 for the hash of the last
document and 1 + number of the input for rows, `row` from the primary key. Packed keys are msgpack arrays, of
which none is a prefix of another, so a group's entries are exactly those that start with it. Keys too long
for an index entry are represented by a digest, after a byte that starts no msgpack value.
"""

from hashlib import blake2b
from typing import Final

MAX_PART_BYTES: Final = 240
"""Of `group` and of `row`; LMDB takes names of 511 bytes."""

DOCUMENT_TAG: Final = b"\x00"
META_NAME: Final = b"\x00meta"
"""Not the name of an entry: no msgpack array starts with a zero byte."""

HASH_BYTES: Final = 16

_DIGEST_MARK: Final = b"\xc1"

Entry = tuple[bytes, bytes]
Change = tuple[bytes, bytes | None]
"""An entry's name and its new value; None removes it."""


def part(packed_key: bytes) -> bytes:
    """A packed key as a part of a name; different for different keys."""
    if len(packed_key) <= MAX_PART_BYTES:
        return packed_key
    return _DIGEST_MARK + digest(packed_key)


def input_tag(number: int) -> bytes:
    """The tag of an input's rows."""
    return bytes((number + 1,))


def digest(data: bytes) -> bytes:
    """16 bytes by which contents are compared."""
    return blake2b(data, digest_size=HASH_BYTES).digest()
