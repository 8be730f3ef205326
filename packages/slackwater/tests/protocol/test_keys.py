"""The names of tables, as somebody writes them, and of topics, as Debezium makes them."""

import pytest

from slackwater.protocol import ConfigError
from slackwater.protocol.keys import data_topic, listed_names, quoted_table, table_name


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


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("s.orders", "s.orders"),
        ("s.Orders", "s.Orders"),
        ("s.a.b", "s.a.b"),
        ('s."a.b"', "s.a.b"),
        ('"S".a', "S.a"),
        ('"s, t"."a""b"', 's, t.a"b'),
        ('s.a"b', 's.a"b'),
        ('s."""a"', 's."a'),
        ("s.a b ", "s.a b "),
        ("s. 😀\n", "s. 😀\n"),
    ],
)
def test_a_table_is_named_plainly_or_as_in_sql(written: str, name: str) -> None:
    assert table_name(written) == name
    assert table_name(quoted_table(name)) == name


@pytest.mark.parametrize("written", ["", "orders", ".a", "s.", 's.""', '""."a"', 's."a', '"s.a"', 's."a"b'])
def test_what_names_no_table_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match=r"is not the name of a table; expected schema\.table"):
        table_name(written)


def test_a_schema_with_a_dot_in_its_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"schema 'a\.b' has a dot in its name"):
        table_name('"a.b".c')


def test_a_comma_in_quotes_belongs_to_a_name() -> None:
    assert listed_names(' s.a, s."b,c" ,,"s,".d') == ("s.a", 's."b,c"', '"s,".d')
