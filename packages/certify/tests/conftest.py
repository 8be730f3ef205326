"""A view and a judge for made-up histories."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest

from slackwater_certify import Certificate, Mode, OutputRecords, Specification, load_specification
from slackwater_certify.canonical import DocumentKey
from slackwater_certify.certifier import judge
from slackwater_certify.committed_states import CommittedStates, evaluate_committed_states
from slackwater_certify.history import History
from slackwater_certify.view import View, load_view
from slackwater_lab.fakes.certified import RightOutput, SourceLog, SourceRecord, write_specification

Judge = Callable[..., Certificate]


@pytest.fixture(scope="session")
def specification(tmp_path_factory: pytest.TempPathFactory) -> Specification:
    return load_specification(write_specification(tmp_path_factory.mktemp("orders")))


@pytest.fixture(scope="session")
def view(specification: Specification) -> View:
    return load_view(specification)


def states_of(records: Iterable[SourceRecord], specification: Specification, view: View) -> CommittedStates:
    history = History(view.tables)
    given = list(enumerate(records))
    for _, record in given:
        if record.topic.endswith(".slackwater.cuts"):
            history.add_cut(record.value)
    for number, record in given:
        if record.topic.endswith(".slackwater.cuts"):
            continue
        if record.topic.endswith(".transaction"):
            history.add_transaction_record(record.value, f"{record.topic}/0/{number}")
        else:
            history.add_row(record.value, f"{record.topic}/0/{number}")
    return evaluate_committed_states(history, specification, view, lambda _: None)


@pytest.fixture(scope="session")
def evaluated(specification: Specification, view: View) -> Iterator[Callable[[SourceLog], CommittedStates]]:
    """Returns the committed states of a source. They are kept until another source is judged."""
    known: dict[tuple[SourceRecord, ...], CommittedStates] = {}

    def close() -> None:
        while known:
            known.popitem()[1].__exit__()

    def states(log: SourceLog) -> CommittedStates:
        records = tuple(log.records)
        if records not in known:
            close()
            known[records] = states_of(records, specification, view)
        return known[records]

    yield states
    close()


@pytest.fixture
def judged(
    specification: Specification, view: View, evaluated: Callable[[SourceLog], CommittedStates]
) -> Judge:
    """Judges an output of a source; snapshots, clock, mode and database are optional."""

    def run(
        log: SourceLog,
        output: RightOutput,
        *,
        mode: Mode = Mode.ORACLE,
        snapshots: list[int] | None = None,
        database: Mapping[DocumentKey, bytes] | None = None,
    ) -> Certificate:
        records = OutputRecords(output.outputs, output.commits, snapshots)
        return judge(specification, view, records, evaluated(log), mode=mode, database=database)

    return run


@pytest.fixture
def judged_by() -> Callable[[Specification, SourceLog, RightOutput], Certificate]:
    """Judges an output of a source by another specification."""

    def run(specification: Specification, log: SourceLog, output: RightOutput) -> Certificate:
        view = load_view(specification)
        with states_of(log.records, specification, view) as committed:
            return judge(specification, view, OutputRecords(output.outputs, output.commits), committed)

    return run
