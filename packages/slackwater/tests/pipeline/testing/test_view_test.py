"""Plain rows in, documents out; and the error of a test that requests something impossible."""

import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from slackwater.api import SlackwaterError, ViewTest
from slackwater.protocol import InputError

ADA = {"id": 1, "customer": "ada", "amount": "10.50"}
BOB = {"id": 2, "customer": "bob", "amount": 3, "due": date(2026, 1, 2)}


def test_documents_show_the_transactions_that_were_committed(test: ViewTest) -> None:
    test.insert("public.invoice", ADA, BOB).commit()
    assert test.documents("revenue") == [
        {"customer": "ada", "amount": "10.50", "due": None},
        {"customer": "bob", "amount": "3.00", "due": "2026-01-02"},
    ]
    test.update("invoice", {"id": 1, "customer": "bob"}).delete("invoice", {"id": 2}).commit()
    assert test.documents("revenue") == [{"customer": "bob", "amount": "10.50", "due": None}]
    test.truncate("invoice").commit()
    assert test.documents("revenue") == []
    assert test.commits == 3


def test_a_transaction_shows_as_a_whole(test: ViewTest) -> None:
    test.insert("line", {"invoice": 1, "number": 2, "price": 1}).insert("invoice", ADA)
    test.insert("line", {"invoice": 1, "number": 1, "price": "0.50"}).commit()
    lines = [{"number": 1, "price": Decimal("0.5")}, {"number": 2, "price": 1}]
    test.expect("invoices", [{"id": 1, "note": None, "lines": lines}])


def test_a_primary_key_can_change(test: ViewTest) -> None:
    test.insert("invoice", ADA, BOB).insert("line", {"invoice": 1, "number": 1, "price": 1}).commit()
    test.update("line", {"invoice": 2}, where={"invoice": 1}).commit()
    test.expect("invoices", [{"id": 2, "note": None, "lines": [{"number": 1, "price": 1}]}])


def test_where_changes_all_rows_that_match(test: ViewTest) -> None:
    test.insert("invoice", ADA, {**BOB, "customer": "ada"}, {**BOB, "id": 3}).commit()
    test.update("invoice", {"amount": 1}, where={"customer": "ada"}).commit()
    test.delete("invoice", {"amount": 3}).commit()
    test.expect("revenue", [{"customer": "ada", "amount": 2, "due": date(2026, 1, 2)}])


def test_sql_changes_rows_beside_plain_ones(test: ViewTest) -> None:
    test.insert("invoice", ADA, {**BOB, "due": "infinity"}).commit()
    test.sql(
        """
        BEGIN;
        UPDATE invoice SET amount = amount + 1 WHERE customer = 'ada';
        COMMIT;
        INSERT INTO public.invoice (id, customer, amount) SELECT id + 10, customer, amount FROM invoice;
        """
    )
    assert test.commits == 2
    test.commit().expect(
        "revenue",
        [
            {"customer": "ada", "amount": 23, "due": None},
            {"customer": "bob", "amount": 6, "due": "infinity"},
        ],
    )


def test_a_view_of_one_row_has_it_from_the_first_transaction_on(test: ViewTest) -> None:
    assert test.documents("total") == []
    test.commit().expect("total", [{"invoices": 0}])


def test_equal_documents_count_as_often_as_they_are_there(test: ViewTest) -> None:
    test.insert("invoice", {**ADA, "amount": 1}, {**BOB, "amount": 1}).commit()
    test.expect("amounts", [{"amount": 1}, {"amount": 1}])
    with pytest.raises(AssertionError, match=r'not expected: \{"amount": "1.00"\}'):
        test.expect("amounts", [{"amount": 1}])
    with pytest.raises(AssertionError, match=r'missing: \{"amount": 1\}'):
        test.expect("amounts", [{"amount": 1}] * 3)


def test_forgetting_all_rows_begins_anew(test: ViewTest) -> None:
    test.insert("invoice", ADA).commit().reset().insert("invoice", BOB).commit()
    assert [each["customer"] for each in test.documents("revenue")] == ["bob"]


def test_documents_are_in_the_order_of_their_keys(test: ViewTest) -> None:
    for number in (10, 9, 100):
        test.insert("invoice", {**ADA, "id": number})
        test.insert("line", {"invoice": number, "number": 1, "price": 1})
    assert [each["id"] for each in test.commit().documents("invoices")] == [9, 10, 100]


IMPOSSIBLE: list[tuple[Callable[[ViewTest], object], str]] = [
    (lambda t: t.insert("invoces", ADA), "no table invoces is declared; did you mean public.invoice"),
    (lambda t: t.insert("erp.invoice", ADA), "no table erp.invoice is declared; did you mean public.invoice"),
    (lambda t: t.insert("invoice", {"amunt": 1}), "public.invoice has no column amunt; did you mean amount?"),
    (
        lambda t: t.insert("invoice", {"xyz": 1}),
        "no column xyz; it has id, customer, amount, due, note, clerk",
    ),
    (
        lambda t: t.insert("invoice", {"id": 1, "amount": 1}),
        "column customer of public.invoice is NOT NULL and has no value; "
        "a row needs id bigint, customer text, amount numeric(12,2)",
    ),
    (
        lambda t: t.insert("invoice", {**ADA, "customer": None}),
        "column customer of public.invoice is NOT NULL",
    ),
    (
        lambda t: t.insert("invoice", {**ADA, "amount": "1.005"}),
        "column amount of public.invoice: '1.005' is not a value of type numeric(12,2): "
        "it has more than 2 digits",
    ),
    (lambda t: t.insert("invoice", ADA, ADA), "public.invoice already has a row with id = 1"),
    (lambda t: t.insert("invoice", [1]), "a row of public.invoice must be a mapping"),  # type: ignore[arg-type]
    (
        lambda t: t.insert("invoice", ADA).update("invoice", {"id": 7}),
        "there is no row to update in public.invoice with id = 7; it has id = 1",
    ),
    (
        lambda t: t.delete("invoice", {"id": 7}),
        "no row to delete in public.invoice with id = 7; the table has",
    ),
    (
        lambda t: t.update("line", {"invoice": 7}),
        "it is not clear which row of public.line to update: its primary key is invoice, number",
    ),
    (
        lambda t: t.insert("invoice", ADA, BOB).update("invoice", {"id": 2}, where={"id": 1}),
        "public.invoice already has a row with id = 2",
    ),
    (
        lambda t: t.insert("log", {"text": "a"}).delete("log", {"text": "a"}),
        "public.log has neither a primary key nor REPLICA IDENTITY FULL",
    ),
    (
        lambda t: t.sql("INSERT INTO log VALUES ('a'); DELETE FROM log"),
        "public.log has neither a primary key nor REPLICA IDENTITY FULL",
    ),
    (lambda t: t.sql("SELECT 1"), "`SELECT 1` does not change rows; INSERT, UPDATE, DELETE"),
    (lambda t: t.sql("ROLLBACK"), "`ROLLBACK` does not change rows"),
    (lambda t: t.sql("INSERT INTO"), "the SQL cannot be parsed: Parser Error"),
    (lambda t: t.sql("DELETE FROM nothing"), "`DELETE FROM nothing` fails: Catalog Error"),
    (
        lambda t: t.sql("INSERT INTO invoice (id, customer, amount) VALUES (1, 'a', 1), (1, 'b', 1)"),
        "public.invoice has two rows with id = 1",
    ),
    (lambda t: t.sql("INSERT INTO invoice (id) VALUES (1)"), "column customer of public.invoice is NOT NULL"),
    (lambda t: t.documents("revenu"), "there is no view revenu; did you mean revenue?"),
    (lambda t: t.documents("hidden"), "view hidden is not published (publish = false)"),
    (lambda t: t.insert("invoice", ADA).documents("revenue"), "1 change is not yet committed; call commit()"),
    (
        lambda t: t.expect("revenue", [{"custmer": "a"}]),
        "view revenue has no column custmer; did you mean customer?",
    ),
    (
        lambda t: t.expect("revenue", [{"customer": "a"}, {"customer": "a"}]),
        'view revenue: customer = "a" is expected twice',
    ),
]


@pytest.mark.parametrize(("work", "problem"), IMPOSSIBLE)
def test_what_is_impossible_is_said_in_words(
    test: ViewTest, work: Callable[[ViewTest], object], problem: str
) -> None:
    with pytest.raises(InputError, match=re.escape(problem)):
        work(test)


def test_a_difference_names_key_and_column(test: ViewTest) -> None:
    test.insert("invoice", ADA, BOB, {**ADA, "id": 3, "customer": "cyd"}).commit()
    with pytest.raises(AssertionError) as failed:
        test.expect(
            "revenue",
            [
                {"customer": "ada", "amount": Decimal("10.5"), "due": None},
                {"customer": "bob", "amount": Decimal("4.00"), "due": date(2026, 1, 2)},
                {"customer": "eve", "amount": 1, "due": None},
            ],
        )
    assert str(failed.value).splitlines() == [
        "view revenue differs after transaction 1:",
        '  customer = "bob":',
        '    amount: expected 4.00, got "3.00"',
        '  not expected: {"customer": "cyd", "amount": "10.50", "due": null}',
        '  missing: {"customer": "eve", "amount": 1, "due": null}',
    ]


def test_a_column_that_is_not_expected_differs(test: ViewTest) -> None:
    test.insert("invoice", ADA).commit()
    with pytest.raises(AssertionError, match="due: expected nothing, got null"):
        test.expect("revenue", [{"customer": "ada", "amount": "10.50"}])


@pytest.mark.parametrize("wrong", [True, "10.51", 10, None])
def test_values_are_compared_strictly(test: ViewTest, wrong: object) -> None:
    test.insert("invoice", ADA).commit()
    with pytest.raises(AssertionError, match="amount: expected"):
        test.expect("revenue", [{"customer": "ada", "amount": wrong, "due": None}])


def test_a_number_stands_for_no_text_that_is_not_a_decimal(test: ViewTest) -> None:
    test.insert("invoice", {**ADA, "customer": "7"}).commit()
    with pytest.raises(AssertionError, match="not expected"):
        test.expect("revenue", [{"customer": 7, "amount": "10.50", "due": None}])


def test_many_differences_are_counted(test: ViewTest) -> None:
    test.insert("invoice", *({**ADA, "id": n, "customer": f"c{n:02}"} for n in range(25))).commit()
    with pytest.raises(AssertionError, match="and 5 more") as failed:
        test.expect("revenue", [])
    assert len(str(failed.value).splitlines()) == 22


def test_a_folder_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SlackwaterError, match="no such file"):
        ViewTest(tmp_path)
