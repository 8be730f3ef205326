"""The sink that calls a function, without Spark: what it promises when the process ends at any moment."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from slackwater.engine.payloads import Document, DocumentBatch, pack_items
from slackwater.engine.state.store import ArrowStore, MemoryStore, StateStore
from slackwater.outputs.batch import BatchCommits
from slackwater.outputs.contract import Emit, SinkSettings
from slackwater.outputs.function import PROGRESS_FILE, FunctionFailedError, FunctionSink
from slackwater.outputs.sink import Sink
from slackwater.pipeline.checkpoint import Checkpoint
from slackwater.protocol import BatchHeader, StateError, UnavailableError

QUERY = "query-1"
LSN_STEP = 100


def batch(number: int, *views: list[list[Document]]) -> DocumentBatch:
    """The batch of this number: two transactions; of each view, the documents of each bucket."""
    start, end = number * LSN_STEP, (number + 1) * LSN_STEP
    header = BatchHeader(
        source="inv",
        timeline=1,
        from_lsn=start,
        to_lsn=end,
        commit_ts_ms=end,
        event_count=2,
        transactions=((7, start + 10, 0), (8, end, 0)),
    )
    payloads = {
        view: tuple(payload for bucket in buckets for payload in pack_items(bucket))
        for view, buckets in enumerate(views)
    }
    return DocumentBatch(number, header, payloads, f"{number}-state")


class Output:
    """What a function was given, by batch and view."""

    def __init__(self, views: int = 1) -> None:
        self.views = views
        self.calls: list[tuple[int, list[list[Document]]]] = []

    def __call__(self, given: BatchCommits) -> None:
        documents = [sorted(given.shown(view)) for view in range(self.views)]
        self.calls.append((given.batch.batch_id, documents))


def sink(
    function: Callable[[BatchCommits], None],
    store: StateStore | None = None,
    *,
    emit: Emit = Emit.LATEST,
    keys_move: tuple[bool, ...] = (False,),
) -> FunctionSink:
    made = FunctionSink(
        function,
        SinkSettings(pipeline="orders", emit=emit),
        keys_move=keys_move,
        store=store or MemoryStore(),
        place="checkpoint c",
        hold=nullcontext,
    )
    is_a_sink: Sink = made
    assert is_a_sink.place == "checkpoint c"
    return made


def test_a_batch_is_noted_when_the_function_has_returned(tmp_path: Path) -> None:
    output, store = Output(), ArrowStore(str(tmp_path))
    first = sink(output, store)
    assert first.open() is None
    report = first.write(QUERY, batch(0, [[(10, b"k", b"1"), (20, b"l", None)]]))
    assert (report.documents, report.deletes, report.was_covered) == (2, 1, False)
    first.close()

    again = sink(output, store)
    again.check(QUERY)
    progress = again.open()
    assert progress is not None
    assert (progress.batch_id, progress.commit_lsn, progress.state) == (0, 100, "0-state")
    again.write(QUERY, batch(1))
    assert output.calls == [(0, [[(100, b"k", b"1"), (100, b"l", None)]]), (1, [[]])]


def test_a_batch_whose_progress_could_not_be_written_is_not_noted() -> None:
    class FullStore(MemoryStore):
        def write(self, name: str, data: bytes) -> None:
            raise UnavailableError("no space left")

    output = Output()
    made = sink(output, FullStore())
    made.open()
    for _ in range(2):
        with pytest.raises(UnavailableError):
            made.write(QUERY, batch(0))
    assert [number for number, _ in output.calls] == [0, 0]


def test_a_batch_whose_function_has_failed_is_given_to_it_again() -> None:
    """Fails when the progress is written before the function is called."""
    store, output = MemoryStore(), Output()

    def fail(given: BatchCommits) -> None:
        output(given)
        raise ConnectionResetError("by peer")

    failing = sink(fail, store)
    failing.open()
    with pytest.raises(FunctionFailedError) as caught:
        failing.write(QUERY, batch(0))
    assert isinstance(caught.value.error, ConnectionResetError)

    again = sink(output, store)
    assert again.open() is None
    again.write(QUERY, batch(0))
    assert [number for number, _ in output.calls] == [0, 0]


def test_a_batch_that_could_not_be_noted_is_given_again() -> None:
    class FullStore(MemoryStore):
        def write(self, name: str, data: bytes) -> None:
            raise UnavailableError("no space left")

    output, full = Output(), FullStore()
    for _ in range(2):
        made = sink(output, full)
        assert made.open() is None
        with pytest.raises(UnavailableError):
            made.write(QUERY, batch(0))
    assert [number for number, _ in output.calls] == [0, 0]


def test_a_batch_that_is_noted_is_not_given_again() -> None:
    output = Output()
    made = sink(output)
    made.open()
    made.write(QUERY, batch(0, [[(10, b"k", b"1")]]))
    report = made.write(QUERY, batch(0, [[(10, b"k", b"1")]]))
    assert (report.was_covered, report.documents) == (True, 0)
    assert len(output.calls) == 1


def test_a_batch_that_does_not_continue_the_progress_is_refused() -> None:
    output = Output()
    made = sink(output)
    made.open()
    made.write(QUERY, batch(0))
    with pytest.raises(StateError, match="does not follow"):
        made.write(QUERY, batch(2))
    assert len(output.calls) == 1


def test_progress_of_another_checkpoint_or_none_at_all_is_refused() -> None:
    store = MemoryStore()
    made = sink(Output(), store)
    made.open()
    made.write(QUERY, batch(0))
    for query in ("query-2", None):
        with pytest.raises(StateError, match=r"progress\.json in checkpoint c was written by query"):
            sink(Output(), store).check(query)
    with pytest.raises(StateError, match="was written by query"):
        made.write("query-2", batch(1))
    store.write(PROGRESS_FILE, b"{")
    with pytest.raises(StateError, match=r"progress\.json in checkpoint c cannot be read"):
        sink(Output(), store).open()


def test_a_key_that_moves_between_buckets_is_one_document() -> None:
    """Fails when what the buckets say is not put together: the delete would come beside the document."""
    gone: list[Document] = [(100, b"k", None)]
    come: list[Document] = [(10, b"k", b"new")]
    output = Output()
    made = sink(output, keys_move=(True,))
    made.open()
    report = made.write(QUERY, batch(0, [come, gone]))
    assert output.calls == [(0, [[(100, b"k", b"new")]])]
    assert (report.documents, report.deletes) == (1, 0)


def test_every_commit_has_its_documents() -> None:
    gone: list[Document] = [(10, b"k", None), (100, b"k", b"2")]
    come: list[Document] = [(10, b"k", b"1"), (100, b"k", None)]
    given: list[list[Document]] = []

    def note(found: BatchCommits) -> None:
        given.append(list(found.shown(0)))

    made = sink(note, emit=Emit.TRANSACTIONS, keys_move=(True,))
    made.open()
    made.write(QUERY, batch(0, [come, gone]))
    assert given == [[(10, b"k", b"1"), (100, b"k", b"2")]], "in commit order"


def test_a_batch_that_cannot_be_read_does_not_reach_the_function() -> None:
    output = Output(views=2)
    made = sink(output, keys_move=(False, False))
    made.open()
    good, foreign = (
        batch(0, [[(10, b"k", b"1")]], [[(10, b"k", b"1")]]),
        batch(0, [], [], [[(10, b"k", b"1")]]),
    )
    damaged = DocumentBatch(0, good.header, {**good.payloads, 1: (b"?",)}, good.state)
    for each in (foreign, damaged):
        with pytest.raises(StateError):
            made.write(QUERY, each)
    assert output.calls == []
    made.write(QUERY, good)
    assert len(output.calls) == 1


def test_a_checkpoint_is_held_alone_from_opening_to_closing(tmp_path: Path) -> None:
    def held() -> FunctionSink:
        checkpoint = Checkpoint(tmp_path.as_uri())
        return FunctionSink(
            Output(),
            SinkSettings(pipeline="orders"),
            keys_move=(False,),
            store=checkpoint.store,
            place="here",
            hold=lambda: checkpoint.hold("a run of orders"),
        )

    first, second = held(), held()
    first.open()
    with pytest.raises(UnavailableError, match="in use by a run of orders"):
        second.open()
    second.close()
    first.close()
    first.close()
    second.open()
    second.close()


def test_an_error_keeps_its_own_cause() -> None:
    def fail(given: BatchCommits) -> Any:
        raise ValueError("outer") from KeyError("inner")

    made = sink(fail)
    made.open()
    with pytest.raises(FunctionFailedError) as caught:
        made.write(QUERY, batch(0))
    assert isinstance(caught.value.error.__cause__, KeyError)
