"""Counting what a bucket's entries are."""

import msgspec

from slackwater.engine.state.entry import (
    ACCUMULATORS_TAG,
    DOCUMENT_TAG,
    MULTISET_TAG,
    Change,
    Entry,
    digest,
    input_tag,
    part,
)
from slackwater.engine.state.inspection import (
    Amount,
    BucketContents,
    KeyAmount,
    count_contents,
    read_contents,
    show_key,
)


def packed(*values: object) -> bytes:
    return msgspec.msgpack.encode(values)


def row(key: bytes, number: int, value: bytes = b"row", table: int = 0) -> Entry:
    return part(key) + input_tag(table) + packed(number), value


LONG = packed("x" * 1000)


def counted(entries: list[Entry], top: int = 5) -> BucketContents:
    return count_contents(sorted(entries), top)


def test_entries_are_counted_by_what_they_are() -> None:
    key = packed(1)
    contents = counted(
        [
            row(key, 1),
            row(key, 2),
            row(key, 2, table=1),
            (key + DOCUMENT_TAG, bytes(16)),
            (key + ACCUMULATORS_TAG, b"numbers"),
            (key + MULTISET_TAG + b"\x00\x00value", b"1"),
        ]
    )
    assert {kind: amount.entries for kind, amount in contents.kinds.items()} == {
        "documents": 1,
        "input 0": 2,
        "input 1": 1,
        "groups": 1,
        "values": 1,
    }
    assert contents.kinds["documents"] == Amount(1, len(key) + 1 + 16)
    assert contents.keys == 1


def test_keys_are_told_apart_and_the_largest_come_first() -> None:
    entries = [row(packed(key), number) for key in range(20) for number in range(key + 1)]
    contents = counted([*entries, row(LONG, 1, bytes(5000))], top=3)
    assert contents.keys == 21
    assert [each.key for each in contents.largest] == [part(LONG), packed(19), packed(18)]
    assert [each.entries for each in contents.largest] == [1, 20, 19]


def test_buckets_add_up() -> None:
    one, other = counted([row(packed(1), 1)], top=1), counted([row(packed(2), 1), row(packed(2), 2)], top=1)
    one.add(other, top=1)
    assert (one.keys, one.kinds["input 0"].entries) == (2, 3)
    assert one.largest == other.largest


def test_a_bucket_without_entries_has_nothing() -> None:
    assert counted([]) == BucketContents()


def test_a_long_key_is_shown_by_its_digest() -> None:
    assert show_key(None, part(LONG)) == f"(a long key with digest {digest(LONG).hex()})"
    assert show_key(None, packed("a", None, 5)) == '["a",null,5]'


def test_an_index_to_look_into_is_gone_afterwards() -> None:
    changes: list[Change] = [row(packed(1), 1), row(packed(2), 2)]
    seen = read_contents(iter([changes]), lambda contents: count_contents(contents.entries(), 1))
    assert (seen.keys, seen.largest[0]) == (2, KeyAmount(len(changes[1][0]) + 3, 1, packed(2)))
