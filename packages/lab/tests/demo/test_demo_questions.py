"""The folder of the demo's second revision."""

from pathlib import Path

import pytest

from slackwater.pipeline import load_pipeline
from slackwater_lab.demo.run import write_next_revision

ORDERS = Path(__file__).parents[4] / "pipelines" / "orders"


@pytest.mark.parametrize(
    "output", ['[output]\ntopic = "here"\npartitions = 2\n', "revision = 1\n", "[output]\n"]
)
def test_the_next_revision_differs_in_its_number_and_its_topic_only(tmp_path: Path, output: str) -> None:
    first = tmp_path / "first"
    (first / "views").mkdir(parents=True)
    for name in ("schema.sql", "views/orders_with_lines.sql"):
        (first / name).write_text((ORDERS / name).read_text())
    (first / "pipeline.toml").write_text(f'name = "orders"\nsource = "inv"\nemit = "latest"\n{output}')
    was = load_pipeline(first)
    found = load_pipeline(write_next_revision(first, tmp_path / "next", "there"))
    assert (found.name, found.revision) == ("orders.v2", 2)
    assert [each.name for each in found.outputs] == ["there"]
    assert (found.source, found.emit, found.plan) == (was.source, was.emit, was.plan)
    assert [each.partitions for each in found.outputs] == [each.partitions for each in was.outputs]
