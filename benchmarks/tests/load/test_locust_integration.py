"""The real Locust, clients of a real PostgreSQL."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from slackwater.dev import DevStack
from slackwater_bench.load import LoadOptions, locust_command, read_statistics
from slackwater_lab.database.statements import create_tables, write_first
from slackwater_lab.errors import RunFailedError
from slackwater_lab.workloads import WORKLOADS

pytestmark = pytest.mark.integration

OPTIONS = LoadOptions(workload="transfers", size=50, arrivals="burst", rate=60.0, seconds=4.0, clients=3)


@pytest.fixture
def dsn(dev_stack: Callable[..., DevStack]) -> str:
    dsn = dev_stack(kafka=False, connect=False, redis=False).postgres.dsn()
    with psycopg.connect(dsn) as connection:
        connection.execute("DROP SCHEMA IF EXISTS bank CASCADE")
    workload = WORKLOADS[OPTIONS.workload](OPTIONS.seed, OPTIONS.size)
    create_tables(dsn, workload)
    write_first(dsn, workload)
    return dsn


def total(dsn: str) -> tuple[int, int]:
    """Transfers so far and the sum of all balances in cents."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT (SELECT count(*) FROM bank.transfers), (SELECT sum(balance) * 100 FROM bank.accounts)"
        ).fetchone()
    assert found is not None
    return int(found[0]), int(found[1])


@pytest.mark.slow
def test_users_commit_business_transactions_and_the_report_has_their_times(dsn: str, tmp_path: Path) -> None:
    before = total(dsn)
    command = locust_command(OPTIONS, dsn, tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    found = read_statistics(tmp_path / "load_stats.csv")
    after = total(dsn)
    commits = found["commit_count"]
    assert isinstance(commits, int)
    assert 0 < after[0] - before[0] <= commits
    assert after[1] == before[1]
    assert found["commit_failures"] == 0
    assert isinstance(found["commit_ms"], dict)
    assert 0 < found["commit_ms"]["p50"] <= found["commit_ms"]["max"]
    assert "business transaction" in (tmp_path / "report.html").read_text()


def test_a_run_in_which_nothing_was_committed_has_no_number(tmp_path: Path) -> None:
    statistics = tmp_path / "load_stats.csv"
    statistics.write_text("Type,Name,Request Count,Failure Count,50%,90%,99%,100%\nCOMMIT,x,0,0,1,2,3,4\n")
    with pytest.raises(RunFailedError, match="COMMIT"):
        read_statistics(statistics)
