import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.protocol import CommitPosition, MalformedRecordError, format_position, parse_position


@given(st.integers(0, 2**64 - 1))
def test_a_position_survives_its_printed_form(position: int) -> None:
    assert parse_position(format_position(position)) == position


def test_a_position_is_printed_as_postgresql_prints_an_lsn() -> None:
    assert format_position(22270488) == "0/153D218"
    assert format_position((7 << 32) + 0xA) == "7/A"


def test_a_decimal_position_is_read_too() -> None:
    assert parse_position("22270488") == 22270488
    with pytest.raises(MalformedRecordError):
        parse_position("x/1")


def test_a_later_timeline_orders_after_any_position() -> None:
    assert CommitPosition(timeline=0, lsn=2**63) < CommitPosition(timeline=1, lsn=0)
