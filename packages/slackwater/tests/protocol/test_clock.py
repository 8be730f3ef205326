from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.protocol import END_OF_TIME_MS, epoch_ms, from_epoch_ms


@given(st.integers(min_value=-END_OF_TIME_MS // 10, max_value=END_OF_TIME_MS - 1))
def test_milliseconds_come_back_as_they_were(milliseconds: int) -> None:
    assert epoch_ms(from_epoch_ms(milliseconds)) == milliseconds


@given(st.integers(min_value=0, max_value=END_OF_TIME_MS - 1), st.integers(min_value=0, max_value=999))
def test_parts_of_a_millisecond_that_is_not_over_do_not_count(milliseconds: int, microseconds: int) -> None:
    moment = from_epoch_ms(milliseconds) + timedelta(microseconds=microseconds)
    assert epoch_ms(moment) == milliseconds


def test_zones_do_not_change_a_moment() -> None:
    zone = timezone(timedelta(hours=5, minutes=45))
    assert epoch_ms(datetime(1970, 1, 1, 5, 45, 1, tzinfo=zone)) == 1000
    assert epoch_ms(datetime(2026, 1, 1)) == epoch_ms(datetime(2026, 1, 1).astimezone(UTC))  # noqa: DTZ001


def test_what_no_calendar_has_is_an_error() -> None:
    with pytest.raises(OverflowError):
        from_epoch_ms(END_OF_TIME_MS)
