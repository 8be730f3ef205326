"""The names of topics, as Debezium makes them."""

import pytest

from slackwater_protocol.keys import data_topic


@pytest.mark.parametrize(
    ("table", "topic"),
    [
        ("s.orders", "inv.s.orders"),
        ("s.Orders", "inv.s.Orders"),
        ("s.my.table", "inv.s.my.table"),
        ("s.größe", "inv.s.gr__e"),
        ('s.a b/c%d\\e"f', "inv.s.a_b_c_d_e_f"),
        ("s.🍏", "inv.s.__"),
        ("s.a🍏b", "inv.s.a__b"),
        ("s." + "x" * 300, "inv.s." + "x" * 243),
    ],
)
def test_a_unit_of_utf_16_that_kafka_does_not_allow_becomes_an_underscore(table: str, topic: str) -> None:
    assert data_topic("inv", table) == topic
