"""Headers in a column, and ids in a header."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.protocol import ConfigError
from slackwater_messaging import MessageId, Outbox
from slackwater_messaging.committing import gid_of, sender_of
from slackwater_messaging.message import decode_headers, encode_headers, header_of, microseconds
from slackwater_messaging.sender import check_name

HEADERS = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.binary())).map(tuple)


@given(HEADERS)
def test_headers_come_back_from_their_column(headers: tuple[tuple[str, bytes], ...]) -> None:
    import json

    column = encode_headers(headers)
    assert decode_headers(json.loads(column)) == headers


def test_text_stays_readable_and_bytes_that_jsonb_cannot_hold_do_not_get_there() -> None:
    assert encode_headers((("trace", "grün".encode()),)) == '[["trace", "grün"]]'
    assert encode_headers((("nul", b"a\0"), ("raw", b"\xff"))) == (
        '[["nul", {"base64": "YQA="}], ["raw", {"base64": "/w=="}]]'
    )


def test_an_id_comes_back_from_its_header() -> None:
    found = MessageId("shop.outbox", 7, microseconds(datetime(2026, 11, 25, tzinfo=UTC)))
    assert str(found) == "shop.outbox/7/1795564800000000"
    assert MessageId.parse(str(found)) == found


@pytest.mark.parametrize("text", ["", "outbox", "outbox/7", "outbox/7/x", "outbox/-7/1", "outbox//1"])
def test_other_texts_are_no_ids(text: str) -> None:
    assert MessageId.parse(text) is None


def test_the_newest_of_several_headers_counts() -> None:
    assert header_of([("a", b"1"), ("b", b"2"), ("a", b"3")], "a") == "3"
    assert header_of({"a": "1"}, "a") == "1"
    assert header_of([("a", b"\xff")], "a") is None
    assert header_of(None, "a") is None


def test_the_sender_stands_in_the_name_of_a_prepared_transaction() -> None:
    assert sender_of(gid_of("billing-1", "abc")) == "billing-1"
    assert [sender_of(gid) for gid in ("slackwater", "slackwater:x", "other:billing:1", "slackwater::1")] == [
        None
    ] * 4


@pytest.mark.parametrize("name", ["", "a.b.c", "out box", 'x"y', "1st", "ä"])
def test_a_name_that_is_no_table_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"expected table or schema\.table"):
        Outbox(name)


@pytest.mark.parametrize("name", ["", "a:b", "ä", "x" * 101])
def test_a_name_that_is_no_transactional_id_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="the name of a sender is"):
        check_name(name)
