"""What a checkpoint's files say, and who may work with them."""

import json
import multiprocessing
from pathlib import Path

import pytest

from slackwater_spark.errors import PipelineConfigError, PipelineStateError, PipelineUnavailableError
from slackwater_spark.state import Checkpoint, check_rescaling


class Files:
    """A checkpoint as Spark writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir()
        (folder / "metadata").write_text('{"id":"a"}')

    def batch(
        self, number: int, partitions: int, *, offset: object = None, is_committed: bool = True
    ) -> None:
        metadata = {"batchWatermarkMs": 0, "conf": {"spark.sql.shuffle.partitions": str(partitions)}}
        text = f"v1\n{json.dumps(metadata)}\n{json.dumps(offset or {'lsn': number + 1})}"
        (self.folder / "offsets" / str(number)).write_text(text)
        if is_committed:
            (self.folder / "commits" / str(number)).write_text("v1\n{}")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_batch_whose_number_of_partitions_is_another_is_a_rescaling(files: Files) -> None:
    for number, partitions in enumerate([4, 4, 16, 16, 4, 4], start=8):
        files.batch(number, partitions)
    assert Checkpoint(files.folder).batches_without_input() == {10, 12}
    assert Checkpoint(files.folder).facts().partitions == 4


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ({"lsn": 0, "end": {}}, {"lsn": 7, "end": {}}),
        ({"lsns": [], "log": 0}, {"lsns": [0, 5], "log": 3}),
        ({"lsns": [0, 0], "log": 2}, {"lsns": [5, 0], "log": 3}),
    ],
)
def test_batches_that_end_where_the_one_before_did_have_no_input(
    files: Files, first: object, later: object
) -> None:
    for number, offset in enumerate([first, first, later, later]):
        files.batch(number, 4, offset=offset)
    assert Checkpoint(files.folder).batches_without_input() == {0, 1, 3}


def test_the_first_batch_that_spark_still_knows_is_not_taken_for_an_empty_one(files: Files) -> None:
    files.batch(7, 4, offset={"lsn": 9})
    (files.folder / "offsets" / "8").write_text("v1\n")
    (files.folder / "offsets" / "9").write_text("v1\n")
    assert Checkpoint(files.folder).batches_without_input() == frozenset()


def test_the_first_batch_of_another_source_is_not_taken_for_an_empty_one(files: Files) -> None:
    files.batch(0, 4, offset={"logOffset": 0})
    assert Checkpoint(files.folder).batches_without_input() == frozenset()


@pytest.mark.parametrize("missing", ["metadata", "offsets"])
def test_a_folder_that_lacks_a_part_is_no_checkpoint(tmp_path: Path, missing: str) -> None:
    (tmp_path / "metadata").write_text('{"id": "q"}')
    (tmp_path / "offsets").mkdir()
    assert Checkpoint(tmp_path).exists()
    (tmp_path / missing).rename(tmp_path / "elsewhere")
    assert not Checkpoint(tmp_path).exists()


def test_a_checkpoint_without_batches_has_no_rescalings(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "nothing").batches_without_input() == frozenset()
    assert not Checkpoint(tmp_path).exists()


def test_other_files_among_the_batches_are_not_taken_for_batches(files: Files) -> None:
    files.batch(3, 4)
    (files.folder / "offsets" / ".3.crc").write_bytes(b"x")
    (files.folder / "offsets" / "4.tmp").write_bytes(b"x")
    assert Checkpoint(files.folder).facts().last_batch == 3


def test_a_folder_without_a_committed_batch_has_no_state(files: Files) -> None:
    with pytest.raises(PipelineConfigError, match="offsets"):
        Checkpoint(files.folder).facts()
    files.batch(0, 4, is_committed=False)
    with pytest.raises(PipelineConfigError, match="commits"):
        Checkpoint(files.folder).facts()


def test_an_interrupted_rescaling_can_only_be_finished(files: Files) -> None:
    files.batch(0, 4)
    files.batch(1, 16, is_committed=False)
    assert check_rescaling(files.folder, 16, 64).unfinished_partitions == 16
    with pytest.raises(PipelineStateError, match="--partitions 16"):
        check_rescaling(files.folder, 8, 64)


def test_a_batch_that_may_be_in_the_output_is_refused(files: Files) -> None:
    files.batch(0, 4)
    files.batch(1, 4, is_committed=False)
    with pytest.raises(PipelineStateError, match="batch 1 was begun"):
        check_rescaling(files.folder, 16, 64)


@pytest.mark.parametrize("partitions", [0, 65])
def test_partitions_without_a_bucket_are_refused(files: Files, partitions: int) -> None:
    files.batch(0, 4)
    with pytest.raises(PipelineConfigError, match="1 to 64"):
        check_rescaling(files.folder, partitions, 64)


def test_a_run_and_a_rescaling_exclude_each_other(tmp_path: Path) -> None:
    with (
        Checkpoint(tmp_path).hold("a run of orders", alone=False),
        pytest.raises(PipelineUnavailableError, match="in use by a run of orders"),
        Checkpoint(tmp_path).hold("a change", alone=True),
    ):
        pass
    with (
        Checkpoint(tmp_path).hold("a change to 16 partitions", alone=True),
        pytest.raises(PipelineUnavailableError, match="16 partitions"),
        Checkpoint(tmp_path).hold("a run", alone=False),
    ):
        pass


def test_two_runs_share_a_checkpoint(tmp_path: Path) -> None:
    with (
        Checkpoint(tmp_path).hold("a run", alone=False),
        Checkpoint(tmp_path).hold("the run that takes over", alone=False),
    ):
        pass


def test_a_run_that_finds_another_one_still_shuts_out_a_rescaling(tmp_path: Path) -> None:
    with Checkpoint(tmp_path).hold("a run", alone=False) as hold:
        with Checkpoint(tmp_path).hold("a run that was frozen", alone=False), hold.alone() as is_alone:
            assert not is_alone
        with (
            pytest.raises(PipelineUnavailableError),
            Checkpoint(tmp_path).hold("a change", alone=True),
        ):
            pass


def test_a_run_that_was_alone_for_a_time_lets_others_in_again(tmp_path: Path) -> None:
    with Checkpoint(tmp_path).hold("a run", alone=False) as hold:
        with (
            hold.alone() as is_alone,
            pytest.raises(PipelineUnavailableError),
            Checkpoint(tmp_path).hold("the run that takes over", alone=False),
        ):
            pass
        assert is_alone
        with Checkpoint(tmp_path).hold("the run that takes over", alone=False):
            pass


def test_only_the_newest_holder_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    with Checkpoint(tmp_path).hold("a change", alone=True):
        pass
    with (
        Checkpoint(tmp_path).hold("a run", alone=False),
        pytest.raises(PipelineUnavailableError, match="in use by a run "),
        Checkpoint(tmp_path).hold("another change", alone=True),
    ):
        pass


def hold_and_die(folder: Path) -> None:
    """In a process of its own."""
    import os

    with Checkpoint(folder).hold("a run", alone=False):
        os._exit(1)


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=hold_and_die, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 1
    with Checkpoint(tmp_path).hold("a change", alone=True):
        pass
