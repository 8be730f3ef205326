"""SQL of a specification's files is evaluated without files, extensions and other databases."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from slackwater_certify import Mode, OutputRecords, load_specification
from slackwater_certify.certifier import judge
from slackwater_certify.errors import CertifyError
from slackwater_certify.view import connect, load_view
from slackwater_lab.fakes.certified import SPECIFICATION, RightOutput, SourceLog, order, write_specification

REFUSED = "file system operations are disabled|external extensions is disabled|configuration has been locked"
HEAD = SPECIFICATION[: SPECIFICATION.index("[[")]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that anybody may read."""
    file = tmp_path / "secret"
    file.write_text("secret")
    return file


def judged(folder: Path, statement: str) -> None:
    """Judges an output by an invariant that is this statement."""
    invariant = f'[[invariant]]\nname = "evil"\nscope = "state"\nholds = """{statement}"""\n'
    specification = load_specification(write_specification(folder, HEAD + invariant))
    log = SourceLog()
    log.commit(("orders", 1, order(1, "6.00")))
    output = RightOutput.publish(log)
    records = OutputRecords(output.outputs, output.commits)
    judge(specification, load_view(specification), records, None, mode=Mode.INVARIANT)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) = 1 FROM read_text('{file}')",
        "SELECT count(*) = 1 FROM read_csv('{file}')",
        "SELECT count(*) = 1 FROM glob('{folder}/*')",
        "COPY (SELECT true) TO '{folder}/written'",
        "EXPORT DATABASE '{folder}/written'",
        "ATTACH '{folder}/written'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "RESET lock_configuration",
    ],
)
def test_an_invariant_reaches_no_file_extension_or_setting(
    tmp_path: Path, secret: Path, statement: str
) -> None:
    with pytest.raises(CertifyError, match=REFUSED):
        judged(tmp_path, statement.format(file=secret, folder=tmp_path))
    assert not (tmp_path / "written").exists()


def test_sql_does_not_see_the_programs_variables() -> None:
    rows = pa.table({"a": [1]})
    with connect() as connection, pytest.raises(duckdb.Error, match="rows does not exist"):
        connection.execute("FROM rows")
    assert rows.num_rows == 1


def test_branches_of_a_union_over_the_same_join_have_their_own_columns() -> None:
    joined = (
        "(SELECT m.y, k.x, r.i FROM k JOIN m ON k.i = m.x JOIN a AS l ON k.x = l.i "
        "LEFT JOIN a AS r ON l.y = r.x)"
    )
    with connect() as connection:
        connection.execute("CREATE TABLE a AS SELECT 2::BIGINT AS i, 2 AS x, NULL::INTEGER AS y")
        connection.execute("CREATE TABLE k AS SELECT 4 AS i, 2 AS x")
        connection.execute("CREATE TABLE m AS SELECT 1 AS i, 4 AS x, 3 AS y")
        rows = connection.execute(f"SELECT x, y FROM {joined} UNION ALL SELECT i, 7 FROM {joined}").fetchall()  # noqa: S608 - own SQL
    assert sorted(rows, key=str) == [(2, 3), (None, 7)]


def test_a_view_reads_no_file(tmp_path: Path, secret: Path) -> None:
    specification = load_specification(write_specification(tmp_path))
    (tmp_path / "view.sql").write_text(f"FROM read_text('{secret}')")
    with pytest.raises(CertifyError, match=REFUSED):
        load_view(specification)


def test_a_declared_table_reads_no_file(tmp_path: Path, secret: Path) -> None:
    specification = load_specification(write_specification(tmp_path))
    (tmp_path / "schema.sql").write_text(f"CREATE TABLE shop.orders AS FROM read_text('{secret}')")
    with pytest.raises(CertifyError, match=REFUSED):
        load_view(specification)
