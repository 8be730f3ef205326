"""One view, published to tables and lakes, is read as the documents that topics have."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from slackwater.api import open_views
from slackwater.client import PipelineOutput, read_views
from slackwater.client.lake_views import LakeOutput
from slackwater.client.table_views import TableOutput
from slackwater.dev import PostgresServer
from slackwater.engine.payloads import DocumentBatch, pack_items
from slackwater.outputs.contract import Emit, OutputTable
from slackwater.outputs.lake.delta import DeltaLake
from slackwater.outputs.lake.iceberg import IcebergLake
from slackwater.outputs.lake.sink import LakeSink, LakeSinkSettings
from slackwater.outputs.postgres.sink import PostgresSink
from slackwater.outputs.postgres.tables import PostgresSinkSettings
from slackwater.outputs.sink import Sink
from slackwater.protocol import BatchHeader, CommitPosition, LakeSettings, PostgresSettings
from slackwater.sql.duckdb_sql import Field, document_expression
from slackwater.sql.plan import OutputColumn

pytestmark = pytest.mark.integration

VALUES = [
    ("BIGINT", "7"),
    ("BOOLEAN", "true"),
    ("TINYINT", "-128"),
    ("UBIGINT", "18446744073709551615"),
    ("HUGEINT", "99999999999999999999999999999999999999"),
    ("DECIMAL(12,2)", "'3.50'"),
    ("DECIMAL(20,10)", "0"),
    ("DECIMAL(9,0)", "17"),
    ("FLOAT", "'0.05'"),
    ("FLOAT", "'1e20'"),
    ("FLOAT", "'-0.0'"),
    ("FLOAT", "'NaN'"),
    ("DOUBLE", "'0.1'"),
    ("DOUBLE", "'3.0'"),
    ("DOUBLE", "'1e300'"),
    ("DOUBLE", "'-0.0'"),
    ("DOUBLE", "'NaN'"),
    ("DOUBLE", "'-Infinity'"),
    ("VARCHAR", "'é\"\\'"),
    ("VARCHAR", "NULL"),
    ("UUID", "'00000000-0000-0000-0000-00000000000a'"),
    ("DATE", "'2026-01-02'"),
    ("TIME", "'10:11:12.5'"),
    ("TIMESTAMP", "'2026-11-20 10:11:12.5'"),
    ("TIMESTAMP", "'2026-11-20 10:11:12'"),
    ("TIMESTAMP WITH TIME ZONE", "'2026-11-20 10:11:12.5+02'"),
    ("INTERVAL", "'1 year 2 months -3 days 4 hours 5 seconds'"),
    ("INTERVAL", "'1 month 1 day -04:05:06.5'"),
    ("BIT", "'0101'"),
    ("BLOB", "repeat('\\x00\\xFFa', 60)"),
    ("JSON", "'{\"a\": 1.10, \"b\": [null, \"x\"]}'"),
    ("INTEGER[]", "[1, NULL]"),
    ("FLOAT[]", "['0.05', 'NaN', NULL]"),
    ("TIMESTAMP[]", "['2026-11-20 10:11:12.5']"),
    ("DECIMAL(4,2)[]", "['1.50']"),
    ("STRUCT(p VARCHAR, d DECIMAL(4,2), f DOUBLE, n DECIMAL(9,0))[]",
     "[{'p': 'x', 'd': 1.5, 'f': 'Infinity', 'n': 5}, NULL]"),
    ("STRUCT(b BLOB, t TIMESTAMP WITH TIME ZONE, u UUID)",
     "{'b': 'a'::BLOB, 't': '2026-11-20 10:11:12Z', 'u': '00000000-0000-0000-0000-00000000000a'}"),
    ("MAP(VARCHAR, BIGINT)", "MAP {'a': 1}"),
]  # fmt: skip
COLUMNS = {f"c{number}": kind for number, (kind, _) in enumerate(VALUES)}


def document() -> bytes:
    """As topics have it."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        fields = tuple(Field(name, name, duckdb.sqltype(kind)) for name, kind in COLUMNS.items())
        values = (f"CAST({sql} AS {kind}) AS c{n}" for n, (kind, sql) in enumerate(VALUES))
        (row,) = database.sql(f"SELECT {', '.join(values)}").project(document_expression(fields)).fetchall()
    return bytes(row[0])


def opened(kind: str, server: PostgresServer, folder: Path) -> tuple[Sink, PipelineOutput]:
    columns = tuple(OutputColumn(name, each) for name, each in COLUMNS.items())
    if kind == "postgres":
        table = OutputTable(name="same_documents.v", columns=columns, key=("c0",), view="v", history=True)
        settings = PostgresSinkSettings(
            pipeline="same", outputs=(table,), emit=Emit.TRANSACTIONS, postgres=PostgresSettings(server.dsn())
        )
        return PostgresSink(settings), TableOutput(server.dsn(), "same")
    uri, warehouse = f"sqlite:///{folder / 'catalogue.db'}", f"file://{folder}"
    options = {"type": "sql", "uri": uri, "warehouse": warehouse} if kind == "iceberg" else {}
    lake = LakeSettings(place=str(folder) if kind == "delta" else "test", options=options)
    lake_table = OutputTable(name="s.v", columns=columns, key=("c0",), view="v")
    lake_settings = LakeSinkSettings(
        pipeline="same", outputs=(lake_table,), emit=Emit.TRANSACTIONS, lake=lake
    )
    sink = LakeSink(lake_settings, (DeltaLake if kind == "delta" else IcebergLake)(lake))
    return sink, LakeOutput((DeltaLake if kind == "delta" else IcebergLake)(lake), "same")


def exact(text: bytes) -> Any:
    """Reads JSON so that values of different types and floats of different signs differ."""
    return json.loads(text, parse_float=lambda digits: ("float", repr(float(digits))))


@pytest.mark.parametrize("kind", ["postgres", "delta", "iceberg"])
def test_a_view_has_the_same_documents_in_every_output(
    kind: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    written = document()
    sink, output = opened(kind, postgres_server, tmp_path)
    header = BatchHeader(
        source="inv",
        timeline=1,
        from_lsn=0,
        to_lsn=10,
        commit_ts_ms=1,
        event_count=1,
        transactions=((10, 10, 10),),
    )
    payloads = {0: tuple(pack_items([(10, b'{"c0":7}', written)]))}
    with closing(sink), closing(output):
        sink.open()
        sink.write("q", DocumentBatch(0, header, payloads, "state 0"))
        for key in (None, {"c0": 7}):
            (found,) = (
                each for documents in read_views([output], key=key).documents.values() for each in documents
            )
            read, expected = exact(found), exact(written)
            assert {name: read[name] for name in expected} == expected
        with open_views([output], at=CommitPosition(1, 10)) as database:
            check_types(database, kind)


TYPES = {
    "postgres": {
        "BIGINT BOOLEAN FLOAT DOUBLE VARCHAR UUID DATE TIME TIMESTAMP INTERVAL BIT BLOB JSON HUGEINT",
        "DECIMAL(12,2) DECIMAL(20,10) DECIMAL(9,0) DECIMAL(20,0) SMALLINT",
    },
    "lake": {
        "BIGINT BOOLEAN FLOAT DOUBLE VARCHAR DATE TIMESTAMP BLOB INTEGER MAP STRUCT",
        "DECIMAL(12,2) DECIMAL(20,10) DECIMAL(9,0) DECIMAL(20,0) DECIMAL(38,0)",
    },
}
"""What tables have in place of the view's types, as docs/outputs.md says."""


def check_types(database: duckdb.DuckDBPyConnection, kind: str) -> None:
    """In SQL, columns have the types of the table, and the values that the view has."""
    rows = database.sql("FROM v").select(*COLUMNS)
    known = set(" ".join(TYPES["postgres" if kind == "postgres" else "lake"]).split())
    found = {text if text.startswith("DECIMAL") else text.partition("(")[0] for text in map(str, rows.types)}
    assert {text for text in found if "[" not in text} <= known | {"TIMESTAMP WITH TIME ZONE"}
    for (name, written), (_, value) in zip(COLUMNS.items(), VALUES, strict=True):
        if kind == "postgres" and ("[" in written or ("(" in written and "DECIMAL" not in written)):
            continue  # which are JSON there
        same = f"CAST({name} AS {written}) IS NOT DISTINCT FROM CAST({value} AS {written})"
        if written == "JSON":
            same = f"replace(CAST({name} AS VARCHAR), ' ', '') = replace({value}, ' ', '')"
        assert rows.select(duckdb.SQLExpression(same)).fetchall() == [(True,)], (name, written)
