"""docs/outputs.md shows the example that reads a lake at one commit, as it runs."""

from collections.abc import Callable
from pathlib import Path
from runpy import run_path

from slackwater_engine.documents import DocumentBatch
from slackwater_protocol import LakeSettings
from slackwater_spark.sink.lake import LakeColumn, LakeSink, LakeSinkSettings, OutputTable
from slackwater_spark.sink.lake.delta import DeltaLake

DOCS = Path(__file__).parents[4] / "docs"
EXAMPLE = DOCS / "examples" / "lake_at_one_commit.py"


def test_the_example_stands_in_the_documentation_as_it_runs() -> None:
    assert EXAMPLE.read_text() in (DOCS / "outputs.md").read_text()


def test_the_example_reads_all_tables_at_one_commit(
    tmp_path: Path, make_batch: Callable[..., DocumentBatch]
) -> None:
    outputs = tuple(
        OutputTable(name=f"s.{view}", columns=(LakeColumn("id", "BIGINT"),), key=("id",), view=view)
        for view in ("a", "b")
    )
    lake = LakeSettings(place=str(tmp_path))
    sink = LakeSink(LakeSinkSettings(pipeline="p", outputs=outputs, lake=lake), DeltaLake(lake))
    sink.open()
    for number in range(3):
        document = (10 * number + 10, b'{"id":%d}' % number, b'{"id":%d}' % number)
        sink.write("query", make_batch(number, [document], others={1: [document]}))
    tables_at = run_path(str(EXAMPLE))["tables_at"]

    def ids(lsn: int | None) -> tuple[int, dict[str, list[int]]]:
        at, tables = tables_at(str(tmp_path), "p", lsn)
        return at, {name: sorted(table["id"].to_pylist()) for name, table in tables.items()}

    assert ids(None) == (30, {"s.a": [0, 1, 2], "s.b": [0, 1, 2]})
    assert ids(25) == (20, {"s.a": [0, 1], "s.b": [0, 1]})
