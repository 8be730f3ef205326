import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater_protocol import (
    CommitPosition,
    MalformedRecordError,
    format_lsn,
    parse_lsn,
    parse_transaction_id,
)


def test_the_id_of_an_end_record_gives_xid_and_commit_lsn() -> None:
    assert parse_transaction_id("736:22270488") == (736, 22270488)


@pytest.mark.parametrize("text", ["736", "", "uuid:x", "5.6.641", "736:"])
def test_ids_of_other_connectors_are_refused(text: str) -> None:
    with pytest.raises(MalformedRecordError, match="expected '<xid>:<lsn>'"):
        parse_transaction_id(text)


@given(st.integers(0, 2**64 - 1))
def test_an_lsn_survives_its_printed_form(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


def test_a_decimal_lsn_is_read_too() -> None:
    assert parse_lsn("22270488") == 22270488
    with pytest.raises(MalformedRecordError):
        parse_lsn("x/1")


def test_a_later_timeline_orders_after_any_lsn() -> None:
    assert CommitPosition(timeline=0, lsn=2**63) < CommitPosition(timeline=1, lsn=0)


def test_transaction_0_is_none_that_a_connector_names() -> None:
    with pytest.raises(MalformedRecordError, match="got '0:22270488'"):
        parse_transaction_id("0:22270488")


def test_the_numbers_of_a_transaction_id_have_at_most_63_bits() -> None:
    most = 2**63 - 1
    assert parse_transaction_id(f"{most}:{most}") == (most, most)
    for text in (f"{most + 1}:1", f"1:{most + 1}"):
        with pytest.raises(MalformedRecordError):
            parse_transaction_id(text)
