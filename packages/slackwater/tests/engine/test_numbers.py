"""Sums travel as decimal text and are kept in units of their last decimal."""

import pytest

from slackwater.engine.evaluate.groups import decimal_text, unscaled
from slackwater.engine.payloads import documents_stage, sequence_from


@pytest.mark.parametrize(
    ("text", "scale", "number"),
    [
        ("12.34", 2, 1234),
        ("12.3", 2, 1230),
        ("12", 2, 1200),
        ("-0.05", 2, -5),
        ("0.05", 2, 5),
        ("-7", 0, -7),
        ("123456789012345678901234567890.12", 2, 12345678901234567890123456789012),
    ],
)
def test_a_decimal_is_a_number_of_its_last_decimals(text: str, scale: int, number: int) -> None:
    assert unscaled(text, scale) == number


@pytest.mark.parametrize(("text", "scale"), [("1.234", 2), ("1.2", 0), ("x", 2), ("1.2.3", 5)])
def test_what_is_no_decimal_of_that_scale_is_refused(text: str, scale: int) -> None:
    with pytest.raises(ValueError, match=r"decimals|invalid literal"):
        unscaled(text, scale)


@pytest.mark.parametrize(
    ("number", "scale", "text"),
    [
        (1234, 2, "12.34"),
        (5, 2, "0.05"),
        (-5, 2, "-0.05"),
        (0, 2, "0.00"),
        (-1234, 2, "-12.34"),
        (-7, 0, "-7"),
    ],
)
def test_a_number_is_shown_with_all_its_decimals_and_its_sign(number: int, scale: int, text: str) -> None:
    assert decimal_text(number, scale) == text


def test_each_bucket_of_each_stage_sends_under_a_sequence_of_its_own() -> None:
    own = {sequence_from(stage, bucket) for stage in (1, 2, 3) for bucket in (0, 1, 2)}

    assert len(own) == 9
    assert min(own) >= 1 << 62, "spans of the source have smaller ones"
    assert max(own) < 1 << 63, "it is a signed number in Spark"


def test_views_are_told_apart_by_negative_stages() -> None:
    assert [documents_stage(view) for view in (0, 1, 2)] == [-1, -2, -3]
