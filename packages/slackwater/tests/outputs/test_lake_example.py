"""docs/outputs.md shows the examples that read a lake at one commit, as they run, or links to them."""

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from slackwater.engine.payloads import DocumentBatch
from slackwater.outputs.contract import OutputTable
from slackwater.outputs.lake.delta import DeltaLake
from slackwater.outputs.lake.iceberg import IcebergLake
from slackwater.outputs.lake.sink import LakeSink, LakeSinkSettings
from slackwater.protocol import LakeSettings
from slackwater.sql.plan import OutputColumn

DOCS = Path(__file__).parents[4] / "docs"
EXAMPLES = {kind: DOCS / "examples" / f"{kind}_at_one_commit.py" for kind in ("lake", "iceberg")}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_the_example_stands_in_the_documentation_as_it_runs(example: Path) -> None:
    page = (DOCS / "outputs.md").read_text()
    assert example.read_text() in page or f"(examples/{example.name})" in page


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_example_reads_all_tables_at_one_commit(
    tmp_path: Path, make_batch: Callable[..., DocumentBatch], kind: str
) -> None:
    outputs = tuple(
        OutputTable(name=f"s.{view}", columns=(OutputColumn("id", "BIGINT"),), key=("id",), view=view)
        for view in ("a", "b")
    )
    place: Any = str(tmp_path)
    settings = LakeSettings(place=place)
    if kind == "iceberg":
        uri, warehouse = f"sqlite:///{tmp_path / 'catalogue.db'}", f"file://{tmp_path}"
        settings = LakeSettings(place="test", options={"type": "sql", "uri": uri, "warehouse": warehouse})
        place = load_catalog("test", **settings.options)
    lake = IcebergLake(settings) if kind == "iceberg" else DeltaLake(settings)
    sink = LakeSink(LakeSinkSettings(pipeline="p", outputs=outputs, lake=settings), lake)
    sink.open()
    for number in range(3):
        document = (10 * number + 10, b'{"id":%d}' % number, b'{"id":%d}' % number)
        sink.write("query", make_batch(number, [document], others={1: [document]}))
    tables_at = run_path(str(EXAMPLES[kind]))["tables_at"]

    def ids(lsn: int | None) -> tuple[int, dict[str, list[int]]]:
        at, tables = tables_at(place, "p", lsn)
        return at, {name: sorted(table["id"].to_pylist()) for name, table in tables.items()}

    assert ids(None) == (30, {"s.a": [0, 1, 2], "s.b": [0, 1, 2]})
    assert ids(25) == (20, {"s.a": [0, 1], "s.b": [0, 1]})
    sink.close()
    if kind == "iceberg":
        place.close()
