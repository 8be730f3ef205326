"""A real connector, killed inside long transactions, numbers rows again and counts too few of them.

The first test shows that this happened in the run, the next ones that nothing came of it. What is true comes
from the database: its own log (``test_decoding``) and its final state. The last test switches off the rules
of the frontier for numberings and reads the topics of the same run again: cuts then come too early.
"""

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from slackwater.cdc import completeness
from slackwater.cdc.transaction import Transaction
from slackwater.dev import ConnectMode
from slackwater_lab.debezium.recording import follow
from slackwater_lab.replays import JOURNAL, STACK, Killed, ReplayResult, ReplayRun
from slackwater_lab.servers.stack import LabStack

pytestmark = [pytest.mark.system, pytest.mark.slow]

SEED = 5
ROUNDS = [Killed.BOTH, Killed.CONNECT, Killed.BOTH, Killed.CONNECT, Killed.POSTGRES]
"""Once more and again, until a transaction was undercounted."""
MANY_ROUNDS = [*[Killed.CONNECT] * 5, *ROUNDS * 4]
SECONDS = 600.0
READINGS = 6


def has_as_many_rows_as_counted(transaction: Transaction) -> bool:
    """The rule that one would write who does not know connectors: the numbers of the rows do not matter."""
    end = transaction.end
    tracks = [track for rows in transaction.runs for track in rows.tracks.values()]
    read = sum(len(track) - track.count(0) for track in tracks)
    return end is not None and read >= sum(end.counts.values())


def say(line: str) -> None:
    """Shown when a test fails."""
    sys.stdout.write(f"{line}\n")


@dataclass(frozen=True)
class Variant:
    rounds: Sequence[Killed]
    seconds: float
    connect: ConnectMode = ConnectMode.STANDALONE


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Variant(ROUNDS, SECONDS), id="some rounds"),
        pytest.param(Variant(MANY_ROUNDS, SECONDS), id="many rounds"),
        pytest.param(Variant(ROUNDS * 2, SECONDS, ConnectMode.EXACTLY_ONCE), id="exactly once"),
    ],
)
def outcome(
    request: pytest.FixtureRequest,
    dev_stack: Callable[..., LabStack],
    tmp_path_factory: pytest.TempPathFactory,
) -> ReplayResult:
    """One run of the whole product; everything below looks at what it left behind."""
    variant: Variant = request.param
    folder: Path = tmp_path_factory.mktemp("replays")
    say(f"seed {SEED}")
    stack = dev_stack(**STACK, connect_mode=variant.connect)
    try:
        return ReplayRun(stack, folder, SEED, say).run(variant.rounds, variant.seconds)
    finally:
        stack.stop()


def test_the_connector_was_killed_and_counted_too_few_rows(outcome: ReplayResult) -> None:
    assert len(outcome.kills) >= 5
    assert set(outcome.kills) == set(Killed)
    found = outcome.recording.undercounted()
    assert found, "no transaction was undercounted: seconds are too few, or this connector does it no more"
    for xid, (count, rows) in found.items():
        assert count < rows == len(outcome.truth[xid])


def test_the_topics_hold_every_row_of_every_commit_and_no_other(outcome: ReplayResult) -> None:
    streamed: dict[int, set[object]] = {}
    for row in outcome.recording.rows():
        streamed.setdefault(row.xid, set()).add(row.identity)
    assert streamed == {xid: set(rows) for xid, rows in outcome.truth.items()}


def test_every_commit_is_in_one_cut_with_all_its_rows(outcome: ReplayResult) -> None:
    assert outcome.recording.oracle(outcome.truth).complaints(outcome.cuts) == []


def test_every_document_is_the_one_the_database_had(outcome: ReplayResult) -> None:
    certificate = outcome.certificate
    assert certificate.examples == {}
    assert certificate.is_clean
    assert certificate.final_differences == 0
    assert certificate.documents > 1_000


def test_rows_of_a_table_without_key_are_read_once_wherever_they_were_repeated(
    outcome: ReplayResult, request: pytest.FixtureRequest
) -> None:
    written = [row for row in outcome.recording.rows() if row.identity[1] == JOURNAL]
    is_exactly_once = "exactly once" in request.node.name
    assert is_exactly_once or len(written) > sum(outcome.entries.values()), "no row was repeated"
    assert outcome.entries_read == outcome.entries


def test_the_same_topics_give_right_cuts_in_any_order_of_reading(outcome: ReplayResult) -> None:
    recording = outcome.recording
    oracle = recording.oracle(outcome.truth)
    for seed in range(READINGS):
        cuts = follow(recording, random.Random(seed), transactions_first=seed % 2 == 0)

        assert oracle.complaints(cuts) == [], f"reading {seed}"
        assert cuts[-1].lsn == oracle.commits[-1][0], f"reading {seed}"


def test_a_frontier_that_counts_rows_makes_cuts_too_early(
    outcome: ReplayResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = outcome.recording
    oracle = recording.oracle(outcome.truth)
    never = property(lambda _: False, lambda _transaction, _value: None)
    monkeypatch.setattr(Transaction, "is_renumbered", never)
    monkeypatch.setattr(completeness, "counts_are_complete", has_as_many_rows_as_counted)

    complaints = [
        complaint
        for seed in range(READINGS)
        for complaint in oracle.complaints(follow(recording, random.Random(seed), transactions_first=True))
    ]

    assert any("is not in cut" in complaint for complaint in complaints)
