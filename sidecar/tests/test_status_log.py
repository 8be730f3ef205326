"""What is written to the log about a source, once for each event."""

import logging
from collections.abc import Sequence

import pytest

from slackwater.cuts import FrontierState
from slackwater.protocol import OpenTransaction, SkipDecision, TimelineDecision
from slackwater_sidecar.status import StateLogger

OPEN = [
    OpenTransaction(xid=xid, commit_lsn=16, since_ms=0, expected={}, received={}, hint="rows are missing")
    for xid in (0, 7)
]


@pytest.fixture
def state_logger(caplog: pytest.LogCaptureFixture) -> StateLogger:
    caplog.set_level(logging.INFO, "slackwater_sidecar")
    return StateLogger("inv")


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Levels and lines since the last call."""
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return lines


def test_a_state_is_said_when_it_changes_and_is_a_warning_unless_all_is_well(
    state_logger: StateLogger, caplog: pytest.LogCaptureFixture
) -> None:
    for state in (FrontierState.RUNNING, FrontierState.RUNNING, FrontierState.STOPPED):
        state_logger.log_changes(state, "", [])
    assert said(caplog) == [
        ("INFO", "state of source inv is running"),
        ("INFO", "state of source inv is stopped"),
    ]

    state_logger.log_changes(FrontierState.WAITING, "refused", [])
    state_logger.log_changes(FrontierState.WAITING, "refused again", [])
    assert said(caplog) == [("WARNING", "state of source inv is waiting: refused")]


@pytest.mark.parametrize(
    ("waits_for", "name"), [(OPEN[:1], "the snapshot"), (OPEN[1:], "transaction 7"), (OPEN, "")]
)
def test_what_is_waited_for_is_a_warning_and_what_has_resolved_is_none(
    state_logger: StateLogger,
    caplog: pytest.LogCaptureFixture,
    waits_for: Sequence[OpenTransaction],
    name: str,
) -> None:
    state_logger.log_changes(FrontierState.RUNNING, "", [])
    said(caplog)

    for _ in range(2):
        state_logger.log_changes(FrontierState.RUNNING, "", waits_for)
    assert [level for level, _ in said(caplog)] == ["WARNING"] * len(waits_for)

    for _ in range(2):
        state_logger.log_changes(FrontierState.RUNNING, "", [])
    resolved = said(caplog)
    assert [level for level, _ in resolved] == ["INFO"] * len(waits_for)
    assert ("INFO", f"waiting no longer for {name}") in resolved or not name


def test_a_decision_is_said_as_what_it_is(
    state_logger: StateLogger, caplog: pytest.LogCaptureFixture
) -> None:
    state_logger.log_decision(SkipDecision(source="inv", timeline=1, to_lsn=32, wall_ms=1, decided_by="ann"))
    state_logger.log_decision(
        TimelineDecision(source="inv", timeline=2, transaction_offset=4, wall_ms=1, decided_by="ann")
    )

    assert said(caplog) == [
        ("WARNING", "applying the decision to skip to 0/20"),
        ("WARNING", "applying the decision to begin timeline 2"),
    ]
