"""What a checkpoint of Spark's says of a batch; without Spark."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slackwater.api.commit_batch import CommitBatches, file_reader
from slackwater.engine.settings import Scope
from slackwater.pipeline.source.options import SourceOptions
from slackwater.pipeline.source.position import Position
from slackwater.protocol import ConfigError, StateError

OPTIONS = {"source": "inv", "bootstrap": "b", "tables": "s.t"}
Batches = Callable[..., CommitBatches]


def offset(lsn: int, **fields: Any) -> str:
    made = Position(source="inv", timeline=1, scope=Scope.STRICT, lsns=(lsn,))
    return json.dumps({**made.to_json(), **fields})


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    """Batches of a query whose checkpoint has these sources' lines, by batch."""

    def make(*lines: str, version: str = "v1", **options: str) -> CommitBatches:
        (tmp_path / "offsets").mkdir()
        for number, of_batch in enumerate(lines):
            (tmp_path / "offsets" / str(number)).write_text(f'{version}\n{{"conf":{{}}}}\n{of_batch}')
        parsed = SourceOptions.parse({**OPTIONS, **options})
        return CommitBatches("c", parsed, file_reader(None, str(tmp_path)))  # type: ignore[arg-type]

    return make


def test_a_batch_begins_where_the_one_before_it_ends(batches: Batches) -> None:
    found = batches(offset(500), offset(500), offset(900))
    ranges = [(b.from_lsn, b.to_lsn) for b in (found.batch(0), found.batch(1), found.batch(2))]
    assert ranges == [(0, 500), (500, 500), (500, 900)]
    assert found.batch(1).transactions == (), "nothing has to be looked up"


def test_the_first_batch_of_a_query_that_begins_at_the_newest_cut_is_empty(batches: Batches) -> None:
    first = batches(offset(500), starting="latest").batch(0)
    assert (first.from_lsn, first.to_lsn, first.transactions) == (500, 500, ())


def test_other_sources_of_the_query_do_not_matter(batches: Batches) -> None:
    assert batches(f'-\n{{"logOffset":3}}\n{offset(500)}\n17').batch(0).to_lsn == 500


def test_a_source_that_is_read_twice_is_refused(batches: Batches) -> None:
    with pytest.raises(ConfigError, match=r"reads changes 2 times.*changes\.typed"):
        batches(f"{offset(500)}\n{offset(400)}").batch(0)


@pytest.mark.parametrize(
    ("lines", "version", "told"),
    [
        ((), "v1", "no such file"),
        (('{"logOffset":3}',), "v1", "reads no changes"),
        ((offset(5),), "v2", "version 'v2', expected 'v1'"),
        ((offset(5),), "", "version '', expected 'v1'"),
    ],
)
def test_a_checkpoint_that_does_not_say_is_refused(
    lines: tuple[str, ...], version: str, told: str, batches: Batches
) -> None:
    with pytest.raises(StateError, match=told):
        batches(*lines, version=version).batch(0)


def test_the_checkpoint_of_another_source_is_refused(batches: Batches) -> None:
    with pytest.raises(StateError, match="reads source 'inv'"):
        batches(offset(500, source="other")).batch(0)


def test_addresses_of_this_machine_are_read_as_paths(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("text")
    for checkpoint in (str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}"):
        read = file_reader(None, checkpoint)  # type: ignore[arg-type]  # not needed
        assert (read("x"), read("y")) == ("text", None)
