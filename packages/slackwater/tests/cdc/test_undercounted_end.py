"""Topics in which every END of a transaction counts too few rows, as a real connector left them.

Recorded from Debezium 3.7.0.Final with PostgreSQL 15, two partitions per table, the position stored every
300 ms: connector and database were killed while a long transaction was written that lies in the log before
commits that the connector had already written.
"""

import random
from pathlib import Path

import pytest

from slackwater.cdc import completeness
from slackwater.cdc.transaction import Transaction
from slackwater_lab.debezium.recording import Oracle, Recording, follow

RECORDING = Path(__file__).parent / "recordings" / "undercounted_end.tsv.gz"
READINGS = 60


def has_as_many_rows_as_counted(transaction: Transaction) -> bool:
    """The rule that one would write who does not know connectors: the numbers of the rows do not matter."""
    end = transaction.end
    tracks = [track for rows in transaction.runs for track in rows.tracks.values()]
    read = sum(len(track) - track.count(0) for track in tracks)
    return end is not None and read >= sum(end.counts.values())


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.load(RECORDING, "inv")


@pytest.fixture(scope="module")
def oracle(recording: Recording) -> Oracle:
    return recording.oracle()


def test_the_connector_counted_fewer_rows_than_it_wrote(recording: Recording) -> None:
    found = recording.undercounted()
    assert found
    assert all(0 < count < rows for count, rows in found.values())


def test_cuts_are_right_in_any_order_of_reading(recording: Recording, oracle: Oracle) -> None:
    for seed in range(READINGS):
        cuts = follow(recording, random.Random(seed), transactions_first=seed % 2 == 0)

        assert oracle.complaints(cuts) == [], f"seed {seed}"
        assert cuts[-1].lsn >= oracle.commits[-1][0], f"seed {seed}"


def test_a_frontier_that_goes_on_from_any_cut_is_right(recording: Recording, oracle: Oracle) -> None:
    rng = random.Random(1)
    whole = follow(recording, rng, longest=3)
    for number in range(1, len(whole)):
        before = whole[:number]
        cuts = follow(recording, rng, transactions_first=number % 2 == 0, before=before)

        assert oracle.complaints([*before, *cuts]) == [], f"from cut {number}"


def test_a_frontier_that_counts_rows_makes_cuts_too_early(
    recording: Recording, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = property(lambda _: False, lambda _transaction, _value: None)
    monkeypatch.setattr(Transaction, "is_renumbered", never)
    monkeypatch.setattr(completeness, "counts_are_complete", has_as_many_rows_as_counted)
    complaints = [
        complaint
        for seed in range(READINGS)
        for complaint in oracle.complaints(follow(recording, random.Random(seed), transactions_first=True))
    ]
    assert any("is not in cut" in complaint for complaint in complaints)


def test_a_recording_is_read_as_it_was_written(recording: Recording, tmp_path: Path) -> None:
    recording.save(tmp_path / "again.tsv.gz")
    assert Recording.load(tmp_path / "again.tsv.gz", "inv") == recording
