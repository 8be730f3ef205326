"""Other partitions for a checkpoint, as far as it can be told without Spark."""

import json
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from slackwater_spark.errors import PipelineStateError
from slackwater_spark.state import Rescaled, rescale
from slackwater_spark.state.rescaling import StateDigest
from slackwater_spark.state.tables import StateVariable


class FakeSession:
    """Its tool adds the batch, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._streamingCheckpointManager = self
        self.folder = folder
        for log in ("offsets", "commits"):
            (folder / log).mkdir()
        self.repartition("", 4)

    def repartition(self, folder: str, partitions: int) -> None:
        number = len(list((self.folder / "offsets").iterdir()))
        conf = json.dumps({"conf": {"spark.sql.shuffle.partitions": str(partitions)}})
        (self.folder / "offsets" / str(number)).write_text(f"v1\n{conf}\n-")
        (self.folder / "commits" / str(number)).write_text("v1\n{}")


def rescaled(folder: Path, monkeypatch: pytest.MonkeyPatch, *, checksum_after: int) -> Rescaled | None:
    digests = iter([7, checksum_after])

    def state_digests(session: object, folder: Path, batch: int) -> dict[StateVariable, StateDigest]:
        meta, log = StateVariable(0, "meta"), StateVariable(0, "log")
        return {meta: StateDigest(3, 0, 1), log: StateDigest(5, 500, next(digests))}

    monkeypatch.setattr("slackwater_spark.state.rescaling.state_digests", state_digests)
    return rescale(cast("SparkSession", FakeSession(folder)), folder, 16, buckets=64)


def test_what_was_done_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = rescaled(tmp_path, monkeypatch, checksum_after=7)
    assert done == Rescaled(before=4, after=16, batch=1, buckets=3, blobs=5, bytes=500)


def test_state_that_is_not_what_it_was_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineStateError, match=r"variable log of operator 0 .* checksum 8, .* checksum 7"):
        rescaled(tmp_path, monkeypatch, checksum_after=8)


def test_nothing_is_done_when_the_number_is_the_same(tmp_path: Path) -> None:
    session = cast("SparkSession", FakeSession(tmp_path))
    assert rescale(session, tmp_path, 4, buckets=64) is None
