"""What a view's SQL cannot reach."""

from pathlib import Path

import duckdb
import pytest

from slackwater.sql.limits import StatementLimits, open_connection, scratch_database


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_blob('{file}')",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM glob('/*')",
        "COPY (SELECT 1) TO '{file}.out'",
        "EXPORT DATABASE '{file}.out'",
        "ATTACH '{file}.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM 'http://127.0.0.1:1/x.parquet'",
        "SELECT getenv('HOME')",
        "SET enable_external_access = true",
    ],
)
def test_sql_reaches_no_file_no_network_and_no_extension(statement: str, tmp_path: Path) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("s3cret\n")
    with open_connection() as connection, pytest.raises(duckdb.Error) as caught:
        connection.execute(statement.format(file=file)).fetchall()
    assert "s3cret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [file]


def test_sql_does_not_see_the_variables_of_the_program() -> None:
    rows = [("s3cret",)]
    with open_connection() as connection, pytest.raises(duckdb.Error, match="rows"):
        connection.execute("SELECT * FROM rows")
    assert rows


def test_a_database_of_a_view_starts_no_threads() -> None:
    """A worker has one for each view and plan; DuckDB starts eight threads each to read files."""
    tasks = Path("/proc/self/task")
    before = {task.name for task in tasks.iterdir()}
    with open_connection() as connection:
        connection.execute("SELECT count(*) FROM range(1000) AS r(x) GROUP BY x % 7").fetchall()
        assert {task.name for task in tasks.iterdir()} <= before


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("threads", "1"),
        ("async_threads", "0"),
        ("memory_limit", "64.0 MiB"),
        ("temp_directory", ""),
        ("autoinstall_known_extensions", "false"),
        ("autoload_known_extensions", "false"),
        ("python_enable_replacements", "false"),
        ("enable_external_access", "false"),
        ("enable_progress_bar", "false"),
        ("TimeZone", "UTC"),
    ],
)
def test_a_session_has_each_of_its_limits_and_not_only_their_sum(setting: str, value: str) -> None:
    with open_connection(StatementLimits(memory_mib=64)) as connection:
        (row,) = connection.execute("SELECT current_setting(?)::VARCHAR", [setting]).fetchall()
    assert row == (value,)


def test_a_statement_that_needs_more_memory_than_its_limit_fails() -> None:
    with open_connection(StatementLimits(memory_mib=16)) as connection, pytest.raises(duckdb.Error) as caught:
        connection.execute("SELECT count(*) FROM (SELECT DISTINCT hash(x) FROM range(5_000_000) AS r(x))")
    assert type(caught.value) is duckdb.OutOfMemoryException


def test_what_is_tried_out_is_removed_and_the_connection_is_kept_in_its_process() -> None:
    with scratch_database() as first:
        first.execute("CREATE TABLE tried (a INTEGER)")
    with scratch_database() as second, pytest.raises(duckdb.CatalogException):
        second.execute("SELECT * FROM tried")
    assert first is second
