"""The simulated log: commits in order, rows of long transactions below earlier commits."""

from slackwater_lab.generator.share import ROW_BYTES, Committed, SimulatedLog
from slackwater_lab.workloads.workload import BusinessTransaction, Delete, Read


def transaction(number: int, **options: int) -> BusinessTransaction:
    return BusinessTransaction((Delete("s.t", number), Read("s.t", 0), Delete("s.u", number)), **options)  # type: ignore[arg-type]


def ids(commits: list[Committed]) -> list[int]:
    return [commit.changes[0].id for commit in commits]  # type: ignore[union-attr]


def test_a_transaction_that_is_held_open_commits_after_so_many_others() -> None:
    log = SimulatedLog()
    stream = [transaction(0, held_open_for=3), *map(transaction, range(1, 6))]
    commits = list(log.commits(stream))
    assert ids(commits) == [1, 2, 3, 0, 4, 5]


def test_rows_of_a_long_transaction_lie_below_earlier_commits() -> None:
    log = SimulatedLog()
    commits = list(log.commits([transaction(0, held_open_for=2), *map(transaction, range(1, 4))]))
    held = next(commit for commit in commits if commit.changes[0].id == 0)  # type: ignore[union-attr]
    before = commits[commits.index(held) - 1]
    assert held.begin_lsn + ROW_BYTES * len(held.changes) < before.commit_lsn < held.commit_lsn
    assert held.previous_commit_lsn == before.commit_lsn


def test_commit_lsns_rise_in_the_order_of_commits() -> None:
    log = SimulatedLog()
    lsns = [commit.commit_lsn for commit in log.commits(map(transaction, range(50)))]
    assert lsns == sorted(set(lsns))
    assert log.last_commit_lsn == lsns[-1]


def test_what_is_rolled_back_or_only_reads_leaves_nothing_but_a_gap() -> None:
    log = SimulatedLog()
    rolled_back = BusinessTransaction((Delete("s.t", 9),), is_rolled_back=True)
    only_reads = BusinessTransaction((Read("s.t", 9),))
    first, second = log.commits([transaction(1), rolled_back, only_reads, transaction(2)])
    assert second.xid == first.xid + 2
    assert second.begin_lsn > first.commit_lsn
    assert first.events == 2
