"""States: of single documents, of a view evaluated whole, and of the output as a whole."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from slackwater_certify import Certificate, Mode, OutputRecords, Specification, load_specification
from slackwater_certify.certifier import judge
from slackwater_certify.committed_states import CommittedStates, arrow_values, evaluate_committed_states
from slackwater_certify.errors import CertifyConfigError
from slackwater_certify.history import History
from slackwater_certify.output import Output
from slackwater_certify.view import View, connect, load_view
from slackwater_lab.fakes.certified import (
    SPECIFICATION,
    RightOutput,
    SourceLog,
    line,
    order,
    write_specification,
)

Judge = Callable[..., Certificate]

STATE_INVARIANT = """
[[invariant]]
name = "the sum of all totals is constant"
scope = "state"
holds = "SELECT count(*) = 0 OR sum(total) = 10 FROM output"
error = "SELECT sum(total) - 10 FROM output"
"""
TOTALS = """
SELECT TRANSACTIONALLY count(*) AS orders, sum(total) AS total, 1 AS id FROM shop.orders
"""


def transfers() -> SourceLog:
    """Money moves between two orders; all of them together always have 10."""
    log = SourceLog()
    log.snapshot([("orders", order(1, "6.00")), ("orders", order(2, "4.00"))])
    for amount in (1, 3, 2, 5):
        log.commit(("orders", 1, order(1, f"{6 - amount}.00")), ("orders", 2, order(2, f"{4 + amount}.00")))
    return log


def states_of(log: SourceLog, specification: Specification, view: View) -> CommittedStates:
    history = History(view.tables)
    for record in log.records:
        if record.topic.endswith(".transaction"):
            history.add_transaction_record(record.value)
        else:
            history.add_row(record.value)
    return evaluate_committed_states(history, specification, view, lambda _: None)


@pytest.fixture
def states_specification(tmp_path: Path) -> Specification:
    return load_specification(
        write_specification(tmp_path, SPECIFICATION[: SPECIFICATION.index("[[")] + STATE_INVARIANT)
    )


@pytest.mark.parametrize("mode", [Mode.INVARIANT, Mode.BOTH])
def test_state_invariants_hold_at_commit_records(states_specification: Specification, mode: Mode) -> None:
    log, view = transfers(), load_view(states_specification)
    output = RightOutput.publish(log, per_batch=2, partitions=2)
    records = OutputRecords(output.outputs, output.commits)
    committed = states_of(log, states_specification, view)
    assert judge(states_specification, view, records, committed, mode=mode).is_clean


def test_state_invariants_find_what_is_right_document_by_document(
    states_specification: Specification,
) -> None:
    log, view = transfers(), load_view(states_specification)
    output = RightOutput.publish(log).without_claims()
    for position in range(1, len(output.outputs), 2):
        later = output.outputs[position].visible_ms + 4
        output.change(position, visible_ms=later)
    records = OutputRecords(output.outputs)
    with states_of(log, states_specification, view) as committed:
        certificate = judge(states_specification, view, records, committed, mode=Mode.BOTH)
    assert certificate.torn == 0
    assert certificate.invariant_violations == 4
    assert certificate.largest_error == 5.0


def test_an_invariant_that_is_no_sql_is_named(states_specification: Specification) -> None:
    invariant = replace(states_specification.invariants[0], holds="SELECT nonsense FROM output")
    specification = replace(states_specification, invariants=(invariant,))
    view, output = load_view(specification), RightOutput.publish(transfers())
    records = OutputRecords(output.outputs, output.commits)
    with pytest.raises(CertifyConfigError, match=r"invariant\[0\]"):
        judge(specification, view, records, None, mode=Mode.INVARIANT)


def test_a_view_without_rows_is_evaluated_whole_at_every_commit(tmp_path: Path) -> None:
    text = SPECIFICATION.replace("[view.rows]", "").replace('"shop.orders" = ["id"]', "")
    text = text[: text.index("[[")].replace('"shop.lines" = ["order_id"]', "")
    specification = load_specification(write_specification(tmp_path, text))
    (tmp_path / "view.sql").write_text(TOTALS)
    view, log = load_view(specification), SourceLog()
    log.commit(("orders", 1, order(1, "6.00")))
    log.commit(("orders", 2, order(2, "4.00")), ("orders", 1, order(1, "7.00")))
    log.commit(("orders", 2, None))
    totals: list[dict[str, Any]] = [
        {"id": 1, "orders": count, "total": total}
        for count, total in ((1, "6.00"), (2, "11.00"), (1, "7.00"))
    ]
    outputs = [Output((0, i), 5, {"id": 1}, each) for i, each in enumerate(totals)]
    with states_of(log, specification, view) as committed:
        assert judge(specification, view, OutputRecords(outputs), committed).is_clean
        outputs[1] = replace(outputs[1], document={**totals[1], "total": "10.00"})
        certificate = judge(specification, view, OutputRecords(outputs), committed)
    assert (certificate.torn, certificate.largest_error) == (1, 1.0)


def test_rows_that_name_another_document_than_the_view_makes_are_an_error(tmp_path: Path) -> None:
    text = SPECIFICATION.replace('"shop.orders" = ["id"]', '"shop.orders" = ["total"]')
    specification = load_specification(write_specification(tmp_path, text))
    view = load_view(specification)
    with pytest.raises(CertifyConfigError, match=r"check \[view\.rows\]"):
        states_of(transfers(), specification, view)


def test_a_large_value_that_did_not_change_is_taken_from_the_row_before(judged: Judge) -> None:
    log = SourceLog()
    log.commit(("orders", 1, order(1, "6.00")))
    log.commit(("orders", 1, order(1, "7.00")))
    event = json.loads(log.records[-2].value)
    event["after"]["placed_at"] = "__debezium_unavailable_value"
    log.records[-2] = replace(log.records[-2], value=json.dumps(event).encode())
    assert judged(log, RightOutput.publish(log)).is_clean


def test_a_truncate_deletes_every_document(judged: Judge) -> None:
    log = SourceLog()
    log.commit(("orders", 1, order(1, "1.00")), ("lines", 11, line(11, 1, "1.00")))
    log.commit(("orders", 1, None))
    event = json.loads(log.records[-2].value)
    truncate = {**event, "op": "t", "before": None}
    log.records[-2] = replace(log.records[-2], key=b"null", value=json.dumps(truncate).encode())
    assert judged(log, RightOutput.publish(log)).is_clean


def test_snapshots_of_the_whole_must_be_at_one_commit(judged: Judge) -> None:
    log = transfers()
    shown = [log.states[0], log.states[2], {1: log.states[3][1], 2: log.states[4][2]}, log.states[4]]
    outputs, before = RightOutput(), dict[int, Any]()
    for number, state in enumerate(shown):
        changed = [key for key in state if state[key] != before.get(key)]
        outputs.outputs += [Output((number, i), number, document=state[key]) for i, key in enumerate(changed)]
        before = state
    certificate = judged(log, outputs, snapshots=list(range(4)))
    assert certificate.torn == 0
    assert certificate.inconsistent_states == 1
    assert "snapshot 2" in certificate.examples["inconsistent state"][0]


@pytest.mark.parametrize(
    ("join", "off"),
    [
        ("JOIN", {"common_subplan"}),
        ("FULL OUTER JOIN", {"common_subplan", "filter_pushdown"}),
    ],
)
def test_a_view_is_evaluated_without_the_optimizations_that_get_it_wrong(
    tmp_path: Path, join: str, off: set[str]
) -> None:
    specification = load_specification(write_specification(tmp_path))
    view = "SELECT TRANSACTIONALLY o.id, p.id AS p FROM shop.orders o JOIN shop.orders p ON p.id = o.id"
    specification.view.sql.write_text(view.replace("JOIN", join))
    specification = replace(
        specification, view=replace(specification.view, key=("id",), unordered=frozenset())
    )
    with connect(load_view(specification).sql) as connection:
        found = connection.execute("SELECT current_setting('disabled_optimizers')").fetchone()
    assert found is not None
    assert set(found[0].split(",")) == off


@pytest.mark.parametrize(
    ("kind", "wire", "text"),
    [
        ("DATE", 2_146_033_979, "infinity"),
        ("DATE", -622_191_234, "infinity"),  # in a snapshot
        ("DATE", -625_821_272, "-infinity"),
        ("TIMESTAMP", 2**63 - 1, "infinity"),
        ("TIMESTAMP", -9_223_372_036_832_400_000, "-infinity"),
        ("TIMESTAMP WITH TIME ZONE", "-infinity", "-infinity"),
    ],
)
def test_infinite_times_of_a_source_are_infinite_in_the_view(kind: str, wire: object, text: str) -> None:
    with connect() as connection:
        connection.register("given", pa.table({"v": arrow_values(duckdb.sqltype(kind), [wire])}))
        found = connection.execute(f"SELECT CAST(CAST(v AS {kind}) AS VARCHAR) FROM given").fetchall()  # noqa: S608 - a type
    assert found == [(text,)]


@pytest.mark.parametrize(
    ("statements", "is_refused"),
    [
        ("ALTER TABLE ONLY shop.orders REPLICA IDENTITY USING INDEX orders_code;", True),
        ('ALTER TABLE "shop"."orders" REPLICA IDENTITY USING INDEX "Code";', True),
        ("ALTER TABLE shop.orders REPLICA IDENTITY USING INDEX orders_pkey;", False),
        ("ALTER TABLE shop.orders REPLICA IDENTITY FULL;", False),
        (
            "ALTER TABLE shop.orders REPLICA IDENTITY USING INDEX orders_code; "
            "ALTER TABLE shop.orders REPLICA IDENTITY DEFAULT;",
            False,
        ),
        ("ALTER TABLE shop.others REPLICA IDENTITY USING INDEX others_code;", False),
    ],
)
def test_a_table_whose_deletes_do_not_tell_the_primary_key_is_refused(
    tmp_path: Path, statements: str, is_refused: bool
) -> None:
    specification = load_specification(write_specification(tmp_path))
    schema = specification.source.schema
    others = "CREATE TABLE shop.others (id int PRIMARY KEY);"
    schema.write_text(f"{schema.read_text()}\n{others}\n{statements}")
    with (
        pytest.raises(CertifyConfigError, match=r"shop\.orders .*REPLICA IDENTITY USING INDEX")
        if is_refused
        else nullcontext()
    ):
        load_view(specification)
